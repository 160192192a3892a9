//! The link for other threads: they publish messages, and report which topics have members.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use broker::{GroupMessage, Relay};
use bytes::Bytes;
use cluster::{Call, CallReply, Interest, LogicalClock, Node, Packet, Stream, Subjects};
use model::{Envelope, GroupChoice, Name, NodeId};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::Login;
use crate::calls::Calls;
use crate::lock::lock;
use crate::orders::Orders;
use crate::status::LinkStatus;

/// The approximate memory of a queued message beside its payload, in bytes.
const OVERHEAD_BYTES: usize = 512;

/// The HTTP status for a body that is too large.
const PAYLOAD_TOO_LARGE: u16 = 413;

/// The offset of a stream whose messages do not arrive.
pub(crate) const NEVER: u64 = u64::MAX;

/// The settings of a node in a cluster.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cluster's name, with which all subjects begin.
    pub cluster: String,
    /// The node's id.
    pub node: NodeId,
    /// The name that its operator chose.
    pub name: String,
    /// The version of the program.
    pub version: String,
    /// Bytes that may wait to be sent to NATS.
    pub queue_bytes_max: usize,
    /// Bytes of its newest messages that the node retains for nodes that have missed some.
    pub replay_bytes_max: usize,
    /// Bytes of memory that other nodes' entries in presence may take.
    pub presence_bytes_max: usize,
    /// Bytes of a message's payload, at most, at the start.
    pub message_bytes_max: usize,
    /// How long interest in a topic outlives its last member, in microseconds.
    pub linger_us: u64,
}

/// A node's connection to the others of its cluster, for all threads.
pub struct Link {
    pub(crate) settings: Settings,
    pub(crate) subjects: Subjects,
    pub(crate) state: Mutex<LinkState>,
    /// The node, until the thread starts.
    pub(crate) node: Mutex<Option<Node>>,
    /// Wakes the thread when `state` has inputs.
    pub(crate) notify: Notify,
    queued_bytes: AtomicUsize,
    message_bytes_max: AtomicUsize,
    /// The largest packet that NATS takes, in bytes: `usize::MAX` before the first connect.
    packet_bytes_max: AtomicUsize,
    /// Offsets of the broker, by streams: see [`Relay::complete_after`].
    pub(crate) complete_after: Box<[AtomicU64]>,
    status: Mutex<LinkStatus>,
    pub(crate) calls: Calls,
    pub(crate) login: Mutex<Login>,
    /// True if the thread has ended.
    pub(crate) is_closed: AtomicBool,
    pub(crate) orders: Orders,
    started: Instant,
}

pub(crate) struct LinkState {
    pub interest: Interest,
    pub inputs: Vec<Input>,
    /// Numbers the connects of MQTT clients.
    pub clock: LogicalClock,
}

/// An input of other threads to the link's thread.
pub(crate) enum Input {
    /// A message for other nodes, and the nodes that pass it to members of groups.
    Publish(Arc<Envelope>, Vec<GroupChoice>),
    /// A message for a member of a group at another node.
    PassToGroup(GroupMessage),
    /// An MQTT client has connected: the key of its session, the number of the connect, and whether the session
    /// begins anew.
    ClientConnected(Name, u64, bool),
    /// Interest in a stream began at this time.
    InterestBegun(Stream, u64),
    /// A packet for one node.
    Packet(NodeId, Bytes),
}

impl Link {
    /// Makes a link, which [`crate::spawn`] starts. Its clock began at `started`; a process that takes over from
    /// another one continues that one's clock.
    pub fn new(settings: Settings, login: Login, started: Instant) -> Arc<Self> {
        let complete_after = |stream: Stream| match stream {
            Stream::EVERYONE => AtomicU64::new(0),
            _ => AtomicU64::new(NEVER),
        };
        let link = Link {
            subjects: Subjects::new(&settings.cluster),
            state: Mutex::new(LinkState {
                interest: Interest::new(settings.linger_us),
                inputs: Vec::new(),
                clock: LogicalClock::default(),
            }),
            node: Mutex::default(),
            notify: Notify::new(),
            queued_bytes: AtomicUsize::new(0),
            message_bytes_max: AtomicUsize::new(settings.message_bytes_max),
            packet_bytes_max: AtomicUsize::new(usize::MAX),
            complete_after: Stream::all().map(complete_after).collect(),
            status: Mutex::default(),
            calls: Calls::new(),
            login: Mutex::new(login),
            is_closed: AtomicBool::new(false),
            orders: Orders::new(),
            started,
            settings,
        };
        *lock(&link.node) = Some(Node::new(link.node_settings(), link.now_us()));
        Arc::new(link)
    }

