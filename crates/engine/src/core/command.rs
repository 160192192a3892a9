//! Commands to a shard from other threads, and their replies.

use std::net::SocketAddr;
use std::sync::Arc;

use auth::TokenMark;
use broker::{Delivery, Gap};
use model::{CloseReason, CodedError, ConnectionId, ErrorCode, LogicalTime, Name};
use protocol::phoenix::ClientMessage;
use sessions::{Author, Listing, Token, Will};

use crate::core::reply::Reply;
use crate::core::reply_target::ReplyTarget;
use crate::core::settings::Settings;
use crate::delivery::costs::Costliest;
use crate::mqtt::{MqttFound, MqttInfo};
use crate::trace::event::TraceSink;
use crate::webhook::WebhookResponse;
use crate::webhook::pending_hook::PendingHook;

/// A command to a shard. The shard takes commands from its mailbox in order.
pub enum Command {
    /// Deliver a message to the topic's members.
    Deliver(Delivery),
    /// Send members notices of lost messages.
    Gap(Arc<Gap>),
    /// Close connections.
    Disconnect {
        /// The connections to close.
        target: Target,
        /// The reason that their clients get.
        close: CloseReason,
        /// Gets the number of closed connections.
        reply: Reply<u32>,
    },
    /// Make all connections of a user enter a topic.
    Subscribe {
        /// The owner of the connections.
        user: Name,
        /// The topic to enter.
        topic: Name,
        /// Gets the number of the user's connections that are in the topic now.
        reply: Reply<u32>,
    },
    /// Make all connections of a user leave a topic.
    Unsubscribe {
        /// The owner of the connections.
        user: Name,
        /// The topic to leave.
        topic: Name,
        /// Gets the number of connections that left.
        reply: Reply<u32>,
    },
    /// Add a user to a connection.
    Login {
        /// The connection.
        connection: ConnectionId,
        /// The user.
        user: Name,
        /// Gets the number of the connection's users after the login, or why it failed.
        reply: Reply<Result<LoggedIn, LoginError>>,
    },
    /// Remove a user from a connection.
    Logout {
        /// The connection.
        connection: ConnectionId,
        /// The user.
        user: Name,
        /// Gets the number of the connection's users after the logout, or why it failed.
        reply: Reply<Result<LoggedIn, LoginError>>,
    },
    /// List topics that have members, up to the limit. The sender of the command merges the lists of all shards.
    Topics {
        /// Only names with this prefix.
        prefix: String,
        /// Only names after this one in byte order.
        after: Option<String>,
        /// The limit on topics: the first ones in byte order.
        limit: usize,
        /// Gets each topic with the number of its members on this shard, sorted by name.
        reply: Reply<Vec<TopicInfo>>,
    },
    /// Count one topic's members on this shard.
    Topic {
        /// The topic.
        topic: Name,
        /// Gets the number of members.
        reply: Reply<u32>,
    },
    /// Report which of these topics have members on this shard.
    HaveMembers {
        /// The topics.
        topics: Arc<[Name]>,
        /// Gets one flag for each topic, in the same order.
        reply: Reply<Vec<bool>>,
    },
    /// List the topics with the most members on this shard, without users' personal topics.
    Biggest {
        /// The limit on topics.
        limit: usize,
        /// Gets the topics, the biggest first, and by name among equals. Which topics with a single member are in the
        /// list is left to chance.
        reply: Reply<Vec<TopicInfo>>,
    },
    /// List the topics whose messages cost this shard most in the last minute.
    Costliest {
        /// Gets the topics.
        reply: Reply<Costliest>,
    },
    /// Count the connections with unsent bytes, and describe those with the most.
    Slowest {
        /// The limit on descriptions.
        limit: usize,
        /// Gets the number of such connections, and the descriptions.
        reply: Reply<(u32, Vec<ConnectionInfo>)>,
    },
    /// Count a topic's members on this shard, and describe some of them.
    Members {
        /// The topic. A user's personal topic lists the user's connections.
        topic: Name,
        /// The limit on descriptions.
        limit: usize,
        /// Gets the number of members, and the descriptions.
        reply: Reply<(u32, Vec<ConnectionInfo>)>,
    },
    /// The application has responded to a request about a connection of this shard.
    WebhookResponded {
        /// The connection.
        slot: u32,
        /// The serial number of the connection, because slots are reused.
        serial: u32,
        /// What waits for the response.
        hook: PendingHook,
        /// The response.
        response: WebhookResponse,
    },
    /// A request for a Phoenix long-poll session of this shard.
    Session {
        /// The session.
        session: ConnectionId,
        /// What the session has to do.
        request: SessionRequest,
        /// The request's connection, which waits for [`Command::SessionReply`].
        from: ConnectionId,
    },
    /// The reply to a request of this shard to a session.
    SessionReply {
        /// The session.
        session: ConnectionId,
        /// The request's connection.
        to: ConnectionId,
        /// The reply.
        reply: SessionReply,
    },
    /// The history has found the positions from which a connection follows topics.
    Started {
        /// The connection.
        slot: u32,
        /// The serial number of the connection, because slots are reused.
        serial: u32,
        /// The number of the query.
        query: u32,
        /// The positions. `None` if the history failed.
        start: Option<history::Start>,
    },
    /// The history has read messages that a connection missed.
    Pulled {
        /// The connection.
        slot: u32,
        /// The serial number of the connection, because slots are reused.
        serial: u32,
        /// The numbers of the connection's topics that the query covers.
        numbers: Vec<u32>,
        /// The messages. `None` if the history failed.
        piece: Option<history::Piece>,
    },
    /// The history has read a page for a client.
    Paged {
        /// The connection.
        slot: u32,
        /// The serial number of the connection, because slots are reused.
        serial: u32,
        /// The number of the query.
        query: u32,
        /// The page.
        page: Result<history::Page, history::HistoryError>,
    },
    /// A user has acknowledged a topic.
    Acknowledged {
        /// The user.
        user: Name,
        /// The topic.
        topic: Name,
        /// The acknowledged offset.
        offset: u64,
    },
    /// The user's connections begin again in a topic: the database has an earlier cursor than this node knew, or has
    /// confirmed the begin.
    BeginAgain {
        /// The user.
        user: Name,
        /// The topic.
        topic: Name,
        /// The offset of the cursor; `None` if it is where this node has it.
        offset: Option<u64>,
    },
    /// A client's message is on disk, or publishing it has failed.
    Published {
        /// The connection.
        slot: u32,
        /// The serial number of the connection, because slots are reused.
        serial: u32,
        /// Where the reply goes.
        reply: ReplyTarget,
        /// The outcome.
        result: Result<model::Position, broker::PublishError>,
    },
    /// A presence snapshot of a topic that the registry could not give at once.
    PresenceListed {
        /// The connection.
        slot: u32,
        /// The serial number of the connection, because slots are reused.
        serial: u32,
        /// The query of the connection.
        query: PresenceQuery,
        /// The snapshot.
        list: presence::List,
    },
    /// Another MQTT client takes over a session that a client of this shard has, or waits for.
    MqttTakeOver {
        /// The last known slot of the client.
        slot: u32,
        /// The session's key.
        key: Name,
    },
    /// An MQTT client that has, or waits for, a session here has connected to another node.
    MqttConnectedToNode {
        /// The last known slot of the client.
        slot: u32,
        /// The session's key.
        key: Name,
        /// The time of its connect there.
        time: LogicalTime,
        /// The client starts a new session there (Clean Start).
        is_clean: bool,
    },
    /// Announce all MQTT clients to the other nodes again.
    MqttRepeatConnects,
    /// Publish the will of an MQTT client that was away.
    MqttPublishWill(Box<Will>),
    /// The store may have wrong records of a session: store them again.
    MqttStoreAgain {
        /// The connection that has the session.
        slot: u32,
        /// The session's key.
        key: Name,
    },
    /// The session that an MQTT client waits for is free.
    MqttMayTake {
        /// The connection.
        slot: u32,
        /// The serial number of the connection, because slots are reused.
        serial: u32,
    },
    /// The record that an MQTT client's packets waited for is stored, or storing it has failed.
    MqttStored {
        /// The connection.
        slot: u32,
        /// The serial number of the connection, because slots are reused.
        serial: u32,
        /// The packets to send now.
        packets: Vec<u8>,
        /// True if the record is on disk.
        stored: bool,
        /// True if the record is the progress of the client's session.
        is_progress: bool,
    },
    /// The history has replied to a query for an MQTT client's session.
    MqttRead {
        /// The connection.
        slot: u32,
        /// The serial number of the connection, because slots are reused.
        serial: u32,
        /// The number of the query.
        number: u32,
        /// The result. `None` if the history failed.
        found: Option<MqttFound>,
    },
    /// The history has replied with a message that a session has left to other members of its shared group.
    MqttRedispatch {
        /// The message's number.
        number: u64,
        /// The position of the message.
        source: sessions::Source,
        /// The message.
        found: Result<history::Piece, history::HistoryError>,
    },
    /// Describe some MQTT clients, in the order of their [keys](sessions::SessionKey).
    MqttClients {
        /// The filter and the page.
        listing: Listing,
        /// Gets the number of descriptions, and the descriptions without subscriptions.
        reply: Reply<(u32, Vec<ConnectionInfo>)>,
    },
    /// Describe the MQTT client that has a session, with its subscriptions.
    MqttClient {
        /// The slot where the client should be.
        slot: u32,
        /// The session's key.
        key: Name,
        /// Gets one description, or none if the client is not there.
        reply: Reply<(u32, Vec<ConnectionInfo>)>,
    },
    /// End an MQTT session and the connection that has it.
    MqttEnd {
        /// The slot where the client should be.
        slot: u32,
        /// The session's key.
        key: Name,
        /// Gets true if the session was there.
        reply: Reply<bool>,
    },
    /// Close the connections of revoked tokens.
    Revoke {
        /// The revoked tokens.
        revocation: Revocation,
        /// Gets the number of closed connections.
        reply: Reply<u32>,
    },
    /// Close random connections, whose clients must use another server.
    Evict {
        /// The number of connections to close.
        connections: u32,
        /// The seed of the random choice.
        seed: u64,
        /// Gets the number of closed connections. It is smaller if no more can be closed.
        reply: Reply<u32>,
    },
    /// Report events of connections to a trace, from now on.
    Trace {
        /// The unique number of the trace.
        number: u64,
        /// The traced connections.
        target: Target,
        /// The sink of the events.
        sink: Arc<dyn TraceSink>,
        /// Gets the number of traced connections that are open now.
        reply: Reply<u32>,
    },
    /// End a trace.
    TraceEnd {
        /// The number of the trace.
        number: u64,
    },
    /// Take new settings.
    Settings(Arc<Settings>),
    /// Stop accepting, close all connections with a goodbye, flush, and end the thread at the deadline at the latest.
    /// Closes are spread over the first half of the time, so that clients don't all reconnect at once.
    Drain {
        /// The time until the deadline, in seconds.
        seconds: u32,
    },
}

