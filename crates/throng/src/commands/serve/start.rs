//! Starts the server in one of two ways: with the content of its store, or with the state of another process that it
//! takes over.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, RwLock};

use ::subscriptions::SubscriptionStore;
use config::{Config, Loaded};
use control::UpgradeProgress;
use handover::Part;
use protocol::{Listener, Protocols};
use shard::Port;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::cli::Serve;
use crate::error::CommandError;

use super::log::Log;
use super::services::{Configured, Databases, Identity, Services};
use super::settings::{self, live};
use super::upgrade::{self, ByCall, Forwarded, Old, TakeOver, Upgrade};
use super::{Server, cluster, failed, history, outbox, parts, ports, storage, subscriptions};

/// The inputs of a start.
pub(super) struct Start<'a> {
    pub loaded: &'a Loaded,
    pub args: &'a Serve,
    pub protocols: &'static Protocols,
    pub log: Log,
}

/// Sends SIGTERM to this process, so that it shuts down gracefully.
fn end_process() {
    if let Err(error) = signal_hook::low_level::raise(SIGTERM) {
        tracing::error!(%error, "this process can't signal itself to end");
    }
}

/// The parts with descriptors that must be open before the shards start: each shard's descriptor table begins as a copy
/// of the current one, and shards write to these descriptors.
struct First {
    runtime: control::Runtime,
    /// `None` if the node is not one of a cluster.
    cluster: Option<link::Runtime>,
    /// `None` without a database.
    outbox: Option<database::Runtime>,
    /// `None` without a database. The history's thread takes it.
    history: Option<database::Runtime>,
    /// `None` without a database.
    subscriptions: Option<database::Runtime>,
    signals: Signals,
}

impl First {
    /// With `loads`, no other process passes the subscriptions on.
    fn databases(&self, loads: bool) -> Databases<'_> {
        let (history, subscriptions) = (self.history.as_ref(), self.subscriptions.as_ref());
        Databases { history, subscriptions, loads }
    }
}

/// A node whose shards run.
struct Running {
    services: Services,
    /// The history in a database, and the thread that serves it.
    postgres: Option<(history_postgres::Postgres, database::Running)>,
    workers: control::webhook::Workers,
    shards: shard::Running,
    ports: Ports,
    connections_max: u64,
    live: Arc<RwLock<control::Live>>,
    access: Arc<control::Access>,
    parts: Vec<Arc<dyn Part>>,
}

/// The addresses at which clients connect, with the real ports where settings are 0.
#[derive(Clone, Copy)]
struct Ports {
    client: Option<SocketAddr>,
    client_tls: Option<SocketAddr>,
    mqtt: Option<SocketAddr>,
    mqtt_tls: Option<SocketAddr>,
}

/// The listeners of the admin port, and the upgrade that started this process.
struct Admin {
    listener: TcpListener,
    listener_tls: Option<TcpListener>,
    /// The socket to which earlier processes forward requests.
    forwarded: Option<Forwarded>,
    /// The upgrade that started this process; the default if none did.
    progress: UpgradeProgress,
}

impl Admin {
    /// Returns true if this process has taken over no other one.
    fn is_new(&self) -> bool {
        !matches!(self.progress.stage, control::UpgradeStage::Done)
    }

    /// Returns another descriptor of the socket to which earlier processes forward requests, and its path.
    fn forwarded_listener(&self) -> Result<Option<(UnixListener, PathBuf)>, CommandError> {
        let both = self.forwarded.as_ref().map(|it| Ok((it.listener()?, it.path().to_owned())));
        both.transpose().map_err(|error: std::io::Error| failed(&error))
    }
}

