//! A worker's connection to its server, which looks after itself: when it is lost it comes back, waiting longer each time.
//!
//! One task speaks with the server, `conversation`; the worker's own thread leaves it a message, and takes
//! rounds from it. A message is sent again on every new connection until its round has come: the server takes it once, and the round itself says whether it counts.

use crate::connection::{End, JoinOptions, Seated, connect};
use crate::conversation::{Outgoing, SHORTEST, Shared, longer, speak};
use crate::error::{Error, Result};
use crate::log::Record;
use crate::proto::{SnapshotRequest, Welcome, note};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tonic::transport::Endpoint;

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
