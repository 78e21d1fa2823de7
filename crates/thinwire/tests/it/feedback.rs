//! κ: how much of what a code loses is remembered, and how.
//!
//! ```text
//! z = x + e;   q = C(z);   e ← (1−κ)·e + κ·(z − q)         on both ways
//! out = mean x + (mean e/κ_up + E/κ_down) before − the same after
//! ```
//!
//! So an error is owed whatever κ is: the debt is e/κ. And LoCo, which is Adam on such a mean, is held to numbers that a program of
//! another author made in f64.

use crate::common::golden::{X, gradient};
use crate::common::means::{After, input, widen};
use crate::common::oracle::{CoarseMean, Oracle, Quantizer, Setup, mean_rows, zip};
use crate::common::setting::Setting;
use crate::common::{engine, oracle};
use thinwire::options::Precision;
use thinwire::{CodecName, Config, Name, Plan, Round, Worker, threads};

const COARSE: [Round; 6] = [Round::Coarse; 6];

fn setting(workers: usize, (up, down): (CodecName, CodecName), feedback: [f32; 2]) -> Setting {
    Setting { up, down, feedback, ..Setting::new(workers, 37, 8) }
}

/// mean e/κ_up + E/κ_down.
fn debt(afters: &[&After], [up, down]: [f32; 2]) -> Vec<f64> {
    let e = afters.iter().map(|after| widen(&after.e)).collect::<Vec<_>>();
    let owner_e = afters.iter().flat_map(|after| widen(&after.owner_e)).collect::<Vec<_>>();
    zip(&mean_rows(&e), &owner_e, |e, owner_e| e / f64::from(up) + owner_e / f64::from(down))
}

#[test]
fn an_error_is_owed_whatever_kappa_is() {
    for codecs in engine::CODECS {
        for (workers, feedback) in [(1, [0.2, 1.0]), (2, [0.05, 0.3]), (3, [1.0, 0.5]), (4, [0.9, 0.1]), (5, [0.5; 2])]
        {
            let runs = setting(workers, codecs, feedback).run(&COARSE);
            let mut before = vec![0.0; 37];
            for t in 0..COARSE.len() {
                let now = runs.iter().map(|run| &run[t]).collect::<Vec<_>>();
                let x = (0..workers).map(|worker| widen(&input(37, worker, t))).collect::<Vec<_>>();
                let after = debt(&now, feedback);
                let want =
                    zip(&mean_rows(&x), &zip(&before, &after, |before, after| before - after), |x, paid| x + paid);
                let off = engine::apart(&widen(&now[0].out), &want);
                assert!(off < 2e-5, "{codecs:?}, κ = {feedback:?}, {workers} workers: off by {off:e}");
                before = after;
            }
        }
    }
}

/// κ = 0 is neither kept, nor planned, nor saved; and a round knows nothing of those before it.
#[test]
fn without_feedback_nothing_is_kept() {
    let codecs = (CodecName::Sign, CodecName::Uniform(4));
    for (feedback, workers) in [([0.0, 0.0], 3), ([0.0, 1.0], 2), ([1.0, 0.0], 4)] {
        for after in setting(workers, codecs, feedback).run(&COARSE).concat() {
            assert_eq!((after.e.is_empty(), after.owner_e.is_empty()), (feedback[0] == 0.0, feedback[1] == 0.0));
        }
    }
    let memory = |options: &str| {
        let config = Config::from_toml(&format!("name = 'efficient-adam'\n{options}")).unwrap();
        Plan::new(&config, 10_240, 4, 1).unwrap().memory(0).beyond_adam
    };
    assert_eq!(memory("feedback = 0"), 0);
    assert_eq!(memory("feedback_down = 0"), 4 * 10_240);
    assert_eq!(memory("feedback_up = 0"), 10_240);
    assert_eq!(memory("residual = 'i8'"), 10_240 + 80 + 2_560 + 20); // a scale for each of 20 blocks, and of the 5 it owns
    let setting = setting(3, codecs, [0.0; 2]);
    let twice = threads::run(3, |end| {
        let mut exchange = setting.exchange(end);
        let mut of = |t| {
            let mut x = input(37, 0, 0);
            exchange.mean_in_place(Round::Coarse, t, true, &mut x).map(|_| x)
        };
        (of(0).unwrap(), of(1).unwrap())
    });
    assert!(twice.iter().all(|(first, second)| first == second));
}

