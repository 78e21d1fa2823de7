//! Local Adam: every worker takes steps of its own, and now and then all of them move a common model by what these steps come to.
//!
//! ```text
//! every step:   m ← β1·m + (1−β1)·g;   v ← β2·v + (1−β2)·g²;   x ← x·(1−γλ) − γ̂·m/P      this worker's own, m and v never averaged
//! t ∈ T_u:      Δ̄ = coarse mean of a − x;   a ← the outer rule's;   x ← a
//! ```
//!
//! T_u is every H-th step, or follows the learning rate. [`outer`](super::outer) has the four rules, and with them the methods: local SGD
//! and federated averaging (`average`), SlowMo (arXiv 1910.00643, `slow-momentum`), DiLoCo (arXiv 2311.08105, `nesterov`) and DSM
//! (arXiv 2411.17866, `sign`). Nothing is lost on the way by default, but any codec will do, with residuals:
//! for `nesterov`, y = a − (ημ²/(1−μ))·B − (η/(1−μ))·(mean e + E) moves by exactly −(η/(1−μ))·mean Δ.
//!
//! With `delay` = τ > 0 a sync is over τ steps later: its mean is on its way while the workers go on, and nobody waits for it.
//!
//! ```text
//! t ∈ T_u:      Δ = a − x starts on its way
//! at t + τ:     a ← the outer rule's, with Δ̄ and the γ of t;   x ← α·x + (1−α)·a
//! ```
//!
//! α is `mix`. This is the overlap of Streaming DiLoCo (arXiv 2501.18512). With τ = H each interval starts from the anchor: x ← a as soon
//! as Δ is on its way and the mean before it is applied, and what a worker's own steps came to comes back to it with the mean. That is CO2
//! (arXiv 2401.16265).
//!
//! With `parts` = K a sync is of one of K parts of the parameters ([`Stripes`]), and the parts take turns: each has its own once in H
//! steps, so there is a round every H/K steps, of a K-th of the bytes. With a delay of at most H/K and α > 0 this is the rule of Streaming
//! DiLoCo (`streaming-diloco`).
//!
//! The preset `sparseloco` is SparseLoCo (arXiv 2508.15706): the mean difference of 30 steps, of which each worker sends the largest 1.6 %
//! in two bits each, with error feedback. Its residual decays there (e ← 0.95·e); here it does not.
//!
//! After a sync x is a, so a is set apart only once, before the first step. Between two syncs a is the model that all have in common: it
//! can be evaluated without a round.

use super::moments::{Adam, Anchor, Arrive};
use super::outer::{A, ANCHOR, Average, Mix, Nesterov, Outer, Rule, Sign, SlowMomentum};
use super::table::{Algorithm, Averages, Options, count, given, lengths, not_served, preset};
use super::{Hyper, M, Moments, Optimizer, Sync, V, Vectors, X};
use crate::codec::CodecName;
use crate::config::{Config, Name};
use crate::error::{Error, Result};
use crate::exchange::layout::Topology;
use crate::exchange::{Exchange, Late};
use crate::kernel::update::{self, OuterStep, Scalars};
use crate::machine::{Machine, Pass, Read, Source, Step, Stripes, Vector, Write};
use crate::schedule::{LearningRate, Round, SyncSteps};
use crate::state::{Entry, Share};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::ops::Range;

impl Name {
    /// `local-adam`
    pub const LOCAL_ADAM: Name = Name::new("local-adam");
}

// ---- passes --------------------------------------------------------------------------------------

/// x ← a, where nothing moves
struct Return;

impl Pass for Return {
    const NAME: &'static str = "return";
    const READS: &'static [Vector] = &[A];
    const WRITES: &'static [Vector] = &[X];

    fn run(k: &Scalars, _: &[f32], [a, ..]: Read<'_>, [x, ..]: Write<'_>) -> Option<usize> {
        if !k.moves {
            update::copy(a, x);
        }
        None
    }
}

/// m ← β1·m + (1−β1)·g;   v ← β2·v + (1−β2)·g²;   z = a − (x·(1−γλ) − γ̂·m/P): a sync replaces x, so it is not written.
struct OwnProgress;

impl Source for OwnProgress {
    const NAME: &'static str = "own_progress";
    const READS: &'static [Vector] = &[A, X];
    const WRITES: &'static [Vector] = &[M, V];

    fn fill(k: &Scalars, g: &[f32], [a, x, ..]: Read<'_>, [m, v, ..]: Write<'_>, z: &mut [f32]) {
        update::own_progress(k, g, a, x, m, v, z);
    }
}

/// z = a − x: a sync without a gradient.
struct Difference;

impl Source for Difference {
    const NAME: &'static str = "difference";
    const READS: &'static [Vector] = &[A, X];

    fn fill(_: &Scalars, _: &[f32], [a, x, ..]: Read<'_>, _: Write<'_>, z: &mut [f32]) {
        update::difference(a, x, z);
    }
}

/// Where a mean waits, with an outer momentum and without one.
const ARRIVED: usize = 4;
const ARRIVED_ALONE: usize = 3;

// ---- steps ---------------------------------------------------------------------------------------

/// A sync that is over some steps later.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Delay {
    /// τ.
    steps: u64,
    /// The first step that syncs late: before it each step is a sync of its own.
    from: u64,
    /// τ = H, and no parts: each interval starts from the anchor.
    is_whole: bool,
    /// α.
    mix: f64,
}

/// The mean of such a sync.
struct Arriving {
    delay: Delay,
    late: Late,
    /// The last rates of the steps that it is of.
    rates: Vec<f64>,
}

/// Which part of the vector a sync is of.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Parts {
    /// K.
    count: usize,
    /// The first step that may be skipped: before it every step syncs a part.
    from: u64,
    /// H/K: the gap between syncs.
    gap: u64,
}

