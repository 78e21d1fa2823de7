//! A worker of the simulation: one life of it, from when it joins until it has ended or died.
//!
//! It is the real one: [`RemoteGroup`], [`Member`], the link and the engine's worker, on a thread because the engine waits inside of
//! a step. But it runs only while the world waits for it: wherever it would wait, it asks, and stops until the world answers. So at
//! any time one thread runs, and which one does follows from the seed.

use crate::carrier::Carrier;
use crate::connection::{End, JoinOptions};
use crate::conversation::{Shared, State};
use crate::link::Link;
use crate::proto::Welcome;
use crate::remote::{Member, Membership, RemoteGroup};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thinwire::inside::state::{Share, Slot};
use xxhash_rust::xxh3::xxh3_64;

/// What a life waits for.
pub enum Ask {
    /// A seat, over a connection of its own.
    Connect,
    /// The newest snapshot, over that connection.
    Fetch,
    /// Nothing: rounds are to come in over that connection.
    Follow(u64),
    /// The next round, or that it need not wait.
    News,
    /// That some time passes.
    Pause,
    /// What to do next.
    Turn(Box<Report>),
    /// Nothing any more.
    Over(Result<(), String>),
}

/// What the world answers.
pub enum Go {
    On,
    Connected(Result<Welcome, End>),
    Fetched(Result<(u64, Vec<u8>), End>),
    Step,
    /// Write a checkpoint.
    Save,
    Die,
}

/// Where a life is, between two steps.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub rounds: u64,
    pub steps: u64,
    /// Of the parameters, if all workers have the same now.
    pub digest: Option<u64>,
    /// Of the messages of this life.
    pub counted: u64,
    pub left_out: u64,
    pub started_over: u64,
    /// Whether its residual is zero everywhere.
    pub owes_nothing: bool,
    /// Of the last step, for Efficient-Adam: the round, and u + e before − e after.
    pub told: Option<(u64, Vec<f64>)>,
    pub done: bool,
    /// Of the first: the rounds of the checkpoint that it began with.
    pub saved: Option<u64>,
}

/// Everything a life is given.
#[derive(Clone)]
pub struct Birth {
    pub name: String,
    pub worker: usize,
    /// Its checkpoints; it begins with the one that is there, if it may.
    pub folder: PathBuf,
    pub resumes: bool,
    /// Whether it saves what it has when it is interrupted.
    pub saves: bool,
    pub accounts: bool,
}

/// The world's end of a life.
pub struct Life {
    pub birth: Birth,
    pub shared: Arc<Shared>,
    asks: Receiver<Ask>,
    answers: Sender<Go>,
    thread: Option<JoinHandle<()>>,
}

impl Life {
    pub fn begin(birth: Birth, time: Time) -> Life {
        let ((to_world, asks), (answers, from_world)) = (channel(), channel());
        let shared = Arc::<Shared>::default();
        let line = Line {
            asks: to_world,
            answers: Mutex::new(from_world),
            shared: Arc::clone(&shared),
            time,
            dead: AtomicBool::new(false),
        };
        let line = Arc::new(line);
        let given = birth.clone();
        let thread = std::thread::spawn(move || {
            let lived = live(&given, &line);
            line.tell(Ask::Over(lived));
        });
        Life { birth, shared, asks, answers, thread: Some(thread) }
    }

    /// What it waits for; it has stopped there.
    pub fn ask(&mut self) -> Ask {
        match self.asks.recv() {
            Ok(ask) => ask,
            Err(_) => {
                let ended = self.thread.take().expect("once").join();
                std::panic::resume_unwind(ended.expect_err("it says when it ends"))
            }
        }
    }

    pub fn answer(&mut self, go: Go) {
        let _ = self.answers.send(go); // a life that has ended hears nothing
    }

    /// It is killed where it waits; nothing that it does then is seen.
    pub fn kill(&mut self) {
        self.answer(Go::Die);
        while !matches!(self.ask(), Ask::Over(_)) {}
    }
}

/// Virtual time: microseconds since the beginning.
#[derive(Clone)]
pub struct Time {
    pub base: Instant,
    pub now: Arc<AtomicU64>,
}

impl Time {
    pub fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now.load(Ordering::Relaxed))
    }
}

/// The life's end.
struct Line {
    asks: Sender<Ask>,
    answers: Mutex<Receiver<Go>>,
    shared: Arc<Shared>,
    time: Time,
    dead: AtomicBool,
}

const KILLED: &str = "killed";

impl Line {
    fn tell(&self, ask: Ask) {
        let _ = self.asks.send(ask);
    }

    fn ask(&self, ask: Ask) -> Go {
        if self.dead.load(Ordering::Relaxed) {
            return Go::Die;
        }
        self.tell(ask);
        let go = self.answers.lock().unwrap_or_else(PoisonError::into_inner).recv().unwrap_or(Go::Die);
        if matches!(go, Go::Die) {
            self.dead.store(true, Ordering::Relaxed);
            self.shared.fail(KILLED.to_owned());
            self.shared.state().note = None; // nobody waits until that is told
        }
        go
    }
}

struct Way(Arc<Line>);

impl Carrier for Way {
    fn connect(&self) -> Result<Welcome, End> {
        match self.0.ask(Ask::Connect) {
            Go::Connected(connected) => connected,
            _ => Err(End::Refused(KILLED.to_owned())),
        }
    }