/// What eight bits keep of a residual is what `uniform8` makes of it, in the blocks of the code, to the bit.
#[test]
fn eight_bits_keep_what_uniform8_says() {
    let rounded = |values: &[f32]| {
        let codec = CodecName::Uniform(8).codec();
        let mut out = Vec::new();
        for block in values.chunks(8) {
            let (mut bytes, mut back) = (vec![0; codec.encoded_len(block.len())], vec![0.0; block.len()]);
            codec.encode(block, &mut bytes).unwrap();
            codec.decode(&bytes, &mut back).unwrap();
            out.extend(back);
        }
        out
    };
    for codecs in engine::CODECS {
        for (workers, feedback) in [(1, [1.0; 2]), (3, [0.2, 1.0]), (5, [1.0, 0.5])] {
            let wide = setting(workers, codecs, feedback);
            let small = Setting { residue: Precision::I8, ..wide };
            let (wide, small) = (wide.run(&[Round::Coarse]), small.run(&[Round::Coarse]));
            for (wide, small) in wide.concat().iter().zip(small.concat()) {
                assert_eq!((&wide.out, rounded(&wide.e)), (&small.out, small.e), "{codecs:?}");
                assert_eq!(rounded(&wide.owner_e), small.owner_e, "{codecs:?}");
            }
        }
    }
}

// ---- LoCo's golden numbers -----------------------------------------------------------------------

/// Of LoCo with κ = 0.2, uniform4 up, f32 down, γ = 0.1, after 4 steps: x, e of worker 1, e of worker 2.
const ROUNDED: [[f64; 4]; 3] = [
    [0.413218015937, -1.00552235516, -0.192191123539, 0.103910348522],
    [-0.0500233007411, 0.0, 0.0378128887492, -0.0319046248821],
    [0.0169705092594, -0.00354607656166, 0.0, 0.0321679802379],
];
/// The same with a residual that is not rounded: x, e of worker 1.
const UNROUNDED: [[f64; 4]; 2] = [
    [0.413218015937, -1.00552235516, -0.192191123539, 0.103910348522],
    [-0.0495997759041, 0.0, 0.0378582895335, -0.0320402956847],
];

#[test]
fn the_oracle_has_locos_golden_numbers() {
    for (kept_as, golden) in [(Quantizer::Uniform(8), &ROUNDED[..]), (Quantizer::F32, &UNROUNDED[..])] {
        let setup = Setup { up: Quantizer::Uniform(4), ..Setup::plain(oracle::Algorithm::CodedAdam, 2, 4) };
        let feedback = (0.2, 0.0);
        let mut oracle = Oracle::with_coarse(
            setup,
            &X,
            CoarseMean { feedback, kept_as, ..CoarseMean::new(2, 4, 4, Quantizer::Uniform(4), Quantizer::F32) },
        );
        for _ in 0..4 {
            let grads = [0, 1].map(|i| gradient(i, oracle.params(i)));
            oracle.step(0.1, &grads);
        }
        for (got, golden) in [oracle.params(0), oracle.e(0), oracle.e(1)].iter().zip(golden) {
            assert!(engine::apart(got, golden) < 1e-11, "{got:?} {golden:?}");
        }
    }
}

#[test]
fn the_engine_has_locos_golden_numbers() {
    for (residual, golden) in [("i8", &ROUNDED[..]), ("f32", &UNROUNDED[..])] {
        let options = format!(
            "name = 'adam'\npreset = 'loco'\ncodec_down = 'f32'\nresidual = '{residual}'\nblock = 4\nweight_decay = 0"
        );
        let config = Config::from_toml(&options).unwrap();
        let ends = threads::run(2, |end| {
            let (rank, mut x) = (thinwire::Collective::rank(&end), X.map(|x| x as f32));
            let mut worker = Worker::new(&config, &x, Box::new(end)).unwrap();
            for _ in 0..4 {
                let g = gradient(rank, &widen(&x)).iter().map(|g| *g as f32).collect::<Vec<_>>();
                worker.step(&mut x, &g, 0.1).unwrap();
            }
            let e =
                worker.state().unwrap().into_iter().find(|entry| entry.name == "up_residue").map(|entry| {
                    match entry.slot {
                        thinwire::inside::state::Slot::Floats(e) => widen(e),
                        _ => unreachable!("a vector"),
                    }
                });
            (widen(&x), e.unwrap())
        });
        let got = [&ends[0].0, &ends[0].1, &ends[1].1];
        for (got, golden) in got.iter().zip(golden) {
            assert!(engine::apart(got, golden) < 1e-5, "{residual}: {got:?} {golden:?}");
        }
        assert_eq!(ends[0].0, ends[1].0);
    }
    assert_eq!(Config::new(Name::ADAM).resolved().unwrap().feedback_up, None);
}
