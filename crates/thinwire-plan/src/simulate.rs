//! The same rounds by events, where the formula does not reach: workers that are not equally fast, a host or a link that is slow,
//! messages that come late.
//!
//! Every worker has a clock, every host a link out and a link in. The run's real calendar says what each step is, and the
//! engine's real layout how many buckets a round has and how long its messages are. A round follows the engine's order: pack, up,
//! average, down, apply, bucket by bucket. The messages of a bucket leave a host together and share its link, so they are one
//! event, and what a host waits for is the last of what the others sent it: that is found for all hosts in one pass, not pair by
//! pair, and a round costs hosts × buckets. Workers of one host wait for each other before anything leaves it.
//!
//! A late mean leaves at the end of its step, and its messages travel while workers compute: its owners wait for them after the next
//! step's computing, and everyone for the mean where it is applied.
//!
//! With workers and links all alike and nothing left to chance this is [`RoundCost::seconds`](crate::cost::RoundCost::seconds), and of late
//! means [`RoundCost::late_seconds`](crate::cost::RoundCost::late_seconds).

use crate::cost::{Bucket, Estimate};
use crate::network::Network;
use crate::question::Question;
use crate::random::Random;
use crate::situation::Situation;
use serde::Serialize;
use thinwire::Round;

/// Events of one method, about: hosts times buckets times rounds.
const BUDGET: u64 = 12_000_000;

/// Steps of one method: at least, at most, and those that follow each other.
const FEWEST: u64 = 12;
const MOST: u64 = 600;
const STRETCH: u64 = 40;

/// Buckets of a round that are simulated; the others take as long as these on average, but for the first and the last.
const BUCKETS: u64 = 64;

/// What is not the same everywhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chance {
    /// Of computing, from step to step and worker to worker: the deviation of its logarithm.
    pub spread: f64,
    /// How many times as long the last host computes and packs, and its link takes.
    pub slow_host: f64,
    pub slow_link: f64,
    /// Seconds, on average, that a message is late beyond its latency; exponentially distributed.
    pub jitter: f64,
    pub seed: u64,
}

impl Chance {
    pub fn of(question: &Question) -> Chance {
        Chance {
            spread: question.spread.unwrap_or(0.0),
            slow_host: question.slow_host.unwrap_or(1.0),
            slow_link: question.slow_link.unwrap_or(1.0),
            jitter: question.jitter.unwrap_or(0.0),
            seed: question.seed.unwrap_or(1) as u64,
        }
    }
}

/// What a simulation of a method came to.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Simulated {
    /// Seconds of a step, averaged over the run.
    #[serde(rename = "step_seconds")]
    pub step: f64,
    /// Steps that were simulated; the others are counted like those of their kind.
    pub steps: u64,
}

/// Every method, each on a thread: what it comes to does not depend on the others.
pub fn all(estimates: &[Estimate], situation: &Situation, chance: &Chance) -> Vec<Simulated> {
    std::thread::scope(|scope| {
        let run = |estimate| scope.spawn(move || one(estimate, &situation.place.hosts, &situation.network, chance));
        let runs = estimates.iter().map(run).collect::<Vec<_>>();
        let mut simulated: Vec<Simulated> = runs.into_iter().map(|run| run.join().expect("no panic")).collect();
        // DDP is known by its formula; all wait for the slowest at every step, as with Adam, the first.
        let waits = simulated[0].step - estimates[0].mean_step(&situation.network);
        for (estimate, simulated) in estimates.iter().zip(&mut simulated).filter(|(estimate, _)| estimate.ddp.is_some())
        {
            simulated.step = estimate.mean_step(&situation.network) + waits;
        }
        simulated
    })
}

