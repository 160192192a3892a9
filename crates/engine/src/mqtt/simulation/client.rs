//! A client of MQTT as the standards want it: what it has sent and received outlives its connections.

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
    /// For so many seconds; of MQTT 5.
    pub expiry_s: Option<u32>,
}

/// When a message came to its end.
#[derive(Clone, Copy)]
pub(super) struct End {
    /// So many messages were published before.
    pub at: usize,
    /// Nobody is sent it first from then on.
    over_us: u64,
}

/// What was published to the end, by payload.
pub(super) type Ends = Rc<RefCell<HashMap<String, End>>>;

/// What a client has published and not completed.
struct Publishing {
    id: u16,
    message: Message,
    /// PUBREC has come.
    released: bool,
}

/// A client, with its session's side of things.
pub(super) struct Client {
    pub name: usize,
    pub version: Version,
    /// What it subscribes to, and how surely.
    pub filters: Vec<(String, Qos)>,
    /// Whether its session goes on.
    pub persistent: bool,
    end: Option<ClientEnd>,
    input: Vec<u8>,
    connected: bool,
    subscribed: bool,
    /// Its subscriptions were confirmed: from then on it must get everything.
    pub ready: bool,
    next_id: u16,
    /// The packet identifier of what it asked last of its subscriptions.
    last_packet_id: u16,
    publishing: VecDeque<Publishing>,
    /// Messages with QoS 2 that have come and are not released.
    received: BTreeSet<u16>,
    /// What the application has got: payloads in order, each with its topic.
    pub got: Vec<(String, String)>,
    /// Packets that the client has still to send: it reads before it answers.
    replies: VecDeque<Vec<u8>>,
    /// What was published to the end, by all clients.
    pub done: Ends,
    /// What was before it subscribed: what is on its way then may come, and after so many connects nothing.
    before: Option<(HashSet<String>, usize)>,
    /// It has no subscription any more since so many messages were published.
    unsubscribed: Option<usize>,
    /// How often it has connected.
    pub connects: usize,
    /// Its session ends with this connection.
    ends: bool,
    /// It begins anew, until it knows that it has: its session has ended with a connection.
    anew: bool,
    /// How many messages were published so far, and how late it is.
    pub now: (usize, u64),
    /// It need not get what was published before: its session has ended, or its subscriptions.
    pub forgotten: usize,
    /// Since when this connection is.
    since_us: u64,
    /// For how many seconds its session outlives this connection; nothing is for ever.
    expiry_s: Option<u32>,
    /// Until then its session must be there.
    stays_us: u64,
    /// Its session was to end so soon after an earlier connection.
    was_short: Option<u32>,
    /// The will of this connection.
    will: Option<String>,
    /// What it said of its session and its will is sure to be on disk.
    is_stored: bool,
    /// It has begun anew, and that may not be on disk yet.
    has_begun: bool,
    /// What it takes, and the packet identifiers of what it has not confirmed on this connection.
    receive_max: u16,
    unconfirmed: BTreeSet<u16>,
    /// Topics by the aliases that the server gave them on this connection, and how many it may give.
    aliases: HashMap<u32, String>,
    aliases_max: u32,
}

/// What a connection takes.
pub(super) struct Terms {
    pub receive_max: u16,
    pub aliases_max: u32,
    /// A session that goes on ends with this connection.
    pub ends: bool,
    /// For how many seconds it goes on else; nothing is for ever.
    pub expiry_s: Option<u32>,
    /// What is published when the connection is lost.
    pub will: Option<Message>,
}

/// How filters begin that the members of the group share.
pub(super) const SHARED: &str = "$share/group/";

/// A session that is to go on for ever.
pub(super) const FOR_EVER_S: u32 = 1_000_000;

/// Beyond these packet identifiers are those of SUBSCRIBE and UNSUBSCRIBE.
const FIRST_PACKET_ID: u16 = 40_000;

/// The last word of a client that wants no will.
const DISCONNECT: [u8; 2] = [0xe0, 0];

/// The same with a session expiry of 0.
const DISCONNECT_WITH_SESSION: [u8; 9] = [0xe0, 7, 0, 5, id::SESSION_EXPIRY_INTERVAL, 0, 0, 0, 0];

/// What a message is: `m` is any, `r` is to be retained, `x` expires soon, and `w` is a will.
pub(super) fn kind(payload: &str) -> char {
    payload.chars().next().unwrap()
}

