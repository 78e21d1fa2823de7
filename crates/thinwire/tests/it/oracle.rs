//! The engine against the slow twin: after every step and every sync, on every worker, x, m, v, u and the residues.
//!
//! A table of optimizers × codecs × worlds, 80 steps each, with the other settings in turn. The gradients are given in
//! advance: exact in f32, the same for both, whatever x is. Some coordinates never get any, some get their first late.
//!
//! The engine counts in f32, so what is compared is equal to rounding: [`ROUNDING`] of the largest value in the vector. Where
//! a quantizer jumps, rounding may decide; the oracle notes how near a run comes to that, and each run takes the first seed
//! that keeps [`CLEAR`] of it. The casts jump at every ulp, so no run is clear of them; a jump there is worth one ulp
//! of the value, which the residue pays back: see [`jump`].

use crate::common::engine::{CODECS, Run, Snapshot, apart, largest, noisy, start, widen};
use crate::common::oracle::{mean_rows, zip};
use crate::common::twin::{self, Expected};
use thinwire::EfficientAdam;
use thinwire::options::Decay;
use thinwire::options::Group;
use thinwire::options::Theta;
use thinwire::options::Topology;
use thinwire::options::{Freeze, Sync, Variance, Warmup};
use thinwire::{CodecName, Config, LearningRate, Name};
use thinwire::{OneBitAdam, ZeroOneAdam};

const STEPS: u64 = 80;
const BLOCK: usize = 8;
/// Three whole blocks and a short one: with five workers, one of them owns nothing.
const D: usize = 29;
const LR: f64 = 0.01;

/// Of the largest value in a vector. A step of f32 is off by 6e-8; a short interval after a long one multiplies what is in
/// the residues, and their rounding, by the ratio of the two.
const ROUNDING: f64 = 3e-5;
/// How near a value may come to where its quantizer jumps, as a part of its block's scale.
const CLEAR: f64 = 1e-5;

/// So many casts may jump at once, or before the first is paid back.
const JUMPS: f64 = 8.0;

/// What a jump is worth, as a part of the value it happens to.
fn jump(codec: CodecName) -> f64 {
    match codec {
        CodecName::Bf16 => 2f64.powi(-7),
        CodecName::F16 => 2f64.powi(-10),
        _ => 0.0,
    }
}

// ---- the table ---------------------------------------------------------------------------------

/// An optimizer and the learning rate it runs at.
struct Case {
    name: &'static str,
    config: Config,
    rate: LearningRate,
}

fn constant() -> LearningRate {
    LearningRate::constant(LR)
}

fn cosine() -> LearningRate {
    LearningRate { warmup: 12, decay: Decay::Cosine, steps: STEPS, floor: 0.1, ..constant() }
}

/// No learning rate at all from step 60 on.
fn at_rest() -> LearningRate {
    LearningRate { decay: Decay::Step, drop_every: 60, drop_to: 0.0, ..constant() }
}

fn inverse_sqrt() -> LearningRate {
    LearningRate { warmup: 9, decay: Decay::InverseSqrt, ..constant() }
}

fn zero_one(name: &'static str, rate: LearningRate, own: ZeroOneAdam) -> Case {
    Case { name, config: Config::of(own), rate }
}

fn one_bit(name: &'static str, warmup: u64, rate: LearningRate) -> Case {
    let warmup = Some(Warmup::Steps(warmup));
    Case { name, config: Config::of(OneBitAdam { warmup, ..OneBitAdam::default() }), rate }
}

/// Adam on a coded gradient. With the usual ε an update is ±γ where the gradient has only begun, whatever its size.
fn coded(name: &'static str, rate: LearningRate, feedback: f64) -> Case {
    let config = Config { eps: Some(0.1), feedback: Some(feedback), ..Config::new(Name::ADAM) };
    Case { name, config, rate }
}

/// The same with a quarter of each loss remembered.
fn forgetting(case: Case) -> Case {
    Case { config: Config { feedback: Some(0.25), ..case.config }, ..case }
}

/// With the usual ε the first update is ±γ everywhere, and means of two workers are 0 but for rounding.
fn efficient(name: &'static str, theta: Theta, rate: LearningRate) -> Case {
    let config = Config { eps: Some(0.1), ..Config::of(EfficientAdam { theta: Some(theta) }) };
    Case { name, config, rate }
}

