//! What was asked for: an optimizer by its name, and the options that were given. All else stands at its default.
//!
//! The options are spelt alike in TOML files, JSON, flags and Python keywords. Those that several optimizers share are fields of
//! [`Config`]; those of one optimizer are declared in its own file (such as [`ZeroOneAdam`](crate::ZeroOneAdam)) and kept under
//! [`Config::own`]. [`Config::decide`] gives every option its value, or says which one is wrong.

mod keys;
mod values;

pub(crate) use keys::keys;
pub(crate) use values::StepsOrWord;
pub use values::{Hierarchy, Name, NonFinite, Outlier};

use crate::codec::{CodecName, Precision};
use crate::error::Result;
use crate::exchange::layout::Topology;
use crate::machine::Group;
use crate::schedule::LearningRate;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// An optimizer by its name, and the options given; all else stands at its default.
///
/// ```
/// use thinwire::{Config, Name, ZeroOneAdam};
///
/// let usual = Config::new(Name::ADAM);
/// let sparse = Config::of(ZeroOneAdam { sync_every: Some(4), ..Default::default() });
/// let decayed = Config { weight_decay: Some(0.1), ..sparse };
/// assert_eq!(Config::from_toml("name = 'zero-one-adam'\nsync_every = 4\nweight_decay = 0.1")?, decayed);
/// # Ok::<(), thinwire::Error>(())
/// ```
///
/// | preset | what it sets |
/// |---|---|
/// | `paper` | the papers' form: no bias correction; κ = 16, variance frozen at the end of the learning rate's warm-up, gaps that follow the learning rate (so `learning_rate` is needed) up to 16; 1-bit Adam's warm-up found by the run; Efficient-Adam with 3-bit powers of two |
/// | `deepspeed` | the defaults of DeepSpeed's 1-bit Adam and 0/1 Adam: no bias correction; variance frozen after `var_freeze_step` = 100,000 steps, gaps that double every `local_step_scaler` = 32,678 steps up to `local_step_clipper` = 16; 1-bit Adam's `freeze_step` = 100,000 |
/// | `fedavg` | local Adam's workers average their models: `outer = "average"` |
/// | `slowmo` | local Adam with `outer = "slow-momentum"`, `sync_every = 12` |
/// | `diloco` | local Adam with `outer = "nesterov"`, `sync_every = 500` |
/// | `dsm` | local Adam with `outer = "sign"`, `sync_every = 12` |
/// | `loco` | LoCo with `adam`: `uniform4` up, `bf16` down, a fifth of each loss remembered in 8 bits |
/// | `distributed-lion`, `lion-cub` | the papers' forms of `lion` |
///
/// | DeepSpeed's name | option here | meaning |
/// |---|---|---|
/// | `var_freeze_step` | `freeze`, and `sync_start` | the first step that no longer updates the variance, and the first that may be skipped; `kappa` is then 16, as theirs |
/// | `var_update_scaler` | `kappa` | variance updates before the gap between them doubles |
/// | `local_step_scaler` | `sync_every`, with `sync = "doubling"` | steps before the gap between syncs doubles |
/// | `local_step_clipper` | `sync_longest` | the longest gap between syncs; gaps are powers of two, so 12 means 8 |
/// | `freeze_step` | `warmup` | 1-bit Adam's exact steps |
///
/// What does not carry over: DeepSpeed lets weight decay into the momentum; here it stays decoupled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "a table of options, at least name")]
pub struct Config {
    /// Which optimizer.
    pub name: Name,
    /// A set of defaults, from the table above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,

    /// β1 and β2. Default (0.9, 0.999); for Lion (0.9, 0.99). Birder has one, its option `beta`.
    #[serde(default, deserialize_with = "two_numbers", skip_serializing_if = "Option::is_none")]
    pub betas: Option<(f64, f64)>,
    /// ε. Default 1e-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eps: Option<f64>,
    /// λ, decoupled. Default 0.01, as in `torch.optim.AdamW`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Whether the moments are corrected for their start at 0. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias_correction: Option<bool>,
    /// The longest gradient, by its norm: of the mean in exact steps, of the worker's own in all others. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,

