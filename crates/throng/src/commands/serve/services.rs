//! The services that the shards and the admin port share: the one place that chooses the implementations and connects
//! them.

use std::sync::Arc;
use std::time::Instant;

use ::history::History;
use config::Config;
use history_local::{Begin, Local};
use history_postgres::Postgres;
use protocol::Protocols;
use protocol::phoenix::token::Key;

use crate::cli::Serve;
use crate::error::CommandError;

use super::authorities;
use super::certificates::Certificates;
use super::cluster::Cluster;
use super::history;
use super::mqtt;
use super::outbox;
use super::settings::{self, Fixed};
use super::storage::{self, Found};
use super::subscriptions as subscription_database;
use super::tokens::Tokens;
use super::upgrade::TakeOver;

/// The identity of this node. It outlives upgrades, as connections do.
pub(super) struct Identity {
    pub node: model::NodeId,
    /// When the node's clock began.
    pub started: Instant,
    longpoll_key: Key,
    /// The epoch of a new store.
    pub new_epoch: u32,
}

impl Identity {
    /// Creates the identity of a new node.
    pub fn new() -> Result<Self, CommandError> {
        let started = Instant::now();
        let random = random::<40>()?;
        let (epoch, random) = random.split_at(4);
        let (key, node) = random.split_at(32);
        Ok(Identity {
            node: model::NodeId(number(node) as u32),
            started,
            longpoll_key: Key(std::array::from_fn(|at| key[at])),
            new_epoch: number(epoch) as u32,
        })
    }

    /// Returns the identity of the node whose process this one replaces.
    pub fn of(old: &TakeOver) -> Result<Self, CommandError> {
        let new = Identity::new()?;
        let longpoll_key = old.longpoll_key().map_or(new.longpoll_key, Key);
        Ok(Identity { node: old.node(), started: old.started(), longpoll_key, ..new })
    }
}

/// The runtimes that connect to databases; empty without `history.url`.
#[derive(Clone, Copy)]
pub(super) struct Databases<'a> {
    pub history: Option<&'a database::Runtime>,
    pub subscriptions: Option<&'a database::Runtime>,
    /// True if no other process passes the subscriptions on.
    pub loads: bool,
}

/// The services of a node.
pub(super) struct Services {
    pub started: Instant,
    pub broker: Arc<broker::Local>,
    pub history: Arc<dyn History>,
    /// The history in this process; it stays empty if a database has the history.
    pub local: Arc<Local>,
    /// The history in PostgreSQL, if the configuration has one.
    pub postgres: Option<Postgres>,
    /// The stored subscriptions there.
    pub subscription_database: Option<subscriptions_postgres::Postgres>,
    pub store: Option<store::Store>,
    /// The presence of users in topics, for another process or other nodes.
    pub presence: Arc<presence::Local>,
    pub subscriptions: Arc<subscriptions::Subscriptions>,
    pub mqtt_state: mqtt::Mqtt,
    pub shared: Arc<shard::Shared>,
    pub webhook: Arc<control::webhook::Dispatcher>,
    /// Begins spans of traces, if a collector is configured.
    pub tracer: Option<Arc<control::Tracer>>,
    /// Sends spans to the collector.
    pub exporter: Option<control::SpanExporter>,
    pub tokens: Tokens,
    pub fixed: Fixed,
    pub handles: Vec<shard::Handle>,
    /// `None` if no port has TLS.
    pub certificates: Option<Arc<Certificates>>,
    /// `None` if the node is in no cluster.
    pub cluster: Option<Cluster>,
    /// `None` without a database.
    pub outbox: Option<Arc<::outbox::Outbox>>,
}

