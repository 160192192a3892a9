//! What the store knows of a topic beside its messages.

use wire::History;

use crate::record::{BadRow, Head, Input, put_number};
use crate::sum;

/// The row of a topic. With what its messages say of the one before, it tells of each message
/// whether it should be there: the first says `base`, each other one the offset of the one before
/// it, and the last is `newest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Topic {
    /// Its number, by which its messages are found. Never used again for another topic.
    pub number: u64,
    /// Messages at or below this offset may have been dropped.
    pub floor: u64,
    /// The last message that was ever stored.
    pub last: u64,
    /// Messages that are stored.
    pub count: u64,
    /// The bytes of their payloads.
    pub bytes: u64,
    /// No message is older, in milliseconds since 1970. There may be none of this age any more.
    pub oldest_ms: u64,
    /// Since when it has none, in milliseconds since 1970.
    pub empty_since_ms: u64,
    /// The offset before its first message's, as that says; `newest` if there is none.
    pub base: u64,
    /// The last message that is there; after it comes the next one, also if there is none.
    pub newest: u64,
    /// Stands for the name of the topic before it ([`sum::of_name`]); 0 for the first.
    pub before: u64,
    /// What is kept, as of its last message.
    pub keep: Keep,
}

/// The limits of a topic's history that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keep {
    pub messages_max: u64,
    pub bytes_max: u64,
    pub seconds_max: u64,
    pub compact: bool,
}

impl Keep {
    /// What of a rule matters.
    pub fn of(history: &History) -> Self {
        Keep {
            messages_max: history.messages_max.max(1),
            bytes_max: history.bytes_max,
            seconds_max: history.seconds_max,
            compact: history.compact,
        }
    }

    /// True for a message of this time that is too old now.
    pub fn is_aged(&self, at_ms: u64, now_ms: u64) -> bool {
        at_ms.saturating_add(self.seconds_max.saturating_mul(1000)) <= now_ms
    }
}

impl Topic {
    /// True when there is so much to drop that it is worth while: a tenth over a limit, so that
    /// rows go in bulk where there are many, and at once where a topic keeps fewer than ten; or
    /// something too old.
    pub fn is_over(&self, now_ms: u64) -> bool {
        let over = |is: u64, max: u64| is > max.saturating_add(max / 10);
        self.count > 0
            && (over(self.count, self.keep.messages_max)
                || (over(self.bytes, self.keep.bytes_max) && self.count > 1)
                || self.keep.is_aged(self.oldest_ms, now_ms))
    }

    /// True when the oldest message has to go, once some are going.
    pub fn drops(&self, at_ms: u64, now_ms: u64) -> bool {
        self.count > self.keep.messages_max
            || (self.bytes > self.keep.bytes_max && self.count > 1)
            || self.keep.is_aged(at_ms, now_ms)
    }

    /// True for a message that somebody misses though it has expired: it replaced what its key was
    /// before.
    pub fn is_missed(&self, head: &Head<'_>) -> bool {
        self.keep.compact && head.key.is_some()
    }

    /// The row of the topic of this name.
    pub fn encode(&self, name: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.push(u8::from(self.keep.compact));
        let Topic { number, floor, last, count, bytes, oldest_ms, empty_since_ms, keep, .. } = self;
        let Topic { base, newest, before, .. } = self;
        let Keep { messages_max, bytes_max, seconds_max, .. } = keep;
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
            before,
            messages_max,
            bytes_max,
            seconds_max,
        ] {
            put_number(&mut out, *number);
        }
        sum::seal(name.as_bytes(), &out)
    }

    /// Reads the row of the topic of this name.
    pub fn read(name: &str, row: &[u8]) -> Result<Self, BadRow> {
        let mut input = Input(sum::open(name.as_bytes(), row)?);
        let compact = match input.byte()? {
            0 => false,
            1 => true,
            _ => return Err(BadRow),
        };
        let mut number = || input.number();
        let topic = Topic {
            number: number()?,
            floor: number()?,
            last: number()?,
            count: number()?,
            bytes: number()?,
            oldest_ms: number()?,
            empty_since_ms: number()?,
            base: number()?,
            newest: number()?,
            before: number()?,
            keep: Keep {
                messages_max: number()?,
                bytes_max: number()?,
                seconds_max: number()?,
                compact,
            },
        };
        if input.0.is_empty() { Ok(topic) } else { Err(BadRow) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(n: [u64; 13], compact: bool) {
            let topic = Topic {
                number: n[0], floor: n[1], last: n[2], count: n[3], bytes: n[4],
                oldest_ms: n[5], empty_since_ms: n[6],
                base: n[10], newest: n[11], before: n[12],
                keep: Keep { messages_max: n[7], bytes_max: n[8], seconds_max: n[9], compact },
            };
            let row = topic.encode("a");
            prop_assert_eq!(Topic::read("a", &row), Ok(topic));
            prop_assert_eq!(Topic::read("b", &row), Err(BadRow));
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            prop_assert_eq!(Topic::read("a", &bytes), Err(BadRow));
        }
    }
}
