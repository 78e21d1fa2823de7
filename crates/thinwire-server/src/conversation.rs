//! The task that speaks with the server for a worker: follows the log, sends what is to be sent, and takes a new seat when the
//! connection is lost, waiting longer each time. It shares a little state with the worker's own thread, [`link`](crate::link).

use crate::connection::{End, JoinOptions, Seated, connect};
use crate::error::{Error, Result};
use crate::log::{Counted, Record};
use crate::proto::{FollowRequest, Note, Seat, SendPart, Welcome, note};
use crate::service::PART;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tonic::Status;
use tonic::transport::Endpoint;
use xxhash_rust::xxh3::xxh3_64;

/// Rounds that wait for the worker; the server keeps the rest until there is room.
const INBOX: usize = 8;

pub const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// A message that waits for its round.
#[derive(Clone)]
pub struct Outgoing {
    pub round: u64,
    pub message: bytes::Bytes,
    pub loss: Option<f64>,
}

#[derive(Default)]
pub struct State {
    pub inbox: VecDeque<Record>,
    pub outgoing: Option<Outgoing>,
    /// The seats from which the message of this round has gone out: the worker may get another while it waits.
    pub sent_from: Vec<u32>,
    /// A round to come that has counted somebody of this worker's name: it itself, or another.
    pub name_counted: Option<u64>,
    pub note: Option<(note::What, u64)>,
    /// Why there will be no more rounds.
    pub failure: Option<String>,
    /// The log has not what this worker needs; one more than the last round that counted it.
    pub gap: Option<u64>,
    /// Since when the server is out of reach.
    pub away: Option<Instant>,
    /// How often it came back.
    pub returns: u64,
    /// The program waits for no more rounds.
    pub interrupted: bool,
}

/// What a worker says to the server.
pub enum Saying {
    Note(note::What, u64),
    Message(Outgoing),
}

impl State {
    /// What is to be said next by whoever sits in `slot`. On one connection, which keeps `sent`, a message goes out once.
    pub fn say(&mut self, slot: u32, sent: &mut Option<u64>) -> Option<Saying> {
        if let Some((what, round)) = self.note {
            return Some(Saying::Note(what, round));
        }
        let out = self.outgoing.clone().filter(|out| *sent != Some(out.round))?;
        self.sent_from.push(slot);
        *sent = Some(out.round);
        Some(Saying::Message(out))
    }

    /// The server has heard this note.
    pub fn told(&mut self, what: note::What, round: u64) {
        if self.note == Some((what, round)) {
            self.note = None;
        }
    }

    /// Whether another round may come in.
    pub fn has_room(&self) -> bool {
        self.inbox.len() < INBOX
    }
}

/// Why a worker stops.
pub const ANOTHER: &str = "another worker has joined under this name, and was counted";

#[derive(Default)]
pub struct Shared {
    pub state: Mutex<State>,
    pub news: Condvar,
    pub wake: Notify,
    /// The run that this worker is in.
    run: OnceLock<String>,
}

impl Shared {
    /// Another run may have been started at the same address.
    pub fn check_run(&self, welcome: &Welcome) -> Result<(), End> {
        let ours = self.run.get_or_init(|| welcome.run.clone());
        match *ours == welcome.run {
            true => Ok(()),
            false => Err(End::Refused(format!("it serves run {} now, not {ours}", welcome.run))),
        }
    }

    /// Whether a round since the welcome `before` has counted another worker of this name: of the rounds from `next` on, this one can be
    /// in the first alone, if it has sent a message for it. What it owes may have been told by the other then. (What a round before
    /// that welcome has counted may be whoever had the seat before: a server that comes back knows seats, and no names.) Whether the
    /// first has counted this worker or the other, its record will say.
    pub fn check_alone(&self, before: &Welcome, now: &Welcome, next: u64) -> Result<(), End> {
        let mut state = self.state();
        let own = next + u64::from(!state.sent_from.is_empty());
        let counted = now.counted > before.rounds;
        if counted && now.counted > own {
            return Err(End::Refused(ANOTHER.to_owned()));
        }
        if counted && now.counted > next {
            state.name_counted.get_or_insert(now.counted - 1); // an earlier round may still wait to be read
        }
        Ok(())
    }

    /// There will be no more rounds.
    pub fn fail(&self, reason: String) {
        self.state().failure = Some(reason);
        self.news.notify_all();
    }

