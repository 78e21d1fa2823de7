//! IEEE half precision, rounded to nearest, halves to even: a sign, five bits of exponent, ten of fraction.
//!
//! A magnitude past the largest finite half becomes that largest one, not infinity. With AVX2 a CPU has an
//! instruction for each way. The portable twins do it in a few operations on whole numbers. No f32 in between is denormal, so a program
//! that has told the CPU to take those for 0 has the same bits.

use super::Set;

#[cfg(target_arch = "x86_64")]
use super::Level;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// 2^−14, the smallest normal half.
const LEAST_NORMAL: u32 = 113 << 23;

/// 65504.
const LARGEST: u32 = 0x477f_e000;

/// One half, of which a step is one of the smallest halves': what is added to it is rounded to those.
const ONE_HALF: u32 = 126 << 23;

/// The nearest to a finite z.
#[inline(always)]
pub fn narrow(z: f32) -> [u8; 2] {
    let (sign, magnitude) = (z.to_bits() >> 16 & 0x8000, (z.to_bits() & 0x7fff_ffff).min(LARGEST));
    let denormal = (f32::from_bits(magnitude) + f32::from_bits(ONE_HALF)).to_bits().wrapping_sub(ONE_HALF);
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    ((sign | if magnitude < LEAST_NORMAL { denormal } else { normal }) as u16).to_le_bytes()
}

/// In 32 bits.
#[inline(always)]
pub fn widen(half: [u8; 2]) -> f32 {
    let half = u32::from(u16::from_le_bytes(half));
    let (sign, digits) = ((half & 0x8000) << 16, (half & 0x7fff) << 13);
    let normal = digits + (112 << 23);
    let not_finite = digits + (224 << 23);
    // The digits of a denormal half are behind a 1 that they do not have.
    let denormal = (f32::from_bits(digits + LEAST_NORMAL) - f32::from_bits(LEAST_NORMAL)).to_bits();
    let magnitude = if digits < 1 << 23 { denormal } else { normal };
    f32::from_bits(sign | if digits < 31 << 23 { magnitude } else { not_finite })
}

/// out ← [`narrow`] of finite z.
#[inline(always)]
pub(super) fn narrow_all<S: Set>(z: &[f32], out: &mut [[u8; 2]]) {
    let ((zs, z_tail), (outs, out_tail)) = (z.as_chunks::<16>(), out.as_chunks_mut::<16>());
    for (z, out) in zs.iter().zip(outs) {
        match S::LEVEL {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: code for this level runs only on a CPU that has it; both arrays are of sixteen.
            Level::Avx512 => unsafe {
                let (z, largest) = (_mm512_loadu_ps(z.as_ptr()), _mm512_set1_ps(f32::from_bits(LARGEST)));
                // The smaller magnitude of the two, with the sign of z.
                let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_range_ps::<0b0010>(z, largest));
                _mm256_storeu_si256(out.as_mut_ptr().cast(), halves);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx2 => unsafe {
                let largest = _mm256_set1_ps(f32::from_bits(LARGEST));
                for (z, out) in z.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<8>().0) {
                    let least = _mm256_xor_ps(largest, _mm256_set1_ps(-0.0));
                    let z = _mm256_min_ps(_mm256_max_ps(_mm256_loadu_ps(z.as_ptr()), least), largest);
                    _mm_storeu_si128(out.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(z));
                }
            },
            _ => z.iter().zip(out).for_each(|(z, out)| *out = narrow(*z)),
        }
    }
    z_tail.iter().zip(out_tail).for_each(|(z, out)| *out = narrow(*z));
}

/// out ← [`widen`].
#[inline(always)]
pub(super) fn widen_all<S: Set>(halves: &[[u8; 2]], out: &mut [f32]) {
    let ((ins, in_tail), (outs, out_tail)) = (halves.as_chunks::<16>(), out.as_chunks_mut::<16>());
    for (halves, out) in ins.iter().zip(outs) {
        match S::LEVEL {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: code for this level runs only on a CPU that has it; both arrays are of sixteen.
            Level::Avx512 => unsafe {
                let halves = _mm256_loadu_si256(halves.as_ptr().cast());
                _mm512_storeu_ps(out.as_mut_ptr(), _mm512_cvtph_ps(halves));
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx2 => unsafe {
                for (halves, out) in halves.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<8>().0) {
                    let halves = _mm_loadu_si128(halves.as_ptr().cast());
                    _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(halves));
                }
            },
            _ => halves.iter().zip(out).for_each(|(half, out)| *out = widen(*half)),
        }
    }
    in_tail.iter().zip(out_tail).for_each(|(half, out)| *out = widen(*half));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_is_widened_as_the_crate_half_does() {
        for bits in 0..=u16::MAX {
            let (got, want) = (widen(bits.to_le_bytes()), half::f16::from_bits(bits));
            assert!(got.to_bits() == want.to_f32().to_bits() || got.is_nan() && want.is_nan(), "{bits:#06x}: {got}");
        }
    }

    /// Every sign, every exponent, every digit that is kept; of those that are not, what may tip the scales.
    #[test]
    fn a_value_is_rounded_as_the_crate_half_does() {
        let lower = [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff];
        let all = (0..1 << 19).flat_map(|upper: u32| lower.map(|lower| f32::from_bits(upper << 13 | lower)));
        // Of denormal halves more digits are dropped, up to all of them.
        let ties =
            (0..=1u32 << 13).flat_map(|n| [-1, 0, 1].map(|off| (n as f32 * 2f32.powi(-26)).to_bits() as i32 + off));
        let ties = ties.map(|bits| f32::from_bits(bits.max(0) as u32));
        for z in all.chain(ties).filter(|z| z.is_finite()) {
            let want = half::f16::from_f32(z.clamp(half::f16::MIN.to_f32(), half::f16::MAX.to_f32()));
            assert_eq!(narrow(z), want.to_le_bytes(), "{z:e}");
        }
    }
}
