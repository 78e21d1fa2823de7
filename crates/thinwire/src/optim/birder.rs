//! Birder, earlier BinSGDM (NeurIPS 2023): a direction between −1 and 1, told as a coin that is right on average.
//!
//! ```text
//! m ← β·m + (1−β)·g;   b ← β·b + (1−β)·|g|;   r = m/b          this worker's own; |m| ≤ b, so r is in [−1, 1] (0 where b = 0)
//! s = coin(r):  +1 with chance (1+r)/2, else −1                so E s = r
//! p = coin(mean s);   x ← x·(1−γλ) − γ·p
//! ```
//!
//! One bit each way, no scale, no residual, no warm-up. coin(r) is the vote of r + ξ with ξ in (−1, 1), a pure function of (seed, step,
//! worker, place): ξ stands where a residual would, takes no memory, and needs no codec of its own ([`Dither`]). An owner tosses with
//! the number of the workers. A way with another codec than `vote` has no coin: with `codec_down = "bf16"` p is the mean of the coins.
//!
//! The price of the bit: the variance of a step is γ²·(1 − r̄²) a coordinate, r̄ the mean of r. Near a minimum, where r̄ → 0, that is γ²
//! however many workers there are; with an exact way down it is γ²·mean(1 − r²)/n.

use super::lion::Stride;
use super::table::{Algorithm, Options, forgetting, given};
use super::{Hyper, M, Optimizer, Vectors};
use crate::codec::{CodecName, Dither};
use crate::config::{Config, Name};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::kernel::update::{self, Scalars};
use crate::machine::{Pass, Read, Source, Step, Vector, Write};
use crate::schedule::Round;
use crate::state::{Entry, Share};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

impl Name {
    /// `birder`
    pub const BIRDER: Name = Name::new("birder");
}

/// Birder's own options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Birder {
    /// β, of both averages. Default 0.95: a choice of ours.
    pub beta: Option<f64>,
    /// The seed of the coins, the same on all workers. Default 0.
    pub seed: Option<u64>,
}

impl Options for Birder {
    const NAME: Name = Name::BIRDER;
    const TITLE: &'static str = "Birder";
    const EXACT: Option<CodecName> = None;
    const COARSE: Option<CodecName> = Some(CodecName::Vote);

    fn decide(self, config: &mut Config) -> Result<Box<dyn Algorithm>> {
        let beta = self.beta.or(config.betas.map(|betas| betas.0)).unwrap_or(0.95);
        if let Some(betas) = config.betas.filter(|betas| *betas != (beta, beta)) {
            let problem = "Birder has one β, the same for both averages; give it as beta";
            return Err(Error::config("betas", format!("{betas:?}"), problem));
        }
        if !(beta >= 0.0 && (beta as f32) < 1.0) {
            return Err(Error::config("beta", beta, "expected a number of at least 0 and below 1, such as 0.95"));
        }
        config.betas = Some((beta, beta));
        forgetting(Self::NAME, config)?;
        Ok(Box::new(Decided { beta, seed: self.seed.unwrap_or(0) }))
    }
}

#[derive(Debug)]
struct Decided {
    beta: f64,
    seed: u64,
}

impl Algorithm for Decided {
    fn options(&self) -> Map<String, Value> {
        given(&Birder { beta: Some(self.beta), seed: Some(self.seed) })
    }

    fn vectors(&self) -> Vectors {
        &[("m", Share::Mean), ("b", Share::Mean)]
    }

    fn passes(&self) -> &'static [&'static str] {
        &[Ratio::NAME, Stride::NAME]
    }

    fn round(&self, _: u64, _: f32) -> Round {
        Round::Coarse
    }

    fn sends_directions(&self) -> bool {
        true
    }

    /// A coin on every way that votes.
    fn dithers(&self, up: CodecName, down: CodecName) -> [Option<Dither>; 2] {
        [up, down].map(|codec| match codec {
            CodecName::Vote => Some(Dither::Coin { seed: self.seed }),
            CodecName::Sign => Some(Dither::Turns),
            _ => None,
        })
    }

    /// Its averages are of own gradients.
    fn own_clip(&self, _: usize) -> f64 {
        1.0
    }

    /// Every coordinate moves by γ, whatever its gradient.
    fn rate_to_adams(&self) -> f64 {
        0.3
    }

    /// Nobody has measured how it learns.
    fn rank(&self, _: CodecName) -> Option<usize> {
        None
    }

    fn build(&self, hyper: Hyper) -> Box<dyn Optimizer> {
        Box::new(Running { hyper: Hyper { bias_correction: false, ..hyper } })
    }
}

/// b.
const B: Vector = Vector::own(1);

/// m ← β·m + (1−β)·g;   b ← β·b + (1−β)·|g|;   z = m/b
struct Ratio;

impl Source for Ratio {
    const NAME: &'static str = "birder_ratio";
    const WRITES: &'static [Vector] = &[M, B];

    fn fill(k: &Scalars, g: &[f32], _: Read<'_>, [m, b, ..]: Write<'_>, z: &mut [f32]) {
        update::ratio(k, g, m, b, z);
    }
}

struct Running {
    hyper: Hyper,
}

impl Optimizer for Running {
    fn step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<Round> {
        let beta = self.hyper.betas.1;
        self.hyper.prepare(step, beta, 0.0);
        exchange.mean(Round::Coarse, step, Ratio, Stride)?;
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

    const NAME: Name = Name::BIRDER;

    #[test]
    fn options() {
        let decided = |options: &str| decided(NAME, options);
        let all = |beta: &str, down: &str, seed: u64| {
            format!(
                "beta = {beta}; betas = [{beta}, {beta}]; bias_correction = false; codec_down = '{down}'; codec_up = 'vote'; seed = {seed}"
            )
        };
        assert_eq!(decided(""), all("0.95", "vote", 0));
        assert_eq!(decided("beta = 0.9; codec_down = 'bf16'; seed = 7"), all("0.9", "bf16", 7));
        assert_eq!(decided("betas = [0.9, 0.9]"), all("0.9", "vote", 0));
        assert_refused(NAME, "betas = [0.9, 0.99]", &["betas", "one β", "beta"]);
        assert_refused(NAME, "betas = [0.9, 0.9]; beta = 0.8", &["betas", "one β", "beta"]);
        assert_refused(NAME, "beta = 1.0", &["beta", "below 1"]);
        assert_refused(NAME, "bias_correction = true", &["bias_correction", "birder"]);
        assert_refused(NAME, "feedback = 0.5", &["feedback", "vote"]);
        assert_refused(NAME, "hierarchy = 'hosts'", &["hierarchy", "vote", "flat"]);
    }

    #[test]
    fn every_round_is_coarse() {
        assert_eq!(calendar(NAME, "", 5), "ccccc");
    }

    /// No coins: a way that loses nothing.
    #[test]
    fn steps_by_hand() {
        let (gradients, mut m, mut b, mut x) = ([0.5f32, -2.0, 1e-3], 0.0, 0.0, 1.0);
        let want = gradients.map(|g| {
            m = 0.95 * m + 0.05 * f64::from(g);
            b = 0.95 * b + 0.05 * f64::from(g).abs();
            x = x * DECAY - 0.1 * m / b;
            x
        });
        assert_near(&course(NAME, "codec = 'f32'", &gradients), &want);
    }
}
