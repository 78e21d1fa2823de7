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
//! v never changes between two syncs, and the anchor a is stored: after a sync all replicas are bit-identical. Γ and D are
//! kept for each parameter group. A group whose learning rate is 0 rests: Γ may then be 0 at a sync, and m stays.
//!
//! A sync that follows a sync, with no local step between them, is the most frequent step of many runs. It finds u = 0 and x = a, so
//! it touches neither u nor a: that is a third of its memory traffic.

use super::table::{Algorithm, Options, given, lengths, preset, renamed};
use super::{ENOUGH, Hyper, M, Moments, Momentum, Optimizer, SHORT, V, Vectors, X};
use crate::codec::CodecName;
use crate::config::{Config, Name, StepsOrWord};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::kernel::update::{self, Scalars, Since};
use crate::machine::{Lies, Machine, Pass, Read, Source, Step, Vector, Write};
use crate::schedule::{LearningRate, Round, SyncSteps, VarianceSteps};
use crate::state::{Entry, Share};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

impl Name {
    /// `zero-one-adam`
    pub const ZERO_ONE_ADAM: Name = Name::new("zero-one-adam");
}

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
    /// DeepSpeed's name for `freeze` and `sync_start`.
    pub var_freeze_step: Option<u64>,
    /// DeepSpeed's name for `kappa`.
    pub var_update_scaler: Option<u64>,
    /// DeepSpeed's name for `sync_every`, with `sync = "doubling"`.
    pub local_step_scaler: Option<u64>,
    /// DeepSpeed's name for `sync_longest`.
    pub local_step_clipper: Option<u64>,
}

/// How the gap between two syncs of 0/1 Adam grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

impl Options for ZeroOneAdam {
    const NAME: Name = Name::ZERO_ONE_ADAM;
    const TITLE: &'static str = "0/1 Adam";
    /// It has few exact rounds, and in f32 they would still be most of its bytes.
    const EXACT: Option<CodecName> = Some(CodecName::Bf16);
    const COARSE: Option<CodecName> = Some(CodecName::Sign);

    fn decide(mut self, config: &mut Config) -> Result<Box<dyn Algorithm>> {
        self.check_exclusions()?;
        self.translate_deepspeed()?;
        self.apply_preset(config)?;
        let schedule = config.learning_rate.as_ref();
        let is_short = lengths(schedule).1.is_some_and(|steps| steps <= SHORT);
        let usual = if schedule.is_some() { Sync::FollowLr } else { Sync::Every };
        let sync = *self.sync.get_or_insert(usual);
        self.check_sync(sync)?;
        let variance = self.decide_variance(schedule)?;
        let sync = self.decide_sync(sync, schedule)?;
        if is_short && variance == VarianceSteps::all_before(SHORT) {
            config.exact_codec.get_or_insert(CodecName::F32); // then it is Adam, to the bit
        }
        Ok(Box::new(Decided { variance, sync }))
    }
}

