//! What a mean is of: where a worker's vector comes from, and where the mean goes, tile by tile.

use crate::error::Result;
use crate::kernel::Stream;
use crate::tiles::Vectors;
use std::ops::Range;

/// Both functions get a tile's range, the same range of the vectors, and room for as many values.
pub(super) trait Averaged<const R: usize, const W: usize>: Sync {
    /// This worker's values: made in `room`, or where they lie.
    fn values<'t>(&self, range: Range<usize>, vectors: Vectors<'t, R, W>, room: &'t mut [f32]) -> &'t [f32];

    /// Has the mean decoded to where it is wanted, through the caches or past them, and does with it what is to be done.
    fn take(
        &self,
        range: Range<usize>,
        vectors: Vectors<'_, R, W>,
        room: &mut [f32],
        stream: &Stream,
        decode: impl FnOnce(&mut [f32], Option<&Stream>) -> Result<()>,
    ) -> Result<()>;
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

    fn take(
        &self,
        range: Range<usize>,
        vectors: Vectors<'_, R, W>,
        room: &mut [f32],
        _: &Stream,
        decode: impl FnOnce(&mut [f32], Option<&Stream>) -> Result<()>,
    ) -> Result<()> {
        decode(room, None)?;
        (self.apply)(range, vectors, room);
        Ok(())
    }
}

/// A vector that is there, and becomes its mean.
pub(super) struct InPlace {
    /// Whether it is too long to be in a cache when it is next looked at.
    pub long: bool,
}

impl InPlace {
    /// From so many values on a vector counts as long: 4 MiB, more than most second-level caches hold.
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

    fn take(
        &self,
        _: Range<usize>,
        Vectors { write: [x], .. }: Vectors<'_, 0, 1>,
        _: &mut [f32],
        stream: &Stream,
        decode: impl FnOnce(&mut [f32], Option<&Stream>) -> Result<()>,
    ) -> Result<()> {
        decode(x, self.long.then_some(stream))
    }
}
