//! `throng serve`: connects the parts of the server and runs until a signal ends it.

mod authorities;
mod certificates;
mod cluster;
mod demo;
pub(in crate::commands) mod history;
mod log;
mod mqtt;
pub(in crate::commands) mod outbox;
mod parts;
mod ports;
mod services;
mod settings;
mod start;
mod storage;
pub(in crate::commands) mod subscriptions;
pub(crate) mod tokens;
mod upgrade;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use ::history::History;
use config::{Config, Loaded};
use protocol::Protocols;
use signal_hook::consts::{SIGHUP, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::cli::Serve;
use crate::commands::parent;
use crate::error::CommandError;
use crate::notify::{self, State};
use crate::sources;

use certificates::Certificates;
use log::{Log, ms};
use settings::{Fixed, live, options, settings};
use start::Start;
use tokens::Tokens;
use upgrade::{Forwarded, Upgrade, Waiting};

/// Serves until SIGINT or SIGTERM, or until another process has taken over. A second signal ends the process
/// without a drain.
pub fn run(args: &Serve, protocols: &'static Protocols) -> Result<(), CommandError> {
    if let Some(path) = &args.take_over {
        return take_over(path, args, protocols);
    }
    let loaded = sources::load(&args.settings)?;
    let log = Log::start(&loaded.config)?;
    warn(&loaded);
    let (server, signals) = Start { loaded: &loaded, args, protocols, log }.begin()?;
    server.print_hello(&loaded.config);
    notify::notify(State::Ready);
    server.run(loaded, signals, args);
    Ok(())
}

/// Waits at this path for the old process, takes its place, and serves.
fn take_over(
    path: &std::path::Path,
    args: &Serve,
    protocols: &'static Protocols,
) -> Result<(), CommandError> {
    let mut waiting = Waiting::at(path)?;
    loop {
        let old = waiting.old_process()?;
        // Each attempt reads the configuration as it is now.
        let checked = sources::load(&args.settings).and_then(|loaded| {
            let notes = old.check(&loaded, &options(&loaded.config))?;
            old.accept(&parts::NAMES, notes).map_err(|error| failed(&error))?;
            Ok(loaded)
        });
        let loaded = checked.inspect_err(|error| old.refuse(error))?;
        if old.is_check() {
            waiting = old.wait_again();
            continue;
        }
        let log = Log::start(&loaded.config)?;
        warn(&loaded);
        let started = Start { loaded: &loaded, args, protocols, log }.take_over(old);
        let (server, signals) = started.inspect_err(|error| {
            tracing::error!(error = error.text(), "this process does not take over");
        })?;
        notify::notify(State::Ready);
        server.run(loaded, signals, args);
        return Ok(());
    }
}

fn failed(error: &std::io::Error) -> CommandError {
    CommandError::Runtime(format!("the upgrade failed: {error}"))
}

/// Logs the warnings of a valid configuration.
fn warn(loaded: &Loaded) {
    for warning in loaded.warnings().into_iter().chain(sources::open_secrets(loaded)) {
        tracing::warn!("{warning}");
    }
    if let [first, rest @ ..] = loaded.platform_variables() {
        tracing::info!(
            variable = first,
            others = rest.len(),
            "variables that describe a service called throng are ignored: they are not settings"
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
    mqtt_state: mqtt::Mqtt,
    fixed: Fixed,
    tokens: Tokens,
    log: Log,
    client: Option<SocketAddr>,
    client_tls: Option<SocketAddr>,
    mqtt: Option<SocketAddr>,
    mqtt_tls: Option<SocketAddr>,
    certificates: Option<Arc<Certificates>>,
    admin: SocketAddr,
    admin_tls: Option<SocketAddr>,
    connections_max: u64,
    upgrade: Arc<Upgrade>,
    /// True if this process must stay after an upgrade (`--stay`).
    stay: bool,
    /// The socket to which earlier processes forward requests.
    forwarded: Option<Forwarded>,
    /// The link to other nodes, and its thread.
    cluster: Option<(Arc<link::Link>, link::Running)>,
    /// The history in a database, and its thread.
    postgres: Option<(history_postgres::Postgres, database::Running)>,
    /// The stored subscriptions in a database, and their thread.
    subscription_database: Option<(subscriptions_postgres::Postgres, database::Running)>,
    /// The outbox, and the thread that drains it.
    outbox: Option<(Arc<::outbox::Outbox>, database::Running)>,
}

impl Server {
    fn print_hello(&self, config: &Config) {
        let admin = self.admin;
        let key = match config.admin.api_key.is_empty() && config.keys.is_empty() {
            true => "",
            false => " -H 'Authorization: Bearer YOUR_KEY'",
        };
        let client = self.client_url();
        let demo = match self.fixed.demo {
            true => format!("The chat: open {client}/ in two windows.\n"),
            false => "A demo chat: throng serve --demo\n".into(),
        };
        let line = |what: &str, scheme: &str, port: Option<SocketAddr>| {
            port.map_or(String::new(), |port| format!("  {what:<13} {scheme}://{port}\n"))
        };
        let clients = match self.client {
            Some(port) => line("clients", "http", Some(port)) + &line("", "https", self.client_tls),
            None => line("clients", "https", self.client_tls),
        };
        let mqtt = line("mqtt", "mqtt", self.mqtt);
        let mqtt_tls = line("mqtt", "mqtts", self.mqtt_tls);
        let admin_tls = line("", "https", self.admin_tls);
        let subscribe = self.mqtt.map_or(String::new(), |mqtt| {
            // Mosquitto's clients connect to this address by default.
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
            "Throng {}: {} shards, up to {} connections, messages are sent by {}\n\n\
             {clients}{mqtt}{mqtt_tls}  \
             applications  http://{admin}   open this page in a browser\n{admin_tls}\n\
             Try it: listen in one terminal, publish in another.\n  \
             curl -N '{client}/sse?topic=news&user=alice'\n  \
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
            client = self.client.map(tracing::field::display),
            client_tls = self.client_tls.map(tracing::field::display),
            mqtt = self.mqtt.map(tracing::field::display),
            mqtt_tls = self.mqtt_tls.map(tracing::field::display),
            %admin,
            admin_tls = self.admin_tls.map(tracing::field::display),
            version = env!("CARGO_PKG_VERSION"),
            "serving clients and applications"
        );
    }

    /// Returns the URL at which clients connect, as they would write it.
    fn client_url(&self) -> String {
        let Some(port) = self.client_tls.filter(|_| self.client.is_none()) else {
            return self.client.map_or(String::new(), |client| format!("http://{client}"));
        };
        let certificates = self.certificates.iter().flat_map(|it| it.control().get());
        let name = certificates.map(|it| it.name).find(|name| !name.contains(['*', '@', ':']));
        match name.filter(|name| !name.is_empty()) {
            Some(name) => format!("https://{name}:{}", port.port()),
            None => format!("https://{port}"),
        }
    }

    /// Handles signals until one ends the server, or another process has taken over.
    fn run(self, mut loaded: Loaded, mut signals: Signals, args: &Serve) {
        for signal in signals.forever() {
            match signal {
                SIGHUP => {}
                SIGUSR2 => {
                    self.upgrade.begin_by_signal();
                    continue;
                }
                _ => break,
            }
            notify::notify(State::Reloading);
            let span = tracing::info_span!("reload").entered();
            let new = sources::load(&args.settings);
            match new.and_then(|new| self.reload(&loaded, &new)) {
                Ok(now) => loaded = now,
                Err(error) => {
                    for line in error.text().lines() {
                        tracing::error!(error = line, "the configuration is unchanged");
                    }
                }
            }
            drop(span);
            notify::notify(State::Ready);
        }
        if self.upgrade.cancel() {
            return self.leave();
        }
        std::thread::spawn(move || {
            if signals.forever().any(|signal| signal != SIGHUP && signal != SIGUSR2) {
                tracing::warn!("a second signal: ending without waiting for clients");
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
        let login = cluster::login(&new.config)?;
        if let Some(certificates) = &self.certificates {
            certificates.reload(&new.config)?;
        }
        let settings = Arc::new(settings(&new.config, &self.fixed, auth.authenticator));
        let keys_seconds = new.config.history.idempotency_seconds_max;
        self.history.set_rules(Arc::new(settings.session.policy.rules().clone()), keys_seconds);
        self.mqtt_state.set_rules(Arc::new(settings.session.policy.rules().clone()));
        let (mqtt, is_stored) = (settings.session.mqtt.as_ref(), self.store.is_some());
        self.mqtt_state.configure(&*self.history, mqtt, is_stored);
        if let Some(store) = &self.store {
            store.set_idempotency_seconds_max(keys_seconds);
        }
        // This comes before the shards, so that the webhook has queues for what they forward by new rules.
        self.webhook.set(settings::webhook(&new.config));
        if let Some((link, _)) = &self.cluster {
            link.set_login(login);
            link.set_message_bytes_max(settings::clamped(new.config.limits.message_bytes_max));
        }
        if let Some((outbox, _)) = &self.outbox {
            outbox.set_password(new.config.outbox.password.clone());
        }
        if let Some((postgres, _)) = &self.postgres {
            postgres.set_password(new.config.history.password.clone());
        }
        if let Some((subscriptions, _)) = &self.subscription_database {
            subscriptions.set_password(new.config.history.password.clone());
        }
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

    /// Called when another process serves. Ends this process when all calls that it received have responses.
    fn leave(mut self) {
        self.forwarded.iter_mut().for_each(Forwarded::let_go);
        // The other process publishes the outbox's rows from now on.
        drop(self.outbox.take());
        // The other process follows the changes of subscriptions, too.
        drop(self.subscription_database.take());
        let stays = parent::must_stay(self.upgrade.is_parent(), self.stay);
        if stays {
            parent::pass_signals_on();
        }
        self.shards.join();
        self.control.end_forwarding();
        if stays {
            tracing::info!("another process serves: this one only waits until it ends");
            let error = parent::become_parent(&crate::binary::path());
            tracing::error!(%error, "this process can't wait for the one that serves");
        }
        tracing::info!("ended: another process serves");
    }

    fn drain(mut self, seconds: u32) {
        notify::notify(State::Stopping);
        let _span = tracing::info_span!("stop").entered();
        let began = Instant::now();
        // Another node publishes the rows that are left in the outbox, or this one after its restart.
        if let Some((_, running)) = self.outbox.take() {
            running.stop();
        }
        let connections = self.shared.connections.load(Ordering::Relaxed);
        tracing::info!(
            connections,
            drain_seconds = seconds,
            "ending: clients are told to come back, to another server or later"
        );
        self.shared.ending.store(true, Ordering::SeqCst);
        self.shared.draining.store(true, Ordering::SeqCst);
        for handle in &self.handles {
            handle.send(shard::Command::Drain { seconds });
        }
        self.shards.join();
        if let Some((_, running)) = self.cluster {
            running.stop();
        }
        // This appends the last messages of clients.
        if let Some((postgres, running)) = self.postgres.take() {
            self.mqtt_state.end(|| postgres.status().is_connected);
            running.stop();
        }
        // This delivers or stores the last events.
        self.webhook.end();
        self.control.stop();
        if let Some((_, running)) = self.subscription_database.take() {
            running.stop();
        }
        if let Some(store) = &self.store {
            self.mqtt_state.end(|| store.write_error().is_none());
            if let Err(error) = store.close() {
                tracing::error!(%error, "the store could not be closed cleanly");
            }
        }
        tracing::info!(duration_ms = ms(began.elapsed()), "ended");
    }
}
