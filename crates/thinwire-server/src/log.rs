//! The replication log: every round that was, in order, as the coded mean that everyone applies. About a bit a parameter.
//!
//! It lies in segments, `log-N.bin` with round N first; a snapshot starts a new one, and whole segments are dropped when nobody is
//! owed them any more. A round is there when its frame is on the disk, and not before: see [`frames`].

use crate::disk;
use crate::error::{Error, Result};
use crate::frames::{self, Frames, Place, Scan};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MAGIC: [u8; 4] = *b"TWLG";

/// A worker whose message a round counts, and the XXH3 of that message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub slot: u32,
    pub digest: u64,
}

/// One round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub round: u64,
    /// In the order of slots, which is the order of the sum.
    pub counted: Vec<Counted>,
    /// The message down, as the engine knows it.
    pub message: bytes::Bytes,
}

impl Record {
    /// Whether it counts the message of `slot` that has this digest.
    pub fn counts(&self, slot: u32, digest: u64) -> bool {
        self.counted.contains(&Counted { slot, digest })
    }

    /// What stands before the message in its frame.
    #[doc(hidden)]
    pub fn head(&self) -> Vec<u8> {
        let mut head = (self.counted.len() as u32).to_le_bytes().to_vec();
        for counted in &self.counted {
            head.extend(counted.slot.to_le_bytes());
            head.extend(counted.digest.to_le_bytes());
        }
        head
    }

    /// The record in a frame of these contents, if they are one.
    #[doc(hidden)]
    pub fn parse(round: u64, mut bytes: Vec<u8>) -> Option<Record> {
        let count = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
        let head = 4 + count.checked_mul(12)?;
        let each = bytes.get(4..head)?.chunks_exact(12).map(|entry| Counted {
            slot: u32::from_le_bytes(entry[..4].try_into().expect("four bytes")),
            digest: u64::from_le_bytes(entry[4..].try_into().expect("eight bytes")),
        });
        let counted = each.collect();
        let message = bytes::Bytes::from(bytes.split_off(head));
        Some(Record { round, counted, message })
    }
}

/// Where every round lies that can still be had.
#[derive(Default)]
struct Index {
    /// The first rounds of the segments.
    segments: VecDeque<u64>,
    places: VecDeque<Place>,
    /// The round of the first place, or the next round if there is none.
    oldest: u64,
}

/// Reads rounds while others are appended.
#[derive(Clone)]
pub struct Shelf {
    dir: PathBuf,
    index: Arc<Mutex<Index>>,
}

impl Shelf {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first round that can be had.
    pub fn oldest(&self) -> u64 {
        self.index().oldest
    }

    /// A round; none if it is no longer there, or not yet.
    pub fn read(&self, round: u64) -> Result<Option<Record>> {
        let found = {
            let index = self.index();
            let place = round.checked_sub(index.oldest).and_then(|at| index.places.get(at as usize));
            let segment = index.segments.iter().rev().find(|first| **first <= round);
            place.copied().zip(segment.copied())
        };
        let Some((place, segment)) = found else { return Ok(None) };
        let path = segment_path(&self.dir, segment);
        let bytes = match frames::read(&path, place) {
            // Dropped since we looked.
            Err(Error::Io { cause, .. }) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let record = Record::parse(round, bytes).ok_or_else(|| Error::damaged(&path, format!("round {round}")))?;
        Ok(Some(record))
    }
}

pub struct Log {
    shelf: Shelf,
    segment: Frames,
    next: u64,
    damage: Option<Damage>,
}

/// An older part of the log that cannot be read: what is wrong with it, and its files.
#[derive(Clone, Debug)]
pub struct Damage {
    pub problem: String,
    files: Vec<PathBuf>,
}

/// A file of the log.
struct Segment {
    first: u64,
    path: PathBuf,
    found: Scan,
}

/// Rounds that lie one behind the other, without damage between them.
struct Walk {
    segments: Vec<Segment>,
    places: VecDeque<Place>,
    next: u64,
    damage: Option<Damage>,
}

impl Walk {
    fn oldest(&self) -> u64 {
        self.next - self.places.len() as u64
    }

