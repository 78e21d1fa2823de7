//! The values that options take, beyond numbers.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The name of an optimizer, such as `zero-one-adam`. The file of each declares its own: [`Name::ADAM`] and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Name(&'static str);

impl Name {
    #[doc(hidden)] // for the optimizer's file, wherever that is
    pub const fn new(name: &'static str) -> Name {
        Name(name)
    }

    /// As configurations spell it.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

/// What happens to a gradient that is infinite or NaN, or larger than 2⁶².
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum NonFinite {
    /// Every worker stops, and names the one that has it.
    #[default]
    Error,
    /// It is left out of the step, on all workers alike.
    Skip,
}

/// What happens to a gradient, or to a message at a server, that is far longer than those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outlier {
    /// It is made as short as the longest that may be.
    #[default]
    Clip,
    /// It is left out of the step, on all workers alike.
    Skip,
    /// Nothing: nobody looks.
    Off,
}

/// Whether the workers of a host add up before anything is coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Hierarchy {
    /// As `hosts` when there are several hosts, and several workers on one of them; else as `flat`.
    #[default]
    Auto,
    /// Every worker codes its own vector, wherever it is.
    Flat,
    /// Exactly inside a host, coded between hosts. Refused where all workers share one host: nothing goes between hosts.
    Hosts,
}

/// A number of steps, or a word: how some options are written.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number of steps, or a word in quotes")]
pub(crate) enum StepsOrWord {
    Steps(u64),
    Word(String),
    /// Neither, but known by name in the error.
    Number(f64),
    Flag(bool),
}

impl StepsOrWord {
    pub(crate) fn refused(&self, expected: &str) -> String {
        match self {
            StepsOrWord::Steps(steps) => format!("`{steps}`; expected {expected}"),
            StepsOrWord::Word(word) => format!("`{word}`; expected {expected}"),
            StepsOrWord::Number(number) => format!("`{number}`; expected {expected}"),
            StepsOrWord::Flag(flag) => format!("`{flag}`; expected {expected}"),
        }
    }
}
