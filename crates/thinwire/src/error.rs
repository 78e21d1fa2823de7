//! One error type: who, what, and how much.

use std::path::PathBuf;
use std::time::Duration;

/// A [`std::result::Result`] whose error is [`Error`] unless said otherwise.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something did not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option has a value that does not fit.
    #[error("invalid {key} = {value}: {problem}")]
    Config {
        /// The option.
        key: String,
        /// What was given.
        value: String,
        /// What is wrong with it, or what was expected.
        problem: String,
    },

    /// A configuration that cannot be read.
    #[error("{0}")]
    ConfigSyntax(String),

    /// A vector of another length than the model's.
    #[error("{what}: expected {expected} values, found {got}")]
    Length {
        /// Which vector.
        what: &'static str,
        /// The model's length.
        expected: usize,
        /// The vector's.
        got: usize,
    },

    /// A gradient has a value that is not finite, or so large that its square might not be.
    #[error(
        "worker {worker} has a gradient that is infinite or NaN at step {step} (or larger than 2^62, which counts as infinite)"
    )]
    NotFinite {
        /// Whose gradient.
        worker: usize,
        /// When.
        step: u64,
    },

    /// Finite numbers whose sum is not.
    #[error("what worker {worker} {what} at step {step} is too large for f32, though all gradients are finite")]
    Overflow {
        /// Whose sum.
        worker: usize,
        /// When.
        step: u64,
        /// What it did with the sum.
        what: &'static str,
    },

    /// Parameters or moments that are not finite any more.
    #[error(
        "worker {worker} found infinite or NaN values in `{vector}` at step {step}, though no gradient had any (resume from a \
         checkpoint, with a lower learning rate or weight decay)"
    )]
    Diverged {
        /// Who found them.
        worker: usize,
        /// When.
        step: u64,
        /// Where.
        vector: &'static str,
    },

    /// Workers disagree on something that must be the same on all. Of a digest: the learning rate given to an earlier step, or the
    /// parameters, differ.
    #[error("worker {worker} disagrees on {field}: {there} there, {here} on worker {me}")]
    Disagreement {
        /// The other worker.
        worker: usize,
        /// On what.
        field: String,
        /// Its value.
        there: String,
        /// This worker.
        me: usize,
        /// This worker's value.
        here: String,
    },

    /// Bytes that cannot be read as a message.
    #[error("worker {worker} sent a malformed message: {problem}")]
    Malformed {
        /// Who sent them.
        worker: usize,
        /// What is wrong.
        problem: String,
    },

    /// A message whose values cannot be.
    #[error("worker {worker} sent an invalid payload: {fault}")]
    Payload {
        /// Who sent it.
        worker: usize,
        /// What is wrong.
        fault: Fault,
    },

    /// Another worker has ended the run.
    #[error("worker {worker} stopped the run: {reason}")]
    Aborted {
        /// Which one.
        worker: usize,
        /// What it said.
        reason: String,
    },

    /// Another worker is no longer there.
    #[error("worker {worker} left while others waited for it, during {during}")]
    Gone {
        /// Which one.
        worker: usize,
        /// In which operation.
        during: &'static str,
    },

    /// Another worker is silent.
    #[error("worker {worker} did not answer within {limit:?} during {during}")]
    Timeout {
        /// Which one.
        worker: usize,
        /// How long it was waited for.
        limit: Duration,
        /// In which operation.
        during: &'static str,
    },

    /// The device that holds a worker's vectors failed, or lacks something.
    #[error("device {device}: {problem}")]
    Device {
        /// What the device is called.
        device: String,
        /// What it lacks, or how it failed.
        problem: String,
    },

    /// What the shards of one replica found when they agreed; the worker that it names is a shard, counted from 0.
    #[error("among the shards of one replica: {0}")]
    Shards(Box<Error>),

    /// The transport itself failed.
    #[error("{problem}")]
    Transport {
        /// How.
        problem: String,
    },

    /// This worker met an error before, and its state may be half of a step.
    #[error("this worker stopped at an earlier error or interrupt and cannot continue; resume from a checkpoint")]
    Stopped,

    /// A checkpoint that cannot be used.
    #[error("checkpoint {path}: {problem}")]
    Checkpoint {
        /// Its folder.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },

    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn config(key: &str, value: impl ToString, problem: impl ToString) -> Error {
        Error::Config { key: key.to_owned(), value: value.to_string(), problem: problem.to_string() }
    }

    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { path, source }
    }

    pub(crate) fn checkpoint(path: impl Into<PathBuf>, problem: impl ToString) -> Error {
        Error::Checkpoint { path: path.into(), problem: problem.to_string() }
    }
}

/// Why a block could not be encoded or decoded.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A value that no code stands for.
    #[error("a value is infinite or NaN")]
    NotFinite,
    /// Too few bytes, or too many.
    #[error("{count} values take {expected} bytes, not {got}")]
    Length {
        /// Values of the block.
        count: usize,
        /// Bytes that they take.
        expected: usize,
        /// Bytes that came.
        got: usize,
    },
    /// A scale that cannot be.
    #[error("the scale {0} is not a finite number of at least 0")]
    Scale(f32),
    /// A code beyond the last.
    #[error("code {code} stands for no value: the largest is {largest}")]
    Code {
        /// The code.
        code: u8,
        /// The last there is.
        largest: u8,
    },
    /// A place outside of the block, or before the one that came last.
    #[error("index {index} is out of order, or past the {count} values of its block")]
    Index {
        /// The place.
        index: usize,
        /// Values of the block.
        count: usize,
    },
}
