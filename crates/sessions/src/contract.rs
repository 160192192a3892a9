//! The interface of the sessions for the rest of Throng.

use model::{ConnectionId, LogicalTime, Name};

use crate::flow::Source;
use crate::interests::Interests;
use crate::session::{Author, Session, Subscription, Will};
use crate::session_key::Listing;

/// The sessions of all clients, and their connections. A session's [key](crate::SessionKey) has the client identifier
/// and, if users are authenticated, the user, so that no user resumes the session of another.
///
/// No call blocks. A session has at most one connection. While it has one, that connection's shard has the session;
/// otherwise it is stored here until a client resumes it or it expires.
pub trait Sessions: Send + Sync {
    /// Claims a session for a connection. After [`ClaimOutcome::Wait`] the connection is notified when it may
    /// [`take`](Sessions::take) the session.
    fn claim(&self, claim: Claim<'_>) -> ClaimOutcome;

    /// Takes a session for a connection that has waited for it.
    fn take(&self, claim: Claim<'_>) -> WaitOutcome;

    /// Releases a session, or gives up waiting for one: the connection has ended, or was notified that another one
    /// wants the session. The caller does what [`Released`] says.
    fn release(&self, key: &str, from: ConnectionId, ended: Ended, now: Now) -> Released;

    /// Records that a connection, handed over by another process, has this session.
    fn restore(&self, key: &str, by: ConnectionId);

    /// Reverts a [restore](Sessions::restore): the connection was not handed over after all. A connection that has
    /// claimed the session since retains it.
    fn unrestore(&self, key: &str, by: ConnectionId);

    /// Records that a connection has ended whose session is released later under the id `by`, because another
    /// connection may have its slot by then.
    fn linger(&self, key: &str, from: ConnectionId, by: ConnectionId);

    /// Returns true if a connection has a session, or waits for it, and has not released it. Ignores the serial of
    /// `id`.
    fn awaits_release(&self, key: &str, id: ConnectionId) -> bool;

    /// Stores a connected session that has begun, or whose subscriptions have changed. From now on its messages are
    /// retained. A session that ends with its connection is not stored. Calls `done` when the session is on disk, or
    /// at once if there is no store.
    fn keep(&self, key: &str, session: &Session, will: Option<&Will>, done: Option<Done>);

    /// Stores the progress of a connected session. Returns false if the store rejects it.
    fn save(&self, key: &str, session: &Session, done: Option<Done>) -> bool;

    /// Returns a random epoch for a new session.
    fn new_epoch(&self) -> u64;

    /// Returns connected sessions whose records in the store may be out of date, with their connections, whose
    /// serials are 0. Each of these connections [stores its session again](Sessions::store_connected). Empty while
    /// the store has no capacity.
    fn unstored_connected(&self) -> Vec<(Name, ConnectionId)>;

    /// Stores both records of a connected session again, because those in the store may be out of date.
    fn store_connected(&self, key: &str, session: &Session, will: Option<&Will>);

    /// Returns true if the store has capacity for records that no client waits for.
    fn has_capacity(&self) -> bool;

    /// Calls `done` when everything that was given to the store before is on disk, retained messages too. Calls it at
    /// once if there is no store.
    fn settle(&self, done: Done);

    /// Returns true if sessions outlive the process.
    fn is_stored(&self) -> bool;

    /// Returns the topics and filters whose messages are retained for sessions.
    fn interests(&self) -> &Interests;

    /// Ends expired sessions and returns the wills that are due. A session never ends early; it ends up to a second
    /// late. Gives the store the records that it has rejected before. Called about once a second.
    fn sweep(&self, now: Now) -> Vec<Will>;

    /// Takes messages, in order, that a session leaves to other members of its groups. Before that, the caller has
    /// stored the session without them. `key` is `None` for messages of a session that is not stored.
    fn redispatch(&self, key: Option<&str>, messages: Vec<Source>);

    /// Returns the next message that a session has left to its group, with a number. A message comes only after the
    /// store has deleted it from its session, which [`Sessions::sweep`] verifies. Returns `None` while the history
    /// reads one, and gives a group whose members can't take a message one between two sweeps.
    fn poll_redispatch(&self) -> Option<(u64, Source)>;

    /// Takes the outcome of a message that was [polled](Sessions::poll_redispatch). Returns false if it has an outcome
    /// already or has expired: then no member may get it.
    fn on_redispatched(&self, number: u64, outcome: RedispatchOutcome) -> bool;

    /// Returns how many messages that sessions have left were dropped since the last call.
    fn take_redispatch_dropped(&self) -> u64;

    /// Handles the connect of a client to another node of the cluster. Its session here, if the client is away, ends
    /// if the connect `is_clean` and later than its newest one here; otherwise it stays, but without a will that is
    /// not due yet.
    fn on_connected_to_node(&self, key: &str, time: LogicalTime, is_clean: bool) -> NodeConnect;

    /// Ends the session of a client that is away and returns its will. Returns `None` if there is no such session.
    fn end(&self, key: &str) -> Option<Option<Will>>;

    /// Drops the wills of clients that are away if their author is revoked. Scans all of them.
    fn drop_wills(&self, is_shut_out: &dyn Fn(&Author) -> bool);

    /// Replaces the limits. Sessions that are stored already stay.
    fn set_limits(&self, limits: Limits);

    /// Returns the seconds that a session outlives its connection if the client requests this many.
    fn seconds(&self, requested: u32) -> u32;

    /// Returns a page of the sessions of clients that are away, in the order of their [keys](crate::SessionKey).
    /// Scans all of them.
    fn away(&self, listing: &Listing) -> Vec<SessionInfo>;

    /// Returns whether a session is connected or away; `None` if it does not exist.
    fn find(&self, key: &str) -> Option<Found>;

    /// Returns counts for metrics.
    fn stats(&self) -> Stats;
}

/// The time, in seconds since 1970.
///
/// After the time of day has jumped forwards, it is doubted: ages are counted by an earlier time, so that a wrong
/// clock deletes nothing. A session whose client leaves then stores both times, because either may be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The time of day.
    pub unix_s: u64,
    /// The time by which ages are counted before something is deleted.
    pub age_s: u64,
}

/// The largest difference of the two times without a doubt, in seconds.
const APART_MAX_S: u64 = 30;

impl Now {
    /// Makes a moment at which the time of day is not doubted.
    pub fn at(unix_s: u64) -> Self {
        Now { unix_s, age_s: unix_s }
    }

