//! `--resume`: a run goes on with its own settings, and for as many steps as `--steps` says.
//!
//! Beside the engine's files a checkpoint has `run.toml`, the settings of the run that wrote it. So a checkpoint that belongs to
//! another run, or a `config.toml` that was edited, is noticed. What may change from session to session is not compared: where
//! the workers are, how long they wait, how often they save and evaluate.

use crate::arguments::Common;
use crate::files;
use crate::job::Job;
use crate::journal::Journal;
use crate::launch::{self, Team};
use crate::screen::say;
use crate::settings::Settings;
use crate::train;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use thinwire::Checkpoint;

/// The settings beside a checkpoint.
const SETTINGS: &str = "run.toml";

/// What may differ from session to session.
const FREE: [&str; 6] = ["workers", "transport", "hosts", "checkpoint_every", "eval_every", "eval_examples"];
const FREE_OF_OPTIMIZER: [&str; 6] = ["threads", "bucket", "non_finite", "outlier", "outlier_factor", "hierarchy"];

/// A run that goes on.
pub struct Resumed {
    pub job: Job,
    /// The steps that it was to have, if `--steps` says otherwise now.
    pub instead_of: Option<u64>,
    /// Steps taken.
    done: u64,
}

/// Refuses flags that a resumed run has its own settings for. `more`: there were others than those of `flags`.
pub fn only_resumes(flags: &Common, dir: &Path, more: bool) -> Result<()> {
    let free = Common { config: None, transport: None, deadline: None, hosts: None, ..flags.clone() };
    let given = Settings { given: None, ..Settings::of(&free)? };
    ensure!(
        given == Settings::default() && flags.config.is_none() && !more && !flags.overwrite,
        "--resume {}: expected only --transport, --hosts, --deadline, --tensorboard, --json, --quiet and, for `train`, --steps beside \
         it, because the run keeps its other settings (another number of workers: mpirun -np N thinwire … --resume)",
        dir.display()
    );
    Ok(())
}

/// The run in `dir`, which has a checkpoint.
pub fn resume(flags: &Common, dir: &Path, team: &Team) -> Result<Resumed> {
    let named = || format!("--resume {}", dir.display());
    let mut settings = Settings::read(&dir.join("config.toml"))
        .with_context(|| format!("{}: expected the folder of a run", named()))?;
    let checkpoint = Checkpoint::open(dir.join("checkpoint")).with_context(|| {
        format!(
            "{}: expected a checkpoint, found none; to start the run again, give the same command without --resume",
            named()
        )
    })?;
    let (done, steps) = (checkpoint.manifest.step, settings.steps.unwrap_or(0));
    Journal::check(dir, done)?;
    let finished = done >= steps && dir.join("summary.json").exists();
    let instead_of = flags.steps.filter(|wanted| *wanted != steps).map(|_| steps);
    ensure!(
        !finished || instead_of.is_some(),
        "{}: the run has taken all {steps} steps; to make it longer, give --steps with more than {steps}",
        named()
    );
    if let (Some(wanted), Some(_)) = (flags.steps, instead_of) {
        ensure!(wanted > done, "invalid --steps {wanted}: expected more than the {done} steps that the run has taken");
        settings.lengthen(wanted);
    }
    placed(&mut settings, flags, team);
    let job = Job::new(settings)?;
    check(&job, dir, instead_of.is_some()).with_context(named)?;
    Ok(Resumed { job, instead_of, done })
}

/// Where the workers of a run that goes on are now. If they are others than before, the engine regroups.
pub fn placed(settings: &mut Settings, flags: &Common, team: &Team) {
    settings.deadline = flags.deadline.or(settings.deadline);
    settings.workers = team.size().or(settings.workers);
    settings.hosts = if team.size().is_some() { None } else { flags.hosts.or(settings.hosts) };
}

