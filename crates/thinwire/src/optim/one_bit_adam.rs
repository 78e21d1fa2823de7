//! 1-bit Adam (arXiv 2102.02888): exact steps while the variance settles, then the momentum in one bit.
//!
//! For t < T_w a plain Adam step. From then on v is frozen, and
//!
//! ```text
//! m ← coarse mean of (β1·m + (1−β1)·g);   x ← x·(1−γλ) − (γ̂·m/P, within ±c·γ̂)
//! ```
//!
//! c is [`LIMIT`](update::LIMIT), which has the reason.
//!
//! T_w is a number, or found by the run: the first t past the learning rate's warm-up with ‖v_t‖₁/‖v_(t−Δ)‖₁ ≥ 0.96,
//! Δ = 1/(1−β2). v is the same on all workers, so they all find the same.

use super::table::{Algorithm, Options, given, lengths, preset, renamed};
use super::{ENOUGH, Hyper, M, Moments, Momentum, Optimizer, SHORT, V, Vectors, X};
use crate::codec::CodecName;
use crate::config::{Config, Name, StepsOrWord};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::kernel::update::{self, Scalars};
use crate::machine::{Pass, Read, Source, Step, Vector, Write};
use crate::schedule::Round;
use crate::state::{Entry, Share};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

impl Name {
    /// `one-bit-adam`
    pub const ONE_BIT_ADAM: Name = Name::new("one-bit-adam");
}

/// 1-bit Adam's own options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OneBitAdam {
    /// T_w: exact steps. Default: 15 % of `learning_rate.steps` and at least 100, all of a run of at most 250 steps, `auto` when the
    /// length is not known.
    pub warmup: Option<Warmup>,
    /// DeepSpeed's name for `warmup`.
    pub freeze_step: Option<u64>,
}

/// How long 1-bit Adam warms up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StepsOrWord", into = "StepsOrWord")]
#[non_exhaustive]
pub enum Warmup {
    /// So many steps.
    Steps(u64),
    /// Until the variance has settled.
    Auto,
}

impl TryFrom<StepsOrWord> for Warmup {
    type Error = String;

    fn try_from(given: StepsOrWord) -> Result<Warmup, String> {
        match given {
            StepsOrWord::Steps(steps) => Ok(Warmup::Steps(steps)),
            StepsOrWord::Word(word) if word == "auto" => Ok(Warmup::Auto),
            other => Err(other.refused("a number of steps, or \"auto\"")),
        }
    }
}

impl From<Warmup> for StepsOrWord {
    fn from(warmup: Warmup) -> StepsOrWord {
        match warmup {
            Warmup::Steps(steps) => StepsOrWord::Steps(steps),
            Warmup::Auto => StepsOrWord::Word("auto".to_owned()),
        }
    }
}

/// Part of a run that is warm-up, when its length is known.
pub(super) const WARMUP_PART: f64 = 0.15;

/// The largest β2 with which the automatic end of the warm-up is offered: it looks back 1/(1−β2) steps, and remembers as many numbers.
const LONGEST_MEMORY: f64 = 1.0 - 1e-6;

impl Options for OneBitAdam {
    const NAME: Name = Name::ONE_BIT_ADAM;
    const TITLE: &'static str = "1-bit Adam";
    const EXACT: Option<CodecName> = Some(CodecName::F32);
    const COARSE: Option<CodecName> = Some(CodecName::Sign);
    const PRESETS: &'static [&'static str] = &["paper", "deepspeed"];

    fn decide(self, config: &mut Config) -> Result<Box<dyn Algorithm>> {
        let warmup = renamed(("freeze_step", self.freeze_step), ("warmup", self.warmup), Warmup::Steps)?;
        let preset = preset::<Self>(config)?;
        if preset.is_some() {
            config.bias_correction.get_or_insert(false);
        }
        let (earliest, steps) = lengths(config.learning_rate.as_ref());
        let warmup = warmup.unwrap_or(match (preset, steps) {
            (Some("deepspeed"), _) => Warmup::Steps(100_000),
            (Some(_), _) | (None, None) => Warmup::Auto,
            (None, Some(steps)) if steps <= SHORT => Warmup::Steps(steps),
            (None, Some(steps)) => Warmup::Steps(((steps as f64 * WARMUP_PART).ceil() as u64).max(ENOUGH)),
        });
        let (beta1, beta2) = config.betas.unwrap_or(Hyper::BETAS);
        match warmup {
            Warmup::Steps(0) => {
                let expected = "expected a number of at least 1, or \"auto\": without a variance nothing moves";
                Err(Error::config("warmup", 0, expected))
            }
            Warmup::Auto if beta2 > LONGEST_MEMORY => {
                let expected = "expected, with warmup = \"auto\", a second number of at most 0.999999";
                Err(Error::config("betas", format!("[{beta1}, {beta2}]"), expected))
            }
            warmup => Ok(Box::new(Decided { warmup, earliest, beta2 })),
        }
    }
}

