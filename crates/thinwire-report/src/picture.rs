//! A plot, drawn: SVG within the page, and SVG as a file.

use crate::markup::escape;
use crate::style;

/// All pictures are this wide, in the units of what is drawn in them; the page scales them.
pub const WIDTH: f64 = 720.0;

/// About how wide a letter of the plots' text is, in fonts that are wide; and of names, which are bold.
pub const LETTER: f64 = 7.0;
pub const BOLD_LETTER: f64 = 8.1;

#[derive(Clone, Debug)]
pub struct Picture {
    /// Names the file, and is unique on the page.
    pub id: String,
    pub title: String,
    /// What it shows and how, in a sentence or two.
    pub note: String,
    pub height: f64,
    /// What is inside `<svg>`.
    pub body: String,
    /// Attributes of `<svg>` from which the page's script reads values under the pointer.
    pub data: String,
}

impl Picture {
    /// Says that there is nothing to draw.
    pub fn without_data(id: impl Into<String>, title: impl Into<String>, why: &str) -> Picture {
        let body = format!(
            "<text class=\"none\" x=\"{}\" y=\"46\" text-anchor=\"middle\">no data: {}</text>",
            WIDTH / 2.0,
            escape(why)
        );
        Picture { id: id.into(), title: title.into(), note: String::new(), height: 90.0, body, data: String::new() }
    }

    pub fn inline(&self) -> String {
        format!(
            "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{}\"{}>{}</svg>",
            self.height,
            escape(&self.title),
            self.data,
            self.body
        )
    }

    /// On white, with its title and its style.
    pub fn standalone(&self) -> String {
        const HEAD: f64 = 40.0;
        let height = self.height + HEAD;
        let (style, title) = (style::standalone_style(), escape(&self.title));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" width=\"{WIDTH}\" height=\"{height:.0}\" \
             viewBox=\"0 -{HEAD} {WIDTH} {height:.0}\">\n<title>{title}</title>\n<style>{style}</style>\n\
             <rect class=\"fill-paper\" y=\"-{HEAD}\" width=\"{WIDTH}\" height=\"{height:.0}\"/>\n\
             <text class=\"title\" x=\"12\" y=\"-14\">{title}</text>\n{}\n</svg>\n",
            self.body
        )
    }
}
