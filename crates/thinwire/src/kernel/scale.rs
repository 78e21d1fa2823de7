//! The first pass over a block of signs: add the residue, and sum the magnitudes for the scale.
//!
//! As in [`reduce`](super::reduce) the sum runs in thirty-two f64 lanes, with one difference: four values of a lane are added
//! in f32 first, as two pairs, which takes a quarter of the conversions. Equal values still add up without rounding, and the
//! rounding of others is that of f32. The compiler makes much of this pass out of the array it goes through, so it is
//! written with intrinsics; each version adds the same numbers in the same order.

use super::reduce::{LANES, add_lanes};
use super::{Level, level, prefetch};

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Four values a lane.
const GROUP: usize = 4 * LANES;

/// e ← x + e; returns Σ|e|, which is finite exactly when every new e is.
pub fn add_sum_abs(x: &[f32], e: &mut [f32]) -> f64 {
    assert_eq!(x.len(), e.len());
    let (xs, x_tail) = x.as_chunks::<GROUP>();
    let (es, e_tail) = e.as_chunks_mut::<GROUP>();
    let mut lanes = match level() {
        // SAFETY: `level()` names a level only after the CPU was found to have its features.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { groups_avx512(xs, es) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => unsafe { groups_avx2(xs, es) },
        _ => groups_portable(xs, es),
    };
    for (i, (x, e)) in x_tail.iter().zip(e_tail).enumerate() {
        *e += *x;
        lanes[i % LANES] += f64::from(e.abs());
    }
    let sum = add_lanes(lanes);
    // Four numbers near the largest f32 overflow where each is finite.
    if sum.is_finite() { sum } else { e.iter().map(|e| f64::from(e.abs())).sum() }
}

fn groups_portable(xs: &[[f32; GROUP]], es: &mut [[f32; GROUP]]) -> [f64; LANES] {
    let mut lanes = [0.0; LANES];
    for (x, e) in xs.iter().zip(es) {
        e.iter_mut().zip(x).for_each(|(e, x)| *e += *x);
        for (l, lane) in lanes.iter_mut().enumerate() {
            let pair = |at: usize| e[at].abs() + e[at + LANES].abs();
            *lane += f64::from(pair(l) + pair(l + 2 * LANES));
        }
    }
    lanes
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn groups_avx2(xs: &[[f32; GROUP]], es: &mut [[f32; GROUP]]) -> [f64; LANES] {
    let sign_bit = _mm256_set1_ps(-0.0);
    let mut sums = [_mm256_setzero_pd(); 8];
    for (x, e) in xs.iter().zip(es) {
        prefetch(x); // and `sign::pack`, which follows, the same of e
        // |z| of eight lanes from `at` on.
        let mut add = |at: usize| {
            // SAFETY: eight f32 from `at` on lie within the group.
            let z = unsafe { _mm256_add_ps(_mm256_loadu_ps(x[at..].as_ptr()), _mm256_loadu_ps(e[at..].as_ptr())) };
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(e[at..].as_mut_ptr(), z) };
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
fn groups_avx512(xs: &[[f32; GROUP]], es: &mut [[f32; GROUP]]) -> [f64; LANES] {
    let mut sums = [_mm512_setzero_pd(); 4];
    for (x, e) in xs.iter().zip(es) {
        prefetch(x); // and `sign::pack`, which follows, the same of e
        // |z| of sixteen lanes from `at` on.
        let mut add = |at: usize| {
            // SAFETY: sixteen f32 from `at` on lie within the group.
            let z = unsafe { _mm512_add_ps(_mm512_loadu_ps(x[at..].as_ptr()), _mm512_loadu_ps(e[at..].as_ptr())) };
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(e[at..].as_mut_ptr(), z) };
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
