//! The plan of a run that has taken its steps, beside which the command puts what it did.
//!
//! Rounds and bytes follow from the configuration alone. The time of a step is the run's own computing, and what the model adds
//! to it: packing as measured here and now, and the network, which under MPI has to be told (`--network`).

use crate::bench;
use crate::cost::{Estimate, Place};
use crate::methods::Method;
use crate::network::{self, Network};
use crate::packing;
use anyhow::Result;
use std::path::Path;
use thinwire::Config;
use thinwire_report::{Planned, Rounds};

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
    let packing = packing::measure(&methods, params, &place)?;
    let [method] = methods;
    let estimate = Estimate::new(method, params, steps, compute, &place, &packing)?;
    let rounds = estimate.plan.rounds_of_steps();
    Ok(Planned {
        bytes_sent_per_worker: estimate.bytes_sent,
        rounds: Rounds { exact: rounds.exact, coarse: rounds.coarse, skipped: rounds.skipped },
        step_seconds: links.map(|links| estimate.mean_step(&links)),
    })
}
