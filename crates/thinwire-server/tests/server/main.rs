//! A server and its workers, over loopback.

mod away;
mod campaign;
mod helper;
mod lives;
mod process;
mod same_bits;
mod trust;
mod wire;
