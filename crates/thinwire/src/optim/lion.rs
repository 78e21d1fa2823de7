//! Distributed Lion (arXiv 2404.00438) and Lion Cub (arXiv 2411.16462): the workers vote on the sign of every step.
//!
//! ```text
//! c = β1·m + (1−β1)·g;   m ← β2·m + (1−β2)·g                        this worker's own; c is of the old m
//! p = coarse mean of c, nothing remembered                          of signs where `vote` goes up
//! x ← x·(1−γλ) − γ·p                                                with votes up; with another codec − γ·sgn p, sgn 0 = 0
//! every S steps:   m ← exact mean of m                              `momentum_every`; without it never
//! ```
//!
//! `vote` both ways is majority vote, one bit each way; `vote` up and `bf16` down is averaging; `sign` up, which says how large c is in
//! its block, and `vote` down is Lion Cub. It keeps one vector, half of what Adam does.
//!
//! One bit cannot say 0. A parameter that never had a gradient (the row of a token not seen yet, a dead unit) has c = 0, and a fixed rule
//! for its sign would carry it away by γ a step. So an exact 0 is told as + on even steps and as − on odd ones ([`Dither::Turns`]): it
//! stays in place. Where the *votes* are tied, which can be with an even number of workers, p is +1.

use super::table::{Algorithm, Options, forgetting, given, preset};
use super::{Hyper, M, Optimizer, Vectors, X};
use crate::codec::{CodecName, Dither};
use crate::config::{Config, Name};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::kernel::update::{self, Scalars};
use crate::machine::{Lies, Pass, Read, Source, Step, Vector, Write};
use crate::schedule::Round;
use crate::state::{Entry, Share};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

impl Name {
    /// `lion`
    pub const LION: Name = Name::new("lion");
}

/// Lion's own options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lion {
    /// S: every so many steps the workers' momenta become their mean. Default 0, never; with the preset `lion-cub` 64.
    pub momentum_every: Option<u64>,
}

/// S of the preset: half a bit a parameter and step. A choice of ours.
const CUB_EVERY: u64 = 64;

impl Options for Lion {
    const NAME: Name = Name::LION;
    const TITLE: &'static str = "Lion";
    const EXACT: Option<CodecName> = Some(CodecName::F32);
    const COARSE: Option<CodecName> = Some(CodecName::Vote);
    const PRESETS: &'static [&'static str] = &["distributed-lion", "lion-cub"];

    fn decide(self, config: &mut Config) -> Result<Box<dyn Algorithm>> {
        let is_cub = preset::<Self>(config)? == Some("lion-cub");
        if is_cub && config.codec.is_none() {
            config.codec_up.get_or_insert(CodecName::Sign);
        }
        config.betas.get_or_insert((0.9, 0.99));
        forgetting(Self::NAME, config)?;
        let up = config.codec_up.or(config.codec).unwrap_or(CodecName::Vote);
        Ok(Box::new(Decided {
            momentum_every: self.momentum_every.unwrap_or(if is_cub { CUB_EVERY } else { 0 }),
            votes: up == CodecName::Vote,
        }))
    }
}

#[derive(Clone, Copy, Debug)]
struct Decided {
    momentum_every: u64,
    /// Whether the mean is of signs.
    votes: bool,
}

impl Decided {
    fn averages_momenta(&self, t: u64) -> bool {
        self.momentum_every > 0 && (t + 1).is_multiple_of(self.momentum_every)
    }
}

impl Algorithm for Decided {
    fn options(&self) -> Map<String, Value> {
        given(&Lion { momentum_every: Some(self.momentum_every) })
    }

    fn vectors(&self) -> Vectors {
        &[("m", Share::Mean)]
    }

