//! Presence: who is in a topic, as the `Presence` object of the Phoenix client reads it.
//!
//! One entry per user (the key), with one meta per connection. Changes are told in notices, at
//! most one per topic and interval: `presence_diff` while the topic's users are listed, and above
//! a cap on users or on the bytes of their list `presence_count` alone. A change that is larger
//! than a list may be is told in several texts, one right after another.
//!
//! # What a member holds
//! [`Presence::state`] gives what has been *announced*, never a change that still waits for its
//! notice. So whoever is given a list and then every later notice is exact, even when a meta came
//! and went in between. A notice older than the list does no harm when it arrives after it, as long
//! as those that follow it arrive too. [`Presence::state_for`] adds the asker's own meta, since
//! Phoenix shows members themselves at once.
//!
//! # How notices get out
//! [`Presence::take`] composes what is due, the caller publishes it without holding the registry,
//! and [`Presence::confirm`] hears what came of it. Announced means taken: a list that is given
//! meanwhile already has what the notice says, so it matters not whether its reader gets the notice
//! too. What could not be published is published first the next time, and nothing else is composed
//! before; so what waits is never more than one notice and the difference between the announced
//! list and the truth, however long notices cannot be published.
//!
//! # When a notice is due
//! The first change after a quiet time waits for `interval_us`, so that what comes together is told
//! together. After a notice, or an attempt at one, the next waits until the topic's interval, which
//! grows with its connections, is over.
//!
//! Nothing here knows a clock, a thread, a socket or randomness.

mod meta;
mod topic;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meta::Meta;
pub use meta::{Ref, Snapshot};
use topic::{Listing, Notice, Topic};

/// A connection of a user: sorted by user, then by age.
type Entry = (Arc<str>, Ref);

/// The whole list of a topic; members replace what they hold by it.
pub const STATE: &str = "presence_state";
/// What has changed in the list of a topic.
pub const DIFF: &str = "presence_diff";
/// How many are in a topic whose users are not listed.
pub const COUNT: &str = "presence_count";

/// Bounds on what presence sends.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// With more users than this in a topic, they are counted and no longer listed. They are
    /// listed again at three quarters of it. With 0, no topic lists its users.
    pub users_max: usize,
    /// The same for the bytes of a topic's list. A `presence_diff` is not much larger either. With
    /// 0, no topic lists its users.
    pub list_bytes_max: usize,
    /// The least time between two notices of a topic, in microseconds.
    pub interval_us: u64,
    /// The interval of a topic grows by a millisecond for so many connections in it; with 0 it
    /// does not grow.
    pub members_per_ms: u64,
}

impl Limits {
    /// Whether any topic may list its users.
    fn list(&self) -> bool {
        self.users_max > 0 && self.list_bytes_max > 0
    }

    /// The least time between two notices of a topic with so many connections.
    fn interval_us(&self, connections: usize) -> u64 {
        let grown_ms = (connections as u64).checked_div(self.members_per_ms).unwrap_or(0);
        self.interval_us.saturating_add(grown_ms.saturating_mul(1000))
    }
}

/// How many are in a topic. Always exact, unlike the list, which is as of the last notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Users with at least one connection in the topic.
    pub users: usize,
    /// Connections of all of them.
    pub connections: usize,
    /// False while members are told counts only.
    pub listed: bool,
}

/// Counters of the registry, for whoever looks from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Topics with somebody in them, or with something still to be told.
    pub topics: usize,
    /// Connections of users in topics: one in two topics, or of two users, counts twice.
    pub connections: usize,
    /// Texts published so far.
    pub notices: u64,
    /// How often a topic's notices could not be published, and were kept.
    pub failures: u64,
}

/// What one [`Presence::take`] composes, at most, but for the last topic.
const TAKE_BYTES_MAX: usize = 256 << 10;

/// Notices of a topic that are on their way out. To be given back to [`Presence::confirm`]: until
/// then the topic tells nothing more.
#[must_use]
pub struct Batch {
    topic: Arc<str>,
    notices: Vec<Notice>,
    published: usize,
}

