//! The server's page, in a browser: what a person sees of a run while it goes on.

use crate::chromium::Chromium;
use crate::helper::*;
use serde_json::Value;
use std::sync::atomic::{AtomicU64, Ordering};
use thinwire_server::{JoinOptions, RemoteGroup, Run, Security, Server};

const TOKEN: &str = "a-token-for-the-browser";
const STEPS: u64 = 80;
const D: usize = 50;

/// The figures by their names, the rows of the table, the curve's points, and what is said on top.
const LOOK: &str = r##"({
    figures: Object.fromEntries([...document.querySelectorAll("#figures > div")].map(d => [d.querySelector("dt").innerText, d.querySelector("dd").innerText])),
    members: [...document.querySelectorAll("#members tr")].map(r => [...r.cells].map(c => c.innerText)),
    points: (document.querySelector("#curve polyline")?.getAttribute("points") ?? "").split(" ").filter(p => p).map(p => p.split(",").map(Number)),
    label: document.querySelector("#curve svg")?.getAttribute("aria-label"),
    state: document.getElementById("state").innerText,
    what: document.getElementById("what").innerText,
    progress: document.getElementById("progress").value,
    wide: document.documentElement.scrollWidth > innerWidth,
})"##;

fn number(look: &Value, figure: &str) -> u64 {
    let text = look["figures"][figure].as_str().unwrap_or_else(|| panic!("no {figure:?} in {look}"));
    text.split(' ').next().unwrap().parse::<f64>().unwrap() as u64
}

