//! The two means, through a bare `Exchange`: every number of workers, every cut of the vector.
//!
//! ```text
//! exact     out = Σ_i x_i / n in rank order, in f32, to the bit
//! coarse    out = what tests/common/oracle.rs says, and owes what it did not say:
//!           out = mean_i x_i + (mean_i e_i + E)_before − (mean_i e_i + E)_after
//! ```
//!
//! All workers get the same bits; topology, buckets and threads change none, and neither does a vector that becomes its mean in
//! place. What goes wrong is in `mean_refused.rs`.

use crate::common::means;
use crate::common::oracle;
use crate::common::setting;

use means::{After, bits, input, mean, mean_of_those_who, widen};
use oracle::{CoarseMean, Quantizer};
use setting::{PATIENCE, Setting};
use thinwire::Round;
use thinwire::inside::codec::{CodecName, MAX_BLOCK};
use thinwire::inside::exchange::layout::Shape;
use thinwire::options::Precision;
use thinwire::threads;
use thinwire::{Collective, Error, Result};

const COARSE: [Round; 3] = [Round::Coarse; 3];

/// Worlds, lengths and blocks: every one with every other.
fn settings() -> impl Iterator<Item = Setting> {
    let lengths = [0, 1, 2, 3, 5, 16, 17, 100, 1000, 4097];
    let settings = move |workers| lengths.map(|values| [1, 4, 512].map(|block| Setting::new(workers, values, block)));
    (1..=17).flat_map(settings).flatten()
}

fn fewer_settings() -> impl Iterator<Item = Setting> {
    settings().filter(|Setting { shape, .. }| [1, 2, 3, 5].contains(&shape.workers) && shape.values <= 1000)
}

fn close(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * (1.0 + b.abs())
}

/// One round of a run, all workers at once.
#[derive(PartialEq)]
struct Outcome {
    /// The bits that everyone got.
    out: Vec<u32>,
    e: Vec<Vec<u32>>,
    /// E of all owners, one after the other: the whole vector's.
    owner_e: Vec<u32>,
}

fn outcomes(setting: &Setting, rounds: &[Round]) -> Vec<Outcome> {
    let run = setting.run(rounds);
    let outcome = |t: usize| {
        let after = || run.iter().map(|worker| &worker[t]);
        let out = bits(&run[0][t].out);
        assert!(after().all(|after| bits(&after.out) == out), "workers differ in round {t} of {setting:?}");
        let owner_e = after().flat_map(|after| bits(&after.owner_e)).collect();
        Outcome { out, e: after().map(|after| bits(&after.e)).collect(), owner_e }
    };
    (0..rounds.len()).map(outcome).collect()
}

fn numbers(bits: &[u32]) -> Vec<f64> {
    bits.iter().map(|bits| f32::from_bits(*bits).into()).collect()
}

/// Rounds of this setting, after checking that `change` changes no bit of them.
fn unchanged_by(change: fn(Setting) -> Setting, setting: Setting, rounds: &[Round]) -> Vec<Outcome> {
    let (before, after) = (outcomes(&setting, rounds), outcomes(&change(setting), rounds));
    assert!(before == after, "{setting:?} differs from {:?}", change(setting));
    before
}

// The exact mean.

/// C(Σ C(x_i) / n), in rank order.
fn exact_mean(codec: CodecName, workers: usize, values: usize) -> Vec<f32> {
    let codec = codec.codec();
    let cast = |x: &[f32]| {
        let (mut bytes, mut out) = (vec![0; codec.encoded_len(x.len())], vec![0.0; x.len()]);
        codec.encode(x, &mut bytes).expect("finite values");
        codec.decode(&bytes, &mut out).expect("what the codec wrote");
        out
    };
    let mut sum = vec![0.0; values];
    for worker in 0..workers {
        sum.iter_mut().zip(cast(&input(values, worker, 0))).for_each(|(sum, x)| *sum += x);
    }
    cast(&sum.iter().map(|sum| sum / workers as f32).collect::<Vec<_>>())
}

