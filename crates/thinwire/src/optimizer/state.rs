//! An optimizer's state as a list of names and slices: saving reads it, loading writes it, `inspect` prints it.

use std::ops::Range;

/// How an entry passes to another number of workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Share {
    /// The same on all workers: anyone's will do.
    Same,
    /// Each worker's own; what counts is the mean, which every new worker gets.
    Mean,
    /// Cut among the workers; this one holds this range, and a new worker gets its new one.
    Cut(Range<usize>),
}

/// Where an entry's numbers are.
#[derive(Debug)]
pub enum Slot<'a> {
    Floats(&'a mut [f32]),
    Doubles(&'a mut [f64]),
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

    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Slot::Floats(values) => bytemuck::cast_slice_mut(values),
            Slot::Doubles(values) => bytemuck::cast_slice_mut(values),
            Slot::Word(word) => bytemuck::bytes_of_mut(*word),
        }
    }
}

#[derive(Debug)]
pub struct Entry<'a> {
    pub name: &'static str,
    pub share: Share,
    pub slot: Slot<'a>,
}

impl<'a> Entry<'a> {
    pub fn vector(name: &'static str, share: Share, values: &'a mut [f32]) -> Entry<'a> {
        Entry { name, share, slot: Slot::Floats(values) }
    }

    pub fn doubles(name: &'static str, share: Share, values: &'a mut [f64]) -> Entry<'a> {
        Entry { name, share, slot: Slot::Doubles(values) }
    }

    pub fn word(name: &'static str, word: &'a mut u64) -> Entry<'a> {
        Entry { name, share: Share::Same, slot: Slot::Word(word) }
    }
}
