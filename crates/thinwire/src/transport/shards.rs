//! Shards: processes that hold one replica of the model in parts, as PyTorch's FSDP cuts it.
//!
//! Each shard is a worker of its own, with its counterparts in the other replicas as its group. What all shards of one replica must
//! agree on (is the gradient finite, how long is it, has the variance settled) are a few sums. They go over a second, small group
//! inside the replica, in one message to each of the other shards. Sums run in the order of the shards, in f64, so all have the same bits.

use super::Collective;
use crate::error::{Error, Result};

const DURING: &str = "the agreement of a replica's shards";
const SUMS: u8 = 0;
const NOTE: u8 = 1;
const ABORT: u8 = 2;

/// Room for a message: its kind, the step, what must be equal, and the numbers to be added.
const LONGEST: usize = 1 << 10;

/// A worker whose replica is held in shards: `across` are its counterparts in the other replicas, `inside` the shards of its own.
pub struct Sharded {
    across: Box<dyn Collective>,
    inside: Option<Box<dyn Collective>>,
}

impl Sharded {
    /// A group as `across`, whose worker agrees with the shards of its replica over `inside`.
    pub fn new(across: Box<dyn Collective>, inside: Box<dyn Collective>) -> Sharded {
        Sharded { across, inside: Some(inside) }
    }
}

impl Collective for Sharded {
    fn rank(&self) -> usize {
        self.across.rank()
    }

    fn size(&self) -> usize {
        self.across.size()
    }

    fn hosts(&self) -> Vec<usize> {
        self.across.hosts()
    }

    fn inside(&mut self) -> Option<Box<dyn Collective>> {
        self.inside.take()
    }

    fn reserve(&mut self, longest: usize, under_way: usize) {
        self.across.reserve(longest, under_way);
    }

    fn send(&mut self, to: usize, message: &[u8], during: &'static str) -> Result<()> {
        self.across.send(to, message, during)
    }

    fn receive(&mut self, from: usize, message: &mut Vec<u8>, during: &'static str) -> Result<()> {
        self.across.receive(from, message, during)
    }
}

/// This shard's connection to the others of its replica; a replica in one piece has none, and every sum is its own.
#[derive(Default)]
pub struct Shards {
    group: Option<Box<dyn Collective>>,
    message: Vec<u8>,
    heard: Vec<u8>,
}

impl Shards {
    /// The shards in `group`, if there is one and it is of more than this worker.
    pub fn new(group: Option<Box<dyn Collective>>) -> Shards {
        let mut group = group.filter(|group| group.size() > 1);
        if let Some(group) = &mut group {
            group.reserve(LONGEST, 2);
        }
        Shards { group, message: Vec::with_capacity(LONGEST), heard: Vec::with_capacity(LONGEST) }
    }

    /// Whether the replica is in one piece.
    pub fn is_whole(&self) -> bool {
        self.group.is_none()
    }

