//! Messages that are added up in one pass over memory, and coded again: those of a host's workers, or those of all hosts.

use super::tiles::{Cut, Span, TILE, Threads, Vectors};
use crate::codec::{Codec, CodecName, Fault, Made, ResidualSlice, TOGETHER, encode_remembering, encoded_len};
use crate::error::Error;
use std::ops::Range;

/// How the bytes of a payload are cut and read.
#[derive(Clone, Copy)]
pub struct Coded<'a> {
    /// What the codec is called; a device has its own loops under this name.
    pub name: CodecName,
    /// The host's loops.
    pub(crate) codec: &'a dyn Codec,
    /// Values in a block.
    pub block: usize,
}

impl Coded<'_> {
    /// Values in as many whole blocks as fit a tile.
    pub(super) fn tile(self) -> usize {
        TILE / self.block * self.block
    }

    /// The bytes of so many values.
    pub(super) fn len_of(self, values: usize) -> usize {
        encoded_len(self.codec, self.block, values)
    }

    pub(super) fn cut(self) -> Cut {
        Cut { block: self.block, encoded: self.codec.encoded_len(self.block) }
    }
}

/// The residual that a vector or a sum is coded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Feedback {
    /// None: the round is exact.
    None,
    /// e, of this worker's payloads; a relay codes the sum of its host with it.
    Up,
    /// E, of the means it serves.
    Down {
        /// Where this owner's values start, and E with them.
        owned: usize,
    },
    /// None is kept: numbers that are made up stand in its place, of all values.
    Made(Made),
}

/// Which payloads are added up, and how.
#[derive(Clone, Copy)]
pub struct Sum<'a> {
    /// In the order in which they are added up.
    pub messages: &'a [Vec<u8>],
    /// The bytes before the payload of each. A message that has nothing after them is of nobody.
    pub header: usize,
    /// How the payloads are coded.
    pub from: Coded<'a>,
    /// How the sum is.
    pub to: Coded<'a>,
    /// The sum is to be a mean of so many, or stays a sum.
    pub divisor: f32,
}

/// Why a sum could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refused {
    /// The message at this place holds values that cannot be.
    Payload(usize, Fault),
    /// The sum is too large for f32.
    Overflow,
    /// The device could not do it.
    Failed(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Failed(error)
    }
}

impl<'a> Sum<'a> {
    /// The payloads, each with its message's place.
    pub fn payloads(&self) -> impl Iterator<Item = (usize, &'a [u8])> {
        let header = self.header;
        let numbered = self.messages.iter().enumerate().filter(move |(_, message)| message.len() > header);
        numbered.map(move |(place, message)| (place, &message[header..]))
    }

    /// z = Σ q / divisor + e;  bytes ← C(z);  e ← (1−κ)·e + κ·(z − C(z)), over the values in `range`; κ is `feedback`.
    pub(super) fn code(
        &self,
        threads: &Threads,
        range: Range<usize>,
        residual: ResidualSlice<'_>,
        feedback: f32,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        let (start, block, cut) = (range.start, self.to.block, self.to.cut());
        threads.walk(Span { residual, vectors: Vectors::none(), range, bytes, cut }, |tile, sum, _| {
            let at = (tile.range.start - start) / block * self.from.codec.encoded_len(block);
            self.add_up(at, sum).map_err(|(place, fault)| Refused::Payload(place, fault))?;
            let coded = encode_remembering(self.to.codec, block, sum, tile.residual, feedback, tile.bytes);
            coded.map_err(|_| Refused::Overflow)
        })
    }

    /// sum ← Σ q / divisor, of the blocks that lie `at` so many bytes in each payload. An error comes with its message's place.
    fn add_up(&self, at: usize, sum: &mut [f32]) -> Result<(), (usize, Fault)> {
        let (codec, block) = (self.from.codec, self.from.block);
        let len = encoded_len(codec, block, sum.len());
        let mut rest = self.payloads().map(|(place, payload)| (place, &payload[at..at + len])).peekable();
        let mut fresh = true;
        while fresh || rest.peek().is_some() {
            let (mut places, mut some, mut count) = ([0; TOGETHER], [&[][..]; TOGETHER], 0);
            for (place, bytes) in rest.by_ref().take(TOGETHER) {
                (places[count], some[count]) = (place, bytes);
                count += 1;
            }
            let divisor = if rest.peek().is_none() { self.divisor } else { 1.0 };
            let added = codec.add_up(block, &some[..count], fresh, divisor, sum);
            added.map_err(|(i, fault)| (places[i], fault))?;
            fresh = false;
        }
        Ok(())
    }
}
