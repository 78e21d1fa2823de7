//! The answer: for people a table and a sentence, for programs JSON. What was assumed stands beside it, on standard error.

use super::advice::{Advice, Pays, pays};
use super::cost::Estimate;
use super::{Answer, Situation};
use crate::numbers::{self, bytes, short};
use crate::screen::{Answers, say, wrapped};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::{Value, json};
use thinwire::Round;

/// Columns that go where the terminal is too narrow for all, the first of them first.
const SPARE: [&str; 6] = ["memory", "bits", ROUNDS, "computes", "sends", "the run"];

const ROUNDS: &str = "exact, coarse, skipped";

pub fn show(situation: &Situation, answer: &Answer, advice: &Advice, answers: Answers) {
    let (place, network, width) = (&situation.place, &situation.network, answers.width());
    let tell = |line: &str| answers.line(&wrapped(line, width));
    let note = |line: &str| say!("{}", wrapped(line, width));
    let link = match place.host_count() {
        1 => "one host".to_owned(),
        hosts => format!(
            "{hosts} hosts, links of {} with {} of latency",
            numbers::bandwidth(network.bandwidth),
            numbers::seconds(network.latency)
        ),
    };
    tell(&format!(
        "{} parameters, {} worker{} on {link}; {} of computing a step, {} steps",
        short(situation.params as f64),
        place.workers(),
        if place.workers() == 1 { "" } else { "s" },
        numbers::seconds(situation.compute),
        numbers::count(situation.run.steps),
    ));
    let (table, left_out) = fitting(situation, answer, width);
    answers.line(&table.to_string());
    tell(&legend(situation, answer, left_out));
    for assumed in &situation.notes {
        note(&format!("· {assumed}"));
    }
    for warning in &situation.warnings {
        note(&format!("warning: {warning}"));
    }
    tell(&format!("\n{}", advice.reason));
}

/// Explains the columns that need it.
fn legend(situation: &Situation, answer: &Answer, left_out: &[&str]) -> String {
    let held_to = &answer.estimates[answer.base].method.shown;
    let mut legend = [
        ("sends", "sends: by one worker, to other hosts if there are some"),
        ("bits", "bits: for a parameter, averaged over the steps"),
        ("computes", "computes: the part of the time"),
    ]
    .iter()
    .filter(|(column, _)| !left_out.contains(column))
    .map(|(_, words)| (*words).to_owned())
    .collect::<Vec<_>>();
    if answer.estimates.iter().any(|estimate| estimate.ddp.is_some()) {
        legend.push("DDP: PyTorch's, with AdamW, sending beside backward".to_owned());
    }
    if (0..answer.estimates.len()).any(|at| !answer.fits(at)) && !left_out.contains(&"memory") {
        legend.push("!: more than --memory".to_owned());
    }
    legend.push(format!("pays below: up to this bandwidth it is faster than {held_to}"));
    let network = &situation.network;
    let base = &answer.estimates[answer.base];
    if answer.estimates.iter().any(|estimate| pays(estimate, base, network) == Pays::Always) {
        legend.push("always: even if bytes took no time, because its packing and latency take no longer".to_owned());
    }
    if !left_out.is_empty() {
        legend.push(format!("not shown, because the terminal is narrow: {} (--json has all)", left_out.join("; ")));
    }
    legend.join("; ")
}

/// The table without as many columns as do not fit, and which those are.
pub(super) fn fitting(
    situation: &Situation,
    answer: &Answer,
    width: Option<usize>,
) -> (Table, &'static [&'static str]) {
    let mut tried = (0..=SPARE.len()).map(|many| (table(situation, answer, &SPARE[..many]), &SPARE[..many]));
    let fits = |table: &Table| {
        let wide = table.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        width.is_none_or(|width| wide <= width)
    };
    tried.find(|(table, left_out)| fits(table) || left_out.len() == SPARE.len()).expect("the last is taken")
}

