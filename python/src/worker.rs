//! The engine's worker as Python's.

use crate::bridge::{Borrowed, pieces, readable, writeable};
use crate::config::{from_python, to_python};
use crate::device::Machine;
use crate::error;
use crate::group::{Group, solo};
use crate::plan::plan;
use crate::state::{Value, fill};
use crate::wire::Failure;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use thinwire::inside::machine::Groups;
use thinwire::inside::state::{Entry, Field, Kind, Share, Slot};
use thinwire::{Collective, Config, Error, Gradient, LearningRate};

/// An entry of a state: its name, its type ("f4", "f8", or "word") and its length.
type Described = (String, &'static str, usize);

/// The same, and whether a state of an older version may lack it.
type Expected = (Described, bool);

/// Until its parameters are known a worker has not met the others.
enum Stage {
    Waiting(Box<dyn Collective>),
    Met(Box<thinwire::Worker>),
    /// It could not meet them.
    Failed,
}

/// One of the workers that train a model together, on flat float32 vectors.
///
/// Parameters
/// ----------
/// name : str
///     "adam", "one-bit-adam", "zero-one-adam", "efficient-adam", "local-adam", "lion", "birder" or
///     "one-bit-lamb".
/// parameters : int or array
///     The parameters to start from, the same on all workers; or only how many, and the first step brings them.
/// group : Group, optional
///     This worker's end of a group; alone without one.
/// device : thinwire.device.machine.Machine, optional
///     A device that holds parameters, gradient and state. Then `parameters` is how many, and steps are taken by `_step_on_device`.
/// **config
///     The engine's words: betas, eps, weight_decay, codec, sync_every, learning_rate, groups and so on.
#[pyclass(frozen, subclass, module = "thinwire._thinwire")]
pub struct Worker {
    stage: Mutex<Stage>,
    /// As the caller wrote it.
    given: Config,
    /// With every word that counts written out.
    config: Config,
    parameters: usize,
    rank: usize,
    hosts: Vec<usize>,
    failure: Failure,
    /// What its first step counts for.
    first_weight: AtomicU32,
    /// Where parameters, gradient and state are, if not in the host's memory.
    device: Option<Py<PyAny>>,
}

#[pymethods]
impl Worker {
    #[new]
    #[pyo3(signature = (name, *, parameters, group = None, device = None, **config))]
    fn new(
        py: Python<'_>,
        name: &str,
        parameters: &Bound<'_, PyAny>,
        group: Option<&Bound<'_, Group>>,
        device: Option<Py<PyAny>>,
        config: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Worker> {
        let words = config.unwrap_or_else(|| PyDict::new(py));
        words.set_item("name", name)?;
        let given = from_python(&words)?;
        let config = given.resolved().map_err(error::to_python)?;
        let start = match parameters.cast::<PyInt>() {
            Ok(_) => None,
            Err(_) => Some(readable::<f32>(parameters, "parameters")?),
        };
        let count = match &start {
            Some(start) => start.slice::<f32>().len(),
            None => parameters.extract()?,
        };
        // What does not fit is said here, and not at the first step.
        Groups::new(&config.groups, count, 0.0).map_err(error::to_python)?;
        let alone = Bound::new(py, solo())?;
        let group = group.unwrap_or(&alone).get();
        let worker = Worker {
            stage: Mutex::new(Stage::Waiting(group.take()?)),
            given,
            config,
            parameters: count,
            rank: group.rank(),
            hosts: group.hosts.clone(),
            failure: group.failure.clone(),
            first_weight: AtomicU32::new(1),
            device,
        };
        if let Some(start) = start {
            worker.with(py, Some(&start), |_| Ok(()))?;
        }
        Ok(worker)
    }

    /// One step, in place on `params`, at learning rate `lr`; the same `lr` on all workers.
    ///
    /// Parameters
    /// ----------
    /// params, grad : array of float32
    ///     Contiguous, as long as the worker was built for. `params` is written to.
    /// lr : float
    ///     The learning rate.
    /// rates : sequence of float, optional
    ///     The rate of each parameter group, in place of `lr` times its `lr_scale`.
    #[pyo3(signature = (params, grad, lr, rates = None))]
    fn step(
        &self,
        py: Python<'_>,
        params: &Bound<'_, PyAny>,
        grad: &Bound<'_, PyAny>,
        lr: f32,
        rates: Option<Vec<f32>>,
    ) -> PyResult<()> {
        let (mut params, grad) = (writeable::<f32>(params, "params")?, readable::<f32>(grad, "grad")?);
        params.apart_from(&grad)?;
        let start = self.check_length("params", &params)?;
        self.check_length("grad", &grad)?;
        self.meet(py, start)?;
        self.with(py, None, |worker| match &rates {
            None => worker.step(params.slice_mut(), grad.slice(), lr),
            Some(rates) => worker.step_with_rates(params.slice_mut(), grad.slice(), lr, rates),
        })?;
        Ok(())
    }

    /// One step with the gradient of each tensor where it lies, for `_flat.py`: addresses, None where there is none, and lengths.
    /// `finite`: the caller has seen that all are, and a worker that is alone need not look again.
    #[allow(clippy::too_many_arguments)] // Python's call, all by position
    fn _step_in_pieces(
        &self,
        py: Python<'_>,
        params: &Bound<'_, PyAny>,
        lengths: Vec<usize>,
        addresses: Vec<Option<usize>>,
        lr: f32,
        rates: Option<Vec<f32>>,
        finite: bool,
    ) -> PyResult<()> {
        let mut params = writeable::<f32>(params, "params")?;
        let mut pieces = pieces(&addresses, &lengths, &params)?;
        if finite {
            pieces.vouch();
        }
        let start = self.check_length("params", &params)?;
        self.meet(py, start)?;
        self.with(py, None, |worker| {
            worker.step_on(params.slice_mut(), Gradient::Pieces(&pieces), lr, rates.as_deref())
        })?;
        Ok(())
    }

    /// Meets the others, with the parameters that are on the device.
    fn _meet_on_device(&self, py: Python<'_>) -> PyResult<()> {
        self.meet(py, None)
    }

    /// One step with the parameters and the gradient that are on the device.
    fn _step_on_device(&self, py: Python<'_>, lr: f32, rates: Option<Vec<f32>>) -> PyResult<()> {
        self.meet(py, None)?;
        self.with(py, None, |worker| worker.step_on(&mut [], Gradient::Whole(&[]), lr, rates.as_deref()))?;
        Ok(())
    }

    /// Makes all replicas equal: before evaluation, before the parameters are exported, at the end of training.
    fn sync(&self, py: Python<'_>, params: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut params = self.params(params)?;
        self.meet(py, params.as_ref())?;
        self.with(py, None, |worker| worker.sync(slice_mut(&mut params)))
    }

    /// Writes the model that all workers have in common to `params`, if the optimizer keeps one beside the parameters: local Adam, between
    /// two syncs. Says whether it did.
    fn _anchor(&self, py: Python<'_>, params: &Bound<'_, PyAny>) -> PyResult<bool> {
        let mut params = writeable::<f32>(params, "params")?;
        self.check_length("params", &params)?;
        let anchor = self.with(py, None, |worker| worker.anchor())?;
        if let Some(anchor) = &anchor {
            params.slice_mut().copy_from_slice(anchor);
        }
        Ok(anchor.is_some())
    }

    /// From now on a step counts for so much in every mean, such as its number of examples or tokens; 1 at first. With weighted=True.
    fn set_weight(&self, py: Python<'_>, weight: u32) -> PyResult<()> {
        if weight != 1 && self.config.weighted != Some(true) {
            let problem = "expected 1, or weighted = true in the options of all workers";
            return Err(PyValueError::new_err(format!("invalid weight = {weight}: {problem}")));
        }
        if matches!(*self.lock()?, Stage::Waiting(_)) {
            self.first_weight.store(weight, Ordering::Relaxed); // until it has met the others
            return Ok(());
        }
        self.with(py, None, |worker| worker.set_weight(weight))
    }

    /// Saves a checkpoint to a folder that all workers can read; all workers at the same step.
    fn save(&self, py: Python<'_>, dir: PathBuf, params: &Bound<'_, PyAny>) -> PyResult<()> {
        let params = match self.device {
            Some(_) => None,
            None => Some(readable::<f32>(params, "params")?),
        };
        params.as_ref().map(|params| self.check_length("params", params)).transpose()?;
        self.meet(py, params.as_ref())?;
        self.with(py, None, |worker| worker.save(&dir, params.as_ref().map_or(&[], Borrowed::slice)))
    }

    /// Goes on from a checkpoint, also of another number of workers, and writes its parameters to `params`. Before the first step.
    fn resume(&self, py: Python<'_>, dir: PathBuf, params: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut params = self.params(params)?;
        let device = self.engines_device(py)?;
        let mut stage = self.lock()?;
        if !matches!(*stage, Stage::Waiting(_)) {
            return Err(PyRuntimeError::new_err("a checkpoint is resumed by a worker that has not met the others yet"));
        }
        let Stage::Waiting(group) = std::mem::replace(&mut *stage, Stage::Failed) else { unreachable!("just seen") };
        let slice = slice_mut(&mut params);
        let worker = py.detach(|| match device {
            Some(device) => thinwire::Worker::resume_on_device(&self.config, &dir, Box::new(device), group),
            None => thinwire::Worker::resume(&self.config, &dir, slice, group),
        });
        let mut worker = worker.map_err(|error| self.explain(error))?;
        worker.set_weight(self.first_weight.load(Ordering::Relaxed)).map_err(error::to_python)?;
        *stage = Stage::Met(Box::new(worker));
        Ok(())
    }

    /// Everyone's `note`, in rank order.
    fn gather(&self, py: Python<'_>, note: Vec<u8>) -> PyResult<Vec<Vec<u8>>> {
        self.with(py, None, |worker| worker.gather(&note))
    }

    /// Every shard's `note`, in their order; this one alone where the replica is in one piece.
    fn gather_inside(&self, py: Python<'_>, note: Vec<u8>) -> PyResult<Vec<Vec<u8>>> {
        self.with(py, None, |worker| worker.gather_inside(&note))
    }

    /// How workers share each entry of the state, by name: "same", "own", "progress" for its own local steps, or "cut" and where this worker's part starts.
    fn _state_shares(&self, py: Python<'_>) -> PyResult<Vec<(String, &'static str, usize)>> {
        self.with(py, None, |worker| {
            let described = |field: Field| {
                let (how, start) = match field.share {
                    Share::Same => ("same", 0),
                    Share::Mean | Share::Residual => ("own", 0),
                    Share::Progress => ("progress", 0),
                    Share::Cut(range) => ("cut", range.start),
                    _ => unreachable!("the engine has no other"),
                };
                (field.name.to_owned(), how, start)
            };
            Ok(worker.fields().into_iter().map(described).collect())
        })
    }

    /// Whether workers have parameters of their own between two rounds, whose mean another number of workers goes on from.
    #[getter]
    fn _has_own_params(&self) -> PyResult<bool> {
        let settings = self.config.decide().map_err(error::to_python)?;
        Ok(settings.algorithm.params_share() == Share::Mean)
    }

    /// Goes on from the state in `from`, put together from those of another number of workers, and the `params` they had in common, which
    /// are written to; all workers together.
    fn _regroup_state(&self, py: Python<'_>, from: &Bound<'_, PyDict>, params: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut params = self.params(params)?;
        let found = self.found(from, self.whole_layout(py)?)?;
        self.with(py, None, |worker| worker.regroup(slice_mut(&mut params), |entries| pour(&found, entries)))
    }

    /// The state: names, types ("f4", "f8", or "word") and lengths.
    fn _state_layout(&self, py: Python<'_>) -> PyResult<Vec<Described>> {
        Ok(self.whole_layout(py)?.into_iter().map(|(described, _)| described).collect())
    }

    /// Copies the state to `into`: its arrays are filled, its words are set.
    fn _copy_state(&self, into: &Bound<'_, PyDict>) -> PyResult<()> {
        let mut stage = self.lock()?;
        let worker = met(&mut stage)?;
        if worker.is_stopped() {
            return Err(error::to_python(Error::Stopped));
        }
        let copy = |entry: &Entry<'_>| match &entry.slot {
            Slot::Floats(values) => fill(into, entry.name, values),
            Slot::Doubles(values) => fill(into, entry.name, values),
            Slot::Word(word) => into.set_item(entry.name, **word),
            _ => unreachable!("the engine has no other"),
        };
        let copied = worker.look(|entries| Ok(entries.iter().try_for_each(copy)));
        copied.map_err(|error| self.explain(error))?
    }

    /// Refuses a state that `_adopt_state` would refuse.
    fn _check_state_of_one(
        &self,
        py: Python<'_>,
        config: &Bound<'_, PyDict>,
        from: &Bound<'_, PyDict>,
    ) -> PyResult<()> {
        self.check_config(config)?;
        self.found(from, self.layout(py, thinwire::Worker::fields_of_one)?).map(drop)
    }

    /// Goes on from the state of one worker in `from`, which was checked, and the `params` that it had; all workers together, from the
    /// same one. `params` are written to.
    fn _adopt_state(&self, py: Python<'_>, from: &Bound<'_, PyDict>, params: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut params = self.params(params)?;
        let found = self.found(from, self.layout(py, thinwire::Worker::fields_of_one)?)?;
        self.with(py, None, |worker| worker.adopt(slice_mut(&mut params), |entries| pour(&found, entries)))
    }

    /// Refuses the configuration of a state that this worker could not go on from.
    fn _check_configuration(&self, config: &Bound<'_, PyDict>) -> PyResult<()> {
        self.check_config(config)
    }

    /// Refuses a state that `_restore_state` would refuse, as far as a worker that may not have met the others can tell.
    fn _check_state(&self, py: Python<'_>, config: &Bound<'_, PyDict>, from: &Bound<'_, PyDict>) -> PyResult<()> {
        self.check_config(config)?;
        let waiting = matches!(*self.lock()?, Stage::Waiting(_));
        if waiting { Ok(()) } else { self.found(from, self.whole_layout(py)?).map(drop) }
    }

    /// Goes on from the state in `from`, which was checked; all workers together.
    fn _restore_state(&self, py: Python<'_>, from: &Bound<'_, PyDict>) -> PyResult<()> {
        self.meet(py, None)?;
        let found = self.found(from, self.whole_layout(py)?)?;
        let count = if self.device.is_some() { 0 } else { self.parameters };
        let mut params = vec![0.0; count]; // the caller's own are not touched
        self.with(py, None, |worker| worker.restore(&mut params, |entries| pour(&found, entries)))
    }

    /// What this worker has sent and waited for so far, as a dict: bytes, messages, rounds, seconds. `jumps` are steps that moved a
    /// parameter by more than 100 learning rates; `first_jump` is None, or the first one's `step` and `parameter`, a place in the flat
    /// vector. `outliers` are steps at which this worker's gradient was far longer than those before it; `first_outlier` is None, or the
    /// first one's `step`, `norm` and `limit`.
    fn traffic<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut stage = self.lock()?;
        let traffic = match &mut *stage {
            Stage::Met(worker) => worker.traffic(),
            _ => Default::default(),
        };
        to_python(py, &traffic)
    }

    /// What `steps` steps will send and hold, before anything is sent.
    ///
    /// Parameters
    /// ----------
    /// steps : int
    ///     The length of the run.
    /// schedule : dict, optional
    ///     The learning rate, in the words of `learning_rate`: a plan as if the worker had been built with it.
    #[pyo3(signature = (steps, schedule = None))]
    fn plan<'py>(
        &self,
        py: Python<'py>,
        steps: i64,
        schedule: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let few = |_| PyValueError::new_err(format!("steps = {steps}: accepted: at least 0"));
        let steps = u64::try_from(steps).map_err(few)?;
        let words = to_python(py, &self.given)?.cast_into::<PyDict>()?;
        if let Some(schedule) = schedule {
            words.set_item("learning_rate", schedule)?;
        }
        plan(&words, self.parameters, self.hosts.clone(), self.rank, steps)
    }

    /// From now on a gradient of this worker that is not finite is left out, as with non_finite="skip".
    fn skip_non_finite(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, None, |worker| {
            worker.skip_non_finite();
            Ok(())
        })
    }

    /// The first jump's step and parameter, without the rest of the traffic: asked after every step.
    #[getter]
    fn _first_jump(&self) -> PyResult<Option<(u64, usize)>> {
        let stage = self.lock()?;
        Ok(match &*stage {
            Stage::Met(worker) => worker.traffic().first_jump.map(|jump| (jump.step, jump.parameter)),
            _ => None,
        })
    }

    /// The first outlier's step, its norm, and the longest that it might have been; asked after every step too.
    #[getter]
    fn _first_outlier(&self) -> PyResult<Option<(u64, f64, f64)>> {
        let stage = self.lock()?;
        Ok(match &*stage {
            Stage::Met(worker) => worker.traffic().first_outlier.map(|found| (found.step, found.norm, found.limit)),
            _ => None,
        })
    }

    /// Whether all replicas hold the same parameters now.
    #[getter]
    fn is_synced(&self) -> PyResult<bool> {
        let stage = self.lock()?;
        Ok(match &*stage {
            Stage::Met(worker) => worker.is_synced(),
            _ => true,
        })
    }

    /// The learning rates of the last, the next and the second next step by the schedule that the worker was given, if it was given
    /// one; 0 before the first.
    #[getter]
    fn _expected_rates(&self) -> PyResult<Option<[f32; 3]>> {
        let step = self.steps()?;
        let around = |schedule: &LearningRate| {
            let before = step.checked_sub(1).map_or(0.0, |step| schedule.at(step));
            [before, schedule.at(step), schedule.at(step + 1)]
        };
        Ok(self.config.learning_rate.as_ref().map(around))
    }

    /// The configuration, with every word that counts written out.
    #[getter]
    fn config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.config)
    }

    /// Steps taken.
    #[getter]
    fn steps(&self) -> PyResult<u64> {
        let stage = self.lock()?;
        Ok(match &*stage {
            Stage::Met(worker) => worker.steps(),
            _ => 0,
        })
    }

    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    #[getter]
    fn size(&self) -> usize {
        self.hosts.len()
    }

    /// The host of every rank, by number.
    #[getter]
    fn hosts(&self) -> Vec<usize> {
        self.hosts.clone()
    }

    /// How many parameters.
    #[getter]
    fn parameters(&self) -> usize {
        self.parameters
    }

    fn __reduce__(&self) -> PyResult<()> {
        let why = "a worker is one end of a group and cannot be copied or pickled; use state_dict() or save()";
        Err(pyo3::exceptions::PyTypeError::new_err(why))
    }

    fn __repr__(&self) -> String {
        let (name, params) = (self.config.name, self.parameters);
        format!("<thinwire.Worker: {name} of {params} parameters, worker {} of {}>", self.rank, self.hosts.len())
    }
}

