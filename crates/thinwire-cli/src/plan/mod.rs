//! `thinwire plan`: whether it will help on your network, before anything runs.
//!
//! [`thinwire_plan`] answers. Here are the flags ([`arguments`]), the built-in task that `--measure` times ([`measure`]), and the table
//! ([`show`]). docs/planning.md has the model, and how it compares with measurements.

pub mod arguments;
mod measure;
mod show;

use crate::failure::{Failure, Outcome};
use crate::screen::{Answers, print, say};
use anyhow::{Context, Result, anyhow, ensure};
use arguments::Plan;
use std::path::Path;
use thinwire_plan::{Beside, Error};

pub fn command(arguments: &Plan) -> Outcome {
    let question = arguments.question().map_err(Failure::Usage)?;
    if let Some(path) = &arguments.plot {
        check_plot(path).map_err(Failure::Usage)?;
    }
    let told = |what: &str| {
        if !arguments.quiet {
            say!("{what}");
        }
    };
    let measure = |workers, sharing| Ok(measure::task(arguments, workers, sharing, &told)?);
    let beside = Beside { told: &told, measure: if arguments.measure { Some(&measure) } else { None } };
    let answer = question.answer_with(beside).map_err(refused)?;
    if let Some(path) = &arguments.plot {
        let written = std::fs::write(path, answer.plot()).with_context(|| format!("--plot {}", path.display()));
        written.map_err(Failure::Usage)?;
    }
    if !arguments.quiet {
        show::show(&answer, Answers::beside(arguments.json));
        if let Some(path) = &arguments.plot {
            say!("plot      {}", path.display());
        }
    }
    if arguments.json {
        print(&answer.to_json())?;
    }
    Ok(())
}

/// A question without an answer, in the words of the flags.
fn refused(error: Error) -> Failure {
    Failure::Usage(anyhow!(error.with_flags()))
}

fn check_plot(path: &Path) -> Result<()> {
    let svg = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg"));
    ensure!(svg, "invalid --plot {}: expected a name that ends in .svg (for example step.svg)", path.display());
    Ok(())
}
