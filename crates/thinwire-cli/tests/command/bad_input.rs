//! What cannot run is refused before anything starts: exit code 2, one message, and no folder.

use crate::helper::{NETWORK, Place};

/// `flags` beside the small network's, but for those that they give themselves.
fn refused(place: &Place, flags: &str, words: &[&str]) {
    let mut line = "train --quiet --out run".to_owned();
    let network = format!("{NETWORK} --steps 30");
    let pairs = network.split_whitespace().collect::<Vec<_>>();
    for pair in pairs.chunks(2).filter(|pair| !flags.split_whitespace().any(|flag| flag == pair[0])) {
        if !flags.contains("images") || pair[0] == "--steps" {
            line += &format!(" {} {}", pair[0], pair[1]);
        }
    }
    place.thinwire(&format!("{line} {flags}")).refused(words);
    assert!(!place.path("run").exists(), "{flags}: a folder was left");
}

#[test]
fn data_that_is_none() {
    let place = Place::new();
    place.write("empty.txt", "");
    place.write("noise.bin", (0..4000u32).map(|i| (i * i % 251) as u8).collect::<Vec<_>>());
    place.write("short.txt", "to be or not to be, that is the question");
    place.write("text.txt", "to be or not to be, that is the question\n".repeat(100));
    std::fs::create_dir(place.path("folder")).unwrap();
    for (flags, words) in [
        ("--data missing.txt", ["missing.txt", "no such file"]),
        ("--data empty.txt", ["empty.txt", "empty"]),
        ("--data folder", ["folder", "no text"]),
        ("--data noise.bin", ["noise.bin", "not look like text"]),
        ("--data short.txt", ["context = 16", "too little text"]),
        ("--data text.txt --workers 500", ["500 workers", "too little text"]),
        ("--task images --data text.txt", ["text.txt", "not images"]),
        ("--task images --data missing", ["missing", "no such file"]),
        ("--task bert --finetune missing.tsv", ["missing.tsv", "no such file"]),
        ("--task bert --finetune text.txt", ["text.txt", "columns"]),
        ("--from missing", ["missing", "checkpoint"]),
    ] {
        refused(&place, flags, &words);
    }
}

#[test]
fn words_that_are_none() {
    let place = Place::new();
    for (flags, words) in [
        ("--task poems", ["--task", "`gpt`, `bert`, `images`"]),
        ("--optimizer sgd", ["--optimizer", "zero-one-adam"]),
        ("--decay slow", ["--decay", "`cosine`"]),
        ("--size huge", ["--size", "`tiny` or `small`"]),
        ("--transport pigeon", ["--transport", "`threads`"]),
        ("--tokenizer words", ["--tokenizer", "`bytes`"]),
        ("--stpes 30", ["--stpes", "--steps"]),
        ("--set kappa", ["--set kappa", "OPTION=VALUE"]),
        ("--set kapa=4", ["kapa", "`kappa`"]),
        ("--set kappa=many", ["kappa", "many"]),
        ("--set codec=uniform9", ["codec", "uniform2 to uniform8"]),
        ("--set betas=[0.9]", ["betas", "two numbers"]),
        ("--set clip=1", ["optimizer.clip", "outside of [optimizer]"]),
        ("--finetune a.tsv", ["--finetune", "--task bert"]),
        ("--finetune-eval a.tsv", ["--finetune-eval", "--finetune"]),
        ("--task images --heads 2", ["--heads", "gpt and bert"]),
    ] {
        refused(&place, flags, &words);
    }
}

#[test]
fn numbers_out_of_range() {
    let place = Place::new();
    for (flags, words) in [
        ("--workers 0", ["workers = 0", "at least 1"]),
        ("--workers 1025", ["workers = 1025", "at most 1024"]),
        ("--heads 3", ["heads = 3", "dim = 16"]),
        ("--heads 0", ["heads = 0", "at least 1"]),
        ("--dim 0", ["dim = 0", "at least 1"]),
        ("--layers 0", ["layers = 0", "at least 1"]),
        ("--task images --dim 4", ["dim = 4", "multiple of 8"]),
        ("--task images --layers 0", ["layers = 0", "at least 1"]),
        ("--context 0", ["context = 0", "at least 1"]),
        ("--batch 0", ["batch = 0", "at least 1"]),
        ("--accumulate 0", ["accumulate = 0", "at least 1"]),
        ("--eval-every 0", ["eval_every = 0", "at least 1"]),
        ("--steps 0", ["steps = 0", "at least 1"]),
        ("--steps -1", ["'-1'", "--steps"]),
        ("--steps 18446744073709551615", ["steps = 18446744073709551615", "at most"]),
        ("--batch 18446744073709551615", ["batch = 18446744073709551615", "at most"]),
        ("--accumulate 18446744073709551615", ["accumulate = 18446744073709551615", "at most"]),
        ("--dim 18446744073709551614", ["dim = 18446744073709551614", "at most"]),
        ("--layers 1000000000000", ["layers = 1000000000000", "at most"]),
        ("--eval-every 18446744073709551615", ["eval_every = 18446744073709551615", "at most"]),
        ("--steps many", ["'many'", "--steps"]),
        ("--warmup 30", ["warmup = 30", "fewer than the 30 steps"]),
        ("--lr -1", ["lr = -1", "at least 0"]),
        ("--lr nan", ["lr = NaN", "at least 0"]),
        ("--floor 1.5", ["floor = 1.5", "0 to 1"]),
        ("--clip 0", ["clip = 0", "above 0"]),
        ("--weight-decay -1", ["weight_decay = -1", "at least 0"]),
        ("--seed -1", ["'-1'", "--seed"]),
    ] {
        refused(&place, flags, &words);
    }
}

#[test]
fn a_place_that_cannot_be_written() {
    let place = Place::new();
    place.write("file", "not a folder");
    for out in ["file", "file/run"] {
        place.thinwire(&format!("train {NETWORK} --steps 3 --out {out}")).refused(&[out]);
    }
    assert_eq!(place.read("file"), "not a folder");
}

#[test]
fn a_mistake_costs_no_finished_run() {
    let place = Place::new();
    place.train("--out run");
    let summary = place.read("run/summary.json");
    for flags in ["--from missing", "--from run", "--from run --dim 32", "--heads 3", "--data missing.txt"] {
        let network = NETWORK.replace(if flags.contains("dim") { "--dim 16" } else { "--heads 2" }, "");
        place.thinwire(&format!("train {network} --steps 30 {flags} --out run")).refused(&[]);
        assert_eq!(place.read("run/summary.json"), summary, "{flags}");
        assert!(place.path("run/checkpoint/manifest.json").is_file(), "{flags}");
    }
}