impl ZeroOneAdam {
    /// `variance_steps` leaves nothing to the options that describe T_v.
    fn check_exclusions(&self) -> Result<()> {
        let Some(steps) = &self.variance_steps else { return Ok(()) };
        let written = given(self);
        let others = [
            "variance_dense",
            "kappa",
            "variance_gap",
            "variance_longest",
            "freeze",
            "var_freeze_step",
            "var_update_scaler",
        ];
        match others.iter().find(|other| written.contains_key(**other)) {
            Some(other) => Err(Error::config(
                "variance_steps",
                format!("{steps:?}"),
                format!("excludes {other}; give one of the two"),
            )),
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
        let Some(preset) = preset(config, &["paper", "deepspeed"])? else { return Ok(()) };
        config.bias_correction.get_or_insert(false);
        let growing = self.variance_steps.is_none();
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

    /// Whether T_v is left to the defaults.
    fn leaves_variance_open(&self) -> bool {
        let ZeroOneAdam { variance_dense, kappa, variance_gap, variance_longest, freeze, .. } = self;
        [variance_dense, kappa, variance_gap, variance_longest].iter().all(|option| option.is_none())
            && freeze.is_none()
    }

    fn decide_variance(&self, schedule: Option<&LearningRate>) -> Result<VarianceSteps> {
        if let Some(steps) = &self.variance_steps {
            check_rising("variance_steps", steps)?;
            if steps.first() != Some(&0) {
                let expected = "expected a list that starts with 0: without a variance nothing moves";
                return Err(Error::config("variance_steps", format!("{steps:?}"), expected));
            }
            return Ok(VarianceSteps::Custom(steps.clone()));
        }
        let (warmup, steps) = lengths(schedule);
        let usual_longest = steps.filter(|_| self.kappa.is_none()).map(|steps| (steps / GAPS).max(1));
        if steps.is_some_and(|steps| steps <= SHORT) && self.leaves_variance_open() {
            return Ok(VarianceSteps::all_before(SHORT));
        }
        let starts_fast = steps.is_some() && warmup < ENOUGH;
        let usual_dense = if starts_fast && self.kappa.is_none() { ENOUGH } else { 0 };
        let usual_kappa = if steps.is_some() { PAPER_KAPPA } else { OPEN_KAPPA };
        let usual_freeze = steps.map_or(Freeze::Never, |steps| {
            let part = (steps as f64 * FREEZE_PART).ceil() as u64;
            Freeze::Step(part.max(ENOUGH).max(FREEZE_WARMUPS * warmup))
        });
        let freeze = match self.freeze.unwrap_or(usual_freeze) {
            Freeze::Step(0) => {
                let expected = "expected a step of at least 1, or \"never\": without a variance nothing moves";
                return Err(Error::config("freeze", 0, expected));
            }
            Freeze::Step(step) => Some(step),
            Freeze::Never => None,
        };
        Ok(VarianceSteps::Growing {
            dense: self.variance_dense.unwrap_or(usual_dense),
            kappa: count("kappa", self.kappa.unwrap_or(usual_kappa))?,
            gap: count("variance_gap", self.variance_gap.unwrap_or(1))?,
            longest: self.variance_longest.or(usual_longest).map(|gap| count("variance_longest", gap)).transpose()?,
            freeze,
        })
    }

    fn decide_sync(&self, sync: Sync, schedule: Option<&LearningRate>) -> Result<SyncSteps> {
        let start = self.sync_start.unwrap_or(lengths(schedule).0);
        let every = |usual| count("sync_every", self.sync_every.unwrap_or(usual));
        let longest = |usual| count("sync_longest", self.sync_longest.unwrap_or(usual));
        match sync {
            Sync::FollowLr => {
                let missing = "expected follow-lr together with learning_rate, or doubling, every, custom";
                let peak = schedule.ok_or_else(|| Error::config("sync", "follow-lr", missing))?.peak;
                let usual = lengths(schedule).1.map_or(LONGEST_GAP, |steps| (steps / SYNC_GAPS).clamp(1, LONGEST_GAP));
                Ok(SyncSteps::FollowLr { peak, start, longest: longest(usual)? })
            }
            Sync::Doubling => Ok(SyncSteps::Doubling { start, every: every(32_678)?, longest: longest(LONGEST_GAP)? }),
            Sync::Every => Ok(SyncSteps::Every { start, gap: every(1)? }),
            Sync::Custom => {
                let missing = "expected custom together with sync_steps, the list of the steps that sync";
                let steps = self.sync_steps.as_ref().ok_or_else(|| Error::config("sync", "custom", missing))?;
                check_rising("sync_steps", steps)?;
                Ok(SyncSteps::Custom(steps.clone()))
            }
        }
    }
}

fn count(key: &str, value: u64) -> Result<u64> {
    match (1..1 << 32).contains(&value) {
        true => Ok(value),
        false => Err(Error::config(key, value, "expected a number of at least 1 and below 2^32")),
    }
}

fn check_rising(key: &str, steps: &[u64]) -> Result<()> {
    match steps.is_sorted_by(|a, b| a < b) {
        true => Ok(()),
        false => Err(Error::config(key, format!("{steps:?}"), "expected steps in rising order, each once")),
    }
}

/// T_v and T_u.
#[derive(Clone, Debug)]
struct Decided {
    variance: VarianceSteps,
    sync: SyncSteps,
}

impl Decided {
    /// Exact on T_v; coarse on T_u and before each step of T_v, so that v never changes between two syncs; skipped elsewhere.
    fn round_of(&self, t: u64, lr: f32) -> Round {
        match () {
            () if self.variance.contains(t) => Round::Exact,
            () if self.sync.contains(t, lr) || self.variance.contains(t + 1) => Round::Coarse,
            () => Round::Skipped,
        }
    }
}

impl Algorithm for Decided {
    fn options(&self) -> Map<String, Value> {
        let mut options = ZeroOneAdam::default();
        match &self.variance {
            VarianceSteps::Custom(steps) => options.variance_steps = Some(steps.clone()),
            VarianceSteps::Growing { dense, kappa, gap, longest, freeze } => {
                options.variance_dense = Some(*dense);
                (options.kappa, options.variance_gap, options.variance_longest) = (Some(*kappa), Some(*gap), *longest);
                options.freeze = Some(freeze.map_or(Freeze::Never, Freeze::Step));
            }
        }
        match &self.sync {
            SyncSteps::FollowLr { start, longest, .. } => {
                options.sync = Some(Sync::FollowLr);
                (options.sync_start, options.sync_longest) = (Some(*start), Some(*longest));
            }
            SyncSteps::Doubling { start, every, longest } => {
                options.sync = Some(Sync::Doubling);
                (options.sync_start, options.sync_every, options.sync_longest) =
                    (Some(*start), Some(*every), Some(*longest));
            }
            SyncSteps::Every { start, gap } => {
                options.sync = Some(Sync::Every);
                (options.sync_start, options.sync_every) = (Some(*start), Some(*gap));
            }
            SyncSteps::Custom(steps) => {
                (options.sync, options.sync_steps) = (Some(Sync::Custom), Some(steps.clone()));
            }
        }
        given(&options)
    }

    fn vectors(&self) -> Vectors {
        &[("m", Share::Same), ("v", Share::Same), ("u", Share::Progress), ("anchor", Share::Same)]
    }

    fn passes(&self) -> &'static [&'static str] {
        const {
            &[
                Moments::PASSES[0],
                Moments::PASSES[1],
                Moments::PASSES[2],
                Anchor::NAME,
                Local::NAME,
                Progress::NAME,
                FirstProgress::NAME,
                Unsent::NAME,
                Rebase::NAME,
                FirstRebase::NAME,
                FoldIn::NAME,
            ]
        }
    }

    fn round(&self, t: u64, lr: f32) -> Round {
        self.round_of(t, lr)
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

    fn build(&self, hyper: Hyper, groups: usize) -> Box<dyn Optimizer> {
        Box::new(Running {
            hyper,
            calendar: self.clone(),
            moments: Moments::default(),
            rates: vec![0.0; groups],
            decays: vec![1.0; groups],
            pending: 0,
            taken: 0,
        })
    }
}

/// u: Σ γ̂·m since the last sync.
const U: Vector = Vector::own(2);
/// a: the parameters at the last sync that a local step followed.
const A: Vector = Vector::own(3);

/// a ← x
struct Anchor;

impl Pass for Anchor {
    const NAME: &'static str = "anchor";
    const READS: &'static [Vector] = &[X];
    const WRITES: &'static [Vector] = &[A];

    fn run(_: &Scalars, _: &[f32], [x, ..]: Read<'_>, [a, ..]: Write<'_>) -> Option<usize> {
        update::copy(x, a);
        None
    }
}

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

struct Running {
    hyper: Hyper,
    calendar: Decided,
    moments: Moments,
    /// Γ of each group: Σγ̂ since the last sync.
    rates: Vec<f64>,
    /// D of each group: Π(1−γλ) since the last sync.
    decays: Vec<f64>,
    /// Steps since the last sync.
    pending: u64,
    /// Those of them that this worker took part in: whether it has anything to tell.
    taken: u64,
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
            machine.run(Anchor, step)?;
        }
        if step.contributes {
            machine.run(Local, step)?;
        }
        Ok(())
    }

