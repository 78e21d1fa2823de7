//! Checkpoints: named vectors into safetensors files, one a worker, and a manifest that says which belong together.
//!
//! Every file is written under another name, flushed, and renamed; the manifest last. So `manifest.json` always names a
//! complete set of files, whatever happens while the next set is being written. Reading checks all of a file (version, names,
//! types, lengths, digest) before it writes to anything. docs/checkpoint-format.md has the details.

mod read;

use crate::error::{Error, Result};
use crate::exchange::hosts::Hosts;
use crate::state::{Entry, Slot};
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// The word by which a manifest is known.
pub const FORMAT: &str = "thinwire-checkpoint";
/// The version of the format.
pub const VERSION: u32 = 1;
const MANIFEST: &str = "manifest.json";
const HOSTS: &str = "hosts";

/// What belongs together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Steps taken.
    pub step: u64,
    /// Parameters of the model.
    pub parameters: usize,
    /// The resolved configuration.
    pub config: serde_json::Value,
    /// One a worker, in rank order.
    pub files: Vec<Written>,
}

/// A file of one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// Its name in the folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// XXH3, 64 bits, in hex.
    pub digest: String,
}

/// Writes one worker's entries to `dir`, by rename.
pub fn write(dir: &Path, step: u64, rank: usize, hosts: &Hosts, entries: &[Entry<'_>]) -> Result<Written> {
    let workers = hosts.of_all().len();
    fs::create_dir_all(dir).map_err(Error::io(dir))?;
    let stem = format!("step-{step}-worker-{rank}-of-{workers}");
    let unfinished = dir.join(format!("{stem}.safetensors.unfinished"));
    let views = entries.iter().map(|entry| (entry.name, view(&entry.slot)));
    let notes = host_note(hosts).map(|hosts| HashMap::from([(HOSTS.to_owned(), hosts)]));
    let written = safetensors::serialize_to_file(views, notes, &unfinished);
    written.map_err(|error| Error::checkpoint(&unfinished, error))?;
    let (bytes, digest) = measure(&unfinished)?;
    // The digest keeps a second save at the same step from replacing a file that the manifest still names.
    let name = format!("{stem}.{digest}.safetensors");
    rename(&unfinished, &dir.join(&name))?;
    Ok(Written { name, bytes, digest })
}

/// What a file says about hosts: the host of every rank, where workers of one added up first. It is in every file, and not
/// in the manifest, so that the file's digest covers it.
fn host_note(hosts: &Hosts) -> Option<String> {
    let numbers = || hosts.of_all().iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
    (!hosts.is_flat()).then(numbers)
}

/// Writes the manifest, by rename; `rank` keeps workers that share a folder from writing to one file.
pub fn write_manifest(dir: &Path, rank: usize, manifest: &Manifest) -> Result<()> {
    let unfinished = dir.join(format!("{MANIFEST}.{rank}.unfinished"));
    let text = serde_json::to_string_pretty(manifest).expect("a manifest is plain data");
    fs::write(&unfinished, text + "\n").map_err(Error::io(&unfinished))?;
    rename(&unfinished, &dir.join(MANIFEST))
}

/// Removes this worker's files that `manifest` does not name; worker 0 also those of ranks there no longer are.
pub fn remove_older(dir: &Path, rank: usize, manifest: &Manifest) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(Error::io(dir))? {
        let path = entry.map_err(Error::io(dir))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(owner) = owner(&name) else { continue };
        let mine = owner == rank || rank == 0 && owner >= manifest.files.len();
        if mine && manifest.files.iter().all(|file| file.name != name) {
            fs::remove_file(&path).map_err(Error::io(&path))?;
        }
    }
    Ok(())
}

/// The rank in `step-7-worker-2-of-4.0123456789abcdef.safetensors`, also of one left unfinished, and of a manifest left so.
fn owner(name: &str) -> Option<usize> {
    if let Some(rest) = name.strip_prefix(MANIFEST) {
        return rest.strip_prefix('.')?.strip_suffix(".unfinished")?.parse().ok();
    }
    let (_, rest) = name.strip_prefix("step-")?.split_once("-worker-")?;
    rest.contains(".safetensors").then(|| rest.split_once("-of-"))??.0.parse().ok()
}

/// Flushes `from` and gives it its name.
fn rename(from: &Path, to: &Path) -> Result<()> {
    let written = OpenOptions::new().write(true).open(from).and_then(|file| file.sync_all());
    written.map_err(Error::io(from))?;
    fs::rename(from, to).map_err(Error::io(to))?;
    // The name itself is on disk once its folder is; not every system lets a folder be opened.
    let folder = to.parent().expect("a file in a folder");
    let flushed = if cfg!(unix) { File::open(folder).and_then(|folder| folder.sync_all()) } else { Ok(()) };
    flushed.map_err(Error::io(folder))
}

