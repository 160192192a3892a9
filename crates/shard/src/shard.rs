//! One event loop and all it owns.
//!
//! A turn of the loop: wait; what sockets say; what the mailbox holds; a bounded piece of the
//! fan-outs; new connections; the sweep. Nothing in a turn blocks, and no piece is long.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use broker::Broker;
use hub::Hub;
use rustix::event::epoll::EventFlags;
use wire::{Close, ConnectionId, Message, Tools, Variant};

use crate::accept::Bucket;
use crate::batch::Batch;
use crate::bulk::{Place, Places};
use crate::command::Command;
use crate::connection::{Flag, Table};
use crate::follow::Following;
use crate::handle::{Handle, Shared};
use crate::joins::Joins;
use crate::listen::Balance;
use crate::metrics::Metrics;
use crate::poller::Poller;
use crate::presence::Tracked;
use crate::sender::Sender;
use crate::settings::Settings;
use crate::webhook::Webhook;

/// Events of the wake-up and the listener carry these tokens; all others are slots.
pub(crate) const WAKE: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// The sweep passes over the table once a second, in so many stripes.
pub(crate) const STRIPES: u32 = 16;

/// Bytes that one read may give. Shared by all connections of the shard.
pub(crate) const READ_BYTES: usize = 64 << 10;

pub(crate) struct Shard {
    pub(crate) number: u16,
    pub(crate) handle: Handle,
    /// All shards, this one included, by number.
    pub(crate) shards: Arc<[Handle]>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) webhook: Option<Arc<dyn Webhook>>,
    pub(crate) balance: Arc<Balance>,
    pub(crate) places: Arc<Places>,
    pub(crate) place: Place,
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) started: Instant,
    pub(crate) poller: Poller,
    pub(crate) sender: Sender,
    pub(crate) tools: Tools,
    pub(crate) listener: Option<OwnedFd>,
    /// A descriptor kept back, so that there is one to answer with when all others are in use.
    pub(crate) spare: Option<OwnedFd>,
    pub(crate) capacity: u64,
    pub(crate) bucket: Bucket,
    pub(crate) accept_after_us: u64,
    pub(crate) table: Table,
    pub(crate) hub: Hub<Arc<Message>>,
    pub(crate) joins: Joins,
    /// How connections follow topics with history.
    pub(crate) following: Following,
    /// What connections have in the registry of presence, by slot.
    pub(crate) tracked: HashMap<u32, Vec<Tracked>>,
    /// Topics whose presence a Phoenix client is told when it has taken what waits for it, by slot.
    pub(crate) lists_due: HashMap<u32, Vec<wire::Name>>,
    pub(crate) heartbeats: [Arc<[u8]>; Variant::COUNT],
    pub(crate) batch: Batch,
    pub(crate) serial: u32,
    pub(crate) topics_ended: usize,
    /// Commands taken from the mailbox and not done yet.
    pub(crate) commands: VecDeque<Command>,
    /// Polls that something was published for.
    pub(crate) woken: Vec<u32>,
    /// Connections with more input than one read gave.
    pub(crate) unread: Vec<u32>,
    /// What connections have published and entered lately.
    pub(crate) asked: HashMap<u32, crate::flow::Asked>,
    /// Connections that have to wait: see [`crate::flow`].
    pub(crate) waiters: Vec<u32>,
    /// Members of topics that must catch up.
    pub(crate) short: crate::flow::Short,
    /// Connections beyond the limit of their address that may be health checks.
    pub(crate) reserved: u32,
    pub(crate) buffer: Vec<u8>,
    pub(crate) out: Vec<u8>,
    /// Addresses of connections, while their number is limited.
    pub(crate) peers: HashMap<u32, IpAddr>,
    pub(crate) sweep: crate::sweep::Sweep,
    pub(crate) drain: Option<crate::sweep::Drain>,
    /// When tables are to be tidied next.
    pub(crate) tidy_due_us: u64,
    /// The time of this turn, in microseconds of the node's clock.
    pub(crate) now_us: u64,
}

/// How many connections each address has, over all shards; used while they are limited.
#[derive(Default)]
pub(crate) struct Addresses(Mutex<HashMap<IpAddr, u32>>);

impl Addresses {
    /// Counts one more, unless there are `max`.
    pub fn enter(&self, address: IpAddr, max: u32) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        let room = *count < max;
        *count += u32::from(room);
        room
    }

    pub fn leave(&self, address: IpAddr) {
        let counts = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&address);
                // Does nothing unless nearly all addresses of a crowd have left.
                counts.shrink_to(counts.len() * 4);
            }
        }
    }
}

