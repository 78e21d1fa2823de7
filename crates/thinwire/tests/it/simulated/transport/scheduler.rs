//! Who runs next. Of the threads of a schedule one runs at a time, and a seed decides which: at every lock, wait and wake-up another may
//! take its turn. So a seed that fails fails again.
//!
//! Time is virtual. It passes when nobody can run, to the moment at which the first sleeper wakes, and now and then, up to a limit,
//! though somebody could: a machine may be slow. A thread may also wake for no reason, as with std's.

use super::super::chance::Chance;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

thread_local! {
    static HERE: RefCell<Option<(Arc<Scheduler>, usize)>> = const { RefCell::new(None) };
}

/// More than any schedule has.
const MOST_EVENTS: u64 = 10_000_000;

/// What a scheduler does wrong on purpose, to see it found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Broken {
    /// A wake-up of one thread is lost.
    LosesOne,
    /// A wake-up of all is lost.
    LosesAll,
}

#[derive(Clone, Copy)]
enum Doing {
    Ready,
    /// It waits for the lock of this name.
    Locks(usize),
    /// It waits for a wake-up by this name, and for so long. Name 0 is nobody's: it sleeps.
    Waits {
        on: usize,
        until: Duration,
    },
    Ended,
}

struct State {
    chance: Chance,
    broken: Option<Broken>,
    running: Option<usize>,
    doing: Vec<Doing>,
    /// Whether the last wait of a thread ended because its time was over.
    timed_out: Vec<bool>,
    /// Locks that are held, by name.
    held: Vec<usize>,
    now: Duration,
    /// How much may still pass though somebody could run.
    slack: Duration,
    /// One in so many points lets another run.
    patience: u64,
    events: u64,
    trace: u64,
}

pub struct Scheduler {
    seed: u64,
    state: Mutex<State>,
    /// Of each thread: that it is its turn.
    turns: Vec<Condvar>,
}

/// How a schedule went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    pub time: Duration,
    pub events: u64,
    /// A digest of who ran when.
    pub trace: u64,
}

/// What the works return, or how they panicked, when a seed decides who runs. Up to `slack` may pass though somebody could run.
pub fn run<T: Send, W: FnOnce() -> T + Send>(
    seed: u64,
    broken: Option<Broken>,
    slack: Duration,
    works: Vec<W>,
) -> (Vec<std::thread::Result<T>>, Schedule) {
    let count = works.len();
    let mut chance = Chance::new(seed);
    let mut state = State {
        patience: chance.pick(&[1, 2, 4, 16, 64]),
        chance,
        broken,
        running: None,
        doing: vec![Doing::Ready; count],
        timed_out: vec![false; count],
        held: Vec::new(),
        now: Duration::ZERO,
        slack,
        events: 0,
        trace: 0,
    };
    state.running = state.next();
    let turns = (0..count).map(|_| Condvar::new()).collect();
    let scheduler = Arc::new(Scheduler { seed, state: Mutex::new(state), turns });
    let ends = std::thread::scope(|scope| {
        let start = |(me, work): (usize, W)| {
            let scheduler = Arc::clone(&scheduler);
            scope.spawn(move || scheduler.live(me, work))
        };
        let threads = works.into_iter().enumerate().map(start).collect::<Vec<_>>();
        threads.into_iter().map(|thread| thread.join().expect("its panic was caught")).collect()
    });
    let state = scheduler.state();
    let schedule = Schedule { time: state.now, events: state.events, trace: state.trace };
    drop(state);
    (ends, schedule)
}

/// What the scheduler of this thread says.
pub fn here<T>(ask: impl FnOnce(&Scheduler, usize) -> T) -> T {
    let (scheduler, me) = HERE.with_borrow(|here| here.clone()).expect("a thread of a schedule");
    ask(&scheduler, me)
}

/// Here another may run.
pub fn point() {
    here(|scheduler, me| drop(scheduler.pass(scheduler.state(), me)));
}

/// This thread does nothing for a while.
pub fn sleep(pause: Duration) {
    here(|scheduler, me| {
        let mut state = scheduler.state();
        state.doing[me] = Doing::Waits { on: 0, until: state.now + pause };
        drop(scheduler.switch(state, me));
    });
}

impl State {
    /// Whose turn it is; `None` if nobody will ever run again.
    fn next(&mut self) -> Option<usize> {
        if self.chance.one_in(256) && self.soonest().is_some_and(|until| until - self.now <= self.slack) {
            let until = self.soonest().expect("somebody");
            self.slack -= until - self.now;
            self.advance(until);
        }
        if self.chance.one_in(256) {
            let waiting = self.all(|doing| matches!(doing, Doing::Waits { on, .. } if on != 0));
            self.wake_one_of(&waiting);
        }
        loop {
            let can_run = |state: &State, doing| match doing {
                Doing::Ready => true,
                Doing::Locks(name) => !state.held.contains(&name),
                _ => false,
            };
            let ready = self.all(|doing| can_run(self, doing));
            if !ready.is_empty() {
                return Some(self.chance.pick(&ready));
            }
            let until = self.soonest()?;
            self.advance(until);
        }
    }

