//! The table of optimizers, and what everyone else may ask of one.
//!
//! An optimizer is one file. It declares its [`Options`] as they are given; deciding them makes an [`Algorithm`], in which every option
//! has its value and which answers for plans, benches, servers and commands; and that builds the [`Optimizer`] which steps. The
//! table has a row for each. Nothing outside of an optimizer's file looks at its name.

use super::{Hyper, Optimizer, Vectors};
use crate::codec::CodecName;
use crate::config::{Config, Name, keys};
use crate::error::{Error, Result};
use crate::schedule::{LearningRate, Round};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use std::fmt::Debug;
use std::str::FromStr;
use std::sync::{PoisonError, RwLock};

/// The options of one optimizer as they were given, `None` meaning the default.
pub trait Options: Default + Serialize + DeserializeOwned {
    /// Its name in configurations.
    const NAME: Name;
    /// Its name as its authors write it.
    const TITLE: &'static str;
    /// The codec of its exact rounds, unless one is given. None: it has no exact rounds.
    const EXACT: Option<CodecName>;
    /// The codec of its coarse rounds, unless one is given. None: it has no coarse rounds.
    const COARSE: Option<CodecName>;

    /// Gives every option its value, or says which one is wrong. A preset may set options of `config` that were not given, and is
    /// taken from it.
    fn decide(self, config: &mut Config) -> Result<Box<dyn Algorithm>>;
}

/// An optimizer whose options are decided: what plans, benches, servers and commands ask of it.
pub trait Algorithm: Debug + Send + Sync {
    /// Its own options with their values, by their keys, as records have them.
    fn options(&self) -> Map<String, Value>;

    /// The vectors that it keeps.
    fn vectors(&self) -> Vectors;

    /// The names of the passes and sources that it may run: what a [`Device`](crate::machine::Device) needs to have.
    fn passes(&self) -> &'static [&'static str];

    /// What is averaged in step `t`, at learning rate `lr`. Only asked if the calendar [is known](Algorithm::is_planned).
    fn round(&self, t: u64, lr: f32) -> Round;

    /// An error if only the run itself will tell when its rounds are; it says what to set so that they can be planned.
    fn is_planned(&self) -> Result<()> {
        Ok(())
    }

    /// What coarse rounds average.
    fn averages(&self) -> Averages {
        Averages::State
    }

    /// How much longer than the mean a worker's own gradient may be before it is clipped ([`Clip`](super::Clip) has the reason).
    fn own_clip(&self, workers: usize) -> f64 {
        (workers as f64).sqrt()
    }

    /// Its own options for a run that has each kind of its rounds at least `each` times, and the steps of that run: for benches.
    fn drill(&self, each: u64) -> (Map<String, Value>, u64) {
        (self.options(), each)
    }

    /// The learning rate that it wants, as a multiple of Adam's.
    fn rate_to_adams(&self) -> f64 {
        1.0
    }

    /// Its place among the optimizers that are advised, the simplest first; None where nobody has measured how it learns with
    /// this codec.
    fn rank(&self, coarse: CodecName) -> Option<usize>;

    /// The optimizer itself.
    fn build(&self, hyper: Hyper) -> Box<dyn Optimizer>;
}

/// What coarse rounds average. It decides what a worker that missed a round still has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Averages {
    /// A state that all share, such as a momentum.
    State,
    /// A step that each worker adds.
    Increments,
}

/// An optimizer in the table.
pub struct Row {
    /// Its name in configurations.
    pub name: Name,
    /// Its name as its authors write it.
    pub title: &'static str,
    /// The codec of its exact rounds at the default, if it has any.
    pub exact: Option<CodecName>,
    /// The codec of its coarse rounds at the default, if it has any.
    pub coarse: Option<CodecName>,
    keys: fn() -> &'static [&'static str],
    read: fn(&Map<String, Value>) -> Result<()>,
    decide: fn(&mut Config) -> Result<Box<dyn Algorithm>>,
}

impl Row {
    /// The row of the optimizer with these options.
    pub const fn of<O: Options>() -> Row {
        Row {
            name: O::NAME,
            title: O::TITLE,
            exact: O::EXACT,
            coarse: O::COARSE,
            keys: keys::<O>,
            read: |own| read::<O>(own).map(drop),
            decide: |config| read::<O>(&config.own)?.decide(config),
        }
    }

