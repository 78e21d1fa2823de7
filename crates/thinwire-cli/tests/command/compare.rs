//! `compare`: one job, several optimizers, everything else the same.

use crate::helper::{NETWORK, OPTIMIZERS, Place, Ran, in_the_middle, text};
use serde_json::Value;
use std::process::Command;

#[test]
fn all_optimizers_start_alike_and_stand_side_by_side() {
    let place = Place::new();
    let ran = place.thinwire(&format!("compare {NETWORK} --steps 20 --workers 2 --out all --json")).succeeds();
    for word in ["Adam", "1-bit Adam", "0/1 Adam", "Efficient-Adam", "held-out loss", "bytes sent", "all/report.html"] {
        assert!(ran.stderr.contains(word), "no {word} in\n{}", ran.stderr);
    }
    let runs = ran.json()["runs"].as_array().expect("a list").clone();
    assert_eq!(runs.iter().map(|run| text(&run["optimizer"])).collect::<Vec<_>>(), OPTIMIZERS);
    let page = place.read("all/report.html");
    let first = OPTIMIZERS.map(|optimizer| place.step_metrics(&format!("all/{optimizer}"))[0]["loss"].clone());
    for (optimizer, (run, loss)) in OPTIMIZERS.iter().zip(runs.iter().zip(&first)) {
        assert_eq!(loss, &first[0], "{optimizer}: other weights or other data");
        let summary: serde_json::Value =
            serde_json::from_str(&place.read(format!("all/{optimizer}/summary.json"))).unwrap();
        assert_eq!(run, &summary, "{optimizer}");
        let name = if *optimizer == "adam" { "Adam" } else { optimizer };
        assert!(page.contains(name), "{optimizer} is not in the report");
    }
    let line = format!("compare {NETWORK} --steps 3 --workers 2 --optimizers adam --out short");
    let ran = place.thinwire(&line).succeeds();
    assert!(
        ran.stdout.contains("held-out loss") && !ran.stderr.contains("held-out loss"),
        "without --json: {}",
        ran.stdout
    );
    let alone = format!("train {NETWORK} --steps 20 --workers 2 --optimizer one-bit-adam --out alone --json --quiet");
    assert_eq!(place.thinwire(&alone).json()["digest"], runs[1]["digest"], "alone it is the same run");
}

#[test]
fn optimizers_are_looked_at_before_the_first_runs() {
    let place = Place::new();
    for (flags, words) in [
        ("--optimizers adam,sgd", ["--optimizers", "efficient-adam"]),
        ("--optimizers adam,adam", ["--optimizers", "twice"]),
        ("--optimizers zero-one-adam,adam --set kappa=4", ["kappa = 4", "adam"]),
        ("--optimizer adam", ["--optimizer", "--optimizers"]),
        ("--set name=adam", ["optimizer.name = \"adam\"", "--optimizers"]),
    ] {
        place.thinwire(&format!("compare {NETWORK} --steps 5 {flags} --out all")).refused(&words);
        assert!(!place.path("all").exists(), "{flags}");
    }
}

#[test]
fn an_interrupted_run_below_stops_it_before_anything_is_lost() {
    let place = Place::new();
    let line = format!("compare {NETWORK} --steps 5 --optimizers adam,zero-one-adam --out all --quiet");
    place.thinwire(&line).succeeds();
    std::fs::remove_file(place.path("all/zero-one-adam/summary.json")).unwrap(); // as if it had been interrupted
    place.thinwire(&line).refused(&["all/zero-one-adam", "--overwrite"]);
    assert!(place.path("all/adam/summary.json").is_file());
    place.thinwire(&format!("{line} --overwrite")).succeeds();
}

/// Interrupted in the middle of the first, it goes on with that and begins the others.
#[test]
fn an_interrupted_comparison_goes_on_as_a_whole() {
    let place = Place::new();
    let line = format!("compare {NETWORK} --steps 1500 --workers 2 --optimizers zero-one-adam,adam --json --out");
    let whole = place.thinwire(&format!("{line} whole")).json();
    let mut child = place.start(&format!("{line} parts"));
    in_the_middle(&place, &mut child, "parts/zero-one-adam/metrics.jsonl");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let ran = Ran::of(&line, child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(ran.stderr.contains("thinwire compare --resume parts"), "{}", ran.stderr);
    assert!(!place.path("parts/zero-one-adam/summary.json").exists());

    place.thinwire("compare --resume parts --steps 3").refused(&["--resume", "keeps its other settings"]);
    place.thinwire("compare --resume whole/adam").refused(&["expected the folder of a comparison"]);
    let resumed = place.thinwire("compare --resume parts --json").json();
    let digests = |all: &Value| {
        let runs = all["runs"].as_array().expect("a list").clone();
        runs.iter().map(|run| (text(&run["optimizer"]), text(&run["digest"]))).collect::<Vec<_>>()
    };
    assert_eq!(digests(&resumed), digests(&whole));
    assert!(place.path("parts/report.html").exists());
    let again = place.thinwire("compare --resume parts --json --quiet").json();
    assert_eq!(again, resumed, "what is done is only read");
}

#[test]
fn a_word_may_be_for_one_optimizer() {
    let place = Place::new();
    let flags = "--steps 12 --workers 2 --optimizers adam,zero-one-adam --set zero-one-adam.kappa=4 --json --quiet";
    place.thinwire(&format!("compare {NETWORK} {flags} --out all")).succeeds();
    assert!(place.read("all/zero-one-adam/config.toml").contains("kappa = 4"));
    assert!(!place.read("all/adam/config.toml").contains("kappa"));
    place.thinwire(&format!("compare {NETWORK} {flags} --out b --set adan.kappa=4")).refused(&["adan.kappa"]);
    place.thinwire("train --set one-bit-adam.warmup=4").refused(&["one-bit-adam", "zero-one-adam"]);
    place.thinwire(&format!("train {NETWORK} --steps 5 --set zero-one-adam.kappa=4 --out alone --quiet")).succeeds();
    assert!(place.read("alone/config.toml").contains("kappa = 4"));
}