impl Start<'_> {
    /// Starts a node with the content of its store.
    pub fn begin(self) -> Result<(Server, Signals), CommandError> {
        let _span = tracing::info_span!("start").entered();
        let config = &self.loaded.config;
        let identity = Identity::new()?;
        let mut first = self.first()?;
        let prepared = ports::prepare(config, Vec::new())?;
        let mut found = storage::open(config, identity.new_epoch)?;
        let handles = prepared.handles.clone();
        let (args, protocols, databases) = (self.args, self.protocols, first.databases(true));
        let (services, workers) =
            Services::new(config, args, protocols, handles, identity, &mut found, databases)?;
        let configured = services.configure(config)?;
        if let Some(reader) = found.reader {
            services.load(&reader)?;
        }
        let running = self.run_shards(&mut first, prepared, services, workers, configured)?;
        let listener = ports::admin(config)?;
        let listener_tls = config.admin.listen_tls.map(ports::admin_tls).transpose()?;
        let progress = UpgradeProgress::default();
        let admin = Admin { listener, listener_tls, forwarded: None, progress };
        self.serve(first, running, admin)
    }

    /// Starts a node with the state of another process, which then ends.
    pub fn take_over(self, old: TakeOver) -> Result<(Server, Signals), CommandError> {
        let _span = tracing::info_span!("start").entered();
        let (first, running) = self.prepare_take_over(&old)?;
        let admin = take(&old, &self.loaded.config, &running)?;
        if let Some((postgres, _)) = &running.postgres {
            postgres.resume();
        }
        let (server, signals) = self.serve(first, running, admin)?;
        server.webhook.go_on();
        if let Some(forwarded) = &server.forwarded {
            server.upgrade.set_pause(old.serving(forwarded.path()));
        }
        tracing::info!(
            shards = server.handles.len(),
            connections = server.shared.connections.load(Ordering::Relaxed),
            client = server.client.map(tracing::field::display),
            admin = %server.admin,
            version = env!("CARGO_PKG_VERSION"),
            "serving in place of the previous process"
        );
        Ok((server, signals))
    }

    /// Returns what an upgrade needs of this process: its state, and the services that it pauses.
    fn upgrade_source(
        &self,
        running: &Running,
        admin: &Admin,
        gate: &Arc<control::Gate>,
        signals: &Signals,
    ) -> Result<Old, CommandError> {
        let Running { services, shards, parts, ports, .. } = running;
        let signals = signals.handle();
        let no_admin = |error: std::io::Error| ports::no_admin(&error);
        let admin_tls = admin.listener_tls.as_ref().map(TcpListener::try_clone).transpose();
        Ok(Old {
            givers: shards.givers.clone(),
            parts: parts.clone(),
            handles: services.handles.clone(),
            shared: services.shared.clone(),
            store: services.store.clone(),
            history: services.local.clone(),
            postgres: services.postgres.clone(),
            has_tls: ports.client_tls.or(ports.mqtt_tls).is_some(),
            webhook: services.webhook.clone(),
            gate: gate.clone(),
            admin: admin.listener.try_clone().map_err(no_admin)?,
            admin_tls: admin_tls.map_err(no_admin)?,
            forwarded: admin.forwarded_listener()?,
            started: services.started,
            longpoll_key: services.fixed.longpoll_key.0,
            data: Some(self.loaded.config.store.data.clone()).filter(|data| !data.is_empty()),
            limits: settings::limits(self.loaded),
            binary: crate::binary::path(),
            arguments: upgrade::arguments(std::env::args_os()),
            cluster: services.cluster.as_ref().map(|cluster| cluster.link.clone()),
            done: Box::new(move || signals.close()),
        })
    }

    /// Starts the shards of a node that takes over, which get the other process's connections.
    fn prepare_take_over(&self, old: &TakeOver) -> Result<(First, Running), CommandError> {
        let config = &self.loaded.config;
        let identity = Identity::of(old)?;
        let mut first = self.first()?;
        let prepared = ports::prepare(config, old.shards().map_err(|error| failed(&error))?)?;
        // The old process uses the store until it has passed on everything else.
        let mut found = storage::waiting(config, identity.new_epoch);
        let handles = prepared.handles.clone();
        let (args, protocols, databases) = (self.args, self.protocols, first.databases(false));
        let made = Services::new(config, args, protocols, handles, identity, &mut found, databases)
            .and_then(|(services, workers)| {
                services.postgres.iter().try_for_each(|postgres| old.verify_log(postgres))?;
                let configured = services.configure(config)?;
                Ok((services, workers, configured))
            });
        // The old process learns the reason before its shards see this process end.
        let (services, workers, configured) = made.inspect_err(|error| old.refuse(error))?;
        // The dispatcher sends nothing until it has all pending requests of the old process.
        services.webhook.stand_still();
        // The history delivers nothing until it knows what the old process has delivered.
        services.postgres.iter().for_each(history_postgres::Postgres::pause);
        let running = self.run_shards(&mut first, prepared, services, workers, configured)?;
        if let Some((postgres, _)) = &running.postgres {
            history::until_connected(postgres).inspect_err(|error| old.refuse(error))?;
        }
        Ok((first, running))
    }

    fn first(&self) -> Result<First, CommandError> {
        let runtime = control::Runtime::new().map_err(|error| ports::no_admin(&error))?;
        crate::allocator::start();
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR2])
            .map_err(|error| CommandError::Runtime(format!("signals can't be handled: {error}")))?;
        ports::check(&self.loaded.config, self.protocols)?;
        let cluster = cluster::runtime(&self.loaded.config)?;
        let outbox = outbox::runtime(&self.loaded.config)?;
        let history = history::runtime(&self.loaded.config)?;
        let subscriptions = subscriptions::runtime(&self.loaded.config)?;
        Ok(First { runtime, cluster, outbox, history, subscriptions, signals })
    }

    /// Starts the shards of these services, and lists the parts that an upgrade passes on.
    fn run_shards(
        &self,
        first: &mut First,
        prepared: shard::Prepared,
        services: Services,
        workers: control::webhook::Workers,
        Configured { settings, jwks }: Configured,
    ) -> Result<Running, CommandError> {
        let config = &self.loaded.config;
        let ports = Ports {
            client: prepared.address(Port::plain(Listener::Client)),
            client_tls: prepared.address(Port::tls(Listener::Client)),
            mqtt: prepared.address(Port::plain(Listener::Mqtt)),
            mqtt_tls: prepared.address(Port::tls(Listener::Mqtt)),
        };
        let (_, capacity) = prepared.capacity();
        let shards = services.start_shards(prepared, settings)?;
        let connections_max = config.limits.connections_max;
        if capacity < connections_max {
            tracing::warn!(
                capacity,
                connections_max,
                "the limit on open files allows fewer connections than limits.connections_max: use \
                 more shards, or raise that limit (ulimit -n)"
            );
        }
        let live = Arc::new(RwLock::new(live(self.loaded, &services.fixed, jwks)));
        let access = control::Access::new(settings::access(config));
        let parts = parts::all(parts::Services {
            broker: &services.broker,
            history: &services.local,
            presence: services.presence.clone(),
            subscriptions: &services.subscriptions,
            revocations: &services.tokens.revocations,
            live: &live,
            mqtt_state: &services.mqtt_state,
            access: &access,
            samples: first.runtime.samples(),
            webhook: &services.webhook,
            handles: &services.handles,
            certificates: services.certificates.clone(),
            cluster: services.cluster.as_ref().map(|cluster| cluster.link.clone()),
            postgres: services.postgres.clone(),
            subscription_database: services.subscription_database.clone(),
        });
        let postgres = match (&services.postgres, first.history.take()) {
            (Some(postgres), Some(runtime)) => {
                let (broker, shards) = (services.broker.clone(), services.handles.clone());
                let retained = services.mqtt_state.retained.clone();
                let running = history::start(runtime, postgres.clone(), broker, retained, shards)?;
                Some((postgres.clone(), running))
            }
            _ => None,
        };
        let connections_max = connections_max.min(capacity);
        Ok(Running {
            services,
            postgres,
            workers,
            shards,
            ports,
            connections_max,
            live,
            access,
            parts,
        })
    }

    /// Opens the admin port, and starts the threads of what the node connects to.
    fn serve(
        self,
        first: First,
        running: Running,
        admin: Admin,
    ) -> Result<(Server, Signals), CommandError> {
        let First { runtime, signals, .. } = first;
        let gate = Arc::new(control::Gate::default());
        let source = self.upgrade_source(&running, &admin, &gate, &signals)?;
        let upgrade = Upgrade::new(source, admin.progress.clone());
        if let Some(certificates) = &running.services.certificates {
            certificates.watch().map_err(|error| {
                CommandError::Runtime(format!("the certificates can't be watched: {error}"))
            })?;
        }
        if admin.is_new() && running.services.cluster.is_some() {
            // This comes before the first message of another node. The control thread ends the sync when it has
            // read the retained messages of another node, or has found no such node for 10 s after the link has
            // connected.
            running.services.shared.retained.begin_sync();
        }
        let upgrades = control::Upgrades {
            upgrader: Some(Arc::new(ByCall(upgrade.clone()))),
            gate,
            forwarded: Mutex::new(admin.forwarded_listener()?.map(|(listener, _)| listener)),
        };
        let connections = control::Connections::new(settings::admin(&self.loaded.config));
        let node = self.node(&running, &admin, upgrades, connections.clone());
        let Admin { listener, listener_tls, forwarded, .. } = admin;
        let admin = listener.local_addr().unwrap_or(self.loaded.config.admin.listen);
        let admin_tls = listener_tls.as_ref().and_then(|it| it.local_addr().ok());
        let listeners = control::Listeners { plain: listener, tls: listener_tls };
        let Running { mut services, postgres, workers, shards, live, access, ports, .. } = running;
        let exporter = services.exporter.take();
        let control = control::spawn(runtime, listeners, node, workers, exporter)
            .map_err(|error| ports::no_admin(&error))?;
        let First { cluster, outbox, subscriptions, .. } = first;
        let ConnectorThreads { cluster, outbox, subscription_database } =
            ConnectorThreads::start(&mut services, cluster, outbox, subscriptions, &control)?;
        let Services { history, store, shared, webhook, mqtt_state, tokens, fixed, .. } = services;
        let Services { handles, started, certificates, .. } = services;
        let Ports { client, client_tls, mqtt, mqtt_tls } = ports;
        let server = Server {
            cluster,
            outbox,
            subscription_database,
            postgres,
            history,
            store,
            handles,
            shards,
            control,
            shared,
            started,
            live,
            connections,
            access,
            webhook,
            mqtt_state,
            fixed,
            tokens,
            log: self.log,
            client,
            client_tls,
            mqtt,
            mqtt_tls,
            certificates,
            admin,
            admin_tls,
            connections_max: running.connections_max,
            upgrade,
            stay: self.args.stay,
            forwarded,
        };
        Ok((server, signals))
    }

    /// Returns what the control thread uses of the node.
    fn node(
        &self,
        running: &Running,
        admin: &Admin,
        upgrades: control::Upgrades,
        connections: Arc<control::Connections>,
    ) -> control::Node<Vec<shard::Handle>> {
        let Running { services, ports, live, access, .. } = running;
        let saved = services.store.clone().map(storage::SavedSubscriptions);
        control::Node {
            broker: services.broker.clone(),
            history: services.history.clone(),
            store: services.store.clone(),
            history_database: services.postgres.clone(),
            cluster: services.cluster.as_ref().map(|cluster| cluster.link.clone()),
            outbox: services.outbox.clone(),
            shards: services.handles.clone(),
            shared: services.shared.clone(),
            started: services.started,
            client_url: ports.client.map(|port| format!("http://{port}")),
            client_url_tls: ports.client_tls.map(|port| format!("https://{port}")),
            body_bytes_max: settings::clamped(self.loaded.config.admin.body_bytes_max),
            connections,
            access: access.clone(),
            anonymous_at_start: control::anonymous_bytes(),
            give_back: Some(crate::allocator::give_back),
            live: live.clone(),
            revocations: services.tokens.revocations.clone(),
            token_stats: services.tokens.stats.clone(),
            certificates: services.certificates.as_ref().map(|it| it.control()).unwrap_or_default(),
            keys: services.tokens.fetcher.clone(),
            webhook: services.webhook.clone(),
            tracer: services.tracer.clone(),
            subscriptions: services.subscriptions.clone(),
            is_new: admin.is_new(),
            evictions: control::Evictions::new(end_process),
            upgrades,
            subscription_locks: control::UserLocks::default(),
            keep_subscriptions: saved.map(|saved| Arc::new(saved) as Arc<dyn SubscriptionStore>),
            subscription_database: services.subscription_database.clone(),
        }
    }
}

