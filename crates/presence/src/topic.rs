//! One topic: its members, and which of them notices have announced.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::meta::{Entry, ListText, Meta, Writer, gone_bytes, user_bytes, write_gone};
use crate::{COUNT, DIFF, Limits, NodeId, Notice, Ref, STATE, Snapshot};

/// Whether the members of a topic have its list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listing {
    /// They have it, or will once the composed notices are published.
    Listed,
    /// The list is too large. `cleared`: a notice has removed the members' lists; `counted`: they know the counts.
    Unlisted { cleared: bool, counted: bool },
    /// The list is small enough again; the next notice sends it to members.
    Returning { cleared: bool },
}

/// A topic with members, or with changes that are not announced.
pub(crate) struct TopicState {
    pub name: Arc<str>,
    /// The number of connections of each user.
    pub users: BTreeMap<Arc<str>, usize>,
    pub connections: usize,
    /// Bytes of the list of all members, at most.
    pub bytes: usize,
    pub listing: Listing,
    /// While listed, the announced metas; else those of all connections.
    pub metas: BTreeMap<Entry, Meta>,
    /// Members that are not announced. Empty unless listed.
    pub joins: BTreeMap<Entry, Meta>,
    /// Announced, but gone; they stay in `metas` until that is announced too.
    pub leaves: BTreeSet<Entry>,
    /// The text of `metas` while listed, once a caller has requested it.
    list: OnceCell<ListText>,
    /// Announced, but not published: these notices go first. Empty unless listed.
    pub unsent: Vec<Notice>,
    /// True while a caller publishes the composed notices and has not confirmed them.
    pub taken: bool,
    /// The time of the next notice; set while changes wait and no notice is taken.
    pub due_us: Option<u64>,
    /// The time when a caller last took notices.
    pub last_us: Option<u64>,
}

/// The node of a new connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This node. It draws each ref once.
    ThisNode,
    /// Another node. When it returns, its connections come again with the refs that they had.
    OtherNode,
}

impl TopicState {
    pub fn new(name: &str, limits: &Limits) -> TopicState {
        let listing = match limits.list() {
            false => Listing::Unlisted { cleared: true, counted: true },
            true => Listing::Listed,
        };
        TopicState {
            name: name.into(),
            users: BTreeMap::new(),
            connections: 0,
            bytes: 0,
            listing,
            metas: BTreeMap::new(),
            joins: BTreeMap::new(),
            leaves: BTreeSet::new(),
            list: OnceCell::new(),
            unsent: Vec::new(),
            taken: false,
            due_us: None,
            last_us: None,
        }
    }

    pub fn has_news(&self) -> bool {
        match self.listing {
            Listing::Listed => {
                !self.unsent.is_empty() || !self.joins.is_empty() || !self.leaves.is_empty()
            }
            Listing::Unlisted { cleared, counted } => !cleared || !counted,
            Listing::Returning { .. } => true,
        }
    }

    /// Returns the entries of a node's connections.
    pub fn entries_of(&self, node: NodeId) -> Vec<Entry> {
        let here = self.metas.keys().filter(|entry| !self.leaves.contains(*entry));
        here.chain(self.joins.keys()).filter(|(_, of)| of.node() == node).cloned().collect()
    }

    /// Returns the entry of a connection, if it is here.
    pub fn entry(&self, key: &str, of: Ref) -> Option<Entry> {
        let (key, _) = self.users.get_key_value(key)?;
        let entry = (key.clone(), of);
        let here = self.joins.contains_key(&entry)
            || (self.metas.contains_key(&entry) && !self.leaves.contains(&entry));
        here.then_some(entry)
    }

    /// Adds a connection, and returns its user.
    pub fn enter(&mut self, key: &str, of: Ref, meta: Meta, owner: Owner) -> Arc<str> {
        let key = match self.users.get_key_value(key) {
            Some((key, _)) => key.clone(),
            None => {
                self.bytes += user_bytes(key);
                Arc::from(key)
            }
        };
        *self.users.entry(key.clone()).or_default() += 1;
        self.connections += 1;
        self.add((key.clone(), of), meta, owner);
        self.recount();
        key
    }

    pub fn leave(&mut self, entry: Entry) {
        self.connections -= 1;
        if let Some(connections) = self.users.get_mut(&entry.0) {
            *connections -= 1;
            if *connections == 0 {
                self.users.remove(&entry.0);
                self.bytes -= user_bytes(&entry.0);
            }
        }
        self.drop_meta(entry);
        self.recount();
    }

