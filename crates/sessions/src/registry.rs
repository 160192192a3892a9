//! The connections of sessions, over all shards of a process.

mod handover;

use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use model::{ConnectionId, LogicalTime, Name, NodeId};

use crate::away::Away;
use crate::connected::Connected;
use crate::contract::{
    Claim, ClaimOutcome, Done, Ended, Found, Limits, NodeConnect, Now, Part, RedispatchOutcome,
    Released, SessionInfo, Sessions, Stats, Storage, WaitOutcome,
};
use crate::flow::Source;
use crate::interests::Interests;
use crate::owners::Owners;
use crate::redispatch::Redispatch;
use crate::session::{
    Author, CurrentLog, ProgressRecord, Session, SessionRecord, WITHOUT_END, Will,
};
use crate::session_key::{Listing, SessionKey};
use crate::unstored::Unstored;

/// The registry's parts, each with a lock of its own: none takes long to grow.
const SEGMENTS: usize = 64;

/// Connected sessions that are stored again at a time.
const CONNECTED_MAX: usize = 1_000;

/// The sessions of one process.
pub struct Local {
    segments: Vec<Mutex<Segment>>,
    node: NodeId,
    /// Keyed, because clients choose their identifiers.
    hasher: RandomState,
    interests: Arc<Interests>,
    storage: OnceLock<Arc<dyn Storage>>,
    /// Sessions whose records in the store may be out of date.
    unstored: Unstored,
    sessions_max: AtomicUsize,
    owners: Owners,
    sessions_per_owner_max: AtomicUsize,
    seconds_max: AtomicU64,
    bytes_max: AtomicUsize,
    away: AtomicUsize,
    away_bytes: AtomicUsize,
    /// The time of the last sweep.
    swept: Mutex<Option<Now>>,
    /// Messages that sessions have left to other members of their groups.
    redispatch: Redispatch,
    /// How many epochs were drawn.
    epochs: AtomicU64,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    expired: AtomicU64,
    refused: AtomicU64,
    taken_over: AtomicU64,
}

/// The sessions whose keys have a part of all hashes.
#[derive(Default)]
struct Segment {
    /// The connected clients.
    connected: Connected,
    /// Sessions that outlive their connections.
    persistent: HashMap<Name, PersistentSession>,
    /// Connections that wait for a session that another one still has.
    claims: HashMap<Name, Waiting>,
    /// When an away session expires or its will is due, by the time of ages in seconds since 1970: each session at
    /// most once.
    due: BTreeSet<(u64, Name)>,
    /// Sessions of clients that left while the time of day was doubted.
    doubted: BTreeSet<Name>,
}

impl Segment {
    /// Returns true if a connection has the session of this key, or waits for it, or its client is away.
    fn has(&self, hash: u64, key: &str) -> bool {
        let is_connected = self.connected.owner(hash).is_some();
        is_connected || self.persistent.contains_key(key) || self.claims.contains_key(key)
    }
}

/// A session that outlives its connection.
#[derive(Default)]
struct PersistentSession {
    /// The session, while its client is away.
    away: Option<Box<Away>>,
    /// The filters that are counted as interests for it.
    interests: Vec<Name>,
}

/// A connection that waits for a session.
struct Waiting {
    /// The connection; `None` if it has ended meanwhile.
    by: Option<ConnectionId>,
    /// True if it wants the session to end.
    clean: bool,
    /// Connections that must still release the session: its owner, and those that waited before.
    awaited: Vec<ConnectionId>,
    /// The released session.
    session: Option<Session>,
    /// The will to publish if no connection takes the session.
    will: Option<Will>,
}

/// Returns true if two ids name one slot. The serial of a connection that must still release its session is unknown.
fn is_same(a: ConnectionId, b: ConnectionId) -> bool {
    (a.shard, a.slot) == (b.shard, b.slot)
}

