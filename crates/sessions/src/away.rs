//! The session of a client that is away.

use crate::contract::SessionInfo;
use crate::session::{Session, WITHOUT_END, Will};

/// A session that nobody is connected to.
pub(crate) struct Away {
    pub session: Session,
    pub since_s: u64,
    /// What is published if nobody comes back, and when, in seconds since 1970.
    pub will: Option<(Will, u64)>,
    /// The memory that it takes, roughly.
    pub bytes: usize,
}

/// What a session takes where it is found: a key in several tables, and their room.
const PLACE_BYTES: usize = 256;

impl Away {
    /// A client is away since then; its will waits.
    pub fn new(session: Session, since_s: u64, will: Option<Will>) -> Self {
        let bytes = PLACE_BYTES + session.bytes() + will.as_ref().map_or(0, Will::bytes);
        let will = will.map(|will| {
            let due_s = since_s.saturating_add(will.delay_s.into());
            (will, due_s)
        });
        Away { session, since_s, will, bytes }
    }

    /// Its will is published, or dropped.
    pub fn take_will(&mut self) -> Option<Will> {
        let (will, _) = self.will.take()?;
        self.bytes -= will.bytes();
        Some(will)
    }

    /// When it is over; nothing where it has no end.
    pub fn over_s(&self) -> Option<u64> {
        let seconds = self.session.seconds;
        (seconds != WITHOUT_END).then(|| self.since_s.saturating_add(seconds.into()))
    }

    pub fn info(&self, key: &str) -> SessionInfo {
        let session = &self.session;
        SessionInfo {
            key: key.into(),
            since_s: self.since_s,
            over_s: self.over_s(),
            seconds: session.seconds,
            subscriptions: session.subscriptions.len(),
            in_flight: session.flow.in_flight(),
            position: session.position,
            waiting: session.refs.len(),
        }
    }

    /// When there is something to do about it.
    pub fn due_s(&self) -> Option<u64> {
        let will_s = self.will.as_ref().map(|(_, due_s)| *due_s);
        [will_s, self.over_s()].into_iter().flatten().min()
    }
}
