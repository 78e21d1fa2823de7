//! Walking several vectors together, tile by tile, on one thread or several.
//!
//! A tile stays in the first-level cache while all that has to happen to it happens; that is how passes over memory are
//! fused. Tiles do not depend on each other, so the number of threads changes no bit of any result.

use crate::codec::{MAX_BLOCK, ResidualSlice};
use crate::error::{Error, Result};
use crate::kernel::{Stream, streaming};
use rayon::prelude::*;
use std::convert::Infallible;
use std::ops::Range;

/// The most values in a tile: the longest block is one tile, shorter blocks share one.
pub const TILE: usize = MAX_BLOCK;

/// A thread gets at least this many values, or it is not worth waking.
const GRAIN: usize = 16 * TILE;

/// What a pass reads: up to four vectors of one length, in the order of its list, then empty ones.
pub type Read<'a> = [&'a [f32]; 4];

/// What a pass writes, likewise.
pub type Write<'a> = [&'a mut [f32]; 4];

/// Vectors of one length: some to read, some to write.
pub struct Vectors<'a> {
    /// Those to read.
    pub read: Read<'a>,
    /// Those to write.
    pub write: Write<'a>,
}

impl<'a> Vectors<'a> {
    /// No vectors.
    pub fn none() -> Vectors<'a> {
        Vectors { read: [&[]; 4], write: std::array::from_fn(|_| &mut [][..]) }
    }

    /// Some of each: at most four.
    pub fn new<const R: usize, const W: usize>(read: [&'a [f32]; R], write: [&'a mut [f32]; W]) -> Vectors<'a> {
        let mut vectors = Vectors::none();
        vectors.read[..R].copy_from_slice(&read);
        vectors.write.iter_mut().zip(write).for_each(|(place, vector)| *place = vector);
        vectors
    }

    /// The same range of each.
    pub fn part(&mut self, range: Range<usize>) -> Vectors<'_> {
        Vectors {
            read: self.read.map(|vector| vector.get(range.clone()).unwrap_or_default()),
            write: self.write.each_mut().map(|vector| vector.get_mut(range.clone()).unwrap_or_default()),
        }
    }

    fn split_at(self, middle: usize) -> (Vectors<'a>, Vectors<'a>) {
        let mut right = Vectors::none();
        let mut tails = right.write.iter_mut();
        let write = self.write.map(|vector| {
            let (head, tail) = vector.split_at_mut(middle.min(vector.len()));
            *tails.next().expect("as many tails as heads") = tail;
            head
        });
        let at = |vector: &[f32]| middle.min(vector.len());
        right.read = self.read.map(|vector| &vector[at(vector)..]);
        (Vectors { read: self.read.map(|vector| &vector[..at(vector)]), write }, right)
    }
}

/// A range of the flat vector, and all that belongs to it.
pub struct Span<'a> {
    /// Where it is.
    pub range: Range<usize>,
    /// What is read and written there.
    pub vectors: Vectors<'a>,
    /// As long as the range, or nothing.
    pub residual: ResidualSlice<'a>,
    /// The encoded blocks of the range, or empty.
    pub bytes: &'a mut [u8],
    /// How its blocks are cut.
    pub cut: Cut,
}

/// How a span's blocks are cut: values in a block, bytes of a block.
#[derive(Clone, Copy)]
pub struct Cut {
    /// Values in a block.
    pub block: usize,
    /// Bytes of a block.
    pub encoded: usize,
}

impl Cut {
    /// For spans without bytes.
    pub const NONE: Cut = Cut { block: TILE, encoded: 0 };

    /// The values of a tile: as many whole blocks as fit.
    fn tile(self) -> usize {
        TILE / self.block * self.block
    }
}

impl<'a> Span<'a> {
    /// A span of vectors alone.
    pub fn of(range: Range<usize>, vectors: Vectors<'a>) -> Span<'a> {
        Span { range, vectors, residual: ResidualSlice::Nothing, bytes: &mut [], cut: Cut::NONE }
    }

    /// `middle` is a whole number of blocks.
    fn split_at(self, middle: usize) -> (Span<'a>, Span<'a>) {
        let (at, cut) = (self.range.start + middle, self.cut);
        let (left, right) = self.vectors.split_at(middle);
        let (left_residual, right_residual) = self.residual.split_at(middle);
        let (left_bytes, right_bytes) = self.bytes.split_at_mut(middle / cut.block * cut.encoded);
        let span = |range, vectors, residual, bytes| Span { range, vectors, residual, bytes, cut };
        (
            span(self.range.start..at, left, left_residual, left_bytes),
            span(at..self.range.end, right, right_residual, right_bytes),
        )
    }

    /// Calls `work` on every tile; forks while there are more values than `grain`.
    fn walk<E: Send>(
        mut self,
        grain: usize,
        work: &(impl Fn(Span<'a>, &mut [f32], &Stream<'a>) -> Result<(), E> + Sync),
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
    /// So many; one thread is that of the caller.
    pub fn new(count: usize) -> Result<Threads> {
        let failed = |error| Error::config("threads", count, format!("the system refused: {error}"));
        let pool = || rayon::ThreadPoolBuilder::new().num_threads(count).build().map_err(failed);
        Ok(Threads(if count > 1 { Some(pool()?) } else { None }))
    }

    /// Calls `work` on every tile of `span`, with room for as many values, and what it needs to write past the caches.
    pub fn walk<'a, E: Send>(
        &self,
        span: Span<'a>,
        work: impl Fn(Span<'a>, &mut [f32], &Stream<'a>) -> Result<(), E> + Sync,
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
    pub fn each(&self, len: usize, vectors: Vectors<'_>, work: impl Fn(Range<usize>, Vectors<'_>) + Sync) {
        let Ok(()) = self.walk(Span::of(0..len, vectors), |tile, _, _| -> Result<(), Infallible> {
            work(tile.range, tile.vectors);
            Ok(())
        });
    }

    /// out[i] ← work(i).
    pub fn fill<T: Send>(&self, out: &mut [T], work: impl Fn(usize) -> T + Sync) {
        match &self.0 {
            Some(pool) if out.len() > GRAIN / TILE => {
                pool.install(|| out.par_iter_mut().enumerate().for_each(|(i, out)| *out = work(i)));
            }
            _ => out.iter_mut().enumerate().for_each(|(i, out)| *out = work(i)),
        }
    }
}
