//! A worker of a server: the engine's [`Worker`], over a connection that comes back, among others that come and go.
//!
//! ```no_run
//! use thinwire_server::{JoinOptions, RemoteGroup};
//!
//! let group = RemoteGroup::join(JoinOptions::new("192.0.2.7:7070", "lab-3"))?;
//! let (mut member, mut params) = group.start()?;
//! while !member.is_done() {
//!     let gradient = vec![0.0; params.len()]; // yours, at params, for step member.steps()
//!     member.step(&mut params, &gradient)?;
//! }
//! member.leave();
//! # Ok::<(), thinwire_server::Error>(())
//! ```

#[cfg(test)]
mod tests;

use crate::connection::JoinOptions;
use crate::error::{Error, Result};
use crate::frames::write_whole;
use crate::link::Link;
use crate::proto::Welcome;
use crate::snapshot::{self, Own};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use thinwire::LearningRate;
use thinwire::{Collective, Config, Error as EngineError, Result as EngineResult, Traffic, Worker};
use xxhash_rust::xxh3::xxh3_64;

/// What stands beside a member's checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The run, and the name of the worker in it.
    pub run: String,
    pub name: String,
    /// Rounds heard, by steps. While a checkpoint is written also of the one before: either may be what a kill leaves.
    pub rounds: BTreeMap<u64, u64>,
    /// Rounds heard when a round was interrupted. What was the worker's own then counts instead of the checkpoint.
    #[serde(default)]
    pub interrupted: Option<u64>,
}

impl Membership {
    const FILE: &str = "member.json";
    const OWN: &str = "own.safetensors";

    /// Whose checkpoint is in `dir`, if one is: this is written before the first.
    pub fn read(dir: &Path) -> Option<Membership> {
        Membership::begun(dir).filter(|_| Membership::is_complete(dir))
    }

    /// Whose checkpoint is in `dir`, or was being written when the worker was killed.
    pub fn begun(dir: &Path) -> Option<Membership> {
        let found = std::fs::read(dir.join(Membership::FILE)).ok()?;
        serde_json::from_slice(&found).ok()
    }

    /// Whether there is something in `dir` to go on from: a checkpoint that was finished, or what an interrupted worker had.
    pub fn is_complete(dir: &Path) -> bool {
        let interrupted = || Membership::begun(dir).is_some_and(|found| found.interrupted.is_some());
        dir.join("manifest.json").exists() || interrupted()
    }

    fn write(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        write_whole(&dir.join(Membership::FILE), &serde_json::to_vec_pretty(self).expect("plain data"))
    }
}

/// A run that this worker has joined, before its first step.
pub struct RemoteGroup {
    link: Arc<Link>,
    name: String,
    welcome: Welcome,
    config: Config,
}

impl RemoteGroup {
    /// Joins a run, and hears what it is.
    pub fn join(mut options: JoinOptions) -> Result<RemoteGroup> {
        let name = options.name.clone();
        options.patience = options.patience.max(Duration::from_millis(1));
        RemoteGroup::of(Link::join(options)?, name)
    }

    /// Of one who has been welcomed.
    pub(crate) fn of((link, welcome): (Link, Welcome), name: String) -> Result<RemoteGroup> {
        let config = Config::from_json(&welcome.config)?;
        Ok(RemoteGroup { link: Arc::new(link), name, welcome, config })
    }

    /// The optimizer that runs there, resolved.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// By which the run is known.
    pub fn run(&self) -> &str {
        &self.welcome.run
    }

    /// What the program on the server has to tell.
    pub fn job(&self) -> &str {
        &self.welcome.job
    }

    pub fn parameters(&self) -> usize {
        self.welcome.parameters as usize
    }

    /// How many workers the run is made for.
    pub fn workers(&self) -> usize {
        self.welcome.workers as usize
    }

    /// This worker's place among them; more may come than the run is made for.
    pub fn slot(&self) -> usize {
        self.welcome.slot as usize
    }

    pub fn steps(&self) -> u64 {
        self.welcome.steps
    }

    /// Starts from the server's snapshot and the rounds since; the parameters are where the others' are.
    pub fn start(self) -> Result<(Member, Vec<f32>)> {
        self.begin(Own::default(), 0)
    }

