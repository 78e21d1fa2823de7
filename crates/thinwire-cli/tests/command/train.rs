//! One run: its summary, its folder, and that it is the same every time.

use crate::helper::{NETWORK, OPTIMIZERS, Place, number, text};
use serde_json::Value;
use thinwire::{Config, Plan};

#[test]
fn json_on_stdout_everything_for_people_on_stderr() {
    let place = Place::new();
    let ran = place
        .thinwire(&format!(
            "train {NETWORK} --steps 30 --workers 3 --set freeze=5 --set sync_longest=16 --out run --json"
        ))
        .succeeds();
    assert!(ran.stderr.contains("digest") && ran.stderr.contains("report.html"), "{}", ran.stderr);
    assert_eq!(ran.stdout, place.read("run/summary.json"));

    let summary = ran.json();
    for (field, value) in [("optimizer", "zero-one-adam"), ("transport", "threads"), ("task", "gpt")] {
        assert_eq!(text(&summary[field]), value);
    }
    for (field, value) in [("workers", 3), ("steps", 30), ("seed", 1)] {
        assert_eq!(summary[field], value, "{field}");
    }
    assert!(number(&summary["params"]) > 5000.0);
    for loss in ["train_loss", "val_loss"] {
        let uniform = 256f64.ln(); // what a network knows that knows nothing about the next byte
        assert!((0.5..uniform).contains(&number(&summary[loss])), "{loss} {}", summary[loss]);
    }
    let digest = text(&summary["digest"]);
    assert!(digest.len() == 16 && digest.chars().all(|digit| digit.is_ascii_hexdigit()), "{digest}");
    let rounds = ["exact", "coarse", "skipped"].map(|round| number(&summary["rounds"][round]));
    assert_eq!(rounds.iter().sum::<f64>(), 30.0);
    assert!(rounds.iter().all(|&count| count > 0.0), "0/1 Adam has rounds of every kind: {rounds:?}");
    let phases = ["compute", "pack", "wire", "wait"].map(|phase| number(&summary["seconds"][phase]));
    assert!(phases.iter().all(|&seconds| seconds >= 0.0), "{phases:?}");
    assert!(number(&summary["seconds"]["total"]) >= phases[0]);
}

#[test]
fn the_folder_holds_the_whole_run() {
    let place = Place::new();
    let summary = place.train("--out run --eval-every 7");
    for file in ["config.toml", "metrics.jsonl", "summary.json", "report.html", "checkpoint/manifest.json"] {
        assert!(place.path("run").join(file).is_file(), "{file}");
    }
    assert!(place.read("run/report.html").contains("<svg"));
    let plots = std::fs::read_dir(place.path("run/plots")).unwrap().map(|plot| plot.unwrap().path());
    let plots = plots.collect::<Vec<_>>();
    assert!(
        !plots.is_empty() && plots.iter().all(|plot| plot.extension().is_some_and(|kind| kind == "svg")),
        "{plots:?}"
    );

    let mut sent = 0.0;
    let steps = place.step_metrics("run");
    assert_eq!(steps.len(), 30);
    for (index, step) in steps.iter().enumerate() {
        assert_eq!(step["step"], index);
        sent += number(&step["bytes"]);
        assert_eq!(number(&step["bytes_total"]), sent);
        assert_eq!(number(&step["bytes"]) == 0.0, step["round"] == "skipped", "{step}");
        assert!(number(&step["loss"]).is_finite() && number(&step["lr"]) >= 0.0);
    }
    assert_eq!(sent.round(), number(&summary["bytes_sent_per_worker"]));
    let evals = place.metrics("run").into_iter().filter(|line| line["kind"] == "eval").collect::<Vec<_>>();
    let at = evals.iter().map(|eval| number(&eval["step"])).collect::<Vec<_>>();
    assert_eq!(at, [7.0, 14.0, 21.0, 28.0, 30.0]);
    assert_eq!(evals[4]["val_loss"], summary["val_loss"]);
}

/// The engine's plan from the words of a run's config.toml, as anybody could make it.
fn planned(config: &str, params: usize) -> Plan {
    let settings: toml::Table = config.parse().unwrap();
    let mut rate = toml::Table::from_iter([("peak".to_owned(), settings["lr"].clone())]);
    for word in ["warmup", "decay", "steps"] {
        rate.insert(word.to_owned(), settings[word].clone());
    }
    let mut words = settings["optimizer"].as_table().unwrap().clone();
    words.insert("learning_rate".to_owned(), toml::Value::Table(rate));
    let config = Config::from_toml(&toml::to_string(&words).unwrap()).unwrap();
    let [workers, steps] = ["workers", "steps"].map(|word| settings[word].as_integer().unwrap());
    Plan::new(&config, params, workers as usize, steps as u64).unwrap().with_final_sync()
}

