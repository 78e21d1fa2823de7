//! How a command can end badly, and the exit code that says so.

use std::fmt;
use std::process::ExitCode;

#[derive(Debug)]
pub enum Failure {
    /// Bad usage or input: nothing was started.
    Usage(anyhow::Error),
    /// A run that failed.
    Run(anyhow::Error),
    /// Stopped by the user, after the checkpoint was written; says how to go on.
    Interrupted(String),
    /// Another process has said why; this is its exit code.
    Told(u8),
}

pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub fn usage(error: impl Into<anyhow::Error>) -> Failure {
        Failure::Usage(error.into())
    }

    pub fn run(error: impl Into<anyhow::Error>) -> Failure {
        Failure::Run(error.into())
    }

    /// The same, of one worker among several.
    pub fn of_worker(self, rank: usize) -> Failure {
        match self {
            Failure::Usage(error) => Failure::Usage(error.context(format!("worker {rank}"))),
            failure => failure,
        }
    }

    pub fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Run(_) => 1,
            Failure::Interrupted(_) => 130,
            Failure::Told(code) => *code,
        }
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(error) | Failure::Run(error) => write!(f, "error: {error:#}"),
            Failure::Interrupted(how) => f.write_str(how),
            Failure::Told(_) => Ok(()),
        }
    }
}
