//! What `thinwire probe --json` prints, of which [`network`](crate::network) reads the rate and the latency.

use serde::{Deserialize, Serialize};

/// The name of the mean that a plan takes the rate of the network from.
pub const EXACT_F32: &str = "exact mean, f32";

/// What `thinwire probe --json` prints: the network between workers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Probed {
    /// How messages went: `threads` or `mpi`.
    pub transport: String,
    /// How many there were.
    pub workers: usize,
    /// The host of each worker.
    pub hosts: Vec<usize>,
    /// Pairs of them, one at a time.
    pub pairs: Vec<Pair>,
    /// Of the slowest pair.
    pub latency_seconds: f64,
    /// Of the slowest pair.
    pub bits_per_second: f64,
    /// Each worker's rate while all send to the next at once: the slowest.
    pub bits_per_second_all_at_once: f64,
    /// Means of all workers.
    pub means: Vec<Mean>,
}

/// One worker to another.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pair {
    /// The worker that sends.
    pub from: usize,
    /// The one that receives.
    pub to: usize,
    /// Half the time of a small message there and back.
    pub latency_seconds: f64,
    /// Of small messages one after the other, without waiting for an answer: what one costs whatever its length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_per_message: Option<f64>,
    /// Of large messages, one way.
    pub bits_per_second: f64,
}

/// A mean as the engine takes it in training.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mean {
    /// A codec, or MPI_Allreduce.
    pub name: String,
    /// Length of the vector.
    pub values: usize,
    /// Bytes that a worker sent for it.
    pub bytes_sent_per_worker: u64,
    /// The median of its runs.
    pub seconds: f64,
    /// All of them: each the slowest worker's.
    pub runs: Vec<f64>,
}
