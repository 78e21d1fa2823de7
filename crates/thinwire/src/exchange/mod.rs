//! The mean of a vector over all workers: the one place that knows codecs and a transport.
//!
//! With C_up and C_down two codecs, e a host's residual and E the residual of the blocks that a worker owns, n workers:
//!
//! ```text
//! worker i:  x, exactly, to the relay of its host
//! relay:     z = Σ x + e;       q = C_up(z);    e ← z − q;   each owner gets its blocks of q
//! owner r:   z = Σ q/n + E;     p = C_down(z);  E ← z − p;   everyone gets p, by way of the relays
//! ```
//!
//! That is with κ = 1 (`feedback`); with less, e ← (1−κ)·e + κ·(z − q), and with κ = 0 there is no e. Where every worker has a host to itself, the flat form, each is its own relay and nothing is sent inside a host
//! ([`hosts`](crate::exchange::hosts)). Hosts send sums, not means: so e weighs 1/n whatever a host's size is.
//!
//! A coarse mean remembers both residuals; an exact mean is the same with a cast and no residual. Sums run in rank order, in
//! f32, and everyone decodes the owner's bytes, the owner too: all workers hold the same bits.
//!
//! Which vector it is, and what is done with its mean, is named by two passes of the [`machine`](crate::machine); they run tile by
//! tile, fused with coding and decoding, so the vector itself need not exist. Nothing here touches a vector.

mod round_layout;
pub mod header;
pub mod hosts;
pub mod layout;
mod late;
mod owner;
mod round;

pub use late::Late;
pub use owner::Owner;
pub use round_layout::{Crossing, RoundLayout, RoundLayouts, Sent};

use crate::codec::{CodecName, Keeping, Precision};
use crate::error::{Error, Result};
use crate::machine::{Groups, Lies, Machine, OfParams, Pass, Replace, Source, Step};
use crate::schedule::Round;
use crate::state::{Entry, Field};
use crate::transport::{Collective, Metered, Shards};
use header::{Header, Operation};
use late::Begun;
use layout::{Shape, Topology};
use round::Mail;
use round_layout::Way;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A worker's part in every mean: its group, its codecs, its machine, and the digest of all that was agreed on.
pub struct Exchange {
    /// The transport, with its meter.
    pub group: Metered,
    /// Where the vectors are, and the passes over them.
    pub machine: Machine,
    /// The others that hold a part of this worker's replica.
    pub shards: Shards,
    shape: Shape,
    codings: RoundLayouts,
    /// Of everything all workers have in common so far.
    digest: u64,
    mail: Mail,
    begun: Begun,
    /// What coarse means are of: a step that each worker adds, as in Efficient-Adam, or a state of all, such as a momentum. It decides
    /// what a worker that missed a round still has to say.
    pub of_state: bool,
    /// Whether workers count by their weights.
    pub weighted: bool,
}

impl Exchange {
    /// Makes room for everything that rounds will need.
    pub fn new(
        shape: Shape,
        codings: RoundLayouts,
        mut group: Box<dyn Collective>,
        machine: impl Into<Machine>,
    ) -> Result<Exchange> {
        let mut machine = machine.into();
        let shards = Shards::new(group.inside());
        group.reserve(codings.longest_message(), codings.under_way());
        let (up, down, keeping) = match &codings.coarse {
            Some(coarse) => (shape.values, coarse.owned(group.rank()).len(), coarse.keeping),
            None => (0, 0, Keeping::all(Precision::F32, shape.block)),
        };
        let remembered = machine.remember(up, down, keeping);
        let mut exchange = Exchange {
            mail: Mail::new(codings.senders(group.rank()), codings.longest_message()),
            begun: Begun::new(codings.kept(), codings.longest_message()),
            group: Metered::new(group),
            machine,
            shards,
            shape,
            codings,
            digest: 0,
            of_state: true,
            weighted: false,
        };
        if let Err(error) = remembered {
            // Of a device whose memory is full the others must hear: they are about to meet this worker.
            exchange.shards.abort(0, &error.to_string());
            exchange.abort(Operation::Abort, 0, error.to_string().as_bytes());
            return Err(error);
        }
        Ok(exchange)
    }

    /// The vector and its workers.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Of everything all workers have in common so far.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Whether there is nobody to agree with: no other worker, and no server.
    pub(crate) fn is_alone(&self) -> bool {
        self.shape.workers == 1 && self.shape.topology != Topology::Served
    }

    /// Whether a server takes the means, which may take one without any worker.
    pub(crate) fn is_served(&self) -> bool {
        self.shape.topology == Topology::Served
    }

    /// Adds to the digest what must be the same on all workers; the next round finds out whether it is.
    pub fn agree_on(&mut self, bytes: &[u8]) {
        if self.is_alone() {
            return;
        }
        self.digest = xxh3_64_with_seed(bytes, self.digest);
    }

