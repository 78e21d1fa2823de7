//! The replication log: every round that was, in order, as the coded mean that everyone applies. About a bit a parameter.
//!
//! It lies in segments, `log-N.bin` with round N first; a snapshot starts a new one, and whole segments are dropped when nobody is
//! owed them any more. A round is there when its frame is on the disk, and not before: see [`frames`].

use crate::error::{Error, Result};
use crate::frames::{self, Frames, Place};
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

    fn head(&self) -> Vec<u8> {
        let mut head = (self.counted.len() as u32).to_le_bytes().to_vec();
        for counted in &self.counted {
            head.extend(counted.slot.to_le_bytes());
            head.extend(counted.digest.to_le_bytes());
        }
        head
    }

    fn parse(round: u64, mut bytes: Vec<u8>) -> Option<Record> {
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
}

fn segment_path(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("log-{first:012}.bin"))
}

/// The numbers N of the files `PREFIX-N.…` in `dir`, rising.
pub fn numbered(dir: &Path, prefix: &str) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
        let path = entry.map_err(Error::io(dir))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let number = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-')?.split('.').next()?.parse().ok());
        if let Some(number) = number.filter(|_| !name.ends_with(frames::UNFINISHED)) {
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
        Ok(Log { shelf: Shelf { dir: dir.to_owned(), index: Arc::new(Mutex::new(index)) }, segment, next: 0 })
    }

    /// Opens the log in `dir`; what a server that died left torn at its end is cut off.
    pub fn open(dir: &Path) -> Result<Log> {
        let segments = numbered(dir, "log")?;
        let Some((oldest, _)) = segments.first() else { return Err(Error::damaged(dir, "there is no log")) };
        let mut index = Index { oldest: *oldest, ..Index::default() };
        let (mut next, mut last) = (*oldest, None);
        for (i, (first, path)) in segments.iter().enumerate() {
            if *first != next {
                let problem = format!("round {next} is missing: the next segment is {}", path.display());
                return Err(Error::damaged(dir, problem));
            }
            let (frames, places) = Frames::open(path.clone(), MAGIC, i + 1 == segments.len())?;
            for place in places {
                if place.number != next {
                    return Err(Error::damaged(path, format!("round {} where {next} belongs", place.number)));
                }
                index.places.push_back(place);
                next += 1;
            }
            index.segments.push_back(*first);
            last = Some(frames);
        }
        let segment = last.expect("at least one segment");
        Ok(Log { shelf: Shelf { dir: dir.to_owned(), index: Arc::new(Mutex::new(index)) }, segment, next })
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
            std::fs::remove_file(&path).map_err(Error::io(&path))?;
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

    #[test]
    fn a_missing_segment_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::create(dir.path()).unwrap();
        for round in 0..9 {
            log.append(&record(round)).unwrap();
            log.start_segment().unwrap();
        }
        std::fs::remove_file(segment_path(dir.path(), 4)).unwrap();
        let error = Log::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains("round 4 is missing"), "{error}");
    }
}