fn table(situation: &Situation, answer: &Answer, left_out: &[&str]) -> Table {
    let network = &situation.network;
    let mut header = vec!["", ROUNDS, "sends", "bits", "a step", "the run", "computes", "memory", "pays below"];
    if answer.simulated.is_some() {
        header.insert(5, "simulated");
    }
    let row = |(at, estimate): (usize, &Estimate)| {
        let rounds = estimate.plan.rounds;
        let mut row = vec![
            estimate.method.shown.clone(),
            [rounds.exact, rounds.coarse, rounds.skipped].map(numbers::count).join(", "),
            bytes(estimate.bytes_on_links() as f64),
            format!("{:.2}", estimate.plan.bits_per_param_per_step()),
            numbers::seconds(estimate.mean_step(network)),
            numbers::seconds(answer.run(at, network)),
            format!("{:.0} %", 100.0 * answer.efficiency(at, network)),
            bytes(estimate.memory().total() as f64) + if answer.fits(at) { "" } else { " !" },
            pays(estimate, &answer.estimates[answer.base], network).to_string(),
        ];
        if answer.simulated.is_some() {
            row.insert(5, numbers::seconds(answer.step(at, network)));
        }
        row
    };
    let kept = |cells: Vec<String>| {
        let cells = cells.into_iter().zip(&header).filter(|(_, column)| !left_out.contains(column));
        cells.map(|(cell, _)| cell).collect::<Vec<_>>()
    };
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(kept(header.iter().map(|column| (*column).to_owned()).collect()));
    // What people have first; in JSON it is behind what was there before.
    let all = || answer.estimates.iter().enumerate();
    let ordered = all().filter(|(_, of)| of.ddp.is_some()).chain(all().filter(|(_, of)| of.ddp.is_none()));
    table.add_rows(ordered.map(row).map(kept));
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table
}

pub fn json(situation: &Situation, answer: &Answer, advice: &Advice) -> Value {
    let network = &situation.network;
    let method = |(at, estimate): (usize, &Estimate)| {
        let step = |round| estimate.round(round).map(|_| estimate.step(round, network));
        let skipped = (estimate.plan.rounds.skipped > 0).then(|| estimate.step(Round::Skipped, network));
        let (memory, parts) = (estimate.memory(), estimate.parts(network));
        let mut method = json!({
            "name": estimate.method.shown,
            "optimizer": estimate.method.config.name,
            "codec": estimate.method.codec(),
            "rounds": estimate.plan.rounds,
            "bytes_sent_per_worker": estimate.bytes_sent,
            "bytes_between_hosts_per_worker": estimate.bytes_between_hosts,
            "bits_per_param_per_step": estimate.plan.bits_per_param_per_step(),
            "step_seconds": estimate.mean_step(network),
            "step_seconds_by_round": {
                "exact": step(Round::Exact),
                "coarse": step(Round::Coarse),
                "skipped": skipped,
            },
            "wire_seconds_per_step": parts.wire,
            "latency_seconds_per_step": parts.latency,
            "pack_seconds_per_step": parts.packing,
            "run_seconds": answer.run(at, network),
            "efficiency": answer.efficiency(at, network),
            "memory_bytes_per_worker": memory.total(),
            "memory": memory,
            "pays": pays(estimate, &answer.estimates[answer.base], network),
            "ddp": estimate.ddp.is_some(),
        });
        if answer.memory.is_some() {
            method["fits"] = json!(answer.fits(at));
        }
        if let Some(simulated) = &answer.simulated {
            method["simulated"] = json!(simulated[at]);
        }
        method
    };
    json!({
        "params": situation.params,
        "workers": situation.place.workers(),
        "hosts": situation.place.host_count(),
        "steps": situation.run.steps,
        "compute_seconds": situation.compute,
        "network": network,
        "device_memory_bytes": answer.memory,
        "crowding": situation.place.crowding,
        "notes": situation.notes,
        "warnings": situation.warnings,
        "held_to": answer.estimates[answer.base].method.shown,
        "methods": answer.estimates.iter().enumerate().map(method).collect::<Vec<_>>(),
        "recommendation": advice,
    })
}
