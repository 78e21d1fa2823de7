//! The optimizers: Adam, and one question. What is averaged over the workers, when, and how coarsely?
//!
//! | optimizer | exact mean of | coarse mean of |
//! |---|---|---|
//! | [`Adam`] | the gradient, every step | – |
//! | [`OneBitAdam`] (arXiv 2102.02888) | the gradient, during warm-up | the momentum, after it |
//! | [`ZeroOneAdam`] (arXiv 2202.06009) | the gradient, on the steps in T_v | Σ γ̂·m since the last sync, on the steps in T_u |
//! | [`EfficientAdam`] (arXiv 2205.14473) | – | the local update γ̂·m/P, every step |
//!
//! When is [`schedule`](crate::schedule)'s business, how coarsely is [`exchange`](crate::exchange)'s. What is left is short.
//! Adding an optimizer is one file here, one arm in [`config`](crate::config), and one line in `tests/battery.rs`.

mod adam;
mod clip;
mod efficient_adam;
mod jumps;
mod moments;
mod one_bit_adam;
mod state;
mod zero_one_adam;

pub use adam::Adam;
pub use clip::Clip;
pub use efficient_adam::{EfficientAdam, Theta};
pub(crate) use jumps::Jumps;
pub use moments::{Hyper, Moments, Momentum};
pub use one_bit_adam::{Auto, OneBitAdam, WarmUp};
pub use state::{Entry, Share, Slot};
pub use zero_one_adam::ZeroOneAdam;

use crate::error::Result;
use crate::exchange::Exchange;
use crate::gradient::Gradient;
use crate::schedule::Round;
use crate::tiles::Threads;

/// The step at hand.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    /// t, from 0.
    pub step: u64,
    /// γ before the groups scale it: what the schedules look at.
    pub lr: f32,
    /// γ of each parameter group.
    pub rates: &'a [f64],
    /// False when this worker's gradient is not finite and is to be left out.
    pub contributes: bool,
    /// Of this worker's gradient, where it may have to be clipped.
    pub norm: Option<f64>,
}

/// A rule for moving parameters.
pub trait Optimizer: Send {
    /// One step; says what was averaged.
    fn step(&mut self, now: &Now<'_>, params: &mut [f32], grad: Gradient<'_>, exchange: &mut Exchange)
    -> Result<Round>;

    /// Makes all replicas equal now, whatever the schedule says. Does nothing where they are.
    fn sync(&mut self, now: &Now<'_>, params: &mut [f32], exchange: &mut Exchange) -> Result<()>;

    /// Whether all replicas hold the same parameters.
    fn is_synced(&self) -> bool;

    /// The first parameter that [jumped](crate::kernel::update::JUMP) since this was last asked.
    fn take_jump(&mut self) -> Option<usize>;

    /// Everything that makes the next step what it is: listed once, saved and loaded by others.
    fn state(&mut self) -> Vec<Entry<'_>>;

    /// Called after the state was loaded. `regrouped`: it comes from another number of workers, [`Share::Mean`] entries
    /// hold the mean over them, and local progress must be folded in.
    fn loaded(&mut self, regrouped: bool, params: &mut [f32], threads: &Threads);
}
