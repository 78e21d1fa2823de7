//! Axes: from a value to a place between 0 and 1, and the round values at which to draw ticks.

use crate::numbers;

/// Where values stand on an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Equal steps are equally far apart.
    Linear {
        /// At the axis's start.
        from: f64,
        /// At its end.
        to: f64,
    },
    /// Equal factors are equally far apart.
    Log {
        /// At the axis's start, above 0.
        from: f64,
        /// At its end.
        to: f64,
    },
}

/// What an axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Steps of a run.
    Steps,
    /// A loss.
    Loss,
    /// Bytes.
    Bytes,
    /// Bits a second.
    Bandwidth,
    /// Seconds.
    Seconds,
}

impl Scale {
    /// From the least to the greatest of `values`. None if there is none.
    pub fn linear(values: impl IntoIterator<Item = f64>) -> Option<Scale> {
        let (from, to) = range(values.into_iter().filter(|value| value.is_finite()))?;
        let room = if from == to { from.abs().max(1.0) * 0.05 } else { 0.0 };
        Some(Scale::Linear { from: from - room, to: to + room })
    }

    /// From zero to the greatest of `values`. None if there is none.
    pub fn linear_from_zero(values: impl IntoIterator<Item = f64>) -> Option<Scale> {
        let (_, to) = range(values.into_iter().filter(|value| value.is_finite()))?;
        Some(Scale::Linear { from: 0.0, to: if to > 0.0 { to } else { 1.0 } })
    }

    /// Of the values above zero, which alone have a logarithm.
    pub fn log(values: impl IntoIterator<Item = f64>) -> Option<Scale> {
        let (from, to) = range(values.into_iter().filter(|value| value.is_finite() && *value > 0.0))?;
        let room = if to < from * 2.0 { 1.5 } else { 1.0 };
        Some(Scale::Log { from: from / room, to: to * room })
    }

    /// Where `value` stands: 0 at the axis's start, 1 at its end. NaN if it has no place on it.
    pub(crate) fn place(&self, value: f64) -> f64 {
        match *self {
            Scale::Linear { from, to } => (value - from) / (to - from),
            Scale::Log { from, to } if value > 0.0 => (value / from).ln() / (to / from).ln(),
            Scale::Log { .. } => f64::NAN,
        }
    }

    pub(crate) fn bounds(&self) -> (f64, f64) {
        match *self {
            Scale::Linear { from, to } | Scale::Log { from, to } => (from, to),
        }
    }

    /// Round values on the axis, about `wanted` of them, and how to write them.
    pub(crate) fn ticks(&self, wanted: usize, unit: Unit) -> Vec<(f64, String)> {
        match *self {
            Scale::Linear { from, to } => linear_ticks(from, to, wanted, unit),
            Scale::Log { from, to } => log_ticks(from, to, wanted, unit),
        }
    }
}

impl Unit {
    /// Seconds are written as minutes or hours where those are easier to read: (how many seconds, the name).
    pub(crate) fn of_time(longest: f64) -> (f64, &'static str) {
        match longest {
            s if s < 0.2 => (1e-3, "ms"),
            s if s < 300.0 => (1.0, "s"),
            s if s < 3.0 * 3600.0 => (60.0, "min"),
            _ => (3600.0, "h"),
        }
    }
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((from, to)) => Some((value.min(from), value.max(to))),
    })
}

fn linear_ticks(from: f64, to: f64, wanted: usize, unit: Unit) -> Vec<(f64, String)> {
    let worth = if unit == Unit::Seconds { Unit::of_time(to).0 } else { 1.0 };
    let (low, high) = (from / worth, to / worth);
    let mut gap = round_gap((high - low) / wanted as f64);
    if unit == Unit::Steps {
        gap = gap.max(1.0); // there is no half step
    }
    let decimals = (-gap.log10().floor()).max(0.0) as usize;
    let first = (low / gap).ceil();
    let many = ((high / gap).floor() - first).clamp(-1.0, 50.0) as i64;
    let values = (0..=many).map(|at| (first + at as f64) * gap);
    values.map(|value| (value * worth, tick_text(value, decimals, unit))).collect()
}

