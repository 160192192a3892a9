//! Formats numbers.

/// Formats a whole number with thousands separators.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a limit. Huge values mean "no limit": systemd sets fs.file-max to 2^63 - 1, for example.
pub(crate) fn limit(value: u64) -> String {
    if value >= 1 << 60 { "no limit".to_owned() } else { count(value) }
}

/// Formats bytes in the largest binary unit of which they fill at least one.
pub(crate) fn bytes(value: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut scaled = value as f64;
    let mut unit = "B";
    for next in units {
        if scaled < 1024.0 {
            break;
        }
        scaled /= 1024.0;
        unit = next;
    }
    if unit == "B" || scaled >= 100.0 || scaled.fract() == 0.0 {
        format!("{scaled:.0} {unit}")
    } else {
        format!("{scaled:.1} {unit}")
    }
}

/// Rounds up to a number of two digits and zeros, which people can type and compare easily.
pub(crate) fn round_up(value: u64) -> u64 {
    let mut unit: u64 = 1;
    while value / unit >= 100 {
        unit = unit.saturating_mul(10);
    }
    value.div_ceil(unit).saturating_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separators_and_units() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(65_536), "64 KiB");
        assert_eq!(bytes(1_600), "1.6 KiB");
        assert_eq!(bytes(u64::MAX), "16 EiB");
        assert_eq!(limit(i64::MAX as u64), "no limit");
    }

    #[test]
    fn rounding_goes_up_to_two_digits() {
        assert_eq!(round_up(0), 0);
        assert_eq!(round_up(99), 99);
        assert_eq!(round_up(101), 110);
        assert_eq!(round_up(1_020_480), 1_100_000);
        assert!(round_up(u64::MAX) == u64::MAX);
    }
}
