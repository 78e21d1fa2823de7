//! Whole blocks of signs, many in one call: of each its head, which says what a sign stands for, then one bit a value.
//!
//! There are two heads: a [`Scale`] of four bytes, the mean magnitude of the block; and a [`Unit`] of none, where a sign stands for ±1.
//!
//! A block may be as short as a few hundred values, and calls for each pass over each block, with the choice of an
//! instruction set in each, would be seen. Here it is chosen once for all blocks.
//!
//! Packing reads a block twice, the second time out of the first-level cache. So that memory has something to do all the time,
//! each pass asks ahead for a vector of its own: the first for x, the second for e. That of e is asked for a whole block ahead, for
//! the first pass over the next block reads all of it. (The portable twins ask for nothing.)

use super::reduce::divide;
use super::residual_value::ResidualValue;
use super::sign::{self, Signed};
use super::{Stream, level, scale};

#[cfg(target_arch = "x86_64")]
use super::{AHEAD, Level};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m128;

/// The longest block: with its error and its bytes it stays in the first-level cache between the passes over it.
pub const MAX_BLOCK: usize = 4096;

/// Messages that are added up in one pass.
pub const TOGETHER: usize = 4;

/// What stands before the bits of a block.
pub trait Head: std::fmt::Debug + Send + Sync + 'static {
    /// Its bytes.
    const LEN: usize;

    /// What the signs of `count` values stand for whose magnitudes add up to `sum`. None if one of them is not finite.
    fn of(sum: f64, count: usize) -> Option<f32>;

    /// Writes it, and returns where the bits go.
    fn write(scale: f32, bytes: &mut [u8]) -> &mut [u8];

    /// What the signs of a block stand for, and its bits. An error is a scale that cannot be.
    fn split(bytes: &[u8]) -> Result<Signed<'_>, f32>;
}

/// s = mean |z| of the block, as f32.
#[derive(Clone, Copy, Debug)]
pub struct Scale;

impl Head for Scale {
    const LEN: usize = 4;

    #[inline(always)]
    fn of(sum: f64, count: usize) -> Option<f32> {
        let s = (sum / count as f64) as f32;
        s.is_finite().then_some(s)
    }

    #[inline(always)]
    fn write(scale: f32, bytes: &mut [u8]) -> &mut [u8] {
        let (head, bits) = bytes.split_first_chunk_mut().expect("room for a scale");
        *head = scale.to_le_bytes();
        bits
    }

    #[inline(always)]
    fn split(bytes: &[u8]) -> Result<Signed<'_>, f32> {
        split_scale(bytes)
    }
}

/// 1, and no bytes.
#[derive(Clone, Copy, Debug)]
pub struct Unit;

impl Head for Unit {
    const LEN: usize = 0;

    /// The sum of magnitudes is finite exactly where each of them is.
    #[inline(always)]
    fn of(sum: f64, _: usize) -> Option<f32> {
        sum.is_finite().then_some(1.0)
    }

    #[inline(always)]
    fn write(_: f32, bytes: &mut [u8]) -> &mut [u8] {
        bytes
    }

    #[inline(always)]
    fn split(bytes: &[u8]) -> Result<Signed<'_>, f32> {
        Ok((1.0, bytes))
    }
}

/// The bytes of a block of `count` values; none have no head.
pub const fn encoded_len<H: Head>(count: usize) -> usize {
    if count == 0 { 0 } else { H::LEN + sign::packed_len(count) }
}

/// The bytes of `count` values in blocks of `block`.
pub const fn total_len<H: Head>(block: usize, count: usize) -> usize {
    count / block * encoded_len::<H>(block) + encoded_len::<H>(count % block)
}

/// A block's scale, and what follows it; a scale that is not a finite number of at least 0 is an error. Panics where there is no room
/// for a scale.
pub fn split_scale(bytes: &[u8]) -> Result<Signed<'_>, f32> {
    let (scale, rest) = bytes.split_first_chunk().expect("a scale");
    let scale = f32::from_le_bytes(*scale);
    // One comparison: a sign bit, an infinity and a NaN are all larger bit patterns than the largest finite number's.
    if scale.to_bits() < f32::INFINITY.to_bits() { Ok((scale, rest)) } else { Err(scale) }
}

