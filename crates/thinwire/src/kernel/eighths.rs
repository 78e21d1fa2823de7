//! Eight bits a value and one scale a block: how a residual is kept with `residual = "i8"`.
//!
//! s = max |z| of the block; a value is kept as round(z/s·127), halves to even, and read as code/127·s. The largest is read as ±s
//! itself, so what was rounded once is rounded to itself again.

use super::multiversion;

const LEVELS: f32 = 127.0;

/// A block whose largest magnitude is less is kept as zeros: below it the steps of f32 itself are too coarse for 127 levels.
const LEAST: f32 = 1e-30;

multiversion! {
    /// codes ← z, rounded; returns s. Every z is finite.
    pub fn narrow(z: &[f32], codes: &mut [i8]) -> f32 {
        assert_eq!(z.len(), codes.len());
        let largest = z.iter().fold(0.0_f32, |most, z| if z.abs() > most { z.abs() } else { most });
        let s = if largest < LEAST { 0.0 } else { largest };
        let least = if s > 0.0 { s } else { f32::INFINITY }; // what is divided by it is 0
        z.iter().zip(codes).for_each(|(z, code)| *code = (z / least * LEVELS).round_ties_even() as i8);
        s
    }
}

multiversion! {
    /// out ← the values.
    pub fn widen(s: f32, codes: &[i8], out: &mut [f32]) {
        assert_eq!(codes.len(), out.len());
        codes.iter().zip(out).for_each(|(code, out)| *out = f32::from(*code) / LEVELS * s);
    }
}

/// The same of blocks of `block` values, with a scale for each.
pub fn narrow_blocks(block: usize, z: &[f32], codes: &mut [i8], scales: &mut [f32]) {
    for ((z, codes), s) in z.chunks(block).zip(codes.chunks_mut(block)).zip(scales) {
        *s = narrow(z, codes);
    }
}

/// The same of blocks.
pub fn widen_blocks(block: usize, codes: &[i8], scales: &[f32], out: &mut [f32]) {
    for ((codes, out), s) in codes.chunks(block).zip(out.chunks_mut(block)).zip(scales) {
        widen(*s, codes, out);
    }
}

/// z ← z, rounded block by block, in 32 bits all the same.
pub fn round(block: usize, z: &mut [f32]) {
    let mut codes = [0; super::blocks::MAX_BLOCK];
    for z in z.chunks_mut(block) {
        let codes = &mut codes[..z.len()];
        let s = narrow(z, codes);
        widen(s, codes, z);
    }
}

multiversion! {
    /// lost ← (1−κ)·old + κ·lost: how much of what a code lost is remembered.
    pub fn remember(feedback: f32, old: &[f32], lost: &mut [f32]) {
        assert_eq!(old.len(), lost.len());
        old.iter().zip(lost).for_each(|(old, lost)| *lost = (1.0 - feedback) * old + feedback * *lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Within half a level of the block's largest; what was rounded stays; the largest is exact.
        #[test]
        fn rounding_is_near_and_final(
            z in proptest::collection::vec(prop_oneof![-1e3_f32..1e3, -1e-38_f32..1e-38, Just(0.0), Just(-0.0), -3e38_f32..3e38], 0..70),
            block in 1..40_usize,
        ) {
            let mut once = z.clone();
            round(block, &mut once);
            for (z, once) in z.chunks(block).zip(once.chunks(block)) {
                let largest = z.iter().fold(0.0_f32, |most, z| most.max(z.abs()));
                for (z, once) in z.iter().zip(once) {
                    let off = (f64::from(*z) - f64::from(*once)).abs();
                    prop_assert!(largest < LEAST && *once == 0.0 || off <= f64::from(largest) / 253.9, "{z} {once}");
                    prop_assert!(z.abs() < largest || largest < LEAST || z == once);
                }
            }
            let mut twice = once.clone();
            round(block, &mut twice);
            prop_assert!(once.iter().zip(&twice).all(|(once, twice)| once == twice));
        }
    }
}
