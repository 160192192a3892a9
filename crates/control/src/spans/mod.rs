//! Spans of traces, for OpenTelemetry: of calls that publish, of messages on their way to members, and of requests to
//! the application. Nothing waits for the collector: spans above the queue's capacity are dropped and counted.

mod context;
mod exporter;
mod otlp;

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use broker::{DeliveryObserver, ShardDelivery};
use tokio::sync::mpsc;

use crate::monitor::process::unix_us;
use crate::outgoing::Authorities;
pub(crate) use context::{SpanContext, TRACEPARENT};
pub use exporter::SpanExporter;

/// Spans that wait for the collector; more are dropped.
const QUEUED_SPANS_MAX: usize = 4_096;

/// Of this many traces [`TracingSettings::sample_per_million`] are recorded.
const MILLION: u64 = 1_000_000;

/// The error of a span that was dropped before its end.
const ABANDONED: &str = "abandoned: it took too long, or the caller closed the connection";

/// The collector of spans, and which of them are recorded.
#[derive(Clone, Debug)]
pub struct TracingSettings {
    /// The collector's address for traces, by OTLP with protobuf over HTTP: `http://127.0.0.1:4318/v1/traces`.
    pub url: String,
    /// How many of a million traces that begin on this node are recorded.
    pub sample_per_million: u64,
    /// Which collectors are trusted.
    pub authorities: Authorities,
    /// The node's name.
    pub node: String,
}

/// Begins spans, and queues those that have ended for the collector.
pub struct Tracer {
    sample_per_million: u64,
    queue: mpsc::Sender<Span>,
    /// Makes ids and samples of the numbers that `drawn` counts.
    random: RandomState,
    drawn: AtomicU64,
    counts: SpanCounts,
}

/// Counts of spans, by their result.
#[derive(Default)]
struct SpanCounts {
    sent: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

/// A span that has ended.
pub(crate) struct Span {
    context: SpanContext,
    parent: Option<SpanParent>,
    name: &'static str,
    kind: SpanKind,
    /// In microseconds since 1970.
    start_us: u64,
    end_us: u64,
    attributes: Vec<(&'static str, AttributeValue)>,
    error: Option<String>,
}

/// The span that caused another one.
#[derive(Clone, Copy)]
struct SpanParent {
    span_id: [u8; 8],
    /// It is of another process.
    is_remote: bool,
}

#[derive(Clone, Copy)]
enum SpanKind {
    Server,
    Internal,
    Client,
}

pub(crate) enum AttributeValue {
    Text(String),
    Number(u64),
}

/// A span that has not ended. One that is dropped ends as abandoned.
pub(crate) struct ActiveSpan {
    tracer: Arc<Tracer>,
    context: SpanContext,
    /// `None` once it is queued.
    span: Option<Span>,
}

impl Tracer {
    /// Makes a tracer, and the exporter that sends its spans to the collector.
    pub fn new(settings: TracingSettings) -> (Arc<Tracer>, SpanExporter) {
        let (queue, queued) = mpsc::channel(QUEUED_SPANS_MAX);
        let tracer = Arc::new(Tracer::with_queue(settings.sample_per_million, queue));
        let exporter = SpanExporter::new(settings, queued, tracer.clone());
        (tracer, exporter)
    }

    fn with_queue(sample_per_million: u64, queue: mpsc::Sender<Span>) -> Self {
        let (random, drawn) = (RandomState::new(), AtomicU64::new(0));
        Tracer { sample_per_million, queue, random, drawn, counts: SpanCounts::default() }
    }

    /// Returns the counts of spans by their result.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 3] {
        let SpanCounts { sent, failed, dropped } = &self.counts;
        [("sent", sent), ("failed", failed), ("dropped", dropped)]
            .map(|(result, count)| (result, count.load(Ordering::Relaxed)))
    }

    /// Begins the span of a call that this node serves, if its trace is recorded. The caller decides that for a trace
    /// of its own.
    pub(crate) fn serve(
        self: &Arc<Self>,
        name: &'static str,
        caller: Option<SpanContext>,
    ) -> Option<ActiveSpan> {
        let Some(caller) = caller else { return self.begin_trace(name, SpanKind::Server) };
        let context = SpanContext { span_id: self.random_id(), ..caller };
        let parent = SpanParent { span_id: caller.span_id, is_remote: true };
        caller.is_sampled.then(|| self.begin(name, SpanKind::Server, context, Some(parent)))
    }

