//! The world: virtual time, the network, and whatever goes wrong.
//!
//! Everything that happens is an event with a time, and chance decides which times those are. A request of a worker is an event at the
//! server, its answer an event at the worker; a connection that is cut is known to either end at another moment.

use super::Chance;
use super::ledger::Ledger;
use super::life::{Ask, Birth, Go, Life, Report, Time};
use super::server::{Connection, Server};
use super::setup::Setup;
use super::talk::{Phase, Talk, What};
use crate::disk::memory::{Memory, Mount};
use crate::replica::Next;
use crate::run::Run;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tempfile::TempDir;

pub const MILLI: u64 = 1000;

/// Events after which a run that has not ended never will.
const MOST: u64 = 200_000;

/// One who comes for a while, has a seat that was another's, and does not come back.
const VISITOR: &str = "visitor";

pub enum Event {
    Boot,
    /// The server of this number looks whether a round can be closed.
    Keep(u64),
    /// It writes the round that was closed.
    Commit(u64),
    /// Over a connection, to the server of this number or from it.
    Talk(Connection, u64, What),
    /// A life that waits for time to pass goes on, if it still waits for the same.
    Resume(usize, u64),
    /// A worker comes, or comes back.
    Birth(String, usize),
}

/// What a life stands at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Connect,
    Fetch,
    News,
    Pause,
    Turn,
    Over,
}

/// What has come of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub rounds: u64,
    pub events: u64,
    pub crashes: u64,
    pub power_cuts: u64,
    pub faults: u64,
    pub lives: u64,
    pub left_out: u64,
    pub started_over: u64,
    /// Whether error feedback was added up to the end.
    pub accounted: bool,
    /// Of all that happened: a seed that is run again has the same.
    pub trace: u64,
}

pub struct World {
    pub chance: Chance,
    pub setup: Setup,
    pub time: Time,
    queue: BTreeMap<(u64, u64), Event>,
    order: u64,
    pub disk: Memory,
    _mount: Mount,
    pub folder: PathBuf,
    pub server: Option<Server>,
    pub boots: u64,
    pub talks: Vec<Talk>,
    pub ledger: Ledger,
    checkpoints: Option<TempDir>,
    pub faults_left: u64,
    /// Workers of the run that know its end.
    ended: BTreeSet<String>,
    pub outcome: Outcome,
    aloud: bool,
}

impl World {
    pub fn new(seed: u64, disk: Memory) -> World {
        let mut chance = Chance::new(seed);
        let setup = Setup::of(seed, &mut chance);
        let mount = disk.mount(Path::new("/simulated"));
        disk.create_root(Path::new("/simulated"));
        let aloud = std::env::var_os("THINWIRE_SIM_SEED").is_some();
        if aloud {
            disk.say_aloud();
        }
        let time = Time { base: Instant::now(), now: Default::default() };
        World {
            chance,
            time,
            queue: BTreeMap::new(),
            order: 0,
            disk,
            _mount: mount,
            folder: PathBuf::from("/simulated/run"),
            server: None,
            boots: 0,
            talks: Vec::new(),
            ledger: Ledger::default(),
            checkpoints: None,
            faults_left: setup.faults,
            ended: BTreeSet::new(),
            outcome: Outcome::default(),
            aloud,
            setup,
        }
    }

    /// Runs to the end of the run, and compares what is left on the disk.
    pub fn run(mut self) -> Outcome {
        self.at(0, Event::Boot);
        for worker in 0..self.setup.rules.workers {
            let when = self.chance.below(50 * MILLI);
            self.at(when, Event::Birth(format!("worker-{worker}"), worker));
        }
        if self.setup.has_visitor {
            let when = self.chance.below(600 * MILLI);
            self.at(when, Event::Birth(VISITOR.to_owned(), self.setup.rules.workers));
        }
        while self.ended.len() < self.setup.rules.workers {
            let ((now, _), event) = self.queue.pop_first().expect("something happens until the run ends");
            self.time.now.store(now, std::sync::atomic::Ordering::Relaxed);
            self.outcome.events += 1;
            assert!(self.outcome.events < MOST, "the run does not end");
            self.happens(event);
            self.perhaps_a_fault();
        }
        self.conclude()
    }

