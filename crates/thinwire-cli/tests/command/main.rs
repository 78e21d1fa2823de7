//! The command as people use it: the real binary, in folders of its own, judged by what it prints and leaves behind.

mod helper;
mod bad_input;
mod compare;
mod config;
mod export;
mod finetune;
mod generate;
mod inspect;
mod launchers;
mod order;
mod pages;
mod plan;
mod probe;
mod report;
mod schemas;
#[cfg(feature = "server")]
mod server;
mod stop;
mod train;
#[cfg(feature = "mpi")]
#[path = "mpi.rs"]
mod under_mpi; // ./check picks these tests out by the name
