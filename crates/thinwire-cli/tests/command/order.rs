//! `--order cd-grab`: batches in an order that comes from gradients, and goes on bit for bit.

use crate::helper::{NETWORK, Place, in_the_middle, text};

/// So short that a run sees it many times: an odd number of batches for each of three workers.
fn short_text(place: &Place) {
    let words = (0..900).map(|word| format!("{} ", ["tree", "of", "old", "rain", "and", "sky"][word * word % 7 % 6]));
    place.write("text.txt", words.collect::<String>());
}

#[test]
fn a_killed_run_goes_on_in_the_same_order() {
    let place = Place::new();
    short_text(&place);
    // Three batches a step: a step may end between the two of a pair, and an epoch in the middle of a step.
    let line = format!(
        "train {NETWORK} --data text.txt --order cd-grab --steps 300 --workers 3 --accumulate 3 --checkpoint-every 5 --optimizer adam \
         --quiet --json --out"
    );
    let whole = place.thinwire(&format!("{line} whole")).json();
    let mut child = place.start(&format!("{line} parts"));
    in_the_middle(&place, &mut child, "parts/checkpoint/manifest.json");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!place.path("parts/summary.json").exists(), "it was to be killed in the middle");
    let resumed = place.thinwire("train --resume parts --json --quiet").json();
    assert_eq!(resumed["digest"], whole["digest"]);
    assert_eq!(place.timeless_metrics("parts"), place.timeless_metrics("whole"));

    let orders = std::fs::read_dir(place.path("parts/checkpoint")).unwrap().map(|file| file.unwrap().file_name());
    let mut orders = orders.filter(|name| name.to_string_lossy().starts_with("order-")).collect::<Vec<_>>();
    orders.sort();
    assert_eq!(orders, ["order-0-300.json", "order-1-300.json", "order-2-300.json"], "older ones are gone");
    assert!(!place.read("parts/checkpoint/order-0-300.json").contains(r#""epoch":0"#), "several epochs");

    let random = place.thinwire(&format!("{line} random --order random").replacen(" --order cd-grab", "", 1)).json();
    assert_ne!(text(&random["digest"]), text(&whole["digest"]));
}

#[test]
fn what_cannot_be_is_refused() {
    let place = Place::new();
    place.thinwire("train --order best").refused(&["--order best", "random", "cd-grab"]);
    short_text(&place);
    let line =
        format!("train {NETWORK} --data text.txt --order cd-grab --steps 8 --workers 2 --quiet --json --out run");
    place.thinwire(&line).succeeds();
    std::fs::remove_file(place.path("run/checkpoint/order-1-8.json")).unwrap();
    let resumed = place.thinwire("train --resume run --steps 9");
    assert!(resumed.code != Some(0) && resumed.stderr.contains("order-1-8.json"), "{}", resumed.stderr);
    place.write("cd-grab.toml", "order = \"cd-grab\"");
    place.thinwire("serve --config cd-grab.toml --listen 127.0.0.1:0").refused(&["order = cd-grab", "random"]);
    place.thinwire("serve --order cd-grab --listen 127.0.0.1:0").refused(&["--order"]);
}
