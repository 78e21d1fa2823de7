//! The mean by itself, without an optimizer around it: to see what a round costs, as `thinwire probe` does for MPI.

use crate::bridge::writeable;
use crate::config::to_python;
use crate::error;
use crate::group::Group;
use crate::wire::Failure;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::Mutex;
use thinwire::CodecName;
use thinwire::MeanOptions;
use thinwire::options::Precision;

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
    mean: Mutex<thinwire::Mean>,
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
        let codec = codec.parse::<CodecName>().map_err(|error| PyValueError::new_err(error.to_string()))?;
        let residual = residue.parse::<Precision>().map_err(error::to_python)?;
        let usual = MeanOptions { residual, ..MeanOptions::of(codec) };
        let options =
            MeanOptions { block: block.unwrap_or(usual.block), bucket: bucket.unwrap_or(usual.bucket), ..usual };
        let group = group.get();
        let end = group.take()?;
        let mean = py.detach(|| thinwire::Mean::boxed(values, options, end)).map_err(error::to_python)?;
        Ok(Mean { mean: Mutex::new(mean), failure: group.failure.clone() })
    }

    /// `vector` becomes the mean over all workers, in place; after an error it is neither. All workers together.
    fn take(&self, py: Python<'_>, vector: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut vector = writeable::<f32>(vector, "vector")?;
        let mut mean = self.mean.try_lock().map_err(|_| PyRuntimeError::new_err("this mean is in use"))?;
        let x = vector.slice_mut::<f32>();
        let mean = &mut *mean;
        let taken = py.detach(|| mean.take(x));
        taken.map_err(|error| self.failure.take().unwrap_or_else(|| error::to_python(error)))
    }

    /// What this worker has sent and waited for so far, as a dict.
    fn traffic<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mean = self.mean.try_lock().map_err(|_| PyRuntimeError::new_err("this mean is in use"))?;
        to_python(py, &mean.traffic())
    }
}