impl Shard {
    /// Runs until it has drained.
    pub fn run(mut self) {
        if let Err(error) = self.watch() {
            tracing::error!("shard {} can't watch its descriptors: {error}", self.number);
            return;
        }
        self.buffer = vec![0; READ_BYTES];
        while !self.is_over() {
            self.turn();
        }
        for slot in 0..self.table.end() {
            self.end(slot, Close::Drain);
        }
        self.places.quit(self.number, self.place);
        // What is published from now on doesn't come here, and nobody waits for what did.
        self.handle.inbox.filter.rebuild(std::iter::empty());
        self.handle.inbox.waiting.end();
        self.shared.ended.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn watch(&self) -> rustix::io::Result<()> {
        self.poller.add_level(&self.handle.inbox.mailbox.waker().0, WAKE)?;
        if let Some(listener) = &self.listener {
            self.poller.add_level(listener, LISTENER)?;
        }
        Ok(())
    }

    fn turn(&mut self) {
        let events = match self.poller.wait(self.patience_us()) {
            Ok(events) => events,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => {
                tracing::error!("shard {}: waiting failed: {error}", self.number);
                std::thread::sleep(std::time::Duration::from_millis(100));
                0
            }
        };
        self.now_us = self.started.elapsed().as_micros() as u64;
        let mut accept = false;
        self.go_on_waiting();
        for slot in std::mem::take(&mut self.unread) {
            self.readable(slot, true);
        }
        for at in 0..events {
            match self.poller.event(at) {
                (WAKE, _) => self.wake(),
                (LISTENER, _) => accept = true,
                (slot, flags) => self.ready(slot as u32, flags),
            }
        }
        self.run_commands();
        self.lift();
        self.fan_out();
        // Last, so that a descriptor that was closed in this turn is not used again in it: no
        // event of this turn can be taken for another connection's.
        if accept {
            self.accept();
        }
        self.sweep();
    }

    /// How long this turn may wait, in microseconds.
    fn patience_us(&self) -> u64 {
        // Bulk work that waits for a place is woken when it has one.
        let fanouts = match self.place {
            Place::Waiting => self.hub.fanouts() - self.hub.bulk_fanouts(),
            _ => self.hub.fanouts(),
        };
        // Commands that wait for room in the fan-outs can go on only when these do.
        let commands = !self.commands.is_empty() && !self.is_behind();
        let busy =
            fanouts > 0 || commands || !self.unread.is_empty() || !self.following.due.is_empty();
        if busy {
            return 0;
        }
        let now_us = self.started.elapsed().as_micros() as u64;
        self.sweep_due_us().min(self.waiting_due_us()).saturating_sub(now_us)
    }

    /// Clears the wake-up before the mailbox is emptied: see [`crate::mailbox::Mailbox`].
    pub(crate) fn wake(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.handle.inbox.mailbox.waker().0, &mut count);
        self.following.takes += 1;
        if self.commands.is_empty() {
            let empty = Vec::from(std::mem::take(&mut self.commands));
            self.commands = self.handle.inbox.mailbox.take(empty).into();
        } else {
            self.commands.extend(self.handle.inbox.mailbox.take(Vec::new()));
        }
    }