    fn passes(&self) -> &'static [&'static str] {
        match (self.votes, self.momentum_every) {
            (true, 0) => &[Direction::NAME, Stride::NAME],
            (true, _) => &[Direction::NAME, Stride::NAME, OfMomentum::NAME, ReplaceMomentum::NAME],
            (false, 0) => &[Direction::NAME, StrideBySign::NAME],
            (false, _) => &[Direction::NAME, StrideBySign::NAME, OfMomentum::NAME, ReplaceMomentum::NAME],
        }
    }

    fn round(&self, _: u64, _: f32) -> Round {
        Round::Coarse
    }

    fn sends_directions(&self) -> bool {
        true
    }

    fn ends_exactly(&self, t: u64) -> bool {
        self.averages_momenta(t)
    }

    /// A server's log has a round for a step.
    fn is_served(&self) -> Result<()> {
        match self.momentum_every {
            0 => Ok(()),
            every => {
                let problem = "a server takes one mean a step, and an average of momenta is a second; expected 0 there";
                Err(Error::config("momentum_every", every, problem))
            }
        }
    }

    fn has_exact_rounds(&self) -> bool {
        self.momentum_every > 0
    }

    /// Turns on every way of one bit. But a mean of votes is left as it is: its ties are +.
    fn dithers(&self, up: CodecName, down: CodecName) -> [Option<Dither>; 2] {
        let turns = |codec| matches!(codec, CodecName::Vote | CodecName::Sign).then_some(Dither::Turns);
        [turns(up), turns(down).filter(|_| !self.votes)]
    }

    /// Own gradients enter the momentum, and a mean is never clipped.
    fn own_clip(&self, _: usize) -> f64 {
        1.0
    }

    fn clips_mean(&self) -> bool {
        false
    }

    /// Every coordinate moves by γ, where Adam moves most of them by less: 3 to 10 times less is usual.
    fn rate_to_adams(&self) -> f64 {
        0.3
    }

    fn drill(&self, each: u64) -> (Map<String, Value>, u64) {
        let momentum_every = self.momentum_every.min(1); // in every step, if ever
        (Map::from_iter([("momentum_every".to_owned(), json!(momentum_every))]), each)
    }

    /// Nobody has measured how it learns.
    fn rank(&self, _: CodecName) -> Option<usize> {
        None
    }

    fn build(&self, hyper: Hyper) -> Box<dyn Optimizer> {
        Box::new(Running { hyper: Hyper { bias_correction: false, ..hyper }, calendar: *self })
    }
}

/// z = β1·m + (1−β1)·g;   m ← β2·m + (1−β2)·g
struct Direction;

impl Source for Direction {
    const NAME: &'static str = "lion_direction";
    const WRITES: &'static [Vector] = &[M];

    fn fill(k: &Scalars, g: &[f32], _: Read<'_>, [m, ..]: Write<'_>, z: &mut [f32]) {
        update::lion(k, g, m, z);
    }
}

/// x ← x·(1−γλ) − γ·p
pub(super) struct Stride;

impl Pass for Stride {
    const NAME: &'static str = "stride";
    const WRITES: &'static [Vector] = &[X];

    fn run(k: &Scalars, mean: &[f32], _: Read<'_>, [x, ..]: Write<'_>) -> Option<usize> {
        if k.moves {
            update::stride(k, mean, x);
        }
        None // by γ at most
    }
}

/// x ← x·(1−γλ) − γ·sgn p
struct StrideBySign;

impl Pass for StrideBySign {
    const NAME: &'static str = "stride_by_sign";
    const WRITES: &'static [Vector] = &[X];

    fn run(k: &Scalars, mean: &[f32], _: Read<'_>, [x, ..]: Write<'_>) -> Option<usize> {
        if k.moves {
            update::stride_by_sign(k, mean, x);
        }
        None
    }
}

/// z = m
struct OfMomentum;

impl Source for OfMomentum {
    const NAME: &'static str = "momentum";
    const READS: &'static [Vector] = &[M];
    const LIES: Lies = Lies::InFirst;

    fn fill(_: &Scalars, _: &[f32], _: Read<'_>, _: Write<'_>, _: &mut [f32]) {}
}

/// m ← the mean.
struct ReplaceMomentum;

impl Pass for ReplaceMomentum {
    const NAME: &'static str = "replace_momentum";
    const WRITES: &'static [Vector] = &[M];
    const STORES: bool = true;

    fn run(_: &Scalars, mean: &[f32], _: Read<'_>, [m, ..]: Write<'_>) -> Option<usize> {
        m.copy_from_slice(mean);
        None
    }
}

