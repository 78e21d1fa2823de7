//! The worker: what a user holds. A configuration, a group, and the state of one optimizer over one flat vector.

use crate::checkpoint::{self, Checkpoint, Manifest};
use crate::collective::{Collective, Jump, Traffic};
use crate::config::{Config, Name, NonFinite};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::gradient::{Gradient, Pieces};
use crate::hosts::Hosts;
use crate::kernel::reduce;
use crate::layout::Topology;
use crate::message::Operation;
use crate::optimizer::{Entry, Now, Optimizer, Share};
use crate::schedule::Round;
use crate::tiles::{Span, Vectors};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::ops::Range;
use std::path::Path;

/// Parameters that each round checks for being the same on all workers: at least this many, and a 32nd of them all.
const WINDOW: usize = 1 << 20;
const WINDOWS: usize = 32;

/// Words that each worker may choose for itself.
const OWN: [&str; 1] = ["threads"];

/// Words that may differ from one session to the next: no number of a healthy run depends on them. Of `hierarchy` it is the
/// hosts that count, and those may change like the number of workers.
const INDIFFERENT: [&str; 4] = ["threads", "bucket", "non_finite", "hierarchy"];

/// One of the workers that train a model together.
pub struct Worker {
    config: Config,
    /// As the means see them.
    hosts: Hosts,
    exchange: Exchange,
    optimizer: Box<dyn Optimizer>,
    step: u64,
    lr_scale: Vec<f64>,
    rates: Vec<f64>,
    /// An error leaves the workers in different places; only a checkpoint brings them back together.
    stopped: bool,
    regrouped: bool,
}

impl Worker {
    /// Joins `group` to train `params`, which must be the same on all workers.
    pub fn new(config: &Config, params: &[f32], group: Box<dyn Collective>) -> Result<Worker> {
        let mut worker = Worker::unmet(config, params, group)?;
        worker.exchange.agree_on(bytemuck::cast_slice(params));
        worker.guarded(Worker::meet)?;
        Ok(worker)
    }

    /// Joins `group` to go on from the checkpoint in `dir`, and writes its parameters to `params`.
    ///
    /// With as many workers as saved it, and where workers of a host add up first the same ones on each host, the run goes on bit
    /// for bit. Else the residues are conserved, and local progress is folded in. When anything is wrong, `params` is left as it
    /// was.
    pub fn resume(config: &Config, dir: &Path, params: &mut [f32], group: Box<dyn Collective>) -> Result<Worker> {
        let saved = Checkpoint::open(dir)?;
        if saved.manifest.parameters != params.len() {
            let problem = format!("it is of {} parameters, the model has {}", saved.manifest.parameters, params.len());
            return Err(Error::checkpoint(dir, problem));
        }
        let mut loaded = vec![0.0; params.len()];
        let mut worker = Worker::unmet(config, &loaded, group)?;
        // A word that there was not yet when it was saved stands at its default.
        let then = Config::from_json(&saved.manifest.config.to_string()).and_then(|config| config.resolved());
        let then = then.map_err(|error| Error::checkpoint(dir, format!("its configuration: {error}")))?;
        if let Some(problem) = worker.config.differs_from_saved(&then) {
            return Err(Error::checkpoint(dir, problem));
        }
        let (rank, hosts) = (worker.rank(), worker.hosts.clone());
        let regrouped = saved.read(rank, &hosts, &mut worker.entries(&mut loaded))?;
        if worker.step != saved.manifest.step {
            let problem = format!("it is of step {}, its files are of step {}", saved.manifest.step, worker.step);
            return Err(Error::checkpoint(dir, problem));
        }
        worker.optimizer.loaded(regrouped, &mut loaded, &worker.exchange.threads);
        worker.regrouped = regrouped;
        if regrouped {
            worker.exchange.regrouped();
            worker.exchange.agree_on(bytemuck::cast_slice(&loaded));
        }
        worker.guarded(Worker::meet)?;
        params.copy_from_slice(&loaded);
        Ok(worker)
    }

