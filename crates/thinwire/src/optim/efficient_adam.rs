//! Efficient-Adam (arXiv 2205.14473): every worker keeps its own moments; the update itself is averaged, coarsely.
//!
//! ```text
//! m ← β·m + (1−β)·g;   v ← θ·v + (1−θ)·g²                     this worker's own, never averaged
//! x ← x·(1−γλ) − coarse mean of γ̂·m/P,    P = √(v/(1−Πθ)) + ε
//! ```
//!
//! θ is β2, or θ_t = 1 − β2/t with t from 1. For any codec, and λ = 0, y = x − mean e − E moves by exactly the mean of the
//! local updates.

use super::table::{Algorithm, Averages, Options, given, preset};
use super::{Hyper, M, Moments, Optimizer, V, Vectors, X};
use crate::codec::CodecName;
use crate::config::{Config, Name};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::kernel::update::{self, Scalars};
use crate::machine::{Pass, Read, Source, Step, Vector, Write};
use crate::schedule::Round;
use crate::state::{Entry, Share};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

impl Name {
    /// `efficient-adam`
    pub const EFFICIENT_ADAM: Name = Name::new("efficient-adam");
}

/// Efficient-Adam's own options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EfficientAdam {
    /// How much of v a step keeps. Default `constant`.
    pub theta: Option<Theta>,
}

/// How much of v each step keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Theta {
    /// θ = β2.
    #[default]
    Constant,
    /// θ_t = 1 − β2/t, t from 1.
    OneMinusOverT,
}

impl Theta {
    fn at(self, step: u64, beta2: f64) -> f64 {
        match self {
            Theta::Constant => beta2,
            Theta::OneMinusOverT => 1.0 - beta2 / (step + 1) as f64,
        }
    }
}

impl Options for EfficientAdam {
    const NAME: Name = Name::EFFICIENT_ADAM;
    const TITLE: &'static str = "Efficient-Adam";
    const EXACT: Option<CodecName> = None;
    const COARSE: Option<CodecName> = Some(CodecName::Uniform(4));
    const PRESETS: &'static [&'static str] = &["paper"];

    fn decide(self, config: &mut Config) -> Result<Box<dyn Algorithm>> {
        if preset::<Self>(config)?.is_some() {
            config.bias_correction.get_or_insert(false);
            if config.codec_up.is_none() || config.codec_down.is_none() {
                config.codec.get_or_insert(CodecName::Power2(3));
            }
        }
        Ok(Box::new(Decided { theta: self.theta.unwrap_or_default() }))
    }
}

#[derive(Debug)]
struct Decided {
    theta: Theta,
}

impl Algorithm for Decided {
    fn options(&self) -> Map<String, Value> {
        given(&EfficientAdam { theta: Some(self.theta) })
    }

    fn vectors(&self) -> Vectors {
        &[("m", Share::Mean), ("v", Share::Mean)]
    }

    fn passes(&self) -> &'static [&'static str] {
        &[OwnUpdate::NAME, Subtract::NAME]
    }

    fn round(&self, _: u64, _: f32) -> Round {
        Round::Coarse
    }

    fn averages(&self) -> Averages {
        Averages::Increments
    }

    /// Its variance is of own gradients too.
    fn own_clip(&self, _: usize) -> f64 {
        1.0
    }

    /// A worker's own v is noisier than the mean's, so its updates are smaller (docs/convergence.md).
    fn rate_to_adams(&self) -> f64 {
        1.6
    }

    /// It learned about as well as Adam by four bits, and less by fewer (docs/convergence.md).
    fn rank(&self, coarse: CodecName) -> Option<usize> {
        matches!(coarse, CodecName::Uniform(4..) | CodecName::Bf16 | CodecName::F16).then_some(3)
    }

    fn build(&self, hyper: Hyper) -> Box<dyn Optimizer> {
        Box::new(Running { hyper, theta: self.theta, moments: Moments::default(), forgotten: 1.0 })
    }
}

/// m ← β·m + (1−β)·g;   v ← θ·v + (1−θ)·g²;   z = γ̂·m/P
struct OwnUpdate;

