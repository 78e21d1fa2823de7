//! `f32`, `bf16`, `f16`: casts. No scale, no blocks to speak of; they round to nearest, halves to even.
//!
//! `f32` loses nothing and turns every algorithm into its uncompressed self. A magnitude past the largest finite half
//! becomes that largest one, not infinity: the error feedback carries the rest.

use super::{Fault, Packs};
use crate::kernel::casts::{self, Bf16, F16, F32, Narrow};
use crate::kernel::residual_value::ResidualValue;
use std::fmt::Debug;
use std::marker::PhantomData;

/// The codec `f32`.
pub const CAST_F32: Cast<F32, 4> = Cast(PhantomData);

/// The codec `bf16`.
pub const CAST_BF16: Cast<Bf16, 2> = Cast(PhantomData);

/// The codec `f16`.
pub const CAST_F16: Cast<F16, 2> = Cast(PhantomData);

/// A cast to so many bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cast<C, const N: usize>(PhantomData<C>);

impl<C: Narrow<N> + Debug + Send + Sync, const N: usize> Packs for Cast<C, N> {
    fn len_of(&self, count: usize) -> usize {
        count * N
    }

    fn pack<E: ResidualValue>(&self, block: usize, x: &[f32], e: &mut [E], out: &mut [u8]) -> Result<(), Fault> {
        casts::pack::<C, N, E>(block, x, e, out)
    }

    fn unpack(&self, _: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
        casts::unpack::<C, N>(bytes, out)
    }

    fn add(&self, _: usize, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault> {
        casts::add::<C, N>(bytes, sum)
    }
}
