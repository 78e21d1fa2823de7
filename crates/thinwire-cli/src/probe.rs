//! `thinwire probe`: what the network between the workers can do, and what the means that training takes over it cost.
//!
//! First pairs of workers, one pair at a time: half the time of a small message there and back, and the rate of large ones one
//! way. Then everyone sends to the next at once, which is what a mean does to a network. Then the means themselves, taken by
//! the engine as in training, and beside them MPI_Allreduce where there is MPI.

use crate::arguments::Probe;
use crate::failure::{Failure, Outcome};
use crate::launch::{Team, gather};
use crate::screen::{Answers, print, say};
use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use std::fmt;
use std::time::{Duration, Instant};
use thinwire::CodecName;
use thinwire::inside::machine::Floats;
use thinwire::options::Precision;
use thinwire::{Collective, MeanOptions};
use thinwire_plan::files::{EXACT_F32, Mean, Pair, Probed};
use thinwire_plan::inside::vector;
use thinwire_report::numbers::{self, bandwidth as rate, bytes, median, seconds as time};

/// What all errors of the transport say was going on.
const PROBING: &str = "probing";

/// Small messages there and back, between two workers.
const PINGS: usize = 100;

/// Small messages one way, without an answer.
const BURST: usize = 1000;

/// Seconds that the large messages of a pair should take, about, and their size.
const LONG_ENOUGH: f64 = 0.2;
const PIECE: usize = 1 << 20;
const MOST_PIECES: usize = 256;

/// With more workers than this, only worker 0 with each other, and neighbours, are measured.
const ALL_PAIRS: usize = 8;

pub fn command(arguments: &Probe, team: &Team) -> Outcome {
    let (workers, kinds) = team.agree(check(arguments, team).map_err(Failure::Usage))?;
    let deadline = Duration::from_secs(arguments.deadline);
    let said = |what: &str| {
        if !arguments.quiet && team.leads() {
            say!("measuring {what}");
        }
    };
    said("pairs of workers, then all at once");
    let mut probed = first(team.run(workers, 1, deadline, |group| network(group, team.transport())))?;
    // MPI counts in C's int.
    if team.size().is_some() && arguments.values <= i32::MAX as usize {
        said("MPI_Allreduce");
        probed.means.push(first(team.run(workers, 1, deadline, |group| all_reduce(group, arguments, team)))?);
    }
    for kind in kinds {
        said(&format!("the {kind}"));
        probed.means.push(first(team.run(workers, 1, deadline, |group| mean(group, kind, arguments)))?);
    }
    if team.leads() && !arguments.quiet {
        show(&probed, Answers::beside(arguments.json));
    }
    if team.leads() && arguments.json {
        print(&probed)?;
    }
    Ok(())
}

/// A mean to take: exact if the codec is a cast, coarse with its residuals if not.
#[derive(Clone, Copy)]
enum Kind {
    Exact(CodecName),
    Coarse(CodecName, Precision),
}

/// Its name in the table.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Exact(CodecName::F32) => f.write_str(EXACT_F32),
            Kind::Exact(codec) => write!(f, "exact mean, {codec}"),
            Kind::Coarse(codec, Precision::F32) => write!(f, "coarse mean, {codec}"),
            Kind::Coarse(codec, residual) => write!(f, "coarse mean, {codec}, residual {residual}"),
        }
    }
}

fn check(arguments: &Probe, team: &Team) -> Result<(usize, Vec<Kind>)> {
    let workers = team.size().or(arguments.workers).unwrap_or(4);
    let given = arguments.workers.unwrap_or(workers);
    ensure!(
        given == workers,
        "invalid --workers {given}: expected {workers}, because each of the {workers} processes is a worker"
    );
    ensure!((2..=1024).contains(&workers), "invalid --workers {workers}: expected 2 to 1024");
    // The vector, its sum or its residual, and as much again for messages of 32 bits.
    let room = arguments.values.checked_mul(3).map(Floats::try_zeroed);
    ensure!(
        matches!(room, Some(Ok(_))),
        "invalid --values {}: expected fewer, because this machine has no memory for vectors of {}",
        arguments.values,
        bytes(4.0 * arguments.values as f64)
    );
    let precision = |name: &String| name.parse::<Precision>().with_context(|| format!("invalid --residuals {name}"));
    let precisions = arguments.residuals.iter().map(precision).collect::<Result<Vec<_>>>()?;
    let mut kinds = Vec::new();
    for name in &arguments.codecs {
        match name.parse::<CodecName>().with_context(|| format!("invalid --codecs {name}"))? {
            cast @ (CodecName::F32 | CodecName::Bf16 | CodecName::F16) => kinds.push(Kind::Exact(cast)),
            codec => kinds.extend(precisions.iter().map(|precision| Kind::Coarse(codec, *precision))),
        }
    }
    Ok((workers, kinds))
}

