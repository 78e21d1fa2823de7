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
