//! The owner's half of a mean, for a server: it has no vector of its own, and averages what came.
//!
//! ```text
//! z = Σ q/n + E;   p = C_down(z);   E ← (1−κ)·E + κ·(z − p)          over the n workers whose q came
//! ```
//!
//! With the same workers in every round these are the bits of the central form. A mean is made, then kept: until [`Owner::keep`]
//! is called, E is what it was, so that a mean which could not be written down has not happened.

use super::header::{HEADER_LEN, Header, Operation};
use super::layout::Shape;
use super::round::{check_payload, contributions};
use super::{RoundLayouts, Way};
use crate::codec::ResidualSlice;
use crate::error::{Error, Result};
use crate::kernel::reduce::LARGEST;
use crate::machine::{Floats, Host, Refused, Threads};

/// The owner of all blocks, in a server.
pub struct Owner {
    shape: Shape,
    codings: RoundLayouts,
    /// It has no vector; E is beside it, because a mean may be made and not kept.
    machine: Host,
    /// Whether workers count by their weights.
    weighted: bool,
    /// The workers that the run is made for.
    workers: usize,
    /// E: what the means have not said yet.
    residual: Floats,
    /// E after the mean that was made last.
    next: Floats,
}

impl Owner {
    /// For the means of a `shape` whose topology is [`Topology::Served`](super::layout::Topology::Served).
    pub fn new(shape: Shape, codings: RoundLayouts, threads: Threads) -> Owner {
        let whole = codings.coarse.as_ref().map_or(0, |coarse| coarse.kept(coarse.layout.owners().start).len());
        let (residual, next) = (Floats::zeroed(whole), Floats::zeroed(whole));
        let machine = Host::bare(shape.values, threads);
        Owner { shape, codings, machine, workers: 1, weighted: false, residual, next }
    }

    /// For a run that is made for so many workers: the number by which an owner tosses coins.
    pub fn of_workers(self, workers: usize) -> Owner {
        Owner { workers, ..self }
    }

    /// For workers that count by their weights.
    pub fn weighing(self, weighted: bool) -> Owner {
        Owner { weighted, ..self }
    }

    /// The longest message of any round.
    pub fn longest(&self) -> usize {
        self.codings.longest_message()
    }

    /// The length of a whole message up, in the round that `expected` (a message, or its header alone) belongs to.
    pub fn length(&self, expected: &[u8]) -> Result<usize> {
        let place = self.place(expected)?;
        Ok(HEADER_LEN + place.coding.payload_len(Way::Up, &place.blocks))
    }

    /// Refuses a message of `worker` that is not of the round that `expected` belongs to, that disagrees with it on the state that
    /// all workers share, or whose values cannot be. Returns its norm; none if its worker is left out.
    pub fn check(&self, expected: &[u8], message: &[u8], worker: usize) -> Result<Option<f64>> {
        self.fits(expected, message, worker)?;
        let (place, (header, payload)) = (self.place(expected)?, Header::read(message, worker)?);
        if header.contributions == 0 {
            return Ok(None);
        }
        let found = self.machine.measure(place.coding.coded(Way::Up), payload);
        match found.map_err(|fault| Error::Payload { worker, fault })? {
            Ok(norm) => Ok(Some(norm / f64::from(header.contributions))), // of the worker's vector itself
            Err(value) => Err(Error::Malformed {
                worker,
                problem: format!("a value of {value:e}, where {LARGEST:e} is the most"),
            }),
        }
    }

    /// The part of [`Owner::check`] without which no mean can be taken: the header and the length, and nothing of the values.
    pub fn fits(&self, expected: &[u8], message: &[u8], worker: usize) -> Result<()> {
        let place = self.place(expected)?;
        let (header, payload) = Header::read(message, worker)?;
        header.expect(&place.header, worker, SERVER)?;
        let most = if self.weighted { u32::MAX } else { 1 };
        check_payload(worker, &header, payload, place.coding.payload_len(Way::Up, &place.blocks), most)
    }