/// One method: stretches of the run's calendar, evenly spread over it, and one where each kind of step first comes.
pub fn one(estimate: &Estimate, hosts: &[usize], network: &Network, chance: &Chance) -> Simulated {
    let (plan, kinds) = (&estimate.plan, [Round::Exact, Round::Coarse, Round::Skipped]);
    // A sync at the end is waited for: where others are not, it is by the formula.
    let is_late = plan.delays().any(|(delay, _)| delay > 0);
    let finals = if is_late { plan.final_rounds } else { 0 };
    let last =
        finals as f64 * estimate.round(Round::Coarse).map_or(0.0, |cost| cost.seconds(network) + estimate.compute);
    let total = [plan.rounds.exact, plan.rounds.coarse - finals, plan.rounds.skipped];
    let mut cluster = Cluster::new(hosts, *network, *chance);
    let buckets =
        kinds.iter().filter_map(|kind| estimate.round(*kind)).map(|cost| cost.load.buckets).max().unwrap_or(1);
    let events = cluster.links.len() as u64 * buckets.min(BUCKETS) + hosts.len() as u64;
    let steps = (BUDGET / events).clamp(FEWEST, MOST).min(plan.steps);
    let stretches = steps.div_ceil(STRETCH).max(1);
    let long = (steps / stretches).max(1);
    let mut starts = (0..stretches)
        .map(|at| (plan.steps - long) * at / stretches.max(2).saturating_sub(1).max(1))
        .collect::<Vec<_>>();
    starts.iter_mut().for_each(|start| *start = (*start).min(plan.steps - long));
    let has = |kind: Round, t: u64| plan.round(t) == kind || kind == Round::Exact && plan.ends_exactly(t);
    let first = |kind: Round| (0..plan.steps).find(|t| has(kind, *t));
    let had = kinds.iter().zip(total).filter(|(_, total)| *total > 0);
    starts.extend(had.filter_map(|(kind, _)| first(*kind)).map(|start| start.min(plan.steps - long)));
    starts.sort_unstable();
    starts.dedup();

    let (mut seconds, mut many) = ([0.0; 3], [0_u64; 3]);
    for start in starts {
        cluster.begin();
        let mut before = 0.0;
        for t in start..start + long {
            let round = plan.round(t);
            cluster.compute(estimate.compute, t);
            // What is waited for is the cost of the round that is on its way.
            let computed = cluster.mean_clock();
            cluster.turn();
            cluster.finish(t);
            let waited = cluster.mean_clock() - computed;
            seconds[1] += waited;
            before += waited;
            match estimate.round(round) {
                Some(cost) if round == Round::Coarse && plan.delay(t) > 0 => {
                    cluster.start(cost.bucket(network), t + plan.delay(t));
                }
                Some(cost) => cluster.round(&cost.bucket(network)),
                None => cluster.alone(estimate.skipped),
            }
            let now = cluster.mean_clock();
            let kind = kinds.iter().position(|kind| *kind == round).expect("one of three");
            seconds[kind] += now - before;
            many[kind] += 1;
            before = now;
            if plan.ends_exactly(t)
                && let Some(cost) = estimate.round(Round::Exact)
            {
                cluster.round(&cost.bucket(network));
                let now = cluster.mean_clock();
                // As if it were a step of its own: `without_computing` takes off what that would compute.
                seconds[0] += now - before + estimate.compute;
                many[0] += 1;
                before = now;
            }
        }
        // What is left of a mean under way is its round's, in steps that are another stretch's.
        for t in start + long.. {
            if cluster.under_way.is_none() {
                break;
            }
            cluster.compute(estimate.compute, t);
            let before = cluster.mean_clock();
            cluster.turn();
            cluster.finish(t);
            seconds[1] += cluster.mean_clock() - before;
        }
    }
    let mean = |kind: usize| if many[kind] > 0 { seconds[kind] / many[kind] as f64 } else { 0.0 };
    let run = (0..3).map(|kind| total[kind] as f64 * mean(kind)).sum::<f64>() - estimate.without_computing() + last;
    Simulated { step: run / plan.steps.max(1) as f64, steps: many.iter().sum() }
}

/// A late mean: what it costs, the step that applies it, and when its messages are there; first those up, after its turn those down.
struct UnderWay {
    bucket: Bucket,
    due: u64,
    there: Vec<f64>,
    had_its_turn: bool,
}

/// A host's link, each way: when it is free again.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    out: f64,
    into: f64,
}

