//! Workers that count by their weights: a mean is Σw·x/Σw, whatever the codec, and however the weights change.
//!
//! A worker sends w·x, and its residual is in the same units, so nothing is lost when the next w is another:
//!
//! ```text
//! Σ w·x + (Σ e + Σw·E) before = Σw·out + (Σ e + Σw·E) after
//! ```

use crate::common::engine::{CODECS, apart};
use crate::common::means::{After, input, widen};
use crate::common::oracle::mean_rows;
use crate::common::runs::{self, PLACES, Replica, config};
use crate::common::setting::Setting;
use thinwire::{Collective, Error, Mean, MeanOptions, Round, Solo, Worker, threads};

const D: usize = 37;

/// Whole, of any size, sometimes none.
fn weight(worker: usize, t: usize) -> u32 {
    [3, 1, 4096, 0, 7, 1_000_000][(2 * worker + t) % 6]
}

/// Σ w·x / Σw.
fn weighted_mean(workers: usize, t: usize) -> Vec<f64> {
    let all = (0..workers).map(|worker| f64::from(weight(worker, t))).sum::<f64>();
    let part = |worker| {
        let w = f64::from(weight(worker, t)) * workers as f64 / all;
        widen(&input(D, worker, t)).iter().map(|x| w * x).collect::<Vec<_>>()
    };
    mean_rows(&(0..workers).map(part).collect::<Vec<_>>())
}

#[test]
fn nothing_is_lost_when_weights_change() {
    for codecs in CODECS {
        for workers in 1..=5 {
            let setting = Setting { up: codecs.0, down: codecs.1, ..Setting::new(workers, D, 8) };
            let runs = threads::run(workers, |end| {
                let rank = end.rank();
                let mut exchange = setting.exchange(end);
                exchange.weighted = true;
                let mut seen = Vec::new();
                for t in 0..8 {
                    let mut x = input(D, rank, t);
                    exchange.weighted_mean_in_place(Round::Coarse, t as u64, weight(rank, t), &mut x).unwrap();
                    seen.push(After { out: x, ..After::of(&mut exchange) });
                }
                seen
            });
            let mut before = (vec![0.0; D], vec![0.0; D]);
            for t in 0..8 {
                let all = (0..workers).map(|worker| f64::from(weight(worker, t))).sum::<f64>();
                if all == 0.0 {
                    assert!(runs[0][t].out == input(D, 0, t), "nobody took part, so nothing is done");
                    continue;
                }
                let e = mean_rows(&runs.iter().map(|run| widen(&run[t].e)).collect::<Vec<_>>());
                let e = e.iter().map(|e| e * workers as f64).collect::<Vec<_>>();
                let owner_e = runs.iter().flat_map(|run| widen(&run[t].owner_e)).collect::<Vec<_>>();
                let paid = |k: usize| (before.0[k] - e[k]) / all + before.1[k] - owner_e[k];
                let want = weighted_mean(workers, t);
                let want = (0..D).map(|k| want[k] + paid(k)).collect::<Vec<_>>();
                // A residual of a heavy round is large beside the mean of a light one, and as exact as f32 is.
                let size = |values: &[f64]| values.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
                let scale = 1.0 + size(&before.0).max(size(&e)) / all + size(&before.1).max(size(&owner_e));
                let off = apart(&widen(&runs[0][t].out), &want);
                assert!(off < 2e-6 * scale, "{codecs:?}, {workers} workers, round {t}: off by {off:e} of {scale:e}");
                before = (e, owner_e);
            }
        }
    }
}

/// With `f32` it is the weighted mean itself, through the public face too.
#[test]
fn a_mean_is_weighted() {
    for (workers, feedback) in [(2, true), (3, false), (5, true)] {
        let options = MeanOptions { weighted: true, feedback, block: 8, ..MeanOptions::of(thinwire::CodecName::F32) };
        let ends = threads::run(workers, |end| {
            let rank = end.rank();
            let mut mean = Mean::new(D, options, end)?;
            let mut seen = Vec::new();
            for t in 0..6 {
                let mut x = input(D, rank, t);
                mean.take_weighted(&mut x, weight(rank, t))?;
                seen.push(x);
            }
            Ok::<_, Error>(seen)
        });
        for end in ends {
            for (t, got) in end.unwrap().iter().enumerate() {
                assert!(apart(&widen(got), &weighted_mean(workers, t)) < 1e-6, "{workers} workers, round {t}");
            }
        }
    }
}

