//! The cost model: from what a method sends and what its packing costs to the time of a step. docs/planning.md derives it.
//!
//! A step is computing, then the optimizer's. A skipped step packs nothing and sends nothing. A round goes in B buckets, in
//! the engine's order: while bucket k+1 is on its way up, bucket k is averaged, and comes down after it. With p, s and u for
//! packing, averaging and applying one bucket, w and w' for its bytes on a host's link up and down, and l for the latency:
//!
//! ```text
//! round = (p + w + l) + (B−1)·(p + max(s, w) + w' + l + u) + (s + w' + l + u)
//! ```
//!
//! A late round, τ steps under way, goes on while the workers compute for c seconds a step, and pass over their own vectors for o. Its way
//! up has the computing of one step, its way down the τ − 1 other steps; what is left of them is waited for:
//!
//! ```text
//! late = B·(p + s + u) + max(0, B·w + l − c) + max(0, B·w' + l − (τ−1)·(c + o))
//! ```

use crate::ddp::Ddp;
use crate::device::Device;
use crate::kernels::CodecSpeed;
use crate::methods::Method;
use crate::network::Network;
use crate::steps::{StepCost, round_name};
use anyhow::{Context, Result};
use thinwire::Plan;
use thinwire::Round;
use thinwire::counts::{Load, Memory};
use thinwire::{CodecName, Config};

/// Where the workers are, and how they share cores.
#[derive(Clone, Debug)]
pub struct Place {
    /// The host of each worker.
    pub hosts: Vec<usize>,
    /// How many times as long packing takes because workers share cores.
    pub crowding: f64,
}

impl Place {
    pub fn workers(&self) -> usize {
        self.hosts.len()
    }

    pub fn host_count(&self) -> usize {
        self.hosts.iter().max().map_or(1, |last| last + 1)
    }
}

/// One kind of round: what it sends, and the seconds that it packs and averages.
#[derive(Clone, Copy, Debug)]
pub struct RoundCost {
    pub load: Load,
    /// Everything that the worker itself does, averaging included.
    pub pack: f64,
    /// Averaging: what overlaps the next bucket's way up.
    pub serve: f64,
}

/// The parts of one bucket, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    pub count: u64,
    /// Before the way up; averaging; after the way down.
    pub pack: f64,
    pub serve: f64,
    pub apply: f64,
    pub up: f64,
    pub down: f64,
}

impl RoundCost {
    /// Whether anything leaves a host. What messages inside a host cost is in packing.
    fn crosses(&self) -> bool {
        self.load.up + self.load.down > 0
    }

    pub fn bucket(&self, network: &Network) -> Bucket {
        let each = 1.0 / self.load.buckets as f64;
        let messages = if self.crosses() { network.message * self.load.messages as f64 / 2.0 } else { 0.0 };
        // The engine fills and codes on the way up, decodes and applies on the way down: about as much each.
        let around = (self.pack - self.serve) / 2.0;
        Bucket {
            count: self.load.buckets,
            pack: (around + messages) * each,
            serve: (self.serve + messages) * each,
            apply: around * each,
            up: network.wire(self.load.up as f64) * each,
            down: network.wire(self.load.down as f64) * each,
        }
    }

    /// Seconds of a round, by the formula above.
    pub fn seconds(&self, network: &Network) -> f64 {
        let Bucket { count, pack, serve, apply, up, down } = self.bucket(network);
        let latency = if self.crosses() { network.latency } else { 0.0 };
        let first = pack + up + latency;
        let between = pack + serve.max(up) + down + latency + apply;
        let last = serve + down + latency + apply;
        first + (count - 1) as f64 * between + last
    }

    /// Seconds of a round that is so many steps under way, beyond computing, by the second formula.
    pub fn late_seconds(&self, network: &Network, delay: u64, compute: f64, own: f64) -> f64 {
        if delay == 0 || !self.crosses() {
            return self.seconds(network);
        }
        let Bucket { count, pack, serve, apply, up, down } = self.bucket(network);
        let (count, others) = (count as f64, (delay - 1) as f64);
        let waits = |wire: f64, computing: f64| (count * wire + network.latency - computing).max(0.0);
        count * (pack + serve + apply) + waits(up, compute) + waits(down, others * (compute + own))
    }
}

/// Seconds of a mean step beyond computing.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    pub wire: f64,
    pub latency: f64,
    pub packing: f64,
    /// For the slowest worker, link or message: only a simulation knows.
    pub waiting: f64,
}