#[test]
fn a_browser_shows_the_run_as_it_goes_on() {
    let (config, dir) = (config(CASES[4], STEPS), tempfile::tempdir().unwrap());
    let run = Run::create(dir.path(), &config, &start(D), 2, STEPS, String::new(), RETENTION).unwrap();
    let security = Security { token: Some(TOKEN.to_owned()), ..Security::default() };
    let server = Server::start(run, "127.0.0.1:0".parse().unwrap(), rules(2), security).unwrap();
    let address = server.address();
    let Some(mut page) = Chromium::open(&format!("http://anyone:{TOKEN}@{address}/")) else { return };
    page.wait_for("document.getElementById('state')?.innerText", |state| {
        *state == format!("running, {STEPS} steps in all")
    });
    let empty = page.evaluate(LOOK);
    assert_eq!((number(&empty, "rounds"), &empty["members"]), (0, &Value::Array(Vec::new())), "{empty}");
    assert_eq!(empty["figures"]["workers here"], "0 of 2");

    // The workers go on to where they are let.
    let allowed = AtomicU64::new(10);
    std::thread::scope(|scope| {
        for (worker, name) in ["lab-1", "lab-2"].into_iter().enumerate() {
            let options = JoinOptions { token: Some(TOKEN.to_owned()), ..JoinOptions::new(address.to_string(), name) };
            let (mut member, mut x) = RemoteGroup::join(options).unwrap().start().unwrap();
            let allowed = &allowed;
            scope.spawn(move || {
                while !member.is_done() {
                    if member.steps() >= allowed.load(Ordering::Relaxed) {
                        std::thread::sleep(std::time::Duration::from_millis(5));
                        continue;
                    }
                    member.report_loss(loss(&x));
                    let gradient = gradient(worker, member.steps(), &x);
                    member.step(&mut x, &gradient).unwrap();
                }
                member.leave();
            });
        }
        let first = page.wait_for(LOOK, |look| number(look, "rounds") == 10);
        assert_eq!(first["figures"]["workers here"], "2 of 2");
        let status = server.status();
        assert!(
            first["what"].as_str().unwrap().contains(&format!("efficient-adam, {D} parameters, run {}", status.run))
        );
        for (row, name) in ["lab-1", "lab-2"].into_iter().enumerate() {
            let (row, member) =
                (&first["members"][row], status.members.iter().find(|member| member.name == name).unwrap());
            let expected = [name, "here", &format!("{:.4}", member.loss.unwrap()), "10", "0"];
            assert_eq!(row.as_array().unwrap()[..5], expected.map(Value::from), "{row}");
            assert!(row[5].as_str().is_some_and(|sent| sent.ends_with("B") && !sent.starts_with("0 ")), "{row}");
        }
        // A point for every round, from left to right, and the loss falls.
        let points = first["points"].as_array().unwrap();
        assert_eq!(points.len(), 10);
        assert!(points.windows(2).all(|pair| pair[0][0].as_f64() < pair[1][0].as_f64()), "{points:?}");
        let (highest, lowest) = (&status.losses[0].1, &status.losses[9].1);
        assert_eq!(first["label"], format!("loss from {highest:.3} to {lowest:.3}"));
        assert!(highest > lowest && points[0][1].as_f64() < points[9][1].as_f64(), "down is down: {points:?}");
        assert!(first["wide"] == false, "it fits the window");

        // The same page, later: nobody has loaded it again.
        page.evaluate("window.still = 'here'");
        allowed.store(40, Ordering::Relaxed);
        let later = page.wait_for(LOOK, |look| number(look, "rounds") == 40);
        assert_eq!(page.evaluate("window.still"), "here");
        assert_eq!(later["points"].as_array().unwrap().len(), 40);
        assert!(later["progress"].as_f64() > first["progress"].as_f64());
        let status = server.status();
        for (figure, bytes) in [("received", status.bytes_received), ("sent", status.bytes_sent)] {
            let shown = later["figures"][figure].as_str().unwrap();
            let kilobytes = shown.strip_suffix(" kB").unwrap_or_else(|| panic!("{shown}")).parse::<f64>().unwrap();
            assert!((kilobytes * 1000.0 / bytes as f64 - 1.0).abs() < 0.01, "{shown} of {bytes} bytes {figure}");
            assert_ne!(first["figures"][figure], shown);
        }
        allowed.store(STEPS, Ordering::Relaxed);
    });
    let end = page.wait_for(LOOK, |look| {
        look["state"].as_str().unwrap().contains("has ended") && look["figures"]["workers here"] == "0 of 2"
    });
    assert!(end["state"].as_str().unwrap().contains(server.status().digest.as_ref().unwrap()), "{end}");
    assert_eq!(end["members"][0][1], "away");
    assert_eq!(page.complaints, Vec::<String>::new());

    // A server that is gone is said to be; that its answers are missing is the one thing the console may tell.
    server.stop().unwrap();
    page.wait_for("document.getElementById('state').innerText", |state| {
        state.as_str().unwrap().contains("does not answer")
    });
}

/// A network that diverges reports such losses.
#[test]
fn losses_at_the_end_of_the_scale_do_not_break_the_page() {
    let (config, dir) = (config(CASES[4], STEPS), tempfile::tempdir().unwrap());
    let server = serve(dir.path(), &config, &start(D), rules(2), STEPS);
    let Some(mut page) = Chromium::open(&format!("http://{}/", server.address())) else { return };
    let mut members = ["one", "two"].map(|name| join(server.address(), name).start().unwrap());
    for loss in [1.7e308, -1.7e308, f64::INFINITY, f64::NAN, 1.0] {
        std::thread::scope(|scope| {
            for (worker, (member, x)) in members.iter_mut().enumerate() {
                scope.spawn(move || {
                    member.report_loss(loss);
                    let gradient = gradient(worker, member.steps(), x);
                    member.step(x, &gradient).unwrap();
                });
            }
        });
    }
    let look = page.wait_for(LOOK, |look| look["points"].as_array().is_some_and(|points| points.len() == 5));
    let number = |value: &Value| value.as_f64().is_some_and(|number| (0.0..=900.0).contains(&number));
    let drawn = |point: &Value| number(&point[0]) && number(&point[1]);
    assert!(look["points"].as_array().unwrap().iter().all(drawn), "{look}");
    assert_eq!(look["label"], "loss from 1.700e+308 to 1.000");
    assert_eq!(look["wide"], false, "{look}");
    assert_eq!(page.complaints, Vec::<String>::new());
}
