//! `thinwire train`: one run, from its settings to its summary.

use crate::arguments::{Common, Train};
use crate::conclusion;
use crate::data;
use crate::failure::{Failure, Outcome};
use crate::files;
use crate::folder::{self, Content, Held};
use crate::job::Job;
use crate::journal::Totals;
use crate::launch::Team;
use crate::names;
use crate::resume::{self, Resumed};
use crate::run_spec::RunSpec;
use crate::screen::{print, say};
use crate::settings::Settings;
use crate::signals::STOP;
use crate::tensorboard;
use crate::training::End;
use crate::training::group::Session;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thinwire::Plan;
use thinwire_models::Score;
use thinwire_plan::inside;
use thinwire_report as report;
use thinwire_report::numbers::short;
use thinwire_report::{Planned, Projection, Summary, projected};
use xxhash_rust::xxh3::xxh3_64;

/// Links that times are projected to, in bits a second.
pub const LINKS: [f64; 3] = [1e8, 1e9, 1e10];

pub fn command(arguments: &Train, team: &Team) -> Outcome {
    let flags = &arguments.common;
    // Before anything in it is read: another run may be about to change it.
    let resumed = arguments.resume.as_ref().map(|dir| hold_again(dir, team)).transpose()?;
    let (job, initial, (dir, _held)) = match (&arguments.resume, resumed) {
        (Some(dir), Some(held)) => {
            let resumed = team.agree(resumed_from(arguments, dir, team).map_err(Failure::Usage))?;
            if resumed.instead_of.is_some() {
                team.everywhere(|| resumed.relabel(dir).map_err(Failure::Run))?;
                if team.leads() && !flags.quiet {
                    resumed.tell();
                }
            }
            (resumed.job, None, (dir.clone(), held))
        }
        _ => {
            let (job, initial) = team.agree(make(arguments, team).map_err(Failure::Usage))?;
            let place = started(&job, flags, team)?;
            (job, Some(initial), place)
        }
    };
    let Some((summary, params)) = run(&job, &dir, initial.as_deref(), flags, team)? else { return Ok(()) };
    let page = write_report(std::slice::from_ref(&dir), &dir)?;
    if !flags.quiet {
        conclusion::of_group(&job, &summary, &params, &dir, &page).map_err(Failure::Run)?;
    }
    if flags.json {
        print(&summary)?;
    }
    Ok(())
}

/// Locks the folder of a run that goes on; one that is not there is for [`resume::resume`] to refuse, and not to be made.
pub fn hold_again(dir: &Path, team: &Team) -> Outcome<Vec<Held>> {
    let there = team.as_worker_0_sees(dir.is_dir())?;
    if there { folder::hold(&[dir.to_owned()], team) } else { Ok(Vec::new()) }
}

/// The folder of a run that begins: locked, and empty.
fn started(job: &Job, flags: &Common, team: &Team) -> Outcome<(PathBuf, Vec<Held>)> {
    let dir = match &job.spec.out {
        Some(out) => out.clone(),
        None if flags.overwrite => usual_folder(job),
        None => folder::free(usual_folder(job), |dir| Content::of(dir) == Content::Finished, team)?,
    };
    let dirs = [dir];
    let held = folder::hold(&dirs, team)?;
    folder::prepare(job, &dirs, flags.overwrite, team)?;
    let [dir] = dirs;
    Ok((dir, held))
}

/// The run that goes on in `dir`.
fn resumed_from(arguments: &Train, dir: &Path, team: &Team) -> anyhow::Result<Resumed> {
    let flags = &arguments.common;
    resume::only_resumes(&Common { steps: None, ..flags.clone() }, dir, arguments.optimizer.is_some())?;
    resume::resume(flags, dir, team)
}

/// The job, and the parameters to start from.
fn make(arguments: &Train, team: &Team) -> anyhow::Result<(Job, Vec<f32>)> {
    let mut settings = Settings::of(&arguments.common)?;
    let name = match &arguments.optimizer {
        Some(name) => name.clone(),
        None => settings.called()?,
    };
    settings.set_name(&name).context("--optimizer")?;
    settings.check_only(&[name])?;
    settings.fit(team)?;
    let job = Job::new(settings)?;
    let initial = job.initial()?;
    Ok((job, initial))
}