struct Running {
    hyper: Hyper,
    calendar: Decided,
}

impl Optimizer for Running {
    fn step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<Round> {
        let beta2 = self.hyper.betas.1;
        self.hyper.prepare(step, beta2, 0.0);
        match self.calendar.votes {
            true => exchange.mean(Round::Coarse, step, Direction, Stride)?,
            false => exchange.mean(Round::Coarse, step, Direction, StrideBySign)?,
        };
        if self.calendar.averages_momenta(step.t) {
            // A worker whose gradient was left out has a momentum all the same, and all momenta count alike.
            let own = (step.contributes, step.weight);
            (step.contributes, step.weight) = (true, 1);
            exchange.mean(Round::Exact, step, OfMomentum, ReplaceMomentum)?;
            (step.contributes, step.weight) = own;
        }
        Ok(Round::Coarse)
    }

    fn numbers(&mut self) -> Vec<Entry<'_>> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    const NAME: Name = Name::LION;

    #[test]
    fn options() {
        for (options, codecs, every) in [
            ("", ["vote", "vote"], 0),
            ("preset = 'distributed-lion'", ["vote", "vote"], 0),
            ("codec_down = 'bf16'", ["bf16", "vote"], 0),
            ("preset = 'lion-cub'", ["vote", "sign"], 64),
            ("preset = 'lion-cub'; momentum_every = 10; codec = 'uniform4'", ["uniform4", "uniform4"], 10),
        ] {
            let [down, up] = codecs;
            let exact = if every > 0 { "exact_codec = 'f32'; " } else { "" };
            let codecs = format!("codec_down = '{down}'; codec_up = '{up}'");
            let expected = format!("bias_correction = false; {codecs}; {exact}momentum_every = {every}");
            assert_eq!(decided(NAME, options), expected, "{options}");
        }
        assert_eq!(resolved(NAME, "").betas, Some((0.9, 0.99)));
        let feedback = |options: &str| {
            let config = resolved(NAME, options);
            (config.feedback_up, config.feedback_down)
        };
        assert_eq!(feedback(""), (Some(0.0), Some(0.0)));
        assert_eq!(feedback("codec_up = 'sign'; feedback_up = 0.5"), (Some(0.5), Some(0.0)));
        assert_refused(NAME, "preset = 'paper'", &["preset = paper", "distributed-lion", "lion-cub"]);
        assert_refused(NAME, "bias_correction = true", &["bias_correction", "lion"]);
        assert_refused(NAME, "feedback = 1.0", &["feedback_up", "vote"]);
        assert_refused(NAME, "codec_up = 'sign'; feedback_down = 1.0", &["feedback_down", "vote"]);
        assert_refused(NAME, "hierarchy = 'hosts'", &["hierarchy", "vote", "flat"]);
    }

    #[test]
    fn every_step_has_a_coarse_round_and_some_an_exact_one_too() {
        assert_eq!(calendar(NAME, "momentum_every = 2", 5), "ccccc");
        let exact = |options: &str| {
            let algorithm = resolved(NAME, options).decide().unwrap().algorithm;
            (0..7).filter(|t| algorithm.ends_exactly(*t)).collect::<Vec<_>>()
        };
        assert_eq!((exact(""), exact("momentum_every = 3")), (vec![], vec![2, 5]));
    }

    /// Of one worker all forms are Lion.
    #[test]
    fn steps_by_hand() {
        let (gradients, mut m, mut x) = ([0.5f32, -2.0, 1e-3, 4.0], 0.0, 1.0);
        let want = gradients.map(|g| {
            let c: f64 = 0.9 * m + 0.1 * f64::from(g);
            m = 0.99 * m + 0.01 * f64::from(g);
            x = x * DECAY - 0.1 * c.signum();
            x
        });
        for options in
            ["", "codec_down = 'bf16'", "codec = 'sign'", "codec = 'f32'", "preset = 'lion-cub'; momentum_every = 1"]
        {
            assert_near(&course(NAME, options, &gradients), &want);
        }
    }
}
