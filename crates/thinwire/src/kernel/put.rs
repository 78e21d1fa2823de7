//! Where decoded values go: to memory, past the caches, or onto a sum.

use super::Set;

#[cfg(target_arch = "x86_64")]
use super::Level;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// How many values are decoded at a time where that is not in registers.
pub(super) const PIECE: usize = 256;

/// What becomes of decoded values.
pub(super) trait Put {
    /// What is added to a point of a grid before: 0, so that no 0 has a sign, or −0, which changes nothing.
    const ZERO: f32;

    /// values ← them and `q`, at most [`PIECE`].
    fn put<S: Set>(values: &mut [f32], q: impl Iterator<Item = f32>);

    /// The same of sixteen.
    ///
    /// # Safety
    /// The CPU has what [`Level::Avx512`] stands for, and sixteen values from `at` on may be written, and read by [`Add`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn put_avx512(at: *mut f32, q: __m512);
}

/// In their place.
pub(super) struct Store;

/// Added up with what is there.
pub(super) struct Add;

/// In their place, past the caches. Nobody may read or write it before a fence, this thread included: whoever asks for it holds a
/// [`Stream`](super::Stream), for as long as whose lifetime it is borrowed.
pub(super) struct Past;

// SAFETY, of the blocks below: the caller answers for the CPU and for the memory.

impl Put for Store {
    const ZERO: f32 = 0.0;

    #[inline(always)]
    fn put<S: Set>(values: &mut [f32], q: impl Iterator<Item = f32>) {
        values.iter_mut().zip(q).for_each(|(value, q)| *value = q);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn put_avx512(at: *mut f32, q: __m512) {
        unsafe { _mm512_storeu_ps(at, q) }
    }
}

impl Put for Add {
    const ZERO: f32 = -0.0;

    #[inline(always)]
    fn put<S: Set>(values: &mut [f32], q: impl Iterator<Item = f32>) {
        values.iter_mut().zip(q).for_each(|(value, q)| *value += q);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn put_avx512(at: *mut f32, q: __m512) {
        unsafe { _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), q)) }
    }
}

impl Put for Past {
    const ZERO: f32 = 0.0;

    #[inline(always)]
    fn put<S: Set>(values: &mut [f32], q: impl Iterator<Item = f32>) {
        let room = &mut [0.0; PIECE][..values.len()];
        Store::put::<S>(room, q);
        let ((ins, last), (outs, end)) = (room.as_chunks::<16>(), values.as_chunks_mut::<16>());
        for (from, to) in ins.iter().zip(outs) {
            match S::LEVEL {
                // SAFETY: code for this level runs only on a CPU that has it; both arrays are of sixteen.
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => unsafe { Past::put_avx512(to.as_mut_ptr(), _mm512_loadu_ps(from.as_ptr())) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => unsafe { stream(to.as_mut_ptr(), from.as_ptr()) },
                _ => *to = *from,
            }
        }
        end.copy_from_slice(last);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn put_avx512(at: *mut f32, q: __m512) {
        unsafe {
            // Such a store is of whole vectors, where a vector may begin.
            if at.cast::<__m512>().is_aligned() {
                _mm512_stream_ps(at, q);
            } else {
                _mm512_storeu_ps(at, q);
            }
        }
    }
}

/// Four at a time, where such a store may begin.
///
/// # Safety
/// Sixteen values from `to` and `from` on may be written and read.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn stream(to: *mut f32, from: *const f32) {
    unsafe {
        for four in [0, 4, 8, 12] {
            let (to, value) = (to.add(four), _mm_loadu_ps(from.add(four)));
            if to.cast::<__m128>().is_aligned() { _mm_stream_ps(to, value) } else { _mm_storeu_ps(to, value) }
        }
    }
}
