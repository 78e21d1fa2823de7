//! 0/1 Adam with a delay is 0/1 Adam: whenever no mean is on its way, m, u and the anchor are what they are without one, to rounding, for any
//! codec, number of workers, gap and delay. So is x; with weight decay, x as it is defined: a·D − u/P.
//!
//! The gradients are given in advance, different on each worker: an x that is a little behind makes no difference to them.

use crate::common::engine::{Run, Snapshot, apart, largest, noisy, start};
use crate::common::runs::{Replica, config as options, failing, together};
use thinwire::inside::state::Slot;
use thinwire::options::Sync;
use thinwire::options::{Freeze, Group};
use thinwire::{CodecName, Config, Error, Worker, ZeroOneAdam, threads};

const D: usize = 29;
const STEPS: u64 = 60;
const SETTLED: u64 = 6;
const EPS: f64 = 4.0;
/// Of the largest value in a vector.
const ROUNDING: f64 = 2e-5;

const CODECS: [(CodecName, CodecName); 4] = [
    (CodecName::F32, CodecName::F32),
    (CodecName::Sign, CodecName::Sign),
    (CodecName::Uniform(4), CodecName::Sign),
    (CodecName::Power2(3), CodecName::Uniform(4)),
];

/// When workers sync: at the same gap, at gaps that grow, at some steps.
fn calendars() -> Vec<ZeroOneAdam> {
    let base = || ZeroOneAdam { variance_steps: Some((0..SETTLED).collect()), ..ZeroOneAdam::default() };
    let every = |gap| ZeroOneAdam { sync: Some(Sync::Every), sync_every: Some(gap), sync_start: Some(9), ..base() };
    let doubling = ZeroOneAdam {
        sync: Some(Sync::Doubling),
        sync_start: Some(10),
        sync_every: Some(12),
        sync_longest: Some(8),
        variance_steps: None,
        kappa: Some(2),
        freeze: Some(Freeze::Step(SETTLED)),
        ..base()
    };
    let custom =
        ZeroOneAdam { sync: Some(Sync::Custom), sync_steps: Some(vec![7, 8, 9, 20, 26, 41, 43, 57]), ..base() };
    vec![every(1), every(4), every(7), doubling, custom]
}

fn config(own: ZeroOneAdam, (up, down): (CodecName, CodecName), decay: f64) -> Config {
    let (codec_up, codec_down) = (Some(up), Some(down));
    let exact_codec = Some(CodecName::F32);
    // With a large ε no limit of a step is met: what cuts off local steps is not what cuts off their sum.
    let (block, eps, weight_decay) = (Some(8), Some(EPS), Some(decay));
    Config { codec_up, codec_down, exact_codec, block, eps, weight_decay, ..Config::of(own) }
}

fn run(config: Config, workers: usize, seed: u64) -> Run {
    Run {
        config,
        workers,
        start: start(D),
        rates: (0..STEPS).map(|t| 0.2 / (1.0 + t as f32 / 20.0)).collect(),
        syncs: vec![STEPS - 1],
        gradient: Box::new(move |worker, t, _| noisy(seed, worker, t, D)),
    }
}

fn groups() -> Vec<Group> {
    vec![
        Group { length: 9, lr_scale: 1.0, weight_decay: None },
        Group { length: 8, lr_scale: 0.0, weight_decay: Some(0.5) },
        Group { length: 12, lr_scale: 0.5, weight_decay: Some(0.3) },
    ]
}

fn word(state: &Snapshot, name: &str) -> f64 {
    state[name][0]
}

/// P.
fn denominators(state: &Snapshot) -> Vec<f64> {
    let correction = 1.0 - 0.999f64.powf(word(state, "variance_updates"));
    state["v"].iter().map(|v| (v / correction).sqrt() + EPS).collect()
}

/// a·D − u/P, of every coordinate; x itself where all replicas are equal. (One group only.)
fn view(state: &Snapshot) -> Vec<f64> {
    if word(state, "steps_since_sync") == 0.0 {
        return state["x"].clone();
    }
    let (decays, p) = (word(state, "decays_since_sync"), denominators(state));
    (0..D).map(|k| state["anchor"][k] * decays - state["u"][k] / p[k]).collect()
}

