//! The disk: every call by which a server touches its run's folder.
//!
//! The calls are those of [`std::fs`], and nothing is added to them. They are in one place so that tests can put another disk under
//! a server: `memory` keeps a folder in memory, where calls fail, writes stop half way, the server dies between any two calls, and a
//! power cut takes what was not synced. A test mounts it at a path, and files below that path are then in memory.

#[cfg(test)]
pub mod memory;

use std::fs::OpenOptions;
use std::io::{Read, Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// An open file.
pub enum File {
    Real(std::fs::File),
    #[cfg(test)]
    Memory(memory::Handle),
}

/// The same call for a file of either disk.
macro_rules! either {
    ($file:expr, $inner:ident => $call:expr) => {
        match $file {
            File::Real($inner) => $call,
            #[cfg(test)]
            File::Memory($inner) => $call,
        }
    };
}

/// Returns what the disk in memory answers, if one is mounted above `$path`.
macro_rules! in_memory {
    ($path:expr, $disk:ident => $call:expr) => {
        #[cfg(test)]
        if let Some($disk) = memory::mounted($path) {
            return $call;
        }
    };
}

impl File {
    /// A new file, or one that is emptied.
    pub fn create(path: &Path) -> Result<File> {
        in_memory!(path, disk => disk.create(path).map(File::Memory));
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).map(File::Real)
    }

    /// A file that is there, to be read.
    pub fn open(path: &Path) -> Result<File> {
        in_memory!(path, disk => disk.open(path).map(File::Memory));
        std::fs::File::open(path).map(File::Real)
    }

    /// A file that is there, to be changed.
    pub fn change(path: &Path) -> Result<File> {
        in_memory!(path, disk => disk.open(path).map(File::Memory));
        OpenOptions::new().read(true).write(true).open(path).map(File::Real)
    }

    pub fn length(&self) -> Result<u64> {
        match self {
            File::Real(file) => Ok(file.metadata()?.len()),
            #[cfg(test)]
            File::Memory(file) => file.length(),
        }
    }

    pub fn set_length(&self, length: u64) -> Result<()> {
        either!(self, file => file.set_len(length))
    }

    /// Contents and length are on the disk.
    pub fn sync_data(&self) -> Result<()> {
        either!(self, file => file.sync_data())
    }

    /// All that is known of the file is on the disk, except for its name.
    pub fn sync_all(&self) -> Result<()> {
        either!(self, file => file.sync_all())
    }

    /// Nobody else may have it, until it is closed.
    pub fn try_lock(&self) -> std::result::Result<(), std::fs::TryLockError> {
        either!(self, file => file.try_lock())
    }
}

impl Read for File {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        either!(self, file => file.read(bytes))
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        either!(self, file => file.write(bytes))
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        either!(self, file => file.seek(to))
    }
}

/// The contents of a file.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    in_memory!(path, disk => disk.read(path));
    std::fs::read(path)
}

pub fn rename(from: &Path, to: &Path) -> Result<()> {
    in_memory!(from, disk => disk.rename(from, to));
    std::fs::rename(from, to)
}

pub fn remove(path: &Path) -> Result<()> {
    in_memory!(path, disk => disk.remove(path));
    std::fs::remove_file(path)
}

/// Whether there is something at `path`. A disk that cannot tell is an error: what is there must not be taken for missing.
pub fn exists(path: &Path) -> Result<bool> {
    in_memory!(path, disk => disk.exists(path));
    path.try_exists()
}

/// How long a file is.
pub fn length(path: &Path) -> Result<u64> {
    in_memory!(path, disk => disk.length(path));
    Ok(std::fs::metadata(path)?.len())
}

/// What is in a folder, in no order.
pub fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    in_memory!(folder, disk => disk.list(folder));
    std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

/// Makes a folder, and those that it is to be in.
pub fn create_folder(folder: &Path) -> Result<()> {
    in_memory!(folder, disk => disk.create_folder(folder));
    std::fs::create_dir_all(folder)
}

/// The names in a folder are on the disk; not every system lets a folder be opened.
pub fn sync_folder(folder: &Path) -> Result<()> {
    in_memory!(folder, disk => disk.sync_folder(folder));
    if cfg!(unix) { std::fs::File::open(folder).and_then(|folder| folder.sync_all()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    /// A call that goes past this module is one that no fault ever strikes.
    #[test]
    fn whoever_writes_in_a_run_folder_does_so_through_this_module() {
        let sources = [
            ("back", include_str!("back.rs")),
            ("frames", include_str!("frames.rs")),
            ("inputs", include_str!("inputs.rs")),
            ("kept", include_str!("kept.rs")),
            ("log", include_str!("log.rs")),
            ("roster", include_str!("roster.rs")),
            ("run", include_str!("run.rs")),
            ("sealed", include_str!("sealed.rs")),
            ("service", include_str!("service.rs")),
            ("state", include_str!("state.rs")),
        ];
        for (name, source) in sources {
            let code = source.split("mod tests {").next().unwrap_or_default();
            let calls = ["std::fs::", "OpenOptions", ".exists()", ".is_file()", ".is_dir()"];
            let past = calls.iter().find(|call| code.replace("std::fs::TryLockError", "").contains(**call));
            assert!(past.is_none(), "{name}.rs has {past:?}");
        }
    }
}