/// Every optimizer that has a coarse mean, with every kind of schedule it knows.
fn coarse_cases() -> Vec<Case> {
    let any = ZeroOneAdam::default;
    let every = |gap| ZeroOneAdam { sync: Some(Sync::Every), sync_every: Some(gap), kappa: Some(4), ..any() };
    let following = zero_one("follow-lr", cosine(), any());
    let following = Case { config: Config { learning_rate: Some(cosine()), ..following.config }, ..following };
    vec![
        following,
        zero_one(
            "doubling",
            inverse_sqrt(),
            ZeroOneAdam {
                sync: Some(Sync::Doubling),
                sync_start: Some(10),
                sync_every: Some(16),
                sync_longest: Some(8),
                freeze: Some(Freeze::Step(25)),
                ..any()
            },
        ),
        zero_one("every 1", cosine(), every(1)),
        zero_one("every 4", constant(), every(4)),
        zero_one(
            "custom",
            inverse_sqrt(),
            ZeroOneAdam {
                variance_steps: Some(vec![0, 1, 3, 7, 8, 20, 41]),
                sync: Some(Sync::Custom),
                sync_steps: Some(vec![2, 4, 5, 13, 30, 31, 60]),
                ..any()
            },
        ),
        zero_one("at rest", at_rest(), every(4)),
        coded("κ = 1", constant(), 1.0),
        coded("κ = 1/5", cosine(), 0.2),
        coded("κ = 0", at_rest(), 0.0),
        forgetting(zero_one("every 4, κ = 1/4", cosine(), every(4))),
        zero_one("of momenta", cosine(), ZeroOneAdam { variance: Some(Variance::Momentum), kappa: None, ..every(3) }),
        one_bit("warm-up 1", 1, constant()),
        one_bit("warm-up 20", 20, cosine()),
        efficient("constant θ, constant α", Theta::Constant, constant()),
        efficient("constant θ, α/√t", Theta::Constant, inverse_sqrt()),
        efficient("1 − θ/t, constant α", Theta::OneMinusOverT, constant()),
        efficient("1 − θ/t, α/√t", Theta::OneMinusOverT, inverse_sqrt()),
    ]
}

/// Cut where no block ends: one group rests, one decays.
fn groups() -> Vec<Group> {
    vec![
        Group { length: 11, lr_scale: 1.0, weight_decay: Some(0.0) },
        Group { length: 3, lr_scale: 0.0, weight_decay: None },
        Group { length: 15, lr_scale: 0.5, weight_decay: Some(0.3) },
    ]
}

/// `case` in its n-th variant: the settings that go with everything, each in turn.
fn variant(case: &Case, n: usize, coded: bool) -> Config {
    let all_coarse = case.config.name == Name::EFFICIENT_ADAM || case.config.name == Name::ADAM && coded;
    let has_exact_rounds = !all_coarse && !case.config.own.contains_key("variance");
    Config {
        block: Some(BLOCK),
        bias_correction: Some(n % 2 == 1),
        topology: Some([Topology::Sharded, Topology::Central][n / 2 % 2]),
        groups: [groups(), Vec::new()][n / 4 % 2].clone(),
        exact_codec: has_exact_rounds.then_some([CodecName::F32, CodecName::Bf16][n / 3 % 2]),
        ..case.config.clone()
    }
}

// ---- the gradients -----------------------------------------------------------------------------

/// The step of a coordinate's first gradient: never for one a block and all of block 1, late for another one.
fn first_gradient(k: usize) -> u64 {
    match k % BLOCK {
        _ if k / BLOCK == 1 => u64::MAX,
        5 => u64::MAX,
        2 => 35,
        _ => 0,
    }
}

/// Sizes from 1/10 to 10.
fn gradient(seed: u64, worker: usize, t: u64) -> Vec<f32> {
    let sized = |(k, g): (usize, f32)| g * [0.1, 1.0, 10.0][k % 3] * f32::from(t >= first_gradient(k));
    noisy(seed, worker, t, D).into_iter().enumerate().map(sized).collect()
}

fn run(config: Config, rate: &LearningRate, workers: usize, seed: u64) -> Run {
    Run {
        config,
        workers,
        start: start(D),
        rates: (0..STEPS).map(|t| rate.at(t)).collect(),
        syncs: vec![2, 3, 24, 45, 46, STEPS - 1],
        gradient: Box::new(move |worker, t, _| gradient(seed, worker, t)),
    }
}

/// The first seed with which nothing comes near to where a quantizer jumps, and what the oracle says to it.
fn clear_run(config: &Config, rate: &LearningRate, workers: usize) -> (Run, Expected) {
    let told = |seed| {
        let run = run(config.clone(), rate, workers, seed);
        let expected = twin::expected(&run);
        (expected.closest_call > CLEAR).then_some((run, expected))
    };
    (0..500).find_map(told).expect("a seed among 500 that keeps clear")
}

// ---- the comparison ----------------------------------------------------------------------------

