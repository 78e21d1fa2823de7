//! A disk in memory, for tests: it knows what was synced and what was not.
//!
//! A file has contents as programs see them, and contents that are safe; between the two lie the changes since it was last synced.
//! A folder has names in the same two forms. A server that dies loses nothing: the system has all that it was told. A power cut
//! keeps what is safe, and of the rest whatever chance keeps: each change of a name by itself, of a file the first changes, the
//! last of them torn or as zeros.
//!
//! A [`Fault`] happens at a call with a number. [`Crash`] is thrown as a panic without a message, and goes up to whoever runs the
//! server; on its way nothing of the server reaches the disk any more.

use crate::sim::Chance;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::TryLockError;
use std::io::{Error, ErrorKind, Result, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

thread_local! {
    static MOUNTED: RefCell<Option<(PathBuf, Memory)>> = const { RefCell::new(None) };
}

/// The disk that has the files below `path`, if one is mounted there on this thread.
pub fn mounted(path: &Path) -> Option<Memory> {
    MOUNTED.with_borrow(|mounted| mounted.as_ref().filter(|(at, _)| path.starts_with(at)).map(|(_, disk)| disk.clone()))
}

/// For as long as this lives the disk is mounted.
pub struct Mount;

impl Drop for Mount {
    fn drop(&mut self) {
        MOUNTED.set(None);
    }
}

/// What is thrown when the server dies at a call.
pub struct Crash;

/// What goes wrong at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server dies: before the call, or within a write.
    Crash,
    /// No room, if the call wants some; else it succeeds.
    Full,
    /// The call fails.
    Broken,
}

/// What a disk claims to sync, and does not: for tests that show that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// The contents of files whose names begin so.
    Contents(&'static str),
    /// The names in folders.
    Names,
}

#[derive(Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write(at, more) => {
                bytes.resize(bytes.len().max(at + more.len()), 0);
                bytes[*at..at + more.len()].copy_from_slice(more);
            }
            Change::Length(length) => bytes.resize(*length, 0),
        }
    }

    /// What a power cut may make of it.
    fn torn(self, chance: &mut Chance) -> Change {
        match self {
            Change::Write(at, mut bytes) => {
                let whole = chance.below(bytes.len() as u64 + 1) as usize;
                match chance.one_in(2) {
                    true => bytes.truncate(whole),
                    false => bytes[whole..].fill(0),
                }
                Change::Write(at, bytes)
            }
            length => length,
        }
    }
}

#[derive(Clone, Default)]
struct Contents {
    seen: Vec<u8>,
    safe: Vec<u8>,
    since: Vec<Change>,
}

impl Contents {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.seen);
        self.since.push(change);
    }

    fn sync(&mut self) {
        self.since.drain(..).for_each(|change| change.apply(&mut self.safe));
    }

    fn lose_power(&mut self, chance: &mut Chance) {
        let kept = chance.below(self.since.len() as u64 + 1) as usize;
        for (i, change) in std::mem::take(&mut self.since).into_iter().enumerate().take(kept) {
            let last = i + 1 == kept;
            let change = if last && chance.one_in(2) { change.torn(chance) } else { change };
            change.apply(&mut self.safe);
        }
        self.seen.clone_from(&self.safe);
    }
}

/// A name that comes or goes; a rename is one change.
#[derive(Clone)]
enum Naming {
    Link(PathBuf, usize),
    Unlink(PathBuf),
    Rename(PathBuf, PathBuf, usize),
}

impl Naming {
    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Naming::Link(path, file) => _ = names.insert(path.clone(), *file),
            Naming::Unlink(path) => _ = names.remove(path),
            Naming::Rename(from, to, file) => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
        }
    }
}

#[derive(Clone, Default)]
struct State {
    names: BTreeMap<PathBuf, usize>,
    safe_names: BTreeMap<PathBuf, usize>,
    since: Vec<Naming>,
    /// Folders, and whether their own names are safe.
    folders: BTreeMap<PathBuf, bool>,
    files: Vec<Contents>,
    locked: BTreeSet<usize>,
    /// Of the server that runs.
    calls: u64,
    fault: Option<(u64, Fault)>,
    /// Whether the fault has happened.
    struck: bool,
    dead: bool,
    /// Says each call.
    aloud: bool,
    lie: Option<Lie>,
    /// Decides how much of a write that stops half way is there.
    chance: Chance,
}

/// What a call does, as far as faults ask.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Look,
    Grow,
    Other,
}

#[derive(Clone)]
pub struct Memory(Arc<Mutex<State>>);

