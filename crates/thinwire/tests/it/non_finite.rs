//! A gradient that is infinite or NaN, at an exact, a coarse or a skipped step.
//!
//! `error`: every worker stops and names the one that has it, and the step. `skip`: it is left out on all workers alike,
//! as if its worker had not been there; that worker's own memory stays as it was.

use crate::common::runs;

use runs::{Bits, LEN, PLACES, Replica, STEPS, TOPOLOGIES, config, failing, scratch, together, together_on};
use std::collections::BTreeMap;
use thinwire::{Config, Error, threads};

const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

/// Optimizers, and a step of each kind that they have.
const STEPS_OF: [(&str, &[(&str, u64)]); 8] = [
    ("name = 'adam'", &[("exact", 3)]),
    ("name = 'one-bit-adam'; warmup = 5", &[("exact", 3), ("coarse", 9)]),
    (
        "name = 'zero-one-adam'; kappa = 2; sync_every = 3",
        &[("exact", 10), ("coarse", 9), ("coarse", 13), ("skipped", 12)],
    ),
    ("name = 'efficient-adam'", &[("coarse", 0), ("coarse", 7)]),
    (
        "name = 'local-adam'; sync_start = 6; sync_every = 7",
        &[("coarse", 0), ("coarse", 5), ("skipped", 7), ("coarse", 13)],
    ),
    ("name = 'lion'; codec_up = 'sign'", &[("coarse", 0), ("coarse", 7)]),
    ("name = 'one-bit-lamb'; warmup = 6; tensors = [20, 25]", &[("exact", 0), ("exact", 3), ("coarse", 9)]),
    // Of more workers an owner tosses other coins, so here it tosses none.
    ("name = 'birder'; codec_down = 'bf16'", &[("coarse", 7)]),
];

/// Where a bad gradient turns up.
struct Place {
    context: String,
    config: Config,
    workers: usize,
    rank: usize,
    step: u64,
    kind: &'static str,
}

/// Every rank of groups of 1 to 4, in both topologies, at each kind of step.
fn places(policy: &str) -> Vec<Place> {
    let mut places = Vec::new();
    for (words, steps) in STEPS_OF {
        for (topology, workers) in TOPOLOGIES.into_iter().flat_map(|topology| (1..=4).map(move |n| (topology, n))) {
            let words = format!("{words}; topology = '{topology}'; non_finite = '{policy}'");
            for ((kind, step), rank) in steps.iter().flat_map(|at| (0..workers).map(move |rank| (*at, rank))) {
                let context = format!("{words}: {kind} step {step}, rank {rank} of {workers}");
                places.push(Place { context, config: config(&words), workers, rank, step, kind });
            }
        }
    }
    places
}

/// One step, with `bad` somewhere in the gradient.
fn bad_step(replica: &mut Replica, bad: f32) -> thinwire::Result<()> {
    let at = (replica.worker.steps() as usize * 7 + 44) % LEN;
    replica.step_with(|gradient| gradient[at] = bad)
}

/// Trains to the end; those of `bad_ranks` have a bad gradient at `step`.
fn train_past(replica: &mut Replica, bad_ranks: &[usize], step: u64, bad: f32) -> thinwire::Result<()> {
    replica.train(step)?;
    if bad_ranks.contains(&replica.worker.rank()) {
        bad_step(replica, bad)?;
    }
    replica.train(STEPS)
}

#[test]
fn the_steps_are_of_the_kinds_they_say() {
    for Place { context, config, workers, step, kind, .. } in places("error") {
        together(workers, |group| {
            let mut replica = Replica::new(&config, LEN, group)?;
            replica.train(step)?;
            let before = replica.worker.traffic().rounds;
            replica.step()?;
            let after = replica.worker.traffic().rounds;
            let counted = [("exact", after.exact - before.exact), ("coarse", after.coarse - before.coarse)];
            let counted = counted.into_iter().find(|(_, count)| *count > 0).map_or("skipped", |(kind, _)| kind);
            assert_eq!(counted, kind, "{context}");
            Ok(())
        });
    }
}

#[test]
fn under_error_all_stop_and_name_the_worker_and_the_step() {
    for Place { context, config, workers, rank, step, .. } in places("error") {
        for bad in BAD {
            let errors = failing(workers, |group| {
                let mut replica = Replica::new(&config, LEN, group)?;
                let ended = train_past(&mut replica, &[rank], step, bad);
                match workers {
                    1 => assert!(replica.step().is_ok(), "{context}: nothing has moved, and nobody waits"),
                    _ => assert!(matches!(replica.step(), Err(Error::Stopped)), "{context}"),
                }
                ended
            });
            for (me, error) in errors.iter().enumerate() {
                let text = error.to_string();
                assert!(matches!(error, Error::NotFinite { .. }), "{context}: worker {me} says {text}");
                assert!(
                    text.contains(&format!("worker {rank} ")) && text.contains(&format!("step {step}")),
                    "{context}: {text}"
                );
            }
        }
    }
}

