//! A server's append-only files.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_fuzz::files::frames(bytes));
