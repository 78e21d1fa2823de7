//! The answer: what each method comes to, and what to do. As JSON it is what `thinwire plan --json` prints.

use crate::advice::{self, Advice, Pays, pays};
use crate::bench;
use crate::check::check;
use crate::comparison::{self, Comparison};
use crate::cost::{self, Packing};
use crate::device::Device;
use crate::estimates;
use crate::network::Network;
use crate::plot;
use crate::question::{Beside, Question};
use crate::simulate::{self, Chance, Simulated};
use crate::situation::{self, FEW_STEPS, Situation};
use anyhow::Result;
use serde::Serialize;
use std::fmt;
use thinwire::counts::{Memory, Rounds};
use thinwire::{CodecName, Name, Round};

/// What each method would cost on a network, and which to take.
///
/// Fields have the names that they have in JSON. Texts name the flags of the command.
#[derive(Serialize)]
pub struct Answer {
    /// Parameters of the model.
    pub params: usize,
    /// Workers.
    pub workers: usize,
    /// Hosts that they are on.
    pub hosts: usize,
    /// Steps of the run.
    pub steps: u64,
    /// Forward and backward of a step.
    pub compute_seconds: f64,
    /// The links between hosts.
    pub network: Network,
    /// The GPU that packs, if it is one.
    pub device: Option<Device>,
    /// Memory of a worker's device, if it is known.
    pub device_memory_bytes: Option<u64>,
    /// How many times as long packing takes because workers share cores.
    pub crowding: f64,
    /// What was assumed, and where figures are from: a line each.
    pub notes: Vec<String>,
    /// What may surprise, and what makes figures doubtful.
    pub warnings: Vec<String>,
    /// The method that the others are compared with, by its name.
    pub held_to: String,
    /// The first is Adam in f32, the last two are PyTorch's DDP.
    pub methods: Vec<Forecast>,
    /// What to take.
    pub recommendation: Advice,
    /// Lines of a PyTorch program that take the place of DeepSpeed's configuration, if one was given.
    pub program: Option<String>,
    #[serde(skip)]
    comparison: Comparison,
}

/// What one method comes to.
#[derive(Clone, Debug, Serialize)]
pub struct Forecast {
    /// For people: `0/1 Adam`, `DDP f32`.
    pub name: String,
    /// The optimizer.
    pub optimizer: Name,
    /// Of the coarse rounds, if it has any.
    pub codec: CodecName,
    /// Rounds of the run.
    pub rounds: Rounds,
    /// Bytes that a worker sends in the whole run, on average.
    pub bytes_sent_per_worker: u64,
    /// Those of them that leave its host.
    pub bytes_between_hosts_per_worker: u64,
    /// Of what is sent.
    pub bits_per_param_per_step: f64,
    /// Seconds of a step by the formula, averaged over the run.
    pub step_seconds: f64,
    /// The same for each kind of round.
    pub step_seconds_by_round: ByRound,
    /// Of a step: the time of bytes that overlap with nothing.
    pub wire_seconds_per_step: f64,
    /// Of a step: latency, and what a message costs whatever its length.
    pub latency_seconds_per_step: f64,
    /// Of a step: packing.
    pub pack_seconds_per_step: f64,
    /// Seconds of the run.
    pub run_seconds: f64,
    /// The part of the run in which workers compute.
    pub efficiency: f64,
    /// Parameters, gradients, optimizer state and messages; not activations.
    pub memory_bytes_per_worker: u64,
    /// The same in parts.
    pub memory: Memory,
    /// On which bandwidths it is faster than what it is held to.
    pub pays: Pays,
    /// Whether it is PyTorch's DDP.
    pub ddp: bool,
    /// Whether it has room in a worker's memory, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fits: Option<bool>,
    /// The same by events, if that was asked for. Then the run and the advice are from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
}

/// Seconds of a step by its kind of round. None: the run has no such step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ByRound {
    /// With an exact round.
    pub exact: Option<f64>,
    /// With a coarse round.
    pub coarse: Option<f64>,
    /// Without a round.
    pub skipped: Option<f64>,
}

impl Answer {
    /// The object that `thinwire plan --json` prints.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("plain data")
    }

    /// The time of a step against the bandwidth, for every method: a file of SVG.
    pub fn plot(&self) -> String {
        plot::draw(&self.comparison.estimates, self.comparison.base, &self.network)
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_json(), f)
    }
}

impl Forecast {
    /// What crosses a link if there is one: bytes between hosts, or with a single host all of them.
    pub fn bytes_on_links(&self) -> u64 {
        match self.bytes_between_hosts_per_worker {
            0 => self.bytes_sent_per_worker,
            between => between,
        }
    }

