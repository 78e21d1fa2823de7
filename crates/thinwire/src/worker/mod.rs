//! The worker: what a user holds. A configuration, a group, and the state of one optimizer over one flat vector.

mod agree;
mod save;
mod state;
mod step;

use crate::checkpoint::Checkpoint;
use crate::config::{Config, NonFinite};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::exchange::header::Operation;
use crate::exchange::hosts::Hosts;
use crate::exchange::layout::Topology;
use crate::guard::Norms;
use crate::kernel::reduce;
use crate::kernel::update::Scalars;
use crate::machine::{Device, Groups};
use crate::optim::{Averages, Optimizer};
use crate::settings::Settings;
use crate::transport::{Collective, Traffic};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// One of the workers that train a model together.
pub struct Worker {
    settings: Settings,
    /// The settings as they are recorded.
    config: Config,
    /// As the means see them.
    hosts: Hosts,
    exchange: Exchange,
    optimizer: Box<dyn Optimizer>,
    step: u64,
    groups: Arc<Groups>,
    /// γ of each group in the step at hand.
    rates: Vec<f64>,
    /// Room for those of the step at hand.
    scalars: Vec<Scalars>,
    /// An error leaves the workers in different places; only a checkpoint brings them back together.
    stopped: bool,
    regrouped: bool,
    /// Of the gradients seen last.
    norms: Norms,
    /// Whether all parameters were finite when it joined.
    starts_finite: bool,
    /// How much its next step counts for.
    weight: u32,
    /// What its steps since the last round count for together.
    weight_since_round: f64,
}

impl Worker {
    /// Joins `group` to train `params`, which must be the same on all workers.
    pub fn new(config: &Config, params: &[f32], group: Box<dyn Collective>) -> Result<Worker> {
        let mut worker = Worker::unmet(config, params.len(), None, group)?;
        worker.starts_finite = worker.exchange.machine.are_finite(0..params.len(), params)?;
        worker.guarded(|worker| worker.agree_on_params(0..params.len(), params))?;
        worker.guarded(Worker::meet)?;
        Ok(worker)
    }

    /// Joins `group` to train the parameters on a `device`, which must be the same on all workers.
    ///
    /// Parameters and gradients stay on the device: whoever holds it puts the gradient of a step there first, and gives empty slices
    /// to [`Worker::step`], [`Worker::sync`] and [`Worker::save`]. A device that lacks one of the optimizer's passes or codecs is refused.
    pub fn on_device(config: &Config, device: Box<dyn Device>, group: Box<dyn Collective>) -> Result<Worker> {
        let len = device.len();
        let mut worker = Worker::unmet(config, len, Some(device), group)?;
        worker.guarded(|worker| {
            worker.starts_finite = worker.exchange.machine.are_finite(0..len, &[])?;
            worker.agree_on_params(0..len, &[])
        })?;
        worker.guarded(Worker::meet)?;
        Ok(worker)
    }

    /// Joins `group` to go on from the checkpoint in `dir`, and writes its parameters to `params`.
    ///
    /// A run resumes bit for bit if the number of workers and their hosts are unchanged. Otherwise the residuals are conserved, and local
    /// progress is folded in. After an error `params` is unchanged.
    pub fn resume(config: &Config, dir: &Path, params: &mut [f32], group: Box<dyn Collective>) -> Result<Worker> {
        let saved = open(dir, params.len())?;
        let worker = Worker::unmet(config, params.len(), None, group)?;
        worker.resumed(dir, &saved, params)
    }

    /// The same on a `device`, which gets the parameters. After an error it may have them already.
    pub fn resume_on_device(
        config: &Config,
        dir: &Path,
        device: Box<dyn Device>,
        group: Box<dyn Collective>,
    ) -> Result<Worker> {
        let len = device.len();
        let saved = open(dir, len)?;
        let worker = Worker::unmet(config, len, Some(device), group)?;
        worker.resumed(dir, &saved, &mut [])
    }

