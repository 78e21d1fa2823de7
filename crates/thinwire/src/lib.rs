//! **Thinwire**: Adam over thin wires.
//!
//! Data-parallel training sends the gradient, 32 bits a parameter, at every step. The optimizers here send about a bit when
//! they send, and 0/1 Adam can leave out half of the rounds and more: **0/1 Adam** (arXiv 2202.06009),
//! **1-bit Adam** (arXiv 2102.02888) and **Efficient-Adam** (arXiv 2205.14473), with Adam itself as the baseline. **Local Adam** sends once in
//! many steps what these have come to: DiLoCo (arXiv 2311.08105) and its relatives. **Lion** (arXiv 2404.00438) and **Birder** vote on the
//! sign of a step. **1-bit LAMB** (arXiv 2104.06069) is for large batches.
//!
//! They are all an update rule plus one primitive: *average a vector over all workers, compressed on the way up and on the way down,
//! with error feedback on each side*. [`Mean`] offers that primitive by itself. A [`Worker`] is what a
//! program holds:
//!
//! ```
//! use thinwire::{Config, Worker, ZeroOneAdam, threads};
//!
//! let ends = threads::run(4, |group| {
//!     let config = Config::of(ZeroOneAdam { sync_every: Some(4), ..Default::default() });
//!     let mut x = vec![1.0_f32; 1000];
//!     let mut worker = Worker::new(&config, &x, Box::new(group))?;
//!     for _ in 0..1000 {
//!         let gradient = x.clone(); // of ‖x‖²/2
//!         worker.step(&mut x, &gradient, 0.02)?;
//!     }
//!     worker.sync(&mut x)?;
//!     Ok::<_, thinwire::Error>((x[0].abs(), worker.traffic().rounds))
//! });
//! for end in ends {
//!     let (distance, rounds) = end?;
//!     assert!(distance < 0.1 && rounds.skipped > rounds.coarse);
//! }
//! # Ok::<(), thinwire::Error>(())
//! ```
//!
//! The engine never prints, reads no clock but for deadlines and phase times, and draws no
//! randomness; no codec remembers, no schedule counts, no optimizer counts bytes, no step allocates.

#![deny(unsafe_code)]
#![deny(missing_docs)]

#[cfg(target_endian = "big")]
compile_error!("messages and checkpoints are little-endian, and so must the machine be");

// In reading order.
mod error;
pub mod state;
mod schedule;
mod kernel;
mod codec;
mod machine;
mod guard;
mod transport;
mod exchange;
mod mean;
mod config;
mod optim;
mod settings;
mod plan;
mod checkpoint;
mod worker;

pub use checkpoint::Checkpoint;
pub use codec::CodecName;
pub use config::{Config, Name};
pub use error::{Error, Fault, Result};
pub use machine::{Gradient, Pieces};
pub use mean::{Mean, MeanOptions};
pub use optim::{Adam, Birder, EfficientAdam, Lion, LocalAdam, OneBitAdam, OneBitLamb, ZeroOneAdam};
pub use plan::Plan;
pub use schedule::{LearningRate, Round};
#[cfg(feature = "mpi")]
pub use transport::mpi;
pub use transport::{Collective, Sharded, Solo, Traffic, threads};
pub use worker::Worker;

/// The values that options take, beyond numbers and codecs.
pub mod options {
    pub use crate::codec::Precision;
    pub use crate::config::{Hierarchy, NonFinite, Outlier};
    pub use crate::exchange::layout::Topology;
    pub use crate::machine::Group;
    pub use crate::optim::{Freeze, Outer, Sync, Theta, Variance, Warmup};
    pub use crate::schedule::Decay;
}

/// What [`Plan`] and [`Traffic`] count.
pub mod counts {
    pub use crate::plan::{Load, Memory};
    pub use crate::transport::{Jump, Rounds, Seconds};
}

/// A device of your own: memory that is not the host's, and loops over it, for [`Worker::on_device`].
pub mod device {
    pub use crate::kernel::update::{OuterStep, Scalars, Sent, Since};
    pub use crate::machine::{Call, Coded, Coder, Device, Feedback, Input, Number, Refused, Room, Sum, Which};
}

/// What the other crates of this workspace, tests and benches use of the inside. It may change with every version.
#[doc(hidden)]
pub mod inside {
    pub use crate::optim::table::{Algorithm, Optimizers, Options, Row};
    pub use crate::settings::Settings;

    macro_rules! modules {
        ($($name:ident)*) => {
            $(pub mod $name { pub use crate::$name::*; })*
        };
    }
    modules! { checkpoint codec exchange guard kernel machine optim schedule state }
}