    /// Comes back with the checkpoint that [`Member::save`] left in `dir`: this worker's residue and its own moments.
    ///
    /// If no round since has counted it, and the log goes back so far, it goes on from exactly there. If one has, some of what the
    /// residue holds was told after the checkpoint was written, and none of it may be told again: it is dropped.
    pub fn resume(self, dir: &Path) -> Result<(Member, Vec<f32>)> {
        let saved = Membership::read(dir)
            .ok_or_else(|| Error::Usage(format!("{}: no checkpoint of a member", dir.display())))?;
        if saved.run != self.welcome.run || saved.name != self.name {
            let (ours, theirs) = ((&self.welcome.run, &self.name), (&saved.run, &saved.name));
            return Err(Error::Usage(format!("{}: of {theirs:?}, not of {ours:?}", dir.display())));
        }
        if let Some(rounds) = saved.interrupted {
            return self.begin(Own::read(&dir.join(Membership::OWN))?, rounds);
        }
        let mut params = vec![0.0; self.parameters()];
        let line = Line::new(&self.link, &self.welcome, 0);
        let state = line.shared();
        let mut worker = Worker::resume(&self.config, dir, &mut params, Box::new(line))?;
        let rounds = saved.rounds.get(&worker.steps()).copied().ok_or_else(|| {
            Error::Usage(format!("{}: the checkpoint is of another step than {}", dir.display(), Membership::FILE))
        })?;
        state.round.store(rounds, Ordering::Relaxed);
        let counted_since = self.welcome.counted > rounds;
        if !counted_since && self.welcome.oldest <= rounds && rounds <= self.welcome.rounds {
            self.link.follow(rounds);
            return self.member(worker, state, params);
        }
        self.begin(Own::of(&mut worker)?, rounds)
    }

    /// Begins with the server's snapshot, and with what was this worker's `own` after so many `rounds`.
    fn begin(mut self, own: Own, rounds: u64) -> Result<(Member, Vec<f32>)> {
        let mut params = vec![0.0; self.parameters()];
        // The welcome that came with the snapshot says whether a round since has counted this worker: one before it may be older.
        let snapshot = self.link.snapshot(&mut self.welcome)?;
        let own = if self.welcome.counted > rounds { own.without_residue() } else { own };
        let (worker, state) = start_from(snapshot, &self.link, &self.welcome, &self.config, &mut params, &own)?;
        self.member(worker, state, params)
    }

    /// A member that has heard all there is.
    fn member(self, worker: Worker, line: Arc<LineState>, mut params: Vec<f32>) -> Result<(Member, Vec<f32>)> {
        let schedule = self.config.learning_rate.clone().expect("a server's configuration has one");
        let mut member = Member {
            worker,
            line,
            schedule,
            counted: 0,
            left_out: 0,
            started_over: 0,
            behind: self.welcome.rounds,
            group: self,
            failed: false,
        };
        member.catch_up(&mut params)?;
        member.group.link.ready(member.rounds());
        Ok((member, params))
    }
}

fn start_from(
    (rounds, bytes): (u64, Vec<u8>),
    link: &Arc<Link>,
    welcome: &Welcome,
    config: &Config,
    params: &mut [f32],
    own: &Own,
) -> Result<(Worker, Arc<LineState>)> {
    let line = Line::new(link, welcome, rounds);
    let state = line.shared();
    let mut worker = Worker::new(config, params, Box::new(line))?;
    snapshot::restore(&mut worker, params, &bytes, own)?;
    link.follow(rounds);
    Ok((worker, state))
}

/// What a member and its line both look at.
#[derive(Default)]
struct LineState {
    /// The round that comes next.
    round: AtomicU64,
    /// Of the round that came last.
    left_out: AtomicBool,
    /// Bits of the loss to report; NaN for none.
    loss: AtomicU64,
}

/// The engine's side of a link.
struct Line {
    link: Arc<Link>,
    workers: usize,
    slot: usize,
    /// XXH3 of the message that was sent last.
    sent: u64,
    state: Arc<LineState>,
}

impl Line {
    fn new(link: &Arc<Link>, welcome: &Welcome, round: u64) -> Line {
        let state = LineState { round: round.into(), loss: f64::NAN.to_bits().into(), ..LineState::default() };
        let workers = welcome.workers as usize;
        Line { link: Arc::clone(link), workers, slot: welcome.slot as usize, sent: 0, state: Arc::new(state) }
    }