    /// The keys of its own options.
    pub fn keys(&self) -> &'static [&'static str] {
        (self.keys)()
    }

    /// Refuses own options that cannot be read.
    pub(crate) fn check(&self, own: &Map<String, Value>) -> Result<()> {
        (self.read)(own)
    }

    pub(crate) fn decide(&self, config: &mut Config) -> Result<Box<dyn Algorithm>> {
        (self.decide)(config)
    }
}

fn read<O: Options>(own: &Map<String, Value>) -> Result<O> {
    serde_path_to_error::deserialize(Value::Object(own.clone()))
        .map_err(|error| Error::ConfigSyntax(format!("{}: {}", error.path(), error.inner())))
}

static BUILT_IN: [Row; 4] = [
    Row::of::<super::Adam>(),
    Row::of::<super::OneBitAdam>(),
    Row::of::<super::ZeroOneAdam>(),
    Row::of::<super::EfficientAdam>(),
];

static ADDED: RwLock<Vec<&'static Row>> = RwLock::new(Vec::new());

/// The table.
pub struct Optimizers;

impl Optimizers {
    /// All optimizers, the simplest first.
    pub fn all() -> Vec<&'static Row> {
        let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
        BUILT_IN.iter().chain(added.iter().copied()).collect()
    }

    /// The row of this optimizer.
    pub fn row(name: Name) -> &'static Row {
        Optimizers::all().into_iter().find(|row| row.name == name).expect("a name comes from a row")
    }

    /// Adds an optimizer that lives outside of the engine. Once is enough for a process; again changes nothing.
    #[doc(hidden)]
    pub fn add(row: &'static Row) {
        let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
        if !added.iter().any(|known| known.name == row.name) {
            added.push(row);
        }
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Name> {
        let rows = Optimizers::all();
        let known = || rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = rows.iter().find(|row| row.name.as_str() == text);
        found.map(|row| row.name).ok_or_else(|| Error::config("name", text, format!("expected one of {}", known())))
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Config {
    /// These options of an optimizer's own, all others at their defaults.
    pub fn of<O: Options>(options: O) -> Config {
        Config::new(O::NAME).with(options)
    }

    /// The same configuration with these options of an optimizer's own, in place of all that it had.
    pub fn with<O: Options>(self, options: O) -> Config {
        Config { name: O::NAME, own: given(&options), ..self }
    }

    /// The options of the optimizer's own that were given, or an error if they are not of this type.
    pub fn options<O: Options>(&self) -> Result<O> {
        read(&self.own)
    }
}

/// The options that have a value, by their keys.
pub(super) fn given(options: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(options).expect("options are plain data") {
        Value::Object(mut given) => {
            given.retain(|_, value| !value.is_null());
            given
        }
        _ => Map::new(),
    }
}

/// The preset that was asked for, if it is one of `known`; taken from the configuration.
pub(super) fn preset(config: &mut Config, known: &[&'static str]) -> Result<Option<&'static str>> {
    let Some(asked) = config.preset.take() else { return Ok(None) };
    let found = known.iter().find(|name| **name == asked);
    let refused =
        || Error::config("preset", &asked, format!("expected one of {} with {}", known.join(", "), config.name));
    found.map(|name| Some(*name)).ok_or_else(refused)
}

/// An option that has two names: DeepSpeed's, `theirs`, and ours. Not both, and never 0.
pub(super) fn renamed<T>(
    (their_name, theirs): (&str, Option<u64>),
    (name, ours): (&str, Option<T>),
    map: fn(u64) -> T,
) -> Result<Option<T>> {
    match (theirs, ours) {
        (None, ours) => Ok(ours),
        (Some(0), _) => Err(Error::config(their_name, 0, "expected a number of at least 1")),
        (Some(value), None) => Ok(Some(map(value))),
        (Some(value), Some(_)) => {
            Err(Error::config(their_name, value, format!("is DeepSpeed's name for {name}; give one of the two")))
        }
    }
}

/// The end of the learning rate's warm-up, and the length of the run where it is known.
pub(super) fn lengths(schedule: Option<&LearningRate>) -> (u64, Option<u64>) {
    (schedule.map_or(0, |schedule| schedule.warmup), schedule.map(|schedule| schedule.steps).filter(|steps| *steps > 0))
}
