//! The optimizers: Adam, and one question. What is averaged over the workers, when, and how coarsely?
//!
//! | optimizer | exact mean of | coarse mean of |
//! |---|---|---|
//! | [`Adam`] | the gradient, every step | – |
//! | [`OneBitAdam`] (arXiv 2102.02888) | the gradient, during warm-up | the momentum, after it |
//! | [`OneBitLamb`] (arXiv 2104.06069) | the gradient, during warm-up | the momentum, after it; steps have a size for each tensor |
//! | [`ZeroOneAdam`] (arXiv 2202.06009) | the gradient, on the steps in T_v | Σ γ̂·m since the last sync, on the steps in T_u |
//! | [`EfficientAdam`] (arXiv 2205.14473) | – | the local update γ̂·m/P, every step |
//! | [`LocalAdam`] (DiLoCo, arXiv 2311.08105, and others) | – | what the steps since the last sync have moved x by, on the steps in T_u |
//! | [`Lion`] (arXiv 2404.00438, 2411.16462) | the momentum, every S steps if asked for | the sign of a blend of momentum and gradient, every step |
//! | [`Birder`] (NeurIPS 2023) | – | a coin for the ratio of two averages, every step |
//!
//! When is decided by sets of steps ([`schedule`](crate::schedule)), how coarsely is [`exchange`](crate::exchange)'s, and where the vectors lie is the
//! [`machine`](crate::machine)'s. What is left is short: a file names its passes, each beside its equation, and says which one when.

mod adam;
mod birder;
mod clip;
mod efficient_adam;
mod lion;
mod local_adam;
mod moments;
mod one_bit_adam;
mod one_bit_lamb;
mod outer;
pub mod table;
mod zero_one_adam;

pub use adam::Adam;
pub use birder::Birder;
pub use clip::Clip;
pub use efficient_adam::{EfficientAdam, Theta};
pub use lion::Lion;
pub use local_adam::LocalAdam;
pub use moments::{ENOUGH, Hyper, M, Moments, Momentum, SHORT, V, X};
pub use one_bit_adam::{OneBitAdam, Warmup};
pub use one_bit_lamb::OneBitLamb;
pub use outer::Outer;
pub use table::{Algorithm, Averages, Options, Row};
pub use zero_one_adam::{Freeze, Sync, Variance, ZeroOneAdam};

use crate::error::Result;
use crate::exchange::Exchange;
use crate::machine::{Machine, Step, Vector};
use crate::schedule::Round;
use crate::state::Entry;

/// The vectors that an optimizer keeps: their names in checkpoints, and how they pass to another number of workers. The i-th is
/// [`Vector::own(i)`](crate::machine::Vector::own).
pub type Vectors = crate::machine::Names;

/// A rule for moving parameters.
pub trait Optimizer: Send {
    /// One step; says what was averaged.
    fn step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<Round>;

    /// Makes all replicas equal now, whatever the schedule says.
    fn sync(&mut self, _step: &mut Step<'_>, _exchange: &mut Exchange) -> Result<()> {
        Ok(())
    }

    /// Whether all replicas hold the same parameters.
    fn is_synced(&self) -> bool {
        true
    }

    /// The model that all workers have in common while they are not synced, of an optimizer that keeps it: it can be looked at without a
    /// round. None: the parameters are what to look at, after a sync.
    fn anchor(&self) -> Option<Vector> {
        None
    }

    /// Lets a mean that is under way arrive now, in the state, where it waits for its step. Called before the state is looked at, and
    /// before anything but rounds is sent; by all workers in the same step.
    fn arrive(&mut self, _step: &mut Step<'_>, _exchange: &mut Exchange) -> Result<()> {
        Ok(())
    }

    /// The numbers beside the vectors that make the next step what it is.
    fn numbers(&mut self) -> Vec<Entry<'_>>;

    /// Called after the state was loaded. `regrouped`: it comes from another number of workers, `Share::Mean` entries
    /// hold the mean over them, and local progress must be folded in.
    fn loaded(&mut self, _regrouped: bool, _step: &mut Step<'_>, _machine: &mut Machine) -> Result<()> {
        Ok(())
    }
}