struct Cluster {
    /// The host of each worker.
    hosts: Vec<usize>,
    /// The time at each worker.
    clocks: Vec<f64>,
    links: Vec<Link>,
    network: Network,
    chance: Chance,
    late: Random,
    under_way: Option<UnderWay>,
}

impl Cluster {
    fn new(hosts: &[usize], network: Network, chance: Chance) -> Cluster {
        let count = hosts.iter().max().map_or(1, |last| last + 1);
        Cluster {
            hosts: hosts.to_vec(),
            clocks: vec![0.0; hosts.len()],
            links: vec![Link::default(); count],
            network,
            chance,
            late: Random::of(&[chance.seed, 1]),
            under_way: None,
        }
    }

    fn begin(&mut self) {
        self.clocks.fill(0.0);
        self.links.fill(Link::default());
        self.under_way = None;
    }

    fn mean_clock(&self) -> f64 {
        self.clocks.iter().sum::<f64>() / self.clocks.len() as f64
    }

    /// The last host is the slow one.
    fn slowness(&self, host: usize) -> f64 {
        if host + 1 == self.links.len() { self.chance.slow_host } else { 1.0 }
    }

    fn link_slowness(&self, host: usize) -> f64 {
        if host + 1 == self.links.len() { self.chance.slow_link } else { 1.0 }
    }

    /// Step `t` of every worker; the same for every method.
    fn compute(&mut self, seconds: f64, t: u64) {
        let spread = self.chance.spread;
        let mut random = Random::of(&[self.chance.seed, 0, t]);
        for worker in 0..self.clocks.len() {
            // A logarithm that is normal, with a mean of 1.
            let times = if spread > 0.0 { (spread * random.normal() - spread * spread / 2.0).exp() } else { 1.0 };
            self.clocks[worker] += seconds * times * self.slowness(self.hosts[worker]);
        }
    }

    /// Work of every worker by itself.
    fn alone(&mut self, seconds: f64) {
        for worker in 0..self.clocks.len() {
            self.clocks[worker] += seconds * self.slowness(self.hosts[worker]);
        }
    }

    /// Where the last worker of each host is.
    fn host_clocks(&self) -> Vec<f64> {
        let mut clocks = vec![0.0_f64; self.links.len()];
        for (host, clock) in self.hosts.iter().zip(&self.clocks) {
            clocks[*host] = clocks[*host].max(*clock);
        }
        clocks
    }

    /// All workers of a host go on from its clock.
    fn go_on(&mut self, clocks: &[f64]) {
        for (host, clock) in self.hosts.iter().zip(&mut self.clocks) {
            *clock = clocks[*host];
        }
    }

    /// Every worker of each host waits until then.
    fn wait(&mut self, there: &[f64]) {
        for (host, clock) in self.hosts.iter().zip(&mut self.clocks) {
            *clock = clock.max(there[*host]);
        }
    }

    /// A late mean leaves.
    fn start(&mut self, bucket: Bucket, due: u64) {
        let count = bucket.count as f64;
        self.alone(count * bucket.pack);
        let there = self.send(&self.host_clocks(), count * bucket.up);
        self.under_way = Some(UnderWay { bucket, due, there, had_its_turn: false });
    }

    /// The owners of a late mean take it, and send it down.
    fn turn(&mut self) {
        if let Some(mean) = self.under_way.take_if(|mean| !mean.had_its_turn) {
            let count = mean.bucket.count as f64;
            self.wait(&mean.there);
            self.alone(count * mean.bucket.serve);
            let there = self.send(&self.host_clocks(), count * mean.bucket.down);
            self.under_way = Some(UnderWay { there, had_its_turn: true, ..mean });
        }
    }

    /// Everyone waits for a late mean that is due, and applies it.
    fn finish(&mut self, t: u64) {
        if let Some(mean) = self.under_way.take_if(|mean| mean.due <= t) {
            self.wait(&mean.there);
            self.alone(mean.bucket.count as f64 * mean.bucket.apply);
        }
    }

