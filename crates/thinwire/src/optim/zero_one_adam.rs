//! 0/1 Adam (arXiv 2202.06009): stale variance, local steps, and one bit when the workers do talk.
//!
//! ```text
//! t ∈ T_v:   an exact Adam step                                            every worker now holds the same x, m, v
//! else:      the first step since a sync:  a ← x
//!            m ← β1·m + (1−β1)·g;   u ← u + γ̂·m;   Γ ← Γ + γ̂;   D ← D·(1−γλ)
//!            x ← x·(1−γλ) − (γ̂·m/P, within ±c·γ̂)                           this worker's own view until the next sync
//!            t ∈ T_u, or t+1 ∈ T_v:
//!                ū = coarse mean of u
//!                m ← (ū/Γ, within ±7.3·P);   x ← a·D − (ū/P, within ±c·Γ);   u ← 0;   Γ ← 0;   D ← 1
//! ```
//!
//! c is [`LIMIT`](update::LIMIT) and 7.3 is [`LARGEST`](update::LARGEST); they have the reasons. An exact step that follows a coarse one takes m within ±c·P.
//!
//! v never changes between two syncs, and the anchor a is stored: after a sync all replicas are bit-identical. A group
//! of parameters whose learning rate is 0 rests: Γ may then be 0 at a sync, and m stays.
//!
//! With `variance = "momentum"` there is no exact step: a sync also does v ← β2·v + (1−β2)·m², after x has moved by the old v. That
//! is FedDA-1 (arXiv 2302.06103) as far as 0/1 Adam has its parts.
//!
//! With `delay` = τ > 0 a sync starts at step t and is over when step t+τ is called. All of it is linear in u, so a mean that comes late is
//! a correction of what a worker has done with its own u meanwhile:
//!
//! ```text
//! at t:      s ← u,  Γ_s ← Γ,  D_s ← D;   m ← u/Γ;   x ← a·D − u/P;   u ← 0,  Γ ← 0,  D ← 1;   the mean of s starts on its way
//! at t+τ:    δ = (ū − s)/Γ_s;   m ← m + δ·Πβ1;   u ← u + δ·Σ γ̂·Πβ1        over the steps in between
//!            a ← a·D_s − ū/P;   x ← a·D − u/P
//! ```
//!
//! m, u and x are then what they would be without a delay, and the anchor a is what all workers have in common. v must not change while
//! a mean is on its way, so no sync is late before the variance is frozen.
//!
//! A sync that follows a sync, with no local step between them, is the most frequent step of many runs. It finds u = 0 and x = a, so
//! it touches neither u nor a: that is a third of its memory traffic.

use super::moments::{Anchor, Arrive};
use super::table::{Algorithm, Options, count, given, lengths, not_served, preset, renamed};
use super::{ENOUGH, Hyper, M, Moments, Momentum, Optimizer, SHORT, V, Vectors, X};
use crate::codec::CodecName;
use crate::config::{Config, Name, StepsOrWord};
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Late};
use crate::kernel::update::{self, Scalars, Sent};
use crate::machine::{Interval, Lies, Machine, Pass, Read, Source, Step, Stripes, Vector, Write};
use crate::schedule::{LearningRate, Round, SyncSteps, VarianceSteps};
use crate::state::{Entry, Share};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

impl Name {
    /// `zero-one-adam`
    pub const ZERO_ONE_ADAM: Name = Name::new("zero-one-adam");
}

// ---- passes --------------------------------------------------------------------------------------

/// u: Σ γ̂·m since the last sync.
const U: Vector = Vector::own(2);
/// a: the parameters at the last sync that a local step followed.
const A: Vector = Vector::own(ANCHOR);
const ANCHOR: usize = 3;

/// s: u as it was sent, while its mean is on its way.
const SENT: Vector = Vector::own(4);
/// Its mean, if it arrives before its step.
const ARRIVED: Vector = Vector::own(WAITS);
const WAITS: usize = 5;

/// m ← β1·m + (1−β1)·g;   u ← u + γ̂·m;   x ← x·(1−γλ) − (γ̂·m/P, within ±c·γ̂)
struct Local;

impl Pass for Local {
    const NAME: &'static str = "local";
    const READS: &'static [Vector] = &[V];
    const WRITES: &'static [Vector] = &[M, U, X];

    fn run(k: &Scalars, g: &[f32], [v, ..]: Read<'_>, [m, u, x, _]: Write<'_>) -> Option<usize> {
        if k.rate > 0.0 {
            update::local(k, g, v, m, u, x);
        }
        None
    }
}

/// z = u + γ̂·(β1·m + (1−β1)·g): a sync with this step's gradient. It replaces m, u and x, so none is written here.
struct Progress;

impl Source for Progress {
    const NAME: &'static str = "progress";
    const READS: &'static [Vector] = &[M, U];

    fn fill(k: &Scalars, g: &[f32], [m, u, ..]: Read<'_>, _: Write<'_>, z: &mut [f32]) {
        match k.rate > 0.0 {
            true => update::progress(k, g, m, u, z),
            false => z.copy_from_slice(u),
        }
    }
}

/// The same where there was no local step since the last sync, and u = 0.
struct FirstProgress;

impl Source for FirstProgress {
    const NAME: &'static str = "first_progress";
    const READS: &'static [Vector] = &[M];

    fn fill(k: &Scalars, g: &[f32], [m, ..]: Read<'_>, _: Write<'_>, z: &mut [f32]) {
        match k.rate > 0.0 {
            true => update::first_progress(k, g, m, z),
            false => z.fill(0.0),
        }
    }
}

/// z = u: a sync without a gradient.
struct Unsent;

impl Source for Unsent {
    const NAME: &'static str = "unsent";
    const READS: &'static [Vector] = &[U];
    const LIES: Lies = Lies::InFirst;

    fn fill(_: &Scalars, _: &[f32], _: Read<'_>, _: Write<'_>, _: &mut [f32]) {}
}

/// m ← (ū/Γ, within ±7.3·P);   x ← a·D − (ū/P, within ±c·Γ);   u ← 0
struct Rebase;

impl Pass for Rebase {
    const NAME: &'static str = "rebase";
    const READS: &'static [Vector] = &[V, A];
    const WRITES: &'static [Vector] = &[M, U, X];

    fn run(k: &Scalars, mean: &[f32], [v, a, ..]: Read<'_>, [m, u, x, _]: Write<'_>) -> Option<usize> {
        if k.moves {
            update::rebase(k, mean, v, a, m, u, x);
        }
        None
    }
}

/// The same where there was no local step since the last sync: u = 0 and x = a.
struct FirstRebase;

impl Pass for FirstRebase {
    const NAME: &'static str = "first_rebase";
    const READS: &'static [Vector] = &[V];
    const WRITES: &'static [Vector] = &[M, X];