    pub(crate) fn node_settings(&self) -> cluster::Settings {
        cluster::Settings {
            node: self.settings.node,
            name: self.settings.name.clone(),
            version: self.settings.version.clone(),
            replay_bytes_max: self.settings.replay_bytes_max,
        }
    }

    /// Returns its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets the login from the next connect on.
    pub fn set_login(&self, login: Login) {
        *lock(&self.login) = login;
    }

    /// Changes the largest payload of a message, in bytes.
    pub fn set_message_bytes_max(&self, bytes: usize) {
        self.message_bytes_max.store(bytes, Relaxed);
    }

    pub(crate) fn message_bytes_max(&self) -> usize {
        self.message_bytes_max.load(Relaxed)
    }

    /// Returns the largest packet that NATS takes, in bytes: its `max_payload`. `None` before the first connect.
    pub fn packet_bytes_max(&self) -> Option<usize> {
        Some(self.packet_bytes_max.load(Relaxed)).filter(|bytes| *bytes < usize::MAX)
    }

    pub(crate) fn set_packet_bytes_max(&self, bytes: usize) {
        self.packet_bytes_max.store(bytes, Relaxed);
    }

    /// Returns the status of the cluster.
    pub fn status(&self) -> LinkStatus {
        LinkStatus { now_us: self.now_us(), ..lock(&self.status).clone() }
    }

    /// Returns the bytes that wait to be sent.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes.load(Relaxed)
    }

    pub(crate) fn set_status(&self, change: impl FnOnce(&mut LinkStatus)) {
        change(&mut lock(&self.status));
    }

    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Takes the inputs that wait for the thread.
    pub(crate) fn take_inputs(&self) -> Vec<Input> {
        std::mem::take(&mut lock(&self.state).inputs)
    }

    /// Ends the interest that has lingered long enough, and returns its streams.
    pub(crate) fn expire_interest(&self) -> Vec<Stream> {
        let mut state = lock(&self.state);
        let ended = state.interest.expire(self.now_us());
        // Under the lock, so that an interest that begins again comes after it.
        ended.iter().for_each(|stream| self.set_complete_after(*stream, NEVER));
        ended
    }

    /// Sets the broker's offset after which messages of a stream are complete.
    pub(crate) fn set_complete_after(&self, stream: Stream, offset: u64) {
        self.complete_after[stream.index()].store(offset, Relaxed);
    }

    /// Releases the bytes of a queued message that the node has taken.
    pub(crate) fn release(&self, message: &Envelope) {
        self.queued_bytes.fetch_sub(queued_bytes(message), Relaxed);
    }

    /// Counts bytes of a packet that waits for NATS.
    pub(crate) fn queue_bytes(&self, bytes: usize) {
        self.queued_bytes.fetch_add(bytes, Relaxed);
    }

    /// Releases the bytes of a packet that was given to NATS, or dropped.
    pub(crate) fn release_bytes(&self, bytes: usize) {
        self.queued_bytes.fetch_sub(bytes, Relaxed);
    }

    /// Calls the API of another node. The reply comes later, or never: the caller has a deadline, and gets an error
    /// at once if the node turns out to be gone, or NATS takes no packet of this length.
    pub fn call(
        &self,
        node: NodeId,
        method: &str,
        target: &str,
        body: &[u8],
    ) -> oneshot::Receiver<CallReply> {
        let (id, receiver) = self.calls.begin(node);
        if let Some(id) = id {
            let (own, body) = (self.settings.node.0, body.to_vec());
            let call = Call { node: own, id, method: method.into(), target: target.into(), body };
            let packet = Packet::Call(call).encode();
            match self.is_too_large(&packet) {
                true => self.calls.forget(id),
                false => self.push_packet(node, packet),
            }
        }
        receiver
    }

    /// Returns the calls of other nodes, once: the caller performs them, and replies to each.
    pub fn take_calls(&self) -> Option<mpsc::Receiver<Call>> {
        self.calls.take_receiver()
    }

    /// Replies to a call of another node, with an HTTP status and JSON; with 413 alone if NATS takes no packet of
    /// this length.
    pub fn reply(&self, call: &Call, status: u16, body: Vec<u8>) {
        let reply = |status, body| {
            let reply = CallReply { node: self.settings.node.0, id: call.id, status, body };
            Packet::CallReply(reply).encode()
        };
        let mut packet = reply(status, body);
        if self.is_too_large(&packet) {
            packet = reply(PAYLOAD_TOO_LARGE, Vec::new());
        }
        self.push_packet(NodeId(call.node), packet);
    }

    fn is_too_large(&self, packet: &Bytes) -> bool {
        packet.len() > self.packet_bytes_max.load(Relaxed)
    }

    /// Makes the thread send a packet to a node.
    fn push_packet(&self, node: NodeId, packet: Bytes) {
        if !self.is_closed.load(Relaxed) {
            self.push(&mut lock(&self.state), Input::Packet(node, packet));
        }
    }

    fn push(&self, state: &mut LinkState, input: Input) {
        state.inputs.push(input);
        if state.inputs.len() == 1 {
            self.notify.notify_one();
        }
    }

    /// Begins interest in these streams. They are complete after an offset of the broker that no message has.
    fn complete_from_now(&self, streams: &[Stream], skip_offset: &dyn Fn() -> u64) {
        if !streams.is_empty() {
            // Takes the broker's lock, so no caller may have `state` locked.
            let offset = skip_offset();
            streams.iter().for_each(|stream| self.set_complete_after(*stream, offset));
        }
    }

    /// Closes the link after the thread has ended, in order or not: it sends nothing any more, and no call waits for
    /// it.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Relaxed);
        for input in self.take_inputs() {
            match input {
                Input::Publish(message, _) => self.release(&message),
                Input::PassToGroup(GroupMessage { message, .. }) => self.release(&message),
                Input::InterestBegun(..) | Input::Packet(..) | Input::ClientConnected(..) => {}
            }
        }
        let now_us = self.now_us();
        self.set_status(|status| {
            status.connection.is_connected = false;
            status.connection.since_us = now_us;
            status.connection.error =
                Some("the thread of the cluster has ended: restart this node".into());
        });
    }

    fn enter_streams(&self, streams: impl Iterator<Item = Stream>, skip_offset: &dyn Fn() -> u64) {
        let now_us = self.now_us();
        let mut begun = Vec::new();
        let mut state = lock(&self.state);
        for stream in streams {
            if state.interest.enter(stream) {
                self.push(&mut state, Input::InterestBegun(stream, now_us));
                begun.push(stream);
            }
        }
        drop(state);
        self.complete_from_now(&begun, skip_offset);
    }
}

