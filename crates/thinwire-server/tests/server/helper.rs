//! Servers and workers of the tests: small problems, everything on loopback.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use thinwire::options::Decay;
use thinwire::{Config, LearningRate};
use thinwire_server::{JoinOptions, Member, RemoteGroup, Retention, Rules, Run, Security, Server};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub const RETENTION: Retention = Retention { keep: 1000, snapshot_every: 7, snapshots: 2 };

pub fn config(words: &str, steps: u64) -> Config {
    crate::toy::add();
    let rate = LearningRate { warmup: 4, decay: Decay::Cosine, steps, ..LearningRate::constant(0.02) };
    let config = Config::from_toml(&format!("topology = \"central\"\nblock = 16\n{words}")).unwrap();
    Config { learning_rate: Some(rate), ..config }.resolved().unwrap()
}

pub const CASES: [&str; 16] = [
    "name = \"adam\"",
    "name = \"one-bit-adam\"\nwarmup = 10\nclip = 30.0",
    "name = \"zero-one-adam\"\nsync = \"every\"\nsync_every = 3\nvariance_gap = 2",
    "name = \"zero-one-adam\"\ncodec = \"uniform4\"\nexact_codec = \"f32\"",
    "name = \"efficient-adam\"",
    "name = \"efficient-adam\"\ncodec = \"sign\"",
    "name = \"efficient-adam\"\nresidue = \"bf16\"",
    "name = \"local-adam\"\nsync_every = 3\nouter_rate = 0.5\nouter_momentum = 0.5",
    "name = \"local-adam\"\nouter = \"average\"\nsync_every = 4\ncodec = \"sign\"",
    "name = \"lion\"",
    "name = \"lion\"\ncodec_up = \"sign\"\ncodec_down = \"bf16\"",
    "name = \"birder\"",
    "name = \"one-bit-lamb\"\nwarmup = 6",
    "name = \"toy-adam\"\nstart = 9",
    "name = \"adam\"\npreset = \"loco\"",
    "name = \"efficient-adam\"\nfeedback_up = 0.4\nfeedback_down = 0",
];

/// Numbers between −1 and 1, the same whenever asked.
pub fn noise(seed: u64, count: usize) -> Vec<f32> {
    let number = |k: usize| xxh3_64_with_seed(&(k as u64).to_le_bytes(), seed) as i64 as f64 / i64::MAX as f64;
    (0..count).map(|k| number(k) as f32).collect()
}

pub fn start(count: usize) -> Vec<f32> {
    noise(1, count)
}

/// Of ‖x − c‖²/2 for a c of the whole problem, and noise of this worker at this step.
pub fn gradient(worker: usize, step: u64, x: &[f32]) -> Vec<f32> {
    let center = noise(2, x.len());
    let noise = noise(1000 + worker as u64 * 1_000_003 + step, x.len());
    x.iter().zip(&center).zip(noise).map(|((x, c), noise)| x - 2.0 * c + 0.3 * noise).collect()
}

/// ‖x − c‖²/2.
pub fn loss(x: &[f32]) -> f64 {
    let center = noise(2, x.len());
    x.iter().zip(&center).map(|(x, c)| f64::from(x - 2.0 * c).powi(2) / 2.0).sum()
}

pub fn digest(x: &[f32]) -> u64 {
    xxh3_64(bytemuck::cast_slice(x))
}

pub fn rules(workers: usize) -> Rules {
    Rules { quorum: 1, workers, deadline: Duration::from_secs(20), max_members: 64, per_identity: 64 }
}

/// A server of a new run in `dir`.
pub fn serve(dir: &Path, config: &Config, initial: &[f32], rules: Rules, steps: u64) -> Server {
    let run = Run::create(dir, config, initial, rules.workers, steps, "job".to_owned(), RETENTION).unwrap();
    Server::start(run, "127.0.0.1:0".parse().unwrap(), rules, Security::default()).unwrap()
}

/// The same again, at the same address.
pub fn serve_again(dir: &Path, address: SocketAddr, rules: Rules) -> Server {
    let run = Run::open(dir, RETENTION).unwrap();
    Server::start(run, address, rules, Security::default()).unwrap()
}

/// Looks until it is so: a server and its workers are threads of their own.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < give_up, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn join(address: SocketAddr, name: &str) -> RemoteGroup {
    RemoteGroup::join(JoinOptions::new(address.to_string(), name)).unwrap()
}

/// Trains to the end; the parameters.
pub fn train(mut member: Member, mut params: Vec<f32>, worker: usize) -> Vec<f32> {
    while !member.is_done() {
        let gradient = gradient(worker, member.steps(), &params);
        member.report_loss(loss(&params));
        member.step(&mut params, &gradient).unwrap();
    }
    member.leave();
    params
}
