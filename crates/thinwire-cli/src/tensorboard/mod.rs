//! `--tensorboard`: the run's figures as an event file, which TensorBoard shows while the run goes.
//!
//! An event file is a list of records ([`framing`]), each a protobuf message ([`event`]). The step of a figure is the number
//! of steps taken. A session begins by saying at which step it does: when a run goes on after it was killed, TensorBoard drops
//! what the sessions before wrote from there on, as the journal does.

mod event;
mod framing;

use anyhow::{Context, Result};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use thinwire_report::{Eval, Step};

/// The folder in a run's own, if no other is named.
pub const FOLDER: &str = "tensorboard";

pub struct Events {
    file: BufWriter<File>,
    path: PathBuf,
}

impl Events {
    /// A new file in `dir`, for a session that begins after `done` steps.
    pub fn create(dir: &Path, done: u64) -> Result<Events> {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        // TensorBoard reads the files of a folder in the order of their names.
        let name = format!("events.out.tfevents.{:017.6}.thinwire.{}", now(), std::process::id());
        let path = dir.join(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = BufWriter::new(file.with_context(|| path.display().to_string())?);
        let mut events = Events { file, path };
        events.add(&event::version(now()))?;
        events.add(&event::start(now(), done + 1))?;
        events.flush()?;
        Ok(events)
    }

    pub fn step(&mut self, step: &Step) -> Result<()> {
        self.scalars(
            step.step + 1,
            &[
                ("train/loss", step.loss),
                ("train/learning_rate", step.lr),
                ("traffic/bytes", step.bytes),
                ("traffic/bytes_total", step.bytes_total),
                ("seconds/total", step.seconds.total),
                ("seconds/compute", step.seconds.compute),
                ("seconds/pack", step.seconds.pack),
                ("seconds/wire", step.seconds.wire),
                ("seconds/wait", step.seconds.wait),
            ],
        )
    }

    pub fn eval(&mut self, eval: &Eval) -> Result<()> {
        let figures =
            [("eval/loss", Some(eval.val_loss)), ("eval/accuracy", eval.accuracy), ("eval/matthews", eval.matthews)];
        let known = figures.into_iter().filter_map(|(tag, value)| Some((tag, value?)));
        self.scalars(eval.step, &known.collect::<Vec<_>>())
    }

    fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> Result<()> {
        self.add(&event::scalars(now(), step, values))
    }

    fn add(&mut self, event: &[u8]) -> Result<()> {
        framing::write(&mut self.file, event).with_context(|| self.path.display().to_string())
    }

    pub fn flush(&mut self) -> Result<()> {
        self.file.flush().with_context(|| self.path.display().to_string())
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