    /// Γ ← Γ + γ̂,  D ← D·(1−γλ): on all workers alike, whoever is left out.
    fn advance(&mut self, step: &mut Step<'_>) {
        self.moments.prepare(&mut self.hyper, step);
        self.pending += 1;
        self.taken += u64::from(step.contributes);
        for (group, k) in step.scalars.iter().enumerate() {
            self.rates[group] += f64::from(k.rate);
            self.decays[group] *= f64::from(k.decay);
        }
    }

    /// ū = coarse mean of u, with this step's part of it if there is a gradient; then everything starts from ū.
    fn sync_step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        self.say_since(step);
        let first = self.pending == 1 && step.gradient.is_some(); // no local step since the last sync: u = 0 and x = a
        let has_gradient = step.gradient.is_some() && step.contributes;
        // A worker that is left out at this step may still have the steps before it to tell.
        step.contributes = self.taken > 0;
        match (first, has_gradient) {
            (true, true) => exchange.mean(Round::Coarse, step, FirstProgress, FirstRebase)?,
            (true, false) => exchange.mean(Round::Coarse, step, Unsent, FirstRebase)?,
            (false, true) => exchange.mean(Round::Coarse, step, Progress, Rebase)?,
            (false, false) => exchange.mean(Round::Coarse, step, Unsent, Rebase)?,
        };
        self.start_interval();
        Ok(())
    }

    fn say_since(&self, step: &mut Step<'_>) {
        for (group, k) in step.scalars.iter_mut().enumerate() {
            k.since = Since { rates: self.rates[group] as f32, decays: self.decays[group] as f32 };
        }
    }

    fn start_interval(&mut self) {
        self.rates.fill(0.0);
        self.decays.fill(1.0);
        self.pending = 0;
        self.taken = 0;
    }
}

