//! Passes the link to another process, which goes on as the same node.
//!
//! The old process [pauses](Link::pause) the thread before the shards come to rest, and [rests](Link::rest) it
//! afterwards. Then it exports [`ClusterPart`] for the last time. When the new process has everything, the thread
//! [ends](Link::abandon) without a goodbye; until then it can [go on](Link::resume).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::time::Duration;

use cluster::{Handover, MessagesFrom, Node, Stream};
use handover::{Again, Part, PartError, decode, encode};
use minicbor::{Decode, Encode};

use crate::Link;
use crate::link::{Input, NEVER};
use crate::lock::lock;
use crate::orders::{Order, PendingOrder};

/// The part's name.
const NAME: &str = "cluster";

/// Kinds of keys, besides those of the node. They never change.
const LINK: u8 = b'l';
const INTEREST: u8 = b'i';

/// Retained messages that the thread exports at a time: it takes about 100 microseconds.
const PAGE_MESSAGES_MAX: usize = 2_048;

/// How long the thread may take to export its state.
const INSPECT_WAIT: Duration = Duration::from_secs(10);

impl Link {
    /// Makes the thread read no more packets, and deliver those that have come to the broker. It goes on to send.
    pub fn pause(&self) -> PendingOrder {
        self.orders.send_with_reply(Order::Pause)
    }

    /// Makes the thread send what the shards have published, and afterwards nothing more, once it has
    /// [paused](Link::pause) and no shard publishes. It waits at most a second until NATS has all; other nodes
    /// request the rest later.
    pub fn rest(&self) -> PendingOrder {
        self.orders.send_with_reply(Order::Rest)
    }

    /// Makes the thread go on: no other process takes over.
    pub fn resume(&self) {
        self.orders.send(Order::Resume);
    }

    /// Ends the thread: another process goes on as the node.
    pub fn abandon(&self) {
        self.orders.send(Order::Abandon);
    }

    /// Returns true if the thread has ended, so that this node has lost all other nodes.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Reads the node, by its thread if that has started. Returns `None` if the thread has ended.
    pub(crate) fn inspect<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Node) -> T + Send + 'static,
    ) -> Option<T> {
        if let Some(node) = &*lock(&self.node) {
            return Some(read(node));
        }
        let (sender, receiver) = channel();
        self.orders.send(Order::Inspect(Box::new(move |node| {
            // The caller may have given up.
            let _ = sender.send(read(node));
        })));
        receiver.recv_timeout(INSPECT_WAIT).ok()
    }

    /// Returns what the link knows of each stream, besides the node.
    fn export_interest(&self) -> Vec<(Stream, InterestRecord)> {
        let state = lock(&self.state);
        let records = Stream::all().map(|stream| {
            let complete_after = self.complete_after[stream.index()].load(Relaxed);
            let complete_after = (complete_after != NEVER).then_some(complete_after);
            (stream, InterestRecord { left_us: state.interest.left_us(stream), complete_after })
        });
        records.filter(|(_, record)| *record != InterestRecord::default()).collect()
    }

    /// Restores the state of the old process, and replaces what imported connections have begun.
    fn restore(&self, coming: Coming) -> Result<(), PartError> {
        let Coming { handover, numbers, interest } = coming;
        let Some(LinkRecord { next_call }) = numbers else { return Ok(()) };
        let is_on: Vec<bool> = Stream::all().map(|stream| handover.has_interest(stream)).collect();
        let node = handover.complete(self.node_settings(), self.now_us()).map_err(damaged)?;
        let mut state = lock(&self.state);
        state.clock.observe(node.clock_newest());
        for stream in Stream::all() {
            let record = interest.get(&stream).copied().unwrap_or_default();
            state.interest.restore(stream, is_on[stream.index()], record.left_us);
            match (is_on[stream.index()], state.interest.is_on(stream)) {
                (true, _) => {
                    self.set_complete_after(stream, record.complete_after.unwrap_or(NEVER));
                }
                // A new member has come that the old process did not know.
                (false, true) => {}
                (false, false) => self.set_complete_after(stream, NEVER),
            }
        }
        let mut inputs = std::mem::take(&mut state.inputs);
        inputs.retain(|input| match input {
            Input::InterestBegun(stream, _) => {
                !is_on[stream.index()] && state.interest.is_on(*stream)
            }
            Input::Publish(..)
            | Input::PassToGroup(_)
            | Input::Packet(..)
            | Input::ClientConnected(..) => true,
        });
        state.inputs = inputs;
        drop(state);
        self.calls.go_on_from(next_call);
        *lock(&self.node) = Some(node);
        Ok(())
    }
}

