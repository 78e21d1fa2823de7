//! Sixteen bits a value: the upper half of an f32, rounded to nearest, halves to even.
//!
//! A magnitude past the largest finite bf16 becomes that largest one, not infinity. Bytes are little-endian, as on the wire.

use super::multiversion;

/// One value.
pub type Half = [u8; 2];

pub(super) const LARGEST: u32 = 0x7f7f;

/// The nearest to a finite z.
#[inline(always)]
pub fn narrow(z: f32) -> Half {
    let bits = z.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let rounded = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
    ((bits >> 16 & 0x8000 | rounded.min(LARGEST)) as u16).to_le_bytes()
}

/// In 32 bits.
#[inline(always)]
pub fn widen(half: Half) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(half)) << 16)
}

multiversion! {
    /// out ← z, rounded. Every z is finite.
    pub fn write(z: &[f32], out: &mut [Half]) {
        assert_eq!(z.len(), out.len());
        z.iter().zip(out).for_each(|(z, out)| *out = narrow(*z));
    }
}

multiversion! {
    /// out ← the values, in 32 bits.
    pub fn read(halves: &[Half], out: &mut [f32]) {
        assert_eq!(halves.len(), out.len());
        halves.iter().zip(out).for_each(|(half, out)| *out = widen(*half));
    }
}

multiversion! {
    /// z ← z, rounded, in 32 bits all the same.
    pub fn round(z: &mut [f32]) {
        z.iter_mut().for_each(|z| *z = widen(narrow(*z)));
    }
}

/// Calls `work` on at most `MOST` values in 32 bits; what it leaves is rounded, unless it fails.
pub fn change<const MOST: usize, E>(
    halves: &mut [Half],
    work: impl FnOnce(&mut [f32]) -> Result<(), E>,
) -> Result<(), E> {
    // Clearing the room is another pass, so a block of the usual length has one of its own.
    const USUAL: usize = 512;
    if MOST > USUAL && halves.len() <= USUAL {
        return change::<USUAL, E>(halves, work);
    }
    let room = &mut [0.0; MOST][..halves.len()];
    read(halves, room);
    work(room)?;
    write(room, halves);
    Ok(())
}
