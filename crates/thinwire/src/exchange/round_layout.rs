//! What a kind of round sends: its codecs, how they cut the vector, and who sends what to whom.

use super::header::HEADER_LEN;
use super::hosts::Hosts;
use super::layout::{Layout, Shape};
use crate::codec::{Codec, CodecName, Dither, Keeping, Made, Precision, encoded_len};
use crate::machine::{Coded, Refused, Stripes, Sum};
use crate::schedule::Round;
use std::ops::Range;

/// The ways that a message of a round can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From a worker to its host's relay.
    Inside,
    /// From a host's relay to an owner.
    Up,
    /// From an owner to everyone, by way of the relays.
    Down,
}

/// A codec and its name in messages.
struct Named(CodecName, Box<dyn Codec>);

impl Named {
    fn new(name: CodecName) -> Named {
        Named(name, name.codec())
    }
}

/// What one worker sends in one round: bytes towards the owners, by way of its host's relays or not, bytes of means on their
/// way down, and messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Bytes towards the owners.
    pub up: u64,
    /// Bytes of means.
    pub down: u64,
    /// Messages of both.
    pub messages: u64,
}

/// The bytes of one round on one host's link, all its workers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crossing {
    /// Towards owners elsewhere.
    pub up_out: u64,
    /// Towards owners here.
    pub up_in: u64,
    /// Means of owners here.
    pub down_out: u64,
    /// Means of owners elsewhere.
    pub down_in: u64,
}

/// The codecs of a kind of round, and where they go.
pub struct RoundLayout {
    inside: Named,
    up: Named,
    down: Named,
    pub(super) layout: Layout,
    pub(super) hosts: Hosts,
    /// How workers and owners keep what was not said yet.
    pub(super) keeping: Keeping,
    /// What stands in the place of residuals, up and down.
    dithers: [Option<Dither>; 2],
    /// Whether a mean may be under way while workers compute.
    late: bool,
}

impl RoundLayout {
    /// The flat form: every worker codes its own vector.
    pub fn new(shape: Shape, up: CodecName, down: CodecName, bucket_bytes: usize) -> RoundLayout {
        RoundLayout::on_hosts(shape, [CodecName::F32, up, down], bucket_bytes, &Hosts::apart(shape.workers))
    }

    /// Codecs inside a host, up and down.
    pub fn on_hosts(shape: Shape, codecs: [CodecName; 3], bucket_bytes: usize, hosts: &Hosts) -> RoundLayout {
        let [inside, up, down] = codecs.map(Named::new);
        let block_bytes = |codec: &Named| codec.1.encoded_len(shape.block);
        // Nothing goes inside a host where every worker has its own.
        let inside_bytes = if hosts.is_flat() { 0 } else { block_bytes(&inside) };
        let longest = block_bytes(&up).max(block_bytes(&down)).max(inside_bytes);
        let layout = Layout::new(shape, longest, bucket_bytes);
        let keeping = Keeping::all(Precision::F32, shape.block);
        RoundLayout { inside, up, down, layout, hosts: hosts.clone(), keeping, dithers: [None; 2], late: false }
    }

    /// With the residuals of both ways kept so.
    pub fn keeping(self, keeping: Keeping) -> RoundLayout {
        RoundLayout { keeping, ..self }
    }

    /// With these in the place of residuals that are not kept, up and down.
    pub fn dithering(self, dithers: [Option<Dither>; 2]) -> RoundLayout {
        RoundLayout { dithers, ..self }
    }

    /// With room for a mean that is under way while workers compute, if there will be any.
    pub fn late(self, late: bool) -> RoundLayout {
        RoundLayout { late, ..self }
    }

    /// The same for a round of one part.
    pub fn of_part(mut self, stripes: Stripes) -> RoundLayout {
        self.layout = self.layout.of_part(stripes);
        self
    }

    /// Calls `work` for each stretch of values that `blocks` are, with the bytes that they take of `bytes`, and with the blocks before them.
    pub(super) fn each_stretch(
        &self,
        way: Way,
        blocks: &Range<usize>,
        mut bytes: &mut [u8],
        mut work: impl FnMut(Range<usize>, &mut [u8], usize) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let mut before = 0;
        for stretch in self.layout.stretches(blocks) {
            let len = encoded_len(self.codec(way), self.layout.block, stretch.len());
            let (here, rest) = bytes.split_at_mut(len);
            let count = stretch.len().div_ceil(self.layout.block);
            work(stretch, here, before)?;
            (bytes, before) = (rest, before + count);
        }
        Ok(())
    }

    /// What the worker in this seat codes with in step `t`, if it is made up.
    pub(super) fn made_up(&self, t: u64, seat: usize) -> Option<Made> {
        self.dithers[0].map(|dither| dither.at(t, seat))
    }

