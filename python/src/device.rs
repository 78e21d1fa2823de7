//! A device of the engine whose vectors are PyTorch's: every call goes to a Python object by name (`thinwire/device/machine.py`).
//!
//! The object owns the vectors and launches the kernels. What crosses is payloads, single numbers, and copies of vectors for
//! checkpoints, all through a buffer that the object lends by its address; it is the object's until the next call.

use crate::bridge::{bytes_at, copy_to};
use crate::wire::Failure;
use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use std::ops::Range;
use thinwire::device::{Call, Coded, Coder, Device, Feedback, Input, Number, Refused, Room, Scalars, Sum, Which};
use thinwire::inside::kernel::bf16::{self, Half};
use thinwire::options::Precision;
use thinwire::{CodecName, Error, Result};

/// Values that are copied to or from the device at once: pinned memory is scarce.
const AT_ONCE: usize = 1 << 22;

/// Payloads lie this many bytes apart, or a multiple of it.
const APART: usize = 16;

/// The engine's end of a `thinwire.device.machine.Machine`.
pub struct Machine {
    machine: Py<PyAny>,
    name: String,
    len: usize,
    residual: Precision,
    failure: Failure,
}

impl Machine {
    pub fn new(machine: &Bound<'_, PyAny>, failure: Failure) -> PyResult<Machine> {
        let (name, len) = (machine.getattr("name")?.extract()?, machine.getattr("length")?.extract()?);
        Ok(Machine { machine: machine.clone().unbind(), name, len, residual: Precision::F32, failure })
    }

    /// Calls the object; what it raises is kept, and reaches the program as it is.
    fn call<T>(&self, method: &str, arguments: impl for<'py> PyCallArgs<'py>) -> Result<T>
    where
        T: for<'b, 'py> FromPyObject<'b, 'py>,
    {
        Python::attach(|py| {
            let called = self.machine.bind(py).call_method1(method, arguments);
            let value = called.and_then(|value| value.extract::<T>().map_err(Into::into));
            value.map_err(|error| Error::Device { device: self.name.clone(), problem: self.failure.keep(py, error) })
        })
    }

    /// The same for a method that returns nothing.
    fn tell(&self, method: &str, arguments: impl for<'py> PyCallArgs<'py>) -> Result<()> {
        self.call::<Py<PyAny>>(method, arguments).map(drop)
    }

    /// Copies what the object left at an address.
    fn fetch(&self, address: usize, out: &mut [u8]) {
        if !out.is_empty() {
            out.copy_from_slice(bytes_at(address, out.len()));
        }
    }

    /// Puts payloads side by side where the object finds them; how far they are apart.
    fn put<'a>(&self, payloads: impl Iterator<Item = &'a [u8]> + Clone) -> Result<usize> {
        let longest = payloads.clone().map(<[u8]>::len).max().unwrap_or(0);
        let apart = longest.next_multiple_of(APART);
        let address = self.call::<usize>("room", (apart * payloads.clone().count(),))?;
        for (i, payload) in payloads.enumerate().filter(|(_, payload)| !payload.is_empty()) {
            copy_to(address + i * apart, payload);
        }
        Ok(apart)
    }

    /// Why a payload that the device refused cannot be, in the words of the host's codec.
    fn refused(&self, place: usize, coder: Coder, payload: &[u8], len: usize) -> Refused {
        let (codec, mut values) = (coder.codec.codec(), vec![0.0; len]);
        let mut blocks = values.chunks_mut(coder.block).zip(payload.chunks(codec.encoded_len(coder.block)));
        match blocks.find_map(|(out, bytes)| codec.decode(bytes, out).err()) {
            Some(fault) => Refused::Payload(place, fault),
            None => Refused::Failed(Error::Device {
                device: self.name.clone(),
                problem: format!("it refused a payload of codec `{}` that the host accepts", coder.codec),
            }),
        }
    }

    /// Whether a vector there has 16 bits a value.
    fn is_half(&self, which: Which) -> bool {
        matches!(which, Which::Up | Which::Down) && self.residual == Precision::Bf16
    }
}

/// Which vector a copy is of, as the object calls it.
fn name_of(which: Which) -> &'static str {
    match which {
        Which::Params => "x",
        Which::Own(name) => name,
        Which::Up => "e",
        Which::Down => "E",
        _ => unreachable!("the engine has no other"),
    }
}

/// The numbers of each parameter group, in the order of `thinwire.device.formulas.SCALARS`.
fn rows(scalars: &[Scalars]) -> Vec<[f32; 14]> {
    let row = |k: &Scalars| {
        let moves = f32::from(u8::from(k.moves));
        let (Scalars { rate, decay, correction, eps, shrink, limit, jump, .. }, since) = (*k, k.since);
        let [(b1, c1), (b2, c2)] = [k.beta1, k.beta2];
        [b1, c1, b2, c2, rate, decay, correction, eps, shrink, limit, jump, moves, since.rates, since.decays]
    };
    scalars.iter().map(row).collect()
}

fn coder(coded: Coded<'_>) -> Coder {
    Coder { codec: coded.name, block: coded.block }
}

/// Parts of a range that are short enough to be copied at once.
fn parts(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(AT_ONCE).map(move |start| start..(start + AT_ONCE).min(range.end))
}

impl Device for Machine {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn has_pass(&self, name: &str) -> bool {
        self.call("has_pass", (name.to_owned(),)).unwrap_or(false)
    }

    fn has_codec(&self, codec: CodecName) -> bool {
        self.call("has_codec", (codec.to_string(),)).unwrap_or(false)
    }

