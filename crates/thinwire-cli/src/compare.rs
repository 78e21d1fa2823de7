//! `thinwire compare`: the same job under several optimizers, side by side.

use crate::arguments::{Common, Compare};
use crate::failure::{Failure, Outcome};
use crate::files;
use crate::folder::{self, Content};
use crate::job::Job;
use crate::launch::Team;
use crate::resume;
use crate::screen::{Answers, print, say};
use crate::settings::Settings;
use crate::train;
use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;
use std::path::{Path, PathBuf};
use thinwire::inside::Optimizers;
use thinwire_report as report;
use thinwire_report::Summary;
use thinwire_report::numbers::{self, bytes};

/// The list of a comparison's optimizers, in its folder: what `--resume` goes by.
const LIST: &str = "compare.json";

pub fn command(arguments: &Compare, team: &Team) -> Outcome {
    let flags = &arguments.common;
    let (out, summaries) = match &arguments.resume {
        Some(out) => (out.clone(), resumed(out, arguments, team)?),
        None => started(arguments, team)?,
    };
    if !team.leads() {
        return Ok(());
    }
    let dirs = summaries.iter().map(|summary| out.join(&summary.optimizer)).collect::<Vec<_>>();
    let page = train::write_report(&dirs, &out)?;
    if !flags.quiet {
        let answers = Answers::beside(flags.json);
        answers.line(&table(&summaries).to_string());
        say!(
            "Projected: a machine and a link for each worker; from the bytes and rounds of the run, and its measured compute and \
             packing.\nBytes are those that one worker sent. Results in {} · report {}",
            out.display(),
            page.display()
        );
    }
    if flags.json {
        print(&json!({ "runs": summaries }))?;
    }
    Ok(())
}

/// Runs all optimizers, one after the other.
fn started(arguments: &Compare, team: &Team) -> Outcome<(PathBuf, Vec<Summary>)> {
    let flags = &arguments.common;
    let (mut job, given, initial) = team.agree(make(arguments, team).map_err(Failure::Usage))?;
    let task = job.spec.task.name();
    let named = PathBuf::from("runs").join(format!("compare-{task}"));
    let out = match &given.out {
        Some(out) => out.clone(),
        None if flags.overwrite => named,
        None => folder::free(named, is_finished, team)?,
    };
    let dirs = arguments.optimizers.iter().map(|name| out.join(name)).collect::<Vec<_>>();
    let _held = (folder::hold(std::slice::from_ref(&out), team)?, folder::hold(&dirs, team)?);
    team.agree(may_replace(&out, flags.overwrite).map_err(Failure::Usage))?;
    folder::prepare(&job, &dirs, flags.overwrite, team)?;
    let list = serde_json::to_string(&arguments.optimizers).map_err(Failure::run)?;
    team.everywhere(|| files::write(&out.join(LIST), &list).map_err(Failure::Run))?;
    // All settings first: what was not begun when the rest was interrupted is then known too.
    for (name, dir) in arguments.optimizers.iter().zip(&dirs) {
        job = job.under(name, &given).map_err(Failure::Usage)?;
        team.everywhere(|| train::write_settings(&job, dir).map_err(Failure::Run))?;
    }
    let mut summaries = Vec::new();
    for (name, dir) in arguments.optimizers.iter().zip(&dirs) {
        job = job.under(name, &given).map_err(Failure::Usage)?;
        let flags = &in_folder_of(flags, name);
        let ran = train::run(&job, dir, Some(&initial), flags, team).map_err(|failure| again(failure, &out, team))?;
        summaries.extend(ran.map(|(summary, _)| summary));
    }
    Ok((out, summaries))
}

