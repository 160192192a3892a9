//! `throng serve`: connects the parts of the server and runs until a signal ends it.

mod demo;
mod log;
mod mqtt;
mod settings;
mod storage;
pub(crate) mod tokens;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use ::history::History;
use config::{Config, Loaded};
use history_local::{Begin, Local};
use protocol::{Listener, Protocols};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::Serve;
use crate::error::CommandError;
use crate::notify::{self, State};
use crate::sources;

use log::{Log, ms};
use settings::{Fixed, live, options, settings};
use tokens::Tokens;

/// Serves until SIGINT or SIGTERM. A second signal ends the process without a drain.
pub fn run(args: &Serve, protocols: &'static Protocols) -> Result<(), CommandError> {
    let loaded = sources::load(&args.settings)?;
    let log = Log::start(&loaded.config)?;
    warn(&loaded);
    let (server, signals) = Server::start(&loaded, args, protocols, log)?;
    server.print_hello(&loaded.config);
    notify::tell(State::Ready);
    server.run(loaded, signals, args);
    Ok(())
}

/// Logs what is wrong with a configuration that is good all the same.
fn warn(loaded: &Loaded) {
    for warning in loaded.warnings().into_iter().chain(sources::open_secrets(loaded)) {
        tracing::warn!("{warning}");
    }
    if let [first, rest @ ..] = loaded.platform_variables() {
        tracing::info!(
            variable = first,
            others = rest.len(),
            "variables that describe a service called throng are no settings: they are passed over"
        );
    }
}

/// The parts of the running server.
struct Server {
    history: Arc<dyn History>,
    store: Option<store::Store>,
    handles: Vec<shard::Handle>,
    shards: shard::Running,
    control: control::Running,
    shared: Arc<shard::Shared>,
    started: Instant,
    live: Arc<RwLock<control::Live>>,
    connections: Arc<control::Connections>,
    access: Arc<control::Access>,
    webhook: Arc<control::webhook::Dispatcher>,
    kept: mqtt::Mqtt,
    fixed: Fixed,
    tokens: Tokens,
    log: Log,
    client: SocketAddr,
    mqtt: Option<SocketAddr>,
    admin: SocketAddr,
    connections_max: u64,
}

