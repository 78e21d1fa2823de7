//! A resumed run is the uninterrupted run, bit for bit, from any step; and a checkpoint that is not whole is refused by
//! name, before anything is touched.

use crate::common::runs;

use runs::{Bits, LEN, PLACES, Replica, STEPS, all_cases, changed, config, failing, scratch, together, together_on};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use thinwire::{Collective, Config, Error, Solo, Worker, threads};

/// Saves at every step of a run, into folders named by the step; returns how each worker ends.
fn run_saving(config: &Config, workers: usize, dir: &Path) -> Vec<Bits> {
    run_saving_on(&vec![0; workers], config, dir)
}

fn run_saving_on(hosts: &[usize], config: &Config, dir: &Path) -> Vec<Bits> {
    together_on(hosts, |group| {
        let mut replica = Replica::new(config, LEN, group)?;
        for step in 0..STEPS {
            replica.save(&dir.join(step.to_string()))?;
            replica.step()?;
        }
        Ok(replica.bits())
    })
}

fn run_resumed(config: &Config, workers: usize, dir: &Path) -> Vec<Bits> {
    run_resumed_on(&vec![0; workers], config, dir)
}

fn run_resumed_on(hosts: &[usize], config: &Config, dir: &Path) -> Vec<Bits> {
    together_on(hosts, |group| {
        let mut replica = Replica::resume(config, dir, LEN, group)?;
        replica.train(STEPS)?;
        Ok(replica.bits())
    })
}

fn check_resuming(case: &str, config: &Config, workers: usize) {
    check_resuming_on(&vec![0; workers], case, config);
}

fn check_resuming_on(hosts: &[usize], case: &str, config: &Config) {
    let dir = scratch();
    let uninterrupted = run_saving_on(hosts, config, dir.path());
    for step in 0..STEPS {
        let resumed = run_resumed_on(hosts, config, &dir.path().join(step.to_string()));
        for (rank, (uninterrupted, resumed)) in uninterrupted.iter().zip(&resumed).enumerate() {
            uninterrupted.assert_same(resumed, (case, hosts, "workers, saved at", step, "rank", rank));
        }
    }
}

#[test]
fn one_worker_resumes_at_every_step() {
    all_cases().for_each(|(case, config)| check_resuming(&case, &config, 1));
}

#[test]
fn two_workers_resume_at_every_step() {
    all_cases().for_each(|(case, config)| check_resuming(&case, &config, 2));
}

#[test]
fn three_workers_resume_at_every_step() {
    all_cases().for_each(|(case, config)| check_resuming(&case, &config, 3));
}

#[test]
fn five_workers_resume_at_every_step() {
    all_cases().for_each(|(case, config)| check_resuming(&case, &config, 5));
}

#[test]
fn workers_on_hosts_resume_at_every_step() {
    for hosts in [PLACES[0], PLACES[3]] {
        all_cases().for_each(|(case, config)| check_resuming_on(hosts, &case, &config));
    }
}

/// Hosts have names, not numbers: only who shares one counts. And where the form is flat, nobody does.
#[test]
fn the_same_workers_on_hosts_of_other_numbers_resume_bit_for_bit() {
    let dir = scratch();
    let before = config(WORDS);
    for (hierarchy, then, now) in
        [("auto", [0, 0, 1, 1], [7, 7, 2, 2]), ("flat", [0, 0, 1, 1], [0, 1, 0, 1]), ("auto", [0; 4], [0, 1, 2, 3])]
    {
        let config = changed(&before, "hierarchy", json!(hierarchy));
        let uninterrupted = run_saving_on(&then, &config, dir.path());
        let resumed = run_resumed_on(&now, &config, &dir.path().join("11"));
        uninterrupted.iter().zip(&resumed).for_each(|(one, other)| one.assert_same(other, (hierarchy, then, now)));
    }
}

