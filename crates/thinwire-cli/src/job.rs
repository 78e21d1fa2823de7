//! From settings to a job: the network, its data, and the learning rate that is recommended for them.

use crate::settings::{Settings, TaskName, TokenizerName};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use thinwire::{Checkpoint, Config, Name};
use thinwire_models::task::bert::Bert;
use thinwire_models::task::bert_classifier::{self, BertClassifier};
use thinwire_models::task::gpt::Gpt;
use thinwire_models::task::images::ImageTask;
use thinwire_models::text::{self, Corpus};
use thinwire_models::tokenizer::Tokenizer;
use thinwire_models::transformer::Shape;
use thinwire_models::{Task, images, sentences};
use xxhash_rust::xxh3::Xxh3;

/// Everything that a run needs, resolved.
pub struct Job {
    pub settings: Settings,
    pub config: Config,
    pub task: BuiltIn,
    /// Of the data, as read, and the files that it was read from.
    data: u64,
    pub files: Vec<PathBuf>,
    /// Whether the learning rate is the recommended one.
    pub recommended: bool,
}

pub enum BuiltIn {
    Gpt(Gpt),
    Bert(Bert),
    BertClassifier(BertClassifier),
    Images(ImageTask),
}

impl BuiltIn {
    pub fn get(&self) -> &dyn Task {
        match self {
            BuiltIn::Gpt(task) => task,
            BuiltIn::Bert(task) => task,
            BuiltIn::BertClassifier(task) => task,
            BuiltIn::Images(task) => task,
        }
    }
}

/// What did best so far for gpt and images: docs/convergence.md. For bert nothing was measured yet: it takes gpt's.
fn recommended_lr(settings: &Settings, name: Name) -> Result<f64> {
    let adams = match settings.task {
        TaskName::Bert if settings.finetune.is_some() => return Ok(3e-4),
        TaskName::Images => return Ok(8e-3),
        TaskName::Gpt | TaskName::Bert => 5e-3,
    };
    Ok(adams * Config::new(name).decide()?.algorithm.rate_to_adams())
}

impl Job {
    /// Reads the data, and resolves every word that is still open.
    pub fn new(mut settings: Settings) -> Result<Job> {
        settings.resolve()?;
        let mut digest = Xxh3::new();
        let (task, files) = built_in(&mut settings, &mut digest)?;
        Job::of(task, digest.digest(), files, settings)
    }

    /// The same job under another optimizer: the data is not read again.
    pub fn under(self, optimizer: &str, given: &Settings) -> Result<Job> {
        let mut settings = given.clone();
        settings.set_name(optimizer)?;
        settings.resolve()?;
        settings.context = self.settings.context; // it may be the data that chose it
        Job::of(self.task, self.data, self.files, settings)
    }

    fn of(task: BuiltIn, data: u64, files: Vec<PathBuf>, mut settings: Settings) -> Result<Job> {
        let digest = format!("{data:016x}");
        let before = settings.data_digest.get_or_insert_with(|| digest.clone());
        ensure!(*before == digest, "the data has changed since the run began, and it cannot go on as it was");
        let recommended = settings.given.as_ref().map_or(settings.lr, |given| given.lr).is_none();
        let lr = recommended_lr(&settings, settings.name()?)?;
        settings.lr.get_or_insert(lr);
        let config = settings.config(task.get().tensors())?;
        settings.keep(&config)?;
        Ok(Job { settings, config, task, data, files, recommended })
    }

    /// The parameters that training starts from.
    pub fn initial(&self) -> Result<Vec<f32>> {
        let seed = self.settings.seed.expect("resolved");
        let random = self.task.get().initial(seed);
        let Some(dir) = &self.settings.from else { return Ok(random) };
        let trained = trained_parameters(dir)?;
        match &self.task {
            BuiltIn::BertClassifier(task) if trained.len() != random.len() => Ok(task.initial_from(&trained, seed)?),
            _ => {
                let (got, wanted) = (trained.len(), random.len());
                ensure!(
                    got == wanted,
                    "--from {}: it has {got} parameters, this network {wanted}; they must be of the same task and sizes",
                    dir.display()
                );
                Ok(trained)
            }
        }
    }
}

