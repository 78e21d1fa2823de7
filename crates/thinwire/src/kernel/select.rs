//! The largest magnitudes of a block: where to cut, found by counting.
//!
//! Magnitudes order like their bit patterns, so the cut can be found by halving a range of whole numbers, each time counting the values
//! that reach its middle. Counting is a pass over the first-level cache with nothing but comparisons, where a histogram or a sort would go
//! from value to value. Where few are kept, there is a better start: the same cut of the largest of every eight, which are an eighth of the
//! values. It lies at or below that of all, and mostly nothing is between them; so the search climbs from there.

use super::blocks::MAX_BLOCK;
use super::reduce::magnitude_bits;
use super::{Set, Work, at_level, multiversion};
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::Level;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Where the largest magnitudes are cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bits of a magnitude: larger ones are among the largest.
    pub least: u32,
    /// How many of those that equal it are too, from the front.
    pub equals: usize,
}

/// The largest of so many values stands for all of them at first.
const GROUP: usize = 8;

multiversion! {
    /// Where to cut so that `kept` of `z` are kept, 1 to all of them. No magnitude is larger than `largest`.
    pub fn cut(z: &[f32], kept: usize, largest: f32) -> Cut {
        let (groups, high) = (z.len() / GROUP, largest.to_bits() + 1);
        if kept > groups / 4 {
            return halve(z, kept, 0..high);
        }
        let maxima = &mut [0; MAX_BLOCK / GROUP][..groups];
        for z in z.chunks_exact(groups) {
            maxima.iter_mut().zip(z).for_each(|(most, z)| *most = magnitude_bits(*z).max(*most));
        }
        let mut low = high;
        for _ in 0..kept {
            // The next below: differences that wrap around are the largest.
            let next = maxima.iter().map(|most| most.wrapping_sub(low)).fold(0, u32::max).wrapping_add(low);
            low = low.min(next);
        }
        climb(z, kept, low..high)
    }
}

/// [`cut`], where at least `kept` values reach the start of `range`, and fewer its end. The cut is near the start.
#[inline(always)]
fn climb(z: &[f32], kept: usize, mut range: Range<u32>) -> Cut {
    for _ in 0..4 {
        // The next from there on: differences that wrap around are the largest.
        let next = z.iter().map(|z| magnitude_bits(*z).wrapping_sub(range.start)).fold(u32::MAX, u32::min);
        let least = next + range.start;
        let above = reaching(z, least + 1);
        if above <= kept {
            return Cut { least, equals: kept - above };
        }
        range.start = least + 1;
    }
    halve(z, kept, range)
}

/// [`cut`], where at least `kept` values reach the start of `range`, and fewer its end.
#[inline(always)]
fn halve(z: &[f32], kept: usize, range: Range<u32>) -> Cut {
    let (mut low, mut high, mut above) = (range.start, range.end, 0);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let count = reaching(z, middle);
        if count == kept {
            return Cut { least: middle - 1, equals: 0 };
        }
        if count > kept { low = middle } else { (high, above) = (middle, count) }
    }
    Cut { least: low, equals: kept - above }
}

/// How many magnitudes are at least `bits`, which is not 0.
#[inline(always)]
fn reaching(z: &[f32], bits: u32) -> usize {
    // Signed, as all CPUs compare vectors of whole numbers.
    let below = bits as i32 - 1;
    z.iter().map(|z| i32::from(magnitude_bits(*z) as i32 > below)).sum::<i32>() as usize
}

/// Moves what the cut keeps out of `z`, in order, to `places` and `values`; 0 is left in its place.
pub fn take(cut: Cut, z: &mut [f32], places: &mut [[u8; 2]], values: &mut [[u8; 4]]) {
    at_level(Take { cut, z, places, values });
}

struct Take<'a> {
    cut: Cut,
    z: &'a mut [f32],
    places: &'a mut [[u8; 2]],
    values: &'a mut [[u8; 4]],
}

impl Work for Take<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Cut { least, mut equals } = self.cut;
        let mut kept = self.places.iter_mut().zip(self.values);
        let (sixteens, tail) = self.z.as_chunks_mut::<16>();
        let behind = 16 * sixteens.len();
        let mut keep = |at: usize, z: &mut f32| {
            if magnitude_bits(*z) == least {
                if equals == 0 {
                    return;
                }
                equals -= 1;
            }
            let (place, value) = kept.next().expect("as many places as values kept");
            *place = (at as u16).to_le_bytes();
            *value = std::mem::take(z).to_le_bytes();
        };
        for (z, from) in sixteens.iter_mut().zip((0..).step_by(16)) {
            let mut which = reach::<S>(z, least);
            while which != 0 {
                let i = which.trailing_zeros() as usize;
                keep(from + i, &mut z[i]);
                which &= which - 1;
            }
        }
        for (z, at) in tail.iter_mut().zip(behind..).filter(|(z, _)| magnitude_bits(**z) >= least) {
            keep(at, z);
        }
    }
}

/// A bit for each value whose magnitude is at least `least`.
#[inline(always)]
fn reach<S: Set>(z: &[f32; 16], least: u32) -> u16 {
    match S::LEVEL {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: code for this level runs only on a CPU that has it; sixteen values are one unaligned vector.
        Level::Avx512 => unsafe {
            let magnitudes = _mm512_and_si512(_mm512_loadu_si512(z.as_ptr().cast()), _mm512_set1_epi32(i32::MAX));
            _mm512_cmpge_epu32_mask(magnitudes, _mm512_set1_epi32(least as i32))
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above; eight values are one.
        Level::Avx2 => unsafe {
            let below = _mm256_set1_epi32(least as i32 - 1); // of magnitudes, so that signed comparisons will do
            let eight = |z: &[f32]| {
                let magnitudes = _mm256_and_si256(_mm256_loadu_si256(z.as_ptr().cast()), _mm256_set1_epi32(i32::MAX));
                _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(magnitudes, below))) as u16
            };
            eight(&z[..8]) | eight(&z[8..]) << 8
        },
        _ => (0..16).fold(0, |which, i| which | u16::from(magnitude_bits(z[i]) >= least) << i),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What a stable sort by magnitude puts first is taken, in the order of places; of few different values too.
        #[test]
        fn the_largest_are_taken_and_of_equals_the_first(
            z in proptest::collection::vec(prop_oneof![-1e3_f32..1e3, (-3i8..=3).prop_map(f32::from), Just(-0.0)], 1..600),
            part in 1..=100_usize,
        ) {
            let kept = (z.len() * part).div_ceil(100);
            let mut order = (0..z.len()).collect::<Vec<_>>();
            order.sort_by(|a, b| z[*b].abs().total_cmp(&z[*a].abs()));
            let mut want = order[..kept].to_vec();
            want.sort_unstable();
            let largest = z.iter().fold(0.0_f32, |most, z| most.max(z.abs()));
            let (mut left, mut places, mut values) = (z.clone(), vec![[0; 2]; kept], vec![[0; 4]; kept]);
            take(cut(&z, kept, largest), &mut left, &mut places, &mut values);
            let got = places.into_iter().map(|place| u16::from_le_bytes(place).into()).collect::<Vec<usize>>();
            prop_assert_eq!(&got, &want);
            for (i, (left, z)) in left.iter().zip(&z).enumerate() {
                let taken = got.iter().position(|at| *at == i);
                prop_assert_eq!(taken.map(|at| f32::from_le_bytes(values[at]).to_bits()), taken.map(|_| z.to_bits()));
                prop_assert_eq!(left.to_bits(), if taken.is_some() { 0 } else { z.to_bits() });
            }
        }
    }
}