impl Batch {
    /// Publishes what has not been, in order, up to the first that cannot be.
    pub fn publish(&mut self, emit: &mut Emit) {
        for (event, json) in &self.notices[self.published..] {
            if !emit(&self.topic, event, json) {
                return;
            }
            self.published += 1;
        }
    }
}

/// Publishes a notice: topic, event and JSON text. False when it could not be.
pub type Emit<'a> = dyn FnMut(&str, &'static str, &str) -> bool + 'a;

/// Who is here, in every topic with presence.
pub struct Presence {
    limits: Limits,
    next: Ref,
    topics: BTreeMap<Arc<str>, Topic>,
    due: BTreeSet<(u64, Arc<str>)>,
    connections: usize,
    notices: u64,
    failures: u64,
}

impl Presence {
    /// An empty registry. References count up from `first_ref`, which should be random: a client
    /// that reconnects takes a meta with a reference it knows for unchanged, so those of another
    /// node, or of this one before a restart, must not come again.
    pub fn new(limits: Limits, first_ref: u64) -> Self {
        Presence {
            limits,
            next: Ref(first_ref),
            topics: BTreeMap::new(),
            due: BTreeSet::new(),
            connections: 0,
            notices: 0,
            failures: 0,
        }
    }

    /// Replaces the limits. Topics that are now over or under a cap are told so in their next
    /// notice. Looks at every topic when a cap is new.
    pub fn set_limits(&mut self, limits: Limits, now_us: u64) {
        let caps = |limits: &Limits| (limits.users_max, limits.list_bytes_max);
        let new = caps(&limits) != caps(&self.limits);
        self.limits = limits;
        if new {
            let names: Vec<_> = self.topics.keys().cloned().collect();
            names.iter().for_each(|name| self.changed(name, now_us));
        }
    }

    /// One more connection of a user. `meta` is the text of a JSON object, which the caller has
    /// checked; anything else counts as `{}`. Its own `phx_ref` and `phx_ref_prev` are dropped.
    pub fn enter(&mut self, topic: &str, key: &str, meta: &str, now_us: u64) -> Ref {
        let of = self.take_ref();
        if !self.topics.contains_key(topic) {
            let new = Topic::new(topic, &self.limits);
            self.topics.insert(new.name.clone(), new);
        }
        if let Some(place) = self.topics.get_mut(topic) {
            place.enter(key, of, Meta::new(meta, None));
            self.connections += 1;
        }
        self.changed(topic, now_us);
        of
    }

    /// Replaces the meta of a connection; `meta` is as for [`Presence::enter`]. Gives the reference
    /// that it goes by from now on: a new one, or the same when it had not been announced yet.
    /// `None` when there is no such connection.
    pub fn update(
        &mut self,
        topic: &str,
        key: &str,
        of: Ref,
        meta: &str,
        now_us: u64,
    ) -> Option<Ref> {
        let fresh = self.next;
        let place = self.topics.get_mut(topic)?;
        let new = place.update(place.entry(key, of)?, fresh, meta);
        if new == fresh {
            self.take_ref();
        }
        self.changed(topic, now_us);
        Some(new)
    }

    /// A connection of a user is gone. Does nothing when there is no such connection.
    pub fn leave(&mut self, topic: &str, key: &str, of: Ref, now_us: u64) {
        let Some(place) = self.topics.get_mut(topic) else { return };
        let Some(entry) = place.entry(key, of) else { return };
        place.leave(entry);
        self.connections -= 1;
        self.changed(topic, now_us);
    }

    /// The list of a topic as announced, as the JSON text of a `presence_state`; `{}` when nobody
    /// is there or the topic's users are not listed. Put together once for each notice.
    pub fn state(&self, topic: &str) -> Arc<str> {
        self.topics.get(topic).and_then(Topic::state).unwrap_or_else(|| "{}".into())
    }

    /// As [`Presence::state`], with the connection's own meta even when it has not been announced.
    /// For that connection only: others would not be told if it left before it was announced.
    pub fn state_for(&self, topic: &str, key: &str, of: Ref) -> Snapshot {
        let own = self.topics.get(topic).and_then(|topic| topic.state_with(key, of));
        own.unwrap_or_else(|| self.state(topic).into())
    }

