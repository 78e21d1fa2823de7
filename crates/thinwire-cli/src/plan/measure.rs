//! What `plan` measures itself, on this machine: packing, and with `--measure` computing.

use super::arguments::Plan;
use super::cost::{Packing, Place};
use super::methods::Method;
use crate::arguments::Common;
use crate::bench::kernels::CodecSpeed;
use crate::bench::{kernels, steps};
use crate::job::Job;
use crate::numbers::median;
use crate::run_spec::RunSpec;
use crate::settings::Settings;
use anyhow::{Context, Result};
use std::sync::Barrier;
use std::time::Instant;
use thinwire::CodecName;
use thinwire_models::Share;

/// Values of the vectors whose packing is measured. More would be nearer to a large model, and take longer: 10M cost a tenth to a
/// third more a value than 2M where it was tried (benchmarks/runs/2026-11-16-plan-sizes).
const VALUES: usize = 4_000_000;

/// Steps of the task that are measured, after two that are not.
const WARM: usize = 2;
const STEPS: usize = 8;

/// Enough of them, if they are long.
const ENOUGH: f64 = 8.0;

/// What packing costs for each of `methods`, where workers are placed as in `place`.
pub fn packing(methods: &[Method], params: usize, place: &Place) -> Result<Packing> {
    let values = params.clamp(1, VALUES);
    // Two hosts with as many workers on one as there are, up to two: more change little.
    let hosts: &[usize] = match (place.workers(), place.host_count()) {
        (1, _) => &[0],
        (workers, hosts) if hosts > 1 && workers > hosts => &[0, 0, 1, 1],
        _ => &steps::PAIR,
    };
    let values = if hosts.len() > 2 { values.div_ceil(2) } else { values };
    let (mut costs, mut codecs) = (Vec::new(), Vec::<CodecSpeed>::new());
    for Method { config, .. } in methods {
        costs.extend(steps::measure(config, hosts, values)?);
        for codec in [config.exact_codec, config.codec_up, config.codec_down].into_iter().flatten() {
            if !codecs.iter().any(|speed| speed.codec == codec) {
                codecs.push(kernels::speed(codec, values.min(500_000))?);
            }
        }
    }
    Ok(Packing::Measured { steps: costs, codecs })
}

/// The task that `arguments` name, as `train` would run it.
pub fn job(arguments: &Plan, workers: usize) -> Result<Job> {
    let flags = Common {
        task: arguments.task.clone(),
        size: arguments.size.clone(),
        batch: arguments.batch,
        data: arguments.data.clone(),
        workers: Some(workers),
        steps: arguments.steps.map(|steps| steps as u64),
        warmup: arguments.warmup.map(|warmup| warmup as u64),
        decay: arguments.decay.clone(),
        ..Common::default()
    };
    Job::new(Settings::of(&flags)?).context("--measure")
}

/// Seconds of a step's forward and backward, while `sharing` workers compute at once: a step ends when the last of them has.
pub fn compute(job: &Job, sharing: usize) -> Result<f64> {
    let task = job.task.get();
    let RunSpec { batch, seed, .. } = job.spec;
    let workers = job.spec.workers.max(sharing);
    let (params, barrier, enough) = (job.initial()?, Barrier::new(sharing), std::sync::atomic::AtomicBool::new(false));
    let began = Instant::now();
    let worker = |rank: usize| {
        let mut learner = task.learner(Share { rank, workers }, batch, seed);
        let mut grad = vec![0.0; params.len()];
        let mut times = Vec::new();
        for step in 0..WARM + STEPS {
            barrier.wait();
            let start = Instant::now();
            grad.fill(0.0);
            learner.learn(&params, step as u64, 1.0, &mut grad);
            barrier.wait();
            if step >= WARM {
                times.push(start.elapsed().as_secs_f64());
            }
            if rank == 0 && !times.is_empty() && began.elapsed().as_secs_f64() > ENOUGH {
                enough.store(true, std::sync::atomic::Ordering::SeqCst);
            }
            barrier.wait();
            if enough.load(std::sync::atomic::Ordering::SeqCst) {
                break;
            }
        }
        times
    };
    let times = std::thread::scope(|scope| {
        let others = (1..sharing).map(|rank| scope.spawn(move || worker(rank))).collect::<Vec<_>>();
        let times = worker(0);
        others.into_iter().for_each(|other| drop(other.join()));
        times
    });
    // The middle one: a step that something else on the machine disturbed says little about those to come.
    Ok(median(&times))
}

/// The codecs of Efficient-Adam that `arguments` ask for.
pub fn codecs(arguments: &Plan) -> Result<Vec<CodecName>> {
    crate::bench::codecs(&arguments.codecs)
}
