//! All that one shard does, without a socket: connections, their topics, and what is published.
//!
//! The engine is driven from outside. Inputs are methods (a connection was opened, bytes came, all
//! bytes have left, it is lost, a command, the time), and what is to be done about them waits in
//! [`Engine::outputs`] until the driver has drained it, which it does after every input.

pub(crate) mod dispatch;
pub(crate) mod mailbox;
mod receive;
pub(crate) mod shrink;
pub(crate) mod sweep;

use std::net::IpAddr;
use std::sync::Arc;

use broker::Broker;
use history::History;
use model::{CloseReason, Encoding};
use protocol::{Codecs, Delivery, Listener};

use crate::connection::lifecycle::Connections;
use crate::connection::peers::Arrival;
use crate::connection::reject::Refused;
use crate::connection::{Flag, Phase};
use crate::core::Core;
use crate::core::handle::{Handle, Shared};
use crate::core::log_limit::Lines;
use crate::core::metrics::{Metrics, Refusal};
use crate::core::output::Outputs;
use crate::core::settings::Settings;
use crate::engine::dispatch::Actions;
pub use crate::handover::fanouts::{Owed, OwedMember};
use crate::phoenix::Channels;
use crate::presence::entries::PresenceEntries;
use crate::presence::snapshot::Lists;
use crate::recovery::page_requests::PageReads;
use crate::webhook::Webhook;
use sweep::Sweep;

/// See the crate's documentation.
pub struct Engine {
    pub(crate) connections: Connections,
    pub(crate) webhook: Option<Arc<dyn Webhook>>,
    /// By encoding.
    pub(crate) heartbeats: [Arc<[u8]>; Encoding::MAX],
    pub(crate) out: Vec<u8>,
    /// Slots by encoding, while a slice or a stripe is gathered.
    pub(crate) groups: Vec<Vec<u32>>,
    pub(crate) sweep: sweep::Sweep,
    pub(crate) drain: Option<sweep::Drain>,
    /// When tables are to be tidied next.
    pub(crate) tidy_due_us: u64,
}

/// What an engine is made from.
pub struct Config {
    /// The engine's number among those of the process.
    pub number: u16,
    /// Handles to all engines of the process, this one included, by number.
    pub engines: Arc<[Handle]>,
    /// What they share.
    pub shared: Arc<Shared>,
    /// Settings that may change.
    pub settings: Arc<Settings>,
    /// Where messages are published.
    pub broker: Arc<dyn Broker>,
    /// The topics with history.
    pub history: Arc<dyn History>,
    /// Who asks the application, if anybody does.
    pub webhook: Option<Arc<dyn Webhook>>,
    /// The codecs of this engine's connections.
    pub codecs: Codecs,
    /// The time, in microseconds of the node's clock.
    pub now_us: u64,
}

impl Engine {
    /// An engine without connections.
    ///
    /// # Panics
    /// Unless there is a handle for its number.
    pub fn new(config: Config) -> Self {
        let Config { number, engines, shared, settings, broker, history, webhook, .. } = config;
        let heartbeats = Encoding::ALL.map(|encoding| {
            let mut out = Vec::new();
            shared.protocols.of(encoding).heartbeat(&mut out);
            out.into()
        });
        let handle = engines[usize::from(number)].clone();
        let core = Core {
            number,
            metrics: handle.metrics.clone(),
            handle,
            engines,
            entries: PresenceEntries::new(shared.presence.clone()),
            shared,
            settings,
            broker,
            history,
            codecs: config.codecs,
            table: Default::default(),
            hub: Default::default(),
            joins: Default::default(),
            mqtt: Default::default(),
            mqtt_taken: 0,
            credentials: Default::default(),
            lists_due: Default::default(),
            conflation: Default::default(),
            overlaps: Default::default(),
            peers: Default::default(),
            lines: Lines::new(),
            topics_ended: 0,
            commands: Default::default(),
            stands_still: false,
            aside: Vec::new(),
            under_way: Arc::default(),
            resumed: Vec::new(),
            draining: false,
            woken: Vec::new(),
            answers: 0,
            now_us: config.now_us,
            told: Vec::new(),
            outputs: Default::default(),
            effects: Vec::new(),
        };
        Engine {
            connections: Connections::new(core),
            webhook,
            heartbeats,
            out: Vec::new(),
            groups: vec![Vec::new(); Encoding::MAX],
            sweep: Sweep::at(config.now_us),
            drain: None,
            tidy_due_us: 0,
        }
    }

