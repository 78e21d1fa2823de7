//! The engine's errors as the exceptions that Python has for such things. The text is the engine's.

use pyo3::PyErr;
use pyo3::exceptions::{
    PyConnectionError, PyFileNotFoundError, PyFloatingPointError, PyOSError, PyPermissionError, PyRuntimeError,
    PyTimeoutError, PyValueError,
};
use std::io::ErrorKind;
use thinwire::Error;

pub fn to_python(error: Error) -> PyErr {
    let text = error.to_string();
    raised(error, text)
}

fn raised(error: Error, text: String) -> PyErr {
    match error {
        Error::Shards(error) => raised(*error, text),
        Error::Config { .. } | Error::ConfigSyntax(_) | Error::Length { .. } => PyValueError::new_err(text),
        Error::Disagreement { field, .. } if field.contains("digest") && !field.contains("to start from") => {
            PyValueError::new_err(format!(
                "{text} (the parameters, or lr now or at an earlier step, are not the same on both)"
            ))
        }
        Error::Disagreement { .. } => PyValueError::new_err(text),
        Error::Checkpoint { path, .. } if !path.exists() => PyFileNotFoundError::new_err(text),
        Error::Checkpoint { .. } => PyValueError::new_err(text),
        Error::NotFinite { .. } => PyFloatingPointError::new_err(text),
        Error::Overflow { .. } => PyFloatingPointError::new_err(text),
        Error::Timeout { .. } => PyTimeoutError::new_err(text),
        Error::Gone { .. } | Error::Transport { .. } => PyConnectionError::new_err(text),
        Error::Io { source, .. } => match source.kind() {
            ErrorKind::NotFound => PyFileNotFoundError::new_err(text),
            ErrorKind::PermissionDenied => PyPermissionError::new_err(text),
            _ => PyOSError::new_err(text),
        },
        _ => PyRuntimeError::new_err(text),
    }
}

/// A bad gradient, and what to do next. A worker that is alone has lost nothing. Of several, the one with the bad gradient stops
/// before its step; the others learn of it when they wait for it, after they have packed their own gradient into residues, or have
/// taken steps that need no round.
pub fn not_finite(error: Error, workers: usize) -> PyErr {
    let next = match workers {
        1 => "nothing has moved: call zero_grad() and go on",
        _ => {
            "that worker did not take the step, but others may have packed their gradients for it or taken local steps \
              since, so no rank can go on from here: build the optimizer again with resume=DIR, from the last save(DIR)"
        }
    };
    let skip = "non_finite=\"skip\" leaves such gradients out of the mean instead";
    PyFloatingPointError::new_err(format!("{error}; {next}. {skip}"))
}
