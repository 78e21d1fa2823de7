//! The slow twin: ALGORITHMS.md in f64, all workers in one loop, nothing shared with the engine.
//!
//! Every optimizer is Adam plus two means over the workers:
//!
//! ```text
//! exact mean    C(mean_i C(g_i)),           C a cast, nothing remembered
//! coarse mean   worker  z = x_i + e_i;      q_i = C_up(z);   e_i ← z − q_i
//!               owner   z = mean_i q_i + E; p = C_down(z);   E ← z − p;   everyone gets p
//! exact step    x ← x·(1 − γλ) − γ̂·m/P,    P = √(v/(1 − β2^j)) + ε
//! ```
//!
//! The letters are the page's; i is a worker, k a coordinate. E is kept whole, for ownership alters no number; γ, Γ
//! and D are kept per coordinate, for groups differ in them.
//!
//! The engine counts in f32, and quantizers jump: a value within f32 rounding of a threshold may land on its other
//! side. So compare on data that avoids thresholds: random, and few steps.
//!
//! Papers: 1-bit Adam arXiv 2102.02888, 0/1 Adam arXiv 2202.06009, Efficient-Adam arXiv 2205.14473.
//! Left out: schedules (the caller gives γ, T_v and T_u), bytes, transports, errors.

#![allow(dead_code)] // every test program uses its own part of this file
#![allow(clippy::needless_range_loop)] // i and k are the page's

use std::ops::Range;

/// C: what the wire makes of one block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quantizer {
    /// The identity.
    F32,
    Bf16,
    F16,
    /// ±mean |x|.
    Sign,
    /// So many bits: 2^(b−1) − 1 even steps from 0 to max |x|, and as many down.
    Uniform(u32),
    /// So many bits: 2^(b−1) − 1 magnitudes max |x|·2^−j, and 0.
    Power2(u32),
    /// The largest magnitudes, this fraction of the block, at least one.
    TopK(f64),
}

impl Quantizer {
    pub fn apply(&self, block: &[f64]) -> Vec<f64> {
        let each = |f: &dyn Fn(f64) -> f64| block.iter().map(|&x| f(x)).collect();
        let max = block.iter().fold(0.0, |s: f64, x| s.max(x.abs()));
        match *self {
            Quantizer::F32 => block.to_vec(),
            Quantizer::Bf16 => each(&|x| cast(x, 7, -126, (2.0 - 2f64.powi(-7)) * 2f64.powi(127))),
            Quantizer::F16 => each(&|x| cast(x, 10, -14, 65504.0)),
            _ if max == 0.0 => vec![0.0; block.len()],
            Quantizer::Sign => {
                let s = mean(block.iter().map(|x| x.abs()));
                each(&|x| if x >= 0.0 { s } else { -s })
            }
            Quantizer::Uniform(bits) => {
                let levels = points_a_side(bits) as f64;
                each(&|x| (x / max * levels).round_ties_even() / levels * max)
            }
            Quantizer::Power2(bits) => {
                let magnitudes = points_a_side(bits);
                each(&|x| nearest_power(x.abs() / max, magnitudes) * max * x.signum())
            }
            Quantizer::TopK(fraction) => keep_largest(block, fraction),
        }
    }
}

fn points_a_side(bits: u32) -> i32 {
    (1 << (bits - 1)) - 1
}

/// The nearest float with so many bits after the point, ties to even, subnormal below 2^`min_exponent`, at most `max`.
fn cast(x: f64, bits: i32, min_exponent: i32, max: f64) -> f64 {
    let exponent = x.abs().log2().floor().max(min_exponent as f64);
    let ulp = 2f64.powi(exponent as i32 - bits);
    ((x / ulp).round_ties_even() * ulp).clamp(-max, max)
}

/// The point of {1, ½, …, 2^−k, 0} nearest to r, k + 1 = `magnitudes`; half-way it is the larger.
fn nearest_power(r: f64, magnitudes: i32) -> f64 {
    for j in 0..magnitudes {
        let point = 2f64.powi(-j);
        let next = if j + 1 < magnitudes { point / 2.0 } else { 0.0 };
        if r >= (point + next) / 2.0 {
            return point;
        }
    }
    0.0
}

