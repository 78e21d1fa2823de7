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
mod interval;
mod jumps;
mod pass;
mod ranges;
mod reduction;
mod resident;
mod residual;
mod state;
mod step;
mod stripes;
mod sum;
pub mod tiles;

pub use device::{Call, Coder, Device, Input, Number, Room, Which};
pub use floats::Floats;
pub use gradient::{Gradient, Pieces};
pub use groups::{Group, Groups};
pub use host::Host;
pub use interval::Interval;
pub use pass::{Keep, Lies, OfGradient, OfParams, Pass, Replace, Source, Vector};
pub use ranges::Ranges;
pub use reduction::{Reduction, Totals};
pub use resident::Resident;
pub use residual::Residual;
pub use state::Names;
pub use step::Step;
pub use stripes::Stripes;
pub use sum::{Coded, Feedback, Refused, Sum};
pub use tiles::{Read, Threads, Write};

use crate::codec::Keeping;
use crate::error::Result;
use crate::state::{Entry, Field};
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

/// The same call of whichever it is.
macro_rules! on {
    ($machine:expr, $each:ident => $call:expr) => {
        match $machine {
            Machine::Host($each) => $call,
            Machine::Device($each) => $call,
        }
    };
}

impl Machine {
    /// Whether parameters and gradients are on a device, and not the caller's.
    pub fn is_device(&self) -> bool {
        matches!(self, Machine::Device(_))
    }

    /// Makes room for residuals: `up` values of this worker's own, `down` of the blocks it serves.
    pub fn remember(&mut self, up: usize, down: usize, keeping: Keeping) -> Result<()> {
        on!(self, machine => machine.remember(up, down, keeping))
    }

    /// A pass over all values, on the gradient of this step.
    pub fn run<P: Pass>(&mut self, pass: P, step: &mut Step<'_>) -> Result<()> {
        on!(self, machine => machine.run(pass, step))
    }

    /// A pass over one part of the values, without a gradient.
    pub fn run_in<P: Pass>(&mut self, stripes: Stripes, pass: P, step: &mut Step<'_>) -> Result<()> {
        on!(self, machine => machine.run_in(stripes, pass, step))
    }

    /// The same on the mean that was [kept](Keep).
    pub fn run_on_kept<P: Pass>(&mut self, pass: P, step: &mut Step<'_>) -> Result<()> {
        on!(self, machine => machine.run_on_kept(pass, step))
    }

    /// A pass over one part of the values, on a vector of the optimizer's own, which is 0 afterwards; the pass must not name it.
    pub fn spend<P: Pass>(&mut self, stripes: Stripes, pass: P, step: &mut Step<'_>, vector: Vector) -> Result<()> {
        on!(self, machine => machine.spend(stripes, pass, step, vector))
    }

    /// A pass over all values that takes neither a gradient nor a mean, with [`Scalars::rate`](crate::kernel::update::Scalars::rate) times
    /// the factor of the range that a value is in.
    pub fn run_scaled<P: Pass>(
        &mut self,
        pass: P,
        step: &mut Step<'_>,
        ranges: &Ranges,
        factors: &[f64],
    ) -> Result<()> {
        on!(self, machine => machine.run_scaled(pass, step, ranges, factors))
    }

    /// What each of the ranges comes to: tile by tile from its start, and the tiles in order.
    pub fn reduce<R: Reduction>(
        &mut self,
        reduction: R,
        step: &mut Step<'_>,
        ranges: &Ranges,
        totals: &mut [Totals],
    ) -> Result<()> {
        on!(self, machine => machine.reduce(reduction, step, ranges, totals))
    }

    /// Codes z = (the source's vector) + e into `bytes`, and leaves in e what the code lost; `feedback` says which e, if any.
    pub(crate) fn pack<S: Source>(
        &mut self,
        source: &S,
        step: &mut Step<'_>,
        feedback: Feedback,
        coded: Coded<'_>,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        on!(self, machine => machine.pack(source, step, feedback, coded, range, bytes))
    }

    /// The sum or mean of what came, and a residual, coded again; the residual keeps what the code lost.
    pub(crate) fn serve(
        &mut self,
        sum: &Sum<'_>,
        feedback: Feedback,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        on!(self, machine => machine.serve(sum, feedback, range, bytes))
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
        on!(self, machine => machine.unpack(pass, step, compares, coded, range, bytes))
    }

