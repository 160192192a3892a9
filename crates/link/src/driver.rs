//! The driver of the thread `cluster`: it passes inputs to the node, and the node's outputs to NATS and the broker.

use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Event};
use broker::Local;
use bytes::Bytes;
use cluster::{ClientConnect, Description, Node, Output, PRESENCE_PACKET_BYTES, Target, TooLarge};
use handover::message::encode_shared_into;
use model::{LogicalTime, NodeId};
use throttle::Throttle;
use tokio::sync::mpsc::{self, Receiver, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Link;
use crate::clients::MqttClients;
use crate::deliveries::{Deliveries, Delivery};
use crate::entries::{Entries, Registry};
use crate::groups::Groups;
use crate::link::{Input, stream_of};
use crate::lock::lock;
use crate::orders::Order;
use crate::status::LinkStatus;
use crate::writer::{Command, Writer, continue_panic, own_targets};

/// Returns the contents of this node's hellos.
pub(crate) type Describe = Box<dyn Fn() -> Description + Send>;

/// Services of the process that the driver calls besides messages, presence and groups.
pub(crate) struct Shell {
    pub describe: Describe,
    pub clients: Box<dyn MqttClients>,
}

/// Packets that may wait between the subscriptions and the driver.
const PACKETS_MAX: usize = 1_024;

/// Packets of one turn.
const TURN_PACKETS_MAX: usize = 256;

/// How long the driver waits for a slow shard before it offers a message again, and between two turns that change
/// entries of other nodes. Shards get the lock of the registry meanwhile, and packets leave.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// How often the driver updates the status, and ends interest, in microseconds.
const STATUS_US: u64 = 200_000;

/// The longest time for the goodbye, or for the last packets before another process takes over.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes of a packet beside the payload, at most: names, tags, a key, properties of MQTT.
const PACKET_OVERHEAD_BYTES: usize = 16 << 10;

/// What the driver does while another process may take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Serving,
    /// It reads no packets.
    Paused,
    /// It does nothing.
    Resting,
}

/// Does the I/O of a [`cluster::Node`].
pub(crate) struct Driver {
    link: Arc<Link>,
    node: Node,
    client: Client,
    commands: UnboundedSender<Command>,
    writer: JoinHandle<()>,
    packets: Receiver<(Target, Bytes)>,
    deliveries: Deliveries,
    entries: Entries,
    groups: Groups,
    orders: UnboundedReceiver<Order>,
    mode: Mode,
    /// Notifies the caller of [`Link::pause`] once the broker has all messages that have come.
    when_delivered: Option<std::sync::mpsc::Sender<()>>,
    shell: Shell,
    status_due_us: u64,
    /// The largest packet that NATS takes and the one that this node needs, as last compared, in bytes.
    compared_bytes: Option<(usize, usize)>,
    damaged: Throttle,
    errors: Throttle,
    too_large: Throttle,
}

impl Driver {
    pub fn new(
        link: Arc<Link>,
        client: Client,
        (broker, registry): (Arc<Local>, Registry),
        shell: Shell,
    ) -> Self {
        let entries = Entries::new(registry, link.settings().presence_bytes_max);
        let (packets_sender, packets) = mpsc::channel(PACKETS_MAX);
        let (commands, receiver) = mpsc::unbounded_channel();
        let writer = Writer::new(link.clone(), client.clone(), packets_sender);
        let writer = tokio::spawn(writer.run(receiver));
        for target in own_targets(link.settings().node) {
            // The writer ends after the driver.
            let _ = commands.send(Command::Subscribe(target));
        }
        let node = lock(&link.node).take();
        let new = || Node::new(link.node_settings(), link.now_us());
        // A second driver of one link gets no orders.
        let orders = link.orders.take_receiver().unwrap_or_else(|| mpsc::unbounded_channel().1);
        Driver {
            node: node.unwrap_or_else(new),
            orders,
            mode: Mode::Serving,
            when_delivered: None,
            groups: Groups::new(broker.clone()),
            deliveries: Deliveries::new(link.clone(), broker),
            entries,
            client,
            commands,
            writer,
            packets,
            shell,
            status_due_us: 0,
            compared_bytes: None,
            damaged: Throttle::new(1, 1_000_000),
            errors: Throttle::new(1, 10_000_000),
            too_large: Throttle::new(1, 10_000_000),
            link,
        }
    }

    /// Replaces the writer.
    #[cfg(test)]
    pub fn with_writer(self, writer: JoinHandle<()>) -> Self {
        Driver { writer, ..self }
    }