    /// Changes the meta of an entry and returns its ref: `fresh`, or the old one if no notice has announced it and no
    /// other node has it (`is_shared`).
    pub fn update(&mut self, entry: Entry, fresh: Ref, json: &str, is_shared: bool) -> Ref {
        let is_unannounced = self.joins.contains_key(&entry);
        if let Some(waiting) = self.joins.get_mut(&entry).filter(|_| !is_shared) {
            self.bytes -= waiting.bytes(entry.1);
            waiting.set(json);
            self.bytes += waiting.bytes(entry.1);
            return entry.1;
        }
        self.replace(entry.clone(), fresh, json, Owner::ThisNode);
        if is_unannounced {
            // The connection itself may have the old one, from a list that it has requested.
            self.leaves.insert(entry);
        }
        fresh
    }

    /// Replaces an entry by another one of the same user.
    pub fn replace(&mut self, entry: Entry, fresh: Ref, json: &str, owner: Owner) {
        let prev = match self.joins.get(&entry) {
            Some(unannounced) => unannounced.prev,
            None => (self.listing == Listing::Listed).then_some(entry.1),
        };
        self.add((entry.0.clone(), fresh), Meta::new(json, prev), owner);
        self.drop_meta(entry);
    }

    /// Another process, whose last notice was at this time, does not list its users.
    pub fn set_unlisted(&mut self, last_us: Option<u64>) {
        self.listing = Listing::Unlisted { cleared: true, counted: true };
        self.last_us = self.last_us.max(last_us);
    }

    /// Returns the meta of a member.
    pub fn meta(&self, entry: &Entry) -> Option<&Meta> {
        self.joins.get(entry).or_else(|| self.metas.get(entry))
    }

    /// Adds a connection that members know, and returns its user.
    pub fn restore(&mut self, key: &str, of: Ref, meta: Meta) -> Arc<str> {
        let key = match self.users.get_key_value(key) {
            Some((key, _)) => key.clone(),
            None => {
                self.bytes += user_bytes(key);
                Arc::from(key)
            }
        };
        *self.users.entry(key.clone()).or_default() += 1;
        self.connections += 1;
        self.bytes += meta.bytes(of);
        self.list.take();
        self.metas.insert((key.clone(), of), meta);
        key
    }

    /// Removes a restored connection again.
    pub fn unrestore(&mut self, entry: &Entry) {
        let Some(meta) = self.metas.remove(entry) else { return };
        self.list.take();
        self.bytes -= meta.bytes(entry.1);
        self.connections -= 1;
        if let Some(connections) = self.users.get_mut(&entry.0) {
            *connections -= 1;
            if *connections == 0 {
                self.users.remove(&entry.0);
                self.bytes -= user_bytes(&entry.0);
            }
        }
    }

    fn recount(&mut self) {
        if let Listing::Unlisted { counted, .. } = &mut self.listing {
            *counted = false;
        }
    }

    fn add(&mut self, entry: Entry, meta: Meta, owner: Owner) {
        if owner == Owner::OtherNode
            && self.listing == Listing::Listed
            && let Some(announced) = self.metas.get(&entry)
        {
            // The connection's node was gone, and is back before members got a notice: they still have the entry.
            self.bytes += announced.bytes(entry.1);
            self.leaves.remove(&entry);
            return;
        }
        self.bytes += meta.bytes(entry.1);
        match self.listing {
            Listing::Listed => self.joins.insert(entry, meta),
            Listing::Unlisted { .. } | Listing::Returning { .. } => self.metas.insert(entry, meta),
        };
    }

    fn drop_meta(&mut self, entry: Entry) {
        let bytes = |meta: Option<&Meta>| meta.map_or(0, |meta| meta.bytes(entry.1));
        self.bytes -= if self.listing != Listing::Listed {
            bytes(self.metas.remove(&entry).as_ref())
        } else if let Some(waiting) = self.joins.remove(&entry) {
            waiting.bytes(entry.1)
        } else {
            let bytes = bytes(self.metas.get(&entry));
            self.leaves.insert(entry);
            bytes
        };
    }

    /// Takes all waiting changes as announced.
    fn fold(&mut self) {
        self.list.take();
        self.metas.extend(std::mem::take(&mut self.joins));
        for entry in std::mem::take(&mut self.leaves) {
            self.metas.remove(&entry);
        }
    }

    /// Follows the size of the list: above a limit, or back below three quarters of both.
    pub fn relist(&mut self, limits: &Limits) {
        let (users, bytes) = (self.users.len(), self.bytes);
        let exceeds_limits = users > limits.users_max || bytes > limits.list_bytes_max;
        let fits = |now: usize, max: usize| now <= max - max.div_ceil(4);
        match self.listing {
            Listing::Listed if exceeds_limits => {
                self.fold();
                // The next notice removes the members' lists, so the unsent notices are obsolete.
                self.unsent.clear();
                self.listing = Listing::Unlisted { cleared: false, counted: false };
            }
            Listing::Returning { cleared } if exceeds_limits => {
                self.listing = Listing::Unlisted { cleared, counted: false };
            }
            Listing::Unlisted { cleared, .. }
                if limits.list()
                    && fits(users, limits.users_max)
                    && fits(bytes, limits.list_bytes_max) =>
            {
                self.listing = Listing::Returning { cleared };
            }
            Listing::Listed | Listing::Unlisted { .. } | Listing::Returning { .. } => (),
        }
    }

