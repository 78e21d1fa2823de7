//! `thinwire.plan`: what each method would cost, before anything runs.

use pyo3::PyErr;
use pyo3::exceptions::{PyFileNotFoundError, PyValueError};
use pyo3::prelude::*;
use thinwire_plan::{Error, Question};

/// The answer to a question, both as JSON.
#[pyfunction]
pub fn answer(py: Python<'_>, question: &str) -> PyResult<String> {
    let answer = py.detach(|| Ok(Question::from_json(question)?.answer()?.to_json().to_string()));
    answer.map_err(refused)
}

fn refused(error: Error) -> PyErr {
    let text = error.to_string();
    if error.is_missing_file() { PyFileNotFoundError::new_err(text) } else { PyValueError::new_err(text) }
}
