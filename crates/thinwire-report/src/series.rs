//! Lines of a plot, from lines of `metrics.jsonl`: the training loss smoothed, and no more points than can be seen.

use crate::load::Run;

/// More points than this a line does not show at the plots' width.
const MOST_POINTS: usize = 400;

/// Loss after so many steps.
pub type Losses = Vec<(u64, f64)>;

/// The training loss, each value the mean of the [`window`] of steps around it. NaN where the loss is no number.
pub fn train(run: &Run) -> Losses {
    let half = window(run) / 2;
    let n = run.steps.len();
    // Sums and counts of the finite losses before each step: a mean is then a difference of two of them.
    let mut before = vec![(0.0, 0.0)];
    for step in &run.steps {
        let (sum, count) = before[before.len() - 1];
        before.push(if step.loss.is_finite() { (sum + step.loss, count + 1.0) } else { (sum, count) });
    }
    let mean = |at: usize| {
        if !run.steps[at].loss.is_finite() {
            return f64::NAN;
        }
        let (from, to) = (before[at.saturating_sub(half)], before[(at + half + 1).min(n)]);
        (to.0 - from.0) / (to.1 - from.1)
    };
    thinned(n).map(|at| (run.steps[at].step, mean(at))).collect()
}

pub fn held_out(run: &Run) -> Losses {
    thinned(run.evals.len()).map(|at| (run.evals[at].step, run.evals[at].val_loss)).collect()
}

/// Over how many steps the training loss is averaged.
pub fn window(run: &Run) -> usize {
    (run.steps.len() / 60) | 1
}

/// At most [`MOST_POINTS`] of `0..n`, evenly, with both ends.
fn thinned(n: usize) -> impl Iterator<Item = usize> {
    let kept = n.min(MOST_POINTS);
    (0..kept).map(move |at| if kept == n { at } else { at * (n - 1) / (kept - 1) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::run;

    #[test]
    fn long_runs_are_thinned_and_keep_their_ends() {
        assert_eq!(thinned(3).collect::<Vec<_>>(), [0, 1, 2]);
        let kept: Vec<_> = thinned(9001).collect();
        assert_eq!((kept.len(), kept[0], kept[399]), (400, 0, 9000));
    }

    #[test]
    fn a_loss_that_is_no_number_is_a_gap_and_spoils_no_mean() {
        let mut run = run("adam", 600);
        run.steps[300].loss = f64::NAN;
        run.steps[301].loss = f64::INFINITY;
        let gaps = train(&run).iter().filter(|(_, loss)| !loss.is_finite()).count();
        assert!((1..=2).contains(&gaps), "{gaps}");
    }
}
