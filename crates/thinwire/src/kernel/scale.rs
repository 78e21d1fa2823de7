//! The first pass over a block of signs: the sum of the magnitudes, for the scale.
//!
//! What it adds up, x + e, is not kept: the pass that packs the signs ([`sign`](super::sign)) follows, and adds again, out of the
//! first-level cache.
//!
//! As in [`reduce`](super::reduce) the sum runs in thirty-two f64 lanes, with one difference: four values of a lane are added
//! in f32 first, as two pairs, which takes a quarter of the conversions. Equal values still add up without rounding, and the
//! rounding of others is that of f32. The compiler makes much of this pass out of the array it goes through, so it is
//! written with intrinsics; each version adds the same numbers in the same order.

use super::reduce::{LANES, add_lanes};
use super::residual_value::ResidualValue;

#[cfg(target_arch = "x86_64")]
use super::prefetch;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Four values a lane.
const GROUP: usize = 4 * LANES;

/// Σ|x + e|, finite exactly when every x + e is. Four numbers near the largest f32 overflow in `sum` where each is finite: then all are
/// added again, in f64 and in the lanes of [`reduce`](super::reduce).
#[inline(always)]
pub(super) fn mended<E: ResidualValue>(sum: f64, x: &[f32], e: &[E]) -> f64 {
    if sum.is_finite() {
        return sum;
    }
    let mut lanes = [0.0; LANES];
    for (i, (x, e)) in x.iter().zip(e).enumerate() {
        lanes[i % LANES] += f64::from((x + e.get()).abs());
    }
    add_lanes(lanes)
}

