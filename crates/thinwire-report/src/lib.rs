//! What training runs of **thinwire** leave behind, as charts and as one page of HTML that needs nothing else.
//!
//! A run's folder holds `metrics.jsonl`, a [`Metric`] in each line, `summary.json`, a [`Summary`], and `config.toml`. [`find`] reads
//! such folders, and [`write`](write()) makes the page and its plots:
//!
//! ```
//! use thinwire_report::{Eval, Metric, Phases, Step, find, write};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let place = tempfile::tempdir()?;
//! # let folder = place.path().join("adam");
//! // What `thinwire train` writes while it runs: a step, and an evaluation.
//! let seconds = Phases { total: 0.25, compute: 0.2, ..Phases::default() };
//! let step = Step { step: 0, loss: 1.5, lr: 1e-3, round: "exact".to_owned(), bytes: 4e6, bytes_total: 4e6,
//!     bytes_between_hosts: 0.0, seconds, compute_cpu: 0.2 };
//! let lines = [Metric::Step(step), Metric::Eval(Eval { step: 1, val_loss: 1.4, accuracy: None, matthews: None })];
//! std::fs::create_dir_all(&folder)?;
//! let lines = lines.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
//! std::fs::write(folder.join("metrics.jsonl"), lines.join("\n") + "\n")?;
//!
//! // The page, with projected times on links of 1 Gb/s first.
//! let runs = find(&[folder])?;
//! assert_eq!((runs[0].optimizer.as_str(), runs[0].steps.len()), ("adam", 1));
//! let written = write(&runs, &place.path().join("report.html"), 1e9)?;
//! assert!(std::fs::read_to_string(&written[0])?.starts_with("<!doctype html>"));
//! # Ok(())
//! # }
//! ```
//!
//! [`Chart`] draws lines of any other kind, as `thinwire plan --plot` does. [`numbers`] writes figures as people read them.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

// In reading order: the record of a run, its figures, the drawings, the page.
mod error;
pub mod numbers;
mod record;
mod style;
mod load;
mod baseline;
mod cumulative;
mod totals;
mod series;
mod markup;
mod scale;
mod labels;
mod picture;
mod chart;
mod strips;
mod bars;
mod plots;
mod headline;
mod table;
mod page;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use baseline::BASELINE;
pub use chart::{Axis, Chart, Lines};
pub use error::{Error, Result};
pub use load::{Run, find, load};
pub use page::write;
pub use record::{Cut, Eval, Metric, Phases, Planned, Projection, Rounds, Step, Summary, projected};
pub use scale::{Scale, Unit};
pub use style::{Look, shown};
