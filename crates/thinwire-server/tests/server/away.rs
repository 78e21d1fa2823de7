//! A worker that was cut off for longer than the log goes back.

use crate::helper::*;
use crate::wire::Wire;
use std::net::SocketAddr;
use std::time::Duration;
use thinwire_server::link::Link;
use thinwire_server::{JoinOptions, Member, Retention, Rules, Run, Security, Server};

const STEPS: u64 = 60;
const D: usize = 50;

/// Until it has taken `steps`.
fn train_to(steps: u64, member: &mut Member, params: &mut [f32], worker: usize) {
    while member.steps() < steps {
        let gradient = gradient(worker, member.steps(), params);
        member.step(params, &gradient).unwrap();
    }
}

/// Two members, by these ways to the server, that have taken twelve steps.
fn two_at_work(ways: [SocketAddr; 2]) -> [(Member, Vec<f32>); 2] {
    let [mut near, mut far] = [("near", ways[0]), ("far", ways[1])].map(|(name, way)| join(way, name).start().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| train_to(12, &mut far.0, &mut far.1, 1));
        train_to(12, &mut near.0, &mut near.1, 0);
    });
    [near, far]
}

#[test]
fn it_takes_the_snapshot_and_goes_on_with_what_is_its_own() {
    for words in CASES {
        let (config, dir) = (config(words, STEPS), tempfile::tempdir().unwrap());
        let rules = Rules { deadline: Duration::from_millis(200), ..rules(2) };
        let retention = Retention { keep: 2, snapshot_every: 2, snapshots: 2 };
        let run = Run::create(dir.path(), &config, &start(D), 2, STEPS, String::new(), retention).unwrap();
        let server = Server::start(run, "127.0.0.1:0".parse().unwrap(), rules, Security::default()).unwrap();
        let wire = Wire::new(server.address());
        let [(mut near, mut x), (mut far, mut y)] = two_at_work([server.address(), wire.address]);
        let (x, y) = std::thread::scope(|scope| {
            wire.cut(Duration::from_secs(600));
            train_to(STEPS / 2, &mut near, &mut x, 0);
            wire.cut(Duration::ZERO);
            let other = scope.spawn(move || {
                while !far.is_done() {
                    train_to(far.steps() + 1, &mut far, &mut y, 1);
                }
                assert!(far.started_over() > 0, "{words}"); // again, if the log has moved on while it took the snapshot
                y
            });
            while !near.is_done() {
                train_to(near.steps() + 1, &mut near, &mut x, 0);
            }
            (x, other.join().unwrap())
        });
        assert_eq!(x, y, "{words}");
        let status = server.status();
        assert_eq!(status.digest, Some(format!("{:016x}", digest(&x))));
        let far = status.members.iter().find(|member| member.name == "far").unwrap();
        assert!(far.rounds > 0, "{words}: {status:?}");
    }
}

/// Between a worker's welcome and its snapshot the run goes on.
#[test]
fn a_snapshot_may_be_newer_than_the_welcome() {
    let (config, dir) = (config(CASES[4], STEPS), tempfile::tempdir().unwrap());
    let rules = Rules { deadline: Duration::from_millis(100), ..rules(2) };
    let retention = Retention { keep: 2, snapshot_every: 2, snapshots: 2 };
    let run = Run::create(dir.path(), &config, &start(D), 2, STEPS, String::new(), retention).unwrap();
    let server = Server::start(run, "127.0.0.1:0".parse().unwrap(), rules, Security::default()).unwrap();
    let (mut near, mut x) = join(server.address(), "near").start().unwrap();
    let (link, mut welcome) = Link::join(JoinOptions::new(server.address().to_string(), "slow")).unwrap();
    let before = welcome.rounds;
    train_to(before + 4, &mut near, &mut x, 0);
    let (rounds, _) = link.snapshot(&mut welcome).unwrap();
    assert!(rounds > before);
    link.follow(rounds);
    train_to(rounds + 1, &mut near, &mut x, 0);
    assert_eq!(link.receive(rounds, 0).unwrap().0.round, rounds);
}