/// The threads that connect to NATS and to databases.
struct ConnectorThreads {
    cluster: Option<(Arc<link::Link>, link::Running)>,
    outbox: Option<(Arc<::outbox::Outbox>, database::Running)>,
    subscription_database: Option<(subscriptions_postgres::Postgres, database::Running)>,
}

impl ConnectorThreads {
    /// Starts the threads. Takes the cluster, the outbox and the database of subscriptions from the services.
    fn start(
        services: &mut Services,
        cluster: Option<link::Runtime>,
        outbox: Option<database::Runtime>,
        subscriptions: Option<database::Runtime>,
        control: &control::Running,
    ) -> Result<Self, CommandError> {
        let cluster = match (services.cluster.take(), cluster) {
            (Some(cluster), Some(runtime)) => {
                let (presence, started) = (services.presence.clone(), services.started);
                let registry = link::Registry { presence, started };
                let (broker, shards) = (services.broker.clone(), services.handles.clone());
                let (link, shared) = (cluster.link.clone(), services.shared.clone());
                Some((link, cluster.start(runtime, broker, registry, shared, shards)?))
            }
            _ => None,
        };
        let outbox = match (services.outbox.take(), outbox) {
            (Some(outbox), Some(runtime)) => {
                Some((outbox.clone(), outbox::start(runtime, outbox, control)?))
            }
            _ => None,
        };
        let subscription_database = match (services.subscription_database.take(), subscriptions) {
            (Some(database), Some(runtime)) => {
                Some((database.clone(), subscriptions::start(runtime, database, control)?))
            }
            _ => None,
        };
        Ok(ConnectorThreads { cluster, outbox, subscription_database })
    }
}

