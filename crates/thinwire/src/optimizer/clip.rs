//! Clipping by norm: a gradient longer than the limit is scaled down to it.
//!
//! Whose norm? An exact step sees the mean gradient and clips that, as everyone does. A coarse or a skipped step never sees
//! it: there each worker clips its own gradient before it enters the momentum. The mean is never longer than its longest
//! part, so the limit holds either way; workers' own gradients are noisier than their mean, so they are clipped more often.

use crate::kernel::{reduce, update};
use crate::memory::Floats;

/// The limit, and room for a vector that had to be scaled.
#[derive(Debug)]
pub struct Clip {
    limit: f64,
    room: Floats,
    clipped: bool,
}

impl Clip {
    pub fn new(limit: f64, len: usize) -> Clip {
        Clip { limit, room: Floats::zeroed(len), clipped: false }
    }

    /// Where the mean of an exact round is kept, for its norm to be known before it is used.
    pub fn room(&mut self) -> &mut [f32] {
        &mut self.room
    }

    /// Scales what is in the room down to the limit, if it is longer.
    pub fn shorten(&mut self) -> &[f32] {
        if let Some(factor) = self.factor(&self.room) {
            update::scale(factor, &mut self.room);
        }
        &self.room
    }

    /// Looks at this worker's own gradient; [`Clip::of`] then tells what to use.
    pub fn look_at(&mut self, grad: &[f32]) {
        let factor = self.factor(grad);
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

    /// What a vector has to be multiplied with, if it is too long.
    fn factor(&self, x: &[f32]) -> Option<f32> {
        let norm = reduce::sum_of_squares(x).sqrt();
        (norm > self.limit).then(|| (self.limit / norm) as f32)
    }
}