    fn run(k: &Scalars, mean: &[f32], [v, ..]: Read<'_>, [m, x, ..]: Write<'_>) -> Option<usize> {
        if k.moves {
            update::first_rebase(k, mean, v, m, x);
        }
        None
    }
}

/// The same as [`Rebase`], and then v ← β2·v + (1−β2)·m²
struct RebaseBoth;

impl Pass for RebaseBoth {
    const NAME: &'static str = "rebase_both";
    const READS: &'static [Vector] = &[A];
    const WRITES: &'static [Vector] = &[M, V, U, X];

    fn run(k: &Scalars, mean: &[f32], [a, ..]: Read<'_>, [m, v, u, x]: Write<'_>) -> Option<usize> {
        if k.moves {
            update::rebase(k, mean, v, a, m, u, x);
            update::square(k, m, v);
        }
        None
    }
}

/// The same as [`FirstRebase`], and then v ← β2·v + (1−β2)·m²
struct FirstRebaseBoth;

impl Pass for FirstRebaseBoth {
    const NAME: &'static str = "first_rebase_both";
    const WRITES: &'static [Vector] = &[M, V, X];

    fn run(k: &Scalars, mean: &[f32], _: Read<'_>, [m, v, x, _]: Write<'_>) -> Option<usize> {
        if k.moves {
            update::first_rebase(k, mean, v, m, x);
            update::square(k, m, v);
        }
        None
    }
}

/// m ← 0;   x ← a;   u ← 0: a server took the mean without any worker. What they had to send is in their residuals, and no longer in u;
/// their momenta differ, and the anchor's is not kept. No device runs it: a server's workers are on hosts.
struct Return;

impl Pass for Return {
    const NAME: &'static str = "return_all";
    const READS: &'static [Vector] = &[A];
    const WRITES: &'static [Vector] = &[M, U, X];

    fn run(k: &Scalars, _: &[f32], [a, ..]: Read<'_>, [m, u, x, _]: Write<'_>) -> Option<usize> {
        if k.moves {
            update::copy(a, x);
            m.fill(0.0);
            u.fill(0.0);
        }
        None
    }
}

/// A sync with ū = u, after a load: u holds the mean over the workers that saved it.
struct FoldIn;

impl Pass for FoldIn {
    const NAME: &'static str = "fold_in";
    const READS: &'static [Vector] = &[V, A];
    const WRITES: &'static [Vector] = &[M, U, X];

    fn run(k: &Scalars, _: &[f32], [v, a, ..]: Read<'_>, [m, u, x, _]: Write<'_>) -> Option<usize> {
        let mean = u.to_vec();
        update::rebase(k, &mean, v, a, m, u, x);
        None
    }
}

/// s ← u;   m ← (u/Γ, within ±7.3·P);   x ← a·D − (u/P, within ±c·Γ);   u ← 0
struct Depart;

impl Pass for Depart {
    const NAME: &'static str = "depart";
    const READS: &'static [Vector] = &[V, A];
    const WRITES: &'static [Vector] = &[M, U, X, SENT];

    fn run(k: &Scalars, _: &[f32], [v, a, ..]: Read<'_>, [m, u, x, sent]: Write<'_>) -> Option<usize> {
        if k.moves {
            update::depart(k, v, a, m, u, x, sent);
        }
        None
    }
}

/// s ← Γ·m: of a worker that took no part in the interval.
struct Abstain;

impl Pass for Abstain {
    const NAME: &'static str = "abstain";
    const READS: &'static [Vector] = &[M];
    const WRITES: &'static [Vector] = &[SENT];

    fn run(k: &Scalars, _: &[f32], [m, ..]: Read<'_>, [sent, ..]: Write<'_>) -> Option<usize> {
        if k.moves {
            update::abstain(k, m, sent);
        }
        None
    }
}

/// δ = (ū − s)/Γ_s, both sides within ±7.3·P;   m ← m + δ·Πβ1;   u ← u + δ·Σ γ̂·Πβ1;
/// a ← a·D_s − (ū/P, within ±c·Γ_s);   x ← a·D − (u/P, within ±c·Γ)
struct Correct;

impl Pass for Correct {
    const NAME: &'static str = "correct";
    const READS: &'static [Vector] = &[V, SENT];
    const WRITES: &'static [Vector] = &[M, U, A, X];

    fn run(k: &Scalars, mean: &[f32], [v, sent, ..]: Read<'_>, [m, u, a, x]: Write<'_>) -> Option<usize> {
        if k.moves {
            update::correct(k, mean, v, sent, m, u, a, x);
        }
        None
    }
}

// ---- steps ---------------------------------------------------------------------------------------

/// A mean that is on its way, and what has happened since it started.
struct Arriving {
    delay: Delay,
    late: Late,
    /// Γ_s and D_s.
    sent: Interval,
    /// Πβ1 of each group, over the steps since that this worker took part in.
    fade: Vec<f64>,
    /// S of each group: Σ γ̂·Πβ1.
    carried: Vec<f64>,
    /// Steps since.
    age: u64,
}

/// How late syncs are, and from which step on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Delay {
    /// τ.
    steps: u64,
    from: u64,
}

/// The optimizer at work.
struct Running {
    hyper: Hyper,
    calendar: Calendar,
    /// Of late syncs.
    arriving: Option<Arriving>,
    moments: Moments,
    /// Γ and D.
    interval: Interval,
    /// Steps since the last sync.
    pending: u64,
    /// Those of them that this worker took part in: whether it has anything to send.
    taken: u64,
}

impl Optimizer for Running {
    fn step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<Round> {
        exchange.turn(step)?;
        let round = self.calendar.round(step.t, step.lr);
        if self.under_way().is_some_and(|late| late.due <= step.t || round != Round::Skipped) {
            self.finish(step, exchange)?;
        }
        match round {
            Round::Exact => self.exact_step(step, exchange)?,
            Round::Skipped => self.local_step(step, &mut exchange.machine)?,
            Round::Coarse if self.arriving.as_ref().is_some_and(|arriving| arriving.delay.from <= step.t) => {
                self.local_step(step, &mut exchange.machine)?;
                self.start(step, exchange)?;
            }
            Round::Coarse => {
                self.advance(step);
                self.sync_step(step, exchange)?;
            }
        }
        Ok(round)
    }

    fn sync(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        exchange.turn(step)?;
        if self.under_way().is_some() {
            self.finish(step, exchange)?;
        }
        if self.is_synced() {
            return Ok(());
        }
        self.moments.prepare(&mut self.hyper, step);
        self.sync_step(step, exchange)
    }

    fn arrive(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        self.arriving.as_mut().map_or(Ok(()), |arriving| exchange.arrive(&mut arriving.late, step, Arrive::<WAITS>))
    }

    fn is_synced(&self) -> bool {
        self.pending == 0
    }

    /// With a delay it is what all workers have in common, as of the last mean that came.
    fn anchor(&self) -> Option<Vector> {
        (self.arriving.is_some() && !self.is_synced()).then_some(A)
    }

