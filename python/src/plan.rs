//! What a run will send and hold, before anything is sent.

use crate::config::{from_python, to_python};
use crate::error;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;
use thinwire::Plan;

/// What worker `rank` of those on `hosts` will send and hold in `steps` steps.
#[pyfunction]
pub fn plan<'py>(
    words: &Bound<'py, PyDict>,
    parameters: usize,
    hosts: Vec<usize>,
    rank: usize,
    steps: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let config = from_python(words)?;
    let plan = words.py().detach(|| Plan::on_hosts(&config, parameters, &hosts, steps)).map_err(error::to_python)?;
    if rank >= hosts.len() {
        return Err(PyValueError::new_err(format!("rank = {rank}: there are {} workers", hosts.len())));
    }
    let memory = plan.memory(rank);
    let data = json!({
        "steps": plan.steps,
        "rounds": plan.rounds,
        "bytes_sent": plan.bytes_sent(rank),
        "bytes_between_hosts": plan.bytes_between_hosts(rank),
        "bits_per_param_per_step": plan.bits_per_param_per_step(),
        "memory": {
            "model": memory.model,
            "moments": memory.moments,
            "beyond_adam": memory.beyond_adam,
            "messages": memory.messages,
            "total": memory.total(),
        },
    });
    to_python(words.py(), &data)
}
