//! Packing on a GPU, by arithmetic: the bytes that a step moves through its memory and over PCIe, over their rates.
//!
//! Nothing here is measured. A step is charged with every vector that the optimizer keeps, read once and written once, which is at
//! most what it moves: a step after a sync leaves some alone. Launches and waits are not counted. docs/gpu.md has the same arithmetic
//! for one case.

use crate::methods::Method;
use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;
use std::path::Path;
use thinwire::options::Precision;
use thinwire::{CodecName, Config, Round};

/// What passes over memory reach of the rate on the data sheet.
const REACHED: f64 = 0.85;

/// What a copy from pinned memory reaches of 16 lanes of PCIe 3, 4 and 5, whose raw rates are 16, 32 and 63 GB/s.
const PCIE3: f64 = 12e9;
const PCIE4: f64 = 25e9;
const PCIE5: f64 = 50e9;

/// Where the arithmetic runs, and how fast bytes move there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Device {
    /// As `--device` has it, or as its report says.
    pub name: String,
    /// Bytes a second through its memory, as passes reach them.
    pub memory_bytes_per_second: f64,
    /// Bytes a second between it and its host, each way.
    pub pcie_bytes_per_second: f64,
    /// Its memory, if that is known.
    #[serde(skip)]
    pub memory: Option<u64>,
}

/// A name for `--device`, bytes a second through memory as the vendor's data sheet has them, PCIe, and gigabytes of memory.
const KNOWN: [(&str, f64, f64, u64); 6] = [
    ("v100", 0.9e12, PCIE3, 32),
    ("a100", 2.039e12, PCIE4, 80),
    ("h100", 3.35e12, PCIE5, 80),
    ("b200", 8.0e12, PCIE5, 180),
    ("rtx4090", 1.008e12, PCIE4, 24),
    ("mi300x", 5.3e12, PCIE5, 192),
];

/// What `--device` asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// This machine's CPU, measured.
    Cpu,
    /// A GPU, by arithmetic.
    Gpu(Device),
}

impl Device {
    /// One of the table.
    pub(crate) fn known(name: &str) -> Option<Device> {
        let row = KNOWN.iter().find(|row| row.0 == name.to_lowercase());
        row.map(|(name, memory, pcie, gigabytes)| Device {
            name: (*name).to_owned(),
            memory_bytes_per_second: REACHED * memory,
            pcie_bytes_per_second: *pcie,
            memory: Some(gigabytes * 1_000_000_000),
        })
    }

    /// What `python -m thinwire.device --json` printed: the rate of its copy.
    fn read(path: &Path) -> Result<Device> {
        let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        let name = report["device"].as_str().context("expected a report of `python -m thinwire.device --json`")?;
        ensure!(report["equal"] != false, "{name} does not give the engine's bits, so nothing would run on it");
        let rows = report["bandwidth"].as_array().map_or(&[][..], Vec::as_slice);
        let copy = rows.iter().find(|row| row["kernel"] == "copy").and_then(|row| row["gigabytes_per_second"].as_f64());
        let copy = copy.filter(|rate| *rate > 0.0);
        let copy = copy.context("expected the rate of a copy: Triton's interpreter has none, a GPU is needed")?;
        Ok(Device {
            name: name.to_owned(),
            memory_bytes_per_second: copy * 1e9,
            pcie_bytes_per_second: PCIE4,
            memory: None,
        })
    }
}

/// What `text`, the value of `--device`, names.
pub fn asked(text: &str) -> Result<Asked> {
    if text == "cpu" {
        return Ok(Asked::Cpu);
    }
    if let Some(device) = Device::known(text) {
        return Ok(Asked::Gpu(device));
    }
    if text.ends_with(".json") {
        return Ok(Asked::Gpu(Device::read(Path::new(text)).with_context(|| format!("--device {text}"))?));
    }
    let names = KNOWN.map(|row| row.0).join(", ");
    Err(anyhow!(
        "invalid --device {text}: expected cpu, {names}, or a file FILE.json that `python -m thinwire.device --json` printed"
    ))
}

/// Seconds of a step of `params` parameters beyond computing: all that the worker does, and the owner's part of it.
pub struct Packed {
    pub pack: f64,
    pub serve: f64,
}

