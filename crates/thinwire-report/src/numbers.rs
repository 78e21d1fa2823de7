//! Numbers as people read them: three digits that count, and a unit. And the middle one of several.

/// 1234567 → `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let comma_before = |at: usize| at > 0 && (digits.len() - at).is_multiple_of(3);
    let with_comma = |(at, digit)| if comma_before(at) { vec![',', digit] } else { vec![digit] };
    digits.chars().enumerate().flat_map(with_comma).collect()
}

/// With `digits` digits that count: 27.13 → `27.1`, 0.04567 → `0.0457`.
pub fn significant(value: f64, digits: i32) -> String {
    if !value.is_finite() {
        return not_a_figure(value);
    }
    if value == 0.0 {
        return "0".to_string();
    }
    // Round first: 9.996 has one digit before the point until it is rounded to 10.0.
    let rounded: f64 = format!("{value:.*e}", (digits - 1) as usize).parse().unwrap_or(value);
    let decimals = (digits - 1 - rounded.abs().log10().floor() as i32).max(0);
    if rounded.abs() >= 1e4 { count_signed(rounded) } else { format!("{rounded:.*}", decimals as usize) }
}

/// 12345 → `12.3k`.
pub fn short(number: f64) -> String {
    with_prefix(number, "").replace(' ', "")
}

/// 2.18e8 → `218 MB`.
pub fn bytes(bytes: f64) -> String {
    with_prefix(bytes, "B")
}

/// Of a link: 1e9 → `1 Gb/s`.
pub fn bandwidth(bits_per_second: f64) -> String {
    let text = with_prefix(bits_per_second, "b/s");
    let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
    let number = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number} {unit}")
}

/// 12.0 ms, 12.3 s, 1 min 40 s, 2 h 05 min.
pub fn seconds(seconds: f64) -> String {
    let whole = seconds.round().max(0.0) as u64;
    match seconds.abs() {
        s if s < 1e-3 && s > 0.0 => format!("{} µs", significant(seconds * 1e6, 3)),
        s if s < 1.0 && s > 0.0 => format!("{} ms", significant(seconds * 1e3, 3)),
        s if s < 59.95 || !s.is_finite() => format!("{} s", significant(seconds, 3)), // what is not rounded up to 60.0
        s if s < 3599.5 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Three decimals, so that losses line up in a column; more digits if it takes them to see anything.
pub fn loss(loss: f64) -> String {
    match loss.abs() {
        _ if !loss.is_finite() => "diverged".to_string(),
        l if l > 0.0 && l < 0.01 => format!("{loss:.2e}"),
        l if l < 1e4 => format!("{loss:.3}"),
        _ => format!("{loss:.2e}"),
    }
}

/// 0.001, and 3e-4 for what is smaller.
pub fn learning_rate(rate: f64) -> String {
    if rate == 0.0 || rate >= 1e-3 { format!("{rate}") } else { format!("{rate:e}") }
}

/// 0.125 → `12.5 %`.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// The middle one of some values; the larger of two in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn with_prefix(value: f64, unit: &str) -> String {
    const PREFIXES: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    if !value.is_finite() {
        return not_a_figure(value);
    }
    if value.abs() < 999.5 {
        return format!("{value:.0} {unit}");
    }
    // 999,600 is 1.00 M and not 1000 k.
    let thousands = ((value.abs() * 1.0005).log10() / 3.0).floor().min(PREFIXES.len() as f64 - 1.0);
    format!("{} {}{unit}", significant(value / 1000f64.powf(thousands), 3), PREFIXES[thousands as usize])
}

fn count_signed(value: f64) -> String {
    if value.abs() < 1e15 {
        format!("{}{}", if value < 0.0 { "−" } else { "" }, count(value.abs().round() as u64))
    } else {
        format!("{value:.1e}")
    }
}

fn not_a_figure(value: f64) -> String {
    if value.is_nan() { "–" } else { "∞" }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!([0, 999, 1000, 1234567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [27.13, 9.996, 0.04567, 105.4, 12345.0].map(|v| significant(v, 3)),
            ["27.1", "10.0", "0.0457", "105", "12,300"]
        );
        assert_eq!([0.0, 12.0, 999.7, 218.4e6, 5.9e9].map(bytes), ["0 B", "12 B", "1.00 kB", "218 MB", "5.90 GB"]);
        assert_eq!([0.0, 999.0, 12_345.0, 25e6].map(short), ["0", "999", "12.3k", "25.0M"]);
        assert_eq!([27_940.0, 999.9, 999_700_000.0].map(bytes), ["27.9 kB", "1.00 kB", "1.00 GB"]);
        assert_eq!([1e8, 1e9, 1e10, 2.5e9].map(bandwidth), ["100 Mb/s", "1 Gb/s", "10 Gb/s", "2.5 Gb/s"]);
        assert_eq!(
            [0.0, 0.012, 12.34, 59.94, 100.0, 3599.7, 36000.0].map(seconds),
            ["0 s", "12.0 ms", "12.3 s", "59.9 s", "1 min 40 s", "1 h 00 min", "10 h 00 min"]
        );
        assert_eq!([1.6234, 0.00012, f64::NAN].map(loss), ["1.623", "1.20e-4", "diverged"]);
        assert_eq!([0.001, 3e-4].map(learning_rate), ["0.001", "3e-4"]);
    }

    #[test]
    fn the_middle_one_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 3.0);
        assert!(median(&[]).is_nan());
    }
}
