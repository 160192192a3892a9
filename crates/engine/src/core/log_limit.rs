//! Limits on the log lines that peers cause.

use throttle::Throttle;

/// Lines of one engine and kind in a second.
const LINES_PER_SECOND: u32 = 100;

/// The throttles of the log lines that peers cause, one for each kind.
pub(crate) struct Lines {
    pub closed: Throttle,
    pub rejected: Throttle,
    /// Dead letters that could not be published.
    pub unsent: Throttle,
}

impl Lines {
    pub fn new() -> Self {
        let each = || Throttle::new(LINES_PER_SECOND, 1_000_000);
        Lines { closed: each(), rejected: each(), unsent: each() }
    }
}
