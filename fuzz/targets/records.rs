//! Records of a server's log, and the inputs of rounds.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_fuzz::files::records(bytes));
