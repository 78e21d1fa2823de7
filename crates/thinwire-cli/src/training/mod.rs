//! The loop that trains, from a first step or a checkpoint to the last evaluation.
//!
//! `train` and `join` run the same loop. What differs is who a worker takes its steps with, and that is a [`Stepper`]: a
//! [`group`] agrees with all of its workers before it evaluates, saves or stops; a [`member`] of a server asks nobody. The loop
//! computes gradients, measures, and writes down; the stepper does the rest.

pub mod group;
#[cfg(feature = "server")]
pub mod member;
mod order;
mod stepper;

use crate::job::Job;
use crate::journal::{Journal, Totals};
use crate::run_spec::RunSpec;
use crate::screen::{Screen, say};
use anyhow::Result;
use cpu_time::ThreadTime;
pub use order::Batches;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stepper::{Shared, Stepper};
use thinwire::Traffic;
use thinwire::counts::Jump;
use thinwire_models::{Learner, Score, Share};
use thinwire_report::{Eval, Phases, Step};

/// Held-out examples of an evaluation during the run.
const GLANCE: usize = 256;

/// What a worker begins with.
pub struct Start<'a> {
    pub job: &'a Job,
    /// Its part of the training data.
    pub share: Share,
    pub params: Vec<f32>,
    /// Of the worker that writes for all.
    pub journal: Option<Journal>,
    pub screen: Option<Screen>,
    /// Tokens or images of a step, of all workers that the screen speaks for.
    pub units: usize,
    pub checkpoint_every: u64,
    pub batches: Batches,
    /// Set when the user wants to stop.
    pub stop: &'a AtomicBool,
}

/// How it ended, on every worker of a group alike but for `totals`.
pub struct End {
    pub params: Vec<f32>,
    /// None: the user stopped it.
    pub score: Option<Score>,
    /// Sums over the journal's steps.
    pub totals: Totals,
    /// Steps taken, of all sessions together.
    pub steps: u64,
    /// Tokens or images a second of this session.
    pub units_per_second: f64,
    /// Steps of this session that moved a parameter too far.
    pub jumps: u64,
    /// Gradients of this session that were far longer than those before them, of all workers that it knows of.
    pub outliers: u64,
}

/// Trains to the end, or until the user wants to stop: then the checkpoint is written.
pub fn run(stepper: &mut dyn Stepper, start: Start<'_>) -> Result<End> {
    let Start { job, share, params, journal, screen, units, checkpoint_every, batches, stop } = start;
    let learner = job.task.get().learner(share, job.spec.batch, job.spec.seed);
    let grad = vec![0.0; params.len()];
    let (taken, began, counted) = (0, Instant::now(), stepper.traffic());
    let state =
        Loop { job, stepper, learner, batches, params, grad, journal, screen, stop, taken, counted, units, began };
    state.run(checkpoint_every)
}

/// The state of one worker's loop.
struct Loop<'a> {
    job: &'a Job,
    stepper: &'a mut dyn Stepper,
    learner: Box<dyn Learner + 'a>,
    batches: Batches,
    params: Vec<f32>,
    grad: Vec<f32>,
    journal: Option<Journal>,
    screen: Option<Screen>,
    stop: &'a AtomicBool,
    /// Steps of this session that this worker took part in.
    taken: u64,
    /// What was sent up to the end of the last step. A late mean may be sent between two steps too.
    counted: Traffic,
    units: usize,
    began: Instant,
}