impl Device {
    /// A step of this method with this round. The group has so many workers on so many hosts.
    pub(crate) fn pack(&self, method: &Method, round: Round, params: usize, workers: usize, hosts: usize) -> Packed {
        let config = &method.config;
        let [up, down] = payloads(config, round);
        let residual = if round == Round::Coarse { residual(config) } else { 0.0 };
        let owned = 1.0 / workers as f64;
        let from_hosts = hosts as f64 * owned;
        let vectors = method.algorithm.vectors().len() as f64;
        let clip = if config.clip.is_some() { 4.0 * 4.0 } else { 0.0 };
        // The gradient, x, the state, what the code lost; parameters and gradients to the flat vectors and back.
        let own = 4.0 + 8.0 * (1.0 + vectors) + clip + residual + up + down + FLAT;
        let serve = owned * (residual + down) + from_hosts * up;
        // Up to the owner's host and the mean of what it owns; what came for it, and all means.
        let pcie_own = if round == Round::Skipped || workers == 1 { 0.0 } else { up + down };
        let pcie_serve = if pcie_own > 0.0 { owned * down + from_hosts * up } else { 0.0 };
        let seconds = |memory: f64, pcie: f64| {
            params as f64 * (memory / self.memory_bytes_per_second + pcie / self.pcie_bytes_per_second)
        };
        let serve = seconds(serve, pcie_serve);
        Packed { pack: seconds(own, pcie_own) + serve, serve }
    }

    /// AdamW's fused pass under DDP: it reads the gradient, and reads and writes x, m and v. NCCL's copies overlap with the all-reduce.
    pub(crate) fn adamw(&self, params: usize) -> f64 {
        28.0 * params as f64 / self.memory_bytes_per_second
    }
}

/// Parameters and gradients are copied into the flat vectors, and parameters back.
const FLAT: f64 = 24.0;

/// Bytes a value that are made and that are read, up and down.
fn payloads(config: &Config, round: Round) -> [f64; 2] {
    let block = config.block.unwrap_or(512);
    let bytes =
        |codec: Option<CodecName>| codec.map_or(0.0, |codec| codec.codec().encoded_len(block) as f64 / block as f64);
    match round {
        Round::Exact => [config.exact_codec; 2].map(bytes),
        Round::Coarse => [config.codec_up, config.codec_down].map(bytes),
        _ => [0.0; 2],
    }
}

/// A residual is read and written.
fn residual(config: &Config) -> f64 {
    let (block, precision) = (config.block.unwrap_or(512), config.residual.unwrap_or(Precision::F32));
    2.0 * precision.bytes(block, block) as f64 / block as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use thinwire::{Name, ZeroOneAdam};

    fn gpu() -> Device {
        Device { name: "one".to_owned(), memory_bytes_per_second: 1e9, pcie_bytes_per_second: 1e6, memory: None }
    }

    fn method(config: Config) -> Method {
        Method::new(&config).unwrap()
    }

    /// A billion values at a byte a nanosecond: seconds are bytes a value.
    #[test]
    fn bytes_by_hand() {
        let values = 1_000_000_000;
        // The gradient, x, m and v, and the copies; 4 bytes of payload made and 4 read.
        let adam = method(Config::new(Name::ADAM));
        let alone = gpu().pack(&adam, Round::Exact, values, 1, 1);
        assert!((alone.pack - (4.0 + 24.0 + 24.0 + 8.0 + 8.0)).abs() < 1e-6, "{}", alone.pack);
        // u and the anchor too, a bit and a 16th each way; nothing is packed for a round that is skipped.
        let zero_one = method(Config::of(ZeroOneAdam { sync_every: Some(4), ..ZeroOneAdam::default() }));
        let skipped = gpu().pack(&zero_one, Round::Skipped, values, 8, 8);
        assert!((skipped.pack - (4.0 + 40.0 + 24.0)).abs() < 1e-6 && skipped.serve == 0.0, "{}", skipped.pack);
        let sign = (64.0 + 4.0) / 512.0;
        let fast = Device { pcie_bytes_per_second: f64::INFINITY, ..gpu() };
        let coarse = fast.pack(&zero_one, Round::Coarse, values, 8, 8);
        let serve = (8.0 + sign) / 8.0 + sign;
        assert!((coarse.serve - serve).abs() < 1e-6, "{}", coarse.serve);
        assert!((coarse.pack - (68.0 + 8.0 + 2.0 * sign + serve)).abs() < 1e-6, "{}", coarse.pack);
        // Over PCIe: up and down by each worker, and what its part of them takes of an owner.
        let slow = gpu().pack(&zero_one, Round::Coarse, values, 8, 8);
        let pcie = 1e3 * (2.0 * sign + sign / 8.0 + sign);
        assert!((slow.pack - coarse.pack - pcie).abs() < 1e-3, "{} {pcie}", slow.pack - coarse.pack);
    }

    #[test]
    fn devices_by_name() {
        assert_eq!(asked("cpu").unwrap(), Asked::Cpu);
        for (name, ..) in KNOWN {
            let Asked::Gpu(device) = asked(name).unwrap() else { panic!("{name} is no GPU") };
            assert!(device.memory_bytes_per_second > device.pcie_bytes_per_second && device.memory.is_some(), "{name}");
        }
        let error = asked("a1000").unwrap_err().to_string();
        assert!(
            ["a1000", "a100", "mi300x", "cpu", "thinwire.device --json"].iter().all(|word| error.contains(word)),
            "{error}"
        );
    }
}
