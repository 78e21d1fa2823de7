//! What lets plain loops run at the CPU's full width: dispatch, sums in lanes, and an `exp` without branches.
//!
//! The crate is compiled for the oldest x86-64. [`wide`] runs a closure compiled for the best instructions that this CPU
//! has, and the compiler vectorises the loops in it; what it calls must be `#[inline(always)]` to be compiled with it.

use pulp::Arch;
use std::sync::LazyLock;

static ARCH: LazyLock<Arch> = LazyLock::new(Arch::new);

/// Runs `work`, compiled for this CPU.
#[inline(always)]
pub fn wide<R>(work: impl FnOnce() -> R) -> R {
    ARCH.dispatch(work)
}

const LANES: usize = 16;

/// Σ map(aᵢ, bᵢ) in sixteen sums, added up in a fixed order: fast, and the same bits on every CPU.
#[inline(always)]
pub fn sum_of(a: &[f32], b: &[f32], map: impl Fn(f32, f32) -> f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += map(a[lane], b[lane]);
        }
    }
    for (lane, (&a, &b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[lane] += map(a, b);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

#[inline(always)]
pub fn sum(values: &[f32]) -> f32 {
    sum_of(values, values, |a, _| a)
}

/// The largest value; −∞ of none.
#[inline(always)]
pub fn max(values: &[f32]) -> f32 {
    let mut largest = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            largest[lane] = if chunk[lane] > largest[lane] { chunk[lane] } else { largest[lane] };
        }
    }
    rest.iter().chain(&largest).fold(f32::NEG_INFINITY, |most, &value| if value > most { value } else { most })
}

/// eˣ to 2 units in the last place (Cephes' polynomial); below −87 it is e⁻⁸⁷, above 88 it is e⁸⁸. NaN stays NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5·2²³: adding it leaves the nearest whole number in the low bits
    // Comparisons that are false for NaN, so that it falls through.
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let r = x - whole * (355.0 / 512.0) + whole * 2.121_944_4e-4; // ln 2 in two parts, the first of few bits
    let mut y = 1.987_569_1e-4;
    y = y * r + 1.398_199_9e-3;
    y = y * r + 8.333_452e-3;
    y = y * r + 4.166_579_6e-2;
    y = y * r + 1.666_666_5e-1;
    y = y * r + 0.5;
    y = y * r * r + r + 1.0;
    y * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
}

/// Below this a probability is taken for 0. It is far below what f32 tells from 0 beside 1; kept, it would make products of
/// the size that f32 holds only as denormal numbers, and those cost a CPU a hundred times as much as others.
const IMPOSSIBLE: f32 = 1e-12;

/// Turns exponentials, whose sum is `total`, into probabilities times `weight`.
#[inline(always)]
pub fn probabilities(row: &mut [f32], total: f32, weight: f32) {
    let (least, scale) = (IMPOSSIBLE * total, weight / total);
    row.iter_mut().for_each(|x| *x = if *x < least { 0.0 } else { *x * scale });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exp() {
        for i in -87_000..=88_000 {
            let x = i as f32 / 1000.0;
            let (got, expected) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got / expected - 1.0).abs() < 2.5e-7, "exp({x}) = {got}, not {expected}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
    }

    #[test]
    fn sums_and_maxima_of_any_length() {
        for len in 0..70 {
            let values = (0..len).map(|i| (i * 37 % 41) as f32).collect::<Vec<_>>();
            assert_eq!(sum(&values), values.iter().sum::<f32>());
            assert_eq!(max(&values), values.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