    /// The engine's number.
    pub fn number(&self) -> u16 {
        self.connections.core.number
    }

    /// What it counts.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.connections.core.metrics
    }

    /// What all engines of the process share.
    pub fn shared(&self) -> &Shared {
        &self.connections.core.shared
    }

    /// The settings in force.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.connections.core.settings
    }

    /// Where messages are published.
    pub fn broker(&self) -> &Arc<dyn Broker> {
        &self.connections.core.broker
    }

    /// Its handle.
    pub fn handle(&self) -> &Handle {
        &self.connections.core.handle
    }

    /// The time of the last input, in microseconds of the node's clock.
    pub fn now_us(&self) -> u64 {
        self.connections.core.now_us
    }

    /// It is now so late, in microseconds of the node's clock, until this is called again.
    pub fn set_now(&mut self, now_us: u64) {
        self.connections.core.now_us = now_us;
    }

    /// Exchanges the outputs that wait for `empty` ones, whose room is used again.
    pub fn take_outputs(&mut self, empty: Outputs) -> Outputs {
        tell(self);
        std::mem::replace(&mut self.connections.core.outputs, empty)
    }

    /// True while outputs wait.
    pub fn has_outputs(&self) -> bool {
        !self.connections.core.outputs.is_empty()
    }

    /// Leaves a socket unread, until [`Output::Resume`](crate::Output::Resume).
    pub fn pause(&mut self, slot: u32) {
        self.connections.core.pause(slot);
    }

    /// True while the driver leaves the socket unread.
    pub fn is_paused(&self, slot: u32) -> bool {
        self.connections.core.is_paused(slot)
    }

    /// How much of a connection's input may be read now, in bytes, at most `whole`.
    pub fn input_room(&self, slot: u32, whole: usize) -> usize {
        self.connections.core.input_room(slot, whole)
    }

    /// True when all engines together hold more than they may, and this one more than its share: so
    /// an engine asks the others only when it holds much itself.
    pub fn is_beyond(&self, max: usize, held: impl Fn(&Metrics) -> u64) -> bool {
        self.connections.core.is_beyond(max, held)
    }

    /// Sessions for which something waits, and how many bytes.
    pub fn session_backlogs(&self) -> impl Iterator<Item = (u32, usize)> {
        self.connections.core.session_backlogs()
    }

    /// Ends the holds behind which nothing is under way any more. To be called once a turn, when
    /// commands have been done.
    pub fn release_held(&mut self) {
        self.connections.recovery.release_held(&mut self.connections.core);
    }

    /// Goes on with connections that have waited for their rate, or for members to catch up.
    pub fn resume_waiters(&mut self) {
        for slot in self.connections.rates.take_waiters(&mut self.connections.core) {
            if self.connections.rates.has_waited(&mut self.connections.core, slot) {
                self.connections.retry_token(slot);
                self.resume_input(slot);
            }
        }
    }

    /// Serves the connections for which something came. To be called when a batch has left.
    pub fn serve_due(&mut self) {
        tell(self);
        self.connections.mqtt_serve_due();
        self.connections.recover(|recovery, core| recovery.serve_due(core));
    }

    /// Connections beyond the limit of their address that may be health checks.
    pub fn reserved(&self) -> u32 {
        self.connections.reserved
    }

    /// True while a fan-out over a long list is under way or waits.
    pub fn has_bulk(&self) -> bool {
        self.connections.core.hub.bulk_fanouts() > 0
    }

    /// True when a drain has begun.
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Ends all connections at once.
    pub fn end_all(&mut self) {
        for slot in 0..self.connections.core.table.end() {
            if self.connections.core.table.get(slot).is_some() {
                self.connections.end(slot, CloseReason::Drain);
            }
        }
        tell(self);
    }

    /// The driver holds bytes for the connection that its peer doesn't take.
    pub fn blocked(&mut self, slot: u32) {
        self.connections.core.set(slot, Flag::Blocked, true);
    }

    /// Some of those bytes have left.
    pub fn wrote(&mut self, slot: u32) {
        let now_s = self.connections.core.now_wrapping_s();
        let Core { table, shared, .. } = &mut self.connections.core;
        if let Some(connection) = table.get_mut(slot)
            && shared.protocols.delivery(connection.encoding) == Delivery::Nothing
        {
            // It reads: that counts as a sign of life while an answer is long.
            connection.heard_s = now_s;
        }
    }

    /// All bytes have left: the connection gets what waits for that.
    pub fn drained(&mut self, slot: u32) {
        self.connections.core.set(slot, Flag::Blocked, false);
        self.connections.core.set(slot, Flag::Awaiting, false);
        self.connections.core.table.trim(slot);
        if self.connections.core.is_open(slot) {
            self.connections.serve_conflated(slot);
            Lists { core: &mut self.connections.core }.flush_due(slot);
            self.connections.recover(|recovery, core| recovery.pull_more(core, slot));
            self.connections.mqtt_serve(slot);
            PageReads { connections: &mut self.connections }.next(slot);
            self.resume_input(slot);
        }
    }

    /// More waits for the connection than may: it is a slow consumer.
    pub fn slow(&mut self, slot: u32) {
        self.connections.close(slot, CloseReason::SlowConsumer, &[]);
    }

    /// The socket has failed.
    pub fn lost(&mut self, slot: u32) {
        self.connections.end(slot, CloseReason::Lost);
    }

    /// The kernel can't watch the connection.
    pub fn unwatched(&mut self, slot: u32) {
        self.connections.end(slot, CloseReason::Overloaded);
    }

    /// Our side is shut, after [`Output::Close`](crate::Output::Close); the peer's is not yet.
    pub fn half_closed(&mut self, slot: u32) {
        self.connections.core.enter(slot, Phase::HalfClosed);
    }

    /// Everything has left, after [`Output::Close`](crate::Output::Close), and nothing more is waited for.
    pub fn ended(&mut self, slot: u32) {
        self.connections.end(slot, CloseReason::Internal);
    }

    /// What a connection that is in no topic is sent is its own doing, and may be far larger than any
    /// message: nothing limits it.
    pub fn is_unlimited(&self, slot: u32) -> bool {
        let core = &self.connections.core;
        core.table.get(slot).is_some_and(|connection| {
            connection.phase() == Phase::Open && core.delivery(connection) == Delivery::Nothing
        })
    }

    /// Short answers since this was last asked, for the time that they took.
    pub fn take_answers(&mut self) -> u64 {
        std::mem::take(&mut self.connections.core.answers)
    }

    /// A connection was opened, by this listener; gives its slot.
    pub fn open(&mut self, listener: Listener, arrival: Arrival) -> u32 {
        self.connections.open(listener, arrival)
    }

    /// Counts a connection for which there was no room, and how it was answered.
    pub fn count_refusal(&self, refused: Refused, refusal: Refusal) {
        self.connections.count_refusal(refused, refusal);
    }

    /// The driver says where a request for a session comes from. Its token is in the answer.
    pub fn address(&mut self, slot: u32, address: Option<IpAddr>) {
        let known = self.connections.core.peers.address(slot);
        let address = known.or(address);
        self.connections.rates.quota.locate(&self.connections.core, slot, address);
        self.channels().address(slot, address);
        self.resume_inputs();
    }

    /// The Phoenix clients and their long-poll sessions.
    pub(crate) fn channels(&mut self) -> Channels<'_> {
        Channels { connections: &mut self.connections, webhook: self.webhook.as_deref() }
    }

    /// Does what the connections' peers ask for.
    pub(crate) fn actions(&mut self) -> Actions<'_> {
        Actions { connections: &mut self.connections, webhook: self.webhook.as_deref() }
    }

    /// Does what is still to be done because of an input, and goes on with what connections sent
    /// while a request of theirs waited for its answer.
    pub(crate) fn resume_inputs(&mut self) {
        self.connections.perform_effects();
        while let Some(slot) = self.connections.core.resumed.pop() {
            self.resume_input(slot);
        }
    }

    /// Lets go of half-read input when all connections together hold too much: those that hold most
    /// are refused.
    pub fn relieve_input(&mut self) {
        self.connections.relieve_input();
    }

    /// Lets a connection go whose outbox is too much for all together.
    pub fn relieve(&mut self, slot: u32) {
        match self.connections.core.table.get(slot) {
            // It was about to end with what waits for it.
            Some(found) if found.is_closing() => {
                self.connections.end(slot, CloseReason::SlowConsumer)
            }
            _ => self.connections.close(slot, CloseReason::SlowConsumer, &[]),
        }
    }
}

/// Hands on what the application is to hear.
fn tell(engine: &mut Engine) {
    let core = &mut engine.connections.core;
    if !core.told.is_empty() {
        let events = std::mem::take(&mut core.told);
        if let Some(webhook) = &engine.webhook {
            webhook.tell(core.number, events);
        }
    }
}
