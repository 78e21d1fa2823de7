//! What the parts of a running server share, and the keeper, who alone makes rounds.

#[cfg(test)]
mod tests;

use crate::checked::Checked;
use crate::error::{Error, Result};
use crate::judge::Judge;
use crate::log::{Record, Shelf};
use crate::replica::Next;
use crate::roster::Roster;
use crate::run::{Run, Spec};
use crate::table::{Decision, Rules, Table};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use thinwire::inside::exchange::Owner;
use tokio::sync::{Notify, watch};

/// How long the keeper waits before it tries again to write where there was no room.
pub const NO_ROOM_PAUSE: Duration = Duration::from_secs(1);

/// Tells the time. The server's is the system's; a simulation has its own.
pub type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// Losses that the page shows.
const CURVE: usize = 600;

pub struct Hall {
    pub spec: Spec,
    pub dir: PathBuf,
    pub rules: Rules,
    table: Mutex<Table>,
    /// Something happened that may close a round.
    pub changed: Notify,
    /// Rounds on the disk.
    pub rounds: watch::Sender<u64>,
    /// Someone has sat down, perhaps where another sat.
    pub seated: watch::Sender<()>,
    /// The last one: most who ask want that.
    last: Mutex<Option<Arc<Record>>>,
    pub shelf: Shelf,
    /// Checks messages; its E is never used.
    pub checker: Owner,
    /// The changes of the roster that are on the disk.
    changes_kept: Mutex<u64>,
    /// Why no rounds are made, if none are.
    trouble: Mutex<Option<String>>,
    /// The digest of the final parameters, when the run has come to its end.
    end: Mutex<Option<u64>>,
    pub stats: Stats,
    /// Which messages are outliers.
    judge: Arc<Mutex<Judge>>,
    curve: Mutex<Curve>,
    clock: Clock,
    pub began: Instant,
    /// When the last round was made.
    moved: Mutex<Instant>,
}

/// Counts since the server started.
#[derive(Default)]
pub struct Stats {
    pub rounds: AtomicU64,
    pub bytes_received: AtomicU64,
    pub bytes_sent: AtomicU64,
    pub left_out: AtomicU64,
    pub refused: AtomicU64,
    pub outliers: AtomicU64,
    /// Microseconds: from a round's first message to its close; its mean and its way to the disk.
    pub waiting: AtomicU64,
    pub making: AtomicU64,
}

impl Stats {
    pub fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }
}

/// The mean loss that workers report, round by round; where there are many rounds, of every so many.
#[derive(Default)]
struct Curve {
    points: Vec<(u64, f64)>,
    every: u64,
}

impl Curve {
    fn push(&mut self, round: u64, loss: f64) {
        self.every = self.every.max(1);
        if round.is_multiple_of(self.every) {
            self.points.push((round, loss));
        }
        if self.points.len() > CURVE {
            self.every *= 2;
            let every = self.every;
            self.points.retain(|(round, _)| round.is_multiple_of(every));
        }
    }
}

/// The messages of a round that is closed, by slot.
#[derive(Default)]
pub struct Closed {
    messages: BTreeMap<u32, Vec<u8>>,
    /// Of what was sent, where that is not what counts.
    digests: BTreeMap<u32, u64>,
    /// When the first of them came.
    first: Option<Instant>,
}

