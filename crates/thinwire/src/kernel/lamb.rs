//! The passes of 1-bit LAMB, and what it has to know of every tensor. Here P = √v + ε, because LAMB corrects neither moment.
//!
//! r = m/P within ±[`limit`](Scalars::limit), and u = r + λx. Who moves x computes both again, so nothing of their length is kept.

// As in `update`: the index is what the compiler vectorises.
#![allow(clippy::needless_range_loop)]

use super::reduce::{LANES, add_lanes};
use super::update::Scalars;
use super::{for_each_line, multiversion};

/// Sums in f64 of what `of` says of each place, in the lanes of [`reduce`](super::reduce) and in their order.
#[inline(always)]
fn sums(len: usize, of: impl Fn(usize) -> [f32; 2]) -> [f64; 2] {
    let mut lanes = [[0f64; LANES]; 2];
    for at in (0..len).step_by(LANES) {
        for l in 0..LANES.min(len - at) {
            let [a, b] = of(at + l).map(f64::from);
            lanes[0][l] += a * a;
            lanes[1][l] += b * b;
        }
    }
    lanes.map(add_lanes)
}

multiversion! {
    /// Warm-up: m ← β1·m + (1−β1)·ḡ,  v ← β2·v + (1−β2)·ḡ²,  w ← v, where the fresh variance w will start from.
    pub fn moments(k: &Scalars, mean: &[f32], m: &mut [f32], v: &mut [f32], w: &mut [f32]) {
        for_each_line!([mean], [m, v, w], |i| {
            m[i] = k.blend(m[i], mean[i]);
            v[i] = k.blend_square(v[i], mean[i]);
            w[i] = v[i];
        });
    }
}

multiversion! {
    /// Later: ĝ = (m̄ − β1·m)/(1−β1),  w ← β2·w + (1−β2)·ĝ²,  m ← m̄.
    pub fn momentum(k: &Scalars, mean: &[f32], m: &mut [f32], w: &mut [f32]) {
        for_each_line!([mean], [m, w], |i| {
            let g = (mean[i] - k.beta1.0 * m[i]) / k.beta1.1;
            w[i] = k.beta2.0 * w[i] + k.beta2.1 * g * g;
            m[i] = mean[i];
        });
    }
}

multiversion! {
    /// Σx² and Σu².
    pub fn squares_of_params(k: &Scalars, m: &[f32], v: &[f32], x: &[f32]) -> [f64; 2] {
        let (m, v) = (&m[..x.len()], &v[..x.len()]);
        sums(x.len(), |i| [x[i], k.ratio(m[i], v[i]) + k.weight_decay * x[i]])
    }
}

multiversion! {
    /// Σr² and Σu².
    pub fn squares_of_ratio(k: &Scalars, m: &[f32], v: &[f32], x: &[f32]) -> [f64; 2] {
        let (m, v) = (&m[..x.len()], &v[..x.len()]);
        sums(x.len(), |i| {
            let r = k.ratio(m[i], v[i]);
            [r, r + k.weight_decay * x[i]]
        })
    }
}

multiversion! {
    /// max (√v + ε)/(√w + ε).
    pub fn largest_growth(k: &Scalars, v: &[f32], w: &[f32]) -> f32 {
        let mut lanes = [0f32; LANES];
        for (v, w) in v.chunks(LANES).zip(w.chunks(LANES)) {
            for l in 0..v.len().min(w.len()) {
                let growth = (v[l].sqrt() + k.eps) / (w[l].sqrt() + k.eps);
                lanes[l] = if growth > lanes[l] { growth } else { lanes[l] };
            }
        }
        lanes.into_iter().fold(0.0, f32::max)
    }
}

multiversion! {
    /// x ← x − γ·c·u, with γ·c in [`Scalars::rate`]. Returns whether x jumped anywhere, weight decay aside.
    pub fn stride(k: &Scalars, m: &[f32], v: &[f32], x: &mut [f32]) -> bool {
        let mut jumps = 0;
        for_each_line!([m, v], [x], |i| {
            let r = k.ratio(m[i], v[i]);
            x[i] -= k.rate * (r + k.weight_decay * x[i]);
            jumps |= u32::from((k.rate * r).abs() > k.jump);
        });
        jumps > 0
    }
}

/// Where a [`stride`] that returned true has moved x by more than `jump`.
pub fn jumped(k: &Scalars, m: &[f32], v: &[f32]) -> Option<usize> {
    (0..m.len()).find(|i| (k.rate * k.ratio(m[*i], v[*i])).abs() > k.jump)
}
