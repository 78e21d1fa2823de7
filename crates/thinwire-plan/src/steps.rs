//! Whole steps of an optimizer, by real workers on threads: CPU time a value, for each kind of round.
//!
//! Nothing here knows what a step consists of: coding, moments, clipping, checks and copies are in it because the engine does
//! them. Waiting takes no CPU time, and so does not count.

use crate::sample::vector;
use anyhow::{Context, Result};
use cpu_time::ThreadTime;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thinwire::Round;
use thinwire::inside::machine::Floats;
use thinwire::{CodecName, Config, Name, Worker, threads};

/// Two workers, each with a host to itself: the smallest group that sends.
pub const PAIR: [usize; 2] = [0, 1];

/// Steps of each kind; the first of them touches memory, and is not counted.
const STEPS: u64 = 4;

/// What a step of an optimizer with one kind of round costs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StepCost {
    /// Which optimizer.
    pub optimizer: Name,
    /// `exact`, `coarse` or `skipped`.
    pub round: String,
    /// The codec of coarse rounds, up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codec_up: Option<CodecName>,
    /// The codec of coarse rounds, down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codec_down: Option<CodecName>,
    /// The codec of exact rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_codec: Option<CodecName>,
    /// Whether the gradient is clipped.
    pub clip: bool,
    /// Workers that were measured.
    pub workers: usize,
    /// Those of them that share a host.
    pub workers_a_host: usize,
    /// CPU nanoseconds a value.
    pub ns_per_value: f64,
}

impl StepCost {
    /// The codec of the round.
    pub fn coded(&self) -> String {
        let shown = |codec: Option<CodecName>| codec.map_or(String::new(), |codec| codec.to_string());
        match self.round.as_str() {
            "exact" => shown(self.exact_codec),
            "coarse" if self.codec_up != self.codec_down => {
                format!("{} up, {} down", shown(self.codec_up), shown(self.codec_down))
            }
            "coarse" => shown(self.codec_up),
            _ => String::new(),
        }
    }

    /// Whether it is the same kind of step.
    pub(crate) fn is_like(&self, other: &StepCost) -> bool {
        let of = |step: &StepCost| (step.optimizer, step.round.clone(), step.coded(), step.clip);
        of(self) == of(other)
    }

    /// Whether it is what a step of `config`, resolved, with this kind of round costs.
    pub(crate) fn is_of(&self, config: &Config, round: &str) -> bool {
        let coarse = round != "coarse" || (self.codec_up, self.codec_down) == (config.codec_up, config.codec_down);
        let exact = round != "exact" || self.exact_codec == config.exact_codec;
        self.optimizer == config.name && self.round == round && coarse && exact && self.clip == config.clip.is_some()
    }
}

pub fn round_name(round: Round) -> &'static str {
    match round {
        Round::Exact => "exact",
        Round::Coarse => "coarse",
        Round::Skipped => "skipped",
        _ => unreachable!("the engine has no other"),
    }
}

/// Steps of `config` on `values` values, by a worker for each of `hosts`.
pub fn measure(config: &Config, hosts: &[usize], values: usize) -> Result<Vec<StepCost>> {
    let (drill, steps) = drill(config)?;
    let found = threads::run_on(hosts, |group| one_worker(&drill, Box::new(group), values, steps));
    let mut sums: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
    for worker in found {
        for (round, seconds) in worker? {
            let (sum, many) = sums.entry(round).or_default();
            *sum += seconds;
            *many += 1;
        }
    }
    let on_first = hosts.iter().filter(|host| **host == hosts[0]).count();
    let cost = |(round, (sum, many)): (&str, (f64, u64))| StepCost {
        optimizer: drill.name,
        round: round.to_owned(),
        codec_up: drill.codec_up,
        codec_down: drill.codec_down,
        exact_codec: drill.exact_codec,
        clip: drill.clip.is_some(),
        workers: hosts.len(),
        workers_a_host: on_first,
        ns_per_value: 1e9 * sum / many as f64 / values.max(1) as f64,
    };
    Ok(sums.into_iter().map(cost).collect())
}

/// The same optimizer on a schedule that has each of its kinds of step a few times.
fn drill(config: &Config) -> Result<(Config, u64)> {
    let settings = config.decide()?;
    let (own, steps) = settings.algorithm.drill(STEPS);
    let drill = Config { learning_rate: None, groups: Vec::new(), own, ..settings.config() };
    Ok((drill.resolved().context("a configuration to measure")?, steps))
}

/// The kind and the CPU seconds of each step that counts.
fn one_worker(
    config: &Config,
    group: Box<dyn thinwire::Collective>,
    values: usize,
    steps: u64,
) -> Result<Vec<(&'static str, f64)>> {
    let mut params = Floats::zeroed(values);
    params.fill(1e-2);
    // Small enough that a limit of 1 is not reached, as in most steps of a run.
    let grad = vector(values, 0.5 / (values.max(1) as f32).sqrt());
    let mut worker = Worker::new(config, &params, group)?;
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    let mut counted = Vec::new();
    for _ in 0..steps {
        let began = ThreadTime::now();
        let round = round_name(worker.step(&mut params, &grad, 1e-3)?);
        let took = began.elapsed().as_secs_f64();
        let seen = seen.entry(round).or_default();
        *seen += 1;
        if *seen > 1 {
            counted.push((round, took));
        }
    }
    Ok(counted)
}