impl Parts {
    /// No parts: each sync is of the whole vector.
    const WHOLE: Parts = Parts { count: 1, from: 0, gap: 1 };

    /// The part that the sync of step `t` is of.
    fn of(self, t: u64) -> usize {
        // As many have been before it.
        let syncs = if t < self.from { t } else { self.from + t / self.gap - self.from / self.gap };
        (syncs % self.count as u64) as usize
    }

    fn all(self) -> Range<usize> {
        0..self.count
    }
}

/// The optimizer at work.
struct Running {
    hyper: Hyper,
    arriving: Option<Arriving>,
    sync: SyncSteps,
    parts: Parts,
    /// How they cut the vector.
    stripes: Stripes,
    rule: Rule,
    moments: Moments,
    /// Πβ2 over this worker's updates of v.
    forgotten: f64,
    /// For each part, γ of each group at the last step since its sync that had one: what the rules divide by. At a rate of 0 nothing has
    /// moved, and what steps before it have done is still in their units.
    rates: Vec<f64>,
    /// For each part, steps since its last sync: a whole number, in the form that states have for several.
    pending: Vec<f64>,
    /// For each part, those of them that this worker took part in: whether it has anything to send.
    taken: Vec<f64>,
}

impl Optimizer for Running {
    fn step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<Round> {
        exchange.turn(step)?;
        self.advance(step);
        if step.t == 0 {
            exchange.machine.run(Anchor::<ANCHOR>, step)?;
        }
        let round = round(&self.sync, step.t, step.lr);
        let is_late = self.arriving.as_ref().is_some_and(|arriving| arriving.delay.from <= step.t);
        let part = self.parts.of(step.t);
        if round == Round::Coarse && !is_late && self.parts.count == 1 {
            self.sync_step(part, OwnProgress, step, exchange)?;
            return Ok(round);
        }
        if step.contributes {
            exchange.machine.run(Adam, step)?;
        }
        if self.is_due(step.t) {
            self.finish(step, exchange)?;
        }
        match round {
            Round::Coarse if is_late => self.start(part, step, exchange)?,
            Round::Coarse => self.sync_step(part, Difference, step, exchange)?,
            _ => {}
        }
        Ok(round)
    }

    /// A mean under way is applied at once, and then what the steps since have come to.
    fn sync(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        self.prepare(step);
        exchange.turn(step)?;
        if let Some(Arriving { delay, .. }) = self.arriving.as_ref().filter(|arriving| arriving.late.is_under_way()) {
            // Their Δ is against the anchor before it moves.
            if delay.is_whole && self.pending[0] > 0.0 {
                self.start(0, step, exchange)?;
                exchange.turn(step)?;
            }
            self.finish(step, exchange)?;
        }
        for part in self.parts.all() {
            if self.pending[part] > 0.0 {
                self.prepare(step);
                self.sync_step(part, Difference, step, exchange)?;
            }
        }
        Ok(())
    }

    fn arrive(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        match &mut self.arriving {
            Some(Arriving { late, .. }) if self.rule.has_momentum() => exchange.arrive(late, step, Arrive::<ARRIVED>),
            Some(Arriving { late, .. }) => exchange.arrive(late, step, Arrive::<ARRIVED_ALONE>),
            None => Ok(()),
        }
    }

    fn is_synced(&self) -> bool {
        self.pending.iter().all(|steps| *steps == 0.0)
    }

    fn anchor(&self) -> Option<Vector> {
        (!self.is_synced()).then_some(A)
    }

    fn numbers(&mut self) -> Vec<Entry<'_>> {
        let mut numbers = self.moments.numbers();
        // Linear in v: the mean over workers is the right correction of the mean of their v.
        let forgotten = std::slice::from_mut(&mut self.forgotten);
        numbers.push(Entry::doubles("variance_forgotten", Share::Mean, forgotten).starting_at(1.0));
        numbers.push(Entry::doubles("last_rates", Share::Same, &mut self.rates));
        numbers.push(Entry::doubles("steps_since_sync", Share::Same, &mut self.pending));
        numbers.push(Entry::doubles("steps_taken_since_sync", Share::Same, &mut self.taken));
        if let Some(Arriving { late, rates, .. }) = &mut self.arriving {
            numbers.push(Entry::doubles("rates_of_mean", Share::Same, rates));
            numbers.extend(late.numbers());
        }
        numbers
    }

    /// x is the mean over the workers that saved it, up to rounding: a − mean Δ.
    fn loaded(&mut self, regrouped: bool, step: &mut Step<'_>, machine: &mut Machine) -> Result<()> {
        if !regrouped || step.t == 0 {
            return Ok(()); // a is not there before the first step
        }
        self.taken.copy_from_slice(&self.pending); // whoever of the old workers took part
        self.prepare(step);
        machine.run(Return, step)?; // groups that rest
        for part in self.parts.all().filter(|part| self.pending[*part] == 0.0) {
            return_to_anchor(self.stripes.of(part), step, machine)?;
        }
        Ok(())
    }
}

impl Running {
    /// What a step means for those who take no part in it too.
    fn advance(&mut self, step: &mut Step<'_>) {
        if step.contributes {
            self.forgotten *= self.hyper.betas.1;
            self.moments.updates += 1;
        }
        self.prepare(step);
        for last in self.rates.chunks_exact_mut(step.rates.len()) {
            let moving = last.iter_mut().zip(step.rates).filter(|(_, rate)| **rate > 0.0);
            moving.for_each(|(last, rate)| *last = *rate);
        }
        self.pending.iter_mut().for_each(|steps| *steps += 1.0);
        self.taken.iter_mut().for_each(|steps| *steps += f64::from(step.contributes));
    }

