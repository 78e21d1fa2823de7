//! The points of a grid with AVX-512: sixteen values at once, and what a number stands for out of a table in registers.
//!
//! Up to six bits the points of a block are few enough: one shuffle looks sixteen of them up, whatever the grid. Its values are the portable
//! twin's, so the bits are too. For more bits there is the grid's arithmetic. The numbers are unpacked on the way: each goes to a lane
//! of its own with the two bytes that hold it, and is shifted down.

use super::grids::Grid;
use super::prefetch_at;
use super::put::Put;
use super::residual_value::ResidualValue;
use std::arch::x86_64::*;

/// The points of a block with scale s. `TABLES` are the registers that hold them, or 0 where they are too many.
struct Points<G, const TABLES: usize> {
    grid: G,
    s: __m512,
    zero: __m512,
    tables: [__m512; 4],
}

impl<G: Grid, const TABLES: usize> Points<G, TABLES> {
    /// `zero` is added to each point.
    ///
    /// # Safety
    /// The CPU has what [`Level::Avx512`](super::Level) stands for. This goes for all of this file.
    #[inline(always)]
    unsafe fn new(grid: G, s: f32, zero: f32) -> Self {
        let mut table = [0.0; 64];
        let points = &mut table[..16 * TABLES];
        points.iter_mut().zip(0..).for_each(|(point, code)| *point = grid.point(s, code) + zero);
        // SAFETY: the caller answers for the CPU; each load is of sixteen values of the array.
        unsafe {
            let tables = [0, 16, 32, 48].map(|at| _mm512_loadu_ps(table.as_ptr().add(at)));
            Points { grid, s: _mm512_set1_ps(s), zero: _mm512_set1_ps(zero), tables }
        }
    }

    /// What sixteen numbers stand for.
    #[inline(always)]
    unsafe fn of(&self, codes: __m512i) -> __m512 {
        // SAFETY: the caller's.
        unsafe {
            let [a, b, c, d] = self.tables;
            match TABLES {
                1 => _mm512_permutexvar_ps(codes, a),
                2 => _mm512_permutex2var_ps(a, codes, b),
                4 => {
                    let (low, high) = (_mm512_permutex2var_ps(a, codes, b), _mm512_permutex2var_ps(c, codes, d));
                    _mm512_mask_blend_ps(_mm512_test_epi32_mask(codes, _mm512_set1_epi32(32)), low, high)
                }
                _ => _mm512_add_ps(self.grid.point_avx512(self.s, codes), self.zero),
            }
        }
    }
}

/// Codes whole sixteens of the values: codes ← the points of z = x + e;  e ← z − C(z). The residual so many values `ahead`
/// is asked for. Returns how many values those are.
///
/// # Safety
/// The CPU has what [`Level::Avx512`](super::Level) stands for.
#[inline(always)]
pub(super) unsafe fn quantize<G: Grid, E: ResidualValue>(
    grid: G,
    s: f32,
    x: &[f32],
    e: &mut [E],
    codes: &mut [u8],
    ahead: usize,
) -> usize {
    // SAFETY: the caller's.
    unsafe {
        match grid.width() {
            ..=4 => quantize_of::<G, E, 1>(grid, s, x, e, codes, ahead),
            5 => quantize_of::<G, E, 2>(grid, s, x, e, codes, ahead),
            6 => quantize_of::<G, E, 4>(grid, s, x, e, codes, ahead),
            _ => quantize_of::<G, E, 0>(grid, s, x, e, codes, ahead),
        }
    }
}