/// Why a connection gets a presence snapshot.
#[derive(Debug)]
pub enum PresenceQuery {
    /// The connection has entered the topic.
    Join {
        /// The topic.
        topic: Name,
        /// The ref of a Phoenix client's join. A join with another ref gets a snapshot of its own. Empty for other
        /// protocols.
        join_ref: Box<str>,
    },
    /// A command with this id.
    Id {
        /// The topic.
        topic: Name,
        /// The command's id.
        id: Box<str>,
    },
    /// An HTTP request.
    Http {
        /// The topic.
        topic: Name,
        /// How to write the reply.
        respond: protocol::request::Respond,
    },
}

/// The tokens that a revocation covers: those that match all fields that are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocation {
    /// The tokens of this user.
    pub user: Option<Name>,
    /// The tokens whose id has this hash: see [`auth::TokenMark`].
    pub id_hash: Option<u32>,
    /// The tokens issued at this time or before, in seconds since 1970, or without such a time.
    pub before_s: Option<u32>,
}

impl Revocation {
    /// Returns whether the id and the time of a token match. The caller checks the user.
    pub fn counts_for(&self, mark: TokenMark) -> bool {
        self.id_hash.is_none_or(|hash| hash == mark.id_hash)
            && self.before_s.is_none_or(|before_s| mark.issued_s <= before_s)
    }

