//! What E, the server's residue, is made again from when the server comes back.
//!
//! The log has the coded means only, but E ← mean + E − p needs the messages too: they are kept for every coarse round since the
//! oldest snapshot, or E itself where that is shorter. `inputs-N.bin` has those of the rounds from snapshot N on. From the messages
//! the round itself can be made again, if its record in the log is lost.

use crate::disk;
use crate::error::{Error, Result};
use crate::frames::{self, Frames, Place};
use crate::log::{Counted, Record, back_to, numbered};
use std::path::{Path, PathBuf};
use thinwire::inside::exchange::Owner;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 4] = *b"TWIN";

/// The first byte of an entry. Older servers wrote the first kind, which does not tell whose the messages are, and the third, which
/// does not tell the digests of what was sent.
const NAMELESS: u8 = 1;
const RESIDUE: u8 = 2;
const UNCHANGED: u8 = 3;
const MESSAGES: u8 = 4;

/// What E needs to be made again.
pub enum Entry<'a> {
    /// The messages that the round counts, in their order.
    Messages(Vec<u8>, &'a [Vec<u8>]),
    Residue(&'a [f32]),
}

impl<'a> Entry<'a> {
    /// `slots` are the seats of those who sent the messages, `digests` of what they sent.
    pub fn of(slots: &[u32], digests: &[u64], messages: &'a [Vec<u8>], residue: &'a [f32]) -> Entry<'a> {
        let length = messages.iter().map(|message| message.len() + 20).sum::<usize>();
        if length >= 4 * residue.len() {
            return Entry::Residue(residue);
        }
        let lengths = messages.iter().flat_map(|message| (message.len() as u64).to_le_bytes());
        let slots = slots.iter().flat_map(|slot| slot.to_le_bytes());
        let digests = digests.iter().flat_map(|digest| digest.to_le_bytes());
        let head = [MESSAGES].into_iter().chain((messages.len() as u32).to_le_bytes());
        Entry::Messages(head.chain(slots).chain(digests).chain(lengths).collect(), messages)
    }

    pub fn parts(&self) -> Vec<&[u8]> {
        match self {
            Entry::Messages(head, messages) => [&head[..]].into_iter().chain(messages.iter().map(|m| &m[..])).collect(),
            Entry::Residue(residue) => vec![&[RESIDUE], bytemuck::cast_slice(residue)],
        }
    }
}

/// The messages of an entry, and who sent them with which digests, if it has that.
pub fn messages(entry: &[u8]) -> Option<(Vec<Counted>, Vec<Vec<u8>>)> {
    let (kind, entry) = entry.split_first()?;
    let (count, mut rest) = entry.split_first_chunk()?;
    let count = u32::from_le_bytes(*count) as usize;
    let named = if *kind == NAMELESS { 0 } else { count };
    let slots = rest.split_off(..named.checked_mul(4)?)?.chunks_exact(4);
    let slots = slots.map(|slot| u32::from_le_bytes(slot.try_into().expect("four bytes"))).collect::<Vec<_>>();
    let digests = words(rest.split_off(..if *kind == MESSAGES { count.checked_mul(8)? } else { 0 })?);
    let lengths = words(rest.split_off(..count.checked_mul(8)?)?);
    let cut = |length: &u64| rest.split_off(..usize::try_from(*length).ok()?).map(<[u8]>::to_vec);
    let messages = lengths.iter().map(cut).collect::<Option<Vec<_>>>()?;
    let digest = |(i, slot): (usize, &u32)| Counted {
        slot: *slot,
        digest: digests.get(i).copied().unwrap_or_else(|| xxh3_64(&messages[i])),
    };
    let counted = slots.iter().enumerate().map(digest).collect();
    rest.is_empty().then_some((counted, messages))
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
}

