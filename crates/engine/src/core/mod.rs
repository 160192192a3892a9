//! The core of an engine, which every part uses: the tables of connections and topics, the services that the engine
//! calls, and the outputs that wait for its driver.

pub(crate) mod command;
pub(crate) mod count;
pub(crate) mod handle;
pub(crate) mod log;
pub(crate) mod log_limit;
pub(crate) mod metrics;
pub(crate) mod output;
pub(crate) mod reply;
pub(crate) mod reply_target;
pub(crate) mod responses;
pub(crate) mod settings;
pub(crate) mod shrink;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker::Broker;
use history::History;
use hub::Hub;
use model::{CloseReason, ConnectionId, Encoding, Envelope, Name, TopicKind};
use protocol::{Codecs, Delivery, ProtocolRef};

use crate::auth::credentials::Credentials;
use crate::connection::peers::Peers;
use crate::connection::{Connection, Flag, Phase, Table, wrapping_s};
use crate::core::command::Command;
use crate::core::handle::{Handle, Shared};
use crate::core::log_limit::Lines;
use crate::core::metrics::Metrics;
use crate::core::output::Outputs;
use crate::core::settings::Settings;
use crate::delivery::conflation::Conflation;
use crate::delivery::costs::Costs;
use crate::delivery::observed::ObservedMessages;
use crate::mqtt::Clients;
use crate::phoenix::joins::Joins;
use crate::presence::entries::PresenceEntries;
use crate::topics::dedup::Dedup;
use crate::trace::state::Traces;
use crate::webhook::Webhook;
use crate::webhook::events::HookEvent;

/// The core of an engine. It knows none of the parts: work for other parts waits as an [`Effect`].
pub(crate) struct Core {
    pub number: u16,
    pub handle: Handle,
    /// The handles of all engines, this one included, by number.
    pub engines: Arc<[Handle]>,
    pub metrics: Arc<Metrics>,
    pub shared: Arc<Shared>,
    pub settings: Arc<Settings>,
    pub broker: Arc<dyn Broker>,
    /// The topics with history.
    pub history: Arc<dyn History>,
    /// Sends requests to the application, if there is one.
    pub webhook: Option<Arc<dyn Webhook>>,
    pub codecs: Codecs,
    pub table: Table,
    pub hub: Hub<Arc<Envelope>>,
    /// The joins of Phoenix clients.
    pub joins: Joins,
    /// The MQTT clients.
    pub mqtt: Clients,
    /// This shard has taken every message with history up to this offset from its mailbox.
    pub mqtt_taken: u64,
    /// The entries of connections in the presence registry, by slot.
    pub entries: PresenceEntries,
    /// The grants of connections by tokens.
    pub credentials: Credentials,
    /// Topics whose presence snapshot a connection gets when its outbox is empty, by slot.
    pub snapshots_due: HashMap<u32, Vec<Name>>,
    /// Messages that wait for slow connections in topics of which they get only the newest message of each key.
    pub conflation: Conflation,
    /// Messages whose delivery is observed.
    pub observed: ObservedMessages,
    /// Which topics cost most.
    pub costs: Costs,
    /// Messages that reach connections by several lists of members.
    pub dedup: Dedup,
    /// The addresses of connections through proxies.
    pub peers: Peers,
    /// The limits on log lines that peers cause.
    pub lines: Lines,
    /// The traces of operators.
    pub traces: Traces,
    /// Topics that have lost their last member since the filter was rebuilt.
    pub topics_ended: usize,
    /// Commands that were taken from the mailbox and not run yet.
    pub commands: VecDeque<Command>,
    /// The engine [stands still](crate::Engine::stand_still).
    pub stands_still: bool,
    /// Replies of the history that came while the engine stood still.
    pub aside: Vec<Command>,
    /// Cloned for each query whose reply only this engine can take. The number of other clones is the number of these
    /// queries.
    pub under_way: Arc<()>,
    /// Connections whose input goes on as soon as the part has returned, because their request has its reply.
    pub resumed: Vec<u32>,
    /// The engine drains: a connection is not used for another request.
    pub draining: bool,
    /// Polls and sessions with a new message.
    pub woken: Vec<u32>,
    /// Short replies since the driver last read this count.
    pub replies: u64,
    /// The time of this turn, in microseconds of the node's clock.
    pub now_us: u64,
    /// For how long input may have waited that this turn does not read, in microseconds.
    pub input_wait_us: u64,
    /// Events for the application.
    pub hook_events: Vec<HookEvent>,
    /// The outputs for the driver.
    pub outputs: Outputs,
    /// Effects, which the engine performs as soon as the part that runs has returned.
    pub effects: Vec<Effect>,
}

