//! Whole vectors of values in fewer bits: no scale, and blocks only to stay in the first-level cache between two passes.
//!
//! The loops are plain Rust over [`Narrow::narrow`] and [`Narrow::widen`], which the compiler vectorises for each instruction set.

use super::bf16;
use super::put::{Add, PIECE, Put, Store};
use super::reduce::magnitude_bits;
use super::residual_value::ResidualValue;
use super::{AHEAD, Set, Work, at_level, f16, largest, prefetch_at};
use crate::error::Fault;
use std::marker::PhantomData;

/// A value as `N` bytes. What is here is compiled for every instruction set, so it is `inline(always)`.
pub trait Narrow<const N: usize> {
    /// out ← the nearest to finite z.
    fn narrow<S: Set>(z: &[f32], out: &mut [[u8; N]]);

    /// out ← the values, in 32 bits.
    fn widen<S: Set>(bytes: &[[u8; N]], out: &mut [f32]);
}

/// 32 bits: the value itself.
#[derive(Clone, Copy, Debug)]
pub struct F32;

/// The upper 16 bits of an f32, rounded.
#[derive(Clone, Copy, Debug)]
pub struct Bf16;

/// IEEE half precision.
#[derive(Clone, Copy, Debug)]
pub struct F16;

impl Narrow<4> for F32 {
    #[inline(always)]
    fn narrow<S: Set>(z: &[f32], out: &mut [[u8; 4]]) {
        z.iter().zip(out).for_each(|(z, out)| *out = z.to_le_bytes());
    }

    #[inline(always)]
    fn widen<S: Set>(bytes: &[[u8; 4]], out: &mut [f32]) {
        bytes.iter().zip(out).for_each(|(bytes, out)| *out = f32::from_le_bytes(*bytes));
    }
}

impl Narrow<2> for Bf16 {
    #[inline(always)]
    fn narrow<S: Set>(z: &[f32], out: &mut [[u8; 2]]) {
        z.iter().zip(out).for_each(|(z, out)| *out = bf16::narrow(*z));
    }

    #[inline(always)]
    fn widen<S: Set>(bytes: &[[u8; 2]], out: &mut [f32]) {
        bytes.iter().zip(out).for_each(|(bytes, out)| *out = bf16::widen(*bytes));
    }
}

impl Narrow<2> for F16 {
    #[inline(always)]
    fn narrow<S: Set>(z: &[f32], out: &mut [[u8; 2]]) {
        f16::narrow_all::<S>(z, out);
    }

    #[inline(always)]
    fn widen<S: Set>(bytes: &[[u8; 2]], out: &mut [f32]) {
        f16::widen_all::<S>(bytes, out);
    }
}

/// Writes z = x + e to `bytes` and leaves the error: e ← z − C(z). Where a value is not finite, the blocks before its own are written,
/// and the others left as they were.
pub fn pack<C: Narrow<N>, const N: usize, E: ResidualValue>(
    block: usize,
    x: &[f32],
    e: &mut [E],
    bytes: &mut [u8],
) -> Result<(), Fault> {
    assert_eq!(x.len(), e.len());
    assert_eq!(bytes.len(), N * x.len());
    at_level(Pack::<C, N, E> { block, x, e, bytes: bytes.as_chunks_mut().0, cast: PhantomData })
}

struct Pack<'a, C, const N: usize, E> {
    block: usize,
    x: &'a [f32],
    e: &'a mut [E],
    bytes: &'a mut [[u8; N]],
    cast: PhantomData<C>,
}

impl<C: Narrow<N>, const N: usize, E: ResidualValue> Work for Pack<'_, C, N, E> {
    type Out = Result<(), Fault>;

    #[inline(always)]
    fn run<S: Set>(self) -> Result<(), Fault> {
        let blocks = self.x.chunks(self.block).zip(self.e.chunks_mut(self.block));
        for ((x, e), bytes) in blocks.zip(self.bytes.chunks_mut(self.block)) {
            largest::finite(x, e)?;
            prefetch_at(e, self.block.max(AHEAD));
            let pieces = x.chunks(PIECE).zip(e.chunks_mut(PIECE)).zip(bytes.chunks_mut(PIECE));
            pieces.for_each(|((x, e), bytes)| narrow::<S, C, N, E>(x, e, bytes));
        }
        Ok(())
    }
}

#[inline(always)]
fn narrow<S: Set, C: Narrow<N>, const N: usize, E: ResidualValue>(x: &[f32], e: &mut [E], bytes: &mut [[u8; N]]) {
    let (z, q) = (&mut [0.0; PIECE][..x.len()], &mut [0.0; PIECE][..x.len()]);
    z.iter_mut().zip(x).zip(&*e).for_each(|((z, x), e)| *z = x + e.get());
    C::narrow::<S>(z, bytes);
    C::widen::<S>(bytes, q);
    e.iter_mut().zip(z).zip(q).for_each(|((e, z), q)| *e = E::put(*z - *q));
}

/// out ← the values.
pub fn unpack<C: Narrow<N>, const N: usize>(bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
    read::<C, N, Store>(bytes, out)
}

/// sum ← sum + the values.
pub fn add<C: Narrow<N>, const N: usize>(bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault> {
    read::<C, N, Add>(bytes, sum)
}

fn read<C: Narrow<N>, const N: usize, P: Put>(bytes: &[u8], values: &mut [f32]) -> Result<(), Fault> {
    assert_eq!(bytes.len(), N * values.len());
    at_level(Read::<C, N, P> { bytes: bytes.as_chunks().0, values, how: PhantomData })
}

struct Read<'a, C, const N: usize, P> {
    bytes: &'a [[u8; N]],
    values: &'a mut [f32],
    how: PhantomData<(C, P)>,
}

impl<C: Narrow<N>, const N: usize, P: Put> Work for Read<'_, C, N, P> {
    type Out = Result<(), Fault>;

    #[inline(always)]
    fn run<S: Set>(self) -> Result<(), Fault> {
        for (values, bytes) in self.values.chunks_mut(PIECE).zip(self.bytes.chunks(PIECE)) {
            let q = &mut [0.0; PIECE][..values.len()];
            C::widen::<S>(bytes, q);
            if q.iter().map(|q| magnitude_bits(*q)).fold(0, u32::max) >= f32::INFINITY.to_bits() {
                return Err(Fault::NotFinite);
            }
            P::put::<S>(values, q.iter().copied());
        }
        Ok(())
    }
}