impl Source for OwnUpdate {
    const NAME: &'static str = "own_update";
    const WRITES: &'static [Vector] = &[M, V];

    fn fill(k: &Scalars, g: &[f32], _: Read<'_>, [m, v, ..]: Write<'_>, z: &mut [f32]) {
        update::own_update(k, g, m, v, z);
    }
}

/// x ← x·(1−γλ) − z̄
struct Subtract;

impl Pass for Subtract {
    const NAME: &'static str = "subtract";
    const WRITES: &'static [Vector] = &[X];

    fn run(k: &Scalars, mean: &[f32], _: Read<'_>, [x, ..]: Write<'_>) -> Option<usize> {
        let jumped = k.moves && update::subtract(k, mean, x);
        if jumped { mean.iter().position(|update| update.abs() > k.jump) } else { None }
    }
}

struct Running {
    hyper: Hyper,
    theta: Theta,
    moments: Moments,
    /// Πθ over this worker's updates of v.
    forgotten: f64,
}

impl Optimizer for Running {
    fn step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<Round> {
        let theta = self.theta.at(step.t, self.hyper.betas.1);
        if step.contributes {
            self.forgotten *= theta;
            self.moments.updates += 1;
        }
        self.hyper.prepare(step, theta, self.forgotten);
        exchange.mean(Round::Coarse, step, OwnUpdate, Subtract)?;
        Ok(Round::Coarse)
    }

    fn numbers(&mut self) -> Vec<Entry<'_>> {
        let mut numbers = self.moments.numbers();
        // Linear in v: the mean over workers is the right correction of the mean of their v.
        let forgotten = std::slice::from_mut(&mut self.forgotten);
        numbers.push(Entry::doubles("variance_forgotten", Share::Mean, forgotten).starting_at(1.0));
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    const NAME: Name = Name::EFFICIENT_ADAM;

    #[test]
    fn options() {
        for (options, codecs, rest) in [
            ("", ["uniform4"; 2], ["true", "constant"]),
            ("theta = 'one-minus-over-t'", ["uniform4"; 2], ["true", "one-minus-over-t"]),
            ("preset = 'paper'", ["power3"; 2], ["false", "constant"]),
            ("preset = 'paper'; codec_up = 'f16'", ["power3", "f16"], ["false", "constant"]),
        ] {
            let ([down, up], [bias_correction, theta]) = (codecs, rest);
            let codecs = format!("codec_down = '{down}'; codec_up = '{up}'");
            let expected = format!("bias_correction = {bias_correction}; {codecs}; theta = '{theta}'");
            assert_eq!(decided(NAME, options), expected, "{options}");
        }
        assert_refused(NAME, "theta = 'linear'", &["theta", "linear", "constant", "one-minus-over-t"]);
        assert_refused(NAME, "preset = 'deepspeed'", &["preset = deepspeed", "paper"]);
        assert_refused(NAME, "exact_codec = 'f32'", &["exact_codec", "f32", "adam, one-bit-adam, zero-one-adam"]);
    }

    #[test]
    fn every_round_is_coarse() {
        assert_eq!(calendar(NAME, "", 5), "ccccc");
    }

    #[test]
    fn steps_by_hand() {
        let gradients = [0.5, -2.0, 1e-3];
        for theta in [Theta::Constant, Theta::OneMinusOverT] {
            let (mut hand, mut forgotten, mut x) = (Hand::default(), 1.0, 1.0);
            let want = [0, 1, 2].map(|t| {
                let (g, theta) = (gradients[t], theta.at(t as u64, 0.999));
                hand.blend(g);
                hand.v = theta * hand.v + (1.0 - theta) * f64::from(g).powi(2);
                forgotten *= theta;
                let p = (hand.v / (1.0 - forgotten)).sqrt() + 1e-8;
                x = x * DECAY - hand.rate() * hand.m / p;
                x
            });
            let name = if theta == Theta::Constant { "constant" } else { "one-minus-over-t" };
            assert_near(&course(NAME, &format!("codec = 'sign'; theta = '{name}'"), &gradients), &want);
        }
    }
}
