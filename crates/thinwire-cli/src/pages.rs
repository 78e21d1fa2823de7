//! `thinwire completions` and `thinwire man`: what clap knows about the flags, for shells and for `man`.
//!
//! Both are made from the same declarations that parse the command line, so they cannot fall behind it.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use crate::screen::say;
use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

#[derive(Args)]
pub struct Man {
    /// Where to write the pages of all commands, such as ~/.local/share/man/man1 [default: the first page, on standard output]
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

pub fn completions(arguments: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "thinwire", &mut script);
    print(&script).map_err(Failure::Run)
}

pub fn man(arguments: &Man) -> Outcome {
    match &arguments.dir {
        None => first_page().and_then(|page| print(&page)).map_err(Failure::Run),
        Some(dir) => {
            write_all(dir).map_err(Failure::Run)?;
            say!("manual pages → {}", dir.display());
            Ok(())
        }
    }
}

/// `help` needs no page.
fn with_pages() -> clap::Command {
    Arguments::command().disable_help_subcommand(true)
}

fn first_page() -> Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(with_pages()).render(&mut page)?;
    Ok(page)
}

/// thinwire.1, and thinwire-COMMAND.1 for each command.
fn write_all(dir: &Path) -> Result<()> {
    let named = || dir.display().to_string();
    std::fs::create_dir_all(dir).with_context(named)?;
    clap_mangen::generate_to(with_pages(), dir).with_context(named)
}

fn print(bytes: &[u8]) -> Result<()> {
    std::io::stdout().write_all(bytes).context("standard output")
}
