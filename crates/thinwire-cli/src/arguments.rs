//! The command line.

use crate::bench::Bench;
use crate::defaults;
use crate::export::Export;
use crate::generate::Generate;
use crate::inspect::Inspect;
use crate::pages::{Completions, Man};
use crate::plan::arguments::Plan;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use thinwire_plan::units::{bandwidth, number};

#[derive(Parser)]
#[command(name = "thinwire", version, about = "Adam over thin wires: train with a bit or less for each parameter.")]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Train a network; without flags, a small GPT on Shakespeare, four workers, 0/1 Adam
    Train(Train),
    /// Train the same network with several optimizers, and compare them
    Compare(Compare),
    /// Predict whether compression pays on your network: rounds, bytes and time of every method, and advice
    Plan(Box<Plan>),
    /// Measure the network between the workers, and how long means take over it
    Probe(Probe),
    /// Measure what packing and the optimizers' passes cost on this machine
    Bench(Bench),
    /// Run a parameter server, for workers that come and go. It takes the flags of `train`
    #[cfg(feature = "server")]
    Serve(Box<Serve>),
    /// Train as a worker of a parameter server
    #[cfg(feature = "server")]
    Join(Join),
    /// serve and join, where they were not built
    #[cfg(not(feature = "server"))]
    #[command(name = "serve", alias = "join", hide = true, disable_help_flag = true)]
    NoServer {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        _rest: Vec<std::ffi::OsString>,
    },
    /// Turn run folders into one self-contained HTML page with plots
    Report(Report),
    /// Show what is in a checkpoint: tensors, sizes, norms, step and options
    Inspect(Inspect),
    /// Write text with a trained gpt
    Generate(Generate),
    /// Write the trained parameters as one safetensors file, for PyTorch and Hugging Face
    Export(Export),
    /// Print a script that completes commands and flags in a shell
    Completions(Completions),
    /// Print the manual page, or write those of all commands into a folder
    Man(Man),
}

#[derive(Args)]
#[command(allow_negative_numbers = true)] // so that the message of --lr -1 is about lr
pub struct Train {
    /// adam, one-bit-adam, zero-one-adam, efficient-adam, local-adam, lion, birder or one-bit-lamb, or a preset that only one of
    /// them has, such as diloco [default: zero-one-adam]
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// Resume the run in DIR with its own settings, bit for bit. With --steps N it becomes a run of N steps, also if it had
    /// ended
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub struct Compare {
    /// Resume the comparison in DIR: finished runs stay, the others are resumed, bit for bit
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// The optimizers, in the order of the table; also by presets that only one has, such as loco or diloco
    #[arg(
        long,
        value_name = "A,B,C",
        value_delimiter = ',',
        conflicts_with = "resume",
        default_values_t = defaults::COMPARED.map(|name| name.to_string())
    )]
    pub optimizers: Vec<String>,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Args)]
pub struct Probe {
    /// Workers [default: 4, or as many processes as were started]
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// threads, mpi, or auto: mpi if started by mpirun or srun, otherwise threads [default: auto]
    #[arg(long)]
    pub transport: Option<String>,
    /// Length of the averaged vector (for example 800k or 25M)
    #[arg(long, value_name = "N", default_value = "25M", value_parser = number)]
    pub values: usize,
    /// Codecs (for example f32, bf16, sign, uniform4); f32, bf16 and f16 average exactly, the others coarsely
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', default_value = "f32,bf16,sign")]
    pub codecs: Vec<String>,
    /// Precision of the residuals of coarse means: f32, bf16, or both in turn
    #[arg(long, alias = "residues", value_name = "A,B", value_delimiter = ',', default_value = "f32")]
    pub residuals: Vec<String>,
    /// Times that each mean is taken; the median is shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Bytes of a bucket [default: 4194304]
    #[arg(long, value_name = "N", value_parser = number)]
    pub bucket: Option<usize>,
    /// Seconds that a worker waits for another before it gives up
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub deadline: u64,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Print errors only
    #[arg(long, short)]
    pub quiet: bool,
}

