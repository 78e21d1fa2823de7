//! With the same workers in every round a server gives the bits of the central form in one process, and a new worker, or a server
//! that comes back, has the state of those that were always there.

use crate::helper::*;
use std::time::Duration;
use thinwire::{Worker, threads};

const STEPS: u64 = 40;
const D: usize = 101;

#[test]
fn a_server_gives_the_bits_of_the_central_form() {
    for words in CASES {
        let config = config(words, STEPS);
        for (workers, values) in [(1, D), (3, D), (2, 1), (2, 0)] {
            let central = threads::run(workers, |group| {
                let mut x = start(values);
                let rank = thinwire::Collective::rank(&group);
                let mut worker = Worker::new(&config, &x, Box::new(group)).unwrap();
                for step in 0..STEPS {
                    let lr = config.learning_rate.as_ref().unwrap().at(step);
                    let gradient = gradient(rank, step, &x);
                    worker.step(&mut x, &gradient, lr).unwrap();
                }
                worker.sync(&mut x).unwrap();
                x
            });
            let dir = tempfile::tempdir().unwrap();
            let server = serve(dir.path(), &config, &start(values), rules(workers), STEPS);
            let groups = (0..workers).map(|i| join(server.address(), &format!("worker-{i}"))).collect::<Vec<_>>();
            let ends = std::thread::scope(|scope| {
                let threads = groups.into_iter().enumerate().map(|(i, group)| {
                    assert_eq!((group.slot(), group.workers(), group.job()), (i, workers, "job"));
                    let (member, params) = group.start().unwrap();
                    scope.spawn(move || train(member, params, i))
                });
                threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            });
            assert_eq!(ends, central, "{words}: {workers} workers, {values} values");
            let status = server.status();
            assert_eq!(status.digest, Some(format!("{:016x}", digest(&ends[0]))));
            assert_eq!((status.left_out, status.refused), (0, 0));
            server.stop().unwrap();
            // Who comes when all is over finds the same.
            let server = serve_again(dir.path(), "127.0.0.1:0".parse().unwrap(), rules(workers));
            assert_eq!(server.status().digest, status.digest);
            let (member, late) = join(server.address(), "late").start().unwrap();
            assert!(member.is_done());
            assert_eq!(late, central[0]);
        }
    }
}

#[test]
fn a_worker_that_comes_late_has_the_others_state_and_takes_part() {
    for words in CASES {
        let (config, dir) = (config(words, STEPS), tempfile::tempdir().unwrap());
        let rules = thinwire_server::Rules { deadline: Duration::from_secs(3), ..rules(1) };
        let server = serve(dir.path(), &config, &start(D), rules, STEPS);
        let (mut first, mut x) = join(server.address(), "first").start().unwrap();
        while first.steps() < STEPS / 2 {
            let gradient = gradient(0, first.steps(), &x);
            first.step(&mut x, &gradient).unwrap();
        }
        let (mut second, mut y) = join(server.address(), "second").start().unwrap();
        let synced = first.rounds() == second.rounds() && first.steps() == second.steps();
        if synced {
            assert_eq!(x, y, "{words}");
        }
        let shared = std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                while !second.is_done() {
                    let gradient = gradient(1, second.steps(), &y);
                    second.step(&mut y, &gradient).unwrap();
                }
                y
            });
            // Alone it could be done before the other's first message.
            until("second's part", || {
                let status = server.status();
                status.arrived > 0 || status.members.iter().any(|member| member.name == "second" && member.rounds > 0)
            });
            while !first.is_done() {
                let gradient = gradient(0, first.steps(), &x);
                first.step(&mut x, &gradient).unwrap();
            }
            other.join().unwrap()
        });
        assert_eq!(shared, x, "{words}");
        let status = server.status();
        assert!(status.members.iter().all(|member| member.rounds > 0), "{words}: {status:?}");
        assert_eq!(status.digest, Some(format!("{:016x}", digest(&x))));
    }
}
