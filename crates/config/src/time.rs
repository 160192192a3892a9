//! Dates and times in the formats of RFC 3339 and TOML.

use toml::value::{Datetime, Offset};

/// Parses a date, which begins at midnight UTC, or a time with its offset, to seconds since 1970.
///
/// # Errors
/// The reason why it is invalid, if known.
pub(crate) fn seconds(text: &str) -> Result<u64, Option<String>> {
    let Datetime { date: Some(date), time, offset } = text.parse().map_err(|_| None)? else {
        return Err(Some("it has no date".into()));
    };
    let offset_minutes = match (time, offset) {
        (None, _) | (_, Some(Offset::Z)) => 0,
        (Some(_), Some(Offset::Custom { minutes })) => i64::from(minutes),
        (Some(_), None) => {
            return Err(Some("the time has no offset: write Z after it for UTC".into()));
        }
    };
    let (hour, minute, second) =
        time.map_or((0, 0, 0), |time| (time.hour, time.minute, time.second));
    let [hour, minute, second] = [hour, minute, second].map(i64::from);
    let seconds = days(i64::from(date.year), i64::from(date.month), i64::from(date.day)) * 86_400
        + (hour * 60 + minute - offset_minutes) * 60
        + second;
    u64::try_from(seconds).map_err(|_| Some("the time is before 1970".into()))
}

/// Counts days from 1970-01-01 to a date of the Gregorian calendar. Years begin in March, so that the extra day of a
/// leap year comes last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let of_era_days = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    era * 146_097 + of_era_days - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_from_1970() {
        for (text, want) in [
            ("1970-01-01", 0),
            ("1970-01-01T00:00:01Z", 1),
            ("2000-02-29", 951_782_400),
            ("2000-03-01", 951_868_800),
            ("2100-03-01", 4_107_542_400),
            ("2026-11-22T21:30:00Z", 1_795_383_000),
            ("2026-11-22T23:30:00+02:00", 1_795_383_000),
            ("2026-11-22 21:30:00.75Z", 1_795_383_000),
        ] {
            assert_eq!(seconds(text), Ok(want), "{text}");
        }
        for text in ["", "tomorrow", "2026", "2026-13-01", "21:30:00", "2026-11-22T21:30:00"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert!(seconds("1969-12-31").is_err());
    }
}
