//! A worker that dies, falls silent or goes its own way is named by all the others, within the deadline.
//!
//! A fault strikes at (rank, step, point): before the step, or at its k-th call on the transport, in the middle of a mean.
//! Then every other worker must return an error that names that rank, and refuse to go on.

use crate::common::runs;

use runs::{LEN, PLACES, Replica, TOPOLOGIES, changed, config, scratch, start};
use serde_json::json;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};
use thinwire::threads::{Thread, group, group_on};
use thinwire::{Collective, Config, Error, Result};

/// For those who must wait it out: short, but long enough that a busy machine keeps no healthy worker silent.
const DEADLINE: Duration = Duration::from_secs(1);

/// What a busy machine may add.
const SLACK: Duration = Duration::from_secs(5);

/// For those who must not.
const FAR: Duration = Duration::from_secs(60);

/// More than any fault leaves to the others.
const STEPS: u64 = 30;

/// Exact, coarse and skipped steps, in turn.
const WORDS: [&str; 6] = [
    "name = 'adam'",
    "name = 'zero-one-adam'; kappa = 2; sync_every = 3; bucket = 16",
    "name = 'efficient-adam'; bucket = 16",
    "name = 'local-adam'; sync_every = 3; delay = 2; bucket = 16",
    "name = 'local-adam'; sync_every = 2; delay = 2; codec = 'sign'; bucket = 16",
    "name = 'zero-one-adam'; kappa = 2; freeze = 3; sync_every = 3; delay = 2; bucket = 16",
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Panics,
    Leaves,
    Stalls,
}

impl How {
    fn deadline(self) -> Duration {
        if self == How::Stalls { DEADLINE } else { FAR }
    }
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    rank: usize,
    step: u64,
    how: How,
    /// Calls on the transport before it strikes; none: before the step.
    call: Option<i64>,
}

/// A transport that fails when its time has come.
struct Doomed {
    inner: Thread,
    how: How,
    /// Calls left; below 0 it never fails.
    calls_left: Arc<AtomicI64>,
    others: Arc<AtomicUsize>,
}

impl Doomed {
    fn count_call(&self) {
        if self.calls_left.load(Ordering::Relaxed) >= 0 && self.calls_left.fetch_sub(1, Ordering::Relaxed) == 0 {
            strike(self.how, &self.others);
        }
    }
}

impl Collective for Doomed {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn hosts(&self) -> Vec<usize> {
        self.inner.hosts()
    }

    fn reserve(&mut self, longest: usize, under_way: usize) {
        self.inner.reserve(longest, under_way);
    }

    fn send(&mut self, to: usize, message: &[u8], during: &'static str) -> Result<()> {
        self.count_call();
        self.inner.send(to, message, during)
    }

    fn receive(&mut self, from: usize, message: &mut Vec<u8>, during: &'static str) -> Result<()> {
        self.count_call();
        self.inner.receive(from, message, during)
    }
}

/// A panic without the noise of one; or silence until everyone else has given up.
fn strike(how: How, others: &AtomicUsize) {
    if how == How::Panics {
        resume_unwind(Box::new("a fault on purpose"));
    }
    let start = Instant::now();
    while others.load(Ordering::Relaxed) > 0 && start.elapsed() < 2 * (DEADLINE + SLACK) {
        sleep(Duration::from_millis(2));
    }
}

/// Trains until the fault strikes.
fn run_doomed(config: &Config, end: Thread, fault: Fault, others: &Arc<AtomicUsize>) -> Result<()> {
    let calls_left = Arc::new(AtomicI64::new(-1));
    let (how, others) = (fault.how, Arc::clone(others));
    let doomed = Doomed { inner: end, how, calls_left: Arc::clone(&calls_left), others: Arc::clone(&others) };
    let mut replica = Replica::new(config, LEN, doomed)?;
    replica.train(fault.step)?;
    match (fault.call, how) {
        (Some(call), _) => calls_left.store(call, Ordering::Relaxed),
        (None, How::Leaves) => return Ok(()),
        (None, _) => strike(how, &others),
    }
    replica.train(STEPS)
}

