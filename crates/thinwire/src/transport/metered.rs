//! The meter: every byte and every wait passes here, and is counted here.

use super::Collective;
use crate::error::Result;
use crate::schedule::Round;
use serde::Serialize;
use std::time::Instant;

/// What one worker has sent and waited for since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Traffic {
    /// To other workers, headers included; what a worker keeps for itself crosses no wire.
    pub bytes_sent: u64,
    /// Those of them that went to another host: what crossed the network.
    pub bytes_between_hosts: u64,
    /// Messages sent to other workers.
    pub messages_sent: u64,
    /// Outside the rounds: the first greeting, notes about checkpoints, and the program's own.
    pub control_bytes_sent: u64,
    /// Rounds of each kind.
    pub rounds: Rounds,
    /// Where the time went.
    pub seconds: Seconds,
    /// Steps at which this worker's gradient was not finite and was left out.
    pub left_out: u64,
    /// Steps that moved a parameter by more than 100 learning rates, weight decay aside: something is wrong.
    pub jumps: u64,
    /// The first of them.
    pub first_jump: Option<Jump>,
    /// Steps at which this worker's gradient was far longer than those before it, and was clipped or left out.
    pub outliers: u64,
    /// The first of them.
    pub first_outlier: Option<OutlierStep>,
}

/// A gradient that was far longer than those before it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OutlierStep {
    /// At which step.
    pub step: u64,
    /// Its norm.
    pub norm: f64,
    /// The longest that it might have been.
    pub limit: f64,
}

/// A step that moved a parameter too far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Jump {
    /// At which step.
    pub step: u64,
    /// The place of that parameter (the first, if there were several) in the flat vector.
    pub parameter: usize,
}

/// Steps by what was averaged in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rounds {
    /// Full-precision means.
    pub exact: u64,
    /// Compressed means.
    pub coarse: u64,
    /// Steps without a round.
    pub skipped: u64,
}

impl Rounds {
    /// Counts one more.
    pub fn count(&mut self, round: Round) {
        *match round {
            Round::Exact => &mut self.exact,
            Round::Coarse => &mut self.coarse,
            Round::Skipped => &mut self.skipped,
        } += 1;
    }
}

/// Time by phase: coding and averaging, handing bytes to the transport, waiting for other workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Seconds {
    /// Packing, averaging and unpacking.
    pub pack: f64,
    /// Sending and receiving.
    pub wire: f64,
    /// Waiting for other workers.
    pub wait: f64,
}

/// A transport with its meter.
pub struct Metered {
    collective: Box<dyn Collective>,
    /// Whether each worker is on another host than this one.
    is_elsewhere: Vec<bool>,
    pub traffic: Traffic,
}

impl Metered {
    pub fn new(collective: Box<dyn Collective>) -> Metered {
        let (hosts, me) = (collective.hosts(), collective.rank());
        assert_eq!(hosts.len(), collective.size(), "a transport knows the host of each of its workers");
        let server = collective.served().map(|_| true);
        let is_elsewhere = hosts.iter().map(|host| *host != hosts[me]).chain(server).collect();
        Metered { collective, is_elsewhere, traffic: Traffic::default() }
    }

    pub fn rank(&self) -> usize {
        self.collective.rank()
    }

    pub fn size(&self) -> usize {
        self.collective.size()
    }

    /// See [`Collective::seat`].
    pub fn seat(&self) -> usize {
        self.collective.seat()
    }

    /// See [`Collective::left_out`].
    pub fn left_out(&self) -> bool {
        self.collective.left_out()
    }

    pub fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.rank();
        (0..self.size()).filter(move |worker| *worker != me)
    }

    /// A message of a round.
    pub fn send(&mut self, to: usize, message: &[u8], during: &'static str) -> Result<()> {
        let start = Instant::now();
        self.collective.send(to, message, during)?;
        self.traffic.bytes_sent += message.len() as u64;
        self.traffic.bytes_between_hosts += if self.is_elsewhere[to] { message.len() as u64 } else { 0 };
        self.traffic.messages_sent += 1;
        self.traffic.seconds.wire += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// A message outside the rounds.
    pub fn send_control(&mut self, to: usize, message: &[u8], during: &'static str) -> Result<()> {
        self.collective.send(to, message, during)?;
        self.traffic.control_bytes_sent += message.len() as u64;
        Ok(())
    }

    pub fn receive(&mut self, from: usize, message: &mut Vec<u8>, during: &'static str) -> Result<()> {
        let start = Instant::now();
        self.collective.receive(from, message, during)?;
        self.traffic.seconds.wait += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Runs `work` on the `pack` clock.
    pub fn packing<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        self.traffic.seconds.pack += start.elapsed().as_secs_f64();
        done
    }
}
