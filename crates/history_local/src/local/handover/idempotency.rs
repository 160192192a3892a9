//! Idempotency keys.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use handover::{Again, Part, PartError, decode};
use history::TopicHash;
use minicbor::{Decode, Encode};
use model::Name;

use super::{Local, PIECE, encoded};
use crate::local::unix_ms;

const NAME: &str = "idempotency";

/// The known idempotency keys. The key of a record is a number of 8 bytes, the highest first, in the order of use; a
/// record never changes.
pub(super) struct IdempotencyPart {
    history: Local,
    hash: TopicHash,
    coming: Mutex<BTreeMap<u64, Key>>,
}

#[derive(Clone, Encode, Decode)]
#[cbor(map)]
struct Key {
    #[cbor(n(0), encode_with = "encode_name", decode_with = "decode_name")]
    topic: Name,
    #[cbor(n(1), encode_with = "encode_name", decode_with = "decode_name")]
    key: Name,
    #[n(2)]
    offset: u64,
    #[n(3)]
    at_ms: u64,
}

fn encode_name<C, W: minicbor::encode::Write>(
    name: &Name,
    encoder: &mut minicbor::Encoder<W>,
    _: &mut C,
) -> Result<(), minicbor::encode::Error<W::Error>> {
    encoder.str(name)?.ok()
}

fn decode_name<C>(
    decoder: &mut minicbor::Decoder<'_>,
    _: &mut C,
) -> Result<Name, minicbor::decode::Error> {
    decoder.str().map(Name::from)
}

impl IdempotencyPart {
    pub fn new(history: Local, hash: TopicHash) -> Self {
        IdempotencyPart { history, hash, coming: Mutex::default() }
    }

    fn coming(&self) -> MutexGuard<'_, BTreeMap<u64, Key>> {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part for IdempotencyPart {
    fn name(&self) -> &'static str {
        NAME
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        handover::export_all(self, each);
    }

    fn export_again(&self, each: &mut Again<'_>) {
        let (mut from, mut found, mut buffer) = (Some(0), Vec::new(), Vec::new());
        while let Some(at) = from {
            let state = self.history.state();
            from = state.idempotency.each_from(at, PIECE, |serial, topic, key, offset, at_ms| {
                found.push((serial, Key { topic: topic.into(), key: key.into(), offset, at_ms }));
            });
            drop(state);
            for (serial, record) in found.drain(..) {
                let key = serial.to_be_bytes();
                if !each(&key, None) {
                    each(&key, Some(encoded(record, &mut buffer)));
                }
            }
        }
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let Ok(serial) = key.try_into().map(u64::from_be_bytes) else { return Ok(()) };
        match value {
            Some(value) => {
                let key = decode(value).map_err(|error| PartError::new(NAME, error))?;
                self.coming().insert(serial, key);
            }
            None => drop(self.coming().remove(&serial)),
        }
        Ok(())
    }

    fn complete(&self) -> Result<(), PartError> {
        let coming = std::mem::take(&mut *self.coming());
        let seconds = self.history.0.idempotency_seconds_max.load(Ordering::Relaxed);
        let mut state = self.history.state();
        state.idempotency.set_time(self.history.0.clock.now_ms(), unix_ms());
        for Key { topic, key, offset, at_ms } in coming.into_values() {
            let hash = (self.hash)(&topic);
            state.idempotency.remember_at(hash, &topic, &key, offset, at_ms, seconds);
        }
        Ok(())
    }
}
