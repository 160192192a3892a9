//! What must hold of a value beyond its kind, and between settings.

use std::net::{IpAddr, SocketAddr};

use tracing_subscriber::EnvFilter;

use crate::source::Read;
use crate::{Config, Origin, Problem};

/// An API key's least length in characters.
const API_KEY_CHARS_MIN: usize = 16;

/// Room for what a transport puts around a payload, in bytes.
const FRAMING_BYTES: u64 = 1024;

/// The checks, one after another; each names the settings it compares.
struct Checks<'a> {
    read: &'a mut Read,
}

impl Checks<'_> {
    /// A problem unless it holds. The first of `keys` that somebody set is where it is said. A
    /// setting whose own value is wrong is not compared: nobody knows yet what it will be.
    fn must(&mut self, keys: &[&'static str], holds: bool, message: impl FnOnce() -> String) {
        if holds || keys.iter().any(|key| self.read.unsound.contains(key)) {
            return;
        }
        let origin = |key: &str| self.read.values.get(key).map(|(_, origin)| origin.clone());
        let mut places = keys.iter().filter_map(|key| Some((*key, origin(key)?)));
        let set = places.find(|(_, origin)| *origin != Origin::Default);
        let (key, origin) = set.unwrap_or((keys[0], Origin::Default));
        self.read.problems.push(Problem { origin, key: key.into(), message: message() });
    }
}

pub(crate) fn together(config: &Config, read: &mut Read) {
    let mut checks = Checks { read };
    addresses(config, &mut checks);
    key(config, &mut checks);
    numbers(config, &mut checks);
    for origin in &config.client.cors_origins {
        checks.must(&["client.cors_origins"], is_origin(origin), || {
            format!(
                "{origin:?} is no origin: write \"*\", or scheme://host[:port] in lower case as \
                 browsers do, without a path"
            )
        });
    }
    let level = &config.log.level;
    if let Err(error) = EnvFilter::try_new(level) {
        checks.must(&["log.level"], false, || {
            format!("{level:?} is no filter ({error}): try info, or info,shard=debug")
        });
    }
}

fn addresses(config: &Config, checks: &mut Checks<'_>) {
    let (client, admin) = (config.client.listen, config.admin.listen);
    checks.must(
        &["client.listen", "client.insecure"],
        is_loopback(client) || config.client.insecure,
        || {
            format!(
                "{client} is open to other machines, and nothing authenticates clients: listen on \
                 127.0.0.1, or say --insecure (client.insecure = true) if a firewall or a proxy \
                 guards it"
            )
        },
    );
    checks.must(
        &["admin.listen", "admin.api_key"],
        is_loopback(admin) || !config.admin.api_key.is_empty(),
        || {
            format!(
                "{admin} is open to other machines: set admin.api_key (THRONG_ADMIN_API_KEY, or \
                 --api-key-file), or listen on 127.0.0.1"
            )
        },
    );
    checks.must(&["admin.listen", "client.listen"], !overlap(client, admin), || {
        format!(
            "clients ({client}) and applications ({admin}) need a port each: change one of them"
        )
    });
}

fn key(config: &Config, checks: &mut Checks<'_>) {
    let key = &config.admin.api_key;
    let long = key.is_empty() || key.chars().count() >= API_KEY_CHARS_MIN;
    checks.must(&["admin.api_key"], long, || {
        format!("a key has at least {API_KEY_CHARS_MIN} characters: try openssl rand -hex 24")
    });
    checks.must(&["admin.api_key"], key.chars().all(|c| c.is_ascii_graphic()), || {
        "a key has no spaces and only ASCII characters, since it is sent in a header: try openssl \
         rand -hex 24"
            .into()
    });
}

