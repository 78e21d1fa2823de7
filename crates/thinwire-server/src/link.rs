//! A worker's connection to its server, which looks after itself: when it is lost it comes back, waiting longer each time.
//!
//! One task speaks with the server; the worker's own thread leaves it a message, and takes rounds from it. A message is sent again
//! on every new connection until its round has come: the server takes it once, and the round itself says whether it counts.

use crate::connection::{End, JoinOptions, Seated, connect};
use crate::error::{Error, Result};
use crate::log::{Counted, Record};
use crate::proto::{FollowRequest, Note, Seat, SendPart, SnapshotRequest, Welcome, note};
use crate::service::PART;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc};
use tonic::Status;
use tonic::transport::Endpoint;
use xxhash_rust::xxh3::xxh3_64;

/// Rounds that wait for the worker; the server keeps the rest until there is room.
const INBOX: usize = 8;

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// A message that waits for its round.
#[derive(Clone)]
struct Outgoing {
    round: u64,
    message: bytes::Bytes,
    loss: Option<f64>,
}

#[derive(Default)]
struct State {
    inbox: VecDeque<Record>,
    outgoing: Option<Outgoing>,
    /// The seats from which the message of this round has gone out: the worker may get another while it waits.
    sent_from: Vec<u32>,
    note: Option<(note::What, u64)>,
    /// Why there will be no more rounds.
    failure: Option<String>,
    /// The log has not what this worker needs; one more than the last round that counted it.
    gap: Option<u64>,
    /// Since when the server is out of reach.
    away: Option<Instant>,
    /// How often it came back.
    returns: u64,
    /// The program waits for no more rounds.
    interrupted: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    news: Condvar,
    wake: Notify,
    /// The run that this worker is in.
    run: OnceLock<String>,
}