fn check_exact(setting: Setting) {
    let want = exact_mean(setting.exact, setting.shape.workers, setting.shape.values);
    let got = unchanged_by(Setting::central, setting, &[Round::Exact]);
    assert!(got[0].out == bits(&want), "{setting:?}");
}

#[test]
fn the_exact_mean_is_the_sum_in_rank_order() {
    settings().for_each(check_exact);
    fewer_settings().for_each(|setting| check_exact(Setting { exact: CodecName::Bf16, ..setting }));
}

// The coarse mean.

/// How far an f32 rounding moves a value, once it is cast.
fn tolerance(codec: Quantizer) -> f64 {
    match codec {
        Quantizer::Bf16 => 2f64.powi(-7),
        Quantizer::F16 => 2f64.powi(-10),
        _ => 1e-5,
    }
}

/// How much of a residue is lost when it is kept.
fn rounding(residue: Precision) -> f64 {
    match residue {
        Precision::F32 => 0.0,
        Precision::Bf16 => 2f64.powi(-8),
        other => panic!("the oracle does not know {other}"),
    }
}

/// All that the residues may weigh in value `k` of the mean.
fn owed(oracle: &CoarseMean, k: usize) -> f64 {
    oracle.e.iter().map(|e| e[k].abs()).sum::<f64>() / oracle.e.len() as f64 + oracle.owner_e[k].abs()
}

/// Every round against the oracle with the engine's own residues before it, so that rounding does not add up.
fn check_coarse(setting: Setting, up: Quantizer, down: Quantizer) {
    let Shape { workers, values, block, .. } = setting.shape;
    let mut oracle = CoarseMean::new(workers, values, block, up, down);
    for (t, got) in unchanged_by(Setting::central, setting, &COARSE).iter().enumerate() {
        let x = (0..workers).map(|worker| widen(&input(values, worker, t))).collect::<Vec<_>>();
        let (before, want, out) = (oracle.residual(), oracle.mean(&x), numbers(&got.out));
        oracle.e = got.e.iter().map(|e| numbers(e)).collect();
        oracle.owner_e = numbers(&got.owner_e);
        let after = oracle.residual();
        for k in 0..values {
            let mean_x = x.iter().map(|x| x[k]).sum::<f64>() / workers as f64;
            assert!(
                close(out[k], want[k], tolerance(up).max(tolerance(down))),
                "{} is not {}: value {k}, round {t}, {setting:?}",
                out[k],
                want[k]
            );
            let lost = 1e-6 + rounding(setting.residue) * owed(&oracle, k);
            assert!(close(out[k] + after[k], mean_x + before[k], lost), "value {k} is lost: round {t}, {setting:?}");
        }
    }
}

#[test]
fn the_coarse_mean_of_signs_is_the_oracles() {
    settings().for_each(|setting| check_coarse(setting, Quantizer::Sign, Quantizer::Sign));
}

#[test]
fn the_coarse_mean_of_any_codecs_is_the_oracles() {
    let codecs = [
        (CodecName::F32, Quantizer::F32),
        (CodecName::Bf16, Quantizer::Bf16),
        (CodecName::F16, Quantizer::F16),
        (CodecName::Sign, Quantizer::Sign),
        (CodecName::Uniform(4), Quantizer::Uniform(4)),
        (CodecName::Power2(3), Quantizer::Power2(3)),
        (CodecName::TopK(100_000), Quantizer::TopK(0.1)),
    ];
    for (i, up) in codecs.into_iter().enumerate() {
        let down = codecs[(i + 1) % codecs.len()];
        for setting in fewer_settings() {
            check_coarse(Setting { up: up.0, down: up.0, ..setting }, up.1, up.1);
            check_coarse(Setting { up: up.0, down: down.0, ..setting }, up.1, down.1);
            check_coarse(Setting { up: up.0, down: down.0, residue: Precision::Bf16, ..setting }, up.1, down.1);
        }
    }
}

