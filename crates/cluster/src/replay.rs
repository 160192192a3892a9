//! The publishing side of a node: its numbers, and the newest messages for nodes that have missed some.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use model::NodeId;

use crate::stream::PerStream;
use crate::{Head, Message, ReplayedRange, RequestedRange, Stream};

/// The approximate memory of a retained message besides its bytes.
const RECORD_BYTES: usize = 64;

/// How long a node retains a message, in microseconds.
pub(crate) const RETAINED_US: u64 = 60_000_000;

/// Bytes that one request for messages gets, at most; the requesting node comes back for the rest.
const REPLY_BYTES_MAX: usize = 4 << 20;

/// The fraction of the bytes for messages that changes of presence may take in addition. They are useful only while
/// they are smaller than the entries that they change.
const PRESENCE_PART: usize = 4;

/// A message that the node retains. It never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedMessage {
    pub(crate) stream: Stream,
    pub(crate) number: u64,
    pub(crate) at_us: u64,
    pub(crate) bytes: Bytes,
}

/// The position at which a page of retained messages begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessagesFrom {
    pub(crate) is_presence: bool,
    pub(crate) index: u64,
}

/// Numbers of streams, and the newest messages.
pub(crate) struct Replay {
    node: NodeId,
    /// The newest number of each stream, and when it was published.
    heads: PerStream<(u64, u64)>,
    /// The newest number of each stream that is no longer retained.
    evicted: PerStream<u64>,
    messages: Retained,
    /// The changes of presence, which push out no message.
    presence: Retained,
    /// Streams that have changed since the last hello.
    changed: PerStream<bool>,
}

/// The newest messages of some streams.
struct Retained {
    records: VecDeque<Record>,
    bytes: usize,
    bytes_max: usize,
    /// When the newest message that is no longer retained was published.
    evicted_us: Option<u64>,
    /// The number of messages that are no longer retained: the index of the oldest retained one.
    evicted_count: u64,
}

struct Record {
    stream: Stream,
    number: u64,
    at_us: u64,
    bytes: Bytes,
}

/// Messages that a node requested, and their numbers.
#[derive(Default)]
pub(crate) struct Found {
    pub packets: Vec<Bytes>,
    pub ranges: Vec<ReplayedRange>,
}

impl Replay {
    pub fn new(node: NodeId, bytes_max: usize) -> Self {
        Replay {
            node,
            heads: PerStream::new((0, 0)),
            evicted: PerStream::new(0),
            messages: Retained::new(bytes_max),
            presence: Retained::new(bytes_max / PRESENCE_PART),
            changed: PerStream::new(false),
        }
    }

