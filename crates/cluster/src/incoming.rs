//! The streams of one other node: what has come, and what is missing.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::stream::PerStream;
use crate::{Head, Replayed, Stream, Wanted};

/// How long the node waits for a reply before it requests once more, in microseconds.
pub(crate) const REPLY_US: u64 = 500_000;

/// How often it requests the same, before the messages count as lost: for 8 seconds, in which a node that has lost its
/// connection comes back.
const ATTEMPTS: u32 = 16;

/// After a hello that names a newer number than has come: the message may be under way on its own subject.
const TAIL_US: u64 = 300_000;

/// A reply that took longer does not say well enough what had been published when interest began, in microseconds.
const PROMPT_US: u64 = 100_000;

/// How many such replies the node does not take.
const SLOW_REPLIES: u32 = 5;

/// Replies that bring nothing before the messages count as lost: NATS does not take some, as those that are too large.
const VAIN_REPLIES: u32 = 3;

/// Bytes of messages that may wait for those before them, in the streams of one node.
const WAITING_BYTES_MAX: usize = 8 << 20;

/// The number before all others: of this stream nothing has come yet.
const UNKNOWN: u64 = u64::MAX;

/// What comes of an input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// A message to deliver.
    Deliver(Stream, Bytes),
    /// Messages are lost.
    Gap(Stream, Option<u64>),
}

/// When a request was sent and its reply came, and what the other node's clock said in between; in microseconds.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub sent_us: u64,
    pub their_us: u64,
    pub now_us: u64,
}

/// The streams of one other node.
pub(crate) struct Streams {
    /// The newest number of each stream that has been delivered, or is lost.
    last: PerStream<u64>,
    /// Streams of which something is missing.
    pending: BTreeMap<Stream, Pending>,
    waiting_bytes: usize,
    /// Streams whose newest numbers are to be requested, and what is missing.
    pub heads_wanted: Vec<Stream>,
    pub wanted: Vec<Wanted>,
    /// When to verify that a number has come which a hello has named.
    tails: BTreeMap<Stream, (u64, u64)>,
    pub duplicates: u64,
}

/// A stream of which something is missing.
struct Pending {
    /// When interest began, while it is not known yet at which number.
    began_us: Option<u64>,
    /// What was requested last, once the number is known up to which messages are wanted.
    wanted: Option<Wanted>,
    /// When it was requested.
    requested_us: u64,
    attempts: u32,
    /// Replies that took too long, or brought nothing although the node has sent it.
    vain_replies: u32,
    /// Messages that came behind what is missing.
    waiting: BTreeMap<u64, Bytes>,
}

impl Streams {
    pub fn new() -> Self {
        Streams {
            last: PerStream::new(UNKNOWN),
            pending: BTreeMap::new(),
            waiting_bytes: 0,
            heads_wanted: Vec::new(),
            wanted: Vec::new(),
            tails: BTreeMap::new(),
            duplicates: 0,
        }
    }

    /// Interest in a stream has begun at this time.
    pub fn begin(&mut self, stream: Stream, began_us: u64, now_us: u64) {
        if self.last.get(stream) != UNKNOWN || self.pending.contains_key(&stream) {
            return;
        }
        let pending = Pending {
            began_us: Some(began_us),
            wanted: None,
            requested_us: now_us,
            attempts: 1,
            vain_replies: 0,
            waiting: BTreeMap::new(),
        };
        self.pending.insert(stream, pending);
        self.heads_wanted.push(stream);
    }

    /// Interest in a stream has ended.
    pub fn end(&mut self, stream: Stream) {
        self.last.set(stream, UNKNOWN);
        self.forget_pending(stream);
    }

    /// A message has come.
    pub fn on_message(
        &mut self,
        stream: Stream,
        number: u64,
        payload: Bytes,
        (began_us, now_us): (u64, u64),
        out: &mut Vec<Incoming>,
    ) {
        self.begin(stream, began_us, now_us);
        let last = self.last.get(stream);
        if last != UNKNOWN && number <= last {
            self.duplicates += 1;
            return;
        }
        if last != UNKNOWN && Some(number) == last.checked_add(1) {
            self.last.set(stream, number);
            out.push(Incoming::Deliver(stream, payload));
            if self.pending.contains_key(&stream) {
                self.deliver_waiting(stream, now_us, out);
            }
            return;
        }
        self.wait(stream, number, payload, now_us);
        if self.waiting_bytes > WAITING_BYTES_MAX {
            self.give_up(stream, out);
        }
    }

    /// A message waits for those before it.
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