/// Where a run leaves its results, if nobody says.
fn usual_folder(job: &Job) -> PathBuf {
    let task = job.spec.task.name();
    let tuned = if job.spec.finetune().is_some() { "-finetune" } else { "" }; // beside the run that it is made from
    PathBuf::from("runs").join(format!("{task}{tuned}-{}", job.spec.called()))
}

/// Trains from `initial`, or without it from the checkpoint in `dir`. Leaves config.toml, metrics.jsonl, summary.json and the
/// checkpoint there. The summary and the trained parameters are for the process that speaks for all.
pub fn run(
    job: &Job,
    dir: &Path,
    initial: Option<&[f32]>,
    flags: &Common,
    team: &Team,
) -> Outcome<Option<(Summary, Vec<f32>)>> {
    // Before the run, not at its end.
    let network = flags.network.as_deref().filter(|_| team.leads()).map(inside::read_network).transpose();
    team.agree(network.map(drop).map_err(Failure::Usage))?;
    team.same("data", &job.found.data)?;
    team.same("settings", &job.written().and_then(|settings| settings.common().to_toml()).map_err(Failure::Run)?)?;
    let resume = initial.is_none();
    let initial = initial.map_or_else(|| job.task.get().initial(0), <[f32]>::to_vec);
    // Also of a run that goes on: with other workers its settings are others.
    team.everywhere(|| write_settings(job, dir).map_err(Failure::Run))?;
    let quiet = flags.quiet || !team.leads();
    if !quiet {
        announce(job, initial.len(), dir, resume, team);
    }
    let deadline = Duration::from_secs(job.spec.deadline);
    let tensorboard = flags.tensorboard.as_ref();
    let tensorboard = tensorboard.map(|given| given.clone().unwrap_or_else(|| dir.join(tensorboard::FOLDER)));
    let session = Session { job, initial: &initial, dir, resume, stop: &STOP, quiet, tensorboard };
    let ends = team.run(job.spec.workers, job.spec.hosts(), deadline, |group| session.run(group));
    let mut ends = collect(ends).map_err(Failure::Run)?;
    let end = ends.swap_remove(0);
    let Some(score) = &end.score else {
        let steps = job.spec.steps;
        let when = match end.steps == steps {
            true => format!("interrupted in the last evaluation, after all {steps} steps"),
            false => format!("interrupted after {} of {steps} steps", end.steps),
        };
        return Err(Failure::Interrupted(format!(
            "{when}; the checkpoint is in {}\nto resume, bit for bit:  {}thinwire train --resume {}",
            dir.join("checkpoint").display(),
            team.launch(),
            dir.display(),
        )));
    };
    if !team.leads() {
        return Ok(None);
    }
    let mut summary = summary(job, &end, score, team);
    summary.planned = planned(job, &summary, flags, team);
    let text = serde_json::to_string_pretty(&summary).map_err(Failure::run)?;
    files::write(&dir.join("summary.json"), &(text + "\n")).map_err(Failure::Run)?;
    Ok(Some((summary, end.params)))
}

/// Every worker writes the file, for itself to resume from; where they share the folder they write the same.
pub fn write_settings(job: &Job, dir: &Path) -> anyhow::Result<()> {
    names::write(job.task.get().tensors(), dir)?;
    files::write(&dir.join("config.toml"), &job.written()?.kept().to_toml()?)
}

/// All ends, or the error that came first: the other workers only heard of it.
fn collect(ends: Vec<anyhow::Result<End>>) -> anyhow::Result<Vec<End>> {
    let heard = |error: &anyhow::Error| {
        matches!(error.downcast_ref(), Some(thinwire::Error::Aborted { .. } | thinwire::Error::Gone { .. }))
    };
    let (done, mut failed): (Vec<_>, Vec<_>) = ends.into_iter().partition(Result::is_ok);
    failed.sort_by_key(|end| end.as_ref().err().is_some_and(heard));
    match failed.into_iter().next() {
        Some(Err(error)) => Err(error),
        _ => done.into_iter().collect(),
    }
}

