//! The slow twin of the optimizers that send a direction: Lion by vote and Birder, in f64, all workers in one loop, nothing shared
//! with the engine but the quantizers of the other [`oracle`](super::oracle).
//!
//! ```text
//! mean          q_i = C_up(z_i + ξ_i);   p = C_down(mean_i q_i + ξ_n);   nothing is remembered, ξ only where Birder tosses coins
//! Lion          z = β1·m + (1−β1)·g;   m ← β2·m + (1−β2)·g;   x ← x·(1−γλ) − γ·p, of p its sign where votes do not go up
//! every S steps m ← mean_i m
//! Birder        m ← β·m + (1−β)·g;   b ← β·b + (1−β)·|g|;   z = m/b (0 where b = 0);   x ← x·(1−γλ) − γ·p
//! ```
//!
//! Where one bit has to say an exact 0 it says + on even steps and − on odd ones; but a tie of votes is +.

#![allow(clippy::needless_range_loop)] // i and k are the page's

use super::oracle::{Quantizer, blocks, mean_rows, zip};

/// Which of the two.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    Lion {
        betas: (f64, f64),
        /// S; 0 is never.
        momentum_every: u64,
    },
    Birder {
        beta: f64,
        seed: u64,
    },
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub rule: Rule,
    pub workers: usize,
    pub block: usize,
    pub up: Quantizer,
    pub down: Quantizer,
    /// What the learning rate is multiplied by, per coordinate.
    pub rate: Vec<f64>,
    /// λ, per coordinate.
    pub weight_decay: Vec<f64>,
}

impl Setup {
    pub fn plain(rule: Rule, workers: usize, d: usize) -> Setup {
        let (up, down) = (Quantizer::Vote, Quantizer::Vote);
        Setup { rule, workers, block: d.max(1), up, down, rate: vec![1.0; d], weight_decay: vec![0.0; d] }
    }
}

pub struct Oracle {
    setup: Setup,
    /// Steps done.
    t: u64,
    pub x: Vec<f64>,
    /// Each worker's own.
    pub m: Vec<Vec<f64>>,
    /// Of Birder.
    pub b: Vec<Vec<f64>>,
    /// The direction of the last step.
    pub p: Vec<f64>,
    /// The nearest to where one bit jumps, of the values that are not exactly there.
    pub closest_call: f64,
}

impl Oracle {
    pub fn new(setup: Setup, x: &[f64]) -> Oracle {
        let own = vec![vec![0.0; x.len()]; setup.workers];
        let (m, b) = (own.clone(), own);
        Oracle { t: 0, x: x.to_vec(), m, b, p: vec![0.0; x.len()], closest_call: f64::INFINITY, setup }
    }

    pub fn step(&mut self, gamma: f64, g: &[Vec<f64>]) {
        let z: Vec<_> = (0..self.setup.workers).map(|i| self.direction(i, &g[i])).collect();
        let (up, down) = (self.setup.up, self.setup.down);
        let q: Vec<_> = (0..z.len()).map(|i| self.coded(up, i, false, &z[i])).collect();
        let ties_are_plus = up == Quantizer::Vote;
        let mut p = self.coded(down, self.setup.workers, ties_are_plus, &mean_rows(&q));
        if let Rule::Lion { momentum_every, .. } = self.setup.rule {
            if up != Quantizer::Vote {
                let near = p.iter().map(|p| p.abs()).filter(|p| *p > 0.0);
                self.closest_call = near.fold(self.closest_call, f64::min);
                p = p.iter().map(|p| if *p == 0.0 { 0.0 } else { p.signum() }).collect();
            }
            if momentum_every > 0 && (self.t + 1).is_multiple_of(momentum_every) {
                self.m = vec![mean_rows(&self.m); self.setup.workers];
            }
        }
        for k in 0..p.len() {
            let gamma = gamma * self.setup.rate[k];
            if self.setup.rate[k] > 0.0 {
                self.x[k] = self.x[k] * (1.0 - gamma * self.setup.weight_decay[k]) - gamma * p[k];
            }
        }
        self.p = p;
        self.t += 1;
    }

    /// z of worker i; its moments move on.
    fn direction(&mut self, i: usize, g: &[f64]) -> Vec<f64> {
        match self.setup.rule {
            Rule::Lion { betas: (b1, b2), .. } => {
                let c = zip(&self.m[i], g, |m, g| b1 * m + (1.0 - b1) * g);
                self.m[i] = zip(&self.m[i], g, |m, g| b2 * m + (1.0 - b2) * g);
                c
            }
            Rule::Birder { beta, .. } => {
                self.m[i] = zip(&self.m[i], g, |m, g| beta * m + (1.0 - beta) * g);
                self.b[i] = zip(&self.b[i], g, |b, g| beta * b + (1.0 - beta) * g.abs());
                self.ratio(i)
            }
        }
    }

    /// r = m/b.
    pub fn ratio(&self, i: usize) -> Vec<f64> {
        zip(&self.m[i], &self.b[i], |m, b| if b == 0.0 { 0.0 } else { m / b })
    }

    /// C(z), coded by worker `who`, or by the owner, who is n.
    fn coded(&mut self, c: Quantizer, who: usize, ties_are_plus: bool, z: &[f64]) -> Vec<f64> {
        let one_bit = matches!(c, Quantizer::Sign | Quantizer::Vote);
        let turn = if self.t.is_multiple_of(2) { 1e-30 } else { -1e-30 };
        let z: Vec<_> = match self.setup.rule {
            Rule::Birder { seed, .. } if c == Quantizer::Vote => {
                let noise = |(j, z): (usize, &f64)| z + 1.0 - 2.0 * chance(seed, self.t, who as u64, j as u64);
                z.iter().enumerate().map(noise).collect()
            }
            Rule::Lion { .. } if ties_are_plus => z.to_vec(),
            _ if one_bit => z.iter().map(|z| if *z == 0.0 { turn } else { *z }).collect(),
            _ => z.to_vec(),
        };
        if one_bit {
            let near = z.iter().map(|z| z.abs()).filter(|z| *z > 1e-29);
            self.closest_call = near.fold(self.closest_call, f64::min);
        }
        blocks(z.len(), self.setup.block).into_iter().flat_map(|block| c.apply(&z[block])).collect()
    }
}

/// In [0, 1): what decides a coin of worker i at step t and place j.
pub fn chance(seed: u64, t: u64, i: u64, j: u64) -> f64 {
    let mixed = splitmix(splitmix(splitmix(seed.wrapping_add(t)).wrapping_add(i)).wrapping_add(j));
    (mixed >> 11) as f64 * 2f64.powi(-53)
}

fn splitmix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