/// Trains until an error, and says which, and how long the call took.
fn run_healthy(config: &Config, end: Thread) -> (Error, Duration) {
    let mut replica = Replica::new(config, LEN, end).expect("all are well at first");
    let (mut call, mut ended) = (Instant::now(), Ok(()));
    while ended.is_ok() {
        assert!(replica.worker.steps() < STEPS, "nobody noticed");
        call = Instant::now();
        ended = replica.step();
    }
    let took = call.elapsed();
    assert_stopped(&mut replica);
    (ended.unwrap_err(), took)
}

/// After an error a worker does no more.
fn assert_stopped(replica: &mut Replica) {
    let (before, nowhere) = (replica.bits(), Path::new("/nowhere/at/all"));
    assert!(matches!(replica.step(), Err(Error::Stopped)));
    assert!(matches!(replica.sync(), Err(Error::Stopped)));
    assert!(matches!(replica.save(nowhere), Err(Error::Stopped)));
    before.assert_same(&replica.bits(), "a stopped worker");
}

/// Everyone's end but the doomed one's, in rank order.
fn strike_run(config: &Config, hosts: &[usize], fault: Fault) -> Vec<(Error, Duration)> {
    let others = Arc::new(AtomicUsize::new(hosts.len() - 1));
    let mut ends = group_on(hosts, fault.how.deadline());
    let doomed = ends.remove(fault.rank);
    let doomed = {
        let (config, others) = (config.clone(), Arc::clone(&others));
        spawn(move || run_doomed(&config, doomed, fault, &others))
    };
    let healthy = ends.into_iter().map(|end| {
        let (config, others) = (config.clone(), Arc::clone(&others));
        spawn(move || {
            let ended = run_healthy(&config, end);
            others.fetch_sub(1, Ordering::Relaxed);
            ended
        })
    });
    let ended = healthy.collect::<Vec<_>>().into_iter().map(|worker| worker.join().expect("no panic")).collect();
    let doomed = doomed.join();
    assert_eq!(doomed.is_err(), fault.how == How::Panics, "{fault:?}");
    ended
}

fn assert_named(config: &Config, workers: usize, fault: Fault) {
    assert_named_on(&vec![0; workers], config, fault);
}

fn assert_named_on(hosts: &[usize], config: &Config, fault: Fault) {
    let (workers, ends) = (hosts.len(), strike_run(config, hosts, fault));
    let longest = ends.iter().map(|(_, took)| *took).max().expect("another worker");
    assert!(
        fault.how != How::Stalls || longest >= DEADLINE,
        "{fault:?} of {workers}: all gave up after {longest:?}: {ends:?}"
    );
    for (error, took) in ends {
        let context = format!("{fault:?} of {workers}, {:?}: {error} after {took:?}", config.name);
        match error {
            Error::Timeout { worker, limit, .. } if fault.how == How::Stalls => {
                assert_eq!((worker, limit), (fault.rank, DEADLINE), "{context}");
            }
            Error::Gone { worker, .. } if fault.how != How::Stalls => assert_eq!(worker, fault.rank, "{context}"),
            _ => panic!("{context}"),
        }
        assert!(took < DEADLINE + SLACK, "{context}");
    }
}

/// Every rank of every group of 2 to 5, in both topologies, with these optimizers, at these points.
fn check_everywhere(how: How, optimizers: &[&str], points: impl Fn(usize) -> Vec<(u64, Option<i64>)>) {
    let mut running: Vec<JoinHandle<()>> = Vec::new();
    for (workers, topology) in (2..=5).flat_map(|workers| TOPOLOGIES.map(|topology| (workers, topology))) {
        for (words, rank) in optimizers.iter().flat_map(|words| (0..workers).map(move |rank| (words, rank))) {
            for (step, call) in points(workers) {
                let config = config(&format!("{words}; topology = '{topology}'"));
                running.push(spawn(move || assert_named(&config, workers, Fault { rank, step, how, call })));
            }
            // Those who wait do no work: many runs fit on one core.
            if running.len() >= 16 {
                running.drain(..).for_each(join);
            }
        }
    }
    running.into_iter().for_each(join);
}

