//! Clipping by norm: a gradient longer than the limit is scaled down to it.
//!
//! Whose norm? An exact step sees the mean gradient and clips that, as everyone does. A coarse or a skipped step never sees
//! it: there each worker clips its own gradient before it enters the momentum.
//!
//! At which limit? A worker's own gradient is the mean's and noise that the mean of n has √n times less of. Where noise is most of
//! it, its norm is √n times the mean's, and under the mean's limit nearly every one would be clipped: the momentum would be
//! shorter than the variance, which comes from exact steps, expects. So own gradients have a limit √n times as long, where
//! the variance is the mean's. Efficient-Adam's variance is of own gradients too, and its limit is the one given.

use crate::gradient::Gradient;
use crate::memory::Floats;

/// The limits, and room for a mean.
#[derive(Debug)]
pub struct Clip {
    /// Of the mean.
    limit: f64,
    /// Of a worker's own gradient.
    own: f64,
    room: Floats,
}

impl Clip {
    /// `len` is 0 where no mean is ever exact.
    pub fn new(limit: f64, own: f64, len: usize) -> Clip {
        Clip { limit, own, room: Floats::zeroed(len) }
    }

    /// Where the mean of an exact round is kept, for its norm to be known before it is used.
    pub fn room(&mut self) -> &mut [f32] {
        &mut self.room
    }

    /// What is in the room, and what it has to be multiplied with.
    pub fn mean(&self) -> (Gradient<'_>, f32) {
        let mean = Gradient::Whole(&self.room);
        (mean, shrink(mean.norm(), self.limit))
    }

    /// What this worker's own gradient, of this norm, has to be multiplied with.
    pub fn of_own(&self, norm: f64) -> f32 {
        shrink(norm, self.own)
    }
}

fn shrink(norm: f64, limit: f64) -> f32 {
    if norm > limit { (limit / norm) as f32 } else { 1.0 }
}
