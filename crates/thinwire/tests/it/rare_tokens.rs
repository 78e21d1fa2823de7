//! Rare tokens: what becomes of parameters that had no gradient while the variance was measured.
//!
//! One bit cannot say zero: beside values that move, a coarse mean says ±s for one that does not, and s/ε would throw it away.
//! The rule (`kernel::update::LIMIT`) is that a step on a stale variance moves no parameter by more than γ̂. It must leave dead
//! parameters about where they are, and let late ones learn. Here are an embedding table and its rows; blocks are a row, eight rows or the whole table:
//!
//! | row | gradient |
//! |---|---|
//! | most | by Zipf's law: the first rows often, the last ones seldom |
//! | [`DEAD`] | never, among rows that have some |
//! | [`DEAD_BLOCK`] | never, and they fill blocks: a block of zeros says zero |
//! | [`LATE`] | from step 400 on; the variance is frozen after 60 |
//!
//! With blocks of a row a dead row is not touched at all. With longer blocks it hears ±s and moves by the limit, to and fro: what is
//! asserted is how far it ever strays, in γ. A late row must end at a fortieth of its loss. The last test has what other limits would
//! do: without one the dead rows are gone, with a very low one the late rows do not learn.

use crate::common::engine::{Run, largest, widen};
use crate::common::oracle::{Oracle, Setup};
use crate::common::problems::Random;
use crate::common::twin;
use std::ops::Range;
use std::sync::Arc;
use thinwire::options::Group;
use thinwire::options::{Freeze, Sync, Warmup};
use thinwire::{Config, Name};
use thinwire::{OneBitAdam, ZeroOneAdam};

const ROWS: usize = 64;
const WIDTH: usize = 8;
const D: usize = ROWS * WIDTH;
const DEAD: [usize; 3] = [5, 13, 58];
const DEAD_BLOCK: Range<usize> = 40..48;
const LATE: [usize; 2] = [20, 50];

const WORKERS: usize = 4;
const BATCH: usize = 16;
const LR: f32 = 0.01;
const STEPS: u64 = 1500;
const FROZEN: u64 = 60;
const LATE_FROM: u64 = 400;

/// The loss of a row is ½‖row − target‖².
struct Table {
    start: Vec<f32>,
    target: Vec<f32>,
}

impl Table {
    fn new() -> Table {
        let table = |seed, size| Random::new(seed).normals(D, size).iter().map(|x| *x as f32).collect();
        Table { start: table(5, 0.5), target: table(3, 1.0) }
    }

    /// The mean gradient of a worker's batch, with noise.
    fn gradient(&self, worker: usize, t: u64, x: &[f32]) -> Vec<f32> {
        let mut random = Random::new(Random::new((worker as u64) << 32 | t).bits());
        let mut gradient = vec![0.0; D];
        for _ in 0..BATCH {
            for k in values(draw(&mut random, t)) {
                let noise = 0.3 * random.normal() as f32;
                gradient[k] += (x[k] - self.target[k] + noise) / BATCH as f32;
            }
        }
        gradient
    }

    /// The mean loss of these rows.
    fn loss(&self, x: &[f32], rows: &[usize]) -> f64 {
        let squares = rows.iter().flat_map(|row| values(*row)).map(|k| f64::from(x[k] - self.target[k]).powi(2));
        0.5 * squares.sum::<f64>() / rows.len() as f64
    }

    /// The farthest that a value of these rows is from its start, in γ.
    fn moved(&self, x: &[f32], rows: &[usize]) -> f64 {
        largest(rows.iter().flat_map(|row| values(*row)).map(|k| f64::from((x[k] - self.start[k]) / LR)))
    }
}

/// Where a row is in the flat vector.
fn values(row: usize) -> Range<usize> {
    row * WIDTH..(row + 1) * WIDTH
}

/// A row with a gradient at step `t`, by Zipf's law; which are frequent is scattered over the table.
fn draw(random: &mut Random, t: u64) -> usize {
    loop {
        let rank = (ROWS as f64).powf(random.uniform()) as usize - 1;
        let row = (rank * 37 + 11) % ROWS;
        let dead = DEAD.contains(&row) || DEAD_BLOCK.contains(&row);
        if !dead && (t >= LATE_FROM || !LATE.contains(&row)) {
            return row;
        }
    }
}