    /// Returns how far the time of ages is behind the time of day, in seconds; 0 if the time of day is not doubted.
    pub fn doubted_s(self) -> u64 {
        let behind_s = self.unix_s.saturating_sub(self.age_s);
        if behind_s > APART_MAX_S { behind_s } else { 0 }
    }
}

/// Stores sessions on disk.
pub trait Storage: Send + Sync {
    /// Writes a record, or removes it if there is no value, in the order of the calls. Calls `done` once, from any
    /// thread, with true when the record is on disk. Returns false if the record is rejected.
    fn put(&self, part: Part, key: &str, value: Option<Vec<u8>>, done: Option<Done>) -> bool;

    /// Returns true if there is capacity for records that no client waits for: they may not take the last of it.
    fn has_capacity(&self) -> bool;

    /// Calls `done` once, from any thread, when everything that any part of the server gave the store before is on
    /// disk.
    fn settle(&self, done: Done);
}

/// Takes true when a record is stored, and false when it is not. It must not block.
pub type Done = Box<dyn FnOnce(bool) + Send>;

/// The outcome of a message that a session has left to other members of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedispatchOutcome {
    /// The history can't read it now: it is polled again.
    Unread,
    /// The history has it no longer.
    Gone,
    /// It was read and is being passed to a member.
    Passed,
    /// A member has it.
    Taken,
    /// No member can take it now: it waits, up to five minutes in all.
    Untaken,
}

/// The two records of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Subscriptions and options, which change seldom.
    Session,
    /// The position and the messages in flight, which change with each message.
    Progress,
}

impl Part {
    /// Both records.
    pub const ALL: [Part; 2] = [Part::Session, Part::Progress];

