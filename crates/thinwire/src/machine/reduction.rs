//! Reductions: a few numbers out of each of some ranges of the vectors, such as the norms of every tensor.

use super::{Read, Vector};
use crate::kernel::update::Scalars;

/// What a [`Reduction`] finds of some values: two sums, and something's largest. It uses those that it has a use for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Added up.
    pub sums: [f64; 2],
    /// At least 0.
    pub largest: f64,
}

impl Totals {
    /// Of these values and those.
    pub(super) fn and(self, other: Totals) -> Totals {
        let [a, b] = self.sums;
        let [c, d] = other.sums;
        Totals { sums: [a + c, b + d], largest: self.largest.max(other.largest) }
    }
}

/// A loop with a name that only reads, and says what some values come to.
pub trait Reduction: Sync {
    /// What a device knows it by.
    const NAME: &'static str;
    /// The vectors that it reads: at most four.
    const READS: &'static [Vector];

    /// Of some values, all of one parameter group.
    fn of(k: &Scalars, read: Read<'_>) -> Totals;
}