    fn shelf(self, dir: &Path) -> Shelf {
        let oldest = self.oldest();
        let segments = self.segments.iter().map(|segment| segment.first).collect();
        let index = Index { segments, places: self.places, oldest };
        Shelf { dir: dir.to_owned(), index: Arc::new(Mutex::new(index)) }
    }

    fn nothing(&self, dir: &Path) -> Error {
        Error::damaged(dir, self.damage.as_ref().map_or("there is no log", |damage| &damage.problem))
    }

    /// Whether the segment before goes on where this one, which is empty, was to begin: it could not be begun, and a power cut has
    /// brought its file back. Else nothing is behind the last whole round.
    fn went_on_without(&self, first: u64, is_broken: bool) -> bool {
        !self.segments.is_empty() && (first < self.next || first == self.next && is_broken)
    }

    /// From here on another segment is the first.
    fn start_over(&mut self, problem: String, at: u64) {
        let mut files = self.damage.take().map_or(Vec::new(), |damage| damage.files);
        files.extend(self.segments.drain(..).map(|segment| segment.path));
        self.places.clear();
        (self.next, self.damage) = (at, Some(Damage { problem, files }));
    }
}

/// A problem, and the way back from it.
pub fn back_to(problem: &str, rounds: u64) -> String {
    format!("{problem} (`thinwire serve --back-to {rounds}` goes on from the last round before it)")
}

/// Goes through the log from its beginning, for as many as `until` rounds. Behind damage it starts over.
fn walk(dir: &Path, until: u64) -> Result<Walk> {
    let segments = numbered(dir, "log")?;
    let next = segments.first().map_or(0, |(first, _)| *first);
    let mut walk = Walk { segments: Vec::new(), places: VecDeque::new(), next, damage: None };
    let mut broken: Option<String> = None;
    for (first, path) in segments {
        if walk.next >= until && !walk.segments.is_empty() && broken.is_none() {
            break;
        }
        let found = frames::scan(&path, MAGIC)?;
        if found.length == 0 && walk.went_on_without(first, broken.is_some()) {
            continue;
        }
        if let Some(problem) = broken.take() {
            walk.start_over(problem, first);
        } else if first != walk.next {
            let problem = format!("round {} is missing: the next segment is {}", walk.next, path.display());
            walk.start_over(back_to(&problem, walk.next), first);
        }
        let expected = walk.next;
        let in_order = found.places.iter().zip(expected..).take_while(|(place, round)| place.number == *round).count();
        let in_order = in_order.min((until - walk.next.min(until)) as usize);
        walk.places.extend(&found.places[..in_order]);
        walk.next += in_order as u64;
        if walk.next < until {
            broken = match found.places.get(in_order) {
                Some(place) => Some(format!("round {} where {} belongs", place.number, walk.next)),
                None => found.problem(),
            };
            broken = broken.map(|problem| back_to(&format!("{}: {problem}", path.display()), walk.next));
        }
        walk.segments.push(Segment { first, path, found });
    }
    if let (Some(problem), Some(last)) = (broken, walk.segments.last())
        && last.found.places.len() as u64 != walk.next - last.first
    {
        return Err(Error::damaged(dir, problem)); // rounds out of order at the end
    }
    Ok(walk)
}

/// The rounds in `dir` up to `until`, also if there is damage behind them; an error if they are not there.
pub fn rounds_until(dir: &Path, until: u64) -> Result<Shelf> {
    let walk = walk(dir, until)?;
    match walk.next == until && until >= walk.oldest() && !walk.segments.is_empty() {
        true => Ok(walk.shelf(dir)),
        false => {
            Err(Error::damaged(dir, format!("its log has the rounds {} to {}, not {until}", walk.oldest(), walk.next)))
        }
    }
}

/// Cuts off every round from `rounds` on.
pub fn cut(dir: &Path, rounds: u64) -> Result<()> {
    let segments = numbered(dir, "log")?;
    // The last first: whoever dies meanwhile leaves no hole.
    for (first, path) in segments.iter().rev() {
        if *first > rounds && segments[0].0 != *first {
            disk::remove(path).map_err(Error::io(path))?;
            continue;
        }
        let mut found = frames::scan(path, MAGIC)?;
        if found.length == 0 && segments[0].0 != *first {
            disk::remove(path).map_err(Error::io(path))?; // the one before may have gone on without it
            continue;
        }
        if let Some(place) = found.places.iter().find(|place| place.number >= rounds) {
            found.end = place.start();
        }
        Frames::open_scanned(path.clone(), MAGIC, &found)?;
        break;
    }
    Ok(())
}

fn segment_path(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("log-{first:012}.bin"))
}

