//! What a person sees while a run goes: a progress bar on a terminal, a line now and then elsewhere. And where answers go.

use crate::failure::{Failure, Outcome};
use crate::journal::Totals;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use thinwire_report::Step;
use thinwire_report::numbers::{bytes, short};

/// A line on standard error. Nobody may be reading any more (a terminal closed, a pipe that ended): the run must not die of it.
macro_rules! say {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        // In one piece: other processes may be writing too.
        let line = format!($($line)*) + "\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
    }};
}
pub(crate) use say;

/// Between two lines where there is no terminal.
const PAUSE: Duration = Duration::from_secs(10);

pub struct Screen {
    bar: Option<ProgressBar>,
    quiet: bool,
    began: Instant,
    said: Instant,
    first: u64,
    steps: u64,
    /// Tokens or images of a step, and which.
    units: usize,
    unit: &'static str,
    val_loss: Option<f64>,
    /// Whether the bar is of an evaluation.
    evaluates: bool,
}

impl Screen {
    pub fn new(quiet: bool, first: u64, steps: u64, units: usize, unit: &'static str) -> Screen {
        let shown = !quiet && std::io::stderr().is_terminal();
        let bar = shown.then(|| {
            let style = ProgressStyle::with_template("{bar:24.cyan/dim} {pos}/{len} {msg} · {eta} left");
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr_with_hz(8));
            bar.set_style(style.expect("a valid template").progress_chars("━━─"));
            bar
        });
        if let Some(bar) = &bar {
            #[cfg(feature = "server")]
            crate::logging::around(bar);
            bar.set_position(first);
            bar.reset_eta();
        }
        let now = Instant::now();
        Screen { bar, quiet, began: now, said: now, first, steps, units, unit, val_loss: None, evaluates: false }
    }

    /// After `last`, with the sums of all steps so far.
    pub fn step(&mut self, last: &Step, totals: &Totals) {
        if self.quiet {
            return;
        }
        let done = last.step + 1;
        let due = self.said.elapsed() >= PAUSE || done == self.steps;
        if self.bar.is_none() && !due {
            return;
        }
        self.said = Instant::now();
        let speed = (done - self.first) as f64 * self.units as f64 / self.began.elapsed().as_secs_f64().max(1e-9);
        let held_out = self.val_loss.map_or(String::new(), |loss| format!(" (held out {loss:.3})"));
        let seconds = totals.seconds;
        let part = |phase: f64| 100.0 * phase / seconds.total.max(1e-9);
        let message = format!(
            "loss {:.3}{held_out} · {} {}/s · {} {} step, {} in all · compute {:.0} % pack {:.0} % wire {:.0} % wait {:.0} %",
            totals.train_loss(),
            short(speed),
            self.unit,
            bytes(last.bytes),
            last.round,
            bytes(totals.bytes),
            part(seconds.compute),
            part(seconds.pack),
            part(seconds.wire),
            part(seconds.wait),
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position(done);
                bar.set_message(message);
            }
            None => say!("step {done}/{}: {message}", self.steps),
        }
    }

    /// How far an evaluation is.
    pub fn evaluating(&mut self, done: usize, of: usize) {
        if self.quiet {
            return;
        }
        match &self.bar {
            Some(bar) => {
                if !std::mem::replace(&mut self.evaluates, true) {
                    bar.set_length(of as u64);
                    bar.set_position(0);
                    bar.reset_eta();
                    bar.set_message("held-out examples evaluated");
                }
                bar.set_position(done as u64);
            }
            None if self.said.elapsed() >= PAUSE => {
                self.said = Instant::now();
                say!("evaluating: {done} of {of} held-out examples");
            }
            None => {}
        }
    }

    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    pub fn eval(&mut self, val_loss: f64) {
        self.val_loss = Some(val_loss);
    }

    /// Says something beside the bar.
    pub fn aside(&self, say: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }

    pub fn close(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Where the tables and the advice go that a command was asked for: to standard output, or to standard error where standard output
/// has one JSON object and nothing else.
#[derive(Clone, Copy)]
pub struct Answers {
    json: bool,
}

impl Answers {
    pub fn beside(json: bool) -> Answers {
        Answers { json }
    }

    /// Whoever reads may have read enough, as `head` does: then the rest is dropped.
    pub fn line(&self, line: &str) {
        if self.json {
            say!("{line}");
        } else {
            let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
        }
    }

    /// Of the terminal that it goes to, if it is one.
    pub fn width(&self) -> Option<usize> {
        let size = match self.json {
            true => terminal_size::terminal_size_of(std::io::stderr()),
            false => terminal_size::terminal_size_of(std::io::stdout()),
        };
        size.map(|(width, _)| usize::from(width.0))
    }
}

/// The one JSON object of a command, on standard output.
pub fn print(result: &impl Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(result).map_err(Failure::run)?;
    writeln!(std::io::stdout(), "{text}").context("standard output").map_err(Failure::Run)
}

/// Broken between words into lines that fit.
pub fn wrapped(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let (mut lines, mut long) = (String::new(), 0);
    for word in text.split(' ') {
        let letters = word.chars().count();
        if long > 0 && long + 1 + letters > width {
            lines.push('\n');
            long = 0;
        } else if long > 0 {
            lines.push(' ');
            long += 1;
        }
        lines.push_str(word);
        long += letters;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrapped("one two three", None), "one two three");
        assert_eq!(wrapped("one two three", Some(7)), "one two\nthree");
        assert_eq!(wrapped("µµµ longword a", Some(4)), "µµµ\nlongword\na");
        assert_eq!(wrapped("", Some(4)), "");
    }
}
