//! From bytes to tokens and back: one token a byte, or GPT-2's byte-pair encoding.

#[cfg(feature = "gpt2")]
pub(crate) mod bpe;

use crate::Result;
use std::path::Path;

#[derive(Default)]
#[non_exhaustive] // what there is depends on the features
pub enum Tokenizer {
    /// A token is a byte.
    #[default]
    Bytes,
    #[cfg(feature = "gpt2")]
    Bpe(Box<bpe::Bpe>),
}

impl Tokenizer {
    /// GPT-2's, or one like it, from its files: a folder with `tokenizer.json`, with `vocab.json` and `merges.txt` or with
    /// `encoder.json` and `vocab.bpe`, or one of these files. Without a path, the vocabulary that comes with the program.
    #[cfg(feature = "gpt2")]
    pub fn gpt2(path: Option<&Path>) -> Result<Tokenizer> {
        let bpe = match path {
            None => bpe::Bpe::gpt2(),
            Some(path) => bpe::Bpe::read(path)?,
        };
        Ok(Tokenizer::Bpe(Box::new(bpe)))
    }

    /// An error that says how to have it.
    #[cfg(not(feature = "gpt2"))]
    pub fn gpt2(_path: Option<&Path>) -> Result<Tokenizer> {
        Err(crate::Error::config(
            "tokenizer",
            "gpt2",
            "this program was built without it: build with `--features gpt2`, or use the tokenizer `bytes`",
        ))
    }

    /// How many different tokens there are; every token is below it.
    pub fn vocabulary(&self) -> usize {
        match self {
            Tokenizer::Bytes => 256,
            #[cfg(feature = "gpt2")]
            Tokenizer::Bpe(bpe) => bpe.vocabulary(),
        }
    }

    /// The tokens of a text in any encoding: nothing is lost, also where it is not UTF-8.
    pub fn encode(&self, text: &[u8]) -> Vec<u32> {
        match self {
            Tokenizer::Bytes => text.iter().map(|&byte| u32::from(byte)).collect(),
            #[cfg(feature = "gpt2")]
            Tokenizer::Bpe(bpe) => bpe.encode(text),
        }
    }

    /// The text of tokens. What is not UTF-8 in it, and what is no token, shows as �.
    pub fn decode(&self, tokens: &[u32]) -> String {
        const NO_TOKEN: u8 = 0xff; // never in UTF-8
        let bytes: Vec<u8> = match self {
            Tokenizer::Bytes => tokens.iter().map(|&token| u8::try_from(token).unwrap_or(NO_TOKEN)).collect(),
            #[cfg(feature = "gpt2")]
            Tokenizer::Bpe(bpe) => {
                tokens.iter().flat_map(|&token| bpe.bytes_of(token).unwrap_or(&[NO_TOKEN])).copied().collect()
            }
        };
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
