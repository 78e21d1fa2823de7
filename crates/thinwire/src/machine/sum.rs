//! Messages that are added up in one pass over memory, and coded again: those of a host's workers, or those of all hosts.

use super::tiles::{Cut, Span, Threads, Vectors};
use crate::codec::{Codec, Fault, Owed, TOGETHER, encoded_len};
use std::ops::Range;

/// Which payloads are added up, and how.
pub(crate) struct Sum<'a> {
    /// In the order in which they are added up.
    pub messages: &'a [Vec<u8>],
    /// The bytes before the payload of each. A message that has nothing after them is of nobody.
    pub header: usize,
    pub from: &'a dyn Codec,
    pub to: &'a dyn Codec,
    pub block: usize,
    /// The sum is to be a mean of so many, or stays a sum.
    pub divisor: f32,
}

/// Why a sum could not be made.
pub(crate) enum Refused {
    /// The message at this place holds values that cannot be.
    Payload(usize, Fault),
    /// The sum is too large for f32.
    Overflow,
}

impl Sum<'_> {
    /// z = Σ q / divisor + e;  bytes ← C(z);  e ← z − C(z), over the values in `range`.
    pub fn code(
        &self,
        threads: &Threads,
        range: Range<usize>,
        residual: Owed<'_>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        let (start, block) = (range.start, self.block);
        let cut = Cut { block, encoded: self.to.encoded_len(block) };
        threads.walk(Span { residual, vectors: Vectors::none(), range, bytes, cut }, |tile, sum| {
            let at = self.header + (tile.range.start - start) / block * self.from.encoded_len(block);
            self.add_up(at, sum).map_err(|(place, fault)| Refused::Payload(place, fault))?;
            self.to.encode_blocks(block, sum, tile.residual, tile.bytes).map_err(|_| Refused::Overflow)
        })
    }

    /// sum ← Σ q / divisor, of the blocks that lie `at` so many bytes in each message. An error comes with its message's place.
    fn add_up(&self, at: usize, sum: &mut [f32]) -> Result<(), (usize, Fault)> {
        let len = encoded_len(self.from, self.block, sum.len());
        let numbered = self.messages.iter().enumerate().filter(|(_, message)| message.len() > self.header);
        let mut rest = numbered.map(|(place, message)| (place, &message[at..at + len])).peekable();
        let mut fresh = true;
        while fresh || rest.peek().is_some() {
            let (mut places, mut some, mut count) = ([0; TOGETHER], [&[][..]; TOGETHER], 0);
            for (place, bytes) in rest.by_ref().take(TOGETHER) {
                (places[count], some[count]) = (place, bytes);
                count += 1;
            }
            let divisor = if rest.peek().is_none() { self.divisor } else { 1.0 };
            let added = self.from.add_up(self.block, &some[..count], fresh, divisor, sum);
            added.map_err(|(i, fault)| (places[i], fault))?;
            fresh = false;
        }
        Ok(())
    }
}
