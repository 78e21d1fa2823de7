//! The owner's half of a mean, for a server: it has no vector of its own, and averages what came.
//!
//! ```text
//! z = Σ q/n + E;   p = C_down(z);   E ← z − p          over the n workers whose q came
//! ```
//!
//! With the same workers in every round these are the bits of the central form. A mean is made, then kept: until [`Owner::keep`]
//! is called, E is what it was, so that a mean which could not be written down has not happened.

use super::round::{check_payload, contributions};
use super::sum::Sum;
use super::{Codings, Way};
use crate::codec::{MAX_BLOCK, encoded_len};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::hosts::Hosts;
use crate::kernel::bf16;
use crate::layout::{Shape, Topology};
use crate::memory::Floats;
use crate::message::{HEADER_LEN, Header, Operation};
use crate::residue::{Owed, Precision};
use crate::tiles::Threads;

/// The largest value of a message: so many fit a sum that nothing overflows, whoever sends what.
const LARGEST: f32 = f32::MAX / (1 << 20) as f32;

pub struct Owner {
    shape: Shape,
    codings: Codings,
    threads: Threads,
    /// E: what the means have not said yet.
    residue: Floats,
    /// E after the mean that was made last.
    next: Floats,
}

impl Owner {
    /// For the means of `values` parameters under `config`, whose topology is `central`.
    pub fn new(config: &Config, values: usize) -> Result<Owner> {
        let config = config.resolved()?;
        let shape = Shape { topology: Topology::Served, ..config.shape(values, 1) };
        let codings = config.codings(shape, &Hosts::apart(1));
        let whole = codings.coarse.as_ref().map_or(0, |_| values);
        let (residue, next) = (Floats::zeroed(whole), Floats::zeroed(whole));
        Ok(Owner { shape, codings, threads: config.threads()?, residue, next })
    }

    /// The length of a whole message up, in the round that `expected` (a message, or its header alone) belongs to.
    pub fn length(&self, expected: &[u8]) -> Result<usize> {
        let place = self.place(expected)?;
        Ok(HEADER_LEN + place.coding.payload_len(Way::Up, &place.blocks))
    }

    /// Refuses a message of `worker` that is not of the round that `expected` belongs to, that disagrees with it on the state that
    /// all workers share, or whose values cannot be.
    pub fn check(&self, expected: &[u8], message: &[u8], worker: usize) -> Result<()> {
        let place = self.place(expected)?;
        let (header, payload) = Header::read(message, worker)?;
        header.expect(&place.header, worker, SERVER)?;
        let full = place.coding.payload_len(Way::Up, &place.blocks);
        check_payload(worker, &header, payload, full, 1)?;
        if header.contributions == 0 {
            return Ok(());
        }
        let (block, codec) = (self.shape.block, place.coding.codec(Way::Up));
        let (tile, mut room) = (MAX_BLOCK / block * block, [0.0; MAX_BLOCK]);
        let mut rest = payload;
        for from in (0..self.shape.values).step_by(tile) {
            let values = &mut room[..tile.min(self.shape.values - from)];
            let bytes =
                rest.split_off(..encoded_len(codec, block, values.len())).expect("as long as it was found to be");
            codec.decode_blocks(block, bytes, values).map_err(|fault| Error::Payload { worker, fault })?;
            // As whole numbers, whose maximum is many at once; who is too large is looked for only then.
            let largest = values.iter().fold(0, |most, value| most.max(value.abs().to_bits()));
            if let Some(value) = values.iter().find(|value| largest > LARGEST.to_bits() && value.abs() > LARGEST) {
                return Err(Error::Malformed {
                    worker,
                    problem: format!("a value of {value:e}, where {LARGEST:e} is the most"),
                });
            }
        }
        Ok(())
    }

    /// The message down: the mean of `messages`, which were checked, in this order. `sender` names the worker of each.
    pub fn mean(
        &mut self,
        expected: &[u8],
        messages: &[Vec<u8>],
        sender: impl Fn(usize) -> usize + Sync,
    ) -> Result<Vec<u8>> {
        let Place { coarse, coding, .. } = self.place(expected)?;
        let rounds = coding.residue == Precision::Bf16;
        if coarse {
            self.next.copy_from_slice(&self.residue);
        }
        // Moved out, for the coding is borrowed from self beside it.
        let mut next = std::mem::replace(&mut self.next, Floats::zeroed(0));
        let made = self.code(expected, messages, sender, if coarse { Owed::Wide(&mut next) } else { Owed::Nothing });
        // In 32 bits here, with the numbers of 16 where workers keep theirs so.
        if coarse && rounds {
            bf16::round(&mut next);
        }
        self.next = next;
        made
    }

    fn code(
        &self,
        expected: &[u8],
        messages: &[Vec<u8>],
        sender: impl Fn(usize) -> usize + Sync,
        residue: Owed<'_>,
    ) -> Result<Vec<u8>> {
        let Place { header: up, coding, blocks, coarse } = self.place(expected)?;
        let operation = if coarse { Operation::CoarseDown } else { Operation::ExactDown };
        let header = Header::new(operation, coding.name(Way::Down), self.shape, up.step, up.digest).covering(&blocks);
        let header = Header { contributions: contributions(messages), ..header };
        let payload = if header.contributions > 0 { coding.payload_len(Way::Down, &blocks) } else { 0 };
        let mut message = Vec::new();
        let bytes = header.start(&mut message, payload);
        if header.contributions > 0 {
            let sum = Sum {
                messages,
                sender,
                from: coding.codec(Way::Up),
                to: coding.codec(Way::Down),
                block: self.shape.block,
                divisor: header.contributions as f32,
                range: 0..self.shape.values,
                residue,
                bytes,
            };
            sum.code(&self.threads, || Error::Overflow { worker: SERVER, step: up.step, what: "averages" })?;
        }
        Ok(message)
    }

    /// The mean that `expected` was made for last is for good: E becomes what it left.
    pub fn keep(&mut self, expected: &[u8]) -> Result<()> {
        if self.place(expected)?.coarse {
            std::mem::swap(&mut self.residue, &mut self.next);
        }
        Ok(())
    }

    /// E.
    pub fn residue(&mut self) -> &mut [f32] {
        &mut self.residue
    }

    /// E after the mean that was made last, kept or not.
    pub fn next_residue(&self) -> &[f32] {
        &self.next
    }

    /// Whether the round of `expected` is a coarse one, which moves E.
    pub fn is_coarse(&self, expected: &[u8]) -> Result<bool> {
        Ok(self.place(expected)?.coarse)
    }

    fn place(&self, expected: &[u8]) -> Result<Place<'_>> {
        let (header, _) = Header::read(expected, SERVER)?;
        let (coding, coarse) = match header.operation {
            Operation::ExactUp => (&self.codings.exact, false),
            Operation::CoarseUp => (&self.codings.coarse, true),
            other => {
                let problem = format!("{other} where a mean's way up belongs");
                return Err(Error::Malformed { worker: SERVER, problem });
            }
        };
        let coding = coding.as_ref().ok_or_else(|| Error::Malformed {
            worker: SERVER,
            problem: "a round that this optimizer never has".to_owned(),
        })?;
        let blocks = coding.layout.bucket(coding.layout.owners().start, 0);
        Ok(Place { header, coding, blocks, coarse })
    }
}

/// The server's seat, beside a worker that is alone in its group.
const SERVER: usize = 1;

/// A round: its header up, its coding, and its blocks, which are all.
struct Place<'a> {
    header: Header,
    coding: &'a super::Coding,
    blocks: std::ops::Range<usize>,
    coarse: bool,
}
