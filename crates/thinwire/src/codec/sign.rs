//! `sign`: one bit a value and one scale a block.
//!
//! s = mean |z| of the block; C(z) = +s where z ≥ 0, −s elsewhere. With that scale ‖z − C(z)‖² = ‖z‖² − ‖z‖₁²/d, so it is
//! always a contraction. A block of zeros has s = 0 and decodes to zeros. Wire: s as f32, then one bit a value.

use super::{Codec, Fault, TOGETHER, check_length, finite, read_scale, write_scale};
use crate::kernel::bf16::Half;
use crate::kernel::kept::Kept;
use crate::kernel::{Stream, scale, sign};

#[derive(Clone, Copy, Debug)]
pub struct Sign;

impl Codec for Sign {
    fn encoded_len(&self, count: usize) -> usize {
        if count == 0 { 0 } else { 4 + sign::packed_len(count) }
    }

    fn encode_with(&self, x: &[f32], e: &mut [f32], out: &mut [u8]) -> Result<(), Fault> {
        encode_with(x, e, out)
    }

    fn encode_with_half(&self, x: &[f32], e: &mut [Half], out: &mut [u8]) -> Result<(), Fault> {
        encode_with(x, e, out)
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
        match self.parts(bytes, out)? {
            (0.0, _) => out.fill(0.0), // not −0.0: a zero has no sign
            (s, bits) => sign::unpack(s, bits, out),
        }
        Ok(())
    }

    fn decode_streaming<'env>(&self, bytes: &[u8], out: &'env mut [f32], stream: &Stream<'env>) -> Result<(), Fault> {
        match self.parts(bytes, out)? {
            (0.0, _) => out.fill(0.0),
            (s, bits) => sign::unpack_streaming(s, bits, out, stream),
        }
        Ok(())
    }

    fn decode_add(&self, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault> {
        let (s, bits) = self.parts(bytes, sum)?;
        sign::unpack_add(s, bits, sum);
        Ok(())
    }

    fn add_up(&self, some: &[&[u8]], fresh: bool, divisor: f32, sum: &mut [f32]) -> Result<(), (usize, Fault)> {
        let mut signed = [(0.0, &[][..]); TOGETHER];
        for (i, (signed, bytes)) in signed.iter_mut().zip(some).enumerate() {
            *signed = self.parts(bytes, sum).map_err(|fault| (i, fault))?;
        }
        sign::add_up(&signed[..some.len()], fresh, divisor, sum);
        Ok(())
    }
}

fn encode_with<E: Kept>(x: &[f32], e: &mut [E], out: &mut [u8]) -> Result<(), Fault> {
    if x.is_empty() {
        return Ok(());
    }
    let s = finite((scale::sum_abs(x, e) / x.len() as f64) as f32)?;
    sign::pack(s, x, e, write_scale(s, out));
    Ok(())
}

impl Sign {
    /// The scale, and the signs, of as many values as `out` has. No values have no scale: 0.
    fn parts<'a>(&self, bytes: &'a [u8], out: &[f32]) -> Result<(f32, &'a [u8]), Fault> {
        check_length(self, out.len(), bytes)?;
        if out.is_empty() { Ok((0.0, bytes)) } else { read_scale(bytes) }
    }
}
