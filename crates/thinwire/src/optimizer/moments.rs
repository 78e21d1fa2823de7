//! The two moments, and the exact Adam step that three of the optimizers share.
//!
//! ```text
//! ḡ = exact mean of g;   m ← β1·m + (1−β1)·ḡ;   v ← β2·v + (1−β2)·ḡ²;   j ← j+1
//! x ← x·(1−γλ) − γ̂·m/P,    P = √(v/(1−β2^j)) + ε,    γ̂ = γ/(1−β1^(t+1))
//! ```
//!
//! j counts updates of v, not steps: with a stale v that is the right correction.

use super::{Clip, Entry, Now, Share};
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
    scalars: Vec<Scalars>,
}

impl Hyper {
    pub fn new(betas: (f64, f64), eps: f64, bias_correction: bool, groups: Groups, clip: Option<Clip>) -> Hyper {
        let scalars = Vec::with_capacity(groups.count());
        Hyper { betas, eps, bias_correction, groups, clip, scalars }
    }

    /// Computes this step's scalars. `forgotten` is the weight that v still gives to its start: β2^j.
    ///
    /// They are for this worker's own gradient; for a mean `shrink` replaces what clips it.
    pub fn prepare(&mut self, now: &Now<'_>, beta2: f64, forgotten: f64, floor: f32) {
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
                floor,
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
            mean.with(tile.clone(), |mean| {
                self.each(tile, vectors, |group, part, Vectors { write: [m, v, x], .. }| {
                    update::adam(&self.scalars[group], &mean[part], m, v, x);
                });
            });
        });
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

/// m, v and j.
#[derive(Debug)]
pub struct Moments {
    pub m: Floats,
    pub v: Floats,
    /// j: how often v was updated.
    pub updates: u64,
    /// What stands for v where v = 0; see [`Moments::set_floor`].
    pub floor: f32,
}

impl Moments {
    pub fn new(len: usize) -> Moments {
        Moments { m: Floats::zeroed(len), v: Floats::zeroed(len), updates: 0, floor: 0.0 }
    }

    /// Computes the scalars of a step that leaves v alone.
    pub fn prepare(&self, hyper: &mut Hyper, now: &Now<'_>) {
        let beta2 = hyper.betas.1;
        hyper.prepare(now, beta2, beta2.powf(self.updates as f64), self.floor);
    }

    /// The step above. Nothing moves when no worker has a finite gradient.
    pub fn exact_step(
        &mut self,
        hyper: &mut Hyper,
        now: &Now<'_>,
        params: &mut [f32],
        grad: Gradient<'_>,
        exchange: &mut Exchange,
    ) -> Result<()> {
        let beta2 = hyper.betas.1;
        hyper.prepare(now, beta2, beta2.powf(self.updates as f64 + 1.0), self.floor);
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
            |tile, vectors, mean| {
                hyper.each(tile, vectors, |group, part, Vectors { write: [m, v, x], .. }| {
                    update::adam(&hyper.scalars[group], &mean[part], m, v, x);
                });
            },
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

    /// Takes the mean of v for what stands where v = 0.
    ///
    /// Such a coordinate had no gradient at any variance update. A coarse mean cannot say zero beside values that are
    /// not: it says ±s, and s/ε would throw the parameter away. With the mean of v in the denominator a coordinate that
    /// stays without gradient moves no further than its bounded residue, and one that gets its first gradient late,
    /// such as the embedding of a rare token, learns at an ordinary pace. Without any v at all, nothing moves.
    pub fn set_floor(&mut self) {
        let mean = (self.variance_norm() / self.v.len().max(1) as f64) as f32;
        self.floor = if mean > 0.0 { mean } else { f32::INFINITY };
    }

    pub fn state(&mut self, share: Share) -> Vec<Entry<'_>> {
        vec![
            Entry::vector("m", share.clone(), &mut self.m),
            Entry::vector("v", share, &mut self.v),
            Entry::word("variance_updates", &mut self.updates),
        ]
    }
}
