//! The `bert` task and its fine-tuning: they learn, and they keep the laws of a task.

use thinwire_models::sentences::{Example, Sentences};
use thinwire_models::task::bert::Bert;
use thinwire_models::task::bert_classifier::BertClassifier;
use thinwire_models::text::Corpus;
use thinwire_models::tokenizer::Tokenizer;
use thinwire_models::transformer::Shape;
use thinwire_models::{Score, Share, Task};

const SHAPE: Shape = Shape { vocabulary: 0, context: 18, layers: 1, dim: 32, heads: 2, causal: false, classes: 0 };
const ALONE: Share = Share { rank: 0, workers: 1 };

/// Eight letters, each in runs longer than a window: a hidden letter can be told from those around it, and only from them.
fn corpus() -> Corpus {
    let text = (0..).map(|place| u32::from(b'a') + place / 60 % 8);
    Corpus { train: text.clone().take(2000).collect(), held_out: text.skip(17).take(960).collect() }
}

fn bert() -> Bert {
    Bert::new(corpus(), &Tokenizer::Bytes, SHAPE).unwrap()
}

/// Sentences of noise with either `?` or `!` somewhere, which is all that matters.
fn sentences(count: u64) -> Sentences {
    let example = |number: u64| {
        let noise = |i: u64| char::from(b'a' + ((number * 31 + i * i * 7 + number * i) % 26) as u8);
        let mut text = (0..6 + number % 12).map(noise).collect::<String>();
        let label = (number * 5 / 3 % 2) as usize;
        text.insert((number % 6) as usize, ['?', '!'][label]);
        Example { label, text, pair: number.is_multiple_of(4).then(|| "xyz".into()) }
    };
    Sentences { classes: vec!["question".into(), "cry".into()], examples: (0..count).map(example).collect() }
}

fn classifier() -> BertClassifier {
    BertClassifier::new(sentences(300), None, &Tokenizer::Bytes, SHAPE).unwrap()
}

/// Plain Adam, by one worker.
fn train(task: &dyn Task, mut params: Vec<f32>, steps: u64, rate: f32) -> Vec<f32> {
    let mut learner = task.learner(ALONE, 8, 0);
    let (mut grad, mut m, mut v) = (vec![0.0; params.len()], vec![0.0; params.len()], vec![0.0; params.len()]);
    for step in 0..steps {
        grad.fill(0.0);
        learner.learn(&params, step, 1.0, &mut grad);
        let correction = 1.0 - 0.9f32.powi(step as i32 + 1);
        let correction2 = 1.0 - 0.99f32.powi(step as i32 + 1);
        for (((x, g), m), v) in params.iter_mut().zip(&grad).zip(&mut m).zip(&mut v) {
            *m = 0.9 * *m + 0.1 * g;
            *v = 0.99 * *v + 0.01 * g * g;
            *x -= rate * (*m / correction) / ((*v / correction2).sqrt() + 1e-8);
        }
    }
    params
}

#[test]
fn bert_learns_more_than_how_often_a_letter_comes() {
    let task = bert();
    let params = train(&task, task.initial(0), 300, 3e-3);
    let loss = task.learner(ALONE, 8, 0).evaluate(&params, 1000).mean_loss();
    assert!(loss < 0.2 * 8f64.ln(), "{loss} nats; the letters alone have {}", 8f64.ln());
}

#[test]
fn the_classifier_learns() {
    let task = classifier();
    let params = train(&task, task.initial(0), 200, 3e-3);
    let score = task.learner(ALONE, 8, 0).evaluate(&params, 1000);
    assert_eq!(score.count, 60);
    assert!(score.accuracy().unwrap() > 0.95, "{score:?}");
    assert!(score.matthews().unwrap() > 0.9, "{score:?}");
}

#[test]
fn fine_tuning_starts_from_the_pre_trained_body() {
    let (pretrained, task) = (bert().initial(1), classifier());
    let params = task.initial_from(&pretrained, 2).unwrap();
    assert_eq!(params[..pretrained.len()], pretrained);
    assert_eq!(params[pretrained.len()..], task.initial(2)[pretrained.len()..]);
    assert_eq!(params.len(), pretrained.len() + 2 * 32 + 2);
    // The body is laid out alike, by name.
    let names = |task: &dyn Task| task.tensors().iter().map(|t| (t.name.clone(), t.range.clone())).collect::<Vec<_>>();
    assert!(names(&task).starts_with(&names(&bert())));

    let error = task.initial_from(&pretrained[1..], 2).unwrap_err().to_string();
    let (got, expected) = (pretrained.len() - 1, pretrained.len());
    assert!(error.contains(&got.to_string()) && error.contains(&expected.to_string()), "{error}");
}

/// Loss and gradient of each micro-batch of `indices`, in this order, by one learner.
fn micro_batches(task: &dyn Task, seed: u64, rank: usize, indices: &[u64]) -> Vec<(f32, Vec<f32>)> {
    let params = task.initial(1);
    let mut learner = task.learner(Share { rank, workers: 2 }, 3, seed);
    let one = |&index| {
        let mut grad = vec![0.0; params.len()];
        (learner.learn(&params, index, 1.0, &mut grad), grad)
    };
    indices.iter().map(one).collect()
}

