//! A client as the MQTT standards want it: what it has sent and received outlives its connections.

mod packets;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::rc::Rc;

use model::Qos;
use model::filter::matches;
use protocol::mqtt::client::{self, ConnectParts, SubscribeParts, WillParts};
use protocol::mqtt::write::PublishParts;
use protocol::mqtt::{Packet, Side, Value, Version, WriteError, id, read};
use random::Random;

use crate::testing::ClientEnd;

/// A message that a client publishes, or leaves as its will.
#[derive(Clone)]
pub(super) struct Message {
    pub topic: String,
    pub qos: Qos,
    pub payload: String,
    pub retain: bool,
    /// Expiry in seconds, with MQTT 5.
    pub expiry_s: Option<u32>,
}

/// When a message's publication was complete.
#[derive(Clone, Copy)]
pub(super) struct End {
    /// The number of messages published before.
    pub at: usize,
    /// From this time on, in microseconds, no client gets it for the first time.
    expires_us: u64,
}

/// When publications were complete, by payload.
pub(super) type Ends = Rc<RefCell<HashMap<String, End>>>;

/// A message whose publication is not complete.
struct Publishing {
    id: u16,
    message: Message,
    /// PUBREC has come.
    released: bool,
}

/// A client, with its side of the session.
pub(super) struct Client {
    pub name: usize,
    pub version: Version,
    /// Its filters, with their QoS.
    pub filters: Vec<(String, Qos)>,
    /// The session outlives its connections.
    pub persistent: bool,
    end: Option<ClientEnd>,
    input: Vec<u8>,
    connected: bool,
    subscribed: bool,
    /// The server has confirmed the subscriptions: from now on the client must get everything.
    pub ready: bool,
    next_id: u16,
    /// The packet identifier of the last SUBSCRIBE or UNSUBSCRIBE.
    last_packet_id: u16,
    publishing: VecDeque<Publishing>,
    /// QoS 2 messages that have come and are not released.
    received: BTreeSet<u16>,
    /// Payloads that the application got, in order, each with its topic.
    pub got: Vec<(String, String)>,
    /// Packets still to be sent: the client reads before it replies.
    replies: VecDeque<Vec<u8>>,
    /// The complete publications of all clients.
    pub done: Ends,
    /// Messages from before its subscription, which may be on their way then. After so many connects none may come.
    before: Option<(HashSet<String>, usize)>,
    /// How many messages were published when its subscriptions ended.
    unsubscribed: Option<usize>,
    /// The number of its connects.
    pub connects: usize,
    /// The session ends with this connection.
    ends: bool,
    /// The client begins anew until it is accepted, because its session has ended with a connection.
    anew: bool,
    /// How many messages were published so far, and the time in microseconds.
    pub now: (usize, u64),
    /// The client need not get earlier messages: its session has ended, or its subscriptions.
    pub forgotten: usize,
    /// When this connection began.
    since_us: u64,
    /// Seconds that the session outlives this connection; `None` is for ever.
    expiry_s: Option<u32>,
    /// The session must exist until then.
    stays_us: u64,
    /// The session's expiry in seconds after an earlier connection.
    was_short: Option<u32>,
    /// The will of this connection.
    will: Option<String>,
    /// The disk has the session and the will for certain.
    is_stored: bool,
    /// The session has begun anew, and the disk may not know that yet.
    has_begun: bool,
    /// The receive maximum, and the packet identifiers that the client has not confirmed on this connection.
    receive_max: u16,
    unconfirmed: BTreeSet<u16>,
    /// Topics by the aliases that the server gave them on this connection, and how many it may give.
    aliases: HashMap<u32, String>,
    aliases_max: u32,
}

/// The terms of a connection.
pub(super) struct Terms {
    pub receive_max: u16,
    pub aliases_max: u32,
    /// A persistent session ends with this connection.
    pub ends: bool,
    /// Otherwise the session's expiry in seconds; `None` is for ever.
    pub expiry_s: Option<u32>,
    /// The message to publish when the connection is lost.
    pub will: Option<Message>,
}

/// The prefix of filters that the members of the group share.
pub(super) const SHARED: &str = "$share/group/";

/// The expiry of a session that never ends, in seconds.
pub(super) const FOR_EVER_S: u32 = 1_000_000;