    fn numbers(&mut self) -> Vec<Entry<'_>> {
        let mut numbers = self.moments.numbers();
        numbers.extend(self.interval.numbers());
        numbers.push(Entry::word("steps_since_sync", &mut self.pending));
        numbers.push(Entry::word("steps_taken_since_sync", &mut self.taken));
        if let Some(Arriving { late, sent, fade, carried, age, .. }) = &mut self.arriving {
            numbers.extend(sent.numbers_as(["rates_of_mean", "decays_of_mean"]));
            // A worker's own: only steps that it takes part in count.
            numbers.push(Entry::doubles("fade_of_mean", Share::Mean, fade).starting_at(1.0));
            numbers.push(Entry::doubles("carried_of_mean", Share::Mean, carried));
            numbers.push(Entry::word("steps_since_mean", age));
            numbers.extend(late.numbers());
        }
        numbers
    }

    fn loaded(&mut self, regrouped: bool, step: &mut Step<'_>, machine: &mut Machine) -> Result<()> {
        if regrouped && !self.is_synced() {
            self.moments.prepare(&mut self.hyper, step);
            self.interval.tell(step);
            if self.under_way().is_some() {
                self.tell_sent(step);
                let arriving = self.arriving.as_mut().expect("it is late");
                if arriving.late.give_up() {
                    // m differs between those that saved it; if there were steps since, it is made anew below.
                    step.scalars.iter_mut().for_each(|k| k.sent.fade = 1.0);
                    machine.spend(Stripes::WHOLE, Correct, step, ARRIVED)?;
                }
            }
            machine.run(FoldIn, step)?;
            self.start_interval();
        }
        Ok(())
    }
}

impl Running {
    /// t ∈ T_v.
    fn exact_step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        let follows_exact = step.t.checked_sub(1).is_none_or(|before| self.calendar.variance.contains(before));
        let from = if follows_exact { Momentum::Exact } else { Momentum::Coarse };
        self.moments.exact_step(from, &mut self.hyper, step, exchange)
    }

    /// t ∉ T_v, t ∉ T_u.
    fn local_step(&mut self, step: &mut Step<'_>, machine: &mut Machine) -> Result<()> {
        let first = self.is_synced();
        self.advance(step);
        if first {
            machine.run(Anchor::<ANCHOR>, step)?;
        }
        if step.contributes {
            machine.run(Local, step)?;
        }
        Ok(())
    }

    /// Γ ← Γ + γ̂,  D ← D·(1−γλ): on all workers alike, whoever takes no part.
    fn advance(&mut self, step: &mut Step<'_>) {
        self.moments.prepare(&mut self.hyper, step);
        self.interval.add(step);
        self.pending += 1;
        self.taken += u64::from(step.contributes);
        let Some(Arriving { late, fade, carried, age, .. }) = &mut self.arriving else { return };
        if !late.is_under_way() {
            return;
        }
        *age += 1;
        for ((fade, carried), k) in fade.iter_mut().zip(carried).zip(&step.scalars) {
            if step.contributes && k.rate > 0.0 {
                *fade *= f64::from(k.beta1.0);
                *carried += f64::from(k.rate) * *fade;
            }
        }
    }

    fn under_way(&self) -> Option<&Late> {
        self.arriving.as_ref().map(|arriving| &arriving.late).filter(|late| late.is_under_way())
    }

    /// The mean of u starts on its way, and this worker goes on from its own u.
    fn start(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        self.interval.tell(step);
        step.contributes = self.taken > 0;
        exchange.start(step, Unsent)?;
        match step.contributes {
            true => exchange.machine.run(Depart, step)?,
            false => exchange.machine.run(Abstain, step)?,
        }
        let arriving = self.arriving.as_mut().expect("it syncs late");
        std::mem::swap(&mut arriving.sent, &mut self.interval);
        self.interval.restart();
        arriving.fade.fill(1.0);
        arriving.carried.fill(0.0);
        arriving.age = 0;
        arriving.late.due = step.t + arriving.delay.steps;
        self.taken = 0;
        Ok(())
    }

    /// ū comes, and corrects what this worker has made of its own u. Nothing has happened if nobody took part.
    fn finish(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        self.moments.prepare(&mut self.hyper, step);
        self.interval.tell(step);
        self.tell_sent(step);
        let arriving = self.arriving.as_mut().expect("it syncs late");
        exchange.finish(&mut arriving.late, step, Correct, (Stripes::WHOLE, ARRIVED))?;
        if arriving.age == 0 {
            self.start_interval(); // x is what it would be without a delay: the same on all workers
        }
        Ok(())
    }

    fn tell_sent(&self, step: &mut Step<'_>) {
        let Arriving { sent, fade, carried, .. } = self.arriving.as_ref().expect("it syncs late");
        for (((since, fade), carried), k) in sent.since().zip(fade).zip(carried).zip(&mut step.scalars) {
            k.sent = Sent { since, fade: *fade as f32, carried: *carried as f32 };
        }
    }

    /// ū = coarse mean of u, with this step's part of it if there is a gradient; then everything starts from ū.
    fn sync_step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        self.interval.tell(step);
        let first = self.pending == 1 && step.gradient.is_some(); // no local step since the last sync: u = 0 and x = a
        let has_gradient = step.gradient.is_some() && step.contributes;
        // A worker without a gradient at this step may still have the steps before it to send.
        step.contributes = self.taken > 0;
        let squares = self.calendar.squares_momenta;
        let contributions = match (first, squares) {
            (true, false) => take_mean(step, exchange, (FirstProgress, FirstRebase), has_gradient)?,
            (false, false) => take_mean(step, exchange, (Progress, Rebase), has_gradient)?,
            (true, true) => take_mean(step, exchange, (FirstProgress, FirstRebaseBoth), has_gradient)?,
            (false, true) => take_mean(step, exchange, (Progress, RebaseBoth), has_gradient)?,
        };
        let has_moved = step.scalars.iter().any(|k| k.since.rates > 0.0); // or v is as it was
        self.moments.updates += u64::from(squares && contributions > 0 && has_moved);
        if contributions == 0 && !first && exchange.is_served() {
            exchange.machine.run(Return, step)?;
        }
        self.start_interval();
        Ok(())
    }

    /// Γ ← 0,  D ← 1.
    fn start_interval(&mut self) {
        self.interval.restart();
        (self.pending, self.taken) = (0, 0);
    }
}

/// ū, with this step's part of it if there is a gradient, and what is done with it.
fn take_mean(
    step: &mut Step<'_>,
    exchange: &mut Exchange,
    (source, pass): (impl Source, impl Pass),
    has_gradient: bool,
) -> Result<u32> {
    match has_gradient {
        true => exchange.mean(Round::Coarse, step, source, pass),
        false => exchange.mean(Round::Coarse, step, Unsent, pass),
    }
}

