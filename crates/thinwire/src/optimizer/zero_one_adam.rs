//! 0/1 Adam (arXiv 2202.06009): stale variance, local steps, and one bit when the workers do talk.
//!
//! ```text
//! t ∈ T_v:   an exact Adam step                                            every worker now holds the same x, m, v
//! else:      the first step since a sync:  a ← x
//!            m ← β1·m + (1−β1)·g;   u ← u + γ̂·m;   Γ ← Γ + γ̂;   D ← D·(1−γλ)
//!            x ← x·(1−γλ) − (γ̂·m/P, within ±c·γ̂)                           this worker's own view until the next sync
//!            t ∈ T_u, or t+1 ∈ T_v:
//!                ū = coarse mean of u
//!                m ← ū/Γ;   x ← a·D − (ū/P, within ±c·Γ);   u ← 0;   Γ ← 0;   D ← 1
//! ```
//!
//! c is [`LIMIT`](update::LIMIT), which has the reason. An exact step that follows a coarse one takes m within ±c·P.
//!
//! v never changes between two syncs, and the anchor a is stored: after a sync all replicas are bit-identical. Γ and D are
//! kept for each parameter group. A group whose learning rate is 0 rests: Γ may then be 0 at a sync, and m stays.
//!
//! A sync that follows a sync, with no local step between them, is the most frequent step of many runs. It finds u = 0 and x = a, so
//! it touches neither u nor a: that is a third of its memory traffic.

use super::{Entry, Hyper, Moments, Momentum, Now, Optimizer, Share};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::gradient::Gradient;
use crate::kernel::update::{self, Since};
use crate::memory::Floats;
use crate::schedule::{Calendar, Round};
use crate::tiles::{Threads, Vectors};

pub struct ZeroOneAdam {
    hyper: Hyper,
    calendar: Calendar,
    moments: Moments,
    /// Σ γ̂·m since the last sync.
    u: Floats,
    /// a: the parameters at the last sync that a local step followed.
    anchor: Floats,
    /// Γ of each group: Σγ̂ since the last sync.
    rates: Vec<f64>,
    /// D of each group: Π(1−γλ) since the last sync.
    decays: Vec<f64>,
    /// Steps since the last sync.
    pending: u64,
    /// Those of them that this worker took part in: whether it has anything to tell.
    taken: u64,
}

impl ZeroOneAdam {
    pub fn new(hyper: Hyper, calendar: Calendar, params: &[f32]) -> ZeroOneAdam {
        let groups = hyper.groups.count();
        let moments = Moments::new(params.len());
        ZeroOneAdam {
            hyper,
            calendar,
            moments,
            u: Floats::zeroed(params.len()),
            anchor: Floats::copied(params),
            rates: vec![0.0; groups],
            decays: vec![1.0; groups],
            pending: 0,
            taken: 0,
        }
    }

    fn exact_step(
        &mut self,
        now: &Now<'_>,
        params: &mut [f32],
        grad: Gradient<'_>,
        exchange: &mut Exchange,
    ) -> Result<()> {
        let follows_exact = now.step.checked_sub(1).is_none_or(|before| self.calendar.updates_variance(before));
        let from = if follows_exact { Momentum::Exact } else { Momentum::Coarse };
        self.moments.exact_step(from, &mut self.hyper, now, params, grad, exchange)
    }

    /// Γ ← Γ + γ̂,  D ← D·(1−γλ): on all workers alike, whoever is left out.
    fn advance(&mut self, now: &Now<'_>) {
        self.moments.prepare(&mut self.hyper, now);
        self.pending += 1;
        self.taken += u64::from(now.contributes);
        for (group, k) in self.hyper.scalars().iter().enumerate() {
            self.rates[group] += f64::from(k.rate);
            self.decays[group] *= f64::from(k.decay);
        }
    }

    /// m, u and x, without the network.
    fn local_step(&mut self, now: &Now<'_>, params: &mut [f32], grad: Gradient<'_>, threads: &Threads) {
        if self.is_synced() {
            let vectors = Vectors { read: [&*params], write: [&mut self.anchor] };
            threads.each(grad.len(), vectors, |_, Vectors { read: [x], write: [a] }| update::copy(x, a));
        }
        self.advance(now);
        if !now.contributes {
            return;
        }
        let (hyper, Moments { m, v, .. }) = (&self.hyper, &mut self.moments);
        let vectors = Vectors { read: [v], write: [m, &mut self.u, params] };
        threads.each(grad.len(), vectors, |tile, vectors| {
            grad.with(tile.clone(), |g| {
                hyper.each(tile, vectors, |group, part, Vectors { read: [v], write: [m, u, x] }| {
                    let k = &hyper.scalars()[group];
                    if k.rate > 0.0 {
                        update::local(k, &g[part], v, m, u, x);
                    }
                });
            });
        });
    }

