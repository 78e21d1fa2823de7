//! `uniform2` … `uniform8`: evenly spaced levels, b bits a value.
//!
//! s = max |z| of the block, L = 2^(b−1) − 1 levels a side; C(z) = round(z/s·L)/L·s, halves to even. Zero is a level, so
//! no value moves away from it: |z − C(z)| ≤ |z| for each. Wire: s as f32, then b bits a value, holding level + L.

use super::levels::Grid;
use crate::kernel::multiversion;

/// The codec `uniform2` to `uniform8`.
#[derive(Clone, Copy, Debug)]
pub struct Uniform {
    pub(super) width: u8,
}

impl Uniform {
    /// L: the levels on each side of zero.
    fn levels(self) -> u8 {
        (1 << (self.width - 1)) - 1
    }
}

impl Grid for Uniform {
    fn width(&self) -> u32 {
        u32::from(self.width)
    }

    fn nearest(&self, s: f32, z: &[f32], codes: &mut [u8]) {
        nearest(f32::from(self.levels()), s, z, codes);
    }

    fn points(&self, s: f32, codes: &[u8], out: &mut [f32]) {
        points(f32::from(self.levels()), s, codes, out);
    }

    fn largest(&self) -> u8 {
        2 * self.levels()
    }

    fn zero(&self) -> u8 {
        self.levels()
    }
}

multiversion! {
    pub fn nearest(levels: f32, s: f32, z: &[f32], codes: &mut [u8]) {
        for (z, code) in z.iter().zip(codes) {
            *code = ((z / s * levels).round_ties_even() + levels) as i32 as u8;
        }
    }
}

multiversion! {
    pub fn points(levels: f32, s: f32, codes: &[u8], out: &mut [f32]) {
        for (code, out) in codes.iter().zip(out) {
            // This order gives s itself at the last level, also where s/levels would underflow.
            *out = (f32::from(*code) - levels) / levels * s;
        }
    }
}
