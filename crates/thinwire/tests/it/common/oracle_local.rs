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
//! Where a sync is of a part, all of this is about the coordinates of the part alone.
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
    /// In how many parts the blocks are dealt out.
    pub parts: usize,
}

/// How late syncs are, from a step on.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    pub steps: u64,
    pub gap: u64,
    pub from: u64,
    pub mix: f64,
}

/// A mean under way: when it is applied, to which part, it, and γ.
struct Late {
    due: u64,
    part: usize,
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
            parts: 1,
        }
    }
}

const BETAS: (f64, f64) = (0.9, 0.999);

pub struct Oracle {
    pub setup: Setup,
    pub x: Vec<Vec<f64>>,
    pub m: Vec<Vec<f64>>,
    pub v: Vec<Vec<f64>>,
    /// a.
    pub anchor: Vec<f64>,
    /// M or B.
    pub momentum: Vec<f64>,
    /// Of each part, its coordinates and its means.
    parts: Vec<(Vec<usize>, CoarseMean)>,
    t: i32,
    /// γ of the last step since the sync that had one.
    last: Vec<f64>,
    /// Of each part.
    pending: Vec<bool>,
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
            parts: (0..setup.parts)
                .map(|part| {
                    let places = (0..d).filter(|k| k / setup.block % setup.parts == part).collect::<Vec<_>>();
                    let plain = CoarseMean::new(n, places.len(), setup.block, setup.up, setup.down);
                    (places, CoarseMean { feedback: (setup.feedback, setup.feedback), ..plain })
                })
                .collect(),
            t: 0,
            last: vec![0.0; d],
            pending: vec![false; setup.parts],
            late: None,
            closest_sign: f64::INFINITY,
            setup,
        }
    }

    /// One step of all workers, `grads[i]` being what worker i found at `x[i]`; and a sync of a part, maybe.
    pub fn step(&mut self, lr: f64, grads: &[Vec<f64>], syncs: Option<usize>) {
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
        self.pending.fill(true);
        let t = self.t as u64 - 1;
        if !self.is_whole() && self.late.as_ref().is_some_and(|late| late.due == t) {
            self.finish();
        }
        match (syncs, self.setup.delay.filter(|delay| delay.from <= t)) {
            (Some(part), Some(_)) => self.start(part, t),
            (Some(part), None) => self.outer_step(part),
            (None, _) => {}
        }
    }

    /// A mean under way is applied at once; then an outer step, if there has been a step since the last.
    pub fn sync(&mut self) {
        if self.late.is_some() {
            if self.is_whole() && self.pending[0] {
                self.start(0, self.t as u64);
            }
            self.finish();
        }
        for part in 0..self.parts.len() {
            if self.pending[part] {
                self.outer_step(part);
            }
        }
    }

    /// e of a worker.
    pub fn residual(&self, worker: usize) -> Vec<f64> {
        self.gathered(|coarse| &coarse.e[worker])
    }

    /// E.
    pub fn owner_residual(&self) -> Vec<f64> {
        self.gathered(|coarse| &coarse.owner_e)
    }

    fn gathered<'a>(&'a self, of: impl Fn(&'a CoarseMean) -> &'a Vec<f64>) -> Vec<f64> {
        let mut all = vec![0.0; self.anchor.len()];
        for (places, coarse) in &self.parts {
            places.iter().zip(of(coarse)).for_each(|(k, value)| all[*k] = *value);
        }
        all
    }

    /// How clear of jumps all means have kept, and the largest value that one coded.
    pub fn seen(&self) -> (f64, f64) {
        let all = || self.parts.iter().map(|(_, coarse)| coarse.seen);
        (
            all().map(|seen| seen.closest_call).fold(f64::INFINITY, f64::min),
            all().map(|seen| seen.largest).fold(0.0, f64::max),
        )
    }

    fn is_whole(&self) -> bool {
        self.setup.parts == 1 && self.setup.delay.is_some_and(|delay| delay.steps == delay.gap)
    }

    /// Δ̄ in a part, and 0 elsewhere.
    fn mean_difference(&mut self, part: usize) -> Vec<f64> {
        let (places, coarse) = &mut self.parts[part];
        let difference = |x: &Vec<f64>| places.iter().map(|k| self.anchor[*k] - x[*k]).collect();
        let mean = coarse.mean(&self.x.iter().map(difference).collect::<Vec<_>>());
        let mut delta = vec![0.0; self.anchor.len()];
        places.iter().zip(mean).for_each(|(k, mean)| delta[*k] = mean);
        delta
    }

    /// γ of the last step that had one, which the part forgets.
    fn take_last(&mut self, part: usize) -> Vec<f64> {
        let last = self.last.clone();
        self.parts[part].0.iter().for_each(|k| self.last[*k] = 0.0);
        last
    }

    fn start(&mut self, part: usize, t: u64) {
        let delay = self.setup.delay.expect("it syncs late");
        let delta = self.mean_difference(part);
        if self.is_whole() {
            self.finish();
        }
        let last = self.take_last(part);
        self.late = Some(Late { due: t + delay.steps, part, delta, last });
    }

    /// Applies what is under way, if anything is; and x ← α·x + (1−α)·a.
    fn finish(&mut self) {
        let mut of = 0;
        if let Some(Late { part, delta, last, .. }) = self.late.take() {
            self.rule(part, &delta, &last);
            of = part;
        }
        let mix = self.setup.delay.expect("it syncs late").mix;
        for x in &mut self.x {
            for &k in self.parts[of].0.iter().filter(|k| self.setup.rate[**k] > 0.0) {
                x[k] = mix * x[k] + (1.0 - mix) * self.anchor[k];
            }
        }
        self.pending[of] &= mix > 0.0;
    }

    fn outer_step(&mut self, part: usize) {
        let delta = self.mean_difference(part);
        let last = self.take_last(part);
        self.rule(part, &delta, &last);
        for x in &mut self.x {
            self.parts[part].0.iter().for_each(|k| x[*k] = self.anchor[*k]);
        }
        self.pending[part] = false;
    }

    fn rule(&mut self, part: usize, delta: &[f64], last: &[f64]) {
        let (mut arguments, mut largest) = (Vec::new(), 0.0_f64);
        for &k in &self.parts[part].0 {
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