    fn shared(&self) -> Arc<LineState> {
        Arc::clone(&self.state)
    }
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

    /// The number of workers is left to the server.
    fn seat(&self) -> usize {
        self.slot + usize::from(self.slot >= self.workers)
    }

    fn left_out(&self) -> bool {
        self.state.left_out.load(Ordering::Relaxed)
    }

    fn reserve(&mut self, _: usize, _: usize) {}

    fn send(&mut self, _: usize, message: &[u8], _: &'static str) -> EngineResult<()> {
        let round = self.state.round.load(Ordering::Relaxed);
        self.sent = xxh3_64(message);
        self.state.left_out.store(false, Ordering::Relaxed);
        // A round that was made while this worker was busy, or away, needs no message any more.
        if !self.link.has(round) {
            let loss = f64::from_bits(self.state.loss.load(Ordering::Relaxed));
            self.link.send(round, message, Some(loss).filter(|loss| !loss.is_nan()));
        }
        Ok(())
    }

    fn receive(&mut self, _: usize, message: &mut Vec<u8>, _: &'static str) -> EngineResult<()> {
        let round = self.state.round.load(Ordering::Relaxed);
        match self.link.receive(round, self.sent) {
            Ok((record, counts)) => {
                self.state.left_out.store(!counts, Ordering::Relaxed);
                self.state.round.store(round + 1, Ordering::Relaxed);
                message.clear();
                message.extend_from_slice(&record.message);
                Ok(())
            }
            Err(problem) => {
                // The server remembers whether the round that it no longer has counted this worker. Of one that is not there yet
                // it will be known when the worker comes back.
                let left_out = match self.link.gap() {
                    Some(counted) => counted <= round,
                    None => self.link.is_interrupted(),
                };
                self.state.left_out.store(left_out, Ordering::Relaxed);
                Err(EngineError::Transport { problem })
            }
        }
    }
}

/// Ends the step of a [`Member`] on another thread that waits for a round which may not come.
pub struct Interrupter(Arc<Link>);

impl Interrupter {
    /// The step fails, and so does every later one.
    pub fn interrupt(&self) {
        self.0.interrupt();
    }

    /// Whether the server is out of reach.
    pub fn is_away(&self) -> bool {
        self.0.away().is_some()
    }
}

/// One of the workers of a server, from its first step to its last.
pub struct Member {
    group: RemoteGroup,
    worker: Worker,
    line: Arc<LineState>,
    schedule: LearningRate,
    counted: u64,
    left_out: u64,
    started_over: u64,
    /// Rounds of the server that this worker has not heard yet when it comes: it says when it has.
    behind: u64,
    /// A step or a round has failed: the engine's worker does no more.
    failed: bool,
}

impl Member {
    /// Steps taken, by this worker or without it.
    pub fn steps(&self) -> u64 {
        self.worker.steps()
    }

    /// Whether the run is at its end, and this worker knows all of it.
    pub fn is_done(&self) -> bool {
        self.worker.steps() >= self.group.steps() && self.worker.is_synced()
    }

    /// The learning rate of the step to come: the schedule's, which all must keep to.
    pub fn lr(&self) -> f32 {
        self.schedule.at(self.worker.steps())
    }

    /// Rounds heard.
    pub fn rounds(&self) -> u64 {
        self.line.round.load(Ordering::Relaxed)
    }

    /// Rounds that counted this worker.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Rounds that were made without a message that this worker had for them. What it had to say is in its residue.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// How often it was away for longer than the log goes back, and started over from a snapshot.
    pub fn started_over(&self) -> u64 {
        self.started_over
    }

    /// How often the server was out of reach, and came back.
    pub fn returns(&self) -> u64 {
        self.group.link.returns()
    }

    /// For how long the server has been out of reach, if it is.
    pub fn away(&self) -> Option<Duration> {
        self.group.link.away()
    }

    pub fn group(&self) -> &RemoteGroup {
        &self.group
    }

    pub fn traffic(&self) -> Traffic {
        self.worker.traffic()
    }

    /// The engine's worker, to look at its state.
    pub fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    /// Tells the server this loss with the next message.
    pub fn report_loss(&mut self, loss: f64) {
        self.line.loss.store(loss.to_bits(), Ordering::Relaxed);
    }

