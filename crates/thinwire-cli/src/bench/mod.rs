//! `thinwire bench`: what packing costs on this machine.
//!
//! Two levels. [`kernels`]: each codec's passes, against a copy of as many values in the same process, because a machine's
//! bandwidth drifts. [`steps`]: whole steps of every optimizer, taken by real workers on threads, in CPU time a value. What
//! `plan` adds up and subtracts is by that one clock, also the passes of a codec alone; and parts are checked against the whole. What
//! [`plan`](crate::plan) calls packing is the second; the first says how it falls into parts. [`message`]: what a message costs
//! whatever its length.

pub mod kernels;
pub mod message;
pub mod steps;

use crate::failure::{Failure, Outcome};
use crate::numbers::short;
use crate::plan::{cost, methods};
use crate::screen::{Answers, print, say};
use crate::units::number;
use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use kernels::{CodecSpeed, Kernel};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use steps::StepCost;
use thinwire::inside::Optimizers;
use thinwire::{CodecName, Config};

#[derive(Args)]
pub struct Bench {
    /// Length of the vectors (for example 800k or 4M), larger than the caches, which would be measured otherwise
    #[arg(long, value_name = "N", default_value = "4M", value_parser = number)]
    pub values: usize,
    /// The codecs
    #[arg(
        long,
        value_name = "A,B,C",
        value_delimiter = ',',
        default_value = "sign,uniform2,uniform4,uniform8,power3,topk0.01,bf16,f16,f32"
    )]
    pub codecs: Vec<String>,
    /// Print one JSON object on standard output, which `plan --bench` reads
    #[arg(long)]
    pub json: bool,
    /// Print errors only
    #[arg(long, short)]
    pub quiet: bool,
}

/// What was measured; `plan --bench` reads it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Benched {
    pub cores: usize,
    pub values: usize,
    /// By the number of threads.
    pub copy_gb_per_s: BTreeMap<usize, f64>,
    pub kernels: Vec<Kernel>,
    pub codecs: Vec<CodecSpeed>,
    pub steps: Vec<StepCost>,
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
    pub fn codec(&self, name: CodecName) -> Option<CodecSpeed> {
        self.codecs.iter().find(|speed| speed.codec == name).copied()
    }
}

/// What a message costs: as benched, or measured now.
pub fn message_seconds(benched: Option<&Benched>) -> Result<f64> {
    benched.map_or_else(message::seconds, |benched| Ok(benched.message_seconds))
}

pub fn command(arguments: &Bench) -> Outcome {
    let codecs = codecs(&arguments.codecs).map_err(Failure::Usage)?;
    let benched = measure(arguments, &codecs).map_err(Failure::Run)?;
    if !arguments.quiet {
        show(&benched, Answers::beside(arguments.json));
    }
    for warning in &benched.warnings {
        say!("warning: {warning}"); // also with --quiet: the figures are of no use
    }
    if arguments.json {
        print(&benched)?;
    }
    Ok(())
}

/// The codecs of these names.
pub fn codecs(names: &[String]) -> Result<Vec<CodecName>> {
    names.iter().map(|name| name.parse().with_context(|| format!("invalid --codecs {name}"))).collect()
}

/// The cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn measure(arguments: &Bench, codecs: &[CodecName]) -> Result<Benched> {
    let (values, cores) = (arguments.values, cores());
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
    let others = Optimizers::all().into_iter().filter(|row| row.coarse.is_some()).flat_map(|row| {
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

fn show(benched: &Benched, answers: Answers) {
    let table = |header: [&str; 5], rows: Vec<Vec<String>>| {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header).add_rows(rows);
        table.column_iter_mut().skip(1).for_each(|column| {
            column.set_cell_alignment(CellAlignment::Right);
        });
        answers.line(&format!("{table}\n"));
    };
    let kernel = |kernel: &Kernel| {
        vec![
            kernel.name.clone(),
            kernel.threads.to_string(),
            short(kernel.values_per_s),
            format!("{:.1}", kernel.gb_per_s),
            format!("{:.2}", kernel.ratio_to_copy),
        ]
    };
    table(["kernel", "threads", "values/s", "GB/s", "to copy"], benched.kernels.iter().map(kernel).collect());
    let step = |step: &StepCost| {
        let clip = if step.clip { "yes" } else { "" };
        vec![
            step.optimizer.to_string(),
            step.round.clone(),
            step.coded(),
            clip.to_owned(),
            format!("{:.2}", step.ns_per_value),
        ]
    };
    table(["a step of", "round", "codec", "clips", "CPU ns a value"], benched.steps.iter().map(step).collect());
    let copies = benched.copy_gb_per_s.iter().map(|(threads, rate)| format!("{rate:.1} GB/s on {threads}"));
    answers.line(&format!(
        "{} values; copy: {}; {} cores; a message costs {:.1} µs whatever its length (TCP to this machine itself)",
        short(benched.values as f64),
        copies.collect::<Vec<_>>().join(", "),
        benched.cores,
        1e6 * benched.message_seconds,
    ));
}
