//! The head of a safetensors file: which tensors it has, and how long it should be.

use anyhow::{Context, Result, ensure};
use safetensors::tensor::Metadata;
use std::io::Read;

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