    /// Requests what is missing up to a number.
    fn request(&mut self, stream: Stream, to: u64, now_us: u64, attempts: u32) {
        let after = self.last.get(stream);
        let wanted = Wanted { stream: stream.number(), after, to, since_us: 0 };
        self.wanted.push(wanted);
        let pending = self.pending.entry(stream).or_insert_with(|| Pending {
            began_us: None,
            wanted: None,
            requested_us: now_us,
            attempts,
            vain_replies: 0,
            waiting: BTreeMap::new(),
        });
        (pending.wanted, pending.requested_us, pending.attempts) = (Some(wanted), now_us, attempts);
    }

    /// The node has said which numbers are the newest of these streams. Of those that are not in `heads` nothing was
    /// sent.
    pub fn on_heads(
        &mut self,
        streams: &[Stream],
        heads: &[Head],
        Times { sent_us, their_us, now_us }: Times,
        out: &mut Vec<Incoming>,
    ) {
        let is_prompt = now_us.saturating_sub(sent_us) < PROMPT_US;
        for stream in streams.iter().copied() {
            let head = heads.iter().find(|head| head.stream == stream.number());
            let head = head.copied().unwrap_or_default();
            let pending = self.pending.get_mut(&stream);
            let wanted = pending.as_ref().and_then(|pending| pending.wanted);
            let wanted_to = wanted.map_or(0, |wanted| wanted.to);
            match (self.last.get(stream), pending, wanted) {
                (UNKNOWN, None, _) => {}
                // A newer request is under way.
                (UNKNOWN, Some(pending), None) if sent_us < pending.requested_us => {}
                (UNKNOWN, Some(pending), None)
                    if !is_prompt && pending.vain_replies < SLOW_REPLIES =>
                {
                    pending.vain_replies += 1;
                    let attempts = pending.attempts;
                    self.request_again(stream, attempts, now_us);
                }
                (UNKNOWN, Some(pending), None) => {
                    let age_us = now_us.saturating_sub(pending.began_us.unwrap_or(now_us));
                    self.place(stream, head, their_us.saturating_sub(age_us), now_us, out);
                }
                (UNKNOWN, Some(pending), Some(wanted)) if head.number > wanted.to => {
                    let wanted = Wanted { to: head.number, ..wanted };
                    self.wanted.push(wanted);
                    (pending.wanted, pending.requested_us) = (Some(wanted), now_us);
                }
                (last, ..) if last != UNKNOWN && head.number > last.max(wanted_to) => {
                    self.request(stream, head.number, now_us, 1);
                }
                _ => {}
            }
        }
    }

    /// Finds the place at which a stream begins: what was published since the time is wanted.
    fn place(
        &mut self,
        stream: Stream,
        head: Head,
        since_us: u64,
        now_us: u64,
        out: &mut Vec<Incoming>,
    ) {
        if head.number == 0 || head.at_us < since_us {
            self.last.set(stream, head.number);
            return self.deliver_waiting(stream, now_us, out);
        }
        // 0 stands for a request that knows where it begins.
        let since_us = since_us.max(1);
        let wanted = Wanted { stream: stream.number(), after: 0, to: head.number, since_us };
        self.wanted.push(wanted);
        if let Some(pending) = self.pending.get_mut(&stream) {
            (pending.wanted, pending.requested_us) = (Some(wanted), now_us);
            pending.vain_replies = 0;
        }
    }

    /// The node has sent what was missing, as far as it has it.
    pub fn on_replayed(&mut self, replayed: &Replayed, now_us: u64, out: &mut Vec<Incoming>) {
        let Some(stream) = Stream::from_number(replayed.stream) else { return };
        let Some(pending) = self.pending.get_mut(&stream) else { return };
        let Some(wanted) = pending.wanted else { return };
        // A reply to an earlier request of the same stream.
        if replayed.to > wanted.to || replayed.first == 0 {
            return;
        }
        let (last, before) = (self.last.get(stream), replayed.first - 1);
        if last == UNKNOWN {
            // What came by the subscription was published later than interest began.
            let first = pending.waiting.keys().next().copied().unwrap_or(u64::MAX);
            self.last.set(stream, before.min(first.saturating_sub(1)));
            pending.began_us = None;
            if !replayed.is_whole {
                out.push(Incoming::Gap(stream, None));
            }
        } else if before > last && !replayed.is_whole {
            out.push(Incoming::Gap(stream, Some(before - last)));
            self.last.set(stream, before);
        }
        self.deliver_waiting(stream, now_us, out);
        self.request_rest(stream, replayed, &wanted, now_us, out);
    }

