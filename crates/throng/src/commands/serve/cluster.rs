//! The node's link to a cluster, if the configuration has one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use config::Config;
use link::{
    Credentials, Description, Link, Login, MqttClients, Registry, Runtime, Servers, Settings,
};
use model::LogicalTime;
use sessions::NodeConnect;
use shard::Command;

use crate::error::CommandError;

use super::settings::clamped;

/// The least time for which interest in a topic outlives its last member, in seconds: clients come and go.
const LINGER_SECONDS_MIN: u64 = 10;

/// The link to other nodes, and the servers of NATS for it.
pub(super) struct Cluster {
    pub link: Arc<Link>,
    servers: Servers,
}

impl Cluster {
    /// Creates the link of this node. Returns `None` without `[cluster]`.
    pub fn new(
        config: &Config,
        node: model::NodeId,
        started: Instant,
        demo: bool,
    ) -> Result<Option<Self>, CommandError> {
        if config.cluster.urls.is_empty() {
            return Ok(None);
        }
        if demo {
            return Err(CommandError::Usage(
                "--demo has topics with history, which a cluster doesn't support in this version: \
                 remove --demo, or cluster.urls (--cluster)"
                    .into(),
            ));
        }
        let error =
            |error: link::ServersError| CommandError::Usage(format!("cluster.urls: {error}"));
        let servers = Servers::new(&config.cluster.urls).map_err(error)?;
        let ca_file = Some(&config.cluster.ca_file).filter(|file| !file.is_empty());
        let servers = servers.with_authorities(ca_file.map(PathBuf::from));
        let link = Link::new(settings(config, node), login(config)?, started);
        Ok(Some(Cluster { link, servers }))
    }

    /// Connects to the cluster until the caller drops what this returns.
    pub fn start(
        self,
        runtime: Runtime,
        broker: Arc<broker::Local>,
        registry: Registry,
        shared: Arc<shard::Shared>,
        shards: Vec<shard::Handle>,
    ) -> Result<link::Running, CommandError> {
        let clients = Clients { shared: shared.clone(), shards };
        let describe = move || Description {
            connections: shared.connections.load(Ordering::Relaxed),
            is_draining: shared.draining.load(Ordering::Relaxed),
        };
        let Cluster { link, servers } = self;
        let running = link::spawn(runtime, link, servers, broker, registry, describe, clients);
        running.map_err(|error| {
            CommandError::Runtime(format!("the cluster's thread can't start: {error}"))
        })
    }
}

/// The MQTT clients of all shards.
struct Clients {
    shared: Arc<shard::Shared>,
    shards: Vec<shard::Handle>,
}

impl MqttClients for Clients {
    fn on_connected_to_node(&self, key: &str, time: LogicalTime, is_clean: bool) {
        match self.shared.mqtt_sessions.on_connected_to_node(key, time, is_clean) {
            NodeConnect::Connected(id) => {
                if let Some(shard) = self.shards.get(usize::from(id.shard)) {
                    let (slot, key) = (id.slot, key.into());
                    shard.send(Command::MqttConnectedToNode { slot, key, time, is_clean });
                }
            }
            NodeConnect::Away(Some(will)) => {
                if let Some(shard) = self.shards.first() {
                    shard.send(Command::MqttPublishWill(Box::new(will)));
                }
            }
            NodeConnect::Away(None) => {}
        }
    }

    fn repeat_connects(&self) {
        self.shards.iter().for_each(|shard| shard.send(Command::MqttRepeatConnects));
    }
}

/// Creates the runtime of the cluster's thread; `None` without `[cluster]`. Call this before the shards start.
pub(super) fn runtime(config: &Config) -> Result<Option<Runtime>, CommandError> {
    let is_in_cluster = !config.cluster.urls.is_empty();
    let runtime = is_in_cluster.then(Runtime::new).transpose();
    runtime.map_err(|error| CommandError::Runtime(format!("the cluster can't be reached: {error}")))
}

/// Returns the node's login for the servers of NATS.
pub(super) fn login(config: &Config) -> Result<Login, CommandError> {
    let (user, password) = (&config.cluster.user, &config.cluster.password);
    if !config.cluster.credentials.is_empty() {
        let credentials = Credentials::parse(&config.cluster.credentials);
        let error = |error| {
            let setting = match config.cluster.credentials_file.is_empty() {
                true => "cluster.credentials".into(),
                false => format!("cluster.credentials_file, {}", config.cluster.credentials_file),
            };
            CommandError::Usage(format!("{setting}: {error}"))
        };
        return credentials.map(Login::Credentials).map_err(error);
    }
    Ok(match (user.is_empty(), password.is_empty()) {
        (false, _) => Login::User(user.clone(), password.clone()),
        (true, false) => Login::Token(password.clone()),
        (true, true) => Login::Anonymous,
    })
}

pub(super) fn settings(config: &Config, node: model::NodeId) -> Settings {
    let (cluster, limits) = (&config.cluster, &config.limits);
    // A poll that comes back within this time finds what was published meanwhile.
    let linger_seconds = limits.recent_seconds_max.max(LINGER_SECONDS_MIN);
    Settings {
        cluster: cluster.name.clone(),
        node,
        name: cluster.node.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        queue_bytes_max: clamped(cluster.queue_bytes_max),
        replay_bytes_max: clamped(cluster.replay_bytes_max),
        presence_bytes_max: clamped(cluster.presence_bytes_max),
        message_bytes_max: clamped(limits.message_bytes_max),
        linger_us: linger_seconds.saturating_mul(1_000_000),
    }
}
