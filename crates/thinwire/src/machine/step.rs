//! The step at hand: what the caller gave, and what it comes to for each parameter group.

use super::{Gradient, Groups};
use crate::kernel::update::Scalars;

/// What one step works on.
pub struct Step<'a> {
    /// t, from 0.
    pub t: u64,
    /// γ before the groups scale it: what the schedules look at.
    pub lr: f32,
    /// The parameter groups.
    pub groups: &'a Groups,
    /// γ of each parameter group.
    pub rates: &'a [f64],
    /// False when this worker's gradient is not finite and is to be left out.
    pub contributes: bool,
    /// The part of the vector that a coarse mean is of, where there are several.
    pub part: usize,
    /// How much this worker's vector counts in a mean.
    pub weight: u32,
    /// Of this worker's gradient, where it may have to be clipped.
    pub norm: Option<f64>,
    /// None in a sync between steps.
    pub gradient: Option<Gradient<'a>>,
    /// x; empty if it is on a device.
    pub params: &'a mut [f32],
    /// What the passes need, for each parameter group.
    pub scalars: Vec<Scalars>,
}

/// A parameter group in a step.
pub struct Group {
    /// γ.
    pub rate: f64,
    /// λ.
    pub weight_decay: f64,
    /// False if its learning rate is always 0.
    pub moves: bool,
}

impl<'a> Step<'a> {
    /// Between two steps: no gradient, and nothing moves by itself.
    pub fn idle(t: u64, groups: &'a Groups, rates: &'a [f64], params: &'a mut [f32]) -> Step<'a> {
        let (contributes, weight, scalars) = (true, 1, Vec::new()); // which takes no memory yet
        Step { t, lr: 0.0, groups, rates, contributes, part: 0, weight, norm: None, gradient: None, params, scalars }
    }

    /// Computes the scalars of every parameter group.
    pub fn prepare(&mut self, mut of: impl FnMut(Group) -> Scalars) {
        let groups = self.groups;
        let group = |(i, rate): (usize, &f64)| Group {
            rate: *rate,
            weight_decay: groups.weight_decay[i],
            moves: groups.moves(i),
        };
        self.scalars.clear();
        self.scalars.extend(self.rates.iter().enumerate().map(|each| of(group(each))));
    }

    /// What the gradient, or the mean, is multiplied with before it is used.
    pub fn shrink(&mut self, factor: f32) {
        self.scalars.iter_mut().for_each(|k| k.shrink = factor);
    }
}
