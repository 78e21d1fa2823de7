//! Jumps: steps that moved a parameter farther than any ordinary step does.
//!
//! With the limits of this crate a jump means that something is wrong: a learning rate that fell faster than residuals can follow, or
//! a β2 so near to 1 that v hardly counts. It is noticed inside a pass, on any thread; whoever knows the tensors' names reports it.

use std::sync::atomic::{AtomicUsize, Ordering};

const NONE: usize = usize::MAX;

/// The first parameter that jumped.
#[derive(Debug)]
pub struct FirstJump(AtomicUsize);

impl Default for FirstJump {
    fn default() -> FirstJump {
        FirstJump(AtomicUsize::new(NONE))
    }
}

impl FirstJump {
    pub fn note(&self, index: usize) {
        self.0.fetch_min(index, Ordering::Relaxed);
    }

    pub fn take(&mut self) -> Option<usize> {
        let first = std::mem::replace(self.0.get_mut(), NONE);
        (first != NONE).then_some(first)
    }
}
