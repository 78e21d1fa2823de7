//! What is asked: the model, its computing, the network, the run. Each field is a flag of `thinwire plan`.

use crate::answer::Answer;
use crate::error::Result;
use crate::presets::Preset;
use std::path::PathBuf;
use thinwire::CodecName;
use thinwire::options::Decay;

/// Of a group.
pub const MOST_WORKERS: u64 = 4096;
/// Of a run.
pub const MOST_STEPS: u64 = 100_000_000;

/// The codecs of Efficient-Adam, if nobody says.
pub const CODECS: &str = "sign,uniform2,uniform4,uniform8,power3,topk0.01";

/// Every field of [`Question`].
pub const KEYS: [&str; 28] = [
    "params",
    "model",
    "preset",
    "deepspeed",
    "compute",
    "sharing",
    "cores",
    "bench",
    "device",
    "without_packing",
    "memory",
    "workers",
    "hosts",
    "bandwidth",
    "latency",
    "network",
    "steps",
    "warmup",
    "decay",
    "clip",
    "codecs",
    "also",
    "simulate",
    "spread",
    "slow_host",
    "slow_link",
    "jitter",
    "seed",
];

/// What to plan. None: not given, and the rest decides, or an error says that it is needed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Question {
    /// Parameters of the model.
    pub params: Option<usize>,
    /// A safetensors file in which they are counted; only its head is read.
    pub model: Option<PathBuf>,
    /// A paper's model and settings; other fields override them.
    pub preset: Option<Preset>,
    /// A DeepSpeed configuration: its optimizer and schedule are read, and the others are held to it.
    pub deepspeed: Option<PathBuf>,

    /// Seconds of forward and backward in one step of one worker.
    pub compute: Option<f64>,
    /// Workers that share a machine's cores while they compute and pack; otherwise the workers of a host.
    pub sharing: Option<usize>,
    /// Cores that these workers share; otherwise this machine's.
    pub cores: Option<usize>,
    /// The cost of packing, as `thinwire bench --json` printed it; otherwise it is measured now, in a few seconds.
    pub bench: Option<PathBuf>,
    /// Where the optimizer's arithmetic runs: `cpu` (this machine's, measured), or by arithmetic `v100`, `a100`, `h100`, `b200`,
    /// `rtx4090`, `mi300x`, or a report of `python -m thinwire.device --json`. Otherwise `cpu`, and with a preset `v100`, which the
    /// papers' computing is from.
    pub device: Option<String>,
    /// Packing takes no time: computing and the network alone.
    pub without_packing: bool,
    /// Bytes of memory of a worker's device: methods that do not fit are marked and not advised. Otherwise that of `device`.
    pub memory: Option<usize>,

    /// Workers.
    pub workers: Option<usize>,
    /// Hosts, each with the same number of workers; otherwise one for each worker.
    pub hosts: Option<usize>,
    /// Bits a second of each host's link.
    pub bandwidth: Option<f64>,
    /// Seconds from one host to another, one way; otherwise 50 µs, typical of TCP over Ethernet inside a building.
    pub latency: Option<f64>,
    /// Workers, hosts, rate and latency as `thinwire probe --json` measured them; other fields override them.
    pub network: Option<PathBuf>,

    /// Steps of the run; otherwise 10,000.
    pub steps: Option<usize>,
    /// Steps of linear warm-up; otherwise a tenth of the steps.
    pub warmup: Option<usize>,
    /// Decay of the learning rate; otherwise a cosine.
    pub decay: Option<Decay>,
    /// Clip the gradient, which takes a pass over it.
    pub clip: bool,
    /// Codecs of Efficient-Adam; otherwise `sign`, `uniform2`, `uniform4`, `uniform8`, `power3` and `topk0.01`.
    pub codecs: Option<Vec<CodecName>>,
    /// Optimizers and presets to plan beside those whose learning has been measured. They are never advised.
    pub also: Vec<String>,

    /// Simulate the run by events instead of the formula; the fields below make workers and links differ.
    pub simulate: bool,
    /// Spread of the computing time, from worker to worker and step to step, as a part of it.
    pub spread: Option<f64>,
    /// One host takes this many times as long to compute and pack.
    pub slow_host: Option<f64>,
    /// One host's link is this many times slower.
    pub slow_link: Option<f64>,
    /// Mean seconds that a message is late beyond its latency.
    pub jitter: Option<f64>,
    /// Seed of the simulation; otherwise 1.
    pub seed: Option<usize>,
}

/// What a program adds to a question.
#[derive(Clone, Copy)]
pub struct Beside<'a> {
    /// Is told what is measured or simulated now, which takes seconds.
    pub told: &'a dyn Fn(&str),
    /// Measures computing, in place of `params` and `compute`.
    pub measure: Option<&'a Measure<'a>>,
}

/// Measures a step of so many workers in all, of which so many share this machine.
pub type Measure<'a> = dyn Fn(usize, usize) -> Result<Measured, Box<dyn std::error::Error + Send + Sync>> + 'a;

/// A task that was measured in place of being described. Others are then held to Adam, because it has no DDP.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Parameters of its model.
    pub params: usize,
    /// Seconds of forward and backward in one step of one worker.
    pub compute: f64,
    /// The limit that it clips gradients to.
    pub clip: Option<f64>,
    /// Where it was measured: a line of the answer's notes.
    pub note: String,
}

impl Question {
    pub(crate) fn codecs(&self) -> Vec<CodecName> {
        let usual = || CODECS.split(',').map(|name| name.parse().expect("a codec")).collect();
        self.codecs.clone().unwrap_or_else(usual)
    }

    /// What each method would cost, and which to take.
    ///
    /// Files are read. Packing is measured on this machine, in a few seconds, unless [`bench`](Question::bench),
    /// [`device`](Question::device), [`preset`](Question::preset) or [`without_packing`](Question::without_packing) say it.
    ///
    /// # Errors
    ///
    /// If something is missing, makes no sense, or cannot be read.
    pub fn answer(&self) -> Result<Answer> {
        self.answer_with(Beside { told: &|_| (), measure: None })
    }

    /// The same for a program that says what takes long, or that measures computing itself.
    ///
    /// # Errors
    ///
    /// As [`Question::answer`], and if `beside` fails to measure.
    pub fn answer_with(&self, beside: Beside<'_>) -> Result<Answer> {
        Ok(crate::answer::of(self, beside)?)
    }
}
