//! What the rest of Throng knows of the sessions.

use model::{ConnectionId, Name};

use crate::flow::Source;
use crate::interests::Interests;
use crate::place::Listing;
use crate::session::{Author, Session, Subscription, Will};

/// Who has which session. Sessions are known by a key: the client's identifier and, where users are
/// proved, whose it is, so that nobody takes up the session of somebody else.
///
/// No call blocks. A session has one connection at most. While it has one, that connection's shard
/// holds the session; else it is here, where it outlives its connection.
pub trait Sessions: Send + Sync {
    /// A connection wants a session. With [`Claimed::Wait`] it is notified when it may [`Sessions::take`] it.
    fn claim(&self, claim: Claim<'_>) -> Claimed;

    /// The session that a connection has waited for.
    fn take(&self, claim: Claim<'_>) -> Taken;

    /// A connection lets go of a session, or of waiting for one: it has ended, or was notified to. Another one
    /// may have to be notified that it can go on.
    fn release(&self, key: &str, from: ConnectionId, ended: Ended, now: Now) -> Released;

    /// A connection has come from another process, where it had this session: it has it here.
    fn restore(&self, key: &str, by: ConnectionId);

    /// A connection that was [restored](Sessions::restore) is not here after all. Whoever has the session since
    /// keeps it.
    fn unrestore(&self, key: &str, by: ConnectionId);

    /// A connection has ended, and lets go of its session later, as somebody else: who comes meanwhile may have
    /// its place.
    fn linger(&self, key: &str, from: ConnectionId, by: ConnectionId);

    /// Whether a connection has still to let go of a session, or of waiting for it; its serial counts for
    /// nothing.
    fn awaits_release(&self, key: &str, id: ConnectionId) -> bool;

    /// A connected session has begun, or its subscriptions have changed: what it needs is retained from now
    /// on. One that ends with its connection needs nothing new, and is over after a crash. `done` is called when it
    /// is stored, at once where nothing is.
    fn keep(&self, key: &str, session: &Session, will: Option<&Will>, done: Option<Done>);

    /// Stores how far a connected session is. False where the store doesn't take it.
    fn save(&self, key: &str, session: &Session, done: Option<Done>) -> bool;

    /// Draws the epoch of a session that begins.
    fn new_epoch(&self) -> u64;

    /// Connected sessions of which the store may have other records than it should, with their connections, whose serials
    /// are 0: none while the store has no room. Each connection [stores its session again](Sessions::store_connected).
    fn unstored_connected(&self) -> Vec<(Name, ConnectionId)>;

    /// Stores both records of a connected session, because the store may have others.
    fn store_connected(&self, key: &str, session: &Session, will: Option<&Will>);

    /// Whether the store has capacity for what nobody waits for.
    fn has_capacity(&self) -> bool;

    /// Calls `done` when all that was given to the store before is on disk, retained messages too; at once where
    /// nothing is stored.
    fn settle(&self, done: Done);

    /// Whether sessions outlive the process.
    fn is_stored(&self) -> bool;

    /// What is retained for sessions.
    fn interests(&self) -> &Interests;

    /// Ends sessions whose time is over, and gives the wills that are due: never early, so up to a second late
    /// and more by as much as this is called late. Has the store take what it did not take before. To be called
    /// about once a second.
    fn sweep(&self, now: Now) -> Vec<Will>;

    /// A session leaves messages to other members of its groups, in order. The caller has stored the session of this key
    /// without them before; without a key they are in no stored session.
    fn redispatch(&self, key: Option<&str>, messages: Vec<Source>);

    /// The next message that a session has left, also one that has ended here ([`Session::redispatched`]), once the
    /// store has forgotten that the session has it, which [`Sessions::sweep`] asks; with a number. Nothing while the
    /// history reads one. Of a group whose members can't take a message, one is given between two sweeps.
    fn poll_redispatch(&self) -> Option<(u64, Source)>;

    /// Says what became of the message of this number, which was [polled](Sessions::poll_redispatch). False where that is
    /// known, or its time is over: then it is for no member.
    fn on_redispatched(&self, number: u64, outcome: RedispatchOutcome) -> bool;

    /// How many messages that sessions have left were dropped since the last call.
    fn take_redispatch_dropped(&self) -> u64;

    /// Ends the session of a client that is away; gives its will. Nothing where there is none.
    fn end(&self, key: &str) -> Option<Option<Will>>;

    /// Drops the wills of clients that are away which these have left. It looks at all of them.
    fn drop_wills(&self, is_shut_out: &dyn Fn(&Author) -> bool);

    /// Takes other limits. They count for what comes.
    fn set_limits(&self, limits: Limits);

    /// For how many seconds a session outlives its connection that wants so many.
    fn seconds(&self, wanted: u32) -> u32;

    /// The first sessions of clients that are away, in the order of their [places](crate::Place). It looks at
    /// all of them.
    fn away(&self, listing: &Listing) -> Vec<SessionInfo>;

    /// Where the session of this key is; nothing where there is none.
    fn find(&self, key: &str) -> Option<Found>;

    /// Figures.
    fn stats(&self) -> Stats;
}

/// What the clocks say, in seconds since 1970.
///
/// While the time of day is doubted, because it has jumped forwards, ages are counted by an earlier time. Who leaves then
/// does so at both, as nobody knows which of them is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The time of day.
    pub unix_s: u64,
    /// The time by which ages are counted before something is deleted.
    pub age_s: u64,
}

/// How far the two times may be apart without a doubt, in seconds.
const APART_MAX_S: u64 = 30;

impl Now {
    /// A moment at which the time of day is not doubted.
    pub fn at(unix_s: u64) -> Self {
        Now { unix_s, age_s: unix_s }
    }