impl Loop<'_> {
    fn run(mut self, checkpoint_every: u64) -> Result<End> {
        let RunSpec { eval_every, eval_examples, .. } = self.job.spec;
        while !self.stepper.is_done() {
            let before = self.stepper.steps();
            let Some(step) = self.step()? else { return self.stopped() };
            // Others may have gone further, so that several steps have passed.
            let passed = |every: u64| every > 0 && self.stepper.steps() / every > before / every;
            let (evaluates, saves, ends) = (passed(eval_every), passed(checkpoint_every), self.stepper.is_done());
            let stop = self.share(step, evaluates || saves || ends)?;
            if ends {
                break;
            }
            if evaluates {
                self.evaluate(GLANCE, false)?;
            }
            if stop {
                return self.stopped();
            }
            if saves {
                self.save()?;
            }
        }
        self.save()?; // before the evaluation, which may take long: nothing of the training is lost with it
        let score = self.evaluate(eval_examples.unwrap_or(usize::MAX), true)?;
        if score.is_none() {
            self.say_that_it_stops();
        }
        Ok(self.end(score))
    }

    /// Forward, backward and the optimizer's step. None: the user wants to stop.
    fn step(&mut self) -> Result<Option<Step>> {
        let (step, lr) = (self.stepper.steps(), self.stepper.lr());
        let (began, cpu) = (Instant::now(), ThreadTime::now());
        let (loss, told) = self.gradient(step)?;
        let (compute, compute_cpu) = ((began.elapsed() - told).as_secs_f64(), cpu.elapsed().as_secs_f64());

        let (before, cpu) = (self.stepper.traffic(), ThreadTime::now());
        if !self.stepper.step(loss, &mut self.params, &self.grad)? {
            return Ok(None);
        }
        let after = self.stepper.traffic();
        let counted = std::mem::replace(&mut self.counted, after);
        let (pack, total) = (cpu.elapsed().as_secs_f64(), began.elapsed().as_secs_f64());
        self.taken += 1;
        if let (None, Some(jump)) = (before.first_jump, after.first_jump) {
            self.tell_of_jump(&jump);
        }
        let wire = (after.seconds.wire - before.seconds.wire).max(0.0);
        Ok(Some(Step {
            step,
            loss: f64::from(loss),
            lr: f64::from(lr),
            round: round(&before, &after).to_owned(),
            bytes: since(counted.bytes_sent, after.bytes_sent),
            bytes_total: 0.0,
            bytes_between_hosts: since(counted.bytes_between_hosts, after.bytes_between_hosts),
            // Whatever is not computing is waiting: for another worker, or for a core.
            seconds: Phases { total, compute, pack, wire, wait: (total - compute - pack - wire).max(0.0) },
            compute_cpu,
        }))
    }

    /// The gradient of all batches of a step, into `grad`; the mean of their losses, and the time it took to tell others of gradients.
    fn gradient(&mut self, step: u64) -> Result<(f32, Duration)> {
        let accumulate = self.job.spec.accumulate;
        let (mut loss, mut told, weight) = (0.0, Duration::ZERO, 1.0 / accumulate as f32);
        self.grad.fill(0.0);
        for part in 0..accumulate {
            let batch = self.batches.next(step * accumulate + part);
            loss += weight * self.learner.learn(&self.params, batch, weight, &mut self.grad);
            let began = Instant::now();
            self.batches.note(part == 0, &self.grad, self.stepper)?;
            told += began.elapsed();
        }
        Ok((loss, told))
    }

    /// Hands a step over and writes down what is known; whether somebody wants to stop.
    fn share(&mut self, step: Step, meets: bool) -> Result<bool> {
        let Shared { steps, stop, warnings } = self.stepper.share(step, meets)?;
        self.say_warnings(&warnings);
        if let (Some(journal), Some(screen), Some(last)) = (&mut self.journal, &mut self.screen, steps.last().cloned())
        {
            steps.into_iter().try_for_each(|step| journal.step(step))?;
            journal.flush()?;
            screen.step(&Step { step: self.stepper.steps() - 1, ..last }, &journal.totals);
        }
        Ok(stop)
    }

    /// The score of `examples` held-out examples. The `last` one may take long: it shows how far it is, and ends without a score
    /// when the user wants to stop.
    fn evaluate(&mut self, examples: usize, last: bool) -> Result<Option<Score>> {
        let RunSpec { batch, seed, .. } = self.job.spec;
        let (screen, stop) = (&mut self.screen, self.stop);
        let mut watch = |done, of| {
            if let (true, Some(screen)) = (last, screen.as_mut()) {
                screen.evaluating(done, of);
            }
            if last && stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let mut learner = self.job.task.get().learner(self.stepper.scores(), batch, seed);
        let common = self.stepper.common()?;
        let part = learner.evaluate_watched(common.as_deref().unwrap_or(&self.params), examples, &mut watch);
        let Some(score) = self.stepper.sum(part)? else { return Ok(None) };
        if let (Some(journal), Some(screen)) = (&mut self.journal, &mut self.screen) {
            screen.eval(score.mean_loss());
            journal.eval(Eval {
                step: self.stepper.steps(),
                val_loss: score.mean_loss(),
                accuracy: score.accuracy(),
                matthews: score.matthews(),
            })?;
            journal.flush()?;
        }
        Ok(Some(score))
    }

    /// Said once: later ones are counted.
    fn tell_of_jump(&self, jump: &Jump) {
        if let Some(screen) = self.screen.as_ref().filter(|screen| !screen.is_quiet()) {
            let tensors = self.job.task.get().tensors();
            let tensor = tensors.iter().find(|tensor| tensor.range.contains(&jump.parameter));
            let (name, step) = (tensor.map_or("?", |tensor| &tensor.name), jump.step);
            screen.aside(|| say!("warning: step {step} moved a parameter of {name} by more than 100 learning rates"));
        }
    }

    fn say_warnings(&self, warnings: &[String]) {
        if let Some(screen) = self.screen.as_ref().filter(|screen| !screen.is_quiet()) {
            warnings.iter().for_each(|warning| screen.aside(|| say!("warning: {warning}")));
        }
    }

    fn say_that_it_stops(&self) {
        if let (Some(screen), Some(said)) = (&self.screen, self.stepper.stops()) {
            screen.close();
            say!("{said}");
        }
    }

    /// A checkpoint, with the order of the batches beside it.
    fn save(&mut self) -> Result<()> {
        self.batches.write(self.stepper.steps())?;
        self.stepper.save(&self.params)?;
        self.batches.forget_others(self.stepper.steps())
    }

    /// Saves, and ends without a score.
    fn stopped(mut self) -> Result<End> {
        self.say_that_it_stops();
        self.save()?;
        Ok(self.end(None))
    }

    fn end(self, score: Option<Score>) -> End {
        if let Some(screen) = &self.screen {
            screen.close();
        }
        End {
            params: self.params,
            score,
            totals: self.journal.map(|journal| journal.totals).unwrap_or_default(),
            steps: self.stepper.steps(),
            units_per_second: self.taken as f64 * self.units as f64 / self.began.elapsed().as_secs_f64().max(1e-9),
            jumps: self.stepper.traffic().jumps,
            outliers: self.stepper.outliers(),
        }
    }
}

/// What a counter has grown by. A worker of a server that started over counts anew.
fn since(before: u64, after: u64) -> f64 {
    after.checked_sub(before).unwrap_or(after) as f64
}

/// What the step averaged: a sync at the end of the run makes a skipped step a coarse one, and a coarse step that ends with an exact round
/// is coarse.
fn round(before: &Traffic, after: &Traffic) -> &'static str {
    match (before.rounds, after.rounds) {
        (before, after) if after.coarse > before.coarse => "coarse",
        (before, after) if after.exact > before.exact => "exact",
        _ => "skipped",
    }
}
