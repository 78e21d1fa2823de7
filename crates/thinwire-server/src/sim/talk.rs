//! A worker's conversation with the server, in virtual time: what `conversation` does with a connection. What is said, what a round's
//! pieces come to, and what an error means are its own functions; only the waiting is the world's.

use super::life::{Go, Life, Report};
use super::server::Connection;
use super::world::{Doing, Event, World};
use crate::connection::End;
use crate::conversation::{Saying, lost_some, take};
use crate::log::Counted;
use crate::proto::{RoundPart, Seat, Welcome, note};
use crate::service::Incoming;
use std::collections::VecDeque;

/// What goes over a connection: what a worker asks is an event at the server, what it is told is one at the worker.
pub enum What {
    Join,
    Fetch,
    Follow(u64),
    Tell(note::What, u64),
    Send(u64, bytes::Bytes),
    Sent(Incoming, bytes::Bytes),
    /// The server finds that the connection is gone.
    Gone,

    Joined(Result<Welcome, End>),
    Fetched(Result<(u64, Vec<u8>), End>),
    Followed,
    Told(note::What, u64),
    Received,
    Part(Vec<RoundPart>),
    Ended(End),
    /// The worker tries again.
    Return,
}

impl What {
    pub fn name(&self) -> String {
        match self {
            What::Join => "the server hears: join".to_owned(),
            What::Fetch => "the server hears: a snapshot, please".to_owned(),
            What::Follow(from) => format!("the server hears: follow from {from}"),
            What::Tell(what, round) => format!("the server hears: {what:?} {round}"),
            What::Send(round, _) => format!("the server hears: a message for round {round} begins"),
            What::Sent(incoming, _) => format!("the server hears: the message for round {} is whole", incoming.round()),
            What::Gone => "the server finds the connection gone".to_owned(),
            What::Joined(Ok(welcome)) => {
                format!("a seat, {}, rounds {} to {}", welcome.slot, welcome.oldest, welcome.rounds)
            }
            What::Joined(Err(_)) => "no seat".to_owned(),
            What::Fetched(fetched) => {
                format!("a snapshot of {:?} rounds", fetched.as_ref().ok().map(|(rounds, _)| rounds))
            }
            What::Followed => "rounds come".to_owned(),
            What::Told(what, round) => format!("{what:?} {round} was heard"),
            What::Received => "its message was heard".to_owned(),
            What::Part(parts) => format!("round {}", parts[0].round),
            What::Ended(End::Lost(reason)) => format!("lost: {reason}"),
            What::Ended(End::Refused(reason)) => format!("refused: {reason}"),
            What::Ended(End::Gap) => "a gap".to_owned(),
            What::Return => "tries again".to_owned(),
        }
    }

    fn is_at_server(&self) -> bool {
        use What::{Fetch, Follow, Gone, Join, Send, Sent, Tell};
        matches!(self, Join | Fetch | Follow(_) | Tell(..) | Send(..) | Sent(..) | Gone)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There is no connection, or nobody uses it.
    Idle,
    /// The worker's thread waits for an answer.
    Asking,
    /// Rounds are to come.
    Opening,
    Talking,
    /// The connection was lost.
    Returning,
}

pub struct Talk {
    pub life: Life,
    pub doing: Doing,
    /// How often the life has asked for something.
    pub asked: u64,
    pub report: Option<Report>,
    phase: Phase,
    pub connection: u64,
    welcome: Welcome,
    /// The next round to come in.
    next: u64,
    sent: Option<u64>,
    busy: bool,
    coming: Option<(Vec<Counted>, Vec<u8>)>,
    /// Rounds for which there is no room yet.
    held: VecDeque<Vec<RoundPart>>,
    /// When the last piece arrives that is on its way: they come in order.
    pub last_part: u64,
}

impl Talk {
    pub fn new(life: Life) -> Talk {
        Talk {
            life,
            doing: Doing::Pause,
            asked: 0,
            report: None,
            phase: Phase::Idle,
            connection: 0,
            welcome: Welcome::default(),
            next: 0,
            sent: None,
            busy: false,
            coming: None,
            held: VecDeque::new(),
            last_part: 0,
        }
    }

    pub fn seat(&self) -> Option<Seat> {
        Some(Seat { slot: self.welcome.slot, session: self.welcome.session })
    }
}

impl World {
    /// Something goes over the connection of a life as it is now.
    pub fn post(&mut self, life: usize, what: What) {
        let after = self.delay();
        self.post_after(after, life, what);
    }

    fn post_after(&mut self, after: u64, life: usize, what: What) {
        let connection = self.talks[life].connection;
        self.at(after, Event::Talk((life, connection), self.boots, what));
    }

    pub fn talk(&mut self, connection: Connection, boot: u64, what: What) {
        let (life, number) = connection;
        let is_new = number == self.talks[life].connection;
        let is_here = boot == self.boots && self.server.is_some();
        match (what.is_at_server(), is_new) {
            (true, true) if !is_here => self.lose(life),
            (true, _) if is_here => self.at_server(connection, what),
            (false, true) if self.talks[life].doing != Doing::Over => self.at_worker(life, what),
            _ => {} // of a connection that is no more
        }
    }

    /// A new connection; the one before is closed.
    pub fn connect(&mut self, life: usize, phase: Phase) {
        self.close(life);
        self.talks[life].phase = phase;
        self.post(life, What::Join);
    }

    /// The connection of a life is closed from its side.
    pub fn close(&mut self, life: usize) {
        self.post(life, What::Gone);
        let talk = &mut self.talks[life];
        talk.connection += 1;
        (talk.phase, talk.sent, talk.busy, talk.coming) = (Phase::Idle, None, false, None);
        talk.held.clear();
    }