/// The max(1, ⌈fraction·count⌉) largest magnitudes; of equal ones the first.
fn keep_largest(block: &[f64], fraction: f64) -> Vec<f64> {
    let wanted = (fraction * block.len() as f64 - 1e-9).ceil(); // 0.07·100 is 7, not a hair more
    let mut order: Vec<usize> = (0..block.len()).collect();
    order.sort_by(|&a, &b| block[b].abs().total_cmp(&block[a].abs())); // stable
    let mut out = vec![0.0; block.len()];
    for &k in order.iter().take(wanted.max(1.0) as usize) {
        out[k] = block[k];
    }
    out
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// mean_i rows_i, in rank order.
fn mean_rows(rows: &[Vec<f64>]) -> Vec<f64> {
    let column = |k: usize| rows.iter().map(move |row| row[k]);
    (0..rows[0].len()).map(|k| mean(column(k))).collect()
}

fn zip(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
}

/// Consecutive blocks of `size` values that cover `d`; the last may be short.
pub fn blocks(d: usize, size: usize) -> Vec<Range<usize>> {
    let starts = (0..d).step_by(size);
    starts.map(|start| start..d.min(start + size)).collect()
}

/// The coarse mean, with a list of blocks for each way.
pub struct CoarseMean {
    pub up: Quantizer,
    pub down: Quantizer,
    pub up_blocks: Vec<Range<usize>>,
    pub down_blocks: Vec<Range<usize>>,
    /// e: the residual of each worker.
    pub e: Vec<Vec<f64>>,
    /// E: the residuals of all owners, in one vector.
    pub owner_e: Vec<f64>,
}

impl CoarseMean {
    /// No residuals, the same blocks both ways.
    pub fn new(workers: usize, d: usize, block: usize, up: Quantizer, down: Quantizer) -> Self {
        CoarseMean {
            up,
            down,
            up_blocks: blocks(d, block),
            down_blocks: blocks(d, block),
            e: vec![vec![0.0; d]; workers],
            owner_e: vec![0.0; d],
        }
    }

    pub fn mean(&mut self, x: &[Vec<f64>]) -> Vec<f64> {
        let mut q = Vec::new();
        for i in 0..x.len() {
            q.push(feed_back(self.up, &self.up_blocks, &x[i], &mut self.e[i]));
        }
        let q = mean_rows(&q);
        feed_back(self.down, &self.down_blocks, &q, &mut self.owner_e)
    }

    /// mean_i e_i + E: what the means so far still owe.
    pub fn residual(&self) -> Vec<f64> {
        zip(&mean_rows(&self.e), &self.owner_e, |e, owner_e| e + owner_e)
    }
}

/// z = x + e;  q = C(z);  e ← z − q.
fn feed_back(c: Quantizer, blocks: &[Range<usize>], x: &[f64], e: &mut Vec<f64>) -> Vec<f64> {
    let z = zip(x, e, |x, e| x + e);
    let q: Vec<f64> = blocks.iter().flat_map(|b| c.apply(&z[b.clone()])).collect();
    *e = zip(&z, &q, |z, q| z - q);
    q
}

/// Efficient-Adam's θ at its step t, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Theta {
    /// β2.
    Constant,
    /// 1 − β2/t.
    Harmonic,
}

/// A set of steps.
pub type Steps = Box<dyn Fn(u64) -> bool>;

pub enum Algorithm {
    Adam,
    /// Exact for t < `warmup`.
    OneBitAdam {
        warmup: u64,
    },
    /// T_v and T_u.
    ZeroOneAdam {
        variance: Steps,
        sync: Steps,
    },
    EfficientAdam {
        theta: Theta,
    },
}

impl Algorithm {
    pub fn zero_one(
        variance: impl Fn(u64) -> bool + 'static,
        sync: impl Fn(u64) -> bool + 'static,
    ) -> Self {
        let (variance, sync) = (Box::new(variance), Box::new(sync));
        Algorithm::ZeroOneAdam { variance, sync }
    }
}

