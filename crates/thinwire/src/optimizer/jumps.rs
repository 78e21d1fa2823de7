//! Jumps: steps that moved a parameter farther than any ordinary step does.
//!
//! With the limits of this crate a jump means that something is wrong: a learning rate that fell faster than residuals can follow, a
//! β2 so near to 1 that v hardly counts. It is noticed inside the passes, on any thread, and told by whoever knows the tensors' names.

use crate::kernel::update::JUMP;
use std::sync::atomic::{AtomicUsize, Ordering};

const NONE: usize = usize::MAX;

/// The first parameter that jumped, and what an ordinary step is.
#[derive(Debug)]
pub struct Jumps {
    first: AtomicUsize,
    /// The highest γ̂ so far: at the end of a schedule residuals are still in the units of its middle.
    highest: f64,
}

impl Default for Jumps {
    fn default() -> Jumps {
        Jumps { first: AtomicUsize::new(NONE), highest: 0.0 }
    }
}

impl Jumps {
    /// How far a step at `rate` may move a parameter before it is a jump.
    pub fn threshold(&mut self, rate: f64) -> f32 {
        self.highest = self.highest.max(rate);
        JUMP * self.highest as f32
    }

    pub fn note(&self, index: usize) {
        self.first.fetch_min(index, Ordering::Relaxed);
    }

    pub fn take(&mut self) -> Option<usize> {
        let first = std::mem::replace(self.first.get_mut(), NONE);
        (first != NONE).then_some(first)
    }
}
