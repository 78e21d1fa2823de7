//! Configuration: the words of TOML files, JSON, flags and Python keywords, which are all the same.
//!
//! Every word but `name` may be left out. [`Config::resolved`] applies the preset, translates DeepSpeed's names, fills in the
//! defaults and refuses what cannot be; what it returns has every word that counts written out, and is what a run records.
//!
//! | preset | what it sets |
//! |---|---|
//! | `paper` | the papers' form: no bias correction; κ = 16, variance frozen at the end of the learning rate's warm-up, gaps that follow the learning rate (so `learning_rate` is needed) up to 16; 1-bit Adam's warm-up found by the run; Efficient-Adam with 3-bit powers of two |
//! | `deepspeed` | the defaults of DeepSpeed's 1-bit Adam and 0/1 Adam: no bias correction; variance frozen after `var_freeze_step` = 100,000 steps, gaps that double every `local_step_scaler` = 32,678 steps up to `local_step_clipper` = 16; 1-bit Adam's `freeze_step` = 100,000 |
//!
//! | DeepSpeed's name | word here | meaning |
//! |---|---|---|
//! | `var_freeze_step` | `freeze`, and `sync_start` | the first step that no longer updates the variance, and the first that may be skipped; `kappa` is then 16, as theirs |
//! | `var_update_scaler` | `kappa` | variance updates before the gap between them doubles |
//! | `local_step_scaler` | `sync_every`, with `sync = "doubling"` | steps before the gap between syncs doubles |
//! | `local_step_clipper` | `sync_longest` | the longest gap between syncs; gaps are powers of two, so 12 means 8 |
//! | `freeze_step` | `warmup` | 1-bit Adam's exact steps |
//!
//! What does not carry over: DeepSpeed lets weight decay into the momentum; here it stays decoupled.

mod build;
mod check;
mod resolve;
mod words;

pub use words::{Freeze, Hierarchy, Name, NonFinite, Preset, Sync, Warmup};

use crate::codec::CodecName;
use crate::error::{Error, Result};
use crate::groups::Group;
use crate::layout::Topology;
use crate::optimizer::Theta;
use crate::residue::Precision;
use crate::schedule::LearningRate;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// An optimizer and everything about it. See the [module](self) for presets and DeepSpeed's names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of words, at least name")]
pub struct Config {
    pub name: Name,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,

    /// β1 and β2. Default (0.9, 0.999).
    #[serde(default, deserialize_with = "two_numbers", skip_serializing_if = "Option::is_none")]
    pub betas: Option<(f64, f64)>,
    /// ε. Default 1e-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eps: Option<f64>,
    /// λ, decoupled. Default 0.01, as in `torch.optim.AdamW`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias_correction: Option<bool>,
    /// The longest gradient, by its norm: of the mean in exact steps, of the worker's own in all others. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,

    /// Both ways of a coarse mean. Default `sign`; for Efficient-Adam `uniform4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codec: Option<CodecName>,
    /// From the workers to the owners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codec_up: Option<CodecName>,
    /// From the owners to the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codec_down: Option<CodecName>,
    /// Both ways of an exact mean: `f32`, or `bf16` for half the bytes. Default `f32`; for 0/1 Adam `bf16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_codec: Option<CodecName>,
    /// How a worker keeps what it has not said yet: `f32`, or `bf16` for half the memory, which rounds it.
    /// Default `f32`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residue: Option<Precision>,
    /// Values to a scale, 1 to 4096. Default 512.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<usize>,
    /// Default `sharded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Whether workers of one host add up exactly before their sum is coded: `auto`, `flat` or `hosts`. Default `auto`: they do
    /// where there are several hosts, and several workers on one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hierarchy: Option<Hierarchy>,
    /// What goes inside a host then, in exact and in coarse means: `f32`, or `bf16` for half the bytes. Default `f32`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_codec: Option<CodecName>,
    /// What a gradient that is not finite does. Default `error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub non_finite: Option<NonFinite>,

    /// 1-bit Adam: exact steps. Default: 15 % of `learning_rate.steps`, and at least 100; `auto` when that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup: Option<Warmup>,