impl Memory {
    pub fn new(seed: u64) -> Memory {
        Memory(Arc::new(Mutex::new(State { chance: Chance::new(seed), ..State::default() })))
    }

    /// Another disk that is as this one.
    pub fn copy(&self) -> Memory {
        Memory(Arc::new(Mutex::new(self.state().clone())))
    }

    /// From now on this thread finds the disk's files below `path`, until the `Mount` is dropped.
    pub fn mount(&self, path: &Path) -> Mount {
        MOUNTED.set(Some((path.to_owned(), self.clone())));
        Mount
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A folder that was always there.
    pub fn create_root(&self, folder: &Path) {
        self.state().folders.insert(folder.to_owned(), true);
    }

    /// Does this without a fault.
    pub fn quietly<T>(&self, what: impl FnOnce() -> T) -> T {
        let fault = self.state().fault.take();
        let done = what();
        self.state().fault = fault;
        done
    }

    /// After so many calls more this happens, once.
    pub fn fault(&self, calls: u64, fault: Fault) {
        let mut state = self.state();
        (state.fault, state.struck) = (Some((state.calls + calls, fault)), false);
    }

    pub fn no_fault(&self) {
        self.state().fault = None;
    }

    /// Whether the last fault has happened.
    pub fn struck(&self) -> bool {
        self.state().struck
    }

    pub fn say_aloud(&self) {
        self.state().aloud = true;
    }

    pub fn lie(&self, lie: Lie) {
        self.state().lie = Some(lie);
    }

    /// Another server starts: what the one before had open is closed.
    pub fn restart(&self) {
        let mut state = self.state();
        (state.dead, state.fault) = (false, None);
        state.locked.clear();
    }

    /// What was not synced is kept, or not, as `chance` will.
    pub fn lose_power(&self, chance: &mut Chance) {
        let state = &mut *self.state();
        for naming in std::mem::take(&mut state.since) {
            if chance.one_in(2) {
                naming.apply(&mut state.safe_names);
            }
        }
        state.folders.retain(|_, safe| *safe || chance.one_in(2));
        let folders = &state.folders;
        state.safe_names.retain(|path, _| path.parent().is_some_and(|folder| folders.contains_key(folder)));
        state.folders.values_mut().for_each(|safe| *safe = true);
        state.names.clone_from(&state.safe_names);
        state.files.iter_mut().for_each(|file| file.lose_power(chance));
    }

    /// A call of this name begins.
    fn call(&self, kind: Kind, name: &str, path: &Path) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        if state.dead {
            return Err(Error::other("the server is dead"));
        }
        state.calls += 1;
        if state.aloud {
            let fault = state.fault.filter(|(at, _)| state.calls >= *at).map(|(_, fault)| fault);
            println!("              disk: {name} {} {fault:?}", path.file_name().unwrap_or_default().display());
        }
        let due = state.fault.is_some_and(|(at, _)| state.calls >= at);
        let Some((_, fault)) = state.fault.filter(|_| due) else { return Ok(state) };
        if fault == Fault::Full && kind != Kind::Grow {
            return Ok(state); // later, at a call that wants room
        }
        (state.fault, state.struck) = (None, true);
        match fault {
            Fault::Full => Err(ErrorKind::StorageFull.into()),
            Fault::Broken => Err(Error::other("the disk is broken")),
            Fault::Crash => {
                state.dead = true;
                drop(state);
                std::panic::resume_unwind(Box::new(Crash))
            }
        }
    }

    fn handle(&self, file: usize, path: &Path) -> Handle {
        Handle { disk: self.clone(), file, path: path.to_owned(), at: 0, holds: false.into() }
    }

    pub fn create(&self, path: &Path) -> Result<Handle> {
        let mut state = self.call(Kind::Grow, "create", path)?;
        if !path.parent().is_some_and(|folder| state.folders.contains_key(folder)) {
            return Err(ErrorKind::NotFound.into());
        }
        let file = match state.names.get(path).copied() {
            Some(file) => {
                state.files[file].change(Change::Length(0));
                file
            }
            None => {
                let file = state.files.len();
                state.files.push(Contents::default());
                state.names.insert(path.to_owned(), file);
                state.since.push(Naming::Link(path.to_owned(), file));
                file
            }
        };
        drop(state);
        Ok(self.handle(file, path))
    }

    pub fn open(&self, path: &Path) -> Result<Handle> {
        let file = self.call(Kind::Look, "open", path)?.find(path)?;
        Ok(self.handle(file, path))
    }

