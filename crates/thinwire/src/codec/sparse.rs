//! `topk0.1x4`: the largest magnitudes of each block, with their places, in so many bits each; the rest is zero.
//!
//! Of `count` values the ⌈k·count⌉ largest are kept, equal ones from the front, as [`topk`](super::topk) does. With b bits, one is the sign
//! and the others choose among L = 2^(b−1) magnitudes, evenly spaced from the smallest that is kept, `low`, to the largest, `high`:
//! what is kept is alike in size, so nothing is spent on the range below. No value moves by more than itself, so it is a contraction.
//!
//! Wire: `low` and `high` as f32; the places; the codes of b bits, the sign in the lowest. The places are a bit for each value of the
//! block, or the numbers of those that are kept in as few bits as hold them, whichever is shorter; or nothing, where all are kept.

use super::{Codec, Fault, MAX_BLOCK, check_length, finite};
use crate::kernel::bits;
use crate::kernel::{reduce, select};

/// The codec `topk…x…`.
#[derive(Clone, Copy, Debug)]
pub struct Sparse {
    /// k, in millionths.
    pub(super) millionths: u32,
    /// b.
    pub(super) width: u32,
}

/// The bytes of `low` and `high`.
const RANGE: usize = 8;

/// How a block says which values it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Places {
    /// All of them.
    All,
    /// A bit for each value.
    Bitmap,
    /// The numbers of those that are kept, in so many bits.
    Numbers(u32),
}

impl Sparse {
    fn kept(self, count: usize) -> usize {
        (count as u64 * u64::from(self.millionths)).div_ceil(1_000_000) as usize
    }

    /// How so many of `count` are told apart, and the bytes it takes.
    fn places(kept: usize, count: usize) -> (Places, usize) {
        if kept == count {
            return (Places::All, 0);
        }
        let width = usize::BITS - (count - 1).leading_zeros();
        let (numbers, bitmap) = ((kept * width as usize).div_ceil(8), count.div_ceil(8));
        if numbers < bitmap { (Places::Numbers(width), numbers) } else { (Places::Bitmap, bitmap) }
    }

    fn grid(self, low: f32, high: f32) -> Grid {
        let last = (1 << (self.width - 1)) - 1;
        Grid { low, high, step: (high - low) / last as f32, last }
    }
}

/// The magnitudes that codes stand for.
struct Grid {
    low: f32,
    high: f32,
    step: f32,
    /// L − 1.
    last: u8,
}

impl Grid {
    fn code(&self, value: f32) -> u8 {
        let above = value.abs() - self.low;
        let level = match self.step > 0.0 {
            true => (above / self.step).round_ties_even().min(f32::from(self.last)) as u8,
            // Nothing lies between them, or less than f32 can say.
            false if above > self.high - value.abs() => self.last,
            false => 0,
        };
        level << 1 | u8::from(value.is_sign_negative())
    }

    fn value(&self, code: u8) -> f32 {
        let level = code >> 1;
        let magnitude = if level == self.last { self.high } else { self.low + self.step * f32::from(level) };
        if code & 1 == 1 { -magnitude } else { magnitude }
    }
}

impl Codec for Sparse {
    fn encoded_len(&self, count: usize) -> usize {
        let kept = self.kept(count);
        if kept == 0 { 0 } else { RANGE + Self::places(kept, count).1 + bits::packed_len(kept, self.width) }
    }

    fn encode_with(&self, x: &[f32], e: &mut [f32], out: &mut [u8]) -> Result<(), Fault> {
        if x.is_empty() {
            return Ok(());
        }
        let high = finite(reduce::add_max_abs(x, e))?; // e is z from here on
        let kept = self.kept(x.len());
        let (mut room, mut values, mut codes) = ([[0; 2]; MAX_BLOCK], [[0; 4]; MAX_BLOCK], [0; MAX_BLOCK]);
        let (room, values, codes) = (&mut room[..kept], &mut values[..kept], &mut codes[..kept]);
        select::take(select::cut(e, kept, high), e, room, values);
        let low = values.iter().map(|value| f32::from_le_bytes(*value).abs()).fold(high, f32::min);
        let grid = self.grid(low, high);
        for ((place, value), code) in room.iter().zip(values).zip(&mut *codes) {
            let value = f32::from_le_bytes(*value);
            *code = grid.code(value);
            e[usize::from(u16::from_le_bytes(*place))] = value - grid.value(*code);
        }
        let (range, rest) = out.split_at_mut(RANGE);
        range[..4].copy_from_slice(&low.to_le_bytes());
        range[4..].copy_from_slice(&high.to_le_bytes());
        let (places, len) = Self::places(kept, x.len());
        let (which, coded) = rest.split_at_mut(len);
        write_places(places, room, which);
        bits::pack(self.width, codes, coded);
        Ok(())
    }