/// SUBSCRIBE and UNSUBSCRIBE have packet identifiers above this one.
const FIRST_PACKET_ID: u16 = 40_000;

/// DISCONNECT of a client that wants no will.
const DISCONNECT: [u8; 2] = [0xe0, 0];

/// DISCONNECT of an MQTT 5.0 client that wants no will and ends its session: with a session expiry of 0.
const DISCONNECT_WITH_SESSION: [u8; 9] = [0xe0, 7, 0, 5, id::SESSION_EXPIRY_INTERVAL, 0, 0, 0, 0];

/// Returns the kind of a message: `m` is any, `r` is retained, `x` expires soon, and `w` is a will.
pub(super) fn kind(payload: &str) -> char {
    payload.chars().next().unwrap()
}

/// Returns the message's number in the order of all.
pub(super) fn number(payload: &str) -> usize {
    payload[1..].parse().unwrap()
}

/// Prints what happens, with `SHARD_TRACE`.
pub(super) fn trace(what: impl FnOnce() -> String) {
    if std::env::var_os("SHARD_TRACE").is_some() {
        eprintln!("{}", what());
    }
}

/// Returns the bytes of a packet.
pub(super) fn packet(write: impl FnOnce(&mut Vec<u8>) -> Result<(), WriteError>) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out).unwrap();
    out
}

impl Client {
    pub fn new(
        name: usize,
        version: Version,
        filters: Vec<(String, Qos)>,
        persistent: bool,
        done: Ends,
    ) -> Self {
        Client {
            name,
            version,
            filters,
            persistent,
            end: None,
            input: Vec::new(),
            connected: false,
            subscribed: false,
            ready: false,
            next_id: 0,
            last_packet_id: FIRST_PACKET_ID,
            publishing: VecDeque::new(),
            received: BTreeSet::new(),
            got: Vec::new(),
            replies: VecDeque::new(),
            done,
            before: None,
            unsubscribed: None,
            connects: 0,
            ends: false,
            anew: false,
            now: (0, 0),
            forgotten: 0,
            since_us: 0,
            expiry_s: None,
            stays_us: u64::MAX,
            was_short: None,
            will: None,
            is_stored: false,
            has_begun: false,
            receive_max: u16::MAX,
            unconfirmed: BTreeSet::new(),
            aliases: HashMap::new(),
            aliases_max: 0,
        }
    }

    pub fn is_open(&self) -> bool {
        self.end.is_some()
    }

    /// Returns true if it shares its filter with others.
    pub fn is_member(&self) -> bool {
        self.filters.iter().any(|(filter, _)| filter.starts_with(SHARED))
    }

    /// Returns the QoS of its subscriptions to a topic, if it has any.
    pub fn wants(&self, topic: &str) -> Option<Qos> {
        let reach = |filter: &str| filter.strip_prefix(SHARED).unwrap_or(filter).to_string();
        let matching = self.filters.iter().filter(|(filter, _)| matches(&reach(filter), topic));
        matching.map(|(_, qos)| *qos).max()
    }

    /// Returns true if the server has accepted it.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Returns true if nothing of its own is under way.
    pub fn is_done(&self) -> bool {
        self.publishing.is_empty() && self.replies.is_empty() && self.ready
    }

    pub fn connect(&mut self, end: ClientEnd, terms: Terms) {
        self.lost();
        let is_v5 = self.version == Version::V5;
        self.anew |= self.ends;
        self.ends = !self.persistent || (is_v5 && terms.ends && !self.anew);
        if is_v5 {
            (self.receive_max, self.aliases_max) = (terms.receive_max, terms.aliases_max);
        }
        self.expiry_s = terms.expiry_s.filter(|_| is_v5);
        let seconds = if self.ends { 0 } else { self.expiry_s.unwrap_or(FOR_EVER_S) };
        let properties = [
            (id::SESSION_EXPIRY_INTERVAL, Value::Number(seconds)),
            (id::RECEIVE_MAXIMUM, Value::Number(self.receive_max.into())),
            (id::TOPIC_ALIAS_MAXIMUM, Value::Number(self.aliases_max)),
        ];
        let parts = ConnectParts {
            version: self.version,
            is_3_1: false,
            clean: !self.persistent || self.anew,
            keep_alive_s: 0,
            properties: if self.version == Version::V5 { &properties } else { &[] },
            client: &format!("client-{}", self.name),
            will: terms.will.as_ref().map(|it| WillParts {
                qos: it.qos,
                retain: it.retain,
                properties: &[],
                topic: &it.topic,
                payload: it.payload.as_bytes(),
            }),
            user: None,
            password: None,
        };
        self.trace(|| format!("connects: clean {}, for {seconds} s", parts.clean));
        end.send(&packet(|out| client::connect(&parts, out)));
        self.end = Some(end);
        self.will = terms.will.map(|it| it.payload);
        self.since_us = self.now.1;
        self.connects += 1;
        if self.anew {
            self.has_begun = true;
            self.forget();
        }
    }

