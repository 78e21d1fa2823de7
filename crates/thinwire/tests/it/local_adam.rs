//! Local Adam: its oracle against numbers of another program, the engine against its oracle, and what outer rules and codecs must not
//! change.
//!
//! ```text
//! nesterov        y = a − (ημ²/(1−μ))·B  − (η/(1−μ))·(mean e + E)    moves by −(η/(1−μ))·mean Δ at every sync
//! slow-momentum   y = a − (ηγμ/(1−μ))·M − (η/(1−μ))·(mean e + E)    the same, at a constant γ
//! average         y = a − η·(mean e + E)                            the same with μ = 0
//! ```

use crate::common::engine::{CODECS, Run, Snapshot, apart, largest, noisy, start, widen};
use crate::common::golden::{X, assert_digits, gradient};
use crate::common::oracle::{Quantizer, mean_rows, zip};
use crate::common::oracle_local::{Delay, Oracle, Rule, Setup};
use crate::common::runs::{self, Replica, together};
use crate::common::twin::{Expected, quantizer};
use proptest::prelude::*;
use thinwire::options::{Decay, Group, Outer, Sync, Topology};
use thinwire::{CodecName, Config, LearningRate, LocalAdam, Name, Worker, threads};

const LOSSLESS: (CodecName, CodecName) = (CodecName::F32, CodecName::F32);

fn local(outer: Outer, gap: u64) -> LocalAdam {
    LocalAdam { outer: Some(outer), sync_every: Some(gap), ..LocalAdam::default() }
}

fn coded(own: LocalAdam, (up, down): (CodecName, CodecName)) -> Config {
    Config { codec_up: Some(up), codec_down: Some(down), block: Some(8), ..Config::of(own) }
}

// ---- the oracle, and numbers of another program ------------------------------------------------

/// So many steps at γ = 0.1, with a sync after every second.
fn golden(rule: Rule, codec: Quantizer, feedback: f64, steps: u64) -> Oracle {
    golden_of(Setup { up: codec, down: codec, feedback, ..Setup::plain(rule, 2, 4) }, steps)
}

fn golden_of(setup: Setup, steps: u64) -> Oracle {
    let mut oracle = Oracle::new(setup, &X);
    for t in 0..steps {
        let gradients = [0, 1].map(|i| gradient(i, &oracle.x[i]));
        let syncs = (t / 2) as usize % oracle.setup.parts;
        oracle.step(0.1, &gradients, (t % 2 == 1).then_some(syncs));
    }
    oracle
}

const DILOCO: Rule = Rule::Nesterov { eta: 0.7, mu: 0.9 };
const SLOWMO: Rule = Rule::SlowMomentum { eta: 1.0, mu: 0.5 };
/// SlowMo whose means are an interval late.
fn co2(penalty: f64, most: f64) -> Setup {
    let delay = Some(Delay { steps: 2, gap: 2, from: 0, mix: 0.0 });
    Setup { penalty, most, delay, ..Setup::plain(SLOWMO, 2, 4) }
}

/// Streaming DiLoCo of two parts, each with a sync in four steps that is over a step later; half of a worker's own view is kept.
fn streaming() -> Setup {
    let delay = Some(Delay { steps: 1, gap: 2, from: 0, mix: 0.5 });
    Setup { parts: 2, block: 1, delay, ..Setup::plain(DILOCO, 2, 4) }
}

const DSM: Rule = Rule::Sign { eta: 1.0, betas: (0.95, 0.98), lambda: 0.1 };