    fn fetch(&self) -> Result<(u64, Vec<u8>), End> {
        match self.0.ask(Ask::Fetch) {
            Go::Fetched(fetched) => fetched,
            _ => Err(End::Refused(KILLED.to_owned())),
        }
    }

    fn follow(&self, from: u64) {
        self.0.ask(Ask::Follow(from));
    }

    fn pause(&self, _: Duration) {
        self.0.ask(Ask::Pause); // how long is for the world to say: the real time has chance in it
    }

    fn wait<'a>(&self, shared: &'a Shared, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        drop(state);
        self.0.ask(Ask::News);
        shared.state()
    }

    fn now(&self) -> Instant {
        self.0.time.instant()
    }
}

/// A whole life; why it ended.
fn live(birth: &Birth, line: &Arc<Line>) -> Result<(), String> {
    let text = |error: crate::Error| error.to_string();
    let options = JoinOptions::new("simulated:1", &birth.name);
    let link = Link::through(options, Arc::clone(&line.shared), Box::new(Way(Arc::clone(line))));
    let group = link.and_then(|link| RemoteGroup::of(link, birth.name.clone())).map_err(text)?;
    let saved = Membership::read(&birth.folder).filter(|_| birth.resumes);
    let started = if saved.is_some() { group.resume(&birth.folder) } else { group.start() };
    let (mut member, mut params) = started.map_err(text)?;
    let mut report = look(&mut member, &params);
    report.saved = saved.and_then(|saved| saved.interrupted.or(saved.rounds.into_values().max()));
    loop {
        report.done = member.is_done();
        match line.ask(Ask::Turn(Box::new(report.clone()))) {
            Go::Save => member.save(&birth.folder, &params).map_err(text)?,
            Go::Step if report.done => {
                member.leave();
                return Ok(());
            }
            Go::Step => match step(birth, &mut member, &mut params) {
                Ok(stepped) => report = stepped,
                Err(error) if member.is_interrupted() && birth.saves => {
                    member.save(&birth.folder, &params).map_err(text)?;
                    return Err(error.to_string());
                }
                Err(error) => return Err(error.to_string()),
            },
            _ => return Err(KILLED.to_owned()),
        }
    }
}

fn step(birth: &Birth, member: &mut Member, params: &mut [f32]) -> crate::Result<Report> {
    let (round, step, lr, over) = (member.rounds(), member.steps(), f64::from(member.lr()), member.started_over());
    let before = if birth.accounts { floats(member, "up_residue") } else { Vec::new() };
    let (counted, gradient) = (member.counted(), gradient(birth.worker, step, params));
    member.step(params, &gradient)?;
    let mut report = look(member, params);
    if birth.accounts && member.started_over() == over && member.counted() > counted {
        let after = floats(member, "up_residue");
        let update = own_update(member, step, lr);
        let told = before.iter().zip(&after).zip(&update).map(|((e, now), u)| u + e - now);
        report.told = Some((round, told.collect()));
    }
    Ok(report)
}

fn look(member: &mut Member, params: &[f32]) -> Report {
    let digest = xxh3_64(bytemuck::cast_slice(params));
    let state = member.worker().state().expect("between steps");
    let zero = |slot: &Slot<'_>| slot.as_bytes().iter().all(|byte| *byte == 0);
    let owes_nothing = state.iter().filter(|entry| entry.share == Share::Residual).all(|entry| zero(&entry.slot));
    drop(state);
    Report {
        rounds: member.rounds(),
        steps: member.steps(),
        digest: member.worker().is_synced().then_some(digest),
        counted: member.counted(),
        left_out: member.left_out(),
        started_over: member.started_over(),
        owes_nothing,
        told: None,
        done: false,
        saved: None,
    }
}

/// Of ‖x‖²/2, and something of this worker at this step.
fn gradient(worker: usize, step: u64, x: &[f32]) -> Vec<f32> {
    let mut chance = super::Chance::new(1 + worker as u64 * 1_000_003 + step);
    x.iter().map(|x| x + chance.below(2001) as f32 / 1000.0 - 1.0).collect()
}

fn floats(member: &mut Member, name: &str) -> Vec<f64> {
    let state = member.worker().state().expect("between steps");
    let found = state.into_iter().find(|entry| entry.name == name);
    match found.map(|entry| entry.slot) {
        Some(Slot::Floats(values)) => values.iter().copied().map(f64::from).collect(),
        _ => Vec::new(),
    }
}

/// γ̂·m/P of Efficient-Adam, from its own moments.
fn own_update(member: &mut Member, step: u64, lr: f64) -> Vec<f64> {
    let (m, v) = (floats(member, "m"), floats(member, "v"));
    let state = member.worker().state().expect("between steps");
    let forgotten = state.iter().find_map(|entry| match (&entry.slot, entry.name) {
        (Slot::Doubles(values), "variance_forgotten") => Some(values[0]),
        _ => None,
    });
    let (rate, correction) = (lr / (1.0 - 0.9_f64.powi(step as i32 + 1)), 1.0 - forgotten.expect("Efficient-Adam's"));
    m.iter().zip(&v).map(|(m, v)| rate * m / ((v / correction).sqrt() + 1e-8)).collect()
}
