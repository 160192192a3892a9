//! The thread `control`: it serves the admin port, takes samples, and runs periodic work.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, timeout};

use crate::api::{NodeConnections, OutboxPublisher};
use crate::http::admission::Connections;
use crate::http::gate::{END_WAIT, Gate, receive::receive};
use crate::http::listener::{BACKLOG, Bounded, On};
use crate::monitor::process::unix_us;
use crate::monitor::{Monitor, Samples, memory, sys};
use crate::node::{Node, Shards};
use crate::spans::SpanExporter;
use crate::{api, keys, webhook};

/// A running control thread.
pub struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    connections: Arc<Connections>,
    gate: Arc<Gate>,
    outbox_publisher: Arc<OutboxPublisher>,
    node_connections: Arc<NodeConnections>,
}

/// How long requests may be forwarded to the process that took over: as long as one may take, and the
/// time in which a connection may begin one.
const FORWARD_MAX: Duration = Duration::from_secs(40);

/// Time between two checks whether all connections are gone.
const FORWARD_POLL_INTERVAL: Duration = Duration::from_millis(10);

impl Running {
    /// Returns the publisher of the outbox's rows on this node.
    pub fn outbox_publisher(&self) -> Arc<dyn outbox::Publisher> {
        self.outbox_publisher.clone()
    }

    /// Returns the connections of this node, to which changes of subscriptions are applied.
    pub fn node_connections(&self) -> Arc<dyn subscriptions_postgres::Connections> {
        self.node_connections.clone()
    }

    /// Ends the requests that are under way, and the thread.
    pub fn stop(self) {
        let _ = self.stop.send(());
        // A control thread that panicked has written so to standard error.
        let _ = self.thread.join();
    }

    /// Goes on forwarding after [`Gate::forward`] until all connections are gone, or the rest have been silent for 10
    /// seconds, for 40 seconds at most. Then it ends the thread.
    pub fn end_forwarding(self) {
        let began = Instant::now();
        let has_work = || match began.elapsed() {
            so_far if so_far < END_WAIT => {
                self.connections.open() > 0 || self.gate.forwarding() > 0
            }
            so_far if so_far < FORWARD_MAX => self.gate.forwarding() > 0,
            _ => false,
        };
        while has_work() {
            std::thread::sleep(FORWARD_POLL_INTERVAL);
        }
        self.stop();
    }
}

/// The runtime of the control thread.
///
/// Shards wake it through one of its descriptors when they reply, so make it before they take descriptor tables of
/// their own: a later descriptor would be another file there.
pub struct Runtime {
    tokio: tokio::runtime::Runtime,
    samples: Samples,
}

impl Runtime {
    /// Makes a runtime.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Runtime { tokio, samples: Samples::default() })
    }

    /// Returns the samples that its thread will take, whose memory is allocated by now. Those of another process may
    /// be added before.
    pub fn samples(&self) -> Samples {
        self.samples.clone()
    }
}

/// The listeners of the admin port.
pub struct Listeners {
    /// Without TLS.
    pub plain: std::net::TcpListener,
    /// With TLS, by the certificates of the node.
    pub tls: Option<std::net::TcpListener>,
}

/// Starts the thread `control` on bound listeners.
///
/// # Errors
/// When a listener can't be set up, or the system has no thread left.
pub fn spawn<S: Shards + 'static>(
    Runtime { tokio: runtime, samples }: Runtime,
    listeners: Listeners,
    node: Node<S>,
    webhook::Workers { worker, event_sender, forwarder }: webhook::Workers,
    exporter: Option<SpanExporter>,
) -> io::Result<Running> {
    for listener in [Some(&listeners.plain), listeners.tls.as_ref()].into_iter().flatten() {
        listener.set_nonblocking(true)?;
        // Listens once more, for a longer queue than the standard library's.
        rustix::net::listen(listener, BACKLOG)?;
    }
    let (connections, gate) = (node.connections.clone(), node.upgrades.gate.clone());
    let (stop, stopped) = oneshot::channel();
    let node: Arc<Node> = Arc::new(node);
    let outbox_publisher = Arc::new(OutboxPublisher(node.clone()));
    let node_connections = Arc::new(NodeConnections(node.clone()));
    let thread = std::thread::Builder::new().name("control".into());
    let thread = thread.spawn(move || {
        raise_priority();
        runtime.block_on(async {
            tokio::spawn(worker.run());
            let exporting = exporter.map(|exporter| {
                let (stop, stopped) = oneshot::channel();
                (stop, tokio::spawn(exporter.run(stopped)))
            });
            tokio::spawn(event_sender.run());
            tokio::spawn(forwarder.run(Arc::new(api::ReplyPublisher(node.clone()))));
            if let Err(error) = serve(listeners, node, samples, stopped).await {
                tracing::error!(%error, "the admin port failed");
            }
            if let Some((stop, exported)) = exporting {
                drop(stop);
                let _ = timeout(EXPORT_TIMEOUT, exported).await;
            }
        });
        // A name that is being looked up for a webhook doesn't keep the process from ending.
        runtime.shutdown_background();
    })?;
    Ok(Running { stop, thread, connections, gate, outbox_publisher, node_connections })
}

