//! What a run has spent when it stands at a loss: the bytes, and the time that they and the work would take elsewhere.

use crate::load::Run;
use crate::record::projected;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    pub bytes: f64,
    compute_cpu: f64,
    pack: f64,
    rounds: u64,
}

impl Spent {
    /// Seconds with each worker on a machine and a link of its own.
    pub fn seconds(&self, bandwidth: f64) -> f64 {
        projected(self.compute_cpu, self.pack, self.bytes, self.rounds, bandwidth)
    }
}

/// A run's spending from its start, step by step.
pub struct Spending {
    /// The number of each step, and what was spent up to its end.
    after: Vec<(u64, Spent)>,
}

impl Spending {
    pub fn of(run: &Run) -> Spending {
        let mut sum = Spent::default();
        let after = run.steps.iter().map(|step| {
            sum.bytes = step.bytes_total;
            sum.compute_cpu += step.compute_cpu;
            sum.pack += step.seconds.pack;
            sum.rounds += u64::from(step.round != "skipped");
            (step.step, sum)
        });
        Spending { after: after.collect() }
    }

    /// Before `step`: what the parameters whose loss it measures have cost.
    pub fn before(&self, step: u64) -> Spent {
        let done = self.after.partition_point(|(number, _)| *number < step);
        if done == 0 { Spent::default() } else { self.after[done - 1].1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::run;

    #[test]
    fn the_end_has_cost_all_of_it_and_the_start_nothing() {
        let run = run("zero-one-adam", 40);
        let spending = Spending::of(&run);
        assert_eq!(spending.before(0), Spent::default());
        let end = spending.before(40);
        assert_eq!(end.bytes, run.steps[39].bytes_total);
        assert!((end.seconds(1e9) - super::super::totals::Totals::of(&run).projected(1e9)).abs() < 1e-9);
    }
}
