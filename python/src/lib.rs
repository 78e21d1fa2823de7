//! The Python face of Thinwire: the engine's [`Worker`](thinwire::Worker) on NumPy arrays and PyTorch tensors.
//!
//! Python holds no second copy of an algorithm. What is here is a bridge to memory that Python owns, a transport whose messages go
//! through `torch.distributed`, and the engine's errors as Python's exceptions. The package around it is in `thinwire/`.

#![deny(unsafe_code)]

mod bridge;
mod config;
mod device;
mod error;
mod group;
mod mean;
mod plan;
mod question;
mod state;
mod twins;
mod wire;
mod worker;

#[pyo3::pymodule]
mod _thinwire {
    use pyo3::pymodule;

    #[pymodule_export]
    use crate::bridge::{_all_finite, Vector};
    #[pymodule_export]
    use crate::config::{needs, rates, resolve};
    #[pymodule_export]
    use crate::group::{Group, local_group, sharded_group, solo, wire_group};
    #[pymodule_export]
    use crate::mean::Mean;
    #[pymodule_export]
    use crate::plan::plan;
    #[pymodule_export]
    use crate::question::answer;
    #[pymodule_export]
    use crate::worker::Worker;

    /// The engine's kernels by themselves: private, for `thinwire.device`.
    #[pymodule]
    mod _twins {
        #[pymodule_export]
        use crate::twins::{add_up, decode, encode, encoded_len, reduce_tile, run, take_back};
    }

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::PyModuleMethods;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