    /// Numbers a message, and retains it.
    pub fn publish(
        &mut self,
        stream: Stream,
        now_us: u64,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Bytes {
        let number = self.heads.get(stream).0 + 1;
        self.heads.set(stream, (number, now_us));
        self.changed.set(stream, true);
        let bytes = Message::encode(self.node, stream, number, write);
        let retained = self.retained_mut(stream);
        retained.bytes += RECORD_BYTES + bytes.len();
        retained.records.push_back(Record { stream, number, at_us: now_us, bytes: bytes.clone() });
        self.evict(now_us);
        bytes
    }

    /// Drops messages beyond the limits.
    pub fn evict(&mut self, now_us: u64) {
        let evicted = &mut self.evicted;
        for retained in [&mut self.messages, &mut self.presence] {
            retained.evict(now_us, |stream, number| evicted.set(stream, number));
        }
    }

    fn retained(&self, stream: Stream) -> &Retained {
        if stream == Stream::PRESENCE { &self.presence } else { &self.messages }
    }

    fn retained_mut(&mut self, stream: Stream) -> &mut Retained {
        if stream == Stream::PRESENCE { &mut self.presence } else { &mut self.messages }
    }

    /// Returns when the newest message that is no longer retained was published, and the newest diff of presence.
    pub fn evicted_us(&self) -> (Option<u64>, Option<u64>) {
        (self.messages.evicted_us, self.presence.evicted_us)
    }

    /// Returns the newest number of a stream and its time, the newest number that is not retained, and true if the
    /// stream has changed since the last hello.
    pub fn stream(&self, stream: Stream) -> ((u64, u64), u64, bool) {
        (self.heads.get(stream), self.evicted.get(stream), self.changed.get(stream))
    }

    /// Returns at most `messages_max` retained messages for another process, from a position on.
    pub fn export(
        &self,
        from: MessagesFrom,
        messages_max: usize,
    ) -> (Vec<RetainedMessage>, Option<MessagesFrom>) {
        let retained = if from.is_presence { &self.presence } else { &self.messages };
        let first = from.index.saturating_sub(retained.evicted_count);
        let first = usize::try_from(first).unwrap_or(usize::MAX).min(retained.records.len());
        let records = retained.records.range(first..).take(messages_max);
        let messages = records.map(|record| RetainedMessage {
            stream: record.stream,
            number: record.number,
            at_us: record.at_us,
            bytes: record.bytes.clone(),
        });
        let messages: Vec<RetainedMessage> = messages.collect();
        let behind = first + messages.len();
        let next = match (behind < retained.records.len(), from.is_presence) {
            (true, is_presence) => {
                let index = retained.evicted_count + behind as u64;
                Some(MessagesFrom { is_presence, index })
            }
            (false, false) => Some(MessagesFrom { is_presence: true, index: 0 }),
            (false, true) => None,
        };
        (messages, next)
    }

    /// Restores another process's numbers of a stream.
    pub fn restore_stream(
        &mut self,
        stream: Stream,
        head: (u64, u64),
        evicted: u64,
        is_changed: bool,
    ) {
        self.heads.set(stream, head);
        self.evicted.set(stream, evicted);
        self.changed.set(stream, is_changed);
    }

    /// Restores messages that another process retained, in their order.
    pub fn restore(
        &mut self,
        messages: Vec<RetainedMessage>,
        (evicted_us, presence_evicted_us): (Option<u64>, Option<u64>),
    ) {
        self.messages.evicted_us = evicted_us;
        self.presence.evicted_us = presence_evicted_us;
        for RetainedMessage { stream, number, at_us, bytes } in messages {
            let retained = self.retained_mut(stream);
            retained.bytes += RECORD_BYTES + bytes.len();
            retained.records.push_back(Record { stream, number, at_us, bytes });
        }
    }

    /// Returns the newest numbers of streams that have changed since the last call.
    pub fn take_changed(&mut self) -> Vec<(u16, u64)> {
        let changed = Stream::all().filter(|stream| self.changed.get(*stream));
        let heads = changed.map(|stream| (stream.number(), self.heads.get(stream).0)).collect();
        self.changed = PerStream::new(false);
        heads
    }

    /// Returns the newest numbers of these streams, except for those without a message.
    pub fn heads(&self, streams: &[u16]) -> Vec<Head> {
        let streams = streams.iter().filter_map(|number| Stream::from_number(*number));
        let heads = streams.map(|stream| (stream.number(), self.heads.get(stream)));
        let sent = heads.filter(|(_, (number, _))| *number > 0);
        sent.map(|(stream, (number, at_us))| Head { stream, number, at_us }).collect()
    }

    /// Returns the retained bytes.
    pub fn bytes(&self) -> usize {
        self.messages.bytes + self.presence.bytes
    }

    /// Returns the messages that a node has missed, of each stream in the order in which they were published.
    pub fn find(&self, requested: &[RequestedRange]) -> Found {
        let mut ranges = BTreeMap::<Stream, (RequestedRange, Option<ReplayedRange>)>::new();
        for range in requested {
            if let Some(stream) = Stream::from_number(range.stream) {
                ranges.insert(stream, (*range, None));
            }
        }
        let (mut packets, mut bytes) = (Vec::new(), 0);
        for record in self.messages.records.iter().chain(&self.presence.records) {
            let Some((range, found)) = ranges.get_mut(&record.stream) else { continue };
            let Record { number, at_us, .. } = *record;
            if number <= range.after || number > range.to || at_us < range.since_us {
                continue;
            }
            if bytes >= REPLY_BYTES_MAX {
                break;
            }
            bytes += record.bytes.len();
            packets.push(record.bytes.clone());
            let stream = record.stream.number();
            let first = ReplayedRange { stream, first: number, to: number, is_whole: true };
            found.get_or_insert(first).to = number;
        }
        let is_cut_short = bytes >= REPLY_BYTES_MAX;
        let replayed = ranges.into_iter().filter_map(|(stream, (range, found))| {
            let none = |first: u64, to: u64| {
                let stream = stream.number();
                ReplayedRange { stream, first, to, is_whole: true }
            };
            let replayed = match found {
                Some(found) => found,
                // The node requests again what did not fit.
                None if is_cut_short && range.since_us > 0 => return None,
                None if is_cut_short => none(range.after.saturating_add(1), range.after),
                None => none(range.to.saturating_add(1), range.to),
            };
            Some(ReplayedRange { is_whole: self.is_whole(stream, &range, &replayed), ..replayed })
        });
        Found { ranges: replayed.collect(), packets }
    }

    /// Returns true if no message is missing between a node's requested start and the first message that it gets.
    fn is_whole(&self, stream: Stream, range: &RequestedRange, replayed: &ReplayedRange) -> bool {
        let is_gone = self.evicted.get(stream) > range.after;
        match range.since_us {
            0 => replayed.first == range.after.saturating_add(1),
            since_us => {
                let evicted_us = self.retained(stream).evicted_us;
                !is_gone || evicted_us.is_none_or(|at_us| at_us < since_us)
            }
        }
    }
}

impl Retained {
    fn new(bytes_max: usize) -> Self {
        Retained {
            records: VecDeque::new(),
            bytes: 0,
            bytes_max,
            evicted_us: None,
            evicted_count: 0,
        }
    }

