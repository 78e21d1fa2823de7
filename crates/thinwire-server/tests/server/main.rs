//! A server and its workers, over loopback.

mod helper;
mod same_bits;
