//! Presence: who is in a topic, as the `Presence` object of the Phoenix client reads it.
//!
//! One entry per user (the key), with one meta per connection. Changes are told in notices, at
//! most one per topic and interval: `presence_diff` while the topic's users are listed, and above
//! a cap on users `presence_count` alone.
//!
//! # What a member holds
//! [`Presence::state`] gives what has been *announced*, never a change that still waits for its
//! notice. So whoever is given a list and then every later notice is exact, even when a meta came
//! and went in between, and what waits is never more than the difference between the announced
//! list and the truth, however long notices cannot be published. A notice older than the list does
//! no harm when it arrives after it, as long as those that follow it arrive too.
//! [`Presence::state_for`] adds the asker's own meta, since Phoenix shows members themselves at
//! once.
//!
//! # When a notice is due
//! The first change after a quiet time waits for `interval_us`, so that what comes together is told
//! together. After a notice, or an attempt at one, the next waits until the topic's interval, which
//! grows with its connections, is over.
//!
//! Nothing here knows a clock, a thread, a socket or randomness.

mod meta;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meta::Meta;
pub use meta::Ref;

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
    /// The least time between two notices of a topic, in microseconds.
    pub interval_us: u64,
    /// The interval of a topic grows by a millisecond for so many connections in it; with 0 it
    /// does not grow.
    pub members_per_ms: u64,
}

impl Limits {
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

/// Whether the members of a topic hold its list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listing {
    /// They do.
    Listed,
    /// There are too many users. `cleared`: members have been told to drop what they hold;
    /// `counted`: they know the counts.
    Unlisted { cleared: bool, counted: bool },
    /// There are few enough again; members are still to be sent the list.
    Returning { cleared: bool },
}

struct Topic {
    name: Arc<str>,
    /// How many connections each user has.
    users: BTreeMap<Arc<str>, usize>,
    connections: usize,
    listing: Listing,
    /// While listed, what has been announced; else everyone who is here.
    metas: BTreeMap<Entry, Meta>,
    /// Here, and not announced. Empty unless listed.
    joins: BTreeMap<Entry, Meta>,
    /// Announced, and no longer here; they stay in `metas` until that is announced too.
    leaves: BTreeSet<Entry>,
    /// When the next notice is due; set exactly while there is something to tell.
    due_us: Option<u64>,
    /// When the last notice was sent or tried.
    last_us: Option<u64>,
}

impl Topic {
    fn new(name: &str, users_max: usize) -> Topic {
        let listing = match users_max {
            0 => Listing::Unlisted { cleared: true, counted: true },
            _ => Listing::Listed,
        };
        Topic {
            name: name.into(),
            users: BTreeMap::new(),
            connections: 0,
            listing,
            metas: BTreeMap::new(),
            joins: BTreeMap::new(),
            leaves: BTreeSet::new(),
            due_us: None,
            last_us: None,
        }
    }

    fn has_news(&self) -> bool {
        match self.listing {
            Listing::Listed => !self.joins.is_empty() || !self.leaves.is_empty(),
            Listing::Unlisted { cleared, counted } => !cleared || !counted,
            Listing::Returning { .. } => true,
        }
    }

    /// The entry of a connection, when it is here.
    fn entry(&self, key: &str, of: Ref) -> Option<Entry> {
        let (key, _) = self.users.get_key_value(key)?;
        let entry = (key.clone(), of);
        let here = self.joins.contains_key(&entry)
            || (self.metas.contains_key(&entry) && !self.leaves.contains(&entry));
        here.then_some(entry)
    }

    fn enter(&mut self, key: &str, of: Ref, meta: Meta) {
        let key = match self.users.get_key_value(key) {
            Some((key, _)) => key.clone(),
            None => Arc::from(key),
        };
        *self.users.entry(key.clone()).or_default() += 1;
        self.connections += 1;
        self.add((key, of), meta);
    }

    fn leave(&mut self, entry: Entry) {
        self.connections -= 1;
        if let Some(connections) = self.users.get_mut(&entry.0) {
            *connections -= 1;
            if *connections == 0 {
                self.users.remove(&entry.0);
            }
        }
        self.drop_meta(entry);
    }

    fn add(&mut self, entry: Entry, meta: Meta) {
        match self.listing {
            Listing::Listed => self.joins.insert(entry, meta),
            _ => self.metas.insert(entry, meta),
        };
    }