/// Creates the dispatcher of requests and events to the application, and its workers. It has the events that the store
/// still has.
fn dispatcher(
    config: &Config,
    found: &Found,
    node: model::NodeId,
    tracer: Option<Arc<control::Tracer>>,
) -> Result<(Arc<control::webhook::Dispatcher>, control::webhook::Workers), CommandError> {
    let left = found.reader.as_ref().map(storage::events).transpose()?;
    let saved = found.store.clone().map(storage::SavedEvents);
    let start = control::webhook::EventStart {
        store: saved.map(|saved| Arc::new(saved) as Arc<dyn control::webhook::EventStore>),
        left: left.unwrap_or_default(),
        node: node.to_string(),
    };
    let authorities = authorities::read("webhook.ca_file", &config.webhook.ca_file)?;
    let fixed = settings::webhook_fixed(config, authorities, tracer);
    Ok(control::webhook::Dispatcher::new(fixed, settings::webhook(config), start))
}

/// The settings of shards, and the token keys to fetch.
pub(super) struct Configured {
    pub settings: Arc<shard::Settings>,
    pub jwks: Arc<token::Jwks>,
}

impl Services {
    /// Creates empty services, and the workers that send requests and events to the application.
    pub fn new(
        config: &Config,
        args: &Serve,
        protocols: &'static Protocols,
        handles: Vec<shard::Handle>,
        identity: Identity,
        found: &mut Found,
        databases: Databases<'_>,
    ) -> Result<(Self, control::webhook::Workers), CommandError> {
        let Identity { node, started, longpoll_key, new_epoch: _ } = identity;
        let subscriptions =
            Arc::new(subscriptions::Subscriptions::new(config.subscriptions.by_topic));
        let store = found.store.clone();
        let mqtt_state = mqtt::Mqtt::new(node, store.as_ref());
        let begin = found.begin.take();
        let cluster = Cluster::new(config, node, started, args.demo)?;
        let relay = cluster.as_ref().map(|cluster| cluster.link.clone());
        let inboxes = handles.iter().map(shard::Handle::inbox).collect();
        let router = mqtt_state.router(inboxes);
        let open = |runtime| open_history(config, runtime, router.clone(), started);
        let postgres = databases.history.map(open).transpose()?;
        let (subscribed, loads) = (subscriptions.clone(), databases.loads);
        let open = |runtime| subscription_database::open(config, runtime, subscribed, loads);
        let subscription_database = databases.subscriptions.map(open).transpose()?;
        let (broker, local) = broker(config, router, started, begin, postgres.as_ref(), relay)?;
        let history: Arc<dyn History> = match &postgres {
            Some(postgres) => Arc::new(postgres.clone()),
            None => local.clone(),
        };
        let presence = presence::Local::new(settings::presence(config), node);
        let presence = Arc::new(match &cluster {
            Some(cluster) => presence.with_nodes(cluster.link.settings().presence_bytes_max),
            None => presence,
        });
        let (subscribed, outlives) = (subscriptions.clone(), mqtt_state.for_shards());
        let shared = shard::Shared::new(node, protocols, presence.clone(), subscribed, outlives);
        let shared = Arc::new(shared);
        set_time(&shared, started, &*history);
        mqtt_state.retained.set_clock(shared.unix_ms(0));
        if let (Some(postgres), Some(runtime)) = (&postgres, databases.history) {
            let retained = mqtt_state.retained.clone();
            let of_node = (broker.clone(), retained);
            history::share_retained(runtime, postgres, of_node, databases.loads)?;
            let (sessions, node) = (&mqtt_state.sessions, &*config.cluster.node);
            history::share_sessions(runtime, postgres, (sessions, node), databases.loads)?;
        }
        let of_collector = authorities::read("tracing.ca_file", &config.tracing.ca_file)?;
        let tracing = settings::tracing(config, of_collector, node.to_string());
        let (tracer, exporter) = tracing.map(control::Tracer::new).unzip();
        let (webhook, workers) = dispatcher(config, found, node, tracer.clone())?;
        let certificates = Certificates::new(config, handles.len())?;
        let services = Services {
            certificates,
            cluster,
            outbox: outbox::outbox(config)?,
            started,
            broker,
            history,
            local,
            postgres,
            subscription_database,
            store,
            presence,
            subscriptions,
            mqtt_state,
            shared,
            webhook,
            tracer,
            exporter,
            tokens: Tokens::new(authorities::read("auth.jwks_ca_file", &config.auth.jwks_ca_file)?),
            fixed: Fixed { ws_echo: args.ws_echo, demo: args.demo, longpoll_key },
            handles,
        };
        Ok((services, workers))
    }

