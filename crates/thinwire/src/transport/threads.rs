//! The in-process transport: workers are threads, messages are buffers that change hands.
//!
//! Each ordered pair of workers has a mailbox: a queue of messages, and the buffers of messages already read, which the
//! sender fills again. So nothing is allocated once the buffers have grown, and a receiver takes a message without copying.
//!
//! A worker that is dropped, by a panic too, wakes everyone who waits for it. A worker that is silent past the deadline
//! is found by following who waits for whom: the end of that chain is the one to name.
//!
//! `tests/it/simulated/` runs this file in thousands of orders.

use super::Collective;
use super::sync::{Condvar, Mutex, MutexGuard, now};
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long a worker waits for another before it gives up.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// Long enough for "never", short enough to add to a clock.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

#[derive(Default)]
struct Mailbox {
    queue: Mutex<Queue>,
    arrival: Condvar,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

struct Shared {
    size: usize,
    hosts: Vec<usize>,
    /// From worker i to worker j at i·size + j.
    mailboxes: Vec<Mailbox>,
    state: Mutex<State>,
}

struct State {
    /// Whom each worker waits for.
    waits_for: Vec<Option<usize>>,
    /// Who has left.
    gone: Vec<bool>,
    /// The first found gone or silent: the one that every later error names too.
    culprit: Option<Culprit>,
}

#[derive(Clone, Copy)]
struct Culprit {
    worker: usize,
    silent: bool,
}

/// What a waiting worker asks from time to time: whether to go on waiting.
type Look = Box<dyn Fn() -> Result<()> + Send>;

/// One worker's end of an in-process group.
pub struct Thread {
    rank: usize,
    deadline: Duration,
    shared: Arc<Shared>,
    look: Option<(Duration, Look)>,
}

/// The ends of a group of `size` workers, in rank order, all on one host.
pub fn group(size: usize, deadline: Duration) -> Vec<Thread> {
    group_on(&vec![0; size], deadline)
}

/// The ends of a group that behaves as if worker i were on host `hosts[i]`: what runs across machines, on one.
pub fn group_on(hosts: &[usize], deadline: Duration) -> Vec<Thread> {
    let (size, hosts) = (hosts.len(), hosts.to_vec());
    let state = State { waits_for: vec![None; size], gone: vec![false; size], culprit: None };
    let mailboxes = (0..size * size).map(|_| Mailbox::default()).collect();
    let shared = Arc::new(Shared { size, hosts, mailboxes, state: Mutex::new(state) });
    let deadline = deadline.min(A_YEAR);
    (0..size).map(|rank| Thread { rank, deadline, shared: Arc::clone(&shared), look: None }).collect()
}

/// Runs `work` on `size` threads, one a worker, and returns what they return, in rank order.
///
/// A panic in one of them is passed on, after the others have ended.
pub fn run<T: Send>(size: usize, work: impl Fn(Thread) -> T + Sync) -> Vec<T> {
    run_within(size, DEADLINE, work)
}

/// As [`run`], with another deadline than [`DEADLINE`].
pub fn run_within<T: Send>(size: usize, deadline: Duration, work: impl Fn(Thread) -> T + Sync) -> Vec<T> {
    run_group(group(size, deadline), work)
}

/// As [`run`], as if worker i were on host `hosts[i]`.
pub fn run_on<T: Send>(hosts: &[usize], work: impl Fn(Thread) -> T + Sync) -> Vec<T> {
    run_group(group_on(hosts, DEADLINE), work)
}

/// As [`run`], on a group made before.
pub fn run_group<T: Send>(group: Vec<Thread>, work: impl Fn(Thread) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let workers = group.into_iter().map(|end| scope.spawn(|| work(end))).collect::<Vec<_>>();
        let ended = workers.into_iter().map(|worker| worker.join()).collect::<Vec<_>>();
        ended.into_iter().map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// A lock whose holder panicked guards plain values that are still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn mailbox(&self, from: usize, to: usize) -> &Mailbox {
        &self.mailboxes[from * self.size + to]
    }
}

