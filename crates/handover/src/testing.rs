//! For the tests of parts.

use crate::{Part, Sent};

/// Has a part take what another one's records differ in from the last time; gives how many these are.
///
/// # Panics
/// When a record is refused.
pub fn pass(from: &dyn Part, to: &dyn Part, sent: &mut Sent) -> usize {
    let mut count = 0;
    sent.round(from, &mut |key, value| {
        to.import(key, value).unwrap();
        count += 1;
    });
    count
}

/// The same, after which that part has everything.
///
/// # Panics
/// When a record is refused, or all of them together are.
pub fn pass_all(from: &dyn Part, to: &dyn Part, sent: &mut Sent) -> usize {
    let count = pass(from, to, sent);
    to.complete().unwrap();
    count
}
