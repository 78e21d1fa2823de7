//! The transport through `torch.distributed`: the engine's messages as frames that a small Python object sends and receives.
//!
//! A frame is a message behind its length, eight bytes. A message that is longer than the wire's buffers goes on in further frames,
//! without a length. The Python object (`thinwire/_wire.py`) lends buffers, starts sends, waits for arrivals, and finds out who is
//! silent or gone. Bytes are copied while the interpreter is free for other threads.

use crate::bridge::{bytes_at, copy_to};
use pyo3::exceptions::{PyConnectionError, PyKeyboardInterrupt, PyTimeoutError};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thinwire::{Collective, Error, Result};

/// Bytes of a length.
const PREFIX: usize = 8;

/// The longest message there can be; what claims to be longer is none of ours.
const LONGEST: usize = 1 << 40;

/// The smallest buffer: room for what workers say outside the rounds.
const SHORTEST_FRAME: usize = 1 << 16;

/// An exception that the engine has no word for, kept until the call that met it returns.
#[derive(Clone, Default)]
pub struct Failure(Arc<Mutex<Option<PyErr>>>);

impl Failure {
    pub fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps `error`, and says it in the engine's words.
    pub fn explain(&self, py: Python<'_>, error: PyErr) -> Error {
        Error::Transport { problem: self.keep(py, error) }
    }

    /// Keeps `error`; its text, for the other workers.
    pub fn keep(&self, py: Python<'_>, error: PyErr) -> String {
        let interrupted = error.is_instance_of::<PyKeyboardInterrupt>(py);
        let problem = if interrupted { "interrupted by the user".to_owned() } else { error.to_string() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        problem
    }
}

pub struct Wire {
    wire: Py<PyAny>,
    rank: usize,
    size: usize,
    hosts: Vec<usize>,
    deadline: Duration,
    /// Bytes of a buffer; 0 before the first message.
    frame: usize,
    failure: Failure,
}

impl Wire {
    pub fn new(wire: &Bound<'_, PyAny>, deadline: Duration, failure: Failure) -> PyResult<Wire> {
        let (rank, size) = (wire.getattr("rank")?.extract()?, wire.getattr("size")?.extract()?);
        let hosts = wire.getattr("hosts")?.extract()?;
        Ok(Wire { wire: wire.clone().unbind(), rank, size, hosts, deadline, frame: 0, failure })
    }

    /// Runs `call` with the interpreter; what it raises becomes the engine's error.
    fn call<T>(&self, during: &'static str, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T> {
        Python::attach(|py| call(self.wire.bind(py)).map_err(|error| self.explain(py, error, during)))
    }

    fn explain(&self, py: Python<'_>, error: PyErr, during: &'static str) -> Error {
        let worker = error.value(py).getattr("worker").and_then(|worker| worker.extract::<usize>()).ok();
        match worker {
            Some(worker) if error.is_instance_of::<PyTimeoutError>(py) => {
                Error::Timeout { worker, limit: self.deadline, during }
            }
            Some(worker) if error.is_instance_of::<PyConnectionError>(py) => Error::Gone { worker, during },
            _ => self.failure.explain(py, error),
        }
    }

    fn next_frame(&self, from: usize, during: &'static str) -> Result<usize> {
        self.call(during, |wire| wire.call_method1("receive", (from, during))?.extract())
    }
}

impl Collective for Wire {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn hosts(&self) -> Vec<usize> {
        self.hosts.clone()
    }

    fn reserve(&mut self, longest: usize, under_way: usize) {
        self.frame = (longest + PREFIX).max(SHORTEST_FRAME);
        // Without room there is no sending either, and that has somewhere to say why.
        let _ = self.call("the first meeting", |wire| wire.call_method1("reserve", (self.frame, under_way)).map(drop));
    }

    fn send(&mut self, to: usize, message: &[u8], during: &'static str) -> Result<()> {
        let mut prefix = &(message.len() as u64).to_le_bytes()[..];
        let mut rest = message;
        while !prefix.is_empty() || !rest.is_empty() {
            let continues = prefix.is_empty();
            let room = |wire: &Bound<'_, PyAny>| wire.call_method1("room", (to, during, continues))?.extract::<usize>();
            let address = self.call(during, room)?;
            let (now, later) = rest.split_at(rest.len().min(self.frame - prefix.len()));
            copy_to(address, prefix);
            copy_to(address + prefix.len(), now);
            let len = prefix.len() + now.len();
            self.call(during, |wire| wire.call_method1("send", (to, len)).map(drop))?;
            (prefix, rest) = (&[], later);
        }
        Ok(())
    }

    fn receive(&mut self, from: usize, message: &mut Vec<u8>, during: &'static str) -> Result<()> {
        let frame = bytes_at(self.next_frame(from, during)?, self.frame);
        let (prefix, first) = frame.split_first_chunk::<PREFIX>().expect("longer than a length");
        let len = usize::try_from(u64::from_le_bytes(*prefix)).unwrap_or(usize::MAX);
        if len > LONGEST {
            return Err(Error::Malformed { worker: from, problem: format!("it claims to be {len} bytes long") });
        }
        message.clear();
        message.extend_from_slice(&first[..len.min(first.len())]);
        while message.len() < len {
            let frame = bytes_at(self.next_frame(from, during)?, self.frame);
            message.extend_from_slice(&frame[..(len - message.len()).min(frame.len())]);
        }
        Ok(())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // At the very end of the program there may be no interpreter any more.
        Python::try_attach(|py| self.wire.bind(py).call_method0("close").map(drop));
    }
}
