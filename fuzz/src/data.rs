//! Data to learn from: images, sentences, vocabularies, gzip.

use crate::{Input, is_short};
use std::fmt::Write;
use std::path::Path;
use thinwire_models::images::Images;
use thinwire_models::inside::{Bpe, Vocabulary, parse_cifar, parse_idx, parse_pair, parse_tokenizer_json};
use thinwire_models::{file, sentences};

/// IDX and CIFAR: every label has a class, every picture has its pixels.
pub fn images(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let read = match input.byte() % 4 {
        0 => idx([(); 4].map(|()| input.long_part().to_vec())),
        1 => {
            let [pictures, held_out] = [idx_pictures(&mut input), idx_pictures(&mut input)];
            let [labels, more] = [idx_labels(&mut input), idx_labels(&mut input)];
            idx([pictures, labels, held_out, more])
        }
        2 => parse_cifar(Path::new("cifar"), input.rest()),
        _ => {
            let size = if input.flag() { 3073 } else { 3074 };
            let records = 1 + usize::from(input.byte() % 12);
            let mut bytes = vec![0; size * records];
            for record in bytes.chunks_mut(size) {
                let start = input.padded(4);
                record[..4].copy_from_slice(&start);
            }
            let cut = usize::from(input.byte());
            bytes.truncate(bytes.len() - if cut < 200 { 0 } else { cut });
            parse_cifar(Path::new("cifar"), &bytes)
        }
    };
    if let Ok(images) = read.map_err(is_short) {
        fits(&images);
    }
}

fn idx(files: [Vec<u8>; 4]) -> thinwire_models::Result<Images> {
    let paths = ["0", "1", "2", "3"].map(Path::new);
    parse_idx(paths, |path| Ok(files[paths.iter().position(|other| *other == path).expect("one of them")].clone()))
}

/// A file whose sizes are mostly those of its bytes.
fn idx_pictures(input: &mut Input) -> Vec<u8> {
    let [count, height, width] = [input.byte() % 5, input.byte() % 5, input.byte() % 5].map(u32::from);
    let mut length = (count * height * width) as usize;
    if input.byte() > 240 {
        length += 1;
    }
    let sizes = [count, height, width].map(u32::to_be_bytes).concat();
    [&[0, 0, 8, 3], &sizes[..], &input.padded(length)].concat()
}

fn idx_labels(input: &mut Input) -> Vec<u8> {
    let count = u32::from(input.byte() % 5);
    [&[0, 0, 8, 1], &count.to_be_bytes()[..], &input.padded(count as usize)].concat()
}

fn fits(images: &Images) {
    let size = images.channels * images.height * images.width;
    for split in [&images.train, &images.held_out] {
        assert_eq!(split.pixels.len(), size * split.labels.len());
        assert!(!split.labels.is_empty() && split.labels.iter().all(|label| usize::from(*label) < images.classes));
    }
}

/// Every example has one of the classes, and its texts.
pub fn sentences(bytes: &[u8]) {
    let Ok(read) = sentences::parse(Path::new("table"), bytes).map_err(is_short) else { return };
    assert!((2..=1000).contains(&read.classes.len()));
    let pairs = read.examples.first().is_some_and(|example| example.pair.is_some());
    for example in &read.examples {
        assert!(example.label < read.classes.len() && !example.text.trim().is_empty());
        assert_eq!(example.pair.is_some(), pairs);
    }
}

