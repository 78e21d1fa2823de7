//! One bit a value: `sign` has a scale for each block, `vote` has none.
//!
//! `sign`: s = mean |z| of the block; C(z) = +s where z ≥ 0, −s elsewhere. With that scale ‖z − C(z)‖² = ‖z‖² − ‖z‖₁²/d, so it is always
//! a contraction. A block of zeros has s = 0 and decodes to zeros. Wire: s as f32, then one bit a value.
//!
//! `vote`: s = 1, for optimizers that send a direction, such as Lion (arXiv 2404.00438). It does not depend on the size of z, so it is no
//! contraction, and error feedback would only add up: it is refused with any. Wire: one bit a value.
//!
//! −0 counts as +. The bits that fill up the last byte of a block are 0, and not looked at.

use super::{Fault, Packs};
use crate::kernel::Stream;
use crate::kernel::blocks::{self, Head, Scale, Unit};
use crate::kernel::residual_value::ResidualValue;
use std::marker::PhantomData;

/// The codec `sign`.
pub const SIGN: Signs<Scale> = Signs(PhantomData);

/// The codec `vote`.
pub const VOTE: Signs<Unit> = Signs(PhantomData);

/// A codec of one bit, with this head before each block.
#[derive(Clone, Copy, Debug)]
pub struct Signs<H>(PhantomData<H>);

impl<H: Head> Packs for Signs<H> {
    fn len_of(&self, count: usize) -> usize {
        blocks::encoded_len::<H>(count)
    }

    fn pack<E: ResidualValue>(&self, block: usize, x: &[f32], e: &mut [E], out: &mut [u8]) -> Result<(), Fault> {
        blocks::pack::<H, E>(block, x, e, out).ok_or(Fault::NotFinite)
    }

    fn unpack(&self, block: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
        blocks::unpack::<H>(block, bytes, out).map_err(Fault::Scale)
    }

    fn unpack_streaming<'env>(
        &self,
        block: usize,
        bytes: &[u8],
        out: &'env mut [f32],
        stream: &Stream<'env>,
    ) -> Result<(), Fault> {
        blocks::unpack_streaming::<H>(block, bytes, out, stream).map_err(Fault::Scale)
    }

    fn add(&self, block: usize, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault> {
        self.add_all(block, &[bytes], false, 1.0, sum).map_err(|(_, fault)| fault)
    }

    /// In one pass.
    fn add_all(
        &self,
        block: usize,
        some: &[&[u8]],
        fresh: bool,
        divisor: f32,
        sum: &mut [f32],
    ) -> Result<(), (usize, Fault)> {
        blocks::add_up::<H>(block, some, fresh, divisor, sum).map_err(|(i, scale)| (i, Fault::Scale(scale)))
    }
}