    /// The connection breaks: either end notices in its own time.
    pub fn cut(&mut self, life: usize) {
        let after = self.delay() * 3;
        self.post_after(after, life, What::Gone);
        self.lose(life);
    }

    /// The worker will find that the connection is gone.
    pub fn lose(&mut self, life: usize) {
        if self.talks[life].phase != Phase::Idle && self.talks[life].doing != Doing::Over {
            // Nothing else comes over it: what is on its way is of a connection before.
            let (phase, at) = (self.talks[life].phase, self.delay());
            if phase != Phase::Returning {
                self.talks[life].connection += 1;
            }
            self.post_after(at, life, What::Ended(End::Lost("the connection was lost".to_owned())));
        }
    }

    /// From now on rounds come in over the connection that the life has.
    pub fn begin_to_follow(&mut self, life: usize, from: u64) {
        let talk = &mut self.talks[life];
        (talk.next, talk.phase) = (from, Phase::Opening);
        self.open(life);
    }

    fn open(&mut self, life: usize) {
        let talk = &mut self.talks[life];
        (talk.phase, talk.sent, talk.busy, talk.coming) = (Phase::Opening, None, false, None);
        talk.held.clear();
        match lost_some(&talk.welcome, talk.next) {
            Some(end) => self.end(life, end),
            None => {
                let from = talk.next;
                self.post(life, What::Follow(from));
            }
        }
    }

    fn at_worker(&mut self, life: usize, what: What) {
        match what {
            What::Joined(joined) => self.joined(life, joined),
            What::Fetched(Ok((rounds, bytes))) => {
                let talk = &mut self.talks[life];
                talk.welcome.rounds = talk.welcome.rounds.max(rounds);
                self.answer(life, Go::Fetched(Ok((rounds, bytes))));
            }
            What::Fetched(Err(end)) | What::Ended(end) => self.end(life, end),
            What::Followed => self.talks[life].phase = Phase::Talking,
            What::Told(what, round) => {
                self.talks[life].life.shared.state().told(what, round);
                self.talks[life].busy = false;
            }
            What::Received => self.talks[life].busy = false,
            What::Part(parts) => self.talks[life].held.push_back(parts),
            What::Return => self.connect(life, Phase::Returning),
            _ => unreachable!("that is at the server"),
        }
        self.say(life);
    }

    fn joined(&mut self, life: usize, joined: Result<Welcome, End>) {
        let welcome = match joined {
            Ok(welcome) => welcome,
            Err(end) => return self.end(life, end),
        };
        let talk = &mut self.talks[life];
        let before = std::mem::replace(&mut talk.welcome, welcome.clone());
        if talk.phase == Phase::Asking {
            return self.answer(life, Go::Connected(Ok(welcome)));
        }
        let shared = &talk.life.shared;
        let checked = shared.check_run(&welcome).and_then(|()| shared.check_alone(&before, &welcome, talk.next));
        if let Err(end) = checked {
            return self.end(life, end);
        }
        talk.life.shared.state().away = None;
        if talk.life.shared.leads_on(&welcome, talk.next) {
            return self.open(life);
        }
        talk.phase = Phase::Idle;
        self.news(life);
    }

    /// A conversation has ended, or one could not begin.
    fn end(&mut self, life: usize, end: End) {
        match (self.talks[life].phase, self.talks[life].doing) {
            (Phase::Asking, Doing::Connect) => {
                self.close(life);
                self.answer(life, Go::Connected(Err(end)));
            }
            (Phase::Asking, Doing::Fetch) => self.answer(life, Go::Fetched(Err(end))),
            (Phase::Idle | Phase::Asking, _) => {}
            (Phase::Opening | Phase::Talking | Phase::Returning, _) => {
                self.close(life);
                match end {
                    End::Refused(reason) => {
                        self.talks[life].life.shared.fail(reason);
                        self.news(life);
                    }
                    End::Gap => self.connect(life, Phase::Returning),
                    End::Lost(_) => {
                        self.talks[life].phase = Phase::Returning;
                        let pause = 100_000 + self.chance.below(300_000);
                        self.post_after(pause, life, What::Return);
                    }
                }
            }
        }
    }

    /// The worker's thread looks again, if it waits for news.
    fn news(&mut self, life: usize) {
        if self.talks[life].doing == Doing::News {
            self.answer(life, Go::On);
        }
    }

    /// Takes the rounds that there is room for, and says what is to be said.
    pub fn say(&mut self, life: usize) {
        while self.talks[life].phase == Phase::Talking && self.talks[life].life.shared.state().has_room() {
            let Some(parts) = self.talks[life].held.pop_front() else { break };
            self.take(life, parts);
        }
        let talk = &mut self.talks[life];
        if talk.phase != Phase::Talking || talk.busy || talk.doing == Doing::Over {
            return;
        }
        let saying = talk.life.shared.state().say(talk.welcome.slot, &mut talk.sent);
        let Some(saying) = saying else { return };
        talk.busy = true;
        match saying {
            Saying::Note(what, round) => self.post(life, What::Tell(what, round)),
            Saying::Message(out) => {
                self.ledger.sent(out.round, &out.message, life);
                self.post(life, What::Send(out.round, out.message));
            }
        }
    }

    fn take(&mut self, life: usize, parts: Vec<RoundPart>) {
        let connection = (life, self.talks[life].connection);
        for part in parts {
            let talk = &mut self.talks[life];
            let end = take(&talk.life.shared, &mut talk.coming, &mut talk.next, Ok(Some(part)));
            if let Some(end) = end {
                return self.end(life, end);
            }
        }
        if let Some(stream) = self.server.as_mut().and_then(|server| server.streams.get_mut(&connection)) {
            stream.under_way -= 1;
            self.pump();
        }
        self.news(life);
    }
}