    /// Returns the name of the records in a store.
    pub fn name(self) -> &'static str {
        match self {
            Part::Session => "mqtt_session",
            Part::Progress => "mqtt_progress",
        }
    }
}

/// A connection's request for a session.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The key of the session.
    pub key: &'a str,
    /// The connection.
    pub by: ConnectionId,
    /// True if the session begins anew, and its stored records are deleted (Clean Start).
    pub clean: bool,
}

/// The outcome of a claim.
#[derive(Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// A new session.
    New {
        /// The will of the session that it replaces, to be published now.
        will: Option<Will>,
    },
    /// The stored session.
    Resumed {
        /// The session as its last connection left it.
        session: Box<Session>,
        /// The will of a connection that ended with the process, to be published now.
        will: Option<Will>,
    },
    /// Another connection still has the session. The caller notifies that connection, unless it is `None`, that it
    /// must release the session. A serial of 0 stands for any.
    Wait(Option<ConnectionId>),
}

/// What the caller must do about a client that has connected to another node.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum NodeConnect {
    /// A connection here has the session, or waits for it: its shard decides. The serial is unknown, and the
    /// connection may have another key by now.
    Connected(ConnectionId),
    /// The client is away, or unknown. The will to publish, if its session has ended.
    Away(Option<Will>),
}

/// The outcome for a connection that has waited for a session.
#[derive(Debug)]
pub enum WaitOutcome {
    /// No session: another connection has claimed it since, and this one must close.
    Elsewhere,
    /// A new session.
    New {
        /// The will of the session that it replaces, to be published now.
        will: Option<Will>,
    },
    /// The stored session.
    Resumed(Box<Session>),
}

/// The remains of a connection that has ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// Its session, also one that ends with the connection. `None` if it had none.
    pub session: Option<Session>,
    /// Its will, unless the client has disconnected normally.
    pub will: Option<Will>,
}

/// What the caller must do after a session was released.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Released {
    /// The connection to notify that it may take the session.
    pub notify: Option<ConnectionId>,
    /// The will to publish, if it is due now.
    pub publish: Option<Will>,
}

/// The limits on stored sessions.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The limit on sessions of clients that are away.
    pub sessions_max: usize,
    /// The limit on sessions of one owner; 0 is no limit.
    pub sessions_per_owner_max: usize,
    /// The limit on the memory of sessions of clients that are away, with their wills, in bytes.
    pub bytes_max: usize,
    /// The limit on the time that a session outlives its connection, in seconds; [`crate::WITHOUT_END`] is no limit.
    pub seconds_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            sessions_max: 1_000_000,
            sessions_per_owner_max: 1_000,
            bytes_max: 1 << 30,
            seconds_max: 86_400,
        }
    }
}

/// A session of a client that is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its key.
    pub key: Name,
    /// When its connection ended, in seconds since 1970.
    pub since_s: u64,
    /// When it expires, in seconds since 1970. `None` if it never does.
    pub expires_s: Option<u64>,
    /// Seconds that it outlives a connection; [`crate::WITHOUT_END`] if it never expires.
    pub seconds: u32,
    /// The number of its subscriptions.
    pub subscriptions: usize,
    /// Messages that were sent and not acknowledged.
    pub in_flight: usize,
    /// All messages up to this offset were sent, or wait to be sent.
    pub position: u64,
    /// Messages that wait to be sent.
    pub waiting: usize,
}

/// The state in which a session was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A connection has it, or waits for it. The serial is unknown, and the connection may have another key by now,
    /// which its shard knows.
    Connected(ConnectionId),
    /// Its client is away; with its subscriptions.
    Away(SessionInfo, Vec<Subscription>),
}

/// Counts of sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sessions of clients that are away.
    pub away: usize,
    /// The memory of these, in bytes, estimated.
    pub away_bytes: usize,
    /// Away sessions, and sessions of connected clients that will outlive their connections.
    pub persistent: usize,
    /// Different filters for which messages are retained.
    pub interests: usize,
    /// Sessions that expired.
    pub expired: u64,
    /// Sessions that were not stored because of a limit.
    pub refused: u64,
    /// Sessions that another connection took over.
    pub taken_over: u64,
}
