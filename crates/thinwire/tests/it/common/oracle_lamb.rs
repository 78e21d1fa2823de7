//! The slow twin of 1-bit LAMB: its section of docs/algorithms.md in f64, all workers in one loop, nothing shared with the engine but the
//! coarse mean of the other [`oracle`](super::oracle).
//!
//! ```text
//! t < T_w   m, v as Adam's, of ḡ;   u = m/(√v+ε) + λx;   c = ‖x‖/‖u‖ within bounds;   c_l ← 0.9·c_l + 0.1·c;   x ← x − γ·c·u
//! t ≥ T_w   m' = (coarse mean of unit·(β1·m + (1−β1)·g))/unit;   ĝ = (m' − β1·m)/(1−β1);   v̂ ← β2·v̂ + (1−β2)·ĝ²
//!           u = r + λx;   ρ = min(1, ‖r‖/‖u‖);   f = ρ·max (√v+ε)/(√v̂+ε) + 1 − ρ within bounds;   x ← x − γ·c_l·f·u
//! ```
//!
//! `unit` and the absence of a limit of r = m/(√v+ε) are the authors', who have one scale for the whole vector; the engine has neither.
//! Norms leave out what rests.

#![allow(clippy::needless_range_loop)] // k and l are the page's

use super::oracle::{CoarseMean, Quantizer, mean_rows, zip};
use std::ops::Range;

#[derive(Clone)]
pub struct Setup {
    pub workers: usize,
    /// T_w.
    pub warmup: u64,
    /// Lengths.
    pub tensors: Vec<usize>,
    pub block: usize,
    pub up: Quantizer,
    pub down: Quantizer,
    pub exact: Quantizer,
    pub eps: f64,
    /// Whether every tensor's momentum is brought to one size before it is coded.
    pub unit: bool,
    /// Whether r has a limit.
    pub limited: bool,
    pub coeff_beta: f64,
    pub coeff: [f64; 2],
    pub factor: [f64; 2],
    pub threshold: f64,
    /// What the learning rate is multiplied by, per coordinate.
    pub rate: Vec<f64>,
    /// λ, per coordinate.
    pub weight_decay: Vec<f64>,
}

impl Setup {
    /// As the authors have it: nothing quantized, one group, no decay.
    pub fn plain(workers: usize, warmup: u64, tensors: &[usize]) -> Setup {
        let d = tensors.iter().sum::<usize>();
        Setup {
            workers,
            warmup,
            tensors: tensors.to_vec(),
            block: d.max(1),
            up: Quantizer::F32,
            down: Quantizer::F32,
            exact: Quantizer::F32,
            eps: 1e-8,
            unit: true,
            limited: false,
            coeff_beta: 0.9,
            coeff: [0.01, 10.0],
            factor: [0.5, 4.0],
            threshold: 0.1,
            rate: vec![1.0; d],
            weight_decay: vec![0.0; d],
        }
    }
}

const BETAS: (f64, f64) = (0.9, 0.999);

pub struct Oracle {
    setup: Setup,
    pub x: Vec<f64>,
    pub m: Vec<f64>,
    pub v: Vec<f64>,
    /// v̂.
    pub fresh: Vec<f64>,
    /// c_l.
    pub c: Vec<f64>,
    /// f_l.
    pub f: Vec<f64>,
    pub unit: Vec<f64>,
    pub coarse: CoarseMean,
    t: u64,
}

impl Oracle {
    pub fn new(setup: Setup, x: &[f64]) -> Oracle {
        let (d, tensors) = (x.len(), setup.tensors.len());
        Oracle {
            x: x.to_vec(),
            m: vec![0.0; d],
            v: vec![0.0; d],
            fresh: vec![0.0; d],
            c: vec![0.0; tensors],
            f: vec![1.0; tensors],
            unit: vec![1.0; tensors],
            coarse: CoarseMean::new(setup.workers, d, setup.block, setup.up, setup.down),
            t: 0,
            setup,
        }
    }

    pub fn step(&mut self, gamma: f64, g: &[Vec<f64>]) {
        match self.t < self.setup.warmup {
            true => self.warm_up(gamma, g),
            false => self.later(gamma, g),
        }
        self.t += 1;
    }

