//! The outer rules of [`LocalAdam`](super::LocalAdam): what becomes of the anchor a when the workers have averaged how far they are from it.
//!
//! ```text
//! average         a ← a − η·Δ̄
//! slow-momentum   M ← μ·M + Δ̄/γ;   a ← a − ηγ·M
//! nesterov        B ← μ·B + Δ̄;     a ← a − η·(Δ̄ + μ·B)
//! sign            D = Δ̄/γ;         a ← a·(1−ηγλ) − ηγ·sgn(β1·M + (1−β1)·D);   M ← β2·M + (1−β2)·D
//! ```
//!
//! Each is one pass over a, its momentum and x, which all workers take alike. Where a mean comes late ([`LocalAdam::delay`]), or with a limit
//! (`outer_clip`), it has a form of its own, which ends with x ← α·x + (1−α)·a, and in which M is kept within ±φ.
//!
//! [`LocalAdam::delay`]: super::LocalAdam::delay

use super::X;
use crate::error::{Error, Result};
use crate::kernel::update::{self, OuterStep, Scalars};
use crate::machine::{Pass, Read, Vector, Write};
use serde::{Deserialize, Serialize};

/// a: the model that all workers have in common, and where they are after a sync.
pub(super) const A: Vector = Vector::own(ANCHOR);
pub(super) const ANCHOR: usize = 2;
/// M or B.
const MOMENTUM: Vector = Vector::own(3);

/// What local Adam does with the mean difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Outer {
    /// The mean of the workers' models: local SGD, federated averaging.
    Average,
    /// SlowMo (arXiv 1910.00643): momentum on what the local steps come to, in units of the learning rate.
    SlowMomentum,
    /// DiLoCo (arXiv 2311.08105): SGD with Nesterov's momentum, as `torch.optim.SGD` has it.
    #[default]
    Nesterov,
    /// DSM (arXiv 2411.17866): the sign of a momentum, as in Lion.
    Sign,
}

impl Outer {
    /// As options have it.
    fn as_str(self) -> &'static str {
        match self {
            Outer::Average => "average",
            Outer::SlowMomentum => "slow-momentum",
            Outer::Nesterov => "nesterov",
            Outer::Sign => "sign",
        }
    }
}

/// A rule and its numbers. What a rule does not use stands at the value that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rule {
    pub outer: Outer,
    /// η.
    rate: f64,
    /// μ.
    momentum: f64,
    /// β1 and β2.
    betas: (f64, f64),
    /// λ.
    decay: f64,
    /// Λ.
    penalty: f64,
    /// φ.
    most: f64,
}

impl Rule {
    /// Gives every option that the rule uses its value, and refuses the others.
    pub fn decide(options: &mut super::LocalAdam) -> Result<Rule> {
        let outer = *options.outer.get_or_insert_default();
        let (has_momentum, is_sign) = (matches!(outer, Outer::SlowMomentum | Outer::Nesterov), outer == Outer::Sign);
        let unused = |key: &str, value: Option<String>, is_used: bool| match value {
            Some(value) if !is_used => {
                Err(Error::config(key, value, format!("has no meaning with outer = {}", outer.as_str())))
            }
            _ => Ok(()),
        };
        let text = |value: Option<f64>| value.map(|value| value.to_string());
        unused("outer_momentum", text(options.outer_momentum), has_momentum)?;
        unused("outer_betas", options.outer_betas.map(|betas| format!("{betas:?}")), is_sign)?;
        unused("outer_decay", text(options.outer_decay), is_sign)?;
        let is_slow = outer == Outer::SlowMomentum;
        unused("outer_penalty", text(options.outer_penalty), is_slow)?;
        unused("outer_clip", text(options.outer_clip), is_slow)?;
        let (usual_rate, usual_momentum) = match outer {
            Outer::Average | Outer::Sign => (1.0, 0.0),
            Outer::SlowMomentum => (1.0, 0.5),
            Outer::Nesterov => (0.7, 0.9),
        };
        let (penalty, most) = (options.outer_penalty.unwrap_or(1.0), options.outer_clip.unwrap_or(f64::INFINITY));
        let mut rule = Rule { outer, rate: usual_rate, momentum: 0.0, betas: (0.0, 0.0), decay: 0.0, penalty, most };
        rule.rate = *options.outer_rate.get_or_insert(usual_rate);
        if has_momentum {
            rule.momentum = *options.outer_momentum.get_or_insert(usual_momentum);
        }
        if is_sign {
            rule.betas = *options.outer_betas.get_or_insert((0.95, 0.98));
            rule.decay = *options.outer_decay.get_or_insert(0.1);
        }
        rule.check()?;
        Ok(rule)
    }

