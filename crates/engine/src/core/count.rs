//! Counts in 32 bits.

/// Converts a count. Counts above 32 bits, for which no memory suffices, become the largest number.
pub(crate) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
