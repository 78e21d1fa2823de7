//! The slow twin: docs/algorithms.md in f64, all workers in one loop, nothing shared with the engine.
//!
//! Every optimizer is Adam plus two means over the workers:
//!
//! ```text
//! exact mean    C(mean_i C(g_i)),           C a cast, nothing remembered
//! coarse mean   worker  z = x_i + e_i;      q_i = C_up(z);   e_i ← (1−κ)·e_i + κ·(z − q_i)
//!               owner   z = mean_i q_i + E; p = C_down(z);   E ← (1−κ)·E + κ·(z − p);   everyone gets p
//! exact step    x ← x·(1 − γλ) − γ̂·m/P,    P = √(v/(1 − β2^j)) + ε
//! ```
//!
//! The letters are the page's; i is a worker, k a coordinate. E is kept whole, for ownership alters no number; γ, Γ
//! and D are kept per coordinate, for groups differ in them.
//!
//! The engine counts in f32, and quantizers jump: a value within f32 rounding of a threshold may land on its other
//! side. So the coarse mean notes how near to one its values came, and a comparison takes data that kept away.
//!
//! Papers: 1-bit Adam arXiv 2102.02888, 0/1 Adam arXiv 2202.06009, Efficient-Adam arXiv 2205.14473.
//! Left out: schedules (the caller gives γ, T_v and T_u), bytes, transports, errors.

#![allow(clippy::needless_range_loop)] // i and k are the page's

use std::ops::Range;

/// At most c on either side; and less and less from 100·c on.
fn fading(ratio: f64, c: f64) -> f64 {
    (100.0 * c / ratio.abs()).min(1.0) * ratio.clamp(-c, c)
}

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
    /// The same in so many bits: a sign, and 2^(b−1) even magnitudes from the smallest kept to the largest.
    Sparse(f64, u32),
    /// ±1.
    Vote,
}

impl Quantizer {
    pub fn apply(&self, block: &[f64]) -> Vec<f64> {
        let each = |f: &dyn Fn(f64) -> f64| block.iter().map(|&x| f(x)).collect();
        let max = largest(block);
        match *self {
            Quantizer::F32 => block.to_vec(),
            Quantizer::Bf16 => each(&|x| cast(x, 7, -126, (2.0 - 2f64.powi(-7)) * 2f64.powi(127))),
            Quantizer::F16 => each(&|x| cast(x, 10, -14, 65504.0)),
            Quantizer::Vote => each(&|x| if x >= 0.0 { 1.0 } else { -1.0 }),
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
            Quantizer::Sparse(fraction, bits) => {
                let (kept, low, last) =
                    (keep_largest(block, fraction), smallest_kept(block, fraction), f64::from((1 << (bits - 1)) - 1));
                let level =
                    |x: f64| if max > low { ((x.abs() - low) / (max - low) * last).round_ties_even() } else { 0.0 };
                kept.iter()
                    .map(|&x| if x == 0.0 { 0.0 } else { (low + level(x) / last * (max - low)) * x.signum() })
                    .collect()
            }
        }
    }

    /// How far the nearest value is from where C jumps, as a part of the scale. The casts jump everywhere, by little:
    /// they are left out. So are exact zeros and ties, which are exact in f32 too.
    fn margin(&self, block: &[f64]) -> f64 {
        let max = largest(block);
        let nearest = |f: &dyn Fn(f64) -> f64| block.iter().map(|&x| f(x)).fold(f64::INFINITY, f64::min);
        match *self {
            _ if max == 0.0 => f64::INFINITY,
            Quantizer::F32 | Quantizer::Bf16 | Quantizer::F16 => f64::INFINITY,
            Quantizer::Sign | Quantizer::Vote => {
                let s = mean(block.iter().map(|x| x.abs()));
                nearest(&|x| if x == 0.0 { f64::INFINITY } else { x.abs() / s })
            }
            Quantizer::Uniform(bits) => {
                let levels = points_a_side(bits) as f64;
                nearest(&|x| ((x / max * levels).rem_euclid(1.0) - 0.5).abs() / levels)
            }
            Quantizer::Power2(bits) => nearest(&|x| {
                let jumps = (0..points_a_side(bits)).map(|j| power_jump(j, points_a_side(bits)));
                jumps.map(|jump| (x.abs() / max - jump).abs()).fold(f64::INFINITY, f64::min)
            }),
            Quantizer::TopK(fraction) => {
                let kept = keep_largest(block, fraction);
                let least = kept.iter().filter(|x| **x != 0.0).map(|x| x.abs()).fold(max, f64::min);
                let left_out = zip(block, &kept, |x, kept| x - kept);
                let gap = (least - largest(&left_out)) / max;
                if gap == 0.0 { f64::INFINITY } else { gap }
            }
            Quantizer::Sparse(fraction, bits) => {
                let (kept, low, last) =
                    (keep_largest(block, fraction), smallest_kept(block, fraction), f64::from((1 << (bits - 1)) - 1));
                if max == low {
                    return Quantizer::TopK(fraction).margin(block);
                }
                let halfway = |x: f64| {
                    (((x.abs() - low) / (max - low) * last).rem_euclid(1.0) - 0.5).abs() / last * (max - low) / max
                };
                let inside = kept.iter().filter(|x| **x != 0.0).map(|x| halfway(*x)).fold(f64::INFINITY, f64::min);
                inside.min(Quantizer::TopK(fraction).margin(block))
            }
        }
    }
}

