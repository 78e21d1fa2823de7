//! Adam with decoupled weight decay (arXiv 1412.6980, 1711.05101): the exact mean of the gradient, every step.
//!
//! Equal to `torch.optim.AdamW` to rounding; the baseline of everything else here.

use super::table::{Algorithm, Options, given, preset};
use super::{Hyper, Moments, Momentum, Optimizer, Vectors};
use crate::codec::CodecName;
use crate::config::{Config, Name};
use crate::error::Result;
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

/// Adam's own options: it has none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adam {}

impl Options for Adam {
    const NAME: Name = Name::ADAM;
    const TITLE: &'static str = "Adam";
    const EXACT: Option<CodecName> = Some(CodecName::F32);
    const COARSE: Option<CodecName> = None;

    fn decide(self, config: &mut Config) -> Result<Box<dyn Algorithm>> {
        if preset(config, &["paper", "deepspeed"])?.is_some() {
            config.bias_correction.get_or_insert(false);
        }
        Ok(Box::new(self))
    }
}

impl Algorithm for Adam {
    fn options(&self) -> Map<String, Value> {
        given(self)
    }

    fn vectors(&self) -> Vectors {
        &[("m", Share::Same), ("v", Share::Same)]
    }

    fn passes(&self) -> &'static [&'static str] {
        const { &[Moments::PASSES[0], Moments::PASSES[1]] }
    }

    fn round(&self, _: u64, _: f32) -> Round {
        Round::Exact
    }

    fn rank(&self, _: CodecName) -> Option<usize> {
        Some(0)
    }

    fn build(&self, hyper: Hyper) -> Box<dyn Optimizer> {
        Box::new(Running { hyper, moments: Moments::default() })
    }
}

struct Running {
    hyper: Hyper,
    moments: Moments,
}

impl Optimizer for Running {
    fn step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<Round> {
        self.moments.exact_step(Momentum::Exact, &mut self.hyper, step, exchange)?;
        Ok(Round::Exact)
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
        assert_refused(Name::ADAM, "preset = 'papers'", &["preset", "papers", "paper, deepspeed"]);
        assert_refused(Name::ADAM, "codec = 'sign'", &["codec", "sign", "one-bit-adam"]);
    }

    #[test]
    fn every_round_is_exact() {
        assert_eq!(calendar(Name::ADAM, "", 5), "eeeee");
    }

    #[test]
    fn steps_by_hand() {
        let (gradients, mut hand, mut x) = ([0.5, -2.0, 1e-3], Hand::default(), 1.0);
        let want = gradients.map(|g| {
            hand.blend(g);
            hand.square(g);
            x = x * DECAY - hand.rate() * hand.m / hand.p();
            x
        });
        assert_near(&course(Name::ADAM, "", &gradients), &want);
    }
}