    fn decode_add(&self, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault> {
        check_length(self, sum.len(), bytes)?;
        if sum.is_empty() {
            return Ok(());
        }
        let (range, rest) = bytes.split_at(RANGE);
        let [low, high] = [0, 4].map(|at| f32::from_le_bytes(*range[at..].first_chunk().expect("two scales")));
        for scale in [low, high] {
            if !scale.is_finite() || scale.is_sign_negative() {
                return Err(Fault::Scale(scale));
            }
        }
        if low > high {
            return Err(Fault::Scale(low));
        }
        let (grid, count, kept) = (self.grid(low, high), sum.len(), self.kept(sum.len()));
        let (places, len) = Self::places(kept, count);
        let (which, coded) = rest.split_at(len);
        let codes = &mut [0; MAX_BLOCK][..kept];
        bits::unpack(self.width, coded, codes);
        let mut codes = codes.iter();
        let mut next = 0;
        let mut add = |place: usize| match codes.next() {
            Some(code) if (next..count).contains(&place) => {
                next = place + 1;
                sum[place] += grid.value(*code);
                Ok(())
            }
            _ => Err(Fault::Index { index: place, count }),
        };
        match places {
            Places::All => (0..count).try_for_each(&mut add)?,
            Places::Numbers(width) => numbers(which, width).take(kept).try_for_each(&mut add)?,
            Places::Bitmap => {
                for (at, byte) in which.iter().enumerate() {
                    let mut byte = *byte;
                    while byte != 0 {
                        add(8 * at + byte.trailing_zeros() as usize)?;
                        byte &= byte - 1;
                    }
                }
            }
        }
        // A bitmap may have too few.
        if codes.next().is_some() { Err(Fault::Index { index: count, count }) } else { Ok(()) }
    }
}

fn write_places(places: Places, kept: &[[u8; 2]], out: &mut [u8]) {
    let kept = kept.iter().map(|place| u16::from_le_bytes(*place));
    out.fill(0);
    match places {
        Places::All => {}
        Places::Bitmap => kept.for_each(|place| out[usize::from(place / 8)] |= 1 << (place % 8)),
        Places::Numbers(width) => {
            for (i, place) in kept.enumerate() {
                // At most 12 bits from somewhere in a byte on: they end in the third at the latest.
                let at = i * width as usize;
                let word = (u32::from(place) << (at % 8)).to_le_bytes();
                out[at / 8..].iter_mut().zip(word).for_each(|(out, byte)| *out |= byte);
            }
        }
    }
}

/// The numbers that [`write_places`] wrote.
fn numbers(bytes: &[u8], width: u32) -> impl Iterator<Item = usize> + '_ {
    (0..).map(move |i| {
        let at = i * width as usize;
        let mut word = [0; 4];
        word.iter_mut().zip(&bytes[at / 8..]).for_each(|(word, byte)| *word = *byte);
        (u32::from_le_bytes(word) >> (at % 8) & ((1 << width) - 1)) as usize
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8 of 512 are numbered in 9 bits each, 102 of 512 have a bitmap, 1 of 1 needs nothing.
    #[test]
    fn places_take_as_little_as_they_can() {
        assert_eq!(Sparse::places(8, 512), (Places::Numbers(9), 9));
        assert_eq!(Sparse::places(103, 512), (Places::Bitmap, 64));
        assert_eq!(Sparse::places(1, 1), (Places::All, 0));
        assert_eq!(Sparse::places(1, 2), (Places::Bitmap, 1));
        let len = |millionths, width| Sparse { millionths, width }.encoded_len(512);
        assert_eq!((len(15_625, 2), len(200_000, 4), len(1_000_000, 3)), (8 + 9 + 2, 8 + 64 + 52, 8 + 192));
    }

    /// Values of very different size: the grid begins at the smallest that is kept.
    #[test]
    fn magnitudes_are_even_steps_between_the_smallest_and_the_largest_kept() {
        let codec = Sparse { millionths: 500_000, width: 3 };
        let (z, mut lost, mut out) = ([4.0, -1.0, 0.5, 0.25, -1.9, 0.0, 0.1, 7.0], [0.0; 8], [0; 64]);
        let out = &mut out[..codec.encoded_len(8)];
        codec.encode_with(&z, &mut lost, out).unwrap();
        let mut q = [0.0; 8];
        codec.decode(out, &mut q).unwrap();
        assert_eq!(q, [5.0, -1.0, 0.0, 0.0, -1.0, 0.0, 0.0, 7.0]); // 1, 3, 5, 7
        assert_eq!(lost[..5], [-1.0, 0.0, 0.5, 0.25, -0.9]);
    }
}
