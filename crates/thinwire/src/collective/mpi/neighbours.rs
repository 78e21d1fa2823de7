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
    pub host: String,
    id: u32,
    start: Option<String>,
}

impl Process {
    pub fn this(host: String) -> Process {
        let id = std::process::id();
        Process { host, id, start: start_of(id) }
    }

    /// None when it cannot be told from here.
    pub fn lives(&self) -> Option<bool> {
        let start = self.start.as_ref()?;
        Some(start_of(self.id).as_ref() == Some(start))
    }
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
        let process = Process { host: String::new(), id: child.id(), start: start_of(child.id()) };
        assert_eq!(process.lives(), Some(true));
        child.kill().expect("a child");
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert_eq!(process.lives(), Some(false), "a zombie is dead");
        child.wait().expect("a child");
        assert_eq!(process.lives(), Some(false));
        assert_eq!(Process { start: None, ..process }.lives(), None, "of another container");
    }
}
