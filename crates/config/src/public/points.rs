//! Judges each point of the checklist.

use std::net::{IpAddr, SocketAddr};

use super::Judged;
use super::Severity::{Error, Ok, Warning};
use model::{JoinRule, PublishRule};

use crate::{Config, Silence, TopicRule};

/// Characters of a key that is sent in a header, at least: the output of `openssl rand -hex 16`.
const KEY_CHARS_MIN: usize = 32;

/// Distinct characters of a random key, at least.
const KEY_CHARS_DISTINCT: usize = 10;

/// Seconds for a request's head; a larger setting looks like a mistake.
const HEAD_SECONDS_MAX: u64 = 30;

fn ok(text: &str) -> Judged {
    (Ok, text.into())
}

fn warning(text: impl Into<String>) -> Judged {
    (Warning, text.into())
}

fn error(text: impl Into<String>) -> Judged {
    (Error, text.into())
}

pub(super) fn tokens(config: &Config, _: u64) -> Judged {
    let grants = &config.auth.anonymous_grants;
    if config.webhook.connect && !config.knows_clients() {
        return error(
            "while the application does not respond, any client that reaches the client port \
             can be any user: set webhook.silence = \"deny\", or auth.required = true",
        );
    }
    if !config.has_tokens() && !config.client.user_header.is_empty() {
        return match client_reach(config) {
            Reach::Host => warning(
                "the proxy names the user of a client (client.user_header), and only \
                 [[topics]] says what the client may do: make sure that only the proxy is on \
                 this host, and that it lets no client through without a name",
            ),
            Reach::Network | Reach::All => error(
                "the proxy names the user of a client (client.user_header), but other machines \
                 than the proxy reach the client port: listen on 127.0.0.1, or set \
                 auth.required = true",
            ),
        };
    }
    if !config.has_tokens() && !config.webhook.connect {
        return error(
            "no client needs a token: any client that reaches the client port can be any user. \
             Give [auth] a key, and set auth.required = true; or let the application decide \
             who connects (webhook.connect = true)",
        );
    }
    let any = grants.iter().find(|grant| grant.starts_with("publish:") && grant.contains('*'));
    if let Some(grant) = any {
        return error(format!(
            "without a token a client may publish to any number of topics ({grant:?} in \
             auth.anonymous_grants): remove that grant"
        ));
    }
    match (config.knows_clients(), config.client.insecure) {
        (true, false) if config.webhook.connect => {
            ok("no connection and no request without a token or the application's decision")
        }
        (true, false) => ok("no connection and no request without a token"),
        (true, true) => warning(
            "tokens are required, so client.insecure = true has no effect: remove it, or it \
             hides a later change that requires no tokens",
        ),
        (false, _) if grants.is_empty() => warning(
            "without a token a client may connect, and do nothing: auth.required = true \
             rejects that, too",
        ),
        (false, _) => warning(format!(
            "without a token a client may do this: {}. If you intend that, it is fine",
            grants.join(", ")
        )),
    }
}

/// Returns true if a secret looks like words instead of random characters.
fn is_weak(secret: &str) -> bool {
    let mut chars: Vec<char> = secret.chars().collect();
    chars.sort_unstable();
    chars.dedup();
    let words = secret.split(|c: char| !c.is_alphanumeric()).filter(|word| word.len() > 1);
    chars.len() < KEY_CHARS_DISTINCT || words.count() > 3
}

/// The finding without tokens: the application decides about clients, or `otherwise` applies.
fn no_tokens(config: &Config, otherwise: &str) -> Judged {
    match config.webhook.connect {
        true => ok("no tokens: the application decides who connects"),
        false => warning(otherwise),
    }
}

pub(super) fn token_keys(config: &Config, _: u64) -> Judged {
    let auth = &config.auth;
    if !config.has_tokens() {
        return no_tokens(config, "no key for tokens is set; see \"tokens\"");
    }
    if let Some(url) = auth.jwks_urls.iter().find(|url| is_plain_http(url)) {
        return error(format!(
            "{url} (auth.jwks_urls) is fetched without TLS: an attacker on the way can give \
             this server other keys. Write https://"
        ));
    }
    if !auth.hmac_key.is_empty() && is_weak(&auth.hmac_key) {
        return error(
            "auth.hmac_key looks like words, which an attacker with any token can find by trying: \
             make it with openssl rand -hex 32",
        );
    }
    ok("no key that can be guessed, and none that is fetched without TLS")
}