impl Relay for Link {
    fn has_capacity(&self) -> bool {
        self.is_closed.load(Relaxed) || self.queued_bytes() < self.settings.queue_bytes_max
    }

    fn publish(&self, message: Arc<Envelope>, choices: Vec<GroupChoice>) {
        if self.is_closed.load(Relaxed) {
            return;
        }
        self.queued_bytes.fetch_add(queued_bytes(&message), Relaxed);
        self.push(&mut lock(&self.state), Input::Publish(message, choices));
    }

    fn pass_to_node(&self, message: GroupMessage) {
        if self.is_closed.load(Relaxed) {
            return;
        }
        self.queued_bytes.fetch_add(queued_bytes(&message.message), Relaxed);
        self.push(&mut lock(&self.state), Input::PassToGroup(message));
    }

    fn connect_number(&self, unix_us: u64) -> u64 {
        lock(&self.state).clock.tick(unix_us)
    }

    fn client_connected(&self, key: &Name, number: u64, is_clean: bool) {
        if !self.is_closed.load(Relaxed) {
            let input = Input::ClientConnected(key.clone(), number, is_clean);
            self.push(&mut lock(&self.state), input);
        }
    }

    fn enter(&self, topic: &str, skip_offset: &dyn Fn() -> u64) {
        self.enter_streams(std::iter::once(Stream::of(topic)), skip_offset);
    }

    fn leave(&self, topic: &str) {
        lock(&self.state).interest.leave(Stream::of(topic), self.now_us());
    }

    fn enter_all(&self, skip_offset: &dyn Fn() -> u64) {
        self.enter_streams(Stream::topics(), skip_offset);
    }

    fn leave_all(&self) {
        let (mut state, now_us) = (lock(&self.state), self.now_us());
        Stream::topics().for_each(|stream| state.interest.leave(stream, now_us));
    }

    fn complete_after(&self, topic: &str) -> u64 {
        let of = |stream: Stream| self.complete_after[stream.index()].load(Relaxed);
        // Messages of the topic that nodes retain go to all nodes.
        of(Stream::of(topic)).max(of(Stream::EVERYONE))
    }
}

fn queued_bytes(message: &Envelope) -> usize {
    OVERHEAD_BYTES + message.publication.bytes()
}

/// Returns the stream of a message: messages that nodes retain go to all of them.
pub(crate) fn stream_of(message: &Envelope) -> Stream {
    match message.publication.retain {
        true => Stream::EVERYONE,
        false => Stream::of(&message.publication.topic),
    }
}

