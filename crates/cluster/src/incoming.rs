//! The streams of one other node: its delivered messages, and the missing ones.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::stream::PerStream;
use crate::{Head, ReplayedRange, RequestedRange, Stream};

/// How long the node waits for a reply before it requests once more, in microseconds.
pub(crate) const REPLY_US: u64 = 500_000;

/// How often the node requests the same before the messages count as lost: for 8 seconds, in which a node that has
/// lost its connection comes back.
const ATTEMPTS: u32 = 16;

/// How long the node waits, in microseconds, after a hello named a newer number than has come. The message may still
/// be on its own subject.
const TAIL_US: u64 = 300_000;

/// A reply about the newest number is slow if it took longer, in microseconds. A slow reply is a poor measure of what
/// was published before interest began.
const PROMPT_US: u64 = 100_000;

/// How many slow replies the node ignores. It accepts the next one however long that took.
const SLOW_REPLIES_MAX: u32 = 5;

/// After so many empty replies in a row the messages count as lost. NATS rejects some messages, such as those that
/// are too large, each time.
const EMPTY_REPLIES_MAX: u32 = 3;

/// Bytes of messages that may wait for those before them, in the streams of one node.
const WAITING_BYTES_MAX: usize = 8 << 20;

/// The last number of a stream before its first message.
const UNKNOWN: u64 = u64::MAX;

/// An output of the streams of another node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StreamOutput {
    /// A message to deliver.
    Deliver(Stream, Bytes),
    /// Messages are lost.
    Gap(Stream, Option<u64>),
}

/// The state for another process: numbers of streams, and of messages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ExportedStreams {
    /// The last message of each stream that was delivered, or is lost.
    pub last: Vec<(u16, u64)>,
    /// The newest missing message of each stream that is known to have been published.
    pub missing: Vec<(u16, u64)>,
    /// Streams with an unknown first number.
    pub beginning: Vec<u16>,
}

/// When a request was sent and its reply came, and the other node's clock in between; in microseconds.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub sent_us: u64,
    pub their_us: u64,
    pub now_us: u64,
}

/// The streams of one other node.
pub(crate) struct IncomingStreams {
    /// The newest number of each stream that has been delivered, or is lost.
    last: PerStream<u64>,
    /// Streams with missing messages.
    pending: BTreeMap<Stream, Pending>,
    waiting_bytes: usize,
    /// Streams whose newest numbers the node requests next.
    pub heads_to_request: Vec<Stream>,
    /// Messages that the node requests next.
    pub ranges_to_request: Vec<RequestedRange>,
    /// The newest number that a hello has named for a stream, and when the node verifies that it has come.
    tails: BTreeMap<Stream, (u64, u64)>,
    pub duplicates: u64,
}

/// The state of a stream with missing messages.
struct Pending {
    /// When interest began, while its first number is unknown.
    interest_begun_us: Option<u64>,
    /// The last requested range. `None` until the other node has sent its newest number.
    requested: Option<RequestedRange>,
    /// When the newest number or the range was last requested.
    requested_us: u64,
    attempts: u32,
    /// Replies about the newest number that took longer than [`PROMPT_US`].
    slow_replies: u32,
    /// Replies in a row without a message, although the other node sent some.
    empty_replies: u32,
    /// Messages that came after the missing ones.
    waiting: BTreeMap<u64, Bytes>,
}

impl IncomingStreams {
    pub fn new() -> Self {
        IncomingStreams {
            last: PerStream::new(UNKNOWN),
            pending: BTreeMap::new(),
            waiting_bytes: 0,
            heads_to_request: Vec::new(),
            ranges_to_request: Vec::new(),
            tails: BTreeMap::new(),
            duplicates: 0,
        }
    }

    /// Returns the state for another process.
    pub fn export(&self) -> ExportedStreams {
        let all = Stream::all().map(|stream| (stream.number(), self.last.get(stream)));
        let last = all.filter(|(_, last)| *last != UNKNOWN).collect();
        let mut missing = BTreeMap::new();
        let newest = |pending: &Pending| {
            let requested = pending.requested.map(|range| range.to);
            requested.max(pending.waiting.keys().next_back().copied())
        };
        let pending = self.pending.iter().filter_map(|(stream, it)| Some((*stream, newest(it)?)));
        let tails = self.tails.iter().map(|(stream, (_, number))| (*stream, *number));
        for (stream, number) in pending.chain(tails) {
            let of_stream = missing.entry(stream.number()).or_insert(number);
            *of_stream = number.max(*of_stream);
        }
        let beginning = self.pending.keys().filter(|stream| self.last.get(**stream) == UNKNOWN);
        let beginning = beginning.map(|it| it.number()).collect();
        ExportedStreams { last, missing: missing.into_iter().collect(), beginning }
    }

