//! A device: memory that is not the host's, such as a GPU's, and its own loops over it.
//!
//! The device holds the parameters, the gradient, the optimizer's vectors and the residuals. The engine tells it by name what to run,
//! with the scalars of each parameter group; what comes back to the host is payload bytes and single numbers. A device gives the same
//! bits as the host. That needs three things beside IEEE arithmetic without contraction:
//!
//! - payloads as docs/wire-format.md has them, and the expressions of [`kernel::update`](crate::kernel::update) in their order;
//! - sums over all values tile by tile ([`TILE`](super::tiles::TILE) values), each tile by
//!   [`kernel::reduce`](crate::kernel::reduce), then over the tiles in order;
//! - a sum of payloads in the order of the messages, in f32, divided once at the end.
//!
//! A pass or a codec that a device lacks is an error with its name. Nothing moves to the host silently.

use super::{Feedback, Refused, Sum};
use crate::codec::{CodecName, Precision};
use crate::error::Result;
use crate::kernel::update::Scalars;
use std::ops::Range;

/// What a device has to keep, told once before anything else.
#[derive(Clone, Debug, PartialEq)]
pub struct Room {
    /// The names of the optimizer's own vectors, each as long as the parameters, 0 at first.
    pub vectors: Vec<&'static str>,
    /// Whether a mean is kept until its norm is known: the pass `keep` writes it, [`Input::Kept`] reads it.
    pub keeps: bool,
    /// The values of e, this worker's residual, 0 at first: as many as there are parameters, or none.
    pub up: usize,
    /// The values of E, the residual of the blocks that this worker owns, 0 at first.
    pub down: usize,
    /// How both are kept.
    pub residual: Precision,
    /// Where each parameter group ends.
    pub ends: Vec<usize>,
}

/// A loop that the device is asked to run: the `NAME` of a [`Pass`](super::Pass) or [`Source`](super::Source).
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Its name.
    pub name: &'static str,
    /// The scalars of each parameter group.
    pub scalars: &'a [Scalars],
}

/// What a pass without the network works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Input {
    /// The gradient of this step.
    Gradient,
    /// The mean that was kept.
    Kept,
    /// Its vectors alone.
    Nothing,
}

/// A codec by name, and the values in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coder {
    /// The codec.
    pub codec: CodecName,
    /// Values in a block.
    pub block: usize,
}

/// One number out of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Number {
    /// 0 exactly where no value of the gradient is NaN, or larger than 2⁶²: [`all_within`](crate::kernel::reduce::all_within).
    NotFinite,
    /// ‖g‖₂², infinite or NaN where some value is.
    GradientSquared,
    /// ‖·‖₂² of the mean that was kept.
    KeptSquared,
    /// Σ of one of the optimizer's own vectors.
    Sum(&'static str),
}

/// A vector that is copied to or from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Which {
    /// x.
    Params,
    /// One of the optimizer's own.
    Own(&'static str),
    /// e.
    Up,
    /// E.
    Down,
}

/// Memory that is not the host's, and loops over it. The module says what it must do.
///
/// `bytes` and `payload` are in the host's memory and complete when a method returns. A method that returns the first jump looks for
/// a parameter that moved farther than [`Scalars::jump`], as the pass of that name does on the host.
pub trait Device: Send {
    /// What errors call it, such as `cuda:0`.
    fn name(&self) -> String;

    /// The number of parameters it holds.
    fn len(&self) -> usize;

    /// Whether it holds none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it has a loop under this name.
    fn has_pass(&self, name: &str) -> bool;

    /// Whether it has this codec.
    fn has_codec(&self, codec: CodecName) -> bool;

    /// Makes room for the state.
    fn reserve(&mut self, room: &Room) -> Result<()>;

    /// Runs a pass without the network; returns the first jump.
    fn pass(&mut self, call: Call<'_>, input: Input) -> Result<Option<usize>>;

    /// Codes z = (the source's vector) + e of the values in `range`; e keeps what the code lost. Without `remembers` there is no e.
    /// A value that no code can hold is [`Refused::Overflow`].
    fn pack(
        &mut self,
        call: Call<'_>,
        remembers: bool,
        coder: Coder,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused>;

    /// Adds up payloads and a residual and codes the sum, for the values in `range`; the residual keeps what the code lost.
    fn serve(
        &mut self,
        sum: &Sum<'_>,
        feedback: Feedback,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused>;

    /// Decodes a mean of the values in `range` and runs a pass on it; returns the first jump. If it `compares`, e ← e − mean as well.
    fn unpack(
        &mut self,
        call: Call<'_>,
        compares: bool,
        coder: Coder,
        range: Range<usize>,
        payload: &[u8],
    ) -> Result<Option<usize>, Refused>;

    /// e ← e + the values of a payload, which covers the whole vector.
    fn take_back(&mut self, coder: Coder, payload: &[u8]) -> Result<(), Refused>;

    /// g ← factor·g: it was far longer than those before it.
    fn shorten(&mut self, factor: f32) -> Result<()>;

    /// One number out of a vector.
    fn number(&mut self, of: Number) -> Result<f64>;

    /// [`reduce::digest`](crate::kernel::reduce::digest) of these parameters.
    fn digest(&mut self, range: Range<usize>) -> Result<u64>;

    /// Copies some values of a vector to the host. A residual of 16 bits is widened.
    fn read(&mut self, which: Which, range: Range<usize>, out: &mut [f32]) -> Result<()>;

    /// Copies values from the host. A residual of 16 bits is rounded.
    fn write(&mut self, which: Which, range: Range<usize>, from: &[f32]) -> Result<()>;
}
