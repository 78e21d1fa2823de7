//! Lines between two axes, with each line's name at its end.

use crate::labels::{End, Frame, Place, places};
use crate::markup::escape;
use crate::picture::{BOLD_LETTER, Picture, WIDTH};
use crate::scale::{Scale, Unit};
use crate::style::{Look, short};

const HEIGHT: f64 = 400.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = HEIGHT - 50.0;
const LEFT: f64 = 62.0;

/// What lies along one side.
pub struct Axis {
    /// With its unit.
    pub title: String,
    /// From where to where.
    pub scale: Scale,
    /// How its values are written.
    pub unit: Unit,
}

/// A run's lines. A point that is no number is a gap.
pub struct Lines<'a> {
    /// Its name and colour.
    pub look: &'a Look,
    /// The thin line.
    pub train: Vec<(f64, f64)>,
    /// The thick line, with its points if they are few.
    pub held_out: Vec<(f64, f64)>,
}

/// Lines between two axes, with each line's name at its end.
pub struct Chart<'a> {
    /// Unique on the page.
    pub id: &'a str,
    /// From left to right.
    pub x: Axis,
    /// From the bottom to the top.
    pub y: Axis,
    /// One entry for each run or method.
    pub lines: Vec<Lines<'a>>,
    /// Points to see on the lines.
    pub marks: Vec<(&'a Look, (f64, f64))>,
    /// A place on the x axis, with its name.
    pub here: Option<(f64, String)>,
}

