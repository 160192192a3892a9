//! The settings. Everything else in this crate is derived from this table.

use std::net::SocketAddr;

use auth::{CertificateUser, LoginRule};
use proxies::ProxyHeader;

use crate::certificates::{self, CertificateRule};
use crate::forwards::{self, ForwardRule};
use crate::keys::{self, KeyRule};
use crate::setting::{DAY, Kind, MANY, Mode, Setting, TEN_YEARS, TIB, limit};
use crate::topics::{self, TopicRule};
use crate::typed::{
    CLIENT_USER_WORDS, ClientCertificates, LOGIN_WORDS, LogFormat, PROXY_HEADER_WORDS, Sender,
    Silence, TlsVersion, Typed, shown,
};
use crate::values::{Rule, Values};

/// Generates [`SETTINGS`](crate::SETTINGS), a struct for each section, `Config` with all sections, and the conversion
/// from values. All of them come from the same line, so none can omit or misspell a setting.
macro_rules! settings {
    ($(
        #[doc = $section_doc:literal]
        $section:ident: $Section:ident {$(
            #[doc = $doc:literal]
            $key:ident: $type:ty = $mode:ident, $kind:expr, $default:literal
                $(, beyond $beyond:literal, shows $metrics:literal)?;
        )*}
    )*) => {
        /// All settings, section by section.
        pub const SETTINGS: &[Setting] = &[$($(Setting {
            key: concat!(stringify!($section), ".", stringify!($key)),
            kind: $kind,
            default: $default,
            doc: $doc.trim_ascii(),
            reload: !matches!(Mode::$mode, Mode::Fixed),
            secret: matches!(Mode::$mode, Mode::Secret),
            limit: limit!($($beyond, $metrics)?),
        },)*)*];

        /// The sections and what they are about, in the order of [`SETTINGS`](crate::SETTINGS).
        pub const SECTIONS: &[(&str, &str)] =
            &[$((stringify!($section), $section_doc.trim_ascii())),*];

        /// The whole configuration.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(rustdoc::broken_intra_doc_links, reason = "texts of a file, where [...] is no link")]
        pub struct Config {$(
            #[doc = $section_doc]
            pub $section: $Section,
        )*
            /// Rules by topic: the first whose pattern matches a topic wins.
            pub topics: Vec<TopicRule>,
            /// Rules that send messages to a back end: the first whose filter matches a topic wins.
            pub forwards: Vec<ForwardRule>,
            /// Keys of the API, beside `admin.api_key`.
            pub keys: Vec<KeyRule>,
            /// Certificates for further hosts.
            pub certificates: Vec<CertificateRule>,
        }

        $(
            #[doc = $section_doc]
            #[derive(Clone, PartialEq, Eq)]
            #[allow(
                rustdoc::broken_intra_doc_links,
                rustdoc::private_intra_doc_links,
                reason = "texts of a file, where [...] is no link"
            )]
            pub struct $Section {$(
                #[doc = $doc]
                pub $key: $type,
            )*}

            impl std::fmt::Debug for $Section {
                /// Hides secrets.
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.debug_struct(stringify!($Section))
                        $(.field(stringify!($key), shown(Mode::$mode, &self.$key)))*
                        .finish()
                }
            }
        )*

        /// Converts the values of all settings, both kinds of rules, and the keys.
        pub(crate) fn typed(
            values: &Values,
            rules: &[Rule],
            forwards: &[Rule],
            keys: &[Rule],
            certificates: &[Rule],
        ) -> Config {
            let value = |key: &str| values.get(key).map(|(value, _)| value);
            Config {$(
                $section: $Section {$(
                    $key: Typed::typed(
                        value(concat!(stringify!($section), ".", stringify!($key)))
                    ),
                )*},
            )*
                topics: rules.iter().map(|rule| topics::typed(&rule.values)).collect(),
                forwards: forwards.iter().map(|rule| forwards::typed(&rule.values)).collect(),
                keys: keys.iter().map(|key| keys::typed(&key.values)).collect(),
                certificates: certificates
                    .iter()
                    .map(|rule| certificates::typed(&rule.values))
                    .collect(),
            }
        }
    };
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Seconds that a shard waits for a silent peer, at most. A test compares it with `shard::SILENCE_SECONDS_MAX`.
const SILENCE_MAX: u64 = 60_000;

/// Seconds of a keep-alive, at most: a client may be silent for one and a half of it.
const KEEP_ALIVE_MAX: u64 = SILENCE_MAX / 3 * 2;

use Kind::{Address, Bool, Bytes, Choice, List, Number, OptionalAddress, Text};

