//! Groups of threads on virtual time, from a seed: who runs next, what a group does, and what goes wrong.
//!
//! The engine is the real one, and so is the source of its thread transport; but for its locks and its clock, which belong to a
//! [`scheduler`](transport::scheduler). A schedule is a run of one to three groups, each from the checkpoint of the one before, on as
//! many workers and hosts as the seed says. The same run on std's locks, one group after the other and without faults, is its reference.
//!
//! What must hold, whatever the order:
//!
//! ```text
//! every worker ends          or the scheduler says "deadlock", with the seed
//! the bits                   after every step and checkpoint, those of the reference
//! without a fault            nobody fails, and nobody waits for a time-out
//! with one                   whoever fails names a worker at fault; without a silent one, long before the deadline
//! a checkpoint               of which a worker knows is there, and is whole, however its group ended
//! a regrouping               mean e + E is what it was
//! ```
//!
//! ```text
//! THINWIRE_SIM_SEEDS=100000 cargo test -p thinwire --test it simulated::     so many schedules
//! THINWIRE_SIM_SEED=1234 cargo test -p thinwire --test it simulated::        this one alone
//! ```

mod chance;
mod life;
mod setup;
pub mod transport;

use crate::common::runs;
use crate::regroup;
use chance::Chance;
use life::{Before, Diary, State, Task, Watched};
use runs::scratch;
use setup::{DEADLINE, Generation, How, SLACK, Setup};
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use thinwire::{Checkpoint, Collective, Error, Result, threads};
use transport::scheduler::{self, Broken, Schedule};
use transport::threads as simulated;

/// What is wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Scheduler(Broken),
    /// A message overtakes another.
    Order,
}

/// What came of a seed.
#[derive(Clone, Debug, Default, PartialEq)]
struct Outcome {
    groups: u64,
    regrouped: u64,
    steps: u64,
    events: u64,
    faults: u64,
    failed: u64,
    from_older: u64,
    started_over: u64,
    trace: u64,
}

/// How a group went without faults, in the order of ranks.
struct Reference {
    diaries: Vec<Diary>,
    calls: Vec<u64>,
}

/// The group on std's locks; `folder` is where it saves.
fn reference(task: &Task<'_>) -> Reference {
    let ends = threads::run_on(&task.generation.hosts, |end| {
        let (calls, mut diary) = (Arc::new(AtomicU64::new(0)), Diary::default());
        task.live(Watched::new(end, &calls), &|_| Before::Nothing, &mut diary).expect("nothing goes wrong");
        (diary, calls.load(Ordering::Relaxed))
    });
    let (diaries, calls) = ends.into_iter().unzip();
    Reference { diaries, calls }
}

/// What each worker has seen, how it ended (`None`: by a panic on purpose), and how the schedule went.
type Ends = (Vec<(Diary, Option<Result<()>>)>, Schedule);

fn scheduled(seed: u64, wrong: Option<Wrong>, task: &Task<'_>, calls: &[u64]) -> Ends {
    let generation = task.generation;
    let ends = simulated::group_on(&generation.hosts, DEADLINE);
    let diaries = ends.iter().map(|_| Mutex::new(Diary::default())).collect::<Vec<_>>();
    let broken = match wrong {
        Some(Wrong::Scheduler(broken)) => Some(broken),
        _ => None,
    };
    let works = ends.into_iter().zip(&diaries).map(|(end, diary)| {
        move || {
            let rank = end.rank();
            let before = |step| before(generation, rank, step);
            let swaps = (wrong == Some(Wrong::Order) && rank == 0).then_some(calls[rank] / 2);
            let end = Watched::new(end, &Arc::default()).with_faults(&generation.faults, calls[rank]).swapping(swaps);
            let mut diary = diary.lock().unwrap_or_else(PoisonError::into_inner);
            task.live(end, &before, &mut diary)
        }
    });
    let (ends, schedule) = scheduler::run(seed, broken, SLACK, works.collect());
    let ended = |(rank, end): (usize, std::thread::Result<_>)| match end {
        Ok(end) => Some(end),
        Err(_) if generation.faults.iter().any(|fault| fault.rank == rank && fault.how == How::Panics) => None,
        Err(thrown) => resume_unwind(thrown),
    };
    let ended = ends.into_iter().enumerate().map(ended).collect::<Vec<_>>();
    let diaries = diaries.into_iter().map(|diary| diary.into_inner().unwrap_or_else(PoisonError::into_inner));
    (diaries.zip(ended).collect(), schedule)
}

/// The faults that strike before a step.
fn before(generation: &Generation, rank: usize, step: u64) -> Before {
    let at = |fault: &&setup::Fault| generation.until * fault.at / 1000 == step && fault.rank == rank;
    match generation.faults.iter().find(|fault| at(fault) && !fault.how.is_in_a_call()).map(|fault| fault.how) {
        Some(How::NotFinite) => Before::Spoil,
        Some(_) => Before::Leave,
        None => Before::Nothing,
    }
}