impl Chart<'_> {
    /// A file of SVG, with a title above the chart.
    pub fn svg(&self, title: &str) -> String {
        self.picture(title, "").standalone()
    }

    /// The chart under a title, and above a note that explains it.
    pub(crate) fn picture(&self, title: &str, note: &str) -> Picture {
        Picture {
            id: self.id.to_owned(),
            title: title.to_owned(),
            note: note.to_owned(),
            height: HEIGHT,
            body: self.draw(),
            data: self.data(),
        }
    }

    /// What is inside `<svg>`.
    fn draw(&self) -> String {
        let (clip, width, height) = (format!("clip-{}", self.id), self.right() - LEFT, BOTTOM - TOP);
        let each =
            |draw: fn(&Self, &Lines) -> String| self.lines.iter().map(|lines| draw(self, lines)).collect::<String>();
        format!(
            "<clipPath id=\"{clip}\"><rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/></clipPath>\
             {}{}{}<g clip-path=\"url(#{clip})\">{}{}{}</g>{}",
            TOP - 2.0,
            height + 4.0,
            self.y_axis(),
            self.x_axis(),
            self.here(),
            each(Self::train),
            each(Self::held_out),
            self.marks(),
            self.names(),
        )
    }

    /// For the page's script: the frame's edges, and the axes' kinds, units and ends.
    fn data(&self) -> String {
        let axis = |axis: &Axis| {
            let kind = if matches!(axis.scale, Scale::Log { .. }) { "log" } else { "linear" };
            let (from, to) = axis.scale.bounds();
            format!("{kind} {} {from:e} {to:e}", format!("{:?}", axis.unit).to_lowercase())
        };
        format!(
            " data-frame=\"{LEFT} {TOP} {:.1} {BOTTOM}\" data-x=\"{}\" data-y=\"{}\"",
            self.right(),
            axis(&self.x),
            axis(&self.y)
        )
    }

    /// Where the frame ends, and room for the names begins.
    fn right(&self) -> f64 {
        let longest = self.lines.iter().map(|lines| name_width(lines.look)).fold(0.0, f64::max);
        WIDTH - longest - 16.0
    }

    fn place_x(&self, value: f64) -> f64 {
        LEFT + self.x.scale.place(value) * (self.right() - LEFT)
    }

    fn place_y(&self, value: f64) -> f64 {
        BOTTOM - self.y.scale.place(value) * (BOTTOM - TOP)
    }

    fn y_axis(&self) -> String {
        let (right, text_x, middle) = (self.right(), LEFT - 8.0, (TOP + BOTTOM) / 2.0);
        let tick = |(value, text): (f64, String)| {
            let y = self.place_y(value);
            format!(
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right:.1}\"/>\
                 <text class=\"tick\" x=\"{text_x}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                y + 4.5
            )
        };
        let ticks: String = self.y.scale.ticks(6, self.y.unit).into_iter().map(tick).collect();
        let title = escape(&self.y.title);
        format!(
            "{ticks}<text transform=\"translate(15 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{title}</text>"
        )
    }

    fn x_axis(&self) -> String {
        let (right, text_y) = (self.right(), BOTTOM + 19.0);
        let tick = |(value, text): (f64, String)| {
            let x = self.place_x(value);
            format!(
                "<path class=\"base\" d=\"M{x:.1} {BOTTOM}v5\"/>\
                 <text class=\"tick\" x=\"{x:.1}\" y=\"{text_y}\" text-anchor=\"middle\">{text}</text>"
            )
        };
        let ticks: String = self.x.scale.ticks(6, self.x.unit).into_iter().map(tick).collect();
        format!(
            "<path class=\"base\" d=\"M{LEFT} {BOTTOM}H{right:.1}\"/>{ticks}\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 9.0,
            escape(&self.x.title)
        )
    }

    fn here(&self) -> String {
        let Some((value, name)) = &self.here else { return String::new() };
        let x = self.place_x(*value);
        // To the right of its line, unless that ends outside of the frame.
        let fits = x + 6.0 + name.chars().count() as f64 * BOLD_LETTER < self.right();
        let (side, anchor) = if fits { (6.0, "start") } else { (-6.0, "end") };
        format!(
            "<path class=\"would\" d=\"M{x:.1} {TOP}V{BOTTOM}\"/>\
             <text class=\"small\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            x + side,
            TOP + 11.0,
            escape(name)
        )
    }

    fn marks(&self) -> String {
        let mark = |(look, (x, y)): &(&Look, (f64, f64))| {
            let (x, y) = (self.place_x(*x), self.place_y(*y));
            format!("<circle class=\"mark stroke-{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>", look.colour)
        };
        self.marks.iter().map(mark).collect()
    }

    fn train(&self, lines: &Lines) -> String {
        self.pieces(&lines.train).iter().map(|piece| polyline("train", lines.look, piece)).collect()
    }

    fn held_out(&self, lines: &Lines) -> String {
        let pieces = self.pieces(&lines.held_out);
        let curves = pieces.iter().map(|piece| polyline("held-out", lines.look, piece));
        let dot = |(x, y): &(f64, f64)| {
            format!("<circle class=\"fill-{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"/>", lines.look.colour)
        };
        // Dots say where it was measured, unless they are so many that they hide the line.
        let dots = pieces.iter().filter(|piece| piece.len() <= 60).flatten().map(dot);
        curves.chain(dots).collect()
    }

    /// Runs of points that have a place, placed.
    fn pieces(&self, points: &[(f64, f64)]) -> Vec<Vec<(f64, f64)>> {
        let placed: Vec<_> = points.iter().map(|(x, y)| (self.place_x(*x), self.place_y(*y))).collect();
        let pieces = placed.split(|(x, y)| !x.is_finite() || !y.is_finite()).filter(|piece| !piece.is_empty());
        // SVG's numbers are single precision in places: what lies far above the frame need not be exact.
        pieces.map(|piece| piece.iter().map(|(x, y)| (*x, y.clamp(-9999.0, 9999.0))).collect()).collect()
    }

    /// Each run's name near its line's end, with a leader to it if it does not stand right beside.
    fn names(&self) -> String {
        let ends: Vec<(&Look, End)> = self.lines.iter().filter_map(|lines| self.end(lines)).collect();
        let drawn = self.lines.iter().flat_map(|lines| [self.pieces(&lines.train), self.pieces(&lines.held_out)]);
        let drawn: Vec<Vec<(f64, f64)>> = drawn.flatten().collect();
        let frame = Frame { left: LEFT, top: TOP, right: self.right(), bottom: BOTTOM };
        let places = places(&ends.iter().map(|(_, end)| *end).collect::<Vec<_>>(), &drawn, frame);
        ends.into_iter().zip(places).map(|((look, end), place)| name(look, end, place)).collect()
    }

    /// Where a run's line ends: held out if there is such a line, and else the training loss.
    fn end<'b>(&self, lines: &'b Lines) -> Option<(&'b Look, End)> {
        let last = |points| self.pieces(points).last().and_then(|piece| piece.last().copied());
        let (x, y) = last(&lines.held_out).or_else(|| last(&lines.train))?;
        Some((lines.look, End { x, y: y.clamp(TOP, BOTTOM), width: name_width(lines.look) }))
    }
}

fn name_width(look: &Look) -> f64 {
    short(&look.name).chars().count() as f64 * BOLD_LETTER
}

fn name(look: &Look, end: End, place: Place) -> String {
    // To the nearer edge of the name, or to its middle if it stands above or below.
    let (left, right) = (place.x - 3.0, place.x + end.width);
    let touch = if end.x < left { left } else { right.min(end.x) };
    let beside = (place.y - end.y).abs() < 5.0;
    let leader = format!(
        "<path class=\"leader stroke-{}\" d=\"M{:.1} {:.1}L{touch:.1} {:.1}\"/>",
        look.colour,
        end.x,
        end.y,
        if end.x > left && end.x < right { place.y - 8.0 * (place.y - end.y).signum() } else { place.y }
    );
    format!(
        "{}<text class=\"halo fill-{}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        if beside { "" } else { &leader },
        look.colour,
        place.x,
        place.y + 4.5,
        escape(&short(&look.name))
    )
}

fn polyline(class: &str, look: &Look, points: &[(f64, f64)]) -> String {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let dashes = if look.dashes == "none" { String::new() } else { format!(" stroke-dasharray=\"{}\"", look.dashes) };
    format!(
        "<polyline class=\"{class} stroke-{}\"{dashes} data-run=\"{}\" points=\"{}\"/>",
        look.colour,
        escape(&look.name),
        points.join(" ")
    )
}
