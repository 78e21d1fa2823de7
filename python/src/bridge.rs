//! The bridge to memory that Python owns: NumPy arrays and PyTorch tensors as slices. All `unsafe` of this crate is here.
//!
//! An array says where its memory is in `__array_interface__`, a tensor by `data_ptr()`; both are checked for type, place, contiguity
//! and alignment before anything is read. No NumPy is linked, and none need be installed for PyTorch.

#![allow(unsafe_code)]

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use thinwire::Pieces;
use thinwire::inside::kernel::reduce;

/// A number type that arrays may hold here, and what NumPy and PyTorch call it.
pub trait Element: Copy + 'static {
    const NUMPY: &'static str;
    const TORCH: &'static str;
    const NAME: &'static str;
}

impl Element for f32 {
    const NUMPY: &'static str = "<f4";
    const TORCH: &'static str = "torch.float32";
    const NAME: &'static str = "float32";
}

impl Element for f64 {
    const NUMPY: &'static str = "<f8";
    const TORCH: &'static str = "torch.float64";
    const NAME: &'static str = "float64";
}

impl Element for u8 {
    const NUMPY: &'static str = "|u1";
    const TORCH: &'static str = "torch.uint8";
    const NAME: &'static str = "uint8";
}

/// Where an array's values are. The array lives at least as long as this.
struct Place {
    _array: Py<PyAny>,
    address: usize,
    len: usize,
    writeable: bool,
}

impl Place {
    fn of<T: Element>(array: &Bound<'_, PyAny>, what: &str) -> PyResult<Place> {
        let place = if let Ok(interface) = array.getattr("__array_interface__") {
            Place::of_numpy::<T>(array, interface.cast_into::<PyDict>()?, what)?
        } else if array.hasattr("data_ptr")? {
            Place::of_torch::<T>(array, what)?
        } else {
            let kind = array.get_type();
            return Err(PyTypeError::new_err(format!("{what} must be a NumPy array or a PyTorch tensor, not {kind}")));
        };
        place.check::<T>(what)?;
        if place.len > 0 && !place.address.is_multiple_of(align_of::<T>()) {
            return Err(PyValueError::new_err(format!("{what} must be aligned to {} bytes", align_of::<T>())));
        }
        Ok(place)
    }

    fn of_numpy<T: Element>(array: &Bound<'_, PyAny>, interface: Bound<'_, PyDict>, what: &str) -> PyResult<Place> {
        let word =
            |key: &str| interface.get_item(key)?.ok_or_else(|| PyTypeError::new_err(format!("{what}: no {key}")));
        let dtype = word("typestr")?.extract::<String>()?;
        if dtype != T::NUMPY {
            let got = array.getattr("dtype").map(|dtype| dtype.to_string()).unwrap_or(dtype);
            return Err(wrong_type::<T>(what, &got));
        }
        if interface.get_item("strides")?.is_some_and(|strides| !strides.is_none()) {
            return Err(not_contiguous(what));
        }
        let (address, read_only) = word("data")?.extract::<(usize, bool)>()?;
        let shape = word("shape")?.cast_into::<PyTuple>()?.extract::<Vec<usize>>()?;
        // A product that wraps would look small.
        let len = shape.iter().try_fold(1usize, |len, side| len.checked_mul(*side));
        let len = len.or(shape.contains(&0).then_some(0)).ok_or_else(|| no_memory(what))?;
        Ok(Place { _array: array.clone().unbind(), address, len, writeable: !read_only })
    }

    /// Whether memory can be there at all: not at address 0, and not more than there are addresses.
    fn check<T: Element>(&self, what: &str) -> PyResult<()> {
        let bytes = self.len.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let end = bytes.and_then(|bytes| self.address.checked_add(bytes));
        match self.len == 0 || self.address != 0 && end.is_some() {
            true => Ok(()),
            false => Err(no_memory(what)),
        }
    }

    fn of_torch<T: Element>(tensor: &Bound<'_, PyAny>, what: &str) -> PyResult<Place> {
        let device = tensor.getattr("device")?.getattr("type")?.to_string();
        if device != "cpu" {
            return Err(PyValueError::new_err(format!("{what} must be in the host's memory, not on {device}")));
        }
        let dtype = tensor.getattr("dtype")?.to_string();
        if dtype != T::TORCH {
            return Err(wrong_type::<T>(what, &dtype));
        }
        if !tensor.call_method0("is_contiguous")?.extract::<bool>()? {
            return Err(not_contiguous(what));
        }
        let (address, len) = (tensor.call_method0("data_ptr")?.extract()?, tensor.call_method0("numel")?.extract()?);
        Ok(Place { _array: tensor.clone().unbind(), address, len, writeable: true })
    }

    fn overlaps<T>(&self, address: usize, len: usize) -> bool {
        let bytes = |len: usize| len * size_of::<T>();
        self.address < address + bytes(len) && address < self.address + bytes(self.len)
    }

    fn slice<T: Element>(&self) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `of` saw that `len` values of this type lie here, aligned, and the array is held. That no other thread of the
        // program writes to it meanwhile is the caller's duty, as with every NumPy function that lets go of the interpreter.
        unsafe { std::slice::from_raw_parts(self.address as *const T, self.len) }
    }

    fn slice_mut<T: Element>(&mut self) -> &mut [T] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as above; `writeable` was asked for, and `overlaps` for every other slice of the same call.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut T, self.len) }
    }
}

fn wrong_type<T: Element>(what: &str, got: &str) -> PyErr {
    PyValueError::new_err(format!("{what} must be {}, not {got}", T::NAME))
}

