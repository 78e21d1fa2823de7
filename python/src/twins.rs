//! The engine's own kernels, called one by one: what kernels for other devices are compared with, bit for bit.
//!
//! This is `thinwire._thinwire._twins`. It is private, for `thinwire.device` and its tests, and may change with every version. Every
//! function works in place on NumPy arrays, and calls the loops that a worker's steps call.

use crate::bridge::{Borrowed, readable, writeable};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use thinwire::CodecName;
use thinwire::inside::codec::{self, Codec, ResidualSlice, TOGETHER};
use thinwire::inside::kernel::reduce;
use thinwire::inside::kernel::update::{self, OuterStep, Scalars, Sent, Since};

fn codec_of(name: &str) -> PyResult<Box<dyn Codec>> {
    let name = name.parse::<CodecName>().map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(name.codec())
}

/// A residual: float32 values, or the bytes of bf16 values, or none.
struct Residual(Option<Borrowed>, bool);

impl Residual {
    fn of(array: Option<&Bound<'_, PyAny>>, halves: bool) -> PyResult<Residual> {
        let borrowed = match (array, halves) {
            (None, _) => None,
            (Some(array), true) => Some(writeable::<u8>(array, "residual")?),
            (Some(array), false) => Some(writeable::<f32>(array, "residual")?),
        };
        Ok(Residual(borrowed, halves))
    }

    fn owed(&mut self) -> ResidualSlice<'_> {
        match (&mut self.0, self.1) {
            (None, _) => ResidualSlice::Nothing,
            (Some(values), false) => ResidualSlice::Wide(values.slice_mut()),
            (Some(bytes), true) => ResidualSlice::Half(bytes.slice_mut::<u8>().as_chunks_mut().0),
        }
    }
}

/// The bytes of `count` values in blocks of `block`.
#[pyfunction]
pub fn encoded_len(codec: &str, block: usize, count: usize) -> PyResult<usize> {
    Ok(codec::encoded_len(&*codec_of(codec)?, block, count))
}

/// Codes x + residual into `out` and leaves the rest in the residual; False where a value is not finite.
#[pyfunction]
#[pyo3(signature = (codec, block, x, residual, halves, out))]
pub fn encode(
    codec: &str,
    block: usize,
    x: &Bound<'_, PyAny>,
    residual: Option<&Bound<'_, PyAny>>,
    halves: bool,
    out: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let (x, mut out) = (readable::<f32>(x, "x")?, writeable::<u8>(out, "out")?);
    let mut residual = Residual::of(residual, halves)?;
    Ok(codec_of(codec)?.encode_blocks(block, x.slice(), residual.owed(), out.slice_mut()).is_ok())
}

/// sum ← the payloads' values, one after the other, over `divisor`; the place of a payload that is refused.
#[pyfunction]
pub fn add_up(
    codec: &str,
    block: usize,
    payloads: Vec<Bound<'_, PyAny>>,
    divisor: f32,
    sum: &Bound<'_, PyAny>,
) -> PyResult<Option<usize>> {
    let (codec, mut sum) = (codec_of(codec)?, writeable::<f32>(sum, "sum")?);
    let held = payloads.iter().map(|bytes| readable::<u8>(bytes, "payload")).collect::<PyResult<Vec<_>>>()?;
    let payloads = held.iter().map(Borrowed::slice::<u8>).collect::<Vec<_>>();
    let groups = payloads.len().div_ceil(TOGETHER);
    for (i, some) in payloads.chunks(TOGETHER).enumerate() {
        let last = if i + 1 == groups { divisor } else { 1.0 };
        if let Err((place, _)) = codec.add_up(block, some, i == 0, last, sum.slice_mut()) {
            return Ok(Some(i * TOGETHER + place));
        }
    }
    Ok(None)
}

/// out ← the payload's values; False where it is refused.
#[pyfunction]
pub fn decode(codec: &str, block: usize, payload: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>) -> PyResult<bool> {
    let (payload, mut out) = (readable::<u8>(payload, "payload")?, writeable::<f32>(out, "out")?);
    Ok(codec_of(codec)?.decode_blocks(block, payload.slice(), out.slice_mut()).is_ok())
}

