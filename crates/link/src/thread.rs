//! The thread `cluster`: it connects to NATS, and drives the node.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use broker::Local;
use cluster::Description;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;

use crate::Link;
use crate::clients::MqttClients;
use crate::driver::{Driver, Shell};
use crate::entries::Registry;
use crate::lock::lock;

/// The interval of pings to a silent NATS server. The client gives the connection up when two replies are missing.
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// The longest time for a connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest delay between two attempts to connect.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);

/// Messages of one subject that may wait for the thread; further ones are dropped, and requested again.
const SUBSCRIPTION_MESSAGES_MAX: usize = 512;

/// Messages that may wait in the client of NATS. Messages queued before the client count for
/// `cluster.queue_bytes_max`.
const CLIENT_MESSAGES_MAX: usize = 64;

/// The servers of NATS.
#[derive(Clone, Debug)]
pub struct Servers {
    /// Their URLs.
    urls: Vec<ServerAddr>,
    /// Certificates of the authorities that sign theirs, in PEM; without one the client trusts those of the system.
    ca_file: Option<PathBuf>,
    /// True if all connections use TLS, also those to servers that others name without a scheme.
    has_tls: bool,
}

/// Why URLs do not name NATS servers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{url:?} is not the URL of a NATS server ({why}): write nats://host:port, or tls://host:port"
)]
pub struct ServersError {
    url: String,
    why: String,
}

impl Servers {
    /// Parses the servers at these URLs.
    ///
    /// # Errors
    /// If one of them is no URL of a NATS server.
    pub fn new(urls: &[String]) -> Result<Self, ServersError> {
        let parse = |url: &String| {
            let error =
                |error: io::Error| ServersError { url: url.clone(), why: error.to_string() };
            url.parse::<ServerAddr>().map_err(error)
        };
        let has_tls = urls.iter().any(|url| url.starts_with("tls://"));
        let urls = urls.iter().map(parse).collect::<Result<_, _>>()?;
        Ok(Servers { urls, ca_file: None, has_tls })
    }

    /// Accepts only certificates that one of these authorities has signed.
    #[must_use]
    pub fn with_authorities(self, ca_file: Option<PathBuf>) -> Self {
        let has_tls = self.has_tls || ca_file.is_some();
        Servers { ca_file, has_tls, ..self }
    }
}

/// A running thread.
pub struct Running {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The runtime of the thread.
///
/// Shards wake it through one of its descriptors when they publish, so make it before they take descriptor tables of
/// their own: in those, the number of a later descriptor would mean another one.
pub struct Runtime(tokio::runtime::Runtime);

impl Runtime {
    /// Makes a runtime.
    ///
    /// # Errors
    /// If the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Runtime(tokio::runtime::Builder::new_current_thread().enable_all().build()?))
    }
}

/// Starts the thread of a link. It connects to one of the servers, and again when it loses the connection. It passes
/// messages of other nodes to the broker, their entries in presence to the registry, and connects of MQTT clients
/// there to `clients`.
///
/// # Errors
/// If the thread can't be started.
pub fn spawn(
    Runtime(runtime): Runtime,
    link: Arc<Link>,
    servers: Servers,
    broker: Arc<Local>,
    registry: Registry,
    describe: impl Fn() -> Description + Send + 'static,
    clients: impl MqttClients + 'static,
) -> io::Result<Running> {
    let (stop, stopped) = oneshot::channel();
    let shell = Shell { describe: Box::new(describe), clients: Box::new(clients) };
    let thread = std::thread::Builder::new().name("cluster".into()).spawn(move || {
        let mut close = CloseOnDrop::new(link.clone(), registry.clone());
        close.is_in_order = runtime.block_on(async {
            match connect(link.clone(), servers).await {
                Ok((client, events)) => {
                    let driver = Driver::new(link, client, (broker, registry), shell);
                    driver.run(events, stopped).await
                }
                Err(error) => {
                    tracing::error!(%error, "this node can't join its cluster");
                    true
                }
            }
        });
        // A pending name resolution must not delay the end of the process.
        runtime.shutdown_background();
    })?;
    Ok(Running { stop: Some(stop), thread: Some(thread) })
}

