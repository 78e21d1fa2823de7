//! The largest magnitude of x + e, which is kept nowhere: the first pass over a block of most codecs.
//!
//! It asks ahead for x; the second pass asks for e, a block ahead, so that memory has something to do all the time.

use super::prefetch;
use super::reduce::{LANES, magnitude_bits};
use super::residual_value::ResidualValue;
use crate::error::Fault;

/// max |x + e|; refused where one is not finite.
#[inline(always)]
pub fn finite<E: ResidualValue>(x: &[f32], e: &[E]) -> Result<f32, Fault> {
    let ((xs, x_tail), (es, e_tail)) = (x.as_chunks::<LANES>(), e.as_chunks::<LANES>());
    let mut lanes = [0u32; LANES];
    for (x, e) in xs.iter().zip(es) {
        prefetch(x);
        for l in 0..LANES {
            lanes[l] = lanes[l].max(magnitude_bits(x[l] + e[l].get()));
        }
    }
    let tail = x_tail.iter().zip(e_tail).map(|(x, e)| magnitude_bits(x + e.get()));
    let largest = f32::from_bits(tail.chain(lanes).max().unwrap_or(0));
    if largest.is_finite() { Ok(largest) } else { Err(Fault::NotFinite) }
}
