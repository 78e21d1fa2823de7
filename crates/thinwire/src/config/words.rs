//! The words that stand as values in a configuration.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The optimizers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    Adam,
    OneBitAdam,
    #[default]
    ZeroOneAdam,
    EfficientAdam,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Name::Adam => "adam",
            Name::OneBitAdam => "one-bit-adam",
            Name::ZeroOneAdam => "zero-one-adam",
            Name::EfficientAdam => "efficient-adam",
        })
    }
}

/// A set of defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    Paper,
    Deepspeed,
}

/// What happens to a gradient that is infinite or NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NonFinite {
    /// Every worker stops, and names the one that has it.
    #[default]
    Error,
    /// It is left out of the step, on all workers alike.
    Skip,
}

/// Whether the workers of a host add up before anything is coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hierarchy {
    /// As `hosts` when there are several hosts, and several workers on one of them; else as `flat`.
    #[default]
    Auto,
    /// Every worker codes its own vector, wherever it is.
    Flat,
    /// Exactly inside a host, coded between hosts. Refused where all workers are on one host, for there is no between.
    Hosts,
}

/// How the gap between two syncs of 0/1 Adam grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sync {
    /// It doubles each time the learning rate halves.
    #[default]
    FollowLr,
    /// It doubles every `sync_every` steps.
    Doubling,
    /// It is `sync_every`.
    Every,
    /// The steps are listed in `sync_steps`.
    Custom,
}

/// A number of steps, or a word: how the next two are written.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged, expecting = "accepted: a number of steps, or a word in quotes")]
enum StepsOrWord {
    Steps(u64),
    Word(String),
    /// Neither, but known by name in the error.
    Number(f64),
    Flag(bool),
}

impl StepsOrWord {
    fn refused(&self, accepted: &str) -> String {
        match self {
            StepsOrWord::Steps(steps) => format!("`{steps}`; accepted: {accepted}"),
            StepsOrWord::Word(word) => format!("`{word}`; accepted: {accepted}"),
            StepsOrWord::Number(number) => format!("`{number}`; accepted: {accepted}"),
            StepsOrWord::Flag(flag) => format!("`{flag}`; accepted: {accepted}"),
        }
    }
}

/// How long 1-bit Adam warms up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StepsOrWord", into = "StepsOrWord")]
pub enum Warmup {
    Steps(u64),
    /// Until the variance has settled.
    Auto,
}

/// When 0/1 Adam stops updating the variance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StepsOrWord", into = "StepsOrWord")]
pub enum Freeze {
    Step(u64),
    Never,
}

impl TryFrom<StepsOrWord> for Warmup {
    type Error = String;

    fn try_from(given: StepsOrWord) -> Result<Warmup, String> {
        match given {
            StepsOrWord::Steps(steps) => Ok(Warmup::Steps(steps)),
            StepsOrWord::Word(word) if word == "auto" => Ok(Warmup::Auto),
            other => Err(other.refused("a number of steps, or \"auto\"")),
        }
    }
}

impl From<Warmup> for StepsOrWord {
    fn from(warmup: Warmup) -> StepsOrWord {
        match warmup {
            Warmup::Steps(steps) => StepsOrWord::Steps(steps),
            Warmup::Auto => StepsOrWord::Word("auto".to_owned()),
        }
    }
}

impl TryFrom<StepsOrWord> for Freeze {
    type Error = String;

    fn try_from(given: StepsOrWord) -> Result<Freeze, String> {
        match given {
            StepsOrWord::Steps(step) => Ok(Freeze::Step(step)),
            StepsOrWord::Word(word) if word == "never" => Ok(Freeze::Never),
            other => Err(other.refused("a step, or \"never\"")),
        }
    }
}

impl From<Freeze> for StepsOrWord {
    fn from(freeze: Freeze) -> StepsOrWord {
        match freeze {
            Freeze::Step(step) => StepsOrWord::Steps(step),
            Freeze::Never => StepsOrWord::Word("never".to_owned()),
        }
    }
}
