//! What the control thread may ask of a shard, and what it answers.

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

/// One thing for a shard to do, taken from its mailbox in order.
pub enum Command {
    /// Carry a message to the topic's members.
    Deliver(Delivery),
    /// Send members notices of messages that are lost.
    Gap(Arc<Gap>),
    /// Close connections; answers how many were closed.
    Disconnect {
        /// Which ones.
        target: Target,
        /// The reason that they are told.
        close: CloseReason,
        /// Told how many were closed.
        reply: Reply<u32>,
    },
    /// Put all connections of a user into a topic; answers how many are in it now.
    Subscribe {
        /// Whose connections.
        user: Name,
        /// The topic to enter.
        topic: Name,
        /// Told how many connections of the user are in the topic now.
        reply: Reply<u32>,
    },
    /// Take all connections of a user out of a topic; answers how many left.
    Unsubscribe {
        /// Whose connections.
        user: Name,
        /// The topic to leave.
        topic: Name,
        /// Told how many connections left.
        reply: Reply<u32>,
    },
    /// Make a user one more of a connection's; answers what the connection has then.
    Login {
        /// Which connection.
        connection: ConnectionId,
        /// Who.
        user: Name,
        /// Told what the connection has now.
        reply: Reply<Result<LoggedIn, LoginError>>,
    },
    /// Make a user none of a connection's; answers what the connection has then.
    Logout {
        /// Which connection.
        connection: ConnectionId,
        /// Who.
        user: Name,
        /// Told what the connection has now.
        reply: Reply<Result<LoggedIn, LoginError>>,
    },
    /// List topics that have members, in no order, up to the limit: names are sorted and merged
    /// by whoever asks all shards.
    Topics {
        /// Only names that begin so.
        prefix: String,
        /// Only names after this one in byte order.
        after: Option<String>,
        /// The first so many in byte order.
        limit: usize,
        /// Told each topic with its members on this shard, sorted by name.
        reply: Reply<Vec<TopicInfo>>,
    },
    /// Count one topic's members on this shard.
    Topic {
        /// The topic.
        topic: Name,
        /// Told the number of members.
        reply: Reply<u32>,
    },
    /// Say of many topics whether they have members on this shard.
    HaveMembers {
        /// The topics.
        topics: Arc<[Name]>,
        /// Told one answer for each.
        reply: Reply<Vec<bool>>,
    },
    /// List the topics that have the most members on this shard, users' personal ones left out.
    Biggest {
        /// So many at most.
        limit: usize,
        /// Told the topics, the biggest first, those of one size by name. Which of those with a
        /// single member are among them is left to chance.
        reply: Reply<Vec<TopicInfo>>,
    },
    /// Name the topics whose messages cost this shard most in the last minute.
    Costliest {
        /// Told the topics.
        reply: Reply<Costliest>,
    },
    /// Count the connections for which bytes wait, and describe those for which most do.
    Slowest {
        /// Describe so many at most.
        limit: usize,
        /// Told how many there are, and those for which most waits.
        reply: Reply<(u32, Vec<ConnectionInfo>)>,
    },
    /// Count a topic's members on this shard, and describe some of them.
    Members {
        /// The topic; a user's personal one for the user's connections.
        topic: Name,
        /// Describe so many at most.
        limit: usize,
        /// Told the number of members and some of them.
        reply: Reply<(u32, Vec<ConnectionInfo>)>,
    },
    /// The application's answer to what a connection of this shard sent.
    WebhookResponded {
        /// The connection.
        slot: u32,
        /// Which of those that had the slot.
        serial: u32,
        /// What waits for it.
        hook: PendingHook,
        /// The answer.
        response: WebhookResponse,
    },
    /// A request for a Phoenix long-poll session of this shard.
    Session {
        /// The session.
        session: ConnectionId,
        /// What is asked of it.
        request: SessionRequest,
        /// The request's connection, which waits for [`Command::SessionReply`].
        from: ConnectionId,
    },
    /// The answer to a request of this shard's.
    SessionReply {
        /// The session.
        session: ConnectionId,
        /// The request's connection.
        to: ConnectionId,
        /// The answer.
        reply: SessionReply,
    },
    /// The history knows from where a connection follows topics.
    Started {
        /// The connection.
        slot: u32,
        /// Which of those that had the slot.
        serial: u32,
        /// The number of the query.
        query: u32,
        /// From where; nothing when the history can't say.
        start: Option<history::Start>,
    },
    /// The history has read what a connection missed.
    Pulled {
        /// The connection.
        slot: u32,
        /// Which of those that had the slot.
        serial: u32,
        /// For which of what it follows.
        numbers: Vec<u32>,
        /// What was missed; nothing when it can't be read.
        piece: Option<history::Piece>,
    },
    /// The history has read a page for a client.
    Paged {
        /// The connection.
        slot: u32,
        /// Which of those that had the slot.
        serial: u32,
        /// The number of the query.
        query: u32,
        /// The page.
        page: Result<history::Page, history::HistoryError>,
    },
    /// A user has acknowledged a topic.
    Acknowledged {
        /// Who.
        user: Name,
        /// Which.
        topic: Name,
        /// Up to which offset.
        offset: u64,
    },
    /// What a client published is on disk, or is not.
    Published {
        /// The connection.
        slot: u32,
        /// Which of those that had the slot.
        serial: u32,
        /// How it is to be answered.
        reply: ReplyTarget,
        /// What became of it.
        result: Result<model::Position, broker::PublishError>,
    },
    /// Who is in a topic, where the registry of presence did not answer at once.
    PresenceListed {
        /// The connection.
        slot: u32,
        /// Which of those that had the slot.
        serial: u32,
        /// What it asked.
        query: PresenceQuery,
        /// The answer.
        list: presence::List,
    },
    /// Another MQTT client wants the session that one of this shard has, or waits for.
    MqttTakeOver {
        /// Where it was last.
        slot: u32,
        /// The session's key.
        key: Name,
    },
    /// An MQTT client that has, or waits for, a session here has connected to another node.
    MqttConnectedToNode {
        /// Where it was last.
        slot: u32,
        /// The session's key.
        key: Name,
        /// When it connected there.
        time: LogicalTime,
        /// Its session begins anew there (Clean Start).
        is_clean: bool,
    },
    /// Other nodes are to be told of all MQTT clients again.
    MqttRepeatConnects,
    /// Publish the will of an MQTT client that was away.
    MqttPublishWill(Box<Will>),
    /// The store may have other records of a session than it should.
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
        /// Which of those that had the slot.
        serial: u32,
    },
    /// What an MQTT client's packets have waited for is stored, or can't be.
    MqttStored {
        /// The connection.
        slot: u32,
        /// Which of those that had the slot.
        serial: u32,
        /// What is sent now.
        packets: Vec<u8>,
        /// It is on disk.
        stored: bool,
        /// It is how far the client's session is.
        is_progress: bool,
    },
    /// The history has answered what was asked for an MQTT client's session.
    MqttRead {
        /// The connection.
        slot: u32,
        /// Which of those that had the slot.
        serial: u32,
        /// The number of the query.
        number: u32,
        /// What was found; nothing when it can't be read.
        found: Option<MqttFound>,
    },
    /// The history has answered where a message is that a session has left to other members of a group.
    MqttRedispatch {
        /// The message's number.
        number: u64,
        /// Where it was.
        source: sessions::Source,
        /// What is there.
        found: Result<history::Piece, history::HistoryError>,
    },
    /// Describe some MQTT clients, in the order of their [keys](sessions::SessionKey).
    MqttClients {
        /// Which ones.
        listing: Listing,
        /// Told how many are described, and the descriptions, without their subscriptions.
        reply: Reply<(u32, Vec<ConnectionInfo>)>,
    },
    /// Describe the MQTT client that has a session, with its subscriptions.
    MqttClient {
        /// Where it should be.
        slot: u32,
        /// The session's key.
        key: Name,
        /// Told one description, or none where it is not there.
        reply: Reply<(u32, Vec<ConnectionInfo>)>,
    },
    /// End an MQTT session together with the connection that has it.
    MqttEnd {
        /// Where it should be.
        slot: u32,
        /// The session's key.
        key: Name,
        /// Told whether it was there.
        reply: Reply<bool>,
    },
    /// Close the connections of tokens that count no longer.
    Revoke {
        /// Which tokens.
        revocation: Revocation,
        /// Told how many connections were closed.
        reply: Reply<u32>,
    },
    /// Close connections chosen at random, whose clients are to use another server; answers how many were closed.
    Evict {
        /// So many at most.
        connections: u32,
        /// Which ones follows from it.
        seed: u64,
        /// Told how many were closed: fewer where no more can be.
        reply: Reply<u32>,
    },
    /// Report what happens to connections, from now on; answers how many of them are open.
    Trace {
        /// The trace's number, which no other one has.
        number: u64,
        /// Whose connections, or which one.
        target: Target,
        /// Where the events go.
        sink: Arc<dyn TraceSink>,
        /// Told how many connections there are now.
        reply: Reply<u32>,
    },
    /// Report to this trace no longer.
    TraceEnd {
        /// Its number.
        number: u64,
    },
    /// Take new settings.
    Settings(Arc<Settings>),
    /// Stop accepting, say goodbye to everyone, flush, and end the thread at the deadline at the
    /// latest. Connections close over the first half of the time, so that they don't all come
    /// back at once.
    Drain {
        /// How long it may take, in seconds.
        seconds: u32,
    },
}

