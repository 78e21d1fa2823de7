//! `thinwire serve` and `thinwire join`: real processes, killed and started again.

use crate::helper::{NETWORK, Place, Ran, text};
use serde_json::Value;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server whose standard error is a file.
struct Server {
    child: Child,
    address: String,
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match look() {
            Some(found) => return found,
            None => assert!(Instant::now() < until, "{what} did not come"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn serve(place: &Place, listen: &str, flags: &str) -> Server {
    let log = File::create(place.path("serve.log")).unwrap();
    let line = format!("serve --listen {listen} --out server --json {flags}");
    let child = place.command(&line).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let address = wait_for("the server", || {
        let log = place.read("serve.log");
        assert!(!log.contains("error: "), "{log}");
        Some(log.split("thinwire join ").nth(1)?.split_once('\n')?.0.trim().to_owned())
    });
    Server { child, address }
}

impl Server {
    fn end(self, place: &Place) -> Value {
        let output = self.child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", place.read("serve.log"));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Starts a worker, and waits until it has a seat: so ranks are in order.
fn join(place: &Place, address: &str, name: &str, more: &str) -> Child {
    let child = place.start(&format!("join {address} --name {name} --out {name} --json {more}"));
    wait_for(name, || {
        std::fs::read_to_string(place.path("server/members.json")).ok()?.contains(&format!("\"{name}\"")).then_some(())
    });
    child
}

fn ended(name: &str, child: Child) -> Value {
    Ran::of(&format!("join as {name}"), child.wait_with_output().unwrap()).json()
}

fn metrics_lines(place: &Place, run: &str) -> usize {
    std::fs::read_to_string(place.path(format!("{run}/metrics.jsonl"))).map_or(0, |text| text.lines().count())
}

#[test]
fn a_served_run_has_the_digest_of_train_in_its_central_form() {
    for optimizer in ["efficient-adam", "zero-one-adam"] {
        let place = Place::new();
        let flags = format!("{NETWORK} --steps 30 --workers 2 --optimizer {optimizer}");
        let train = place.thinwire(&format!("train {flags} --set topology=central --json --quiet --out train")).json();
        let server = serve(&place, "127.0.0.1:0", &flags);
        let workers = ["a", "b"].map(|name| (name, join(&place, &server.address, name, "")));
        for (name, child) in workers {
            let summary = ended(name, child);
            assert_eq!(summary["digest"], train["digest"], "{optimizer}");
            assert_eq!((text(&summary["transport"]), summary["steps"].as_u64()), ("server".to_owned(), Some(30)));
            assert!(place.path(format!("{name}/report.html")).exists());
        }
        let status = server.end(&place);
        assert_eq!(status["digest"], train["digest"]);
    }
}

/// SIGKILL for the server in the middle, and for a worker; both come back by the same command again.
#[test]
fn a_killed_server_and_a_killed_worker_come_back() {
    let place = Place::new();
    let flags = format!("{NETWORK} --steps 600 --workers 2 --deadline 2 --eval-every 1000 --snapshot-every 20");
    let mut server = serve(&place, "127.0.0.1:0", &flags);
    let address = server.address.clone();
    let a = join(&place, &address, "a", "");
    let mut b = join(&place, &address, "b", "--checkpoint-every 10");
    wait_for("some steps", || (metrics_lines(&place, "b") > 40).then_some(()));
    server.kill();
    let seen = metrics_lines(&place, "a");
    let again = serve(&place, &address, &flags);
    let log = place.read("serve.log");
    let rounds = log.split("going on after ").nth(1).unwrap().split(' ').next().unwrap().parse::<usize>().unwrap();
    assert!(rounds + 1 >= seen, "a worker saw {seen} rounds, the server came back with {rounds}");
    wait_for("steps after the server's death", || (metrics_lines(&place, "b") > seen + 40).then_some(()));
    b.kill().unwrap();
    b.wait().unwrap();
    let b = place.start(&format!("join {address} --out b --json"));
    let (a, b) = (ended("a", a), ended("b", b));
    assert_eq!(a["digest"], b["digest"]);
    let status = again.end(&place);
    assert_eq!(status["digest"], a["digest"]);
    assert_eq!(status["rounds"], 600);
    assert_eq!(status["members"].as_array().unwrap().len(), 2, "b has its old seat");
}

/// The line is for a shell: what a person does is to paste it.
#[test]
fn the_join_line_of_a_server_with_data_works_as_it_stands() {
    let place = Place::new();
    std::fs::create_dir(place.path("my data")).unwrap();
    place.write("my data/text.txt", "to be, or not to be, that is the question; ".repeat(300));
    let log = File::create(place.path("serve.log")).unwrap();
    let line = format!("serve --listen 127.0.0.1:0 --out server --json {NETWORK} --steps 5 --workers 1");
    let mut command = place.command(&line);
    let child = command.args(["--data", "my data"]).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let pasted = wait_for("the line", || {
        let log = place.read("serve.log");
        assert!(!log.contains("error: "), "{log}");
        Some(log.split("workers   thinwire ").nth(1)?.split_once('\n')?.0.to_owned())
    });
    assert!(pasted.contains("--data '") && pasted.contains("my data'"), "{pasted}");
    let binary = env!("CARGO_BIN_EXE_thinwire");
    let mut shell = Command::new("sh");
    let joined = shell.args(["-c", &format!("{binary} {pasted} --json --quiet")]).current_dir(place.path(""));
    let summary = Ran::of(&pasted, joined.output().unwrap()).json();
    let status = Server { child, address: String::new() }.end(&place);
    assert_eq!(summary["digest"], status["digest"]);
}

#[test]
fn a_worker_with_data_comes_back_by_the_line_that_it_prints() {
    let place = Place::new();
    place.write("text.txt", "to be, or not to be, that is the question; ".repeat(300));
    let flags = format!("{NETWORK} --steps 100000 --workers 1 --eval-every 100000 --data text.txt");
    let mut server = serve(&place, "127.0.0.1:0", &flags);
    let address = server.address.split(' ').next().unwrap().to_owned();
    let a = join(&place, &address, "a", "--data text.txt");
    wait_for("some steps", || (metrics_lines(&place, "a") > 5).then_some(()));
    interrupt(&a);
    let ran = Ran::of("join", a.wait_with_output().unwrap());
    assert!(ran.stderr.contains(&format!("thinwire join {address} --out a --data text.txt")), "{}", ran.stderr);
    server.kill();
}

/// A word that there was not yet when a run began stands at its default.
#[test]
fn a_run_of_before_a_word_goes_on() {
    let place = Place::new();
    let flags = format!("{NETWORK} --steps 30 --workers 1 --optimizer efficient-adam");
    let mut server = serve(&place, "127.0.0.1:0", &flags);
    server.kill();
    let path = place.path("server/run.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let older = text.replace("residue = \\\"f32\\\"\\n", "");
    assert_ne!(older, text);
    std::fs::write(&path, older).unwrap();
    serve(&place, "127.0.0.1:0", &flags).kill(); // refused, it would say so
}

fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

/// A round that does not come keeps nobody.
#[test]
fn a_worker_is_interrupted_while_its_server_is_gone_and_comes_back_with_what_it_had() {
    let place = Place::new();
    let flags = format!("{NETWORK} --steps 100000 --workers 1 --eval-every 100000");
    let mut server = serve(&place, "127.0.0.1:0", &flags);
    let address = server.address.clone();
    let a = join(&place, &address, "a", "");
    wait_for("some steps", || (metrics_lines(&place, "a") > 5).then_some(()));
    server.kill();
    std::thread::sleep(Duration::from_millis(300)); // the step that was under way
    interrupt(&a);
    let ran = Ran::of("join", a.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    for words in ["the server is lost", "come back:"] {
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
    // A worker may come before its server.
    let seen = metrics_lines(&place, "a");
    let back = place.start(&format!("join {address} --out a"));
    std::thread::sleep(Duration::from_millis(300));
    let server = serve(&place, &address, &flags);
    wait_for("more steps", || (metrics_lines(&place, "a") > seen + 5).then_some(()));
    interrupt(&back);
    let ran = Ran::of("join", back.wait_with_output().unwrap());
    for words in ["out of reach", "back again"] {
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
    interrupt(&server.child);
    server.child.wait_with_output().unwrap();
}

#[test]
fn interrupted_servers_and_workers_say_how_to_go_on() {
    let place = Place::new();
    let flags = format!("{NETWORK} --steps 100000 --workers 1 --eval-every 100000");
    let server = serve(&place, "127.0.0.1:0", &flags);
    let a = join(&place, &server.address, "a", "");
    wait_for("some steps", || (metrics_lines(&place, "a") > 5).then_some(()));
    interrupt(&a);
    let ran = Ran::of("join", a.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("thinwire join {} --out a", server.address)), "{}", ran.stderr);
    interrupt(&server.child);
    let output = server.child.wait_with_output().unwrap();
    let log = place.read("serve.log");
    assert_eq!(output.status.code(), Some(0), "who stops a server wants it stopped: {log}");
    assert!(log.contains("the same command again"), "{log}");
    let line = format!("serve --listen 127.0.0.1:0 --out server {flags} --seed 5");
    place.thinwire(&line).refused(&["a run with other settings", "seed", "--overwrite"]);
}

#[test]
fn bad_flags_are_refused() {
    let place = Place::new();
    let refused = |line: &str, words: &[&str]| place.thinwire(line).refused(words);
    refused("serve --listen 0.0.0.0:7979", &["neither TLS nor a token", "--tls-cert", "127.0.0.1"]);
    refused("serve --quorum 0", &["--quorum 0", "accepted"]);
    refused("serve --quorum most", &["--quorum most", "accepted"]);
    refused("serve --transport threads", &["--transport"]);
    refused("serve --set topology=sharded", &["topology", "central"]);
    refused("serve --token-file missing", &["missing"]);
    place.write("token", "short");
    refused("serve --token-file token", &["too short", "16"]);
    refused("serve --listen :7070", &[":7070", "accepted", "127.0.0.1:7070"]);
    refused("serve --workers 3 --max-members 2", &["--max-members 2", "--workers, which is 3"]);
    refused("serve --keep 0", &["--keep", "0"]);
    std::fs::create_dir(place.path("taken")).unwrap();
    place.write("taken/notes.txt", "mine");
    refused("serve --out taken --listen 127.0.0.1:0", &["taken", "notes.txt", "folder of its own"]);
    refused("join http://127.0.0.1:7070", &["http://", "HOST:PORT"]);
    refused("join nowhere", &["nowhere", "HOST:PORT"]);
    refused("join 127.0.0.1:9 --ca missing.pem", &["missing.pem"]);
    refused("join 127.0.0.1:9 --cert a.pem", &["--key"]);
    assert!(!place.path("runs").exists(), "and nothing was made");
}