impl Closed {
    /// Makes the round of them.
    pub fn commit(&self, run: &mut Run) -> Result<Record> {
        run.commit(&self.messages, &self.digests)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hall {
    /// For `run`, which the keeper gets.
    pub fn new(run: &Run, rules: Rules) -> Result<Hall> {
        Hall::with_clock(run, rules, Arc::new(Instant::now))
    }

    /// The same, in a time of its own.
    pub fn with_clock(run: &Run, rules: Rules, clock: Clock) -> Result<Hall> {
        let roster = Roster::read(run.dir())?;
        let rounds = run.rounds();
        let last = rounds.checked_sub(1).map(|round| run.shelf().read(round)).transpose()?.flatten().map(Arc::new);
        let counted_last = last.iter().flat_map(|record| record.counted.iter().map(|counted| counted.slot));
        let counted_last = counted_last.collect::<Vec<_>>();
        let now = clock();
        let new_session = || u64::from_le_bytes(crate::local::random());
        let mut table = Table::new(rules, roster, |slot| run.counted(slot), &counted_last, new_session, now);
        open(&mut table, run);
        let end = match run.next() {
            Next::End(digest) => Some(*digest),
            Next::Round(_) => None,
        };
        Ok(Hall {
            spec: run.spec.clone(),
            dir: run.dir().to_owned(),
            rules,
            table: Mutex::new(table),
            changed: Notify::new(),
            rounds: watch::channel(rounds).0,
            seated: watch::channel(()).0,
            last: Mutex::new(last),
            shelf: run.shelf(),
            checker: run.spec.config.decide()?.owner(run.spec.parameters)?,
            changes_kept: Mutex::new(0),
            trouble: Mutex::new(None),
            end: Mutex::new(end),
            stats: Stats::default(),
            judge: run.judge(),
            curve: Mutex::default(),
            clock,
            began: now,
            moved: Mutex::new(now),
        })
    }

    pub fn now(&self) -> Instant {
        (self.clock)()
    }

    pub fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    pub fn judge(&self) -> MutexGuard<'_, Judge> {
        lock(&self.judge)
    }

    /// A message was checked and waits for its round, of which `table` knows.
    pub fn came(&self, table: &mut Table, slot: u32, checked: &Checked) {
        let Some(norm) = checked.norm else { return };
        let digest = checked.outlier.map(|_| checked.digest);
        let (is_new, Some(found)) = (self.judge().came(slot, norm, digest), checked.outlier) else { return };
        if !is_new {
            return; // it was sent again
        }
        Stats::add(&self.stats.outliers, 1);
        let ((round, step), (times, name)) = ((table.round(), table.step()), table.count_outlier(slot));
        let (norm, limit) = (found.norm, found.limit);
        let done = if found.factor.is_some() { "clipped" } else { "left out" };
        match times {
            1 => tracing::warn!(
                name,
                round,
                step,
                norm,
                limit,
                "a message far longer than those before it; it is {done}"
            ),
            _ => tracing::debug!(name, round, step, norm, limit, times, "another outlier; it is {done}"),
        }
    }

    /// What becomes of the open round now; its messages, if it is closed.
    pub fn decide(&self) -> (Decision, Closed) {
        // In one piece: a worker that sits down between would take its message away.
        let mut table = self.table();
        match table.decide(self.now()) {
            Decision::Close => (Decision::Close, self.close(&mut table)),
            wait => (wait, Closed::default()),
        }
    }

    /// Takes the messages of the open round out of `table`.
    fn close(&self, table: &mut Table) -> Closed {
        let coarse = table.expected().is_some_and(|expected| self.checker.is_coarse(expected).unwrap_or(false));
        let (messages, first) = table.close();
        let digests = self.judge().closed(messages.keys().copied(), coarse);
        Closed { messages, digests, first }
    }

    /// How long no round has been made.
    pub fn idle(&self, now: Instant) -> Duration {
        now.saturating_duration_since(*lock(&self.moved))
    }

    pub fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    pub fn end(&self) -> Option<u64> {
        *lock(&self.end)
    }

    pub fn curve(&self) -> Vec<(u64, f64)> {
        lock(&self.curve).points.clone()
    }

    /// Remembers who sits where, for the server that comes after this one.
    pub fn keep_roster(&self, table: &Table) -> Result<()> {
        let mut kept = lock(&self.changes_kept);
        if *kept != table.changes() {
            table.roster().write(&self.dir)?;
            *kept = table.changes();
        }
        Ok(())
    }

    /// A round, if it is the last.
    pub fn last(&self, round: u64) -> Option<Arc<Record>> {
        lock(&self.last).as_ref().filter(|last| last.round == round).map(Arc::clone)
    }

    /// What came of the round that was closed: true, and everyone may see it; false, there was no room on the disk, nobody has seen
    /// it, nothing is lost, and it may be tried again; or the run cannot go on.
    pub fn made(&self, made: Result<Record>, run: &Run) -> Result<bool> {
        match made {
            Ok(record) => {
                if lock(&self.trouble).take().is_some() {
                    tracing::info!("there is room on the disk again: rounds go on");
                }
                let slots = record.counted.iter().map(|counted| counted.slot).collect::<Vec<_>>();
                tracing::debug!(round = record.round, ?slots, bytes = record.message.len(), "round");
                self.publish(record, run);
                Ok(true)
            }
            Err(error @ Error::NoRoom { .. }) => {
                if lock(&self.trouble).replace(error.to_string()).is_none() {
                    tracing::error!(%error, "no rounds until there is room");
                }
                Ok(false)
            }
            Err(error) => {
                *lock(&self.trouble) = Some(error.to_string());
                tracing::error!(%error, "the run cannot go on");
                Err(error)
            }
        }
    }

    /// Everyone may see it now.
    fn publish(&self, record: Record, run: &Run) {
        let reported = {
            let mut table = self.table();
            let slots = record.counted.iter().map(|counted| counted.slot);
            let left_out = table.closed(slots.clone());
            Stats::add(&self.stats.left_out, left_out.len() as u64);
            for name in left_out {
                tracing::info!(round = record.round, name, "the round did not wait for this worker any longer");
            }
            let losses = slots.filter_map(|slot| table.seats()[slot as usize].loss).collect::<Vec<_>>();
            open(&mut table, run);
            // Each divided first: a sum of large ones would be infinite.
            (!losses.is_empty()).then(|| losses.iter().map(|loss| loss / losses.len() as f64).sum::<f64>())
        };
        if let Some(loss) = reported {
            lock(&self.curve).push(record.round, loss);
        }
        if let Next::End(digest) = run.next() {
            *lock(&self.end) = Some(*digest);
        }
        Stats::add(&self.stats.rounds, 1);
        *lock(&self.moved) = self.now();
        let round = record.round;
        *lock(&self.last) = Some(Arc::new(record));
        self.rounds.send_replace(round + 1);
    }
}

fn open(table: &mut Table, run: &Run) {
    let expected = match run.next() {
        Next::Round(expected) => Some(Arc::from(&expected[..])),
        Next::End(_) => None,
    };
    table.open(run.rounds(), expected);
}

/// Makes rounds until `stop` says so; then writes a last snapshot.
pub async fn keep(hall: Arc<Hall>, mut run: Run, mut stop: watch::Receiver<bool>) -> Result<()> {
    while !*stop.borrow() {
        let changed = hall.changed.notified();
        let (decision, closed) = hall.decide();
        match decision {
            Decision::Close => {
                let waited = closed.first.map_or(Duration::ZERO, |first| hall.now() - first);
                Stats::add(&hall.stats.waiting, waited.as_micros() as u64);
                run = make(&hall, run, closed, &mut stop).await?;
            }
            Decision::Wait => tokio::select! { () = changed => {}, _ = stop.changed() => {} },
            Decision::WaitUntil(then) => tokio::select! {
                () = changed => {},
                _ = stop.changed() => {},
                () = tokio::time::sleep_until(then.into()) => {}
            },
        }
    }
    match blocking(move || run.snapshot_now()).await {
        // The log has every round: a last snapshot would only have made the next start shorter.
        Err(error @ Error::NoRoom { .. }) => {
            tracing::warn!(%error, "no last snapshot; nothing is lost, the log has every round");
            Ok(())
        }
        written => written,
    }
}

/// Makes one round. Without room on the disk it waits for some.
async fn make(hall: &Arc<Hall>, mut run: Run, closed: Closed, stop: &mut watch::Receiver<bool>) -> Result<Run> {
    let began = Instant::now();
    let closed = Arc::new(closed);
    loop {
        let given = Arc::clone(&closed);
        let (back, made) = blocking(move || {
            let made = given.commit(&mut run);
            (run, made)
        })
        .await;
        run = back;
        if hall.made(made, &run)? {
            Stats::add(&hall.stats.making, began.elapsed().as_micros() as u64);
            return Ok(run);
        }
        if !*stop.borrow() {
            tokio::select! { _ = stop.changed() => {}, () = tokio::time::sleep(NO_ROOM_PAUSE) => {} }
        }
        if *stop.borrow() {
            return Ok(run);
        }
    }
}

/// Runs what would keep others waiting on a thread of its own.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
