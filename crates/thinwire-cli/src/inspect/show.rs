//! A checkpoint as two tables, for people.

use super::stored::Tensor;
use super::{Inspected, Layer};
use crate::screen::Answers;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::Value;
use thinwire_report as report;
use thinwire_report::numbers::{self, bytes};

pub fn show(inspected: &Inspected, answers: Answers) {
    let here = inspected.files.iter().filter(|file| file.found).count();
    let size = inspected.files.iter().map(|file| file.bytes as f64).sum();
    let (workers, task) = (inspected.workers, inspected.task.map_or(String::new(), |task| format!("{task}, ")));
    let missing = if here == workers { String::new() } else { format!("; {here} of them here") };
    let line = |title: &str, text: String| answers.line(&format!("{title:<11} {text}"));
    line("checkpoint", format!("{}, {}", inspected.checkpoint.display(), bytes(size)));
    line("of", format!("{task}{} parameters, step {}", numbers::short(inspected.parameters as f64), inspected.step));
    line("optimizer", report::shown(&inspected.optimizer));
    line("options", options(&inspected.options));
    line("workers", format!("{workers}{missing}"));
    if let Some(digest) = &inspected.digest {
        line("digest", format!("{digest} (of worker 0's parameters)"));
    }
    if !inspected.network.is_empty() {
        let rows = inspected.network.iter().map(layer).collect();
        answers.line(&table(["tensor", "shape", "values", "norm", "rms", "largest"], rows));
    }
    answers.line(&table(["state", "type", "values", "bytes", "norm", "largest"], states(inspected)));
    let broken = inspected.files.iter().flat_map(|file| &file.tensors).map(|tensor| tensor.figures.non_finite);
    match broken.sum::<u64>() {
        0 => {}
        values => answers.line(&format!("warning: {values} values are infinite or NaN; norms leave them out")),
    }
}

fn table(header: [&str; 6], rows: Vec<[String; 6]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header).add_rows(rows);
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table.to_string()
}

fn layer(layer: &Layer) -> [String; 6] {
    let shape = layer.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" × ");
    let figures = &layer.figures;
    let [norm, rms, largest] = [figures.norm, figures.rms, figures.largest].map(short);
    [layer.name.clone(), shape, figures.values.to_string(), norm, rms, largest]
}

/// A row for each tensor that workers saved; where theirs differ, the smallest and the largest.
fn states(inspected: &Inspected) -> Vec<[String; 6]> {
    let files = inspected.files.iter().filter(|file| file.found).collect::<Vec<_>>();
    let row = |first: &Tensor| {
        let same = || files.iter().flat_map(|file| &file.tensors).filter(|tensor| tensor.name == first.name);
        let range = |part: fn(&Tensor) -> f64, shown: fn(f64) -> String| {
            let (least, most) = same().map(part).fold((f64::INFINITY, 0.0_f64), |(a, b), x| (a.min(x), b.max(x)));
            let (least, most) = (shown(least), shown(most));
            if least == most { least } else { format!("{least} to {most}") }
        };
        let values = range(|tensor| tensor.figures.values as f64, |values| format!("{values}"));
        let size = range(|tensor| tensor.bytes as f64, bytes);
        let (norm, largest) = match first.value {
            Some(u64::MAX) => ("not yet".to_owned(), String::new()), // how the engine writes a step that has not come
            Some(value) => (format!("= {value}"), String::new()),
            None => (range(|tensor| tensor.figures.norm, short), range(|tensor| tensor.figures.largest, short)),
        };
        [first.name.clone(), first.dtype.clone(), values, size, norm, largest]
    };
    files.first().map_or(Vec::new(), |file| file.tensors.iter().map(row).collect())
}

/// `codec = sign, kappa = 4`: all but the lists, which `--json` has.
fn options(config: &Value) -> String {
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    };
    let pairs = config.as_object().into_iter().flatten().filter(|(key, _)| *key != "name");
    let shown = pairs.filter_map(|(key, value)| Some(format!("{key} = {}", plain(value)?)));
    shown.collect::<Vec<_>>().join(", ")
}

/// Four digits, whatever the size.
fn short(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        size if !(1e-3..1e5).contains(&size) => format!("{number:.3e}"),
        size => format!("{number:.*}", (3 - size.log10().floor() as i32).max(0) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits() {
        assert_eq!([0.0, 1.0, 12.3456, 0.00123456].map(short), ["0", "1.000", "12.35", "0.001235"]);
        assert_eq!([1234.56, 99_999.0, 1.5e7, 2.5e-9].map(short), ["1235", "99999", "1.500e7", "2.500e-9"]);
    }
}
