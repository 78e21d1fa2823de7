//! `thinwire inspect`: what is in a checkpoint.
//!
//! Two lists. The network's tensors, by name, as worker 0 has them; and the state of every worker, as the engine saved it:
//! parameters, moments, residuals, counters ([`stored`]). Every file that is here is read whole and compared with the digest in
//! the manifest, so a checkpoint that `inspect` shows is one that a run can resume from.

pub mod figures;
mod show;
pub mod stored;

use crate::failure::{Failure, Outcome};
use crate::names;
use crate::saved::Saved;
use crate::screen::{Answers, print};
use anyhow::{Context, Result, ensure};
use clap::Args;
use figures::Figures;
use serde::Serialize;
use std::path::PathBuf;
use stored::Tensor;
use xxhash_rust::xxh3::xxh3_64;

#[derive(Args)]
pub struct Inspect {
    /// The folder of a run, or a checkpoint
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub struct Inspected {
    /// The folder with the checkpoint.
    pub checkpoint: PathBuf,
    /// Steps taken.
    pub step: u64,
    pub parameters: usize,
    pub workers: usize,
    pub optimizer: String,
    /// The task of the run, if it is one of the command's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<&'static str>,
    /// Of worker 0's parameters, as the summary of a run has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Every option of the optimizer.
    pub options: serde_json::Value,
    /// The tensors of the network; empty if nobody wrote their names down.
    pub network: Vec<Layer>,
    /// One for each worker.
    pub files: Vec<WorkerFile>,
}

/// A tensor of the network.
#[derive(Debug, Serialize)]
pub struct Layer {
    pub name: String,
    pub shape: Vec<usize>,
    #[serde(flatten)]
    pub figures: Figures,
}

/// What one worker saved.
#[derive(Debug, Serialize)]
pub struct WorkerFile {
    pub worker: usize,
    pub name: String,
    pub bytes: u64,
    pub digest: String,
    /// Whether it is here: workers on other machines may have kept theirs.
    pub found: bool,
    pub tensors: Vec<Tensor>,
}

pub fn command(arguments: &Inspect) -> Outcome {
    let inspected = inspect(arguments).map_err(Failure::Usage)?;
    match arguments.json {
        true => print(&inspected),
        false => {
            show::show(&inspected, Answers::beside(false));
            Ok(())
        }
    }
}

fn inspect(arguments: &Inspect) -> Result<Inspected> {
    let saved = Saved::open(&arguments.dir)?;
    let manifest = &saved.checkpoint.manifest;
    let files = (0..manifest.files.len()).map(|worker| worker_file(&saved, worker)).collect::<Result<Vec<_>>>()?;
    ensure!(
        files.iter().any(|file| file.found),
        "{}: expected at least one of the {} files that manifest.json names, found none",
        saved.folder.display(),
        files.len()
    );
    let (digest, network) = if files[0].found { parameters(&saved)? } else { (None, Vec::new()) };
    Ok(Inspected {
        checkpoint: saved.folder.clone(),
        step: manifest.step,
        parameters: manifest.parameters,
        workers: manifest.files.len(),
        optimizer: saved.optimizer(),
        task: saved.settings.as_ref().map(|settings| settings.task.name()),
        digest,
        options: manifest.config.clone(),
        network,
        files,
    })
}

fn worker_file(saved: &Saved, worker: usize) -> Result<WorkerFile> {
    let written = &saved.checkpoint.manifest.files[worker];
    let path = saved.file(worker)?;
    let found = path.is_file();
    let tensors = if found { stored::read(&path, &written.digest)? } else { Vec::new() };
    let (name, digest) = (written.name.clone(), written.digest.clone());
    Ok(WorkerFile { worker, name, bytes: written.bytes, digest, found, tensors })
}

/// The digest of worker 0's parameters, and the figures of each tensor.
fn parameters(saved: &Saved) -> Result<(Option<String>, Vec<Layer>)> {
    let params = saved.checkpoint.parameters()?;
    let digest = format!("{:016x}", xxh3_64(bytemuck::cast_slice(&params)));
    let names = saved.names()?.unwrap_or_default();
    if names.is_empty() {
        return Ok((Some(digest), Vec::new()));
    }
    let places = names::places(&names, params.len()).with_context(|| saved.folder.display().to_string())?;
    let layer = |(named, range): (&names::Named, std::ops::Range<usize>)| Layer {
        name: named.name.clone(),
        shape: named.shape.clone(),
        figures: figures::of(&params[range]),
    };
    Ok((Some(digest), places.into_iter().map(layer).collect()))
}
