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
#[cfg(feature = "mpi")]
mod mpi;
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
