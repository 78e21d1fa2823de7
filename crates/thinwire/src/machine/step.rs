//! The step at hand: what the caller gave, and what it comes to for each parameter group.

use super::{Gradient, Groups};
use crate::kernel::update::Scalars;

/// What one step works on.
pub struct Step<'a> {
    /// t, from 0.
    pub t: u64,
    /// γ before the groups scale it: what the schedules look at.
    pub lr: f32,
    pub groups: &'a Groups,
    /// γ of each parameter group.
    pub rates: &'a [f64],
    /// False when this worker's gradient is not finite and is to be left out.
    pub contributes: bool,
    /// Of this worker's gradient, where it may have to be clipped.
    pub norm: Option<f64>,
    /// None in a sync between steps.
    pub gradient: Option<Gradient<'a>>,
    pub params: &'a mut [f32],
    /// What the passes need, for each parameter group.
    pub scalars: Vec<Scalars>,
}

impl<'a> Step<'a> {
    /// Between two steps: no gradient, and nothing moves by itself.
    pub fn idle(t: u64, groups: &'a Groups, rates: &'a [f64], params: &'a mut [f32]) -> Step<'a> {
        let (contributes, scalars) = (true, Vec::new()); // which takes no memory yet
        Step { t, lr: 0.0, groups, rates, contributes, norm: None, gradient: None, params, scalars }
    }
}