/// What the first worker of this process found, unless one failed.
fn first<T>(ends: Vec<Result<T>>) -> Outcome<T> {
    let mut ends = ends.into_iter().collect::<Result<Vec<_>>>().map_err(Failure::Run)?;
    Ok(ends.swap_remove(0))
}

/// Pairs one by one, then all at once: one worker's part.
fn network(mut group: Box<dyn Collective>, transport: &'static str) -> Result<Probed> {
    let group = &mut *group;
    let (rank, workers) = (group.rank(), group.size());
    let mut mine = Vec::new();
    for (from, to) in pairs(workers) {
        gather(group, &[], PROBING)?; // nobody else talks while these two do
        if rank == from || rank == to {
            mine.extend(pair(group, from, to)?);
        }
    }
    let told = serde_json::to_vec(&(mine, ring(group)?))?;
    let all = gather(group, &told, PROBING)?;
    let all =
        all.iter().map(|told| Ok(serde_json::from_slice::<(Vec<Pair>, f64)>(told)?)).collect::<Result<Vec<_>>>()?;
    let pairs = all.iter().flat_map(|(pairs, _)| pairs.iter().copied()).collect::<Vec<_>>();
    Ok(Probed {
        transport: transport.to_owned(),
        workers,
        hosts: group.hosts(),
        latency_seconds: pairs.iter().map(|pair| pair.latency_seconds).fold(0.0, f64::max),
        bits_per_second: pairs.iter().map(|pair| pair.bits_per_second).fold(f64::INFINITY, f64::min),
        pairs,
        bits_per_second_all_at_once: all.iter().map(|(_, rate)| *rate).fold(f64::INFINITY, f64::min),
        means: Vec::new(),
    })
}

/// The pairs to measure.
fn pairs(workers: usize) -> Vec<(usize, usize)> {
    let every = (0..workers).flat_map(|from| (0..workers).map(move |to| (from, to)));
    let near = |(from, to): &(usize, usize)| workers <= ALL_PAIRS || *from == 0 || (from + 1) % workers == *to;
    every.filter(|(from, to)| from != to).filter(near).collect()
}

/// Small messages there and back, then large ones one way; the sender gets the figures.
fn pair(group: &mut dyn Collective, from: usize, to: usize) -> Result<Option<Pair>> {
    let mut message = vec![0; 8];
    if group.rank() == to {
        for _ in 0..PINGS {
            group.receive(from, &mut message, PROBING)?;
            group.send(from, &message, PROBING)?;
        }
        for _ in 0..BURST {
            group.receive(from, &mut message, PROBING)?;
        }
        group.send(from, &message, PROBING)?;
        // First a piece, to see how many make a measurement.
        for _ in 0..2 {
            message.resize(8, 0);
            group.receive(from, &mut message, PROBING)?;
            let pieces = u64::from_le_bytes(message[..8].try_into().context("a number of pieces")?);
            for _ in 0..pieces {
                message.resize(PIECE, 0);
                group.receive(from, &mut message, PROBING)?;
            }
            group.send(from, &[0], PROBING)?;
        }
        return Ok(None);
    }
    let mut round_trips = Vec::new();
    for _ in 0..PINGS {
        let began = Instant::now();
        group.send(to, &message, PROBING)?;
        group.receive(to, &mut message, PROBING)?;
        round_trips.push(began.elapsed().as_secs_f64());
    }
    let began = Instant::now();
    for _ in 0..BURST {
        group.send(to, &message, PROBING)?;
    }
    group.receive(to, &mut message, PROBING)?;
    let seconds_per_message = Some(began.elapsed().as_secs_f64() / BURST as f64);
    let (mut pieces, mut seconds) = (1, 0.0);
    for _ in 0..2 {
        if seconds > 0.0 {
            pieces = ((LONG_ENOUGH / seconds) as usize).clamp(1, MOST_PIECES);
        }
        group.send(to, &(pieces as u64).to_le_bytes(), PROBING)?;
        let (piece, began) = (vec![0; PIECE], Instant::now());
        for _ in 0..pieces {
            group.send(to, &piece, PROBING)?;
        }
        group.receive(to, &mut message, PROBING)?;
        seconds = began.elapsed().as_secs_f64();
    }
    let bits_per_second = (pieces * PIECE * 8) as f64 / seconds;
    let latency_seconds = median(&round_trips) / 2.0;
    Ok(Some(Pair { from, to, latency_seconds, seconds_per_message, bits_per_second }))
}

