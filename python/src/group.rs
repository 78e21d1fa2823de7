//! A worker's place in a group: one of several threads, one of several processes, or alone.

use crate::wire::{Failure, Wire};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use thinwire::{Collective, Sharded, Solo, threads};

/// How often a waiting worker listens for Ctrl-C.
const GLANCE: Duration = Duration::from_millis(50);

/// One worker's end of a group, for one `Worker`.
#[pyclass(frozen, module = "thinwire._thinwire")]
pub struct Group {
    #[pyo3(get)]
    rank: usize,
    #[pyo3(get)]
    size: usize,
    pub hosts: Vec<usize>,
    end: Mutex<Option<Box<dyn Collective>>>,
    pub failure: Failure,
}

#[pymethods]
impl Group {
    fn __repr__(&self) -> String {
        format!("<thinwire.Group: worker {} of {}>", self.rank, self.size)
    }
}

impl Group {
    fn new(end: impl Collective + 'static, failure: Failure) -> Group {
        let (rank, size, hosts) = (end.rank(), end.size(), end.hosts());
        Group { rank, size, hosts, end: Mutex::new(Some(Box::new(end))), failure }
    }

    /// The transport, which only one worker can have.
    pub fn take(&self) -> PyResult<Box<dyn Collective>> {
        let taken = self.end.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.ok_or_else(|| PyRuntimeError::new_err("this end of the group has a worker already; make a new group"))
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.size
    }
}

fn seconds(deadline: f64) -> PyResult<Duration> {
    let accepted = || PyValueError::new_err(format!("deadline = {deadline}: accepted: seconds, more than 0"));
    if deadline <= 0.0 { Err(accepted()) } else { Duration::try_from_secs_f64(deadline).map_err(|_| accepted()) }
}

/// The ends of a group of `n` workers in this process, one for each thread.
///
/// Parameters
/// ----------
/// n : int
///     Workers.
/// deadline : float
///     Seconds that a worker waits for another before it raises TimeoutError.
#[pyfunction]
#[pyo3(signature = (n, *, deadline = 300.0))]
pub fn local_group(n: usize, deadline: f64) -> PyResult<Vec<Group>> {
    if n == 0 {
        return Err(PyValueError::new_err("n = 0: accepted: at least 1"));
    }
    let ends = threads::group(n, seconds(deadline)?).into_iter().map(|mut end| {
        let failure = Failure::default();
        let heard = failure.clone();
        end.look_around(GLANCE, move || hear_signals(&heard));
        Group::new(end, failure)
    });
    Ok(ends.collect())
}

/// Ctrl-C, where a worker waits on the main thread; on others Python hears nothing.
fn hear_signals(failure: &Failure) -> thinwire::Result<()> {
    Python::attach(|py| py.check_signals().map_err(|error| failure.explain(py, error)))
}

/// A group of one.
#[pyfunction]
pub fn solo() -> Group {
    Group::new(Solo, Failure::default())
}

/// The end of a worker whose replica is held in shards: `across` is the wire to its counterparts in the other replicas, None if there is
/// one replica, `inside` the wire to the shards of its own. Both are a `thinwire._wire.Wire`.
#[pyfunction]
pub fn sharded_group(across: Option<&Bound<'_, PyAny>>, inside: &Bound<'_, PyAny>, deadline: f64) -> PyResult<Group> {
    let (failure, deadline) = (Failure::default(), seconds(deadline)?);
    let across: Box<dyn Collective> = match across {
        Some(wire) => Box::new(Wire::new(wire, deadline, failure.clone())?),
        None => Box::new(Solo),
    };
    let inside = Box::new(Wire::new(inside, deadline, failure.clone())?);
    Ok(Group::new(Sharded::new(across, inside), failure))
}

/// The end of a group whose messages go through `wire`, a `thinwire._wire.Wire`.
#[pyfunction]
pub fn wire_group(wire: &Bound<'_, PyAny>, deadline: f64) -> PyResult<Group> {
    let failure = Failure::default();
    Ok(Group::new(Wire::new(wire, seconds(deadline)?, failure.clone())?, failure))
}