impl Parts {
    /// What the network takes.
    pub fn sending(&self) -> f64 {
        self.wire + self.latency + self.waiting
    }
}

/// A method on this model, these workers and this machine, on any network.
pub struct Estimate {
    pub method: Method,
    pub plan: Plan,
    pub compute: f64,
    exact: Option<RoundCost>,
    coarse: Option<RoundCost>,
    /// Seconds of a step that is skipped, beyond computing.
    pub skipped: f64,
    /// Bytes that a worker sends in the whole run, on average, and those of them that leave its host.
    pub bytes_sent: u64,
    pub bytes_between_hosts: u64,
    /// PyTorch's DDP in place of the engine's rounds.
    pub ddp: Option<Ddp>,
    /// Bytes of the flat parameters and the flat gradient that a GPU holds beside the model's own.
    flat: u64,
}

impl Estimate {
    /// The same optimizer under PyTorch's DDP: its all-reduce runs beside backward. Its packing is taken to be `self`'s, and on a GPU
    /// AdamW's pass alone.
    pub fn under_ddp(mut self, place: &Place, packing: &Packing) -> Estimate {
        let (codec, params) = (self.method.codec(), self.plan.params());
        let ddp = Ddp::new(codec, params, place.workers(), place.host_count());
        let (bytes_sent, bytes_between_hosts) = ddp.bytes_sent(self.plan.steps);
        let method = Method { shown: format!("DDP {codec}"), ..self.method.clone() };
        if let (Packing::Device(device), Some(cost)) = (packing, &mut self.exact) {
            (cost.pack, cost.serve) = (device.adamw(params), 0.0);
        }
        Estimate { method, bytes_sent, bytes_between_hosts, ddp: Some(ddp), ..self }
    }

    pub fn new(
        method: Method,
        params: usize,
        steps: u64,
        compute: f64,
        place: &Place,
        packing: &Packing,
    ) -> Result<Estimate> {
        let plan = Plan::on_hosts(&method.config, params, &place.hosts, steps)?.with_final_sync();
        let cost = |round: Round| match plan.load(round) {
            Some(load) => {
                packing.round((&method, round == Round::Exact && plan.second > 0), round, load, params, place).map(Some)
            }
            None => Ok(None),
        };
        let exact = if plan.rounds.exact > 0 { cost(Round::Exact)? } else { None };
        let mut coarse = if plan.rounds.coarse > 0 { cost(Round::Coarse)? } else { None };
        let (parts, is_late) = (plan.parts(), plan.delays().any(|(delay, _)| delay > 0));
        if let Some(coarse) = coarse.as_mut().filter(|_| parts > 1 || is_late) {
            // What was measured is a round of the whole vector with the worker's own step in it. These have a step of their own first.
            coarse.serve /= parts as f64;
            coarse.pack = packing.alone(&method, params, place)? + coarse.pack / parts as f64;
        }
        let skipped = match plan.rounds.skipped {
            0 => 0.0,
            _ => packing.alone(&method, params, place)?,
        };
        let (bytes_sent, bytes_between_hosts) = (plan.mean_bytes_sent(), plan.mean_bytes_between_hosts());
        let flat = if matches!(packing, Packing::Device(_)) { 8 * params as u64 } else { 0 };
        Ok(Estimate { plan, compute, exact, coarse, skipped, bytes_sent, bytes_between_hosts, method, ddp: None, flat })
    }

    pub fn round(&self, round: Round) -> Option<&RoundCost> {
        match round {
            Round::Exact => self.exact.as_ref(),
            Round::Coarse => self.coarse.as_ref(),
            _ => None,
        }
    }

    /// Seconds of one step with this kind of round.
    pub fn step(&self, round: Round, network: &Network) -> f64 {
        if let (Some(ddp), Some(cost)) = (&self.ddp, self.round(round)) {
            return self.compute + ddp.exposed(self.compute, network) + cost.pack;
        }
        self.compute
            + match (round, self.round(round)) {
                (_, None) => self.skipped,
                (Round::Coarse, Some(cost)) => self.coarse_seconds(cost, network),
                (_, Some(cost)) => cost.seconds(network),
            }
    }

    /// Seconds of a coarse round beyond computing, averaged over those that are waited for and those that are late.
    fn coarse_seconds(&self, cost: &RoundCost, network: &Network) -> f64 {
        let of =
            |(delay, rounds): (u64, u64)| rounds as f64 * cost.late_seconds(network, delay, self.compute, self.skipped);
        let rounds = self.plan.delays().map(|(_, rounds)| rounds).sum::<u64>().max(1);
        self.plan.delays().map(of).sum::<f64>() / rounds as f64
    }

