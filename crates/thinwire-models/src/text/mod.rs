//! Text to learn from: the Shakespeare that is compiled in, a file, or a folder of files; each plain or gzip.
//!
//! The text is bytes. Any encoding will do, since a byte-level model learns it like anything else; but a zero byte is in no
//! text that is meant here (UTF-16 is full of them, and so are programs and pictures), and is an error.

mod corpus;

pub use corpus::{Corpus, HELD_OUT, part, window};

use crate::{Error, Result, file};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

static SHAKESPEARE: &[u8] = include_bytes!("../../data/shakespeare.txt.gz");

const EXTENSIONS: [&str; 3] = ["txt", "text", "md"];

/// The text at `path`; without one, Shakespeare.
pub fn read(path: Option<&Path>) -> Result<Vec<u8>> {
    match path {
        None => Ok(file::embedded(SHAKESPEARE)),
        Some(folder) if folder.is_dir() => read_folder(folder),
        Some(path) => {
            let text = file::read(path)?;
            check_is_text(path, &text)?;
            Ok(text)
        }
    }
}

/// The files that [`read`] reads, in its order: none for what is compiled in.
pub fn files(path: Option<&Path>) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    match path {
        None => {}
        Some(folder) if folder.is_dir() => find_texts(folder, &mut paths)?,
        Some(path) => paths.push(path.to_owned()),
    }
    paths.sort();
    Ok(paths)
}

/// All text files of a folder and of its folders, in the order of their paths. A file that does not end its last line gets
/// that end, so that no word is made of two files.
fn read_folder(folder: &Path) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    for path in files(Some(folder))? {
        let text = file::read_at_most(&path, file::LIMIT.saturating_sub(all.len() as u64))?;
        check_is_text(&path, &text)?;
        if all.last().is_some_and(|&last| last != b'\n') {
            all.push(b'\n');
        }
        all.extend(text);
    }
    if all.is_empty() {
        return Err(Error::data(
            folder,
            "no text in this folder: looked for files that end in .txt, .text or .md, or in these and .gz, and are not empty",
        ));
    }
    Ok(all)
}

/// Links to files are followed; links to folders are not, for they can form a circle.
fn find_texts(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let unreadable = |error| file::unreadable(folder, &error);
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if entry.file_type().map_err(unreadable)?.is_dir() {
            find_texts(&path, paths)?;
        } else if path.is_file() && is_named_as_text(&path) {
            paths.push(path);
        }
    }
    Ok(())
}

fn is_named_as_text(path: &Path) -> bool {
    let is =
        |name: &Path, wanted: &str| name.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted));
    let unpacked = if is(path, "gz") { path.file_stem().unwrap_or(OsStr::new("")) } else { path.as_os_str() };
    EXTENSIONS.iter().any(|extension| is(Path::new(unpacked), extension))
}

fn check_is_text(path: &Path, bytes: &[u8]) -> Result<()> {
    match bytes.iter().position(|&byte| byte == 0) {
        None => Ok(()),
        Some(at) => Err(Error::data(
            path,
            format!("does not look like text: byte {at} is zero; plain text is expected, best in UTF-8, or gzip of it"),
        )),
    }
}