    /// Restores the last numbers and the missing messages of another process.
    pub fn restore(&mut self, last: &[(u16, u64)], missing: &[(u16, u64)], now_us: u64) {
        for (stream, number) in last {
            if let Some(stream) = Stream::from_number(*stream) {
                self.last.set(stream, *number);
            }
        }
        for (stream, number) in missing {
            if let Some(stream) = Stream::from_number(*stream) {
                self.tails.insert(stream, (now_us + TAIL_US, *number));
            }
        }
    }

    /// Handles that interest in a stream has begun at this time.
    pub fn on_interest_begun(&mut self, stream: Stream, interest_begun_us: u64, now_us: u64) {
        if self.last.get(stream) != UNKNOWN || self.pending.contains_key(&stream) {
            return;
        }
        let pending = Pending {
            interest_begun_us: Some(interest_begun_us),
            requested: None,
            requested_us: now_us,
            attempts: 1,
            slow_replies: 0,
            empty_replies: 0,
            waiting: BTreeMap::new(),
        };
        self.pending.insert(stream, pending);
        self.heads_to_request.push(stream);
    }

    /// Returns the streams of which a number or a message is known to be missing.
    pub fn pending(&self) -> impl Iterator<Item = Stream> {
        self.pending.keys().chain(self.tails.keys()).copied()
    }

    /// Handles that interest in a stream has ended.
    pub fn on_interest_ended(&mut self, stream: Stream) {
        self.last.set(stream, UNKNOWN);
        self.forget_pending(stream);
    }

    /// Returns true if the node has requested messages of a stream since interest in it began, or knows its first
    /// number.
    pub fn has_requested(&self, stream: Stream) -> bool {
        let pending = self.pending.get(&stream);
        self.last.get(stream) != UNKNOWN || pending.is_some_and(|it| it.requested.is_some())
    }

    /// Handles a message.
    pub fn on_message(
        &mut self,
        stream: Stream,
        number: u64,
        payload: Bytes,
        (interest_begun_us, now_us): (u64, u64),
        out: &mut Vec<StreamOutput>,
    ) {
        self.on_interest_begun(stream, interest_begun_us, now_us);
        let last = self.last.get(stream);
        if last != UNKNOWN && number <= last {
            self.duplicates += 1;
            return;
        }
        if last != UNKNOWN && Some(number) == last.checked_add(1) {
            self.last.set(stream, number);
            out.push(StreamOutput::Deliver(stream, payload));
            if self.pending.contains_key(&stream) {
                self.deliver_waiting(stream, now_us, out);
            }
            return;
        }
        self.wait(stream, number, payload, now_us);
        if self.waiting_bytes > WAITING_BYTES_MAX
            && let Some(fullest) = self.fullest()
        {
            self.give_up(fullest, out);
        }
    }

    /// Returns the stream with the most waiting bytes.
    fn fullest(&self) -> Option<Stream> {
        let bytes = |pending: &Pending| pending.waiting.values().map(Bytes::len).sum::<usize>();
        let fullest = self.pending.iter().max_by_key(|(_, pending)| bytes(pending));
        fullest.map(|(stream, _)| *stream)
    }

    /// Lets a message wait for those before it.
    fn wait(&mut self, stream: Stream, number: u64, payload: Bytes, now_us: u64) {
        if !self.pending.contains_key(&stream) {
            self.request(stream, number - 1, now_us, 1);
        }
        let Some(pending) = self.pending.get_mut(&stream) else { return };
        let bytes = payload.len();
        match pending.waiting.insert(number, payload) {
            None => self.waiting_bytes += bytes,
            Some(_) => self.duplicates += 1,
        }
    }

    /// Requests the missing messages up to a number.
    fn request(&mut self, stream: Stream, to: u64, now_us: u64, attempts: u32) {
        let after = self.last.get(stream);
        let range = RequestedRange { stream: stream.number(), after, to, since_us: 0 };
        self.ranges_to_request.push(range);
        let pending = self.pending.entry(stream).or_insert_with(|| Pending {
            interest_begun_us: None,
            requested: None,
            requested_us: now_us,
            attempts,
            slow_replies: 0,
            empty_replies: 0,
            waiting: BTreeMap::new(),
        });
        (pending.requested, pending.requested_us, pending.attempts) =
            (Some(range), now_us, attempts);
    }

