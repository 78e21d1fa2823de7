//! The engine's tests from outside, one module a promise. One program: linking the engine once is most of what building them takes.
//!
//! `no_allocation.rs` is a program of its own, because it counts what the whole process allocates.

mod common;
mod laws;

mod battery;
mod clip;
mod config;
mod faults;
mod feedback;
mod foreign_device;
mod golden_adamw;
mod identities;
mod lamb;
mod late;
mod late_zero_one;
mod local_adam;
mod mean;
mod mean_on_hosts;
mod mean_refused;
mod non_finite;
mod old_files;
mod oracle;
mod oracle_itself;
mod outliers;
mod pieces;
mod pinned;
mod pinned_payloads;
mod problems_itself;
mod rare_tokens;
mod reduces_to_adam;
mod regroup;
mod replicas_agree;
mod restore;
mod resume;
mod schedules;
mod served;
mod shards;
mod signs;
mod signs_oracle_itself;
mod simulated;
mod tidy;
mod traffic;
mod twins;
mod weights;

/// What the engine's `threads.rs`, which `simulated` compiles once more, finds in its own crate.
mod error {
    pub use thinwire::{Error, Result};
}
