//! From a decided run to a job: the data is read, the network is made, and the optimizer knows its parameter groups.

use crate::run_spec::{Context, Network, RunSpec, Widths};
use crate::settings::{Settings, TaskName, TokenizerName};
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use thinwire::inside::Optimizers;
use thinwire::{Checkpoint, CodecName, Config};
use thinwire_models::task::bert::Bert;
use thinwire_models::task::bert_classifier::{self, BertClassifier};
use thinwire_models::task::gpt::Gpt;
use thinwire_models::task::images::ImageTask;
use thinwire_models::text::{self, Corpus};
use thinwire_models::tokenizer::Tokenizer;
use thinwire_models::transformer::Shape;
use thinwire_models::{Task, images, sentences};
use thinwire_plan::inside::is_measured;
use xxhash_rust::xxh3::Xxh3;

/// Everything that a run needs.
pub struct Job {
    pub spec: RunSpec,
    pub config: Config,
    pub task: BuiltIn,
    pub found: Found,
    /// The files that the data was read from.
    pub files: Vec<PathBuf>,
}

/// What only the data can say.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its digest.
    pub data: String,
    /// Tokens that the network sees at once, if it sees tokens.
    pub context: Option<usize>,
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

impl Job {
    /// Decides what is still open, and reads the data. A run that goes on must find the data it began with.
    pub fn new(mut settings: Settings) -> Result<Job> {
        let before = settings.data_digest.take();
        let spec = RunSpec::decide(settings)?;
        let mut digest = Xxh3::new();
        let (task, context, files) = built_in(&spec, &mut digest)?;
        let found = Found { data: format!("{:016x}", digest.digest()), context };
        let before = before.unwrap_or_else(|| found.data.clone());
        ensure!(
            before == found.data,
            "data: expected digest {before}, found {}: the data has changed since the run began, so it cannot be resumed",
            found.data
        );
        let config = spec.config(task.get().tensors())?;
        Ok(Job { spec, config, task, found, files })
    }

    /// The same job under another optimizer: the data is not read again.
    pub fn under(self, optimizer: &str, given: &Settings) -> Result<Job> {
        let mut settings = given.clone();
        settings.set_name(optimizer)?;
        let spec = RunSpec::decide(settings)?;
        let config = spec.config(self.task.get().tensors())?;
        Ok(Job { spec, config, ..self })
    }

    /// Settings that make this job again.
    pub fn written(&self) -> Result<Settings> {
        self.spec.written(&self.found)
    }

    /// Whether anybody has measured how the optimizer learns.
    pub fn is_measured(&self) -> bool {
        let coarse = self.config.codec_up.unwrap_or(CodecName::F32);
        self.config.decide().is_ok_and(|settings| settings.algorithm.rank(coarse).is_some())
            || is_measured(Optimizers::row(self.config.name)) && self.spec.called() == self.config.name.as_str()
    }

