//! Axes: they map values to positions in the frame, and have ticks at round values.

use super::number;

/// Larger values are drawn at this one. It is far above any measured value, and far below where
/// arithmetic overflows.
const VALUE_MAX: f64 = 1e20;

/// Latencies over 10,000 s are drawn at this value. Only a clock error causes them, and they would
/// squeeze all others.
const LATENCY_MAX_US: f64 = 1e10;

/// Steps of a time axis, in seconds; beyond the last, whole days.
const TIME_STEPS: [f64; 17] = [
    1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0,
    10_800.0, 21_600.0, 43_200.0,
];

/// The unit of a value axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A whole number.
    Count,
    /// A number per second.
    Rate,
    /// Bytes, shown in KB, MB, GB.
    Bytes,
    /// Bytes, not shortened.
    BytesEach,
    /// Microseconds, on a logarithmic axis.
    Micros,
    /// Processor cores.
    Cores,
}

impl Unit {
    /// Formats a value for text.
    pub fn text(self, value: f64) -> String {
        match self {
            Unit::Count => number::digits(value),
            Unit::Rate => format!("{}/s", number::digits(value)),
            Unit::Bytes => number::bytes(value),
            Unit::BytesEach => number::bytes_each(value),
            Unit::Micros => number::micros(value),
            Unit::Cores => format!("{} cores", number::digits(value)),
        }
    }

    /// Formats a value for a tick, where space is short.
    fn tick(self, value: f64) -> String {
        match self {
            Unit::Count | Unit::Rate | Unit::Cores => number::compact(value),
            _ => self.text(value),
        }
    }
}

/// A tick of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Its position: 0 at the low end, 1 at the high end.
    pub position: f64,
    /// Its label.
    pub label: String,
}

/// An axis with its ticks.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    log: bool,
    /// From low to high.
    pub ticks: Vec<Tick>,
}

impl Axis {
    /// Returns a value axis that covers all of `values`: from zero, or over whole decades for
    /// [`Unit::Micros`].
    pub fn of_values(values: impl Iterator<Item = f64>, unit: Unit) -> Axis {
        let values = values.filter(|value| value.is_finite()).map(|value| value.min(VALUE_MAX));
        let (low, high) = values
            .fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        if unit == Unit::Micros { Axis::decades(low, high) } else { Axis::from_zero(high, unit) }
    }

    fn from_zero(most: f64, unit: Unit) -> Axis {
        let most = if most > 0.0 { most } else { 1.0 };
        let mut step = nice_step(most / 5.0);
        if unit == Unit::Count {
            step = step.max(1.0);
        }
        // The quotient of 0.3 and 0.1 is a little above 3, and would add an empty step.
        let count = (most / step - 1e-9).ceil().max(1.0);
        let values = (0..=count as u32).map(|index| step * f64::from(index));
        Axis::new(0.0, step * count, false, values, |value| unit.tick(value))
    }

    fn decades(least: f64, most: f64) -> Axis {
        let most = most.clamp(1.0, LATENCY_MAX_US);
        let low = least.clamp(1.0, most).log10().floor() as i32;
        let high = (most.log10().ceil() as i32).max(low + 1);
        let span = high - low;
        let between: &[f64] = if span <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = (span / 7 + 1) as usize;
        let values = (low..=high)
            .step_by(every)
            .flat_map(|decade| between.iter().map(move |times| times * 10_f64.powi(decade)))
            .filter(|value| *value <= 10_f64.powi(high) * 1.001);
        let text = |value| Unit::Micros.tick(value);
        Axis::new(10_f64.powi(low), 10_f64.powi(high), true, values, text)
    }

    /// Returns a time axis from 0 to `seconds`, which need not be at a tick.
    pub fn of_time(seconds: f64) -> Axis {
        let end = if seconds.is_finite() && seconds > 0.0 { seconds.min(1e12) } else { 1.0 };
        let step_min = end / 6.0;
        let step = TIME_STEPS.iter().copied().find(|step| *step >= step_min);
        let days = |step: f64| (step / 86_400.0).ceil() * 86_400.0;
        let step =
            if end < 3.0 { nice_step(step_min) } else { step.unwrap_or_else(|| days(step_min)) };
        let count = (end / step + 1e-9).floor() as u32;
        let values = (0..=count).map(|index| step * f64::from(index));
        Axis::new(0.0, end, false, values, |value| time_label(value, step))
    }

