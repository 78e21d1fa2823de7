//! The mean of a vector over all workers: the one place that knows codecs and a transport.
//!
//! With C_up and C_down two codecs, e a host's residue and E the residue of the blocks that a worker owns, n workers:
//!
//! ```text
//! worker i:  x, exactly, to the relay of its host
//! relay:     z = Σ x + e;       q = C_up(z);    e ← z − q;   each owner gets its blocks of q
//! owner r:   z = Σ q/n + E;     p = C_down(z);  E ← z − p;   everyone gets p, by way of the relays
//! ```
//!
//! Where every worker has a host to itself, the flat form, each is its own relay and nothing is sent inside a host
//! ([`hosts`](crate::hosts)). Hosts send sums, not means: so e weighs 1/n whatever a host's size is.
//!
//! A coarse mean remembers both residues; an exact mean is the same with a cast and no residue. Sums run in rank order, in
//! f32, and everyone decodes the owner's bytes, the owner too: all workers hold the same bits.
//!
//! The vector itself need not exist. [`Exchange::mean`] asks for it tile by tile (`fill`), and hands the mean back tile
//! by tile (`apply`), so that what an optimizer computes before and after is part of the same pass over memory. One that does
//! exist is read where it lies, and overwritten with its mean ([`Exchange::mean_in_place`]).

mod averaged;
mod coding;
mod owner;
mod round;
mod sum;

pub use coding::{Coding, Codings, Crossing, Sent};
pub use owner::Owner;

use crate::codec::CodecName;
use crate::collective::{Collective, Metered};
use crate::error::{Error, Result};
use crate::layout::{Shape, Topology};
use crate::message::{Header, Operation};
use crate::optimizer::{Entry, Now, Share};
use crate::residue::{Owed, Precision, Residue};
use crate::schedule::Round;
use crate::tiles::{Span, Threads, Vectors};
use averaged::{Averaged, InPlace, Made};
use coding::Way;
use round::Mail;
use std::convert::Infallible;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A worker's part in every mean: its group, its codecs, its residues, and the digest of all that was agreed on.
pub struct Exchange {
    pub group: Metered,
    pub threads: Threads,
    shape: Shape,
    codings: Codings,
    /// e: what the bytes this worker sent up have not said yet; 0 in blocks that another worker of its host relays.
    up_residue: Residue,
    /// E: what the means of the blocks it owns have not said yet.
    down_residue: Residue,
    /// Of everything all workers have in common so far.
    digest: u64,
    mail: Mail,
    /// What coarse means are of: a step that each worker adds, as in Efficient-Adam, or a state of all, such as a momentum. It
    /// makes a difference to who was left out of one.
    pub of_state: bool,
}

