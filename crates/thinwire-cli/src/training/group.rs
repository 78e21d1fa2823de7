//! Workers of a group, on threads or as processes: each takes part in every step.
//!
//! They exchange notes every few steps, not every step: a note is a round trip, and skipped steps should cost none. Worker 0
//! chooses the pace by the clock and tells it; it alone writes the journal and draws the screen.

use super::{Batches, End, Shared, Start, Stepper};
use crate::job::Job;
use crate::journal::Journal;
use crate::launch;
use crate::resume;
use crate::run_spec::RunSpec;
use crate::screen::{Screen, say};
use crate::tensorboard::Events;
use anyhow::Result;
use serde::{Deserialize, Deserializer, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use thinwire::{Collective, LearningRate, Traffic, Worker};
use thinwire_models::{Score, Share};
use thinwire_report::Step;

/// Seconds between two notes, about.
const PACE: f64 = 0.25;

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

impl<'a> Session<'a> {
    /// One worker, from start to end.
    pub fn run(&'a self, group: Box<dyn Collective>) -> Result<End> {
        let RunSpec { steps, batch, accumulate, checkpoint_every, .. } = self.job.spec;
        let mut params = self.initial.to_vec();
        let worker = if self.resume {
            Worker::resume(&self.job.config, &self.checkpoint(), &mut params, group)?
        } else {
            Worker::new(&self.job.config, &params, group)?
        };
        let first = worker.steps();
        let share = Share { rank: worker.rank(), workers: worker.size() };
        if worker.regrouped() && share.rank == 0 && !self.quiet {
            say!(
                "the workers, or their hosts, are not those of the checkpoint: residuals are conserved, but the run does not go on \
                 bit for bit"
            );
        }
        let batches =
            Batches::new(self.job, share, self.checkpoint(), self.resume.then_some((first, worker.regrouped())))?;
        let (task, journal) = (self.job.task.get(), self.journal(share.rank, first)?);
        let units = task.units(batch) * accumulate as usize * share.workers;
        let screen = (share.rank == 0).then(|| Screen::new(self.quiet, first, steps, units, task.unit()));
        let schedule = self.job.spec.schedule();
        let (pending, note) = (Vec::new(), Note::default());
        let (next_note, told_of, warnings) = (first + 1, Vec::new(), Vec::new());
        let mut group = Group {
            session: self,
            worker,
            schedule,
            steps,
            pending,
            note,
            pace: 1,
            next_note,
            outliers: 0,
            told_of,
            warnings,
        };
        let stop = self.stop;
        let start = Start { job: self.job, share, params, journal, screen, units, checkpoint_every, batches, stop };
        super::run(&mut group, start)
    }

    /// Worker 0's journal.
    fn journal(&self, rank: usize, first: u64) -> Result<Option<Journal>> {
        if rank > 0 {
            return Ok(None);
        }
        let journal = if self.resume { Journal::resume(self.dir, first) } else { Journal::create(self.dir) }?;
        let events = self.tensorboard.as_deref().map(|folder| Events::create(folder, first)).transpose()?;
        Ok(Some(journal.with_events(events)))
    }

    fn checkpoint(&self) -> PathBuf {
        self.dir.join("checkpoint")
    }
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
    #[serde(deserialize_with = "or_nan")]
    loss: f64,
    bytes: f64,
    between_hosts: f64,
    compute_cpu: f64,
}

/// One worker of the group.
struct Group<'a> {
    session: &'a Session<'a>,
    worker: Worker,
    schedule: LearningRate,
    /// Of the whole run.
    steps: u64,
    /// Steps since the last note, as this worker saw them.
    pending: Vec<Step>,
    note: Note,
    pace: u64,
    next_note: u64,
    /// Outliers of all workers, as the last notes say, and the workers whose first was told.
    outliers: u64,
    told_of: Vec<usize>,
    warnings: Vec<String>,
}

