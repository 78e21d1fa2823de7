//! Means taken by hand: what the tests of the flat form and of the one on hosts share.

use thinwire::Round;
use thinwire::inside::exchange::Exchange;
use thinwire::inside::exchange::header::Operation;
use thinwire::inside::kernel::update::{OuterStep, Scalars, Sent, Since};
use thinwire::inside::machine::Floats;
use thinwire::inside::machine::{Groups, Pass, Read, Source, Step, Vector, Write};
use thinwire::inside::state::Slot;
use thinwire::threads::Thread;
use thinwire::{Collective, Gradient, Result};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Numbers from −1 to 1, of this worker in this round.
pub fn input(values: usize, worker: usize, t: usize) -> Vec<f32> {
    let seed = xxh3_64(&[worker as u8, t as u8]);
    let hash = |k: usize| xxh3_64_with_seed(&k.to_le_bytes(), seed);
    (0..values).map(|k| hash(k) as i64 as f32 / 2f32.powi(63)).collect()
}

pub fn mean(exchange: &mut Exchange, round: Round, step: u64, x: &[f32]) -> Result<Vec<f32>> {
    let mut out = vec![0.0; x.len()];
    mean_of_those_who(true, exchange, round, step, x, &mut out).map(|_| out)
}

/// Averages into `out`, with this worker or without it; returns how many took part.
pub fn mean_of_those_who(
    contributes: bool,
    exchange: &mut Exchange,
    round: Round,
    step: u64,
    x: &[f32],
    out: &mut [f32],
) -> Result<u32> {
    let groups = Groups::new(&[], x.len(), 0.0)?;
    let mut step = Step { contributes, gradient: Some(Gradient::Whole(x)), ..Step::idle(step, &groups, &[], out) };
    step.scalars = vec![SCALARS];
    exchange.mean(round, &mut step, Made, Kept)
}

/// The vector as an optimizer makes one: tile by tile, out of the gradient.
pub struct Made;

impl Source for Made {
    const NAME: &'static str = "test_made";

    fn fill(_: &Scalars, g: &[f32], _: Read<'_>, _: Write<'_>, z: &mut [f32]) {
        z.copy_from_slice(g);
    }
}

/// The mean as an optimizer takes one: tile by tile, out of the decoded bytes.
pub struct Kept;

impl Pass for Kept {
    const NAME: &'static str = "test_kept";
    const WRITES: &'static [Vector] = &[Vector::PARAMS];

    fn run(_: &Scalars, mean: &[f32], _: Read<'_>, [out, ..]: Write<'_>) -> Option<usize> {
        out.copy_from_slice(mean);
        None
    }
}

/// Which these two do not look at.
pub const SCALARS: Scalars = Scalars {
    beta1: (0.0, 1.0),
    beta2: (0.0, 1.0),
    rate: 0.0,
    decay: 1.0,
    weight_decay: 0.0,
    correction: 1.0,
    eps: 1.0,
    shrink: 1.0,
    limit: f32::MAX,
    jump: f32::MAX,
    moves: true,
    since: Since::NOTHING,
    sent: Sent::NOTHING,
    outer: OuterStep::NOTHING,
};

/// What a worker has after a round.
#[derive(Clone, Debug, Default)]
pub struct After {
    pub out: Vec<f32>,
    pub e: Vec<f32>,
    pub owner_e: Vec<f32>,
    pub digest: u64,
}

impl After {
    /// The residues, and the digest.
    pub fn of(exchange: &mut Exchange) -> After {
        let mut after = After::default();
        for entry in exchange.state().expect("the host has it") {
            match (entry.name, entry.slot) {
                ("up_residue", Slot::Floats(e)) => after.e = e.to_vec(),
                ("down_residue", Slot::Floats(owner_e)) => after.owner_e = owner_e.to_vec(),
                ("digest", Slot::Word(digest)) => after.digest = *digest,
                _ => {}
            }
        }
        after
    }

    /// After each of these rounds, of worker `worker`'s inputs.
    pub fn each(mut exchange: Exchange, worker: usize, values: usize, rounds: &[Round]) -> Vec<After> {
        let after = |(t, round): (usize, &Round)| {
            let x = input(values, worker, t);
            After { out: mean(&mut exchange, *round, t as u64, &x).expect("a mean"), ..After::of(&mut exchange) }
        };
        rounds.iter().enumerate().map(after).collect()
    }

    /// The same with a vector that becomes its mean, in memory that begins so many values after a line of the cache does.
    pub fn each_in_place(
        mut exchange: Exchange,
        worker: usize,
        values: usize,
        rounds: &[Round],
        offset: usize,
    ) -> Vec<After> {
        let mut room = Floats::zeroed(values + offset);
        let after = |(t, round): (usize, &Round)| {
            let x = &mut room[offset..];
            x.copy_from_slice(&input(values, worker, t));
            exchange.mean_in_place(*round, t as u64, true, x).expect("a mean");
            After { out: x.to_vec(), ..After::of(&mut exchange) }
        };
        rounds.iter().enumerate().map(after).collect()
    }

    /// Everything that workers of a group of this size have in common, to the bit: who is alone has nobody to agree with, and may save
    /// itself the message.
    pub fn bits_among(&self, workers: usize) -> ([Vec<u32>; 3], u64) {
        let (vectors, digest) = self.bits();
        (vectors, if workers == 1 { 0 } else { digest })
    }

    /// Everything, to the bit.
    pub fn bits(&self) -> ([Vec<u32>; 3], u64) {
        ([&self.out, &self.e, &self.owner_e].map(|x| bits(x)), self.digest)
    }
}

pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

pub fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

/// A transport that changes what one worker sends to another in one part of a round.
pub struct Tampered<F> {
    pub end: Thread,
    /// From whom, to whom, and when.
    pub place: (usize, usize, Operation),
    pub change: F,
}

impl<F: Fn(&mut Vec<u8>) + Send> Collective for Tampered<F> {
    fn rank(&self) -> usize {
        self.end.rank()
    }

    fn size(&self) -> usize {
        self.end.size()
    }

    fn hosts(&self) -> Vec<usize> {
        self.end.hosts()
    }

    fn reserve(&mut self, longest: usize, under_way: usize) {
        self.end.reserve(longest, under_way);
    }

    fn send(&mut self, to: usize, message: &[u8], during: &'static str) -> Result<()> {
        let (from, whom, operation) = self.place;
        let mut message = message.to_vec();
        if (self.rank(), to, during) == (from, whom, operation.name()) {
            (self.change)(&mut message);
        }
        self.end.send(to, &message, during)
    }

    fn receive(&mut self, from: usize, message: &mut Vec<u8>, during: &'static str) -> Result<()> {
        self.end.receive(from, message, during)
    }
}