    /// Requests what a reply did not bring.
    fn request_rest(
        &mut self,
        stream: Stream,
        replayed: &Replayed,
        wanted: &Wanted,
        now_us: u64,
        out: &mut Vec<Incoming>,
    ) {
        let last = self.last.get(stream);
        let Some(pending) = self.pending.get_mut(&stream) else { return };
        if replayed.to <= last {
            if replayed.to < wanted.to {
                // The rest did not fit into the reply.
                self.request_again(stream, 1, now_us);
            }
            return;
        }
        let is_vain = last == wanted.after;
        pending.vain_replies = if is_vain { pending.vain_replies + 1 } else { 0 };
        if pending.vain_replies < VAIN_REPLIES {
            let attempts = pending.attempts;
            return self.request_again(stream, attempts, now_us);
        }
        pending.vain_replies = 0;
        let next = pending.waiting.first_key_value().map(|(number, _)| number - 1);
        let to = next.unwrap_or(replayed.to).min(replayed.to);
        out.push(Incoming::Gap(stream, Some(to.saturating_sub(last))));
        self.last.set(stream, to);
        self.deliver_waiting(stream, now_us, out);
    }

    /// Delivers what waits and has nothing missing before it. Requests what is missing still.
    fn deliver_waiting(&mut self, stream: Stream, now_us: u64, out: &mut Vec<Incoming>) {
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
                out.push(Incoming::Deliver(stream, payload));
            } else {
                self.duplicates += 1;
            }
        }
        self.last.set(stream, last);
        let wanted_to = pending.wanted.map_or(0, |wanted| wanted.to);
        let attempts = if is_new { 1 } else { pending.attempts };
        match pending.waiting.first_key_value().map(|(number, _)| number - 1) {
            // The number up to which something is missing is beyond what was requested.
            Some(to) if wanted_to <= last => self.request(stream, to, now_us, attempts),
            Some(_) => {}
            None if wanted_to <= last => self.forget_pending(stream),
            None => {}
        }
        if let Some(pending) = self.pending.get_mut(&stream) {
            pending.attempts = attempts;
            pending.began_us = None;
        }
    }

    /// A hello names the newest numbers of streams.
    pub fn on_tails(&mut self, heads: &[(u16, u64)], now_us: u64) {
        for (stream, number) in heads {
            let Some(stream) = Stream::from_number(*stream) else { continue };
            if !self.has_come(stream, *number) {
                let tail = self.tails.entry(stream).or_default();
                *tail = (now_us + TAIL_US, tail.1.max(*number));
            }
        }
    }

    /// Whether nothing is to be expected of a stream up to this number.
    fn has_come(&self, stream: Stream, number: u64) -> bool {
        match self.last.get(stream) {
            UNKNOWN => !self.pending.contains_key(&stream),
            last => last >= number,
        }
    }

    /// Time has passed: requests what has not come, and gives up what was requested in vain.
    pub fn on_time(&mut self, now_us: u64, out: &mut Vec<Incoming>) {
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
            match attempts < ATTEMPTS {
                true => self.request_again(stream, attempts + 1, now_us),
                false => self.give_up(stream, out),
            }
        }
    }

    /// The connection to NATS is back: all that is missing is requested anew.
    pub fn on_connected(&mut self, now_us: u64) {
        let streams: Vec<Stream> = self.pending.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.request_again(stream, 1, now_us));
    }

    fn request_again(&mut self, stream: Stream, attempts: u32, now_us: u64) {
        let Some(pending) = self.pending.get_mut(&stream) else { return };
        (pending.attempts, pending.requested_us) = (attempts, now_us);
        match pending.wanted {
            None => self.heads_wanted.push(stream),
            Some(wanted) if self.last.get(stream) == UNKNOWN => self.wanted.push(wanted),
            Some(wanted) => {
                // From now on the place is known.
                let wanted = Wanted { after: self.last.get(stream), since_us: 0, ..wanted };
                pending.wanted = Some(wanted);
                self.wanted.push(wanted);
            }
        }
    }

    /// What is missing in a stream does not come.
    pub fn give_up(&mut self, stream: Stream, out: &mut Vec<Incoming>) {
        let Some(pending) = self.pending.remove(&stream) else { return };
        let mut last = self.last.get(stream);
        let wanted_to = pending.wanted.map_or(0, |wanted| wanted.to);
        if last == UNKNOWN {
            out.push(Incoming::Gap(stream, None));
        }
        for (number, payload) in pending.waiting {
            self.waiting_bytes -= payload.len();
            if last != UNKNOWN && number <= last {
                continue;
            }
            if last != UNKNOWN && number > last.saturating_add(1) {
                out.push(Incoming::Gap(stream, Some(number - last - 1)));
            }
            last = number;
            out.push(Incoming::Deliver(stream, payload));
        }
        if last != UNKNOWN && wanted_to > last {
            out.push(Incoming::Gap(stream, Some(wanted_to - last)));
            last = wanted_to;
        }
        self.last.set(stream, last);
    }

    /// The node is gone: what is missing will not come.
    pub fn give_up_all(&mut self, out: &mut Vec<Incoming>) {
        let streams: Vec<Stream> = self.pending.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.give_up(stream, out));
        self.tails.clear();
    }

    /// When something is due.
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