    pub fn read(&self, path: &Path) -> Result<Vec<u8>> {
        let state = self.call(Kind::Look, "read", path)?;
        let file = state.find(path)?;
        Ok(state.files[file].seen.clone())
    }

    pub fn length(&self, path: &Path) -> Result<u64> {
        let state = self.call(Kind::Look, "length", path)?;
        let file = state.find(path)?;
        Ok(state.files[file].seen.len() as u64)
    }

    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.call(Kind::Other, "rename", from)?;
        let file = state.find(from)?;
        state.rename(Naming::Rename(from.to_owned(), to.to_owned(), file))
    }

    pub fn remove(&self, path: &Path) -> Result<()> {
        let mut state = self.call(Kind::Other, "remove", path)?;
        state.find(path)?;
        state.rename(Naming::Unlink(path.to_owned()))
    }

    pub fn exists(&self, path: &Path) -> Result<bool> {
        let state = self.call(Kind::Look, "exists", path)?;
        Ok(state.names.contains_key(path) || state.folders.contains_key(path))
    }

    pub fn list(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let state = self.call(Kind::Look, "list", folder)?;
        if !state.folders.contains_key(folder) {
            return Err(ErrorKind::NotFound.into());
        }
        Ok(state.names.keys().filter(|path| path.parent() == Some(folder)).cloned().collect())
    }

    pub fn create_folder(&self, folder: &Path) -> Result<()> {
        self.call(Kind::Grow, "create_folder", folder)?.folders.entry(folder.to_owned()).or_insert(false);
        Ok(())
    }

    /// The names in it are safe, those of folders too.
    pub fn sync_folder(&self, folder: &Path) -> Result<()> {
        let state = &mut *self.call(Kind::Other, "sync_folder", folder)?;
        if state.lie == Some(Lie::Names) {
            return Ok(());
        }
        state.since.drain(..).for_each(|naming| naming.apply(&mut state.safe_names));
        let inside = state.folders.iter_mut().filter(|(path, _)| path.parent() == Some(folder));
        inside.for_each(|(_, safe)| *safe = true);
        Ok(())
    }
}

impl State {
    fn find(&self, path: &Path) -> Result<usize> {
        self.names.get(path).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn rename(&mut self, naming: Naming) -> Result<()> {
        naming.apply(&mut self.names);
        self.since.push(naming);
        Ok(())
    }

    /// If a fault strikes at the next call: some of what it was to write.
    fn write_part(&mut self, file: usize, at: usize, bytes: &[u8]) {
        if !self.dead && self.fault.is_some_and(|(at, _)| self.calls + 1 >= at) {
            let part = self.chance.below(bytes.len() as u64 + 1) as usize;
            self.files[file].change(Change::Write(at, bytes[..part].to_vec()));
        }
    }

    /// Whether the disk only says that it syncs this file.
    fn lies_about(&self, file: usize) -> bool {
        let Some(Lie::Contents(prefix)) = self.lie else { return false };
        let starts = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
        self.names.iter().any(|(path, named)| *named == file && starts(path))
    }
}

/// An open file.
pub struct Handle {
    disk: Memory,
    file: usize,
    path: PathBuf,
    at: usize,
    /// Whether it holds the file's lock.
    holds: std::sync::atomic::AtomicBool,
}

impl Handle {
    fn call(&self, kind: Kind, name: &str) -> Result<MutexGuard<'_, State>> {
        self.disk.call(kind, name, &self.path)
    }

    pub fn length(&self) -> Result<u64> {
        Ok(self.call(Kind::Look, "length")?.files[self.file].seen.len() as u64)
    }

    pub fn set_len(&self, length: u64) -> Result<()> {
        self.call(Kind::Other, "set_len")?.files[self.file].change(Change::Length(length as usize));
        Ok(())
    }

    pub fn sync_data(&self) -> Result<()> {
        let mut state = self.call(Kind::Other, "sync_data")?;
        if !state.lies_about(self.file) {
            state.files[self.file].sync();
        }
        Ok(())
    }

    pub fn sync_all(&self) -> Result<()> {
        self.sync_data()
    }

