//! Configurations: TOML and JSON of whoever. What is taken is the same after it was written and read again, and a worker can use it.

use crate::{Input, is_short};
use thinwire::{Config, Plan, Solo, Worker};

pub fn config(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let is_json = input.flag();
    let Ok(text) = std::str::from_utf8(input.rest()) else { return };
    let read = if is_json { Config::from_json(text) } else { Config::from_toml(text) };
    let Ok(config) = read.map_err(is_short) else { return };
    let Ok(resolved) = config.resolved().map_err(is_short) else { return };
    let written = serde_json::to_string(&resolved).expect("plain data");
    let again = Config::from_json(&written).unwrap_or_else(|error| panic!("{written}: {error}"));
    assert_eq!(again, resolved, "{written}");
    assert_eq!(again.resolved().expect("what was resolved"), resolved);
    if let Some(schedule) = &config.learning_rate {
        for t in [0, 1, schedule.warmup, schedule.steps, u64::MAX - 1] {
            assert!(schedule.at(t).is_finite(), "{schedule:?} at {t}");
        }
    }
    works(&resolved);
}

/// Plans and steps; threads are few here, because each input would start them anew.
fn works(config: &Config) {
    let config = Config { threads: Some(1), ..config.clone() };
    if let Ok(plan) = Plan::new(&config, 37, 3, 50).map_err(is_short) {
        assert!(plan.bits_per_param_per_step().is_finite());
        plan.round(u64::MAX - 1);
    }
    let mut x = vec![0.5; 37];
    let Ok(mut worker) = Worker::new(&config, &x, Box::new(Solo)).map_err(is_short) else { return };
    for _ in 0..4 {
        let gradient = x.clone();
        if worker.step(&mut x, &gradient, 0.01).map_err(is_short).is_err() {
            return;
        }
    }
}