/// Goes on with a comparison: what is done is read, what was interrupted goes on, what was not begun begins.
fn resumed(out: &Path, arguments: &Compare, team: &Team) -> Outcome<Vec<Summary>> {
    let flags = &arguments.common;
    let _held = train::hold_again(out, team)?;
    let names = team.agree(listed(out, flags).map_err(Failure::Usage))?;
    let dirs = names.iter().map(|name| out.join(name)).collect::<Vec<_>>();
    let _held_below = folder::hold(&dirs, team)?;
    let mut summaries = Vec::new();
    for (name, dir) in names.iter().zip(dirs) {
        let flags = &in_folder_of(flags, name);
        let there = |file: &str| dir.join(file).exists();
        let (done, begun) = team.as_worker_0_sees((there("summary.json"), there("checkpoint/manifest.json")))?;
        if done {
            let run = if team.leads() { report::load(&dir).map(Some) } else { Ok(None) };
            let run = team.agree(run.map_err(Failure::usage))?;
            summaries.extend(run.and_then(|run| run.summary));
            continue;
        }
        let (job, initial) = team.agree(job(&dir, begun, flags, team).map_err(Failure::Usage))?;
        let ran =
            train::run(&job, &dir, initial.as_deref(), flags, team).map_err(|failure| again(failure, out, team))?;
        summaries.extend(ran.map(|(summary, _)| summary));
    }
    Ok(summaries)
}

/// The same flags, with a folder of its own for each optimizer's event files.
fn in_folder_of(flags: &Common, optimizer: &str) -> Common {
    let tensorboard = flags.tensorboard.as_ref().map(|given| given.as_ref().map(|dir| dir.join(optimizer)));
    Common { tensorboard, ..flags.clone() }
}

/// Whether a comparison is in this folder whose runs have all ended.
fn is_finished(out: &Path) -> bool {
    let names = read_list(out).unwrap_or_default();
    !names.is_empty() && names.iter().all(|name| Content::of(&out.join(name)) == Content::Finished)
}

/// A finished comparison is replaced only by `overwrite`, also if the new one is of other optimizers: they would mix in its report.
fn may_replace(out: &Path, overwrite: bool) -> anyhow::Result<()> {
    anyhow::ensure!(
        overwrite || !is_finished(out),
        "{} holds a finished comparison; take another folder by --out, or replace it by --overwrite",
        out.display()
    );
    let names = read_list(out).unwrap_or_default(); // a folder without a list holds no comparison
    let begun = names.iter().any(|name| Content::of(&out.join(name)) != Content::Nothing);
    let unfinished = names.iter().map(|name| out.join(name)).find(|run| Content::of(run) != Content::Finished);
    match unfinished {
        Some(run) if begun && !overwrite => anyhow::bail!(
            "{} holds a comparison whose {} is not finished; resume it by `compare --resume`, take another folder by --out, or \
             replace it by --overwrite",
            out.display(),
            run.display()
        ),
        _ => Ok(()),
    }
}

fn read_list(out: &Path) -> anyhow::Result<Vec<String>> {
    let list = std::fs::read_to_string(out.join(LIST));
    let list = list.with_context(|| format!("--resume {}: expected the folder of a comparison", out.display()))?;
    serde_json::from_str(&list).with_context(|| out.join(LIST).display().to_string())
}

fn listed(out: &Path, flags: &Common) -> anyhow::Result<Vec<String>> {
    resume::only_resumes(flags, out, false)?;
    read_list(out)
}

/// The job of one run of a comparison, as its settings say, and the parameters to start from if it was not begun.
fn job(dir: &Path, begun: bool, flags: &Common, team: &Team) -> anyhow::Result<(Job, Option<Vec<f32>>)> {
    if begun {
        return Ok((resume::resume(flags, dir, team)?.job, None));
    }
    let mut settings = Settings::read(&dir.join("config.toml"))?;
    resume::placed(&mut settings, flags, team);
    let job = Job::new(settings)?;
    let initial = job.initial()?;
    Ok((job, Some(initial)))
}

