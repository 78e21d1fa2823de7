//! The loop that trains: what each worker of a group does, from its first step or from a checkpoint to the end.
//!
//! Workers tell each other how they fare every few steps, not every step: a note is a round trip, and skipped steps should cost
//! none. Worker 0 chooses the pace by the clock and tells it; it alone writes the journal and draws the screen.

use crate::job::Job;
use crate::journal::{Journal, Totals};
use crate::record::{Eval, Phases, Step};
use crate::resume;
use crate::screen::{Screen, say};
use crate::team;
use crate::tensorboard::Events;
use anyhow::Result;
use cpu_time::ThreadTime;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use thinwire::{Collective, Jump, Traffic, Worker};
use thinwire_models::{Learner, Score, Share};

/// Seconds between two notes, about.
const PACE: f64 = 0.25;

/// Held-out examples of an evaluation during the run.
pub const GLANCE: usize = 256;

/// What the workers of a session have in common.
pub struct Session<'a> {
    pub job: &'a Job,
    pub initial: &'a [f32],
    /// The run's folder.
    pub dir: &'a Path,
    /// Whether to go on from the checkpoint in it.
    pub resume: bool,
    /// Set when the user wants to stop.
    pub stop: &'a AtomicBool,
    pub quiet: bool,
    /// Where event files go, if anywhere.
    pub tensorboard: Option<PathBuf>,
}

/// How a session ended, on every worker alike but for `totals`.
pub struct End {
    pub params: Vec<f32>,
    /// None: the user stopped it.
    pub score: Option<Score>,
    /// Worker 0's sums.
    pub totals: Totals,
    /// Steps taken, of all sessions together.
    pub steps: u64,
    /// Tokens or images a second of this session, all workers together.
    pub units_per_second: f64,
    /// Steps of this session that moved a parameter too far.
    pub jumps: u64,
    /// Gradients of this session that were far longer than those before them, of all workers together.
    pub outliers: u64,
}

/// What one worker tells the others.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Note {
    /// Those since the last note.
    steps: Vec<Told>,
    /// The user wants to stop.
    stop: bool,
    /// Steps until the next note, if worker 0 says so.
    pace: u64,
    score: Option<(f64, u64, Vec<u64>)>,
    /// Outliers of this session, and the step, norm and limit of the first.
    outliers: u64,
    first_outlier: Option<(u64, f64, f64)>,
}

/// What one worker tells of a step.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    loss: f32,
    bytes: u64,
    between_hosts: u64,
    compute_cpu: f64,
}

/// The state of one worker's loop.
struct Loop<'a> {
    session: &'a Session<'a>,
    worker: Worker,
    learner: Box<dyn Learner + 'a>,
    params: Vec<f32>,
    grad: Vec<f32>,
    /// Steps that the journal does not know yet, as worker 0 sees them.
    pending: Vec<Step>,
    note: Note,
    /// Of all workers, as the last notes say, and the workers whose first was told.
    outliers: u64,
    told_of: Vec<usize>,
    /// Worker 0's.
    journal: Option<Journal>,
    screen: Option<Screen>,
    pace: u64,
}

impl<'a> Session<'a> {
    /// One worker, from start to end.
    pub fn run(&'a self, group: Box<dyn Collective>) -> Result<End> {
        let settings = &self.job.settings;
        let (steps, accumulate) = (settings.steps.expect("resolved"), settings.accumulate.expect("resolved"));
        let (batch, seed) = (settings.batch.expect("resolved"), settings.seed.expect("resolved"));
        let eval_every = settings.eval_every.expect("resolved");
        let checkpoint_every = settings.checkpoint_every.expect("resolved");
        let task = self.job.task.get();

        let mut params = self.initial.to_vec();
        let worker = if self.resume {
            Worker::resume(&self.job.config, &self.checkpoint(), &mut params, group)?
        } else {
            Worker::new(&self.job.config, &params, group)?
        };
        let first = worker.steps();
        if worker.regrouped() && worker.rank() == 0 && !self.quiet {
            say!(
                "other workers, or on other hosts, than before: residues are conserved, but it is another run from here on"
            );
        }
        let share = Share { rank: worker.rank(), workers: worker.size() };
        let units = task.units(batch) * accumulate as usize * share.workers;
        let journal = match (share.rank, self.resume) {
            (0, true) => Some(Journal::resume(self.dir, first)?),
            (0, false) => Some(Journal::create(self.dir)?),
            _ => None,
        };
        let events = journal.as_ref().and(self.tensorboard.as_deref());
        let events = events.map(|folder| Events::create(folder, first)).transpose()?;
        let journal = journal.map(|journal| journal.with_events(events));
        let screen = (share.rank == 0).then(|| Screen::new(self.quiet, first, steps, units, task.unit()));
        let mut state = Loop {
            session: self,
            worker,
            learner: task.learner(share, batch, seed),
            grad: vec![0.0; params.len()],
            params,
            pending: Vec::new(),
            note: Note::default(),
            outliers: 0,
            told_of: Vec::new(),
            journal,
            screen,
            pace: 1,
        };

        let began = Instant::now();
        let mut next_note = first + 1;
        while state.worker.steps() < steps {
            state.step(accumulate, state.worker.steps() + 1 == steps)?;
            let done = state.worker.steps();
            let (evaluates, saves) =
                (done.is_multiple_of(eval_every), checkpoint_every > 0 && done.is_multiple_of(checkpoint_every));
            if done >= next_note || evaluates || saves || done == steps {
                let stop = state.exchange_notes()?;
                next_note = done + state.pace;
                if evaluates && done < steps {
                    state.evaluate(GLANCE, false)?;
                }
                if stop && done < steps {
                    state.say_that_it_stops();
                }
                if (saves || stop) && done < steps {
                    state.save()?;
                }
                if stop && done < steps {
                    return Ok(state.end(None, first, units, began));
                }
            }
        }
        state.save()?; // before the evaluation, which may take long: nothing of the training is lost with it
        let score = state.evaluate(settings.eval_examples.unwrap_or(usize::MAX), true)?;
        if score.is_none() {
            state.say_that_it_stops();
        }
        Ok(state.end(score, first, units, began))
    }