    /// How many are in a topic now.
    pub fn counts(&self, topic: &str) -> Counts {
        match self.topics.get(topic) {
            Some(topic) => Counts {
                users: topic.users.len(),
                connections: topic.connections,
                listed: topic.listing == Listing::Listed,
            },
            None => Counts { users: 0, connections: 0, listed: self.limits.list() },
        }
    }

    /// Counters, without a look at the topics.
    pub fn stats(&self) -> Stats {
        Stats {
            topics: self.topics.len(),
            connections: self.connections,
            notices: self.notices,
            failures: self.failures,
        }
    }

    /// When [`Presence::take`] has something to do next.
    pub fn due_us(&self) -> Option<u64> {
        self.due.first().map(|(due_us, _)| *due_us)
    }

    /// Composes what is due, for at most `topics_max` topics: one notice each, or two where users
    /// cease to be listed or are listed again, or several where one would be too large. Empty when
    /// nothing is due; else to be published, given to [`Presence::confirm`], and asked again, since
    /// this stops early when it has composed a lot. A topic is taken once for each `now_us`.
    pub fn take(&mut self, now_us: u64, topics_max: usize) -> Vec<Batch> {
        let mut batches = Vec::new();
        let mut bytes = 0;
        while batches.len() < topics_max
            && bytes < TAKE_BYTES_MAX
            && let Some((due_us, _)) = self.due.first()
            && *due_us <= now_us
        {
            let Some((_, name)) = self.due.pop_first() else { break };
            let Some(topic) = self.topics.get_mut(&name) else { continue };
            topic.due_us = None;
            topic.last_us = Some(now_us);
            let notices = topic.take(self.limits.list_bytes_max);
            bytes += notices.iter().map(|(_, json)| json.len()).sum::<usize>();
            batches.push(Batch { topic: name, notices, published: 0 });
        }
        batches
    }

    /// Hears what came of notices: what could not be published is tried again after the topic's
    /// interval.
    pub fn confirm(&mut self, batches: Vec<Batch>, now_us: u64) {
        for mut batch in batches {
            let rest = batch.notices.split_off(batch.published);
            self.notices += batch.published as u64;
            self.failures += u64::from(!rest.is_empty());
            if let Some(topic) = self.topics.get_mut(&batch.topic) {
                topic.confirm(rest);
            }
            self.schedule(&batch.topic, now_us);
        }
    }

    /// Takes, publishes and confirms all that is due, for who need not share the registry.
    pub fn flush(&mut self, now_us: u64, emit: &mut Emit) {
        loop {
            let mut batches = self.take(now_us, usize::MAX);
            if batches.is_empty() {
                return;
            }
            batches.iter_mut().for_each(|batch| batch.publish(emit));
            self.confirm(batches, now_us);
        }
    }

    fn take_ref(&mut self) -> Ref {
        let of = self.next;
        self.next = Ref(of.0.wrapping_add(1));
        of
    }

    /// Who is in a topic has changed, or a meta, or a cap.
    fn changed(&mut self, name: &str, now_us: u64) {
        if let Some(topic) = self.topics.get_mut(name) {
            topic.relist(&self.limits);
        }
        self.schedule(name, now_us);
    }

    /// Makes a topic due when it has something to tell, and frees it when it has nothing and
    /// nobody.
    fn schedule(&mut self, name: &str, now_us: u64) {
        let Some(topic) = self.topics.get_mut(name) else { return };
        if topic.taken {
            return;
        }
        match (topic.has_news(), topic.due_us) {
            (true, None) => {
                let interval_us = self.limits.interval_us(topic.connections);
                // Never twice at a time, or with an interval of 0 a failure would be tried for ever.
                let after_us = interval_us.max(1);
                let spaced_us = topic.last_us.map_or(0, |last| last.saturating_add(after_us));
                let due_us = spaced_us.max(now_us.saturating_add(self.limits.interval_us));
                topic.due_us = Some(due_us);
                self.due.insert((due_us, topic.name.clone()));
            }
            (false, Some(due_us)) => {
                topic.due_us = None;
                self.due.remove(&(due_us, topic.name.clone()));
            }
            _ => (),
        }
        if topic.connections == 0 && topic.due_us.is_none() {
            self.topics.remove(name);
        }
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
