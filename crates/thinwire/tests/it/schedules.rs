//! When workers talk: the papers' counts of rounds and bits, and what every schedule promises.
//!
//! T_v: k_0 = 0, k_(j+1) = k_j + 2^⌊j/κ⌋, none from the freeze on. T_u: every step before its start; then every gap-th, the gap
//! doubling as the learning rate halves, or every S steps, up to H. A step before one of T_v always syncs.
//!
//! A schedule is a function of the step: what it says is the same in any order, and after a restart.

use crate::common::problems::Random;
use crate::common::twin;
use std::collections::BTreeSet;
use std::sync::Arc;
use thinwire::Round;
use thinwire::inside::Algorithm;
use thinwire::inside::schedule::{SyncSteps, VarianceSteps};
use thinwire::options::Decay;
use thinwire::options::{Freeze, Sync, Warmup};
use thinwire::{CodecName, Config, LearningRate, Name, Plan};
use thinwire::{OneBitAdam, ZeroOneAdam};

// ---- T_v ---------------------------------------------------------------------------------------

fn growing(kappa: u64, gap: u64, longest: Option<u64>, freeze: Option<u64>) -> VarianceSteps {
    VarianceSteps::Growing { dense: 0, kappa, gap, longest, freeze }
}

#[test]
fn the_variance_is_updated_as_often_as_the_paper_says() {
    let count = |below: u64| (0..below).filter(|&t| growing(16, 1, None, None).contains(t)).count();
    assert_eq!([1000, 3000, 12500].map(count), [96, 120, 153]);
}

#[test]
fn the_variance_steps_are_their_definition() {
    for (kappa, gap) in [(1, 1), (2, 3), (3, 1), (7, 8), (16, 1), (64, 8), (1000, 2), (1, 6000)] {
        for freeze in [None, Some(0), Some(1), Some(5), Some(100), Some(1777)] {
            for longest in [None, Some(1), Some(2), Some(7), Some(64)] {
                let config = Config::of(ZeroOneAdam {
                    kappa: Some(kappa),
                    variance_gap: Some(gap),
                    variance_longest: longest,
                    freeze: Some(freeze.map_or(Freeze::Never, Freeze::Step)),
                    ..ZeroOneAdam::default()
                });
                let steps = growing(kappa, gap, longest, freeze);
                let found: BTreeSet<u64> = (0..=5000).filter(|&t| steps.contains(t)).collect();
                let expected = twin::variance_steps(&config, 5000);
                assert_eq!(found, expected, "κ = {kappa}, gaps {gap} to {longest:?}, frozen from {freeze:?}");
            }
        }
    }
}

/// A rate of 0 would let the gap grow for ever.
#[test]
fn a_gap_without_a_limit_still_ends() {
    let steps = SyncSteps::FollowLr { peak: 0.1, start: 0, longest: u64::MAX };
    let last = (1 << 63) - 1;
    assert!(steps.contains(last, 0.0) && !steps.contains(last - 1, 0.0));
}

/// About a hundred variance updates, whatever the length of the run, and a hundred more at once where the learning rate does not warm up
/// for as long; a run of at most 250 steps is Adam, to the bit.
#[test]
fn by_default_a_run_of_any_length_has_variance_updates_enough() {
    let exact = [
        (50, 50, 50),
        (100, 100, 100),
        (250, 250, 250),
        (251, 101, 101),
        (399, 160, 160),
        (400, 130, 130),
        (1000, 175, 120),
        (1599, 235, 180),
        (2000, 189, 134),
        (10000, 245, 190),
        (200000, 340, 285),
    ];
    for (steps, without_warmup, with_warmup) in exact {
        for (warmup, expected) in [(0, without_warmup), (steps / 10, with_warmup)] {
            let rate = LearningRate { warmup, decay: Decay::Cosine, steps, ..LearningRate::constant(1e-3) };
            let config = Config { learning_rate: Some(rate), ..Config::new(Name::ZERO_ONE_ADAM) };
            let rounds = Plan::new(&config, 1000, 4, steps).unwrap().rounds;
            assert_eq!(rounds.exact, expected, "{steps} steps, {warmup} of warm-up");
            let codec = config.resolved().unwrap().exact_codec;
            assert_eq!(codec == Some(CodecName::F32), steps <= 250, "{steps} steps: {codec:?}");
        }
    }
}

// ---- BERT --------------------------------------------------------------------------------------

