//! An optimizer's state as a list of names and slices: saving reads it, loading writes it, `inspect` prints it.

use std::ops::Range;

/// How an entry passes to another number of workers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Share {
    /// The same on all workers: anyone's will do.
    Same,
    /// Each worker's own; what counts is the mean, which every new worker gets.
    Mean,
    /// The same, for steps that the others have not seen yet: the next sync makes them common.
    Progress,
    /// The same, for what a worker's payloads have lost so far.
    Residual,
    /// Cut among the workers; this one holds this range, and a new worker gets its new one.
    Cut(Range<usize>),
}

/// Where an entry's numbers are.
#[derive(Debug)]
#[non_exhaustive]
pub enum Slot<'a> {
    /// A vector, such as m.
    Floats(&'a mut [f32]),
    /// Some numbers, such as one for each parameter group.
    Doubles(&'a mut [f64]),
    /// A counter, or a digest.
    Word(&'a mut u64),
}

impl Slot<'_> {
    /// The numbers as they lie in memory.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Slot::Floats(values) => bytemuck::cast_slice(values),
            Slot::Doubles(values) => bytemuck::cast_slice(values),
            Slot::Word(word) => bytemuck::bytes_of(&**word),
        }
    }

    /// The same, to be written.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Slot::Floats(values) => bytemuck::cast_slice_mut(values),
            Slot::Doubles(values) => bytemuck::cast_slice_mut(values),
            Slot::Word(word) => bytemuck::bytes_of_mut(*word),
        }
    }
}

/// What kind of numbers an entry has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// f32.
    Floats,
    /// f64.
    Doubles,
    /// One u64.
    Word,
}

/// An entry without its numbers, which may be far away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// How workers share it.
    pub share: Share,
    /// What kind of numbers it has.
    pub kind: Kind,
    /// How many.
    pub len: usize,
    /// Whether older versions did not have it: what lacks it starts anew.
    pub is_optional: bool,
}

impl Field {
    /// Of a vector.
    pub fn vector(name: &'static str, share: Share, len: usize) -> Field {
        Field { name, share, kind: Kind::Floats, len, is_optional: false }
    }
}

/// One piece of state.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Its name, in checkpoints too.
    pub name: &'static str,
    /// How workers share it.
    pub share: Share,
    /// Its numbers.
    pub slot: Slot<'a>,
    /// What every number of it is before the first step.
    pub start: f64,
    /// Whether checkpoints of older versions lack it: then it is what it is before the first step.
    pub is_optional: bool,
}

impl<'a> Entry<'a> {
    /// A vector that starts at 0.
    pub fn vector(name: &'static str, share: Share, values: &'a mut [f32]) -> Entry<'a> {
        Entry { name, share, slot: Slot::Floats(values), start: 0.0, is_optional: false }
    }

    /// Numbers that start at 0.
    pub fn doubles(name: &'static str, share: Share, values: &'a mut [f64]) -> Entry<'a> {
        Entry { name, share, slot: Slot::Doubles(values), start: 0.0, is_optional: false }
    }

    /// A word that starts at 0 and is the same on all workers.
    pub fn word(name: &'static str, word: &'a mut u64) -> Entry<'a> {
        Entry { name, share: Share::Same, slot: Slot::Word(word), start: 0.0, is_optional: false }
    }

    /// The same, for numbers that do not start at 0.
    pub fn starting_at(self, start: f64) -> Entry<'a> {
        Entry { start, ..self }
    }

    /// The same, for state that older versions did not have.
    pub fn optional(self) -> Entry<'a> {
        Entry { is_optional: true, ..self }
    }

    /// What it is, without its numbers.
    pub fn field(&self) -> Field {
        let (kind, len) = match &self.slot {
            Slot::Floats(values) => (Kind::Floats, values.len()),
            Slot::Doubles(values) => (Kind::Doubles, values.len()),
            Slot::Word(_) => (Kind::Word, 1),
        };
        Field { name: self.name, share: self.share.clone(), kind, len, is_optional: self.is_optional }
    }

    /// Makes it what it is before the first step.
    pub fn reset(&mut self) {
        match &mut self.slot {
            Slot::Floats(values) => values.fill(self.start as f32),
            Slot::Doubles(values) => values.fill(self.start),
            Slot::Word(word) => **word = self.start as u64,
        }
    }
}
