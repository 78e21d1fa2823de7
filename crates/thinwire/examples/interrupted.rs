//! A run that is killed between two syncs and resumed ends in the same bits: cargo run -p thinwire --example interrupted

use thinwire::{Config, Result, Worker, ZeroOneAdam, threads};

const STEPS: u64 = 50;
const STOP_AFTER: u64 = 33;

/// Trains from `x` up to step `until`, all workers of `group` alike.
fn train(worker: &mut Worker, x: &mut [f32], until: u64) -> Result<()> {
    while worker.steps() < until {
        let own = worker.rank() as f32;
        let grad = x.iter().map(|x| x - 0.1 * own).collect::<Vec<_>>();
        worker.step(x, &grad, 0.01)?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let config = Config::of(ZeroOneAdam { sync_every: Some(8), ..ZeroOneAdam::default() });
    let dir = std::env::temp_dir().join(format!("thinwire-interrupted-{}", std::process::id()));

    let whole = threads::run(3, |group| {
        let mut x = vec![1.0; 1000];
        let mut worker = Worker::new(&config, &x, Box::new(group))?;
        train(&mut worker, &mut x, STOP_AFTER)?;
        worker.save(&dir, &x)?;
        train(&mut worker, &mut x, STEPS)?;
        Result::Ok(x)
    });
    let resumed = threads::run(3, |group| {
        let mut x = vec![0.0; 1000];
        let mut worker = Worker::resume(&config, &dir, &mut x, Box::new(group))?;
        train(&mut worker, &mut x, STEPS)?;
        Result::Ok(x)
    });
    std::fs::remove_dir_all(&dir).expect("the checkpoint that was just written");

    for (whole, resumed) in whole.into_iter().zip(resumed) {
        assert_eq!(whole?, resumed?);
    }
    println!("stopped after step {STOP_AFTER} of {STEPS} and resumed: the same bits on all three workers");
    Ok(())
}
