//! Formats numbers, times and names for people. Numbers look as in the load generator's report.

pub use admin::text::plain;
pub use flood::report::number::{NONE, bytes, bytes_each, compact, digits, grouped};
use ratatui::text::Span;

/// Formats milliseconds in a suitable unit.
pub fn milliseconds(value: f64) -> String {
    flood::report::number::micros(value * 1e3)
}

/// Formats a share of a whole: 4.8 %.
pub fn percent(part: f64, whole: f64) -> String {
    let share = part / whole * 100.0;
    match share {
        share if !share.is_finite() || share < 0.0 => NONE.into(),
        share if share > 0.0 && share < 0.1 => "< 0.1 %".into(),
        share if share >= 99.95 || share == 0.0 => format!("{share:.0} %"),
        share => format!("{share:.1} %"),
    }
}

/// Formats a duration in whole seconds: 3 d 4 h, 12 min 5 s, 8 s.
pub fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match () {
        () if days > 0 => format!("{days} d {hours} h"),
        () if hours > 0 => format!("{hours} h {minutes} min"),
        () if minutes > 0 => format!("{minutes} min {} s", seconds % 60),
        () => format!("{seconds} s"),
    }
}

/// Formats the time of day in UTC, from milliseconds since 1970.
pub fn clock_utc(unix_ms: u64) -> String {
    let seconds = unix_ms / 1_000 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// Turns a name of the protocol into words: slow_consumer → slow consumer.
pub fn words(name: &str) -> String {
    plain(&name.replace('_', " "))
}

/// Cuts a text to `width` columns, with … at the end if it leaves something out.
pub fn cut(text: &str, width: usize) -> String {
    if Span::raw(text).width() <= width {
        return text.to_owned();
    }
    let mut start = String::new();
    let mut used = 1;
    for c in text.chars() {
        let mut bytes = [0; 4];
        used += Span::raw(&*c.encode_utf8(&mut bytes)).width();
        if used > width {
            break;
        }
        start.push(c);
    }
    if width > 0 {
        start.push('…');
    }
    start
}

/// Returns a bar over this share of `width` columns, in eighths of a column.
pub fn bar(share: f64, width: usize) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let mut eighths = (share * width as f64 * 8.0).round() as usize;
    // Any share above zero must be visible.
    if share > 0.0 && width > 0 {
        eighths = eighths.max(1);
    }
    "█".repeat(eighths / 8) + PARTS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_suitable_units() {
        assert_eq!(milliseconds(1.024), "1.02 ms");
        assert_eq!((percent(1.0, 8.0), percent(8.0, 8.0)), ("12.5 %".into(), "100 %".into()));
        assert_eq!((percent(1.0, 1e6), percent(0.0, 5.0)), ("< 0.1 %".into(), "0 %".into()));
        assert_eq!(percent(1.0, 0.0), NONE);
        assert_eq!((duration(8), duration(725)), ("8 s".into(), "12 min 5 s".into()));
        assert_eq!((duration(7_260), duration(270_000)), ("2 h 1 min".into(), "3 d 3 h".into()));
        assert_eq!(clock_utc(951_827_696_000), "12:34:56");
        assert_eq!(words("slow_consumer"), "slow consumer");
    }

    #[test]
    fn texts_are_cut_to_columns() {
        assert_eq!((cut("room", 4), cut("rooms", 4)), ("room".into(), "roo…".into()));
        assert_eq!((cut("日本語", 5), cut("ab", 0)), ("日本…".into(), String::new()));
    }

    #[test]
    fn bars_fill_their_share() {
        assert_eq!((bar(1.0, 3), bar(0.5, 3)), ("███".into(), "█▌".into()));
        assert_eq!((bar(0.001, 3), bar(0.0, 3)), ("▏".into(), String::new()));
        assert_eq!((bar(9.0, 1), bar(f64::NAN, 1)), ("█".into(), String::new()));
    }
}
