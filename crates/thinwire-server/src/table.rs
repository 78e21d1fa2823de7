//! Who sits at the table, and when a round is closed. Nothing here reads a clock or a file: time is given, and the rest is state.
//!
//! A round waits for every member that works on it, but no longer than the deadline after its first message; and it needs a
//! quorum. A member is waited for from when it says that it works on the round, until it is left out of one, says that it leaves, or
//! has been without a connection for as long as the deadline. One that says so and then does not send, [`MISSES`] times in a row, is
//! not waited for again until it has sent something in time.

#[cfg(test)]
mod tests;

use crate::roster::Roster;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thinwire::inside::exchange::header::Header;

/// When rounds are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The fewest workers that make a round.
    pub quorum: usize,
    /// The first round waits for so many, within the deadline.
    pub workers: usize,
    /// How long a round waits for the others after its first message.
    pub deadline: Duration,
    pub max_members: usize,
    /// Seats that one may have who comes from one address, or with one certificate.
    pub per_identity: usize,
}

/// Rounds in a row that may wait for a member in vain.
pub const MISSES: u32 = 3;

/// How many of those are remembered whose seats others have, and how many sessions that have ended.
const GONE: usize = 4096;

/// How a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Replaced,
    GivenAway,
}

/// One member, here or gone.
#[derive(Clone, Debug, Default)]
pub struct Seat {
    pub name: String,
    /// One more than the last round that counted it; 0 for none.
    counted: u64,
    /// The round from which the seat is its own, if another had it before.
    since: u64,
    /// It said that it leaves.
    left: bool,
    /// Of its present connection; none when it has not come since the server started.
    session: Option<u64>,
    /// Who it is, as far as the door knows: a certificate, or an address.
    identity: String,
    /// Rounds in a row that have waited for it in vain.
    missed: u32,
    /// Streams it follows the log by: 0 or 1, and 2 for a moment when it comes back.
    following: usize,
    /// Since when it has no connection.
    lost: Option<Instant>,
    /// Whether rounds wait for it.
    waited_for: bool,
    pub loss: Option<f64>,
    /// Rounds that counted it, and that it was left out of while it was waited for.
    pub rounds: u64,
    pub left_out: u64,
    pub bytes_received: u64,
    /// Messages that were far longer than those before them.
    pub outliers: u64,
    /// The number of its last upload; those before it are heard no more.
    upload: u64,
}

impl Seat {
    pub fn is_connected(&self) -> bool {
        self.following > 0
    }
}

pub struct Table {
    rules: Rules,
    seats: Vec<Seat>,
    gone: BTreeMap<String, u64>,
    /// How often the roster has changed.
    changes: u64,
    /// A number that nobody can guess: whoever knows a session may speak for its seat.
    new_session: Box<dyn FnMut() -> u64 + Send>,
    /// Sessions that have ended, the oldest first.
    ended: VecDeque<(u64, Ended)>,
    round: u64,
    step: u64,
    /// What messages of the round must look like; none while it is made, and after the last.
    expected: Option<Arc<[u8]>>,
    /// Messages that wait for the round to be closed, and when the first of them came.
    arrived: BTreeMap<u32, Vec<u8>>,
    first: Option<Instant>,
    /// Whom the round counts that is being made.
    making: Vec<u32>,
    /// The round that was closed last, and what its messages looked like.
    past: Option<(u64, Arc<[u8]>)>,
}

/// What becomes of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Close,
    /// Look again then, or when something happens.
    WaitUntil(Instant),
    Wait,
}

/// Why someone may not sit here, or speak.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("all {0} seats are taken")]
    Full(usize),
    #[error("this address or certificate has {0} seats already, and may have no more")]
    TooMany(usize),
    #[error("a name has 1 to 64 letters, digits, - _ and .; this has not")]
    Name,
    #[error("another worker has joined under this name")]
    Replaced,
    #[error("the server has been started anew; join again")]
    Restarted,
    #[error("the seat was given to another after a long silence; join again")]
    GivenAway,
    #[error("the round that counts this worker is being written; join again")]
    Making,
    #[error("the same worker has begun to send another message")]
    Superseded,
    #[error("round {0} is not open yet; this is round {1}")]
    Early(u64, u64),
    #[error("another message of this worker for round {0} is here already")]
    Another(u64),
}

/// What becomes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Of the open round; this is what it must look like.
    Open(Arc<[u8]>),
    /// Of the round that was closed last, and of one whom rounds have waited for in vain: if it has this form, it does send.
    Past(Arc<[u8]>),
    Late,
}