#[test]
fn the_oracle_has_the_numbers_of_another_program() {
    let dsm = golden(DSM, Quantizer::F32, 1.0, 4);
    assert_digits(&dsm.anchor, &[0.58508, -1.17314, 0.19702, 0.29105]);
    assert_digits(&dsm.momentum, &[0.0772353393929, -0.0780596511274, -9.56189050752e-05, 9.80789338931e-05]);
    let slowmo = golden(SLOWMO, Quantizer::F32, 1.0, 8);
    assert_digits(&slowmo.x[1], &[-0.0809368603097, -0.394205926727, 0.199041860725, 0.496247702016]);
    let diloco = golden(DILOCO, Quantizer::F32, 1.0, 4);
    assert_digits(&diloco.x[0], &[0.203049570712, -0.77946997357, 0.199535817939, 0.498193534588]);
    assert_digits(&diloco.momentum, &[0.344501509902, -0.361828131225, 0.000283890663737, 0.0011086742952]);
    let signs = golden(DILOCO, Quantizer::Sign, 1.0, 4);
    assert_digits(&signs.x[0], &[0.350566337346, -0.950566337346, 0.129189939813, 0.570810060187]);
    assert_digits(&signs.residual(0), &[-0.00101449431108, -0.000944088968974, 0.00101449964461, 0.00108490498672]);
    assert_digits(&signs.owner_residual(), &[0.0989109562157, -0.0989109562157, -0.0989109562157, 0.0989109562157]);
    let co2_plain = golden_of(co2(1.0, f64::INFINITY), 8);
    assert_digits(&co2_plain.anchor, &[-0.0258093814015, -0.563501709406, 0.199347269051, 0.497440810704]);
    assert_digits(&co2_plain.momentum, &[3.31023098327, -3.39410855502, 0.00293188094531, 0.0115903801856]);
    let co2_limited = golden_of(co2(2.0, 1.5), 8);
    assert_digits(&co2_limited.anchor, &[0.402606858463, -1.00145628245, 0.19967326622, 0.498718582255]);
    assert_digits(&co2_limited.momentum, &[1.5, -1.5, 0.00146962353434, 0.00581342106042]);
    assert_eq!(co2_limited.x, vec![co2_limited.anchor.clone(); 2]);
    let streaming = golden_of(streaming(), 9);
    assert_digits(&streaming.x[0], &[-0.0262559190804, -0.475644631384, 0.65094137267, 0.159742295714]);
    assert_digits(&streaming.x[1], &[0.284806727851, -0.620621719256, -0.26455797135, 0.758242637363]);
    assert_digits(&streaming.anchor, &[0.10586342416, -0.431199747075, 0.197005179455, 0.459658079719]);
    assert_digits(&streaming.momentum, &[0.417573800542, -0.52385697315, 0.00218662636615, 0.0275121450299]);
    let forgetful = golden(DILOCO, Quantizer::Power2(4), 0.0, 4);
    assert_digits(&forgetful.x[0], &[0.155579050104, -0.755579050104, 0.2, 0.5]);
}

/// The same runs in the engine, as far as f32 goes.
#[test]
fn the_engine_has_them_too() {
    let preset = |name: &str| Config { preset: Some(name.to_owned()), ..Config::of(local_every_2()) };
    let limited = LocalAdam { outer_penalty: Some(2.0), outer_clip: Some(1.5), ..local_every_2() };
    let limited = Config { preset: Some("co2".to_owned()), ..Config::of(limited) };
    for (config, rule, steps) in [
        (preset("dsm"), DSM, 4),
        (preset("slowmo"), SLOWMO, 8),
        (preset("diloco"), DILOCO, 4),
        (Config { codec: Some(CodecName::Sign), ..preset("diloco") }, DILOCO, 4),
        (Config { codec: Some(CodecName::Power2(4)), feedback: Some(0.0), ..preset("diloco") }, DILOCO, 4),
        (preset("co2"), SLOWMO, 8),
        (limited, SLOWMO, 8),
    ] {
        let own = config.options::<LocalAdam>().unwrap();
        let is_co2 = config.preset.as_deref() == Some("co2");
        let (codec, feedback) = (config.codec.map_or(Quantizer::F32, quantizer), config.feedback.unwrap_or(1.0));
        let config = Config { weight_decay: Some(0.0), block: Some(4), ..config };
        let run = Run {
            config,
            workers: 2,
            start: X.map(|x| x as f32).to_vec(),
            rates: vec![0.1; steps],
            syncs: Vec::new(),
            gradient: Box::new(|worker, _, x| gradient(worker, &widen(x)).iter().map(|g| *g as f32).collect()),
        };
        let late = co2(own.outer_penalty.unwrap_or(1.0), own.outer_clip.unwrap_or(f64::INFINITY));
        let want = match is_co2 {
            true => golden_of(late, steps as u64),
            false => golden(rule, codec, feedback, steps as u64),
        };
        for end in run.ends() {
            assert!(apart(&widen(&end), &want.anchor) < 2e-6, "{rule:?}, {codec:?}: {end:?}, not {:?}", want.anchor);
        }
    }
}

fn local_every_2() -> LocalAdam {
    LocalAdam { sync_every: Some(2), ..LocalAdam::default() }
}

// ---- the engine and its oracle -----------------------------------------------------------------

