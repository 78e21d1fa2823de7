//! A byte-level vocabulary from its files: `tokenizer.json`, or a list of tokens and a list of merges.
//!
//! The files write the bytes of a token as letters: a byte that prints is its own letter, the others are the letters from
//! U+0100 on. A space, for example, is `Ġ`.

use crate::{Error, Result, file};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Checked: ids are 0, 1, 2 … without a gap, every byte is there, no two merges make the same.
pub struct Vocabulary {
    pub bytes_of_id: Vec<Vec<u8>>,
    pub id_of_byte: [u32; 256],
    /// What merging makes, in the order of the merges, and its id.
    pub merges: Vec<(Vec<u8>, u32)>,
}

/// The files of the two-file form: tokens and merges, as everybody names them and as OpenAI did.
const PAIRS: [[&str; 2]; 2] = [["vocab.json", "merges.txt"], ["encoder.json", "vocab.bpe"]];

pub fn read(path: &Path) -> Result<Vocabulary> {
    if path.is_dir() {
        return read_folder(path);
    }
    let name = path.file_name().unwrap_or_default();
    match PAIRS.iter().find(|pair| pair.iter().any(|one| name == *one)) {
        Some(pair) => read_pair(pair.map(|one| path.with_file_name(one))),
        None => read_tokenizer_json(path),
    }
}

fn read_folder(folder: &Path) -> Result<Vocabulary> {
    let whole = folder.join("tokenizer.json");
    if whole.is_file() {
        return read_tokenizer_json(&whole);
    }
    match PAIRS.iter().find(|pair| pair.iter().any(|one| folder.join(one).is_file())) {
        Some(pair) => read_pair(pair.map(|one| folder.join(one))),
        None => Err(Error::data(
            folder,
            "no tokenizer in this folder: looked for tokenizer.json, for vocab.json and merges.txt, and for encoder.json and \
             vocab.bpe",
        )),
    }
}

fn read_pair(paths: [PathBuf; 2]) -> Result<Vocabulary> {
    parse_pair(paths.each_ref().map(PathBuf::as_path), file::read)
}

/// The vocabulary of these two files, tokens and merges. `read` has the bytes of each.
pub fn parse_pair([tokens, merges]: [&Path; 2], read: impl Fn(&Path) -> Result<Vec<u8>>) -> Result<Vocabulary> {
    let Value::Object(ids) = parse_json(tokens, &read(tokens)?)? else {
        return Err(Error::data(tokens, "an object of tokens and their ids is expected"));
    };
    let text = String::from_utf8(read(merges)?).map_err(|_| Error::data(merges, "is not UTF-8"))?;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let pairs = lines.map(|line| split_pair(merges, line)).collect::<Result<_>>()?;
    Reader { path: tokens, ids: ids_of(tokens, &ids)? }.vocabulary(pairs)
}

fn read_tokenizer_json(path: &Path) -> Result<Vocabulary> {
    parse_tokenizer_json(path, &file::read(path)?)
}

/// The vocabulary of a `tokenizer.json`, of which these are the bytes.
pub fn parse_tokenizer_json(path: &Path, bytes: &[u8]) -> Result<Vocabulary> {
    let json = parse_json(path, bytes)?;
    let (model, words) = (&json["model"], &json["pre_tokenizer"]);
    let is_bpe = model["type"].as_str().unwrap_or("BPE") == "BPE";
    let is_byte_level =
        words["type"] == "ByteLevel" && words["add_prefix_space"] != true && words["use_regex"] != false;
    let (Some(ids), Some(merges), true) = (
        model["vocab"].as_object(),
        model["merges"].as_array(),
        is_bpe && is_byte_level && json["normalizer"].is_null(),
    ) else {
        return Err(Error::data(
            path,
            "only GPT-2's kind of tokenizer is read: byte-level BPE, no normalizer, no space put before",
        ));
    };
    let mut ids = ids_of(path, ids)?;
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let Some(token) = added["content"].as_str() else {
            return Err(Error::data(path, format!("the added token {added} has no content")));
        };
        ids.insert(token.to_owned(), id_of(path, token, &added["id"])?);
    }
    let pairs = merges.iter().map(|merge| match merge {
        Value::String(line) => split_pair(path, line),
        _ => match [merge[0].as_str(), merge[1].as_str()] {
            [Some(left), Some(right)] => Ok([left.to_owned(), right.to_owned()]),
            _ => Err(Error::data(path, format!("the merge {merge} is not two tokens"))),
        },
    });
    let pairs = pairs.collect::<Result<_>>()?;
    Reader { path, ids }.vocabulary(pairs)
}

