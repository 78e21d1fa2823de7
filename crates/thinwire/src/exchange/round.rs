//! One mean under way: buckets go up to their owners, are averaged, and come down.
//!
//! A bucket has five parts. Everyone sends its vector to the relays of its host (`send_inside`); a relay adds up, codes, and
//! sends the sum to the owner (`send_up`); the owner receives the hosts' sums (`receive_up`), averages them, and sends the mean to
//! the relays of the other hosts (`serve`); and everyone takes the mean of every owner, in the order of owners, from the owner if
//! it is the relay, else from the relay, which passes on what it got (`receive_down`).
//!
//! Where workers are weighted, a worker's vector goes times its weight w, with a residual in the same units, and an owner divides by Σw.
//!
//! Nobody waits in a ring: what one waits for comes earlier in an order that all keep. Sending waits for no one. Of a bucket
//! `send_up` needs `send_inside` of others, `receive_up` their `send_up`, and the turn of owner r in `receive_down` either `serve`
//! of r or the turn of r at its relay, which comes after the turns of the owners before r and nothing else.

use super::header::{HEADER_LEN, Header, Operation};
use super::layout::{Shape, Topology};
use super::round_layout::Way;
use super::{RoundLayout, opened};
use crate::error::{Error, Result};
use crate::machine::{Feedback, Machine, Pass, Refused, Source, Step};
use crate::transport::Metered;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The buffers of a round, made at the start, as long as they will ever be.
pub(super) struct Mail {
    out: Vec<u8>,
    /// One message from each worker of this host; none for a worker that is alone there.
    inside: Vec<Vec<u8>>,
    /// One message from each host, for this bucket and the next.
    up: [Vec<Vec<u8>>; 2],
    served: Vec<u8>,
    down: Vec<u8>,
}

impl Mail {
    pub fn new((hosts, members): (usize, usize), longest: usize) -> Mail {
        let buffer = || Vec::with_capacity(longest);
        let buffers = |count: usize| (0..count).map(|_| buffer()).collect();
        let up = [buffers(hosts), buffers(hosts)];
        Mail { out: buffer(), inside: buffers(members), up, served: buffer(), down: buffer() }
    }
}

pub(super) struct UnderWay<'a, 's, S, P> {
    pub coding: &'a RoundLayout,
    pub coarse: bool,
    /// The step that the mean belongs to: of a late one, the step that it started at.
    pub t: u64,
    pub shape: Shape,
    /// Of the shared state before this round.
    pub digest: u64,
    /// What is averaged: a step that each worker adds, or a state of all.
    pub of_state: bool,
    /// Whether workers count by their weights.
    pub weighted: bool,
    pub group: &'a mut Metered,
    pub mail: &'a mut Mail,
    pub machine: &'a mut Machine,
    pub step: &'a mut Step<'s>,
    /// What this worker's vector is.
    pub source: S,
    /// What is done with the mean.
    pub pass: P,
}

pub(super) struct Outcome {
    /// None before the first mean comes down; the same in all of them.
    pub contributions: Option<u32>,
    pub digest: u64,
}

