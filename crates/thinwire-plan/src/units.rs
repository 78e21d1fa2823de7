//! Numbers with units, as people write them on a command line: what the values of a [`Question`](crate::Question) are read by.
//!
//! A unit that could mean two things is read as its letters say: b is a bit, B a byte of eight.

use thinwire_report::numbers;

/// More values than any model has, and more steps than any run.
const MOST: f64 = 1e13;
const MOST_STEPS: f64 = 1e8;

/// A whole number, with k, M, G or T for thousands, millions, billions, trillions.
pub fn number(text: &str) -> Result<usize, String> {
    up_to(text, MOST, "10T")
}

/// As many steps as a run may have.
pub fn steps(text: &str) -> Result<usize, String> {
    up_to(text, MOST_STEPS, "100M")
}

fn up_to(text: &str, most: f64, shown: &str) -> Result<usize, String> {
    let text = text.trim();
    let at = text.len() - text.chars().next_back().filter(|last| last.is_alphabetic()).map_or(0, char::len_utf8);
    let scale = match &text[at..] {
        "" => Some(1.0),
        "k" | "K" => Some(1e3),
        "M" => Some(1e6),
        "G" | "B" => Some(1e9),
        "T" => Some(1e12),
        _ => None,
    };
    let number = text[..at].trim().parse::<f64>().ok().zip(scale).map(|(number, scale)| number * scale);
    // 1.1 · 10⁹ is whole, but for what a float loses.
    let whole = |number: &f64| (number - number.round()).abs() <= 1e-9 * number && (1.0..=most).contains(number);
    number.filter(whole).map(|number| number.round() as usize).ok_or_else(|| {
        let case = if matches!(&text[at..], "m" | "g" | "b" | "t") { "M, G and T are capitals; " } else { "" };
        format!("{case}expected a whole number from 1 to {shown} (for example 800k, 25M or 1.5G)")
    })
}

/// Bytes of a memory: 24GB, or 24GiB.
pub fn size(text: &str) -> Result<usize, String> {
    let (kibi, kilo) = (1024_f64, 1000_f64);
    let scale = |unit: &str| match unit {
        "MB" => Some(kilo.powi(2)),
        "GB" => Some(kilo.powi(3)),
        "TB" => Some(kilo.powi(4)),
        "MiB" => Some(kibi.powi(2)),
        "GiB" => Some(kibi.powi(3)),
        "TiB" => Some(kibi.powi(4)),
        _ => None,
    };
    let bytes = split(text).and_then(|(value, unit)| Some(value * scale(unit)?));
    bytes.filter(|bytes| (1e6..=1e16).contains(bytes)).map(|bytes| bytes as usize).ok_or_else(|| {
        "expected at least 1MB, with the unit MB, GB, TB, MiB, GiB or TiB (for example 24GB or 80GiB)".to_owned()
    })
}

/// A whole number of these, without units.
pub fn whole(
    range: std::ops::RangeInclusive<u64>,
    example: &'static str,
) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| match text.trim().parse::<u64>().ok().filter(|number| range.contains(number)) {
        Some(number) => Ok(number as usize),
        None => {
            Err(format!("expected a whole number from {} to {} (for example {example})", range.start(), range.end()))
        }
    }
}

/// Slower than a telegraph, or faster than any link there is: a slip of the unit.
const RATES: std::ops::RangeInclusive<f64> = 1e3..=1e14;

/// Bits a second.
pub fn bandwidth(text: &str) -> Result<f64, String> {
    let refused = |why: &str| {
        Err(format!(
            "{why}expected bits a second (for example 100mbit, 1Gb/s or 10Gbps) or bytes a second (for example 125MB/s)"
        ))
    };
    let Some((value, unit)) = split(text) else { return refused("") };
    let Some(scale) = rate_unit(unit) else {
        let why = if unit.is_empty() {
            "the unit is missing; ".to_owned()
        } else {
            format!("unknown unit `{unit}`; {}", meant(value, unit))
        };
        return refused(&why);
    };
    match value * scale {
        rate if RATES.contains(&rate) => Ok(rate),
        rate if rate.is_finite() && rate > 0.0 => {
            refused(&format!("{} is slower or faster than any link; ", numbers::bandwidth(rate)))
        }
        _ => refused(""),
    }
}

