//! All errors that clients and applications see: one table with the code, the status of HTTP, the codes of the
//! other protocols, who is to blame, what to do, and what is wrong. `docs/errors.md` is generated from it.

use std::borrow::Cow;
use std::fmt;

macro_rules! error_codes {
    ($($remedy:ident {
        $([$status:literal $(, $other:literal)* $(; $shown:literal)?] $blame:ident $what:literal:
            $($name:ident = $text:literal $(mqtt $mqtt:literal)? $(websocket $close:literal)?),+;)+
    })+) => {
        /// The code of an error that Throng itself gives. Its text never changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $($($(#[doc = concat!("`", $text, "`: ", $what, ".")] $name,)+)+)+
        }

        impl ErrorCode {
            /// All codes, in the order of the documentation.
            pub const ALL: &'static [ErrorCode] = &[$($($(ErrorCode::$name,)+)+)+];

            /// The code as programs read it.
            pub const fn text(self) -> &'static str {
                match self {
                    $($($(ErrorCode::$name => $text,)+)+)+
                }
            }

            /// The code with this text; `None` if it is none of Throng's own.
            pub fn parse(text: &str) -> Option<Self> {
                match text {
                    $($($($text => Some(ErrorCode::$name),)+)+)+
                    _ => None,
                }
            }

            /// The row of the code.
            pub const fn row(self) -> &'static ErrorRow {
                match self {
                    $($($(ErrorCode::$name)|+ => const { &ErrorRow {
                        codes: &[$(ErrorCode::$name),+],
                        statuses: &[$status $(, $other)*],
                        shown: ($(Some($shown),)? None::<&str>,).0,
                        blame: Blame::$blame,
                        remedy: Remedy::$remedy,
                        what: $what,
                    } },)+)+
                }
            }

            /// The reason code of MQTT 5 for a rejection with this error in PUBACK, SUBACK or CONNACK; `None` if
            /// MQTT clients don't get it. MQTT 3.1.1 has 0x80 in SUBACK, a return code in CONNACK, and nothing
            /// elsewhere. A connection that ends has the reason of its [`CloseReason`](crate::CloseReason).
            pub const fn mqtt_reason(self) -> Option<u8> {
                match self {
                    $($($(ErrorCode::$name => ($(Some($mqtt),)? None::<u8>,).0,)+)+)+
                }
            }

            /// The close code of a WebSocket whose handshake has this error, since a page of a browser doesn't see
            /// the status; `None` if the handshake fails with the status.
            pub const fn handshake_close(self) -> Option<u16> {
                match self {
                    $($($(ErrorCode::$name => ($(Some($close),)? None::<u16>,).0,)+)+)+
                }
            }
        }
    };
}

