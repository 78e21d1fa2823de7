//! The server in the world: it starts, makes rounds when its keeper says so, dies and comes back.

use super::server::Server;
use super::world::{Event, MILLI, World};
use crate::disk::memory::Crash;
use crate::hall::NO_ROOM_PAUSE;
use crate::run::Run;
use crate::table::Decision;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

impl World {
    /// Calls the server, if there is one. If it dies of that, there is none any more.
    pub fn call<T>(&mut self, what: impl FnOnce(&mut Server) -> T) -> Option<T> {
        let server = self.server.as_mut()?;
        match catch_unwind(AssertUnwindSafe(|| what(server))) {
            Ok(done) => Some(done),
            Err(thrown) if thrown.is::<Crash>() => {
                self.die();
                None
            }
            Err(thrown) => resume_unwind(thrown),
        }
    }

    /// The server is gone, and everyone notices sooner or later.
    pub fn die(&mut self) {
        self.note(1);
        self.say_aloud(|| "the server is gone".to_owned());
        self.server = None;
        self.boots += 1;
        self.outcome.crashes += 1;
        self.perhaps_a_power_cut();
        for life in 0..self.talks.len() {
            self.lose(life);
        }
        let pause = self.chance.below(200 * MILLI);
        self.at(pause, Event::Boot);
    }

    pub fn perhaps_a_power_cut(&mut self) {
        if self.chance.one_in(2) {
            self.outcome.power_cuts += 1;
            self.disk.lose_power(&mut self.chance);
        }
        self.disk.restart();
    }

    pub fn boot(&mut self) {
        self.boots += 1;
        if self.faults_left > 0 && self.chance.one_in(4) {
            self.disk_fault(60);
        }
        let is_there = self.disk.quietly(|| Run::exists(&self.folder));
        assert!(is_there || !self.ledger.is_created, "the run is gone");
        let booted = catch_unwind(AssertUnwindSafe(|| Server::boot(&self.folder, &self.setup, &self.time)));
        let booted = booted.map_err(|thrown| if thrown.is::<Crash>() { thrown } else { resume_unwind(thrown) });
        let mut server = match booted {
            Ok(Ok(server)) => server,
            Ok(Err(error)) => {
                assert!(self.disk.struck(), "the server does not come back: {error}");
                return self.die();
            }
            Err(_) => return self.die(),
        };
        let seats = self.setup.rules.max_members as u32;
        self.disk.quietly(|| self.ledger.compare(&mut server.run, seats));
        self.ledger.is_created = true;
        self.server = Some(server);
        self.note(2);
        self.keep();
    }

    /// What the keeper does when something has happened.
    pub fn keep(&mut self) {
        let Some(server) = self.server.as_mut().filter(|server| server.making.is_none()) else { return };
        let (decision, closed) = server.hall.decide();
        match decision {
            Decision::Close => {
                server.making = Some(closed);
                let takes = self.chance.below(3 * MILLI);
                self.at(takes, Event::Commit(self.boots));
            }
            Decision::WaitUntil(then) => {
                let after = then.saturating_duration_since(self.time.instant()).as_micros() as u64;
                self.at(after + 1, Event::Keep(self.boots));
            }
            Decision::Wait => {}
        }
    }

    pub fn commit(&mut self) {
        let made = self.call(|server| {
            let closed = server.making.take().expect("a round is being made");
            let made = closed.commit(&mut server.run);
            server.making = Some(closed);
            server.hall.made(made, &server.run)
        });
        match made {
            None => {}
            Some(Ok(true)) => {
                let server = self.server.as_mut().expect("it has made a round");
                server.making = None;
                let (seats, round) = (self.setup.rules.max_members as u32, server.run.rounds() - 1);
                let record = server.hall.last(round).expect("it is the last");
                self.ledger.made(&record, &mut server.run, seats);
                self.note(round);
                self.pump();
                self.keep();
            }
            Some(Ok(false)) => self.at(NO_ROOM_PAUSE.as_micros() as u64, Event::Commit(self.boots)),
            Some(Err(error)) => {
                assert!(self.disk.struck(), "the server gives up: {error}");
                self.die();
            }
        }
    }

    /// It stops as when it is told to, and starts again.
    pub fn stop(&mut self) {
        if self.server.as_ref().is_some_and(|server| server.making.is_none()) {
            self.call(|server| _ = server.run.snapshot_now()); // it may fail, and then nothing is lost
            if self.server.is_some() {
                self.die();
            }
        }
    }
}
