//! `sign`: one bit a value and one scale a block.
//!
//! s = mean |z| of the block; C(z) = +s where z ≥ 0, −s elsewhere. With that scale ‖z − C(z)‖² = ‖z‖² − ‖z‖₁²/d, so it is
//! always a contraction. A block of zeros has s = 0 and decodes to zeros. Wire: s as f32, then one bit a value.

use super::{Codec, Fault, check_length, finite, read_scale, write_scale};
use crate::kernel::{scale, sign};

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
        check_length(self, out.len(), bytes)?;
        if out.is_empty() {
            return Ok(());
        }
        match read_scale(bytes)? {
            (0.0, _) => out.fill(0.0), // not −0.0: a zero has no sign
            (s, bits) => sign::unpack(s, bits, out),
        }
        Ok(())
    }

    fn decode_add(&self, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault> {
        check_length(self, sum.len(), bytes)?;
        if sum.is_empty() {
            return Ok(());
        }
        let (s, bits) = read_scale(bytes)?;
        sign::unpack_add(s, bits, sum);
        Ok(())
    }
}