fn parse_json(path: &Path, bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|error| Error::data(path, format!("is not JSON: {error}")))
}

fn ids_of(path: &Path, object: &Map<String, Value>) -> Result<HashMap<String, u32>> {
    object.iter().map(|(token, id)| Ok((token.clone(), id_of(path, token, id)?))).collect()
}

fn id_of(path: &Path, token: &str, id: &Value) -> Result<u32> {
    let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
    number
        .ok_or_else(|| Error::data(path, format!("the id of token {token:?} is {id}, and a whole number is expected")))
}

fn split_pair(path: &Path, line: &str) -> Result<[String; 2]> {
    match line.split_once(' ') {
        Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
            Ok([left.to_owned(), right.to_owned()])
        }
        _ => Err(Error::data(path, format!("the merge \"{line}\" is not two tokens with a space between them"))),
    }
}

/// A vocabulary as its file writes it, and the file to blame.
struct Reader<'a> {
    path: &'a Path,
    ids: HashMap<String, u32>,
}

impl Reader<'_> {
    fn vocabulary(&self, pairs: Vec<[String; 2]>) -> Result<Vocabulary> {
        let letters = letters();
        let byte_of: HashMap<char, u8> = letters.iter().copied().zip(0..=255).collect();
        let mut id_of_byte = [0; 256];
        for (id, letter) in id_of_byte.iter_mut().zip(letters) {
            *id = self.id(&letter.to_string())?;
        }
        let merges = self.merges(pairs, &byte_of)?; // first: a missing token is better named than shown as a gap
        Ok(Vocabulary { bytes_of_id: self.bytes_of_id(&byte_of)?, id_of_byte, merges })
    }

    fn bytes_of_id(&self, byte_of: &HashMap<char, u8>) -> Result<Vec<Vec<u8>>> {
        let mut table = vec![None; self.ids.len()];
        for (token, &id) in &self.ids {
            match table.get_mut(id as usize) {
                Some(place @ None) => {
                    *place = Some(bytes_of(token, byte_of).unwrap_or_else(|| token.clone().into_bytes()))
                }
                _ => {
                    return Err(self.error(format!(
                        "{} tokens, but token {token:?} has the id {id}: ids are 0, 1, 2 …, each once",
                        self.ids.len()
                    )));
                }
            }
        }
        Ok(table.into_iter().flatten().collect())
    }

    fn merges(&self, pairs: Vec<[String; 2]>, byte_of: &HashMap<char, u8>) -> Result<Vec<(Vec<u8>, u32)>> {
        let mut seen = HashSet::new();
        let merge = |[left, right]: [String; 2]| {
            let token = left + &right;
            let id = self.id(&token)?;
            let bytes = bytes_of(&token, byte_of).filter(|bytes| bytes.len() > 1);
            let bytes =
                bytes.ok_or_else(|| self.error(format!("token {token:?} is not written in the letters of bytes")))?;
            match seen.insert(token.clone()) {
                true => Ok((bytes, id)),
                false => Err(self.error(format!("two merges make the token {token:?}"))),
            }
        };
        pairs.into_iter().map(merge).collect()
    }

    fn id(&self, token: &str) -> Result<u32> {
        self.ids.get(token).copied().ok_or_else(|| self.error(format!("the token {token:?} is missing")))
    }

    fn error(&self, problem: String) -> Error {
        Error::data(self.path, problem)
    }
}

/// The letter of each byte.
fn letters() -> [char; 256] {
    let mut next = '\u{100}'..;
    std::array::from_fn(|byte| match byte as u8 {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte as u8),
        _ => next.next().expect("there are more letters than bytes"),
    })
}

/// None when a letter stands for no byte.
fn bytes_of(token: &str, byte_of: &HashMap<char, u8>) -> Option<Vec<u8>> {
    token.chars().map(|letter| byte_of.get(&letter).copied()).collect()
}
