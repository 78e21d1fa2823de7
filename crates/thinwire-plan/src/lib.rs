//! Whether compressed Adam will help on your network, before anything runs: what `thinwire plan` answers, as a library.
//!
//! A [`Question`] has what the flags of the command say, and its [`Answer`] what `--json` prints: for AdamW under PyTorch's DDP, Adam,
//! 1-bit Adam, 0/1 Adam and Efficient-Adam the rounds, bytes and memory, counted, and the time of a step, by a model that
//! docs/planning.md derives.
//!
//! ```
//! use thinwire_plan::Question;
//!
//! let question = Question {
//!     params: Some(110_000_000),
//!     workers: Some(16),
//!     bandwidth: Some(1e9), // bits a second of each worker's link
//!     compute: Some(0.3),   // seconds of forward and backward
//!     without_packing: true, // else it is measured now, which takes seconds
//!     ..Question::default()
//! };
//! let answer = question.answer()?;
//! assert_eq!(answer.recommendation.method, "0/1 Adam");
//! let step = |name| answer.methods.iter().find(|method| method.name == name).map(|method| method.step_seconds);
//! assert!(step("0/1 Adam") < step("DDP f32"));
//!
//! // The same in the words of the command, numbers with their units, and the answer as it prints it.
//! let words = r#"{"params": "110M", "workers": 16, "bandwidth": "1Gb/s", "compute": "300ms", "without_packing": true}"#;
//! assert_eq!(Question::from_json(words)?.answer()?.to_json(), answer.to_json());
//! # Ok::<(), thinwire_plan::Error>(())
//! ```
//!
//! The texts of an answer are the command's, and name its flags: `--without-packing` is [`Question::without_packing`].

#![forbid(unsafe_code)]
#![deny(missing_docs)]

// In reading order: numbers, what is compared, what is measured, the model, the question and its answer.
mod error;
pub mod units;
mod random;
mod sample;
mod tensors;
mod methods;
mod presets;
mod length;
mod kernels;
mod steps;
mod message;
mod bench;
mod probe;
mod network;
mod device;
mod cost;
mod packing;
mod ddp;
mod comparison;
mod simulate;
mod advice;
mod question;
mod words;
mod check;
mod needed;
mod place;
mod deepspeed;
mod situation;
mod estimates;
mod answer;
mod plot;
mod run;

#[cfg(test)]
mod tests;

pub use advice::{Advice, Pays};
pub use answer::{Answer, ByRound, Forecast};
pub use device::Device;
pub use error::{Error, Result};
pub use network::Network;
pub use presets::Preset;
pub use question::{Beside, Measure, Measured, Question};
pub use simulate::Simulated;

/// The files that a plan reads: what `thinwire bench --json` and `thinwire probe --json` print.
pub mod files {
    pub use crate::bench::Benched;
    pub use crate::kernels::{CodecSpeed, Kernel};
    pub use crate::probe::{EXACT_F32, Mean, Pair, Probed};
    pub use crate::steps::StepCost;
}

/// What the command uses of the inside. It may change with every version.
#[doc(hidden)]
pub mod inside {
    pub use crate::bench::{codecs, cores, measure};
    pub use crate::length::short_run;
    pub use crate::methods::is_measured;
    pub use crate::network::{Links, read as read_network};
    pub use crate::question::{CODECS, MOST_STEPS, MOST_WORKERS};
    pub use crate::run::planned;
    pub use crate::sample::vector;
    pub use crate::tensors::head;
}
