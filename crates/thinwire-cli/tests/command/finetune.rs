//! A bert is pre-trained, and then taught to tell two kinds of sentences apart.

use crate::helper::{NETWORK, Place, number};

/// Sentences that one letter tells apart.
fn separable() -> String {
    let line = |i: usize| match i % 2 {
        0 => format!("{}\t0\n", "a".repeat(3 + i % 7)),
        _ => format!("{}\t1\n", "z".repeat(3 + i % 5)),
    };
    "sentence\tlabel\n".to_owned() + &(0..200).map(line).collect::<String>()
}

#[test]
fn a_bert_is_pre_trained_then_fine_tuned() {
    let place = Place::new();
    place.write("sentences.tsv", separable());
    place.train("--task bert --out before");
    let tune = "--task bert --finetune sentences.tsv --workers 2 --lr 0.01 --optimizer adam";
    let summary = place.train(&format!("{tune} --from before --out after"));
    assert_eq!(summary["unit"], "sentences");
    assert!(number(&summary["accuracy"]) > 0.9, "{}", summary["accuracy"]);
    assert!(number(&summary["matthews"]) > 0.8, "{}", summary["matthews"]);
    let scratch = place.train(&format!("{tune} --out scratch"));
    assert_ne!(scratch["digest"], summary["digest"], "--from counts");
    let first = |run| number(&place.step_metrics(run)[0]["loss"]);
    assert!((first("after") - 2f64.ln()).abs() < 0.5, "two classes, and nothing known: {}", first("after"));

    // The default folder is not that of the pre-trained run.
    place.train("--task bert");
    place.train(&format!("{tune} --from runs/bert-zero-one-adam"));
    assert!(place.path("runs/bert-zero-one-adam/summary.json").is_file());
    assert!(place.path("runs/bert-finetune-adam/summary.json").is_file());

    let other = NETWORK.replace("--dim 16", "--dim 32");
    place.thinwire(&format!("train {other} --steps 5 {tune} --from before --out other")).refused(&["parameters"]);
    assert!(!place.path("other").exists());
}
