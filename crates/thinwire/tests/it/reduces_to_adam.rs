//! What each optimizer is when nothing is lost on the way: Adam, with a variance that may be stale.
//!
//! | with | it is |
//! |---|---|
//! | every step in T_v | 0/1 Adam is Adam, to the bit |
//! | `f32`, a sync every step | 0/1 Adam is Adam with the variance of T_v |
//! | `f32` | 1-bit Adam is Adam with a frozen variance |
//! | `f32` | Efficient-Adam is the mean of the workers' own Adams, not Adam on their mean gradient |
//! | one worker, `f32` | all of them are Adam, but 0/1 Adam between syncs: see `a_long_interval_…` |
//! | the same data on all workers | they are one worker: to the bit for 2 and 4, for (g+g)/2 = g; to rounding for 3 and 5 |
//!
//! The Adam they are held to is [`textbook`], in f64; the tolerance is [`ROUNDING`].

use crate::common::engine::{CODECS, Run, Snapshot, apart, noisy, start, widen};
use crate::common::oracle::{mean_rows, zip};
use thinwire::options::Group;
use thinwire::options::Topology;
use thinwire::options::{Sync, Warmup};
use thinwire::{CodecName, Config, Name};
use thinwire::{OneBitAdam, ZeroOneAdam};

const D: usize = 37;
const STEPS: u64 = 60;
const LR: f32 = 0.01;
const DECAY: f64 = 0.1;

/// Parameters are of size 1, where an f32 is off by up to 6e-8, for 60 steps.
const ROUNDING: f64 = 5e-6;

fn config(name: Name) -> Config {
    Config { weight_decay: Some(DECAY), block: Some(8), ..Config::new(name) }
}

fn uncoded(name: Name) -> Config {
    let exact_codec = (name != Name::EFFICIENT_ADAM).then_some(CodecName::F32);
    Config { codec: Some(CodecName::F32), exact_codec, ..config(name) }
}

fn sync_every(gap: u64) -> Config {
    let (sync, sync_every) = (Some(Sync::Every), Some(gap));
    uncoded(Name::ZERO_ONE_ADAM).with(ZeroOneAdam { sync, sync_every, kappa: Some(2), ..ZeroOneAdam::default() })
}

fn one_bit(warmup: u64) -> Config {
    let warmup = Some(Warmup::Steps(warmup));
    uncoded(Name::ONE_BIT_ADAM).with(OneBitAdam { warmup, ..OneBitAdam::default() })
}

fn run(config: Config, workers: usize) -> Run {
    Run {
        config,
        workers,
        start: start(D),
        rates: vec![LR; STEPS as usize],
        syncs: Vec::new(),
        gradient: Box::new(|worker, t, _| noisy(0, worker, t, D)),
    }
}

/// The engine's state after every step, on worker 0.
fn history(config: Config, workers: usize) -> Vec<Snapshot> {
    run(config, workers).histories().swap_remove(0)
}

/// One step of [`textbook`].
struct Moment {
    x: Vec<f64>,
    m: Vec<f64>,
}

/// Adam as the textbooks have it, on the mean gradient of so many workers; v is renewed on some steps only.
fn textbook(workers: usize, decay: f64, renews: impl Fn(u64) -> bool) -> Vec<Moment> {
    let (mut x, mut m, mut v, mut j) = (widen(&start(D)), vec![0.0; D], vec![0.0; D], 0);
    let step = |t: u64| {
        let gradients: Vec<_> = (0..workers).map(|i| widen(&noisy(0, i, t, D))).collect();
        let g = mean_rows(&gradients);
        m = zip(&m, &g, |m, g| 0.9 * m + 0.1 * g);
        if renews(t) {
            v = zip(&v, &g, |v, g| 0.999 * v + 0.001 * g * g);
            j += 1;
        }
        let rate = f64::from(LR) / (1.0 - 0.9f64.powi(t as i32 + 1));
        let moved = zip(&m, &v, |m, v| rate * m / ((v / (1.0 - 0.999f64.powi(j))).sqrt() + 1e-8));
        x = zip(&x, &moved, |x, moved| x * (1.0 - f64::from(LR) * decay) - moved);
        Moment { x: x.clone(), m: m.clone() }
    };
    (0..STEPS).map(step).collect()
}

fn assert_textbook(what: &str, got: &[Snapshot], want: &[Moment]) {
    for (t, (got, want)) in got.iter().zip(want).enumerate() {
        let off = apart(&got["x"], &want.x);
        assert!(off < ROUNDING, "{what}: off by {off:e} after step {t}");
    }
}

/// T_v of [`sync_every`]: κ = 2, so gaps of 1, 1, 2, 2, 4, 4, …
fn in_t_v(t: u64) -> bool {
    [0, 1, 2, 4, 6, 10, 14, 22, 30, 46].contains(&t)
}

#[test]
fn uncoded_they_are_adam_with_some_variance() {
    for workers in 1..=5 {
        let check = |what: &str, config: Config, renews: fn(u64) -> bool| {
            let what = format!("{what}, {workers} workers");
            assert_textbook(&what, &history(config, workers), &textbook(workers, DECAY, renews));
        };
        check("Adam", config(Name::ADAM), |_| true);
        check("1-bit Adam", one_bit(20), |t| t < 20);
        check("0/1 Adam", sync_every(1), in_t_v);
    }
}