    /// Drops messages beyond the limits. `on_evicted` gets the stream and the number of each.
    fn evict(&mut self, now_us: u64, mut on_evicted: impl FnMut(Stream, u64)) {
        while let Some(oldest) = self.records.front()
            && (self.bytes > self.bytes_max || oldest.at_us.saturating_add(RETAINED_US) < now_us)
        {
            self.bytes -= RECORD_BYTES + oldest.bytes.len();
            on_evicted(oldest.stream, oldest.number);
            self.evicted_us = Some(oldest.at_us);
            self.evicted_count += 1;
            self.records.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(messages: u64) -> Replay {
        let mut replay = Replay::new(NodeId(1), 1_000 * (RECORD_BYTES + 20));
        for number in 1..=messages {
            replay.publish(Stream::of("a"), number * 10, |out| out.extend(b"text"));
        }
        replay
    }

    fn range(after: u64, to: u64, since_us: u64) -> RequestedRange {
        RequestedRange { stream: Stream::of("a").number(), after, to, since_us }
    }

    fn found(replay: &Replay, range: RequestedRange) -> (usize, u64, u64, bool) {
        let found = replay.find(&[range]);
        let ReplayedRange { first, to, is_whole, .. } = found.ranges[0];
        (found.packets.len(), first, to, is_whole)
    }

    #[test]
    fn what_is_missing_is_found_while_it_is_retained() {
        let mut replay = replay(1_000);
        assert_eq!(found(&replay, range(3, 7, 0)), (4, 4, 7, true));
        assert_eq!(found(&replay, range(0, 1_000, 9_991)), (1, 1_000, 1_000, true));
        assert_eq!(found(&replay, range(0, 1_000, 10_001)), (0, 1_001, 1_000, true));
        replay.publish(Stream::of("a"), 10_010, |out| out.extend(b"text"));
        assert_eq!(found(&replay, range(0, 5, 0)), (4, 2, 5, false));
        assert_eq!(found(&replay, range(1, 5, 0)), (4, 2, 5, true));
        assert_eq!(found(&replay, range(0, 5, 10)), (4, 2, 5, false), "one of that time is gone");
        assert_eq!(found(&replay, range(0, 5, 11)), (4, 2, 5, true));
        assert_eq!(replay.heads(&[Stream::of("a").number(), 5]).len(), 1);
    }

    #[test]
    fn changes_of_presence_push_out_no_message() {
        let mut replay = replay(1_000);
        for _ in 0..1_000 {
            replay.publish(Stream::PRESENCE, 10_000, |out| out.extend(b"text"));
        }
        assert_eq!(found(&replay, range(0, 1_000, 0)), (1_000, 1, 1_000, true));
        let stream = Stream::PRESENCE.number();
        let found = replay.find(&[RequestedRange { stream, ..range(0, 1_000, 0) }]);
        assert_eq!((found.packets.len(), found.ranges[0].first), (250, 751));
        assert!(!found.ranges[0].is_whole);
        assert_eq!(replay.bytes(), 1_250 * (RECORD_BYTES + 20));
    }

    #[test]
    fn what_does_not_fit_into_a_reply_is_left_for_the_next() {
        let mut replay = Replay::new(NodeId(1), 64 << 20);
        for _ in 0..6 {
            replay.publish(Stream::of("a"), 1, |out| out.resize(out.len() + (1 << 20), 0));
        }
        replay.publish(Stream::of("b"), 1, |_| {});
        let b = RequestedRange { stream: Stream::of("b").number(), after: 0, to: 1, since_us: 0 };
        let found = replay.find(&[range(0, 6, 0), b]);
        assert_eq!(found.packets.len(), 4);
        let mut ranges: Vec<_> = found.ranges.iter().map(|it| (it.first, it.to)).collect();
        ranges.sort_unstable();
        assert_eq!(ranges, [(1, 0), (1, 4)]);
    }
}
