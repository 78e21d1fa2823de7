//! What `uniform` and `power2` share: a scale s = max |z| a block, and a small whole number a value.
//!
//! Their grids, with what the codecs write, are [`Uniform`](crate::kernel::uniform::Uniform) and
//! [`Power2`](crate::kernel::power2::Power2).

use super::{Fault, Packs};
use crate::kernel::Stream;
use crate::kernel::grids::{self, Grid};
use crate::kernel::residual_value::ResidualValue;
use std::fmt::Debug;

/// The codec of a grid.
#[derive(Clone, Copy, Debug)]
pub struct Levels<G>(pub G);

impl<G: Grid + Debug + Send + Sync> Packs for Levels<G> {
    fn len_of(&self, count: usize) -> usize {
        grids::encoded_len(self.0, count)
    }

    fn pack<E: ResidualValue>(&self, block: usize, x: &[f32], e: &mut [E], out: &mut [u8]) -> Result<(), Fault> {
        grids::pack(self.0, block, x, e, out)
    }

    fn unpack(&self, block: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
        grids::unpack(self.0, block, bytes, out)
    }

    fn unpack_streaming<'env>(
        &self,
        block: usize,
        bytes: &[u8],
        out: &'env mut [f32],
        stream: &Stream<'env>,
    ) -> Result<(), Fault> {
        grids::unpack_streaming(self.0, block, bytes, out, stream)
    }

    fn add(&self, block: usize, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault> {
        grids::add(self.0, block, bytes, sum)
    }
}