    pub fn try_lock(&self) -> std::result::Result<(), TryLockError> {
        let mut state = self.call(Kind::Other, "try_lock").map_err(TryLockError::Error)?;
        if !state.locked.insert(self.file) {
            return Err(TryLockError::WouldBlock);
        }
        self.holds.store(true, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    pub fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let state = self.call(Kind::Look, "read")?;
        let rest = state.files[self.file].seen.get(self.at..).unwrap_or_default();
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        drop(state);
        self.at += count;
        Ok(count)
    }

    /// A write that a fault strikes is there in part.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.disk.state().write_part(self.file, self.at, bytes);
        let mut state = self.call(Kind::Grow, "write")?;
        state.files[self.file].change(Change::Write(self.at, bytes.to_vec()));
        drop(state);
        self.at += bytes.len();
        Ok(bytes.len())
    }

    pub fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let length = self.disk.state().files[self.file].seen.len();
        self.at = match to {
            SeekFrom::Start(at) => at as usize,
            SeekFrom::End(by) => length.saturating_add_signed(by as isize),
            SeekFrom::Current(by) => self.at.saturating_add_signed(by as isize),
        };
        Ok(self.at as u64)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if *self.holds.get_mut() {
            self.disk.state().locked.remove(&self.file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{self, File};
    use std::io::Write;

    const AT: &str = "/memory/run";

    fn disk() -> (Memory, Mount, PathBuf) {
        let memory = Memory::new(1);
        let mount = memory.mount(Path::new("/memory"));
        disk::create_folder(Path::new(AT)).unwrap();
        disk::sync_folder(Path::new("/memory")).unwrap();
        (memory, mount, Path::new(AT).join("file"))
    }

    /// What is left after a power cut, for many seeds.
    fn left(write: impl Fn(&Path)) -> BTreeSet<Option<Vec<u8>>> {
        let each = (0..200).map(|seed| {
            let (memory, _mount, path) = disk();
            write(&path);
            memory.lose_power(&mut Chance::new(seed));
            disk::read(&path).ok()
        });
        each.collect()
    }

    #[test]
    fn what_was_synced_survives_a_power_cut_and_the_rest_may() {
        let whole = Some(b"abc".to_vec());
        let safe = left(|path| {
            let mut file = File::create(path).unwrap();
            file.write_all(b"abc").unwrap();
            file.sync_data().unwrap();
            disk::sync_folder(Path::new(AT)).unwrap();
        });
        assert_eq!(safe, BTreeSet::from([whole.clone()]));
        let nothing_synced = left(|path| File::create(path).unwrap().write_all(b"abc").unwrap());
        for outcome in [None, Some(vec![]), Some(b"a".to_vec()), Some(b"a\0\0".to_vec()), whole] {
            assert!(nothing_synced.contains(&outcome), "{outcome:?}");
        }
    }

    #[test]
    fn a_rename_is_old_or_new_until_its_folder_is_synced() {
        let write = |path: &Path, text: &[u8]| {
            let mut file = File::create(path).unwrap();
            file.write_all(text).unwrap();
            file.sync_all().unwrap();
        };
        let replace = |path: &Path, sync: bool| {
            write(path, b"old");
            disk::sync_folder(Path::new(AT)).unwrap();
            write(&path.with_extension("draft"), b"new");
            disk::rename(&path.with_extension("draft"), path).unwrap();
            if sync {
                disk::sync_folder(Path::new(AT)).unwrap();
            }
        };
        let (old, new) = (Some(b"old".to_vec()), Some(b"new".to_vec()));
        assert_eq!(left(|path| replace(path, false)), BTreeSet::from([old, new.clone()]));
        assert_eq!(left(|path| replace(path, true)), BTreeSet::from([new]));
    }

    #[test]
    fn faults_strike_at_their_call_and_once() {
        let (memory, _mount, path) = disk();
        memory.fault(2, Fault::Full);
        let mut file = File::create(&path).unwrap();
        assert_eq!(file.write(b"abc").unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(memory.struck() && file.write(b"abc").is_ok());
        memory.fault(1, Fault::Broken);
        assert!(file.sync_data().is_err() && file.sync_data().is_ok());
        memory.fault(1, Fault::Crash);
        let died = std::panic::catch_unwind(|| disk::read(&path));
        assert!(died.is_err_and(|thrown| thrown.is::<Crash>()));
        assert!(disk::read(&path).is_err(), "a dead server reads nothing");
        memory.restart();
        assert!(disk::read(&path).is_ok());
    }

    #[test]
    fn a_lock_lasts_until_its_file_is_closed() {
        let (_memory, _mount, path) = disk();
        let (first, second) = (File::create(&path).unwrap(), File::create(&path).unwrap());
        first.try_lock().unwrap();
        assert!(second.try_lock().is_err());
        drop(first);
        second.try_lock().unwrap();
    }
}
