//! `sign`: one bit a value and one scale a block.
//!
//! s = mean |z| of the block; C(z) = +s where z ≥ 0, −s elsewhere. With that scale ‖z − C(z)‖² = ‖z‖² − ‖z‖₁²/d, so it is
//! always a contraction. A block of zeros has s = 0 and decodes to zeros. Wire: s as f32, then one bit a value.

use super::{Codec, Fault, check_length, finite, read_scale, write_scale};
use crate::kernel::{Stream, scale, sign};

#[derive(Clone, Copy, Debug)]
pub struct Sign;

impl Codec for Sign {
    fn encoded_len(&self, count: usize) -> usize {
        if count == 0 { 0 } else { 4 + sign::packed_len(count) }
    }

    fn encode_with(&self, x: &[f32], e: &mut [f32], out: &mut [u8]) -> Result<(), Fault> {
        if x.is_empty() {
            return Ok(());
        }
        let sum = scale::add_sum_abs(x, e); // e is z from here on
        let s = finite((sum / x.len() as f64) as f32)?;
        sign::pack(s, e, write_scale(s, out));
        Ok(())
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

    fn decode_add_four(&self, bytes: [&[u8]; 4], sum: &mut [f32]) -> Result<(), Fault> {
        let [a, b, c, d] = bytes.map(|bytes| self.parts(bytes, sum));
        let four = [a?, b?, c?, d?];
        sign::unpack_add_four(four.map(|(s, _)| s), four.map(|(_, bits)| bits), sum);
        Ok(())
    }
}

impl Sign {
    /// The scale, and the signs, of as many values as `out` has. No values have no scale: 0.
    fn parts<'a>(&self, bytes: &'a [u8], out: &[f32]) -> Result<(f32, &'a [u8]), Fault> {
        check_length(self, out.len(), bytes)?;
        if out.is_empty() { Ok((0.0, bytes)) } else { read_scale(bytes) }
    }
}
