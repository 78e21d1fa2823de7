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
    let plain = place.train("--out plain");
    let set = place.train("--set kappa=4 --set codec=uniform4 --out set");
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
        ("[optimizer]\nname = \"sgd\"", ["sgd", "`zero-one-adam`"]),
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