#[cfg(test)]
impl Settings {
    pub(crate) fn for_tests() -> Self {
        Settings {
            cluster: "t".into(),
            node: NodeId(1),
            name: String::new(),
            version: "1".into(),
            queue_bytes_max: 1 << 20,
            replay_bytes_max: 1 << 20,
            presence_bytes_max: 1 << 20,
            message_bytes_max: 1 << 10,
            linger_us: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{Data, Epoch, Message, Position, Publication};

    use super::*;

    fn link(queue_bytes_max: usize) -> Arc<Link> {
        let settings = Settings { queue_bytes_max, ..Settings::for_tests() };
        Link::new(settings, Login::Anonymous, Instant::now())
    }

    fn message(topic: &str, retain: bool) -> Arc<Envelope> {
        let mut publication = Publication::new(topic, Data::Text("x".into()));
        publication.retain = retain;
        let id = Position { epoch: Epoch(1), offset: 1 };
        Arc::new(Message::new(publication, id, 1, 1).into())
    }

    #[test]
    fn a_full_queue_has_no_capacity_until_messages_have_left() {
        let link = link(1_000);
        link.publish(message("a", false), Vec::new());
        assert!(link.has_capacity());
        link.publish(message("a", false), Vec::new());
        assert!(!link.has_capacity());
        for input in link.take_inputs() {
            let Input::Publish(message, _) = input else { panic!("no message") };
            link.release(&message);
        }
        assert_eq!(link.queued_bytes(), 0);
    }

    #[test]
    fn nothing_waits_for_a_thread_that_has_ended() {
        let link = link(300);
        link.publish(message("a", false), Vec::new());
        link.publish(message("a", false), Vec::new());
        assert!(!link.has_capacity());
        link.close();
        assert_eq!(link.queued_bytes(), 0);
        link.publish(message("a", false), Vec::new());
        assert!(link.has_capacity() && link.queued_bytes() == 0);
        assert!(!link.status().connection.is_connected);
    }

    #[test]
    fn calls_and_replies_that_nats_never_takes_end_at_once() {
        let link = link(1_000);
        assert_eq!(link.packet_bytes_max(), None);
        link.set_packet_bytes_max(500);
        assert_eq!(link.packet_bytes_max(), Some(500));
        let sent = |link: &Link| {
            let packet = |input| match input {
                Input::Packet(_, bytes) => Packet::decode(&bytes).unwrap(),
                Input::Publish(..)
                | Input::PassToGroup(_)
                | Input::ClientConnected(..)
                | Input::InterestBegun(..) => panic!("no packet"),
            };
            link.take_inputs().into_iter().map(packet).collect::<Vec<_>>()
        };
        let mut small = link.call(NodeId(2), "POST", "/a", &[b'x'; 300]);
        let mut large = link.call(NodeId(2), "POST", "/a", &[b'x'; 500]);
        assert_eq!(small.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        assert_eq!(large.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let packets = sent(&link);
        let [Packet::Call(call)] = &packets[..] else { panic!("{packets:?}") };
        link.reply(call, 200, vec![b'x'; 300]);
        link.reply(call, 200, vec![b'x'; 500]);
        let status = |packet| {
            let Packet::CallReply(reply) = packet else { panic!("{packet:?}") };
            (reply.status, reply.body.len())
        };
        let replies: Vec<_> = sent(&link).into_iter().map(status).collect();
        assert_eq!(replies, [(200, 300), (413, 0)]);
    }

    #[test]
    fn a_topic_is_complete_behind_the_message_at_which_interest_began() {
        let link = link(1_000);
        assert_eq!((link.complete_after("a"), link.complete_after("*")), (NEVER, 0));
        link.enter("a", &|| 7);
        link.enter("a", &|| panic!("interest goes on"));
        assert_eq!((link.complete_after("a"), link.complete_after("b")), (7, NEVER));
        link.enter_all(&|| 9);
        assert_eq!((link.complete_after("a"), link.complete_after("b")), (7, 9));
        link.leave_all();
        assert_eq!(link.expire_interest().len(), usize::from(Stream::TOPICS) - 1);
        assert_eq!((link.complete_after("a"), link.complete_after("b")), (7, NEVER));
        link.leave("a");
        link.leave("a");
        assert_eq!(link.expire_interest(), [Stream::of("a")]);
        link.enter("a", &|| 12);
        assert_eq!(link.complete_after("a"), 12);
    }

    #[test]
    fn a_message_that_nodes_retain_goes_to_all_of_them() {
        assert_eq!(stream_of(&message("a", true)), Stream::EVERYONE);
        assert_eq!(stream_of(&message("a", false)), Stream::of("a"));
    }
}