    /// Runs until the thread is stopped, or another process has taken over. Returns false if the client of NATS ends
    /// before. Panics if the writer does.
    pub async fn run(
        mut self,
        mut events: UnboundedReceiver<Event>,
        mut stopped: oneshot::Receiver<()>,
    ) -> bool {
        let mut is_behind = false;
        loop {
            if self.mode == Mode::Resting {
                tokio::select! {
                    Some(order) = self.orders.recv() => match self.on_order(order).await {
                        true => continue,
                        false => return true,
                    },
                    _ = &mut stopped => break,
                }
            }
            let is_reading = !is_behind && self.mode == Mode::Serving;
            let has_pending = self.entries.has_pending() && self.mode == Mode::Serving;
            let due_us = self.node.due_us().min(self.status_due_us).min(self.entries.due_us);
            let sleep = match is_behind || has_pending {
                true => RETRY_DELAY,
                false => Duration::from_micros(due_us.saturating_sub(self.link.now_us())),
            };
            tokio::select! {
                () = self.link.notify.notified() => {}
                event = events.recv() => match event {
                    Some(Event::Closed) | None => return false,
                    Some(event) => self.on_event(&event),
                },
                ended = &mut self.writer => {
                    continue_panic(ended);
                    return false;
                }
                // While a shard or the registry is behind, NATS and its client buffer incoming packets.
                Some(packet) = self.packets.recv(), if is_reading => self.on_packets(&packet),
                Some(order) = self.orders.recv() => {
                    if !self.on_order(order).await {
                        return true;
                    }
                    if self.mode == Mode::Resting {
                        continue;
                    }
                }
                () = tokio::time::sleep(sleep) => {}
                _ = &mut stopped => break,
            }
            self.turn();
            let has_delivered = self.deliveries.deliver();
            is_behind = !has_delivered || self.entries.is_behind();
            let now_us = self.link.now_us();
            match is_behind || self.mode == Mode::Paused {
                true => self.node.on_reading_paused(now_us),
                false => self.node.on_reading_resumed(now_us),
            }
            if let Some(waits) = self.when_delivered.take_if(|_| has_delivered) {
                self.deliveries.notify_gaps_now();
                // The caller may have given up.
                let _ = waits.send(());
            }
        }
        self.leave().await;
        true
    }

    /// Takes the inputs of other threads, lets time pass, and performs the node's outputs.
    fn turn(&mut self) {
        let now_us = self.link.now_us();
        let mut connects = Vec::new();
        for input in self.link.take_inputs() {
            match input {
                Input::ClientConnected(key, number, is_clean) => {
                    connects.push(ClientConnect { key: key.into(), number, is_clean });
                }
                Input::InterestBegun(stream, begun_us) => {
                    self.node.on_interest_begun(stream, begun_us, now_us);
                }
                Input::Publish(message, choices) => {
                    self.node.publish(stream_of(&message), now_us, |out| {
                        encode_shared_into(&message.publication, &choices, out);
                    });
                    self.link.release(&message);
                }
                Input::PassToGroup(message) => {
                    self.groups.pass(&mut self.node, &message, now_us);
                    self.link.release(&message.message);
                }
                Input::Packet(node, bytes) => self.send(Target::Node(node), bytes),
            }
        }
        self.node.publish_connects(connects, now_us);
        if now_us >= self.entries.due_us {
            self.entries.publish(&mut self.node, now_us);
            self.groups.publish(&mut self.node, now_us);
        }
        if now_us >= self.node.due_us() {
            self.node.describe((self.shell.describe)());
            self.node.on_time(now_us);
        }
        if now_us >= self.status_due_us {
            self.status_due_us = now_us + STATUS_US;
            for stream in self.link.expire_interest() {
                self.node.on_interest_ended(stream);
            }
            self.link.calls.sweep();
            if self.client.connection_state() == State::Connected {
                self.verify_payload();
            }
            let bytes = self.entries.stats().other_nodes_bytes;
            self.node.set_presence_memory(bytes, self.link.settings().presence_bytes_max);
            self.update_status();
        }
        self.perform();
        self.observe_clock();
        // While this process comes to rest, notices of changes by other nodes would never end.
        if self.mode == Mode::Serving {
            self.entries.advance(&mut self.node, now_us);
        }
    }

    /// Performs an order. Returns false if the driver is to end.
    async fn on_order(&mut self, order: Order) -> bool {
        match order {
            Order::Inspect(read) => read(&self.node),
            Order::Pause(delivered) => {
                self.mode = Mode::Paused;
                self.when_delivered = Some(delivered);
            }
            Order::Rest(done) => {
                self.rest().await;
                // The caller may have given up.
                let _ = done.send(());
            }
            Order::Resume => (self.mode, self.when_delivered) = (Mode::Serving, None),
            Order::Abandon => return false,
        }
        true
    }

