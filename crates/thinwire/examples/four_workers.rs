//! Four workers fit one model, each with its own data: cargo run --release -p thinwire --example four_workers

use thinwire::{Config, LearningRate, Name, Plan, Result, Worker, threads};

const STEPS: u64 = 400;
const SIZE: usize = 10_000;

/// The gradient of ‖x − target‖²/2, as worker `rank` sees it: its noise is its own, and averages out.
fn gradient(x: &[f32], rank: usize, step: u64) -> Vec<f32> {
    let noise = |i: usize| ((i * 37 + rank * 1013 + step as usize * 7919) as f32).sin();
    x.iter().enumerate().map(|(i, x)| x - target(i) + noise(i)).collect()
}

fn target(i: usize) -> f32 {
    (i as f32).cos()
}

fn main() -> Result<()> {
    let cosine = r#"{ peak = 0.02, warmup = 40, decay = "cosine", steps = 400 }"#;
    let config = Config::from_toml(&format!("name = \"zero-one-adam\"\nlearning_rate = {cosine}\nweight_decay = 0.0"))?;
    let schedule: LearningRate = config.learning_rate.clone().expect("just written");

    let ends = threads::run(4, |group| {
        let mut x = vec![0.0; SIZE];
        let mut worker = Worker::new(&config, &x, Box::new(group))?;
        for step in 0..STEPS {
            let grad = gradient(&x, worker.rank(), step);
            worker.step(&mut x, &grad, schedule.at(step))?;
        }
        worker.sync(&mut x)?;
        Result::Ok((x, worker.traffic()))
    });
    let ends = ends.into_iter().collect::<Result<Vec<_>>>()?;

    let (x, traffic) = &ends[0];
    let error = x.iter().enumerate().map(|(i, x)| (x - target(i)).powi(2)).sum::<f32>() / SIZE as f32;
    let adam = Plan::new(&Config::new(Name::ADAM), SIZE, 4, STEPS)?.bytes_sent(0);
    println!("mean squared error {error:.4}; rounds {:?}", traffic.rounds);
    println!("sent {} bytes a worker; Adam would have sent {adam}", traffic.bytes_sent);

    assert!(ends.iter().all(|(other, _)| other == x), "all replicas are bit-identical after a sync");
    assert!(error < 0.01 && traffic.bytes_sent * 5 < adam);
    Ok(())
}
