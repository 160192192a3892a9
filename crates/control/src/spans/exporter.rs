//! Sends spans to the collector.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::Request;
use axum::http::header::{CONTENT_TYPE, USER_AGENT};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{Span, Tracer, TracingSettings, otlp};
use crate::outgoing::{AGENT, Connector, chain, connector};

/// Spans of one request, at most.
const BATCH_SPANS_MAX: usize = 512;

/// How long the first span of a batch waits for others.
const BATCH_TIME: Duration = Duration::from_secs(1);

/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The most of a response that is read, in bytes.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// An unused connection is closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends spans to the collector, batch by batch. Spans that it does not take are lost and counted: while the exporter
/// repeats an old batch, the queue would lose newer ones.
pub struct SpanExporter {
    settings: TracingSettings,
    queued: mpsc::Receiver<Span>,
    tracer: Arc<Tracer>,
    /// The node stops: no span is queued any more.
    is_stopping: bool,
}

impl SpanExporter {
    pub(super) fn new(
        settings: TracingSettings,
        queued: mpsc::Receiver<Span>,
        tracer: Arc<Tracer>,
    ) -> Self {
        SpanExporter { settings, queued, tracer, is_stopping: false }
    }

    /// Sends spans until `stopped`, and then those that are queued.
    pub(crate) async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let connector = match connector(&self.settings.authorities) {
            Ok(connector) => connector,
            Err(error) => {
                tracing::error!(
                    %error,
                    "spans can't be sent, because TLS can't be set up (tracing.otlp_url)"
                );
                return;
            }
        };
        let client: Client<Connector, Full<Bytes>> = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(1)
            .build(connector);
        let mut is_failing = false;
        loop {
            let batch = self.next_batch(&mut stopped).await;
            if batch.is_empty() {
                return;
            }
            let count = batch.len() as u64;
            let result = self.send(&client, otlp::encode(&self.settings.node, batch)).await;
            let rejected = result.as_ref().map_or(count, |rejected| count.min(*rejected));
            let counts = &self.tracer.counts;
            counts.sent.fetch_add(count - rejected, Ordering::Relaxed);
            counts.failed.fetch_add(rejected, Ordering::Relaxed);
            match result {
                Ok(_) if std::mem::take(&mut is_failing) => {
                    tracing::info!("the collector accepts spans again");
                }
                Err(error) if !std::mem::replace(&mut is_failing, true) => {
                    tracing::warn!(
                        error,
                        "the collector (tracing.otlp_url) does not accept spans: they are lost \
                         until it does"
                    );
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Waits for spans until a batch is complete or its time is over. An empty batch is the end.
    async fn next_batch(&mut self, stopped: &mut oneshot::Receiver<()>) -> Vec<Span> {
        let mut batch = Vec::new();
        let queued = &mut self.queued;
        let fill = async {
            if queued.recv_many(&mut batch, BATCH_SPANS_MAX).await == 0 {
                return;
            }
            let others = async {
                while batch.len() < BATCH_SPANS_MAX {
                    let capacity = BATCH_SPANS_MAX - batch.len();
                    if queued.recv_many(&mut batch, capacity).await == 0 {
                        return;
                    }
                }
            };
            let _ = timeout(BATCH_TIME, others).await;
        };
        tokio::select! {
            () = fill => {}
            _ = stopped, if !self.is_stopping => {
                self.is_stopping = true;
                self.queued.close();
                if batch.is_empty() {
                    self.queued.recv_many(&mut batch, BATCH_SPANS_MAX).await;
                }
            }
        }
        batch
    }

    /// Sends a batch. Returns the number of its spans that the collector rejects.
    async fn send(
        &self,
        client: &Client<Connector, Full<Bytes>>,
        body: Vec<u8>,
    ) -> Result<u64, String> {
        let request = Request::post(&self.settings.url)
            .header(CONTENT_TYPE, "application/x-protobuf")
            .header(USER_AGENT, AGENT)
            .body(Full::new(body.into()))
            .map_err(|error| chain(&error))?;
        let exchange = async {
            let response = client.request(request).await.map_err(|error| chain(&error))?;
            let status = response.status();
            // A response that is read whole lets the next request have the connection.
            let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
            match status.is_success() {
                true => Ok(body.map_or(0, |body| otlp::rejected_spans(&body.to_bytes()))),
                false => Err(format!("it responded with status {status}")),
            }
        };
        match timeout(REQUEST_TIMEOUT, exchange).await {
            Ok(result) => result,
            Err(_) => Err(format!("it did not respond in {} seconds", REQUEST_TIMEOUT.as_secs())),
        }
    }
}
