//! Messages that are added up in one pass over memory, and coded again: the workers' of a host, the hosts' of a group.

use crate::codec::{Codec, Fault};
use crate::error::{Error, Result};
use crate::kernel::reduce;
use crate::message::{HEADER_LEN, Header};
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
    /// The sum is to be a mean of so many.
    pub divisor: Option<f32>,
    /// The values that the messages cover.
    pub range: Range<usize>,
    /// Empty in an exact mean.
    pub residue: &'a mut [f32],
    pub bytes: &'a mut [u8],
}

impl<S: Fn(usize) -> usize + Sync> Sum<'_, S> {
    /// z = Σ q / divisor + e;  bytes ← C(z);  e ← z − C(z).
    pub fn code(self, threads: &Threads, overflow: impl Fn() -> Error + Sync) -> Result<()> {
        let Sum { messages, sender, from, to, block, divisor, range, residue, bytes } = self;
        let (start, encoded) = (range.start, from.encoded_len(block));
        let cut = Cut { block, encoded: to.encoded_len(block) };
        let span = Span { residue, vectors: Vectors { read: [], write: [] }, range, bytes, cut };
        threads.walk(span, |tile, sum| {
            let first = (tile.range.start - start) / block;
            tile.into_blocks().1.enumerate().try_for_each(|(i, (values, residue, bytes))| {
                let sum = &mut sum[values];
                sum.fill(0.0);
                let (at, len) = ((first + i) * encoded, from.encoded_len(sum.len()));
                for (nth, some) in messages.chunks(4).enumerate() {
                    if let [a, b, c, d] = some
                        && let [Some(a), Some(b), Some(c), Some(d)] = [a, b, c, d].map(|q| contribution(q, at, len))
                        && from.decode_add_four([a, b, c, d], sum).is_ok()
                    {
                        continue;
                    }
                    // Fewer than four, or nobody is in one of them; or one is faulty, and is named here.
                    for (place, message) in (4 * nth..).zip(some) {
                        if let Some(bytes) = contribution(message, at, len) {
                            let refused = |fault| Error::Payload { worker: sender(place), fault };
                            from.decode_add(bytes, sum).map_err(refused)?;
                        }
                    }
                }
                if let Some(divisor) = divisor {
                    reduce::divide(divisor, sum);
                }
                encode(to, sum, residue, bytes).map_err(|_| overflow())
            })
        })
    }
}

/// With the residue, or without one if it is empty.
pub(super) fn encode(codec: &dyn Codec, x: &[f32], residue: &mut [f32], bytes: &mut [u8]) -> Result<(), Fault> {
    match residue {
        [] => codec.encode(x, bytes),
        residue => codec.encode_with(x, residue, bytes),
    }
}

/// So many bytes of a message's payload, unless nobody is in it.
fn contribution(message: &[u8], at: usize, len: usize) -> Option<&[u8]> {
    (Header::contributions_in(message) > 0).then(|| &message[HEADER_LEN..][at..at + len])
}
