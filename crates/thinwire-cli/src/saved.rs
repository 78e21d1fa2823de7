//! A trained network on disk: the folder of a run, or the checkpoint in it.
//!
//! `inspect`, `generate` and `export` take either. What the engine saved is in the checkpoint; which network it belongs to is in
//! the run's folder, in `config.toml` and `tensors.json`. A checkpoint without them, as a program of your own writes it, has
//! parameters without names.

use crate::names::{self, Named};
use crate::settings::Settings;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use thinwire::Checkpoint;

pub struct Saved {
    /// The folder with the manifest.
    pub folder: PathBuf,
    pub checkpoint: Checkpoint,
    /// The run's settings, if this is a run of the command.
    pub settings: Option<Settings>,
    run: PathBuf,
}

impl Saved {
    pub fn open(dir: &Path) -> Result<Saved> {
        let shown = dir.display();
        ensure!(dir.exists(), "{shown}: no such folder; expected the folder of a run, or a checkpoint");
        ensure!(
            !dir.join("compare.json").exists(),
            "{shown}: expected one run, found a comparison; its runs are the folders in it"
        );
        ensure!(
            !dir.join("run.json").exists(),
            "{shown}: expected a run, found a parameter server's; the folders of its workers have checkpoints"
        );
        let (run, folder) = match dir.join("manifest.json").exists() {
            true => (parent(dir), dir.to_owned()),
            false => (dir.to_owned(), dir.join("checkpoint")),
        };
        let checkpoint = Checkpoint::open(&folder)?;
        let settings = run.join("config.toml");
        let settings = if settings.exists() { Some(Settings::read(&settings)?) } else { None };
        Ok(Saved { folder, checkpoint, settings, run })
    }

    /// The names of the parameters, where the run left them.
    pub fn names(&self) -> Result<Option<Vec<Named>>> {
        names::read(&self.run)
    }

    /// The optimizer, as the checkpoint's configuration has it.
    pub fn optimizer(&self) -> String {
        let name = self.checkpoint.manifest.config.get("name").and_then(serde_json::Value::as_str);
        name.unwrap_or("unknown").to_owned()
    }

    /// The file of a worker.
    pub fn file(&self, worker: usize) -> Result<PathBuf> {
        let files = &self.checkpoint.manifest.files;
        let file = files.get(worker).with_context(|| format!("worker {worker}: expected one of {}", files.len()))?;
        Ok(self.folder.join(&file.name))
    }
}

/// The folder that `dir` is in, also if `dir` is `.`.
fn parent(dir: &Path) -> PathBuf {
    let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    whole.parent().map_or(whole.clone(), Path::to_owned)
}