const STEPS: u64 = 40;
const LR: f64 = 0.1;
/// How near a value may come to where its quantizer, or the sign, jumps.
const CLEAR: f64 = 2e-5;
/// Of the largest value in a vector, and of what x is off by where that is divided by γ.
const ROUNDING: f64 = 3e-5;
const SYNCS: [u64; 5] = [1, 10, 11, 24, STEPS - 1];

/// The quantizers that jump seldom: casts jump at every ulp.
const QUANTIZERS: [(CodecName, CodecName); 6] = [
    LOSSLESS,
    (CodecName::Sign, CodecName::Sign),
    (CodecName::Uniform(4), CodecName::Uniform(4)),
    (CodecName::Power2(3), CodecName::F32),
    (CodecName::TopK(200_000), CodecName::TopK(200_000)),
    (CodecName::Uniform(4), CodecName::Sign),
];

fn cosine() -> LearningRate {
    LearningRate { warmup: 5, decay: Decay::Cosine, steps: STEPS, floor: 0.2, ..LearningRate::constant(LR) }
}

/// γ of every step. A rate that rests has none in steps that end with a sync; if nothing is lost, for a whole interval more. (What a codec
/// makes of residuals alone is in units so small that f32 decides where it jumps.)
fn rates(rate: &LearningRate, rests: bool, codecs: (CodecName, CodecName)) -> Vec<f32> {
    let rest = if codecs == LOSSLESS { 18..25 } else { 18..20 };
    (0..STEPS).map(|t| if rests && rest.contains(&t) { 0.0 } else { rate.at(t) }).collect()
}

/// Cut where no block ends; one rests, one decays.
fn groups(d: usize) -> Vec<Group> {
    let third = d / 3;
    vec![
        Group { length: third, lr_scale: 1.0, weight_decay: None },
        Group { length: third, lr_scale: 0.0, weight_decay: Some(0.5) },
        Group { length: d - 2 * third, lr_scale: 0.5, weight_decay: Some(0.3) },
    ]
}

/// Rules, gaps and rates, what the oracle calls the rule, and whether the rate rests.
fn cases() -> Vec<(Config, Rule, LearningRate, bool)> {
    let following = |own: LocalAdam| {
        let own = LocalAdam { sync: Some(Sync::FollowLr), sync_every: None, sync_longest: Some(8), ..own };
        Config { learning_rate: Some(cosine()), ..Config::of(own) }
    };
    let nesterov = LocalAdam {
        outer_rate: Some(0.5),
        outer_momentum: Some(0.6),
        sync_start: Some(4),
        ..local(Outer::Nesterov, 5)
    };
    let nesterov_of = nesterov.clone();
    let limited = LocalAdam { outer_penalty: Some(1.5), outer_clip: Some(0.7), ..late(Outer::SlowMomentum, 4, 4, 0.0) };
    let sign = LocalAdam {
        outer_rate: Some(1.5),
        outer_betas: Some((0.8, 0.9)),
        outer_decay: Some(0.3),
        ..local(Outer::Sign, 3)
    };
    let slow = LocalAdam { outer_momentum: Some(0.3), ..local(Outer::SlowMomentum, 1) };
    let constant = || LearningRate::constant(LR);
    vec![
        (Config::of(local(Outer::Average, 3)), Rule::Average { eta: 1.0 }, cosine(), false),
        (Config::of(local(Outer::SlowMomentum, 4)), SLOWMO, constant(), true),
        (Config::of(slow), Rule::SlowMomentum { eta: 1.0, mu: 0.3 }, cosine(), false),
        (Config::of(local(Outer::Nesterov, 6)), DILOCO, constant(), false),
        (Config::of(nesterov), Rule::Nesterov { eta: 0.5, mu: 0.6 }, constant(), true),
        (following(local(Outer::Nesterov, 1)), DILOCO, cosine(), false),
        (Config::of(sign), Rule::Sign { eta: 1.5, betas: (0.8, 0.9), lambda: 0.3 }, constant(), true),
        (following(local(Outer::Sign, 1)), DSM, cosine(), false),
        (Config::of(late(Outer::Average, 5, 2, 0.0)), Rule::Average { eta: 1.0 }, cosine(), true),
        (Config::of(late(Outer::Average, 6, 5, 0.25)), Rule::Average { eta: 1.0 }, constant(), false),
        (Config::of(LocalAdam { delay: Some(1), mix: Some(0.5), ..nesterov_of }), HALF, cosine(), true),
        (Config::of(late(Outer::Nesterov, 1, 1, 0.0)), DILOCO, constant(), false),
        (Config::of(limited), SLOWMO, cosine(), true),
        (Config::of(LocalAdam { sync_start: Some(6), ..late(Outer::SlowMomentum, 4, 3, 0.5) }), SLOWMO, cosine(), true),
        (Config::of(late(Outer::Sign, 3, 3, 0.0)), DSM, constant(), false),
        (Config::of(late(Outer::Sign, 4, 1, 0.0)), DSM, constant(), true),
        (Config::of(in_parts(2, local(Outer::Average, 6))), Rule::Average { eta: 1.0 }, cosine(), true),
        (
            Config::of(in_parts(3, LocalAdam { sync_start: Some(5), ..local(Outer::SlowMomentum, 3) })),
            SLOWMO,
            constant(),
            true,
        ),
        (Config::of(in_parts(2, late(Outer::Nesterov, 6, 3, 0.5))), DILOCO, constant(), false),
        (Config::of(in_parts(4, late(Outer::Average, 8, 1, 0.0))), Rule::Average { eta: 1.0 }, cosine(), true),
        (
            Config::of(in_parts(2, LocalAdam { sync_start: Some(3), ..late(Outer::Sign, 8, 4, 0.0) })),
            DSM,
            cosine(),
            true,
        ),
    ]
}