    fn all(&self, of: impl Fn(Doing) -> bool) -> Vec<usize> {
        (0..self.doing.len()).filter(|thread| of(self.doing[*thread])).collect()
    }

    /// When the first of those who wait gives up.
    fn soonest(&self) -> Option<Duration> {
        let ends = self.doing.iter().filter_map(|doing| match doing {
            Doing::Waits { until, .. } => Some(*until),
            _ => None,
        });
        ends.min()
    }

    fn advance(&mut self, now: Duration) {
        self.now = now;
        for thread in self.all(|doing| matches!(doing, Doing::Waits { until, .. } if until <= now)) {
            (self.doing[thread], self.timed_out[thread]) = (Doing::Ready, true);
        }
    }

    fn wake_one_of(&mut self, waiting: &[usize]) {
        if !waiting.is_empty() {
            let thread = self.chance.pick(waiting);
            (self.doing[thread], self.timed_out[thread]) = (Doing::Ready, false);
        }
    }

    fn note(&mut self, what: u64) {
        self.trace = (self.trace ^ what).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    }
}

impl Scheduler {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a thread, from its first turn on.
    fn live<T>(self: Arc<Scheduler>, me: usize, work: impl FnOnce() -> T) -> std::thread::Result<T> {
        HERE.set(Some((Arc::clone(&self), me)));
        drop(self.until_it_is(self.state(), me));
        let end = catch_unwind(AssertUnwindSafe(work));
        let mut state = self.state();
        state.doing[me] = Doing::Ended;
        self.hand_over(&mut state);
        HERE.set(None);
        end
    }

    fn hand_over(&self, state: &mut State) {
        state.events += 1;
        state.running = state.next();
        let all_ended = state.doing.iter().all(|doing| matches!(doing, Doing::Ended));
        if state.events > MOST_EVENTS || state.running.is_none() && !all_ended {
            // Nobody is left who could tell it in another way.
            let what = if state.running.is_none() { "a deadlock" } else { "no end" };
            eprintln!("seed {} of a schedule leads to {what}", self.seed);
            std::process::abort();
        }
        state.note(state.running.map_or(0, |thread| thread as u64 + 1));
        if let Some(next) = state.running {
            self.turns[next].notify_one();
        }
    }

    fn until_it_is<'a>(&'a self, mut state: MutexGuard<'a, State>, me: usize) -> MutexGuard<'a, State> {
        while state.running != Some(me) {
            state = self.turns[me].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Another's turn, or this one's again.
    fn switch<'a>(&'a self, mut state: MutexGuard<'a, State>, me: usize) -> MutexGuard<'a, State> {
        self.hand_over(&mut state);
        let mut state = self.until_it_is(state, me);
        state.doing[me] = Doing::Ready;
        state
    }

    fn pass<'a>(&'a self, mut state: MutexGuard<'a, State>, me: usize) -> MutexGuard<'a, State> {
        let patience = state.patience;
        if state.chance.one_in(patience) { self.switch(state, me) } else { state }
    }

    pub fn time(&self) -> Duration {
        self.state().now
    }

    pub fn lock(&self, me: usize, name: usize) {
        let state = self.pass(self.state(), me);
        self.take(state, me, name);
    }

    fn take<'a>(&'a self, mut state: MutexGuard<'a, State>, me: usize, name: usize) {
        while state.held.contains(&name) {
            state.doing[me] = Doing::Locks(name);
            state = self.switch(state, me);
        }
        state.held.push(name);
    }

    pub fn unlock(&self, me: usize, name: usize) {
        let mut state = self.state();
        state.held.retain(|other| *other != name);
        drop(self.pass(state, me));
    }

    /// Gives the lock back, waits for a wake-up, and takes it again. Whether the time was over.
    pub fn wait(&self, me: usize, on: usize, lock: usize, most: Duration) -> bool {
        let mut state = self.state();
        state.held.retain(|other| *other != lock);
        state.doing[me] = Doing::Waits { on, until: state.now + most };
        let state = self.switch(state, me);
        let timed_out = state.timed_out[me];
        self.take(state, me, lock);
        timed_out
    }

    pub fn wake(&self, name: usize, all: bool) {
        let mut state = self.state();
        let loses = if all { Broken::LosesAll } else { Broken::LosesOne };
        if state.broken == Some(loses) && state.chance.one_in(4) {
            return;
        }
        let mut waiting = state.all(|doing| matches!(doing, Doing::Waits { on, .. } if on == name));
        if all {
            waiting.iter().for_each(|thread| state.wake_one_of(&[*thread]));
            waiting.clear();
        }
        state.wake_one_of(&waiting);
    }
}
