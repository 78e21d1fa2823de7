//! A coarse mean against the exact mean it replaces, in shared memory: `cargo bench --bench mean [-- MILLIONS OF VALUES]`.
//!
//! Two and four workers on threads average a vector in place, exactly (f32) and coarsely (sign), a few rounds of each by turns; the ratio
//! of the medians is what counts.

use std::time::Instant;
use thinwire::inside::machine::Floats;
use thinwire::{CodecName, Mean, MeanOptions, threads};

const TURNS: usize = 5;
const ROUNDS: usize = 3;

fn main() {
    let millions = std::env::args().filter_map(|arg| arg.parse::<usize>().ok()).next().unwrap_or(25);
    for workers in [2, 4] {
        let (mut exact, mut coarse) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            exact.extend(measure(workers, millions * 1_000_000, CodecName::F32));
            coarse.extend(measure(workers, millions * 1_000_000, CodecName::Sign));
        }
        let (exact, coarse) = (median(&exact) * 1e3, median(&coarse) * 1e3);
        let ratio = exact / coarse;
        println!(
            "{millions}M values, {workers} workers: exact mean {exact:.1} ms, coarse mean {coarse:.1} ms, {ratio:.2} times faster"
        );
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds of each round of worker 0, after one that touches all memory for the first time.
fn measure(workers: usize, len: usize, codec: CodecName) -> Vec<f64> {
    let options = MeanOptions { feedback: codec != CodecName::F32, ..MeanOptions::of(codec) };
    let times = threads::run(workers, |group| {
        let mut mean = Mean::new(len, options, group).expect("room for it");
        let mut x = Floats::zeroed(len);
        x.iter_mut().enumerate().for_each(|(i, x)| *x = ((i * 2_654_435_761) % 1000) as f32 / 1000.0 - 0.5);
        let mut take = || {
            let start = Instant::now();
            mean.take(&mut x).expect("a mean");
            start.elapsed().as_secs_f64()
        };
        (0..=ROUNDS).map(|_| take()).skip(1).collect()
    });
    times.into_iter().next().expect("at least one worker")
}
