//! A part of a vector: every K-th stripe of its blocks. Parts are averaged by turns, so that no round is long.
//!
//! With stripes of w blocks, block b belongs to part ⌊b/w⌋ mod K. Stripes are dealt out like cards, so that each part has something of
//! each layer, and of each owner's blocks. The cut depends on the vector alone, not on the number of workers.

use std::ops::Range;

/// The widest stripe, in blocks.
const WIDEST: usize = 64;

/// A part has at least so many stripes if there are blocks enough, so that owners have about as much of each part.
const FEWEST: usize = 256;

/// One of K parts of a vector of values in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    /// Values in a block.
    block: usize,
    /// w, in blocks.
    width: usize,
    /// K.
    parts: usize,
    /// Which of them: 0 to K − 1.
    part: usize,
}

impl Stripes {
    /// The only part of a vector that is not cut.
    pub const WHOLE: Stripes = Stripes { block: 1, width: 1, parts: 1, part: 0 };

    /// The first of `parts` parts of a vector of so many values, in blocks of so many.
    pub fn new(values: usize, block: usize, parts: usize) -> Stripes {
        let width = (values.div_ceil(block) / (parts * FEWEST)).clamp(1, WIDEST);
        Stripes { block, width, parts, part: 0 }
    }

    /// Another part of the same vector.
    pub fn of(self, part: usize) -> Stripes {
        debug_assert!(part < self.parts, "part {part} of {}", self.parts);
        Stripes { part, ..self }
    }

    /// Whether there is only one part.
    pub fn is_whole(self) -> bool {
        self.parts == 1
    }

    /// How many of the part's blocks come before block `block` of the vector.
    pub fn before(self, block: usize) -> usize {
        let turn = self.width * self.parts;
        block / turn * self.width + (block % turn).saturating_sub(self.part * self.width).min(self.width)
    }

    /// Where in the vector block `i` of the part is.
    pub fn place(self, i: usize) -> usize {
        (i / self.width * self.parts + self.part) * self.width + i % self.width
    }

    /// The stretches of the vector's blocks that blocks `range` of the part are, in order. Of a whole vector it is the range itself, also
    /// if it is empty.
    pub fn stretches(self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (mut from, mut is_over) = (range.start, self.is_whole());
        let whole = self.is_whole().then_some(range.clone());
        let stripes = std::iter::from_fn(move || {
            is_over |= from >= range.end;
            let to = (from / self.width + 1).saturating_mul(self.width).min(range.end);
            let first = std::mem::replace(&mut from, to);
            (!is_over).then(|| self.place(first)..self.place(first) + (to - first))
        });
        whole.into_iter().chain(stripes)
    }

    /// Cuts out of the vector's values in `range` what belongs to the part, counted from the start of the range.
    pub fn cut(self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let blocks = self.before(range.start / self.block)..self.before(range.end.div_ceil(self.block));
        self.stretches(blocks).map(move |stretch| {
            let [from, to] = [stretch.start, stretch.end].map(|at| (at * self.block).clamp(range.start, range.end));
            from - range.start..to - range.start
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Stripes of any width, where `new` makes wide ones for long vectors only.
    fn stripes(block: usize, width: usize, parts: usize) -> impl Iterator<Item = Stripes> {
        (0..parts).map(move |part| Stripes { block, width, parts, part })
    }

    proptest! {
        /// Every value is in one part, wherever the vector is cut; the blocks of a part are numbered in order.
        #[test]
        fn each_value_is_in_one_part(
            (block, width, parts) in (1..9_usize, 1..5_usize, 1..6_usize),
            (from, len) in (0..200_usize, 0..200_usize),
        ) {
            let mut found = vec![0; len];
            for stripes in stripes(block, width, parts) {
                for stretch in stripes.cut(from..from + len) {
                    prop_assert!(stripes.is_whole() || len == 0 || !stretch.is_empty());
                    for at in stretch {
                        prop_assert_eq!((from + at) / block / width % parts, stripes.part);
                        found[at] += 1;
                    }
                }
                let places = (0..50).map(|i| stripes.place(i)).collect::<Vec<_>>();
                for (i, place) in places.iter().enumerate() {
                    prop_assert_eq!((stripes.before(*place), stripes.before(place + 1)), (i, i + 1));
                }
                let stretched = stripes.stretches(3..41).flatten().collect::<Vec<_>>();
                prop_assert_eq!(&stretched[..], &places[3..41]);
            }
            prop_assert!(found.iter().all(|count| *count == 1));
        }
    }

    #[test]
    fn short_vectors_have_narrow_stripes_and_long_ones_wide() {
        let width = |values, parts| Stripes::new(values, 512, parts).width;
        assert_eq!((width(0, 8), width(100_000, 8)), (1, 1));
        assert_eq!((width(7_000_000, 4), width(10_000_000_000, 8)), (13, 64));
        assert!(Stripes::new(100, 512, 1).stretches(2..2).eq(std::iter::once(2..2)));
    }
}
