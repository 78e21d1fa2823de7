//! Resuming with another number of workers drops nothing.
//!
//! ```text
//! residue           mean e + E                          the same before and after
//! local progress    x' = a·D − mean(u)/P                an exact sync, of 0/1 Adam
//!                   x' = a − mean Δ                     of local Adam, whose interval goes on
//! virtual iterate   x − (mean e + E)/P                  the same before and after, for 0/1 Adam
//! ```
//!
//! And the run goes on: the replicas are bit-identical, and the loss falls as far as without the change.

use crate::common::runs;

use runs::{LEN, Replica, STEPS, all_cases, config, loss, scratch, start, together, together_on};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;
use thinwire::inside::exchange::hosts::Hosts;
use thinwire::inside::kernel::update::{LARGEST, LIMIT, NOISE};
use thinwire::{CodecName, Config};

const PAIRS: [(usize, usize); 9] = [(1, 2), (2, 1), (2, 3), (3, 2), (4, 2), (2, 5), (5, 3), (3, 1), (1, 4)];

type State = BTreeMap<&'static str, Vec<f64>>;

/// Trains `before` workers to `step` and goes on with `after`; the states of all on both sides.
fn regroup(config: &Config, (before, after): (usize, usize), step: u64) -> (Vec<State>, Vec<State>) {
    regroup_on(config, (&vec![0; before], &vec![0; after]), step)
}

/// The same for workers on hosts.
fn regroup_on(config: &Config, (before, after): (&[usize], &[usize]), step: u64) -> (Vec<State>, Vec<State>) {
    let dir = scratch();
    let old = together_on(before, |group| {
        let mut replica = Replica::new(config, LEN, group)?;
        replica.train(step)?;
        replica.save(dir.path())?;
        Ok(replica.numbers())
    });
    let new = together_on(after, |group| Ok(Replica::resume(config, dir.path(), LEN, group)?.numbers()));
    (old, new)
}

/// What was, and what came of it.
struct Regrouped {
    case: String,
    config: Config,
    old: Vec<State>,
    new: Vec<State>,
}

/// Every case and pair, at a step of each phase.
static ALL: LazyLock<Vec<Regrouped>> = LazyLock::new(|| {
    let regrouped = |case: &str, config: &Config, pair, step| {
        let (old, new) = regroup(config, pair, step);
        Regrouped { case: format!("{case}, {pair:?} at step {step}"), config: config.clone(), old, new }
    };
    let places = PAIRS.into_iter().flat_map(|pair| [0, 5, 14, 18, 27].map(|step| (pair, step))).collect::<Vec<_>>();
    all_cases()
        .flat_map(|(case, config)| {
            places.iter().map(|(pair, step)| regrouped(&case, &config, *pair, *step)).collect::<Vec<_>>()
        })
        .collect()
});

fn mean(states: &[State], name: &str) -> Vec<f64> {
    let column = |k: usize| states.iter().map(move |state| state[name][k]).sum::<f64>() / states.len() as f64;
    (0..states[0][name].len()).map(column).collect()
}

/// E, which lies cut among the workers.
fn whole(states: &[State]) -> Vec<f64> {
    states.iter().flat_map(|state| state["down_residue"].clone()).collect()
}

/// mean e + E.
pub fn residue(states: &[State]) -> Vec<f64> {
    mean(states, "up_residue").iter().zip(whole(states)).map(|(e, whole)| e + whole).collect()
}

/// Equal to what a handful of f32 operations on numbers of this size may lose.
pub fn assert_close(left: &[f64], right: &[f64], context: &str) {
    assert_eq!(left.len(), right.len(), "{context}");
    let size = left.iter().chain(right).fold(0.0, |size: f64, value| size.max(value.abs()));
    for (k, (left, right)) in left.iter().zip(right).enumerate() {
        assert!((left - right).abs() <= 1e-6 * size, "{context}, {k}: {left} and {right}");
    }
}

#[test]
fn the_residue_is_conserved() {
    for Regrouped { case, old, new, .. } in &*ALL {
        assert_close(&residue(old), &residue(new), case);
    }
}