fn in_parts(parts: u64, own: LocalAdam) -> LocalAdam {
    LocalAdam { parts: Some(parts), ..own }
}

const HALF: Rule = Rule::Nesterov { eta: 0.5, mu: 0.6 };

fn late(outer: Outer, gap: u64, delay: u64, mix: f64) -> LocalAdam {
    LocalAdam { delay: Some(delay), mix: Some(mix), ..local(outer, gap) }
}

/// The steps after which the optimizer syncs by itself: every step before the start, then those whose number the gap divides.
fn sync_steps(config: &Config, rate: &LearningRate) -> Vec<u64> {
    let own = config.resolved().unwrap().options::<LocalAdam>().unwrap();
    let gap = |t: u64| match own.sync_every {
        Some(gap) => gap / own.parts.unwrap_or(1),
        None => {
            let halvings = (LR / f64::from(rate.at(t)) * 10.0 / 9.0).log2().floor().max(0.0);
            (1 << halvings as u64).min(own.sync_longest.unwrap())
        }
    };
    (0..STEPS).filter(|t| *t < own.sync_start.unwrap() || (t + 1) % gap(*t) == 0).collect()
}

fn per_coordinate(config: &Config, d: usize, of: impl Fn(&Group) -> f64, usual: f64) -> Vec<f64> {
    let each = config.groups.iter().flat_map(|group| vec![of(group); group.length]).collect::<Vec<_>>();
    if config.groups.is_empty() { vec![usual; d] } else { each }
}

fn expected(run: &Run, rule: Rule, rate: &LearningRate) -> Expected {
    let (config, d) = (run.config.resolved().unwrap(), run.start.len());
    let decay = config.weight_decay.unwrap();
    let own = config.options::<LocalAdam>().unwrap();
    let setup = Setup {
        block: config.block.unwrap(),
        up: quantizer(config.codec_up.unwrap()),
        down: quantizer(config.codec_down.unwrap()),
        eps: config.eps.unwrap(),
        bias_correction: config.bias_correction.unwrap(),
        rate: per_coordinate(&config, d, |group| group.lr_scale, 1.0),
        weight_decay: per_coordinate(&config, d, |group| group.weight_decay.unwrap_or(decay), decay),
        penalty: own.outer_penalty.unwrap_or(1.0),
        most: own.outer_clip.unwrap_or(f64::INFINITY),
        delay: own.delay.map(|steps| Delay {
            steps,
            gap: own.sync_every.unwrap() / own.parts.unwrap_or(1),
            from: own.sync_start.unwrap(),
            mix: own.mix.unwrap(),
        }),
        parts: own.parts.unwrap_or(1) as usize,
        ..Setup::plain(rule, run.workers, d)
    };
    let parts = setup.parts;
    let (mut oracle, syncs) = (Oracle::new(setup, &widen(&run.start)), sync_steps(&run.config, rate));
    let mut histories = vec![Vec::new(); run.workers];
    for (t, rate) in (0..).zip(&run.rates) {
        let gradient = |i| widen(&(run.gradient)(i, t, &[]));
        let part = syncs.iter().position(|sync| *sync == t).map(|syncs| syncs % parts);
        oracle.step(f64::from(*rate), &(0..run.workers).map(gradient).collect::<Vec<_>>(), part);
        watch(&oracle, &mut histories);
        if run.syncs.contains(&t) {
            oracle.sync();
            watch(&oracle, &mut histories);
        }
    }
    let (closest_call, largest_coded) = oracle.seen();
    Expected { histories, closest_call: closest_call.min(oracle.closest_sign), largest_coded }
}

