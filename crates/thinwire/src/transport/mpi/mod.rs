//! The MPI transport: one process a worker, on as many machines as `mpirun` or `srun` was given.
//!
//! Messages go by non-blocking calls. A sender copies its message into a buffer that MPI may keep, and goes on packing; the
//! buffers of messages that have left are filled again. A receiver asks for the next message until it is there.
//!
//! MPI itself waits for ever, and most of its implementations end all processes when one is lost, with a banner of their own.
//! So whoever waits here also looks around: whether the workers on this machine still live ([`neighbours`]), whether somebody
//! has already found who is to blame, and who waits for whom, when the deadline comes near. The first to know tells everyone.

mod binding;
mod neighbours;

use super::Collective;
use crate::error::{Error, Result};
use binding::{Comm, Flight};
use mpi::Threading;
use mpi::collective::{CommunicatorCollectives, SystemOperation};
use mpi::environment::Universe;
use mpi::topology::Communicator;
use neighbours::Process;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A group has two tags of its own: for messages of the engine, and for words between transports.
const TAGS: c_int = 2;
/// MPI has at least these.
const MOST_TAGS: c_int = 32767;

/// A waiting worker looks around this often, and at the processes on its machine this often.
const GLANCE: Duration = Duration::from_millis(20);
const ROLL_CALL: Duration = Duration::from_millis(40);

/// How long to wait for the reason of a worker whose process is gone: it may be under way, by others too.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// How long to wait at the end for messages to leave.
const FAREWELL: Duration = Duration::from_millis(100);

/// Long enough for "never", short enough to add to a clock.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Polls before a waiting worker lets others have its core.
const SPINS: u32 = 100;

/// Between two polls after that: little beside a message of a round, and no load.
const NAP: Duration = Duration::from_micros(20);

/// The environment variable that names this worker's host where the machine's name would not do: workers on two sockets of one
/// machine, or in two containers on it, may count as two hosts.
pub const HOST: &str = "THINWIRE_HOST";

/// MPI, started in this process.
///
/// Dropped, it leaves MPI as it is: after an error the others may never come to the end together, and the launcher clears up.
pub struct World {
    universe: ManuallyDrop<Universe>,
    /// Made at the start, for all groups: making one is a call that has no deadline.
    comm: Arc<Comm>,
    groups: AtomicI32,
}

impl World {
    /// Starts MPI, once in the life of a process.
    pub fn start() -> Result<World> {
        let problem = |problem: &str| Error::Transport { problem: format!("MPI: {problem}") };
        let (universe, threading) = mpi::initialize_with_threading(Threading::Serialized)
            .ok_or_else(|| problem("it was started before in this process"))?;
        if threading < Threading::Serialized {
            return Err(problem("this installation does not allow calls from a thread of the program's choice"));
        }
        let comm = Arc::new(Comm::copy_of(&universe.world()).map_err(transport)?);
        Ok(World { universe: ManuallyDrop::new(universe), comm, groups: AtomicI32::new(0) })
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.universe.world().rank() as usize
    }

    /// How many processes there are.
    pub fn size(&self) -> usize {
        self.universe.world().size() as usize
    }

    /// A group of all processes, for one run; all of them must ask for it together. A worker waits for another no longer
    /// than `deadline`.
    pub fn group(&self, deadline: Duration) -> Result<Mpi> {
        let first_tag = TAGS * self.groups.fetch_add(1, Ordering::Relaxed);
        if first_tag + TAGS > MOST_TAGS {
            return Err(transport(format!("more than {} groups in one process", MOST_TAGS / TAGS)));
        }
        let host = std::env::var(HOST).unwrap_or_else(|_| mpi::environment::processor_name().unwrap_or_default());
        let mut group = Mpi {
            comm: Arc::clone(&self.comm),
            message: first_tag,
            word: first_tag + 1,
            rank: self.rank(),
            size: self.size(),
            deadline,
            processes: Vec::new(),
            sending: Vec::new(),
            spare: Vec::new(),
        };
        group.meet(Process::this(host))?;
        Ok(group)
    }

