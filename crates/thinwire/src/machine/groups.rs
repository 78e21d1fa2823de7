//! Parameter groups: ranges of the flat vector with their own learning rate and weight decay.

use super::Ranges;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The next `length` parameters, and what is theirs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// How many parameters it has.
    pub length: usize,
    /// Multiplies the learning rate of the step.
    #[serde(default = "one")]
    pub lr_scale: f64,
    /// Stands in for the optimizer's `weight_decay`.
    #[serde(default)]
    pub weight_decay: Option<f64>,
}

fn one() -> f64 {
    1.0
}

/// The groups of one flat vector, in order, covering it.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// Where they are.
    ranges: Ranges,
    /// What multiplies the learning rate, of each group.
    pub lr_scale: Vec<f64>,
    /// λ of each group.
    pub weight_decay: Vec<f64>,
}

impl Groups {
    /// One group of `len` parameters, without weight decay.
    pub fn whole(len: usize) -> Groups {
        Groups { ranges: Ranges::new([len]), lr_scale: vec![1.0], weight_decay: vec![0.0] }
    }

    /// `listed` must cover `len` values; an empty list is one group of them all.
    pub fn new(listed: &[Group], len: usize, weight_decay: f64) -> Result<Groups> {
        let whole = [Group { length: len, lr_scale: 1.0, weight_decay: None }];
        let listed = if listed.is_empty() { &whole } else { listed };
        let covered = listed.iter().map(|group| group.length as u128).sum::<u128>();
        if covered != len as u128 {
            return Err(Error::config(
                "groups",
                format!("{covered} values in all"),
                format!("must add up to the {len} parameters"),
            ));
        }
        Ok(Groups {
            ranges: Ranges::new(listed.iter().map(|group| group.length)),
            lr_scale: listed.iter().map(|group| group.lr_scale).collect(),
            weight_decay: listed.iter().map(|group| group.weight_decay.unwrap_or(weight_decay)).collect(),
        })
    }

    /// False for a group that is frozen. See [`Scalars::moves`](crate::kernel::update::Scalars::moves).
    pub fn moves(&self, group: usize) -> bool {
        self.lr_scale[group] > 0.0
    }

    /// Where each group ends.
    pub fn ends(&self) -> &[usize] {
        self.ranges.ends()
    }

    /// How many groups there are.
    pub fn count(&self) -> usize {
        self.ranges.count()
    }

    /// Cuts the `len` values from `at` on where groups meet: each group's number, and its range counted from `at`.
    pub fn cut(&self, at: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        self.ranges.cut(at, len)
    }
}
