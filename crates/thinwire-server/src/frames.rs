//! A file of frames that only grows: each has a number, a length, and a checksum of all of it.
//!
//! ```text
//! magic, 4 bytes │ number, u64 │ length, u64 │ that many bytes │ XXH3 of everything before, u64        little-endian
//! ```
//!
//! A frame is there when it is flushed to the disk. A process that dies while it writes leaves a torn frame at the end of the
//! file; it is cut off when the file is opened again. A frame that is broken with whole ones behind it was not torn but damaged
//! later: that is an error, for cutting there would lose what others have seen.

use crate::disk::{self, File};
use crate::error::{Error, Result};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

const HEAD: usize = 20;
const SUM: usize = 8;

/// Where a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub number: u64,
    /// Of its contents.
    pub offset: u64,
    pub length: u64,
}

impl Place {
    /// Of the frame.
    pub fn start(&self) -> u64 {
        self.offset - HEAD as u64
    }

    fn end(&self) -> u64 {
        self.offset + self.length + SUM as u64
    }
}

/// A file of frames, open at its end.
pub struct Frames {
    path: PathBuf,
    file: File,
    magic: [u8; 4],
    length: u64,
    /// For tests: so many bytes more, then the disk is full.
    #[cfg(test)]
    pub room: Option<u64>,
}

impl Frames {
    /// A new file, empty, whose name is on the disk.
    pub fn create(path: PathBuf, magic: [u8; 4]) -> Result<Frames> {
        let file = File::create(&path).map_err(Error::io(&path))?;
        let flushed = file.sync_all().map_err(Error::io(&path)).and_then(|()| flush_folder(&path));
        if let Err(error) = flushed {
            let _ = disk::remove(&path); // else an empty file would stand where others go on without it
            return Err(error);
        }
        Ok(Frames::of(path, file, magic, 0))
    }

    fn of(path: PathBuf, file: File, magic: [u8; 4], length: u64) -> Frames {
        Frames {
            path,
            file,
            magic,
            length,
            #[cfg(test)]
            room: None,
        }
    }

    /// Opens a file, and finds its frames. A torn frame at its end is cut off if `may_be_torn`.
    pub fn open(path: PathBuf, magic: [u8; 4], may_be_torn: bool) -> Result<(Frames, Vec<Place>)> {
        let found = scan(&path, magic)?;
        match found.problem() {
            Some(problem) if found.follows.is_some() || !may_be_torn => Err(Error::damaged(&path, problem)),
            _ => Ok((Frames::open_scanned(path, magic, &found)?, found.places)),
        }
    }

    /// Opens a file behind its last whole frame, as [`scan`] found it; the rest is cut off. Its frames are on the disk then: whoever
    /// wrote the last may have died before it was, and from now on others may see it.
    pub fn open_scanned(path: PathBuf, magic: [u8; 4], found: &Scan) -> Result<Frames> {
        let file = File::change(&path).map_err(Error::io(&path))?;
        if found.end < found.length {
            file.set_length(found.end).map_err(Error::io(&path))?;
        }
        file.sync_all().map_err(Error::io(&path))?;
        Ok(Frames::of(path, file, magic, found.end))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn length(&self) -> u64 {
        self.length
    }

    /// Appends a frame of these `parts`, and flushes it. If there is no room for it the file is as it was, on the disk too; after any
    /// other error that is not known.
    pub fn append(&mut self, number: u64, parts: &[&[u8]]) -> Result<Place> {
        let length = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let place = Place { number, offset: self.length + HEAD as u64, length };
        match self.write(number, length, parts) {
            Ok(()) => {
                self.length = place.end();
                Ok(place)
            }
            Err(error) => {
                // It may be there whole, and only its flush has failed: after a power cut it would be back.
                let gone = self.file.set_length(self.length).and_then(|()| self.file.sync_all());
                gone.map_err(|cause| Error::Io { path: self.path.clone(), cause })?;
                Err(Error::io(&self.path)(error))
            }
        }
    }

    fn write(&mut self, number: u64, length: u64, parts: &[&[u8]]) -> std::io::Result<()> {
        let mut sum = Xxh3::new();
        let head = [&self.magic[..], &number.to_le_bytes(), &length.to_le_bytes()].concat();
        self.file.seek(SeekFrom::Start(self.length))?;
        for part in [&head[..]].into_iter().chain(parts.iter().copied()) {
            sum.update(part);
            self.put(part)?;
        }
        self.put(&sum.digest().to_le_bytes())?;
        self.file.sync_data()
    }

    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        #[cfg(test)]
        if let Some(room) = &mut self.room {
            let fits = (*room).min(bytes.len() as u64);
            *room -= fits;
            self.file.write_all(&bytes[..fits as usize])?;
            return if fits < bytes.len() as u64 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(()) };
        }
        self.file.write_all(bytes)
    }

    /// Cuts off every frame from `place` on.
    pub fn cut(&mut self, place: Place) -> Result<()> {
        self.length = place.start();
        self.file.set_length(self.length).and_then(|()| self.file.sync_all()).map_err(Error::io(&self.path))
    }
}