/// Numbers of the link.
#[derive(Clone, Copy, Debug, Encode, Decode)]
#[cbor(map)]
struct LinkRecord {
    /// The id of the next call to another node. A late reply to a call of the old process must not match a new call.
    #[n(0)]
    next_call: u64,
}

/// The link's state of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
#[cbor(map)]
struct InterestRecord {
    /// When a topic of it lost its last member, in microseconds of the link's clock.
    #[n(0)]
    left_us: u64,
    /// The broker's offset after which the stream is complete.
    #[n(1)]
    complete_after: Option<u64>,
}

/// State received from another process.
#[derive(Default)]
struct Coming {
    handover: Handover,
    numbers: Option<LinkRecord>,
    interest: BTreeMap<Stream, InterestRecord>,
}

/// The link as a part of a handover; empty for a node without a cluster.
pub struct ClusterPart {
    link: Option<Arc<Link>>,
    coming: Mutex<Coming>,
}

impl ClusterPart {
    /// Makes the part of this link; `None` for a node without a cluster.
    pub fn new(link: Option<Arc<Link>>) -> Self {
        ClusterPart { link, coming: Mutex::default() }
    }
}

fn damaged(what: impl ToString) -> PartError {
    PartError::new(NAME, what)
}

fn decode_stream(key: &[u8]) -> Result<Stream, PartError> {
    let number = key.try_into().map(u16::from_be_bytes).ok();
    number.and_then(Stream::from_number).ok_or_else(|| damaged("a key does not name a stream"))
}

impl Part for ClusterPart {
    fn name(&self) -> &'static str {
        NAME
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        handover::export_all(self, each);
    }

    fn export_again(&self, each: &mut Again<'_>) {
        let Some(link) = &self.link else { return };
        // The other process rejects this record without the others.
        each(&[LINK], Some(&encode(LinkRecord { next_call: link.calls.next_id() })));
        for (key, value) in link.inspect(Node::export).unwrap_or_default() {
            each(&key, Some(&value));
        }
        for (stream, record) in link.export_interest() {
            let key = [&[INTEREST][..], &stream.number().to_be_bytes()].concat();
            each(&key, Some(&encode(record)));
        }
        let mut from = Some(MessagesFrom::default());
        while let Some(page) = from.take() {
            let page = link.inspect(move |node| node.export_messages(page, PAGE_MESSAGES_MAX));
            let Some((messages, next)) = page else { return };
            for message in messages {
                let key = message.key();
                if !each(&key, None) {
                    each(&key, Some(&message.value()));
                }
            }
            from = next;
        }
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        if self.link.is_none() {
            return Ok(());
        }
        let mut coming = lock(&self.coming);
        match key.split_first() {
            Some((&LINK, [])) => coming.numbers = value.map(decode).transpose().map_err(damaged)?,
            Some((&INTEREST, key)) => {
                let stream = decode_stream(key)?;
                match value.map(decode).transpose().map_err(damaged)? {
                    Some(record) => _ = coming.interest.insert(stream, record),
                    None => _ = coming.interest.remove(&stream),
                }
            }
            _ => coming.handover.import(key, value).map_err(damaged)?,
        }
        Ok(())
    }

    fn complete(&self) -> Result<(), PartError> {
        let Some(link) = &self.link else { return Ok(()) };
        let coming = std::mem::take(&mut *lock(&self.coming));
        link.restore(coming)
    }
}

#[cfg(test)]
mod tests {
    use broker::Relay as _;
    use handover::Sent;
    use handover::testing::{pass, pass_all};

    use super::*;
    use crate::{Login, Settings};

    fn link() -> Arc<Link> {
        let settings = Settings { linger_us: 3_600_000_000, ..Settings::for_tests() };
        Link::new(settings, Login::Anonymous, std::time::Instant::now())
    }

