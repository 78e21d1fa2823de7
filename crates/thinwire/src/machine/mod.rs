//! Where a worker's vectors live, and the passes over them.
//!
//! An optimizer never touches a vector. It names *passes*: a [`Source`] makes the vector that is averaged, a [`Pass`] does something
//! with a gradient or with a mean. Each is a type of no size, declared in the optimizer's file beside its equation, and its body is one
//! call of a [`kernel`](crate::kernel). The machine knows the rest: parameter groups, gradients in pieces, threads, and tiles that
//! stay in the first-level cache while packing or unpacking is fused with the pass.
//!
//! What crosses the border to [`exchange`](crate::exchange) is bytes of payloads, whose format is fixed to the bit. So the protocol of a
//! mean does not know where vectors live: it calls [`Machine::pack`], [`Machine::serve`], [`Machine::unpack`] and
//! [`Machine::take_back`]. The [`Host`] runs a pass as a generic function, known when the program is compiled. A [`Device`] looks up its
//! own loop by the pass's name; the price is one call through a table for each bucket.

mod device;
mod floats;
mod gradient;
mod groups;
mod host;
mod jumps;
mod pass;
mod resident;
mod residual;
mod state;
mod step;
mod sum;
pub mod tiles;

pub use device::{Call, Coder, Device, Input, Number, Room, Which};
pub use floats::Floats;
pub use gradient::{Gradient, Pieces};
pub use groups::{Group, Groups};
pub use host::Host;
pub use pass::{Keep, Lies, OfGradient, OfParams, Pass, Replace, Source, Vector};
pub use resident::Resident;
pub use residual::Residual;
pub use state::Names;
pub use step::Step;
pub use sum::{Coded, Feedback, Refused, Sum};
pub use tiles::{Read, Threads, Write};

use crate::codec::Precision;
use crate::error::Result;
use crate::kernel::reduce;
use crate::state::Entry;
use std::ops::Range;

/// Where the vectors are.
// There is one in a worker, and a step goes through it; a box would only be one more hop.
#[allow(clippy::large_enum_variant)]
pub enum Machine {
    /// In the host's memory. The caller of a step brings the parameters and the gradient.
    Host(Host),
    /// On a device, with the parameters and the gradient.
    Device(Resident),
}

impl From<Host> for Machine {
    fn from(host: Host) -> Machine {
        Machine::Host(host)
    }
}

impl Machine {
    /// Whether parameters and gradients are on a device, and not the caller's.
    pub fn is_device(&self) -> bool {
        matches!(self, Machine::Device(_))
    }

    /// Makes room for residuals: `up` values of this worker's own, `down` of the blocks it serves.
    pub fn remember(&mut self, up: usize, down: usize, precision: Precision) -> Result<()> {
        match self {
            Machine::Host(host) => host.remember(up, down, precision),
            Machine::Device(device) => device.remember(up, down, precision)?,
        }
        Ok(())
    }

    /// A pass over all values, on the gradient of this step.
    pub fn run<P: Pass>(&mut self, pass: P, step: &mut Step<'_>) -> Result<()> {
        match self {
            Machine::Host(host) => host.run(pass, step),
            Machine::Device(device) => {
                let input = if step.gradient.is_some() { Input::Gradient } else { Input::Nothing };
                device.run::<P>(step, input)?;
            }
        }
        Ok(())
    }

    /// The same on the mean that was [kept](Keep).
    pub fn run_on_kept<P: Pass>(&mut self, pass: P, step: &mut Step<'_>) -> Result<()> {
        match self {
            Machine::Host(host) => host.run_on_kept(pass, step),
            Machine::Device(device) => device.run::<P>(step, Input::Kept)?,
        }
        Ok(())
    }