/// What is in a file of frames, from its beginning to the first frame that is not whole.
#[derive(Debug)]
pub struct Scan {
    pub places: Vec<Place>,
    /// Where the last of them ends.
    pub end: u64,
    /// Of the file.
    pub length: u64,
    /// The number of a whole frame behind the damage: then the file was not torn, but damaged later.
    pub follows: Option<u64>,
}

impl Scan {
    /// What is wrong with the file, if anything is.
    pub fn problem(&self) -> Option<String> {
        let at = self.end;
        match self.follows {
            Some(number) => {
                Some(format!("damaged at byte {at}: what is there is no frame, and frame {number} follows it"))
            }
            None => (at < self.length).then(|| format!("damaged at byte {at}: its last frame is not whole")),
        }
    }
}

/// Looks through the file at `path`, and changes nothing.
pub fn scan(path: &Path, magic: [u8; 4]) -> Result<Scan> {
    let mut file = File::open(path).map_err(Error::io(path))?;
    let length = file.length().map_err(Error::io(path))?;
    look(&mut file, length, magic).map_err(Error::io(path))
}

/// Looks through a file that is open, of so many bytes.
#[doc(hidden)]
pub fn look(file: &mut (impl Read + Seek), length: u64, magic: [u8; 4]) -> std::io::Result<Scan> {
    let (mut places, mut end, mut follows) = (Vec::new(), 0, None);
    while end < length {
        let Some(place) = frame_at(file, &magic, end, length)? else {
            follows = whole_frame_after(file, &magic, end, length)?;
            break;
        };
        end = place.end();
        places.push(place);
    }
    Ok(Scan { places, end, length, follows })
}

/// The contents of a frame in the file at `path`.
pub fn read(path: &Path, place: Place) -> Result<Vec<u8>> {
    let mut bytes = vec![0; place.length as usize];
    let mut file = File::open(path).map_err(Error::io(path))?;
    file.seek(SeekFrom::Start(place.offset)).and_then(|_| file.read_exact(&mut bytes)).map_err(Error::io(path))?;
    Ok(bytes)
}

/// The frame that starts at `at`, if a whole one does.
fn frame_at(file: &mut (impl Read + Seek), magic: &[u8; 4], at: u64, length: u64) -> std::io::Result<Option<Place>> {
    if length - at < (HEAD + SUM) as u64 {
        return Ok(None);
    }
    let mut head = [0; HEAD];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut head)?;
    let word = |from: usize| u64::from_le_bytes(head[from..from + 8].try_into().expect("eight bytes"));
    let place = Place { number: word(4), offset: at + HEAD as u64, length: word(12) };
    let room = length - at - (HEAD + SUM) as u64;
    if head[..4] != *magic || place.length > room {
        return Ok(None);
    }
    let (mut sum, mut left, mut piece) = (Xxh3::new(), place.length, vec![0; 1 << 16]);
    sum.update(&head);
    while left > 0 {
        let part = &mut piece[..left.min(1 << 16) as usize];
        file.read_exact(part)?;
        sum.update(part);
        left -= part.len() as u64;
    }
    let mut written = [0; SUM];
    file.read_exact(&mut written)?;
    Ok((u64::from_le_bytes(written) == sum.digest()).then_some(place))
}

/// The number of the first whole frame behind `at`.
fn whole_frame_after(
    file: &mut (impl Read + Seek),
    magic: &[u8; 4],
    at: u64,
    length: u64,
) -> std::io::Result<Option<u64>> {
    let mut rest = Vec::new();
    file.seek(SeekFrom::Start(at))?;
    file.read_to_end(&mut rest)?;
    for (skip, _) in rest.windows(4).enumerate().skip(1).filter(|(_, window)| window == magic) {
        if let Some(place) = frame_at(file, magic, at + skip as u64, length)? {
            return Ok(Some(place.number));
        }
    }
    Ok(None)
}

/// A name is on the disk once its folder is.
pub fn flush_folder(file: &Path) -> Result<()> {
    let folder = file.parent().expect("a file in a folder");
    disk::sync_folder(folder).map_err(Error::io(folder))
}

/// What files are called while they are written.
pub const UNFINISHED: &str = ".unfinished";

/// What files are called that were found damaged, and are kept for a person to look at.
pub const DAMAGED: &str = ".damaged";

/// Puts a damaged file out of the way, under a name that is not read again.
pub fn set_aside(path: &Path) -> Result<()> {
    disk::rename(path, Path::new(&format!("{}{DAMAGED}", path.display()))).map_err(Error::io(path))
}

