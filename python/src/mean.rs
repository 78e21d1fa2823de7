//! The mean by itself, without an optimizer around it: to see what a round costs, as `thinwire probe` does for MPI.

use crate::bridge::writeable;
use crate::config::to_python;
use crate::error;
use crate::group::Group;
use crate::wire::Failure;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::Mutex;
use thinwire::codec::{CodecName, MAX_BLOCK};
use thinwire::exchange::{Coding, Codings, Exchange};
use thinwire::layout::{Shape, Topology};
use thinwire::optimizer::Now;
use thinwire::residue::Precision;
use thinwire::schedule::Round;
use thinwire::tiles::Threads;
use thinwire::{Config, Name};

/// Coarse means of one vector over the workers of a group, one after the other, residues and all.
///
/// Parameters
/// ----------
/// values : int
///     The vector's length.
/// group : Group
///     This worker's end of a group.
/// codec : str
///     How the values go up and come down.
/// block, bucket : int, optional
///     Values that share a scale, and bytes of a message; as in the optimizers without them.
/// residue : str
///     How what was not said yet is kept: "f32" or "bf16".
#[pyclass(frozen, module = "thinwire._thinwire")]
pub struct Mean {
    /// And the means taken so far.
    exchange: Mutex<(Exchange, u64)>,
    failure: Failure,
}

#[pymethods]
impl Mean {
    #[new]
    #[pyo3(signature = (values, group, *, codec = "sign", block = None, bucket = None, residue = "f32"))]
    fn new(
        py: Python<'_>,
        values: usize,
        group: &Bound<'_, Group>,
        codec: &str,
        block: Option<usize>,
        bucket: Option<usize>,
        residue: &str,
    ) -> PyResult<Mean> {
        let usual = Config::new(Name::Adam).resolved().map_err(error::to_python)?;
        let codec = codec.parse::<CodecName>().map_err(|error| PyValueError::new_err(error.to_string()))?;
        let residue = residue.parse::<Precision>().map_err(error::to_python)?;
        let block = block.or(usual.block).expect("resolved");
        if !(1..=MAX_BLOCK).contains(&block) {
            return Err(PyValueError::new_err(format!("block = {block}: accepted: 1 to {MAX_BLOCK}")));
        }
        let bucket = bucket.or(usual.bucket).expect("resolved");
        let group = group.get();
        let shape = Shape { values, block, workers: group.size(), topology: Topology::Sharded };
        let codings = Codings { exact: None, coarse: Some(Coding::new(shape, codec, codec, bucket).keeping(residue)) };
        let (end, threads) = (group.take()?, Threads::new(1).map_err(error::to_python)?);
        let exchange = py.detach(|| Exchange::new(shape, codings, end, threads));
        Ok(Mean { exchange: Mutex::new((exchange, 0)), failure: group.failure.clone() })
    }

    /// `vector` becomes the mean over all workers, in place; after an error it is neither. All workers together.
    fn take(&self, py: Python<'_>, vector: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut vector = writeable::<f32>(vector, "vector")?;
        let mut exchange = self.exchange.try_lock().map_err(|_| PyRuntimeError::new_err("this mean is in use"))?;
        let (exchange, step) = &mut *exchange;
        let x = vector.slice_mut::<f32>();
        let now = Now { step: *step, lr: 0.0, rates: &[], contributes: true, norm: None };
        let taken = py.detach(|| exchange.mean_in_place(Round::Coarse, &now, x));
        taken.map_err(|error| self.failure.take().unwrap_or_else(|| error::to_python(error)))?;
        *step += 1;
        Ok(())
    }

    /// What this worker has sent and waited for so far, as a dict.
    fn traffic<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let exchange = self.exchange.try_lock().map_err(|_| PyRuntimeError::new_err("this mean is in use"))?;
        to_python(py, &exchange.0.group.traffic)
    }
}