pub(super) fn issuers(config: &Config, _: u64) -> Judged {
    let auth = &config.auth;
    let publish: Vec<Option<&str>> =
        auth.jwks_urls.iter().map(|url| auth::issuer_of(url, &auth.issuers)).collect();
    let elsewhere = auth.issuers.iter().filter(|issuer| !publish.contains(&Some(*issuer))).count();
    match (auth.issuers.is_empty(), auth.audience.is_empty()) {
        _ if !config.has_tokens() => no_tokens(config, "there are no tokens; see \"tokens\""),
        (true, _) if !auth.jwks_urls.is_empty() => error(
            "every issuer whose keys are fetched counts, also with tokens for its other \
             customers: name yours in auth.issuers",
        ),
        (false, _) if elsewhere > 1 && publish.contains(&None) => warning(format!(
            "{elsewhere} of auth.issuers have no URL in auth.jwks_urls below their own, so the \
             keys at all other URLs count for each of them: have at most one such issuer"
        )),
        (_, true) => warning(
            "auth.audience is not set, so only tokens without an audience count: with one, a \
             token that was issued for another service can't be used here",
        ),
        (true, false) => warning("auth.issuers is empty: anyone with the key can issue tokens"),
        (false, false) => ok("only tokens of named issuers, for this server"),
    }
}

pub(super) fn origins(config: &Config, _: u64) -> Judged {
    let any = config.client.cors_origins.iter().any(|origin| origin == "*");
    let plain = config.client.cors_origins.iter().find(|origin| is_plain_http(origin));
    let what = "client.cors_origins is \"*\", so pages of any site may connect from your users' \
                browsers: name your own, like \"https://www.example.com\"";
    match (any, config.auth.required, plain) {
        (true, true, _) => warning(format!("{what}. (They need a token, though.)")),
        (true, false, _) => error(what),
        (false, _, Some(origin)) => {
            warning(format!("{origin} (client.cors_origins) has no TLS: write https://"))
        }
        (false, ..) => ok("only pages of named origins connect from a browser"),
    }
}

pub(super) fn publishing(config: &Config, _: u64) -> Judged {
    if config.is_open_to_mqtt() {
        return error(
            "MQTT clients may publish to every topic, unless a rule of [[topics]] says who \
             may: give [auth] a key, or name the proxies in client.trusted_proxies",
        );
    }
    let every = |prefix: &String| prefix.is_empty() || prefix == "*";
    if config.client.publish_prefixes.iter().any(every) {
        let what = "clients may publish to every topic (client.publish_prefixes): name prefixes, or \
                    set publish in rules of [[topics]]";
        return if config.auth.required { warning(what) } else { error(what) };
    }
    let open = config.topics.iter().find(|rule| {
        rule.pattern == "*"
            && matches!(rule.publish, Some(PublishRule::Allow | PublishRule::Others))
    });
    match open {
        Some(_) if config.auth.required => warning(
            "the rule of [[topics]] for \"*\" lets clients publish to every topic that their \
             tokens grant",
        ),
        Some(_) => error("the rule of [[topics]] for \"*\" lets clients publish to every topic"),
        None => ok("clients publish only to topics that rules name"),
    }
}

pub(super) fn tls(config: &Config, _: u64) -> Judged {
    let Some(listen) = config.client.listen else {
        return ok("clients connect through TLS");
    };
    match reach(listen) {
        Reach::Host if config.client.listen_tls.is_some() => {
            ok("clients connect through TLS, and only this host reaches the port without it")
        }
        Reach::Host => ok("only this host reaches the client port, for the proxy with TLS on \
                           it"),
        Reach::Network => warning(format!(
            "{listen} (client.listen) has no TLS: make sure that only the proxy with TLS \
             reaches it"
        )),
        Reach::All => error(format!(
            "{listen} (client.listen) accepts connections without TLS from everywhere: listen \
             on 127.0.0.1, or a private address, behind a proxy with TLS"
        )),
    }
}

