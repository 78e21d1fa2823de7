//! Small whole numbers, b bits each, packed with no bit lost: eight of them fill exactly b bytes.
//!
//! With AVX2 thirty-two go at once. Packing adds neighbours up, twos, fours and eights, each time the upper one times a power of two: then
//! eight numbers are a word of b bytes, and the words are pushed together. Unpacking brings the two bytes that hold a number into a
//! lane of their own, multiplies it up until nothing stands above the number, and shifts it down. Wider vectors gain nothing beside
//! what is done with the numbers.

use super::level;

#[cfg(target_arch = "x86_64")]
use super::Level;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Bytes that hold `count` numbers of `width` bits.
pub const fn packed_len(count: usize, width: u32) -> usize {
    (count * width as usize).div_ceil(8)
}

/// Packs `codes`, each below 2^width, the first in the lowest bits. `width` is 1 to 8.
pub fn pack(width: u32, codes: &[u8], out: &mut [u8]) {
    assert_eq!(out.len(), packed_len(codes.len(), width));
    match (width, level()) {
        (8, _) => out.copy_from_slice(codes),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `level()` names a level only after the CPU was found to have its features, and both have AVX2.
        (_, Level::Avx2 | Level::Avx512) => unsafe { pack_avx2(width, codes, out) },
        _ => pack_portable(width, codes, out),
    }
}

/// The inverse of [`pack`]. What `bytes` has behind those of `codes` does not count, but makes the last of them faster.
pub fn unpack(width: u32, bytes: &[u8], codes: &mut [u8]) {
    assert!(bytes.len() >= packed_len(codes.len(), width));
    match (width, level()) {
        (8, _) => codes.copy_from_slice(&bytes[..codes.len()]),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as in `pack`.
        (_, Level::Avx2 | Level::Avx512) => unsafe { unpack_avx2(width, bytes, codes) },
        _ => unpack_portable(width, bytes, codes),
    }
}

fn pack_portable(width: u32, codes: &[u8], out: &mut [u8]) {
    for (codes, out) in codes.chunks(8).zip(out.chunks_mut(width as usize)) {
        let mut word = 0u64;
        for (i, code) in codes.iter().enumerate() {
            word |= u64::from(*code) << (i as u32 * width);
        }
        out.copy_from_slice(&word.to_le_bytes()[..out.len()]);
    }
}

