//! A machine's vectors as entries of the state.

use crate::state::{Entry, Share};
use std::ops::Range;

/// The names of an optimizer's own vectors, and how workers share them.
pub type Names = &'static [(&'static str, Share)];

pub(super) fn named<'a, V>(names: Names, vectors: &'a mut [V]) -> impl Iterator<Item = Entry<'a>>
where
    V: std::ops::DerefMut<Target = [f32]>,
{
    names.iter().zip(vectors).map(|((name, share), vector)| Entry::vector(name, share.clone(), vector))
}

/// e, and E of the blocks that are `owned`. The names are those of checkpoints.
pub(super) fn residuals<'a>(e: &'a mut [f32], owners: &'a mut [f32], owned: Range<usize>) -> [Entry<'a>; 2] {
    [Entry::vector("up_residue", Share::Residual, e), Entry::vector("down_residue", Share::Cut(owned), owners)]
}

/// e ← factor·e; a factor of 0 leaves nothing, whatever was there.
pub(super) fn scale(e: &mut [f32], factor: f32) {
    match factor {
        0.0 => e.fill(0.0),
        factor => e.iter_mut().for_each(|e| *e *= factor),
    }
}
