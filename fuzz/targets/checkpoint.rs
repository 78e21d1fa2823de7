//! Checkpoints: the manifest and the files of workers.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_fuzz::state::checkpoint(bytes));