/// Whether the checkpoint in `dir` is of this run. Older checkpoints have no `run.toml`: those the engine checks.
fn check(job: &Job, dir: &Path, other_steps: bool) -> Result<()> {
    let path = dir.join("checkpoint").join(SETTINGS);
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(()) };
    let then = text.parse::<toml::Table>().with_context(|| path.display().to_string())?;
    let now = job.written()?.common().to_toml()?.parse::<toml::Table>()?;
    let mut differences = differences(&then, &now, &FREE, "");
    if other_steps {
        differences.retain(|difference| !difference.starts_with("steps = "));
    }
    let longer = match differences.iter().any(|difference| difference.starts_with("steps = ")) {
        true => " To make a run longer, give --steps and leave config.toml as it was.",
        false => "",
    };
    ensure!(
        differences.is_empty(),
        "the checkpoint is of another run, or config.toml was edited: {}. Restore what was changed, or begin another run by \
         --config {} and --out.{longer}",
        differences.join("; "),
        dir.join("config.toml").display()
    );
    Ok(())
}

/// What `then` says and `now` does not. Settings that `then` does not know have come since.
fn differences(then: &toml::Table, now: &toml::Table, free: &[&str], prefix: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (key, before) in then.iter().filter(|(key, _)| !free.contains(&key.as_str())) {
        match (before, now.get(key)) {
            (toml::Value::Table(before), Some(toml::Value::Table(now))) => {
                found.extend(differences(before, now, &FREE_OF_OPTIMIZER, &format!("{prefix}{key}.")));
            }
            (before, Some(now)) if before == now => {}
            (before, now) => {
                let now = now.map_or("not set".to_owned(), toml::Value::to_string);
                found.push(format!("{prefix}{key} = {now} in config.toml, {before} in the checkpoint"));
            }
        }
    }
    found
}

/// Writes the settings of `job` beside the checkpoint in `dir`.
pub fn write_beside(job: &Job, dir: &Path) -> Result<()> {
    let checkpoint = dir.join("checkpoint");
    std::fs::create_dir_all(&checkpoint).with_context(|| checkpoint.display().to_string())?;
    files::write(&checkpoint.join(SETTINGS), &job.written()?.common().to_toml()?)
}

/// Whether worker `rank` writes them: of threads the first, of processes each, whose folders may be apart.
pub fn writes_beside(rank: usize) -> bool {
    rank == 0 || launch::rank_by_environment().is_some()
}

impl Resumed {
    /// Takes down that the run has other steps now: in the checkpoint, whose engine refuses another learning rate, and in the
    /// folder, which holds a finished run no more.
    pub fn relabel(&self, dir: &Path) -> Result<()> {
        let folder = dir.join("checkpoint");
        let mut manifest = Checkpoint::open(&folder)?.manifest;
        let config =
            manifest.config.as_object_mut().context("the checkpoint's manifest.json: config is not a table")?;
        config.insert("learning_rate".to_owned(), serde_json::to_value(&self.job.config.learning_rate)?);
        write_beside(&self.job, dir)?;
        files::write(&folder.join("manifest.json"), &(serde_json::to_string_pretty(&manifest)? + "\n"))?;
        train::write_settings(&self.job, dir)?;
        match std::fs::remove_file(dir.join("summary.json")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// What other steps do to the learning rate, which may jump.
    pub fn tell(&self) {
        let Some(before) = self.instead_of else { return };
        let schedule = self.job.spec.schedule();
        let steps = self.job.spec.steps;
        let mut old = schedule.clone();
        old.steps = before;
        let last = self.done.saturating_sub(1);
        say!(
            "{steps} steps instead of {before}: the learning rate continues at {:.3e} (the last step's was {:.3e}); warm-up and optimizer \
             settings stay as they were",
            schedule.at(self.done),
            old.at(last)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let table = |text: &str| text.parse::<toml::Table>().unwrap();
        let then = table("seed = 1\nclip = 1.0\nworkers = 4\n[optimizer]\nkappa = 4\nthreads = 1");
        let now = table("seed = 2\nnewer = 1\nworkers = 2\n[optimizer]\nkappa = 8\nthreads = 2");
        let mut found = differences(&then, &now, &FREE, "");
        found.sort();
        assert_eq!(
            found,
            [
                "clip = not set in config.toml, 1.0 in the checkpoint",
                "optimizer.kappa = 8 in config.toml, 4 in the checkpoint",
                "seed = 2 in config.toml, 1 in the checkpoint"
            ]
        );
        assert!(differences(&then, &then, &FREE, "").is_empty());
    }
}
