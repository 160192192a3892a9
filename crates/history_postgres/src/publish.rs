//! Publishing to topics with history.

use std::sync::Arc;

use broker::{Append, Done, PublishError, StoredRecord};
use sessions::Part;
use store::Record;

use crate::batch::PendingMessage;
use crate::mqtt_sessions::ProgressWrite;
use crate::postgres::{Postgres, unix_ms};
use crate::queue::NotQueued;

impl Postgres {
    /// Queues a message. `done` gets the result after the commit, or an error at once.
    pub(crate) fn queue(&self, append: Append, done: Done) {
        let Append { hash, publication, rule, options, receipt, routes } = append;
        if !self.0.router.has_capacity(hash, false, &routes) {
            return done(Err(PublishError::Overloaded));
        }
        let item = PendingMessage {
            hash,
            record: Record::encode(&publication, unix_ms()),
            publication,
            rule,
            idempotency_key: options.idempotency_key,
            if_offset: options.if_offset,
            progress: options.with.and_then(|with| self.progress_of(*with)),
            receipt,
            done,
        };
        let Err(refused) = self.0.queue.push(item) else { return };
        match *refused {
            NotQueued::Full(item) => (item.done)(Err(PublishError::StoreBusy)),
            NotQueued::Closed(item) => (item.done)(Err(self.away())),
        }
    }

    /// Returns the progress of an MQTT session that is written with its message.
    fn progress_of(&self, record: StoredRecord) -> Option<ProgressWrite> {
        let StoredRecord { part, key, value } = record;
        let record = value.filter(|_| part == Part::Progress.name())?;
        Some(ProgressWrite { key, record, number: self.0.sessions.queue.draw_number() })
    }

    /// Returns the error that publishers get while there is no connection.
    pub(crate) fn away(&self) -> PublishError {
        let why = self.error();
        PublishError::StoreFailed(Arc::from(away_text(why.as_deref())))
    }
}

/// Returns the text that says why nothing can be appended or read.
pub(crate) fn away_text(why: Option<&str>) -> String {
    match why {
        Some(why) => format!("PostgreSQL can't be used ({why}); try again later"),
        None => "there is no connection to PostgreSQL yet; try again later".into(),
    }
}