/// Writes a file by rename: it is there whole, or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let draft = PathBuf::from(format!("{}{UNFINISHED}", path.display()));
    let fill = |mut file: File| {
        #[cfg(test)]
        if let Some(room) = WHOLE_ROOM.get() {
            let fits = (room as usize).min(bytes.len());
            WHOLE_ROOM.set(Some(room - fits as u64));
            file.write_all(&bytes[..fits])?;
            if fits < bytes.len() {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            return file.sync_all();
        }
        file.write_all(bytes).and_then(|()| file.sync_all())
    };
    let written = File::create(&draft).and_then(fill);
    if let Err(error) = written {
        let _ = disk::remove(&draft);
        return Err(Error::io(path)(error));
    }
    disk::rename(&draft, path).map_err(Error::io(path))?;
    flush_folder(path)
}

#[cfg(test)]
thread_local! {
    /// For tests: so many bytes more of whole files, then the disk is full.
    pub static WHOLE_ROOM: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: [u8; 4] = *b"TEST";

    fn contents(path: &Path, places: &[Place]) -> Vec<(u64, Vec<u8>)> {
        places.iter().map(|place| (place.number, read(path, *place).unwrap())).collect()
    }

    fn three() -> (tempfile::TempDir, PathBuf, Vec<u64>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("frames");
        let mut frames = Frames::create(path.clone(), MAGIC).unwrap();
        let mut ends = vec![0];
        for (number, text) in [(5, &b"first"[..]), (6, b""), (7, b"the third and last")] {
            frames.append(number, &[text, b"!"]).unwrap();
            ends.push(frames.length());
        }
        (dir, path, ends)
    }

    #[test]
    fn what_was_appended_is_read_again() {
        let (_dir, path, _) = three();
        let (mut frames, places) = Frames::open(path.clone(), MAGIC, true).unwrap();
        let expected = [(5, b"first!".to_vec()), (6, b"!".to_vec()), (7, b"the third and last!".to_vec())];
        assert_eq!(contents(&path, &places), expected);
        frames.append(8, &[b"more"]).unwrap();
        frames.cut(places[1]).unwrap();
        frames.append(6, &[b"other"]).unwrap();
        let (_, places) = Frames::open(path.clone(), MAGIC, false).unwrap();
        assert_eq!(contents(&path, &places), [(5, b"first!".to_vec()), (6, b"other".to_vec())]);
    }

    /// A process may die at any byte of what it writes, and a machine with zeros in its place.
    #[test]
    fn a_torn_end_is_cut_off_at_every_byte() {
        let (_dir, path, ends) = three();
        let whole = std::fs::read(&path).unwrap();
        for length in 0..=whole.len() {
            let kept = ends.iter().rposition(|end| *end as usize <= length).unwrap();
            for zeros in [0, 1, 50] {
                let torn = [&whole[..length], &vec![0; zeros]].concat();
                std::fs::write(&path, &torn).unwrap();
                // Zeros may be what was to be written.
                let kept =
                    kept + usize::from(kept + 1 < ends.len() && torn.starts_with(&whole[..ends[kept + 1] as usize]));
                let (mut frames, places) = Frames::open(path.clone(), MAGIC, true).unwrap();
                assert_eq!(places.len(), kept, "{length} bytes and {zeros} zeros");
                assert_eq!(std::fs::metadata(&path).unwrap().len(), ends[kept]);
                frames.append(9, &[b"next"]).unwrap();
                let (_, places) = Frames::open(path.clone(), MAGIC, false).unwrap();
                assert_eq!(places.last().unwrap().number, 9);
            }
        }
    }

    #[test]
    fn damage_before_whole_frames_is_no_torn_end() {
        let (_dir, path, ends) = three();
        let whole = std::fs::read(&path).unwrap();
        for at in 0..ends[2] as usize {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x40;
            std::fs::write(&path, &damaged).unwrap();
            let error = Frames::open(path.clone(), MAGIC, true).err().expect("it was taken").to_string();
            assert!(error.contains("damaged at byte"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), damaged, "and nothing was cut");
        }
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(Frames::open(path, MAGIC, false).is_err());
    }

    #[test]
    fn a_full_disk_leaves_the_file_as_it_was() {
        let (_dir, path, ends) = three();
        let (mut frames, _) = Frames::open(path.clone(), MAGIC, true).unwrap();
        for room in 0..HEAD as u64 + 4 + SUM as u64 {
            frames.room = Some(room);
            assert!(matches!(frames.append(8, &[b"more"]), Err(Error::NoRoom { .. })));
            assert_eq!(std::fs::metadata(&path).unwrap().len(), ends[3]);
        }
        frames.room = None;
        frames.append(8, &[b"more"]).unwrap();
        assert_eq!(Frames::open(path, MAGIC, false).unwrap().1.len(), 4);
    }
}