/// A residue of 16 bits is the f32 one of the same round, rounded.
#[test]
fn a_residue_of_sixteen_bits_is_rounded_and_nothing_else() {
    let narrow = |x: &u32| half::bf16::from_f32(f32::from_bits(*x)).to_f32();
    for setting in settings() {
        let [wide, half] = [Precision::F32, Precision::Bf16]
            .map(|residue| outcomes(&Setting { residue, ..setting }, &[Round::Coarse]).remove(0));
        assert!(wide.out == half.out, "{setting:?}"); // there was no residue before
        let rounded = |x: &[u32]| bits(&x.iter().map(narrow).collect::<Vec<_>>());
        assert!(half.owner_e == rounded(&wide.owner_e), "{setting:?}");
        assert!(half.e.iter().zip(&wide.e).all(|(half, wide)| *half == rounded(wide)), "{setting:?}");
    }
}

// What changes no bit.

const EXACT_THEN_COARSE: [Round; 3] = [Round::Exact, Round::Coarse, Round::Coarse];

#[test]
fn small_buckets_change_no_bit() {
    let small = |setting| Setting { bucket: 64, ..setting };
    for setting in fewer_settings() {
        for codec in [CodecName::Sign, CodecName::Uniform(3), CodecName::TopK(100_000)] {
            let setting = Setting { up: codec, down: codec, ..setting };
            unchanged_by(small, setting, &EXACT_THEN_COARSE);
            unchanged_by(small, setting.central(), &EXACT_THEN_COARSE);
            unchanged_by(small, Setting { residue: Precision::Bf16, ..setting }, &EXACT_THEN_COARSE);
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let threaded = |setting| Setting { threads: 2, ..setting };
    for block in [7, 512, MAX_BLOCK] {
        let setting = Setting { up: CodecName::Uniform(5), ..Setting::new(2, 300_001, block) };
        unchanged_by(threaded, setting, &EXACT_THEN_COARSE);
        unchanged_by(threaded, setting.central(), &EXACT_THEN_COARSE);
        unchanged_by(
            threaded,
            Setting { up: CodecName::Sign, residue: Precision::Bf16, ..setting },
            &EXACT_THEN_COARSE,
        );
    }
}

// A vector that becomes its mean.

fn check_in_place(setting: Setting, offset: usize) {
    let values = setting.shape.values;
    let got = threads::run_within(setting.shape.workers, PATIENCE, |end| {
        let worker = end.rank();
        After::each_in_place(setting.exchange(end), worker, values, &EXACT_THEN_COARSE, offset)
    });
    let want = setting.run(&EXACT_THEN_COARSE);
    let bits = |after: &After| after.bits_among(setting.shape.workers);
    let same = got.iter().flatten().map(bits).eq(want.iter().flatten().map(bits));
    assert!(same, "{setting:?}, {offset} values from a line");
}

#[test]
fn in_place_is_no_other_mean() {
    for setting in fewer_settings() {
        for codec in [CodecName::Sign, CodecName::Uniform(3), CodecName::F32] {
            let setting = Setting { up: codec, down: codec, ..setting };
            check_in_place(setting, 0);
            check_in_place(Setting { bucket: 64, ..setting }, 0); // one is read while another is overwritten
            check_in_place(setting.central(), 0);
        }
    }
    // So long that it goes past the caches, and no whole number of blocks.
    let long = Setting::new(2, (1 << 20) + 777, 512);
    (0..4).for_each(|offset| check_in_place(long, offset));
    check_in_place(Setting { bucket: 1 << 14, ..long }, 0);
    check_in_place(Setting { threads: 2, ..long }, 0);
}

#[test]
fn in_place_the_mean_is_of_those_who_take_part_too() {
    let run = |takes_part: fn(usize) -> bool| {
        threads::run_within(3, PATIENCE, |end| {
            let setting = Setting { up: CodecName::F32, down: CodecName::F32, ..Setting::new(3, 10, 4) };
            let (worker, mut exchange) = (end.rank(), setting.exchange(end));
            let mut x = vec![worker as f32; 10];
            let taken = exchange.mean_in_place(Round::Coarse, 0, takes_part(worker), &mut x).expect("a mean");
            (taken, x)
        })
    };
    assert_eq!(run(|worker| worker != 1), vec![(2, vec![1.0; 10]); 3]); // (0 + 2) / 2
    assert_eq!(run(|_| false), [0.0, 1.0, 2.0].map(|own| (0, vec![own; 10]))); // as they were
}

#[test]
fn a_vector_of_another_length_is_refused() {
    for workers in [1, 2] {
        let got = threads::run_within(workers, PATIENCE, |end| {
            let mut exchange = Setting::new(workers, 10, 4).exchange(end);
            [9, 11].map(|len| exchange.mean_in_place(Round::Exact, 0, true, &mut vec![0.0; len]))
        });
        let refused = |got: &Result<u32>| matches!(got, Err(Error::Length { expected: 10, .. }));
        assert!(got.iter().flatten().all(refused), "{got:?}");
    }
}

// Workers that are left out.

/// A round of three workers in which only some take part: how many each counts, and what it has.
fn partial(round: Round, takes_part: fn(usize) -> bool) -> Vec<(u32, Vec<f32>)> {
    let setting = Setting { up: CodecName::F32, down: CodecName::F32, ..Setting::new(3, 10, 4) };
    threads::run_within(3, PATIENCE, |end| {
        let (worker, mut exchange, mut out) = (end.rank(), setting.exchange(end), vec![7.0; 10]);
        let x = [worker as f32; 10];
        let taken = mean_of_those_who(takes_part(worker), &mut exchange, round, 0, &x, &mut out);
        (taken.expect("a mean"), out)
    })
}

#[test]
fn the_mean_is_of_those_who_take_part() {
    for round in [Round::Exact, Round::Coarse] {
        let without_one = vec![(2, vec![1.0; 10]); 3]; // (0 + 2) / 2
        assert_eq!(partial(round, |worker| worker != 1), without_one);
        let of_nobody = vec![(0, vec![7.0; 10]); 3]; // nothing is applied
        assert_eq!(partial(round, |_| false), of_nobody);
    }
}

/// The owner adds up four at a time, unless nobody is in one of them.
#[test]
fn the_mean_of_many_is_of_those_who_take_part() {
    for missing in 0..9 {
        let got = threads::run_within(9, PATIENCE, |end| {
            let setting = Setting { up: CodecName::F32, down: CodecName::F32, ..Setting::new(9, 10, 1) };
            let (worker, mut exchange, mut out) = (end.rank(), setting.exchange(end), vec![7.0; 10]);
            let x = [worker as f32; 10];
            let taken = mean_of_those_who(worker != missing, &mut exchange, Round::Coarse, 0, &x, &mut out);
            (taken.expect("a mean"), out)
        });
        assert_eq!(got, vec![(8, vec![(36 - missing) as f32 / 8.0; 10]); 9]);
    }
}

#[test]
fn whoever_is_left_out_keeps_its_residue() {
    let setting = Setting::new(3, 10, 4);
    let kept = threads::run_within(3, PATIENCE, |end| {
        let (worker, mut exchange, mut out) = (end.rank(), setting.exchange(end), vec![0.0; 10]);
        let x = input(10, worker, 0);
        mean(&mut exchange, Round::Coarse, 0, &x).expect("a mean");
        let before = After::of(&mut exchange).e;
        mean_of_those_who(worker != 1, &mut exchange, Round::Coarse, 1, &x, &mut out).expect("a mean");
        before == After::of(&mut exchange).e
    });
    assert_eq!(kept, [false, true, false]);
}
