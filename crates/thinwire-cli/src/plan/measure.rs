//! `plan --measure`: computing, timed by a few steps of a built-in task on this machine.

use super::arguments::Plan;
use crate::arguments::Common;
use crate::job::Job;
use crate::run_spec::RunSpec;
use crate::settings::Settings;
use anyhow::{Context, Result};
use std::sync::Barrier;
use std::time::Instant;
use thinwire_models::Share;
use thinwire_plan::Measured;
use thinwire_plan::inside::cores;
use thinwire_report::numbers::median;

/// Steps of the task that are measured, after two that are not.
const WARM: usize = 2;
const STEPS: usize = 8;

/// Enough of them, if they are long.
const ENOUGH: f64 = 8.0;

/// The task that `arguments` name among so many workers, of which so many share this machine.
pub fn task(arguments: &Plan, workers: usize, sharing: usize, told: &dyn Fn(&str)) -> Result<Measured> {
    let job = job(arguments, workers)?;
    let task = job.spec.task.name();
    told(&format!("measuring computing: a few steps of {task}"));
    Ok(Measured {
        compute: compute(&job, sharing)?,
        params: job.initial()?.len(),
        clip: job.spec.clip,
        note: format!("computing measured here: {task}, {sharing} at once on {} cores", cores()),
    })
}

/// The task that `arguments` name, as `train` would run it.
fn job(arguments: &Plan, workers: usize) -> Result<Job> {
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
fn compute(job: &Job, sharing: usize) -> Result<f64> {
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
