//! One value of a residual as the passes over blocks see it: kept in 32 bits a value, or in 16, and 32 wherever something is done with it.

use super::bf16::{self, Half};

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// One value of a residual.
pub trait ResidualValue: Copy {
    /// As it is.
    fn get(self) -> f32;

    /// What is kept of a finite z.
    fn put(z: f32) -> Self;

    /// Eight at once: [`ResidualValue::get`].
    ///
    /// # Safety
    /// The CPU has AVX2, and eight values from `at` on may be read.
    #[cfg(target_arch = "x86_64")]
    unsafe fn get_avx2(at: *const Self) -> __m256;

    /// Eight at once: [`ResidualValue::put`].
    ///
    /// # Safety
    /// The CPU has AVX2, and eight values from `at` on may be written.
    #[cfg(target_arch = "x86_64")]
    unsafe fn put_avx2(at: *mut Self, z: __m256);

    /// Sixteen at once: [`ResidualValue::get`].
    ///
    /// # Safety
    /// The CPU has what [`Level::Avx512`](super::Level) stands for, and sixteen values from `at` on may be read.
    #[cfg(target_arch = "x86_64")]
    unsafe fn get_avx512(at: *const Self) -> __m512;

    /// Thirty-two at once: [`ResidualValue::put`].
    ///
    /// # Safety
    /// The CPU has what [`Level::Avx512`](super::Level) stands for, and thirty-two values from `at` on may be written.
    #[cfg(target_arch = "x86_64")]
    unsafe fn put_avx512(at: *mut Self, z: [__m512; 2]);
}

// SAFETY, of every block below: the caller answers for the CPU and for the memory; loads and stores are unaligned ones.

impl ResidualValue for f32 {
    #[inline(always)]
    fn get(self) -> f32 {
        self
    }

    #[inline(always)]
    fn put(z: f32) -> f32 {
        z
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn get_avx2(at: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(at) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn put_avx2(at: *mut f32, z: __m256) {
        unsafe { _mm256_storeu_ps(at, z) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn get_avx512(at: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(at) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn put_avx512(at: *mut f32, z: [__m512; 2]) {
        unsafe {
            _mm512_storeu_ps(at, z[0]);
            _mm512_storeu_ps(at.add(16), z[1]);
        }
    }
}

/// Where no residual is kept: −0, whatever is put there, which added to any value is that value. It has no size, so a slice of it is no
/// memory, and the passes over blocks need no second form.
#[derive(Clone, Copy, Debug)]
pub struct Forgotten;

impl ResidualValue for Forgotten {
    #[inline(always)]
    fn get(self) -> f32 {
        -0.0
    }

    #[inline(always)]
    fn put(_: f32) -> Forgotten {
        Forgotten
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn get_avx2(_: *const Forgotten) -> __m256 {
        unsafe { _mm256_set1_ps(-0.0) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn put_avx2(_: *mut Forgotten, _: __m256) {}

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn get_avx512(_: *const Forgotten) -> __m512 {
        unsafe { _mm512_set1_ps(-0.0) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn put_avx512(_: *mut Forgotten, _: [__m512; 2]) {}
}

/// The arithmetic is [`bf16::narrow`]'s and [`bf16::widen`]'s.
impl ResidualValue for Half {
    #[inline(always)]
    fn get(self) -> f32 {
        bf16::widen(self)
    }

    #[inline(always)]
    fn put(z: f32) -> Half {
        bf16::narrow(z)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn get_avx2(at: *const Half) -> __m256 {
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())))) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn put_avx2(at: *mut Half, z: __m256) {
        unsafe {
            let bits = _mm256_castps_si256(z);
            let magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fff_ffff));
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(magnitude), _mm256_set1_epi32(1));
            let up = _mm256_add_epi32(_mm256_add_epi32(magnitude, _mm256_set1_epi32(0x7fff)), odd);
            let rounded = _mm256_min_epu32(_mm256_srli_epi32::<16>(up), _mm256_set1_epi32(bf16::LARGEST as i32));
            let sign = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(0x8000));
            let words = _mm256_or_si256(rounded, sign);
            // Packs within each half of the register; the first and the third quarter are the eight.
            let packed = _mm256_permute4x64_epi64::<0b10_00>(_mm256_packus_epi32(words, words));
            _mm_storeu_si128(at.cast(), _mm256_castsi256_si128(packed));
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn get_avx512(at: *const Half) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast())))) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn put_avx512(at: *mut Half, z: [__m512; 2]) {
        unsafe {
            let rounded = [rounded_avx512(z[0]), rounded_avx512(z[1])];
            _mm512_storeu_si512(at.cast(), _mm512_permutex2var_epi16(rounded[0], upper_halves(), rounded[1]));
        }
    }
}

/// Sixteen values whose upper halves are what is kept of z. A function and not a closure: those are compiled for the baseline where what
/// they stand in is, and then call each intrinsic.
///
/// # Safety
/// The CPU has what [`Level::Avx512`](super::Level) stands for.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn rounded_avx512(z: __m512) -> __m512i {
    unsafe {
        // The smaller magnitude of the two, with the sign of z.
        let z = _mm512_range_ps::<0b0010>(z, _mm512_set1_ps(f32::from_bits(bf16::LARGEST << 16)));
        let bits = _mm512_castps_si512(z);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd)
    }
}

/// Which words are the upper halves of two times sixteen numbers.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn upper_halves() -> __m512i {
    const WORDS: [u16; 32] = {
        let mut words = [0; 32];
        let mut i = 0;
        while i < 32 {
            words[i] = 2 * i as u16 + 1;
            i += 1;
        }
        words
    };
    // SAFETY: thirty-two words are one 512-bit vector.
    unsafe { _mm512_loadu_si512(WORDS.as_ptr().cast()) }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::{Level, best};
    use super::*;

    /// Every sign, every exponent, every digit that is kept; of those that are not, what may tip the scales.
    #[test]
    fn every_level_rounds_alike() {
        let lower = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
        let all = (0..=u16::MAX).flat_map(|upper| lower.map(|lower| f32::from_bits(u32::from(upper) << 16 | lower)));
        let mut all = all.filter(|z| z.is_finite()).collect::<Vec<_>>();
        all.resize(all.len().next_multiple_of(32), 0.0);
        for z in all.as_chunks::<32>().0 {
            let want = z.map(Half::put);
            if best() >= Level::Avx2 {
                let mut got = [[0xa5; 2]; 32];
                for at in [0, 8, 16, 24] {
                    // SAFETY: the CPU has it; eight values from `at` on lie within both arrays.
                    unsafe { Half::put_avx2(got[at..].as_mut_ptr(), _mm256_loadu_ps(z[at..].as_ptr())) };
                }
                assert_eq!(got, want, "AVX2, of {z:?}");
            }
            if best() == Level::Avx512 {
                let mut got = [[0xa5; 2]; 32];
                // SAFETY: the CPU has it; thirty-two values lie in both arrays.
                unsafe {
                    let z = [_mm512_loadu_ps(z.as_ptr()), _mm512_loadu_ps(z[16..].as_ptr())];
                    Half::put_avx512(got.as_mut_ptr(), z);
                }
                assert_eq!(got, want, "AVX-512, of {z:?}");
            }
        }
    }
}
