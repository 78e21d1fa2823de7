//! `thinwire plan`: whether it will help on your network, before anything runs.
//!
//! | module | what it knows |
//! |---|---|
//! | [`arguments`] | the flags |
//! | [`presets`], [`deepspeed`] | settings that others wrote down |
//! | [`methods`] | what is compared |
//! | [`network`], [`measure`] | what was measured: links, packing, computing |
//! | [`cost`], [`ddp`] | the closed formula; that of PyTorch's DDP |
//! | [`simulate`] | the same by events, where workers or links are not alike |
//! | [`advice`] | the recommendation, and where each method stops paying |
//! | [`show`], [`plot`] | the table, the drawing |
//! | [`planned_vs_measured`] | at the end of a run: what was planned, what was measured |
//!
//! docs/planning.md has the model, and how it compares with measurements.

mod advice;
pub mod arguments;
pub mod cost;
mod ddp;
mod deepspeed;
pub mod measure;
pub mod methods;
pub mod network;
pub mod planned_vs_measured;
mod plot;
mod presets;
mod show;
mod simulate;
#[cfg(test)]
mod tests;

use crate::bench::{self, Benched};
use crate::defaults;
use crate::failure::{Failure, Outcome};
use crate::length;
use crate::numbers::{self, bytes};
use crate::screen::{Answers, print, say};
use crate::tensors_file;
use anyhow::{Context, Result, anyhow, ensure};
use arguments::{MOST_WORKERS, Plan};
use cost::{Estimate, Packing, Parts, Place};
use methods::{Method, Run};
use network::{FRAMING, LATENCY, Network};
use safetensors::Dtype;
use std::path::Path;
use thinwire::inside::Optimizers;
use thinwire::options::Decay;
use thinwire::{CodecName, Config, LearningRate};

/// Steps of a run, if nobody says.
const STEPS: u64 = 10_000;

/// A run of fewer says little about a longer one: some optimizers begin with exact rounds.
const FEW_STEPS: u64 = 100;

/// After fewer exact rounds a variance has hardly seen a gradient.
const FEW_ROUNDS: u64 = 50;

/// Everything that the answer depends on.
pub struct Situation {
    pub params: usize,
    pub run: Run,
    pub place: Place,
    pub compute: f64,
    pub network: Network,
    /// What was assumed, and where each figure is from: a line each.
    pub notes: Vec<String>,
    /// What DeepSpeed's configuration says, if one was given, and what may surprise in it.
    pub given: Option<Method>,
    pub warnings: Vec<String>,
}

/// What comes of it for each method.
pub struct Answer {
    /// The first is Adam in f32, the last two are PyTorch's DDP.
    pub estimates: Vec<Estimate>,
    /// Which of them the others are held to: what the user has, if a configuration says, or the first.
    pub base: usize,
    pub hosts: usize,
    /// Bytes of memory that a worker has, if that was said.
    pub memory: Option<u64>,
    /// The same by events, if that was asked for. Then this is the answer, and the formula stands beside it.
    pub simulated: Option<Vec<simulate::Simulated>>,
}

impl Answer {
    /// Seconds of a step of method `at`, averaged over the run.
    pub fn step(&self, at: usize, network: &Network) -> f64 {
        self.simulated.as_ref().map_or_else(|| self.estimates[at].mean_step(network), |simulated| simulated[at].step)
    }

    /// Seconds of the whole run.
    pub fn run(&self, at: usize, network: &Network) -> f64 {
        self.step(at, network) * self.estimates[at].plan.steps as f64
    }

    /// Whether method `at` has room in a worker's memory, as far as that is known.
    pub fn fits(&self, at: usize) -> bool {
        self.memory.is_none_or(|memory| self.estimates[at].memory().total() <= memory)
    }

    /// The part of the run in which workers compute.
    pub fn efficiency(&self, at: usize, network: &Network) -> f64 {
        self.estimates[at].compute / self.step(at, network)
    }

    /// Where a step's time goes beyond computing.
    pub fn parts(&self, at: usize, network: &Network) -> Parts {
        let estimate = &self.estimates[at];
        Parts { waiting: self.step(at, network) - estimate.mean_step(network), ..estimate.parts(network) }
    }
}

/// Which methods the run is short for.
fn too_short(answer: &Answer) -> impl Iterator<Item = String> + '_ {
    let said = |estimate: &Estimate| length::short(&estimate.method.config, &estimate.plan);
    answer.estimates.iter().filter(|estimate| estimate.ddp.is_none()).filter_map(said)
}

