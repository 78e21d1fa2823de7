//! The locks and the clock of [`threads`](super::threads): std's.
//!
//! They have a module of their own because the tests compile `threads.rs` a second time, beside locks and a clock that a seeded
//! scheduler decides about (`tests/it/simulated/transport/sync.rs`).

pub use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

pub fn now() -> Instant {
    Instant::now()
}
