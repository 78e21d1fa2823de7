//! The head of a safetensors file: which tensors it has, how long it should be, and how many parameters that is.

use anyhow::{Context, Result, ensure};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use std::io::Read;
use std::path::Path;

/// The limit of the format.
const MOST: u64 = 100 << 20;

/// Reads the head from the start of a file of `length` bytes, and checks that what it describes is there.
pub fn head(file: &mut impl Read, length: u64) -> Result<Metadata> {
    const WHAT: &str = "expected a safetensors file (for example model.safetensors)";
    let mut size = [0; 8];
    file.read_exact(&mut size).with_context(|| format!("{WHAT}, found {length} bytes"))?;
    let size = u64::from_le_bytes(size);
    ensure!((2..=MOST).contains(&size) && size < length, "{WHAT}, found a head of {size} bytes in a file of {length}");
    let mut head = vec![0; size as usize];
    file.read_exact(&mut head)?;
    let metadata: Metadata = serde_json::from_slice(&head).context(WHAT)?;
    let described = 8 + size + metadata.data_len() as u64;
    ensure!(described <= length, "expected {described} bytes, found {length}: the file is cut off");
    ensure!(described == length, "expected {described} bytes, found {length}");
    Ok(metadata)
}

/// The parameters in a safetensors file, of which only the head is read. Whole numbers, such as positions, are not parameters.
pub fn count(path: &Path) -> Result<usize> {
    let index = path.extension().is_some_and(|ending| ending == "json");
    ensure!(
        !index,
        "expected a file with tensors (for example model.safetensors), found an index; give the sum of its files by --params"
    );
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    let head = head(&mut file, length)?;
    let mut values = 0_usize;
    for info in head.tensors().into_values().filter(|info| is_learned(info.dtype)) {
        let size = info.shape.iter().try_fold(1_usize, |size, side| size.checked_mul(*side));
        let sum = size.and_then(|size| values.checked_add(size));
        values = sum.context("expected parameters that can be counted, found too many")?;
    }
    ensure!(values > 0, "expected tensors with parameters, found none");
    Ok(values)
}

fn is_learned(kind: Dtype) -> bool {
    let name = format!("{kind:?}");
    name.starts_with('F') || name.starts_with("BF")
}