fn no_memory(what: &str) -> PyErr {
    PyValueError::new_err(format!("{what} has no memory of the size that its shape says"))
}

fn shared_memory() -> PyErr {
    PyValueError::new_err("params and grad must not share memory")
}

fn not_contiguous(what: &str) -> PyErr {
    PyValueError::new_err(format!("{what} must be contiguous (see numpy.ascontiguousarray, Tensor.contiguous)"))
}

/// An array or tensor looked at once, for callers that pass the same memory at every step.
///
/// It keeps the array alive. Whoever makes it promises that the array's memory stays where it is: no `resize_`, no `set_`.
#[pyclass(frozen, module = "thinwire._thinwire")]
pub struct Vector(Place);

#[pymethods]
impl Vector {
    #[new]
    fn new(array: &Bound<'_, PyAny>) -> PyResult<Vector> {
        Place::of::<f32>(array, "the vector").map(Vector)
    }

    fn __len__(&self) -> usize {
        self.0.len
    }
}

/// An array for the length of one call.
pub struct Borrowed(Place);

/// To read and write.
pub fn writeable<T: Element>(array: &Bound<'_, PyAny>, what: &str) -> PyResult<Borrowed> {
    let borrowed = readable::<T>(array, what)?;
    if !borrowed.0.writeable {
        return Err(PyValueError::new_err(format!("{what} must be writeable, and is read-only")));
    }
    Ok(borrowed)
}

/// To read.
pub fn readable<T: Element>(array: &Bound<'_, PyAny>, what: &str) -> PyResult<Borrowed> {
    if let Ok(vector) = array.cast::<Vector>() {
        if T::NAME != f32::NAME {
            return Err(wrong_type::<T>(what, f32::NAME));
        }
        let Place { address, len, writeable, .. } = vector.get().0;
        return Ok(Borrowed(Place { _array: array.clone().unbind(), address, len, writeable }));
    }
    Place::of::<T>(array, what).map(Borrowed)
}

impl Borrowed {
    pub fn slice<T: Element>(&self) -> &[T] {
        self.0.slice()
    }

    pub fn slice_mut<T: Element>(&mut self) -> &mut [T] {
        self.0.slice_mut()
    }

    /// One array must not be written to while it is read.
    pub fn apart_from(&self, other: &Borrowed) -> PyResult<()> {
        match self.0.overlaps::<f32>(other.0.address, other.0.len) {
            true => Err(shared_memory()),
            false => Ok(()),
        }
    }
}

/// The gradients that lie at `addresses`, each of so many float32 values; None for one that is not there. Never where `params` are.
///
/// For `_flat.py`, which knows these places: a look at every tensor of every step would cost more than a small model's step.
pub fn pieces<'a>(addresses: &'a [Option<usize>], lengths: &[usize], params: &Borrowed) -> PyResult<Pieces<'a>> {
    if addresses.len() != lengths.len() {
        return Err(PyValueError::new_err(format!("{} gradients of {} tensors", addresses.len(), lengths.len())));
    }
    let mut pieces = Pieces::with_capacity(lengths.len());
    for (address, len) in addresses.iter().zip(lengths) {
        let Some(address) = address.filter(|_| *len > 0) else {
            pieces.push_zeros(*len);
            continue;
        };
        if !is_place(address) {
            return Err(PyValueError::new_err("a gradient without memory of its own, or not aligned to 4 bytes"));
        }
        if params.0.overlaps::<f32>(address, *len) {
            return Err(shared_memory());
        }
        // SAFETY: `_flat.py` has seen that a contiguous tensor of `len` float32 values lies there, in the host's memory, and holds it
        // until the call is over. That its storage is as long as it says, and that no other thread of the program writes to it
        // meanwhile, is the caller's duty, as above.
        pieces.push(unsafe { std::slice::from_raw_parts(address as *const f32, *len) });
    }
    Ok(pieces)
}

fn is_place(address: usize) -> bool {
    address != 0 && address.is_multiple_of(align_of::<f32>())
}

/// The interpreter is let go only for more than this many values: taking it back costs more than a look at fewer.
const WORTH_LETTING_GO: usize = 1 << 16;

/// Whether the `len` float32 values at `address` are seen to be finite, and none is larger than 2⁶². For `_flat.py`, likewise.
#[pyfunction]
pub fn _all_finite(py: Python<'_>, address: usize, len: usize) -> bool {
    if len == 0 {
        return true;
    }
    if !is_place(address) {
        return false;
    }
    // SAFETY: as in `pieces`.
    let values = unsafe { std::slice::from_raw_parts(address as *const f32, len) };
    match len > WORTH_LETTING_GO {
        true => py.detach(|| reduce::all_within(values)),
        false => reduce::all_within(values),
    }
}

/// Copies `bytes` to a buffer that Python lends, which has room for as many.
pub fn copy_to(address: usize, bytes: &[u8]) {
    // SAFETY: `address` is of a buffer of our own, at least `bytes.len()` long: `_wire.Wire` lends it until it is told to send it,
    // `device.machine.Machine` (its `room`) until the next call.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
}

/// The `len` bytes that lie in a buffer that Python lends, at `address`.
pub fn bytes_at<'a>(address: usize, len: usize) -> &'a [u8] {
    // SAFETY: `len` is within the buffer's capacity. `_wire.Wire` leaves the buffer of a received frame alone until the next is asked
    // for, `device.machine.Machine` its own until the next call.
    unsafe { std::slice::from_raw_parts(address as *const u8, len) }
}
