//! Efficient-Adam (arXiv 2205.14473): every worker keeps its own moments; the update itself is averaged, coarsely.
//!
//! ```text
//! m ← β·m + (1−β)·g;   v ← θ·v + (1−θ)·g²                     this worker's own, never averaged
//! x ← x·(1−γλ) − coarse mean of γ̂·m/P,    P = √(v/(1−Πθ)) + ε
//! ```
//!
//! θ is β2, or θ_t = 1 − β2/t with t from 1. For any codec, and λ = 0, y = x − mean e − E moves by exactly the mean of the
//! local updates.

use super::{Entry, Hyper, Moments, Now, Optimizer, Share};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::gradient::Gradient;
use crate::kernel::update;
use crate::schedule::Round;
use crate::tiles::{Threads, Vectors};
use serde::{Deserialize, Serialize};

/// How much of v each step keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Theta {
    /// θ = β2.
    #[default]
    Constant,
    /// θ_t = 1 − β2/t, t from 1.
    OneMinusOverT,
}

impl Theta {
    fn at(self, step: u64, beta2: f64) -> f64 {
        match self {
            Theta::Constant => beta2,
            Theta::OneMinusOverT => 1.0 - beta2 / (step + 1) as f64,
        }
    }
}

pub struct EfficientAdam {
    hyper: Hyper,
    theta: Theta,
    moments: Moments,
    /// Πθ over this worker's updates of v.
    forgotten: f64,
}

impl EfficientAdam {
    pub fn new(hyper: Hyper, theta: Theta, len: usize) -> EfficientAdam {
        EfficientAdam { hyper, theta, moments: Moments::new(len), forgotten: 1.0 }
    }
}

impl Optimizer for EfficientAdam {
    fn step(
        &mut self,
        now: &Now<'_>,
        params: &mut [f32],
        grad: Gradient<'_>,
        exchange: &mut Exchange,
    ) -> Result<Round> {
        let theta = self.theta.at(now.step, self.hyper.betas.1);
        if now.contributes {
            self.forgotten *= theta;
            self.moments.updates += 1;
        }
        self.hyper.prepare(now, theta, self.forgotten);
        let (hyper, Moments { m, v, .. }) = (&self.hyper, &mut self.moments);
        exchange.mean(
            Round::Coarse,
            now,
            Vectors { read: [], write: [m, v, params] },
            |tile, vectors, z| {
                grad.with(tile.clone(), |g| {
                    hyper.each(tile, vectors, |group, part, Vectors { write: [m, v, _], .. }| {
                        update::own_update(&hyper.scalars()[group], &g[part.clone()], m, v, &mut z[part]);
                    });
                });
            },
            |tile, vectors, mean| {
                hyper.each(tile.clone(), vectors, |group, part, Vectors { write: [_, _, x], .. }| {
                    let (k, mean) = (&hyper.scalars()[group], &mean[part.clone()]);
                    if hyper.groups.moves(group)
                        && update::subtract(k, mean, x)
                        && let Some(place) = mean.iter().position(|update| update.abs() > k.jump)
                    {
                        hyper.note_jump(tile.start + part.start + place);
                    }
                });
            },
        )?;
        Ok(Round::Coarse)
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
        let mut state = self.moments.state(Share::Mean);
        // Linear in v: the mean over workers is the right correction of the mean of their v.
        state.push(Entry::doubles("variance_forgotten", Share::Mean, std::slice::from_mut(&mut self.forgotten)));
        state
    }

    fn loaded(&mut self, _: bool, _: &mut [f32], _: &Threads) {}
}
