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
        let status = serde_json::from_slice(&output.stdout).unwrap();
        crate::schemas::holds("serve", &status);
        status
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Starts a worker, and waits until it has a seat: so ranks are in order.
fn join(place: &Place, address: &str, name: &str, more: &str) -> Child {
    let child = place.start(&format!("join {address} --name {name} --out {name} --json {more}"));
    wait_for_seat(place, name);
    child
}

fn wait_for_seat(place: &Place, name: &str) {
    wait_for(name, || {
        std::fs::read_to_string(place.path("server/members.json")).ok()?.contains(&format!("\"{name}\"")).then_some(())
    });
}

/// A worker whose standard error is a file: what it says is read while it runs.
struct Overheard {
    child: Child,
    log: String,
}

impl Overheard {
    fn start(place: &Place, line: &str, log: &str) -> Overheard {
        let file = File::create(place.path(log)).unwrap();
        let child = place.command(line).stdout(Stdio::piped()).stderr(file).spawn().unwrap();
        Overheard { child, log: log.to_owned() }
    }

    fn says(&self, place: &Place, words: &str) {
        wait_for(words, || place.read(&self.log).contains(words).then_some(()));
    }

    /// What it has said when it was interrupted, and its exit code.
    fn interrupted(self, place: &Place) -> (Option<i32>, String) {
        interrupt(&self.child);
        let code = self.child.wait_with_output().unwrap().status.code();
        (code, place.read(&self.log))
    }
}

