//! A server under load: many workers in one process, the server in another, over loopback.
//!
//! ```text
//! cargo bench -p thinwire-server --bench load -- --workers 64 --parameters 100000 --rounds 2000 --codec sign
//! ```
//!
//! Prints a line of JSON: rounds a second, bytes a second through the server (up and down, as its own counters have them), what one
//! TCP connection over the same loopback carries by itself, and the server's memory after every tenth of the rounds. Workers compute
//! nothing: their gradients are made once.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use thinwire::{Config, LearningRate, Name};
use thinwire_server::{JoinOptions, RemoteGroup, Retention, Rules, Run, Security, Server};

fn main() {
    let arguments = std::env::args().skip(1).filter(|argument| argument != "--bench").collect::<Vec<_>>();
    let value = |flag: &str, default: &str| {
        let at = arguments.iter().position(|argument| argument == flag);
        at.and_then(|at| arguments.get(at + 1)).map_or(default.to_owned(), String::clone)
    };
    let number = |flag: &str, default: &str| value(flag, default).parse::<usize>().expect("a number");
    let (workers, parameters) = (number("--workers", "8"), number("--parameters", "10000"));
    let (rounds, codec) = (number("--rounds", "50") as u64, value("--codec", "sign"));
    if arguments.first().is_some_and(|first| first == "serve") {
        return serve(&arguments[1], workers, parameters, rounds, &codec);
    }
    let dir = tempfile::tempdir().unwrap();
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["serve", dir.path().join("run").to_str().unwrap(), "--workers", &workers.to_string(), "--codec", &codec])
        .args(["--parameters", &parameters.to_string(), "--rounds", &rounds.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let address = lines.next().unwrap().unwrap();
    let memory = Mutex::new(Vec::new());
    let pid = server.id();
    let groups = (0..workers).map(|i| RemoteGroup::join(JoinOptions::new(&address, format!("worker-{i}"))).unwrap());
    let members = groups.map(|group| group.start().unwrap()).collect::<Vec<_>>();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for (i, (mut member, mut params)) in members.into_iter().enumerate() {
            let memory = &memory;
            scope.spawn(move || {
                let gradient = (0..params.len()).map(|k| ((k * 7 + i) as f32).sin()).collect::<Vec<_>>();
                while !member.is_done() {
                    member.step(&mut params, &gradient).unwrap();
                    if i == 0 && member.steps().is_multiple_of((rounds / 10).max(1)) {
                        memory.lock().unwrap().push(resident(pid));
                    }
                }
                member.leave();
            });
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    drop(server.stdin.take()); // now it may tell, and end
    let status: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    server.wait().unwrap();
    let bytes = status["bytes_received"].as_f64().unwrap() + status["bytes_sent"].as_f64().unwrap();
    let loopback = loopback();
    let result = serde_json::json!({
        "workers": workers,
        "parameters": parameters,
        "codec": codec,
        "rounds": status["rounds"],
        "seconds": seconds,
        "rounds_per_second": rounds as f64 / seconds,
        "bytes_per_second": bytes / seconds,
        "loopback_bytes_per_second": loopback,
        "part_of_loopback": bytes / seconds / loopback,
        "seconds_waiting": status["seconds_waiting"],
        "seconds_making": status["seconds_making"],
        "left_out": status["left_out"],
        "server_resident_bytes": memory.into_inner().unwrap(),
    });
    println!("{result}");
}

/// Serves until standard input ends; then tells its status.
fn serve(dir: &str, workers: usize, parameters: usize, rounds: u64, codec: &str) {
    let codec = Some(codec.parse().expect("a codec"));
    let config =
        Config { codec, learning_rate: Some(LearningRate::constant(1e-3)), ..Config::new(Name::EfficientAdam) };
    let retention = Retention { keep: 200, snapshot_every: 200 };
    let initial = vec![0.0; parameters];
    let run = Run::create(dir.as_ref(), &config, &initial, workers, rounds, String::new(), retention).unwrap();
    let rules = Rules { quorum: workers, workers, deadline: Duration::from_secs(60), max_members: workers };
    let server = Server::start(run, "127.0.0.1:0".parse().unwrap(), rules, Security::default()).unwrap();
    println!("{}", server.address());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    println!("{}", serde_json::to_string(&server.status()).unwrap());
    server.stop().unwrap();
}

/// Bytes of memory that a process has.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().split(' ').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Bytes a second that one connection over loopback carries.
fn loopback() -> f64 {
    const BYTES: usize = 4 << 30;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sender = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let piece = vec![0; 1 << 20];
        (0..BYTES / piece.len()).for_each(|_| stream.write_all(&piece).unwrap());
    });
    let mut stream = listener.accept().unwrap().0;
    let (mut piece, mut left, began) = (vec![0; 1 << 20], BYTES, Instant::now());
    while left > 0 {
        left -= stream.read(&mut piece).unwrap();
    }
    sender.join().unwrap();
    BYTES as f64 / began.elapsed().as_secs_f64()
}