    /// Sends all pending packets to other nodes, and comes to rest.
    async fn rest(&mut self) {
        self.mode = Mode::Paused;
        self.turn();
        while self.entries.publish(&mut self.node, self.link.now_us()) {
            self.perform();
        }
        self.node.describe((self.shell.describe)());
        self.node.on_rest(self.link.now_us());
        self.perform();
        self.flush().await;
        self.mode = Mode::Resting;
    }

    fn on_packets(&mut self, first: &(Target, Bytes)) {
        self.on_packet(first);
        for _ in 1..TURN_PACKETS_MAX {
            match self.packets.try_recv() {
                Ok(packet) => self.on_packet(&packet),
                Err(_) => return,
            }
        }
    }

    fn on_packet(&mut self, (target, bytes): &(Target, Bytes)) {
        let now_us = self.link.now_us();
        if let Err(error) = self.node.on_packet(*target, bytes, now_us)
            && let Some(suppressed) = self.damaged.pass(now_us, 1)
        {
            tracing::warn!(
                %error,
                suppressed,
                "a packet from another node could not be read and was dropped"
            );
        }
    }

    fn on_event(&mut self, event: &Event) {
        let now_us = self.link.now_us();
        let error = match event {
            Event::Connected => {
                tracing::info!("connected to NATS");
                // Each server has a limit of its own.
                self.compared_bytes = None;
                self.verify_payload();
                self.node.set_packet_bytes_max(self.client.max_payload(), now_us);
                self.link.set_packet_bytes_max(self.client.max_payload());
                self.node.describe((self.shell.describe)());
                self.node.on_connected(now_us);
                self.groups.set_connected(true);
                self.set_connected(true);
                return;
            }
            Event::Disconnected => {
                tracing::warn!("the connection to NATS was lost: this node tries to connect again");
                self.node.on_disconnected(now_us);
                self.groups.set_connected(false);
                self.set_connected(false);
                return;
            }
            Event::ServerError(error) => error.to_string(),
            Event::ClientError(error) => error.to_string(),
            Event::SlowConsumer(_) => {
                "messages arrived faster than this node could process them".to_string()
            }
            Event::LameDuckMode => "the NATS server is about to shut down".to_string(),
            // `run` ends at `Closed`.
            Event::Draining | Event::Closed => return,
        };
        self.link.set_status(|status| status.connection.error = Some(error.clone()));
        if let Some(suppressed) = self.errors.pass(now_us, 1) {
            tracing::warn!(error, suppressed, "NATS reported an error");
        }
    }

    /// Warns if NATS rejects packets that this node may have to send: after each connect, and when a setting has
    /// changed.
    fn verify_payload(&mut self) {
        // A user's payload in presence is at most as large as a packet of presence.
        let largest = self.link.message_bytes_max().max(PRESENCE_PACKET_BYTES);
        let (needed, limit) = (largest + PACKET_OVERHEAD_BYTES, self.client.max_payload());
        let compared = Some((limit, needed));
        if std::mem::replace(&mut self.compared_bytes, compared) != compared && limit < needed {
            tracing::warn!(
                max_payload = limit,
                needed,
                "NATS rejects the largest packets of this node, so their messages and presence \
                 entries reach no other node. Write \"max_payload: {needed}\" into the \
                 configuration of NATS, or lower limits.message_bytes_max"
            );
        }
    }

    fn report_too_large(&mut self, content: TooLarge, bytes: usize) {
        let Some(suppressed) = self.too_large.pass(self.link.now_us(), 1) else { return };
        let max_payload = self.client.max_payload();
        match content {
            TooLarge::Message => tracing::warn!(
                bytes,
                max_payload,
                suppressed,
                "a message is larger than NATS allows: members at other nodes don't get it. Raise \
                 max_payload in the configuration of NATS, or lower limits.message_bytes_max"
            ),
            TooLarge::PresenceEntry => tracing::warn!(
                bytes,
                max_payload,
                suppressed,
                "a user's presence data is larger than NATS allows: other nodes don't list the \
                 user in the topic. Raise max_payload in the configuration of NATS, or lower \
                 presence.meta_bytes_max"
            ),
            TooLarge::Other => tracing::warn!(
                bytes,
                max_payload,
                suppressed,
                "a packet is larger than NATS allows: raise max_payload in the configuration of \
                 NATS"
            ),
        }
    }

    fn set_connected(&self, is_connected: bool) {
        let now_us = self.link.now_us();
        self.link.set_status(|LinkStatus { connection, .. }| {
            connection.losses += u64::from(connection.is_connected && !is_connected);
            connection.is_connected = is_connected;
            connection.since_us = now_us;
            if is_connected {
                connection.error = None;
            }
        });
    }

