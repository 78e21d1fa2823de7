//! A worker that comes back when another of its name was there meanwhile.

use super::*;
use crate::carrier::Carrier;
use crate::connection::End;
use crate::conversation::{Shared, State};
use crate::replica::state_before;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;
use thinwire::inside::state::Share;

const D: usize = 20;

/// A server whose connection breaks once, between a seat and the snapshot.
struct Breaking {
    welcomes: Mutex<Vec<Welcome>>,
    snapshot: Vec<u8>,
}

impl Carrier for Breaking {
    fn connect(&self) -> Result<Welcome, End> {
        Ok(self.welcomes.lock().unwrap().pop().unwrap())
    }

    fn fetch(&self) -> Result<(u64, Vec<u8>), End> {
        match self.welcomes.lock().unwrap().is_empty() {
            false => Err(End::Lost("the connection broke".to_owned())),
            true => Ok((9, self.snapshot.clone())),
        }
    }

    fn follow(&self, _: u64) {}

    fn pause(&self, _: Duration) {}

    fn wait<'a>(&self, _: &'a Shared, _: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        unreachable!("it waits for no round")
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// Whether a worker whose residual is of 5 rounds still has it when it has come back, where the first welcome says that it was
/// counted last before round `first`, and the second `second`.
fn keeps_its_residual(first: u64, second: u64) -> bool {
    let words = "name = \"efficient-adam\"\nblock = 8\nlearning_rate = { peak = 0.01 }";
    let config = snapshot::served(&Config::from_toml(words).unwrap()).unwrap();
    let welcome = |counted| Welcome {
        run: "run".to_owned(),
        config: serde_json::to_string(&config).unwrap(),
        parameters: D as u64,
        workers: 1,
        steps: 100,
        rounds: 9,
        counted,
        ..Welcome::default()
    };
    let snapshot = state_before(&config, &[0.5; D], 1).unwrap();
    let carrier =
        || Breaking { welcomes: Mutex::new(vec![welcome(second), welcome(first)]), snapshot: snapshot.clone() };
    let group = || {
        let link = Link::through(JoinOptions::new("nowhere:1", "one"), Arc::default(), Box::new(carrier()));
        RemoteGroup::of(link.unwrap(), "one".to_owned()).unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let (mut member, _) = group().start().unwrap();
    member.worker().state().unwrap().iter_mut().filter(|entry| entry.share == Share::Residual).for_each(|entry| {
        entry.slot.as_bytes_mut().fill(1);
    });
    Own::of(member.worker()).unwrap().write(&dir.path().join(Membership::OWN)).unwrap();
    let (run, name) = ("run".to_owned(), "one".to_owned());
    Membership { run, name, rounds: BTreeMap::new(), interrupted: Some(5) }.write(dir.path()).unwrap();
    let (mut member, _) = group().resume(dir.path()).unwrap();
    let state = member.worker().state().unwrap();
    let residual = state.iter().find(|entry| entry.share == Share::Residual).unwrap();
    residual.slot.as_bytes().iter().all(|byte| *byte == 1)
}

#[test]
fn who_was_counted_before_its_snapshot_came_drops_its_residual() {
    assert!(keeps_its_residual(5, 5));
    assert!(!keeps_its_residual(7, 7));
    assert!(!keeps_its_residual(5, 7), "by the newest welcome");
}

#[test]
fn a_worker_that_finds_another_of_its_name_counted_stops() {
    let shared = Shared::default();
    // After so many rounds it was welcomed; now it was counted in the round before `counted`; and `next` is the next that it hears.
    let alone = |rounds, counted, next| {
        let (before, now) = (Welcome { rounds, ..Welcome::default() }, Welcome { counted, ..Welcome::default() });
        shared.check_alone(&before, &now, next).is_ok()
    };
    assert!(alone(7, 7, 3), "whoever had the seat before, or an earlier life of its own");
    assert!(alone(3, 5, 5), "rounds that it has heard");
    assert!(!alone(3, 6, 5), "one that it has sent nothing for");
    shared.state().sent_from.push(0);
    assert!(alone(3, 6, 5) && !alone(3, 7, 5), "one that it has sent a message for");
}

/// Both have sent a message for round 5: whose is counted is known when its record comes.
#[test]
fn a_worker_whose_round_counted_another_of_its_name_stops() {
    use crate::log::{Counted, Record};
    let hears = |counted: &[u8]| {
        let shared = Arc::<Shared>::default();
        let welcomes = Mutex::new(vec![Welcome { rounds: 3, ..Welcome::default() }]);
        let carrier = Box::new(Breaking { welcomes, snapshot: Vec::new() });
        let (link, before) = Link::through(JoinOptions::new("nowhere:1", "one"), Arc::clone(&shared), carrier).unwrap();
        link.send(5, b"mine", None);
        shared.state().sent_from.push(2); // it has gone out
        let again = shared.check_alone(&before, &Welcome { counted: 6, ..Welcome::default() }, 5);
        assert!(again.is_ok(), "it may be its own");
        let counted = vec![Counted { slot: 2, digest: xxh3_64(counted) }];
        shared.state().inbox.push_back(Record { round: 5, counted, message: bytes::Bytes::new() });
        link.receive(5, xxh3_64(b"mine")).map(|(_, counts)| counts)
    };
    assert_eq!(hears(b"mine"), Ok(true));
    assert!(hears(b"other").is_err_and(|problem| problem.contains("another worker has joined under this name")));
}