fn tick_text(value: f64, decimals: usize, unit: Unit) -> String {
    match unit {
        Unit::Bytes => numbers::bytes(value),
        Unit::Bandwidth => numbers::bandwidth(value),
        _ if decimals == 0 && (0.0..1e15).contains(&value) => numbers::count(value.round() as u64),
        _ if value.abs() >= 1e6 || (value != 0.0 && value.abs() < 1e-4) => format!("{value:.1e}"),
        _ => format!("{value:.decimals$}"),
    }
}

/// 1, 2 or 5 times a power of ten, and not less than `least`.
fn round_gap(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|times| times * power >= least * (1.0 - 1e-9));
    times.unwrap_or(10.0) * power
}

fn log_ticks(from: f64, to: f64, wanted: usize, unit: Unit) -> Vec<(f64, String)> {
    let decades = (to / from).log10();
    let times: &[f64] = if decades * 3.0 <= wanted as f64 + 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let every = (decades / wanted as f64).ceil().max(1.0) as i32;
    let powers = (from.log10().floor() as i32)..=(to.log10().ceil() as i32);
    let powers = powers.filter(|power| power.rem_euclid(every) == 0).map(|power| 10f64.powi(power));
    let values = powers.flat_map(|power| times.iter().map(move |times| times * power));
    let on_axis = values.filter(|value| (from * (1.0 - 1e-9)..=to * (1.0 + 1e-9)).contains(value));
    let ticks: Vec<_> = on_axis.map(|value| (value, short_text(value, unit))).collect();
    if ticks.len() < 2 { linear_ticks(from, to, wanted / 2, unit) } else { ticks }
}

/// A tick says `10 MB` and not `10.0 MB`.
fn short_text(value: f64, unit: Unit) -> String {
    let text = match unit {
        Unit::Bytes => numbers::bytes(value),
        Unit::Bandwidth => return numbers::bandwidth(value),
        _ => return numbers::significant(value, 1),
    };
    let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
    format!("{} {unit}", number.strip_suffix(".00").or(number.strip_suffix(".0")).unwrap_or(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: Scale, wanted: usize, unit: Unit) -> Vec<String> {
        scale.ticks(wanted, unit).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(texts(Scale::Linear { from: 0.0, to: 1500.0 }, 6, Unit::Steps), ["0", "500", "1,000", "1,500"]);
        assert_eq!(texts(Scale::Linear { from: 1.43, to: 2.1 }, 4, Unit::Loss), ["1.6", "1.8", "2.0"]);
        assert_eq!(texts(Scale::Linear { from: 0.0, to: 600.0 }, 5, Unit::Seconds), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(texts(Scale::Linear { from: 0.0, to: 1.0 }, 6, Unit::Steps), ["0", "1"]);
        assert_eq!(texts(Scale::Log { from: 3e5, to: 7e9 }, 6, Unit::Bytes), ["1 MB", "10 MB", "100 MB", "1 GB"]);
        assert_eq!(texts(Scale::Log { from: 3e6, to: 2.5e7 }, 6, Unit::Bytes), ["5 MB", "10 MB", "20 MB"]);
    }

    #[test]
    fn strange_values_make_no_strange_axis() {
        assert_eq!(Scale::linear([f64::NAN]), None);
        assert_eq!(Scale::log([0.0, -1.0, f64::INFINITY]), None);
        for value in [0.0, 1.0, -3.0, 1e300] {
            let scale = Scale::linear([value]).unwrap();
            assert!((scale.place(value) - 0.5).abs() < 1e-6);
            assert!(!scale.ticks(5, Unit::Loss).is_empty());
        }
        assert!(Scale::log([5.0]).unwrap().place(5.0) > 0.0);
        assert!(Scale::log([1.0, 2.0]).unwrap().place(0.0).is_nan());
    }
}
