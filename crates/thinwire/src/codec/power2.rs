//! `power2` … `power6`: levels that halve, b bits a value; the family of Efficient-Adam (arXiv 2205.14473).
//!
//! s = max |z| of the block; the grid is s·{0, ±2^−k … ±1/2, ±1} with k + 2 = 2^(b−1) magnitudes, zero among them: three
//! bits are seven points. C(z) is the nearest point; half-way it is the larger. Wire: s as f32, then b bits a value: the
//! top one is set below zero, the others count magnitudes from zero up.

use super::levels::Grid;
use crate::kernel::multiversion;

/// The codec `power2` to `power6`.
#[derive(Clone, Copy, Debug)]
pub struct Power2 {
    pub(super) width: u8,
}

impl Power2 {
    /// k + 1: the magnitudes above zero.
    fn magnitudes(self) -> u8 {
        (1 << (self.width - 1)) - 1
    }
}

impl Grid for Power2 {
    fn width(&self) -> u32 {
        u32::from(self.width)
    }

    fn nearest(&self, s: f32, z: &[f32], codes: &mut [u8]) {
        nearest(self.magnitudes(), s, z, codes);
    }

    fn points(&self, s: f32, codes: &[u8], out: &mut [f32]) {
        points(self.magnitudes(), s, codes, out);
    }

    fn largest(&self) -> u8 {
        2 * self.magnitudes() + 1
    }

    fn zero(&self) -> u8 {
        0
    }
}

const EXPONENT_OF_ONE: i32 = 127;

/// 2^exponent, for the exponents of normal numbers.
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + EXPONENT_OF_ONE) << 23) as u32)
}

multiversion! {
    pub fn nearest(magnitudes: u8, s: f32, z: &[f32], codes: &mut [u8]) {
        let magnitudes = i32::from(magnitudes);
        let half_of_smallest = power_of_two(-magnitudes);
        for (z, code) in z.iter().zip(codes) {
            let r = z.abs() / s;
            // r goes up to 2^−j from three quarters of it on: from where r·4/3 has that exponent.
            let exponent = ((r * (4.0 / 3.0)).to_bits() >> 23) as i32 - EXPONENT_OF_ONE;
            let count = (exponent + magnitudes).clamp(1, magnitudes);
            let count = if r < half_of_smallest { 0 } else { count };
            // A zero has no sign.
            let below_zero = (*z < 0.0) & (count > 0);
            *code = (count + if below_zero { magnitudes + 1 } else { 0 }) as u8;
        }
    }
}

multiversion! {
    pub fn points(magnitudes: u8, s: f32, codes: &[u8], out: &mut [f32]) {
        let magnitudes = i32::from(magnitudes);
        for (code, out) in codes.iter().zip(out) {
            let count = i32::from(*code) & magnitudes;
            let value = if count == 0 { 0.0 } else { power_of_two(count - magnitudes) * s };
            *out = if i32::from(*code) > magnitudes { -value } else { value };
        }
    }
}