/// What a checkpoint of before there were such words means by them: their defaults.
#[test]
fn words_that_a_checkpoint_does_not_know_stand_at_their_defaults() {
    let dir = checkpoint();
    let uninterrupted = run_resumed(&config(WORDS), 2, dir.path());
    edit_manifest(dir.path(), |manifest| {
        let words = manifest["config"].as_object_mut().unwrap();
        for word in ["hierarchy", "host_codec", "residual"] {
            assert!(words.remove(word).is_some(), "{word}");
        }
    });
    let resumed = run_resumed(&config(WORDS), 2, dir.path());
    uninterrupted.iter().zip(&resumed).for_each(|(one, other)| one.assert_same(other, "an older checkpoint"));
    let other = changed(&config(WORDS), "host_codec", json!("bf16"));
    let text = ": host_codec was \"f32\" when it was saved, and is \"bf16\" now";
    assert_refused(dir.path(), &other, LEN, &[text]);
}

/// Or the tests above would show less than they say.
#[test]
fn the_cases_have_every_phase() {
    for (case, config) in all_cases() {
        together(2, |group| {
            let mut replica = Replica::new(&config, LEN, group)?;
            let mut pending = 0;
            for _ in 0..STEPS {
                replica.step()?;
                pending += u64::from(!replica.is_synced());
            }
            let rounds = replica.worker.traffic().rounds;
            assert!(!case.contains("local") || pending >= 8, "{case}: {rounds:?}");
            let has_exact = rounds.exact >= 4 || case.contains("variance = 'momentum'");
            assert!(!case.contains("zero-one") || pending >= 8 && has_exact, "{case}: {rounds:?}");
            assert!(!case.contains("one-bit") || rounds.exact >= 6, "{case}: {rounds:?}");
            assert!(case.starts_with("name = 'adam'") || rounds.coarse >= 5, "{case}: {rounds:?}");
            Ok(())
        });
    }
}

/// A word that no number depends on may change from one session to the next.
#[test]
fn threads_and_buckets_may_change() {
    let dir = scratch();
    let before = config("name = 'zero-one-adam'; kappa = 2; sync_every = 4; bucket = 8");
    let after = Config { bucket: Some(100), threads: Some(2), ..before.clone() };
    let uninterrupted = run_saving(&before, 2, dir.path());
    let resumed = run_resumed(&after, 2, &dir.path().join("17"));
    // The digest is of messages, and those are cut by the bucket.
    let but_digest = |ends: &[Bits]| ends[1].clone().without("digest");
    but_digest(&uninterrupted).assert_same(&but_digest(&resumed), "another bucket");
}

const WORDS: &str = "name = 'zero-one-adam'; kappa = 4; freeze = 8; sync_every = 4";

/// A checkpoint of two workers at step 11, between two syncs.
fn checkpoint() -> tempfile::TempDir {
    let dir = scratch();
    save_at(11, &config(WORDS), 2, dir.path());
    dir
}

fn save_at(step: u64, config: &Config, workers: usize, dir: &Path) -> Vec<Bits> {
    together(workers, |group| {
        let mut replica = Replica::new(config, LEN, group)?;
        replica.train(step)?;
        replica.save(dir)?;
        Ok(replica.bits())
    })
}

fn file_of(dir: &Path, rank: usize) -> PathBuf {
    let is_its = |path: &PathBuf| path.to_string_lossy().contains(&format!("worker-{rank}-of"));
    files(dir).into_keys().find(is_its).expect("a worker's file")
}

/// Everything in a folder.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
}

/// All workers refuse the checkpoint, one of them with these words; `params` and the folder stay as they were.
fn assert_refused_by(workers: usize, dir: &Path, config: &Config, len: usize, words: &[&str]) {
    let before = files(dir);
    let errors = failing(workers, |group| {
        let mut params = vec![7.0; len];
        let resumed = Worker::resume(config, dir, &mut params, Box::new(group));
        assert_eq!(params, vec![7.0; len], "{words:?}");
        resumed
    });
    let texts = errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    let says_all = |text: &String| words.iter().all(|word| text.contains(word));
    assert!(texts.iter().any(says_all), "{texts:?} do not say {words:?}");
    assert!(before == files(dir), "{words:?}");
}

fn assert_refused(dir: &Path, config: &Config, len: usize, words: &[&str]) {
    assert_refused_by(2, dir, config, len, words);
}

fn assert_spoilt(dir: &Path, words: &[&str]) {
    assert_refused(dir, &config(WORDS), LEN, words);
}

/// Changes the manifest by hand.
fn edit_manifest(dir: &Path, edit: impl FnOnce(&mut Value)) {
    let path = dir.join("manifest.json");
    let mut manifest = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut manifest);
    fs::write(path, manifest.to_string()).unwrap();
}