/// What the tests in the optimizers' files share. Options are words of TOML with "; " between them, after the optimizer's name.
#[cfg(test)]
mod testing {
    use crate::config::{Config, Name};
    use crate::schedule::Round;
    use crate::transport::Solo;
    use crate::worker::Worker;

    pub fn resolved(name: Name, options: &str) -> Config {
        let text = format!("name = '{name}'\n{}", options.replace("; ", "\n"));
        let config = Config::from_toml(&text).and_then(|config| config.resolved());
        config.unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// The options that come out, but for those that say the same of all optimizers, in alphabetical order.
    pub fn decided(name: Name, options: &str) -> String {
        let config = Config { learning_rate: None, ..resolved(name, options) };
        let text = toml::to_string(&config).unwrap();
        let own = config.own.keys().map(String::as_str).chain(["codec", "exact_codec", "bias_correction"]);
        let own = own.collect::<Vec<_>>();
        let mut lines = text.lines().filter(|line| own.iter().any(|key| line.starts_with(key))).collect::<Vec<_>>();
        lines.sort_unstable();
        lines.join("; ").replace('"', "'")
    }

    /// The text of the refusal has all these words.
    pub fn assert_refused(name: Name, options: &str, expected: &[&str]) {
        let text = format!("name = '{name}'\n{}", options.replace("; ", "\n"));
        let refused = Config::from_toml(&text).and_then(|config| config.resolved());
        let error = refused.err().unwrap_or_else(|| panic!("{text} was accepted")).to_string();
        for expected in expected {
            assert!(error.contains(expected), "{text}: {error:?} does not say {expected:?}");
        }
    }

    /// The rounds of the first steps at rate 1: exact, coarse, or skipped.
    pub fn calendar(name: Name, options: &str, steps: u64) -> String {
        let algorithm = resolved(name, options).decide().unwrap().algorithm;
        let letter = |round| match round {
            Round::Exact => 'e',
            Round::Coarse => 'c',
            Round::Skipped => '-',
        };
        (0..steps).map(|t| letter(algorithm.round(t, 1.0))).collect()
    }

    /// A run of one worker on one parameter, from 1 on, at a rate of 0.1 and with λ = 0.01: x after each step. With blocks of one value no
    /// codec loses anything, but steps are limited as after any coarse mean.
    pub fn course(name: Name, options: &str, gradients: &[f32]) -> Vec<f64> {
        let config = resolved(name, &format!("block = 1; {options}"));
        let mut x = [1.0];
        let mut worker = Worker::new(&config, &x, Box::new(Solo)).unwrap();
        let mut step = |g: &f32| {
            worker.step(&mut x, &[*g], 0.1).unwrap();
            f64::from(x[0])
        };
        gradients.iter().map(&mut step).collect()
    }

    pub fn assert_near(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-6, "{got}, by hand {want}");
        }
    }

    /// Adam by hand: m, v and the corrections, as docs/algorithms.md has them.
    #[derive(Clone, Copy, Default)]
    pub struct Hand {
        pub m: f64,
        pub v: f64,
        pub t: i32,
        /// j.
        pub updates: i32,
    }

    impl Hand {
        /// m ← β1·m + (1−β1)·g
        pub fn blend(&mut self, g: f32) {
            self.m = 0.9 * self.m + 0.1 * f64::from(g);
            self.t += 1;
        }

        /// v ← β2·v + (1−β2)·g²
        pub fn square(&mut self, g: f32) {
            self.v = 0.999 * self.v + 0.001 * f64::from(g).powi(2);
            self.updates += 1;
        }

        /// γ̂
        pub fn rate(&self) -> f64 {
            0.1 / (1.0 - 0.9_f64.powi(self.t))
        }

        /// P
        pub fn p(&self) -> f64 {
            (self.v / (1.0 - 0.999_f64.powi(self.updates))).sqrt() + 1e-8
        }
    }

    /// 1 − γλ
    pub const DECAY: f64 = 1.0 - 0.1 * 0.01;
}