/// Or the test above would pass on zeros.
#[test]
fn there_is_residue_to_conserve() {
    let remembers = |config: &Config| {
        let config = config.resolved().unwrap();
        let feedback = config.feedback_up.unwrap_or(0.0).min(config.feedback_down.unwrap_or(0.0));
        feedback > 0.0 && config.codec_up != Some(CodecName::F32)
    };
    for (case, config) in all_cases().filter(|(_, config)| remembers(config)) {
        let (old, _) = regroup(&config, (3, 2), 27);
        assert!(residue(&old).iter().filter(|value| value.abs() > 1e-6).count() > LEN / 2, "{case}");
    }
}

/// The blocks [r·nb/n, (r+1)·nb/n) of E go to worker r; in the central form worker 0 has them all.
#[test]
fn the_owners_residue_is_cut_anew() {
    for Regrouped { case, config, old, new } in &*ALL {
        assert_eq!(whole(old), whole(new), "{case}");
        let total = whole(new).len();
        let cut = |r: usize| (r * LEN.div_ceil(8) / new.len() * 8).min(total);
        for (rank, state) in new.iter().enumerate() {
            let owned = match config.topology {
                Some(thinwire::options::Topology::Central) => {
                    if rank == 0 {
                        total
                    } else {
                        0
                    }
                }
                _ => cut(rank + 1) - cut(rank),
            };
            assert_eq!(state["down_residue"].len(), owned, "{case}, rank {rank}");
        }
    }
}

/// What is the same on all workers passes over as it is; what each has of its own, as its mean.
#[test]
fn moments_and_parameters_pass_over() {
    for Regrouped { case, old, new, .. } in &*ALL {
        let synced = old[0].get("steps_since_sync").is_none_or(|steps| steps == &[0.0]);
        let is_local = case.contains("local");
        let own_moments = ["efficient", "local", "lion", "birder"].iter().any(|name| case.contains(name));
        let names = ["params", "m", "v", "b"].into_iter().filter(|name| old[0].contains_key(name));
        for name in names.filter(|name| synced || is_local || *name == "v") {
            assert_close(&mean(old, name), &new[0][name], &format!("{case}, {name}"));
            if !own_moments || name == "params" && synced {
                assert_eq!(old[0][name], new[0][name], "{case}, {name}");
            }
        }
        assert_eq!(old[0].get("variance_updates"), new[0].get("variance_updates"), "{case}");
    }
}

/// What a state has of each group, for each coordinate.
fn by_coordinate(config: &Config, of_groups: &[f64]) -> Vec<f64> {
    if config.groups.is_empty() {
        return vec![of_groups.first().copied().unwrap_or(1.0); LEN];
    }
    let of_group = |(group, value): (&thinwire::options::Group, &f64)| vec![*value; group.length];
    config.groups.iter().zip(of_groups).flat_map(of_group).collect()
}

/// P = √(v/(1−β2^j)) + ε.
fn denominators(config: &Config, state: &State) -> Vec<f64> {
    let correction = match (config.bias_correction, state["variance_updates"][0]) {
        (Some(false), _) | (_, 0.0) => 1.0,
        (_, updates) => 1.0 - 0.999f64.powf(updates),
    };
    state["v"].iter().map(|v| (v / correction).sqrt() + 1e-8).collect()
}

/// a: where the last sync left the parameters. Until a local step follows, that is where they are.
fn anchor(state: &State) -> &[f64] {
    &state[if state["steps_since_sync"] == [0.0] { "params" } else { "anchor" }]
}

