//! 1-bit LAMB (arXiv 2104.06069): Adam's direction with a step size for every tensor, for large batches.
//!
//! With P = √v + ε, neither moment corrected for its start, u = m/P + λx, and norms over a tensor l:
//!
//! ```text
//! t < T_w    m, v as Adam's, of the exact mean ḡ;   v̂ ← v
//!            c = ‖x‖/‖u‖ within [c_min, c_max] (1 where a norm is 0);   c_l ← β·c_l + (1−β)·c where c ≠ 1
//!            x ← x − γ·c·u
//! t ≥ T_w    m' = coarse mean of (β1·m + (1−β1)·g);   ĝ = (m' − β1·m)/(1−β1);   v̂ ← β2·v̂ + (1−β2)·ĝ²;   m ← m'
//!            r = m/P within ±c/√(1−β2^j);   u = r + λx
//!            ρ = min(1, ‖r‖/‖u‖);   f = ρ·max (√v+ε)/(√v̂+ε) + 1 − ρ,  within [f_min, f_max], then within f_l·(1 ± threshold)
//!            f_l ← f;   x ← x − γ·c_l·f_l·u
//! ```
//!
//! After the warm-up v and c_l are frozen. What v would have become since, v̂ estimates from the differences of the momentum, and f_l
//! makes up for it. All of this is computed from what all workers share, so nothing more is sent than 1-bit Adam sends.
//!
//! The authors' code multiplies every tensor's momentum by a number before it is coded, because there the whole vector has one scale.
//! Here a scale is of one block, which does as well.
//!
//! The limit of r is what 1-bit Adam has, because one bit cannot say 0 ([`LIMIT`](update::LIMIT) has the reason), and no norm sees more
//! of r either: one dead parameter would be all of it. Adam's c bounds m over the *corrected* √v. LAMB's √v is shorter by √(1−β2^j) after
//! j updates, and its c_l has been measured with that; so the limit is longer by as much. Where v = 0 it is c.

use super::moments::on_mean;
use super::one_bit_adam::{Blend, WARMUP_PART};
use super::table::{Algorithm, Options, count, given, lengths};
use super::{ENOUGH, Hyper, M, Moments, Optimizer, SHORT, V, Vectors, X};
use crate::codec::CodecName;
use crate::config::{Config, Name};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::kernel::lamb;
use crate::kernel::update::{self, Scalars};
use crate::machine::{OfGradient, Pass, Ranges, Read, Reduction, Source, Step, Totals, Vector, Write};
use crate::schedule::Round;
use crate::state::{Entry, Share};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

impl Name {
    /// `one-bit-lamb`
    pub const ONE_BIT_LAMB: Name = Name::new("one-bit-lamb");
}

/// 1-bit LAMB's own options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OneBitLamb {
    /// T_w: exact steps. Default: 15 % of `learning_rate.steps` and at least 100, all of a run of at most 250 steps; 1000, and no less
    /// than the learning rate's warm-up, when the length is not known.
    pub warmup: Option<u64>,
    /// The lengths of the tensors, in the order in which they lie in the vector. Default: one tensor of everything.
    pub tensors: Option<Vec<usize>>,
    /// β of the average c_l. Default 0.9.
    pub coeff_beta: Option<f64>,
    /// c_min. Default 0.01.
    pub coeff_min: Option<f64>,
    /// c_max. Default 10.
    pub coeff_max: Option<f64>,
    /// f_min. Default 0.5.
    pub factor_min: Option<f64>,
    /// f_max. Default 4.
    pub factor_max: Option<f64>,
    /// How much f_l may change in a step, as a part of it. Default 0.1.
    pub factor_threshold: Option<f64>,
}

/// The warm-up of a run whose length is not known: the authors' for BERT-Large with batches of 64K.
const USUAL_WARMUP: u64 = 1000;

impl Options for OneBitLamb {
    const NAME: Name = Name::ONE_BIT_LAMB;
    const TITLE: &'static str = "1-bit LAMB";
    const EXACT: Option<CodecName> = Some(CodecName::F32);
    const COARSE: Option<CodecName> = Some(CodecName::Sign);

