//! A server's residual and its JSON files.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_fuzz::files::small(bytes));
