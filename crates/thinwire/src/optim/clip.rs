//! Clipping by norm: a gradient longer than the limit is scaled down to it.
//!
//! Whose norm? An exact step sees the mean gradient and clips that, as everyone does. A coarse or a skipped step never sees
//! it: there each worker clips its own gradient before it enters the momentum.
//!
//! At which limit? A worker's own gradient is the mean's plus noise, of which the mean of n workers has √n times less. Where noise is
//! most of it, its norm is √n times the mean's, and under the mean's limit nearly every one would be clipped: the momentum would be
//! shorter than the variance, which comes from exact steps, expects. So own gradients have a limit √n times as long, where
//! the variance is the mean's. Efficient-Adam's variance is of own gradients too, and its limit is the one given.

/// The limits.
#[derive(Clone, Copy, Debug)]
pub struct Clip {
    /// Of the mean.
    limit: f64,
    /// Of a worker's own gradient.
    own: f64,
}

impl Clip {
    /// These limits, of the mean and of an own gradient.
    pub fn new(limit: f64, own: f64) -> Clip {
        Clip { limit, own }
    }

    /// What a mean of this norm has to be multiplied with.
    pub fn of_mean(self, norm: f64) -> f32 {
        shrink(norm, self.limit)
    }

    /// What this worker's own gradient, of this norm, has to be multiplied with.
    pub fn of_own(self, norm: f64) -> f32 {
        shrink(norm, self.own)
    }
}

fn shrink(norm: f64, limit: f64) -> f32 {
    if norm > limit { (limit / norm) as f32 } else { 1.0 }
}
