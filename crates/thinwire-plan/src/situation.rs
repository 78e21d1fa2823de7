//! From a question, files and presets to figures: everything that the answer depends on.

use crate::bench::{self, Benched};
use crate::cost::Place;
use crate::deepspeed;
use crate::device::{self, Asked, Device};
use crate::methods::{self, Method, Run};
use crate::needed;
use crate::network::{self, Network};
use crate::place;
use crate::presets::{self, Preset};
use crate::question::{Beside, Question};
use crate::tensors;
use anyhow::{Context, Error, Result, ensure};
use thinwire::LearningRate;
use thinwire::inside::Optimizers;
use thinwire::options::Decay;
use thinwire_report::numbers;

/// Steps of a run, if nobody says.
const STEPS: u64 = 10_000;

/// A run of fewer says little about a longer one: some optimizers begin with exact rounds.
pub const FEW_STEPS: u64 = 100;

/// Everything that the answer depends on.
pub struct Situation {
    pub params: usize,
    pub run: Run,
    pub place: Place,
    pub compute: f64,
    pub network: Network,
    /// The GPU that packs, if it is one.
    pub device: Option<Device>,
    /// What was assumed, and where each figure is from: a line each.
    pub notes: Vec<String>,
    /// What DeepSpeed's configuration says, if one was given, and what may surprise in it.
    pub given: Option<Method>,
    pub warnings: Vec<String>,
    /// The lines of a program that take the place of DeepSpeed's configuration.
    pub program: Option<String>,
    /// Optimizers and presets that nobody has measured, by their names.
    pub also: Vec<String>,
}

/// From a question, files and presets to figures; an error says what is missing, with an example.
pub fn of(question: &Question, benched: Option<&Benched>, beside: Beside<'_>) -> Result<Situation> {
    needed::whole(question, beside.measure.is_some())?;
    let mut notes = Vec::new();
    let links = question.network.as_deref().map(network::read).transpose()?;
    let hosts = place::hosts(question, links.as_ref())?;
    let workers = hosts.len();
    let host_count = hosts.iter().max().map_or(1, |last| last + 1);

    let sharing = question.sharing.unwrap_or(workers.div_ceil(host_count));
    let cores = question.cores.unwrap_or_else(bench::cores);
    let device = gpu(question)?;
    // Each worker has a GPU to itself.
    let crowding = if device.is_some() { 1.0 } else { (sharing as f64 / cores as f64).max(1.0) };

    let measured = beside.measure.map(|measure| measure(workers, sharing)).transpose().map_err(Error::from_boxed)?;
    let (params, compute) = match &measured {
        Some(measured) => {
            notes.push(measured.note.clone());
            (measured.params, measured.compute)
        }
        None => (params(question)?, computing(question, &mut notes)?),
    };
    let run = run(question, measured.and_then(|measured| measured.clip))?;
    let network = place::links(question, links, benched, host_count, crowding, &mut notes)?;
    if crowding > 1.0 && !question.without_packing {
        notes.push(format!("packing takes {crowding:.1} times its CPU time: {sharing} workers share {cores} cores"));
    }
    let place = Place { hosts, crowding };
    let (also, warnings) = (question.also.clone(), Vec::new());
    let mut situation =
        Situation { params, run, place, compute, network, device, notes, given: None, warnings, program: None, also };
    let says_steps = situation.take_deepspeed(question)?;
    situation.remark(question, question.steps.is_none() && question.preset.is_none() && !says_steps);
    Ok(situation)
}

impl Situation {
    /// Takes what DeepSpeed's configuration says, if one was given. Whether it says how long the run is.
    fn take_deepspeed(&mut self, question: &Question) -> Result<bool> {
        let Some(path) = &question.deepspeed else { return Ok(false) };
        let read = deepspeed::read(path, question, &self.run)?;
        self.run = read.run;
        self.given = Some(read.method);
        self.warnings = read.warnings;
        self.program = Some(read.program);
        Ok(read.says_steps)
    }

    /// What has to be said of it. `assumed`: nobody said how many steps.
    fn remark(&mut self, question: &Question, assumed: bool) {
        if self.device.is_some() && !self.also.is_empty() {
            let problem = "what --also names has no kernels for a GPU yet (docs/gpu.md): it is planned as if it had";
            self.warnings.push(problem.to_owned());
        }
        let steps = self.run.steps;
        if assumed {
            self.notes.insert(0, format!("{} steps, since --steps was not given", numbers::count(steps)));
        }
        if steps < FEW_STEPS {
            self.warnings.push(format!(
                "{steps} steps say little about a longer run: {} begin with exact rounds; give --steps of {FEW_STEPS} or more",
                warming_up()
            ));
        }
        if let Some(preset) = question.preset {
            self.notes.insert(0, format!("preset {preset}: the papers' settings, exact rounds of 16 bits"));
        }
    }
}

/// The optimizers that have exact rounds before coarse ones.
fn warming_up() -> String {
    let rows = Optimizers::all()
        .into_iter()
        .filter(|row| row.exact.is_some() && row.coarse.is_some() && methods::is_measured(row));
    rows.map(|row| row.title).collect::<Vec<_>>().join(" and ")
}

fn params(question: &Question) -> Result<usize> {
    if let Some(path) = &question.model {
        return tensors::count(path).with_context(|| format!("--model {}", path.display()));
    }
    question.params.or(question.preset.map(Preset::params)).ok_or_else(needed::params)
}

fn computing(question: &Question, notes: &mut Vec<String>) -> Result<f64> {
    match (question.compute, question.preset.and_then(Preset::compute)) {
        (Some(compute), _) => Ok(compute),
        (None, Some((compute, from))) => {
            notes.push(format!("computing: {from}"));
            Ok(compute)
        }
        (None, None) => Err(needed::compute(question.preset)),
    }
}

fn run(question: &Question, clip: Option<f64>) -> Result<Run> {
    let mut run = match question.preset {
        Some(preset) => preset.run(),
        None => {
            let decay = LearningRate { decay: Decay::Cosine, ..LearningRate::constant(1e-3) };
            Run::plain(STEPS, decay, None)
        }
    };
    let given = (question.steps, question.warmup, question.decay);
    if let Some(steps) = question.steps {
        run.steps = steps as u64;
    }
    if let Some(decay) = question.decay {
        run.learning_rate.decay = decay;
    }
    if given != (None, None, None) || question.preset.is_none() {
        let steps = run.steps;
        let usual = if question.preset.is_some() { run.learning_rate.warmup } else { (steps / 10).max(1) };
        let warmup = question.warmup.map(|warmup| warmup as u64);
        run.learning_rate.warmup = warmup.unwrap_or(usual.min(steps.saturating_sub(1)));
        run.learning_rate.steps = steps;
        if question.preset.is_none() {
            run.learning_rate.drop_every = (steps.saturating_sub(run.learning_rate.warmup) / 3).max(1);
        }
    }
    let warmup = run.learning_rate.warmup;
    ensure!(warmup < run.steps, "invalid --warmup {warmup}: expected fewer than the {} steps of the run", run.steps);
    run.clip = clip.or(question.clip.then_some(1.0));
    Ok(run)
}

/// The GPU that packs: the one that was asked for; for a paper's model the one that its computing was measured on.
fn gpu(question: &Question) -> Result<Option<Device>> {
    let usual = question.preset.filter(|_| question.bench.is_none() && !question.without_packing);
    match &question.device {
        None => Ok(usual.and(Device::known(presets::GPU))),
        Some(text) => match device::asked(text)? {
            Asked::Cpu => Ok(None),
            Asked::Gpu(device) => Ok(Some(device)),
        },
    }
}