fn join(run: JoinHandle<()>) {
    run.join().unwrap_or_else(|panic| resume_unwind(panic));
}

#[test]
fn a_worker_that_leaves_is_named() {
    check_everywhere(How::Leaves, &WORDS, |_| (0..9).map(|step| (step, None)).collect());
}

#[test]
fn a_worker_that_panics_between_steps_is_named() {
    check_everywhere(How::Panics, &WORDS, |_| vec![(0, None), (4, None), (7, None)]);
}

#[test]
fn a_worker_that_panics_in_the_middle_of_a_mean_is_named() {
    check_everywhere(How::Panics, &WORDS, |workers| (0..4 * workers as i64).map(|call| (3, Some(call))).collect());
}

#[test]
fn a_worker_that_falls_silent_is_named() {
    check_everywhere(How::Stalls, &WORDS[1..], |workers| vec![(4, None), (3, Some(workers as i64))]);
}

/// In the central form worker 1 waits for worker 0 alone, and it is worker 0 that waits for worker 2.
#[test]
fn a_silent_worker_is_named_by_those_who_wait_for_it_indirectly() {
    let config = config("name = 'efficient-adam'; topology = 'central'");
    assert_named(&config, 3, Fault { rank: 2, step: 2, how: How::Stalls, call: Some(0) });
    assert_named(&config, 4, Fault { rank: 3, step: 2, how: How::Panics, call: Some(0) });
}

/// On hosts most workers wait for a relay, which waits for another.
#[test]
fn a_worker_on_a_host_that_dies_or_falls_silent_is_named() {
    for (hosts, topology) in PLACES.into_iter().flat_map(|hosts| TOPOLOGIES.map(|topology| (hosts, topology))) {
        let mut running: Vec<JoinHandle<()>> = Vec::new();
        for (words, rank) in WORDS.into_iter().flat_map(|words| (0..hosts.len()).map(move |rank| (words, rank))) {
            let config = config(&format!("{words}; topology = '{topology}'"));
            let mut strike = |how, step, call| {
                let config = config.clone();
                running.push(spawn(move || assert_named_on(hosts, &config, Fault { rank, step, how, call })));
            };
            (0..8).for_each(|call| strike(How::Panics, 3, Some(call)));
            strike(How::Leaves, 4, None);
            strike(How::Stalls, 3, Some(2));
            if running.len() >= 30 {
                running.drain(..).for_each(join);
            }
        }
        running.into_iter().for_each(join);
    }
}

/// A transport that is wrong about who shares a host with whom.
struct Misplaced(Thread);

impl Collective for Misplaced {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn hosts(&self) -> Vec<usize> {
        vec![0, 1, 1, 0]
    }

    fn reserve(&mut self, longest: usize, under_way: usize) {
        self.0.reserve(longest, under_way);
    }

    fn send(&mut self, to: usize, message: &[u8], during: &'static str) -> Result<()> {
        self.0.send(to, message, during)
    }

    fn receive(&mut self, from: usize, message: &mut Vec<u8>, during: &'static str) -> Result<()> {
        self.0.receive(from, message, during)
    }
}

#[test]
fn a_worker_that_sees_other_hosts_is_named() {
    for odd in 0..4 {
        let ends = std::thread::scope(|scope| {
            let start = |end: Thread| match end.rank() == odd {
                true => Replica::new(&config(WORDS[1]), LEN, Misplaced(end)),
                false => Replica::new(&config(WORDS[1]), LEN, end),
            };
            let running = group_on(&[0, 0, 1, 1], FAR).into_iter().map(|end| scope.spawn(move || start(end)));
            let running = running.collect::<Vec<_>>();
            running.into_iter().map(|worker| worker.join().expect("no panic")).collect::<Vec<_>>()
        });
        assert_disagreement(ends, odd, "hosts", "sharded");
    }
}

