//! From run folders to a page, for runs that went well and runs that did not.

use std::fs;
use std::path::PathBuf;

use super::*;
use fake::{run, save};

const OPTIMIZERS: [&str; 4] = ["adam", "one-bit-adam", "zero-one-adam", "efficient-adam"];

/// An empty folder of this test's own.
fn folder(test: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("thinwire-report-{test}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// The page of `runs`, after looking at it and its plots for what no report may contain.
fn page(test: &str, runs: &[Run]) -> String {
    let dir = folder(test);
    let written = write(runs, &dir.join("report.html"), 1e9).unwrap();
    let texts: Vec<String> = written.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    for (path, text) in written.iter().zip(&texts) {
        for bad in ["NaN", "inf ", "inf\"", "-inf", "http://", "https://"] {
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains(bad), "{}: {bad}", path.display());
        }
    }
    for svg in &texts[1..] {
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n") && !svg.contains("var(--"));
    }
    fs::remove_dir_all(dir).unwrap();
    texts.into_iter().next().unwrap()
}

#[test]
fn a_comparison_is_found_below_its_folder_and_reported() {
    let dir = folder("comparison");
    for optimizer in OPTIMIZERS {
        save(&run(optimizer, 300), &dir.join(optimizer));
    }
    let runs = find(std::slice::from_ref(&dir)).unwrap();
    assert_eq!(runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>(), OPTIMIZERS);
    assert_eq!(runs[2].steps, run("zero-one-adam", 300).steps);
    let page = page("comparison-page", &runs);
    for text in
        ["Adam", "1-bit Adam", "0/1 Adam", "Efficient-Adam", "times fewer bytes", "10 Gb/s", "config.toml", "818,000"]
    {
        assert!(page.contains(text), "{text}");
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn long_runs_make_a_page_of_reasonable_size() {
    let runs: Vec<Run> = OPTIMIZERS.iter().chain(&OPTIMIZERS[..2]).map(|name| run(name, 6000)).collect();
    let size = page("long", &runs).len();
    assert!(size < 1_500_000, "{size} bytes");
}

#[test]
fn a_run_without_an_end_is_shown_as_far_as_it_got() {
    let dir = folder("torn");
    save(&run("zero-one-adam", 60), &dir);
    fs::remove_file(dir.join("summary.json")).unwrap();
    let whole = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    fs::write(dir.join("metrics.jsonl"), &whole[..whole.len() - 20]).unwrap();
    let runs = find(std::slice::from_ref(&dir)).unwrap();
    assert_eq!((runs[0].summary.is_none(), runs[0].steps.len()), (true, 60));
    assert_eq!(runs[0].optimizer, "zero-one-adam", "read from config.toml");
    assert!(page("torn-page", &runs).contains("not ended"));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_resumed_run_counts_each_step_once() {
    let dir = folder("resumed");
    save(&run("adam", 40), &dir);
    let text = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let again: Vec<&str> = text.lines().skip(20).collect();
    fs::write(dir.join("metrics.jsonl"), format!("{text}{}\n", again.join("\n"))).unwrap();
    let runs = find(std::slice::from_ref(&dir)).unwrap();
    assert_eq!(runs[0].steps, run("adam", 40).steps);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn errors_say_what_is_wrong_and_where() {
    let dir = folder("errors");
    let message = |dir: &PathBuf| format!("{:#}", find(std::slice::from_ref(dir)).unwrap_err());
    assert!(message(&dir).contains("metrics.jsonl is neither here nor one folder below (a run folder is"));
    assert!(message(&dir.join("nowhere")).contains("nowhere"));
    save(&run("adam", 10), &dir);
    let text = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    fs::write(dir.join("metrics.jsonl"), text.replacen("\"loss\"", "\"lass\"", 3)).unwrap();
    let said = message(&dir);
    assert!(said.contains("metrics.jsonl: line 2 is malformed: missing field `loss`"), "{said}");
    save(&run("adam", 10), &dir);
    fs::write(dir.join("summary.json"), "{}").unwrap();
    assert!(message(&dir).contains("summary.json is malformed"));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_diverged_run_survives_its_files() {
    let dir = folder("diverged");
    let mut bad = run("one-bit-adam", 100);
    for step in &mut bad.steps[50..] {
        step.loss = f64::NAN;
    }
    bad.evals.last_mut().unwrap().val_loss = f64::INFINITY;
    bad.summary.as_mut().unwrap().train_loss = f64::NAN;
    bad.summary.as_mut().unwrap().val_loss = f64::NAN;
    save(&bad, &dir);
    let runs = find(std::slice::from_ref(&dir)).unwrap();
    assert!(runs[0].steps[60].loss.is_nan() && runs[0].summary.as_ref().unwrap().val_loss.is_nan());
    assert!(page("diverged-page", &[run("adam", 100), runs[0].clone()]).contains("but diverged"));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn names_are_text() {
    let mut odd = run("adam", 20);
    odd.name = "<script>&\"'".to_string();
    odd.optimizer = odd.name.clone();
    odd.config = Some("</pre><b>".to_string());
    odd.summary.as_mut().unwrap().task = "<i>task".to_string();
    let page = page("names", &[odd.clone(), odd]);
    assert!(!page.contains("<script>&") && !page.contains("</pre><b>") && !page.contains("<i>task"));
}

#[test]
fn strange_runs_make_a_page_too() {
    let whole = run("zero-one-adam", 30);
    let change = |change: &dyn Fn(&mut Run)| {
        let mut run = whole.clone();
        change(&mut run);
        run
    };
    let nothing_sent = |run: &mut Run| {
        run.steps.iter_mut().for_each(|step| (step.bytes, step.bytes_total, step.round) = (0.0, 0.0, "skipped".into()));
        let end = run.summary.as_mut().unwrap();
        (end.workers, end.bytes_sent_per_worker, end.bits_per_param_per_step) = (1, 0, 0.0);
    };
    let strange = [
        change(&|run| (run.steps, run.evals, run.summary) = (vec![], vec![], None)),
        change(&|run| (run.steps, run.evals) = (vec![], vec![])),
        change(&|run| run.evals.clear()),
        change(&|run| run.steps.truncate(1)),
        change(&|run| {
            run.steps.truncate(1);
            (run.evals, run.summary) = (vec![], None);
        }),
        change(&|run| run.steps.iter_mut().for_each(|step| step.loss = f64::NAN)),
        change(&|run| run.steps.iter_mut().for_each(|step| step.loss = 1.0)),
        change(&|run| run.steps.iter_mut().for_each(|step| step.loss *= 1e300)),
        change(&|run| run.steps.iter_mut().for_each(|step| step.seconds = Default::default())),
        change(&|run| run.summary.as_mut().unwrap().seconds = Default::default()),
        change(&nothing_sent),
        run("something new", 3),
    ];
    for (at, run) in strange.iter().enumerate() {
        page(&format!("strange-{at}"), std::slice::from_ref(run));
    }
    assert!(page("nothing-sent", &strange[10..11]).contains("no data: nothing was sent"));
    page("all-strange", &strange);
    page("none", &[]);
}
