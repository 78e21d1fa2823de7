//! GPT-2's byte-pair encoding. The encoding is the crate `tiktoken-rs`; reading a vocabulary is ours.
//!
//! A text is cut into words by a regular expression, and in each word the two neighbours that were merged first when the
//! vocabulary was made are merged, again and again. tiktoken calls a token by its *rank*, its place in that order; a
//! vocabulary calls it by its *id*. In GPT-2 they are the same, in other vocabularies of the kind they need not be.

pub(crate) mod files;

use crate::Result;
use std::path::Path;
use tiktoken_rs::CoreBPE;

/// GPT-2's cut into words, written for speed as tiktoken has it.
const WORDS: &str = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s";

const GPT2_SIZE: u32 = 50_257;

pub struct Bpe {
    core: CoreBPE,
    id_of_rank: Vec<u32>,
    id_of_byte: [u32; 256],
    bytes_of_id: Vec<Vec<u8>>,
}

impl Bpe {
    /// The vocabulary that tiktoken carries.
    pub fn gpt2() -> Bpe {
        let core = tiktoken_rs::r50k_base().expect("what tiktoken carries is whole");
        let bytes_of_id: Vec<_> =
            (0..GPT2_SIZE).map(|id| core.decode_bytes(&[id]).expect("GPT-2's ids have no gap")).collect();
        let id_of_byte = std::array::from_fn(|byte| {
            let id = bytes_of_id.iter().position(|bytes| *bytes == [byte as u8]);
            id.expect("GPT-2 has every byte") as u32
        });
        Bpe { core, id_of_rank: (0..GPT2_SIZE).collect(), id_of_byte, bytes_of_id }
    }

    /// The vocabulary of these files.
    pub fn read(path: &Path) -> Result<Bpe> {
        Ok(Bpe::of(files::read(path)?))
    }

    /// The encoding with a vocabulary that was read.
    pub fn of(vocabulary: files::Vocabulary) -> Bpe {
        let files::Vocabulary { bytes_of_id, id_of_byte, merges } = vocabulary;
        let bytes = (0..=255_u8).map(|byte| (vec![byte], id_of_byte[usize::from(byte)]));
        let ordered: Vec<(Vec<u8>, u32)> = bytes.chain(merges).collect();
        let id_of_rank = ordered.iter().map(|&(_, id)| id).collect();
        let ranks = ordered.into_iter().zip(0..).map(|((bytes, _), rank)| (bytes, rank)).collect();
        let core = CoreBPE::new(ranks, Default::default(), WORDS).expect("the pattern is a valid one");
        Bpe { core, id_of_rank, id_of_byte, bytes_of_id }
    }

    pub fn vocabulary(&self) -> usize {
        self.bytes_of_id.len()
    }

    pub fn bytes_of(&self, id: u32) -> Option<&[u8]> {
        self.bytes_of_id.get(id as usize).map(Vec::as_slice)
    }

    pub fn encode(&self, text: &[u8]) -> Vec<u32> {
        let mut ids = Vec::new();
        for chunk in text.utf8_chunks() {
            ids.extend(self.core.encode_ordinary(chunk.valid()).iter().map(|&rank| self.id_of_rank[rank as usize]));
            ids.extend(chunk.invalid().iter().map(|&byte| self.id_of_byte[usize::from(byte)]));
        }
        ids
    }
}
