//! What a run leaves behind: `metrics.jsonl`, a line for each step and each evaluation, and `summary.json`, its end.
//!
//! A run's folder holds `config.toml` (every setting), these two, `checkpoint/`, and the report.

use serde::{Deserialize, Serialize};

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Metric {
    /// A step.
    Step(Step),
    /// An evaluation.
    Eval(Eval),
}

/// One step, counted from 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Which.
    pub step: u64,
    /// Training loss of this step's batch, mean over the workers.
    pub loss: f64,
    /// The learning rate.
    pub lr: f64,
    /// `exact`, `coarse` or `skipped`.
    pub round: String,
    /// Bytes that a worker sent in this step (mean over the workers).
    pub bytes: f64,
    /// The same since the start.
    pub bytes_total: f64,
    /// Of `bytes`, those to workers on other hosts.
    #[serde(default)]
    pub bytes_between_hosts: f64,
    /// Seconds of this step, of worker 0, by phase.
    pub seconds: Phases,
    /// CPU seconds of forward and backward, mean over the workers: what compute costs where a worker has a core of its own.
    pub compute_cpu: f64,
}

/// Held-out data, after `step` steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Eval {
    /// Steps taken before it.
    pub step: u64,
    /// Loss of held-out data.
    pub val_loss: f64,
    /// The part that was classified correctly, if the task classifies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Matthews' correlation, if the task is measured by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matthews: Option<f64>,
}

/// Wall-clock seconds by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// All of it.
    pub total: f64,
    /// Forward and backward.
    pub compute: f64,
    /// Coding and decoding, and the optimizer's own passes.
    pub pack: f64,
    /// Handing messages to the transport and taking them from it.
    pub wire: f64,
    /// Waiting for others.
    pub wait: f64,
}

/// Rounds by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rounds {
    /// Casts, without error feedback.
    pub exact: u64,
    /// Compressed, with error feedback.
    pub coarse: u64,
    /// Steps without a round.
    pub skipped: u64,
}

/// The end of a run: `summary.json`, and what `train --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// As configured: `adam`, `zero-one-adam`…
    pub optimizer: String,
    /// The task, for people.
    pub task: String,
    /// How messages went: `threads`, `mpi` or `server`.
    pub transport: String,
    /// How many trained.
    pub workers: usize,
    /// Steps taken.
    pub steps: u64,
    /// Parameters of the model.
    pub params: usize,
    /// Of all randomness.
    pub seed: u64,
    /// The peak of the learning rate.
    pub lr: f64,
    /// Mean of the training loss over the last steps.
    pub train_loss: f64,
    /// Loss of held-out data.
    pub val_loss: f64,
    /// The part that was classified correctly, if the task classifies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// The accuracy of whoever always answers the most frequent class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub majority: Option<f64>,
    /// Matthews' correlation, if the task is measured by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matthews: Option<f64>,
    /// Sentences that are longer than the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
    /// The files of the data, as they are called in the folder that was given; none for what is compiled in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_files: Vec<String>,
    /// Of the final parameters' bytes.
    pub digest: String,
    /// Bytes that a worker sent, mean over the workers.
    pub bytes_sent_per_worker: u64,
    /// Of these, those to workers on other hosts.
    #[serde(default)]
    pub bytes_between_hosts_per_worker: u64,
    /// The same in bits, for each parameter and step.
    pub bits_per_param_per_step: f64,
    /// Its rounds.
    pub rounds: Rounds,
    /// Where the time went, of worker 0.
    pub seconds: Phases,
    /// CPU seconds of forward and backward, mean over the workers.
    pub compute_cpu: f64,
    /// What is counted: `tokens` or `images`.
    pub unit: String,
    /// How many of them a second, all workers together.
    pub units_per_second: f64,
    /// Seconds that the run would take with each worker on a machine and a link of its own.
    pub projected: Vec<Projection>,
    /// What the plan said; none if only the run could tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<Planned>,
    /// Steps that moved a parameter by more than 100 learning rates, since the run last began or was resumed.
    #[serde(default)]
    pub jumps: u64,
    /// Gradients that were far longer than those before them, of all workers, in the same time.
    #[serde(default)]
    pub outliers: u64,
}

impl Summary {
    /// What to say about [`Summary::jumps`], if there were any.
    pub fn jumps_warning(&self) -> Option<String> {
        let again = if self.jumps == 1 { "step" } else { "steps" };
        let text = format!(
            "{} {again} moved a parameter by more than 100 learning rates: look at its learning rate and betas",
            self.jumps
        );
        (self.jumps > 0).then_some(text)
    }
}

/// Sentences that lost their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// How many lost their end.
    pub examples: usize,
    /// Of so many.
    pub of: usize,
    /// Tokens that were kept.
    pub context: usize,
    /// Tokens of the longest.
    pub longest: usize,
}

/// What was planned of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// Bytes that a worker sends.
    pub bytes_sent_per_worker: u64,
    /// The rounds.
    pub rounds: Rounds,
    /// Seconds of a step. None where the network is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<f64>,
}

/// How long a run would take on other links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Projection {
    /// Bits a second of each worker's link.
    pub bandwidth: f64,
    /// Seconds of the whole run.
    pub seconds: f64,
}

/// Seconds that a round's messages take to set out and arrive, whatever their size: up to the owners, and down again.
const LATENCY: f64 = 2.0 * 50e-6;

/// Seconds on machines of one's own, joined by links of `bandwidth` bits a second: compute (CPU seconds) and packing as
/// measured, `bytes` at that bandwidth, and the latency of `rounds`.
pub fn projected(compute_cpu: f64, pack: f64, bytes: f64, rounds: u64, bandwidth: f64) -> f64 {
    compute_cpu + pack + bytes * 8.0 / bandwidth + rounds as f64 * LATENCY
}
