//! Sentences and their classes, as GLUE has them: a line an example, columns between tabs, plain or gzip.
//!
//! Three layouts are known, by the first line:
//! - a header that names a column of labels and one or two of text, as most of GLUE has (SST-2, MRPC, QQP, QNLI, RTE, MNLI),
//! - CoLA's, without a header: source, label (0 or 1), the original mark (nothing or `*`), sentence,
//! - two columns, label and text in either order; the label is the column of numbers, or the one with fewer different values.
//!
//! Quotes are letters like any other: GLUE quotes nothing, and its sentences are full of them.

use crate::{Error, Result, file};
use std::collections::BTreeSet;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentences {
    /// The labels as the file has them, numbers in their order, words in theirs.
    pub classes: Vec<String>,
    pub examples: Vec<Example>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// Which of the classes.
    pub label: usize,
    pub text: String,
    /// The second sentence, where an example is two.
    pub pair: Option<String>,
}

const EXPECTED: &str = "columns between tabs are expected: a header with `label` and `sentence` (or `text`, or `sentence1` and \
                        `sentence2`), or CoLA's four columns, or two, label and text";
const LABELS: [&str; 4] = ["label", "gold_label", "is_duplicate", "quality"];
const TEXTS: [&str; 3] = ["sentence", "text", "question"];
const PAIRS: [[&str; 2]; 5] = [
    ["question", "sentence"],
    ["sentence1", "sentence2"],
    ["question1", "question2"],
    ["premise", "hypothesis"],
    ["#1 string", "#2 string"],
];
const REGRESSION: &str = "regression, as of STS-B, is not supported; expected classes to tell apart, such as 0 and 1, in a column \
                          `label`";
/// More than this is no classification: most likely the text was taken for the label.
const MOST_CLASSES: usize = 1000;

/// The examples of a file.
pub fn read(path: &Path) -> Result<Sentences> {
    parse(path, &file::read(path)?)
}

/// The same of the bytes of the file at `path`.
#[doc(hidden)]
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Sentences> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        at_line(path, line, "not UTF-8")
    })?;
    let table = Table::of(path, text.strip_prefix('\u{feff}').unwrap_or(text));
    let Some(first) = table.rows.first() else { return Err(Error::data(path, format!("no lines: {EXPECTED}"))) };
    let columns = table.columns(first)?;
    table.examples(&columns)
}

fn at_line(path: &Path, line: usize, problem: impl std::fmt::Display) -> Error {
    Error::data(path, format!("line {line}: {problem}"))
}

fn is_number(cell: &str) -> bool {
    cell.parse::<i64>().is_ok()
}

struct Row<'a> {
    line: usize,
    cells: Vec<&'a str>,
}

struct Table<'a> {
    path: &'a Path,
    rows: Vec<Row<'a>>,
}

/// Where in a line the things are.
struct Columns {
    count: usize,
    has_header: bool,
    label: usize,
    text: usize,
    pair: Option<usize>,
}