/// An entry's numbers as safetensors has them: one dimension.
pub fn view<'a>(slot: &'a Slot<'_>) -> TensorView<'a> {
    let (dtype, len) = match slot {
        Slot::Floats(values) => (Dtype::F32, values.len()),
        Slot::Doubles(values) => (Dtype::F64, values.len()),
        Slot::Word(_) => (Dtype::U64, 1),
    };
    TensorView::new(dtype, vec![len], slot.as_bytes()).expect("as many bytes as values take")
}

/// Whether `name` is that of a file in the folder that it is looked for in, on every system.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let one = matches!((parts.next(), parts.next()), (Some(std::path::Component::Normal(part)), None) if part == name);
    one && !name.contains(['/', '\\', ':', '\0'])
}

/// The length and the digest of a file.
fn measure(path: &Path) -> Result<(u64, String)> {
    let mut file = File::open(path).map_err(Error::io(path))?;
    let (mut digest, mut piece, mut bytes) = (Xxh3::new(), vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut piece).map_err(Error::io(path))? {
            0 => return Ok((bytes, format!("{:016x}", digest.digest()))),
            read => {
                digest.update(&piece[..read]);
                bytes += read as u64;
            }
        }
    }
}

/// A checkpoint that was found whole as far as its manifest goes.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    /// What its manifest says.
    pub manifest: Manifest,
}

impl Checkpoint {
    /// Reads the manifest of the checkpoint in `dir`, and sees that its files are there.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Checkpoint> {
        let dir = dir.into();
        let path = dir.join(MANIFEST);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::checkpoint(
                    dir,
                    format!("expected {MANIFEST}, found none (not a checkpoint, or never finished)"),
                ));
            }
            text => text.map_err(Error::io(&path))?,
        };
        Checkpoint::parse(dir, &text)
    }

    /// The same of the text of the manifest in `dir`.
    #[doc(hidden)]
    pub fn parse(dir: PathBuf, text: &str) -> Result<Checkpoint> {
        let path = dir.join(MANIFEST);
        let foreign = |error| Error::checkpoint(&path, format!("not a manifest of ours: {error}"));
        let value = serde_json::from_str::<serde_json::Value>(text).map_err(foreign)?;
        if value.get("format").and_then(|format| format.as_str()) != Some(FORMAT) {
            return Err(Error::checkpoint(path, format!("its format is not {FORMAT:?}")));
        }
        let version = value.get("version").cloned().unwrap_or_default();
        if version != VERSION {
            return Err(Error::checkpoint(path, format!("version: expected {VERSION}, found {version}")));
        }
        let manifest = serde_json::from_value::<Manifest>(value).map_err(foreign)?;
        if manifest.files.is_empty() {
            return Err(Error::checkpoint(path, "it names no files"));
        }
        // What is read lies beside the manifest, whoever has written it.
        if let Some(file) = manifest.files.iter().find(|file| !is_plain(&file.name)) {
            let problem = format!("invalid file {:?}: expected a name without a folder", file.name);
            return Err(Error::checkpoint(path, problem));
        }
        Ok(Checkpoint { dir, manifest })
    }

    /// How many workers saved it.
    pub fn workers(&self) -> usize {
        self.manifest.files.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_names_files_of_its_own_folder_only() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("checkpoint");
        fs::create_dir(&dir).unwrap();
        let manifest = |name: &str| Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            step: 1,
            parameters: 1,
            config: serde_json::json!({}),
            files: vec![Written { name: name.to_owned(), bytes: 1, digest: String::new() }],
        };
        let outside = place.path().join("secret").display().to_string();
        for name in [
            "../secret",
            &outside,
            "a/../../secret",
            "sub/file",
            "..",
            ".",
            "",
            "./file",
            "..\\secret",
            "C:secret",
            "a/",
        ] {
            write_manifest(&dir, 0, &manifest(name)).unwrap();
            let error = Checkpoint::open(&dir).unwrap_err().to_string();
            assert!(error.contains("invalid file") && error.contains("without a folder"), "{name}: {error}");
        }
        write_manifest(&dir, 0, &manifest("step-1-worker-0-of-1.0123456789abcdef.safetensors")).unwrap();
        Checkpoint::open(&dir).unwrap();
    }
}