/// What the `work` of each worker ends with, in rank order.
fn ends<T: Send>(workers: usize, work: impl Fn(Thread) -> Result<T> + Sync) -> Vec<Result<T>> {
    let work = &work;
    std::thread::scope(|scope| {
        let running = group(workers, FAR).into_iter().map(|end| scope.spawn(move || work(end)));
        let running = running.collect::<Vec<_>>();
        running.into_iter().map(|worker| worker.join().expect("no panic")).collect()
    })
}

#[test]
fn a_worker_that_never_comes_is_named() {
    for odd in 0..3 {
        let ends = ends(3, |end| match end.rank() {
            rank if rank == odd => Err(Error::Stopped),
            _ => Replica::new(&config(WORDS[1]), LEN, end),
        });
        for error in errors_but(odd, ends) {
            assert!(matches!(error, Error::Gone { worker, during: "hello" } if worker == odd), "{error}");
        }
    }
}

#[test]
fn a_worker_that_does_not_save_is_named() {
    let dir = scratch();
    for odd in 0..3 {
        let ends = ends(3, |end| {
            let mut replica = Replica::new(&config(WORDS[1]), LEN, end)?;
            replica.train(5)?;
            if replica.worker.rank() == odd { Err(Error::Stopped) } else { replica.save(dir.path()) }
        });
        for error in errors_but(odd, ends) {
            assert!(matches!(error, Error::Gone { worker, during: "checkpoint" } if worker == odd), "{error}");
        }
        assert!(!dir.path().join("manifest.json").exists());
    }
}

fn errors_but<T>(odd: usize, ends: Vec<Result<T>>) -> Vec<Error> {
    let healthy = ends.into_iter().enumerate().filter(|(rank, _)| *rank != odd);
    healthy.map(|(_, end)| end.err().expect("an error")).collect()
}

/// All stop; all but worker `odd` say that it is the one who disagrees, and on what, unless the owner of all is odd.
fn assert_disagreement<T>(ends: Vec<Result<T>>, odd: usize, on: &str, topology: &str) {
    for (rank, end) in ends.into_iter().enumerate() {
        let error = end.err().unwrap_or_else(|| panic!("worker {rank} did not notice {on}")).to_string();
        assert!(error.contains(on), "worker {rank}, {topology}: {error} does not name {on}");
        if rank != odd && (topology == "sharded" || odd != 0) {
            let named = format!("worker {odd} disagrees on {on}");
            assert!(error.contains(&named), "worker {rank}, {topology}: {error} does not say {named}");
        }
    }
}

/// Every place of the odd one, in groups of 2 to 5, in both topologies.
fn check_odd_ones(check: impl Fn(usize, usize, &str)) {
    for workers in 2..=5 {
        for odd in 0..workers {
            TOPOLOGIES.iter().for_each(|topology| check(workers, odd, topology));
        }
    }
}

#[test]
fn another_configuration_is_named_by_its_word() {
    for (key, value) in [
        ("kappa", json!(3)),
        ("sync_every", json!(4)),
        ("bucket", json!(17)),
        ("weight_decay", json!(0.5)),
        ("codec", json!("uniform4")),
        ("hierarchy", json!("flat")),
        ("host_codec", json!("bf16")),
        ("groups", json!([{"length": LEN, "lr_scale": 2.0}])),
    ] {
        let on = if key == "codec" { "codec_down" } else { key };
        check_odd_ones(|workers, odd, topology| {
            let usual = config(&format!("{}; topology = '{topology}'", WORDS[1]));
            let other = changed(&usual, key, value.clone());
            let ends = ends(workers, |end| {
                let config = if end.rank() == odd { &other } else { &usual };
                Replica::new(config, LEN, end)
            });
            // Everyone hears everyone's greeting: the owner of all is named like any other.
            assert_disagreement(ends, odd, on, "sharded");
        });
    }
}

#[test]
fn another_model_is_named() {
    check_odd_ones(|workers, odd, _| {
        let ends = ends(workers, |end| {
            let len = if end.rank() == odd { LEN + 1 } else { LEN };
            Replica::new(&config(WORDS[1]), len, end)
        });
        assert_disagreement(ends, odd, "the vector's length", "sharded");
    });
}