pub fn command(arguments: &Plan) -> Outcome {
    let codecs = measure::codecs(arguments).map_err(Failure::Usage)?;
    let benched = arguments.bench.as_deref().map(bench::read).transpose().map_err(Failure::Usage)?;
    let mut situation = situation(arguments, benched.as_ref()).map_err(Failure::Usage)?;
    let (methods, base) = methods(&situation, &codecs).map_err(Failure::Usage)?;
    let packing = packing(arguments, benched, &mut situation, &methods).map_err(Failure::Usage)?;
    if let Packing::Measured { steps, codecs } = &packing {
        situation.warnings.extend(cost::doubt(steps, codecs));
    }
    let mut estimates = estimates(&situation, methods, &packing).map_err(Failure::Usage)?;
    let baselines = baselines(&situation, &packing).map_err(Failure::Usage)?;
    // The built-in tasks of --measure have no DDP, and who gives a configuration has what it says.
    let base = if situation.given.is_some() || arguments.measure { base } else { estimates.len() };
    estimates.extend(baselines);
    let network = situation.network;
    let simulated = arguments.simulate.then(|| {
        told(arguments, "simulating, which takes seconds for thousands of workers");
        situation.notes.push(
            "the run, computes and the advice are from the simulation; a step, pays below and the plot from the formula"
                .to_owned(),
        );
        simulate::all(&estimates, &situation, &simulate::Chance::of(arguments))
    });
    let memory = arguments.memory.map(|bytes| bytes as u64);
    let answer = Answer { estimates, base, hosts: situation.place.host_count(), memory, simulated };
    situation.warnings.extend(too_large(&answer));
    situation.notes.extend(too_short(&answer));
    if situation.run.steps >= FEW_STEPS {
        situation.warnings.extend(hardly_warm(&answer));
    }
    let advice = advice::advise(&answer, &network);
    if let Some(path) = &arguments.plot {
        plot::write(path, &answer, &network).map_err(Failure::Usage)?;
    }
    if !arguments.quiet {
        show::show(&situation, &answer, &advice, Answers::beside(arguments.json));
        if let Some(path) = &arguments.plot {
            say!("plot      {}", path.display());
        }
    }
    if arguments.json {
        print(&show::json(&situation, &answer, &advice))?;
    }
    Ok(())
}

/// From flags, files and presets to figures; an error says what is missing, with an example.
fn situation(arguments: &Plan, benched: Option<&Benched>) -> Result<Situation> {
    whole(arguments)?;
    if let Some(path) = &arguments.plot {
        let svg = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg"));
        ensure!(svg, "invalid --plot {}: expected a name that ends in .svg (for example step.svg)", path.display());
    }
    let mut notes = Vec::new();
    let measured = arguments.network.as_deref().map(network::read).transpose()?;
    let preset = arguments.preset;
    let hosts = hosts(arguments, measured.as_ref())?;
    let workers = hosts.len();
    let host_count = hosts.iter().max().map_or(1, |last| last + 1);

    let sharing = arguments.sharing.unwrap_or(workers.div_ceil(host_count));
    let cores = arguments.cores.unwrap_or_else(bench::cores);
    let crowding = (sharing as f64 / cores as f64).max(1.0);

    let job = if arguments.measure { Some(measure::job(arguments, workers)?) } else { None };
    let (params, compute) = match &job {
        Some(job) => {
            let task = job.spec.task.name();
            told(arguments, &format!("measuring computing: a few steps of {task}"));
            let compute = measure::compute(job, sharing)?;
            notes.push(format!("computing measured here: {task}, {sharing} at once on {} cores", bench::cores()));
            (job.initial()?.len(), compute)
        }
        None => (params(arguments)?, computing(arguments, &mut notes)?),
    };
    let run = run(arguments, job.as_ref().and_then(|job| job.spec.clip))?;
    let network = links(arguments, measured, benched, host_count, crowding, &mut notes)?;
    let place = Place { hosts, crowding };
    if crowding > 1.0 && !arguments.without_packing {
        notes.push(format!("packing takes {crowding:.1} times its CPU time: {sharing} workers share {cores} cores"));
    }
    let mut situation = Situation { params, run, place, compute, network, notes, given: None, warnings: Vec::new() };
    let mut assumed = arguments.steps.is_none() && preset.is_none();
    if let Some(path) = &arguments.deepspeed {
        let read = deepspeed::read(path, arguments, &situation.run)?;
        assumed &= !read.says_steps;
        situation.run = read.run;
        situation.given = Some(read.method);
        situation.warnings = read.warnings;
    }
    let steps = situation.run.steps;
    if assumed {
        situation.notes.insert(0, format!("{} steps, since --steps was not given", numbers::count(steps)));
    }
    if steps < FEW_STEPS {
        situation.warnings.push(format!(
            "{steps} steps say little about a longer run: {} begin with exact rounds; give --steps of {FEW_STEPS} or more",
            warming_up()
        ));
    }
    if let Some(preset) = preset {
        let name =
            clap::ValueEnum::to_possible_value(&preset).map_or(String::new(), |value| value.get_name().to_owned());
        situation.notes.insert(0, format!("preset {name}: the papers' settings, exact rounds of 16 bits"));
    }
    Ok(situation)
}

