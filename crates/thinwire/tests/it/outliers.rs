//! One gradient that is far too long does not ruin a run: beyond 2⁶² it counts as infinite, beyond F times the median it is an outlier.
//!
//! `clip`: the step is that of a gradient which was as long as it may be. `skip`: the step is that of a worker whose gradient is not
//! finite and left out. Norms that grow, or stay high, are no outliers for long.

use crate::common::optimizers::cases;
use crate::common::runs::{LEN, Replica, STEPS, changed, config, failing, scratch, together};
use safetensors::SafeTensors;
use serde_json::json;
use thinwire::inside::guard::ENOUGH;
use thinwire::inside::kernel::reduce::LARGEST;
use thinwire::{Config, Error, Result, Solo, Worker};
use xxhash_rust::xxh3::xxh3_64;

/// When worker 1 has an outlier, and by how much it is too long.
const AT: u64 = 25;
const TOO_LONG: f32 = 1e6;

fn times(factor: f32) -> impl Fn(&mut [f32]) {
    move |gradient| gradient.iter_mut().for_each(|g| *g *= factor)
}

/// Trains two workers to the end; worker 1 changes its gradient at step `AT`.
fn ends(config: &Config, change: impl Fn(&mut [f32]) + Sync) -> Vec<Replica> {
    together(2, |group| {
        let mut replica = Replica::new(config, LEN, group)?;
        replica.train(AT)?;
        if replica.worker.rank() == 1 {
            replica.step_with(&change)?;
        }
        replica.train(STEPS)?;
        replica.settle()
    })
}

fn compare(mine: &mut [Replica], theirs: &mut [Replica], context: &str) {
    for (mine, theirs) in mine.iter_mut().zip(theirs) {
        let (mine, theirs) = (mine.bits().without("gradient_norms"), theirs.bits().without("gradient_norms"));
        mine.assert_same(&theirs, context);
    }
}

#[test]
fn what_is_beyond_the_limit_is_an_error_that_names_the_worker_and_the_step() {
    for (words, value) in ["adam", "efficient-adam"].into_iter().flat_map(|name| [(name, 3e32), (name, 2.0 * LARGEST)])
    {
        for rule in ["clip", "off"] {
            let config = config(&format!("name = '{words}'; outlier = '{rule}'"));
            let errors = failing(2, |group| {
                let mut replica = Replica::new(&config, LEN, group)?;
                replica.train(3)?;
                if replica.worker.rank() == 1 {
                    replica.step_with(|gradient| gradient[LEN - 1] = value)?;
                }
                replica.train(STEPS)
            });
            for error in errors {
                assert!(matches!(error, Error::NotFinite { worker: 1, step: 3 }), "{words}, {value:e}: {error}");
            }
        }
    }
}

/// The largest that is accepted, in every place at once, step after step: v stays finite.
#[test]
fn at_the_limit_nothing_overflows() {
    for words in
        ["name = 'adam'; betas = [0.9, 0.99999997]", "name = 'adam'; betas = [0.0, 0.0]", "name = 'efficient-adam'"]
    {
        let config = config(&format!("{words}; outlier = 'off'"));
        let finite = together(2, |group| {
            let mut replica = Replica::new(&config, LEN, group)?;
            for _ in 0..STEPS {
                replica.step_with(|gradient| gradient.fill(LARGEST))?;
            }
            Ok(replica.numbers().values().flatten().all(|value| value.is_finite()))
        });
        assert_eq!(finite, [true, true], "{words}");
    }
}

