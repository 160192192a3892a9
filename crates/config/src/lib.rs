//! Throng's configuration. One table of settings ([`SETTINGS`]) defines the parsers of files, variables and flags,
//! the commented default file, and the listing of the configuration in force. [`TOPIC_KEYS`], [`FORWARD_KEYS`] and
//! [`KEY_KEYS`] do the same for tables that a file may repeat: the rules by topic, those that send messages to a back
//! end, and the keys of the API.
//!
//! Later sources win: defaults, the file, the environment (`THRONG_<SECTION>_<KEY>`), flags. This
//! crate reads nothing from the process: the caller passes texts in, and so do tests.

#![forbid(unsafe_code)]

mod address;
mod certificates;
mod check;
mod eab;
mod forwards;
mod key_file;
mod keys;
mod parse;
mod platform;
mod print;
mod public;
mod renames;
mod setting;
mod signing;
mod size;
mod source;
mod suggestion;
mod table;
mod table_kinds;
mod tables;
mod time;
mod topics;
mod typed;
mod url;
mod values;

use std::fmt;
use std::net::SocketAddr;

pub use address::Resolve;
pub use certificates::{CERTIFICATE_KEYS, CertificateRule};
pub use check::check_database_url;
pub use eab::parse_eab_key;
pub use forwards::{FORWARD_KEYS, ForwardRule};
pub use key_file::NO_KEY;
pub use keys::{KEY_KEYS, KeyHash, KeyRule};
pub use print::{default_file, effective, quoted};
pub use public::{CHECKLIST, Finding, Point, Severity};
pub use setting::{Kind, Limit, Setting};
pub use signing::key as signing_key;
pub use source::{ReadSecret, Sources};
pub use table::{
    Admin, Auth, Client, Config, History, Inbox, Limits, Log, Mqtt, Presence, SECTIONS, SETTINGS,
    Shards, Socket, Store, Subscriptions, Timeouts, Webhook, Websocket,
};
pub use tables::{Absent, TableKey};
pub use topics::{TOPIC_KEYS, TopicRule};
pub use typed::{ClientCertificates, LogFormat, Sender, Silence, TlsVersion};

/// Bytes that an MQTT packet may have around its payload if no setting limits it: a topic, and properties.
const AROUND_PAYLOAD_BYTES: u64 = 4 << 10;

/// A value of any setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Bool(bool),
    Number(u64),
    Text(String),
    List(Vec<String>),
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No source set it.
    Default,
    /// A line of a file.
    File {
        /// The file's name.
        name: String,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
    },
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(String),
    /// The key's own file, which contains nothing else.
    KeyFile(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { name, line, .. } => write!(f, "{}:{line}", one_line(name)),
            Origin::Variable(name) => write!(f, "variable {}", one_line(name)),
            Origin::Flag(name) => write!(f, "flag {name}"),
            Origin::KeyFile(name) => write!(f, "file {}", one_line(name)),
        }
    }
}

/// Escapes control characters: a name from outside must neither end a comment nor steer a terminal.
fn one_line(text: &str) -> String {
    let spelled =
        |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(spelled).collect()
}

/// An error in one setting. It contains the location of the value, and what would be valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}", location(origin, key), one_line(message))]
pub struct SettingError {
    /// Where the value was written.
    pub origin: Origin,
    /// The setting, or the written name if it is unknown. Empty if the error concerns the whole file.
    pub key: String,
    /// What is invalid, and what would be valid.
    pub message: String,
}

/// The start of an error's line: the source with line and column, and the key, as far as known.
fn location(origin: &Origin, key: &str) -> String {
    let mut location = match origin {
        Origin::File { column, .. } => format!("{origin}:{column}: "),
        Origin::Default => String::new(),
        origin => format!("{origin}: "),
    };
    if !key.is_empty() {
        location.push_str(&one_line(key));
        location.push_str(": ");
    }
    location
}

/// All errors of a configuration; at least one. Its text has one line for each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct ConfigError(pub Vec<SettingError>);

fn lines(errors: &[SettingError]) -> String {
    errors.iter().map(SettingError::to_string).collect::<Vec<_>>().join("\n")
}

/// The configuration in force, and the source of each value.
#[derive(Clone)]
pub struct Loaded {
    /// The typed values.
    pub config: Config,
    values: values::Values,
    rules: Vec<values::Rule>,
    keys: Vec<values::Rule>,
    forwards: Vec<values::Rule>,
    certificates: Vec<values::Rule>,
    old_names: Vec<renames::OldName>,
    platform_variables: Vec<String>,
}

impl fmt::Debug for Loaded {
    /// Prints the typed values, which hide secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The differences between two configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Settings that take effect at once. `topics` stands for all rules by topic, `forward` for all rules that send
    /// messages to a back end, `keys` for all keys of the API.
    pub applied: Vec<&'static str>,
    /// Settings that take effect at the next start.
    pub restart: Vec<&'static str>,
}

impl Config {
    /// Returns true if all clients of the client port must prove who they are, by a token or to the application.
    pub fn knows_clients(&self) -> bool {
        let application_decides = self.webhook.connect && self.webhook.silence == Silence::Deny;
        self.auth.required || application_decides
    }

    /// Bytes of a packet from an MQTT client, at most.
    pub fn mqtt_packet_bytes_max(&self) -> u64 {
        match self.mqtt.packet_bytes_max {
            0 => self.limits.message_bytes_max + AROUND_PAYLOAD_BYTES,
            set => set,
        }
    }