    fn decide(self, config: &mut Config) -> Result<Box<dyn Algorithm>> {
        if config.bias_correction.replace(false) == Some(true) {
            let problem = format!("{} has none; expected false, or nothing", Self::NAME);
            return Err(Error::config("bias_correction", true, problem));
        }
        let (earliest, steps) = lengths(config.learning_rate.as_ref());
        let warmup = self.warmup.unwrap_or(match steps {
            None => USUAL_WARMUP.max(earliest),
            Some(steps) if steps <= SHORT => steps,
            Some(steps) => ((steps as f64 * WARMUP_PART).ceil() as u64).max(ENOUGH),
        });
        let decided = Decided {
            warmup: count("warmup", warmup)?,
            tensors: self.tensors,
            coeff_beta: self.coeff_beta.unwrap_or(0.9),
            coeff: [self.coeff_min.unwrap_or(0.01), self.coeff_max.unwrap_or(10.0)],
            factor: [self.factor_min.unwrap_or(0.5), self.factor_max.unwrap_or(4.0)],
            factor_threshold: self.factor_threshold.unwrap_or(0.1),
        };
        decided.check()?;
        Ok(Box::new(decided))
    }
}

#[derive(Clone, Debug)]
struct Decided {
    warmup: u64,
    tensors: Option<Vec<usize>>,
    coeff_beta: f64,
    /// c_min and c_max.
    coeff: [f64; 2],
    /// f_min and f_max.
    factor: [f64; 2],
    factor_threshold: f64,
}

impl Decided {
    fn check(&self) -> Result<()> {
        let part = |key: &str, value: f64| match (0.0..1.0).contains(&value) {
            true => Ok(()),
            false => Err(Error::config(key, value, "expected a part, at least 0 and below 1")),
        };
        part("coeff_beta", self.coeff_beta)?;
        part("factor_threshold", self.factor_threshold)?;
        for (keys, [min, max]) in
            [(["coeff_min", "coeff_max"], self.coeff), (["factor_min", "factor_max"], self.factor)]
        {
            if !(min as f32 > 0.0 && (min as f32).is_finite()) {
                return Err(Error::config(keys[0], min, "expected a number above 0"));
            }
            if !(max >= min && (max as f32).is_finite()) {
                return Err(Error::config(keys[1], max, format!("expected a number of at least {} = {min}", keys[0])));
            }
        }
        match self.tensors.iter().flatten().find(|length| **length == 0) {
            Some(length) => Err(Error::config("tensors", length, "expected lengths of at least 1")),
            None => Ok(()),
        }
    }
}

impl Algorithm for Decided {
    fn options(&self) -> Map<String, Value> {
        given(&OneBitLamb {
            warmup: Some(self.warmup),
            tensors: self.tensors.clone(),
            coeff_beta: Some(self.coeff_beta),
            coeff_min: Some(self.coeff[0]),
            coeff_max: Some(self.coeff[1]),
            factor_min: Some(self.factor[0]),
            factor_max: Some(self.factor[1]),
            factor_threshold: Some(self.factor_threshold),
        })
    }

    fn vectors(&self) -> Vectors {
        &[("m", Share::Same), ("v", Share::Same), ("v_fresh", Share::Same)]
    }