    /// ū = coarse mean of u, with this step's part of it if there is a gradient; then everything starts from ū.
    fn sync_step(
        &mut self,
        now: &Now<'_>,
        params: &mut [f32],
        grad: Option<Gradient<'_>>,
        exchange: &mut Exchange,
    ) -> Result<()> {
        // A worker that is left out at this step may still have the steps before it to tell.
        let told = Now { contributes: self.taken > 0, ..*now };
        let first = self.pending == 1 && grad.is_some(); // no local step since the last sync: u = 0 and x = a
        let grad = grad.filter(|_| now.contributes);
        let (hyper, Moments { m, v, .. }) = (&self.hyper, &mut self.moments);
        let since = |group: usize| Since { rates: self.rates[group] as f32, decays: self.decays[group] as f32 };
        exchange.mean(
            Round::Coarse,
            &told,
            Vectors { read: [v, &self.anchor], write: [m, &mut self.u, params] },
            |tile, vectors, z| {
                let fill = |g: Option<&[f32]>| {
                    hyper.each(tile.clone(), vectors, |group, part, Vectors { write: [m, u, _], .. }| {
                        let (k, z) = (&hyper.scalars()[group], &mut z[part.clone()]);
                        match g.map(|g| &g[part]) {
                            Some(g) if k.rate > 0.0 && first => update::first_progress(k, g, m, z),
                            Some(g) if k.rate > 0.0 => update::progress(k, g, m, u, z),
                            _ => z.copy_from_slice(u),
                        }
                    });
                };
                match grad {
                    Some(grad) => grad.with(tile.clone(), |g| fill(Some(g))),
                    None => fill(None),
                }
            },
            |tile, vectors, mean| {
                hyper.each(tile, vectors, |group, part, Vectors { read: [v, a], write: [m, u, x] }| {
                    let (k, since, mean) = (&hyper.scalars()[group], since(group), &mean[part]);
                    match hyper.groups.moves(group) {
                        true if first => update::first_rebase(k, since, mean, v, m, x),
                        true => update::rebase(k, since, mean, v, a, m, u, x),
                        false => {}
                    }
                });
            },
        )?;
        self.start_interval();
        Ok(())
    }

    fn start_interval(&mut self) {
        self.rates.fill(0.0);
        self.decays.fill(1.0);
        self.pending = 0;
        self.taken = 0;
    }
}

impl Optimizer for ZeroOneAdam {
    fn step(
        &mut self,
        now: &Now<'_>,
        params: &mut [f32],
        grad: Gradient<'_>,
        exchange: &mut Exchange,
    ) -> Result<Round> {
        let round = self.calendar.round(now.step, now.lr);
        match round {
            Round::Exact => self.exact_step(now, params, grad, exchange)?, // t ∈ T_v
            Round::Skipped => self.local_step(now, params, grad, &exchange.threads),
            Round::Coarse => {
                self.advance(now); // t ∈ T_u, or t+1 ∈ T_v
                self.sync_step(now, params, Some(grad), exchange)?;
            }
        }
        Ok(round)
    }

    fn sync(&mut self, now: &Now<'_>, params: &mut [f32], exchange: &mut Exchange) -> Result<()> {
        if self.is_synced() {
            return Ok(());
        }
        self.moments.prepare(&mut self.hyper, now);
        self.sync_step(now, params, None, exchange)
    }

    fn is_synced(&self) -> bool {
        self.pending == 0
    }

    fn take_jump(&mut self) -> Option<usize> {
        self.hyper.take_jump()
    }

    fn state(&mut self) -> Vec<Entry<'_>> {
        let mut state = self.moments.state(Share::Same);
        state.push(Entry::vector("u", Share::Mean, &mut self.u));
        state.push(Entry::vector("anchor", Share::Same, &mut self.anchor));
        state.push(Entry::doubles("rates_since_sync", Share::Same, &mut self.rates));
        state.push(Entry::doubles("decays_since_sync", Share::Same, &mut self.decays));
        state.push(Entry::word("steps_since_sync", &mut self.pending));
        state.push(Entry::word("steps_taken_since_sync", &mut self.taken));
        state
    }

    fn loaded(&mut self, regrouped: bool, params: &mut [f32], threads: &Threads) {
        if !regrouped || self.is_synced() {
            return;
        }
        // u holds the mean over the old workers: an exact sync.
        let now = Now { step: 0, lr: 0.0, rates: &vec![0.0; self.rates.len()], contributes: true, norm: None };
        self.moments.prepare(&mut self.hyper, &now);
        let (hyper, Moments { m, v, .. }) = (&self.hyper, &mut self.moments);
        let vectors = Vectors { read: [v, &self.anchor], write: [m, &mut self.u, params] };
        threads.each(vectors.read[0].len(), vectors, |tile, vectors| {
            hyper.each(tile, vectors, |group, _, Vectors { read: [v, a], write: [m, u, x] }| {
                let since = Since { rates: self.rates[group] as f32, decays: self.decays[group] as f32 };
                let mean = u.to_vec();
                update::rebase(&hyper.scalars()[group], since, &mean, v, a, m, u, x);
            });
        });
        self.start_interval();
    }
}
