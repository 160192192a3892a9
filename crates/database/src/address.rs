//! The address of the database, and the security of the connection.

use std::fmt;
use std::time::Duration;

use admin::tls::{Tls, Trust};
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

/// The longest time for a connect, for each address of a host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// After so long without a byte, the kernel probes the peer; then at each interval, this many times.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_RETRIES: u32 = 3;

/// The longest time that sent bytes may stay unacknowledged.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

/// The address of the database, and the security of the connection. `Debug` shows no secret.
#[derive(Clone)]
pub struct Address {
    pub(crate) config: tokio_postgres::Config,
    pub(crate) tls: Tls,
}

/// Why a URL does not name a database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(String);

impl Address {
    /// Parses a URL in libpq's form: `postgres://user@host:5432/database?sslmode=verify-full`, without a password.
    /// `ca` has certificates of authorities in PEM; without it the client trusts those of the system.
    ///
    /// `sslmode` is that of libpq: `disable`, `prefer` (the default), `require`, `verify-full`. With `ca` all but the
    /// first verify the server's certificate; `prefer` still goes on without TLS if the server has none.
    ///
    /// # Errors
    /// If the URL is not of a database, or `ca` has no certificates. The text has no secret.
    pub fn new(url: &str, ca: Option<&str>) -> Result<Self, AddressError> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut rest = Vec::new();
        let mut mode = "prefer";
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("sslmode", value) => mode = value,
                ("sslrootcert", _) => {
                    return Err(AddressError("sslrootcert is not supported: use ca_file".into()));
                }
                // libpq reads a list of hosts here, and tokio_postgres a single one.
                ("host", hosts) => rest.extend(hosts.split(',').map(|host| format!("host={host}"))),
                _ => rest.push(pair.to_owned()),
            }
        }
        let (mode, trust) = match (mode, ca) {
            ("disable", _) => (SslMode::Disable, Trust::Any),
            ("prefer", None) => (SslMode::Prefer, Trust::Any),
            ("prefer", Some(ca)) => (SslMode::Prefer, Trust::Pem(ca)),
            // As in libpq: encrypted, but an intermediary may pose as the server.
            ("require", None) => (SslMode::Require, Trust::Any),
            ("require" | "verify-full", Some(ca)) => (SslMode::Require, Trust::Pem(ca)),
            ("verify-full", None) => (SslMode::Require, Trust::System),
            (other, _) => {
                let message = format!(
                    "sslmode={other} is not supported: use disable, prefer, require or verify-full"
                );
                return Err(AddressError(message));
            }
        };
        let plain = match rest.is_empty() {
            true => base.to_owned(),
            false => format!("{base}?{}", rest.join("&")),
        };
        let mut config: tokio_postgres::Config = plain.parse().map_err(unreadable)?;
        if config.get_hosts().is_empty() {
            return Err(AddressError(
                "it has no host: write postgres://user@host:5432/database, or \
                 postgres:///database?host=/run/postgresql for a Unix socket"
                    .into(),
            ));
        }
        if config.get_hosts().len() > 1 {
            // A standby has the rows, but can't delete them.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        config.ssl_mode(mode).keepalives(true);
        config.keepalives_idle(KEEPALIVE_IDLE).keepalives_interval(KEEPALIVE_INTERVAL);
        config.keepalives_retries(KEEPALIVE_RETRIES).tcp_user_timeout(TCP_USER_TIMEOUT);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("throng");
        }
        let tls = Tls::new(trust).map_err(|error| AddressError(format!("TLS: {error:#}")))?;
        Ok(Address { config, tls })
    }

    /// Returns the user that the URL names, or the process's.
    pub fn user(&self) -> &str {
        self.config.get_user().unwrap_or("")
    }
}

/// Makes an error of the parser, with its cause.
fn unreadable(error: tokio_postgres::Error) -> AddressError {
    let cause = std::error::Error::source(&error).map(|cause| format!(" ({cause})"));
    AddressError(format!("it can't be read{}", cause.unwrap_or_default()))
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").field("config", &self.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::Host;

    use super::*;

    #[test]
    fn a_url_says_how_the_connection_is_secured() {
        let mode = |url: &str| Address::new(url, None).unwrap().config.get_ssl_mode();
        assert_eq!(mode("postgres://a@h/d?sslmode=disable"), SslMode::Disable);
        assert_eq!(mode("postgresql://a@h/d"), SslMode::Prefer);
        assert_eq!(mode("postgres://a@h/d?sslmode=require&connect_timeout=3"), SslMode::Require);
        let error = |url: &str| Address::new(url, None).unwrap_err().to_string();
        assert!(error("postgres://h/d?sslmode=verify-ca").contains("or verify-full"));
        assert!(error("postgres://h/d?sslrootcert=a").contains("use ca_file"));
        assert!(Address::new("postgres://h/d?sslmode=require", Some("no PEM")).is_err());
    }

    #[test]
    fn hosts_and_options_are_those_of_libpq() {
        let address = Address::new("postgres://u@a:1,b:2/d?options=-c%20x%3D1", None).unwrap();
        assert_eq!(address.config.get_ports(), [1, 2]);
        assert_eq!(address.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        assert_eq!((address.user(), address.config.get_dbname()), ("u", Some("d")));
        assert!(Address::new("postgres:///d?host=/run/postgresql", None).is_ok());
        let sockets = Address::new("postgres:///d?host=/run/a,/run/b&port=1,2", None).unwrap();
        let hosts = ["/run/a", "/run/b"].map(|host| Host::Unix(host.into()));
        assert_eq!(
            (sockets.config.get_hosts(), sockets.config.get_ports()),
            (&hosts[..], &[1, 2][..])
        );
        let error = |url: &str| Address::new(url, None).unwrap_err().to_string();
        assert!(error("postgres:///d").contains("has no host"));
        assert!(error("postgres://h:x/d").contains("can't be read"));
        assert!(error("postgres://h/d?nonsense=1").contains("can't be read"));
    }
}
