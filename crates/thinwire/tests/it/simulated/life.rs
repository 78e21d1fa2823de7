//! A worker of a schedule: it joins, steps, saves, and writes down what it held at every turn. And its transport, with what goes wrong.

use super::setup::{Action, DEADLINE, Fault, Generation, How, PAUSE};
use super::transport::scheduler::sleep;
use super::transport::threads::Thread;
use crate::common::runs;
use runs::{LEN, Replica};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use thinwire::{Collective, Config, Error, Result};

/// Names, and numbers.
pub type State = BTreeMap<&'static str, Vec<f64>>;

/// What a worker has seen; it outlives the worker's panic.
#[derive(Clone, Debug, Default)]
pub struct Diary {
    /// Digests of the parameters, or of the whole state, in the order of what it did.
    pub pages: Vec<u64>,
    pub steps: u64,
    /// The last step of which it knows that a checkpoint is there.
    pub saved: Option<u64>,
    /// Its state when it joined, and at every checkpoint.
    pub joined: State,
    pub at_save: BTreeMap<u64, State>,
}

/// What a worker of a group is to do.
pub struct Task<'a> {
    pub config: &'a Config,
    pub generation: &'a Generation,
    /// The checkpoint to go on from.
    pub from: Option<PathBuf>,
    /// The folder for the checkpoint of a step.
    pub folder: &'a (dyn Fn(u64) -> PathBuf + Sync),
}

impl Task<'_> {
    /// Whatever `diary` has when it ends, also by a panic. `before` is called before every step, and may make its gradient NaN or end it.
    pub fn live(
        &self,
        end: impl Collective + 'static,
        before: &dyn Fn(u64) -> Before,
        diary: &mut Diary,
    ) -> Result<()> {
        let mut replica = match &self.from {
            None => Replica::new(self.config, LEN, end)?,
            Some(folder) => Replica::resume(self.config, folder, LEN, end)?,
        };
        diary.joined = state(&mut replica)?;
        diary.pages.push(digest(&replica.x));
        while replica.worker.steps() < self.generation.until {
            let what = before(replica.worker.steps());
            if what == Before::Leave {
                return Ok(());
            }
            let made = replica.step_with(|gradient| {
                if what == Before::Spoil {
                    gradient[0] = f32::NAN;
                }
            });
            if let Err(error) = made {
                assert!(matches!(replica.step(), Err(Error::Stopped)) || replica.worker.size() == 1, "it goes on");
                return Err(error);
            }
            diary.steps += 1;
            diary.pages.push(digest(&replica.x));
            self.act(&mut replica, diary)?;
        }
        Ok(())
    }

    fn act(&self, replica: &mut Replica, diary: &mut Diary) -> Result<()> {
        let step = replica.worker.steps();
        match self.generation.actions.get(&step) {
            Some(Action::Save) => {
                replica.save(&(self.folder)(step))?;
                diary.saved = Some(step);
                let state = state(replica)?;
                diary.pages.push(digest_of_all(&state));
                diary.at_save.insert(step, state);
            }
            Some(Action::Note) => {
                let notes = replica.worker.gather(&[replica.worker.rank() as u8])?;
                let all = (0..replica.worker.size()).map(|rank| vec![rank as u8]).collect::<Vec<_>>();
                assert_eq!(notes, all, "notes");
            }
            Some(Action::Sync) => {
                replica.sync()?;
                diary.pages.push(digest(&replica.x));
            }
            None => {}
        }
        Ok(())
    }
}

/// What happens before a step.
#[derive(Clone, Copy, PartialEq)]
pub enum Before {
    Nothing,
    Spoil,
    Leave,
}

fn state(replica: &mut Replica) -> Result<State> {
    replica.worker.state()?; // what is on its way arrives here, or fails to
    Ok(replica.numbers())
}

fn digest(x: &[f32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    x.iter().for_each(|x| x.to_bits().hash(&mut hasher));
    hasher.finish()
}

fn digest_of_all(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (name, values) in state {
        name.hash(&mut hasher);
        values.iter().for_each(|value| value.to_bits().hash(&mut hasher));
    }
    hasher.finish()
}

/// A transport that counts its calls, and fails when its time has come.
pub struct Watched<C> {
    inner: C,
    calls: Arc<AtomicU64>,
    /// Before which calls what happens.
    faults: Vec<(u64, How)>,
    /// Whether the next message but one to a worker overtakes the next, on purpose, and what waits.
    overtakes: Option<(usize, Vec<u8>)>,
    swaps_at: Option<u64>,
}

impl<C: Collective> Watched<C> {
    pub fn new(inner: C, calls: &Arc<AtomicU64>) -> Watched<C> {
        Watched { inner, calls: Arc::clone(calls), faults: Vec::new(), overtakes: None, swaps_at: None }
    }

    /// From call `at` on, a message to a worker comes after the one that follows it.
    pub fn swapping(self, at: Option<u64>) -> Watched<C> {
        Watched { swaps_at: at, ..self }
    }

    fn count(&self) -> Result<()> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        for (_, how) in self.faults.iter().filter(|(at, _)| *at == call) {
            match how {
                How::Panics => resume_unwind(Box::new("a fault on purpose")),
                How::Fails => return Err(broken(self.inner.rank())),
                How::Stalls => sleep(2 * DEADLINE),
                How::Slow => sleep(PAUSE),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Watched<Thread> {
    /// With the faults of its worker that strike in calls, of which the group's reference has made so many.
    pub fn with_faults(mut self, faults: &[Fault], calls: u64) -> Watched<Thread> {
        let rank = self.inner.rank();
        let mine = faults.iter().filter(|fault| fault.rank == rank && fault.how.is_in_a_call());
        self.faults = mine.map(|fault| (calls * fault.at / 1000, fault.how)).collect();
        for (at, _) in self.faults.iter().filter(|(_, how)| *how == How::Interrupted).copied().collect::<Vec<_>>() {
            let calls = Arc::clone(&self.calls);
            self.inner.look_around(Duration::from_millis(100), move || match calls.load(Ordering::Relaxed) {
                call if call > at => Err(broken(rank)),
                _ => Ok(()),
            });
        }
        self
    }
}

fn broken(rank: usize) -> Error {
    Error::Transport { problem: format!("worker {rank} stops on purpose") }
}

impl<C: Collective> Collective for Watched<C> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn hosts(&self) -> Vec<usize> {
        self.inner.hosts()
    }

    fn reserve(&mut self, longest: usize, under_way: usize) {
        self.inner.reserve(longest, under_way);
    }

    fn send(&mut self, to: usize, message: &[u8], during: &'static str) -> Result<()> {
        self.count()?;
        if let Some((other, kept)) = self.overtakes.take_if(|(other, _)| *other == to) {
            self.inner.send(to, message, during)?;
            return self.inner.send(other, &kept, during);
        }
        if self.swaps_at.is_some_and(|at| self.calls.load(Ordering::Relaxed) > at) {
            self.swaps_at = None;
            self.overtakes = Some((to, message.to_vec()));
            return Ok(());
        }
        self.inner.send(to, message, during)
    }

    fn receive(&mut self, from: usize, message: &mut Vec<u8>, during: &'static str) -> Result<()> {
        self.count()?;
        self.inner.receive(from, message, during)
    }
}
