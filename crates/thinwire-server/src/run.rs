//! A run on disk: what a server must not lose.
//!
//! | file | what is in it |
//! |---|---|
//! | `run.json` | what the run is: its name, its configuration, how many parameters, workers, steps |
//! | `log-N.bin` | the rounds from N on, [`log`](crate::log) |
//! | `snapshot-N.D.safetensors` | the shared state after N rounds, [`snapshot`](crate::snapshot); D is its XXH3 |
//! | `residue-N.D.bin` | E, the server's residue, after N rounds, and which worker was counted when |
//! | `inputs-N.bin` | for each round since snapshot N what E needs to be made again: the messages it counts, or E itself if that is shorter |
//! | `members.json` | who has which seat |
//!
//! `run.json` and `members.json` carry checksums, `sealed`. There are several snapshots with the log since the oldest:
//! if the newest is damaged, the one before it and the log lead to the same place.
//!
//! A round is made in this order: its mean, its inputs on the disk, its record on the disk (**now it has happened**), the replica.
//! Whoever dies between two of these comes back before the round or after it, with the E of that moment: the state is a
//! snapshot and what the log says since.

#[cfg(test)]
mod damage;
#[cfg(test)]
mod power;
#[cfg(test)]
pub(crate) mod tests;

use crate::disk::{self, File};
use crate::error::{Error, Result};
use crate::frames::{self, Frames, write_whole};
use crate::inputs::{self, Entry, Inputs};
use crate::judge::{Judge, Memory};
use crate::kept::{self, Damaged, Kept};
use crate::log::{Counted, Log, Record, Shelf, back_to, numbered};
use crate::replica::{self, From, Next, Replica};
use crate::snapshot::served;
use crate::state::State;
use crate::{back, sealed};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use thinwire::Config;
use xxhash_rust::xxh3::xxh3_64;

/// Who has which seat; the hall's to write.
pub const MEMBERS: &str = "members.json";
const FORMAT: &str = "thinwire-run";
const VERSION: u32 = 2;
/// Is there while a run is being made, and beside no other: what lies with it is nobody's.
const STARTING: &str = "starting";
/// What files of a run begin with.
const FILES: [&str; 4] = ["log", "inputs", "snapshot", "residue"];

/// What a run is, the same from its first round to its last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub format: String,
    pub version: u32,
    /// By which workers know it again.
    pub id: String,
    /// Resolved.
    pub config: Config,
    pub parameters: usize,
    /// How many workers it is made for; there may be fewer, or more.
    pub workers: usize,
    pub steps: u64,
    /// What the program has to tell the programs that join.
    pub job: String,
    /// What it was called before it was taken back to an earlier round.
    #[serde(default)]
    pub before: Vec<String>,
    /// The round that it was taken back to, if it was, and whether files are still to be cut for that.
    #[serde(default)]
    pub back_to: Option<u64>,
    #[serde(default)]
    pub going_back: bool,
}

/// How much is kept on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Rounds that a worker may have missed and still follow from where it was.
    pub keep: u64,
    /// Rounds between snapshots.
    pub snapshot_every: u64,
    /// Snapshots, with the log since the oldest: if the newest is damaged, the one before it counts.
    pub snapshots: usize,
}

pub struct Run {
    dir: PathBuf,
    pub spec: Spec,
    retention: Retention,
    state: State,
    /// Which messages are outliers; it is saved with the snapshots.
    judge: Arc<Mutex<Judge>>,
    log: Log,
    inputs: Frames,
    /// The rounds of the last snapshot.
    snapshot: u64,
    /// Nobody else may write here.
    _lock: File,
}

/// A name that no other run has.
pub(crate) fn new_id() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seed = format!("{now:?} {}", std::process::id());
    format!("{:016x}", xxh3_64(seed.as_bytes()))
}

impl Run {
    /// Whether `dir` holds a run.
    pub fn exists(dir: &Path) -> bool {
        disk::exists(&dir.join("run.json")).unwrap_or(true) // where nobody can tell, no other may start
    }

    /// Whether files of a run are in `dir`.
    pub fn has_remains(dir: &Path) -> Result<bool> {
        Ok(disk::exists(dir).map_err(Error::io(dir))? && remains(dir)?.is_some())
    }