pub struct Setup {
    pub algorithm: Algorithm,
    pub workers: usize,
    /// Block size of the coarse mean.
    pub block: usize,
    pub up: Quantizer,
    pub down: Quantizer,
    /// The cast of the exact mean, both ways.
    pub exact: Quantizer,
    pub betas: (f64, f64),
    pub eps: f64,
    pub bias_correction: bool,
    /// What the learning rate is multiplied by, per coordinate.
    pub rate: Vec<f64>,
    /// λ, per coordinate.
    pub weight_decay: Vec<f64>,
}

impl Setup {
    /// Nothing quantized, the usual constants, one group, no decay.
    pub fn plain(algorithm: Algorithm, workers: usize, d: usize) -> Self {
        Setup {
            algorithm,
            workers,
            block: d.max(1),
            up: Quantizer::F32,
            down: Quantizer::F32,
            exact: Quantizer::F32,
            betas: (0.9, 0.999),
            eps: 1e-8,
            bias_correction: true,
            rate: vec![1.0; d],
            weight_decay: vec![0.0; d],
        }
    }
}

#[derive(Clone)]
struct Worker {
    x: Vec<f64>,
    m: Vec<f64>,
    v: Vec<f64>,
    u: Vec<f64>,
}

pub struct Oracle {
    setup: Setup,
    workers: Vec<Worker>,
    coarse: CoarseMean,
    /// Steps done.
    t: u64,
    /// β2^j, j variance updates done; for Efficient-Adam Π θ.
    v_memory: f64,
    /// The mean of v after the last variance update before this step.
    floor: f64,
    /// γ of this step.
    gamma: Vec<f64>,
    /// a: x at the last sync.
    anchor: Vec<f64>,
    /// Γ: Σ γ̂ since the last sync.
    gamma_sum: Vec<f64>,
    /// D: Π (1 − γλ) since the last sync.
    decay: Vec<f64>,
    /// Has there been a step since the last sync?
    pending: bool,
}

impl Oracle {
    pub fn new(setup: Setup, x0: &[f64]) -> Self {
        let d = x0.len();
        assert_eq!((setup.rate.len(), setup.weight_decay.len()), (d, d));
        let zeros = vec![0.0; d];
        let (m, v, u) = (zeros.clone(), zeros.clone(), zeros.clone());
        let x = x0.to_vec();
        Oracle {
            workers: vec![Worker { x, m, v, u }; setup.workers],
            coarse: CoarseMean::new(setup.workers, d, setup.block, setup.up, setup.down),
            t: 0,
            v_memory: 1.0,
            floor: 0.0,
            gamma: zeros.clone(),
            anchor: x0.to_vec(),
            gamma_sum: zeros,
            decay: vec![1.0; d],
            pending: false,
            setup,
        }
    }

    /// One step of all workers; `grads[i]` is what worker i found at `params(i)`.
    pub fn step(&mut self, lr: f64, grads: &[Vec<f64>]) {
        assert_eq!(grads.len(), self.workers.len());
        self.gamma = self.setup.rate.iter().map(|rate| lr * rate).collect();
        let t = self.t;
        match &self.setup.algorithm {
            Algorithm::Adam => self.exact_step(grads),
            Algorithm::OneBitAdam { warmup } if t < *warmup => self.exact_step(grads),
            Algorithm::OneBitAdam { .. } => self.coarse_momentum_step(grads),
            Algorithm::ZeroOneAdam { variance, .. } if variance(t) => self.exact_step(grads),
            Algorithm::ZeroOneAdam { variance, sync } => {
                let syncs = sync(t) || variance(t + 1);
                self.local_step(grads);
                if syncs {
                    self.sync();
                }
            }
            Algorithm::EfficientAdam { theta } => self.coarse_update_step(grads, *theta),
        }
        self.t += 1;
    }

    /// Adam on the exact mean of the gradients.
    fn exact_step(&mut self, grads: &[Vec<f64>]) {
        let (beta1, beta2) = self.setup.betas;
        let g = self.exact_mean(grads);
        self.v_memory *= beta2; // j ← j + 1
        for (i, k) in self.places() {
            let w = &mut self.workers[i];
            w.m[k] = beta1 * w.m[k] + (1.0 - beta1) * g[k];
            w.v[k] = beta2 * w.v[k] + (1.0 - beta2) * g[k] * g[k];
            self.move_by(i, k, self.update(i, k));
        }
        self.floor = mean(self.workers[0].v.iter().copied());
        self.anchor = self.workers[0].x.clone();
    }

