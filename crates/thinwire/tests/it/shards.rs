//! Replicas in shards: 2 replicas of 2 shards, on threads, against 2 workers whose replicas are in one piece.
//!
//! With `codec = "f32"` all that is done to one parameter alone is the same to the bit. Norms and Σv are added up shard by shard, so
//! with `clip` the runs are equal to rounding.

use crate::common::runs::config;
use std::ops::Range;
use std::time::Duration;
use thinwire::threads::{self, Thread};
use thinwire::{Config, Error, Result, Sharded, Worker};

const LEN: usize = 45;
const STEPS: u64 = 30;
const REPLICAS: usize = 2;
/// In halves, and with one shard that has nothing.
const CUTS: [usize; 2] = [20, LEN];

const CASES: [&str; 8] = [
    "name = 'adam'",
    "name = 'one-bit-adam'; warmup = 9; codec = 'f32'",
    "name = 'zero-one-adam'; kappa = 2; sync_every = 3; codec = 'f32'; exact_codec = 'f32'",
    "name = 'efficient-adam'; codec = 'f32'",
    "name = 'local-adam'; sync_every = 3",
    "name = 'local-adam'; sync_every = 4; delay = 2; mix = 0.5",
    "name = 'local-adam'; preset = 'co2'; sync_every = 4",
    "name = 'zero-one-adam'; kappa = 2; freeze = 7; sync_every = 3; delay = 2; codec = 'f32'; exact_codec = 'f32'",
];

/// What replica `worker` finds at parameter k: it depends on nothing else than that parameter.
fn gradient(worker: usize, step: u64, k: usize, x: f32) -> f32 {
    let noise = ((7 * k + 13 * worker) as f32 + 3.0 * step as f32).sin();
    (1.0 + (k % 5) as f32) * (x - (k as f32).cos()) + 0.3 * noise
}

/// Trains the parameters in `range`; `change` may do something to a gradient, or to the rate.
fn train(
    mut worker: Worker,
    range: Range<usize>,
    change: impl Fn(&Worker, &mut [f32], &mut f32),
) -> Result<(Vec<f32>, Worker)> {
    let mut x = vec![0.0; range.len()];
    for step in 0..STEPS {
        let found = range.clone().zip(&x).map(|(k, x)| gradient(worker.rank(), step, k, *x));
        let (mut g, mut lr) = (found.collect::<Vec<_>>(), 0.05);
        change(&worker, &mut g, &mut lr);
        worker.step(&mut x, &g, lr)?;
    }
    worker.sync(&mut x)?;
    Ok((x, worker))
}

/// What a shard ends with.
type End = Result<(Vec<f32>, Worker)>;

type Change<'a> = &'a (dyn Fn(&Worker, &mut [f32], &mut f32) + Sync);

/// The ends of all shards of all replicas: `[replica][shard]`.
fn ends(deadline: Duration) -> Vec<Vec<(Thread, Thread)>> {
    let mut across = (0..2).map(|_| threads::group(REPLICAS, deadline).into_iter()).collect::<Vec<_>>();
    let inside = (0..REPLICAS).map(|_| threads::group(2, deadline));
    inside.map(|shards| across.iter_mut().map(|group| group.next().unwrap()).zip(shards).collect()).collect()
}

/// What every shard of every replica ends with: `[replica][shard]`.
fn in_shards(config: &Config, cut: usize, change: Change<'_>) -> Vec<Vec<End>> {
    std::thread::scope(|scope| {
        let start = |(shard, (across, inside)): (usize, (Thread, Thread))| {
            scope.spawn(move || {
                let range = [0..cut, cut..LEN][shard].clone();
                let group = Sharded::new(Box::new(across), Box::new(inside));
                let worker = Worker::new(config, &vec![0.0; range.len()], Box::new(group))?;
                assert_eq!(worker.shard(), (shard, 2));
                train(worker, range, change)
            })
        };
        let replicas = ends(Duration::from_secs(60)).into_iter();
        let started = replicas.map(|shards| shards.into_iter().enumerate().map(start).collect::<Vec<_>>());
        let started = started.collect::<Vec<_>>();
        started.into_iter().map(|shards| shards.into_iter().map(|shard| shard.join().unwrap()).collect()).collect()
    })
}

fn in_one_piece(config: &Config, change: Change<'_>) -> Vec<(Vec<f32>, Worker)> {
    let work = |group| train(Worker::new(config, &[0.0; LEN], Box::new(group))?, 0..LEN, change);
    threads::run(REPLICAS, work).into_iter().map(|end| end.unwrap()).collect()
}

fn put_together(shards: Vec<End>) -> Vec<f32> {
    shards.into_iter().flat_map(|end| end.unwrap().0).collect()
}

fn nothing(_: &Worker, _: &mut [f32], _: &mut f32) {}

#[test]
fn shards_have_the_bits_of_one_piece() {
    for words in CASES {
        for cut in CUTS {
            let theirs = in_one_piece(&config(words), &nothing);
            for shards in in_shards(&config(words), cut, &nothing) {
                assert_eq!(put_together(shards), theirs[0].0, "{words}, cut at {cut}");
            }
        }
    }
}