    /// Handles a reply with the newest numbers of these streams. The other node has sent nothing to streams that are
    /// not in `heads`.
    pub fn on_heads(
        &mut self,
        streams: &[Stream],
        heads: &[Head],
        Times { sent_us, their_us, now_us }: Times,
        out: &mut Vec<StreamOutput>,
    ) {
        let is_prompt = now_us.saturating_sub(sent_us) < PROMPT_US;
        let heads: BTreeMap<u16, Head> = heads.iter().map(|head| (head.stream, *head)).collect();
        for stream in streams.iter().copied() {
            let head = heads.get(&stream.number()).copied().unwrap_or_default();
            let pending = self.pending.get_mut(&stream);
            let requested = pending.as_ref().and_then(|pending| pending.requested);
            let requested_to = requested.map_or(0, |range| range.to);
            match (self.last.get(stream), pending, requested) {
                (UNKNOWN, None, _) => {}
                // A newer request is pending.
                (UNKNOWN, Some(pending), None) if sent_us < pending.requested_us => {}
                (UNKNOWN, Some(pending), None)
                    if !is_prompt && pending.slow_replies < SLOW_REPLIES_MAX =>
                {
                    pending.slow_replies += 1;
                    let attempts = pending.attempts;
                    self.request_again(stream, attempts, now_us);
                }
                (UNKNOWN, Some(pending), None) => {
                    let age_us = now_us.saturating_sub(pending.interest_begun_us.unwrap_or(now_us));
                    self.begin_stream(stream, head, their_us.saturating_sub(age_us), now_us, out);
                }
                (UNKNOWN, Some(pending), Some(range)) if head.number > range.to => {
                    let range = RequestedRange { to: head.number, ..range };
                    self.ranges_to_request.push(range);
                    (pending.requested, pending.requested_us) = (Some(range), now_us);
                }
                (last, ..) if last != UNKNOWN && head.number > last.max(requested_to) => {
                    self.request(stream, head.number, now_us, 1);
                }
                _ => {}
            }
        }
    }

    /// Finds the first number of a stream: requests the messages since a time.
    fn begin_stream(
        &mut self,
        stream: Stream,
        head: Head,
        since_us: u64,
        now_us: u64,
        out: &mut Vec<StreamOutput>,
    ) {
        if head.number == 0 || head.at_us < since_us {
            self.last.set(stream, head.number);
            return self.deliver_waiting(stream, now_us, out);
        }
        // 0 is reserved for a request with a known first number.
        let since_us = since_us.max(1);
        let range = RequestedRange { stream: stream.number(), after: 0, to: head.number, since_us };
        self.ranges_to_request.push(range);
        if let Some(pending) = self.pending.get_mut(&stream) {
            (pending.requested, pending.requested_us) = (Some(range), now_us);
        }
    }

    /// Handles the end of a replay: the other node has sent the missing messages that it still has.
    pub fn on_replayed(
        &mut self,
        replayed: &ReplayedRange,
        now_us: u64,
        out: &mut Vec<StreamOutput>,
    ) {
        let Some(stream) = Stream::from_number(replayed.stream) else { return };
        let Some(pending) = self.pending.get_mut(&stream) else { return };
        let Some(requested) = pending.requested else { return };
        // This is a reply to an earlier request of the same stream.
        if replayed.to > requested.to || replayed.first == 0 {
            return;
        }
        let (last, before) = (self.last.get(stream), replayed.first - 1);
        if last == UNKNOWN {
            // Messages of the subscription were published later than interest began.
            let first = pending.waiting.keys().next().copied().unwrap_or(u64::MAX);
            self.last.set(stream, before.min(first.saturating_sub(1)));
            pending.interest_begun_us = None;
            if !replayed.is_whole {
                out.push(StreamOutput::Gap(stream, None));
            }
        } else if before > last && !replayed.is_whole {
            out.push(StreamOutput::Gap(stream, Some(before - last)));
            self.last.set(stream, before);
        }
        self.deliver_waiting(stream, now_us, out);
        self.request_rest(stream, replayed, &requested, now_us, out);
    }