    pub fn now(&self) -> u64 {
        self.time.now.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// So many microseconds from now.
    pub fn at(&mut self, after: u64, event: Event) {
        self.order += 1;
        self.queue.insert((self.now() + after, self.order), event);
    }

    /// How long something takes on the network: now and then very long.
    pub fn delay(&mut self) -> u64 {
        if self.chance.one_in(30) { self.chance.below(300 * MILLI) } else { 100 + self.chance.below(4 * MILLI) }
    }

    /// Notes what happens, so that two runs of a seed can be compared.
    pub fn note(&mut self, what: u64) {
        let mixed = self.outcome.trace ^ what ^ self.now().wrapping_mul(31);
        self.outcome.trace = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }

    /// Says what happens, where one seed is looked at.
    pub fn say_aloud(&self, what: impl FnOnce() -> String) {
        if self.aloud {
            println!("{:9.3} ms  {}", self.now() as f64 / 1000.0, what());
        }
    }

    fn happens(&mut self, event: Event) {
        self.say_aloud(|| match &event {
            Event::Boot => "the server starts".to_owned(),
            Event::Keep(_) => "the keeper looks".to_owned(),
            Event::Commit(_) => "the round is written".to_owned(),
            Event::Talk((life, connection), _, what) => {
                let here =
                    if *connection == self.talks[*life].connection { "" } else { " (a connection that is no more)" };
                format!("life {life}: {}{here}", what.name())
            }
            Event::Resume(life, asked) if self.talks[*life].asked != *asked => format!("life {life}: nothing"),
            Event::Resume(life, _) => format!("life {life}: goes on, {:?}", self.talks[*life].doing),
            Event::Birth(name, _) => format!("life {}: {name} is born", self.talks.len()),
        });
        match event {
            Event::Boot => self.boot(),
            Event::Keep(boot) if boot == self.boots => self.keep(),
            Event::Commit(boot) if boot == self.boots => self.commit(),
            Event::Keep(_) | Event::Commit(_) => {}
            Event::Talk(connection, boot, what) => self.talk(connection, boot, what),
            Event::Resume(life, asked) if self.talks[life].asked == asked => self.resume(life),
            Event::Resume(..) => {}
            Event::Birth(name, worker) => self.birth(name, worker),
        }
    }

    fn birth(&mut self, name: String, worker: usize) {
        let folder = self.checkpoints().join(&name);
        let birth = Birth {
            name: name.clone(),
            worker,
            folder,
            resumes: self.chance.one_in(2),
            saves: self.chance.one_in(2),
            accounts: self.setup.accounts,
        };
        self.outcome.lives += 1;
        let number = self.ledger.born(&name);
        assert_eq!(number, self.talks.len());
        self.talks.push(Talk::new(Life::begin(birth, self.time.clone())));
        self.until_it_waits(number);
    }

    fn checkpoints(&mut self) -> &Path {
        let make = || {
            let memory = Path::new("/dev/shm");
            if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.expect("a folder")
        };
        self.checkpoints.get_or_insert_with(make).path()
    }

    /// Gives a life what it waits for.
    pub fn answer(&mut self, life: usize, go: Go) {
        self.talks[life].life.answer(go);
        self.until_it_waits(life);
    }

    /// A life runs, until it waits for something that takes time.
    pub fn until_it_waits(&mut self, number: usize) {
        loop {
            let ask = self.talks[number].life.ask();
            self.talks[number].asked += 1;
            let asked = self.talks[number].asked;
            let doing = match ask {
                Ask::Follow(from) => {
                    self.begin_to_follow(number, from);
                    self.talks[number].life.answer(Go::On);
                    continue;
                }
                Ask::Connect => {
                    self.connect(number, Phase::Asking);
                    Doing::Connect
                }
                Ask::Fetch => {
                    self.post(number, What::Fetch);
                    Doing::Fetch
                }
                Ask::News => Doing::News,
                Ask::Pause => {
                    let pause = MILLI + self.chance.below(400 * MILLI);
                    self.at(pause, Event::Resume(number, asked));
                    Doing::Pause
                }
                Ask::Turn(report) => {
                    self.turn(number, *report);
                    Doing::Turn
                }
                Ask::Over(lived) => {
                    self.over(number, lived);
                    Doing::Over
                }
            };
            self.talks[number].doing = doing;
            return self.say(number);
        }
    }

    fn turn(&mut self, life: usize, report: Report) {
        let talk = &mut self.talks[life];
        match talk.report.replace(report.clone()) {
            None => self.ledger.begun(life, &report),
            Some(before) => self.ledger.compare_life(life, &before, &report),
        }
        self.note(report.digest.unwrap_or(report.rounds));
        let asked = self.talks[life].asked;
        let computes = if self.chance.one_in(60) { 400 * MILLI } else { MILLI + self.chance.below(8 * MILLI) };
        self.at(computes, Event::Resume(life, asked));
    }

    fn resume(&mut self, life: usize) {
        let saves = self.talks[life].doing == Doing::Turn && self.setup.faults > 0 && self.chance.one_in(6);
        let go = match self.talks[life].doing {
            Doing::Turn if saves => Go::Save,
            Doing::Turn => Go::Step,
            _ => Go::On,
        };
        self.answer(life, go);
    }

    /// A life has ended by itself: the run is over for it, or it was told to stop, or another has its name.
    fn over(&mut self, life: usize, lived: Result<(), String>) {
        self.close(life);
        let talk = &self.talks[life];
        let (name, worker) = (talk.life.birth.name.clone(), talk.life.birth.worker);
        if let Some(report) = &talk.report {
            self.outcome.left_out += report.left_out;
            self.outcome.started_over += report.started_over;
        }
        self.say_aloud(|| format!("life {life}, {name}, ends: {lived:?}"));
        match lived {
            Ok(()) if name == VISITOR => {}
            Ok(()) => _ = self.ended.insert(name),
            Err(reason) if reason.contains("interrupted") => self.come_back(life, name, worker),
            Err(reason) => {
                let others = self.talks.iter().filter(|other| other.life.birth.name == name).count();
                let replaced = others > 1 && reason.contains("another worker has joined under this name");
                assert!(replaced, "{name} fails: {reason}");
                self.come_back(life, name, worker);
            }
        }
    }

    /// Another life begins for one that has ended too soon, unless there is one already.
    pub fn come_back(&mut self, life: usize, name: String, worker: usize) {
        let goes_on = |talk: &Talk| talk.doing != Doing::Over && talk.life.birth.name == name;
        let others = self.talks.iter().enumerate().any(|(other, talk)| other != life && goes_on(talk));
        if !others && !self.ended.contains(&name) && name != VISITOR {
            let pause = self.chance.below(150 * MILLI);
            self.at(pause, Event::Birth(name, worker));
        }
    }

    /// What is on the disk is what everyone has seen.
    fn conclude(mut self) -> Outcome {
        (self.server, self.faults_left) = (None, 0);
        self.perhaps_a_power_cut();
        for talk in self.talks.iter_mut().filter(|talk| talk.doing != Doing::Over) {
            talk.life.kill();
        }
        let mut run = Run::open(&self.folder, self.setup.retention).expect("the run is there");
        self.ledger.compare(&mut run, self.setup.rules.max_members as u32);
        self.outcome.rounds = run.rounds();
        let Next::End(end) = *run.next() else { panic!("the run is not at its end") };
        let snapshot = self.final_parameters(&mut run);
        assert_eq!(xxhash_rust::xxh3::xxh3_64(bytemuck::cast_slice(&snapshot)), end, "the last parameters");
        if self.setup.accounts {
            let initial = self.setup.initial();
            let moved = initial.iter().zip(&snapshot).map(|(x, end)| f64::from(end - x)).collect::<Vec<_>>();
            let lost = self.ledger.lost_feedback(&moved, run.residue());
            assert!(lost.is_none_or(|lost| lost < 1e-4), "{lost:?} is lost, or counted twice");
            self.outcome.accounted = lost.is_some();
        }
        self.outcome
    }

    fn final_parameters(&self, run: &mut Run) -> Vec<f32> {
        run.snapshot_now().expect("it can be written");
        let (_, mut file, _) = crate::service::open_snapshot(run.dir()).expect("it is there");
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut bytes).expect("it can be read");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("a snapshot");
        let bytes = tensors.tensor("params").expect("parameters").data();
        bytes.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().expect("four bytes"))).collect()
    }
}
