//! Helpers for the tests of parts.

use crate::{Part, Sent};

/// Passes the records of one part that differ from the last time to another part. Returns their number.
///
/// # Panics
/// When a record is rejected.
pub fn pass(from: &dyn Part, to: &dyn Part, sent: &mut Sent) -> usize {
    let mut count = 0;
    sent.round(from, &mut |key, value| {
        to.import(key, value).unwrap();
        count += 1;
    });
    count
}

/// Like [`pass`], and completes the other part.
///
/// # Panics
/// When a record is rejected, or the records do not fit together.
pub fn pass_all(from: &dyn Part, to: &dyn Part, sent: &mut Sent) -> usize {
    let count = pass(from, to, sent);
    to.complete().unwrap();
    count
}