impl Table {
    /// With members as they were known before: `counted` tells for each seat one more than the last round that counted it, and
    /// `last` whom the last round counted. Those are waited for, as if their connections had just been lost. `new_session` gives
    /// numbers that nobody can guess.
    pub fn new(
        rules: Rules,
        roster: Roster,
        counted: impl Fn(u32) -> u64,
        last: &[u32],
        new_session: impl FnMut() -> u64 + Send + 'static,
        now: Instant,
    ) -> Table {
        let seat = |(slot, name): (usize, String)| {
            let waited_for = last.contains(&(slot as u32));
            let since = roster.since.get(&(slot as u32)).copied().unwrap_or(0);
            let own = Some(counted(slot as u32)).filter(|counted| *counted > since).unwrap_or(0);
            let counted = own.max(roster.gone.get(&name).copied().unwrap_or(0));
            Seat { name, counted, since, waited_for, lost: Some(now), ..Seat::default() }
        };
        let seats = roster.seats.into_iter().enumerate().map(seat).collect();
        Table {
            rules,
            seats,
            gone: roster.gone,
            changes: 0,
            new_session: Box::new(new_session),
            ended: VecDeque::new(),
            round: 0,
            step: 0,
            expected: None,
            arrived: BTreeMap::new(),
            first: None,
            making: Vec::new(),
            past: None,
        }
    }

    pub fn seats(&self) -> &[Seat] {
        &self.seats
    }

    pub fn roster(&self) -> Roster {
        let since = (0..).zip(&self.seats).map(|(slot, seat)| (slot, seat.since)).filter(|(_, since)| *since > 0);
        let seats = self.seats.iter().map(|seat| seat.name.clone()).collect();
        Roster { seats, gone: self.gone.clone(), since: since.collect() }
    }

    /// How often the roster has changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// One more than the last round that counted the member in `slot`; 0 for none.
    pub fn counted(&self, slot: u32) -> u64 {
        self.seats[slot as usize].counted
    }

    pub fn round(&self) -> u64 {
        self.round
    }

    /// The step of the round.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Messages of the open round.
    pub fn arrived(&self) -> usize {
        self.arrived.len()
    }