    fn unmet(config: &Config, params: &[f32], group: Box<dyn Collective>) -> Result<Worker> {
        let config = config.resolved()?;
        let hosts = config.hosts(&Hosts::new(&group.hosts()))?;
        let mut shape = config.shape(params.len(), group.size());
        let workers = group.served().unwrap_or(shape.workers);
        if group.served().is_some() {
            if shape.topology != Topology::Central {
                return Err(Error::config("topology", "sharded", "accepted with a server: central"));
            }
            shape.topology = Topology::Served;
        }
        let lr_scale = config.groups(params.len())?.lr_scale;
        let mut exchange = Exchange::new(shape, config.codings(shape, &hosts), group, config.threads()?);
        exchange.of_state = config.name != Name::EfficientAdam;
        Ok(Worker {
            exchange,
            hosts,
            optimizer: config.optimizer(params, workers)?,
            step: 0,
            rates: vec![0.0; lr_scale.len()],
            lr_scale,
            config,
            stopped: false,
            regrouped: false,
        })
    }

    /// Tells the others the configuration and the hosts, hears theirs, and refuses to go on if they differ.
    fn meet(&mut self) -> Result<()> {
        let mut ours = words(&self.config);
        if !self.hosts.is_flat() {
            ours["hosts"] = self.hosts.of_all().into();
        }
        let theirs = self.exchange.gather(Operation::Hello, self.step, ours.to_string().as_bytes())?;
        for (worker, theirs) in theirs.iter().enumerate() {
            let malformed = |error: serde_json::Error| Error::Malformed { worker, problem: error.to_string() };
            let theirs = serde_json::from_slice(theirs).map_err(malformed)?;
            if let Some((field, here, there)) = differences(&ours, &theirs, &OWN).into_iter().next() {
                return Err(Error::Disagreement { worker, field, there, me: self.rank(), here });
            }
        }
        Ok(())
    }

    /// One step at learning rate `lr`, which must be the same on all workers.
    pub fn step(&mut self, params: &mut [f32], grad: &[f32], lr: f32) -> Result<()> {
        self.step_on(params, Gradient::Whole(grad), lr, None)
    }

    /// One step in which every parameter group has a learning rate of its own, in place of `lr` times its `lr_scale`: for
    /// schedules that do not move the groups alike. The schedules of the rounds look at `lr`. All must be the same on all workers.
    pub fn step_with_rates(&mut self, params: &mut [f32], grad: &[f32], lr: f32, rates: &[f32]) -> Result<()> {
        self.step_on(params, Gradient::Whole(grad), lr, Some(rates))
    }

    /// One step with a gradient that may lie in pieces, and with rates of the groups' own if there are any.
    pub fn step_on(&mut self, params: &mut [f32], grad: Gradient<'_>, lr: f32, rates: Option<&[f32]>) -> Result<()> {
        self.check_step(params, grad.len(), &[lr])?;
        if let Some(rates) = rates {
            self.check_step(params, grad.len(), rates)?;
            let (expected, got) = (self.rates.len(), rates.len());
            if expected != got {
                let accepted = format!("accepted: one for each of the {expected} parameter groups");
                return Err(Error::config("rates", format!("{got} numbers"), accepted));
            }
        }
        self.guarded(|worker| {
            match rates {
                None => worker.set_rates(lr)?,
                Some(rates) => worker.rates.iter_mut().zip(rates).for_each(|(rate, given)| *rate = f64::from(*given)),
            }
            worker.take_step(params, grad, lr, rates.unwrap_or_default())
        })
    }

    fn set_rates(&mut self, lr: f32) -> Result<()> {
        for (rate, scale) in self.rates.iter_mut().zip(&self.lr_scale) {
            *rate = f64::from(lr) * scale;
            if !(*rate as f32).is_finite() {
                return Err(Error::config("lr", lr, format!("times lr_scale = {scale} is too large")));
            }
        }
        Ok(())
    }

    fn check_step(&self, params: &[f32], gradients: usize, rates: &[f32]) -> Result<()> {
        self.check_length("the parameters", params.len())?;
        self.check_length("the gradient", gradients)?;
        match rates.iter().find(|lr| !(lr.is_finite() && **lr >= 0.0)) {
            Some(lr) => Err(Error::config("lr", lr, "accepted: a finite number of at least 0")),
            None => Ok(()),
        }
    }

    /// The rates of the groups are in place. `given` are those that the others could not know from `lr`.
    fn take_step(&mut self, params: &mut [f32], grad: Gradient<'_>, lr: f32, given: &[f32]) -> Result<()> {
        // One pass over the gradient tells both, where both are asked for.
        let norm = self.config.clip.map(|_| grad.norm());
        // With others it looks for itself all the same: a mistake of the caller's would be theirs too.
        let vouched = grad.is_vouched_for() && self.exchange.is_alone();
        let contributes = norm.map_or_else(|| vouched || self.is_finite(grad), f64::is_finite);
        if !contributes {
            if !self.config.skips_non_finite() {
                return Err(Error::NotFinite { worker: self.rank(), step: self.step });
            }
            self.exchange.group.traffic.left_out += 1;
        }
        self.take_part(params, grad, lr, given, contributes, norm).map(|_| ())
    }

