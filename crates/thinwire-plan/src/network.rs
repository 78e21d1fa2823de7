//! The network as the cost model knows it: the rate of a host's link, the latency of a message, the cost of one.

use crate::bench::{self, Benched};
use crate::kernels;
use crate::probe::{EXACT_F32, Probed};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::ops::RangeInclusive;
use std::path::Path;
use thinwire::CodecName;
use thinwire::inside::exchange::hosts::Hosts;

/// TCP's own bytes in what a cable carries: 1448 of 1538, where 1500 bytes are a packet, 20 and 32 of them are the headers of
/// IP and TCP with time stamps, and Ethernet adds 14 for its header, 4 for its sum, 8 before and 12 after.
pub const FRAMING: f64 = 1448.0 / 1538.0;

/// What `--latency` is if nobody says.
pub const LATENCY: f64 = 50e-6;

/// The network as the cost model knows it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Network {
    /// Bits a second of a host's link, each way at once, as it is sold or was measured.
    #[serde(rename = "bits_per_second")]
    pub bandwidth: f64,
    /// The part of them that are the engine's bytes.
    pub framing: f64,
    /// Seconds, one way.
    #[serde(rename = "latency_seconds")]
    pub latency: f64,
    /// Seconds that a message costs its worker, whatever its length.
    #[serde(rename = "seconds_per_message")]
    pub message: f64,
}

impl Network {
    pub(crate) fn at(self, bandwidth: f64) -> Network {
        Network { bandwidth, ..self }
    }

    /// Seconds that `bytes` take on a host's link.
    pub(crate) fn wire(&self, bytes: f64) -> f64 {
        bytes * 8.0 / (self.bandwidth * self.framing)
    }
}

/// What figures of a file may be: a rate as of a link, a latency and a message of at most ten seconds.
const RATES: RangeInclusive<f64> = 1e3..=1e14;
const DELAYS: RangeInclusive<f64> = 0.0..=10.0;

/// What `probe` found, as far as it counts here.
pub struct Links {
    /// The host of each worker.
    pub hosts: Vec<usize>,
    /// Bits a second of a host's link while all send to the next at once.
    all_at_once: f64,
    /// The exact mean in f32: its values, the bits that crossed the busiest link, its seconds.
    mean: Option<(f64, f64, f64)>,
    latency: f64,
    message: Option<f64>,
}

impl Links {
    /// What its rate is from.
    pub fn origin(&self) -> &'static str {
        match self.mean {
            Some(_) => "from the time of probe's mean in f32, without packing",
            None => "from the slowest worker's rate while all send to the next, because probe took no mean in f32",
        }
    }

    /// The network, by what a mean in f32 took over it: its bits by its seconds, less its packing; without one by the rate while all
    /// send to the next. `crowding` is how many times as long packing took because workers share cores. What is not in `benched` is
    /// measured now.
    pub fn network(&self, crowding: f64, benched: Option<&Benched>) -> Result<Network> {
        let bandwidth = match self.mean {
            Some((values, bits, seconds)) => {
                let benched = benched.and_then(|benched| benched.codec(CodecName::F32));
                let codec =
                    benched.map_or_else(|| kernels::speed(CodecName::F32, values.min(500_000.0) as usize), Ok)?;
                // Filled and coded, added up, decoded and applied.
                let packing = values * (codec.encode + 2.0 * codec.decode_add) * crowding;
                bits / (seconds - packing).max(seconds / 2.0)
            }
            None => self.all_at_once,
        };
        let message = self.message.map_or_else(|| bench::message_seconds(benched), Ok)?;
        Ok(Network { bandwidth, framing: 1.0, latency: self.latency, message })
    }
}

/// The file that `probe --json` wrote. The slowest link is the one that a round waits for.
pub fn read(path: &Path) -> Result<Links> {
    let named = || format!("--network {}", path.display());
    let text = std::fs::read_to_string(path).with_context(named)?;
    let probed: Probed = serde_json::from_str(&text)
        .with_context(|| format!("{}: expected what `thinwire probe --json` printed", named()))?;
    // Any numbers name a host, in the file.
    let hosts = Hosts::new(&probed.hosts).of_all().to_vec();
    let workers = hosts.len();
    ensure!((1..=4096).contains(&workers), "{}: expected 2 to 4096 workers, found {workers}", named());
    let known = probed.pairs.iter().all(|pair| pair.from.max(pair.to) < workers);
    ensure!(known, "{}: expected pairs among its {workers} workers, found others", named());
    let one_host = hosts.iter().all(|host| *host == 0);
    ensure!(
        !one_host,
        "{}: expected workers on several hosts, found all on one host, which says nothing about a network",
        named()
    );
    let between = probed.pairs.iter().filter(|pair| hosts[pair.from] != hosts[pair.to]).collect::<Vec<_>>();
    ensure!(!between.is_empty(), "{}: expected a pair of workers on two hosts, for the latency, found none", named());
    for pair in &between {
        let delays =
            [("latency_seconds", Some(pair.latency_seconds)), ("seconds_per_message", pair.seconds_per_message)];
        for (key, seconds) in delays {
            let sound = seconds.is_none_or(|seconds| DELAYS.contains(&seconds));
            let seconds = seconds.unwrap_or_default();
            ensure!(sound, "{}: invalid {key} = {seconds}: expected 0 to 10 seconds (for example 5e-5)", named());
        }
    }
    let most = |leaves: &dyn Fn(usize) -> bool| {
        let on = |host: usize| (0..workers).filter(|rank| hosts[*rank] == host && leaves(*rank)).count();
        hosts.iter().map(|host| on(*host)).max().unwrap_or(1).max(1) as f64
    };
    // Of those who send to the next at once, so many share a host's link; of what each sends to all in a mean, so much leaves it.
    let sharing = most(&|rank| hosts[rank] != hosts[(rank + 1) % workers]);
    let mates = most(&|_| true);
    let leaving = mates * (workers as f64 - mates) / (workers as f64 - 1.0);
    let mean = probed.means.iter().find(|mean| mean.name == EXACT_F32);
    let rate = probed.bits_per_second_all_at_once;
    ensure!(
        RATES.contains(&rate),
        "{}: invalid bits_per_second_all_at_once = {rate:e}: expected 1e3 to 1e14 (for example 9.4e8)",
        named()
    );
    if let Some(mean) = mean {
        let rate = 8.0 * mean.bytes_sent_per_worker as f64 * leaving / mean.seconds;
        ensure!(
            mean.seconds > 0.0 && RATES.contains(&rate),
            "{}: {EXACT_F32}: expected a rate of 1e3 to 1e14 bits a second, found {} bytes a worker in {} seconds",
            named(),
            mean.bytes_sent_per_worker,
            mean.seconds
        );
    }
    Ok(Links {
        all_at_once: probed.bits_per_second_all_at_once * sharing,
        mean: mean.map(|mean| (mean.values as f64, 8.0 * mean.bytes_sent_per_worker as f64 * leaving, mean.seconds)),
        latency: between.iter().map(|pair| pair.latency_seconds).fold(0.0, f64::max),
        message: between.iter().filter_map(|pair| pair.seconds_per_message).reduce(f64::max),
        hosts,
    })
}
