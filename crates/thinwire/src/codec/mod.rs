//! Codecs: a block of values into fewer bytes, and back.
//!
//! The flat vector is cut into blocks of at most [`MAX_BLOCK`] consecutive values; a codec codes each block by
//! itself, keeps nothing between blocks, and writes a number of bytes that depends on the count alone. With q = C(z), the
//! decoded value, the laws are:
//!
//! - a contraction: ‖z − C(z)‖ ≤ ‖z‖ for every finite z, so that error feedback stays bounded (`vote` is none: it takes no feedback);
//! - homogeneous: C(c·z) = c·C(z) for c > 0 (the casts round, so for them this holds to rounding; of `vote` C(c·z) = C(z));
//! - `sign` and `vote` are idempotent: C(C(z)) = C(z), to the bit;
//! - a value that is not finite is an error, never a payload; any bytes decode to finite values or are an error, never a panic.
//!
//! Adding a codec is one file here, one variant of [`CodecName`], and one line in `tests/it/laws/codecs.rs`.

mod cast;
mod dither;
mod levels;
mod name;
mod packs;
mod residual;
mod signs;
mod sparse;
mod topk;

pub use crate::kernel::power2::Power2;
pub use crate::kernel::uniform::Uniform;
pub use cast::{CAST_BF16, CAST_F16, CAST_F32};
pub use dither::{Dither, Made};
pub use levels::Levels;
pub use name::CodecName;
pub use residual::{Keeping, Precision, ResidualSlice, encode_remembering};
pub use signs::{SIGN, VOTE};
pub use sparse::Sparse;
pub use topk::TopK;

pub use crate::error::Fault;
use crate::kernel::bf16::{self, Half};
pub use crate::kernel::blocks::{MAX_BLOCK, TOGETHER};
use crate::kernel::{Stream, reduce};
use packs::Packs;
use std::fmt::Debug;

/// A way to write a block of at most [`MAX_BLOCK`] values as bytes.
pub trait Codec: Debug + Send + Sync {
    /// The bytes that `count` values take.
    fn encoded_len(&self, count: usize) -> usize;

    /// Encodes z = x + e, and remembers what was lost: e ← z − C(z). One pass over memory.
    fn encode_with(&self, x: &[f32], e: &mut [f32], out: &mut [u8]) -> Result<(), Fault>;

    /// The same with what was lost rounded to sixteen bits.
    fn encode_with_half(&self, x: &[f32], e: &mut [Half], out: &mut [u8]) -> Result<(), Fault> {
        bf16::change::<MAX_BLOCK, _>(e, |e| self.encode_with(x, e, out))
    }

    /// Encodes x, and forgets what was lost.
    fn encode(&self, x: &[f32], out: &mut [u8]) -> Result<(), Fault> {
        self.encode_with(x, &mut [0.0; MAX_BLOCK][..x.len()], out)
    }

    /// Encodes many blocks of `block` values, the last one maybe of fewer, with what is owed of them.
    fn encode_blocks(&self, block: usize, x: &[f32], e: ResidualSlice<'_>, out: &mut [u8]) -> Result<(), Fault> {
        encode_each(self, block, x, e, out)
    }

    /// sum ← sum + the values that `bytes` stand for.
    fn decode_add(&self, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault>;

    /// The same of the blocks of at most [`TOGETHER`], one after the other, with 0 for `sum` if it is `fresh`; then
    /// sum ← sum / divisor. An error comes with which of them it is.
    fn add_up(
        &self,
        block: usize,
        some: &[&[u8]],
        fresh: bool,
        divisor: f32,
        sum: &mut [f32],
    ) -> Result<(), (usize, Fault)> {
        assert!(some.len() <= TOGETHER);
        if fresh {
            sum.fill(0.0);
        }
        for (i, bytes) in some.iter().enumerate() {
            let refused = |fault| (i, fault);
            each_block(self, block, bytes, sum, |bytes, sum| self.decode_add(bytes, sum)).map_err(refused)?;
        }
        reduce::divide(divisor, sum);
        Ok(())
    }

    /// out ← the values that `bytes` stand for.
    fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
        out.fill(0.0);
        self.decode_add(bytes, out)
    }

