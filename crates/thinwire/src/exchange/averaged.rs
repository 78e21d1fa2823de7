//! What a mean is of: where a worker's vector comes from, and where the mean goes, tile by tile.

use crate::error::Result;
use crate::tiles::Vectors;
use std::ops::Range;

/// Both functions get a tile's range, the same range of the vectors, and room for as many values.
pub(super) trait Averaged<const R: usize, const W: usize>: Sync {
    /// This worker's values: made in `room`, or where they lie.
    fn values<'t>(&self, range: Range<usize>, vectors: Vectors<'t, R, W>, room: &'t mut [f32]) -> &'t [f32];

    /// Has the mean decoded to where it is wanted, and does with it what is to be done.
    fn take<'a>(
        &self,
        range: Range<usize>,
        vectors: Vectors<'a, R, W>,
        room: &mut [f32],
        decode: impl FnOnce(Place<'_, 'a>) -> Result<()>,
    ) -> Result<()>;
}

/// Where a mean is decoded to.
pub(super) enum Place<'t, 'a> {
    /// It is read at once.
    Near(&'t mut [f32]),
    /// It is in no cache, and is not read soon.
    Far(&'a mut [f32]),
}

/// A vector that need not exist: `fill` writes a tile of it, `apply` reads a tile of the mean.
pub(super) struct Made<F, A> {
    pub fill: F,
    pub apply: A,
}

impl<const R: usize, const W: usize, F, A> Averaged<R, W> for Made<F, A>
where
    F: Fn(Range<usize>, Vectors<'_, R, W>, &mut [f32]) + Sync,
    A: Fn(Range<usize>, Vectors<'_, R, W>, &[f32]) + Sync,
{
    fn values<'t>(&self, range: Range<usize>, vectors: Vectors<'t, R, W>, room: &'t mut [f32]) -> &'t [f32] {
        (self.fill)(range, vectors, room);
        room
    }

    fn take<'a>(
        &self,
        range: Range<usize>,
        vectors: Vectors<'a, R, W>,
        room: &mut [f32],
        decode: impl FnOnce(Place<'_, 'a>) -> Result<()>,
    ) -> Result<()> {
        decode(Place::Near(room))?;
        (self.apply)(range, vectors, room);
        Ok(())
    }
}

/// A vector that is there, and becomes its mean.
pub(super) struct InPlace {
    /// Whether it is too long to wait in a core's own cache for whoever looks at it next.
    pub long: bool,
}

impl InPlace {
    /// From so many values on a vector counts as long: 4 MiB, more than a core's own cache holds.
    pub const LONG: usize = 1 << 20;
}

impl Averaged<0, 1> for InPlace {
    fn values<'t>(
        &self,
        _: Range<usize>,
        Vectors { write: [x], .. }: Vectors<'t, 0, 1>,
        _: &'t mut [f32],
    ) -> &'t [f32] {
        x
    }

    fn take<'a>(
        &self,
        _: Range<usize>,
        Vectors { write: [x], .. }: Vectors<'a, 0, 1>,
        _: &mut [f32],
        decode: impl FnOnce(Place<'_, 'a>) -> Result<()>,
    ) -> Result<()> {
        decode(if self.long { Place::Far(x) } else { Place::Near(x) })
    }
}
