//! A run as settings with everything filled in: its `config.toml`, and what workers compare.

use super::decide::DERIVED;
use super::{Network, RunSpec};
use crate::job::Found;
use crate::settings::Settings;
use anyhow::Result;
use thinwire::Config;

impl RunSpec {
    /// These settings make the same run again. `found` is what the data said.
    pub fn written(&self, found: &Found) -> Result<Settings> {
        let (layers, dim, heads) = match self.network {
            Network::ResNet { blocks, channels } => (blocks, channels, None),
            Network::Text(widths, _) | Network::Sentences { widths, .. } => {
                (widths.layers, widths.dim, Some(widths.heads))
            }
        };
        Ok(Settings {
            task: self.task,
            data: self.data.clone(),
            data_digest: Some(found.data.clone()),
            finetune: self.finetune().map(Into::into),
            finetune_eval: self.finetune_eval().map(Into::into),
            from: self.from.clone(),
            size: self.size,
            layers: Some(layers),
            dim: Some(dim),
            heads,
            context: found.context,
            tokenizer: self.tokenizer,
            tokenizer_files: self.tokenizer_files.clone(),
            workers: Some(self.workers),
            transport: self.transport,
            hosts: self.hosts,
            deadline: Some(self.deadline),
            steps: Some(self.steps),
            batch: Some(self.batch),
            accumulate: Some(self.accumulate),
            order: Some(self.order),
            lr: Some(self.lr),
            warmup: Some(self.warmup),
            decay: Some(self.decay),
            floor: self.floor,
            clip: self.clip,
            weight_decay: Some(self.weight_decay),
            seed: Some(self.seed),
            out: self.out.clone(),
            checkpoint_every: Some(self.checkpoint_every),
            eval_every: Some(self.eval_every),
            eval_examples: self.eval_examples,
            optimizer: options(&self.optimizer)?,
            label: self.label.clone(),
            given: self.given.clone(),
            only: Default::default(),
        })
    }
}

impl Settings {
    /// What must be the same on all machines; where their files are, and how long they wait, is for each to say.
    pub fn common(self) -> Settings {
        let here = Settings { out: None, data: None, from: None, deadline: None, given: None, ..self };
        Settings { finetune: None, finetune_eval: None, tokenizer_files: None, ..here }
    }

    /// As a run leaves them. Without `out`: who gives them to --config wants another run, not this one replaced.
    pub fn kept(mut self) -> Settings {
        self.out = None;
        if let Some(given) = &mut self.given {
            given.out = None;
        }
        self
    }

    pub fn to_toml(&self) -> Result<String> {
        Ok(toml::to_string(self)?)
    }
}

/// The table `[optimizer]`: what does not follow from other settings.
pub(super) fn options(config: &Config) -> Result<toml::Table> {
    let mut options = toml::Table::try_from(config)?;
    for (derived, _) in DERIVED {
        options.remove(derived);
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TaskName;

    #[test]
    fn what_is_written_decides_the_same_run_again() {
        for task in [TaskName::Gpt, TaskName::Bert, TaskName::Images] {
            let context = (task != TaskName::Images).then_some(64);
            let found = Found { data: "0123456789abcdef".to_owned(), context };
            let asked = Settings { task, steps: Some(77), ..Settings::default() };
            let once = RunSpec::decide(asked.clone()).unwrap().written(&found).unwrap();
            assert_ne!(once, asked, "defaults are filled in");
            assert!(once.lr.is_some() && once.layers.is_some() && once.optimizer.contains_key("betas"), "{once:?}");
            let again = RunSpec::decide(once.clone()).unwrap().written(&found).unwrap();
            assert_eq!(again, once);
        }
    }
}
