//! The runs in figures: what they learnt and sent, and how long it took.

use crate::baseline::Baseline;
use crate::load::Run;
use crate::markup::escape;
use crate::numbers;
use crate::style::Look;
use crate::totals::Totals;

/// What is shown where there is no figure.
const NONE: &str = "–";

struct Column<'a> {
    /// Stands above neighbours that share it.
    group: &'a str,
    head: String,
    cells: Vec<String>,
}

/// Losses, rounds and bytes.
pub fn results(runs: &[Run], looks: &[Look]) -> String {
    let totals: Vec<Totals> = runs.iter().map(Totals::of).collect();
    let column = |group, head: &str, cell: &dyn Fn(&Run, &Totals) -> String| Column {
        group,
        head: head.to_string(),
        cells: runs.iter().zip(&totals).map(|(run, totals)| cell(run, totals)).collect(),
    };
    let rounds = |n: u64| if n == 0 { NONE.to_string() } else { numbers::count(n) };
    let mut columns = vec![
        column("", "learning rate", &|run, _| learning_rate(run)),
        column("loss", "training", &|run, totals| loss(totals.train_loss, run.steps.is_empty())),
        column("loss", "held out", &|run, totals| loss(totals.val_loss, run.summary.is_none() && run.evals.is_empty())),
    ];
    // What all share stands above the table.
    if totals.iter().any(|other| other.steps != totals[0].steps) {
        columns.insert(1, column("", "steps", &|_, totals| numbers::count(totals.steps)));
    }
    if totals.iter().any(|totals| totals.accuracy.is_some()) {
        columns.push(column("", "accuracy", &|_, totals| totals.accuracy.map_or(NONE.into(), numbers::percent)));
    }
    if totals.iter().any(|totals| totals.majority.is_some()) {
        columns.push(column("", "largest class", &|_, totals| totals.majority.map_or(NONE.into(), numbers::percent)));
    }
    if totals.iter().any(|totals| totals.matthews.is_some()) {
        columns.push(column("", "Matthews", &|_, totals| totals.matthews.map_or(NONE.into(), |m| format!("{m:.3}"))));
    }
    columns.extend([
        column("rounds", "exact", &|_, totals| rounds(totals.rounds.exact)),
        column("rounds", "coarse", &|_, totals| rounds(totals.rounds.coarse)),
        column("rounds", "skipped", &|_, totals| rounds(totals.rounds.skipped)),
        column("a worker sent", "bytes", &|_, totals| numbers::bytes(totals.bytes)),
        column("a worker sent", "bits a parameter a step", &|run, _| {
            run.summary.as_ref().map_or(NONE.into(), |end| numbers::significant(end.bits_per_param_per_step, 3))
        }),
        column("a worker sent", "fewer than Adam", &|run, totals| {
            let times = Baseline::of(run, runs).and_then(|adam| adam.times_fewer(totals.bytes));
            times.map_or(NONE.into(), |times| format!("{}×", numbers::significant(times, 3)))
        }),
    ]);
    html(runs, looks, &columns)
}

/// Seconds as measured and as projected; here a run is a column.
pub fn times(runs: &[Run], looks: &[Look], bandwidths: &[f64]) -> String {
    let totals: Vec<Totals> = runs.iter().map(Totals::of).collect();
    let row = |name: String, seconds: &dyn Fn(&Totals) -> f64| {
        let cell = |totals| format!("<td>{}</td>", escape(&numbers::seconds(seconds(totals))));
        format!("<tr><th scope=\"row\">{}</th>{}</tr>\n", escape(&name), totals.iter().map(cell).collect::<String>())
    };
    let part = |name: &str, rows: String| {
        let wide = runs.len() + 1;
        format!(
            "<tbody><tr class=\"part\"><th colspan=\"{wide}\" scope=\"rowgroup\">{name}</th></tr>\n{rows}</tbody>\n"
        )
    };
    let measured = [
        row("compute".into(), &|totals| totals.seconds.compute),
        row("pack".into(), &|totals| totals.seconds.pack),
        row("wire".into(), &|totals| totals.seconds.wire),
        row("wait".into(), &|totals| totals.seconds.wait),
        row("total".into(), &|totals| totals.seconds.total),
    ];
    let projected = bandwidths.iter().map(|links| row(numbers::bandwidth(*links), &|totals| totals.projected(*links)));
    let heads: String = looks.iter().map(|look| format!("<th scope=\"col\">{}</th>", escape(&look.name))).collect();
    format!(
        "<div class=\"wide\"><table class=\"times\">\n<thead><tr><th></th>{heads}</tr></thead>\n{}{}</table></div>\n",
        part("Measured on the machine of the run, worker 0", measured.concat()),
        part("Projected: each worker with a machine and a link of its own", projected.collect())
    )
}

fn learning_rate(run: &Run) -> String {
    let peak = || run.steps.iter().map(|step| step.lr).fold(0.0, f64::max);
    numbers::learning_rate(run.summary.as_ref().map_or_else(peak, |end| end.lr))
}

fn loss(loss: f64, unknown: bool) -> String {
    if unknown { NONE.to_string() } else { numbers::loss(loss) }
}

fn html(runs: &[Run], looks: &[Look], columns: &[Column]) -> String {
    let groups = columns.chunk_by(|a, b| !a.group.is_empty() && a.group == b.group);
    let groups: String = groups
        .map(|group| {
            let class = if group[0].group.is_empty() { "" } else { " class=\"group\"" };
            format!("<th colspan=\"{}\"{class} scope=\"colgroup\">{}</th>", group.len(), escape(group[0].group))
        })
        .collect();
    let heads: String =
        columns.iter().map(|column| format!("<th scope=\"col\">{}</th>", escape(&column.head))).collect();
    let row = |(at, (run, look)): (usize, (&Run, &Look))| {
        let cells: String = columns.iter().map(|column| format!("<td>{}</td>", escape(&column.cells[at]))).collect();
        format!("<tr><th scope=\"row\">{}{}</th>{cells}</tr>\n", swatch(look), so_far(run))
    };
    let rows: String = runs.iter().zip(looks).enumerate().map(row).collect();
    format!(
        "<div class=\"wide\"><table>\n<thead><tr><th></th>{groups}</tr>\n<tr><th></th>{heads}</tr></thead>\n\
         <tbody>\n{rows}</tbody></table></div>\n"
    )
}

/// A piece of the run's line, and its name.
fn swatch(look: &Look) -> String {
    format!(
        "<svg class=\"swatch plot\" viewBox=\"0 0 22 8\" aria-hidden=\"true\">\
         <path class=\"held-out stroke-{}\" stroke-dasharray=\"{}\" d=\"M1 4H21\"/></svg>{}",
        look.colour,
        look.dashes,
        escape(&look.name)
    )
}

fn so_far(run: &Run) -> &'static str {
    if run.summary.is_some() { "" } else { "<small>not ended: as far as it got</small>" }
}
