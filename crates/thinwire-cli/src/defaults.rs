//! Choices that are ours: what runs if nobody says. No other file names an optimizer, but
//! for the settings that papers and DeepSpeed have for one (`plan/presets.rs`, `plan/deepspeed.rs`).

use thinwire::Name;

/// What `train` runs.
pub const OPTIMIZER: Name = Name::ZERO_ONE_ADAM;

/// What `compare` runs.
pub const COMPARED: [Name; 4] = [Name::ADAM, Name::ONE_BIT_ADAM, Name::ZERO_ONE_ADAM, Name::EFFICIENT_ADAM];

/// What `serve` runs: it was designed for parameter servers.
#[cfg(feature = "server")]
pub const SERVED: Name = Name::EFFICIENT_ADAM;

/// Workers, where nothing else decides how many there are.
pub const WORKERS: usize = 4;
