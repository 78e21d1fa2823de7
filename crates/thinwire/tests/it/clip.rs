//! Clipping: the mean's norm in exact steps, the worker's own in all others.

use thinwire::{Config, Result, Worker, threads};

const LEN: usize = 700;
const WORKERS: usize = 3;
const STEPS: u64 = 12;

/// Gradients that partly cancel: each is longer than their mean.
fn gradient(worker: usize, step: u64) -> Vec<f32> {
    let common = |i: usize| ((i * 7 + step as usize) % 11) as f32 * 0.01 - 0.05;
    let own = |i: usize| ((i * 13 + worker * 5 + step as usize * 3) % 17) as f32 - 8.0;
    (0..LEN).map(|i| common(i) + own(i)).collect()
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

fn scaled(x: &[f32], limit: f64) -> Vec<f32> {
    let factor = (limit / norm(x)).min(1.0) as f32;
    x.iter().map(|x| x * factor).collect()
}

fn mean(step: u64) -> Vec<f32> {
    let all = (0..WORKERS).map(|worker| gradient(worker, step)).collect::<Vec<_>>();
    (0..LEN).map(|i| all.iter().map(|g| g[i]).sum::<f32>() / WORKERS as f32).collect()
}

/// Trains on what `gradient` gives each worker at each step.
fn train(words: &str, gradient: impl Fn(usize, u64) -> Vec<f32> + Sync) -> Vec<f32> {
    let config = Config::from_toml(words).expect("valid");
    let ends = threads::run(WORKERS, |group| -> Result<Vec<f32>> {
        let mut params = (0..LEN).map(|i| (i % 5) as f32).collect::<Vec<_>>();
        let mut worker = Worker::new(&config, &params, Box::new(group))?;
        for step in 0..STEPS {
            let rank = worker.rank();
            worker.step(&mut params, &gradient(rank, step), 0.01)?;
        }
        worker.sync(&mut params)?;
        Ok(params)
    });
    ends.into_iter().map(|end| end.expect("trained")).next().expect("a worker")
}

fn assert_close(got: &[f32], expected: &[f32]) {
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= 2e-5 * expected.abs().max(1.0), "value {i}: {got}, not {expected}");
    }
}

/// Adam on the mean, clipped by hand, is Adam that clips the mean; clipping each worker's own would be something else.
#[test]
fn an_exact_step_clips_the_mean() {
    let limit = norm(&mean(3)) * 0.7;
    assert!(norm(&gradient(0, 3)) > 1.2 * norm(&mean(3)), "the test needs gradients that partly cancel");
    let clipped = train(&format!("name = \"adam\"\nclip = {limit}"), gradient);
    assert_close(&clipped, &train("name = \"adam\"", |_, step| scaled(&mean(step), limit)));
    let own = train("name = \"adam\"", |worker, step| scaled(&gradient(worker, step), limit));
    assert!(clipped.iter().zip(&own).any(|(a, b)| (a - b).abs() > 1e-3));
}

/// Steps 1, 2, … of 0/1 Adam are coarse or skipped, all but the first of 1-bit Adam and 1-bit LAMB are coarse, all of Efficient-Adam, local Adam, Lion and
/// Birder. Where the
/// variance is the mean's, own gradients may be √n times as long.
#[test]
fn all_other_steps_clip_the_workers_own() {
    let limit = 20.0;
    let longer = limit * (WORKERS as f64).sqrt();
    for (words, exact, own) in [
        (
            "name = \"zero-one-adam\"\nvariance_steps = [0]\nsync_every = 4\nsync = \"every\"\ncodec = \"f32\"\nexact_codec = \"f32\"",
            1,
            longer,
        ),
        ("name = \"one-bit-adam\"\nwarmup = 1\ncodec = \"f32\"", 1, longer),
        ("name = \"one-bit-lamb\"\nwarmup = 1\ncodec = \"f32\"", 1, longer),
        ("name = \"efficient-adam\"\ncodec = \"f32\"", 0, limit),
        ("name = \"local-adam\"\nsync_every = 3", 0, limit),
        ("name = \"lion\"\ncodec = \"f32\"\nmomentum_every = 4", 0, limit),
        ("name = \"birder\"\ncodec = \"f32\"", 0, limit),
    ] {
        let by_hand = |worker: usize, step: u64| match step < exact {
            true => scaled(&mean(step), limit),
            false => scaled(&gradient(worker, step), own),
        };
        assert!(norm(&gradient(1, 5)) > longer);
        assert_close(&train(&format!("{words}\nclip = {limit}"), gradient), &train(words, by_hand));
    }
}

/// A limit that nothing reaches changes no bit.
#[test]
fn short_gradients_stay_as_they_are() {
    for name in
        ["adam", "one-bit-adam", "zero-one-adam", "efficient-adam", "local-adam", "lion", "birder", "one-bit-lamb"]
    {
        let words = format!("name = \"{name}\"");
        let words = if name.starts_with("one-bit") { words + "\nwarmup = 4" } else { words };
        assert_eq!(train(&format!("{words}\nclip = 1e9"), gradient), train(&words, gradient), "{name}");
    }
}

#[test]
fn a_limit_must_be_a_limit() {
    for clip in ["0.0", "-1.0", "nan", "inf"] {
        let config = Config::from_toml(&format!("name = \"adam\"\nclip = {clip}")).expect("syntax");
        let error = config.resolved().expect_err(clip).to_string();
        assert!(error.starts_with("invalid clip = ") && error.contains("a number above 0"), "{error}");
    }
}
