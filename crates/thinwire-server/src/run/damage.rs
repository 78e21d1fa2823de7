//! Files that were damaged: what can be made good is, with a word about it; what cannot is an error, and there is a way back.

use super::tests::{CASES, D, RETENTION, STEPS, WORKERS, config, copied, has_messages, state, watched};
use super::*;

/// Flips a bit in the middle of a file.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

fn last(dir: &Path, prefix: &str) -> PathBuf {
    numbered(dir, prefix).unwrap().pop().unwrap().1
}

fn numbers(dir: &Path, prefix: &str) -> Vec<u64> {
    numbered(dir, prefix).unwrap().into_iter().map(|(number, _)| number).collect()
}

#[test]
fn a_damaged_snapshot_is_passed_over_and_the_one_before_it_leads_to_the_same_place() {
    for words in CASES {
        watched(words, |run, _| {
            let snapshots = numbers(run.dir(), "snapshot");
            if run.rounds() > RETENTION.snapshot_every {
                assert_eq!(snapshots.len(), 2, "{words}, round {}", run.rounds());
            }
            for prefix in ["snapshot", "residue"] {
                let copy = copied(run.dir());
                damage(&last(copy.path(), prefix));
                let again = Run::open(copy.path(), RETENTION);
                if snapshots.len() < 2 {
                    assert!(again.err().unwrap().to_string().contains("not those that its name tells"), "{words}");
                    continue;
                }
                let mut again = again.unwrap();
                assert_eq!(state(run), state(&mut again), "{words}, {prefix}, round {}", run.rounds());
                // Nobody is given the damaged one, and it is there to be looked at.
                assert_eq!(numbers(copy.path(), "snapshot"), snapshots[..1], "{words}");
                let names = std::fs::read_dir(copy.path()).unwrap().map(|entry| entry.unwrap().file_name());
                let aside = names.filter(|name| name.to_string_lossy().ends_with(frames::DAMAGED)).count();
                assert_eq!(aside, 2, "{words}");
                again.snapshot_now().unwrap();
                drop(again);
                assert_eq!(state(run), state(&mut Run::open(copy.path(), RETENTION).unwrap()), "{words}");
            }
        });
    }
}

#[test]
fn a_damaged_last_record_is_made_again_from_the_inputs() {
    let mut made = 0;
    for words in CASES {
        watched(words, |run, _| {
            let (copy, round) = (copied(run.dir()), run.rounds() - 1);
            if std::fs::metadata(last(run.dir(), "log")).unwrap().len() == 0 {
                return; // the round is in the segment before
            }
            let path = last(copy.path(), "log");
            let place = *frames::scan(&path, *b"TWLG").unwrap().places.last().unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[place.offset as usize + 1] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            let mut again = Run::open(copy.path(), RETENTION).unwrap();
            match has_messages(run.dir(), round) {
                true => {
                    made += 1;
                    assert_eq!(state(run), state(&mut again), "{words}, round {round}");
                    assert_eq!(again.shelf().read(round).unwrap(), run.shelf().read(round).unwrap());
                }
                false => assert_eq!(again.rounds(), round, "{words}"),
            }
        });
    }
    assert!(made > 10, "{made} rounds");
}

/// After a snapshot nothing needs the record but workers that have not seen the round: they take the snapshot.
#[test]
fn a_record_that_was_damaged_before_a_snapshot_costs_nothing() {
    for words in CASES {
        watched(words, |run, _| {
            if run.rounds() != run.snapshot {
                return;
            }
            let copy = copied(run.dir());
            let segments = numbered(copy.path(), "log").unwrap();
            damage(&segments[segments.len() - 2].1);
            let mut again = Run::open(copy.path(), RETENTION).unwrap();
            assert_eq!(state(run), state(&mut again), "{words}, round {}", run.rounds());
            assert_eq!(again.shelf().oldest(), run.rounds());
        });
    }
}

#[test]
fn a_run_goes_back_to_any_round_that_its_snapshots_reach() {
    for words in CASES {
        let mut states = Vec::new();
        watched(words, |run, _| {
            states.push(state(run));
            if run.rounds() != 17 {
                return;
            }
            assert_eq!(numbers(run.dir(), "snapshot"), [7, 14]);
            for rounds in 7..=17 {
                let copy = copied(run.dir());
                let mut again = Run::open_back_to(copy.path(), RETENTION, rounds).unwrap();
                assert_eq!(state(&mut again), states[rounds as usize - 1], "{words}, back to {rounds}");
                assert_ne!(again.spec.id, run.spec.id);
                assert_eq!(again.spec.before, std::slice::from_ref(&run.spec.id));
                drop(again);
                let mut again = Run::open(copy.path(), RETENTION).unwrap();
                assert_eq!(state(&mut again), states[rounds as usize - 1], "{words}, and it stays there");
                drop(again);
                // A service manager that starts the same command again must not drop what came since.
                let twice = Run::open_back_to(copy.path(), RETENTION, rounds).err().unwrap().to_string();
                assert!(twice.contains("already"), "{twice}");
            }
            for rounds in [6, 18] {
                let copy = copied(run.dir());
                let error = Run::open_back_to(copy.path(), RETENTION, rounds).err().unwrap().to_string();
                assert!(error.contains(&format!("--back-to {rounds}")), "{error}");
                assert_eq!(state(run), state(&mut Run::open(copy.path(), RETENTION).unwrap()), "nothing was cut");
            }
        });
    }
}