/// The smallest magnitude among the largest.
fn smallest_kept(block: &[f64], fraction: f64) -> f64 {
    let mut sizes: Vec<f64> = block.iter().map(|x| x.abs()).collect();
    sizes.sort_by(|a, b| b.total_cmp(a));
    let wanted = (fraction * block.len() as f64 - 1e-9).ceil().max(1.0);
    sizes[wanted as usize - 1]
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |s: f64, x| s.max(x.abs()))
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
    (0..magnitudes).find(|&j| r >= power_jump(j, magnitudes)).map_or(0.0, |j| 2f64.powi(-j))
}

/// Half-way from 2^−j to the point below it.
fn power_jump(j: i32, magnitudes: i32) -> f64 {
    let (point, next) = (2f64.powi(-j), if j + 1 < magnitudes { 2f64.powi(-j - 1) } else { 0.0 });
    (point + next) / 2.0
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
pub fn mean_rows(rows: &[Vec<f64>]) -> Vec<f64> {
    let column = |k: usize| rows.iter().map(move |row| row[k]);
    (0..rows[0].len()).map(|k| mean(column(k))).collect()
}

pub fn zip(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
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
    /// κ, up and down.
    pub feedback: (f64, f64),
    /// What a residual is rounded by.
    pub kept_as: Quantizer,
    /// e: the residual of each worker.
    pub e: Vec<Vec<f64>>,
    /// E: the residuals of all owners, in one vector.
    pub owner_e: Vec<f64>,
    pub seen: Seen,
}

/// What a coarse mean has coded so far.
#[derive(Clone, Copy)]
pub struct Seen {
    /// The nearest that a value came to where its quantizer jumps, as a part of its block's scale.
    pub closest_call: f64,
    /// The largest |z|.
    pub largest: f64,
}

impl CoarseMean {
    /// No residuals, the same blocks both ways.
    pub fn new(workers: usize, d: usize, block: usize, up: Quantizer, down: Quantizer) -> Self {
        CoarseMean {
            up,
            down,
            up_blocks: blocks(d, block),
            down_blocks: blocks(d, block),
            feedback: (1.0, 1.0),
            kept_as: Quantizer::F32,
            e: vec![vec![0.0; d]; workers],
            owner_e: vec![0.0; d],
            seen: Seen { closest_call: f64::INFINITY, largest: 0.0 },
        }
    }

    pub fn mean(&mut self, x: &[Vec<f64>]) -> Vec<f64> {
        let ((up, down), kept_as) = (self.feedback, self.kept_as);
        let mut q = Vec::new();
        for i in 0..x.len() {
            q.push(feed_back(self.up, &self.up_blocks, (up, kept_as), &x[i], &mut self.e[i], &mut self.seen));
        }
        let q = mean_rows(&q);
        feed_back(self.down, &self.down_blocks, (down, kept_as), &q, &mut self.owner_e, &mut self.seen)
    }

    /// mean_i e_i + E: what the means so far still owe.
    pub fn residual(&self) -> Vec<f64> {
        zip(&mean_rows(&self.e), &self.owner_e, |e, owner_e| e + owner_e)
    }
}

/// z = x + e;  q = C(z);  e ← (1−κ)·e + κ·(z − q), rounded.
fn feed_back(
    c: Quantizer,
    blocks: &[Range<usize>],
    (kappa, kept_as): (f64, Quantizer),
    x: &[f64],
    e: &mut Vec<f64>,
    seen: &mut Seen,
) -> Vec<f64> {
    let z = zip(x, e, |x, e| x + e);
    let mut q = Vec::new();
    for block in blocks {
        let z = &z[block.clone()];
        q.extend(c.apply(z));
        seen.closest_call = seen.closest_call.min(c.margin(z));
        seen.largest = seen.largest.max(largest(z));
    }
    let lost = zip(&z, &q, |z, q| z - q);
    let kept = zip(e, &lost, |e, lost| (1.0 - kappa) * e + kappa * lost);
    *e = blocks.iter().flat_map(|block| kept_as.apply(&kept[block.clone()])).collect();
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
    /// On a coarse mean of the gradient.
    CodedAdam,
    /// Exact for t < `warmup`.
    OneBitAdam {
        warmup: u64,
    },
    /// T_v and T_u.
    ZeroOneAdam {
        variance: Steps,
        sync: Steps,
        /// Every sync updates v, by the square of m.
        squares_momenta: bool,
    },
    EfficientAdam {
        theta: Theta,
    },
}

impl Algorithm {
    pub fn zero_one(variance: impl Fn(u64) -> bool + 'static, sync: impl Fn(u64) -> bool + 'static) -> Self {
        let (variance, sync) = (Box::new(variance), Box::new(sync));
        Algorithm::ZeroOneAdam { variance, sync, squares_momenta: false }
    }

    pub fn zero_one_of_momenta(sync: impl Fn(u64) -> bool + 'static) -> Self {
        Algorithm::ZeroOneAdam { variance: Box::new(|_| false), sync: Box::new(sync), squares_momenta: true }
    }
}

pub struct Setup {
    pub algorithm: Algorithm,
    pub workers: usize,
    /// Block size of the coarse mean.
    pub block: usize,
    pub up: Quantizer,
    pub down: Quantizer,
    /// κ, up and down.
    pub feedback: (f64, f64),
    /// The cast of the exact mean, both ways.
    pub exact: Quantizer,
    pub betas: (f64, f64),
    pub eps: f64,
    pub bias_correction: bool,
    /// What the learning rate is multiplied by, per coordinate.
    pub rate: Vec<f64>,
    /// λ, per coordinate.
    pub weight_decay: Vec<f64>,
    /// c: how far a step on a stale v may move a parameter, in γ̂.
    pub limit: f64,
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
            feedback: (1.0, 1.0),
            exact: Quantizer::F32,
            betas: (0.9, 0.999),
            eps: 1e-8,
            bias_correction: true,
            rate: vec![1.0; d],
            weight_decay: vec![0.0; d],
            limit: 1.0, // not the engine's constant, which is to be held to it
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
    /// Whether m was made by an exact step, or is still its start.
    exact_momentum: bool,
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
        let coarse = CoarseMean {
            feedback: setup.feedback,
            ..CoarseMean::new(setup.workers, x0.len(), setup.block, setup.up, setup.down)
        };
        Oracle::with_coarse(setup, x0, coarse)
    }

    /// The same with coarse means of another kind.
    pub fn with_coarse(setup: Setup, x0: &[f64], coarse: CoarseMean) -> Self {
        let d = x0.len();
        assert_eq!((setup.rate.len(), setup.weight_decay.len()), (d, d));
        let zeros = vec![0.0; d];
        let (m, v, u) = (zeros.clone(), zeros.clone(), zeros.clone());
        let x = x0.to_vec();
        Oracle {
            workers: vec![Worker { x, m, v, u }; setup.workers],
            coarse,
            t: 0,
            v_memory: 1.0,
            exact_momentum: true,
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
            Algorithm::Adam => self.adam_step(self.exact_mean(grads)),
            Algorithm::CodedAdam => {
                let g = self.coarse.mean(grads);
                self.adam_step(g);
            }
            Algorithm::OneBitAdam { warmup } if t < *warmup => self.adam_step(self.exact_mean(grads)),
            Algorithm::OneBitAdam { .. } => self.coarse_momentum_step(grads),
            Algorithm::ZeroOneAdam { variance, .. } if variance(t) => self.adam_step(self.exact_mean(grads)),
            Algorithm::ZeroOneAdam { variance, sync, .. } => {
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

    /// Adam on a mean of the gradients.
    fn adam_step(&mut self, g: Vec<f64>) {
        let (beta1, beta2) = self.setup.betas;
        self.v_memory *= beta2; // j ← j + 1
        for (i, k) in self.places() {
            let w = &mut self.workers[i];
            w.v[k] = beta2 * w.v[k] + (1.0 - beta2) * g[k] * g[k];
            if !self.exact_momentum {
                let (m, p) = (self.workers[i].m[k], self.p(i, k));
                let (seen, c) = (self.workers[i].v[k] > 0.0, self.setup.limit);
                self.workers[i].m[k] = p * if seen { self.limit(m / p, true) } else { fading(m / p, c) };
            }
            let w = &mut self.workers[i];
            w.m[k] = beta1 * w.m[k] + (1.0 - beta1) * g[k];
            self.move_by(i, k, self.update(i, k));
        }
        self.exact_momentum = true;
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
            self.move_by(i, k, self.limited(i, k, self.update(i, k), self.gamma_hat(k)));
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
            self.move_by(i, k, self.limited(i, k, self.update(i, k), gamma_hat));
        }
        for k in 0..self.gamma.len() {
            self.gamma_sum[k] += self.gamma_hat(k); // Γ ← Γ + γ̂
            self.decay[k] *= self.shrink(k); // D ← D·(1 − γλ)
        }
        self.pending = true;
        self.exact_momentum = false;
    }

    /// 0/1 Adam's exchange, if there has been a step since the last; for the others, nothing.
    pub fn sync(&mut self) {
        if !self.pending {
            return;
        }
        let u: Vec<_> = self.workers.iter().map(|w| w.u.clone()).collect();
        let u = self.coarse.mean(&u); // ū
        for (i, k) in self.places() {
            if self.setup.rate[k] == 0.0 {
                continue; // frozen
            }
            let p = self.p(i, k);
            let moved = self.limited(i, k, u[k] / p, self.gamma_sum[k]);
            if self.gamma_sum[k] > 0.0 {
                let (synced, seen) = (u[k] / self.gamma_sum[k], self.workers[i].v[k] > 0.0);
                self.workers[i].m[k] = if seen { p * self.momentum(synced / p) } else { synced }; // m ← ū/Γ
            }
            let w = &mut self.workers[i];
            w.x[k] = self.anchor[k] * self.decay[k] - moved; // x ← a·D − ū/P
            w.u[k] = 0.0;
        }
        if matches!(self.setup.algorithm, Algorithm::ZeroOneAdam { squares_momenta: true, .. }) {
            self.square_momenta();
        }
        self.anchor = self.workers[0].x.clone();
        self.gamma_sum.fill(0.0);
        self.decay.fill(1.0);
        self.pending = false;
    }

    /// v ← β2·v + (1−β2)·m², where a learning rate led to m.
    fn square_momenta(&mut self) {
        let (_, beta2) = self.setup.betas;
        for (i, k) in self.places() {
            if self.setup.rate[k] > 0.0 && self.gamma_sum[k] > 0.0 {
                let w = &mut self.workers[i];
                w.v[k] = beta2 * w.v[k] + (1.0 - beta2) * w.m[k] * w.m[k];
            }
        }
        if self.gamma_sum.iter().any(|gamma| *gamma > 0.0) {
            self.v_memory *= beta2;
        }
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
            if self.setup.rate[k] > 0.0 {
                self.move_by(i, k, update[k]);
            }
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

    /// What x moves by on a v that may know nothing of the gradients in m, γ̂ being what led to `update`.
    fn limited(&self, i: usize, k: usize, update: f64, gamma_hat: f64) -> f64 {
        if gamma_hat == 0.0 {
            return 0.0;
        }
        gamma_hat * self.limit(update / gamma_hat, self.workers[i].v[k] > 0.0)
    }

    /// At most c on either side; and less and less from 100·c on, if v has seen anything. Where nothing is coded, m is what it
    /// is, and only what v has never seen is limited.
    fn limit(&self, ratio: f64, seen: bool) -> f64 {
        let c = self.setup.limit;
        match (seen, self.setup.up, self.setup.down) {
            (true, Quantizer::F32, Quantizer::F32) => ratio,
            (true, ..) => fading(ratio, c),
            (false, ..) => ratio.clamp(-c, c),
        }
    }

    /// What a sync leaves of m, in P: at most 7.3·c, as Adam's own can be, and less and less from 100·c on.
    fn momentum(&self, ratio: f64) -> f64 {
        let c = self.setup.limit;
        match (self.setup.up, self.setup.down) {
            (Quantizer::F32, Quantizer::F32) => ratio,
            _ => (100.0 * c / ratio.abs()).min(1.0) * ratio.clamp(-7.3 * c, 7.3 * c),
        }
    }

    /// P = √(v/(1 − β2^j)) + ε.
    pub fn p(&self, i: usize, k: usize) -> f64 {
        (self.workers[i].v[k] / self.correction(self.v_memory)).sqrt() + self.setup.eps
    }

    /// What a moment is short by, its start at zero still weighing `memory`.
    fn correction(&self, memory: f64) -> f64 {
        // Before a first update there is nothing to correct.
        if self.setup.bias_correction && memory < 1.0 { 1.0 - memory } else { 1.0 }
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

    /// What the coarse means have coded so far.
    pub fn seen(&self) -> Seen {
        self.coarse.seen
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
