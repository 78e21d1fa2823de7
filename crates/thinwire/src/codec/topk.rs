//! `topk0.01`: the largest magnitudes of each block, with their places; the rest is zero.
//!
//! Of `count` values the ⌈k·count⌉ largest are kept, equal ones from the front. Wire: for each, in rising order, its index
//! as u16; then, in the same order, its value as f32. The threshold is found by counting ([`select`]), so nothing is sorted and
//! nothing is allocated.

use super::{Codec, Fault, check_length, finite};
use crate::kernel::{reduce, select};

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

impl Codec for TopK {
    fn encoded_len(&self, count: usize) -> usize {
        6 * self.kept(count)
    }

    fn encode_with(&self, x: &[f32], e: &mut [f32], out: &mut [u8]) -> Result<(), Fault> {
        if x.is_empty() {
            return Ok(());
        }
        let largest = finite(reduce::add_max_abs(x, e))?; // e is z from here on
        let kept = self.kept(x.len());
        let (places, values) = out.split_at_mut(2 * kept);
        select::take(select::cut(e, kept, largest), e, places.as_chunks_mut().0, values.as_chunks_mut().0);
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
