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
    /// λ itself, for a rule that has it inside of its step.
    pub weight_decay: f32,
    /// 1 / (1 − β2^j).
    pub correction: f32,
    /// ε.
    pub eps: f32,
    /// What the gradient is multiplied with first: below 1 where it was longer than the clip's limit.
    pub shrink: f32,
    /// How far a step may move a parameter on a variance that is stale, in γ̂: [`LIMIT`], or as far as it likes where coarse means
    /// lose nothing; but [`LIMIT`] in any case where v = 0.
    pub limit: f32,
    /// A move that is worth a warning, in the units of x: [`JUMP`] learning rates.
    pub jump: f32,
    /// False for a group whose learning rate is always 0. In a block that it shares, a coarse mean says ±s for its zeros: not to be
    /// used.
    pub moves: bool,
    /// Of 0/1 Adam: what the steps since the last sync come to.
    pub since: Since,
    /// Of 0/1 Adam with a delay: the interval whose mean is on its way.
    pub sent: Sent,
    /// Of local Adam: what its outer step multiplies with.
    pub outer: OuterStep,
}

/// Γ = Σγ̂ and D = Π(1−γλ) since the last sync, of one parameter group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Since {
    /// Γ.
    pub rates: f32,
    /// D.
    pub decays: f32,
}

impl Since {
    /// Just after a sync.
    pub const NOTHING: Since = Since { rates: 0.0, decays: 1.0 };
}

/// What a late mean of 0/1 Adam is of, and what has become of it since, of one parameter group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    /// Γ and D of the interval that was sent.
    pub since: Since,
    /// Πβ1 over the steps since: what is left in m of what m was then.
    pub fade: f32,
    /// S = Σ γ̂·Πβ1 over them: what it has added to u.
    pub carried: f32,
}

impl Sent {
    /// Where no mean is on its way.
    pub const NOTHING: Sent = Sent { since: Since::NOTHING, fade: 1.0, carried: 0.0 };
}

/// What the outer step of local Adam multiplies with, of one parameter group. Each rule uses some of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OuterStep {
    /// γ, which some rules divide Δ̄ by; 0 where no local step since the last sync had a learning rate.
    pub unit: f32,
    /// η; ηγ for the rules that divide by γ.
    pub rate: f32,
    /// μ.
    pub momentum: f32,
    /// β1 and 1 − β1.
    pub beta1: (f32, f32),
    /// β2 and 1 − β2.
    pub beta2: (f32, f32),
    /// 1 − ηγλ.
    pub decay: f32,
    /// φ, the largest |M| of `slow-momentum`.
    pub most: f32,
    /// α and 1 − α: how much of its own view a worker keeps.
    pub mix: (f32, f32),
}

impl OuterStep {
    /// Of a step that is not an outer one.
    pub const NOTHING: OuterStep = OuterStep {
        unit: 0.0,
        rate: 0.0,
        momentum: 0.0,
        beta1: (0.0, 1.0),
        beta2: (0.0, 1.0),
        decay: 1.0,
        most: f32::INFINITY,
        mix: (0.0, 1.0),
    };

    /// α·x + (1−α)·a; a itself, whatever x is, with α = 0.
    #[inline(always)]
    fn view(&self, x: f32, a: f32) -> f32 {
        if self.mix.0 == 0.0 { a } else { self.mix.0 * x + self.mix.1 * a }
    }
}

/// c: no step on a stale variance moves a parameter by more than c·γ̂, weight decay aside.
///
/// One bit cannot say zero. Where a parameter has almost no gradient (the bias before a BatchNorm, the key bias of attention, a dead
/// unit), √v may be 1e-10 beside neighbours of 1e-3, and a coarse mean still says ±s, the scale of the whole block: s/P would be a
/// million learning rates. And a gradient that comes for the first time after v was frozen finds P = ε. Adam itself seldom moves a
/// parameter by more than γ in a step, so neither does a step whose P does not know the gradient it divides. A parameter that gets
/// its first gradient late then learns by γ a step. docs/algorithms.md has the study.
pub const LIMIT: f32 = 1.0;

/// R: a momentum of more than R·c·P where v is not 0 is a code's noise, and counts for less the farther it is beyond.
///
/// By Cauchy and Schwarz Adam's own |m| is at most 7.3·P (β = 0.9, 0.999). So these are parameters whose gradients were all next to
/// nothing, in a block whose others were not; with the limit alone they would wander by several γ, where Adam leaves them in place.
pub const NOISE: f32 = 100.0;

