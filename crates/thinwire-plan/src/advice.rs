//! What to do: the simplest method that is about as fast as the fastest, and from which bandwidth on a method pays no more.

use crate::comparison::Comparison;
use crate::cost::Estimate;
use crate::methods::is_measured;
use crate::network::Network;
use serde::Serialize;
use thinwire::inside::Optimizers;
use thinwire::{CodecName, Name};
use thinwire_report::numbers;

/// A method has to be this much faster than a simpler one to be worth it, and sending has to take this part of a step to matter. A
/// choice of ours: less than this a run's time differs from day to day.
const WORTH: f64 = 0.05;

/// Where a break-even is looked for, in bits a second: from a modem to more than any link has.
const SLOWEST: f64 = 1e4;
const FASTEST: f64 = 1e13;

/// On which bandwidths a method is faster than what it is held to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pays {
    /// It is what the others are held to.
    Baseline,
    /// On all.
    Always,
    /// On none.
    Never,
    /// Up to this rate, in bits a second.
    #[serde(rename = "below_bits_per_second")]
    Below(f64),
    /// From this rate on, where the others are held to a method that compresses.
    #[serde(rename = "above_bits_per_second")]
    Above(f64),
}

impl std::fmt::Display for Pays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pays::Baseline => f.write_str("–"),
            Pays::Always => f.write_str("always"),
            Pays::Never => f.write_str("never"),
            Pays::Below(rate) => f.write_str(&numbers::bandwidth(*rate)),
            Pays::Above(rate) => write!(f, "above {}", numbers::bandwidth(*rate)),
        }
    }
}

pub fn pays(estimate: &Estimate, base: &Estimate, network: &Network) -> Pays {
    let faster = |rate: f64| estimate.run(&network.at(rate)) < base.run(&network.at(rate));
    if std::ptr::eq(estimate, base) {
        return Pays::Baseline;
    }
    let slow = faster(SLOWEST);
    match (slow, faster(FASTEST)) {
        (true, true) => Pays::Always,
        (false, false) => Pays::Never,
        _ => {
            let (mut low, mut high) = (SLOWEST, FASTEST);
            while high / low > 1.001 {
                let middle = (low * high).sqrt();
                *if faster(middle) == slow { &mut low } else { &mut high } = middle;
            }
            let rate = (low * high).sqrt();
            if slow { Pays::Below(rate) } else { Pays::Above(rate) }
        }
    }
}

/// What to take.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// The optimizer.
    pub optimizer: Name,
    /// Its codec.
    pub codec: CodecName,
    /// The method, by its name among the methods of the answer.
    pub method: String,
    /// One sentence for people; it may begin with "No".
    pub reason: String,
}

/// How simple a method is to take up: Adam itself first. None for those whose learning nobody has measured here.
fn simplicity(estimate: &Estimate) -> Option<usize> {
    let method = &estimate.method;
    let exact_only = method.config.codec_up.is_none();
    match (method.algorithm.rank(method.codec())?, exact_only, estimate.ddp.is_some(), method.codec()) {
        (0, true, true, CodecName::F32) => Some(0),
        (0, true, true, _) => Some(1), // a hook of PyTorch's
        (0, true, false, CodecName::F32) => Some(2),
        (rank, ..) => Some(3 + rank),
    }
}

