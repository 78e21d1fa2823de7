//! A disk that fails at any call of a round, and then a power cut: what the server made is there, and it comes back.

use super::tests::{CASES, D, STEPS, WORKERS, config, watched};
use super::*;
use crate::disk::memory::{Crash, Fault, Memory, Mount};
use crate::sim::Chance;
use std::panic::{AssertUnwindSafe, catch_unwind};

const RETENTION: Retention = Retention { keep: 5, snapshot_every: 2, snapshots: 1 };

/// Rounds before the fault, and after it at most: with the next snapshot all would be synced.
const BEFORE: usize = 2;
const AFTER: usize = 3;

/// Power cuts of each disk.
const CUTS: u64 = 10;

type Messages = BTreeMap<u32, Vec<u8>>;

/// What the first rounds are made of, and where they lead.
fn script(words: &str) -> Vec<(Messages, Next)> {
    let mut script = Vec::new();
    watched(words, |run, messages| script.push((messages.clone(), run.next().clone())));
    script.truncate(BEFORE + AFTER);
    script
}

fn disk(seed: u64) -> (Memory, Mount, PathBuf) {
    let (disk, at) = (Memory::new(seed), Path::new("/memory"));
    disk.create_root(at);
    let mount = disk.mount(at);
    (disk, mount, at.join("run"))
}

fn create(words: &str, dir: &Path) -> Run {
    Run::create(dir, &config(words), &[1.0; D], WORKERS, STEPS, String::new(), RETENTION).unwrap()
}

#[test]
fn a_new_run_is_there_after_a_power_cut() {
    for seed in 0..20 {
        let (disk, _mount, dir) = disk(seed);
        drop(create(CASES[0], &dir));
        disk.lose_power(&mut Chance::new(seed));
        assert_eq!(Run::open(&dir, RETENTION).unwrap().rounds(), 0);
    }
}

/// Makes rounds on a disk that fails once; how many were made.
fn make(disk: &Memory, run: &mut Run, script: &[(Messages, Next)], calls: u64, fault: Fault) -> usize {
    for (made, (messages, _)) in script.iter().enumerate() {
        if made == BEFORE {
            disk.fault(calls, fault);
        }
        let commit = |run: &mut Run| catch_unwind(AssertUnwindSafe(|| run.commit(messages, &BTreeMap::new())));
        let first = commit(run);
        // Without room it is tried again.
        let last = if matches!(first, Ok(Err(Error::NoRoom { .. }))) { commit(run) } else { first };
        match last {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return made,
            Err(thrown) => {
                assert!(thrown.is::<Crash>());
                return made;
            }
        }
    }
    script.len()
}

/// What is there after a power cut of a disk like this one.
fn compare(disk: &Memory, dir: &Path, made: usize, script: &[(Messages, Next)], what: &str) {
    for cut in 0..CUTS {
        let disk = disk.copy();
        let _mount = disk.mount(Path::new("/memory"));
        disk.lose_power(&mut Chance::new(cut));
        let run = Run::open(dir, RETENTION).unwrap_or_else(|error| panic!("{what}, cut {cut}: {error}"));
        let rounds = run.rounds() as usize;
        assert!((made..=made + 1).contains(&rounds), "{what}, cut {cut}: {made} rounds were made, {rounds} are there");
        assert_eq!(*run.next(), script[rounds - 1].1, "{what}, cut {cut}");
        let oldest = run.shelf().oldest();
        assert!(oldest <= rounds.saturating_sub(RETENTION.keep as usize) as u64, "{what}: the log begins at {oldest}");
    }
}

/// The server may die at the call, or go on, or give up; the power is cut then, or when it has come back.
#[test]
fn whatever_call_fails_a_power_cut_takes_no_round_that_was_made() {
    let script = script(CASES[0]);
    for (calls, fault) in (1..45).flat_map(|calls| [Fault::Crash, Fault::Full, Fault::Broken].map(|f| (calls, f))) {
        for after in 1..=AFTER {
            let (disk, mount, dir) = disk(calls);
            let mut run = create(CASES[0], &dir);
            let made = make(&disk, &mut run, &script[..BEFORE + after], calls, fault);
            drop(run);
            disk.restart();
            drop(mount);
            let what = format!("{fault:?} at call {calls}, {after} rounds after it");
            compare(&disk, &dir, made, &script, &what);
            let mount = disk.mount(Path::new("/memory"));
            let back = Run::open(&dir, RETENTION).unwrap().rounds() as usize;
            assert!((made..=made + 1).contains(&back), "{what}");
            drop(mount);
            compare(&disk, &dir, back, &script, &format!("{what}, after it came back"));
        }
    }
}

/// A snapshot came to nothing, and its files were removed; a power cut has brought them back, empty, and torn what was written since.
#[test]
fn empty_files_of_a_snapshot_that_came_to_nothing_are_passed_over() {
    let script = script(CASES[0]);
    let seldom = Retention { snapshot_every: 100, ..RETENTION };
    for back_to in [None, Some(1)] {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (words, initial) = (config(CASES[0]), [1.0; D]);
        let mut run = Run::create(dir.path(), &words, &initial, WORKERS, STEPS, String::new(), seldom).unwrap();
        script[..4].iter().for_each(|(messages, _)| _ = run.commit(messages, &BTreeMap::new()).unwrap());
        drop(run);
        for prefix in ["log", "inputs"] {
            std::fs::write(path(&format!("{prefix}-000000000003.bin")), []).unwrap();
            let grown = path(&format!("{prefix}-000000000000.bin"));
            let torn = [std::fs::read(&grown).unwrap(), b"TW".to_vec()].concat();
            std::fs::write(grown, torn).unwrap();
        }
        let opened = match back_to {
            None => Run::open(dir.path(), seldom),
            Some(rounds) => Run::open_back_to(dir.path(), seldom, rounds),
        };
        let (mut run, rounds) = (opened.unwrap(), back_to.unwrap_or(4));
        assert_eq!((run.rounds(), run.shelf().oldest()), (rounds, 0));
        for (messages, next) in &script[rounds as usize..] {
            run.commit(messages, &BTreeMap::new()).unwrap();
            assert_eq!(run.next(), next);
        }
        drop(run);
        assert_eq!(Run::open(dir.path(), seldom).unwrap().rounds(), script.len() as u64);
    }
}
