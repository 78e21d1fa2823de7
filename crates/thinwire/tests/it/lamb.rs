//! 1-bit LAMB: its oracle against numbers of another program, the engine against its oracle, and what must hold of it whatever the oracle
//! says.

use crate::common::engine::{Run, apart, largest, noisy, start, widen};
use crate::common::golden::{X, assert_digits, gradients};
use crate::common::oracle::Quantizer;
use crate::common::oracle_lamb::{Oracle, Setup};
use crate::common::twin::quantizer;
use thinwire::options::{Group, NonFinite, Warmup};
use thinwire::{CodecName, Config, OneBitAdam, OneBitLamb, Solo, Worker};

// ---- the oracle, and numbers of another program ------------------------------------------------

fn golden(setup: Setup) -> Oracle {
    let mut oracle = Oracle::new(setup, &X);
    for _ in 0..5 {
        let gradients = gradients(&oracle.x);
        oracle.step(0.1, &gradients);
    }
    oracle
}

#[test]
fn the_oracle_has_the_numbers_of_another_program() {
    let plain = Setup { weight_decay: vec![0.01; 4], ..Setup::plain(2, 2, &[2, 2]) };
    let signs = golden(Setup { up: Quantizer::Sign, down: Quantizer::Sign, ..plain.clone() });
    assert_digits(&signs.x, &[0.33623670702, -1.10991303839, 0.117271030788, 0.398547923341]);
    assert_digits(&signs.m, &[0.323836947552, -0.323836947552, -0.27907397328, 0.27907397328]);
    assert_digits(&signs.fresh, &[0.00532904741244, 0.00577880261662, 0.0327480920933, 0.00312784435524]);
    assert_digits(&signs.c, &[0.0567271711089, 0.0189747870221]);
    assert_digits(&signs.f, &[0.922621001728, 0.80512359761]);
    assert_digits(&signs.unit, &[0.930886554777, 1.08019912023]);
    let lossless = golden(plain.clone());
    assert_digits(&lossless.x, &[0.495600678859, -1.08580187012, 0.0939825715803, 0.393502318179]);
    let without = golden(Setup { unit: false, ..plain });
    assert!(apart(&without.x, &lossless.x) < 1e-14, "where nothing is lost, a unit there and back changes nothing");
}

// ---- the engine and its oracle -----------------------------------------------------------------

const STEPS: u64 = 40;
const BLOCK: usize = 8;
const D: usize = 29;
const LR: f32 = 0.05;
/// How near a value may come to where its quantizer jumps.
const CLEAR: f64 = 2e-5;
/// Of the largest value in a vector.
const ROUNDING: f64 = 3e-5;

const LOSSLESS: (CodecName, CodecName) = (CodecName::F32, CodecName::F32);
const SIGNS: (CodecName, CodecName) = (CodecName::Sign, CodecName::Sign);

/// The quantizers that jump seldom: casts jump at every ulp.
const QUANTIZERS: [(CodecName, CodecName); 6] = [
    LOSSLESS,
    SIGNS,
    (CodecName::Uniform(4), CodecName::Uniform(4)),
    (CodecName::Power2(3), CodecName::F32),
    (CodecName::TopK(200_000), CodecName::TopK(200_000)),
    (CodecName::Uniform(4), CodecName::Sign),
];

/// Cut where no block and no tensor ends: one group rests, one decays.
fn groups() -> Vec<Group> {
    vec![
        Group { length: 11, lr_scale: 1.0, weight_decay: Some(0.0) },
        Group { length: 3, lr_scale: 0.0, weight_decay: None },
        Group { length: 15, lr_scale: 0.5, weight_decay: Some(0.3) },
    ]
}

fn lamb(warmup: u64, tensors: Option<&[usize]>) -> OneBitLamb {
    OneBitLamb { warmup: Some(warmup), tensors: tensors.map(<[usize]>::to_vec), ..OneBitLamb::default() }
}

fn coded(own: OneBitLamb, (up, down): (CodecName, CodecName)) -> Config {
    Config { codec_up: Some(up), codec_down: Some(down), block: Some(BLOCK), ..Config::of(own) }
}

/// Sizes from 1/10 to 10. One coordinate of each block never has a gradient, another has its first after the warm-up.
fn gradient(seed: u64, worker: usize, t: u64, d: usize) -> Vec<f32> {
    let first = |k: usize| match k % BLOCK {
        5 => u64::MAX,
        2 => 15,
        _ => 0,
    };
    let sized = |(k, g): (usize, f32)| g * [0.1, 1.0, 10.0][k % 3] * f32::from(t >= first(k));
    noisy(seed, worker, t, d).into_iter().enumerate().map(sized).collect()
}

