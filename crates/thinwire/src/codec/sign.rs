//! `sign`: one bit a value and one scale a block.
//!
//! s = mean |z| of the block; C(z) = +s where z ≥ 0, −s elsewhere. With that scale ‖z − C(z)‖² = ‖z‖² − ‖z‖₁²/d, so it is
//! always a contraction. A block of zeros has s = 0 and decodes to zeros. Wire: s as f32, then one bit a value.

use super::{Codec, Fault, check_blocks, encode_each};
use crate::codec::ResidualSlice;
use crate::kernel::bf16::Half;
use crate::kernel::residual_value::ResidualValue;
use crate::kernel::{Stream, blocks};

/// The codec `sign`.
#[derive(Clone, Copy, Debug)]
pub struct Sign;

impl Codec for Sign {
    fn encoded_len(&self, count: usize) -> usize {
        blocks::encoded_len(count)
    }

    fn encode_with(&self, x: &[f32], e: &mut [f32], out: &mut [u8]) -> Result<(), Fault> {
        pack(x.len().max(1), x, e, out)
    }

    fn encode_with_half(&self, x: &[f32], e: &mut [Half], out: &mut [u8]) -> Result<(), Fault> {
        pack(x.len().max(1), x, e, out)
    }

    fn encode_blocks(&self, block: usize, x: &[f32], e: ResidualSlice<'_>, out: &mut [u8]) -> Result<(), Fault> {
        match e {
            ResidualSlice::Nothing => encode_each(self, block, x, e, out),
            ResidualSlice::Wide(e) => pack(block, x, e, out),
            ResidualSlice::Half(e) => pack(block, x, e, out),
        }
    }

    fn decode_blocks(&self, block: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
        check_blocks(self, block, out.len(), bytes)?;
        blocks::unpack(block, bytes, out).map_err(Fault::Scale)
    }

    fn decode_streaming<'env>(
        &self,
        block: usize,
        bytes: &[u8],
        out: &'env mut [f32],
        stream: &Stream<'env>,
    ) -> Result<(), Fault> {
        check_blocks(self, block, out.len(), bytes)?;
        blocks::unpack_streaming(block, bytes, out, stream).map_err(Fault::Scale)
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
        self.decode_blocks(out.len().max(1), bytes, out)
    }

    fn decode_add(&self, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault> {
        self.add_up(sum.len().max(1), &[bytes], false, 1.0, sum).map_err(|(_, fault)| fault)
    }

    fn add_up(
        &self,
        block: usize,
        some: &[&[u8]],
        fresh: bool,
        divisor: f32,
        sum: &mut [f32],
    ) -> Result<(), (usize, Fault)> {
        for (i, bytes) in some.iter().enumerate() {
            check_blocks(self, block, sum.len(), bytes).map_err(|fault| (i, fault))?;
        }
        blocks::add_up(block, some, fresh, divisor, sum).map_err(|(i, scale)| (i, Fault::Scale(scale)))
    }
}

fn pack<E: ResidualValue>(block: usize, x: &[f32], e: &mut [E], out: &mut [u8]) -> Result<(), Fault> {
    blocks::pack(block, x, e, out).ok_or(Fault::NotFinite)
}
