//! Small runs in which the smallest difference shows: the gradients depend on the parameters, the worker and the step,
//! and on nothing else.
//!
//! ```text
//! g_k = h_k·(x_k − c_k) + noise(worker, step, k)        every eleventh coordinate has no gradient at all
//! ```
//!
//! A [`Replica`] is a worker with its copy of the parameters; [`together`] runs one a thread. The configurations are
//! those of [`optimizers`](super::optimizers).

pub use super::optimizers::cases;
use super::toy;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use thinwire::inside::state::{Entry, Share, Slot};
use thinwire::threads::Thread;
use thinwire::{Collective, Config, Error, Result, Worker, threads};

/// With the blocks of 8 that [`config`] gives: six blocks, the last one short.
pub const LEN: usize = 45;

/// As far as the schedules of [`cases`] go.
pub const STEPS: u64 = 40;

/// The forms of a mean.
pub const TOPOLOGIES: [&str; 2] = ["sharded", "central"];

/// Hosts of every rank: in a row and in turn, alike and not, one worker alone and several.
pub const PLACES: [&[usize]; 5] = [&[0, 0, 1], &[0, 0, 1, 1], &[0, 1, 0, 1], &[0, 1, 1, 1, 2], &[0, 0, 0, 1, 2]];

/// What `words` say, in blocks of 8 unless they say otherwise. One word a line of TOML, or with "; " between them.
pub fn config(words: &str) -> Config {
    toy::add();
    let config = Config::from_toml(&words.replace("; ", "\n")).unwrap_or_else(|error| panic!("{words}: {error}"));
    Config { block: config.block.or(Some(8)), ..config }
}

/// Whether workers vote. Votes are counted flat wherever the workers are, and `hierarchy = 'hosts'` is refused.
pub fn votes(words: &str) -> bool {
    config(words).resolved().unwrap().codec_up == Some(thinwire::CodecName::Vote)
}

/// The same with one word changed.
pub fn changed(config: &Config, key: &str, value: Value) -> Config {
    let mut words = serde_json::to_value(config).unwrap();
    words[key] = value;
    serde_json::from_value(words).unwrap_or_else(|error| panic!("{key}: {error}"))
}

/// Every case in every topology: what it is called, and its configuration.
pub fn all_cases() -> impl Iterator<Item = (String, Config)> {
    let both = |words: String| TOPOLOGIES.map(|topology| format!("{words}; topology = '{topology}'"));
    cases().into_iter().flat_map(both).map(|words| (words.clone(), config(&words)))
}

/// The parameters all workers start from.
pub fn start(len: usize) -> Vec<f32> {
    (0..len).map(|k| noise(0, 0, k)).collect()
}

/// c: where the loss is least.
fn center(k: usize) -> f32 {
    noise(1, 1, k)
}

/// h: from 0.1 to 1.
fn curvature(k: usize) -> f32 {
    0.1 + 0.9 * (k % 10) as f32 / 9.0
}

fn is_dead(k: usize) -> bool {
    k % 11 == 3
}

/// ½ Σ h_k·(x_k − c_k)² over the coordinates that have a gradient.
pub fn loss(x: &[f32]) -> f64 {
    let term = |(k, x): (usize, &f32)| 0.5 * f64::from(curvature(k)) * f64::from(x - center(k)).powi(2);
    x.iter().enumerate().filter(|(k, _)| !is_dead(*k)).map(term).sum()
}

/// What worker `rank` sees at `step`.
pub fn gradient(x: &[f32], rank: usize, step: u64, out: &mut [f32]) {
    for (k, (x, g)) in x.iter().zip(out).enumerate() {
        let seen = curvature(k) * (x - center(k)) + 0.2 * noise(rank as u64 + 2, step, k);
        *g = if is_dead(k) { 0.0 } else { seen };
    }
}