    /// MPI's own sum of `x` over all processes, a yardstick for ours; all of them must call it together. It has no deadline.
    pub fn all_reduce(&self, x: &[f32], sum: &mut [f32]) {
        assert_eq!(x.len(), sum.len(), "MPI would write past the end");
        let _one_at_a_time = binding::calls();
        self.universe.world().all_reduce_into(x, sum, SystemOperation::sum());
    }

    /// Ends MPI; all processes must come here, and none may send after it.
    pub fn end(self) {
        // A group that is still there would call MPI after its end.
        if Arc::strong_count(&self.comm) == 1 {
            drop(ManuallyDrop::into_inner(self.universe));
        }
    }
}

/// Told that the launcher will end this process in `left`: whoever waits then finds out, before that, whom it waits for in vain.
///
/// Launchers end all processes when one is lost, and do not tell the others which.
pub fn hurry(left: Duration) {
    HURRY.get_or_init(|| Instant::now() + left.max(HURRY_TELL));
}

/// When the launcher will end this process.
static HURRY: OnceLock<Instant> = OnceLock::new();

/// Between two questions, when in a hurry.
const HURRY_ASK: Duration = Duration::from_millis(100);

/// How long before its end a process gives up waiting.
const HURRY_TELL: Duration = Duration::from_millis(350);

/// Whom this process waits for, as far as it has found out: at once when told to [`hurry`], else only when it has waited long.
pub fn waits_for() -> Option<usize> {
    usize::try_from(WAITS_FOR.load(Ordering::Relaxed)).ok()
}

/// Below 0: for nobody.
static WAITS_FOR: AtomicI64 = AtomicI64::new(-1);

/// A worker's end of a group of processes.
pub struct Mpi {
    comm: Arc<Comm>,
    /// Tags.
    message: c_int,
    word: c_int,
    rank: usize,
    size: usize,
    deadline: Duration,
    /// Of the workers, in rank order; empty until they have met.
    processes: Vec<Process>,
    sending: Vec<Flight>,
    /// Buffers of messages that have left.
    spare: Vec<Vec<u8>>,
}