/// Adam's own |m| is at most this many P, by the same inequality: so is the momentum that a sync of 0/1 Adam leaves.
pub const LARGEST: f32 = 7.3;

/// A step that moves a parameter by more learning rates than this is counted and told.
pub const JUMP: f32 = 100.0;

/// `value`, at most `most` on either side of 0. NaN stays NaN; `f32::clamp` would do that too, but may panic, which no loop survives.
#[inline(always)]
fn within(value: f32, most: f32) -> f32 {
    if value > most {
        most
    } else if value < -most {
        -most
    } else {
        value
    }
}

/// How much a value counts for: 1 up to [`NOISE`] times `most`, and less the farther it is beyond.
#[inline(always)]
fn fading(value: f32, most: f32) -> f32 {
    let noise = NOISE * most;
    if value.abs() > noise { noise / value.abs() } else { 1.0 }
}

/// −1, 0 or 1.
#[inline(always)]
fn sign(value: f32) -> f32 {
    (i32::from(value > 0.0) - i32::from(value < 0.0)) as f32
}

impl Scalars {
    /// P = √(v / (1 − β2^j)) + ε.
    #[inline(always)]
    fn denominator(&self, v: f32) -> f32 {
        (v * self.correction).sqrt() + self.eps
    }

    #[inline(always)]
    pub(super) fn blend(&self, m: f32, g: f32) -> f32 {
        self.beta1.0 * m + self.beta1.1 * (self.shrink * g)
    }

    #[inline(always)]
    pub(super) fn blend_square(&self, v: f32, g: f32) -> f32 {
        let g = self.shrink * g;
        self.beta2.0 * v + self.beta2.1 * g * g
    }

    /// What an update of `update` may move x by where v is stale; `rate` is the sum of the γ̂ that led to it.
    #[inline(always)]
    fn limited(&self, update: f32, rate: f32, v: f32) -> f32 {
        let most = if v > 0.0 { self.limit * rate } else { LIMIT * rate };
        let trust = if v > 0.0 { fading(update, most) } else { 1.0 };
        trust * within(update, most)
    }

    /// m/P as far as P can be trusted: [`Scalars::limited`] of a rate of 1.
    #[inline(always)]
    pub(super) fn ratio(&self, m: f32, v: f32) -> f32 {
        self.limited(m / self.denominator(v), 1.0, v)
    }

    /// m after a sync of 0/1 Adam: ū/Γ, as far as it can be a momentum.
    ///
    /// ū also carries what earlier rounds lost, in units of the rates they had. Where the rate has fallen a lot since, near the end
    /// of a decay, that part divided by Γ is thousands of P. It is right for x, and no momentum: if the rate rises again, as in
    /// cosine restarts or a run that is made longer, it would throw the parameters back. With no learning rate since the last sync no
    /// local step touched m, so it is still the shared one.
    #[inline(always)]
    fn synced_momentum(&self, mean: f32, m: f32, p: f32, v: f32) -> f32 {
        self.momentum_of(mean, self.since.rates, m, p, v)
    }

    /// The same of an interval with this Γ.
    #[inline(always)]
    fn momentum_of(&self, mean: f32, rates: f32, m: f32, p: f32, v: f32) -> f32 {
        let synced = mean / rates;
        match () {
            () if rates <= 0.0 => m,
            () if v > 0.0 => fading(synced, self.limit * p) * within(synced, LARGEST * self.limit * p),
            () => synced, // v has never seen this parameter, so it may be a late one
        }
    }

    /// What to take of a momentum that a coarse mean left, before it counts in exact steps.
    #[inline(always)]
    fn trusted(&self, m: f32, p: f32, v: f32) -> f32 {
        let most = if v > 0.0 { self.limit * p } else { LIMIT * p };
        fading(m, most) * within(m, most)
    }