/// The numbers N of the files `PREFIX-N.…` in `dir`, rising.
pub fn numbered(dir: &Path, prefix: &str) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for path in disk::list(dir).map_err(Error::io(dir))? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let number = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-')?.split('.').next()?.parse().ok());
        let whole = ![frames::UNFINISHED, frames::DAMAGED].iter().any(|end| name.ends_with(end));
        if let Some(number) = number.filter(|_| whole) {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found)
}

impl Log {
    pub fn create(dir: &Path) -> Result<Log> {
        let segment = Frames::create(segment_path(dir, 0), MAGIC)?;
        let index = Index { segments: [0].into(), ..Index::default() };
        Ok(Log {
            shelf: Shelf { dir: dir.to_owned(), index: Arc::new(Mutex::new(index)) },
            segment,
            next: 0,
            damage: None,
        })
    }

    /// Opens the log in `dir`. What is not whole at its end is cut off, and said aloud. A log that is damaged further up is opened
    /// behind the damage; [`Log::damage`] tells of it then.
    pub fn open(dir: &Path) -> Result<Log> {
        let walk = walk(dir, u64::MAX)?;
        let Some(last) = walk.segments.last() else { return Err(walk.nothing(dir)) };
        if last.found.follows.is_some() {
            return Err(Error::damaged(&last.path, back_to(&last.found.problem().unwrap_or_default(), walk.next)));
        }
        if let Some(problem) = last.found.problem() {
            let (file, round) = (last.path.display(), walk.next);
            tracing::warn!(%file, problem, "the log ends in a record that is not whole, of round {round}; it is cut off");
        }
        let segment = Frames::open_scanned(last.path.clone(), MAGIC, &last.found)?;
        let (next, damage) = (walk.next, walk.damage.clone());
        Ok(Log { shelf: walk.shelf(dir), segment, next, damage })
    }

    /// What is wrong with an older part of the log, which is not read any more.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Puts the segments out of the way that are not read any more.
    pub fn set_damaged_aside(&mut self) -> Result<()> {
        let Some(damage) = self.damage.take() else { return Ok(()) };
        tracing::error!(
            problem = damage.problem,
            "the log is damaged before round {}; workers that need those rounds take a snapshot instead",
            self.shelf.oldest()
        );
        damage.files.iter().try_for_each(|path| frames::set_aside(path))
    }

    pub fn shelf(&self) -> Shelf {
        self.shelf.clone()
    }

    /// The number of the next round.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Appends the next round. When this returns it has happened; if it fails it has not.
    pub fn append(&mut self, record: &Record) -> Result<()> {
        assert_eq!(record.round, self.next, "rounds are appended in their order");
        let place = self.segment.append(record.round, &[&record.head(), &record.message])?;
        self.shelf.index().places.push_back(place);
        self.next += 1;
        Ok(())
    }

    /// From here on rounds go to a new segment, unless the last is empty.
    pub fn start_segment(&mut self) -> Result<()> {
        if self.segment.length() > 0 {
            self.segment = Frames::create(segment_path(&self.shelf.dir, self.next), MAGIC)?;
            self.shelf.index().segments.push_back(self.next);
        }
        Ok(())
    }

