//! The history on its way to another process, which goes on where this one stops.
//!
//! The process that passes it on [pauses](Postgres::pause) it once shards read nothing more. When it is
//! [paused](Postgres::is_paused), all that this process has appended is delivered, and [`PostgresPart`] says up to which
//! offset. The other process, whose history was paused from the beginning, delivers what comes after that.
//!
//! Memory is not passed on: the other process reads from the database what its clients are behind with.

use handover::{Part, PartError, decode, encode};
use minicbor::{Decode, Encode};

use crate::postgres::Postgres;

/// The part's name, which stays for good.
pub const PART: &str = "history-postgres";

/// The key of the part's only record.
const LOG: &[u8] = b"log";

/// The log as far as a process has delivered it. The numbers of fields stay for good.
#[derive(Debug, Encode, Decode)]
#[cbor(map)]
struct LogRecord {
    #[n(0)]
    epoch: u32,
    /// The last offset that was delivered.
    #[n(1)]
    delivered: u64,
    /// When its message was appended, in milliseconds since 1970; `None` where that is unknown.
    #[n(2)]
    delivered_ms: Option<u64>,
}

impl Postgres {
    /// Stops delivering what other nodes append. What this process appends is delivered on, so that its publishers get their
    /// replies.
    pub fn pause(&self) {
        self.state().pause();
        self.0.committed.notify_one();
    }

    /// True while the history is paused, and nothing of this process waits to be appended or delivered.
    pub fn is_paused(&self) -> bool {
        self.0.queue.is_idle() && self.state().is_paused()
    }

    /// Delivers again: from where the history was paused, or from where another process has stopped.
    pub fn resume(&self) {
        self.state().resume();
        self.0.committed.notify_one();
    }

    /// The log's epoch: another log has another one.
    pub fn log_epoch(&self) -> u32 {
        self.0.epoch.0
    }

    /// True while there are connections to the database.
    pub fn is_connected(&self) -> bool {
        self.status().is_connected
    }

    fn record(&self) -> LogRecord {
        let state = self.state();
        let (delivered, delivered_ms) = (state.delivered, state.delivered_ms);
        LogRecord { epoch: self.0.epoch.0, delivered, delivered_ms }
    }

    /// Goes on after what another process has delivered.
    fn continue_after(&self, record: &LogRecord) -> Result<(), String> {
        if record.epoch != self.0.epoch.0 {
            return Err("the database has another log than that of the process before".into());
        }
        let mut state = self.state();
        state.pass(record.delivered, record.delivered_ms);
        let former = state.forget();
        drop(state);
        drop(former);
        self.0.delivered.send_replace(record.delivered);
        Ok(())
    }
}

/// The history as a part of what a process passes on. It has nothing where no database has the history.
pub struct PostgresPart(Option<Postgres>);

impl PostgresPart {
    /// The part of this history.
    pub fn new(postgres: Option<Postgres>) -> Self {
        PostgresPart(postgres)
    }
}

impl Part for PostgresPart {
    fn name(&self) -> &'static str {
        PART
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        if let Some(postgres) = &self.0 {
            each(LOG, &encode(postgres.record()));
        }
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        // A newer version's records may be here as well.
        let (Some(postgres), Some(value), true) = (&self.0, value, key == LOG) else {
            return Ok(());
        };
        let record = decode::<LogRecord>(value).map_err(|error| PartError::new(PART, error))?;
        postgres.continue_after(&record).map_err(|error| PartError::new(PART, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_stands_like_this() {
        let record = LogRecord { epoch: 7, delivered: 300, delivered_ms: Some(1_000) };
        let bytes = encode(record);
        assert_eq!(bytes, b"\xa3\x00\x07\x01\x19\x01\x2c\x02\x19\x03\xe8");
        // A newer version's fields are skipped.
        let newer = decode::<LogRecord>(b"\xa3\x00\x07\x01\x05\x09\x01").unwrap();
        assert_eq!((newer.epoch, newer.delivered, newer.delivered_ms), (7, 5, None));
    }
}
