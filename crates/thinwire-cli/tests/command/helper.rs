//! Runs the binary in a temporary folder, and reads what it leaves there.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A network that takes milliseconds to train, without `--steps`.
pub const NETWORK: &str = "--layers 1 --dim 16 --heads 2 --context 16 --batch 2 --eval-examples 32";

pub const OPTIMIZERS: [&str; 4] = ["adam", "one-bit-adam", "zero-one-adam", "efficient-adam"];

/// A folder that commands run in, gone with the test.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Place {
        Place(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).expect("a file that can be written");
    }

    pub fn read(&self, name: impl AsRef<Path>) -> String {
        let path = self.path(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thinwire"));
        command.args(line.split_whitespace()).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    /// Runs `thinwire line` to its end.
    pub fn thinwire(&self, line: &str) -> Ran {
        Ran::of(line, self.command(line).output().expect("the binary runs"))
    }

    /// Starts `thinwire line`, to be stopped in the middle.
    pub fn start(&self, line: &str) -> Child {
        self.command(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
    }

    /// Trains the small network for 30 steps; the summary.
    pub fn train(&self, flags: &str) -> Value {
        self.thinwire(&format!("train {NETWORK} --steps 30 {flags} --json --quiet")).json()
    }

    pub fn digest(&self, flags: &str) -> String {
        text(&self.train(flags)["digest"])
    }

    /// The lines of a run's metrics.jsonl.
    pub fn metrics(&self, run: &str) -> Vec<Value> {
        let lines = self.read(Path::new(run).join("metrics.jsonl"));
        lines.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Those lines without what differs from run to run: the time it took.
    pub fn timeless_metrics(&self, run: &str) -> Vec<Value> {
        let mut lines = self.metrics(run);
        for line in &mut lines {
            let line = line.as_object_mut().expect("an object");
            line.remove("seconds");
            line.remove("compute_cpu");
        }
        lines
    }

    pub fn step_metrics(&self, run: &str) -> Vec<Value> {
        self.metrics(run).into_iter().filter(|line| line["kind"] == "step").collect()
    }
}

/// A command that has ended.
pub struct Ran {
    line: String,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(line: &str, output: Output) -> Ran {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        assert!(!stderr.contains("panicked"), "thinwire {line}\n{stderr}");
        Ran { line: line.to_owned(), code: output.status.code(), stdout, stderr }
    }

    #[track_caller]
    pub fn succeeds(self) -> Ran {
        assert_eq!(self.code, Some(0), "thinwire {}\n{}", self.line, self.stderr);
        self
    }

    /// Standard output is one JSON value and nothing else.
    #[track_caller]
    pub fn json(self) -> Value {
        let ran = self.succeeds();
        serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|error| panic!("thinwire {}: {error}\n{}", ran.line, ran.stdout))
    }

    /// Bad usage or input: exit code 2 and one message, which holds all of `words`.
    #[track_caller]
    pub fn refused(self, words: &[&str]) {
        let Ran { line, code, stdout, stderr } = self;
        assert_eq!(code, Some(2), "thinwire {line}\n{stderr}");
        assert_eq!(stdout, "", "thinwire {line}");
        assert_eq!(stderr.matches("error: ").count(), 1, "thinwire {line}\n{stderr}");
        for word in words {
            assert!(stderr.contains(word), "thinwire {line}: no {word:?} in\n{stderr}");
        }
    }
}

/// Waits until the run has written something to the file `sign`, so that there is something to go on from.
pub fn in_the_middle(place: &Place, child: &mut Child, sign: &str) {
    while std::fs::metadata(place.path(sign)).map_or(0, |file| file.len()) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it had begun");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}