    /// γ of each group, of what a part has to send.
    fn rates_of(&mut self, part: usize) -> &mut [f64] {
        let groups = self.hyper.groups;
        &mut self.rates[part * groups..][..groups]
    }

    /// A part has nothing to send any more.
    fn is_sent(&mut self, part: usize) {
        (self.pending[part], self.taken[part]) = (0.0, 0.0);
    }

    fn prepare(&mut self, step: &mut Step<'_>) {
        self.hyper.prepare(step, self.hyper.betas.1, self.forgotten);
    }

    /// Δ̄ = coarse mean of a − x in this part, with this step of its own if that is the source and there is a gradient; then the outer
    /// rule.
    fn sync_step(
        &mut self,
        part: usize,
        source: impl Source,
        step: &mut Step<'_>,
        exchange: &mut Exchange,
    ) -> Result<()> {
        let rule = self.rule;
        step.part = part;
        step.scalars.iter_mut().zip(self.rates_of(part)).for_each(|(k, rate)| k.outer = rule.at(*rate));
        let has_gradient = step.gradient.is_some() && step.contributes;
        // A worker without a gradient at this step may still have the steps before it to send.
        step.contributes = self.taken[part] > 0.0;
        let contributions = match has_gradient {
            true => self.mean(source, step, exchange)?,
            false => self.mean(Difference, step, exchange)?,
        };
        if contributions == 0 {
            // A server that counted nobody: what this worker had to send is in its residual.
            return_to_anchor(self.stripes.of(part), step, &mut exchange.machine)?;
        }
        self.rates_of(part).fill(0.0);
        self.is_sent(part);
        Ok(())
    }

    /// Whether a mean under way is to be applied now. If each interval starts from the anchor, it waits for the next start.
    fn is_due(&self, t: u64) -> bool {
        let is_due = |of: &Arriving| of.late.is_under_way() && of.late.due == t && !of.delay.is_whole;
        self.arriving.as_ref().is_some_and(is_due)
    }

    /// Δ = a − x starts on its way. If each interval starts from the anchor, the mean before it is applied now, and x ← a.
    fn start(&mut self, part: usize, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        step.part = part;
        step.contributes = self.taken[part] > 0.0;
        exchange.start(step, Difference)?;
        if self.delay().is_whole {
            self.finish(step, exchange)?;
        }
        let groups = self.hyper.groups;
        let arriving = self.arriving.as_mut().expect("it syncs late");
        let rates = &mut self.rates[part * groups..][..groups];
        arriving.rates.copy_from_slice(rates);
        rates.fill(0.0);
        arriving.late.due = step.t + arriving.delay.steps;
        Ok(())
    }

    /// The outer rule with a mean that started earlier, if there is one, and the rates of its steps; x ← α·x + (1−α)·a.
    fn finish(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        let Arriving { delay, late, rates } = self.arriving.as_mut().expect("it syncs late");
        let part = if late.is_under_way() { self.parts.of(late.due.saturating_sub(delay.steps)) } else { 0 };
        let stripes = self.stripes.of(part);
        let (alone, beside) = ((stripes, Vector::own(ARRIVED_ALONE)), (stripes, Vector::own(ARRIVED)));
        let mix = (delay.mix as f32, (1.0 - delay.mix) as f32);
        let outer = |rate: f64| OuterStep { mix, ..self.rule.at(rate) };
        step.scalars.iter_mut().zip(&*rates).for_each(|(k, rate)| k.outer = outer(*rate));
        let contributions = match self.rule.outer {
            _ if !late.is_under_way() => 0,
            Outer::Average => exchange.finish(late, step, Average::<true>, alone)?,
            Outer::SlowMomentum => exchange.finish(late, step, SlowMomentum::<true>, beside)?,
            Outer::Nesterov => exchange.finish(late, step, Nesterov::<true>, beside)?,
            Outer::Sign => exchange.finish(late, step, Sign::<true>, beside)?,
        };
        if contributions == 0 {
            exchange.machine.run_in(stripes, Mix, step)?;
        }
        if delay.mix == 0.0 {
            self.is_sent(part);
        }
        Ok(())
    }

    fn delay(&self) -> Delay {
        self.arriving.as_ref().expect("it syncs late").delay
    }

    fn mean(&self, source: impl Source, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<u32> {
        let mixes = self.arriving.is_some() || self.rule.is_limited();
        match (self.rule.outer, mixes) {
            (Outer::Average, false) => exchange.mean(Round::Coarse, step, source, Average::<false>),
            (Outer::SlowMomentum, false) => exchange.mean(Round::Coarse, step, source, SlowMomentum::<false>),
            (Outer::Nesterov, false) => exchange.mean(Round::Coarse, step, source, Nesterov::<false>),
            (Outer::Sign, false) => exchange.mean(Round::Coarse, step, source, Sign::<false>),
            (Outer::Average, true) => exchange.mean(Round::Coarse, step, source, Average::<true>),
            (Outer::SlowMomentum, true) => exchange.mean(Round::Coarse, step, source, SlowMomentum::<true>),
            (Outer::Nesterov, true) => exchange.mean(Round::Coarse, step, source, Nesterov::<true>),
            (Outer::Sign, true) => exchange.mean(Round::Coarse, step, source, Sign::<true>),
        }
    }
}

/// x ← a, everywhere in a part.
fn return_to_anchor(stripes: Stripes, step: &mut Step<'_>, machine: &mut Machine) -> Result<()> {
    step.scalars.iter_mut().for_each(|k| k.moves = false);
    machine.run_in(stripes, Return, step)
}

fn round(sync: &SyncSteps, t: u64, lr: f32) -> Round {
    if sync.contains(t, lr) { Round::Coarse } else { Round::Skipped }
}

/// The optimizer with every option of its own decided.
#[derive(Debug)]
struct Decided {
    /// All that count have a value.
    options: LocalAdam,
    sync: SyncSteps,
    parts: Parts,
    rule: Rule,
    delay: Option<Delay>,
}

impl Algorithm for Decided {
    fn options(&self) -> Map<String, Value> {
        given(&self.options)
    }