impl<'a> Table<'a> {
    /// Lines without anything are left out.
    fn of(path: &'a Path, text: &'a str) -> Table<'a> {
        let lines = text.lines().zip(1..).filter(|(line, _)| !line.is_empty());
        Table {
            path,
            rows: lines.map(|(line, number)| Row { line: number, cells: line.split('\t').collect() }).collect(),
        }
    }

    fn columns(&self, first: &Row) -> Result<Columns> {
        if let Some(columns) = self.header(first)? {
            return Ok(columns);
        }
        match first.cells[..] {
            [_, "0" | "1", "" | "*", _] => Ok(Columns { count: 4, has_header: false, label: 1, text: 3, pair: None }),
            [_, _] => self.two_columns(),
            _ => Err(at_line(
                self.path,
                first.line,
                format!("{} columns without a known header; {EXPECTED}", first.cells.len()),
            )),
        }
    }

    /// None when the line is no header: it names no column of text, or has a number, which is no name.
    fn header(&self, first: &Row) -> Result<Option<Columns>> {
        if first.cells.iter().any(|cell| is_number(cell)) {
            return Ok(None);
        }
        let names: Vec<String> = first.cells.iter().map(|cell| cell.trim().to_ascii_lowercase()).collect();
        let place = |wanted: &str| names.iter().position(|name| name == wanted);
        let pair = PAIRS.iter().find_map(|[one, two]| Some((place(one)?, Some(place(two)?))));
        let Some((text, pair)) = pair.or_else(|| Some((TEXTS.iter().find_map(|name| place(name))?, None))) else {
            return Ok(None);
        };
        let Some(label) = LABELS.iter().find_map(|name| place(name)) else {
            if place("score").is_some() {
                return Err(at_line(self.path, first.line, format!("a column `score`: {REGRESSION}")));
            }
            let problem = format!("no column `label` among {}; {EXPECTED}", first.cells.join(", "));
            return Err(at_line(self.path, first.line, problem));
        };
        Ok(Some(Columns { count: names.len(), has_header: true, label, text, pair }))
    }

    fn two_columns(&self) -> Result<Columns> {
        let column = |index: usize| self.rows.iter().filter_map(move |row| row.cells.get(index));
        let numbers = [0, 1].map(|index| column(index).all(|cell| is_number(cell)));
        let different = [0, 1].map(|index| column(index).collect::<BTreeSet<_>>().len());
        let label = match (numbers, different[0].cmp(&different[1])) {
            ([true, false], _) => 0,
            ([false, true], _) => 1,
            (_, std::cmp::Ordering::Less) => 0,
            (_, std::cmp::Ordering::Greater) => 1,
            _ => {
                let problem =
                    "which of the two columns is the label cannot be told; a header line `label<TAB>text` tells it";
                return Err(Error::data(self.path, problem));
            }
        };
        Ok(Columns { count: 2, has_header: false, label, text: 1 - label, pair: None })
    }

    fn examples(&self, columns: &Columns) -> Result<Sentences> {
        let rows = &self.rows[usize::from(columns.has_header)..];
        for row in rows {
            self.check(row, columns)?;
        }
        let classes = self.classes(rows.iter().map(|row| row.cells[columns.label]).collect())?;
        let example = |row: &Row| Example {
            label: classes
                .iter()
                .position(|class| class == row.cells[columns.label])
                .expect("collected from these rows"),
            text: row.cells[columns.text].to_owned(),
            pair: columns.pair.map(|pair| row.cells[pair].to_owned()),
        };
        let examples = rows.iter().map(example).collect();
        Ok(Sentences { classes, examples })
    }

    fn check(&self, row: &Row, columns: &Columns) -> Result<()> {
        if row.cells.len() != columns.count {
            let problem = format!("{} columns, where the first line has {}", row.cells.len(), columns.count);
            return Err(at_line(self.path, row.line, problem));
        }
        for (what, place) in
            [("label", Some(columns.label)), ("text", Some(columns.text)), ("second text", columns.pair)]
        {
            if place.is_some_and(|place| row.cells[place].trim().is_empty()) {
                return Err(at_line(self.path, row.line, format!("the {what} is empty")));
            }
        }
        Ok(())
    }

    fn classes(&self, different: BTreeSet<&str>) -> Result<Vec<String>> {
        let count = different.len();
        let numbers = different.iter().map(|label| label.trim().parse::<f64>().ok()).collect::<Option<Vec<_>>>();
        if let Some(part) = numbers.unwrap_or_default().iter().find(|number| number.fract() != 0.0) {
            return Err(Error::data(self.path, format!("the label {part} is a measure and no class: {REGRESSION}")));
        }
        if !(2..=MOST_CLASSES).contains(&count) {
            let problem = format!("{count} different labels, where 2 to {MOST_CLASSES} are expected; {EXPECTED}");
            return Err(Error::data(self.path, problem));
        }
        let mut classes: Vec<String> = different.into_iter().map(str::to_owned).collect();
        if classes.iter().all(|class| is_number(class)) {
            classes.sort_by_key(|class| class.parse::<i64>().ok());
        }
        Ok(classes)
    }
}