    /// Whether a run may start in `dir`: in a new folder, an empty one, or where another start came to nothing.
    pub fn check_folder(dir: &Path) -> Result<()> {
        let Ok(entries) = disk::list(dir) else { return Ok(()) };
        let ours = ["log-", "inputs-", "snapshot-", "residue-", MEMBERS, "lock", STARTING, "run.json"];
        for entry in entries {
            let name = entry.file_name().unwrap_or_default().to_string_lossy();
            if !ours.iter().any(|prefix| name.starts_with(prefix)) {
                return Err(Error::Usage(format!(
                    "{}: has other things in it ({name}); a run wants a folder of its own",
                    dir.display()
                )));
            }
        }
        check_remains(dir)
    }

    /// Removes the run in `dir`, if nobody serves it.
    pub fn remove_from(dir: &Path) -> Result<()> {
        let _lock = lock(dir)?;
        write_whole(&dir.join(STARTING), b"")?;
        remove_if_there(&dir.join("run.json"))?; // now there is none; the next start removes the rest
        remove_if_there(&dir.join(MEMBERS))
    }

    /// Starts a run in `dir`.
    pub fn create(
        dir: &Path,
        config: &Config,
        initial: &[f32],
        workers: usize,
        steps: u64,
        job: String,
        retention: Retention,
    ) -> Result<Run> {
        let config = served(config)?;
        make_folder(dir)?;
        let lock = lock(dir)?;
        if Run::exists(dir) {
            return Err(Error::Usage(format!("{} holds a run already", dir.display())));
        }
        check_remains(dir)?;
        write_whole(&dir.join(STARTING), b"")?; // from here to run.json, what lies here is of a start that came to nothing
        for prefix in FILES {
            for (_, path) in numbered(dir, prefix)? {
                disk::remove(&path).map_err(Error::io(&path))?;
            }
        }
        remove_if_there(&dir.join(MEMBERS))?;
        let spec = Spec {
            format: FORMAT.to_owned(),
            version: VERSION,
            id: new_id(),
            config,
            parameters: initial.len(),
            workers,
            steps,
            job,
            before: Vec::new(),
            back_to: None,
            going_back: false,
        };
        let start = replica::state_before(&spec.config, initial, workers)?;
        let mut owner = spec.config.decide()?.owner(initial.len())?;
        let judge = Judge::new(&spec.config.decide()?);
        kept::write(dir, 0, &start, owner.residual(), &BTreeMap::new(), Memory::default())?;
        let (log, inputs) = (Log::create(dir)?, inputs::create(dir, 0)?);
        write_spec(dir, &spec)?; // last: now there is a run
        remove_if_there(&dir.join(STARTING))?;
        let residue = owner.residual().to_vec();
        let kept = Kept { rounds: 0, state: start, residue, counted: BTreeMap::new(), norms: Memory::default() };
        let state = State::start(dir, &spec, &kept)?;
        let judge = Arc::new(Mutex::new(judge));
        Ok(Run { dir: dir.to_owned(), spec, retention, state, judge, log, inputs, snapshot: 0, _lock: lock })
    }

    /// Comes back to the run in `dir`, with every round that anyone has seen.
    pub fn open(dir: &Path, retention: Retention) -> Result<Run> {
        let lock = lock(dir)?;
        Run::open_locked(dir, retention, lock)
    }

    /// Comes back to the run in `dir` as it was after `rounds` rounds; those after them are dropped.
    pub fn open_back_to(dir: &Path, retention: Retention, rounds: u64) -> Result<Run> {
        let lock = lock(dir)?;
        back::go_back(dir, rounds)?;
        Run::open_locked(dir, retention, lock)
    }