impl Optimizer for Running {
    fn step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<Round> {
        let round = self.calendar.round_of(step.t, step.lr);
        match round {
            Round::Exact => self.exact_step(step, exchange)?,
            Round::Skipped => self.local_step(step, &mut exchange.machine)?,
            Round::Coarse => {
                self.advance(step);
                self.sync_step(step, exchange)?;
            }
        }
        Ok(round)
    }

    fn sync(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<()> {
        if self.is_synced() {
            return Ok(());
        }
        self.moments.prepare(&mut self.hyper, step);
        self.sync_step(step, exchange)
    }

    fn is_synced(&self) -> bool {
        self.pending == 0
    }

    fn numbers(&mut self) -> Vec<Entry<'_>> {
        let mut numbers = self.moments.numbers();
        numbers.push(Entry::doubles("rates_since_sync", Share::Same, &mut self.rates));
        numbers.push(Entry::doubles("decays_since_sync", Share::Same, &mut self.decays).starting_at(1.0));
        numbers.push(Entry::word("steps_since_sync", &mut self.pending));
        numbers.push(Entry::word("steps_taken_since_sync", &mut self.taken));
        numbers
    }

    fn loaded(&mut self, regrouped: bool, step: &mut Step<'_>, machine: &mut Machine) -> Result<()> {
        if regrouped && !self.is_synced() {
            self.moments.prepare(&mut self.hyper, step);
            self.say_since(step);
            machine.run(FoldIn, step)?;
            self.start_interval();
        }
        Ok(())
    }
}