pub fn advise(comparison: &Comparison, network: &Network) -> Advice {
    let Comparison { estimates, base, .. } = comparison;
    let step = |at: usize| comparison.step(at, network);
    let fastest_of = |some: &mut dyn Iterator<Item = usize>| some.min_by(|a, b| step(*a).total_cmp(&step(*b)));
    // What is there already is the simplest.
    let effort = |at: usize| if at == *base { Some(0) } else { simplicity(&estimates[at]).map(|simple| 1 + simple) };
    // Where the user has no DDP, it is no choice: the others are held to what there is.
    let choice = |at: &usize| estimates[*at].ddp.is_none() || estimates[*base].ddp.is_some();
    let tried = || (0..estimates.len()).filter(|at| effort(*at).is_some() && comparison.fits(*at)).filter(choice);
    let fastest = fastest_of(&mut tried()).unwrap_or(*base);
    let near = |at: &usize| step(*at) <= step(fastest) / (1.0 - WORTH);
    let saves = |at: &usize| step(*at) <= step(*base) * (1.0 - WORTH);

    let lone = comparison.hosts == 1;
    let plain = plain(comparison);
    let sends = comparison.parts(plain, network).sending();
    let chosen = if lone || sends < WORTH * step(plain) {
        if estimates[*base].method.config.codec_up.is_none() { *base } else { plain }
    } else {
        tried().filter(near).filter(saves).min_by_key(|at| effort(*at)).unwrap_or(*base)
    };
    let mut reason = match chosen {
        _ if lone => alone(comparison, chosen),
        _ if sends < WORTH * step(plain) => fast_enough(comparison, chosen, network),
        chosen if chosen == *base => stay(comparison, fastest, network),
        _ => change(comparison, chosen, network),
    };
    let untried = fastest_of(&mut (0..estimates.len()).filter(|at| effort(*at).is_none() && comparison.fits(*at)));
    if let Some(at) = untried.filter(|at| chosen != *base && step(*at) <= step(chosen) * (1.0 - WORTH)) {
        let method = &estimates[at].method;
        let why = match is_measured(Optimizers::row(method.config.name)) && method.config.name != Name::ADAM {
            true => "by fewer than four bits it has not been shown to learn as well (docs/convergence.md)",
            false => "nobody has measured yet how it learns (docs/choosing.md)",
        };
        reason +=
            &format!(" {} would be faster still, with {} a step, but {why}.", method.shown, numbers::seconds(step(at)));
    }
    let method = &estimates[chosen].method;
    Advice { optimizer: method.config.name, codec: method.codec(), method: method.shown.clone(), reason }
}

/// Adam in f32: under DDP, if that is what the others are held to, or as it is here.
fn plain(comparison: &Comparison) -> usize {
    if comparison.estimates[comparison.base].ddp.is_some() { comparison.base } else { 0 }
}

/// What the user has, or is taken to have.
fn own(comparison: &Comparison) -> String {
    let shown = &comparison.estimates[comparison.base].method.shown;
    match shown.strip_prefix("yours: ") {
        Some(own) => format!("what you have, {own}"),
        None if comparison.estimates[comparison.base].ddp.is_some() => "AdamW under DDP".to_owned(),
        None => "AdamW".to_owned(),
    }
}

/// "stay with …", or to leave compression.
fn or_plain(comparison: &Comparison, chosen: usize) -> String {
    if chosen == comparison.base { format!("stay with {}", own(comparison)) } else { "take AdamW as it is".to_owned() }
}

fn alone(comparison: &Comparison, chosen: usize) -> String {
    let who = match comparison.estimates[0].plan.workers() {
        1 => "one worker has nobody to send to".to_owned(),
        workers => format!("all {workers} workers are on one host, so there is no network to save on"),
    };
    format!("No: {who}; {}.", or_plain(comparison, chosen))
}

fn fast_enough(comparison: &Comparison, chosen: usize, network: &Network) -> String {
    let plain = plain(comparison);
    let (parts, step) = (comparison.parts(plain, network), comparison.step(plain, network));
    let hidden =
        if comparison.estimates[plain].ddp.is_some() { "what backward does not hide of sending" } else { "sending" };
    let shown = comparison.estimates[plain].method.shown.replace("yours: ", "");
    let packs = match parts.packing > WORTH * step {
        true => format!(
            "; {} of it is packing, as measured on a CPU, and what other methods save is that alone (--without-packing leaves it out)",
            numbers::seconds(parts.packing)
        ),
        false => String::new(),
    };
    format!(
        "No: your network is fast enough, {}: {hidden} takes {:.1} % of {shown}'s step of {}{packs}.",
        or_plain(comparison, chosen),
        100.0 * parts.sending() / step,
        numbers::seconds(step)
    )
}

