//! The laws of the `gpt` task: what it sees is a function of the step, and its evaluation one of the parameters.

use std::ops::ControlFlow;
use thinwire_models::task::gpt::Gpt;
use thinwire_models::text::Corpus;
use thinwire_models::tokenizer::Tokenizer;
use thinwire_models::transformer::Shape;
use thinwire_models::{Result, Score, Share, Task};

const BATCH: usize = 3;

fn task() -> Gpt {
    with_context(16).unwrap()
}

fn with_context(context: usize) -> Result<Gpt> {
    let text = (0..2000u32).map(|i| i.wrapping_mul(2_654_435_761) >> 24);
    let corpus = Corpus { train: text.clone().collect(), held_out: text.skip(1300).collect() };
    let shape = Shape { vocabulary: 0, context, layers: 1, dim: 8, heads: 2, causal: true, classes: 0 };
    Gpt::new(corpus, Tokenizer::Bytes, shape)
}

/// Loss and gradient of each micro-batch of `indices`, in this order, by one learner.
fn micro_batches(task: &Gpt, seed: u64, rank: usize, indices: &[u64]) -> Vec<(f32, Vec<f32>)> {
    let params = task.initial(1);
    let mut learner = task.learner(Share { rank, workers: 2 }, BATCH, seed);
    let one = |&index| {
        let mut grad = vec![0.0; params.len()];
        (learner.learn(&params, index, 1.0, &mut grad), grad)
    };
    indices.iter().map(one).collect()
}

#[test]
fn a_micro_batch_is_a_function_of_seed_rank_and_index() {
    let task = task();
    let forwards = micro_batches(&task, 7, 0, &[0, 1, 2]);
    let mut backwards = micro_batches(&task, 7, 0, &[2, 1, 0]);
    backwards.reverse();
    assert_eq!(forwards, backwards);
    let mut others = [(8, 0, 0), (7, 1, 0), (7, 0, 1)].map(|(seed, rank, index)| {
        let micro_batch = micro_batches(&task, seed, rank, &[index]);
        micro_batch.into_iter().next().unwrap()
    });
    others.iter_mut().for_each(|other| assert_ne!(*other, forwards[0]));
}

#[test]
fn the_loss_of_learn_is_the_mean() {
    let task = task();
    // All parameters 0: every token is equally likely.
    let params = vec![0.0; task.tensors().len()];
    let mut grad = params.clone();
    let mut learner = task.learner(Share { rank: 0, workers: 1 }, BATCH, 0);
    assert!((learner.learn(&params, 0, 1.0, &mut grad) - 256f32.ln()).abs() < 1e-5);
    assert!((learner.evaluate(&params, 100).mean_loss() - 256f64.ln()).abs() < 1e-5);
}

#[test]
fn an_evaluation_tells_how_far_it_is_and_can_be_ended() {
    let task = task();
    let params = task.initial(1);
    let mut learner = task.learner(Share { rank: 0, workers: 1 }, BATCH, 0);
    let mut seen = Vec::new();
    let watched = learner.evaluate_watched(&params, 7, &mut |done, of| {
        seen.push((done, of));
        ControlFlow::Continue(())
    });
    assert_eq!(seen, [(3, 7), (6, 7), (7, 7)]);
    assert_eq!(watched, Some(learner.evaluate(&params, 7)));
    let ended = learner.evaluate_watched(&params, 7, &mut |done, _| match done {
        3 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    assert_eq!(ended, None);
}

#[test]
fn any_number_of_workers_evaluates_the_same() {
    let task = task();
    let params = task.initial(1);
    let windows = (700 - 1) / 16;
    for examples in [1, 2, 10, windows, 1000] {
        let evaluate = |workers| {
            let mut score = Score::default();
            for rank in 0..workers {
                score.add(&task.learner(Share { rank, workers }, BATCH, 0).evaluate(&params, examples));
            }
            score
        };
        let alone = evaluate(1);
        assert_eq!(alone.count, (examples.min(windows) * 16) as u64);
        for workers in 2..=5 {
            let together = evaluate(workers);
            assert_eq!(together.count, alone.count, "{workers} workers");
            assert!((together.loss / alone.loss - 1.0).abs() < 1e-6, "{workers} workers");
        }
    }
}

#[test]
fn evaluation_is_the_same_after_learning_and_for_every_seed() {
    let task = task();
    let params = task.initial(1);
    let share = Share { rank: 0, workers: 1 };
    let mut learner = task.learner(share, BATCH, 0);
    let before = learner.evaluate(&params, 20);
    learner.learn(&params, 0, 1.0, &mut vec![0.0; params.len()]);
    assert_eq!(learner.evaluate(&params, 20), before);
    assert_eq!(task.learner(share, BATCH, 9).evaluate(&params, 20), before);
}

#[test]
fn a_text_must_have_a_window() {
    assert!(with_context(699).is_ok());
    let error = with_context(700).err().unwrap().to_string();
    assert!(error.contains("held-out text has 700 tokens"), "{error}");
}

/// At temperature 0 the seed does not matter, nor does it at one close to 0; at 1 it does.
#[test]
fn a_sample_is_a_function_of_the_seed_and_cold_ones_are_not_random() {
    let task = task();
    // Large enough that the tokens differ in how likely they are.
    let params = task.initial(1).iter().map(|value| value * 20.0).collect::<Vec<_>>();
    let sample = |temperature, seed| task.sample(&params, "once", 30, temperature, seed);
    assert!(sample(1.0, 1).starts_with("once"));
    assert_eq!(sample(1.0, 1), sample(1.0, 1));
    assert_ne!(sample(1.0, 1), sample(1.0, 2));
    assert_eq!(sample(0.0, 1), sample(0.0, 2));
    assert_eq!(sample(0.0, 1), sample(1e-6, 1));
}
