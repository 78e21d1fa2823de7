//! `thinwire compare`: the same job under several optimizers, side by side.

use crate::arguments::Compare;
use crate::failure::{Failure, Outcome};
use crate::job::Job;
use crate::record::Summary;
use crate::screen::{bytes, duration, say};
use crate::settings::Settings;
use crate::team::Team;
use crate::train::{self, link, shown_name, task_name};
use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;
use std::path::PathBuf;
use thinwire::{Config, Name};

pub fn command(arguments: &Compare, team: &Team) -> Outcome {
    let flags = &arguments.common;
    let (mut job, given, initial) = team.agree(make(arguments, team).map_err(Failure::Usage))?;
    let task = task_name(&job.settings);
    let out = given.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(format!("compare-{task}")));
    let dirs = arguments.optimizers.iter().map(|name| out.join(name)).collect::<Vec<_>>();
    train::prepare(&job, &dirs, flags.overwrite, team)?;
    let (mut names, mut summaries) = (Vec::new(), Vec::new());
    for (name, dir) in arguments.optimizers.iter().zip(&dirs) {
        job = job.under(name, &given).map_err(Failure::Usage)?;
        names.push(job.config.name);
        summaries.extend(train::run(&job, dir, Some(&initial), flags, team)?.map(|(summary, _)| summary));
    }
    if !team.leads() {
        return Ok(());
    }
    let page = train::write_report(&dirs, &out)?;
    if !flags.quiet {
        say!("\n{}", table(&names, &summaries));
        say!(
            "Projected: a machine and a link for each worker; from the bytes and rounds of the run, and its measured compute and \
             packing.\nBytes are those that one worker sent. Results in {} · report {}",
            out.display(),
            page.display()
        );
    }
    if flags.json {
        train::print(&json!({ "runs": summaries }))?;
    }
    Ok(())
}

/// The job, the settings as given, and the parameters to start from: every optimizer's settings are looked at before the first
/// of them runs for hours.
fn make(arguments: &Compare, team: &Team) -> anyhow::Result<(Job, Settings, Vec<f32>)> {
    let mut given = Settings::of(&arguments.common)?;
    anyhow::ensure!(
        !given.optimizer.contains_key("name"),
        "the file of --config names an optimizer; compare takes them from --optimizers"
    );
    given.fit(team)?;
    check_names(&arguments.optimizers)?;
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
        .map(|name| Ok(Config::from_toml(&format!("name = {}", toml::Value::from(name.as_str())))?.name))
        .collect::<anyhow::Result<Vec<_>>>()
        .context("--optimizers")?;
    for (index, name) in names.iter().enumerate() {
        anyhow::ensure!(!names[..index].contains(name), "--optimizers: {name} is there twice");
    }
    Ok(())
}

/// One column an optimizer: rows of few words each, so that four fit a terminal.
fn table(names: &[Name], runs: &[Summary]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(std::iter::once("").chain(names.iter().map(|name| shown_name(*name))));
    let mut row = |title: &str, cell: &dyn Fn(&Summary) -> String| {
        table.add_row(std::iter::once(title.to_owned()).chain(runs.iter().map(cell)).collect::<Vec<_>>());
    };
    row("learning rate", &|run| run.lr.to_string());
    row("training loss", &|run| format!("{:.4}", run.train_loss));
    row("held-out loss", &|run| format!("{:.4}", run.val_loss));
    if runs.iter().any(|run| run.accuracy.is_some()) {
        row("accuracy", &|run| run.accuracy.map_or("–".to_owned(), |part| format!("{:.2} %", 100.0 * part)));
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
        let title = format!("projected, {}", link(bandwidth));
        row(&title, &|run| duration(run.projected[index].seconds));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