    /// One step of the others: this worker has no gradient, and hears what they come to. With a schedule that skips rounds it may
    /// be a step in which nothing is heard. So a worker that comes late, or was away, gets to where the others are.
    pub fn follow(&mut self, params: &mut [f32], lr: f32) -> Result<Round> {
        self.check_step(params, params.len(), &[lr])?;
        let mut nothing = Pieces::default();
        nothing.push_zeros(params.len());
        self.guarded(|worker| {
            worker.set_rates(lr)?;
            worker.take_part(params, Gradient::Pieces(&nothing), lr, &[], false, None)
        })
    }

    fn take_part(
        &mut self,
        params: &mut [f32],
        grad: Gradient<'_>,
        lr: f32,
        given: &[f32],
        contributes: bool,
        norm: Option<f64>,
    ) -> Result<Round> {
        self.exchange.agree_on(&lr.to_le_bytes());
        if !given.is_empty() {
            self.exchange.agree_on(bytemuck::cast_slice(given));
        }
        if self.optimizer.is_synced() {
            let window = window(params.len(), self.step);
            self.exchange.agree_on(bytemuck::cast_slice(&params[window]));
        }
        let now = Now { step: self.step, lr, rates: &self.rates, contributes, norm };
        let round = self.optimizer.step(&now, params, grad, &mut self.exchange)?;
        if round == Round::Skipped {
            self.exchange.group.traffic.rounds.count(round);
        }
        if let Some(parameter) = self.optimizer.take_jump() {
            let (traffic, step) = (&mut self.exchange.group.traffic, self.step);
            traffic.jumps += 1;
            traffic.first_jump.get_or_insert(Jump { step, parameter });
        }
        self.step += 1;
        Ok(round)
    }

    fn is_finite(&self, grad: Gradient<'_>) -> bool {
        let span = Span::of(0..grad.len(), Vectors { read: [], write: [] });
        let found = self.exchange.threads.walk(span, |tile, _| match grad.with(tile.range, reduce::all_finite) {
            true => Ok(()),
            false => Err(()),
        });
        found.is_ok()
    }

    /// Makes all replicas equal: before evaluation, before the parameters are exported, at the end of training.
    pub fn sync(&mut self, params: &mut [f32]) -> Result<()> {
        self.check_length("the parameters", params.len())?;
        self.guarded(|worker| {
            worker.rates.fill(0.0);
            let now = Now { step: worker.step, lr: 0.0, rates: &worker.rates, contributes: true, norm: None };
            worker.optimizer.sync(&now, params, &mut worker.exchange)
        })
    }

    /// Saves this worker's part of a checkpoint to `dir`; all workers must save at the same step.
    ///
    /// When one cannot, all return its error, the checkpoint that was there stays, and the run may go on.
    pub fn save(&mut self, dir: &Path, params: &[f32]) -> Result<()> {
        self.check_length("the parameters", params.len())?;
        if self.stopped {
            return Err(Error::Stopped); // what it holds is half a step, and must replace nothing
        }
        let (rank, hosts, step) = (self.rank(), self.hosts.clone(), self.step);
        let mut params = params.to_vec();
        let written = checkpoint::write(dir, step, rank, &hosts, &self.entries(&mut params));
        let files = self.compare_notes(dir, written)?;
        let manifest = Manifest {
            format: checkpoint::FORMAT.to_owned(),
            version: checkpoint::VERSION,
            step,
            parameters: params.len(),
            config: words(&self.config),
            files,
        };
        let named = checkpoint::write_manifest(dir, rank, &manifest);
        self.compare_notes(dir, named)?; // nobody removes an old file before everybody's manifest names the new ones
        checkpoint::remove_older(dir, rank, &manifest)
    }

