//! Small JSON files that carry a checksum of themselves, so that damage is an error and not another run.
//!
//! ```text
//! {
//!   "checksum": "XXH3 of all other lines, in hex",
//!   …
//! }
//! ```
//!
//! Files written before there were checksums have no such line; whoever reads them says whether that is accepted.

use crate::disk;
use crate::error::{Error, Result};
use crate::frames::write_whole;
use serde::Serialize;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

const KEY: &str = "  \"checksum\": \"";

/// Writes an object, by rename.
pub fn write(path: &Path, object: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(object).expect("plain data");
    let rest = text.strip_prefix("{\n").expect("an object that is not empty");
    let sealed = format!("{{\n{KEY}{:016x}\",\n{rest}", xxh3_64(text.as_bytes()));
    write_whole(path, sealed.as_bytes())
}

/// The JSON in a file, and whether it had a checksum. One that does not fit is an error.
pub fn read(path: &Path) -> Result<(serde_json::Value, bool)> {
    let text = String::from_utf8(disk::read(path).map_err(Error::io(path))?);
    parse(path, &text.map_err(|error| Error::damaged(path, format!("not text: {error}")))?)
}

/// The same of the text of the file at `path`.
pub fn parse(path: &Path, text: &str) -> Result<(serde_json::Value, bool)> {
    let sum =
        text.strip_prefix("{\n").and_then(|rest| rest.strip_prefix(KEY)).and_then(|rest| rest.split_once("\",\n"));
    let whole = match sum {
        Some((sum, rest)) => {
            let whole = format!("{{\n{rest}");
            let found = format!("{:016x}", xxh3_64(whole.as_bytes()));
            if found != sum {
                let problem = format!("checksum: expected {found}, found {sum} (put the file back from a copy)");
                return Err(Error::damaged(path, problem));
            }
            whole
        }
        None => text.to_owned(),
    };
    let value = serde_json::from_str(&whole).map_err(|error| Error::damaged(path, format!("not JSON: {error}")))?;
    Ok((value, sum.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_byte_is_covered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file.json");
        let object = json!({ "name": "lab", "rate": 0.1, "seats": [1, 2] });
        write(&path, &object).unwrap();
        assert_eq!(read(&path).unwrap(), (object.clone(), true));
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            // Where the line of the checksum itself is hit, the file looks like an older one, with a key that no reader knows.
            assert!(
                read(&path).is_err() || read(&path).is_ok_and(|(value, sealed)| !sealed && value != object),
                "{at}"
            );
        }
    }
}
