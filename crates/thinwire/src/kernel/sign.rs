//! One bit a value: packing signs with the error they leave behind, and unpacking them.
//!
//! Bit i of the packed bytes is 1 where value i is ≥ 0 (−0.0 counts as ≥ 0) and stands for +s; 0 stands for −s. The
//! compiler finds no movemask by itself, so these loops are written with intrinsics (`cargo bench` prints the gain).
//! The last values of a length that no vector divides go through the portable twin. [`blocks`](super::blocks) calls all this.

use super::reduce::divide;
use super::residual_value::ResidualValue;

#[cfg(target_arch = "x86_64")]
use super::reduce::exact_inverse;
#[cfg(target_arch = "x86_64")]
use super::{prefetch, prefetch_at};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Bytes that hold the signs of `count` values.
pub const fn packed_len(count: usize) -> usize {
    count.div_ceil(8)
}

/// The scale and the signs of some values.
pub type Signed<'a> = (f32, &'a [u8]);

/// Writes the signs of z = x + e to `bits` and leaves the error: e ← z − (±s).
#[inline(always)]
pub(super) fn pack_portable<E: ResidualValue>(s: f32, x: &[f32], e: &mut [E], bits: &mut [u8]) {
    for ((x, e), byte) in x.chunks(8).zip(e.chunks_mut(8)).zip(bits) {
        *byte = 0;
        for (i, (x, e)) in x.iter().zip(e).enumerate() {
            let z = x + e.get();
            let positive = z >= 0.0;
            *byte |= u8::from(positive) << i;
            *e = E::put(z - if positive { s } else { -s });
        }
    }
}

/// out ← ±s.
#[inline(always)]
pub(super) fn unpack_portable(s: f32, bits: &[u8], out: &mut [f32]) {
    each_portable(s, bits, out, |out, value| *out = value);
}

#[inline(always)]
fn each_portable(s: f32, bits: &[u8], values: &mut [f32], put: impl Fn(&mut f32, f32)) {
    for (values, byte) in values.chunks_mut(8).zip(bits) {
        for (i, value) in values.iter_mut().enumerate() {
            put(value, if byte >> i & 1 == 1 { s } else { -s });
        }
    }
}

