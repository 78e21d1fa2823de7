//! The command under mpirun: the same bits as on threads, and no end without a word.

use crate::helper::{NETWORK, OPTIMIZERS, Place, Ran, in_the_middle, text};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// So begins what worker 0 says when it was told to stop and all workers write the checkpoint.
const STOPS: &str = "told to stop: ";

/// `mpirun` with these arguments; more processes than cores, and root in a container, are fine.
fn mpirun(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--allow-run-as-root"]).args(arguments);
    command.env("OMPI_MCA_odls_base_sigkill_timeout", "4"); // on a busy machine a second is short
    command.current_dir(place.path("")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `mpirun -np processes thinwire line`.
fn under_mpi(place: &Place, processes: usize, line: &str) -> Command {
    let (processes, binary) = (processes.to_string(), env!("CARGO_BIN_EXE_thinwire"));
    let mut arguments = vec!["-np", &processes, binary];
    arguments.extend(line.split_whitespace());
    mpirun(place, &arguments)
}

fn ran(place: &Place, processes: usize, line: &str) -> Ran {
    Ran::of(line, under_mpi(place, processes, line).output().expect("mpirun runs"))
}

fn trained(place: &Place, processes: usize, flags: &str) -> Value {
    ran(place, processes, &format!("train {NETWORK} --steps 30 {flags} --json --quiet")).json()
}

#[test]
fn who_alone_has_a_mistyped_flag_says_so() {
    let place = Place::new();
    let binary = env!("CARGO_BIN_EXE_thinwire");
    let line = |flags: &[&'static str]| [&["-np", "1", binary, "train"], flags].concat();
    let arguments = [line(&["--steps", "2"]), vec![":"], line(&["--setps", "2"])].concat();
    let ran = Ran::of("train", mpirun(&place, &arguments).output().expect("mpirun runs"));
    assert!(ran.stderr.contains("worker 1: error: unexpected argument '--setps'"), "{}", ran.stderr);
    let all = Ran::of("train", under_mpi(&place, 3, "train --setps 2").output().expect("mpirun runs"));
    assert_eq!(all.stderr.matches("unexpected argument").count(), 1, "{}", all.stderr);
}

#[test]
fn threads_and_mpi_end_in_the_same_digest() {
    for (optimizer, workers) in OPTIMIZERS.iter().zip([2, 3, 4, 3]) {
        let place = Place::new();
        let on_threads = place.digest(&format!("--optimizer {optimizer} --workers {workers} --out threads"));
        let on_mpi = trained(&place, workers, &format!("--optimizer {optimizer} --out mpi"));
        assert_eq!(text(&on_mpi["digest"]), on_threads, "{optimizer}");
        assert_eq!((on_mpi["transport"].as_str(), on_mpi["workers"].as_u64()), (Some("mpi"), Some(workers as u64)));
        assert_eq!(place.timeless_metrics("mpi"), place.timeless_metrics("threads"), "{optimizer}");
    }
}

#[test]
fn a_run_of_threads_goes_on_under_mpi_and_back() {
    let place = Place::new();
    let line = format!("train {NETWORK} --steps 4000 --workers 3 --checkpoint-every 50 --json --quiet --out");
    let whole = place.thinwire(&format!("{line} whole")).json();
    let mut child = place.start(&format!("{line} parts"));
    in_the_middle(&place, &mut child, "parts/checkpoint/manifest.json");
    child.kill().expect("a child");
    child.wait().expect("a child");
    let mut child = under_mpi(&place, 3, "train --resume parts --json --quiet").spawn().expect("mpirun");
    let before = std::fs::read_to_string(place.path("parts/checkpoint/manifest.json")).expect("a manifest");
    while std::fs::read_to_string(place.path("parts/checkpoint/manifest.json")).is_ok_and(|now| now == before) {
        assert!(child.try_wait().expect("a child").is_none(), "it ended before it had begun");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal("-KILL", &workers_of(&place));
    child.wait_with_output().expect("mpirun ends");
    let resumed = place.thinwire("train --resume parts --json --quiet").json();
    assert_eq!(resumed["digest"], whole["digest"]);
    assert_eq!(resumed["bytes_sent_per_worker"], whole["bytes_sent_per_worker"]);
}

/// Workers that share a host add up exactly; the bits are those of the in-process twin.
#[test]
fn two_levels_are_the_same_on_threads_and_on_mpi() {
    let binary = env!("CARGO_BIN_EXE_thinwire");
    for optimizer in OPTIMIZERS {
        let place = Place::new();
        // So short a run would be all exact by default.
        let optimizer_flags = match optimizer {
            "one-bit-adam" => "one-bit-adam --set warmup=5",
            "zero-one-adam" => "zero-one-adam --set freeze=5 --set sync_longest=16",
            other => other,
        };
        let line = format!("train {NETWORK} --steps 30 --optimizer {optimizer_flags} --hierarchy hosts --json --quiet");
        let twin = place.thinwire(&format!("{line} --workers 3 --hosts 2 --out threads")).json();
        let flat = place.digest(&format!("--optimizer {optimizer_flags} --workers 3 --out flat"));
        let line = format!("{line} --out mpi");
        let mut arguments = vec!["-np", "2", "-x", "THINWIRE_HOST=a", binary];
        arguments.extend(line.split_whitespace());
        arguments.extend([":", "-np", "1", "-x", "THINWIRE_HOST=b", binary]);
        arguments.extend(line.split_whitespace());
        let two_levels = Ran::of(&line, mpirun(&place, &arguments).output().expect("mpirun")).json();
        assert_eq!(two_levels["digest"], twin["digest"], "{optimizer}");
        // (a + b) + c is the same sum either way; coding it is not.
        assert_eq!(text(&two_levels["digest"]) == flat, optimizer == "adam", "{optimizer}");
        let bytes = |summary: &Value, name: &str| summary[name].as_u64().expect("a number of bytes");
        let between = bytes(&two_levels, "bytes_between_hosts_per_worker");
        assert_eq!(between, bytes(&twin, "bytes_between_hosts_per_worker"));
        assert!(0 < between && between < bytes(&two_levels, "bytes_sent_per_worker"), "{optimizer}");
    }
}

#[test]
fn compare_runs_under_mpi() {
    let place = Place::new();
    let line = format!("compare {NETWORK} --steps 20 --optimizers adam,zero-one-adam --out both --json");
    let compared = ran(&place, 2, &line).json();
    assert_eq!(compared["runs"].as_array().map(Vec::len), Some(2));
    assert!(place.path("both/report.html").exists());
}

/// Told to stop in the middle of the first: a checkpoint, how to go on, and going on.
#[test]
fn a_comparison_under_mpi_is_interrupted_and_goes_on() {
    let place = Place::new();
    let line = format!("compare {NETWORK} --steps 6000 --optimizers zero-one-adam,adam --json --out");
    let whole = place.thinwire(&format!("{line} whole --workers 2")).json();
    let mut child = under_mpi(&place, 2, &format!("{line} parts")).spawn().expect("mpirun");
    in_the_middle(&place, &mut child, "parts/zero-one-adam/metrics.jsonl");
    signal("-TERM", &workers_of(&place)); // what mpirun sends them on Ctrl-C, after a pause of its own
    let ran = Ran::of(&line, child.wait_with_output().expect("mpirun ends"));
    assert!(ran.stderr.contains("mpirun -np 2 thinwire compare --resume parts"), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches(STOPS).count(), 1, "{}", ran.stderr);
    let resumed = self::ran(&place, 2, "compare --resume parts --json --quiet").json();
    let digests = |all: &Value| {
        let runs = all["runs"].as_array().expect("a list").clone();
        runs.iter().map(|run| text(&run["digest"])).collect::<Vec<_>>()
    };
    assert_eq!(digests(&resumed), digests(&whole));
}

#[test]
fn the_network_is_probed_under_mpi() {
    let place = Place::new();
    let probed = ran(&place, 2, "probe --values 40k --codecs f32,sign --repeats 1 --json --quiet").json();
    let names = probed["means"].as_array().expect("a list").iter().map(|mean| text(&mean["name"])).collect::<Vec<_>>();
    assert_eq!(names, ["MPI_Allreduce, f32", "exact mean, f32", "coarse mean, sign"]);
    assert_eq!(probed["transport"], "mpi");
}

/// Folders of their own, as on machines that share nothing: each process gets its own --out.
#[test]
fn every_worker_resumes_from_its_own_folder() {
    let place = Place::new();
    let (binary, steps) = (env!("CARGO_BIN_EXE_thinwire"), 4000);
    let whole =
        place.thinwire(&format!("train {NETWORK} --steps {steps} --workers 2 --out whole --json --quiet")).json();
    let line =
        |rank: usize| format!("train {NETWORK} --steps {steps} --checkpoint-every 50 --quiet --json --out host{rank}");
    let on_both = |lines: [String; 2]| {
        let mut arguments = vec!["-np", "1", binary];
        arguments.extend(lines[0].split_whitespace());
        arguments.extend([":", "-np", "1", binary]);
        arguments.extend(lines[1].split_whitespace());
        mpirun(&place, &arguments)
    };
    let mut child = on_both([line(0), line(1)]).spawn().expect("mpirun");
    // Each writes its own, and one may be a little later.
    for host in ["host0", "host1"] {
        in_the_middle(&place, &mut child, &format!("{host}/checkpoint/manifest.json"));
    }
    signal("-KILL", &workers_of(&place));
    child.wait_with_output().expect("mpirun ends");
    let files = |folder: &str| {
        let entries = std::fs::read_dir(place.path(folder).join("checkpoint")).expect("a checkpoint");
        let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        names.filter(|name| name.ends_with("safetensors")).collect::<Vec<_>>()
    };
    assert!(files("host0").iter().all(|name| name.contains("worker-0")), "{:?}", files("host0"));
    assert!(files("host1").iter().all(|name| name.contains("worker-1")), "{:?}", files("host1"));
    let resume = |rank: usize| format!("train --resume host{rank} --json --quiet");
    let resumed = Ran::of("--resume", on_both([resume(0), resume(1)]).output().expect("mpirun")).json();
    assert_eq!(resumed["digest"], whole["digest"]);
    assert!(place.path("host0/report.html").exists() && !place.path("host1/report.html").exists());
}

#[test]
fn bad_input_is_refused_once() {
    // Side by side: after each of them mpirun waits for seconds (`sigkill_timeout`).
    std::thread::scope(|scope| {
        for (line, words) in [
            ("train --data nowhere.txt", ["nowhere.txt", ""]),
            ("train --workers 2", ["workers = 2", "3 processes"]),
            ("train --kappa 3", ["--kappa", ""]),
            ("train --hierarchy hosts", ["hierarchy = hosts", "auto or flat"]),
            ("train --hosts 2", ["hosts", "3 processes"]),
        ] {
            scope.spawn(move || {
                let ran = ran(&Place::new(), 3, line);
                assert_eq!(ran.code, Some(2), "{line}\n{}", ran.stderr);
                assert_eq!(ran.stderr.matches("error: ").count(), 1, "{line}\n{}", ran.stderr);
                assert!(words.iter().all(|word| ran.stderr.contains(word)), "{line}\n{}", ran.stderr);
            });
        }
    });
}

#[test]
fn a_worker_whose_file_is_missing_says_so_and_all_end() {
    let place = Place::new();
    place.write("text.txt", "to be or not to be, that is the question; ".repeat(400));
    let binary = env!("CARGO_BIN_EXE_thinwire");
    let line = |data: &str| format!("train {NETWORK} --steps 5 --data {data} --out run");
    let (here, missing) = (line("text.txt"), line("missing.txt"));
    let mut arguments = vec!["-np", "1", binary];
    arguments.extend(here.split_whitespace());
    arguments.extend([":", "-np", "1", binary]);
    arguments.extend(missing.split_whitespace());
    let ran = Ran::of("two", mpirun(&place, &arguments).output().expect("mpirun"));
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("error: worker 1: ") && ran.stderr.contains("missing.txt"), "{}", ran.stderr);
    assert!(!place.path("run").exists());
}

/// Worker 0's process has the lock, and all of them write.
#[test]
fn a_folder_has_one_run_under_mpi_too() {
    let place = Place::new();
    let line = format!("train {NETWORK} --steps 100000 --eval-every 100000 --checkpoint-every 20 --quiet --out run");
    let mut child = under_mpi(&place, 2, &line).spawn().expect("mpirun");
    in_the_middle(&place, &mut child, "run/checkpoint/manifest.json");
    place.thinwire(&format!("{line} --workers 2")).refused(&["another run is writing to this folder"]);
    let second = ran(&place, 2, &line);
    assert_eq!(second.stderr.matches("another run is writing to this folder").count(), 1, "{}", second.stderr);
    signal("-KILL", &workers_of(&place));
    child.wait_with_output().expect("mpirun ends");
    place.thinwire(&line).refused(&["a run that was interrupted"]);
}

/// A worker dies at any moment: the others name it, at once, and the last checkpoint resumes bit for bit.
#[test]
fn a_killed_worker_is_named_by_all_others() {
    let place = Place::new();
    let line = format!("train {NETWORK} --steps 3000 --checkpoint-every 20 --quiet --json --out");
    let whole = place.thinwire(&format!("{line} whole --workers 3")).json();
    // Anywhere in a step, or while it saves.
    for (victim, moment) in [(0, 3_100), (1, 47_700), (2, 211_300)] {
        let mut child = under_mpi(&place, 3, &format!("{line} parts{victim} --deadline 60")).spawn().expect("mpirun");
        in_the_middle(&place, &mut child, &format!("parts{victim}/checkpoint/manifest.json"));
        let pause = Duration::from_micros(moment);
        std::thread::sleep(pause);
        let began = Instant::now();
        signal("-KILL", &[rank_of(&place, victim)]);
        let ran = Ran::of(&line, child.wait_with_output().expect("mpirun ends"));
        assert!(began.elapsed() < Duration::from_secs(20), "the deadline is for those who fall silent");
        named(&ran, victim, 3, "left while others waited", &format!("after {pause:?}"));
    }
    let resumed = ran(&place, 3, "train --resume parts2 --json --quiet").json();
    assert_eq!(resumed["digest"], whole["digest"]);
}

/// A worker stands still: the others name it when the deadline has passed.
#[test]
fn a_stopped_worker_is_named_by_all_others() {
    for (victim, optimizer) in [(1, "zero-one-adam"), (0, "efficient-adam --set topology=central")] {
        let place = Place::new();
        let line = format!(
            "train {NETWORK} --steps 100000 --eval-every 100000 --quiet --deadline 3 --out run --optimizer {optimizer}"
        );
        let mut child = under_mpi(&place, 3, &line).spawn().expect("mpirun");
        in_the_middle(&place, &mut child, "run/metrics.jsonl");
        let (process, began) = (rank_of(&place, victim), Instant::now());
        signal("-STOP", &[process]);
        let ran = Ran::of(&line, child.wait_with_output().expect("mpirun ends"));
        let waited = began.elapsed();
        assert!(Duration::from_secs(2) < waited && waited < Duration::from_secs(25), "{waited:?}");
        named(&ran, victim, 3, "did not answer within 3s", optimizer);
    }
}

/// mpirun tells the others to stop when a worker is lost. There is nothing that they could save then, and none of them says so.
#[test]
fn no_checkpoint_is_promised_when_a_worker_is_lost() {
    let place = Place::new();
    let line = format!("train {NETWORK} --steps 100000 --eval-every 100000 --quiet --deadline 60 --out run");
    let mut child = under_mpi(&place, 2, &line).spawn().expect("mpirun");
    in_the_middle(&place, &mut child, "run/metrics.jsonl");
    let told = rank_of(&place, 0);
    signal("-STOP", &[rank_of(&place, 1)]);
    // Worker 0 waits for it when the run writes no more; it writes several times a second.
    let written = || std::fs::metadata(place.path("run/metrics.jsonl")).expect("a journal").len();
    let mut before = 0;
    while before != written() {
        before = written();
        std::thread::sleep(Duration::from_millis(500));
    }
    signal("-TERM", &[told]);
    let ran = Ran::of(&line, child.wait_with_output().expect("mpirun ends"));
    assert_ne!(ran.code, Some(0));
    assert!(!ran.stderr.contains(STOPS), "{}", ran.stderr);
    assert!(ran.stderr.contains("worker 0: told to stop while it waits for worker 1"), "{}", ran.stderr);
    assert!(!place.path("run/checkpoint").exists());
}

/// Every worker but the victim has said who it was.
#[track_caller]
fn named(ran: &Ran, victim: usize, workers: usize, how: &str, when: &str) {
    assert_ne!(ran.code, Some(0));
    assert!(!ran.stderr.contains(STOPS), "{when}:\n{}", ran.stderr);
    for worker in (0..workers).filter(|worker| *worker != victim) {
        let said = format!("worker {worker}: error: worker {victim} {how}");
        assert!(ran.stderr.contains(&said), "{when}: no {said:?} in\n{}", ran.stderr);
    }
}

/// The processes of thinwire that run in `place`.
fn workers_of(place: &Place) -> Vec<u32> {
    let folder = place.path("").canonicalize().expect("a folder");
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let entries = std::fs::read_dir("/proc").expect("Linux").filter_map(|entry| number(entry.ok()?));
    let here = |process: &u32| {
        let link = |name: &str| std::fs::read_link(format!("/proc/{process}/{name}")).ok();
        link("cwd").is_some_and(|cwd| cwd == folder)
            && link("exe").is_some_and(|exe| exe == Path::new(env!("CARGO_BIN_EXE_thinwire")).canonicalize().unwrap())
    };
    entries.filter(here).collect()
}

/// The process of this rank, as its environment tells.
fn rank_of(place: &Place, rank: usize) -> u32 {
    let wanted = format!("OMPI_COMM_WORLD_RANK={rank}");
    let is = |process: &u32| {
        let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    workers_of(place).into_iter().find(is).unwrap_or_else(|| panic!("no process of rank {rank}"))
}

/// Of several, some may be gone before their turn comes.
fn signal(name: &str, processes: &[u32]) {
    Command::new("kill").arg(name).args(processes.iter().map(u32::to_string)).status().expect("kill");
}