    /// What every worker made of its part of a save; the first that failed is everyone's error.
    fn compare_notes<T>(&mut self, dir: &Path, mine: Result<T>) -> Result<Vec<T>>
    where
        T: Serialize + DeserializeOwned,
    {
        let note = serde_json::to_vec(&mine.map_err(|error| error.to_string())).expect("plain data");
        let step = self.step;
        let notes = self.guarded(|worker| worker.exchange.gather(Operation::Saved, step, &note))?;
        let read = |(worker, note): (usize, &Vec<u8>)| {
            let failed = |problem: String| Error::checkpoint(dir, format!("worker {worker}: {problem}"));
            let note = serde_json::from_slice::<Result<T, String>>(note);
            note.map_err(|error| failed(error.to_string()))?.map_err(failed)
        };
        notes.iter().enumerate().map(read).collect()
    }

    /// Everyone's `note`, in rank order: what a program has to tell its other workers, such as its loss. All workers must
    /// call it at the same step. It counts as control traffic, not as a round.
    pub fn gather(&mut self, note: &[u8]) -> Result<Vec<Vec<u8>>> {
        let step = self.step;
        self.guarded(|worker| worker.exchange.gather(Operation::Note, step, note))
    }

    /// Everything that makes the next step what it is.
    fn entries<'a>(&'a mut self, params: &'a mut [f32]) -> Vec<Entry<'a>> {
        let mut entries = vec![Entry::vector("params", Share::Same, params), Entry::word("step", &mut self.step)];
        entries.extend(self.optimizer.state());
        entries.extend(self.exchange.state());
        entries
    }

