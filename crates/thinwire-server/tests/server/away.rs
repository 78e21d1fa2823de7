//! A worker that was cut off for longer than the log goes back.

use crate::helper::*;
use crate::wire::Wire;
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

#[test]
fn it_takes_the_snapshot_and_goes_on_with_what_is_its_own() {
    for words in CASES {
        let (config, dir) = (config(words, STEPS), tempfile::tempdir().unwrap());
        let rules = Rules { deadline: Duration::from_millis(200), ..rules(2) };
        let retention = Retention { keep: 2, snapshot_every: 2 };
        let run = Run::create(dir.path(), &config, &start(D), 2, STEPS, String::new(), retention).unwrap();
        let server = Server::start(run, "127.0.0.1:0".parse().unwrap(), rules, Security::default()).unwrap();
        let wire = Wire::new(server.address());
        let (mut near, mut x) = join(server.address(), "near").start().unwrap();
        let (mut far, mut y) = join(wire.address, "far").start().unwrap();
        let (x, y) = std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                train_to(12, &mut far, &mut y, 1);
                (far, y)
            });
            train_to(12, &mut near, &mut x, 0);
            let (mut far, mut y) = other.join().unwrap();
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
    let retention = Retention { keep: 2, snapshot_every: 2 };
    let run = Run::create(dir.path(), &config, &start(D), 2, STEPS, String::new(), retention).unwrap();
    let server = Server::start(run, "127.0.0.1:0".parse().unwrap(), rules, Security::default()).unwrap();
    let (mut near, mut x) = join(server.address(), "near").start().unwrap();
    let (link, welcome) = Link::join(JoinOptions::new(server.address().to_string(), "slow")).unwrap();
    train_to(welcome.rounds + 4, &mut near, &mut x, 0);
    let (rounds, _) = link.snapshot().unwrap();
    assert!(rounds > welcome.rounds);
    link.follow(rounds);
    train_to(rounds + 1, &mut near, &mut x, 0);
    assert_eq!(link.receive(rounds).unwrap().round, rounds);
}
