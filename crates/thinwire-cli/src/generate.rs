//! `thinwire generate`: text from a gpt that a run has trained.
//!
//! The same folder, prompt, choice and seed give the same text. `--logits` shows what the network computes before anything is
//! drawn; a test holds the exported network in PyTorch to it.

use crate::failure::{Failure, Outcome};
use crate::language::Language;
use crate::saved::Saved;
use crate::screen;
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use thinwire_models::generate::{Choice, Writer};
use thinwire_models::random::Random;

#[derive(Args)]
#[command(allow_negative_numbers = true)] // so that the message of --temperature -1 is about the temperature
pub struct Generate {
    /// The folder of a gpt run, or its checkpoint
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The text to continue
    #[arg(long, value_name = "TEXT", default_value = "\n", hide_default_value = true)]
    pub prompt: String,
    /// Number of tokens to add; a token is a byte, or a piece of a word with the gpt2 tokenizer
    #[arg(long, value_name = "N", default_value_t = 300)]
    pub tokens: usize,
    /// Temperature: 0 always takes the most likely token, 1 samples from the probabilities of the network
    #[arg(long, value_name = "X", default_value_t = 0.8, value_parser = temperature)]
    pub temperature: f32,
    /// Sample among the K most likely tokens [default: all]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub top_k: Option<u32>,
    /// Seed of the samples
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Also print the logits of the token after each token of the prompt, which must fit the network's context
    #[arg(long, requires = "json")]
    pub logits: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Generated {
    /// Steps that the network has learned for.
    step: u64,
    seed: u64,
    prompt: String,
    /// What was added to the prompt.
    text: String,
    prompt_tokens: Vec<u32>,
    tokens: Vec<u32>,
    /// A row for each token of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    logits: Option<Vec<Vec<f32>>>,
}

fn temperature(text: &str) -> Result<f32, String> {
    let sound = |value: &f32| value.is_finite() && *value >= 0.0;
    text.parse().ok().filter(sound).ok_or_else(|| "expected a number of at least 0 (for example 0.8)".to_owned())
}

pub fn command(arguments: &Generate) -> Outcome {
    let generated = generate(arguments).map_err(Failure::Usage)?;
    match arguments.json {
        true => screen::print(&generated),
        false => print(&format!("{}{}", generated.prompt, generated.text)).map_err(Failure::Run),
    }
}

fn generate(arguments: &Generate) -> Result<Generated> {
    let saved = Saved::open(&arguments.dir)?;
    let language = Language::of(&saved)?;
    let prompt_tokens = language.tokenizer.encode(arguments.prompt.as_bytes());
    ensure!(!prompt_tokens.is_empty(), "invalid --prompt \"\": expected at least one letter (for example \"To be\")");
    let context = language.network.shape().context;
    let length = prompt_tokens.len();
    ensure!(
        !arguments.logits || length <= context,
        "--logits: expected a prompt of at most {context} tokens, which the network sees at once, found {length}"
    );
    let mut writer = Writer::new(&language.network, &language.params);
    let logits = arguments.logits.then(|| rows(&mut writer, &prompt_tokens, &language));
    let choice = Choice { temperature: arguments.temperature, top_k: arguments.top_k.map(|k| k as usize) };
    let mut all = prompt_tokens.clone();
    writer.extend(&mut all, arguments.tokens, choice, &mut Random::of(&[arguments.seed]));
    let tokens = all.split_off(length);
    Ok(Generated {
        step: saved.checkpoint.manifest.step,
        seed: arguments.seed,
        prompt: arguments.prompt.clone(),
        text: language.tokenizer.decode(&tokens),
        prompt_tokens,
        tokens,
        logits,
    })
}

fn rows(writer: &mut Writer<'_>, prompt: &[u32], language: &Language) -> Vec<Vec<f32>> {
    let vocabulary = language.network.shape().vocabulary;
    writer.all_logits(prompt).chunks_exact(vocabulary).map(<[f32]>::to_vec).collect()
}

/// A network that knows little writes any byte: on a terminal, those that move the cursor or ring the bell are replaced.
fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout();
    let harmful = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    let text = if out.is_terminal() { text.replace(harmful, "\u{fffd}") } else { text.to_owned() };
    out.write_all(format!("{text}\n").as_bytes()).context("standard output")
}
