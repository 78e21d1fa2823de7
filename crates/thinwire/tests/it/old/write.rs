//! Writes the files in this folder, at commit d1371e9: `cargo run -p thinwire-server --example old_files DIR`, where DIR has
//! `configs/`. README.md says what they are.

#[path = "../../thinwire/tests/common/runs.rs"]
mod runs;

use runs::{Replica, together};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use thinwire::Config;

const LEN: usize = 21;
const SAVED: u64 = 9;
const END: u64 = 16;

fn read(path: &Path) -> Config {
    let text = fs::read_to_string(path).unwrap();
    match path.extension().unwrap().to_str().unwrap() {
        "toml" => Config::from_toml(&text).unwrap(),
        _ => Config::from_json(&text).unwrap(),
    }
}

fn main() {
    let dir = std::env::args().nth(1).expect("a folder");
    let dir = Path::new(&dir);
    let mut resolved = Map::new();
    let mut paths = fs::read_dir(dir.join("configs")).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        resolved.insert(name, serde_json::to_value(read(&path).resolved().unwrap()).unwrap());
    }
    fs::write(dir.join("resolved.json"), serde_json::to_string_pretty(&resolved).unwrap()).unwrap();

    let mut ends = Map::new();
    for case in ["adam", "one-bit-adam", "zero-one-adam", "efficient-adam"] {
        let config = read(&dir.join("configs").join(format!("{case}.toml")));
        let saved = dir.join("checkpoints").join(case);
        fs::create_dir_all(&saved).unwrap();
        let states = together(2, |group| {
            let mut replica = Replica::new(&config, LEN, group)?;
            replica.train(SAVED)?;
            replica.save(&saved)?;
            Ok(replica.is_synced())
        });
        assert_eq!(states[0], case != "zero-one-adam", "0/1 Adam is saved between two syncs");
        let x = together(2, |group| {
            let mut replica = Replica::resume(&config, &saved, LEN, group)?;
            replica.train(END)?;
            replica.sync()?;
            Ok(replica.x)
        });
        assert_eq!(x[0], x[1]);
        ends.insert(case.to_owned(), json!(x[0]));
    }
    fs::write(dir.join("ends.json"), Value::Object(ends).to_string()).unwrap();

    let served = dir.join("served");
    let config = Config { topology: Some(thinwire::layout::Topology::Central), ..read(&dir.join("configs/served.toml")) };
    let x = runs::start(LEN);
    let retention = thinwire_server::Retention { keep: 10, snapshot_every: 10 };
    drop(thinwire_server::Run::create(&served, &config.resolved().unwrap(), &x, 2, END, "job".to_owned(), retention).unwrap());
}
