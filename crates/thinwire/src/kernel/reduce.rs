//! One number out of a vector: is it finite, what is its sum, what is its largest magnitude? And of a sum of vectors their mean.
//!
//! Sums run in thirty-two f64 lanes, value i in lane i mod 32, and the lanes are added in a fixed order. So the result
//! depends on the values alone, never on the CPU.

use super::{multiversion, prefetch};

/// A part of a vector that starts at a multiple of it begins with the first lane.
pub const LANES: usize = 32;

multiversion! {
    /// True when no value is infinite or NaN.
    pub fn all_finite(x: &[f32]) -> bool {
        max_bits(x) < f32::INFINITY.to_bits()
    }
}

/// The largest magnitude that a gradient, or a value that a worker sends, may have: 2⁶².
///
/// v is a mean of squares, so it stays at 2¹²⁴ or less; the rounding of β2 and 1 − β2 can add a half to that, and f32 goes to 2¹²⁸. A
/// sum of so many workers as there may be (2²⁰) stays within f32 too. No gradient of a sound run comes near: its v would be 2¹²⁴.
pub const LARGEST: f32 = (1u64 << 62) as f32;

multiversion! {
    /// True when no value is NaN, or larger than [`LARGEST`].
    pub fn all_within(x: &[f32]) -> bool {
        max_bits(x) <= LARGEST.to_bits()
    }
}

/// Magnitudes order like their bit patterns, with infinity above all numbers and NaN above infinity.
#[inline(always)]
pub(super) fn magnitude_bits(x: f32) -> u32 {
    x.to_bits() & 0x7fff_ffff
}

#[inline(always)]
fn max_bits(x: &[f32]) -> u32 {
    let mut lanes = [0u32; LANES];
    let (whole, tail) = x.as_chunks::<LANES>();
    for chunk in whole {
        prefetch(chunk);
        for l in 0..LANES {
            lanes[l] = lanes[l].max(magnitude_bits(chunk[l]));
        }
    }
    tail.iter().map(|x| magnitude_bits(*x)).chain(lanes).max().unwrap_or(0)
}

multiversion! {
    /// Σ x.
    pub fn sum(x: &[f32]) -> f64 {
        let mut lanes = [0f64; LANES];
        let (whole, tail) = x.as_chunks::<LANES>();
        for chunk in whole {
            prefetch(chunk);
            for l in 0..LANES {
                lanes[l] += f64::from(chunk[l]);
            }
        }
        for (lane, x) in lanes.iter_mut().zip(tail) {
            *lane += f64::from(*x);
        }
        add_lanes(lanes)
    }
}

multiversion! {
    /// Σ x².
    pub fn sum_of_squares(x: &[f32]) -> f64 {
        let mut lanes = [0f64; LANES];
        let (whole, tail) = x.as_chunks::<LANES>();
        for chunk in whole {
            prefetch(chunk);
            for l in 0..LANES {
                lanes[l] += f64::from(chunk[l]) * f64::from(chunk[l]);
            }
        }
        for (lane, x) in lanes.iter_mut().zip(tail) {
            *lane += f64::from(*x) * f64::from(*x);
        }
        add_lanes(lanes)
    }
}

multiversion! {
    /// Σ bits(x_i)·w_i mod 2⁶⁴, with an odd 32-bit weight for each place from `at` on: values that differ in one place have different
    /// digests, and parts of a vector can be summed in any order, on any machine.
    pub fn digest(at: usize, x: &[f32]) -> u64 {
        let mut sum = 0u64;
        for (i, x) in x.iter().enumerate() {
            let weight = ((at + i) as u32).wrapping_mul(0x3c6e_f372) | 1;
            sum = sum.wrapping_add(u64::from(x.to_bits()) * u64::from(weight));
        }
        sum
    }
}

multiversion! {
    /// e ← x + e; returns max|e|, or infinity or NaN when some new e is.
    pub fn add_max_abs(x: &[f32], e: &mut [f32]) -> f32 {
        assert_eq!(x.len(), e.len());
        let (xs, x_tail) = x.as_chunks::<LANES>();
        let (es, e_tail) = e.as_chunks_mut::<LANES>();
        let mut lanes = [0u32; LANES];
        for (x, e) in xs.iter().zip(es) {
            prefetch(x);
            prefetch(e);
            let z: [f32; LANES] = std::array::from_fn(|l| x[l] + e[l]);
            *e = z;
            for l in 0..LANES {
                lanes[l] = lanes[l].max(magnitude_bits(z[l]));
            }
        }
        e_tail.iter_mut().zip(x_tail).for_each(|(e, x)| *e += *x);
        f32::from_bits(lanes.into_iter().max().unwrap_or(0).max(max_bits(e_tail)))
    }
}

multiversion! {
    /// x ← x / divisor: a sum becomes a mean.
    pub fn divide(divisor: f32, x: &mut [f32]) {
        match exact_inverse(divisor) {
            Some(1.0) => {}
            Some(inverse) => x.iter_mut().for_each(|x| *x *= inverse),
            None => x.iter_mut().for_each(|x| *x /= divisor),
        }
    }
}

/// A power of two has an exact inverse, with the same products as quotients, and multiplying is many times faster.
#[inline(always)]
pub fn exact_inverse(divisor: f32) -> Option<f32> {
    let inverse = 1.0 / divisor;
    (divisor.to_bits() << 9 == 0 && inverse.is_normal()).then_some(inverse)
}

/// The sum of the lanes.
#[inline(always)]
pub fn add_lanes(mut lanes: [f64; LANES]) -> f64 {
    for half in [16, 8, 4, 2, 1] {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
    }
    lanes[0]
}