/// In [−1, 1): splitmix64's mix of the three.
fn noise(a: u64, b: u64, k: usize) -> f32 {
    let z = (a << 48 | b << 24 | k as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// A worker, its copy of the parameters, and room for its gradient.
pub struct Replica {
    pub worker: Worker,
    pub x: Vec<f32>,
    gradient: Vec<f32>,
}

impl Replica {
    pub fn new(config: &Config, len: usize, group: impl Collective + 'static) -> Result<Replica> {
        Replica::from(config, start(len), group)
    }

    pub fn from(config: &Config, x: Vec<f32>, group: impl Collective + 'static) -> Result<Replica> {
        let worker = Worker::new(config, &x, Box::new(group))?;
        Ok(Replica { worker, gradient: vec![0.0; x.len()], x })
    }

    pub fn resume(config: &Config, dir: &Path, len: usize, group: impl Collective + 'static) -> Result<Replica> {
        let mut x = vec![f32::NAN; len];
        let worker = Worker::resume(config, dir, &mut x, Box::new(group))?;
        Ok(Replica { worker, gradient: vec![0.0; len], x })
    }

    /// One step, at the rate of the configuration's schedule, or 0.05.
    pub fn step(&mut self) -> Result<()> {
        self.step_with(|_| {})
    }

    /// One step on a gradient that `change` had its hands on.
    pub fn step_with(&mut self, change: impl FnOnce(&mut [f32])) -> Result<()> {
        let step = self.worker.steps();
        gradient(&self.x, self.worker.rank(), step, &mut self.gradient);
        change(&mut self.gradient);
        let lr = self.worker.config().learning_rate.as_ref().map_or(0.05, |schedule| schedule.at(step));
        if self.worker.config().weighted == Some(true) {
            self.worker.set_weight(1 + (3 * step as u32 + self.worker.rank() as u32) % 4)?;
        }
        self.worker.step(&mut self.x, &self.gradient, lr).map(|_| ())
    }

    /// Steps until so many are taken.
    pub fn train(&mut self, until: u64) -> Result<()> {
        while self.worker.steps() < until {
            self.step()?;
        }
        Ok(())
    }

    pub fn sync(&mut self) -> Result<()> {
        self.worker.sync(&mut self.x)
    }

    pub fn save(&mut self, dir: &Path) -> Result<()> {
        self.worker.save(dir, &self.x)
    }

    /// Lets a late mean arrive, so that the state can be looked at when the others are gone.
    pub fn settle(mut self) -> Result<Replica> {
        self.worker.state()?;
        Ok(self)
    }

    /// The parameters and the state, as numbers, by name.
    pub fn numbers(&mut self) -> BTreeMap<&'static str, Vec<f64>> {
        let x = self.x.iter().copied().map(f64::from).collect();
        let state = self.worker.state().unwrap();
        let entries = state.iter().map(|entry| (entry.name, numbers_of(entry)));
        [("params", x)].into_iter().chain(entries).collect()
    }

    /// Whether all replicas are equal by now: nothing local is pending.
    pub fn is_synced(&mut self) -> bool {
        let steps = self.numbers().remove("steps_since_sync").unwrap_or_default();
        steps.iter().all(|steps| *steps == 0.0) // one number, or one for each part
    }

    /// What must be the same on all workers whenever they are synced, bit by bit.
    pub fn shared_bits(&mut self) -> Bits {
        let own =
            self.worker.state().unwrap().into_iter().filter(|entry| entry.share != Share::Same).map(|entry| entry.name);
        let own = own.collect::<Vec<_>>();
        own.into_iter().fold(self.bits(), Bits::without)
    }

    /// Everything that makes the next step what it is, bit by bit.
    pub fn bits(&mut self) -> Bits {
        Bits::of(&self.x, &self.worker.state().unwrap())
    }
}

fn bits_of(entry: &Entry<'_>) -> Vec<u64> {
    match &entry.slot {
        Slot::Floats(values) => values.iter().map(|value| u64::from(value.to_bits())).collect(),
        Slot::Doubles(values) => values.iter().map(|value| value.to_bits()).collect(),
        Slot::Word(word) => vec![**word],
        _ => unreachable!("the engine has no other"),
    }
}

fn numbers_of(entry: &Entry<'_>) -> Vec<f64> {
    match &entry.slot {
        Slot::Floats(values) => values.iter().copied().map(f64::from).collect(),
        Slot::Doubles(values) => values.to_vec(),
        Slot::Word(word) => vec![**word as f64],
        _ => unreachable!("the engine has no other"),
    }
}

/// Names and bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Bits(Vec<(&'static str, Vec<u64>)>);

impl Bits {
    /// Of the parameters and the state.
    pub fn of(params: &[f32], state: &[Entry<'_>]) -> Bits {
        let x = params.iter().map(|x| u64::from(x.to_bits())).collect();
        let entries = state.iter().map(|entry| (entry.name, bits_of(entry)));
        Bits([("params", x)].into_iter().chain(entries).collect())
    }

    /// All but one entry.
    pub fn without(mut self, name: &str) -> Bits {
        self.0.retain(|(other, _)| *other != name);
        self
    }

    /// Panics with the names of what differs.
    pub fn assert_same(&self, other: &Bits, context: impl Debug) {
        let names = |bits: &Bits| bits.0.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        assert_eq!(names(self), names(other), "{context:?}");
        let differing = self.0.iter().zip(&other.0).filter(|(mine, theirs)| mine != theirs);
        let differing = differing.map(|((name, _), _)| *name).collect::<Vec<_>>();
        assert!(differing.is_empty(), "{context:?}: {differing:?} differ");
    }
}

/// Runs `work` on `workers` threads; returns what they return, in rank order.
pub fn together<T: Send>(workers: usize, work: impl Fn(Thread) -> Result<T> + Sync) -> Vec<T> {
    threads::run(workers, |group| work(group).unwrap_or_else(|error| panic!("{error}")))
}

/// The same as if worker i were on host `hosts[i]`.
pub fn together_on<T: Send>(hosts: &[usize], work: impl Fn(Thread) -> Result<T> + Sync) -> Vec<T> {
    threads::run_on(hosts, |group| work(group).unwrap_or_else(|error| panic!("{error}")))
}

/// The errors of workers that must all fail.
pub fn failing<T: Send>(workers: usize, work: impl Fn(Thread) -> Result<T> + Sync) -> Vec<Error> {
    let ends = threads::run(workers, work);
    ends.into_iter().map(|end| end.err().expect("an error")).collect()
}

/// A folder that goes away; in memory where the system has such, for checkpoints flush.
pub fn scratch() -> tempfile::TempDir {
    let in_memory = Path::new("/dev/shm");
    let made = if in_memory.is_dir() { tempfile::tempdir_in(in_memory) } else { tempfile::tempdir() };
    made.expect("a folder to write to")
}