impl Local {
    /// Makes an empty registry. `node` is in the ids of all connections here.
    pub fn new(node: NodeId, interests: Arc<Interests>, storage: Option<Arc<dyn Storage>>) -> Self {
        let segments = (0..SEGMENTS).map(|_| Mutex::default()).collect();
        let limits = Limits::default();
        Local {
            segments,
            node,
            hasher: RandomState::new(),
            redispatch: Redispatch::new(interests.clone()),
            interests,
            storage: storage.map(OnceLock::from).unwrap_or_default(),
            unstored: Unstored::default(),
            sessions_max: AtomicUsize::new(limits.sessions_max),
            owners: Owners::new(),
            sessions_per_owner_max: AtomicUsize::new(limits.sessions_per_owner_max),
            seconds_max: AtomicU64::new(limits.seconds_max.into()),
            bytes_max: AtomicUsize::new(limits.bytes_max),
            away: AtomicUsize::new(0),
            away_bytes: AtomicUsize::new(0),
            swept: Mutex::default(),
            epochs: AtomicU64::new(0),
            counts: Counts::default(),
        }
    }

    /// Stores later changes there, unless there is a store already. Call this before clients connect.
    pub fn share(&self, storage: Arc<dyn Storage>) {
        let _ = self.storage.set(storage);
    }

    /// Loads a store's records of sessions, by part and key, in any order. Their connections ended with the process,
    /// now at the latest. Returns how many records could not be read.
    pub fn load(
        &self,
        records: impl IntoIterator<Item = (Part, String, Vec<u8>)>,
        now: Now,
    ) -> usize {
        self.load_with(records, now, |_| ())
    }

    /// Loads a store's records of sessions, like [`Local::load`], for a log that all nodes share. A session that is here already
    /// stays as it is.
    pub fn load_in_log(
        &self,
        records: impl IntoIterator<Item = (Part, String, Vec<u8>)>,
        log: CurrentLog,
        now: Now,
    ) -> usize {
        self.load_with(records, now, |session| session.continue_in(log))
    }

    fn load_with(
        &self,
        records: impl IntoIterator<Item = (Part, String, Vec<u8>)>,
        now: Now,
        adapt: impl Fn(&mut Session),
    ) -> usize {
        let (mut sessions, mut progress) = (HashMap::new(), HashMap::new());
        let mut unread = 0;
        for (part, key, bytes) in records {
            match part {
                Part::Session => match minicbor::decode::<SessionRecord>(&bytes) {
                    Ok(record) => drop(sessions.insert(key, record)),
                    Err(_) => unread += 1,
                },
                Part::Progress => match minicbor::decode::<ProgressRecord>(&bytes) {
                    Ok(record) => drop(progress.insert(key, record)),
                    Err(_) => unread += 1,
                },
            }
        }
        for (key, record) in sessions {
            let progress = progress.remove(&key);
            // Its records are those of a later session.
            if self.is_here(&key) {
                continue;
            }
            let (mut session, will, since_s) = record.import();
            if let Some(progress) = progress
                && !progress.import(&mut session)
            {
                self.store(Part::Progress, &key, None, None);
            }
            if !session.outlives() {
                // Its client may have got the messages since: its progress was not stored any more.
                session.refs.clear();
            }
            adapt(&mut session);
            let since = since_s.map_or(now, |since_s| Now {
                unix_s: since_s.min(now.unix_s),
                age_s: since_s.min(now.age_s),
            });
            let away = Away::new(session, since, will);
            let (hash, mut segment) = self.segment(&key);
            let key = Name::from(key);
            if segment.has(hash, &key) {
                continue;
            }
            let interests = self.note_interests(&away.session, Vec::new());
            // A stored session stays even if the limit has changed.
            self.owners.enter(&key, 0);
            self.put_in(&mut segment, &key, away, interests);
        }
        // The progress of sessions that no longer exist.
        for key in progress.into_keys().filter(|key| !self.is_here(key)) {
            self.store(Part::Progress, &key, None, None);
        }
        unread
    }

    /// Returns true if a connection has the session of this key, or waits for it, or its client is away.
    fn is_here(&self, key: &str) -> bool {
        let (hash, segment) = self.segment(key);
        segment.has(hash, key)
    }

