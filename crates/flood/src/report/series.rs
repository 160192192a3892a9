//! Turns samples into lines: values, rates, and thinned points.

use crate::record::Sample;

/// The limit on the points of a line, so that the page of a long run is small as well.
pub const POINTS_MAX: usize = 600;

/// Two samples closer than this give no rate, since the division would magnify a rounding error.
const RATE_SECONDS_MIN: f64 = 0.1;

/// A point of a line: seconds since the begin, and a value, or `None` for a gap.
pub type Point = (f64, Option<f64>);

/// The points of a bucket that a thinned line retains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The largest.
    Max,
    /// The smallest and the largest, if a dip matters as much as a peak.
    Extremes,
}

/// Returns the value of each sample. Values that are not finite or below zero are gaps.
pub fn values(samples: &[Sample], of: impl Fn(&Sample) -> Option<f64>) -> Vec<Point> {
    let clean = |value: &f64| value.is_finite() && *value >= 0.0;
    let timed = samples.iter().filter(|sample| clean(&sample.at_seconds));
    timed.map(|sample| (sample.at_seconds, of(sample).filter(clean))).collect()
}

/// Returns the growth of a counter per second, from each sample to the next. A counter that
/// falls because its owner restarted leaves a gap. With `from_zero` it was 0 at the begin of the run.
pub fn rates(
    samples: &[Sample],
    from_zero: bool,
    of: impl Fn(&Sample) -> Option<f64>,
) -> Vec<Point> {
    let mut last = from_zero.then_some((0.0, 0.0));
    let mut points = Vec::with_capacity(samples.len());
    for (at, value) in values(samples, of) {
        let Some(value) = value else {
            points.push((at, None));
            continue;
        };
        if let Some((before, count)) = last {
            if at - before < RATE_SECONDS_MIN {
                continue;
            }
            points.push((at, (value >= count).then(|| (value - count) / (at - before))));
        }
        last = Some((at, value));
    }
    points
}

/// Returns at most about `points_max` of the points. Each bucket of neighbours retains the points
/// that `keep` names, at their own times. A bucket without any value is a gap.
pub fn thin(points: Vec<Point>, points_max: usize, keep: Keep) -> Vec<Point> {
    if points.len() <= points_max {
        return points;
    }
    let each = if keep == Keep::Extremes { 2 } else { 1 };
    let size = (points.len() * each).div_ceil(points_max.max(1));
    points.chunks(size).flat_map(|bucket| thin_bucket(bucket, keep)).collect()
}

fn thin_bucket(bucket: &[Point], keep: Keep) -> Vec<Point> {
    let by = |one: &&Point, other: &&Point| {
        one.1.partial_cmp(&other.1).unwrap_or(std::cmp::Ordering::Equal)
    };
    let with_value = || bucket.iter().filter(|point| point.1.is_some());
    let (Some(least), Some(most)) = (with_value().min_by(by), with_value().max_by(by)) else {
        return bucket.first().copied().into_iter().collect();
    };
    match keep {
        Keep::Max => vec![*most],
        Keep::Extremes if least.0 < most.0 => vec![*least, *most],
        Keep::Extremes if least.0 > most.0 => vec![*most, *least],
        Keep::Extremes => vec![*most],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Counts;

    fn opened(at_seconds: f64, opened: u64) -> Sample {
        let counts = Counts { opened, ..Counts::default() };
        Sample { at_seconds, counts, ..Sample::default() }
    }

    #[test]
    fn thinning_retains_peaks_and_dips() {
        let mut points: Vec<Point> = (0..7_200).map(|at| (f64::from(at), Some(100.0))).collect();
        points[4_321].1 = Some(9_000.0);
        points[6_001].1 = Some(3.0);
        let thinned = thin(points.clone(), POINTS_MAX, Keep::Max);
        assert!(thinned.len() <= POINTS_MAX);
        assert!(thinned.contains(&(4_321.0, Some(9_000.0))));
        let thinned = thin(points, POINTS_MAX, Keep::Extremes);
        assert!(thinned.len() <= POINTS_MAX);
        assert!(thinned.contains(&(4_321.0, Some(9_000.0))));
        assert!(thinned.contains(&(6_001.0, Some(3.0))));
        assert!(thinned.is_sorted_by(|one, next| one.0 < next.0));
    }

    #[test]
    fn thinning_retains_long_gaps_and_single_values() {
        let mut points: Vec<Point> = (0..6_000).map(|at| (f64::from(at), None)).collect();
        points[2_345].1 = Some(1.0);
        let thinned = thin(points, POINTS_MAX, Keep::Max);
        assert_eq!(thinned.iter().filter(|point| point.1.is_some()).count(), 1);
        assert!(thinned.contains(&(2_345.0, Some(1.0))));
        assert!(thinned.iter().filter(|point| point.1.is_none()).count() > 500);
    }

    #[test]
    fn few_points_are_not_thinned() {
        let points = vec![(1.0, Some(2.0)), (2.0, None)];
        assert_eq!(thin(points.clone(), POINTS_MAX, Keep::Extremes), points);
    }

    #[test]
    fn rates_are_per_second_and_a_restart_is_a_gap() {
        let samples = [opened(2.0, 10), opened(4.0, 30), opened(4.01, 31), opened(5.0, 5)];
        let of = |sample: &Sample| Some(sample.counts.opened as f64);
        let found = rates(&samples, true, of);
        assert_eq!(found, [(2.0, Some(5.0)), (4.0, Some(10.0)), (5.0, None)]);
        assert_eq!(rates(&samples, false, of)[0], (4.0, Some(10.0)));
        assert_eq!(rates(&[], true, of), []);
    }

    #[test]
    fn values_that_are_not_finite_are_gaps() {
        let samples = [opened(1.0, 1), opened(f64::NAN, 1), opened(2.0, 1)];
        let found = values(&samples, |sample| Some(sample.at_seconds / 0.0));
        assert_eq!(found, [(1.0, None), (2.0, None)]);
    }
}