    /// What an owner codes with, if it is made up: its number is that of the workers, which no worker has.
    pub(super) fn made_down(&self, t: u64, workers: usize) -> Option<Made> {
        self.dithers[1].map(|dither| dither.at(t, workers))
    }

    /// The bytes of worker `rank`'s residuals.
    pub fn residual_bytes(&self, rank: usize) -> usize {
        self.keeping.bytes(self.layout.values, self.owned(rank).len())
    }

    pub(super) fn name(&self, way: Way) -> CodecName {
        self.named(way).0
    }

    pub(super) fn codec(&self, way: Way) -> &dyn Codec {
        &*self.named(way).1
    }

    pub(super) fn coded(&self, way: Way) -> Coded<'_> {
        let Named(name, codec) = self.named(way);
        Coded { name: *name, codec: &**codec, block: self.layout.block }
    }

    /// What came one way, added up to go another.
    pub(super) fn sum<'a>(&'a self, messages: &'a [Vec<u8>], from: Way, to: Way, divisor: f32) -> Sum<'a> {
        Sum { messages, header: HEADER_LEN, from: self.coded(from), to: self.coded(to), divisor }
    }

    /// The same without so many blocks at the start of the payloads.
    pub(super) fn behind<'a>(&self, sum: &Sum<'a>, blocks: usize) -> Sum<'a> {
        Sum { header: sum.header + blocks * sum.from.codec.encoded_len(self.layout.block), ..*sum }
    }

    fn named(&self, way: Way) -> &Named {
        match way {
            Way::Inside => &self.inside,
            Way::Up => &self.up,
            Way::Down => &self.down,
        }
    }

    pub(super) fn payload_len(&self, way: Way, blocks: &Range<usize>) -> usize {
        self.layout.payload_len(self.codec(way), blocks)
    }

    /// What worker `rank` sends in one such round, headers and all, to the workers that `counts` counts.
    pub fn sent(&self, rank: usize, counts: impl Fn(usize) -> bool) -> Sent {
        let (hosts, here) = (&self.hosts, self.hosts.of(rank));
        let others = || (0..hosts.count()).filter(|host| *host != here);
        let counted = |to: usize| u64::from(counts(to));
        let to_mates = hosts.mates(rank).map(counted).sum::<u64>();
        let buckets = self.layout.buckets();
        let mut sent = Sent::default();
        for owner in self.layout.owners() {
            let mut send = |way, times| {
                *match way {
                    Way::Inside | Way::Up => &mut sent.up,
                    Way::Down => &mut sent.down,
                } += times * self.of_owner(way, owner, buckets);
                sent.messages += times * buckets as u64;
            };
            let relay = hosts.relay(here, owner);
            if relay != rank {
                send(Way::Inside, counted(relay));
            } else if owner != rank {
                send(Way::Up, counted(owner));
                send(Way::Down, to_mates);
            } else {
                let relays = others().map(|host| counted(hosts.relay(host, owner))).sum::<u64>();
                send(Way::Down, relays + to_mates);
            }
        }
        sent
    }

    /// The bytes of one owner's messages to or from one other, one in each bucket: an owner's buckets are its blocks, whole ones
    /// but for the vector's last.
    fn of_owner(&self, way: Way, owner: usize, buckets: usize) -> u64 {
        (buckets * HEADER_LEN + self.payload_len(way, &self.layout.share(owner))) as u64
    }

    /// What crosses the link of each host of `real`, where the workers are whatever the form of the mean; and the bytes that all
    /// workers send in one such round. Without a look at each pair of workers: of every owner's values one message leaves each
    /// host, or each worker in the flat form, and one mean comes back. The owners are workers: a server has a link of its own.
    pub fn crossings(&self, real: &Hosts) -> (Vec<Crossing>, u128) {
        let buckets = self.layout.buckets();
        // Who sends to an owner elsewhere: the relay for its host, or every worker for itself.
        let senders = |host: usize| if self.hosts.is_flat() { real.members(host).len() as u64 } else { 1 };
        let all_senders = (0..real.count()).map(senders).sum::<u64>();
        let [mut inside, mut up, mut down] = [0, 0, 0];
        let mut owned = vec![[0; 2]; real.count()];
        for owner in self.layout.owners() {
            let [of_inside, of_up, of_down] =
                [Way::Inside, Way::Up, Way::Down].map(|way| self.of_owner(way, owner, buckets));
            let here = &mut owned[real.of(owner)];
            *here = [here[0] + of_up, here[1] + of_down];
            [inside, up, down] = [inside + of_inside, up + of_up, down + of_down];
        }
        let crossing = |(host, [own_up, own_down]): (usize, &[u64; 2])| {
            let (here, elsewhere) = (senders(host), all_senders - senders(host));
            Crossing {
                up_out: here * (up - own_up),
                up_in: elsewhere * own_up,
                down_out: elsewhere * own_down,
                down_in: here * (down - own_down),
            }
        };
        let crossings = owned.iter().enumerate().map(crossing).collect();
        // Up from all but the owner and down to them, on each host by way of its relay.
        let (relays, others) = (self.hosts.count() as u128 - 1, (self.layout.workers - self.hosts.count()) as u128);
        let all = relays * u128::from(up + down) + others * u128::from(inside + down);
        (crossings, all)
    }

    /// How many buckets one such round has.
    pub fn buckets(&self) -> usize {
        self.layout.buckets()
    }

    /// The bits that stand for one value between hosts: the mean of the way up and the way down, scales included.
    pub fn bits_per_value(&self) -> f64 {
        let whole = self.layout.part();
        let bytes = self.payload_len(Way::Up, &whole) + self.payload_len(Way::Down, &whole);
        bytes as f64 * 4.0 / self.layout.values.max(1) as f64
    }

    /// The values of which worker `rank` keeps a residual as their owner.
    pub(super) fn kept(&self, rank: usize) -> Range<usize> {
        if self.keeping.down > 0.0 { self.owned(rank) } else { 0..0 }
    }

    /// The values whose mean worker `rank` serves.
    pub fn owned(&self, rank: usize) -> Range<usize> {
        self.layout.values_of(&self.layout.owned(rank))
    }

    pub(super) fn loses_nothing(&self) -> bool {
        self.up.0 == CodecName::F32 && self.down.0 == CodecName::F32
    }

    /// The longest message of a round.
    pub fn longest_message(&self) -> usize {
        let first_buckets = || self.layout.owners().map(|owner| self.layout.bucket(owner, 0));
        let longest = |way: Way| first_buckets().map(|blocks| self.payload_len(way, &blocks)).max().unwrap_or(0);
        let inside = if self.hosts.is_flat() { 0 } else { longest(Way::Inside) };
        HEADER_LEN + longest(Way::Up).max(longest(Way::Down)).max(inside)
    }
}