    /// Drops segments that are wholly before `round`.
    pub fn drop_before(&mut self, round: u64) -> Result<()> {
        loop {
            let (first, second) = {
                let index = self.shelf.index();
                match (index.segments.front(), index.segments.get(1)) {
                    (Some(first), Some(second)) if *second <= round => (*first, *second),
                    _ => return Ok(()),
                }
            };
            // The file first: one that stays while later ones go would be a hole in the log.
            let path = segment_path(&self.shelf.dir, first);
            disk::remove(&path).map_err(Error::io(&path))?;
            let mut index = self.shelf.index();
            index.segments.pop_front();
            let gone = (second - index.oldest) as usize;
            index.places.drain(..gone);
            index.oldest = second;
        }
    }

    #[cfg(test)]
    pub fn set_room(&mut self, room: Option<u64>) {
        self.segment.room = room;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(round: u64) -> Record {
        let counted = (0..round as u32 % 3).map(|slot| Counted { slot, digest: round * 7 + u64::from(slot) }).collect();
        Record { round, counted, message: vec![round as u8; round as usize].into() }
    }

    #[test]
    fn rounds_come_back_as_they_were_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::create(dir.path()).unwrap();
        for round in 0..20 {
            log.append(&record(round)).unwrap();
            if round % 5 == 4 {
                log.start_segment().unwrap();
                log.start_segment().unwrap(); // nothing: the last is empty
            }
        }
        for log in [log, Log::open(dir.path()).unwrap()] {
            assert_eq!((log.next(), log.shelf().oldest()), (20, 0));
            (0..20).for_each(|round| assert_eq!(log.shelf().read(round).unwrap(), Some(record(round))));
            assert_eq!(log.shelf().read(20).unwrap(), None);
        }
        let mut log = Log::open(dir.path()).unwrap();
        log.drop_before(9).unwrap();
        assert_eq!(log.shelf().oldest(), 5);
        assert_eq!(log.shelf().read(4).unwrap(), None);
        assert_eq!(log.shelf().read(5).unwrap(), Some(record(5)));
        log.drop_before(1000).unwrap(); // all but the segment that is open
        log.append(&record(20)).unwrap();
        let log = Log::open(dir.path()).unwrap();
        assert_eq!((log.next(), log.shelf().oldest()), (21, 20));
    }

    fn one_round_a_segment() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::create(dir.path()).unwrap();
        for round in 0..9 {
            log.append(&record(round)).unwrap();
            log.start_segment().unwrap();
        }
        dir
    }

    #[test]
    fn a_missing_segment_is_found_and_the_log_begins_behind_it() {
        let dir = one_round_a_segment();
        std::fs::remove_file(segment_path(dir.path(), 4)).unwrap();
        let mut log = Log::open(dir.path()).unwrap();
        assert_eq!((log.shelf().oldest(), log.next()), (5, 9));
        assert!(log.damage().unwrap().problem.contains("round 4 is missing"), "{:?}", log.damage());
        log.set_damaged_aside().unwrap();
        let log = Log::open(dir.path()).unwrap();
        assert!(log.damage().is_none() && log.shelf().oldest() == 5);
    }

    #[test]
    fn rounds_before_damage_can_be_had_and_what_is_behind_them_cut_off() {
        let dir = one_round_a_segment();
        let path = segment_path(dir.path(), 6);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[22] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(rounds_until(dir.path(), 7).unwrap().oldest(), 7, "from a snapshot there, or not at all");
        assert!(rounds_until(dir.path(), 10).is_err());
        assert_eq!(rounds_until(dir.path(), 6).unwrap().read(5).unwrap(), Some(record(5)));
        cut(dir.path(), 6).unwrap();
        let mut log = Log::open(dir.path()).unwrap();
        assert!(log.damage().is_none());
        assert_eq!((log.shelf().oldest(), log.next()), (0, 6));
        log.append(&record(6)).unwrap();
        cut(dir.path(), 3).unwrap();
        assert_eq!(Log::open(dir.path()).unwrap().next(), 3);
    }
}
