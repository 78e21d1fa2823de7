//! The data: what is read, and what every wrong file is told. Files are small and made here, in temporary folders.

mod files;
mod images;
mod sentences;
mod text;

use flate2::{Compression, write::GzEncoder};
use std::fmt::Debug;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Writes a file, and the folders it lies in.
pub fn write(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path
}

pub fn gzip(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes.as_ref()).unwrap();
    encoder.finish().unwrap()
}

/// The error must be about `path`, and say `problem` of it.
#[track_caller]
pub fn assert_error<T: Debug>(result: thinwire_models::Result<T>, path: &Path, problem: &str) {
    let error = result.expect_err("an error is expected").to_string();
    let expected = format!("{}: ", path.display());
    let said = error.strip_prefix(&expected).unwrap_or_else(|| panic!("{error:?} should begin with {expected:?}"));
    assert!(said.contains(problem), "{said:?} should say {problem:?}");
}

/// All ways to change one bit, and all ways to cut the end off.
pub fn spoiled(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let flips = (0..bytes.len() * 8).map(|bit| {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        flipped
    });
    flips.chain(cuts(bytes))
}

pub fn cuts(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..bytes.len()).map(|length| bytes[..length].to_vec())
}
