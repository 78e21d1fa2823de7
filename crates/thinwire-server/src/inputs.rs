//! What E, the server's residue, is made again from when the server comes back.
//!
//! The log has the coded means only, but E ← mean + E − p needs the messages too: they are kept for every coarse round since the
//! last snapshot, or E itself where that is shorter.

use crate::error::Result;
use crate::log::Record;
use thinwire::exchange::Owner;

/// What E needs to be made again.
pub enum Entry<'a> {
    /// The messages that the round counts, in their order.
    Messages(Vec<u8>, &'a [Vec<u8>]),
    Residue(&'a [f32]),
}

impl<'a> Entry<'a> {
    pub fn of(messages: &'a [Vec<u8>], residue: &'a [f32]) -> Entry<'a> {
        let length = messages.iter().map(|message| message.len() + 8).sum::<usize>();
        if length >= 4 * residue.len() {
            return Entry::Residue(residue);
        }
        let lengths = messages.iter().flat_map(|message| (message.len() as u64).to_le_bytes());
        let head = [1].into_iter().chain((messages.len() as u32).to_le_bytes()).chain(lengths);
        Entry::Messages(head.collect(), messages)
    }

    pub fn parts(&self) -> Vec<&[u8]> {
        match self {
            Entry::Messages(head, messages) => [&head[..]].into_iter().chain(messages.iter().map(|m| &m[..])).collect(),
            Entry::Residue(residue) => vec![&[2], bytemuck::cast_slice(residue)],
        }
    }
}

/// The messages of an entry.
fn messages(entry: &[u8]) -> Option<Vec<Vec<u8>>> {
    let count = u32::from_le_bytes(*entry.first_chunk()?) as usize;
    let lengths = entry.get(4..4 + 8 * count)?.chunks_exact(8);
    let lengths = lengths.map(|length| u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize);
    let mut rest = &entry[4 + 8 * count..];
    let messages = lengths.map(|length| rest.split_off(..length).map(<[u8]>::to_vec)).collect::<Option<Vec<_>>>();
    messages.filter(|_| rest.is_empty())
}

/// E after a round, made again; the mean must come out as it was.
pub fn replay(owner: &mut Owner, expected: &[u8], record: &Record, entry: &[u8]) -> Result<(), String> {
    let round = record.round;
    match entry.split_first() {
        Some((1, rest)) => {
            let messages = messages(rest).ok_or_else(|| format!("the inputs of round {round} are malformed"))?;
            let mean = owner.mean(expected, &messages, |i| i).map_err(|error| format!("round {round}: {error}"))?;
            if mean != record.message {
                return Err(format!("the inputs of round {round} do not give the mean that the log has"));
            }
            owner.keep(expected).map_err(|error| error.to_string())
        }
        Some((2, residue)) if residue.len() == 4 * owner.residue().len() => {
            bytemuck::cast_slice_mut(owner.residue()).copy_from_slice(residue);
            Ok(())
        }
        _ => Err(format!("the inputs of round {round} are malformed")),
    }
}
