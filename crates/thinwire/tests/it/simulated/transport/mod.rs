//! The engine's own `threads.rs`, compiled beside a scheduler's locks and clock.

#[allow(dead_code)] // what only programs call
#[path = "../../../../src/transport/threads.rs"]
pub mod threads;

pub mod scheduler;
mod sync;

use thinwire::Collective;
