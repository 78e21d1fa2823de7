//! Walking several vectors together, tile by tile, on one thread or several.
//!
//! A tile stays in the first-level cache while all that has to happen to it happens; that is how passes over memory are
//! fused. Tiles do not depend on each other, so the number of threads changes no bit of any result.

use crate::codec::{Codec, Fault, MAX_BLOCK};
use crate::error::{Error, Result};
use crate::kernel::{Stream, streaming};
use crate::residue::Owed;
use std::convert::Infallible;
use std::ops::Range;

/// The most values in a tile: the longest block is one tile, shorter blocks share one.
pub const TILE: usize = MAX_BLOCK;

/// A thread gets at least this many values, or it is not worth waking.
const GRAIN: usize = 16 * TILE;

/// Vectors of one length: some to read, some to write.
pub struct Vectors<'a, const R: usize, const W: usize> {
    pub read: [&'a [f32]; R],
    pub write: [&'a mut [f32]; W],
}

impl<'a, const R: usize, const W: usize> Vectors<'a, R, W> {
    /// The same range of each.
    pub fn part(&mut self, range: Range<usize>) -> Vectors<'_, R, W> {
        Vectors {
            read: self.read.each_ref().map(|vector| &vector[range.clone()]),
            write: self.write.each_mut().map(|vector| &mut vector[range.clone()]),
        }
    }

    fn split_at(self, middle: usize) -> (Vectors<'a, R, W>, Vectors<'a, R, W>) {
        let mut tails = [(); W].map(|()| &mut [][..]);
        let mut rest = tails.iter_mut();
        let heads = self.write.map(|vector| {
            let (head, tail) = vector.split_at_mut(middle);
            *rest.next().expect("as many tails as heads") = tail;
            head
        });
        let left = Vectors { read: self.read.map(|vector| &vector[..middle]), write: heads };
        (left, Vectors { read: self.read.map(|vector| &vector[middle..]), write: tails })
    }
}

/// A range of the flat vector, and all that belongs to it.
pub struct Span<'a, const R: usize, const W: usize> {
    pub range: Range<usize>,
    pub vectors: Vectors<'a, R, W>,
    /// As long as the range, or nothing.
    pub residue: Owed<'a>,
    /// The encoded blocks of the range, or empty.
    pub bytes: &'a mut [u8],
    pub cut: Cut,
}

/// How a span's blocks are cut: values in a block, bytes of a block.
#[derive(Clone, Copy)]
pub struct Cut {
    pub block: usize,
    pub encoded: usize,
}

impl Cut {
    /// For spans without bytes.
    pub const NONE: Cut = Cut { block: TILE, encoded: 0 };

    /// bytes ← x, block by block, with what is owed of it.
    pub fn encode(self, codec: &dyn Codec, x: &[f32], residue: Owed<'_>, bytes: &mut [u8]) -> Result<(), Fault> {
        codec.encode_blocks(self.block, x, residue, bytes)
    }

    /// The values of a tile: as many whole blocks as fit.
    fn tile(self) -> usize {
        TILE / self.block * self.block
    }
}

impl<'a, const R: usize, const W: usize> Span<'a, R, W> {
    /// A span of vectors alone.
    pub fn of(range: Range<usize>, vectors: Vectors<'a, R, W>) -> Span<'a, R, W> {
        Span { range, vectors, residue: Owed::Nothing, bytes: &mut [], cut: Cut::NONE }
    }

    /// `middle` is a whole number of blocks.
    fn split_at(self, middle: usize) -> (Span<'a, R, W>, Span<'a, R, W>) {
        let at = self.range.start + middle;
        let (left, right) = self.vectors.split_at(middle);
        let (left_residue, right_residue) = self.residue.split_at(middle);
        let (left_bytes, right_bytes) = self.bytes.split_at_mut(middle / self.cut.block * self.cut.encoded);
        (
            Span {
                range: self.range.start..at,
                vectors: left,
                residue: left_residue,
                bytes: left_bytes,
                cut: self.cut,
            },
            Span {
                range: at..self.range.end,
                vectors: right,
                residue: right_residue,
                bytes: right_bytes,
                cut: self.cut,
            },
        )
    }

    /// Calls `work` on every tile; forks while there are more values than `grain`.
    fn walk<E: Send>(
        mut self,
        grain: usize,
        work: &(impl Fn(Span<'a, R, W>, &mut [f32], &Stream<'a>) -> Result<(), E> + Sync),
    ) -> Result<(), E> {
        let tile = self.cut.tile();
        let middle = (self.range.len() / 2).next_multiple_of(tile);
        if self.range.len() > grain && middle < self.range.len() {
            let (left, right) = self.split_at(middle);
            let (left, right) = rayon::join(|| left.walk(grain, work), || right.walk(grain, work));
            return left.and(right);
        }
        streaming(|stream| {
            let mut room = [0.0; TILE];
            while self.range.len() > tile {
                let (first, rest) = self.split_at(tile);
                work(first, &mut room[..tile], stream)?;
                self = rest;
            }
            let last = self.range.len();
            work(self, &mut room[..last], stream)
        })
    }
}

/// The threads a worker computes on.
pub struct Threads(Option<rayon::ThreadPool>);

impl Threads {
    pub fn new(count: usize) -> Result<Threads> {
        let failed = |error| Error::config("threads", count, format!("the system refused: {error}"));
        let pool = || rayon::ThreadPoolBuilder::new().num_threads(count).build().map_err(failed);
        Ok(Threads(if count > 1 { Some(pool()?) } else { None }))
    }

    /// Calls `work` on every tile of `span`, with room for as many values.
    pub fn walk<const R: usize, const W: usize, E: Send>(
        &self,
        span: Span<'_, R, W>,
        work: impl Fn(Span<'_, R, W>, &mut [f32]) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        self.walk_streaming(span, |tile, room, _| work(tile, room))
    }

    /// The same for work that may write past the caches.
    pub fn walk_streaming<'a, const R: usize, const W: usize, E: Send>(
        &self,
        span: Span<'a, R, W>,
        work: impl Fn(Span<'a, R, W>, &mut [f32], &Stream<'a>) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let len = span.range.len();
        match &self.0 {
            Some(pool) if len > GRAIN => {
                let grain = GRAIN.max(len.div_ceil(2 * pool.current_num_threads()));
                pool.install(|| span.walk(grain, &work))
            }
            _ => span.walk(len, &work),
        }
    }

    /// Calls `work` on every tile of `vectors`, all `len` long.
    pub fn each<const R: usize, const W: usize>(
        &self,
        len: usize,
        vectors: Vectors<'_, R, W>,
        work: impl Fn(Range<usize>, Vectors<'_, R, W>) + Sync,
    ) {
        let Ok(()) = self.walk(Span::of(0..len, vectors), |tile, _| -> Result<(), Infallible> {
            work(tile.range, tile.vectors);
            Ok(())
        });
    }
}