#[test]
fn other_initial_parameters_are_found() {
    check_odd_ones(|workers, odd, _| {
        let ends = ends(workers, |end| {
            let mut x = start(LEN);
            x[LEN - 1] += if end.rank() == odd { 1e-7 } else { 0.0 };
            Replica::from(&config(WORDS[1]), x, end)
        });
        assert_disagreement(ends, odd, "the digest", "sharded");
    });
}

/// Trains, with worker `odd` up to something at `step`; who notices, has not made another round by then.
fn run_with_odd_step(
    words: &str,
    (workers, odd, topology): (usize, usize, &str),
    step: u64,
    odd_step: impl Fn(&mut Replica) -> Result<()> + Sync,
) -> Vec<Result<()>> {
    let config = config(&format!("{words}; topology = '{topology}'"));
    ends(workers, |end| {
        let mut replica = Replica::new(&config, LEN, end)?;
        replica.train(step)?;
        let rounds = |replica: &Replica| {
            let rounds = replica.worker.traffic().rounds;
            rounds.exact + rounds.coarse
        };
        let before = rounds(&replica);
        if replica.worker.rank() == odd {
            odd_step(&mut replica)?;
        }
        let trained = replica.train(STEPS);
        assert_eq!(rounds(&replica), before, "one round is enough to notice");
        trained
    })
}

#[test]
fn another_learning_rate_is_found_at_the_next_round() {
    // Of 0/1 Adam's steps 7 and 12 are skipped, 10 and 14 are exact, the others coarse.
    for (words, steps) in [(WORDS[0], 3..4), (WORDS[1], 7..15), (WORDS[2], 3..4)] {
        for step in steps {
            check_odd_ones(|workers, odd, topology| {
                let ends = run_with_odd_step(words, (workers, odd, topology), step, |replica| {
                    let gradient = vec![0.1; LEN];
                    replica.worker.step(&mut replica.x, &gradient, 0.051).map(|_| ())
                });
                assert_disagreement(ends, odd, "the digest", topology);
            });
        }
    }
}

#[test]
fn a_replica_that_was_tampered_with_is_found_at_the_next_round() {
    for (words, step) in [(WORDS[0], 3), (WORDS[1], 4), (WORDS[2], 3), ("name = 'one-bit-adam'; warmup = 2", 5)] {
        check_odd_ones(|workers, odd, topology| {
            let ends = run_with_odd_step(words, (workers, odd, topology), step, |replica| {
                assert!(replica.is_synced());
                replica.x[LEN / 2] += 1e-6;
                Ok(())
            });
            assert_disagreement(ends, odd, "the digest", topology);
        });
    }
}

/// Between two syncs of 0/1 Adam every worker is on its own, and the next sync takes nobody's parameters.
#[test]
fn tampering_between_two_syncs_is_undone_by_the_next() {
    let config = config("name = 'zero-one-adam'; kappa = 2; freeze = 4; sync_every = 8");
    let ends = ends(3, |end| {
        let mut replica = Replica::new(&config, LEN, end)?;
        replica.train(10)?;
        assert!(!replica.is_synced());
        replica.x[0] += if replica.worker.rank() == 1 { 1.0 } else { 0.0 };
        replica.train(16)?;
        assert!(replica.is_synced());
        replica.train(20)?;
        replica.sync()?;
        Ok(replica.x)
    });
    let ends = ends.into_iter().collect::<Result<Vec<_>>>().unwrap();
    assert!(ends.iter().all(|end| *end == ends[0]));
}

#[test]
fn a_sync_that_one_worker_alone_asks_for_is_found() {
    let skipping = "name = 'zero-one-adam'; kappa = 2; freeze = 4; sync_every = 8";
    check_odd_ones(|workers, odd, topology| {
        let ends = run_with_odd_step(skipping, (workers, odd, topology), 10, Replica::sync);
        assert_disagreement(ends, odd, "the step", topology);
    });
}
