//! What was asked for: flags over the file of `--config`. [`RunSpec`](crate::run_spec::RunSpec) is what comes of it.
//!
//! The file has the names of the flags, with `_` for `-`; the options of the optimizer stand in a table `[optimizer]`:
//!
//! ```toml
//! task = "gpt"
//! steps = 3000
//! lr = 4e-3
//! [optimizer]
//! name = "zero-one-adam"
//! kappa = 8
//! ```
//!
//! The `config.toml` that a run writes beside its results has every setting, and can be given to `--config` again. Its table
//! `[given]` has what the user gave: so, when `--config` comes with other `--steps`, what was derived from the old ones is
//! derived anew. Without that table everything in a file counts as given.

mod flags;
mod place;

use crate::arguments::Common;
use crate::defaults;
use crate::screen::say;
use anyhow::{Context, Result, anyhow};
pub use flags::named;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use thinwire::inside::Optimizers;
use thinwire::options::Decay;
use thinwire::{Config, Name};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskName {
    #[default]
    Gpt,
    Bert,
    Images,
}

impl TaskName {
    /// As flags and files spell it.
    pub fn name(self) -> &'static str {
        match self {
            TaskName::Gpt => "gpt",
            TaskName::Bert => "bert",
            TaskName::Images => "images",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    #[default]
    Tiny,
    Small,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerName {
    #[default]
    Bytes,
    Gpt2,
}

/// The order in which a worker takes its batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    #[default]
    Random,
    /// The workers choose it together, by the gradients of the last epoch.
    CdGrab,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    #[default]
    Auto,
    Threads,
    Mpi,
}

impl Transport {
    /// The transport of this name; auto if there is none.
    pub fn named(name: Option<&str>) -> Result<Transport> {
        name.map_or(Ok(Transport::Auto), |name| named("transport", name))
    }
}

/// What flags and files may say. `None`: nobody said it, and its default counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    pub task: TaskName,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    /// Of the data that the run began with; what a resumed run finds must be the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finetune: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finetune_eval: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<PathBuf>,
    pub size: Size,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dim: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    pub tokenizer: TokenizerName,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer_files: Option<PathBuf>,

    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    pub transport: Transport,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accumulate: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay: Option<Decay>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,

    #[serde(skip_serializing_if = "Option::is_none")]
    pub out: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_every: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_every: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_examples: Option<usize>,

    pub optimizer: toml::Table,
    /// What the user calls the optimizer, if that is the name of a preset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What the user gave; all else was derived from it. Files written by hand have none, nor have those of early versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given: Option<Box<Settings>>,
    /// Options of one optimizer among several, by its name.
    #[serde(skip)]
    pub only: BTreeMap<String, toml::Table>,
}

impl Settings {
    pub fn read(path: &Path) -> Result<Settings> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        toml::from_str(&text)
            .map_err(|error| anyhow!(plain(&error.to_string())))
            .with_context(|| path.display().to_string())
    }

    /// The file of `--config`, if any, and the flags over it.
    pub fn of(flags: &Common) -> Result<Settings> {
        let mut settings = flags.config.as_deref().map_or_else(|| Ok(Settings::default()), Settings::read)?;
        let of_a_run = settings.data_digest.take().is_some(); // of the data of the run that wrote the file
        let known = settings.given.is_some();
        let mut given = settings.given.take().map_or_else(|| settings.clone(), |given| *given);
        let before = settings.clone();
        settings.apply(flags)?;
        given.apply(flags)?;
        if let (true, false, Some(path)) = (of_a_run, known, &flags.config)
            && before.steps != settings.steps
        {
            say!(
                "note: {} does not say which settings were derived from its steps: warm-up, evaluations and optimizer settings are kept",
                path.display()
            );
        }
        settings.derive_anew(&before, &given);
        settings.given = Some(Box::new(given));
        Ok(settings)
    }

    /// Drops what was derived from settings that have changed since they were as `before`.
    fn derive_anew(&mut self, before: &Settings, given: &Settings) {
        let network = |of: &Settings| (of.task, of.size, of.tokenizer, of.finetune.clone(), of.layers, of.dim);
        let schedule = |of: &Settings| (of.steps, of.warmup, of.decay, of.floor);
        if network(self) != network(before) {
            *self = given.clone();
        } else if schedule(self) != schedule(before) {
            self.warmup = given.warmup;
            self.eval_every = given.eval_every;
            self.optimizer = given.optimizer.clone();
        }
    }

    /// Other steps for a run that goes on: what was derived from the old ones, such as the warm-up, is past and stays.
    pub fn lengthen(&mut self, steps: u64) {
        self.steps = Some(steps);
        if let Some(given) = &mut self.given {
            given.steps = Some(steps);
        }
    }

    /// The optimizer's name.
    pub fn name(&self) -> Result<Name> {
        match self.optimizer.get("name") {
            None => Ok(defaults::OPTIMIZER),
            Some(name) => Config::from_toml(&format!("name = {name}")).map(|config| config.name).context("optimizer"),
        }
    }

    /// Takes an optimizer by its name, or by that of a preset which only one has.
    pub fn set_name(&mut self, called: &str) -> Result<()> {
        let (name, preset) = Optimizers::chosen(called)?;
        let relabelled = self.label.as_deref() != preset;
        if let (Some(called), Some(other)) = (preset, self.optimizer.get("preset").and_then(toml::Value::as_str))
            && other != called
            && self.label.is_none()
        {
            anyhow::bail!("invalid preset = {other}: {called} is a preset too; give one of the two");
        }
        if let Some(given) = &mut self.given {
            given.set_name(called)?;
            // Another optimizer than the file's: what was derived for that one does not count.
            let same = self.optimizer.get("name").is_none_or(|before| before.as_str() == Some(name.as_str()));
            if !same || relabelled {
                self.optimizer = given.optimizer.clone();
                self.lr = given.lr;
            }
        }
        let label = std::mem::replace(&mut self.label, preset.map(str::to_owned));
        if relabelled
            && let Some(label) = label
            && self.optimizer.get("preset").is_some_and(|preset| preset.as_str() == Some(&label))
        {
            self.optimizer.remove("preset");
        }
        self.optimizer.insert("name".to_owned(), toml::Value::String(name.to_string()));
        if let Some(preset) = preset.filter(|_| relabelled) {
            self.optimizer.insert("preset".to_owned(), toml::Value::String(preset.to_owned()));
        }
        if let Some(options) = self.only.get(called) {
            self.optimizer.extend(options.clone());
        }
        self.name().map(|_| ())
    }

    /// The optimizer that was given, as it is called; the usual one if none was.
    pub fn called(&self) -> Result<String> {
        self.label.clone().map_or_else(|| Ok(self.name()?.to_string()), Ok)
    }

    /// Makes paths absolute: a run may be resumed, or its settings used again, from another folder.
    pub fn absolute(&mut self) -> Result<()> {
        let paths =
            [&mut self.data, &mut self.finetune, &mut self.finetune_eval, &mut self.from, &mut self.tokenizer_files];
        for path in paths.into_iter().flatten() {
            *path = std::path::absolute(&*path)?;
        }
        self.given.as_mut().map_or(Ok(()), |given| given.absolute())
    }
}

/// An error of the TOML reader without Rust's names of types.
fn plain(error: &str) -> String {
    let terms = [("expected u64", "expected a whole number"), ("expected usize", "expected a whole number")];
    let terms =
        terms.into_iter().chain([("expected f64", "expected a number"), ("expected path string", "expected a path")]);
    terms.fold(error.to_owned(), |text, (rust, plain)| text.replace(rust, plain))
}