/// Whatever was cut when the server died, the next start does the rest.
#[test]
fn going_back_that_was_cut_short_is_finished() {
    let mut states = Vec::new();
    watched(CASES[0], |run, _| {
        states.push(state(run));
        if run.rounds() != 17 {
            return;
        }
        for cut in 0..3 {
            let copy = copied(run.dir());
            let spec = Spec { id: new_id(), back_to: Some(9), going_back: true, ..run.spec.clone() };
            write_spec(copy.path(), &spec).unwrap();
            if cut > 0 {
                crate::log::cut(copy.path(), 9).unwrap();
            }
            if cut > 1 {
                inputs::cut(copy.path(), 9).unwrap();
            }
            assert_eq!(state(&mut Run::open(copy.path(), RETENTION).unwrap()), states[8]);
        }
    });
}

#[test]
fn damage_in_the_middle_names_the_way_back_and_that_works() {
    let mut states = Vec::new();
    watched(CASES[0], |run, _| {
        states.push(state(run));
        if run.rounds() != 13 {
            return;
        }
        for prefix in ["log", "inputs"] {
            let copy = copied(run.dir());
            damage(&last(copy.path(), prefix));
            let error = Run::open(copy.path(), RETENTION).err().unwrap().to_string();
            let named = error.split("--back-to ").nth(1).unwrap_or_else(|| panic!("{error}"));
            let rounds = named.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().parse::<u64>().unwrap();
            assert!((7..13).contains(&rounds), "{error}");
            let mut again = Run::open_back_to(copy.path(), RETENTION, rounds).unwrap();
            assert_eq!(state(&mut again), states[rounds as usize - 1]);
        }
    });
}

fn created(dir: &Path) -> Run {
    Run::create(dir, &config(CASES[0]), &[0.0; D], WORKERS, STEPS, String::new(), RETENTION).unwrap()
}

#[test]
fn a_log_without_run_json_is_not_deleted() {
    let dir = tempfile::tempdir().unwrap();
    drop(created(dir.path()));
    let spec = std::fs::read(dir.path().join("run.json")).unwrap();
    std::fs::remove_file(dir.path().join("run.json")).unwrap();
    let create = || Run::create(dir.path(), &config(CASES[0]), &[0.0; D], WORKERS, STEPS, String::new(), RETENTION);
    for error in [create().err().unwrap(), Run::check_folder(dir.path()).unwrap_err()] {
        assert!(error.to_string().contains("expected run.json beside log-"), "{error}");
    }
    std::fs::write(dir.path().join("run.json"), spec).unwrap();
    drop(Run::open(dir.path(), RETENTION).unwrap());
    // Who says that it may go gets a new run, also after a kill in between.
    Run::remove_from(dir.path()).unwrap();
    Run::check_folder(dir.path()).unwrap();
    drop(create().unwrap());
}

#[test]
fn damaged_words_about_the_run_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    drop(created(dir.path()));
    crate::roster::Roster { seats: vec!["lab-1".to_owned()], ..Default::default() }.write(dir.path()).unwrap();
    for (name, from, to) in [("run.json", "\"steps\": 26", "\"steps\": 27"), (MEMBERS, "lab-1", "lab-2")] {
        let path = dir.path().join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        let other = text.replace(from, to);
        assert_ne!(text, other);
        std::fs::write(&path, other).unwrap();
        let error = match Run::open(dir.path(), RETENTION) {
            Ok(_) => crate::roster::Roster::read(dir.path()).map(|_| ()),
            Err(error) => Err(error),
        };
        let error = error.unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("checksum"), "{error}");
        std::fs::write(&path, text).unwrap();
    }
    // Without its checksum it is not taken, and neither is a folder of version 1, which had none.
    let path = dir.path().join("run.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let line = text.lines().nth(1).unwrap();
    let without = text.replace(&format!("{line}\n"), "");
    std::fs::write(&path, &without).unwrap();
    assert!(Run::open(dir.path(), RETENTION).err().unwrap().to_string().contains("no checksum"));
    std::fs::write(&path, without.replace("\"version\": 2", "\"version\": 1")).unwrap();
    assert!(Run::open(dir.path(), RETENTION).err().unwrap().to_string().contains("an older version"));
}