/// It was killed after it had sent its message and before the round was closed, and comes back with the checkpoint that the message
/// was made from. What it owed must be told once.
#[test]
fn the_message_of_a_life_that_ended_is_not_counted_beside_the_next() {
    let (config, dir) = (config(CASES[5], STEPS), tempfile::tempdir().unwrap());
    let server = serve(&dir.path().join("run"), &config, &start(D), rules(2), STEPS);
    let checkpoint = dir.path().join("checkpoint");
    let (mut near, mut x) = join(server.address(), "near").start().unwrap();
    let (mut first, mut y) = join(server.address(), "far").start().unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            train_to(5, &mut first, &mut y, 1);
            (first, y)
        });
        train_to(5, &mut near, &mut x, 0);
        let (mut first, mut y) = other.join().unwrap();
        first.save(&checkpoint, &y).unwrap();
        let killed = scope.spawn(move || {
            let gradient = gradient(1, first.steps(), &y);
            first.step(&mut y, &gradient).map(|()| first.left_out())
        });
        until("far's message", || server.status().arrived > 0);
        let (mut again, mut y) = join(server.address(), "far").resume(&checkpoint).unwrap();
        let other = scope.spawn(move || {
            train_to(6, &mut again, &mut y, 7); // another gradient than before
            (again, y)
        });
        train_to(6, &mut near, &mut x, 0);
        let (again, y) = other.join().unwrap();
        assert_eq!(again.left_out(), 0, "the round counts the message of the life that is");
        // It has been told that its seat is another's, as one would be that was stopped and not killed.
        let put_out = killed.join().unwrap().unwrap_err().to_string();
        assert!(put_out.contains("another worker has joined under this name"), "and not the one before it: {put_out}");
        assert_eq!(x, y);
        assert_eq!(server.status().members.iter().map(|member| member.rounds).collect::<Vec<_>>(), [6, 6]);
    });
}

/// It was killed while it wrote a checkpoint: what is told beside it is of the new one, or of the old one, and so is the checkpoint.
#[test]
fn a_checkpoint_that_was_being_written_brings_it_back_all_the_same() {
    let (config, dir) = (config(CASES[5], STEPS), tempfile::tempdir().unwrap());
    let server = serve(&dir.path().join("run"), &config, &start(D), rules(1), STEPS);
    let (mut member, mut x) = join(server.address(), "one").start().unwrap();
    let copy = |from: &std::path::Path, only: &dyn Fn(&str) -> bool, to: &std::path::Path| {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if only(&name) {
                std::fs::copy(entry.path(), to.join(name)).unwrap();
            }
        }
    };
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    train_to(7, &mut member, &mut x, 0);
    member.save(&old, &x).unwrap();
    let at_old = x.clone();
    train_to(20, &mut member, &mut x, 0);
    copy(&old, &|_| true, &new);
    member.save(&new, &x).unwrap();
    // Beside the old checkpoint the word that is written before the new one; then the new one with that word still.
    let both = thinwire_server::Membership::read(&old).unwrap();
    let word = thinwire_server::Membership::read(&new).unwrap();
    assert_eq!((both.rounds.len(), word.rounds.len()), (1, 1));
    let rounds = both.rounds.iter().chain(&word.rounds).map(|(steps, rounds)| (*steps, *rounds)).collect();
    let both = serde_json::to_vec(&thinwire_server::Membership { rounds, ..both }).unwrap();
    drop(member);
    for (folder, steps) in [(&old, 7), (&new, 20)] {
        std::fs::write(folder.join("member.json"), &both).unwrap();
        let (mut member, params) = join(server.address(), "one").resume(folder).unwrap();
        assert!(member.steps() >= 20, "it has followed: {} steps of {steps}", member.steps());
        assert_eq!(params, x);
        assert_ne!(params, at_old);
        member.save(folder, &params).unwrap();
        assert_eq!(thinwire_server::Membership::read(folder).unwrap().rounds.len(), 1);
    }
}

