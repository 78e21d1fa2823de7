//! Whole blocks of points of a grid, many in one call: of each a scale s, the largest magnitude, then a small whole number a value.
//!
//! The arithmetic of a value is the grid's, in plain Rust that the compiler vectorises into the loops here, once for each instruction
//! set; packing and unpacking the numbers has intrinsics ([`bits`]), and AVX-512 has loops of its own (`points`). The numbers of a block
//! are bytes for a moment, in the first-level
//! cache. As with signs ([`blocks`](super::blocks)) a block is read twice, and z = x + e is added up twice and kept nowhere.

use super::blocks::{MAX_BLOCK, split_scale};
use super::put::{Add, PIECE, Past, Put, Store};
use super::residual_value::ResidualValue;
use super::{AHEAD, Set, Stream, Work, at_level, bits, largest, prefetch_at};
use crate::error::Fault;
use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
use super::{Level, points};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// A grid on [−1, 1] whose points are numbered with a few bits. What is here is compiled for every instruction set, so it is
/// `inline(always)` and free of branches.
pub trait Grid: Copy {
    /// The bits of a number, 1 to 8.
    fn width(self) -> u32;

    /// The number of the nearest point to z/s, and that point times s; for s > 0 and |z| ≤ s.
    fn nearest(self, s: f32, z: f32) -> (u8, f32);

    /// The point of this number, times s.
    fn point(self, s: f32, code: u8) -> f32;

    /// [`Grid::nearest`] of sixteen values.
    ///
    /// # Safety
    /// The CPU has what [`Level::Avx512`] stands for.
    #[cfg(target_arch = "x86_64")]
    unsafe fn nearest_avx512(self, s: __m512, z: __m512) -> __m512i;

    /// [`Grid::point`] of sixteen numbers.
    ///
    /// # Safety
    /// As above.
    #[cfg(target_arch = "x86_64")]
    unsafe fn point_avx512(self, s: __m512, codes: __m512i) -> __m512;

    /// The largest number that a point has.
    fn largest(self) -> u8;

    /// The number of the point 0.
    fn zero(self) -> u8;
}

/// The bytes of a block of `count` values; none have no scale.
pub fn encoded_len(grid: impl Grid, count: usize) -> usize {
    if count == 0 { 0 } else { SCALE + bits::packed_len(count, grid.width()) }
}

/// The bytes of a scale.
const SCALE: usize = 4;

/// The bytes of `count` values in blocks of `block`.
fn total_len(grid: impl Grid, block: usize, count: usize) -> usize {
    count / block * encoded_len(grid, block) + encoded_len(grid, count % block)
}

/// Writes z = x + e to `bytes`, the scale and the points of each block, and leaves the error: e ← z − C(z). Where a value is not finite,
/// the blocks before its own are written, and the others left as they were.
pub fn pack<G: Grid, E: ResidualValue>(
    grid: G,
    block: usize,
    x: &[f32],
    e: &mut [E],
    bytes: &mut [u8],
) -> Result<(), Fault> {
    assert_eq!(x.len(), e.len());
    assert_eq!(bytes.len(), total_len(grid, block, x.len()));
    at_level(Pack { grid, block, x, e, bytes })
}

struct Pack<'a, G, E> {
    grid: G,
    block: usize,
    x: &'a [f32],
    e: &'a mut [E],
    bytes: &'a mut [u8],
}

impl<G: Grid, E: ResidualValue> Work for Pack<'_, G, E> {
    type Out = Result<(), Fault>;

    #[inline(always)]
    fn run<S: Set>(self) -> Result<(), Fault> {
        let (grid, room) = (self.grid, &mut [0; MAX_BLOCK][..self.block.min(self.x.len())]);
        let blocks = self.x.chunks(self.block).zip(self.e.chunks_mut(self.block));
        for ((x, e), bytes) in blocks.zip(self.bytes.chunks_mut(encoded_len(grid, self.block))) {
            let (s, codes) = (largest::finite(x, e)?, &mut room[..x.len()]);
            if s > 0.0 {
                quantize::<S, G, E>(grid, s, x, e, codes, self.block.max(AHEAD))
            } else {
                nothing(grid, x, e, codes)
            }
            let (head, packed) = bytes.split_at_mut(SCALE);
            head.copy_from_slice(&s.to_le_bytes());
            bits::pack(grid.width(), codes, packed);
        }
        Ok(())
    }
}

