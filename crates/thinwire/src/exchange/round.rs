//! One mean under way: buckets go up to their owners, are averaged, and come down.

use super::{Coding, opened};
use crate::codec::{Codec, Fault};
use crate::collective::Metered;
use crate::error::{Error, Result};
use crate::layout::Shape;
use crate::message::{HEADER_LEN, Header, Operation};
use crate::tiles::{Cut, Span, Threads, Vectors};
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The buffers of a round, made at the start, as long as they will ever be.
pub(super) struct Mail {
    out: Vec<u8>,
    /// One message from each worker, for this bucket and the next.
    up: [Vec<Vec<u8>>; 2],
    served: Vec<u8>,
    down: Vec<u8>,
}

impl Mail {
    pub fn new(workers: usize, longest: usize) -> Mail {
        let buffer = || Vec::with_capacity(longest);
        let buffers = || (0..workers).map(|_| buffer()).collect();
        Mail { out: buffer(), up: [buffers(), buffers()], served: buffer(), down: buffer() }
    }
}

pub(super) struct UnderWay<'a, const R: usize, const W: usize, F, A> {
    pub coding: &'a Coding,
    pub coarse: bool,
    pub shape: Shape,
    pub step: u64,
    /// False when this worker's vector is left out.
    pub contributes: bool,
    /// Of the shared state before this round.
    pub digest: u64,
    /// Empty in an exact mean.
    pub up_residue: &'a mut [f32],
    pub down_residue: &'a mut [f32],
    pub group: &'a mut Metered,
    pub threads: &'a Threads,
    pub mail: &'a mut Mail,
    pub vectors: Vectors<'a, R, W>,
    pub fill: F,
    pub apply: A,
}

pub(super) struct Outcome {
    /// None before the first mean comes down; the same in all of them.
    pub contributions: Option<u32>,
    pub digest: u64,
}

/// This range of `residue`, which may be empty altogether.
fn part(residue: &mut [f32], range: Range<usize>) -> &mut [f32] {
    if residue.is_empty() { residue } else { &mut residue[range] }
}

