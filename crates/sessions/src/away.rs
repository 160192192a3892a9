//! The session of a client that is away.

use crate::contract::{Now, SessionInfo};
use crate::session::{Session, WITHOUT_END, Will};

/// A session without a connection.
pub(crate) struct Away {
    pub session: Session,
    /// When the client left, by the time of day and by the time of ages, in seconds since 1970. They differ if its
    /// client left while the time of day was doubted.
    pub since: Now,
    /// The will to publish if the client does not come back, and when, by the time of ages in seconds since 1970.
    pub will: Option<(Will, u64)>,
    /// Its approximate memory, in bytes.
    pub bytes: usize,
}

/// Bytes of a session's keys in several tables, and of their free capacity.
const OVERHEAD_BYTES: usize = 256;

impl Away {
    /// Makes the session of a client that left at this time; its will waits.
    pub fn new(session: Session, since: Now, will: Option<Will>) -> Self {
        let bytes = OVERHEAD_BYTES + session.bytes() + will.as_ref().map_or(0, Will::bytes);
        let will = will.map(|will| {
            let due_s = since.age_s.saturating_add(will.delay_s.into());
            (will, due_s)
        });
        Away { session, since, will, bytes }
    }

    /// Returns true if its client left while the time of day was doubted.
    pub fn is_doubted(&self) -> bool {
        self.since.doubted_s() > 0
    }

    /// Ends the doubt about the time of day: the time of ages has jumped forwards by so much.
    pub fn end_doubt(&mut self, jump_s: u64) {
        self.since = Now::at(self.since.age_s.saturating_add(jump_s));
        self.will.iter_mut().for_each(|(_, due_s)| *due_s = due_s.saturating_add(jump_s));
    }

    /// Takes its will, to be published or dropped.
    pub fn take_will(&mut self) -> Option<Will> {
        let (will, _) = self.will.take()?;
        self.bytes -= will.bytes();
        Some(will)
    }

    /// Returns when it expires, by the time of ages; `None` if it never does.
    pub fn expires_s(&self) -> Option<u64> {
        self.after_its_time(self.since.age_s)
    }

    fn after_its_time(&self, since_s: u64) -> Option<u64> {
        let seconds = self.session.seconds;
        (seconds != WITHOUT_END).then(|| since_s.saturating_add(seconds.into()))
    }

    pub fn info(&self, key: &str) -> SessionInfo {
        let session = &self.session;
        SessionInfo {
            key: key.into(),
            since_s: self.since.unix_s,
            expires_s: self.after_its_time(self.since.unix_s),
            seconds: session.seconds,
            subscriptions: session.subscriptions.len(),
            in_flight: session.flow.in_flight(),
            position: session.position,
            waiting: session.refs.len(),
        }
    }

    /// Returns when its will is due or it expires, whichever comes first, by the time of ages.
    pub fn due_s(&self) -> Option<u64> {
        let will_s = self.will.as_ref().map(|(_, due_s)| *due_s);
        [will_s, self.expires_s()].into_iter().flatten().min()
    }
}
