//! The table of optimizers, and what everyone else may ask of one.
//!
//! An optimizer is one file. It declares its [`Options`] as they are given; deciding them makes an [`Algorithm`], in which every option
//! has its value and which answers for plans, benches, servers and commands; and that builds the [`Optimizer`] which steps. The
//! table has a row for each. Nothing outside of an optimizer's file looks at its name.

use super::{Hyper, Optimizer, Vectors};
use crate::codec::{CodecName, Dither};
use crate::config::{Config, Name, keys};
use crate::error::{Error, Result};
use crate::schedule::{LearningRate, Round};
use crate::state::Share;
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
    /// For an optimizer whose rounds are all coarse if a codec is given, and exact if not: the codec of a way that has none then.
    const IF_CODED: Option<CodecName> = None;
    /// The values of `preset` that it knows.
    const PRESETS: &'static [&'static str] = &[];

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

    /// An error if it does not fit a model of so many parameters. `is_whole` is false where a worker holds only a shard of its replica
    /// ([`Sharded`](crate::Sharded)).
    fn fits(&self, _parameters: usize, _is_whole: bool) -> Result<()> {
        Ok(())
    }

    /// What is averaged in step `t`, at learning rate `lr`. Only asked if the calendar [is known](Algorithm::is_planned).
    fn round(&self, t: u64, lr: f32) -> Round;

    /// Whether step `t` has an exact round too, after its coarse one.
    fn ends_exactly(&self, _t: u64) -> bool {
        false
    }

    /// Whether coarse means may be under way while the workers compute.
    fn delays(&self) -> bool {
        false
    }

    /// How many steps the coarse mean of step `t` may be under way, at most; 0: workers wait for it.
    fn delay(&self, _t: u64) -> u64 {
        0
    }

    /// K: in how many parts the vector goes, if coarse rounds are of one part at a time.
    fn parts(&self) -> usize {
        1
    }

    /// The part that the coarse round of step `t` is of.
    fn part(&self, _t: u64) -> usize {
        0
    }

    /// The parts that a sync needs a round of, if it is asked for after step `t`.
    fn unsynced(&self, t: u64, lr: f32) -> Vec<usize> {
        if self.round(t, lr) == Round::Skipped { vec![0] } else { Vec::new() }
    }

    /// An error if a server cannot take its means; it says what to set so that one can.
    fn is_served(&self) -> Result<()> {
        Ok(())
    }

    /// Whether it has exact rounds with these options, where its row says that it may.
    fn has_exact_rounds(&self) -> bool {
        true
    }

    /// An error if only the run itself will tell when its rounds are; it says what to set so that they can be planned.
    fn is_planned(&self) -> Result<()> {
        Ok(())
    }

    /// What coarse rounds average.
    fn averages(&self) -> Averages {
        Averages::State
    }

    /// Whether what coarse rounds carry has no size of its own, so that a vote can say it.
    fn sends_directions(&self) -> bool {
        false
    }

    /// What stands in the place of residuals that are not kept, up and down, with these codecs.
    fn dithers(&self, _up: CodecName, _down: CodecName) -> [Option<Dither>; 2] {
        [None; 2]
    }

    /// Whether the means of exact rounds are clipped.
    fn clips_mean(&self) -> bool {
        true
    }

    /// How the parameters pass to another number of workers. `Mean` where workers have parameters of their own between two rounds, and
    /// the optimizer does not make them out of its vectors.
    fn params_share(&self) -> Share {
        Share::Same
    }

    /// Whether a step on a mean waits until the mean's norm is known, if there is a limit for it.
    fn keeps_mean(&self) -> bool {
        false
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
    /// The codec of a way that has none where another codec is given, if all rounds are coarse then.
    pub if_coded: Option<CodecName>,
    /// The values of `preset` that it knows.
    pub presets: &'static [&'static str],
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
            if_coded: O::IF_CODED,
            presets: O::PRESETS,
            keys: keys::<O>,
            read: |own| read::<O>(own).map(drop),
            decide: |config| read::<O>(&config.own)?.decide(config),
        }
    }

    /// The keys of its own options.
    pub fn keys(&self) -> &'static [&'static str] {
        (self.keys)()
    }

    /// Whether the optimizer measures tensors, and has to be told of their lengths: its option [`Row::TENSORS`].
    pub fn wants_tensors(&self) -> bool {
        self.keys().contains(&Row::TENSORS)
    }

    /// The option with the lengths of all tensors, of any optimizer that has one.
    pub const TENSORS: &'static str = "tensors";

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

