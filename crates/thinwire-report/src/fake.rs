//! Runs made up for the tests: the shapes of real ones, from formulas.

use std::fs;
use std::path::Path;

use crate::load::Run;
use crate::record::{Eval, Metric, Phases, Projection, Rounds, Step, Summary, projected};

const PARAMS: usize = 818_000;
const WORKERS: usize = 4;

/// A run of `steps` steps that went well.
pub fn run(optimizer: &str, steps: u64) -> Run {
    let lines: Vec<Step> = (0..steps).scan(0.0, |sent, at| Some(step(optimizer, at, steps, sent))).collect();
    let every = (steps / 15).max(1);
    let evals = (0..=steps).filter(|at| at.is_multiple_of(every) || *at == steps);
    let eval =
        |at| Eval { step: at, val_loss: curve(optimizer, at as f64, steps) + 0.03, accuracy: None, matthews: None };
    let evals: Vec<Eval> = evals.map(eval).collect();
    let summary = summary(optimizer, &lines, &evals);
    let config =
        format!("[optimizer]\nname = \"{optimizer}\"\nlr = 0.002\n\n[run]\nworkers = {WORKERS}\nsteps = {steps}\n");
    Run {
        name: optimizer.to_string(),
        optimizer: optimizer.to_string(),
        summary: Some(summary),
        steps: lines,
        evals,
        config: Some(config),
        warnings: Vec::new(),
    }
}

/// Writes what `thinwire train` would have written.
pub fn save(run: &Run, dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    let mut lines = String::new();
    let mut evals = run.evals.iter().peekable();
    let line = |metric: &Metric| serde_json::to_string(metric).unwrap() + "\n";
    for step in &run.steps {
        while let Some(eval) = evals.next_if(|eval| eval.step <= step.step) {
            lines += &line(&Metric::Eval(eval.clone()));
        }
        lines += &line(&Metric::Step(step.clone()));
    }
    lines.extend(evals.map(|eval| line(&Metric::Eval(eval.clone()))));
    fs::write(dir.join("metrics.jsonl"), lines).unwrap();
    if let Some(summary) = &run.summary {
        fs::write(dir.join("summary.json"), serde_json::to_string_pretty(summary).unwrap()).unwrap();
    }
    if let Some(config) = &run.config {
        fs::write(dir.join("config.toml"), config).unwrap();
    }
}

fn curve(optimizer: &str, at: f64, steps: u64) -> f64 {
    let offset = match optimizer {
        "adam" => 0.0,
        "one-bit-adam" => 0.012,
        "zero-one-adam" => -0.006,
        _ => 0.035,
    };
    1.55 + offset + 2.6 / (1.0 + 14.0 * at / steps as f64).powf(1.3)
}

/// Between −0.5 and 0.5, the same in every run of the tests.
fn noise(seed: u64) -> f64 {
    let far = 1e4 * (seed as f64 * 12.9898).sin();
    far - far.floor() - 0.5
}

fn round(optimizer: &str, at: u64, steps: u64) -> &'static str {
    let warm = at < steps / 6;
    match optimizer {
        "adam" => "exact",
        "one-bit-adam" if warm => "exact",
        "zero-one-adam" if warm && at.is_multiple_of(1 + at / 20) => "exact",
        "zero-one-adam" if !at.is_multiple_of((1 << (5 * at / steps)).min(16)) => "skipped",
        _ => "coarse",
    }
}

fn step(optimizer: &str, at: u64, steps: u64, sent: &mut f64) -> Step {
    let round = round(optimizer, at, steps);
    let both_ways = 2.0 * (WORKERS as f64 - 1.0) / WORKERS as f64 * PARAMS as f64;
    let bytes = match round {
        "exact" => 4.0 * both_ways,
        "coarse" => both_ways / 8.0 + 200.0,
        _ => 0.0,
    };
    *sent += bytes;
    let (compute, pack) = (0.040 + 0.004 * noise(at), if round == "exact" { 0.002 } else { 0.005 });
    let (wire, wait) = (bytes / 2e9, 0.006 + 0.004 * noise(at + 7));
    Step {
        step: at,
        loss: curve(optimizer, at as f64, steps) + 0.22 * noise(at + optimizer.len() as u64 * 1000),
        lr: 0.002 * (1.0 - at as f64 / steps as f64),
        round: round.to_string(),
        bytes,
        bytes_total: *sent,
        bytes_between_hosts: 0.0,
        seconds: Phases { total: compute + pack + wire + wait + 0.0005, compute, pack, wire, wait },
        compute_cpu: compute * 0.8,
    }
}

fn summary(optimizer: &str, steps: &[Step], evals: &[Eval]) -> Summary {
    let sum = |of: fn(&Step) -> f64| steps.iter().map(of).sum::<f64>();
    let taken = |kind: &str| steps.iter().filter(|step| step.round == kind).count() as u64;
    let rounds = Rounds { exact: taken("exact"), coarse: taken("coarse"), skipped: taken("skipped") };
    let (bytes, pack, compute_cpu) = (sum(|s| s.bytes), sum(|s| s.seconds.pack), sum(|s| s.compute_cpu));
    let project = |bandwidth| Projection {
        bandwidth,
        seconds: projected(compute_cpu, pack, bytes, rounds.exact + rounds.coarse, bandwidth),
    };
    Summary {
        optimizer: optimizer.to_string(),
        task: "Shakespeare, letter by letter".to_string(),
        transport: "threads".to_string(),
        workers: WORKERS,
        steps: steps.len() as u64,
        params: PARAMS,
        seed: 1,
        lr: 0.002,
        train_loss: steps.iter().rev().take(50).map(|s| s.loss).sum::<f64>() / steps.len().clamp(1, 50) as f64,
        val_loss: evals.last().map_or(f64::NAN, |eval| eval.val_loss),
        accuracy: None,
        majority: None,
        matthews: None,
        cut: None,
        data_files: Vec::new(),
        digest: "0".to_string(),
        bytes_between_hosts_per_worker: 0,
        bytes_sent_per_worker: bytes as u64,
        bits_per_param_per_step: bytes * 8.0 / PARAMS as f64 / steps.len().max(1) as f64,
        rounds,
        seconds: Phases {
            total: sum(|s| s.seconds.total),
            compute: sum(|s| s.seconds.compute),
            pack,
            wire: sum(|s| s.seconds.wire),
            wait: sum(|s| s.seconds.wait),
        },
        compute_cpu,
        unit: "tokens".to_string(),
        units_per_second: 40_000.0,
        projected: [1e8, 1e9, 1e10].map(project).to_vec(),
        planned: None,
        jumps: 0,
        outliers: 0,
    }
}
