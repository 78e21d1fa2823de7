//! Clipping by norm: a gradient longer than the limit is scaled down to it.
//!
//! Whose norm? An exact step sees the mean gradient and clips that, as everyone does. A coarse or a skipped step never sees
//! it: there each worker clips its own gradient before it enters the momentum.
//!
//! At which limit? A worker's own gradient is the mean's and noise that the mean of n has √n times less of. Where noise is most of
//! it, its norm is √n times the mean's, and under the mean's limit nearly every one would be clipped: the momentum would be
//! shorter than the variance, which comes from exact steps, expects. So own gradients have a limit √n times as long, where
//! the variance is the mean's. Efficient-Adam's variance is of own gradients too, and its limit is the one given.

use crate::kernel::{reduce, update};
use crate::memory::Floats;

/// The limit, and room for a vector that had to be scaled.
#[derive(Debug)]
pub struct Clip {
    /// Of the mean.
    limit: f64,
    /// Of a worker's own gradient.
    own: f64,
    room: Floats,
    clipped: bool,
}

impl Clip {
    pub fn new(limit: f64, own: f64, len: usize) -> Clip {
        Clip { limit, own, room: Floats::zeroed(len), clipped: false }
    }

    /// Where the mean of an exact round is kept, for its norm to be known before it is used.
    pub fn room(&mut self) -> &mut [f32] {
        &mut self.room
    }

    /// Scales what is in the room down to the limit, if it is longer.
    pub fn shorten(&mut self) -> &[f32] {
        if let Some(factor) = factor(&self.room, self.limit) {
            update::scale(factor, &mut self.room);
        }
        &self.room
    }

    /// Looks at this worker's own gradient; [`Clip::of`] then tells what to use.
    pub fn look_at(&mut self, grad: &[f32]) {
        let factor = factor(grad, self.own);
        self.clipped = factor.is_some();
        if let Some(factor) = factor {
            update::copy(grad, &mut self.room);
            update::scale(factor, &mut self.room);
        }
    }

    /// `grad`, which was looked at, or what it was shortened to.
    pub fn of<'a>(&'a self, grad: &'a [f32]) -> &'a [f32] {
        if self.clipped { &self.room } else { grad }
    }
}

/// What `x` has to be multiplied with, if it is longer than `limit`.
fn factor(x: &[f32], limit: f64) -> Option<f32> {
    let norm = reduce::sum_of_squares(x).sqrt();
    (norm > limit).then(|| (limit / norm) as f32)
}
