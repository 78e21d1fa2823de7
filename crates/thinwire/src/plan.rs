//! Rounds, bytes and memory, before anything is sent.
//!
//! The same calendar says which round each step has, and the same layout says how long its messages are, here and in the run:
//! what is planned is what the meter counts, to the byte (`tests/traffic.rs`).

use crate::collective::Rounds;
use crate::config::{Config, Name};
use crate::error::{Error, Result};
use crate::exchange::{Coding, Codings, Sent};
use crate::hosts::Hosts;
use crate::layout::{Shape, Topology};
use crate::schedule::{Calendar, LearningRate, Round};
use serde::Serialize;

/// What a run will send and hold.
pub struct Plan {
    pub steps: u64,
    pub rounds: Rounds,
    name: Name,
    clips: bool,
    shape: Shape,
    /// Where the workers are, whatever the form of the mean.
    hosts: Hosts,
    codings: Codings,
    calendar: Calendar,
    learning_rate: Option<LearningRate>,
    ends_synced: bool,
}

/// What one round does to the network: the slowest place of it, which all others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Load {
    /// The pieces in which the vector goes; packing one overlaps sending another.
    pub buckets: u64,
    /// Bytes that the busiest host's link carries up, towards the owners, and then down, all workers of the host together.
    pub up: u64,
    pub down: u64,
    /// Messages that a worker of that host sends, those inside it too.
    pub messages: u64,
}

fn add(left: Sent, right: Sent) -> Sent {
    Sent { up: left.up + right.up, down: left.down + right.down, messages: left.messages + right.messages }
}

/// Bytes of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Parameters and gradients: the caller's.
    pub model: u64,
    /// m and v, as in Adam anywhere.
    pub moments: u64,
    /// What the optimizer keeps beyond them: residues, for 0/1 Adam u and the anchor, room for clipping.
    pub beyond_adam: u64,
    /// Messages under way: what this worker packs, and what it has received for this bucket and the next.
    pub messages: u64,
}

impl Memory {
    pub fn total(&self) -> u64 {
        self.model + self.moments + self.beyond_adam + self.messages
    }
}

impl Plan {
    /// Plans `steps` steps of `params` parameters on `workers` workers of one host, at the configuration's learning rate.
    pub fn new(config: &Config, params: usize, workers: usize, steps: u64) -> Result<Plan> {
        Plan::on_hosts(config, params, &vec![0; workers], steps)
    }

    /// The same with worker i on host `hosts[i]`: any numbers, equal for workers that share one.
    pub fn on_hosts(config: &Config, params: usize, hosts: &[usize], steps: u64) -> Result<Plan> {
        let (workers, hosts) = (hosts.len(), Hosts::new(hosts));
        if workers == 0 {
            return Err(Error::config("workers", workers, "accepted: at least 1"));
        }
        let config = config.resolved()?;
        config.groups(params)?;
        let calendar = config.calendar();
        if calendar == (Calendar::OneBit { warmup: None }) {
            return Err(Error::config("warmup", "auto", "only the run will tell; to plan, give a number of steps"));
        }
        let shape = config.shape(params, workers);
        let codings = config.codings(shape, &config.hosts(&hosts)?);
        let mut plan = Plan {
            steps,
            rounds: Rounds::default(),
            name: config.name,
            clips: config.clip.is_some(),
            shape,
            hosts,
            codings,
            calendar,
            learning_rate: config.learning_rate,
            ends_synced: true,
        };
        for t in 0..steps {
            let round = plan.round(t);
            plan.rounds.count(round);
            plan.ends_synced = round != Round::Skipped;
        }
        Ok(plan)
    }

    /// The same run with a sync at its end.
    pub fn with_final_sync(mut self) -> Plan {
        self.rounds.coarse += u64::from(!self.ends_synced);
        self.ends_synced = true;
        self
    }

    pub fn params(&self) -> usize {
        self.shape.values
    }

    pub fn workers(&self) -> usize {
        self.shape.workers
    }

