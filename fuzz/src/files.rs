//! A server's files: frames, the records and inputs in them, and the small files with checksums.
//!
//! Checksums keep damage out, not malice: what is behind them is fuzzed too, with checksums that fit.

use crate::message::{Served, VALUES, message};
use crate::{Input, is_short};
use std::io::Cursor;
use std::path::Path;
use thinwire_server::frames;
use thinwire_server::inside::{make_again, messages, parse_residue, parse_sealed, replay};
use thinwire_server::log::Record;
use thinwire_server::run::parse_spec;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 4] = *b"TWLG";

/// A frame as the first lines of the server's `frames.rs` have it.
fn frame(number: u64, contents: &[u8]) -> Vec<u8> {
    let head = [&MAGIC[..], &number.to_le_bytes(), &(contents.len() as u64).to_le_bytes(), contents].concat();
    [&head[..], &xxh3_64(&head).to_le_bytes()].concat()
}

/// Whole frames are found, and what is behind them is a torn end or damage.
pub fn frames(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (mut file, mut whole) = (Vec::new(), Vec::new());
    for number in 0..input.byte() % 5 {
        let contents = input.part();
        whole.push((u64::from(number), contents));
        file.extend(frame(number.into(), contents));
    }
    let end = file.len();
    match input.byte() % 3 {
        0 => file.extend(input.rest()),
        1 => file.truncate(end - usize::from(input.byte()).min(end)),
        _ if file.is_empty() => {}
        _ => {
            let at = usize::from(input.byte()) % file.len();
            file[at] ^= input.byte();
        }
    }
    let found = frames::look(&mut Cursor::new(&file), file.len() as u64, MAGIC).expect("memory can be read");
    let mut at = 0;
    for (place, i) in found.places.iter().zip(0..) {
        assert_eq!(place.start(), at, "frames lie one behind the other");
        let contents = &file[place.offset as usize..(place.offset + place.length) as usize];
        at = place.offset + place.length + 8;
        assert_eq!(file[place.start() as usize..at as usize], frame(place.number, contents));
        if at as usize <= end {
            assert_eq!(Some(&(place.number, contents)), whole.get(i), "another frame than was written");
        }
    }
    assert_eq!(found.end, at);
    assert_eq!(found.problem().is_some(), at < file.len() as u64);
}

/// A record of the log is read as it is written; the inputs of a round are the messages, or refused.
pub fn records(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let of_log = input.flag();
    if of_log {
        let contents = input.rest().to_vec();
        if let Some(record) = Record::parse(3, contents.clone()) {
            assert_eq!([&record.head()[..], &record.message].concat(), contents);
        }
        return;
    }
    Served::one(input.byte(), |served| of_inputs(&mut input, served));
}

/// An entry of whoever, or one of messages that are hostile themselves.
fn of_inputs(input: &mut Input, served: &mut Served) {
    let expected = served.expected(true, 3);
    let bytes = expected.to_bytes();
    let owner = &mut served.owner;
    let length = owner.length(&bytes).expect("a round of ours");
    let entry = match input.byte() % 4 {
        0 => input.rest().to_vec(),
        1 => [&[2][..], &input.padded(4 * VALUES)].concat(),
        kind => {
            let came = (0..input.byte() % 5).map(|_| message(input, &expected, length)).collect::<Vec<_>>();
            let slots =
                came.iter().filter(|_| kind == 2).flat_map(|_| input.byte().to_le_bytes().into_iter().chain([0; 3]));
            let head = [&[if kind == 2 { 3 } else { 1 }][..], &(came.len() as u32).to_le_bytes()].concat();
            let slots = slots.collect::<Vec<_>>();
            let lengths = came.iter().flat_map(|message| (message.len() as u64).to_le_bytes()).collect::<Vec<_>>();
            [head, slots, lengths, came.concat()].concat()
        }
    };
    if let Some((slots, messages)) = messages(&entry) {
        assert!(slots.is_empty() || slots.len() == messages.len());
    }
    let Some(record) = make_again(owner, &bytes, 3, &entry) else {
        let record = Record { round: 3, counted: Vec::new(), message: Vec::new().into() };
        let _ = replay(owner, &bytes, &record, &entry).map_err(is_short);
        return;
    };
    // What was made of the messages is what they lead to again.
    replay(owner, &bytes, &record, &entry).expect("the same messages");
}

/// Small files: E with its notes, and JSON with a checksum.
pub fn small(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let path = Path::new("file");
    match input.byte() % 3 {
        0 => {
            let _ = parse_residue(path, input.rest(), VALUES).map_err(is_short);
        }
        seal => {
            let Ok(text) = std::str::from_utf8(input.rest()) else { return };
            let rest = text.strip_prefix("{\n").filter(|_| seal == 2);
            let seal = |rest| format!("{{\n  \"checksum\": \"{:016x}\",\n{rest}", xxh3_64(text.as_bytes()));
            let text = rest.map_or(text.to_owned(), seal);
            let Ok((value, sealed)) = parse_sealed(path, &text).map_err(is_short) else { return };
            let Ok(spec) = parse_spec(path, value, sealed).map_err(is_short) else { return };
            let _ = spec.config.decide().map_err(is_short);
        }
    }
}
