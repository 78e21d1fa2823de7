//! 1-bit Adam (arXiv 2102.02888): exact steps while the variance settles, then the momentum in one bit.
//!
//! For t < T_w a plain Adam step. From then on v is frozen, and
//!
//! ```text
//! m ← coarse mean of (β1·m + (1−β1)·g);   x ← x·(1−γλ) − (γ̂·m/P, within ±c·γ̂)
//! ```
//!
//! c is [`LIMIT`](update::LIMIT), which has the reason.
//!
//! T_w is a number, or found by the run: the first t past the learning rate's warm-up with ‖v_t‖₁/‖v_(t−Δ)‖₁ ≥ 0.96,
//! Δ = 1/(1−β2). v is the same on all workers, so they all find the same.

use super::{Entry, Hyper, Moments, Momentum, Now, Optimizer, Share};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::gradient::Gradient;
use crate::kernel::update;
use crate::schedule::{Calendar, Round};
use crate::tiles::{Threads, Vectors};

const SETTLED: f64 = 0.96;

/// In [`OneBitAdam::frozen_from`]: not yet.
const NOT_YET: u64 = u64::MAX;

/// How the warm-up ends: after so many steps, or when the variance has settled.
#[derive(Debug)]
pub enum WarmUp {
    Steps(u64),
    Auto(Auto),
}

/// The automatic end of the warm-up.
#[derive(Debug)]
pub struct Auto {
    /// The end of the learning rate's warm-up.
    earliest: u64,
    /// ‖v‖₁ after the last Δ steps; step t at t mod Δ.
    norms: Vec<f64>,
}

impl Auto {
    pub fn new(earliest: u64, beta2: f64) -> Auto {
        Auto { earliest, norms: vec![0.0; (1.0 / (1.0 - beta2)).round() as usize] }
    }

    /// Notes ‖v‖₁ after step `t`, and says whether v has settled.
    fn has_settled(&mut self, t: u64, norm: f64) -> bool {
        let delta = self.norms.len() as u64;
        let before = std::mem::replace(&mut self.norms[(t % delta) as usize], norm);
        t >= self.earliest && t >= delta && norm > 0.0 && norm >= SETTLED * before
    }
}

#[derive(Debug)]
pub struct OneBitAdam {
    hyper: Hyper,
    moments: Moments,
    /// T_w.
    frozen_from: u64,
    auto: Option<Auto>,
}

impl OneBitAdam {
    /// Warms up for `warmup` steps, or until `auto` finds that it is enough.
    pub fn new(hyper: Hyper, len: usize, warmup: WarmUp) -> OneBitAdam {
        let (frozen_from, auto) = match warmup {
            WarmUp::Steps(steps) => (steps, None),
            WarmUp::Auto(auto) => (NOT_YET, Some(auto)),
        };
        OneBitAdam { hyper, moments: Moments::new(len), frozen_from, auto }
    }

    fn warm_up(
        &mut self,
        now: &Now<'_>,
        params: &mut [f32],
        grad: Gradient<'_>,
        exchange: &mut Exchange,
    ) -> Result<()> {
        self.moments.exact_step(Momentum::Exact, &mut self.hyper, now, params, grad, exchange)?;
        if let Some(auto) = &mut self.auto
            && auto.has_settled(now.step, self.moments.variance_norm())
        {
            self.frozen_from = now.step + 1;
        }
        Ok(())
    }

    fn coarse_step(
        &mut self,
        now: &Now<'_>,
        params: &mut [f32],
        grad: Gradient<'_>,
        exchange: &mut Exchange,
    ) -> Result<()> {
        self.moments.prepare(&mut self.hyper, now);
        let (hyper, Moments { m, v, .. }) = (&self.hyper, &mut self.moments);
        exchange.mean(
            Round::Coarse,
            now,
            Vectors { read: [v], write: [m, params] },
            |tile, vectors, z| {
                grad.with(tile.clone(), |g| {
                    hyper.each(tile, vectors, |group, part, Vectors { write: [m, _], .. }| {
                        update::blend(&hyper.scalars()[group], &g[part.clone()], m, &mut z[part]);
                    });
                });
            },
            |tile, vectors, mean| {
                hyper.each(tile, vectors, |group, part, Vectors { read: [v], write: [m, x] }| {
                    update::descend(&hyper.scalars()[group], &mean[part], v, m, x);
                });
            },
        )?;
        Ok(())
    }
}

impl Optimizer for OneBitAdam {
    fn step(
        &mut self,
        now: &Now<'_>,
        params: &mut [f32],
        grad: Gradient<'_>,
        exchange: &mut Exchange,
    ) -> Result<Round> {
        let round = Calendar::OneBit { warmup: Some(self.frozen_from) }.round(now.step, now.lr);
        match round {
            Round::Exact => self.warm_up(now, params, grad, exchange)?,
            _ => self.coarse_step(now, params, grad, exchange)?,
        }
        Ok(round)
    }

    fn sync(&mut self, _: &Now<'_>, _: &mut [f32], _: &mut Exchange) -> Result<()> {
        Ok(())
    }

    fn is_synced(&self) -> bool {
        true
    }

    fn take_jump(&mut self) -> Option<usize> {
        self.hyper.take_jump()
    }

    fn state(&mut self) -> Vec<Entry<'_>> {
        let mut state = self.moments.state(Share::Same);
        state.push(Entry::word("frozen_from", &mut self.frozen_from));
        if let Some(auto) = &mut self.auto {
            state.push(Entry::doubles("variance_norms", Share::Same, &mut auto.norms));
        }
        state
    }

    fn loaded(&mut self, _: bool, _: &mut [f32], _: &Threads) {}
}