    fn resumed(mut self, dir: &Path, saved: &Checkpoint, params: &mut [f32]) -> Result<Worker> {
        let mut loaded = vec![0.0; saved.manifest.parameters];
        // Options added since the checkpoint was written take their defaults.
        let then = Config::from_json(&saved.manifest.config.to_string()).and_then(|config| config.resolved());
        let then = then.map_err(|error| Error::checkpoint(dir, format!("its configuration: {error}")))?;
        if let Some(problem) = self.config.differs_from_saved(&then) {
            return Err(Error::checkpoint(dir, problem));
        }
        let (rank, hosts) = (self.rank(), self.hosts.clone());
        let regrouped = saved.read(rank, &hosts, &mut self.entries(&mut loaded)?)?;
        if self.step != saved.manifest.step {
            let problem = format!("step: expected {}, found {} in its files", saved.manifest.step, self.step);
            return Err(Error::checkpoint(dir, problem));
        }
        self.exchange.machine.give_params(&loaded)?;
        self.starts_finite = reduce::all_finite(&loaded);
        self.loaded(regrouped, &mut loaded)?;
        self.regrouped = regrouped;
        if regrouped {
            self.exchange.regrouped()?;
            self.agree_on_params(0..loaded.len(), &loaded)?;
        }
        self.guarded(Worker::meet)?;
        params.copy_from_slice(&loaded[..params.len()]); // on a device the caller has none
        Ok(self)
    }

    fn unmet(
        config: &Config,
        len: usize,
        device: Option<Box<dyn Device>>,
        group: Box<dyn Collective>,
    ) -> Result<Worker> {
        let settings = config.decide()?;
        let hosts = settings.hosts(&Hosts::new(&group.hosts()))?;
        let mut shape = settings.shape(len, group.size());
        let workers = group.served().unwrap_or(shape.workers);
        if group.served().is_some() {
            settings.check_served()?;
            if shape.topology != Topology::Central {
                return Err(Error::config("topology", "sharded", "expected central with a server"));
            }
            shape.topology = Topology::Served;
        }
        let groups = Arc::new(settings.groups(len)?);
        let machine = match device {
            None => settings.host(len, groups.clone())?,
            Some(device) => settings.resident(device, groups.clone(), hosts.is_flat())?,
        };
        let mut exchange = Exchange::new(shape, settings.codings(shape, &hosts), group, machine)?;
        settings.algorithm.fits(len, exchange.shards.is_whole())?;
        let optimizer = settings.optimizer(workers, len, groups.count());
        exchange.of_state = settings.algorithm.averages() == Averages::State;
        exchange.weighted = settings.weighted;
        Ok(Worker {
            exchange,
            hosts,
            optimizer,
            step: 0,
            rates: vec![0.0; groups.count()],
            scalars: Vec::with_capacity(groups.count()),
            groups,
            config: settings.config(),
            settings,
            stopped: false,
            regrouped: false,
            norms: Norms::default(),
            starts_finite: true,
            weight: 1,
            weight_since_round: 0.0,
        })
    }

    /// Adds a digest of these parameters to what all workers must have in common.
    fn agree_on_params(&mut self, range: Range<usize>, params: &[f32]) -> Result<()> {
        if !self.exchange.is_alone() {
            let digest = self.exchange.machine.digest(range, params)?;
            self.exchange.agree_on(&digest.to_le_bytes());
        }
        Ok(())
    }

    /// Everyone's `note`, in rank order: what a program has to tell its other workers, such as its loss. All workers must
    /// call it at the same step. It counts as control traffic, not as a round.
    pub fn gather(&mut self, note: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.arrive()?;
        let step = self.step;
        self.guarded(|worker| worker.exchange.gather(Operation::Note, step, note))
    }