#[test]
fn efficient_adam_alone_is_adam() {
    assert_textbook("Efficient-Adam", &history(uncoded(Name::EFFICIENT_ADAM), 1), &textbook(1, DECAY, |_| true));
}

/// Groups, decay, the exact mean in halves: whatever Adam does, this does.
#[test]
fn zero_one_adam_with_every_step_exact_is_adam_to_the_bit() {
    let group = |length, lr_scale, weight_decay| Group { length, lr_scale, weight_decay };
    let groups = vec![group(13, 1.0, None), group(20, 0.3, Some(0.5)), group(4, 0.0, None)];
    for workers in 1..=5 {
        for exact_codec in [CodecName::F32, CodecName::Bf16] {
            let same = |name| Config { exact_codec: Some(exact_codec), groups: groups.clone(), ..config(name) };
            let adam = run(same(Name::ADAM), workers).ends();
            let dense = ZeroOneAdam { kappa: Some(STEPS), ..ZeroOneAdam::default() };
            let zero_one = run(same(Name::ZERO_ONE_ADAM).with(dense), workers).ends();
            assert_eq!(zero_one, adam);
        }
    }
}

/// One worker, nothing coded, no decay: x is Adam's up to the first sync and at it, but there m becomes the mean of the
/// interval's m, and the next interval starts from that. Only an interval of one step changes nothing. (With decay the sync
/// itself moves x, by about γλ·ū/P: the anchor decays, the progress since does not.)
#[test]
fn a_long_interval_leaves_the_mean_of_its_momenta() {
    let (sync, sync_every) = (Some(Sync::Every), Some(4));
    let own = ZeroOneAdam { sync, sync_every, variance_steps: Some(vec![0]), ..ZeroOneAdam::default() };
    let once = Config { weight_decay: Some(0.0), ..uncoded(Name::ZERO_ONE_ADAM).with(own) };
    let (got, want) = (history(once, 1), textbook(1, 0.0, |t| t == 0));
    assert_textbook("before the second interval", &got[..4], &want[..4]);

    let weights = [1, 2, 3].map(|t| 1.0 / (1.0 - 0.9f64.powi(t + 1))); // γ̂/γ
    let weighted = weights.iter().zip(&want[1..4]).map(|(weight, at)| at.m.iter().map(|m| weight * m).collect());
    let mean_weight = weights.iter().sum::<f64>() / 3.0;
    let mean: Vec<_> = mean_rows(&weighted.collect::<Vec<_>>()).iter().map(|m| m / mean_weight).collect(); // ū/Γ
    assert!(apart(&got[3]["m"], &mean) < ROUNDING);
    assert!(apart(&got[4]["x"], &want[4].x) > 0.01 * f64::from(LR), "then it is no longer Adam");
}

#[test]
fn efficient_adam_is_the_mean_of_the_workers_own_adams() {
    let undecayed = |name| Config { weight_decay: Some(0.0), ..config(name) };
    let efficient = || Config { codec: Some(CodecName::F32), ..undecayed(Name::EFFICIENT_ADAM) };
    for workers in 2..=5 {
        let alone =
            |i: usize| Run { gradient: Box::new(move |_, t, _| noisy(0, i, t, D)), ..run(undecayed(Name::ADAM), 1) };
        let ends: Vec<_> = (0..workers).map(|i| widen(&alone(i).ends()[0])).collect();
        let together = widen(&run(efficient(), workers).ends()[0]);
        let off = apart(&together, &mean_rows(&ends));
        assert!(off < ROUNDING, "{workers} workers: off by {off:e}");
        let adam = widen(&run(undecayed(Name::ADAM), workers).ends()[0]);
        assert!(apart(&together, &adam) > f64::from(LR), "{workers} workers: no different from Adam on the mean");
    }
}

/// Every optimizer that a world of equals could disturb.
fn all() -> Vec<Config> {
    vec![config(Name::ADAM), one_bit(20), sync_every(1), sync_every(4), uncoded(Name::EFFICIENT_ADAM)]
}

fn with_the_same_data(config: &Config, workers: usize) -> Vec<f32> {
    let run = Run { gradient: Box::new(|_, t, _| noisy(0, 0, t, D)), ..run(config.clone(), workers) };
    run.ends().swap_remove(workers - 1)
}

#[test]
fn two_or_four_equals_are_one_to_the_bit() {
    for config in all() {
        for (up, down) in CODECS {
            let coded = |codec| if config.name == Name::ADAM { None } else { Some(codec) };
            let config = Config { codec: None, codec_up: coded(up), codec_down: coded(down), ..config.clone() };
            let one = with_the_same_data(&config, 1);
            for (workers, topology) in [(2, Topology::Sharded), (4, Topology::Sharded), (4, Topology::Central)] {
                let config = Config { topology: Some(topology), ..config.clone() };
                assert_eq!(with_the_same_data(&config, workers), one, "{}, {up}, {down}, {workers}", config.name);
            }
        }
    }
}

#[test]
fn three_or_five_equals_are_one_to_rounding() {
    for config in all() {
        let one = widen(&with_the_same_data(&config, 1));
        for workers in [3, 5] {
            let off = apart(&widen(&with_the_same_data(&config, workers)), &one);
            assert!(off < ROUNDING, "{}, {workers} workers: off by {off:e}", config.name);
        }
    }
}