/// An interrupted run is gone on with as a part of its comparison.
fn again(failure: Failure, out: &Path, team: &Team) -> Failure {
    match failure {
        Failure::Interrupted(_) => {
            let (launcher, out) = (team.launch(), out.display());
            Failure::Interrupted(format!(
                "interrupted\nto resume, bit for bit:  {launcher}thinwire compare --resume {out}"
            ))
        }
        failure => failure,
    }
}

/// The job, the settings as given, and the parameters to start from: every optimizer's settings are looked at before the first
/// of them runs for hours.
fn make(arguments: &Compare, team: &Team) -> anyhow::Result<(Job, Settings, Vec<f32>)> {
    let mut given = Settings::of(&arguments.common)?;
    if let Some(name) = given.optimizer.get("name") {
        anyhow::bail!(
            "invalid optimizer.name = {name}: expected none, because compare takes the names from --optimizers"
        );
    }
    given.fit(team)?;
    check_names(&arguments.optimizers)?;
    given.check_only(&arguments.optimizers)?;
    let mut first = given.clone();
    first.set_name(&arguments.optimizers[0])?;
    let mut job = Job::new(first)?;
    for name in &arguments.optimizers {
        job = job.under(name, &given)?;
    }
    let initial = job.initial()?;
    Ok((job, given, initial))
}

fn check_names(optimizers: &[String]) -> anyhow::Result<()> {
    let names = optimizers
        .iter()
        .map(|name| Ok(Optimizers::chosen(name).map(|_| name.as_str())?))
        .collect::<anyhow::Result<Vec<_>>>()
        .context("--optimizers")?;
    for (index, name) in names.iter().enumerate() {
        anyhow::ensure!(
            !names[..index].contains(name),
            "invalid --optimizers: expected each name once, found {name} twice"
        );
    }
    Ok(())
}

/// One column an optimizer: rows of few words each, so that four fit a terminal.
fn table(runs: &[Summary]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(std::iter::once(String::new()).chain(runs.iter().map(|run| report::shown(&run.optimizer))));
    let mut row = |title: &str, cell: &dyn Fn(&Summary) -> String| {
        table.add_row(std::iter::once(title.to_owned()).chain(runs.iter().map(cell)).collect::<Vec<_>>());
    };
    row("learning rate", &|run| run.lr.to_string());
    row("training loss", &|run| format!("{:.4}", run.train_loss));
    row("held-out loss", &|run| format!("{:.4}", run.val_loss));
    if runs.iter().any(|run| run.accuracy.is_some()) {
        row("accuracy", &|run| run.accuracy.map_or("–".to_owned(), |part| format!("{:.2} %", 100.0 * part)));
    }
    if runs.iter().any(|run| run.majority.is_some()) {
        row("largest class", &|run| run.majority.map_or("–".to_owned(), |part| format!("{:.2} %", 100.0 * part)));
    }
    if runs.iter().any(|run| run.matthews.is_some()) {
        row("Matthews", &|run| run.matthews.map_or("–".to_owned(), |value| format!("{value:.3}")));
    }
    row("rounds exact", &|run| run.rounds.exact.to_string());
    row("coarse", &|run| run.rounds.coarse.to_string());
    row("skipped", &|run| run.rounds.skipped.to_string());
    row("bytes sent", &|run| bytes(run.bytes_sent_per_worker as f64));
    row("bits/param/step", &|run| format!("{:.2}", run.bits_per_param_per_step));
    row("seconds in all", &|run| format!("{:.1}", run.seconds.total));
    row("compute", &|run| format!("{:.1}", run.seconds.compute));
    row("pack", &|run| format!("{:.2}", run.seconds.pack));
    row("wire", &|run| format!("{:.2}", run.seconds.wire));
    row("wait", &|run| format!("{:.1}", run.seconds.wait));
    for (index, bandwidth) in train::LINKS.into_iter().enumerate() {
        let title = format!("projected, {}", numbers::bandwidth(bandwidth));
        row(&title, &|run| numbers::seconds(run.projected[index].seconds));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