    fn passes(&self) -> &'static [&'static str] {
        const { &[OfGradient::NAME, WarmUp::NAME, OfParams::NAME, Stride::NAME, Blend::NAME, Momentum::NAME, OfRatio::NAME] }
    }

    fn fits(&self, parameters: usize, is_whole: bool) -> Result<()> {
        if !is_whole {
            let problem = "needs the norms of whole tensors, and a shard has parts of them; expected another optimizer, \
                           or replicas in one piece";
            return Err(Error::config("name", Name::ONE_BIT_LAMB, problem));
        }
        let Some(tensors) = &self.tensors else { return Ok(()) };
        let covered = tensors.iter().map(|length| *length as u128).sum::<u128>();
        match covered == parameters as u128 {
            true => Ok(()),
            false => {
                let problem = format!("must add up to the {parameters} parameters");
                Err(Error::config("tensors", format!("{covered} values in all"), problem))
            }
        }
    }

    fn round(&self, t: u64, _: f32) -> Round {
        if t < self.warmup { Round::Exact } else { Round::Coarse }
    }

    fn drill(&self, each: u64) -> (Map<String, Value>, u64) {
        (Decided { warmup: each, ..self.clone() }.options(), 2 * each)
    }

    /// Nobody has measured how it learns.
    fn rank(&self, _: CodecName) -> Option<usize> {
        None
    }

    fn build(&self, hyper: Hyper) -> Box<dyn Optimizer> {
        let whole = vec![hyper.parameters];
        let tensors = Ranges::new(self.tensors.as_ref().unwrap_or(&whole).iter().copied());
        let count = tensors.count();
        Box::new(Running {
            hyper: Hyper { bias_correction: false, ..hyper },
            rule: self.clone(),
            moments: Moments::default(),
            tensors,
            coeffs: vec![0.0; count],
            factors: vec![1.0; count],
            totals: vec![Totals::default(); count],
            scales: vec![0.0; count],
        })
    }
}

/// v̂.
const FRESH: Vector = Vector::own(2);

/// m ← β1·m + (1−β1)·ḡ;   v ← β2·v + (1−β2)·ḡ²;   v̂ ← v
struct WarmUp;

impl Pass for WarmUp {
    const NAME: &'static str = "lamb_warm_up";
    const WRITES: &'static [Vector] = &[M, V, FRESH];

    fn run(k: &Scalars, mean: &[f32], _: Read<'_>, [m, v, fresh, _]: Write<'_>) -> Option<usize> {
        lamb::moments(k, mean, m, v, fresh);
        None
    }
}

/// ĝ = (m' − β1·m)/(1−β1);   v̂ ← β2·v̂ + (1−β2)·ĝ²;   m ← m'
struct Momentum;

impl Pass for Momentum {
    const NAME: &'static str = "lamb_momentum";
    const WRITES: &'static [Vector] = &[M, FRESH];

    fn run(k: &Scalars, mean: &[f32], _: Read<'_>, [m, fresh, ..]: Write<'_>) -> Option<usize> {
        lamb::momentum(k, mean, m, fresh);
        None
    }
}

/// ‖x‖² and ‖u‖². What rests is in no norm: in a block that it shares with others one bit says ±s for its zeros.
struct OfParams;

impl Reduction for OfParams {
    const NAME: &'static str = "lamb_of_params";
    const READS: &'static [Vector] = &[M, V, X];

    fn of(k: &Scalars, [m, v, x, _]: Read<'_>) -> Totals {
        match k.moves {
            true => Totals { sums: lamb::squares_of_params(k, m, v, x), largest: 0.0 },
            false => Totals::default(),
        }
    }
}

/// ‖r‖² and ‖u‖², and max (√v+ε)/(√v̂+ε); likewise.
struct OfRatio;

impl Reduction for OfRatio {
    const NAME: &'static str = "lamb_of_ratio";
    const READS: &'static [Vector] = &[M, V, FRESH, X];

    fn of(k: &Scalars, [m, v, fresh, x]: Read<'_>) -> Totals {
        match k.moves {
            true => Totals {
                sums: lamb::squares_of_ratio(k, m, v, x),
                largest: f64::from(lamb::largest_growth(k, v, fresh)),
            },
            false => Totals::default(),
        }
    }
}

/// x ← x − γ·c·u
struct Stride;

impl Pass for Stride {
    const NAME: &'static str = "lamb_stride";
    const READS: &'static [Vector] = &[M, V];
    const WRITES: &'static [Vector] = &[X];

    fn run(k: &Scalars, _: &[f32], [m, v, ..]: Read<'_>, [x, ..]: Write<'_>) -> Option<usize> {
        if k.moves && lamb::stride(k, m, v, x) { lamb::jumped(k, m, v) } else { None }
    }
}

