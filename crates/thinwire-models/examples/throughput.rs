//! How fast a built-in network learns, forward and backward on one thread: `cargo run --release --example throughput gpt`.
//!
//! Prints examples a second. `benchmarks/throughput/` holds the same networks in PyTorch.

use std::time::{Duration, Instant};
use thinwire_models::images::{Images, Split};
use thinwire_models::random::Random;
use thinwire_models::task::gpt::Gpt;
use thinwire_models::task::images::ImageTask;
use thinwire_models::text::Corpus;
use thinwire_models::tokenizer::Tokenizer;
use thinwire_models::transformer::Shape;
use thinwire_models::{Share, Task};

fn main() {
    let mut words = std::env::args().skip(1);
    let network = words.next().unwrap_or_default();
    let seconds = words.next().map_or(5.0, |word| word.parse().expect("a number of seconds"));
    let (task, batch): (Box<dyn Task>, usize) = match network.as_str() {
        "gpt" => (Box::new(gpt()), 8),
        "resnet" => (Box::new(resnet()), 16),
        other => panic!("{other:?} is not a network; there are: gpt, resnet"),
    };
    println!("{:.0}", throughput(&*task, batch, Duration::from_secs_f64(seconds)));
}

fn throughput(task: &dyn Task, batch: usize, time: Duration) -> f64 {
    let params = task.initial(1);
    let mut grad = vec![0.0; params.len()];
    let mut learner = task.learner(Share { rank: 0, workers: 1 }, batch, 1);
    let mut step = |index| {
        grad.fill(0.0);
        learner.learn(&params, index, 1.0, &mut grad);
    };
    (0..10).for_each(&mut step);
    let start = Instant::now();
    let mut steps = 0;
    while start.elapsed() < time {
        step(steps);
        steps += 1;
    }
    (steps as usize * task.units(batch)) as f64 / start.elapsed().as_secs_f64()
}

/// Images as MNIST's: 28×28, one channel, ten classes.
fn resnet() -> ImageTask {
    let mut random = Random::of(&[1]);
    let mut split = |count: usize| Split {
        pixels: (0..count * 28 * 28).map(|_| random.below(256) as u8).collect(),
        labels: (0..count).map(|_| random.below(10) as u8).collect(),
    };
    let images = Images { channels: 1, height: 28, width: 28, classes: 10, train: split(1000), held_out: split(10) };
    ImageTask::new(images, 16, 1).expect("sizes that fit")
}

/// The tiny gpt, with a context of 128.
fn gpt() -> Gpt {
    let mut random = Random::of(&[1]);
    let mut text = |count: usize| (0..count).map(|_| random.below(256) as u32).collect::<Vec<_>>();
    let corpus = Corpus { train: text(100_000), held_out: text(1000) };
    let shape = Shape { vocabulary: 256, context: 128, layers: 4, dim: 128, heads: 4, causal: true, classes: 0 };
    Gpt::new(corpus, Tokenizer::Bytes, shape).expect("sizes that fit")
}