    /// Returns true if MQTT clients may publish to topics for which no rule decides who may: only this machine can
    /// reach the server, no proxy serves others, and no setting distinguishes clients.
    pub fn is_open_to_mqtt(&self) -> bool {
        let local = |address: SocketAddr| address.ip().to_canonical().is_loopback();
        let (listen, listen_tls) = (self.client.listen, self.client.listen_tls);
        let ports = [listen, listen_tls, self.mqtt.listen, self.mqtt.listen_tls];
        let is_local = self.has_mqtt() && ports.into_iter().flatten().all(local);
        let takes_all_users = !self.webhook.connect && !self.auth.required && !self.has_tokens();
        let takes_all_users =
            takes_all_users && self.tls.client_user == auth::CertificateUser::None;
        is_local && !self.has_proxy() && takes_all_users
    }

    /// Returns true if MQTT clients have a port.
    pub fn has_mqtt(&self) -> bool {
        self.mqtt.listen.is_some() || self.mqtt.listen_tls.is_some()
    }

    /// Returns true if a setting implies a proxy in front of the client port: clients of other machines may then be
    /// behind it.
    fn has_proxy(&self) -> bool {
        let Client { trusted_proxies, proxy_header, user_header, .. } = &self.client;
        let is_default = *proxy_header == proxies::ProxyHeader::XForwardedFor;
        !(trusted_proxies.is_empty() && user_header.is_empty() && is_default)
    }

    /// Returns true if tokens authenticate clients: the server has a key that verifies them.
    pub fn has_tokens(&self) -> bool {
        let Auth { hmac_key, public_key_files, jwks_urls, .. } = &self.auth;
        !(hmac_key.is_empty() && public_key_files.is_empty() && jwks_urls.is_empty())
    }
}

impl Loaded {
    /// Reads all sources, and checks all values by themselves and against each other. Returns all errors, not only
    /// the first.
    pub fn load(sources: &Sources<'_>) -> Result<Loaded, ConfigError> {
        let mut read = source::read(sources);
        key_file::read(&mut read, sources.read_secret);
        Loaded::check(read)
    }

    fn check(mut read: source::Read) -> Result<Loaded, ConfigError> {
        let config =
            table::typed(&read.values, &read.rules, &read.forwards, &read.keys, &read.certificates);
        check::check_config(&config, &mut read);
        match read.errors.is_empty() {
            true => {
                let source::Read { values, rules, keys, forwards, certificates, .. } = read;
                let source::Read { old_names, platform_variables, .. } = read;
                Ok(Loaded {
                    config,
                    values,
                    rules,
                    keys,
                    forwards,
                    certificates,
                    old_names,
                    platform_variables,
                })
            }
            false => Err(ConfigError(read.errors)),
        }
    }

    /// Returns the configuration in force after a reload: the new values of settings that take effect at once, and
    /// the old values of settings that need a restart. Both configurations are valid, but their mixture may not be
    /// (for example without the key, while the listener that needs it stays open until the restart). So this function
    /// checks the mixture; if it has errors, the reload must be rejected.
    pub fn reloaded(&self, new: &Loaded) -> Result<Loaded, ConfigError> {
        let (values, old_names) = (new.values.clone(), new.old_names.clone());
        let (rules, keys) = (new.rules.clone(), new.keys.clone());
        let (forwards, platform_variables) = (new.forwards.clone(), new.platform_variables.clone());
        let mut read = source::Read {
            values,
            rules,
            keys,
            forwards,
            certificates: new.certificates.clone(),
            old_names,
            platform_variables,
            ..Default::default()
        };
        for setting in SETTINGS.iter().filter(|setting| !setting.reload) {
            if let Some(value) = self.values.get(setting.key) {
                read.values.insert(setting.key, value.clone());
            }
        }
        Loaded::check(read)
    }

    /// Returns a warning for each old name, which only one more version reads. It begins with the origin and contains
    /// the new name.
    pub fn warnings(&self) -> Vec<String> {
        renames::warnings(&self.old_names)
    }

    /// The ignored variables with our prefix that are not settings: the platform sets them for a service whose name
    /// begins with `throng`.
    pub fn platform_variables(&self) -> &[String] {
        &self.platform_variables
    }

    /// The source of a setting's value; [`Origin::Default`] for an unknown key.
    pub fn origin(&self, key: &str) -> &Origin {
        self.values.get(key).map_or(&Origin::Default, |(_, origin)| origin)
    }

    /// The numeric settings whose keys begin with `prefix`.
    pub fn numbers(&self, prefix: &str) -> impl Iterator<Item = (&'static str, u64)> {
        self.values.iter().filter_map(move |(key, (value, _))| match value {
            Value::Number(number) if key.starts_with(prefix) => Some((*key, *number)),
            _ => None,
        })
    }

    /// Returns the changes that a reload makes.
    pub fn changes(&self, new: &Loaded) -> Changes {
        let mut changes = Changes::default();
        for setting in SETTINGS {
            let value =
                |loaded: &Loaded| loaded.values.get(setting.key).map(|(value, _)| value.clone());
            if value(self) != value(new) {
                let list = if setting.reload { &mut changes.applied } else { &mut changes.restart };
                list.push(setting.key);
            }
        }
        if self.config.topics != new.config.topics {
            changes.applied.push("topics");
        }
        if self.config.forwards != new.config.forwards {
            changes.applied.push("forward");
        }
        if self.config.keys != new.config.keys {
            changes.applied.push("keys");
        }
        if self.config.certificates != new.config.certificates {
            changes.applied.push("tls.certificates");
        }
        changes
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod topics_tests;
