//! Presence: which users are in a topic, as the `Presence` object of the Phoenix client reads it.
//!
//! A topic has one entry per user, with one meta per connection of that user. Members learn of
//! changes by notices, at most one per topic and interval: `presence_diff` while the topic's users
//! are listed, and above a cap on users or on the bytes of their list `presence_count` alone. A
//! change that is larger than a list may be goes out as several texts, one right after another.
//!
//! [`Presence`] is what the rest of the server calls. [`Local`] implements it for one process.
//!
//! # Several nodes
//! Every [`Ref`] names the node that drew it, so refs of two nodes never collide, and one registry has the entries of
//! all nodes. Each node owns its own ones. [`Local::with_nodes`] makes it record their changes
//! ([`Local::take_changes`]) and return all of them in pages ([`Local::read_page`]); other nodes apply both
//! ([`Updates`], [`Local::advance`]). An entry that another node may have never changes, and a node uses each number
//! once. So a node's entries are a set of numbers that only come and go: to apply a change twice, or one that a page
//! already contains, does no harm. [`Updates::push_expire`] removes the entries of a node that died.
//!
//! # The list of a member
//! [`Presence::list`] returns the *announced* state, never a change that still waits for its notice. So a client that
//! gets a list and then every later notice is exact, even when a meta came and went in between. A notice older than
//! the list does no harm when it arrives after it, as long as the later ones arrive too. The list that a member
//! requests for itself also has its own meta, since Phoenix shows members themselves at once.
//!
//! # How notices are published
//! [`Presence::take`] composes the notices that are due, the caller publishes them, and [`Presence::confirm`] gets
//! the outcome. Announced means taken: a list that is read meanwhile already has what the notice says, so it does not
//! matter whether its reader gets the notice too. A notice that could not be published is published first the next
//! time, and no other is composed before. So at most one notice and the difference between the announced list and the
//! present one wait, however long notices cannot be published.
//!
//! # When a notice is due
//! The first change after a quiet time waits for `Limits::interval_us`, so that changes which
//! come together go out together. After a notice, or an attempt at one, the next waits until the
//! topic's interval, which grows with its connections, is over.
//!
//! Nothing here knows a clock, a thread, a socket or randomness. Times are microseconds of any
//! clock that does not go back.

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod handover;
mod local;
mod meta;
mod node;
mod nodes;
mod notice;
mod registry;
mod sharing;
mod topic;
mod updates;

pub use local::Local;
pub use meta::Snapshot;
pub use model::NodeId;
pub use node::Ref;
pub use notice::{Batch, Emit, Notice};
pub use sharing::{Change, Changes, Page, SharedEntry};
pub use updates::Updates;

/// The event of a topic's whole list, which replaces the members' list.
pub const STATE: &str = "presence_state";
/// The event of a change in a topic's list.
pub const DIFF: &str = "presence_diff";
/// The event of the counts of a topic whose users are not listed.
pub const COUNT: &str = "presence_count";

/// The registry of all topics with presence. No call blocks.
///
/// An implementation replies at once if it needs no other node, and otherwise with `PresenceReply::Later`.
/// [`Local`] always replies at once.
pub trait Presence: Send + Sync {
    /// Adds a connection of a user to a topic. `meta` is the text of a JSON object, which the
    /// caller has checked; any other text counts as `{}`. The registry drops its `phx_ref` and
    /// `phx_ref_prev`. The connection leaves by the ref that this returns.
    fn enter(&self, topic: &str, user: &str, meta: &str, now_us: u64) -> Ref;

    /// Replaces the meta of a connection; `meta` is as for [`Presence::enter`]. Returns the ref
    /// that names the connection from now on: a new one, or the same when no notice has announced
    /// it yet. `None` when there is no such connection.
    fn update(&self, topic: &str, user: &str, of: Ref, meta: &str, now_us: u64) -> Option<Ref>;

    /// Removes a connection of a user. Does nothing when there is no such connection.
    fn leave(&self, topic: &str, user: &str, of: Ref, now_us: u64);

    /// Returns a topic's list. With `own`, the user and the ref of the requesting connection, its meta is in the list
    /// even when no notice has announced it. Such a list is for that connection only: if it left before it was
    /// announced, no notice would remove it from other lists.
    fn list(
        &self,
        topic: &str,
        own: Option<(&str, Ref)>,
        later: Completion<List>,
    ) -> PresenceReply<List>;

