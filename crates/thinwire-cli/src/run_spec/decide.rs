//! From settings to a run: the defaults of each task, and what is refused.

use super::{Context, Network, RunSpec, Widths};
use crate::defaults;
use crate::settings::{Settings, Size, TaskName};
use anyhow::{Context as _, Result, ensure};
use thinwire::options::Decay;
use thinwire::{Config, Name, threads};
use toml::Value;

/// The kinds of runs that have defaults of their own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Sentences,
    Images,
}

impl Kind {
    fn of(asked: &Settings) -> Kind {
        match asked.task {
            TaskName::Images => Kind::Images,
            _ if asked.finetune.is_some() => Kind::Sentences,
            _ => Kind::Text,
        }
    }

    fn steps(self) -> u64 {
        match self {
            Kind::Text => 2000,
            Kind::Sentences => 300,
            Kind::Images => 600,
        }
    }

    fn batch(self) -> usize {
        if self == Kind::Text { 4 } else { 16 }
    }

    fn clip(self) -> Option<f64> {
        (self == Kind::Text).then_some(1.0)
    }

    fn weight_decay(self) -> f64 {
        if self == Kind::Images { 0.01 } else { 0.1 }
    }

    /// What did best so far with Adam for gpt and images: docs/convergence.md. For bert nothing was measured yet: it takes gpt's.
    /// Other optimizers want a multiple of it. A higher one made no difference for images and sentences; a lower one is for those that move
    /// every parameter by the rate.
    fn lr(self, name: Name) -> Result<f64> {
        let to_adams = Config::new(name).decide()?.algorithm.rate_to_adams();
        Ok(match self {
            Kind::Sentences => 3e-4 * to_adams.min(1.0),
            Kind::Images => 8e-3 * to_adams.min(1.0),
            Kind::Text => 5e-3 * to_adams,
        })
    }
}

impl RunSpec {
    /// Fills in every default, and checks what came of it.
    pub fn decide(mut asked: Settings) -> Result<RunSpec> {
        check_combinations(&asked)?;
        asked.absolute()?;
        let kind = Kind::of(&asked);
        let steps = asked.steps.unwrap_or(kind.steps());
        let tenth = (steps / 10).max(1);
        let mut spec = RunSpec {
            network: network(&asked, kind),
            workers: asked.workers.unwrap_or(defaults::WORKERS),
            deadline: asked.deadline.unwrap_or(threads::DEADLINE.as_secs()),
            steps,
            batch: asked.batch.unwrap_or(kind.batch()),
            accumulate: asked.accumulate.unwrap_or(1),
            order: asked.order.unwrap_or_default(),
            lr: asked.lr.map_or_else(|| kind.lr(asked.name()?), Ok)?,
            recommended: asked.given.as_ref().map_or(asked.lr, |given| given.lr).is_none(),
            warmup: asked.warmup.unwrap_or(tenth.min(steps.saturating_sub(1))),
            decay: asked.decay.unwrap_or(Decay::Cosine),
            floor: asked.floor,
            clip: asked.clip.or(kind.clip()),
            weight_decay: asked.weight_decay.unwrap_or(kind.weight_decay()),
            seed: asked.seed.unwrap_or(1),
            checkpoint_every: asked.checkpoint_every.unwrap_or(0),
            eval_every: asked.eval_every.unwrap_or(tenth),
            eval_examples: asked.eval_examples,
            optimizer: optimizer(&asked)?,
            task: asked.task,
            size: asked.size,
            data: asked.data,
            from: asked.from,
            tokenizer: asked.tokenizer,
            tokenizer_files: asked.tokenizer_files,
            transport: asked.transport,
            hosts: asked.hosts,
            out: asked.out,
            label: asked.label,
            given: asked.given,
        };
        spec.check_counts()?;
        spec.check_rates()?;
        let asked = Config { learning_rate: Some(spec.schedule()), clip: spec.clip, ..spec.optimizer };
        spec.optimizer = asked.resolved()?;
        Ok(spec)
    }