    /// A message that was checked, with each of its values times `factor`.
    pub fn shortened(&self, expected: &[u8], message: &[u8], factor: f32, worker: usize) -> Result<Vec<u8>> {
        let place = self.place(expected)?;
        let mut shorter = message.to_vec();
        let coded = place.coding.coded(Way::Up);
        let made = self.machine.shorten_payload(factor, coded, &mut shorter[HEADER_LEN..]);
        made.map_err(|fault| Error::Payload { worker, fault })?;
        Ok(shorter)
    }

    /// A message that was checked, of a worker that is left out instead: its header alone.
    pub fn emptied(&self, message: &[u8], worker: usize) -> Result<Vec<u8>> {
        let (header, _) = Header::read(message, worker)?;
        let mut empty = Vec::new();
        Header { contributions: 0, ..header }.start(&mut empty, 0);
        Ok(empty)
    }

    /// The message down: the mean of `messages`, which were checked, in this order. `sender` names the worker of each.
    pub fn mean(&mut self, expected: &[u8], messages: &[Vec<u8>], sender: impl Fn(usize) -> usize) -> Result<Vec<u8>> {
        let Place { coarse, coding, .. } = self.place(expected)?;
        let keeping = coding.keeping;
        let remembers = coarse && keeping.down > 0.0;
        if remembers {
            self.next.copy_from_slice(&self.residual);
        }
        // Moved out, for the coding is borrowed from self beside it.
        let mut next = std::mem::replace(&mut self.next, Floats::zeroed(0));
        let made = self.code(
            expected,
            messages,
            sender,
            if remembers { ResidualSlice::Wide(&mut next) } else { ResidualSlice::Nothing },
        );
        // In 32 bits here, with the numbers of fewer where workers keep theirs so.
        if remembers {
            keeping.precision.round(keeping.block, &mut next);
        }
        self.next = next;
        made
    }

    fn code(
        &self,
        expected: &[u8],
        messages: &[Vec<u8>],
        sender: impl Fn(usize) -> usize,
        residual: ResidualSlice<'_>,
    ) -> Result<Vec<u8>> {
        let Place { header: up, coding, blocks, coarse } = self.place(expected)?;
        let operation = if coarse { Operation::CoarseDown } else { Operation::ExactDown };
        let header = Header::new(operation, coding.name(Way::Down), self.shape, up.step, up.digest).covering(&blocks);
        let header = Header { contributions: contributions(messages, SERVER)?, ..header };
        let payload = if header.contributions > 0 { coding.payload_len(Way::Down, &blocks) } else { 0 };
        let mut message = Vec::new();
        let bytes = header.start(&mut message, payload);
        if header.contributions > 0 {
            let sum = coding.sum(messages, Way::Up, Way::Down, header.contributions as f32);
            let made = coding.made_down(up.step, self.workers).filter(|_| coarse);
            let range = 0..self.shape.values;
            let residual = made.map_or(residual, |made| ResidualSlice::Made { made, range });
            self.machine.serve_with(&sum, residual, coding.keeping.down, bytes).map_err(|refused| match refused {
                Refused::Payload(place, fault) => Error::Payload { worker: sender(place), fault },
                Refused::Overflow => Error::Overflow { worker: SERVER, step: up.step, what: "averages" },
                Refused::Failed(error) => error,
            })?;
        }
        Ok(message)
    }

    /// The mean that `expected` was made for last is for good: E becomes what it left.
    pub fn keep(&mut self, expected: &[u8]) -> Result<()> {
        if self.place(expected)?.coarse {
            std::mem::swap(&mut self.residual, &mut self.next);
        }
        Ok(())
    }

    /// E.
    pub fn residual(&mut self) -> &mut [f32] {
        &mut self.residual
    }

    /// E after the mean that was made last, kept or not.
    pub fn next_residual(&self) -> &[f32] {
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
                let problem = format!("operation: expected a mean on its way up, found {other}");
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
    coding: &'a super::RoundLayout,
    blocks: std::ops::Range<usize>,
    coarse: bool,
}
