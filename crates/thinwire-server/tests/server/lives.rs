//! The fault campaign with workers in processes of their own: killed by SIGKILL wherever they are, also while they send, write a
//! checkpoint or start; stopped by SIGSTOP and going on after the others have; cut off; coming back with their checkpoint, or without.
//! The server is killed meanwhile too, and finds half a record when it comes back.
//!
//! A process that dies tells nothing more, so updates cannot be added up as in [`campaign`](crate::campaign). What is held against
//! the log instead: a round that counts a worker counts the life that it has, or had last. Would it count the message of a life before, a
//! worker that came back with its checkpoint would tell twice what it owed there.

use crate::campaign::{D, DEADLINE, MARGIN, WORKERS, chance, haunt};
use crate::helper::*;
use crate::process::{Process, this_program};
use crate::wire::Wire;
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
    crate::toy::add();
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
        let (before, counted, left_out) = (member.rounds(), member.counted(), member.left_out());
        let gradient = gradient(worker, member.steps(), &x);
        member.step(&mut x, &gradient).unwrap();
        let outcome = match (member.counted() > counted, member.left_out() > left_out) {
            (true, _) => "counted",
            (_, true) => "left-out",
            _ => "skipped",
        };
        let digest = if member.worker().is_synced() { format!("{:016x}", digest(&x)) } else { "-".to_owned() };
        println!("round {before} {} {outcome} {digest}", member.rounds());
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
    ended: bool,
}

