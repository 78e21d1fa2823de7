//! The flags of `plan`.

use crate::settings::named;
use anyhow::Result;
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use thinwire_plan::inside::{CODECS, MOST_STEPS, MOST_WORKERS, codecs};
use thinwire_plan::units::{bandwidth, delay, duration, factor, number, part, size, steps, whole};
use thinwire_plan::{Preset, Question};

/// A preset as a flag has it.
#[derive(Clone, Copy)]
pub struct Paper(Preset);

impl ValueEnum for Paper {
    fn value_variants<'a>() -> &'a [Paper] {
        const { &[Paper(Preset::BertBase), Paper(Preset::BertLarge), Paper(Preset::Gpt2), Paper(Preset::Resnet18Imagenet)] }
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self.0 {
            Preset::BertBase => "110M parameters, 118,000 steps",
            Preset::BertLarge => "340M parameters, 152,000 steps",
            Preset::Gpt2 => "117M parameters, 300,000 steps",
            Preset::Resnet18Imagenet => "11.7M parameters, 450,450 steps",
        };
        Some(PossibleValue::new(self.0.name()).help(help))
    }
}

#[derive(Args, Clone, Default)]
#[command(after_help = "Examples:\n  thinwire plan --params 110M --workers 16 --bandwidth 1Gb/s --compute 300ms\n  \
                  thinwire plan --preset bert-large --bandwidth 4.1Gb/s\n  \
                  thinwire plan --params 1G --workers 16 --hosts 4 --bandwidth 10Gb/s --compute 400ms --device a100\n  \
                  thinwire plan --measure --task gpt --size small --workers 4 --network probe.json\n  \
                  thinwire plan --deepspeed ds_config.json --params 340M --workers 64 --hosts 16 --bandwidth 10Gb/s --compute 200ms")]
