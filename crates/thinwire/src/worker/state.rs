//! State: everything that makes the next step what it is, listed once; saved, loaded and looked at by others.

use super::Worker;
use crate::error::{Error, Result};
use crate::guard::Norms;
use crate::machine::Step;
use crate::state::{Entry, Field, Share};

impl Worker {
    /// Lets a late mean arrive now: it is applied in its step all the same, but no message is under way.
    pub(super) fn arrive(&mut self) -> Result<()> {
        if self.stopped {
            return Ok(());
        }
        self.guarded(|worker| {
            let mut step = Step::idle(worker.step, &worker.groups, &worker.rates, &mut []);
            worker.optimizer.arrive(&mut step, &mut worker.exchange)
        })
    }

    /// Everything there is: the parameters too.
    pub(super) fn entries<'a>(&'a mut self, params: &'a mut [f32]) -> Result<Vec<Entry<'a>>> {
        let mut entries = vec![Entry::vector("params", self.settings.algorithm.params_share(), params)];
        entries.extend(self.whole_state()?);
        Ok(entries)
    }

    /// The names and values of the state: m, v, residuals and whatever else the optimizer keeps. It can fail only on a device, and where a
    /// late mean is under way: then all workers call it in the same step, because the mean arrives first.
    pub fn state(&mut self) -> Result<Vec<Entry<'_>>> {
        self.arrive()?;
        let mut entries = self.exchange.state()?;
        entries.extend(self.optimizer.numbers());
        entries.push(norms(&mut self.norms));
        entries.extend(self.settings.weighted.then_some(weight(&mut self.weight_since_round)));
        Ok(entries)
    }

    /// As [`Worker::state`], with the number of steps taken: all there is to a worker beside its parameters.
    pub fn whole_state(&mut self) -> Result<Vec<Entry<'_>>> {
        self.arrive()?;
        let mut entries = vec![Entry::word("step", &mut self.step)];
        entries.extend(self.exchange.state()?);
        entries.extend(self.optimizer.numbers());
        entries.push(norms(&mut self.norms));
        entries.extend(self.settings.weighted.then_some(weight(&mut self.weight_since_round)));
        Ok(entries)
    }

    /// What [`Worker::whole_state`] lists, without the numbers: those on a device are not copied.
    #[doc(hidden)]
    pub fn fields(&mut self) -> Vec<Field> {
        let mut fields = vec![Entry::word("step", &mut self.step).field()];
        fields.extend(self.exchange.fields());
        fields.extend(self.optimizer.numbers().iter().map(Entry::field));
        fields.push(norms(&mut self.norms).field());
        fields.extend(self.settings.weighted.then(|| weight(&mut self.weight_since_round).field()));
        fields
    }

    /// What [`Worker::state_of_one`] lists, without the numbers.
    #[doc(hidden)]
    pub fn fields_of_one(&mut self) -> Vec<Field> {
        let mut fields = vec![Entry::word("step", &mut self.step).field()];
        fields.extend(self.exchange.machine.fields(None));
        fields.extend(self.optimizer.numbers().iter().map(Entry::field));
        fields
    }

    /// Shows [`Worker::whole_state`] to `look`, which changes nothing: a device keeps its own, and the copy is dropped.
    #[doc(hidden)]
    pub fn look<T>(&mut self, look: impl FnOnce(&[Entry<'_>]) -> Result<T>) -> Result<T> {
        self.exchange.machine.close()?;
        let seen = self.whole_state().and_then(|entries| look(&entries));
        self.exchange.machine.was_only_read();
        seen
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
        read(&mut self.whole_state()?)?;
        // From here on the old state is gone: whoever fails tells the others, and stops.
        self.guarded(|worker| {
            worker.loaded(false, params)?;
            worker.meet()
        })
    }

    /// What [`Worker::adopt`] reads: the steps taken and the optimizer's own state, without the residuals of error feedback.
    pub fn state_of_one(&mut self) -> Result<Vec<Entry<'_>>> {
        self.arrive()?;
        let mut entries = vec![Entry::word("step", &mut self.step)];
        entries.extend(self.exchange.machine.state(None)?);
        entries.extend(self.optimizer.numbers());
        Ok(entries)
    }

    /// Goes on from what one worker of a group of any size had, `params` included; every worker adopts the same one. `read` fills
    /// in every entry of [`Worker::state_of_one`], or fails before it has written to any.
    ///
    /// Moments and schedule are kept. Residuals start at zero, because those of the other workers are missing. Local steps since
    /// the last sync count as if all workers had taken them: `params` are then a·D − u/P, with that worker's u as the mean. For local Adam
    /// the interval goes on from that worker's parameters.
    pub fn adopt(&mut self, params: &mut [f32], read: impl FnOnce(&mut [Entry<'_>]) -> Result<()>) -> Result<()> {
        self.check_length("the parameters", params.len())?;
        if self.stopped {
            return Err(Error::Stopped);
        }
        read(&mut self.state_of_one()?)?;
        self.regrouped = true;
        self.weight_since_round = 0.0;
        self.norms = Norms::default(); // those of other gradients, perhaps of another size
        self.guarded(|worker| {
            worker.loaded(true, params)?;
            worker.exchange.start_anew()?;
            worker.agree_on_params(0..worker.exchange.shape().values, params)?; // workers that adopted different ones find out
            worker.meet()
        })
    }

    /// Goes on from what another number of workers had, put together by the caller: what was each worker's own
    /// ([`Share::Mean`], [`Share::Progress`], [`Share::Residual`]) as the mean over all of them, what was cut among them as cut for this
    /// group, and a digest of 0. `params` become what the workers had in common. `read` fills in every entry of
    /// [`Worker::whole_state`], or fails before it has written to any. All workers together.
    ///
    /// It is what [`Worker::resume`] does with a folder, for programs that keep states in their own way.
    pub fn regroup(&mut self, params: &mut [f32], read: impl FnOnce(&mut [Entry<'_>]) -> Result<()>) -> Result<()> {
        self.check_length("the parameters", params.len())?;
        if self.stopped {
            return Err(Error::Stopped);
        }
        read(&mut self.whole_state()?)?;
        self.regrouped = true;
        self.guarded(|worker| {
            worker.loaded(true, params)?;
            worker.exchange.regrouped()?;
            worker.agree_on_params(0..worker.exchange.shape().values, params)?;
            worker.meet()
        })
    }

    /// Has the optimizer make of a state that was just loaded what it can go on from.
    pub(super) fn loaded(&mut self, regrouped: bool, params: &mut [f32]) -> Result<()> {
        self.rates.fill(0.0);
        let mut step = Step::idle(self.step, &self.groups, &self.rates, params);
        self.optimizer.loaded(regrouped, &mut step, &mut self.exchange.machine)
    }
}

/// The norms of a worker's own gradients, which another number of workers begins with as their mean.
fn norms(norms: &mut Norms) -> Entry<'_> {
    Entry::doubles("gradient_norms", Share::Mean, norms.values()).optional()
}

/// What the steps since the last round count for: of another number of workers, as much as on the mean.
fn weight(since_round: &mut f64) -> Entry<'_> {
    Entry::doubles("weight_since_round", Share::Mean, std::slice::from_mut(since_round)).optional()
}