impl Server {
    fn start(
        loaded: &Loaded,
        args: &Serve,
        protocols: &'static Protocols,
        log: Log,
    ) -> Result<(Self, Signals), CommandError> {
        let config = &loaded.config;
        let _span = tracing::info_span!("start").entered();
        let started = Instant::now();
        // Each shard's descriptor table starts as a copy of the current one. Everything that shards
        // and signal handlers write to must be open before that, and nothing else should be.
        let runtime = control::Runtime::new().map_err(|error| {
            CommandError::Runtime(format!("the admin port can't start: {error}"))
        })?;
        crate::allocator::start();
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
            .map_err(|error| CommandError::Runtime(format!("signals can't be handled: {error}")))?;
        let connections_max = config.limits.connections_max;
        if config.mqtt.listen.is_some() && protocols.begin(Listener::Mqtt).is_none() {
            return Err(CommandError::Usage(
                "this server was built without MQTT: leave mqtt.listen (--mqtt) away".into(),
            ));
        }
        let prepared = shard::prepare(options(config), connections_max).map_err(cannot_prepare)?;
        let random = random::<40>()?;
        let (epoch, random) = random.split_at(4);
        let opened = storage::open(config, number(epoch) as u32)?;
        let begin = storage::begin(&opened);
        let subscriptions =
            Arc::new(subscriptions::Subscriptions::new(config.subscriptions.by_topic));
        let (key, node) = random.split_at(32);
        let node = model::NodeId(number(node) as u32);
        let kept = mqtt::Mqtt::new(node, opened.as_ref().map(|(store, ..)| store));
        let (broker, history) = broker(config, &prepared.handles, started, begin, &kept)?;
        let (store, reader) = opened.map(|(store, reader, _)| (store, reader)).unzip();
        let client = prepared.address(Listener::Client).unwrap_or(config.client.listen);
        let (mqtt, handles) = (prepared.address(Listener::Mqtt), prepared.handles.clone());
        let (_, capacity) = prepared.capacity();
        let presence = presence::Local::new(settings::presence(config), node);
        let presence = Arc::new(presence);
        let (subscribed, outlives) = (subscriptions.clone(), kept.shared());
        let shared = shard::Shared::new(node, protocols, presence, subscribed, outlives);
        let shared = Arc::new(shared);
        shared.set_time(started.elapsed().as_micros() as u64, control::unix_us());
        kept.retained.set_clock(shared.unix_ms(0));
        let longpoll_key = protocol::phoenix::token::Key(std::array::from_fn(|at| key[at]));
        let fixed = Fixed { ws_echo: args.ws_echo, demo: args.demo, longpoll_key };
        let left = reader.as_ref().map(storage::events).transpose()?.unwrap_or_default();
        let told = control::webhook::Told {
            store: store.clone().map(|store| {
                Arc::new(storage::SavedEvents(store)) as Arc<dyn control::webhook::EventStore>
            }),
            left,
            node: node.to_string(),
        };
        let (webhook, workers) = control::webhook::Dispatcher::new(
            settings::webhook_fixed(config),
            settings::webhook(config),
            told,
        );
        let asked: Arc<dyn shard::Webhook> = webhook.clone();
        let tokens = Tokens::default();
        let auth = tokens.auth(config, None)?;
        let settings = Arc::new(settings(config, &fixed, auth.authenticator));
        let keys_seconds = config.history.idempotency_seconds_max;
        let rules = Arc::new(settings.session.policy.rules().clone());
        history.set_rules(rules.clone(), keys_seconds);
        kept.set_rules(rules);
        kept.configure(&*history, settings.session.mqtt.as_ref(), store.is_some());
        if let Some(reader) = reader {
            storage::load(&reader, &*broker, &history, &subscriptions, &tokens.revocations)?;
            kept.load(&reader, &*broker, control::unix_us() / 1_000_000)?;
        }
        let shards = prepared
            .start(settings, broker.clone(), history.clone(), Some(asked), shared.clone(), started)
            .map_err(|error| CommandError::Runtime(format!("a shard can't start: {error}")))?;
        if capacity < connections_max {
            tracing::warn!(
                capacity,
                connections_max,
                "descriptors allow fewer connections than limits.connections_max: use more shards, \
                 or raise the limit on open files (ulimit -n)"
            );
        }
        let listener = std::net::TcpListener::bind(config.admin.listen).map_err(|error| {
            cannot_listen(config.admin.listen, ("admin.listen", "--admin"), &error)
        })?;
        let admin = listener.local_addr().unwrap_or(config.admin.listen);
        let live = Arc::new(RwLock::new(live(loaded, &fixed, auth.jwks)));
        let connections = control::Connections::new(settings::admin(config));
        let access = control::Access::new(settings::access(config));
        let node = control::Node {
            broker: broker.clone(),
            history: history.clone(),
            store: store.clone(),
            shards: handles.clone(),
            shared: shared.clone(),
            started,
            client_url: format!("http://{client}"),
            body_bytes_max: settings::held(config.admin.body_bytes_max),
            connections: connections.clone(),
            access: access.clone(),
            anonymous_at_start: control::anonymous_bytes(),
            give_back: Some(crate::allocator::give_back),
            live: live.clone(),
            revocations: tokens.revocations.clone(),
            token_stats: tokens.stats.clone(),
            keys: tokens.fetcher.clone(),
            webhook: webhook.clone(),
            subscriptions,
            subscription_turns: control::Turns::default(),
            keep_subscriptions: store.clone().map(|store| {
                Arc::new(storage::SavedSubscriptions(store))
                    as Arc<dyn subscriptions::SubscriptionStore>
            }),
        };
        let control = control::spawn(runtime, listener, node, workers).map_err(|error| {
            CommandError::Runtime(format!("the admin port can't start: {error}"))
        })?;
        let connections_max = connections_max.min(capacity);
        let server = Server {
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
            kept,
            fixed,
            tokens,
            log,
            client,
            mqtt,
            admin,
            connections_max,
        };
        Ok((server, signals))
    }