pub(super) fn mqtt(config: &Config, _: u64) -> Judged {
    if !config.has_mqtt() {
        return ok("MQTT is off");
    }
    if config.is_open_to_mqtt() {
        return error(
            "every client that reaches this host, also through a proxy on it, may publish and \
             subscribe as the host's own programs do: give [auth] a key, let the application \
             decide who connects (webhook.connect = true), or name the proxies in \
             client.trusted_proxies",
        );
    }
    let Some(listen) = config.mqtt.listen else {
        return ok("MQTT clients connect through TLS");
    };
    match reach(listen) {
        Reach::Host => ok("only this host reaches the port, for the proxy with TLS on it"),
        Reach::Network => warning(format!(
            "{listen} (mqtt.listen) has no TLS: make sure that only the proxy with TLS \
             reaches it"
        )),
        Reach::All => error(format!(
            "{listen} (mqtt.listen) accepts connections without TLS from everywhere: listen on \
             127.0.0.1, or a private address, behind a proxy with TLS"
        )),
    }
}

/// Bits of a prefix of IPv4, and of IPv6: a wider one is not the network of one owner.
const PREFIX_BITS_MIN: [u8; 2] = [8, 16];

pub(super) fn proxies(config: &Config, _: u64) -> Judged {
    let trusted = &config.client.trusted_proxies;
    let is_wide = |entry: &&String| {
        let Some((address, bits)) = entry.split_once('/') else { return false };
        let least = PREFIX_BITS_MIN[usize::from(address.contains(':'))];
        bits.parse::<u8>().is_ok_and(|bits| bits < least)
    };
    match trusted.iter().find(is_wide) {
        Some(entry) => error(format!(
            "{entry} (client.trusted_proxies) covers far too many addresses, and each host \
             there may claim any other address: name the proxies"
        )),
        None if trusted.is_empty() => warning(
            "client.trusted_proxies is empty: behind a proxy all clients have its address, and \
             share the limits of one address",
        ),
        None => ok("only named proxies give the addresses of clients"),
    }
}

pub(super) fn addresses(config: &Config, _: u64) -> Judged {
    let limits = &config.limits;
    let (each, all) = (limits.connections_per_address_max, limits.connections_max);
    if each == 0 {
        return error(
            "one host may take all connections: set limits.connections_per_address_max to what an \
             office behind one address needs, some hundreds",
        );
    }
    if each > all / 2 {
        return warning(format!(
            "two hosts may take all connections: limits.connections_per_address_max is {each}, and \
             limits.connections_max {all}"
        ));
    }
    if limits.longpoll_sessions_per_address_max == 0 {
        return warning("limits.longpoll_sessions_per_address_max is 0, no limit");
    }
    if limits.accept_per_second_max == 0 {
        return warning(
            "limits.accept_per_second_max is 0, no limit: set it to the rate that the application \
             can handle when all clients come back at once",
        );
    }
    ok("connections have a limit for each address, and a limit for new ones a second")
}

pub(super) fn rates(config: &Config, _: u64) -> Judged {
    let limits = &config.limits;
    for (key, value) in [
        ("limits.publishes_per_second_max", limits.publishes_per_second_max),
        ("limits.joins_per_second_max", limits.joins_per_second_max),
    ] {
        if value == 0 {
            return error(format!(
                "{key} is 0, no limit: a single connection may keep a core busy"
            ));
        }
    }
    ok("the server stops reading for a while from a connection that does too much")
}

pub(super) fn users(config: &Config, _: u64) -> Judged {
    let limits = &config.limits;
    for (key, value) in [
        ("limits.commands_per_second_per_user_max", limits.commands_per_second_per_user_max),
        ("limits.bytes_per_second_per_user_max", limits.bytes_per_second_per_user_max),
        ("limits.publishes_per_second_per_user_max", limits.publishes_per_second_per_user_max),
        ("limits.joins_per_second_per_user_max", limits.joins_per_second_per_user_max),
    ] {
        if value == 0 {
            return error(format!("{key} is 0, no limit: a single user may keep all cores busy"));
        }
    }
    for (key, value) in [
        ("limits.connections_per_user_max", limits.connections_per_user_max),
        ("limits.topics_per_user_max", limits.topics_per_user_max),
    ] {
        if value == 0 {
            return warning(format!(
                "{key} is 0, no limit: one token is enough to take all of them"
            ));
        }
    }
    ok("the server rejects requests of a user that does too much")
}