fn watch(oracle: &Oracle, histories: &mut [Vec<Snapshot>]) {
    for (i, history) in histories.iter_mut().enumerate() {
        let named = [
            ("x", &oracle.x[i]),
            ("m", &oracle.m[i]),
            ("v", &oracle.v[i]),
            ("anchor", &oracle.anchor),
            ("outer_momentum", &oracle.momentum),
            ("up_residue", &oracle.residual(i)),
            ("down_residue", &oracle.owner_residual()),
        ];
        history.push(named.map(|(name, values)| (name, values.clone())).into());
    }
}

fn assert_same(what: &str, run: &Run, rule: Rule, expected: &Expected) {
    let (got, want) = (run.histories(), &expected.histories);
    let divides = matches!(rule, Rule::SlowMomentum { .. } | Rule::Sign { .. });
    for (moment, first) in want[0].iter().enumerate() {
        let size = |name: &str| largest(first[name].iter().copied());
        let owners = got.iter().flat_map(|history| history[moment]["down_residue"].clone()).collect::<Vec<_>>();
        for (i, history) in got.iter().enumerate() {
            for (name, want) in &want[i][moment] {
                let own = history[moment].get(name).cloned();
                let held = if *name == "down_residue" { Some(owners.clone()) } else { own };
                let Some(values) = held else {
                    assert!(*name == "outer_momentum" && matches!(rule, Rule::Average { .. }), "{what}: no {name}");
                    continue;
                };
                let allowed = match *name {
                    "outer_momentum" if divides => ROUNDING * size(name) + 1e-6 * size("x") / (0.1 * LR),
                    "up_residue" | "down_residue" | "outer_momentum" => {
                        ROUNDING * (size(name) + expected.largest_coded) + 1e-6 * size("x")
                    }
                    _ => ROUNDING * largest(want.iter().copied()),
                };
                if values.is_empty() && name.ends_with("_residue") && run.config.codec_up == Some(CodecName::F32) {
                    continue; // nothing is lost, and nothing kept
                }
                let off = apart(&values, want);
                assert!(
                    off <= allowed,
                    "{what}: {name} of worker {i} at moment {moment} is off by {off:e} > {allowed:e}"
                );
            }
        }
    }
}

#[test]
fn the_engine_does_what_its_oracle_does() {
    let mut n = 0;
    for (config, rule, rate, rests) in cases() {
        for codecs in QUANTIZERS {
            for (workers, d) in [(1, 13), (2, 13), (3, 7), (4, 13), (5, 9), (3, 1), (2, 0)] {
                n += 1;
                let config = Config {
                    codec_up: Some(codecs.0),
                    codec_down: Some(codecs.1),
                    block: Some(5),
                    // With the usual ε the first steps are ±γ everywhere, and their means 0 but for rounding.
                    eps: Some(0.1),
                    bias_correction: Some(n % 2 == 0),
                    topology: Some([Topology::Sharded, Topology::Central][n / 2 % 2]),
                    groups: if n % 3 == 0 { groups(d) } else { Vec::new() },
                    ..config.clone()
                };
                let what = format!("{rule:?}, {codecs:?}, {workers} workers, {d} values");
                let run = |seed: u64| Run {
                    config: config.clone(),
                    workers,
                    start: start(d),
                    rates: rates(&rate, rests, codecs),
                    syncs: SYNCS.to_vec(),
                    gradient: Box::new(move |worker, t, _| noisy(seed, worker, t, d)),
                };
                let told = |seed| {
                    let want = expected(&run(seed), rule, &rate);
                    (want.closest_call > CLEAR).then_some((seed, want))
                };
                let (seed, want) = (0..500).find_map(told).expect("a seed among 500 that keeps clear");
                assert_same(&what, &run(seed), rule, &want);
            }
        }
    }
}

