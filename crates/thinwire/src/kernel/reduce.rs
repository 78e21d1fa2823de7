//! One number out of a vector: is it finite, what is its sum, what is its largest magnitude?
//!
//! Sums run in sixteen f64 lanes, value i in lane i mod 16, and the lanes are added in a fixed order. So the result
//! depends on the values alone, never on the CPU; and up to 2²⁹ equal f32 values add up without rounding, which is what
//! makes `sign` idempotent to the bit.

use super::multiversion;

const LANES: usize = 16;

multiversion! {
    /// True when no value is infinite or NaN.
    pub fn all_finite(x: &[f32]) -> bool {
        // The largest exponent decides; integer maxima have no order to keep, so they vectorise freely.
        x.iter().fold(0u32, |most, x| most.max(x.to_bits() & 0x7fff_ffff)) < f32::INFINITY.to_bits()
    }
}

multiversion! {
    /// Σ x.
    pub fn sum(x: &[f32]) -> f64 {
        let mut lanes = [0f64; LANES];
        let (whole, tail) = x.as_chunks::<LANES>();
        for chunk in whole {
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
    /// e ← x + e; returns Σ|e|, which is finite exactly when every new e is.
    pub fn add_sum_abs(x: &[f32], e: &mut [f32]) -> f64 {
        assert_eq!(x.len(), e.len());
        let mut lanes = [0f64; LANES];
        let (xs, x_tail) = x.as_chunks::<LANES>();
        let (es, e_tail) = e.as_chunks_mut::<LANES>();
        for (x, e) in xs.iter().zip(es) {
            for l in 0..LANES {
                e[l] += x[l];
                lanes[l] += f64::from(e[l].abs());
            }
        }
        for (lane, (x, e)) in lanes.iter_mut().zip(x_tail.iter().zip(e_tail)) {
            *e += *x;
            *lane += f64::from(e.abs());
        }
        add_lanes(lanes)
    }
}

multiversion! {
    /// e ← x + e; returns max|e|, or infinity or NaN when some new e is.
    pub fn add_max_abs(x: &[f32], e: &mut [f32]) -> f32 {
        assert_eq!(x.len(), e.len());
        let mut most = 0u32;
        for (x, e) in x.iter().zip(e) {
            *e += *x;
            // Magnitudes order like their bit patterns, and NaN stands above infinity.
            most = most.max(e.to_bits() & 0x7fff_ffff);
        }
        f32::from_bits(most)
    }
}

#[inline(always)]
fn add_lanes(mut lanes: [f64; LANES]) -> f64 {
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
    }
    lanes[0]
}
