//! Checks of values beyond their kind, and of settings against each other.

mod auth;
mod cluster;
mod database;
mod forward;
mod history;
mod keys;
mod log;
mod mqtt;
mod tls;

pub use database::check_database_url;

use std::net::{IpAddr, SocketAddr};

use ::auth::LoginRule;
use model::rules::matches;
use model::{JoinRule, PublishRule};
use proxies::ProxyHeader;

use crate::signing;
use crate::source::Read;
use crate::url::{collector, is_origin, webhook};
use crate::values::Rule;
use crate::{Config, Origin, SettingError};

/// Characters of a bearer token (Authorization: Bearer), at least.
const SECRET_CHARS_MIN: usize = 16;

/// Bytes of a key that signs, at least.
const SIGNING_KEY_BYTES_MIN: usize = 32;

/// Bytes that a transport adds to a payload, at most.
const FRAMING_BYTES: u64 = 1024;

/// Collects the errors of all checks. Each check names the settings that it compares.
struct Checks<'a> {
    read: &'a mut Read,
}

impl Checks<'_> {
    /// Reports an error unless `holds`. The error points to the first of `keys` that a source has set. Settings with
    /// an invalid value are not compared, because their real value is unknown.
    fn require(&mut self, keys: &[&'static str], holds: bool, message: impl FnOnce() -> String) {
        if holds || keys.iter().any(|key| self.read.invalid.contains(key)) {
            return;
        }
        let origin = |key: &str| self.read.values.get(key).map(|(_, origin)| origin.clone());
        let mut origins = keys.iter().filter_map(|key| Some((*key, origin(key)?)));
        let set = origins.find(|(_, origin)| *origin != Origin::Default);
        let (key, origin) = set.unwrap_or((keys[0], Origin::Default));
        self.read.errors.push(SettingError { origin, key: key.into(), message: message() });
    }
}

pub(crate) fn check_config(config: &Config, read: &mut Read) {
    let mut checks = Checks { read };
    addresses(config, &mut checks);
    secret("admin.api_key", "a key", &config.admin.api_key, &mut checks);
    secret("webhook.secret", "a secret", &config.webhook.secret, &mut checks);
    auth::check_auth(config, &mut checks);
    signing_key(&config.webhook.signing_key, &mut checks);
    numbers(config, &mut checks);
    presence(config, &mut checks);
    history::check_sections(config, &mut checks);
    mqtt::check(config, &mut checks);
    tls::check(config, &mut checks);
    cluster::check(config, &mut checks);
    database::check(config, &mut checks);
    for origin in &config.client.cors_origins {
        checks.require(&["client.cors_origins"], is_origin(origin), || {
            format!(
                "{origin:?} is not a valid origin: write \"*\", or scheme://host[:port] in lower \
                 case as browsers do, without a path and without the scheme's own port"
            )
        });
    }
    for host in &config.admin.hosts {
        checks.require(&["admin.hosts"], is_host(host), || {
            format!("{host:?} is not a valid host name: write it without scheme, port and path")
        });
    }
    for (key, proxies) in [
        ("client.trusted_proxies", &config.client.trusted_proxies),
        ("admin.trusted_proxies", &config.admin.trusted_proxies),
    ] {
        for proxy in proxies {
            if let Err(error) = proxy.parse::<proxies::Network>() {
                checks.require(&[key], false, || error.to_string());
            }
        }
    }
    let url = &config.webhook.url;
    if let Some(reason) = webhook(url).err().filter(|_| !url.is_empty()) {
        checks.require(&["webhook.url"], false, || reason);
    }
    let url = &config.tracing.otlp_url;
    if let Some(reason) = collector(url).err().filter(|_| !url.is_empty()) {
        checks.require(&["tracing.otlp_url"], false, || reason);
    }
    user_header(config, &mut checks);
    connect(config, &mut checks);
    events(config, &mut checks);
    topics(config, checks.read);
    forward::check(config, checks.read);
    keys::check(config, checks.read);
    let level = &config.log.level;
    if let Err(reason) = log::filter(level) {
        checks.require(&["log.level"], false, || {
            format!("{level:?} is not a valid filter ({reason})")
        });
    }
}