    /// How far ages are counted behind the time of day, in seconds; 0 where that is not doubted.
    pub fn doubted_s(self) -> u64 {
        let behind_s = self.unix_s.saturating_sub(self.age_s);
        if behind_s > APART_MAX_S { behind_s } else { 0 }
    }
}

/// Keeps sessions beyond the process.
pub trait Storage: Send + Sync {
    /// Writes a record, or without a value removes it, in the order of the calls. `done` is called once,
    /// from any thread: with true when it is on disk. False where it is not taken.
    fn put(&self, part: Part, key: &str, value: Option<Vec<u8>>, done: Option<Done>) -> bool;

    /// Whether there is capacity for what nobody waits for: a part of it is left to others.
    fn has_capacity(&self) -> bool;

    /// Calls `done` once, from any thread, when all is on disk that any part of the server gave the store before.
    fn settle(&self, done: Done);
}

/// Learns whether something is stored. It must not block.
pub type Done = Box<dyn FnOnce(bool) + Send>;

/// What became of a message that a session has left to other members of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedispatchOutcome {
    /// The history can't read it now: it is the next one again.
    Unread,
    /// The history has it no longer.
    Gone,
    /// It was read, and is on its way to a member.
    Passed,
    /// A member has it.
    Taken,
    /// No member can take it now: it waits, up to five minutes in all.
    Untaken,
}

/// The two records of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What changes seldom.
    Session,
    /// What changes with each message.
    Progress,
}

impl Part {
    /// Both.
    pub const ALL: [Part; 2] = [Part::Session, Part::Progress];

    /// The part of the server whose records these are in a store.
    pub fn name(self) -> &'static str {
        match self {
            Part::Session => "mqtt_session",
            Part::Progress => "mqtt_progress",
        }
    }
}

/// A connection wants a session.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Which one.
    pub key: &'a str,
    /// Who wants it.
    pub by: ConnectionId,
    /// It wants a new one in place of what may be there.
    pub clean: bool,
}

/// What a claim came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Claimed {
    /// A new session. The will of the one before is due with that.
    New {
        /// What is to be published.
        will: Option<Will>,
    },
    /// The session is taken up again.
    Resumed {
        /// It.
        session: Box<Session>,
        /// What is to be published: the connection before ended with the process, and its will was due at once.
        will: Option<Will>,
    },
    /// Another connection has it still. This one is notified that it has to let go, if it was not notified
    /// before; its serial may be 0, which stands for any.
    Wait(Option<ConnectionId>),
}

/// What a connection gets that has waited for a session.
#[derive(Debug)]
pub enum Taken {
    /// Nothing: yet another connection wants it since, and this one is told to let go.
    Elsewhere,
    /// A new session. The will of the one before is due with that.
    New {
        /// What is to be published.
        will: Option<Will>,
    },
    /// The session is taken up again.
    Resumed(Box<Session>),
}

/// What a connection leaves.
#[derive(Debug, Default)]
pub struct Ended {
    /// Its session, also one that ends with it; nothing where it had none.
    pub session: Option<Session>,
    /// What is published because it ended.
    pub will: Option<Will>,
}

/// What is to be done when a session was let go.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Released {
    /// This connection is notified that it may take the session.
    pub notify: Option<ConnectionId>,
    /// The will, where it is due now.
    pub publish: Option<Will>,
}

/// Bounds of what is kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sessions of clients that are away.
    pub sessions_max: usize,
    /// Those of one owner; 0 is no limit.
    pub sessions_per_owner_max: usize,
    /// What those of clients that are away may take, in bytes, with their wills.
    pub bytes_max: usize,
    /// For how long, in seconds; [`crate::WITHOUT_END`] is without end.
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
    /// When it ends; nothing where it has no end.
    pub over_s: Option<u64>,
    /// For how many seconds it outlives a connection; [`crate::WITHOUT_END`].
    pub seconds: u32,
    /// How many subscriptions it has.
    pub subscriptions: usize,
    /// Messages that were sent and not confirmed.
    pub in_flight: usize,
    /// Everything up to this offset has had its turn.
    pub position: u64,
    /// But for so many messages, which wait.
    pub waiting: usize,
}

/// Where a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A connection has it, or waits for it; its serial is not known. It may have another key, which its shard
    /// knows.
    Connected(ConnectionId),
    /// Its client is away. It has these subscriptions.
    Away(SessionInfo, Vec<Subscription>),
}

/// Figures of the sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sessions of clients that are away.
    pub away: usize,
    /// What these take, in bytes, roughly.
    pub away_bytes: usize,
    /// Those and the ones of connected clients that will outlive their connections.
    pub persistent: usize,
    /// Different filters for which messages are retained.
    pub interests: usize,
    /// Sessions whose time was over.
    pub expired: u64,
    /// Sessions that were not kept: there were as many as may be.
    pub refused: u64,
    /// Sessions that another connection took over.
    pub taken_over: u64,
}
