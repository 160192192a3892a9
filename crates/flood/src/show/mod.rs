//! Showing a run while it goes on: one way a file.

mod json;
mod lines;
mod panel;

use crate::record::{Sample, Summary};

pub use json::Json;
pub use lines::{Lines, Quiet, result};
pub use panel::Panel;

use crate::report::number::grouped as thousands;

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Connections are being opened.
    Arriving,
    /// The crowd stands.
    Holding,
    /// All is published; the last messages are on their way.
    Settling,
}

impl Phase {
    /// A word for it.
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
    /// Each second, with the sample before and the connections that are wanted.
    fn sample(&mut self, phase: Phase, before: &Sample, now: &Sample, wanted: u32);

    /// At the end.
    fn end(&mut self, summary: &Summary);
}

/// Prints to standard output; a reader that has gone away is no reason to end a run.
fn say(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// What happened between two samples, per second.
fn per_second(before: &Sample, now: &Sample, count: impl Fn(&Sample) -> u64) -> f64 {
    let seconds = (now.at_seconds - before.at_seconds).max(0.001);
    count(now).saturating_sub(count(before)) as f64 / seconds
}

/// A time in the unit that suits it.
pub fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..10_000 => format!("{:.2} ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

/// Bytes in the unit that suits them.
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
    fn numbers_read_well() {
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(
            (time(999), time(1_500), time(25_000)),
            ("999 µs".into(), "1.50 ms".into(), "25 ms".into())
        );
        assert_eq!(time(2_500_000), "2.50 s");
        assert_eq!((bytes(999), bytes(8_300_000_000)), ("999 B".into(), "8300 MB".into()));
    }
}