    /// Every shard's `note`, in their order, where this worker's replica is held in shards ([`Sharded`](crate::Sharded)); else this one
    /// alone. All shards must call it at the same step.
    pub fn gather_inside(&mut self, note: &[u8]) -> Result<Vec<Vec<u8>>> {
        let step = self.step;
        self.guarded(|worker| worker.exchange.shards.gather(step, note))
    }

    /// The number of this worker's shard, and how many hold its replica: 0 and 1 if that is in one piece.
    pub fn shard(&self) -> (usize, usize) {
        (self.exchange.shards.rank(), self.exchange.shards.size())
    }

    /// Whether an error has ended this worker. It may have met it in the middle of a step, and its state is none to go on from.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether all replicas hold the same parameters now.
    pub fn is_synced(&self) -> bool {
        self.optimizer.is_synced()
    }

    /// From now on a step of this worker counts for so much in every mean, such as its number of examples or tokens; 1 at first. With
    /// the option `weighted` means are Σw·x/Σw. A round after several steps counts for all of them; a step that counts for 0 takes no part.
    ///
    /// What all workers count for in one round must be less than 2³²: with a round every H steps, H times their weights. Shards of one
    /// replica count alike.
    pub fn set_weight(&mut self, weight: u32) -> Result<()> {
        if weight != 1 && !self.settings.weighted {
            return Err(Error::config(
                "weight",
                weight,
                "expected 1, or weighted = true in the options of all workers",
            ));
        }
        self.weight = weight;
        Ok(())
    }

    /// The model that all workers have in common now, if that is not the parameters and the optimizer keeps it: local Adam's anchor
    /// between two syncs. To look at it takes no round, where 0/1 Adam needs [`Worker::sync`] first.
    pub fn anchor(&mut self) -> Result<Option<Vec<f32>>> {
        let kept = self.optimizer.anchor();
        kept.map(|vector| self.exchange.machine.copy_of(vector)).transpose()
    }

    /// From now on a gradient of this worker that is not finite is left out, as with `non_finite = "skip"`.
    pub fn skip_non_finite(&mut self) {
        self.settings.non_finite = NonFinite::Skip;
        self.config.non_finite = Some(NonFinite::Skip);
    }

    /// What this worker has sent and waited for.
    pub fn traffic(&self) -> Traffic {
        self.exchange.group.traffic
    }

    /// The configuration with every option that counts written out.
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

    /// The number of this worker, from 0.
    pub fn rank(&self) -> usize {
        self.exchange.group.rank()
    }

    /// How many workers there are.
    pub fn size(&self) -> usize {
        self.exchange.group.size()
    }

    /// On a device the caller has neither parameters nor gradient.
    fn check_length(&self, what: &'static str, got: usize) -> Result<()> {
        let expected = if self.exchange.machine.is_device() { 0 } else { self.exchange.shape().values };
        if expected == got { Ok(()) } else { Err(Error::Length { what, expected, got }) }
    }

    /// Runs `work`; if it fails, tells the others why and does no more.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Worker) -> Result<T>) -> Result<T> {
        if self.stopped {
            return Err(Error::Stopped);
        }
        work(self).inspect_err(|error| {
            // Found before anything moved: who is alone may go on with a better gradient.
            let not_finite = matches!(error, Error::NotFinite { .. });
            self.stopped = !(not_finite && self.exchange.is_alone());
            if !not_finite {
                // Of a bad gradient they all know; of what this worker met across replicas they do not.
                self.exchange.shards.abort(self.step, &error.to_string());
            }
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

/// The checkpoint in `dir`, which must be of `len` parameters.
fn open(dir: &Path, len: usize) -> Result<Checkpoint> {
    let saved = Checkpoint::open(dir)?;
    if saved.manifest.parameters != len {
        let problem = format!("it is of {} parameters, the model has {len}", saved.manifest.parameters);
        return Err(Error::checkpoint(dir, problem));
    }
    Ok(saved)
}
