//! The slow twin of local Adam: its section of docs/algorithms.md in f64, all workers in one loop, nothing shared with the engine but the
//! coarse mean of the other [`oracle`](super::oracle).
//!
//! ```text
//! every step   m ← β1·m + (1−β1)·g;   v ← β2·v + (1−β2)·g²;   x ← x·(1−γλ) − γ̂·m/P       each worker's own
//! a sync       Δ̄ = coarse mean of a − x;   a ← the rule's;   x ← a
//! a late sync  Δ̄ is of now, and is applied τ steps later, by the γ of now;   x ← α·x + (1−α)·a
//! ```
//!
//! Where τ is the gap between syncs, each interval starts from the anchor: a sync also applies the mean of the sync before it, and x ← a.
//!
//! Letters and conventions are those of the other oracle. γ, also that of the last step that had one, is kept for each coordinate.

#![allow(clippy::needless_range_loop)] // i and k are the page's

use super::oracle::{CoarseMean, Quantizer};

/// What becomes of the anchor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    Average { eta: f64 },
    SlowMomentum { eta: f64, mu: f64 },
    Nesterov { eta: f64, mu: f64 },
    Sign { eta: f64, betas: (f64, f64), lambda: f64 },
}

pub struct Setup {
    pub rule: Rule,
    pub workers: usize,
    pub block: usize,
    pub up: Quantizer,
    pub down: Quantizer,
    /// κ, both ways.
    pub feedback: f64,
    pub eps: f64,
    pub bias_correction: bool,
    /// What the learning rate is multiplied by, per coordinate.
    pub rate: Vec<f64>,
    /// λ, per coordinate.
    pub weight_decay: Vec<f64>,
    /// Λ and φ of `SlowMomentum`.
    pub penalty: f64,
    pub most: f64,
    pub delay: Option<Delay>,
}

/// How late syncs are, from a step on.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    pub steps: u64,
    pub gap: u64,
    pub from: u64,
    pub mix: f64,
}

/// A mean under way: when it is applied, it, and γ.
struct Late {
    due: u64,
    delta: Vec<f64>,
    last: Vec<f64>,
}

impl Setup {
    /// Nothing quantized, one group, no decay.
    pub fn plain(rule: Rule, workers: usize, d: usize) -> Setup {
        Setup {
            rule,
            workers,
            block: d.max(1),
            up: Quantizer::F32,
            down: Quantizer::F32,
            feedback: 1.0,
            eps: 1e-8,
            bias_correction: true,
            rate: vec![1.0; d],
            weight_decay: vec![0.0; d],
            penalty: 1.0,
            most: f64::INFINITY,
            delay: None,
        }
    }
}

const BETAS: (f64, f64) = (0.9, 0.999);

pub struct Oracle {
    setup: Setup,
    pub x: Vec<Vec<f64>>,
    pub m: Vec<Vec<f64>>,
    pub v: Vec<Vec<f64>>,
    /// a.
    pub anchor: Vec<f64>,
    /// M or B.
    pub momentum: Vec<f64>,
    pub coarse: CoarseMean,
    t: i32,
    /// γ of the last step since the sync that had one.
    last: Vec<f64>,
    pending: bool,
    late: Option<Late>,
    /// The nearest that the argument of a sign came to 0, of the largest at that sync. Exact zeros are exact in f32 too.
    pub closest_sign: f64,
}

impl Oracle {
    pub fn new(setup: Setup, x0: &[f64]) -> Oracle {
        let (n, d) = (setup.workers, x0.len());
        Oracle {
            x: vec![x0.to_vec(); n],
            m: vec![vec![0.0; d]; n],
            v: vec![vec![0.0; d]; n],
            anchor: x0.to_vec(),
            momentum: vec![0.0; d],
            coarse: CoarseMean {
                feedback: (setup.feedback, setup.feedback),
                ..CoarseMean::new(n, d, setup.block, setup.up, setup.down)
            },
            t: 0,
            last: vec![0.0; d],
            pending: false,
            late: None,
            closest_sign: f64::INFINITY,
            setup,
        }
    }