/// How far a vector of the engine may be from the oracle's.
struct Tolerance {
    /// What one jump is worth, as a part of the value.
    jump: f64,
    largest_coded: f64,
    largest_move: f64,
    /// What a jump is worth in v, where v is of a coded gradient: (1−β2)·2·g times the jump of g.
    coded_in_v: f64,
    /// The same where v is of a coded momentum: so many updates of one part in a thousand as a jump is not paid back.
    of_momenta: f64,
}

impl Tolerance {
    fn new(run: &Run, expected: &Expected) -> Tolerance {
        let codecs = [run.config.codec_up, run.config.codec_down];
        let moves = expected.histories.iter().flat_map(|history| history.windows(2));
        Tolerance {
            jump: codecs.into_iter().flatten().map(jump).fold(0.0, f64::max),
            largest_coded: expected.largest_coded,
            coded_in_v: if run.config.name == Name::ADAM { 0.002 * expected.largest_coded.powi(2) } else { 0.0 },
            of_momenta: f64::from(u8::from(run.config.own.contains_key("variance"))) * 0.1,
            largest_move: largest(moves.map(|pair| apart(&pair[0]["x"], &pair[1]["x"]))),
        }
    }

    /// Rounding is a part of the vector's largest value, a jump a part of what was coded.
    fn of(&self, name: &str, want: &[f64]) -> f64 {
        let largest = largest(want.iter().copied());
        let (values, coded) = match name {
            "x" => (largest, self.largest_move),
            "v" => (largest, self.coded_in_v.max(self.of_momenta * largest)),
            "up_residue" | "down_residue" => (self.largest_coded, self.largest_coded),
            _ => (largest, largest),
        };
        ROUNDING * values + JUMPS * self.jump * coded
    }
}

/// E: every owner's part, in rank order.
fn owner_residue(snapshots: &[&Snapshot]) -> Vec<f64> {
    snapshots.iter().flat_map(|snapshot| snapshot["down_residue"].clone()).collect()
}

fn assert_same(what: &str, run: &Run, expected: &Expected) {
    let tolerance = Tolerance::new(run, expected);
    let histories = run.histories();
    let check = |name: &str, worker: usize, moment: usize, got: &[f64]| {
        let want = &expected.histories[worker][moment][name];
        let (off, allowed) = (apart(got, want), tolerance.of(name, want));
        assert!(off <= allowed, "{what}: {name} of worker {worker} at moment {moment} is off by {off:e} > {allowed:e}");
    };
    let kept = |name: &&str| histories[0][0].get(name).is_some_and(|values| !values.is_empty());
    let names: Vec<_> = ["x", "m", "v", "u", "up_residue"].into_iter().filter(kept).collect();
    for moment in 0..expected.histories[0].len() {
        let now: Vec<_> = histories.iter().map(|history| &history[moment]).collect();
        for (worker, now) in now.iter().enumerate() {
            names.iter().for_each(|name| check(name, worker, moment, &now[name]));
        }
        let owed = owner_residue(&now);
        let config = run.config.resolved().unwrap();
        assert_eq!(owed.is_empty(), config.feedback_down.is_none_or(|kappa| kappa == 0.0), "{what}");
        if !owed.is_empty() {
            check("down_residue", 0, moment, &owed);
        }
    }
}

fn check_all(cases: Vec<Case>, codecs: &[(Option<CodecName>, Option<CodecName>)]) {
    let mut n = 0;
    for case in cases {
        for (codec_up, codec_down) in codecs.iter().copied() {
            for workers in 1..=5 {
                let config = Config { codec_up, codec_down, ..variant(&case, n, codec_up.is_some()) };
                let what = format!("{} {}, {codec_up:?}, {codec_down:?}, {workers} workers", config.name, case.name);
                let (run, expected) = clear_run(&config, &case.rate, workers);
                assert_same(&what, &run, &expected);
                n += 1;
            }
        }
    }
}

#[test]
fn every_coarse_optimizer_does_what_the_oracle_does() {
    check_all(coarse_cases(), &CODECS.map(|(up, down)| (Some(up), Some(down))));
}

#[test]
fn adam_does_what_the_oracle_does() {
    let adam = |name, rate| Case { name, config: Config::new(Name::ADAM), rate };
    check_all(vec![adam("constant", constant()), adam("cosine", cosine()), adam("rests", at_rest())], &[(None, None)]);
}

// ---- a rate that rises again -------------------------------------------------------------------