impl Shared {
    /// Another run may have been started at the same address.
    fn check_run(&self, welcome: &Welcome) -> Result<(), End> {
        let ours = self.run.get_or_init(|| welcome.run.clone());
        match *ours == welcome.run {
            true => Ok(()),
            false => Err(End::Refused(format!("it serves run {} now, not {ours}", welcome.run))),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct Link {
    options: JoinOptions,
    endpoint: Endpoint,
    shared: Arc<Shared>,
    /// Seats to speak from, and the first round to follow.
    seats: mpsc::UnboundedSender<(Seated, u64)>,
    seated: Mutex<Option<Seated>>,
    runtime: Option<Runtime>,
}

impl Link {
    /// Joins, and hears what runs there.
    pub fn join(options: JoinOptions) -> Result<(Link, Welcome)> {
        let endpoint = options.endpoint()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(Error::io("a worker's connection"))?;
        let (shared, (seats, given)) = (Arc::<Shared>::default(), mpsc::unbounded_channel());
        runtime.spawn(speak(options.clone(), endpoint.clone(), Arc::clone(&shared), given));
        let link = Link { options, endpoint, shared, seats, seated: Mutex::new(None), runtime: Some(runtime) };
        let welcome = link.sit_down()?;
        Ok((link, welcome))
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("there until it is dropped")
    }

    /// Takes a seat, for as long as the patience lasts: the server may come after its workers.
    fn sit_down(&self) -> Result<Welcome> {
        let (began, mut pause, patience) = (Instant::now(), SHORTEST, self.options.patience);
        loop {
            let connected = self.runtime().block_on(connect(&self.options, &self.endpoint));
            match connected.and_then(|seated| self.shared.check_run(&seated.welcome).map(|()| seated)) {
                Ok(seated) => {
                    let welcome = seated.welcome.clone();
                    *self.seated.lock().unwrap_or_else(PoisonError::into_inner) = Some(seated);
                    return Ok(welcome);
                }
                Err(End::Lost(reason)) if began.elapsed() >= patience => {
                    let (address, seconds) = (self.options.address.clone(), patience.as_secs());
                    return Err(Error::Unreachable { address, seconds, reason });
                }
                Err(End::Refused(reason)) => {
                    return Err(Error::Refused { address: self.options.address.clone(), reason });
                }
                Err(End::Lost(reason)) if pause == SHORTEST => {
                    let (address, seconds) = (&self.options.address, patience.as_secs());
                    tracing::warn!(address, reason, "the server is out of reach; trying again for {seconds} s");
                }
                Err(End::Lost(_) | End::Gap) => {}
            }
            let state = self.shared.state();
            let wait = pause.min(patience.saturating_sub(began.elapsed()));
            let waited = self.shared.news.wait_timeout_while(state, wait, |state| !state.interrupted);
            if waited.unwrap_or_else(PoisonError::into_inner).0.interrupted {
                return Err(Error::Usage("interrupted while the server was out of reach".to_owned()));
            }
            pause = longer(pause);
        }
    }

    /// The same after a gap.
    pub fn join_again(&self) -> Result<Welcome> {
        self.sit_down()
    }

    /// The newest snapshot, and of how many rounds it is. If the connection is lost meanwhile, it is fetched by another.
    pub fn snapshot(&self) -> Result<(u64, Vec<u8>)> {
        let mut pause = SHORTEST;
        loop {
            std::thread::sleep(if pause == SHORTEST { Duration::ZERO } else { pause });
            pause = longer(pause);
            match self.fetch() {
                Ok(fetched) => return Ok(fetched),
                Err(End::Refused(reason)) => {
                    return Err(Error::Refused { address: self.options.address.clone(), reason });
                }
                Err(End::Lost(_) | End::Gap) => _ = self.sit_down()?,
            }
        }
    }

    fn fetch(&self) -> Result<(u64, Vec<u8>), End> {
        let mut seated = self.seated.lock().unwrap_or_else(PoisonError::into_inner);
        let seated = seated.as_mut().expect("seated");
        self.runtime().block_on(async {
            let mut parts = seated.client.snapshot(SnapshotRequest { seat: seated.seat() }).await?.into_inner();
            let (mut rounds, mut bytes, mut length) = (0, Vec::new(), 0);
            while let Some(part) = parts.message().await? {
                if bytes.is_empty() {
                    (rounds, length) = (part.rounds, part.length);
                }
                bytes.extend_from_slice(&part.data);
            }
            if bytes.len() as u64 != length {
                return Err(End::Lost("the snapshot broke off".to_owned()));
            }
            // The run may have gone on since the welcome was given.
            seated.welcome.rounds = seated.welcome.rounds.max(rounds);
            Ok((rounds, bytes))
        })
    }

    /// From now on the rounds from `from` on come in.
    pub fn follow(&self, from: u64) {
        let seated = self.seated.lock().unwrap_or_else(PoisonError::into_inner).take().expect("seated");
        {
            let mut state = self.shared.state();
            (state.gap, state.outgoing) = (None, None);
            state.inbox.clear();
        }
        let _ = self.seats.send((seated, from)); // its task ends with the link
    }

    /// Whether `round` is here.
    pub fn has(&self, round: u64) -> bool {
        self.shared.state().inbox.front().is_some_and(|record| record.round == round)
    }

    /// Whether the log no longer has the round that was waited for; if so, one more than the last round that counted this worker.
    pub fn gap(&self) -> Option<u64> {
        self.shared.state().gap
    }

    /// How often the server was out of reach, and came back.
    pub fn returns(&self) -> u64 {
        self.shared.state().returns
    }

    /// Ends the wait for a round, now and from now on.
    pub fn interrupt(&self) {
        {
            let mut state = self.shared.state();
            (state.interrupted, state.outgoing) = (true, None);
        }
        self.shared.news.notify_all();
    }

    pub fn is_interrupted(&self) -> bool {
        self.shared.state().interrupted
    }

    /// Since when the server is out of reach, if it is.
    pub fn away(&self) -> Option<Duration> {
        self.shared.state().away.map(|since| since.elapsed())
    }

    pub fn send(&self, round: u64, message: &[u8], loss: Option<f64>) {
        {
            let mut state = self.shared.state();
            state.outgoing = Some(Outgoing { round, message: bytes::Bytes::copy_from_slice(message), loss });
            state.sent_from.clear();
        }
        self.shared.wake.notify_one();
    }

    /// Waits for `round`; with it come the seats from which this worker's message for it has gone out.
    pub fn receive(&self, round: u64) -> Result<(Record, Vec<u32>), String> {
        let mut state = self.shared.state();
        loop {
            if let Some(record) = state.inbox.pop_front() {
                assert_eq!(record.round, round, "rounds come in their order");
                self.shared.wake.notify_one();
                return Ok((record, std::mem::take(&mut state.sent_from)));
            }
            if state.gap.is_some() {
                return Err(format!("the server's log no longer has round {round}"));
            }
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.interrupted {
                return Err(format!("interrupted while round {round} was waited for"));
            }
            state = self.shared.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Works on `round` from now on.
    pub fn ready(&self, round: u64) {
        self.shared.state().note = Some((note::What::Ready, round));
        self.shared.wake.notify_one();
    }

    /// Tells the server that this worker goes, if it can be told.
    pub fn leave(&self) {
        self.shared.state().note = Some((note::What::Leaves, 0));
        self.shared.wake.notify_one();
        let until = Instant::now() + Duration::from_secs(2);
        while self.shared.state().note.is_some() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Twice as long, and a little more or less: workers that lost their server together should not come back together.
fn longer(pause: Duration) -> Duration {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let chance = xxh3_64(&now.as_nanos().to_le_bytes()) % 1000;
    pause.mul_f64(1.5 + chance as f64 / 1000.0).min(LONGEST)
}

/// Speaks with the server from every seat it is given, and takes it again when the connection is lost.
async fn speak(
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