/// What is often written instead: 10G, 25GbE, 1GiB/s.
fn meant(value: f64, unit: &str) -> String {
    let guess = match unit {
        _ if unit.contains("iB") => unit.replace("iB", "B"),
        _ if unit.ends_with("bE") => unit.trim_end_matches('E').to_owned() + "/s",
        _ if unit.len() == 1 => format!("{unit}b/s"),
        _ => format!("{unit}/s"),
    };
    if rate_unit(&guess).is_some() { format!("is {value}{guess} meant? ") } else { String::new() }
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
        || Err("expected a time of at most a day, with its unit (for example 50us, 0.3ms, 300ms or 2s)".to_owned());
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

/// A time above 0: of computing, which nothing does in less than a microsecond.
pub fn duration(text: &str) -> Result<f64, String> {
    match time(text)? {
        seconds if seconds < 1e-6 => Err("expected a time of at least 1us (for example 300ms)".to_owned()),
        seconds => Ok(seconds),
    }
}

/// How late a message may be: to the moon and back takes less than ten seconds.
pub fn delay(text: &str) -> Result<f64, String> {
    match time(text)? {
        seconds if seconds > 10.0 => Err("expected a time from 0 to 10s (for example 50us or 20ms)".to_owned()),
        seconds => Ok(seconds),
    }
}

/// A part of one: 0.1, or 10%.
pub fn part(text: &str) -> Result<f64, String> {
    let refused = || Err("expected a part from 0 to 1 (for example 0.1 or 10%)".to_owned());
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
        _ => Err("expected a factor from 1 to 1000 (for example 1.5 or 2x)".to_owned()),
    }
}

/// A finite number of at least 0, and what follows it.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let number = |end: usize| text[..end].trim().parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    // The longest of its beginnings that is a number: 1e3Mb/s has one of three letters.
    let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]).rev();
    ends.filter_map(|end| Some((number(end)?, text[end..].trim()))).next()
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
            ("1e3Mb/s", 1e9),
        ] {
            assert_eq!(bandwidth(text), Ok(rate), "{text}");
        }
        for text in ["", "fast", "1", "-1Gb/s", "1Gb", "1GB", "1 furlong/s", "0Gb/s", "nanGb/s", "1e30Gb/s", "5bit"] {
            let error = bandwidth(text).expect_err(text);
            assert!(error.contains("1Gb/s"), "{error}");
        }
    }

    #[test]
    fn what_was_meant_is_guessed() {
        for (text, meant) in [("10 Gb", "10Gb/s"), ("25GbE", "25Gb/s"), ("10G", "10Gb/s"), ("1GiB/s", "1GB/s")] {
            assert!(bandwidth(text).expect_err(text).contains(&format!("is {meant} meant?")), "{text}");
        }
    }

    #[test]
    fn whole_numbers_have_an_end() {
        assert_eq!(
            (number("800k"), number("1.1G"), number("1e9")),
            (Ok(800_000), Ok(1_100_000_000), Ok(1_000_000_000))
        );
        assert_eq!((number("1T"), steps("100M")), (Ok(1_000_000_000_000), Ok(100_000_000)));
        for text in ["", "0", "-5", "1.5", "1e15", "11T", "five", "1µ", "nan", "k"] {
            assert!(number(text).expect_err(text).contains("from 1 to 10T (for example 800k"), "{text}");
        }
        assert!(number("110m").expect_err("a thousandth").contains("capitals"));
        assert!(steps("1e12").expect_err("too many").contains("from 1 to 100M"));
        let workers = whole(1..=4096, "16");
        assert_eq!(workers("16"), Ok(16));
        for text in ["-1", "2.5", "1e9", "0", "4097", ""] {
            assert!(workers(text).expect_err(text).contains("from 1 to 4096 (for example 16)"), "{text}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!((size("24GB"), size("1.5 GiB")), (Ok(24_000_000_000), Ok(1_610_612_736)));
        for text in ["", "24", "24G", "-1GB", "1kB", "many", "24gb"] {
            assert!(size(text).expect_err(text).contains("24GB"), "{text}");
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
        assert!(duration("0s").is_err() && duration("1ns").is_err() && delay("1h").is_err());
        assert_eq!(delay("20ms"), Ok(0.02));
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
