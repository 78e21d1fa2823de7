//! The server's own replica: an engine's worker that has no gradients, and follows.
//!
//! It runs in a thread of its own, for a step is one call of the engine: on the way up it shows what a message of the round that
//! comes next must look like (step, codec, digest of the shared state), on the way down it waits for the mean. So the server knows
//! the schedule, and what every worker must agree on, from the engine itself.

use crate::error::{Error, Result};
use crate::snapshot::{self, Own};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use thinwire::Round;
use thinwire::{Collective, Config, Error as EngineError, Result as EngineResult, Worker};
use xxhash_rust::xxh3::xxh3_64;

/// Where a run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A round: the header that its messages have.
    Round(Vec<u8>),
    /// No more; the digest of the parameters.
    End(u64),
}

/// What the thread says.
enum Said {
    Next(Next),
    /// The mean is applied; a snapshot if one was wanted.
    Heard(Option<Vec<u8>>),
    Failed(Error),
}

/// A mean, and whether a snapshot is wanted after it.
struct Mean(Vec<u8>, bool);

pub struct Replica {
    said: Receiver<Said>,
    means: SyncSender<Mean>,
    _thread: JoinHandle<()>,
}

/// What a replica starts from.
pub enum From<'a> {
    Parameters(&'a [f32]),
    Snapshot(&'a [u8]),
}

/// The replica's line to the server.
struct Line {
    workers: usize,
    said: SyncSender<Said>,
    means: Receiver<Mean>,
    wanted: Arc<AtomicBool>,
}

impl Line {
    fn new(workers: usize) -> (Line, Receiver<Said>, SyncSender<Mean>) {
        let ((said, heard), (to_hear, means)) = (sync_channel(1), sync_channel(1));
        (Line { workers, said, means, wanted: Arc::default() }, heard, to_hear)
    }
}

const GONE: &str = "the server stops";

fn gone() -> EngineError {
    EngineError::Transport { problem: GONE.to_owned() }
}

impl Collective for Line {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn served(&self) -> Option<usize> {
        Some(self.workers)
    }

    fn reserve(&mut self, _: usize, _: usize) {}

    fn send(&mut self, _: usize, message: &[u8], _: &'static str) -> EngineResult<()> {
        self.said.send(Said::Next(Next::Round(message.to_vec()))).map_err(|_| gone())
    }

    fn receive(&mut self, _: usize, message: &mut Vec<u8>, _: &'static str) -> EngineResult<()> {
        let Mean(mean, wanted) = self.means.recv().map_err(|_| gone())?;
        self.wanted.store(wanted, Ordering::Relaxed);
        *message = mean;
        Ok(())
    }
}

/// The state before the first step.
pub fn state_before(config: &Config, initial: &[f32], workers: usize) -> Result<Vec<u8>> {
    let mut worker = Worker::new(config, initial, Box::new(Line::new(workers).0))?;
    snapshot::take(&mut worker, &mut initial.to_vec())
}

impl Replica {
    /// Starts at `from`, under a configuration that [`snapshot::served`] made, for a run of `steps`.
    pub fn start(config: &Config, parameters: usize, from: From<'_>, workers: usize, steps: u64) -> Result<Replica> {
        let (line, heard, means) = Line::new(workers);
        let (said, wanted) = (line.said.clone(), Arc::clone(&line.wanted));
        let mut params = vec![0.0; parameters];
        let worker = match from {
            From::Parameters(initial) => {
                params.copy_from_slice(initial);
                Worker::new(config, &params, Box::new(line))?
            }
            From::Snapshot(bytes) => {
                let mut worker = Worker::new(config, &params, Box::new(line))?;
                snapshot::restore(&mut worker, &mut params, bytes, &Own::default())?;
                worker
            }
        };
        let follower = Follower { worker, params, steps, said, wanted };
        let thread = std::thread::Builder::new().name("replica".to_owned()).spawn(move || follower.run());
        let _thread = thread.map_err(Error::io("a thread"))?;
        Ok(Replica { said: heard, means, _thread })
    }

    fn said(&mut self) -> Result<Said> {
        match self.said.recv() {
            Ok(Said::Failed(error)) => Err(error),
            Ok(said) => Ok(said),
            Err(_) => Err(Error::Engine(gone())),
        }
    }

    /// What comes next; to be asked once at the start, and once after each [`Replica::hear`].
    pub fn what_next(&mut self) -> Result<Next> {
        match self.said()? {
            Said::Next(next) => Ok(next),
            _ => unreachable!("it has heard nothing"),
        }
    }

    /// Applies the mean of the round that came next.
    pub fn hear(&mut self, mean: Vec<u8>, snapshot: bool) -> Result<Option<Vec<u8>>> {
        if self.means.send(Mean(mean, snapshot)).is_err() {
            return Err(self.said().err().unwrap_or(Error::Engine(gone())));
        }
        match self.said()? {
            Said::Heard(snapshot) => Ok(snapshot),
            _ => unreachable!("it was told a mean"),
        }
    }
}

struct Follower {
    worker: Worker,
    params: Vec<f32>,
    steps: u64,
    said: SyncSender<Said>,
    wanted: Arc<AtomicBool>,
}

impl Follower {
    fn run(mut self) {
        let end = match self.follow() {
            Ok(()) => Said::Next(Next::End(xxh3_64(bytemuck::cast_slice(&self.params)))),
            Err(error) => Said::Failed(error),
        };
        let _ = self.said.send(end); // nobody may be listening any more
    }

    fn follow(&mut self) -> Result<()> {
        let schedule = self.worker.config().learning_rate.clone().expect("a server's configuration has one");
        while self.worker.steps() < self.steps {
            let round = self.worker.follow(&mut self.params, schedule.at(self.worker.steps()))?;
            if round != Round::Skipped {
                self.heard()?;
            }
        }
        if !self.worker.is_synced() {
            self.worker.sync(&mut self.params)?;
            self.heard()?;
        }
        Ok(())
    }

    fn heard(&mut self) -> Result<()> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let snapshot = wanted.then(|| snapshot::take(&mut self.worker, &mut self.params)).transpose()?;
        self.said.send(Said::Heard(snapshot)).map_err(|_| Error::Engine(gone()))
    }
}