#[test]
fn the_norm_is_that_of_all_shards() {
    for words in CASES {
        let clipped = config(&format!("{words}; clip = 0.3"));
        let theirs = in_one_piece(&clipped, &nothing);
        let free = in_one_piece(&config(words), &nothing);
        for shards in in_shards(&clipped, 20, &nothing) {
            let ours = put_together(shards);
            let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart(&ours, &theirs[0].0) < 1e-5, "{words}: {}", apart(&ours, &theirs[0].0));
            assert!(apart(&ours, &free[0].0) > 1e-3, "{words}: it clips");
        }
    }
}

#[test]
fn the_variance_settles_for_all_shards_at_once() {
    let words = config("name = 'one-bit-adam'; warmup = 'auto'; betas = [0.9, 0.8]; codec = 'f32'");
    let theirs = in_one_piece(&words, &nothing);
    let rounds = theirs[0].1.traffic().rounds;
    assert!(rounds.exact > 1 && rounds.coarse > 1, "{rounds:?}");
    for end in in_shards(&words, 20, &nothing).into_iter().flatten() {
        assert_eq!(end.unwrap().1.traffic().rounds, rounds);
    }
}

/// One shard of replica 1 has a bad gradient: the whole replica is left out, as it would be in one piece.
#[test]
fn a_bad_gradient_of_one_shard_leaves_its_replica_out() {
    let in_its_second_shard = |worker: &Worker, g: &mut [f32], _: &mut f32| {
        if worker.rank() == 1 && worker.steps() == 5 && worker.shard().0 == worker.shard().1 - 1 {
            *g.last_mut().unwrap() = f32::NAN;
        }
    };
    for words in CASES {
        let skip = config(&format!("{words}; non_finite = 'skip'"));
        let theirs = in_one_piece(&skip, &in_its_second_shard);
        for (replica, shards) in in_shards(&skip, 20, &in_its_second_shard).into_iter().enumerate() {
            for end in &shards {
                assert_eq!(end.as_ref().unwrap().1.traffic().left_out, replica as u64);
            }
            assert_eq!(put_together(shards), theirs[0].0, "{words}");
        }
        for end in in_shards(&config(words), 20, &in_its_second_shard).into_iter().flatten() {
            let error = end.err().expect("it is an error on all");
            assert!(matches!(error, Error::NotFinite { worker: 1, step: 5 }), "{words}: {error}");
        }
    }
}

#[test]
fn shards_that_disagree_on_the_rate_stop_everyone() {
    let otherwise = |worker: &Worker, _: &mut [f32], lr: &mut f32| {
        if worker.steps() == 4 && worker.shard().0 == 1 {
            *lr = 0.06; // alike across replicas, which therefore notice nothing
        }
    };
    let ends = in_shards(&config(CASES[0]), 20, &otherwise);
    let texts = ends.into_iter().flatten().map(|end| end.err().expect("all stop").to_string()).collect::<Vec<_>>();
    let told = "among the shards of one replica: worker 1 disagrees on lr: 0.06 there, 0.05 on worker 0";
    assert!(texts.iter().any(|text| text == told), "{texts:?}");
}

#[test]
fn shards_that_are_configured_otherwise_do_not_meet() {
    let configs = [config(CASES[0]), config("name = 'adam'; eps = 1e-3")];
    let texts = std::thread::scope(|scope| {
        let start = |(shard, (across, inside)): (usize, (Thread, Thread))| {
            let config = &configs[shard];
            let group = Sharded::new(Box::new(across), Box::new(inside));
            scope.spawn(move || Worker::new(config, &[0.0; 9], Box::new(group)).err().expect("refused").to_string())
        };
        let all = ends(Duration::from_secs(60)).into_iter().flat_map(|shards| shards.into_iter().enumerate());
        let started = all.map(start).collect::<Vec<_>>();
        started.into_iter().map(|shard| shard.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(texts.iter().all(|text| text.contains("among the shards of one replica")), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains("disagrees on eps")), "{texts:?}");
}

/// A shard leaves after some steps: nobody waits for ever, and its own replica says that it was a shard.
#[test]
fn a_shard_that_leaves_is_missed_by_all() {
    let ends = ends(Duration::from_secs(60));
    let config = config(CASES[0]);
    let texts = std::thread::scope(|scope| {
        let start = |(replica, shard, (across, inside)): (usize, usize, (Thread, Thread))| {
            let config = &config;
            scope.spawn(move || {
                let group = Sharded::new(Box::new(across), Box::new(inside));
                let mut worker = Worker::new(config, &[0.0; 9], Box::new(group)).unwrap();
                let mut x = [0.0; 9];
                loop {
                    if (replica, shard) == (1, 1) && worker.steps() == 3 {
                        return String::new();
                    }
                    if let Err(error) = worker.step(&mut x, &[1.0; 9], 0.1) {
                        return error.to_string();
                    }
                }
            })
        };
        let all = ends.into_iter().enumerate().flat_map(|(replica, shards)| {
            shards.into_iter().enumerate().map(move |(shard, ends)| (replica, shard, ends))
        });
        let started = all.map(start).collect::<Vec<_>>();
        started.into_iter().map(|shard| shard.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(texts[2].starts_with("among the shards of one replica: worker 1 left"), "{texts:?}");
    assert_eq!(texts.iter().filter(|text| text.is_empty()).count(), 1, "{texts:?}");
}
