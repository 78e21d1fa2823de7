//! The command `thinwire`: trains real networks with the engine, compares optimizers, and shows what came of it.
//!
//! | module | what it knows |
//! |---|---|
//! | [`arguments`] | the command line |
//! | [`settings`] | what was asked for: a TOML file, then flags |
//! | [`run_spec`] | the run that follows: every default filled in, every value checked |
//! | [`defaults`] | which optimizer runs, and which `compare` runs |
//! | [`job`] | from a decided run to a task: the data is read, the network is made |
//! | [`data`] | what was read, and what of it is cut, for people |
//! | [`training`] | the loop that trains, for workers of a group and for workers of a server |
//! | [`folder`] | the folder of a run: its lock, and what is in it already |
//! | [`resume`] | how a run goes on, and what must be as it was |
//! | [`signals`] | Ctrl-C and SIGTERM |
//! | [`launch`] | where the workers are: threads, or processes that mpirun or srun started |
//! | [`journal`] | what a run writes while it goes, and reads when it goes on |
//! | [`saved`], [`names`] | a trained network on disk, and the names of its tensors |
//! | [`language`] | a trained gpt, with its tokenizer and without its data |
//! | [`tensorboard`] | event files |
//! | [`conclusion`] | the lines at the end of a run |
//! | [`files`] | files that are there whole or not at all |
//! | [`train`], [`compare`], [`plan`], [`probe`], [`bench`], [`serve`], [`join`], [`inspect`], [`generate`], [`export`], [`pages`] | the commands; `report` is [`thinwire_report`] |
//!
//! Standard output carries what was asked for: one JSON object with `--json`, else the tables and the advice of `plan`, `bench`, `probe`
//! and `compare`. Standard error carries everything else. Exit codes: 0 done, 2 bad usage
//! or input, 1 a run that failed, 130 interrupted, after its checkpoint is written.

mod arguments;
mod bench;
mod compare;
mod conclusion;
mod data;
mod defaults;
mod export;
mod failure;
mod files;
mod folder;
mod generate;
mod inspect;
mod job;
#[cfg(feature = "server")]
mod join;
mod journal;
mod language;
mod launch;
#[cfg(feature = "server")]
mod logging;
mod names;
mod pages;
mod plan;
mod probe;
mod resume;
mod run_spec;
mod saved;
mod screen;
#[cfg(feature = "server")]
mod serve;
mod settings;
mod signals;
mod tensorboard;
mod train;
mod training;

use arguments::{Arguments, Command};
use clap::Parser;
use failure::{Failure, Outcome};
use launch::Team;
use screen::say;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            match launch::rank_by_environment().unwrap_or(0) {
                0 => {
                    let _ = error.print();
                }
                // --help is no error, and one answer is enough.
                rank if error.use_stderr() && launch::outlives_the_first() => eprint!("worker {rank}: {error}"),
                _ => {}
            }
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    match &arguments.command {
        Command::Train(arguments) => together(&arguments.common.transport, |team| train::command(arguments, team)),
        Command::Compare(arguments) => together(&arguments.common.transport, |team| compare::command(arguments, team)),
        Command::Probe(arguments) => together(&arguments.transport, |team| probe::command(arguments, team)),
        Command::Plan(arguments) => ended(plan::command(arguments), None),
        Command::Bench(arguments) => ended(bench::command(arguments), None),
        #[cfg(feature = "server")]
        Command::Serve(arguments) => ended(serve::command(arguments), None),
        #[cfg(feature = "server")]
        Command::Join(arguments) => ended(join::command(arguments), None),
        #[cfg(not(feature = "server"))]
        Command::NoServer { .. } => {
            let missing = "this thinwire was built without the parameter server; build it with --features server, which is the default";
            ended(Err(Failure::Usage(anyhow::anyhow!(missing))), None)
        }
        Command::Inspect(arguments) => ended(inspect::command(arguments), None),
        Command::Generate(arguments) => ended(generate::command(arguments), None),
        Command::Export(arguments) => ended(export::command(arguments), None),
        Command::Completions(arguments) => ended(pages::completions(arguments), None),
        Command::Man(arguments) => ended(pages::man(arguments), None),
        Command::Report(arguments) => ended(report_command(arguments), None),
    }
}

/// Runs `work` with the workers that `transport` and the launcher make a team of.
fn together(transport: &Option<String>, work: impl FnOnce(&Team) -> Outcome) -> ExitCode {
    let team = match Team::of(transport.as_deref()) {
        Ok(team) => team,
        // What is wrong with these is wrong for all of them, and the first says so.
        Err(Failure::Usage(_)) if launch::rank_by_environment().is_some_and(|rank| rank > 0) => {
            return ExitCode::from(2);
        }
        Err(failure) => return ended(Err(failure), launch::rank_by_environment()),
    };
    let outcome = work(&team);
    // After a run that failed the others may be anywhere; and a launcher that was told to stop waits for nobody.
    let together = matches!(outcome, Ok(()) | Err(Failure::Usage(_) | Failure::Told(2)));
    let code = ended(outcome, team.rank());
    if together {
        team.end();
    }
    code
}

fn ended(outcome: Outcome, rank: Option<usize>) -> ExitCode {
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    match (&failure, rank) {
        (Failure::Told(_), _) | (Failure::Interrupted(_), Some(1..)) => {}
        (Failure::Run(_), Some(rank)) => say!("worker {rank}: {failure}"),
        _ => say!("{failure}"),
    }
    if rank.is_some() {
        std::thread::sleep(LAST_LINE); // a launcher that ends a run does not read on for ever
    }
    failure.exit_code()
}

/// What mpirun needs to pass on what a process has just said.
const LAST_LINE: std::time::Duration = std::time::Duration::from_millis(200);

fn report_command(arguments: &arguments::Report) -> Outcome {
    let runs = thinwire_report::find(&arguments.dirs).map_err(Failure::usage)?;
    let out = arguments.out.clone().unwrap_or_else(|| arguments.dirs[0].join("report.html"));
    let written = thinwire_report::write(&runs, &out, arguments.bandwidth).map_err(Failure::usage)?;
    for warning in runs.iter().flat_map(|run| &run.warnings) {
        say!("warning: {warning}");
    }
    let plural = if runs.len() == 1 { "" } else { "s" };
    say!("{} run{plural} → {} (and {} plots beside it)", runs.len(), out.display(), written.len() - 1);
    Ok(())
}