    /// Returns whether the author of a will is covered.
    pub fn means(&self, author: &Author) -> bool {
        let mark = author.token.map(|Token { issued_s, id_hash }| TokenMark { issued_s, id_hash });
        match &self.user {
            Some(user) => author.users.contains(user) && self.counts_for(mark.unwrap_or_default()),
            None => mark.is_some_and(|mark| self.counts_for(mark)),
        }
    }
}

/// The connections that a command is about.
pub enum Target {
    /// All connections of a user.
    User(Name),
    /// One connection.
    Connection(ConnectionId),
}

/// A topic and its members on one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its name; `@alice` is the personal topic of `alice`.
    pub topic: Name,
    /// The number of connections that are members.
    pub members: u32,
}

/// One connection, as an operator sees it.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Its name in the API.
    pub id: ConnectionId,
    /// The transport's name.
    pub transport: &'static str,
    /// How long it has been open, in seconds.
    pub age_seconds: u32,
    /// The peer's address from the kernel, or the client's address from a trusted proxy; port 0 if the proxy gives no
    /// port.
    pub address: Option<SocketAddr>,
    /// Its users.
    pub users: Vec<Name>,
    /// Its topics, without users' personal ones.
    pub topics: Vec<Name>,
    /// Bytes that the peer acknowledged, from the kernel.
    pub bytes_sent: u64,
    /// Bytes received from the peer, from the kernel.
    pub bytes_received: u64,
    /// Bytes that wait in its outbox.
    pub outbox_bytes: usize,
    /// For how many milliseconds it has had unsent bytes without a break.
    pub outbox_age_ms: u64,
    /// More about an MQTT client.
    pub mqtt: Option<Box<MqttInfo>>,
}