fn schedule(seed: u64, wrong: Option<Wrong>) -> Outcome {
    let mut chance = Chance::new(seed);
    let setup = Setup::of(&mut chance);
    let (folder, references) = (scratch(), scratch());
    // The checkpoint that the next group goes on from: its step, and what the reference had there.
    let mut from: Option<(PathBuf, u64, Vec<State>)> = None;
    let mut outcome = Outcome::default();
    for (number, generation) in setup.generations.iter().enumerate() {
        let kept = |step: u64| references.path().join(format!("{number}-{step}"));
        let there = from.as_ref().map(|(there, ..)| there.clone());
        let mut task = Task { config: &setup.config, generation, from: there, folder: &kept };
        let reference = reference(&task);
        let here = |_| folder.path().to_owned();
        (task.from, task.folder) = (from.as_ref().map(|_| folder.path().to_owned()), &here);
        let (ends, schedule) = scheduled(chance.next(), wrong, &task, &reference.calls);
        Checked { setup: &setup, generation, reference: &reference, from: from.as_ref().map(|(.., old)| old) }
            .check(&ends, schedule);
        outcome.count(generation, &ends, schedule);
        // What is there now is where the next group goes on.
        let saved = ends.iter().filter_map(|(diary, _)| diary.saved).max();
        let found = checkpoint(folder.path());
        assert!(found >= saved, "step {saved:?} was saved, and {found:?} is there");
        if let Some(step) = found.filter(|step| from.as_ref().is_none_or(|(_, from, _)| from != step)) {
            let old = reference.diaries.iter().map(|diary| diary.at_save[&step].clone()).collect();
            from = Some((kept(step), step, old));
        }
        outcome.from_older += u64::from(found.is_some_and(|step| step < generation.until));
        outcome.started_over += u64::from(found.is_none());
    }
    outcome
}

/// The step of the checkpoint in this folder.
fn checkpoint(folder: &Path) -> Option<u64> {
    folder.join("manifest.json").exists().then(|| Checkpoint::open(folder).expect("a whole checkpoint").manifest.step)
}

/// A group that has ended, beside its reference.
struct Checked<'a> {
    setup: &'a Setup,
    generation: &'a Generation,
    reference: &'a Reference,
    /// What the workers held that wrote its checkpoint.
    from: Option<&'a Vec<State>>,
}

impl Checked<'_> {
    fn check(&self, ends: &[(Diary, Option<Result<()>>)], schedule: Schedule) {
        let context = format!("{}, {:?}", self.setup.words, self.generation);
        for (rank, ((diary, end), expected)) in ends.iter().zip(&self.reference.diaries).enumerate() {
            let context = format!("worker {rank} of {context}: {end:?}");
            assert!(expected.pages.starts_with(&diary.pages), "other bits: {context}");
            match end {
                Some(Ok(())) => assert!(
                    self.has(rank, |how| how == How::Leaves) || diary.pages == expected.pages,
                    "not to the end: {context}"
                ),
                Some(Err(error)) => self.names_one_at_fault(rank, error, &context),
                None => {}
            }
        }
        let is_silent = self.generation.faults.iter().any(|fault| fault.how == How::Stalls);
        assert!(is_silent || schedule.time < DEADLINE, "somebody waited for a time-out: {context}");
        if let Some(old) = self.from
            && ends.iter().all(|(diary, _)| !diary.joined.is_empty())
        {
            let new = ends.iter().map(|(diary, _)| diary.joined.clone()).collect::<Vec<_>>();
            regroup::assert_close(&regroup::residue(old), &regroup::residue(&new), &context);
        }
    }

    fn has(&self, rank: usize, how: impl Fn(How) -> bool) -> bool {
        self.generation.faults.iter().any(|fault| fault.rank == rank && how(fault.how))
    }

    /// A worker at fault may end in any way, but others only because of one.
    fn names_one_at_fault(&self, rank: usize, error: &Error, context: &str) {
        if self.has(rank, |how| !how.is_harmless()) {
            return;
        }
        let mut at_fault = self.generation.faults.iter().filter(|fault| !fault.how.is_harmless());
        let text = error.to_string();
        assert!(at_fault.any(|fault| text.contains(&format!("worker {} ", fault.rank))), "who? {context}");
    }
}

impl Outcome {
    fn count(&mut self, generation: &Generation, ends: &[(Diary, Option<Result<()>>)], schedule: Schedule) {
        self.groups += 1;
        self.regrouped += u64::from(self.groups > 1);
        self.steps += ends.iter().map(|(diary, _)| diary.steps).sum::<u64>();
        self.events += schedule.events;
        self.faults += generation.faults.len() as u64;
        self.failed += u64::from(ends.iter().any(|(_, end)| !matches!(end, Some(Ok(())))));
        self.trace = self.trace.rotate_left(7) ^ schedule.trace;
    }

