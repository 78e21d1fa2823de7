//! What to do: the simplest method that is about as fast as the fastest, and from which bandwidth on a method pays no more.

use super::cost::Estimate;
use super::network::Network;
use crate::report::figures;
use serde::Serialize;
use thinwire::{CodecName, Name};

/// A method has to be this much faster than a simpler one to be worth it. A choice of ours: less than this a run's time differs
/// from day to day.
const WORTH: f64 = 0.05;

/// Where a break-even is looked for, in bits a second: from a modem to more than any link has.
const SLOWEST: f64 = 1e4;
const FASTEST: f64 = 1e13;

/// Up to which bandwidth a method is faster than Adam in f32.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pays {
    /// It is Adam in f32.
    Baseline,
    Always,
    Never,
    /// Bits a second.
    Below(f64),
}

impl std::fmt::Display for Pays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pays::Baseline => f.write_str("–"),
            Pays::Always => f.write_str("always"),
            Pays::Never => f.write_str("never"),
            Pays::Below(rate) => f.write_str(&figures::bandwidth(*rate)),
        }
    }
}

pub fn pays(estimate: &Estimate, adam: &Estimate, network: &Network) -> Pays {
    let faster = |rate: f64| estimate.run(&network.at(rate)) < adam.run(&network.at(rate));
    if std::ptr::eq(estimate, adam) {
        return Pays::Baseline;
    }
    match (faster(SLOWEST), faster(FASTEST)) {
        (true, true) => Pays::Always,
        (false, _) => Pays::Never,
        (true, false) => {
            let (mut low, mut high) = (SLOWEST, FASTEST);
            while high / low > 1.001 {
                let middle = (low * high).sqrt();
                *if faster(middle) { &mut low } else { &mut high } = middle;
            }
            Pays::Below((low * high).sqrt())
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    pub optimizer: Name,
    pub codec: CodecName,
    pub reason: String,
}

/// How simple a method is to take up: Adam itself first. None for those whose learning nobody has measured here.
fn simplicity(estimate: &Estimate) -> Option<usize> {
    // Efficient-Adam learned about as well as Adam by four bits, and less by fewer (docs/convergence.md).
    match (estimate.method.config.name, estimate.method.codec()) {
        (Name::Adam, CodecName::F32) => Some(0),
        (Name::Adam, _) => Some(1),
        (Name::ZeroOneAdam, _) => Some(2),
        (Name::OneBitAdam, _) => Some(3),
        (Name::EfficientAdam, CodecName::Uniform(4..) | CodecName::Bf16 | CodecName::F16) => Some(4),
        (Name::EfficientAdam, _) => None,
    }
}

/// The first of `estimates` is Adam in f32.
pub fn advise(estimates: &[Estimate], network: &Network) -> Advice {
    let seconds = |estimate: &Estimate| estimate.mean_step(network);
    let tried = estimates.iter().enumerate().filter_map(|(at, estimate)| Some((at, simplicity(estimate)?)));
    let tried = tried.collect::<Vec<_>>();
    let by_time = |at: usize| seconds(&estimates[at]);
    let fastest = tried.iter().map(|(at, _)| *at).min_by(|a, b| by_time(*a).total_cmp(&by_time(*b))).unwrap_or(0);
    let near = |at: usize| by_time(at) <= by_time(fastest) / (1.0 - WORTH);
    let simplest = tried.iter().filter(|(at, _)| near(*at)).min_by_key(|(_, simple)| *simple);
    let index = simplest.map_or(0, |(at, _)| *at);
    let (adam, chosen) = (&estimates[0], &estimates[index]);
    let reason = if index == 0 {
        stay(adam, &estimates[fastest], network)
    } else {
        change(adam, chosen, pays(chosen, adam, network), network)
    };
    Advice { optimizer: chosen.method.config.name, codec: chosen.method.codec(), reason }
}

fn stay(adam: &Estimate, fastest: &Estimate, network: &Network) -> String {
    if adam.bytes_sent == 0 {
        return "No: one worker has nobody to send to; stay with AdamW.".to_owned();
    }
    let (slow, fast) = (adam.mean_step(network), fastest.mean_step(network));
    let beyond = 100.0 * (slow - adam.compute) / slow;
    let saving = 100.0 * (1.0 - fast / slow);
    let against = match saving > 0.05 {
        true => format!("the fastest other, {}, would save {saving:.1} %", fastest.method.shown),
        false => "nothing else is faster".to_owned(),
    };
    format!(
        "No: your network is fast enough, stay with AdamW: all but {beyond:.1} % of its step of {} is computing, and {against}.",
        figures::seconds(slow)
    )
}

fn change(adam: &Estimate, chosen: &Estimate, pays: Pays, network: &Network) -> String {
    let (slow, fast) = (adam.mean_step(network), chosen.mean_step(network));
    let waits = slow - adam.compute - adam.packing();
    let fewer = adam.bytes_on_links() as f64 / chosen.bytes_on_links().max(1) as f64;
    let until = match pays {
        Pays::Below(rate) => format!("; from {} on it pays no more", figures::bandwidth(rate)),
        _ => String::new(),
    };
    let gain = match slow / fast {
        times if times < 1.2 => format!("{:.0} % less", 100.0 * (1.0 - fast / slow)),
        times => format!("{times:.1} times faster"),
    };
    format!(
        "{}: a step takes {} instead of {}, {gain}, because Adam's gradients keep your network busy for {} of each \
         step and it sends {fewer:.1} times fewer bytes{until}.",
        chosen.method.shown,
        figures::seconds(fast),
        figures::seconds(slow),
        figures::seconds(waits.max(0.0)),
    )
}
