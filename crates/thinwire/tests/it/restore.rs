//! What a program that keeps the state itself relies on: a worker restored from another's state goes on bit for bit, and rates
//! given group by group are the rates that `lr_scale` would give.

use crate::common::runs;

use runs::{LEN, Replica, all_cases, config, failing, together};
use thinwire::inside::state::{Entry, Slot};
use thinwire::{Error, Result, Worker};

/// Everything of `from` into `to`.
fn copy(from: &mut Worker, to: &mut Worker, params: &mut [f32]) -> Result<()> {
    to.restore(params, |entries| {
        for (to, from) in entries.iter_mut().zip(from.whole_state().unwrap()) {
            assert_eq!(to.name, from.name);
            pour(from, to);
        }
        Ok(())
    })
}

fn pour(from: Entry<'_>, to: &mut Entry<'_>) {
    match (from.slot, &mut to.slot) {
        (Slot::Floats(from), Slot::Floats(to)) => to.copy_from_slice(from),
        (Slot::Doubles(from), Slot::Doubles(to)) => to.copy_from_slice(from),
        (Slot::Word(from), Slot::Word(to)) => **to = *from,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_restored_worker_goes_on_bit_for_bit() {
    for (case, config) in all_cases() {
        for stop in [0, 1, 13, 30] {
            let old = together(2, |group| {
                let mut replica = Replica::new(&config, LEN, group)?;
                replica.train(stop)?;
                Ok(Some(replica))
            });
            let old = std::sync::Mutex::new(old);
            let resumed = together(2, |group| {
                let mut replica = Replica::new(&config, LEN, group)?;
                let mut old = old.lock().unwrap()[replica.worker.rank()].take().expect("one for each rank");
                replica.x.copy_from_slice(&old.x);
                copy(&mut old.worker, &mut replica.worker, &mut replica.x)?;
                replica.train(40)?;
                Ok(replica.bits())
            });
            let whole = together(2, |group| {
                let mut replica = Replica::new(&config, LEN, group)?;
                replica.train(40)?;
                Ok(replica.bits())
            });
            whole.iter().zip(&resumed).for_each(|(whole, resumed)| whole.assert_same(resumed, (&case, stop)));
        }
    }
}

/// Moments and schedule are kept and residuals are zero, on any number of workers. Between two syncs nothing local is left, but for local
/// Adam, whose interval goes on from where that worker was.
#[test]
fn one_workers_state_serves_any_number_of_workers() {
    for (case, config) in all_cases() {
        for (stop, workers) in [(0, 2), (13, 3), (14, 1), (30, 2)] {
            let mut old = together(2, |group| {
                let mut replica = Replica::new(&config, LEN, group)?;
                replica.train(stop)?;
                replica.settle()
            });
            let was_synced = old[0].is_synced();
            let stays = was_synced || case.contains("local-adam");
            let x = old[0].x.clone();
            let anchor = old[0].numbers().remove("anchor").unwrap_or_default();
            let anchor = anchor.iter().map(|a| *a as f32).collect::<Vec<_>>();
            let is_late = old[0].numbers().get("mean_due").is_some_and(|due| due != &[0.0]);
            let kept = old[0].worker.state_of_one().unwrap().iter().map(words).collect::<Vec<_>>();
            let mut adopted = together(workers, |group| {
                let mut replica = Replica::new(&config, LEN, group)?;
                replica.x.copy_from_slice(&x);
                replica.worker.adopt(&mut replica.x, |entries| {
                    entries.iter_mut().zip(&kept).for_each(|(entry, words)| fill(entry, words));
                    Ok(())
                })?;
                Ok(replica)
            });
            let first = adopted[0].shared_bits();
            for replica in &mut adopted {
                assert!(
                    replica.is_synced() == (was_synced || !stays) && replica.worker.steps() == stop,
                    "{case}, {stop}"
                );
                replica.shared_bits().assert_same(&first, (&case, stop));
                let numbers = replica.numbers();
                assert!(["up_residue", "down_residue"].iter().all(|name| numbers[name].iter().all(|e| *e == 0.0)));
                if stays {
                    let now = replica.worker.state_of_one().unwrap().iter().map(words).collect::<Vec<_>>();
                    assert!(now == kept && replica.x == x, "{case}, {stop}");
                } else if !is_late {
                    // But for the decay of what was added since the sync, and for what limits cut off step by step and now at once.
                    let (off, moved) = (distance(&replica.x, &x), distance(&anchor, &x));
                    assert!(
                        off < 0.05 * moved,
                        "{case}, {stop}: {off} from rank 0's own parameters, which moved by {moved}"
                    );
                }
            }
            let adopted = std::sync::Mutex::new(adopted.into_iter().map(|replica| replica.x).collect::<Vec<_>>());
            let ends = together(workers, |group| {
                let mut replica = Replica::new(&config, LEN, group)?;
                let rank = replica.worker.rank();
                replica.x.copy_from_slice(&adopted.lock().unwrap()[rank]);
                let mut x = x.clone();
                replica.worker.adopt(&mut x, |entries| {
                    entries.iter_mut().zip(&kept).for_each(|(entry, words)| fill(entry, words));
                    Ok(())
                })?;
                replica.train(40)?;
                replica.sync()?;
                Ok(replica.shared_bits())
            });
            ends.iter().for_each(|end| end.assert_same(&ends[0], (&case, stop)));
        }
    }
}

#[test]
fn workers_that_adopt_different_states_find_out() {
    let config = config("name = 'adam'");
    for error in failing(2, |group| {
        let mut replica = Replica::new(&config, LEN, group)?;
        replica.x[7] += replica.worker.rank() as f32;
        replica.worker.adopt(&mut replica.x, |_| Ok(()))
    }) {
        assert!(matches!(&error, Error::Disagreement { .. }), "{error}");
    }
}

#[test]
fn states_of_different_steps_do_not_go_together() {
    let config = config("name = 'adam'");
    let old = together(2, |group| {
        let mut replica = Replica::new(&config, LEN, group)?;
        replica.train(3)?;
        let three = replica.worker.whole_state().unwrap().iter().map(words).collect::<Vec<_>>();
        replica.train(4)?;
        let four = replica.worker.whole_state().unwrap().iter().map(words).collect::<Vec<_>>();
        Ok(if replica.worker.rank() == 0 { three } else { four })
    });
    for error in failing(2, |group| {
        let mut replica = Replica::new(&config, LEN, group)?;
        let rank = replica.worker.rank();
        replica.worker.restore(&mut replica.x, |entries| {
            for (entry, words) in entries.iter_mut().zip(&old[rank]) {
                fill(entry, words);
            }
            Ok(())
        })
    }) {
        assert!(matches!(&error, Error::Disagreement { field, .. } if field == "the step"), "{error}");
    }
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt()
}

fn words(entry: &Entry<'_>) -> Vec<u64> {
    match &entry.slot {
        Slot::Floats(values) => values.iter().map(|value| u64::from(value.to_bits())).collect(),
        Slot::Doubles(values) => values.iter().map(|value| value.to_bits()).collect(),
        Slot::Word(word) => vec![**word],
        _ => unreachable!("the engine has no other"),
    }
}

fn fill(entry: &mut Entry<'_>, words: &[u64]) {
    match &mut entry.slot {
        Slot::Floats(values) => values.iter_mut().zip(words).for_each(|(x, w)| *x = f32::from_bits(*w as u32)),
        Slot::Doubles(values) => values.iter_mut().zip(words).for_each(|(x, w)| *x = f64::from_bits(*w)),
        Slot::Word(word) => **word = words[0],
        _ => unreachable!("the engine has no other"),
    }
}

#[test]
fn rates_of_groups_are_what_lr_scale_would_give() {
    for name in [
        "adam",
        "one-bit-adam'; warmup = 'auto",
        "zero-one-adam'; sync_every = 3; sync = 'every",
        "efficient-adam",
        "local-adam'; sync_start = 15; sync = 'every",
    ] {
        let scaled = config(&format!("name = '{name}'; groups = [{{length = 20, lr_scale = 0.5}}, {{length = 25}}]"));
        let plain = config(&format!("name = '{name}'; groups = [{{length = 20}}, {{length = 25}}]"));
        let run = |config: &_, rates: Option<[f32; 2]>| {
            together(2, |group| {
                let mut replica = Replica::new(config, LEN, group)?;
                let mut gradient = vec![0.0; LEN];
                for step in 0..20 {
                    runs::gradient(&replica.x, replica.worker.rank(), step, &mut gradient);
                    match rates {
                        Some(rates) => replica.worker.step_with_rates(&mut replica.x, &gradient, 0.25, &rates)?,
                        None => replica.worker.step(&mut replica.x, &gradient, 0.25)?,
                    };
                }
                Ok(replica.x)
            })
        };
        assert_eq!(run(&scaled, None), run(&plain, Some([0.125, 0.25])), "{name}");
        assert_ne!(run(&scaled, None), run(&plain, None), "{name}");
    }
}

#[test]
fn rates_are_checked_and_compared() {
    let config = config("name = 'adam'; groups = [{length = 20}, {length = 25}]");
    for (rates, complaint) in [(&[0.1][..], "one for each of the 2 parameter groups"), (&[0.1, f32::NAN], "finite")] {
        let errors = failing(1, |group| {
            let mut replica = Replica::new(&config, LEN, group)?;
            replica.worker.step_with_rates(&mut replica.x, &[0.0; LEN], 0.1, rates)
        });
        assert!(errors[0].to_string().contains(complaint), "{}", errors[0]);
    }
    let errors = failing(2, |group| {
        let mut replica = Replica::new(&config, LEN, group)?;
        let rates = [0.1, 0.1 + replica.worker.rank() as f32];
        replica.worker.step_with_rates(&mut replica.x, &[0.0; LEN], 0.1, &rates)
    });
    for error in errors {
        let digest = "the digest of the shared state";
        let told = matches!(&error, Error::Disagreement { field, .. } if field == digest)
            || error.to_string().contains(digest);
        assert!(told, "{error}");
    }
}