impl<const R: usize, const W: usize, F, A> UnderWay<'_, R, W, F, A>
where
    F: Fn(Range<usize>, Vectors<'_, R, W>, &mut [f32]) + Sync,
    A: Fn(Range<usize>, Vectors<'_, R, W>, &[f32]) + Sync,
{
    /// While one bucket is on its way up, the one before is averaged and goes down. Messages between two workers keep
    /// their order, so everyone receives in the order everyone sends: up 0, up 1, down 0, up 2, down 1, …
    pub fn run(&mut self) -> Result<Outcome> {
        let buckets = self.coding.layout.buckets();
        let mut outcome = Outcome { contributions: None, digest: self.digest };
        self.send_up(0)?;
        self.receive_up(0)?;
        for k in 0..buckets {
            if k + 1 < buckets {
                self.send_up(k + 1)?;
            }
            self.serve(k)?;
            if k + 1 < buckets {
                self.receive_up(k + 1)?;
            }
            self.receive_down(k, &mut outcome)?;
        }
        Ok(outcome)
    }

    fn is_owner(&self) -> bool {
        self.coding.layout.owners().contains(&self.group.rank())
    }

    fn header_up(&self, blocks: &Range<usize>) -> Header {
        let operation = if self.coarse { Operation::CoarseUp } else { Operation::ExactUp };
        Header::new(operation, self.coding.up.0, self.shape, self.step, self.digest).covering(blocks)
    }

    fn header_down(&self, blocks: &Range<usize>) -> Header {
        let operation = if self.coarse { Operation::CoarseDown } else { Operation::ExactDown };
        Header::new(operation, self.coding.down.0, self.shape, self.step, self.digest).covering(blocks)
    }

    /// Packs bucket `k`, and sends every owner its part.
    fn send_up(&mut self, k: usize) -> Result<()> {
        for owner in self.coding.layout.owners() {
            let blocks = self.coding.layout.bucket(owner, k);
            let header = self.header_up(&blocks);
            self.pack(header, &blocks)?;
            if owner == self.group.rank() {
                std::mem::swap(&mut self.mail.out, &mut self.mail.up[k % 2][owner]);
            } else {
                self.group.send(owner, &self.mail.out, header.operation.name())?;
            }
        }
        Ok(())
    }

    /// z = x + e, q = C_up(z), e ← z − q, for these blocks; a header alone when this worker is left out.
    fn pack(&mut self, mut header: Header, blocks: &Range<usize>) -> Result<()> {
        let (layout, codec) = (&self.coding.layout, &*self.coding.up.1);
        header.contributions = u32::from(self.contributes);
        let payload = if self.contributes { layout.payload_len(codec, blocks) } else { 0 };
        let bytes = header.start(&mut self.mail.out, payload);
        if !self.contributes {
            return Ok(());
        }
        let range = layout.values_of(blocks);
        let span = Span {
            residue: part(self.up_residue, range.clone()),
            vectors: self.vectors.part(range.clone()),
            range,
            bytes,
            cut: Cut { block: layout.block, encoded: codec.encoded_len(layout.block) },
        };
        let (threads, fill) = (self.threads, &self.fill);
        let (worker, step) = (self.group.rank(), self.step);
        self.group.packing(|| {
            threads.walk(span, |mut tile, x| {
                fill(tile.range.clone(), tile.vectors.part(0..x.len()), x);
                tile.blocks().try_for_each(|(block, residue, bytes)| {
                    encode(codec, &x[block], residue, bytes).map_err(|_| Error::Overflow {
                        worker,
                        step,
                        what: "sends",
                    })
                })
            })
        })
    }

    /// Receives everyone's part of this owner's blocks in bucket `k`.
    fn receive_up(&mut self, k: usize) -> Result<()> {
        if !self.is_owner() {
            return Ok(());
        }
        let me = self.group.rank();
        let blocks = self.coding.layout.bucket(me, k);
        let expected = self.header_up(&blocks);
        let payload_len = self.coding.layout.payload_len(&*self.coding.up.1, &blocks);
        for worker in self.group.others() {
            let message = &mut self.mail.up[k % 2][worker];
            message.resize(HEADER_LEN + payload_len, 0);
            self.group.receive(worker, message, expected.operation.name())?;
            let (header, payload) = opened(message, &expected, worker, me)?;
            check_payload(worker, &header, payload, payload_len, 1)?;
        }
        Ok(())
    }

    /// z = mean q + E, p = C_down(z), E ← z − p, for this owner's blocks in bucket `k`; sends p to everyone.
    fn serve(&mut self, k: usize) -> Result<()> {
        if !self.is_owner() {
            return Ok(());
        }
        let (layout, me) = (&self.coding.layout, self.group.rank());
        let blocks = layout.bucket(me, k);
        let mut header = self.header_down(&blocks);
        header.contributions =
            self.mail.up[k % 2].iter().filter(|message| contribution(message).is_some()).count() as u32;
        let payload_len = if header.contributions > 0 { layout.payload_len(&*self.coding.down.1, &blocks) } else { 0 };
        header.start(&mut self.mail.served, payload_len);
        if header.contributions > 0 {
            self.average(k, layout.values_of(&blocks), header.contributions as f32)?;
        }
        for worker in self.group.others() {
            self.group.send(worker, &self.mail.served, header.operation.name())?;
        }
        Ok(())
    }

    /// The mean of bucket `k`, which are the values in `range`, from the messages up into the message down.
    fn average(&mut self, k: usize, range: Range<usize>, contributions: f32) -> Result<()> {
        let (layout, me) = (&self.coding.layout, self.group.rank());
        let (up, down) = (&*self.coding.up.1, &*self.coding.down.1);
        let (block, encoded) = (layout.block, up.encoded_len(layout.block));
        let (start, owned) = (range.start, layout.values_of(&layout.owned(me)).start);
        let messages = &self.mail.up[k % 2];
        let span = Span {
            residue: part(self.down_residue, range.start - owned..range.end - owned),
            vectors: Vectors { read: [], write: [] },
            range,
            bytes: &mut self.mail.served[HEADER_LEN..],
            cut: Cut { block, encoded: down.encoded_len(block) },
        };
        let (threads, step) = (self.threads, self.step);
        self.group.packing(|| {
            threads.walk(span, |mut tile, sum| {
                let first = (tile.range.start - start) / block;
                tile.blocks().enumerate().try_for_each(|(i, (values, residue, bytes))| {
                    let sum = &mut sum[values];
                    sum.fill(0.0);
                    for (worker, message) in messages.iter().enumerate() {
                        if let Some(payload) = contribution(message) {
                            let rest = &payload[(first + i) * encoded..];
                            up.decode_add(&rest[..up.encoded_len(sum.len())], sum)
                                .map_err(|fault| Error::Payload { worker, fault })?;
                        }
                    }
                    sum.iter_mut().for_each(|sum| *sum /= contributions);
                    encode(down, sum, residue, bytes).map_err(|_| Error::Overflow {
                        worker: me,
                        step,
                        what: "averages",
                    })
                })
            })
        })
    }

    /// Receives the mean of bucket `k` from every owner, and applies it.
    fn receive_down(&mut self, k: usize, outcome: &mut Outcome) -> Result<()> {
        let (layout, codec, me) = (&self.coding.layout, &*self.coding.down.1, self.group.rank());
        for owner in layout.owners() {
            let blocks = layout.bucket(owner, k);
            let expected = self.header_down(&blocks);
            let payload_len = layout.payload_len(codec, &blocks);
            if owner == me {
                std::mem::swap(&mut self.mail.served, &mut self.mail.down);
            } else {
                self.mail.down.resize(HEADER_LEN + payload_len, 0);
                self.group.receive(owner, &mut self.mail.down, expected.operation.name())?;
            }
            let (header, payload) = opened(&self.mail.down, &expected, owner, me)?;
            check_payload(owner, &header, payload, payload_len, self.shape.workers as u32)?;
            let here = *outcome.contributions.get_or_insert(header.contributions);
            if header.contributions != here {
                let (field, there, here) =
                    ("who takes part".to_owned(), header.contributions.to_string(), here.to_string());
                return Err(Error::Disagreement { worker: owner, field, there, me, here });
            }
            outcome.digest = xxh3_64_with_seed(payload, outcome.digest ^ u64::from(header.contributions));
            if header.contributions > 0 {
                self.unpack(owner, layout.values_of(&blocks))?;
            }
        }
        Ok(())
    }

    /// Decodes the mean that `owner` sent for the values in `range`, and applies it.
    fn unpack(&mut self, owner: usize, range: Range<usize>) -> Result<()> {
        let (block, codec) = (self.coding.layout.block, &*self.coding.down.1);
        let span = Span {
            residue: &mut [],
            vectors: self.vectors.part(range.clone()),
            range,
            bytes: &mut self.mail.down[HEADER_LEN..],
            cut: Cut { block, encoded: codec.encoded_len(block) },
        };
        let (threads, apply) = (self.threads, &self.apply);
        self.group.packing(|| {
            threads.walk(span, |mut tile, mean| {
                tile.blocks().try_for_each(|(block, _, bytes)| {
                    codec.decode(bytes, &mut mean[block]).map_err(|fault| Error::Payload { worker: owner, fault })
                })?;
                apply(tile.range.clone(), tile.vectors.part(0..mean.len()), mean);
                Ok(())
            })
        })
    }
}

/// With the residue, or without one if it is empty.
fn encode(codec: &dyn Codec, x: &[f32], residue: &mut [f32], bytes: &mut [u8]) -> Result<(), Fault> {
    match residue {
        [] => codec.encode(x, bytes),
        residue => codec.encode_with(x, residue, bytes),
    }
}

/// The payload of a message up, unless its sender is left out of this round.
fn contribution(message: &[u8]) -> Option<&[u8]> {
    Header::contributes(message).then(|| &message[HEADER_LEN..])
}

/// A payload is of at most `most` workers; it is as long as its blocks take, or empty when nobody is in it.
fn check_payload(worker: usize, header: &Header, payload: &[u8], full: usize, most: u32) -> Result<()> {
    let malformed = |problem: String| Err(Error::Malformed { worker, problem });
    if header.contributions > most {
        return malformed(format!("{} workers in it where {most} may be", header.contributions));
    }
    let (expected, got) = (if header.contributions > 0 { full } else { 0 }, payload.len());
    if expected == got { Ok(()) } else { malformed(format!("{got} bytes of payload where {expected} belong")) }
}
