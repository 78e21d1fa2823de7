//! A program on the engine and the gpt task, for looking around before the command was ready; see command.txt.

use thinwire::*;
use thinwire_models::{task::gpt::Gpt, text::Corpus, tokenizer::Tokenizer, transformer::Shape, Share, Task};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    // study TEXT STEPS WARMUP LR SEED DECAY TOML
    let text: Vec<u32> = std::fs::read(&a[1]).unwrap().into_iter().map(u32::from).collect();
    let (steps, warmup, lr, seed): (u64, u64, f64, u64) = (a[2].parse().unwrap(), a[3].parse().unwrap(), a[4].parse().unwrap(), a[5].parse().unwrap());
    let (batch, context) = (4, 64);
    let cut = text.len() * 9 / 10;
    let corpus = Corpus { train: text[..cut].to_vec(), held_out: text[cut..].to_vec() };
    let shape = Shape { vocabulary: 256, context, layers: 4, dim: 128, heads: 4, causal: true, classes: 0 };
    let task = Gpt::new(corpus, Tokenizer::Bytes, shape).unwrap();
    let toml = format!("{}\nlearning_rate = {{ peak = {lr}, warmup = {warmup}, decay = \"{}\", steps = {steps}, floor = 0.0 }}\n", a[7].replace(';', "\n"), a[6]);
    let mut config = Config::from_toml(&toml).unwrap();
    let schedule = config.learning_rate.clone().unwrap();
    let mut groups = vec![];
    for t in task.tensors().iter() {
        groups.push(thinwire::groups::Group { length: t.range.len(), lr_scale: 1.0, weight_decay: Some(if t.decays() { 0.1 } else { 0.0 }) });
    }
    config.groups = groups;
    let clip: f32 = std::env::var("CLIP").map_or(0.0, |c| c.parse().unwrap());
    let began = std::time::Instant::now();
    let ends = threads::run(4, |group| {
        let mut params = task.initial(seed);
        let mut w = Worker::new(&config, &params, Box::new(group)).unwrap();
        let mut learner = task.learner(Share { rank: w.rank(), workers: 4 }, batch, seed);
        let mut grad = vec![0.0; params.len()];
        let mut train = 0.0;
        let verbose = w.rank() == 0 && std::env::var("V").is_ok();
        for t in 0..steps {
            grad.fill(0.0);
            let loss = learner.learn(&params, t, 1.0, &mut grad);
            if clip > 0.0 { let n = grad.iter().map(|g| g * g).sum::<f32>().sqrt(); if n > clip { grad.iter_mut().for_each(|g| *g *= clip / n); } }
            if t + 50 >= steps { train += loss / 50.0; }
            if verbose && t % 50 == 0 { eprintln!("{t} {loss}"); }
            w.step(&mut params, &grad, schedule.at(t)).unwrap();
        }
        w.sync(&mut params).unwrap();
        let s = learner.evaluate(&params, 1000);
        (s, train, w.traffic(), params.len())
    });
    let mut score = thinwire_models::Score::default();
    let mut train = 0.0;
    for e in &ends { score.add(&e.0); train += e.1 / 4.0; }
    let t = ends[0].2;
    println!("{:.4} train {train:.4} bits/p {:.3} rounds {:?} {:.0}s | lr {lr} seed {seed} {} {} {}", score.mean_loss(), t.bytes_sent as f64 * 8.0 / 1.5 / ends[0].3 as f64 / steps as f64, t.rounds, began.elapsed().as_secs_f64(), a[7], a[6], warmup);
}
