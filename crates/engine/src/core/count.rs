//! Counts of the engine's, which has them in 32 bits.

/// How many that are. More than 32 bits hold, which no memory does, count as the most they hold.
pub(crate) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