    fn check(&self) -> Result<()> {
        let require = |holds: bool, key: &str, value: String, expected: &str| match holds {
            true => Ok(()),
            false => Err(Error::config(key, value, format!("expected {expected}"))),
        };
        let fits = |beta: f64| beta >= 0.0 && (beta as f32) < 1.0;
        let Rule { rate, momentum, betas, decay, .. } = *self;
        let has_rate = (rate as f32).is_finite() && rate as f32 > 0.0;
        require(has_rate, "outer_rate", rate.to_string(), "a number above 0, such as 0.7")?;
        require(fits(momentum), "outer_momentum", momentum.to_string(), "a number of at least 0 and below 1")?;
        let both = fits(betas.0) && fits(betas.1);
        require(
            both,
            "outer_betas",
            format!("{betas:?}"),
            "two numbers of at least 0 and below 1, such as [0.95, 0.98]",
        )?;
        let decays = (decay as f32).is_finite() && decay >= 0.0;
        require(decays, "outer_decay", decay.to_string(), "a number of at least 0, such as 0.1")?;
        let Rule { penalty, most, .. } = *self;
        let divides = (penalty as f32).is_finite() && penalty as f32 > 0.0;
        require(divides, "outer_penalty", penalty.to_string(), "a number above 0, such as 2.0")?;
        require(
            most as f32 > 0.0,
            "outer_clip",
            most.to_string(),
            "a number above 0, such as 1.5, or nothing for no limit",
        )
    }

    /// Whether M is limited.
    pub fn is_limited(&self) -> bool {
        self.most.is_finite()
    }

    /// Whether it keeps M or B.
    pub fn has_momentum(&self) -> bool {
        self.outer != Outer::Average
    }

    /// The numbers of a step at learning rate γ = `unit`.
    pub fn at(&self, unit: f64) -> OuterStep {
        let divides = matches!(self.outer, Outer::SlowMomentum | Outer::Sign);
        let rate = if divides { self.rate * unit } else { self.rate };
        let (beta1, beta2) = self.betas;
        OuterStep {
            unit: (unit * self.penalty) as f32,
            rate: rate as f32,
            momentum: self.momentum as f32,
            beta1: (beta1 as f32, (1.0 - beta1) as f32),
            beta2: (beta2 as f32, (1.0 - beta2) as f32),
            decay: (1.0 - rate * self.decay) as f32,
            most: self.most as f32,
            ..OuterStep::NOTHING
        }
    }
}

/// x ← α·x + (1−α)·a, without an outer step: no mean has arrived yet, or no worker took part in it.
pub(super) struct Mix;

impl Pass for Mix {
    const NAME: &'static str = "mix";
    const READS: &'static [Vector] = &[A];
    const WRITES: &'static [Vector] = &[X];

    fn run(k: &Scalars, _: &[f32], [a, ..]: Read<'_>, [x, ..]: Write<'_>) -> Option<usize> {
        if k.moves {
            update::mix(k, a, x);
        }
        None
    }
}

/// a ← a − η·Δ̄;   x ← a
pub(super) struct Average<const MIXES: bool>;

impl<const MIXES: bool> Pass for Average<MIXES> {
    const NAME: &'static str = if MIXES { "mixed_average" } else { "outer_average" };
    const WRITES: &'static [Vector] = &[A, X];

    fn run(k: &Scalars, mean: &[f32], _: Read<'_>, [a, x, ..]: Write<'_>) -> Option<usize> {
        if k.moves {
            update::outer_average(k, mean, a, x);
        }
        None
    }
}

/// M ← μ·M + Δ̄/γ;   a ← a − ηγ·M;   x ← a
pub(super) struct SlowMomentum<const MIXES: bool>;

impl<const MIXES: bool> Pass for SlowMomentum<MIXES> {
    const NAME: &'static str = if MIXES { "mixed_slow_momentum" } else { "outer_slow_momentum" };
    const WRITES: &'static [Vector] = &[A, MOMENTUM, X];

    fn run(k: &Scalars, mean: &[f32], _: Read<'_>, [a, momentum, x, _]: Write<'_>) -> Option<usize> {
        if k.moves && k.outer.unit > 0.0 {
            update::outer_slow_momentum(k, mean, a, momentum, x);
        } else if MIXES && k.moves {
            update::mix(k, a, x);
        }
        None
    }
}

/// B ← μ·B + Δ̄;   a ← a − η·(Δ̄ + μ·B);   x ← a
pub(super) struct Nesterov<const MIXES: bool>;

impl<const MIXES: bool> Pass for Nesterov<MIXES> {
    const NAME: &'static str = if MIXES { "mixed_nesterov" } else { "outer_nesterov" };
    const WRITES: &'static [Vector] = &[A, MOMENTUM, X];

    fn run(k: &Scalars, mean: &[f32], _: Read<'_>, [a, momentum, x, _]: Write<'_>) -> Option<usize> {
        if k.moves {
            update::outer_nesterov(k, mean, a, momentum, x);
        }
        None
    }
}

/// a ← a·(1−ηγλ) − ηγ·sgn(β1·M + (1−β1)·D);   M ← β2·M + (1−β2)·D;   x ← a
pub(super) struct Sign<const MIXES: bool>;

impl<const MIXES: bool> Pass for Sign<MIXES> {
    const NAME: &'static str = if MIXES { "mixed_sign" } else { "outer_sign" };
    const WRITES: &'static [Vector] = &[A, MOMENTUM, X];

    fn run(k: &Scalars, mean: &[f32], _: Read<'_>, [a, momentum, x, _]: Write<'_>) -> Option<usize> {
        if k.moves && k.outer.unit > 0.0 {
            update::outer_sign(k, mean, a, momentum, x);
        } else if MIXES && k.moves {
            update::mix(k, a, x);
        }
        None
    }
}