    fn reserve(&mut self, room: &Room) -> Result<()> {
        self.residual = room.residual;
        let halves = room.residual == Precision::Bf16;
        self.tell("reserve", (room.vectors.clone(), room.keeps, room.up, room.down, halves, room.ends.clone()))
    }

    fn pass(&mut self, call: Call<'_>, input: Input) -> Result<Option<usize>> {
        let input = match input {
            Input::Gradient => Some("g"),
            Input::Kept => Some("kept"),
            Input::Nothing => None,
            _ => unreachable!("the engine has no other"),
        };
        self.call("run", (call.name, rows(call.scalars), input))
    }

    fn pack(
        &mut self,
        call: Call<'_>,
        remembers: bool,
        coder: Coder,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        let codec = coder.codec.to_string();
        let arguments = (call.name, rows(call.scalars), remembers, codec, coder.block, range.start, range.end);
        let address = self.call::<Option<usize>>("pack", arguments)?.ok_or(Refused::Overflow)?;
        self.fetch(address, bytes);
        Ok(())
    }

    fn serve(
        &mut self,
        sum: &Sum<'_>,
        feedback: Feedback,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        let apart = self.put(sum.payloads().map(|(_, payload)| payload).collect::<Vec<_>>().into_iter())?;
        let (from, to) = (coder(sum.from), coder(sum.to));
        let residual = match feedback {
            Feedback::None => None,
            Feedback::Up => Some(("e", range.start)),
            Feedback::Down { owned } => Some(("E", range.start - owned)),
            _ => unreachable!("the engine has no other"),
        };
        let messages = (sum.payloads().count(), apart, sum.divisor);
        let codecs = (from.codec.to_string(), from.block, to.codec.to_string(), to.block);
        type Served = (Option<usize>, Option<usize>);
        let (address, refused): Served = self.call("serve", (messages, codecs, range.len(), residual))?;
        if let Some((place, payload)) = refused.and_then(|number| sum.payloads().nth(number)) {
            return Err(self.refused(place, from, payload, range.len()));
        }
        self.fetch(address.ok_or(Refused::Overflow)?, bytes);
        Ok(())
    }

    fn unpack(
        &mut self,
        call: Call<'_>,
        compares: bool,
        coder: Coder,
        range: Range<usize>,
        payload: &[u8],
    ) -> Result<Option<usize>, Refused> {
        self.put([payload].into_iter())?;
        let (codec, len) = (coder.codec.to_string(), payload.len());
        let arguments = (call.name, rows(call.scalars), compares, codec, coder.block, range.start, range.end, len);
        let (fine, jump): (bool, Option<usize>) = self.call("unpack", arguments)?;
        if fine { Ok(jump) } else { Err(self.refused(0, coder, payload, range.len())) }
    }

    fn take_back(&mut self, coder: Coder, payload: &[u8]) -> Result<(), Refused> {
        self.put([payload].into_iter())?;
        let fine = self.call::<bool>("take_back", (coder.codec.to_string(), coder.block, payload.len()))?;
        if fine { Ok(()) } else { Err(self.refused(0, coder, payload, self.len)) }
    }

    fn shorten(&mut self, factor: f32) -> Result<()> {
        self.tell("shorten", (factor,))
    }

    fn number(&mut self, of: Number) -> Result<f64> {
        let (vector, squares) = match of {
            Number::NotFinite => return self.call("not_finite", ()),
            Number::GradientSquared => ("g", true),
            Number::KeptSquared => ("kept", true),
            Number::Sum(name) => (name, false),
            _ => unreachable!("the engine has no other"),
        };
        let (address, tiles): (usize, usize) = self.call("tile_sums", (vector, squares))?;
        let mut bytes = vec![0; 8 * tiles];
        self.fetch(address, &mut bytes);
        let (sums, _) = bytes.as_chunks::<8>();
        Ok(sums.iter().map(|sum| f64::from_le_bytes(*sum)).sum()) // one tile after the other, as on the host
    }

    fn digest(&mut self, range: Range<usize>) -> Result<u64> {
        self.call("digest", (range.start, range.end))
    }

    fn read(&mut self, which: Which, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        let first = range.start;
        for part in parts(range) {
            let address = self.call::<usize>("read", (name_of(which), part.start, part.end))?;
            let out = &mut out[part.start - first..part.end - first];
            if self.is_half(which) {
                let mut halves = vec![[0; 2]; out.len()];
                self.fetch(address, halves.as_flattened_mut());
                bf16::read(&halves, out);
            } else {
                let mut bytes = vec![0; 4 * out.len()];
                self.fetch(address, &mut bytes);
                let (values, _) = bytes.as_chunks::<4>();
                out.iter_mut().zip(values).for_each(|(out, value)| *out = f32::from_le_bytes(*value));
            }
        }
        Ok(())
    }

    fn write(&mut self, which: Which, range: Range<usize>, from: &[f32]) -> Result<()> {
        let first = range.start;
        for part in parts(range) {
            let from = &from[part.start - first..part.end - first];
            let bytes = match self.is_half(which) {
                true => {
                    let mut halves: Vec<Half> = vec![[0; 2]; from.len()];
                    bf16::write(from, &mut halves);
                    halves.into_flattened()
                }
                false => from.iter().flat_map(|value| value.to_le_bytes()).collect(),
            };
            copy_to(self.call::<usize>("room", (bytes.len(),))?, &bytes);
            self.tell("write", (name_of(which), part.start, part.end))?;
        }
        Ok(())
    }
}
