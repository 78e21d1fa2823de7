//! The answer: for people on standard error, for programs as JSON.

use super::Situation;
use super::advice::{Advice, pays};
use super::cost::Estimate;
use super::simulate::Simulated;
use crate::report::figures;
use crate::screen::{bytes, count, duration, say};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::{Value, json};
use thinwire::schedule::Round;

pub fn show(situation: &Situation, estimates: &[Estimate], simulated: Option<&[Simulated]>, advice: &Advice) {
    let (place, network) = (&situation.place, &situation.network);
    let link = match place.host_count() {
        1 => "one host".to_owned(),
        hosts => format!(
            "{hosts} hosts, links of {} with {} of latency",
            figures::bandwidth(network.bandwidth),
            figures::seconds(network.latency)
        ),
    };
    say!(
        "{} parameters, {} workers on {link}; {} of computing a step, {} steps",
        count(situation.params as f64),
        place.workers(),
        figures::seconds(situation.compute),
        figures::count(situation.run.steps),
    );
    say!("{}", table(estimates, simulated, situation));
    say!(
        "sends: by one worker, to other hosts if there are some; bits: for a parameter, averaged over the steps; computes: the part \
         of the time; pays below: up to this bandwidth it is faster than Adam f32"
    );
    for note in &situation.notes {
        say!("· {note}");
    }
    for warning in &situation.warnings {
        say!("warning: {warning}");
    }
    say!("\n{}", advice.reason);
}

fn table(estimates: &[Estimate], simulated: Option<&[Simulated]>, situation: &Situation) -> Table {
    let network = &situation.network;
    let mut header =
        vec!["", "exact, coarse, skipped", "sends", "bits", "a step", "the run", "computes", "memory", "pays below"];
    if simulated.is_some() {
        header.insert(5, "simulated");
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for (at, estimate) in estimates.iter().enumerate() {
        let rounds = estimate.plan.rounds;
        let mut row = vec![
            estimate.method.shown.clone(),
            [rounds.exact, rounds.coarse, rounds.skipped].map(figures::count).join(", "),
            bytes(estimate.bytes_on_links() as f64),
            format!("{:.2}", estimate.plan.bits_per_param_per_step()),
            figures::seconds(estimate.mean_step(network)),
            duration(estimate.run(network)),
            format!("{:.0} %", 100.0 * estimate.efficiency(network)),
            bytes(estimate.memory().total() as f64),
            pays(estimate, &estimates[0], network).to_string(),
        ];
        if let Some(simulated) = simulated {
            row.insert(5, figures::seconds(simulated[at].step));
        }
        table.add_row(row);
    }
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table
}

pub fn json(situation: &Situation, estimates: &[Estimate], simulated: Option<&[Simulated]>, advice: &Advice) -> Value {
    let network = &situation.network;
    let method = |(at, estimate): (usize, &Estimate)| {
        let step = |round| estimate.round(round).map(|_| estimate.step(round, network));
        let skipped = (estimate.plan.rounds.skipped > 0).then(|| estimate.step(Round::Skipped, network));
        let memory = estimate.memory();
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
            "pack_seconds_per_step": estimate.packing(),
            "run_seconds": estimate.run(network),
            "efficiency": estimate.efficiency(network),
            "memory_bytes_per_worker": memory.total(),
            "memory": memory,
            "pays": pays(estimate, &estimates[0], network),
        });
        if let Some(simulated) = simulated {
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
        "crowding": situation.place.crowding,
        "notes": situation.notes,
        "warnings": situation.warnings,
        "methods": estimates.iter().enumerate().map(method).collect::<Vec<_>>(),
        "recommendation": advice,
    })
}