#[cfg(feature = "server")]
#[derive(Args)]
#[command(
    allow_negative_numbers = true,
    // Flags of `train` that mean something else here, or nothing.
    mut_arg("transport", |arg| arg.hide(true)),
    mut_arg("hosts", |arg| arg.hide(true)),
    mut_arg("hierarchy", |arg| arg.hide(true)),
    mut_arg("order", |arg| arg.hide(true)),
    mut_arg("tensorboard", |arg| arg.hide(true)),
    mut_arg("workers", |arg| arg.help("Workers that the data is divided among; fewer or more may join [default: 4]")),
    mut_arg("deadline", |arg| arg.help("Seconds that a round waits for workers after its first message [default: 30]")),
    mut_arg("out", |arg| {
        arg.help("The run's folder; a run that is there is resumed [default: runs/server-TASK-OPTIMIZER]")
    }),
    mut_arg("checkpoint_every", |arg| arg.help("Steps between checkpoints of the workers; 0: only at the end [default: 0]")),
)]
pub struct Serve {
    /// adam, one-bit-adam, zero-one-adam, efficient-adam, local-adam, lion, birder or one-bit-lamb [default: efficient-adam]
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// Address to listen on. Any address but the loopback needs TLS, and a token or certificates of the workers
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7070", value_parser = address, help_heading = "Server")]
    pub listen: std::net::SocketAddr,
    /// Smallest number of workers in a round; `all` means --workers
    #[arg(long, value_name = "N|all", default_value = "1", help_heading = "Server")]
    pub quorum: String,
    /// Rounds in the log: a worker that missed no more of them continues without a snapshot
    #[arg(long, value_name = "ROUNDS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..), help_heading = "Server")]
    pub keep: u64,
    /// Rounds between snapshots
    #[arg(long, value_name = "ROUNDS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..), help_heading = "Server")]
    pub snapshot_every: u64,
    /// Snapshots to keep, with the log since the oldest: if one is damaged, the one before it is used
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..), help_heading = "Server")]
    pub keep_snapshots: u16,
    /// Return to the state after this round; later rounds are dropped
    #[arg(long, value_name = "ROUND", conflicts_with = "overwrite", help_heading = "Server")]
    pub back_to: Option<u64>,
    /// Largest number of workers [default: 64, or --workers if that is more]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Server")]
    pub max_members: Option<u32>,
    /// Largest number of workers from one address [default: half of --max-members, or --workers if that is more]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Server")]
    pub max_per_address: Option<u32>,
    /// The server's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "Server")]
    pub tls_cert: Option<PathBuf>,
    /// The key of --tls-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Server")]
    pub tls_key: Option<PathBuf>,
    /// Accept only workers whose certificate this one has signed (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Server")]
    pub client_ca: Option<PathBuf>,
    /// Accept only workers that present the token in this file, at least 16 characters
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub token_file: Option<PathBuf>,
    /// Exit when the run has ended, also if it had ended before; workers have a minute to fetch its result
    #[arg(long, help_heading = "Server")]
    pub exit_when_done: bool,
    /// Format of the log on standard error: text or json
    #[arg(long, value_name = "FORM", default_value = "text", value_parser = ["text", "json"], help_heading = "Server")]
    pub log: String,
    /// Log every round too
    #[arg(long, short, help_heading = "Server")]
    pub verbose: bool,
    #[command(flatten)]
    pub common: Common,
}

/// Where to listen: an address, or a name of this machine's.
#[cfg(feature = "server")]
fn address(text: &str) -> Result<std::net::SocketAddr, String> {
    let found = std::net::ToSocketAddrs::to_socket_addrs(text).ok().and_then(|mut found| found.next());
    found.filter(|_| !text.starts_with(':')).ok_or_else(|| {
        "expected ADDRESS:PORT (for example 127.0.0.1:7070, [::1]:7070, or 0.0.0.0:7070 for all of this machine's addresses)"
            .to_owned()
    })
}