    /// Codes z = (the source's vector) + e into `bytes`, and leaves in e what the code lost. Without `remembers` there is no e.
    pub(crate) fn pack<S: Source>(
        &mut self,
        source: &S,
        step: &mut Step<'_>,
        remembers: bool,
        coded: Coded<'_>,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        match self {
            Machine::Host(host) => host.pack(source, step, remembers, coded, range, bytes),
            Machine::Device(device) => device.pack::<S>(step, remembers, coded, range, bytes),
        }
    }

    /// The sum or mean of what came, and a residual, coded again; the residual keeps what the code lost.
    pub(crate) fn serve(
        &mut self,
        sum: &Sum<'_>,
        feedback: Feedback,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        match self {
            Machine::Host(host) => host.serve(sum, feedback, range, bytes),
            Machine::Device(device) => device.serve(sum, feedback, range, bytes),
        }
    }

    /// Decodes a mean, and does with it what the pass does. A worker that `compares` takes it off e as well: of a state that all
    /// share, it still has to say how far its own is from the others'.
    pub(crate) fn unpack<P: Pass>(
        &mut self,
        pass: &P,
        step: &mut Step<'_>,
        compares: bool,
        coded: Coded<'_>,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        match self {
            Machine::Host(host) => host.unpack(pass, step, compares, coded, range, bytes),
            Machine::Device(device) => device.unpack::<P>(step, compares, coded, range, bytes),
        }
    }

    /// e ← e + q: a mean was taken without this payload, and all of it is still to be said.
    pub(crate) fn take_back(&mut self, coded: Coded<'_>, bytes: &mut [u8]) -> Result<(), Refused> {
        match self {
            Machine::Host(host) => host.take_back(coded, bytes),
            Machine::Device(device) => device.take_back(coded, bytes),
        }
    }

    /// Whether no value of the gradient is NaN, or larger than [`LARGEST`](crate::kernel::reduce::LARGEST).
    pub fn is_within(&mut self, gradient: Gradient<'_>) -> Result<bool> {
        match self {
            Machine::Host(host) => Ok(host.is_within(gradient)),
            Machine::Device(device) => Ok(device.number(Number::NotFinite)? == 0.0),
        }
    }

    /// The gradient times `factor`: a copy, or none on a device, which changes its own.
    pub fn shorten(&mut self, gradient: Gradient<'_>, factor: f32) -> Result<Option<Vec<f32>>> {
        match self {
            Machine::Host(host) => Ok(Some(host.shorten(gradient, factor))),
            Machine::Device(device) => device.shorten(factor).map(|()| None),
        }
    }

    /// Whether these of the parameters are finite, which are `params` unless they are on a device. There all are copied to be looked at.
    pub fn are_finite(&mut self, range: Range<usize>, params: &[f32]) -> Result<bool> {
        match self {
            Machine::Host(_) => Ok(reduce::all_finite(&params[range])),
            Machine::Device(device) => device.are_finite(),
        }
    }

    /// ‖g‖₂: finite exactly where every value is, because no f64 is too small for the square of an f32.
    pub fn norm(&mut self, gradient: Gradient<'_>) -> Result<f64> {
        match self {
            Machine::Host(host) => Ok(host.norm(gradient)),
            Machine::Device(device) => Ok(device.number(Number::GradientSquared)?.sqrt()),
        }
    }

    /// ‖·‖₂ of the mean that was [kept](Keep).
    pub fn norm_of_kept(&mut self) -> Result<f64> {
        match self {
            Machine::Host(host) => Ok(host.norm_of_kept()),
            Machine::Device(device) => Ok(device.number(Number::KeptSquared)?.sqrt()),
        }
    }

    /// Σ of a vector of the optimizer's own.
    pub fn sum_of(&mut self, vector: Vector) -> Result<f64> {
        match self {
            Machine::Host(host) => Ok(host.sum_of(vector)),
            Machine::Device(device) => device.sum_of(vector),
        }
    }

    /// A digest of these of the parameters, which are `params` unless they are on a device.
    pub fn digest(&mut self, range: Range<usize>, params: &[f32]) -> Result<u64> {
        match self {
            Machine::Host(host) => Ok(host.digest(range, params)),
            Machine::Device(device) => device.digest(range),
        }
    }

    /// The parameters: a device's, or those that the caller has.
    pub(crate) fn copy_params(&mut self, params: &[f32]) -> Result<Vec<f32>> {
        match self {
            Machine::Host(_) => Ok(params.to_vec()),
            Machine::Device(device) => {
                let mut copied = vec![0.0; device.len()];
                device.read_params(&mut copied)?;
                Ok(copied)
            }
        }
    }

    /// Gives these parameters to a device; the host has none of its own.
    pub(crate) fn give_params(&mut self, params: &[f32]) -> Result<()> {
        match self {
            Machine::Host(_) => Ok(()),
            Machine::Device(device) => device.write_params(params),
        }
    }

    /// The optimizer's own vectors, and the residuals if those of the blocks it serves are `owned`.
    pub fn state(&mut self, owned: Option<Range<usize>>) -> Result<Vec<Entry<'_>>> {
        match self {
            Machine::Host(host) => Ok(host.state(owned)),
            Machine::Device(device) => device.state(owned),
        }
    }

    /// e ← factor·e in `range`; a factor of 0 leaves nothing, whatever was there.
    pub(crate) fn scale_residual(&mut self, range: Range<usize>, factor: f32) -> Result<()> {
        match self {
            Machine::Host(host) => host.scale_residual(range, factor),
            Machine::Device(device) => device.scale_residual(range, factor)?,
        }
        Ok(())
    }

    /// e ← 0,  E ← 0.
    pub(crate) fn forget(&mut self) -> Result<()> {
        match self {
            Machine::Host(host) => host.forget(),
            Machine::Device(device) => device.forget()?,
        }
        Ok(())
    }

    /// The first parameter that a pass moved too far since this was last asked.
    pub fn take_jump(&mut self) -> Option<usize> {
        match self {
            Machine::Host(host) => host.take_jump(),
            Machine::Device(device) => device.take_jump(),
        }
    }
}