error_codes! {
    Change {
        [400] Caller "a name that [is not allowed](glossary.md#what-names-may-hold)":
            BadTopic = "bad_topic" mqtt 0x90, BadUser = "bad_user", BadSender = "bad_sender",
            BadEvent = "bad_event", BadTag = "bad_tag", BadTags = "bad_tags";
        [400, 401] Caller
            "the key of a message on the client port; a wrong API key on the admin port; the key of a WebSocket \
             handshake":
            BadKey = "bad_key";
        [400] Caller "the value of this publish option":
            BadMessageKey = "bad_message_key", BadIdempotencyKey = "bad_idempotency_key", BadTtl = "bad_ttl";
        [400] Caller
            "an invalid [filter](topics.md#many-topics-by-one-name), one with too many levels \
             (`mqtt.filter_levels_max`), or one where filters are not allowed":
            BadFilter = "bad_filter" mqtt 0x8f;
        [400] Caller "the [`mqtt`](mqtt.md#what-the-application-says) properties of the message":
            BadMqtt = "bad_mqtt";
        [400] Caller "a payload that does not match its declared encoding":
            BadData = "bad_data";
        [400] Caller "presence data that is invalid or too large":
            BadMeta = "bad_meta";
        [400] Caller
            "an invalid position or id, or one after the newest message; `bad_id` is also for the id of a command that \
             is neither a number nor a short string":
            BadSince = "bad_since", BadId = "bad_id";
        [400] Caller
            "a parameter whose name is probably a typo, or one that this call does not accept; the message has the \
             right name, or says who may use it":
            BadParameter = "bad_parameter";
        [400] Caller "a parameter":
            BadQuery = "bad_query", BadPath = "bad_path", BadLimit = "bad_limit", BadReverse = "bad_reverse",
            BadTimeout = "bad_timeout", BadFormat = "bad_format";
        [400] Caller "a body or command that the call does not accept":
            BadBody = "bad_body", BadRequest = "bad_request", BadJson = "bad_json", BadCommand = "bad_command";
        [400] Caller "an invalid name of a [backup](store.md#backup)":
            BadBackup = "bad_backup";
        [400] Caller "an invalid id of a connection":
            BadConnection = "bad_connection";
        [400] Operator
            "a connection from a [trusted proxy](security.md#whose-address-it-is) without the PROXY protocol":
            BadProxyHeader = "bad_proxy_header";
        [400, 403; "400"] Caller
            "the head of the request; `bad_host` is 403 if the admin port is called by a name that is not in \
             `admin.hosts`, without a key or by a browser":
            BadHeader = "bad_header", BadHost = "bad_host", BadContentLength = "bad_content_length";
        [400, 409] Caller "a line of a CSV import":
            BadLine = "bad_line";
        [400] Caller "more than 1,000 commands or changes":
            BatchTooLong = "batch_too_long";
        [400, 403; "400; 403 from clients"] Caller
            "an event name that [clients would misunderstand](transports.md#events)":
            ReservedEvent = "reserved_event";
        [400] Caller "a topic is missing":
            NoTopic = "no_topic";
        [400, 403] Caller "the connection has no user, or not the one that is named: connect with `user=`":
            NoUser = "no_user";
        [400, 404] Caller "the topic has no history":
            NoHistory = "no_history";
        [400] Caller "a [compacted topic](history.md#state) has one message per key: set the key":
            KeyRequired = "key_required" mqtt 0x83;
        [404, 403] Caller "the topic has no presence":
            NoPresence = "no_presence";
        [404] Caller
            "there is no such [MQTT session](mqtt.md#who-is-here): its client never connected, the session has ended, \
             or it has an `owner`":
            NoMqttSession = "no_mqtt_session";
        [404] Caller "the topic has no retained message":
            NoRetained = "no_retained";
        [404] Caller "there is no such connection":
            NoConnection = "no_connection";
        [404] Caller "`node=` names no reachable [node](cluster.md#the-api) of the cluster":
            NoNode = "no_node";
        [409, 404] Caller "the user is not on this connection":
            NotLoggedIn = "not_logged_in";
        [409; "on `/ws`"] Caller "the connection is not in this topic":
            NotSubscribed = "not_subscribed";
        [400] Operator "the server does not index followers by topic (`subscriptions.by_topic`)":
            NotByTopic = "not_by_topic";
        [400, 409] Caller "the topic's messages are not acknowledged":
            NotAcknowledged = "not_acknowledged";
        [400, 409, 429] Caller
            "the connection would exceed `limits.topics_per_connection_max`; the user is at \
             `limits.topics_per_user_max`":
            TooManyTopics = "too_many_topics" mqtt 0x97;
        [409] Caller "the user would exceed `history.subscriptions_per_user_max`":
            TooManySubscriptions = "too_many_subscriptions";
        [409] Server "all users together would exceed `history.subscriptions_max`":
            SubscriptionsFull = "subscriptions_full";
        [409] Operator "the node has no [store](store.md) to back up":
            NoStore = "no_store";
        [409] Operator "the node is [not in a cluster](cluster.md)":
            NoCluster = "no_cluster";
        [409] Operator "the node has no [outbox](outbox.md)":
            NoOutbox = "no_outbox";
        [409] Caller "a backup with this name exists; another backup is running":
            BackupExists = "backup_exists", BackupRunning = "backup_running";
        [503] Server "the node is at `limits.topics_max`; clients can still enter topics that have members":
            TopicsFull = "topics_full" mqtt 0x97;
        [503] Server "connections in topics with presence are at `presence.connections_max`":
            PresenceFull = "presence_full" mqtt 0x97;
        [409] Caller "`if_offset`: the topic has a newer message, whose id is `last`":
            NewerMessage = "newer_message";
        [409] Caller "the id has another epoch; `epoch` is the current one":
            EpochChanged = "epoch_changed";
        [401, 403; "401, 403; 403 to Phoenix"] Application
            "your application [rejected the client](webhooks.md#who-comes)":
            Unauthorized = "unauthorized" mqtt 0x87 websocket 4401;
        [401; "401; 403 to Phoenix"] Caller
            "[the client's token](security.md#what-is-refused) is missing, invalid, expired or revoked":
            TokenRequired = "token_required" mqtt 0x87 websocket 4401,
            InvalidToken = "invalid_token" mqtt 0x86 websocket 4401,
            TokenExpired = "token_expired" mqtt 0x86 websocket 4401,
            TokenRevoked = "token_revoked" mqtt 0x86 websocket 4401;
        [401] Caller "a request names a user, but only a [certificate](tls.md#client-certificates) can identify one":
            CertificateRequired = "certificate_required" mqtt 0x87 websocket 4401;
        [403] Caller "the token does not grant it, or there is no token":
            NotGranted = "not_granted" mqtt 0x87 websocket 4403;
        [403] Caller "`user` is not one of the users of the token, or not the user of the certificate":
            NotYourUser = "not_your_user" websocket 4403;
        [409; "on `/ws`"] Caller
            "a `connect` or `refresh` without a token; a second `connect`; a `refresh` before it; the server does not \
             use tokens (409 of `/api/revoke`)":
            BadToken = "bad_token", AlreadyConnected = "already_connected", NotConnected = "not_connected",
            NoTokens = "no_tokens";
        [409] Server "revocations are at `auth.revocations_max`":
            TooManyRevocations = "too_many_revocations";
        [401] Caller "the API key is missing; the API key has expired":
            NoKey = "no_key", ExpiredKey = "expired_key";
        [401] Caller "the browser session has ended: sign in again":
            NoSession = "no_session";
        [403] Caller "the API key is valid, but lacks the scope that the message names":
            InsufficientScope = "insufficient_scope";
        [429] Caller "too many sign-ins from this address failed; see `Retry-After`":
            TooManyAttempts = "too_many_attempts";
        [409] Caller "a sign-in to a node that requires no key":
            NoKeys = "no_keys";
        [400] Operator "the binary or socket does not exist, or other users can write to the binary":
            BadUpgrade = "bad_upgrade";
        [409] Operator "another upgrade is in progress (`/api/upgrade`)":
            UpgradeUnderWay = "upgrade_under_way";
        [409] Operator
            "the node [drains](operations.md#drain) or is being [rebalanced](cluster.md#rebalance): cancel that first":
            DrainUnderWay = "drain_under_way";
        [501] Operator "this server can't be upgraded while it runs":
            NoUpgrade = "no_upgrade";
        [403] Operator "clients may not subscribe by [wildcards](topics.md#many-topics-by-one-name) here":
            WildcardsOff = "wildcards_off" mqtt 0xa2;
        [403] Operator
            "a rule, a setting or the application does not allow it; the message names which. Your application may use \
             [codes of its own](webhooks.md#what-is-asked)":
            Forbidden = "forbidden" mqtt 0x87;
        [403] Caller
            "a page of an origin that is not allowed; at `/mqtt` without `[auth]` also a request [through a \
             proxy](mqtt.md#who-a-client-is)":
            BadOrigin = "bad_origin", CrossOrigin = "cross_origin";
        [403] Caller "a version of Phoenix Channels that is not supported":
            BadVsn = "bad_vsn";
        [400] Caller "an invalid message in a Phoenix long poll":
            BadMessage = "bad_message";
        [404] Caller "there is no such path":
            NotFound = "not_found";
        [405] Caller "the path does not support this method":
            MethodNotAllowed = "method_not_allowed";
        [426, 505; "426"] Caller "the path is for WebSockets of version 13; `bad_version` is 505 for a version of HTTP":
            UpgradeRequired = "upgrade_required", BadVersion = "bad_version";
        [411] Caller "the body has no declared length":
            LengthRequired = "length_required";
        [413] Caller "the message or body exceeds a limit that the message names":
            MessageTooLarge = "message_too_large" mqtt 0x95, BodyTooLarge = "body_too_large";
        [414] Caller "the request exceeds a limit that the message names":
            UriTooLong = "uri_too_long";
        [431] Caller "the request exceeds a limit that the message names":
            HeadTooLarge = "head_too_large", TooManyHeaders = "too_many_headers";
        [415] Caller "a media type that the call does not accept":
            BadMediaType = "bad_media_type";
    }
    Retry {
        [408] Caller "the request did not arrive completely in time":
            RequestTimeout = "request_timeout";
        [429; "on `/ws` and Phoenix"] Caller
            "the connection already waits for 16 pages of history: wait for a response, then request again":
            TooManyReads = "too_many_reads";
        [429] Caller
            "the user, the address or the [API key](operations.md#keys-of-the-api) exceeds a limit [per \
             second](operations.md#users-and-addresses) that the message names":
            RateLimited = "rate_limited" mqtt 0x97;
        [429] Caller "the user is at the limit on connections":
            TooManyConnections = "too_many_connections";
        [503] Server "a limit on connections or memory is reached, or the shards are overloaded: nothing was done":
            Overloaded = "overloaded" mqtt 0x97;
        [503] Application
            "the [application](webhooks.md#when-it-fails) did not respond, or a [back end](forward.md) did not accept \
             the message":
            NoApplicationReply = "unanswered" mqtt 0x80;
        [503] Operator "a revocation is in force but not stored: a restart would lose it":
            NotStored = "not_stored";
        [503] Operator "the [store](store.md) is overloaded, can't write (also `/readyz`), or is damaged in this topic":
            StoreBusy = "store_busy" mqtt 0x97, StoreFailed = "store_failed" mqtt 0x97,
            StoreDamaged = "store_damaged" mqtt 0x97;
        [503] Server "the server is at its memory limit":
            MemoryFull = "memory_full";
        [503] Server "a shard or another node did not reply in 5 s: it may still carry out the request":
            NoShardReply = "no_answer";
        [503] Server "the server is shutting down":
            GoingDown = "going_down";
        [503] Server "the server ended [a pending poll](#why-a-connection-ends) for this reason":
            Drain = "drain", ByApplication = "application";
        [503] Server
            "the node [is drained](operations.md#drain), and other nodes are up: connect again through the balancer; \
             also for a pending poll":
            UseAnotherServer = "use_another_server" mqtt 0x9c;
        [503] Server "the limit on readers of `/api/live` or `/api/trace` is reached":
            TooManyReaders = "too_many_readers";
        [503] Operator "the keys of [the token's issuer](security.md#keys-that-others-hold) have not been fetched yet":
            KeysUnavailable = "keys_unavailable" mqtt 0x88;
        [504] Server "the disk did not respond in time: the operation may be done or not":
            Timeout = "timeout";
        [507] Server "the table of topic names in subscriptions is full":
            NamesFull = "names_full";
    }
}

