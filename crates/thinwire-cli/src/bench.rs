//! `thinwire bench`: what packing costs on this machine.
//!
//! [`thinwire_plan`] measures, because a plan takes from it what packing costs; here are the flags and the tables.

use crate::failure::{Failure, Outcome};
use crate::screen::{Answers, print, say};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use thinwire_plan::files::{Benched, Kernel, StepCost};
use thinwire_plan::inside::{codecs, measure};
use thinwire_plan::units::number;
use thinwire_report::numbers::short;

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
        default_value = "sign,uniform2,uniform4,uniform8,power3,topk0.01,bf16,f16,f32,vote"
    )]
    pub codecs: Vec<String>,
    /// Print one JSON object on standard output, which `plan --bench` reads
    #[arg(long)]
    pub json: bool,
    /// Print errors only
    #[arg(long, short)]
    pub quiet: bool,
}

pub fn command(arguments: &Bench) -> Outcome {
    let codecs = codecs(&arguments.codecs).map_err(Failure::Usage)?;
    let benched = measure(arguments.values, &codecs).map_err(Failure::Run)?;
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