#[test]
fn rounds_and_bytes_are_those_of_the_plan() {
    let place = Place::new();
    for workers in [1, 3] {
        for optimizer in OPTIMIZERS {
            let summary = place.train(&format!("--optimizer {optimizer} --workers {workers} --out run --overwrite"));
            let plan = planned(&place.read("run/config.toml"), number(&summary["params"]) as usize);
            let bytes = (0..workers).map(|rank| plan.bytes_sent(rank)).sum::<u64>() as f64 / workers as f64;
            assert_eq!(number(&summary["bytes_sent_per_worker"]), bytes.round(), "{optimizer}, {workers} workers");
            let rounds = serde_json::json!({
                "exact": plan.rounds.exact, "coarse": plan.rounds.coarse, "skipped": 30 - plan.rounds.exact - plan.rounds.coarse,
            });
            assert_eq!(summary["rounds"], rounds, "{optimizer}, {workers} workers");
        }
    }
}

#[test]
fn a_seed_decides_everything() {
    let place = Place::new();
    for workers in [1, 3] {
        for optimizer in OPTIMIZERS {
            let run = |seed| {
                place
                    .digest(&format!("--optimizer {optimizer} --workers {workers} --seed {seed} --out run --overwrite"))
            };
            let first = run(5);
            assert_eq!(run(5), first, "{optimizer}, {workers} workers");
            assert_ne!(run(6), first, "{optimizer}, {workers} workers");
        }
    }
}

#[test]
fn every_task_trains_on_what_is_embedded() {
    let place = Place::new();
    let run = |flags: &str| {
        place.thinwire(&format!("train {flags} --steps 4 --workers 2 --out run --overwrite --json --quiet")).json()
    };
    for (flags, unit, classes) in [
        (format!("{NETWORK} --task gpt"), "tokens", false),
        (format!("{NETWORK} --task bert"), "tokens", false),
        ("--task images --dim 8 --batch 4 --eval-examples 20".to_owned(), "images", true),
    ] {
        let summary = run(&flags);
        assert_eq!(text(&summary["unit"]), unit, "{flags}");
        assert_eq!(run(&flags)["digest"], summary["digest"], "{flags}");
        let accuracy = summary.get("accuracy").map(number);
        assert_eq!(accuracy.is_some(), classes, "{flags}");
        assert!(accuracy.is_none_or(|part| (0.0..=1.0).contains(&part)), "{flags}: {accuracy:?}");
        assert!(summary.get("matthews").is_none(), "{flags}: Matthews correlation is for two classes");
    }
}

#[test]
fn accumulation_adds_up_batches_and_clipping_shortens() {
    let place = Place::new();
    let plain = place.digest("--workers 2 --clip 1e8 --out plain");
    assert_ne!(place.digest("--workers 2 --clip 1e8 --accumulate 2 --out accumulated"), plain);
    assert_ne!(place.digest("--workers 2 --clip 0.1 --out clipped"), plain);
    assert_eq!(place.digest("--workers 2 --clip 1e9 --out unclipped"), plain, "no gradient is that long");

    // At a learning rate of 0 the weights stay, and a step's loss tells which batches it took.
    place.train("--workers 2 --lr 0 --out still");
    place.train("--workers 2 --lr 0 --accumulate 2 --out pairs");
    let losses = |run| place.step_metrics(run).iter().map(|step| number(&step["loss"])).collect::<Vec<_>>();
    for (two, both) in losses("still").chunks(2).zip(losses("pairs")) {
        assert!(((two[0] + two[1]) / 2.0 - both).abs() < 1e-5, "{two:?} and {both}");
    }
}

#[test]
fn decays_shape_the_learning_rate() {
    let place = Place::new();
    let rates = |decay: &str| {
        let run = format!("{decay}-run");
        place.train(&format!("--workers 1 --lr 0.01 --warmup 3 --decay {decay} --out {run}"));
        place.step_metrics(&run).iter().map(|step| number(&step["lr"])).collect::<Vec<_>>()
    };
    let near = |rate: f64, wanted: f64| assert!((rate - wanted).abs() < 1e-6, "{rate}, not {wanted}");
    for decay in ["cosine", "linear", "step", "constant", "inverse-sqrt"] {
        let rates = rates(decay);
        near(rates[0], 0.01 / 3.0);
        near(rates[2], 0.01);
        assert!(rates[2..].is_sorted_by(|before, after| after <= before), "{decay}: {rates:?}");
        let [middle, last] = [rates[16], rates[29]];
        match decay {
            "constant" => near(last, 0.01),
            "step" => assert!(last < middle && middle < 0.01 && middle == rates[15], "{rates:?}"),
            "inverse-sqrt" => assert!(last < middle && last > 0.002, "{rates:?}"),
            _ => assert!(middle > 0.004 && last < 0.001, "{decay}: {rates:?}"),
        }
    }
}

