//! `f32`, `bf16`, `f16`: casts. No scale, no blocks to speak of; they round to nearest, halves to even.
//!
//! `f32` loses nothing and turns every algorithm into its uncompressed self. A magnitude past the largest finite half
//! becomes that largest one, not infinity: the error feedback carries the rest.

use super::{Codec, Fault, check_length, finite};
use crate::kernel::{bf16, reduce};
use half::f16;
use half::slice::HalfFloatSliceExt;

/// The casts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cast {
    /// 32 bits: the value itself.
    F32,
    /// The upper 16 bits of an f32, rounded.
    Bf16,
    /// IEEE half precision.
    F16,
}

/// How many values go through the small buffers at a time.
const PIECE: usize = 256;

impl Cast {
    fn width(self) -> usize {
        if self == Cast::F32 { 4 } else { 2 }
    }

    /// Writes finite values, at most [`PIECE`] of them if they are to be `f16`.
    fn write(self, z: &[f32], out: &mut [u8]) {
        match self {
            Cast::F32 => out.copy_from_slice(bytemuck::cast_slice(z)),
            Cast::Bf16 => bf16::write(z, out.as_chunks_mut().0),
            Cast::F16 => {
                let (halves, limited) = (&mut [f16::ZERO; PIECE][..z.len()], &mut [0.0; PIECE][..z.len()]);
                for (limited, z) in limited.iter_mut().zip(z) {
                    *limited = z.clamp(f16::MIN.to_f32_const(), f16::MAX.to_f32_const());
                }
                halves.convert_from_f32_slice(limited);
                out.copy_from_slice(bytemuck::cast_slice(halves.reinterpret_cast()));
            }
        }
    }

    /// Reads what [`Cast::write`] wrote; the caller has checked the length.
    fn read(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Cast::F32 => bytemuck::cast_slice_mut(out).copy_from_slice(bytes),
            Cast::Bf16 => bf16::read(bytes.as_chunks().0, out),
            Cast::F16 => {
                let halves = &mut [f16::ZERO; PIECE][..out.len()];
                bytemuck::cast_slice_mut(halves.reinterpret_cast_mut()).copy_from_slice(bytes);
                halves.convert_to_f32_slice(out);
            }
        }
    }
}

impl Codec for Cast {
    fn encoded_len(&self, count: usize) -> usize {
        count * self.width()
    }

    fn encode_with(&self, x: &[f32], e: &mut [f32], out: &mut [u8]) -> Result<(), Fault> {
        finite(reduce::add_max_abs(x, e))?; // e is z from here on
        for (e, out) in e.chunks_mut(PIECE).zip(out.chunks_mut(PIECE * self.width())) {
            self.write(e, out);
            let q = &mut [0.0; PIECE][..e.len()];
            self.read(out, q);
            for (e, q) in e.iter_mut().zip(q) {
                *e -= *q;
            }
        }
        Ok(())
    }

    fn encode(&self, x: &[f32], out: &mut [u8]) -> Result<(), Fault> {
        if !reduce::all_finite(x) {
            return Err(Fault::NotFinite);
        }
        for (x, out) in x.chunks(PIECE).zip(out.chunks_mut(PIECE * self.width())) {
            self.write(x, out);
        }
        Ok(())
    }

    fn decode_add(&self, bytes: &[u8], sum: &mut [f32]) -> Result<(), Fault> {
        check_length(self, sum.len(), bytes)?;
        for (sum, bytes) in sum.chunks_mut(PIECE).zip(bytes.chunks(PIECE * self.width())) {
            let values = &mut [0.0; PIECE][..sum.len()];
            self.decode(bytes, values)?;
            for (sum, value) in sum.iter_mut().zip(values) {
                *sum += *value;
            }
        }
        Ok(())
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
        check_length(self, out.len(), bytes)?;
        for (out, bytes) in out.chunks_mut(PIECE).zip(bytes.chunks(PIECE * self.width())) {
            self.read(bytes, out);
        }
        if reduce::all_finite(out) { Ok(()) } else { Err(Fault::NotFinite) }
    }
}