/// This worker's rate when everyone sends to the next.
fn ring(group: &mut dyn Collective) -> Result<f64> {
    let (rank, workers) = (group.rank(), group.size());
    let (next, last) = ((rank + 1) % workers, (rank + workers - 1) % workers);
    let (piece, mut message) = (vec![0; PIECE], Vec::new());
    let mut pieces = 1;
    loop {
        gather(group, &[], PROBING)?;
        let began = Instant::now();
        for _ in 0..pieces {
            group.send(next, &piece, PROBING)?;
        }
        for _ in 0..pieces {
            message.resize(PIECE, 0);
            group.receive(last, &mut message, PROBING)?;
        }
        let seconds = slowest(&gather(group, &began.elapsed().as_secs_f64().to_le_bytes(), PROBING)?)?;
        if seconds >= LONG_ENOUGH || pieces == MOST_PIECES {
            return Ok((pieces * PIECE * 8) as f64 / seconds);
        }
        pieces = ((pieces as f64 * 1.2 * LONG_ENOUGH / seconds) as usize).clamp(pieces + 1, MOST_PIECES);
    }
}

fn slowest(times: &[Vec<u8>]) -> Result<f64> {
    let mut slowest = 0.0_f64;
    for time in times {
        slowest = slowest.max(f64::from_le_bytes(time[..].try_into().context("a time")?));
    }
    Ok(slowest)
}

/// MPI's own sum of the vector, as a yardstick.
fn all_reduce(mut group: Box<dyn Collective>, arguments: &Probe, team: &Team) -> Result<Mean> {
    let (x, mut sum) = (vector(arguments.values, 0.5), Floats::zeroed(arguments.values));
    let mut runs = Vec::new();
    for _ in 0..=arguments.repeats {
        gather(&mut *group, &[], PROBING)?;
        let began = Instant::now();
        team.all_reduce(&x, &mut sum);
        runs.push(slowest(&gather(&mut *group, &began.elapsed().as_secs_f64().to_le_bytes(), PROBING)?)?);
    }
    let workers = group.size() as u64;
    let sent = 2 * 4 * arguments.values as u64 * (workers - 1) / workers; // what a ring sends: MPI does not tell
    Ok(timed("MPI_Allreduce, f32".to_owned(), arguments.values, sent, runs))
}

/// A mean as the engine takes it in training.
fn mean(group: Box<dyn Collective>, kind: Kind, arguments: &Probe) -> Result<Mean> {
    let options = match kind {
        Kind::Exact(codec) => MeanOptions { feedback: false, ..MeanOptions::of(codec) },
        Kind::Coarse(codec, residual) => MeanOptions { residual, ..MeanOptions::of(codec) },
    };
    let options = MeanOptions { bucket: arguments.bucket.unwrap_or(options.bucket), ..options };
    let mut mean = thinwire::Mean::boxed(arguments.values, options, group)?;
    let mut x = vector(arguments.values, 0.5);
    let mut runs = Vec::new();
    for _ in 0..=arguments.repeats {
        mean.gather(&[])?;
        let began = Instant::now();
        mean.take(&mut x)?;
        let took = began.elapsed().as_secs_f64().to_le_bytes();
        runs.push(slowest(&mean.gather(&took)?)?);
    }
    let sent = mean.traffic().bytes_sent / (u64::from(arguments.repeats) + 1);
    Ok(timed(kind.to_string(), arguments.values, sent, runs))
}

/// Without the first run, in which memory is touched and connections are made.
fn timed(name: String, values: usize, bytes_sent_per_worker: u64, mut runs: Vec<f64>) -> Mean {
    runs.remove(0);
    Mean { name, values, bytes_sent_per_worker, seconds: median(&runs), runs }
}

fn show(probed: &Probed, answers: Answers) {
    let table = |header: &[&str], rows: Vec<Vec<String>>| {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header).add_rows(rows);
        table.column_iter_mut().skip(1).for_each(|column| {
            column.set_cell_alignment(CellAlignment::Right);
        });
        answers.line(&table.to_string());
    };
    let pair = |pair: &Pair| {
        let hosts = [probed.hosts[pair.from], probed.hosts[pair.to]];
        let place =
            if hosts[0] == hosts[1] { "one host".to_owned() } else { format!("hosts {} and {}", hosts[0], hosts[1]) };
        vec![format!("{} → {}, {place}", pair.from, pair.to), time(pair.latency_seconds), rate(pair.bits_per_second)]
    };
    table(&["workers", "latency", "rate"], probed.pairs.iter().map(pair).collect());
    let rate_of_all = rate(probed.bits_per_second_all_at_once);
    answers.line(&format!("all at once, each to the next: {rate_of_all} a worker, at the slowest"));
    let longest = probed.means.iter().map(|mean| mean.seconds).fold(0.0, f64::max);
    let mean = |mean: &Mean| {
        let sent = bytes(mean.bytes_sent_per_worker as f64);
        vec![mean.name.clone(), sent, time(mean.seconds), format!("{:.1}", longest / mean.seconds.max(1e-12))]
    };
    let values = numbers::short(probed.means.first().map_or(0.0, |mean| mean.values as f64));
    let title = format!("{values} values");
    table(&[&title, "bytes a worker", "time", "times as fast as the slowest"], probed.means.iter().map(mean).collect());
}
