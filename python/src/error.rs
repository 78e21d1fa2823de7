//! The engine's errors as the exceptions that Python has for such things. The text is the engine's.

use pyo3::PyErr;
use pyo3::exceptions::{
    PyConnectionError, PyFloatingPointError, PyOSError, PyRuntimeError, PyTimeoutError, PyValueError,
};
use thinwire::Error;

pub fn to_python(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Config { .. } | Error::ConfigSyntax(_) | Error::Length { .. } => PyValueError::new_err(text),
        Error::Disagreement { field, .. } if field.contains("digest") => PyValueError::new_err(format!(
            "{text} (the parameters, or lr now or at an earlier step, are not the same on both)"
        )),
        Error::Disagreement { .. } | Error::Checkpoint { .. } => PyValueError::new_err(text),
        Error::NotFinite { .. } => {
            PyFloatingPointError::new_err(format!("{text}; non_finite=\"skip\" leaves such gradients out of the mean"))
        }
        Error::Overflow { .. } => PyFloatingPointError::new_err(text),
        Error::Timeout { .. } => PyTimeoutError::new_err(text),
        Error::Gone { .. } | Error::Transport { .. } => PyConnectionError::new_err(text),
        Error::Io { .. } => PyOSError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}
