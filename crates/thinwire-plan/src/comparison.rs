//! What comes of it for each method, and what has to be said of some: too large, too short, hardly warm.

use crate::cost::{Estimate, Parts};
use crate::length;
use crate::network::Network;
use crate::simulate::Simulated;
use thinwire_report::numbers::bytes;

/// After fewer exact rounds a variance has hardly seen a gradient.
const FEW_ROUNDS: u64 = 50;

/// What comes of it for each method.
pub struct Comparison {
    /// The first is Adam in f32, the last two are PyTorch's DDP.
    pub estimates: Vec<Estimate>,
    /// Which of them the others are held to: what the user has, if a configuration says, or the first.
    pub base: usize,
    pub hosts: usize,
    /// Bytes of memory that a worker has, if that was said.
    pub memory: Option<u64>,
    /// The same by events, if that was asked for. Then this is the answer, and the formula stands beside it.
    pub simulated: Option<Vec<Simulated>>,
}

impl Comparison {
    /// Seconds of a step of method `at`, averaged over the run.
    pub fn step(&self, at: usize, network: &Network) -> f64 {
        self.simulated.as_ref().map_or_else(|| self.estimates[at].mean_step(network), |simulated| simulated[at].step)
    }

    /// Seconds of the whole run.
    pub fn run(&self, at: usize, network: &Network) -> f64 {
        self.step(at, network) * self.estimates[at].plan.steps as f64
    }

    /// Whether method `at` has room in a worker's memory, as far as that is known.
    pub fn fits(&self, at: usize) -> bool {
        self.memory.is_none_or(|memory| self.estimates[at].memory().total() <= memory)
    }

    /// The part of the run in which workers compute.
    pub fn efficiency(&self, at: usize, network: &Network) -> f64 {
        self.estimates[at].compute / self.step(at, network)
    }

    /// Where a step's time goes beyond computing.
    pub fn parts(&self, at: usize, network: &Network) -> Parts {
        let estimate = &self.estimates[at];
        Parts { waiting: self.step(at, network) - estimate.mean_step(network), ..estimate.parts(network) }
    }
}

/// Which methods the run is short for.
pub fn too_short(comparison: &Comparison) -> impl Iterator<Item = String> + '_ {
    let said = |estimate: &Estimate| length::short_run(&estimate.method.config, &estimate.plan);
    comparison.estimates.iter().filter(|estimate| estimate.ddp.is_none()).filter_map(said)
}

/// Which methods have fewer exact rounds than a variance takes.
pub fn hardly_warm(comparison: &Comparison) -> impl Iterator<Item = String> + '_ {
    let compressing =
        comparison.estimates.iter().filter(|estimate| estimate.ddp.is_none() && estimate.plan.rounds.coarse > 0);
    let few = compressing.filter(|estimate| (1..FEW_ROUNDS).contains(&estimate.plan.rounds.exact));
    few.map(|estimate| {
        format!(
            "{} has only {} exact rounds, and a variance takes about a hundred of them (docs/planning.md)",
            estimate.method.shown, estimate.plan.rounds.exact
        )
    })
}

/// Which methods need more memory than a worker has.
pub fn too_large(comparison: &Comparison) -> Option<String> {
    let memory = comparison.memory?;
    let shown = |at: usize| {
        let estimate = &comparison.estimates[at];
        format!("{} ({})", estimate.method.shown, bytes(estimate.memory().total() as f64))
    };
    let large = (0..comparison.estimates.len()).filter(|at| !comparison.fits(*at)).map(shown).collect::<Vec<_>>();
    let known = "parameters, gradients, optimizer and messages alone, without activations";
    (!large.is_empty())
        .then(|| format!("more memory than the {} of a worker ({known}): {}", bytes(memory as f64), large.join(", ")))
}
