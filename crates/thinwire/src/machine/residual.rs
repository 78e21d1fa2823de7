//! The memory of a residual: one vector of 32-bit numbers, half of one, or a quarter.

use super::Floats;
use crate::codec::{Precision, ResidualSlice};
use crate::kernel::bf16::{self, Half};
use crate::kernel::eighths;

/// The residual of one way, 0 at first.
#[derive(Debug)]
pub struct Residual {
    memory: Memory,
    /// κ: how much of what a code lost is remembered.
    feedback: f32,
    /// The values in 32 bits, from when somebody looks at them until the next mean: they may have been changed.
    opened: Option<Floats>,
}

#[derive(Debug)]
enum Memory {
    /// 32 bits a value.
    Wide(Floats),
    /// 16 bits a value.
    Half {
        len: usize,
        /// Two values in each.
        pairs: Floats,
    },
    /// 8 bits a value, and a scale a block.
    Small {
        len: usize,
        block: usize,
        /// Four values in each.
        fours: Floats,
        scales: Floats,
    },
}

impl Residual {
    /// Nothing is remembered.
    pub fn none() -> Residual {
        Residual { memory: Memory::Wide(Floats::zeroed(0)), feedback: 0.0, opened: None }
    }

    /// All 0; nothing where `feedback` is.
    pub fn zeroed(len: usize, precision: Precision, block: usize, feedback: f32) -> Residual {
        if feedback == 0.0 {
            return Residual::none();
        }
        let memory = match precision {
            Precision::F32 => Memory::Wide(Floats::zeroed(len)),
            Precision::Bf16 => Memory::Half { len, pairs: Floats::zeroed(len.div_ceil(2)) },
            Precision::I8 => {
                let (fours, scales) = (Floats::zeroed(len.div_ceil(4)), Floats::zeroed(len.div_ceil(block)));
                Memory::Small { len, block, fours, scales }
            }
        };
        Residual { memory, feedback, opened: None }
    }

    /// κ.
    pub fn feedback(&self) -> f32 {
        self.feedback
    }

    /// For whoever saves, loads or inspects it.
    pub fn values(&mut self) -> &mut [f32] {
        match &mut self.memory {
            Memory::Wide(values) => values,
            Memory::Half { len, pairs } => self.opened.get_or_insert_with(|| {
                let mut values = Floats::zeroed(*len);
                bf16::read(halves(pairs, *len), &mut values);
                values
            }),
            Memory::Small { len, block, fours, scales } => self.opened.get_or_insert_with(|| {
                let mut values = Floats::zeroed(*len);
                eighths::widen_blocks(*block, codes(fours, *len), scales, &mut values);
                values
            }),
        }
    }

    /// The bytes it takes now.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        let kept = match &self.memory {
            Memory::Wide(values) => values.len(),
            Memory::Half { pairs, .. } => pairs.len(),
            Memory::Small { fours, scales, .. } => fours.len() + scales.len(),
        };
        4 * (kept + self.opened.as_ref().map_or(0, |values| values.len()))
    }

    /// For a mean.
    pub fn slice(&mut self) -> ResidualSlice<'_> {
        if self.feedback == 0.0 {
            return ResidualSlice::Nothing;
        }
        let opened = self.opened.take();
        match &mut self.memory {
            Memory::Wide(values) => ResidualSlice::Wide(values),
            Memory::Half { len, pairs } => {
                let halves = halves(pairs, *len);
                if let Some(values) = opened {
                    bf16::write(&values, halves);
                }
                ResidualSlice::Half(halves)
            }
            Memory::Small { len, block, fours, scales } => {
                let codes = codes(fours, *len);
                if let Some(values) = opened {
                    eighths::narrow_blocks(*block, &values, codes, scales);
                }
                ResidualSlice::Small { block: *block, codes, scales }
            }
        }
    }
}

fn halves(pairs: &mut [f32], len: usize) -> &mut [Half] {
    &mut bytemuck::cast_slice_mut(pairs)[..len]
}

fn codes(fours: &mut [f32], len: usize) -> &mut [i8] {
    &mut bytemuck::cast_slice_mut(fours)[..len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_opened_is_closed_by_the_next_mean() {
        for len in [0, 1, 2, 7, 4097] {
            for precision in [Precision::Bf16, Precision::I8] {
                let mut residual = Residual::zeroed(len, precision, 5, 1.0);
                let closed = residual.bytes();
                assert!((precision.bytes(len, 5)..precision.bytes(len, 5) + 4).contains(&closed), "{closed} of {len}");
                let values = (0..len).map(|i| i as f32).collect::<Vec<_>>();
                residual.values().copy_from_slice(&values);
                assert_eq!(residual.bytes(), closed + 4 * len);
                assert_eq!(residual.slice().count(), Some(len));
                assert_eq!(residual.bytes(), closed);
                let mut rounded = values;
                precision.round(5, &mut rounded);
                assert_eq!(residual.values(), rounded, "what was written there is kept");
            }
        }
    }

    #[test]
    fn without_feedback_there_is_none() {
        let mut residual = Residual::zeroed(1000, Precision::F32, 512, 0.0);
        assert!(residual.values().is_empty() && residual.slice().count().is_none());
    }
}
