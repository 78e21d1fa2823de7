//! The messages and the service of `proto/run.proto`, as Rust: generated, and kept here so that a build needs no compiler for it.
//! `tests/proto.rs` holds the one to the other, and writes the new one beside it when they differ.

include!("proto/thinwire.v1.rs");
