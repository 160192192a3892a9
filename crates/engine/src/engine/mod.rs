//! The engine of one shard: its connections, their topics, and the messages to them. It has no socket, clock, thread
//! or descriptor; a driver (crate `shard`) has these and calls it.
//!
//! There are four kinds of methods:
//! - *getters* (`number`, `metrics`, `is_draining`, …) change nothing;
//! - *inputs* (`on_*`, all in `inputs.rs`) say what a socket did;
//! - *commands* (`open`, `set_now`, `run_commands`, `sweep`, `slice`, `pause`, …) have the engine do something;
//! - *polls* (`poll_outputs`, `poll_replies`, `poll_due_us`) take what the driver is to do, or when.
//!
//! A turn of the driver's loop calls them in this order:
//! 1. `set_now` and `set_input_wait`, once, then `resume_waiters`, and `on_drained` for sockets that have sent
//!    everything;
//! 2. an `on_*` for each thing that a socket did, and `take_commands` when another thread woke the shard;
//! 3. `run_commands`, then `release_pending`;
//! 4. `slice` while the turn's budget lasts, then `serve_due` and `reply_woken`;
//! 5. `open` for each accepted connection: last, so that no event of this turn meets it in an old slot;
//! 6. `sweep`, when it is due.
//!
//! After each of them it takes [`Engine::poll_outputs`] and carries them out in order: all outputs are in
//! `core/output.rs`.

pub(crate) mod dispatch;
mod evict;
mod inputs;
pub(crate) mod mailbox;
mod receive;
mod second;
pub(crate) mod sweep;

use std::sync::Arc;

use broker::Broker;
use history::History;
use model::{CloseReason, Encoding};
use protocol::{Codecs, Delivery};

use crate::connection::Phase;
use crate::core::Core;
use crate::core::handle::{Handle, Shared};
use crate::core::log_limit::Lines;
use crate::core::metrics::Metrics;
use crate::core::output::Outputs;
use crate::core::settings::Settings;
use crate::handover::restarts::Restarts;
use crate::limits::rates::Rates;
use crate::presence::entries::PresenceEntries;
use crate::recovery::Recovery;
use crate::recovery::pages::Pages;
use crate::topics::explicit::ExplicitTopics;
use crate::webhook::Webhook;
use sweep::Sweep;

/// See the crate's documentation.
pub struct Engine {
    /// The state that every part uses.
    pub(crate) core: Core,
    /// How connections catch up with topics that have history.
    pub(crate) recovery: Recovery,
    /// The rates at which connections load others, and their limits.
    pub(crate) rates: Rates,
    /// Topics that clients entered themselves: a logout does not leave them.
    pub(crate) explicit: ExplicitTopics,
    /// The pages of history that connections wait for.
    pub(crate) pages: Pages,
    /// The number of connections so far. It wraps around.
    pub(crate) serial: u32,
    /// Connections beyond the limit of their address. They are open, since they may be health checks.
    pub(crate) reserved: u32,
    /// Connections from another engine that have not gone on yet.
    pub(crate) restarts: Restarts,
    /// The heartbeat of each encoding.
    pub(crate) heartbeats: [Arc<[u8]>; Encoding::MAX],
    /// Replies to the present input. The buffer is reused.
    pub(crate) out: Vec<u8>,
    /// Slots by encoding, while a slice or a stripe is gathered.
    pub(crate) groups: Vec<Vec<u32>>,
    pub(crate) sweep: sweep::Sweep,
    /// The drain, once it has begun.
    pub(crate) drain: Option<sweep::Drain>,
    /// The time of the next run of the work of each second, in microseconds of the node's clock.
    pub(crate) second_due_us: u64,
}

/// The arguments of `Engine::new`.
pub struct Config {
    /// The engine's number among those of the process.
    pub number: u16,
    /// Handles to all engines of the process, this one included, by number.
    pub engines: Arc<[Handle]>,
    /// The state that all engines share.
    pub shared: Arc<Shared>,
    /// Settings that may change.
    pub settings: Arc<Settings>,
    /// Publishes messages.
    pub broker: Arc<dyn Broker>,
    /// The topics with history.
    pub history: Arc<dyn History>,
    /// Sends requests to the application, if one is configured.
    pub webhook: Option<Arc<dyn Webhook>>,
    /// The codecs of this engine's connections.
    pub codecs: Codecs,
    /// The time, in microseconds of the node's clock.
    pub now_us: u64,
}

