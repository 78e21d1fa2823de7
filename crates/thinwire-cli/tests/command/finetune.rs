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

/// Pairs of sentences as MRPC has them, one of them long.
fn pairs(long: usize) -> String {
    let line = |i: usize| match i {
        7 => format!("{}\t{}\t1\n", "a".repeat(long), "b".repeat(40)),
        _ => format!("{}\t{}\t{}\n", "a".repeat(60), "z".repeat(35), usize::from(!i.is_multiple_of(4))),
    };
    "sentence1\tsentence2\tlabel\n".to_owned() + &(0..100).map(line).collect::<String>()
}

/// A network as small as [`NETWORK`]'s, whose context the data chooses.
const ANY_CONTEXT: &str = "--layers 1 --dim 16 --heads 2 --batch 2 --steps 3 --workers 2";

#[test]
fn the_context_fits_the_sentences() {
    let place = Place::new();
    place.write("pairs.tsv", pairs(90));
    let tune = format!("train {ANY_CONTEXT} --task bert --finetune pairs.tsv --json");
    let ran = place.thinwire(&format!("{tune} --out fits")).succeeds();
    assert!(ran.stderr.contains("136 tokens: all 100 examples fit, the longest has 133"), "{}", ran.stderr);
    assert!(ran.stderr.contains("data      pairs.tsv"), "{}", ran.stderr);
    assert!(ran.stderr.contains("is the most frequent class)"), "{}", ran.stderr);
    assert!(place.read("fits/config.toml").contains("context = 136"));
    assert!(place.read("fits/report.html").contains("largest class"));
    let summary = ran.json();
    assert_eq!((&summary["cut"]["examples"], &summary["cut"]["of"]), (&0.into(), &100.into()));
    assert_eq!(summary["data_files"][0], "pairs.tsv");
    assert!((0.5..1.0).contains(&number(&summary["majority"])), "{}", summary["majority"]);

    // No longer than BERT's own; what is cut is told of.
    place.write("pairs.tsv", pairs(900));
    let ran = place.thinwire(&format!("{tune} --out long")).succeeds();
    let words = "1 of 100 examples are longer than the context of 512 tokens (up to 943)";
    assert!(ran.stderr.contains(words) && ran.stderr.contains("--context"), "{}", ran.stderr);
    assert_eq!(ran.json()["cut"]["examples"], 1);
    let ran = place.thinwire(&format!("{tune} --context 64 --out given")).succeeds();
    assert!(ran.stderr.contains("100 of 100 examples are longer than the context of 64 tokens"), "{}", ran.stderr);

    // A pre-trained network knows the positions that it was trained on.
    place.thinwire(&format!("train {ANY_CONTEXT} --context 32 --task bert --quiet --out before")).succeeds();
    let ran = place.thinwire(&format!("{tune} --from before --out after")).succeeds();
    assert!(ran.stderr.contains("context of 32 tokens") && ran.stderr.contains("pre-train"), "{}", ran.stderr);
    let line =
        format!("compare {ANY_CONTEXT} --task bert --finetune pairs.tsv --optimizers adam,zero-one-adam --out all");
    assert!(place.thinwire(&line).succeeds().stdout.contains("largest class"));
}

#[test]
fn regression_is_refused_by_its_name() {
    let place = Place::new();
    let rows =
        |head: &str| format!("{head}\n") + &(0..20).map(|i| format!("a{i}\tb{i}\t{}.25\n", i % 5)).collect::<String>();
    for head in ["sentence1\tsentence2\tscore", "sentence1\tsentence2\tlabel"] {
        place.write("sts-b.tsv", rows(head));
        place.thinwire("train --task bert --finetune sts-b.tsv").refused(&["sts-b.tsv", "regression", "not supported"]);
    }
}
