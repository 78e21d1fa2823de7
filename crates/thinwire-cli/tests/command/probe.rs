//! `probe`: figures for every pair and every mean.

use crate::helper::{Place, number, text};

#[test]
fn pairs_and_means_are_measured() {
    let place = Place::new();
    let probed = place.thinwire("probe --workers 3 --values 50k --codecs f32,sign --repeats 2 --json --quiet").json();
    let pairs = probed["pairs"].as_array().expect("a list");
    assert_eq!(pairs.len(), 6);
    assert!(pairs.iter().all(|pair| number(&pair["latency_seconds"]) > 0.0 && number(&pair["bits_per_second"]) > 0.0));
    let means = probed["means"].as_array().expect("a list");
    assert_eq!(means.len(), 2);
    let sent = |index: usize| number(&means[index]["bytes_sent_per_worker"]);
    assert!((25.0..32.0).contains(&(sent(0) / sent(1))), "{} and {}", sent(0), sent(1));
    assert_eq!(means[0]["runs"].as_array().expect("a list").len(), 2, "the first one is not counted");
}

#[test]
fn what_cannot_be_probed_is_refused() {
    let place = Place::new();
    place.thinwire("probe --workers 1").refused(&["--workers 1", "2 to 1024"]);
    place.thinwire("probe --residuals f8").refused(&["invalid --residuals f8"]);
    place.thinwire("probe --codecs morse").refused(&["--codecs morse"]);
    place.thinwire("probe --values many").refused(&["many", "25M"]);
}

/// Before it had its name in the field it was `--residues`.
#[test]
fn the_old_name_of_residuals_is_accepted() {
    let place = Place::new();
    for flag in ["--residuals", "--residues"] {
        let line = format!("probe --workers 2 --values 10k --codecs sign {flag} bf16 --repeats 1 --json --quiet");
        let probed = place.thinwire(&line).json();
        assert_eq!(text(&probed["means"][0]["name"]), "coarse mean, sign, residual bf16", "{flag}");
    }
}
