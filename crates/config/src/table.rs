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
    /// What clients meet.
    client: Client {
        /// Where clients connect without TLS; "" is nowhere, if client.listen_tls is somewhere.
        listen: Option<SocketAddr> = Fixed, OptionalAddress, r#""127.0.0.1:8000""#;
        /// Where clients connect through TLS, usually at port 443; "" is nowhere. It needs a certificate ([tls]).
        listen_tls: Option<SocketAddr> = Fixed, OptionalAddress, r#""""#;
        /// Let clients connect from other machines although nothing authenticates them: any of them may read any topic and be any user.
        insecure: bool = Fixed, Bool, "false";
        /// Origins whose pages may connect from a browser: "*", or scheme://host[:port] each.
        cors_origins: Vec<String> = Live, List, r#"["*"]"#;
        /// Clients may publish to topics that begin with one of these; "*" is every topic (so is ""), and an empty list is none.
        publish_prefixes: Vec<String> = Live, List, "[]";
        /// Whether a client of /ws may become another user, and cease to be, while it is connected; the application may do it for any client (/api/login).
        login: LoginRule = Live, Choice(LOGIN_WORDS), r#""allow""#;
        /// Proxies that are believed when they say where a client is: addresses and prefixes, like "10.0.0.5" or "10.0.0.0/8".
        trusted_proxies: Vec<String> = Live, List, "[]";
        /// How they say it: by the header X-Forwarded-For or Forwarded of each request, or by the PROXY protocol (version 1 or 2), with which each of their connections must then begin.
        proxy_header: ProxyHeader = Live, Choice(PROXY_HEADER_WORDS), r#""x-forwarded-for""#;
        /// The header in which a trusted proxy says whose each request is, like "X-Throng-User"; then a client can't say it itself: user= may only repeat it, and without it the client is nobody. "" lets clients say it, or their tokens.
        user_header: String = Live, Text, r#""""#;
        /// Serve /status, a small public page: connections now, answers per second, mean response time.
        status_page: bool = Live, Bool, "false";
        /// Whether clients of /sse, /stream, /ws and Phoenix may name topics by the wildcards + and # of MQTT (filter=mqtt), as far as their tokens reach; without tokens, whoever may is told everything that is published to topics that anybody may enter.
        wildcards: bool = Live, Bool, "false";
    }

    /// What applications and operators meet.
    admin: Admin {
        /// Where applications and operators connect.
        listen: SocketAddr = Fixed, Address, r#""127.0.0.1:8001""#;
        /// Where they connect through TLS, besides; "" is nowhere. It needs a certificate ([tls]), and requests none of clients.
        listen_tls: Option<SocketAddr> = Fixed, OptionalAddress, r#""""#;
        /// The key that applications and operators send as Authorization: Bearer, at least 16 characters; it may be used for everything. Beyond loopback there must be this one or one of [[keys]].
        api_key: String = Secret, Text, r#""""#;
        /// The file that holds that key and nothing else, in its place; relative to the folder of the file that this stands in; "none" in it is no key. Others on the host may not be able to read it.
        api_key_file: String = Live, Text, r#""""#;
        /// Names by which browsers may call this port, beside localhost and IP addresses: the dashboard is signed in only under these, since any web page can make another name point here.
        hosts: Vec<String> = Live, List, "[]";
        /// Proxies in front of this port that are believed when they say by X-Forwarded-For where a request comes from: for sign-ins that fail, wrong keys and the log. Addresses and prefixes, like "10.0.0.5" or "10.0.0.0/8".
        trusted_proxies: Vec<String> = Live, List, "[]";
        /// How long a browser stays signed in.
        session_seconds: u64 = Live, Number(60, 30 * DAY), "43200",
            beyond "401, `no_session`: sign in again", shows "`throng_admin_sessions`";
        /// The largest body of an API request.
        body_bytes_max: u64 = Fixed, Bytes(KIB, 1024 * MIB), r#""16MiB""#,
            beyond "413, `body_too_large`", shows "–";
        /// What is here of all bodies that have not arrived whole, at least admin.body_bytes_max; more is answered 503.
        bodies_bytes_max: u64 = Live, Bytes(KIB, TIB), r#""256MiB""#,
            beyond "503, `overloaded`", shows "`throng_admin_bodies_bytes`";
        /// Connections to this port; a new one takes the place of the one that was silent longest, those without the key first. At most half of the limit on open files.
        connections_max: u64 = Live, Number(16, 65_536), "1024",
            beyond "the connection that was silent longest [gives way](security.md#who-has-no-key)", shows "`throng_admin_connections`";
        /// The same for those of one address, or of one network of IPv6 (/64).
        connections_per_address_max: u64 = Live, Number(8, 65_536), "512",
            beyond "one of the address's own gives way", shows "`throng_admin_connections`";
        /// Until the head of a request must be whole, from the connect or from its first byte.
        head_seconds: u64 = Live, Number(1, DAY), "5",
            beyond "closed", shows "–";
        /// How long nothing may move on a connection, between requests or while an answer is read.
        idle_seconds: u64 = Live, Number(1, DAY), "120",
            beyond "closed", shows "–";
    }

    /// Who clients are and what they may do, by tokens (JSON Web Tokens). Without a key everybody is who they say.
    auth: Auth {
        /// The key that the application and this server share, for tokens signed with HS256, HS384 or HS512: text of at least 32 bytes.
        hmac_key: String = Secret, Text, r#""""#;
        /// The file that holds that key and nothing else, in its place; relative to the folder of the file that this stands in. Others on the host may not be able to read it.
        hmac_key_file: String = Live, Text, r#""""#;
        /// Files with a public key in PEM each (RSA, EC with P-256 or P-384, Ed25519); relative as auth.hmac_key_file is. They are read again on SIGHUP.
        public_key_files: Vec<String> = Live, List, "[]";
        /// Where issuers publish their keys (JSON Web Key Sets), http:// or https:// URLs. Keys below the URL of one of auth.issuers count for tokens of that issuer only.
        jwks_urls: Vec<String> = Live, List, "[]";
        /// Certificates of the authorities that sign those of these servers, in PEM, or those themselves; relative as auth.hmac_key_file is. "" is those of the system.
        jwks_ca_file: String = Fixed, Text, r#""""#;
        /// How long after they were fetched those keys are fetched again. For a key that is not known they are fetched at once, but not more often than every 5 s.
        jwks_refresh_seconds: u64 = Live, Number(5, DAY), "300";
        /// How tokens may be signed: HS256, HS384, HS512, RS256, RS384, RS512, PS256, ES256, ES384, EdDSA; an empty list is every way that the keys fit.
        algorithms: Vec<String> = Live, List, "[]";
        /// Who may issue tokens (iss); an empty list is anybody whose signature is right.
        issuers: Vec<String> = Live, List, "[]";
        /// For whom tokens are (aud); "" takes only those that are for nobody in particular.
        audience: String = Live, Text, r#""""#;
        /// No connection and no request without a token; a connection to /ws may bring it in its first command.
        required: bool = Live, Bool, "false";
        /// What may be done without a token, and with one that has no claim throng: an action and a pattern each, like "subscribe:news" or "history:public:*". Actions are subscribe, publish, presence and history.
        anonymous_grants: Vec<String> = Live, List, "[]";
        /// The cookie in which a browser may bring a token, from pages of this server's own origin and of those that client.cors_origins names; "" is none.
        cookie: String = Live, Text, r#""throng_token""#;
        /// So long before its token expires a client is told; 0 is not at all.
        expiry_warning_seconds: u64 = Live, Number(0, DAY), "60";
        /// Connections whose tokens expire at one moment are closed over so long a time after it.
        expiry_spread_seconds: u64 = Live, Number(0, 3_600), "30";
        /// Revocations that are remembered; more are refused.
        revocations_max: u64 = Live, Number(1, 10_000_000), "100000",
            beyond "409, `too_many_revocations`", shows "`throng_token_revocations`";
        /// How long a revocation is remembered that doesn't say: longer than tokens live.
        revocation_seconds: u64 = Live, Number(60, TEN_YEARS), "2592000";
    }

    /// Encryption, for client.listen_tls, mqtt.listen_tls and admin.listen_tls. The files are read again when they change, and on SIGHUP; connections stay open.
    tls: Tls {
        /// The server's certificate and those that signed it, in PEM, its own first; relative to the file's folder. [[tls.certificates]] has those of further hosts.
        certificate_file: String = Live, Text, r#""""#;
        /// The private key of the certificate, in PEM: RSA, ECDSA (P-256 is the fastest) or Ed25519.
        key_file: String = Live, Text, r#""""#;
        /// The lowest version that clients may speak.
        version_min: TlsVersion = Live, Choice(TlsVersion::WORDS), r#""1.2""#;
        /// Certificates of the authorities that sign those of clients, in PEM; relative to the file's folder. "" requests no certificates of clients.
        client_ca_file: String = Live, Text, r#""""#;
        /// Whether a client must have a certificate. One that is not valid is rejected in any case.
        client_certificates: ClientCertificates = Live, Choice(ClientCertificates::WORDS), r#""optional""#;
        /// Which field of a client's certificate is the user of its connection: the common name, or the first alternative name of a kind. A client may not name another one, and a certificate without the field is rejected. "none" is no field; then a certificate only lets in.
        client_user: CertificateUser = Live, Choice(CLIENT_USER_WORDS), r#""none""#;
        /// Hosts for which the server gets a certificate itself, by ACME. The authority connects to port 443 of each, which must lead to client.listen_tls.
        acme_hosts: Vec<String> = Live, List, "[]";
        /// The URL of the authority's directory.
        acme_directory: String = Live, Text, r#""https://acme-v02.api.letsencrypt.org/directory""#;
        /// Whether the operator agrees to the authority's terms. Without that there is no account.
        acme_terms_agreed: bool = Live, Bool, "false";
        /// Where the authority reaches the operator, like "mailto:ops@example.com".
        acme_contacts: Vec<String> = Live, List, "[]";
        /// Which of the operator's accounts at the authority that of ACME belongs to, where it demands one (external account binding): the id of the key that it shows there. "" is none.
        acme_eab_key_id: String = Live, Text, r#""""#;
        /// The key with that id, in base64url as the authority shows it. The first order uses it, and stores the account that it gets.
        acme_eab_key: String = Secret, Text, r#""""#;
        /// The file that holds that key and nothing else, in its place; relative to the folder of the file that this stands in. Others on the host may not be able to read it.
        acme_eab_key_file: String = Live, Text, r#""""#;
        /// Where the account and the certificate are stored, with their keys; relative to the file's folder. "" is the directory acme in store.data.
        acme_dir: String = Live, Text, r#""""#;
        /// Certificates that must have signed that of the authority's own server, in PEM; relative to the file's folder. "" trusts the authorities that this machine trusts.
        acme_ca_file: String = Live, Text, r#""""#;
        /// Handshakes that may be under way, of about 10 kB each; more are rejected. A handshake and the first request behind it have timeouts.head_seconds together.
        handshakes_max: u64 = Fixed, Number(1, MANY), "10000",
            beyond "closed with the alert `internal_error`", shows "`throng_tls_handshakes_pending`, `throng_tls_handshakes_total`";
    }

    /// MQTT clients. With mqtt.listen they come in there, at the client port, and there at /mqtt by WebSocket, too.
    mqtt: Mqtt {
        /// Where MQTT clients connect, usually at port 1883; "" is nowhere, and there is no MQTT at all.
        listen: Option<SocketAddr> = Fixed, OptionalAddress, r#""""#;
        /// Where MQTT clients connect through TLS, usually at port 8883, with or without mqtt.listen; "" is nowhere. It needs a certificate ([tls]).
        listen_tls: Option<SocketAddr> = Fixed, OptionalAddress, r#""""#;
        /// The longest time between two packets of a client: one of MQTT 5 that has a longer keep-alive, or 0, is told this one instead; one of MQTT 3 keeps its own, and its 0 is without end. 0 leaves it to all of them.
        keep_alive_seconds_max: u64 = Live, Number(0, KEEP_ALIVE_MAX), "1800",
            beyond "an MQTT 5 client is told this one; who is silent for one and a half of its keep-alive is closed", shows "`throng_connections_closed_total`";
        /// How long a session outlives its connection; a longer one is cut to this, and 0 is not at all.
        session_seconds_max: u64 = Live, Number(0, TEN_YEARS), "86400",
            beyond "the session ends; a longer wish is cut to it", shows "`throng_mqtt_sessions_ended_total`";
        /// Sessions of clients that are away; above it a session ends with its connection.
        sessions_max: u64 = Live, Number(0, 100_000_000), "1000000",
            beyond "the session of a client that goes ends with its connection", shows "`throng_mqtt_sessions_away`, `throng_mqtt_sessions_ended_total`";
        /// Those of one user, where users are proved (by tokens or webhook.connect); above it a session of the user ends with its connection, and 0 is no limit.
        sessions_per_user_max: u64 = Live, Number(0, MANY), "1000",
            beyond "the same for a session of this user", shows "`throng_mqtt_sessions_ended_total`";
        /// What the sessions of clients that are away may hold in memory, with their wills; above it a session ends with its connection.
        away_bytes_max: u64 = Live, Bytes(0, TIB), r#""1GiB""#,
            beyond "the same for the session of any client", shows "`throng_mqtt_sessions_away_bytes`, `throng_mqtt_sessions_ended_total`";
        /// Messages of a topic that are retained for sessions, unless a rule of [[topics]] retains them; then the oldest are dropped.
        session_messages_max: u64 = Live, Number(1, 10_000_000), "1000",
            beyond "the oldest message of the topic is dropped", shows "`throng_mqtt_session_messages`, `throng_mqtt_messages_gone_total`";
        /// What those messages may hold, at least limits.message_bytes_max.
        session_bytes_max: u64 = Live, Bytes(1, TIB), r#""1MiB""#,
            beyond "the same", shows "`throng_mqtt_session_messages_bytes`, `throng_mqtt_messages_gone_total`";
        /// The largest packet from a client; 0 is limits.message_bytes_max and 4 KiB for what is around a payload.
        packet_bytes_max: u64 = Live, Bytes(0, 128 * MIB), "0",
            beyond "closed with reason code 0x95", shows "`throng_connections_closed_total`";
        /// Messages with QoS 1 and 2 that a client may have under way to the server at a time; clients of MQTT 5 are told, and one that sends more is closed.
        receive_max: u64 = Live, Number(1, 65_535), "100",
            beyond "closed with reason code 0x93", shows "`throng_connections_closed_total`";
        /// Messages with QoS 1 and 2 that may be under way to a client at a time; a client may ask for fewer.
        inflight_max: u64 = Live, Number(1, 65_535), "100",
            beyond "the next one waits until one is confirmed", shows "–";
        /// Messages that may wait for a client beyond those that it has not confirmed; with more it is closed, unless its session can read them from the history instead.
        queue_messages_max: u64 = Live, Number(0, 1_000_000), "1000",
            beyond "closed with reason code 0x97, `slow_consumer`; a session that goes on reads the history instead", shows "`throng_slow_consumers_closed_total`";
        /// Topics for which a client of MQTT 5 may have a number at a time (topic aliases), of up to 254 bytes each; 0 is none.
        topic_alias_max: u64 = Live, Number(0, 65_535), "10",
            beyond "closed with reason code 0x94", shows "`throng_connections_closed_total`";
        /// Topics with a retained message; above it no further topic has one, and 0 is none at all.
        retained_messages_max: u64 = Live, Number(0, 100_000_000), "100000",
            beyond "a further topic has no retained message", shows "`throng_mqtt_retained_messages`, `throng_mqtt_retained_refused_total`";
        /// What retained messages may hold, at least limits.message_bytes_max.
        retained_bytes_max: u64 = Live, Bytes(0, TIB), r#""64MiB""#,
            beyond "the same", shows "`throng_mqtt_retained_bytes`, `throng_mqtt_retained_refused_total`";
        /// The server to which clients of MQTT 5 are sent when this one drains (their server reference, such as "other.example:1883"); "" is none.
        server_reference: String = Live, Text, r#""""#;
        /// How often the server tells MQTT clients of itself, in the topics below $SYS/broker; 0 is not at all.
        sys_seconds: u64 = Live, Number(0, 86_400), "10";
        /// Whether MQTT clients may subscribe with + and #.
        wildcards: bool = Live, Bool, "true";
        /// Levels of a filter with + or #, on all transports; one with more is refused. Topics may have any number.
        filter_levels_max: u64 = Live, Number(1, 128), "32",
            beyond "SUBACK with 0x8F (MQTT 3: 0x80); 400, `bad_filter`, on other transports", shows "–";
    }

    /// The event loops.
    shards: Shards {
        /// Event loops; 0 is as many as cores, limits.connections_max and the limit on open files ask for.
        count: u64 = Fixed, Number(0, 1000), "0";
        /// Bind each shard to a core.
        pin_cpus: bool = Fixed, Bool, "false";
        /// How messages leave: io_uring batches where the kernel allows them, or one write for each connection.
        sender: Sender = Fixed, Choice(Sender::WORDS), r#""auto""#;
    }

    /// Limits; sizes in bytes.
    limits: Limits {
        /// Connections in all; more are answered 503. Shards are planned for it at the start.
        connections_max: u64 = Live, Number(1, 100_000_000), "100000",
            beyond "503, `overloaded`", shows "`throng_connections`, `throng_connections_refused_total`, L";
        /// Connections from one address, or from one network of IPv6; 0 is no limit.
        connections_per_address_max: u64 = Live, Number(0, MANY), "0",
            beyond "503, `overloaded`; a health check is answered", shows "`throng_connections_refused_total`, L";
        /// Addresses of IPv6 that begin with the same so many bits are one, for all limits by address: who has one of them usually has them all.
        ipv6_prefix_bits: u64 = Live, Number(1, 128), "64";
        /// New connections a second; more are answered 503, 0 is no limit.
        accept_per_second_max: u64 = Live, Number(0, MANY), "0",
            beyond "503, `overloaded`", shows "`throng_connections_refused_total`, L";
        /// Phoenix long-poll sessions in all; more are refused.
        longpoll_sessions_max: u64 = Live, Number(0, 10_000_000), "10000",
            beyond "503, `overloaded`", shows "`throng_longpoll_sessions`, L";
        /// Those of one address, which may be an office's or a proxy's; more are refused, 0 is no limit.
        longpoll_sessions_per_address_max: u64 = Live, Number(0, MANY), "2500",
            beyond "503, `overloaded`", shows "`throng_longpoll_sessions`";
        /// Topics that one connection may be in, its users included.
        topics_per_connection_max: u64 = Live, Number(1, 10_000), "100",
            beyond "400, `too_many_topics`; Phoenix: `too many channels joined`", shows "L";
        /// Topics on the node that have members, a topic with members on several shards as often; each shard has its share of them. Clients can enter no further topic then (503, topics_full), but those that are there and those that the application puts them into; 0 is no limit.
        topics_max: u64 = Live, Number(0, MANY), "10000000",
            beyond "503, `topics_full`, for a topic that nobody is in", shows "the sum of `throng_shard_topics`, L";
        /// The largest payload of a message.
        message_bytes_max: u64 = Live, Bytes(1, 64 * MIB), r#""64KiB""#,
            beyond "413, `message_too_large` or `body_too_large`", shows "L";
        /// The largest head of a client's request.
        head_bytes_max: u64 = Live, Bytes(KIB, 64 * KIB), r#""8KiB""#,
            beyond "431, `head_too_large`", shows "L";
        /// The longest target in a client's request line.
        uri_bytes_max: u64 = Live, Bytes(64, 64 * KIB), r#""4KiB""#,
            beyond "414, `uri_too_long`", shows "L";
        /// The largest WebSocket message from a client; more than a message's payload, for what is around that.
        frame_bytes_max: u64 = Live, Bytes(125, 64 * MIB), r#""128KiB""#,
            beyond "closed with 1009, `too_big`", shows "`throng_connections_closed_total`, L";
        /// The largest body of a Phoenix long poll, which may hold 100 messages.
        longpoll_body_bytes_max: u64 = Live, Bytes(KIB, 64 * MIB), r#""1MiB""#,
            beyond "413, `body_too_large`", shows "L as `limits.message_bytes_max`";
        /// What may wait for a client that doesn't read; then it is closed. One that keeps reading may have four times as much.
        outbox_bytes_max: u64 = Live, Bytes(2 * KIB, 1024 * MIB), r#""256KiB""#,
            beyond "closed as `slow_consumer`; with `conflate` only the newest of each key waits", shows "`throng_outbox_bytes`, `throng_slow_consumers_closed_total`, L";
        /// Messages that may wait for a client that doesn't read; then it is closed.
        outbox_messages_max: u64 = Live, Number(1, 1_000_000), "256",
            beyond "the same", shows "`throng_slow_consumers_closed_total`";
        /// Memory for what waits in all outboxes; above it the slowest clients are closed.
        outboxes_bytes_max: u64 = Live, Bytes(MIB, TIB), r#""256MiB""#,
            beyond "those that hold most are closed as `slow_consumer`", shows "`throng_outbox_memory_bytes`, L";
        /// Memory for requests and messages of all clients that have not come whole; above it those that hold most are answered 503 or closed.
        input_bytes_max: u64 = Live, Bytes(MIB, TIB), r#""128MiB""#,
            beyond "those that hold most: 503 or closed, `overloaded`", shows "`throng_input_memory_bytes`, L";
        /// Messages that one connection may publish in a second; above it the connection is left unread for a while, 0 is no limit.
        publishes_per_second_max: u64 = Live, Number(0, MANY), "1000",
            beyond "the connection is left unread for a while", shows "L";
        /// Topics that one connection may enter in a second, long polls and Phoenix long-poll sessions included; above it the connection is left unread for a while, 0 is no limit.
        joins_per_second_max: u64 = Live, Number(0, MANY), "1000",
            beyond "the connection is left unread for a while", shows "L";
        /// Connections of one user, over all shards; more are answered 429, 0 is no limit. While it is limited a connection takes some 100 bytes more.
        connections_per_user_max: u64 = Live, Number(0, MANY), "0",
            beyond "429, `too_many_connections`", shows "L";
        /// Topics of all connections of one user together, each as often as a connection is in it, the user's own included; more are refused, 0 is no limit. It takes as much.
        topics_per_user_max: u64 = Live, Number(0, MANY), "0",
            beyond "429, `too_many_topics`", shows "L";
        /// Requests and commands of one user in a second, by all its connections; more are refused (429, rate_limited), 0 is no limit.
        commands_per_second_per_user_max: u64 = Live, Number(0, MANY), "10000",
            beyond "429, `rate_limited`; in the end closed with 4029", shows "`throng_accounts`, L";
        /// Bytes that one user may send in a second; above it its connections are left unread for a while, 0 is no limit.
        bytes_per_second_per_user_max: u64 = Live, Bytes(0, TIB), r#""64MiB""#,
            beyond "its connections are left unread for a while; a request: 429, `rate_limited`", shows "L";
        /// Messages that one user may publish in a second; more are refused, 0 is no limit.
        publishes_per_second_per_user_max: u64 = Live, Number(0, MANY), "5000",
            beyond "429, `rate_limited`", shows "L";
        /// Topics that one user may enter in a second, with those of each connect; more are refused, 0 is no limit.
        joins_per_second_per_user_max: u64 = Live, Number(0, MANY), "10000",
            beyond "429, `rate_limited`", shows "L";
        /// The same as for a user, for all that comes from one address, which may be an office's or a proxy's; 0 is no limit.
        commands_per_second_per_address_max: u64 = Live, Number(0, MANY), "0",
            beyond "429, `rate_limited`; in the end closed with 4029", shows "`throng_accounts`, L";
        /// The same for its bytes.
        bytes_per_second_per_address_max: u64 = Live, Bytes(0, TIB), "0",
            beyond "its connections are left unread for a while; a request: 429, `rate_limited`", shows "L";
        /// The same for what it publishes.
        publishes_per_second_per_address_max: u64 = Live, Number(0, MANY), "0",
            beyond "429, `rate_limited`", shows "L";
        /// The same for the topics that it enters.
        joins_per_second_per_address_max: u64 = Live, Number(0, MANY), "0",
            beyond "429, `rate_limited`", shows "L";
        /// Calls to the admin port by one API key in a second, each command of a batch included; more are refused (429, rate_limited), 0 is no limit. A table of [[keys]] may have its own.
        commands_per_second_per_key_max: u64 = Live, Number(0, MANY), "0",
            beyond "429, `rate_limited`", shows "`throng_api_key_calls_total`, L";
        /// Bytes of the bodies of one key's calls in a second.
        bytes_per_second_per_key_max: u64 = Live, Bytes(0, TIB), "0",
            beyond "429, `rate_limited`", shows "L";
        /// Messages that one key publishes in a second.
        publishes_per_second_per_key_max: u64 = Live, Number(0, MANY), "0",
            beyond "429, `rate_limited`", shows "L";
        /// Resident memory at which new connections are answered 503; 0 is 90 % of the cgroup's limit where there is one, else none.
        memory_bytes_max: u64 = Live, Bytes(0, u64::MAX >> 1), "0",
            beyond "new connections: 503, `overloaded`; `/readyz`: 503, `memory_full`", shows "`throng_process_resident_memory_bytes`, `throng_memory_full`, L";
        /// Messages that may wait for one shard; then publishing is answered 503.
        mailbox_messages_max: u64 = Fixed, Number(16, 10_000_000), "65536",
            beyond "publishing: 503, `overloaded`", shows "L for what clients publish";
        /// Messages of all topics that a long poll which comes back can still get.
        recent_messages_max: u64 = Fixed, Number(0, 10_000_000), "1024",
            beyond "the oldest is let go: a poll that comes back later gets less", shows "–";
        /// The memory for those messages.
        recent_bytes_max: u64 = Fixed, Bytes(0, 1024 * MIB), r#""4MiB""#,
            beyond "the same", shows "–";
        /// How long they are retained.
        recent_seconds_max: u64 = Fixed, Number(0, DAY), "60",
            beyond "the same", shows "–";
    }

    /// Times, in the unit that each name ends with.
    timeouts: Timeouts {
        /// Until a request must have arrived whole.
        head_seconds: u64 = Live, Number(1, SILENCE_MAX), "10",
            beyond "408, `request_timeout`", shows "`throng_connections_closed_total`, L";
        /// How long a connection may rest between requests.
        idle_seconds: u64 = Live, Number(1, SILENCE_MAX), "75",
            beyond "closed", shows "`throng_connections_closed_total`";
        /// Between comments to an SSE client.
        sse_heartbeat_seconds: u64 = Live, Number(1, DAY), "15";
        /// What an EventSource waits before it comes back.
        sse_retry_milliseconds: u64 = Live, Number(0, MANY), "2000";
        /// Between heartbeat lines of an HTTP stream.
        stream_heartbeat_seconds: u64 = Live, Number(1, DAY), "10";
        /// Between pings to a WebSocket.
        ws_ping_seconds: u64 = Live, Number(1, SILENCE_MAX - 1), "25";
        /// A WebSocket that says nothing for so long is closed.
        ws_silence_seconds: u64 = Live, Number(2, SILENCE_MAX), "60",
            beyond "closed with 4009, `silent`", shows "`throng_connections_closed_total`";
        /// A Phoenix WebSocket that says nothing for so long is closed; its client sends a heartbeat every 30 s.
        phoenix_silence_seconds: u64 = Live, Number(2, SILENCE_MAX), "60",
            beyond "closed with 4009, `silent`", shows "`throng_connections_closed_total`";
        /// How long a Phoenix long poll waits.
        longpoll_seconds: u64 = Live, Number(1, 600), "10";
        /// How long a poll waits when it doesn't say.
        poll_seconds: u64 = Live, Number(0, DAY), "25";
        /// How long a poll may wait at most.
        poll_seconds_max: u64 = Live, Number(1, DAY), "120",
            beyond "a longer `timeout` is cut to it", shows "–";
        /// How long the end may take, once it is asked for.
        drain_seconds: u64 = Live, Number(0, DAY), "5";
        /// A silent connection is probed after so long, and each third of it again; 0 is never.
        tcp_keepalive_seconds: u64 = Fixed, Number(0, 32_767), "60";
        /// A connection whose peer acknowledges nothing for so long is dropped; 0 is the kernel's choice.
        tcp_user_timeout_seconds: u64 = Fixed, Number(0, 2_000_000), "120";
    }

    /// What is asked of the kernel.
    socket: Socket {
        /// Connections that may wait to be accepted, for each shard.
        backlog: u64 = Fixed, Number(16, 65_535), "4096";
        /// What the kernel keeps for a client that doesn't read, about twice; 0 is the kernel's choice.
        send_buffer_bytes: u64 = Fixed, Bytes(0, 1024 * MIB), r#""64KiB""#;
    }

    /// WebSocket compression.
    websocket: Websocket {
        /// Agree to permessage-deflate when a client offers it.
        compression: bool = Live, Bool, "true";
        /// 1 is fast, 9 is small.
        compression_level: u64 = Fixed, Number(1, 9), "6";
        /// Smaller messages are not compressed.
        compression_bytes_min: u64 = Fixed, Bytes(0, 64 * MIB), "64";
    }

    /// What the application is told and asked over HTTP.
    webhook: Webhook {
        /// Where the application is told and asked, an http:// or https:// URL without a query; "" is nowhere, and a rule of [[topics]] may have its own.
        url: String = Live, Text, r#""""#;
        /// What is sent with each request as Authorization: Bearer, at least 16 characters; "" sends none.
        secret: String = Secret, Text, r#""""#;
        /// What each request is signed with (HMAC-SHA256 of its id, its timestamp and its body), at least 32 bytes of text, or whsec_ and the base64 of so many; "" signs nothing.
        signing_key: String = Secret, Text, r#""""#;
        /// Certificates of the authorities that sign those of applications, in PEM, or those themselves, for webhooks, events and forwarding; relative to the file's folder. "" is those of the system.
        ca_file: String = Fixed, Text, r#""""#;
        /// The application says who comes without a token, and may refuse or name users, grants and topics; before the time that it gives is over, it is asked whether the connection may stay.
        connect: bool = Live, Bool, "false";
        /// Which headers of their requests the application is told, at most 16.
        headers: Vec<String> = Live, List, r#"["cookie", "authorization", "origin", "user-agent"]"#;
        /// What becomes of a connection, a subscription or a publish that the application was asked about and has not decided, as it is slow, in error, or not there: deny or allow, which is as if it were not asked.
        silence: Silence = Live, Choice(Silence::WORDS), r#""deny""#;
        /// What the application is told: connected, disconnected, joined, left, occupied, vacated; the last four only of topics whose rule has events = true. [] tells nothing.
        events: Vec<String> = Live, List, "[]";
        /// Events to tell that may wait; more are dropped, and the application is told how many.
        event_queue_events_max: u64 = Fixed, Number(1, 100_000_000), "100000",
            beyond "events to tell are dropped, and the application is told how many", shows "`throng_webhook_told_waiting`, `throng_webhook_told_total`";
        /// What those events may hold.
        event_queue_bytes_max: u64 = Fixed, Bytes(KIB, 64 * 1024 * MIB), r#""64MiB""#,
            beyond "the same", shows "`throng_webhook_told_waiting_bytes`, `throng_webhook_told_total`";
        /// How long an event is offered to an application that does not take it; then it is dropped.
        event_retry_seconds: u64 = Live, Number(1, 30 * DAY), "86400";
        /// How long a topic must stay occupied or vacated before that is told.
        occupancy_milliseconds: u64 = Live, Number(0, 600_000), "1000";
        /// How long an event may take to be answered, waiting to be sent included; then webhook.silence decides.
        timeout_milliseconds: u64 = Live, Number(1, 600_000), "5000";
        /// Events that one request may carry.
        batch_events_max: u64 = Live, Number(1, 10_000), "256",
            beyond "the rest goes with the next request", shows "–";
        /// Events that may be without an answer, of one URL no more than there is room for yet in three quarters of these; the rest is for URLs with fewer than 64. More are refused.
        queue_events_max: u64 = Fixed, Number(1, 10_000_000), "20000",
            beyond "503, `overloaded`, or as `webhook.silence` says", shows "`throng_webhook_waiting`";
        /// Events of one URL that may be without an answer; more are refused.
        queue_events_per_url_max: u64 = Fixed, Number(1, 10_000_000), "10000",
            beyond "the same", shows "`throng_webhook_url_waiting`, `throng_webhook_url_refused_total`";
        /// What the payloads and names of all those events may hold, of one URL no more than there is room for yet in three quarters of it; the rest is for URLs with less than 256 KiB. More are refused, but one alone is taken.
        queue_bytes_max: u64 = Fixed, Bytes(KIB, 64 * 1024 * MIB), r#""128MiB""#,
            beyond "the same", shows "`throng_webhook_waiting_bytes`";
        /// Requests under way at a time to each URL; events of one connection stay in order.
        requests_max: u64 = Fixed, Number(1, 1000), "4",
            beyond "events wait for one that is under way", shows "`throng_webhook_waiting`";
    }

    /// Who is in a topic, where its rule has presence = true.
    presence: Presence {
        /// Users of a topic who are named to its members; above it only counts are sent.
        users_max: u64 = Live, Number(1, 1_000_000), "1000",
            beyond "members get [counts only](presence.md#in-a-crowd)", shows "–";
        /// The same for the bytes of a topic's list, at most half of limits.outbox_bytes_max.
        list_bytes_max: u64 = Live, Bytes(KIB, 64 * MIB), r#""128KiB""#,
            beyond "members get [counts only](presence.md#in-a-crowd)", shows "–";
        /// Between two messages about who came and went.
        interval_milliseconds: u64 = Live, Number(10, 600_000), "200";
        /// Connections of users in all topics with presence, one that is in two topics twice; clients can enter no topic with presence then (503, presence_full), 0 is no limit.
        connections_max: u64 = Live, Number(0, MANY), "10000000",
            beyond "503, `presence_full`, for a topic with presence", shows "`throng_presence_connections`, L";
        /// The largest description that a user may have.
        meta_bytes_max: u64 = Live, Bytes(2, 64 * KIB), r#""1KiB""#,
            beyond "`bad_meta`", shows "L";
    }

    /// Where topics' history, cursors and subscriptions are stored.
    store: Store {
        /// The directory of the store, which survives the process; "" keeps all in memory only.
        data: String = Fixed, Text, r#""""#;
        /// The directory in which the server makes copies of the store, each in a directory of its own; "" is the directory backups in store.data.
        backups: String = Live, Text, r#""""#;
        /// Messages that may wait to be written; more are answered 503.
        queue_messages_max: u64 = Fixed, Number(1, 1_000_000), "65536",
            beyond "503, `store_busy`", shows "`throng_store_queue_messages`";
        /// What those messages may hold, at least limits.message_bytes_max; more are answered 503.
        queue_bytes_max: u64 = Fixed, Bytes(KIB, 64 * 1024 * MIB), r#""64MiB""#,
            beyond "503, `store_busy`", shows "`throng_store_queue_bytes`";
        /// The store's own memory, for what is read often.
        cache_bytes_max: u64 = Fixed, Bytes(MIB, TIB), r#""64MiB""#,
            beyond "pages are read from the disk again", shows "–";
        /// A file of up to this length is looked at whole at the start, which takes longer the larger it is; damage in a longer one is met by whoever reads it, or by "throng store check".
        verify_bytes_max: u64 = Fixed, Bytes(0, 1024 * TIB), r#""256MiB""#,
            beyond "a larger store is not looked through at the start", shows "–";
    }

    /// Nodes that serve together, by NATS. With cluster.urls messages go to the members of all of them; without, this node is alone.
    cluster: Cluster {
        /// Servers of NATS: nats://host[:port] each, or tls://host[:port]. One is chosen, and the next where it fails; an empty list is no cluster.
        urls: Vec<String> = Fixed, List, "[]";
        /// The cluster's name, with which all its subjects begin: letters, digits, -, _ and dots between them. Nodes with other names are no part of it.
        name: String = Fixed, Text, r#""throng""#;
        /// This node's name, for people; "" is its id, which is new at each start.
        node: String = Fixed, Text, r#""""#;
        /// The user as whom this node comes to NATS, with cluster.password; "" sends the password as a token, if there is one.
        user: String = Live, Text, r#""""#;
        /// That user's password, or a token.
        password: String = Secret, Text, r#""""#;
        /// The file that holds the password and nothing else, in its place; relative to the folder of the file that this stands in. Others on the host may not be able to read it.
        password_file: String = Live, Text, r#""""#;
        /// The text of a .creds file of NATS (a JWT and the key of its user), in place of a user and a password.
        credentials: String = Secret, Text, r#""""#;
        /// The .creds file, in place of its text; relative to the folder of the file that this stands in. Others on the host may not be able to read it.
        credentials_file: String = Live, Text, r#""""#;
        /// Certificates of the authorities that sign those of the servers, in PEM; relative as cluster.password_file is. "" is those of the system.
        ca_file: String = Fixed, Text, r#""""#;
        /// What may wait to be sent to NATS, at least limits.message_bytes_max; above it publishing is answered 503.
        queue_bytes_max: u64 = Fixed, Bytes(KIB, 64 * 1024 * MIB), r#""64MiB""#,
            beyond "503, `overloaded`", shows "`throng_cluster_queue_bytes`";
        /// What this node retains of its newest messages, for a minute at the most, for nodes that have missed some; and a quarter of it for changes of presence.
        replay_bytes_max: u64 = Fixed, Bytes(KIB, 64 * 1024 * MIB), r#""32MiB""#,
            beyond "nodes that missed older messages get a gap", shows "`throng_cluster_replay_bytes`, `throng_cluster_gaps_total`";
        /// The memory for users of other nodes in topics with presence: about 350 bytes for each, and 1,300 for a topic; above it further ones are missing from lists and counts of this node.
        presence_bytes_max: u64 = Fixed, Bytes(KIB, TIB), r#""512MiB""#,
            beyond "users of other nodes are missing from lists and counts; tried again once they fit, after 30 s to 8 minutes", shows "`throng_cluster_presence_bytes`, `throng_cluster_presence_incomplete`";
    }

    /// What applications publish in their own transactions in PostgreSQL.
    outbox: Outbox {
        /// The database: postgres://user@host:5432/database, with further hosts and options as libpq has them, sslmode=disable, prefer, require or verify-full among them, and without a password; "" is no outbox.
        url: String = Fixed, Text, r#""""#;
        /// The user's password.
        password: String = Secret, Text, r#""""#;
        /// The file that holds the password and nothing else, in its place; relative to the folder of the file that this stands in. Others on the host may not be able to read it.
        password_file: String = Live, Text, r#""""#;
        /// Certificates of the authorities that sign the server's, in PEM; relative as outbox.password_file is. "" is those of the system, by which only sslmode=verify-full verifies it.
        ca_file: String = Fixed, Text, r#""""#;
        /// The schema of the tables and functions: small letters, digits and _. The server makes it where it may.
        schema: String = Fixed, Text, r#""throng""#;
        /// Rows that are fetched, published and deleted together.
        batch_rows_max: u64 = Fixed, Number(1, 10_000), "1000",
            beyond "the rest comes with the next batch", shows "`throng_outbox_lag_seconds`";
        /// What their messages may hold; a larger one comes alone, up to admin.body_bytes_max.
        batch_bytes_max: u64 = Fixed, Bytes(KIB, 1024 * MIB), r#""4MiB""#,
            beyond "the same; a larger row comes alone", shows "`throng_outbox_lag_seconds`";
        /// Rows that can't be published and that the database retains for the operator; above it the oldest go.
        refused_rows_max: u64 = Fixed, Number(1, 1_000_000), "10000",
            beyond "the oldest are deleted from `outbox_refused`", shows "`throng_outbox_refused_total`";
    }

    /// Limits for all topics with history together, and for what goes with it.
    history: History {
        /// A database of PostgreSQL that has the messages of topics with history, for this node or for all nodes of a cluster: postgres://user@host:5432/database, with further hosts and options as libpq has them, sslmode=disable, prefer, require or verify-full among them, and without a password; "" is none, and messages are in memory, or in store.data.
        url: String = Fixed, Text, r#""""#;
        /// The user's password there.
        password: String = Secret, Text, r#""""#;
        /// The file that holds the password and nothing else, in its place; relative to the folder of the file that this stands in. Others on the host may not be able to read it.
        password_file: String = Live, Text, r#""""#;
        /// Certificates of the authorities that sign the server's, in PEM; relative as history.password_file is. "" is those of the system, by which only sslmode=verify-full verifies it.
        ca_file: String = Fixed, Text, r#""""#;
        /// The schema of the tables and functions there: small letters, digits and _. The server makes it where it may.
        schema: String = Fixed, Text, r#""throng""#;
        /// Messages that may wait to be written there, and as many that are written and wait to be handed on; more are answered 503.
        queue_messages_max: u64 = Fixed, Number(1, 1_000_000), "65536",
            beyond "503, `store_busy`", shows "`throng_history_queue_messages`, `throng_history_backlog_messages`";
        /// What those messages may hold, at least limits.message_bytes_max; more are answered 503.
        queue_bytes_max: u64 = Fixed, Bytes(KIB, 64 * 1024 * MIB), r#""64MiB""#,
            beyond "503, `store_busy`", shows "`throng_history_queue_bytes`, `throng_history_backlog_bytes`";
        /// The memory for the messages of all topics, at least limits.message_bytes_max; above it the oldest are let go, and with a store or a database they are still there.
        bytes_max: u64 = Fixed, Bytes(KIB, TIB), r#""256MiB""#,
            beyond "the oldest messages leave memory", shows "`throng_history_bytes`, `throng_history_dropped_total`";
        /// Topics that something is known of in memory; above it those that were quiet longest are forgotten, and who comes back to one is told so unless the store knows it.
        topics_max: u64 = Fixed, Number(1, 100_000_000), "1000000",
            beyond "the topic that was quiet longest is forgotten in memory", shows "`throng_history_topics`";
        /// How long a publisher's idempotency key is remembered.
        idempotency_seconds_max: u64 = Live, Number(1, DAY), "300",
            beyond "the key is forgotten", shows "`throng_idempotency_keys`";
        /// Idempotency keys that are remembered; above it the oldest are forgotten.
        idempotency_keys_max: u64 = Fixed, Number(1, 100_000_000), "1000000",
            beyond "the oldest is forgotten", shows "`throng_idempotency_keys`";
        /// Cursors, one for each user and topic where the user has acknowledged; above it the one not used longest is forgotten: its user gets all that waits in the own topic again, and begins anew in others.
        cursors_max: u64 = Fixed, Number(1, 1_000_000_000), "1000000",
            beyond "the one not used longest is forgotten", shows "`throng_cursors`";
        /// Durable subscriptions of all users together; more are refused (409, subscriptions_full), 0 is no limit.
        subscriptions_max: u64 = Live, Number(0, MANY), "100000000",
            beyond "409, `subscriptions_full`", shows "`throng_subscriptions`";
        /// Durable subscriptions that one user may have; more are refused.
        subscriptions_per_user_max: u64 = Live, Number(1, 100_000), "1000",
            beyond "409, `too_many_subscriptions`", shows "–";
    }

    /// Who is subscribed to what for good, and enters it on each connect.
    subscriptions: Subscriptions {
        /// Know who follows a topic, connected or not (/api/topics/{topic}/subscribers). It takes 2 to 3 bytes of memory for each subscription, beside 3 to 4.
        by_topic: bool = Fixed, Bool, "true";
    }

    /// Messages that wait for users until they acknowledge them.
    inbox: Inbox {
        /// Personal topics keep messages until their users acknowledge them, unless a rule of [[topics]] gives them a history of their own.
        enabled: bool = Live, Bool, "false";
        /// Messages that may wait for one user; then the oldest are dropped.
        messages_max: u64 = Live, Number(1, 10_000_000), "100",
            beyond "the oldest that waits for the user is dropped", shows "`throng_history_dropped_total`";
        /// What those messages may hold, at least limits.message_bytes_max.
        bytes_max: u64 = Live, Bytes(1, TIB), r#""256KiB""#,
            beyond "the same", shows "`throng_history_dropped_total`";
        /// How long a message waits.
        seconds_max: u64 = Live, Number(1, TEN_YEARS), "604800",
            beyond "the same", shows "`throng_history_dropped_total`";
        /// A publisher is answered when the message is on disk, and not before; needs store.data.
        durable: bool = Live, Bool, "false";
        /// Messages that one connection may have without having acknowledged them.
        window_messages_max: u64 = Live, Number(1, 1_000_000), "100",
            beyond "no more are sent until one is acknowledged", shows "–";
        /// A message that is not acknowledged for so long is delivered again to a /ws or Phoenix connection that has it; 0 is never. Whoever connects is given what is not acknowledged in any case.
        redelivery_seconds: u64 = Live, Number(0, DAY), "0";
        /// How often a message is delivered before it is given up; 0 is without end, or 5 times where dead_letter is set.
        tries_max: u64 = Live, Number(0, 60_000), "0",
            beyond "the message is given up", shows "`throng_messages_given_up_total`";
        /// The topic where messages go that are given up; "" drops them.
        dead_letter: String = Live, Text, r#""""#;
    }

    /// Spans for OpenTelemetry: of calls that publish, of their messages' delivery, and of requests to the application.
    tracing: Tracing {
        /// The collector's address for traces by OTLP (protobuf over HTTP), such as http://127.0.0.1:4318/v1/traces; "" makes no spans.
        otlp_url: String = Fixed, Text, r#""""#;
        /// How many of a million traces that begin on this node are recorded. A caller of the API that sends traceparent decides for its own trace.
        sample_per_million: u64 = Fixed, Number(0, 1_000_000), "1000";
        /// Certificates of the authorities that sign the collector's, in PEM; relative to the file's folder. "" is those of the system.
        ca_file: String = Fixed, Text, r#""""#;
    }

    /// What is logged, and how.
    log: Log {
        /// What is logged: error, warn, info, debug, trace, or a filter like info,shard=debug.
        level: String = Live, Text, r#""info""#;
        /// How it is logged.
        format: LogFormat = Fixed, Choice(LogFormat::WORDS), r#""text""#;
    }
}

/// The setting with this key.
pub(crate) fn setting(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}