/// Its number in the order of all.
pub(super) fn number(payload: &str) -> usize {
    payload[1..].parse().unwrap()
}

/// With `SHARD_TRACE` it is told what happens.
pub(super) fn trace(what: impl FnOnce() -> String) {
    if std::env::var_os("SHARD_TRACE").is_some() {
        eprintln!("{}", what());
    }
}

/// What a packet is in bytes.
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

    /// True where it shares its filter with others.
    pub fn is_member(&self) -> bool {
        self.filters.iter().any(|(filter, _)| filter.starts_with(SHARED))
    }

    /// How surely it wants messages of a topic; nothing where it wants none.
    pub fn wants(&self, topic: &str) -> Option<Qos> {
        let reach = |filter: &str| filter.strip_prefix(SHARED).unwrap_or(filter).to_string();
        let matching = self.filters.iter().filter(|(filter, _)| matches(&reach(filter), topic));
        matching.map(|(_, qos)| *qos).max()
    }

    /// True when it was let in.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// True when nothing of its own is under way.
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

    /// The connection breaks, at whatever byte.
    pub fn cut(&mut self, random: &mut Random) {
        let bytes = self.end.as_ref().map_or(0, |end| random.below(end.unread() + 1));
        self.leave(|end| end.cut(bytes));
    }

    /// The connection has ended.
    fn lost(&mut self) {
        self.leave(drop);
    }

    /// It ends its connection, and wants no will; and its session, where it can say so.
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
            // Who knows since when.
            Some(_) if end.is_ended() => 0,
            // The server counts in whole seconds.
            Some(seconds) => self.now.1 + u64::from(seconds - 1) * 1_000_000,
        };
        // Its session may be over, and another one may have begun, of which it was not told.
        self.anew |= !self.connected && self.now.1 >= self.stays_us;
        // Which connection was the last that the server has seen is known to who was let in.
        self.stays_us = if self.connected { stays_us } else { self.stays_us.min(stays_us) };
        if let Some(will) = self.will.take().filter(|_| self.connected) {
            self.end_of(will, None);
        }
        close(end);
        self.reset();
    }

    /// The server is dead. What it has sent may be there still.
    pub fn survive(&mut self) {
        let will = self.will.take().filter(|_| self.is_stored);
        // The session before it may be there again.
        self.anew |= self.has_begun;
        // What was on its way then may come again.
        self.before.iter_mut().for_each(|(_, connects)| *connects = usize::MAX);
        let Some(end) = &self.end else {
            // How long its session stays may be on disk as it was before.
            self.stays_us = if self.was_short.is_some() { 0 } else { self.stays_us };
            return;
        };
        if !end.is_ended()
            && let Some(will) = will
        {
            self.end_of(will, None);
        }
        if !self.is_stored {
            // It may be as it was before.
            self.expiry_s = self.expiry_s.or(self.was_short);
        }
        if self.expiry_s.is_some() {
            self.stays_us = 0;
        }
    }

    /// A message has come to its end.
    fn end_of(&self, payload: String, expiry_s: Option<u32>) {
        let over_us = expiry_s.map_or(u64::MAX, |seconds| {
            // Engines count in whole seconds.
            self.now.1 + u64::from(seconds + 1) * 1_000_000
        });
        self.done.borrow_mut().insert(payload, End { at: self.now.0, over_us });
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

    /// Its session is gone.
    fn forget(&mut self) {
        self.ready = false;
        self.received.clear();
        (self.unsubscribed, self.was_short) = (None, None);
        (self.before, self.forgotten) = (None, self.now.0);
    }

    /// Whether it was there all the time since so many messages were published.
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

    /// Whether it may publish: at most so many are under way.
    pub fn may_publish(&self) -> bool {
        self.connected && self.publishing.len() < 4
    }

    /// Publishes something.
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

    /// Sends the next answer that waits.
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

    /// True when it knows that it has no subscription.
    pub fn is_unsubscribed(&self) -> bool {
        self.unsubscribed.is_some()
    }

    /// Subscribes again to what it has, or had.
    pub fn subscribe_again(&mut self) {
        if self.connected && (self.ready || self.unsubscribed.is_some()) {
            self.subscribe();
        }
    }

    /// Subscribes to nothing any more.
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
        // The answer to an earlier one of this session may be lost.
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

    /// How often each payload has come.
    pub fn counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for (_, payload) in &self.got {
            *counts.entry(payload.as_str()).or_default() += 1;
        }
        counts
    }
}