fn is_under_way(state: &Snapshot) -> bool {
    state.get("mean_due").is_some_and(|due| due[0] > 0.0)
}

fn assert_near(what: &str, got: &[f64], want: &[f64], size: f64) {
    let off = apart(got, want);
    assert!(off <= ROUNDING * size, "{what} is off by {off:e}, of {size:e}");
}

/// Compares a run with a delay to the one without, moment by moment; how many moments there were to compare.
fn compare(own: &ZeroOneAdam, delay: u64, codecs: (CodecName, CodecName), workers: usize, decay: f64) -> usize {
    let what = format!("{own:?}, delay {delay}, {codecs:?}, {workers} workers, decay {decay}");
    let late = ZeroOneAdam { delay: Some(delay), ..own.clone() };
    let histories = |own: &ZeroOneAdam| run(config(own.clone(), codecs, decay), workers, 3).histories();
    let (want, got) = (histories(own), histories(&late));
    let mut compared = 0;
    for (i, (want, got)) in want.iter().zip(&got).enumerate() {
        for (moment, (want, got)) in want.iter().zip(got).enumerate() {
            if is_under_way(got) {
                continue;
            }
            compared += 1;
            let what = |name: &str| format!("{name} of worker {i} at moment {moment}: {what}");
            let size = |name: &str| largest(want[name].iter().copied()).max(1e-2);
            assert_eq!(got["v"], want["v"], "{}", what("v"));
            assert_near(&what("m"), &got["m"], &want["m"], size("m"));
            let synced = word(want, "steps_since_sync") == 0.0;
            if !(synced || word(got, "steps_since_sync") == 0.0) {
                assert_near(&what("u"), &got["u"], &want["u"], size("u"));
                assert_near(&what("anchor"), &got["anchor"], &want["anchor"], size("x"));
            }
            if decay == 0.0 {
                assert_near(&what("x"), &got["x"], &want["x"], size("x"));
            }
            assert_near(&what("the view"), &view(got), &view(want), size("x"));
        }
    }
    let end =
        |histories: &[Vec<Snapshot>]| histories.iter().map(|h| h.last().unwrap()["x"].clone()).collect::<Vec<_>>();
    assert!(end(&got).iter().all(|x| *x == end(&got)[0]), "{what}: replicas differ at the end");
    compared
}

#[test]
fn late_is_immediate() {
    let mut compared = 0;
    for (own, codecs) in calendars().iter().flat_map(|own| CODECS.map(|codecs| (own, codecs))) {
        for (workers, delay) in [(1, 2), (2, 1), (2, 3), (3, 2), (4, 5), (3, 100)] {
            for decay in [0.0, 0.3] {
                compared += compare(own, delay, codecs, workers, decay);
            }
        }
    }
    assert!(compared > 5000, "{compared}");
}

/// Groups of their own rates, one of which rests: the anchor after every mean.
#[test]
fn late_is_immediate_in_groups() {
    for (own, codecs) in calendars().into_iter().flat_map(|own| CODECS.map(|codecs| (own.clone(), codecs))) {
        let histories = |delay: u64| {
            let own = ZeroOneAdam { delay: Some(delay), ..own.clone() };
            run(Config { groups: groups(), ..config(own, codecs, 0.1) }, 3, 5).histories()
        };
        let (want, got) = (histories(0), histories(2));
        for (want, got) in want.iter().flatten().zip(got.iter().flatten()) {
            let synced = |state: &Snapshot| word(state, "steps_since_sync") == 0.0;
            if is_under_way(got) || synced(want) || synced(got) {
                continue;
            }
            for name in ["m", "u", "anchor"] {
                let what = format!("{name}: {own:?}, {codecs:?}");
                assert_near(&what, &got[name], &want[name], largest(want[name].iter().copied()).max(1e-2));
            }
        }
    }
}