/// Closes the link when the thread ends. If it ends by a panic of one of its tasks, or because the client of NATS has
/// ended, the process goes on, and this removes the entries of other nodes: no other thread would notice when they
/// are gone.
struct CloseOnDrop {
    link: Arc<Link>,
    registry: Registry,
    /// True if the thread was stopped.
    is_in_order: bool,
}

impl CloseOnDrop {
    fn new(link: Arc<Link>, registry: Registry) -> Self {
        CloseOnDrop { link, registry, is_in_order: false }
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.link.close();
        if !self.is_in_order {
            tracing::error!(
                "the thread that connects this node to the others has ended because of a bug in \
                 Throng: this node serves only its own clients. Restart it, and report the log \
                 messages above"
            );
            self.registry.presence.expire_others(self.registry.now_us());
        }
    }
}

/// Makes a client, which retries until it has a connection.
async fn connect(
    link: Arc<Link>,
    servers: Servers,
) -> Result<(Client, UnboundedReceiver<Event>), async_nats::ConnectError> {
    let (events, receiver) = mpsc::unbounded_channel();
    let login = link.clone();
    let options = ConnectOptions::with_auth_callback(move |nonce| {
        let auth = lock(&login.login).auth(&nonce);
        async move { auth }
    });
    let mut options = options
        .name(format!("throng {} {}", link.settings.node, link.settings.name).trim_end())
        .retry_on_initial_connect()
        .no_echo()
        .ping_interval(PING_INTERVAL)
        .connection_timeout(CONNECT_TIMEOUT)
        .subscription_capacity(SUBSCRIPTION_MESSAGES_MAX)
        .client_capacity(CLIENT_MESSAGES_MAX)
        .require_tls(servers.has_tls)
        .reconnect_delay_callback(reconnect_delay)
        .event_callback(move |event| {
            // The driver may have ended.
            let _ = events.send(event);
            async {}
        });
    if let Some(ca_file) = servers.ca_file {
        options = options.add_root_certificates(ca_file);
    }
    Ok((options.connect(servers.urls).await?, receiver))
}

/// Returns the delay before an attempt to connect: none, 50 ms, 100 ms, 200 ms and so on, up to two seconds.
fn reconnect_delay(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(2)).unwrap_or(u32::MAX).min(16);
    match attempts {
        0 | 1 => Duration::ZERO,
        _ => Duration::from_millis(50 << doublings).min(RECONNECT_DELAY_MAX),
    }
}

impl Running {
    /// Makes the node say goodbye, and ends the thread.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // The thread may have ended.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            // After a panic the thread has logged it already.
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use broker::Relay as _;
    use model::{Data, Epoch, LogicalTime, Message, NodeId, Position, Publication};
    use presence::{Change, Limits, Presence as _, SharedEntry, Updates};

    use super::*;
    use crate::{Login, Settings};

    /// Makes a registry with an entry of its own and some of two other nodes.
    fn registry() -> Registry {
        let limits =
            Limits { users_max: 9, list_bytes_max: 1_000, interval_us: 1, members_per_ms: 0 };
        let presence = Arc::new(presence::Local::new(limits, NodeId(1)).with_nodes(1 << 20));
        presence.enter("t", "al", "{}", 0);
        let enter = |number| {
            let entry = SharedEntry { number, topic: "t".into(), ..SharedEntry::default() };
            Change { gone: None, entry: Some(entry) }
        };
        let mut updates = Updates::default();
        updates.push_changes(NodeId(2), (0..100).map(enter).collect());
        updates.push_changes(NodeId(3), vec![enter(0)]);
        presence.advance(&mut updates, usize::MAX, 0);
        Registry { presence, started: Instant::now() }
    }

    #[test]
    fn entries_of_other_nodes_go_with_a_thread_that_panics() {
        for (panics, left) in [(false, 101), (true, 0)] {
            let (link, registry) =
                (Link::new(Settings::for_tests(), Login::Anonymous, Instant::now()), registry());
            let (ended, presence) = (link.clone(), registry.clone());
            let thread = std::thread::spawn(move || {
                let mut close = CloseOnDrop::new(ended, presence);
                assert!(!panics, "on purpose");
                close.is_in_order = true;
            });
            assert_eq!(thread.join().is_err(), panics);
            let stats = registry.presence.stats();
            assert_eq!((stats.connections, stats.other_nodes), (1, left));
            assert!(link.status().connection.error.is_some());
        }
    }