#[test]
fn an_outlier_is_clipped_to_the_limit_and_counted() {
    for words in &cases() {
        let config = config(words);
        let mut clipped = ends(&config, times(TOO_LONG));
        let counts = clipped.iter().map(|replica| replica.worker.traffic().outliers).collect::<Vec<_>>();
        assert_eq!(counts, [0, 1], "{words}");
        let first = clipped[1].worker.traffic().first_outlier.unwrap();
        assert_eq!(first.step, AT, "{words}");
        assert!(first.norm > first.limit && first.limit > 0.0, "{words}: {first:?}");
        let factor = (first.limit / first.norm) as f32;
        let mut shorter = ends(&changed(&config, "outlier", json!("off")), |gradient| {
            times(TOO_LONG)(gradient);
            times(factor)(gradient);
        });
        assert_eq!(shorter[1].worker.traffic().outliers, 0);
        compare(&mut clipped, &mut shorter, words);
    }
}

#[test]
fn an_outlier_is_left_out_by_skip() {
    for words in &cases() {
        let config = config(&format!("{words}; outlier = 'skip'; non_finite = 'skip'"));
        let mut skipped = ends(&config, times(TOO_LONG));
        assert_eq!(skipped[1].worker.traffic().outliers, 1, "{words}");
        assert_eq!(skipped[1].worker.traffic().left_out, 0, "{words}: it was finite");
        compare(&mut skipped, &mut ends(&config, times(f32::NAN)), words);
    }
}

/// What the guard is for: without it one gradient makes v so large that nothing moves any more.
#[test]
fn without_the_guard_one_gradient_would_ruin_the_variance() {
    for words in ["name = 'adam'", "name = 'efficient-adam'"] {
        let largest = |words: &str| {
            let mut ends = ends(&config(words), times(TOO_LONG));
            ends[1].numbers()["v"].iter().copied().fold(0.0, f64::max)
        };
        let (clipped, off) = (largest(words), largest(&format!("{words}; outlier = 'off'")));
        assert!(off > 1e5 * clipped && clipped < 1e3, "{words}: {off} without, {clipped} with");
    }
}

#[test]
fn norms_that_grow_or_stay_high_are_no_outliers_for_long() {
    let count = |scale: fn(u64) -> f32| {
        let counts = together(2, |group| {
            let mut replica = Replica::new(&config("name = 'adam'"), LEN, group)?;
            for step in 0..60 {
                replica.step_with(times(scale(step)))?;
            }
            Ok(replica.worker.traffic().outliers)
        });
        counts[0]
    };
    assert_eq!(count(|step| 1.2f32.powi(step as i32)), 0, "they grow by a fifth at every step");
    assert_eq!(count(|step| if step < 20 { 1.0 } else { 1e4 }), 17, "then they are the median");
    assert_eq!(count(|step| if step == ENOUGH as u64 - 1 { 1e8 } else { 1.0 }), 0, "there was nothing to judge by");
}

#[test]
fn a_resumed_run_has_the_same_norms() {
    for words in &cases() {
        let (config, folder) = (config(words), scratch());
        let mut whole = ends(&config, times(TOO_LONG));
        together(2, |group| {
            let mut replica = Replica::new(&config, LEN, group)?;
            replica.train(20)?;
            replica.save(folder.path())
        });
        let mut resumed = together(2, |group| {
            let mut replica = Replica::resume(&config, folder.path(), LEN, group)?;
            replica.train(AT)?;
            if replica.worker.rank() == 1 {
                replica.step_with(times(TOO_LONG))?;
            }
            replica.train(STEPS)?;
            replica.settle()
        });
        for (whole, resumed) in whole.iter_mut().zip(&mut resumed) {
            whole.bits().assert_same(&resumed.bits(), words);
        }
    }
}

