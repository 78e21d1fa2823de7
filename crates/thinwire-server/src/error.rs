//! What can go wrong on a server, and on the way to one.

use std::path::{Path, PathBuf};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Engine(#[from] thinwire::Error),

    /// The cause is told with it, and so is no `source`, which whoever shows a chain of errors would tell again.
    #[error("{path}: {cause}")]
    Io { path: PathBuf, cause: std::io::Error },

    /// No room on the disk: nothing was written, nobody has seen the round, and it may be tried again.
    #[error("{path}: no room on the disk ({cause})")]
    NoRoom { path: PathBuf, cause: std::io::Error },

    #[error("{path}: {problem}")]
    Damaged { path: PathBuf, problem: String },

    /// What cannot be asked for.
    #[error("{0}")]
    Usage(String),

    /// The server said no, and would say no again.
    #[error("the server at {address} refused: {reason}")]
    Refused { address: String, reason: String },

    #[error("the server at {address} was out of reach for {seconds} s: {reason}")]
    Unreachable { address: String, seconds: u64, reason: String },
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        // A file that may not grow (a quota, a limit of the process) is as good as a full disk.
        move |cause| match cause.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded | std::io::ErrorKind::FileTooLarge => {
                Error::NoRoom { path, cause }
            }
            _ => Error::Io { path, cause },
        }
    }

    pub(crate) fn damaged(path: &Path, problem: impl ToString) -> Error {
        Error::Damaged { path: path.to_owned(), problem: problem.to_string() }
    }
}