    fn perform(&mut self) {
        // Reading a page of presence causes a further output.
        loop {
            let outputs = self.node.poll_outputs(self.link.now_us());
            if outputs.is_empty() {
                return;
            }
            outputs.into_iter().for_each(|output| self.perform_one(output));
        }
    }

    fn perform_one(&mut self, output: Output) {
        match output {
            Output::Subscribe(stream) => self.command(Command::Subscribe(Target::Stream(stream))),
            Output::Unsubscribe(stream) => self.command(Command::Unsubscribe(stream)),
            Output::Send { target, bytes } => self.send(target, bytes),
            Output::Deliver { node, payload, .. } => {
                self.deliveries.push(Delivery::Message(node, payload));
            }
            Output::DeliverToGroup { node, message } => {
                self.deliveries.push(Delivery::ToGroup(node, message));
            }
            Output::ClientsConnected { node, connects } => self.on_connects(node, connects),
            Output::RepeatConnects => self.shell.clients.repeat_connects(),
            Output::GroupsChanged { node, changes } => self.groups.on_changed(node, &changes),
            Output::Gap { node, stream, lost } => {
                self.deliveries.push(Delivery::Gap(node, stream, lost));
            }
            Output::PresenceChanged { node, changes } => {
                self.entries.push_changes(node, changes);
            }
            Output::PresencePage { node, page } => {
                self.entries.push_page(node, page);
            }
            Output::PresenceExpired(node) => self.entries.push_expire(node),
            Output::ReadPresence(request) => {
                self.node.on_presence_read(&request, self.entries.read(&request));
            }
            Output::Call(call) => self.link.calls.on_call(call),
            Output::CallReply(reply) => self.link.calls.on_reply(reply),
            Output::TooLarge { content, bytes } => self.report_too_large(content, bytes),
            Output::Up(node) => self.on_up(node),
            Output::Down { node, has_left } => {
                match has_left {
                    true => tracing::info!(%node, "a node has left the cluster"),
                    false => {
                        tracing::warn!(
                            %node,
                            "a node of the cluster is silent: this node treats it as down"
                        );
                    }
                }
                self.link.calls.on_down(node);
                self.status_due_us = 0;
            }
        }
    }

    fn on_connects(&self, node: NodeId, connects: Vec<ClientConnect>) {
        // Later connects at this node get a later time.
        self.observe_clock();
        for ClientConnect { key, number, is_clean } in connects {
            let time = LogicalTime { number, node };
            self.shell.clients.on_connected_to_node(&key, time, is_clean);
        }
    }

    /// Gives connects at this node later times than those that the node knows.
    fn observe_clock(&self) {
        lock(&self.link.state).clock.observe(self.node.clock_newest());
    }

    fn command(&self, command: Command) {
        // The writer ends after the driver.
        let _ = self.commands.send(command);
    }

    fn send(&self, target: Target, bytes: Bytes) {
        // A packet beyond the limit is dropped: nodes that miss it request it.
        if self.link.queued_bytes() <= self.link.settings.queue_bytes_max {
            self.link.queue_bytes(bytes.len());
            self.command(Command::Publish(target, bytes));
        }
    }

    fn on_up(&mut self, node: NodeId) {
        let peer = self.node.peers().find(|peer| peer.node == node);
        let (name, version) =
            peer.map(|it| (it.name.clone(), it.version.clone())).unwrap_or_default();
        tracing::info!(%node, name, version, "a node has joined the cluster");
        self.status_due_us = 0;
    }

    fn update_status(&self) {
        let (node, presence) = (&self.node, self.entries.stats());
        let is_whole = |it| node.has_entries_of(it) && !self.entries.has_pending_of(it);
        let incomplete = node.peers().filter(|it| it.is_up && !is_whole(it.node));
        let incomplete = incomplete.map(|it| it.node).collect();
        self.link.set_status(|status| {
            status.peers = node.peers().cloned().collect();
            status.groups = node.peers().map(|peer| node.groups_of(peer.node)).collect();
            status.pending_streams =
                node.peers().map(|peer| node.pending_streams_of(peer.node)).collect();
            status.counts = node.counts();
            status.streams = node.streams();
            status.replay_bytes = node.replay_bytes();
            status.incomplete = incomplete;
            status.presence = presence;
        });
    }

    async fn leave(mut self) {
        self.entries.due_us = 0;
        self.turn();
        self.node.on_leave(self.link.now_us());
        self.perform();
        self.flush().await;
    }

    /// Waits until NATS has all sent packets.
    async fn flush(&self) {
        if self.client.connection_state() != State::Connected {
            return;
        }
        let (done, flushed) = oneshot::channel();
        let _ = self.commands.send(Command::Flush(done));
        // Without NATS nothing can be sent.
        let _ = timeout(FLUSH_TIMEOUT, flushed).await;
    }
}
