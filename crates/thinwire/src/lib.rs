//! **Thinwire**: Adam over thin wires.
//!
//! Data-parallel training sends the gradient, 32 bits a parameter, at every step. The optimizers here send about a bit when
//! they send, and 0/1 Adam can leave out half of the rounds and more: **0/1 Adam** (arXiv 2202.06009),
//! **1-bit Adam** (arXiv 2102.02888) and **Efficient-Adam** (arXiv 2205.14473), with Adam itself as the baseline.
//!
//! They are all Adam plus one primitive: *average a vector over all workers, coded on the way up and on the way down, with a
//! residue remembered on each side*. That primitive is [`exchange`]; [`schedule`] says at which steps; an [`optimizer`] says of
//! what. A [`Worker`] is what a program holds:
//!
//! ```
//! use thinwire::{Config, Name, Worker, threads};
//!
//! let ends = threads::run(4, |group| {
//!     let config = Config { sync_every: Some(4), ..Config::new(Name::ZeroOneAdam) };
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
//! The modules, in reading order. The engine never prints, reads no clock but for deadlines and phase times, and draws no
//! randomness; no codec remembers, no schedule counts, no optimizer counts bytes, no step allocates.

#![deny(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("messages and checkpoints are little-endian, and so must the machine be");

pub mod error;
pub mod schedule;
pub mod codec;
pub mod kernel;
pub mod memory;
pub mod residue;
pub mod tiles;
pub mod gradient;
pub mod hosts;
pub mod layout;
pub mod message;
pub mod collective;
pub mod exchange;
pub mod groups;
pub mod optimizer;
pub mod config;
pub mod plan;
pub mod checkpoint;
pub mod worker;

pub use checkpoint::Checkpoint;
pub use codec::CodecName;
#[cfg(feature = "mpi")]
pub use collective::mpi;
pub use collective::{Collective, Jump, Solo, Traffic, threads};
pub use config::{Config, Name};
pub use error::{Error, Result};
pub use gradient::{Gradient, Pieces};
pub use memory::Floats;
pub use plan::Plan;
pub use schedule::LearningRate;
pub use worker::Worker;