pub(super) fn hosts(config: &Config, _: u64) -> Judged {
    let limits = &config.limits;
    for (key, value) in [
        ("limits.commands_per_second_per_address_max", limits.commands_per_second_per_address_max),
        ("limits.bytes_per_second_per_address_max", limits.bytes_per_second_per_address_max),
        (
            "limits.publishes_per_second_per_address_max",
            limits.publishes_per_second_per_address_max,
        ),
        ("limits.joins_per_second_per_address_max", limits.joins_per_second_per_address_max),
    ] {
        if value == 0 {
            return warning(format!(
                "{key} is 0, no limit: a single host may keep all cores busy, with many users \
                 or connections. Set it to what an office behind one address needs"
            ));
        }
    }
    ok("the server rejects requests of a host that does too much")
}

pub(super) fn times(config: &Config, _: u64) -> Judged {
    let timeouts = &config.timeouts;
    if timeouts.head_seconds > HEAD_SECONDS_MAX {
        return warning(format!(
            "a request may take {} s to arrive (timeouts.head_seconds): 10 are enough",
            timeouts.head_seconds
        ));
    }
    if timeouts.tcp_user_timeout_seconds == 0 || timeouts.tcp_keepalive_seconds == 0 {
        return warning(
            "peers that disappear without closing their connections stay connected for long: set \
             timeouts.tcp_keepalive_seconds and tcp_user_timeout_seconds",
        );
    }
    ok("the server closes slow requests and silent peers")
}

pub(super) fn memory(config: &Config, _: u64) -> Judged {
    match config.limits.memory_bytes_max {
        0 => warning(
            "limits.memory_bytes_max is 0, which is 90 % of the cgroup's limit: fine if the \
             cgroup has one, no limit if not",
        ),
        _ => ok("the server rejects new connections in time"),
    }
}

pub(super) fn admin_port(config: &Config, _: u64) -> Judged {
    let listen = config.admin.listen;
    let has_key = !config.admin.api_key.is_empty() || !config.keys.is_empty();
    match (reach(listen), has_key) {
        (Reach::All, _) => error(format!(
            "{listen} (admin.listen) can be reached from everywhere, and keys travel without \
             TLS: listen on 127.0.0.1 or a private address, and let others connect to \
             admin.listen_tls"
        )),
        (Reach::Network, _) => warning(format!(
            "{listen} (admin.listen) is a private address: keys travel without TLS in that network"
        )),
        (Reach::Host, false) => warning(
            "every user of this host may do everything: make a key (throng key new), unless \
             the host has no other users",
        ),
        (Reach::Host, true) => match config.admin.listen_tls {
            Some(listen) if reach(listen) == Reach::All => warning(format!(
                "{listen} (admin.listen_tls) can be reached from everywhere: restrict that \
                 with a firewall"
            )),
            Some(_) => ok("other hosts reach the admin port only through TLS, and need a key"),
            None => ok("only this host reaches the admin port, and needs a key"),
        },
    }
}

pub(super) fn api_keys(config: &Config, now_s: u64) -> Judged {
    let key = &config.admin.api_key;
    if !key.is_empty() && is_weak(key) {
        return error("admin.api_key looks like words: make it with openssl rand -hex 24");
    }
    if !key.is_empty() && key.chars().count() < KEY_CHARS_MIN {
        return warning(format!(
            "admin.api_key has fewer than {KEY_CHARS_MIN} characters: make it with openssl \
             rand -hex 24"
        ));
    }
    let expired = |expires: Option<u64>| expires.is_some_and(|expires| expires <= now_s);
    if let Some(key) = config.keys.iter().find(|key| expired(key.expires)) {
        return warning(format!("the key {:?} has expired: remove its [[keys]] table", key.name));
    }
    match (key.is_empty(), config.keys.is_empty()) {
        (true, true) => warning("no key is set; see \"admin port\""),
        (false, true) => warning(
            "all programs have the key for everything: give each program a key of its own with \
             the scopes that it needs (throng key new)",
        ),
        _ => ok("programs have keys of their own"),
    }
}

