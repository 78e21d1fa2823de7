//! schemas/: every `--json` output, the configuration and the journal are as their schema says, and the schemas say enough to be
//! wrong about.

use crate::helper::{NETWORK, Place};
use serde_json::{Value, json};
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../schemas")
}

fn schema(name: &str) -> Value {
    let path = folder().join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// What is wrong with `value` by the schema `name`.
fn problems(name: &str, value: &Value) -> Vec<String> {
    let validator = jsonschema::validator_for(&schema(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    validator.iter_errors(value).map(|error| format!("{name}: {}: {error}", error.instance_path())).collect()
}

/// `value` is as its schema says.
#[track_caller]
pub fn holds(name: &str, value: &Value) {
    let found = problems(name, value);
    assert!(found.is_empty(), "{}\n{value:#}", found.join("\n"));
}

/// The schema refuses `value` when any of its fields is missing, and when there is one more.
#[track_caller]
fn is_strict(name: &str, value: &Value, optional: &[&str]) {
    let fields = value.as_object().expect("an object");
    for field in fields.keys().filter(|field| !optional.contains(&field.as_str())) {
        let mut less = fields.clone();
        less.remove(field);
        assert!(!problems(name, &Value::Object(less)).is_empty(), "{name}: {field} may be missing");
    }
    let mut more = fields.clone();
    more.insert("surprise".to_owned(), json!(1));
    assert!(!problems(name, &Value::Object(more)).is_empty(), "{name}: anything may be added");
}

fn toml(text: &str) -> Value {
    let table: toml::Table = text.parse().expect("TOML");
    serde_json::to_value(table).expect("plain data")
}

#[test]
fn schemas_are_schemas() {
    for entry in std::fs::read_dir(folder()).expect("the folder schemas") {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let schema = schema(&name);
        jsonschema::meta::validate(&schema).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(schema["title"].is_string() && schema["$schema"].is_string(), "{name}");
    }
    let (mut train, compare) = (schema("train"), schema("compare"));
    for field in ["$schema", "title"] {
        train.as_object_mut().unwrap().remove(field);
    }
    assert_eq!(compare["$defs"]["run"], train, "a run of a comparison is a run");
}

#[test]
fn runs_and_what_they_leave() {
    let place = Place::new();
    let summary = place.train("--workers 2 --out run");
    holds("train", &summary);
    is_strict("train", &summary, &["planned"]);
    place.metrics("run").iter().for_each(|line| holds("metrics", line));
    holds("config", &toml(&place.read("run/config.toml")));

    let images =
        "train --task images --dim 8 --batch 4 --steps 3 --eval-examples 20 --workers 1 --out images --json --quiet";
    holds("train", &place.thinwire(images).json());
    place.metrics("images").iter().for_each(|line| holds("metrics", line));

    let line = format!("compare {NETWORK} --steps 3 --workers 2 --json --quiet --out all");
    let compared = place.thinwire(&line).json();
    holds("compare", &compared);
    is_strict("compare", &compared, &[]);
    for optimizer in crate::helper::OPTIMIZERS {
        holds("config", &toml(&place.read(format!("all/{optimizer}/config.toml"))));
    }

    let inspected = place.thinwire("inspect run --json").json();
    holds("inspect", &inspected);
    is_strict("inspect", &inspected, &["task", "digest"]);
    let generated = place.thinwire("generate run --tokens 3 --logits --json").json();
    holds("generate", &generated);
    is_strict("generate", &generated, &["logits"]);
}

#[test]
fn configurations_that_the_command_refuses() {
    holds("config", &json!({}));
    holds("config", &toml("task = \"gpt\"\nsteps = 3000\n[optimizer]\nname = \"zero-one-adam\"\nfreeze = \"never\""));
    for text in [
        "stpes = 3",
        "task = \"poems\"",
        "steps = -1",
        "lr = \"fast\"",
        "[optimizer]\nname = \"sgd\"",
        "[optimizer]\ncodec = \"uniform9\"",
        "[optimizer]\nfreeze = \"soon\"",
    ] {
        assert!(!problems("config", &toml(text)).is_empty(), "{text}");
        let place = Place::new();
        place.write("config.toml", text);
        place.thinwire("train --config config.toml --out run").refused(&[]);
    }
}

#[test]
fn measurements_and_plans() {
    let place = Place::new();
    let probed = place.thinwire("probe --workers 2 --values 20k --repeats 1 --json --quiet").json();
    holds("probe", &probed);
    is_strict("probe", &probed, &[]);
    let benched = place.thinwire("bench --values 20k --json --quiet").json();
    holds("bench", &benched);
    is_strict("bench", &benched, &[]);
    place.write("bench.json", benched.to_string());
    let line = "plan --params 1M --workers 4 --bandwidth 1Gb/s --compute 100ms --bench bench.json --json --quiet";
    let planned = place.thinwire(line).json();
    holds("plan", &planned);
    is_strict("plan", &planned, &[]);
    holds("plan", &place.thinwire(&format!("{line} --simulate --memory 1GB --hosts 2")).json());
    holds("plan", &place.thinwire(&line.replace("1Gb/s", "100Gb/s")).json());
}