    /// One step of all workers, `grads[i]` being what worker i found at `x[i]`.
    pub fn step(&mut self, lr: f64, grads: &[Vec<f64>], syncs: bool) {
        self.t += 1;
        let (beta1, beta2) = BETAS;
        let corrected = |beta: f64| if self.setup.bias_correction { 1.0 - beta.powi(self.t) } else { 1.0 };
        let (first, second) = (corrected(beta1), corrected(beta2));
        for k in 0..self.anchor.len() {
            let gamma = lr * self.setup.rate[k];
            for i in 0..self.x.len() {
                let (g, m, v) = (grads[i][k], &mut self.m[i][k], &mut self.v[i][k]);
                *m = beta1 * *m + (1.0 - beta1) * g;
                *v = beta2 * *v + (1.0 - beta2) * g * g;
                let p = (*v / second).sqrt() + self.setup.eps;
                self.x[i][k] = self.x[i][k] * (1.0 - gamma * self.setup.weight_decay[k]) - gamma / first * *m / p;
            }
            if gamma > 0.0 {
                self.last[k] = gamma;
            }
        }
        self.pending = true;
        let t = self.t as u64 - 1;
        match self.setup.delay.filter(|delay| delay.from <= t) {
            Some(_) if syncs => self.start(t),
            Some(_) if self.late.as_ref().is_some_and(|late| late.due == t) => self.finish(),
            None if syncs => self.outer_step(),
            _ => {}
        }
    }

    /// A mean under way is applied at once; then an outer step, if there has been a step since the last.
    pub fn sync(&mut self) {
        if self.late.is_some() {
            if self.is_whole() && self.pending {
                self.start(self.t as u64);
            }
            self.finish();
        }
        if self.pending {
            self.outer_step();
        }
    }

    fn is_whole(&self) -> bool {
        self.setup.delay.is_some_and(|delay| delay.steps == delay.gap)
    }

    fn mean_difference(&mut self) -> Vec<f64> {
        let difference = |x: &Vec<f64>| self.anchor.iter().zip(x).map(|(a, x)| a - x).collect();
        self.coarse.mean(&self.x.iter().map(difference).collect::<Vec<_>>())
    }

    fn start(&mut self, t: u64) {
        let delay = self.setup.delay.expect("it syncs late");
        let delta = self.mean_difference();
        if self.is_whole() {
            self.finish();
        }
        let last = std::mem::replace(&mut self.last, vec![0.0; delta.len()]);
        self.late = Some(Late { due: t + delay.steps, delta, last });
    }

    /// Applies what is under way, if anything is; and x ← α·x + (1−α)·a.
    fn finish(&mut self) {
        if let Some(Late { delta, last, .. }) = self.late.take() {
            self.rule(&delta, &last);
        }
        let mix = self.setup.delay.expect("it syncs late").mix;
        for x in &mut self.x {
            for k in (0..x.len()).filter(|k| self.setup.rate[*k] > 0.0) {
                x[k] = mix * x[k] + (1.0 - mix) * self.anchor[k];
            }
        }
        self.pending &= mix > 0.0;
    }

    fn outer_step(&mut self) {
        let delta = self.mean_difference();
        let last = std::mem::replace(&mut self.last, vec![0.0; delta.len()]);
        self.rule(&delta, &last);
        self.x.iter_mut().for_each(|x| x.clone_from(&self.anchor));
        self.pending = false;
    }

    fn rule(&mut self, delta: &[f64], last: &[f64]) {
        let (mut arguments, mut largest) = (Vec::new(), 0.0_f64);
        for k in 0..self.anchor.len() {
            let (a, b, gamma, d) = (&mut self.anchor[k], &mut self.momentum[k], last[k], delta[k]);
            let divides = matches!(self.setup.rule, Rule::SlowMomentum { .. } | Rule::Sign { .. });
            if self.setup.rate[k] == 0.0 || divides && gamma == 0.0 {
                continue;
            }
            match self.setup.rule {
                Rule::Average { eta } => *a -= eta * d,
                Rule::SlowMomentum { eta, mu } => {
                    *b = (mu * *b + d / (gamma * self.setup.penalty)).clamp(-self.setup.most, self.setup.most);
                    *a -= eta * gamma * *b;
                }
                Rule::Nesterov { eta, mu } => {
                    *b = mu * *b + d;
                    *a -= eta * (d + mu * *b);
                }
                Rule::Sign { eta, betas, lambda } => {
                    let argument = betas.0 * *b + (1.0 - betas.0) * d / gamma;
                    let sign = if argument == 0.0 { 0.0 } else { argument.signum() };
                    *a = *a * (1.0 - eta * gamma * lambda) - eta * gamma * sign;
                    *b = betas.1 * *b + (1.0 - betas.1) * d / gamma;
                    arguments.push(argument.abs());
                    largest = largest.max(argument.abs());
                }
            }
        }
        let nonzero = arguments.into_iter().filter(|argument| *argument > 0.0);
        self.closest_sign = nonzero.fold(self.closest_sign, |closest, argument| closest.min(argument / largest));
    }
}
