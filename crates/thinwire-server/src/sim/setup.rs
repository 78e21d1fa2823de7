//! What a seed decides before anything happens: which run it is, and how much goes wrong.

use super::Chance;
use crate::run::Retention;
use crate::snapshot::served;
use crate::table::Rules;
use std::time::Duration;
use thinwire::{Config, LearningRate};

/// Every optimizer that a server has, and some of their options.
pub const CASES: [&str; 13] = [
    "name = \"efficient-adam\"\nweight_decay = 0.0",
    "name = \"efficient-adam\"\nweight_decay = 0.0\ncodec = \"sign\"", // E by the messages
    "name = \"efficient-adam\"\nweight_decay = 0.0\ncodec_up = \"f32\"\ncodec_down = \"sign\"", // E itself is shorter
    "name = \"efficient-adam\"\nfeedback_up = 0.4\nfeedback_down = 0",
    "name = \"adam\"",
    "name = \"adam\"\npreset = \"loco\"",
    "name = \"one-bit-adam\"\nwarmup = 4",
    "name = \"zero-one-adam\"\nsync = \"every\"\nsync_every = 2\nvariance_gap = 2",
    "name = \"local-adam\"\nsync_every = 2\nouter_rate = 0.5\nouter_momentum = 0.5",
    "name = \"lion\"",
    "name = \"lion\"\ncodec_up = \"sign\"\ncodec_down = \"bf16\"",
    "name = \"birder\"",
    "name = \"one-bit-lamb\"\nwarmup = 4",
];

/// Those of them for which error feedback is added up.
const ACCOUNTED: usize = 3;

/// As many values as fill three blocks and a part of one.
const VALUES: usize = 28;

pub struct Setup {
    pub words: &'static str,
    pub config: Config,
    pub retention: Retention,
    pub rules: Rules,
    pub steps: u64,
    pub accounts: bool,
    pub has_visitor: bool,
    /// Faults that are to happen, and one in how many events is one.
    pub faults: u64,
    pub every: u64,
}

impl Setup {
    pub fn of(seed: u64, chance: &mut Chance) -> Setup {
        let case = seed as usize % CASES.len();
        let workers = 1 + chance.below(3) as usize;
        let config = Config::from_toml(&format!("block = 8\nthreads = 1\noutlier = \"off\"\n{}", CASES[case]));
        let rate = Some(LearningRate::constant(0.02));
        let config = served(&Config { learning_rate: rate, ..config.expect("it is right") }).expect("it can be served");
        let retention = Retention {
            keep: chance.below(8),
            snapshot_every: 1 + chance.below(6),
            snapshots: 1 + chance.below(3) as usize,
        };
        let rules = Rules {
            quorum: 1 + chance.below(workers as u64) as usize,
            workers,
            deadline: Duration::from_millis(100),
            max_members: workers + chance.below(3) as usize,
            per_identity: 64,
        };
        let (faults, every) = (chance.pick(&[0, 2, 5, 10, 20]), chance.pick(&[8, 20, 40]));
        let has_visitor = chance.one_in(3);
        let (words, accounts, steps) = (CASES[case], case < ACCOUNTED, 6 + chance.below(8));
        Setup { words, config, retention, rules, steps, accounts, has_visitor, faults, every }
    }

    pub fn initial(&self) -> Vec<f32> {
        (0..VALUES).map(|k| (k as f32).sin()).collect()
    }
}
