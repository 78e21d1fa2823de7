//! Adam with decoupled weight decay (arXiv 1412.6980, 1711.05101): the exact mean of the gradient, every step.
//!
//! Equal to `torch.optim.AdamW` to rounding; the baseline of everything else here.

use super::{Entry, Hyper, Moments, Momentum, Now, Optimizer, Share};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::gradient::Gradient;
use crate::schedule::Round;
use crate::tiles::Threads;

#[derive(Debug)]
pub struct Adam {
    hyper: Hyper,
    moments: Moments,
}

impl Adam {
    pub fn new(hyper: Hyper, len: usize) -> Adam {
        Adam { hyper, moments: Moments::new(len) }
    }
}

impl Optimizer for Adam {
    fn step(
        &mut self,
        now: &Now<'_>,
        params: &mut [f32],
        grad: Gradient<'_>,
        exchange: &mut Exchange,
    ) -> Result<Round> {
        self.moments.exact_step(Momentum::Exact, &mut self.hyper, now, params, grad, exchange)?;
        Ok(Round::Exact)
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
        self.moments.state(Share::Same)
    }

    fn loaded(&mut self, _: bool, _: &mut [f32], _: &Threads) {}
}