    /// 1-bit Adam after its warm-up: v is frozen, and m is a coarse mean.
    fn coarse_momentum_step(&mut self, grads: &[Vec<f64>]) {
        let (beta1, _) = self.setup.betas;
        let mut m = Vec::new();
        for i in 0..grads.len() {
            let old = &self.workers[i].m;
            m.push(zip(old, &grads[i], |m, g| beta1 * m + (1.0 - beta1) * g));
        }
        let m = self.coarse.mean(&m);
        for (i, k) in self.places() {
            self.workers[i].m[k] = m[k];
            self.move_by(i, k, self.update(i, k));
        }
    }

    /// 0/1 Adam between syncs: each worker alone. Where γ = 0 nothing happens.
    fn local_step(&mut self, grads: &[Vec<f64>]) {
        let (beta1, _) = self.setup.betas;
        for (i, k) in self.places() {
            if self.gamma[k] == 0.0 {
                continue;
            }
            let gamma_hat = self.gamma_hat(k);
            let w = &mut self.workers[i];
            w.m[k] = beta1 * w.m[k] + (1.0 - beta1) * grads[i][k];
            w.u[k] += gamma_hat * w.m[k];
            self.move_by(i, k, self.update(i, k));
        }
        for k in 0..self.gamma.len() {
            self.gamma_sum[k] += self.gamma_hat(k); // Γ ← Γ + γ̂
            self.decay[k] *= self.shrink(k); // D ← D·(1 − γλ)
        }
        self.pending = true;
    }

    /// 0/1 Adam's exchange, if there has been a step since the last; for the others, nothing.
    pub fn sync(&mut self) {
        if !self.pending {
            return;
        }
        let u: Vec<_> = self.workers.iter().map(|w| w.u.clone()).collect();
        let u = self.coarse.mean(&u); // ū
        for (i, k) in self.places() {
            let p = self.p(i, k);
            let w = &mut self.workers[i];
            if self.gamma_sum[k] > 0.0 {
                w.m[k] = u[k] / self.gamma_sum[k]; // m ← ū/Γ
            }
            w.x[k] = self.anchor[k] * self.decay[k] - u[k] / p; // x ← a·D − ū/P
            w.u[k] = 0.0;
        }
        self.anchor = self.workers[0].x.clone();
        self.gamma_sum.fill(0.0);
        self.decay.fill(1.0);
        self.pending = false;
    }

    /// Efficient-Adam: each worker has its own moments, and the update is a coarse mean.
    fn coarse_update_step(&mut self, grads: &[Vec<f64>], theta: Theta) {
        let (beta, beta2) = self.setup.betas;
        let theta = match theta {
            Theta::Constant => beta2,
            Theta::Harmonic => 1.0 - beta2 / (self.t + 1) as f64,
        };
        self.v_memory *= theta;
        let mut updates = grads.to_vec();
        for (i, k) in self.places() {
            let (w, g) = (&mut self.workers[i], grads[i][k]);
            w.m[k] = beta * w.m[k] + (1.0 - beta) * g;
            w.v[k] = theta * w.v[k] + (1.0 - theta) * g * g;
            updates[i][k] = self.update(i, k);
        }
        let update = self.coarse.mean(&updates);
        for (i, k) in self.places() {
            self.move_by(i, k, update[k]);
        }
    }

    fn exact_mean(&self, grads: &[Vec<f64>]) -> Vec<f64> {
        let cast = self.setup.exact;
        let grads: Vec<_> = grads.iter().map(|g| cast.apply(g)).collect();
        cast.apply(&mean_rows(&grads))
    }

    /// Every (i, k).
    fn places(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (n, d) = (self.workers.len(), self.gamma.len());
        (0..n).flat_map(move |i| (0..d).map(move |k| (i, k)))
    }

    /// x ← x·(1 − γλ) − update.
    fn move_by(&mut self, i: usize, k: usize, update: f64) {
        self.workers[i].x[k] = self.workers[i].x[k] * self.shrink(k) - update;
    }

