//! The checklist for servers that face the public: it judges a configuration point by point.

mod points;

use crate::{Config, Loaded};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration is as it should be.
    Ok,
    /// It may be intended: the operator should verify it.
    Warning,
    /// The server must not face the public like this.
    Error,
}

impl Severity {
    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A point of the checklist.
pub struct Point {
    /// A word or two.
    pub name: &'static str,
    /// What it protects, and from whom.
    pub about: &'static str,
    /// The settings that it judges; `topics`, `forward` and `keys` are tables.
    pub settings: &'static [&'static str],
    judge: fn(&Config, u64) -> Judged,
}

/// The finding about a point.
pub struct Finding {
    /// The point.
    pub point: &'static Point,
    /// Its severity.
    pub severity: Severity,
    /// The state of the configuration, and what to do.
    pub text: String,
}

/// The severity of a finding, with its text.
type Judged = (Severity, String);

/// The checklist.
pub const CHECKLIST: &[Point] = &[
    Point {
        name: "tokens",
        about: "A client is the user that it names, and may do what this user may, only with a \
                token or by the application's decision.",
        settings: &[
            "auth.required",
            "auth.anonymous_grants",
            "client.insecure",
            "client.user_header",
            "webhook.connect",
            "webhook.silence",
        ],
        judge: points::tokens,
    },
    Point {
        name: "token keys",
        about: "No attacker can guess the key that signs tokens, or replace it on the way from \
                the issuer that publishes it.",
        settings: &["auth.hmac_key", "auth.hmac_key_file", "auth.jwks_urls"],
        judge: points::token_keys,
    },
    Point {
        name: "issuers",
        about: "A token from another issuer, or for another service, does not count here.",
        settings: &["auth.issuers", "auth.audience", "auth.jwks_urls"],
        judge: points::issuers,
    },
    Point {
        name: "origins",
        about: "Pages of other sites can't use this server from your users' browsers.",
        settings: &["client.cors_origins"],
        judge: points::origins,
    },
    Point {
        name: "publishing",
        about: "Clients publish only where the operator has intended it.",
        settings: &["client.publish_prefixes", "topics", "mqtt.listen"],
        judge: points::publishing,
    },
    Point {
        name: "TLS",
        about: "No network on the way can read tokens and messages: clients connect through \
                TLS, and only a proxy with TLS reaches the client port without it.",
        settings: &["client.listen_tls", "client.listen"],
        judge: points::tls,
    },
    Point {
        name: "MQTT",
        about: "No network on the way can read the tokens and messages of MQTT clients: they \
                connect through TLS, or a proxy with TLS is in front of their port. And no \
                client that it lets through counts as a program of this host.",
        settings: &["mqtt.listen_tls", "mqtt.listen", "client.trusted_proxies"],
        judge: points::mqtt,
    },
    Point {
        name: "proxies",
        about: "Only your proxies say where a client is, and each client counts by its own \
                address.",
        settings: &["client.trusted_proxies", "client.proxy_header"],
        judge: points::proxies,
    },
    Point {
        name: "addresses",
        about: "No single host takes all connections, or opens them as fast as it can.",
        settings: &[
            "limits.connections_per_address_max",
            "limits.longpoll_sessions_per_address_max",
            "limits.accept_per_second_max",
        ],
        judge: points::addresses,
    },
    Point {
        name: "rates",
        about: "No single connection publishes or joins as fast as it can.",
        settings: &["limits.publishes_per_second_max", "limits.joins_per_second_max"],
        judge: points::rates,
    },
    Point {
        name: "users",
        about: "No single user takes all connections, or keeps the server busy with many of \
                them.",
        settings: &[
            "limits.connections_per_user_max",
            "limits.topics_per_user_max",
            "limits.commands_per_second_per_user_max",
            "limits.bytes_per_second_per_user_max",
            "limits.publishes_per_second_per_user_max",
            "limits.joins_per_second_per_user_max",
        ],
        judge: points::users,
    },
    Point {
        name: "hosts",
        about: "No single host keeps the server busy with many connections or many users.",
        settings: &[
            "limits.commands_per_second_per_address_max",
            "limits.bytes_per_second_per_address_max",
            "limits.publishes_per_second_per_address_max",
            "limits.joins_per_second_per_address_max",
        ],
        judge: points::hosts,
    },
    Point {
        name: "times",
        about: "A client that sends a request very slowly, or no longer responds, does not \
                occupy the server for long.",
        settings: &[
            "timeouts.head_seconds",
            "timeouts.tcp_user_timeout_seconds",
            "timeouts.tcp_keepalive_seconds",
        ],
        judge: points::times,
    },
    Point {
        name: "memory",
        about: "The server rejects a crowd of clients before the system ends the process.",
        settings: &["limits.memory_bytes_max"],
        judge: points::memory,
    },
    Point {
        name: "admin port",
        about: "Strangers can't reach the port for applications and operators, and no network \
                in between can read its keys.",
        settings: &["admin.listen", "admin.listen_tls"],
        judge: points::admin_port,
    },
    Point {
        name: "API keys",
        about: "A key that a program loses permits no more than that program may do.",
        settings: &["admin.api_key", "admin.api_key_file", "keys"],
        judge: points::api_keys,
    },
    Point {
        name: "webhooks",
        about: "No attacker can read or forge the requests, events and messages that the \
                application gets.",
        settings: &["webhook.url", "webhook.signing_key", "webhook.secret", "topics", "forward"],
        judge: points::webhooks,
    },
    Point {
        name: "silence",
        about: "An attacker that keeps the application from responding gets no access by that.",
        settings: &["webhook.silence", "topics"],
        judge: points::silence,
    },
    Point {
        name: "store",
        about: "Revocations, cursors and history survive a restart.",
        settings: &["store.data"],
        judge: points::store,
    },
    Point {
        name: "wildcards",
        about: "No client gets every message by subscribing to `#`.",
        settings: &["client.wildcards"],
        judge: points::wildcards,
    },
    Point {
        name: "status page",
        about: "Strangers don't see how many clients are connected.",
        settings: &["client.status_page"],
        judge: points::status_page,
    },
];

impl Loaded {
    /// Judges the configuration point by point. `now_s` is the time, in seconds since 1970.
    pub fn judge(&self, now_s: u64) -> Vec<Finding> {
        let judge = |point: &'static Point| {
            let (severity, text) = (point.judge)(&self.config, now_s);
            Finding { point, severity, text }
        };
        CHECKLIST.iter().map(judge).collect()
    }
}

#[cfg(test)]
mod tests;
