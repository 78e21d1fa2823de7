//! The two moments, and the exact Adam step that three of the optimizers share.
//!
//! ```text
//! ḡ = exact mean of g;   m ← β1·m + (1−β1)·ḡ;   v ← β2·v + (1−β2)·ḡ²;   j ← j+1
//! x ← x·(1−γλ) − γ̂·m/P,    P = √(v/(1−β2^j)) + ε,    γ̂ = γ/(1−β1^(t+1))
//! ```
//!
//! j counts updates of v, not steps: with a stale v that is the right correction.

use super::{Clip, Entry, Jumps, Now, Share};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::gradient::Gradient;
use crate::groups::Groups;
use crate::kernel::reduce;
use crate::kernel::update::{self, Scalars};
use crate::memory::Floats;
use crate::schedule::Round;
use crate::tiles::Vectors;
use std::ops::Range;

/// Adam's settings, and what they come to for each parameter group in the step at hand.
#[derive(Debug)]
pub struct Hyper {
    pub betas: (f64, f64),
    pub eps: f64,
    pub bias_correction: bool,
    pub groups: Groups,
    pub clip: Option<Clip>,
    /// See [`Scalars::limit`].
    limit: f32,
    /// Where the momentum of this step's start was made.
    momentum: Momentum,
    scalars: Vec<Scalars>,
    jumps: Jumps,
}

impl Hyper {
    pub fn new(betas: (f64, f64), eps: f64, bias_correction: bool, groups: Groups, clip: Option<Clip>) -> Hyper {
        let scalars = Vec::with_capacity(groups.count());
        let limit = update::LIMIT;
        Hyper {
            betas,
            eps,
            bias_correction,
            groups,
            clip,
            limit,
            momentum: Momentum::Exact,
            scalars,
            jumps: Jumps::default(),
        }
    }

    /// Coarse means lose nothing: they say what a parameter's momentum is, and only one that v has never seen needs a limit.
    pub fn lossless(mut self) -> Hyper {
        self.limit = f32::MAX;
        self
    }

    /// Computes this step's scalars. `forgotten` is the weight that v still gives to its start: β2^j.
    ///
    /// They are for this worker's own gradient; for a mean `shrink` replaces what clips it.
    pub fn prepare(&mut self, now: &Now<'_>, beta2: f64, forgotten: f64) {
        let (beta1, t) = (self.betas.0, now.step as f64);
        let momentum = if self.bias_correction { 1.0 - beta1.powf(t + 1.0) } else { 1.0 };
        // Before its first update v is all start, and there is nothing to correct.
        let variance = if self.bias_correction && forgotten < 1.0 { 1.0 - forgotten } else { 1.0 };
        let shrink = self.clip.as_ref().zip(now.norm).map_or(1.0, |(clip, norm)| clip.of_own(norm));
        self.scalars.clear();
        for (rate, decay) in now.rates.iter().zip(&self.groups.weight_decay) {
            self.scalars.push(Scalars {
                beta1: (beta1 as f32, (1.0 - beta1) as f32),
                beta2: (beta2 as f32, (1.0 - beta2) as f32),
                rate: (rate / momentum) as f32,
                decay: (1.0 - rate * decay) as f32,
                correction: (1.0 / variance) as f32,
                eps: self.eps as f32,
                shrink,
                limit: self.limit,
                jump: self.jumps.threshold(*rate / momentum),
            });
        }
    }

    /// From here on the gradient is one that has to be multiplied with `factor`.
    fn shrink(&mut self, factor: f32) {
        self.scalars.iter_mut().for_each(|scalars| scalars.shrink = factor);
    }

    pub fn scalars(&self) -> &[Scalars] {
        &self.scalars
    }

    /// The step above, on a mean that is in memory.
    fn step_on(&self, mean: Gradient<'_>, vectors: Vectors<'_, 0, 3>, exchange: &Exchange) {
        exchange.threads.each(mean.len(), vectors, |tile, vectors| {
            mean.with(tile.clone(), |mean| self.step_on_tile(tile, mean, vectors));
        });
    }

    fn step_on_tile(&self, tile: Range<usize>, mean: &[f32], vectors: Vectors<'_, 0, 3>) {
        let step = match self.momentum {
            Momentum::Exact => update::adam,
            Momentum::Coarse => update::adam_after_coarse,
        };
        self.each(tile.clone(), vectors, |group, part, Vectors { write: [m, v, x], .. }| {
            let k = &self.scalars[group];
            if step(k, &mean[part.clone()], m, v, x)
                && let Some(place) = k.jumped(m, v)
            {
                self.jumps.note(tile.start + part.start + place);
            }
        });
    }