/// Why a connection asks who is in a topic.
#[derive(Debug)]
pub enum PresenceQuery {
    /// It has entered the topic.
    Join {
        /// The topic.
        topic: Name,
        /// The ref of a Phoenix client's join: with another one it is another join, which gets a list
        /// of its own. Others have none, and it is empty.
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
        /// How to answer.
        respond: protocol::request::Respond,
    },
}

/// Tokens that count no longer: those of which all that is said here is true.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocation {
    /// They are of this user.
    pub user: Option<Name>,
    /// They have a name with this hash: see [`auth::TokenMark`].
    pub id_hash: Option<u32>,
    /// They were issued then or before, in seconds since 1970, or don't say when.
    pub before_s: Option<u32>,
}

impl Revocation {
    /// Whether it means a token with this mark, of a user of its own.
    pub fn counts_for(&self, mark: TokenMark) -> bool {
        self.id_hash.is_none_or(|hash| hash == mark.id_hash)
            && self.before_s.is_none_or(|before_s| mark.issued_s <= before_s)
    }

    /// Whether it means those who have left a will.
    pub fn means(&self, author: &Author) -> bool {
        let mark = author.token.map(|Token { issued_s, id_hash }| TokenMark { issued_s, id_hash });
        match &self.user {
            Some(user) => author.users.contains(user) && self.counts_for(mark.unwrap_or_default()),
            None => mark.is_some_and(|mark| self.counts_for(mark)),
        }
    }
}

