//! Why a run cannot be read or a page not be written.

use std::path::{Path, PathBuf};

/// A [`std::result::Result`] whose error is [`Error`] unless said otherwise.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Which file, and what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or a folder that cannot be read or written.
    #[error("cannot {task}: {problem}")]
    Io {
        /// What was to be done, with the path.
        task: String,
        /// What the system says.
        problem: std::io::Error,
    },

    /// A file that is not what it should be.
    #[error("{}{problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where in it, and what is wrong there.
        problem: String,
    },

    /// A folder without runs.
    #[error("{}: metrics.jsonl is neither here nor one folder below ({A_RUN_FOLDER})", path.display())]
    NoRun {
        /// The folder.
        path: PathBuf,
    },
}

/// What a folder of a run is.
const A_RUN_FOLDER: &str = "a run folder is what `thinwire train` writes: metrics.jsonl, config.toml and, when the run has ended, summary.json; \
     `thinwire compare` writes a folder of them";

impl Error {
    /// What to do with an error of the system during `task` at `path`, such as "read".
    pub(crate) fn io(task: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let task = format!("{task} {}", path.display());
        |problem| Error::Io { task, problem }
    }

    /// The same for the metrics, which every run folder has.
    pub(crate) fn no_metrics(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let task = format!("read {} ({A_RUN_FOLDER})", path.display());
        |problem| Error::Io { task, problem }
    }
}
