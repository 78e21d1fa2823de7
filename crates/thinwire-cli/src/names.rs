//! `tensors.json`: the names and shapes of a network's tensors, in the order in which they lie in the flat vector.
//!
//! A checkpoint of the engine has one vector of parameters and knows no network. A run leaves this file beside it, so that
//! `inspect` and `export` need neither the data nor the code that made the network.

use crate::files;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;
use thinwire_models::Tensors;

pub const FILE: &str = "tensors.json";

/// One tensor of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub name: String,
    pub shape: Vec<usize>,
}

impl Named {
    /// How many values it has; nothing if that is more than a machine can count.
    fn values(&self) -> Option<usize> {
        self.shape.iter().try_fold(1_usize, |all, size| all.checked_mul(*size))
    }
}

/// The names of `tensors`.
pub fn of(tensors: &Tensors) -> Vec<Named> {
    tensors.iter().map(|tensor| Named { name: tensor.name.clone(), shape: tensor.shape.clone() }).collect()
}

/// Writes the names into a run's folder.
pub fn write(tensors: &Tensors, dir: &Path) -> Result<()> {
    files::write(&dir.join(FILE), &(serde_json::to_string(&of(tensors))? + "\n"))
}

/// The names in a run's folder, if it has any.
pub fn read(dir: &Path) -> Result<Option<Vec<Named>>> {
    let path = dir.join(FILE);
    match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        text => {
            let text = text.with_context(|| path.display().to_string())?;
            let names = serde_json::from_str(&text)
                .with_context(|| format!("{}: expected a list of names and shapes", path.display()))?;
            Ok(Some(names))
        }
    }
}

/// Where each tensor lies in a vector of `parameters` values, which they must fill.
pub fn places(names: &[Named], parameters: usize) -> Result<Vec<(&Named, Range<usize>)>> {
    let (mut places, mut end) = (Vec::new(), 0_usize);
    for named in names {
        let start = end;
        let next = named.values().and_then(|values| start.checked_add(values));
        end = next.with_context(|| format!("`{}`: the shape {:?} is too large", named.name, named.shape))?;
        places.push((named, start..end));
    }
    ensure!(end == parameters, "{FILE}: expected tensors of {parameters} values in all, found {end}");
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_fill_the_vector() {
        let named = |name: &str, shape: &[usize]| Named { name: name.to_owned(), shape: shape.to_vec() };
        let names = [named("a", &[2, 3]), named("b", &[4])];
        let found = places(&names, 10).unwrap().into_iter().map(|(_, range)| range).collect::<Vec<_>>();
        assert_eq!(found, [0..6, 6..10]);
        let error = places(&names, 11).unwrap_err().to_string();
        assert!(error.contains("expected tensors of 11 values in all, found 10"), "{error}");
        assert!(places(&[named("huge", &[usize::MAX, 2])], 1).unwrap_err().to_string().contains("`huge`"));
    }
}
