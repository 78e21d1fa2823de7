//! A server under load: many workers in one process, the server in another.
//!
//! ```text
//! cargo bench -p thinwire-server --bench load -- --workers 64 --parameters 1000000 --rounds 100 --codec sign
//!     --light              one engine makes the message that all workers send: what is measured is the server, not the workers
//!     --listen ADDRESS     where the server listens; if that is not loopback, with TLS and a token
//!     --through "COMMAND"  by which the server is started, such as "ip netns exec NAME"
//! ```
//!
//! Prints a line of JSON: rounds a second; bytes a second through the server (up and down, as its own counters have them); the same
//! of bare sockets that do nothing but carry as many bytes the same way between as many connections, one message up and one down a
//! round; the CPU's seconds of both processes; the server's memory after every tenth of the rounds. Gradients are made once.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use thinwire::{Collective, Config, LearningRate, Name, Worker};
use thinwire_server::link::Link;
use thinwire_server::{JoinOptions, RemoteGroup, Retention, Rules, Run, Security, Server, Tls};

const TOKEN: &str = "a token of this benchmark";
const NAME: &str = "server.example";

struct Arguments(Vec<String>);

impl Arguments {
    fn value(&self, flag: &str, default: &str) -> String {
        let at = self.0.iter().position(|argument| argument == flag);
        at.and_then(|at| self.0.get(at + 1)).map_or(default.to_owned(), String::clone)
    }

    fn number(&self, flag: &str, default: &str) -> usize {
        self.value(flag, default).parse().expect("a number")
    }

    fn has(&self, flag: &str) -> bool {
        self.0.iter().any(|argument| argument == flag)
    }
}

fn main() {
    let arguments = Arguments(std::env::args().skip(1).filter(|argument| argument != "--bench").collect());
    let (workers, parameters) = (arguments.number("--workers", "8"), arguments.number("--parameters", "10000"));
    let (rounds, codec) = (arguments.number("--rounds", "50") as u64, arguments.value("--codec", "sign"));
    let listen = arguments.value("--listen", "127.0.0.1:0");
    if arguments.has("serve") {
        return serve(Path::new(&arguments.0[1]), workers, parameters, rounds, &codec, &listen);
    }
    let dir = tempfile::tempdir().unwrap();
    let through = arguments.value("--through", "");
    let program = std::env::current_exe().unwrap();
    let words = through.split_whitespace().map(Into::into).chain([program.into_os_string()]).collect::<Vec<_>>();
    let mut server = Command::new(&words[0])
        .args(&words[1..])
        .args(["serve", dir.path().to_str().unwrap(), "--workers", &workers.to_string(), "--codec", &codec])
        .args(["--parameters", &parameters.to_string(), "--rounds", &rounds.to_string(), "--listen", &listen])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let address = lines.next().unwrap().unwrap();
    let options = (0..workers).map(|i| options(&address, &format!("worker-{i}"), dir.path())).collect::<Vec<_>>();
    let pid = server.id();
    let memory = Mutex::new(Vec::new());
    let after = |round: u64| {
        if round.is_multiple_of((rounds / 10).max(1)) {
            memory.lock().unwrap().push(resident(pid));
        }
    };
    let run = if arguments.has("--light") { light } else { whole };
    let seconds = run(options, rounds, &after);
    let (server_cpu, workers_cpu) = (cpu(pid), cpu(std::process::id()));
    drop(server.stdin.take()); // now it may tell, and end
    let status: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    server.wait().unwrap();
    let up = status["bytes_received"].as_u64().unwrap() as usize / rounds as usize / workers;
    let shelf = thinwire_server::log::Log::open(&dir.path().join("run")).unwrap().shelf();
    let down = shelf.read(rounds - 1).unwrap().expect("the last round").message.len();
    let bytes = ((up + down) * workers) as f64 * rounds as f64;
    let bare = listen.starts_with("127.").then(|| bare(workers, up, down, rounds.min(200)));
    let result = serde_json::json!({
        "workers": workers,
        "light": arguments.has("--light"),
        "parameters": parameters,
        "codec": codec,
        "message_bytes": [up, down],
        "rounds": status["rounds"],
        "seconds": seconds,
        "rounds_per_second": rounds as f64 / seconds,
        "bytes_per_second": bytes / seconds,
        "bare_sockets_bytes_per_second": bare,
        "part_of_bare_sockets": bare.map(|bare| bytes / seconds / bare),
        "seconds_waiting": status["seconds_waiting"],
        "seconds_making": status["seconds_making"],
        "cpu_seconds_server": server_cpu,
        "cpu_seconds_workers": workers_cpu,
        "left_out": status["left_out"],
        "server_resident_bytes": memory.into_inner().unwrap(),
    });
    println!("{result}");
}

fn options(address: &str, name: &str, dir: &Path) -> JoinOptions {
    let options = JoinOptions::new(address, name);
    match address.starts_with("127.") {
        true => options,
        false => JoinOptions {
            token: Some(TOKEN.to_owned()),
            ca: Some(dir.join("certificate.pem")),
            server_name: Some(NAME.to_owned()),
            ..options
        },
    }
}

fn gradient(parameters: usize, worker: usize) -> Vec<f32> {
    (0..parameters).map(|k| ((k * 7 + worker) as f32).sin()).collect()
}