fn addresses(config: &Config, checks: &mut Checks<'_>) {
    let Config { client, admin, .. } = config;
    let has_client_port = client.listen.is_some() || client.listen_tls.is_some();
    checks.require(&["client.listen"], has_client_port, || {
        "clients have no port: set client.listen, or client.listen_tls".into()
    });
    if let Some(listen) = client.listen {
        checks.require(
            &["client.listen", "client.insecure", "auth.required"],
            is_loopback(listen) || client.insecure || config.knows_clients(),
            || {
                format!(
                    "{listen} is open to other machines, and nothing authenticates clients: \
                     require tokens (auth.required = true), let the application decide who \
                     connects (webhook.connect = true), listen on 127.0.0.1, or set --insecure \
                     (client.insecure = true) if a firewall or a proxy guards it"
                )
            },
        );
        checks.require(&["admin.listen", "client.listen"], !overlap(listen, admin.listen), || {
            format!(
                "clients ({listen}) and applications ({}) need a port each: change one of them",
                admin.listen
            )
        });
    }
    let has_key = !admin.api_key.is_empty() || !config.keys.is_empty();
    for (key, listen) in
        [("admin.listen", Some(admin.listen)), ("admin.listen_tls", admin.listen_tls)]
    {
        let Some(listen) = listen else { continue };
        checks.require(&[key, "admin.api_key"], is_loopback(listen) || has_key, || {
            format!(
                "{listen} is open to other machines: set admin.api_key_file (--api-key-file) or \
                 admin.api_key (THRONG_ADMIN_API_KEY), make a [[keys]] table (throng key new), or \
                 listen on 127.0.0.1"
            )
        });
    }
}

fn secret(key: &'static str, name: &str, text: &str, checks: &mut Checks<'_>) {
    let long = text.is_empty() || text.chars().count() >= SECRET_CHARS_MIN;
    checks.require(&[key], long, || {
        format!("{name} must have at least {SECRET_CHARS_MIN} characters: try openssl rand -hex 24")
    });
    checks.require(&[key], text.chars().all(|c| c.is_ascii_graphic()), || {
        format!(
            "{name} must have only ASCII characters and no spaces, because it is sent in a header: \
             try openssl rand -hex 24"
        )
    });
}

