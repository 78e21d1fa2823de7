//! Ranges that lie side by side and cover a vector: parameter groups, or tensors.

use std::ops::Range;

/// Where each of them ends.
#[derive(Clone, Debug, Default)]
pub struct Ranges(Vec<usize>);

impl Ranges {
    /// Of these lengths, in order.
    pub fn new(lengths: impl IntoIterator<Item = usize>) -> Ranges {
        let end = |end: &mut usize, length| {
            *end += length;
            Some(*end)
        };
        Ranges(lengths.into_iter().scan(0, end).collect())
    }

    /// Where each of them ends.
    pub fn ends(&self) -> &[usize] {
        &self.0
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// All of them, in order.
    pub fn each(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut from = 0;
        self.0.iter().map(move |end| std::mem::replace(&mut from, *end)..*end)
    }

    /// Cuts the `len` values from `at` on where two of them meet: each one's number, and its part counted from `at`.
    pub fn cut(&self, at: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let first = self.0.partition_point(|end| *end <= at);
        let past_last = self.0.partition_point(|end| *end < at + len) + usize::from(len > 0);
        let mut from = 0;
        (first..past_last).map(move |i| {
            let to = (self.0[i] - at).min(len);
            (i, std::mem::replace(&mut from, to)..to)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_from_where_the_cut_begins() {
        let ranges = Ranges::new([3, 1, 4]);
        assert_eq!((ranges.ends(), ranges.count()), (&[3, 4, 8][..], 3));
        assert_eq!(ranges.each().collect::<Vec<_>>(), [0..3, 3..4, 4..8]);
        assert_eq!(ranges.cut(2, 5).collect::<Vec<_>>(), [(0, 0..1), (1, 1..2), (2, 2..5)]);
        assert_eq!(ranges.cut(3, 1).collect::<Vec<_>>(), [(1, 0..1)]);
        assert_eq!(ranges.cut(4, 0).count(), 0);
    }
}