#[inline(always)]
unsafe fn quantize_of<G: Grid, E: ResidualValue, const TABLES: usize>(
    grid: G,
    s: f32,
    x: &[f32],
    e: &mut [E],
    codes: &mut [u8],
    ahead: usize,
) -> usize {
    let (xs, es, codes) = (x.as_chunks::<32>().0, e.as_chunks_mut::<32>().0, codes.as_chunks_mut::<32>().0);
    // SAFETY: the caller answers for the CPU; loads and stores are within the arrays of thirty-two.
    unsafe {
        let points = Points::<G, TABLES>::new(grid, s, -0.0);
        for ((x, e), codes) in xs.iter().zip(es).zip(codes) {
            prefetch_at(e, ahead);
            let mut left = [points.zero; 2];
            for (left, at) in left.iter_mut().zip([0, 16]) {
                let z = _mm512_add_ps(_mm512_loadu_ps(x[at..].as_ptr()), E::get_avx512(e[at..].as_ptr()));
                let numbers = grid.nearest_avx512(points.s, z);
                _mm_storeu_si128(codes[at..].as_mut_ptr().cast(), _mm512_cvtepi32_epi8(numbers));
                *left = _mm512_sub_ps(z, points.of(numbers));
            }
            E::put_avx512(e.as_mut_ptr(), left);
        }
    }
    32 * xs.len()
}

/// For each of sixteen numbers of `width` bits, in sixteen bytes: the bytes that hold it, and how far up in them it begins.
const fn apart(width: usize) -> ([[i8; 4]; 16], [i32; 16]) {
    let (mut bytes, mut shifts, mut i) = ([[-1; 4]; 16], [0; 16], 0);
    while i < 16 {
        let bit = i * width;
        bytes[i][0] = (bit / 8) as i8;
        if bit % 8 + width > 8 {
            bytes[i][1] = (bit / 8 + 1) as i8;
        }
        shifts[i] = (bit % 8) as i32;
        i += 1;
    }
    (bytes, shifts)
}

const APART: [([[i8; 4]; 16], [i32; 16]); 9] =
    [apart(1), apart(1), apart(2), apart(3), apart(4), apart(5), apart(6), apart(7), apart(8)];

/// Reads whole sixteens of the numbers in `packed`, and puts their points to `values`. Returns how many those are, and the largest number.
///
/// # Safety
/// The CPU has what [`Level::Avx512`](super::Level) stands for, and what `P` asks for holds.
#[inline(always)]
pub(super) unsafe fn put<G: Grid, P: Put>(grid: G, s: f32, packed: &[u8], values: &mut [f32]) -> (usize, u8) {
    // SAFETY: the caller's.
    unsafe {
        match grid.width() {
            ..=4 => put_of::<G, P, 1>(grid, s, packed, values),
            5 => put_of::<G, P, 2>(grid, s, packed, values),
            6 => put_of::<G, P, 4>(grid, s, packed, values),
            _ => put_of::<G, P, 0>(grid, s, packed, values),
        }
    }
}

#[inline(always)]
unsafe fn put_of<G: Grid, P: Put, const TABLES: usize>(
    grid: G,
    s: f32,
    packed: &[u8],
    values: &mut [f32],
) -> (usize, u8) {
    let (groups, len) = (values.as_chunks_mut::<16>().0, 2 * grid.width() as usize);
    let (bytes, shifts) = &APART[grid.width() as usize];
    // SAFETY: the caller answers for the CPU; loads and stores are within arrays.
    unsafe {
        let points = Points::<G, TABLES>::new(grid, s, P::ZERO);
        let (bytes, shifts) = (_mm512_loadu_si512(bytes.as_ptr().cast()), _mm512_loadu_si512(shifts.as_ptr().cast()));
        let (mask, mut largest) = (_mm512_set1_epi32((1 << grid.width()) - 1), _mm512_setzero_si512());
        let count = 16 * groups.len();
        for (i, values) in groups.iter_mut().enumerate() {
            // What is read behind the numbers is not looked at.
            let mut room = [0; 16];
            let from = match packed.get(i * len..i * len + 16) {
                Some(from) => from,
                None => {
                    room[..len].copy_from_slice(&packed[i * len..(i + 1) * len]);
                    &room
                }
            };
            let from = _mm512_broadcast_i32x4(_mm_loadu_si128(from.as_ptr().cast()));
            let numbers = _mm512_srlv_epi32(_mm512_shuffle_epi8(from, bytes), shifts);
            let numbers = _mm512_and_si512(numbers, mask);
            largest = _mm512_max_epu32(largest, numbers);
            P::put_avx512(values.as_mut_ptr(), points.of(numbers));
        }
        (count, _mm512_reduce_max_epu32(largest) as u8)
    }
}