/// An engine to each worker. Seconds.
fn whole(options: Vec<JoinOptions>, _: u64, after: &(dyn Fn(u64) + Sync)) -> f64 {
    let groups = options.into_iter().map(|options| RemoteGroup::join(options).unwrap());
    let members = groups.map(|group| group.start().unwrap()).collect::<Vec<_>>();
    let barrier = std::sync::Barrier::new(members.len() + 1);
    std::thread::scope(|scope| {
        let threads = members.into_iter().enumerate().map(|(i, (mut member, mut params))| {
            let barrier = &barrier;
            scope.spawn(move || {
                let gradient = gradient(params.len(), i);
                barrier.wait();
                while !member.is_done() {
                    member.step(&mut params, &gradient).unwrap();
                    if i == 0 {
                        after(member.steps());
                    }
                }
                member.leave();
            })
        });
        let threads = threads.collect::<Vec<_>>();
        barrier.wait();
        let began = Instant::now();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        began.elapsed().as_secs_f64()
    })
}

/// One engine's line to all the links.
struct Fan {
    links: Vec<Link>,
    workers: usize,
    round: u64,
    /// The digest of the message that was sent last.
    sent: u64,
}

impl Collective for Fan {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn served(&self) -> Option<usize> {
        Some(self.workers)
    }
    fn reserve(&mut self, _: usize, _: usize) {}
    fn send(&mut self, _: usize, message: &[u8], _: &'static str) -> thinwire::Result<()> {
        self.sent = xxhash_rust::xxh3::xxh3_64(message);
        self.links.iter().for_each(|link| link.send(self.round, message, None));
        Ok(())
    }
    fn receive(&mut self, _: usize, message: &mut Vec<u8>, _: &'static str) -> thinwire::Result<()> {
        for link in &self.links {
            let received = link.receive(self.round, self.sent);
            let (record, _) = received.map_err(|problem| thinwire::Error::Transport { problem })?;
            message.clear();
            message.extend_from_slice(&record.message);
        }
        self.round += 1;
        Ok(())
    }
}

/// One engine for all: with equal gradients all would say the same.
fn light(options: Vec<JoinOptions>, rounds: u64, after: &(dyn Fn(u64) + Sync)) -> f64 {
    let joined = options.into_iter().map(|options| Link::join(options).unwrap()).collect::<Vec<_>>();
    let welcome = joined[0].1.clone();
    let links = joined.into_iter().map(|(link, _)| link).collect::<Vec<_>>();
    links.iter().for_each(|link| link.follow(0));
    let workers = welcome.workers as usize;
    let config = Config::from_json(&welcome.config).unwrap();
    let rate = config.learning_rate.clone().unwrap();
    let mut params = vec![0.0; welcome.parameters as usize];
    let fan = Fan { links, workers, round: 0, sent: 0 };
    let mut engine = Worker::new(&config, &params, Box::new(fan)).unwrap();
    let gradient = gradient(params.len(), 0);
    let began = Instant::now();
    for step in 0..rounds {
        engine.step(&mut params, &gradient, rate.at(step)).unwrap();
        after(step + 1);
    }
    began.elapsed().as_secs_f64()
}

/// Serves until standard input ends; then tells its status.
fn serve(dir: &Path, workers: usize, parameters: usize, rounds: u64, codec: &str, listen: &str) {
    let codec = Some(codec.parse().expect("a codec"));
    let config =
        Config { codec, learning_rate: Some(LearningRate::constant(1e-3)), ..Config::new(Name::EFFICIENT_ADAM) };
    let retention = Retention { keep: 200, snapshot_every: 200, snapshots: 2 };
    let initial = vec![0.0; parameters];
    let run = Run::create(&dir.join("run"), &config, &initial, workers, rounds, String::new(), retention).unwrap();
    let rules = Rules {
        quorum: workers,
        workers,
        deadline: Duration::from_secs(60),
        max_members: workers,
        per_identity: workers,
    };
    let security = if listen.starts_with("127.") { Security::default() } else { security(dir) };
    let server = Server::start(run, listen.parse().unwrap(), rules, security).unwrap();
    println!("{}", server.address());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    println!("{}", serde_json::to_string(&server.status()).unwrap());
    server.stop().unwrap();
}

/// A certificate that signs itself, in `dir`, and a token.
fn security(dir: &Path) -> Security {
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
    let (certificate, key) = (dir.join("certificate.pem"), dir.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    Security {
        tls: Some(Tls { certificate, key, client_ca: None }),
        token: Some(TOKEN.to_owned()),
        ..Security::default()
    }
}

/// Bytes of memory that a process has.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().split(' ').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Seconds of the CPU that a process has had.
fn cpu(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect::<Vec<_>>();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// Bytes a second of sockets that only carry: in each round every worker sends `up` bytes, and gets `down` when all have sent.
fn bare(workers: usize, up: usize, down: usize, rounds: u64) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let barrier = Arc::new(std::sync::Barrier::new(workers));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let barrier = Arc::clone(&barrier);
            scope.spawn(move || {
                let (mut there, mut message) = (TcpStream::connect(address).unwrap(), vec![0; up.max(down)]);
                there.set_nodelay(true).unwrap();
                for _ in 0..rounds {
                    there.write_all(&message[..up]).unwrap();
                    there.read_exact(&mut message[..down]).unwrap();
                }
            });
            let mut here = listener.accept().unwrap().0;
            here.set_nodelay(true).unwrap();
            scope.spawn(move || {
                let mut message = vec![0; up.max(down)];
                for _ in 0..rounds {
                    here.read_exact(&mut message[..up]).unwrap();
                    barrier.wait();
                    here.write_all(&message[..down]).unwrap();
                }
            });
        }
    });
    ((up + down) * workers) as f64 * rounds as f64 / began.elapsed().as_secs_f64()
}
