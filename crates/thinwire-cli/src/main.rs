//! The command `thinwire`: trains real networks with the engine, compares optimizers, and shows what came of it.
//!
//! | module | what it knows |
//! |---|---|
//! | [`arguments`] | the command line |
//! | [`settings`] | everything that makes a run: defaults, then a TOML file, then flags |
//! | [`job`] | from settings to a task: the network, its data, its recommended learning rates |
//! | [`session`] | the loop that trains, of one worker of a group |
//! | [`journal`] | what a run writes while it goes, and reads when it goes on |
//! | [`train`], [`compare`], [`report`] | the commands |
//!
//! Standard output carries results (`--json`), standard error everything else. Exit codes: 0 done, 2 bad usage
//! or input, 1 a run that failed, 130 interrupted, after its checkpoint is written.

mod arguments;
mod compare;
mod failure;
mod job;
mod journal;
mod record;
mod report;
mod screen;
mod session;
mod settings;
mod train;

use arguments::{Arguments, Command};
use clap::Parser;
use failure::{Failure, Outcome};
use screen::say;
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Train(arguments) => train::command(&arguments),
        Command::Compare(arguments) => compare::command(&arguments),
        Command::Report(arguments) => report_command(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say!("{failure}");
            failure.exit_code()
        }
    }
}

fn report_command(arguments: &arguments::Report) -> Outcome {
    let runs = report::find(&arguments.dirs).map_err(Failure::Usage)?;
    let out = arguments.out.clone().unwrap_or_else(|| arguments.dirs[0].join("report.html"));
    let written = report::write(&runs, &out, arguments.bandwidth).map_err(Failure::Usage)?;
    let plural = if runs.len() == 1 { "" } else { "s" };
    say!("{} run{plural} → {} (and {} plots beside it)", runs.len(), out.display(), written.len() - 1);
    Ok(())
}