/// A look at the state makes a mean under way arrive; what nobody looks at ends with the same bits.
#[test]
fn a_mean_that_arrives_early_changes_no_bit() {
    let mut n = 0;
    for (config, ..) in cases().into_iter().filter(|(config, ..)| config.own.contains_key("delay")) {
        for codecs in [LOSSLESS, (CodecName::Sign, CodecName::Uniform(4))] {
            for workers in 1..=4 {
                n += 1;
                let run = Run {
                    config: Config {
                        codec_up: Some(codecs.0),
                        codec_down: Some(codecs.1),
                        block: Some(5),
                        ..config.clone()
                    },
                    workers,
                    start: start(D),
                    rates: (0..STEPS).map(|t| cosine().at(t)).collect(),
                    syncs: if n % 2 == 0 { SYNCS.to_vec() } else { Vec::new() },
                    gradient: Box::new(move |worker, t, x| {
                        noisy(3, worker, t, D).iter().zip(x).map(|(noise, x)| noise + x).collect()
                    }),
                };
                let seen =
                    run.histories().iter().map(|history| history.last().unwrap()["x"].clone()).collect::<Vec<_>>();
                let unseen = run.ends().iter().map(|x| widen(x)).collect::<Vec<_>>();
                assert_eq!(seen, unseen, "{:?}, {codecs:?}, {workers} workers", config.own);
            }
        }
    }
    assert!(n >= 64);
}

// ---- identities --------------------------------------------------------------------------------

/// What one worker holds before and after a sync.
struct Around {
    delta: Vec<f64>,
    before: Snapshot,
    after: Snapshot,
}

/// Trains with a constant rate, and looks at every worker around every sync: `[sync][worker]`. A sync comes with a step, and x of that
/// step is worked out from m and v; or it is asked for.
fn syncs(config: &Config, workers: usize, d: usize, seed: u64) -> Vec<Vec<Around>> {
    let run = Run {
        config: config.clone(),
        workers,
        start: start(d),
        rates: vec![LR as f32; STEPS as usize],
        syncs: vec![7, 20, 21],
        gradient: Box::new(move |worker, t, _| noisy(seed, worker, t, d)),
    };
    let histories = run.histories();
    let mut found = Vec::new();
    let mut moment = 0;
    for t in 0..STEPS {
        let events = if run.syncs.contains(&t) { 2 } else { 1 };
        for asked in (0..events).map(|event| event == 1) {
            moment += 1;
            let now = |k: usize| histories.iter().map(move |history: &Vec<Snapshot>| &history[k]);
            let is_sync = now(moment - 1).all(|state| state["steps_since_sync"] == [0.0]);
            if moment == 1 || !is_sync || asked && now(moment - 2).all(|state| state["steps_since_sync"] == [0.0]) {
                continue;
            }
            let around = |(before, after): (&Snapshot, &Snapshot)| {
                let x = if asked { before["x"].clone() } else { stepped(&before["x"], after, t) };
                Around { delta: zip(&before["anchor"], &x, |a, x| a - x), before: before.clone(), after: after.clone() }
            };
            found.push(now(moment - 2).zip(now(moment - 1)).map(around).collect());
        }
    }
    found
}

/// x − γ̂·m/P, with the m and v after step t.
fn stepped(x: &[f64], after: &Snapshot, t: u64) -> Vec<f64> {
    let (rate, correction) = (LR / (1.0 - 0.9_f64.powi(t as i32 + 1)), 1.0 - 0.999_f64.powi(t as i32 + 1));
    let update = zip(&after["m"], &after["v"], |m, v| rate * m / ((v / correction).sqrt() + 1e-8));
    zip(x, &update, |x, update| x - update)
}

/// a − b·B − c·(mean e + E).
fn virtual_iterate(states: &[&Snapshot], b: f64, c: f64) -> Vec<f64> {
    let e = mean_rows(&states.iter().map(|state| state["up_residue"].clone()).collect::<Vec<_>>());
    let owners = states.iter().flat_map(|state| state["down_residue"].clone()).collect::<Vec<_>>();
    let residual = zip(&e, &owners, |e, owner| e + owner);
    let momentum = states[0].get("outer_momentum").cloned().unwrap_or(vec![0.0; e.len()]);
    let paid = zip(&states[0]["anchor"], &momentum, |a, momentum| a - b * momentum);
    zip(&paid, &residual, |a, residual| a - c * residual)
}