    fn vectors(&self) -> Vectors {
        const ALL: Vectors = &[
            ("m", Share::Mean),
            ("v", Share::Mean),
            ("anchor", Share::Same),
            ("outer_momentum", Share::Same),
            ("mean_arrived", Share::Same),
        ];
        const WITHOUT_MOMENTUM: Vectors =
            &[("m", Share::Mean), ("v", Share::Mean), ("anchor", Share::Same), ("mean_arrived", Share::Same)];
        let vectors = if self.rule.has_momentum() { ALL } else { WITHOUT_MOMENTUM };
        &vectors[..vectors.len() - usize::from(self.delay.is_none())]
    }

    fn passes(&self) -> &'static [&'static str] {
        const fn with(outer: &'static str) -> [&'static str; 6] {
            [Anchor::<ANCHOR>::NAME, Adam::NAME, Return::NAME, OwnProgress::NAME, Difference::NAME, outer]
        }
        const fn late(outer: &'static str) -> [&'static str; 8] {
            let [anchor, adam, back, own, difference, outer] = with(outer);
            [anchor, adam, back, own, difference, outer, Mix::NAME, Arrive::<ARRIVED>::NAME]
        }
        match (self.rule.outer, self.delay.is_some(), self.rule.is_limited()) {
            (Outer::Average, false, _) => const { &with(Average::<false>::NAME) },
            (Outer::SlowMomentum, false, false) => const { &with(SlowMomentum::<false>::NAME) },
            (Outer::SlowMomentum, false, true) => const { &with(SlowMomentum::<true>::NAME) },
            (Outer::Nesterov, false, _) => const { &with(Nesterov::<false>::NAME) },
            (Outer::Sign, false, _) => const { &with(Sign::<false>::NAME) },
            (Outer::Average, true, _) => const { &late(Average::<true>::NAME) },
            (Outer::SlowMomentum, true, _) => const { &late(SlowMomentum::<true>::NAME) },
            (Outer::Nesterov, true, _) => const { &late(Nesterov::<true>::NAME) },
            (Outer::Sign, true, _) => const { &late(Sign::<true>::NAME) },
        }
    }

    fn delays(&self) -> bool {
        self.delay.is_some()
    }

    fn delay(&self, t: u64) -> u64 {
        self.delay.filter(|delay| delay.from <= t).map_or(0, |delay| delay.steps)
    }

    fn parts(&self) -> usize {
        self.parts.count
    }

    fn part(&self, t: u64) -> usize {
        self.parts.of(t)
    }

    /// A mean under way is only finished, and takes with it its part's steps since it started; unless a worker keeps something of its own
    /// view, or each interval starts from the anchor.
    fn unsynced(&self, t: u64, lr: f32) -> Vec<usize> {
        let synced = match self.delay.filter(|delay| delay.from <= t) {
            None | Some(Delay { is_whole: true, .. }) => t..t + 1,
            Some(Delay { mix, .. }) if mix > 0.0 => t..t,
            Some(Delay { steps, from, .. }) => t.saturating_sub(steps).max(from)..t + 1,
        };
        let synced = synced.filter(|t| self.round(*t, lr) == Round::Coarse).map(|t| self.parts.of(t));
        let synced = synced.collect::<Vec<_>>();
        self.parts.all().filter(|part| !synced.contains(part)).collect()
    }

    fn is_served(&self) -> Result<()> {
        if self.parts.count > 1 {
            let problem = "a server takes means of the whole vector; expected 1 with a server";
            return Err(Error::config("parts", self.parts.count, problem));
        }
        self.delay.map_or(Ok(()), |delay| Err(not_served(delay.steps)))
    }

    fn round(&self, t: u64, lr: f32) -> Round {
        round(&self.sync, t, lr)
    }

    fn averages(&self) -> Averages {
        Averages::Increments
    }

    /// Between two syncs each worker has its own.
    fn params_share(&self) -> Share {
        Share::Mean
    }

    /// Its variance is of own gradients too.
    fn own_clip(&self, _: usize) -> f64 {
        1.0
    }

    /// Skipped and coarse rounds by turns, of the whole vector, that workers wait for: what a plan makes the others from.
    fn drill(&self, each: u64) -> (Map<String, Value>, u64) {
        let (sync, sync_start, sync_every) = (Some(Sync::Every), Some(0), Some(2));
        let whole = LocalAdam { delay: None, mix: None, parts: None, sync_longest: None, ..self.options.clone() };
        (given(&LocalAdam { sync, sync_start, sync_every, ..whole }), 2 * each)
    }

    /// Nobody has measured yet how it learns.
    fn rank(&self, _: CodecName) -> Option<usize> {
        None
    }

    fn build(&self, hyper: Hyper) -> Box<dyn Optimizer> {
        Box::new(Running {
            rates: vec![0.0; hyper.groups * self.parts.count],
            pending: vec![0.0; self.parts.count],
            taken: vec![0.0; self.parts.count],
            arriving: self.delay.map(|delay| Arriving { delay, late: Late::default(), rates: vec![0.0; hyper.groups] }),
            sync: self.sync.clone(),
            rule: self.rule,
            moments: Moments::default(),
            parts: self.parts,
            stripes: Stripes::new(hyper.parameters, hyper.block, self.parts.count),
            hyper,
            forgotten: 1.0,
        })
    }
}

