//! Passes and sources: the loops of the optimizers, each with a name.

use super::{Read, Write};
use crate::kernel::update::Scalars;

/// A vector of the model's length, by its place among those that a machine keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector(pub(super) usize);

impl Vector {
    /// x: the caller's parameters.
    pub const PARAMS: Vector = Vector(0);

    /// Where the mean of an exact round is kept until its norm is known: [`Keep`].
    pub const KEPT: Vector = Vector(1);

    /// The i-th of the optimizer's own.
    pub const fn own(i: usize) -> Vector {
        assert!(i + 2 < MOST, "more vectors than a machine keeps");
        Vector(i + 2)
    }
}

/// Vectors that a machine keeps at most, those of the caller included.
pub(super) const MOST: usize = 10;

/// A loop over all parameters that has a name: what is done with a gradient, or with a mean.
///
/// A machine in other memory has a loop of its own under the same name, with the same bits.
pub trait Pass: Sync {
    /// What a device knows it by.
    const NAME: &'static str;
    /// At most four of each; none is in both.
    const READS: &'static [Vector] = &[];
    /// The vectors that it writes.
    const WRITES: &'static [Vector];
    /// Whether the pass is nothing but `WRITES[0] ← input`: then a mean is decoded to where it goes.
    const STORES: bool = false;

    /// The loop over some values, all of one parameter group. `input` is the gradient, or the mean. Returns the first value that the
    /// pass moved farther than [`Scalars::jump`], if it looks for one.
    fn run(k: &Scalars, input: &[f32], read: Read<'_>, write: Write<'_>) -> Option<usize>;
}

/// A loop with a name that makes the vector z, of which the mean is taken.
pub trait Source: Sync {
    /// What a device knows it by.
    const NAME: &'static str;
    /// The vectors that it reads: at most four.
    const READS: &'static [Vector] = &[];
    /// The vectors that it writes, likewise.
    const WRITES: &'static [Vector] = &[];
    /// Whether z is there already, and need not be made.
    const LIES: Lies = Lies::Nowhere;

    /// The loop over some values, all of one parameter group; `g` is the gradient, or empty where the step has none.
    fn fill(k: &Scalars, g: &[f32], read: Read<'_>, write: Write<'_>, z: &mut [f32]);
}

/// Where the vector of a [`Source`] lies before it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lies {
    /// Nowhere: it is made.
    Nowhere,
    /// It is the gradient.
    InGradient,
    /// It is the first of the vectors that the source reads.
    InFirst,
}

/// z = g.
pub struct OfGradient;

impl Source for OfGradient {
    const NAME: &'static str = "gradient";
    const LIES: Lies = Lies::InGradient;

    fn fill(_: &Scalars, _: &[f32], _: Read<'_>, _: Write<'_>, _: &mut [f32]) {}
}

/// z = x.
pub struct OfParams;

impl Source for OfParams {
    const NAME: &'static str = "params";
    const READS: &'static [Vector] = &[Vector::PARAMS];
    const LIES: Lies = Lies::InFirst;

    fn fill(_: &Scalars, _: &[f32], _: Read<'_>, _: Write<'_>, _: &mut [f32]) {}
}

/// The mean is kept for later: clipping needs its norm before it can be used.
pub struct Keep;

impl Pass for Keep {
    const NAME: &'static str = "keep";
    const WRITES: &'static [Vector] = &[Vector::KEPT];
    const STORES: bool = true;

    fn run(_: &Scalars, input: &[f32], _: Read<'_>, [kept, ..]: Write<'_>) -> Option<usize> {
        kept.copy_from_slice(input);
        None
    }
}

/// x ← the mean.
pub struct Replace;

impl Pass for Replace {
    const NAME: &'static str = "replace";
    const WRITES: &'static [Vector] = &[Vector::PARAMS];
    const STORES: bool = true;

    fn run(_: &Scalars, input: &[f32], _: Read<'_>, [x, ..]: Write<'_>) -> Option<usize> {
        x.copy_from_slice(input);
        None
    }
}