    /// Composes the notices that are due, for at most `topics_max` topics; empty when none is. The caller publishes
    /// each [`Batch`], passes all of them to [`Presence::confirm`] and takes again, since one call stops early when
    /// it has composed a lot.
    fn take(&self, now_us: u64, topics_max: usize) -> Vec<Batch>;

    /// Takes the outcome of notices. Unpublished ones go first after the topic's interval.
    fn confirm(&self, batches: Vec<Batch>, now_us: u64);

    /// Removes all entries of a node that died, in every topic. Members get notices, as if those connections had
    /// left.
    fn expire(&self, node: NodeId, now_us: u64);

    /// Returns the state of a connection, for another process; `None` if the connection does not exist.
    fn passed(&self, _topic: &str, _user: &str, _of: Ref) -> Option<PassedEntry> {
        None
    }

    /// Adds a connection from another process. Members know it, so no notice follows. A connection that is here stays
    /// as it is.
    fn restore(&self, _topic: &str, _user: &str, _of: Ref, _passed: &PassedEntry) {}

    /// Removes a connection that was [restored](Presence::restore) in vain. No notice follows.
    fn unrestore(&self, _topic: &str, _user: &str, _of: Ref) {}

    /// Makes all waiting notices due now.
    fn hasten(&self, _now_us: u64) {}

    /// True when all notices have been sent: members know the present state.
    fn is_settled(&self) -> bool {
        true
    }

    /// Replaces the limits. Topics that cross a cap by it get a notice.
    fn set_limits(&self, limits: Limits, now_us: u64);

    /// Returns the connections of users in topics, as in [`Stats::connections`]. It never waits for a lock, so a
    /// limit may be compared with it at each join; concurrent changes may be missing.
    fn connections(&self) -> usize;

    /// Returns figures of this node, for its metrics. Cheap.
    fn stats(&self) -> Stats;
}

/// The entry of a connection in a topic, as it passes to another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedEntry {
    /// Its meta: the text of a JSON object.
    pub meta: Box<str>,
    /// The ref that it has replaced, if any.
    pub prev: Option<Ref>,
}

/// Takes a reply that was not available at once. The implementation calls it at most once, on any thread, so it must
/// not block; it drops it uncalled when no reply will come.
pub type Completion<T> = Box<dyn FnOnce(T) + Send>;

/// A reply that may have to come from another node.
#[must_use]
pub enum PresenceReply<T> {
    /// This is the reply. The completion is dropped uncalled.
    Now(T),
    /// The completion gets the reply.
    Later,
}

/// The users and counts of a topic at one moment.
pub struct List {
    /// The counts of the topic.
    pub counts: Counts,
    /// The users, as of the last notice; `None` while members get counts only.
    pub users: Option<Snapshot>,
}

/// The counts of a topic. Always exact, unlike the list, which is as of the last notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Users with at least one connection in the topic.
    pub users: usize,
    /// Connections of all these users.
    pub connections: usize,
    /// False while members get counts only.
    pub listed: bool,
}

/// Bounds on what presence sends.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A topic with more users than this has counts only, and no list. The list comes back at three quarters of it.
    /// With 0, no topic lists its users.
    pub users_max: usize,
    /// A topic whose list has more bytes than this has counts only, and no list. The list comes back at three
    /// quarters of `users_max` and of this. A `presence_diff` is not much larger either. With 0, no topic lists its
    /// users.
    pub list_bytes_max: usize,
    /// The least time between two notices of a topic, in microseconds.
    pub interval_us: u64,
    /// The interval of a topic grows by a millisecond for so many connections in it; with 0 it does not grow.
    pub members_per_ms: u64,
}

impl Limits {
    /// True when a topic may list its users.
    fn list(&self) -> bool {
        self.users_max > 0 && self.list_bytes_max > 0
    }

    /// Returns the least time between two notices of a topic with so many connections.
    fn interval_us(&self, connections: usize) -> u64 {
        let grown_ms = (connections as u64).checked_div(self.members_per_ms).unwrap_or(0);
        self.interval_us.saturating_add(grown_ms.saturating_mul(1000))
    }
}

/// Figures for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Topics with members, or with an unpublished notice.
    pub topics: usize,
    /// Connections of users in topics, of this node: one in two topics, or of two users, counts twice.
    pub connections: usize,
    /// Those of other nodes.
    pub other_nodes: usize,
    /// Memory of the entries of other nodes, in bytes, roughly.
    pub other_nodes_bytes: usize,
    /// Texts published so far.
    pub notices: u64,
    /// How often a topic's notices could not be published and had to wait.
    pub notices_delayed: u64,
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
