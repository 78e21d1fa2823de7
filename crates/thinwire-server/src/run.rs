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
//! A round is made in this order: its mean, its inputs on the disk, its record on the disk (**now it has happened**), the replica.
//! Whoever dies between two of these comes back before the round or after it, with the E of that moment: the state is the last
//! snapshot and what the log says since.

#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use crate::frames::{self, Frames, write_whole};
use crate::inputs::{Entry, replay};
use crate::log::{Counted, Log, Record, Shelf, numbered};
use crate::replica::{self, From, Next, Replica};
use crate::snapshot::served;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use thinwire::Config;
use thinwire::exchange::Owner;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 4] = *b"TWIN";
/// Who has which seat; the hall's to write.
pub const MEMBERS: &str = "members.json";
const FORMAT: &str = "thinwire-run";
const VERSION: u32 = 1;

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
}

/// How much is kept on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Rounds that a worker may have missed and still follow from where it was.
    pub keep: u64,
    /// Rounds between snapshots.
    pub snapshot_every: u64,
}

pub struct Run {
    dir: PathBuf,
    pub spec: Spec,
    retention: Retention,
    owner: Owner,
    log: Log,
    inputs: Frames,
    replica: Replica,
    next: Next,
    /// One more than the last round that counted each slot.
    counted: BTreeMap<u32, u64>,
    /// The rounds of the last snapshot.
    snapshot: u64,
    /// Nobody else may write here.
    _lock: File,
}

/// What stands beside E on the disk.
#[derive(Serialize, Deserialize)]
struct Beside {
    counted: BTreeMap<u32, u64>,
}

/// A name that no other run has.
fn new_id() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seed = format!("{now:?} {}", std::process::id());
    format!("{:016x}", xxh3_64(seed.as_bytes()))
}

impl Run {
    /// Whether `dir` holds a run.
    pub fn exists(dir: &Path) -> bool {
        dir.join("run.json").exists()
    }

    /// Whether a run may start in `dir`: in a new folder, an empty one, or where another start came to nothing.
    pub fn check_folder(dir: &Path) -> Result<()> {
        let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
        let ours = ["log-", "inputs-", "snapshot-", "residue-", MEMBERS, "lock"];
        for entry in entries {
            let name = entry.map_err(Error::io(dir))?.file_name().to_string_lossy().into_owned();
            if !ours.iter().any(|prefix| name.starts_with(prefix)) {
                return Err(Error::Usage(format!(
                    "{}: has other things in it ({name}); a run wants a folder of its own",
                    dir.display()
                )));
            }
        }
        Ok(())
    }