    /// γ̂·m/P.
    fn update(&self, i: usize, k: usize) -> f64 {
        self.gamma_hat(k) * self.workers[i].m[k] / self.p(i, k)
    }

    /// γ̂ = γ/(1 − β1^(t+1)).
    fn gamma_hat(&self, k: usize) -> f64 {
        self.gamma[k] / self.correction(self.setup.betas.0.powi(self.t as i32 + 1))
    }

    /// 1 − γλ.
    fn shrink(&self, k: usize) -> f64 {
        1.0 - self.gamma[k] * self.setup.weight_decay[k]
    }

    /// P = √(v/(1 − β2^j)) + ε. A coarse mean may bring more than zero where v = 0: there the floor stands for v, and
    /// if that is 0 too, P is infinite.
    fn p(&self, i: usize, k: usize) -> f64 {
        let mut v = self.workers[i].v[k];
        if v == 0.0 && self.has_floor() {
            v = self.floor;
            if v == 0.0 {
                return f64::INFINITY;
            }
        }
        (v / self.correction(self.v_memory)).sqrt() + self.setup.eps
    }

    fn has_floor(&self) -> bool {
        match self.setup.algorithm {
            Algorithm::OneBitAdam { warmup } => self.t >= warmup,
            Algorithm::ZeroOneAdam { .. } => true,
            Algorithm::Adam | Algorithm::EfficientAdam { .. } => false,
        }
    }

    /// What a moment is short by, its start at zero still weighing `memory`.
    fn correction(&self, memory: f64) -> f64 {
        if self.setup.bias_correction {
            1.0 - memory
        } else {
            1.0
        }
    }

    pub fn params(&self, worker: usize) -> &[f64] {
        &self.workers[worker].x
    }

    pub fn m(&self, worker: usize) -> &[f64] {
        &self.workers[worker].m
    }

    pub fn v(&self, worker: usize) -> &[f64] {
        &self.workers[worker].v
    }

    pub fn u(&self, worker: usize) -> &[f64] {
        &self.workers[worker].u
    }

    pub fn e(&self, worker: usize) -> &[f64] {
        &self.coarse.e[worker]
    }

    /// E, of all owners.
    pub fn owner_e(&self) -> &[f64] {
        &self.coarse.owner_e
    }

