//! State from elsewhere: snapshots of a server, checkpoints of a folder.

use crate::{Input, is_short};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use thinwire::inside::exchange::hosts::Hosts;
use thinwire::state::{Entry, Share};
use thinwire::{Checkpoint, Config, Solo, Worker};
use thinwire_server::snapshot::{self, Own};

const VALUES: usize = 5;

const CONFIGURATIONS: [&str; 4] = [
    "name = \"adam\"\nlearning_rate = { peak = 0.01 }",
    "name = \"one-bit-adam\"\nwarmup = 2\nlearning_rate = { peak = 0.01 }",
    "name = \"zero-one-adam\"\nlearning_rate = { peak = 0.01 }",
    "name = \"efficient-adam\"\nlearning_rate = { peak = 0.01 }",
];

/// A worker with one of the configurations, which are read once.
fn worker(choice: u8) -> Worker {
    static ALL: LazyLock<[Config; CONFIGURATIONS.len()]> =
        LazyLock::new(|| CONFIGURATIONS.map(|words| Config::from_toml(words).expect("ours")));
    let config = &ALL[usize::from(choice) % CONFIGURATIONS.len()];
    Worker::new(config, &[0.5; VALUES], Box::new(Solo)).expect("ours")
}

/// A worker takes a snapshot and goes on, or refuses it.
pub fn snapshot(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut worker = worker(input.byte());
    let own = input.long_part();
    let own = Own::parse(Path::new("own"), own).map_err(is_short).unwrap_or_default();
    let mut params = [0.5; VALUES];
    if snapshot::restore(&mut worker, &mut params, input.rest(), &own).map_err(is_short).is_ok() {
        let mut again = params;
        snapshot::take(&mut worker, &mut again).expect("what was taken");
        let _ = worker.step(&mut params, &[0.1; VALUES], 0.01).map_err(is_short);
    }
}

/// A snapshot of each kind of worker, for a corpus to start from.
pub fn snapshots() -> Vec<Vec<u8>> {
    let each = (0..CONFIGURATIONS.len() as u8).map(|choice| {
        let (mut worker, mut params) = (worker(choice), [0.5; VALUES]);
        worker.step(&mut params, &[0.1; VALUES], 0.01).expect("a step");
        let taken = snapshot::take(&mut worker, &mut params).expect("ours");
        [&[choice, 0, 0], &taken[..]].concat()
    });
    each.collect()
}

/// What a checkpoint is read into: an entry of every kind.
#[derive(Clone, Debug, PartialEq)]
struct State {
    params: [f32; VALUES],
    residual: [f32; VALUES],
    cut: Vec<f32>,
    factors: [f64; 2],
    step: u64,
    /// Where this worker's part of `cut` starts.
    from: usize,
}

impl State {
    fn new(rank: usize, workers: usize) -> State {
        let (from, to) = (rank * VALUES / workers, (rank + 1) * VALUES / workers);
        State {
            params: [7.0; VALUES],
            residual: [7.0; VALUES],
            cut: vec![7.0; to - from],
            factors: [7.0; 2],
            step: 7,
            from,
        }
    }

    fn entries(&mut self) -> Vec<Entry<'_>> {
        let range = self.from..self.from + self.cut.len();
        vec![
            Entry::vector("params", Share::Same, &mut self.params),
            Entry::vector("up_residue", Share::Residual, &mut self.residual),
            Entry::vector("down_residue", Share::Cut(range), &mut self.cut),
            Entry::doubles("factors", Share::Mean, &mut self.factors),
            Entry::word("step", &mut self.step),
        ]
    }

    /// As a file has it.
    fn file(&mut self) -> Vec<u8> {
        let entries = self.entries();
        let views = entries.iter().map(|entry| (entry.name, thinwire::inside::checkpoint::view(&entry.slot)));
        safetensors::serialize(views, None).expect("names and numbers")
    }
}

const MANIFEST: &str = r#"{"format":"thinwire-checkpoint","version":1,"step":7,"parameters":5,"config":{},"files":[]}"#;

/// A checkpoint is read whole, or nothing is touched.
pub fn checkpoint(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let [of, workers, rank] = [input.byte() % 4, 1 + input.byte() % 3, input.byte()].map(usize::from);
    let manifest = match of {
        0 => String::from_utf8_lossy(input.long_part()).into_owned(),
        of => MANIFEST.replace("[]", &format!("[{}]", [r#"{"name":"a","bytes":1,"digest":""}"#].repeat(of).join(","))),
    };
    let Ok(found) = Checkpoint::parse(PathBuf::from("folder"), &manifest).map_err(is_short) else { return };
    let rank = rank % workers;
    let hosts = if input.flag() { Hosts::apart(workers) } else { Hosts::new(&vec![0; workers]) };
    let mut files = Vec::new();
    while !input.is_empty() && files.len() < 4 {
        files.push(input.long_part());
    }
    let mut state = State::new(rank, workers);
    let before = state.clone();
    if found.read_from(&files, rank, &hosts, &mut state.entries()).map_err(is_short).is_err() {
        assert_eq!(state, before, "a part was written");
    }
}

/// A checkpoint of each number of workers, for a corpus to start from.
pub fn checkpoints() -> Vec<Vec<u8>> {
    let file = |rank, workers| {
        let file = State::new(rank, workers).file();
        [&(file.len() as u16).to_le_bytes()[..], &file].concat()
    };
    let all = |workers: usize| (0..workers).flat_map(|rank| file(rank, workers)).collect::<Vec<_>>();
    let mut each = Vec::new();
    for (of, workers) in [(1, 1), (2, 2), (3, 3), (2, 3), (3, 1), (1, 2)] {
        let head = [of as u8, workers as u8 - 1, 0, 1];
        each.push([&head[..], &all(of)].concat());
    }
    let manifest = MANIFEST.replace("[]", r#"[{"name":"step-7-worker-0-of-1.safetensors","bytes":1,"digest":""}]"#);
    let head = [&[0, 0, 0], &(manifest.len() as u16).to_le_bytes()[..], manifest.as_bytes(), &[1]].concat();
    each.push([&head[..], &all(1)].concat());
    each
}
