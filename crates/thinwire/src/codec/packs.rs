//! Codecs with loops over many blocks, which are the same whatever the residual is kept in.
//!
//! Such a codec is its loops ([`Packs`]); what the trait [`Codec`] asks for beside them follows.

use super::{Codec, Fault, MAX_BLOCK, ResidualSlice, check_blocks, encode_each, encoded_len};
use crate::kernel::bf16::Half;
use crate::kernel::residual_value::{Forgotten, ResidualValue};
use crate::kernel::{Stream, reduce};
use std::fmt::Debug;

/// The loops. Their callers have checked the lengths, and hand them blocks of `block` values, the last one maybe of fewer.
pub(super) trait Packs: Debug + Send + Sync {
    /// The bytes that `count` values take.
    fn len_of(&self, count: usize) -> usize;

    /// Encodes z = x + e, and leaves in e what was lost.
    fn pack<E: ResidualValue>(&self, block: usize, x: &[f32], e: &mut [E], out: &mut [u8]) -> Result<(), Fault>;

    /// out ← the values.
    fn unpack(&self, block: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault>;

    /// The same, past the caches where that is faster.
    fn unpack_streaming<'env>(
        &self,
        block: usize,
        bytes: &[u8],
        out: &'env mut [f32],
        _: &Stream<'env>,
    ) -> Result<(), Fault> {
        self.unpack(block, bytes, out)
    }

    /// sum ← sum + the values.
    fn add(&self, block: usize, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault>;

    /// [`Codec::add_up`], one after the other.
    fn add_all(
        &self,
        block: usize,
        some: &[&[u8]],
        fresh: bool,
        divisor: f32,
        sum: &mut [f32],
    ) -> Result<(), (usize, Fault)> {
        if fresh {
            sum.fill(0.0);
        }
        for (i, bytes) in some.iter().enumerate() {
            self.add(block, bytes, sum).map_err(|fault| (i, fault))?;
        }
        reduce::divide(divisor, sum);
        Ok(())
    }
}

impl<P: Packs> Codec for P {
    fn encoded_len(&self, count: usize) -> usize {
        self.len_of(count)
    }

    fn encode_with(&self, x: &[f32], e: &mut [f32], out: &mut [u8]) -> Result<(), Fault> {
        self.pack(x.len().max(1), x, e, out)
    }

    fn encode_with_half(&self, x: &[f32], e: &mut [Half], out: &mut [u8]) -> Result<(), Fault> {
        self.pack(x.len().max(1), x, e, out)
    }

    fn encode(&self, x: &[f32], out: &mut [u8]) -> Result<(), Fault> {
        self.encode_blocks(x.len().max(1), x, ResidualSlice::Nothing, out)
    }

    fn encode_blocks(&self, block: usize, x: &[f32], e: ResidualSlice<'_>, out: &mut [u8]) -> Result<(), Fault> {
        match e {
            // Of no size: nothing is allocated.
            ResidualSlice::Nothing => self.pack(block, x, &mut vec![Forgotten; x.len()], out),
            ResidualSlice::Small { .. } => encode_each(self, block, x, e, out),
            // A tile at a time, or as many blocks as make one.
            ResidualSlice::Made { made, range } => {
                let tile = (MAX_BLOCK / block).max(1) * block;
                let coded = x.chunks(tile).zip(out.chunks_mut(encoded_len(self, block, tile)));
                coded.zip(range.step_by(tile)).try_for_each(|((x, out), from)| {
                    let e = &mut [0.0; MAX_BLOCK][..x.len()];
                    made.fill(from, e);
                    self.pack(block, x, e, out)
                })
            }
            ResidualSlice::Wide(e) => self.pack(block, x, e, out),
            ResidualSlice::Half(e) => self.pack(block, x, e, out),
        }
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
        self.add_all(block, some, fresh, divisor, sum)
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
        self.decode_blocks(out.len().max(1), bytes, out)
    }

    fn decode_blocks(&self, block: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
        check_blocks(self, block, out.len(), bytes)?;
        self.unpack(block, bytes, out)
    }

    fn decode_streaming<'env>(
        &self,
        block: usize,
        bytes: &[u8],
        out: &'env mut [f32],
        stream: &Stream<'env>,
    ) -> Result<(), Fault> {
        check_blocks(self, block, out.len(), bytes)?;
        self.unpack_streaming(block, bytes, out, stream)
    }
}