    /// y: where x would be with all residuals paid. For Efficient-Adam x − (mean e + E), for 0/1 Adam right after a
    /// sync x − (mean e + E)/P; else it means nothing.
    pub fn virtual_iterate(&self) -> Option<Vec<f64>> {
        let mut owed = self.coarse.residual();
        match self.setup.algorithm {
            Algorithm::EfficientAdam { .. } => {}
            Algorithm::ZeroOneAdam { .. } if !self.pending => {
                (0..owed.len()).for_each(|k| owed[k] /= self.p(0, k));
            }
            _ => return None,
        }
        Some(zip(self.params(0), &owed, |x, owed| x - owed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: usize = 10;
    const LR: f64 = 0.01;
    const QUANTIZERS: [Quantizer; 7] = [
        Quantizer::F32,
        Quantizer::Bf16,
        Quantizer::F16,
        Quantizer::Sign,
        Quantizer::Uniform(4),
        Quantizer::Power2(3),
        Quantizer::TopK(0.3),
    ];

    /// Numbers from −1 to 1.
    fn row(worker: usize, step: u64) -> Vec<f64> {
        let phase = 5.3 * worker as f64 + 0.9 * step as f64 + 1.0;
        (0..D).map(|k| (1.7 * k as f64 + phase).sin()).collect()
    }

    fn rows(workers: usize, step: u64) -> Vec<Vec<f64>> {
        (0..workers).map(|i| row(i, step)).collect()
    }

    fn start() -> Vec<f64> {
        row(0, 99)
    }

    fn assert_close(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        let off = zip(got, want, |g, w| (g - w).abs() / (1.0 + w.abs()));
        assert!(off.iter().all(|&off| off < 1e-12), "{got:?}, not {want:?}");
    }

    fn quantized(algorithm: Algorithm, workers: usize, c: Quantizer) -> Setup {
        Setup {
            block: 4,
            up: c,
            down: c,
            ..Setup::plain(algorithm, workers, D)
        }
    }

    #[test]
    fn quantizers_by_hand() {
        use Quantizer::*;
        let check = |c: Quantizer, x: &[f64], want: &[f64]| assert_close(&c.apply(x), want);
        check(Sign, &[0.9, -0.0, -0.3, -1.2], &[0.6, 0.6, -0.6, -0.6]);
        check(Uniform(2), &[1.0, 0.5, 0.51, -0.5], &[1.0, 0.0, 1.0, 0.0]);
        check(Uniform(3), &[3.0, 2.5, -1.5, 0.5], &[3.0, 2.0, -2.0, 0.0]);
        check(Power2(2), &[2.0, -1.0, 0.99], &[2.0, -2.0, 0.0]);
        check(Power2(3), &[8.0, 6.0, 5.99, -3.0], &[8.0, 8.0, 4.0, -4.0]);
        check(Power2(3), &[8.0, 2.99, -1.0, 0.99], &[8.0, 2.0, -2.0, 0.0]);
        check(TopK(0.7), &[1.0, -2.0, 2.0, 1.0], &[1.0, -2.0, 2.0, 0.0]);
        check(TopK(0.01), &[1.0, -2.0, 2.0], &[0.0, -2.0, 0.0]);
        for c in QUANTIZERS {
            check(c, &[0.0, -0.0], &[0.0, 0.0]);
            check(c, &[], &[]);
        }
    }

    #[test]
    fn casts_by_hand() {
        let f16 = |x: f64| Quantizer::F16.apply(&[x])[0];
        let half = 2f64.powi(-11); // of the way from 1 to the next
        assert_eq!(f16(1.0 + half), 1.0);
        assert_eq!(f16(1.0 + 3.0 * half), 1.0 + 4.0 * half);
        assert_eq!(f16(-0.1), -0.0999755859375);
        assert_eq!([f16(65519.0), f16(-1e9)], [65504.0, -65504.0]);
        let tiny = 2f64.powi(-24); // the smallest
        assert_eq!([f16(0.51 * tiny), f16(0.5 * tiny)], [tiny, 0.0]);
        let bf16 = |x: f64| Quantizer::Bf16.apply(&[x])[0];
        let half = 2f64.powi(-8);
        assert_eq!(bf16(1.0 + half), 1.0);
        assert_eq!(bf16(1.0 + 3.0 * half), 1.0 + 4.0 * half);
        assert_eq!(bf16(0.1), 0.10009765625);
        assert_eq!(bf16(f32::MAX as f64), f32::from_bits(0x7f7f_0000) as f64);
    }

    #[test]
    fn golden_vector_g1() {
        let mut coarse = CoarseMean::new(2, 4, 4, Quantizer::Sign, Quantizer::Sign);
        coarse.down_blocks = blocks(4, 2); // one for each owner
        let x = [vec![0.3, -0.1, 0.05, -0.8], vec![0.2, 0.4, -0.6, -0.2]];
        assert_close(&coarse.mean(&x), &[0.175, 0.175, -0.175, -0.175]);
        assert_close(&coarse.e[0], &[-0.0125, 0.2125, -0.2625, -0.4875]);
        assert_close(&coarse.e[1], &[-0.15, 0.05, -0.25, 0.15]);
        assert_close(&coarse.owner_e, &[0.15625, -0.15625, 0.15625, -0.15625]);
        assert_close(&coarse.mean(&x), &[0.4125, 0.4125, -0.4125, -0.4125]);
    }

    /// out + (mean e + E)_after = mean x + (mean e + E)_before.
    #[test]
    fn the_coarse_mean_owes_what_it_did_not_say() {
        for c in QUANTIZERS {
            let mut coarse = CoarseMean::new(3, D, 4, c, c);
            for step in 0..20 {
                let x = rows(3, step);
                let want = zip(&mean_rows(&x), &coarse.residual(), |x, owed| x + owed);
                let out = coarse.mean(&x);
                assert_close(&zip(&out, &coarse.residual(), |x, owed| x + owed), &want);
            }
        }
    }

    /// Twenty steps of one worker's Adam as the textbooks have it, v renewed on some of them.
    fn textbook(renews: impl Fn(u64) -> bool) -> Vec<f64> {
        let (mut x, mut m, mut v, mut j) = (start(), [0.0; D], [0.0; D], 0);
        for t in 0..20 {
            let (g, renews) = (row(0, t), renews(t));
            j += renews as i32;
            for k in 0..D {
                m[k] = 0.9 * m[k] + 0.1 * g[k];
                if renews {
                    v[k] = 0.999 * v[k] + 0.001 * g[k] * g[k];
                }
                let m_hat = m[k] / (1.0 - 0.9f64.powi(t as i32 + 1));
                let v_hat = v[k] / (1.0 - 0.999f64.powi(j));
                x[k] -= LR * m_hat / (v_hat.sqrt() + 1e-8);
            }
        }
        x
    }

    #[test]
    fn one_worker_is_textbook_adam() {
        let check = |algorithm: Algorithm, want: &[f64]| {
            let mut oracle = Oracle::new(Setup::plain(algorithm, 1, D), &start());
            (0..20).for_each(|t| oracle.step(LR, &rows(1, t)));
            assert_close(oracle.params(0), want);
        };
        let theta = Theta::Constant;
        let renews = |t: u64| [0, 1, 2, 4, 8, 16].contains(&t);
        check(Algorithm::Adam, &textbook(|_| true));
        check(Algorithm::OneBitAdam { warmup: 5 }, &textbook(|t| t < 5));
        check(Algorithm::zero_one(renews, |_| true), &textbook(renews));
        check(Algorithm::EfficientAdam { theta }, &textbook(|_| true));
    }

    #[test]
    fn zero_one_adam_with_variance_everywhere_is_adam() {
        let grouped = |algorithm: Algorithm| {
            let mut setup = Setup::plain(algorithm, 3, D);
            setup.rate = row(0, 5).iter().map(|x| 1.0 + x).collect();
            setup.weight_decay = row(0, 6).iter().map(|x| 1.0 + x).collect();
            Oracle::new(setup, &start())
        };
        let mut adam = grouped(Algorithm::Adam);
        let mut zero_one = grouped(Algorithm::zero_one(|_| true, |_| true));
        for t in 0..20 {
            adam.step(LR, &rows(3, t));
            zero_one.step(LR, &rows(3, t));
            assert_eq!(zero_one.params(2), adam.params(0));
        }
    }

    /// y ← y − mean_i (update of worker i), for any quantizer and any schedule.
    #[test]
    fn efficient_adam_moves_its_virtual_iterate_by_the_mean_update() {
        let check = |c: Quantizer, theta: Theta| {
            let algorithm = || Algorithm::EfficientAdam { theta };
            let mut together = Oracle::new(quantized(algorithm(), 3, c), &start());
            let mut moved = Vec::new(); // −Σ updates, of each worker
            for i in 0..3 {
                let mut alone = Oracle::new(Setup::plain(algorithm(), 1, D), &[0.0; D]);
                (0..20).for_each(|t| alone.step(LR / (t + 1) as f64, &[row(i, t)]));
                moved.push(alone.params(0).to_vec());
            }
            (0..20).for_each(|t| together.step(LR / (t + 1) as f64, &rows(3, t)));
            let want = zip(&start(), &mean_rows(&moved), |x, moved| x + moved);
            assert_close(&together.virtual_iterate().unwrap(), &want);
        };
        for c in QUANTIZERS {
            check(c, Theta::Constant);
            check(c, Theta::Harmonic);
        }
    }

    /// y ← y − mean_i u/P; and a sync with nothing to say says nothing.
    #[test]
    fn zero_one_adam_agrees_at_a_sync_and_moves_its_virtual_iterate_by_the_mean_u() {
        for c in QUANTIZERS {
            let algorithm = Algorithm::zero_one(|t| t < 3, |t| (t + 1) % 4 == 0);
            let mut oracle = Oracle::new(quantized(algorithm, 3, c), &start());
            (0..8).for_each(|t| oracle.step(LR, &rows(3, t)));
            let y = oracle.virtual_iterate().unwrap();
            (8..11).for_each(|t| oracle.step(LR, &rows(3, t)));
            assert!(oracle.virtual_iterate().is_none());
            assert_ne!(oracle.params(0), oracle.params(1));

            let u: Vec<_> = (0..3).map(|i| oracle.u(i).to_vec()).collect();
            let p: Vec<f64> = (0..D).map(|k| oracle.p(0, k)).collect();
            let moved = zip(&mean_rows(&u), &p, |u, p| u / p);
            oracle.sync();
            let want = zip(&y, &moved, |y, moved| y - moved);
            assert_close(&oracle.virtual_iterate().unwrap(), &want);
            assert_eq!(oracle.params(0), oracle.params(1));
            assert_eq!(oracle.m(0), oracle.m(1));
            let x = oracle.params(0).to_vec();
            oracle.sync();
            assert_eq!(oracle.params(0), x);
        }
    }

    /// v is renewed at t = 0 and t = 3: between them two local steps, then a sync. The coordinates: one that decays,
    /// one with no gradient when v is renewed, one whose γ is 0.
    #[test]
    fn zero_one_adam_by_hand() {
        let setup = Setup {
            betas: (0.5, 0.75),
            eps: 0.0,
            bias_correction: false,
            rate: vec![1.0, 1.0, 0.0],
            weight_decay: vec![1.0, 0.0, 0.0],
            ..Setup::plain(Algorithm::zero_one(|t| t % 3 == 0, |_| false), 1, 3)
        };
        let mut oracle = Oracle::new(setup, &[3.0, 1.0, 1.0]);
        oracle.step(0.5, &[vec![2.0, 0.0, 2.0]]); // m = v = [1, 0, 1]
        assert_close(oracle.params(0), &[1.0, 1.0, 1.0]); // a
        let p = (2.0f64 / 3.0).sqrt(); // where v = 0: of its mean
        oracle.step(0.5, &[vec![3.0, 4.0, 4.0]]); // m = [2, 2, 1], u = [1, 1, 0], Γ = D = ½
        assert_close(oracle.params(0), &[-0.5, 1.0 - 1.0 / p, 1.0]);
        oracle.step(0.25, &[vec![2.0, 8.0, 2.0]]); // u = [3/2, 9/4, 0], Γ = ¾, D = ⅜
        assert_close(oracle.params(0), &[0.375 - 1.5, 1.0 - 2.25 / p, 1.0]); // a·D − ū/P
        assert_close(oracle.m(0), &[2.0, 3.0, 1.0]); // ū/Γ
        oracle.step(0.5, &[vec![0.0; 3]]); // m = [1, 3/2, ½], v = [¾, 0, ¾], the same floor
        let x = -1.125 * 0.5 - 0.5 / 0.75f64.sqrt();
        assert_close(oracle.params(0), &[x, 1.0 - 3.0 / p, 1.0]);
        assert_close(oracle.v(0), &[0.75, 0.0, 0.75]);
    }

    #[test]
    fn without_variance_and_without_a_floor_nothing_moves() {
        let never = Algorithm::zero_one(|_| false, |_| true);
        for algorithm in [never, Algorithm::OneBitAdam { warmup: 0 }] {
            let mut oracle = Oracle::new(quantized(algorithm, 2, Quantizer::Sign), &[1.0; D]);
            (0..5).for_each(|t| oracle.step(LR, &rows(2, t)));
            assert_eq!(oracle.params(1), [1.0; D]);
        }
    }

    /// The warm-up's mean gradients are [2, 0]; then m = [1, 1] and P = [√v, √(v/2)].
    #[test]
    fn one_bit_adam_after_its_warm_up_has_a_floor() {
        let mut setup = Setup::plain(Algorithm::OneBitAdam { warmup: 1 }, 2, 2);
        (setup.betas, setup.bias_correction) = ((0.5, 0.5), false);
        let mut oracle = Oracle::new(setup, &[1.0, 1.0]);
        oracle.step(0.0, &[vec![1.0, 3.0], vec![3.0, -3.0]]); // m = [1, 0], v = [2, 0]
        oracle.step(0.1, &[vec![1.0, 1.0], vec![1.0, 3.0]]); // m = [1, 1]
        let want = [1.0 - 0.1 / (2f64.sqrt() + 1e-8), 1.0 - 0.1 / (1.0 + 1e-8)];
        assert_close(oracle.params(1), &want);
    }
}