impl Engine {
    /// Creates an engine without connections.
    ///
    /// # Panics
    /// Unless `engines` has a handle for its number.
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
            webhook,
            codecs: config.codecs,
            table: Default::default(),
            hub: Default::default(),
            joins: Default::default(),
            mqtt: Default::default(),
            mqtt_taken: 0,
            credentials: Default::default(),
            snapshots_due: Default::default(),
            conflation: Default::default(),
            costs: Default::default(),
            observed: Default::default(),
            dedup: Default::default(),
            peers: Default::default(),
            lines: Lines::new(),
            traces: Default::default(),
            topics_ended: 0,
            commands: Default::default(),
            stands_still: false,
            aside: Vec::new(),
            under_way: Arc::default(),
            resumed: Vec::new(),
            draining: false,
            woken: Vec::new(),
            replies: 0,
            now_us: config.now_us,
            input_wait_us: 0,
            hook_events: Vec::new(),
            outputs: Default::default(),
            effects: Vec::new(),
        };
        Engine {
            core,
            recovery: Recovery::default(),
            rates: Rates::default(),
            explicit: ExplicitTopics::default(),
            pages: Pages::default(),
            serial: 0,
            reserved: 0,
            restarts: Restarts::default(),
            heartbeats,
            out: Vec::new(),
            groups: vec![Vec::new(); Encoding::MAX],
            sweep: Sweep::at(config.now_us),
            drain: None,
            second_due_us: 0,
        }
    }

    /// Returns the engine's number.
    pub fn number(&self) -> u16 {
        self.core.number
    }

    /// Returns its metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.core.metrics
    }

    /// Returns the state that all engines of the process share.
    pub fn shared(&self) -> &Shared {
        &self.core.shared
    }

    /// Returns the settings in force.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.core.settings
    }

    /// Returns the broker, which publishes messages.
    pub fn broker(&self) -> &Arc<dyn Broker> {
        &self.core.broker
    }

    /// Returns its handle.
    pub fn handle(&self) -> &Handle {
        &self.core.handle
    }

    /// Returns the time of the last input, in microseconds of the node's clock.
    pub fn now_us(&self) -> u64 {
        self.core.now_us
    }

    /// Sets the time, in microseconds of the node's clock, until the next call.
    pub fn set_now(&mut self, now_us: u64) {
        self.core.now_us = now_us;
    }

    /// Sets for how many microseconds input may have waited that this turn does not read. This time does not count as
    /// silence of any client. It is 0 if the turn reads all input.
    pub fn set_input_wait(&mut self, wait_us: u64) {
        self.core.input_wait_us = wait_us;
    }

    /// Exchanges the pending outputs for `empty` ones, whose memory is reused.
    pub fn poll_outputs(&mut self, empty: Outputs) -> Outputs {
        notify(self);
        std::mem::replace(&mut self.core.outputs, empty)
    }

    /// True while outputs are pending.
    pub fn has_outputs(&self) -> bool {
        !self.core.outputs.is_empty()
    }

    /// Leaves a socket unread, until [`Output::Resume`](crate::Output::Resume).
    pub fn pause(&mut self, slot: u32) {
        self.core.pause(slot);
    }

    /// True while the driver leaves the socket unread.
    pub fn is_paused(&self, slot: u32) -> bool {
        self.core.is_paused(slot)
    }

    /// Returns how many bytes of a connection's input may be read now, at most `whole`.
    pub fn input_capacity(&self, slot: u32, whole: usize) -> usize {
        self.core.input_capacity(slot, whole)
    }

    /// True when all engines together use more than `max`, and this one more than its share: so an engine reads the
    /// metrics of the others only when it uses much itself.
    pub fn is_beyond(&self, max: usize, used: impl Fn(&Metrics) -> u64) -> bool {
        self.core.is_beyond(max, used)
    }

    /// Returns the sessions with waiting bytes, and how many.
    pub fn session_backlogs(&self) -> impl Iterator<Item = (u32, usize)> {
        self.core.session_backlogs()
    }

    /// Lets connections that have caught up get live messages again, once no deferred message can come any more.
    /// Called once a turn, after the commands.
    pub fn release_pending(&mut self) {
        self.recovery.release_pending(&mut self.core);
    }

    /// Resumes connections that have waited for their rate, or for members to catch up.
    pub fn resume_waiters(&mut self) {
        for slot in self.rates.take_waiters(&mut self.core) {
            if self.rates.has_waited(&mut self.core, slot) {
                self.retry_token(slot);
                self.resume_input(slot);
            }
        }
    }

    /// Serves the connections that have become due. Called when a batch has left.
    pub fn serve_due(&mut self) {
        notify(self);
        self.mqtt_serve_due();
        self.recover(|recovery, core| recovery.serve_due(core));
    }

    /// Connections beyond the limit of their address. They are open, since they may be health checks.
    pub fn reserved(&self) -> u32 {
        self.reserved
    }

    /// True while a fan-out over a long list runs or waits.
    pub fn has_bulk(&self) -> bool {
        self.core.hub.bulk_fanouts() > 0
    }

    /// True when a drain has begun.
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Ends all connections at once.
    pub fn end_all(&mut self) {
        for slot in 0..self.core.table.end() {
            if self.core.table.get(slot).is_some() {
                self.end(slot, CloseReason::Drain);
            }
        }
        notify(self);
    }

    /// True when no limit applies: a connection that is in no topic gets only what it requests, which may be far
    /// larger than any message.
    pub fn is_unlimited(&self, slot: u32) -> bool {
        let core = &self.core;
        core.table.get(slot).is_some_and(|connection| {
            connection.phase() == Phase::Open && core.delivery(connection) == Delivery::Nothing
        })
    }

    /// Returns the short replies since the last call, to measure their time.
    pub fn poll_replies(&mut self) -> u64 {
        std::mem::take(&mut self.core.replies)
    }

    /// Performs the remaining effects of an input, and resumes connections that sent more input while a request of
    /// theirs waited for its reply.
    pub(crate) fn resume_inputs(&mut self) {
        self.perform_effects();
        while let Some(slot) = self.core.resumed.pop() {
            self.resume_input(slot);
        }
    }

    /// Closes a connection whose outbox is too much for all together.
    pub fn relieve(&mut self, slot: u32) {
        match self.core.table.get(slot) {
            // It was about to end when its bytes had left.
            Some(found) if found.is_closing() => self.end(slot, CloseReason::SlowConsumer),
            _ => self.close(slot, CloseReason::SlowConsumer, &[]),
        }
    }
}

/// Passes the pending events on to the application.
fn notify(engine: &mut Engine) {
    let core = &mut engine.core;
    if !core.hook_events.is_empty() {
        let events = std::mem::take(&mut core.hook_events);
        if let Some(webhook) = &core.webhook {
            webhook.notify(core.number, events);
        }
    }
}