/// How long the last spans may take to a collector when the node stops.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// The priority of the admin port's thread (nice(2): -20 to 19, the less the sooner).
const NICE: i32 = -10;

/// Raises the calling thread above the shards, of which there may be far more than cores: it needs little time, and
/// every publish waits for it. Without the right to do so it keeps its priority.
fn raise_priority() {
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "the thread of the admin port could not change its priority");
    }
}

async fn serve(
    Listeners { plain, tls }: Listeners,
    node: Arc<Node>,
    samples: Samples,
    stopped: oneshot::Receiver<()>,
) -> io::Result<()> {
    let (connections, gate) = (node.connections.clone(), node.upgrades.gate.clone());
    let plain = tokio::net::TcpListener::from_std(plain)?;
    let mut listener = Bounded::new(plain, connections.clone(), gate.clone());
    if let Some(tls) = tls {
        let tls = tokio::net::TcpListener::from_std(tls)?;
        listener = listener.with_tls(tls, node.certificates.clone());
    }
    let forwarded = node.upgrades.take_forwarded();
    tokio::spawn(memory::watch(node.clone()));
    tokio::spawn(each_second(node.clone()));
    tokio::spawn(keys::fetch(node.clone()));
    if let Some(link) = node.cluster.clone()
        && let Some(calls) = link.take_calls()
    {
        tokio::spawn(api::serve_nodes(node.clone(), link.clone(), calls));
        tokio::spawn(api::sync_revocations(node.clone(), link.clone()));
        tokio::spawn(api::sync_retained(node.clone(), link));
    }
    let (monitor, sampler) = Monitor::new(node, samples);
    let sampler = tokio::spawn(sampler.run());
    let (ending, ended) = watch::channel(());
    let router = api::router(monitor);
    if let Some(forwarded) = forwarded {
        tokio::spawn(receive(forwarded, router.clone(), connections, gate)?);
    }
    let router = router.into_make_service_with_connect_info::<On>();
    let server = axum::serve(listener, router).with_graceful_shutdown(async move {
        let _ = stopped.await;
        // Streams of samples end with the sampler.
        sampler.abort();
        drop(ending);
    });
    tokio::select! {
        result = server => result,
        // Connections that stay open don't keep the process from ending.
        () = grace(ended) => Ok(()),
    }
}

/// Returns a second after the stop.
async fn grace(mut ended: watch::Receiver<()>) {
    while ended.changed().await.is_ok() {}
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// Once a second: publishes the `$SYS` topics if they are due, drops history that is too old, passes the time of day
/// to the shards, and deletes expired revocations.
pub(crate) async fn each_second(node: Arc<Node>) {
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for second in 0_u64.. {
        clock.tick().await;
        // The node's state must not change while it is passed to another process.
        let Some(_working) = node.upgrades.gate.work() else { continue };
        let sys_seconds = node.live().sys_seconds;
        if sys_seconds > 0 && second % sys_seconds == 0 {
            sys::publish(&node);
        }
        node.history().sweep();
        let now_us = u64::try_from(node.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let age_ms = node.history().age_ms();
        node.shared.set_time(now_us, unix_us(), age_ms * 1_000);
        api::forget_revocations(&node, node.revocations.sweep(age_ms / 1_000));
    }
}
