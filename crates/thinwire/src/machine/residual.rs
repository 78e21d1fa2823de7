//! The memory of a residual: one vector of 32-bit numbers, or half of one.

use super::Floats;
use crate::codec::{Precision, ResidualSlice};
use crate::kernel::bf16::{self, Half};

/// The residual of one way, 0 at first.
#[derive(Debug)]
pub enum Residual {
    /// 32 bits a value.
    Wide(Floats),
    /// 16 bits a value.
    Half {
        /// How many values there are.
        len: usize,
        /// Two values in each.
        pairs: Floats,
        /// The same in 32 bits, from when somebody looks at it until the next mean: it may have been changed.
        opened: Option<Floats>,
    },
}

impl Residual {
    /// All 0.
    pub fn zeroed(len: usize, precision: Precision) -> Residual {
        match precision {
            Precision::F32 => Residual::Wide(Floats::zeroed(len)),
            Precision::Bf16 => Residual::Half { len, pairs: Floats::zeroed(len.div_ceil(2)), opened: None },
        }
    }

    /// For whoever saves, loads or inspects it.
    pub fn values(&mut self) -> &mut [f32] {
        match self {
            Residual::Wide(values) => values,
            Residual::Half { len, pairs, opened } => opened.get_or_insert_with(|| {
                let mut values = Floats::zeroed(*len);
                bf16::read(halves(pairs, *len), &mut values);
                values
            }),
        }
    }

    /// The bytes it takes now.
    pub fn bytes(&self) -> usize {
        match self {
            Residual::Wide(values) => 4 * values.len(),
            Residual::Half { pairs, opened, .. } => {
                4 * (pairs.len() + opened.as_ref().map_or(0, |values| values.len()))
            }
        }
    }

    /// For a mean.
    pub fn slice(&mut self) -> ResidualSlice<'_> {
        match self {
            Residual::Wide(values) => ResidualSlice::Wide(values),
            Residual::Half { len, pairs, opened } => {
                let halves = halves(pairs, *len);
                if let Some(values) = opened.take() {
                    bf16::write(&values, halves);
                }
                ResidualSlice::Half(halves)
            }
        }
    }
}

fn halves(pairs: &mut [f32], len: usize) -> &mut [Half] {
    &mut bytemuck::cast_slice_mut(pairs)[..len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_opened_is_closed_by_the_next_mean() {
        for len in [0, 1, 2, 7, 4097] {
            let mut residual = Residual::zeroed(len, Precision::Bf16);
            let closed = residual.bytes();
            assert_eq!(closed, 4 * len.div_ceil(2));
            residual.values().iter_mut().enumerate().for_each(|(i, e)| *e = i as f32);
            assert_eq!(residual.bytes(), closed + 4 * len);
            assert_eq!(residual.slice().count(), Some(len));
            assert_eq!(residual.bytes(), closed);
            let rounded = (0..len).map(|i| half::bf16::from_f32(i as f32).to_f32());
            assert!(residual.values().iter().copied().eq(rounded), "what was written there is kept");
        }
    }
}
