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
    match error {
        Error::Config { .. } | Error::ConfigSyntax(_) | Error::Length { .. } => PyValueError::new_err(text),
        Error::Disagreement { field, .. } if field.contains("digest") && !field.contains("to start from") => {
            PyValueError::new_err(format!(
                "{text} (the parameters, or lr now or at an earlier step, are not the same on both)"
            ))
        }
        Error::Disagreement { .. } => PyValueError::new_err(text),
        Error::Checkpoint { path, .. } if !path.exists() => PyFileNotFoundError::new_err(text),
        Error::Checkpoint { .. } => PyValueError::new_err(text),
        Error::NotFinite { .. } => PyFloatingPointError::new_err(format!(
            "{text}; nothing has moved. Several ranks all end here, and go on from a checkpoint; \
             non_finite=\"skip\" leaves such gradients out of the mean instead"
        )),
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