    fn of(comparison: &Comparison, at: usize, network: &Network) -> Forecast {
        let (estimate, base) = (&comparison.estimates[at], &comparison.estimates[comparison.base]);
        let step = |round| estimate.round(round).map(|_| estimate.step(round, network));
        let skipped = (estimate.plan.rounds.skipped > 0).then(|| estimate.step(Round::Skipped, network));
        let (memory, parts) = (estimate.memory(), estimate.parts(network));
        Forecast {
            name: estimate.method.shown.clone(),
            optimizer: estimate.method.config.name,
            codec: estimate.method.codec(),
            rounds: estimate.plan.rounds,
            bytes_sent_per_worker: estimate.bytes_sent,
            bytes_between_hosts_per_worker: estimate.bytes_between_hosts,
            bits_per_param_per_step: estimate.plan.bits_per_param_per_step(),
            step_seconds: estimate.mean_step(network),
            step_seconds_by_round: ByRound { exact: step(Round::Exact), coarse: step(Round::Coarse), skipped },
            wire_seconds_per_step: parts.wire,
            latency_seconds_per_step: parts.latency,
            pack_seconds_per_step: parts.packing,
            run_seconds: comparison.run(at, network),
            efficiency: comparison.efficiency(at, network),
            memory_bytes_per_worker: memory.total(),
            memory,
            pays: pays(estimate, base, network),
            ddp: estimate.ddp.is_some(),
            fits: comparison.memory.map(|_| comparison.fits(at)),
            simulated: comparison.simulated.as_ref().map(|simulated| simulated[at]),
        }
    }
}

/// The answer to `question`.
pub fn of(question: &Question, beside: Beside<'_>) -> Result<Answer> {
    check(question)?;
    let benched = question.bench.as_deref().map(bench::read).transpose()?;
    let mut situation = situation::of(question, benched.as_ref(), beside)?;
    let comparison = compare(question, benched, &mut situation, beside)?;
    situation.warnings.extend(comparison::too_large(&comparison));
    situation.notes.extend(comparison::too_short(&comparison));
    if situation.run.steps >= FEW_STEPS {
        situation.warnings.extend(comparison::hardly_warm(&comparison));
    }
    Ok(written(situation, comparison))
}

/// Every method in this situation, which learns where its packing is from.
fn compare(
    question: &Question,
    benched: Option<bench::Benched>,
    situation: &mut Situation,
    beside: Beside<'_>,
) -> Result<Comparison> {
    let (methods, own) = estimates::methods(situation, &question.codecs())?;
    let (packing, note) = estimates::packing(question, benched, situation, &methods, beside)?;
    situation.notes.push(note);
    if let Packing::Measured { steps, codecs } = &packing {
        situation.warnings.extend(cost::doubt(steps, codecs));
    }
    let mut estimates = estimates::all(situation, methods, &packing)?;
    // What was measured has no DDP, and who gives a configuration has what it says.
    let has_own = situation.given.is_some() || beside.measure.is_some();
    let base = if has_own { own } else { estimates.len() };
    estimates.extend(estimates::baselines(situation, &packing)?);
    let simulated = question.simulate.then(|| {
        (beside.told)("simulating, which takes seconds for thousands of workers");
        situation.notes.push(
            "the run, computes and the advice are from the simulation; a step, pays below and the plot from the formula"
                .to_owned(),
        );
        simulate::all(&estimates, situation, &Chance::of(question))
    });
    let memory = question.memory.map(|bytes| bytes as u64).or(situation.device.as_ref().and_then(|gpu| gpu.memory));
    Ok(Comparison { estimates, base, hosts: situation.place.host_count(), memory, simulated })
}

fn written(situation: Situation, comparison: Comparison) -> Answer {
    let network = situation.network;
    let methods = (0..comparison.estimates.len()).map(|at| Forecast::of(&comparison, at, &network)).collect();
    Answer {
        params: situation.params,
        workers: situation.place.workers(),
        hosts: situation.place.host_count(),
        steps: situation.run.steps,
        compute_seconds: situation.compute,
        network,
        device: situation.device,
        device_memory_bytes: comparison.memory,
        crowding: situation.place.crowding,
        notes: situation.notes,
        warnings: situation.warnings,
        held_to: comparison.estimates[comparison.base].method.shown.clone(),
        methods,
        recommendation: advice::advise(&comparison, &network),
        program: situation.program,
        comparison,
    }
}
