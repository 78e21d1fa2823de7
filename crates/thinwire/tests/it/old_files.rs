//! Files of the version before this engine was rebuilt still load: checkpoints go on, configurations come to the same settings.
//!
//! `old/README.md` says what wrote them. The checkpoints were saved after nine steps; `ends.json` has the parameters after sixteen and a sync,
//! as the old version went on.

use crate::common::runs::{Replica, scratch, together};
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};
use thinwire::{Checkpoint, Config, Name};

const LEN: usize = 21;
const SAVED: u64 = 9;
const END: u64 = 16;

fn old(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/old").join(path)
}

fn map(path: &str) -> Map<String, Value> {
    serde_json::from_str(&fs::read_to_string(old(path)).unwrap()).unwrap()
}

fn configuration(name: &str) -> Config {
    let text = fs::read_to_string(old("configs").join(name)).unwrap();
    let read = if name.ends_with(".toml") { Config::from_toml(&text) } else { Config::from_json(&text) };
    read.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A copy that the test may write to, for a checkpoint is not only read.
fn checkpoint(case: &str) -> tempfile::TempDir {
    let copy = scratch();
    for file in fs::read_dir(old("checkpoints").join(case)).unwrap() {
        let path = file.unwrap().path();
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

/// The parameters at the end of the run that goes on from an old checkpoint.
fn goes_on(case: &str) -> (Vec<f32>, Vec<f32>) {
    let (config, dir) = (configuration(&format!("{case}.toml")), checkpoint(case));
    let ends = together(2, |group| {
        let mut replica = Replica::resume(&config, dir.path(), LEN, group)?;
        assert!((replica.worker.steps(), replica.worker.regrouped()) == (SAVED, false), "{case}");
        replica.train(END)?;
        replica.sync()?;
        replica.save(dir.path())?; // in the place of the old one
        Ok(replica.x)
    });
    assert_eq!(ends[0], ends[1], "{case}");
    assert_eq!(Checkpoint::open(dir.path()).unwrap().manifest.step, END);
    (ends[0].clone(), serde_json::from_value(map("ends.json")[case].clone()).unwrap())
}

#[test]
fn an_old_checkpoint_goes_on_bit_for_bit() {
    for case in ["adam", "one-bit-adam", "zero-one-adam", "efficient-adam"] {
        let (new, old) = goes_on(case);
        assert_eq!(new, old, "{case}");
    }
}

#[test]
fn an_old_configuration_comes_to_the_same_settings() {
    for (name, then) in map("resolved.json") {
        let then: Config = serde_json::from_value(then).unwrap_or_else(|error| panic!("{name}, written out: {error}"));
        assert!(then.residual.is_some() || then.name == Name::ADAM, "{name}: `residue` was read");
        // What is absent there, an option of today that it did not know, takes its default.
        assert_eq!(configuration(&name).resolved().unwrap(), then.resolved().unwrap(), "{name}");
    }
}
