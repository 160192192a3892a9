//! Histograms as JSON: pairs of a value and its count. They have the bounds of [`crate::crowd::histogram`], so they
//! can be added without loss.

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::crowd::histogram;

/// Writes the values that were recorded.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(times: &Histogram<u64>, to: S) -> Result<S::Ok, S::Error> {
    let pair = |it: hdrhistogram::iterators::IterationValue<u64>| {
        (it.value_iterated_to(), it.count_at_value())
    };
    times.iter_recorded().map(pair).collect::<Vec<(u64, u64)>>().serialize(to)
}

/// Reads the values. A value beyond the bounds counts as the largest one.
///
/// # Errors
/// Those of the deserializer.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Histogram<u64>, D::Error> {
    let mut times = histogram();
    for (value, count) in Vec::<(u64, u64)>::deserialize(from)? {
        times.saturating_record_n(value, count);
    }
    Ok(times)
}
