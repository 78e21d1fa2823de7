//! The time of a step against the bandwidth, for every method, and where each crosses Adam's, or what the user has.

use crate::advice::{Pays, pays};
use crate::cost::Estimate;
use crate::network::Network;
use thinwire_report::numbers;
use thinwire_report::{Axis, Chart, Lines, Look, Scale, Unit};

/// Points of a line; so many that none is marked as a measurement.
const POINTS: usize = 97;

/// A file of SVG.
pub fn draw(shown: &[Estimate], base: usize, network: &Network) -> String {
    let (looks, base) = (looks(shown), &shown[base]);
    let crossing = |estimate: &Estimate| match pays(estimate, base, network) {
        Pays::Below(rate) | Pays::Above(rate) => Some(rate),
        _ => None,
    };
    // From a tenth of the slowest rate that matters to ten times the fastest.
    let rates = shown.iter().filter_map(crossing).chain([network.bandwidth]);
    let (low, high) = rates.fold((1e8_f64, 1e10_f64), |(low, high), rate| (low.min(rate), high.max(rate)));
    let (low, high) = (low / 2.0, (high * 3.0).min(low * 1e7));
    let at = |point: usize| low * (high / low).powf(point as f64 / (POINTS - 1) as f64);
    let step = |estimate: &Estimate, rate: f64| estimate.mean_step(&network.at(rate));
    let curve =
        |estimate: &Estimate| (0..POINTS).map(|point| (at(point), step(estimate, at(point)))).collect::<Vec<_>>();
    let curves = shown.iter().map(curve).collect::<Vec<_>>();
    let times = curves.iter().flatten().map(|(_, seconds)| *seconds);
    let y = Scale::log(times.chain([base.compute])).expect("times above 0");
    let marks = shown.iter().zip(&looks).filter_map(|(estimate, look)| {
        crossing(estimate).filter(|rate| (low..=high).contains(rate)).map(|rate| (look, (rate, step(estimate, rate))))
    });
    let chart = Chart {
        id: "step-by-bandwidth",
        x: Axis {
            title: format!(
                "bandwidth of a host's link (log scale); circles: where a method crosses {}",
                base.method.shown
            ),
            scale: Scale::Log { from: low, to: high },
            unit: Unit::Bandwidth,
        },
        y: Axis { title: "seconds a step (log scale)".to_owned(), scale: y, unit: Unit::Seconds },
        marks: marks.collect(),
        here: Some((network.bandwidth, format!("yours: {}", numbers::bandwidth(network.bandwidth)))),
        lines: looks.iter().zip(curves).map(|(look, held_out)| Lines { look, train: Vec::new(), held_out }).collect(),
    };
    let workers = base.plan.workers();
    chart.svg(&format!("Time of a step, {} parameters, {workers} workers", numbers::short(base.plan.params() as f64)))
}

fn looks(estimates: &[Estimate]) -> Vec<Look> {
    let name = |estimate: &Estimate| estimate.method.config.name;
    let look = |(at, estimate): (usize, &Estimate)| {
        let before = estimates[..at].iter().filter(|other| name(other) == name(estimate)).count();
        Look::of_optimizer(&name(estimate).to_string(), &estimate.method.shown, before)
    };
    estimates.iter().enumerate().map(look).collect()
}
