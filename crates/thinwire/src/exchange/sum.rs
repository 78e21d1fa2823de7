//! Messages that are added up in one pass over memory, and coded again: the workers' of a host, the hosts' of a group.

use crate::codec::{Codec, Fault, TOGETHER, encoded_len};
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
        let Sum { messages, sender, from, to, block, divisor, range, residue, bytes } = self;
        let start = range.start;
        let (vectors, cut) = (Vectors { read: [], write: [] }, Cut { block, encoded: to.encoded_len(block) });
        threads.walk(Span { residue, vectors, range, bytes, cut }, |tile: Span<'_, 0, 0>, sum| {
            let at = (tile.range.start - start) / block * from.encoded_len(block);
            let refused = |(place, fault)| Error::Payload { worker: sender(place), fault };
            add_up(messages, at, from, block, divisor, sum).map_err(refused)?;
            tile.cut.encode(to, sum, tile.residue, tile.bytes).map_err(|_| overflow())
        })
    }
}

/// sum ← Σ q / divisor, of the blocks that lie `at` so many bytes in each payload. An error comes with its message's place.
fn add_up(
    messages: &[Vec<u8>],
    at: usize,
    codec: &dyn Codec,
    block: usize,
    divisor: f32,
    sum: &mut [f32],
) -> Result<(), (usize, Fault)> {
    let len = encoded_len(codec, block, sum.len());
    let numbered = messages.iter().enumerate();
    let said = numbered.filter_map(|(place, message)| Some((place, contribution(message, at, len)?)));
    let (mut rest, mut fresh) = (said.peekable(), true);
    while fresh || rest.peek().is_some() {
        let (mut places, mut some, mut count) = ([0; TOGETHER], [&[][..]; TOGETHER], 0);
        for (place, bytes) in rest.by_ref().take(TOGETHER) {
            (places[count], some[count]) = (place, bytes);
            count += 1;
        }
        let divisor = if rest.peek().is_none() { divisor } else { 1.0 };
        codec.add_up(block, &some[..count], fresh, divisor, sum).map_err(|(i, fault)| (places[i], fault))?;
        fresh = false;
    }
    Ok(())
}

/// So many bytes of a message's payload, unless nobody is in it.
fn contribution(message: &[u8], at: usize, len: usize) -> Option<&[u8]> {
    (Header::contributions_in(message) > 0).then(|| &message[HEADER_LEN..][at..at + len])
}