/// The residuals are in units of the rate. Without the limit on m, the fall to a ten-thousandth of it would leave a momentum of
/// hundreds of P, and the first steps at the full rate would follow it.
#[test]
fn a_rate_that_rises_again_finds_a_momentum_and_no_residual() {
    let own = ZeroOneAdam { freeze: Some(Freeze::Step(10)), sync: Some(Sync::Every), ..ZeroOneAdam::default() };
    let sign = Some(CodecName::Sign);
    let config = Config { block: Some(BLOCK), codec_up: sign, codec_down: sign, ..Config::of(own) };
    let rate = |t| if (30..50).contains(&t) { 1e-4 * LR } else { LR };
    let rates: Vec<_> = (0..STEPS).map(|t| rate(t) as f32).collect();
    for workers in 1..=3 {
        let told = |seed| {
            let run = Run { rates: rates.clone(), ..run(config.clone(), &constant(), workers, seed) };
            let expected = twin::expected(&run);
            (expected.closest_call > CLEAR).then_some((run, expected))
        };
        let (run, expected) = (0..500).find_map(told).expect("a seed among 500 that keeps clear");
        assert_same(&format!("a rate that rises again, {workers} workers"), &run, &expected);
        let (history, correction) = (&run.histories()[0], 1.0 - 0.999f64.powi(10));
        for snapshot in &history[30..] {
            for (m, v) in snapshot["m"].iter().zip(&snapshot["v"]).filter(|(_, v)| **v > 0.0) {
                let p = (v / correction).sqrt() + 1e-8;
                assert!(m.abs() <= 7.3001 * p, "|m| = {} where P = {p}", m.abs());
            }
        }
    }
}

// ---- 1-bit Adam's automatic warm-up ------------------------------------------------------------

/// T_w: one past the first t from `earliest` on with ‖v_t‖₁ ≥ 0.96·‖v_(t−Δ)‖₁, Δ = 10 for β2 = 0.9. None if it never is, or
/// if rounding decides.
fn settles(run: &Run, earliest: u64) -> Option<u64> {
    let (mut v, mut norms) = (vec![0.0; D], Vec::new());
    for t in 0..STEPS {
        let gradients: Vec<_> = (0..run.workers).map(|i| widen(&(run.gradient)(i, t, &[]))).collect();
        v = zip(&v, &mean_rows(&gradients), |v, g| 0.9 * v + 0.1 * g * g);
        norms.push(v.iter().sum::<f64>());
    }
    let ratio = |t: u64| norms[t as usize] / norms[t as usize - 10];
    let first = (earliest.max(10)..STEPS).find(|&t| ratio(t) >= 0.96 - CLEAR)?;
    (ratio(first) >= 0.96 + CLEAR).then_some(first + 1)
}

/// Gradients that shrink for thirty steps, so that v does too.
fn shrinking(config: &Config, workers: usize, seed: u64) -> Run {
    let shrunk = move |i, t: u64, _: &[f32]| {
        let size = 0.96f32.powi(t.min(30) as i32);
        gradient(seed, i, t).iter().map(|g| g * size).collect()
    };
    Run { gradient: Box::new(shrunk), ..run(config.clone(), &constant(), workers, seed) }
}

/// A run, the T_w it must find, and what the oracle says to a warm-up as long.
fn clear_automatic_run(workers: usize, earliest: u64) -> (Run, u64, Expected) {
    let learning_rate = Some(LearningRate { warmup: earliest, ..constant() });
    let base = Config { betas: Some((0.9, 0.9)), block: Some(BLOCK), learning_rate, ..Config::new(Name::ONE_BIT_ADAM) };
    let own = |warmup| OneBitAdam { warmup: Some(warmup), ..OneBitAdam::default() };
    let warmed_up = |warmup| base.clone().with(own(warmup));
    let told = |seed| {
        let run = shrinking(&warmed_up(Warmup::Auto), workers, seed);
        let warmup = settles(&run, earliest)?;
        let expected = twin::expected(&shrinking(&warmed_up(Warmup::Steps(warmup)), workers, seed));
        (expected.closest_call > CLEAR).then_some((run, warmup, expected))
    };
    (0..500).find_map(told).expect("a seed among 500 that keeps clear")
}

#[test]
fn one_bit_adam_finds_its_warm_up_on_all_workers_alike() {
    for (workers, earliest) in [(1, 0), (1, 25), (2, 25), (3, 25), (4, 25), (5, 25)] {
        let (run, warmup, expected) = clear_automatic_run(workers, earliest);
        assert!(earliest == 0 || (earliest + 2..STEPS - 5).contains(&warmup), "a warm-up of {warmup} tells nothing");
        assert_same(&format!("automatic warm-up, {workers} workers"), &run, &expected);
        for history in run.histories() {
            assert_eq!(history.last().unwrap()["frozen_from"], [warmup as f64], "{workers} workers");
        }
    }
}
