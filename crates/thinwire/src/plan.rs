//! Rounds, bytes and memory, before anything is sent.
//!
//! The same calendar says which round each step has, and the same layout says how long its messages are, here and in the run:
//! what is planned is what the meter counts, to the byte (`tests/traffic.rs`).

use crate::collective::Rounds;
use crate::config::{Config, Name};
use crate::error::{Error, Result};
use crate::exchange::{Coding, Codings};
use crate::layout::Shape;
use crate::schedule::{Calendar, Round};
use serde::Serialize;

/// What a run will send and hold.
pub struct Plan {
    pub steps: u64,
    pub rounds: Rounds,
    name: Name,
    clips: bool,
    shape: Shape,
    codings: Codings,
    ends_synced: bool,
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
    /// Plans `steps` steps of `params` parameters on `workers` workers, at the configuration's learning rate.
    pub fn new(config: &Config, params: usize, workers: usize, steps: u64) -> Result<Plan> {
        if workers == 0 {
            return Err(Error::config("workers", workers, "accepted: at least 1"));
        }
        let config = config.resolved()?;
        config.groups(params)?;
        let calendar = config.calendar();
        if calendar == (Calendar::OneBit { warmup: None }) {
            return Err(Error::config("warmup", "auto", "only the run will tell; to plan, give a number of steps"));
        }
        let lr = |t| config.learning_rate.as_ref().map_or(0.0, |schedule| schedule.at(t));
        let mut rounds = Rounds::default();
        for t in 0..steps {
            rounds.count(calendar.round(t, lr(t)));
        }
        let shape = config.shape(params, workers);
        let clips = config.clip.is_some();
        let ends_synced = steps == 0 || calendar.round(steps - 1, lr(steps - 1)) != Round::Skipped;
        Ok(Plan { steps, rounds, name: config.name, clips, shape, codings: config.codings(shape), ends_synced })
    }

    /// The same run with a sync at its end.
    pub fn with_final_sync(mut self) -> Plan {
        self.rounds.coarse += u64::from(!self.ends_synced);
        self.ends_synced = true;
        self
    }

    /// The bytes worker `rank` sends to others, headers included.
    pub fn bytes_sent(&self, rank: usize) -> u64 {
        assert!(rank < self.shape.workers, "there is no worker {rank} of {}", self.shape.workers);
        let sent =
            |rounds: u64, coding: &Option<Coding>| coding.as_ref().map_or(0, |coding| rounds * coding.bytes_sent(rank));
        sent(self.rounds.exact, &self.codings.exact) + sent(self.rounds.coarse, &self.codings.coarse)
    }

    /// The bits that stand for one parameter on the wire, averaged over the steps, as the papers count: a mean in f32 is 32
    /// bits, though a worker sends it twice but for its own part, once up and once down.
    pub fn bits_per_param_per_step(&self) -> f64 {
        let bits = |rounds: u64, coding: &Option<Coding>| {
            coding.as_ref().map_or(0.0, |coding| rounds as f64 * coding.bits_per_value())
        };
        let all = bits(self.rounds.exact, &self.codings.exact) + bits(self.rounds.coarse, &self.codings.coarse);
        all / self.steps.max(1) as f64
    }

    pub fn memory(&self, rank: usize) -> Memory {
        assert!(rank < self.shape.workers, "there is no worker {rank} of {}", self.shape.workers);
        let word = 4 * self.shape.values as u64;
        let residues = self.codings.coarse.as_ref().map_or(0, |coding| word + 4 * coding.owned(rank).len() as u64);
        let local = if self.name == Name::ZeroOneAdam { 2 * word } else { 0 };
        let clipping = if self.clips { word } else { 0 };
        let buffers = 2 * self.shape.workers as u64 + 3;
        Memory {
            model: 2 * word,
            moments: 2 * word,
            beyond_adam: residues + local + clipping,
            messages: buffers * self.codings.longest_message() as u64,
        }
    }
}
