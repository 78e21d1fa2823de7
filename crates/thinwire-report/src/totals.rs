//! A run in a few figures: from its summary, or, while there is none, from its lines so far.

use crate::load::Run;
use crate::record::{Phases, Rounds, projected};

/// Over how many of the last steps the training loss is averaged, where the summary does not say it.
const LAST_STEPS: usize = 50;

#[derive(Clone, Debug)]
pub struct Totals {
    pub steps: u64,
    pub train_loss: f64,
    /// NaN where nothing was held out.
    pub val_loss: f64,
    pub accuracy: Option<f64>,
    /// The accuracy of whoever always answers the most frequent class.
    pub majority: Option<f64>,
    pub matthews: Option<f64>,
    /// That a worker sent.
    pub bytes: f64,
    pub rounds: Rounds,
    pub seconds: Phases,
    pub compute_cpu: f64,
}

impl Totals {
    pub fn of(run: &Run) -> Totals {
        let Some(end) = &run.summary else { return Totals::so_far(run) };
        Totals {
            steps: end.steps,
            train_loss: end.train_loss,
            val_loss: end.val_loss,
            accuracy: end.accuracy,
            majority: end.majority,
            matthews: end.matthews,
            bytes: end.bytes_sent_per_worker as f64,
            rounds: end.rounds,
            seconds: end.seconds,
            compute_cpu: end.compute_cpu,
        }
    }

    fn so_far(run: &Run) -> Totals {
        let steps = &run.steps;
        let last = &steps[steps.len().saturating_sub(LAST_STEPS)..];
        let eval = run.evals.last();
        let taken = |kind: &str| steps.iter().filter(|step| step.round == kind).count() as u64;
        let seconds = |phase: fn(&Phases) -> f64| steps.iter().map(|step| phase(&step.seconds)).sum();
        Totals {
            steps: steps.len() as u64,
            train_loss: last.iter().map(|step| step.loss).sum::<f64>() / last.len() as f64,
            val_loss: eval.map_or(f64::NAN, |eval| eval.val_loss),
            accuracy: eval.and_then(|eval| eval.accuracy),
            majority: None,
            matthews: eval.and_then(|eval| eval.matthews),
            bytes: steps.last().map_or(0.0, |step| step.bytes_total),
            rounds: Rounds { exact: taken("exact"), coarse: taken("coarse"), skipped: taken("skipped") },
            seconds: Phases {
                total: seconds(|s| s.total),
                compute: seconds(|s| s.compute),
                pack: seconds(|s| s.pack),
                wire: seconds(|s| s.wire),
                wait: seconds(|s| s.wait),
            },
            compute_cpu: steps.iter().map(|step| step.compute_cpu).sum(),
        }
    }

    /// Seconds with each worker on a machine and a link of its own.
    pub fn projected(&self, bandwidth: f64) -> f64 {
        let rounds = self.rounds.exact + self.rounds.coarse;
        projected(self.compute_cpu, self.seconds.pack, self.bytes, rounds, bandwidth)
    }
}
