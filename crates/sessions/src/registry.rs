//! Who has which session, over all shards of a process.

use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{ConnectionId, Name, NodeId, Publication};

use crate::connected::Connected;
use crate::contract::{
    Claim, Claimed, Done, Ended, Found, Limits, Part, Released, SessionInfo, Sessions, Stats,
    Storage, Taken,
};
use crate::interests::Interests;
use crate::place::{Listing, Place};
use crate::session::{ProgressRecord, Session, SessionRecord, WITHOUT_END, Will};

/// The registry's parts, each with a lock of its own: none takes long to grow.
const SEGMENTS: usize = 64;

/// The sessions of one process.
pub struct Local {
    segments: Vec<Mutex<Segment>>,
    node: NodeId,
    /// Clients choose their identifiers.
    hasher: RandomState,
    interests: Arc<Interests>,
    storage: Option<Arc<dyn Storage>>,
    sessions_max: AtomicUsize,
    seconds_max: AtomicU64,
    away: AtomicUsize,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    expired: AtomicU64,
    refused: AtomicU64,
    taken_over: AtomicU64,
}

/// What is known of the sessions whose keys have a part of all hashes.
#[derive(Default)]
struct Segment {
    /// Who is connected.
    connected: Connected,
    /// Sessions that outlive their connections.
    kept: HashMap<Name, Kept>,
    /// Connections that wait for a session that another one has still.
    claims: HashMap<Name, Waiting>,
    /// When something is to be done about a session of nobody, in seconds since 1970.
    due: BTreeSet<(u64, Name)>,
}

/// A session that outlives its connection.
#[derive(Default)]
struct Kept {
    /// The session, while nobody is connected to it.
    away: Option<Box<Away>>,
    /// The filters that are noted as interests for it.
    interests: Vec<Name>,
}

struct Away {
    session: Session,
    since_s: u64,
    /// What is published if nobody comes back, and when, in seconds since 1970.
    will: Option<(Will, u64)>,
}

/// A connection that waits for a session.
struct Waiting {
    /// Which one; nothing when it has gone meanwhile.
    by: Option<ConnectionId>,
    /// It wants the session to end.
    clean: bool,
    /// These have still to let go: who has the session, and who waited before.
    told: Vec<ConnectionId>,
    /// What was let go.
    session: Option<Session>,
    /// What is published if nobody takes it up.
    will: Option<Will>,
}

/// Whether two ids name one place. The serial of who is told is not known.
fn is_same(a: ConnectionId, b: ConnectionId) -> bool {
    (a.shard, a.slot) == (b.shard, b.slot)
}

impl Local {
    /// No session yet. `node` is in the ids of all connections here.
    pub fn new(node: NodeId, interests: Arc<Interests>, storage: Option<Arc<dyn Storage>>) -> Self {
        let segments = (0..SEGMENTS).map(|_| Mutex::default()).collect();
        let limits = Limits::default();
        Local {
            segments,
            node,
            hasher: RandomState::new(),
            interests,
            storage,
            sessions_max: AtomicUsize::new(limits.sessions_max),
            seconds_max: AtomicU64::new(limits.seconds_max.into()),
            away: AtomicUsize::new(0),
            counts: Counts::default(),
        }
    }

