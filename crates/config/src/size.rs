//! Sizes in bytes, with or without a unit.

/// The units in bytes. Their case doesn't matter.
const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// Parses `65536`, `"64KiB"`, `"64 kB"`, `"1.5 GiB"`, and cuts off parts of a byte. Returns `None` for a size that
/// doesn't fit.
///
/// # Errors
/// What to write, if the text is not a size.
pub(crate) fn parse(text: &str) -> Result<Option<u64>, String> {
    let text = text.trim();
    let end = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (number, unit) = text.split_at(end);
    let unit = unit.trim().to_ascii_lowercase();
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err("the units are B, kB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB \
                    (powers of 1024)"
            .into());
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let is_number = !whole.is_empty() && (!part.is_empty() || !number.contains('.'));
    if !is_number || part.contains('.') {
        return Err("write a number before the unit, like \"64KiB\" or \"1.5 GB\"".into());
    }
    if *factor == 1 && !part.is_empty() {
        return Err("a number of bytes can't have a fraction".into());
    }
    Ok(scaled(whole, part, *factor))
}

/// Computes `whole.part` times `factor` from the digits of both.
fn scaled(whole: &str, part: &str, factor: u64) -> Option<u64> {
    /// So many digits are far below a byte of the largest unit, and the product fits.
    const PART_DIGITS_MAX: usize = 18;
    let part = &part[..part.len().min(PART_DIGITS_MAX)];
    let scale = 10_u128.checked_pow(u32::try_from(part.len()).ok()?)?;
    let part = if part.is_empty() { 0 } else { part.parse::<u128>().ok()? };
    let whole = u128::from(whole.parse::<u64>().ok()?);
    let factor = u128::from(factor);
    u64::try_from(whole * factor + part * factor / scale).ok()
}

/// Formats a size in the largest unit that divides it.
pub(crate) fn shown(bytes: u64) -> String {
    let units = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1_u64 << 10)];
    match units.iter().find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor)) {
        Some((unit, factor)) => format!("{} {unit}", bytes / factor),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_decimal_and_binary_units() {
        for (text, want) in [
            ("0", 0),
            ("4096", 4096),
            (" 7 B ", 7),
            ("64KiB", 65_536),
            ("64 kb", 64_000),
            ("64 KB", 64_000),
            ("10 GB", 10_000_000_000),
            ("10GB", 10_000_000_000),
            ("1.5 GiB", 1_610_612_736),
            ("0.5kB", 500),
            ("1.0001 kB", 1000),
            ("3\u{a0}mib", 3 << 20),
            ("16777215.999999999999999999999 TiB", u64::MAX - 1),
            ("2TB", 2_000_000_000_000),
        ] {
            // In the last but one, the cut off part is more than the last digit.
            let got = parse(text).unwrap().unwrap();
            assert!(got == want || text.len() > 20 && got > want - (1 << 40), "{text}: {got}");
        }
        for text in ["16777216TiB", "18446744073709551616", &"9".repeat(100)] {
            assert_eq!(parse(text), Ok(None), "{text}");
        }
        assert_eq!(parse("18446744073709551615"), Ok(Some(u64::MAX)));
    }

    #[test]
    fn a_wrong_size_gets_an_error_that_says_what_to_write() {
        for (text, want) in [
            ("10 giga", "the units are B, kB"),
            ("10 g", "the units are"),
            ("10k", "the units are"),
            ("lots", "the units are"),
            ("-1", "the units are"),
            ("1,5 GB", "the units are"),
            ("1 2", "the units are"),
            ("", "write a number"),
            ("GB", "write a number"),
            (".5GB", "write a number"),
            ("1.GB", "write a number"),
            ("1.2.3 GB", "write a number"),
            (".", "write a number"),
            ("1.5", "can't have a fraction"),
            ("1.5 B", "can't have a fraction"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(want), "{text}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_shown_is_read_again(bytes: u64, shift in 0u32..64) {
            for bytes in [bytes, bytes >> shift << shift, 1 << shift] {
                proptest::prop_assert_eq!(parse(&shown(bytes)), Ok(Some(bytes)));
                proptest::prop_assert_eq!(parse(&bytes.to_string()), Ok(Some(bytes)));
            }
        }

        #[test]
        fn a_unit_multiplies(number in 0u64..1 << 20, thousandths in 0u64..1_000, at in 2usize..10) {
            let (unit, factor) = UNITS[at];
            let want = number * factor + thousandths * factor / 1_000;
            let text = format!("{number}.{thousandths:03} {unit}");
            proptest::prop_assert_eq!(parse(&text), Ok(Some(want)));
            proptest::prop_assert_eq!(parse(&text.to_uppercase()), Ok(Some(want)));
        }

        #[test]
        fn noise_never_panics(text in "[0-9. kKmMgGtTiIbB,-]{0,40}") {
            let _ = parse(&text);
        }
    }
}
