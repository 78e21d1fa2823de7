//! The loops that touch every parameter, each fused into one pass over memory.
//!
//! Memory bandwidth is the limit of everything here, so a kernel reads each vector once and writes it once. Most are
//! plain loops that the compiler vectorises: `multiversion!` compiles the same body for the baseline CPU, for AVX2
//! and for AVX-512, and picks one at run time. Rust never contracts a multiplication and an addition, so all versions
//! give the same bits. A loop with type parameters is a `Work`, compiled in the same way. Intrinsics are only where the compiler finds no
//! vectors by itself: in the passes over signs ([`blocks`], with `scale`, `sign` and [`residual_value`]), in small numbers ([`bits`],
//! `points` and the grids), in [`f16`], in stores past the caches (`put`), and in what [`select`] takes.
//!
//! This folder holds the only `unsafe` of the engine: calls into functions compiled for a CPU feature, made after that
//! feature was detected, the loads and stores of the intrinsics, and a fence. Every such function has a portable twin, and
//! `tests/it/twins.rs` holds them to the same bits.

#![allow(unsafe_code)]

pub mod bf16;
pub mod bits;
pub mod blocks;
pub mod casts;
pub mod chance;
pub mod eighths;
pub mod f16;
pub mod grids;
pub mod lamb;
mod largest;
#[cfg(target_arch = "x86_64")]
mod points;
pub mod power2;
mod put;
pub mod residual_value;
pub mod reduce;
mod scale;
pub mod select;
mod sign;
pub mod uniform;
pub mod update;

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, Ordering};

/// The instruction sets a kernel is compiled for, from the plainest to the widest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// What every CPU has.
    Portable = 1,
    /// AVX2, and F16C, which no CPU with AVX2 lacks.
    Avx2 = 2,
    /// AVX-512: F, BW, DQ and VL.
    Avx512 = 3,
}

/// 0 until the CPU has been asked.
static LEVEL: AtomicU8 = AtomicU8::new(0);

/// The level in use: the best this CPU has, unless [`use_level`] lowered it.
#[inline]
pub fn level() -> Level {
    match LEVEL.load(Ordering::Relaxed) {
        1 => Level::Portable,
        2 => Level::Avx2,
        3 => Level::Avx512,
        _ => use_level(Level::Avx512),
    }
}

/// Lowers the level to `wanted`, or to the best this CPU has if that is less; returns what is now in use.
///
/// For tests and benchmarks: every level gives the same bits, so nothing but speed depends on it.
pub fn use_level(wanted: Level) -> Level {
    let level = wanted.min(best());
    LEVEL.store(level as u8, Ordering::Relaxed);
    level
}

#[cfg(target_arch = "x86_64")]
fn best() -> Level {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => Level::Avx512,
        (true, false) => Level::Avx2,
        (false, _) => Level::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn best() -> Level {
    Level::Portable
}

/// f32 values in a cache line.
const LINE: usize = 16;

/// How far ahead of its loop a kernel asks for memory, in values. The hardware alone keeps too few lines under way to fill one
/// core's share of the bandwidth.
const AHEAD: usize = 512;

/// Asks for the cache lines [`AHEAD`] of `values`, which are whole lines.
#[inline(always)]
fn prefetch<T>(values: &[T]) {
    prefetch_at(values, AHEAD);
}

/// Asks for the cache lines so many values `ahead` of `values`.
#[inline(always)]
fn prefetch_at<T>(values: &[T], ahead: usize) {
    // What has no size is nowhere.
    #[cfg(target_arch = "x86_64")]
    for line in values.chunks(4 * LINE / size_of::<T>().max(1)).filter(|_| size_of::<T>() > 0) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint about an address; it reads nothing, and any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(ahead).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, ahead);
}

/// Leave to write past the caches, within [`streaming`]: whole lines that are not read again soon need not be read first, which
/// halves the traffic. Until a fence such writes keep no order with anything else, so what is written to is borrowed for `'env`,
/// which outlives the fence:
///
/// ```
/// # use thinwire::inside::kernel::{blocks::{self, Scale}, streaming};
/// let (message, mut out) = ([0, 0, 0x80, 0x3f, 0xff], [0.0; 8]); // a scale of 1, and eight pluses
/// streaming(|stream| blocks::unpack_streaming::<Scale>(8, &message, &mut out, stream)).expect("a scale");
/// assert_eq!(out, [1.0; 8]);
/// ```
///
/// ```compile_fail
/// # use thinwire::inside::kernel::{blocks::{self, Scale}, streaming};
/// let (message, mut out) = ([0, 0, 0x80, 0x3f, 0xff], [0.0; 8]); // a scale of 1, and eight pluses
/// streaming(|stream| {
///     blocks::unpack_streaming::<Scale>(8, &message, &mut out, stream).expect("a scale");
///     assert_eq!(out, [1.0; 8]); // too early
/// });
/// ```
pub struct Stream<'env>(PhantomData<*mut &'env mut [f32]>); // of this thread alone, and of exactly this lifetime