/// The mean of messages from a file. A checksum tells damage, not who wrote it: the file may be of another run.
fn mean(
    owner: &mut Owner,
    expected: &[u8],
    messages: &[Vec<u8>],
    sender: impl Fn(usize) -> usize,
) -> thinwire::Result<Vec<u8>> {
    let mut all = messages.iter().enumerate();
    all.try_for_each(|(i, message)| owner.fits(expected, message, sender(i)))?;
    owner.mean(expected, messages, sender)
}

/// E after a round, made again; the mean must come out as it was.
pub fn replay(owner: &mut Owner, expected: &[u8], record: &Record, entry: &[u8]) -> Result<(), String> {
    let round = record.round;
    let malformed = || format!("the inputs of round {round} are malformed");
    match entry.split_first() {
        Some((&NAMELESS | &UNCHANGED | &MESSAGES, _)) => {
            let (_, messages) = messages(entry).ok_or_else(malformed)?;
            let mean = mean(owner, expected, &messages, |i| i).map_err(|error| format!("round {round}: {error}"))?;
            if mean != record.message {
                return Err(format!("the inputs of round {round} do not give the mean that the log has"));
            }
            owner.keep(expected).map_err(|error| error.to_string())
        }
        Some((&RESIDUE, residue)) if residue.len() == 4 * owner.residual().len() => {
            bytemuck::cast_slice_mut(owner.residual()).copy_from_slice(residue);
            Ok(())
        }
        _ => Err(malformed()),
    }
}

/// A round whose record is lost, made again from its messages; none if the entry does not have them. E is as before then.
pub fn make_again(owner: &mut Owner, expected: &[u8], round: u64, entry: &[u8]) -> Option<Record> {
    let (counted, messages) = matches!(entry.first(), Some(&UNCHANGED | &MESSAGES)).then(|| messages(entry))??;
    let message = mean(owner, expected, &messages, |i| counted[i].slot as usize).ok()?.into();
    Some(Record { round, counted, message })
}

/// The files `inputs-N.bin` since one snapshot.
pub struct Inputs {
    files: Vec<(PathBuf, Vec<Place>)>,
    last: Frames,
}

fn path(dir: &Path, rounds: u64) -> PathBuf {
    dir.join(format!("inputs-{rounds:012}.bin"))
}

/// A new file for the rounds from snapshot `rounds` on.
pub fn create(dir: &Path, rounds: u64) -> Result<Frames> {
    Frames::create(path(dir, rounds), MAGIC)
}

impl Inputs {
    /// Those of the rounds from snapshot `rounds` on.
    pub fn open(dir: &Path, rounds: u64) -> Result<Inputs> {
        let mut found = numbered(dir, "inputs")?;
        found.retain(|(number, _)| *number >= rounds);
        // One that is empty may be of a snapshot that came to nothing: then the inputs lie in the one before.
        found.retain(|(number, path)| *number == rounds || disk::length(path).map_or(true, |length| length > 0));
        let (mut files, mut last) = (Vec::new(), None);
        for (i, (number, path)) in found.iter().enumerate() {
            let scan = frames::scan(path, MAGIC)?;
            let whole = scan.places.last().map_or(*number, |place| place.number + 1);
            if let Some(problem) = scan.problem().filter(|_| scan.follows.is_some() || i + 1 < found.len()) {
                return Err(Error::damaged(path, back_to(&problem, whole)));
            }
            last = Some(Frames::open_scanned(path.clone(), MAGIC, &scan)?);
            files.push((path.clone(), scan.places));
        }
        let last = last.map_or_else(|| create(dir, rounds), Ok)?;
        Ok(Inputs { files, last })
    }

    /// The same up to round `until`, whatever is behind them, and without changing anything.
    pub fn look(dir: &Path, rounds: u64, until: u64) -> Result<Vec<(PathBuf, Vec<Place>)>> {
        let found = numbered(dir, "inputs")?.into_iter().filter(|(number, _)| (rounds..=until).contains(number));
        let each = found.map(|(_, path)| Ok((path.clone(), frames::scan(&path, MAGIC)?.places)));
        each.collect()
    }

