//! A machine's vectors as entries of the state.

use crate::state::{Entry, Field, Share};
use std::ops::Range;

/// The names of an optimizer's own vectors, and how workers share them.
pub type Names = &'static [(&'static str, Share)];

pub(super) fn named<'a, V>(names: Names, vectors: &'a mut [V]) -> impl Iterator<Item = Entry<'a>>
where
    V: std::ops::DerefMut<Target = [f32]>,
{
    names.iter().zip(vectors).map(|((name, share), vector)| Entry::vector(name, share.clone(), vector))
}

/// What checkpoints call e and E.
const RESIDUALS: [&str; 2] = ["up_residue", "down_residue"];

/// e, and E of the blocks that are `owned`.
pub(super) fn residuals<'a>(e: &'a mut [f32], owners: &'a mut [f32], owned: Range<usize>) -> [Entry<'a>; 2] {
    let [up, down] = RESIDUALS;
    [Entry::vector(up, Share::Residual, e), Entry::vector(down, Share::Cut(owned), owners)]
}

/// The same entries as fields, of so many parameters, and so many values of e and E.
pub(super) fn fields(names: Names, len: usize, residuals: [usize; 2], owned: Option<Range<usize>>) -> Vec<Field> {
    let own = names.iter().map(|(name, share)| Field::vector(name, share.clone(), len));
    let kept = owned.map(|owned| [Share::Residual, Share::Cut(owned)]).into_iter().flatten();
    let residuals = kept.zip(RESIDUALS).zip(residuals).map(|((share, name), len)| Field::vector(name, share, len));
    own.chain(residuals).collect()
}

/// e ← factor·e; a factor of 0 leaves nothing, whatever was there.
pub(super) fn scale(e: &mut [f32], factor: f32) {
    match factor {
        0.0 => e.fill(0.0),
        factor => e.iter_mut().for_each(|e| *e *= factor),
    }
}