// ---- options -------------------------------------------------------------------------------------

/// Local Adam's own options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LocalAdam {
    /// What is done with the mean difference. Default `nesterov`.
    pub outer: Option<Outer>,
    /// η, the outer learning rate. Default 0.7 with `nesterov`, else 1.
    pub outer_rate: Option<f64>,
    /// μ of `nesterov` (default 0.9) and `slow-momentum` (default 0.5).
    pub outer_momentum: Option<f64>,
    /// β1 and β2 of `sign`. Default (0.95, 0.98).
    pub outer_betas: Option<(f64, f64)>,
    /// λ of `sign`, the decay of the anchor at a sync. Default 0.1.
    pub outer_decay: Option<f64>,
    /// Λ of `slow-momentum`: M takes up Δ̄/(γΛ). Default 1.
    pub outer_penalty: Option<f64>,
    /// φ of `slow-momentum`, the largest |M|. Default: no limit.
    pub outer_clip: Option<f64>,
    /// τ: a mean is applied so many steps after its sync has started it, at most H/K. Default 0; with preset `co2` H.
    pub delay: Option<u64>,
    /// α: what a worker keeps of its own view when a late mean is applied. Default 0.
    pub mix: Option<f64>,
    /// K: a sync is of one of so many parts of the parameters, which take turns; H is a multiple of K. Default 1.
    pub parts: Option<u64>,
    /// How the gap between syncs grows: `every` or `follow-lr`. Default `every`.
    pub sync: Option<Sync>,
    /// The first step that may be skipped. Default 0; with `follow-lr` the end of the learning rate's warm-up.
    pub sync_start: Option<u64>,
    /// H: the gap between syncs, with `every`. Default 32.
    pub sync_every: Option<u64>,
    /// The longest gap between syncs, with `follow-lr`; gaps are powers of two. Default 32.
    pub sync_longest: Option<u64>,
}

/// H unless it is given.
const GAP: u64 = 32;

/// Of parts: each has numbers of its own, and buffers are made for the largest.
const MOST_PARTS: u64 = 4096;

impl Options for LocalAdam {
    const NAME: Name = Name::LOCAL_ADAM;
    const TITLE: &'static str = "local Adam";
    const EXACT: Option<CodecName> = None;
    /// Few rounds cost little as they are, and an outer momentum makes much of what a codec adds.
    const COARSE: Option<CodecName> = Some(CodecName::F32);
    const PRESETS: &'static [&'static str] =
        &["fedavg", "slowmo", "diloco", "dsm", "co2", "streaming-diloco", "sparseloco"];

    fn decide(mut self, config: &mut Config) -> Result<Box<dyn Algorithm>> {
        self.apply_preset(config)?;
        let rule = Rule::decide(&mut self)?;
        let sync = self.decide_sync(config.learning_rate.as_ref())?;
        let (sync, parts) = self.decide_parts(sync, config)?;
        let delay = self.decide_delay(&sync)?;
        forget_nothing(config);
        Ok(Box::new(Decided { options: self, sync, parts, rule, delay }))
    }
}

/// The largest 1.6 % of a block, in two bits each: what a worker sends under the preset `sparseloco`.
const SPARSE: CodecName = CodecName::Sparse { millionths: 15_625, width: 2 };
/// The largest 6.25 %, in four bits: room for what four workers send.
const MEANS_OF_SPARSE: CodecName = CodecName::Sparse { millionths: 62_500, width: 4 };

/// These codecs up and down, unless others are given.
fn coded(config: &mut Config, up: CodecName, down: CodecName) {
    if config.codec.is_none() {
        config.codec_up.get_or_insert(up);
        config.codec_down.get_or_insert(down);
    }
}

/// Where nothing is lost there is nothing to remember, and no residual takes memory. But in the central form a server may take a mean
/// without a worker: what that worker had to send is then kept in its residual.
fn forget_nothing(config: &mut Config) {
    let usual = config.codec.unwrap_or(CodecName::F32);
    let is_exact = |way: Option<CodecName>| way.unwrap_or(usual) == CodecName::F32;
    let is_given = [config.feedback, config.feedback_up, config.feedback_down].iter().any(Option::is_some);
    if is_exact(config.codec_up)
        && is_exact(config.codec_down)
        && !is_given
        && config.topology != Some(Topology::Central)
    {
        config.feedback = Some(0.0);
    }
}

impl LocalAdam {
    /// The rest of a preset is the default of its rule.
    fn apply_preset(&mut self, config: &mut Config) -> Result<()> {
        let Some(preset) = preset::<Self>(config)? else { return Ok(()) };
        let (outer, gap) = match preset {
            "fedavg" => (Outer::Average, GAP),
            "slowmo" => (Outer::SlowMomentum, 12),
            "diloco" => (Outer::Nesterov, 500),
            "co2" => (Outer::SlowMomentum, 48),
            "streaming-diloco" => (Outer::Nesterov, 96),
            "sparseloco" => (Outer::Average, 30),
            _ => (Outer::Sign, 12),
        };
        if *self.outer.get_or_insert(outer) != outer {
            let problem = "sets another outer rule than the one given; leave out outer, or give no preset";
            return Err(Error::config("preset", preset, problem));
        }
        if matches!(self.sync, None | Some(Sync::Every)) {
            self.sync_every.get_or_insert(gap);
        }
        match preset {
            "co2" => self.delay = self.delay.or(self.sync_every),
            "streaming-diloco" => {
                self.parts.get_or_insert(8);
                if *self.delay.get_or_insert(2) > 0 {
                    self.mix.get_or_insert(0.5);
                }
                self.outer_rate.get_or_insert(0.4);
                // Whoever chooses a codec gets residuals with it: what some lose is too much to forget.
                if [config.codec, config.codec_up, config.codec_down].iter().all(Option::is_none) {
                    config.feedback.get_or_insert(0.0);
                }
                coded(config, CodecName::Power2(4), CodecName::Power2(4));
            }
            "sparseloco" => coded(config, SPARSE, MEANS_OF_SPARSE),
            _ => {}
        }
        Ok(())
    }