/// codes ← the points of z = x + e;  e ← z − C(z). The residual so many values `ahead` is asked for.
#[inline(always)]
fn quantize<S: Set, G: Grid, E: ResidualValue>(
    grid: G,
    s: f32,
    x: &[f32],
    e: &mut [E],
    codes: &mut [u8],
    ahead: usize,
) {
    let done = match S::LEVEL {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: code for this level runs only on a CPU that has it.
        Level::Avx512 => unsafe { points::quantize(grid, s, x, e, codes, ahead) },
        _ => 0,
    };
    prefetch_at(&e[done..], ahead);
    for ((x, e), code) in x[done..].iter().zip(&mut e[done..]).zip(&mut codes[done..]) {
        let z = x + e.get();
        let (number, q) = grid.nearest(s, z);
        *code = number;
        *e = E::put(z - q);
    }
}

/// The same of a block of zeros, which has no scale to divide by.
#[inline(always)]
fn nothing<G: Grid, E: ResidualValue>(grid: G, x: &[f32], e: &mut [E], codes: &mut [u8]) {
    codes.fill(grid.zero());
    x.iter().zip(e).for_each(|(x, e)| *e = E::put(x + e.get()));
}

/// out ← the values of these blocks.
pub fn unpack<G: Grid>(grid: G, block: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
    read::<G, Store>(grid, block, bytes, out)
}

/// The same, past the caches.
pub fn unpack_streaming<'env, G: Grid>(
    grid: G,
    block: usize,
    bytes: &[u8],
    out: &'env mut [f32],
    _: &Stream<'env>, // `out` is borrowed until the fence, so nobody reads it before
) -> Result<(), Fault> {
    read::<G, Past>(grid, block, bytes, out)
}

/// sum ← sum + the values of these blocks.
pub fn add<G: Grid>(grid: G, block: usize, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault> {
    read::<G, Add>(grid, block, bytes, sum)
}

fn read<G: Grid, P: Put>(grid: G, block: usize, bytes: &[u8], values: &mut [f32]) -> Result<(), Fault> {
    assert_eq!(bytes.len(), total_len(grid, block, values.len()));
    at_level(Read::<G, P> { grid, block, bytes, values, put: PhantomData })
}

struct Read<'a, G, P> {
    grid: G,
    block: usize,
    bytes: &'a [u8],
    values: &'a mut [f32],
    put: PhantomData<P>,
}

impl<G: Grid, P: Put> Work for Read<'_, G, P> {
    type Out = Result<(), Fault>;

    #[inline(always)]
    fn run<S: Set>(self) -> Result<(), Fault> {
        let (grid, len) = (self.grid, encoded_len(self.grid, self.block));
        for (i, values) in self.values.chunks_mut(self.block).enumerate() {
            // With the blocks behind it, so that whole vectors may be read.
            let (s, packed) = split_scale(&self.bytes[i * len..]).map_err(Fault::Scale)?;
            let (code, largest) = (put::<S, G, P>(grid, s, packed, values), grid.largest());
            if code > largest {
                return Err(Fault::Code { code, largest });
            }
        }
        Ok(())
    }
}

/// Puts the points whose numbers are in `packed` to `values`. Returns the largest number.
#[inline(always)]
fn put<S: Set, G: Grid, P: Put>(grid: G, s: f32, packed: &[u8], values: &mut [f32]) -> u8 {
    let (done, mut largest) = match S::LEVEL {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: code for this level runs only on a CPU that has it.
        Level::Avx512 => unsafe { points::put::<G, P>(grid, s, packed, values) },
        _ => (0, 0),
    };
    let packed = &packed[bits::packed_len(done, grid.width())..];
    for (i, values) in values[done..].chunks_mut(PIECE).enumerate() {
        let codes = &mut [0; PIECE][..values.len()];
        bits::unpack(grid.width(), &packed[i * bits::packed_len(PIECE, grid.width())..], codes);
        largest = codes.iter().copied().fold(largest, u8::max);
        P::put::<S>(values, codes.iter().map(|code| grid.point(s, *code) + P::ZERO));
    }
    largest
}
