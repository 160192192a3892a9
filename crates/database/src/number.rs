//! Numbers of PostgreSQL, which has no unsigned ones.

/// Converts a number for PostgreSQL. Above its largest one it becomes that.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts a number of PostgreSQL. A negative one becomes 0.
pub fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