/// A vocabulary is whole, or refused. Bytes that are JSON by themselves, or letters of all bytes with tokens and merges of whoever.
pub fn tokenizer(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (kind, encodes) = (input.byte() % 4, input.byte() == 7);
    let path = Path::new("tokenizer.json");
    let read = match kind {
        0 => parse_tokenizer_json(path, input.rest()),
        1 => {
            let first = input.long_part();
            pair(first, input.rest())
        }
        2 => parse_tokenizer_json(path, tokenizer_json(&mut input).as_bytes()),
        _ => {
            let (tokens, merges) = tokens_and_merges(&mut input);
            pair(tokens.as_bytes(), merges.as_bytes())
        }
    };
    let Ok(vocabulary) = read.map_err(is_short) else { return };
    let count = vocabulary.bytes_of_id.len();
    assert!(vocabulary.id_of_byte.iter().all(|id| vocabulary.bytes_of_id[*id as usize].len() == 1));
    assert!(vocabulary.merges.iter().all(|(bytes, id)| vocabulary.bytes_of_id[*id as usize] == *bytes));
    // Seldom: its regular expressions take longer to make than all the rest.
    if encodes {
        reads_what_it_wrote(vocabulary, count, bytes);
    }
}

fn reads_what_it_wrote(vocabulary: Vocabulary, count: usize, text: &[u8]) {
    let bpe = Bpe::of(vocabulary);
    let ids = bpe.encode(text);
    assert!(ids.iter().all(|id| (*id as usize) < count));
    let again = ids.iter().flat_map(|id| bpe.bytes_of(*id).expect("a token")).copied().collect::<Vec<_>>();
    assert_eq!(again, text);
}

fn pair(tokens: &[u8], merges: &[u8]) -> thinwire_models::Result<Vocabulary> {
    let tokens_path = Path::new("vocab.json");
    let read = |path: &Path| Ok(if path == tokens_path { tokens } else { merges }.to_vec());
    parse_pair([tokens_path, Path::new("merges.txt")], read)
}

/// The letters of all bytes, some tokens more, and merges of tokens that are mostly there.
fn tokens_and_merges(input: &mut Input) -> (String, String) {
    let plain = |byte: u32| (33..=126).contains(&byte) || (161..=172).contains(&byte) || (174..=255).contains(&byte);
    let mut other = 256..;
    let letters = (0..256).map(|byte| if plain(byte) { byte } else { other.next().expect("endless") });
    let mut names = letters.filter_map(char::from_u32).map(String::from).collect::<Vec<_>>();
    let mut merges = String::from("#version: 0.2\n");
    for _ in 0..input.byte() % 8 {
        let [left, right] = [(); 2].map(|()| names[(input.word() % names.len() as u64) as usize].clone());
        let _ = writeln!(merges, "{left} {right}");
        if input.byte() < 240 {
            names.push(left + &right);
        }
    }
    merges.push_str(&String::from_utf8_lossy(input.part()));
    let shift = if input.byte() > 240 { 1 } else { 0 };
    let ids = names.iter().zip(shift..).map(|(name, id)| (name.clone(), serde_json::json!(id)));
    let mut ids = ids.collect::<serde_json::Map<_, _>>();
    let more = String::from_utf8_lossy(input.part()).into_owned();
    if !more.is_empty() {
        let id = ids.len();
        ids.insert(more, id.into());
    }
    (serde_json::Value::Object(ids).to_string(), merges)
}

fn tokenizer_json(input: &mut Input) -> String {
    let (tokens, merges) = tokens_and_merges(input);
    let merges = merges.lines().skip(1).collect::<Vec<_>>();
    let added = String::from_utf8_lossy(input.rest());
    serde_json::json!({
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false },
        "added_tokens": [{ "id": 256, "content": added }],
        "model": { "type": "BPE", "vocab": serde_json::from_str::<serde_json::Value>(&tokens).expect("ours"), "merges": merges },
    })
    .to_string()
}

/// A gzip file is unpacked up to a limit, or refused.
pub fn gzip(bytes: &[u8]) {
    const LIMIT: u64 = 1 << 16;
    match file::unpacked(Path::new("file"), bytes, LIMIT).map_err(is_short) {
        Ok(unpacked) => {
            assert!(unpacked.len() as u64 <= LIMIT);
            assert!(bytes.starts_with(&[0x1f, 0x8b]) || unpacked == bytes);
        }
        Err(()) => assert!(bytes.starts_with(&[0x1f, 0x8b]) || bytes.len() as u64 > LIMIT),
    }
}