    /// Begins the span of a request to the application, and a trace with it, if that is recorded.
    pub(crate) fn request(self: &Arc<Self>, name: &'static str) -> Option<ActiveSpan> {
        self.begin_trace(name, SpanKind::Client)
    }

    fn begin_trace(self: &Arc<Self>, name: &'static str, kind: SpanKind) -> Option<ActiveSpan> {
        if self.random() % MILLION >= self.sample_per_million {
            return None;
        }
        let mut trace_id = [0; 16];
        trace_id[..8].copy_from_slice(&self.random_id());
        trace_id[8..].copy_from_slice(&self.random_id());
        let context = SpanContext { trace_id, span_id: self.random_id(), is_sampled: true };
        Some(self.begin(name, kind, context, None))
    }

    fn begin(
        self: &Arc<Self>,
        name: &'static str,
        kind: SpanKind,
        context: SpanContext,
        parent: Option<SpanParent>,
    ) -> ActiveSpan {
        let start_us = unix_us();
        let (attributes, error) = (Vec::new(), None);
        let span =
            Span { context, parent, name, kind, start_us, end_us: start_us, attributes, error };
        ActiveSpan { tracer: self.clone(), context, span: Some(span) }
    }

    /// Returns a number that no other process can predict.
    fn random(&self) -> u64 {
        self.random.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    fn random_id(&self) -> [u8; 8] {
        // All zeros are no id.
        self.random().max(1).to_be_bytes()
    }

    fn push(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.count_dropped();
        }
    }

    fn count_dropped(&self) {
        self.counts.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl ActiveSpan {
    /// The context that others name as the parent of their spans.
    pub fn context(&self) -> SpanContext {
        self.context
    }

    pub fn set_text(&mut self, key: &'static str, text: impl Into<String>) {
        self.set(key, AttributeValue::Text(text.into()));
    }

    pub fn set_number(&mut self, key: &'static str, number: u64) {
        self.set(key, AttributeValue::Number(number));
    }

    fn set(&mut self, key: &'static str, value: AttributeValue) {
        if let Some(span) = &mut self.span {
            span.attributes.push((key, value));
        }
    }

    /// Makes the span end as failed, with this message.
    pub fn set_error(&mut self, message: impl Into<String>) {
        if let Some(span) = &mut self.span {
            span.error = Some(message.into());
        }
    }

    /// Ends the span now, and queues it for the collector.
    pub fn end(mut self) {
        self.queue();
    }

    fn queue(&mut self) {
        if let Some(span) = self.span.take() {
            self.tracer.push(Span { end_us: unix_us(), ..span });
        }
    }

    /// Makes a span of each shard's delivery of a message that is published in this span. The node's clock began at
    /// `clock_began_us`, in microseconds since 1970.
    pub fn observe(&self, topic: &str, clock_began_us: u64) -> Arc<dyn DeliveryObserver> {
        Arc::new(DeliverySpans {
            tracer: self.tracer.clone(),
            publish: self.context,
            topic: topic.to_owned(),
            clock_began_us,
        })
    }
}

impl Drop for ActiveSpan {
    fn drop(&mut self) {
        if self.span.is_some() {
            self.set_error(ABANDONED);
            self.queue();
        }
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tracer")
    }
}

/// Makes the spans of a message's delivery.
struct DeliverySpans {
    tracer: Arc<Tracer>,
    /// The call that published the message.
    publish: SpanContext,
    topic: String,
    clock_began_us: u64,
}

impl DeliveryObserver for DeliverySpans {
    fn on_delivered(&self, delivery: ShardDelivery) {
        let ShardDelivery { shard, members, received_us, sent_us } = delivery;
        self.tracer.push(Span {
            context: SpanContext { span_id: self.tracer.random_id(), ..self.publish },
            parent: Some(SpanParent { span_id: self.publish.span_id, is_remote: false }),
            name: "deliver",
            kind: SpanKind::Internal,
            start_us: self.clock_began_us + received_us,
            end_us: self.clock_began_us + sent_us,
            attributes: vec![
                ("messaging.system", AttributeValue::Text("throng".into())),
                ("messaging.destination.name", AttributeValue::Text(self.topic.clone())),
                ("throng.shard", AttributeValue::Number(shard.into())),
                ("throng.members", AttributeValue::Number(members)),
            ],
            error: None,
        });
    }

    fn on_unobserved(&self) {
        self.tracer.count_dropped();
    }
}

#[cfg(test)]
mod tests;
