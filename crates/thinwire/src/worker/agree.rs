//! What workers agree on: the configuration when they meet, then, in every round, a digest of all that they have in common.

use super::Worker;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::exchange::header::Operation;
use serde_json::{Map, Value};
use std::ops::Range;

/// Parameters that each round checks for being the same on all workers: at least this many, and a 32nd of them all.
const WINDOW: usize = 1 << 20;
const WINDOWS: usize = 32;

/// Words that each worker may choose for itself.
const OWN: [&str; 1] = ["threads"];

/// Words that may differ from one session to the next: no number of a healthy run depends on them. Of `hierarchy` it is the
/// hosts that count, and those may change like the number of workers.
const INDIFFERENT: [&str; 6] = ["threads", "bucket", "non_finite", "outlier", "outlier_factor", "hierarchy"];

impl Worker {
    /// Tells the others the configuration and the hosts, hears theirs, and refuses to go on if they differ.
    pub(super) fn meet(&mut self) -> Result<()> {
        let mut ours = words(&self.config);
        if !self.hosts.is_flat() {
            ours["hosts"] = self.hosts.of_all().into();
        }
        let theirs = self.exchange.gather(Operation::Hello, self.step, ours.to_string().as_bytes())?;
        for (worker, theirs) in theirs.iter().enumerate() {
            let malformed = |error: serde_json::Error| Error::Malformed { worker, problem: error.to_string() };
            let theirs = serde_json::from_slice(theirs).map_err(malformed)?;
            if let Some((field, here, there)) = differences(&ours, &theirs, &OWN).into_iter().next() {
                return Err(Error::Disagreement { worker, field, there, me: self.rank(), here });
            }
        }
        self.meet_shards()
    }

    /// The same among the shards of a replica, each of which has another number of parameters.
    fn meet_shards(&mut self) -> Result<()> {
        if self.exchange.shards.is_whole() {
            return Ok(());
        }
        let mut ours = words(&self.config);
        let groups = ours.get_mut("groups").and_then(Value::as_array_mut);
        groups.into_iter().flatten().filter_map(Value::as_object_mut).for_each(|group| drop(group.remove("length")));
        let theirs = self.exchange.shards.gather(self.step, ours.to_string().as_bytes())?;
        for (worker, theirs) in theirs.iter().enumerate() {
            let among_shards = |error| Error::Shards(Box::new(error));
            let malformed = |error: serde_json::Error| Error::Malformed { worker, problem: error.to_string() };
            let theirs = serde_json::from_slice(theirs).map_err(malformed).map_err(among_shards)?;
            if let Some((field, here, there)) = differences(&ours, &theirs, &OWN).into_iter().next() {
                let me = self.exchange.shards.rank();
                return Err(among_shards(Error::Disagreement { worker, field, there, me, here }));
            }
        }
        Ok(())
    }
}

/// The parameters that step `t` checks.
pub(super) fn window(len: usize, t: u64) -> Range<usize> {
    let size = len.div_ceil(WINDOWS).max(WINDOW).max(1);
    // Replicas are compared after syncs, whose steps may be multiples of a power of two: t itself would skip windows.
    let turn = t.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let start = (turn as usize % len.div_ceil(size).max(1)) * size;
    start.min(len)..(start + size).min(len)
}

impl Config {
    /// The word that keeps a run from going on here that was configured as `then`, both resolved: its value here and its value then.
    pub fn hinders(&self, then: &Config) -> Option<(String, String, String)> {
        differences(&words(self), &words(then), &INDIFFERENT).into_iter().next()
    }

    /// What keeps a run from going on here that was saved with the configuration `then`, both resolved, for people: all of it, since
    /// whoever gives one option as it was would hear of the next.
    pub fn differs_from_saved(&self, then: &Config) -> Option<String> {
        let all = differences(&words(self), &words(then), &INDIFFERENT);
        let shown = |(key, now, then): &(String, String, String)| {
            format!("{key} was {then} when it was saved, and is {now} now")
        };
        let shown = all.iter().map(shown).collect::<Vec<_>>().join("; ");
        (!all.is_empty()).then_some(shown)
    }
}

pub(super) fn words(config: &Config) -> Value {
    serde_json::to_value(config).expect("a configuration is plain data")
}

/// The words, but for the `indifferent`, on which `ours` and `theirs` differ, and both values.
fn differences(ours: &Value, theirs: &Value, indifferent: &[&str]) -> Vec<(String, String, String)> {
    let empty = Map::new();
    let (ours, theirs) = (ours.as_object().unwrap_or(&empty), theirs.as_object().unwrap_or(&empty));
    let only_theirs = theirs.keys().filter(|key| !ours.contains_key(*key));
    let shown = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
    let keys = ours.keys().chain(only_theirs).map(String::as_str).filter(|key| !indifferent.contains(key));
    let differing = keys.filter(|key| ours.get(*key) != theirs.get(*key));
    let mut all: Vec<_> = differing.map(|key| (key.to_owned(), shown(ours.get(key)), shown(theirs.get(key)))).collect();
    // The name first: with another optimizer most of the other words differ too.
    all.sort_by_key(|(key, ..)| key != "name");
    all
}

#[cfg(test)]
mod tests {
    use super::{WINDOW, window};
    use std::collections::HashSet;

    /// A gap of 16 between syncs must not leave windows that are never looked at.
    #[test]
    fn every_window_has_its_turn_whatever_the_gap() {
        for (len, windows) in [(40 * WINDOW, 32), (4 * WINDOW, 4), (5, 1), (0, 1)] {
            for gap in [1, 2, 16, 32] {
                let seen = (0..20 * windows as u64).map(|round| window(len, round * gap).start).collect::<HashSet<_>>();
                assert_eq!(seen.len(), windows, "{len} values, gap {gap}");
            }
        }
    }
}