/// T_v and T_u.
#[derive(Clone, Debug)]
struct Calendar {
    variance: VarianceSteps,
    /// T_v is empty, and syncs update the variance.
    squares_momenta: bool,
    sync: SyncSteps,
}

impl Calendar {
    /// Exact on T_v; coarse on T_u and before each step of T_v, so that v never changes between two syncs; skipped elsewhere.
    fn round(&self, t: u64, lr: f32) -> Round {
        match () {
            () if self.variance.contains(t) => Round::Exact,
            () if self.sync.contains(t, lr) || self.variance.contains(t + 1) => Round::Coarse,
            () => Round::Skipped,
        }
    }
}

/// The optimizer with every option of its own decided.
#[derive(Debug)]
struct Decided {
    /// All that count have a value.
    options: ZeroOneAdam,
    calendar: Calendar,
    delay: Option<Delay>,
}

impl Algorithm for Decided {
    fn options(&self) -> Map<String, Value> {
        given(&self.options)
    }

    fn vectors(&self) -> Vectors {
        const ALL: Vectors = &[
            ("m", Share::Same),
            ("v", Share::Same),
            ("u", Share::Progress),
            ("anchor", Share::Same),
            ("u_sent", Share::Mean),
            ("mean_arrived", Share::Same),
        ];
        if self.delay.is_some() { ALL } else { ALL.split_at(4).0 }
    }

    fn passes(&self) -> &'static [&'static str] {
        const OF_GRADIENTS: &[&str] = const {
            &[
                Moments::PASSES[0],
                Moments::PASSES[1],
                Moments::PASSES[2],
                Anchor::<ANCHOR>::NAME,
                Local::NAME,
                Progress::NAME,
                FirstProgress::NAME,
                Unsent::NAME,
                Rebase::NAME,
                FirstRebase::NAME,
                FoldIn::NAME,
            ]
        };
        const OF_MOMENTA: &[&str] = &[
            Anchor::<ANCHOR>::NAME,
            Local::NAME,
            Progress::NAME,
            FirstProgress::NAME,
            Unsent::NAME,
            RebaseBoth::NAME,
            FirstRebaseBoth::NAME,
            FoldIn::NAME,
        ];
        const LATE: [&str; 15] = const {
            let late = [Depart::NAME, Abstain::NAME, Correct::NAME, Arrive::<WAITS>::NAME];
            let mut all = [""; 15];
            let mut i = 0;
            while i < all.len() {
                all[i] = if i < OF_GRADIENTS.len() { OF_GRADIENTS[i] } else { late[i - OF_GRADIENTS.len()] };
                i += 1;
            }
            all
        };
        match (self.calendar.squares_momenta, self.delay) {
            (true, _) => OF_MOMENTA,
            (false, Some(_)) => &LATE,
            (false, None) => OF_GRADIENTS,
        }
    }

    fn delays(&self) -> bool {
        self.delay.is_some()
    }

    fn delay(&self, t: u64) -> u64 {
        self.delay.filter(|delay| delay.from <= t).map_or(0, |delay| delay.steps)
    }

    fn is_served(&self) -> Result<()> {
        self.delay.map_or(Ok(()), |delay| Err(not_served(delay.steps)))
    }

    fn round(&self, t: u64, lr: f32) -> Round {
        self.calendar.round(t, lr)
    }

    fn has_exact_rounds(&self) -> bool {
        !self.calendar.squares_momenta
    }

    /// First the exact rounds, then coarse and skipped ones by turns.
    fn drill(&self, each: u64) -> (Map<String, Value>, u64) {
        let options = ZeroOneAdam {
            variance_steps: Some((0..each).collect()),
            sync: Some(Sync::Custom),
            sync_steps: Some((0..each).map(|turn| each + 2 * turn + 1).collect()),
            ..ZeroOneAdam::default()
        };
        (given(&options), 3 * each)
    }

    fn rank(&self, _: CodecName) -> Option<usize> {
        Some(1)
    }

    fn build(&self, hyper: Hyper) -> Box<dyn Optimizer> {
        Box::new(Running {
            interval: hyper.interval(),
            arriving: self.delay.map(|delay| Arriving {
                delay,
                late: Late::default(),
                sent: hyper.interval(),
                fade: vec![1.0; hyper.groups],
                carried: vec![0.0; hyper.groups],
                age: 0,
            }),
            hyper,
            calendar: self.calendar.clone(),
            moments: Moments::default(),
            pending: 0,
            taken: 0,
        })
    }
}

// ---- options -------------------------------------------------------------------------------------

/// 0/1 Adam's own options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ZeroOneAdam {
    /// The first steps that all update the variance. Default 100 when `learning_rate.steps` is known, its warm-up is shorter than that,
    /// and `kappa` is not given; else 0.
    pub variance_dense: Option<u64>,
    /// κ: variance updates before the gap between them doubles. Default 16, or 32 when `learning_rate.steps` is not known.
    pub kappa: Option<u64>,
    /// The shortest gap between variance updates, after as many steps that all update it. Default 1.
    pub variance_gap: Option<u64>,
    /// The longest gap between variance updates; gaps are powers of two times the shortest. Default: a 200th of
    /// `learning_rate.steps`; no limit when that is not known, or when `kappa` is given.
    pub variance_longest: Option<u64>,
    /// The first step that no longer updates the variance. Default: 40 % of `learning_rate.steps`, and at least 100 steps and two of
    /// its warm-ups; the end of a run of at most 250 steps; `never` when the length is not known.
    pub freeze: Option<Freeze>,
    /// Exactly these steps update the variance, in rising order; instead of `kappa`, `variance_gap`, `variance_longest` and `freeze`.
    pub variance_steps: Option<Vec<u64>>,
    /// What the variance is of. Default `gradient`; with `momentum` there are no exact rounds, and no option says when the variance is
    /// updated.
    pub variance: Option<Variance>,
    /// How the gap between syncs grows. Default `follow-lr`, or `every` step without `learning_rate`.
    pub sync: Option<Sync>,
    /// The first step that may be skipped. Default: the end of the learning rate's warm-up.
    pub sync_start: Option<u64>,
    /// Steps between doublings (`doubling`, default 32,678), or the gap itself (`every`, default 1).
    pub sync_every: Option<u64>,
    /// H: the longest gap between syncs. Default 16; with `follow-lr` a power of two of at most a 1,250th of `learning_rate.steps`, so
    /// that runs below 2,500 steps skip nothing.
    pub sync_longest: Option<u64>,
    /// Exactly these steps sync, in rising order, with `sync = "custom"`.
    pub sync_steps: Option<Vec<u64>>,
    /// τ: the mean of a sync is used so many steps after it has started, or at the next sync if that is earlier. Default 0.
    pub delay: Option<u64>,
    /// The first step whose sync may be late. Default: the first after the last update of the variance.
    pub delay_start: Option<u64>,
    /// DeepSpeed's name for `freeze` and `sync_start`.
    pub var_freeze_step: Option<u64>,
    /// DeepSpeed's name for `kappa`.
    pub var_update_scaler: Option<u64>,
    /// DeepSpeed's name for `sync_every`, with `sync = "doubling"`.
    pub local_step_scaler: Option<u64>,
    /// DeepSpeed's name for `sync_longest`.
    pub local_step_clipper: Option<u64>,
}

