//! Ways to show a run while it is under way, one per file.

mod json;
mod lines;
mod panel;

use serde::{Deserialize, Serialize};

use crate::record::{Sample, Summary};

pub use json::Json;
pub use lines::{Lines, Quiet, result};
pub use panel::Panel;

use crate::report::number::grouped as thousands;

/// The phases of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Phase {
    /// Connections are being opened.
    Arriving,
    /// All connections have arrived.
    Holding,
    /// The publishers have ended, and the last messages are on their way.
    Settling,
}

impl Phase {
    /// Returns a word for the phase.
    pub fn word(self) -> &'static str {
        match self {
            Phase::Arriving => "arriving",
            Phase::Holding => "holding",
            Phase::Settling => "settling",
        }
    }
}

/// One way of showing a run.
pub trait Show {
    /// Shows a sample, each second. `before` is the sample before it, `planned` the number of connections that the
    /// run has to open.
    fn sample(&mut self, phase: Phase, before: &Sample, now: &Sample, planned: u32);

    /// Shows the result at the end.
    fn end(&mut self, summary: &Summary);
}

/// Shows nothing.
#[derive(Debug, Default)]
pub struct Nothing;

impl Show for Nothing {
    fn sample(&mut self, _phase: Phase, _before: &Sample, _now: &Sample, _planned: u32) {}

    fn end(&mut self, _summary: &Summary) {}
}

/// Prints to standard output. Ignores errors: a closed pipe must not end the run.
fn print(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Returns the growth of a count between two samples, per second.
fn per_second(before: &Sample, now: &Sample, count: impl Fn(&Sample) -> u64) -> f64 {
    let seconds = (now.at_seconds - before.at_seconds).max(0.001);
    count(now).saturating_sub(count(before)) as f64 / seconds
}

/// Formats a time, given in microseconds, in a suitable unit.
pub fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..10_000 => format!("{:.2} ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

/// Formats a number of bytes in a suitable unit.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.0} kB", bytes as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separators_and_suitable_units() {
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(
            (time(999), time(1_500), time(25_000)),
            ("999 µs".into(), "1.50 ms".into(), "25 ms".into())
        );
        assert_eq!(time(2_500_000), "2.50 s");
        assert_eq!((bytes(999), bytes(8_300_000_000)), ("999 B".into(), "8300 MB".into()));
    }
}