#[test]
fn a_micro_batch_is_a_function_of_seed_rank_and_index() {
    for task in [&bert() as &dyn Task, &classifier()] {
        // 100 is in another epoch of the sentences.
        let forwards = micro_batches(task, 7, 0, &[0, 1, 100]);
        let mut backwards = micro_batches(task, 7, 0, &[100, 1, 0]);
        backwards.reverse();
        assert!(forwards == backwards);
        for (seed, rank, index) in [(8, 0, 0), (7, 1, 0), (7, 0, 1)] {
            assert!(micro_batches(task, seed, rank, &[index])[0] != forwards[0], "{seed}, {rank}, {index}");
        }
    }
}

/// The workers' micro-batches are parts of one sequence: two workers learn from what one would, with twice the batch.
#[test]
fn workers_share_an_epoch() {
    let task = classifier();
    let params = task.initial(1);
    let mut sums = [vec![0.0; params.len()], vec![0.0; params.len()]];
    for (workers, sum) in [1, 2].into_iter().zip(&mut sums) {
        for rank in 0..workers {
            let mut learner = task.learner(Share { rank, workers }, 8 / workers, 7);
            (0..5).for_each(|index| _ = learner.learn(&params, index, 1.0 / workers as f32, sum));
        }
    }
    let most = sums[0].iter().fold(0.0f32, |most, value| most.max(value.abs()));
    assert!(most > 0.0);
    sums[0].iter().zip(&sums[1]).for_each(|(one, two)| assert!((one - two).abs() < 1e-5 * most));
}

#[test]
fn any_number_of_workers_evaluates_the_same() {
    for task in [&bert() as &dyn Task, &classifier()] {
        let params = task.initial(1);
        for examples in [1, 10, 1000] {
            // Another batch and another seed make no difference either.
            let evaluate = |workers: usize| {
                let mut score = Score::default();
                for rank in 0..workers {
                    let mut learner = task.learner(Share { rank, workers }, workers, workers as u64);
                    score.add(&learner.evaluate(&params, examples));
                }
                score
            };
            let alone = evaluate(1);
            assert!(alone.count > 0);
            for workers in 2..=5 {
                let together = evaluate(workers);
                assert_eq!((together.count, &together.confusion), (alone.count, &alone.confusion));
                assert!((together.loss / alone.loss - 1.0).abs() < 1e-5, "{workers} workers");
            }
        }
    }
}

#[test]
fn held_out_sentences_may_list_their_classes_in_another_order() {
    let mut held_out = sentences(50);
    held_out.classes.reverse();
    held_out.examples.iter_mut().for_each(|example| example.label = 1 - example.label);
    let new = |held_out| BertClassifier::new(sentences(50), Some(held_out), &Tokenizer::Bytes, SHAPE);
    let score = |task: BertClassifier| task.learner(ALONE, 8, 0).evaluate(&task.initial(0), 100);
    assert_eq!(score(new(sentences(50)).unwrap()), score(new(held_out.clone()).unwrap()));

    held_out.classes[0] = "sigh".into();
    assert!(new(held_out).err().unwrap().to_string().contains("sigh"));
}

#[test]
fn what_cannot_be_learned_is_said() {
    let error = |result: Option<thinwire_models::Error>| result.unwrap().to_string();
    let classify = |sentences, context| {
        error(BertClassifier::new(sentences, None, &Tokenizer::Bytes, Shape { context, ..SHAPE }).err())
    };
    assert!(classify(sentences(4), 18).contains("none held out"));
    assert!(classify(sentences(0), 18).contains("none to learn from"));
    assert!(classify(sentences(50), 2).contains("context = 2"));
    assert!(classify(Sentences { classes: vec!["all".into()], ..sentences(50) }, 18).contains("classes = 1"));
    let long = Bert::new(corpus(), &Tokenizer::Bytes, Shape { context: 1000, ..SHAPE }).err();
    assert!(error(long).contains("held-out text has 960 tokens"));
}

/// By hand, and as scikit-learn has it where it is undefined.
#[test]
fn matthews_and_accuracy() {
    let of = |confusion: &[u64]| {
        let score = Score { confusion: confusion.to_vec(), ..Score::default() };
        (score.accuracy(), score.matthews())
    };
    assert_eq!(of(&[5, 0, 0, 3]), (Some(1.0), Some(1.0)));
    assert_eq!(of(&[0, 5, 3, 0]), (Some(0.0), Some(-1.0)));
    // (3·4 − 1·2) / √(4·5·5·6) = 10 / √600
    let (accuracy, matthews) = of(&[4, 1, 2, 3]);
    assert_eq!(accuracy, Some(0.7));
    assert!((matthews.unwrap() - 0.408_248_290_463_863).abs() < 1e-12);
    // One class only, in what was answered or in what was right: undefined, so 0.
    assert_eq!(of(&[5, 0, 3, 0]), (Some(0.625), Some(0.0)));
    assert_eq!(of(&[0, 0, 3, 5]).1, Some(0.0));
    // Counts whose products no u64 holds.
    assert!((of(&[4_000_000_000, 0, 0, 4_000_000_000]).1.unwrap() - 1.0).abs() < 1e-12);
    // Three classes have an accuracy; a language model has none.
    assert_eq!(of(&[2, 1, 0, 0, 1, 0, 0, 0, 1]), (Some(0.8), None));
    assert_eq!(of(&[]), (None, None));
}