#[derive(Debug)]
struct Decided {
    warmup: Warmup,
    /// The end of the learning rate's warm-up: the automatic one ends no earlier.
    earliest: u64,
    beta2: f64,
}

impl Algorithm for Decided {
    fn options(&self) -> Map<String, Value> {
        given(&OneBitAdam { warmup: Some(self.warmup), freeze_step: None })
    }

    fn vectors(&self) -> Vectors {
        &[("m", Share::Same), ("v", Share::Same)]
    }

    fn passes(&self) -> &'static [&'static str] {
        const { &[Moments::PASSES[0], Moments::PASSES[1], Blend::NAME, Descend::NAME] }
    }

    fn round(&self, t: u64, _: f32) -> Round {
        match self.warmup {
            Warmup::Steps(warmup) => round(t, warmup),
            Warmup::Auto => Round::Exact,
        }
    }

    fn is_planned(&self) -> Result<()> {
        match self.warmup {
            Warmup::Steps(_) => Ok(()),
            Warmup::Auto => {
                let remedy = "only the run will tell; to plan, set warmup to a number of steps";
                Err(Error::config("warmup", "auto", remedy))
            }
        }
    }

    fn drill(&self, each: u64) -> (Map<String, Value>, u64) {
        (given(&OneBitAdam { warmup: Some(Warmup::Steps(each)), freeze_step: None }), 2 * each)
    }

    fn rank(&self, _: CodecName) -> Option<usize> {
        Some(2)
    }

    fn build(&self, hyper: Hyper) -> Box<dyn Optimizer> {
        let (frozen_from, auto) = match self.warmup {
            Warmup::Steps(steps) => (steps, None),
            Warmup::Auto => (NOT_YET, Some(Auto::new(self.earliest, self.beta2))),
        };
        Box::new(Running { hyper, moments: Moments::default(), frozen_from, auto })
    }
}

/// Exact before the warm-up ends, coarse from then on.
fn round(t: u64, warmup: u64) -> Round {
    if t < warmup { Round::Exact } else { Round::Coarse }
}

const SETTLED: f64 = 0.96;

/// In [`Running::frozen_from`]: not yet.
const NOT_YET: u64 = u64::MAX;

/// The automatic end of the warm-up.
struct Auto {
    /// The end of the learning rate's warm-up.
    earliest: u64,
    /// ‖v‖₁ after the last Δ steps; step t at t mod Δ.
    norms: Vec<f64>,
}

impl Auto {
    fn new(earliest: u64, beta2: f64) -> Auto {
        Auto { earliest, norms: vec![0.0; (1.0 / (1.0 - beta2)).round() as usize] }
    }

    /// Notes ‖v‖₁ after step `t`, and says whether v has settled.
    fn has_settled(&mut self, t: u64, norm: f64) -> bool {
        let delta = self.norms.len() as u64;
        let before = std::mem::replace(&mut self.norms[(t % delta) as usize], norm);
        t >= self.earliest && t >= delta && norm > 0.0 && norm >= SETTLED * before
    }
}

struct Running {
    hyper: Hyper,
    moments: Moments,
    /// T_w.
    frozen_from: u64,
    auto: Option<Auto>,
}

/// z = β1·m + (1−β1)·g
pub(super) struct Blend;

impl Source for Blend {
    const NAME: &'static str = "blend";
    const READS: &'static [Vector] = &[M];

    fn fill(k: &Scalars, g: &[f32], [m, ..]: Read<'_>, _: Write<'_>, z: &mut [f32]) {
        update::blend(k, g, m, z);
    }
}

/// m ← z̄;   x ← x·(1−γλ) − (γ̂·m/P, within ±c·γ̂)
struct Descend;

impl Pass for Descend {
    const NAME: &'static str = "descend";
    const READS: &'static [Vector] = &[V];
    const WRITES: &'static [Vector] = &[M, X];

    fn run(k: &Scalars, mean: &[f32], [v, ..]: Read<'_>, [m, x, ..]: Write<'_>) -> Option<usize> {
        update::descend(k, mean, v, m, x);
        None
    }
}