/// What 0/1 Adam's variance is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Variance {
    /// The exact means of gradients, at the steps in T_v.
    #[default]
    Gradient,
    /// The momentum after every sync.
    Momentum,
}

/// How the gap between two syncs of 0/1 Adam grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Sync {
    /// It doubles each time the learning rate halves.
    #[default]
    FollowLr,
    /// It doubles every `sync_every` steps.
    Doubling,
    /// It is `sync_every`.
    Every,
    /// The steps are listed in `sync_steps`.
    Custom,
}

/// When 0/1 Adam stops updating the variance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StepsOrWord", into = "StepsOrWord")]
#[non_exhaustive]
pub enum Freeze {
    /// From this step on.
    Step(u64),
    /// It goes on for ever.
    Never,
}

impl TryFrom<StepsOrWord> for Freeze {
    type Error = String;

    fn try_from(given: StepsOrWord) -> Result<Freeze, String> {
        match given {
            StepsOrWord::Steps(step) => Ok(Freeze::Step(step)),
            StepsOrWord::Word(word) if word == "never" => Ok(Freeze::Never),
            other => Err(other.refused("a step, or \"never\"")),
        }
    }
}

impl From<Freeze> for StepsOrWord {
    fn from(freeze: Freeze) -> StepsOrWord {
        match freeze {
            Freeze::Step(step) => StepsOrWord::Steps(step),
            Freeze::Never => StepsOrWord::Word("never".to_owned()),
        }
    }
}

/// When the length of the run is known, the variance is updated about a hundred times over this part of it, evenly but for the
/// beginning, where a few gaps that double lead up to the even ones. All updates weigh about the same in v, and early gradients say
/// least about the rest of the run. But where the learning rate is high from the first steps on, the first hundred of them all update
/// the variance: with fewer samples it is too poor to divide by (docs/convergence.md).
const FREEZE_PART: f64 = 0.4;
const FREEZE_WARMUPS: u64 = 2;
const GAPS: u64 = 200;

/// The paper's H.
const LONGEST_GAP: u64 = 16;

/// The longest gap between syncs is at most this part of the run: skipping saves rounds, not many bytes, and in short runs it costs up to
/// a percent of the loss (docs/convergence.md).
const SYNC_GAPS: u64 = 1250;

/// κ when the length is not known: the gaps go on doubling, so exact rounds become few, and the variance is never frozen.
const OPEN_KAPPA: u64 = 32;

/// The paper's κ, and DeepSpeed's `var_update_scaler`.
const PAPER_KAPPA: u64 = 16;

/// Fewest bytes: exact rounds in 6 bits, and a fifth of each coarse round's loss is forgotten, which learns a little better
/// (docs/convergence.md). Not the default, because no device has kernels for either yet.
const LEAN: &str = "lean";

/// The options that describe T_v.
const VARIANCE: [&str; 5] = ["variance_dense", "kappa", "variance_gap", "variance_longest", "freeze"];

impl Options for ZeroOneAdam {
    const NAME: Name = Name::ZERO_ONE_ADAM;
    const TITLE: &'static str = "0/1 Adam";
    /// It has few exact rounds, and in f32 they would still be most of its bytes.
    const EXACT: Option<CodecName> = Some(CodecName::Bf16);
    const COARSE: Option<CodecName> = Some(CodecName::Sign);
    const PRESETS: &'static [&'static str] = &["paper", "deepspeed", LEAN];

    fn decide(mut self, config: &mut Config) -> Result<Box<dyn Algorithm>> {
        self.check_exclusions()?;
        self.variance = self.variance.filter(|variance| *variance != Variance::default()); // as records had it before there were two
        let squares_momenta = self.variance.is_some();
        self.translate_deepspeed()?;
        let is_lean = config.preset.as_deref() == Some(LEAN);
        self.apply_preset(config)?;
        let schedule = config.learning_rate.as_ref();
        let usual = if schedule.is_some() { Sync::FollowLr } else { Sync::Every };
        let sync = *self.sync.get_or_insert(usual);
        self.check_sync(sync)?;
        let is_short = lengths(schedule).1.is_some_and(|steps| steps <= SHORT);
        let variance = match squares_momenta {
            true => VarianceSteps::Custom(Vec::new()),
            false => self.decide_variance(schedule, is_short)?,
        };
        let calendar = Calendar { variance, squares_momenta, sync: self.decide_sync(sync, schedule)? };
        let delay = self.decide_delay(&calendar)?;
        if is_short && calendar.variance == VarianceSteps::all_before(SHORT) {
            config.exact_codec.get_or_insert(CodecName::F32); // then it is Adam, to the bit
        }
        if is_lean && !squares_momenta {
            config.exact_codec.get_or_insert(CodecName::Power2(6));
        }
        Ok(Box::new(Decided { options: self, calendar, delay }))
    }
}

impl ZeroOneAdam {
    /// `variance_steps` leaves nothing to the options that describe T_v, and `variance = "momentum"` nothing to either.
    fn check_exclusions(&self) -> Result<()> {
        let written = given(self);
        if self.variance == Some(Variance::Momentum) {
            let mut others = VARIANCE.iter().chain(&["variance_steps", "var_freeze_step", "var_update_scaler"]);
            if let Some(other) = others.find(|other| written.contains_key(**other)) {
                let problem = format!("excludes {other}: every sync updates the variance; give one of the two");
                return Err(Error::config("variance", "momentum", problem));
            }
        }
        let Some(steps) = &self.variance_steps else { return Ok(()) };
        let mut others = VARIANCE.iter().chain(&["var_freeze_step", "var_update_scaler"]);
        match others.find(|other| written.contains_key(**other)) {
            Some(other) => {
                let problem = format!("excludes {other}; give one of the two");
                Err(Error::config("variance_steps", format!("{steps:?}"), problem))
            }
            None => Ok(()),
        }
    }