/// The optimizers, placements and ranks on hosts, at each kind of step.
fn places_on_hosts(policy: &str) -> Vec<(&'static [usize], Place)> {
    let mut places = Vec::new();
    for ((words, steps), hosts) in STEPS_OF.into_iter().flat_map(|of| PLACES.map(|hosts| (of, hosts))) {
        for topology in TOPOLOGIES {
            let (words, workers) = (format!("{words}; topology = '{topology}'; non_finite = '{policy}'"), hosts.len());
            for ((kind, step), rank) in steps.iter().flat_map(|at| (0..workers).map(move |rank| (*at, rank))) {
                let context = format!("{words}: {kind} step {step}, rank {rank} on {hosts:?}");
                places.push((hosts, Place { context, config: config(&words), workers, rank, step, kind }));
            }
        }
    }
    places
}

#[test]
fn under_error_all_on_hosts_stop_and_name_the_worker() {
    for (hosts, Place { context, config, rank, step, .. }) in places_on_hosts("error") {
        let ends = threads::run_on(hosts, |group| {
            let mut replica = Replica::new(&config, LEN, group)?;
            train_past(&mut replica, &[rank], step, f32::NAN)
        });
        for (me, end) in ends.into_iter().enumerate() {
            let named = matches!(end, Err(Error::NotFinite { worker, step: at }) if (worker, at) == (rank, step));
            assert!(named, "{context}: worker {me} ends with {end:?}");
        }
    }
}

#[test]
fn under_skip_replicas_on_hosts_stay_the_same() {
    for (hosts, Place { context, config, rank, step, .. }) in places_on_hosts("skip") {
        let end = |bad_ranks: &[usize]| {
            let ends = together_on(hosts, |group| {
                let mut replica = Replica::new(&config, LEN, group)?;
                train_past(&mut replica, bad_ranks, step, f32::NAN)?;
                replica.sync()?;
                Ok(replica.x)
            });
            assert!(ends.iter().all(|end| *end == ends[0]), "{context}: replicas differ without {bad_ranks:?}");
            ends.into_iter().next().unwrap()
        };
        let mates = (0..hosts.len()).filter(|other| hosts[*other] == hosts[rank]).collect::<Vec<_>>();
        assert!(end(&[rank]) != end(&[]), "{context}");
        end(&mates);
    }
}

/// The gradient is looked at before anything is changed.
#[test]
fn under_error_the_worker_that_has_it_changes_nothing() {
    for Place { context, config, workers, rank, step, .. } in places("error") {
        failing(workers, |group| {
            let mut replica = Replica::new(&config, LEN, group)?;
            replica.train(step)?;
            if replica.worker.rank() == rank {
                let before = replica.bits();
                let ended = bad_step(&mut replica, f32::NAN);
                before.assert_same(&replica.bits(), &context);
                ended?;
            }
            replica.train(STEPS)
        });
    }
}

#[test]
fn under_skip_replicas_stay_the_same_and_the_skip_is_counted() {
    for (Place { context, config, workers, rank, step, .. }, bad) in
        places("skip").into_iter().zip(BAD.into_iter().cycle())
    {
        let ends = together(workers, |group| {
            let mut replica = Replica::new(&config, LEN, group)?;
            train_past(&mut replica, &[rank], step, bad)?;
            replica.sync()?;
            assert!(replica.x.iter().all(|x| x.is_finite()), "{context}");
            Ok((replica.shared_bits(), replica.worker.traffic().left_out))
        });
        for (me, (bits, left_out)) in ends.iter().enumerate() {
            // Updates of v are each worker's own in Efficient-Adam and local Adam.
            let but_own = |bits: &Bits| bits.clone().without("variance_updates").without("variance_forgotten");
            let is_own = context.contains("efficient") || context.contains("local");
            let compared = |bits: &Bits| if is_own { but_own(bits) } else { bits.clone() };
            compared(&ends[0].0).assert_same(&compared(bits), &context);
            assert_eq!(*left_out, u64::from(me == rank), "{context}, worker {me}");
        }
    }
}

/// A gradient left out is another run: or nothing is left out at all.
#[test]
fn under_skip_the_others_decide() {
    for Place { context, config, workers, rank, step, .. } in
        places("skip").into_iter().filter(|place| place.workers > 1)
    {
        let end = |bad_ranks: &[usize]| {
            let ends = together(workers, |group| {
                let mut replica = Replica::new(&config, LEN, group)?;
                train_past(&mut replica, bad_ranks, step, f32::NAN)?;
                replica.sync()?;
                Ok(replica.x)
            });
            ends.into_iter().next().unwrap()
        };
        assert!(end(&[rank]) != end(&[]), "{context}");
    }
}

