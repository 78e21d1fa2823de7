//! The optimizers: Adam, and one question. What is averaged over the workers, when, and how coarsely?
//!
//! | optimizer | exact mean of | coarse mean of |
//! |---|---|---|
//! | [`Adam`] | the gradient, every step | – |
//! | [`OneBitAdam`] (arXiv 2102.02888) | the gradient, during warm-up | the momentum, after it |
//! | [`ZeroOneAdam`] (arXiv 2202.06009) | the gradient, on the steps in T_v | Σ γ̂·m since the last sync, on the steps in T_u |
//! | [`EfficientAdam`] (arXiv 2205.14473) | – | the local update γ̂·m/P, every step |
//!
//! When is decided by sets of steps ([`schedule`](crate::schedule)), how coarsely is [`exchange`](crate::exchange)'s, and where the vectors lie is the
//! [`machine`](crate::machine)'s. What is left is short: a file names its passes, each beside its equation, and says which one when.

mod adam;
mod clip;
mod efficient_adam;
mod moments;
mod one_bit_adam;
pub mod table;
mod zero_one_adam;

pub use adam::Adam;
pub use clip::Clip;
pub use efficient_adam::{EfficientAdam, Theta};
pub use moments::{ENOUGH, Hyper, M, Moments, Momentum, SHORT, V, X};
pub use one_bit_adam::{OneBitAdam, Warmup};
pub use table::{Algorithm, Averages, Options, Row};
pub use zero_one_adam::{Freeze, Sync, ZeroOneAdam};

use crate::error::Result;
use crate::exchange::Exchange;
use crate::machine::{Machine, Step};
use crate::schedule::Round;
use crate::state::Entry;

/// The vectors that an optimizer keeps: their names in checkpoints, and how they pass to another number of workers. The i-th is
/// [`Vector::own(i)`](crate::machine::Vector::own).
pub type Vectors = crate::machine::Names;

/// A rule for moving parameters.
pub trait Optimizer: Send {
    /// One step; says what was averaged.
    fn step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<Round>;

    /// Makes all replicas equal now, whatever the schedule says.
    fn sync(&mut self, _step: &mut Step<'_>, _exchange: &mut Exchange) -> Result<()> {
        Ok(())
    }

    /// Whether all replicas hold the same parameters.
    fn is_synced(&self) -> bool {
        true
    }

    /// The numbers beside the vectors that make the next step what it is.
    fn numbers(&mut self) -> Vec<Entry<'_>>;

    /// Called after the state was loaded. `regrouped`: it comes from another number of workers, `Share::Mean` entries
    /// hold the mean over them, and local progress must be folded in.
    fn loaded(&mut self, _regrouped: bool, _step: &mut Step<'_>, _machine: &mut Machine) -> Result<()> {
        Ok(())
    }
}