/// A worker without a good gradient takes no part in a step; in a whole interval, or nobody does.
#[test]
fn late_is_immediate_whoever_takes_part() {
    let bad = |worker: usize, t: u64| match t {
        20..28 => worker == 1,
        36..45 => true,
        t => (t as usize + worker).is_multiple_of(5),
    };
    let course = |delay: u64| {
        let own = ZeroOneAdam { delay: Some(delay), ..calendars().swap_remove(1) };
        let lossless = config(own, CODECS[0], 0.0);
        let config = Config { non_finite: Some(thinwire::options::NonFinite::Skip), ..lossless };
        let work = |group| {
            let (mut x, mut seen) = (start(D), Vec::new());
            let mut worker = Worker::new(&config, &x, Box::new(group))?;
            for t in 0..STEPS {
                let mut gradient = noisy(7, worker.rank(), t, D);
                if t > SETTLED && bad(worker.rank(), t) {
                    gradient[3] = f32::NAN;
                }
                worker.step(&mut x, &gradient, 0.2)?;
                let mut vectors = vec![("x", x.clone())];
                let mut due = 0;
                for entry in worker.state()? {
                    match entry.slot {
                        Slot::Floats(values) => vectors.push((entry.name, values.to_vec())),
                        Slot::Word(word) if entry.name == "mean_due" => due = *word,
                        _ => {}
                    }
                }
                seen.push((due, vectors));
            }
            worker.sync(&mut x)?;
            Ok::<_, thinwire::Error>((seen, x))
        };
        threads::run(3, work).into_iter().map(|end| end.unwrap()).collect::<Vec<_>>()
    };
    let (want, got) = (course(0), course(3));
    let find = |of: &[(&'static str, Vec<f32>)], name: &str| {
        of.iter().find(|(other, _)| *other == name).unwrap().1.iter().copied().map(f64::from).collect::<Vec<_>>()
    };
    for (i, ((want, want_end), (got, got_end))) in want.iter().zip(&got).enumerate() {
        for (t, ((_, want), (due, got))) in want.iter().zip(got).enumerate() {
            for name in if *due == 0 { &["m", "x"][..] } else { &[] } {
                let (want, got) = (find(want, name), find(got, name));
                assert_near(
                    &format!("{name} of worker {i} after step {t}"),
                    &got,
                    &want,
                    largest(want.iter().copied()),
                );
            }
        }
        let widened = |x: &[f32]| x.iter().copied().map(f64::from).collect::<Vec<_>>();
        assert_near("x at the end", &widened(got_end), &widened(want_end), 1.0);
    }
}

/// What all have in common is compared in every step, though the workers' own views differ.
#[test]
fn an_anchor_that_differs_is_found() {
    for words in [
        "name = 'zero-one-adam'; variance_steps = [0, 1, 2]; sync = 'every'; sync_every = 4; delay = 3",
        "name = 'local-adam'; sync_every = 4; delay = 2; mix = 0.5",
    ] {
        let errors = failing(2, |group| {
            let mut replica = Replica::new(&options(words), 45, group)?;
            replica.train(13)?;
            let rank = replica.worker.rank();
            for entry in replica.worker.state()? {
                if let (Slot::Floats(values), "anchor", 1) = (entry.slot, entry.name, rank) {
                    values[7] += 1.0;
                }
            }
            replica.train(40)
        });
        let told = |error: &Error| error.to_string().contains("the digest of the shared state");
        assert!(errors.iter().any(told), "{errors:?}");
    }
}

/// The anchor is common at all times, and is where the last mean left it; a look at it takes no round.
#[test]
fn the_anchor_is_common() {
    let config =
        options("name = 'zero-one-adam'; variance_steps = [0, 1, 2]; sync = 'every'; sync_every = 4; delay = 3");
    let seen = together(3, |group| {
        let mut replica = Replica::new(&config, 45, group)?;
        let (mut seen, mut apart) = (Vec::new(), 0);
        for _ in 0..30 {
            replica.step()?;
            let rounds = replica.worker.traffic().rounds;
            let anchor = replica.worker.anchor()?;
            assert_eq!(anchor.is_none(), replica.worker.is_synced());
            apart += usize::from(anchor.as_ref().is_some_and(|anchor| *anchor != replica.x));
            assert_eq!(replica.worker.traffic().rounds, rounds);
            seen.push(anchor.unwrap_or(replica.x.clone()));
        }
        assert!(apart > 20);
        Ok(seen)
    });
    assert!(seen.iter().all(|of_one| *of_one == seen[0]));
}
