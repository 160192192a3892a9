//! The state of a topic apart from its messages.

use model::HistoryRule;

use crate::checksum;
use crate::coding::{Decoder, put_varint};
use crate::error::RowError;
use crate::record::RecordRef;

/// The row of a topic. Together with the links of the messages it proves which messages exist: the
/// first message links to `base`, each other one to the message before it, and the last one is
/// `newest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TopicRow {
    /// The number under which the topic's messages are stored. No other topic ever gets it.
    pub number: u64,
    /// Messages at or below this offset may have been dropped.
    pub floor: u64,
    /// The offset of the last message that was ever stored.
    pub last: u64,
    /// The number of stored messages.
    pub count: u64,
    /// The bytes of their payloads.
    pub bytes: u64,
    /// No message is older than this, in milliseconds since 1970. The oldest one may be younger.
    pub oldest_ms: u64,
    /// When the topic lost its last message, in milliseconds since 1970.
    pub empty_since_ms: u64,
    /// The offset to which the first message links; `newest` if there is none.
    pub base: u64,
    /// The offset of the last message. The next message links to it, even if it has been removed.
    pub newest: u64,
    /// The hash of the name of the topic before this one ([`checksum::of_name`]); 0 for the first.
    pub previous_name_hash: u64,
    /// The retention that came with the last message.
    pub retention: Retention,
}

/// The part of a topic's history rule that the store applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retention {
    pub messages_max: u64,
    pub bytes_max: u64,
    pub seconds_max: u64,
    pub compact: bool,
}

/// The limit by which a message is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Messages,
    Bytes,
    Seconds,
}

impl Retention {
    /// Takes the store's part of a rule.
    pub fn of_rule(history: &HistoryRule) -> Self {
        Retention {
            messages_max: history.messages_max.max(1),
            bytes_max: history.bytes_max,
            seconds_max: history.seconds_max,
            compact: history.compact,
        }
    }

    /// Returns true if a message of this time is too old.
    pub fn is_too_old(&self, at_ms: u64, now_ms: u64) -> bool {
        at_ms.saturating_add(self.seconds_max.saturating_mul(1000)) <= now_ms
    }
}

impl TopicRow {
    /// Returns true if enough messages exceed the limits that a deletion is worthwhile: a tenth over a limit, so that
    /// large topics delete in bulk and topics of fewer than ten messages at once; or a message that is too old.
    pub fn exceeds_limits(&self, now_ms: u64) -> bool {
        let exceeds = |is: u64, max: u64| is > max.saturating_add(max / 10);
        self.count > 0
            && (exceeds(self.count, self.retention.messages_max)
                || (exceeds(self.bytes, self.retention.bytes_max) && self.count > 1)
                || self.retention.is_too_old(self.oldest_ms, now_ms))
    }

    /// Returns the limit by which the oldest message is dropped, once a deletion has begun; `None` if it stays.
    pub fn exceeded_limit(&self, at_ms: u64, now_ms: u64) -> Option<Limit> {
        let is_too_old = self.retention.is_too_old(at_ms, now_ms);
        self.exceeded_size_limit().or(is_too_old.then_some(Limit::Seconds))
    }

    /// Returns the same for the limits that don't change with time.
    pub fn exceeded_size_limit(&self) -> Option<Limit> {
        if self.count > self.retention.messages_max {
            return Some(Limit::Messages);
        }
        (self.bytes > self.retention.bytes_max && self.count > 1).then_some(Limit::Bytes)
    }

    /// Returns true if the removal of this message leaves a gap even though it has expired: it had replaced an
    /// earlier value of its key.
    pub fn leaves_gap(&self, head: &RecordRef<'_>) -> bool {
        self.retention.compact && head.key.is_some()
    }

    /// Encodes the row of the topic with this name.
    pub fn encode(&self, name: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.push(u8::from(self.retention.compact));
        let TopicRow {
            number,
            floor,
            last,
            count,
            bytes,
            oldest_ms,
            empty_since_ms,
            retention,
            ..
        } = self;
        let TopicRow { base, newest, previous_name_hash, .. } = self;
        let Retention { messages_max, bytes_max, seconds_max, .. } = retention;
        for number in [
            number,
            floor,
            last,
            count,
            bytes,
            oldest_ms,
            empty_since_ms,
            base,
            newest,
            previous_name_hash,
            messages_max,
            bytes_max,
            seconds_max,
        ] {
            put_varint(&mut out, *number);
        }
        checksum::prepend(name.as_bytes(), &out)
    }

    /// Decodes the row of the topic with this name.
    pub fn decode(name: &str, row: &[u8]) -> Result<Self, RowError> {
        let mut input = Decoder(checksum::verify(name.as_bytes(), row)?);
        let compact = match input.byte()? {
            0 => false,
            1 => true,
            _ => return Err(RowError),
        };
        let mut number = || input.number();
        let topic = TopicRow {
            number: number()?,
            floor: number()?,
            last: number()?,
            count: number()?,
            bytes: number()?,
            oldest_ms: number()?,
            empty_since_ms: number()?,
            base: number()?,
            newest: number()?,
            previous_name_hash: number()?,
            retention: Retention {
                messages_max: number()?,
                bytes_max: number()?,
                seconds_max: number()?,
                compact,
            },
        };
        if input.0.is_empty() { Ok(topic) } else { Err(RowError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn encode_and_decode_round_trip(n: [u64; 13], compact: bool) {
            let topic = TopicRow {
                number: n[0], floor: n[1], last: n[2], count: n[3], bytes: n[4],
                oldest_ms: n[5], empty_since_ms: n[6],
                base: n[10], newest: n[11], previous_name_hash: n[12],
                retention: Retention { messages_max: n[7], bytes_max: n[8], seconds_max: n[9], compact },
            };
            let row = topic.encode("a");
            prop_assert_eq!(TopicRow::decode("a", &row), Ok(topic));
            prop_assert_eq!(TopicRow::decode("b", &row), Err(RowError));
        }

        #[test]
        fn decode_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            prop_assert_eq!(TopicRow::decode("a", &bytes), Err(RowError));
        }
    }
}
