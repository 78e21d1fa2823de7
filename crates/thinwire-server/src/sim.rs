//! The simulator: server, workers, network and disk in one process on virtual time, from a seed.
//!
//! The server's run, hall and service are the real ones, and so are a worker's member, link and engine; between them are a network and a
//! disk that fail. Of everything that could be next, one thing happens at a time, and a seed decides which: a seed that fails fails
//! again. [`ledger`] has what must hold, [`world`] what happens.
//!
//! ```text
//! THINWIRE_SIM_SEEDS=100000 cargo test -p thinwire-server --lib sim::     so many schedules
//! THINWIRE_SIM_SEED=1234 cargo test -p thinwire-server --lib sim::         this one alone
//! ```

mod chance;
mod desk;
mod faults;
mod keeping;
mod ledger;
mod life;
mod server;
mod setup;
mod talk;
mod world;

pub use chance::Chance;

use crate::disk::memory::{Lie, Memory};
use setup::Setup;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use world::{Outcome, World};

fn schedule(seed: u64, disk: Memory) -> Outcome {
    World::new(seed, disk).run()
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} = {text}: expected a number")))
}

/// The same, and how to see it again if it fails.
fn told(seed: u64) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| schedule(seed, Memory::new(seed)))).unwrap_or_else(|thrown| {
        eprintln!("seed {seed} fails: THINWIRE_SIM_SEED={seed} cargo test -p thinwire-server --lib sim::");
        resume_unwind(thrown)
    })
}

/// What comes of each seed. Every thread has a world of its own, and its disk.
fn outcomes(seeds: Range<u64>, threads: usize) -> Vec<Outcome> {
    std::thread::scope(|scope| {
        let some = |first: usize| seeds.clone().skip(first).step_by(threads);
        let threads = (0..threads).map(|first| scope.spawn(move || some(first).map(told).collect::<Vec<_>>()));
        let ends = threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join());
        ends.flat_map(|end| end.unwrap_or_else(|thrown| resume_unwind(thrown))).collect()
    })
}

#[test]
fn whatever_happens_no_round_is_lost_and_nothing_counts_twice() {
    if let Some(seed) = variable("THINWIRE_SIM_SEED") {
        println!("seed {seed}, {:?}: {:#?}", Setup::of(seed, &mut Chance::new(seed)).words, told(seed));
        return;
    }
    let (first, seeds) = (variable("THINWIRE_SIM_FROM").unwrap_or(0), variable("THINWIRE_SIM_SEEDS").unwrap_or(500));
    let (began, threads) = (std::time::Instant::now(), std::thread::available_parallelism().map_or(1, usize::from));
    let (mut sum, mut accounted) = (Outcome::default(), 0);
    for one in outcomes(first..first + seeds, threads) {
        sum.rounds += one.rounds;
        sum.events += one.events;
        sum.crashes += one.crashes;
        sum.power_cuts += one.power_cuts;
        sum.faults += one.faults;
        sum.lives += one.lives;
        sum.left_out += one.left_out;
        sum.started_over += one.started_over;
        accounted += u64::from(one.accounted);
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{seeds} schedules in {seconds:.1} s, {:.0} a minute: {} rounds, {} events, {} faults, {} times the server was gone, \
         {} power cuts, {} lives of workers, {} times left out, {} started over, {accounted} added up",
        seeds as f64 / seconds * 60.0,
        sum.rounds,
        sum.events,
        sum.faults,
        sum.crashes,
        sum.power_cuts,
        sum.lives,
        sum.left_out,
        sum.started_over
    );
    let all = [sum.crashes, sum.power_cuts, sum.left_out, sum.started_over, accounted];
    assert!(all.iter().all(|count| *count > 0), "the simulation leaves something out: {all:?}");
}

#[test]
fn a_seed_replays() {
    for seed in 0..13 {
        assert_eq!(told(seed), told(seed), "seed {seed}");
    }
}

/// The first seed that finds what a disk does that lies.
fn finds(lie: Lie) -> Option<u64> {
    (0..300).find(|seed| {
        let disk = Memory::new(*seed);
        disk.lie(lie);
        catch_unwind(AssertUnwindSafe(|| schedule(*seed, disk))).is_err()
    })
}

#[test]
fn a_disk_that_skips_one_kind_of_sync_is_found() {
    for lie in [Lie::Contents("log"), Lie::Contents("inputs"), Lie::Contents("snapshot"), Lie::Names] {
        let found = finds(lie);
        println!("{lie:?}: found by seed {found:?}");
        assert!(found.is_some(), "{lie:?} is not found");
    }
}