/// The optimizers that have exact rounds before coarse ones.
fn warming_up() -> String {
    let rows = Optimizers::all().into_iter().filter(|row| row.exact.is_some() && row.coarse.is_some());
    rows.map(|row| row.title).collect::<Vec<_>>().join(" and ")
}

/// Which methods have fewer exact rounds than a variance takes.
fn hardly_warm(answer: &Answer) -> impl Iterator<Item = String> + '_ {
    let compressing =
        answer.estimates.iter().filter(|estimate| estimate.ddp.is_none() && estimate.plan.rounds.coarse > 0);
    let few = compressing.filter(|estimate| (1..FEW_ROUNDS).contains(&estimate.plan.rounds.exact));
    few.map(|estimate| {
        format!(
            "{} has only {} exact rounds, and a variance takes about a hundred of them (docs/planning.md)",
            estimate.method.shown, estimate.plan.rounds.exact
        )
    })
}

fn told(arguments: &Plan, what: &str) {
    if !arguments.quiet {
        say!("{what}");
    }
}

/// Refuses at once what lacks several things, with a whole example.
fn whole(arguments: &Plan) -> Result<()> {
    let (preset, network) = (arguments.preset, arguments.network.is_some());
    let has = [
        ("--params", arguments.params.is_some() || arguments.model.is_some() || arguments.measure || preset.is_some()),
        ("--workers", arguments.workers.is_some() || network || preset.is_some()),
        ("--bandwidth", arguments.bandwidth.is_some() || network || arguments.hosts == Some(1)),
        ("--compute", arguments.compute.is_some() || arguments.measure || preset.is_some()),
    ];
    let missing = has.iter().filter(|(_, has)| !has).map(|(flag, _)| *flag).collect::<Vec<_>>();
    ensure!(
        missing.len() < 2,
        "expected {}, found none of them (for example thinwire plan --params 110M --workers 16 --bandwidth 1Gb/s --compute 300ms)",
        missing.join(" and ")
    );
    Ok(())
}

/// The host of each worker.
fn hosts(arguments: &Plan, measured: Option<&network::Measured>) -> Result<Vec<usize>> {
    if let (Some(measured), None, None) = (measured, arguments.workers, arguments.hosts) {
        return Ok(measured.hosts.clone());
    }
    let usual = arguments.preset.map(presets::Preset::workers);
    let probed = measured.map(|measured| measured.hosts.len());
    let workers = arguments.workers.or(probed).or(usual.map(|(workers, _)| workers));
    let workers = workers
        .ok_or_else(|| anyhow!("expected --workers, how many train together (for example --workers 16), found none"))?;
    ensure!(
        (1..=MOST_WORKERS).contains(&(workers as u64)),
        "invalid --workers {workers}: expected 1 to {MOST_WORKERS}"
    );
    let paper = usual.filter(|(theirs, _)| *theirs == workers).map(|(_, hosts)| hosts);
    let hosts = match (arguments.hosts, measured) {
        (Some(hosts), _) => hosts,
        // As many on each as there are in the file.
        (None, Some(measured)) => {
            let (many, count) = (measured.hosts.len(), measured.hosts.iter().max().map_or(1, |last| last + 1));
            let each = many / count;
            let even = (0..count).all(|host| measured.hosts.iter().filter(|theirs| **theirs == host).count() == each);
            ensure!(
                even && workers.is_multiple_of(each),
                "invalid --workers {workers}: expected a multiple of {each}, because the file of --network has {many} workers on {count} \
                 hosts, or --hosts beside it"
            );
            workers / each
        }
        (None, None) => paper.unwrap_or(workers),
    };
    ensure!((1..=workers).contains(&hosts), "invalid --hosts {hosts}: expected 1 to {workers}, the number of workers");
    ensure!(
        workers.is_multiple_of(hosts),
        "invalid --hosts {hosts}: expected a number that divides the {workers} workers, because all hosts have equally many"
    );
    Ok((0..workers).map(|worker| worker * hosts / workers).collect())
}

