//! `uniform2` … `uniform8`: evenly spaced levels, b bits a value.
//!
//! s = max |z| of the block, L = 2^(b−1) − 1 levels a side; C(z) = round(z/s·L)/L·s, halves to even. Zero is a level, so
//! no value moves away from it: |z − C(z)| ≤ |z| for each. Wire: s as f32, then b bits a value, holding level + L.

use super::grids::Grid;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// The grid of the codecs `uniform2` to `uniform8`.
#[derive(Clone, Copy, Debug)]
pub struct Uniform {
    /// b.
    pub width: u8,
}

impl Uniform {
    /// L: the levels on each side of zero.
    #[inline(always)]
    fn levels(self) -> u8 {
        (1 << (self.width - 1)) - 1
    }
}

/// 1.5·2²³: what is added to it, up to 2²², is rounded to a whole number, halves to even, which then is its lowest bits.
const ROUND: f32 = 12_582_912.0;

impl Uniform {
    /// 1/L in two parts, the upper one of so few digits that its product with a level is exact.
    #[inline(always)]
    fn inverse(self) -> [f32; 2] {
        let levels = f32::from(self.levels());
        let upper = f32::from_bits((1.0 / levels).to_bits() & !0xff);
        [upper, (1.0 - levels * upper) / levels]
    }

    /// level/L·s, with level/L rounded as a division rounds it, which takes longer.
    #[inline(always)]
    fn times(self, s: f32, level: f32) -> f32 {
        let [upper, lower] = self.inverse();
        // This order gives s itself at the last level, also where s/L would underflow.
        (level * upper + level * lower) * s
    }
}

impl Grid for Uniform {
    #[inline(always)]
    fn width(self) -> u32 {
        u32::from(self.width)
    }

    #[inline(always)]
    fn nearest(self, s: f32, z: f32) -> (u8, f32) {
        let rounded = z / s * f32::from(self.levels()) + ROUND;
        let level = rounded.to_bits() as u8; // of ROUND these bits are 0
        (level.wrapping_add(self.levels()), self.times(s, rounded - ROUND))
    }

    #[inline(always)]
    fn point(self, s: f32, code: u8) -> f32 {
        self.times(s, f32::from(code) - f32::from(self.levels()))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn nearest_avx512(self, s: __m512, z: __m512) -> __m512i {
        // SAFETY: the caller's.
        unsafe {
            let levels = _mm512_set1_ps(self.levels().into());
            let level = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_div_ps(z, s), levels));
            _mm512_add_epi32(level, _mm512_set1_epi32(self.levels().into()))
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn point_avx512(self, s: __m512, codes: __m512i) -> __m512 {
        // SAFETY: the caller's.
        unsafe {
            let [upper, lower] = self.inverse().map(|part| _mm512_set1_ps(part));
            let level = _mm512_cvtepi32_ps(_mm512_sub_epi32(codes, _mm512_set1_epi32(self.levels().into())));
            let quotient = _mm512_add_ps(_mm512_mul_ps(level, upper), _mm512_mul_ps(level, lower));
            _mm512_mul_ps(quotient, s)
        }
    }

    #[inline(always)]
    fn largest(self) -> u8 {
        2 * self.levels()
    }

    #[inline(always)]
    fn zero(self) -> u8 {
        self.levels()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_quotient_to_the_bit() {
        for uniform in (2..=8).map(|width| Uniform { width }) {
            let levels = i16::from(uniform.levels());
            for level in -levels..=levels {
                let quotient = f32::from(level) / f32::from(levels);
                assert_eq!(uniform.times(1.0, level.into()).to_bits(), quotient.to_bits(), "{level}/{levels}");
            }
        }
    }
}
