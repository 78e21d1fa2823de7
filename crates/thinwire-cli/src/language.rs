//! A language model that a run has trained: its network, its tokenizer, its parameters. Its data is not needed.

use crate::job;
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
        let task = crate::train::task_name(settings);
        ensure!(settings.task == TaskName::Gpt, "{shown}: expected a run of --task gpt, found {task}");
        check_sizes(settings).with_context(|| format!("{shown}: config.toml"))?;
        let tokenizer = job::tokenizer(settings)?;
        let network = Transformer::new(job::shape(settings, &tokenizer))?;
        let params = saved.checkpoint.parameters()?;
        let (expected, found) = (network.tensors().len(), params.len());
        ensure!(expected == found, "{shown}: expected {expected} parameters by config.toml, found {found}");
        Ok(Language { network, tokenizer, params })
    }
}

/// A run's own file has every setting; one that was edited may not.
fn check_sizes(settings: &Settings) -> Result<()> {
    let Settings { layers, dim, heads, context, .. } = settings;
    for (key, value) in [("layers", layers), ("dim", dim), ("heads", heads), ("context", context)] {
        ensure!(value.is_some(), "`{key}`: expected a whole number, found nothing");
    }
    Ok(())
}
