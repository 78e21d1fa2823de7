//! `generate`: the same seed writes the same text, and what is asked for is what is drawn.

use crate::helper::{Place, number, text};
use serde_json::Value;

fn generate(place: &Place, flags: &str) -> Value {
    place.thinwire(&format!("generate run --json --prompt To {flags}")).json()
}

fn tokens(generated: &Value) -> Vec<usize> {
    let list = generated["tokens"].as_array().expect("a list");
    list.iter().map(|token| number(token) as usize).collect()
}

#[test]
fn a_seed_decides_the_text() {
    let place = Place::new();
    place.train("--workers 2 --out run");
    let first = generate(&place, "--tokens 40 --seed 5");
    assert_eq!(generate(&place, "--tokens 40 --seed 5"), first);
    assert_ne!(generate(&place, "--tokens 40 --seed 6")["tokens"], first["tokens"]);
    assert_eq!(tokens(&first).len(), 40);
    assert_eq!(first["prompt_tokens"], serde_json::json!([b'T', b'o']));
    // It is also longer than the context of 16 tokens, and begins the same when it is to be shorter.
    assert_eq!(tokens(&generate(&place, "--tokens 7 --seed 5")), tokens(&first)[..7]);
    let plain = place.thinwire("generate run --prompt To --tokens 40 --seed 5").succeeds().stdout;
    assert_eq!(plain, format!("To{}\n", text(&first["text"])));
}

#[test]
fn choices_are_among_the_likeliest() {
    let place = Place::new();
    place.train("--workers 1 --out run");
    let likeliest = generate(&place, "--tokens 20 --temperature 0");
    assert_eq!(generate(&place, "--tokens 20 --temperature 0 --seed 9")["tokens"], likeliest["tokens"]);
    assert_eq!(generate(&place, "--tokens 20 --temperature 5 --top-k 1")["tokens"], likeliest["tokens"]);
    let free = generate(&place, "--tokens 20 --temperature 5");
    assert_ne!(free["tokens"], likeliest["tokens"]);

    let shown = generate(&place, "--logits --tokens 1 --temperature 0");
    let rows = shown["logits"].as_array().expect("a list");
    assert_eq!(rows.len(), 2, "one for each token of the prompt");
    let last = rows[1].as_array().expect("a list").iter().map(number).collect::<Vec<_>>();
    let most = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b])).expect("a vocabulary");
    assert_eq!((last.len(), tokens(&shown)), (256, vec![most]));

    // With the three likeliest, nothing else is drawn, however hot.
    let mut order = (0..last.len()).collect::<Vec<_>>();
    order.sort_by(|a, b| last[*b].total_cmp(&last[*a]));
    let mut drawn = std::collections::BTreeSet::new();
    for seed in 0..30 {
        drawn.extend(tokens(&generate(&place, &format!("--tokens 1 --temperature 50 --top-k 3 --seed {seed}"))));
    }
    assert_eq!(drawn, order[..3].iter().copied().collect());
}

#[test]
fn what_cannot_write_is_refused() {
    let place = Place::new();
    place.train("--workers 1 --out run");
    place.thinwire("generate missing").refused(&["missing", "no such folder"]);
    place.thinwire("generate run --temperature -1").refused(&["-1", "at least 0"]);
    place.thinwire("generate run --top-k 0").refused(&["--top-k"]);
    place.thinwire("generate run --prompt=").refused(&["--prompt", "at least one letter"]);
    let long = "a".repeat(17);
    place.thinwire(&format!("generate run --json --logits --prompt {long}")).refused(&["at most 16", "found 17"]);
    let config = place.read("run/config.toml");
    place.write("run/config.toml", config.replace("layers = 1", "layers = 2"));
    place.thinwire("generate run").refused(&["expected", "parameters by config.toml"]);
    std::fs::remove_file(place.path("run/config.toml")).unwrap();
    place.thinwire("generate run").refused(&["config.toml", "found none"]);
    let line = format!("train {} --task bert --steps 2 --workers 1 --out other --quiet", crate::helper::NETWORK);
    place.thinwire(&line).succeeds();
    place.thinwire("generate other").refused(&["expected a run of --task gpt, found bert"]);
}