    fn open_locked(dir: &Path, retention: Retention, lock: File) -> Result<Run> {
        // Whoever died here may have made files whose names are not on the disk yet.
        disk::sync_folder(dir).map_err(Error::io(dir))?;
        let spec = back::finish(dir, read_spec(dir)?)?;
        remove_if_there(&dir.join(STARTING))?;
        let mut log = Log::open(dir)?;
        let (oldest, whole) = (log.shelf().oldest(), log.next());
        let (found, damaged) = kept::newest(dir, spec.parameters, oldest..=whole)?;
        let Some(kept) = found else { return Err(no_way(dir, &log, damaged)) };
        let files = Inputs::open(dir, kept.rounds)?;
        let mut state = State::start(dir, &spec, &kept)?;
        state.replay(dir, &log.shelf(), files.files(), whole)?;
        while let Some(record) = state.make_again(files.files())? {
            tracing::warn!("round {} was not whole in the log; it is made again from its inputs", record.round);
            log.append(&record)?;
            state.hear(&record)?;
        }
        let newest = kept::newest_file(dir)?.0;
        if newest > log.next() {
            let problem =
                format!("its last snapshot is of {newest} rounds, and its log has {oldest} to {}", log.next());
            return Err(Error::damaged(dir, back_to(&problem, log.next())));
        }
        log.set_damaged_aside()?;
        kept::set_damaged_aside(dir, &damaged, kept.rounds)?;
        let (inputs, snapshot) = (files.growing(log.next())?, kept.rounds);
        let mut judge = Judge::new(&spec.config.decide()?);
        judge.recall(&kept.norms, dir)?;
        let judge = Arc::new(Mutex::new(judge));
        let run = Run { dir: dir.to_owned(), spec, retention, state, judge, log, inputs, snapshot, _lock: lock };
        run.remove_older()?;
        run.remove_unfinished()?;
        Ok(run)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn shelf(&self) -> Shelf {
        self.log.shelf()
    }

    /// Rounds so far.
    pub fn rounds(&self) -> u64 {
        self.log.next()
    }

    /// What the messages of the next round must look like, or the end.
    pub fn next(&self) -> &Next {
        &self.state.next
    }

    /// It judges messages as they come, for the hall.
    pub fn judge(&self) -> Arc<Mutex<Judge>> {
        Arc::clone(&self.judge)
    }

    /// One more than the last round that counted `slot`.
    pub fn counted(&self, slot: u32) -> u64 {
        self.state.counted.get(&slot).copied().unwrap_or(0)
    }

    /// Makes the next round of these messages, which the check of an owner has found right, by slot. `digests` are of what was sent,
    /// where that is not what counts. When this returns the round has happened, for everyone; when it fails for want of room on the
    /// disk it has not, for no one, and may be tried again.
    pub fn commit(&mut self, messages: &BTreeMap<u32, Vec<u8>>, digests: &BTreeMap<u32, u64>) -> Result<Record> {
        let Next::Round(expected) = &self.state.next else {
            return Err(Error::Usage("the run is at its end".to_owned()));
        };
        let (slots, messages): (Vec<_>, Vec<_>) =
            messages.iter().map(|(slot, message)| (*slot, message.clone())).unzip();
        let digest = |(slot, message): (&u32, &Vec<u8>)| digests.get(slot).copied().unwrap_or_else(|| xxh3_64(message));
        let digests = slots.iter().zip(&messages).map(digest).collect::<Vec<_>>();
        let counts = slots.iter().zip(&digests);
        let counted = counts.map(|(slot, digest)| Counted { slot: *slot, digest: *digest }).collect();
        let round = self.log.next();
        let mean = self.state.owner.mean(expected, &messages, |i| slots[i] as usize)?;
        let coarse = self.state.owner.is_coarse(expected)?;
        let before = self.inputs.length();
        let entry = match coarse {
            true => {
                let entry = Entry::of(&slots, &digests, &messages, self.state.owner.next_residual());
                Some(self.inputs.append(round, &entry.parts())?)
            }
            false => None,
        };
        let record = Record { round, counted, message: mean.into() };
        if let Err(error) = self.log.append(&record) {
            // After any other error nobody tries again, and the record may be there: its inputs stay.
            if let (Some(place), Error::NoRoom { .. }) = (entry, &error) {
                self.inputs.cut(place)?; // else the next try would find it there
                debug_assert_eq!(self.inputs.length(), before);
            }
            return Err(error);
        }
        // It has happened. What fails from here on is found again when the server comes back.
        self.state.owner.keep(expected)?;
        let due = self.rounds() - self.snapshot >= self.retention.snapshot_every;
        let taken = self.state.hear_and_take(&record, due)?;
        if let Some(state) = taken
            && let Err(error) = self.keep_snapshot(&state)
        {
            tracing::warn!(%error, "no snapshot; the log goes on");
        }
        Ok(record)
    }

    /// Writes the state after the last round, whatever the retention says, unless it is there already.
    pub fn snapshot_now(&mut self) -> Result<()> {
        if self.snapshot == self.rounds() {
            return Ok(());
        }
        // The replica is in the middle of the next step by now: another one goes there from the last snapshot.
        let range = self.shelf().oldest()..=self.rounds();
        let (kept, damaged) = kept::newest(&self.dir, self.spec.parameters, range)?;
        let kept = kept.ok_or_else(|| no_way(&self.dir, &self.log, damaged))?;
        let (spec, from) = (&self.spec, From::Snapshot(&kept.state));
        let mut replica = Replica::start(&spec.config, spec.parameters, from, spec.workers, spec.steps)?;
        let mut state = None;
        for round in kept.rounds..self.rounds() {
            replica.what_next()?;
            let record = self.shelf().read(round)?.expect("a round of the log");
            state = replica.hear(record.message.to_vec(), round + 1 == self.rounds())?;
        }
        self.keep_snapshot(&state.expect("at least one round"))
    }

    fn keep_snapshot(&mut self, state: &[u8]) -> Result<()> {
        let rounds = self.rounds();
        let inputs = inputs::create(&self.dir, rounds);
        let written = inputs.and_then(|inputs| {
            let norms = self.judge.lock().unwrap_or_else(PoisonError::into_inner).memory();
            kept::write(&self.dir, rounds, state, self.state.owner.residual(), &self.state.counted, norms)?;
            Ok(inputs)
        });
        match written {
            // The inputs of the rounds to come lie with the newest snapshot, so both are there from now on, or neither.
            Ok(inputs) => (self.inputs, self.snapshot) = (inputs, rounds),
            Err(error) => {
                self.remove(|number| number == rounds)?;
                return Err(error);
            }
        }
        self.log.start_segment()?;
        let oldest = self.remove_older()?;
        self.log.drop_before(oldest.min(rounds.saturating_sub(self.retention.keep)))
    }

    /// Removes the snapshots that need not be kept any longer; the rounds of the oldest that is.
    fn remove_older(&self) -> Result<u64> {
        let kept = numbered(&self.dir, "snapshot")?.into_iter().map(|(number, _)| number).collect::<Vec<_>>();
        let oldest = kept.get(kept.len().saturating_sub(self.retention.snapshots.max(1))).copied().unwrap_or(0);
        self.remove(|number| number < oldest)?;
        // They belong to a snapshot that was not finished. Inputs of a damaged snapshot stay: the older snapshot continues with them.
        for (number, path) in numbered(&self.dir, "inputs")? {
            let empty = disk::length(&path).is_ok_and(|length| length == 0);
            if empty && !kept.contains(&number) && path != self.inputs.path() {
                disk::remove(&path).map_err(Error::io(&path))?;
            }
        }
        for (_, path) in numbered(&self.dir, "residue")?.iter().filter(|(number, _)| !kept.contains(number)) {
            disk::remove(path).map_err(Error::io(path))?;
        }
        Ok(oldest)
    }

    /// Removes the snapshots of these numbers of rounds, and what belongs to them.
    fn remove(&self, which: impl Fn(u64) -> bool) -> Result<()> {
        for prefix in ["snapshot", "residue", "inputs"] {
            for (number, path) in numbered(&self.dir, prefix)? {
                if which(number) {
                    disk::remove(&path).map_err(Error::io(&path))?;
                }
            }
        }
        Ok(())
    }

    /// Removes what a server that died was writing.
    fn remove_unfinished(&self) -> Result<()> {
        for path in disk::list(&self.dir).map_err(Error::io(&self.dir))? {
            if path.to_string_lossy().ends_with(frames::UNFINISHED) {
                disk::remove(&path).map_err(Error::io(&path))?;
            }
        }
        Ok(())
    }

    #[cfg(test)]
    fn set_room(&mut self, inputs: Option<u64>, log: Option<u64>) {
        self.inputs.room = inputs;
        self.log.set_room(log);
    }

    /// E.
    pub fn residue(&mut self) -> &[f32] {
        self.state.owner.residual()
    }
}

/// Why there is no state to start from.
fn no_way(dir: &Path, log: &Log, damaged: Damaged) -> Error {
    let newest = damaged.into_iter().next();
    match (newest, log.damage()) {
        (Some((_, error)), _) => error,
        (None, Some(damage)) => Error::damaged(dir, &damage.problem),
        (None, None) => {
            let (oldest, next) = (log.shelf().oldest(), log.next());
            Error::damaged(dir, format!("there is no snapshot for its log, which has the rounds {oldest} to {next}"))
        }
    }
}

/// Refuses a folder with a run's files and no word of what they are: a new run would delete them.
fn check_remains(dir: &Path) -> Result<()> {
    let starting = dir.join(STARTING);
    let known = Run::exists(dir) || disk::exists(&starting).map_err(Error::io(&starting))?;
    let Some(path) = remains(dir)?.filter(|_| !known) else { return Ok(()) };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let problem =
        format!("expected run.json beside {name}, found none (put it back from a copy, or start over by --overwrite)");
    Err(Error::damaged(dir, problem))
}

/// A file of a run in `dir`, if there is one.
fn remains(dir: &Path) -> Result<Option<PathBuf>> {
    for prefix in FILES {
        if let Some((_, path)) = numbered(dir, prefix)?.pop() {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Makes the folder of a run. Its name is on the disk before anything is in it, and so are those of folders made for it: else a power
/// cut could take all of them, with a run that workers have seen.
fn make_folder(dir: &Path) -> Result<()> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && disk::exists(folder).is_ok_and(|there| !there);
    let missing = dir.ancestors().take_while(is_missing).count();
    disk::create_folder(dir).map_err(Error::io(dir))?;
    // The folder itself also if it was there: whoever made it may have died before this.
    for folder in dir.ancestors().take(missing.max(1)).filter_map(Path::parent) {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        match disk::sync_folder(folder) {
            // One may be allowed to pass through a folder, and not to read it.
            Err(error) if error.kind() != std::io::ErrorKind::PermissionDenied => return Err(Error::io(folder)(error)),
            _ => {}
        }
    }
    Ok(())
}

fn remove_if_there(path: &Path) -> Result<()> {
    match disk::remove(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path)(error)),
        _ => Ok(()),
    }
}

fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let file = File::create(&path).map_err(Error::io(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(Error::Usage(format!("{}: another server runs here", dir.display())))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(Error::io(&path)(error)),
    }
}

/// What the run in `dir` is.
pub fn read_spec(dir: &Path) -> Result<Spec> {
    let path = dir.join("run.json");
    let (value, sealed) = sealed::read(&path)?;
    parse_spec(&path, value, sealed)
}

/// The same of the JSON in the file at `path`, which had a checksum or none.
#[doc(hidden)]
pub fn parse_spec(path: &Path, value: serde_json::Value, sealed: bool) -> Result<Spec> {
    let foreign = |problem: String| Error::damaged(path, format!("not a run of ours: {problem}"));
    if value["format"] == FORMAT && value["version"] == 1 {
        let problem = "it was written by an older version of thinwire, whose messages this one cannot read; \
                       finish it with that version, or start anew with --overwrite";
        return Err(Error::damaged(path, problem));
    }
    if value["format"] != FORMAT || value["version"] != VERSION || !sealed {
        let sum = if sealed { "" } else { ", no checksum" };
        return Err(foreign(format!("format {}, version {}{sum}", value["format"], value["version"])));
    }
    serde_json::from_value(value).map_err(|error| foreign(error.to_string()))
}

pub(crate) fn write_spec(dir: &Path, spec: &Spec) -> Result<()> {
    sealed::write(&dir.join("run.json"), &Spec { version: VERSION, ..spec.clone() })
}