fn params(arguments: &Plan) -> Result<usize> {
    if let Some(path) = &arguments.model {
        return count(path).with_context(|| format!("--model {}", path.display()));
    }
    let params = arguments.params.or(arguments.preset.map(presets::Preset::params));
    params.ok_or_else(|| {
        anyhow!(
            "expected the size of the model (for example --params 110M, --model FILE.safetensors or --measure), found none"
        )
    })
}

/// The parameters in a safetensors file, of which only the head is read. Whole numbers, such as positions, are not parameters.
fn count(path: &Path) -> Result<usize> {
    let index = path.extension().is_some_and(|ending| ending == "json");
    ensure!(
        !index,
        "expected a file with tensors (for example model.safetensors), found an index; give the sum of its files by --params"
    );
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    let head = tensors_file::head(&mut file, length)?;
    let mut values = 0_usize;
    for info in head.tensors().into_values().filter(|info| is_learned(info.dtype)) {
        let size = info.shape.iter().try_fold(1_usize, |size, side| size.checked_mul(*side));
        let sum = size.and_then(|size| values.checked_add(size));
        values = sum.context("expected parameters that can be counted, found too many")?;
    }
    ensure!(values > 0, "expected tensors with parameters, found none");
    Ok(values)
}

fn is_learned(kind: Dtype) -> bool {
    let name = format!("{kind:?}");
    name.starts_with('F') || name.starts_with("BF")
}

fn computing(arguments: &Plan, notes: &mut Vec<String>) -> Result<f64> {
    if let Some(compute) = arguments.compute {
        return Ok(compute);
    }
    match arguments.preset.map(presets::Preset::compute) {
        Some(Some((compute, from))) => {
            notes.push(format!("computing: {from}"));
            Ok(compute)
        }
        Some(None) => Err(anyhow!(
            "expected --compute, because the paper does not say how long a step computes (for example --compute 30ms), found none"
        )),
        None => Err(anyhow!(
            "expected --compute, the time of forward and backward in one step (for example --compute 300ms), or --measure; found none"
        )),
    }
}

fn run(arguments: &Plan, clip: Option<f64>) -> Result<Run> {
    let mut run = match arguments.preset {
        Some(preset) => preset.run(),
        None => {
            let decay = LearningRate { decay: Decay::Cosine, ..LearningRate::constant(1e-3) };
            Run::plain(STEPS, decay, None)
        }
    };
    let given = (arguments.steps, arguments.warmup, &arguments.decay);
    if let Some(steps) = arguments.steps {
        run.steps = steps as u64;
    }
    if let Some(decay) = &arguments.decay {
        run.learning_rate.decay = crate::settings::named("decay", decay)?;
    }
    if given != (None, None, &None) || arguments.preset.is_none() {
        let steps = run.steps;
        let usual = if arguments.preset.is_some() { run.learning_rate.warmup } else { (steps / 10).max(1) };
        let warmup = arguments.warmup.map(|warmup| warmup as u64);
        run.learning_rate.warmup = warmup.unwrap_or(usual.min(steps.saturating_sub(1)));
        run.learning_rate.steps = steps;
        if arguments.preset.is_none() {
            run.learning_rate.drop_every = (steps.saturating_sub(run.learning_rate.warmup) / 3).max(1);
        }
    }
    let warmup = run.learning_rate.warmup;
    ensure!(warmup < run.steps, "invalid --warmup {warmup}: expected fewer than the {} steps of the run", run.steps);
    run.clip = clip.or(arguments.clip.then_some(1.0));
    Ok(run)
}