    /// The bytes worker `rank` sends to others, headers included.
    pub fn bytes_sent(&self, rank: usize) -> u64 {
        self.bytes_to(rank, |_| true)
    }

    /// Those of them that go to another host.
    pub fn bytes_between_hosts(&self, rank: usize) -> u64 {
        self.bytes_to(rank, |to| self.hosts.of(to) != self.hosts.of(rank))
    }

    fn bytes_to(&self, rank: usize, counts: impl Fn(usize) -> bool) -> u64 {
        assert!(rank < self.shape.workers, "there is no worker {rank} of {}", self.shape.workers);
        let sent = |rounds: u64, coding: &Option<Coding>| match coding {
            Some(coding) if rounds > 0 => {
                let sent = coding.sent(rank, &counts);
                rounds * (sent.up + sent.down)
            }
            _ => 0,
        };
        sent(self.rounds.exact, &self.codings.exact) + sent(self.rounds.coarse, &self.codings.coarse)
    }

    /// What one round of this kind does to the network, or None if the optimizer has none such.
    pub fn load(&self, round: Round) -> Option<Load> {
        let coding = match round {
            Round::Exact => self.codings.exact.as_ref()?,
            Round::Coarse => self.codings.coarse.as_ref()?,
            Round::Skipped => return None,
        };
        let away = |rank: usize| coding.sent(rank, |to| self.hosts.of(to) != self.hosts.of(rank));
        let from = |host: usize| self.hosts.members(host).iter().map(|rank| away(*rank)).fold(Sent::default(), add);
        // Hosts differ by a block, and by how many workers they have.
        let busiest = (0..self.hosts.count()).rev().max_by_key(|host| self.hosts.members(*host).len()).unwrap_or(0);
        let mut link = from(busiest);
        if self.shape.topology == Topology::Central {
            // All that goes up comes in over one link; all that comes down leaves by it.
            let others = self.hosts.count() as u64 - 1;
            link.up = others * if others > 0 { from(1).up } else { 0 };
            link.down = from(0).down;
        }
        let first = self.hosts.members(busiest).first().copied().unwrap_or(0);
        let (buckets, messages) = (coding.buckets() as u64, coding.sent(first, |_| true).messages);
        Some(Load { buckets, up: link.up, down: link.down, messages })
    }

    /// The kind of step `t`.
    pub fn round(&self, t: u64) -> Round {
        self.calendar.round(t, self.learning_rate.as_ref().map_or(0.0, |schedule| schedule.at(t)))
    }

    /// The bits that stand for one parameter between hosts, averaged over the steps, as the papers count: a mean in f32 is 32
    /// bits, though a worker sends it twice but for its own part, once up and once down. What goes inside a host, where workers
    /// of one add up first, is not in it.
    pub fn bits_per_param_per_step(&self) -> f64 {
        let bits = |rounds: u64, coding: &Option<Coding>| {
            coding.as_ref().map_or(0.0, |coding| rounds as f64 * coding.bits_per_value())
        };
        let all = bits(self.rounds.exact, &self.codings.exact) + bits(self.rounds.coarse, &self.codings.coarse);
        all / self.steps.max(1) as f64
    }

    /// What worker `rank` holds. Its residue of the way up is as long as the vector also where a host has several workers, and
    /// most of it stays 0: only the blocks that it relays have one.
    pub fn memory(&self, rank: usize) -> Memory {
        assert!(rank < self.shape.workers, "there is no worker {rank} of {}", self.shape.workers);
        let word = 4 * self.shape.values as u64;
        let residues = self.codings.coarse.as_ref().map_or(0, |coding| word + 4 * coding.owned(rank).len() as u64);
        let local = if self.name == Name::ZeroOneAdam { 2 * word } else { 0 };
        let clipping = if self.clips && self.codings.exact.is_some() { word } else { 0 };
        Memory {
            model: 2 * word,
            moments: 2 * word,
            beyond_adam: residues + local + clipping,
            messages: (self.codings.buffers(rank) * self.codings.longest_message()) as u64,
        }
    }
}
