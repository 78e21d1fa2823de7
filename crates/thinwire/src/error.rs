//! One error type: who, what, and how much.

use crate::codec::Fault;
use std::path::PathBuf;
use std::time::Duration;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{key} = {value}: {accepted}")]
    Config { key: String, value: String, accepted: String },

    #[error("{0}")]
    ConfigSyntax(String),

    #[error("{what} has {got} values, the worker was built for {expected}")]
    Length { what: &'static str, expected: usize, got: usize },

    #[error("worker {worker} has a gradient that is infinite or NaN at step {step}")]
    NotFinite { worker: usize, step: u64 },

    #[error("what worker {worker} {what} at step {step} is too large for f32, though all gradients are finite")]
    Overflow { worker: usize, step: u64, what: &'static str },

    /// Of a digest: the learning rate given to an earlier step, or the parameters, are not the same on both.
    #[error("worker {worker} disagrees on {field}: {there} there, {here} on worker {me}")]
    Disagreement { worker: usize, field: String, there: String, me: usize, here: String },

    #[error("worker {worker} sent bytes that are no message of ours: {problem}")]
    Malformed { worker: usize, problem: String },

    #[error("worker {worker} sent values that cannot be: {fault}")]
    Payload { worker: usize, fault: Fault },

    #[error("worker {worker} stopped the run: {reason}")]
    Aborted { worker: usize, reason: String },

    #[error("worker {worker} left while others waited for it, during {during}")]
    Gone { worker: usize, during: &'static str },

    #[error("worker {worker} did not answer within {limit:?} during {during}")]
    Timeout { worker: usize, limit: Duration, during: &'static str },

    /// The transport itself failed.
    #[error("{problem}")]
    Transport { problem: String },

    #[error(
        "this worker stopped in the middle of something, at an earlier error or interrupt; resume from a checkpoint"
    )]
    Stopped,

    #[error("checkpoint {path}: {problem}")]
    Checkpoint { path: PathBuf, problem: String },

    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
}

impl Error {
    pub(crate) fn config(key: &str, value: impl ToString, accepted: impl ToString) -> Error {
        Error::Config { key: key.to_owned(), value: value.to_string(), accepted: accepted.to_string() }
    }

    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { path, source }
    }

    pub(crate) fn checkpoint(path: impl Into<PathBuf>, problem: impl ToString) -> Error {
        Error::Checkpoint { path: path.into(), problem: problem.to_string() }
    }
}