/// The codings of a run: an optimizer that never averages one way needs no coding for it.
pub struct RoundLayouts {
    /// None for an optimizer without exact rounds.
    pub exact: Option<RoundLayout>,
    /// None for an optimizer without coarse rounds. Of the whole vector: who owns what, and which residuals there are.
    pub coarse: Option<RoundLayout>,
    /// One for each part, if coarse rounds are of parts by turns.
    pub parts: Vec<RoundLayout>,
}

impl RoundLayouts {
    /// The layout of a round: of this part, if it is a coarse one.
    pub fn of(&self, round: Round, part: usize) -> Option<&RoundLayout> {
        match round {
            Round::Exact => self.exact.as_ref(),
            Round::Coarse => self.parts.get(part).or(self.coarse.as_ref()),
            Round::Skipped => None,
        }
    }

    fn each(&self) -> impl Iterator<Item = &RoundLayout> {
        let whole = self.coarse.as_ref().filter(|_| self.parts.is_empty());
        self.exact.iter().chain(whole).chain(&self.parts)
    }

    /// The longest message of any round.
    pub fn longest_message(&self) -> usize {
        self.each().map(RoundLayout::longest_message).max().unwrap_or(0)
    }

    /// The buffers of one worker: a message from each host for this bucket and the next, one from each worker of its own host
    /// where there are several, and three of its own; and what it keeps of late means.
    pub fn buffers(&self, rank: usize) -> usize {
        let (hosts, inside) = self.senders(rank);
        2 * hosts + inside + 3 + 2 * self.kept()
    }

    /// The buffers that a worker keeps of one late mean: one for each bucket.
    pub(super) fn kept(&self) -> usize {
        self.each().filter(|coding| coding.late).map(RoundLayout::buckets).max().unwrap_or(0)
    }

    /// Messages from one worker to another that may be under way at once: two buckets, or the only one, up and down. Inside a host as
    /// many for each owner whose relay the receiver is. Not more, because buffers that are seldom used are in no cache.
    ///
    /// Of late means it is all buckets, of two means up and down: a worker that is ahead has sent the next one up when another has
    /// just sent this one up, and has yet to receive the one before. It gets no farther without the other's turn in this one.
    pub fn under_way(&self) -> usize {
        let most = |coding: &RoundLayout| {
            let ways = if coding.late { 4 * coding.buckets() } else { 2 * coding.buckets().clamp(1, 2) };
            ways * coding.hosts.most_relayed().max(1)
        };
        self.each().map(most).max().unwrap_or(2)
    }

    /// How many send to an owner, and to a relay of `rank`'s host. A worker alone on its host receives nothing inside it.
    pub(super) fn senders(&self, rank: usize) -> (usize, usize) {
        let inside = |hosts: &Hosts| match hosts.members(hosts.of(rank)).len() {
            1 => 0,
            members => members,
        };
        self.each().map(|coding| (coding.hosts.count(), inside(&coding.hosts))).max().unwrap_or((0, 0))
    }
}
