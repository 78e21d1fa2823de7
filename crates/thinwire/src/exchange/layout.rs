//! Who owns which blocks, and how long each message is: the arithmetic that the exchange and the planner share.
//!
//! With nb = ⌈d/B⌉ blocks and n workers, worker r owns the blocks [r·nb/n, (r+1)·nb/n) in the sharded form; in the central
//! form worker 0 owns them all. A long vector goes in buckets: bucket k is the k-th slice of *every* owner's blocks, so that
//! all owners work at once, and packing one bucket overlaps sending another.
//!
//! A round may be of one part of the vector ([`Stripes`]). Each owner averages what the part has of its blocks, in buckets of the part's own.
//! Where a block is meant by its number in the part, the docs say so.

use crate::codec::{self, Codec};
use crate::machine::Stripes;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Who averages: everyone a part of the vector, worker 0 all of it, or a server that is none of the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Topology {
    /// Every worker owns a part.
    #[default]
    Sharded,
    /// Worker 0 owns all.
    Central,
    /// The central form with the owner outside of the group, in the seat after the last worker's. No word of a configuration:
    /// a transport to a server makes it so ([`Collective::served`](crate::Collective::served)).
    #[serde(skip)]
    Served,
}

/// How one kind of round cuts the vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The length of the vector.
    pub values: usize,
    /// Values in a block.
    pub block: usize,
    /// How many workers there are.
    pub workers: usize,
    /// Who owns blocks.
    pub topology: Topology,
    /// Blocks of one owner in one bucket.
    per_bucket: usize,
    /// The part that the round is of.
    stripes: Stripes,
}

impl Layout {
    /// `bucket_bytes` bounds what a worker sends each way in one bucket, as far as whole blocks allow.
    pub fn new(shape: Shape, block_bytes: usize, bucket_bytes: usize) -> Layout {
        let Shape { values, block, workers, topology } = shape;
        let owners = if topology == Topology::Sharded { workers } else { 1 };
        let per_bucket = (bucket_bytes / (block_bytes.max(1) * owners)).max(1);
        Layout { values, block, workers, topology, per_bucket, stripes: Stripes::new(values, block, 1) }
    }

    /// The same for a round of one part.
    pub fn of_part(self, stripes: Stripes) -> Layout {
        Layout { stripes, ..self }
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.values.div_ceil(self.block)
    }

    /// The workers that own blocks, or would if there were enough.
    pub fn owners(&self) -> Range<usize> {
        match self.topology {
            Topology::Sharded => 0..self.workers,
            Topology::Central => 0..1,
            Topology::Served => self.workers..self.workers + 1,
        }
    }

    /// The blocks that worker `r` owns; or the server, in the seat after the last.
    pub fn owned(&self, r: usize) -> Range<usize> {
        let share = |r: usize| (r as u128 * self.blocks() as u128 / self.workers as u128) as usize;
        match self.topology {
            Topology::Sharded => share(r)..share(r + 1),
            _ if self.owners().contains(&r) => 0..self.blocks(),
            Topology::Central | Topology::Served => 0..0,
        }
    }

    /// The blocks that the part has of owner `r`'s, by their numbers in the part.
    pub fn share(&self, r: usize) -> Range<usize> {
        let owned = self.owned(r);
        self.stripes.before(owned.start)..self.stripes.before(owned.end)
    }

    /// All blocks of the part, by their numbers in it.
    pub fn part(&self) -> Range<usize> {
        0..self.stripes.before(self.blocks())
    }

    /// Buckets in one round: at least one, so that an empty vector is still agreed on.
    pub fn buckets(&self) -> usize {
        let most = self.owners().map(|r| self.share(r).len()).max().unwrap_or(0);
        most.div_ceil(self.per_bucket).max(1)
    }

    /// The blocks of owner `r` in bucket `k`, by their numbers in the part.
    pub fn bucket(&self, r: usize, k: usize) -> Range<usize> {
        let share = self.share(r);
        let from = (share.start + k * self.per_bucket).min(share.end);
        from..(from + self.per_bucket).min(share.end)
    }

    /// The values of `blocks`, which are numbered in the whole vector.
    pub fn values_of(&self, blocks: &Range<usize>) -> Range<usize> {
        let place = |block: usize| (block * self.block).min(self.values);
        place(blocks.start)..place(blocks.end)
    }

    /// The values of `blocks`, which are numbered in the part: where they lie, stretch by stretch.
    pub fn stretches(&self, blocks: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let layout = *self;
        self.stripes.stretches(blocks.clone()).map(move |blocks| layout.values_of(&blocks))
    }

    /// What messages say of `blocks`, which are numbered in the part: the first, and the one after the last, in the whole vector.
    pub fn covered(&self, blocks: &Range<usize>) -> Range<usize> {
        let first = self.stripes.place(blocks.start);
        first..if blocks.is_empty() { first } else { self.stripes.place(blocks.end - 1) + 1 }
    }

    /// The bytes of `blocks`, which are numbered in the part, under `codec`.
    pub fn payload_len(&self, codec: &dyn Codec, blocks: &Range<usize>) -> usize {
        // All blocks are whole but for the vector's last.
        let missing = (self.covered(blocks).end * self.block).saturating_sub(self.values);
        let values = if blocks.is_empty() { 0 } else { blocks.len() * self.block - missing };
        codec::encoded_len(codec, self.block, values)
    }
}

/// What a vector and its workers are, whatever is averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The length of the vector.
    pub values: usize,
    /// Values in a block.
    pub block: usize,
    /// How many workers there are.
    pub workers: usize,
    /// Who owns blocks.
    pub topology: Topology,
}