/// What a bad step may change in a worker: what the others told it, and what is counted.
fn untouched(config: &Config, kind: &str) -> Vec<&'static str> {
    match (config.name, kind) {
        (thinwire::Name::EFFICIENT_ADAM, _) => vec!["m", "v", "up_residue", "variance_updates", "variance_forgotten"],
        (thinwire::Name::LOCAL_ADAM, "coarse") => {
            vec!["m", "v", "up_residue", "variance_updates", "variance_forgotten"]
        }
        (thinwire::Name::LION, _) => vec!["m"],
        (thinwire::Name::BIRDER, _) => vec!["m", "b"],
        (_, "exact") => vec!["up_residue", "down_residue"],
        (_, "skipped") => vec!["params", "m", "v", "u", "up_residue", "down_residue"],
        _ => vec!["v", "up_residue"],
    }
}

/// Of the coarse steps of 0/1 Adam and local Adam those that follow a sync: else there are earlier steps to tell of.
#[test]
fn under_skip_the_memory_of_the_worker_is_untouched() {
    for Place { context, config, workers, rank, step, kind } in
        places("skip").into_iter().filter(|place| place.step != 13)
    {
        together(workers, |group| {
            let mut replica = Replica::new(&config, LEN, group)?;
            replica.train(step)?;
            if replica.worker.rank() != rank {
                return replica.step();
            }
            let before = replica.numbers();
            bad_step(&mut replica, f32::INFINITY)?;
            assert_equal(&before, &replica.numbers(), &untouched(&config, kind), &context);
            Ok(())
        });
    }
}

type State = BTreeMap<&'static str, Vec<f64>>;

fn assert_equal(before: &State, after: &State, names: &[&'static str], context: &str) {
    let changed = names.iter().filter(|name| before.get(*name) != after.get(*name)).collect::<Vec<_>>();
    assert!(changed.is_empty(), "{context}: {changed:?} changed");
}

#[test]
fn nothing_moves_when_all_are_bad() {
    let names = ["params", "m", "v", "u", "up_residue", "down_residue", "variance_updates"];
    for Place { context, config, workers, step, .. } in
        places("skip").into_iter().filter(|place| place.rank == 0 && place.step != 13)
    {
        together(workers, |group| {
            let mut replica = Replica::new(&config, LEN, group)?;
            replica.train(step)?;
            let before = replica.numbers();
            bad_step(&mut replica, f32::NAN)?;
            assert_equal(&before, &replica.numbers(), &names, &context);
            assert_eq!(replica.worker.traffic().left_out, 1);
            replica.train(STEPS)?;
            replica.sync()
        });
    }
}

/// A worker whose gradients are all bad might as well not be there.
#[test]
fn a_worker_that_is_always_bad_changes_nothing() {
    for (words, _) in STEPS_OF {
        for topology in TOPOLOGIES {
            let config = config(&format!("{words}; topology = '{topology}'; non_finite = 'skip'"));
            for workers in 2..=4 {
                let end = |size: usize| {
                    let ends = together(size, |group| {
                        let mut replica = Replica::new(&config, LEN, group)?;
                        for _ in 0..STEPS {
                            match replica.worker.rank() {
                                rank if rank + 1 == workers => bad_step(&mut replica, f32::NAN)?,
                                _ => replica.step()?,
                            }
                        }
                        replica.sync()?;
                        Ok(replica.x)
                    });
                    ends.into_iter().next().unwrap()
                };
                assert_eq!(end(workers), end(workers - 1), "{words}, {topology}, {workers} workers");
            }
        }
    }
}

/// A run with gradients left out resumes like any other.
#[test]
fn a_run_with_skips_resumes_bit_for_bit() {
    for Place { context, config, workers, rank, step, .. } in
        places("skip").into_iter().filter(|place| place.workers == 3)
    {
        let dir = scratch();
        let uninterrupted = together(workers, |group| {
            let mut replica = Replica::new(&config, LEN, group)?;
            replica.train(step)?;
            if replica.worker.rank() == rank {
                bad_step(&mut replica, f32::NAN)?;
            }
            replica.train(step + 1)?;
            replica.save(dir.path())?;
            replica.train(STEPS)?;
            Ok(replica.bits())
        });
        let resumed = together(workers, |group| {
            let mut replica = Replica::resume(&config, dir.path(), LEN, group)?;
            replica.train(STEPS)?;
            Ok(replica.bits())
        });
        uninterrupted.iter().zip(&resumed).for_each(|(one, other)| one.assert_same(other, &context));
    }
}