fn stay(comparison: &Comparison, fastest: usize, network: &Network) -> String {
    let base = comparison.base;
    if fastest == base && !comparison.fits(base) {
        let fitting = (0..comparison.estimates.len()).filter(|at| comparison.fits(*at));
        let quickest = fitting.min_by(|a, b| comparison.step(*a, network).total_cmp(&comparison.step(*b, network)));
        let others = quickest.map_or("nothing in the table does".to_owned(), |at| {
            let shown = &comparison.estimates[at].method.shown;
            format!("{shown} would, and is not known to learn as well (docs/choosing.md)")
        });
        return format!(
            "No method whose learning has been measured fits the memory of a worker, {} included; {others}.",
            own(comparison)
        );
    }
    let saving = 100.0 * (1.0 - comparison.step(fastest, network) / comparison.step(base, network));
    let against = match saving > 0.05 {
        true => format!("the fastest other, {}, would save {saving:.1} %", comparison.estimates[fastest].method.shown),
        false => "nothing else is faster".to_owned(),
    };
    format!(
        "No: stay with {}: sending takes {} of its step of {}, but {against}, and less than {:.0} % is not worth a change.",
        own(comparison),
        numbers::seconds(comparison.parts(base, network).sending()),
        numbers::seconds(comparison.step(base, network)),
        100.0 * WORTH
    )
}

/// The reason is where most of the time is saved.
fn change(comparison: &Comparison, chosen: usize, network: &Network) -> String {
    let (base, other) = (&comparison.estimates[comparison.base], &comparison.estimates[chosen]);
    let (slow, fast) = (comparison.step(comparison.base, network), comparison.step(chosen, network));
    let (theirs, its) = (comparison.parts(comparison.base, network), comparison.parts(chosen, network));
    let saved = |of: fn(&crate::cost::Parts) -> f64| of(&theirs) - of(&its);
    let wire = saved(|parts| parts.wire);
    let latency = saved(|parts| parts.latency);
    let packing = saved(|parts| parts.packing);
    let waiting = saved(|parts| parts.waiting);
    let most = wire.max(latency).max(packing).max(waiting);
    let [shown, seconds] = [base.method.shown.replace("yours: ", ""), numbers::seconds(slow)];
    let beside = if base.ddp.is_some() { " beyond backward" } else { "" };
    let because = match () {
        () if wire == most => format!(
            "the bytes of {shown} keep your network busy for {} of each step{beside} and it sends {:.1} times fewer",
            numbers::seconds(theirs.wire),
            base.bytes_on_links() as f64 / other.bytes_on_links().max(1) as f64
        ),
        () if latency == most => {
            let rounds = other.plan.rounds;
            let why = match rounds.skipped {
                0 => "its rounds go in fewer messages".to_owned(),
                skipped => format!("it skips {:.0} % of the rounds", 100.0 * skipped as f64 / other.plan.steps as f64),
            };
            format!(
                "latency takes {} of each step of {shown} and {} of its: {why}",
                numbers::seconds(theirs.latency),
                numbers::seconds(its.latency.max(0.0))
            )
        }
        () if packing == most => format!(
            "packing takes {} of each step of {shown} and {} of its, as measured on a CPU, whatever the network \
             (--without-packing leaves it out)",
            numbers::seconds(theirs.packing),
            numbers::seconds(its.packing)
        ),
        () => format!(
            "waiting for slow workers, links and messages takes {} of each step of {shown} and {} of its",
            numbers::seconds(theirs.waiting),
            numbers::seconds(its.waiting.max(0.0))
        ),
    };
    let gain = match slow / fast {
        times if times < 1.2 => format!("{:.0} % less", 100.0 * (1.0 - fast / slow)),
        times => format!("{times:.1} times faster"),
    };
    let until = match pays(other, base, network) {
        Pays::Below(rate) => format!("; from {} on it pays no more", numbers::bandwidth(rate)),
        _ => String::new(),
    };
    let instead = if base.method.shown == shown { String::new() } else { format!(" of yours, {shown}") };
    let hook = if other.ddp.is_some() { " (PyTorch's bf16_compress_hook)" } else { "" };
    let instead = if base.ddp.is_some() { format!(" of {shown}") } else { instead };
    format!(
        "{}{hook}: a step takes {} instead of {seconds}{instead}, {gain}, because {because}{until}.",
        other.method.shown,
        numbers::seconds(fast),
    )
}
