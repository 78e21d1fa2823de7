//! The network as the cost model knows it: the rate of a host's link, the latency of a message, the cost of one.

use crate::bench;
use crate::probe::Probed;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::path::Path;

/// TCP's own bytes in what a cable carries: 1448 of 1538, where 1500 bytes are a packet, 20 and 32 of them are the headers of
/// IP and TCP with time stamps, and Ethernet adds 14 for its header, 4 for its sum, 8 before and 12 after.
pub const FRAMING: f64 = 1448.0 / 1538.0;

/// What `--latency` is if nobody says.
pub const LATENCY: f64 = 50e-6;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Network {
    /// Bits a second of a host's link, each way at once, as it is sold or was measured.
    pub bandwidth: f64,
    /// The part of them that are the engine's bytes.
    pub framing: f64,
    /// Seconds, one way.
    pub latency: f64,
    /// Seconds that a message costs its worker, whatever its length.
    pub message: f64,
}

impl Network {
    pub fn at(self, bandwidth: f64) -> Network {
        Network { bandwidth, ..self }
    }

    /// Seconds that `bytes` take on a host's link.
    pub fn wire(&self, bytes: f64) -> f64 {
        bytes * 8.0 / (self.bandwidth * self.framing)
    }
}

/// What `probe` found, as far as it counts here.
pub struct Measured {
    pub hosts: Vec<usize>,
    pub bandwidth: f64,
    pub latency: f64,
    pub message: Option<f64>,
}

impl Measured {
    /// The engine's own bytes were measured: no framing to add.
    pub fn network(&self) -> Result<Network> {
        let message = self.message.map_or_else(bench::message::seconds, Ok)?;
        Ok(Network { bandwidth: self.bandwidth, framing: 1.0, latency: self.latency, message })
    }
}

/// The file that `probe --json` wrote. The slowest link is the one that a round waits for.
pub fn read(path: &Path) -> Result<Measured> {
    let named = || format!("--network {}", path.display());
    let text = std::fs::read_to_string(path).with_context(named)?;
    let probed: Probed = serde_json::from_str(&text)
        .with_context(|| format!("{}: accepted: what `thinwire probe --json` printed", named()))?;
    let between =
        probed.pairs.iter().filter(|pair| probed.hosts[pair.from] != probed.hosts[pair.to]).collect::<Vec<_>>();
    ensure!(!between.is_empty(), "{}: all its workers are on one host, so it says nothing of a network", named());
    let workers = probed.hosts.len();
    let count = |host: usize, leaves: &dyn Fn(usize) -> bool| {
        (0..workers).filter(|rank| probed.hosts[*rank] == host && leaves(*rank)).count()
    };
    let most = |leaves: &dyn Fn(usize) -> bool| probed.hosts.iter().map(|host| count(*host, leaves)).max().unwrap_or(1);
    let bandwidth = match probed.bits_per_second_exchange {
        // Of what a worker sends to all others, so much leaves its host, where so many share the link.
        Some(rate) => {
            let mates = most(&|_| true);
            rate * mates as f64 * (workers - mates) as f64 / (workers - 1) as f64
        }
        // Of those who send to the next at once, so many share a host's link.
        None => {
            let leaves = |rank: usize| probed.hosts[rank] != probed.hosts[(rank + 1) % workers];
            probed.bits_per_second_all_at_once * most(&leaves).max(1) as f64
        }
    };
    Ok(Measured {
        bandwidth,
        latency: between.iter().map(|pair| pair.latency_seconds).fold(0.0, f64::max),
        message: between.iter().filter_map(|pair| pair.seconds_per_message).reduce(f64::max),
        hosts: probed.hosts,
    })
}