pub(super) fn sum_portable<E: ResidualValue>(x: &[f32], e: &[E]) -> f64 {
    sum(x, e, groups_portable)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn sum_avx2<E: ResidualValue>(x: &[f32], e: &[E]) -> f64 {
    sum(x, e, |xs, es| groups_avx2(xs, es))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(super) fn sum_avx512<E: ResidualValue>(x: &[f32], e: &[E]) -> f64 {
    sum(x, e, |xs, es| groups_avx512(xs, es))
}

/// The lanes of the whole groups, then what is left.
#[inline(always)]
fn sum<E: ResidualValue>(
    x: &[f32],
    e: &[E],
    groups: impl FnOnce(&[[f32; GROUP]], &[[E; GROUP]]) -> [f64; LANES],
) -> f64 {
    let ((xs, x_tail), (es, e_tail)) = (x.as_chunks::<GROUP>(), e.as_chunks::<GROUP>());
    let mut lanes = groups(xs, es);
    for (i, (x, e)) in x_tail.iter().zip(e_tail).enumerate() {
        lanes[i % LANES] += f64::from((x + e.get()).abs());
    }
    add_lanes(lanes)
}

fn groups_portable<E: ResidualValue>(xs: &[[f32; GROUP]], es: &[[E; GROUP]]) -> [f64; LANES] {
    let mut lanes = [0.0; LANES];
    for (x, e) in xs.iter().zip(es) {
        let magnitude: [f32; GROUP] = std::array::from_fn(|i| (x[i] + e[i].get()).abs());
        for (l, lane) in lanes.iter_mut().enumerate() {
            let pair = |at: usize| magnitude[at] + magnitude[at + LANES];
            *lane += f64::from(pair(l) + pair(l + 2 * LANES));
        }
    }
    lanes
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn groups_avx2<E: ResidualValue>(xs: &[[f32; GROUP]], es: &[[E; GROUP]]) -> [f64; LANES] {
    let sign_bit = _mm256_set1_ps(-0.0);
    let mut sums = [_mm256_setzero_pd(); 8];
    for (x, e) in xs.iter().zip(es) {
        prefetch(x);
        // |z| of eight lanes from `at` on.
        let add = |at: usize| {
            // SAFETY: eight values from `at` on lie within the group; this function is for CPUs with AVX2.
            let z = unsafe { _mm256_add_ps(_mm256_loadu_ps(x[at..].as_ptr()), E::get_avx2(e[at..].as_ptr())) };
            _mm256_andnot_ps(sign_bit, z)
        };
        for eight in 0..4 {
            let l = 8 * eight;
            let (first, second) =
                (_mm256_add_ps(add(l), add(l + LANES)), _mm256_add_ps(add(l + 2 * LANES), add(l + 3 * LANES)));
            let sum = _mm256_add_ps(first, second);
            let (low, high) = (_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
            sums[2 * eight] = _mm256_add_pd(sums[2 * eight], _mm256_cvtps_pd(low));
            sums[2 * eight + 1] = _mm256_add_pd(sums[2 * eight + 1], _mm256_cvtps_pd(high));
        }
    }
    let mut lanes = [0.0; LANES];
    for (four, sum) in lanes.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
        // SAFETY: an array of four f64 holds one unaligned 256-bit vector.
        unsafe { _mm256_storeu_pd(four.as_mut_ptr(), sum) };
    }
    lanes
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn groups_avx512<E: ResidualValue>(xs: &[[f32; GROUP]], es: &[[E; GROUP]]) -> [f64; LANES] {
    let mut sums = [_mm512_setzero_pd(); 4];
    for (x, e) in xs.iter().zip(es) {
        prefetch(x);
        // |z| of sixteen lanes from `at` on.
        let add = |at: usize| {
            // SAFETY: sixteen values from `at` on lie within the group; this function is for CPUs with AVX-512.
            let z = unsafe { _mm512_add_ps(_mm512_loadu_ps(x[at..].as_ptr()), E::get_avx512(e[at..].as_ptr())) };
            _mm512_abs_ps(z)
        };
        for sixteen in 0..2 {
            let l = 16 * sixteen;
            let (first, second) =
                (_mm512_add_ps(add(l), add(l + LANES)), _mm512_add_ps(add(l + 2 * LANES), add(l + 3 * LANES)));
            let sum = _mm512_add_ps(first, second);
            let (low, high) = (_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps::<1>(sum));
            sums[2 * sixteen] = _mm512_add_pd(sums[2 * sixteen], _mm512_cvtps_pd(low));
            sums[2 * sixteen + 1] = _mm512_add_pd(sums[2 * sixteen + 1], _mm512_cvtps_pd(high));
        }
    }
    let mut lanes = [0.0; LANES];
    for (eight, sum) in lanes.as_chunks_mut::<8>().0.iter_mut().zip(sums) {
        // SAFETY: an array of eight f64 holds one unaligned 512-bit vector.
        unsafe { _mm512_storeu_pd(eight.as_mut_ptr(), sum) };
    }
    lanes
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::bf16::{self, Half};
    use super::super::{Level, best};
    use super::*;

    /// All 64 bits: of a block only the scale is seen, 32 bits that hide in what order the lanes were added.
    #[test]
    fn every_level_adds_in_the_same_order() {
        fn hold<E: ResidualValue>(x: &[f32], e: &[E]) {
            let portable = sum_portable(x, e).to_bits();
            if best() >= Level::Avx2 {
                // SAFETY: the CPU has it.
                assert_eq!(unsafe { sum_avx2(x, e) }.to_bits(), portable, "AVX2, {} values", x.len());
            }
            if best() == Level::Avx512 {
                // SAFETY: the CPU has them.
                assert_eq!(unsafe { sum_avx512(x, e) }.to_bits(), portable, "AVX-512, {} values", x.len());
            }
        }
        let mut state = 1u32;
        let mut random = |len: usize| -> Vec<f32> {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Of sizes from 2⁻²⁴ to 2²⁴, so that an order matters.
                (state as i32 as f32 / 2f32.powi(31)) * 2f32.powi((state >> 7 & 63) as i32 - 32)
            };
            (0..len).map(|_| next()).collect()
        };
        for len in [0, 1, 31, 32, 127, 128, 129, 300, 512, 1000, 4096] {
            let (x, e) = (random(len), random(len));
            let mut halves: Vec<Half> = vec![[0; 2]; len];
            bf16::write(&e, &mut halves);
            hold(&x, &e);
            hold(&x, &halves);
        }
    }
}