    /// Takes in what a store holds of sessions: records by part and key, in any order. The connections
    /// that they had ended with the process, now at the latest. Gives how many could not be read.
    pub fn load(
        &self,
        records: impl IntoIterator<Item = (Part, String, Vec<u8>)>,
        now_s: u64,
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
            let (mut session, will, since_s) = record.import();
            if let Some(progress) = progress.remove(&key) {
                progress.import(&mut session);
            }
            let since_s = since_s.unwrap_or(now_s).min(now_s);
            let will = will.map(|will| {
                let due_s = since_s.saturating_add(will.delay_s.into());
                (will, due_s)
            });
            let mut segment = self.segment(&key).1;
            let key = Name::from(key);
            let interests = self.note_interests(&session, Vec::new());
            let away = Away { session, since_s, will };
            segment.put_away(&key, away, interests);
            self.away.fetch_add(1, Relaxed);
        }
        // What is left of a session that is gone.
        for key in progress.into_keys() {
            self.store(Part::Progress, &key, None, None);
        }
        unread
    }

    fn segment(&self, key: &str) -> (u64, MutexGuard<'_, Segment>) {
        let hash = self.hasher.hash_one(key);
        let at = (hash >> 48) as usize % SEGMENTS;
        (hash, self.segments[at].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All segments, one after the other.
    fn segments(&self) -> impl Iterator<Item = MutexGuard<'_, Segment>> {
        self.segments.iter().map(|segment| segment.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn store(&self, part: Part, key: &str, value: Option<Vec<u8>>, done: Option<Done>) {
        match &self.storage {
            Some(storage) => storage.put(part, key, value, done),
            None => done.into_iter().for_each(|done| done(true)),
        }
    }

    fn store_session(
        &self,
        key: &str,
        session: &Session,
        (will, away_since_s): (Option<&Will>, Option<u64>),
        done: Option<Done>,
    ) {
        if self.storage.is_none() {
            return done.into_iter().for_each(|done| done(true));
        }
        let record = minicbor::to_vec(SessionRecord::new(session, will, away_since_s));
        self.store(Part::Session, key, record.ok(), done);
    }

    fn store_progress(&self, key: &str, session: &Session, done: Option<Done>) {
        if self.storage.is_none() {
            return done.into_iter().for_each(|done| done(true));
        }
        let record = minicbor::to_vec(ProgressRecord::new(session));
        self.store(Part::Progress, key, record.ok(), done);
    }

    /// Notes what is to be retained for a session in place of what was. Gives that.
    fn note_interests(&self, session: &Session, before: Vec<Name>) -> Vec<Name> {
        let now: Vec<Name> = session.interests().map(Name::from).collect();
        // What stays must not be gone in between.
        now.iter().for_each(|filter| self.interests.add(filter));
        before.iter().for_each(|filter| self.interests.remove(filter));
        now
    }

    /// A session that outlived its connections is gone.
    fn forget_kept(&self, key: &str, kept: Kept) {
        kept.interests.iter().for_each(|filter| self.interests.remove(filter));
        if kept.away.is_some() {
            self.away.fetch_sub(1, Relaxed);
        }
        self.store(Part::Session, key, None, None);
        self.store(Part::Progress, key, None, None);
    }

    /// Ends a session that outlived its connections. Gives what is to be published because of that.
    fn end_kept(&self, segment: &mut Segment, key: &str) -> Option<Publication> {
        let mut kept = segment.kept.remove(key)?;
        let will = kept.away.as_mut().and_then(|away| away.will.take());
        self.forget_kept(key, kept);
        will.map(|(will, _)| will.publication)
    }

    /// Whether a session that ends its connection may be kept.
    fn has_room(&self) -> bool {
        let room = self.away.load(Relaxed) < self.sessions_max.load(Relaxed);
        if !room {
            self.counts.refused.fetch_add(1, Relaxed);
        }
        room
    }

    /// A connection has ended and nobody waits for its session.
    fn put_away(
        &self,
        segment: &mut Segment,
        key: &str,
        session: Session,
        will: Option<Will>,
        now_s: u64,
    ) -> Option<Publication> {
        if !session.outlives() || !self.has_room() {
            let kept = segment.kept.remove(key);
            kept.into_iter().for_each(|kept| self.forget_kept(key, kept));
            return will.map(|will| will.publication);
        }
        let (now, later) = match will {
            Some(will) if will.delay_s == 0 => (Some(will.publication), None),
            will => (None, will),
        };
        let before = segment.kept.remove(key).map(|kept| kept.interests).unwrap_or_default();
        let interests = self.note_interests(&session, before);
        self.store_progress(key, &session, None);
        self.store_session(key, &session, (later.as_ref(), Some(now_s)), None);
        let later = later.map(|will| {
            let due_s = now_s.saturating_add(will.delay_s.into());
            (will, due_s)
        });
        let away = Away { session, since_s: now_s, will: later };
        segment.put_away(&Name::from(key), away, interests);
        self.away.fetch_add(1, Relaxed);
        now
    }
}

impl Segment {
    fn put_away(&mut self, key: &Name, away: Away, interests: Vec<Name>) {
        if let Some(due_s) = away.due_s() {
            self.due.insert((due_s, key.clone()));
        }
        self.kept.insert(key.clone(), Kept { away: Some(Box::new(away)), interests });
    }
}

impl Away {
    /// When it is over; nothing where it has no end.
    fn over_s(&self) -> Option<u64> {
        let seconds = self.session.seconds;
        (seconds != WITHOUT_END).then(|| self.since_s.saturating_add(seconds.into()))
    }

    fn info(&self, key: &str) -> SessionInfo {
        let session = &self.session;
        SessionInfo {
            key: key.into(),
            since_s: self.since_s,
            over_s: self.over_s(),
            seconds: session.seconds,
            subscriptions: session.subscriptions.len(),
            in_flight: session.flow.in_flight(),
            position: session.position,
            waiting: session.refs.len(),
        }
    }

    /// When there is something to do about it.
    fn due_s(&self) -> Option<u64> {
        let will_s = self.will.as_ref().map(|(_, due_s)| *due_s);
        [will_s, self.over_s()].into_iter().flatten().min()
    }
}

impl Sessions for Local {
    fn claim(&self, Claim { key, by, clean }: Claim<'_>) -> Claimed {
        let (hash, mut segment) = self.segment(key);
        let owner = segment.connected.owner(hash);
        segment.connected.set_owner(hash, by);
        if let Some(waiting) = segment.claims.get_mut(key) {
            // Whoever waited has to let go as well.
            let before = waiting.by.replace(by);
            waiting.told.extend(before);
            waiting.clean = clean;
            self.counts.taken_over.fetch_add(1, Relaxed);
            return Claimed::Wait(before);
        }
        if let Some((shard, slot)) = owner {
            // The serial is not noted: the key says whether it is the same.
            let old = ConnectionId { node: self.node, shard, slot, serial: 0 };
            let (by, told) = (Some(by), vec![old]);
            let waiting = Waiting { by, told, clean, session: None, will: None };
            segment.claims.insert(key.into(), waiting);
            self.counts.taken_over.fetch_add(1, Relaxed);
            return Claimed::Wait(Some(old));
        }
        if clean {
            let will = self.end_kept(&mut segment, key);
            return Claimed::New { will };
        }
        let away = segment.kept.get_mut(key).and_then(|kept| kept.away.take());
        match away {
            None => Claimed::New { will: None },
            Some(away) => {
                self.away.fetch_sub(1, Relaxed);
                self.store_session(key, &away.session, (None, None), None);
                Claimed::Resumed(Box::new(away.session))
            }
        }
    }

    fn take(&self, Claim { key, by, clean }: Claim<'_>) -> Taken {
        let mut segment = self.segment(key).1;
        let ours = |waiting: &Waiting| waiting.by == Some(by) && waiting.told.is_empty();
        if !segment.claims.get(key).is_some_and(ours) {
            return Taken::Elsewhere;
        }
        let session = segment.claims.remove(key).and_then(|waiting| waiting.session);
        if clean {
            self.end_kept(&mut segment, key);
            return Taken::New;
        }
        session.map_or(Taken::New, |session| Taken::Resumed(Box::new(session)))
    }

    fn release(&self, key: &str, from: ConnectionId, ended: Ended, now_s: u64) -> Released {
        let Ended { session, will } = ended;
        let (hash, mut segment) = self.segment(key);
        let was_owner = segment.connected.clear_owner(hash, from);
        let Some(waiting) = segment.claims.get_mut(key) else {
            if !was_owner && session.is_none() {
                // Somebody else has let go of it before.
                let publish = will.map(|will| will.publication);
                return Released { notify: None, publish };
            }
            let session = session.unwrap_or_default();
            let publish = self.put_away(&mut segment, key, session, will, now_s);
            return Released { notify: None, publish };
        };
        let mut publish = None;
        if let Some(at) = waiting.told.iter().position(|told| is_same(*told, from)) {
            waiting.told.swap_remove(at);
            let goes_on = session.as_ref().is_some_and(Session::outlives) && !waiting.clean;
            // A session that goes on with its next connection was not lost.
            let (later, now) = match will {
                Some(will) if goes_on && will.delay_s > 0 => (Some(will), None),
                will => (None, will),
            };
            publish = now.map(|will| will.publication);
            if session.is_some() {
                (waiting.session, waiting.will) = (session.filter(Session::outlives), later);
            }
        } else if waiting.by == Some(from) {
            waiting.by = None;
        }
        if !waiting.told.is_empty() {
            return Released { notify: None, publish };
        }
        if let Some(by) = waiting.by {
            return Released { notify: Some(by), publish };
        }
        let (session, will) = match segment.claims.remove(key) {
            Some(Waiting { session, will, .. }) => (session.unwrap_or_default(), will),
            None => (Session::default(), None),
        };
        let more = self.put_away(&mut segment, key, session, will, now_s);
        Released { notify: None, publish: publish.or(more) }
    }

    fn is_told(&self, key: &str, id: ConnectionId) -> bool {
        let segment = self.segment(key).1;
        let told = |waiting: &Waiting| waiting.told.iter().any(|told| is_same(*told, id));
        segment.claims.get(key).is_some_and(told)
    }

    fn keep(&self, key: &str, session: &Session, will: Option<&Will>, done: Option<Done>) {
        let mut segment = self.segment(key).1;
        if !session.outlives() {
            let kept = segment.kept.remove(key);
            kept.into_iter().for_each(|kept| self.forget_kept(key, kept));
            return done.into_iter().for_each(|done| done(true));
        }
        let kept = segment.kept.entry(key.into()).or_default();
        let before = std::mem::take(&mut kept.interests);
        kept.interests = self.note_interests(session, before);
        drop(segment);
        self.store_session(key, session, (will, None), done);
    }

    fn save(&self, key: &str, session: &Session, done: Option<Done>) {
        self.store_progress(key, session, done);
    }

    fn settle(&self, done: Done) {
        match &self.storage {
            Some(storage) => storage.settle(done),
            None => done(true),
        }
    }

    fn is_stored(&self) -> bool {
        self.storage.is_some()
    }

    fn interests(&self) -> &Interests {
        &self.interests
    }

    fn sweep(&self, now_s: u64) -> Vec<Publication> {
        let mut wills = Vec::new();
        for mut segment in self.segments() {
            while let Some((due_s, _)) = segment.due.first()
                && *due_s <= now_s
            {
                let Some((due_s, key)) = segment.due.pop_first() else { break };
                let Some(away) = segment.kept.get_mut(&key).and_then(|kept| kept.away.as_mut())
                else {
                    continue;
                };
                // It may have been here, and gone again, since that was noted.
                if away.due_s() != Some(due_s) {
                    continue;
                }
                if away.over_s().is_some_and(|over_s| over_s <= now_s) {
                    self.counts.expired.fetch_add(1, Relaxed);
                    wills.extend(self.end_kept(&mut segment, &key));
                    continue;
                }
                wills.extend(away.will.take().map(|(will, _)| will.publication));
                let since_s = away.since_s;
                self.store_session(&key, &away.session, (None, Some(since_s)), None);
                if let Some(next_s) = away.due_s() {
                    segment.due.insert((next_s, key));
                }
            }
        }
        wills
    }

    fn end(&self, key: &str) -> Option<Option<Publication>> {
        let mut segment = self.segment(key).1;
        let is_away = segment.kept.get(key).is_some_and(|kept| kept.away.is_some());
        is_away.then(|| self.end_kept(&mut segment, key))
    }

    fn set_limits(&self, limits: Limits) {
        self.sessions_max.store(limits.sessions_max, Relaxed);
        self.seconds_max.store(limits.seconds_max.into(), Relaxed);
    }

    fn seconds(&self, wanted: u32) -> u32 {
        let max = self.seconds_max.load(Relaxed);
        wanted.min(u32::try_from(max).unwrap_or(WITHOUT_END))
    }

    fn away(&self, listing: &Listing) -> Vec<SessionInfo> {
        let mut first: BinaryHeap<(Name, Name)> = BinaryHeap::new();
        for segment in self.segments() {
            let away = segment.kept.iter().filter(|(_, kept)| kept.away.is_some());
            for (key, _) in away.filter(|(key, _)| listing.has(Place::of_key(key))) {
                let place = Place::of_key(key);
                if first.len() < listing.limit {
                    first.push((place.to_string().into(), key.clone()));
                } else if first.peek().is_some_and(|(last, _)| place < Place::of_text(last)) {
                    first.pop();
                    first.push((place.to_string().into(), key.clone()));
                }
            }
        }
        // Some may have come back meanwhile.
        let info = |(_, key): (Name, Name)| {
            let segment = self.segment(&key).1;
            let away = segment.kept.get(&key)?.away.as_ref()?;
            Some(away.info(&key))
        };
        first.into_sorted_vec().into_iter().filter_map(info).collect()
    }

    fn find(&self, key: &str) -> Option<Found> {
        let (hash, segment) = self.segment(key);
        if let Some(away) = segment.kept.get(key).and_then(|kept| kept.away.as_ref()) {
            let subscriptions = away.session.subscriptions.clone();
            return Some(Found::Away(away.info(key), subscriptions));
        }
        let (shard, slot) = segment.connected.owner(hash)?;
        Some(Found::Connected(ConnectionId { node: self.node, shard, slot, serial: 0 }))
    }

    fn stats(&self) -> Stats {
        Stats {
            away: self.away.load(Relaxed),
            kept: self.segments().map(|segment| segment.kept.len()).sum(),
            interests: self.interests.count(),
            expired: self.counts.expired.load(Relaxed),
            refused: self.counts.refused.load(Relaxed),
            taken_over: self.counts.taken_over.load(Relaxed),
        }
    }
}