/// A pre-training run of the 0/1 Adam paper.
struct Bert {
    params: usize,
    steps: u64,
    /// Of 1-bit Adam.
    warmup: u64,
    /// Rounds of 0/1 Adam.
    exact: u64,
    coarse: u64,
    /// Bits a parameter and step.
    zero_one_bits: f64,
    one_bit_bits: f64,
}

/// Of the learning rate, in steps; the variance freezes at its end.
const LR_WARMUP: u64 = 12_500;
const DOUBLE_EVERY: u64 = 32_678;

const LARGE: Bert = Bert {
    params: 336_000_000,
    steps: 152_000,
    warmup: 23_000,
    exact: 153,
    coarse: 74_168,
    zero_one_bits: 0.5,
    one_bit_bits: 3.27,
};

const BASE: Bert = Bert {
    params: 110_000_000,
    steps: 118_000,
    warmup: 16_000,
    exact: 153,
    coarse: 70_467,
    zero_one_bits: 0.62,
    one_bit_bits: 3.03,
};

/// In the papers an exact round is of half floats. Long blocks: the papers' have a scale a tensor.
fn papers(name: Name) -> Config {
    Config { exact_codec: Some(CodecName::Bf16), block: Some(4096), ..Config::new(name) }
}

fn zero_one_of_the_paper() -> Config {
    papers(Name::ZERO_ONE_ADAM).with(ZeroOneAdam {
        kappa: Some(16),
        freeze: Some(Freeze::Step(LR_WARMUP)),
        sync: Some(Sync::Doubling),
        sync_start: Some(LR_WARMUP),
        sync_every: Some(DOUBLE_EVERY),
        sync_longest: Some(16),
        ..ZeroOneAdam::default()
    })
}

fn one_bit_of_the_paper(bert: &Bert) -> Config {
    let warmup = Some(Warmup::Steps(bert.warmup));
    papers(Name::ONE_BIT_ADAM).with(OneBitAdam { warmup, ..OneBitAdam::default() })
}

#[test]
fn bert_takes_as_many_rounds_as_in_the_paper() {
    for bert in [LARGE, BASE] {
        let planned = Plan::new(&zero_one_of_the_paper(), bert.params, 64, bert.steps).unwrap().rounds;
        assert_eq!((planned.exact, planned.coarse), (bert.exact, bert.coarse));
        assert_eq!(planned.skipped, bert.steps - bert.exact - bert.coarse);
        let planned = Plan::new(&one_bit_of_the_paper(&bert), bert.params, 64, bert.steps).unwrap().rounds;
        assert_eq!((planned.exact, planned.coarse), (bert.warmup, bert.steps - bert.warmup));
    }
    assert_eq!((LARGE.exact + LARGE.coarse, BASE.exact + BASE.coarse), (74_321, 70_620));
}

/// The papers count 1 bit, 16 for a half, and no scales, to two digits. A scale is 32 bits for a block of 4096 values, which
/// adds 1/128 to a coarse round.
#[test]
fn bert_takes_as_many_bits_as_in_the_papers() {
    for bert in [LARGE, BASE] {
        let check = |config: &Config, want: f64| {
            let plan = Plan::new(config, bert.params, 64, bert.steps).unwrap();
            let scales = plan.rounds.coarse as f64 / plan.steps as f64 / 128.0;
            let got = plan.bits_per_param_per_step() - scales;
            assert!((got - want).abs() < 0.005, "{got}, not {want}");
        };
        check(&zero_one_of_the_paper(), bert.zero_one_bits);
        check(&one_bit_of_the_paper(&bert), bert.one_bit_bits);
    }
}

/// A worker sends what stands for a parameter twice, up and down, but for its own part, (n−1)/n; headers are below 1/1000.
#[test]
fn what_a_worker_sends_is_twice_that_but_for_its_own_part() {
    for (config, workers) in [(zero_one_of_the_paper(), 64), (one_bit_of_the_paper(&LARGE), 4)] {
        let plan = Plan::new(&config, LARGE.params, workers, LARGE.steps).unwrap();
        let sent = plan.bytes_sent(1) as f64 * 8.0 / (LARGE.params as f64 * LARGE.steps as f64);
        let others = (workers - 1) as f64 / workers as f64;
        let ratio = sent / (2.0 * others * plan.bits_per_param_per_step());
        assert!((1.0..1.001).contains(&ratio), "{ratio}");
    }
}

