//! `thinwire join`: a worker of a server, for the tasks of `train`.
//!
//! The server says what runs; this worker has the data, computes, and follows. It leaves what `train` leaves, of its own steps.

use crate::arguments::Join;
use crate::conclusion;
use crate::failure::{Failure, Outcome};
use crate::files;
use crate::folder::{self, Content};
use crate::job::Job;
use crate::journal::Journal;
use crate::logging;
use crate::run_spec::RunSpec;
use crate::screen::{Screen, print, say};
use crate::serve::{quoted, token};
use crate::settings::Settings;
use crate::signals::STOP;
use crate::train::{self, write_report, write_settings};
use crate::training::member::Served;
use crate::training::{self, Batches, End, Start};
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use thinwire_models::{Score, Share};
use thinwire_report as report;
use thinwire_report::Summary;
use thinwire_report::numbers::short;
use thinwire_server::certificate;
use thinwire_server::{Interrupter, JoinOptions, Membership, RemoteGroup};
use tracing_subscriber::filter::LevelFilter;

/// How long a worker that is told to stop waits for the round that it is in, while the server is in reach.
const LAST_ROUND: Duration = Duration::from_secs(5);

pub fn command(arguments: &Join) -> Outcome {
    let there = arguments.out.as_deref().filter(|out| out.is_dir());
    let mut held = there.map(folder::lock).transpose().map_err(Failure::Usage)?;
    let saved = arguments.out.as_ref().filter(|_| !arguments.overwrite).map(|out| out.join("checkpoint"));
    let back = saved.as_deref().and_then(Membership::read);
    // Killed while it wrote its first checkpoint: there is nothing to go on from but its name.
    let begun = saved.as_deref().and_then(Membership::begun).map(|begun| begun.name);
    let options = options(arguments, back.as_ref(), begun).map_err(Failure::Usage)?;
    let name = options.name.clone();
    logging::start(if arguments.quiet { LevelFilter::ERROR } else { LevelFilter::INFO }, false);
    if !arguments.quiet {
        say!("joining {} as {name} …", arguments.server);
    }
    let group = RemoteGroup::join(options).map_err(|error| match error {
        error @ thinwire_server::Error::Unreachable { .. } => Failure::run(error),
        error => Failure::Usage(error.into()),
    })?;
    let job = job(arguments, &group).map_err(Failure::Usage)?;
    let named = || PathBuf::from("runs").join(format!("{}-{}-{name}", job.spec.task.name(), job.spec.called()));
    let dir = arguments.out.clone().unwrap_or_else(named);
    if held.is_none() {
        held = Some(folder::lock(&dir).map_err(Failure::Usage)?);
    }
    if back.is_none() {
        prepare(&dir, arguments.overwrite).map_err(Failure::Usage)?;
    }
    write_settings(&job, &dir).map_err(Failure::Run)?;
    let (slot, workers) = (group.slot(), group.workers());
    let checkpoint = dir.join("checkpoint");
    let (member, params) = match &back {
        Some(_) => group.resume(&checkpoint),
        None => group.start(),
    }
    .map_err(Failure::run)?;
    if !arguments.quiet {
        let again = if back.is_some() { "back again: " } else { "" };
        let here = member.steps();
        say!(
            "{again}{} of {} parameters, worker {slot} of {workers}, from step {here} of {}, {} at learning rate {} → {}",
            job.spec.task.name(),
            short(params.len() as f64),
            member.group().steps(),
            report::shown(job.spec.called()),
            job.spec.lr,
            dir.display()
        );
        crate::data::announce(&job);
    }
    let first = member.steps();
    let journal = if back.is_some() { Journal::go_on(&dir, first) } else { Journal::create(&dir) };
    let journal = Some(journal.map_err(Failure::Run)?);
    let (task, &RunSpec { batch, accumulate, .. }) = (job.task.get(), &job.spec);
    let units = task.units(batch) * accumulate as usize;
    let screen = Some(Screen::new(arguments.quiet, first, member.group().steps(), units, task.unit()));
    let checkpoint_every = arguments.checkpoint_every.unwrap_or(job.spec.checkpoint_every);
    // Whoever comes beyond the workers that the run is made for shares someone's data.
    let share = Share { rank: slot % workers, workers };
    end_with_signal(member.interrupter());
    let mut served = Served { member, checkpoint, stop: &STOP };
    let batches = Batches::random();
    let start = Start { job: &job, share, params, journal, screen, units, checkpoint_every, batches, stop: &STOP };
    let end = training::run(&mut served, start).map_err(Failure::Run)?;
    let Some(score) = &end.score else { return Err(interrupted(served, &dir, arguments)) };
    let summary = summary(&job, workers, &end, score);
    let text = serde_json::to_string_pretty(&summary).map_err(Failure::run)?;
    files::write(&dir.join("summary.json"), &(text + "\n")).map_err(Failure::Run)?;
    served.member.leave();
    let page = write_report(std::slice::from_ref(&dir), &dir)?;
    if !arguments.quiet {
        conclusion::of_member(&job, &summary, &end.params, &dir, &page);
    }
    if arguments.json {
        print(&summary)?;
    }
    drop(held);
    Ok(())
}