struct Running {
    hyper: Hyper,
    rule: Decided,
    moments: Moments,
    tensors: Ranges,
    /// c_l; 0 as long as there was none.
    coeffs: Vec<f64>,
    /// f_l.
    factors: Vec<f64>,
    /// Room for what a step finds of each tensor.
    totals: Vec<Totals>,
    /// Room for what γ is multiplied with.
    scales: Vec<f64>,
}

impl Running {
    fn warm_up(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        self.moments.prepare_next(&mut self.hyper, step);
        step.scalars.iter_mut().for_each(|k| k.limit = f32::MAX); // v knows the gradient that it divides
        if on_mean(Round::Exact, WarmUp, self.hyper.clip, step, exchange)? == 0 {
            return Ok(());
        }
        self.moments.updates += 1;
        exchange.machine.reduce(OfParams, step, &self.tensors, &mut self.totals)?;
        let [min, max] = self.rule.coeff;
        for ((coeff, scale), totals) in self.coeffs.iter_mut().zip(&mut self.scales).zip(&self.totals) {
            let [x, u] = totals.sums.map(f64::sqrt);
            *scale = if x > 0.0 && u > 0.0 { (x / u).clamp(min, max) } else { 1.0 };
            if *scale != 1.0 {
                *coeff = self.rule.coeff_beta * *coeff + (1.0 - self.rule.coeff_beta) * *scale;
            }
        }
        exchange.machine.run_scaled(Stride, step, &self.tensors, &self.scales)
    }

    fn later(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        self.moments.prepare(&mut self.hyper, step);
        if !self.hyper.lossless {
            let known = 1.0 - self.hyper.betas.1.powf(self.moments.updates as f64);
            let limit = f64::from(update::LIMIT) / known.sqrt();
            step.scalars.iter_mut().for_each(|k| k.limit = limit as f32);
        }
        if exchange.mean(Round::Coarse, step, Blend, Momentum)? == 0 {
            return Ok(());
        }
        exchange.machine.reduce(OfRatio, step, &self.tensors, &mut self.totals)?;
        for (i, totals) in self.totals.iter().enumerate() {
            self.factors[i] = self.rule.next_factor(self.factors[i], totals);
            // A tensor without a gradient so far had c = 1 in every step, and goes on with it.
            let coeff = if self.coeffs[i] > 0.0 { self.coeffs[i] } else { 1.0 };
            self.scales[i] = coeff * self.factors[i];
        }
        exchange.machine.run_scaled(Stride, step, &self.tensors, &self.scales)
    }
}

impl Decided {
    /// f_l, after `last`. Of a tensor that rests nothing was found, and it stays.
    fn next_factor(&self, last: f64, totals: &Totals) -> f64 {
        if totals.largest == 0.0 {
            return last;
        }
        let [r, u] = totals.sums.map(f64::sqrt);
        let part = if u > 0.0 { (r / u).min(1.0) } else { 1.0 };
        let [min, max] = self.factor;
        let factor = (totals.largest * part + 1.0 - part).clamp(min, max);
        factor.clamp(last * (1.0 - self.factor_threshold), last * (1.0 + self.factor_threshold))
    }
}

impl Optimizer for Running {
    fn step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<Round> {
        let round = self.rule.round(step.t, step.lr);
        match round {
            Round::Exact => self.warm_up(step, exchange)?,
            _ => self.later(step, exchange)?,
        }
        Ok(round)
    }

    fn numbers(&mut self) -> Vec<Entry<'_>> {
        let mut numbers = self.moments.numbers();
        numbers.push(Entry::doubles("lamb_coeffs", Share::Same, &mut self.coeffs));
        numbers.push(Entry::doubles("lamb_factors", Share::Same, &mut self.factors).starting_at(1.0));
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    const NAME: Name = Name::ONE_BIT_LAMB;

