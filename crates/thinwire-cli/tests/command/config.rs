//! `--config` and `--set`: the same words as the flags', and nothing taken in silence.

use crate::helper::{NETWORK, OPTIMIZERS, Place, text};

#[test]
fn the_config_of_a_run_makes_it_again() {
    let place = Place::new();
    for optimizer in OPTIMIZERS {
        let flags = format!(
            "--optimizer {optimizer} --workers 3 --seed 9 --clip 0.5 --decay linear --floor 0.1 --out first --overwrite"
        );
        let first = place.digest(&flags);
        let config = place.read("first/config.toml");
        let again = place.thinwire("train --config first/config.toml --out again --overwrite --json --quiet").json();
        assert_eq!(text(&again["digest"]), first, "{optimizer}");
        assert_eq!(place.read("again/config.toml"), config, "{optimizer}");
        assert!(!config.contains("out ="), "the file would send another run over this one");
    }
}

#[test]
fn flags_count_more_than_the_file() {
    let place = Place::new();
    place.write("a.toml", "seed = 3\nworkers = 2\nsteps = 5\n[optimizer]\nname = \"adam\"\n");
    let line = format!("train {NETWORK} --config a.toml --seed 4 --optimizer efficient-adam --out run --json --quiet");
    let summary = place.thinwire(&line).json();
    assert_eq!((&summary["seed"], &summary["workers"], &summary["steps"]), (&4.into(), &2.into(), &5.into()));
    assert_eq!(summary["optimizer"], "efficient-adam");
}

#[test]
fn set_reaches_the_optimizer() {
    let place = Place::new();
    let plain = place.train("--set freeze=3 --out plain");
    let set = place.train("--set freeze=3 --set kappa=4 --set codec=uniform4 --out set");
    let config = place.read("set/config.toml");
    for word in ["kappa = 4", "codec_up = \"uniform4\"", "codec_down = \"uniform4\""] {
        assert!(config.contains(word), "{config}");
    }
    assert_ne!(set["digest"], plain["digest"]);
    assert!(set["bytes_sent_per_worker"].as_u64() > plain["bytes_sent_per_worker"].as_u64(), "4 bits for 1");
}

#[test]
fn a_bad_file_is_refused_by_its_word() {
    let place = Place::new();
    for (file, words) in [
        ("stepz = 3", ["stepz", "`steps`"]),
        ("steps = \"many\"", ["many", "steps"]),
        ("steps = 3.5", ["3.5", "steps"]),
        ("steps = 0", ["steps = 0", "at least 1"]),
        ("workers = -1", ["-1", "workers"]),
        ("task = \"poems\"", ["poems", "`gpt`, `bert`, `images`"]),
        ("decay = \"slow\"", ["slow", "`cosine`"]),
        ("optimizer = \"adam\"", ["adam", "optimizer"]),
        ("steps =", ["steps", "line 1"]),
        ("[optimizer]\nname = \"sgd\"", ["sgd", "zero-one-adam"]),
        ("[optimizer]\nkapa = 3", ["kapa", "`kappa`"]),
        ("[optimizer]\nkappa = \"x\"", ["kappa", "u64"]),
        ("[optimizer]\nkappa = 0", ["kappa = 0", "at least 1"]),
        ("[optimizer]\ncodec = \"uniform9\"", ["uniform9", "uniform2 to uniform8"]),
        ("[optimizer]\nclip = 1.0", ["optimizer.clip", "outside of [optimizer]"]),
        ("[optimizer]\nname = \"adam\"\nkappa = 4", ["kappa = 4", "zero-one-adam"]),
    ] {
        place.write("bad.toml", file);
        place.thinwire("train --config bad.toml --out run").refused(&words);
        assert!(!place.path("run").exists(), "{file}");
    }
    place.thinwire("train --config missing.toml").refused(&["missing.toml"]);
}

/// What was derived from the old steps is derived from the new ones; what was given stays.
#[test]
fn other_steps_derive_the_rest_anew() {
    let place = Place::new();
    place.train("--out first --set kappa=4");
    place.train("--out given --warmup 7 --eval-every 11");
    let steps = |from: &str, flags: &str, out: &str| {
        place.thinwire(&format!("train --config {from}/config.toml {flags} --quiet --out {out}")).succeeds();
        let config: toml::Table = place.read(format!("{out}/config.toml")).parse().unwrap();
        config
    };
    let number = |config: &toml::Table, word: &str| config[word].as_integer().unwrap();
    let longer = steps("first", "--steps 60", "longer");
    assert_eq!(["steps", "warmup", "eval_every"].map(|word| number(&longer, word)), [60, 6, 6]);
    assert_eq!(longer["optimizer"]["kappa"].as_integer(), Some(4), "it was given");
    let fresh = format!("train {NETWORK} --steps 60 --set kappa=4 --quiet --out fresh");
    place.thinwire(&fresh).succeeds();
    assert_eq!(place.read("longer/config.toml"), place.read("fresh/config.toml"));
    assert_eq!(place.timeless_metrics("longer"), place.timeless_metrics("fresh"));
    let shorter = steps("given", "--steps 20", "shorter");
    assert_eq!(["steps", "warmup", "eval_every"].map(|word| number(&shorter, word)), [20, 7, 11]);
    let again = steps("longer", "--steps 30", "again");
    assert_eq!(again, place.read("first/config.toml").parse::<toml::Table>().unwrap());
    // What was derived for one optimizer is not for another.
    let other = steps("given", "--optimizer efficient-adam", "other");
    assert_eq!(other["lr"].as_float(), Some(8e-3));
}

#[test]
fn a_file_of_before_what_was_given_was_told_still_loads() {
    let place = Place::new();
    place.train("--out first");
    let (config, _) =
        place.read("first/config.toml").split_once("\n[given]").map(|(a, b)| (a.to_owned(), b.len())).unwrap();
    place.write("old.toml", config);
    let ran = place.thinwire("train --config old.toml --steps 40 --out run --json").succeeds();
    assert!(ran.stderr.contains("note: old.toml does not say which settings were derived"), "{}", ran.stderr);
    assert!(place.read("run/config.toml").contains("warmup = 3\n"));
    place.thinwire("train --config old.toml --steps 2 --out short").refused(&["warmup = 3", "fewer than the 2 steps"]);
}