/// A request to the shard of a long-poll session.
pub enum SessionRequest {
    /// Reply with the messages that have come.
    Poll,
    /// Process these messages of the client.
    Post(Vec<ClientMessage>),
    /// The poll's client is gone: send no messages to this poll.
    Withdraw,
    /// The poll's client was gone before it got these messages: put them in front of the queue again.
    Return(Box<[u8]>),
}

/// What a long-poll session replies.
pub enum SessionReply {
    /// The messages of a POST were accepted.
    Taken,
    /// Messages that have come, as elements of the reply's `messages`. Empty if the poll has timed out.
    Messages(Box<[u8]>),
    /// No such session exists any more.
    Gone,
}

/// What a connection has after a login or a logout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedIn {
    /// Its users.
    pub users: u32,
    /// The user was logged in before, so nothing changed.
    pub already: bool,
}

/// Why a login or a logout failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The connection has ended, never existed, or is a single request that waits for its reply.
    #[error(
        "no connection with this name is open: it has ended, or belongs to another node or \
         another run of the server; /api/users and the greeting of a connection have its name"
    )]
    NoConnection,
    /// The user's own topic would exceed the limit on topics.
    #[error("this connection is at its limit on topics (limits.topics_per_connection_max)")]
    TooManyTopics,
    /// The connection does not have this user.
    #[error("this connection is not logged in as that user")]
    NotLoggedIn,
}

impl LoginError {
    /// Returns its error code.
    pub fn code(self) -> ErrorCode {
        match self {
            LoginError::NoConnection => ErrorCode::NoConnection,
            LoginError::TooManyTopics => ErrorCode::TooManyTopics,
            LoginError::NotLoggedIn => ErrorCode::NotLoggedIn,
        }
    }
}

impl From<LoginError> for CodedError {
    fn from(error: LoginError) -> Self {
        CodedError::new(error.code(), error.to_string())
    }
}
