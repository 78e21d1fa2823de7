//! What a link speaks through: a way to a server, and the time that passes there.
//!
//! [`Grpc`] is the network, with a runtime of its own in which the task that speaks runs, `conversation`. A simulation has another
//! carrier, so that everything in front of this line, [`link`](crate::link) and [`remote`](crate::remote), runs there as it is.

use crate::connection::{End, JoinOptions, Seated, connect};
use crate::conversation::{Shared, State, speak};
use crate::error::{Error, Result};
use crate::proto::{SnapshotRequest, Welcome};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tonic::transport::Endpoint;

pub trait Carrier: Send + Sync {
    /// Takes a seat.
    fn connect(&self) -> Result<Welcome, End>;

    /// The newest snapshot, and of how many rounds it is, from that seat.
    fn fetch(&self) -> Result<(u64, Vec<u8>), End>;

    /// From that seat someone speaks from now on, and the rounds from `from` on come in.
    fn follow(&self, from: u64);

    /// Waits, but no longer than the program does.
    fn pause(&self, how_long: Duration);

    /// Waits for news of `shared`.
    fn wait<'a>(&self, shared: &'a Shared, state: MutexGuard<'a, State>) -> MutexGuard<'a, State>;

    fn now(&self) -> Instant;
}

/// Connections over TCP, one after the other.
pub struct Grpc {
    options: JoinOptions,
    endpoint: Endpoint,
    shared: Arc<Shared>,
    /// Seats to speak from, and the first round to follow.
    seats: mpsc::UnboundedSender<(Seated, u64)>,
    seated: Mutex<Option<Seated>>,
    runtime: Option<Runtime>,
}

impl Grpc {
    pub fn new(options: JoinOptions, shared: Arc<Shared>) -> Result<Grpc> {
        let endpoint = options.endpoint()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(Error::io("a worker's connection"))?;
        let (seats, given) = mpsc::unbounded_channel();
        runtime.spawn(speak(options.clone(), endpoint.clone(), Arc::clone(&shared), given));
        Ok(Grpc { options, endpoint, shared, seats, seated: Mutex::new(None), runtime: Some(runtime) })
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("there until it is dropped")
    }

    fn seated(&self) -> MutexGuard<'_, Option<Seated>> {
        self.seated.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Carrier for Grpc {
    fn connect(&self) -> Result<Welcome, End> {
        let seated = self.runtime().block_on(connect(&self.options, &self.endpoint))?;
        let welcome = seated.welcome.clone();
        *self.seated() = Some(seated);
        Ok(welcome)
    }

    fn fetch(&self) -> Result<(u64, Vec<u8>), End> {
        let mut seated = self.seated();
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

    fn follow(&self, from: u64) {
        let seated = self.seated().take().expect("seated");
        let _ = self.seats.send((seated, from)); // its task ends with the link
    }

    fn pause(&self, how_long: Duration) {
        let waited = self.shared.news.wait_timeout_while(self.shared.state(), how_long, |state| !state.interrupted);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn wait<'a>(&self, shared: &'a Shared, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        shared.news.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

impl Drop for Grpc {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