/// The whole batch on one worker, or cut unevenly: the same steps to rounding. On hosts too.
#[test]
fn uneven_batches_are_averaged_as_one() {
    let words = "name = 'adam'; weighted = true; eps = 1e-3";
    let examples = |worker: usize| worker + 1;
    let gradient = |range: std::ops::Range<usize>, t: usize| {
        mean_rows(&range.map(|example| widen(&input(D, example, t))).collect::<Vec<_>>())
    };
    for hosts in [&[0, 0][..], &[0, 1, 2], PLACES[0], PLACES[3]] {
        let workers = hosts.len();
        let firsts = |worker: usize| (0..worker).map(examples).sum::<usize>();
        let train = |range: std::ops::Range<usize>, group: Box<dyn Collective>| {
            let mut x = runs::start(D);
            let weight = range.len() as u32;
            let mut worker = Worker::new(&config(words), &x, group)?;
            worker.set_weight(weight)?;
            for t in 0..10 {
                let g = gradient(range.clone(), t).iter().map(|g| *g as f32).collect::<Vec<_>>();
                worker.step(&mut x, &g, 0.01)?;
            }
            Ok::<_, Error>(widen(&x))
        };
        let whole = train(0..firsts(workers), Box::new(Solo)).unwrap();
        let ends = threads::run_on(hosts, |group| {
            let rank = group.rank();
            train(firsts(rank)..firsts(rank + 1), Box::new(group))
        });
        for end in ends {
            assert!(apart(&end.unwrap(), &whole) < 1e-6, "{hosts:?}");
        }
    }
}

/// Weights of 1 are no weights: the same bits, the same digest.
#[test]
fn weights_of_one_change_no_bit() {
    for words in ["name = 'adam'", "name = 'efficient-adam'; codec = 'sign'", "name = 'one-bit-adam'; warmup = 3"] {
        let ends = |options: &str| {
            let config = config(&format!("{words}{options}"));
            threads::run(3, |group| {
                let (rank, mut x) = (group.rank(), runs::start(D));
                let mut worker = Worker::new(&config, &x, Box::new(group)).unwrap();
                for t in 0..9 {
                    worker.step(&mut x, &input(D, rank, t), 0.01).unwrap();
                }
                let state = worker.state().unwrap();
                runs::Bits::of(&x, &state).without("weight_since_round").without("digest")
            })
        };
        for (plain, weighted) in ends("").iter().zip(ends("; weighted = true")) {
            plain.assert_same(&weighted, words);
        }
    }
}

/// A worker whose step counts for nothing is left out of it, and hears the others.
#[test]
fn a_weight_of_zero_takes_no_part() {
    let config = config("name = 'adam'; weighted = true; weight_decay = 0");
    let ends = threads::run(2, |group| {
        let (rank, mut x) = (group.rank(), vec![1.0; 4]);
        let mut worker = Worker::new(&config, &x, Box::new(group)).unwrap();
        worker.set_weight([5, 0][rank]).unwrap();
        worker.step(&mut x, &[[2.0; 4], [f32::MAX / 1e30; 4]][rank], 0.5).unwrap();
        x
    });
    assert_eq!(ends[0], [0.5; 4]);
    assert_eq!(ends[0], ends[1]);
}

#[test]
fn what_cannot_be_weighed_is_refused() {
    let mut worker = Worker::new(&config("name = 'adam'"), &[0.0], Box::new(Solo)).unwrap();
    let refused = worker.set_weight(2).unwrap_err().to_string();
    assert!(refused.contains("weight = 2") && refused.contains("weighted = true"), "{refused}");
    let config = config("name = 'adam'; weighted = true");
    let ends = threads::run(3, |group| {
        let mut replica = Replica::new(&config, 9, group)?;
        replica.worker.set_weight(u32::MAX / 2)?;
        replica.worker.step(&mut replica.x, &[1.0; 9], 0.1).map(drop)
    });
    let first = ends[0].as_ref().unwrap_err().to_string();
    assert!(first.contains("contributions") && first.contains("4294967295"), "{first}");
    assert!(ends.iter().all(Result::is_err));
}

/// The weights of the steps since the last sync are part of the state: every cut of a run goes on to the same bits.
#[test]
fn an_interval_weighs_what_its_steps_weigh() {
    let config =
        config("name = 'zero-one-adam'; kappa = 1; freeze = 2; sync = 'every'; sync_every = 3; weighted = true");
    let weigh = |worker: &mut Worker, rank: usize| worker.set_weight(1 + rank as u32 * worker.steps() as u32 % 5);
    let ends = threads::run(2, |group| {
        let rank = group.rank();
        let mut replica = Replica::new(&config, D, group)?;
        let mut pending = Vec::new();
        for _ in 0..9 {
            weigh(&mut replica.worker, rank)?;
            replica.worker.step(&mut replica.x, &input(D, rank, 0), 0.01)?;
            pending.push(replica.numbers()["weight_since_round"][0]);
        }
        Ok::<_, Error>(pending)
    });
    let ends = ends.into_iter().map(|end| end.unwrap()).collect::<Vec<_>>();
    assert_eq!(ends[0], [0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0]);
    assert_eq!(ends[1], [0.0, 0.0, 0.0, 4.0, 9.0, 0.0, 2.0, 5.0, 0.0]);
}
