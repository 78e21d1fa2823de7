//! Runs that were stopped in the middle go on as if nothing had been, bit for bit.

use crate::helper::{NETWORK, Place, Ran, in_the_middle};
use std::process::Command;

/// Long enough to be met in the middle: seconds, and it looks up every 20 steps.
const LONG: &str = "--steps 2000 --eval-every 20 --workers 2";

/// Line by line, so that a failure shows the first that differs.
fn same_metrics(place: &Place) {
    let (parts, whole) = (place.timeless_metrics("parts"), place.timeless_metrics("whole"));
    for (part, whole) in parts.iter().zip(&whole) {
        assert_eq!(part, whole);
    }
    assert_eq!(parts.len(), whole.len());
}

fn interrupts_and_goes_on(optimizer: &str) {
    let place = Place::new();
    let line = format!("train {NETWORK} {LONG} --optimizer {optimizer} --json --out");
    let whole = place.thinwire(&format!("{line} whole")).json();

    let mut child = place.start(&format!("{line} parts"));
    in_the_middle(&place, &mut child, "parts/metrics.jsonl");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let ran = Ran::of(&line, child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("thinwire train --resume parts"), "{}", ran.stderr);
    let before = place.step_metrics("parts").len();
    assert!((1..2000).contains(&before), "{before} steps");
    assert!(!place.path("parts/summary.json").exists());

    place.thinwire(&format!("{line} parts")).refused(&["parts", "thinwire train --resume parts", "--overwrite"]);
    let resumed = place.thinwire("train --resume parts --json").json();
    assert_eq!(resumed["digest"], whole["digest"]);
    for field in ["train_loss", "val_loss", "rounds", "bytes_sent_per_worker", "steps"] {
        assert_eq!(resumed[field], whole[field], "{field}");
    }
    same_metrics(&place);
}

#[test]
fn an_interrupted_zero_one_adam_goes_on() {
    interrupts_and_goes_on("zero-one-adam");
}

#[test]
fn an_interrupted_efficient_adam_goes_on() {
    interrupts_and_goes_on("efficient-adam");
}

#[test]
fn a_killed_run_goes_on_from_its_last_checkpoint() {
    let place = Place::new();
    let line =
        format!("train {NETWORK} --steps 400 --workers 2 --eval-every 50 --checkpoint-every 5 --quiet --json --out");
    let whole = place.thinwire(&format!("{line} whole")).json();

    let mut child = place.start(&format!("{line} parts"));
    in_the_middle(&place, &mut child, "parts/checkpoint/manifest.json");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!place.path("parts/summary.json").exists(), "it was to be killed in the middle");
    // Killed while it wrote a line.
    let torn = place.read("parts/metrics.jsonl") + r#"{"kind":"step","st"#;
    place.write("parts/metrics.jsonl", torn);

    let resumed = place.thinwire("train --resume parts --json --quiet").json();
    assert_eq!(resumed["digest"], whole["digest"]);
    same_metrics(&place);
}

/// Killed while it wrote its first checkpoint: files of workers, and no manifest. Nothing of it can be resumed, so nothing is lost.
#[test]
fn a_run_that_was_killed_in_its_first_checkpoint_starts_again() {
    let place = Place::new();
    let line = format!("train {NETWORK} --steps 30 --workers 2 --quiet --json --out run");
    let whole = place.thinwire(&line).json();
    for file in ["summary.json", "checkpoint/manifest.json", "checkpoint/run.toml"] {
        std::fs::remove_file(place.path("run").join(file)).unwrap();
    }
    place.thinwire("train --resume run").refused(&["run", "expected a checkpoint", "without --resume"]);
    let again = place.thinwire(&line).json();
    assert_eq!(again["digest"], whole["digest"]);
    assert_eq!(place.step_metrics("run").len(), 30);
}

