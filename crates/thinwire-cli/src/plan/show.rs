//! The answer for people: a table and a sentence. What was assumed stands beside it, on standard error.

use crate::screen::{Answers, say, wrapped};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use thinwire_plan::{Answer, Forecast, Pays};
use thinwire_report::numbers::{self, bytes, short};

/// Columns that go where the terminal is too narrow for all, the first of them first.
const SPARE: [&str; 6] = ["memory", "bits", ROUNDS, "computes", "sends", "the run"];

const ROUNDS: &str = "exact, coarse, skipped";

pub fn show(answer: &Answer, answers: Answers) {
    let (network, width) = (&answer.network, answers.width());
    let tell = |line: &str| answers.line(&wrapped(line, width));
    let note = |line: &str| say!("{}", wrapped(line, width));
    let link = match answer.hosts {
        1 => "one host".to_owned(),
        hosts => format!(
            "{hosts} hosts, links of {} with {} of latency",
            numbers::bandwidth(network.bandwidth),
            numbers::seconds(network.latency)
        ),
    };
    tell(&format!(
        "{} parameters, {} worker{} on {link}; {} of computing a step, {} steps",
        short(answer.params as f64),
        answer.workers,
        if answer.workers == 1 { "" } else { "s" },
        numbers::seconds(answer.compute_seconds),
        numbers::count(answer.steps),
    ));
    let (table, left_out) = fitting(answer, width);
    answers.line(&table.to_string());
    tell(&legend(answer, left_out));
    for assumed in &answer.notes {
        note(&format!("· {assumed}"));
    }
    for warning in &answer.warnings {
        note(&format!("warning: {warning}"));
    }
    tell(&format!("\n{}", answer.recommendation.reason));
    if let Some(program) = &answer.program {
        tell("\nInstead of the file's optimizer, in your program (docs/deepspeed.md has the rest of the file):");
        answers.line(&format!("\n{program}"));
    }
}

/// Explains the columns that need it.
fn legend(answer: &Answer, left_out: &[&str]) -> String {
    let mut legend = [
        ("sends", "sends: by one worker, to other hosts if there are some"),
        ("bits", "bits: for a parameter, averaged over the steps"),
        ("computes", "computes: the part of the time"),
    ]
    .iter()
    .filter(|(column, _)| !left_out.contains(column))
    .map(|(_, words)| (*words).to_owned())
    .collect::<Vec<_>>();
    if answer.methods.iter().any(|method| method.ddp) {
        legend.push("DDP: PyTorch's, with AdamW, sending beside backward".to_owned());
    }
    if answer.methods.iter().any(has_no_room) && !left_out.contains(&"memory") {
        legend.push("!: more than --memory".to_owned());
    }
    legend.push(format!("pays below: up to this bandwidth it is faster than {}", answer.held_to));
    if answer.methods.iter().any(|method| method.pays == Pays::Always) {
        legend.push("always: even if bytes took no time, because its packing and latency take no longer".to_owned());
    }
    if !left_out.is_empty() {
        legend.push(format!("not shown, because the terminal is narrow: {} (--json has all)", left_out.join("; ")));
    }
    legend.join("; ")
}

/// Whether it needs more than a worker's memory, as far as that is known.
fn has_no_room(method: &Forecast) -> bool {
    method.fits == Some(false)
}

/// The table without as many columns as do not fit, and which those are.
fn fitting(answer: &Answer, width: Option<usize>) -> (Table, &'static [&'static str]) {
    let mut tried = (0..=SPARE.len()).map(|many| (table(answer, &SPARE[..many]), &SPARE[..many]));
    let fits = |table: &Table| {
        let wide = table.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        width.is_none_or(|width| wide <= width)
    };
    tried.find(|(table, left_out)| fits(table) || left_out.len() == SPARE.len()).expect("the last is taken")
}

fn table(answer: &Answer, left_out: &[&str]) -> Table {
    let mut header = vec!["", ROUNDS, "sends", "bits", "a step", "the run", "computes", "memory", "pays below"];
    if answer.methods.iter().any(|method| method.simulated.is_some()) {
        header.insert(5, "simulated");
    }
    let kept = |cells: Vec<String>| {
        let cells = cells.into_iter().zip(&header).filter(|(_, column)| !left_out.contains(column));
        cells.map(|(cell, _)| cell).collect::<Vec<_>>()
    };
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(kept(header.iter().map(|column| (*column).to_owned()).collect()));
    // What people have first; in JSON it is behind what was there before.
    let (ddp, others): (Vec<_>, Vec<_>) = answer.methods.iter().partition(|method| method.ddp);
    table.add_rows(ddp.into_iter().chain(others).map(row).map(kept));
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table
}

fn row(method: &Forecast) -> Vec<String> {
    let rounds = method.rounds;
    let mut row = vec![
        method.name.clone(),
        [rounds.exact, rounds.coarse, rounds.skipped].map(numbers::count).join(", "),
        bytes(method.bytes_on_links() as f64),
        format!("{:.2}", method.bits_per_param_per_step),
        numbers::seconds(method.step_seconds),
        numbers::seconds(method.run_seconds),
        format!("{:.0} %", 100.0 * method.efficiency),
        bytes(method.memory_bytes_per_worker as f64) + if has_no_room(method) { " !" } else { "" },
        method.pays.to_string(),
    ];
    if let Some(simulated) = method.simulated {
        row.insert(5, numbers::seconds(simulated.step));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use thinwire_plan::Question;

    /// As many columns as there is room for, and always what a step takes.
    #[test]
    fn the_table_fits_the_terminal() {
        let question = Question {
            params: Some(3_000_000),
            workers: Some(4),
            bandwidth: Some(1e9),
            compute: Some(0.05),
            without_packing: true,
            ..Question::default()
        };
        let answer = question.answer().unwrap();
        let (whole, none) = fitting(&answer, None);
        assert!(none.is_empty() && whole.to_string().contains("memory"));
        let mut before = usize::MAX;
        for width in [20, 55, 70, 80, 100, 120, 200] {
            let (table, left_out) = fitting(&answer, Some(width));
            let wide = table.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(wide <= width || width == 20, "{width}:\n{table}");
            assert!(table.to_string().contains("a step") && left_out.len() <= before, "{width}:\n{table}");
            before = left_out.len();
        }
        assert_eq!(before, 0);
    }
}