    /// Returns the notices to publish now, in this order. From here on they count as announced, even if publishing
    /// fails: a list that is read meanwhile has their content.
    pub fn take(&mut self, list_bytes_max: usize) -> Vec<Notice> {
        self.taken = true;
        if !self.unsent.is_empty() {
            return std::mem::take(&mut self.unsent);
        }
        let mut notices = Vec::new();
        if let Listing::Unlisted { cleared, .. } | Listing::Returning { cleared } =
            &mut self.listing
            && !*cleared
        {
            // Also right before the list comes back: a client ignores a meta if it already has one with the same ref.
            notices.push((STATE, "{}".into()));
            *cleared = true;
        }
        match &mut self.listing {
            Listing::Listed => {
                notices.extend(self.diffs(list_bytes_max).into_iter().map(|json| (DIFF, json)));
                self.fold();
            }
            Listing::Unlisted { counted, .. } => {
                if !*counted {
                    let (users, connections) = (self.users.len(), self.connections);
                    let json = format!(r#"{{"users":{users},"connections":{connections}}}"#);
                    notices.push((COUNT, json.into()));
                }
                *counted = true;
            }
            Listing::Returning { .. } => {
                self.listing = Listing::Listed;
                notices.push((STATE, self.list().text.clone()));
            }
        }
        notices
    }

    /// Called when the taken notices are published, except for `rest`.
    pub fn confirm(&mut self, rest: Vec<Notice>) {
        self.taken = false;
        match &mut self.listing {
            // It cannot have been unlisted and listed again: only `take` brings the list back.
            Listing::Listed => self.unsent = rest,
            Listing::Unlisted { cleared, counted } => {
                *cleared &= rest.iter().all(|(event, _)| *event != STATE);
                *counted &= rest.iter().all(|(event, _)| *event != COUNT);
            }
            Listing::Returning { cleared } => {
                *cleared &= rest.iter().all(|(event, _)| *event != STATE);
            }
        }
    }

    /// Returns the changes since the last notice, each text of about `bytes_max` bytes at most.
    fn diffs(&self, bytes_max: usize) -> Vec<Arc<str>> {
        let mut diffs = Vec::new();
        let (mut joins, mut leaves) = (Writer::new(), Writer::new());
        let mut any = false;
        let mut joining = self.joins.iter().peekable();
        let mut leaving = self.leaves.iter().peekable();
        let mut finish = |joins: &mut Writer, leaves: &mut Writer| {
            let (joins, leaves) = (joins.finish(), leaves.finish());
            diffs.push(format!(r#"{{"joins":{joins},"leaves":{leaves}}}"#).into());
        };
        loop {
            // A user's joins go before the leaves, so that no user seems gone between two texts.
            let join =
                joining.next_if(|((key, _), _)| leaving.peek().is_none_or(|it| *key <= it.0));
            let leave = if join.is_none() { leaving.next() } else { None };
            let ((key, of), bytes) = match (join, leave) {
                (Some((entry, meta)), _) => (entry, meta.bytes(entry.1)),
                (None, Some(entry)) => (entry, gone_bytes(entry.1)),
                (None, None) => break,
            };
            let bytes = joins.bytes() + leaves.bytes() + user_bytes(key) + bytes;
            if any && bytes > bytes_max {
                finish(&mut joins, &mut leaves);
            }
            any = true;
            match join {
                Some((_, meta)) => joins.push(key, |out| meta.write(*of, out)),
                None => leaves.push(key, |out| write_gone(*of, out)),
            }
        }
        if any {
            finish(&mut joins, &mut leaves);
        }
        diffs
    }

    /// Returns the announced list; for listed topics only.
    fn list(&self) -> &ListText {
        self.list.get_or_init(|| ListText::new(self.metas.iter()))
    }

    /// Returns the announced list, if there is one.
    pub fn state(&self) -> Option<Arc<str>> {
        (self.listing == Listing::Listed).then(|| self.list().text.clone())
    }

    /// Returns the announced list with a connection's own meta, if that is not in it.
    pub fn state_with(&self, key: &str, of: Ref) -> Option<Snapshot> {
        let (entry, meta) = self.joins.get_key_value(&self.entry(key, of)?)?;
        // An update: the list has the meta that it replaces.
        meta.prev.is_none().then(|| self.list().with(entry, meta))
    }
}
