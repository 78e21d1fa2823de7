//! `thinwire export`: the trained parameters as one safetensors file with a tensor for each name.
//!
//! A gpt is GPT-2's network with other sizes, so it takes the names and the layout of Hugging Face's `GPT2LMHeadModel`
//! ([`hugging_face`]). Other networks, and a gpt by `--names thinwire`, have the names that `inspect` shows, and matrices as
//! PyTorch's `Linear` and `Conv2d` have them: outputs first. docs/command.md lists them.

mod hugging_face;

use crate::failure::{Failure, Outcome};
use crate::files;
use crate::inspect::stored;
use crate::language::Language;
use crate::names;
use crate::saved::Saved;
use crate::screen::say;
use crate::settings::TaskName;
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use thinwire_report::numbers::bytes;

#[derive(Args)]
pub struct Export {
    /// The folder of a run, or its checkpoint
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The file to write. If a gpt is written to model.safetensors, a config.json is written beside it, and transformers loads the folder
    #[arg(long, value_name = "FILE.safetensors")]
    pub out: PathBuf,
    /// Names of the tensors [default: hugging-face for gpt, otherwise thinwire]
    #[arg(long, value_enum)]
    pub names: Option<Names>,
    /// Replace existing files
    #[arg(long)]
    pub overwrite: bool,
    /// Print errors only
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Names {
    /// Those of GPT2LMHeadModel, in its layout; gpt only
    HuggingFace,
    /// Those that `inspect` shows
    Thinwire,
}

/// A tensor of the file.
pub struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// What goes into the file, and into a config.json for transformers.
struct Exported {
    tensors: Vec<Tensor>,
    config: Option<serde_json::Value>,
}

/// What transformers looks for in a folder.
const MODEL: &str = "model.safetensors";
const CONFIG: &str = "config.json";

pub fn command(arguments: &Export) -> Outcome {
    let (saved, exported, config) = prepare(arguments).map_err(Failure::Usage)?;
    let written = write(&exported, &saved, arguments, config.as_deref()).map_err(Failure::Run)?;
    if !arguments.quiet {
        let (count, out) = (exported.tensors.len(), arguments.out.display());
        let beside = config.map_or(String::new(), |path| format!(" and {}", path.display()));
        say!("{count} tensors, {} → {out}{beside}", bytes(written as f64));
    }
    Ok(())
}

/// Everything that can be wrong is, before anything is written.
fn prepare(arguments: &Export) -> Result<(Saved, Exported, Option<PathBuf>)> {
    let out = &arguments.out;
    ensure!(
        out.extension().is_some_and(|kind| kind == "safetensors"),
        "invalid --out {}: expected a file that ends in .safetensors (for example {MODEL})",
        out.display()
    );
    let saved = Saved::open(&arguments.dir)?;
    let exported = exported(&saved, arguments.names)?;
    let for_transformers = exported.config.is_some() && out.file_name().is_some_and(|name| name == MODEL);
    let config = for_transformers.then(|| out.with_file_name(CONFIG));
    for path in [Some(out), config.as_ref()].into_iter().flatten() {
        let free = arguments.overwrite || !path.exists();
        ensure!(free, "invalid --out: expected a new file, found {}; give --overwrite to replace it", path.display());
    }
    if !arguments.quiet {
        note_if_between_syncs(&saved)?;
    }
    Ok((saved, exported, config))
}

fn exported(saved: &Saved, names: Option<Names>) -> Result<Exported> {
    let gpt = saved.settings.as_ref().is_some_and(|settings| settings.task == TaskName::Gpt);
    match names.unwrap_or(if gpt { Names::HuggingFace } else { Names::Thinwire }) {
        Names::HuggingFace => {
            let language = Language::of(saved).context("--names hugging-face")?;
            Ok(Exported { tensors: hugging_face::tensors(&language), config: Some(hugging_face::config(&language)) })
        }
        Names::Thinwire => Ok(Exported { tensors: as_they_are(saved)?, config: None }),
    }
}

/// The tensors under the names that the run wrote down.
fn as_they_are(saved: &Saved) -> Result<Vec<Tensor>> {
    let shown = saved.folder.display();
    let found = saved.names()?;
    let found = found.with_context(|| format!("{shown}: expected {} in the run's folder, found none", names::FILE))?;
    let params = saved.checkpoint.parameters()?;
    let places = names::places(&found, params.len()).with_context(|| shown.to_string())?;
    let tensor = |(named, range): (&names::Named, std::ops::Range<usize>)| Tensor {
        name: named.name.clone(),
        shape: named.shape.clone(),
        values: params[range].to_vec(),
    };
    Ok(places.into_iter().map(tensor).collect())
}

/// Between two syncs every worker has parameters of its own, and none of them is what the run would end with.
fn note_if_between_syncs(saved: &Saved) -> Result<()> {
    let manifest = &saved.checkpoint.manifest;
    let state = stored::read(&saved.file(0)?, &manifest.files[0].digest)?;
    let since = state.iter().find(|tensor| tensor.name == "steps_since_sync").and_then(|tensor| tensor.value);
    if let (Some(steps @ 1..), true) = (since, manifest.files.len() > 1) {
        let whose = match saved.checkpoint.has_anchor()? {
            true => "those of the last sync, which all workers have in common",
            false => "worker 0's parameters",
        };
        say!("note: the checkpoint was written {steps} steps after a sync; these are {whose}");
    }
    Ok(())
}

/// Writes the files by rename; the length of the first.
fn write(exported: &Exported, saved: &Saved, arguments: &Export, config: Option<&Path>) -> Result<u64> {
    let out = &arguments.out;
    let named = || out.display().to_string();
    if let Some(folder) = out.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let views = exported.tensors.iter().map(|tensor| (&tensor.name, view(tensor)));
    let notes = notes(exported, saved);
    files::replace(out, |draft| Ok(safetensors::serialize_to_file(views, Some(notes), draft)?))?;
    if let (Some(path), Some(config)) = (config, &exported.config) {
        files::write(path, &(serde_json::to_string_pretty(config)? + "\n"))?;
    }
    Ok(std::fs::metadata(out).with_context(named)?.len())
}

fn view(tensor: &Tensor) -> TensorView<'_> {
    let bytes = bytemuck::cast_slice(&tensor.values);
    TensorView::new(Dtype::F32, tensor.shape.clone(), bytes).expect("as many values as the shape says")
}

/// The file's metadata: `format` is what transformers asks for.
fn notes(exported: &Exported, saved: &Saved) -> HashMap<String, String> {
    let mut notes = HashMap::from([
        ("format".to_owned(), "pt".to_owned()),
        ("thinwire.step".to_owned(), saved.checkpoint.manifest.step.to_string()),
    ]);
    if let Some(config) = &exported.config {
        notes.insert("config".to_owned(), config.to_string());
    }
    notes
}