/// What transports say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// Whom do you wait for?
    Ask,
    /// For this worker.
    Waits(usize),
    /// It is known who has failed: everyone stops.
    Blame(Culprit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Culprit {
    worker: usize,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Its process is gone.
    Gone,
    /// It did not answer within the deadline.
    Silent,
    /// It did not answer in the time that the launcher left.
    Missing,
}

/// One wait: for whom, since when, and what was found out so far.
struct Wait {
    from: usize,
    during: &'static str,
    give_up: Instant,
    /// When to ask next who waits for whom, and how long after that.
    ask_at: Instant,
    ask_again: Duration,
    /// The end of the chain of waits, as far as it is known, once somebody was asked.
    asked: Option<usize>,
    hops: usize,
    polls: u32,
    next_glance: Instant,
    next_roll_call: Instant,
    /// Found dead, and when: it may have said why before it went, and others may pass that on.
    missing: Option<(usize, Instant)>,
}

impl Mpi {
    /// Tells the others which process this is, and hears of theirs.
    fn meet(&mut self, this: Process) -> Result<()> {
        const MEETING: &str = "the first meeting";
        let told = serde_json::to_vec(&this).expect("plain data");
        for worker in self.others() {
            self.send(worker, &told, MEETING)?;
        }
        let mut processes = vec![this; self.size];
        let mut message = Vec::new();
        for worker in self.others() {
            self.receive(worker, &mut message, MEETING)?;
            let malformed = |error: serde_json::Error| Error::Malformed { worker, problem: error.to_string() };
            processes[worker] = serde_json::from_slice(&message).map_err(malformed)?;
        }
        self.processes = processes;
        Ok(())
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.rank;
        (0..self.size).filter(move |worker| *worker != me)
    }

    /// Takes back the buffers of messages that have left.
    fn reclaim(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.sending.len() {
            if self.sending[at].has_landed().map_err(transport)? {
                self.spare.push(self.sending.swap_remove(at).into_buffer());
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    fn say(&mut self, to: usize, word: Word) -> Result<()> {
        let flight = self.comm.send(to, self.word, word.to_bytes().to_vec()).map_err(transport)?;
        self.sending.push(flight);
        Ok(())
    }

    /// Between two polls: rests, and looks around now and then. The error, if there is no use in waiting on.
    fn rest(&mut self, wait: &mut Wait) -> Result<()> {
        wait.polls += 1;
        if wait.polls < SPINS {
            std::thread::yield_now();
            return Ok(());
        }
        std::thread::sleep(NAP);
        let now = Instant::now();
        if now < wait.next_glance {
            return Ok(());
        }
        wait.next_glance = now + GLANCE;
        self.reclaim()?;
        self.listen(wait)?;
        self.call_the_roll(wait, now)?;
        if let Some(end) = HURRY.get() {
            if wait.ask_again > HURRY_ASK {
                (wait.ask_at, wait.ask_again) = (now, HURRY_ASK);
            }
            wait.give_up = wait.give_up.min(*end - HURRY_TELL);
        }
        if now >= wait.give_up {
            let worker = wait.asked.unwrap_or(wait.from);
            let fault = if HURRY.get().is_none() { Fault::Silent } else { Fault::Missing };
            return Err(self.blame(Culprit { worker, fault }, wait.during));
        }
        // Again and again: who waited for another may have gone on since.
        if now >= wait.ask_at {
            wait.ask_at = now + wait.ask_again;
            (wait.asked, wait.hops) = (Some(wait.from), 0);
            self.say(wait.from, Word::Ask)?;
        }
        WAITS_FOR.store(wait.asked.map_or(-1, |worker| worker as i64), Ordering::Relaxed);
        Ok(())
    }

    /// Hears what other transports say, answers, and follows the chain of waits.
    fn listen(&mut self, wait: &mut Wait) -> Result<()> {
        while let Some(arrival) = self.comm.probe(None, self.word).map_err(transport)? {
            let worker = arrival.from;
            let mut flight = arrival.receive(Vec::new()).map_err(transport)?;
            while !flight.has_landed().map_err(transport)? {
                std::thread::yield_now(); // a few bytes
            }
            let bytes = flight.into_buffer();
            let Some(word) = Word::from_bytes(&bytes, self.size) else {
                return Err(Error::Malformed {
                    worker,
                    problem: format!("transport message: expected a question or an answer, found {bytes:02x?}"),
                });
            };
            match word {
                Word::Ask => self.say(worker, Word::Waits(wait.from))?,
                Word::Waits(next) if wait.asked == Some(worker) && next != self.rank && wait.hops < self.size => {
                    wait.hops += 1;
                    wait.asked = Some(next);
                    self.say(next, Word::Ask)?;
                }
                Word::Waits(_) => {}
                Word::Blame(culprit) if culprit.worker == self.rank => {
                    let problem = "the others gave this worker up: it did not answer in time".to_owned();
                    return Err(Error::Transport { problem });
                }
                Word::Blame(culprit) => return Err(culprit.error(self.deadline, wait.during)),
            }
        }
        Ok(())
    }

    /// Looks whether the workers on this machine still live.
    fn call_the_roll(&mut self, wait: &mut Wait, now: Instant) -> Result<()> {
        if let Some((worker, since)) = wait.missing {
            if now >= since + LAST_WORDS {
                return Err(self.blame(Culprit { worker, fault: Fault::Gone }, wait.during));
            }
        } else if now >= wait.next_roll_call && !self.processes.is_empty() {
            wait.next_roll_call = now + ROLL_CALL;
            let here = &self.processes[self.rank];
            let dead = |worker: &usize| self.processes[*worker].is_gone(here);
            wait.missing = self.others().find(dead).map(|worker| (worker, now));
        }
        Ok(())
    }

    /// Tells everyone who has failed, and makes the error of it.
    fn blame(&mut self, culprit: Culprit, during: &'static str) -> Error {
        // Also the one who is only slow: it should not tell another story.
        for worker in self.others().filter(|worker| culprit.fault != Fault::Gone || *worker != culprit.worker) {
            let _ = self.say(worker, Word::Blame(culprit)); // who cannot hear it finds out alone
        }
        self.flush();
        culprit.error(self.deadline, during)
    }

    /// Gives messages a moment to leave.
    fn flush(&mut self) {
        let enough = Instant::now() + FAREWELL;
        while self.reclaim().is_ok() && !self.sending.is_empty() && Instant::now() < enough {
            std::thread::sleep(NAP);
        }
    }
}

impl Culprit {
    fn error(self, limit: Duration, during: &'static str) -> Error {
        let worker = self.worker;
        match self.fault {
            Fault::Gone => Error::Gone { worker, during },
            Fault::Silent => Error::Timeout { worker, limit, during },
            Fault::Missing => Error::Transport {
                problem: format!(
                    "told to stop while waiting for worker {worker}, which is gone or busy, during {during}"
                ),
            },
        }
    }
}

impl Word {
    fn to_bytes(self) -> [u8; 5] {
        let (kind, worker) = match self {
            Word::Ask => (0, 0),
            Word::Waits(worker) => (1, worker),
            Word::Blame(Culprit { worker, fault: Fault::Gone }) => (2, worker),
            Word::Blame(Culprit { worker, fault: Fault::Silent }) => (3, worker),
            Word::Blame(Culprit { worker, fault: Fault::Missing }) => (4, worker),
        };
        let worker = (worker as u32).to_le_bytes();
        [kind, worker[0], worker[1], worker[2], worker[3]]
    }

    fn from_bytes(bytes: &[u8], size: usize) -> Option<Word> {
        let (kind, worker) = bytes.split_first()?;
        let worker = u32::from_le_bytes(worker.try_into().ok()?) as usize;
        let blame = |fault| Some(Word::Blame(Culprit { worker, fault }));
        match kind {
            0 => Some(Word::Ask),
            _ if worker >= size => None,
            1 => Some(Word::Waits(worker)),
            2 => blame(Fault::Gone),
            3 => blame(Fault::Silent),
            4 => blame(Fault::Missing),
            _ => None,
        }
    }
}

impl Wait {
    fn new(from: usize, deadline: Duration, during: &'static str) -> Wait {
        let now = Instant::now();
        Wait {
            from,
            during,
            give_up: now + deadline.min(A_YEAR),
            ask_at: now + deadline.min(A_YEAR) * 3 / 4,
            ask_again: deadline.min(A_YEAR) / 16,
            asked: None,
            hops: 0,
            polls: 0,
            next_glance: now + GLANCE,
            next_roll_call: now + ROLL_CALL,
            missing: None,
        }
    }
}

fn transport(problem: String) -> Error {
    Error::Transport { problem: format!("MPI: {problem}") }
}

impl Collective for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    /// Numbered as they first appear.
    fn hosts(&self) -> Vec<usize> {
        let mut names = Vec::new();
        let number = |process: &Process| {
            names.iter().position(|name| *name == process.host).unwrap_or_else(|| {
                names.push(process.host.clone());
                names.len() - 1
            })
        };
        self.processes.iter().map(number).collect()
    }

    fn reserve(&mut self, longest: usize, under_way: usize) {
        let wanted = under_way * (self.size - 1);
        self.sending.reserve(wanted);
        self.spare.clear();
        self.spare.resize_with(wanted, || Vec::with_capacity(longest));
    }

    fn send(&mut self, to: usize, message: &[u8], _: &'static str) -> Result<()> {
        self.reclaim()?;
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(message);
        let flight = self.comm.send(to, self.message, buffer).map_err(transport)?;
        self.sending.push(flight);
        Ok(())
    }

    fn receive(&mut self, from: usize, message: &mut Vec<u8>, during: &'static str) -> Result<()> {
        let mut wait = Wait::new(from, self.deadline, during);
        let arrival = loop {
            match self.comm.probe(Some(from), self.message).map_err(transport)? {
                Some(arrival) => break arrival,
                None => self.rest(&mut wait)?,
            }
        };
        let mut flight = arrival.receive(std::mem::take(message)).map_err(transport)?;
        while !flight.has_landed().map_err(transport)? {
            self.rest(&mut wait)?;
        }
        *message = flight.into_buffer();
        if wait.asked.is_some() {
            WAITS_FOR.store(-1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        self.flush();
    }
}