    fn drop_meta(&mut self, entry: Entry) {
        if self.listing != Listing::Listed {
            self.metas.remove(&entry);
        } else if self.joins.remove(&entry).is_none() {
            self.leaves.insert(entry);
        }
    }

    /// Takes what waited as announced.
    fn fold(&mut self) {
        self.metas.extend(std::mem::take(&mut self.joins));
        for entry in std::mem::take(&mut self.leaves) {
            self.metas.remove(&entry);
        }
    }

    /// Follows the number of users: over the cap, or back under it.
    fn relist(&mut self, users_max: usize) {
        let users = self.users.len();
        if let Listing::Unlisted { counted, .. } = &mut self.listing {
            *counted = false;
        }
        match self.listing {
            Listing::Listed if users > users_max => {
                self.fold();
                self.listing = Listing::Unlisted { cleared: false, counted: false };
            }
            Listing::Returning { cleared } if users > users_max => {
                self.listing = Listing::Unlisted { cleared, counted: false };
            }
            Listing::Unlisted { cleared, .. }
                if users_max > 0 && users <= users_max - users_max.div_ceil(4) =>
            {
                self.listing = Listing::Returning { cleared };
            }
            _ => (),
        }
    }

    /// Tells what is to be told; stops where a notice could not be published.
    fn announce(&mut self, emit: &mut Emit) {
        if let Listing::Unlisted { cleared, .. } | Listing::Returning { cleared } =
            &mut self.listing
            && !*cleared
        {
            // Also before the list comes back: the client takes a meta with a reference that it
            // holds for unchanged.
            if !emit(&self.name, STATE, "{}".into()) {
                return;
            }
            *cleared = true;
        }
        match &mut self.listing {
            Listing::Listed if self.joins.is_empty() && self.leaves.is_empty() => (),
            Listing::Listed => {
                if emit(&self.name, DIFF, self.diff()) {
                    self.fold();
                }
            }
            Listing::Unlisted { counted, .. } => {
                let (users, connections) = (self.users.len(), self.connections);
                let json = format!(r#"{{"users":{users},"connections":{connections}}}"#);
                *counted = *counted || emit(&self.name, COUNT, json);
            }
            Listing::Returning { .. } => {
                if emit(&self.name, STATE, meta::list(self.metas.iter())) {
                    self.listing = Listing::Listed;
                }
            }
        }
    }

    fn diff(&self) -> String {
        let joins = meta::list(self.joins.iter());
        let leaves = self.leaves.iter().filter_map(|entry| self.metas.get_key_value(entry));
        format!(r#"{{"joins":{joins},"leaves":{}}}"#, meta::list(leaves))
    }
}

/// Publishes a notice: topic, event and JSON text. False when it could not be.
pub type Emit<'a> = dyn FnMut(&str, &'static str, String) -> bool + 'a;

/// Who is here, in every topic with presence.
pub struct Presence {
    limits: Limits,
    next: Ref,
    topics: BTreeMap<Arc<str>, Topic>,
    due: BTreeSet<(u64, Arc<str>)>,
}

impl Presence {
    /// An empty registry. References count up from `first_ref`, which should be random: a client
    /// that reconnects takes a meta with a reference it knows for unchanged, so those of another
    /// node, or of this one before a restart, must not come again.
    pub fn new(limits: Limits, first_ref: u64) -> Self {
        let next = Ref(first_ref);
        Presence { limits, next, topics: BTreeMap::new(), due: BTreeSet::new() }
    }

    /// Replaces the limits. Topics that are now over or under the cap are told so in their next
    /// notice. Looks at every topic.
    pub fn set_limits(&mut self, limits: Limits, now_us: u64) {
        let users_max_is_new = limits.users_max != self.limits.users_max;
        self.limits = limits;
        if users_max_is_new {
            let names: Vec<_> = self.topics.keys().cloned().collect();
            names.iter().for_each(|name| self.changed(name, now_us));
        }
    }