#[test]
fn a_folder_without_a_manifest_is_no_checkpoint() {
    let dir = checkpoint();
    fs::remove_file(dir.path().join("manifest.json")).unwrap();
    assert_spoilt(dir.path(), &[&dir.path().to_string_lossy(), "manifest.json"]);
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let dir = scratch();
    let missing = dir.path().join("nowhere");
    let error = Worker::resume(&config(WORDS), &missing, &mut [0.0; LEN], Box::new(Solo)).err().unwrap();
    assert!(error.to_string().contains("nowhere"), "{error}");
    assert!(!missing.exists());
}

#[test]
fn a_worker_file_that_is_missing_is_named() {
    let dir = checkpoint();
    let path = file_of(dir.path(), 1);
    fs::remove_file(&path).unwrap();
    assert_spoilt(dir.path(), &[&path.to_string_lossy(), "not there"]);
}

#[test]
fn a_truncated_worker_file_is_named() {
    let dir = checkpoint();
    let path = file_of(dir.path(), 1);
    let whole = fs::read(&path).unwrap();
    let lengths = (0..20).chain((20..whole.len()).step_by(97)).chain([whole.len() - 1]);
    for len in lengths {
        fs::write(&path, &whole[..len]).unwrap();
        assert_spoilt(dir.path(), &[&path.to_string_lossy(), &format!("{len} bytes"), &whole.len().to_string()]);
    }
    fs::write(&path, [&whole[..], b"!"].concat()).unwrap();
    assert_spoilt(dir.path(), &[&path.to_string_lossy()]);
}

#[test]
fn a_flipped_byte_in_a_worker_file_is_found() {
    let dir = checkpoint();
    let path = file_of(dir.path(), 0);
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(31).chain([whole.len() - 1]) {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x40;
        fs::write(&path, flipped).unwrap();
        assert_spoilt(dir.path(), &[&path.to_string_lossy(), "contents"]);
    }
}

/// A manifest says nothing that is not checked: a flipped byte is an error, or it was a byte without meaning.
#[test]
fn a_flipped_byte_in_the_manifest_changes_nothing_silently() {
    let dir = checkpoint();
    let path = dir.path().join("manifest.json");
    let whole = fs::read(&path).unwrap();
    let resumed = || {
        let resumed = |group| {
            Replica::resume(&config(WORDS), dir.path(), LEN, group)
                .map(|mut replica| (replica.worker.steps(), replica.bits()))
        };
        threads::run(2, resumed).into_iter().collect::<Result<Vec<_>, _>>()
    };
    let right = resumed().unwrap();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x01;
        fs::write(&path, flipped).unwrap();
        if let Ok(resumed) = resumed() {
            assert!(resumed == right, "byte {at} of {}", String::from_utf8_lossy(&whole));
        }
    }
}

#[test]
fn a_file_of_another_run_is_found() {
    let (dir, other) = (checkpoint(), scratch());
    let words = config(&format!("{WORDS}; weight_decay = 0.5"));
    save_at(11, &words, 2, other.path());
    let path = file_of(dir.path(), 1);
    fs::copy(file_of(other.path(), 1), &path).unwrap();
    assert_spoilt(dir.path(), &[&path.to_string_lossy(), "contents"]);
}

#[test]
fn the_file_of_another_worker_is_found() {
    let dir = checkpoint();
    let path = file_of(dir.path(), 1);
    fs::copy(file_of(dir.path(), 0), &path).unwrap();
    assert_spoilt(dir.path(), &[&path.to_string_lossy()]);
}

#[test]
fn another_version_is_refused() {
    let dir = checkpoint();
    edit_manifest(dir.path(), |manifest| manifest["version"] = json!(2));
    assert_spoilt(dir.path(), &["manifest.json", "version: expected 1, found 2"]);
}