// ---- T_u ---------------------------------------------------------------------------------------

const PEAK: f64 = 1e-3;
const STEPS: u64 = 3000;
const WARMUP: u64 = 300;

fn rate(decay: Decay) -> LearningRate {
    let peak = LearningRate::constant(PEAK);
    LearningRate { decay, warmup: WARMUP, steps: STEPS, drop_every: 400, drop_to: 0.5, ..peak }
}

const DECAYS: [Decay; 5] = [Decay::Constant, Decay::Linear, Decay::Cosine, Decay::Step, Decay::InverseSqrt];

fn follow_lr(longest: u64) -> SyncSteps {
    SyncSteps::FollowLr { peak: PEAK, start: WARMUP, longest }
}

/// The steps of T_u below [`STEPS`].
fn syncs(set: &SyncSteps, rate: &LearningRate) -> Vec<u64> {
    (0..STEPS).filter(|&t| set.contains(t, rate.at(t))).collect()
}

fn longest_wait(syncs: &[u64]) -> u64 {
    syncs.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
}

/// The gap at a constant learning rate.
fn gap(set: &SyncSteps, lr: f64) -> u64 {
    let syncs: Vec<u64> = (WARMUP..STEPS).filter(|&t| set.contains(t, lr as f32)).collect();
    let gap = syncs[1] - syncs[0];
    assert!(syncs.windows(2).all(|pair| pair[1] - pair[0] == gap), "the gap wavers");
    gap
}

#[test]
fn no_wait_is_longer_than_the_longest_gap() {
    for longest in [1, 2, 8, 16, 64] {
        for decay in DECAYS {
            let syncs = syncs(&follow_lr(longest), &rate(decay));
            let last = *syncs.last().unwrap();
            assert!(longest_wait(&syncs).max(STEPS - 1 - last) <= longest, "{decay:?}, {longest}");
        }
        let doubling = SyncSteps::Doubling { start: WARMUP, every: 100, longest };
        assert_eq!(longest_wait(&syncs(&doubling, &rate(Decay::Constant))), longest);
    }
}

#[test]
fn the_longest_gap_is_reached_when_the_rate_has_fallen_enough() {
    assert_eq!(longest_wait(&syncs(&follow_lr(16), &rate(Decay::Cosine))), 16);
    assert_eq!(longest_wait(&syncs(&follow_lr(16), &rate(Decay::Constant))), 1);
}

#[test]
fn every_step_before_the_end_of_the_warm_up_syncs() {
    for set in [
        follow_lr(16),
        SyncSteps::Doubling { start: WARMUP, every: 1, longest: 16 },
        SyncSteps::Every { start: WARMUP, gap: 7 },
    ] {
        assert!((0..WARMUP).all(|t| set.contains(t, rate(Decay::Cosine).at(t))), "{set:?}");
        assert!((WARMUP..STEPS).any(|t| !set.contains(t, rate(Decay::Cosine).at(t))), "{set:?}");
    }
}

#[test]
fn the_gap_doubles_as_the_rate_halves() {
    for halvings in 0..5 {
        let lr = PEAK / 2f64.powi(halvings) * 10.0 / 9.0; // a little before the half
        assert_eq!(gap(&follow_lr(16), 0.999 * lr), 1 << halvings);
        assert_eq!(gap(&follow_lr(16), 1.001 * lr), if halvings == 0 { 1 } else { 1 << (halvings - 1) });
    }
    assert_eq!(gap(&follow_lr(16), 0.0), 16);
    assert_eq!(gap(&follow_lr(16), 2.0 * PEAK), 1);
}

/// As with a learning rate that drops to its half.
#[test]
fn the_gap_doubles_exactly_when_the_rate_is_half() {
    for peak in [1e-3, 4e-4, 3e-4, 1e-4, 0.01, 0.1] {
        let set = SyncSteps::FollowLr { peak, start: WARMUP, longest: 16 };
        for halvings in 0..5 {
            assert_eq!(gap(&set, peak / 2f64.powi(halvings)), 1 << halvings, "peak {peak}, halved {halvings} times");
        }
    }
}

#[test]
fn no_wait_is_longer_than_a_longest_gap_that_is_no_power_of_two() {
    for longest in [3, 10, 12, 20] {
        for every in 1..100 {
            let doubling = SyncSteps::Doubling { start: WARMUP, every, longest };
            let wait = longest_wait(&syncs(&doubling, &rate(Decay::Constant)));
            assert!(wait <= longest, "{wait} > {longest}, doubling every {every}");
        }
    }
}

