//! The element-wise passes of the optimizers, in the letters of the papers.
//!
//! Every function takes the slices of one tile of the flat vector and the scalars of one parameter group, [`Scalars`]. g is the
//! gradient after clipping: each multiplies it with [`Scalars::shrink`] as it reads it.

// One argument a vector: that is how the compiler knows that they do not overlap.
#![allow(clippy::too_many_arguments, clippy::manual_memcpy, clippy::needless_range_loop)]

use super::{for_each_line, multiversion};

/// What one parameter group needs in one step; computed in f64 by the optimizer, used in f32 by the loops.
#[derive(Clone, Copy, Debug)]
pub struct Scalars {
    /// β1, and 1 − β1.
    pub beta1: (f32, f32),
    /// β2, and 1 − β2 (θ in Efficient-Adam).
    pub beta2: (f32, f32),
    /// γ̂ = γ / (1 − β1^(t+1)).
    pub rate: f32,
    /// 1 − γλ: the decoupled weight decay of this step.
    pub decay: f32,
    /// 1 / (1 − β2^j).
    pub correction: f32,
    pub eps: f32,
    /// What the gradient is multiplied with first: below 1 where it was longer than the clip's limit.
    pub shrink: f32,
    /// What stands for v where v = 0: 0 in plain Adam, the mean of v where a coarse mean may say ±s for a zero.
    pub floor: f32,
}

impl Scalars {
    /// P = √(v / (1 − β2^j)) + ε.
    #[inline(always)]
    fn denominator(&self, v: f32) -> f32 {
        let v = if v > 0.0 { v } else { self.floor };
        (v * self.correction).sqrt() + self.eps
    }

    #[inline(always)]
    fn blend(&self, m: f32, g: f32) -> f32 {
        self.beta1.0 * m + self.beta1.1 * (self.shrink * g)
    }

    #[inline(always)]
    fn blend_square(&self, v: f32, g: f32) -> f32 {
        let g = self.shrink * g;
        self.beta2.0 * v + self.beta2.1 * g * g
    }

    /// v ← β2·v + (1−β2)·g². A first gradient that finds a momentum already there, the ±s of a coarse mean, starts from what
    /// stood for v so far: else P would fall from √floor to almost nothing under it.
    #[inline(always)]
    fn renew(&self, v: f32, g: f32, m: f32) -> f32 {
        let stand_in = if self.floor < f32::INFINITY { self.floor } else { 0.0 };
        let first = (v == 0.0) & (self.shrink * g != 0.0) & (m != 0.0);
        self.blend_square(if first { stand_in } else { v }, g)
    }

    #[inline(always)]
    fn descend(&self, x: f32, m: f32, v: f32) -> f32 {
        x * self.decay - self.rate * m / self.denominator(v)
    }
}

multiversion! {
    /// out ← x, asking ahead as the others do: memcpy does not, and is slower on tiles that come from memory.
    pub fn copy(x: &[f32], out: &mut [f32]) {
        for_each_line!([x], [out], |i| {
            out[i] = x[i];
        });
    }
}

multiversion! {
    /// Adam: m ← β1·m + (1−β1)·g,  v ← β2·v + (1−β2)·g²,  x ← x·(1−γλ) − γ̂·m/P.
    pub fn adam(k: &Scalars, g: &[f32], m: &mut [f32], v: &mut [f32], x: &mut [f32]) {
        for_each_line!([g], [m, v, x], |i| {
            v[i] = k.renew(v[i], g[i], m[i]);
            m[i] = k.blend(m[i], g[i]);
            x[i] = k.descend(x[i], m[i], v[i]);
        });
    }
}

multiversion! {
    /// What 1-bit Adam sends: z = β1·m + (1−β1)·g.
    pub fn blend(k: &Scalars, g: &[f32], m: &[f32], z: &mut [f32]) {
        for_each_line!([g, m], [z], |i| {
            z[i] = k.blend(m[i], g[i]);
        });
    }
}

