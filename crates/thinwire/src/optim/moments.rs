//! The two moments, and the exact Adam step that three of the optimizers share.
//!
//! ```text
//! ḡ = exact mean of g;   m ← β1·m + (1−β1)·ḡ;   v ← β2·v + (1−β2)·ḡ²;   j ← j+1
//! x ← x·(1−γλ) − γ̂·m/P,    P = √(v/(1−β2^j)) + ε,    γ̂ = γ/(1−β1^(t+1))
//! ```
//!
//! j counts updates of v, not steps: with a stale v that is the right correction.

use super::Clip;
use crate::error::Result;
use crate::exchange::Exchange;
use crate::kernel::update::{self, OuterStep, Scalars, Sent, Since};
use crate::machine::{Interval, Keep, OfGradient, Pass, Read, Source, Step, Vector, Write};
use crate::schedule::Round;
use crate::state::Entry;

/// The vectors that every optimizer here begins its list with.
pub const X: Vector = Vector::PARAMS;
/// m, the first moment.
pub const M: Vector = Vector::own(0);
/// v, the second moment.
pub const V: Vector = Vector::own(1);

/// a ← x, where a is the optimizer's vector at `PLACE`.
pub struct Anchor<const PLACE: usize>;

impl<const PLACE: usize> Pass for Anchor<PLACE> {
    const NAME: &'static str = "anchor";
    const READS: &'static [Vector] = &[X];
    const WRITES: &'static [Vector] = &[Vector::own(PLACE)];

    fn run(_: &Scalars, _: &[f32], [x, ..]: Read<'_>, [a, ..]: Write<'_>) -> Option<usize> {
        update::copy(x, a);
        None
    }
}

/// The optimizer's vector at `PLACE` ← a late mean, which waits for its step there.
pub struct Arrive<const PLACE: usize>;

impl<const PLACE: usize> Pass for Arrive<PLACE> {
    const NAME: &'static str = "arrive";
    const WRITES: &'static [Vector] = &[Vector::own(PLACE)];
    const STORES: bool = true;

    fn run(_: &Scalars, mean: &[f32], _: Read<'_>, [arrived, ..]: Write<'_>) -> Option<usize> {
        arrived.copy_from_slice(mean);
        None
    }
}

/// Exact steps that a variance needs, whatever the length of the run: with fewer, its square root is wrong by more than a tenth.
pub const ENOUGH: u64 = 100;

/// A run of at most so many steps is too short to gain anything: an optimizer that would freeze its variance behaves as Adam.
pub const SHORT: u64 = 250;

/// Adam's settings.
#[derive(Clone, Debug)]
pub struct Hyper {
    /// β1 and β2.
    pub betas: (f64, f64),
    /// ε.
    pub eps: f64,
    /// Whether the moments are corrected for their start at 0.
    pub bias_correction: bool,
    /// The limits of gradients, if there are any.
    pub clip: Option<Clip>,
    /// Whether coarse means lose nothing. Then they say what a parameter's momentum is, and only one that v has never seen needs a
    /// limit.
    pub lossless: bool,
    /// The highest γ̂ so far: at the end of a schedule residuals are still in the units of its middle.
    pub highest: f64,
    /// How many parameter groups there are.
    pub groups: usize,
    /// How many parameters.
    pub parameters: usize,
    /// Values in a block.
    pub block: usize,
}

impl Hyper {
    /// β1 and β2 unless they are given.
    pub const BETAS: (f64, f64) = (0.9, 0.999);

    /// Computes the scalars of a step. `forgotten` is the weight that v still gives to its start: β2^j.
    ///
    /// They are for this worker's own gradient; for a mean [`Scalars::shrink`] is replaced by what clips it.
    pub fn prepare(&mut self, step: &mut Step<'_>, beta2: f64, forgotten: f64) {
        let (beta1, t) = (self.betas.0, step.t as f64);
        let momentum = if self.bias_correction { 1.0 - beta1.powf(t + 1.0) } else { 1.0 };
        // Before its first update v is all start, and there is nothing to correct.
        let variance = if self.bias_correction && forgotten < 1.0 { 1.0 - forgotten } else { 1.0 };
        let shrink = self.clip.zip(step.norm).map_or(1.0, |(clip, norm)| clip.of_own(norm));
        step.prepare(|group| {
            let rate = group.rate / momentum;
            self.highest = self.highest.max(rate);
            Scalars {
                beta1: (beta1 as f32, (1.0 - beta1) as f32),
                beta2: (beta2 as f32, (1.0 - beta2) as f32),
                rate: rate as f32,
                decay: (1.0 - group.rate * group.weight_decay) as f32,
                weight_decay: group.weight_decay as f32,
                correction: (1.0 / variance) as f32,
                eps: self.eps as f32,
                shrink,
                limit: if self.lossless { f32::MAX } else { update::LIMIT },
                jump: update::JUMP * self.highest as f32,
                moves: group.moves,
                since: Since::NOTHING,
                sent: Sent::NOTHING,
                outer: OuterStep::NOTHING,
            }
        });
    }