/// a·D − (mean(u)/P, limited): where the old workers would be after an exact sync. A mean that is on its way comes first.
fn synced(config: &Config, states: &[State]) -> Vec<f64> {
    let (mut u, p) = (mean(states, "u"), denominators(config, &states[0]));
    let since = |name: &str| by_coordinate(config, &states[0][name]);
    let (gamma, d) = (since("rates_since_sync"), since("decays_since_sync"));
    let v = &states[0]["v"];
    let limited = |update: f64, gamma: f64, v: f64, most: f64| {
        let seen = v > 0.0 && update != 0.0;
        let trust = if seen { (f64::from(NOISE) * gamma / update.abs()).min(1.0) } else { 1.0 };
        trust * update.clamp(-most * gamma, most * gamma)
    };
    let mut a = anchor(&states[0]).to_vec();
    if states[0].get("mean_due").is_some_and(|due| due != &[0.0]) {
        let (arrived, sent) = (&states[0]["mean_arrived"], mean(states, "u_sent"));
        let (gamma, d, carried) = (since("rates_of_mean"), since("decays_of_mean"), since("carried_of_mean"));
        for k in (0..LEN).filter(|k| gamma[*k] > 0.0) {
            let momentum = |u: f64| match v[k] > 0.0 {
                true => p[k] * limited(u / gamma[k] / p[k], 1.0, v[k], f64::from(LARGEST)),
                false => u / gamma[k],
            };
            u[k] += carried[k] * (momentum(arrived[k]) - momentum(sent[k]));
            a[k] = a[k] * d[k] - limited(arrived[k] / p[k], gamma[k], v[k], f64::from(LIMIT));
        }
    }
    (0..LEN).map(|k| a[k] * d[k] - limited(u[k] / p[k], gamma[k], v[k], f64::from(LIMIT))).collect()
}

fn virtual_iterate(config: &Config, states: &[State]) -> Vec<f64> {
    let (x, p) = (synced(config, states), denominators(config, &states[0]));
    x.iter().zip(residue(states)).zip(p).map(|((x, residue), p)| x - residue / p).collect()
}

#[test]
fn local_progress_is_folded_in() {
    let local = || ALL.iter().filter(|regrouped| regrouped.old[0].contains_key("u"));
    for Regrouped { case, config, old, new } in local() {
        for state in new {
            assert_close(&synced(config, old), &state["params"], case);
            assert_eq!(state["steps_since_sync"], [0.0], "{case}");
            assert!(state["u"].iter().all(|u| *u == 0.0), "{case}");
        }
        assert_close(&virtual_iterate(config, old), &virtual_iterate(config, new), case);
    }
    let between_syncs = local().filter(|regrouped| regrouped.old[0]["steps_since_sync"] != [0.0]).count();
    assert!(between_syncs > 100, "only {between_syncs} are between two syncs");
}

/// The workers of local Adam go on in the middle of an interval, at the mean of where they were: the anchor and all that is common stay to
/// the bit, and so does a group that rests.
#[test]
fn an_interval_of_local_adam_goes_on() {
    let mut between_syncs = 0;
    for Regrouped { case, config, old, new } in ALL.iter().filter(|regrouped| regrouped.case.contains("local")) {
        between_syncs += usize::from(old[0]["steps_since_sync"] != [0.0]);
        for state in new {
            for name in ["anchor", "outer_momentum", "last_rates", "steps_since_sync"] {
                assert_eq!(old[0].get(name), state.get(name), "{case}, {name}");
            }
            assert_eq!(state["steps_taken_since_sync"], state["steps_since_sync"], "{case}");
            let moves = by_coordinate(config, &config.groups.iter().map(|group| group.lr_scale).collect::<Vec<_>>());
            for k in (0..LEN).filter(|k| moves[*k] == 0.0) {
                assert_eq!(old[0]["params"][k], state["params"][k], "{case}, {k}");
            }
        }
    }
    assert!(between_syncs > 200, "only {between_syncs} are between two syncs");
}

#[test]
fn new_replicas_are_bit_identical_and_stay_so() {
    for (case, config) in all_cases() {
        for (before, after) in PAIRS {
            let dir = scratch();
            save_at(18, &config, before, dir.path());
            let ends = together(after, |group| {
                let mut replica = Replica::resume(&config, dir.path(), LEN, group)?;
                let resumed = replica.x.clone();
                replica.train(STEPS)?;
                replica.sync()?;
                Ok((resumed, replica.x))
            });
            assert!(ends.iter().all(|end| *end == ends[0]), "{case}, {before} to {after}");
        }
    }
}

fn save_at(step: u64, config: &Config, workers: usize, dir: &Path) {
    together(workers, |group| {
        let mut replica = Replica::new(config, LEN, group)?;
        replica.train(step)?;
        replica.save(dir)
    });
}

