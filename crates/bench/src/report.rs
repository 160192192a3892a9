//! Formats small tables, medians and times.

use std::fmt;

use hdrhistogram::Histogram;

/// Returns the middle value, or the mean of the two middle ones. Returns NaN for no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Formats the lowest and highest value as `low–high` with two decimals.
pub fn range(values: &[f64]) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if values.is_empty() { "-".to_owned() } else { format!("{low:.2}–{high:.2}") }
}

/// Formats a whole number with thousands separators.
pub fn thousands(value: f64) -> String {
    let whole = value.round_ties_even();
    let sign = if whole < 0.0 { "-" } else { "" };
    format!("{sign}{}", flood::report::number::grouped(whole.abs() as u64))
}

/// Returns an empty histogram of nanoseconds up to a minute, with three significant digits.
///
/// # Panics
/// Never: the bounds are fixed and valid.
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds")
}

/// Formats nanoseconds as milliseconds with three decimals.
pub fn milliseconds(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

/// A table with a head. The first column has names, and the others are right-aligned.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with a head and no rows.
    pub fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the number of cells differs from the head's.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<_> = cells.into_iter().collect();
        assert_eq!(row.len(), self.rows[0].len(), "a cell for each column");
        self.rows.push(row);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.rows[0].len()).map(width).collect();
        for (i, row) in self.rows.iter().enumerate() {
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    write!(f, "| {cell:<width$} |")?;
                } else {
                    write!(f, " {cell:>width$} |")?;
                }
            }
            writeln!(f)?;
            if i == 0 {
                for width in &widths {
                    write!(f, "|{}", "-".repeat(width + 2))?;
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_values() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn numbers_have_separators_and_decimals() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!(thousands(999.0), "999");
        assert_eq!(thousands(-1_000.0), "-1,000");
        assert_eq!(thousands(-0.3), "0");
        assert_eq!(milliseconds(1_234_567), "1.235");
        assert_eq!(range(&[2.0, 1.0]), "1.00–2.00");
        assert_eq!(range(&[]), "-");
    }

    #[test]
    fn table_is_aligned() {
        let mut table = Table::new(&["server", "µs"]);
        table.row(["throng".to_owned(), "10.25".to_owned()]);
        table.row(["é".to_owned(), "1".to_owned()]);
        assert_eq!(
            table.to_string(),
            "| server |    µs |\n|--------|-------|\n| throng | 10.25 |\n| é      |     1 |\n"
        );
    }

    #[test]
    #[should_panic(expected = "a cell for each column")]
    fn a_row_of_another_width_panics() {
        Table::new(&["a", "b"]).row(["1".to_owned()]);
    }

    #[test]
    fn the_histogram_covers_a_minute() {
        let mut histogram = latency_histogram();
        histogram.saturating_record(59_000_000_000);
        histogram.saturating_record(1_000);
        assert!(histogram.max() >= 58_900_000_000);
        assert_eq!(histogram.value_at_quantile(0.5), 1_000);
    }
}
