//! A language model that a run has trained: its network, its tokenizer, its parameters. Its data is not needed.

use crate::job;
use crate::run_spec::Widths;
use crate::saved::Saved;
use crate::settings::{Settings, TaskName};
use anyhow::{Context, Result, ensure};
use thinwire_models::tokenizer::Tokenizer;
use thinwire_models::transformer::Transformer;

pub struct Language {
    pub network: Transformer,
    pub tokenizer: Tokenizer,
    pub params: Vec<f32>,
}

impl Language {
    /// The gpt in `saved`.
    pub fn of(saved: &Saved) -> Result<Language> {
        let shown = saved.folder.display();
        let settings = saved.settings.as_ref().with_context(|| {
            format!("{shown}: expected config.toml beside the checkpoint, which says what network it is; found none")
        })?;
        let task = settings.task.name();
        ensure!(settings.task == TaskName::Gpt, "{shown}: expected a run of --task gpt, found {task}");
        let (widths, context) = sizes(settings).with_context(|| format!("{shown}: config.toml"))?;
        let tokenizer = job::tokenizer(settings.tokenizer, settings.tokenizer_files.as_deref())?;
        let network = Transformer::new(job::shape(widths, context, true, &tokenizer))?;
        let params = saved.checkpoint.parameters()?;
        let (expected, found) = (network.tensors().len(), params.len());
        ensure!(expected == found, "{shown}: expected {expected} parameters by config.toml, found {found}");
        Ok(Language { network, tokenizer, params })
    }
}

/// The sizes in a run's own file, which has them all unless it was edited.
fn sizes(settings: &Settings) -> Result<(Widths, usize)> {
    let Settings { layers, dim, heads, context, .. } = settings;
    let size = |key: &str, value: &Option<usize>| {
        value.with_context(|| format!("`{key}`: expected a whole number, found nothing"))
    };
    let widths = Widths { layers: size("layers", layers)?, dim: size("dim", dim)?, heads: size("heads", heads)? };
    Ok((widths, size("context", context)?))
}