/// Work that a part of the engine causes in other parts. The engine performs effects as soon as the part has returned,
/// so that no part is called recursively.
pub(crate) enum Effect {
    /// The connection is marked as closing: the rest of its close is due.
    Close { slot: u32, close: CloseReason, last: Vec<u8> },
    /// The client of a long-poll session has taken the messages that waited.
    SessionTaken { slot: u32 },
}

impl Core {
    /// Returns true if an operator has drained the node.
    pub(crate) fn is_drained(&self) -> bool {
        self.shared.drained.load(Ordering::Relaxed)
    }

    /// The server to which clients of MQTT 5 are sent when this one ends.
    pub(crate) fn server_reference(&self) -> Option<&str> {
        self.settings.mqtt().and_then(|it| it.server_reference.as_deref())
    }

    /// The time of this turn, in seconds of the node's clock.
    #[expect(clippy::cast_possible_truncation, reason = "a node doesn't run for 136 years")]
    pub(crate) fn now_s(&self) -> u32 {
        (self.now_us / 1_000_000) as u32
    }

    /// Returns for how many seconds input may have waited to be read. The input may be any client's, so this time does
    /// not count as silence of a client.
    pub(crate) fn input_wait_s(&self) -> u32 {
        u32::try_from(self.input_wait_us.div_ceil(1_000_000)).unwrap_or(u32::MAX)
    }

    /// The time of day, in milliseconds since 1970.
    pub(crate) fn unix_ms(&self) -> u64 {
        self.shared.unix_ms(self.now_us)
    }

    /// The time of day, in seconds since 1970.
    pub(crate) fn unix_s(&self) -> u64 {
        self.shared.unix_s(self.now_us)
    }

    /// The time by which ages are counted before something is deleted, in milliseconds since 1970.
    pub(crate) fn age_ms(&self) -> u64 {
        self.shared.age_ms(self.now_us)
    }

    /// The time of this turn, in seconds of the node's clock that wrap around, as [`Connection::last_received_s`] has
    /// them.
    pub(crate) fn now_wrapping_s(&self) -> u16 {
        wrapping_s(self.now_s())
    }

    pub(crate) fn id(&self, slot: u32, serial: u32) -> ConnectionId {
        ConnectionId { node: self.shared.node, shard: self.number, slot, serial }
    }

    /// Returns the protocol of a connection.
    pub(crate) fn protocol(&self, slot: u32) -> Option<ProtocolRef> {
        self.table.get(slot).map(|connection| self.shared.protocols.of(connection.encoding))
    }

    /// True while a connection uses the first protocol, with which all connections begin.
    pub(crate) fn speaks_first(&self, slot: u32) -> bool {
        let first = self.shared.protocols.first().encoding();
        self.table.get(slot).is_some_and(|connection| connection.encoding == first)
    }

    /// Returns how messages reach a connection.
    pub(crate) fn delivery(&self, connection: &Connection) -> Delivery {
        self.shared.protocols.delivery(connection.encoding)
    }

    /// True for a connection without a socket, whose output is gathered.
    pub(crate) fn is_gathered(&self, slot: u32) -> bool {
        self.table.get(slot).is_some_and(|found| self.delivery(found) == Delivery::Gathered)
    }