/// The row of one code, or of several that mean the same.
#[derive(Debug)]
pub struct ErrorRow {
    /// The codes.
    pub codes: &'static [ErrorCode],
    /// The statuses of HTTP. The first is the usual one.
    pub statuses: &'static [u16],
    /// What the documentation shows in place of the statuses.
    pub shown: Option<&'static str>,
    /// The party that has to change something.
    pub blame: Blame,
    /// What to do.
    pub remedy: Remedy,
    /// What is wrong, in Markdown.
    pub what: &'static str,
}

/// The party to blame for an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The sender of the request: a client, or on the admin port a caller of the API.
    Caller,
    /// The application, which decides by webhook or closes connections.
    Application,
    /// The operator, whose configuration or machine is in the way.
    Operator,
    /// The server, which is busy or at a limit.
    Server,
}

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Change the request, or what is behind it: as it is it fails again.
    Change,
    /// Send the same request again, later.
    Retry,
}

impl ErrorCode {
    /// The usual status of HTTP.
    pub const fn status(self) -> u16 {
        self.row().statuses[0]
    }

    /// Returns the reason for a Phoenix client. It is the message, except where applications compare texts.
    pub fn phoenix_reason(self, message: &str) -> Cow<'_, str> {
        if self == ErrorCode::NotGranted {
            ErrorCode::Unauthorized.text().into()
        } else if self == ErrorCode::RateLimited {
            format!("{self}: {message}").into()
        } else {
            message.into()
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl PartialEq<str> for ErrorCode {
    fn eq(&self, other: &str) -> bool {
        self.text() == other
    }
}

impl PartialEq<&str> for ErrorCode {
    fn eq(&self, other: &&str) -> bool {
        self.text() == *other
    }
}

/// The code in a reply: Throng's own, or the application's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyCode {
    /// Throng's own.
    Own(ErrorCode),
    /// One with which the application has rejected something by webhook.
    Application(Box<str>),
}

impl ReplyCode {
    /// Returns the code with this text: Throng's own if it has one, even if the application gave the text.
    pub fn parse(text: &str) -> Self {
        match ErrorCode::parse(text) {
            Some(code) => ReplyCode::Own(code),
            None => ReplyCode::Application(text.into()),
        }
    }