/// The parameters in the checkpoint of a run's folder.
fn trained_parameters(dir: &Path) -> Result<Vec<f32>> {
    let checkpoint = Checkpoint::open(dir.join("checkpoint")).with_context(|| format!("--from {}", dir.display()))?;
    Ok(checkpoint.parameters()?)
}

/// The network, and the files of its data, which also goes into `digest`.
fn built_in(settings: &mut Settings, digest: &mut Xxh3) -> Result<(BuiltIn, Vec<PathBuf>)> {
    let workers = settings.workers.expect("resolved");
    if settings.task == TaskName::Images {
        let images = images::read(settings.data.as_deref())?;
        for split in [&images.train, &images.held_out] {
            digest.update(&split.pixels);
            digest.update(&split.labels);
        }
        let (channels, blocks) = (settings.dim.expect("resolved"), settings.layers.expect("resolved"));
        let files = images::files(settings.data.as_deref())?;
        return Ok((BuiltIn::Images(ImageTask::new(images, channels, blocks)?), files));
    }
    let tokenizer = tokenizer(settings)?;
    if let Some(file) = settings.finetune.clone() {
        ensure!(settings.data.is_none(), "--data and --finetune exclude each other");
        let eval = settings.finetune_eval.clone();
        let (sentences, held_out) = (sentences::read(&file)?, eval.as_deref().map(sentences::read).transpose()?);
        for example in held_out.iter().chain([&sentences]).flat_map(|sentences| &sentences.examples) {
            digest.update(format!("{example:?}").as_bytes());
        }
        if settings.context.is_none() {
            let all = || held_out.iter().chain([&sentences]);
            let longest = all().flat_map(|sentences| bert_classifier::lengths(sentences, &tokenizer)).max();
            settings.context = Some(context(settings, longest.unwrap_or(0)));
        }
        let task = BertClassifier::new(sentences, held_out, &tokenizer, shape(settings, &tokenizer))?;
        return Ok((BuiltIn::BertClassifier(task), [Some(file), eval].into_iter().flatten().collect()));
    }
    let shape = shape(settings, &tokenizer);
    let tokens = tokenizer.encode(&text::read(settings.data.as_deref())?);
    digest.update(bytemuck::cast_slice(&tokens));
    let corpus = Corpus::new(tokens, text::HELD_OUT)?;
    corpus.check(workers, shape.context)?;
    let task = match settings.task {
        TaskName::Gpt => BuiltIn::Gpt(Gpt::new(corpus, tokenizer, shape)?),
        _ => BuiltIn::Bert(Bert::new(corpus, &tokenizer, shape)?),
    };
    Ok((task, text::files(settings.data.as_deref())?))
}

pub fn tokenizer(settings: &Settings) -> Result<Tokenizer> {
    match settings.tokenizer {
        TokenizerName::Bytes => {
            ensure!(settings.tokenizer_files.is_none(), "--tokenizer-files is for --tokenizer gpt2");
            Ok(Tokenizer::Bytes)
        }
        TokenizerName::Gpt2 => Ok(Tokenizer::gpt2(settings.tokenizer_files.as_deref())?),
    }
}

/// The network's sizes. They must be resolved.
pub fn shape(settings: &Settings, tokenizer: &Tokenizer) -> Shape {
    Shape {
        vocabulary: tokenizer.vocabulary(),
        context: settings.context.expect("resolved"),
        layers: settings.layers.expect("resolved"),
        dim: settings.dim.expect("resolved"),
        heads: settings.heads.expect("resolved"),
        causal: settings.task == TaskName::Gpt,
        classes: 0,
    }
}

/// The longest context that is chosen for sentences, BERT's own: attention takes time by its square.
pub const LONGEST: usize = 512;

/// The context for sentences of up to `longest` tokens: that of the pre-trained network, which knows no other positions, or one that
/// all fit, if there is room.
fn context(settings: &Settings, longest: usize) -> usize {
    let pretrained = settings.from.as_deref().and_then(|from| Settings::read(&from.join("config.toml")).ok());
    pretrained.and_then(|run| run.context).unwrap_or(longest.next_multiple_of(8).clamp(16, LONGEST))
}