    /// True if the connection exists and is not closing.
    pub(crate) fn is_open(&self, slot: u32) -> bool {
        self.table.get(slot).is_some_and(|connection| !connection.is_closing())
    }

    pub(crate) fn is(&self, slot: u32, flag: Flag) -> bool {
        self.table.get(slot).is_some_and(|connection| connection.is(flag))
    }

    pub(crate) fn set(&mut self, slot: u32, flag: Flag, on: bool) {
        if let Some(connection) = self.table.get_mut(slot) {
            connection.set(flag, on);
        }
    }

    /// Changes the phase of a connection.
    pub(crate) fn enter(&mut self, slot: u32, phase: Phase) {
        if let Some(connection) = self.table.get_mut(slot) {
            connection.enter(phase);
        }
    }

    /// Switches a connection to another encoding: for one reply, or until it ends.
    pub(crate) fn take_up(&mut self, slot: u32, encoding: Encoding, phase: Phase) {
        self.speak(slot, encoding);
        self.metrics.opened[usize::from(encoding.0)].add(1);
        self.enter(slot, phase);
    }

    /// Adds a connection to a topic, so that the engine gets the topic's messages. Returns false if the connection is a
    /// member already.
    pub(crate) fn enter_topic(&mut self, slot: u32, hash: u64, topic: &str) -> bool {
        let entered = self.hub.join(slot, hash, topic);
        self.handle.inbox.filter.insert(hash);
        if entered
            && self.broker.has_nodes()
            && !matches!(TopicKind::of(topic), TopicKind::Filter(_))
            && self.hub.members(hash, topic) == 1
        {
            self.broker.enter_topic(topic);
        }
        if entered {
            self.trace_entered(slot, topic);
        }
        self.metrics.topics.set(u64::from(self.hub.topics()));
        entered
    }

    /// Removes a connection from a topic. Returns the same as [`hub::Hub::leave`].
    pub(crate) fn leave_topic(&mut self, slot: u32, hash: u64, topic: &str) -> Option<bool> {
        let ended = self.hub.leave(slot, hash, topic);
        if ended.is_some() {
            self.trace_left(slot, topic);
        }
        if ended == Some(true) {
            self.topics_ended += 1;
            self.broker.leave_topic(topic);
        }
        ended
    }

    /// Removes a connection from all of its topics.
    pub(crate) fn leave_topics(&mut self, slot: u32) {
        let mut ended = Vec::new();
        if self.broker.has_nodes() {
            let is_last = |topic: &&Name| {
                let is_topic = !matches!(TopicKind::of(topic), TopicKind::Filter(_));
                is_topic && self.hub.members(self.broker.hash(topic), topic) == 1
            };
            ended.extend(self.hub.topics_of(slot).filter(is_last).cloned());
        }
        self.topics_ended += self.hub.remove(slot) as usize;
        ended.iter().for_each(|topic| self.broker.leave_topic(topic));
    }

    /// A request has its reply: the connection is ready for the next one.
    pub(crate) fn await_request(&mut self, slot: u32) {
        self.speak(slot, self.shared.protocols.first().encoding());
        self.enter(slot, Phase::Request);
    }

    pub(crate) fn speak(&mut self, slot: u32, encoding: Encoding) {
        if let Some(connection) = self.table.get_mut(slot) {
            let before = std::mem::replace(&mut connection.encoding, encoding);
            self.metrics.connections[usize::from(before.0)].sub(1);
            self.metrics.connections[usize::from(encoding.0)].add(1);
        }
    }

    /// Closes a connection. It counts as closing from now on. The engine does the rest when the part that runs has
    /// returned.
    pub fn close_soon(&mut self, slot: u32, close: CloseReason, last: Vec<u8>) {
        if self.is_open(slot) {
            self.enter(slot, Phase::Closing);
            self.metrics.closing_connections.add(1);
            self.effects.push(Effect::Close { slot, close, last });
        }
    }
}