/// Versions before the guard saved no norms: their checkpoints go on, and a median is found anew.
#[test]
fn a_checkpoint_without_norms_is_read_and_nothing_else_may_be_missing() {
    for (lost, is_read) in [("gradient_norms", true), ("variance_updates", false)] {
        let (config, folder) = (config("name = 'adam'"), scratch());
        let mut replica = Replica::new(&config, LEN, Solo).unwrap();
        replica.train(20).unwrap();
        replica.save(folder.path()).unwrap();
        let path = folder.path().join("manifest.json");
        let mut manifest = serde_json::from_slice::<serde_json::Value>(&std::fs::read(&path).unwrap()).unwrap();
        let file = folder.path().join(manifest["files"][0]["name"].as_str().unwrap());
        let whole = std::fs::read(&file).unwrap();
        let tensors = SafeTensors::deserialize(&whole).unwrap();
        let left = tensors.iter().filter(|(name, _)| *name != lost);
        let older = safetensors::serialize(left, None).unwrap();
        manifest["files"][0]["bytes"] = older.len().into();
        manifest["files"][0]["digest"] = format!("{:016x}", xxh3_64(&older)).into();
        std::fs::write(&file, older).unwrap();
        std::fs::write(&path, manifest.to_string()).unwrap();
        match Replica::resume(&config, folder.path(), LEN, Solo) {
            Ok(mut resumed) => {
                assert!(is_read, "without {lost}");
                replica.train(STEPS).unwrap();
                resumed.train(STEPS).unwrap();
                replica.bits().assert_same(&resumed.bits(), lost);
            }
            Err(error) => assert!(!is_read && error.to_string().contains(lost), "without {lost}: {error}"),
        }
    }
}

/// There is nobody whose run it could ruin, and no message.
#[test]
fn a_worker_that_is_alone_is_not_judged() {
    let mut replica = Replica::new(&config("name = 'adam'"), LEN, Solo).unwrap();
    for step in 0..STEPS {
        replica.step_with(times(if step == AT { TOO_LONG } else { 1.0 })).unwrap();
    }
    assert_eq!(replica.worker.traffic().outliers, 0);
}

/// By a learning rate that no one would choose.
#[test]
fn parameters_that_overflow_are_an_error_that_names_the_worker_and_the_step() {
    let config = config("name = 'adam'; weight_decay = 0.0");
    let errors = failing(2, |group| -> Result<()> {
        let mut x = vec![0.0; LEN];
        let mut worker = Worker::new(&config, &x, Box::new(group))?;
        loop {
            worker.step(&mut x, &[1.0; LEN], 1e38)?;
            assert!(worker.steps() < 10, "nobody has seen it");
        }
    });
    for (rank, error) in errors.iter().enumerate() {
        assert!(matches!(error, Error::Diverged { worker, step: 1, vector: "params" } if *worker == rank), "{error}");
    }
}

#[test]
fn a_state_that_overflowed_is_neither_synced_nor_saved() {
    let (config, folder) = (config("name = 'adam'; weight_decay = 0.0"), scratch());
    let mut x = vec![0.0; LEN];
    let mut worker = Worker::new(&config, &x, Box::new(Solo)).unwrap();
    worker.save(folder.path(), &x).unwrap();
    for _ in 0..5 {
        worker.step(&mut x, &[1.0; LEN], 1e38).unwrap();
    }
    let refused = worker.save(folder.path(), &x).unwrap_err().to_string();
    assert!(refused.contains("infinite or NaN values in `params` at step 5"), "{refused}");
    assert!(matches!(worker.sync(&mut x), Err(Error::Diverged { worker: 0, step: 5, vector: "params" })));
    let mut before = vec![f32::NAN; LEN];
    Worker::resume(&config, folder.path(), &mut before, Box::new(Solo)).unwrap();
    assert_eq!(before, vec![0.0; LEN], "the checkpoint that was there is still there");
}

/// A mask among the parameters may be infinite.
#[test]
fn parameters_that_were_infinite_at_the_start_are_nobodys_fault() {
    let (config, folder) = (config("name = 'adam'"), scratch());
    together(2, |group| {
        let mut x = vec![0.0; LEN];
        x[3] = f32::NEG_INFINITY;
        let mut worker = Worker::new(&config, &x, Box::new(group))?;
        worker.step(&mut x, &[1.0; LEN], 1e-3)?;
        worker.sync(&mut x)?;
        worker.save(folder.path(), &x)
    });
}