    /// DeepSpeed's names become the options they stand for.
    fn translate_deepspeed(&mut self) -> Result<()> {
        let freeze = self.var_freeze_step.take();
        if freeze.is_some() && self.var_update_scaler.is_none() {
            self.kappa.get_or_insert(PAPER_KAPPA);
        }
        self.freeze = renamed(("var_freeze_step", freeze), ("freeze", self.freeze), Freeze::Step)?;
        if self.sync_start.is_none() && self.sync != Some(Sync::Custom) {
            self.sync_start = freeze;
        }
        let same = |value| value;
        self.kappa = renamed(("var_update_scaler", self.var_update_scaler.take()), ("kappa", self.kappa), same)?;
        let (scaler, clipper) = (self.local_step_scaler.take(), self.local_step_clipper.take());
        if scaler.is_some() || clipper.is_some() {
            self.sync.get_or_insert(Sync::Doubling);
        }
        self.sync_every = renamed(("local_step_scaler", scaler), ("sync_every", self.sync_every), same)?;
        self.sync_longest = renamed(("local_step_clipper", clipper), ("sync_longest", self.sync_longest), same)?;
        Ok(())
    }

    fn apply_preset(&mut self, config: &mut Config) -> Result<()> {
        let Some(preset) = preset::<Self>(config)? else { return Ok(()) };
        if preset == LEAN {
            if config.feedback.is_none() {
                config.feedback_up.get_or_insert(0.8);
                config.feedback_down.get_or_insert(0.8);
            }
            return Ok(());
        }
        config.bias_correction.get_or_insert(false);
        let growing = self.variance_steps.is_none() && self.variance != Some(Variance::Momentum);
        if growing {
            self.kappa.get_or_insert(PAPER_KAPPA);
        }
        if preset == "paper" {
            let sync = *self.sync.get_or_insert(Sync::FollowLr);
            if sync == Sync::FollowLr && config.learning_rate.is_none() {
                let problem = "its gaps follow learning_rate, which is missing; give it, or sync";
                return Err(Error::config("preset", preset, problem));
            }
            if sync == Sync::FollowLr {
                self.sync_longest.get_or_insert(LONGEST_GAP);
            }
            let (warmup, _) = lengths(config.learning_rate.as_ref());
            if growing && warmup > 0 {
                self.freeze.get_or_insert(Freeze::Step(warmup));
            }
        } else {
            if growing {
                self.freeze.get_or_insert(Freeze::Step(100_000));
            }
            let sync = *self.sync.get_or_insert(Sync::Doubling);
            if matches!(sync, Sync::Doubling | Sync::FollowLr) {
                self.sync_longest.get_or_insert(LONGEST_GAP);
            }
            if let (Some(Freeze::Step(step)), true) = (self.freeze, sync != Sync::Custom) {
                self.sync_start.get_or_insert(step);
            }
        }
        Ok(())
    }

    /// τ, and the step from which on. The variance must not change while a mean is on its way.
    fn decide_delay(&mut self, calendar: &Calendar) -> Result<Option<Delay>> {
        self.delay = self.delay.filter(|delay| *delay > 0); // none at all is how records have it
        let Some(steps) = self.delay else {
            return match self.delay_start {
                Some(start) => Err(Error::config("delay_start", start, "has no meaning without delay")),
                None => Ok(None),
            };
        };
        count("delay", steps)?;
        if calendar.squares_momenta {
            let problem = "with variance = momentum every sync updates the variance, which must not change while a mean is on its way; expected 0";
            return Err(Error::config("delay", steps, problem));
        }
        let settled = match &calendar.variance {
            VarianceSteps::Custom(steps) => steps.last().map(|last| last + 1),
            VarianceSteps::Growing { freeze, .. } => *freeze,
        };
        let Some(settled) = settled else {
            let problem =
                "needs a variance that settles, and freeze = never here; give freeze, or learning_rate with steps";
            return Err(Error::config("delay", steps, problem));
        };
        let from = *self.delay_start.get_or_insert(settled);
        if from < settled {
            let problem = format!("expected at least {settled}, the first step after the last update of the variance");
            return Err(Error::config("delay_start", from, problem));
        }
        Ok(Some(Delay { steps, from }))
    }

    /// `sync` decides which of the options around it mean something.
    fn check_sync(&self, sync: Sync) -> Result<()> {
        let written = given(self);
        let without_meaning = [
            ("sync_every", matches!(sync, Sync::FollowLr | Sync::Custom)),
            ("sync_longest", matches!(sync, Sync::Every | Sync::Custom)),
            ("sync_start", sync == Sync::Custom),
            ("sync_steps", sync != Sync::Custom),
        ];
        for (key, unused) in without_meaning {
            if let (Some(value), true) = (written.get(key), unused) {
                return Err(Error::config(key, value, format!("has no meaning with sync = {}", written["sync"])));
            }
        }
        Ok(())
    }

    /// T_v. Options that were not given get their values on the way.
    fn decide_variance(&mut self, schedule: Option<&LearningRate>, is_short: bool) -> Result<VarianceSteps> {
        if let Some(steps) = &self.variance_steps {
            check_rising("variance_steps", steps)?;
            if steps.first() != Some(&0) {
                let expected = "expected a list that starts with 0: without a variance nothing moves";
                return Err(Error::config("variance_steps", format!("{steps:?}"), expected));
            }
            return Ok(VarianceSteps::Custom(steps.clone()));
        }
        let written = given(self);
        if is_short && !VARIANCE.iter().any(|key| written.contains_key(*key)) {
            (self.variance_dense, self.kappa, self.freeze) = (Some(SHORT), Some(1), Some(Freeze::Step(SHORT)));
        }
        let (warmup, steps) = lengths(schedule);
        let starts_fast = steps.is_some() && warmup < ENOUGH && self.kappa.is_none();
        if self.kappa.is_none() {
            self.variance_longest = self.variance_longest.or(steps.map(|steps| (steps / GAPS).max(1)));
        }
        let usual_freeze = steps.map_or(Freeze::Never, |steps| {
            let part = (steps as f64 * FREEZE_PART).ceil() as u64;
            Freeze::Step(part.max(ENOUGH).max(FREEZE_WARMUPS * warmup))
        });
        let freeze = match *self.freeze.get_or_insert(usual_freeze) {
            Freeze::Step(0) => {
                let expected = "expected a step of at least 1, or \"never\": without a variance nothing moves";
                return Err(Error::config("freeze", 0, expected));
            }
            Freeze::Step(step) => Some(step),
            Freeze::Never => None,
        };
        Ok(VarianceSteps::Growing {
            dense: *self.variance_dense.get_or_insert(if starts_fast { ENOUGH } else { 0 }),
            kappa: count("kappa", *self.kappa.get_or_insert(if steps.is_some() { PAPER_KAPPA } else { OPEN_KAPPA }))?,
            gap: count("variance_gap", *self.variance_gap.get_or_insert(1))?,
            longest: self.variance_longest.map(|gap| count("variance_longest", gap)).transpose()?,
            freeze,
        })
    }

