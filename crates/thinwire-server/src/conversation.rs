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

pub(crate) const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// A message that waits for its round.
#[derive(Clone)]
pub(crate) struct Outgoing {
    pub round: u64,
    pub message: bytes::Bytes,
    pub loss: Option<f64>,
}

#[derive(Default)]
pub(crate) struct State {
    pub inbox: VecDeque<Record>,
    pub outgoing: Option<Outgoing>,
    /// The seats from which the message of this round has gone out: the worker may get another while it waits.
    pub sent_from: Vec<u32>,
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

#[derive(Default)]
pub(crate) struct Shared {
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

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Twice as long, and a little more or less: workers that lost their server together should not come back together.
pub(crate) fn longer(pause: Duration) -> Duration {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let chance = xxh3_64(&now.as_nanos().to_le_bytes()) % 1000;
    pause.mul_f64(1.5 + chance as f64 / 1000.0).min(LONGEST)
}

/// Speaks with the server from every seat it is given, and takes it again when the connection is lost.
pub(crate) async fn speak(
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
            let counted = match again(&options, &endpoint, &shared, end, &mut pause).await {
                Some(new) => {
                    seated = new;
                    if seated.welcome.oldest <= next {
                        continue;
                    }
                    seated.welcome.counted
                }
                None => return,
            };
            {
                let mut state = shared.state();
                state.gap = Some(counted);
            }
            shared.news.notify_all();
            break; // until the worker sits down anew
        }
    }
}

/// A new seat after a conversation ended; none if there is no use in trying.
async fn again(
    options: &JoinOptions,
    endpoint: &Endpoint,
    shared: &Shared,
    mut end: End,
    pause: &mut Duration,
) -> Option<Seated> {
    let fail = |reason: String| {
        shared.state().failure = Some(reason);
        shared.news.notify_all();
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
        match connected.and_then(|seated| shared.check_run(&seated.welcome).map(|()| seated)) {
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
    if seated.welcome.rounds < *next {
        let text =
            format!("it has {} rounds, and this worker has seen {next}: it has lost some", seated.welcome.rounds);
        return End::Refused(text);
    }
    let mut parts = match seated.client.follow(FollowRequest { seat, from: *next }).await {
        Ok(parts) => parts.into_inner(),
        Err(status) => return status.into(),
    };
    let (mut sent, mut coming) = (None, None);
    let has_room = || shared.state().inbox.len() < INBOX;
    loop {
        let (note, outgoing) = {
            let mut state = shared.state();
            let outgoing = state.outgoing.clone().filter(|out| sent != Some(out.round));
            if outgoing.is_some() && state.note.is_none() {
                state.sent_from.extend(seat.map(|seat| seat.slot));
            }
            (state.note, outgoing)
        };
        if let Some((what, round)) = note {
            let told = seated.client.tell(Note { seat, what: what.into(), round }).await;
            if let Err(status) = told {
                return status.into();
            }
            let mut state = shared.state();
            if state.note == note {
                state.note = None;
            }
            continue;
        }
        if let Some(out) = outgoing {
            sent = Some(out.round);
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
fn take(
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
