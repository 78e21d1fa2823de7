//! Numbers with units, as people write them on a command line.
//!
//! A unit that could mean two things is read as its letters say: b is a bit, B a byte of eight.

use crate::report::figures;

/// A whole number, with k, M or G for thousands, millions, billions.
pub fn number(text: &str) -> Result<usize, String> {
    let (digits, scale) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1e3),
        Some(b'M') => (&text[..text.len() - 1], 1e6),
        Some(b'G' | b'B') => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    match digits.trim().parse::<f64>().map(|number| number * scale) {
        Ok(number) if (1.0..1e12).contains(&number) => Ok(number.round() as usize),
        _ => Err("accepted: a whole number of at least 1, such as 800k, 25M or 1.5G".to_owned()),
    }
}

/// Slower than a telegraph, or faster than any link there is: a slip of the unit.
const RATES: std::ops::RangeInclusive<f64> = 1e3..=1e14;

/// Bits a second.
pub fn bandwidth(text: &str) -> Result<f64, String> {
    let refused = |why: &str| {
        Err(format!("{why}accepted: bits a second, such as 100mbit, 1Gb/s or 10Gbps, or bytes, such as 125MB/s"))
    };
    let Some((value, unit)) = split(text) else { return refused("") };
    let Some(scale) = rate_unit(unit) else {
        let why = if unit.is_empty() {
            "a number alone says no unit; ".to_owned()
        } else {
            format!("there is no unit `{unit}`; ")
        };
        return refused(&why);
    };
    match value * scale {
        rate if RATES.contains(&rate) => Ok(rate),
        rate if rate.is_finite() && rate > 0.0 => {
            refused(&format!("{} is no rate of a link; ", figures::bandwidth(rate)))
        }
        _ => refused(""),
    }
}

fn rate_unit(unit: &str) -> Option<f64> {
    let (unit, per_second) = match unit.strip_suffix("/s").or(unit.strip_suffix("ps")) {
        Some(unit) => (unit, true),
        None => (unit, false),
    };
    let (prefix, base) = match unit {
        _ if unit.to_lowercase().ends_with("bit") => (&unit[..unit.len() - 3], 1.0),
        _ if unit.ends_with('b') && per_second => (&unit[..unit.len() - 1], 1.0),
        _ if unit.ends_with('B') && per_second => (&unit[..unit.len() - 1], 8.0),
        _ => return None,
    };
    let prefix = match prefix {
        "" => 1.0,
        "k" | "K" => 1e3,
        "m" | "M" => 1e6,
        "g" | "G" => 1e9,
        "t" | "T" => 1e12,
        _ => return None,
    };
    Some(prefix * base)
}

/// Seconds, at least 0 and at most a day.
pub fn time(text: &str) -> Result<f64, String> {
    let refused =
        || Err("accepted: a time with its unit, such as 50us, 0.3ms, 300ms or 2s, of at most a day".to_owned());
    let Some((value, unit)) = split(text) else { return refused() };
    let scale = match unit {
        "ns" => 1e-9,
        "us" | "µs" | "μs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ if value == 0.0 && unit.is_empty() => 1.0,
        _ => return refused(),
    };
    let seconds = value * scale;
    if (0.0..=86_400.0).contains(&seconds) { Ok(seconds) } else { refused() }
}

/// A time above 0.
pub fn duration(text: &str) -> Result<f64, String> {
    match time(text)? {
        0.0 => Err("accepted: a time above 0, such as 300ms".to_owned()),
        seconds => Ok(seconds),
    }
}

/// A part of one: 0.1, or 10%.
pub fn part(text: &str) -> Result<f64, String> {
    let refused = || Err("accepted: a part from 0 to 1, such as 0.1 or 10%".to_owned());
    match split(text) {
        Some((value, "")) if (0.0..=1.0).contains(&value) => Ok(value),
        Some((value, "%")) if (0.0..=100.0).contains(&value) => Ok(value / 100.0),
        _ => refused(),
    }
}

/// How many times: 1 to 1000.
pub fn factor(text: &str) -> Result<f64, String> {
    match split(text) {
        Some((value, "" | "x")) if (1.0..=1000.0).contains(&value) => Ok(value),
        _ => Err("accepted: how many times, 1 to 1000, such as 1.5 or 2x".to_owned()),
    }
}

/// A finite number of at least 0, and what follows it.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| c.is_alphabetic() || c == '%').unwrap_or(text.len()));
    let value = number.trim().parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0)?;
    Some((value, unit.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_their_letters_say() {
        for (text, rate) in [
            ("1Gb/s", 1e9),
            ("1gbit", 1e9),
            ("2.5 Gbit/s", 2.5e9),
            ("10Gbps", 1e10),
            ("100mbit", 1e8),
            ("100Mb/s", 1e8),
            ("125MB/s", 1e9),
            ("64kbit", 64e3),
        ] {
            assert_eq!(bandwidth(text), Ok(rate), "{text}");
        }
        for text in ["", "fast", "1", "-1Gb/s", "1Gb", "1GB", "1 furlong/s", "0Gb/s", "nanGb/s", "1e30Gb/s", "5bit"] {
            let error = bandwidth(text).expect_err(text);
            assert!(error.contains("1Gb/s"), "{error}");
        }
    }

    #[test]
    fn times_have_units() {
        for (text, seconds) in
            [("50us", 50e-6), ("50µs", 50e-6), ("300ms", 0.3), ("2 s", 2.0), ("0", 0.0), ("1.5h", 5400.0)]
        {
            assert!((time(text).unwrap() - seconds).abs() < 1e-12, "{text}");
        }
        for text in ["", "50", "-1ms", "3 fortnights", "25h", "infs"] {
            assert!(time(text).expect_err(text).contains("50us"), "{text}");
        }
        assert!(duration("0s").is_err());
    }

    #[test]
    fn parts_and_factors() {
        assert_eq!((part("10%"), part("0.1")), (Ok(0.1), Ok(0.1)));
        assert_eq!((factor("2x"), factor("1.5")), (Ok(2.0), Ok(1.5)));
        for text in ["1.1", "-0.1", "101%", "ten"] {
            assert!(part(text).is_err(), "{text}");
        }
        assert!(factor("0.5").is_err() && factor("1e9").is_err());
    }
}