impl State {
    /// The worker at the end of the chain of waits that starts with `from`, or `from` itself if that is a ring.
    fn end_of_chain(&self, from: usize) -> usize {
        let mut at = from;
        for _ in 0..self.waits_for.len() {
            match self.waits_for[at] {
                Some(next) => at = next,
                None => return at,
            }
        }
        from
    }
}

impl Thread {
    /// While this worker waits for another it calls `look` at such intervals, and gives up with its error: for programs that
    /// must hear something else meanwhile, such as Ctrl-C.
    pub fn look_around(&mut self, interval: Duration, look: impl Fn() -> Result<()> + Send + 'static) {
        self.look = Some((interval, Box::new(look)));
    }

    fn wait_for(&self, from: Option<usize>) {
        lock(&self.shared.state).waits_for[self.rank] = from;
    }

    fn is_gone(&self, worker: usize) -> bool {
        lock(&self.shared.state).gone[worker]
    }

    /// The mailbox of `from` with a message in it, or why there will be none.
    fn next(&self, from: usize, during: &'static str) -> Result<MutexGuard<'_, Queue>> {
        let mailbox = self.shared.mailbox(from, self.rank);
        let give_up = now() + self.deadline;
        let mut queue = lock(&mailbox.queue);
        while queue.messages.is_empty() {
            let left = give_up.saturating_duration_since(now());
            if left.is_zero() || self.is_gone(from) {
                return Err(self.blame(from, during));
            }
            let pause = self.look.as_ref().map_or(left, |(interval, _)| left.min(*interval));
            let (found, ended) = mailbox.arrival.wait_timeout(queue, pause).unwrap_or_else(PoisonError::into_inner);
            queue = found;
            if let Some((_, look)) = &self.look
                && ended.timed_out()
            {
                drop(queue); // the sender need not wait meanwhile
                look()?;
                queue = lock(&mailbox.queue);
            }
        }
        Ok(queue)
    }

    /// The error for a worker that waited for `from` in vain.
    fn blame(&self, from: usize, during: &'static str) -> Error {
        let mut state = lock(&self.shared.state);
        let worker = state.end_of_chain(from);
        let found = Culprit { worker, silent: !state.gone[worker] };
        match *state.culprit.get_or_insert(found) {
            Culprit { worker, silent: true } => Error::Timeout { worker, limit: self.deadline, during },
            Culprit { worker, silent: false } => Error::Gone { worker, during },
        }
    }
}

impl Collective for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn hosts(&self) -> Vec<usize> {
        self.shared.hosts.clone()
    }

    fn reserve(&mut self, longest: usize, under_way: usize) {
        for to in (0..self.shared.size).filter(|to| *to != self.rank) {
            let mut queue = lock(&self.shared.mailbox(self.rank, to).queue);
            queue.messages.reserve(under_way);
            queue.spare.reserve(2 * under_way);
            while queue.spare.len() < under_way {
                queue.spare.push(Vec::with_capacity(longest));
            }
        }
    }

    fn send(&mut self, to: usize, message: &[u8], _: &'static str) -> Result<()> {
        let mailbox = self.shared.mailbox(self.rank, to);
        let mut buffer = lock(&mailbox.queue).spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(message);
        lock(&mailbox.queue).messages.push_back(buffer);
        mailbox.arrival.notify_one();
        Ok(())
    }

    fn receive(&mut self, from: usize, message: &mut Vec<u8>, during: &'static str) -> Result<()> {
        self.wait_for(Some(from));
        let mut queue = self.next(from, during)?;
        let arrived = queue.messages.pop_front().expect("a message");
        queue.spare.push(std::mem::replace(message, arrived));
        drop(queue);
        self.wait_for(None);
        Ok(())
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.shared.state);
            state.gone[self.rank] = true;
            state.waits_for[self.rank] = None;
        }
        for to in 0..self.shared.size {
            let mailbox = self.shared.mailbox(self.rank, to);
            // With the lock held, a receiver either has not looked yet, or is asleep and will be woken.
            let _queue = lock(&mailbox.queue);
            mailbox.arrival.notify_all();
        }
    }
}
