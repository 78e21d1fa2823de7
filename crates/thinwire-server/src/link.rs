//! A worker's connection to its server, which looks after itself: when it is lost it comes back, waiting longer each time.
//!
//! One task speaks with the server, `conversation`; the worker's own thread leaves it a message, and takes
//! rounds from it. A message is sent again on every new connection until its round has come: the server takes it once, and the round itself says whether it counts.

use crate::carrier::{Carrier, Grpc};
use crate::connection::{End, JoinOptions};
use crate::conversation::{ANOTHER, Outgoing, SHORTEST, Shared, longer};
use crate::error::{Error, Result};
use crate::log::Record;
use crate::proto::{Welcome, note};
use std::sync::Arc;
use std::time::Duration;

pub struct Link {
    options: JoinOptions,
    shared: Arc<Shared>,
    carrier: Box<dyn Carrier>,
}

impl Link {
    /// Joins, and hears what runs there.
    pub fn join(options: JoinOptions) -> Result<(Link, Welcome)> {
        let shared = Arc::<Shared>::default();
        let carrier = Grpc::new(options.clone(), Arc::clone(&shared))?;
        Link::through(options, shared, Box::new(carrier))
    }

    /// The same, by any way to a server.
    pub(crate) fn through(
        options: JoinOptions,
        shared: Arc<Shared>,
        carrier: Box<dyn Carrier>,
    ) -> Result<(Link, Welcome)> {
        let link = Link { options, shared, carrier };
        let welcome = link.sit_down()?;
        Ok((link, welcome))
    }

    /// Takes a seat, for as long as the patience lasts: the server may come after its workers.
    fn sit_down(&self) -> Result<Welcome> {
        let (began, mut pause, patience) = (self.carrier.now(), SHORTEST, self.options.patience);
        let waited = || self.carrier.now() - began;
        loop {
            let connected = self.carrier.connect();
            match connected.and_then(|welcome| self.shared.check_run(&welcome).map(|()| welcome)) {
                Ok(welcome) => return Ok(welcome),
                Err(End::Lost(reason)) if waited() >= patience => {
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
            self.carrier.pause(pause.min(patience.saturating_sub(waited())));
            if self.is_interrupted() {
                return Err(Error::Usage("interrupted while the server was out of reach".to_owned()));
            }
            pause = longer(pause);
        }
    }

    /// The same after a gap.
    pub fn join_again(&self) -> Result<Welcome> {
        self.sit_down()
    }

    /// The newest snapshot, and of how many rounds it is. If the connection is lost meanwhile it is fetched by another, and `welcome`
    /// is then of that one: rounds may have been made since, and the seat may be another.
    pub fn snapshot(&self, welcome: &mut Welcome) -> Result<(u64, Vec<u8>)> {
        let mut pause = SHORTEST;
        loop {
            match self.carrier.fetch() {
                Ok(fetched) => return Ok(fetched),
                Err(End::Refused(reason)) => {
                    return Err(Error::Refused { address: self.options.address.clone(), reason });
                }
                Err(End::Lost(_) | End::Gap) => *welcome = self.sit_down()?,
            }
            pause = longer(pause);
            self.carrier.pause(pause);
        }
    }

    /// From now on the rounds from `from` on come in.
    pub fn follow(&self, from: u64) {
        {
            let mut state = self.shared.state();
            (state.gap, state.outgoing) = (None, None);
            state.inbox.clear();
        }
        self.carrier.follow(from);
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
        self.shared.state().away.map(|since| self.carrier.now() - since)
    }

    pub fn send(&self, round: u64, message: &[u8], loss: Option<f64>) {
        {
            let mut state = self.shared.state();
            state.outgoing = Some(Outgoing { round, message: bytes::Bytes::copy_from_slice(message), loss });
            state.sent_from.clear();
        }
        self.shared.wake.notify_one();
    }

    /// Waits for `round`, to which this worker has sent a message of this digest, if any; whether the round counts it.
    pub fn receive(&self, round: u64, sent: u64) -> Result<(Record, bool), String> {
        let mut state = self.shared.state();
        loop {
            if let Some(record) = state.inbox.pop_front() {
                assert_eq!(record.round, round, "rounds come in their order");
                self.shared.wake.notify_one();
                let counts = std::mem::take(&mut state.sent_from).iter().any(|slot| record.counts(*slot, sent));
                // Two processes went on from one residual, and the other's message has told of it.
                let was_counted = state.name_counted.take_if(|counted| *counted <= round) == Some(round);
                if was_counted && !counts {
                    state.failure = Some(ANOTHER.to_owned());
                    return Err(ANOTHER.to_owned());
                }
                return Ok((record, counts));
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
            state = self.carrier.wait(&self.shared, state);
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
        let until = self.carrier.now() + Duration::from_secs(2);
        while self.shared.state().note.is_some() && self.carrier.now() < until {
            self.carrier.pause(Duration::from_millis(5));
        }
    }
}