    /// One more connection of a user. `meta` is the text of a JSON object, which the caller has
    /// checked; anything else counts as `{}`. Its own `phx_ref` and `phx_ref_prev` are dropped.
    pub fn enter(&mut self, topic: &str, key: &str, meta: &str, now_us: u64) -> Ref {
        let of = self.take_ref();
        if !self.topics.contains_key(topic) {
            let new = Topic::new(topic, self.limits.users_max);
            self.topics.insert(new.name.clone(), new);
        }
        if let Some(place) = self.topics.get_mut(topic) {
            place.enter(key, of, Meta::new(meta, None));
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
        let place = self.topics.get_mut(topic)?;
        let entry = place.entry(key, of)?;
        if let Some(waiting) = place.joins.get_mut(&entry) {
            waiting.set(meta);
            return Some(of);
        }
        let listed = place.listing == Listing::Listed;
        let new = self.take_ref();
        let place = self.topics.get_mut(topic)?;
        place.add((entry.0.clone(), new), Meta::new(meta, listed.then_some(of)));
        place.drop_meta(entry);
        if listed {
            self.schedule(topic, now_us);
        }
        Some(new)
    }

    /// A connection of a user is gone. Does nothing when there is no such connection.
    pub fn leave(&mut self, topic: &str, key: &str, of: Ref, now_us: u64) {
        let Some(place) = self.topics.get_mut(topic) else { return };
        let Some(entry) = place.entry(key, of) else { return };
        place.leave(entry);
        self.changed(topic, now_us);
    }

    /// The list of a topic as announced, as the JSON text of a `presence_state`; `{}` when nobody
    /// is there or the topic's users are not listed.
    pub fn state(&self, topic: &str) -> String {
        match self.topics.get(topic) {
            Some(topic) if topic.listing == Listing::Listed => meta::list(topic.metas.iter()),
            _ => "{}".into(),
        }
    }

    /// As [`Presence::state`], with the connection's own meta even when it has not been announced.
    /// For that connection only: others would not be told if it left before it was announced.
    pub fn state_for(&self, topic: &str, key: &str, of: Ref) -> String {
        let own = self.topics.get(topic).and_then(|topic| {
            let own = topic.joins.get_key_value(&topic.entry(key, of)?)?;
            // An update: the list has the meta that it replaces.
            own.1.prev.is_none().then_some((topic, own))
        });
        match own {
            Some((topic, own)) => {
                let after = topic.metas.range(own.0..);
                meta::list(topic.metas.range(..own.0).chain([own]).chain(after))
            }
            None => self.state(topic),
        }
    }

    /// How many are in a topic now.
    pub fn counts(&self, topic: &str) -> Counts {
        match self.topics.get(topic) {
            Some(topic) => Counts {
                users: topic.users.len(),
                connections: topic.connections,
                listed: topic.listing == Listing::Listed,
            },
            None => Counts { users: 0, connections: 0, listed: self.limits.users_max > 0 },
        }
    }

    /// Topics with somebody in them, or with something still to be told.
    pub fn topics(&self) -> usize {
        self.topics.len()
    }

    /// When [`Presence::flush`] has something to do next.
    pub fn due_us(&self) -> Option<u64> {
        self.due.first().map(|(due_us, _)| *due_us)
    }

    /// Tells what is due: one notice a topic, or two where its users cease to be listed or are
    /// listed again. A notice for which `emit` gives false is kept, together with what follows,
    /// and tried again after the topic's interval.
    pub fn flush(&mut self, now_us: u64, emit: &mut Emit) {
        // All of them first: with an interval of 0, one that failed is due again at once.
        let mut due = Vec::new();
        while let Some((due_us, _)) = self.due.first()
            && *due_us <= now_us
        {
            due.extend(self.due.pop_first());
        }
        for (_, name) in due {
            if let Some(topic) = self.topics.get_mut(&name) {
                topic.due_us = None;
                topic.last_us = Some(now_us);
                topic.announce(emit);
            }
            self.schedule(&name, now_us);
        }
    }

    fn take_ref(&mut self) -> Ref {
        let of = self.next;
        self.next = Ref(of.0.wrapping_add(1));
        of
    }

    /// The users or connections of a topic have changed, or the cap has.
    fn changed(&mut self, name: &str, now_us: u64) {
        if let Some(topic) = self.topics.get_mut(name) {
            topic.relist(self.limits.users_max);
        }
        self.schedule(name, now_us);
    }

    /// Makes a topic due when it has something to tell, and frees it when it has nothing and
    /// nobody.
    fn schedule(&mut self, name: &str, now_us: u64) {
        let Some(topic) = self.topics.get_mut(name) else { return };
        match (topic.has_news(), topic.due_us) {
            (true, None) => {
                let interval_us = self.limits.interval_us(topic.connections);
                let spaced_us = topic.last_us.map_or(0, |last| last.saturating_add(interval_us));
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