    fn new(
        low: f64,
        high: f64,
        log: bool,
        values: impl Iterator<Item = f64>,
        label: impl Fn(f64) -> String,
    ) -> Axis {
        let mut axis = Axis { low, high, log, ticks: Vec::new() };
        let tick = |value: f64| Tick { position: axis.position(value), label: label(value) };
        axis.ticks = values.map(tick).collect();
        axis
    }

    /// Returns the position of a value: from 0 at the low end to 1 at the high end, and never beyond.
    pub fn position(&self, value: f64) -> f64 {
        let part = if self.log {
            let value = value.max(self.low);
            (value / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) }
    }

    /// Returns the value at the high end.
    pub fn high(&self) -> f64 {
        self.high
    }
}

/// Returns the smallest of 1, 2, 5 times a power of ten that is at least `least`, which must be above
/// zero.
fn nice_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let times = [1.0, 2.0, 5.0].into_iter().find(|times| times * power >= least * (1.0 - 1e-9));
    times.unwrap_or(10.0) * power
}

/// Formats a time on an axis whose ticks are `step` seconds apart.
fn time_label(value: f64, step: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let whole = value.round() as u64;
    if step >= 86_400.0 {
        format!("{} d", number::grouped(whole / 86_400))
    } else if whole.is_multiple_of(3600) {
        format!("{} h", whole / 3600)
    } else if whole > 3600 && step >= 60.0 {
        format!("{}:{:02} h", whole / 3600, whole / 60 % 60)
    } else if whole.is_multiple_of(60) {
        format!("{} min", whole / 60)
    } else if whole >= 60 {
        format!("{}:{:02} min", whole / 60, whole % 60)
    } else {
        format!("{} s", number::digits(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn linear_ticks_are_round() {
        let axis = Axis::of_values([3.0, 1_000_000.0].into_iter(), Unit::Count);
        assert_eq!(labels(&axis), ["0", "200 k", "400 k", "600 k", "800 k", "1 M"]);
        let axis = Axis::of_values([3.1e9].into_iter(), Unit::Bytes);
        assert_eq!(labels(&axis), ["0 B", "1 GB", "2 GB", "3 GB", "4 GB"]);
        let axis = Axis::of_values([0.3].into_iter(), Unit::Cores);
        assert_eq!(labels(&axis), ["0", "0.1", "0.2", "0.3"]);
    }

    #[test]
    fn counts_have_whole_ticks() {
        let axis = Axis::of_values([2.0].into_iter(), Unit::Count);
        assert_eq!(labels(&axis), ["0", "1", "2"]);
    }

    #[test]
    fn decades_cover_all_values() {
        let axis = Axis::of_values([430.0, 2_300_000.0].into_iter(), Unit::Micros);
        assert_eq!(labels(&axis), ["100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s"]);
        let axis = Axis::of_values([3_000.0, 9_000.0].into_iter(), Unit::Micros);
        assert_eq!(labels(&axis), ["1 ms", "2 ms", "5 ms", "10 ms"]);
    }

    #[test]
    fn time_ticks_suit_the_length() {
        assert_eq!(labels(&Axis::of_time(25.0)), ["0", "5 s", "10 s", "15 s", "20 s", "25 s"]);
        assert_eq!(
            labels(&Axis::of_time(625.0)),
            ["0", "2 min", "4 min", "6 min", "8 min", "10 min"]
        );
        assert_eq!(labels(&Axis::of_time(90.0))[5..], ["1:15 min", "1:30 min"]);
        assert_eq!(labels(&Axis::of_time(7_200.0))[3..], ["1:30 h", "2 h"]);
        assert_eq!(labels(&Axis::of_time(60.0))[5..], ["50 s", "1 min"]);
    }

    #[test]
    fn strange_values_give_few_ticks_in_order() {
        for most in [0.0, 1e-9, 1.0, 7.3, 1e6, 1.8e19, 1e300, f64::NAN, f64::INFINITY] {
            for unit in [Unit::Count, Unit::Rate, Unit::Bytes, Unit::Micros, Unit::Cores] {
                let values = [most].into_iter();
                in_order(&Axis::of_values(values, unit), most);
            }
            in_order(&Axis::of_time(most), most);
        }
        in_order(&Axis::of_values(std::iter::empty(), Unit::Micros), 0.0);
    }

    fn in_order(axis: &Axis, most: f64) {
        assert!((2..=9).contains(&axis.ticks.len()), "{most}: {axis:?}");
        assert!(
            axis.ticks.is_sorted_by(|one, next| one.position < next.position),
            "{most}: {axis:?}"
        );
        assert!(axis.ticks.iter().all(|tick| (0.0..=1.0).contains(&tick.position)));
    }
}
