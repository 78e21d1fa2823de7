//! What `uniform` and `power2` share: a scale s = max |z| a block, and a small whole number a value.

use super::{Codec, Fault, check_length, finite, read_scale, write_scale};
use crate::kernel::{bits, reduce};

/// A grid on [−1, 1] whose points are numbered with `width` bits.
pub(super) trait Grid: std::fmt::Debug + Send + Sync {
    fn width(&self) -> u32;

    /// codes ← the nearest point to z/s, for s > 0.
    fn nearest(&self, s: f32, z: &[f32], codes: &mut [u8]);

    /// out ← the points that `codes` name, times s.
    fn points(&self, s: f32, codes: &[u8], out: &mut [f32]);

    /// The largest code that names a point.
    fn largest(&self) -> u8;

    /// The code of the point 0.
    fn zero(&self) -> u8;
}

impl<G: Grid> Codec for G {
    fn encoded_len(&self, count: usize) -> usize {
        encoded_len(self, count)
    }

    fn encode_with(&self, x: &[f32], e: &mut [f32], out: &mut [u8]) -> Result<(), Fault> {
        encode_with(self, x, e, out)
    }

    fn decode_add(&self, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault> {
        decode_add(self, bytes, sum)
    }
}

fn encoded_len(grid: &impl Grid, count: usize) -> usize {
    if count == 0 { 0 } else { 4 + bits::packed_len(count, grid.width()) }
}

/// How many values go through the small buffers at a time; eight of them always fill whole bytes.
const PIECE: usize = 256;

fn encode_with(grid: &impl Grid, x: &[f32], e: &mut [f32], out: &mut [u8]) -> Result<(), Fault> {
    if x.is_empty() {
        return Ok(());
    }
    let s = finite(reduce::add_max_abs(x, e))?; // e is z from here on
    let packed = write_scale(s, out);
    for (e, packed) in e.chunks_mut(PIECE).zip(packed.chunks_mut(bits::packed_len(PIECE, grid.width()))) {
        let (codes, q) = (&mut [grid.zero(); PIECE][..e.len()], &mut [0.0; PIECE][..e.len()]);
        if s > 0.0 {
            grid.nearest(s, e, codes);
            grid.points(s, codes, q);
        }
        for (e, q) in e.iter_mut().zip(q) {
            *e -= *q;
        }
        bits::pack(grid.width(), codes, packed);
    }
    Ok(())
}

fn decode_add(grid: &impl Grid, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault> {
    check_length(grid, sum.len(), bytes)?;
    if sum.is_empty() {
        return Ok(());
    }
    let (s, packed) = read_scale(bytes)?;
    for (sum, packed) in sum.chunks_mut(PIECE).zip(packed.chunks(bits::packed_len(PIECE, grid.width()))) {
        let (codes, q) = (&mut [0; PIECE][..sum.len()], &mut [0.0; PIECE][..sum.len()]);
        bits::unpack(grid.width(), packed, codes);
        let (code, largest) = (codes.iter().copied().max().unwrap_or(0), grid.largest());
        if code > largest {
            return Err(Fault::Code { code, largest });
        }
        grid.points(s, codes, q);
        for (sum, q) in sum.iter_mut().zip(q) {
            *sum += *q;
        }
    }
    Ok(())
}
