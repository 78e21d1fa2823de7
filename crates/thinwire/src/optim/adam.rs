//! Adam with decoupled weight decay (arXiv 1412.6980, 1711.05101): the mean of the gradient, every step.
//!
//! ```text
//! ḡ = exact mean of g, or coarse mean of g if a codec is given
//! m ← β1·m + (1−β1)·ḡ;   v ← β2·v + (1−β2)·ḡ²;   x ← x·(1−γλ) − γ̂·m/P
//! ```
//!
//! Exact, it is `torch.optim.AdamW` to rounding, and the baseline of everything else here. With a codec it is Adam on a coded
//! gradient: m and v see what all workers see, so both stay the same everywhere, and v has the code's noise in it like any other. The
//! preset `loco` is LoCo (arXiv 2407.04480): four bits up, and a residual in 8 bits that takes in a fifth of each loss.

use super::table::{Algorithm, Averages, Options, given, preset};
use super::{Hyper, Moments, Momentum, Optimizer, Vectors};
use crate::codec::{CodecName, Precision};
use crate::config::{Config, Name};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::machine::Step;
use crate::schedule::Round;
use crate::state::{Entry, Share};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

impl Name {
    /// `adam`
    pub const ADAM: Name = Name::new("adam");
}

/// Adam's own options: it has none. With a codec (`codec`, `codec_up`, `codec_down`) its rounds are coarse.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adam {}

impl Options for Adam {
    const NAME: Name = Name::ADAM;
    const TITLE: &'static str = "Adam";
    const EXACT: Option<CodecName> = Some(CodecName::F32);
    const COARSE: Option<CodecName> = None;
    const IF_CODED: Option<CodecName> = Some(CodecName::F32);
    const PRESETS: &'static [&'static str] = &["paper", "deepspeed", "loco"];

    fn decide(self, config: &mut Config) -> Result<Box<dyn Algorithm>> {
        match preset::<Self>(config)? {
            Some("loco") => loco(config),
            Some(_) => drop(config.bias_correction.get_or_insert(false)),
            None => {}
        }
        let round = if config.is_coded() { Round::Coarse } else { Round::Exact };
        check(config, round)?;
        Ok(Box::new(Decided { round }))
    }
}

/// LoCo as DeepSpeed had it: a scale a group, κ = 0.2. Down goes what its home sends too, 16 bits.
fn loco(config: &mut Config) {
    if config.codec.is_none() {
        config.codec_up.get_or_insert(CodecName::Uniform(4));
        config.codec_down.get_or_insert(CodecName::Bf16);
    }
    if config.feedback.is_none() {
        config.feedback_up.get_or_insert(0.2);
        config.feedback_down.get_or_insert(0.0);
    }
    config.residual.get_or_insert(Precision::I8);
}

/// Refuses what belongs to the other kind of round.
fn check(config: &Config, round: Round) -> Result<()> {
    if let (Round::Coarse, Some(codec)) = (round, config.exact_codec) {
        let problem = "is for exact rounds, and with a codec every round is coarse; expected codec, or exact_codec";
        return Err(Error::config("exact_codec", codec, problem));
    }
    let needs = |key, value: Option<String>| match value {
        Some(value) if round == Round::Exact => Err(Error::config(
            key,
            value,
            "is for coarse rounds; expected a codec as well, such as codec = \"uniform4\"",
        )),
        _ => Ok(()),
    };
    needs("residual", config.residual.map(|precision| precision.to_string()))?;
    for (key, kappa) in
        [("feedback", config.feedback), ("feedback_up", config.feedback_up), ("feedback_down", config.feedback_down)]
    {
        needs(key, kappa.map(|kappa| kappa.to_string()))?;
    }
    Ok(())
}

#[derive(Debug)]
struct Decided {
    round: Round,
}

impl Algorithm for Decided {
    fn options(&self) -> Map<String, Value> {
        given(&Adam {})
    }

    fn vectors(&self) -> Vectors {
        &[("m", Share::Same), ("v", Share::Same)]
    }

