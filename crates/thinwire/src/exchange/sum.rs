//! Messages that are added up in one pass over memory, and coded again: the workers' of a host, the hosts' of a group.

use crate::codec::{Codec, TOGETHER};
use crate::error::{Error, Result};
use crate::message::{HEADER_LEN, Header};
use crate::residue::Owed;
use crate::tiles::{Cut, Span, Threads, Vectors};
use std::ops::Range;

pub(super) struct Sum<'a, S> {
    /// In the order in which they are added up.
    pub messages: &'a [Vec<u8>],
    /// Who sent each.
    pub sender: S,
    pub from: &'a dyn Codec,
    pub to: &'a dyn Codec,
    pub block: usize,
    /// The sum is to be a mean of so many, or stays a sum.
    pub divisor: f32,
    /// The values that the messages cover.
    pub range: Range<usize>,
    /// Nothing in an exact mean.
    pub residue: Owed<'a>,
    pub bytes: &'a mut [u8],
}

impl<S: Fn(usize) -> usize + Sync> Sum<'_, S> {
    /// z = Σ q / divisor + e;  bytes ← C(z);  e ← z − C(z).
    pub fn code(self, threads: &Threads, overflow: impl Fn() -> Error + Sync) -> Result<()> {
        let start = self.range.start;
        let cut = Cut { block: self.block, encoded: self.to.encoded_len(self.block) };
        let vectors = Vectors { read: [], write: [] };
        let Sum { messages, sender, from, to, block, divisor, range, residue, bytes } = self;
        let adds = Adds { messages, sender, from, divisor };
        threads.walk(Span { residue, vectors, range, bytes, cut }, |tile: Span<'_, 0, 0>, sum| {
            let first = (tile.range.start - start) / block;
            for (i, sum) in (first..).zip(sum.chunks_mut(block)) {
                adds.add_up(i * from.encoded_len(block), sum)?;
            }
            tile.cut.encode(to, sum, tile.residue, tile.bytes).map_err(|_| overflow())
        })
    }
}

struct Adds<'a, S> {
    messages: &'a [Vec<u8>],
    sender: S,
    from: &'a dyn Codec,
    divisor: f32,
}

impl<S: Fn(usize) -> usize> Adds<'_, S> {
    /// sum ← Σ q / divisor, of the block that lies `at` so many bytes in each payload.
    fn add_up(&self, at: usize, sum: &mut [f32]) -> Result<()> {
        let len = self.from.encoded_len(sum.len());
        let numbered = self.messages.iter().enumerate();
        let said = numbered.filter_map(|(place, message)| Some((place, contribution(message, at, len)?)));
        let mut rest = said.peekable();
        let mut fresh = true;
        while rest.peek().is_some() {
            let (mut places, mut some, mut count) = ([0; TOGETHER], [&[][..]; TOGETHER], 0);
            for (place, bytes) in rest.by_ref().take(TOGETHER) {
                (places[count], some[count]) = (place, bytes);
                count += 1;
            }
            let divisor = if rest.peek().is_none() { self.divisor } else { 1.0 };
            let refused = |(i, fault): (usize, _)| Error::Payload { worker: (self.sender)(places[i]), fault };
            self.from.add_up(&some[..count], fresh, divisor, sum).map_err(refused)?;
            fresh = false;
        }
        Ok(())
    }
}

/// So many bytes of a message's payload, unless nobody is in it.
fn contribution(message: &[u8], at: usize, len: usize) -> Option<&[u8]> {
    (Header::contributions_in(message) > 0).then(|| &message[HEADER_LEN..][at..at + len])
}