fn ended(name: &str, child: Child) -> Value {
    let summary = Ran::of(&format!("join as {name}"), child.wait_with_output().unwrap()).json();
    crate::schemas::holds("train", &summary);
    summary
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

/// A worker that was killed while it wrote its first checkpoint has `member.json`, some of the rest, and no manifest.
#[test]
fn a_worker_killed_in_its_first_checkpoint_comes_back_by_the_same_command() {
    let place = Place::new();
    let flags = format!("{NETWORK} --steps 400 --workers 1 --deadline 2 --eval-every 1000");
    let server = serve(&place, "127.0.0.1:0", &flags);
    let line = format!("join {} --out a --checkpoint-every 10 --json", server.address);
    let mut first = place.start(&line);
    wait_for("a checkpoint", || place.path("a/checkpoint/manifest.json").exists().then_some(()));
    first.kill().unwrap();
    first.wait().unwrap();
    std::fs::remove_file(place.path("a/checkpoint/manifest.json")).unwrap();
    assert!(place.path("a/checkpoint/member.json").exists());
    ended("a", place.start(&line));
    let members = server.end(&place)["members"].as_array().unwrap().len();
    assert_eq!(members, 1, "it has its old name and seat, which the command did not give");
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

#[test]
fn as_many_snapshots_are_kept_as_asked_for() {
    let place = Place::new();
    let flags = format!("{NETWORK} --steps 30 --workers 1 --snapshot-every 5 --keep-snapshots 3");
    let server = serve(&place, "127.0.0.1:0", &flags);
    ended("a", join(&place, &server.address, "a", ""));
    server.end(&place);
    let names = std::fs::read_dir(place.path("server")).unwrap().map(|entry| entry.unwrap().file_name());
    let snapshots = names.filter(|name| name.to_string_lossy().ends_with(".safetensors")).count();
    assert_eq!(snapshots, 3);
}

/// Its messages have another version.
#[test]
fn a_run_of_an_older_version_is_refused_with_the_reason() {
    let place = Place::new();
    let flags = format!("{NETWORK} --steps 30 --workers 1 --optimizer efficient-adam");
    let mut server = serve(&place, "127.0.0.1:0", &flags);
    server.kill();
    let path = place.path("server/run.json");
    let text = std::fs::read_to_string(&path).unwrap();
    // As it was written then: without a checksum.
    let checksum = text.lines().nth(1).unwrap();
    assert!(checksum.contains("checksum"), "{checksum}");
    let older = text.replace(&format!("{checksum}\n"), "").replace("\"version\": 2", "\"version\": 1");
    std::fs::write(&path, older).unwrap();
    let line = format!("serve --listen 127.0.0.1:0 --out server {flags}");
    place.thinwire(&line).refused(&["run.json", "an older version", "--overwrite"]);
}

/// A snapshot that is damaged, a word of the run that is missing, and a way back.
#[test]
fn a_damaged_run_goes_on_from_its_older_snapshot_and_back_to_an_earlier_round() {
    let place = Place::new();
    let flags = format!("{NETWORK} --steps 30 --workers 1 --snapshot-every 5");
    let server = serve(&place, "127.0.0.1:0", &flags);
    let done = ended("a", join(&place, &server.address, "a", ""));
    server.end(&place);
    let newest = || {
        let names = std::fs::read_dir(place.path("server")).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.to_string_lossy().ends_with(".safetensors")).max().unwrap()
    };
    assert!(newest().to_string_lossy().contains("snapshot-000000000030"));
    std::fs::write(newest(), "damaged").unwrap();
    let mut again = serve(&place, "127.0.0.1:0", &flags);
    again.kill();
    let log = place.read("serve.log");
    assert!(log.contains("the snapshot of 30 rounds is damaged; that of 25 rounds is taken"), "{log}");
    let line = format!("serve --listen 127.0.0.1:0 --out server {flags}");
    place.thinwire(&format!("{line} --back-to 24")).refused(&["--back-to 24", "oldest snapshot is of 25 rounds"]);
    let back = serve(&place, "127.0.0.1:0", &format!("{flags} --back-to 27"));
    assert!(place.read("serve.log").contains("going on after 27 rounds"), "{}", place.read("serve.log"));
    // Who has seen the rounds that are gone is told so, and starts over.
    let late = place.thinwire(&format!("join {} --out a", back.address));
    late.refused(&["taken back to round 27", "--overwrite"]);
    let other = ended("a", join(&place, &back.address, "a", "--overwrite"));
    assert_eq!((&other["steps"], &done["steps"]), (&30.into(), &30.into()));
    back.end(&place);
    std::fs::remove_file(place.path("server/run.json")).unwrap();
    place.thinwire(&line).refused(&["expected run.json beside log-", "--overwrite"]);
    serve(&place, "127.0.0.1:0", &format!("{flags} --overwrite")).kill();
}

/// On loopback too a server has a token; a worker of the same user finds it, and others do not come in.
#[cfg(unix)]
#[test]
fn a_server_on_this_machine_has_a_token_that_only_its_user_finds() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    std::fs::create_dir(place.path("runtime")).unwrap();
    let flags = format!("{NETWORK} --steps 5 --workers 1");
    let log = File::create(place.path("serve.log")).unwrap();
    let mut command = place.command(&format!("serve --listen 127.0.0.1:0 --out server --json {flags}"));
    let child =
        command.env("XDG_RUNTIME_DIR", place.path("runtime")).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let address = wait_for("the server", || {
        Some(place.read("serve.log").split("thinwire join ").nth(1)?.split_once('\n')?.0.trim().to_owned())
    });
    let port = address.rsplit(':').next().unwrap();
    let file = place.path(format!("runtime/thinwire/{port}.token"));
    assert!(place.read("serve.log").contains(&file.display().to_string()), "the page's password is there");
    for (path, mode) in [(file.as_path(), 0o600), (file.parent().unwrap(), 0o700)] {
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
    }
    let line = format!("join {address} --name a --out a --patience 1 --json");
    let elsewhere = place.command(&line).env("XDG_RUNTIME_DIR", place.path("")).output().unwrap();
    Ran::of(&line, elsewhere).refused(&["refused: the token is wrong, or missing"]);
    // A folder that others may look into is not trusted.
    std::fs::set_permissions(file.parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
    let open = place.command(&line).env("XDG_RUNTIME_DIR", place.path("runtime")).output().unwrap();
    Ran::of(&line, open).refused(&["refused: the token is wrong, or missing"]);
    std::fs::set_permissions(file.parent().unwrap(), PermissionsExt::from_mode(0o700)).unwrap();
    let found = place.command(&line).env("XDG_RUNTIME_DIR", place.path("runtime")).output().unwrap();
    Ran::of(&line, found).json();
    Server { child, address }.end(&place);
    assert!(!file.exists(), "it goes with its server");
}

/// A service manager that starts it again must not keep it for ever.
#[test]
fn a_run_that_has_ended_lets_its_server_go() {
    let place = Place::new();
    let flags = format!("{NETWORK} --steps 5 --workers 1 --deadline 1");
    let server = serve(&place, "127.0.0.1:0", &flags);
    ended("a", join(&place, &server.address, "a", ""));
    let digest = server.end(&place)["digest"].clone();
    let again = serve(&place, "127.0.0.1:0", &format!("{flags} --exit-when-done"));
    assert_eq!(again.end(&place)["digest"], digest, "it ends by itself, with 0");
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
    let a = Overheard::start(&place, &format!("join {address} --name a --out a --json"), "a.log");
    wait_for_seat(&place, "a");
    wait_for("some steps", || (metrics_lines(&place, "a") > 5).then_some(()));
    server.kill();
    a.says(&place, "the server is lost");
    let (code, said) = a.interrupted(&place);
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("come back:"), "{said}");
    // A worker may come before its server.
    let seen = metrics_lines(&place, "a");
    let back = Overheard::start(&place, &format!("join {address} --out a"), "back.log");
    back.says(&place, "out of reach");
    let server = serve(&place, &address, &flags);
    wait_for("more steps", || (metrics_lines(&place, "a") > seen + 5).then_some(()));
    let (_, said) = back.interrupted(&place);
    assert!(said.contains("back again"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
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
    place.thinwire(&line).refused(&["expected a run with these settings", "seed", "--overwrite"]);
}

#[test]
fn bad_flags_are_refused() {
    let place = Place::new();
    let refused = |line: &str, words: &[&str]| place.thinwire(line).refused(words);
    refused("serve --listen 0.0.0.0:7979", &["neither TLS nor a token", "--tls-cert", "127.0.0.1"]);
    refused("serve --quorum 0", &["--quorum 0", "expected"]);
    refused("serve --quorum most", &["--quorum most", "expected"]);
    refused("serve --transport threads", &["--transport"]);
    refused("serve --set topology=sharded", &["topology", "central"]);
    refused("serve --token-file missing", &["missing"]);
    place.write("token", "short");
    refused("serve --token-file token", &["too short", "16"]);
    refused("serve --listen :7070", &[":7070", "expected", "127.0.0.1:7070"]);
    refused("serve --workers 3 --max-members 2", &["--max-members 2", "at least 3, the number of --workers"]);
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
