//! A residual: what a code has lost so far, and error feedback has still to say.
//!
//! It is kept in 32 bits a value, or in 16 (bf16) for half the memory and half the traffic. In 16 bits it is rounded when a mean leaves
//! it, to one part in 256 of itself (of a denormal number, more). In 8 bits, with a scale a block, it is rounded to one part in 254 of
//! the block's largest. That much is lost for good.
//!
//! How much of a loss is remembered at all is κ, the option `feedback`: e ← (1−κ)·e + κ·(z − C(z)). With κ = 1 everything is, and told
//! as soon as can be; with less it is told later and in smaller portions: what is still to be told is e/κ. With κ = 0 nothing is
//! remembered, and there is no e.

use super::{Codec, Made};
use crate::error::{Error, Fault};
use crate::kernel::bf16::{self, Half};
use crate::kernel::blocks::MAX_BLOCK;
use crate::kernel::eighths;
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
    /// 8 bits a parameter and a scale a block, rounded.
    I8,
}

impl Precision {
    /// The names, for messages to people.
    const ACCEPTED: &str = "f32, bf16 or i8";

    /// The bytes of so many values, in blocks of `block`.
    pub fn bytes(self, values: usize, block: usize) -> usize {
        match self {
            Precision::F32 => 4 * values,
            Precision::Bf16 => 2 * values,
            Precision::I8 => values + 4 * values.div_ceil(block),
        }
    }

    /// z ← z as it would be kept, in 32 bits all the same.
    pub fn round(self, block: usize, z: &mut [f32]) {
        match self {
            Precision::F32 => {}
            Precision::Bf16 => bf16::round(z),
            Precision::I8 => eighths::round(block, z),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::I8 => "i8",
        })
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Precision, Error> {
        match name {
            "f32" => Ok(Precision::F32),
            "bf16" => Ok(Precision::Bf16),
            "i8" => Ok(Precision::I8),
            _ => Err(Error::config("residual", name, format!("expected {}", Precision::ACCEPTED))),
        }
    }
}

/// What coarse rounds keep of what their codes lose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Keeping {
    /// How it is kept.
    pub precision: Precision,
    /// Values that share a scale, where it is kept in 8 bits.
    pub block: usize,
    /// κ of the way up, 0 to 1.
    pub up: f32,
    /// κ of the way down.
    pub down: f32,
}

impl Keeping {
    /// All of it.
    pub fn all(precision: Precision, block: usize) -> Keeping {
        Keeping { precision, block, up: 1.0, down: 1.0 }
    }

    /// The bytes of a worker that has so many values, and owns so many.
    pub fn bytes(&self, values: usize, owned: usize) -> usize {
        let way = |feedback: f32, values| if feedback > 0.0 { self.precision.bytes(values, self.block) } else { 0 };
        way(self.up, values) + way(self.down, owned)
    }
}

/// q = C(x + e);  e ← (1−κ)·e + κ·(x + e − q), for the blocks of one tile; κ is `feedback`.
pub fn encode_remembering(
    codec: &dyn Codec,
    block: usize,
    x: &[f32],
    e: ResidualSlice<'_>,
    feedback: f32,
    out: &mut [u8],
) -> Result<(), Fault> {
    if feedback == 1.0 || matches!(e, ResidualSlice::Nothing | ResidualSlice::Made { .. }) {
        return codec.encode_blocks(block, x, e, out);
    }
    e.change(|e| {
        let old = &mut [0.0; MAX_BLOCK][..e.len()];
        old.copy_from_slice(e);
        codec.encode_blocks(block, x, ResidualSlice::Wide(e), out)?;
        eighths::remember(feedback, old, e);
        Ok(())
    })
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
    /// 8 bits a value: whole blocks, the last one maybe of fewer values, and the scale of each.
    Small {
        /// Values in a block.
        block: usize,
        /// The values.
        codes: &'a mut [i8],
        /// One for each block.
        scales: &'a mut [f32],
    },
    /// Made up, and forgotten.
    Made {
        /// How.
        made: Made,
        /// The places of its values.
        range: Range<usize>,
    },
}

impl<'a> ResidualSlice<'a> {
    /// Its values, if there is one.
    pub fn count(&self) -> Option<usize> {
        match self {
            ResidualSlice::Nothing => None,
            ResidualSlice::Wide(values) => Some(values.len()),
            ResidualSlice::Half(halves) => Some(halves.len()),
            ResidualSlice::Small { codes, .. } => Some(codes.len()),
            ResidualSlice::Made { range, .. } => Some(range.len()),
        }
    }

    /// This range of it: whole blocks.
    pub fn part(&mut self, range: Range<usize>) -> ResidualSlice<'_> {
        match self {
            ResidualSlice::Nothing => ResidualSlice::Nothing,
            ResidualSlice::Wide(values) => ResidualSlice::Wide(&mut values[range]),
            ResidualSlice::Half(halves) => ResidualSlice::Half(&mut halves[range]),
            ResidualSlice::Small { block, codes, scales } => {
                let blocks = range.start / *block..range.end.div_ceil(*block);
                ResidualSlice::Small { block: *block, codes: &mut codes[range], scales: &mut scales[blocks] }
            }
            ResidualSlice::Made { made, range: places } => {
                ResidualSlice::Made { made: *made, range: places.start + range.start..places.start + range.end }
            }
        }
    }

    /// Two parts, the second from `middle` on, where a block begins.
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
            ResidualSlice::Small { block, codes, scales } => {
                let (left, right) = codes.split_at_mut(middle);
                let (left_scales, right_scales) = scales.split_at_mut(middle.div_ceil(block));
                let small = |codes, scales| ResidualSlice::Small { block, codes, scales };
                (small(left, left_scales), small(right, right_scales))
            }
            ResidualSlice::Made { made, range } => {
                let at = range.start + middle;
                let (left, right) = (range.start..at, at..range.end);
                (ResidualSlice::Made { made, range: left }, ResidualSlice::Made { made, range: right })
            }
        }
    }

    /// Calls `work` on the values of one tile, or on none; what it leaves is kept, unless it fails.
    pub fn change<E>(self, work: impl FnOnce(&mut [f32]) -> Result<(), E>) -> Result<(), E> {
        match self {
            ResidualSlice::Nothing => work(&mut []),
            ResidualSlice::Wide(values) => work(values),
            ResidualSlice::Half(halves) => bf16::change::<MAX_BLOCK, E>(halves, work),
            ResidualSlice::Small { block, codes, scales } => {
                let room = &mut [0.0; MAX_BLOCK][..codes.len()];
                eighths::widen_blocks(block, codes, scales, room);
                work(room)?;
                eighths::narrow_blocks(block, room, codes, scales);
                Ok(())
            }
            ResidualSlice::Made { made, range } => {
                let room = &mut [0.0; MAX_BLOCK][..range.len()];
                made.fill(range.start, room);
                work(room)
            }
        }
    }
}