    /// Both ways of a coarse round. Default `sign`; for Efficient-Adam `uniform4`, for local Adam `f32`, for Lion and Birder `vote`. With
    /// `adam` all rounds are coarse if it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codec: Option<CodecName>,
    /// From the workers to the owners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codec_up: Option<CodecName>,
    /// From the owners to the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codec_down: Option<CodecName>,
    /// Both ways of an exact round: `f32`; `bf16` for half the bytes; `power6` or `power5` for a fifth, which keep the size of a value
    /// to a third. Default `f32`; for 0/1 Adam `bf16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_codec: Option<CodecName>,
    /// How the residuals of error feedback are kept: `f32`; `bf16` for half the memory, or `i8` for a quarter, which round them. Default
    /// `f32`.
    /// The old spelling `residue` is accepted too.
    #[serde(default, alias = "residue", skip_serializing_if = "Option::is_none")]
    pub residual: Option<Precision>,
    /// κ: how much of what a code loses is remembered and told later, 0 to 1, both ways. 1, the default, is classic error feedback; less
    /// tells it later and in smaller portions; 0 forgets it, and needs no memory. The default is 0 for Lion and Birder, and for local Adam
    /// in `f32`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<f64>,
    /// κ on the way from the workers to the owners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback_up: Option<f64>,
    /// κ on the way from the owners to the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback_down: Option<f64>,
    /// Parameters that share a scale, 1 to 4096. Default 512.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<usize>,
    /// Who averages: every worker a part, or worker 0 all. Default `sharded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Whether workers of one host add up exactly before their sum is coded: `auto`, `flat` or `hosts`. Default `auto`: they do
    /// where there are several hosts, and several workers on one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hierarchy: Option<Hierarchy>,
    /// What goes inside a host then, in exact and in coarse rounds: `f32`, or `bf16` for half the bytes. Default `f32`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_codec: Option<CodecName>,
    /// Whether a worker's vector counts by the weight of its steps, such as its number of examples or tokens
    /// ([`Worker::set_weight`](crate::Worker::set_weight)), and not as much as every other. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weighted: Option<bool>,
    /// What a gradient that is not finite, or larger than 2⁶², does. Default `error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub non_finite: Option<NonFinite>,
    /// What is done with a worker's gradient that is far longer than those before it: `clip`, `skip` or `off`. A worker that is alone
    /// is not judged. Default `clip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlier: Option<Outlier>,
    /// How far: so many times the median of the last 32 norms. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlier_factor: Option<f64>,

    /// The options of this optimizer alone, by their keys: see [`Config::of`].
    #[serde(flatten, skip_deserializing)]
    pub own: Map<String, Value>,

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
        Config {
            name,
            preset: None,
            betas: None,
            eps: None,
            weight_decay: None,
            bias_correction: None,
            clip: None,
            codec: None,
            codec_up: None,
            codec_down: None,
            exact_codec: None,
            residual: None,
            feedback: None,
            feedback_up: None,
            feedback_down: None,
            block: None,
            topology: None,
            hierarchy: None,
            host_codec: None,
            weighted: None,
            non_finite: None,
            outlier: None,
            outlier_factor: None,
            own: Map::new(),
            threads: None,
            bucket: None,
            learning_rate: None,
            groups: Vec::new(),
        }
    }
}

impl Config {
    /// Whether a codec of coarse rounds was given.
    pub(crate) fn is_coded(&self) -> bool {
        [self.codec, self.codec_up, self.codec_down].iter().any(Option::is_some)
    }
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Config::serialize(self, serializer)
    }
}

/// The options that optimizers share, without those of any one optimizer: what [`Config`] is read from by itself.
pub(crate) struct Shared(pub Config);

impl<'de> Deserialize<'de> for Shared {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shared, D::Error> {
        Config::deserialize(deserializer).map(Shared)
    }
}

/// Exactly two: a third would be dropped silently by a tuple in TOML.
fn two_numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<(f64, f64)>, D::Error> {
    let wrong = |given: &[f64]| D::Error::custom(format!("`{given:?}`; expected two numbers, such as [0.9, 0.999]"));
    match Option::<Vec<f64>>::deserialize(deserializer)?.as_deref() {
        None => Ok(None),
        Some([beta1, beta2]) => Ok(Some((*beta1, *beta2))),
        Some(other) => Err(wrong(other)),
    }
}
