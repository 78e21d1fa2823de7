//! `thinwire report`: what some runs left behind, as one page of HTML that needs nothing else, and its plots as files.
//!
//! [`find`] reads the folders. `cumulative` and `totals` turn a run's lines into what is worth showing, `plots` draws each
//! picture with `chart`, `strips` and `bars`, and `page` puts them under a sentence that says what they show.

mod baseline;
mod bars;
pub mod chart;
mod load;
pub mod style;
mod markup;
mod labels;
mod page;
pub mod picture;
mod plots;
pub mod scale;
mod series;
mod cumulative;
mod headline;
mod strips;
mod table;
mod totals;

#[cfg(test)]
mod fake;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use load::{Run, find, load};
pub use style::shown;

/// Writes the page to `out`, and each plot to `plots/` beside it. Times on other machines are shown for links of
/// `bandwidth` bits a second first. Returns the files written.
pub fn write(runs: &[Run], out: &Path, bandwidth: f64) -> Result<Vec<PathBuf>> {
    let plots = plots::all(runs, bandwidth);
    let folder = out.parent().unwrap_or(Path::new("")).join("plots");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;

    let page = (out.to_path_buf(), page::html(runs, &plots, bandwidth));
    let pictures = plots.pictures().map(|plot| (folder.join(format!("{}.svg", plot.id)), plot.standalone()));
    let mut written = Vec::new();
    for (path, text) in std::iter::once(page).chain(pictures) {
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        written.push(path);
    }
    Ok(written)
}

#[cfg(test)]
mod tests;
