//! The mean of a vector over all workers: the one place that knows codecs and a transport.
//!
//! With C_up and C_down two codecs, e this worker's residue and E the residue of the blocks it owns:
//!
//! ```text
//! worker i:  z = x + e;         q = C_up(z);    e ← z − q;   each owner gets its blocks of q
//! owner r:   z = mean q + E;    p = C_down(z);  E ← z − p;   everyone gets p
//! ```
//!
//! A coarse mean remembers both residues; an exact mean is the same with a cast and no residue. Sums run in rank order, in
//! f32, and everyone decodes the owner's bytes, the owner too: all workers hold the same bits.
//!
//! The vector itself need not exist. [`Exchange::mean`] asks for it tile by tile (`fill`), and hands the mean back tile
//! by tile (`apply`), so that what an optimizer computes before and after is part of the same pass over memory.

mod round;

use crate::codec::{Codec, CodecName};
use crate::collective::{Collective, Metered};
use crate::error::{Error, Result};
use crate::layout::{Layout, Shape};
use crate::memory::Floats;
use crate::message::{HEADER_LEN, Header, Operation};
use crate::optimizer::{Entry, Now, Share};
use crate::schedule::Round;
use crate::tiles::{Span, Threads, Vectors};
use round::Mail;
use std::convert::Infallible;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What a kind of round sends: its codecs, and how they cut the vector.
pub struct Coding {
    up: (CodecName, Box<dyn Codec>),
    down: (CodecName, Box<dyn Codec>),
    layout: Layout,
}

impl Coding {
    pub fn new(shape: Shape, up: CodecName, down: CodecName, bucket_bytes: usize) -> Coding {
        let (up, down) = ((up, up.codec()), (down, down.codec()));
        let block_bytes = up.1.encoded_len(shape.block).max(down.1.encoded_len(shape.block));
        Coding { up, down, layout: Layout::new(shape, block_bytes, bucket_bytes) }
    }

    /// The bytes worker `rank` sends in one such round.
    pub fn bytes_sent(&self, rank: usize) -> u64 {
        self.layout.bytes_sent(rank, &*self.up.1, &*self.down.1)
    }

    /// The bits that stand for one value on the wire: the mean of the way up and the way down, scales included.
    pub fn bits_per_value(&self) -> f64 {
        let whole = 0..self.layout.blocks();
        let bytes = self.layout.payload_len(&*self.up.1, &whole) + self.layout.payload_len(&*self.down.1, &whole);
        bytes as f64 * 4.0 / self.layout.values.max(1) as f64
    }

    /// The values whose mean worker `rank` serves.
    pub fn owned(&self, rank: usize) -> Range<usize> {
        self.layout.values_of(&self.layout.owned(rank))
    }

    fn loses_nothing(&self) -> bool {
        self.up.0 == CodecName::F32 && self.down.0 == CodecName::F32
    }

    /// The longest message of a round.
    pub fn longest_message(&self) -> usize {
        let first_buckets = || self.layout.owners().map(|owner| self.layout.bucket(owner, 0));
        let payload = |codec: &dyn Codec| first_buckets().map(|blocks| self.layout.payload_len(codec, &blocks)).max();
        HEADER_LEN + payload(&*self.up.1).max(payload(&*self.down.1)).unwrap_or(0)
    }
}

/// The codings of a run: an optimizer that never averages one way needs no coding for it.
pub struct Codings {
    pub exact: Option<Coding>,
    pub coarse: Option<Coding>,
}

impl Codings {
    pub fn longest_message(&self) -> usize {
        [&self.exact, &self.coarse].into_iter().flatten().map(Coding::longest_message).max().unwrap_or(0)
    }
}

/// A worker's part in every mean: its group, its codecs, its residues, and the digest of all that was agreed on.
pub struct Exchange {
    pub group: Metered,
    pub threads: Threads,
    shape: Shape,
    codings: Codings,
    /// e: what this worker's bytes have not said yet.
    up_residue: Floats,
    /// E: what the means of the blocks it owns have not said yet.
    down_residue: Floats,
    /// Of everything all workers have in common so far.
    digest: u64,
    mail: Mail,
}

impl Exchange {
    pub fn new(shape: Shape, codings: Codings, mut group: Box<dyn Collective>, threads: Threads) -> Exchange {
        group.reserve(codings.longest_message());
        let (whole, owned) = match &codings.coarse {
            Some(coarse) => (shape.values, coarse.owned(group.rank()).len()),
            None => (0, 0),
        };
        Exchange {
            mail: Mail::new(shape.workers, codings.longest_message()),
            group: Metered::new(group),
            threads,
            shape,
            codings,
            up_residue: Floats::zeroed(whole),
            down_residue: Floats::zeroed(owned),
            digest: 0,
        }
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Adds to the digest what must be the same on all workers; the next round finds out whether it is.
    pub fn agree_on(&mut self, bytes: &[u8]) {
        if self.shape.workers == 1 {
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
        let coarse = round == Round::Coarse;
        let coding = if coarse { &self.codings.coarse } else { &self.codings.exact };
        let coding = coding.as_ref().expect("a coding for every round the calendar has");
        if self.shape.workers == 1 && coding.loses_nothing() {
            return Ok(self.mean_of_one(round, now, vectors, fill, apply));
        }
        let mut under_way = round::UnderWay {
            coding,
            coarse,
            shape: self.shape,
            step: now.step,
            contributes: now.contributes,
            digest: self.digest,
            up_residue: if coarse { &mut self.up_residue } else { &mut [] },
            down_residue: if coarse { &mut self.down_residue } else { &mut [] },
            group: &mut self.group,
            threads: &self.threads,
            mail: &mut self.mail,
            vectors,
            fill,
            apply,
        };
        let outcome = under_way.run()?;
        self.digest = outcome.digest;
        self.group.traffic.rounds.count(round);
        Ok(outcome.contributions.unwrap_or(0))
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

    /// What to save: e, whose mean counts; E, cut among the owners; the digest.
    pub fn state(&mut self) -> Vec<Entry<'_>> {
        let owned = self.codings.coarse.as_ref().map_or(0..0, |coarse| coarse.owned(self.group.rank()));
        vec![
            Entry::vector("up_residue", Share::Mean, &mut self.up_residue),
            Entry::vector("down_residue", Share::Cut(owned), &mut self.down_residue),
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