static BUILT_IN: [Row; 8] = [
    Row::of::<super::Adam>(),
    Row::of::<super::OneBitAdam>(),
    Row::of::<super::ZeroOneAdam>(),
    Row::of::<super::EfficientAdam>(),
    Row::of::<super::LocalAdam>(),
    Row::of::<super::Lion>(),
    Row::of::<super::Birder>(),
    Row::of::<super::OneBitLamb>(),
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

    /// The optimizer that `text` names; or that has the preset that it names, and no other has.
    pub fn chosen(text: &str) -> Result<(Name, Option<&'static str>)> {
        let Err(unknown) = text.parse::<Name>() else { return Ok((text.parse()?, None)) };
        let rows = Optimizers::all();
        let presets = |row: &&'static Row| row.presets.iter().map(|preset| (row.name, *preset)).collect::<Vec<_>>();
        let all = rows.iter().flat_map(presets).collect::<Vec<_>>();
        let owners =
            |text: &str| all.iter().filter(|(_, preset)| *preset == text).map(|(name, _)| *name).collect::<Vec<_>>();
        match owners(text)[..] {
            [name] => Ok((name, all.iter().map(|(_, preset)| *preset).find(|preset| *preset == text))),
            [] => {
                let own = all.iter().map(|(_, preset)| *preset).filter(|preset| owners(preset).len() == 1);
                let own = own.collect::<Vec<_>>().join(", ");
                Err(if own.is_empty() {
                    unknown
                } else {
                    Error::config("name", text, format!("{}, or a preset: {own}", expected(&rows)))
                })
            }
            ref several => {
                let names = several.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
                Err(Error::config(
                    "name",
                    text,
                    format!("is a preset of {names}; expected one of these, with preset = {text}"),
                ))
            }
        }
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
        let found = rows.iter().find(|row| row.name.as_str() == text);
        found.map(|row| row.name).ok_or_else(|| Error::config("name", text, expected(&rows)))
    }
}

fn expected(rows: &[&'static Row]) -> String {
    format!("expected one of {}", rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>().join(", "))
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

/// The preset that was asked for, if these options know it; taken from the configuration.
pub(super) fn preset<O: Options>(config: &mut Config) -> Result<Option<&'static str>> {
    let Some(asked) = config.preset.take() else { return Ok(None) };
    let found = O::PRESETS.iter().find(|name| **name == asked);
    let refused =
        || Error::config("preset", &asked, format!("expected one of {} with {}", O::PRESETS.join(", "), O::NAME));
    found.map(|name| Some(*name)).ok_or_else(refused)
}

/// For an optimizer that sends a direction of its own making: nothing is remembered unless feedback is asked for, and nothing is
/// corrected for its start at 0.
pub(super) fn forgetting(name: Name, config: &mut Config) -> Result<()> {
    if config.feedback.is_none() {
        config.feedback_up.get_or_insert(0.0);
        config.feedback_down.get_or_insert(0.0);
    }
    match config.bias_correction.replace(false) {
        Some(true) => {
            Err(Error::config("bias_correction", true, format!("{name} has none; expected false, or nothing")))
        }
        _ => Ok(()),
    }
}

/// Why a server does not go with a delay.
pub(super) fn not_served(delay: u64) -> Error {
    Error::config("delay", delay, "a server takes a mean in the step that it is sent in; expected 0 with a server")
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

/// A number of steps, or of updates.
pub(super) fn count(key: &str, value: u64) -> Result<u64> {
    match (1..1 << 32).contains(&value) {
        true => Ok(value),
        false => Err(Error::config(key, value, "expected a number of at least 1 and below 2^32")),
    }
}

/// The end of the learning rate's warm-up, and the length of the run where it is known.
pub(super) fn lengths(schedule: Option<&LearningRate>) -> (u64, Option<u64>) {
    (schedule.map_or(0, |schedule| schedule.warmup), schedule.map(|schedule| schedule.steps).filter(|steps| *steps > 0))
}
