//! Listens at the ports, and says why it can't listen at one.

use std::io;
use std::net::{SocketAddr, TcpListener};

use config::Config;
use protocol::{Listener, Protocols};

use crate::error::CommandError;

use super::settings::options;

/// Checks that this server was built with the protocols of its ports.
pub(super) fn check(config: &Config, protocols: &Protocols) -> Result<(), CommandError> {
    if config.has_mqtt() && protocols.begin(Listener::Mqtt).is_none() {
        return Err(CommandError::Usage(
            "this server was built without MQTT: remove mqtt.listen (--mqtt)".into(),
        ));
    }
    Ok(())
}

/// Prepares the shards, which listen for clients, with the listeners of shards that were taken over.
pub(super) fn prepare(
    config: &Config,
    taken: Vec<shard::TakenShard>,
) -> Result<shard::Prepared, CommandError> {
    let prepared = shard::prepare_to_take(options(config), config.limits.connections_max, taken);
    prepared.map_err(|error| match error {
        shard::PrepareError::Listen(port, address, error) => {
            let setting = match (port.listener, port.tls) {
                (Listener::Client, false) => ("client.listen", "--listen"),
                (Listener::Client, true) => ("client.listen_tls", "client.listen_tls"),
                (Listener::Mqtt, false) => ("mqtt.listen", "--mqtt"),
                (Listener::Mqtt, true) => ("mqtt.listen_tls", "mqtt.listen_tls"),
            };
            cannot_listen(address, setting, &error)
        }
        shard::PrepareError::System(error) => {
            CommandError::Runtime(format!("the shards can't be created: {error}"))
        }
    })
}

/// Listens at the admin port.
pub(super) fn admin(config: &Config) -> Result<TcpListener, CommandError> {
    let address = config.admin.listen;
    TcpListener::bind(address)
        .map_err(|error| cannot_listen(address, ("admin.listen", "--admin"), &error))
}

/// Listens at the admin port with TLS, which has no flag.
pub(super) fn admin_tls(address: SocketAddr) -> Result<TcpListener, CommandError> {
    let setting = ("admin.listen_tls", "admin.listen_tls");
    TcpListener::bind(address).map_err(|error| cannot_listen(address, setting, &error))
}

/// Returns the error of an admin port that can't start.
pub(super) fn no_admin(error: &io::Error) -> CommandError {
    CommandError::Runtime(format!("the admin port can't start: {error}"))
}

fn cannot_listen(
    address: SocketAddr,
    (key, flag): (&str, &str),
    error: &io::Error,
) -> CommandError {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another program listens there: stop it, or choose another address with {flag}")
        }
        io::ErrorKind::PermissionDenied => {
            format!("ports below 1024 need a privilege: choose another port with {flag}")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("this machine does not have that address: choose another with {flag}")
        }
        _ => format!("if the address is the reason, choose another with {flag}"),
    };
    CommandError::Runtime(format!("can't listen on {address} ({key}): {error}; {advice}"))
}