// A line is: key, type, when a change takes effect, values, default as TOML; for a limit also the effect of exceeding
// it, with the code of the error, and its metrics.
settings! {
    /// The port for clients, and what they may do there.
    client: Client {
        /// Address where clients connect without TLS; "": none, which needs client.listen_tls.
        listen: Option<SocketAddr> = Fixed, OptionalAddress, r#""127.0.0.1:8000""#;
        /// Address where clients connect through TLS, usually port 443; "": none. It needs a certificate ([tls]).
        listen_tls: Option<SocketAddr> = Fixed, OptionalAddress, r#""""#;
        /// Let clients connect from other machines although nothing authenticates them: any client may read any topic and be any user.
        insecure: bool = Fixed, Bool, "false";
        /// Origins whose pages may connect from a browser: "*", or scheme://host[:port] each.
        cors_origins: Vec<String> = Live, List, r#"["*"]"#;
        /// Clients may publish to topics that begin with one of these; "*" (or "") is every topic, and an empty list is none.
        publish_prefixes: Vec<String> = Live, List, "[]";
        /// Whether a connected client of /ws may log in as another user, and log out again; the application may do it for any client (/api/login).
        login: LoginRule = Live, Choice(LOGIN_WORDS), r#""allow""#;
        /// Proxies that the server trusts to give a client's address: addresses and prefixes, like "10.0.0.5" or "10.0.0.0/8".
        trusted_proxies: Vec<String> = Live, List, "[]";
        /// How a trusted proxy gives the client's address: in the header X-Forwarded-For or Forwarded of each request, or by the PROXY protocol (version 1 or 2), with which each of its connections must then begin.
        proxy_header: ProxyHeader = Live, Choice(PROXY_HEADER_WORDS), r#""x-forwarded-for""#;
        /// Header in which a trusted proxy names the user of each request, like "X-Throng-User". A client can't name its user itself then: user= may only repeat the header, and a request without the header has no user. "": clients name their users, or their tokens do.
        user_header: String = Live, Text, r#""""#;
        /// Serve /status, a small public page: connections now, replies per second, mean response time.
        status_page: bool = Live, Bool, "false";
        /// Whether clients of /sse, /stream, /ws and Phoenix may name topics by the MQTT wildcards + and # (filter=mqtt), as far as their tokens reach. Without tokens, any client can then get everything that is published to topics that all clients may enter.
        wildcards: bool = Live, Bool, "false";
    }

    /// The port for applications and operators.
    admin: Admin {
        /// Address where applications and operators connect.
        listen: SocketAddr = Fixed, Address, r#""127.0.0.1:8001""#;
        /// Further address where applications and operators connect through TLS; "": none. It needs a certificate ([tls]), and the server requests no certificates of clients there.
        listen_tls: Option<SocketAddr> = Fixed, OptionalAddress, r#""""#;
        /// Key that applications and operators send as Authorization: Bearer, at least 16 characters; it permits everything. A port beyond loopback needs this key or one of [[keys]].
        api_key: String = Secret, Text, r#""""#;
        /// File with only that key, instead of admin.api_key; relative to the configuration file's folder. The content "none" means no key. Others on the host must not be able to read the file.
        api_key_file: String = Live, Text, r#""""#;
        /// Names under which browsers may call this port, besides localhost and IP addresses. The dashboard signs in only under these, because any web page can make another name point here.
        hosts: Vec<String> = Live, List, "[]";
        /// Proxies in front of this port that the server trusts to give a request's origin in X-Forwarded-For: for failed sign-ins, wrong keys and the log. Addresses and prefixes, like "10.0.0.5" or "10.0.0.0/8".
        trusted_proxies: Vec<String> = Live, List, "[]";
        /// Seconds that a browser stays signed in.
        session_seconds: u64 = Live, Number(60, 30 * DAY), "43200",
            beyond "401, `no_session`: sign in again", shows "`throng_admin_sessions`";
        /// Bytes of the largest body of an API request.
        body_bytes_max: u64 = Fixed, Bytes(KIB, 1024 * MIB), r#""16MiB""#,
            beyond "413, `body_too_large`", shows "–";
        /// Bytes in memory of all bodies that have not arrived whole, at least admin.body_bytes_max; the server rejects more with 503.
        bodies_bytes_max: u64 = Live, Bytes(KIB, TIB), r#""256MiB""#,
            beyond "503, `overloaded`", shows "`throng_admin_bodies_bytes`";
        /// Connections to this port; a new one beyond that replaces the one that was silent longest, connections without a key first. At most half of the limit on open files.
        connections_max: u64 = Live, Number(16, 65_536), "1024",
            beyond "the connection that was silent longest [is closed](security.md#who-has-no-key)", shows "`throng_admin_connections`";
        /// The same limit for connections from one address, or from one IPv6 network (/64).
        connections_per_address_max: u64 = Live, Number(8, 65_536), "512",
            beyond "one of the address's own connections is closed", shows "`throng_admin_connections`";
        /// Seconds in which the head of a request must arrive whole, from the connect or from the head's first byte.
        head_seconds: u64 = Live, Number(1, DAY), "5",
            beyond "closed", shows "–";
        /// Seconds that a connection may stay without any progress, between requests or while the client reads a reply.
        idle_seconds: u64 = Live, Number(1, DAY), "120",
            beyond "closed", shows "–";
    }

    /// Tokens (JSON Web Tokens) that say who clients are and what they may do. Without a key, the server believes the user that a client names.
    auth: Auth {
        /// Key that the application and this server share, for tokens signed with HS256, HS384 or HS512: text of at least 32 bytes.
        hmac_key: String = Secret, Text, r#""""#;
        /// File with only that key, instead of auth.hmac_key; relative to the configuration file's folder. Others on the host must not be able to read the file.
        hmac_key_file: String = Live, Text, r#""""#;
        /// Files with one public key in PEM each (RSA, EC with P-256 or P-384, Ed25519); relative as auth.hmac_key_file is. The server reads them again on SIGHUP.
        public_key_files: Vec<String> = Live, List, "[]";
        /// URLs where issuers publish their keys (JSON Web Key Sets), http:// or https://. Keys from below the URL of one of auth.issuers count only for tokens of that issuer.
        jwks_urls: Vec<String> = Live, List, "[]";
        /// File with the certificates of the authorities that sign those of these servers, in PEM, or those of the servers themselves; relative as auth.hmac_key_file is. "": the authorities of the system.
        jwks_ca_file: String = Fixed, Text, r#""""#;
        /// Seconds after which the server fetches the keys of auth.jwks_urls again. It fetches them at once for an unknown key, but not more often than every 5 s.
        jwks_refresh_seconds: u64 = Live, Number(5, DAY), "300";
        /// Algorithms that may sign tokens: HS256, HS384, HS512, RS256, RS384, RS512, PS256, ES256, ES384, EdDSA; an empty list: every algorithm that the keys fit.
        algorithms: Vec<String> = Live, List, "[]";
        /// Issuers whose tokens count (iss); an empty list: any issuer whose signature is right.
        issuers: Vec<String> = Live, List, "[]";
        /// Audience that a token must have (aud); "": only tokens without an audience count.
        audience: String = Live, Text, r#""""#;
        /// Reject every connection and request without a token; a connection to /ws may bring its token in its first command.
        required: bool = Live, Bool, "false";
        /// What a client may do without a token, or with a token that has no claim throng: an action and a pattern each, like "subscribe:news" or "history:public:*". Actions are subscribe, publish, presence and history.
        anonymous_grants: Vec<String> = Live, List, "[]";
        /// Cookie in which a browser may bring a token, from pages of this server's own origin and of the origins in client.cors_origins; "": none.
        cookie: String = Live, Text, r#""throng_token""#;
        /// Seconds before a token expires at which the server warns its client; 0: never.
        expiry_warning_seconds: u64 = Live, Number(0, DAY), "60";
        /// Seconds, from the moment at which several tokens expire, over which the server spreads the closing of their connections.
        expiry_spread_seconds: u64 = Live, Number(0, 3_600), "30";
        /// Revocations that the server remembers; it rejects more.
        revocations_max: u64 = Live, Number(1, 10_000_000), "100000",
            beyond "409, `too_many_revocations`", shows "`throng_token_revocations`";
        /// Seconds that the server remembers a revocation without a time of its own: longer than tokens live.
        revocation_seconds: u64 = Live, Number(60, TEN_YEARS), "2592000";
    }

    /// Encryption, for client.listen_tls, mqtt.listen_tls and admin.listen_tls. The server reads the files again when they change, and on SIGHUP; connections stay open.
    tls: Tls {
        /// File with the server's certificate and those that signed it, in PEM, its own first; relative to the configuration file's folder. [[tls.certificates]] has those of further hosts.
        certificate_file: String = Live, Text, r#""""#;
        /// File with the private key of the certificate, in PEM: RSA, ECDSA (P-256 is the fastest) or Ed25519.
        key_file: String = Live, Text, r#""""#;
        /// Lowest TLS version that clients may use.
        version_min: TlsVersion = Live, Choice(TlsVersion::WORDS), r#""1.2""#;
        /// File with the certificates of the authorities that sign those of clients, in PEM; relative to the configuration file's folder. "": the server requests no certificates of clients.
        client_ca_file: String = Live, Text, r#""""#;
        /// Whether a client must have a certificate. The server rejects an invalid one in any case.
        client_certificates: ClientCertificates = Live, Choice(ClientCertificates::WORDS), r#""optional""#;
        /// Field of a client's certificate that names the user of its connection: the common name, or the first alternative name of a kind. The client may not name another user, and the server rejects a certificate without the field. "none": no field; the certificate only lets the client in.
        client_user: CertificateUser = Live, Choice(CLIENT_USER_WORDS), r#""none""#;
        /// Hosts for which the server gets a certificate itself, by ACME. The authority connects to port 443 of each host, which must lead to client.listen_tls.
        acme_hosts: Vec<String> = Live, List, "[]";
        /// URL of the authority's directory.
        acme_directory: String = Live, Text, r#""https://acme-v02.api.letsencrypt.org/directory""#;
        /// Whether the operator agrees to the authority's terms. Without that, the server gets no account.
        acme_terms_agreed: bool = Live, Bool, "false";
        /// Addresses where the authority reaches the operator, like "mailto:ops@example.com".
        acme_contacts: Vec<String> = Live, List, "[]";
        /// Id of the key that ties the ACME account to the operator's account at the authority, as the authority shows it there (external account binding); needed only if the authority demands it. "": none.
        acme_eab_key_id: String = Live, Text, r#""""#;
        /// Key with that id, in base64url as the authority shows it. The server uses it for the first order, and stores the account that it gets.
        acme_eab_key: String = Secret, Text, r#""""#;
        /// File with only that key, instead of tls.acme_eab_key; relative to the configuration file's folder. Others on the host must not be able to read the file.
        acme_eab_key_file: String = Live, Text, r#""""#;
        /// Directory where the server stores the account and the certificate, with their keys; relative to the configuration file's folder. "": the directory acme in store.data.
        acme_dir: String = Live, Text, r#""""#;
        /// File with the certificates that must have signed that of the authority's own server, in PEM; relative to the configuration file's folder. "": the server trusts the authorities that this machine trusts.
        acme_ca_file: String = Live, Text, r#""""#;
        /// Handshakes that may be under way, of about 10 kB each; the server rejects more. A handshake and the first request after it have timeouts.head_seconds together.
        handshakes_max: u64 = Fixed, Number(1, MANY), "10000",
            beyond "closed with the alert `internal_error`", shows "`throng_tls_handshakes_pending`, `throng_tls_handshakes_total`";
    }

    /// MQTT clients. With mqtt.listen they connect there, at the client port, and by WebSocket at /mqtt of the client port.
    mqtt: Mqtt {
        /// Address where MQTT clients connect, usually port 1883; "": none, and no MQTT at all unless mqtt.listen_tls is set.
        listen: Option<SocketAddr> = Fixed, OptionalAddress, r#""""#;
        /// Address where MQTT clients connect through TLS, usually port 8883, with or without mqtt.listen; "": none. It needs a certificate ([tls]).
        listen_tls: Option<SocketAddr> = Fixed, OptionalAddress, r#""""#;
        /// Seconds of the longest keep-alive. An MQTT 5 client that requests a longer one, or 0, gets this one instead; an MQTT 3 client keeps its own, and its 0 is without end. 0: all clients keep their own.
        keep_alive_seconds_max: u64 = Live, Number(0, KEEP_ALIVE_MAX), "1800",
            beyond "an MQTT 5 client gets this one instead; a client that is silent for one and a half times its keep-alive is closed", shows "`throng_connections_closed_total`";
        /// Seconds that a session outlives its connection; the server cuts a longer request to this. 0: not at all.
        session_seconds_max: u64 = Live, Number(0, TEN_YEARS), "86400",
            beyond "the session ends; the server cuts a longer request to this", shows "`throng_mqtt_sessions_ended_total`";
        /// Sessions of clients that are away; beyond that a session ends with its connection.
        sessions_max: u64 = Live, Number(0, 100_000_000), "1000000",
            beyond "a session ends with its connection", shows "`throng_mqtt_sessions_away`, `throng_mqtt_sessions_ended_total`";
        /// Sessions of one user's clients that are away, where users are proved (by tokens or webhook.connect); beyond that a session of the user ends with its connection. 0: no limit.
        sessions_per_user_max: u64 = Live, Number(0, MANY), "1000",
            beyond "the same for a session of this user", shows "`throng_mqtt_sessions_ended_total`";
        /// Bytes in memory of the sessions of clients that are away, with their wills; beyond that a session ends with its connection.
        away_bytes_max: u64 = Live, Bytes(0, TIB), r#""1GiB""#,
            beyond "the same for the session of any client", shows "`throng_mqtt_sessions_away_bytes`, `throng_mqtt_sessions_ended_total`";
        /// Messages of a topic that the server retains for sessions, unless a rule of [[topics]] retains them; beyond that it drops the oldest.
        session_messages_max: u64 = Live, Number(1, 10_000_000), "1000",
            beyond "the oldest message of the topic is dropped", shows "`throng_mqtt_session_messages`, `throng_mqtt_messages_gone_total`";
        /// Bytes of those messages, at least limits.message_bytes_max.
        session_bytes_max: u64 = Live, Bytes(1, TIB), r#""1MiB""#,
            beyond "the same", shows "`throng_mqtt_session_messages_bytes`, `throng_mqtt_messages_gone_total`";
        /// Bytes of the largest packet from a client; 0: limits.message_bytes_max, and 4 KiB for what is around a payload.
        packet_bytes_max: u64 = Live, Bytes(0, 128 * MIB), "0",
            beyond "closed with reason code 0x95", shows "`throng_connections_closed_total`";
        /// Messages with QoS 1 and 2 that a client may have under way to the server at a time. The server announces the number to MQTT 5 clients, and closes a client that sends more.
        receive_max: u64 = Live, Number(1, 65_535), "100",
            beyond "closed with reason code 0x93", shows "`throng_connections_closed_total`";
        /// Messages with QoS 1 and 2 that may be under way to a client at a time; a client may request fewer.
        inflight_max: u64 = Live, Number(1, 65_535), "100",
            beyond "the next one waits until one is confirmed", shows "–";
        /// Messages that may wait for a client, besides those that it has not confirmed. Beyond that the server closes the client, unless its session can read them from the history instead.
        queue_messages_max: u64 = Live, Number(0, 1_000_000), "1000",
            beyond "closed with reason code 0x97, `slow_consumer`, unless its session can read the messages from the history", shows "`throng_slow_consumers_closed_total`";
        /// Topics to which an MQTT 5 client may give a number at a time (topic aliases), of up to 254 bytes each; 0: none.
        topic_alias_max: u64 = Live, Number(0, 65_535), "10",
            beyond "closed with reason code 0x94", shows "`throng_connections_closed_total`";
        /// Topics with a retained message; beyond that no further topic gets one. 0: none at all.
        retained_messages_max: u64 = Live, Number(0, 100_000_000), "100000",
            beyond "a further topic has no retained message", shows "`throng_mqtt_retained_messages`, `throng_mqtt_retained_refused_total`";
        /// Bytes of all retained messages, at least limits.message_bytes_max.
        retained_bytes_max: u64 = Live, Bytes(0, TIB), r#""64MiB""#,
            beyond "the same", shows "`throng_mqtt_retained_bytes`, `throng_mqtt_retained_refused_total`";
        /// Server to which this one sends MQTT 5 clients when it drains (their server reference, such as "other.example:1883"); "": none.
        server_reference: String = Live, Text, r#""""#;
        /// Seconds between two reports about the server to MQTT clients, in the topics below $SYS/broker; 0: no reports.
        sys_seconds: u64 = Live, Number(0, 86_400), "10";
        /// Whether MQTT clients may subscribe with + and #.
        wildcards: bool = Live, Bool, "true";
        /// Levels of a filter with + or #, on all transports; the server rejects a filter with more. Topics may have any number.
        filter_levels_max: u64 = Live, Number(1, 128), "32",
            beyond "SUBACK with 0x8F (MQTT 3: 0x80); 400, `bad_filter`, on other transports", shows "–";
    }

    /// The event loops.
    shards: Shards {
        /// Event loops; 0: as many as fit the cores, limits.connections_max and the limit on open files.
        count: u64 = Fixed, Number(0, 1000), "0";
        /// Bind each shard to a core.
        pin_cpus: bool = Fixed, Bool, "false";
        /// How the server sends messages: in io_uring batches where the kernel allows them, or with one write for each connection.
        sender: Sender = Fixed, Choice(Sender::WORDS), r#""auto""#;
    }

    /// Limits; sizes in bytes.
    limits: Limits {
        /// Connections in total; the server rejects more with 503. It plans its shards for this number at the start.
        connections_max: u64 = Live, Number(1, 100_000_000), "100000",
            beyond "503, `overloaded`", shows "`throng_connections`, `throng_connections_refused_total`, L";
        /// Connections from one address, or from one IPv6 network; 0: no limit.
        connections_per_address_max: u64 = Live, Number(0, MANY), "0",
            beyond "503, `overloaded`; a health check still gets a response", shows "`throng_connections_refused_total`, L";
        /// Leading bits of an IPv6 address that all limits by address compare: a client that has one address of such a network usually has them all.
        ipv6_prefix_bits: u64 = Live, Number(1, 128), "64";
        /// New connections a second; the server rejects more with 503. 0: no limit.
        accept_per_second_max: u64 = Live, Number(0, MANY), "0",
            beyond "503, `overloaded`", shows "`throng_connections_refused_total`, L";
        /// Phoenix long-poll sessions in total; the server rejects more.
        longpoll_sessions_max: u64 = Live, Number(0, 10_000_000), "10000",
            beyond "503, `overloaded`", shows "`throng_longpoll_sessions`, L";
        /// Phoenix long-poll sessions from one address, which may be an office's or a proxy's; the server rejects more. 0: no limit.
        longpoll_sessions_per_address_max: u64 = Live, Number(0, MANY), "2500",
            beyond "503, `overloaded`", shows "`throng_longpoll_sessions`";
        /// Topics that one connection may be in, those of its users included.
        topics_per_connection_max: u64 = Live, Number(1, 10_000), "100",
            beyond "400, `too_many_topics`; Phoenix: `too many channels joined`", shows "L";
        /// Topics on the node that have members; a topic with members on several shards counts once for each. Each shard has its share of the limit. Beyond it, a client can enter only topics that have members and those into which the application puts it (else 503, topics_full). 0: no limit.
        topics_max: u64 = Live, Number(0, MANY), "10000000",
            beyond "503, `topics_full`, for a topic without members", shows "the sum of `throng_shard_topics`, L";
        /// Bytes of the largest payload of a message.
        message_bytes_max: u64 = Live, Bytes(1, 64 * MIB), r#""64KiB""#,
            beyond "413, `message_too_large` or `body_too_large`", shows "L";
        /// Bytes of the largest head of a client's request.
        head_bytes_max: u64 = Live, Bytes(KIB, 64 * KIB), r#""8KiB""#,
            beyond "431, `head_too_large`", shows "L";
        /// Bytes of the longest target in a client's request line.
        uri_bytes_max: u64 = Live, Bytes(64, 64 * KIB), r#""4KiB""#,
            beyond "414, `uri_too_long`", shows "L";
        /// Bytes of the largest WebSocket message from a client; more than the payload of a message, for what is around it.
        frame_bytes_max: u64 = Live, Bytes(125, 64 * MIB), r#""128KiB""#,
            beyond "closed with 1009, `too_big`", shows "`throng_connections_closed_total`, L";
        /// Bytes of the largest body of a Phoenix long poll, which may have 100 messages.
        longpoll_body_bytes_max: u64 = Live, Bytes(KIB, 64 * MIB), r#""1MiB""#,
            beyond "413, `body_too_large`", shows "L as `limits.message_bytes_max`";
        /// Bytes that may wait for a client that doesn't read; beyond that the server closes it. A client that keeps reading may have four times as much.
        outbox_bytes_max: u64 = Live, Bytes(2 * KIB, 1024 * MIB), r#""256KiB""#,
            beyond "closed as `slow_consumer`; with `conflate`, only the newest message of each key waits", shows "`throng_outbox_bytes`, `throng_slow_consumers_closed_total`, L";
        /// Messages that may wait for a client that doesn't read; beyond that the server closes it.
        outbox_messages_max: u64 = Live, Number(1, 1_000_000), "256",
            beyond "the same", shows "`throng_slow_consumers_closed_total`";
        /// Bytes that may wait in all outboxes; beyond that the server closes the slowest clients.
        outboxes_bytes_max: u64 = Live, Bytes(MIB, TIB), r#""256MiB""#,
            beyond "the slowest clients are closed as `slow_consumer`", shows "`throng_outbox_memory_bytes`, L";
        /// Bytes in memory of all clients' requests and messages that have not arrived whole; beyond that the server rejects the clients that use most with 503, or closes them.
        input_bytes_max: u64 = Live, Bytes(MIB, TIB), r#""128MiB""#,
            beyond "the clients that use most: 503 or closed, `overloaded`", shows "`throng_input_memory_bytes`, L";
        /// Messages that one connection may publish in a second; beyond that the server stops reading from it for a while. 0: no limit.
        publishes_per_second_max: u64 = Live, Number(0, MANY), "1000",
            beyond "the server stops reading from the connection for a while", shows "L";
        /// Topics that one connection may enter in a second, long polls and Phoenix long-poll sessions included; beyond that the server stops reading from it for a while. 0: no limit.
        joins_per_second_max: u64 = Live, Number(0, MANY), "1000",
            beyond "the server stops reading from the connection for a while", shows "L";
        /// Connections of one user, over all shards; the server rejects more with 429. 0: no limit. A limit takes some 100 bytes of memory for each connection.
        connections_per_user_max: u64 = Live, Number(0, MANY), "0",
            beyond "429, `too_many_connections`", shows "L";
        /// Topics of all connections of one user together, the user's own included; each counts as often as a connection is in it. The server rejects more. 0: no limit. A limit takes as much memory as limits.connections_per_user_max does.
        topics_per_user_max: u64 = Live, Number(0, MANY), "0",
            beyond "429, `too_many_topics`", shows "L";
        /// Requests and commands of one user in a second, by all its connections; the server rejects more (429, rate_limited). 0: no limit.
        commands_per_second_per_user_max: u64 = Live, Number(0, MANY), "10000",
            beyond "429, `rate_limited`; in the end closed with 4029", shows "`throng_accounts`, L";
        /// Bytes that one user may send in a second; beyond that the server stops reading from its connections for a while. 0: no limit.
        bytes_per_second_per_user_max: u64 = Live, Bytes(0, TIB), r#""64MiB""#,
            beyond "the server stops reading from its connections for a while; a request: 429, `rate_limited`", shows "L";
        /// Messages that one user may publish in a second; the server rejects more. 0: no limit.
        publishes_per_second_per_user_max: u64 = Live, Number(0, MANY), "5000",
            beyond "429, `rate_limited`", shows "L";
        /// Topics that one user may enter in a second, those of each connect included; the server rejects more. 0: no limit.
        joins_per_second_per_user_max: u64 = Live, Number(0, MANY), "10000",
            beyond "429, `rate_limited`", shows "L";
        /// Requests and commands from one address in a second, which may be an office's or a proxy's; the server rejects more (429, rate_limited). 0: no limit.
        commands_per_second_per_address_max: u64 = Live, Number(0, MANY), "0",
            beyond "429, `rate_limited`; in the end closed with 4029", shows "`throng_accounts`, L";
        /// Bytes from one address in a second; beyond that the server stops reading from its connections for a while. 0: no limit.
        bytes_per_second_per_address_max: u64 = Live, Bytes(0, TIB), "0",
            beyond "the server stops reading from its connections for a while; a request: 429, `rate_limited`", shows "L";
        /// Messages published from one address in a second; the server rejects more. 0: no limit.
        publishes_per_second_per_address_max: u64 = Live, Number(0, MANY), "0",
            beyond "429, `rate_limited`", shows "L";
        /// Topics entered from one address in a second, those of each connect included; the server rejects more. 0: no limit.
        joins_per_second_per_address_max: u64 = Live, Number(0, MANY), "0",
            beyond "429, `rate_limited`", shows "L";
        /// Calls to the admin port with one API key in a second, each command of a batch included; the server rejects more (429, rate_limited). 0: no limit. A table of [[keys]] may have its own limit.
        commands_per_second_per_key_max: u64 = Live, Number(0, MANY), "0",
            beyond "429, `rate_limited`", shows "`throng_api_key_calls_total`, L";
        /// Bytes of the bodies of all calls with one API key in a second; 0: no limit.
        bytes_per_second_per_key_max: u64 = Live, Bytes(0, TIB), "0",
            beyond "429, `rate_limited`", shows "L";
        /// Messages that are published with one API key in a second; 0: no limit.
        publishes_per_second_per_key_max: u64 = Live, Number(0, MANY), "0",
            beyond "429, `rate_limited`", shows "L";
        /// Bytes of resident memory at which the server rejects new connections with 503; 0: 90 % of the cgroup's limit, or no limit if the cgroup has none.
        memory_bytes_max: u64 = Live, Bytes(0, u64::MAX >> 1), "0",
            beyond "new connections: 503, `overloaded`; `/readyz`: 503, `memory_full`", shows "`throng_process_resident_memory_bytes`, `throng_memory_full`, L";
        /// Messages that may wait for one shard; beyond that the server rejects publishes with 503.
        mailbox_messages_max: u64 = Fixed, Number(16, 10_000_000), "65536",
            beyond "publishing: 503, `overloaded`", shows "L for what clients publish";
        /// Newest messages of all topics together that the server retains for a poll that comes back.
        recent_messages_max: u64 = Fixed, Number(0, 10_000_000), "1024",
            beyond "the oldest is dropped: a poll that comes back later gets fewer messages", shows "–";
        /// Bytes in memory of those messages.
        recent_bytes_max: u64 = Fixed, Bytes(0, 1024 * MIB), r#""4MiB""#,
            beyond "the same", shows "–";
        /// Seconds that the server retains those messages.
        recent_seconds_max: u64 = Fixed, Number(0, DAY), "60",
            beyond "the same", shows "–";
    }

    /// Times, in the unit that each name ends with.
    timeouts: Timeouts {
        /// Seconds in which a request must arrive whole.
        head_seconds: u64 = Live, Number(1, SILENCE_MAX), "10",
            beyond "408, `request_timeout`", shows "`throng_connections_closed_total`, L";
        /// Seconds that a connection may be idle between requests.
        idle_seconds: u64 = Live, Number(1, SILENCE_MAX), "75",
            beyond "closed", shows "`throng_connections_closed_total`";
        /// Seconds between two comments to an SSE client.
        sse_heartbeat_seconds: u64 = Live, Number(1, DAY), "15";
        /// Milliseconds that an EventSource waits before it connects again.
        sse_retry_milliseconds: u64 = Live, Number(0, MANY), "2000";
        /// Seconds between two heartbeat lines of an HTTP stream.
        stream_heartbeat_seconds: u64 = Live, Number(1, DAY), "10";
        /// Seconds between two pings to a WebSocket.
        ws_ping_seconds: u64 = Live, Number(1, SILENCE_MAX - 1), "25";
        /// Seconds of silence after which the server closes a WebSocket.
        ws_silence_seconds: u64 = Live, Number(2, SILENCE_MAX), "60",
            beyond "closed with 4009, `silent`", shows "`throng_connections_closed_total`";
        /// Seconds of silence after which the server closes a Phoenix WebSocket; its client sends a heartbeat every 30 s.
        phoenix_silence_seconds: u64 = Live, Number(2, SILENCE_MAX), "60",
            beyond "closed with 4009, `silent`", shows "`throng_connections_closed_total`";
        /// Seconds that a Phoenix long poll waits for messages.
        longpoll_seconds: u64 = Live, Number(1, 600), "10";
        /// Seconds that a poll waits for messages if its request has no timeout.
        poll_seconds: u64 = Live, Number(0, DAY), "25";
        /// Seconds that a poll may wait for messages at most.
        poll_seconds_max: u64 = Live, Number(1, DAY), "120",
            beyond "a longer `timeout` is cut to it", shows "–";
        /// Seconds that the server may take to stop, from the request to stop.
        drain_seconds: u64 = Live, Number(0, DAY), "5";
        /// Seconds of silence after which the kernel probes a connection, and again after each third of that time; 0: never.
        tcp_keepalive_seconds: u64 = Fixed, Number(0, 32_767), "60";
        /// Seconds after which the kernel drops a connection whose peer acknowledges nothing; 0: the kernel's choice.
        tcp_user_timeout_seconds: u64 = Fixed, Number(0, 2_000_000), "120";
    }

    /// Options of sockets, for the kernel.
    socket: Socket {
        /// Connections that may wait until the server accepts them, for each shard.
        backlog: u64 = Fixed, Number(16, 65_535), "4096";
        /// Bytes that the kernel buffers for a client that doesn't read; it takes about twice as many. 0: the kernel's choice.
        send_buffer_bytes: u64 = Fixed, Bytes(0, 1024 * MIB), r#""64KiB""#;
    }

    /// WebSocket compression.
    websocket: Websocket {
        /// Agree to permessage-deflate when a client offers it.
        compression: bool = Live, Bool, "true";
        /// Compression level: 1 is fast, 9 is small.
        compression_level: u64 = Fixed, Number(1, 9), "6";
        /// Bytes of the smallest message that the server compresses.
        compression_bytes_min: u64 = Fixed, Bytes(0, 64 * MIB), "64";
    }

    /// Requests that the server sends to the application over HTTP: for its decisions, and to notify it.
    webhook: Webhook {
        /// URL of the application's webhook, http:// or https:// without a query; "": none. A rule of [[topics]] may have its own.
        url: String = Live, Text, r#""""#;
        /// Text that the server sends with each request as Authorization: Bearer, at least 16 characters; "": it sends none.
        secret: String = Secret, Text, r#""""#;
        /// Key that signs each request (HMAC-SHA256 of its id, its timestamp and its body): at least 32 bytes of text, or whsec_ and the base64 of as many bytes; "": the server signs nothing.
        signing_key: String = Secret, Text, r#""""#;
        /// File with the certificates of the authorities that sign those of applications, in PEM, or those of the applications themselves, for webhooks, events and forwarding; relative to the configuration file's folder. "": the authorities of the system.
        ca_file: String = Fixed, Text, r#""""#;
        /// The application decides on each connection without a token: it may reject it, or give it users, grants, topics and a time. Before that time is over, the server requests a decision whether the connection may stay.
        connect: bool = Live, Bool, "false";
        /// Headers of clients' requests that the application gets, at most 16.
        headers: Vec<String> = Live, List, r#"["cookie", "authorization", "origin", "user-agent"]"#;
        /// Result of a connect, a subscription or a publish on which the application does not decide, because it is slow, fails or can't be reached: deny, or allow, as if the server had not requested a decision.
        silence: Silence = Live, Choice(Silence::WORDS), r#""deny""#;
        /// Events that the server sends to the application: connected, disconnected, joined, left, occupied, vacated; the last four only for topics whose rule has events = true. []: none.
        events: Vec<String> = Live, List, "[]";
        /// Events of webhook.events that may wait; the server drops more, and notifies the application how many.
        event_queue_events_max: u64 = Fixed, Number(1, 100_000_000), "100000",
            beyond "further events are dropped, and the application is notified how many", shows "`throng_webhook_told_waiting`, `throng_webhook_told_total`";
        /// Bytes of those events.
        event_queue_bytes_max: u64 = Fixed, Bytes(KIB, 64 * 1024 * MIB), r#""64MiB""#,
            beyond "the same", shows "`throng_webhook_told_waiting_bytes`, `throng_webhook_told_total`";
        /// Seconds that the server offers an event to an application that does not accept it; then it drops the event.
        event_retry_seconds: u64 = Live, Number(1, 30 * DAY), "86400";
        /// Milliseconds that a topic must stay occupied or vacated before the application gets that event.
        occupancy_milliseconds: u64 = Live, Number(0, 600_000), "1000";
        /// Milliseconds in which the application must respond to an event, including the wait until it is sent; then webhook.silence decides.
        timeout_milliseconds: u64 = Live, Number(1, 600_000), "5000";
        /// Events that one request may have.
        batch_events_max: u64 = Live, Number(1, 10_000), "256",
            beyond "the rest is sent with the next request", shows "–";
        /// Events without a response; the server rejects more. One URL may have at most as many as are still free in three quarters of this; the last quarter is for URLs with fewer than 64.
        queue_events_max: u64 = Fixed, Number(1, 10_000_000), "20000",
            beyond "503, `overloaded`, or as `webhook.silence` says", shows "`throng_webhook_waiting`";
        /// Events of one URL without a response; the server rejects more.
        queue_events_per_url_max: u64 = Fixed, Number(1, 10_000_000), "10000",
            beyond "the same", shows "`throng_webhook_url_waiting`, `throng_webhook_url_refused_total`";
        /// Bytes of the payloads and names of all those events; the server rejects more, but accepts one event alone. One URL may have at most as many as are still free in three quarters of this; the last quarter is for URLs with less than 256 KiB.
        queue_bytes_max: u64 = Fixed, Bytes(KIB, 64 * 1024 * MIB), r#""128MiB""#,
            beyond "the same", shows "`throng_webhook_waiting_bytes`";
        /// Requests under way at a time to each URL; events of one connection stay in order.
        requests_max: u64 = Fixed, Number(1, 1000), "4",
            beyond "events wait until a request is done", shows "`throng_webhook_waiting`";
    }

    /// Lists of the users in a topic, where its rule has presence = true.
    presence: Presence {
        /// Users of a topic that the server names to the topic's members; with more it sends only counts.
        users_max: u64 = Live, Number(1, 1_000_000), "1000",
            beyond "members get [counts only](presence.md#in-a-crowd)", shows "–";
        /// Bytes of a topic's list of users, at most half of limits.outbox_bytes_max; beyond that the server sends only counts.
        list_bytes_max: u64 = Live, Bytes(KIB, 64 * MIB), r#""128KiB""#,
            beyond "members get [counts only](presence.md#in-a-crowd)", shows "–";
        /// Milliseconds between two messages about users that came or left.
        interval_milliseconds: u64 = Live, Number(10, 600_000), "200";
        /// Connections of users in all topics with presence; a connection in two such topics counts twice. Beyond that, clients can enter no topic with presence (503, presence_full). 0: no limit.
        connections_max: u64 = Live, Number(0, MANY), "10000000",
            beyond "503, `presence_full`, for a topic with presence", shows "`throng_presence_connections`, L";
        /// Bytes of the largest description (meta) that a user may have.
        meta_bytes_max: u64 = Live, Bytes(2, 64 * KIB), r#""1KiB""#,
            beyond "`bad_meta`", shows "L";
    }

    /// The store of topics' history, cursors and subscriptions.
    store: Store {
        /// Directory of the store, which survives the process; "": everything is in memory only.
        data: String = Fixed, Text, r#""""#;
        /// Directory in which the server makes copies of the store, each in a directory of its own; "": the directory backups in store.data.
        backups: String = Live, Text, r#""""#;
        /// Messages that may wait until the store writes them; the server rejects more with 503.
        queue_messages_max: u64 = Fixed, Number(1, 1_000_000), "65536",
            beyond "503, `store_busy`", shows "`throng_store_queue_messages`";
        /// Bytes of those messages, at least limits.message_bytes_max; the server rejects more with 503.
        queue_bytes_max: u64 = Fixed, Bytes(KIB, 64 * 1024 * MIB), r#""64MiB""#,
            beyond "503, `store_busy`", shows "`throng_store_queue_bytes`";
        /// Bytes of the store's own memory, for what it reads often.
        cache_bytes_max: u64 = Fixed, Bytes(MIB, TIB), r#""64MiB""#,
            beyond "pages are read from the disk again", shows "–";
        /// Bytes of the longest store file that the server verifies whole at the start, which takes longer the larger the file is. Damage in a longer file shows when it is read, or in "throng store check".
        verify_bytes_max: u64 = Fixed, Bytes(0, 1024 * TIB), r#""256MiB""#,
            beyond "a larger store is not verified at the start", shows "–";
    }

    /// Nodes that serve together, through NATS. With cluster.urls, messages go to the members on all nodes; without, this node is alone.
    cluster: Cluster {
        /// NATS servers: nats://host[:port] each, or tls://host[:port]. The node chooses one, and the next if it fails; an empty list: no cluster.
        urls: Vec<String> = Fixed, List, "[]";
        /// Name of the cluster, with which all its NATS subjects begin: letters, digits, -, _ and dots between them. Nodes with other names are not part of it.
        name: String = Fixed, Text, r#""throng""#;
        /// Name of this node, for people, and for its MQTT sessions in PostgreSQL; "": its id, which is new at each start.
        node: String = Fixed, Text, r#""""#;
        /// User as which this node logs in to NATS, with cluster.password; "": the node sends the password as a token, if it has one.
        user: String = Live, Text, r#""""#;
        /// Password of that user, or a token.
        password: String = Secret, Text, r#""""#;
        /// File with only that password, instead of cluster.password; relative to the configuration file's folder. Others on the host must not be able to read the file.
        password_file: String = Live, Text, r#""""#;
        /// Text of a .creds file of NATS (a JWT and the key of its user), instead of a user and a password.
        credentials: String = Secret, Text, r#""""#;
        /// The .creds file, instead of its text; relative to the configuration file's folder. Others on the host must not be able to read the file.
        credentials_file: String = Live, Text, r#""""#;
        /// File with the certificates of the authorities that sign those of the NATS servers, in PEM; relative as cluster.password_file is. "": the authorities of the system.
        ca_file: String = Fixed, Text, r#""""#;
        /// Bytes that may wait to be sent to NATS, at least limits.message_bytes_max; beyond that the server rejects publishes with 503.
        queue_bytes_max: u64 = Fixed, Bytes(KIB, 64 * 1024 * MIB), r#""64MiB""#,
            beyond "503, `overloaded`", shows "`throng_cluster_queue_bytes`";
        /// Bytes of its newest messages that this node retains, for a minute at the most, for nodes that have missed some; a quarter as much again is for changes of presence.
        replay_bytes_max: u64 = Fixed, Bytes(KIB, 64 * 1024 * MIB), r#""32MiB""#,
            beyond "nodes that missed older messages get a gap", shows "`throng_cluster_replay_bytes`, `throng_cluster_gaps_total`";
        /// Bytes in memory for users of other nodes in topics with presence: about 350 for each user, and 1,300 for each topic. Beyond that, further users are missing from this node's lists and counts.
        presence_bytes_max: u64 = Fixed, Bytes(KIB, TIB), r#""512MiB""#,
            beyond "users of other nodes are missing from lists and counts; tried again once they fit, after 30 s to 8 minutes", shows "`throng_cluster_presence_bytes`, `throng_cluster_presence_incomplete`";
    }

    /// Messages that applications publish in their own transactions in PostgreSQL.
    outbox: Outbox {
        /// URL of the database, without a password: postgres://user@host:5432/database, with further hosts and options as libpq has them, sslmode=disable, prefer, require or verify-full among them; "": no outbox.
        url: String = Fixed, Text, r#""""#;
        /// Password of the URL's user.
        password: String = Secret, Text, r#""""#;
        /// File with only that password, instead of outbox.password; relative to the configuration file's folder. Others on the host must not be able to read the file.
        password_file: String = Live, Text, r#""""#;
        /// File with the certificates of the authorities that sign the server's, in PEM; relative as outbox.password_file is. "": the authorities of the system, by which only sslmode=verify-full verifies the server.
        ca_file: String = Fixed, Text, r#""""#;
        /// Schema of the tables and functions: small letters, digits and _. The server creates it if it may.
        schema: String = Fixed, Text, r#""throng""#;
        /// Rows that the server fetches, publishes and deletes together.
        batch_rows_max: u64 = Fixed, Number(1, 10_000), "1000",
            beyond "the rest comes with the next batch", shows "`throng_outbox_lag_seconds`";
        /// Bytes of those rows' messages; a larger message comes alone, up to admin.body_bytes_max.
        batch_bytes_max: u64 = Fixed, Bytes(KIB, 1024 * MIB), r#""4MiB""#,
            beyond "the same; a larger row comes alone", shows "`throng_outbox_lag_seconds`";
        /// Rows that the server can't publish, and that the database retains for the operator; beyond that the server deletes the oldest.
        refused_rows_max: u64 = Fixed, Number(1, 1_000_000), "10000",
            beyond "the oldest are deleted from `outbox_refused`", shows "`throng_outbox_refused_total`";
    }

    /// The database of topics with history, and limits on all of them together and on what goes with them.
    history: History {
        /// URL of a PostgreSQL database that stores the messages of topics with history, for this node or for all nodes of a cluster, without a password: postgres://user@host:5432/database, with further hosts and options as libpq has them, sslmode=disable, prefer, require or verify-full among them; "": none, and messages are in memory, or in store.data.
        url: String = Fixed, Text, r#""""#;
        /// Password of the URL's user.
        password: String = Secret, Text, r#""""#;
        /// File with only that password, instead of history.password; relative to the configuration file's folder. Others on the host must not be able to read the file.
        password_file: String = Live, Text, r#""""#;
        /// File with the certificates of the authorities that sign the server's, in PEM; relative as history.password_file is. "": the authorities of the system, by which only sslmode=verify-full verifies the server.
        ca_file: String = Fixed, Text, r#""""#;
        /// Schema of the tables and functions in that database: small letters, digits and _. The server creates it if it may.
        schema: String = Fixed, Text, r#""throng""#;
        /// Messages that may wait until the database writes them, and as many written ones that may wait for delivery; the server rejects more with 503.
        queue_messages_max: u64 = Fixed, Number(1, 1_000_000), "65536",
            beyond "503, `store_busy`", shows "`throng_history_queue_messages`, `throng_history_backlog_messages`";
        /// Bytes of those messages, at least limits.message_bytes_max; the server rejects more with 503.
        queue_bytes_max: u64 = Fixed, Bytes(KIB, 64 * 1024 * MIB), r#""64MiB""#,
            beyond "503, `store_busy`", shows "`throng_history_queue_bytes`, `throng_history_backlog_bytes`";
        /// Bytes in memory of the messages of all topics, at least limits.message_bytes_max. Beyond that the oldest leave memory; a store or a database still has them.
        bytes_max: u64 = Fixed, Bytes(KIB, TIB), r#""256MiB""#,
            beyond "the oldest messages leave memory", shows "`throng_history_bytes`, `throng_history_dropped_total`";
        /// Topics that the server knows in memory. Beyond that it forgets those that were quiet longest, and a client that comes back to one is notified, unless the store knows the topic.
        topics_max: u64 = Fixed, Number(1, 100_000_000), "1000000",
            beyond "the topic that was quiet longest is forgotten in memory", shows "`throng_history_topics`";
        /// Seconds that the server remembers a publisher's idempotency key.
        idempotency_seconds_max: u64 = Live, Number(1, DAY), "300",
            beyond "the key is forgotten", shows "`throng_idempotency_keys`";
        /// Idempotency keys that the server remembers; beyond that it forgets the oldest.
        idempotency_keys_max: u64 = Fixed, Number(1, 100_000_000), "1000000",
            beyond "the oldest is forgotten", shows "`throng_idempotency_keys`";
        /// Cursors, one for each user and topic where the user has acknowledged. Beyond that the server forgets the one not used longest: its user gets all messages that wait in the user's own topic again, and begins anew in other topics. With history.url also the cursors that may wait for PostgreSQL.
        cursors_max: u64 = Fixed, Number(1, 1_000_000_000), "1000000",
            beyond "the one not used longest is forgotten", shows "`throng_cursors`, `throng_history_pending_cursors`";
        /// Durable subscriptions of all users together; the server rejects more (409, subscriptions_full). 0: no limit.
        subscriptions_max: u64 = Live, Number(0, MANY), "100000000",
            beyond "409, `subscriptions_full`", shows "`throng_subscriptions`";
        /// Durable subscriptions that one user may have; the server rejects more.
        subscriptions_per_user_max: u64 = Live, Number(1, 100_000), "1000",
            beyond "409, `too_many_subscriptions`", shows "–";
    }

    /// Durable subscriptions: topics that a user enters on each connect.
    subscriptions: Subscriptions {
        /// Know which users follow a topic, connected or not (/api/topics/{topic}/subscribers). This takes 2 to 3 bytes of memory for each subscription, besides 3 to 4.
        by_topic: bool = Fixed, Bool, "true";
    }

    /// Messages that wait for users until they acknowledge them.
    inbox: Inbox {
        /// Personal topics retain messages until their users acknowledge them, unless a rule of [[topics]] gives them a history of their own.
        enabled: bool = Live, Bool, "false";
        /// Messages that may wait for one user; beyond that the server drops the oldest.
        messages_max: u64 = Live, Number(1, 10_000_000), "100",
            beyond "the user's oldest pending message is dropped", shows "`throng_history_dropped_total`";
        /// Bytes of those messages, at least limits.message_bytes_max.
        bytes_max: u64 = Live, Bytes(1, TIB), r#""256KiB""#,
            beyond "the same", shows "`throng_history_dropped_total`";
        /// Seconds that a message waits.
        seconds_max: u64 = Live, Number(1, TEN_YEARS), "604800",
            beyond "the same", shows "`throng_history_dropped_total`";
        /// Reply to a publisher only when the message is on disk; needs store.data or history.url. With history.url it must be true.
        durable: bool = Live, Bool, "false";
        /// Messages that one connection may have without having acknowledged them.
        window_messages_max: u64 = Live, Number(1, 1_000_000), "100",
            beyond "no more are sent until one is acknowledged", shows "–";
        /// Seconds without an acknowledgement after which the server delivers a message again to a /ws or Phoenix connection that has it; 0: never. A client that connects gets what its user has not acknowledged in any case.
        redelivery_seconds: u64 = Live, Number(0, DAY), "0";
        /// Deliveries of a message before the server gives it up; 0: without end, or 5 where dead_letter is set.
        tries_max: u64 = Live, Number(0, 60_000), "0",
            beyond "the message is given up", shows "`throng_messages_given_up_total`";
        /// Topic that gets the messages that the server gives up; "": it drops them.
        dead_letter: String = Live, Text, r#""""#;
    }

    /// Spans for OpenTelemetry: of calls that publish, of the delivery of their messages, and of requests to the application.
    tracing: Tracing {
        /// URL of the collector for traces by OTLP (protobuf over HTTP), such as http://127.0.0.1:4318/v1/traces; "": the server makes no spans.
        otlp_url: String = Fixed, Text, r#""""#;
        /// Traces that the server records, of a million that begin on this node. A caller of the API that sends traceparent decides for its own trace.
        sample_per_million: u64 = Fixed, Number(0, 1_000_000), "1000";
        /// File with the certificates of the authorities that sign the collector's, in PEM; relative to the configuration file's folder. "": the authorities of the system.
        ca_file: String = Fixed, Text, r#""""#;
    }

    /// What the server logs, and how.
    log: Log {
        /// What the server logs: error, warn, info, debug, trace, or a filter like info,shard=debug.
        level: String = Live, Text, r#""info""#;
        /// Format of the log: lines for people, or a JSON object a line.
        format: LogFormat = Fixed, Choice(LogFormat::WORDS), r#""text""#;
    }
}

/// The setting with this key.
pub(crate) fn setting(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}
