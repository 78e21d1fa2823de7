//! Bytes of each step, one strip a run: exact and coarse rounds where their size puts them, skipped ones along the base.
//!
//! The bytes' axis is logarithmic, so that exact and coarse rounds both show. A column of the strip stands for several
//! steps of a long run; it is the fainter the fewer of them there were of its kind.

use crate::load::Run;
use crate::markup::escape;
use crate::numbers;
use crate::picture::WIDTH;
use crate::record::Step;
use crate::scale::{Scale, Unit};
use crate::style::Look;

const LEFT: f64 = 76.0;
const RIGHT: f64 = WIDTH - 14.0;
const MOST_COLUMNS: usize = 300;
/// Shades of a mark, for the share of a column's steps.
const SHADES: usize = 4;

/// A strip, from its top: name, bytes, skipped steps, and the gap to the next one.
const NAME: f64 = 24.0;
const BYTES: f64 = 62.0;
const SKIPPED: f64 = 24.0;
const STRIP: f64 = NAME + BYTES + SKIPPED + 14.0;
const FOOT: f64 = 46.0;

pub fn height(runs: &[Run]) -> f64 {
    runs.len() as f64 * STRIP + FOOT
}

/// What is inside `<svg>`. None if no run has a step.
pub fn draw(runs: &[Run], looks: &[Look]) -> Option<String> {
    let all = || runs.iter().flat_map(|run| &run.steps);
    let last = all().map(|step| step.step + 1).max()?;
    let x = Scale::Linear { from: 0.0, to: last as f64 };
    // With nothing sent at all any axis will do.
    let bytes = Scale::log(all().map(|step| step.bytes)).unwrap_or(Scale::Log { from: 1.0, to: 10.0 });
    let (from, to) = bytes.bounds();
    let bytes = Scale::Log { from: from / 1.6, to: to * 1.6 };
    let strips = runs.iter().zip(looks).enumerate();
    let strips = strips.map(|(at, (run, look))| strip(run, look, at as f64 * STRIP, &x, &bytes));
    Some(strips.collect::<String>() + &steps_axis(&x, runs.len() as f64 * STRIP - 10.0))
}

fn strip(run: &Run, look: &Look, top: f64, x: &Scale, bytes: &Scale) -> String {
    let (floor, base) = (top + NAME + BYTES, top + NAME + BYTES + SKIPPED);
    let y_of = |value: f64| floor - bytes.place(value) * BYTES;
    let tick = |(value, text): (f64, String)| {
        let (y, text_x) = (y_of(value), LEFT - 8.0);
        format!(
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>\
             <text class=\"tick\" x=\"{text_x}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            y + 4.5
        )
    };
    let ticks: String = bytes.ticks(3, Unit::Bytes).into_iter().map(tick).collect();
    format!(
        "<text class=\"name fill-{}\" x=\"{LEFT}\" y=\"{:.1}\">{}</text>\
         <text class=\"small\" x=\"{RIGHT}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>{ticks}\
         <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">skipped</text>\
         <path class=\"base\" d=\"M{LEFT} {base:.1}H{RIGHT}\"/>{}{}{}",
        look.colour,
        top + 15.0,
        escape(&look.name),
        top + 15.0,
        kinds(run),
        LEFT - 8.0,
        base - 3.0,
        marks(run, "skipped", "rule", 9.0, x, &|_| base - 5.0),
        marks(run, "coarse", look.colour, 7.0, x, &|step| y_of(step.bytes)),
        marks(run, "exact", "ink", 13.0, x, &|step| y_of(step.bytes)),
    )
}

/// `150 exact, 230 coarse, 1,120 skipped`: those that there are.
fn kinds(run: &Run) -> String {
    let count = |kind: &str| run.steps.iter().filter(|step| step.round == kind).count() as u64;
    let kinds = ["exact", "coarse", "skipped"].map(|kind| (count(kind), kind));
    let some = kinds.iter().filter(|(count, _)| *count > 0);
    some.map(|(count, kind)| format!("{} {kind}", numbers::count(*count))).collect::<Vec<_>>().join(", ")
}

/// An upright mark in each column that has steps of this kind, in the middle of where they stand.
fn marks(run: &Run, kind: &str, colour: &str, tall: f64, x: &Scale, y_of: &dyn Fn(&Step) -> f64) -> String {
    let many = MOST_COLUMNS.min(x.bounds().1 as usize);
    let column_of = |step: &Step| ((x.place(step.step as f64) * many as f64) as usize).min(many - 1);
    let mut columns = vec![(0u32, 0u32, 0.0); many];
    for step in &run.steps {
        let (all, of_kind, heights) = &mut columns[column_of(step)];
        *all += 1;
        let y = y_of(step);
        if step.round == kind && y.is_finite() {
            *of_kind += 1;
            *heights += y;
        }
    }
    let column = (RIGHT - LEFT) / many as f64;
    // A little wider than a column, so that neighbours join.
    let wide = (column + 0.4).min(6.0);
    let mut shades = vec![String::new(); SHADES];
    for (at, (all, of_kind, heights)) in columns.into_iter().enumerate().filter(|(_, (_, of_kind, _))| *of_kind > 0) {
        let shade = (of_kind as usize * SHADES).div_ceil(all as usize) - 1;
        let middle = LEFT + (at as f64 + 0.5) * column;
        shades[shade] += &format!("M{middle:.1} {:.1}v{tall}", heights / f64::from(of_kind) - tall / 2.0);
    }
    let path = |(shade, path): (usize, &String)| {
        let opacity = 0.4 + 0.6 * (shade + 1) as f64 / SHADES as f64;
        format!(
            "<path class=\"mark stroke-{colour}\" style=\"stroke-width:{wide:.1}\" stroke-opacity=\"{opacity:.2}\" d=\"{path}\"/>"
        )
    };
    shades.iter().enumerate().filter(|(_, path)| !path.is_empty()).map(path).collect()
}

fn steps_axis(x: &Scale, top: f64) -> String {
    let tick = |(value, text): (f64, String)| {
        let at = LEFT + x.place(value) * (RIGHT - LEFT);
        let anchor = if at > RIGHT - 14.0 { "end" } else { "middle" };
        format!("<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{text}</text>", top + 14.0)
    };
    let ticks: String = x.ticks(8, Unit::Steps).into_iter().map(tick).collect();
    format!("{ticks}<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">step</text>", (LEFT + RIGHT) / 2.0, top + 38.0)
}