/// sum ← ((sum ± s₀) ± s₁ …) / divisor, where `sum` is taken for 0 if it is `fresh`.
#[inline(always)]
pub(super) fn add_up_portable<const N: usize>(some: [Signed<'_>; N], fresh: bool, divisor: f32, sum: &mut [f32]) {
    if fresh {
        sum.fill(0.0);
    }
    some.into_iter().for_each(|(s, bits)| each_portable(s, bits, sum, |sum, value| *sum += value));
    divide(divisor, sum);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn pack_avx2<E: ResidualValue>(s: f32, x: &[f32], e: &mut [E], bits: &mut [u8], ahead: usize) {
    let (plus, sign_bit) = (_mm256_set1_ps(s), _mm256_set1_ps(-0.0));
    let ((xs, x_tail), (es, e_tail)) = (x.as_chunks::<8>(), e.as_chunks_mut::<8>());
    let (bytes, last) = bits.split_at_mut(es.len());
    for ((x, e), byte) in xs.iter().zip(es).zip(bytes) {
        prefetch_at(e, ahead);
        // SAFETY: an array of eight holds one unaligned vector; this function is for CPUs with AVX2.
        unsafe {
            let z = _mm256_add_ps(_mm256_loadu_ps(x.as_ptr()), E::get_avx2(e.as_ptr()));
            let negative = _mm256_cmp_ps::<_CMP_NGE_UQ>(z, _mm256_setzero_ps());
            *byte = !_mm256_movemask_ps(negative) as u8;
            let q = _mm256_xor_ps(plus, _mm256_and_ps(negative, sign_bit));
            E::put_avx2(e.as_mut_ptr(), _mm256_sub_ps(z, q));
        }
    }
    pack_portable(s, x_tail, e_tail, last);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(super) fn pack_avx512<E: ResidualValue>(s: f32, x: &[f32], e: &mut [E], bits: &mut [u8], ahead: usize) {
    let (plus, minus) = (_mm512_set1_ps(s), _mm512_set1_ps(-s));
    let ((xs, x_tail), (es, e_tail)) = (x.as_chunks::<32>(), e.as_chunks_mut::<32>());
    let (bytes, last) = bits.split_at_mut(4 * es.len());
    for ((x, e), bytes) in xs.iter().zip(es).zip(bytes.as_chunks_mut::<4>().0) {
        prefetch_at(e, ahead);
        let mut left = [minus; 2];
        for ((left, at), bytes) in left.iter_mut().zip([0, 16]).zip(bytes.as_chunks_mut::<2>().0) {
            // SAFETY: sixteen values from `at` on lie within the array; this function is for CPUs with AVX-512.
            let z = unsafe { _mm512_add_ps(_mm512_loadu_ps(x[at..].as_ptr()), E::get_avx512(e[at..].as_ptr())) };
            let positive = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(z, _mm512_setzero_ps());
            *bytes = positive.to_le_bytes();
            *left = _mm512_sub_ps(z, _mm512_mask_blend_ps(positive, minus, plus));
        }
        // SAFETY: an array of thirty-two; as above.
        unsafe { E::put_avx512(e.as_mut_ptr(), left) };
    }
    pack_portable(s, x_tail, e_tail, last);
}

/// Eight times ±s: `minus` is eight times −s.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn signed_avx2(minus: __m256, byte: u8) -> __m256 {
    // Shifts bit i of the byte to the top of lane i.
    let to_top = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    let bit = _mm256_sllv_epi32(_mm256_set1_epi32(i32::from(byte)), to_top);
    _mm256_xor_ps(minus, _mm256_castsi256_ps(_mm256_and_si256(bit, _mm256_set1_epi32(i32::MIN))))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn unpack_avx2(s: f32, bits: &[u8], out: &mut [f32]) {
    let minus = _mm256_set1_ps(-s);
    let (groups, tail) = out.as_chunks_mut::<8>();
    let (bytes, last) = bits.split_at(groups.len());
    for (out, byte) in groups.iter_mut().zip(bytes) {
        prefetch(out);
        let value = signed_avx2(minus, *byte);
        // SAFETY: an array of eight f32 holds one unaligned 256-bit vector.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), value);
        }
    }
    unpack_portable(s, last, tail);
}

/// # Safety
/// `out` is aligned to 16 bytes, and nobody reads or writes it before a fence, this thread included.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn unpack_streaming_avx2(s: f32, bits: &[u8], out: &mut [f32]) {
    let minus = _mm256_set1_ps(-s);
    let (groups, tail) = out.as_chunks_mut::<8>();
    let (bytes, last) = bits.split_at(groups.len());
    for (out, byte) in groups.iter_mut().zip(bytes) {
        let value = signed_avx2(minus, *byte);
        let quarters = [_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value)];
        for (out, quarter) in out.as_chunks_mut::<4>().0.iter_mut().zip(quarters) {
            // SAFETY: four f32 are one 128-bit vector, aligned as the first is.
            unsafe { _mm_stream_ps(out.as_mut_ptr(), quarter) };
        }
    }
    unpack_portable(s, last, tail);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn add_up_avx2<const N: usize>(some: [Signed<'_>; N], fresh: bool, divisor: f32, sum: &mut [f32]) {
    let minus = some.map(|(s, _)| _mm256_set1_ps(-s));
    let (inverse, by) = (exact_inverse(divisor).map(|inverse| _mm256_set1_ps(inverse)), _mm256_set1_ps(divisor));
    let (groups, tail) = sum.as_chunks_mut::<8>();
    let whole = groups.len();
    let (bytes, last) = (some.map(|(_, bits)| &bits[..whole]), some.map(|(s, bits)| (s, &bits[whole..])));
    for (i, sum) in groups.iter_mut().enumerate() {
        // SAFETY: an array of eight f32 holds one unaligned 256-bit vector.
        let mut value = if fresh { _mm256_setzero_ps() } else { unsafe { _mm256_loadu_ps(sum.as_ptr()) } };
        for n in 0..N {
            value = _mm256_add_ps(value, signed_avx2(minus[n], bytes[n][i]));
        }
        let mean = match inverse {
            Some(inverse) => _mm256_mul_ps(value, inverse),
            None => _mm256_div_ps(value, by),
        };
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(sum.as_mut_ptr(), mean) };
    }
    add_up_portable(last, fresh, divisor, tail);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(super) fn unpack_avx512(s: f32, bits: &[u8], out: &mut [f32]) {
    let (plus, minus) = (_mm512_set1_ps(s), _mm512_set1_ps(-s));
    let (groups, tail) = out.as_chunks_mut::<16>();
    let (bytes, last) = bits.split_at(2 * groups.len());
    for (out, bytes) in groups.iter_mut().zip(bytes.as_chunks::<2>().0) {
        prefetch(out);
        let value = _mm512_mask_blend_ps(u16::from_le_bytes(*bytes), minus, plus);
        // SAFETY: an array of sixteen f32 holds one unaligned 512-bit vector.
        unsafe {
            _mm512_storeu_ps(out.as_mut_ptr(), value);
        }
    }
    unpack_portable(s, last, tail);
}

/// # Safety
/// As [`unpack_streaming_avx2`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(super) unsafe fn unpack_streaming_avx512(s: f32, bits: &[u8], out: &mut [f32]) {
    let (plus, minus) = (_mm512_set1_ps(s), _mm512_set1_ps(-s));
    let (groups, tail) = out.as_chunks_mut::<16>();
    let (bytes, last) = bits.split_at(2 * groups.len());
    for (out, bytes) in groups.iter_mut().zip(bytes.as_chunks::<2>().0) {
        let value = _mm512_mask_blend_ps(u16::from_le_bytes(*bytes), minus, plus);
        let quarters = [
            _mm512_castps512_ps128(value),
            _mm512_extractf32x4_ps::<1>(value),
            _mm512_extractf32x4_ps::<2>(value),
            _mm512_extractf32x4_ps::<3>(value),
        ];
        for (out, quarter) in out.as_chunks_mut::<4>().0.iter_mut().zip(quarters) {
            // SAFETY: four f32 are one 128-bit vector, aligned as the first is.
            unsafe { _mm_stream_ps(out.as_mut_ptr(), quarter) };
        }
    }
    unpack_portable(s, last, tail);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
pub(super) fn add_up_avx512<const N: usize>(some: [Signed<'_>; N], fresh: bool, divisor: f32, sum: &mut [f32]) {
    let signed = some.map(|(s, _)| (_mm512_set1_ps(-s), _mm512_set1_ps(s)));
    let (inverse, by) = (exact_inverse(divisor).map(|inverse| _mm512_set1_ps(inverse)), _mm512_set1_ps(divisor));
    let (groups, tail) = sum.as_chunks_mut::<16>();
    let whole = groups.len();
    let bytes = some.map(|(_, bits)| &bits.as_chunks::<2>().0[..whole]);
    let last = some.map(|(s, bits)| (s, &bits[2 * whole..]));
    for (i, sum) in groups.iter_mut().enumerate() {
        // SAFETY: an array of sixteen f32 holds one unaligned 512-bit vector.
        let mut value = if fresh { _mm512_setzero_ps() } else { unsafe { _mm512_loadu_ps(sum.as_ptr()) } };
        for n in 0..N {
            let (minus, plus) = signed[n];
            value = _mm512_add_ps(value, _mm512_mask_blend_ps(u16::from_le_bytes(bytes[n][i]), minus, plus));
        }
        let mean = match inverse {
            Some(inverse) => _mm512_mul_ps(value, inverse),
            None => _mm512_div_ps(value, by),
        };
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(sum.as_mut_ptr(), mean) };
    }
    add_up_portable(last, fresh, divisor, tail);
}
