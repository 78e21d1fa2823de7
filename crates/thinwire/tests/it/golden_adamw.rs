//! Adam against `torch.optim.AdamW`: a hundred steps of six settings, alone and with a twin.
//!
//! golden/adamw.py made golden/adamw.json, and says how: the gradients come from a small generator, written again here.
//! Two workers with the same gradients have that gradient as their mean, so they must agree with torch too.

use serde::Deserialize;
use std::collections::BTreeMap;
use thinwire::options::Group;
use thinwire::{Collective, Config, Name, Result, Solo, Worker, threads};

#[derive(Deserialize)]
struct Golden {
    values: usize,
    steps: usize,
    snapshots: Vec<usize>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    seed: u32,
    betas: (f64, f64),
    eps: f64,
    zero_gradient: Vec<usize>,
    groups: Vec<TorchGroup>,
    start: Vec<f32>,
    first_gradient: Vec<f32>,
    /// The parameters after so many steps.
    after: BTreeMap<usize, Vec<f32>>,
}

#[derive(Deserialize)]
struct TorchGroup {
    begin: usize,
    end: usize,
    weight_decay: f64,
    /// One for each step.
    lr: Vec<f64>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("golden/adamw.json")).expect("what adamw.py wrote")
}

/// The generator of adamw.py.
struct Lcg(u32);

impl Lcg {
    fn draw(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((self.0 >> 21) as f32 - 1024.0) / 1024.0
    }

    fn vector(&mut self, values: usize, period: usize) -> Vec<f32> {
        (0..values).map(|i| self.draw() * 0.125f32.powi((i % period) as i32)).collect()
    }
}

impl Case {
    /// The start, and the gradient of each step.
    fn inputs(&self, golden: &Golden) -> (Vec<f32>, Vec<Vec<f32>>) {
        let mut lcg = Lcg(self.seed);
        let start = lcg.vector(golden.values, 3);
        let mut gradient = || {
            let mut g = lcg.vector(golden.values, 7);
            self.zero_gradient.iter().for_each(|i| g[*i] = 0.0);
            g
        };
        (start, (0..golden.steps).map(|_| gradient()).collect())
    }

    /// γ before the groups scale it: the first group's.
    fn lr(&self, step: usize) -> f64 {
        self.groups[0].lr[step]
    }

    fn config(&self) -> Config {
        let group = |torch: &TorchGroup| Group {
            length: torch.end - torch.begin,
            lr_scale: torch.lr[0] / self.lr(0),
            weight_decay: Some(torch.weight_decay),
        };
        Config {
            betas: Some(self.betas),
            eps: Some(self.eps),
            groups: self.groups.iter().map(group).collect(),
            ..Config::new(Name::ADAM)
        }
    }

    /// The parameters after every step.
    fn run(&self, golden: &Golden, group: Box<dyn Collective>) -> Result<Vec<Vec<f32>>> {
        let (mut x, gradients) = self.inputs(golden);
        let mut worker = Worker::new(&self.config(), &x, group)?;
        let mut after = Vec::new();
        for (step, g) in gradients.iter().enumerate() {
            worker.step(&mut x, g, self.lr(step) as f32)?;
            after.push(x.clone());
        }
        Ok(after)
    }

    fn assert_golden(&self, golden: &Golden, after: &[Vec<f32>]) {
        assert!(self.after.keys().eq(&golden.snapshots), "{} lacks a snapshot", self.name);
        for (steps, want) in &self.after {
            let off = |(x, want): (&f32, &f32)| (x - want).abs();
            let worst = after[steps - 1].iter().zip(want).map(off).fold(0.0, f32::max);
            assert!(worst <= 1e-6, "{} is off by {worst:e} after {steps} steps", self.name);
        }
    }
}

#[test]
fn the_generator_is_that_of_the_file() {
    let golden = golden();
    for case in &golden.cases {
        let (start, gradients) = case.inputs(&golden);
        assert_eq!((&start, &gradients[0]), (&case.start, &case.first_gradient), "{}", case.name);
        let ratio = |torch: &TorchGroup, step: usize| torch.lr[step] / case.lr(step);
        let one_ratio = |torch: &TorchGroup| (0..golden.steps).all(|step| ratio(torch, step) == ratio(torch, 0));
        assert!(case.groups.iter().all(one_ratio), "{}: one lr_scale cannot say that", case.name);
    }
}

#[test]
fn one_worker_is_torch() {
    let golden = golden();
    for case in &golden.cases {
        case.assert_golden(&golden, &case.run(&golden, Box::new(Solo)).expect("a run"));
    }
}

#[test]
fn two_workers_with_the_same_gradients_are_torch() {
    let golden = golden();
    for case in &golden.cases {
        for after in threads::run(2, |end| case.run(&golden, Box::new(end))) {
            case.assert_golden(&golden, &after.expect("a run"));
        }
    }
}
