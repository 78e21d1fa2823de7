//! The snapshots on the disk: the shared state after N rounds, and E with it. Their names have the digests of their contents, so that
//! damage is found before anything is made of it; then the one before it counts, and the log leads on from there.

use crate::disk;
use crate::error::{Error, Result};
use crate::frames::{set_aside, write_whole};
use crate::judge::Memory;
use crate::log::numbered;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// A snapshot that was found whole.
pub struct Kept {
    pub rounds: u64,
    /// As [`snapshot::take`](crate::snapshot::take) made it.
    pub state: Vec<u8>,
    pub residue: Vec<f32>,
    /// One more than the last round that counted each slot.
    pub counted: BTreeMap<u32, u64>,
    /// By which outliers are found.
    pub norms: Memory,
}

/// What stands beside E on the disk.
#[derive(Serialize, Deserialize)]
pub struct Beside {
    counted: BTreeMap<u32, u64>,
    #[serde(default)]
    norms: Memory,
}

/// Writes a snapshot and what belongs to it; the state last, because it is looked for first.
pub fn write(
    dir: &Path,
    rounds: u64,
    state: &[u8],
    residue: &[f32],
    counted: &BTreeMap<u32, u64>,
    norms: Memory,
) -> Result<()> {
    let beside = serde_json::to_vec(&Beside { counted: counted.clone(), norms }).expect("plain data");
    let parts = [&(beside.len() as u64).to_le_bytes()[..], &beside, bytemuck::cast_slice(residue)].concat();
    for (name, bytes, suffix) in [("residue", &parts[..], "bin"), ("snapshot", state, "safetensors")] {
        let digest = xxh3_64(bytes);
        write_whole(&dir.join(format!("{name}-{rounds:012}.{digest:016x}.{suffix}")), bytes)?;
    }
    Ok(())
}

/// The newest snapshot's file.
pub fn newest_file(dir: &Path) -> Result<(u64, PathBuf)> {
    let newest = numbered(dir, "snapshot")?.pop();
    newest.ok_or_else(|| Error::damaged(dir, "there is no snapshot"))
}

/// Snapshots that were passed over, with the reason.
pub type Damaged = Vec<(u64, Error)>;

/// The newest snapshot after as many rounds as `range` says that is whole, and those that are not.
pub fn newest(dir: &Path, parameters: usize, range: RangeInclusive<u64>) -> Result<(Option<Kept>, Damaged)> {
    let mut damaged = Vec::new();
    for (rounds, path) in numbered(dir, "snapshot")?.into_iter().rev().filter(|(rounds, _)| range.contains(rounds)) {
        match read(dir, rounds, &path, parameters) {
            Ok(kept) => return Ok((Some(kept), damaged)),
            Err(error) => damaged.push((rounds, error)),
        }
    }
    Ok((None, damaged))
}

/// Puts damaged snapshots out of the way, and says so.
pub fn set_damaged_aside(dir: &Path, damaged: &Damaged, instead: u64) -> Result<()> {
    for (rounds, error) in damaged {
        tracing::error!(%error, "the snapshot of {rounds} rounds is damaged; that of {instead} rounds is taken, and the log since");
        for prefix in ["snapshot", "residue"] {
            for (_, path) in numbered(dir, prefix)?.iter().filter(|(number, _)| number == rounds) {
                set_aside(path)?;
            }
        }
    }
    Ok(())
}

/// The bytes of a file whose name has their digest.
fn read_digested(path: &Path) -> Result<Vec<u8>> {
    let bytes = disk::read(path).map_err(Error::io(path))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match name.split('.').nth(1) == Some(&format!("{:016x}", xxh3_64(&bytes))) {
        true => Ok(bytes),
        false => Err(Error::damaged(path, "its contents are not those that its name tells")),
    }
}

fn read(dir: &Path, rounds: u64, path: &Path, parameters: usize) -> Result<Kept> {
    let state = read_digested(path)?;
    let beside = numbered(dir, "residue")?.into_iter().find(|(number, _)| *number == rounds);
    let (_, path) = beside.ok_or_else(|| {
        Error::damaged(dir, format!("expected a residual beside the snapshot of {rounds} rounds, found none"))
    })?;
    let (residue, beside) = parse_residue(&path, &read_digested(&path)?, parameters)?;
    Ok(Kept { rounds, state, residue, counted: beside.counted, norms: beside.norms })
}

/// E, and what is kept beside it, of the bytes of the file at `path`.
pub fn parse_residue(path: &Path, bytes: &[u8], parameters: usize) -> Result<(Vec<f32>, Beside)> {
    let malformed = || Error::damaged(path, format!("malformed, for a run of {parameters} parameters"));
    let (length, rest) = bytes.split_first_chunk().ok_or_else(malformed)?;
    let length = u64::from_le_bytes(*length) as usize;
    let notes = rest.get(..length).ok_or_else(malformed)?;
    let beside = serde_json::from_slice::<Beside>(notes).map_err(|_| malformed())?;
    let values = rest[length..].chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().expect("four bytes")));
    Ok((values.collect(), beside))
}
