//! When: the learning rate, and which steps talk. Pure functions of the step; nothing here counts or remembers.
//!
//! A step is exact (a full-precision mean), coarse (a coded mean) or skipped (no round at all). An optimizer says which, to its steps and
//! to [`plan`](crate::plan) alike. For 0/1 Adam (arXiv 2202.06009) it follows from two sets:
//!
//! - T_v, the steps that update the variance: gaps that start at a shortest one and double after every κ of them up to a longest
//!   one, none from `freeze` on;
//! - T_u, the steps that sync: a gap that starts at 1 and grows to at most H.

use serde::{Deserialize, Serialize};

/// The learning rate as a function of the step: a linear warm-up to `peak`, then a decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table such as { peak = 1e-3, warmup = 500, decay = \"cosine\", steps = 10000 }"
)]
pub struct LearningRate {
    /// The rate after the warm-up.
    pub peak: f64,
    /// Steps of linear warm-up; step `warmup − 1` is the first at the peak.
    #[serde(default)]
    pub warmup: u64,
    /// How it falls then.
    #[serde(default)]
    pub decay: Decay,
    /// The length of the run: where `cosine` and `linear` end.
    #[serde(default)]
    pub steps: u64,
    /// What `cosine` and `linear` end at, as a part of the peak.
    #[serde(default)]
    pub floor: f64,
    /// `step` drops the rate every so many steps after the warm-up …
    #[serde(default = "a_thousand")]
    pub drop_every: u64,
    /// … to this part of what it was.
    #[serde(default = "a_tenth")]
    pub drop_to: f64,
}

fn a_thousand() -> u64 {
    1000
}

fn a_tenth() -> f64 {
    0.1
}

/// How the learning rate falls after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Decay {
    /// It does not.
    #[default]
    Constant,
    /// In a straight line to `floor`.
    Linear,
    /// Along a cosine to `floor`.
    Cosine,
    /// To `drop_to` of what it was, every `drop_every` steps.
    Step,
    /// peak·√(warmup/t): α/√t, as Efficient-Adam's analysis has it (without warm-up it is peak/√t).
    InverseSqrt,
}

impl LearningRate {
    /// The same rate at every step.
    pub fn constant(peak: f64) -> LearningRate {
        LearningRate {
            peak,
            warmup: 0,
            decay: Decay::Constant,
            steps: 0,
            floor: 0.0,
            drop_every: a_thousand(),
            drop_to: a_tenth(),
        }
    }

    /// γ at step `t`, counted from 0.
    pub fn at(&self, t: u64) -> f32 {
        let part = if t < self.warmup { (t + 1) as f64 / self.warmup as f64 } else { self.after_warmup(t) };
        (self.peak * part) as f32
    }

    fn after_warmup(&self, t: u64) -> f64 {
        let (since, floor) = ((t - self.warmup) as f64, self.floor);
        let progress = (since / self.steps.saturating_sub(self.warmup).max(1) as f64).min(1.0);
        match self.decay {
            Decay::Constant => 1.0,
            Decay::Linear => floor + (1.0 - floor) * (1.0 - progress),
            Decay::Cosine => floor + (1.0 - floor) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
            Decay::Step => self.drop_to.powf((since / self.drop_every as f64).floor()),
            Decay::InverseSqrt => (self.warmup.max(1) as f64 / (t + 1) as f64).sqrt(),
        }
    }
}

/// T_v: the steps of 0/1 Adam that update the variance.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the fields are explained with their variants
pub enum VarianceSteps {
    /// Gaps of `gap` that double after every `kappa` of them until they are `longest`, and all of the first `dense` and the first `gap`
    /// steps; none from `freeze` on. With a `gap` of 1, nothing dense and no longest it is the paper's: k_0 = 0,
    /// k_(j+1) − k_j = 2^⌊j/κ⌋.
    Growing { dense: u64, kappa: u64, gap: u64, longest: Option<u64>, freeze: Option<u64> },
    /// These, in rising order.
    Custom(Vec<u64>),
}

impl VarianceSteps {
    /// Every step before `end`, and none from there on.
    pub fn all_before(end: u64) -> VarianceSteps {
        VarianceSteps::Growing { dense: end, kappa: 1, gap: 1, longest: None, freeze: Some(end) }
    }

    /// Whether step `t` updates the variance.
    pub fn contains(&self, t: u64) -> bool {
        match self {
            VarianceSteps::Custom(steps) => steps.binary_search(&t).is_ok(),
            VarianceSteps::Growing { freeze: Some(freeze), .. } if t >= *freeze => false,
            VarianceSteps::Growing { dense, gap, .. } if t < *dense || t < *gap => true,
            VarianceSteps::Growing { kappa, gap, longest, .. } => {
                // Counted in shortest gaps, the gaps are 2^p from κ·(2^p − 1) on.
                let i = t / gap;
                let most = longest.map_or(u32::MAX, |longest| (longest / gap).max(1).ilog2());
                let p = (i / kappa + 1).ilog2().min(most);
                t.is_multiple_of(*gap) && (i - kappa * ((1 << p) - 1)).is_multiple_of(1 << p)
            }
        }
    }
}

/// How much earlier than at the half of the learning rate the gap doubles: at 1/2 itself a cosine's run would have 33 % of its rounds
/// skipped, at 1/√2 42 %, and a loss a little higher (docs/convergence.md).
const LEAD: f64 = 10.0 / 9.0;

/// T_u: the steps of 0/1 Adam that sync.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the fields are explained with their variants
pub enum SyncSteps {
    /// Every step before `start`; then the gap doubles each time the learning rate halves, or a little before, up to `longest`:
    /// for the first time at 5/9 of the peak.
    FollowLr { peak: f64, start: u64, longest: u64 },
    /// Every step before `start`; then the gap doubles every `every` steps, up to `longest` (DeepSpeed's rule).
    Doubling { start: u64, every: u64, longest: u64 },
    /// Every step before `start`; then every `gap`-th.
    Every { start: u64, gap: u64 },
    /// These, in rising order.
    Custom(Vec<u64>),
}

impl SyncSteps {
    /// Whether step `t`, at learning rate `lr`, ends with a sync.
    pub fn contains(&self, t: u64, lr: f32) -> bool {
        match self {
            SyncSteps::Custom(steps) => steps.binary_search(&t).is_ok(),
            _ => (t + 1).is_multiple_of(self.gap(t, lr)),
        }
    }

    /// The distance between syncs around step `t`, for the sets that have one.
    fn gap(&self, t: u64, lr: f32) -> u64 {
        match *self {
            SyncSteps::FollowLr { start, .. } | SyncSteps::Doubling { start, .. } | SyncSteps::Every { start, .. }
                if t < start =>
            {
                1
            }
            SyncSteps::FollowLr { peak, longest, .. } => {
                let peak = f64::from(peak as f32) * LEAD;
                let mut gap = 1;
                while gap <= longest / 2 && f64::from(lr) * (2 * gap) as f64 <= peak {
                    gap *= 2;
                }
                gap
            }
            SyncSteps::Doubling { start, every, longest } => {
                // Only powers of two: each gap divides the next, so that no wait is longer than the gap at its end.
                let doublings = ((t - start) / every).min(u64::from(longest.ilog2()));
                1 << doublings
            }
            SyncSteps::Every { gap, .. } => gap,
            SyncSteps::Custom(_) => 1,
        }
    }
}

/// What the workers average in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Round {
    /// A full-precision mean.
    Exact,
    /// A compressed mean.
    Coarse,
    /// No mean at all.
    Skipped,
}