    fn part(link: &Arc<Link>) -> ClusterPart {
        ClusterPart::new(Some(link.clone()))
    }

    fn node(link: &Link, change: impl FnOnce(&mut Node, u64)) {
        let now_us = link.now_us();
        for input in link.take_inputs() {
            if let Input::InterestBegun(stream, begun_us) = input {
                lock(&link.node).as_mut().unwrap().on_interest_begun(stream, begun_us, now_us);
            }
        }
        change(lock(&link.node).as_mut().unwrap(), now_us);
    }

    #[test]
    fn interest_and_its_offsets_are_those_of_the_process_before() {
        let (old, new) = (link(), link());
        old.enter("a", &|| 5);
        old.enter("b", &|| 6);
        old.leave("b");
        node(&old, |_, _| {});
        let (mut sent, taker) = (Sent::new(), part(&new));
        // Members come while the old process serves, and one leaves again.
        new.enter("a", &|| 70);
        new.enter("gone", &|| 71);
        pass(&part(&old), &taker, &mut sent);
        new.leave("gone");
        pass_all(&part(&old), &taker, &mut sent);
        assert_eq!(["a", "b"].map(|topic| new.complete_after(topic)), [5, 6]);
        assert_eq!(new.complete_after("gone"), NEVER);
        let streams = |link: &Link| link.inspect(Node::streams).unwrap();
        assert_eq!(streams(&new), streams(&old));
        node(&new, |_, _| {});
        assert_eq!(streams(&new), streams(&old), "no interest begins once more");
        // A stream without members lingers.
        new.enter("b", &|| 80);
        assert_eq!(new.complete_after("b"), 6);
        assert!(new.take_inputs().is_empty());
    }

    #[test]
    fn a_message_is_passed_on_once() {
        let (old, new) = (link(), link());
        let publish = |count: usize| {
            node(&old, |node, now_us| {
                let text = |out: &mut Vec<u8>| out.extend(b"text");
                (0..count).for_each(|_| node.publish(Stream::of("a"), now_us, text));
            });
        };
        let (mut sent, taker) = (Sent::new(), part(&new));
        publish(3 * PAGE_MESSAGES_MAX);
        let first = pass(&part(&old), &taker, &mut sent);
        assert!(first > 3 * PAGE_MESSAGES_MAX);
        publish(2);
        // The two messages, and the stream's record.
        assert_eq!(pass_all(&part(&old), &taker, &mut sent), 3);
        let bytes = |link: &Link| link.inspect(Node::replay_bytes).unwrap();
        assert_eq!(bytes(&new), bytes(&old));
    }

    #[test]
    fn calls_of_the_process_before_have_other_ids() {
        let (old, new) = (link(), link());
        let _call = old.call(model::NodeId(2), "GET", "/", b"");
        pass_all(&part(&old), &part(&new), &mut Sent::new());
        assert_eq!(new.calls.next_id(), 1);
    }

    #[test]
    fn a_thread_that_has_ended_passes_nothing_on_that_can_be_taken() {
        let (old, new) = (link(), link());
        lock(&old.node).take();
        old.orders.take_receiver();
        let _ = old.pause().is_done();
        assert!(old.pause().is_done() && old.rest().is_done());
        let taker = part(&new);
        pass(&part(&old), &taker, &mut Sent::new());
        assert!(taker.complete().is_err());
        // A node without a cluster exports nothing, and takes nothing.
        assert_eq!(pass_all(&ClusterPart::new(None), &part(&new), &mut Sent::new()), 0);
        assert!(pass_all(&part(&link()), &ClusterPart::new(None), &mut Sent::new()) > 0);
    }

    #[test]
    fn damaged_records_are_reported() {
        let part = part(&link());
        for (key, value) in
            [(&b"l"[..], &b"\xff"[..]), (b"i\x00", b"\xa1"), (b"i\xff\xff", b"\xa0")]
        {
            assert!(part.import(key, Some(value)).is_err());
        }
        assert!(part.import(b"n", Some(b"?")).is_err());
        assert!(part.import(b"zlater", Some(b"?")).is_ok() && part.import(b"", None).is_ok());
    }
}