#[cfg(feature = "server")]
#[derive(Args)]
pub struct Join {
    /// The server's HOST:PORT
    #[arg(value_name = "HOST:PORT")]
    pub server: String,
    /// This worker's name, by which the server recognizes it [default: the host's name and a number]
    #[arg(long)]
    pub name: Option<String>,
    /// The data, if the server was started with --data: the same files
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// The sentences, if the server was started with --finetune
    #[arg(long, value_name = "FILE.tsv")]
    pub finetune: Option<PathBuf>,
    /// The sentences to score, if the server was started with --finetune-eval
    #[arg(long, value_name = "FILE.tsv")]
    pub finetune_eval: Option<PathBuf>,
    /// The files of the gpt2 tokenizer, if the server was started with --tokenizer-files
    #[arg(long, value_name = "PATH")]
    pub tokenizer_files: Option<PathBuf>,
    /// Folder for the results. A checkpoint of this worker that is there is resumed
    /// [default: runs/TASK-OPTIMIZER-NAME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace the run that --out holds
    #[arg(long)]
    pub overwrite: bool,
    /// Steps between checkpoints; 0: only when interrupted, and at the end [default: the server's]
    #[arg(long, value_name = "N")]
    pub checkpoint_every: Option<u64>,
    /// The certificate that has signed the server's (PEM), for an encrypted connection
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// This worker's certificate (PEM), if the server requires one
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// The key of --cert (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// The name in the server's certificate, if it is not HOST
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
    /// The token, as in the server's --token-file
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Seconds that the server may be unreachable before this worker gives up
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub patience: u64,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Print errors only
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Args)]
pub struct Report {
    /// Folders of runs, or folders that contain some, such as those of `compare`
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// The page [default: report.html in the first folder]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The link of each worker for projected times (for example 100mbit or 10gbit)
    #[arg(long, value_name = "RATE", default_value = "1gbit", value_parser = bandwidth)]
    pub bandwidth: f64,
}

/// What `train` and `compare` share. The file of `--config` may have all of it, with _ for -.
#[derive(Args, Clone, Default)]
pub struct Common {
    /// gpt, bert or images [default: gpt]
    #[arg(long, help_heading = "Task")]
    pub task: Option<String>,
    /// A text file or a folder of them; for images IDX or CIFAR files; .gz too [default: embedded Shakespeare or digits]
    #[arg(long, value_name = "PATH", help_heading = "Task")]
    pub data: Option<PathBuf>,
    /// bert: fine-tune on sentences with labels, in GLUE's layout, instead of pre-training
    #[arg(long, value_name = "FILE.tsv", help_heading = "Task")]
    pub finetune: Option<PathBuf>,
    /// Sentences to score a fine-tuned bert on [default: a fifth of --finetune's]
    #[arg(long, value_name = "FILE.tsv", help_heading = "Task")]
    pub finetune_eval: Option<PathBuf>,
    /// Start from the parameters of this run (of the same task and sizes) instead of random ones
    #[arg(long, value_name = "DIR", help_heading = "Task")]
    pub from: Option<PathBuf>,
    /// tiny or small: gpt and bert of about 1M or 10M parameters, a ResNet of 0.08M or 0.3M [default: tiny]
    #[arg(long, help_heading = "Task")]
    pub size: Option<String>,
    #[arg(long, value_name = "N", help_heading = "Task")]
    /// Layers of the transformer, or residual blocks in each of the ResNet's three stages
    pub layers: Option<usize>,
    /// Width of the transformer, or channels of the ResNet's first stage
    #[arg(long, value_name = "N", help_heading = "Task")]
    pub dim: Option<usize>,
    /// Attention heads
    #[arg(long, value_name = "N", help_heading = "Task")]
    pub heads: Option<usize>,
    /// Tokens the network sees at once [default: 64, small: 128; with --finetune that of --from, or the length of the longest
    /// example, up to 512]
    #[arg(long, value_name = "N", help_heading = "Task")]
    pub context: Option<usize>,
    /// bytes, or gpt2 (build with --features gpt2) [default: bytes]
    #[arg(long, help_heading = "Task")]
    pub tokenizer: Option<String>,
    /// A folder with the files of the gpt2 tokenizer, instead of GPT-2's own
    #[arg(long, value_name = "PATH", help_heading = "Task")]
    pub tokenizer_files: Option<PathBuf>,