fn links(
    arguments: &Plan,
    measured: Option<network::Measured>,
    benched: Option<&Benched>,
    hosts: usize,
    crowding: f64,
    notes: &mut Vec<String>,
) -> Result<Network> {
    let file = arguments.network.as_deref().map_or(String::new(), |path| path.display().to_string());
    let message = if arguments.without_packing { 0.0 } else { bench::message_seconds(benched)? };
    let origin = measured.as_ref().map_or("", network::Measured::origin);
    let measured = measured.map(|measured| measured.network(crowding, benched)).transpose()?;
    let latency = arguments.latency.or(measured.map(|measured| measured.latency));
    let network = match (arguments.bandwidth, measured) {
        (Some(bandwidth), _) => {
            notes.push("94.1 % of a link's bits are payload of TCP, as on Ethernet".to_owned());
            Network { bandwidth, framing: FRAMING, latency: latency.unwrap_or(LATENCY), message }
        }
        (None, Some(measured)) => {
            notes.push(format!("the network: {origin} ({file})"));
            let message = if arguments.without_packing { 0.0 } else { measured.message };
            Network { latency: latency.unwrap_or(LATENCY), message, ..measured }
        }
        // With one host there is no link.
        (None, None) if hosts == 1 => Network { bandwidth: 1e12, framing: 1.0, latency: 0.0, message },
        (None, None) => {
            return Err(anyhow!(
                "expected --bandwidth, the rate of each host's link (for example --bandwidth 1Gb/s), or --network FILE with what \
                 `thinwire probe --json` printed; found none"
            ));
        }
    };
    if latency.is_none() && hosts > 1 {
        notes.push("a latency of 50 µs, since --latency was not given".to_owned());
    }
    Ok(network)
}

/// Adam first, then what was given, then the others; and which of them the others are held to.
fn methods(situation: &Situation, codecs: &[CodecName]) -> Result<(Vec<Method>, usize)> {
    let mut methods = methods::of(&situation.run, codecs)?;
    let Some(given) = &situation.given else { return Ok((methods, 0)) };
    let yours = Method { shown: format!("yours: {}", given.shown), ..given.clone() };
    let base = match methods.iter().position(|method| method.config == given.config) {
        Some(same) => {
            methods[same] = yours;
            same
        }
        None => {
            methods.insert(1, yours);
            1
        }
    };
    Ok((methods, base))
}

fn packing(
    arguments: &Plan,
    benched: Option<Benched>,
    situation: &mut Situation,
    methods: &[Method],
) -> Result<Packing> {
    if let (Some(benched), Some(path)) = (benched, &arguments.bench) {
        let clock = match benched.clock.as_str() {
            "cpu" => "",
            _ => "; its codecs are by the wall clock, bench again to have one clock",
        };
        situation.notes.push(format!("packing as benched on {} cores ({}){clock}", benched.cores, path.display()));
        return Ok(Packing::Measured { steps: benched.steps, codecs: benched.codecs });
    }
    if arguments.without_packing {
        situation.notes.push("packing takes no time, and a message costs only its latency and its bytes".to_owned());
        return Ok(Packing::Nothing);
    }
    situation.notes.push("packing measured here and now, on this machine's CPU".to_owned());
    told(arguments, "measuring packing: a few steps of every optimizer");
    measure::packing(methods, situation.params, &situation.place)
}

/// AdamW under PyTorch's DDP, in f32 and in bf16: what most people have.
fn baselines(situation: &Situation, packing: &Packing) -> Result<Vec<Estimate>> {
    let baseline = |codec| Config { exact_codec: Some(codec), ..Config::new(defaults::BASELINE) };
    let configs = [CodecName::F32, CodecName::Bf16].map(baseline);
    let methods = configs.map(|config| Method::new(&situation.run.scheduled(config)));
    let estimates = estimates(situation, methods.into_iter().collect::<Result<_>>()?, packing)?;
    Ok(estimates.into_iter().map(|estimate| estimate.under_ddp(&situation.place)).collect())
}

/// Which methods need more memory than a worker has.
fn too_large(answer: &Answer) -> Option<String> {
    let memory = answer.memory?;
    let shown = |at: usize| {
        let estimate = &answer.estimates[at];
        format!("{} ({})", estimate.method.shown, bytes(estimate.memory().total() as f64))
    };
    let large = (0..answer.estimates.len()).filter(|at| !answer.fits(*at)).map(shown).collect::<Vec<_>>();
    let known = "parameters, gradients, optimizer and messages alone, without activations";
    (!large.is_empty())
        .then(|| format!("more memory than the {} of a worker ({known}): {}", bytes(memory as f64), large.join(", ")))
}

fn estimates(situation: &Situation, methods: Vec<Method>, packing: &Packing) -> Result<Vec<Estimate>> {
    let Situation { params, run, place, compute, .. } = situation;
    methods.into_iter().map(|method| Estimate::new(method, *params, run.steps, *compute, place, packing)).collect()
}
