//! Keywords to a configuration and back. The words are the engine's; JSON is the way between, so none is written down twice.

use crate::error::to_python as error;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;
use thinwire::{Config, Error, LearningRate};

/// The configuration that `words` say, at least `name`.
pub fn from_python(words: &Bound<'_, PyDict>) -> PyResult<Config> {
    let text = words.py().import("json")?.call_method1("dumps", (words,))?.extract::<String>()?;
    Config::from_json(&text).map_err(|refused| match refused {
        // Where it stands in the JSON is nothing that the caller wrote.
        Error::ConfigSyntax(text) => {
            let end = text.rfind(" at line 1 column").unwrap_or(text.len());
            error(Error::ConfigSyntax(text[..end].to_owned()))
        }
        other => error(other),
    })
}

/// Plain data as Python's.
pub fn to_python<'py>(py: Python<'py>, data: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(data).expect("plain data");
    py.import("json")?.call_method1("loads", (text,))
}

/// The same words with every default written out; a ValueError for one that does not fit.
#[pyfunction]
pub fn resolve<'py>(words: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    to_python(words.py(), &from_python(words)?.resolved().map_err(error)?)
}

/// What a run under these words can ask of a device: the names of its passes and sources, and of its codecs.
#[pyfunction]
pub fn needs(words: &Bound<'_, PyDict>) -> PyResult<(Vec<&'static str>, Vec<String>)> {
    let settings = from_python(words)?.decide().map_err(error)?;
    let (passes, codecs) = settings.needs(false);
    Ok((passes, codecs.iter().map(ToString::to_string).collect()))
}

/// The learning rates that a table in the words of `learning_rate` has at some steps.
#[pyfunction]
pub fn rates(table: &Bound<'_, PyDict>, steps: Vec<u64>) -> PyResult<Vec<f32>> {
    let text = table.py().import("json")?.call_method1("dumps", (table,))?.extract::<String>()?;
    let table: LearningRate =
        serde_json::from_str(&text).map_err(|error| PyValueError::new_err(format!("schedule: {error}")))?;
    Ok(steps.into_iter().map(|step| table.at(step)).collect())
}
