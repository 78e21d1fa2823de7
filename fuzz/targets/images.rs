//! IDX and CIFAR.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thinwire_fuzz::data::images(bytes));
