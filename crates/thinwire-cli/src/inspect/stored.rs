//! One worker's file, read from its first byte to its last in pieces: its tensors' figures, and the digest of all of it.
//!
//! One pass and a megabyte of memory, however long the file is. docs/checkpoint-format.md says what the file holds.

use super::figures::{Figures, Sums};
use anyhow::{Context, Result, bail, ensure};
use safetensors::tensor::{Dtype, Metadata};
use serde::Serialize;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use thinwire_plan::inside::head;
use xxhash_rust::xxh3::Xxh3;

const PIECE: usize = 1 << 20;

/// A tensor of a worker's file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tensor {
    pub name: String,
    pub dtype: String,
    pub bytes: u64,
    #[serde(flatten)]
    pub figures: Figures,
    /// What it says, if it is one whole number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<u64>,
}

/// The tensors of a file, in the order in which they lie in it.
pub fn read(path: &Path, digest: &str) -> Result<Vec<Tensor>> {
    let named = || path.display().to_string();
    let file = File::open(path).with_context(named)?;
    let length = file.metadata().with_context(named)?.len();
    let mut file = Hashed { file: BufReader::with_capacity(PIECE, file), hash: Xxh3::new() };
    let tensors = tensors(&mut file, length).with_context(named)?;
    let found = format!("{:016x}", file.hash.digest());
    ensure!(found == digest, "{}: expected the digest {digest}, found {found}: the file is damaged", named());
    Ok(tensors)
}

fn tensors(file: &mut Hashed, length: u64) -> Result<Vec<Tensor>> {
    let metadata = head(file, length)?;
    metadata.offset_keys().into_iter().map(|name| tensor(file, name, &metadata)).collect()
}

fn tensor(file: &mut Hashed, name: String, metadata: &Metadata) -> Result<Tensor> {
    let info = metadata.info(&name).with_context(|| format!("no tensor `{name}`"))?;
    let bytes = (info.data_offsets.1 - info.data_offsets.0) as u64;
    let (mut sums, mut value) = (Sums::default(), None);
    match info.dtype {
        Dtype::F32 => file.each::<4>(bytes, |bytes| sums.add(f64::from(f32::from_le_bytes(bytes))))?,
        Dtype::F64 => file.each::<8>(bytes, |bytes| sums.add(f64::from_le_bytes(bytes)))?,
        Dtype::U64 => file.each::<8>(bytes, |bytes| {
            value = Some(u64::from_le_bytes(bytes));
            sums.add(u64::from_le_bytes(bytes) as f64);
        })?,
        other => bail!("`{name}`: expected F32, F64 or U64, found {other:?}"),
    }
    let figures = sums.figures();
    let value = value.filter(|_| figures.values == 1);
    Ok(Tensor { name, dtype: format!("{:?}", info.dtype), bytes, figures, value })
}

/// A file whose bytes go into a digest as they are read.
struct Hashed {
    file: BufReader<File>,
    hash: Xxh3,
}

impl Read for Hashed {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let many = self.file.read(bytes)?;
        self.hash.update(&bytes[..many]);
        Ok(many)
    }
}

impl Hashed {
    /// Shows the next `bytes` bytes to `see`, N at a time.
    fn each<const N: usize>(&mut self, bytes: u64, mut see: impl FnMut([u8; N])) -> Result<()> {
        let mut piece = vec![0; PIECE];
        let mut left = bytes;
        while left > 0 {
            let part = left.min(PIECE as u64) as usize;
            self.read_exact(&mut piece[..part])?;
            piece[..part].chunks_exact(N).for_each(|value| see(value.try_into().expect("N bytes")));
            left -= part as u64;
        }
        Ok(())
    }
}
