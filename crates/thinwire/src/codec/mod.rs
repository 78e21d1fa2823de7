//! Codecs: a block of values into fewer bytes, and back.
//!
//! The flat vector is cut into blocks of at most [`MAX_BLOCK`] consecutive values; a codec sees one block at a time,
//! keeps nothing between blocks, and writes a number of bytes that depends on the count alone. With q = C(z), the
//! decoded value, the laws are:
//!
//! - a contraction: ‖z − C(z)‖ ≤ ‖z‖ for every finite z, so that error feedback stays bounded;
//! - homogeneous: C(c·z) = c·C(z) for c > 0 (the casts round, so for them this holds to rounding);
//! - `sign` is idempotent: C(C(z)) = C(z), to the bit;
//! - a value that is not finite is an error, never a payload; any bytes decode to finite values or are an error, never a panic.
//!
//! Adding a codec is one file here, one variant of [`CodecName`], and one line in `tests/laws.rs`.

mod cast;
mod levels;
mod name;
mod power2;
mod sign;
mod topk;
mod uniform;

pub use cast::Cast;
pub use name::CodecName;
pub use power2::Power2;
pub use sign::Sign;
pub use topk::TopK;
pub use uniform::Uniform;

use crate::kernel::Stream;
use crate::kernel::bf16::{self, Half};
use crate::kernel::reduce;
pub use crate::kernel::sign::TOGETHER;
use std::fmt::Debug;

/// The longest block: with its error and its bytes it stays in the first-level cache between the passes over it.
pub const MAX_BLOCK: usize = 4096;

/// Why a block could not be encoded or decoded.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    #[error("a value is infinite or NaN")]
    NotFinite,
    #[error("{count} values take {expected} bytes, not {got}")]
    Length { count: usize, expected: usize, got: usize },
    #[error("the scale {0} is not a finite number of at least 0")]
    Scale(f32),
    #[error("code {code} stands for no value: the largest is {largest}")]
    Code { code: u8, largest: u8 },
    #[error("index {index} is out of order, or past the {count} values of its block")]
    Index { index: usize, count: usize },
}

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

    /// sum ← sum + the values that `bytes` stand for.
    fn decode_add(&self, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault>;

    /// The same of at most [`TOGETHER`], one after the other, with 0 for `sum` if it is `fresh`; then sum ← sum / divisor.
    /// An error comes with which of them it is.
    fn add_up(&self, some: &[&[u8]], fresh: bool, divisor: f32, sum: &mut [f32]) -> Result<(), (usize, Fault)> {
        assert!(some.len() <= TOGETHER);
        if fresh {
            sum.fill(0.0);
        }
        for (i, bytes) in some.iter().enumerate() {
            self.decode_add(bytes, sum).map_err(|fault| (i, fault))?;
        }
        reduce::divide(divisor, sum);
        Ok(())
    }

    /// out ← the values that `bytes` stand for.
    fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
        out.fill(0.0);
        self.decode_add(bytes, out)
    }

    /// The same for memory that is not read again soon: past the caches, if the codec can.
    fn decode_streaming<'env>(&self, bytes: &[u8], out: &'env mut [f32], stream: &Stream<'env>) -> Result<(), Fault> {
        let _ = stream;
        self.decode(bytes, out)
    }
}

/// Refuses `bytes` that are not as long as `codec` writes `count` values.
fn check_length(codec: &impl Codec, count: usize, bytes: &[u8]) -> Result<(), Fault> {
    let (expected, got) = (codec.encoded_len(count), bytes.len());
    if expected == got { Ok(()) } else { Err(Fault::Length { count, expected, got }) }
}

/// Splits a block's scale from what follows it. The caller has checked the length.
fn read_scale(bytes: &[u8]) -> Result<(f32, &[u8]), Fault> {
    let (scale, rest) = bytes.split_first_chunk().expect("a scale");
    let scale = f32::from_le_bytes(*scale);
    // One comparison: a sign bit, an infinity and a NaN are all larger bit patterns than the largest finite number's.
    if scale.to_bits() < f32::INFINITY.to_bits() { Ok((scale, rest)) } else { Err(Fault::Scale(scale)) }
}

/// Writes a block's scale and returns where the rest goes.
fn write_scale(scale: f32, out: &mut [u8]) -> &mut [u8] {
    let (head, rest) = out.split_first_chunk_mut().expect("room for a scale");
    *head = scale.to_le_bytes();
    rest
}

fn finite(scale: f32) -> Result<f32, Fault> {
    if scale.is_finite() { Ok(scale) } else { Err(Fault::NotFinite) }
}