impl Worker {
    fn lock(&self) -> PyResult<MutexGuard<'_, Stage>> {
        match self.stage.try_lock() {
            Ok(stage) => Ok(stage),
            Err(TryLockError::Poisoned(_)) => Err(PyRuntimeError::new_err("this worker panicked; make a new one")),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err("another thread is using this worker")),
        }
    }

    fn check_length<'a>(&self, what: &'static str, array: &'a Borrowed) -> PyResult<Option<&'a Borrowed>> {
        let (expected, got) = (self.parameters, array.slice::<f32>().len());
        match expected == got {
            true => Ok(Some(array)),
            false => Err(error::to_python(Error::Length { what, expected, got })),
        }
    }

    /// The caller's parameters, to be written to; none where they are on a device.
    fn params(&self, params: &Bound<'_, PyAny>) -> PyResult<Option<Borrowed>> {
        if self.device.is_some() {
            return Ok(None);
        }
        let params = writeable::<f32>(params, "params")?;
        self.check_length("params", &params)?;
        Ok(Some(params))
    }

    fn engines_device(&self, py: Python<'_>) -> PyResult<Option<Machine>> {
        self.device.as_ref().map(|device| Machine::new(device.bind(py), self.failure.clone())).transpose()
    }

    /// Whether a state of a worker under `then` is one to go on from.
    fn check_config(&self, then: &Bound<'_, PyDict>) -> PyResult<()> {
        let then = from_python(then)?.resolved().map_err(error::to_python)?;
        match self.config.hinders(&then) {
            Some((key, now, then)) => {
                Err(PyValueError::new_err(format!("{key} was {then} when the state was saved, and is {now} now")))
            }
            None => Ok(()),
        }
    }

    fn layout(&self, py: Python<'_>, fields: fn(&mut thinwire::Worker) -> Vec<Field>) -> PyResult<Vec<Expected>> {
        let describe = |field: Field| {
            let kind = match field.kind {
                Kind::Floats => "f4",
                Kind::Doubles => "f8",
                Kind::Word => "word",
            };
            ((field.name.to_owned(), kind, field.len), field.is_optional)
        };
        self.with(py, None, |worker| Ok(fields(worker).into_iter().map(describe).collect()))
    }

    fn whole_layout(&self, py: Python<'_>) -> PyResult<Vec<Expected>> {
        self.layout(py, thinwire::Worker::fields)
    }

    /// The values of the state in `from`, in the order of the layout.
    fn found(&self, from: &Bound<'_, PyDict>, layout: Vec<Expected>) -> PyResult<Vec<Value>> {
        let find = |((name, kind, len), is_optional): Expected| {
            let missing = || PyValueError::new_err(format!("the state has no {name}"));
            let value = match from.get_item(&name)? {
                None if is_optional => return Ok(Value::Start),
                value => Value::of(&value.ok_or_else(missing)?, kind, &name)?,
            };
            match value.len() {
                got if got == len => Ok(value),
                got => {
                    let problem = format!("the state's {name}: expected {len} values, found {got}");
                    Err(PyValueError::new_err(problem))
                }
            }
        };
        layout.into_iter().map(find).collect()
    }

    /// Meets the others, if that has not happened yet.
    fn meet(&self, py: Python<'_>, start: Option<&Borrowed>) -> PyResult<()> {
        let waiting = matches!(*self.lock()?, Stage::Waiting(_));
        if !waiting {
            return Ok(());
        }
        let device = self.engines_device(py)?;
        let brings_none = start.is_none() && device.is_none();
        let zeros = vec![0.0; if brings_none { self.parameters } else { 0 }]; // a state to come will replace them
        let mut stage = self.lock()?;
        let Stage::Waiting(group) = std::mem::replace(&mut *stage, Stage::Failed) else { unreachable!("just seen") };
        let start = start.map_or(&zeros[..], Borrowed::slice);
        let worker = py.detach(|| match device {
            Some(device) => thinwire::Worker::on_device(&self.config, Box::new(device), group),
            None => thinwire::Worker::new(&self.config, start, group),
        });
        let mut worker = worker.map_err(|error| self.explain(error))?;
        worker.set_weight(self.first_weight.load(Ordering::Relaxed)).map_err(error::to_python)?;
        *stage = Stage::Met(Box::new(worker));
        Ok(())
    }

    /// Runs `work` on the engine's worker while the interpreter is free; meets the others first if `start` is given.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        start: Option<&Borrowed>,
        work: impl FnOnce(&mut thinwire::Worker) -> thinwire::Result<T> + Send,
    ) -> PyResult<T> {
        if start.is_some() {
            self.meet(py, start)?;
        }
        let mut stage = self.lock()?;
        let worker = met(&mut stage)?;
        py.detach(|| work(worker)).map_err(|error| self.explain(error))
    }

    /// What the transport met comes first: KeyboardInterrupt must stay what it is.
    fn explain(&self, error: Error) -> PyErr {
        self.failure.take().unwrap_or_else(|| match error {
            Error::NotFinite { .. } => error::not_finite(error, self.hosts.len()),
            error => error::to_python(error),
        })
    }
}

fn pour(found: &[Value], entries: &mut [Entry<'_>]) -> thinwire::Result<()> {
    entries.iter_mut().zip(found).for_each(|(entry, value)| value.pour(entry));
    Ok(())
}

fn slice_mut(params: &mut Option<Borrowed>) -> &mut [f32] {
    params.as_mut().map_or(&mut [], Borrowed::slice_mut)
}

fn met(stage: &mut Stage) -> PyResult<&mut thinwire::Worker> {
    match stage {
        Stage::Met(worker) => Ok(worker),
        Stage::Waiting(_) => Err(PyRuntimeError::new_err("this worker has no state before its first step")),
        Stage::Failed => Err(PyRuntimeError::new_err("this worker did not get to meet the others; make a new one")),
    }
}
