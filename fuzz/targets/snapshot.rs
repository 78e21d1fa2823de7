//! A server's snapshots, and what is a worker's own.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_fuzz::state::snapshot(bytes));
