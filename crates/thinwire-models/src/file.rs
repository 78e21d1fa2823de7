//! A whole file in memory, unpacked when it is gzip.
//!
//! Gzip is known by its first bytes, not by its name: files get renamed. A small gzip file can unpack to anything, so there is
//! a most that is read, and memory grows with what arrives, never with what a header promises.

use crate::{Error, Result};
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// The most bytes of data that are read from a file, after unpacking.
pub const LIMIT: u64 = 4 << 30;

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The content of a file, which must not be empty.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = read_at_most(path, LIMIT)?;
    if bytes.is_empty() {
        return Err(Error::data(path, "is empty"));
    }
    Ok(bytes)
}

/// The content of a file, which may be empty; more than `limit` bytes are an error.
pub fn read_at_most(path: &Path, limit: u64) -> Result<Vec<u8>> {
    unpacked(path, open(path)?, limit)
}

/// The same of `file`, which is open; `path` is what errors call it.
#[doc(hidden)]
pub fn unpacked(path: &Path, mut file: impl BufRead, limit: u64) -> Result<Vec<u8>> {
    let gzip = file.fill_buf().map_err(|error| unreadable(path, &error))?.starts_with(&GZIP);
    let bytes = if gzip {
        at_most(limit, MultiGzDecoder::new(file)).map_err(|error| damaged(path, &error))?
    } else {
        at_most(limit, file).map_err(|error| unreadable(path, &error))?
    };
    bytes.ok_or_else(|| Error::data(path, format!("holds more than {limit} bytes of data, the most that is read")))
}

/// The content of an embedded gzip file.
pub(crate) fn embedded(gzip: &[u8]) -> Vec<u8> {
    let unpacked = at_most(LIMIT, MultiGzDecoder::new(gzip)).ok().flatten();
    unpacked.expect("what is compiled in was packed by us, and the tests unpack it")
}

/// Only a regular file: reading a pipe could wait for ever, and a device never ends.
fn open(path: &Path) -> Result<BufReader<File>> {
    let found = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    if found.is_dir() {
        return Err(Error::data(path, "is a folder, and a file is expected"));
    }
    if !found.is_file() {
        return Err(Error::data(path, "is not a regular file"));
    }
    Ok(BufReader::new(File::open(path).map_err(|error| unreadable(path, &error))?))
}

/// All of `source`, or None when it is more than `limit` bytes.
fn at_most(limit: u64, source: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    source.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}

pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => Error::data(path, "there is no such file or folder"),
        _ => Error::data(path, format!("cannot be read: {error}")),
    }
}

fn damaged(path: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::data(path, "the gzip data is cut short"),
        _ => Error::data(path, format!("the gzip data is damaged: {error}")),
    }
}