    fn passes(&self) -> &'static [&'static str] {
        const { &[Moments::PASSES[0], Moments::PASSES[1]] }
    }

    fn round(&self, _: u64, _: f32) -> Round {
        self.round
    }

    /// Each worker's gradient counts once.
    fn averages(&self) -> Averages {
        Averages::Increments
    }

    fn keeps_mean(&self) -> bool {
        true
    }

    /// Nobody has measured yet how it learns from a coded gradient.
    fn rank(&self, _: CodecName) -> Option<usize> {
        (self.round == Round::Exact).then_some(0)
    }

    fn build(&self, hyper: Hyper) -> Box<dyn Optimizer> {
        Box::new(Running { hyper, round: self.round, moments: Moments::default() })
    }
}

struct Running {
    hyper: Hyper,
    round: Round,
    moments: Moments,
}

impl Optimizer for Running {
    fn step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<Round> {
        match self.round {
            Round::Exact => self.moments.exact_step(Momentum::Exact, &mut self.hyper, step, exchange)?,
            _ => self.moments.coded_step(&mut self.hyper, step, exchange)?,
        }
        Ok(self.round)
    }

    fn numbers(&mut self) -> Vec<Entry<'_>> {
        self.moments.numbers()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn options() {
        let decided = |options: &str| decided(Name::ADAM, options);
        assert_eq!(decided(""), "bias_correction = true; exact_codec = 'f32'");
        for preset in ["paper", "deepspeed"] {
            assert_eq!(decided(&format!("preset = '{preset}'")), "bias_correction = false; exact_codec = 'f32'");
        }
        let coded = |down: &str, up: &str| format!("bias_correction = true; codec_down = '{down}'; codec_up = '{up}'");
        assert_eq!(decided("codec = 'sign'"), coded("sign", "sign"));
        assert_eq!(decided("codec_up = 'sign'"), coded("f32", "sign"));
        assert_eq!(decided("preset = 'loco'"), coded("bf16", "uniform4"));
        let loco = resolved(Name::ADAM, "preset = 'loco'; feedback_up = 0.05");
        assert_eq!((loco.feedback_up, loco.feedback_down, loco.residual), (Some(0.05), Some(0.0), Some(Precision::I8)));
        assert_refused(Name::ADAM, "preset = 'papers'", &["preset", "papers", "paper, deepspeed, loco"]);
        assert_refused(Name::ADAM, "codec = 'sign'; exact_codec = 'f32'", &["exact_codec", "every round is coarse"]);
        assert_refused(Name::ADAM, "feedback = 0.5", &["feedback", "0.5", "codec = \"uniform4\""]);
        assert_refused(Name::ADAM, "residual = 'i8'", &["residual", "i8", "codec"]);
        assert_refused(Name::ADAM, "codec = 'sign'; feedback = 1.5", &["feedback_up", "1.5", "0 (forget) to 1"]);
        assert_refused(
            Name::ADAM,
            "codec = 'sign'; feedback = 1; feedback_up = 1; feedback_down = 0",
            &["feedback", "excludes feedback_up"],
        );
    }

    #[test]
    fn every_round_is_of_one_kind() {
        assert_eq!(calendar(Name::ADAM, "", 5), "eeeee");
        assert_eq!(calendar(Name::ADAM, "codec = 'sign'", 5), "ccccc");
    }

    /// With blocks of one value `sign` loses nothing.
    #[test]
    fn steps_by_hand() {
        let (gradients, mut hand, mut x) = ([0.5, -2.0, 1e-3], Hand::default(), 1.0);
        let want = gradients.map(|g| {
            hand.blend(g);
            hand.square(g);
            x = x * DECAY - hand.rate() * hand.m / hand.p();
            x
        });
        for options in ["", "codec = 'sign'", "codec = 'sign'; clip = 100.0"] {
            assert_near(&course(Name::ADAM, options, &gradients), &want);
        }
    }
}