    /// One step, with this worker's gradient at `params`. If others have gone on without it meanwhile, `params` are then where
    /// theirs are: [`Member::steps`] may have grown by more than one.
    pub fn step(&mut self, params: &mut [f32], grad: &[f32]) -> Result<()> {
        let lr = self.lr();
        let before = self.rounds();
        let stepped = self.worker.step(params, grad, lr);
        self.settle(stepped, params, before)?;
        self.catch_up(params)
    }

    /// Counts what came of a round; starts over after a gap.
    fn settle<T>(&mut self, done: EngineResult<T>, params: &mut [f32], before: u64) -> Result<()> {
        let heard = self.rounds() > before;
        match done {
            Ok(_) => {
                let left_out = self.line.left_out.load(Ordering::Relaxed);
                self.left_out += u64::from(heard && left_out);
                self.counted += u64::from(heard && !left_out);
                Ok(())
            }
            Err(_) if self.group.link.gap().is_some() => self.start_over(params),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn fail(&mut self, error: EngineError) -> Error {
        self.failed = true;
        error.into()
    }

    /// Hears every round that is here already; at the end also the sync that ends the run.
    fn catch_up(&mut self, params: &mut [f32]) -> Result<()> {
        let before = self.rounds();
        loop {
            let (round, end) = (self.rounds(), self.worker.steps() >= self.group.steps());
            // When it comes it waits for the rounds that are on their way; later it takes what has come.
            let due = self.group.link.has(round) || round < self.behind;
            if self.is_done() || !(due || end) {
                break;
            }
            let heard = match end {
                true => self.worker.sync(params),
                false => self.worker.follow(params, self.schedule.at(self.worker.steps())).map(|_| ()),
            };
            match heard {
                Err(_) if self.group.link.gap().is_some() => self.start_over(params)?,
                heard => heard.map_err(|error| self.fail(error))?,
            }
        }
        if self.rounds() > before || self.line.left_out.load(Ordering::Relaxed) {
            self.group.link.ready(self.rounds());
        }
        Ok(())
    }

    /// The log no longer has what this worker needs: the newest snapshot, and what is its own.
    fn start_over(&mut self, params: &mut [f32]) -> Result<()> {
        let own = Own::of(&mut self.worker)?;
        self.failed = true; // until there is a worker again
        let group = &mut self.group;
        let known = group.link.gap();
        group.welcome = group.link.join_again()?;
        let snapshot = group.link.snapshot(&mut group.welcome)?;
        // Another of this name was counted meanwhile.
        let own = if known.is_some_and(|known| group.welcome.counted > known) { own.without_residue() } else { own };
        self.behind = group.welcome.rounds;
        (self.worker, self.line) = start_from(snapshot, &group.link, &group.welcome, &group.config, params, &own)?;
        self.failed = false;
        self.started_over += 1;
        Ok(())
    }

    /// Ends a step that waits for its round, from another thread.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter(Arc::clone(&self.group.link))
    }

    /// Whether a step was ended that way.
    pub fn is_interrupted(&self) -> bool {
        self.failed && self.group.link.is_interrupted()
    }

    /// Saves what [`RemoteGroup::resume`] comes back with, also after a step that was interrupted: then this worker's own state as
    /// if the round had been made without it. (1-bit Adam and 0/1 Adam, which can only compare what they sent with what the others
    /// made of it, drop that vector.)
    pub fn save(&mut self, dir: &Path, params: &[f32]) -> Result<()> {
        let (run, name) = (self.group.welcome.run.clone(), self.group.name.clone());
        let rounds = BTreeMap::from([(self.steps(), self.rounds())]);
        let now = Membership { run, name, rounds, interrupted: None };
        let mut both = now.clone();
        if let Some(saved) = Membership::read(dir).filter(|saved| saved.run == now.run && saved.name == now.name) {
            both.rounds.extend(saved.rounds);
            both.interrupted = saved.interrupted;
        }
        if self.is_interrupted() {
            std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
            Own::of(&mut self.worker)?.write(&dir.join(Membership::OWN))?;
            return Membership { interrupted: Some(self.rounds()), ..both }.write(dir);
        }
        both.write(dir)?;
        self.worker.save(dir, params)?;
        now.write(dir)
    }

    /// Tells the server that nobody need wait for this worker any more.
    pub fn leave(self) {
        self.group.link.leave();
    }
}