    /// Seconds of the whole run.
    pub fn run(&self, network: &Network) -> f64 {
        let rounds = self.plan.rounds;
        let of = |many: u64, round| if many == 0 { 0.0 } else { many as f64 * self.step(round, network) };
        of(rounds.exact, Round::Exact) + of(rounds.coarse, Round::Coarse) + of(rounds.skipped, Round::Skipped)
            - self.without_computing()
    }

    /// A sync at the end belongs to a step that was counted as skipped: a round that has no computing of its own.
    pub fn without_computing(&self) -> f64 {
        let rounds = self.plan.rounds;
        (rounds.exact + rounds.coarse + rounds.skipped).saturating_sub(self.plan.steps) as f64 * self.compute
    }

    /// Seconds of a step, averaged over the run.
    pub fn mean_step(&self, network: &Network) -> f64 {
        self.run(network) / self.plan.steps.max(1) as f64
    }

    /// Where a mean step's time goes beyond computing: what bytes take, that overlap with nothing; then latency, and what a message
    /// costs whatever its length; then packing.
    pub fn parts(&self, network: &Network) -> Parts {
        let without_bytes = self.mean_step(&network.at(f64::INFINITY));
        Parts {
            wire: self.mean_step(network) - without_bytes,
            latency: without_bytes - self.compute - self.packing(),
            packing: self.packing(),
            waiting: 0.0,
        }
    }

    /// Seconds of a mean step that go by in packing, whatever the network.
    pub fn packing(&self) -> f64 {
        let rounds = self.plan.rounds;
        let of = |many: u64, cost: Option<&RoundCost>| many as f64 * cost.map_or(0.0, |cost| cost.pack);
        let all = of(rounds.exact, self.exact.as_ref()) + of(rounds.coarse, self.coarse.as_ref());
        (all + rounds.skipped as f64 * self.skipped) / self.plan.steps.max(1) as f64
    }

    /// What crosses a link if there is one.
    pub fn bytes_on_links(&self) -> u64 {
        match self.bytes_between_hosts {
            0 => self.bytes_sent,
            between => between,
        }
    }

    pub fn memory(&self) -> Memory {
        let own = self.plan.memory(0);
        self.ddp.map_or(Memory { beyond_adam: own.beyond_adam + self.flat, ..own }, |ddp| ddp.memory())
    }
}

/// What packing costs.
pub enum Packing {
    Nothing,
    /// On a GPU, by arithmetic.
    Device(Device),
    /// As `bench` measured it.
    Measured {
        steps: Vec<StepCost>,
        codecs: Vec<CodecSpeed>,
    },
}

impl Packing {
    /// Seconds of a step that is skipped.
    fn alone(&self, method: &Method, params: usize, place: &Place) -> Result<f64> {
        let skipped = Round::Skipped;
        match self {
            Packing::Nothing => Ok(0.0),
            Packing::Device(device) => {
                Ok(device.pack(method, skipped, params, place.workers(), place.host_count()).pack)
            }
            Packing::Measured { steps, .. } => {
                Ok(1e-9 * found(steps, &method.config, skipped)?.ns_per_value * params as f64 * place.crowding)
            }
        }
    }

