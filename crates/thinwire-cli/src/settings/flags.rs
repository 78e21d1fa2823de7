//! Flags, laid over the settings of a file. `--set` reaches any option of the optimizer.

use super::{Settings, Transport};
use crate::arguments::Common;
use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use thinwire::inside::Optimizers;
use toml::Value;

/// The value of a fixed choice, given by a flag.
pub fn named<T: for<'a> Deserialize<'a>>(flag: &str, text: &str) -> Result<T> {
    let value = Value::String(text.to_owned());
    value.try_into().map_err(|error: toml::de::Error| anyhow!("invalid --{flag} {text}: {}", error.message()))
}

impl Settings {
    /// Takes what the flags say.
    pub(super) fn apply(&mut self, flags: &Common) -> Result<()> {
        if let Some(task) = &flags.task {
            self.task = named("task", task)?;
        }
        if let Some(size) = &flags.size {
            self.size = named("size", size)?;
        }
        if let Some(tokenizer) = &flags.tokenizer {
            self.tokenizer = named("tokenizer", tokenizer)?;
        }
        if let Some(transport) = &flags.transport {
            self.transport = Transport::named(Some(transport))?;
        }
        if let Some(decay) = &flags.decay {
            self.decay = Some(named("decay", decay)?);
        }
        if let Some(order) = &flags.order {
            self.order = Some(named("order", order)?);
        }
        macro_rules! take {
            ($($field:ident),*) => {$( if flags.$field.is_some() { self.$field = flags.$field.clone(); } )*};
        }
        take!(data, finetune, finetune_eval, from, layers, dim, heads, context, tokenizer_files);
        take!(workers, hosts, deadline, steps, batch, accumulate, lr, warmup, floor, clip, weight_decay, seed);
        take!(out, checkpoint_every, eval_every, eval_examples);
        if let Some(hierarchy) = &flags.hierarchy {
            self.optimizer.insert("hierarchy".to_owned(), Value::String(hierarchy.clone()));
        }
        flags.options.iter().try_for_each(|pair| self.set(pair))
    }

    /// `--set OPTION=VALUE`, or `--set OPTIMIZER.OPTION=VALUE`.
    fn set(&mut self, pair: &str) -> Result<()> {
        let Some((key, text)) = pair.split_once('=') else {
            bail!("invalid --set {pair}: expected OPTION=VALUE (for example kappa=4)");
        };
        // What is not a TOML value by itself is a string: codec=sign needs no quotes.
        let parsed = toml::from_str::<toml::Table>(&format!("value = {text}")).ok();
        let value = parsed.and_then(|mut table| table.remove("value"));
        let value = value.unwrap_or_else(|| Value::String(text.to_owned()));
        match key.trim().split_once('.') {
            None => self.optimizer.insert(key.trim().to_owned(), value),
            Some((name, key)) => {
                if let Err(error) = Optimizers::chosen(name) {
                    bail!("invalid --set {pair}: expected OPTION=VALUE or OPTIMIZER.OPTION=VALUE; {error}");
                }
                self.only.entry(name.to_owned()).or_default().insert(key.to_owned(), value)
            }
        };
        Ok(())
    }
}
