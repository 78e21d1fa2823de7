//! What coding must not change, in the engine itself: an error is owed, never lost.
//!
//! A coarse mean says  mean x + (mean e + E)_before − (mean e + E)_after.  So with all debts paid the parameters are where they
//! would be without codecs, given the same gradients:
//!
//! ```text
//! Efficient-Adam   y = x − (mean e + E)     moves by the mean of the local updates γ̂·m/P, every step
//! 0/1 Adam         y = x − (mean e + E)/P   moves by the mean of u/P, at every sync, where that is within its limit
//! ```
//!
//! Both sides are worked out from the engine's own f32 state, so they agree to the rounding of one step: [`ROUNDING`].

use crate::common::engine::{CODECS, Run, Snapshot, apart, noisy, start, widen};
use crate::common::oracle::{mean_rows, zip};
use thinwire::ZeroOneAdam;
use thinwire::inside::kernel::update::LIMIT;
use thinwire::options::Decay;
use thinwire::options::Sync;
use thinwire::{CodecName, Config, LearningRate, Name};

const D: usize = 37;
const STEPS: u64 = 60;
const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPS: f64 = 1e-8;

/// Parameters and residues in units of P are of size 1, an f32 of that size is off by up to 6e-8, and a step has a few.
const ROUNDING: f64 = 5e-7;

fn rate() -> LearningRate {
    LearningRate { warmup: 5, decay: Decay::InverseSqrt, ..LearningRate::constant(0.01) }
}

fn run(config: &Config, workers: usize, (up, down): (CodecName, CodecName)) -> Run {
    let (betas, eps, weight_decay) = (Some((BETA1, BETA2)), Some(EPS), Some(0.0));
    let (codec_up, codec_down, block) = (Some(up), Some(down), Some(8));
    Run {
        config: Config { betas, eps, weight_decay, codec_up, codec_down, block, ..config.clone() },
        workers,
        start: start(D),
        rates: (0..STEPS).map(|t| rate().at(t)).collect(),
        syncs: vec![11, 30, 31],
        gradient: Box::new(|worker, t, _| noisy(0, worker, t, D)),
    }
}

/// One moment of all workers.
struct Moment<'a>(Vec<&'a Snapshot>);

impl Moment<'_> {
    fn mean(&self, of: impl Fn(&Snapshot) -> Vec<f64>) -> Vec<f64> {
        mean_rows(&self.0.iter().map(|worker| of(worker)).collect::<Vec<_>>())
    }

    /// mean e + E.
    fn owed(&self) -> Vec<f64> {
        let owner_e: Vec<f64> = self.0.iter().flat_map(|worker| worker["down_residue"].clone()).collect();
        zip(&self.mean(|worker| worker["up_residue"].clone()), &owner_e, |e, owner_e| e + owner_e)
    }
}

/// P = √(v/(1 − β2^j)) + ε.
fn p(worker: &Snapshot) -> Vec<f64> {
    let correction = 1.0 - BETA2.powf(worker["variance_updates"][0]);
    worker["v"].iter().map(|v| (v / correction).sqrt() + EPS).collect()
}

/// γ̂ = γ/(1 − β1^(t+1)).
fn gamma_hat(t: u64) -> f64 {
    f64::from(rate().at(t)) / (1.0 - BETA1.powi(t as i32 + 1))
}

fn assert_close(what: &str, got: &[f64], want: &[f64]) {
    let off = apart(got, want);
    assert!(off < ROUNDING, "{what}: off by {off:e}");
}

fn for_every_codec_and_world(check: impl Fn(&str, usize, (CodecName, CodecName))) {
    for (up, down) in CODECS {
        for workers in 1..=5 {
            check(&format!("{up} up, {down} down, {workers} workers"), workers, (up, down));
        }
    }
}