#[derive(Default)]
struct Seen {
    digests: BTreeMap<u64, String>,
    lives: Vec<Life>,
    ends: Vec<(String, f64)>,
    killed: u64,
    stopped: u64,
    cut: u64,
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
fn live(worker: usize, seed: u64, wire: &Wire, checkpoint: PathBuf, seen: &Mutex<Seen>, furthest: &AtomicU64) {
    let name = format!("worker {worker}");
    let mut next_fault = chance(seed, "first fault", worker as u64, 30) + 3;
    for life in 0.. {
        let which = life * 100 + worker as u64;
        let (saves, back) = (3 + chance(seed, "saves", which, 5), chance(seed, "with checkpoint", which, 3) > 0);
        seen.lock().unwrap().came_back += u64::from(life > 0 && back);
        let told = format!("{}\n{worker}\n{}\n{saves}\n{back}", wire.address, checkpoint.display());
        let mut process = Ended(this_program("lives::works_when_told_to", WORK, &told));
        let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let (mut this, mut ended) = (Life::default(), false);
        for line in lines.map_while(Result::ok) {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["life", slot, since] => (this.slot, this.since) = (slot.parse().unwrap(), since.parse().unwrap()),
                ["round", before, after, outcome, digest] => {
                    this.heard = after.parse().unwrap();
                    match outcome {
                        "counted" => _ = this.claimed.insert(before.parse().unwrap()),
                        "left-out" => this.left_out += 1,
                        _ => {}
                    }
                    if digest != "-" {
                        let mut seen = seen.lock().unwrap();
                        let known = seen.digests.entry(this.heard).or_insert_with(|| digest.to_owned());
                        assert_eq!(known, digest, "{name}, life {life}, differs after {} rounds", this.heard);
                    }
                }
                ["end", digest, loss] => {
                    seen.lock().unwrap().ends.push((digest.to_owned(), loss.parse().unwrap()));
                    (ended, this.ended) = (true, true);
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
            let kind = chance(seed, &name, which, 5);
            if kind == 4 {
                wire.cut(Duration::from_millis(chance(seed, "cut", which, 600)));
                seen.lock().unwrap().cut += 1;
            } else if kind < 2 {
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
        worker.sync(&mut x).unwrap();
        x
    });
    loss(&ends[0])
}

/// What was done to a run, and what came of it.
#[derive(Default)]
struct Faults {
    killed: u64,
    stopped: u64,
    cut: u64,
    came_back: u64,
    server_kills: u64,
    left_out: u64,
}

impl Faults {
    fn all(&self) -> u64 {
        self.killed + self.stopped + self.cut + self.server_kills
    }
}

/// A run under `words` with all that a seed does to it. Every round that anyone has heard is compared with that of the others, and the
/// log with what each life takes for counted.
fn disturbed(words: &str, seed: u64) -> Faults {
    let (config, dir) = (config(words, STEPS), tempfile::tempdir().unwrap());
    let folder = dir.path().join("server");
    drop(Run::create(&folder, &config, &start(D), WORKERS, STEPS, String::new(), RETENTION).unwrap());
    let server = Process::start(&folder, None, DEADLINE);
    let wires = [(); WORKERS].map(|()| Wire::new(server.address));
    let (seen, furthest, running) = (Mutex::new(Seen::default()), AtomicU64::new(0), AtomicBool::new(true));
    let server_kills = std::thread::scope(|scope| {
        let (seen, furthest, running) = (&seen, &furthest, &running);
        let killer = scope.spawn(move || haunt(server, seed, true, furthest, running));
        let workers = wires.iter().enumerate().map(|(worker, wire)| {
            let checkpoint = dir.path().join(format!("worker-{worker}"));
            scope.spawn(move || live(worker, seed, wire, checkpoint, seen, furthest))
        });
        let workers = workers.collect::<Vec<_>>().into_iter().map(|worker| worker.join()).collect::<Vec<_>>();
        running.store(false, Ordering::Relaxed);
        let kills = killer.join().unwrap();
        workers.into_iter().for_each(|worker| worker.unwrap());
        kills
    });
    let Seen { digests, lives, ends, killed, stopped, cut, came_back } = seen.into_inner().unwrap();
    let left_out = lives.iter().map(|life| life.left_out).sum::<u64>();
    let (first, undisturbed, last) = (loss(&start(D)), undisturbed(&config), ends[0].1);
    println!(
        "{words:?}, seed {seed}: {} lives, {killed} killed, {stopped} stopped, {cut} cut off, {came_back} back with a checkpoint, \
         {server_kills} servers killed, {left_out} times left out; {} rounds compared; loss {first:.3} → {undisturbed:.4} without faults, \
         {last:.4} with",
        lives.len(),
        digests.len()
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
        // The sync at the end of a run is told by no step.
        let is_told = |round: &u64| !life.ended || *round + 1 < run.rounds();
        for round in (life.since..life.heard).filter(is_told) {
            assert_eq!(life.claimed.contains(&round), counts(round, life.slot), "round {round} of {life:?}");
        }
    }
    let most = if words == WORDS { undisturbed + MARGIN[0] * first } else { first };
    assert!(last < most, "{last} with faults, {undisturbed} without, {first} at the start");
    Faults { killed, stopped, cut, came_back, server_kills, left_out }
}

#[test]
fn processes_that_are_killed_and_stopped_end_as_one_that_was_not() {
    let faults = disturbed(WORDS, 5);
    let Faults { killed, stopped, came_back, server_kills, left_out, .. } = faults;
    assert!(
        killed > 4 && stopped > 2 && came_back > 1 && server_kills > 1 && left_out > 0,
        "a campaign without faults"
    );
}

/// The same to every optimizer, over and over, until there were as many faults as `THINWIRE_CAMPAIGN` says: benchmarks/campaign.
#[test]
fn the_campaign() {
    let Ok(wanted) = std::env::var("THINWIRE_CAMPAIGN") else { return };
    let wanted = wanted.parse::<u64>().expect("THINWIRE_CAMPAIGN: a number of faults");
    let (mut all, mut runs) = (0, 0);
    for seed in 100.. {
        for words in CASES {
            all += disturbed(words, seed).all();
            runs += 1;
        }
        if all >= wanted {
            break;
        }
    }
    println!("{runs} runs of {} optimizers and options, {all} faults; every run ended as it had to", CASES.len());
}
