//! What a run is compared with: Adam on the same task, measured if there is such a run, and else computed.

use crate::load::Run;
use crate::record::Summary;
use thinwire::Name;

/// What the others are compared with.
pub const BASELINE: Name = Name::ADAM;

#[derive(Clone, Copy, Debug)]
pub struct Baseline {
    /// That a worker sent.
    pub bytes: f64,
    /// Held out. None: nobody ran it, the bytes are computed.
    pub loss: Option<f64>,
}

impl Baseline {
    /// None for Adam itself, and for a run that has not ended.
    pub fn of(run: &Run, runs: &[Run]) -> Option<Baseline> {
        let end = run.summary.as_ref().filter(|end| !is_baseline(&end.optimizer))?;
        let ended = runs.iter().filter_map(|other| other.summary.as_ref());
        let measured = ended.filter(|other| is_baseline(&other.optimizer) && comparable(end, other));
        // Of several runs of Adam, the one with the best loss: the others are compared with Adam at its best.
        let best = measured.min_by(|a, b| a.val_loss.total_cmp(&b.val_loss));
        match best {
            Some(adam) => Some(Baseline { bytes: adam.bytes_sent_per_worker as f64, loss: Some(adam.val_loss) }),
            None => adam_would_send(run).map(|bytes| Baseline { bytes, loss: None }),
        }
    }

    /// How many times fewer bytes `sent` is. None if there is nothing to divide.
    pub fn times_fewer(&self, sent: f64) -> Option<f64> {
        (self.bytes > 0.0 && sent > 0.0).then(|| self.bytes / sent)
    }
}

/// Whether an optimizer is the one that others are compared with.
pub fn is_baseline(optimizer: &str) -> bool {
    optimizer == BASELINE.as_str()
}

/// Bytes that a worker would have sent with plain Adam: every step a mean of 32-bit numbers, each worker the owner of an
/// n-th of them, so that (n−1)/n of them go up and as many come down.
pub fn adam_would_send(run: &Run) -> Option<f64> {
    let end = run.summary.as_ref()?;
    let n = end.workers.max(1) as f64;
    Some(4.0 * end.params as f64 * end.steps as f64 * 2.0 * (n - 1.0) / n)
}

fn comparable(a: &Summary, b: &Summary) -> bool {
    (&a.task, a.workers, a.steps, a.params) == (&b.task, b.workers, b.steps, b.params)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::run;

    #[test]
    fn only_adam_on_the_same_task_counts() {
        let mut adam = run("adam", 40);
        let zero_one = run("zero-one-adam", 40);
        let measured = |adam: &Run| Baseline::of(&zero_one, &[adam.clone(), zero_one.clone()]).unwrap().loss.is_some();
        assert!(measured(&adam));
        adam.summary.as_mut().unwrap().workers += 1;
        assert!(!measured(&adam));
        assert!(Baseline::of(&adam, std::slice::from_ref(&adam)).is_none());
    }
}