/// Each with the farthest that it may move dead parameters in live blocks, in γ. An ordinary one travels 150 to 400.
fn optimizers() -> [(&'static str, Config, f64); 3] {
    let frozen = Some(Freeze::Step(FROZEN));
    let every = |gap| {
        Config::of(ZeroOneAdam {
            sync: Some(Sync::Every),
            sync_every: Some(gap),
            sync_start: Some(FROZEN),
            freeze: frozen,
            ..ZeroOneAdam::default()
        })
    };
    let one_bit = Config::of(OneBitAdam { warmup: Some(Warmup::Steps(FROZEN)), ..OneBitAdam::default() });
    [
        ("1-bit Adam", one_bit, 15.0),
        ("0/1 Adam, sync every step", every(1), 30.0),
        ("0/1 Adam, sync every 4", every(4), 60.0),
    ]
}

fn run(config: &Config, table: &Arc<Table>, block: usize) -> Run {
    let seen = Arc::clone(table);
    Run {
        config: Config { block: Some(block), weight_decay: Some(0.0), ..config.clone() },
        workers: WORKERS,
        start: table.start.clone(),
        rates: vec![LR; STEPS as usize],
        syncs: vec![STEPS - 1],
        gradient: Box::new(move |worker, t, x| seen.gradient(worker, t, x)),
    }
}

/// What a run comes to.
#[derive(Default)]
struct Outcome {
    x: Vec<f32>,
    /// How far the dead rows were at their farthest, at any step, in γ.
    strayed: f64,
}

fn outcome(config: &Config, table: &Arc<Table>, block: usize) -> Outcome {
    let watch = |_: &mut thinwire::Worker, x: &[f32], seen: &mut Outcome| {
        seen.strayed = largest([seen.strayed, table.moved(x, &DEAD)]);
        x.clone_into(&mut seen.x);
    };
    let mut outcomes = run(config, table, block).watched(watch);
    let strayed = largest(outcomes.iter().map(|outcome| outcome.strayed));
    Outcome { strayed, ..outcomes.swap_remove(0) }
}

#[test]
fn dead_rows_stay_and_late_rows_learn() {
    let table = Arc::new(Table::new());
    for (name, config, leash) in optimizers() {
        for block in [WIDTH, 8 * WIDTH, D] {
            let Outcome { x, strayed } = outcome(&config, &table, block);
            let what = format!("{name}, blocks of {block}");
            let in_dead_blocks = DEAD_BLOCK.flat_map(values).filter(|_| block < D);
            in_dead_blocks.for_each(|k| assert_eq!(x[k].to_bits(), table.start[k].to_bits(), "{what}: {k}"));
            assert!(strayed <= if block == WIDTH { 0.0 } else { leash }, "{what}: dead rows moved by {strayed} γ");
            let (before, after) = (table.loss(&table.start, &LATE), table.loss(&x, &LATE));
            assert!(after < before / 40.0, "{what}: late rows went from {before} to {after}");
        }
    }
}

/// A row's first gradient at a variance step makes v > 0 but small while m is still ±s: m must not be trusted there.
#[test]
fn late_rows_learn_while_the_variance_is_still_updated() {
    let table = Arc::new(Table::new());
    for block in [WIDTH, 8 * WIDTH, D] {
        let Outcome { x, .. } = outcome(&Config::new(Name::ZERO_ONE_ADAM), &table, block);
        let after = table.loss(&x, &LATE);
        assert!(after < table.loss(&table.start, &LATE) / 10.0, "blocks of {block}: late rows ended at {after}");
    }
}

/// A frozen group is as dead as a row without gradients, and must not move at all.
#[test]
fn a_frozen_group_does_not_move() {
    let table = Arc::new(Table::new());
    let part = |rows, lr_scale| Group { length: rows * WIDTH, lr_scale, weight_decay: None };
    for (name, config, _) in optimizers() {
        let config = Config { groups: vec![part(36, 1.0), part(ROWS - 36, 0.0)], ..config };
        let x = outcome(&config, &table, 8 * WIDTH).x;
        let frozen: Vec<usize> = (36..ROWS).collect();
        assert_eq!(table.moved(&x, &frozen), 0.0, "{name}");
    }
}

/// The oracle's end of a run under another limit.
fn under_limit(limit: f64, config: &Config, table: &Arc<Table>) -> Vec<f32> {
    let run = run(config, table, 8 * WIDTH);
    let mut oracle = Oracle::new(Setup { limit, ..twin::setup(&run) }, &widen(&run.start));
    let params = |oracle: &Oracle, i| oracle.params(i).iter().map(|x| *x as f32).collect::<Vec<_>>();
    for t in 0..STEPS {
        let gradients: Vec<_> = (0..WORKERS).map(|i| widen(&table.gradient(i, t, &params(&oracle, i)))).collect();
        oracle.step(f64::from(LR), &gradients);
    }
    oracle.sync();
    params(&oracle, 0)
}

/// Without a limit the dead rows are gone, with a very low one nothing learns.
#[test]
fn other_limits_lose_the_late_rows_or_the_dead_ones() {
    let table = Arc::new(Table::new());
    for (name, config, _) in optimizers() {
        let thrown = under_limit(f64::INFINITY, &config, &table);
        let moved = table.moved(&thrown, &DEAD);
        assert!(moved.is_nan() || moved > 1e5, "{name}: dead rows moved by {moved} γ only");
        let held = under_limit(0.01, &config, &table);
        let (before, after) = (table.loss(&table.start, &LATE), table.loss(&held, &LATE));
        assert!(after > before / 2.0, "{name}: late rows went from {before} to {after} by a hundredth of γ a step");
    }
}
