//! Fuzz targets: for every reader a function that gives it bytes of whoever, and asserts what must hold whatever they are.
//!
//! A target neither panics nor writes where it must not (AddressSanitizer looks), and what it reads is what was written, or an
//! error. Where bytes of no structure would be refused at the first look, such as behind a checksum, a target builds the rest
//! around them. `fuzz/run` builds and runs the targets; `fuzz/corpus` has the inputs that reach the most, a few hundred for each.

pub mod codec;
pub mod files;
pub mod message;
pub mod settings;
pub mod state;
pub mod data;

use libfuzzer_sys::arbitrary::Unstructured;

/// The input of a target, from the front: choices first, and what they are about after them. It never ends, but is zeros at last.
pub struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(Unstructured::new(bytes))
    }

    pub fn byte(&mut self) -> u8 {
        self.0.arbitrary().unwrap_or(0)
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub fn word(&mut self) -> u64 {
        self.0.arbitrary().unwrap_or(0)
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// At most so many bytes.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        self.0.bytes(most.min(self.0.len())).unwrap_or_default()
    }

    /// A length in a byte, and as many bytes as there are of that.
    pub fn part(&mut self) -> &'a [u8] {
        let most = usize::from(self.byte());
        self.bytes(most)
    }

    /// The same with a length of two bytes.
    pub fn long_part(&mut self) -> &'a [u8] {
        let most = usize::from(self.0.arbitrary::<u16>().unwrap_or(0));
        self.bytes(most)
    }

    /// So many bytes, with zeros behind those that are there.
    pub fn padded(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = self.bytes(length).to_vec();
        bytes.resize(length, 0);
        bytes
    }

    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What may be shown to a person: an error names a place in a line or two, and does not echo all that it was given.
pub fn is_short(error: impl std::fmt::Display) {
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() < 4096, "an error of {} bytes: {:.200}", text.len(), text);
}