pub struct Plan {
    /// Parameters of the model (for example 110M or 1.5G)
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = number, help_heading = "Model")]
    pub params: Option<usize>,
    /// Count them in this file
    #[arg(long, value_name = "FILE.safetensors", conflicts_with = "params", help_heading = "Model")]
    pub model: Option<PathBuf>,
    /// A paper's model and settings; other flags override them
    #[arg(long, value_enum, help_heading = "Model")]
    pub preset: Option<Paper>,
    /// Read the optimizer and its schedule from a DeepSpeed configuration, and compare with it
    #[arg(long, value_name = "FILE.json", conflicts_with = "preset", help_heading = "Model")]
    pub deepspeed: Option<PathBuf>,

    /// Time of forward and backward in one step of one worker (for example 300ms)
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = duration, help_heading = "Computing")]
    pub compute: Option<f64>,
    /// Measure it by a few steps of --task on this machine
    #[arg(long, conflicts_with_all = ["compute", "params", "model"], help_heading = "Computing")]
    pub measure: bool,
    /// With --measure: gpt, bert or images [default: gpt]
    #[arg(long, requires = "measure", help_heading = "Computing")]
    pub task: Option<String>,
    /// With --measure: tiny or small [default: tiny]
    #[arg(long, requires = "measure", help_heading = "Computing")]
    pub size: Option<String>,
    /// With --measure: examples in a batch of one worker [default: as `train`]
    #[arg(long, value_name = "N", requires = "measure", help_heading = "Computing")]
    pub batch: Option<usize>,
    /// With --measure: the data [default: as `train`]
    #[arg(long, value_name = "PATH", requires = "measure", help_heading = "Computing")]
    pub data: Option<PathBuf>,
    /// Workers that share this machine's cores while they compute and pack [default: the workers of a host]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole(1..=1024, "4"), help_heading = "Computing")]
    pub sharing: Option<usize>,
    /// Cores that these workers share [default: this machine's]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole(1..=4096, "8"), help_heading = "Computing")]
    pub cores: Option<usize>,
    /// The cost of packing, as `thinwire bench --json` printed it [default: measured now, in a few seconds]
    #[arg(long, value_name = "FILE", help_heading = "Computing")]
    pub bench: Option<PathBuf>,

    /// Where the optimizer's arithmetic runs: cpu (this machine's, measured), or by arithmetic v100, a100, h100, b200, rtx4090, mi300x,
    /// or a report of `python -m thinwire.device --json` [default: cpu; with --preset v100, which the papers' computing is from]
    #[arg(long, value_name = "NAME|FILE.json", conflicts_with = "bench", help_heading = "Computing")]
    pub device: Option<String>,
    /// Assume that packing takes no time: computing and the network alone
    #[arg(long, conflicts_with_all = ["bench", "device"], help_heading = "Computing")]
    pub without_packing: bool,

    /// Optimizers and presets to plan beside those whose learning has been measured: local-adam, lion, birder, loco, diloco, dsm and so
    /// on. They are never advised
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', help_heading = "Run")]
    pub also: Vec<String>,

    /// Memory of a worker's device (for example 24GB or 80GiB): methods that do not fit are marked and not advised [default: that of
    /// --device]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size, help_heading = "Computing")]
    pub memory: Option<usize>,

    /// Workers
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole(1..=MOST_WORKERS, "16"), help_heading = "Network")]
    pub workers: Option<usize>,
    /// Hosts, each with the same number of workers [default: one for each worker]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole(1..=MOST_WORKERS, "4"), help_heading = "Network")]
    pub hosts: Option<usize>,
    /// Rate of each host's link (for example 1Gb/s, 100mbit or 125MB/s)
    #[arg(long, value_name = "RATE", allow_hyphen_values = true, value_parser = bandwidth, help_heading = "Network")]
    pub bandwidth: Option<f64>,
    /// Latency from one host to another, one way [default: 50us, typical of TCP over Ethernet inside a building]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = delay, help_heading = "Network")]
    pub latency: Option<f64>,
    /// Workers, hosts, rate and latency as `thinwire probe --json` measured them; other flags override them
    #[arg(long, value_name = "FILE", help_heading = "Network")]
    pub network: Option<PathBuf>,

    /// Steps of the run [default: 10000]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = steps, help_heading = "Run")]
    pub steps: Option<usize>,
    /// Steps of linear warm-up [default: a tenth of the steps]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole(0..=MOST_STEPS, "1000"), help_heading = "Run")]
    pub warmup: Option<usize>,
    /// Decay of the learning rate: cosine, linear, step, constant or inverse-sqrt [default: cosine]
    #[arg(long, help_heading = "Run")]
    pub decay: Option<String>,
    /// Clip the gradient, which takes a pass over it
    #[arg(long, help_heading = "Run")]
    pub clip: bool,
    /// Codecs of Efficient-Adam
    #[arg(
        long,
        value_name = "A,B,C",
        value_delimiter = ',',
        default_value = CODECS,
        help_heading = "Run"
    )]
    pub codecs: Vec<String>,

    /// Simulate the run by events instead of the formula; the flags below make workers and links differ
    #[arg(long, help_heading = "Simulation")]
    pub simulate: bool,
    /// Spread of the computing time, from worker to worker and step to step (for example 10%)
    #[arg(long, value_name = "PART", allow_hyphen_values = true, value_parser = part, requires = "simulate", help_heading = "Simulation")]
    pub spread: Option<f64>,
    /// One host takes this many times as long to compute and pack
    #[arg(long, value_name = "TIMES", allow_hyphen_values = true, value_parser = factor, requires = "simulate", help_heading = "Simulation")]
    pub slow_host: Option<f64>,
    /// One host's link is this many times slower
    #[arg(long, value_name = "TIMES", allow_hyphen_values = true, value_parser = factor, requires = "simulate", help_heading = "Simulation")]
    pub slow_link: Option<f64>,
    /// Mean delay of a message beyond its latency
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = delay, requires = "simulate", help_heading = "Simulation")]
    pub jitter: Option<f64>,
    /// Seed of the simulation [default: 1]
    #[arg(long, value_name = "S", allow_hyphen_values = true, value_parser = whole(0..=u64::from(u32::MAX), "2"), requires = "simulate", help_heading = "Simulation")]
    pub seed: Option<usize>,

    /// Draw the time of a step against the bandwidth, as an SVG file
    #[arg(long, value_name = "FILE.svg", help_heading = "Results")]
    pub plot: Option<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long, help_heading = "Results")]
    pub json: bool,
    /// Print errors only
    #[arg(long, short, help_heading = "Results")]
    pub quiet: bool,
}

impl Plan {
    /// What the flags ask, but for what `--measure` measures.
    pub fn question(&self) -> Result<Question> {
        Ok(Question {
            params: self.params,
            model: self.model.clone(),
            preset: self.preset.map(|paper| paper.0),
            deepspeed: self.deepspeed.clone(),
            compute: self.compute,
            sharing: self.sharing,
            cores: self.cores,
            bench: self.bench.clone(),
            device: self.device.clone(),
            without_packing: self.without_packing,
            memory: self.memory,
            workers: self.workers,
            hosts: self.hosts,
            bandwidth: self.bandwidth,
            latency: self.latency,
            network: self.network.clone(),
            steps: self.steps,
            warmup: self.warmup,
            decay: self.decay.as_deref().map(|decay| named("decay", decay)).transpose()?,
            clip: self.clip,
            codecs: Some(codecs(&self.codecs)?),
            also: self.also.clone(),
            simulate: self.simulate,
            spread: self.spread,
            slow_host: self.slow_host,
            slow_link: self.slow_link,
            jitter: self.jitter,
            seed: self.seed,
        })
    }
}