#[test]
fn what_cannot_go_on_refused() {
    let place = Place::new();
    place.train("--out done");
    let before = place.read("done/metrics.jsonl");
    place.thinwire("train --resume done").refused(&["done", "all 30 steps", "--steps"]);
    place.thinwire("train --resume done --steps 30").refused(&["done", "all 30 steps", "--steps"]);
    place.thinwire("train --resume done --steps 20").refused(&["--steps 20", "more than the 30 steps"]);
    for flags in
        ["--seed 60", "--optimizer adam", "--set kappa=4", "--out other", "--overwrite", "--config done/config.toml"]
    {
        place.thinwire(&format!("train --resume done {flags}")).refused(&["--resume", "done"]);
    }
    place.thinwire("train --resume missing").refused(&["missing", "expected the folder of a run"]);
    std::fs::create_dir(place.path("empty")).unwrap();
    place.thinwire("train --resume empty").refused(&["empty", "expected the folder of a run"]);
    std::fs::create_dir(place.path("unsaved")).unwrap();
    std::fs::copy(place.path("done/config.toml"), place.path("unsaved/config.toml")).unwrap();
    place.thinwire("train --resume unsaved").refused(&["unsaved", "expected a checkpoint", "without --resume"]);
    assert_eq!(place.read("done/metrics.jsonl"), before, "the finished run is as it was");
}

#[test]
fn changed_data_is_noticed() {
    let place = Place::new();
    let text = "to be, or not to be, that is the question; ".repeat(300);
    place.write("text.txt", &text);
    let line = format!("train {NETWORK} --steps 30 --data text.txt --checkpoint-every 10 --quiet --out run");
    place.thinwire(&line).succeeds();
    std::fs::remove_file(place.path("run/summary.json")).unwrap(); // as if it had been interrupted at its very end
    place.write("text.txt", text.replace("question", "answer"));
    place.thinwire("train --resume run").refused(&["the data has changed"]);
    place.write("text.txt", &text);
    place.thinwire("train --resume run --quiet").succeeds();
    // The settings may be used again with other data.
    place.write("text.txt", text.replace("question", "answer"));
    place.thinwire("train --config run/config.toml --out other --quiet").succeeds();
}