/// Writes z = x + e to `bytes`, the head and the signs of each block, and leaves the error: e ← z − (±s). None if a value is not
/// finite: then the blocks before its own are written, and the others left as they were.
pub fn pack<H: Head, E: ResidualValue>(block: usize, x: &[f32], e: &mut [E], bytes: &mut [u8]) -> Option<()> {
    assert_eq!(x.len(), e.len());
    assert_eq!(bytes.len(), total_len::<H>(block, x.len()));
    match level() {
        // SAFETY: `level()` names a level only after the CPU was found to have its features.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { pack_avx512::<H, E>(block, x, e, bytes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => unsafe { pack_avx2::<H, E>(block, x, e, bytes) },
        _ => pack_each::<H, E>(block, x, e, bytes, scale::sum_portable, sign::pack_portable),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn pack_avx2<H: Head, E: ResidualValue>(block: usize, x: &[f32], e: &mut [E], bytes: &mut [u8]) -> Option<()> {
    let ahead = block.max(AHEAD);
    let pack = |s, x: &[f32], e: &mut [E], bits: &mut [u8]| sign::pack_avx2(s, x, e, bits, ahead);
    pack_each::<H, E>(block, x, e, bytes, |x, e| scale::sum_avx2(x, e), pack)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
fn pack_avx512<H: Head, E: ResidualValue>(block: usize, x: &[f32], e: &mut [E], bytes: &mut [u8]) -> Option<()> {
    let ahead = block.max(AHEAD);
    let pack = |s, x: &[f32], e: &mut [E], bits: &mut [u8]| sign::pack_avx512(s, x, e, bits, ahead);
    pack_each::<H, E>(block, x, e, bytes, |x, e| scale::sum_avx512(x, e), pack)
}

#[inline(always)]
fn pack_each<H: Head, E: ResidualValue>(
    block: usize,
    x: &[f32],
    e: &mut [E],
    bytes: &mut [u8],
    sum: impl Fn(&[f32], &[E]) -> f64,
    pack: impl Fn(f32, &[f32], &mut [E], &mut [u8]),
) -> Option<()> {
    for ((x, e), bytes) in x.chunks(block).zip(e.chunks_mut(block)).zip(bytes.chunks_mut(encoded_len::<H>(block))) {
        let s = H::of(scale::mended(sum(x, e), x, e), x.len())?;
        pack(s, x, e, H::write(s, bytes));
    }
    Some(())
}

/// out ← the values of these blocks. An error is a scale that cannot be.
pub fn unpack<H: Head>(block: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), f32> {
    assert_eq!(bytes.len(), total_len::<H>(block, out.len()));
    match level() {
        // SAFETY: as in `pack`.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { unpack_avx512::<H>(block, bytes, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as in `pack`.
        Level::Avx2 => unsafe { unpack_avx2::<H>(block, bytes, out) },
        _ => unpack_each::<H>(block, bytes, out, sign::unpack_portable),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn unpack_avx2<H: Head>(block: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), f32> {
    unpack_each::<H>(block, bytes, out, |s, bits, out| sign::unpack_avx2(s, bits, out))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
fn unpack_avx512<H: Head>(block: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), f32> {
    unpack_each::<H>(block, bytes, out, |s, bits, out| sign::unpack_avx512(s, bits, out))
}

/// The same, past the caches.
pub fn unpack_streaming<'env, H: Head>(
    block: usize,
    bytes: &[u8],
    out: &'env mut [f32],
    _: &Stream<'env>,
) -> Result<(), f32> {
    assert_eq!(bytes.len(), total_len::<H>(block, out.len()));
    // A store past the caches is of sixteen bytes, at a multiple of sixteen, which every allocator gives; with blocks of a multiple of
    // four values every block begins at one too.
    #[cfg(target_arch = "x86_64")]
    if out.as_ptr().cast::<__m128>().is_aligned() && block.is_multiple_of(4) {
        match level() {
            // SAFETY: as in `pack`. Every block is aligned, as was just checked. `out` is borrowed until the fence, so nobody reads it before.
            Level::Avx512 => return unsafe { unpack_streaming_avx512::<H>(block, bytes, out) },
            // SAFETY: as above.
            Level::Avx2 => return unsafe { unpack_streaming_avx2::<H>(block, bytes, out) },
            Level::Portable => {}
        }
    }
    unpack::<H>(block, bytes, out)
}

/// # Safety
/// As [`sign::unpack_streaming_avx2`], for every block.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn unpack_streaming_avx2<H: Head>(block: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), f32> {
    // SAFETY: the caller's.
    unpack_each::<H>(block, bytes, out, |s, bits, out| unsafe { sign::unpack_streaming_avx2(s, bits, out) })
}

/// # Safety
/// As [`unpack_streaming_avx2`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn unpack_streaming_avx512<H: Head>(block: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), f32> {
    // SAFETY: the caller's.
    unpack_each::<H>(block, bytes, out, |s, bits, out| unsafe { sign::unpack_streaming_avx512(s, bits, out) })
}

#[inline(always)]
fn unpack_each<H: Head>(
    block: usize,
    bytes: &[u8],
    out: &mut [f32],
    unpack: impl Fn(f32, &[u8], &mut [f32]),
) -> Result<(), f32> {
    for (bytes, out) in bytes.chunks(encoded_len::<H>(block)).zip(out.chunks_mut(block)) {
        match H::split(bytes)? {
            (0.0, _) => out.fill(0.0), // not −0.0: a zero has no sign
            (s, bits) => unpack(s, bits, out),
        }
    }
    Ok(())
}

/// sum ← ((sum ± s₀) ± s₁ …) / divisor, of at most [`TOGETHER`] messages' blocks, where `sum` is taken for 0 if it is `fresh`. An error
/// is a scale that cannot be, and whose it is.
pub fn add_up<H: Head>(
    block: usize,
    some: &[&[u8]],
    fresh: bool,
    divisor: f32,
    sum: &mut [f32],
) -> Result<(), (usize, f32)> {
    some.iter().for_each(|bytes| assert_eq!(bytes.len(), total_len::<H>(block, sum.len())));
    let how = How { block, fresh, divisor };
    match *some {
        [] => {
            if fresh {
                sum.fill(0.0);
            }
            divide(divisor, sum);
            Ok(())
        }
        [a] => add_up_of::<H, _>([a], how, sum),
        [a, b] => add_up_of::<H, _>([a, b], how, sum),
        [a, b, c] => add_up_of::<H, _>([a, b, c], how, sum),
        [a, b, c, d] => add_up_of::<H, _>([a, b, c, d], how, sum),
        _ => panic!("{} at once", some.len()),
    }
}

/// What [`add_up`] is told beside its messages.
#[derive(Clone, Copy)]
struct How {
    block: usize,
    fresh: bool,
    divisor: f32,
}

fn add_up_of<H: Head, const N: usize>(some: [&[u8]; N], how: How, sum: &mut [f32]) -> Result<(), (usize, f32)> {
    match level() {
        // SAFETY: as in `pack`.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { add_up_avx512::<H, N>(some, how, sum) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as in `pack`.
        Level::Avx2 => unsafe { add_up_avx2::<H, N>(some, how, sum) },
        _ => add_up_each::<H, N>(some, how, sum, sign::add_up_portable),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_up_avx2<H: Head, const N: usize>(some: [&[u8]; N], how: How, sum: &mut [f32]) -> Result<(), (usize, f32)> {
    add_up_each::<H, N>(some, how, sum, |some, fresh, divisor, sum| sign::add_up_avx2(some, fresh, divisor, sum))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
fn add_up_avx512<H: Head, const N: usize>(some: [&[u8]; N], how: How, sum: &mut [f32]) -> Result<(), (usize, f32)> {
    add_up_each::<H, N>(some, how, sum, |some, fresh, divisor, sum| sign::add_up_avx512(some, fresh, divisor, sum))
}

#[inline(always)]
fn add_up_each<H: Head, const N: usize>(
    some: [&[u8]; N],
    How { block, fresh, divisor }: How,
    sum: &mut [f32],
    add_up: impl Fn([Signed<'_>; N], bool, f32, &mut [f32]),
) -> Result<(), (usize, f32)> {
    let len = encoded_len::<H>(block);
    for (i, sum) in sum.chunks_mut(block).enumerate() {
        let mut signed = [(0.0, &[][..]); N];
        for n in 0..N {
            signed[n] = H::split(&some[n][i * len..][..encoded_len::<H>(sum.len())]).map_err(|scale| (n, scale))?;
        }
        add_up(signed, fresh, divisor, sum);
    }
    Ok(())
}