/// If a proxy names users, no other setting may.
fn user_header(config: &Config, checks: &mut Checks<'_>) {
    let (client, key) = (&config.client, "client.user_header");
    let header = &client.user_header;
    if header.is_empty() {
        return;
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    checks.require(&[key], header.bytes().all(is_name), || {
        format!(
            "{header:?} is not a valid header name: use letters, digits and hyphens, like \
             X-Throng-User"
        )
    });
    checks.require(&[key, "client.trusted_proxies"], !client.trusted_proxies.is_empty(), || {
        "no proxy is trusted to send this header: name the proxies in client.trusted_proxies".into()
    });
    let reads_requests = client.proxy_header != ProxyHeader::ProxyProtocol;
    checks.require(&[key, "client.proxy_header"], reads_requests, || {
        "a proxy that speaks the PROXY protocol forwards the client's own headers, so a client \
         could name any user: use client.proxy_header = \"x-forwarded-for\" with a proxy of HTTP \
         requests, which sets this header, or remove user_header"
            .into()
    });
    checks.require(&[key, "client.login"], client.login == LoginRule::Refuse, || {
        "a client could log in as any user: set client.login = \"refuse\"".into()
    });
    let auth = &config.auth;
    let tokens = !auth.hmac_key.is_empty()
        || !auth.public_key_files.is_empty()
        || !auth.jwks_urls.is_empty();
    checks.require(&[key], !tokens, || {
        "tokens ([auth]) name the user of a client, and so does this header: use one of them".into()
    });
}

/// Headers of a request that the application gets, at most.
const HEADERS_MAX: usize = 16;

/// Bytes of such a header's name, at most.
const HEADER_BYTES_MAX: usize = 64;

/// Checks the settings for the connect webhook.
fn connect(config: &Config, checks: &mut Checks<'_>) {
    let webhook = &config.webhook;
    checks.require(
        &["webhook.connect", "webhook.url"],
        !webhook.connect || !webhook.url.is_empty(),
        || "there is no application to ask about connects: set webhook.url".into(),
    );
    checks.require(
        &["webhook.connect", "client.user_header"],
        !webhook.connect || config.client.user_header.is_empty(),
        || {
            "the proxy (client.user_header) names the user of a client, and so does the \
             application: use one of them"
                .into()
        },
    );
    checks.require(&["webhook.headers"], webhook.headers.len() <= HEADERS_MAX, || {
        format!("the application gets at most {HEADERS_MAX} headers")
    });
    for name in &webhook.headers {
        let is_name =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        let fits = (1..=HEADER_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_name);
        checks.require(&["webhook.headers"], fits, || {
            format!(
                "{name:?} is not a valid header name: write it in lower case, of letters, digits, \
                 - and _, like \"cookie\""
            )
        });
    }
}

/// The events that the application may get.
const EVENTS: [&str; 6] = ["connected", "disconnected", "joined", "left", "occupied", "vacated"];

fn events(config: &Config, checks: &mut Checks<'_>) {
    let key = "webhook.events";
    for event in &config.webhook.events {
        checks.require(&[key], EVENTS.contains(&&**event), || {
            format!("{event:?} is not an event: the events are {}", EVENTS.join(", "))
        });
    }
    let somewhere = config.webhook.events.is_empty() || !config.webhook.url.is_empty();
    checks
        .require(&[key, "webhook.url"], somewhere, || "events need a URL: set webhook.url".into());
}

fn signing_key(text: &str, checks: &mut Checks<'_>) {
    let key = "webhook.signing_key";
    let bytes = signing::key(text).map(|bytes| bytes.len());
    checks.require(&[key], bytes.is_some(), || {
        "the text after whsec_ is not base64: try openssl rand -base64 32 for it".into()
    });
    let long = text.is_empty() || bytes.is_none_or(|bytes| bytes >= SIGNING_KEY_BYTES_MIN);
    checks.require(&[key], long, || {
        format!(
            "a signing key must have at least {SIGNING_KEY_BYTES_MIN} bytes: try openssl rand -hex \
             32"
        )
    });
}

/// Checks each rule by itself, and that the rules before it leave it any topic. Keys with an invalid value are not
/// compared.
fn topics(config: &Config, read: &mut Read) {
    let Read { rules, errors, invalid, .. } = read;
    let url_known = invalid.contains("webhook.url") || !config.webhook.url.is_empty();
    for (index, (rule, typed)) in rules.iter().zip(&config.topics).enumerate() {
        let mut add_error = |key: &str, message: String| {
            let origin = |key| rule.values.get(key).map(|(_, origin)| origin.clone());
            // An error about a default points to the rule's pattern.
            let set = origin(key).filter(|origin| *origin != Origin::Default);
            let origin = set.or_else(|| origin("pattern")).unwrap_or(Origin::Default);
            errors.push(SettingError { origin, key: format!("topics[{index}].{key}"), message });
        };
        if let Some(message) = never_matches(&typed.pattern, &rules[..index], config) {
            add_error("pattern", message);
        }
        if let Some(reason) = typed.webhook_url.as_deref().and_then(|url| webhook(url).err()) {
            add_error("webhook_url", reason);
        }
        let deciding_key = match (typed.join, typed.publish) {
            (JoinRule::Webhook, _) => Some("join"),
            (_, Some(PublishRule::Webhook | PublishRule::Ask)) => Some("publish"),
            _ => None,
        };
        let own_known = rule.invalid.contains("webhook_url") || typed.webhook_url.is_some();
        if let Some(key) = deciding_key.filter(|_| !url_known && !own_known) {
            let message = "a webhook needs a URL: set webhook.url, or webhook_url in this rule";
            add_error(key, message.into());
        }
        if let Some((key, message)) = cluster::check_rule(config, typed) {
            add_error(key, message);
        }
        for (key, message) in history::check_rule(config, rules, index, invalid) {
            add_error(key, message);
        }
    }
}

/// The reason why no topic reaches this pattern's rule, if none does.
fn never_matches(pattern: &str, before: &[Rule], config: &Config) -> Option<String> {
    // A pattern covers another one if it matches that one's text: only a `*` matches a `*`.
    let covers = |(_, earlier): &(&Rule, &str)| matches(earlier, pattern);
    let patterns = config.topics.iter().map(|rule| rule.pattern.as_str());
    let (rule, earlier) = before.iter().zip(patterns).find(covers)?;
    let (_, origin) = rule.values.get("pattern")?;
    let location = match origin {
        Origin::File { line, .. } => format!("line {line}"),
        other => other.to_string(),
    };
    Some(match earlier == pattern {
        true => format!(
            "{pattern:?} can never match: the first rule for it, in {location}, wins; remove one \
             of them"
        ),
        false => format!(
            "{pattern:?} can never match: {earlier:?}, in {location}, comes first and matches all \
             its topics; put this rule before that one, or remove it"
        ),
    })
}

/// Checks that message + framing ≤ outbox ≤ all outboxes; 2 messages ≤ all input; uri ≤ head; ping < silence; body ≤
/// bodies; poll ≤ longest poll.
fn numbers(config: &Config, checks: &mut Checks<'_>) {
    let Config { admin, limits, timeouts, .. } = config;
    let least = limits.message_bytes_max.saturating_add(FRAMING_BYTES);
    checks.require(
        &["limits.outbox_bytes_max", "limits.message_bytes_max"],
        least <= limits.outbox_bytes_max,
        || {
            format!(
                "an outbox must have space for the largest message and {FRAMING_BYTES} bytes \
                 around it: make limits.outbox_bytes_max at least {least} (it is {}), or \
                 limits.message_bytes_max smaller",
                limits.outbox_bytes_max
            )
        },
    );
    checks.require(
        &["limits.outboxes_bytes_max", "limits.outbox_bytes_max"],
        limits.outbox_bytes_max <= limits.outboxes_bytes_max,
        || {
            format!(
                "one outbox must fit the limit for all outboxes: make limits.outboxes_bytes_max \
                 (it is {}) at least limits.outbox_bytes_max, which is {}",
                limits.outboxes_bytes_max, limits.outbox_bytes_max
            )
        },
    );
    // The buffer of a message grows by doubling.
    let input = limits.longpoll_body_bytes_max.max(limits.frame_bytes_max).saturating_mul(2);
    checks.require(
        &["limits.input_bytes_max", "limits.longpoll_body_bytes_max", "limits.frame_bytes_max"],
        input <= limits.input_bytes_max,
        || {
            format!(
                "the largest message of one client must fit the limit for all clients: make \
                 limits.input_bytes_max at least {input} (it is {}), twice the larger of \
                 limits.longpoll_body_bytes_max and limits.frame_bytes_max",
                limits.input_bytes_max
            )
        },
    );
    checks.require(
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
    checks.require(
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
    checks.require(
        &["admin.bodies_bytes_max", "admin.body_bytes_max"],
        admin.body_bytes_max <= admin.bodies_bytes_max,
        || {
            format!(
                "the largest body must fit: make admin.bodies_bytes_max (it is {}) at least \
                 admin.body_bytes_max, which is {}",
                admin.bodies_bytes_max, admin.body_bytes_max
            )
        },
    );
    let (keepalive, user) = (timeouts.tcp_keepalive_seconds, timeouts.tcp_user_timeout_seconds);
    checks.require(
        &["timeouts.tcp_user_timeout_seconds", "timeouts.tcp_keepalive_seconds"],
        keepalive == 0 || user == 0 || user >= keepalive + keepalive / 2,
        || {
            format!(
                "a single lost probe would end a connection: make \
                 timeouts.tcp_user_timeout_seconds (it is {user}) at least one and a half times \
                 timeouts.tcp_keepalive_seconds, which is {keepalive}"
            )
        },
    );
    checks.require(
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

/// A presence snapshot must have capacity for two metas, and an outbox for two snapshots. This does not matter while
/// no topic has presence.
fn presence(config: &Config, checks: &mut Checks<'_>) {
    let Config { limits, presence, .. } = config;
    let on = config.topics.iter().any(|rule| rule.presence);
    let list_max = limits.outbox_bytes_max / 2;
    checks.require(
        &["presence.list_bytes_max", "limits.outbox_bytes_max"],
        !on || presence.list_bytes_max <= list_max,
        || {
            format!(
                "the outbox of a member must have space for more than a presence list: make \
                 presence.list_bytes_max (it is {}) at most half of limits.outbox_bytes_max, \
                 which is {list_max}",
                presence.list_bytes_max
            )
        },
    );
    let meta_max = presence.list_bytes_max / 2;
    checks.require(
        &["presence.meta_bytes_max", "presence.list_bytes_max"],
        !on || presence.meta_bytes_max <= meta_max,
        || {
            format!(
                "a single user must not fill the list: make presence.meta_bytes_max (it is {}) at \
                 most half of presence.list_bytes_max, which is {meta_max}",
                presence.meta_bytes_max
            )
        },
    );
}

/// Checks that a name may occur in `Host`: ASCII labels with dots between them.
fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Returns true if the second listener could not bind: both have the same port, and the same address or all addresses
/// of its family. The host decides whether `[::]` includes IPv4 (net.ipv6.bindv6only), so that case is not judged.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let (x, y): (IpAddr, IpAddr) = (a.ip().to_canonical(), b.ip().to_canonical());
    let all = x.is_ipv4() == y.is_ipv4() && (x.is_unspecified() || y.is_unspecified());
    a.port() == b.port() && a.port() != 0 && (x == y || all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Loaded, Sources};

    #[test]
    fn presence_limits_are_checked_where_presence_is_on() {
        let load = |file: &str| {
            let sources = Sources { file: Some(("throng.toml", file)), ..Sources::default() };
            Loaded::load(&sources).map(drop).map_err(|errors| errors.to_string())
        };
        let on = "[[topics]]\npattern = \"a\"\npresence = true\n";
        let small = "[limits]\noutbox_bytes_max = \"128KiB\"\n";
        assert_eq!((load(on), load(small)), (Ok(()), Ok(())));
        let error = load(&format!("{small}{on}")).unwrap_err();
        assert!(error.starts_with("throng.toml:2:20: limits.outbox_bytes_max: "), "{error}");
        assert!(error.contains("presence.list_bytes_max (it is 131072) at most"), "{error}");
        assert!(error.contains("which is 65536"), "{error}");
        let list = "[presence]\nlist_bytes_max = \"1KiB\"\n";
        let error = load(&format!("{list}{on}")).unwrap_err();
        assert!(error.contains("presence.meta_bytes_max (it is 1024) at most half"), "{error}");
        let both = format!("{list}meta_bytes_max = 512\n{on}");
        assert_eq!(load(&both), Ok(()));
    }

    #[test]
    fn one_client_fits_into_the_limits_for_all() {
        let load = |file: &str| {
            let sources = Sources { file: Some(("throng.toml", file)), ..Sources::default() };
            Loaded::load(&sources).map(drop).map_err(|errors| errors.to_string())
        };
        let error = load("[limits]\ninput_bytes_max = \"1MiB\"\n").unwrap_err();
        assert!(error.contains("limits.input_bytes_max at least 2097152 (it is"), "{error}");
        assert_eq!(load("[limits]\ninput_bytes_max = \"2MiB\"\n"), Ok(()));
        let outboxes = "[limits]\noutboxes_bytes_max = \"1MiB\"\noutbox_bytes_max = \"2MiB\"\n";
        let error = load(outboxes).unwrap_err();
        assert!(error.contains("at least limits.outbox_bytes_max, which is 2097152"), "{error}");
    }

    #[test]
    fn hosts_are_names() {
        for (name, want) in [
            ("throng.example", true),
            ("node-1", true),
            ("", false),
            ("*", false),
            ("a..b", false),
            ("throng.example:8001", false),
            ("http://throng.example", false),
        ] {
            assert_eq!(is_host(name), want, "{name}");
        }
    }

    #[test]
    fn overlapping_listeners_are_found() {
        let overlap = |a: &str, b: &str| overlap(a.parse().unwrap(), b.parse().unwrap());
        assert!(overlap("127.0.0.1:1", "127.0.0.1:1"));
        assert!(overlap("0.0.0.0:1", "127.0.0.1:1"));
        assert!(overlap("[::1]:1", "[::]:1"));
        assert!(!overlap("127.0.0.1:0", "127.0.0.1:0"));
        assert!(!overlap("127.0.0.1:1", "127.0.0.2:1"));
        assert!(!overlap("0.0.0.0:1", "[::1]:1"));
    }
}
