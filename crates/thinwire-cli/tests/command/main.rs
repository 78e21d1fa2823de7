//! The command as people use it: the real binary, in folders of its own, judged by what it prints and leaves behind.

mod helper;
mod bad_input;
mod compare;
mod config;
mod finetune;
mod launchers;
#[cfg(feature = "mpi")]
mod mpi;
mod plan;
mod probe;
mod report;
#[cfg(feature = "server")]
mod server;
mod stop;
mod train;
