//! How the workers of a test take means in the flat form: its shape, its codecs, and all that may change no bit.

use super::means::After;
use std::time::Duration;
use thinwire::CodecName;
use thinwire::Collective;
use thinwire::Round;
use thinwire::inside::codec::Keeping;
use thinwire::inside::exchange::layout::{Shape, Topology};
use thinwire::inside::exchange::{Exchange, RoundLayout, RoundLayouts};
use thinwire::inside::machine::{Host, Threads};
use thinwire::options::Precision;
use thinwire::threads;

pub const PATIENCE: Duration = Duration::from_secs(5);
pub const ONE_BUCKET: usize = usize::MAX;

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub shape: Shape,
    pub exact: CodecName,
    pub up: CodecName,
    pub down: CodecName,
    pub residue: Precision,
    /// κ up and down.
    pub feedback: [f32; 2],
    pub bucket: usize,
    pub threads: usize,
}

impl Setting {
    pub fn new(workers: usize, values: usize, block: usize) -> Setting {
        Setting {
            shape: Shape { values, block, workers, topology: Topology::Sharded },
            exact: CodecName::F32,
            up: CodecName::Sign,
            down: CodecName::Sign,
            residue: Precision::F32,
            feedback: [1.0; 2],
            bucket: ONE_BUCKET,
            threads: 1,
        }
    }

    pub fn central(self) -> Setting {
        Setting { shape: Shape { topology: Topology::Central, ..self.shape }, ..self }
    }

    pub fn exchange(&self, end: impl Collective + 'static) -> Exchange {
        let coding = |up, down| Some(RoundLayout::new(self.shape, up, down, self.bucket));
        let [up, down] = self.feedback;
        let keeping = Keeping { precision: self.residue, block: self.shape.block, up, down };
        let coarse = coding(self.up, self.down).map(|coding| coding.keeping(keeping));
        let codings = RoundLayouts { exact: coding(self.exact, self.exact), coarse, parts: Vec::new() };
        Exchange::new(
            self.shape,
            codings,
            Box::new(end),
            Host::bare(self.shape.values, Threads::new(self.threads).expect("threads")),
        )
        .expect("the host has room")
    }

    /// What each worker has after each of these rounds.
    pub fn run(&self, rounds: &[Round]) -> Vec<Vec<After>> {
        threads::run_within(self.shape.workers, PATIENCE, |end| {
            let worker = end.rank();
            After::each(self.exchange(end), worker, self.shape.values, rounds)
        })
    }
}