/// Takes over the state of the old process, up to the moment from which this process serves.
fn take(old: &TakeOver, config: &Config, running: &Running) -> Result<Admin, CommandError> {
    let listener = match old.has_admin(config.admin.listen) {
        // The old process still listens there, and passes its listener on.
        true => None,
        false => Some(ports::admin(config)?),
    };
    let admin_tls = config.admin.listen_tls;
    let listener_tls = admin_tls.filter(|address| !old.has_admin_tls(*address));
    let listener_tls = listener_tls.map(ports::admin_tls).transpose()?;
    let forwarded = Forwarded::new().map_err(|error| failed(&error))?;
    let taker = running.shards.taker.as_ref();
    let taker =
        taker.ok_or_else(|| failed(&std::io::Error::other("the old process has no shards")))?;
    let open_store = |passed: &store::Passed| match &running.services.store {
        Some(store) => store.open_now(passed).map(drop).map_err(|error| error.to_string()),
        None => Err("this process has no store".into()),
    };
    let passed = old.take(&running.parts, taker, &open_store);
    let passed = passed.map_err(|error| {
        taker.abandon();
        failed(&error)
    })?;
    // The shards need the time before their first sweep.
    running.services.set_time();
    taker.go();
    let listener = listener.or(passed.admin).map_or_else(|| ports::admin(config), Ok)?;
    let listener_tls = match admin_tls {
        Some(address) => {
            Some(listener_tls.or(passed.admin_tls).map_or_else(|| ports::admin_tls(address), Ok)?)
        }
        None => None,
    };
    let forwarded = Some(passed.forwarded.unwrap_or(forwarded));
    Ok(Admin { listener, listener_tls, forwarded, progress: old.progress() })
}