#[test]
fn quiet_says_nothing_and_odd_lengths_run() {
    let place = Place::new();
    for flags in [
        "--steps 1",
        "--steps 1 --optimizer one-bit-adam",
        "--steps 2 --workers 5",
        "--steps 3 --eval-every 100 --checkpoint-every 100",
        "--steps 3 --warmup 100 --decay constant",
        "--steps 3 --lr 0 --context 1",
    ] {
        let network =
            if flags.contains("--context") { NETWORK.replace("--context 16", "") } else { NETWORK.to_owned() };
        let ran = place.thinwire(&format!("train {network} {flags} --quiet --out run --overwrite")).succeeds();
        assert_eq!((ran.stdout, ran.stderr), (String::new(), String::new()), "{flags}");
    }
}

#[test]
fn a_finished_run_is_not_replaced_unasked() {
    let place = Place::new();
    let first: Value = place.train("--out run --seed 1");
    let again = format!("train {NETWORK} --steps 30 --out run --seed 2 --quiet --json");
    let before = place.read("run/metrics.jsonl");
    place.thinwire(&again).refused(&["run holds a finished run", "--out", "--overwrite", "--resume run --steps"]);
    assert_eq!(place.read("run/metrics.jsonl"), before);
    let second = place.thinwire(&format!("{again} --overwrite")).json();
    assert_ne!(first["digest"], second["digest"]);
    assert_eq!(place.step_metrics("run").len(), 30);
}

#[test]
fn the_default_folder_is_numbered_once_a_finished_run_has_it() {
    let place = Place::new();
    let digest = |run: &str| {
        let summary: Value = serde_json::from_str(&place.read(format!("runs/{run}/summary.json"))).unwrap();
        summary["digest"].clone()
    };
    let first = place.train("--seed 1");
    let second = place.train("--seed 2");
    place.train("--seed 3");
    assert_eq!(digest("gpt-zero-one-adam"), first["digest"]);
    assert_eq!(digest("gpt-zero-one-adam-2"), second["digest"]);
    assert!(place.path("runs/gpt-zero-one-adam-3/summary.json").is_file());
    let replaced = place.train("--seed 4 --overwrite");
    assert_eq!(digest("gpt-zero-one-adam"), replaced["digest"], "--overwrite is of the folder without a number");
    let line = format!("compare {NETWORK} --steps 5 --optimizers adam --quiet");
    place.thinwire(&line).succeeds();
    place.thinwire(&line).succeeds();
    assert!(place.path("runs/compare-gpt-2/adam/summary.json").is_file());
    let other = format!("compare {NETWORK} --steps 5 --optimizers zero-one-adam --quiet --out runs/compare-gpt");
    place.thinwire(&other).refused(&["a finished comparison", "--overwrite"]);
}

#[test]
fn nobody_reading_is_no_panic() {
    if !std::path::Path::new("/dev/full").exists() {
        return; // only Linux has a file that refuses everything
    }
    let place = Place::new();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let line = format!("train {NETWORK} --steps 3 --json --out run --overwrite");
    let command = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_thinwire"));
        command.args(line.split_whitespace()).current_dir(place.path(""));
        command
    };
    let output = command().stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("error: standard output"));
    let output = command().stderr(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "a run does not die of a log that nobody takes");
    assert!(serde_json::from_slice::<Value>(&output.stdout).is_ok());
}

#[test]
fn the_files_of_a_folder_are_listed() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("books/more")).unwrap();
    for (name, text) in [("books/b.txt", "to be, or not to be; "), ("books/more/a.md", "that is the question; ")] {
        place.write(name, text.repeat(200));
    }
    place.write("books/notes.log", "not this one");
    let line = format!("train {NETWORK} --steps 3 --workers 2 --data books --out run --json");
    let ran = place.thinwire(&line).succeeds();
    assert!(ran.stderr.contains("data      2 files: b.txt, more/a.md\n"), "{}", ran.stderr);
    assert_eq!(ran.json()["data_files"], serde_json::json!(["b.txt", "more/a.md"]));
}

/// An optimizer that measures tensors is told of the network's, by whoever knows them.
#[test]
fn an_optimizer_that_measures_tensors_knows_the_networks() {
    let place = Place::new();
    let summary = place.train("--optimizer one-bit-lamb --set warmup=3 --workers 2 --out run");
    let manifest: Value = serde_json::from_str(&place.read("run/checkpoint/manifest.json")).expect("JSON");
    let lengths =
        manifest["config"]["tensors"].as_array().expect("a list").iter().map(|length| length.as_u64().unwrap());
    let lengths = lengths.collect::<Vec<_>>();
    assert!(lengths.len() > 5, "{lengths:?}");
    assert_eq!(Some(lengths.iter().sum()), summary["params"].as_u64());
}

/// Notes between two steps let a late mean arrive, and what it sends then counts too.
#[test]
fn late_means_are_counted_as_planned() {
    let place = Place::new();
    for (run, options) in
        [("local", "local-adam --set sync_every=6 --set delay=4"), ("co2", "co2 --set sync_every=4 --set delay=4")]
    {
        let summary = place.train(&format!("--workers 3 --eval-every 7 --out {run} --optimizer {options}"));
        for field in ["bytes_sent_per_worker", "rounds"] {
            assert_eq!(summary[field], summary["planned"][field], "{run}: {field}");
        }
    }
}
