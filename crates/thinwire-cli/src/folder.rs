//! The folder that a run writes to: who may have it, and what happens to a run that is there already.
//!
//! A run holds a lock on its folder as long as its process lives; the system lets go of it however the process ends. A folder
//! with a finished run is not taken by another one: the default folder gets a number, a folder that was named is refused.

use crate::failure::{Failure, Outcome};
use crate::job::Job;
use crate::launch::Team;
use crate::screen::say;
use anyhow::{Context, Result, bail, ensure};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The file that is locked. It stays when the run has ended: removing it would let two runs lock two files of this name.
const LOCK: &str = ".lock";

/// A folder that no other run may write to while this lives.
#[derive(Debug)]
pub struct Held {
    _file: File,
}

/// Locks the folders, which are made if need be. Of several processes worker 0's has the lock: the others may see the same folder.
pub fn hold(dirs: &[PathBuf], team: &Team) -> Outcome<Vec<Held>> {
    let locks = || dirs.iter().map(|dir| lock(dir)).collect::<Result<Vec<_>>>();
    let held = team.agree(if team.leads() { locks().map_err(Failure::Usage) } else { Ok(Vec::new()) })?;
    Ok(held)
}

/// Locks one folder.
pub fn lock(dir: &Path) -> Result<Held> {
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let path = dir.join(LOCK);
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = opened.with_context(|| path.display().to_string())?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            let _ = file.read_to_string(&mut owner);
            let owner =
                Some(owner.trim()).filter(|owner| !owner.is_empty()).map_or(String::new(), |at| format!(" ({at})"));
            bail!(
                "{}: another run is writing to this folder{owner}; wait until it has ended, or choose another folder by --out",
                dir.display()
            )
        }
        // Some network file systems have no locks.
        Err(TryLockError::Error(error)) => {
            say!("warning: {} cannot be locked ({error}): make sure that no other run writes to it", dir.display());
        }
    }
    // For the message above, nothing else.
    let owner = format!("process {}\n", std::process::id());
    let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(owner.as_bytes()));
    Ok(Held { _file: file })
}

/// What is in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Nothing,
    Unfinished,
    Finished,
}

impl Content {
    pub fn of(dir: &Path) -> Content {
        // A comparison and a server's run have files of their own: not to be mixed with those of a run.
        let other = ["compare.json", "run.json"].iter().any(|file| dir.join(file).exists());
        // The manifest comes last: a checkpoint without one was never finished, and there is nothing to go on from. A worker of a
        // server that is interrupted before its first checkpoint leaves the other file.
        let checkpoint = ["manifest.json", "member.json"].iter().any(|file| dir.join("checkpoint").join(file).exists());
        match (other || dir.join("summary.json").exists(), checkpoint) {
            (true, _) => Content::Finished,
            (_, true) => Content::Unfinished,
            _ => Content::Nothing,
        }
    }
}

/// `dir`, or with a number behind it if `is_taken` says that a finished run has it. Worker 0 decides for all.
pub fn free(dir: PathBuf, is_taken: impl Fn(&Path) -> bool, team: &Team) -> Outcome<PathBuf> {
    let numbered = |number: u32| PathBuf::from(format!("{}-{number}", dir.display()));
    let free = match is_taken(&dir) {
        true => (2..).map(numbered).find(|dir| !is_taken(dir)).expect("numbers do not end"),
        false => dir.clone(),
    };
    team.as_worker_0_sees(free)
}

/// Empties the folders, which are locked. A run in one of them is replaced only by `overwrite`. All of them, on all machines, are
/// looked at before the first is emptied.
pub fn prepare(job: &Job, dirs: &[PathBuf], overwrite: bool, team: &Team) -> Outcome {
    // An unfinished one is told of first: somebody may want to go on with it.
    let content = |wanted| dirs.iter().filter(move |dir| Content::of(dir) == wanted);
    let there = content(Content::Unfinished).chain(content(Content::Finished));
    let may = || {
        dirs.iter().try_for_each(|dir| not_its_origin(job, dir))?;
        if overwrite { Ok(()) } else { there.clone().try_for_each(|dir| may_replace(dir, &team.launch())) }
    };
    team.agree(may().map_err(Failure::Usage))?;
    team.everywhere(|| dirs.iter().try_for_each(|dir| empty(dir)).map_err(Failure::Usage))
}

fn not_its_origin(job: &Job, dir: &Path) -> Result<()> {
    let Some(from) = &job.spec.from else { return Ok(()) };
    let same = from.canonicalize().ok() == Some(dir.canonicalize().unwrap_or_else(|_| dir.to_owned()));
    ensure!(
        !same,
        "invalid --from {}: expected another folder than --out, because the new run would replace it",
        from.display()
    );
    Ok(())
}

/// `launch` is what the hint to resume begins with.
fn may_replace(dir: &Path, launch: &str) -> Result<()> {
    let shown = dir.display();
    match Content::of(dir) {
        Content::Nothing => Ok(()),
        Content::Unfinished => bail!(
            "{shown} holds a run that was interrupted. Resume it by `{launch}thinwire train --resume {shown}` (or with a whole \
             comparison by `compare --resume`), take another folder by --out, or start over by --overwrite"
        ),
        Content::Finished => bail!(
            "{shown} holds a finished run. Take another folder by --out, replace the run by --overwrite, or make it longer by \
             `{launch}thinwire train --resume {shown} --steps N`"
        ),
    }
}

/// A folder without a run.
pub fn empty(dir: &Path) -> Result<()> {
    let gone = |old: &Path, removed: std::io::Result<()>| match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).with_context(|| old.display().to_string()),
        _ => Ok(()), // never there, or another worker was faster
    };
    for old in ["checkpoint", "plots", crate::tensorboard::FOLDER].map(|old| dir.join(old)) {
        gone(&old, std::fs::remove_dir_all(&old))?;
    }
    for old in ["summary.json", "report.html", "config.toml", crate::names::FILE, crate::journal::METRICS]
        .map(|old| dir.join(old))
    {
        gone(&old, std::fs::remove_file(&old))?;
    }
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_as_long_as_it_lives() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("run");
        let held = lock(&dir).unwrap();
        let error = lock(&dir).unwrap_err().to_string();
        for word in ["run", "another run", &format!("process {}", std::process::id()), "--out"] {
            assert!(error.contains(word), "{error}");
        }
        drop(held);
        lock(&dir).unwrap();
    }

    #[test]
    fn the_default_folder_is_numbered() {
        let taken = ["runs/gpt", "runs/gpt-2"].map(PathBuf::from);
        let free = |dir: &str| free(PathBuf::from(dir), |dir| taken.iter().any(|taken| taken == dir), &Team::Threads);
        assert_eq!(free("runs/gpt").unwrap(), Path::new("runs/gpt-3"));
        assert_eq!(free("runs/bert").unwrap(), Path::new("runs/bert"));
    }
}
