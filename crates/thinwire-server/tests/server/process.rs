//! A server in a process of its own, to be killed.
//!
//! It is this test program, started again to run the one test that serves; so there is nothing else to build.

use crate::helper::*;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use thinwire_server::{Rules, Run, Security, Server};

const FOLDER: &str = "THINWIRE_TEST_SERVES";

pub struct Process {
    child: Child,
    dir: PathBuf,
    pub address: SocketAddr,
}

/// This program, to run one test, which finds in `variable` what it is told.
pub fn this_program(test: &str, variable: &str, told: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(variable, told)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

impl Process {
    /// Serves the run in `dir`, at a port that is free or at `address`.
    pub fn start(dir: &Path, address: Option<SocketAddr>, deadline: Duration) -> Process {
        let address = address.unwrap_or("127.0.0.1:0".parse().unwrap());
        let told = format!("{}\n{address}\n{}", dir.display(), deadline.as_millis());
        let mut child = this_program("process::serves_when_told_to", FOLDER, &told);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let found = lines.map_while(Result::ok).find_map(|line| line.split("serving at ").nth(1)?.trim().parse().ok());
        Process { child, dir: dir.to_owned(), address: found.expect("a server that serves") }
    }

    /// SIGKILL, at once.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Serves again, where it did, after it was killed.
    pub fn again(self, deadline: Duration) -> Process {
        Process::start(&self.dir, Some(self.address), deadline)
    }

    /// As if it had died while it wrote the next round: some of a frame, at the end of the log.
    pub fn tear(&self, bytes: usize) {
        let segments = thinwire_server::log::numbered(&self.dir, "log").unwrap();
        let (path, other) = (&segments.last().unwrap().1, &segments.first().unwrap().1);
        let frame = std::fs::read(other).unwrap();
        let mut whole = std::fs::read(path).unwrap();
        whole.extend(&frame[..bytes.min(frame.len() / 2).min(60)]);
        std::fs::write(path, whole).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Nothing, unless this program was started to be a server.
#[test]
fn serves_when_told_to() {
    let Ok(told) = std::env::var(FOLDER) else { return };
    let mut told = told.lines();
    let (dir, address) = (PathBuf::from(told.next().unwrap()), told.next().unwrap().parse().unwrap());
    let deadline = Duration::from_millis(told.next().unwrap().parse().unwrap());
    crate::toy::add();
    let run = Run::open(&dir, RETENTION).unwrap();
    let rules = Rules { deadline, ..rules(run.spec.workers) };
    // The port may be taken for a moment by a connection of the one before.
    let server = Server::start(run, address, rules, Security::default()).unwrap();
    println!("\nserving at {}", server.address());
    std::thread::sleep(Duration::from_secs(600));
}
