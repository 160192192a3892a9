//! Passes the recent window to another process, which goes on in the same epoch with the next offset.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use handover::{Again, Part, PartError, decode, encode, message};
use minicbor::{Decode, Encode};

use crate::local::SCANNED;
use crate::recent::{DROPPED_BUCKETS, Dropped, Window};
use crate::{Broker, Local};

const NAME: &str = "recent";

/// The record of all but the messages, whose keys are their offsets in 8 bytes, the highest first.
const STATE: &[u8] = b"state";

/// The record of the offsets of [`Dropped`](crate::recent::Dropped): a number of 8 bytes each, lowest byte first.
const DROPPED: &[u8] = b"dropped";

/// The recent window and the last offset, as a part of a handover. The new process goes on with both, within its own
/// limits; it has its own keys for hashes.
pub struct RecentPart {
    broker: Arc<Local>,
    coming: Mutex<Coming>,
}

/// State received from another process.
#[derive(Default)]
struct Coming {
    state: Option<State>,
    dropped: Option<Box<[u64; DROPPED_BUCKETS]>>,
    window: Option<Window>,
}

#[derive(Clone, Encode, Decode)]
#[cbor(map)]
struct State {
    #[n(0)]
    epoch: u32,
    /// The last offset that was drawn.
    #[n(1)]
    last: u64,
    /// When the newest dropped message was published.
    #[cbor(n(2), default)]
    gone_us: u64,
    /// The key of the hash that gives topics their buckets in [`Dropped`](crate::recent::Dropped).
    #[cbor(n(3), default)]
    key: (u64, u64),
}

impl RecentPart {
    /// Makes the part of this broker.
    pub fn new(broker: Arc<Local>) -> Self {
        RecentPart { broker, coming: Mutex::default() }
    }

    fn coming(&self) -> MutexGuard<'_, Coming> {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn damaged(what: impl ToString) -> PartError {
    PartError::new(NAME, what)
}

impl Part for RecentPart {
    fn name(&self) -> &'static str {
        NAME
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        handover::export_all(self, each);
    }

    fn export_again(&self, each: &mut Again<'_>) {
        let mut dropped = Vec::with_capacity(8 * DROPPED_BUCKETS);
        let order = self.broker.order();
        let offsets = order.window.dropped.offsets.iter();
        offsets.for_each(|offset| dropped.extend(offset.to_le_bytes()));
        let state = State {
            epoch: self.broker.epoch().0,
            last: order.last,
            gone_us: order.window.gone_us,
            key: order.window.dropped.key.unwrap_or(self.broker.hash_key),
        };
        drop(order);
        each(DROPPED, Some(&dropped));
        each(STATE, Some(&encode(state)));
    }

    fn export_numbered(&self, from: u64, each: &mut dyn FnMut(u64, &[u8])) -> u64 {
        let mut after = from.saturating_sub(1);
        loop {
            let piece: Vec<_> = self.broker.order().window.after(after, SCANNED).cloned().collect();
            let Some(last) = piece.last() else { break };
            after = last.id.offset;
            piece.iter().for_each(|found| each(found.id.offset, &message::encode(found)));
        }
        let order = self.broker.order();
        order.window.after(0, 1).next().map_or(order.last + 1, |oldest| oldest.id.offset)
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let mut coming = self.coming();
        match (key, value) {
            (STATE, value) => {
                let state = value.map(decode).transpose();
                coming.state = state.map_err(damaged)?;
            }
            (DROPPED, value) => coming.dropped = value.map(decode_dropped).transpose()?,
            (key, value) => {
                let Ok(offset) = key.try_into().map(u64::from_be_bytes) else {
                    // The record is of a later version, whose process reports beforehand what this one would lose.
                    return Ok(());
                };
                let window =
                    coming.window.get_or_insert_with(|| self.broker.order().window.new_alike());
                let Some(value) = value else {
                    window.remove(offset);
                    return Ok(());
                };
                let found = message::decode(value, &|topic| self.broker.hash(topic));
                let found = found.map_err(damaged)?;
                if found.id.offset != offset {
                    return Err(damaged(format!("offset {offset} has another message")));
                }
                if !window.push_imported(Arc::new(found)) {
                    return Err(damaged(format!("offset {offset} is out of order")));
                }
            }
        }
        Ok(())
    }

    fn complete(&self) -> Result<(), PartError> {
        let Coming { state, dropped, window } = std::mem::take(&mut *self.coming());
        let State { epoch, last, gone_us, key } =
            state.ok_or_else(|| damaged("the record with the last offset is missing"))?;
        let imported = window.unwrap_or_else(|| self.broker.order().window.new_alike());
        if imported.before(u64::MAX, 1).next().is_some_and(|newest| newest.id.offset > last) {
            return Err(damaged("a message has a higher offset than the last offset"));
        }
        self.broker.epoch.store(epoch, Ordering::Relaxed);
        let mut order = self.broker.order();
        order.last = last;
        let dropped = Dropped {
            // If the keys are the same, the buckets are those of this process.
            key: Some(key).filter(|key| *key != self.broker.hash_key),
            offsets: dropped.unwrap_or_else(|| Box::new([0; DROPPED_BUCKETS])),
        };
        order.window.go_on_with(imported, gone_us, dropped);
        Ok(())
    }
}

fn decode_dropped(value: &[u8]) -> Result<Box<[u64; DROPPED_BUCKETS]>, PartError> {
    let (numbers, rest) = value.as_chunks::<8>();
    let numbers: Box<[u64]> = numbers.iter().map(|it| u64::from_le_bytes(*it)).collect();
    match numbers.try_into() {
        Ok(offsets) if rest.is_empty() => Ok(offsets),
        _ => Err(damaged("the record of dropped offsets has the wrong length")),
    }
}

#[cfg(test)]
mod tests;