    /// The parameters that training starts from.
    pub fn initial(&self) -> Result<Vec<f32>> {
        let random = self.task.get().initial(self.spec.seed);
        let Some(dir) = &self.spec.from else { return Ok(random) };
        let trained = trained_parameters(dir)?;
        match &self.task {
            BuiltIn::BertClassifier(task) if trained.len() != random.len() => {
                Ok(task.initial_from(&trained, self.spec.seed)?)
            }
            _ => {
                let (found, expected) = (trained.len(), random.len());
                ensure!(
                    found == expected,
                    "--from {}: expected {expected} parameters, as this network has, found {found}; both runs need the same task \
                     and sizes",
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

/// A network, its context, and the files of its data.
type Built = (BuiltIn, Option<usize>, Vec<PathBuf>);

/// Reads the data, which also goes into `digest`, and makes the network for it.
fn built_in(spec: &RunSpec, digest: &mut Xxh3) -> Result<Built> {
    match &spec.network {
        Network::ResNet { blocks, channels } => image_task(spec, *blocks, *channels, digest),
        Network::Text(widths, context) => text_task(spec, *widths, *context, digest),
        Network::Sentences { widths, context, file, held_out } => {
            let (widths, context) = (*widths, *context);
            sentence_task(spec, widths, context, file, held_out.as_deref(), digest)
        }
    }
}

fn image_task(spec: &RunSpec, blocks: usize, channels: usize, digest: &mut Xxh3) -> Result<Built> {
    let images = images::read(spec.data.as_deref())?;
    for split in [&images.train, &images.held_out] {
        digest.update(&split.pixels);
        digest.update(&split.labels);
    }
    let files = images::files(spec.data.as_deref())?;
    Ok((BuiltIn::Images(ImageTask::new(images, channels, blocks)?), None, files))
}

fn text_task(spec: &RunSpec, widths: Widths, context: usize, digest: &mut Xxh3) -> Result<Built> {
    let tokenizer = tokenizer(spec.tokenizer, spec.tokenizer_files.as_deref())?;
    let causal = spec.task == TaskName::Gpt;
    let shape = shape(widths, context, causal, &tokenizer);
    let tokens = tokenizer.encode(&text::read(spec.data.as_deref())?);
    digest.update(bytemuck::cast_slice(&tokens));
    let corpus = Corpus::new(tokens, text::HELD_OUT)?;
    corpus.check(spec.workers, context)?;
    let task = match causal {
        true => BuiltIn::Gpt(Gpt::new(corpus, tokenizer, shape)?),
        false => BuiltIn::Bert(Bert::new(corpus, &tokenizer, shape)?),
    };
    Ok((task, Some(context), text::files(spec.data.as_deref())?))
}

fn sentence_task(
    spec: &RunSpec,
    widths: Widths,
    context: Context,
    file: &Path,
    eval: Option<&Path>,
    digest: &mut Xxh3,
) -> Result<Built> {
    let tokenizer = tokenizer(spec.tokenizer, spec.tokenizer_files.as_deref())?;
    let (sentences, held_out) = (sentences::read(file)?, eval.map(sentences::read).transpose()?);
    let all = || held_out.iter().chain([&sentences]);
    for example in all().flat_map(|sentences| &sentences.examples) {
        digest.update(format!("{example:?}").as_bytes());
    }
    let context = match context {
        Context::Tokens(context) => context,
        Context::FitsExamples => {
            let lengths = all().flat_map(|sentences| bert_classifier::lengths(sentences, &tokenizer));
            fitting(spec.from.as_deref(), lengths.max().unwrap_or(0))
        }
    };
    let shape = shape(widths, context, false, &tokenizer);
    let files = [Some(file), eval].into_iter().flatten().map(Path::to_owned).collect();
    let task = BertClassifier::new(sentences, held_out, &tokenizer, shape)?;
    Ok((BuiltIn::BertClassifier(task), Some(context), files))
}

pub fn tokenizer(name: TokenizerName, files: Option<&Path>) -> Result<Tokenizer> {
    match name {
        TokenizerName::Bytes => {
            ensure!(files.is_none(), "invalid --tokenizer-files: expected --tokenizer gpt2 beside it, found bytes");
            Ok(Tokenizer::Bytes)
        }
        TokenizerName::Gpt2 => Ok(Tokenizer::gpt2(files)?),
    }
}

/// The shape of a transformer.
pub fn shape(widths: Widths, context: usize, causal: bool, tokenizer: &Tokenizer) -> Shape {
    let Widths { layers, dim, heads } = widths;
    Shape { vocabulary: tokenizer.vocabulary(), context, layers, dim, heads, causal, classes: 0 }
}

/// The longest context that is chosen for sentences, BERT's own: attention takes time by its square.
pub const LONGEST: usize = 512;

/// The context for sentences of up to `longest` tokens: that of the pre-trained network, which knows no other positions, or one that
/// all fit, if there is room.
fn fitting(from: Option<&Path>, longest: usize) -> usize {
    let pretrained = from.and_then(|from| Settings::read(&from.join("config.toml")).ok());
    pretrained.and_then(|run| run.context).unwrap_or(longest.next_multiple_of(8).clamp(16, LONGEST))
}