fn run(config: Config, workers: usize, d: usize, seed: u64) -> Run {
    Run {
        config,
        workers,
        start: start(d),
        rates: vec![LR; STEPS as usize],
        syncs: Vec::new(),
        gradient: Box::new(move |worker, t, x| gradient(seed, worker, t, x.len())),
    }
}

fn setup(run: &Run) -> Setup {
    let (config, d) = (run.config.resolved().unwrap(), run.start.len());
    let own = config.options::<OneBitLamb>().unwrap();
    let whole = vec![Group { length: d, lr_scale: 1.0, weight_decay: None }];
    let listed = if config.groups.is_empty() { &whole } else { &config.groups };
    let each = |of: &dyn Fn(&Group) -> f64| listed.iter().flat_map(|group| vec![of(group); group.length]).collect();
    Setup {
        block: config.block.unwrap(),
        up: quantizer(config.codec_up.unwrap()),
        down: quantizer(config.codec_down.unwrap()),
        eps: config.eps.unwrap(),
        unit: false,
        limited: true,
        coeff_beta: own.coeff_beta.unwrap(),
        coeff: [own.coeff_min.unwrap(), own.coeff_max.unwrap()],
        factor: [own.factor_min.unwrap(), own.factor_max.unwrap()],
        threshold: own.factor_threshold.unwrap(),
        rate: each(&|group| group.lr_scale),
        weight_decay: each(&|group| group.weight_decay.unwrap_or(config.weight_decay.unwrap())),
        ..Setup::plain(run.workers, own.warmup.unwrap(), &own.tensors.unwrap_or(vec![d]))
    }
}