    /// T_u, likewise.
    fn decide_sync(&mut self, sync: Sync, schedule: Option<&LearningRate>) -> Result<SyncSteps> {
        if sync == Sync::Custom {
            let missing = "expected custom together with sync_steps, the list of the steps that sync";
            let steps = self.sync_steps.as_ref().ok_or_else(|| Error::config("sync", "custom", missing))?;
            check_rising("sync_steps", steps)?;
            return Ok(SyncSteps::Custom(steps.clone()));
        }
        let (warmup, steps) = lengths(schedule);
        let start = *self.sync_start.get_or_insert(warmup);
        let mut every = |usual| count("sync_every", *self.sync_every.get_or_insert(usual));
        let mut longest = |usual| count("sync_longest", *self.sync_longest.get_or_insert(usual));
        match sync {
            Sync::FollowLr => {
                let missing = "expected follow-lr together with learning_rate, or doubling, every, custom";
                let peak = schedule.ok_or_else(|| Error::config("sync", "follow-lr", missing))?.peak;
                let usual = steps.map_or(LONGEST_GAP, |steps| (steps / SYNC_GAPS).clamp(1, LONGEST_GAP));
                Ok(SyncSteps::FollowLr { peak, start, longest: longest(usual)? })
            }
            Sync::Doubling => Ok(SyncSteps::Doubling { start, every: every(32_678)?, longest: longest(LONGEST_GAP)? }),
            _ => Ok(SyncSteps::Every { start, gap: every(1)? }),
        }
    }
}