    fn print_hello(&self, config: &Config) {
        let (client, admin) = (self.client, self.admin);
        let key = match config.admin.api_key.is_empty() && config.keys.is_empty() {
            true => "",
            false => " -H 'Authorization: Bearer YOUR_KEY'",
        };
        let demo = match self.fixed.demo {
            true => format!("The chat: open http://{client}/ in two windows.\n"),
            false => "A chat to show around: throng serve --demo\n".into(),
        };
        let mqtt =
            self.mqtt.map_or(String::new(), |mqtt| format!("  mqtt          mqtt://{mqtt}\n"));
        let subscribe = self.mqtt.map_or(String::new(), |mqtt| {
            // Where mosquitto's clients connect by themselves nothing has to be said.
            let at = match mqtt == SocketAddr::from(([127, 0, 0, 1], 1883)) {
                true => String::new(),
                false => format!(" -h {} -p {}", mqtt.ip(), mqtt.port()),
            };
            format!(
                "The same by MQTT:\n  \
                 mosquitto_sub{at} -t news\n  \
                 mosquitto_pub{at} -t news -m hello\n\n"
            )
        });
        println!(
            "Throng {}: {} shards, room for {} connections, messages leave by {}\n\n  \
             clients       http://{client}\n{mqtt}  \
             applications  http://{admin}   open this page in a browser\n\n\
             Try it: listen in one terminal, publish in another.\n  \
             curl -N 'http://{client}/sse?topic=news&user=alice'\n  \
             curl{key} http://{admin}/api/publish -d '{{\"topic\":\"news\",\"data\":\"hello\"}}'\n  \
             curl{key} http://{admin}/api/send -d '{{\"user\":\"alice\",\"data\":\"hello, alice\"}}'\n  \
             curl{key} http://{admin}/api/broadcast -d '{{\"data\":\"hello, everyone\"}}'\n\n\
             {subscribe}{demo}Other ports: throng --listen ADDR --admin ADDR. More: throng help.\n\
             Ctrl-C ends it.",
            env!("CARGO_PKG_VERSION"),
            self.handles.len(),
            self.connections_max,
            self.shards.sender,
        );
        tracing::info!(
            shards = self.handles.len(),
            sender = self.shards.sender,
            private_tables = self.shards.private_tables,
            connections_max = self.connections_max,
            %client,
            mqtt = self.mqtt.map(tracing::field::display),
            %admin,
            version = env!("CARGO_PKG_VERSION"),
            "serving clients and applications"
        );
    }

    /// Handles signals until one ends the server.
    fn run(self, mut loaded: Loaded, mut signals: Signals, args: &Serve) {
        for signal in signals.forever() {
            if signal != SIGHUP {
                break;
            }
            notify::tell(State::Reloading);
            let span = tracing::info_span!("reload").entered();
            let new = sources::load(&args.settings);
            match new.and_then(|new| self.reload(&loaded, &new)) {
                Ok(now) => loaded = now,
                Err(error) => {
                    for line in error.text().lines() {
                        tracing::error!(error = line, "the configuration stays as it was");
                    }
                }
            }
            drop(span);
            notify::tell(State::Ready);
        }
        std::thread::spawn(move || {
            if signals.forever().any(|signal| signal != SIGHUP) {
                tracing::warn!("told to end again: ending without waiting for anyone");
                std::process::exit(130);
            }
        });
        self.drain(settings::drain_seconds(&loaded.config));
    }