    /// Breaks the connection at any byte.
    pub fn cut(&mut self, random: &mut Random) {
        let bytes = self.end.as_ref().map_or(0, |end| random.below(end.unread() + 1));
        self.leave(|end| end.cut(bytes));
    }

    /// Ends the connection.
    fn lost(&mut self) {
        self.leave(drop);
    }

    /// Ends the connection and drops the will; also the session, if it can say so.
    pub fn goodbye(&mut self, ends: bool) {
        self.will = None;
        if ends && self.version == Version::V5 && self.connected {
            self.ends = true;
            self.send(DISCONNECT_WITH_SESSION.to_vec());
        } else {
            self.send(DISCONNECT.to_vec());
        }
        self.leave(drop);
    }

    fn leave(&mut self, close: impl FnOnce(ClientEnd)) {
        let Some(end) = self.end.take() else { return };
        self.trace(|| format!("leaves, with {} bytes on their way", end.unread()));
        self.was_short = self.was_short.or(self.expiry_s);
        let stays_us = match self.expiry_s {
            None => u64::MAX,
            // The client does not know when the connection ended.
            Some(_) if end.is_ended() => 0,
            // The server counts in whole seconds.
            Some(seconds) => self.now.1 + u64::from(seconds - 1) * 1_000_000,
        };
        // The session may have expired, and another one may have begun without the client's knowledge.
        self.anew |= !self.connected && self.now.1 >= self.stays_us;
        // Only a client that was accepted knows which of its connections the server saw last.
        self.stays_us = if self.connected { stays_us } else { self.stays_us.min(stays_us) };
        if let Some(will) = self.will.take().filter(|_| self.connected) {
            self.end_of(will, None);
        }
        close(end);
        self.reset();
    }

    /// The server dies. What it has sent may still come.
    pub fn survive(&mut self) {
        let will = self.will.take().filter(|_| self.is_stored);
        // The previous session may exist again.
        self.anew |= self.has_begun;
        // Messages that were on their way then may come again.
        self.before.iter_mut().for_each(|(_, connects)| *connects = usize::MAX);
        let Some(end) = &self.end else {
            // The disk may have an earlier expiry of the session.
            self.stays_us = if self.was_short.is_some() { 0 } else { self.stays_us };
            return;
        };
        if !end.is_ended()
            && let Some(will) = will
        {
            self.end_of(will, None);
        }
        if !self.is_stored {
            // The disk may have an earlier one.
            self.expiry_s = self.expiry_s.or(self.was_short);
        }
        if self.expiry_s.is_some() {
            self.stays_us = 0;
        }
    }

    /// Notes that a message's publication is complete.
    fn end_of(&self, payload: String, expiry_s: Option<u32>) {
        let expires_us = expiry_s.map_or(u64::MAX, |seconds| {
            // Engines count in whole seconds.
            self.now.1 + u64::from(seconds + 1) * 1_000_000
        });
        self.done.borrow_mut().insert(payload, End { at: self.now.0, expires_us });
    }

    fn reset(&mut self) {
        self.is_stored = false;
        self.input.clear();
        self.replies.clear();
        self.unconfirmed.clear();
        self.aliases.clear();
        self.connected = false;
        self.subscribed = false;
        if !self.persistent {
            self.forget();
        }
    }

    /// Forgets the session.
    fn forget(&mut self) {
        self.ready = false;
        self.received.clear();
        (self.unsubscribed, self.was_short) = (None, None);
        (self.before, self.forgotten) = (None, self.now.0);
    }

    /// Checks whether its session existed all the time since so many messages were published.
    pub fn was_there_since(&self, published: usize) -> bool {
        self.persistent && self.forgotten <= published
    }