    /// The number of this shard, from 0.
    pub fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, |group| group.rank())
    }

    /// How many shards there are.
    pub fn size(&self) -> usize {
        self.group.as_ref().map_or(1, |group| group.size())
    }

    /// The sums over all shards of `values`, after checking that all are at `step` and have the same `common` numbers, which `what` names.
    pub fn sums<const N: usize>(
        &mut self,
        step: u64,
        (what, common): (&str, &[f32]),
        values: [f64; N],
    ) -> Result<[f64; N]> {
        self.start(SUMS, step);
        self.message.extend_from_slice(bytemuck::cast_slice(common));
        self.message.extend_from_slice(bytemuck::cast_slice(&values));
        let mut sums = [0.0; N];
        let check = |shard: usize, me: usize, theirs: &[u8]| -> Result<[f64; N]> {
            let malformed = || Error::Malformed { worker: shard, problem: format!("{} bytes of sums", theirs.len()) };
            let (there, numbers) = theirs.split_at_checked(size_of_val(common)).ok_or_else(malformed)?;
            if there != bytemuck::cast_slice::<f32, u8>(common) {
                let (there, here) = (shown(there), shown(bytemuck::cast_slice(common)));
                return Err(Error::Disagreement { worker: shard, field: what.to_owned(), there, me, here });
            }
            let mut values = [0.0; N];
            let room: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
            match room.len() == numbers.len() {
                true => room.copy_from_slice(numbers),
                false => return Err(malformed()),
            }
            Ok(values)
        };
        let mut add = |values: [f64; N]| sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        self.exchange(SUMS, step, |shard, me, theirs| {
            match theirs {
                None => add(values),
                Some(theirs) => add(check(shard, me, theirs)?),
            }
            Ok(())
        })?;
        Ok(sums)
    }

    /// ‖·‖₂ of a vector of which this shard's part is `norm` long. To the bit the same where the replica is in one piece.
    pub fn norm(&mut self, step: u64, norm: f64) -> Result<f64> {
        if self.is_whole() {
            return Ok(norm);
        }
        let [squares] = self.sums(step, ("", &[]), [norm * norm])?;
        Ok(squares.sqrt())
    }

    /// Σ of a vector of which this shard's part adds up to `sum`.
    pub fn sum(&mut self, step: u64, sum: f64) -> Result<f64> {
        if self.is_whole() {
            return Ok(sum);
        }
        let [sum] = self.sums(step, ("", &[]), [sum])?;
        Ok(sum)
    }

    /// Every shard's `note`, in their order.
    pub fn gather(&mut self, step: u64, note: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.start(NOTE, step);
        self.message.extend_from_slice(note);
        let mut notes = Vec::new();
        self.exchange(NOTE, step, |_, _, theirs| {
            notes.push(theirs.unwrap_or(note).to_vec());
            Ok(())
        })?;
        Ok(notes)
    }

    /// Tells the other shards that this one stops, and why. They may be gone already.
    pub fn abort(&mut self, step: u64, why: &str) {
        self.start(ABORT, step);
        self.message.extend_from_slice(why.as_bytes());
        let Some(group) = &mut self.group else { return };
        for shard in (0..group.size()).filter(|shard| *shard != group.rank()).collect::<Vec<_>>() {
            let _ = group.send(shard, &self.message, "abort");
        }
    }

    fn start(&mut self, kind: u8, step: u64) {
        self.message.clear();
        self.message.push(kind);
        self.message.extend_from_slice(&step.to_le_bytes());
    }

    /// Sends the message to every other shard, and hands `take` what each of them sent, in their order; nothing for this one.
    fn exchange(
        &mut self,
        kind: u8,
        step: u64,
        mut take: impl FnMut(usize, usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let Some(group) = &mut self.group else { return take(0, 0, None) };
        let (me, size) = (group.rank(), group.size());
        let among_shards = |error| Error::Shards(Box::new(error));
        for shard in (0..size).filter(|shard| *shard != me) {
            group.send(shard, &self.message, DURING).map_err(among_shards)?;
        }
        for shard in 0..size {
            if shard == me {
                take(shard, me, None).map_err(among_shards)?;
                continue;
            }
            group.receive(shard, &mut self.heard, DURING).map_err(among_shards)?;
            let theirs = opened(&self.heard, (kind, step), shard, me).and_then(|body| take(shard, me, Some(body)));
            theirs.map_err(among_shards)?;
        }
        Ok(())
    }
}

/// The body of a message of `shard`, unless it is of another kind or step than this shard's, or says that its sender stopped.
fn opened(message: &[u8], (kind, step): (u8, u64), shard: usize, me: usize) -> Result<&[u8]> {
    let problem = || Error::Malformed { worker: shard, problem: format!("{} bytes", message.len()) };
    let (head, body) = message.split_first_chunk::<9>().ok_or_else(problem)?;
    let mut number = [0; 8];
    number.copy_from_slice(&head[1..]);
    let there = u64::from_le_bytes(number);
    if head[0] == ABORT {
        let reason = String::from_utf8_lossy(&body[..body.len().min(1000)]).into_owned();
        return Err(Error::Aborted { worker: shard, reason });
    }
    if there != step {
        let (there, here) = (there.to_string(), step.to_string());
        return Err(Error::Disagreement { worker: shard, field: "step".to_owned(), there, me, here });
    }
    if head[0] == kind { Ok(body) } else { Err(problem()) }
}

/// Numbers for an error.
fn shown(bytes: &[u8]) -> String {
    let numbers = bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number).to_string());
    numbers.collect::<Vec<_>>().join(", ")
}
