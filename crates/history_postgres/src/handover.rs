//! Passes the history to another process.
//!
//! The old process [pauses](Postgres::pause) the history when its shards read nothing more. Once the history is
//! [paused](Postgres::is_paused), it has delivered everything that this process has appended, and [`PostgresPart`] has
//! the last offset. The history of the new process is paused from the beginning, and delivers what follows that offset.
//!
//! The new process gets no messages from memory: it reads them from the database.

use handover::{Part, PartError, decode, encode};
use minicbor::{Decode, Encode};

use crate::mqtt_sessions::Owner;
use crate::postgres::Postgres;

/// The part's name, which stays for good.
pub const PART: &str = "history-postgres";

/// The key of the part's only record.
const LOG: &[u8] = b"log";

/// The position up to which a process has delivered the log. The numbers of fields stay for good.
#[derive(Debug, Encode, Decode)]
#[cbor(map)]
struct LogRecord {
    #[n(0)]
    epoch: u32,
    /// The last offset that was delivered.
    #[n(1)]
    delivered: u64,
    /// When its message was appended, in milliseconds since 1970, if the process knows.
    #[n(2)]
    delivered_ms: Option<u64>,
    /// True if the retained messages are in the database; `None` in a version that had them only in memory.
    #[n(3)]
    has_retained: Option<bool>,
    /// The owner of the process's MQTT sessions; `None` in a version that had them only in memory.
    #[n(4)]
    owner: Option<OwnerRecord>,
}

/// The owner of MQTT sessions in the database.
#[derive(Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
struct OwnerRecord {
    #[n(0)]
    id: i64,
    /// How many processes were this owner.
    #[n(1)]
    runs: i64,
    /// The number of the last progress.
    #[n(2)]
    number: u64,
    /// The ids and runs of owners whose sessions the process has taken over, and whose records are not deleted yet.
    #[cbor(n(3), default)]
    taken_over: Vec<(i64, i64)>,
}

impl Postgres {
    /// Stops delivering messages of other nodes. Those of this process are still delivered, so that their publishers
    /// get replies.
    pub fn pause(&self) {
        self.state().pause();
        self.0.committed.notify_one();
        self.0.sessions.queue.changed.notify_one();
    }

    /// Returns true if the history is paused, and no message of this process waits to be appended or delivered, and no
    /// cursor, retained message or MQTT session to be written.
    pub fn is_paused(&self) -> bool {
        let is_written = self.0.cursors.is_idle()
            && self.0.retained.queue.is_idle()
            && self.0.sessions.queue.is_idle();
        self.0.queue.is_idle() && is_written && self.state().is_paused()
    }

    /// Delivers again, after the last offset that this or the old process has delivered.
    pub fn resume(&self) {
        self.state().resume();
        self.0.committed.notify_one();
        self.0.cursors.moved.notify_one();
        self.0.retained.wake();
        self.0.sessions.queue.changed.notify_one();
    }

    fn record(&self) -> LogRecord {
        let state = self.state();
        let (delivered, delivered_ms) = (state.delivered, state.delivered_ms);
        let has_retained = Some(!self.0.retained.may_lack_rows());
        let sessions = &self.0.sessions;
        let number = sessions.queue.last_number();
        let taken_over: Vec<_> = sessions.taken_over().iter().map(|it| (it.id, it.runs)).collect();
        let owner = sessions.owner();
        let owner = owner.map(|Owner { id, runs }| OwnerRecord { id, runs, number, taken_over });
        LogRecord { epoch: self.0.epoch.0, delivered, delivered_ms, has_retained, owner }
    }

    /// Continues after the last offset that the old process has delivered.
    fn continue_after(&self, record: &LogRecord) -> Result<(), String> {
        if record.epoch != self.0.epoch.0 {
            return Err("the previous process used another log than the one in the database".into());
        }
        let mut state = self.state();
        state.pass(record.delivered, record.delivered_ms);
        let former = state.forget();
        drop(state);
        drop(former);
        self.0.delivered.send_replace(record.delivered);
        self.0.retained.on_handover(record.has_retained.unwrap_or(false));
        let owner = record.owner.as_ref().map(|it| Owner { id: it.id, runs: it.runs });
        let (number, taken_over) =
            record.owner.as_ref().map_or((0, &[][..]), |it| (it.number, &it.taken_over));
        let taken_over = taken_over.iter().map(|(id, runs)| Owner { id: *id, runs: *runs });
        self.0.sessions.continue_as(owner, number, taken_over.collect());
        Ok(())
    }
}

/// The part that passes the history on. It is empty if the history is not in a database.
pub struct PostgresPart(Option<Postgres>);

impl PostgresPart {
    /// Makes the part of this history.
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
        let record = LogRecord {
            epoch: 7,
            delivered: 300,
            delivered_ms: Some(1_000),
            has_retained: Some(true),
            owner: Some(OwnerRecord { id: 1, runs: 2, number: 3, taken_over: vec![(4, 5)] }),
        };
        let bytes = encode(record);
        assert_eq!(
            bytes,
            b"\xa5\x00\x07\x01\x19\x01\x2c\x02\x19\x03\xe8\x03\xf5\x04\xa4\x00\x01\x01\x02\x02\x03\x03\x81\x82\x04\x05"
        );
        // A newer version's fields are skipped, and an older version has fewer.
        let newer = decode::<LogRecord>(b"\xa3\x00\x07\x01\x05\x09\x01").unwrap();
        assert_eq!((newer.epoch, newer.delivered), (7, 5));
        assert_eq!((newer.delivered_ms, newer.has_retained, newer.owner), (None, None, None));
    }
}