pub(super) fn webhooks(config: &Config, _: u64) -> Judged {
    let own = config.topics.iter().filter_map(|rule| rule.webhook_url.as_deref());
    let all = || Some(&*config.webhook.url).filter(|url| !url.is_empty()).into_iter();
    let forwards = config.forwards.iter().map(|rule| &*rule.url);
    let mut urls = all().chain(own).chain(forwards);
    if let Some(url) = urls.clone().find(|url| is_plain_http(url)) {
        return error(format!(
            "{url} has no TLS: an attacker on the way can decide for the application. Write \
             https://"
        ));
    }
    let keys = [
        ("webhook.signing_key", &config.webhook.signing_key),
        ("webhook.secret", &config.webhook.secret),
    ];
    for (name, key) in keys {
        if !key.is_empty() && is_weak(key) {
            return error(format!("{name} looks like words: make it with openssl rand -hex 32"));
        }
    }
    if urls.next().is_some() && keys.iter().all(|(_, key)| key.is_empty()) {
        return warning(
            "webhook.signing_key is not set: the application can't tell this server from any \
             other sender",
        );
    }
    ok("webhooks go over TLS or stay on this host")
}

pub(super) fn silence(config: &Config, _: u64) -> Judged {
    let needs_decision = |rule: &&TopicRule| {
        matches!(rule.join, JoinRule::Webhook) || matches!(rule.publish, Some(PublishRule::Ask))
    };
    let rule = config.topics.iter().find(needs_decision);
    match (config.webhook.silence, rule) {
        (Silence::Allow, Some(rule)) => {
            let what = format!(
                "while the application does not respond, every client may do what the \
                 application should decide ({:?} of [[topics]]): set webhook.silence = \
                 \"deny\"",
                rule.pattern
            );
            if config.auth.required { warning(what) } else { error(what) }
        }
        (Silence::Allow, None) => ok("the application has nothing to decide"),
        (Silence::Deny, _) => ok("the server rejects what the application does not decide"),
    }
}

pub(super) fn store(config: &Config, _: u64) -> Judged {
    match (config.store.data.is_empty(), config.has_tokens()) {
        (false, _) => ok("what must survive a restart is on disk"),
        (true, true) => {
            warning("store.data is not set: revoked tokens count again after a restart")
        }
        (true, false) => warning("store.data is not set: history ends with the process"),
    }
}

pub(super) fn wildcards(config: &Config, _: u64) -> Judged {
    match (config.client.wildcards, config.has_tokens()) {
        (false, _) => ok("clients name their topics one by one"),
        (true, true) => ok("clients may use wildcards as far as their tokens reach"),
        (true, false) => warning(
            "client.wildcards = true without tokens: a client that subscribes to # gets \
             everything that is published to topics that all clients may enter",
        ),
    }
}

pub(super) fn status_page(config: &Config, _: u64) -> Judged {
    match config.client.status_page {
        true => warning("client.status_page = true shows strangers how many clients are connected"),
        false => ok("the status page is off"),
    }
}

/// The machines that can reach an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Host,
    /// A private network.
    Network,
    All,
}

/// The reach of the most open client port.
fn client_reach(config: &Config) -> Reach {
    let ports = [config.client.listen, config.client.listen_tls];
    ports.into_iter().flatten().map(reach).max().unwrap_or(Reach::Host)
}

fn reach(address: SocketAddr) -> Reach {
    let ip = address.ip().to_canonical();
    let is_private = match ip {
        IpAddr::V4(v4) => v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
    };
    match (ip.is_loopback(), is_private) {
        (true, _) => Reach::Host,
        (false, true) => Reach::Network,
        (false, false) => Reach::All,
    }
}

/// Returns true if a URL or an origin has no TLS, and another host than this.
fn is_plain_http(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else { return false };
    let authority = rest.split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let is_loopback = host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    host != "localhost" && !is_loopback
}