    /// The names and values of the state: m, v, residues and whatever else the optimizer keeps.
    pub fn state(&mut self) -> Vec<Entry<'_>> {
        let mut entries = self.optimizer.state();
        entries.extend(self.exchange.state());
        entries
    }

    /// As [`Worker::state`], with the number of steps taken: all there is to a worker beside its parameters.
    pub fn whole_state(&mut self) -> Vec<Entry<'_>> {
        let mut entries = vec![Entry::word("step", &mut self.step)];
        entries.extend(self.optimizer.state());
        entries.extend(self.exchange.state());
        entries
    }

    /// Goes on from a state that this rank of as many workers had, and `params` as they were then. `read` fills in every entry
    /// of [`Worker::whole_state`], or fails before it has written to any. All workers must restore together; those that come
    /// from different places find out here.
    ///
    /// For another number of workers there is [`Worker::resume`].
    pub fn restore(&mut self, params: &mut [f32], read: impl FnOnce(&mut [Entry<'_>]) -> Result<()>) -> Result<()> {
        self.check_length("the parameters", params.len())?;
        if self.stopped {
            return Err(Error::Stopped);
        }
        read(&mut self.whole_state())?;
        self.optimizer.loaded(false, params, &self.exchange.threads);
        self.guarded(Worker::meet)
    }

    /// What [`Worker::adopt`] reads: the steps taken and the optimizer's own state, without the residuals of error feedback.
    pub fn state_of_one(&mut self) -> Vec<Entry<'_>> {
        let mut entries = vec![Entry::word("step", &mut self.step)];
        entries.extend(self.optimizer.state());
        entries
    }

    /// Goes on from what one worker of a group of any size had, `params` included; every worker adopts the same one. `read` fills
    /// in every entry of [`Worker::state_of_one`], or fails before it has written to any.
    ///
    /// Moments and schedule are kept. Residuals start at zero, because those of the other workers are missing. Local steps since
    /// the last sync count as if all workers had taken them: `params` are then a·D − u/P, with that worker's u as the mean.
    pub fn adopt(&mut self, params: &mut [f32], read: impl FnOnce(&mut [Entry<'_>]) -> Result<()>) -> Result<()> {
        self.check_length("the parameters", params.len())?;
        if self.stopped {
            return Err(Error::Stopped);
        }
        read(&mut self.state_of_one())?;
        self.optimizer.loaded(true, params, &self.exchange.threads);
        self.exchange.start_anew();
        self.exchange.agree_on(bytemuck::cast_slice(params)); // workers that adopted different ones find out
        self.regrouped = true;
        self.guarded(Worker::meet)
    }

    /// Whether an error has ended this worker. It may have met it in the middle of a step, and its state is none to go on from.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether all replicas hold the same parameters now.
    pub fn is_synced(&self) -> bool {
        self.optimizer.is_synced()
    }

    /// From now on a gradient of this worker that is not finite is left out, as with `non_finite = "skip"`.
    pub fn skip_non_finite(&mut self) {
        self.config.non_finite = Some(NonFinite::Skip);
    }

    /// What this worker has sent and waited for.
    pub fn traffic(&self) -> Traffic {
        self.exchange.group.traffic
    }

    /// The configuration with every word that counts written out.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether it was resumed with other workers, or on other hosts, than it was saved with: then not bit for bit.
    pub fn regrouped(&self) -> bool {
        self.regrouped
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.step
    }

    pub fn rank(&self) -> usize {
        self.exchange.group.rank()
    }

    pub fn size(&self) -> usize {
        self.exchange.group.size()
    }

    fn check_length(&self, what: &'static str, got: usize) -> Result<()> {
        let expected = self.exchange.shape().values;
        if expected == got { Ok(()) } else { Err(Error::Length { what, expected, got }) }
    }

    /// Runs `work`; if it fails, tells the others why and does no more.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Worker) -> Result<T>) -> Result<T> {
        if self.stopped {
            return Err(Error::Stopped);
        }
        work(self).inspect_err(|error| {
            // Found before anything moved: who is alone may go on with a better gradient.
            self.stopped = !(matches!(error, Error::NotFinite { .. }) && self.exchange.is_alone());
            match error {
                // The others learn it from the transport.
                Error::Gone { .. } | Error::Timeout { .. } => {}
                // Passed on, for in the central form the others hear only worker 0.
                Error::NotFinite { worker, step } => {
                    self.exchange.abort(Operation::AbortNotFinite, *step, &(*worker as u32).to_le_bytes());
                }
                error => self.exchange.abort(Operation::Abort, self.step, error.to_string().as_bytes()),
            }
        })
    }
}

/// The parameters that step `t` checks.
fn window(len: usize, t: u64) -> Range<usize> {
    let size = len.div_ceil(WINDOWS).max(WINDOW).max(1);
    // Replicas are compared after syncs, whose steps may be multiples of a power of two: t itself would skip windows.
    let turn = t.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let start = (turn as usize % len.div_ceil(size).max(1)) * size;
    start.min(len)..(start + size).min(len)
}

impl Config {
    /// The word that keeps a run from going on here that was configured as `then`, both resolved: its value here and its value then.
    pub fn hinders(&self, then: &Config) -> Option<(String, String, String)> {
        differences(&words(self), &words(then), &INDIFFERENT).into_iter().next()
    }

    /// What keeps a run from going on here that was saved with the configuration `then`, both resolved, for people: all of it, since
    /// whoever gives one option as it was would hear of the next.
    pub fn differs_from_saved(&self, then: &Config) -> Option<String> {
        let all = differences(&words(self), &words(then), &INDIFFERENT);
        let shown = |(key, now, then): &(String, String, String)| {
            format!("{key} was {then} when it was saved, and is {now} now")
        };
        let shown = all.iter().map(shown).collect::<Vec<_>>().join("; ");
        (!all.is_empty()).then_some(shown)
    }
}

fn words(config: &Config) -> Value {
    serde_json::to_value(config).expect("a configuration is plain data")
}

/// The words, but for the `indifferent`, on which `ours` and `theirs` differ, and both values.
fn differences(ours: &Value, theirs: &Value, indifferent: &[&str]) -> Vec<(String, String, String)> {
    let empty = Map::new();
    let (ours, theirs) = (ours.as_object().unwrap_or(&empty), theirs.as_object().unwrap_or(&empty));
    let only_theirs = theirs.keys().filter(|key| !ours.contains_key(*key));
    let shown = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
    let keys = ours.keys().chain(only_theirs).map(String::as_str).filter(|key| !indifferent.contains(key));
    let differing = keys.filter(|key| ours.get(*key) != theirs.get(*key));
    let mut all: Vec<_> = differing.map(|key| (key.to_owned(), shown(ours.get(key)), shown(theirs.get(key)))).collect();
    // The name first: with another optimizer most of the other words differ too.
    all.sort_by_key(|(key, ..)| key != "name");
    all
}

#[cfg(test)]
mod tests {
    use super::{WINDOW, window};
    use std::collections::HashSet;

    /// A gap of 16 between syncs must not leave windows that are never looked at.
    #[test]
    fn every_window_has_its_turn_whatever_the_gap() {
        for (len, windows) in [(40 * WINDOW, 32), (4 * WINDOW, 4), (5, 1), (0, 1)] {
            for gap in [1, 2, 16, 32] {
                let seen = (0..20 * windows as u64).map(|round| window(len, round * gap).start).collect::<HashSet<_>>();
                assert_eq!(seen.len(), windows, "{len} values, gap {gap}");
            }
        }
    }
}
