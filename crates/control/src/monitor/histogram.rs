//! Percentiles of the shards' histograms.

use shard::Histogram;

/// Adds up the buckets of all shards' histograms.
pub(crate) fn merged<'a>(
    histograms: impl Iterator<Item = &'a Histogram>,
) -> [u64; Histogram::BUCKETS] {
    let mut all = [0; Histogram::BUCKETS];
    for histogram in histograms {
        for (sum, bucket) in all.iter_mut().zip(&histogram.buckets) {
            *sum += bucket.get();
        }
    }
    all
}

/// Returns the bound of the bucket in which the percentile lies, in milliseconds, or 0 if nothing was measured.
pub(crate) fn percentile_ms(buckets: &[u64; Histogram::BUCKETS], percent: u64) -> f64 {
    let total: u64 = buckets.iter().sum();
    let rank = (total * percent).div_ceil(100);
    let mut seen = 0;
    for (at, count) in buckets.iter().enumerate() {
        seen += count;
        if seen >= rank && total > 0 {
            // The last bucket has no upper bound. The bound of the bucket before it is its lower one.
            return Histogram::bound_seconds(at.min(Histogram::BUCKETS - 2)) * 1e3;
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_bounds_of_buckets() {
        let mut buckets = [0; Histogram::BUCKETS];
        assert_eq!(percentile_ms(&buckets, 50), 0.0);
        buckets[10] = 98;
        buckets[20] = 2;
        assert_eq!(percentile_ms(&buckets, 50), 1.024);
        assert_eq!(percentile_ms(&buckets, 99), 1048.576);
    }
}
