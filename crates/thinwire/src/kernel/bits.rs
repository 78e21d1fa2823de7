//! Small whole numbers, b bits each, packed with no bit lost: eight of them fill exactly b bytes.

use super::multiversion;

/// Bytes that hold `count` numbers of `width` bits.
pub const fn packed_len(count: usize, width: u32) -> usize {
    (count * width as usize).div_ceil(8)
}

multiversion! {
    /// Packs `codes`, each below 2^width, the first in the lowest bits. `width` is 1 to 8.
    pub fn pack(width: u32, codes: &[u8], out: &mut [u8]) {
        assert_eq!(out.len(), packed_len(codes.len(), width));
        for (codes, out) in codes.chunks(8).zip(out.chunks_mut(width as usize)) {
            let mut word = 0u64;
            for (i, code) in codes.iter().enumerate() {
                word |= u64::from(*code) << (i as u32 * width);
            }
            out.copy_from_slice(&word.to_le_bytes()[..out.len()]);
        }
    }
}

multiversion! {
    /// The inverse of [`pack`].
    pub fn unpack(width: u32, bytes: &[u8], codes: &mut [u8]) {
        assert_eq!(bytes.len(), packed_len(codes.len(), width));
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
}
