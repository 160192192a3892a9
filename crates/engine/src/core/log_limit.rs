//! How many of the log lines that peers cause are written.

use throttle::Throttle;

/// Lines of one engine and kind in a second.
const LINES_PER_SECOND: u32 = 100;

/// Of what peers cause, so many lines of each kind are written.
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
