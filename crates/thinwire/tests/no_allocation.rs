//! No step allocates after the first.
//!
//! The allocator of this program counts for each thread; a worker is a thread.

#[path = "it/common/optimizers.rs"]
#[allow(dead_code)] // it uses a part of the file
mod optimizers;
#[path = "it/common/toy.rs"]
mod toy;
#[path = "it/common/runs.rs"]
#[allow(dead_code)] // it uses a part of the file
mod runs;

use runs::{LEN, PLACES, Replica, STEPS, TOPOLOGIES, cases, config, together, together_on};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread on its way out has no counter, and nothing to count.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Allocations of this thread during `work`.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// What each step of a run allocates, and a sync at its end, by rank.
fn by_step(words: &str, hosts: &[usize], len: usize) -> Vec<Vec<u64>> {
    let config = config(words);
    together_on(hosts, |group| {
        let mut replica = Replica::new(&config, len, group)?;
        let mut counts = Vec::new();
        for _ in 0..STEPS {
            counts.push(allocations(|| replica.step().unwrap()));
        }
        counts.push(allocations(|| replica.sync().unwrap()));
        Ok(counts)
    })
}

/// Messages that are longer than the greeting, where the groups of the case do not fix the length; and many short ones.
fn sizes(words: &str) -> [(usize, &'static str); 2] {
    let long = if words.contains("groups") || words.contains("tensors") { LEN } else { 3000 };
    [(long, "bucket = 100000"), (LEN, "bucket = 1")]
}

fn check(workers: usize, words: &str) {
    check_on(&vec![0; workers], words);
}

fn check_on(hosts: &[usize], words: &str) {
    for topology in TOPOLOGIES {
        for (len, bucket) in sizes(words) {
            let words = format!("{words}; topology = '{topology}'; {bucket}");
            for by_step in by_step(&words, hosts, len) {
                assert!(by_step[1..].iter().all(|count| *count == 0), "{words}, workers on {hosts:?}: {by_step:?}");
            }
        }
    }
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(10)))), 1);
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![0u8; 10]))), 1);
    assert_eq!(allocations(|| {}), 0);
}

#[test]
fn no_step_allocates_after_the_first_in_one_worker() {
    cases().iter().for_each(|words| check(1, words));
}

/// Also when one worker is ahead of another: how far depends on the machine, so often.
#[test]
fn no_step_allocates_after_the_first_in_three_workers() {
    for _ in 0..4 {
        cases().iter().for_each(|words| check(3, words));
    }
}

/// On two levels messages between workers of a host are more, and longer.
#[test]
fn no_step_allocates_after_the_first_on_hosts() {
    for hosts in PLACES {
        cases().iter().for_each(|words| check_on(hosts, words));
        check_on(hosts, "name = 'zero-one-adam'; kappa = 2; sync_every = 3; hierarchy = 'hosts'; host_codec = 'bf16'");
    }
}

#[test]
fn leaving_a_gradient_out_allocates_nothing() {
    for words in &cases() {
        let config = config(&format!("{words}; non_finite = 'skip'"));
        let counts = together(3, |group| {
            let mut replica = Replica::new(&config, LEN, group)?;
            replica.step()?;
            let bad = |step: u64, rank: usize| step % 3 == rank as u64;
            let step = |replica: &mut Replica| {
                let bad = bad(replica.worker.steps(), replica.worker.rank());
                allocations(|| replica.step_with(|gradient| gradient[0] = if bad { f32::NAN } else { 0.0 }).unwrap())
            };
            Ok((1..STEPS).map(|_| step(&mut replica)).sum::<u64>())
        });
        assert_eq!(counts, [0, 0, 0], "{words}");
    }
}