impl<S: Source, P: Pass> UnderWay<'_, '_, S, P> {
    /// While one bucket is on its way up, the one before is averaged and goes down. Messages between two workers keep
    /// their order, so everyone receives in the order everyone sends: up 0, up 1, down 0, up 2, down 1, …, where up is
    /// what goes inside the host, or what comes of it.
    pub fn run(&mut self) -> Result<Outcome> {
        let buckets = self.coding.layout.buckets();
        let mut outcome = Outcome { contributions: None, digest: self.digest };
        self.send_inside(0)?;
        self.send_up(0)?;
        self.receive_up(0)?;
        for k in 0..buckets {
            if k + 1 < buckets {
                self.send_inside(k + 1)?;
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

    /// The first part of a late mean: everything goes up. Inside a host workers wait for each other.
    ///
    /// `kept` has a buffer for each bucket at least, for what this worker tells itself as an owner, and the owner's mean in its place later.
    pub fn start(&mut self, kept: &mut [Vec<u8>]) -> Result<()> {
        let (here, buckets) = (self.here(), self.coding.layout.buckets());
        for k in 0..buckets {
            self.send_inside(k)?;
        }
        for (k, kept) in kept[..buckets].iter_mut().enumerate() {
            self.send_up(k)?;
            std::mem::swap(&mut self.mail.up[k % 2][here], kept);
        }
        Ok(())
    }

    /// The second: owners take the mean and send it down.
    pub fn turn(&mut self, kept: &mut [Vec<u8>]) -> Result<()> {
        if !self.is_owner() {
            return Ok(());
        }
        let (here, buckets) = (self.here(), self.coding.layout.buckets());
        for (k, kept) in kept[..buckets].iter_mut().enumerate() {
            std::mem::swap(&mut self.mail.up[k % 2][here], kept);
            self.receive_up(k)?;
            self.serve(k)?;
            std::mem::swap(&mut self.mail.served, kept);
        }
        Ok(())
    }

    /// The last: everyone receives the mean and applies it.
    pub fn finish(&mut self, kept: &mut [Vec<u8>]) -> Result<Outcome> {
        let mut outcome = Outcome { contributions: None, digest: self.digest };
        for (k, kept) in kept[..self.coding.layout.buckets()].iter_mut().enumerate() {
            std::mem::swap(&mut self.mail.served, kept);
            self.receive_down(k, &mut outcome)?;
        }
        Ok(outcome)
    }

    fn is_owner(&self) -> bool {
        self.coding.layout.owners().contains(&self.group.rank())
    }

    /// The number of this worker's host.
    fn here(&self) -> usize {
        self.coding.hosts.of(self.group.rank())
    }

    /// Who speaks to `owner` for this worker's host.
    fn relay(&self, owner: usize) -> usize {
        self.coding.hosts.relay(self.here(), owner)
    }

    fn header(&self, way: Way, blocks: &Range<usize>) -> Header {
        let operation = match (way, self.coarse) {
            (Way::Inside, false) => Operation::ExactInside,
            (Way::Inside, true) => Operation::CoarseInside,
            (Way::Up, false) => Operation::ExactUp,
            (Way::Up, true) => Operation::CoarseUp,
            (Way::Down, false) => Operation::ExactDown,
            (Way::Down, true) => Operation::CoarseDown,
        };
        Header::new(operation, self.coding.name(way), self.shape, self.t, self.digest)
            .covering(&self.coding.layout.covered(blocks))
    }

    /// What a payload on its way up is coded with.
    fn feedback_up(&self) -> Feedback {
        match self.coding.made_up(self.t, self.group.seat()) {
            _ if !self.coarse => Feedback::None,
            Some(made) => Feedback::Made(made),
            None => Feedback::Up,
        }
    }

    /// Sends this worker's vector, as far as bucket `k` goes, to those who are relays for it.
    fn send_inside(&mut self, k: usize) -> Result<()> {
        for owner in self.coding.layout.owners() {
            let relay = self.relay(owner);
            if relay != self.group.rank() {
                let operation = self.pack(Way::Inside, &self.coding.layout.bucket(owner, k))?;
                self.group.send(relay, &self.mail.out, operation.name())?;
            }
        }
        Ok(())
    }

    /// Packs what this host has to say in bucket `k`, for every owner that this worker is the relay of, and sends it.
    fn send_up(&mut self, k: usize) -> Result<()> {
        let me = self.group.rank();
        for owner in self.coding.layout.owners() {
            if self.relay(owner) != me {
                continue;
            }
            let blocks = self.coding.layout.bucket(owner, k);
            let operation = match self.mail.inside.is_empty() {
                true => self.pack(Way::Up, &blocks)?,
                false => self.add_up(&blocks)?,
            };
            if owner == me {
                let here = self.here();
                std::mem::swap(&mut self.mail.out, &mut self.mail.up[k % 2][here]);
            } else {
                self.group.send(owner, &self.mail.out, operation.name())?;
            }
        }
        Ok(())
    }

    /// This worker's vector in these blocks, coded; a header alone when it is left out. On its way up z = x + e, q = C_up(z),
    /// e ← z − q; inside the host nothing is remembered.
    fn pack(&mut self, way: Way, blocks: &Range<usize>) -> Result<Operation> {
        let (coding, mut header) = (self.coding, self.header(way, blocks));
        header.contributions = if self.step.contributes { self.step.weight } else { 0 };
        let payload = if self.step.contributes { coding.payload_len(way, blocks) } else { 0 };
        let feedback = if way == Way::Up { self.feedback_up() } else { Feedback::None };
        let bytes = header.start(&mut self.mail.out, payload);
        if self.step.contributes {
            let (machine, step, source, coded) = (&mut *self.machine, &mut *self.step, &self.source, coding.coded(way));
            let packed = self.group.packing(|| {
                coding.each_stretch(way, blocks, bytes, |range, bytes, _| {
                    machine.pack(source, step, feedback, coded, range, bytes)
                })
            });
            self.accept(packed, "sends", |_| self.group.rank())?;
        }
        Ok(header.operation)
    }

    /// z = Σ x + e over the workers of this host, q = C_up(z), e ← z − q, for these blocks; a header alone, and the residual
    /// kept, when all are left out. This worker's x is coded like everyone's: who is the relay changes no bit.
    fn add_up(&mut self, blocks: &Range<usize>) -> Result<Operation> {
        let (coding, me) = (self.coding, self.group.rank());
        let members = coding.hosts.members(self.here());
        self.pack(Way::Inside, blocks)?;
        let expected = self.header(Way::Inside, blocks);
        for (i, worker) in members.iter().enumerate() {
            if *worker == me {
                std::mem::swap(&mut self.mail.out, &mut self.mail.inside[i]);
            } else {
                let payload_len = coding.payload_len(Way::Inside, blocks);
                receive(self.group, *worker, &expected, &mut self.mail.inside[i], payload_len, most(self.weighted, 1))?;
            }
        }
        let (mut header, feedback) = (self.header(Way::Up, blocks), self.feedback_up());
        header.contributions = contributions(&self.mail.inside, me)?;
        let payload = if header.contributions > 0 { coding.payload_len(Way::Up, blocks) } else { 0 };
        let bytes = header.start(&mut self.mail.out, payload);
        if header.contributions > 0 {
            let sum = coding.sum(&self.mail.inside, Way::Inside, Way::Up, 1.0);
            let machine = &mut *self.machine;
            let summed = self.group.packing(|| {
                coding.each_stretch(Way::Up, blocks, bytes, |range, bytes, before| {
                    machine.serve(&coding.behind(&sum, before), feedback, range, bytes)
                })
            });
            self.accept(summed, "adds up", |i| members[i])?;
        }
        Ok(header.operation)
    }

    /// Names who is to blame for what the machine refused; `sender` knows who sent the message at each place.
    fn accept(&self, done: Result<(), Refused>, what: &'static str, sender: impl Fn(usize) -> usize) -> Result<()> {
        done.map_err(|refused| match refused {
            Refused::Payload(place, fault) => Error::Payload { worker: sender(place), fault },
            Refused::Overflow => Error::Overflow { worker: self.group.rank(), step: self.t, what },
            Refused::Failed(error) => error,
        })
    }

    /// Receives every other host's part of this owner's blocks in bucket `k`.
    fn receive_up(&mut self, k: usize) -> Result<()> {
        if !self.is_owner() {
            return Ok(());
        }
        let (coding, me, here) = (self.coding, self.group.rank(), self.here());
        let blocks = coding.layout.bucket(me, k);
        let (expected, payload_len) = (self.header(Way::Up, &blocks), coding.payload_len(Way::Up, &blocks));
        for host in (0..coding.hosts.count()).filter(|host| *host != here) {
            let (relay, members) = (coding.hosts.relay(host, me), coding.hosts.members(host).len());
            let most = most(self.weighted, members);
            receive(self.group, relay, &expected, &mut self.mail.up[k % 2][host], payload_len, most)?;
        }
        Ok(())
    }

    /// z = Σ q / n + E, p = C_down(z), E ← z − p, for this owner's blocks in bucket `k`, with n for all who take part; sends p to
    /// the other hosts. Its own host gets p in [`UnderWay::receive_down`], where it is this owner's turn.
    fn serve(&mut self, k: usize) -> Result<()> {
        if !self.is_owner() {
            return Ok(());
        }
        let (coding, me, here) = (self.coding, self.group.rank(), self.here());
        let blocks = coding.layout.bucket(me, k);
        let mut header = self.header(Way::Down, &blocks);
        header.contributions = contributions(&self.mail.up[k % 2], me)?;
        let payload = if header.contributions > 0 { coding.payload_len(Way::Down, &blocks) } else { 0 };
        let bytes = header.start(&mut self.mail.served, payload);
        if header.contributions > 0 {
            let owned = coding.owned(me).start;
            let sum = coding.sum(&self.mail.up[k % 2], Way::Up, Way::Down, header.contributions as f32);
            let feedback = match coding.made_down(self.t, self.shape.workers) {
                _ if !self.coarse => Feedback::None,
                Some(made) => Feedback::Made(made),
                None => Feedback::Down { owned },
            };
            let machine = &mut *self.machine;
            let served = self.group.packing(|| {
                coding.each_stretch(Way::Down, &blocks, bytes, |range, bytes, before| {
                    machine.serve(&coding.behind(&sum, before), feedback, range, bytes)
                })
            });
            self.accept(served, "averages", |host| coding.hosts.relay(host, me))?;
        }
        for host in (0..coding.hosts.count()).filter(|host| *host != here) {
            self.group.send(coding.hosts.relay(host, me), &self.mail.served, header.operation.name())?;
        }
        Ok(())
    }

    /// Takes the mean of bucket `k` from every owner, passes it on to those whose relay this worker is, and applies it.
    fn receive_down(&mut self, k: usize, outcome: &mut Outcome) -> Result<()> {
        let (coding, me) = (self.coding, self.group.rank());
        for owner in coding.layout.owners() {
            let blocks = coding.layout.bucket(owner, k);
            let (expected, payload_len) = (self.header(Way::Down, &blocks), coding.payload_len(Way::Down, &blocks));
            let relay = self.relay(owner);
            let from = if relay == me { owner } else { relay };
            if from == me {
                std::mem::swap(&mut self.mail.served, &mut self.mail.down);
            } else {
                let most = match self.shape.topology {
                    Topology::Served => u32::MAX, // workers come and go
                    _ => most(self.weighted, self.shape.workers),
                };
                let received = receive(self.group, from, &expected, &mut self.mail.down, payload_len, most);
                // Of a state there is nothing to take back without the mean to compare it with.
                if self.is_left_out() && (received.is_ok() || !self.of_state) {
                    self.take_back()?;
                }
                received?;
            }
            if relay == me {
                for mate in coding.hosts.mates(me) {
                    self.group.send(mate, &self.mail.down, expected.operation.name())?;
                }
            }
            let there = Header::contributions_in(&self.mail.down);
            let here = *outcome.contributions.get_or_insert(there);
            if there != here {
                let (field, there, here) = ("who takes part".to_owned(), there.to_string(), here.to_string());
                return Err(Error::Disagreement { worker: owner, field, there, me, here });
            }
            outcome.digest = xxh3_64_with_seed(&self.mail.down[HEADER_LEN..], outcome.digest ^ u64::from(there));
            if there > 0 {
                self.unpack(from, &blocks)?;
            }
        }
        Ok(())
    }

    /// Whether a server took the mean without this worker, which had something to say.
    fn is_left_out(&self) -> bool {
        self.coarse && self.step.contributes && self.group.left_out()
    }

    /// e ← e + q: a server took the mean without this worker's q, and all of it is still to be said. A round with a server has one
    /// bucket, which is still in `mail.out`.
    fn take_back(&mut self) -> Result<()> {
        let coded = self.coding.coded(Way::Up);
        let (machine, bytes) = (&mut *self.machine, &mut self.mail.out[HEADER_LEN..]);
        let taken = self.group.packing(|| machine.take_back(coded, bytes));
        self.accept(taken, "takes back", |_| self.group.rank())
    }

    /// Decodes the mean that `worker` sent for `blocks`, and applies it.
    ///
    /// A worker that missed a round of a state, such as a momentum, keeps in its residual how far its own is from the others' mean:
    /// e ← e − p. A step that each worker adds stays in the residual whole.
    fn unpack(&mut self, worker: usize, blocks: &Range<usize>) -> Result<()> {
        let compares = self.of_state && self.is_left_out();
        let (coding, bytes) = (self.coding, &mut self.mail.down[HEADER_LEN..]);
        let (machine, step, pass, coded) = (&mut *self.machine, &mut *self.step, &self.pass, coding.coded(Way::Down));
        let unpacked = self.group.packing(|| {
            coding.each_stretch(Way::Down, blocks, bytes, |range, bytes, _| {
                machine.unpack(pass, step, compares, coded, range, bytes)
            })
        });
        self.accept(unpacked, "applies", |_| worker)
    }
}

/// How many workers these messages are of, or what these weigh together; worker `me` adds up.
pub(super) fn contributions(messages: &[Vec<u8>], me: usize) -> Result<u32> {
    let all = messages.iter().map(|message| u64::from(Header::contributions_in(message))).sum::<u64>();
    let problem = || format!("contributions: expected weights of at most {} together, found {all}", u32::MAX);
    u32::try_from(all).map_err(|_| Error::Malformed { worker: me, problem: problem() })
}

/// What so many workers may count for together.
fn most(weighted: bool, workers: usize) -> u32 {
    if weighted { u32::MAX } else { workers as u32 }
}

/// Receives the message that `expected` describes, of at most `most` workers.
fn receive(
    group: &mut Metered,
    worker: usize,
    expected: &Header,
    message: &mut Vec<u8>,
    payload_len: usize,
    most: u32,
) -> Result<()> {
    message.resize(HEADER_LEN + payload_len, 0);
    group.receive(worker, message, expected.operation.name())?;
    let (header, payload) = opened(message, expected, worker, group.rank())?;
    check_payload(worker, &header, payload, payload_len, most)
}

/// A payload is of at most `most` workers; it is as long as its blocks take, or empty when nobody is in it.
pub(super) fn check_payload(worker: usize, header: &Header, payload: &[u8], full: usize, most: u32) -> Result<()> {
    let malformed = |problem: String| Err(Error::Malformed { worker, problem });
    if header.contributions > most {
        return malformed(format!("contributions: expected at most {most}, found {}", header.contributions));
    }
    let (expected, got) = (if header.contributions > 0 { full } else { 0 }, payload.len());
    if expected == got { Ok(()) } else { malformed(format!("payload: expected {expected} bytes, found {got}")) }
}