    /// A step moved parameter `index` farther than [`update::JUMP`] says is ordinary.
    pub fn note_jump(&self, index: usize) {
        self.jumps.note(index);
    }

    /// The first parameter that has jumped since this was last asked.
    pub fn take_jump(&mut self) -> Option<usize> {
        self.jumps.take()
    }

    /// Calls `work` for every group in `tile`, with its number, its part of the tile, and its part of `vectors`.
    pub fn each<const R: usize, const W: usize>(
        &self,
        tile: Range<usize>,
        mut vectors: Vectors<'_, R, W>,
        mut work: impl FnMut(usize, Range<usize>, Vectors<'_, R, W>),
    ) {
        for (group, part) in self.groups.cut(tile.start, tile.len()) {
            work(group, part.clone(), vectors.part(part));
        }
    }
}

/// Where the momentum that an exact step starts from was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Momentum {
    Exact,
    /// By a coarse mean: it may be ±s where it should be nothing.
    Coarse,
}

/// m, v and j.
#[derive(Debug)]
pub struct Moments {
    pub m: Floats,
    pub v: Floats,
    /// j: how often v was updated.
    pub updates: u64,
}

impl Moments {
    pub fn new(len: usize) -> Moments {
        Moments { m: Floats::zeroed(len), v: Floats::zeroed(len), updates: 0 }
    }

    /// Computes the scalars of a step that leaves v alone.
    pub fn prepare(&self, hyper: &mut Hyper, now: &Now<'_>) {
        let beta2 = hyper.betas.1;
        hyper.prepare(now, beta2, beta2.powf(self.updates as f64));
    }

    /// The step above. Nothing moves when no worker has a finite gradient.
    pub fn exact_step(
        &mut self,
        from: Momentum,
        hyper: &mut Hyper,
        now: &Now<'_>,
        params: &mut [f32],
        grad: Gradient<'_>,
        exchange: &mut Exchange,
    ) -> Result<()> {
        let beta2 = hyper.betas.1;
        hyper.momentum = from;
        hyper.prepare(now, beta2, beta2.powf(self.updates as f64 + 1.0));
        if let Some(mut clip) = hyper.clip.take() {
            let done = self.exact_step_clipped(hyper, &mut clip, now, params, grad, exchange);
            hyper.clip = Some(clip);
            return done;
        }
        let hyper = &*hyper;
        let vectors = Vectors { read: [], write: [&mut self.m[..], &mut self.v, params] };
        if let Some(contributions) = exchange.own_exact_mean(now) {
            if contributions > 0 {
                hyper.step_on(grad, vectors, exchange);
                self.updates += 1;
            }
            return Ok(());
        }
        let contributions = exchange.mean(
            Round::Exact,
            now,
            vectors,
            |tile, _, z| grad.with(tile, |g| update::copy(g, z)),
            |tile, vectors, mean| hyper.step_on_tile(tile, mean, vectors),
        )?;
        self.updates += u64::from(contributions > 0);
        Ok(())
    }

    /// The same in two passes: the norm of the mean must be known before the mean is used.
    fn exact_step_clipped(
        &mut self,
        hyper: &mut Hyper,
        clip: &mut Clip,
        now: &Now<'_>,
        params: &mut [f32],
        grad: Gradient<'_>,
        exchange: &mut Exchange,
    ) -> Result<()> {
        let contributions = exchange.mean(
            Round::Exact,
            now,
            Vectors { read: [], write: [clip.room()] },
            |tile, _, z| grad.with(tile, |g| update::copy(g, z)),
            |_, Vectors { write: [room], .. }, mean| room.copy_from_slice(mean),
        )?;
        if contributions == 0 {
            return Ok(());
        }
        let (mean, factor) = clip.mean();
        hyper.shrink(factor);
        let vectors = Vectors { read: [], write: [&mut self.m[..], &mut self.v, params] };
        hyper.step_on(mean, vectors, exchange);
        self.updates += 1;
        Ok(())
    }

    /// ‖v‖₁, which is Σ v.
    pub fn variance_norm(&self) -> f64 {
        reduce::sum(&self.v)
    }

    pub fn state(&mut self, share: Share) -> Vec<Entry<'_>> {
        vec![
            Entry::vector("m", share.clone(), &mut self.m),
            Entry::vector("v", share, &mut self.v),
            Entry::word("variance_updates", &mut self.updates),
        ]
    }
}