    /// Whether `welcome` leads on to the round `next`; if the log begins behind it, the worker's thread is told to start over.
    pub fn leads_on(&self, welcome: &Welcome, next: u64) -> bool {
        if welcome.oldest > next {
            self.state().gap = Some(welcome.counted);
            self.news.notify_all();
        }
        welcome.oldest <= next
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Twice as long, and a little more or less: workers that lost their server together should not come back together.
pub fn longer(pause: Duration) -> Duration {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let chance = xxh3_64(&now.as_nanos().to_le_bytes()) % 1000;
    pause.mul_f64(1.5 + chance as f64 / 1000.0).min(LONGEST)
}

/// Speaks with the server from every seat it is given, and takes it again when the connection is lost.
pub async fn speak(
    options: JoinOptions,
    endpoint: Endpoint,
    shared: Arc<Shared>,
    mut seats: mpsc::UnboundedReceiver<(Seated, u64)>,
) {
    while let Some((mut seated, mut next)) = seats.recv().await {
        let mut pause = SHORTEST;
        loop {
            let before = next;
            let end = converse(&shared, &mut seated, &mut next).await;
            if next > before {
                pause = SHORTEST;
            }
            match again(&options, &endpoint, &shared, end, (&seated.welcome, next), &mut pause).await {
                Some(new) => seated = new,
                None => return,
            }
            if !shared.leads_on(&seated.welcome, next) {
                break; // until the worker sits down anew
            }
        }
    }
}

/// A new seat after a conversation ended; none if there is no use in trying.
async fn again(
    options: &JoinOptions,
    endpoint: &Endpoint,
    shared: &Shared,
    mut end: End,
    (before, next): (&Welcome, u64),
    pause: &mut Duration,
) -> Option<Seated> {
    let fail = |reason: String| {
        shared.fail(reason);
        None
    };
    let mut tries = 0;
    loop {
        match end {
            End::Refused(reason) => {
                return fail(Error::Refused { address: options.address.clone(), reason }.to_string());
            }
            End::Gap => {}
            End::Lost(reason) => {
                let away = *shared.state().away.get_or_insert_with(Instant::now);
                if tries == 0 {
                    let seconds = options.patience.as_secs();
                    tracing::warn!(
                        address = options.address,
                        reason,
                        "the server is lost; trying again for {seconds} s"
                    );
                }
                if away.elapsed() > options.patience {
                    let (address, seconds) = (options.address.clone(), options.patience.as_secs());
                    return fail(Error::Unreachable { address, seconds, reason }.to_string());
                }
                tokio::time::sleep(*pause).await;
                *pause = longer(*pause);
            }
        }
        tries += 1;
        let connected = connect(options, endpoint).await;
        let checked = connected.and_then(|seated| {
            shared.check_run(&seated.welcome)?;
            shared.check_alone(before, &seated.welcome, next)?;
            Ok(seated)
        });
        match checked {
            Ok(seated) => {
                let mut state = shared.state();
                if let Some(since) = state.away.take() {
                    state.returns += 1;
                    let seconds = since.elapsed().as_secs_f64();
                    tracing::info!(
                        address = options.address,
                        round = seated.welcome.rounds,
                        "the server is back after {seconds:.1} s"
                    );
                }
                return Some(seated);
            }
            Err(failed) => end = failed,
        }
    }
}

/// Follows the log, sends what is to be sent, until something goes wrong. `next` is the round to come.
async fn converse(shared: &Shared, seated: &mut Seated, next: &mut u64) -> End {
    let seat = seated.seat();
    if let Some(end) = lost_some(&seated.welcome, *next) {
        return end;
    }
    let mut parts = match seated.client.follow(FollowRequest { seat, from: *next }).await {
        Ok(parts) => parts.into_inner(),
        Err(status) => return status.into(),
    };
    let (mut sent, mut coming) = (None, None);
    let has_room = || shared.state().has_room();
    loop {
        let saying = shared.state().say(seated.welcome.slot, &mut sent);
        if let Some(Saying::Note(what, round)) = saying {
            let told = seated.client.tell(Note { seat, what: what.into(), round }).await;
            if let Err(status) = told {
                return status.into();
            }
            shared.state().told(what, round);
            continue;
        }
        if let Some(Saying::Message(out)) = saying {
            // The round may come while the message is still on its way: the deadline may have passed.
            let mut client = seated.client.clone();
            let sending = async move { client.send(pieces(seat, out)).await };
            tokio::pin!(sending);
            loop {
                tokio::select! {
                    receipt = &mut sending => match receipt {
                        Ok(_) => break,
                        Err(status) => return status.into(),
                    },
                    part = parts.message(), if has_room() => {
                        if let Some(end) = take(shared, &mut coming, next, part) {
                            return end;
                        }
                    }
                }
            }
            continue;
        }
        tokio::select! {
            () = shared.wake.notified() => {}
            part = parts.message(), if has_room() => {
                if let Some(end) = take(shared, &mut coming, next, part) {
                    return end;
                }
            }
        }
    }
}

/// A server that has fewer rounds than this worker has seen.
pub fn lost_some(welcome: &Welcome, next: u64) -> Option<End> {
    let text = || format!("it has {} rounds, and this worker has seen {next}: it has lost some", welcome.rounds);
    (welcome.rounds < next).then(|| End::Refused(text()))
}

/// A message in pieces.
fn pieces(seat: Option<Seat>, out: Outgoing) -> impl tokio_stream::Stream<Item = SendPart> + Send {
    let Outgoing { round, message, loss } = out;
    let count = message.len().div_ceil(PART).max(1);
    tokio_stream::iter((0..count).map(move |i| SendPart {
        seat: seat.filter(|_| i == 0),
        round: if i == 0 { round } else { 0 },
        loss: loss.filter(|_| i == 0),
        data: message.slice(i * PART..((i + 1) * PART).min(message.len())),
    }))
}

/// Takes a piece of a round; the round, when it is whole.
pub fn take(
    shared: &Shared,
    coming: &mut Option<(Vec<Counted>, Vec<u8>)>,
    next: &mut u64,
    part: Result<Option<crate::proto::RoundPart>, Status>,
) -> Option<End> {
    let part = match part {
        Ok(Some(part)) => part,
        Ok(None) => return Some(End::Lost("the server ended the stream".to_owned())),
        Err(status) => return Some(status.into()),
    };
    if part.round != *next {
        return Some(End::Refused(format!("it sent round {} where {next} belongs", part.round)));
    }
    let (_, message) = coming.get_or_insert_with(|| {
        let counted = part.counted.iter().map(|counted| Counted { slot: counted.slot, digest: counted.digest });
        (counted.collect(), Vec::new())
    });
    message.extend_from_slice(&part.data);
    if part.last {
        let (counted, message) = coming.take().expect("just filled");
        let mut state = shared.state();
        state.inbox.push_back(Record { round: *next, counted, message: message.into() });
        if state.outgoing.as_ref().is_some_and(|out| out.round <= *next) {
            state.outgoing = None;
        }
        *next += 1;
        drop(state);
        shared.news.notify_all();
    }
    None
}
