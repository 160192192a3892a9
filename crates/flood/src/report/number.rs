//! Formats numbers for people: with thousands separators, three significant digits, and a unit.

pub use admin::text::grouped;

/// The text for a missing value.
pub const NONE: &str = "–";

/// The last second of the year 9999. Later dates are shown as this one.
const UNIX_SECONDS_MAX: u64 = 253_402_300_799;

/// Formats `value` with at least three significant digits: no decimals from 100, one from 10, else
/// two, without zeros at the end. Returns [`NONE`] for values that are negative or not finite.
pub fn digits(value: f64) -> String {
    if !value.is_finite() || value < 0.0 {
        return NONE.to_owned();
    }
    if value >= 99.95 {
        return grouped(value.round() as u64);
    }
    let text = if value >= 9.995 { format!("{value:.1}") } else { format!("{value:.2}") };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats `value` in the first of `units` (size, name; largest first) that it fills, else the last.
fn in_unit(value: f64, units: &[(f64, &str)]) -> String {
    if !value.is_finite() || value < 0.0 {
        return NONE.to_owned();
    }
    // 999.7 MB would round to 1,000 MB, so it counts as 1 GB.
    let fills = |size: f64| value >= size * 0.9995;
    let found = units.iter().find(|(size, _)| fills(*size)).or(units.last());
    let (size, name) = found.copied().unwrap_or((1.0, ""));
    format!("{}{}{name}", digits(value / size), if name.is_empty() { "" } else { " " })
}

/// Formats a duration, given in microseconds.
pub fn micros(value: f64) -> String {
    in_unit(value, &[(1e6, "s"), (1e3, "ms"), (1.0, "µs")])
}

/// Formats a size, given in bytes. Units are powers of 1,000.
pub fn bytes(value: f64) -> String {
    in_unit(
        value,
        &[
            (1e18, "EB"),
            (1e15, "PB"),
            (1e12, "TB"),
            (1e9, "GB"),
            (1e6, "MB"),
            (1e3, "KB"),
            (1.0, "B"),
        ],
    )
}

/// Formats a size in bytes without shortening it, for the memory of one connection.
pub fn bytes_each(value: f64) -> String {
    if value >= 1e6 || !value.is_finite() || value < 0.0 {
        return bytes(value);
    }
    format!("{} B", grouped(value.round() as u64))
}

/// Formats a number for an axis: 250 k, 1 M.
pub fn compact(value: f64) -> String {
    in_unit(
        value,
        &[(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")],
    )
}

/// Formats the length of a run, given in seconds.
pub fn run_time(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return NONE.to_owned();
    }
    if seconds < 59.5 {
        return format!("{} s", digits(seconds));
    }
    let whole = seconds.round() as u64;
    let (hours, minutes, rest) = (whole / 3600, whole / 60 % 60, whole % 60);
    match (hours, rest) {
        (0, 0) => format!("{minutes} min"),
        (0, _) => format!("{minutes} min {rest} s"),
        _ => format!("{} h {minutes} min", grouped(hours)),
    }
}

/// Formats a date and time of day in UTC, from seconds since 1970.
pub fn date_utc(unix_seconds: u64) -> String {
    let seconds = unix_seconds.min(UNIX_SECONDS_MAX);
    let (day, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days to a civil date with eras of 400 years and years that begin in March (Howard Hinnant,
    // "chrono-compatible low-level date algorithms").
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (of_day / 3600, of_day / 60 % 60);
    format!("{year:04}-{month:02}-{of_month:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000_000), "1,000,000");
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn durations_take_the_unit_that_fits() {
        assert_eq!(micros(0.0), "0 µs");
        assert_eq!(micros(0.84), "0.84 µs");
        assert_eq!(micros(950.0), "950 µs");
        assert_eq!(micros(999.9), "1 ms");
        assert_eq!(micros(12_340.0), "12.3 ms");
        assert_eq!(micros(2_500_000.0), "2.5 s");
        assert_eq!(micros(f64::NAN), NONE);
    }

    #[test]
    fn sizes_take_the_unit_that_fits() {
        assert_eq!(bytes(512.0), "512 B");
        assert_eq!(bytes(999_700_000.0), "1 GB");
        assert_eq!(bytes(3.456e9), "3.46 GB");
        assert_eq!(bytes_each(3_412.4), "3,412 B");
        assert_eq!(bytes_each(f64::INFINITY), NONE);
        assert_eq!(compact(250_000.0), "250 k");
        assert_eq!(compact(40.0), "40");
    }

    #[test]
    fn run_times_and_dates() {
        assert_eq!(run_time(12.34), "12.3 s");
        assert_eq!(run_time(59.9), "1 min");
        assert_eq!(run_time(625.0), "10 min 25 s");
        assert_eq!(run_time(7_260.0), "2 h 1 min");
        assert_eq!(date_utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(date_utc(951_827_696), "2000-02-29 12:34 UTC");
        assert_eq!(date_utc(1_767_225_599), "2025-12-31 23:59 UTC");
        assert_eq!(date_utc(u64::MAX), "9999-12-31 23:59 UTC");
    }
}
