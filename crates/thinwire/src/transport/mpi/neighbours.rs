//! Whether the processes of the other workers on this machine still live.
//!
//! MPI does not say: a message that will never come looks like one that is late. But a process that is gone is missing from
//! /proc, or a zombie there, at once. Workers on other machines, in other containers, or on systems without /proc are not
//! watched; the deadline finds those.

use serde::{Deserialize, Serialize};
use std::fs;

/// A process as its machine knows it: the number may be used again, but not with the same start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Whom it shares a host with, for the means.
    pub host: String,
    /// Whose numbers these are: hosts of one name may be two machines, and one machine may have containers.
    table: Option<String>,
    id: u32,
    start: Option<String>,
}

impl Process {
    pub fn this(host: String) -> Process {
        let id = std::process::id();
        Process { host, table: table(), id, start: start_of(id) }
    }

    /// Whether it is gone; false also when that cannot be told from the process `here`.
    pub fn is_gone(&self, here: &Process) -> bool {
        let watched = self.table.is_some() && self.table == here.table && self.start.is_some();
        watched && start_of(self.id) != self.start
    }
}

/// The boot of this machine, and the namespace of its process numbers.
fn table() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(boot + fs::read_link("/proc/self/ns/pid").ok()?.to_str()?)
}

/// When process `id` began, in the kernel's own count; None when there is none, or only its corpse.
fn start_of(id: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The second field is the program's name in parentheses, and may hold anything; the state is the third, the start the 22nd.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?;
    (!matches!(state, "Z" | "X" | "x")).then(|| start.to_owned())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_until_it_is_killed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let here = Process::this(String::new());
        let process = Process { id: child.id(), start: start_of(child.id()), ..here.clone() };
        assert!(!process.is_gone(&here));
        child.kill().expect("a child");
        while !process.is_gone(&here) {
            std::thread::yield_now(); // a zombie is gone
        }
        child.wait().expect("a child");
        assert!(process.is_gone(&here));
        let abroad = Process { table: Some("another machine".to_owned()), ..process.clone() };
        assert!(!abroad.is_gone(&here), "its number means nothing here");
        assert!(!Process { start: None, ..process }.is_gone(&here));
    }
}