    /// K. The gap between syncs is then H/K.
    fn decide_parts(&mut self, sync: SyncSteps, config: &Config) -> Result<(SyncSteps, Parts)> {
        self.parts = self.parts.filter(|parts| *parts != 1); // one is none, and how records have it
        let Some(parts) = self.parts else { return Ok((sync, Parts::WHOLE)) };
        let SyncSteps::Every { start, gap: every } = sync else {
            let problem = "needs gaps that are all alike; expected sync = every, or 1";
            return Err(Error::config("parts", parts, problem));
        };
        if parts > MOST_PARTS {
            return Err(Error::config("parts", parts, format!("expected at most {MOST_PARTS}")));
        }
        if parts == 0 || !every.is_multiple_of(parts) {
            let problem =
                format!("expected a number that divides sync_every = {every}: each part syncs once in {every} steps");
            return Err(Error::config("parts", parts, problem));
        }
        if config.weighted == Some(true) {
            let problem =
                "a worker has one weight for a round, and parts would need one each; expected 1, or weighted = false";
            return Err(Error::config("parts", parts, problem));
        }
        let gap = every / parts;
        Ok((SyncSteps::Every { start, gap }, Parts { count: parts as usize, from: start, gap }))
    }

    /// τ and α. What has no meaning without a delay is refused.
    fn decide_delay(&mut self, sync: &SyncSteps) -> Result<Option<Delay>> {
        self.delay = self.delay.filter(|delay| *delay > 0); // none at all is how records have it
        let Some(steps) = self.delay else {
            return match self.mix {
                Some(mix) => Err(Error::config("mix", mix, "has no meaning without delay")),
                None => Ok(None),
            };
        };
        let SyncSteps::Every { start, gap } = *sync else {
            let problem = "needs gaps that are all alike; expected sync = every, or 0";
            return Err(Error::config("delay", steps, problem));
        };
        if steps > gap {
            let problem = match self.parts {
                None => format!("expected at most sync_every = {gap}: one mean at a time is under way"),
                Some(_) => format!("expected at most sync_every / parts = {gap}: one mean at a time is under way"),
            };
            return Err(Error::config("delay", steps, problem));
        }
        let (mix, is_whole) = (*self.mix.get_or_insert(0.0), steps == gap && self.parts.is_none());
        if !(0.0..1.0).contains(&mix) {
            return Err(Error::config("mix", mix, "expected a part, at least 0 and below 1"));
        }
        if mix > 0.0 && is_whole {
            let problem = format!("with delay = sync_every = {gap} each interval starts from the anchor; expected 0");
            return Err(Error::config("mix", mix, problem));
        }
        Ok(Some(Delay { steps, from: start, is_whole, mix }))
    }

