//! At the end of a run: what the plan said of it, beside what it did.
//!
//! Rounds and bytes follow from the configuration alone. The time of a step is the run's own computing, and what the model adds
//! to it: packing as measured here and now, and the network, which under MPI has to be told (`--network`).

use super::cost::{Estimate, Place};
use super::measure;
use super::methods::Method;
use super::network::{self, Network};
use crate::bench;
use crate::numbers::{self, bytes};
use crate::record::{Planned, Rounds, Summary};
use anyhow::Result;
use std::path::Path;
use thinwire::Config;

/// Between threads nothing goes over a link: what their messages cost is in packing.
const MEMORY: Network = Network { bandwidth: 1e15, framing: 1.0, latency: 0.0, message: 0.0 };

/// The plan of a run of `config` that took `compute` seconds of computing a step, its workers on `hosts`.
///
/// `network` is what probe wrote; without it threads have none to wait for, and of processes the time is not known.
pub fn planned(
    config: &Config,
    params: usize,
    hosts: &[usize],
    steps: u64,
    compute: f64,
    threads: bool,
    network: Option<&Path>,
) -> Result<Planned> {
    let host_count = hosts.iter().max().map_or(1, |last| last + 1);
    let sharing = if threads { hosts.len() } else { hosts.len().div_ceil(host_count) };
    let crowding = (sharing as f64 / bench::cores() as f64).max(1.0);
    let place = Place { hosts: hosts.to_vec(), crowding };
    let links = match network {
        _ if threads || hosts.len() == 1 => Some(MEMORY),
        Some(path) => Some(network::read(path)?.network(crowding, None)?),
        None => None,
    };
    let methods = [Method::new(config)?];
    let packing = measure::packing(&methods, params, &place)?;
    let [method] = methods;
    let estimate = Estimate::new(method, params, steps, compute, &place, &packing)?;
    let rounds = estimate.plan.rounds;
    // The journal has one line a step: a sync at the end makes a skipped step a coarse one.
    let skipped = steps - rounds.exact - rounds.coarse;
    Ok(Planned {
        bytes_sent_per_worker: estimate.bytes_sent,
        rounds: Rounds { exact: rounds.exact, coarse: rounds.coarse, skipped },
        step_seconds: links.map(|links| estimate.mean_step(&links)),
    })
}

/// "planned …; measured …".
pub fn sentence(planned: &Planned, summary: &Summary) -> String {
    let (rounds, measured) = (planned.rounds, summary.rounds);
    let of = |rounds: Rounds| format!("{}, {}, {} rounds", rounds.exact, rounds.coarse, rounds.skipped);
    let step = summary.seconds.total / summary.steps.max(1) as f64;
    let (planned_step, error) = match planned.step_seconds {
        Some(seconds) => {
            (format!("{} a step", numbers::seconds(seconds)), format!(" ({:+.0} %)", 100.0 * (step / seconds - 1.0)))
        }
        None => ("the time not known without --network".to_owned(), String::new()),
    };
    let remark = match planned.bytes_sent_per_worker == summary.bytes_sent_per_worker {
        true => String::new(),
        false => format!(
            "\n          (the plan is of {} workers, all of them in every step from the first on)",
            summary.workers
        ),
    };
    format!(
        "planned   {}, {}, {planned_step}\nmeasured  {}, {}, {} a step{error}{remark}",
        bytes(planned.bytes_sent_per_worker as f64),
        of(rounds),
        bytes(summary.bytes_sent_per_worker as f64),
        of(measured),
        numbers::seconds(step),
    )
}
