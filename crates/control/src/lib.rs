//! What applications and operators meet: the HTTP API, the metrics, the page.
//!
//! Bounds, besides those of the configuration: 60 seconds after a request's head until its answer
//! begins; 30 seconds for a request whose head has arrived; 32 KiB for a head; 5 seconds for a
//! shard's answer, and 20 for the disk's; 1,000 commands a batch; 64 readers of the live figures, of
//! which 900 samples of a second are kept; 100 topics or messages, 1,000 members, and 1,000 messages
//! or 4 MiB of a history in an answer about them.
//!
//! One thread with its own single-threaded runtime; shards are reached by their mailboxes. Nothing
//! here is on the way of a message from a shard to its members.

mod api;
mod connections;
mod cursors;
mod dashboard;
mod error;
mod guard;
mod history;
mod inspect;
mod kept;
mod listener;
mod live;
mod members;
mod memory;
mod message;
mod metrics;
mod openapi;
mod presence;
mod process;
mod publish;
mod shards;
mod subscriptions;
#[cfg(test)]
mod tests;
mod top;
pub mod webhook;

use std::io;
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::Instant;

use broker::Broker;
use tokio::sync::oneshot;

use crate::listener::Bounded;

pub use connections::{ConnectionLimits, Connections};
pub use shards::Shards;
pub use subscriptions::Turns;

/// What the control thread serves.
pub struct Node<S: ?Sized = dyn Shards> {
    /// Where messages are published.
    pub broker: Arc<dyn Broker>,
    /// The flags that all threads share.
    pub shared: Arc<shard::Shared>,
    /// When the node's clock began.
    pub started: Instant,
    /// Where clients connect, for the page: `http://127.0.0.1:8000`.
    pub client_url: String,
    /// The largest body of a request, in bytes.
    pub body_bytes_max: usize,
    /// Who is connected to the admin port.
    pub connections: Arc<Connections>,
    /// [`anonymous_bytes`] before there was a connection: what grows beyond it is theirs.
    pub anonymous_at_start: u64,
    /// Has the allocator return what it keeps of freed memory to the system, if it can. It may take
    /// a while, and runs on a thread of its own.
    pub give_back: Option<fn()>,
    /// What may change while it runs.
    pub live: Arc<RwLock<Live>>,
    /// Who asks the application, for the metrics.
    pub webhook: Arc<webhook::Dispatcher>,
    /// The topics that users enter when they connect.
    pub subscriptions: Arc<::subscriptions::Subscriptions>,
    /// Where changes of those are kept, if they outlive the process.
    pub keep_subscriptions: Option<Arc<dyn ::subscriptions::Keep>>,
    /// Who changes whose subscriptions now.
    pub subscription_turns: Turns,
    /// The shards, by number. (The last field, so that the type behind it can be forgotten.)
    pub shards: S,
}

/// What this process has written to memory so far (RssAnon), in bytes.
pub fn anonymous_bytes() -> u64 {
    process::memory().anonymous
}

/// What may change while the control thread runs.
#[derive(Clone, Default)]
pub struct Live {
    /// The key that every call must carry; none is asked for where there is none.
    pub api_key: Option<String>,
    /// The payload of a message, in bytes.
    pub message_bytes_max: usize,
    /// Topics that a user may be subscribed to for good.
    pub subscriptions_per_user_max: usize,
    /// Resident memory at which new connections are refused, in bytes; 0 is 90 % of the cgroup's
    /// limit where there is one.
    pub memory_bytes_max: u64,
    /// What clients may do with which topics.
    pub rules: wire::Rules,
    /// Every limit by name, for the metrics.
    pub limits: Vec<(&'static str, u64)>,
    /// The configuration in force as TOML, without secrets.
    pub config: String,
}

/// A running control thread.
pub struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Running {
    /// Ends the requests that are under way, and the thread.
    pub fn stop(self) {
        let _ = self.stop.send(());
        // A control thread that panicked has said so on standard error.
        let _ = self.thread.join();
    }
}

/// What the control thread runs on.
///
/// Shards wake it through one of its descriptors when they answer, so it must be made before they
/// take descriptor tables of their own: a later one would mean something else to them.
pub struct Runtime(tokio::runtime::Runtime);

impl Runtime {
    /// Fails when the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        tokio::runtime::Builder::new_current_thread().enable_all().build().map(Runtime)
    }
}

/// Starts the thread `control` on a bound listener.
pub fn spawn<S: Shards + 'static>(
    Runtime(runtime): Runtime,
    listener: std::net::TcpListener,
    mut node: Node<S>,
    worker: webhook::Worker,
) -> io::Result<Running> {
    // What the history takes is no connection's.
    node.anonymous_at_start += history::History::BYTES;
    listener.set_nonblocking(true)?;
    // Once more, for a longer queue than the standard library's.
    rustix::net::listen(&listener, listener::BACKLOG)?;
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::Builder::new().name("control".into());
    let thread = thread.spawn(move || {
        go_before_others();
        runtime.block_on(async {
            tokio::spawn(worker.run());
            if let Err(error) = serve(listener, Arc::new(node), stopped).await {
                tracing::error!("the admin port failed: {error}");
            }
        });
        // A name that is being looked up for a webhook doesn't keep the process from ending.
        runtime.shutdown_background();
    })?;
    Ok(Running { stop, thread })
}

/// How much the admin port's thread goes before others (nice(2): -20 to 19, the less the sooner).
const NICE: i32 = -10;

/// Lets the calling thread have its turn before the shards, of which there may be far more than
/// cores: it needs little time, and every publish waits for it. Without the right to do so it stays
/// as it is.
fn go_before_others() {
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!("the admin port's thread keeps its priority: {error}");
    }
}

async fn serve(
    listener: std::net::TcpListener,
    node: Arc<Node>,
    stopped: oneshot::Receiver<()>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let listener = Bounded::new(listener, node.connections.clone());
    tokio::spawn(memory::watch(node.clone()));
    tokio::spawn(kept::sweep(node.clone()));
    let (monitor, sampler) = live::Monitor::new(node);
    let sampler = tokio::spawn(sampler.run());
    let (told, end) = tokio::sync::watch::channel(());
    let router = api::router(monitor).into_make_service_with_connect_info::<listener::On>();
    let server = axum::serve(listener, router).with_graceful_shutdown(async move {
        let _ = stopped.await;
        // Streams of samples end with what takes them.
        sampler.abort();
        drop(told);
    });
    tokio::select! {
        result = server => result,
        // Connections that are kept open don't keep the process from ending.
        () = grace(end) => Ok(()),
    }
}

/// Ends a second after the stop.
async fn grace(mut end: tokio::sync::watch::Receiver<()>) {
    while end.changed().await.is_ok() {}
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
}