fn announce(job: &Job, params: usize, dir: &Path, resume: bool, team: &Team) {
    let RunSpec { task, workers, steps, lr, recommended, .. } = job.spec;
    let from = match recommended {
        true if job.is_measured() => "recommended for this task",
        true => "a guess: nobody has measured this optimizer on this task",
        false => "as given",
    };
    let again = if resume { "resuming: " } else { "" };
    say!(
        "{again}{} of {} parameters, {} workers on {}, {} steps, {} at learning rate {} ({}) → {}",
        task.name(),
        short(params as f64),
        workers,
        team.shown(),
        steps,
        report::shown(job.spec.called()),
        lr,
        if resume { "the run's" } else { from },
        dir.display(),
    );
    data::announce(job);
    if let Some(short) =
        Plan::new(&job.config, params, workers, steps).ok().and_then(|plan| inside::short_run(&job.config, &plan))
    {
        say!("note: {short}");
    }
}

fn summary(job: &Job, end: &End, score: &Score, team: &Team) -> Summary {
    let (workers, totals) = (job.spec.workers, &end.totals);
    let rounds = totals.rounds;
    // On two levels what stays inside a host crosses no link.
    let on_links = match totals.bytes_between_hosts {
        0.0 => totals.bytes,
        between => between,
    };
    let project = |bandwidth| Projection {
        bandwidth,
        seconds: projected(totals.compute_cpu, totals.seconds.pack, on_links, rounds.exact + rounds.coarse, bandwidth),
    };
    // A mean goes up and down, but for a worker's own part: 2·(n−1)/n times the bits that stand for a parameter.
    let ways = 2.0 * (workers as f64 - 1.0) / workers as f64;
    let per_step = on_links * 8.0 / (end.params.len() as f64 * totals.steps.max(1) as f64);
    Summary {
        transport: team.transport().to_owned(),
        steps: end.steps,
        jumps: end.jumps,
        outliers: end.outliers,
        bytes_between_hosts_per_worker: totals.bytes_between_hosts.round() as u64,
        bits_per_param_per_step: if ways > 0.0 { per_step / ways } else { 0.0 },
        units_per_second: end.units_per_second,
        projected: LINKS.map(project).to_vec(),
        ..results(job, workers, &end.params, totals, score)
    }
}

/// What a run came to, whatever its transport is; all else is empty.
pub fn results(job: &Job, workers: usize, params: &[f32], totals: &Totals, score: &Score) -> Summary {
    Summary {
        optimizer: job.spec.called().to_owned(),
        task: job.spec.task.name().to_owned(),
        transport: String::new(),
        workers,
        steps: 0,
        params: params.len(),
        seed: job.spec.seed,
        lr: job.spec.lr,
        train_loss: totals.train_loss(),
        val_loss: score.mean_loss(),
        accuracy: score.accuracy(),
        majority: score.majority(),
        matthews: score.matthews(),
        cut: data::cut(job),
        data_files: data::files(job),
        digest: format!("{:016x}", xxh3_64(bytemuck::cast_slice(params))),
        bytes_sent_per_worker: totals.bytes.round() as u64,
        bytes_between_hosts_per_worker: 0,
        bits_per_param_per_step: 0.0,
        rounds: totals.rounds,
        seconds: totals.seconds,
        compute_cpu: totals.compute_cpu,
        unit: job.task.get().unit().to_owned(),
        units_per_second: 0.0,
        projected: Vec::new(),
        planned: None,
        jumps: 0,
        outliers: 0,
    }
}

/// What the plan says of the run that was; none if only the run could tell, as with 1-bit Adam's `warmup = "auto"`.
fn planned(job: &Job, summary: &Summary, flags: &Common, team: &Team) -> Option<Planned> {
    let hosts = team.hosts_of(summary.workers, job.spec.hosts());
    let compute = summary.seconds.compute / summary.steps.max(1) as f64;
    let (threads, network) = (team.size().is_none(), flags.network.as_deref());
    let planned = inside::planned(&job.config, summary.params, &hosts, summary.steps, compute, threads, network);
    planned.inspect_err(|error| tell_unplanned(flags, error)).ok()
}

fn tell_unplanned(flags: &Common, error: &anyhow::Error) {
    if !flags.quiet {
        say!("planned   not available: {error:#}");
    }
}

/// Writes the report of `dirs` into `dir`.
pub fn write_report(dirs: &[PathBuf], dir: &Path) -> Outcome<PathBuf> {
    let page = dir.join("report.html");
    let runs = report::find(dirs).map_err(Failure::run)?;
    report::write(&runs, &page, 1e9).map_err(Failure::run)?;
    Ok(page)
}
