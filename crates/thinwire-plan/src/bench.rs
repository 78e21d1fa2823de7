//! What packing costs on this machine, as `thinwire bench` measures it.
//!
//! Two levels. [`kernels`]: each codec's passes, against a copy of as many values in the same process, because a machine's
//! bandwidth drifts. [`steps`]: whole steps of every optimizer, taken by real workers on threads, in CPU time a value. What
//! a plan adds up and subtracts is by that one clock, also the passes of a codec alone; and parts are checked against the whole. What
//! it calls packing is the second; the first says how it falls into parts. [`message`]: what a message costs
//! whatever its length.

use crate::kernels::{self, CodecSpeed, Kernel};
use crate::steps::{self, StepCost};
use crate::{cost, message, methods};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use thinwire::inside::Optimizers;
use thinwire::{CodecName, Config};

/// What `thinwire bench --json` prints: the cost of packing on one machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Benched {
    /// Of this machine.
    pub cores: usize,
    /// Length of the vectors.
    pub values: usize,
    /// What a copy reaches, by the number of threads.
    pub copy_gb_per_s: BTreeMap<usize, f64>,
    /// Passes of codecs beside it.
    pub kernels: Vec<Kernel>,
    /// What the codecs take of a step.
    pub codecs: Vec<CodecSpeed>,
    /// Whole steps.
    pub steps: Vec<StepCost>,
    /// CPU seconds that a message costs, whatever its length.
    pub message_seconds: f64,
    /// Of codecs, steps and messages, which `plan` adds up: `cpu`. Kernels and copies are by the wall clock, each beside the other.
    #[serde(default = "unknown")]
    pub clock: String,
    /// Why the measurement is not credible.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Of files that do not say: steps by CPU time, codecs by the wall clock.
fn unknown() -> String {
    "mixed".to_owned()
}

impl Benched {
    pub(crate) fn codec(&self, name: CodecName) -> Option<CodecSpeed> {
        self.codecs.iter().find(|speed| speed.codec == name).copied()
    }
}

/// What a message costs: as benched, or measured now.
pub fn message_seconds(benched: Option<&Benched>) -> Result<f64> {
    benched.map_or_else(message::seconds, |benched| Ok(benched.message_seconds))
}

/// The codecs of these names.
pub fn codecs(names: &[String]) -> Result<Vec<CodecName>> {
    names.iter().map(|name| name.parse().with_context(|| format!("invalid --codecs {name}"))).collect()
}

/// The cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Measures every pass, every optimizer and a message, on vectors of `values` values.
pub fn measure(values: usize, codecs: &[CodecName]) -> Result<Benched> {
    let cores = cores();
    let mut benched = Benched {
        cores,
        values,
        copy_gb_per_s: BTreeMap::new(),
        kernels: Vec::new(),
        codecs: Vec::new(),
        steps: Vec::new(),
        message_seconds: message::seconds()?,
        clock: "cpu".to_owned(),
        warnings: Vec::new(),
    };
    for threads in if cores > 1 { vec![1, cores] } else { vec![1] } {
        let (copy, kernels) = kernels::table(values, codecs, threads)?;
        benched.copy_gb_per_s.insert(threads, copy);
        benched.kernels.extend(kernels);
    }
    // Exact rounds have one of these two, whatever the coarse ones have.
    let exact = [CodecName::F32, CodecName::Bf16];
    let beside = exact.iter().filter(|codec| !codecs.contains(codec));
    benched.codecs = codecs.iter().chain(beside).map(|codec| kernels::speed(*codec, values)).collect::<Result<_>>()?;
    // Where there are coarse rounds too, exact ones may have the other of the two.
    let others =
        Optimizers::all().into_iter().filter(|row| row.coarse.is_some() && methods::is_measured(row)).flat_map(|row| {
            let other = exact.into_iter().filter(move |codec| row.exact.is_some_and(|usual| usual != *codec));
            other.map(|codec| Config { exact_codec: Some(codec), ..Config::new(row.name) })
        });
    for config in methods::every(codecs).into_iter().chain(others) {
        for config in [config.clone(), Config { clip: Some(1.0), ..config }] {
            for step in steps::measure(&config, &steps::PAIR, values)? {
                if !benched.steps.iter().any(|other| other.is_like(&step)) {
                    benched.steps.push(step);
                }
            }
        }
    }
    benched.warnings.extend(cost::doubt(&benched.steps, &benched.codecs));
    Ok(benched)
}

/// The file that `bench --json` wrote.
pub fn read(path: &Path) -> Result<Benched> {
    let text = std::fs::read_to_string(path).with_context(|| format!("--bench {}", path.display()))?;
    let benched: Benched = serde_json::from_str(&text)
        .with_context(|| format!("--bench {}: expected what `thinwire bench --json` printed", path.display()))?;
    ensure!(!benched.steps.is_empty(), "--bench {}: expected steps of an optimizer, found none", path.display());
    let message = benched.message_seconds;
    ensure!(
        (0.0..=10.0).contains(&message),
        "--bench {}: invalid message_seconds = {message}: expected 0 to 10 seconds (for example 3e-6)",
        path.display()
    );
    Ok(benched)
}