impl Stepper for Group<'_> {
    fn steps(&self) -> u64 {
        self.worker.steps()
    }

    fn is_done(&self) -> bool {
        self.worker.steps() >= self.steps
    }

    fn lr(&self) -> f32 {
        self.schedule.at(self.worker.steps())
    }

    fn traffic(&self) -> Traffic {
        self.worker.traffic()
    }

    fn outliers(&self) -> u64 {
        self.outliers
    }

    fn step(&mut self, _loss: f32, params: &mut [f32], grad: &[f32]) -> Result<bool> {
        let lr = self.lr();
        self.worker.step(params, grad, lr)?;
        if self.is_done() {
            self.worker.sync(params)?;
        }
        Ok(true)
    }

    fn gather(&mut self, note: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(self.worker.gather(note)?)
    }

    fn share(&mut self, step: Step, meets: bool) -> Result<Shared> {
        let Step { loss, bytes, bytes_between_hosts, compute_cpu, .. } = step;
        self.note.steps.push(Told { loss, bytes, between_hosts: bytes_between_hosts, compute_cpu });
        self.pending.push(step);
        let done = self.worker.steps();
        if done < self.next_note && !meets {
            return Ok(Shared::default());
        }
        let shared = self.exchange_notes()?;
        self.next_note = done + self.pace;
        Ok(shared)
    }

    fn scores(&self) -> Share {
        Share { rank: self.worker.rank(), workers: self.worker.size() }
    }

    fn common(&mut self) -> Result<Option<Vec<f32>>> {
        Ok(self.worker.anchor()?)
    }

    /// Everybody's score together. Between two syncs each worker of 0/1 Adam scores its own view.
    fn sum(&mut self, part: Option<Score>) -> Result<Option<Score>> {
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
        Ok(Some(score))
    }

    fn save(&mut self, params: &[f32]) -> Result<()> {
        self.worker.save(&self.session.checkpoint(), params)?;
        if resume::writes_beside(self.worker.rank()) {
            resume::write_beside(self.session.job, self.session.dir)?;
        }
        Ok(())
    }

    /// Of a launcher's processes worker 0 says it, and not before all workers have met: when one was lost, a launcher tells the
    /// others to stop as well. Without a launcher it was said at once.
    fn stops(&self) -> Option<&'static str> {
        launch::rank_by_environment().map(|_| "told to stop: all workers are there and write the checkpoint")
    }
}

impl Group<'_> {
    /// Tells the others and hears from them: what all saw of the steps since the last note.
    fn exchange_notes(&mut self) -> Result<Shared> {
        self.note.stop = self.session.stop.load(Ordering::Relaxed);
        if let Some(last) = self.pending.last() {
            self.note.pace = ((PACE / last.seconds.total.max(1e-9)) as u64).clamp(1, 1000);
        }
        let notes = self.tell()?;
        self.pace = notes[0].pace.max(1);
        let workers = notes.len() as f64;
        let mut steps = std::mem::take(&mut self.pending);
        for (index, step) in steps.iter_mut().enumerate() {
            let mean = |part: fn(&Told) -> f64| {
                notes.iter().filter_map(|note| note.steps.get(index)).map(part).sum::<f64>() / workers
            };
            step.loss = mean(|told| told.loss);
            step.bytes = mean(|told| told.bytes);
            step.bytes_between_hosts = mean(|told| told.between_hosts);
            step.compute_cpu = mean(|told| told.compute_cpu);
        }
        let warnings = std::mem::take(&mut self.warnings);
        Ok(Shared { steps, stop: notes.iter().any(|note| note.stop), warnings })
    }

    fn tell(&mut self) -> Result<Vec<Note>> {
        let traffic = self.worker.traffic();
        self.note.outliers = traffic.outliers;
        self.note.first_outlier = traffic.first_outlier.map(|found| (found.step, found.norm, found.limit));
        let told = serde_json::to_vec(&std::mem::take(&mut self.note))?;
        let notes = self.worker.gather(&told)?;
        let notes = notes.iter().map(|note| serde_json::from_slice(note)).collect::<Result<Vec<Note>, _>>()?;
        self.outliers = notes.iter().map(|note| note.outliers).sum();
        self.note_outliers(&notes);
        Ok(notes)
    }

    /// Each worker's first is told; later ones are counted.
    fn note_outliers(&mut self, notes: &[Note]) {
        for (worker, note) in notes.iter().enumerate() {
            let Some((step, norm, limit)) = note.first_outlier.filter(|_| !self.told_of.contains(&worker)) else {
                continue;
            };
            self.told_of.push(worker);
            self.warnings.push(format!(
                "the gradient of worker {worker} at step {step} is an outlier: norm {norm:.3e}, expected at most {limit:.3e}"
            ));
        }
    }
}

/// A loss that is not finite is `null` in JSON.
fn or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::Told;

    #[test]
    fn a_loss_that_is_not_a_number_reaches_the_others() {
        for loss in [1.5, f64::NAN, f64::INFINITY] {
            let told = Told { loss, bytes: 1.0, between_hosts: 0.0, compute_cpu: 0.0 };
            let heard: Told = serde_json::from_slice(&serde_json::to_vec(&told).unwrap()).unwrap();
            assert_eq!(heard.loss.is_finite(), loss.is_finite());
        }
    }
}
