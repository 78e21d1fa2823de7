//! Who has which seat, on the disk: what the server that comes after this one must know. The file carries a checksum.

use crate::disk;
use crate::error::{Error, Result};
use crate::run::MEMBERS;
use crate::sealed;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Who sits where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roster {
    pub seats: Vec<String>,
    /// Those whose seats others have now; one more than the last round that counted them.
    pub gone: BTreeMap<String, u64>,
    /// Of seats that others had before: the round from which they are their members'. What counted the seat before that did not count
    /// them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub since: BTreeMap<u32, u64>,
}

impl Roster {
    /// Of the run in `dir`; nobody, if it is new.
    pub fn read(dir: &Path) -> Result<Roster> {
        let path = dir.join(MEMBERS);
        if !disk::exists(&path).map_err(Error::io(&path))? {
            return Ok(Roster::default());
        }
        // A damaged checksum is an unknown field; older files have none.
        serde_json::from_value(sealed::read(&path)?.0).map_err(|error| Error::damaged(&path, error))
    }

    pub fn write(&self, dir: &Path) -> Result<()> {
        sealed::write(&dir.join(MEMBERS), self)
    }
}