fn check_identity(own: LocalAdam, codecs: (CodecName, CodecName), workers: usize, d: usize, seed: u64) {
    let (outer, eta, mu) = (own.outer.unwrap(), own.outer_rate.unwrap(), own.outer_momentum.unwrap_or(0.0));
    let what = format!("{own:?}, {codecs:?}, {workers} workers, {d} values, seed {seed}");
    let config = Config { weight_decay: Some(0.0), feedback: Some(1.0), ..coded(own, codecs) };
    let b = match outer {
        Outer::Nesterov => eta * mu * mu / (1.0 - mu),
        _ => eta * LR * mu / (1.0 - mu),
    };
    let c = eta / (1.0 - mu);
    let mut found = 0;
    for (n, around) in syncs(&config, workers, d, seed).iter().enumerate() {
        let states = |of: fn(&Around) -> &Snapshot| around.iter().map(of).collect::<Vec<_>>();
        let (before, after) = (states(|around| &around.before), states(|around| &around.after));
        let delta = mean_rows(&around.iter().map(|around| around.delta.clone()).collect::<Vec<_>>());
        let want = zip(&virtual_iterate(&before, b, c), &delta, |y, delta| y - c * delta);
        let got = virtual_iterate(&after, b, c);
        // A few f32 of the size of x, their error counting b, c and 1/γ times.
        let size = largest(after.iter().flat_map(|state| state["anchor"].iter().chain(&state["x"]).copied())).max(1.0);
        let off = apart(&got, &want);
        assert!(off <= 1e-6 * size * (1.0 + c) * (1.0 + 1.0 / (1.0 - mu)), "{what}, sync {n}: off by {off:e}");
        assert!(after.iter().all(|state| state["x"] == after[0]["anchor"]), "{what}, sync {n}");
        found += 1;
    }
    assert!(found >= 5, "{what}: {found} syncs only");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn whatever_a_codec_loses_is_only_late(
        outer in prop_oneof![Just(Outer::Average), Just(Outer::SlowMomentum), Just(Outer::Nesterov)],
        (eta, mu) in (0.1..1.5_f64, 0.0..0.95_f64),
        gap in 1..7_u64,
        codecs in proptest::sample::select(&CODECS[..]),
        workers in 1..=5_usize,
        d in prop_oneof![Just(0), Just(1), Just(17), 2..40_usize],
        seed in 0..1000_u64,
    ) {
        let outer_momentum = (outer != Outer::Average).then_some(mu);
        check_identity(LocalAdam { outer_rate: Some(eta), outer_momentum, ..local(outer, gap) }, codecs, workers, d, seed);
    }
}

// ---- what it reduces to ------------------------------------------------------------------------

const D: usize = 37;

/// The ends of all workers: the gradients depend on x.
fn ends(config: &Config, workers: usize, same: bool) -> Vec<Vec<f32>> {
    let run = Run {
        config: Config { block: Some(8), ..config.clone() },
        workers,
        start: start(D),
        rates: (0..STEPS).map(|t| cosine().at(t)).collect(),
        syncs: vec![STEPS - 1],
        gradient: Box::new(move |worker, t, x| {
            let noise = noisy(5, if same { 0 } else { worker }, t, D);
            noise.iter().zip(x).map(|(noise, x)| 0.5 * noise + x).collect()
        }),
    };
    run.ends()
}

fn assert_near(what: &str, got: &[f32], want: &[f32]) {
    let off = apart(&widen(got), &widen(want));
    assert!(off < 2e-5, "{what}: off by {off:e}");
}

fn lossless(outer: Outer, gap: u64) -> Config {
    coded(local(outer, gap), LOSSLESS)
}

/// An average at every step is the mean of the workers' own Adam steps, which is Efficient-Adam if nothing is lost.
#[test]
fn an_average_at_every_step_is_the_mean_of_local_steps() {
    for workers in 1..=5 {
        let efficient = Config { codec: Some(CodecName::F32), ..Config::new(Name::EFFICIENT_ADAM) };
        let (got, want) = (ends(&lossless(Outer::Average, 1), workers, false), ends(&efficient, workers, false));
        assert_near(&format!("{workers} workers"), &got[0], &want[0]);
    }
}

/// Alone, an average is no more than where the worker is.
#[test]
fn one_worker_that_averages_is_adam() {
    let adam = ends(&Config::new(Name::ADAM), 1, false);
    for gap in [1, 2, 7, 32, 500] {
        assert_near(&format!("every {gap}"), &ends(&lossless(Outer::Average, gap), 1, false)[0], &adam[0]);
    }
}