    /// Requests the messages that a reply lacked.
    fn request_rest(
        &mut self,
        stream: Stream,
        replayed: &ReplayedRange,
        requested: &RequestedRange,
        now_us: u64,
        out: &mut Vec<StreamOutput>,
    ) {
        let last = self.last.get(stream);
        let Some(pending) = self.pending.get_mut(&stream) else { return };
        if replayed.to <= last {
            if replayed.to < requested.to {
                // The rest did not fit into the reply.
                self.request_again(stream, 1, now_us);
            }
            return;
        }
        let is_empty = last == requested.after;
        pending.empty_replies = if is_empty { pending.empty_replies + 1 } else { 0 };
        if pending.empty_replies < EMPTY_REPLIES_MAX {
            let attempts = pending.attempts;
            return self.request_again(stream, attempts, now_us);
        }
        pending.empty_replies = 0;
        let next = pending.waiting.first_key_value().map(|(number, _)| number - 1);
        let to = next.unwrap_or(replayed.to).min(replayed.to);
        out.push(StreamOutput::Gap(stream, Some(to.saturating_sub(last))));
        self.last.set(stream, to);
        self.deliver_waiting(stream, now_us, out);
    }

    /// Delivers waiting messages without a missing one before them. Requests the messages that are still missing.
    fn deliver_waiting(&mut self, stream: Stream, now_us: u64, out: &mut Vec<StreamOutput>) {
        let Some(pending) = self.pending.get_mut(&stream) else { return };
        let mut last = self.last.get(stream);
        let mut is_new = false;
        while let Some(entry) = pending.waiting.first_entry()
            && *entry.key() <= last.saturating_add(1)
        {
            let (number, payload) = entry.remove_entry();
            self.waiting_bytes -= payload.len();
            if number > last {
                (last, is_new) = (number, true);
                out.push(StreamOutput::Deliver(stream, payload));
            } else {
                self.duplicates += 1;
            }
        }
        self.last.set(stream, last);
        let requested_to = pending.requested.map_or(0, |range| range.to);
        let attempts = if is_new { 1 } else { pending.attempts };
        match pending.waiting.first_key_value().map(|(number, _)| number - 1) {
            // Messages beyond the requested range are missing.
            Some(to) if requested_to <= last => self.request(stream, to, now_us, attempts),
            Some(_) => {}
            None if requested_to <= last => self.forget_pending(stream),
            None => {}
        }
        if let Some(pending) = self.pending.get_mut(&stream) {
            pending.attempts = attempts;
            pending.interest_begun_us = None;
        }
    }

    /// Handles a hello, which names the newest numbers of streams.
    pub fn on_tails(&mut self, heads: &[(u16, u64)], now_us: u64) {
        for (stream, number) in heads {
            let Some(stream) = Stream::from_number(*stream) else { continue };
            if !self.has_come(stream, *number) {
                let tail = self.tails.entry(stream).or_default();
                *tail = (now_us + TAIL_US, tail.1.max(*number));
            }
        }
    }

    /// Returns true if no message of a stream up to this number is missing.
    fn has_come(&self, stream: Stream, number: u64) -> bool {
        match self.last.get(stream) {
            UNKNOWN => !self.pending.contains_key(&stream),
            last => last >= number,
        }
    }

    /// Lets time pass: requests late messages, and gives up those requested in vain. A node that has left replies to
    /// no request.
    pub fn on_time(&mut self, has_left: bool, now_us: u64, out: &mut Vec<StreamOutput>) {
        for (stream, (due_us, number)) in std::mem::take(&mut self.tails) {
            if self.has_come(stream, number) {
                continue;
            }
            match due_us <= now_us && !self.pending.contains_key(&stream) {
                true => self.request(stream, number, now_us, 1),
                false => drop(self.tails.insert(stream, (due_us.max(now_us + 1), number))),
            }
        }
        let is_late = |it: &Pending| now_us.saturating_sub(it.requested_us) >= REPLY_US;
        let late = self.pending.iter().filter(|(_, it)| is_late(it));
        let late: Vec<(Stream, u32)> = late.map(|(stream, it)| (*stream, it.attempts)).collect();
        for (stream, attempts) in late {
            match attempts < ATTEMPTS && !has_left {
                true => self.request_again(stream, attempts + 1, now_us),
                false => self.give_up(stream, out),
            }
        }
    }

    /// Handles that the node reads packets again, after `paused_us` microseconds in which no reply could reach it.
    pub fn on_resumed(&mut self, paused_us: u64, now_us: u64) {
        for pending in self.pending.values_mut() {
            pending.requested_us = (pending.requested_us + paused_us).min(now_us);
        }
        self.tails.values_mut().for_each(|(due_us, _)| *due_us += paused_us);
    }