    fn checkpoint(&self) -> PathBuf {
        self.dir.join("checkpoint")
    }
}

impl Loop<'_> {
    /// Forward, backward and the optimizer's step; after the last one all replicas are made equal.
    fn step(&mut self, accumulate: u64, last: bool) -> Result<()> {
        let step = self.worker.steps();
        let lr = self.session.job.settings.schedule().at(step);
        let (began, cpu) = (Instant::now(), ThreadTime::now());
        self.grad.fill(0.0);
        let mut loss = 0.0;
        for part in 0..accumulate {
            let weight = 1.0 / accumulate as f32;
            loss += weight * self.learner.learn(&self.params, step * accumulate + part, weight, &mut self.grad);
        }
        let (compute, compute_cpu) = (began.elapsed().as_secs_f64(), cpu.elapsed().as_secs_f64());

        let (before, cpu) = (self.worker.traffic(), ThreadTime::now());
        self.worker.step(&mut self.params, &self.grad, lr)?;
        if last {
            self.worker.sync(&mut self.params)?;
        }
        let after = self.worker.traffic();
        if let (None, Some(jump)) = (before.first_jump, after.first_jump) {
            self.tell_of_jump(&jump);
        }
        let (pack, total) = (cpu.elapsed().as_secs_f64(), began.elapsed().as_secs_f64());
        let wire = after.seconds.wire - before.seconds.wire;
        let bytes = after.bytes_sent - before.bytes_sent;
        let between_hosts = after.bytes_between_hosts - before.bytes_between_hosts;
        self.note.steps.push(Told { loss, bytes, between_hosts, compute_cpu });
        self.pending.push(Step {
            step,
            loss: f64::from(loss),
            lr: f64::from(lr),
            round: round(&before, &after).to_owned(),
            bytes: bytes as f64,
            bytes_total: 0.0,
            bytes_between_hosts: between_hosts as f64,
            // Whatever is not computing is waiting: for another worker, or for a core.
            seconds: Phases { total, compute, pack, wire, wait: (total - compute - pack - wire).max(0.0) },
            compute_cpu,
        });
        Ok(())
    }

    /// Said once: later ones are counted.
    fn tell_of_jump(&self, jump: &Jump) {
        if let Some(screen) = &self.screen
            && !self.session.quiet
        {
            let tensors = self.session.job.task.get().tensors();
            let name =
                tensors.iter().find(|tensor| tensor.range.contains(&jump.parameter)).map_or("?", |tensor| &tensor.name);
            let step = jump.step;
            screen.aside(|| say!("warning: step {step} moved a parameter of {name} by more than 100 learning rates"));
        }
    }

    /// Tells the others and hears from them; true when somebody wants to stop.
    fn exchange_notes(&mut self) -> Result<bool> {
        self.note.stop = self.session.stop.load(Ordering::Relaxed);
        if let Some(last) = self.pending.last() {
            self.note.pace = ((PACE / last.seconds.total.max(1e-9)) as u64).clamp(1, 1000);
        }
        let notes = self.tell()?;
        self.pace = notes[0].pace.max(1);
        let workers = notes.len() as f64;
        for (index, mut step) in std::mem::take(&mut self.pending).into_iter().enumerate() {
            let mean = |part: fn(&Told) -> f64| {
                notes.iter().filter_map(|note| note.steps.get(index)).map(part).sum::<f64>() / workers
            };
            step.loss = mean(|told| f64::from(told.loss));
            step.bytes = mean(|told| told.bytes as f64);
            step.bytes_between_hosts = mean(|told| told.between_hosts as f64);
            step.compute_cpu = mean(|told| told.compute_cpu);
            if let (Some(journal), Some(screen)) = (&mut self.journal, &mut self.screen) {
                journal.step(step.clone())?;
                screen.step(&step, &journal.totals);
            }
        }
        if let Some(journal) = &mut self.journal {
            journal.flush()?;
        }
        Ok(notes.iter().any(|note| note.stop))
    }

    fn tell(&mut self) -> Result<Vec<Note>> {
        let traffic = self.worker.traffic();
        self.note.outliers = traffic.outliers;
        self.note.first_outlier = traffic.first_outlier.map(|found| (found.step, found.norm, found.limit));
        let told = serde_json::to_vec(&std::mem::take(&mut self.note))?;
        let notes = self.worker.gather(&told)?;
        let notes = notes.iter().map(|note| serde_json::from_slice(note)).collect::<Result<Vec<Note>, _>>()?;
        self.outliers = notes.iter().map(|note| note.outliers).sum();
        self.tell_of_outliers(&notes);
        Ok(notes)
    }

    /// Of each worker's first: later ones are counted.
    fn tell_of_outliers(&mut self, notes: &[Note]) {
        for (worker, note) in notes.iter().enumerate() {
            let Some((step, norm, limit)) = note.first_outlier.filter(|_| !self.told_of.contains(&worker)) else {
                continue;
            };
            self.told_of.push(worker);
            if let Some(screen) = &self.screen
                && !self.session.quiet
            {
                screen.aside(|| {
                    say!(
                        "warning: the gradient of worker {worker} at step {step} is an outlier: norm {norm:.3e}, expected at most {limit:.3e}"
                    )
                });
            }
        }
    }

    /// Everybody's score of `examples` held-out examples together. Between two syncs each worker scores its own view. The `last`
    /// one may take long: it shows how far it is, and ends without a score when the user wants to stop.
    fn evaluate(&mut self, examples: usize, last: bool) -> Result<Option<Score>> {
        let (screen, stop) = (&mut self.screen, self.session.stop);
        let mut watch = |done, of| match last {
            false => ControlFlow::Continue(()),
            true => {
                if let Some(screen) = screen {
                    screen.evaluating(done, of);
                }
                if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }
        };
        let part = self.learner.evaluate_watched(&self.params, examples, &mut watch);
        self.note.stop = part.is_none();
        self.note.score = part.map(|part| (part.loss, part.count, part.confusion));
        let notes = self.tell()?;
        if notes.iter().any(|note| note.stop) {
            return Ok(None);
        }
        let mut score = Score::default();
        for (loss, count, confusion) in notes.into_iter().filter_map(|note| note.score) {
            score.add(&Score { loss, count, confusion });
        }
        if let (Some(journal), Some(screen)) = (&mut self.journal, &mut self.screen) {
            screen.eval(score.mean_loss());
            journal.eval(Eval {
                step: self.worker.steps(),
                val_loss: score.mean_loss(),
                accuracy: score.accuracy(),
                matthews: score.matthews(),
            })?;
            journal.flush()?;
        }
        Ok(Some(score))
    }

    /// Of a launcher's processes worker 0 says it, and not before all workers have met: when one was lost, a launcher tells the
    /// others to stop as well. Without a launcher it was said at once.
    fn say_that_it_stops(&self) {
        if let Some(screen) = &self.screen
            && team::rank_by_environment().is_some()
        {
            screen.close();
            say!("told to stop: all workers are there and write the checkpoint");
        }
    }

    fn save(&mut self) -> Result<()> {
        self.worker.save(&self.session.checkpoint(), &self.params)?;
        if resume::writes_beside(self.worker.rank()) {
            resume::write_beside(self.session.job, self.session.dir)?;
        }
        Ok(())
    }

    fn end(self, score: Option<Score>, first: u64, units: usize, began: Instant) -> End {
        if let Some(screen) = &self.screen {
            screen.close();
        }
        let steps = self.worker.steps();
        End {
            params: self.params,
            score,
            totals: self.journal.map(|journal| journal.totals).unwrap_or_default(),
            steps,
            jumps: self.worker.traffic().jumps,
            outliers: self.outliers,
            units_per_second: (steps - first) as f64 * units as f64 / began.elapsed().as_secs_f64().max(1e-9),
        }
    }
}

/// What the step averaged: a sync at the end of the run makes a skipped step a coarse one.
pub fn round(before: &Traffic, after: &Traffic) -> &'static str {
    match (before.rounds, after.rounds) {
        (before, after) if after.exact > before.exact => "exact",
        (before, after) if after.coarse > before.coarse => "coarse",
        _ => "skipped",
    }
}
