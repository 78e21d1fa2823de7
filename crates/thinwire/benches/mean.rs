//! A coarse mean against the exact mean it replaces, in shared memory: `cargo bench --bench mean [-- MILLIONS OF VALUES]`.
//!
//! Two and four workers on threads average a vector in place, exactly (f32) and coarsely (sign), turn by turn; the ratio of
//! the medians is what counts.

use std::time::Instant;
use thinwire::CodecName;
use thinwire::Round;
use thinwire::inside::exchange::layout::{Shape, Topology};
use thinwire::inside::exchange::{Coding, Codings, Exchange};
use thinwire::inside::machine::{Host, Threads};
use thinwire::{Floats, threads};

const ROUNDS: usize = 15;
const BUCKET: usize = 4 << 20;

fn main() {
    let millions = std::env::args().filter_map(|arg| arg.parse::<usize>().ok()).next().unwrap_or(25);
    for workers in [2, 4] {
        let times = threads::run(workers, |group| measure(group, millions * 1_000_000));
        let (exact, coarse) = (median(&times[0].0) * 1e3, median(&times[0].1) * 1e3);
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

fn measure(group: threads::Thread, len: usize) -> (Vec<f64>, Vec<f64>) {
    let workers = thinwire::Collective::size(&group);
    let shape = Shape { values: len, block: 512, workers, topology: Topology::Sharded };
    let coding = |codec| Some(Coding::new(shape, codec, codec, BUCKET));
    let codings = Codings { exact: coding(CodecName::F32), coarse: coding(CodecName::Sign) };
    let mut exchange =
        Exchange::new(shape, codings, Box::new(group), Host::bare(len, Threads::new(1).expect("a thread")))
            .expect("the host has room");
    let mut x = Floats::zeroed(len);
    x.iter_mut().enumerate().for_each(|(i, x)| *x = ((i * 2_654_435_761) % 1000) as f32 / 1000.0 - 0.5);
    let (mut exact, mut coarse) = (Vec::new(), Vec::new());
    for step in 0..2 * ROUNDS as u64 {
        let round = if step % 2 == 0 { Round::Exact } else { Round::Coarse };
        let start = Instant::now();
        exchange.mean_in_place(round, step, true, &mut x).expect("a mean");
        let times = if round == Round::Exact { &mut exact } else { &mut coarse };
        times.push(start.elapsed().as_secs_f64());
    }
    (exact, coarse)
}