// ---- both together -----------------------------------------------------------------------------

fn calendars() -> Vec<Arc<dyn Algorithm>> {
    let variances = [
        ZeroOneAdam { kappa: Some(16), freeze: Some(Freeze::Never), ..ZeroOneAdam::default() },
        ZeroOneAdam {
            kappa: Some(3),
            variance_gap: Some(2),
            variance_longest: Some(8),
            freeze: Some(Freeze::Step(900)),
            ..ZeroOneAdam::default()
        },
        ZeroOneAdam { variance_steps: Some(vec![0, 5, 6, 17, 2000]), ..ZeroOneAdam::default() },
    ];
    let syncs = |own: &ZeroOneAdam| {
        [
            ZeroOneAdam { sync: Some(Sync::FollowLr), sync_longest: Some(16), ..own.clone() },
            ZeroOneAdam { sync: Some(Sync::Every), sync_start: Some(0), sync_every: Some(50), ..own.clone() },
            ZeroOneAdam { sync: Some(Sync::Custom), sync_steps: Some(vec![3, 99]), ..own.clone() },
        ]
    };
    let decided =
        |own| Config { learning_rate: Some(rate(Decay::Cosine)), ..Config::of(own) }.decide().unwrap().algorithm;
    variances.iter().flat_map(syncs).map(decided).collect()
}

/// So that v never changes while workers are apart.
#[test]
fn a_step_that_updates_the_variance_finds_all_workers_in_sync() {
    for calendar in calendars() {
        let rounds: Vec<Round> = (0..STEPS).map(|t| calendar.round(t, rate(Decay::Cosine).at(t))).collect();
        let exact: Vec<usize> = (1..rounds.len()).filter(|&t| rounds[t] == Round::Exact).collect();
        assert!(exact.len() > 3 && exact.iter().all(|&t| rounds[t - 1] != Round::Skipped), "{calendar:?}");
    }
}

#[test]
fn a_schedule_says_the_same_in_any_order() {
    let mut shuffled: Vec<u64> = (0..STEPS).collect();
    let mut random = Random::new(1);
    (1..shuffled.len()).for_each(|i| shuffled.swap(i, random.below(i + 1)));
    for calendar in calendars() {
        let round = |t: u64| calendar.round(t, rate(Decay::Cosine).at(t));
        let forward: Vec<Round> = (0..STEPS).map(round).collect();
        assert!(shuffled.iter().all(|&t| round(t) == forward[t as usize]), "{calendar:?}");
    }
}

// ---- the learning rate -------------------------------------------------------------------------

#[test]
fn the_learning_rate_starts_and_ends_where_it_should() {
    let at = |decay: Decay, t: u64| LearningRate { floor: 0.25, ..rate(decay) }.at(t) / PEAK as f32;
    for decay in DECAYS {
        let close =
            |t: u64, want: f32| assert!((at(decay, t) - want).abs() < 1e-6, "{decay:?} at {t}: {}", at(decay, t));
        close(0, 1.0 / WARMUP as f32);
        close(WARMUP / 2 - 1, 0.5);
        close(WARMUP - 1, 1.0);
        let (half_way, end) = match decay {
            Decay::Constant => (1.0, 1.0),
            Decay::Linear | Decay::Cosine => (0.625, 0.25),
            Decay::Step => (0.5f32.powi(3), 0.5f32.powi(6)), // 1350 and 2700 steps, 400 a drop
            _ => ((300f32 / 1651.0).sqrt(), (300f32 / 3001.0).sqrt()),
        };
        close((WARMUP + STEPS) / 2, half_way);
        close(STEPS, end);
    }
    let past_the_end = |decay| at(decay, 10 * STEPS);
    assert_eq!([past_the_end(Decay::Linear), past_the_end(Decay::Cosine)], [0.25, 0.25]);
}

#[test]
fn no_decay_rises() {
    for decay in DECAYS {
        let schedule = rate(decay);
        assert!((WARMUP - 1..2 * STEPS).all(|t| schedule.at(t + 1) <= schedule.at(t)), "{decay:?}");
    }
}

#[test]
fn without_a_warm_up_the_first_step_has_the_peak() {
    for decay in DECAYS {
        assert_eq!(LearningRate { warmup: 0, ..rate(decay) }.at(0), PEAK as f32, "{decay:?}");
    }
}