    /// Applies the new configuration as far as the running server can, and logs what needs a
    /// restart.
    fn reload(&self, old: &Loaded, new: &Loaded) -> Result<Loaded, CommandError> {
        let changes = old.changes(new);
        let new = old.reloaded(new).map_err(|error| CommandError::Usage(error.to_string()))?;
        self.log.reload(&new.config);
        let jwks = self.live.read().unwrap_or_else(PoisonError::into_inner).jwks.clone();
        let auth = self.tokens.auth(&new.config, Some(&jwks))?;
        let settings = Arc::new(settings(&new.config, &self.fixed, auth.authenticator));
        let keys_seconds = new.config.history.idempotency_seconds_max;
        self.history.set_rules(Arc::new(settings.session.policy.rules().clone()), keys_seconds);
        self.kept.set_rules(Arc::new(settings.session.policy.rules().clone()));
        let (mqtt, is_stored) = (settings.session.mqtt.as_ref(), self.store.is_some());
        self.kept.configure(&*self.history, mqtt, is_stored);
        if let Some(store) = &self.store {
            store.set_idempotency_seconds_max(keys_seconds);
        }
        // Before the shards: what they forward by a new rule has a place then.
        self.webhook.set(settings::webhook(&new.config));
        for handle in &self.handles {
            handle.send(shard::Command::Settings(settings.clone()));
        }
        self.connections.set(settings::admin(&new.config));
        self.access.set(settings::access(&new.config));
        let now_us = self.started.elapsed().as_micros() as u64;
        self.shared.presence.set_limits(settings::presence(&new.config), now_us);
        *self.live.write().unwrap_or_else(PoisonError::into_inner) =
            live(&new, &self.fixed, auth.jwks);
        warn(&new);
        if changes.applied.is_empty() && changes.restart.is_empty() {
            tracing::info!("the configuration was read again: nothing changed");
        }
        if !changes.applied.is_empty() {
            let settings = changes.applied.join(", ");
            tracing::info!(
                settings,
                "the configuration was read again: these settings are in force"
            );
        }
        if !changes.restart.is_empty() {
            let settings = changes.restart.join(", ");
            tracing::warn!(settings, "these settings have changed and need a restart");
        }
        Ok(new)
    }

    fn drain(self, seconds: u32) {
        notify::tell(State::Stopping);
        let _span = tracing::info_span!("stop").entered();
        let began = Instant::now();
        let connections = self.shared.connections.load(Ordering::Relaxed);
        tracing::info!(
            connections,
            drain_seconds = seconds,
            "ending: connections are told to come back elsewhere or later"
        );
        self.shared.draining.store(true, Ordering::Relaxed);
        for handle in &self.handles {
            handle.send(shard::Command::Drain { seconds });
        }
        self.shards.join();
        // What has happened until now is told, or stored.
        self.webhook.end();
        self.control.stop();
        if let Some(store) = &self.store
            && let Err(error) = store.close()
        {
            tracing::error!(%error, "the store could not be closed in order");
        }
        tracing::info!(duration_ms = ms(began.elapsed()), "ended");
    }
}

fn cannot_prepare(error: shard::PrepareError) -> CommandError {
    match error {
        shard::PrepareError::Listen(listener, address, error) => {
            let setting = match listener {
                Listener::Client => ("client.listen", "--listen"),
                Listener::Mqtt => ("mqtt.listen", "--mqtt"),
            };
            cannot_listen(address, setting, &error)
        }
        shard::PrepareError::System(error) => {
            CommandError::Runtime(format!("the shards can't be made: {error}"))
        }
    }
}

fn cannot_listen(
    address: SocketAddr,
    (key, flag): (&str, &str),
    error: &std::io::Error,
) -> CommandError {
    let advice = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("something else listens there: stop it, or choose another with {flag}")
        }
        std::io::ErrorKind::PermissionDenied => {
            format!("ports below 1024 need a privilege: choose another with {flag}")
        }
        std::io::ErrorKind::AddrNotAvailable => {
            format!("this machine has no such address: choose another with {flag}")
        }
        _ => format!("choose another with {flag} if it is the address"),
    };
    CommandError::Runtime(format!("can't listen on {address} ({key}): {error}; {advice}"))
}

fn random<const N: usize>() -> Result<[u8; N], CommandError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| CommandError::Runtime(format!("the system has no randomness: {error}")))?;
    Ok(bytes)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn broker(
    config: &Config,
    handles: &[shard::Handle],
    started: Instant,
    begin: Option<Begin>,
    kept: &mqtt::Mqtt,
) -> Result<(Arc<dyn broker::Broker>, Arc<Local>), CommandError> {
    let secret = random::<{ broker::SECRET_BYTES }>()?;
    let inboxes: Vec<_> = handles.iter().map(shard::Handle::inbox).collect();
    let (recent, held) = (settings::broker(config), storage::limits(config));
    let begin = begin.unwrap_or_else(|| Begin::in_memory(broker::epoch(&secret)));
    let router = kept.router(inboxes);
    let history = Arc::new(Local::new(router.clone(), begin, started, held, recent));
    let broker = broker::Local::new(router, secret, started, recent, history.clone());
    Ok((Arc::new(broker), history))
}