    /// `is_second`: the exact round follows the coarse one of the same step.
    fn round(
        &self,
        (method, is_second): (&Method, bool),
        round: Round,
        load: Load,
        params: usize,
        place: &Place,
    ) -> Result<RoundCost> {
        let config = &method.config;
        let (steps, speeds) = match self {
            Packing::Nothing => return Ok(RoundCost { load, pack: 0.0, serve: 0.0 }),
            Packing::Device(device) => {
                let packed = device.pack(method, round, params, place.workers(), place.host_count());
                return Ok(RoundCost { load, pack: packed.pack, serve: packed.serve });
            }
            Packing::Measured { steps, codecs } => (steps, codecs),
        };
        // A step that ends with an exact round after its coarse one is measured whole, as a coarse one.
        let measured = found(steps, config, if is_second { Round::Coarse } else { round })?;
        let codecs = match round {
            Round::Exact => config.exact_codec.zip(config.exact_codec),
            _ => config.codec_up.zip(config.codec_down),
        };
        let name = round_name(round);
        let (up, down) = codecs.with_context(|| format!("{}: expected a codec for {name} rounds", config.name))?;
        let (mut up, mut down) = (*speed(speeds, up)?, *speed(speeds, down)?);
        // Parts that take longer than the whole were measured while something else ran: they get no more than the whole.
        let fits = 1.0 / parts_of_whole(measured, &up, &down).max(1.0);
        for codec in [&mut up, &mut down] {
            (codec.encode, codec.decode_add) = (codec.encode * fits, codec.decode_add * fits);
        }
        let (values, workers) = (params as f64, place.workers() as f64);
        // Of the values that it owns a worker decodes one message from each host, and codes the mean.
        let serve = values / workers * (place.host_count() as f64 * up.decode_add + down.encode);
        // Measured with fewer workers, each owned a larger part.
        let owned_then = values / (measured.workers as f64).min(workers);
        let pack = 1e-9 * measured.ns_per_value * values - (owned_then - values / workers) * down.encode;
        let (pack, serve) = (pack.max(0.0) * place.crowding, serve * place.crowding);
        Ok(RoundCost { load, pack, serve: serve.min(pack) })
    }
}

/// What the coding of a round takes, of all that its step takes: at most 1, if both were measured alike.
fn parts_of_whole(measured: &StepCost, up: &CodecSpeed, down: &CodecSpeed) -> f64 {
    let (workers, a_host) = (measured.workers as f64, measured.workers_a_host.max(1) as f64);
    if measured.workers < 2 {
        return 0.0; // nothing is coded for nobody
    }
    // As in [`Packing::round`]: a worker codes all, decodes a message of each host for what it owns, and codes the mean of that.
    let parts = up.encode + workers / a_host * up.decode_add / workers + down.encode / workers;
    parts / (1e-9 * measured.ns_per_value).max(f64::MIN_POSITIVE)
}

/// So much more than the whole its parts may take by chance.
const CHANCE: f64 = 1.15;

/// Passes that had a core for less of the time than this were disturbed.
const UNDISTURBED: f64 = 0.8;

/// Why a measurement is not to be believed; None if nothing speaks against it.
pub fn doubt(steps: &[StepCost], codecs: &[CodecSpeed]) -> Option<String> {
    let strain = |step: &StepCost| {
        let (up, down) = match step.round.as_str() {
            "exact" => (step.exact_codec, step.exact_codec),
            "coarse" => (step.codec_up, step.codec_down),
            _ => (None, None),
        };
        let speed = |codec: Option<CodecName>| codecs.iter().find(|speed| Some(speed.codec) == codec);
        Some(parts_of_whole(step, speed(up)?, speed(down)?))
    };
    let strains = steps.iter().filter_map(|step| Some((step, strain(step)?)));
    let worst = strains.max_by(|one, other| one.1.total_cmp(&other.1)).filter(|(_, strain)| *strain > CHANCE);
    let least = codecs.iter().map(|speed| speed.cpu_share).fold(1.0, f64::min);
    let why = match worst {
        Some((step, strain)) => format!(
            "coding takes {strain:.1} times as long as the whole {} step of {} that it is a part of",
            step.round, step.optimizer
        ),
        None if least < UNDISTURBED => {
            format!("something else had the cores for {:.0} % of the time", 100.0 * (1.0 - least))
        }
        None => return None,
    };
    Some(format!("the measurement of packing is not credible: {why}; measure again while nothing else runs"))
}

fn found<'a>(steps: &'a [StepCost], config: &Config, round: Round) -> Result<&'a StepCost> {
    let name = round_name(round);
    let codec = match round {
        Round::Exact => config.exact_codec,
        _ => config.codec_up,
    };
    steps.iter().find(|step| step.is_of(config, name)).with_context(|| {
        let coded = codec.map_or(String::new(), |codec| format!(" by {codec}"));
        let clips = if config.clip.is_some() { ", with clipping" } else { "" };
        format!(
            "--bench: expected one {name} step of {}{coded}{clips}, found none; leave --bench out to measure it now, or run `thinwire bench \
             --json` again, with that codec in its --codecs",
            config.name
        )
    })
}

fn speed(codecs: &[CodecSpeed], codec: CodecName) -> Result<&CodecSpeed> {
    let found = codecs.iter().find(|speed| speed.codec == codec);
    found.with_context(|| {
        format!(
            "--bench: expected codec {codec}, found none; leave --bench out to measure it now, or run `thinwire bench --json` again, with \
             it in its --codecs"
        )
    })
}