    /// Applies the configuration to all services.
    pub fn configure(&self, config: &Config) -> Result<Configured, CommandError> {
        let auth = self.tokens.auth(config, None)?;
        let settings = Arc::new(settings::settings(config, &self.fixed, auth.authenticator));
        let rules = Arc::new(settings.session.policy.rules().clone());
        self.history.set_rules(rules.clone(), config.history.idempotency_seconds_max);
        self.mqtt_state.set_rules(rules);
        let mqtt = settings.session.mqtt.as_ref();
        self.mqtt_state.configure(&*self.history, mqtt, self.store.is_some());
        Ok(Configured { settings, jwks: auth.jwks })
    }

    /// Sets the time of the shards, which another process may have passed on.
    pub fn set_time(&self) {
        set_time(&self.shared, self.started, &*self.history);
    }

    /// Loads the content of the store.
    pub fn load(&self, reader: &store::Reader) -> Result<(), CommandError> {
        let Services { broker, history, local, subscriptions, tokens, .. } = self;
        storage::load_revocations(reader, &tokens.revocations)?;
        storage::load(reader, &**broker, local, subscriptions)?;
        let (unix_s, age_s) = (control::unix_us() / 1_000_000, history.age_ms() / 1_000);
        self.mqtt_state.load(reader, &**broker, sessions::Now { unix_s, age_s })
    }

    /// Starts the shards.
    pub fn start_shards(
        &self,
        prepared: shard::Prepared,
        settings: Arc<shard::Settings>,
    ) -> Result<shard::Running, CommandError> {
        let services = shard::Services {
            broker: self.broker.clone(),
            history: self.history.clone(),
            webhook: Some(self.webhook.clone()),
            shared: self.shared.clone(),
            tls: self.certificates.as_ref().map(|certificates| certificates.context()),
        };
        prepared
            .start(settings, &services, self.started)
            .map_err(|error| CommandError::Runtime(format!("a shard can't start: {error}")))
    }
}

fn set_time(shared: &shard::Shared, started: Instant, history: &dyn History) {
    let now_us = started.elapsed().as_micros() as u64;
    shared.set_time(now_us, control::unix_us(), history.age_ms().saturating_mul(1_000));
}

fn random<const N: usize>() -> Result<[u8; N], CommandError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        CommandError::Runtime(format!("the system provides no random bytes: {error}"))
    })?;
    Ok(bytes)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn open_history(
    config: &Config,
    runtime: &database::Runtime,
    router: Arc<broker::Router>,
    started: Instant,
) -> Result<Postgres, CommandError> {
    let writer = number(&random::<8>()?);
    history::open(config, runtime, router, started, writer)
}

fn broker(
    config: &Config,
    router: Arc<broker::Router>,
    started: Instant,
    begin: Option<Begin>,
    postgres: Option<&Postgres>,
    relay: Option<Arc<link::Link>>,
) -> Result<(Arc<broker::Local>, Arc<Local>), CommandError> {
    let secret = random::<{ broker::SECRET_BYTES }>()?;
    let (recent, history_limits) = (settings::broker(config), storage::limits(config));
    let begin = begin.unwrap_or_else(|| Begin::in_memory(broker::epoch(&secret)));
    let local = Arc::new(Local::new(router.clone(), begin, started, history_limits, recent));
    let log: Arc<dyn broker::HistoryLog> = match postgres {
        Some(postgres) => Arc::new(postgres.clone()),
        None => local.clone(),
    };
    let broker = broker::Local::new(router, secret, started, recent, log);
    let broker = match relay {
        Some(relay) => broker.with_relay(relay.settings().node, relay),
        None => broker,
    };
    Ok((Arc::new(broker), local))
}