    fn warm_up(&mut self, gamma: f64, g: &[Vec<f64>]) {
        let (b1, b2) = BETAS;
        let cast = self.setup.exact;
        let mean = cast.apply(&mean_rows(&g.iter().map(|g| cast.apply(g)).collect::<Vec<_>>()));
        self.m = zip(&self.m, &mean, |m, g| b1 * m + (1.0 - b1) * g);
        self.v = zip(&self.v, &mean, |v, g| b2 * v + (1.0 - b2) * g * g);
        for (l, tensor) in self.tensors().into_iter().enumerate() {
            let r = zip(&self.m, &self.v, |m, v| m / (v.sqrt() + self.setup.eps));
            let u = self.with_decay(&r);
            let (x, length) = (self.norm(&self.x, &tensor), self.norm(&u, &tensor));
            let [min, max] = self.setup.coeff;
            let c = if x == 0.0 || length == 0.0 { 1.0 } else { (x / length).clamp(min, max) };
            if c != 1.0 {
                self.c[l] = self.setup.coeff_beta * self.c[l] + (1.0 - self.setup.coeff_beta) * c;
            }
            self.descend(&tensor, gamma * c, &u);
        }
        if self.t + 1 == self.setup.warmup {
            self.fresh = self.v.clone();
            self.choose_units();
        }
    }

    /// The mean over the tensors of r_l = ‖m‖/√numel, divided by r_l.
    fn choose_units(&mut self) {
        if !self.setup.unit {
            return;
        }
        let size = |tensor: &Range<usize>| self.norm(&self.m, tensor) / (tensor.len() as f64).sqrt();
        let sizes = self.tensors().iter().map(size).collect::<Vec<_>>();
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        self.unit = sizes.iter().map(|size| mean / size).collect();
    }

    fn later(&mut self, gamma: f64, g: &[Vec<f64>]) {
        let (b1, b2) = BETAS;
        let units = self.setup.tensors.iter().zip(&self.unit).flat_map(|(length, unit)| vec![*unit; *length]);
        let units = units.collect::<Vec<_>>();
        let own = |g: &Vec<f64>| zip(&zip(&self.m, g, |m, g| b1 * m + (1.0 - b1) * g), &units, |m, unit| m * unit);
        let own = g.iter().map(own).collect::<Vec<_>>();
        let m = zip(&self.coarse.mean(&own), &units, |m, unit| m / unit);
        let seen = zip(&m, &self.m, |new, old| (new - b1 * old) / (1.0 - b1));
        self.fresh = zip(&self.fresh, &seen, |fresh, g| b2 * fresh + (1.0 - b2) * g * g);
        self.m = m;
        for (l, tensor) in self.tensors().into_iter().enumerate() {
            let r = (0..self.x.len()).map(|k| self.ratio(k)).collect::<Vec<_>>();
            let u = self.with_decay(&r);
            let eps = self.setup.eps;
            let growth = |k: usize| (self.v[k].sqrt() + eps) / (self.fresh[k].sqrt() + eps);
            let most = tensor.clone().filter(|k| self.moves(*k)).map(growth).reduce(f64::max);
            if let Some(most) = most {
                let (r, length) = (self.norm(&r, &tensor), self.norm(&u, &tensor));
                let rho = if length == 0.0 { 1.0 } else { (r / length).min(1.0) };
                let [min, max] = self.setup.factor;
                let (last, threshold) = (self.f[l], self.setup.threshold);
                let f = (most * rho + 1.0 - rho).clamp(min, max);
                self.f[l] = f.clamp(last * (1.0 - threshold), last * (1.0 + threshold));
            }
            let c = if self.c[l] == 0.0 { 1.0 } else { self.c[l] };
            self.descend(&tensor, gamma * c * self.f[l], &u);
        }
    }

    /// r: m/(√v+ε), and as far as it can be trusted.
    fn ratio(&self, k: usize) -> f64 {
        let r = self.m[k] / (self.v[k].sqrt() + self.setup.eps);
        let lossless = self.setup.up == Quantizer::F32 && self.setup.down == Quantizer::F32;
        let most = match self.v[k] > 0.0 {
            _ if !self.setup.limited => return r,
            false => return r.clamp(-1.0, 1.0),
            true if lossless => return r,
            true => 1.0 / (1.0 - BETAS.1.powi(self.setup.warmup as i32)).sqrt(),
        };
        (100.0 * most / r.abs()).min(1.0) * r.clamp(-most, most)
    }

    fn with_decay(&self, r: &[f64]) -> Vec<f64> {
        (0..r.len()).map(|k| r[k] + self.setup.weight_decay[k] * self.x[k]).collect()
    }

    fn descend(&mut self, tensor: &Range<usize>, size: f64, u: &[f64]) {
        for k in tensor.clone() {
            self.x[k] -= size * self.setup.rate[k] * u[k];
        }
    }

    fn moves(&self, k: usize) -> bool {
        self.setup.rate[k] > 0.0
    }

    fn norm(&self, values: &[f64], tensor: &Range<usize>) -> f64 {
        tensor.clone().filter(|k| self.moves(*k)).map(|k| values[k] * values[k]).sum::<f64>().sqrt()
    }

    fn tensors(&self) -> Vec<Range<usize>> {
        let mut end = 0;
        let range = |length: &usize| {
            end += length;
            end - length..end
        };
        self.setup.tensors.iter().map(range).collect()
    }
}