/// A step that waits for a round which does not come is ended by another thread; the worker comes back with its residue.
#[test]
fn an_interrupted_worker_comes_back_with_what_is_its_own() {
    for words in CASES {
        let (config, dir) = (config(words, STEPS), tempfile::tempdir().unwrap());
        let rules = Rules { quorum: 2, ..rules(2) };
        let server = serve(dir.path(), &config, &start(D), rules, STEPS);
        let kept = tempfile::tempdir().unwrap();
        let checkpoint = kept.path().join("checkpoint");
        let [(mut near, mut x), (far, _)] = two_at_work([server.address(); 2]);
        far.leave();
        let interrupter = near.interrupter();
        let gradient = gradient(0, near.steps(), &x);
        let interrupted = std::thread::scope(|scope| {
            scope.spawn(|| {
                until("near's message", || server.status().arrived > 0); // so it waits for a round
                interrupter.interrupt();
            });
            loop {
                // 0/1 Adam's local steps wait for nobody.
                let stepped = near.step(&mut x, &gradient);
                if stepped.is_err() {
                    break stepped;
                }
            }
        });
        assert!(interrupted.unwrap_err().to_string().contains("interrupted"), "{words}");
        near.save(&checkpoint, &x).unwrap();
        let residue = own_residue(&mut near);
        near.leave();
        let (mut near, x) = join(server.address(), "near").resume(&checkpoint).unwrap();
        assert_eq!(own_residue(&mut near), residue, "{words}");
        let (far, y) = join(server.address(), "far").start().unwrap();
        let (x, y) = std::thread::scope(|scope| {
            let other = scope.spawn(|| train(far, y, 1));
            (train(near, x, 0), other.join().unwrap())
        });
        assert_eq!(x, y, "{words}");
    }
}

fn own_residue(member: &mut Member) -> Option<Vec<u8>> {
    let state = member.worker().state().unwrap();
    state.iter().find(|entry| entry.name == "up_residue").map(|entry| entry.slot.as_bytes().to_vec())
}

/// While one is cut off another gets its seat; it gets another, and is counted there, once.
#[test]
fn a_worker_whose_seat_was_given_away_is_counted_in_its_new_one() {
    for words in CASES {
        let (config, dir) = (config(words, STEPS), tempfile::tempdir().unwrap());
        let rules = Rules { deadline: Duration::from_millis(200), ..rules(2) };
        let server = serve(dir.path(), &config, &start(D), rules, STEPS);
        let wire = Wire::new(server.address());
        let [(mut near, mut x), (mut far, mut y)] = two_at_work([server.address(), wire.address]);
        std::thread::scope(|scope| {
            let here = || server.status().members.iter().any(|member| member.name == "far" && member.connected);
            wire.cut(Duration::from_secs(600));
            train_to(24, &mut near, &mut x, 0);
            until("far is away", || !here());
            std::thread::sleep(2 * rules.deadline); // after one of them its seat is free
            let (third, z) = join(server.address(), "third").start().unwrap();
            assert_eq!(third.group().slot(), 1, "far's");
            wire.cut(Duration::ZERO);
            let far = scope.spawn(move || {
                let mut last = 0;
                while !far.is_done() {
                    last = far.left_out();
                    train_to(far.steps() + 1, &mut far, &mut y, 1);
                }
                (y, last)
            });
            // Before the others go on: they could be done before it is there.
            until("far is counted in its new seat", || {
                server.status().members.iter().any(|member| member.name == "far" && member.rounds > 0)
            });
            let third = scope.spawn(move || train(third, z, 2));
            while !near.is_done() {
                train_to(near.steps() + 1, &mut near, &mut x, 0);
            }
            let ((y, left_out), z) = (far.join().unwrap(), third.join().unwrap());
            assert_eq!((&x, &x), (&y, &z), "{words}");
            let status = server.status();
            let seat = status.members.iter().find(|member| member.name == "far").unwrap();
            assert!(seat.rounds > 0, "{words}: {status:?}");
            // What it takes for left out is what the server did not count it in: each round it sent for.
            assert!(
                left_out <= STEPS - seat.rounds,
                "{words}: left out {left_out} times, counted {} times",
                seat.rounds
            );
        });
    }
}
