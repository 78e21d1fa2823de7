//! `topk0.01`: the largest magnitudes of each block, with their places; the rest is zero.
//!
//! Of `count` values the ⌈k·count⌉ largest are kept, equal ones from the front. Wire: for each, in rising order, its index
//! as u16; then, in the same order, its value as f32. The threshold is found by radix selection on the bit patterns of
//! the magnitudes, so nothing is sorted and nothing is allocated.

use super::{Codec, Fault, check_length, finite};
use crate::kernel::reduce;

/// The codec `topk…`.
#[derive(Clone, Copy, Debug)]
pub struct TopK {
    /// k, in millionths.
    pub(super) millionths: u32,
}

impl TopK {
    fn kept(self, count: usize) -> usize {
        (count as u64 * u64::from(self.millionths)).div_ceil(1_000_000) as usize
    }
}

fn magnitude(z: f32) -> u32 {
    z.to_bits() & 0x7fff_ffff
}

/// The `kept`-th largest magnitude of `z`, and how many values are larger. `kept` is 1 to `z.len()`.
fn threshold(z: &[f32], kept: usize) -> (u32, usize) {
    let (mut prefix, mut larger) = (0u32, 0usize);
    for shift in [24, 16, 8, 0] {
        let mut histogram = [0usize; 256];
        for z in z {
            let bits = magnitude(*z);
            // The bytes above this one must be those already chosen; there are none above the first.
            if shift == 24 || bits >> (shift + 8) == prefix >> (shift + 8) {
                histogram[(bits >> shift & 0xff) as usize] += 1;
            }
        }
        let mut byte = 255;
        while larger + histogram[byte] < kept {
            larger += histogram[byte];
            byte -= 1;
        }
        prefix |= (byte as u32) << shift;
    }
    (prefix, larger)
}

impl Codec for TopK {
    fn encoded_len(&self, count: usize) -> usize {
        6 * self.kept(count)
    }

    fn encode_with(&self, x: &[f32], e: &mut [f32], out: &mut [u8]) -> Result<(), Fault> {
        if x.is_empty() {
            return Ok(());
        }
        finite(reduce::add_max_abs(x, e))?; // e is z from here on
        let kept = self.kept(x.len());
        let (least, larger) = threshold(e, kept);
        let mut equals_left = kept - larger;
        let (indices, values) = out.split_at_mut(2 * kept);
        let mut places = indices.as_chunks_mut::<2>().0.iter_mut().zip(values.as_chunks_mut::<4>().0);
        for (i, e) in e.iter_mut().enumerate() {
            let equal = magnitude(*e) == least && equals_left > 0;
            if equal || magnitude(*e) > least {
                equals_left -= usize::from(equal);
                let (index, value) = places.next().expect("as many places as values kept");
                *index = (i as u16).to_le_bytes();
                *value = e.to_le_bytes();
                *e = 0.0;
            }
        }
        Ok(())
    }

    fn decode_add(&self, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault> {
        check_length(self, sum.len(), bytes)?;
        let (indices, values) = bytes.split_at(2 * self.kept(sum.len()));
        let mut next = 0;
        for (index, value) in indices.as_chunks::<2>().0.iter().zip(values.as_chunks::<4>().0) {
            let (index, count) = (usize::from(u16::from_le_bytes(*index)), sum.len());
            if index < next || index >= count {
                return Err(Fault::Index { index, count });
            }
            next = index + 1;
            sum[index] += finite(f32::from_le_bytes(*value))?;
        }
        Ok(())
    }
}