/// e ← e + the payload's values, tile by tile as a machine does; False where it is refused.
#[pyfunction]
pub fn take_back(
    codec: &str,
    block: usize,
    payload: &Bound<'_, PyAny>,
    residual: &Bound<'_, PyAny>,
    halves: bool,
) -> PyResult<bool> {
    let (codec, payload) = (codec_of(codec)?, readable::<u8>(payload, "payload")?);
    let mut residual = Residual::of(Some(residual), halves)?;
    let mut owed = residual.owed();
    let count = owed.count().unwrap_or(0);
    let bytes = payload.slice::<u8>().chunks(codec.encoded_len(block));
    for (i, bytes) in bytes.enumerate() {
        let part = owed.part(i * block..((i + 1) * block).min(count));
        if part.change(|e| codec.add_up(block, &[bytes], false, 1.0, e)).is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The numbers of one parameter group, in the order of `thinwire.device.passes.SCALARS`.
fn scalars(k: [f32; 14]) -> Scalars {
    let [b1, c1, b2, c2, rate, decay, correction, eps, shrink, limit, jump, moves, rates, decays] = k;
    Scalars {
        beta1: (b1, c1),
        beta2: (b2, c2),
        rate,
        decay,
        weight_decay: 0.0, // no pass here has it inside of its step
        correction,
        eps,
        shrink,
        limit,
        jump,
        moves: moves > 0.0,
        since: Since { rates, decays },
        sent: Sent::NOTHING,
        outer: OuterStep::NOTHING,
    }
}

/// One pass or source over the values of one parameter group. `vectors` are the input (the gradient or the mean), those that are read,
/// and those that are written, in the engine's order. Returns the first value that jumped.
///
/// What a pass does for a group that rests (its learning rate is 0, or always 0) is decided as in the optimizers' files.
#[pyfunction]
pub fn run(name: &str, k: [f32; 14], vectors: Vec<Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
    let k = &scalars(k);
    let mut held = vectors.iter().map(|vector| writeable::<f32>(vector, "vector")).collect::<PyResult<Vec<_>>>()?;
    for (i, one) in held.iter().enumerate() {
        held[..i].iter().try_for_each(|other| one.apart_from(other))?;
    }
    let mut slices = held.iter_mut().map(|vector| vector.slice_mut::<f32>()).collect::<Vec<_>>();
    let wrong = || PyValueError::new_err(format!("`{name}`: {} vectors are not what it takes", vectors.len()));
    let jumps = match name {
        "adam" | "adam_after_coarse" => {
            let [g, m, v, x] = &mut slices[..] else { return Err(wrong()) };
            let jumped = match name {
                "adam" => update::adam(k, g, m, v, x),
                _ => update::adam_after_coarse(k, g, m, v, x),
            };
            if jumped { k.jumped(m, v) } else { None }
        }
        "blend" => {
            let [g, m, z] = &mut slices[..] else { return Err(wrong()) };
            update::blend(k, g, m, z);
            None
        }
        "progress" => {
            let [g, m, u, z] = &mut slices[..] else { return Err(wrong()) };
            if k.rate > 0.0 {
                update::progress(k, g, m, u, z)
            } else {
                z.copy_from_slice(u)
            }
            None
        }
        "first_progress" => {
            let [g, m, z] = &mut slices[..] else { return Err(wrong()) };
            if k.rate > 0.0 {
                update::first_progress(k, g, m, z)
            } else {
                z.fill(0.0)
            }
            None
        }
        "own_update" => {
            let [g, m, v, z] = &mut slices[..] else { return Err(wrong()) };
            update::own_update(k, g, m, v, z);
            None
        }
        "descend" => {
            let [mean, v, m, x] = &mut slices[..] else { return Err(wrong()) };
            update::descend(k, mean, v, m, x);
            None
        }
        "local" => {
            let [g, v, m, u, x] = &mut slices[..] else { return Err(wrong()) };
            if k.rate > 0.0 {
                update::local(k, g, v, m, u, x);
            }
            None
        }
        "rebase" => {
            let [mean, v, a, m, u, x] = &mut slices[..] else { return Err(wrong()) };
            if k.moves {
                update::rebase(k, mean, v, a, m, u, x);
            }
            None
        }
        "fold_in" => {
            let [v, a, m, u, x] = &mut slices[..] else { return Err(wrong()) };
            let mean = u.to_vec();
            update::rebase(k, &mean, v, a, m, u, x);
            None
        }
        "first_rebase" => {
            let [mean, v, m, x] = &mut slices[..] else { return Err(wrong()) };
            if k.moves {
                update::first_rebase(k, mean, v, m, x);
            }
            None
        }
        "subtract" => {
            let [mean, x] = &mut slices[..] else { return Err(wrong()) };
            let jumped = k.moves && update::subtract(k, mean, x);
            if jumped { mean.iter().position(|update| update.abs() > k.jump) } else { None }
        }
        _ => return Err(PyKeyError::new_err(format!("the engine has no pass `{name}`"))),
    };
    Ok(jumps)
}

/// Of one tile: Σx, Σx², whether none is NaN or larger than 2⁶², and the digest from place `at` on.
#[pyfunction]
pub fn reduce_tile(at: usize, x: &Bound<'_, PyAny>) -> PyResult<(f64, f64, bool, u64)> {
    let x = readable::<f32>(x, "x")?;
    let x = x.slice::<f32>();
    Ok((reduce::sum(x), reduce::sum_of_squares(x), reduce::all_within(x), reduce::digest(at, x)))
}