fn options(arguments: &Join, back: Option<&Membership>, begun: Option<String>) -> anyhow::Result<JoinOptions> {
    let port = arguments.server.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    ensure!(port.is_some(), "invalid {}: expected HOST:PORT (for example 192.0.2.7:7070)", arguments.server);
    // A server with --client-ca knows a worker by the name in its certificate.
    let certified = arguments.cert.as_deref().map(certificate::name).transpose()?.flatten();
    let name = match (&arguments.name, back) {
        (Some(name), Some(back)) => {
            ensure!(*name == back.name, "invalid --name {name}: expected {}, whose checkpoint is in --out", back.name);
            name.clone()
        }
        (Some(name), None) => name.clone(),
        (None, Some(back)) => back.name.clone(),
        (None, None) => match begun.or(certified) {
            Some(name) => name,
            None => format!("{}-{}", host().unwrap_or("worker".to_owned()), std::process::id()),
        },
    };
    Ok(JoinOptions {
        run: back.map(|back| back.run.clone()),
        token: arguments.token_file.as_deref().map(token).transpose()?,
        ca: arguments.ca.clone(),
        identity: arguments.cert.clone().zip(arguments.key.clone()),
        server_name: arguments.server_name.clone(),
        patience: Duration::from_secs(arguments.patience),
        ..JoinOptions::new(&arguments.server, name)
    })
}

/// This machine's name, as far as a worker's name may have it.
pub fn host() -> Option<String> {
    let named = std::fs::read_to_string("/etc/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    let named = named.or_else(|| std::env::var("COMPUTERNAME").ok()).unwrap_or_default();
    let kept = named.trim().chars().filter(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(*letter)).take(40);
    let kept = kept.collect::<String>();
    (!kept.is_empty()).then_some(kept)
}

/// The job that the server has, with this machine's files.
fn job(arguments: &Join, group: &RemoteGroup) -> anyhow::Result<Job> {
    let foreign = || {
        let (task, version) = (group.job().lines().next().unwrap_or_default(), env!("CARGO_PKG_VERSION"));
        format!("thinwire {version} does not know the server's task `{task}`; start both sides with the same version")
    };
    let mut settings = toml::from_str::<Settings>(group.job()).with_context(foreign)?;
    settings.data = arguments.data.clone();
    settings.finetune = arguments.finetune.clone();
    settings.finetune_eval = arguments.finetune_eval.clone();
    settings.tokenizer_files = arguments.tokenizer_files.clone();
    let expected = settings.data_digest.take();
    let job = Job::new(settings)?;
    let found = &job.found.data;
    ensure!(
        expected.as_ref().is_none_or(|expected| expected == found),
        "data: expected what the server has (digest {}), found another (digest {found}); give the same by --data (or --finetune)",
        expected.unwrap_or_default()
    );
    let version = env!("CARGO_PKG_VERSION");
    ensure!(
        job.config == *group.config(),
        "optimizer: expected the options that the server has, found others: thinwire {version} reads its settings differently; start \
         both sides with the same version"
    );
    let (found, expected) = (job.task.get().tensors().len(), group.parameters());
    ensure!(found == expected, "network: expected {expected} parameters, as the server has, found {found}");
    Ok(job)
}

fn prepare(dir: &Path, overwrite: bool) -> anyhow::Result<()> {
    let content = match Content::of(dir) {
        // A checkpoint that was never finished is nothing that anyone could go on from.
        Content::Unfinished if !Membership::is_complete(&dir.join("checkpoint")) => "no",
        Content::Nothing => "no",
        Content::Unfinished => "an unfinished",
        Content::Finished => "a finished",
    };
    ensure!(
        overwrite || content == "no",
        "{} holds {content} run; take another folder by --out, or start over by --overwrite",
        dir.display()
    );
    folder::empty(dir)
}

/// Leaves the run, and says how to come back.
fn interrupted(served: Served<'_>, dir: &Path, arguments: &Join) -> Failure {
    let (done, steps) = (served.member.steps(), served.member.group().steps());
    served.member.leave();
    Failure::Interrupted(format!(
        "interrupted after {done} of {steps} steps; the others go on. This worker's checkpoint is in {}\n\
         to come back:  thinwire join {} --out {}{}",
        served.checkpoint.display(),
        arguments.server,
        quoted(&dir.display().to_string()),
        files_again(arguments)
    ))
}

fn summary(job: &Job, workers: usize, end: &End, score: &Score) -> Summary {
    let (totals, values) = (&end.totals, end.params.len() as f64);
    Summary {
        transport: "server".to_owned(),
        steps: end.steps,
        jumps: end.jumps,
        outliers: end.outliers,
        bytes_between_hosts_per_worker: totals.bytes.round() as u64,
        // One way: what comes down from the server is as much again.
        bits_per_param_per_step: totals.bytes * 8.0 / (values * totals.steps.max(1) as f64),
        units_per_second: end.units_per_second,
        ..train::results(job, workers, &end.params, totals, score)
    }
}

/// The files that this worker was given, as flags.
fn files_again(arguments: &Join) -> String {
    let files = [
        ("--data", &arguments.data),
        ("--finetune", &arguments.finetune),
        ("--finetune-eval", &arguments.finetune_eval),
        ("--tokenizer-files", &arguments.tokenizer_files),
        ("--ca", &arguments.ca),
        ("--cert", &arguments.cert),
        ("--key", &arguments.key),
        ("--token-file", &arguments.token_file),
    ];
    let flag = |(flag, path): &(&str, &Option<PathBuf>)| {
        path.as_ref().map(|path| format!(" {flag} {}", quoted(&path.display().to_string())))
    };
    files.iter().filter_map(flag).collect()
}

/// After Ctrl-C ends a wait for a round that does not come.
fn end_with_signal(interrupter: Interrupter) {
    let watch = move || {
        let mut told = None;
        while told.is_none_or(|told: Instant| told.elapsed() < LAST_ROUND && !interrupter.is_away()) {
            std::thread::sleep(Duration::from_millis(50));
            if STOP.load(Ordering::Relaxed) {
                told.get_or_insert_with(Instant::now);
            }
        }
        interrupter.interrupt();
    };
    std::thread::spawn(watch);
}
