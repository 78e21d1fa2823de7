//! No call of `learn` allocates after the first.
//!
//! The allocator of this program counts for each thread. The crate `gemm` takes room for each product, flags and packed
//! matrices, and gives it back at its end. It is told from ours by its alignment: single bytes and cache lines, while ours
//! is of numbers of 4 or 8 bytes. What `gemm` takes is not counted, but must be given back.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use thinwire_models::sentences::{Example, Sentences};
use thinwire_models::task::bert::Bert;
use thinwire_models::task::bert_classifier::BertClassifier;
use thinwire_models::task::gpt::Gpt;
use thinwire_models::text::Corpus;
use thinwire_models::tokenizer::Tokenizer;
use thinwire_models::transformer::Shape;
use thinwire_models::{Share, Task};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Blocks of `gemm` that were not given back.
    static OF_GEMM: Cell<i64> = const { Cell::new(0) };
}

fn is_of_gemm(layout: Layout) -> bool {
    layout.align() == 1 || layout.align() >= 64
}

// A thread on its way out has no counters, and nothing to count.
fn take(layout: Layout) {
    let _ = match is_of_gemm(layout) {
        true => OF_GEMM.try_with(|count| count.set(count.get() + 1)),
        false => ALLOCATIONS.try_with(|count| count.set(count.get() + 1)),
    };
}

fn give_back(layout: Layout) {
    if is_of_gemm(layout) {
        let _ = OF_GEMM.try_with(|count| count.set(count.get() - 1));
    }
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        give_back(layout);
        take(layout);
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        give_back(layout);
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Allocations of this thread during `work`, and blocks of `gemm` that are left.
fn allocations(work: impl FnOnce()) -> (u64, i64) {
    let before = (ALLOCATIONS.get(), OF_GEMM.get());
    work();
    (ALLOCATIONS.get() - before.0, OF_GEMM.get() - before.1)
}

/// What each of a few calls of `learn` allocates.
fn by_call(task: &dyn Task) -> Vec<(u64, i64)> {
    let params = task.initial(0);
    let mut grad = vec![0.0; params.len()];
    let mut learner = task.learner(Share { rank: 0, workers: 1 }, 3, 0);
    (0..12).map(|index| allocations(|| _ = learner.learn(&params, index, 1.0, &mut grad))).collect()
}

fn assert_none_after_the_first(task: &dyn Task) {
    let by_call = by_call(task);
    assert!(by_call[1..].iter().all(|count| *count == (0, 0)), "{by_call:?}");
}

/// Larger than attention's blocks of rows, and than what a matrix product can keep on its stack.
const SHAPE: Shape = Shape { vocabulary: 0, context: 70, layers: 2, dim: 64, heads: 2, causal: true, classes: 0 };

fn text() -> Vec<u32> {
    (0..2000u32).map(|i| i.wrapping_mul(2_654_435_761) >> 24).collect()
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(black_box(Vec::<u32>::with_capacity(10)))), (1, 0));
    assert_eq!(allocations(|| drop(black_box(vec![0.0f32; 10]))), (1, 0));
    assert_eq!(allocations(|| drop(black_box(vec![0u8; 10]))), (0, 0));
    assert_eq!(allocations(|| std::mem::forget(black_box(vec![0u8; 10]))), (0, 1));
    assert_eq!(allocations(|| {}), (0, 0));
}

#[test]
fn gpt() {
    let corpus = Corpus { train: text(), held_out: text() };
    assert_none_after_the_first(&Gpt::new(corpus, Tokenizer::Bytes, SHAPE).unwrap());
}

#[test]
fn bert() {
    let corpus = Corpus { train: text(), held_out: text() };
    assert_none_after_the_first(&Bert::new(corpus, &Tokenizer::Bytes, SHAPE).unwrap());
}

/// Several epochs, of sentences of different lengths.
#[test]
fn bert_classifier() {
    let example = |i: usize| Example { label: i % 2, text: "a".repeat(1 + i * 4), pair: None };
    let sentences = Sentences { classes: vec!["even".into(), "odd".into()], examples: (0..20).map(example).collect() };
    assert_none_after_the_first(&BertClassifier::new(sentences, None, &Tokenizer::Bytes, SHAPE).unwrap());
}