impl Exchange {
    pub fn new(shape: Shape, codings: Codings, mut group: Box<dyn Collective>, threads: Threads) -> Exchange {
        group.reserve(codings.longest_message(), codings.under_way());
        let (whole, owned, precision) = match &codings.coarse {
            Some(coarse) => (shape.values, coarse.owned(group.rank()).len(), coarse.residue),
            None => (0, 0, Precision::F32),
        };
        Exchange {
            mail: Mail::new(codings.senders(group.rank()), codings.longest_message()),
            group: Metered::new(group),
            threads,
            shape,
            codings,
            up_residue: Residue::zeroed(whole, precision),
            down_residue: Residue::zeroed(owned, precision),
            digest: 0,
            of_state: true,
        }
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Whether there is nobody to agree with: no other worker, and no server.
    pub(crate) fn is_alone(&self) -> bool {
        self.shape.workers == 1 && self.shape.topology != Topology::Served
    }

    /// Adds to the digest what must be the same on all workers; the next round finds out whether it is.
    pub fn agree_on(&mut self, bytes: &[u8]) {
        if self.is_alone() {
            return;
        }
        self.digest = xxh3_64_with_seed(bytes, self.digest);
    }

    /// Averages a vector over all workers; returns how many took part.
    ///
    /// `fill` writes one tile of this worker's vector, `apply` reads one tile of the mean; both get the tile's range and
    /// the same range of `vectors`. Nothing is applied when nobody took part.
    pub fn mean<const R: usize, const W: usize>(
        &mut self,
        round: Round,
        now: &Now<'_>,
        vectors: Vectors<'_, R, W>,
        fill: impl Fn(Range<usize>, Vectors<'_, R, W>, &mut [f32]) + Sync,
        apply: impl Fn(Range<usize>, Vectors<'_, R, W>, &[f32]) + Sync,
    ) -> Result<u32> {
        if self.is_own_mean(round) {
            return Ok(self.mean_of_one(round, now, vectors, fill, apply));
        }
        self.average(round, now, vectors, Made { fill, apply })
    }

    /// The same of a vector that is there: `x` becomes its mean over all workers, unless nobody took part. After an error it is
    /// neither.
    pub fn mean_in_place(&mut self, round: Round, now: &Now<'_>, x: &mut [f32]) -> Result<u32> {
        let (expected, got) = (self.shape.values, x.len());
        if expected != got {
            return Err(Error::Length { what: "the vector", expected, got });
        }
        if let Some(contributions) = self.own_mean(round, now) {
            return Ok(contributions);
        }
        let long = x.len() >= InPlace::LONG;
        self.average(round, now, Vectors { read: [], write: [x] }, InPlace { long })
    }

    /// Whether a mean is this worker's own vector, to the bit: there is nobody else, and nothing is lost on the way.
    fn is_own_mean(&self, round: Round) -> bool {
        self.is_alone() && self.codings.of(round).is_some_and(Coding::loses_nothing)
    }

    fn average<const R: usize, const W: usize>(
        &mut self,
        round: Round,
        now: &Now<'_>,
        vectors: Vectors<'_, R, W>,
        averaged: impl Averaged<R, W>,
    ) -> Result<u32> {
        let coarse = round == Round::Coarse;
        // In any round: so copies that were opened to look at do not stay.
        let (up_residue, down_residue) = (self.up_residue.owed(), self.down_residue.owed());
        let mut under_way = round::UnderWay {
            coding: self.codings.of(round).expect("a coding for every round the calendar has"),
            coarse,
            of_state: self.of_state,
            shape: self.shape,
            step: now.step,
            contributes: now.contributes,
            digest: self.digest,
            up_residue: if coarse { up_residue } else { Owed::Nothing },
            down_residue: if coarse { down_residue } else { Owed::Nothing },
            group: &mut self.group,
            threads: &self.threads,
            mail: &mut self.mail,
            vectors,
            averaged,
        };
        let outcome = under_way.run()?;
        self.digest = outcome.digest;
        self.group.traffic.rounds.count(round);
        Ok(outcome.contributions.unwrap_or(0))
    }

    /// Where an exact mean is this worker's own vector, as it is of one worker: counts the round, and says whether there is one.
    /// Then the vector need not be filled in and handed back tile by tile, which costs a fifth of a step of Adam.
    pub fn own_exact_mean(&mut self, now: &Now<'_>) -> Option<u32> {
        self.own_mean(Round::Exact, now)
    }

    fn own_mean(&mut self, round: Round, now: &Now<'_>) -> Option<u32> {
        if !self.is_own_mean(round) {
            return None;
        }
        self.group.traffic.rounds.count(round);
        Some(u32::from(now.contributes))
    }

    /// The mean of one vector that loses nothing on the way is that vector, and needs no message.
    fn mean_of_one<const R: usize, const W: usize>(
        &mut self,
        round: Round,
        now: &Now<'_>,
        vectors: Vectors<'_, R, W>,
        fill: impl Fn(Range<usize>, Vectors<'_, R, W>, &mut [f32]) + Sync,
        apply: impl Fn(Range<usize>, Vectors<'_, R, W>, &[f32]) + Sync,
    ) -> u32 {
        if now.contributes {
            let Ok(()) = self.threads.walk(Span::of(0..self.shape.values, vectors), |mut tile, z| {
                fill(tile.range.clone(), tile.vectors.part(0..z.len()), z);
                apply(tile.range, tile.vectors, z);
                Ok::<_, Infallible>(())
            });
        }
        self.group.traffic.rounds.count(round);
        u32::from(now.contributes)
    }

    /// Tells the others that this worker stops, and why. They may be gone already: that is their error, not ours.
    pub fn abort(&mut self, operation: Operation, step: u64, why: &[u8]) {
        let header = Header::new(operation, CodecName::F32, self.shape, step, self.digest);
        let mut message = Vec::new();
        header.start(&mut message, why.len()).copy_from_slice(why);
        for worker in self.group.others() {
            let _ = self.group.send_control(worker, &message, operation.name());
        }
    }

    /// Everyone's `payload`, in rank order, after checking that their headers agree with this worker's.
    pub fn gather(&mut self, operation: Operation, step: u64, payload: &[u8]) -> Result<Vec<Vec<u8>>> {
        let header = Header::new(operation, CodecName::F32, self.shape, step, self.digest);
        // A transport may keep this buffer for a message of a round.
        let mut message = Vec::with_capacity(self.codings.longest_message());
        header.start(&mut message, payload.len()).copy_from_slice(payload);
        for worker in self.group.others() {
            self.group.send_control(worker, &message, operation.name())?;
        }
        let mut gathered = vec![payload.to_vec(); self.shape.workers];
        for worker in self.group.others() {
            self.group.receive(worker, &mut message, operation.name())?;
            gathered[worker] = opened(&message, &header, worker, self.group.rank())?.1.to_vec();
        }
        Ok(gathered)
    }

    /// After a load from other workers, or other hosts, which gives every worker mean e: the relays take the parts of all on
    /// their host, so that Σ e / n is still what it was.
    pub fn regrouped(&mut self) {
        let Some(coarse) = &self.codings.coarse else { return };
        let (hosts, me) = (&coarse.hosts, self.group.rank());
        let here = hosts.of(me);
        let members = hosts.members(here).len() as f32;
        for owner in coarse.layout.owners() {
            let e = &mut self.up_residue.values()[coarse.owned(owner)];
            match hosts.relay(here, owner) == me {
                true => e.iter_mut().for_each(|e| *e *= members),
                false => e.fill(0.0),
            }
        }
    }

    /// As before the first round: no residuals, nothing agreed on.
    pub fn start_anew(&mut self) {
        self.up_residue.values().fill(0.0);
        self.down_residue.values().fill(0.0);
        self.digest = 0;
    }

    /// What to save: e, whose mean counts; E, cut among the owners; the digest.
    pub fn state(&mut self) -> Vec<Entry<'_>> {
        let owned = self.codings.coarse.as_ref().map_or(0..0, |coarse| coarse.owned(self.group.rank()));
        vec![
            Entry::vector("up_residue", Share::Mean, self.up_residue.values()),
            Entry::vector("down_residue", Share::Cut(owned), self.down_residue.values()),
            Entry::word("digest", &mut self.digest),
        ]
    }
}

/// Splits a message of `worker`, unless it disagrees with `expected` or says that its sender stopped.
fn opened<'a>(message: &'a [u8], expected: &Header, worker: usize, me: usize) -> Result<(Header, &'a [u8])> {
    let (header, payload) = Header::read(message, worker)?;
    match header.operation {
        Operation::AbortNotFinite => {
            let whose = payload.first_chunk().map_or(worker, |rank| u32::from_le_bytes(*rank) as usize);
            Err(Error::NotFinite { worker: whose, step: header.step })
        }
        Operation::Abort => Err(Error::Aborted { worker, reason: text(payload) }),
        _ => header.expect(expected, worker, me).map(|()| (header, payload)),
    }
}

/// What another worker has to say, within reason.
fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(&payload[..payload.len().min(1000)]).into_owned()
}