    /// Workers, each with its share of the data [default: 4, or as many processes as were started]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub workers: Option<usize>,
    /// threads, mpi, or auto: mpi if started by mpirun or srun, otherwise threads [default: auto]
    #[arg(long, help_heading = "Training")]
    pub transport: Option<String>,
    /// On threads: act as if the workers were on this number of hosts, to try --hierarchy [default: 1]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub hosts: Option<usize>,
    /// Whether workers of one host add up exactly before they compress: auto (if there are several hosts, and several workers
    /// on one), flat (never), or hosts (always) [default: auto]
    #[arg(long, help_heading = "Training")]
    pub hierarchy: Option<String>,
    /// Seconds that a worker waits for another before the run ends with an error [default: 300]
    #[arg(long, value_name = "SECONDS", help_heading = "Training")]
    pub deadline: Option<u64>,
    /// Steps [default: 2000 for gpt and bert, 600 for images, 300 with --finetune]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub steps: Option<u64>,
    /// Examples in a batch of one worker [default: 4 for text, 16 for images and sentences]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub batch: Option<usize>,
    /// Batches whose gradients are added up for one step [default: 1]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub accumulate: Option<u64>,
    /// random, or cd-grab: from the second epoch on, each worker takes its batches in an order that the gradients of the epoch before
    /// suggest (for data that is seen many times) [default: random]
    #[arg(long, help_heading = "Training")]
    pub order: Option<String>,
    /// Peak of the learning rate [default: recommended for the task and the optimizer]
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub lr: Option<f64>,
    /// Steps of linear warm-up [default: a tenth of the steps]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub warmup: Option<u64>,
    /// cosine, linear, step, constant or inverse-sqrt [default: cosine]
    #[arg(long, help_heading = "Training")]
    pub decay: Option<String>,
    /// Where cosine and linear end, as a part of the peak [default: 0]
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub floor: Option<f64>,
    /// Largest norm of the gradient: of the mean in exact steps; otherwise of the worker's own, which may be √workers times as large
    /// (not with efficient-adam or local-adam) [default: 1 for text, otherwise no limit]
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub clip: Option<f64>,
    /// Weight decay of matrices and kernels, not of biases and gains [default: 0.1 for text, 0.01 for images]
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub weight_decay: Option<f64>,
    /// Seed of the first weights and of the order of the data [default: 1]
    #[arg(long, value_name = "S", help_heading = "Training")]
    pub seed: Option<u64>,
    /// Any other option of the optimizer (for example kappa=4, codec=uniform3 or exact_codec=bf16); may be repeated. For one
    /// optimizer of several: zero-one-adam.kappa=4
    #[arg(long = "set", value_name = "OPTION=VALUE", help_heading = "Training")]
    pub options: Vec<String>,

    /// Folder for the results; a folder with a run is refused [default: runs/TASK-OPTIMIZER, runs/bert-finetune-OPTIMIZER, or
    /// runs/compare-TASK, with a number appended if it has a finished run]
    #[arg(long, value_name = "DIR", help_heading = "Results")]
    pub out: Option<PathBuf>,
    /// Replace the run that --out, or the default folder, holds
    #[arg(long, help_heading = "Results")]
    pub overwrite: bool,
    /// Steps between checkpoints; 0: only when interrupted, and at the end [default: 0]
    #[arg(long, value_name = "N", help_heading = "Results")]
    pub checkpoint_every: Option<u64>,
    /// Steps between evaluations on held-out data [default: a tenth of the steps]
    #[arg(long, value_name = "N", help_heading = "Results")]
    pub eval_every: Option<u64>,
    /// Held-out examples for the last evaluation [default: all]; those before it take at most 256
    #[arg(long, value_name = "N", help_heading = "Results")]
    pub eval_examples: Option<usize>,
    /// The network, as `thinwire probe --json` measured it, for the planned time of a step under MPI
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub network: Option<PathBuf>,
    /// Also write event files for TensorBoard into DIR [default: tensorboard in the run's folder]; `compare` makes a folder in it
    /// for each optimizer
    #[arg(long, value_name = "DIR", num_args = 0..=1, help_heading = "Results")]
    pub tensorboard: Option<Option<PathBuf>>,
    /// Settings in TOML, such as the config.toml of a run. Flags override them, and what was derived from an overridden setting is
    /// derived again
    #[arg(long, value_name = "F.toml", help_heading = "Results")]
    pub config: Option<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long, help_heading = "Results")]
    pub json: bool,
    /// Print errors only
    #[arg(long, short, help_heading = "Results")]
    pub quiet: bool,
}
