//! What coarse means have not said yet: 32 bits a value, or 16 for half the memory and half the traffic.
//!
//! In 16 bits (bf16) a residue is rounded when a mean leaves it, to one part in 256 of itself (of a denormal number, more). That much
//! is lost, and no mean says it later; what the bits on the wire leave unsaid is not.

use crate::error::Error;
use crate::kernel::bf16::{self, Half};
use crate::kernel::blocks::MAX_BLOCK;
use crate::memory::Floats;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::str::FromStr;

/// How a residue is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    #[default]
    F32,
    Bf16,
}

impl Precision {
    /// Bytes of a value.
    pub fn width(self) -> usize {
        match self {
            Precision::F32 => 4,
            Precision::Bf16 => 2,
        }
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Precision, Error> {
        match name {
            "f32" => Ok(Precision::F32),
            "bf16" => Ok(Precision::Bf16),
            _ => Err(Error::config("residue", name, "accepted: f32, bf16")),
        }
    }
}

/// The residue of one way, 0 at first.
#[derive(Debug)]
pub enum Residue {
    Wide(Floats),
    Half {
        len: usize,
        /// Two values in each.
        pairs: Floats,
        /// The same in 32 bits, from when somebody looks at it until the next mean: it may have been changed.
        opened: Option<Floats>,
    },
}

impl Residue {
    pub fn zeroed(len: usize, precision: Precision) -> Residue {
        match precision {
            Precision::F32 => Residue::Wide(Floats::zeroed(len)),
            Precision::Bf16 => Residue::Half { len, pairs: Floats::zeroed(len.div_ceil(2)), opened: None },
        }
    }

    /// For whoever saves, loads or inspects it.
    pub fn values(&mut self) -> &mut [f32] {
        match self {
            Residue::Wide(values) => values,
            Residue::Half { len, pairs, opened } => opened.get_or_insert_with(|| {
                let mut values = Floats::zeroed(*len);
                bf16::read(halves(pairs, *len), &mut values);
                values
            }),
        }
    }

    /// The bytes it takes now.
    pub fn bytes(&self) -> usize {
        match self {
            Residue::Wide(values) => 4 * values.len(),
            Residue::Half { pairs, opened, .. } => 4 * (pairs.len() + opened.as_ref().map_or(0, |values| values.len())),
        }
    }

    /// For a mean.
    pub fn owed(&mut self) -> Owed<'_> {
        match self {
            Residue::Wide(values) => Owed::Wide(values),
            Residue::Half { len, pairs, opened } => {
                let halves = halves(pairs, *len);
                if let Some(values) = opened.take() {
                    bf16::write(&values, halves);
                }
                Owed::Half(halves)
            }
        }
    }
}

fn halves(pairs: &mut [f32], len: usize) -> &mut [Half] {
    &mut bytemuck::cast_slice_mut(pairs)[..len]
}

/// A part of a residue, or nothing where none is remembered.
#[derive(Debug)]
pub enum Owed<'a> {
    Nothing,
    Wide(&'a mut [f32]),
    Half(&'a mut [Half]),
}

impl<'a> Owed<'a> {
    /// Its values, if there is one.
    pub fn count(&self) -> Option<usize> {
        match self {
            Owed::Nothing => None,
            Owed::Wide(values) => Some(values.len()),
            Owed::Half(halves) => Some(halves.len()),
        }
    }

    /// This range of it.
    pub fn part(&mut self, range: Range<usize>) -> Owed<'_> {
        match self {
            Owed::Nothing => Owed::Nothing,
            Owed::Wide(values) => Owed::Wide(&mut values[range]),
            Owed::Half(halves) => Owed::Half(&mut halves[range]),
        }
    }

    pub fn split_at(self, middle: usize) -> (Owed<'a>, Owed<'a>) {
        match self {
            Owed::Nothing => (Owed::Nothing, Owed::Nothing),
            Owed::Wide(values) => {
                let (left, right) = values.split_at_mut(middle);
                (Owed::Wide(left), Owed::Wide(right))
            }
            Owed::Half(halves) => {
                let (left, right) = halves.split_at_mut(middle);
                (Owed::Half(left), Owed::Half(right))
            }
        }
    }

    /// Calls `work` on the values of one tile, or on none; what it leaves is kept, unless it fails.
    pub fn change<E>(self, work: impl FnOnce(&mut [f32]) -> Result<(), E>) -> Result<(), E> {
        match self {
            Owed::Nothing => work(&mut []),
            Owed::Wide(values) => work(values),
            Owed::Half(halves) => bf16::change::<MAX_BLOCK, E>(halves, work),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_opened_is_closed_by_the_next_mean() {
        for len in [0, 1, 2, 7, 4097] {
            let mut residue = Residue::zeroed(len, Precision::Bf16);
            let closed = residue.bytes();
            assert_eq!(closed, 4 * len.div_ceil(2));
            residue.values().iter_mut().enumerate().for_each(|(i, e)| *e = i as f32);
            assert_eq!(residue.bytes(), closed + 4 * len);
            assert_eq!(residue.owed().count(), Some(len));
            assert_eq!(residue.bytes(), closed);
            let rounded = (0..len).map(|i| half::bf16::from_f32(i as f32).to_f32());
            assert!(residue.values().iter().copied().eq(rounded), "what was written there is kept");
        }
    }
}