    /// Averages the source's vector over all workers, and does with the mean what the pass does; returns how many took part. Nothing
    /// is done when nobody did.
    pub fn mean(&mut self, round: Round, step: &mut Step<'_>, source: impl Source, pass: impl Pass) -> Result<u32> {
        if is_gradient(&source) && self.is_own_mean(round) {
            // Of one worker, and nothing is lost: no message is needed, and the pass runs on the gradient where it lies.
            if step.contributes {
                self.machine.run(pass, step)?;
            }
            self.group.traffic.rounds.count(round);
            return Ok(u32::from(step.contributes));
        }
        let (t, digest) = (step.t, self.digest);
        let mut under_way = self.under_way(round, step.part, (t, digest), step, source, pass);
        let outcome = under_way.run()?;
        self.digest = outcome.digest;
        self.group.traffic.rounds.count(round);
        Ok(outcome.contributions.unwrap_or(0))
    }

    /// A mean of this part of the vector that belongs to step `t`, and that started with this digest.
    fn under_way<'a, 's, S, P>(
        &'a mut self,
        round: Round,
        part: usize,
        (t, digest): (u64, u64),
        step: &'a mut Step<'s>,
        source: S,
        pass: P,
    ) -> round::UnderWay<'a, 's, S, P> {
        round::UnderWay {
            coding: self.codings.of(round, part).expect("a coding for every round the calendar has"),
            coarse: round == Round::Coarse,
            t,
            shape: self.shape,
            digest,
            of_state: self.of_state,
            weighted: self.weighted,
            group: &mut self.group,
            mail: &mut self.mail,
            machine: &mut self.machine,
            step,
            source,
            pass,
        }
    }

    /// The same of a vector by itself: `x` becomes its mean over all workers, unless nobody took part. After an error it is neither.
    pub fn mean_in_place(&mut self, round: Round, t: u64, contributes: bool, x: &mut [f32]) -> Result<u32> {
        self.weighted_mean_in_place(round, t, u32::from(contributes), x)
    }

    /// The same with a vector that counts for so much; for nothing, and it takes no part.
    pub fn weighted_mean_in_place(&mut self, round: Round, t: u64, weight: u32, x: &mut [f32]) -> Result<u32> {
        let (expected, got) = (self.shape.values, x.len());
        if expected != got {
            return Err(Error::Length { what: "the vector", expected, got });
        }
        if self.is_own_mean(round) {
            self.group.traffic.rounds.count(round);
            return Ok(weight);
        }
        let groups = Groups::default();
        let mut step = Step { contributes: weight > 0, weight, ..Step::idle(t, &groups, &[], x) };
        self.mean(round, &mut step, OfParams, Replace)
    }

    /// Whether a mean is this worker's own vector, to the bit: there is nobody else, and nothing is lost on the way.
    fn is_own_mean(&self, round: Round) -> bool {
        self.is_alone() && self.codings.of(round, 0).is_some_and(RoundLayout::loses_nothing)
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
    pub fn regrouped(&mut self) -> Result<()> {
        let Some(coarse) = &self.codings.coarse else { return Ok(()) };
        let (hosts, me) = (&coarse.hosts, self.group.rank());
        let here = hosts.of(me);
        let members = hosts.members(here).len() as f32;
        for owner in coarse.layout.owners() {
            let factor = if hosts.relay(here, owner) == me { members } else { 0.0 };
            self.machine.scale_residual(coarse.owned(owner), factor)?;
        }
        Ok(())
    }

    /// As before the first round: no residuals, nothing agreed on.
    pub fn start_anew(&mut self) -> Result<()> {
        self.digest = 0;
        self.machine.forget()
    }

    /// What to save: the optimizer's vectors; e, whose mean counts; E, cut among the owners; the digest.
    pub fn state(&mut self) -> Result<Vec<Entry<'_>>> {
        let owned = self.owned();
        let mut entries = self.machine.state(Some(owned))?;
        entries.push(Entry::word("digest", &mut self.digest));
        Ok(entries)
    }

    /// The same without the numbers.
    pub fn fields(&mut self) -> Vec<Field> {
        let owned = self.owned();
        let mut fields = self.machine.fields(Some(owned));
        fields.push(Entry::word("digest", &mut self.digest).field());
        fields
    }

    /// The values whose E this worker keeps.
    fn owned(&self) -> Range<usize> {
        self.codings.coarse.as_ref().map_or(0..0, |coarse| coarse.kept(self.group.rank()))
    }
}

/// Whether a source's vector is the gradient itself.
fn is_gradient<S: Source>(_: &S) -> bool {
    S::LIES == Lies::InGradient
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
