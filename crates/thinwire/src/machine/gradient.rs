//! A gradient as it lies in memory: one vector, or a piece for each tensor of the model.
//!
//! Programs that keep the gradient of each tensor by itself need not copy them together, which would be a pass over memory. A tile
//! is read where it lies; only one in which pieces meet is put together first, and those are few. The bits are those of the whole.

use super::tiles::TILE;
use std::ops::Range;

/// What a worker has to say at a step.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Gradient<'a> {
    /// One vector.
    Whole(&'a [f32]),
    /// A piece for each tensor.
    Pieces(&'a Pieces<'a>),
}

/// Pieces that make up the flat vector, in its order.
#[derive(Debug, Default)]
pub struct Pieces<'a> {
    /// Where each ends.
    ends: Vec<usize>,
    /// None: zeros.
    pieces: Vec<Option<&'a [f32]>>,
    vouched: bool,
}

impl<'a> Pieces<'a> {
    /// No pieces yet, and room for so many.
    pub fn with_capacity(count: usize) -> Pieces<'a> {
        Pieces { ends: Vec::with_capacity(count), pieces: Vec::with_capacity(count), vouched: false }
    }

    /// The gradient of the next tensor.
    pub fn push(&mut self, values: &'a [f32]) {
        self.ends.push(self.len() + values.len());
        self.pieces.push(Some(values));
    }

    /// The next tensor, of `len` values, has none: it counts as zeros.
    pub fn push_zeros(&mut self, len: usize) {
        self.ends.push(self.len() + len);
        self.pieces.push(None);
    }

    /// The caller has seen that all values are finite, say when it made them. A worker that is alone is then spared a pass over them.
    pub fn vouch(&mut self) {
        self.vouched = true;
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first piece that ends after `at`.
    fn at(&self, at: usize) -> usize {
        self.ends.partition_point(|end| *end <= at)
    }

    fn start(&self, piece: usize) -> usize {
        if piece == 0 { 0 } else { self.ends[piece - 1] }
    }

    /// The values of `range`, if they lie together.
    fn together(&self, range: &Range<usize>) -> Option<&'a [f32]> {
        let piece = self.at(range.start);
        if range.end > *self.ends.get(piece)? {
            return None;
        }
        let start = self.start(piece);
        Some(&self.pieces[piece]?[range.start - start..range.end - start])
    }

    /// Writes the values of `range` to `out`.
    fn gather(&self, range: Range<usize>, out: &mut [f32]) {
        let mut from = range.start;
        let mut piece = self.at(from);
        while from < range.end {
            let (start, to) = (self.start(piece), self.ends[piece].min(range.end));
            let out = &mut out[from - range.start..to - range.start];
            match self.pieces[piece] {
                Some(values) => out.copy_from_slice(&values[from - start..to - start]),
                None => out.fill(0.0),
            }
            from = to;
            piece += 1;
        }
    }
}

impl Gradient<'_> {
    /// The number of values.
    pub fn len(&self) -> usize {
        match self {
            Gradient::Whole(values) => values.len(),
            Gradient::Pieces(pieces) => pieces.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn is_vouched_for(&self) -> bool {
        matches!(self, Gradient::Pieces(pieces) if pieces.vouched)
    }

    /// Calls `work` with the values of `tile`, of which there are at most [`TILE`].
    #[inline]
    pub fn with<T>(&self, tile: Range<usize>, work: impl FnOnce(&[f32]) -> T) -> T {
        let mut room;
        let values = match self {
            Gradient::Whole(values) => &values[tile],
            Gradient::Pieces(pieces) => match pieces.together(&tile) {
                Some(values) => values,
                None => {
                    room = [0.0; TILE];
                    let room = &mut room[..tile.len()];
                    pieces.gather(tile, room);
                    &*room
                }
            },
        };
        work(values)
    }
}