    /// The code as programs read it.
    pub fn text(&self) -> &str {
        match self {
            ReplyCode::Own(code) => code.text(),
            ReplyCode::Application(text) => text,
        }
    }
}

impl From<ErrorCode> for ReplyCode {
    fn from(code: ErrorCode) -> Self {
        ReplyCode::Own(code)
    }
}

impl PartialEq<ErrorCode> for ReplyCode {
    fn eq(&self, other: &ErrorCode) -> bool {
        *self == ReplyCode::Own(*other)
    }
}

impl PartialEq<&str> for ReplyCode {
    fn eq(&self, other: &&str) -> bool {
        self.text() == *other
    }
}

impl fmt::Display for ReplyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// An error with its code for programs and its message for people. All else about it follows from the code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CodedError {
    /// The code.
    pub code: ErrorCode,
    /// What happened, whose fault it is, and what to do.
    pub message: Cow<'static, str>,
}

impl CodedError {
    /// An error with this code and this message.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        CodedError { code, message: message.into() }
    }

    /// Returns the reason for a Phoenix client.
    pub fn phoenix_reason(&self) -> Cow<'_, str> {
        self.code.phoenix_reason(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_one_text_and_one_row() {
        let mut texts = std::collections::HashSet::new();
        for code in ErrorCode::ALL {
            let (text, row) = (code.text(), code.row());
            assert!(texts.insert(text), "{text} is there twice");
            assert_eq!(ErrorCode::parse(text), Some(*code));
            assert_eq!(*code, text);
            assert!(text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{text}");
            assert!(row.codes.contains(code) && !row.what.ends_with('.'), "{text}");
            let is_error = |status: &u16| (400..600).contains(status);
            assert!(row.statuses.iter().all(is_error), "{text}");
            if row.remedy == Remedy::Retry {
                assert!([408, 429, 503, 504, 507].contains(&code.status()), "{text}");
            }
        }
        assert!(texts.len() > 100, "{}", texts.len());
        assert_eq!(ErrorCode::parse("no_such_code"), None);
    }

    #[test]
    fn a_code_of_the_application_stays_as_it_is() {
        assert_eq!(ReplyCode::parse("banned"), ReplyCode::Application("banned".into()));
        assert_eq!(ReplyCode::parse("banned"), "banned");
        assert_eq!(ReplyCode::parse("unauthorized"), ErrorCode::Unauthorized);
        assert_ne!(ReplyCode::parse("banned"), ErrorCode::Unauthorized);
    }

    #[test]
    fn phoenix_clients_get_the_texts_that_they_compare() {
        let reason = |code: ErrorCode| code.phoenix_reason("why").into_owned();
        assert_eq!(reason(ErrorCode::NotGranted), "unauthorized");
        assert_eq!(reason(ErrorCode::RateLimited), "rate_limited: why");
        assert_eq!(reason(ErrorCode::BadTopic), "why");
    }
}