const HALF: u64 = 200;

/// The loss half-way and at the end, with `after` workers for the second half.
fn losses(config: &Config, before: usize, after: usize) -> (f64, f64) {
    let dir = scratch();
    save_at(HALF, config, before, dir.path());
    let ends = together(after, |group| {
        let mut replica = Replica::resume(config, dir.path(), LEN, group)?;
        let half_way = loss(&replica.x);
        replica.train(2 * HALF)?;
        replica.sync()?;
        Ok((half_way, loss(&replica.x)))
    });
    ends[0]
}

/// To 1.5 times the loss of a run that kept either number of workers.
#[test]
fn convergence_goes_on() {
    const FACTOR: f64 = 1.5;
    for words in [
        "name = 'adam'",
        "name = 'one-bit-adam'; warmup = 60",
        "name = 'zero-one-adam'; kappa = 8",
        "name = 'efficient-adam'; topology = 'central'",
        "name = 'local-adam'; outer = 'average'; sync_every = 7",
    ] {
        let schedule = format!("learning_rate = {{peak = 0.03, warmup = 20, decay = 'linear', steps = {}}}", 2 * HALF);
        let config = config(&format!("{words}; weight_decay = 0.0; {schedule}"));
        for (before, after) in [(1, 3), (3, 1), (4, 2), (2, 5)] {
            let kept = losses(&config, before, before).1.max(losses(&config, after, after).1);
            let (half_way, end) = losses(&config, before, after);
            assert!(end < 0.8 * half_way && half_way < loss(&start(LEN)), "{words}: {half_way} to {end}");
            assert!(end < FACTOR * kept, "{words}, {before} to {after}: {end}, not {kept}");
        }
    }
}

/// Other hosts, with another number of workers and with the same: a host's residue lies with its relays.
const MOVES: [(&[usize], &[usize]); 8] = [
    (&[0, 0, 1], &[0, 1, 1]),
    (&[0, 0, 1, 1], &[0, 1, 0, 1]),
    (&[0, 0, 1, 1], &[0, 1, 2, 3]),
    (&[0, 0, 0], &[0, 0, 1]),
    (&[0, 0, 1], &[0, 0, 0, 1, 2]),
    (&[0, 0, 0, 1, 2], &[0, 0, 1]),
    (&[0, 0, 1, 1], &[0, 0]),
    (&[0], &[0, 1, 1, 1]),
];

/// The mean of e is what it was, and all of it is where it will be paid from: on each host with one worker a value.
#[test]
fn the_residue_is_conserved_on_other_hosts() {
    for (case, config) in all_cases() {
        for ((before, after), step) in MOVES.into_iter().flat_map(|places| [14, 27].map(|step| (places, step))) {
            let context = format!("{case}, {before:?} to {after:?} at step {step}");
            let (old, new) = regroup_on(&config, (before, after), step);
            assert_close(&residue(&old), &residue(&new), &context);
            let hosts = Hosts::new(after);
            for (host, k) in (0..hosts.count()).flat_map(|host| (0..new[0]["up_residue"].len()).map(move |k| (host, k)))
            {
                let holds = |rank: &&usize| new[**rank]["up_residue"][k] != 0.0;
                let holders = hosts.members(host).iter().filter(holds).count();
                assert!(holders <= 1 || hosts.count() == 1, "{context}: {holders} workers hold value {k}");
            }
        }
    }
}

#[test]
fn replicas_on_other_hosts_are_bit_identical_and_stay_so() {
    for (case, config) in all_cases() {
        for (before, after) in MOVES {
            let dir = scratch();
            together_on(before, |group| {
                let mut replica = Replica::new(&config, LEN, group)?;
                replica.train(18)?;
                replica.save(dir.path())
            });
            let ends = together_on(after, |group| {
                let mut replica = Replica::resume(&config, dir.path(), LEN, group)?;
                let resumed = replica.x.clone();
                replica.train(STEPS)?;
                replica.sync()?;
                Ok((resumed, replica.x))
            });
            assert!(ends.iter().all(|end| *end == ends[0]), "{case}, {before:?} to {after:?}");
        }
    }
}
