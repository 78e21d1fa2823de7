//! The server's end of the conversations: each request of a worker, and what the real service answers.

use super::server::{Connection, Stream};
use super::talk::What;
use super::world::{Event, World};
use crate::connection::End;
use crate::proto::{JoinRequest, Note};
use crate::service::{Incoming, VERSION, found, open_snapshot, parts};
use std::io::Read;
use tonic::{Code, Status};

/// Rounds that are on their way to one worker.
const UNDER_WAY: usize = 3;

impl World {
    pub fn at_server(&mut self, connection: Connection, what: What) {
        let (life, number) = connection;
        if number != self.talks[life].connection && matches!(what, What::Join | What::Follow(_) | What::Fetch) {
            return; // nobody waits for the answer
        }
        match what {
            What::Join => self.join_at_server(life),
            What::Fetch => self.fetch_at_server(life),
            What::Follow(from) => self.follow_at_server(connection, from),
            What::Tell(what, round) => {
                let note = Note { seat: self.talks[life].seat(), what: what.into(), round };
                let heard = self.call(|server| server.service.hear(note));
                self.reply(connection, heard, |()| What::Told(what, round));
            }
            What::Send(round, message) => self.send_at_server(connection, round, message),
            What::Sent(incoming, message) => self.sent_at_server(connection, &incoming, &message),
            What::Gone => {
                if let Some(server) = &mut self.server {
                    server.streams.remove(&connection);
                }
            }
            _ => unreachable!("that is at the worker"),
        }
        self.keep();
    }

    /// What the server answers, unless it has died of it.
    fn reply<T>(&mut self, connection: Connection, answer: Option<Result<T, Status>>, good: impl FnOnce(T) -> What) {
        let what = match answer {
            Some(Ok(answer)) => good(answer),
            Some(Err(status)) => What::Ended(status.into()),
            None => return,
        };
        let after = self.delay();
        self.at(after, Event::Talk(connection, self.boots, what));
    }

    fn join_at_server(&mut self, life: usize) {
        let name = self.talks[life].life.birth.name.clone();
        if self.server.as_ref().is_some_and(|server| server.hall.table().is_making(&name)) && !self.chance.one_in(4) {
            return self.post(life, What::Join); // it waits for the round
        }
        let request = JoinRequest { version: VERSION, name, run: String::new() };
        let Some(joined) = self.call(|server| server.service.welcome(&request, None)) else { return };
        let joined = joined.map_err(|status| match status.code() {
            Code::ResourceExhausted => End::Lost(status.message().to_owned()), // a seat may become free
            _ => End::from(status),
        });
        self.post(life, What::Joined(joined));
        self.put_out();
    }

    /// Ends the streams of those whose seats others have taken.
    fn put_out(&mut self) {
        let Some(server) = &mut self.server else { return };
        let refused =
            |(connection, stream): (&Connection, &Stream)| Some((*connection, stream.following.check().err()?));
        let out = server.streams.iter().filter_map(refused).collect::<Vec<_>>();
        for (connection, status) in out {
            self.server.as_mut().expect("it answers").streams.remove(&connection);
            self.reply(connection, Some(Err::<(), _>(status)), |()| What::Received);
        }
    }

    fn fetch_at_server(&mut self, life: usize) {
        let seat = self.talks[life].seat().expect("it has one");
        let fetched = self.call(|server| {
            server.hall.table().check(seat.slot, seat.session)?;
            let internal = |error: String| Status::unknown(error);
            let (rounds, mut file, _) = open_snapshot(server.run.dir()).map_err(|e| internal(e.to_string()))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(|error| internal(error.to_string()))?;
            assert!(rounds <= *server.hall.rounds.borrow(), "a snapshot of rounds that nobody has seen");
            Ok((rounds, bytes))
        });
        let Some(fetched) = fetched else { return };
        self.post(life, What::Fetched(fetched.map_err(|status: Status| status.into())));
    }

    fn follow_at_server(&mut self, connection: Connection, from: u64) {
        let seat = self.talks[connection.0].seat();
        let followed = self.call(|server| {
            let following = server.service.following(seat, from)?;
            server.streams.insert(connection, Stream { following, next: from, under_way: 0 });
            Ok(())
        });
        self.reply(connection, followed, |()| What::Followed);
        self.pump();
    }

    fn send_at_server(&mut self, connection: Connection, round: u64, message: bytes::Bytes) {
        let seat = self.talks[connection.0].seat();
        match self.call(|server| server.service.begin(seat, round)) {
            Some(Ok(Some(incoming))) => {
                let after = self.delay();
                self.at(after, Event::Talk(connection, self.boots, What::Sent(incoming, message)));
            }
            Some(Ok(None)) => self.reply(connection, Some(Ok(())), |()| What::Received),
            Some(Err(status)) => self.reply(connection, Some(Err::<(), _>(status)), |()| What::Received),
            None => {}
        }
    }

    fn sent_at_server(&mut self, connection: Connection, incoming: &Incoming, message: &[u8]) {
        let taken = self.call(|server| {
            incoming.goes_on(&server.hall)?;
            incoming.end(&server.hall, message.to_vec(), None)
        });
        if matches!(&taken, Some(Ok(verdict)) if *verdict == crate::proto::receipt::Verdict::Taken) {
            self.ledger.came(incoming.round(), incoming.slot(), message, connection.0);
        }
        self.reply(connection, taken, |_| What::Received);
    }

    /// Sends rounds to whoever follows, as far as there is room for them.
    pub fn pump(&mut self) {
        let Some(server) = &self.server else { return };
        for connection in server.streams.keys().copied().collect::<Vec<_>>() {
            while self.send_round(connection) {}
        }
    }

    /// Sends the next round to one who follows; whether there may be another.
    fn send_round(&mut self, connection: Connection) -> bool {
        let Some(server) = &self.server else { return false };
        let Some(stream) = server.streams.get(&connection) else { return false };
        let next = stream.next;
        if next >= *server.hall.rounds.borrow() || stream.under_way >= UNDER_WAY {
            return false;
        }
        let read = self.call(|server| {
            let read = match server.hall.last(next) {
                Some(last) => Ok(Some(last)),
                None => server.hall.shelf.read(next).map(|found| found.map(std::sync::Arc::new)),
            };
            found(next, read)
        });
        let record = match read {
            Some(Ok(record)) => record,
            Some(Err(status)) => {
                self.server.as_mut().expect("it answers").streams.remove(&connection);
                self.reply(connection, Some(Err::<(), _>(status)), |()| What::Received);
                return false;
            }
            None => return false,
        };
        self.ledger.seen(&record);
        let stream = self.server.as_mut().and_then(|server| server.streams.get_mut(&connection)).expect("it follows");
        (stream.next, stream.under_way) = (next + 1, stream.under_way + 1);
        let arrives = (self.now() + self.delay()).max(self.talks[connection.0].last_part + 1);
        self.talks[connection.0].last_part = arrives;
        let after = arrives - self.now();
        self.at(after, Event::Talk(connection, self.boots, What::Part(parts(&record).collect())));
        true
    }
}