fn unpack_portable(width: u32, bytes: &[u8], codes: &mut [u8]) {
    let mask = (1u64 << width) - 1;
    for (codes, bytes) in codes.chunks_mut(8).zip(bytes.chunks(width as usize)) {
        let mut word = [0u8; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        for (i, code) in codes.iter_mut().enumerate() {
            *code = (word >> (i as u32 * width) & mask) as u8;
        }
    }
}

/// Which bytes are those of two words of `width` bytes each in eight, one behind the other; then zeros.
#[cfg(target_arch = "x86_64")]
const fn together(width: usize) -> [i8; 16] {
    let (mut bytes, mut i) = ([-1; 16], 0);
    while i < 2 * width {
        bytes[i] = (i / width * 8 + i % width) as i8;
        i += 1;
    }
    bytes
}

/// Of sixteen numbers of `width` bits: for each the two bytes that hold it, and 2^k, which shifts it to the top of them.
#[cfg(target_arch = "x86_64")]
const fn apart(width: usize) -> ([i8; 32], [i16; 16]) {
    let (mut bytes, mut factors, mut i) = ([0; 32], [0; 16], 0);
    while i < 16 {
        let bit = i * width;
        bytes[2 * i] = (bit / 8) as i8;
        bytes[2 * i + 1] = (bit / 8 + 1) as i8;
        factors[i] = (1u16 << (16 - width - bit % 8)) as i16;
        i += 1;
    }
    (bytes, factors)
}

#[cfg(target_arch = "x86_64")]
const TOGETHER: [[i8; 16]; 8] =
    [together(1), together(1), together(2), together(3), together(4), together(5), together(6), together(7)];

#[cfg(target_arch = "x86_64")]
const APART: [([i8; 32], [i16; 16]); 8] =
    [apart(1), apart(1), apart(2), apart(3), apart(4), apart(5), apart(6), apart(7)];

/// For widths up to 7: the sums of products below have no room for more.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn pack_avx2(width: u32, codes: &[u8], out: &mut [u8]) {
    let bytes = 2 * width as usize; // of sixteen numbers
    let twos = _mm256_set1_epi16((1u16 | 1 << (8 + width)) as i16);
    let fours = _mm256_set1_epi32(1 | 1 << (16 + 2 * width));
    let (lower, eights) = (_mm256_set1_epi64x(u32::MAX.into()), _mm_cvtsi32_si128(32 - 4 * width as i32));
    // SAFETY: sixteen bytes are one 128-bit vector.
    let together = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(TOGETHER[width as usize].as_ptr().cast()) });
    let (groups, tail) = codes.as_chunks::<32>();
    let (packed, last) = out.split_at_mut(2 * bytes * groups.len());
    for (i, codes) in groups.iter().enumerate() {
        // SAFETY: thirty-two bytes are one unaligned vector.
        let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
        let sums = _mm256_madd_epi16(_mm256_maddubs_epi16(twos, codes), fours);
        let (low, high) = (_mm256_and_si256(lower, sums), _mm256_andnot_si256(lower, sums));
        let words = _mm256_shuffle_epi8(_mm256_or_si256(low, _mm256_srl_epi64(high, eights)), together);
        let halves = [_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words)];
        for (half, at) in halves.into_iter().zip([2 * i * bytes, (2 * i + 1) * bytes]) {
            // The zeros behind it are written over next; at the end there is no room for them.
            let mut room = [0; 16];
            let behind = packed.get_mut(at..at + 16);
            let fits = behind.is_some();
            let place = behind.map_or(room.as_mut_ptr(), |place| place.as_mut_ptr());
            // SAFETY: sixteen bytes are one unaligned vector.
            unsafe { _mm_storeu_si128(place.cast(), half) };
            if !fits {
                packed[at..at + bytes].copy_from_slice(&room[..bytes]);
            }
        }
    }
    pack_portable(width, tail, last);
}

/// For widths up to 7.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn unpack_avx2(width: u32, bytes: &[u8], codes: &mut [u8]) {
    let len = 2 * width as usize; // of sixteen numbers
    let (apart, factors) = &APART[width as usize];
    // SAFETY: each array is one unaligned vector.
    let (apart, factors) =
        unsafe { (_mm256_loadu_si256(apart.as_ptr().cast()), _mm256_loadu_si256(factors.as_ptr().cast())) };
    let down = _mm_cvtsi32_si128(16 - width as i32);
    let (groups, tail) = codes.as_chunks_mut::<32>();
    let last = &bytes[2 * len * groups.len()..];
    let sixteen = |at: usize| {
        let mut room = [0; 16];
        // What is read behind the sixteen numbers is not looked at.
        let from = match bytes.get(at..at + 16) {
            Some(bytes) => bytes,
            None => {
                room[..len].copy_from_slice(&bytes[at..at + len]);
                &room
            }
        };
        // SAFETY: sixteen bytes are one unaligned vector.
        let bytes = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(from.as_ptr().cast()) });
        _mm256_srl_epi16(_mm256_mullo_epi16(_mm256_shuffle_epi8(bytes, apart), factors), down)
    };
    for (i, codes) in groups.iter_mut().enumerate() {
        let (first, second) = (sixteen(2 * i * len), sixteen((2 * i + 1) * len));
        // Packs within each half of the register: the quarters are those of first, second, first, second.
        let in_order = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(first, second));
        // SAFETY: thirty-two bytes are one unaligned vector.
        unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), in_order) };
    }
    unpack_portable(width, last, tail);
}