    /// Whole numbers. The engine and the networks check some of them too, under names of their own.
    fn check_counts(&self) -> Result<()> {
        const ANY: u64 = i64::MAX as u64; // what TOML can hold
        let (layers, dim) = self.network.extent();
        for (key, value, most) in [
            ("layers", layers as u64, 1000),
            ("dim", dim as u64, 1 << 16),
            ("workers", self.workers as u64, 1024),
            ("deadline", self.deadline, 1 << 30),
            ("batch", self.batch as u64, 1 << 20),
            ("accumulate", self.accumulate, 1 << 20),
            ("steps", self.steps, 1 << 40),
            ("eval_every", self.eval_every, ANY),
            ("eval_examples", self.eval_examples.unwrap_or(1) as u64, ANY),
        ] {
            ensure!(value > 0, "invalid {key} = 0: expected a whole number of at least 1");
            ensure!(value <= most, "invalid {key} = {value}: expected a whole number of at most {most}");
        }
        let fits = !matches!(self.network, Network::ResNet { .. }) || dim.is_multiple_of(8);
        ensure!(fits, "invalid dim = {dim}: expected a multiple of 8 for images (for example 16)");
        let (warmup, steps) = (self.warmup, self.steps);
        let ends = warmup < steps || !matches!(self.decay, Decay::Cosine | Decay::Linear);
        ensure!(ends, "invalid warmup = {warmup}: expected fewer than the {steps} steps of the run");
        Ok(())
    }

    fn check_rates(&self) -> Result<()> {
        let RunSpec { lr, weight_decay, .. } = self;
        let sound = (*lr as f32).is_finite() && *lr >= 0.0;
        ensure!(sound, "invalid lr = {lr}: expected a number of at least 0 (for example 1e-3)");
        let floor = self.floor.unwrap_or(0.0);
        ensure!(
            (0.0..=1.0).contains(&floor),
            "invalid floor = {floor}: expected a part of the peak, 0 to 1 (for example 0.1)"
        );
        let sound = weight_decay.is_finite() && *weight_decay >= 0.0;
        ensure!(sound, "invalid weight_decay = {weight_decay}: expected a number of at least 0 (for example 0.1)");
        Ok(())
    }
}

/// Refuses settings of another task.
fn check_combinations(asked: &Settings) -> Result<()> {
    let finetunes = asked.finetune.is_some();
    let images = asked.task == TaskName::Images;
    ensure!(
        !finetunes || asked.task == TaskName::Bert,
        "invalid --finetune: expected --task bert beside it, found {}",
        asked.task.name()
    );
    ensure!(
        finetunes || asked.finetune_eval.is_none(),
        "invalid --finetune-eval: expected --finetune beside it, found none"
    );
    ensure!(
        !finetunes || asked.data.is_none(),
        "invalid --data: expected it without --finetune, which has the data; found both"
    );
    for (given, flag) in [(asked.heads.is_some(), "heads"), (asked.context.is_some(), "context")] {
        ensure!(!images || !given, "invalid --{flag}: expected --task gpt and bert only, found images");
    }
    Ok(())
}

fn network(asked: &Settings, kind: Kind) -> Network {
    let small = asked.size == Size::Small;
    if kind == Kind::Images {
        let channels = asked.dim.unwrap_or(if small { 32 } else { 16 });
        return Network::ResNet { blocks: asked.layers.unwrap_or(1), channels };
    }
    let dim = asked.dim.unwrap_or(if small { 384 } else { 128 });
    let heads = asked.heads.unwrap_or(if dim.is_multiple_of(64) && small { dim / 64 } else { 4 });
    let widths = Widths { layers: asked.layers.unwrap_or(if small { 6 } else { 4 }), dim, heads };
    match asked.finetune.clone() {
        None => Network::Text(widths, asked.context.unwrap_or(if small { 128 } else { 64 })),
        Some(file) => {
            let context = asked.context.map_or(Context::FitsExamples, Context::Tokens);
            Network::Sentences { widths, context, file, held_out: asked.finetune_eval.clone() }
        }
    }
}

impl Network {
    /// Layers and width, as the flags call them.
    fn extent(&self) -> (usize, usize) {
        match self {
            Network::ResNet { blocks, channels } => (*blocks, *channels),
            Network::Text(widths, _) | Network::Sentences { widths, .. } => (widths.layers, widths.dim),
        }
    }
}

/// What follows from other settings, and from which.
pub(super) const DERIVED: [(&str, &str); 4] = [
    ("learning_rate", "lr, warmup, decay and steps"),
    ("groups", "weight_decay"),
    ("weight_decay", "weight_decay outside of [optimizer]"),
    ("clip", "clip outside of [optimizer]"),
];

/// The optimizer as asked for.
pub(super) fn optimizer(asked: &Settings) -> Result<Config> {
    for (key, instead) in DERIVED {
        if let Some(value) = asked.optimizer.get(key) {
            anyhow::bail!("invalid optimizer.{key} = {value}: expected {instead} instead, from which it follows");
        }
    }
    let mut options = asked.optimizer.clone();
    options.insert("name".to_owned(), Value::String(asked.name()?.to_string()));
    Config::from_toml(&toml::to_string(&options)?).context("optimizer")
}