    pub fn files(&self) -> &[(PathBuf, Vec<Place>)] {
        &self.files
    }

    /// The file that grows; entries from round `next` on are of rounds that did not come to be.
    pub fn growing(mut self, next: u64) -> Result<Frames> {
        let (_, places) = self.files.pop().unwrap_or_default();
        if let Some(place) = places.iter().find(|place| place.number >= next) {
            self.last.cut(*place)?;
        }
        Ok(self.last)
    }
}

/// What is kept of `round`, if anything is.
pub fn entry(files: &[(PathBuf, Vec<Place>)], round: u64) -> Result<Option<Vec<u8>>> {
    let found = files.iter().find_map(|(path, places)| {
        let at = places.binary_search_by_key(&round, |place| place.number).ok()?;
        Some((path, places[at]))
    });
    found.map(|(path, place)| frames::read(path, place)).transpose()
}

/// That there should be something, and is not.
pub fn missing(dir: &Path, round: u64) -> Error {
    Error::damaged(dir, back_to(&format!("the inputs of round {round} are missing"), round))
}

/// Cuts off the inputs of every round from `rounds` on.
pub fn cut(dir: &Path, rounds: u64) -> Result<()> {
    for (number, path) in numbered(dir, "inputs")?.into_iter().rev() {
        if number > rounds {
            disk::remove(&path).map_err(Error::io(&path))?;
            continue;
        }
        let mut found = frames::scan(&path, MAGIC)?;
        if let Some(place) = found.places.iter().find(|place| place.number >= rounds) {
            found.end = place.start();
        }
        let is_empty = found.length == 0;
        Frames::open_scanned(path, MAGIC, &found)?;
        if is_empty {
            continue; // it may be of a snapshot that came to nothing
        }
        break; // those before it are of rounds before its own
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use thinwire::Config;
    use thinwire::inside::codec::CodecName;
    use thinwire::inside::exchange::header::{Header, Operation};

    const VALUES: usize = 16;

    fn owner() -> (Owner, Header) {
        let words = "name = \"efficient-adam\"\ntopology = \"central\"\ncodec = \"sign\"\nblock = 8";
        let owner = Config::from_toml(words).unwrap().decide().unwrap().owner(VALUES).unwrap();
        let (operation, codec) = (Operation::CoarseUp, CodecName::Sign);
        let header = Header {
            operation,
            codec,
            step: 3,
            values: VALUES as u64,
            block: 8,
            blocks: (0, 2),
            contributions: 1,
            digest: 7,
        };
        (owner, header)
    }

    fn entry(messages: &[Vec<u8>]) -> Vec<u8> {
        let slots = (0..messages.len() as u32).collect::<Vec<_>>();
        let digests = messages.iter().map(|message| xxh3_64(message)).collect::<Vec<_>>();
        Entry::of(&slots, &digests, messages, &[0.0; 1000]).parts().concat()
    }

    /// The files have checksums, but whoever writes them can give them any.
    #[test]
    fn inputs_that_are_no_messages_of_the_round_are_refused() {
        let (mut owner, header) = owner();
        let expected = header.to_bytes();
        let whole = [&expected[..], &[0; 10]].concat();
        let record = make_again(&mut owner, &expected, 3, &entry(&[whole.clone(), whole.clone()])).unwrap();
        replay(&mut owner, &expected, &record, &entry(&[whole.clone(), whole.clone()])).unwrap();
        let other_step = [&Header { step: 4, ..header }.to_bytes()[..], &[0; 10]].concat();
        for bad in [&whole[..0], &whole[..47], &whole[..57], &[&whole[..], &[0]].concat(), &other_step] {
            let entry = entry(&[whole.clone(), bad.to_vec()]);
            assert!(make_again(&mut owner, &expected, 3, &entry).is_none(), "made of {} bytes", bad.len());
            let refused = replay(&mut owner, &expected, &record, &entry).unwrap_err();
            assert!(refused.starts_with("round 3: worker 1"), "{refused}");
        }
    }
}