    /// e ← e + q: a mean was taken without this payload, and all of it is still to be said.
    pub(crate) fn take_back(&mut self, coded: Coded<'_>, bytes: &mut [u8]) -> Result<(), Refused> {
        on!(self, machine => machine.take_back(coded, bytes))
    }

    /// Whether no value of the gradient is NaN, or larger than [`LARGEST`](crate::kernel::reduce::LARGEST).
    pub fn is_within(&mut self, gradient: Gradient<'_>) -> Result<bool> {
        on!(self, machine => machine.is_within(gradient))
    }

    /// The gradient times `factor`: a copy, or none on a device, which changes its own.
    pub fn shorten(&mut self, gradient: Gradient<'_>, factor: f32) -> Result<Option<Vec<f32>>> {
        on!(self, machine => machine.shorten(gradient, factor))
    }

    /// Whether these of the parameters are finite, which are `params` unless they are on a device. There all are copied to be looked at.
    pub fn are_finite(&mut self, range: Range<usize>, params: &[f32]) -> Result<bool> {
        on!(self, machine => machine.are_finite(range, params))
    }

    /// ‖g‖₂: finite exactly where every value is, because no f64 is too small for the square of an f32.
    pub fn norm(&mut self, gradient: Gradient<'_>) -> Result<f64> {
        on!(self, machine => machine.norm(gradient))
    }

    /// ‖·‖₂ of the mean that was [kept](Keep).
    pub fn norm_of_kept(&mut self) -> Result<f64> {
        on!(self, machine => machine.norm_of_kept())
    }

    /// Σ of a vector of the optimizer's own.
    pub fn sum_of(&mut self, vector: Vector) -> Result<f64> {
        on!(self, machine => machine.sum_of(vector))
    }

    /// A copy of a vector of the optimizer's own.
    pub(crate) fn copy_of(&mut self, vector: Vector) -> Result<Vec<f32>> {
        on!(self, machine => machine.copy_of(vector))
    }

    /// A digest of these of the parameters, which are `params` unless they are on a device.
    pub fn digest(&mut self, range: Range<usize>, params: &[f32]) -> Result<u64> {
        on!(self, machine => machine.digest(range, params))
    }

    /// A digest of these values of a vector of the optimizer's own.
    pub fn digest_of(&mut self, vector: Vector, range: Range<usize>) -> Result<u64> {
        on!(self, machine => machine.digest_of(vector, range))
    }

    /// The parameters: a device's, or those that the caller has.
    pub(crate) fn copy_params(&mut self, params: &[f32]) -> Result<Vec<f32>> {
        on!(self, machine => machine.copy_params(params))
    }

    /// Gives these parameters to a device; the host has none of its own.
    pub(crate) fn give_params(&mut self, params: &[f32]) -> Result<()> {
        on!(self, machine => machine.give_params(params))
    }

    /// The optimizer's own vectors, and the residuals if those of the blocks it serves are `owned`.
    pub fn state(&mut self, owned: Option<Range<usize>>) -> Result<Vec<Entry<'_>>> {
        on!(self, machine => machine.state(owned))
    }

    /// What [`Machine::state`] lists, without the numbers: those of a device stay there.
    pub fn fields(&mut self, owned: Option<Range<usize>>) -> Vec<Field> {
        match self {
            Machine::Host(host) => host.state(owned).iter().flatten().map(Entry::field).collect(),
            Machine::Device(device) => device.fields(owned),
        }
    }

    /// Drops the copy of a device's vectors that [`Machine::state`] made, which nobody has changed.
    pub(crate) fn was_only_read(&mut self) {
        if let Machine::Device(device) = self {
            device.drop_copy();
        }
    }

    /// Has a device take what was written to the copy of its vectors.
    pub(crate) fn close(&mut self) -> Result<()> {
        match self {
            Machine::Host(_) => Ok(()),
            Machine::Device(device) => device.close(),
        }
    }

    /// e ← factor·e in `range`; a factor of 0 leaves nothing, whatever was there.
    pub(crate) fn scale_residual(&mut self, range: Range<usize>, factor: f32) -> Result<()> {
        on!(self, machine => machine.scale_residual(range, factor))
    }

    /// e ← 0,  E ← 0.
    pub(crate) fn forget(&mut self) -> Result<()> {
        on!(self, machine => machine.forget())
    }

    /// The first parameter that a pass moved too far since this was last asked.
    pub fn take_jump(&mut self) -> Option<usize> {
        on!(self, machine => machine.take_jump())
    }
}