/// Which connections to close.
pub enum Target {
    /// All of a user's.
    User(Name),
    /// This one.
    Connection(ConnectionId),
}

/// A topic and its members on one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its name; `@alice` is the personal topic of `alice`.
    pub topic: Name,
    /// How many connections are in it.
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
    /// The peer's address, as the kernel knows it, or as a trusted proxy says; port 0 where that says
    /// none.
    pub address: Option<SocketAddr>,
    /// Users it carries.
    pub users: Vec<Name>,
    /// Topics it is in, users' personal topics left out.
    pub topics: Vec<Name>,
    /// Bytes that the peer acknowledged, from the kernel.
    pub bytes_sent: u64,
    /// Bytes received from the peer, from the kernel.
    pub bytes_received: u64,
    /// Bytes that wait in its outbox.
    pub outbox_bytes: usize,
    /// For how long something has waited there without a break, in milliseconds.
    pub outbox_age_ms: u64,
    /// What else is known of an MQTT client.
    pub mqtt: Option<Box<MqttInfo>>,
}

/// What a session's shard is asked.
pub enum SessionRequest {
    /// What has come.
    Poll,
    /// Take these messages.
    Post(Vec<ClientMessage>),
    /// The poll's client is gone: nothing is to be given to it.
    Withdraw,
    /// These messages could not be given to the poll, whose client is gone: they come first again.
    Return(Box<[u8]>),
}

/// What a long-poll session replies.
pub enum SessionReply {
    /// The messages of a POST were taken.
    Taken,
    /// What has come, as elements of the answer's `messages`; nothing when the wait is over.
    Messages(Box<[u8]>),
    /// There is no such session any more.
    Gone,
}

/// What a connection has after a login or a logout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedIn {
    /// Its users.
    pub users: u32,
    /// Nothing had to be done: the user was logged in before.
    pub already: bool,
}

/// Why nobody was logged in or out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The connection has ended, or never was, or is a request that somebody waits for.
    #[error(
        "no connection with this name is open: it has ended, or belongs to another node or \
         another run of the server; /api/users and the greeting of a connection have its name"
    )]
    NoConnection,
    /// The user's own topic would be one too many.
    #[error("this connection is at its limit on topics (limits.topics_per_connection_max)")]
    TooManyTopics,
    /// The user is none of the connection's.
    #[error("this connection is not logged in as that user")]
    NotLoggedIn,
}

impl LoginError {
    /// Its name for programs.
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