/// Calls `work`, and fences: what it wrote past the caches comes before whatever this thread does next.
pub fn streaming<'env, T>(work: impl FnOnce(&Stream<'env>) -> T) -> T {
    work(&Stream(PhantomData))
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has SSE.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

/// Runs a body for every index of some vectors of one length, cache line by cache line, asking ahead for the next ones.
///
/// A macro and not a function over arrays of slices: the compiler vectorises a body only when it sees each vector by itself.
macro_rules! for_each_line {
    ([$($read:ident),*], [$($write:ident),*], |$i:ident| $body:block) => {
        let n = [$($read.len(),)* $($write.len(),)*][0];
        $( assert_eq!($read.len(), n); )*
        $( assert_eq!($write.len(), n); )*
        let whole = n / $crate::kernel::LINE * $crate::kernel::LINE;
        for start in (0..whole).step_by($crate::kernel::LINE) {
            let line = start..start + $crate::kernel::LINE;
            $( $crate::kernel::prefetch(&$read[line.clone()]); )*
            $( $crate::kernel::prefetch(&$write[line.clone()]); )*
            $( let $read = &$read[line.clone()]; )*
            $( let $write = &mut $write[line.clone()]; )*
            for $i in 0..$crate::kernel::LINE $body
        }
        for $i in whole..n $body
    };
}
pub(crate) use for_each_line;

/// Compiles one body for every [`Level`] and calls the one in use.
///
/// On other architectures the baseline is the only version; on AArch64 that baseline has NEON, and the compiler uses it.
macro_rules! multiversion {
    ($(#[$doc:meta])* pub fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)? $body:block) => {
        $(#[$doc])*
        #[allow(unsafe_code)] // the calls below
        pub fn $name($($arg: $type),*) $(-> $out)? {
            #[inline(always)]
            fn portable($($arg: $type),*) $(-> $out)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($($arg: $type),*) $(-> $out)? { portable($($arg),*) }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512($($arg: $type),*) $(-> $out)? { portable($($arg),*) }

            match $crate::kernel::level() {
                // SAFETY: `level()` names a level only after the CPU was found to have its features.
                #[cfg(target_arch = "x86_64")]
                $crate::kernel::Level::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::kernel::Level::Avx2 => unsafe { avx2($($arg),*) },
                _ => portable($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;

/// A loop with type parameters, for which [`multiversion!`] has no room.
pub(crate) trait Work {
    /// What comes out.
    type Out;

    /// Its body, compiled for `S`. It is `inline(always)`, and so is what it calls, or they would be compiled for the baseline.
    fn run<S: Set>(self) -> Self::Out;
}

/// An instruction set as a type: intrinsics of a level may be called where this names it.
pub trait Set {
    /// Which.
    const LEVEL: Level;
}

struct Portable;
#[cfg(target_arch = "x86_64")]
struct Avx2;
#[cfg(target_arch = "x86_64")]
struct Avx512;

impl Set for Portable {
    const LEVEL: Level = Level::Portable;
}

#[cfg(target_arch = "x86_64")]
impl Set for Avx2 {
    const LEVEL: Level = Level::Avx2;
}

#[cfg(target_arch = "x86_64")]
impl Set for Avx512 {
    const LEVEL: Level = Level::Avx512;
}

/// Runs `work` as it was compiled for the level in use.
pub(crate) fn at_level<W: Work>(work: W) -> W::Out {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c")]
    fn avx2<W: Work>(work: W) -> W::Out {
        work.run::<Avx2>()
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    fn avx512<W: Work>(work: W) -> W::Out {
        work.run::<Avx512>()
    }

    match level() {
        // SAFETY: `level()` names a level only after the CPU was found to have its features.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { avx512(work) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => unsafe { avx2(work) },
        _ => work.run::<Portable>(),
    }
}
