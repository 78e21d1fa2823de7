//! A run, decided: what [`Settings`] asked for, with every default filled in and every value checked.
//!
//! Two types, so that nobody has to ask whether a value is known yet: in `Settings`, `None` means "not given"; here an `Option`
//! may only be absent for good, such as the limit of a run that does not clip. [`decide`](RunSpec::decide) goes one way,
//! [`written`](RunSpec::written) back: that is the `config.toml` of a run.

mod decide;
mod written;

use crate::settings::{Order, Settings, Size, TaskName, TokenizerName, Transport};
use anyhow::Result;
use std::path::{Path, PathBuf};
use thinwire::inside::optim::table::{Optimizers, Row};
use thinwire::options::{Decay, Group};
use thinwire::{Config, LearningRate};
use thinwire_models::Tensors;

#[derive(Clone, Debug)]
pub struct RunSpec {
    pub task: TaskName,
    pub size: Size,
    pub network: Network,
    /// A file or a folder; without one the data that is compiled in.
    pub data: Option<PathBuf>,
    /// The run whose parameters this one starts from; without one they are random.
    pub from: Option<PathBuf>,
    pub tokenizer: TokenizerName,
    /// The folder with the tokenizer's files; without one GPT-2's own.
    pub tokenizer_files: Option<PathBuf>,

    pub workers: usize,
    pub transport: Transport,
    /// Hosts that threads act as if they were on, if they do.
    pub hosts: Option<usize>,
    /// Seconds that a worker waits for another.
    pub deadline: u64,
    pub steps: u64,
    pub batch: usize,
    pub accumulate: u64,
    pub order: Order,
    /// The peak of the learning rate, and whether it is the recommended one.
    pub lr: f64,
    pub recommended: bool,
    pub warmup: u64,
    pub decay: Decay,
    /// What the learning rate ends at, as a part of the peak; without one it ends at 0.
    pub floor: Option<f64>,
    /// The longest gradient, if it has a limit.
    pub clip: Option<f64>,
    /// Of matrices and kernels.
    pub weight_decay: f64,
    pub seed: u64,

    /// The run's folder, if the user named one.
    pub out: Option<PathBuf>,
    /// 0: only when interrupted, and at the end.
    pub checkpoint_every: u64,
    pub eval_every: u64,
    /// Held-out examples of the last evaluation; without a number all of them.
    pub eval_examples: Option<usize>,

    /// Every option of the optimizer; parameter groups come with the network ([`RunSpec::config`]).
    optimizer: Config,
    /// What the user calls it, if that is the name of a preset.
    label: Option<String>,
    /// What the user gave, for the table `[given]`. Old files do not know it.
    given: Option<Box<Settings>>,
}

/// What is trained, with its sizes.
#[derive(Clone, Debug)]
pub enum Network {
    /// A ResNet that classifies images.
    ResNet { blocks: usize, channels: usize },
    /// A gpt, or a bert that is pre-trained.
    Text(Widths, usize),
    /// A bert that classifies sentences.
    Sentences { widths: Widths, context: Context, file: PathBuf, held_out: Option<PathBuf> },
}

/// The sizes of a transformer, but for its context.
#[derive(Clone, Copy, Debug)]
pub struct Widths {
    pub layers: usize,
    pub dim: usize,
    pub heads: usize,
}

/// How many tokens the network sees at once.
#[derive(Clone, Copy, Debug)]
pub enum Context {
    Tokens(usize),
    /// As many as the pre-trained network, or as the longest example has.
    FitsExamples,
}

impl RunSpec {
    /// The file of sentences to fine-tune on, if that is the task.
    pub fn finetune(&self) -> Option<&Path> {
        match &self.network {
            Network::Sentences { file, .. } => Some(file),
            _ => None,
        }
    }

    /// The file of sentences to score, if there is one.
    pub fn finetune_eval(&self) -> Option<&Path> {
        match &self.network {
            Network::Sentences { held_out, .. } => held_out.as_deref(),
            _ => None,
        }
    }

    /// Whether the user chose the context.
    pub fn context_was_given(&self) -> bool {
        self.given.as_ref().is_some_and(|given| given.context.is_some())
    }

    /// What folders and tables call the optimizer: its name, or that of the preset it was asked for by.
    pub fn called(&self) -> &str {
        self.label.as_deref().unwrap_or(self.optimizer.name.as_str())
    }

    pub fn hosts(&self) -> usize {
        self.hosts.unwrap_or(1)
    }

    /// The learning rate's schedule.
    pub fn schedule(&self) -> LearningRate {
        let (warmup, steps) = (self.warmup, self.steps);
        LearningRate {
            warmup,
            decay: self.decay,
            steps,
            floor: self.floor.unwrap_or(0.0),
            drop_every: ((steps - warmup.min(steps)) / 3).max(1), // `step`: two drops, at a third and at two thirds
            ..LearningRate::constant(self.lr)
        }
    }

    /// The optimizer of `settings` with every option, on this run's learning rate.
    #[cfg(feature = "server")]
    pub fn completed(&self, settings: &Settings) -> Result<toml::Table> {
        let asked = decide::optimizer(settings)?;
        let asked = Config { learning_rate: Some(self.schedule()), clip: self.clip, ..asked };
        written::options(&asked.resolved()?)
    }

    /// The engine's configuration, with a parameter group for each run of tensors: only matrices decay. An optimizer that measures
    /// tensors is told of them.
    pub fn config(&self, tensors: &Tensors) -> Result<Config> {
        let groups = groups(tensors, self.weight_decay);
        let mut config = Config { groups, ..self.optimizer.clone() };
        if Optimizers::row(config.name).wants_tensors() {
            let lengths = tensors.iter().map(|tensor| tensor.range.len()).collect::<Vec<_>>();
            config.own.entry(Row::TENSORS).or_insert_with(|| lengths.into());
        }
        Ok(config.resolved()?)
    }
}

/// Neighbours with the same decay share a group.
fn groups(tensors: &Tensors, decay: f64) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for tensor in tensors.iter() {
        let weight_decay = Some(if tensor.decays() { decay } else { 0.0 });
        match groups.last_mut() {
            Some(last) if last.weight_decay == weight_decay => last.length += tensor.range.len(),
            _ => groups.push(Group { length: tensor.range.len(), lr_scale: 1.0, weight_decay }),
        }
    }
    groups
}
