//! A server and three workers, of which one comes late. Run it with `cargo run -p thinwire-server --example rounds`.

use std::time::Duration;
use thinwire::{Config, LearningRate, Name};
use thinwire_server::{JoinOptions, RemoteGroup, Retention, Rules, Run, Security, Server};

const STEPS: u64 = 200;

/// Trains until the run is done; the gradient is that of ‖x − 1‖²/2.
fn work(address: String, name: &str) -> thinwire_server::Result<Vec<f32>> {
    let (mut member, mut x) = RemoteGroup::join(JoinOptions::new(address, name))?.start()?;
    while !member.is_done() {
        let gradient = x.iter().map(|x| x - 1.0).collect::<Vec<_>>();
        member.step(&mut x, &gradient)?;
    }
    member.leave();
    Ok(x)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let config = Config { learning_rate: Some(LearningRate::constant(0.05)), ..Config::new(Name::EFFICIENT_ADAM) };
    let retention = Retention { keep: 1000, snapshot_every: 50, snapshots: 2 };
    let run = Run::create(dir.path(), &config, &[0.0; 1000], 2, STEPS, String::new(), retention)?;
    let rules = Rules { quorum: 1, workers: 2, deadline: Duration::from_secs(10), max_members: 8, per_identity: 8 };
    let server = Server::start(run, "127.0.0.1:0".parse()?, rules, Security::default())?;

    let at = server.address().to_string();
    let ends = std::thread::scope(|scope| {
        let early = ["a", "b"].map(|name| {
            scope.spawn({
                let at = at.clone();
                move || work(at, name)
            })
        });
        std::thread::sleep(Duration::from_millis(50));
        let late = scope.spawn(|| work(at.clone(), "late"));
        early.into_iter().chain([late]).map(|worker| worker.join().expect("no panic")).collect::<Result<Vec<_>, _>>()
    })?;
    let status = server.status();
    println!(
        "{} rounds, {} bytes up, loss of the first value {:.4}",
        status.rounds,
        status.bytes_received,
        ends[0][0] - 1.0
    );
    server.stop()?;
    assert!(ends.iter().all(|x| *x == ends[0]), "all have the same parameters");
    assert!((ends[0][0] - 1.0).abs() < 0.2 && status.rounds == STEPS);
    Ok(())
}
