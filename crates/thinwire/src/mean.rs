//! The mean by itself: average any vector over the workers, coded on the way, with error feedback; for methods of your own.

use crate::codec::{CodecName, Keeping, MAX_BLOCK, Precision};
use crate::error::{Error, Result};
use crate::exchange::hosts::Hosts;
use crate::exchange::layout::{Shape, Topology};
use crate::exchange::{Exchange, RoundLayout, RoundLayouts, header::Operation};
use crate::machine::{Host, Threads};
use crate::schedule::Round;
use crate::transport::{Collective, Traffic};

/// Means of one vector over the workers of a group, one after the other.
///
/// ```
/// use thinwire::{Mean, MeanOptions, threads};
///
/// let ends = threads::run(4, |group| {
///     let mut mean = Mean::new(1000, MeanOptions::default(), group)?; // one bit a value, error feedback
///     let mut sum = vec![0.0; 1000];
///     for _ in 0..50 {
///         let mut x: Vec<f32> = (0..1000).map(|i| (i as f32).sin()).collect();
///         mean.take(&mut x)?;
///         sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x / 50.0);
///     }
///     Ok::<_, thinwire::Error>(sum[1])
/// });
/// for end in ends {
///     assert!((end? - 1_f32.sin()).abs() < 0.1); // what one mean loses, later ones make up for
/// }
/// # Ok::<(), thinwire::Error>(())
/// ```
pub struct Mean {
    exchange: Exchange,
    round: Round,
    /// Means taken so far.
    taken: u64,
    /// An error leaves the workers in different places.
    stopped: bool,
}

/// How a [`Mean`] is coded.
#[derive(Clone, Copy, Debug)]
pub struct MeanOptions {
    /// From the workers to the owners of each part.
    pub up: CodecName,
    /// From the owners to everyone.
    pub down: CodecName,
    /// Whether what a code loses is added to the next vector. Without it the codecs must be casts: `f32`, `bf16`.
    pub feedback: bool,
    /// How the residuals of error feedback are kept.
    pub residual: Precision,
    /// Whether vectors count by the weights that come with them ([`Mean::take_weighted`]).
    pub weighted: bool,
    /// Values that share a scale.
    pub block: usize,
    /// Bytes that a worker sends at a time.
    pub bucket: usize,
    /// Threads that a worker computes on.
    pub threads: usize,
}

impl Default for MeanOptions {
    fn default() -> MeanOptions {
        MeanOptions {
            up: CodecName::Sign,
            down: CodecName::Sign,
            feedback: true,
            residual: Precision::F32,
            weighted: false,
            block: 512,
            bucket: 4 << 20,
            threads: 1,
        }
    }
}

impl MeanOptions {
    /// This codec both ways.
    pub fn of(codec: CodecName) -> MeanOptions {
        MeanOptions { up: codec, down: codec, ..MeanOptions::default() }
    }
}

impl Mean {
    /// Joins `group` to average vectors of `values` values; with the same options on all workers.
    pub fn new(values: usize, options: MeanOptions, group: impl Collective + 'static) -> Result<Mean> {
        Mean::boxed(values, options, Box::new(group))
    }

    /// The same for a group that is in a box already.
    pub fn boxed(values: usize, options: MeanOptions, group: Box<dyn Collective>) -> Result<Mean> {
        let MeanOptions { up, down, feedback, residual, weighted, block, bucket, threads } = options;
        if !(1..=MAX_BLOCK).contains(&block) {
            return Err(Error::config("block", block, format!("expected 1 to {MAX_BLOCK}")));
        }
        for (key, codec) in [("up", up), ("down", down)] {
            codec.check(key)?;
        }
        for (key, codec) in [("up", up), ("down", down)] {
            if feedback && codec == CodecName::Vote {
                let problem = "has no size, so a residual would only grow; expected sign, or another codec";
                return Err(Error::config(key, codec, problem));
            }
        }
        if weighted && up == CodecName::F16 {
            let problem = "a vector times its weight soon leaves the range of f16; expected bf16 or another codec";
            return Err(Error::config("up", up, problem));
        }
        let casts = |codec| matches!(codec, CodecName::F32 | CodecName::Bf16);
        if !(feedback || casts(up) && casts(down)) {
            let problem = "loses too much without error feedback; expected f32 or bf16";
            return Err(Error::config("codec", format!("{up}, {down}"), problem));
        }
        let workers = group.size();
        let shape = Shape { values, block, workers, topology: Topology::Sharded };
        let codecs = [CodecName::F32, up, down];
        let coding = RoundLayout::on_hosts(shape, codecs, bucket.max(1), &Hosts::apart(workers));
        let coding = coding.keeping(Keeping::all(residual, block));
        let (round, codings) = match feedback {
            true => (Round::Coarse, RoundLayouts { exact: None, coarse: Some(coding), parts: Vec::new() }),
            false => (Round::Exact, RoundLayouts { exact: Some(coding), coarse: None, parts: Vec::new() }),
        };
        let machine = Host::bare(values, Threads::new(threads)?);
        let mut exchange = Exchange::new(shape, codings, group, machine)?;
        exchange.weighted = weighted;
        Ok(Mean { exchange, round, taken: 0, stopped: false })
    }

    /// `x` becomes its mean over all workers. All workers call it together. After an error it is neither, and so is every later one:
    /// the others have been told.
    pub fn take(&mut self, x: &mut [f32]) -> Result<()> {
        self.take_weighted(x, 1)
    }

    /// The same where `x` counts for `weight`, such as the number of examples it is of: `x` becomes Σw·x/Σw. All options must have
    /// `weighted`. A weight of 0 takes no part; where all are 0, `x` stays.
    pub fn take_weighted(&mut self, x: &mut [f32], weight: u32) -> Result<()> {
        if self.stopped {
            return Err(Error::Stopped);
        }
        if weight != 1 && !self.exchange.weighted {
            return Err(Error::config(
                "weight",
                weight,
                "expected 1, or weighted = true in the options of all workers",
            ));
        }
        let taken = self.exchange.weighted_mean_in_place(self.round, self.taken, weight, x).inspect_err(|error| {
            self.stopped = true;
            self.exchange.abort(Operation::Abort, self.taken, error.to_string().as_bytes());
        });
        self.taken += 1;
        taken.map(drop)
    }

    /// Everyone's `note`, in rank order. All workers call it together.
    pub fn gather(&mut self, note: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.exchange.gather(Operation::Note, self.taken, note)
    }

    /// What this worker has sent and waited for.
    pub fn traffic(&self) -> Traffic {
        self.exchange.group.traffic
    }
}