impl Running {
    fn warm_up(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        self.moments.exact_step(Momentum::Exact, &mut self.hyper, step, exchange)?;
        if let Some(auto) = &mut self.auto {
            let sum = exchange.machine.sum_of(V)?;
            if auto.has_settled(step.t, exchange.shards.sum(step.t, sum)?) {
                self.frozen_from = step.t + 1;
            }
        }
        Ok(())
    }
}

impl Optimizer for Running {
    fn step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<Round> {
        let round = round(step.t, self.frozen_from);
        match round {
            Round::Exact => self.warm_up(step, exchange)?,
            _ => {
                self.moments.prepare(&mut self.hyper, step);
                exchange.mean(Round::Coarse, step, Blend, Descend)?;
            }
        }
        Ok(round)
    }

    fn numbers(&mut self) -> Vec<Entry<'_>> {
        let mut numbers = self.moments.numbers();
        numbers.push(Entry::word("frozen_from", &mut self.frozen_from));
        if let Some(auto) = &mut self.auto {
            numbers.push(Entry::doubles("variance_norms", Share::Same, &mut auto.norms));
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    const NAME: Name = Name::ONE_BIT_ADAM;

    #[test]
    fn defaults_and_presets() {
        for (options, bias_correction, warmup) in [
            ("", true, "'auto'"),
            ("learning_rate = {peak = 0.1, steps = 250}", true, "250"),
            ("learning_rate = {peak = 0.1, steps = 300}", true, "100"),
            ("learning_rate = {peak = 0.1, steps = 1000}", true, "150"),
            ("preset = 'paper'; learning_rate = {peak = 0.1, steps = 900}", false, "'auto'"),
            ("preset = 'deepspeed'", false, "100000"),
            ("preset = 'deepspeed'; warmup = 9", false, "9"),
            ("freeze_step = 30", true, "30"),
        ] {
            let codecs = "codec_down = 'sign'; codec_up = 'sign'; exact_codec = 'f32'";
            let expected = format!("bias_correction = {bias_correction}; {codecs}; warmup = {warmup}");
            assert_eq!(decided(NAME, options), expected, "{options}");
        }
    }

    #[test]
    fn refusals() {
        for (options, expected) in [
            ("warmup = 0", &["warmup = 0", "at least 1"][..]),
            ("freeze_step = 0", &["freeze_step = 0", "at least 1"]),
            ("warmup = 'never'", &["warmup", "never", "a number of steps", "auto"]),
            ("warmup = -3", &["warmup", "-3", "a number of steps", "auto"]),
            ("warmup = 1.5", &["warmup", "1.5", "a number of steps", "auto"]),
            ("warmup = 1; freeze_step = 2", &["freeze_step = 2", "warmup"]),
            ("warmup = 'auto'; betas = [0.9, 0.9999995]", &["betas", "auto", "0.999999"]),
            ("preset = 'ours'", &["preset = ours", "paper, deepspeed"]),
        ] {
            assert_refused(NAME, options, expected);
        }
    }

    #[test]
    fn exact_rounds_come_first() {
        assert_eq!(calendar(NAME, "warmup = 3", 6), "eeeccc");
        let unknown = resolved(NAME, "").decide().unwrap().algorithm.is_planned().unwrap_err().to_string();
        assert!(unknown.contains("warmup = auto"), "{unknown}");
    }

    /// v moves in the first step alone; the last momentum is so long that the step is limited.
    #[test]
    fn steps_by_hand() {
        let (gradients, mut hand, mut x) = ([0.5, -0.25, 90.0], Hand::default(), 1.0);
        let want = [0, 1, 2].map(|t| {
            hand.blend(gradients[t]);
            if t == 0 {
                hand.square(gradients[t]);
            }
            let update = hand.rate() * hand.m / hand.p();
            x = x * DECAY - if t == 0 { update } else { update.clamp(-hand.rate(), hand.rate()) };
            x
        });
        assert!(hand.m > hand.p() && hand.m < f64::from(update::NOISE) * hand.p());
        assert_near(&course(NAME, "warmup = 1", &gradients), &want);
    }

    #[test]
    fn the_warm_up_ends_when_v_has_settled_and_no_sooner_than_the_rates() {
        let norm = |t: u64| 1.0 + 8.0 * 0.8_f64.powi(t as i32); // of a v that settles
        for (earliest, end) in [(15, 34), (40, 40)] {
            let mut auto = Auto::new(earliest, 0.9); // Δ = 10
            assert_eq!((0..50).find(|t| auto.has_settled(*t, norm(*t))), Some(end));
        }
        assert!(norm(33) < SETTLED * norm(23) && norm(34) >= SETTLED * norm(24));
    }
}