    /// T_u. Options that were not given get their values on the way.
    fn decide_sync(&mut self, schedule: Option<&LearningRate>) -> Result<SyncSteps> {
        let sync = *self.sync.get_or_insert(Sync::Every);
        let word = given(self)["sync"].clone();
        let unused = |key: &str, value: Option<u64>| match value {
            Some(value) => Err(Error::config(key, value, format!("has no meaning with sync = {word}"))),
            None => Ok(()),
        };
        match sync {
            Sync::Every => {
                unused("sync_longest", self.sync_longest)?;
                let start = *self.sync_start.get_or_insert(0);
                Ok(SyncSteps::Every { start, gap: count("sync_every", *self.sync_every.get_or_insert(GAP))? })
            }
            Sync::FollowLr => {
                unused("sync_every", self.sync_every)?;
                let missing = "expected follow-lr together with learning_rate, or every";
                let peak = schedule.ok_or_else(|| Error::config("sync", "follow-lr", missing))?.peak;
                let start = *self.sync_start.get_or_insert(lengths(schedule).0);
                let longest = count("sync_longest", *self.sync_longest.get_or_insert(GAP))?;
                Ok(SyncSteps::FollowLr { peak, start, longest })
            }
            _ => Err(Error::config(
                "sync",
                word.as_str().unwrap_or_default(),
                "expected every or follow-lr with local-adam",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    const THIS: Name = Name::LOCAL_ADAM;
    const CODECS: &str = "bias_correction = true; codec_down = 'f32'; codec_up = 'f32'";

    #[test]
    fn defaults_and_presets() {
        for (options, expected) in [
            (
                "",
                "outer = 'nesterov'; outer_momentum = 0.9; outer_rate = 0.7; sync = 'every'; sync_every = 32; sync_start = 0",
            ),
            (
                "preset = 'diloco'; sync_start = 9",
                "outer = 'nesterov'; outer_momentum = 0.9; outer_rate = 0.7; sync = 'every'; sync_every = 500; sync_start = 9",
            ),
            (
                "preset = 'fedavg'; sync_every = 5",
                "outer = 'average'; outer_rate = 1.0; sync = 'every'; sync_every = 5; sync_start = 0",
            ),
            (
                "preset = 'slowmo'; outer_momentum = 0.2",
                "outer = 'slow-momentum'; outer_momentum = 0.2; outer_rate = 1.0; sync = 'every'; sync_every = 12; sync_start = 0",
            ),
            (
                "preset = 'dsm'; outer = 'sign'",
                "outer = 'sign'; outer_betas = [0.95, 0.98]; outer_decay = 0.1; outer_rate = 1.0; sync = 'every'; sync_every = 12; sync_start = 0",
            ),
            (
                "preset = 'co2'",
                "delay = 48; mix = 0.0; outer = 'slow-momentum'; outer_momentum = 0.5; outer_rate = 1.0; sync = 'every'; sync_every = 48; sync_start = 0",
            ),
            (
                "preset = 'co2'; sync_every = 12; delay = 3; mix = 0.5",
                "delay = 3; mix = 0.5; outer = 'slow-momentum'; outer_momentum = 0.5; outer_rate = 1.0; sync = 'every'; sync_every = 12; sync_start = 0",
            ),
            (
                "preset = 'streaming-diloco'; delay = 0; codec = 'f32'",
                "outer = 'nesterov'; outer_momentum = 0.9; outer_rate = 0.4; parts = 8; sync = 'every'; sync_every = 96; sync_start = 0",
            ),
            (
                "parts = 1",
                "outer = 'nesterov'; outer_momentum = 0.9; outer_rate = 0.7; sync = 'every'; sync_every = 32; sync_start = 0",
            ),
            (
                "preset = 'slowmo'; delay = 0",
                "outer = 'slow-momentum'; outer_momentum = 0.5; outer_rate = 1.0; sync = 'every'; sync_every = 12; sync_start = 0",
            ),
            (
                "preset = 'diloco'; sync = 'follow-lr'; learning_rate = {peak = 0.1, warmup = 7}",
                "outer = 'nesterov'; outer_momentum = 0.9; outer_rate = 0.7; sync = 'follow-lr'; sync_longest = 32; sync_start = 7",
            ),
        ] {
            assert_eq!(decided(THIS, options), format!("{CODECS}; {expected}"), "{options}");
        }
    }

    #[test]
    fn presets_with_a_codec() {
        let of = |options: &str| {
            let config = resolved(THIS, options);
            let own = config.options::<LocalAdam>().unwrap();
            let codecs = [config.codec_up, config.codec_down].map(|codec| codec.unwrap().to_string());
            (codecs.join(", "), config.feedback_up, [own.sync_every, own.parts, own.delay], own.outer_rate)
        };
        let words = |codecs: &str| codecs.to_owned();
        let streaming = (words("power4, power4"), Some(0.0), [Some(96), Some(8), Some(2)], Some(0.4));
        assert_eq!(of("preset = 'streaming-diloco'"), streaming);
        let other = (words("sign, sign"), Some(1.0), [Some(12), Some(4), Some(3)], Some(0.4));
        let options = "sync_every = 12; parts = 4; delay = 3; codec = 'sign'";
        assert_eq!(of(&format!("preset = 'streaming-diloco'; {options}")), other);
        let sparse = (words("topk0.015625x2, topk0.0625x4"), Some(1.0), [Some(30), None, None], Some(1.0));
        assert_eq!(of("preset = 'sparseloco'"), sparse);
    }

    /// Nothing is remembered where nothing is lost, unless a server may take a mean without a worker.
    #[test]
    fn residuals_are_kept_where_there_is_something_to_remember() {
        for (options, up, down) in [
            ("", 0.0, 0.0),
            ("codec_up = 'sign'", 1.0, 1.0),
            ("codec = 'bf16'", 1.0, 1.0),
            ("codec = 'f32'; topology = 'central'", 1.0, 1.0),
            ("feedback = 0.5", 0.5, 0.5),
            ("codec = 'power4'; feedback = 0", 0.0, 0.0),
        ] {
            let config = resolved(THIS, options);
            assert_eq!((config.feedback_up, config.feedback_down), (Some(up), Some(down)), "{options}");
            assert_eq!(config.resolved().unwrap(), config, "{options}");
        }
    }

    #[test]
    fn refusals() {
        for (options, expected) in [
            ("outer = 'mean'", &["outer", "mean", "average", "slow-momentum", "nesterov", "sign"][..]),
            ("outer = 'average'; outer_momentum = 0.5", &["outer_momentum = 0.5", "no meaning", "average"]),
            ("outer = 'sign'; outer_momentum = 0.5", &["outer_momentum = 0.5", "no meaning", "sign"]),
            ("outer_betas = [0.9, 0.9]", &["outer_betas", "no meaning", "nesterov"]),
            ("outer = 'slow-momentum'; outer_decay = 0.1", &["outer_decay = 0.1", "no meaning", "slow-momentum"]),
            ("preset = 'dsm'; outer = 'nesterov'", &["preset = dsm", "outer"]),
            ("preset = 'paper'", &["preset = paper", "fedavg, slowmo, diloco, dsm, co2, streaming-diloco, sparseloco"]),
            ("outer_rate = 0.0", &["outer_rate = 0", "above 0"]),
            ("outer_momentum = 1.0", &["outer_momentum = 1", "below 1"]),
            ("outer = 'sign'; outer_betas = [0.5, 1.0]", &["outer_betas", "below 1"]),
            ("outer = 'sign'; outer_betas = [0.5, 0.6, 0.7]", &["outer_betas"]),
            ("outer = 'sign'; outer_decay = -1.0", &["outer_decay = -1", "at least 0"]),
            ("sync_every = 0", &["sync_every = 0", "at least 1"]),
            ("delay = 33", &["delay = 33", "at most sync_every = 32", "one mean at a time"]),
            ("preset = 'co2'; sync_every = 9; delay = 10", &["delay = 10", "at most sync_every = 9"]),
            (
                "delay = 2; sync = 'follow-lr'; learning_rate = {peak = 0.1}",
                &["delay = 2", "gaps that are all alike", "every"],
            ),
            ("parts = 5", &["parts = 5", "divides sync_every = 32"]),
            ("parts = 0", &["parts = 0", "divides sync_every = 32"]),
            ("parts = 8192; sync_every = 8192", &["parts = 8192", "at most 4096"]),
            ("parts = 4; delay = 9", &["delay = 9", "sync_every / parts = 8"]),
            ("parts = 2; weighted = true", &["parts = 2", "weighted"]),
            ("preset = 'streaming-diloco'; sync_every = 20", &["parts = 8", "divides sync_every = 20"]),
            (
                "parts = 2; sync = 'follow-lr'; learning_rate = {peak = 0.1}",
                &["parts = 2", "gaps that are all alike", "every"],
            ),
            ("mix = 0.5", &["mix = 0.5", "no meaning without delay"]),
            ("delay = 2; mix = 1.0", &["mix = 1", "below 1"]),
            ("delay = 32; mix = 0.5", &["mix = 0.5", "delay = sync_every = 32", "anchor"]),
            ("outer_penalty = 2.0", &["outer_penalty = 2", "no meaning", "nesterov"]),
            ("preset = 'co2'; outer_penalty = 0.0", &["outer_penalty = 0", "above 0"]),
            ("preset = 'slowmo'; outer_clip = 0.0", &["outer_clip = 0", "above 0"]),
            ("sync_longest = 8", &["sync_longest = 8", "no meaning", "every"]),
            ("sync = 'follow-lr'", &["sync", "follow-lr", "learning_rate"]),
            ("sync = 'follow-lr'; sync_every = 8; learning_rate = {peak = 0.1}", &["sync_every = 8", "follow-lr"]),
            ("sync = 'doubling'", &["sync", "doubling", "every or follow-lr"]),
            ("exact_codec = 'f32'", &["exact_codec", "f32"]),
        ] {
            assert_refused(THIS, options, expected);
        }
    }

    #[test]
    fn the_calendar_is_that_of_the_gap() {
        assert_eq!(calendar(THIS, "sync_every = 3", 8), "--c--c--");
        assert_eq!(calendar(THIS, "sync_every = 4; sync_start = 2", 9), "cc-c---c-");
        assert_eq!(calendar(THIS, "sync_every = 1", 3), "ccc");
        assert_eq!(calendar(THIS, "sync_every = 6; parts = 3; sync_start = 3", 10), "cccc-c-c-c");
        let parts = resolved(THIS, "sync_every = 6; parts = 3; sync_start = 3").decide().unwrap().algorithm;
        assert_eq!([0, 1, 2, 3, 5, 7, 9].map(|t| parts.part(t)), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn a_server_takes_no_late_means() {
        let served = |options: &str| resolved(THIS, options).decide().unwrap().algorithm.is_served();
        let refused = served("delay = 5").unwrap_err().to_string();
        assert!(refused.contains("delay = 5") && refused.contains("server"), "{refused}");
        served("delay = 0").unwrap();
        let refused = served("parts = 4").unwrap_err().to_string();
        assert!(refused.contains("parts = 4") && refused.contains("server"), "{refused}");
    }

    /// A sync every second step, over a step later, with half of the worker's own view kept: x after each step.
    #[test]
    fn late_steps_by_hand() {
        let gradients = [0.5, -2.0, 1e-3, 4.0, 0.3];
        let (mut hand, mut x, mut anchor, mut late) = (Hand::default(), 1.0, 1.0, None);
        let want = [0, 1, 2, 3, 4].map(|t| {
            hand.blend(gradients[t]);
            hand.square(gradients[t]);
            x = x * DECAY - hand.rate() * hand.m / hand.p();
            if let Some(delta) = late.take() {
                anchor -= 0.8 * delta;
                x = 0.5 * x + 0.5 * anchor;
            }
            late = (t % 2 == 1).then_some(anchor - x);
            x
        });
        let options = "sync_every = 2; delay = 1; mix = 0.5; outer = 'average'; outer_rate = 0.8";
        assert_near(&course(THIS, options, &gradients), &want);
    }

    /// Two steps and a sync, twice, at γ = 0.1: x after each step.
    #[test]
    fn steps_by_hand() {
        let gradients = [0.5, -2.0, 1e-3, 4.0];
        // Of the anchor and the momentum, what they become with Δ.
        type Rule = fn(f64, f64, f64) -> (f64, f64);
        let rules: [(&str, Rule); 4] = [
            ("outer = 'average'; outer_rate = 0.8", |a, b, d| (a - 0.8 * d, b)),
            ("outer = 'slow-momentum'", |a, b, d| (a - 0.1 * (0.5 * b + d / 0.1), 0.5 * b + d / 0.1)),
            ("outer = 'nesterov'", |a, b, d| (a - 0.7 * (d + 0.9 * (0.9 * b + d)), 0.9 * b + d)),
            ("outer = 'sign'", |a, b, d| {
                let sign = (0.95 * b + 0.05 * d / 0.1).signum();
                (a * (1.0 - 0.1 * 0.1) - 0.1 * sign, 0.98 * b + 0.02 * d / 0.1)
            }),
        ];
        for (options, rule) in rules {
            let (mut hand, mut x, mut anchor, mut momentum) = (Hand::default(), 1.0, 1.0, 0.0);
            let want = [0, 1, 2, 3].map(|t| {
                hand.blend(gradients[t]);
                hand.square(gradients[t]);
                x = x * DECAY - hand.rate() * hand.m / hand.p();
                if t % 2 == 1 {
                    (anchor, momentum) = rule(anchor, momentum, anchor - x);
                    x = anchor;
                }
                x
            });
            assert_near(&course(THIS, &format!("sync_every = 2; {options}"), &gradients), &want);
        }
    }
}