/// message + framing ≤ outbox; uri ≤ head; ping < silence; poll ≤ longest poll.
fn numbers(config: &Config, checks: &mut Checks<'_>) {
    let Config { limits, timeouts, .. } = config;
    let least = limits.message_bytes_max.saturating_add(FRAMING_BYTES);
    checks.must(
        &["limits.outbox_bytes_max", "limits.message_bytes_max"],
        least <= limits.outbox_bytes_max,
        || {
            format!(
                "an outbox must hold the largest message and {FRAMING_BYTES} bytes around it: \
                 make limits.outbox_bytes_max at least {least} (it is {}), or \
                 limits.message_bytes_max smaller",
                limits.outbox_bytes_max
            )
        },
    );
    checks.must(
        &["limits.uri_bytes_max", "limits.head_bytes_max"],
        limits.uri_bytes_max <= limits.head_bytes_max,
        || {
            format!(
                "the target is part of the head: make limits.uri_bytes_max (it is {}) at most \
                 limits.head_bytes_max, which is {}",
                limits.uri_bytes_max, limits.head_bytes_max
            )
        },
    );
    checks.must(
        &["timeouts.ws_silence_seconds", "timeouts.ws_ping_seconds"],
        timeouts.ws_ping_seconds < timeouts.ws_silence_seconds,
        || {
            format!(
                "a WebSocket that only answers pings must not count as silent: make \
                 timeouts.ws_silence_seconds (it is {}) more than timeouts.ws_ping_seconds, which \
                 is {}",
                timeouts.ws_silence_seconds, timeouts.ws_ping_seconds
            )
        },
    );
    let (keepalive, user) = (timeouts.tcp_keepalive_seconds, timeouts.tcp_user_timeout_seconds);
    checks.must(
        &["timeouts.tcp_user_timeout_seconds", "timeouts.tcp_keepalive_seconds"],
        keepalive == 0 || user == 0 || user >= keepalive + keepalive / 2,
        || {
            format!(
                "a single lost probe would end a connection: make \
                 timeouts.tcp_user_timeout_seconds (it is {user}) at least half as long again as \
                 timeouts.tcp_keepalive_seconds, which is {keepalive}"
            )
        },
    );
    checks.must(
        &["timeouts.poll_seconds", "timeouts.poll_seconds_max"],
        timeouts.poll_seconds <= timeouts.poll_seconds_max,
        || {
            format!(
                "make timeouts.poll_seconds (it is {}) at most timeouts.poll_seconds_max, which \
                 is {}",
                timeouts.poll_seconds, timeouts.poll_seconds_max
            )
        },
    );
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Whether the second to bind would be refused: one port, and one address or all of its family.
/// Whether `[::]` takes IPv4 too is the host's choice (net.ipv6.bindv6only), so it isn't judged.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let (x, y): (IpAddr, IpAddr) = (a.ip().to_canonical(), b.ip().to_canonical());
    let all = x.is_ipv4() == y.is_ipv4() && (x.is_unspecified() || y.is_unspecified());
    a.port() == b.port() && a.port() != 0 && (x == y || all)
}

/// `*`, or what a browser sends as `Origin` (RFC 6454, section 6.2), `null` included: origins are
/// compared as texts, so what no browser would write could never match.
fn is_origin(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text == "*" || text == "null";
    };
    // Digits of an IPv6 address stand in brackets and have colons of their own.
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (rest, None),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bare {
        Some(bare) => bare.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_name(host, b"-._"),
    };
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    is_name(scheme, b"+-.")
        && host
        && port.is_none_or(|port| digits(port) && port.parse::<u16>().is_ok())
}

fn is_name(text: &str, more: &[u8]) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !text.is_empty() && text.bytes().all(|byte| plain(byte) || more.contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_what_browsers_send() {
        for good in
            ["*", "null", "https://a.b", "http://a:1", "capacitor://localhost", "http://[::1]:80"]
        {
            assert!(is_origin(good), "{good}");
        }
        for bad in [
            "",
            "a",
            "https://",
            "://a",
            "https://a/",
            "https://A.b",
            "https://a:x",
            "http://a:99999",
            "https://a:",
            "https://*.a",
            "https://u@a",
            "http://[x]",
            "http://[::1",
        ] {
            assert!(!is_origin(bad), "{bad}");
        }
    }

    #[test]
    fn listeners_that_meet_are_found() {
        let overlap = |a: &str, b: &str| overlap(a.parse().unwrap(), b.parse().unwrap());
        assert!(overlap("127.0.0.1:1", "127.0.0.1:1"));
        assert!(overlap("0.0.0.0:1", "127.0.0.1:1"));
        assert!(overlap("[::1]:1", "[::]:1"));
        assert!(!overlap("127.0.0.1:0", "127.0.0.1:0"));
        assert!(!overlap("127.0.0.1:1", "127.0.0.2:1"));
        assert!(!overlap("0.0.0.0:1", "[::1]:1"));
    }
}
