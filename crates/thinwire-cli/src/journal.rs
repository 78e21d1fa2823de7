//! What a run writes while it goes: `metrics.jsonl`; and what a run that goes on reads from it.
//!
//! Totals are never saved apart: they are the sums of the lines. A run that resumes from step t drops the lines from t on,
//! for it will write them anew.

use crate::files;
use crate::tensorboard::Events;
use anyhow::{Context, Result};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use thinwire_report::{Eval, Metric, Phases, Rounds, Step};

pub const METRICS: &str = "metrics.jsonl";

/// Steps whose mean is a run's training loss.
const LAST: usize = 50;

pub struct Journal {
    file: BufWriter<File>,
    /// The same for TensorBoard, if it was asked for.
    events: Option<Events>,
    pub totals: Totals,
}

/// Sums over the steps so far.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub steps: u64,
    pub bytes: f64,
    pub bytes_between_hosts: f64,
    pub rounds: Rounds,
    pub seconds: Phases,
    pub compute_cpu: f64,
    /// Training losses of the last steps.
    recent: Vec<f64>,
}

impl Totals {
    fn add(&mut self, step: &Step) {
        self.steps += 1;
        self.bytes += step.bytes;
        self.bytes_between_hosts += step.bytes_between_hosts;
        *match step.round.as_str() {
            "exact" => &mut self.rounds.exact,
            "coarse" => &mut self.rounds.coarse,
            _ => &mut self.rounds.skipped,
        } += 1;
        self.seconds.total += step.seconds.total;
        self.seconds.compute += step.seconds.compute;
        self.seconds.pack += step.seconds.pack;
        self.seconds.wire += step.seconds.wire;
        self.seconds.wait += step.seconds.wait;
        self.compute_cpu += step.compute_cpu;
        if self.recent.len() == LAST {
            self.recent.remove(0);
        }
        self.recent.push(step.loss);
    }

    /// Mean of the last steps' training losses.
    pub fn train_loss(&self) -> f64 {
        self.recent.iter().sum::<f64>() / self.recent.len().max(1) as f64
    }
}

impl Journal {
    /// A new journal in `dir`.
    pub fn create(dir: &Path) -> Result<Journal> {
        let path = dir.join(METRICS);
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        Ok(Journal { file: BufWriter::new(file), events: None, totals: Totals::default() })
    }

    /// Whether the journal in `dir`, if this worker has one, has all of `steps` steps.
    pub fn check(dir: &Path, steps: u64) -> Result<()> {
        let path = dir.join(METRICS);
        if !path.exists() {
            return Ok(());
        }
        let found = Journal::read(dir, steps)?.1.steps;
        anyhow::ensure!(
            found >= steps,
            "{}: expected the {steps} steps that the checkpoint has taken, found {found}; the file was changed or lost lines",
            path.display()
        );
        Ok(())
    }

    /// The lines of the first `steps` steps, and their sums.
    fn read(dir: &Path, steps: u64) -> Result<(Vec<String>, Totals)> {
        let path = dir.join(METRICS);
        let read = File::open(&path).with_context(|| path.display().to_string())?;
        let (mut kept, mut totals) = (Vec::new(), Totals::default());
        for line in BufReader::new(read).lines() {
            let line = line.with_context(|| path.display().to_string())?;
            let Ok(metric) = serde_json::from_str::<Metric>(&line) else { break }; // torn when the run was killed
            match &metric {
                Metric::Step(step) if step.step < steps => totals.add(step),
                Metric::Eval(eval) if eval.step <= steps => {}
                _ => continue,
            }
            kept.push(line);
        }
        Ok((kept, totals))
    }

    /// Goes on with the journal in `dir` after `steps` steps.
    pub fn resume(dir: &Path, steps: u64) -> Result<Journal> {
        Journal::check(dir, steps)?;
        Journal::go_on(dir, steps)
    }

    /// The same where steps may be missing: a worker that was away took no part in them.
    pub fn go_on(dir: &Path, steps: u64) -> Result<Journal> {
        let (path, (kept, totals)) = (dir.join(METRICS), Journal::read(dir, steps)?);
        files::write(&path, &kept.iter().flat_map(|line| [line, "\n"]).collect::<String>())?;
        let file = OpenOptions::new().append(true).open(&path)?;
        Ok(Journal { file: BufWriter::new(file), events: None, totals })
    }

    /// Writes everything from here on to `events` too.
    pub fn with_events(self, events: Option<Events>) -> Journal {
        Journal { events, ..self }
    }

    pub fn step(&mut self, mut step: Step) -> Result<()> {
        self.totals.add(&step);
        step.bytes_total = self.totals.bytes;
        if let Some(events) = &mut self.events {
            events.step(&step)?;
        }
        self.line(&Metric::Step(step))
    }

    pub fn eval(&mut self, eval: Eval) -> Result<()> {
        if let Some(events) = &mut self.events {
            events.eval(&eval)?;
        }
        self.line(&Metric::Eval(eval))
    }

    fn line(&mut self, metric: &Metric) -> Result<()> {
        serde_json::to_writer(&mut self.file, metric)?;
        self.file.write_all(b"\n")?;
        Ok(())
    }

    /// Everything so far is on its way to the disk.
    pub fn flush(&mut self) -> Result<()> {
        self.events.as_mut().map_or(Ok(()), Events::flush)?;
        Ok(self.file.flush()?)
    }
}