    #[test]
    fn defaults() {
        for (options, warmup) in [
            ("", 1000),
            ("learning_rate = {peak = 0.1, warmup = 2000}", 2000),
            ("learning_rate = {peak = 0.1, steps = 250}", 250),
            ("learning_rate = {peak = 0.1, steps = 300}", 100),
            ("learning_rate = {peak = 0.1, steps = 1000}", 150),
            ("warmup = 7", 7),
        ] {
            let own = resolved(NAME, options).options::<OneBitLamb>().unwrap();
            let expected = OneBitLamb {
                warmup: Some(warmup),
                tensors: None,
                coeff_beta: Some(0.9),
                coeff_min: Some(0.01),
                coeff_max: Some(10.0),
                factor_min: Some(0.5),
                factor_max: Some(4.0),
                factor_threshold: Some(0.1),
            };
            assert_eq!(own, expected, "{options}");
        }
        assert_eq!(resolved(NAME, "").bias_correction, Some(false));
    }

    #[test]
    fn refusals() {
        for (options, expected) in [
            ("warmup = 0", &["warmup = 0", "at least 1"][..]),
            ("bias_correction = true", &["bias_correction", "one-bit-lamb"]),
            ("tensors = [3, 0]", &["tensors = 0", "at least 1"]),
            ("coeff_beta = 1.0", &["coeff_beta = 1", "below 1"]),
            ("factor_threshold = -0.5", &["factor_threshold", "at least 0"]),
            ("coeff_min = 0.0", &["coeff_min = 0", "above 0"]),
            ("coeff_max = 0.001", &["coeff_max = 0.001", "coeff_min = 0.01"]),
            ("factor_min = 5.0", &["factor_max = 4", "factor_min = 5"]),
        ] {
            assert_refused(NAME, options, expected);
        }
        let algorithm = resolved(NAME, "tensors = [3, 4]").decide().unwrap().algorithm;
        assert!(algorithm.fits(7, true).is_ok());
        let refused = algorithm.fits(8, true).unwrap_err().to_string();
        assert_eq!(refused, "invalid tensors = 7 values in all: must add up to the 8 parameters");
        assert!(algorithm.fits(7, false).unwrap_err().to_string().contains("a shard has parts"));
    }

    #[test]
    fn exact_rounds_come_first() {
        assert_eq!(calendar(NAME, "warmup = 3", 6), "eeeccc");
    }

    /// Of one parameter ‖x‖/‖u‖ is |x/u|, so a step in the warm-up moves it by γ·|x| or to where c is cut. A second gradient as large as
    /// 1-bit Adam's limit cuts it shows the limit here.
    #[test]
    fn steps_by_hand() {
        let (gradients, mut hand, mut x) = ([0.5, -0.25, 90.0], Hand::default(), 1.0_f64);
        let (mut coeff, mut factor, mut fresh) = (0.0, 1.0, 0.0);
        let want = [0, 1, 2].map(|t| {
            let before = hand.m;
            hand.blend(gradients[t]);
            if t == 0 {
                hand.square(gradients[t]);
                fresh = hand.v;
                let u = hand.m / (hand.v.sqrt() + 1e-8) + 0.01 * x;
                let c = (x.abs() / u.abs()).clamp(0.01, 10.0);
                coeff = 0.1 * c;
                x -= 0.1 * c * u;
                return x;
            }
            let seen = (hand.m - 0.9 * before) / 0.1;
            fresh = 0.999 * fresh + 0.001 * seen * seen;
            let limit = 1.0 / 0.001_f64.sqrt();
            let ratio = hand.m / (hand.v.sqrt() + 1e-8);
            assert_eq!(ratio.abs() > limit, t == 2);
            let r = ratio.clamp(-limit, limit);
            let u = r + 0.01 * x;
            let part = (r.abs() / u.abs()).min(1.0);
            let growth = (hand.v.sqrt() + 1e-8) / (fresh.sqrt() + 1e-8);
            factor = (growth * part + 1.0 - part).clamp(0.5, 4.0).clamp(0.9 * factor, 1.1 * factor);
            x -= 0.1 * coeff * factor * u;
            x
        });
        assert_near(&course(NAME, "warmup = 1", &gradients), &want);
    }
}