/// `timeout` of coreutils sends its signal twice, a terminal and a launcher may: the checkpoint is written all the same.
#[test]
fn a_second_signal_at_once_loses_no_checkpoint() {
    let place = Place::new();
    let line = format!("train {NETWORK} --steps 100000 --eval-every 100000 --workers 2 --out run");
    let mut child = place.start(&line);
    in_the_middle(&place, &mut child, "run/metrics.jsonl");
    let id = child.id().to_string();
    let sent = Command::new("sh").args(["-c", &format!("kill -INT {id}; kill -TERM {id}; kill -INT {id}")]).status();
    assert!(sent.unwrap().success());
    let ran = Ran::of(&line, child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(ran.stderr.contains("thinwire train --resume run"), "{}", ran.stderr);
    assert!(place.path("run/checkpoint/manifest.json").is_file());
}

/// The lock goes with the process, however it ends.
#[test]
fn a_folder_has_one_run_at_a_time() {
    let place = Place::new();
    let line = format!("train {NETWORK} --steps 100000 --checkpoint-every 20 --workers 2 --quiet --out");
    let mut child = place.start(&format!("{line} run"));
    in_the_middle(&place, &mut child, "run/checkpoint/manifest.json");
    let words = ["run: another run is writing to this folder", &format!("process {}", child.id()), "--out"];
    for other in [format!("{line} run"), format!("{line} run --overwrite"), "train --resume run".to_owned()] {
        place.thinwire(&other).refused(&words);
    }
    place.thinwire(&format!("compare {NETWORK} --steps 5 --out run")).refused(&words);
    child.kill().unwrap();
    child.wait().unwrap();
    place.thinwire(&format!("{line} run")).refused(&["a run that was interrupted"]);
    place.thinwire(&format!("train {NETWORK} --steps 5 --quiet --out run --overwrite")).succeeds();
}

/// Where nothing depends on the length of the run, a longer one is what it would have been from the start.
#[test]
fn a_finished_run_can_be_made_longer() {
    let place = Place::new();
    let flags = "--optimizer adam --workers 2 --decay constant --warmup 3 --eval-every 10";
    place.train(&format!("{flags} --out parts"));
    let line = format!("train {NETWORK} {flags} --steps 60 --quiet --json --out whole");
    let whole = place.thinwire(&line).json();
    let ran = place.thinwire("train --resume parts --steps 60 --json").succeeds();
    assert!(ran.stderr.contains("60 steps instead of 30"), "{}", ran.stderr);
    let longer = ran.json();
    assert_eq!((&longer["digest"], &longer["steps"]), (&whole["digest"], &60.into()));
    assert_eq!(place.step_metrics("parts").len(), 60);
    assert!(place.read("parts/config.toml").contains("steps = 60"));
    place.thinwire("train --resume parts").refused(&["all 60 steps"]);
    // 0/1 Adam's calendar follows the learning rate, which is another one now.
    place.train("--workers 2 --out other");
    place.thinwire("train --resume other --steps 45 --quiet").succeeds();
    place.thinwire("train --resume other --steps 50 --quiet").succeeds();
    assert_eq!(place.step_metrics("other").len(), 50);
    assert!(place.read("other/config.toml").contains("warmup = 3\n"), "it is past, and stays");
}

#[test]
fn what_does_not_belong_together_does_not_go_on() {
    let place = Place::new();
    for (run, seed) in [("one", 1), ("two", 2)] {
        place.train(&format!("--workers 2 --seed {seed} --out {run}"));
        std::fs::remove_file(place.path(format!("{run}/summary.json"))).unwrap(); // as if it had been interrupted
    }
    let config = place.read("one/config.toml");
    for (old, new, words) in [
        ("\nseed = 1\n", "\nseed = 5\n", "seed = 5 in config.toml, 1 in the checkpoint"),
        ("\nbatch = 2\n", "\nbatch = 3\n", "batch = 3 in config.toml, 2 in the checkpoint"),
        ("\nsteps = 30\n", "\nsteps = 40\n", "give --steps and leave config.toml as it was"),
    ] {
        assert!(config.contains(old), "{config}");
        place.write("one/config.toml", config.replacen(old, new, 1));
        place.thinwire("train --resume one").refused(&["--resume one", "config.toml was edited", words]);
    }
    place.write("one/config.toml", config.replacen("\neval_every = 3\n", "\neval_every = 5\n", 1));
    std::fs::rename(place.path("one/checkpoint"), place.path("kept")).unwrap();
    std::fs::rename(place.path("two/checkpoint"), place.path("one/checkpoint")).unwrap();
    place.thinwire("train --resume one").refused(&["the checkpoint is of another run", "seed = 1 in config.toml, 2"]);
    std::fs::rename(place.path("one/checkpoint"), place.path("two/checkpoint")).unwrap();
    std::fs::rename(place.path("kept"), place.path("one/checkpoint")).unwrap();
    place.thinwire("train --resume one --quiet").succeeds();
    // An older checkpoint, which has no run.toml.
    std::fs::remove_file(place.path("two/checkpoint/run.toml")).unwrap();
    place.thinwire("train --resume two --quiet").succeeds();
}

/// The last evaluation may take minutes; the checkpoint is written before it.
#[test]
fn the_last_evaluation_is_interrupted_and_gone_on_with() {
    let place = Place::new();
    // All of the held-out text through a larger network takes most of a minute.
    let line = "train --layers 6 --dim 192 --heads 4 --context 64 --batch 1 --steps 2 --workers 2 --out run";
    let mut child = place.start(line);
    in_the_middle(&place, &mut child, "run/checkpoint/manifest.json");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let ran = Ran::of(line, child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(ran.stderr.contains("interrupted in the last evaluation, after all 2 steps"), "{}", ran.stderr);
    assert!(!place.path("run/summary.json").exists());
    // How many examples are looked at may change from session to session.
    let config = place.read("run/config.toml");
    place.write("run/config.toml", format!("eval_examples = 8\n{config}"));
    let resumed = place.thinwire("train --resume run --quiet --json").json();
    assert_eq!(resumed["steps"], 2);
    assert_eq!(place.step_metrics("run").len(), 2);
}
