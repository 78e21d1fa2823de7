//! Rounds, bytes and memory, before anything is sent.
//!
//! The same calendar says which round each step has, and the same layout says how long its messages are, here and in the run:
//! what is planned is what the meter counts, to the byte (`tests/it/traffic.rs`).

use crate::config::Config;
use crate::error::{Error, Result};
use crate::exchange::hosts::Hosts;
use crate::exchange::layout::Shape;
use crate::exchange::{Crossing, RoundLayout, RoundLayouts};
use crate::optim::Algorithm;
use crate::schedule::{LearningRate, Round};
use crate::transport::Rounds;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a run will send and hold.
pub struct Plan {
    /// Steps of the run.
    pub steps: u64,
    /// Rounds of each kind.
    pub rounds: Rounds,
    /// Those of the exact ones that follow the coarse one of the same step.
    pub second: u64,
    algorithm: Arc<dyn Algorithm>,
    /// Whether a mean is kept until its norm is known.
    keeps: bool,
    shape: Shape,
    /// Where the workers are, whatever the form of the mean.
    hosts: Hosts,
    codings: RoundLayouts,
    learning_rate: Option<LearningRate>,
    /// Coarse rounds by how many steps they are under way.
    delays: BTreeMap<u64, u64>,
    /// Coarse rounds of each part of the vector.
    of_parts: Vec<u64>,
    /// Of the coarse rounds, those of a sync after the last step.
    pub final_rounds: u64,
    /// The parts that such a sync has a round of.
    unsynced: Vec<usize>,
}

/// What one round does to the network: the slowest place of it, which all others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Load {
    /// The pieces in which the vector goes; packing one overlaps sending another.
    pub buckets: u64,
    /// Bytes that the busiest host's link carries up, towards the owners, and then down, all workers of the host together, in its
    /// busier direction: where there are fewer blocks than workers, an owner gets more than it sends.
    pub up: u64,
    /// See `up`.
    pub down: u64,
    /// Messages that a worker of that host sends, those inside it too.
    pub messages: u64,
}

/// Bytes of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Parameters and gradients: the caller's.
    pub model: u64,
    /// m and v, as in Adam anywhere; or the one vector that Lion has.
    pub moments: u64,
    /// What the optimizer keeps beyond them: residuals, for 0/1 Adam u and the anchor, room for clipping.
    pub beyond_adam: u64,
    /// Messages under way: what this worker packs, and what it has received for this bucket and the next.
    pub messages: u64,
}