#[test]
fn foreign_json_is_refused() {
    let dir = checkpoint();
    for foreign in
        ["", "{", "null", "[1, 2]", "{}", r#"{"format": "other"}"#, r#"{"format": 3, "version": 1}"#, "\u{7f}"]
    {
        fs::write(dir.path().join("manifest.json"), foreign).unwrap();
        assert_spoilt(dir.path(), &["manifest.json"]);
    }
    fs::write(dir.path().join("manifest.json"), [0xff, 0xfe, 0x00]).unwrap();
    assert_spoilt(dir.path(), &["manifest.json"]);
}

#[test]
fn a_manifest_that_lacks_a_field_is_refused() {
    for field in ["step", "parameters", "config", "files"] {
        let dir = checkpoint();
        edit_manifest(dir.path(), |manifest| drop(manifest.as_object_mut().unwrap().remove(field)));
        assert_spoilt(dir.path(), &["manifest.json", field]);
    }
}

#[test]
fn a_manifest_without_files_is_refused() {
    let dir = checkpoint();
    edit_manifest(dir.path(), |manifest| manifest["files"] = json!([]));
    assert_spoilt(dir.path(), &["manifest.json"]);
}

/// Two of three files are not the state of two workers.
#[test]
fn a_manifest_that_lacks_a_worker_is_refused() {
    let dir = scratch();
    save_at(11, &config(WORDS), 3, dir.path());
    edit_manifest(dir.path(), |manifest| drop(manifest["files"].as_array_mut().unwrap().remove(2)));
    for workers in 1..=4 {
        assert_refused_by(workers, dir.path(), &config(WORDS), LEN, &[&dir.path().to_string_lossy(), "down_residue"]);
    }
}

#[test]
fn another_number_of_parameters_is_refused() {
    let dir = checkpoint();
    assert_refused(dir.path(), &config(WORDS), LEN + 1, &[&dir.path().to_string_lossy(), "45", "46"]);
    assert_refused(dir.path(), &config(WORDS), 0, &["45", "0"]);
}

#[test]
fn another_configuration_is_refused_by_its_word() {
    let dir = checkpoint();
    for (key, then, now) in [
        ("kappa", json!(4), json!(5)),
        ("sync_every", json!(4), json!(3)),
        ("codec_down", json!("sign"), json!("f16")),
        ("block", json!(8), json!(16)),
        ("topology", json!("sharded"), json!("central")),
        ("host_codec", json!("f32"), json!("bf16")),
        ("residual", json!("f32"), json!("bf16")),
        ("weight_decay", json!(0.01), json!(0.5)),
    ] {
        let text = format!(": {key} was {then} when it was saved, and is {now} now");
        assert_refused(dir.path(), &changed(&config(WORDS), key, now), LEN, &[&dir.path().to_string_lossy(), &text]);
    }
}

#[test]
fn another_optimizer_is_refused_by_name() {
    for then in NAMES {
        let dir = scratch();
        save_at(3, &config(&format!("name = '{then}'")), 2, dir.path());
        for now in NAMES.into_iter().filter(|now| *now != then) {
            let text = format!(": name was \"{then}\" when it was saved, and is \"{now}\" now");
            assert_refused(dir.path(), &config(&format!("name = '{now}'")), LEN, &[&text]);
        }
    }
}

const NAMES: [&str; 8] =
    ["adam", "one-bit-adam", "zero-one-adam", "efficient-adam", "local-adam", "lion", "birder", "one-bit-lamb"];

/// What a crash leaves while step 15 is being saved over step 11.
#[test]
fn a_crash_in_the_middle_of_saving_leaves_the_old_checkpoint() {
    let (dir, later) = (scratch(), scratch());
    let saved = save_at(11, &config(WORDS), 2, dir.path());
    save_at(15, &config(WORDS), 2, later.path());
    leave_half_saved(later.path(), dir.path());
    assert_resumes_as(&saved, dir.path());
}

/// Two saves at one step may differ: a sync came between them.
#[test]
fn a_crash_while_saving_the_same_step_again_leaves_the_old_checkpoint() {
    let (dir, later) = (scratch(), scratch());
    let saved = save_at(11, &config(WORDS), 2, dir.path());
    together(2, |group| {
        let mut replica = Replica::resume(&config(WORDS), dir.path(), LEN, group)?;
        replica.sync()?;
        replica.save(later.path())
    });
    leave_half_saved(later.path(), dir.path());
    assert_resumes_as(&saved, dir.path());
}

/// The worker files of `from`, one finished, and a manifest that never got its name.
fn leave_half_saved(from: &Path, to: &Path) {
    for (rank, rest) in [(0, ""), (1, ".unfinished")] {
        let path = file_of(from, rank);
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        fs::copy(path, to.join(name + rest)).unwrap();
    }
    fs::write(to.join("manifest.json.0.unfinished"), "{").unwrap();
}

fn assert_resumes_as(saved: &[Bits], dir: &Path) {
    let resumed = together(2, |group| Ok(Replica::resume(&config(WORDS), dir, LEN, group)?.bits()));
    for (saved, resumed) in saved.iter().zip(&resumed) {
        saved.assert_same(resumed, dir);
    }
}

#[test]
fn saving_again_leaves_only_the_new_files() {
    let (dir, later) = (scratch(), scratch());
    save_at(11, &config(WORDS), 3, dir.path());
    save_at(12, &config(WORDS), 3, later.path());
    leave_half_saved(later.path(), dir.path());
    let foreign = dir.path().join("notes.txt");
    fs::write(&foreign, "mine").unwrap();

    save_at(15, &config(WORDS), 2, dir.path());
    let left = files(dir.path()).into_keys().map(|path| path.file_name().unwrap().to_string_lossy().into_owned());
    let left = left.collect::<Vec<_>>();
    assert_eq!(left.len(), 4, "{left:?}");
    assert!(foreign.exists() && left.iter().all(|name| !name.contains("unfinished")), "{left:?}");
}

#[test]
fn a_save_that_fails_on_one_worker_fails_on_all_and_the_run_goes_on() {
    let dir = scratch();
    let uninterrupted = run_saving(&config(WORDS), 3, &dir.path().join("whole"));
    let (good, bad) = (dir.path().join("good"), dir.path().join("bad"));
    fs::write(&bad, "in the way").unwrap();
    let ends = together(3, |group| {
        let mut replica = Replica::new(&config(WORDS), LEN, group)?;
        replica.train(9)?;
        replica.save(&good)?;
        replica.train(11)?;
        let into = if replica.worker.rank() == 1 { &bad } else { &good };
        let error = replica.save(into).unwrap_err().to_string();
        assert!(error.contains("worker 1") && error.contains("bad"), "{error}");
        replica.train(STEPS)?;
        Ok(replica.bits())
    });
    for (end, uninterrupted) in ends.iter().zip(&uninterrupted) {
        end.assert_same(uninterrupted, "after a failed save");
    }
    together(3, |group| {
        let replica = Replica::resume(&config(WORDS), &good, LEN, group)?;
        assert_eq!(replica.worker.steps(), 9, "the checkpoint that was there stays");
        Ok(())
    });
}

/// A worker that stopped half-way through a step has nothing worth saving.
#[test]
fn a_stopped_worker_leaves_the_checkpoint_alone() {
    let dir = scratch();
    let saved = save_at(11, &config(WORDS), 2, dir.path());
    let before = files(dir.path());
    together(2, |group| {
        let mut replica = Replica::resume(&config(WORDS), dir.path(), LEN, group)?;
        let spoilt = replica.step_with(|gradient| gradient[0] = f32::NAN);
        assert!(spoilt.is_err());
        replica.x.fill(0.0);
        assert!(matches!(replica.save(dir.path()), Err(Error::Stopped)));
        Ok(())
    });
    assert!(before == files(dir.path()), "the folder changed");
    assert_resumes_as(&saved, dir.path());
}

/// Each worker may keep its part on a disk of its own.
#[test]
fn workers_may_save_to_folders_of_their_own() {
    let dir = scratch();
    let uninterrupted = run_saving(&config(WORDS), 3, &dir.path().join("whole"));
    let own = |rank: usize| dir.path().join(format!("disk-{rank}"));
    together(3, |group| {
        let mut replica = Replica::new(&config(WORDS), LEN, group)?;
        replica.train(14)?;
        replica.save(&own(replica.worker.rank()))
    });
    let resumed = together(3, |group| {
        let mut replica = Replica::resume(&config(WORDS), &own(group.rank()), LEN, group)?;
        replica.train(STEPS)?;
        Ok(replica.bits())
    });
    for (end, uninterrupted) in resumed.iter().zip(&uninterrupted) {
        end.assert_same(uninterrupted, "own folders");
    }
}
