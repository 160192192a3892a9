//! Sweeps: deletes expired messages, and computes when a message expires.

use std::collections::HashSet;

use model::Name;
use redb::ReadableTable;

use super::{Batch, REMOVAL_SECONDS, SweepPlan};
use crate::error::InternalError;
use crate::record::{MessageRow, RecordRef};

impl Batch<'_> {
    /// Deletes what the plan names, except in damaged topics.
    pub fn sweep(
        &mut self,
        plan: &SweepPlan,
        damaged: &HashSet<Name>,
    ) -> Result<(), InternalError> {
        let mut intact = plan.topics.iter().filter(|name| !damaged.contains(*name));
        intact.try_for_each(|name| self.load_topic(name).map(|_| ()))?;
        if plan.expired {
            self.expire(plan.rows_max, damaged)?;
        }
        if let Some(before_ms) = plan.keys_before_ms {
            let rows = self.idempotency.extract_from_if(..(before_ms, 0), |_, _| true)?;
            let mut swept = 0;
            for row in rows.take(plan.rows_max) {
                self.metadata.idempotency.remove(row?.1.value().2);
                swept += 1;
            }
            self.more |= swept == plan.rows_max;
        }
        Ok(())
    }

    fn expire(&mut self, rows_max: usize, damaged: &HashSet<Name>) -> Result<(), InternalError> {
        let mut expired = Vec::new();
        let rows =
            self.expiries.extract_from_if(..=(self.now_ms, u64::MAX, u64::MAX), |_, _| true)?;
        for row in rows.take(rows_max) {
            let (key, name) = row?;
            expired.push((Name::from(name.value()), key.value()));
        }
        self.more |= expired.len() == rows_max;
        for (name, (expires_ms, number, offset)) in expired {
            // Reads hide the expired messages of a damaged topic, so they can stay in the file.
            if damaged.contains(&name) {
                continue;
            }
            let Some(mut topic) = self.load_topic(&name)?.filter(|topic| topic.number == number)
            else {
                continue;
            };
            let Some(row) = self.messages.get((number, offset))?.map(|row| row.value().to_vec())
            else {
                continue;
            };
            let head = MessageRow::decode(number, offset, &row).and_then(|row| row.head());
            let before = offset.saturating_sub(1);
            let head =
                head.map_err(|error| InternalError::from(error).in_topic(&name, before, offset))?;
            if !expiries(&head).any(|ms| ms == expires_ms) {
                continue;
            }
            // A client that misses an expired message misses nothing, so the floor stays. But if
            // the message had replaced an earlier value of its key, a client may still hold that
            // value: the floor rises, so that the client learns about the gap.
            if !head.is_expired(self.now_ms) || topic.leaves_gap(&head) {
                topic.floor = topic.floor.max(offset);
            }
            self.remove_message(&name, &mut topic, offset, |_| true)?;
            if let Some(key) = head.key {
                self.remove_key(number, key, offset)?;
            }
            self.save_topic(&name, topic);
        }
        Ok(())
    }
}

/// Returns when the removal of a key leaves a compacted topic, in milliseconds since 1970.
fn removal_ms(head: &RecordRef<'_>) -> Option<u64> {
    head.is_removal().then(|| head.at_ms.saturating_add(REMOVAL_SECONDS * 1000))
}

/// Returns when a message is dropped, by its own expiry or as the removal of a key, whichever comes first.
pub(crate) fn first_expiry(head: &RecordRef<'_>, compact: bool) -> Option<u64> {
    head.expires_ms.into_iter().chain(removal_ms(head).filter(|_| compact)).min()
}

/// Returns the times under which the table of expiries may list a message. It may list both, because the topic's rule
/// may have changed since the message was written.
pub fn expiries(head: &RecordRef<'_>) -> impl Iterator<Item = u64> {
    head.expires_ms.into_iter().chain(removal_ms(head))
}