/// What the oracle has after a step, by name.
type Moment = [(&'static str, Vec<f64>); 7];

/// What it has after each step; nothing if it came too near to where a quantizer jumps.
fn expected(run: &Run) -> Option<Vec<Moment>> {
    let mut oracle = Oracle::new(setup(run), &widen(&run.start));
    let mut history = Vec::new();
    for (t, rate) in (0..).zip(&run.rates) {
        let g = (0..run.workers).map(|i| widen(&(run.gradient)(i, t, &run.start))).collect::<Vec<_>>();
        oracle.step(f64::from(*rate), &g);
        // What stands ready until it is needed is the engine's own affair.
        let fresh = if t < setup(run).warmup { &oracle.v } else { &oracle.fresh };
        let named = [
            ("x", &oracle.x),
            ("m", &oracle.m),
            ("v", &oracle.v),
            ("v_fresh", fresh),
            ("lamb_coeffs", &oracle.c),
            ("lamb_factors", &oracle.f),
            ("down_residue", &oracle.coarse.owner_e),
        ];
        history.push(named.map(|(name, values)| (name, values.clone())));
    }
    (oracle.coarse.seen.closest_call > CLEAR).then_some(history)
}

fn assert_twin(what: &str, make: impl Fn(u64) -> Run) {
    let clear = |seed| {
        let run = make(seed);
        expected(&run).map(|expected| (run, expected))
    };
    let (run, expected) = (0..500).find_map(clear).expect("a seed among 500 that keeps clear");
    let histories = run.histories();
    for (moment, expected) in expected.iter().enumerate() {
        for (name, want) in expected {
            // E is cut among the owners, and is in the units of what was coded.
            let cut = *name == "down_residue";
            let got = match cut {
                true => vec![histories.iter().flat_map(|history| history[moment][name].clone()).collect()],
                false => histories.iter().map(|history| history[moment][name].clone()).collect::<Vec<_>>(),
            };
            let scale = if cut { &expected[1].1 } else { want };
            let allowed = ROUNDING * largest(scale.iter().chain(want).copied());
            for got in got {
                let off = apart(&got, want);
                assert!(off <= allowed, "{what}: {name} at moment {moment} is off by {off:e} > {allowed:e}");
            }
        }
    }
}

#[test]
fn the_engine_does_what_its_oracle_does() {
    let tensors: [Option<&[usize]>; 3] = [None, Some(&[2, 13, 1, 13]), Some(&[8, 21])];
    for (n, codecs) in QUANTIZERS.into_iter().enumerate() {
        for workers in 1..=5 {
            let n = n + workers;
            for warmup in [1, 12] {
                let groups = if n % 2 == 0 { groups() } else { Vec::new() };
                let own = OneBitLamb {
                    factor_threshold: Some([0.1, 0.4][n % 2]),
                    coeff_max: Some([10.0, 0.3][n / 2 % 2]),
                    ..lamb(warmup, tensors[n % 3])
                };
                let config = Config { groups, ..coded(own, codecs) };
                let what = format!("{codecs:?}, {workers} workers, {:?}", config.own);
                assert_twin(&what, |seed| run(config.clone(), workers, D, seed));
            }
        }
    }
}

/// Nothing at all, and one value.
#[test]
fn the_smallest_models_do_too() {
    for (codecs, d) in [LOSSLESS, SIGNS].into_iter().flat_map(|codecs| [(codecs, 0), (codecs, 1)]) {
        for workers in [1, 3] {
            let config = coded(lamb(5, None), codecs);
            assert_twin(&format!("{d} values, {workers} workers"), |seed| run(config.clone(), workers, d, seed));
        }
    }
}

// ---- what must hold of it ----------------------------------------------------------------------

/// With c and f held at 1 it is 1-bit Adam without decay or corrections, for as long as neither limit is met: 1-bit Adam's is shorter.
#[test]
fn with_all_scales_at_one_it_is_one_bit_adam() {
    for (codecs, workers) in QUANTIZERS.into_iter().flat_map(|codecs| [1, 4].map(|workers| (codecs, workers))) {
        let ones = OneBitLamb {
            coeff_min: Some(1.0),
            coeff_max: Some(1.0),
            factor_min: Some(1.0),
            factor_max: Some(1.0),
            ..lamb(12, Some(&[4, 25]))
        };
        // So large an ε that no momentum is above √v + ε.
        let eps = Some(1.0);
        let config = |config: Config| Config { weight_decay: Some(0.0), eps, ..config };
        let adam = Config::of(OneBitAdam { warmup: Some(Warmup::Steps(12)), freeze_step: None });
        let adam = Config {
            bias_correction: Some(false),
            ..Config { own: adam.own, name: adam.name, ..coded(ones.clone(), codecs) }
        };
        let small = |config| Run {
            gradient: Box::new(|worker, t, x| gradient(3, worker, t, x.len()).iter().map(|g| 0.04 * g).collect()),
            ..run(config, workers, D, 3)
        };
        let (got, want) = (small(config(coded(ones, codecs))).ends(), small(config(adam)).ends());
        for (got, want) in got.iter().zip(&want) {
            let off = apart(&widen(got), &widen(want));
            assert!(off < 3e-6, "{codecs:?}, {workers} workers: {off:e}");
        }
    }
}

/// Cutting a tensor in two changes its norms; but where a vector is twice the same, both halves and the whole have the same c and f.
#[test]
fn two_equal_tensors_are_as_one() {
    let twice = |mut values: Vec<f32>| {
        let half = values.len() / 2;
        values.copy_within(..half, half);
        values
    };
    let end = |tensors| {
        let run = run(coded(lamb(10, tensors), SIGNS), 3, 48, 2);
        let doubled = move |worker, t, x: &[f32]| twice(gradient(2, worker, t, x.len()));
        Run { start: twice(start(48)), gradient: Box::new(doubled), ..run }.ends().swap_remove(0)
    };
    assert!(apart(&widen(&end(None)), &widen(&end(Some(&[24, 24])))) < 1e-6);
}

/// Powers of two, so that m/√v is the same to the bit but for ε.
#[test]
fn the_size_of_gradients_does_not_count() {
    for codecs in QUANTIZERS {
        let scaled = |by: f32| Run {
            gradient: Box::new(move |worker, t, x| gradient(5, worker, t, x.len()).iter().map(|g| by * g).collect()),
            ..run(Config { eps: Some(1e-30), ..coded(lamb(9, Some(&[20, 9])), codecs) }, 2, D, 5)
        };
        let want = scaled(1.0).ends();
        for by in [1024.0, 1.0 / 64.0] {
            assert_eq!(scaled(by).ends(), want, "{codecs:?}, by {by}");
        }
    }
}

/// The promise of LAMB: in the warm-up a tensor moves by γ·‖x‖, whatever its scale, so scales of tensors keep their ratios.
#[test]
fn a_tensor_moves_in_proportion_to_its_length() {
    let big = 64.0;
    let config = Config { weight_decay: Some(0.0), ..coded(lamb(60, Some(&[10, 10])), SIGNS) };
    let tensors = |values: Vec<f32>| {
        let first = values[..10].to_vec();
        first.iter().copied().chain(first.iter().map(|x| big * x)).collect::<Vec<_>>()
    };
    let own = |worker, t| noisy(1, worker, t, 10);
    let run = Run {
        start: tensors(start(20)),
        gradient: Box::new(move |worker, t, _| [own(worker, t), own(worker, t)].concat()),
        rates: vec![0.01; 60],
        ..run(Config { own: config.own.clone(), ..config }, 2, 20, 1)
    };
    let own = run.config.options::<OneBitLamb>().unwrap();
    let wide = OneBitLamb { coeff_min: Some(1e-6), coeff_max: Some(1e6), ..own };
    let end = Run { config: run.config.clone().with(wide), ..run }.ends().swap_remove(0);
    for k in 0..10 {
        assert!((end[10 + k] - big * end[k]).abs() < 1e-4 * big, "{} and {}", end[k], end[10 + k]);
    }
}

/// One bit says ±s of a parameter that never had a gradient, and √v = 0 there: it may move by γ·c_l·f_l and no more, and it does not
/// make the others' steps shorter.
#[test]
fn what_one_bit_says_of_a_dead_parameter_is_limited() {
    let dead = |k: usize| k % BLOCK == 5;
    for workers in 1..=4 {
        let config = Config { weight_decay: Some(0.0), ..coded(lamb(10, None), SIGNS) };
        let run = Run { rates: vec![LR; 200], ..run(config, workers, D, 9) };
        let history = run.histories().swap_remove(0);
        for pair in history.windows(2) {
            let most = f64::from(LR) * pair[1]["lamb_coeffs"][0] * pair[1]["lamb_factors"][0];
            for k in (0..D).filter(|k| dead(*k)) {
                let moved = (pair[1]["x"][k] - pair[0]["x"][k]).abs();
                assert!(moved <= most * (1.0 + 1e-5) + 1e-7, "{moved} > {most}");
            }
        }
    }
}

/// A tensor without a gradient until after the warm-up had c = 1 so far, and can still learn. (It shares no
/// block with the other tensor, whose gradients are larger.)
#[test]
fn a_tensor_that_begins_late_learns() {
    let config = Config { weight_decay: Some(0.0), ..coded(lamb(10, Some(&[16, 13])), SIGNS) };
    let late = |worker, t, x: &[f32]| {
        let mut g = gradient(4, worker, t, x.len());
        g[16..].iter_mut().zip(&x[16..]).for_each(|(g, x)| *g = if t < 10 { 0.0 } else { *x });
        g
    };
    let run = Run { gradient: Box::new(late), rates: vec![0.01; 600], ..run(config, 2, D, 4) };
    let (end, start) = (run.ends().swap_remove(0), run.start);
    let norm = |x: &[f32]| x[16..].iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!(norm(&end) < 0.05 * norm(&start), "{} of {}", norm(&end), norm(&start));
}

/// When nobody has a gradient nothing moves, exact or coarse.
#[test]
fn a_step_of_nobody_changes_nothing() {
    for empty in [4, 20] {
        let config = Config { non_finite: Some(NonFinite::Skip), ..coded(lamb(10, Some(&[7, 22])), SIGNS) };
        let run = Run {
            gradient: Box::new(move |worker, t, x| match t == empty {
                true => vec![f32::NAN; x.len()],
                false => gradient(1, worker, t, x.len()),
            }),
            ..run(config, 3, D, 1)
        };
        for history in run.histories() {
            let [before, after] = [empty - 1, empty].map(|t| history[t as usize].clone());
            for name in ["x", "m", "v", "v_fresh", "lamb_coeffs", "lamb_factors", "variance_updates"] {
                assert_eq!(before[name], after[name], "{name} at step {empty}");
            }
        }
    }
}

/// More threads than tensors, and more tensors than threads, in tensors of many tiles: no bit changes.
#[test]
fn threads_change_no_bit() {
    const MANY: usize = 300_000;
    let end = |threads| {
        let tensors = [100_001, 7, 150_000, 49_992];
        let config = Config { threads: Some(threads), ..coded(lamb(3, Some(&tensors)), SIGNS) };
        Run { rates: vec![LR; 6], ..run(config, 1, MANY, 8) }.ends()
    };
    assert_eq!(end(1), end(3));
}

#[test]
fn tensors_must_fit_the_model() {
    let config = coded(lamb(3, Some(&[10, 20])), SIGNS);
    let refused = Worker::new(&config, &[0.0; D], Box::new(Solo)).err().unwrap().to_string();
    assert_eq!(refused, "invalid tensors = 30 values in all: must add up to the 29 parameters");
}
