//! `inspect`: what it says is what the run says, and a damaged checkpoint is not shown.

use crate::helper::{Place, number, text};
use serde_json::Value;

fn tensor<'a>(list: &'a Value, name: &str) -> &'a Value {
    let found = list.as_array().expect("a list").iter().find(|tensor| tensor["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list}"))
}

/// The file of a worker's state.
fn file(place: &Place, inspected: &Value, worker: usize) -> std::path::PathBuf {
    place.path("run/checkpoint").join(text(&inspected["files"][worker]["name"]))
}

#[test]
fn a_checkpoint_is_what_the_run_left() {
    let place = Place::new();
    let summary = place.train("--workers 2 --out run");
    let inspected = place.thinwire("inspect run --json").json();
    for (field, value) in [("step", 30), ("workers", 2)] {
        assert_eq!(inspected[field], value, "{field}");
    }
    assert_eq!(inspected["parameters"], summary["params"]);
    assert_eq!(inspected["digest"], summary["digest"]);
    assert_eq!((text(&inspected["optimizer"]), text(&inspected["task"])), ("zero-one-adam".into(), "gpt".into()));
    assert_eq!(inspected["options"]["name"], "zero-one-adam");

    let layers = inspected["network"].as_array().expect("a list");
    assert_eq!(tensor(&inspected["network"], "token.weight")["shape"], serde_json::json!([256, 16]));
    let values = layers.iter().map(|layer| number(&layer["values"])).sum::<f64>();
    assert_eq!(values, number(&summary["params"]));
    // The parts of a vector have its norm together, and both are read in different ways.
    let squares = layers.iter().map(|layer| number(&layer["norm"]).powi(2)).sum::<f64>();
    let state = &inspected["files"][0]["tensors"];
    let norm = number(&tensor(state, "params")["norm"]);
    assert!(norm > 0.0 && (squares.sqrt() - norm).abs() < 1e-9 * norm, "{} and {norm}", squares.sqrt());
    assert_eq!(tensor(state, "step")["value"], 30);
    for worker in 0..2 {
        let length = std::fs::metadata(file(&place, &inspected, worker)).expect("a file").len();
        assert_eq!(inspected["files"][worker]["bytes"], length);
    }

    let shown = place.thinwire("inspect run/checkpoint").succeeds().stdout;
    for word in ["step 30", "layer.0.qkv.weight", "48 × 16", "params", "up_residue", "0/1 Adam", "codec"] {
        assert!(shown.contains(word), "no {word} in\n{shown}");
    }
}

#[test]
fn every_task_has_names() {
    let place = Place::new();
    let bert = format!("{} --task bert", crate::helper::NETWORK);
    let images = "--task images --dim 8 --batch 4 --eval-examples 8".to_owned();
    for (flags, name) in [(bert, "layer.0.proj.bias"), (images, "classifier.weight")] {
        let line = format!("train {flags} --steps 2 --workers 1 --out run --overwrite --quiet");
        place.thinwire(&line).succeeds();
        tensor(&place.thinwire("inspect run --json").json()["network"], name);
    }
}

#[test]
fn what_is_missing_or_damaged_is_named() {
    let place = Place::new();
    place.train("--workers 2 --out run");
    let inspected = place.thinwire("inspect run --json").json();
    let (first, second) = (file(&place, &inspected, 0), file(&place, &inspected, 1));

    // Without its names it has parameters all the same.
    std::fs::remove_file(place.path("run/tensors.json")).unwrap();
    let unnamed = place.thinwire("inspect run --json").json();
    assert_eq!(unnamed["network"], serde_json::json!([]));
    assert_eq!(unnamed["digest"], inspected["digest"]);

    std::fs::remove_file(&second).unwrap();
    assert_eq!(place.thinwire("inspect run --json").json()["files"][1]["found"], false);
    assert!(place.thinwire("inspect run").succeeds().stdout.contains("1 of them here"));

    let mut bytes = std::fs::read(&first).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&first, bytes).unwrap();
    place.thinwire("inspect run").refused(&["worker-0-of-2", "expected the digest", "damaged"]);
    std::fs::write(&first, "short").unwrap();
    place.thinwire("inspect run").refused(&["worker-0-of-2"]);
    std::fs::remove_file(&first).unwrap();
    place.thinwire("inspect run").refused(&["expected at least one of the 2 files"]);

    place.thinwire("inspect nothing").refused(&["nothing", "no such folder"]);
    std::fs::create_dir(place.path("empty")).unwrap();
    place.thinwire("inspect empty").refused(&["empty", "manifest.json"]);
    place.write("empty/compare.json", "[]");
    place.thinwire("inspect empty").refused(&["found a comparison"]);
}
