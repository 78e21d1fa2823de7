//! The fault campaign with workers in processes of their own: killed by SIGKILL wherever they are, also while they send, write a
//! checkpoint or start; stopped by SIGSTOP and going on after the others have; coming back with their checkpoint, or without. The
//! server is killed meanwhile too.
//!
//! A process that dies tells nothing more, so updates cannot be added up as in [`campaign`](crate::campaign). What is held against
//! the log instead: a round that counts a worker counts the life that it has, or had last. Would it count the message of a life before, a
//! worker that came back with its checkpoint would tell twice what it owed there.

use crate::campaign::{D, DEADLINE, MARGIN, WORKERS, chance, haunt};
use crate::helper::*;
use crate::process::{Process, this_program};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use thinwire::inside::state::Slot;
use thinwire::{Collective, Config, Worker, threads};
use thinwire_server::{JoinOptions, Membership, RemoteGroup, Run};

const WORK: &str = "THINWIRE_TEST_WORKS";
const STEPS: u64 = 200;
const WORDS: &str = "name = \"efficient-adam\"\nweight_decay = 0.0\ncodec = \"sign\"";

/// Nothing, unless this program was started to be a worker: then one life of it, told line by line.
#[test]
fn works_when_told_to() {
    let Ok(told) = std::env::var(WORK) else { return };
    let told = told.lines().collect::<Vec<_>>();
    let (address, worker, checkpoint) = (told[0], told[1].parse::<usize>().unwrap(), Path::new(told[2]));
    let (saves, with_checkpoint) = (told[3].parse::<u64>().unwrap(), told[4] == "true");
    let patience = Duration::from_secs(60);
    let options = JoinOptions { patience, ..JoinOptions::new(address, format!("worker-{worker}")) };
    let group = RemoteGroup::join(options).unwrap();
    let back = with_checkpoint && Membership::read(checkpoint).is_some();
    let saved = back.then(|| {
        let manifest = std::fs::read(checkpoint.join("manifest.json")).unwrap();
        let step = serde_json::from_slice::<serde_json::Value>(&manifest).unwrap()["step"].as_u64().unwrap();
        Membership::read(checkpoint).unwrap().rounds[&step]
    });
    let (mut member, mut x) = if back { group.resume(checkpoint) } else { group.start() }.unwrap();
    let state = member.worker().state().unwrap();
    let owes = state.iter().any(|entry| match &entry.slot {
        Slot::Floats(values) => entry.name == "up_residue" && values.iter().any(|value| *value != 0.0),
        _ => false,
    });
    drop(state);
    // What it owes is of when the checkpoint was written; if it owes nothing, it begins now.
    let since = if owes { saved.expect("a new worker owes nothing") } else { member.rounds() };
    println!("\nlife {} {since}", member.group().slot());
    while !member.is_done() {
        let (before, left_out, over) = (member.rounds(), member.left_out(), member.started_over());
        let gradient = gradient(worker, member.steps(), &x);
        member.step(&mut x, &gradient).unwrap();
        let counted = member.left_out() == left_out && member.started_over() == over;
        println!("round {before} {} {counted} {:016x}", member.rounds(), digest(&x));
        if member.rounds().is_multiple_of(saves) {
            member.save(checkpoint, &x).unwrap();
        }
    }
    println!("end {:016x} {}", digest(&x), loss(&x));
    member.leave();
}

/// What a life has told.
#[derive(Debug, Default)]
struct Life {
    slot: u32,
    /// What it owes is told by no round since then but its own.
    since: u64,
    heard: u64,
    claimed: BTreeSet<u64>,
    left_out: u64,
}

#[derive(Default)]
struct Seen {
    digests: BTreeMap<u64, String>,
    lives: Vec<Life>,
    ends: Vec<(String, f64)>,
    killed: u64,
    stopped: u64,
    came_back: u64,
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success(), "kill {name}");
}