    /// Removes the run in `dir`, if nobody serves it.
    pub fn remove_from(dir: &Path) -> Result<()> {
        let _lock = lock(dir)?;
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
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let lock = lock(dir)?;
        if Run::exists(dir) {
            return Err(Error::Usage(format!("{} holds a run already", dir.display())));
        }
        // Of a start that came to nothing.
        for prefix in ["log", "inputs", "snapshot", "residue"] {
            for (_, path) in numbered(dir, prefix)? {
                std::fs::remove_file(&path).map_err(Error::io(&path))?;
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
        };
        let mut replica = Replica::start(&spec.config, initial.len(), From::Parameters(initial), workers, steps)?;
        let start = replica::state_before(&spec.config, initial, workers)?;
        let mut owner = Owner::new(&spec.config, initial.len())?;
        write_snapshot(dir, 0, &start, owner.residue(), &BTreeMap::new())?;
        let (log, inputs) = (Log::create(dir)?, Frames::create(inputs_path(dir, 0), MAGIC)?);
        let next = replica.what_next()?;
        let text = serde_json::to_string_pretty(&spec).expect("plain data");
        write_whole(&dir.join("run.json"), text.as_bytes())?; // last: now there is a run
        let (dir, counted) = (dir.to_owned(), BTreeMap::new());
        Ok(Run { dir, spec, retention, owner, log, inputs, replica, next, counted, snapshot: 0, _lock: lock })
    }

    /// Comes back to the run in `dir`, with every round that anyone has seen.
    pub fn open(dir: &Path, retention: Retention) -> Result<Run> {
        let lock = lock(dir)?;
        let spec = read_spec(dir)?;
        let log = Log::open(dir)?;
        let (snapshot, state, residue, mut counted) = newest_snapshot(dir, &spec)?;
        if snapshot > log.next() || snapshot < log.shelf().oldest() {
            let problem = format!(
                "its last snapshot is of {snapshot} rounds, and its log has {} to {}",
                log.shelf().oldest(),
                log.next()
            );
            return Err(Error::damaged(dir, problem));
        }
        let mut owner = Owner::new(&spec.config, spec.parameters)?;
        if residue.len() != owner.residue().len() {
            return Err(Error::damaged(dir, "its residue has another length than its parameters"));
        }
        owner.residue().copy_from_slice(&residue);
        let path = inputs_path(dir, snapshot);
        let (mut inputs, places) = match path.exists() {
            true => Frames::open(path.clone(), MAGIC, true)?,
            false => (Frames::create(path.clone(), MAGIC)?, Vec::new()),
        };
        let from = From::Snapshot(&state);
        let mut replica = Replica::start(&spec.config, spec.parameters, from, spec.workers, spec.steps)?;
        let mut next = replica.what_next()?;
        let mut found = places.iter().peekable();
        for round in snapshot..log.next() {
            let record = log.shelf().read(round)?.expect("a round of the log");
            let Next::Round(expected) = &next else {
                return Err(Error::damaged(dir, format!("round {round} comes after the end of the run")));
            };
            if owner.is_coarse(expected)? {
                let place = found.next_if(|place| place.number == round);
                let place =
                    place.ok_or_else(|| Error::damaged(&path, format!("the inputs of round {round} are missing")))?;
                let entry = frames::read(&path, *place)?;
                replay(&mut owner, expected, &record, &entry).map_err(|problem| Error::damaged(&path, problem))?;
            }
            count(&mut counted, &record);
            replica.hear(record.message.to_vec(), false)?;
            next = replica.what_next()?;
        }
        if let Some(place) = found.next() {
            inputs.cut(*place)?; // of a round that did not come to be
        }
        let dir = dir.to_owned();
        let run = Run { dir, spec, retention, owner, log, inputs, replica, next, counted, snapshot, _lock: lock };
        run.remove(|number| number != snapshot)?;
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
        &self.next
    }

    /// One more than the last round that counted `slot`.
    pub fn counted(&self, slot: u32) -> u64 {
        self.counted.get(&slot).copied().unwrap_or(0)
    }

    /// Makes the next round of these messages, which [`Owner::check`] has found right, by slot. When this returns the round has
    /// happened, for everyone; when it fails for want of room on the disk it has not, for no one, and may be tried again.
    pub fn commit(&mut self, messages: &BTreeMap<u32, Vec<u8>>) -> Result<Record> {
        let Next::Round(expected) = &self.next else { return Err(Error::Usage("the run is at its end".to_owned())) };
        let (slots, messages): (Vec<_>, Vec<_>) =
            messages.iter().map(|(slot, message)| (*slot, message.clone())).unzip();
        let counts = slots.iter().zip(&messages);
        let counted = counts.map(|(slot, message)| Counted { slot: *slot, digest: xxh3_64(message) }).collect();
        let round = self.log.next();
        let mean = self.owner.mean(expected, &messages, |i| slots[i] as usize)?;
        let coarse = self.owner.is_coarse(expected)?;
        let before = self.inputs.length();
        let entry = match coarse {
            true => Some(self.inputs.append(round, &Entry::of(&messages, self.owner.next_residue()).parts())?),
            false => None,
        };
        let record = Record { round, counted, message: mean.into() };
        if let Err(error) = self.log.append(&record) {
            if let Some(place) = entry {
                self.inputs.cut(place)?; // else the next try would find it there
                debug_assert_eq!(self.inputs.length(), before);
            }
            return Err(error);
        }
        // It has happened. What fails from here on is found again when the server comes back.
        self.owner.keep(expected)?;
        count(&mut self.counted, &record);
        let due = self.rounds() - self.snapshot >= self.retention.snapshot_every;
        let state = self.replica.hear(record.message.to_vec(), due)?;
        self.next = self.replica.what_next()?;
        if let Some(state) = state
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
        let (snapshot, state, ..) = newest_snapshot(&self.dir, &self.spec)?;
        let (spec, from) = (&self.spec, From::Snapshot(&state));
        let mut replica = Replica::start(&spec.config, spec.parameters, from, spec.workers, spec.steps)?;
        let mut state = None;
        for round in snapshot..self.rounds() {
            replica.what_next()?;
            let record = self.shelf().read(round)?.expect("a round of the log");
            state = replica.hear(record.message.to_vec(), round + 1 == self.rounds())?;
        }
        self.keep_snapshot(&state.expect("at least one round"))
    }

    fn keep_snapshot(&mut self, state: &[u8]) -> Result<()> {
        let rounds = self.rounds();
        let inputs = Frames::create(inputs_path(&self.dir, rounds), MAGIC);
        let written = inputs.and_then(|inputs| {
            write_snapshot(&self.dir, rounds, state, self.owner.residue(), &self.counted)?;
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
        self.remove(|number| number != rounds)?;
        self.log.drop_before(rounds.saturating_sub(self.retention.keep))
    }

    /// Removes the snapshots of these numbers of rounds, and what belongs to them.
    fn remove(&self, which: impl Fn(u64) -> bool) -> Result<()> {
        for prefix in ["snapshot", "residue", "inputs"] {
            for (number, path) in numbered(&self.dir, prefix)? {
                if which(number) {
                    std::fs::remove_file(&path).map_err(Error::io(&path))?;
                }
            }
        }
        Ok(())
    }

    /// Removes what a server that died was writing.
    fn remove_unfinished(&self) -> Result<()> {
        for entry in std::fs::read_dir(&self.dir).map_err(Error::io(&self.dir))? {
            let path = entry.map_err(Error::io(&self.dir))?.path();
            if path.to_string_lossy().ends_with(frames::UNFINISHED) {
                std::fs::remove_file(&path).map_err(Error::io(&path))?;
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
        self.owner.residue()
    }
}

fn count(counted: &mut BTreeMap<u32, u64>, record: &Record) {
    for worker in &record.counted {
        counted.insert(worker.slot, record.round + 1);
    }
}

fn remove_if_there(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
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
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    let foreign = |problem: String| Error::damaged(&path, format!("not a run of ours: {problem}"));
    let value = serde_json::from_str::<serde_json::Value>(&text).map_err(|error| foreign(error.to_string()))?;
    if value["format"] != FORMAT || value["version"] != VERSION {
        return Err(foreign(format!("format {}, version {}", value["format"], value["version"])));
    }
    serde_json::from_value(value).map_err(|error| foreign(error.to_string()))
}

fn inputs_path(dir: &Path, rounds: u64) -> PathBuf {
    dir.join(format!("inputs-{rounds:012}.bin"))
}

/// Writes a snapshot and what belongs to it; the state last, for it is looked for first.
fn write_snapshot(dir: &Path, rounds: u64, state: &[u8], residue: &[f32], counted: &BTreeMap<u32, u64>) -> Result<()> {
    let beside = serde_json::to_vec(&Beside { counted: counted.clone() }).expect("plain data");
    let parts = [&(beside.len() as u64).to_le_bytes()[..], &beside, bytemuck::cast_slice(residue)].concat();
    for (name, bytes, suffix) in [("residue", &parts[..], "bin"), ("snapshot", state, "safetensors")] {
        let digest = xxh3_64(bytes);
        write_whole(&dir.join(format!("{name}-{rounds:012}.{digest:016x}.{suffix}")), bytes)?;
    }
    Ok(())
}

/// The bytes of a file whose name has their digest.
fn read_digested(path: &Path) -> Result<Vec<u8>> {
    let bytes = std::fs::read(path).map_err(Error::io(path))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match name.split('.').nth(1) == Some(&format!("{:016x}", xxh3_64(&bytes))) {
        true => Ok(bytes),
        false => Err(Error::damaged(path, "its contents are not those that its name tells")),
    }
}

/// The newest snapshot's file.
pub fn snapshot_file(dir: &Path) -> Result<(u64, PathBuf)> {
    let newest = numbered(dir, "snapshot")?.pop();
    newest.ok_or_else(|| Error::damaged(dir, "there is no snapshot"))
}

type Snapshot = (u64, Vec<u8>, Vec<f32>, BTreeMap<u32, u64>);

fn newest_snapshot(dir: &Path, spec: &Spec) -> Result<Snapshot> {
    let (rounds, path) = snapshot_file(dir)?;
    let state = read_digested(&path)?;
    let beside = numbered(dir, "residue")?.into_iter().find(|(number, _)| *number == rounds);
    let (_, path) = beside.ok_or_else(|| Error::damaged(dir, format!("there is no residue of {rounds} rounds")))?;
    let bytes = read_digested(&path)?;
    let malformed = || Error::damaged(&path, format!("malformed, for a run of {} parameters", spec.parameters));
    let (length, rest) = bytes.split_first_chunk().ok_or_else(malformed)?;
    let length = u64::from_le_bytes(*length) as usize;
    let notes = rest.get(..length).ok_or_else(malformed)?;
    let beside = serde_json::from_slice::<Beside>(notes).map_err(|_| malformed())?;
    let values = rest[length..].chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().expect("four bytes")));
    Ok((rounds, state, values.collect(), beside.counted))
}