    fn id(&mut self) -> u16 {
        loop {
            self.next_id = self.next_id.checked_add(1).unwrap_or(1);
            if self.publishing.iter().all(|it| it.id != self.next_id) {
                return self.next_id;
            }
        }
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        trace(|| format!("client {} {}", self.name, what()));
    }

    fn send(&mut self, bytes: Vec<u8>) {
        self.trace(|| {
            let packet = read(&bytes, Some(self.version), Side::Client, usize::MAX);
            format!("sends {:?}", packet.map(|packet| packet.map(|(packet, _)| packet)))
        });
        if let Some(end) = &self.end {
            end.send(&bytes);
        }
    }

    fn publish_packet(&self, Publishing { id, message, .. }: &Publishing, dup: bool) -> Vec<u8> {
        let expiry = message.expiry_s.map(|it| (id::MESSAGE_EXPIRY_INTERVAL, Value::Number(it)));
        let parts = PublishParts {
            version: self.version,
            dup,
            qos: message.qos,
            retain: message.retain,
            topic: &message.topic,
            id: *id,
            properties: expiry.into_iter(),
            payload: message.payload.as_bytes(),
        };
        packet(|out| parts.write(out))
    }

    /// Checks whether it may publish: at most four messages are under way.
    pub fn may_publish(&self) -> bool {
        self.connected && self.publishing.len() < 4
    }

    pub fn publish(&mut self, message: Message) {
        let is_confirmed = message.qos.is_confirmed();
        let id = if is_confirmed { self.id() } else { 0 };
        let it = Publishing { id, message, released: false };
        let bytes = self.publish_packet(&it, false);
        if is_confirmed {
            self.publishing.push_back(it);
        }
        self.send(bytes);
    }

    /// Sends the next pending packet.
    pub fn reply(&mut self) -> bool {
        let Some(bytes) = self.replies.pop_front() else { return false };
        if let Ok(Some((Packet::Puback(it) | Packet::Pubcomp(it), _))) =
            read(&bytes, Some(self.version), Side::Client, usize::MAX)
        {
            self.unconfirmed.remove(&it.id);
        }
        self.send(bytes);
        true
    }

    /// Returns true if it knows that it has no subscription.
    pub fn is_unsubscribed(&self) -> bool {
        self.unsubscribed.is_some()
    }

    /// Subscribes again to its filters.
    pub fn subscribe_again(&mut self) {
        if self.connected && (self.ready || self.unsubscribed.is_some()) {
            self.subscribe();
        }
    }

    /// Unsubscribes from its filters.
    pub fn unsubscribe(&mut self) {
        if !self.connected || !self.ready {
            return;
        }
        (self.ready, self.forgotten) = (false, self.now.0);
        let filters: Vec<&str> = self.filters.iter().map(|(filter, _)| filter.as_str()).collect();
        self.last_packet_id += 1;
        let (version, id) = (self.version, self.last_packet_id);
        let bytes = packet(|out| client::unsubscribe(version, id, &[], &filters, out));
        self.send(bytes);
    }

    fn subscribe(&mut self) {
        self.subscribed = true;
        let from = self.unsubscribed.take().unwrap_or(0);
        // The reply to an earlier SUBSCRIBE of this session may be lost.
        let (done, connects) = (&self.done, self.connects);
        let is_before =
            |payload: &&String| matches!(kind(payload), 'm' | 'x') && number(payload) >= from;
        let before = || done.borrow().keys().filter(is_before).cloned().collect();
        self.before.get_or_insert_with(|| (before(), connects));
        let all: Vec<SubscribeParts<'_>> = self
            .filters
            .iter()
            .map(|(filter, qos)| SubscribeParts {
                filter,
                qos: *qos,
                no_local: false,
                retain_as_published: false,
                retain_handling: 0,
            })
            .collect();
        self.last_packet_id += 1;
        let (version, id) = (self.version, self.last_packet_id);
        let bytes = packet(|out| client::subscribe(version, id, &[], &all, out));
        self.send(bytes);
    }

    /// Returns how often each payload has come.
    pub fn counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for (_, payload) in &self.got {
            *counts.entry(payload.as_str()).or_default() += 1;
        }
        counts
    }
}
