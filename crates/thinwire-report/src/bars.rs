//! Bars that lie: a row each, its name on the left and its figure at its end.

use crate::markup::escape;
use crate::picture::{BOLD_LETTER, LETTER, WIDTH};
use crate::style::short;

const ROW: f64 = 38.0;
const THICK: f64 = 22.0;
const HEAD: f64 = 34.0;

pub struct Row {
    pub name: String,
    /// Lengths, in any unit, and the colours' names.
    pub parts: Vec<(f64, &'static str)>,
    /// Written at the bar's end.
    pub figure: String,
    /// Only an outline: what would have been, and was not measured.
    pub outline: bool,
}

pub fn height(rows: usize, legend: bool) -> f64 {
    rows as f64 * ROW + if legend { HEAD } else { 0.0 } + 10.0
}

/// What is inside `<svg>`. `legend`: a colour and what it stands for.
pub fn draw(rows: &[Row], legend: &[(&str, &str)]) -> String {
    let longest_text = |text: fn(&Row) -> usize| rows.iter().map(text).max().unwrap_or(0) as f64;
    let left = longest_text(|row| short(&row.name).chars().count()) * BOLD_LETTER + 22.0;
    let room = WIDTH - left - longest_text(|row| row.figure.chars().count()) * LETTER - 14.0;
    let longest = rows.iter().map(Row::length).fold(0.0, f64::max);
    let scale = if longest > 0.0 { room / longest } else { 0.0 };
    let top = if legend.is_empty() { 4.0 } else { HEAD };
    let rows = rows.iter().enumerate().map(|(at, row)| row.draw(left, top + at as f64 * ROW, scale));
    key(legend, left) + &rows.collect::<String>()
}

impl Row {
    fn length(&self) -> f64 {
        self.parts.iter().map(|(length, _)| sound(*length)).sum()
    }

    fn draw(&self, left: f64, top: f64, scale: f64) -> String {
        let middle = top + THICK / 2.0 + 4.5;
        let mut x = left;
        let mut bar = String::new();
        for (length, colour) in &self.parts {
            let width = sound(*length) * scale;
            let class = if self.outline { "would".to_string() } else { format!("cut fill-{colour}") };
            if width >= 0.1 {
                bar += &format!(
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{THICK}\"/>"
                );
            }
            x += width;
        }
        format!(
            "<text class=\"name\" x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>\
             <path class=\"base\" d=\"M{left:.1} {:.1}v{}\"/>{bar}<text x=\"{:.1}\" y=\"{middle:.1}\">{}</text>",
            left - 9.0,
            escape(&short(&self.name)),
            top - 4.0,
            THICK + 8.0,
            x + 8.0,
            escape(&self.figure)
        )
    }
}

/// A length that can be drawn.
fn sound(length: f64) -> f64 {
    if length.is_finite() && length > 0.0 { length } else { 0.0 }
}

fn key(legend: &[(&str, &str)], left: f64) -> String {
    let mut x = left;
    let mut out = String::new();
    for (colour, text) in legend {
        out += &format!(
            "<rect class=\"fill-{colour}\" x=\"{x:.1}\" y=\"5\" width=\"12\" height=\"12\"/>\
             <text x=\"{:.1}\" y=\"15.5\">{}</text>",
            x + 17.0,
            escape(text)
        );
        x += 17.0 + text.chars().count() as f64 * LETTER + 16.0;
    }
    out
}
