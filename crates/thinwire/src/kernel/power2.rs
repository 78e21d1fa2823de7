//! `power2` … `power6`: levels that halve, b bits a value; the family of Efficient-Adam (arXiv 2205.14473).
//!
//! s = max |z| of the block; the grid is s·{0, ±2^−k … ±1/2, ±1} with k + 2 = 2^(b−1) magnitudes, zero among them: three
//! bits are seven points. C(z) is the nearest point; half-way it is the larger. Wire: s as f32, then b bits a value: the
//! top one is set below zero, the others count magnitudes from zero up.

use super::grids::Grid;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// The grid of the codecs `power2` to `power6`.
#[derive(Clone, Copy, Debug)]
pub struct Power2 {
    /// b.
    pub width: u8,
}

impl Power2 {
    /// k + 1: the magnitudes above zero.
    #[inline(always)]
    fn magnitudes(self) -> u8 {
        (1 << (self.width - 1)) - 1
    }

    /// Of r·4/3: the least that is counted by its exponent, and the least that is not 0, from half of the smallest magnitude on. Between
    /// them is that magnitude. The exponents of f32 are numbered so that their lowest b − 1 bits are the count.
    #[inline(always)]
    fn limits(self) -> [f32; 2] {
        let magnitudes = i32::from(self.magnitudes());
        [power_of_two(1 - magnitudes), power_of_two(-magnitudes) * FOUR_THIRDS]
    }
}

const EXPONENT_OF_ONE: i32 = 127;

/// 2^exponent, for the exponents of normal numbers.
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + EXPONENT_OF_ONE) << 23) as u32)
}

/// r goes up to 2^−j from three quarters of it on: from where r·4/3 has that exponent.
const FOUR_THIRDS: f32 = 4.0 / 3.0;

impl Grid for Power2 {
    #[inline(always)]
    fn width(self) -> u32 {
        u32::from(self.width)
    }

    #[inline(always)]
    fn nearest(self, s: f32, z: f32) -> (u8, f32) {
        let magnitudes = u32::from(self.magnitudes());
        let y = z / s * FOUR_THIRDS;
        let [smallest, half] = self.limits();
        let count = (if y.abs() > smallest { y.abs() } else { smallest }).to_bits() >> 23 & magnitudes;
        let code = count | y.to_bits() >> (32 - self.width) & (magnitudes + 1);
        let code = if y.abs() < half { 0 } else { code }; // a zero has no sign
        (code as u8, self.point(s, code as u8))
    }

    #[inline(always)]
    fn point(self, s: f32, code: u8) -> f32 {
        let (code, magnitudes) = (u32::from(code), u32::from(self.magnitudes()));
        let count = code & magnitudes;
        let magnitude = (count + EXPONENT_OF_ONE as u32 - magnitudes) << 23;
        let sign = code << (32 - self.width) & 1 << 31;
        f32::from_bits(sign | if count == 0 { 0 } else { magnitude }) * s
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn nearest_avx512(self, s: __m512, z: __m512) -> __m512i {
        // SAFETY: the caller's.
        unsafe {
            let [smallest, half] = self.limits().map(|limit| _mm512_set1_ps(limit));
            let y = _mm512_mul_ps(_mm512_div_ps(z, s), _mm512_set1_ps(FOUR_THIRDS));
            // The larger magnitude of the two, with the sign of y.
            let limited = _mm512_castps_si512(_mm512_range_ps::<0b0011>(y, smallest));
            let sign = _mm512_srl_epi32(limited, _mm_cvtsi32_si128(32 - i32::from(self.width)));
            let (count, magnitudes) = (_mm512_srli_epi32::<23>(limited), _mm512_set1_epi32(self.magnitudes().into()));
            let counts = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(_mm512_abs_ps(y), half);
            // The bits of count where those of magnitudes are 1, elsewhere those of sign.
            _mm512_maskz_ternarylogic_epi32::<0xca>(counts, magnitudes, count, sign)
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn point_avx512(self, s: __m512, codes: __m512i) -> __m512 {
        // SAFETY: the caller's.
        unsafe {
            let magnitudes = i32::from(self.magnitudes());
            let count = _mm512_and_si512(codes, _mm512_set1_epi32(magnitudes));
            let exponent = _mm512_add_epi32(count, _mm512_set1_epi32(EXPONENT_OF_ONE - magnitudes));
            let magnitude = _mm512_maskz_slli_epi32::<23>(_mm512_test_epi32_mask(count, count), exponent);
            let sign = _mm512_sll_epi32(codes, _mm_cvtsi32_si128(32 - i32::from(self.width)));
            let sign = _mm512_and_si512(sign, _mm512_set1_epi32(i32::MIN));
            _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(magnitude, sign)), s)
        }
    }

    #[inline(always)]
    fn largest(self) -> u8 {
        2 * self.magnitudes() + 1
    }

    #[inline(always)]
    fn zero(self) -> u8 {
        0
    }
}