    fn broker() -> Arc<Local> {
        let router = Arc::new(broker::Router::new(Vec::new()));
        let limits =
            broker::Limits { recent_messages_max: 9, recent_bytes_max: 9, recent_seconds_max: 9 };
        let history = Arc::new(broker::NoHistory);
        Arc::new(Local::new(router, [7; 20], Instant::now(), limits, history))
    }

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < end, "{what} takes too long");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_thread_that_rests_takes_nothing_until_it_goes_on_or_ends() {
        let link = Link::new(Settings::for_tests(), Login::Anonymous, Instant::now());
        let servers = Servers::new(&["nats://127.0.0.1:1".into()]).unwrap();
        let (runtime, describe) = (Runtime::new().unwrap(), Description::default);
        let running =
            spawn(runtime, link.clone(), servers, broker(), registry(), describe, NoClients);
        let running = running.unwrap();
        let publish = || {
            let publication = Publication::new("a", Data::Text("x".into()));
            let id = Position { epoch: Epoch(1), offset: 1 };
            let message = Message::new(publication, id, 1, 1);
            link.publish(Arc::new(message.into()), Vec::new());
        };
        let published = || link.inspect(|node| node.counts().published);
        for round in 0..3 {
            let paused = link.pause();
            until("the pause", || paused.is_done());
            publish();
            until("a message of a shard that comes to rest", || link.queued_bytes() == 0);
            publish();
            let rests = link.rest();
            until("the rest", || rests.is_done());
            assert_eq!((link.queued_bytes(), published()), (0, Some(3 * round + 2)));
            publish();
            // It still exports its state.
            assert_eq!(published(), Some(3 * round + 2));
            assert!(link.queued_bytes() > 0);
            if round < 2 {
                link.resume();
                until("the rest of them", || link.queued_bytes() == 0);
            }
        }
        link.abandon();
        until("the end", || link.is_closed());
        assert_eq!(published(), None);
        running.stop();
    }

    struct NoClients;

    impl MqttClients for NoClients {
        fn on_connected_to_node(&self, _: &str, _: LogicalTime, _: bool) {}
        fn repeat_connects(&self) {}
    }

    fn shell() -> Shell {
        Shell { describe: Box::new(Description::default), clients: Box::new(NoClients) }
    }

    /// Runs a driver with this writer and without NATS. Returns the result of [`Driver::run`].
    fn run_with_writer(
        writer: impl Future<Output = ()> + Send + 'static,
        link: &Arc<Link>,
    ) -> bool {
        let (link, broker, registry) = (link.clone(), broker(), registry());
        Runtime::new().unwrap().0.block_on(async {
            let servers = Servers::new(&["nats://127.0.0.1:1".into()]).unwrap();
            let (client, events) = connect(link.clone(), servers).await.unwrap();
            let driver = Driver::new(link, client, (broker, registry), shell());
            let (_stop, stopped) = oneshot::channel();
            driver.with_writer(tokio::spawn(writer)).run(events, stopped).await
        })
    }

    #[test]
    fn a_panic_of_the_writer_is_one_of_the_thread() {
        let link = || Link::new(Settings::for_tests(), Login::Anonymous, Instant::now());
        let thread = std::thread::spawn(move || {
            run_with_writer(async { panic!("on purpose") }, &link());
        });
        assert!(thread.join().is_err());
        // A writer that ends in order before the driver is an error, too.
        assert!(!run_with_writer(async {}, &link()));
    }

    #[test]
    fn attempts_to_connect_become_rarer() {
        let delays: Vec<u128> = (0..10).map(|it| reconnect_delay(it).as_millis()).collect();
        assert_eq!(delays, [0, 0, 50, 100, 200, 400, 800, 1_600, 2_000, 2_000]);
        assert_eq!(reconnect_delay(usize::MAX), RECONNECT_DELAY_MAX);
    }

    #[test]
    fn a_url_of_something_else_is_an_error_that_names_it() {
        assert!(Servers::new(&["nats://a:4222".into(), "tls://b".into()]).is_ok());
        let error = Servers::new(&["http://a".into()]).unwrap_err().to_string();
        assert!(error.starts_with("\"http://a\" is not the URL of a NATS server"), "{error}");
    }
}