/// Ends with the process, whatever comes.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All lives of one worker.
fn live(worker: usize, seed: u64, server: &str, checkpoint: PathBuf, seen: &Mutex<Seen>, furthest: &AtomicU64) {
    let name = format!("worker {worker}");
    let mut next_fault = chance(seed, "first fault", worker as u64, 30) + 3;
    for life in 0.. {
        let which = life * 100 + worker as u64;
        let (saves, back) = (3 + chance(seed, "saves", which, 5), chance(seed, "with checkpoint", which, 3) > 0);
        seen.lock().unwrap().came_back += u64::from(life > 0 && back);
        let told = format!("{server}\n{worker}\n{}\n{saves}\n{back}", checkpoint.display());
        let mut process = Ended(this_program("lives::works_when_told_to", WORK, &told));
        let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let (mut this, mut ended) = (Life::default(), false);
        for line in lines.map_while(Result::ok) {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["life", slot, since] => (this.slot, this.since) = (slot.parse().unwrap(), since.parse().unwrap()),
                ["round", before, after, counted, digest] => {
                    this.heard = after.parse().unwrap();
                    match counted == "true" {
                        true => _ = this.claimed.insert(before.parse().unwrap()),
                        false => this.left_out += 1,
                    }
                    let mut seen = seen.lock().unwrap();
                    let known = seen.digests.entry(this.heard).or_insert_with(|| digest.to_owned());
                    assert_eq!(known, digest, "{name}, life {life}, differs after {} rounds", this.heard);
                }
                ["end", digest, loss] => {
                    seen.lock().unwrap().ends.push((digest.to_owned(), loss.parse().unwrap()));
                    ended = true;
                }
                _ => {} // what the test program says itself
            }
            furthest.fetch_max(this.heard, Ordering::Relaxed);
            if ended || this.heard < next_fault {
                continue;
            }
            let which = which * 1000 + this.heard;
            next_fault = this.heard + 8 + chance(seed, "gap", which, 30);
            std::thread::sleep(Duration::from_micros(chance(seed, "moment", which, 3000)));
            let kind = chance(seed, &name, which, 4);
            if kind < 2 {
                signal(&process.0, "-STOP");
                std::thread::sleep(DEADLINE * (1 + kind as u32));
                signal(&process.0, "-CONT");
                seen.lock().unwrap().stopped += 1;
            } else {
                if kind == 2 {
                    signal(&process.0, "-STOP"); // killed while it is stopped
                    std::thread::sleep(DEADLINE / 2);
                }
                process.0.kill().unwrap();
                seen.lock().unwrap().killed += 1;
            }
        }
        let status = process.0.wait().unwrap();
        seen.lock().unwrap().lives.push(this);
        if ended {
            return;
        }
        assert_eq!(status.code(), None, "{name}, life {life}, has failed by itself");
    }
}

/// The loss without faults: a server gives the bits of the central form.
fn undisturbed(config: &Config) -> f64 {
    let ends = threads::run(WORKERS, |group| {
        let (mut x, rank) = (start(D), group.rank());
        let mut worker = Worker::new(config, &x, Box::new(group)).unwrap();
        for step in 0..STEPS {
            let gradient = gradient(rank, step, &x);
            worker.step(&mut x, &gradient, config.learning_rate.as_ref().unwrap().at(step)).unwrap();
        }
        x
    });
    loss(&ends[0])
}

#[test]
fn processes_that_are_killed_and_stopped_end_as_one_that_was_not() {
    let (config, dir, seed) = (config(WORDS, STEPS), tempfile::tempdir().unwrap(), 5);
    let folder = dir.path().join("server");
    drop(Run::create(&folder, &config, &start(D), WORKERS, STEPS, String::new(), RETENTION).unwrap());
    let server = Process::start(&folder, None, DEADLINE);
    let address = server.address.to_string();
    let (seen, furthest, running) = (Mutex::new(Seen::default()), AtomicU64::new(0), AtomicBool::new(true));
    let server_kills = std::thread::scope(|scope| {
        let (seen, furthest, running, address) = (&seen, &furthest, &running, &address);
        let killer = scope.spawn(move || haunt(server, seed, true, furthest, running));
        let workers = (0..WORKERS).map(|worker| {
            let checkpoint = dir.path().join(format!("worker-{worker}"));
            scope.spawn(move || live(worker, seed, address, checkpoint, seen, furthest))
        });
        let workers = workers.collect::<Vec<_>>().into_iter().map(|worker| worker.join()).collect::<Vec<_>>();
        running.store(false, Ordering::Relaxed);
        let kills = killer.join().unwrap();
        workers.into_iter().for_each(|worker| worker.unwrap());
        kills
    });
    let Seen { digests, lives, ends, killed, stopped, came_back } = seen.into_inner().unwrap();
    let left_out = lives.iter().map(|life| life.left_out).sum::<u64>();
    let (first, undisturbed, last) = (loss(&start(D)), undisturbed(&config), ends[0].1);
    println!(
        "{} lives, {killed} killed, {stopped} stopped, {came_back} back with a checkpoint, {server_kills} servers killed, {left_out} times \
         left out; loss {first:.3} → {undisturbed:.4} without faults, {last:.4} with",
        lives.len()
    );
    assert!(
        killed > 4 && stopped > 2 && came_back > 1 && server_kills > 1 && left_out > 0,
        "a campaign without faults"
    );
    assert!(ends.len() == WORKERS && ends.iter().all(|end| *end == ends[0]), "{ends:?}");

    let run = Run::open(&folder, RETENTION).unwrap();
    assert_eq!(*run.next(), thinwire_server::replica::Next::End(u64::from_str_radix(&ends[0].0, 16).unwrap()));
    assert!(digests.keys().all(|rounds| *rounds <= run.rounds()), "a round that was seen is gone");
    let counts = |round: u64, slot: u32| {
        let record = run.shelf().read(round).unwrap().expect("all rounds are kept");
        record.counted.iter().any(|counted| counted.slot == slot)
    };
    for life in &lives {
        for round in life.since..life.heard {
            assert_eq!(life.claimed.contains(&round), counts(round, life.slot), "round {round} of {life:?}");
        }
    }
    assert!(last < undisturbed + MARGIN[0] * first, "{last} with faults, {undisturbed} without, {first} at the start");
}