    /// One round, in the engine's order.
    fn round(&mut self, bucket: &Bucket) {
        let hosts = self.links.len();
        let mut clocks = self.host_clocks();
        let slow = (0..hosts).map(|host| self.slowness(host)).collect::<Vec<_>>();
        let work = |clocks: &mut [f64], seconds: f64| {
            clocks.iter_mut().zip(&slow).for_each(|(clock, slow)| *clock += seconds * slow);
        };
        let wait = |clocks: &mut [f64], arrivals: &[f64]| {
            clocks.iter_mut().zip(arrivals).for_each(|(clock, arrival)| *clock = clock.max(*arrival));
        };
        work(&mut clocks, bucket.pack);
        let up = self.send(&clocks, bucket.up);
        wait(&mut clocks, &up);
        let count = bucket.count.min(BUCKETS);
        let mut after_first = 0.0;
        for k in 1..=count {
            let next = (k < count).then(|| {
                work(&mut clocks, bucket.pack);
                self.send(&clocks, bucket.up)
            });
            work(&mut clocks, bucket.serve);
            let down = self.send(&clocks, bucket.down);
            if let Some(up) = next {
                wait(&mut clocks, &up);
            }
            wait(&mut clocks, &down);
            work(&mut clocks, bucket.apply);
            let mean = clocks.iter().sum::<f64>() / clocks.len() as f64;
            match k {
                1 => after_first = mean,
                _ if k + 1 == count && bucket.count > count => {
                    let others = (mean - after_first) / (count - 2) as f64 * (bucket.count - count) as f64;
                    clocks.iter_mut().for_each(|clock| *clock += others);
                    self.links
                        .iter_mut()
                        .for_each(|link| *link = Link { out: link.out + others, into: link.into + others });
                }
                _ => {}
            }
        }
        self.go_on(&clocks);
    }

    /// Every host sends to every other, from its clock on, what takes its link `seconds`; when all of it is there, for each.
    fn send(&mut self, clocks: &[f64], seconds: f64) -> Vec<f64> {
        let count = self.links.len();
        if count == 1 {
            return clocks.to_vec();
        }
        let mut begun = vec![0.0; count];
        let mut sent = vec![0.0; count];
        for host in 0..count {
            begun[host] = clocks[host].max(self.links[host].out);
            sent[host] = begun[host] + seconds * self.link_slowness(host);
            self.links[host].out = sent[host];
        }
        let (last_sent, last_begun, first_begun) = (Most::of(&sent), Most::of(&begun), Most::least(&begun));
        (0..count)
            .map(|host| {
                let takes = seconds * self.link_slowness(host);
                let there = (last_sent.but(host))
                    .max(first_begun.but(host) + takes)
                    .max(last_begun.but(host) + takes / (count - 1) as f64)
                    .max(self.links[host].into + takes);
                self.links[host].into = there;
                there + self.network.latency + self.lateness(count - 1)
            })
            .collect()
    }

    /// By how much the last of so many messages is late.
    fn lateness(&mut self, messages: usize) -> f64 {
        if self.chance.jitter == 0.0 {
            return 0.0;
        }
        let all = self.late.unit().powf(1.0 / messages as f64);
        -self.chance.jitter * (1.0 - all).max(f64::MIN_POSITIVE).ln()
    }
}

/// The greatest, or the least, of some values, and of all but any one of them.
struct Most {
    at: usize,
    first: f64,
    second: f64,
}

impl Most {
    fn of(values: &[f64]) -> Most {
        Most::by(values, |a, b| a > b)
    }

    fn least(values: &[f64]) -> Most {
        Most::by(values, |a, b| a < b)
    }

    /// Of two values and more.
    fn by(values: &[f64], beats: fn(f64, f64) -> bool) -> Most {
        let (at, second) = if beats(values[1], values[0]) { (1, values[0]) } else { (0, values[1]) };
        let mut most = Most { at, first: values[at], second };
        for (at, value) in values.iter().enumerate().skip(2) {
            if beats(*value, most.first) {
                most = Most { at, first: *value, second: most.first };
            } else if beats(*value, most.second) {
                most.second = *value;
            }
        }
        most
    }

    fn but(&self, at: usize) -> f64 {
        if at == self.at { self.second } else { self.first }
    }
}