    /// Handles that the connection to NATS is back: requests all missing messages anew.
    pub fn on_connected(&mut self, now_us: u64) {
        let streams: Vec<Stream> = self.pending.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.request_again(stream, 1, now_us));
    }

    fn request_again(&mut self, stream: Stream, attempts: u32, now_us: u64) {
        let Some(pending) = self.pending.get_mut(&stream) else { return };
        (pending.attempts, pending.requested_us) = (attempts, now_us);
        match pending.requested {
            None => self.heads_to_request.push(stream),
            Some(range) if self.last.get(stream) == UNKNOWN => self.ranges_to_request.push(range),
            Some(range) => {
                // From now on the node knows the first number of the stream.
                let range = RequestedRange { after: self.last.get(stream), since_us: 0, ..range };
                pending.requested = Some(range);
                self.ranges_to_request.push(range);
            }
        }
    }

    /// Gives up the missing messages of a stream.
    pub fn give_up(&mut self, stream: Stream, out: &mut Vec<StreamOutput>) {
        let Some(pending) = self.pending.remove(&stream) else { return };
        let mut last = self.last.get(stream);
        let requested_to = pending.requested.map_or(0, |range| range.to);
        if last == UNKNOWN {
            out.push(StreamOutput::Gap(stream, None));
        }
        for (number, payload) in pending.waiting {
            self.waiting_bytes -= payload.len();
            if last != UNKNOWN && number <= last {
                continue;
            }
            if last != UNKNOWN && number > last.saturating_add(1) {
                out.push(StreamOutput::Gap(stream, Some(number - last - 1)));
            }
            last = number;
            out.push(StreamOutput::Deliver(stream, payload));
        }
        if last != UNKNOWN && requested_to > last {
            out.push(StreamOutput::Gap(stream, Some(requested_to - last)));
            last = requested_to;
        }
        self.last.set(stream, last);
    }

    /// Handles that the node is gone: it replies to no request. Messages that its hellos named may still arrive.
    pub fn give_up_all(&mut self, out: &mut Vec<StreamOutput>) {
        let streams: Vec<Stream> = self.pending.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.give_up(stream, out));
    }

    /// Returns when something is due.
    pub fn due_us(&self) -> Option<u64> {
        let is_due = |stream: &&Stream| !self.pending.contains_key(stream);
        let tails = self.tails.iter().filter(|(stream, _)| is_due(stream));
        let tails = tails.map(|(_, (due_us, _))| *due_us);
        tails.chain(self.pending.values().map(|it| it.requested_us + REPLY_US)).min()
    }

    fn forget_pending(&mut self, stream: Stream) {
        if let Some(pending) = self.pending.remove(&stream) {
            self.waiting_bytes -= pending.waiting.values().map(Bytes::len).sum::<usize>();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a stream begin before its first message.
    fn begin(streams: &mut IncomingStreams, stream: Stream) {
        streams.on_interest_begun(stream, 0, 0);
        let times = Times { sent_us: 0, their_us: 0, now_us: 0 };
        streams.on_heads(&[stream], &[], times, &mut Vec::new());
    }

    #[test]
    fn too_many_waiting_bytes_end_the_wait_in_the_stream_that_has_the_most() {
        let (large, small) = (Stream::of("a"), Stream::of("b"));
        let mut streams = IncomingStreams::new();
        [large, small].into_iter().for_each(|stream| begin(&mut streams, stream));
        let most = Bytes::from(vec![0; WAITING_BYTES_MAX]);
        let mut out = Vec::new();
        streams.on_message(large, 2, most.clone(), (0, 0), &mut out);
        assert_eq!(out, []);
        streams.on_message(small, 3, Bytes::from_static(b"c"), (0, 0), &mut out);
        let expected = [StreamOutput::Gap(large, Some(1)), StreamOutput::Deliver(large, most)];
        assert_eq!(out, expected);
        out.clear();
        for (number, text) in [(1, "a"), (2, "b")] {
            streams.on_message(
                small,
                number,
                Bytes::from_static(text.as_bytes()),
                (0, 0),
                &mut out,
            );
        }
        let expected = ["a", "b", "c"].map(|it| StreamOutput::Deliver(small, it.into()));
        assert_eq!(out, expected);
        assert_eq!(streams.waiting_bytes, 0);
    }
}
