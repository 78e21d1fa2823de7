//! The engine under watch: a run on threads, and what every worker holds along the way.

use super::problems::Random;
use std::collections::BTreeMap;
use thinwire::inside::state::Slot;
use thinwire::{CodecName, Config, Worker, threads};

/// The gradient that worker i finds at step t at x.
pub type Gradient = dyn Fn(usize, u64, &[f32]) -> Vec<f32> + Sync;

/// A run, as the engine and the oracle both understand it.
pub struct Run {
    pub config: Config,
    pub workers: usize,
    pub start: Vec<f32>,
    /// γ of every step, and so how many steps there are.
    pub rates: Vec<f32>,
    /// The steps after which the caller asks for a sync.
    pub syncs: Vec<u64>,
    pub gradient: Box<Gradient>,
}

/// What one worker holds at one moment: `x`, and the vectors of its state by name.
pub type Snapshot = BTreeMap<&'static str, Vec<f64>>;

impl Run {
    /// What every worker holds after every step, and after every sync the caller asks for: `[worker][moment]`.
    pub fn histories(&self) -> Vec<Vec<Snapshot>> {
        self.watched(|worker, x, history: &mut Vec<Snapshot>| history.push(snapshot(worker, x)))
    }

    /// The parameters of every worker at the end.
    pub fn ends(&self) -> Vec<Vec<f32>> {
        self.watched(|_, x, end: &mut Vec<f32>| x.clone_into(end))
    }

    pub fn watched<T: Default + Send>(&self, watch: impl Fn(&mut Worker, &[f32], &mut T) + Sync) -> Vec<T> {
        let work = |group| {
            let mut seen = T::default();
            let mut x = self.start.clone();
            let mut worker = Worker::new(&self.config, &x, Box::new(group))?;
            for (t, rate) in (0..).zip(&self.rates) {
                let gradient = (self.gradient)(worker.rank(), t, &x);
                worker.step(&mut x, &gradient, *rate)?;
                watch(&mut worker, &x, &mut seen);
                if self.syncs.contains(&t) {
                    worker.sync(&mut x)?;
                    watch(&mut worker, &x, &mut seen);
                }
            }
            Ok::<_, thinwire::Error>(seen)
        };
        threads::run(self.workers, work).into_iter().map(|end| end.unwrap()).collect()
    }
}

fn snapshot(worker: &mut Worker, x: &[f32]) -> Snapshot {
    let state = worker.state().unwrap().into_iter().map(|entry| {
        let values = match entry.slot {
            Slot::Floats(values) => widen(values),
            Slot::Doubles(values) => values.to_vec(),
            Slot::Word(word) => vec![*word as f64],
            _ => unreachable!("the engine has no other"),
        };
        (entry.name, values)
    });
    state.chain([("x", widen(x))]).collect()
}

pub fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

/// The largest |x|; NaN if one is.
pub fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    let larger = |most: f64, x: f64| if x.abs() > most || x.is_nan() { x.abs() } else { most };
    values.into_iter().fold(0.0, larger)
}

/// The largest |a − b|; NaN if one is.
pub fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    largest(a.iter().zip(b).map(|(a, b)| a - b))
}

/// Up and down: every kind of codec, and two pairs that differ.
pub const CODECS: [(CodecName, CodecName); 9] = [
    (CodecName::Sign, CodecName::Sign),
    (CodecName::Uniform(4), CodecName::Uniform(4)),
    (CodecName::Power2(3), CodecName::Power2(3)),
    (CodecName::TopK(100_000), CodecName::TopK(100_000)),
    (CodecName::Bf16, CodecName::Bf16),
    (CodecName::F16, CodecName::F16),
    (CodecName::F32, CodecName::F32),
    (CodecName::Sign, CodecName::F16),
    (CodecName::Uniform(4), CodecName::Sign),
];

/// Somewhere to start from.
pub fn start(d: usize) -> Vec<f32> {
    Random::new(7).normals(d, 1.0).iter().map(|x| *x as f32).collect()
}

/// A direction of its own for each coordinate, and noise; the same whenever asked.
pub fn noisy(seed: u64, worker: usize, t: u64, d: usize) -> Vec<f32> {
    let mut random = Random::new(Random::new(seed << 40 | (worker as u64) << 20 | t).bits());
    (0..d).map(|k| ((k as f64).sin() + random.normal()) as f32).collect()
}
