//! The state of a worker, as arrays and numbers in a Python dict.

use crate::bridge::{Borrowed, Element, readable, writeable};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use thinwire::inside::state::{Entry, Slot};

/// Copies `values` to the array `name` of `into`.
pub fn fill<T: Element>(into: &Bound<'_, PyDict>, name: &str, values: &[T]) -> PyResult<()> {
    let missing = || PyValueError::new_err(format!("no room for {name}"));
    let mut array = writeable::<T>(&into.get_item(name)?.ok_or_else(missing)?, name)?;
    if array.slice::<T>().len() != values.len() {
        return Err(missing());
    }
    array.slice_mut().copy_from_slice(values);
    Ok(())
}

/// An entry of a state that came from Python, checked.
pub enum Value {
    Floats(Borrowed),
    Doubles(Borrowed),
    Word(u64),
    /// None is there: what it is before the first step.
    Start,
}

impl Value {
    pub fn of(value: &Bound<'_, PyAny>, kind: &str, name: &str) -> PyResult<Value> {
        let name = format!("the state's {name}");
        Ok(match kind {
            "f4" => Value::Floats(readable::<f32>(value, &name)?),
            "f8" => Value::Doubles(readable::<f64>(value, &name)?),
            _ => Value::Word(value.extract()?),
        })
    }

    pub fn len(&self) -> usize {
        match self {
            Value::Floats(values) => values.slice::<f32>().len(),
            Value::Doubles(values) => values.slice::<f64>().len(),
            Value::Word(_) => 1,
            Value::Start => 0,
        }
    }

    pub fn pour(&self, entry: &mut Entry<'_>) {
        match (self, &mut entry.slot) {
            (Value::Start, _) => entry.reset(),
            (Value::Floats(from), Slot::Floats(to)) => to.copy_from_slice(from.slice()),
            (Value::Doubles(from), Slot::Doubles(to)) => to.copy_from_slice(from.slice()),
            (Value::Word(from), Slot::Word(to)) => **to = *from,
            _ => unreachable!("checked against the layout"),
        }
    }
}