    /// Γ and D of a run that is about to start.
    pub fn interval(&self) -> Interval {
        Interval::new(self.groups)
    }
}

/// Where the momentum that an exact step starts from was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Momentum {
    /// By an exact mean.
    Exact,
    /// By a coarse mean: it may be ±s where it should be nothing.
    Coarse,
}

/// j, beside m and v.
#[derive(Debug, Default)]
pub struct Moments {
    /// j: how often v was updated.
    pub updates: u64,
}

/// m ← β1·m + (1−β1)·ḡ;   v ← β2·v + (1−β2)·ḡ²;   x ← x·(1−γλ) − γ̂·m/P
pub(super) struct Adam;

impl Pass for Adam {
    const NAME: &'static str = "adam";
    const WRITES: &'static [Vector] = &[M, V, X];

    fn run(k: &Scalars, mean: &[f32], _: Read<'_>, [m, v, x, _]: Write<'_>) -> Option<usize> {
        if update::adam(k, mean, m, v, x) { k.jumped(m, v) } else { None }
    }
}

/// The same with m within ±c·P first.
struct AdamAfterCoarse;

impl Pass for AdamAfterCoarse {
    const NAME: &'static str = "adam_after_coarse";
    const WRITES: &'static [Vector] = &[M, V, X];

    fn run(k: &Scalars, mean: &[f32], _: Read<'_>, [m, v, x, _]: Write<'_>) -> Option<usize> {
        if update::adam_after_coarse(k, mean, m, v, x) { k.jumped(m, v) } else { None }
    }
}

impl Moments {
    /// The passes of an exact step that follows an exact one, and of one that follows a coarse one.
    pub const PASSES: [&str; 3] = [OfGradient::NAME, Adam::NAME, AdamAfterCoarse::NAME];

    /// Computes the scalars of a step that leaves v alone.
    pub fn prepare(&self, hyper: &mut Hyper, step: &mut Step<'_>) {
        let beta2 = hyper.betas.1;
        hyper.prepare(step, beta2, beta2.powf(self.updates as f64));
    }

    /// The step above. Nothing moves when no worker has a finite gradient.
    pub fn exact_step(
        &mut self,
        from: Momentum,
        hyper: &mut Hyper,
        step: &mut Step<'_>,
        exchange: &mut Exchange,
    ) -> Result<()> {
        self.prepare_next(hyper, step);
        let contributions = match from {
            Momentum::Exact => on_mean(Round::Exact, Adam, hyper.clip, step, exchange)?,
            Momentum::Coarse => on_mean(Round::Exact, AdamAfterCoarse, hyper.clip, step, exchange)?,
        };
        self.updates += u64::from(contributions > 0);
        Ok(())
    }

    /// The same on a coarse mean of the gradient.
    pub fn coded_step(&mut self, hyper: &mut Hyper, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        self.prepare_next(hyper, step);
        let contributions = on_mean(Round::Coarse, Adam, hyper.clip, step, exchange)?;
        self.updates += u64::from(contributions > 0);
        Ok(())
    }

    /// Computes the scalars of a step that updates v.
    pub fn prepare_next(&self, hyper: &mut Hyper, step: &mut Step<'_>) {
        let beta2 = hyper.betas.1;
        hyper.prepare(step, beta2, beta2.powf(self.updates as f64 + 1.0));
    }

    /// What to save beside the vectors.
    pub fn numbers(&mut self) -> Vec<Entry<'_>> {
        vec![Entry::word("variance_updates", &mut self.updates)]
    }
}

/// One pass, or two with clipping: the norm of the mean must be known before the mean is used. Returns how many took part.
pub(super) fn on_mean(
    round: Round,
    pass: impl Pass,
    clip: Option<Clip>,
    step: &mut Step<'_>,
    exchange: &mut Exchange,
) -> Result<u32> {
    let Some(clip) = clip else { return exchange.mean(round, step, OfGradient, pass) };
    let contributions = exchange.mean(round, step, OfGradient, Keep)?;
    if contributions > 0 {
        let norm = exchange.machine.norm_of_kept()?;
        let factor = clip.of_mean(exchange.shards.norm(step.t, norm)?);
        step.shrink(factor);
        exchange.machine.run_on_kept(pass, step)?;
    }
    Ok(contributions)
}