#[test]
fn efficient_adam_moves_by_the_mean_of_the_local_updates() {
    let config = Config::new(Name::EFFICIENT_ADAM);
    for_every_codec_and_world(|what, workers, codecs| {
        let run = Run { syncs: Vec::new(), ..run(&config, workers, codecs) };
        let histories = run.histories();
        let moment = |t: u64| Moment(histories.iter().map(|history| &history[t as usize]).collect());
        let y = |t: u64| zip(&moment(t).0[0]["x"], &moment(t).owed(), |x, owed| x - owed);
        for t in 1..STEPS {
            let update = |worker: &Snapshot| zip(&worker["m"], &p(worker), |m, p| gamma_hat(t) * m / p);
            let want = zip(&y(t - 1), &moment(t).mean(update), |y, update| y - update);
            assert_close(&format!("{what}, step {t}"), &y(t), &want);
        }
    });
}

/// What every worker does between one moment and the next: step t, or a sync that the caller asks for.
fn events(run: &Run) -> Vec<Option<u64>> {
    let sync = |t: &u64| run.syncs.contains(t).then_some(None);
    (0..STEPS).flat_map(|t| [Some(t)].into_iter().chain(sync(&t))).collect()
}

/// This worker's u at the end of an event, before it is sent.
fn u_to_send(worker: &Snapshot, i: usize, event: Option<u64>) -> Vec<f64> {
    let Some(t) = event else { return worker["u"].clone() };
    let m = zip(&worker["m"], &widen(&noisy(0, i, t, D)), |m, g| BETA1 * m + (1.0 - BETA1) * g);
    zip(&worker["u"], &m, |u, m| u + gamma_hat(t) * m)
}

/// Checks every sync of `run`, and returns how many there were.
fn check_syncs(what: &str, run: &Run) -> usize {
    let histories = run.histories();
    let moment = |k: usize| Moment(histories.iter().map(|history| &history[k]).collect());
    let mut syncs = 0;
    for (k, event) in events(run).into_iter().enumerate().skip(1) {
        let (before, after) = (moment(k - 1), moment(k));
        let now = |name| (before.0[0][name][0], after.0[0][name][0]);
        let exact = now("variance_updates").0 < now("variance_updates").1;
        let nothing_to_say = event.is_none() && now("steps_since_sync").0 == 0.0;
        if exact || nothing_to_say || now("steps_since_sync").1 > 0.0 {
            continue;
        }
        let p = p(after.0[0]);
        let u: Vec<_> = before.0.iter().enumerate().map(|(i, worker)| u_to_send(worker, i, event)).collect();
        // The anchor stands from the first local step on; until then x has not moved since the last sync.
        let from = if now("steps_since_sync").0 == 0.0 { "x" } else { "anchor" };
        let start = virtual_iterate(&before.0[0][from], &before.owed(), &p);
        let want = virtual_iterate(&start, &mean_rows(&u), &p);
        let got = virtual_iterate(&after.0[0]["x"], &after.owed(), &p);
        // Where the mean is more than a step may move x by, the rest of it is dropped on purpose (`update::LIMIT`).
        let within = |k: &usize| after.0[0]["m"][*k].abs() < 0.999 * f64::from(LIMIT) * p[*k];
        let kept: Vec<_> = (0..D).filter(within).collect();
        let of_kept = |values: &[f64]| kept.iter().map(|k| values[*k]).collect::<Vec<_>>();
        assert_close(&format!("{what}, {event:?}"), &of_kept(&got), &of_kept(&want));
        syncs += usize::from(kept.len() > D / 2); // or the limit acts nearly everywhere
    }
    syncs
}

/// x − owed/P.
fn virtual_iterate(x: &[f64], owed: &[f64], p: &[f64]) -> Vec<f64> {
    zip(x, &zip(owed, p, |owed, p| owed / p), |x, moved| x - moved)
}

/// Syncs of every kind: at intervals of one step and of five, before a variance step, and when the caller asks.
#[test]
fn zero_one_adam_moves_by_the_mean_u_at_every_sync() {
    let (sync, sync_every) = (Some(Sync::Every), Some(5));
    let own = ZeroOneAdam { sync, sync_every, sync_start: Some(12), kappa: Some(8), ..ZeroOneAdam::default() };
    let config = Config::of(own);
    for_every_codec_and_world(|what, workers, codecs| {
        let syncs = check_syncs(what, &run(&config, workers, codecs));
        assert!(syncs >= 10, "{syncs} syncs only");
    });
}