multiversion! {
    /// What 1-bit Adam does with the mean: m ← z̄,  x ← x·(1−γλ) − γ̂·m/P.
    pub fn descend(k: &Scalars, mean: &[f32], v: &[f32], m: &mut [f32], x: &mut [f32]) {
        for_each_line!([mean, v], [m, x], |i| {
            m[i] = mean[i];
            x[i] = k.descend(x[i], m[i], v[i]);
        });
    }
}

multiversion! {
    /// A step of 0/1 Adam without the network: m ← β1·m + (1−β1)·g,  u ← u + γ̂·m,  x ← x·(1−γλ) − γ̂·m/P.
    pub fn local(k: &Scalars, g: &[f32], v: &[f32], m: &mut [f32], u: &mut [f32], x: &mut [f32]) {
        for_each_line!([g, v], [m, u, x], |i| {
            m[i] = k.blend(m[i], g[i]);
            u[i] += k.rate * m[i];
            x[i] = k.descend(x[i], m[i], v[i]);
        });
    }
}

multiversion! {
    /// What 0/1 Adam sends: z = u + γ̂·(β1·m + (1−β1)·g). The sync replaces m, u and x, so none is written here.
    pub fn progress(k: &Scalars, g: &[f32], m: &[f32], u: &[f32], z: &mut [f32]) {
        for_each_line!([g, m, u], [z], |i| {
            z[i] = u[i] + k.rate * k.blend(m[i], g[i]);
        });
    }
}

multiversion! {
    /// The same where there was no local step since the last sync, and u = 0.
    pub fn first_progress(k: &Scalars, g: &[f32], m: &[f32], z: &mut [f32]) {
        for_each_line!([g, m], [z], |i| {
            z[i] = 0.0 + k.rate * k.blend(m[i], g[i]);
        });
    }
}

/// Γ = Σγ̂ and D = Π(1−γλ) since the last sync, of one parameter group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Since {
    pub rates: f32,
    pub decays: f32,
}

impl Since {
    /// m = ū/Γ. With no learning rate since the last sync no local step touched m, so it is still the shared one.
    #[inline(always)]
    fn momentum(self, mean: f32, m: f32) -> f32 {
        if self.rates > 0.0 { mean / self.rates } else { m }
    }
}

multiversion! {
    /// What 0/1 Adam does with the mean: m ← ū/Γ (where Γ > 0),  x ← a·D − ū/P,  u ← 0.
    pub fn rebase(
        k: &Scalars, since: Since, mean: &[f32], v: &[f32], a: &[f32],
        m: &mut [f32], u: &mut [f32], x: &mut [f32],
    ) {
        for_each_line!([mean, v, a], [m, u, x], |i| {
            m[i] = since.momentum(mean[i], m[i]);
            x[i] = a[i] * since.decays - mean[i] / k.denominator(v[i]);
            u[i] = 0.0;
        });
    }
}

multiversion! {
    /// The same where there was no local step since the last sync: u = 0, and x is where it was.
    pub fn first_rebase(k: &Scalars, since: Since, mean: &[f32], v: &[f32], m: &mut [f32], x: &mut [f32]) {
        for_each_line!([mean, v], [m, x], |i| {
            m[i] = since.momentum(mean[i], m[i]);
            x[i] = x[i] * since.decays - mean[i] / k.denominator(v[i]);
        });
    }
}

multiversion! {
    /// What Efficient-Adam sends: m ← β·m + (1−β)·g,  v ← θ·v + (1−θ)·g²,  z = γ̂·m/P.
    pub fn own_update(k: &Scalars, g: &[f32], m: &mut [f32], v: &mut [f32], z: &mut [f32]) {
        for_each_line!([g], [m, v, z], |i| {
            m[i] = k.blend(m[i], g[i]);
            v[i] = k.blend_square(v[i], g[i]);
            z[i] = k.rate * m[i] / k.denominator(v[i]);
        });
    }
}

multiversion! {
    /// What Efficient-Adam does with the mean: x ← x·(1−γλ) − z̄.
    pub fn subtract(k: &Scalars, mean: &[f32], x: &mut [f32]) {
        for_each_line!([mean], [x], |i| {
            x[i] = x[i] * k.decay - mean[i];
        });
    }
}