    /// Where a step of [`adam`] or [`adam_after_coarse`] that returned true has moved x by more than `jump`.
    pub fn jumped(&self, m: &[f32], v: &[f32]) -> Option<usize> {
        (0..m.len()).find(|i| (self.rate * m[*i] / self.denominator(v[*i])).abs() > self.jump)
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
    /// Adam: m ← β1·m + (1−β1)·g,  v ← β2·v + (1−β2)·g²,  x ← x·(1−γλ) − γ̂·m/P. Returns whether x jumped anywhere.
    pub fn adam(k: &Scalars, g: &[f32], m: &mut [f32], v: &mut [f32], x: &mut [f32]) -> bool {
        let mut jumps = 0;
        for_each_line!([g], [m, v, x], |i| {
            v[i] = k.blend_square(v[i], g[i]);
            m[i] = k.blend(m[i], g[i]);
            let update = k.rate * m[i] / k.denominator(v[i]);
            x[i] = x[i] * k.decay - update;
            jumps |= u32::from(update.abs() > k.jump);
        });
        jumps > 0
    }
}

multiversion! {
    /// Adam on a momentum that a coarse mean left: m ← β1·(m, within ±c·P) + (1−β1)·g, the rest as above.
    /// Without the limit, ±s would count for the next dozen exact steps wherever s is far above P.
    pub fn adam_after_coarse(k: &Scalars, g: &[f32], m: &mut [f32], v: &mut [f32], x: &mut [f32]) -> bool {
        let mut jumps = 0;
        for_each_line!([g], [m, v, x], |i| {
            v[i] = k.blend_square(v[i], g[i]);
            let p = k.denominator(v[i]);
            m[i] = k.blend(k.trusted(m[i], p, v[i]), g[i]);
            let update = k.rate * m[i] / p;
            x[i] = x[i] * k.decay - update;
            jumps |= u32::from(update.abs() > k.jump);
        });
        jumps > 0
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
    /// What 1-bit Adam does with the mean: m ← z̄,  x ← x·(1−γλ) − (γ̂·m/P, within ±c·γ̂).
    pub fn descend(k: &Scalars, mean: &[f32], v: &[f32], m: &mut [f32], x: &mut [f32]) {
        for_each_line!([mean, v], [m, x], |i| {
            m[i] = mean[i];
            x[i] = x[i] * k.decay - k.limited(k.rate * m[i] / k.denominator(v[i]), k.rate, v[i]);
        });
    }
}

multiversion! {
    /// A step of 0/1 Adam without the network: m ← β1·m + (1−β1)·g,  u ← u + γ̂·m,  x ← x·(1−γλ) − (γ̂·m/P, within ±c·γ̂).
    pub fn local(k: &Scalars, g: &[f32], v: &[f32], m: &mut [f32], u: &mut [f32], x: &mut [f32]) {
        for_each_line!([g, v], [m, u, x], |i| {
            m[i] = k.blend(m[i], g[i]);
            u[i] += k.rate * m[i];
            x[i] = x[i] * k.decay - k.limited(k.rate * m[i] / k.denominator(v[i]), k.rate, v[i]);
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

multiversion! {
    /// What 0/1 Adam does with the mean: m ← ū/Γ (where Γ > 0; within ±7.3·P),  x ← a·D − (ū/P, within ±c·Γ),  u ← 0.
    pub fn rebase(
        k: &Scalars, mean: &[f32], v: &[f32], a: &[f32],
        m: &mut [f32], u: &mut [f32], x: &mut [f32],
    ) {
        let since = k.since;
        for_each_line!([mean, v, a], [m, u, x], |i| {
            let p = k.denominator(v[i]);
            m[i] = k.synced_momentum(mean[i], m[i], p, v[i]);
            x[i] = a[i] * since.decays - k.limited(mean[i] / p, since.rates, v[i]);
            u[i] = 0.0;
        });
    }
}

multiversion! {
    /// The same where there was no local step since the last sync: u = 0, and x is where it was.
    pub fn first_rebase(k: &Scalars, mean: &[f32], v: &[f32], m: &mut [f32], x: &mut [f32]) {
        let since = k.since;
        for_each_line!([mean, v], [m, x], |i| {
            let p = k.denominator(v[i]);
            m[i] = k.synced_momentum(mean[i], m[i], p, v[i]);
            x[i] = x[i] * since.decays - k.limited(mean[i] / p, since.rates, v[i]);
        });
    }
}

multiversion! {
    /// A late sync of 0/1 Adam starts, with this worker's own u for the mean: s ← u,  m ← u/Γ (within ±7.3·P),
    /// x ← a·D − (u/P, within ±c·Γ),  u ← 0.
    pub fn depart(
        k: &Scalars, v: &[f32], a: &[f32],
        m: &mut [f32], u: &mut [f32], x: &mut [f32], sent: &mut [f32],
    ) {
        let since = k.since;
        for_each_line!([v, a], [m, u, x, sent], |i| {
            let p = k.denominator(v[i]);
            sent[i] = u[i];
            m[i] = k.synced_momentum(u[i], m[i], p, v[i]);
            x[i] = a[i] * since.decays - k.limited(u[i] / p, since.rates, v[i]);
            u[i] = 0.0;
        });
    }
}

multiversion! {
    /// The same of a worker that took no part in the interval: nothing moves, and s ← Γ·m, which is what its m stands for.
    pub fn abstain(k: &Scalars, m: &[f32], sent: &mut [f32]) {
        let since = k.since;
        for_each_line!([m], [sent], |i| {
            sent[i] = since.rates * m[i];
        });
    }
}

multiversion! {
    /// The mean of what was sent arrives, with δ = ū/Γ_s − s/Γ_s (each within ±7.3·P): m ← m + fade·δ,  u ← u + S·δ,
    /// a ← a·D_s − (ū/P, within ±c·Γ_s),  x ← a·D − (u/P, within ±c·Γ).
    pub fn correct(
        k: &Scalars, mean: &[f32], v: &[f32], sent: &[f32],
        m: &mut [f32], u: &mut [f32], a: &mut [f32], x: &mut [f32],
    ) {
        let (now, then) = (k.since, k.sent);
        for_each_line!([mean, v, sent], [m, u, a, x], |i| {
            let p = k.denominator(v[i]);
            let own = k.momentum_of(sent[i], then.since.rates, 0.0, p, v[i]);
            let delta = k.momentum_of(mean[i], then.since.rates, 0.0, p, v[i]) - own;
            // With no step in between it is ū/Γ_s to the bit, as on every other worker.
            let synced = k.momentum_of(mean[i], then.since.rates, m[i], p, v[i]);
            m[i] = if then.fade == 1.0 { synced } else { m[i] + then.fade * delta };
            u[i] += then.carried * delta;
            a[i] = a[i] * then.since.decays - k.limited(mean[i] / p, then.since.rates, v[i]);
            x[i] = a[i] * now.decays - k.limited(u[i] / p, now.rates, v[i]);
        });
    }
}

multiversion! {
    /// What a sync of 0/1 Adam does to v where v is of the momentum: v ← β2·v + (1−β2)·m², where Γ > 0. Of m as [`rebase`] leaves it: what
    /// ū/Γ carries of old residuals is no momentum.
    pub fn square(k: &Scalars, m: &[f32], v: &mut [f32]) {
        if k.since.rates <= 0.0 {
            return;
        }
        for_each_line!([m], [v], |i| {
            v[i] = k.beta2.0 * v[i] + k.beta2.1 * m[i] * m[i];
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
    /// What Efficient-Adam does with the mean: x ← x·(1−γλ) − z̄. Returns whether x jumped anywhere.
    pub fn subtract(k: &Scalars, mean: &[f32], x: &mut [f32]) -> bool {
        let mut jumps = 0;
        for_each_line!([mean], [x], |i| {
            x[i] = x[i] * k.decay - mean[i];
            jumps |= u32::from(mean[i].abs() > k.jump);
        });
        jumps > 0
    }
}

multiversion! {
    /// What local Adam sends at a step that syncs: m ← β1·m + (1−β1)·g,  v ← β2·v + (1−β2)·g²,  z = a − (x·(1−γλ) − γ̂·m/P).
    /// The outer step replaces x, so it is not written here. The bits are those of [`adam`] and then [`difference`].
    pub fn own_progress(
        k: &Scalars, g: &[f32], a: &[f32], x: &[f32],
        m: &mut [f32], v: &mut [f32], z: &mut [f32],
    ) {
        for_each_line!([g, a, x], [m, v, z], |i| {
            v[i] = k.blend_square(v[i], g[i]);
            m[i] = k.blend(m[i], g[i]);
            let update = k.rate * m[i] / k.denominator(v[i]);
            z[i] = a[i] - (x[i] * k.decay - update);
        });
    }
}

multiversion! {
    /// The same without a gradient: z = a − x.
    pub fn difference(a: &[f32], x: &[f32], z: &mut [f32]) {
        for_each_line!([a, x], [z], |i| {
            z[i] = a[i] - x[i];
        });
    }
}

multiversion! {
    /// What is left of local Adam's own view where a does not move: x ← α·x + (1−α)·a.
    pub fn mix(k: &Scalars, a: &[f32], x: &mut [f32]) {
        let outer = k.outer;
        for_each_line!([a], [x], |i| {
            x[i] = outer.view(x[i], a[i]);
        });
    }
}

multiversion! {
    /// Local Adam's rule `average`: a ← a − η·Δ̄,  x ← a; or α·x + (1−α)·a, with this rule and the others.
    pub fn outer_average(k: &Scalars, mean: &[f32], a: &mut [f32], x: &mut [f32]) {
        let outer = k.outer;
        for_each_line!([mean], [a, x], |i| {
            a[i] -= outer.rate * mean[i];
            x[i] = outer.view(x[i], a[i]);
        });
    }
}

multiversion! {
    /// `slow-momentum`: M ← μ·M + Δ̄/γ, within ±φ,  a ← a − ηγ·M,  x ← a.
    pub fn outer_slow_momentum(k: &Scalars, mean: &[f32], a: &mut [f32], momentum: &mut [f32], x: &mut [f32]) {
        let outer = k.outer;
        for_each_line!([mean], [a, momentum, x], |i| {
            momentum[i] = within(outer.momentum * momentum[i] + mean[i] / outer.unit, outer.most);
            a[i] -= outer.rate * momentum[i];
            x[i] = outer.view(x[i], a[i]);
        });
    }
}

multiversion! {
    /// `nesterov`: B ← μ·B + Δ̄,  a ← a − η·(Δ̄ + μ·B),  x ← a.
    pub fn outer_nesterov(k: &Scalars, mean: &[f32], a: &mut [f32], momentum: &mut [f32], x: &mut [f32]) {
        let outer = k.outer;
        for_each_line!([mean], [a, momentum, x], |i| {
            momentum[i] = outer.momentum * momentum[i] + mean[i];
            a[i] -= outer.rate * (mean[i] + outer.momentum * momentum[i]);
            x[i] = outer.view(x[i], a[i]);
        });
    }
}

multiversion! {
    /// `sign`, with D = Δ̄/γ: a ← a·(1−ηγλ) − ηγ·sgn(β1·M + (1−β1)·D),  M ← β2·M + (1−β2)·D,  x ← a.
    pub fn outer_sign(k: &Scalars, mean: &[f32], a: &mut [f32], momentum: &mut [f32], x: &mut [f32]) {
        let outer = k.outer;
        for_each_line!([mean], [a, momentum, x], |i| {
            let d = mean[i] / outer.unit;
            let direction = sign(outer.beta1.0 * momentum[i] + outer.beta1.1 * d);
            a[i] = a[i] * outer.decay - outer.rate * direction;
            momentum[i] = outer.beta2.0 * momentum[i] + outer.beta2.1 * d;
            x[i] = outer.view(x[i], a[i]);
        });
    }
}

multiversion! {
    /// What Lion sends: z = β1·m + (1−β1)·g,  and then m ← β2·m + (1−β2)·g.
    pub fn lion(k: &Scalars, g: &[f32], m: &mut [f32], z: &mut [f32]) {
        for_each_line!([g], [m, z], |i| {
            z[i] = k.blend(m[i], g[i]);
            m[i] = k.beta2.0 * m[i] + k.beta2.1 * (k.shrink * g[i]);
        });
    }
}

multiversion! {
    /// What Birder sends: m ← β·m + (1−β)·g,  b ← β·b + (1−β)·|g|,  z = m/b, or 0 where b = 0.
    ///
    /// |m| ≤ b holds to the bit: both take the same steps, and rounding is monotone and symmetric. So |z| ≤ 1.
    pub fn ratio(k: &Scalars, g: &[f32], m: &mut [f32], b: &mut [f32], z: &mut [f32]) {
        for_each_line!([g], [m, b, z], |i| {
            m[i] = k.blend(m[i], g[i]);
            b[i] = k.blend(b[i], g[i].abs());
            z[i] = if b[i] > 0.0 { m[i] / b[i] } else { 0.0 };
        });
    }
}

multiversion! {
    /// A step along a direction: x ← x·(1−γλ) − γ·p.
    pub fn stride(k: &Scalars, p: &[f32], x: &mut [f32]) {
        for_each_line!([p], [x], |i| {
            x[i] = x[i] * k.decay - k.rate * p[i];
        });
    }
}

multiversion! {
    /// The same along its signs, where the sign of 0 is 0.
    pub fn stride_by_sign(k: &Scalars, p: &[f32], x: &mut [f32]) {
        for_each_line!([p], [x], |i| {
            x[i] = x[i] * k.decay - k.rate * sign(p[i]);
        });
    }
}
