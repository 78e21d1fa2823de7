//! `report`: one page from the folders of runs.

use crate::helper::Place;

#[test]
fn several_folders_make_one_page() {
    let place = Place::new();
    place.train("--optimizer adam --workers 2 --out exact");
    place.train("--optimizer efficient-adam --workers 2 --out coarse");
    let ran = place.thinwire("report exact coarse --out page/both.html").succeeds();
    assert!(ran.stderr.contains("2 runs → page/both.html"), "{}", ran.stderr);
    let page = place.read("page/both.html");
    assert!(page.contains("<svg") && page.contains("Efficient-Adam"));
    assert!(place.path("page/plots").is_dir());

    std::fs::remove_file(place.path("exact/report.html")).unwrap();
    place.thinwire("report exact --bandwidth 100mbit").succeeds();
    assert!(place.path("exact/report.html").is_file());
}

#[test]
fn folders_that_are_no_runs() {
    let place = Place::new();
    place.train("--workers 1 --out run");
    std::fs::create_dir(place.path("empty")).unwrap();
    place.write("file", "");
    place.thinwire("report run missing").refused(&["missing"]);
    place.thinwire("report empty").refused(&["empty", "metrics.jsonl"]);
    place.thinwire("report file").refused(&["file"]);
    place.thinwire("report").refused(&["<DIR>"]);
    place.thinwire("report run --bandwidth fast").refused(&["--bandwidth", "100mbit"]);
}

#[test]
fn metrics_that_are_cut_off_are_told_of() {
    let place = Place::new();
    place.train("--workers 1 --out run");
    let whole = place.read("run/metrics.jsonl");
    let ran = place.thinwire("report run").succeeds();
    assert!(!ran.stderr.contains("warning"), "{}", ran.stderr);
    place.write("run/metrics.jsonl", &whole[..whole.len() - 20]);
    let torn = place.thinwire("report run").succeeds().stderr;
    assert!(torn.contains("warning: run/metrics.jsonl is cut off in the middle of its last line"), "{torn}");
    let lines = whole.lines().filter(|line| line.contains("\"step\"")).take(12).collect::<Vec<_>>();
    place.write("run/metrics.jsonl", lines.join("\n") + "\n");
    let few = place.thinwire("report run").succeeds().stderr;
    assert!(few.contains("of the run's 30 steps"), "{few}");
    assert!(
        place.read("run/report.html").contains("of the run&#39;s 30 steps")
            || place.read("run/report.html").contains("of the run's 30 steps")
    );
    std::fs::remove_file(place.path("run/summary.json")).unwrap();
    place.write("run/metrics.jsonl", lines[3..].join("\n") + "\n");
    let ran = place.thinwire("report run").succeeds().stderr;
    assert!(ran.contains("lacks the steps before step"), "{ran}");
}