    /// The same of many blocks.
    fn decode_blocks(&self, block: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
        each_block(self, block, bytes, out, |bytes, out| self.decode(bytes, out))
    }

    /// The same for memory that is not read again soon: past the caches, if the codec can.
    fn decode_streaming<'env>(
        &self,
        block: usize,
        bytes: &[u8],
        out: &'env mut [f32],
        stream: &Stream<'env>,
    ) -> Result<(), Fault> {
        let _ = stream;
        self.decode_blocks(block, bytes, out)
    }
}

/// [`Codec::encode_blocks`], block by block.
fn encode_each(
    codec: &(impl Codec + ?Sized),
    block: usize,
    x: &[f32],
    e: ResidualSlice<'_>,
    out: &mut [u8],
) -> Result<(), Fault> {
    assert_eq!(out.len(), encoded_len(codec, block, x.len()), "bytes for every block");
    assert!(e.count().is_none_or(|count| count == x.len()), "a residual for every value");
    let mut blocks = x.chunks(block).zip(out.chunks_mut(codec.encoded_len(block)));
    match e {
        ResidualSlice::Nothing => blocks.try_for_each(|(x, out)| codec.encode(x, out)),
        ResidualSlice::Wide(e) => {
            blocks.zip(e.chunks_mut(block)).try_for_each(|((x, out), e)| codec.encode_with(x, e, out))
        }
        ResidualSlice::Half(e) => {
            blocks.zip(e.chunks_mut(block)).try_for_each(|((x, out), e)| codec.encode_with_half(x, e, out))
        }
        ResidualSlice::Made { made, range } => blocks.zip(range.step_by(block)).try_for_each(|((x, out), from)| {
            ResidualSlice::Made { made, range: from..from + x.len() }.change(|e| codec.encode_with(x, e, out))
        }),
        ResidualSlice::Small { block: of_scale, codes, scales } => {
            assert_eq!(block, of_scale, "scales for the blocks of the code");
            let kept = codes.chunks_mut(block).zip(scales.chunks_mut(1));
            blocks.zip(kept).try_for_each(|((x, out), (codes, scales))| {
                ResidualSlice::Small { block, codes, scales }.change(|e| codec.encode_with(x, e, out))
            })
        }
    }
}

/// The bytes of `count` values cut into blocks of `block`.
pub fn encoded_len(codec: &(impl Codec + ?Sized), block: usize, count: usize) -> usize {
    count / block * codec.encoded_len(block) + codec.encoded_len(count % block)
}

/// Refuses `bytes` that are not as long as `codec` writes `count` values in blocks of `block`.
fn check_blocks(codec: &(impl Codec + ?Sized), block: usize, count: usize, bytes: &[u8]) -> Result<(), Fault> {
    let (expected, got) = (encoded_len(codec, block, count), bytes.len());
    if expected == got { Ok(()) } else { Err(Fault::Length { count, expected, got }) }
}

/// Calls `work` on the bytes of each block, and on its values.
fn each_block(
    codec: &(impl Codec + ?Sized),
    block: usize,
    bytes: &[u8],
    values: &mut [f32],
    work: impl Fn(&[u8], &mut [f32]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    check_blocks(codec, block, values.len(), bytes)?;
    let mut blocks = bytes.chunks(codec.encoded_len(block)).zip(values.chunks_mut(block));
    blocks.try_for_each(|(bytes, values)| work(bytes, values))
}

/// Refuses `bytes` that are not as long as `codec` writes `count` values.
fn check_length(codec: &impl Codec, count: usize, bytes: &[u8]) -> Result<(), Fault> {
    let (expected, got) = (codec.encoded_len(count), bytes.len());
    if expected == got { Ok(()) } else { Err(Fault::Length { count, expected, got }) }
}

fn finite(scale: f32) -> Result<f32, Fault> {
    if scale.is_finite() { Ok(scale) } else { Err(Fault::NotFinite) }
}
