//! The log of `serve` and `join`, on standard error: our own events, and of the libraries' only what went wrong. It is written
//! around the progress bar.

use indicatif::ProgressBar;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// What may be on the screen.
static BAR: OnceLock<ProgressBar> = OnceLock::new();

/// From now on lines go above `bar`.
pub fn around(bar: &ProgressBar) {
    let _ = BAR.set(bar.clone());
}

struct Above;

impl Write for Above {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        match BAR.get() {
            Some(bar) => bar.suspend(|| std::io::stderr().write(line)),
            None => std::io::stderr().write(line),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Starts the log. One that was started before stays: tests may do so.
pub fn start(level: LevelFilter, json: bool) {
    let ours = ["thinwire_server", "thinwire_cli", env!("CARGO_CRATE_NAME")].map(|target| (target, level));
    let which = Targets::new().with_default(level.min(LevelFilter::WARN)).with_targets(ours);
    let lines = tracing_subscriber::fmt::layer().with_writer(|| Above).with_target(false);
    let lines = match json {
        true => lines.json().boxed(),
        false => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
    };
    let _ = tracing_subscriber::registry().with(lines.with_filter(which)).try_init();
}
