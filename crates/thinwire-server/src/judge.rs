//! The judge: which messages are outliers, far longer than those before them, and what becomes of them.
//!
//! A server sees every message, so here the rule of the engine's [`guard`](thinwire::inside::guard) applies to whole messages. What
//! it remembers of a round is one number, the median of the norms that came: as long as fewer than half of the workers send nonsense,
//! that is a sound one. Exact and coarse rounds are apart, because a gradient and a momentum or an update have different sizes.
//!
//! Norms are noted as they came, before anything was clipped, and when their round is closed: within a round nobody's message
//! changes what is said of another's.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use thinwire::inside::Settings;
use thinwire::inside::guard::{MEMORY, Norms, median};
use thinwire::options::Outlier;

/// What is remembered, as it stands beside a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    exact: Vec<f64>,
    coarse: Vec<f64>,
}

/// A message that is an outlier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TooLong {
    pub norm: f64,
    pub limit: f64,
    /// What its values are multiplied with; none if its worker is left out of the round.
    pub factor: Option<f32>,
}

/// A message of the open round.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Came {
    norm: f64,
    /// The digest of what its worker sent, where that is not what the round counts.
    digest: Option<u64>,
}

pub struct Judge {
    rule: Outlier,
    factor: f64,
    /// Of exact rounds, and of coarse ones.
    norms: [Norms; 2],
    came: BTreeMap<u32, Came>,
}

impl Judge {
    pub fn new(settings: &Settings) -> Judge {
        let (rule, factor) = (settings.outlier, settings.outlier_factor);
        Judge { rule, factor, norms: [Norms::default(); 2], came: BTreeMap::new() }
    }

    /// Whether a message of this norm is an outlier.
    pub fn look(&self, norm: f64, coarse: bool) -> Option<TooLong> {
        let limit = self.norms[usize::from(coarse)].limit(self.factor).filter(|limit| norm > *limit)?;
        match self.rule {
            Outlier::Off => None,
            Outlier::Clip => Some(TooLong { norm, limit, factor: Some((limit / norm) as f32) }),
            Outlier::Skip => Some(TooLong { norm, limit, factor: None }),
        }
    }

    /// The message of `slot` waits for its round to be closed. `digest`: of what was sent, if that is not what waits. False if it was
    /// known.
    pub fn came(&mut self, slot: u32, norm: f64, digest: Option<u64>) -> bool {
        self.came.insert(slot, Came { norm, digest }) != Some(Came { norm, digest })
    }

    /// The round is closed, with the messages of `slots`: the digests of those that are not as they were sent.
    pub fn closed(&mut self, slots: impl Iterator<Item = u32>, coarse: bool) -> BTreeMap<u32, u64> {
        let came = std::mem::take(&mut self.came);
        let counted = slots.filter_map(|slot| Some((slot, came.get(&slot)?))).collect::<Vec<_>>();
        let norms = counted.iter().map(|(_, came)| came.norm).filter(|norm| *norm > 0.0);
        // Of many workers, as many as there is room for: the median of those is no worse.
        if let Some(norm) = median(norms.take(MEMORY), 1) {
            self.norms[usize::from(coarse)].note(norm);
        }
        counted.iter().filter_map(|(slot, came)| Some((*slot, came.digest?))).collect()
    }

    pub fn memory(&mut self) -> Memory {
        let [exact, coarse] = &mut self.norms;
        Memory { exact: exact.values().to_vec(), coarse: coarse.values().to_vec() }
    }

    /// Goes on from what was remembered; from nothing, if an older version wrote the snapshot.
    pub fn recall(&mut self, memory: &Memory, dir: &Path) -> Result<()> {
        for (norms, saved) in self.norms.iter_mut().zip([&memory.exact, &memory.coarse]) {
            match saved.len() {
                0 => {}
                MEMORY => norms.values().copy_from_slice(saved),
                other => return Err(Error::damaged(dir, format!("expected {MEMORY} norms, found {other}"))),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thinwire::Config;

    fn judge(words: &str) -> Judge {
        Judge::new(&Config::from_toml(&format!("name = 'adam'\n{words}")).unwrap().decide().unwrap())
    }

    /// Rounds of three workers, of which one sends nonsense.
    fn rounds(judge: &mut Judge, count: usize, sound: f64, nonsense: f64) {
        for _ in 0..count {
            [sound, nonsense, sound].iter().zip(0..).for_each(|(norm, slot)| _ = judge.came(slot, *norm, None));
            judge.closed(0..3, true);
        }
    }

    #[test]
    fn a_round_is_remembered_by_its_median_and_kinds_of_rounds_are_apart() {
        let mut judge = judge("");
        rounds(&mut judge, 15, 2.0, 1e30);
        assert_eq!(judge.look(1e30, true), None, "too few rounds to tell");
        rounds(&mut judge, 100, 2.0, 1e30);
        assert_eq!(judge.look(200.0, true), None);
        let found = judge.look(400.0, true).unwrap();
        assert_eq!((found.limit, found.factor), (200.0, Some(0.5)));
        assert_eq!(judge.look(400.0, false), None, "no exact round was seen");
        rounds(&mut judge, 17, 1e6, 1e30);
        assert_eq!(judge.look(1e7, true), None, "what most workers send is the median soon");
    }

    #[test]
    fn skip_leaves_out_and_off_looks_at_nothing() {
        for (words, found) in [("outlier = 'skip'", Some(None)), ("outlier = 'off'", None)] {
            let mut judge = judge(words);
            rounds(&mut judge, 20, 1.0, 1.0);
            assert_eq!(judge.look(1e9, true).map(|found| found.factor), found, "{words}");
        }
        let mut sooner = judge("outlier_factor = 3.0");
        rounds(&mut sooner, 20, 1.0, 1.0);
        assert!(sooner.look(3.1, true).is_some() && sooner.look(3.0, true).is_none());
    }

    #[test]
    fn what_is_remembered_comes_back_bit_for_bit() {
        let (mut before, mut after) = (judge(""), judge(""));
        (0..40).for_each(|turn| rounds(&mut before, 1, 1.0 / 3.0 + f64::from(turn), 0.0));
        let saved = serde_json::to_vec(&before.memory()).unwrap();
        after.recall(&serde_json::from_slice(&saved).unwrap(), Path::new("here")).unwrap();
        assert_eq!((before.memory(), before.norms), (after.memory(), after.norms));
        assert!(after.recall(&Memory { exact: vec![1.0], coarse: Vec::new() }, Path::new("here")).is_err());
    }

    #[test]
    fn the_digest_of_what_was_sent_goes_with_a_message_that_was_changed() {
        let mut judge = judge("");
        judge.came(4, 1.0, Some(77));
        judge.came(5, 1.0, None);
        judge.came(6, 1.0, Some(99)); // its worker joined again, and its message is not there any more
        assert_eq!(judge.closed([4, 5].into_iter(), true), BTreeMap::from([(4, 77)]));
        assert!(judge.closed([4].into_iter(), true).is_empty(), "of that round alone");
    }
}
