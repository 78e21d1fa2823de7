//! Everything that makes a run: defaults, then the file of `--config`, then flags.
//!
//! The file's words are the flags', with `_` for `-`; the optimizer's own stand in a table `[optimizer]`:
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
//! What a run writes beside its results as `config.toml` has every word filled in, and can be given to `--config` again. Its
//! table `[given]` has what the user gave: so, when `--config` comes with other `--steps`, what was derived from the old ones is
//! derived anew. Without that table everything in a file counts as given.

use crate::arguments::Common;
use crate::screen::say;
use crate::team::Team;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use thinwire::options::Decay;
use thinwire::{Config, LearningRate, Name, threads};
use thinwire_models::Tensors;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskName {
    #[default]
    Gpt,
    Bert,
    Images,
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
        name.map_or(Ok(Transport::Auto), |name| word("transport", name))
    }
}

/// A word of a fixed choice, given by a flag.
pub fn word<T: for<'a> Deserialize<'a>>(flag: &str, text: &str) -> Result<T> {
    let value = toml::Value::String(text.to_owned());
    value.try_into().map_err(|error: toml::de::Error| anyhow!("--{flag}: {}", error.message()))
}

/// The words of a file, and after [`Settings::resolve`] all that counts.
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
    /// What the user gave; all else was derived from it. Files that were written by hand, or before there was this, have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given: Option<Box<Settings>>,
    /// Words for one optimizer of several, by its name.
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
                "note: {} does not tell what was derived from its steps: its warm-up, its evaluations and its optimizer settings are kept",
                path.display()
            );
        }
        settings.derive_anew(&before, &given);
        settings.given = Some(Box::new(given));
        Ok(settings)
    }

    /// Lets go of what was derived from settings that are not what they were `before`.
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

    /// Takes the flags over what is there.
    fn apply(&mut self, flags: &Common) -> Result<()> {
        let settings = self;
        if let Some(task) = &flags.task {
            settings.task = word("task", task)?;
        }
        if let Some(size) = &flags.size {
            settings.size = word("size", size)?;
        }
        if let Some(tokenizer) = &flags.tokenizer {
            settings.tokenizer = word("tokenizer", tokenizer)?;
        }
        if let Some(transport) = &flags.transport {
            settings.transport = Transport::named(Some(transport))?;
        }
        if let Some(decay) = &flags.decay {
            settings.decay = Some(word("decay", decay)?);
        }
        macro_rules! take {
            ($($field:ident),*) => {$( if flags.$field.is_some() { settings.$field = flags.$field.clone(); } )*};
        }
        take!(data, finetune, finetune_eval, from, layers, dim, heads, context, tokenizer_files);
        take!(workers, hosts, deadline, steps, batch, accumulate, lr, warmup, floor, clip, weight_decay, seed);
        take!(out, checkpoint_every, eval_every, eval_examples);
        if let Some(hierarchy) = &flags.hierarchy {
            settings.optimizer.insert("hierarchy".to_owned(), toml::Value::String(hierarchy.clone()));
        }
        for pair in &flags.words {
            let Some((key, value)) = pair.split_once('=') else {
                bail!("--set {pair}: accepted: WORD=VALUE, such as kappa=4");
            };
            // A value that is no TOML by itself is a string: codec=sign needs no quotes.
            let parsed = toml::from_str::<toml::Table>(&format!("value = {value}")).ok();
            let value = parsed.and_then(|mut table| table.remove("value"));
            let text = || toml::Value::String(pair[key.len() + 1..].to_owned());
            let value = value.unwrap_or_else(text);
            match key.trim().split_once('.') {
                Some((name, _)) if Config::from_toml(&format!("name = {:?}", name)).is_err() => {
                    bail!("--set {pair}: {name} is no optimizer; accepted: WORD=VALUE, or OPTIMIZER.WORD=VALUE")
                }
                Some((name, key)) => settings.only.entry(name.to_owned()).or_default().insert(key.to_owned(), value),
                None => settings.optimizer.insert(key.trim().to_owned(), value),
            };
        }
        Ok(())
    }

    /// The optimizer's name.
    pub fn name(&self) -> Result<Name> {
        match self.optimizer.get("name") {
            None => Ok(Name::ZERO_ONE_ADAM),
            Some(name) => Config::from_toml(&format!("name = {name}")).map(|config| config.name).context("optimizer"),
        }
    }

    pub fn set_name(&mut self, name: &str) -> Result<()> {
        if let Some(given) = &mut self.given {
            // Another optimizer than the file's: what was derived for that one does not count.
            let other = self.optimizer.get("name").is_some_and(|before| before.as_str() != Some(name));
            if other {
                self.optimizer = given.optimizer.clone();
                self.lr = given.lr;
            }
            given.set_name(name)?;
        }
        self.optimizer.insert("name".to_owned(), toml::Value::String(name.to_owned()));
        if let Some(words) = self.only.get(name) {
            self.optimizer.extend(words.clone());
        }
        self.name().map(|_| ())
    }

    /// As many workers as `team` has, where that is not a choice.
    pub fn fit(&mut self, team: &Team) -> Result<()> {
        match team.size() {
            None => {
                ensure!(
                    self.transport != Transport::Mpi,
                    "transport = mpi: this process was not started by mpirun or srun"
                );
                let (hosts, workers) = (self.hosts.unwrap_or(1), self.workers.unwrap_or(4));
                let fits = self.hosts.is_none() || (1..=workers).contains(&hosts);
                ensure!(fits, "hosts = {hosts}: accepted: 1 to the {workers} workers");
            }
            Some(size) => {
                ensure!(
                    self.transport != Transport::Threads,
                    "transport = threads: give it as a flag, or leave mpirun out"
                );
                ensure!(
                    self.hosts.is_none(),
                    "hosts: only for threads; the {size} processes that were started know theirs (THINWIRE_HOST names another)"
                );
                let workers = *self.workers.get_or_insert(size);
                ensure!(workers == size, "workers = {workers}: {size} processes were started, and each is a worker");
            }
        }
        let hosts = team.hosts().or(self.hosts).unwrap_or(1);
        let apart = self.optimizer.get("hierarchy").and_then(toml::Value::as_str) == Some("hosts");
        ensure!(
            hosts > 1 || !apart,
            "hierarchy = hosts: all workers are on one host, nothing goes between hosts; accepted here: auto, flat, or on \
             threads --hosts 2 to try it"
        );
        Ok(())
    }

    /// Refuses words that are meant for an optimizer which is none of `names`.
    pub fn check_only(&self, names: &[String]) -> Result<()> {
        match self.only.keys().find(|name| !names.contains(name)) {
            Some(name) => bail!("--set {name}.…: {name} does not run here; accepted: {}", names.join(", ")),
            None => Ok(()),
        }
    }

    /// A run may be resumed, or its settings used again, from another folder.
    fn absolute(&mut self) -> Result<()> {
        let paths =
            [&mut self.data, &mut self.finetune, &mut self.finetune_eval, &mut self.from, &mut self.tokenizer_files];
        for path in paths.into_iter().flatten() {
            *path = std::path::absolute(&*path)?;
        }
        self.given.as_mut().map_or(Ok(()), |given| given.absolute())
    }

    /// Fills in every word but those of the optimizer.
    pub fn resolve(&mut self) -> Result<()> {
        let images = self.task == TaskName::Images;
        let sentences = self.finetune.is_some();
        ensure!(!sentences || self.task == TaskName::Bert, "--finetune is for --task bert");
        ensure!(self.finetune_eval.is_none() || sentences, "--finetune-eval needs --finetune");
        for (given, flag) in [(self.heads.is_some(), "heads"), (self.context.is_some(), "context")] {
            ensure!(!(images && given), "--{flag} is for --task gpt and bert");
        }
        self.absolute()?;
        let small = self.size == Size::Small;
        if images {
            self.layers.get_or_insert(1);
            self.dim.get_or_insert(if small { 32 } else { 16 });
        } else {
            self.layers.get_or_insert(if small { 6 } else { 4 });
            let dim = *self.dim.get_or_insert(if small { 384 } else { 128 });
            self.heads.get_or_insert(if dim.is_multiple_of(64) && small { dim / 64 } else { 4 });
            if !sentences {
                self.context.get_or_insert(if small { 128 } else { 64 }); // sentences choose it by their length
            }
        }
        let steps = *self.steps.get_or_insert(match (images, sentences) {
            (true, _) => 600,
            (_, true) => 300,
            _ => 2000,
        });
        self.workers.get_or_insert(4);
        self.deadline.get_or_insert(threads::DEADLINE.as_secs());
        self.batch.get_or_insert(if images || sentences { 16 } else { 4 });
        self.accumulate.get_or_insert(1);
        self.warmup.get_or_insert((steps / 10).max(1).min(steps.saturating_sub(1)));
        self.decay.get_or_insert(Decay::Cosine);
        if !images && !sentences {
            self.clip.get_or_insert(1.0);
        }
        self.weight_decay.get_or_insert(if images { 0.01 } else { 0.1 });
        self.seed.get_or_insert(1);
        self.checkpoint_every.get_or_insert(0);
        self.eval_every.get_or_insert((steps / 10).max(1));
        const ANY: u64 = i64::MAX as u64; // what TOML can hold
        for (word, value, most) in [
            ("layers", self.layers.unwrap_or(1) as u64, 1000),
            ("dim", self.dim.unwrap_or(1) as u64, 1 << 16),
            ("workers", self.workers.unwrap_or(1) as u64, 1024),
            ("deadline", self.deadline.unwrap_or(1), 1 << 30),
            ("batch", self.batch.unwrap_or(1) as u64, 1 << 20),
            ("accumulate", self.accumulate.unwrap_or(1), 1 << 20),
            ("steps", steps, 1 << 40),
            ("eval_every", self.eval_every.unwrap_or(1), ANY),
            ("eval_examples", self.eval_examples.unwrap_or(1) as u64, ANY),
        ] {
            ensure!(value > 0, "{word} = 0: accepted: a whole number of at least 1");
            ensure!(value <= most, "{word} = {value}: accepted: at most {most}");
        }
        // The engine and the networks check these too, under names of their own.
        let dim = self.dim.unwrap_or(8);
        ensure!(!images || dim.is_multiple_of(8), "dim = {dim}: accepted for images: a multiple of 8; 16 is usual");
        let (warmup, decay) = (self.warmup.unwrap_or(0), self.decay.unwrap_or(Decay::Cosine));
        let ends = warmup < steps || !matches!(decay, Decay::Cosine | Decay::Linear);
        ensure!(ends, "warmup = {warmup}: accepted: fewer than the {steps} steps of the run");
        let lr = self.lr.unwrap_or(0.0);
        ensure!((lr as f32).is_finite() && lr >= 0.0, "lr = {lr}: accepted: a number of at least 0, such as 1e-3");
        let floor = self.floor.unwrap_or(0.0);
        ensure!((0.0..=1.0).contains(&floor), "floor = {floor}: accepted: a part of the peak, 0 to 1");
        let decay = self.weight_decay.unwrap_or(0.0);
        ensure!(decay.is_finite() && decay >= 0.0, "weight_decay = {decay}: accepted: a number of at least 0");
        Ok(())
    }

    /// The learning rate's schedule. Everything must be resolved.
    pub fn schedule(&self) -> LearningRate {
        let (warmup, steps) = (self.warmup.expect("resolved"), self.steps.expect("resolved"));
        LearningRate {
            warmup,
            decay: self.decay.expect("resolved"),
            steps,
            floor: self.floor.unwrap_or(0.0),
            drop_every: ((steps - warmup.min(steps)) / 3).max(1), // `step`: two drops, at a third and at two thirds
            ..LearningRate::constant(self.lr.expect("resolved"))
        }
    }

    /// The engine's configuration, with a parameter group for each tensor: only matrices decay.
    pub fn config(&self, tensors: &Tensors) -> Result<Config> {
        let mut words = self.optimizer.clone();
        for (word, instead) in [
            ("learning_rate", "lr, warmup, decay and steps"),
            ("groups", "weight_decay"),
            ("weight_decay", "weight_decay outside of [optimizer]"),
            ("clip", "clip outside of [optimizer]"),
        ] {
            ensure!(!words.contains_key(word), "optimizer.{word}: give {instead} instead; this follows from them");
        }
        words.insert("name".to_owned(), toml::Value::String(self.name()?.to_string()));
        let mut config = Config::from_toml(&toml::to_string(&words)?).context("optimizer")?;
        config.learning_rate = Some(self.schedule());
        config.clip = self.clip;
        let decay = self.weight_decay.expect("resolved");
        config.groups = groups(tensors, decay);
        Ok(config.resolved()?)
    }

    /// Keeps the optimizer's words as `config` has them resolved, but for those that follow from other settings.
    pub fn keep(&mut self, config: &Config) -> Result<()> {
        self.optimizer = toml::Table::try_from(config)?;
        for word in ["learning_rate", "groups", "weight_decay", "clip"] {
            self.optimizer.remove(word);
        }
        Ok(())
    }
}

/// An error of the TOML reader in words that are not Rust's.
fn plain(error: &str) -> String {
    let words = [("expected u64", "expected a whole number"), ("expected usize", "expected a whole number")];
    let words =
        words.into_iter().chain([("expected f64", "expected a number"), ("expected path string", "expected a path")]);
    words.fold(error.to_owned(), |text, (rust, plain)| text.replace(rust, plain))
}

/// Neighbours with the same decay share a group.
fn groups(tensors: &Tensors, decay: f64) -> Vec<thinwire::options::Group> {
    let mut groups: Vec<thinwire::options::Group> = Vec::new();
    for tensor in tensors.iter() {
        let weight_decay = Some(if tensor.decays() { decay } else { 0.0 });
        match groups.last_mut() {
            Some(last) if last.weight_decay == weight_decay => last.length += tensor.range.len(),
            _ => groups.push(thinwire::options::Group { length: tensor.range.len(), lr_scale: 1.0, weight_decay }),
        }
    }
    groups
}