    pub(crate) fn ready(&mut self, slot: u32, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            self.flush(slot);
        }
        let ended = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        if self.is_paused(slot) {
            self.ready_paused(slot, flags);
        } else if flags.intersects(EventFlags::IN | ended) {
            // Where the end is near it is read up to: it has no event of its own.
            self.readable(slot, flags.intersects(ended));
        }
    }

    /// A socket that is left unread has an event. Its input has its turn later, and so has the end
    /// behind it; but nobody waits for an answer whose reader is gone.
    fn ready_paused(&mut self, slot: u32, flags: EventFlags) {
        let waits = self.table.get(slot).is_some_and(|connection| {
            matches!(connection.variant, Variant::Poll | Variant::Asking)
        });
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            self.end(slot, Close::Lost);
        } else if waits && flags.contains(EventFlags::RDHUP) {
            self.end(slot, Close::ByClient);
        }
    }

    pub(crate) fn now_s(&self) -> u32 {
        (self.now_us / 1_000_000) as u32
    }

    pub(crate) fn id(&self, slot: u32, serial: u32) -> ConnectionId {
        ConnectionId { shard: self.number, slot, serial }
    }

    /// The connection takes up a variant.
    pub(crate) fn become_variant(&mut self, slot: u32, variant: Variant) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        self.metrics.connections[connection.variant as usize].sub(1);
        self.metrics.connections[variant as usize].add(1);
        self.metrics.opened[variant as usize].add(1);
        connection.variant = variant;
    }

    /// Begins to end a connection: nothing more is delivered to it or read from it. `last` is
    /// sent, if it can be; then it is closed, at once where the peer is known to have said
    /// everything, else when it has closed its side too.
    pub(crate) fn close(&mut self, slot: u32, close: Close, last: &[u8]) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        if connection.is(Flag::Closing) {
            return;
        }
        connection.set(Flag::Closing, true);
        connection.heard_s = (self.now_us / 1_000_000) as u16;
        let had_outbox = connection.outbox().is_some();
        let extra = connection.extra();
        extra.input = Vec::new();
        extra.decoder = None;
        extra.poll = None;
        (extra.paused, extra.waits) = (false, false);
        extra.closing = Some(close);
        let asking = extra.asking.take();
        let serial = connection.serial;
        self.count_input(slot);
        if let Some(asking) = asking {
            self.asking_ended(&asking, self.id(slot, serial));
        }
        self.leave_hub(slot);
        if had_outbox && close == Close::SlowConsumer {
            // It wouldn't read the rest either.
            return self.end(slot, close);
        }
        if !last.is_empty() {
            self.send(slot, last, 0);
        }
        match self.table.get(slot) {
            Some(connection) if connection.variant.is_polled() => self.close_session(slot),
            Some(connection) if connection.outbox().is_none() => self.shut(slot),
            _ => {}
        }
    }

    /// Everything is sent: closes our side and waits for the peer's. Closing outright while input
    /// is unread would make the kernel reset the connection, and the peer lose the last bytes.
    pub(crate) fn shut(&mut self, slot: u32) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        let close = connection.extra.as_ref().and_then(|extra| extra.closing);
        let close = close.unwrap_or(Close::Internal);
        let may_speak = !matches!(close, Close::ByClient | Close::Lost | Close::Answered);
        let shut = rustix::net::shutdown(&connection.fd, rustix::net::Shutdown::Write);
        if may_speak && shut.is_ok() {
            connection.set(Flag::Lingering, true);
            // In the next turn, what is there is read and thrown away, or the end is seen.
            self.unread.push(slot);
        } else {
            self.end(slot, close);
        }
    }

    /// Takes a connection away, now. The kernel sends what it has taken.
    pub(crate) fn end(&mut self, slot: u32, close: Close) {
        self.leave_hub(slot);
        let Some(mut connection) = self.table.remove(slot) else {
            return;
        };
        self.asked.remove(&slot);
        let (session, asking) = match &mut connection.extra {
            Some(extra) => {
                self.metrics.input_bytes.sub(u64::from(extra.counted));
                self.reserved -= u32::from(extra.reserved);
                (extra.session.take(), extra.asking.take())
            }
            None => (None, None),
        };
        let reason = connection.extra.as_ref().and_then(|extra| extra.closing).unwrap_or(close);
        if let Some(outbox) = connection.outbox() {
            // A session's is always there.
            self.metrics.outboxes.sub(u64::from(!connection.variant.is_polled()));
            self.metrics.outbox_bytes.sub(outbox.bytes() as u64);
        }
        self.metrics.connections[connection.variant as usize].sub(1);
        self.metrics.closed[reason as usize].add(1);
        self.metrics.held.sub(1);
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        if let Some(address) = self.peers.remove(&slot) {
            self.addresses.leave(address);
        }
        let id = self.id(slot, connection.serial);
        if let Some(session) = session {
            self.session_ended(id, *session);
        }
        if let Some(asking) = asking {
            self.asking_ended(&asking, id);
        }
    }

    /// Puts a connection into the topics of its users, its own, and those that its users have
    /// subscribed to for good: the users are there.
    pub(crate) fn enter_hub(&mut self, slot: u32, users: &[wire::Name], topics: &[wire::Name]) {
        // Nobody may stand in the hub under a number that is no connection's.
        if !self.is_open(slot) {
            return;
        }
        self.hub.insert(slot);
        for user in users {
            self.join(slot, &wire::message::personal(user));
        }
        for topic in topics {
            self.join(slot, topic);
        }
        for user in users {
            for topic in self.shared.subscriptions.of(user) {
                self.join(slot, &topic);
            }
        }
    }

    pub(crate) fn join(&mut self, slot: u32, topic: &str) -> bool {
        self.join_with(slot, topic, "{}")
    }

    /// Enters a topic with a meta, the text of a JSON object, for its presence.
    pub(crate) fn join_with(&mut self, slot: u32, topic: &str, meta: &str) -> bool {
        let hash = self.broker.hash(topic);
        let joined = self.hub.join(slot, hash, topic);
        self.handle.inbox.filter.insert(hash);
        self.metrics.topics.set(u64::from(self.hub.topics()));
        if joined {
            self.enter_presence(slot, topic, meta);
        } else if meta != "{}" {
            // The application had put it there, without one.
            self.update_presence(slot, hash, meta);
        }
        joined
    }

    /// Leaves a topic; false when the connection is not in it.
    pub(crate) fn leave(&mut self, slot: u32, topic: &str) -> bool {
        let hash = self.broker.hash(topic);
        let left = self.hub.leave(slot, hash, topic);
        self.unfollow(slot, hash);
        self.topics_ended += usize::from(left == Some(true));
        if left.is_some() {
            self.leave_presence(slot, topic);
        }
        left.is_some()
    }

    pub(crate) fn leave_hub(&mut self, slot: u32) {
        self.leave_all_presence(slot);
        self.unfollow_all(slot);
        self.lists_due.remove(&slot);
        self.joins.clear(slot);
        self.topics_ended += self.hub.remove(slot) as usize;
        self.metrics.topics.set(u64::from(self.hub.topics()));
    }

    fn is_over(&self) -> bool {
        self.drain
            .as_ref()
            .is_some_and(|drain| self.table.count() == 0 || drain.deadline_us <= self.now_us)
    }
}