    /// 0/1 Adam, κ: variance updates before the gap between them doubles. Default 16, or 32 when `learning_rate.steps` is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kappa: Option<u64>,
    /// 0/1 Adam: the shortest gap between variance updates, after as many steps that all update it. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variance_gap: Option<u64>,
    /// 0/1 Adam: the longest gap between variance updates; gaps are powers of two times the shortest. Default: a 200th of
    /// `learning_rate.steps`; no limit when that is not known, or when `kappa` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variance_longest: Option<u64>,
    /// 0/1 Adam: the first step that no longer updates the variance. Default: 40 % of `learning_rate.steps`, and at least 100 steps
    /// and two of its warm-ups; `never` when that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze: Option<Freeze>,
    /// 0/1 Adam: exactly these steps update the variance, in rising order; instead of `kappa`, `variance_gap`,
    /// `variance_longest` and `freeze`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variance_steps: Option<Vec<u64>>,
    /// 0/1 Adam: how the gap between syncs grows. Default `follow-lr`, or `every` step without `learning_rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<Sync>,
    /// 0/1 Adam: the first step that may be skipped. Default: the end of the learning rate's warm-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_start: Option<u64>,
    /// 0/1 Adam: steps between doublings (`doubling`, default 32,678), or the gap itself (`every`, default 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_every: Option<u64>,
    /// 0/1 Adam, H: the longest gap between syncs. Default 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_longest: Option<u64>,
    /// 0/1 Adam: exactly these steps sync, in rising order, with `sync = "custom"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_steps: Option<Vec<u64>>,

    /// Efficient-Adam: how much of v a step keeps. Default `constant`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theta: Option<Theta>,

    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub var_freeze_step: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub var_update_scaler: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_step_scaler: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_step_clipper: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze_step: Option<u64>,

    /// Threads a worker computes on. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Bytes a worker sends at a time; packing one bucket overlaps sending another. Default 4 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<usize>,

    /// The schedule of the run, from which the schedules of the rounds follow. The rate itself is given to each step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<LearningRate>,
    /// Parameter groups, in order. Default: one group of everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
}

impl Config {
    /// Everything at its default.
    pub fn new(name: Name) -> Config {
        Config { name, ..Config::default() }
    }

    pub fn from_toml(text: &str) -> Result<Config> {
        let named = |error: serde_path_to_error::Error<toml::de::Error>| syntax(error.path(), error.inner().message());
        let toml = toml::Deserializer::parse(text).map_err(|error| Error::ConfigSyntax(error.to_string()))?;
        serde_path_to_error::deserialize(toml).map_err(named)
    }

    pub fn from_json(text: &str) -> Result<Config> {
        let named =
            |error: serde_path_to_error::Error<serde_json::Error>| syntax(error.path(), &error.inner().to_string());
        let mut json = serde_json::Deserializer::from_str(text);
        let config = serde_path_to_error::deserialize(&mut json).map_err(named)?;
        json.end().map_err(|error| Error::ConfigSyntax(error.to_string()))?;
        Ok(config)
    }
}

/// Exactly two: a third would be dropped silently by a tuple in TOML.
fn two_numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<(f64, f64)>, D::Error> {
    let wrong = |given: &[f64]| D::Error::custom(format!("`{given:?}`; accepted: two numbers, such as [0.9, 0.999]"));
    match Option::<Vec<f64>>::deserialize(deserializer)?.as_deref() {
        None => Ok(None),
        Some([beta1, beta2]) => Ok(Some((*beta1, *beta2))),
        Some(other) => Err(wrong(other)),
    }
}

/// The key, and what is wrong with it.
fn syntax(path: &serde_path_to_error::Path, problem: &str) -> Error {
    match path.to_string().as_str() {
        "." if problem.contains("missing field `name`") => Error::ConfigSyntax(
            "name is missing; accepted: adam, one-bit-adam, zero-one-adam, efficient-adam".to_owned(),
        ),
        "." => Error::ConfigSyntax(problem.to_owned()),
        key => Error::ConfigSyntax(format!("{key}: {problem}")),
    }
}
