//! Steps: one gradient in, moved parameters out.

use super::Worker;
use super::agree::window;
use crate::config::Outlier;
use crate::error::{Error, Result};
use crate::kernel::reduce::LARGEST;
use crate::machine::{Gradient, Pieces, Step};
use crate::schedule::Round;
use crate::transport::{Jump, OutlierStep};
use std::ops::Range;

impl Worker {
    /// One step at learning rate `lr`, which must be the same on all workers. Returns what was averaged in it.
    ///
    /// A worker [on a device](Worker::on_device) finds both there: `params` and `grad` are empty.
    pub fn step(&mut self, params: &mut [f32], grad: &[f32], lr: f32) -> Result<Round> {
        self.step_on(params, Gradient::Whole(grad), lr, None)
    }

    /// One step in which every parameter group has a learning rate of its own, in place of `lr` times its `lr_scale`: for
    /// schedules that do not move the groups alike. The schedules of the rounds look at `lr`. All must be the same on all workers.
    pub fn step_with_rates(&mut self, params: &mut [f32], grad: &[f32], lr: f32, rates: &[f32]) -> Result<Round> {
        self.step_on(params, Gradient::Whole(grad), lr, Some(rates))
    }

    /// One step with a gradient that may lie in pieces, and with rates of the groups' own if there are any.
    pub fn step_on(&mut self, params: &mut [f32], grad: Gradient<'_>, lr: f32, rates: Option<&[f32]>) -> Result<Round> {
        self.check_step(params, grad.len(), &[lr])?;
        if let Some(rates) = rates {
            self.check_step(params, grad.len(), rates)?;
            let (expected, got) = (self.rates.len(), rates.len());
            if expected != got {
                let problem = format!("expected one for each of the {expected} parameter groups");
                return Err(Error::config("rates", format!("{got} numbers"), problem));
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
        for (rate, scale) in self.rates.iter_mut().zip(&self.groups.lr_scale) {
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
            Some(lr) => Err(Error::config("lr", lr, "expected a finite number of at least 0")),
            None => Ok(()),
        }
    }

    /// The rates of the groups are in place. `given` are those that the others could not know from `lr`.
    fn take_step(&mut self, params: &mut [f32], grad: Gradient<'_>, lr: f32, given: &[f32]) -> Result<Round> {
        // One pass over the gradient tells both, where both are asked for.
        let norm = (self.settings.clip.is_some() || self.is_guarded()).then(|| self.exchange.machine.norm(grad));
        let norm = norm.transpose()?;
        // With others it looks for itself all the same: a mistake of the caller's would be theirs too.
        let vouched = grad.is_vouched_for() && self.exchange.is_alone();
        let is_small = norm.is_some_and(|norm| norm <= f64::from(LARGEST)); // no value is larger than the norm
        let contributes = is_small || vouched || self.exchange.machine.is_within(grad)?;
        let (contributes, norm) = self.agree_inside(contributes, norm, lr, given)?;
        if self.weight == 0 {
            return self.take_part(params, grad, lr, given, false, None);
        }
        if !contributes {
            if !self.settings.skips_non_finite() {
                return Err(Error::NotFinite { worker: self.rank(), step: self.step });
            }
            self.exchange.group.traffic.left_out += 1;
            return self.take_part(params, grad, lr, given, false, norm);
        }
        let Some((norm, limit)) = norm.and_then(|norm| Some((norm, self.outlier(norm)?))) else {
            return self.take_part(params, grad, lr, given, true, norm);
        };
        if self.settings.outlier == Outlier::Skip {
            return self.take_part(params, grad, lr, given, false, Some(norm));
        }
        let shorter = self.exchange.machine.shorten(grad, (limit / norm) as f32)?;
        let grad = shorter.as_deref().map_or(grad, Gradient::Whole);
        self.take_part(params, grad, lr, given, true, Some(limit))
    }

    /// Whether this worker judges its gradients: there are others whose run an outlier would ruin too.
    fn is_guarded(&self) -> bool {
        self.settings.outlier != Outlier::Off && !self.exchange.is_alone()
    }

    /// Remembers the norm of a gradient, and counts it if it is an outlier; the longest that it might have been then.
    fn outlier(&mut self, norm: f64) -> Option<f64> {
        if !self.is_guarded() {
            return None;
        }
        let limit = self.norms.limit(self.settings.outlier_factor).filter(|limit| norm > *limit);
        self.norms.note(norm); // its true norm: if the others are as long from now on, they are no outliers
        let (traffic, step, limit) = (&mut self.exchange.group.traffic, self.step, limit?);
        traffic.outliers += 1;
        traffic.first_outlier.get_or_insert(OutlierStep { step, norm, limit });
        Some(limit)
    }

    /// What the shards of a replica must agree on before a step: its number, its rates, its weight, whether all of the gradient is finite,
    /// its norm.
    fn agree_inside(&mut self, finite: bool, norm: Option<f64>, lr: f32, given: &[f32]) -> Result<(bool, Option<f64>)> {
        if self.exchange.shards.is_whole() {
            return Ok((finite, norm));
        }
        let own = norm.unwrap_or(0.0);
        let rates = if given.is_empty() { &[lr] } else { given };
        let weight = f64::from(self.weight);
        let values = [f64::from(u8::from(!finite)), own * own, weight];
        let [not_finite, squares, weights] = self.exchange.shards.sums(self.step, ("lr", rates), values)?;
        let shards = self.exchange.shards.size();
        if weights != weight * shards as f64 {
            let problem = format!("expected the same on all {shards} shards of a replica");
            return Err(Error::config("weight", self.weight, problem));
        }
        Ok((not_finite == 0.0, norm.map(|_| squares.sqrt())))
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
        if contributes {
            self.weight_since_round += f64::from(self.weight);
        }
        self.exchange.agree_on(&lr.to_le_bytes());
        if !given.is_empty() {
            self.exchange.agree_on(bytemuck::cast_slice(given));
        }
        if self.optimizer.is_synced() {
            let window = window(self.exchange.shape().values, self.step);
            self.agree_on_params(window.clone(), params)?;
            // They are in the cache now. On a device they are not, and are looked at when a worker syncs or saves.
            if !self.exchange.is_alone() && !self.exchange.machine.is_device() {
                self.check_finite(window, params)?;
            }
        }
        if self.settings.algorithm.delays() && !self.exchange.is_alone() {
            self.agree_on_anchor(params)?;
        }
        let mut step = Step {
            t: self.step,
            lr,
            groups: &self.groups,
            rates: &self.rates,
            contributes,
            part: 0,
            weight: pending_weight(self.settings.weighted, self.weight_since_round),
            norm,
            gradient: Some(grad),
            params,
            scalars: std::mem::take(&mut self.scalars),
        };
        let taken = self.optimizer.step(&mut step, &mut self.exchange);
        self.scalars = step.scalars;
        let round = taken?;
        match round {
            Round::Skipped => self.exchange.group.traffic.rounds.count(round),
            Round::Exact | Round::Coarse => self.weight_since_round = 0.0,
        }
        if let Some(parameter) = self.exchange.machine.take_jump() {
            let (traffic, step) = (&mut self.exchange.group.traffic, self.step);
            traffic.jumps += 1;
            traffic.first_jump.get_or_insert(Jump { step, parameter });
        }
        self.step += 1;
        Ok(round)
    }

    /// Where means come late replicas may never be equal: what all have in common is the anchor. The parameters must be finite all the same.
    fn agree_on_anchor(&mut self, params: &[f32]) -> Result<()> {
        let Some(anchor) = self.optimizer.anchor() else { return Ok(()) };
        let window = window(self.exchange.shape().values, self.step);
        let digest = self.exchange.machine.digest_of(anchor, window.clone())?;
        self.exchange.agree_on(&digest.to_le_bytes());
        self.check_finite(window, params)
    }

    /// Parameters that are not finite are an error, unless some were so from the start.
    pub(super) fn check_finite(&mut self, range: Range<usize>, params: &[f32]) -> Result<()> {
        match !self.starts_finite || self.exchange.machine.are_finite(range, params)? {
            true => Ok(()),
            false => Err(Error::Diverged { worker: self.rank(), step: self.step, vector: "params" }),
        }
    }

    /// Makes all replicas equal: before evaluation, before the parameters are exported, at the end of training.
    pub fn sync(&mut self, params: &mut [f32]) -> Result<()> {
        self.check_length("the parameters", params.len())?;
        self.guarded(|worker| {
            worker.rates.fill(0.0);
            let mut step = Step::idle(worker.step, &worker.groups, &worker.rates, params);
            step.weight = pending_weight(worker.settings.weighted, worker.weight_since_round);
            step.scalars = std::mem::take(&mut worker.scalars);
            let synced = worker.optimizer.sync(&mut step, &mut worker.exchange);
            worker.scalars = step.scalars;
            synced?;
            worker.weight_since_round = 0.0;
            worker.check_finite(0..worker.exchange.shape().values, params)
        })
    }
}

/// What a round counts for that follows steps of this weight.
fn pending_weight(weighted: bool, since_round: f64) -> u32 {
    if weighted { since_round.round().clamp(1.0, f64::from(u32::MAX)) as u32 } else { 1 }
}
