//! Sends events to the application.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throttle::Backoff;
use tokio::time::Instant;

use super::client::LazyClient;
use super::error::{Log, RequestError};
use super::events::{Batch, EventStore, Queue};
use super::signature::RequestId;
use super::time_limit::within;
use super::{Dispatcher, Settings};

/// The pause after a failure, in milliseconds: the first one, and the longest.
const RETRY_MS: (u64, u64) = (250, 30_000);

/// How long events are gathered. When many clients connect, a wake-up for each event would cost as much as the clients.
const GATHER: Duration = Duration::from_millis(10);

/// How long the events that wait are still sent at the end.
const END: Duration = Duration::from_secs(3);

/// The events that the application has not taken yet. The event sender works on them, and a hand-over exports them.
pub(super) struct SharedEventQueue(Mutex<Queue>);

impl SharedEventQueue {
    pub fn new(queue: Queue) -> Self {
        SharedEventQueue(Mutex::new(queue))
    }

    pub fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The side of the control thread: sends events to the application.
pub struct EventSender {
    dispatcher: Arc<Dispatcher>,
    client: LazyClient,
    log: Log,
    /// Completes when the sender has ended.
    _done: Option<tokio::sync::oneshot::Sender<()>>,
}

/// The settings and the state with which the event sender begins.
#[derive(Default)]
pub struct EventStart {
    /// The store of events, if there is one.
    pub store: Option<Arc<dyn EventStore>>,
    /// The events that the previous process has left in the store, with their numbers.
    pub left: Vec<(u64, Box<[u8]>)>,
    /// The name of this node, with which the ids of its connections begin.
    pub node: String,
}

impl EventSender {
    pub(super) fn new(
        dispatcher: Arc<Dispatcher>,
        client: LazyClient,
        done: tokio::sync::oneshot::Sender<()>,
    ) -> Self {
        EventSender { dispatcher, client, log: Log::default(), _done: Some(done) }
    }

    /// Runs until [`Dispatcher::stop`], and a little longer to send the events that wait. Needs a tokio runtime with
    /// I/O and time.
    pub async fn run(mut self) {
        let mut backoff = Backoff::new(RETRY_MS.0, RETRY_MS.1);
        let mut not_before = Instant::now();
        let mut end: Option<Instant> = None;
        let dispatcher = self.dispatcher.clone();
        loop {
            let settings = dispatcher.settings();
            let (due, now, batch) = {
                let _turn = dispatcher.counts.gate.turn().await;
                // This comes before `collect`, so that all events from before the end are collected.
                let is_closed = dispatcher.events.is_closed();
                let mut queue = dispatcher.event_queue.lock();
                if !queue.begun && settings.has_events() {
                    queue.begin();
                }
                let due = queue.collect(settings.events);
                let now = Instant::now();
                let batch = match &settings.url {
                    Some(_) if now >= not_before => {
                        queue.batch(settings.batch_events_max, settings.event_retry)
                    }
                    _ => None,
                };
                if end.is_none() && is_closed {
                    end = Some(now + END);
                }
                (due, now, batch)
            };
            let is_idle = batch.is_none();
            if let (Some(batch), Some(url)) = (batch, settings.url.clone()) {
                let sent = self.send(&url, &settings, &batch, end).await;
                let _turn = dispatcher.counts.gate.turn().await;
                match sent {
                    Ok(()) => {
                        dispatcher.event_queue.lock().taken(&batch);
                        backoff.reset();
                        not_before = now;
                    }
                    Err(error) => {
                        self.log.warn(&error, Some(&url), batch.events as u64);
                        dispatcher.event_queue.lock().failed();
                        not_before = Instant::now() + Duration::from_millis(backoff.delay_ms());
                    }
                }
            }
            if end.is_some_and(|end| is_idle && now >= not_before || now >= end) {
                return;
            }
            if is_idle {
                let waits = (now < not_before).then_some(not_before);
                let until = [due, waits, end].into_iter().flatten().min();
                tokio::select! {
                    () = dispatcher.events.ready.notified() => {
                        tokio::time::sleep(GATHER).await;
                    }
                    () = super::worker::until(until) => {}
                }
            }
        }
    }

    /// Sends a batch, and collects new events meanwhile.
    async fn send(
        &mut self,
        url: &str,
        settings: &Settings,
        batch: &Batch,
        end: Option<Instant>,
    ) -> Result<(), RequestError> {
        let client = self.client.get()?;
        // While the gate is closed, no request begins.
        drop(self.dispatcher.counts.gate.turn().await);
        let (id, proof) = (RequestId::of(batch.first, batch.last), settings.proof());
        let request = client.send_events(url, &id, &proof, batch.body.clone());
        let request = within(settings.timeout, end, request);
        tokio::pin!(request);
        let (mut due, mut gathering) = (None, None);
        loop {
            tokio::select! {
                result = &mut request => return result,
                () = self.dispatcher.events.ready.notified(), if gathering.is_none() => {
                    gathering = Some(Instant::now() + GATHER);
                    continue;
                }
                () = super::worker::until(gathering) => gathering = None,
                () = super::worker::until(due) => {}
            }
            let _turn = self.dispatcher.counts.gate.turn().await;
            due = self.dispatcher.event_queue.lock().collect(self.dispatcher.settings().events);
        }
    }
}