    fn add(&mut self, other: &Outcome) {
        self.groups += other.groups;
        self.regrouped += other.regrouped;
        self.steps += other.steps;
        self.events += other.events;
        self.faults += other.faults;
        self.failed += other.failed;
        self.from_older += other.from_older;
        self.started_over += other.started_over;
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} = {text}: expected a number")))
}

/// The same, and how to see it again if it fails.
fn told(seed: u64) -> Outcome {
    catch_unwind(|| schedule(seed, None)).unwrap_or_else(|thrown| {
        eprintln!("seed {seed} fails: THINWIRE_SIM_SEED={seed} cargo test -p thinwire --test it simulated::");
        resume_unwind(thrown)
    })
}

/// What comes of each seed.
fn outcomes(seeds: Range<u64>, threads: usize) -> Outcome {
    std::thread::scope(|scope| {
        let some = |first: usize| seeds.clone().skip(first).step_by(threads);
        let sum = |mut sum: Outcome, seed| {
            sum.add(&told(seed));
            sum
        };
        let threads = (0..threads).map(|first| scope.spawn(move || some(first).fold(Outcome::default(), sum)));
        let ends = threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join());
        ends.fold(Outcome::default(), |mut sum, end| {
            sum.add(&end.unwrap_or_else(|thrown| resume_unwind(thrown)));
            sum
        })
    })
}

#[test]
fn whatever_the_order_every_run_ends_with_the_same_bits() {
    if let Some(seed) = variable("THINWIRE_SIM_SEED") {
        println!("seed {seed}, {:#?}: {:#?}", Setup::of(&mut Chance::new(seed)), told(seed));
        return;
    }
    let (first, seeds) = (variable("THINWIRE_SIM_FROM").unwrap_or(0), variable("THINWIRE_SIM_SEEDS").unwrap_or(300));
    let (began, threads) = (std::time::Instant::now(), std::thread::available_parallelism().map_or(1, usize::from));
    let sum = outcomes(first..first + seeds, threads);
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{seeds} schedules in {seconds:.1} s, {:.0} a minute: {} groups, {} of them from a checkpoint, {} steps, {} switches, {} faults, \
         {} groups that failed, {} went on from an older checkpoint, {} started over",
        seeds as f64 / seconds * 60.0,
        sum.groups,
        sum.regrouped,
        sum.steps,
        sum.events,
        sum.faults,
        sum.failed,
        sum.from_older,
        sum.started_over
    );
    let all = [sum.regrouped, sum.failed, sum.from_older, sum.started_over];
    assert!(all.iter().all(|count| *count > 0), "the schedules leave something out: {all:?}");
}

#[test]
fn a_seed_replays() {
    for seed in 0..13 {
        assert_eq!(told(seed), told(seed), "seed {seed}");
    }
}

/// Or the tests above would pass whatever the transport did.
#[test]
fn lost_wake_ups_and_messages_out_of_order_are_found() {
    for wrong in [Wrong::Scheduler(Broken::LosesOne), Wrong::Scheduler(Broken::LosesAll), Wrong::Order] {
        let found = (0..300).find(|seed| catch_unwind(|| schedule(*seed, Some(wrong))).is_err());
        println!("{wrong:?}: found by seed {found:?}");
        assert!(found.is_some(), "{wrong:?} is not found");
    }
}

/// It gives up when it is told to, long before the deadline, and until then a message still arrives.
#[test]
fn a_waiting_worker_looks_around() {
    for seed in 0..100 {
        let [mut worker, mut other] = simulated::group(2, DEADLINE).try_into().ok().expect("two ends");
        let looks = AtomicU64::new(0);
        worker.look_around(Duration::from_millis(20), move || match looks.fetch_add(1, Ordering::Relaxed) {
            0..10 => Ok(()),
            _ => Err(Error::Transport { problem: "told to".to_owned() }),
        });
        let waits: Box<dyn FnOnce() + Send> = Box::new(move || {
            let mut message = Vec::new();
            worker.receive(1, &mut message, "a test").expect("within ten looks");
            assert_eq!(message, b"word");
            let error = worker.receive(1, &mut message, "a test").expect_err("no more comes");
            assert!(error.to_string().contains("told to"), "{error}");
        });
        let sends: Box<dyn FnOnce() + Send> = Box::new(move || {
            scheduler::sleep(Duration::from_millis(50)); // a few looks
            other.send(0, b"word", "a test").expect("it is there");
            scheduler::sleep(DEADLINE / 2);
        });
        let (ends, schedule) = scheduler::run(seed, None, Duration::ZERO, vec![waits, sends]);
        ends.into_iter().for_each(|end| end.unwrap_or_else(|thrown| resume_unwind(thrown)));
        assert!(schedule.time < DEADLINE, "seed {seed}");
    }
}
