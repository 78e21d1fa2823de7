//! A residual: what a code has lost so far, and error feedback has still to say.
//!
//! It is kept in 32 bits a value, or in 16 (bf16) for half the memory and half the traffic. In 16 bits it is rounded when a mean leaves
//! it, to one part in 256 of itself (of a denormal number, more). That much is lost for good.

use crate::error::Error;
use crate::kernel::bf16::{self, Half};
use crate::kernel::blocks::MAX_BLOCK;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// How a residual is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Precision {
    /// 32 bits a parameter: nothing is lost.
    #[default]
    F32,
    /// 16 bits a parameter, rounded.
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

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        })
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Precision, Error> {
        match name {
            "f32" => Ok(Precision::F32),
            "bf16" => Ok(Precision::Bf16),
            _ => Err(Error::config("residual", name, "expected f32 or bf16")),
        }
    }
}

/// A part of a residual, or nothing where none is kept.
#[derive(Debug)]
pub enum ResidualSlice<'a> {
    /// No residual is kept.
    Nothing,
    /// 32 bits a value.
    Wide(&'a mut [f32]),
    /// 16 bits a value.
    Half(&'a mut [Half]),
}

impl<'a> ResidualSlice<'a> {
    /// Its values, if there is one.
    pub fn count(&self) -> Option<usize> {
        match self {
            ResidualSlice::Nothing => None,
            ResidualSlice::Wide(values) => Some(values.len()),
            ResidualSlice::Half(halves) => Some(halves.len()),
        }
    }

    /// This range of it.
    pub fn part(&mut self, range: Range<usize>) -> ResidualSlice<'_> {
        match self {
            ResidualSlice::Nothing => ResidualSlice::Nothing,
            ResidualSlice::Wide(values) => ResidualSlice::Wide(&mut values[range]),
            ResidualSlice::Half(halves) => ResidualSlice::Half(&mut halves[range]),
        }
    }

    /// Two parts, the second from `middle` on.
    pub fn split_at(self, middle: usize) -> (ResidualSlice<'a>, ResidualSlice<'a>) {
        match self {
            ResidualSlice::Nothing => (ResidualSlice::Nothing, ResidualSlice::Nothing),
            ResidualSlice::Wide(values) => {
                let (left, right) = values.split_at_mut(middle);
                (ResidualSlice::Wide(left), ResidualSlice::Wide(right))
            }
            ResidualSlice::Half(halves) => {
                let (left, right) = halves.split_at_mut(middle);
                (ResidualSlice::Half(left), ResidualSlice::Half(right))
            }
        }
    }

    /// Calls `work` on the values of one tile, or on none; what it leaves is kept, unless it fails.
    pub fn change<E>(self, work: impl FnOnce(&mut [f32]) -> Result<(), E>) -> Result<(), E> {
        match self {
            ResidualSlice::Nothing => work(&mut []),
            ResidualSlice::Wide(values) => work(values),
            ResidualSlice::Half(halves) => bf16::change::<MAX_BLOCK, E>(halves, work),
        }
    }
}