impl Memory {
    /// All of it.
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
            return Err(Error::config("workers", workers, "expected at least 1"));
        }
        let settings = config.decide()?;
        settings.groups(params)?;
        settings.algorithm.fits(params, true)?;
        settings.algorithm.is_planned()?;
        let shape = settings.shape(params, workers);
        let codings = settings.codings(shape, &settings.hosts(&hosts)?);
        let mut plan = Plan {
            steps,
            rounds: Rounds::default(),
            second: 0,
            keeps: settings.keeps(),
            algorithm: settings.algorithm,
            shape,
            hosts,
            codings,
            learning_rate: settings.learning_rate,
            delays: BTreeMap::new(),
            of_parts: Vec::new(),
            final_rounds: 0,
            unsynced: Vec::new(),
        };
        plan.of_parts = vec![0; plan.algorithm.parts()];
        for t in 0..steps {
            let round = plan.round(t);
            plan.rounds.count(round);
            if round == Round::Coarse {
                plan.of_parts[plan.algorithm.part(t)] += 1;
                *plan.delays.entry(plan.delay(t)).or_default() += 1;
            }
            plan.second += u64::from(plan.ends_exactly(t));
        }
        plan.rounds.exact += plan.second;
        plan.unsynced = match steps.checked_sub(1) {
            Some(last) => plan.algorithm.unsynced(last, plan.rate(last)),
            None => Vec::new(),
        };
        Ok(plan)
    }

    /// The same run with a sync at its end.
    pub fn with_final_sync(mut self) -> Plan {
        for part in std::mem::take(&mut self.unsynced) {
            self.rounds.coarse += 1;
            self.final_rounds += 1;
            self.of_parts[part] += 1;
            *self.delays.entry(0).or_default() += 1;
        }
        self
    }

    /// The rounds as a journal of steps has them, one for each: a sync at the end makes a skipped step a coarse one, and a second round of a
    /// step is not told.
    pub fn rounds_of_steps(&self) -> Rounds {
        let ends_skipped = self.steps.checked_sub(1).is_some_and(|last| self.round(last) == Round::Skipped);
        let at_end = u64::from(self.final_rounds > 0 && ends_skipped);
        let (exact, coarse) = (self.rounds.exact - self.second, self.rounds.coarse - self.final_rounds + at_end);
        Rounds { exact, coarse, skipped: self.steps.saturating_sub(exact + coarse) }
    }

    /// Parameters of the model.
    pub fn params(&self) -> usize {
        self.shape.values
    }

    /// Workers of the run.
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
        let sent = |(rounds, coding): (u64, &RoundLayout)| {
            let sent = coding.sent(rank, &counts);
            rounds * (sent.up + sent.down)
        };
        self.each_kind().map(sent).sum()
    }

    /// The bytes that a worker sends to others, averaged over the workers and rounded.
    pub fn mean_bytes_sent(&self) -> u64 {
        self.mean_of(|coding| coding.crossings(&self.hosts).1)
    }

    /// Those of them that go to another host.
    pub fn mean_bytes_between_hosts(&self) -> u64 {
        let out = |crossing: &Crossing| u128::from(crossing.up_out) + u128::from(crossing.down_out);
        self.mean_of(|coding| coding.crossings(&self.hosts).0.iter().map(out).sum())
    }

    fn mean_of(&self, bytes: impl Fn(&RoundLayout) -> u128) -> u64 {
        let all = self.each_kind().map(|(rounds, coding)| u128::from(rounds) * bytes(coding)).sum::<u128>();
        let workers = self.shape.workers as u128;
        u64::try_from((all + workers / 2) / workers).unwrap_or(u64::MAX)
    }

    /// How many rounds there are of each kind, and of each part of the vector, and what one of them sends.
    fn each_kind(&self) -> impl Iterator<Item = (u64, &RoundLayout)> {
        let exact = self.codings.exact.iter().map(|coding| (self.rounds.exact, coding));
        let parts = self.of_parts.iter().enumerate();
        let coarse = parts.filter_map(|(part, rounds)| Some((*rounds, self.codings.of(Round::Coarse, part)?)));
        exact.chain(coarse).filter(|(rounds, _)| *rounds > 0)
    }

    /// What one round of this kind does to the network, or None if the optimizer has none such. Where coarse rounds are of parts, all parts
    /// are about as large as the first.
    pub fn load(&self, round: Round) -> Option<Load> {
        let coding = self.codings.of(round, 0)?;
        let (crossings, _) = coding.crossings(&self.hosts);
        let most = |of: fn(&Crossing) -> u64| crossings.iter().map(of).max().unwrap_or(0);
        // The relays of a host take turns from the first on, and the largest host has the most to do.
        let largest = (0..self.hosts.count()).rev().max_by_key(|host| self.hosts.members(*host).len()).unwrap_or(0);
        let first = self.hosts.members(largest).first().copied().unwrap_or(0);
        Some(Load {
            buckets: coding.buckets() as u64,
            up: most(|crossing| crossing.up_out.max(crossing.up_in)),
            down: most(|crossing| crossing.down_out.max(crossing.down_in)),
            messages: coding.sent(first, |_| true).messages,
        })
    }

    /// The kind of step `t`.
    pub fn round(&self, t: u64) -> Round {
        self.algorithm.round(t, self.rate(t))
    }

    /// In how many parts the vector goes, if coarse rounds are of one part at a time.
    pub fn parts(&self) -> usize {
        self.of_parts.len()
    }

    /// How many steps the coarse mean of step `t` is under way while the workers compute; 0 if they wait for it. The next round ends it.
    pub fn delay(&self, t: u64) -> u64 {
        let most = self.algorithm.delay(t);
        (1..most).find(|steps| self.round(t + steps) != Round::Skipped).unwrap_or(most)
    }

    /// How many coarse rounds are under way for how many steps: pairs of steps and rounds.
    pub fn delays(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.delays.iter().map(|(steps, rounds)| (*steps, *rounds))
    }

    fn rate(&self, t: u64) -> f32 {
        self.learning_rate.as_ref().map_or(0.0, |schedule| schedule.at(t))
    }

    /// Whether step `t` has an exact round too, after its coarse one.
    pub fn ends_exactly(&self, t: u64) -> bool {
        self.algorithm.ends_exactly(t)
    }

    /// The bits that stand for one parameter between hosts, averaged over the steps, as the papers count: a mean in f32 is 32
    /// bits, though a worker sends it twice but for its own part, once up and once down. What goes inside a host, where workers
    /// of one add up first, is not in it.
    pub fn bits_per_param_per_step(&self) -> f64 {
        let all = self.each_kind().map(|(rounds, coding)| rounds as f64 * coding.bits_per_value()).sum::<f64>();
        all / self.steps.max(1) as f64
    }

    /// What worker `rank` holds. Its residual of the way up is as long as the vector also where a host has several workers, and
    /// most of it stays 0: only the blocks that it relays have one.
    pub fn memory(&self, rank: usize) -> Memory {
        assert!(rank < self.shape.workers, "there is no worker {rank} of {}", self.shape.workers);
        let word = 4 * self.shape.values as u64;
        let residuals = self.codings.coarse.as_ref().map_or(0, |coding| coding.residual_bytes(rank) as u64);
        let vectors = self.algorithm.vectors().len() as u64 * word;
        let clipping = if self.keeps { word } else { 0 };
        Memory {
            model: 2 * word,
            moments: vectors.min(2 * word),
            beyond_adam: residuals + vectors.saturating_sub(2 * word) + clipping,
            messages: (self.codings.buffers(rank) * self.codings.longest_message()) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OPTIMIZERS: [&str; 5] = [
        "name = 'adam'",
        "name = 'one-bit-adam'\nwarmup = 3",
        "name = 'zero-one-adam'\nkappa = 2",
        "name = 'efficient-adam'\ncodec = 'topk0.1'",
        "name = 'efficient-adam'\ntopology = 'central'",
    ];

    /// What worker by worker comes to: the mean a worker, that between hosts, and the busiest link of each kind of round.
    fn one_by_one(plan: &Plan) -> (u64, u64, [Option<(u64, u64)>; 2]) {
        let workers = plan.workers();
        let mean = |bytes: &dyn Fn(usize) -> u64| {
            ((0..workers).map(bytes).sum::<u64>() as f64 / workers as f64).round() as u64
        };
        let link = |coding: &RoundLayout| {
            let hosts = || 0..plan.hosts.count();
            let from_to = |from: usize, to: usize| {
                let members = plan.hosts.members(from).iter().filter(|_| from != to);
                let sent = members.map(|rank| coding.sent(*rank, |other| plan.hosts.of(other) == to));
                sent.fold((0, 0), |(up, down), sent| (up + sent.up, down + sent.down))
            };
            let sum = |pairs: Vec<(u64, u64)>| pairs.iter().fold((0, 0), |all, pair| (all.0 + pair.0, all.1 + pair.1));
            let ways = hosts().flat_map(|host| {
                [
                    sum(hosts().map(|to| from_to(host, to)).collect()),
                    sum(hosts().map(|from| from_to(from, host)).collect()),
                ]
            });
            ways.fold((0, 0), |most, way| (most.0.max(way.0), most.1.max(way.1)))
        };
        let links = [&plan.codings.exact, &plan.codings.coarse].map(|coding| coding.as_ref().map(link));
        (mean(&|rank| plan.bytes_sent(rank)), mean(&|rank| plan.bytes_between_hosts(rank)), links)
    }

    proptest! {
        /// Nothing, one value, fewer blocks than workers, hosts of one worker and of several, a bucket and many.
        #[test]
        fn what_is_counted_at_once_is_what_workers_come_to(
            words in proptest::sample::select(&OPTIMIZERS[..]),
            flat in any::<bool>(),
            hosts in proptest::collection::vec(0..4_usize, 1..12),
            params in prop_oneof![0..3_usize, 0..2_000_usize],
            (block, bucket) in (1..70_usize, prop_oneof![Just(1 << 20), 1..500_usize]),
        ) {
            let hierarchy = if flat { "flat" } else { "auto" };
            let words = format!("{words}\nblock = {block}\nbucket = {bucket}\nhierarchy = '{hierarchy}'");
            let plan = Plan::on_hosts(&Config::from_toml(&words).unwrap(), params, &hosts, 9).unwrap();
            let load = |round| plan.load(round).map(|load| (load.up, load.down));
            let at_once = (
                plan.mean_bytes_sent(),
                plan.mean_bytes_between_hosts(),
                [load(Round::Exact), load(Round::Coarse)],
            );
            prop_assert_eq!(at_once, one_by_one(&plan));
        }
    }

    /// 2·4 bytes a value but for a worker's own part, and headers: also where there are more workers than blocks.
    #[test]
    fn small_models_on_many_workers_are_counted_whole() {
        for (params, workers) in [(1_000_000, 1000), (1_000_000, 4096), (100_000, 512)] {
            let hosts = (0..workers).collect::<Vec<_>>();
            let plan = Plan::on_hosts(&Config::new(crate::Name::ADAM), params, &hosts, 1).unwrap();
            let headers = 2 * 48 * (workers as u64 - 1);
            let values = 8.0 * params as f64 * (workers as f64 - 1.0) / workers as f64;
            assert_eq!(plan.mean_bytes_sent(), headers + values.round() as u64, "{params} on {workers}");
            assert_eq!(plan.mean_bytes_between_hosts(), plan.mean_bytes_sent());
        }
    }

    /// 175G parameters have hundreds of thousands of buckets: none of them is walked.
    #[test]
    fn large_models_are_counted_at_once() {
        let hosts = (0..1024).map(|worker| worker / 8).collect::<Vec<_>>();
        let plan = Plan::on_hosts(&Config::new(crate::Name::ADAM), 175_000_000_000, &hosts, 1).unwrap();
        let load = plan.load(Round::Exact).unwrap();
        assert!(load.buckets > 100_000, "{}", load.buckets);
        let whole = 4.0 * 175e9 * 127.0 / 128.0;
        assert!((load.up as f64 / whole - 1.0).abs() < 0.05, "{} {whole}", load.up);
    }
}