    /// Stores all sessions again, one after the other, because the store may have no records of them. Returns false if there are
    /// too many to note them all.
    pub fn note_all_unstored(&self) -> bool {
        for segment in self.segments() {
            segment.persistent.keys().for_each(|key| self.unstored.insert(key));
        }
        self.unstored.has_capacity()
    }

    fn hash(&self, key: &str) -> u64 {
        self.hasher.hash_one(key)
    }

    fn segment(&self, key: &str) -> (u64, MutexGuard<'_, Segment>) {
        let hash = self.hash(key);
        let at = (hash >> 48) as usize % SEGMENTS;
        (hash, self.segments[at].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns all segments, one after the other.
    fn segments(&self) -> impl Iterator<Item = MutexGuard<'_, Segment>> {
        self.segments.iter().map(|segment| segment.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives a record to the store, or removes it there. Records the key if the store rejects it.
    fn store(&self, part: Part, key: &str, value: Option<Vec<u8>>, done: Option<Done>) -> bool {
        let Some(storage) = self.storage.get() else {
            done.into_iter().for_each(|done| done(true));
            return true;
        };
        storage.put(part, key, value, Some(self.unstored.unless_stored(key, done)))
    }

    fn store_session(
        &self,
        key: &str,
        session: &Session,
        (will, away_since_s): (Option<&Will>, Option<u64>),
        done: Option<Done>,
    ) {
        if self.storage.get().is_none() {
            return done.into_iter().for_each(|done| done(true));
        }
        let record = minicbor::to_vec(SessionRecord::new(session, will, away_since_s));
        self.store(Part::Session, key, record.ok(), done);
    }

    fn store_progress(&self, key: &str, session: &Session, done: Option<Done>) -> bool {
        let record = || minicbor::to_vec(ProgressRecord::new(session)).ok();
        let record = self.storage.get().and_then(|_| record());
        self.store(Part::Progress, key, record, done)
    }

    /// Replaces the interests of a session, and returns the new ones.
    fn note_interests(&self, session: &Session, before: Vec<Name>) -> Vec<Name> {
        self.replace_interests(session.interests().map(Name::from).collect(), before)
    }

    fn replace_interests(&self, now: Vec<Name>, before: Vec<Name>) -> Vec<Name> {
        // Adds before it removes, so that a common filter is never missing in between.
        now.iter().for_each(|filter| self.interests.add(filter));
        before.iter().for_each(|filter| self.interests.remove(filter));
        now
    }

    /// Ends a session. Other members get the messages for which groups have chosen it. `persistent` is set if it
    /// outlived its connections.
    fn forget(&self, key: &str, persistent: Option<PersistentSession>, session: Option<&Session>) {
        if persistent.is_some() {
            self.store_away(key, None);
        }
        let mut messages = session.into_iter().flat_map(Session::redispatched).peekable();
        if messages.peek().is_some() {
            self.redispatch.insert(Some(key), messages.cloned());
        }
        // Last, or the history would drop the messages for other members.
        let interests = persistent.iter().flat_map(|persistent| &persistent.interests);
        interests.for_each(|filter| self.interests.remove(filter));
    }

    /// Gives the store the session of a client that is away, or the end of it: as soon as the store has capacity for
    /// records that no client waits for.
    fn store_away(&self, key: &str, away: Option<&Away>) {
        if self.storage.get().is_none() {
            return;
        }
        if !self.has_capacity() {
            return self.unstored.insert(key);
        }
        match away {
            Some(Away { session, since, will, bytes: _ }) => {
                let will = will.as_ref().map(|(will, _)| will);
                self.store_progress(key, session, None);
                self.store_session(key, session, (will, Some(since.unix_s)), None);
            }
            None => Part::ALL.into_iter().for_each(|part| _ = self.store(part, key, None, None)),
        }
    }

    /// Gives the store some of the records that it has rejected. [`Sessions::unstored_connected`] handles sessions of
    /// connected clients.
    pub fn store_again(&self) {
        let mut last = None;
        while let Some(key) = self.unstored.next_after(last.as_ref()) {
            let segment = self.segment(&key).1;
            let persistent = segment.persistent.get(&key);
            let is_connected = persistent.is_some_and(|persistent| persistent.away.is_none());
            let away = persistent.and_then(|persistent| persistent.away.as_deref());
            if !is_connected && !self.unstored.retry(&key, || self.store_away(&key, away)) {
                return;
            }
            last = Some(key);
        }
    }

    /// Returns true if messages that sessions have left are not with other members yet.
    pub fn has_redispatch(&self) -> bool {
        !self.redispatch.is_empty()
    }

    /// Returns true if the store has accepted all records so far.
    pub fn is_all_stored(&self) -> bool {
        self.unstored.is_empty()
    }

    /// Takes the session of a client that was away and has come back, or whose session ends.
    fn take_away(&self, segment: &mut Segment, key: &str) -> Option<Box<Away>> {
        let away = segment.persistent.get_mut(key)?.away.take()?;
        if let Some(due_s) = away.due_s() {
            segment.due.remove(&(due_s, Name::from(key)));
        }
        if away.is_doubted() {
            segment.doubted.remove(key);
        }
        self.away.fetch_sub(1, Relaxed);
        self.away_bytes.fetch_sub(away.bytes, Relaxed);
        self.owners.leave(key);
        Some(away)
    }

    /// Records the time. When the time of day is doubted no longer, sessions that were left meanwhile continue with
    /// their age.
    fn note_time(&self, now: Now) {
        let before = self.swept.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        if now.doubted_s() > 0 {
            return;
        }
        for mut segment in self.segments() {
            let Segment { persistent, due, doubted, .. } = &mut *segment;
            for key in std::mem::take(doubted) {
                let away =
                    persistent.get_mut(&key).and_then(|persistent| persistent.away.as_deref_mut());
                let Some(away) = away else { continue };
                // Without a sweep during the doubt, this is the time at which the client left.
                let before = before.filter(|it| it.doubted_s() > 0).unwrap_or(away.since);
                // Either ages are counted by the new time from now on, or the time of day has returned.
                let is_believed = now.age_s > before.age_s + before.doubted_s() / 2;
                let jump_s = if is_believed { before.doubted_s() } else { 0 };
                away.due_s().into_iter().for_each(|due_s| _ = due.remove(&(due_s, key.clone())));
                away.end_doubt(jump_s);
                due.extend(away.due_s().map(|due_s| (due_s, key.clone())));
                self.store_away(&key, Some(away));
            }
        }
    }

    /// Ends a session that outlived its connections. Returns the will to publish because of that.
    fn end_persistent(&self, segment: &mut Segment, key: &str) -> Option<Will> {
        let away = self.take_away(segment, key);
        let persistent = segment.persistent.remove(key);
        self.forget(key, persistent, away.as_ref().map(|away| &away.session));
        away?.will.map(|(will, _)| will)
    }

    /// Lets the store confirm that it has deleted the messages that sessions have left.
    fn settle_redispatch(&self) {
        let numbers = self.redispatch.begin(|key| self.unstored.contains(key));
        if numbers.is_empty() {
            return;
        }
        let (redispatch, unstored) = (self.redispatch.clone(), self.unstored.clone());
        self.settle(Box::new(move |is_settled| {
            redispatch.on_settled(&numbers, is_settled, |key| unstored.contains(key));
        }));
    }

    /// Returns true if the session of an ended connection may be stored; then it counts for its owner.
    fn try_reserve(&self, key: &str, bytes: usize) -> bool {
        let max = self.sessions_per_owner_max.load(Relaxed);
        let bytes = self.away_bytes.load(Relaxed).saturating_add(bytes);
        let fits = self.away.load(Relaxed) < self.sessions_max.load(Relaxed)
            && bytes <= self.bytes_max.load(Relaxed)
            && self.owners.enter(key, max);
        if !fits {
            self.counts.refused.fetch_add(1, Relaxed);
        }
        fits
    }

    /// Stores the session of an ended connection that no connection waits for.
    fn put_away(
        &self,
        segment: &mut Segment,
        key: &str,
        session: Session,
        will: Option<Will>,
        now: Now,
    ) -> Option<Will> {
        drop(self.take_away(segment, key));
        let (at_once, later) = match will {
            Some(will) if will.delay_s == 0 => (Some(will), None),
            will => (None, will),
        };
        let mut away = Away::new(session, now, later);
        if !away.session.outlives() || !self.try_reserve(key, away.bytes) {
            let persistent = segment.persistent.remove(key);
            self.forget(key, persistent, Some(&away.session));
            return at_once.or(away.take_will());
        }
        let before = segment
            .persistent
            .remove(key)
            .map(|persistent| persistent.interests)
            .unwrap_or_default();
        let interests = self.note_interests(&away.session, before);
        self.store_away(key, Some(&away));
        self.put_in(segment, &Name::from(key), away, interests);
        at_once
    }

    fn put_in(&self, segment: &mut Segment, key: &Name, away: Away, interests: Vec<Name>) {
        self.away.fetch_add(1, Relaxed);
        self.away_bytes.fetch_add(away.bytes, Relaxed);
        if let Some(due_s) = away.due_s() {
            segment.due.insert((due_s, key.clone()));
        }
        if away.is_doubted() {
            segment.doubted.insert(key.clone());
        }
        segment
            .persistent
            .insert(key.clone(), PersistentSession { away: Some(Box::new(away)), interests });
    }

    /// Drops the waiting will of a client that is away.
    fn drop_will(&self, key: &Name, away: &mut Away, due: &mut BTreeSet<(u64, Name)>) {
        let due_s = away.due_s();
        drop(self.take_will(away));
        if let Some(due_s) = due_s {
            due.remove(&(due_s, key.clone()));
        }
        due.extend(away.due_s().map(|due_s| (due_s, key.clone())));
        self.store_away(key, Some(away));
    }

    /// Takes the will of a client that is away, to be published or dropped.
    fn take_will(&self, away: &mut Away) -> Option<Will> {
        let before = away.bytes;
        let will = away.take_will();
        self.away_bytes.fetch_sub(before - away.bytes, Relaxed);
        will
    }
}

impl Sessions for Local {
    fn claim(&self, Claim { key, by, clean }: Claim<'_>) -> ClaimOutcome {
        let (hash, mut segment) = self.segment(key);
        let owner = segment.connected.owner(hash);
        segment.connected.set_owner(hash, by);
        if let Some(waiting) = segment.claims.get_mut(key) {
            // The connection that waited must release the session as well.
            let before = waiting.by.replace(by);
            waiting.awaited.extend(before);
            waiting.clean = clean;
            self.counts.taken_over.fetch_add(1, Relaxed);
            return ClaimOutcome::Wait(before);
        }
        if let Some((shard, slot)) = owner {
            // The serial is not stored: the shard compares the key.
            let old = ConnectionId { node: self.node, shard, slot, serial: 0 };
            let (by, awaited) = (Some(by), vec![old]);
            let waiting = Waiting { by, awaited, clean, session: None, will: None };
            segment.claims.insert(key.into(), waiting);
            self.counts.taken_over.fetch_add(1, Relaxed);
            return ClaimOutcome::Wait(Some(old));
        }
        // A session that ends with its connection is found here if the process ended with that connection.
        let is_ended = |away: &Away| !away.session.outlives();
        let away = segment.persistent.get(key).and_then(|persistent| persistent.away.as_deref());
        if clean || away.is_some_and(is_ended) {
            let will = self.end_persistent(&mut segment, key);
            return ClaimOutcome::New { will };
        }
        match self.take_away(&mut segment, key) {
            None => ClaimOutcome::New { will: None },
            Some(away) => {
                self.store_session(key, &away.session, (None, None), None);
                let Away { session, will, .. } = *away;
                // A delayed will belongs to a client that left while the process ran: it is published at its time.
                let will = will.map(|(will, _)| will).filter(|will| will.delay_s == 0);
                ClaimOutcome::Resumed { session: Box::new(session), will }
            }
        }
    }

    fn take(&self, Claim { key, by, clean }: Claim<'_>) -> WaitOutcome {
        let mut segment = self.segment(key).1;
        let ours = |waiting: &Waiting| waiting.by == Some(by) && waiting.awaited.is_empty();
        if !segment.claims.get(key).is_some_and(ours) {
            return WaitOutcome::Elsewhere;
        }
        let Some(Waiting { session, will, .. }) = segment.claims.remove(key) else {
            return WaitOutcome::Elsewhere;
        };
        match session {
            Some(session) if !clean => WaitOutcome::Resumed(Box::new(session)),
            session => {
                if clean {
                    drop(self.take_away(&mut segment, key));
                    let persistent = segment.persistent.remove(key);
                    self.forget(key, persistent, session.as_ref());
                }
                WaitOutcome::New { will }
            }
        }
    }

    fn release(&self, key: &str, from: ConnectionId, ended: Ended, now: Now) -> Released {
        let Ended { session, will } = ended;
        let outlives = session.as_ref().is_some_and(Session::outlives);
        let (hash, mut segment) = self.segment(key);
        let was_owner = segment.connected.clear_owner(hash, from);
        let Segment { claims, persistent, .. } = &mut *segment;
        let Some(waiting) = claims.get_mut(key) else {
            if !was_owner && !outlives {
                // Another connection has released the session before.
                self.forget(key, None, session.as_ref());
                return Released { notify: None, publish: will };
            }
            let session = session.unwrap_or_default();
            let publish = self.put_away(&mut segment, key, session, will, now);
            return Released { notify: None, publish };
        };
        let mut publish = None;
        if let Some(at) = waiting.awaited.iter().position(|awaited| is_same(*awaited, from)) {
            waiting.awaited.swap_remove(at);
            let goes_on = outlives && !waiting.clean;
            // A session that goes on with its next connection was not lost.
            let (later, now) = match will {
                Some(will) if goes_on && will.delay_s > 0 => (Some(will), None),
                will => (None, will),
            };
            publish = now;
            match session {
                Some(session) if outlives => {
                    (waiting.session, waiting.will) = (Some(session), later);
                }
                Some(session) => self.forget(key, persistent.remove(key), Some(&session)),
                None => {}
            }
        } else if waiting.by == Some(from) {
            waiting.by = None;
        }
        if !waiting.awaited.is_empty() {
            return Released { notify: None, publish };
        }
        if let Some(by) = waiting.by {
            return Released { notify: Some(by), publish };
        }
        let (session, will) = match segment.claims.remove(key) {
            Some(Waiting { session, will, .. }) => (session.unwrap_or_default(), will),
            None => (Session::default(), None),
        };
        let more = self.put_away(&mut segment, key, session, will, now);
        Released { notify: None, publish: publish.or(more) }
    }

    fn restore(&self, key: &str, by: ConnectionId) {
        let (hash, mut segment) = self.segment(key);
        segment.connected.set_owner(hash, by);
    }

    fn unrestore(&self, key: &str, by: ConnectionId) {
        let (hash, mut segment) = self.segment(key);
        segment.connected.clear_owner(hash, by);
    }

    fn linger(&self, key: &str, from: ConnectionId, by: ConnectionId) {
        let (hash, mut segment) = self.segment(key);
        let awaited = segment.claims.get_mut(key).into_iter().flat_map(|it| &mut it.awaited);
        awaited.filter(|awaited| is_same(**awaited, from)).for_each(|awaited| *awaited = by);
        if segment.connected.owner(hash) == Some((from.shard, from.slot)) {
            segment.connected.set_owner(hash, by);
        }
    }

    fn awaits_release(&self, key: &str, id: ConnectionId) -> bool {
        let segment = self.segment(key).1;
        let awaited =
            |waiting: &Waiting| waiting.awaited.iter().any(|awaited| is_same(*awaited, id));
        segment.claims.get(key).is_some_and(awaited)
    }

    fn on_connected_to_node(&self, key: &str, time: LogicalTime, is_clean: bool) -> NodeConnect {
        let (hash, mut segment) = self.segment(key);
        if let Some((shard, slot)) = segment.connected.owner(hash) {
            return NodeConnect::Connected(ConnectionId {
                node: self.node,
                shard,
                slot,
                serial: 0,
            });
        }
        let Segment { persistent, due, .. } = &mut *segment;
        let away = persistent.get_mut(key).and_then(|it| it.away.as_deref_mut());
        let is_earlier = |away: &&mut Away| {
            LogicalTime { number: away.session.connect_number, node: self.node } < time
        };
        let Some(away) = away.filter(is_earlier) else { return NodeConnect::Away(None) };
        if is_clean {
            return NodeConnect::Away(self.end_persistent(&mut segment, key));
        }
        if away.will.is_some() {
            self.drop_will(&Name::from(key), away, due);
        }
        NodeConnect::Away(None)
    }

    fn keep(&self, key: &str, session: &Session, will: Option<&Will>, done: Option<Done>) {
        let mut segment = self.segment(key).1;
        if !session.outlives() {
            // Its messages are retained until its connection ends. After a crash that time is over.
            return match segment.persistent.contains_key(key) {
                true => self.store_session(key, session, (will, Some(0)), done),
                false => done.into_iter().for_each(|done| done(true)),
            };
        }
        let persistent = segment.persistent.entry(key.into()).or_default();
        let before = std::mem::take(&mut persistent.interests);
        persistent.interests = self.note_interests(session, before);
        drop(segment);
        self.store_session(key, session, (will, None), done);
    }

    fn save(&self, key: &str, session: &Session, done: Option<Done>) -> bool {
        self.store_progress(key, session, done)
    }

    fn new_epoch(&self) -> u64 {
        // The random hasher makes the epochs of other processes differ.
        self.hasher.hash_one(self.epochs.fetch_add(1, Relaxed)).max(1)
    }

    fn unstored_connected(&self) -> Vec<(Name, ConnectionId)> {
        if !self.has_capacity() {
            return Vec::new();
        }
        let connected = |key: Name| {
            let (hash, segment) = self.segment(&key);
            segment.persistent.get(&key).filter(|persistent| persistent.away.is_none())?;
            let (shard, slot) = segment.connected.owner(hash)?;
            Some((key, ConnectionId { node: self.node, shard, slot, serial: 0 }))
        };
        self.unstored.all().into_iter().filter_map(connected).take(CONNECTED_MAX).collect()
    }

    fn store_connected(&self, key: &str, session: &Session, will: Option<&Will>) {
        // A session that ends with its connection has its messages retained until then.
        let away_since_s = (!session.outlives()).then_some(0);
        self.unstored.retry(&Name::from(key), || {
            self.store_progress(key, session, None);
            self.store_session(key, session, (will, away_since_s), None);
        });
    }

    fn has_capacity(&self) -> bool {
        self.storage.get().is_none_or(|storage| storage.has_capacity())
    }

    fn settle(&self, done: Done) {
        match self.storage.get() {
            Some(storage) => storage.settle(done),
            None => done(true),
        }
    }

    fn is_stored(&self) -> bool {
        self.storage.get().is_some()
    }

    fn interests(&self) -> &Interests {
        &self.interests
    }

    fn sweep(&self, now: Now) -> Vec<Will> {
        self.store_again();
        self.note_time(now);
        let now_s = now.age_s;
        let mut wills = Vec::new();
        for mut segment in self.segments() {
            // Times are stored in whole seconds: the second in which it is due must be over.
            while let Some((due_s, _)) = segment.due.first()
                && *due_s < now_s
            {
                let Some((_, key)) = segment.due.pop_first() else { break };
                let Some(away) = segment
                    .persistent
                    .get_mut(&key)
                    .and_then(|persistent| persistent.away.as_mut())
                else {
                    continue;
                };
                if away.expires_s().is_some_and(|expires_s| expires_s < now_s) {
                    self.counts.expired.fetch_add(1, Relaxed);
                    wills.extend(self.end_persistent(&mut segment, &key));
                    continue;
                }
                wills.extend(self.take_will(away));
                self.store_away(&key, Some(away));
                if let Some(next_s) = away.due_s() {
                    segment.due.insert((next_s, key));
                }
            }
        }
        self.redispatch.on_second();
        self.settle_redispatch();
        wills
    }

    fn redispatch(&self, key: Option<&str>, messages: Vec<Source>) {
        self.redispatch.insert(key, messages);
    }

    fn poll_redispatch(&self) -> Option<(u64, Source)> {
        self.redispatch.poll()
    }

    fn on_redispatched(&self, number: u64, outcome: RedispatchOutcome) -> bool {
        self.redispatch.on_done(number, outcome)
    }

    fn take_redispatch_dropped(&self) -> u64 {
        self.redispatch.take_dropped()
    }

    fn end(&self, key: &str) -> Option<Option<Will>> {
        let mut segment = self.segment(key).1;
        let is_away =
            segment.persistent.get(key).is_some_and(|persistent| persistent.away.is_some());
        is_away.then(|| self.end_persistent(&mut segment, key))
    }

    fn drop_wills(&self, is_shut_out: &dyn Fn(&Author) -> bool) {
        let is_due = |will: &Will| is_shut_out(&will.author);
        for mut segment in self.segments() {
            let Segment { persistent, claims, due, doubted: _, connected: _ } = &mut *segment;
            claims.values_mut().for_each(|waiting| drop(waiting.will.take_if(|will| is_due(will))));
            for (key, persistent) in persistent {
                let Some(away) = &mut persistent.away else { continue };
                if away.will.as_ref().is_some_and(|(will, _)| is_due(will)) {
                    self.drop_will(key, away, due);
                }
            }
        }
    }

    fn set_limits(&self, limits: Limits) {
        self.sessions_max.store(limits.sessions_max, Relaxed);
        self.sessions_per_owner_max.store(limits.sessions_per_owner_max, Relaxed);
        self.bytes_max.store(limits.bytes_max, Relaxed);
        self.seconds_max.store(limits.seconds_max.into(), Relaxed);
    }

    fn seconds(&self, requested: u32) -> u32 {
        let max = self.seconds_max.load(Relaxed);
        requested.min(u32::try_from(max).unwrap_or(WITHOUT_END))
    }

    fn away(&self, listing: &Listing) -> Vec<SessionInfo> {
        let mut first: BinaryHeap<(Name, Name)> = BinaryHeap::new();
        for segment in self.segments() {
            let away =
                segment.persistent.iter().filter(|(_, persistent)| persistent.away.is_some());
            for (key, _) in away.filter(|(key, _)| listing.has(SessionKey::parse(key))) {
                let session_key = SessionKey::parse(key);
                if first.len() < listing.limit {
                    first.push((session_key.to_string().into(), key.clone()));
                } else if first
                    .peek()
                    .is_some_and(|(last, _)| session_key < SessionKey::parse_position(last))
                {
                    first.pop();
                    first.push((session_key.to_string().into(), key.clone()));
                }
            }
        }
        // Some may have come back meanwhile.
        let info = |(_, key): (Name, Name)| {
            let segment = self.segment(&key).1;
            let away = segment.persistent.get(&key)?.away.as_ref()?;
            Some(away.info(&key))
        };
        first.into_sorted_vec().into_iter().filter_map(info).collect()
    }

    fn find(&self, key: &str) -> Option<Found> {
        let (hash, segment) = self.segment(key);
        if let Some(away) =
            segment.persistent.get(key).and_then(|persistent| persistent.away.as_ref())
        {
            let subscriptions = away.session.subscriptions.clone();
            return Some(Found::Away(away.info(key), subscriptions));
        }
        let (shard, slot) = segment.connected.owner(hash)?;
        Some(Found::Connected(ConnectionId { node: self.node, shard, slot, serial: 0 }))
    }

    fn stats(&self) -> Stats {
        Stats {
            away: self.away.load(Relaxed),
            away_bytes: self.away_bytes.load(Relaxed),
            persistent: self.segments().map(|segment| segment.persistent.len()).sum(),
            interests: self.interests.count(),
            expired: self.counts.expired.load(Relaxed),
            refused: self.counts.refused.load(Relaxed),
            taken_over: self.counts.taken_over.load(Relaxed),
        }
    }
}