    /// Gives `name` its seat, or a new one, and a session; whoever had the seat is put out.
    ///
    /// A message that waits for its round goes with the one who sent it: if it is the same worker, it sends it again; if it is one
    /// that came back with a checkpoint, it owes what the message told, and would tell it twice. For the same reason nobody sits
    /// down whose message is in the round that is being made: soon it is known to have been counted.
    pub fn join(&mut self, name: &str, identity: &str, now: Instant) -> Result<(u32, u64), Refusal> {
        let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
            return Err(Refusal::Name);
        }
        let known = self.seats.iter().position(|seat| seat.name == name);
        self.check_identity(known, identity, now)?;
        let slot = match known {
            Some(slot) => slot,
            None => self.seat_new(name, now)?,
        };
        if self.making.contains(&(slot as u32)) {
            return Err(Refusal::Making);
        }
        self.withdraw(slot as u32);
        let session = (self.new_session)();
        let seat = &mut self.seats[slot];
        (seat.following, seat.lost, seat.left, seat.identity) = (0, Some(now), false, identity.to_owned());
        let before = seat.session.replace(session);
        self.end_session(before, Ended::Replaced);
        Ok((slot as u32, session))
    }

    /// One who is let in must not take all seats: others who have no seat yet come from elsewhere.
    fn check_identity(&self, known: Option<usize>, identity: &str, now: Instant) -> Result<(), Refusal> {
        let theirs = |slot: &usize| self.seats[*slot].identity == identity && !self.is_free(*slot, now);
        let others = (0..self.seats.len()).filter(|slot| Some(*slot) != known).filter(theirs).count();
        match others < self.rules.per_identity {
            true => Ok(()),
            false => Err(Refusal::TooMany(others)),
        }
    }

    fn end_session(&mut self, session: Option<u64>, how: Ended) {
        self.ended.extend(session.map(|session| (session, how)));
        if self.ended.len() > GONE {
            self.ended.pop_front();
        }
    }

    /// A seat for one who has none: when all that the run is made for are given, first the seat of one who has gone, whose share of
    /// the data then has someone again.
    fn seat_new(&mut self, name: &str, now: Instant) -> Result<usize, Refusal> {
        let free = (0..self.seats.len()).find(|slot| self.is_free(*slot, now));
        let slot = match free.filter(|_| self.seats.len() >= self.rules.workers) {
            Some(slot) => slot,
            None if self.seats.len() < self.rules.max_members => {
                self.seats.push(Seat::default());
                self.seats.len() - 1
            }
            None => return Err(Refusal::Full(self.rules.max_members)),
        };
        let counted = self.gone.get(name).copied().unwrap_or(0);
        let is_used = !self.seats[slot].name.is_empty();
        let since = if is_used { self.round } else { 0 };
        let now_here = Seat { name: name.to_owned(), counted, since, ..Seat::default() };
        let before = std::mem::replace(&mut self.seats[slot], now_here);
        self.end_session(before.session, Ended::GivenAway);
        if before.counted > 0 {
            self.gone.insert(before.name, before.counted);
        }
        if self.gone.len() > GONE {
            let oldest = self.gone.iter().min_by_key(|(_, counted)| **counted).map(|(name, _)| name.clone());
            self.gone.remove(&oldest.expect("more than none"));
        }
        self.changes += 1;
        Ok(slot)
    }

    /// Whether another may have the seat: its member has left, or been away for longer than anyone waits.
    fn is_free(&self, slot: usize, now: Instant) -> bool {
        let (seat, number) = (&self.seats[slot], slot as u32);
        let away = seat.lost.is_some_and(|lost| now.saturating_duration_since(lost) > self.rules.deadline);
        let speaks = self.arrived.contains_key(&number) || self.making.contains(&number);
        !seat.is_connected() && !speaks && (seat.left || away)
    }

    /// Whether everyone has gone, and nobody is expected back.
    pub fn is_empty(&self, now: Instant) -> bool {
        (0..self.seats.len()).all(|slot| self.is_free(slot, now))
    }

    /// A message that waits for its round is no longer there.
    fn withdraw(&mut self, slot: u32) {
        if self.arrived.remove(&slot).is_some() && self.arrived.is_empty() {
            self.first = None;
        }
    }

    /// Whether the round that is being made counts `name`, who may not sit down until it is there.
    pub fn is_making(&self, name: &str) -> bool {
        self.making.iter().any(|slot| self.seats[*slot as usize].name == name)
    }

    fn seat(&mut self, slot: u32, session: u64) -> Result<&mut Seat, Refusal> {
        let ended = self.ended.iter().find(|(past, _)| *past == session).map(|(_, how)| *how);
        match (self.seats.get_mut(slot as usize), ended) {
            (Some(seat), _) if seat.session == Some(session) => Ok(seat),
            (_, Some(Ended::GivenAway)) => Err(Refusal::GivenAway),
            (_, Some(Ended::Replaced)) => Err(Refusal::Replaced),
            _ => Err(Refusal::Restarted),
        }
    }

    pub fn check(&mut self, slot: u32, session: u64) -> Result<(), Refusal> {
        self.seat(slot, session).map(|_| ())
    }

    /// It follows the log, by a stream that is open.
    pub fn follows(&mut self, slot: u32, session: u64) -> Result<(), Refusal> {
        let seat = self.seat(slot, session)?;
        seat.following += 1;
        (seat.lost, seat.left) = (None, false);
        Ok(())
    }

    /// That stream has ended.
    pub fn lost(&mut self, slot: u32, session: u64, now: Instant) {
        if let Ok(seat) = self.seat(slot, session) {
            seat.following = seat.following.saturating_sub(1);
            seat.lost = (seat.following == 0).then_some(now);
        }
    }

    /// It works on `round`.
    pub fn ready(&mut self, slot: u32, session: u64, round: u64) -> Result<(), Refusal> {
        let open = self.round;
        let seat = self.seat(slot, session)?;
        // Whoever says so and does not send would slow everyone down to the deadline, round after round.
        seat.waited_for |= round == open && seat.missed < MISSES;
        Ok(())
    }

    pub fn leaves(&mut self, slot: u32, session: u64) -> Result<(), Refusal> {
        let seat = self.seat(slot, session)?;
        (seat.waited_for, seat.left) = (false, true);
        self.withdraw(slot); // it has been taken back
        Ok(())
    }

    /// A message begins to come; another of the same worker that is still coming is heard no more.
    pub fn begin_upload(&mut self, slot: u32, session: u64) -> Result<u64, Refusal> {
        let seat = self.seat(slot, session)?;
        seat.upload += 1;
        Ok(seat.upload)
    }

    /// Whether it still is the last.
    pub fn check_upload(&mut self, slot: u32, session: u64, upload: u64) -> Result<(), Refusal> {
        let last = self.seat(slot, session)?.upload;
        if last == upload { Ok(()) } else { Err(Refusal::Superseded) }
    }

    /// Whether a message for `round` may come.
    pub fn may_send(&mut self, slot: u32, session: u64, round: u64) -> Result<Verdict, Refusal> {
        let open = self.round;
        let missed = self.seat(slot, session)?.missed;
        match (&self.expected, &self.past) {
            _ if round > open => Err(Refusal::Early(round, open)),
            (Some(expected), _) if round == open => Ok(Verdict::Open(Arc::clone(expected))),
            (_, Some((past, expected))) if round == *past && missed > 0 => Ok(Verdict::Past(Arc::clone(expected))),
            _ => Ok(Verdict::Late),
        }
    }

    /// A message that was checked has come.
    pub fn arrive(
        &mut self,
        slot: u32,
        session: u64,
        round: u64,
        message: Vec<u8>,
        loss: Option<f64>,
        now: Instant,
    ) -> Result<Verdict, Refusal> {
        let verdict = self.may_send(slot, session, round)?;
        let seat = self.seat(slot, session)?;
        seat.bytes_received += message.len() as u64;
        seat.loss = loss.filter(|loss| loss.is_finite()).or(seat.loss);
        if !matches!(verdict, Verdict::Open(_)) {
            // Slow, but it does send: without being waited for again it might come too late for ever.
            seat.missed = 0;
            return Ok(Verdict::Late);
        }
        (seat.waited_for, seat.missed) = (true, 0);
        match self.arrived.get(&slot) {
            Some(before) if *before == message => return Ok(verdict),
            Some(_) => return Err(Refusal::Another(round)),
            None => {}
        }
        self.arrived.insert(slot, message);
        self.first.get_or_insert(now);
        Ok(verdict)
    }

    /// What messages of the open round must look like.
    pub fn expected(&self) -> Option<&[u8]> {
        self.expected.as_deref()
    }

    /// A message of the member in `slot` was an outlier: how many were by now, and its name.
    pub fn count_outlier(&mut self, slot: u32) -> (u64, &str) {
        let seat = &mut self.seats[slot as usize];
        seat.outliers += 1;
        (seat.outliers, &seat.name)
    }

    /// Whether the round can be closed.
    pub fn decide(&self, now: Instant) -> Decision {
        let (Some(first), Some(_), came) = (self.first, &self.expected, self.arrived.len()) else {
            return Decision::Wait;
        };
        if came < self.rules.quorum {
            return Decision::Wait;
        }
        let end = first + self.rules.deadline;
        if now >= end {
            return Decision::Close;
        }
        let missing = self.seats.iter().enumerate().filter(|(slot, _)| !self.arrived.contains_key(&(*slot as u32)));
        let leases = missing.filter_map(|(_, seat)| self.lease(seat, end)).filter(|lease| *lease > now);
        let longest = leases.max();
        match (longest, self.round == 0 && came < self.rules.workers) {
            (None, false) => Decision::Close,
            (None, true) => Decision::WaitUntil(end),
            (Some(lease), false) => Decision::WaitUntil(lease.min(end)),
            (Some(_), true) => Decision::WaitUntil(end),
        }
    }

    /// Until when a member that has not sent anything is waited for, if it is.
    fn lease(&self, seat: &Seat, end: Instant) -> Option<Instant> {
        let until = seat.lost.map_or(end, |lost| lost + self.rules.deadline);
        seat.waited_for.then_some(until)
    }

    /// Takes the messages of the round, which is being made from now on, and when the first of them came.
    pub fn close(&mut self) -> (BTreeMap<u32, Vec<u8>>, Option<Instant>) {
        self.past = self.expected.take().map(|expected| (self.round, expected));
        self.making = self.arrived.keys().copied().collect();
        (std::mem::take(&mut self.arrived), self.first.take())
    }

    /// The round was made, of these slots. The names of those that it did not wait for any longer.
    pub fn closed(&mut self, slots: impl Iterator<Item = u32> + Clone) -> Vec<String> {
        let mut left_out = Vec::new();
        for (slot, seat) in self.seats.iter_mut().enumerate() {
            let counted = slots.clone().any(|counted| counted == slot as u32);
            if counted {
                (seat.rounds, seat.counted) = (seat.rounds + 1, self.round + 1);
            } else if seat.waited_for {
                (seat.left_out, seat.missed) = (seat.left_out + 1, seat.missed + 1);
                left_out.push(seat.name.clone());
            }
            seat.waited_for &= counted;
        }
        left_out
    }

    /// The next round may come; none after the last.
    pub fn open(&mut self, round: u64, expected: Option<Arc<[u8]>>) {
        let header = expected.as_deref().and_then(|expected| Header::read(expected, 0).ok());
        self.step = header.map_or(self.step, |(header, _)| header.step);
        (self.round, self.expected) = (round, expected);
        self.making.clear();
    }
}
