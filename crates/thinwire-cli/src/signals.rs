//! Ctrl-C and SIGTERM: the first lets the step end and saves, one that follows at once is the same wish again, a later one ends at
//! once.
//!
//! One wish often comes twice: `timeout` of coreutils sends its signal to the process and to its group, a terminal and a launcher
//! may both pass on a Ctrl-C. Whoever really wants to end at once has seen by then that the first one did not.

use crate::launch;
use crate::screen::say;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// So long after the first signal another one is taken for the same.
const SAME: Duration = Duration::from_secs(2);

/// What to do about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Response {
    /// End the step, save, leave.
    Stop,
    Ignore,
    /// Leave without saving.
    Leave,
}

/// When the first signal came.
#[derive(Default)]
struct Signals {
    first: Option<Instant>,
}

impl Signals {
    fn at(&mut self, now: Instant) -> Response {
        match self.first {
            None => {
                self.first = Some(now);
                Response::Stop
            }
            Some(first) if now.saturating_duration_since(first) < SAME => Response::Ignore,
            Some(_) => Response::Leave,
        }
    }
}

/// Set by Ctrl-C, or by SIGTERM.
pub static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| {
    let stop = Arc::new(AtomicBool::new(false));
    let (set, mut signals) = (Arc::clone(&stop), Signals::default());
    let handled = ctrlc::set_handler(move || match signals.at(Instant::now()) {
        Response::Ignore => {}
        Response::Leave => std::process::exit(130),
        Response::Stop => {
            set.store(true, Ordering::Relaxed);
            // A launcher tells so too when a worker was lost, and then nothing is saved: the session knows, and says so.
            if launch::rank_by_environment().is_none() {
                say!(
                    "\nstopping: the step under way is finished, then saved (a signal {} s from now or later stops at once, without saving)",
                    SAME.as_secs()
                );
            }
            launch::told_to_stop();
        }
    });
    if let Err(error) = handled {
        say!("warning: Ctrl-C will stop the run without a checkpoint ({error})");
    }
    stop
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_follows_at_once_is_the_same_wish() {
        let (mut signals, began) = (Signals::default(), Instant::now());
        let mut at = |milliseconds| signals.at(began + Duration::from_millis(milliseconds));
        assert_eq!(at(0), Response::Stop);
        assert_eq!(at(0), Response::Ignore);
        assert_eq!(at(1), Response::Ignore);
        assert_eq!(at(1999), Response::Ignore);
        assert_eq!(at(2000), Response::Leave);
        assert_eq!(at(60_000), Response::Leave);
    }
}
