//! A folder of an older version is refused with that reason, and left as it is.

use crate::helper::RETENTION;
use std::path::Path;
use thinwire_server::Run;

/// `run.json` as version 1 wrote it; the engine's README beside it says how.
#[test]
fn a_folder_of_version_1_is_refused_with_that_reason() {
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("../thinwire/tests/it/old/run.json");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.json");
    std::fs::copy(&old, &path).unwrap();
    let error = Run::open(dir.path(), RETENTION).err().expect("an error").to_string();
    assert!(error.contains("older version") && error.contains("--overwrite"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&old).unwrap());
}