fn check_rising(key: &str, steps: &[u64]) -> Result<()> {
    match steps.is_sorted_by(|a, b| a < b) {
        true => Ok(()),
        false => Err(Error::config(key, format!("{steps:?}"), "expected steps in rising order, each once")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    const THIS: Name = Name::ZERO_ONE_ADAM;

    #[test]
    fn a_variance_of_momenta_has_no_exact_rounds() {
        assert_eq!(calendar(THIS, "variance = 'momentum'; sync = 'every'; sync_every = 3", 7), "--c--c-");
        assert_eq!(calendar(THIS, "variance = 'momentum'; preset = 'deepspeed'", 4), "cccc");
        assert_eq!(decided(THIS, "variance = 'gradient'"), decided(THIS, ""));
        for other in ["kappa = 4", "freeze = 9", "variance_steps = [0]", "var_freeze_step = 5"] {
            let name = other.split(' ').next().unwrap();
            assert_refused(THIS, &format!("variance = 'momentum'; {other}"), &["variance", "momentum", name]);
        }
    }

    fn parts(bias_correction: &str, variance: &str, sync: &str) -> String {
        let codecs = "codec_down = 'sign'; codec_up = 'sign'; exact_codec = 'bf16'";
        let all = format!("bias_correction = {bias_correction}; {codecs}; {variance}; {sync}");
        let mut sorted = all.split("; ").collect::<Vec<_>>();
        sorted.sort_unstable();
        sorted.join("; ")
    }

    #[test]
    fn defaults_and_presets() {
        for (options, expected) in [
            (
                "",
                parts(
                    "true",
                    "variance_dense = 0; kappa = 32; variance_gap = 1; freeze = 'never'",
                    "sync = 'every'; sync_start = 0; sync_every = 1",
                ),
            ),
            (
                "learning_rate = {peak = 0.1, warmup = 70}",
                parts(
                    "true",
                    "variance_dense = 0; kappa = 32; variance_gap = 1; freeze = 'never'",
                    "sync = 'follow-lr'; sync_start = 70; sync_longest = 16",
                ),
            ),
            (
                "learning_rate = {peak = 0.1, warmup = 70, steps = 900}",
                parts(
                    "true",
                    "variance_dense = 100; kappa = 16; variance_gap = 1; variance_longest = 4; freeze = 360",
                    "sync = 'follow-lr'; sync_start = 70; sync_longest = 1",
                ),
            ),
            (
                "preset = 'paper'; learning_rate = {peak = 0.1, warmup = 70, steps = 900}",
                parts(
                    "false",
                    "variance_dense = 0; kappa = 16; variance_gap = 1; freeze = 70",
                    "sync = 'follow-lr'; sync_start = 70; sync_longest = 16",
                ),
            ),
            (
                "preset = 'deepspeed'; learning_rate = {peak = 0.1, warmup = 70, steps = 900}",
                parts(
                    "false",
                    "variance_dense = 0; kappa = 16; variance_gap = 1; freeze = 100000",
                    "sync = 'doubling'; sync_start = 100000; sync_every = 32678; sync_longest = 16",
                ),
            ),
            (
                "preset = 'deepspeed'; freeze = 50; sync_longest = 4",
                parts(
                    "false",
                    "variance_dense = 0; kappa = 16; variance_gap = 1; freeze = 50",
                    "sync = 'doubling'; sync_start = 50; sync_every = 32678; sync_longest = 4",
                ),
            ),
        ] {
            assert_eq!(decided(THIS, options), expected, "{options}");
        }
        let lean = resolved(THIS, "preset = 'lean'; feedback_up = 0.5");
        assert_eq!(lean, resolved(THIS, "exact_codec = 'power6'; feedback_up = 0.5; feedback_down = 0.8"));
        assert_eq!(resolved(THIS, "preset = 'lean'; feedback = 1.0; exact_codec = 'bf16'"), resolved(THIS, ""));
        let run = "learning_rate = {peak = 0.1, steps = 200}; feedback = 0.8";
        assert_eq!(
            resolved(THIS, &format!("preset = 'lean'; {run}")),
            resolved(THIS, run),
            "too short to save anything"
        );
        let momenta = "variance = 'momentum'; feedback = 0.8";
        assert_eq!(resolved(THIS, &format!("preset = 'lean'; {momenta}")), resolved(THIS, momenta), "no exact rounds");
        let short = decided(THIS, "learning_rate = {peak = 0.1, steps = 200}");
        assert!(short.contains("exact_codec = 'f32'") && short.contains("freeze = 250"), "{short}");
    }

    #[test]
    fn a_delay_starts_when_the_variance_has_settled() {
        for (options, start) in [
            ("freeze = 9", "delay_start = 9"),
            ("variance_steps = [0, 5]", "delay_start = 6"),
            ("freeze = 9; delay_start = 20", "delay_start = 20"),
            ("learning_rate = {peak = 0.1, steps = 1000}", "delay_start = 400"),
        ] {
            let written = decided(THIS, &format!("delay = 3; {options}"));
            assert!(written.contains("delay = 3; ") && written.contains(start), "{written}");
        }
        assert_eq!(decided(THIS, "delay = 0"), decided(THIS, ""));
        let served = |options: &str| resolved(THIS, options).decide().unwrap().algorithm.is_served();
        assert!(served("freeze = 9; delay = 3").unwrap_err().to_string().contains("server"));
        served("freeze = 9").unwrap();
    }

    #[test]
    fn deepspeeds_names_are_translated() {
        for (theirs, ours) in [
            ("var_freeze_step = 70", "kappa = 16; freeze = 70; sync_start = 70"),
            ("var_freeze_step = 70; sync_start = 90", "kappa = 16; freeze = 70; sync_start = 90"),
            ("var_update_scaler = 8", "kappa = 8"),
            ("local_step_scaler = 100", "sync = 'doubling'; sync_every = 100"),
            ("local_step_clipper = 4", "sync = 'doubling'; sync_longest = 4"),
            (
                "var_freeze_step = 70; var_update_scaler = 8; local_step_scaler = 100; local_step_clipper = 4",
                "freeze = 70; sync_start = 70; kappa = 8; sync = 'doubling'; sync_every = 100; sync_longest = 4",
            ),
        ] {
            assert_eq!(resolved(THIS, theirs), resolved(THIS, ours));
        }
        let written = decided(THIS, "var_freeze_step = 3; local_step_scaler = 5");
        assert!(!written.contains("var_") && !written.contains("local_"), "{written}");
    }

    #[test]
    fn refusals() {
        for (options, expected) in [
            ("freeze = 0", &["freeze = 0", "at least 1"][..]),
            ("delay = 2", &["delay = 2", "variance that settles", "freeze"]),
            ("variance = 'momentum'; delay = 2", &["delay = 2", "momentum", "expected 0"]),
            ("freeze = 9; delay = 2; delay_start = 8", &["delay_start = 8", "at least 9"]),
            ("variance_steps = [0, 5]; delay = 2; delay_start = 5", &["delay_start = 5", "at least 6"]),
            ("freeze = 9; delay_start = 10", &["delay_start = 10", "no meaning without delay"]),
            ("freeze = 9; delay = 0; delay_start = 10", &["delay_start = 10", "no meaning without delay"]),
            ("freeze = 'auto'", &["freeze", "auto", "a step", "never"]),
            ("freeze = true", &["freeze", "true", "a step", "never"]),
            ("kappa = 0", &["kappa = 0", "at least 1"]),
            ("kappa = 'many'", &["kappa", "many"]),
            ("kappa = -1", &["kappa", "-1"]),
            ("sync = 'follow'", &["sync", "follow", "follow-lr", "doubling", "every", "custom"]),
            ("sync_every = 0", &["sync_every = 0", "at least 1"]),
            ("sync = 'doubling'; sync_longest = 0", &["sync_longest = 0", "at least 1"]),
            ("var_freeze_step = 0", &["var_freeze_step = 0", "at least 1"]),
            ("local_step_clipper = 0", &["local_step_clipper = 0", "at least 1"]),
            ("variance_steps = [3]", &["variance_steps", "starts with 0"]),
            ("variance_steps = [3, 2]", &["variance_steps = [3, 2]", "rising"]),
            ("sync = 'custom'; sync_steps = [2, 2]", &["sync_steps = [2, 2]", "rising", "once"]),
            ("sync = 'custom'", &["sync", "custom", "sync_steps"]),
            ("sync = 'follow-lr'", &["sync", "follow-lr", "learning_rate"]),
            ("preset = 'paper'", &["preset", "sync", "learning_rate"]),
        ] {
            assert_refused(THIS, options, expected);
        }
    }

    #[test]
    fn options_that_exclude_each_other_are_both_named() {
        for (options, expected) in [
            ("variance_steps = [0]; kappa = 3", ["variance_steps = [0]", "kappa"]),
            ("variance_steps = [0]; freeze = 3", ["variance_steps = [0]", "freeze"]),
            ("variance_steps = [0]; var_freeze_step = 3", ["variance_steps", "var_freeze_step"]),
            ("kappa = 1; var_update_scaler = 2", ["var_update_scaler = 2", "kappa"]),
            ("freeze = 1; var_freeze_step = 2", ["var_freeze_step = 2", "freeze"]),
            ("sync_every = 1; local_step_scaler = 2", ["local_step_scaler = 2", "sync_every"]),
            ("sync_longest = 1; local_step_clipper = 2", ["local_step_clipper = 2", "sync_longest"]),
        ] {
            assert_refused(THIS, options, &expected);
        }
    }

    /// An option is used or refused, also when `sync` itself is left to its default.
    #[test]
    fn an_option_without_meaning_is_refused() {
        for (options, expected) in [
            ("sync = 'follow-lr'; sync_every = 3", ["sync_every = 3", "follow-lr"]),
            ("sync = 'custom'; sync_steps = [1]; sync_every = 3", ["sync_every = 3", "custom"]),
            ("sync = 'custom'; sync_steps = [1]; sync_longest = 3", ["sync_longest = 3", "custom"]),
            ("sync = 'custom'; sync_steps = [1]; sync_start = 3", ["sync_start = 3", "custom"]),
            ("sync = 'every'; sync_longest = 3", ["sync_longest = 3", "every"]),
            ("sync = 'every'; sync_steps = [3]", ["sync_steps = [3]", "every"]),
            ("sync_steps = [3]", ["sync_steps = [3]", "every"]),
            ("sync_longest = 3", ["sync_longest = 3", "every"]),
            ("sync_every = 3; learning_rate = {peak = 0.1}", ["sync_every = 3", "follow-lr"]),
            ("sync = 'follow-lr'; local_step_scaler = 3; learning_rate = {peak = 0.1}", ["3", "follow-lr"]),
        ] {
            assert_refused(THIS, options, &expected);
        }
    }

    /// T_v = 0, 1, 2, 4, 6, 10; T_u = 2, 5, 8, 11; a step before one of T_v syncs too.
    #[test]
    fn the_calendar_is_that_of_both_sets() {
        assert_eq!(calendar(THIS, "kappa = 2; sync = 'every'; sync_every = 3", 12), "eeecece-ccec");
        assert_eq!(calendar(THIS, "variance_steps = [0]; sync = 'custom'; sync_steps = [2]", 5), "e-c--");
    }

    /// An exact step, a local one that is limited, and the sync of both steps since, which is not.
    #[test]
    fn steps_by_hand() {
        let (gradients, mut hand) = ([0.5, 8.0, -9.0], Hand::default());
        hand.blend(gradients[0]);
        hand.square(gradients[0]);
        let first = DECAY - hand.rate() * hand.m / hand.p();
        let (anchor, mut u, mut rates, mut decays) = (first, 0.0, 0.0, 1.0);
        let mut advance = |hand: &mut Hand, g: f32| {
            hand.blend(g);
            (u, rates, decays) = (u + hand.rate() * hand.m, rates + hand.rate(), decays * DECAY);
            (u, rates, decays)
        };
        advance(&mut hand, gradients[1]);
        assert!(hand.m > hand.p());
        let second = first * DECAY - hand.rate();
        let (u, rates, decays) = advance(&mut hand, gradients[2]);
        let third = anchor * decays - (u / hand.p()).clamp(-rates, rates);
        let options = "variance_steps = [0]; sync = 'custom'; sync_steps = [2]; exact_codec = 'f32'";
        assert_near(&course(THIS, options, &gradients), &[first, second, third]);
    }
}