#[test]
fn without_momentum_all_rules_but_the_sign_average() {
    for (workers, gap) in [(1, 3), (2, 1), (3, 4), (5, 7)] {
        let average = ends(&lossless(Outer::Average, gap), workers, false);
        let without = |outer| {
            let own = LocalAdam { outer_rate: Some(1.0), outer_momentum: Some(0.0), ..local(outer, gap) };
            ends(&coded(own, LOSSLESS), workers, false)
        };
        assert_eq!(without(Outer::Nesterov), average, "{workers} workers, every {gap}");
        assert_near("slow momentum", &without(Outer::SlowMomentum)[0], &average[0]);
        let preset = Config { preset: Some("fedavg".to_owned()), ..Config::of(LocalAdam::default()) };
        let preset = preset.with(LocalAdam { sync_every: Some(gap), ..LocalAdam::default() });
        assert_eq!(ends(&preset, workers, false), average, "{workers} workers, every {gap}");
    }
}

/// With the same data on all workers each is alone: to the bit if their number is a power of two.
#[test]
fn the_same_data_on_all_workers_is_one_worker() {
    for outer in [Outer::Average, Outer::SlowMomentum, Outer::Nesterov, Outer::Sign] {
        let one = ends(&lossless(outer, 5), 1, true);
        for workers in [2, 4] {
            assert_eq!(ends(&lossless(outer, 5), workers, true)[workers - 1], one[0], "{outer:?}");
        }
        if outer != Outer::Sign {
            assert_near(&format!("{outer:?}"), &ends(&lossless(outer, 5), 3, true)[0], &one[0]);
        }
    }
}

/// Without decay every coordinate with a gradient moves by ηγ, whatever the workers found.
#[test]
fn a_sign_moves_by_its_rate() {
    let own = LocalAdam { outer_rate: Some(0.5), outer_decay: Some(0.0), ..local(Outer::Sign, 4) };
    let config = Config { weight_decay: Some(0.0), ..coded(own, LOSSLESS) };
    for around in syncs(&config, 3, D, 1) {
        let Around { before, after, .. } = &around[0];
        for (before, after) in before["anchor"].iter().zip(&after["anchor"]) {
            assert!(((before - after).abs() - 0.5 * LR).abs() < 1e-6, "{before} to {after}");
        }
    }
}

// ---- the anchor --------------------------------------------------------------------------------

/// Between two syncs all workers have the same anchor, which is where the last sync left them; to look at it takes no round.
#[test]
fn the_anchor_is_common_and_takes_no_round() {
    for (workers, outer) in [(1, Outer::Average), (3, Outer::Nesterov), (4, Outer::Sign)] {
        let config = runs::config(&format!(
            "name = 'local-adam'; sync_every = 5; codec = 'sign'; outer = '{}'",
            serde_json::to_value(outer).unwrap().as_str().unwrap()
        ));
        let seen = together(workers, |group| {
            let mut replica = Replica::new(&config, 45, group)?;
            let (mut common, mut seen) = (replica.x.clone(), Vec::new());
            assert_eq!(replica.worker.anchor()?, None);
            for t in 1..=23 {
                replica.step()?;
                let rounds = replica.worker.traffic().rounds.coarse;
                match replica.worker.anchor()? {
                    None => common.clone_from(&replica.x),
                    Some(anchor) => assert!(anchor == common && anchor != replica.x, "step {t}"),
                }
                assert_eq!(replica.worker.is_synced(), t % 5 == 0);
                assert_eq!(rounds, t / 5);
                assert_eq!(replica.worker.traffic().rounds.coarse, rounds);
                seen.push(common.clone());
            }
            Ok(seen)
        });
        assert!(seen.iter().all(|of_one| *of_one == seen[0]), "{outer:?}");
    }
}

#[test]
fn optimizers_without_an_anchor_have_none_to_show() {
    for words in ["name = 'adam'", "name = 'zero-one-adam'; variance_steps = [0]; sync = 'every'; sync_every = 9"] {
        let config = runs::config(words);
        let ends = threads::run(2, |group| {
            let mut x = start(9);
            let mut worker = Worker::new(&config, &x, Box::new(group))?;
            for t in 0..4 {
                let gradient = noisy(1, worker.rank(), t, 9);
                worker.step(&mut x, &gradient, 0.1)?;
            }
            worker.anchor()
        });
        ends.into_iter().for_each(|anchor| assert_eq!(anchor.unwrap(), None, "{words}"));
    }
}
