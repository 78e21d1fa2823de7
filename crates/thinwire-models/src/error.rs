//! What can be wrong with data or with a network's sizes: the file, what is wrong, and what was expected.

use std::path::PathBuf;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder that cannot be used; `problem` says what is wrong and what is accepted.
    #[error("{}: {problem}", .path.display())]
    Data { path: PathBuf, problem: String },
    /// Sizes that do not fit each other.
    #[error("{word} = {value}: {problem}")]
    Config { word: &'static str, value: String, problem: String },
}

impl Error {
    pub fn data(path: impl Into<PathBuf>, problem: impl Into<String>) -> Error {
        Error::Data { path: path.into(), problem: problem.into() }
    }

    pub fn config(word: &'static str, value: impl ToString, problem: impl Into<String>) -> Error {
        Error::Config { word, value: value.to_string(), problem: problem.into() }
    }
}
