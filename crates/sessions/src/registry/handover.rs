//! Passes sessions to another process: those of clients that are away, the interests of those of connected ones, and
//! the connections that wait for a session that another one has.
//!
//! The sessions of connected clients are in the records of their connections, and the importing engines set their
//! owners again. The import gives nothing to the store: the old process has given it the records, and the list of
//! unstored ones names the rest.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ::handover::{Part, PartError, decode, encode};
use minicbor::{Decode, Encode};
use model::{ConnectionId, Name, NodeId};

use super::{Local, PersistentSession, Segment, Waiting};
use crate::away::Away;
use crate::contract::Now;
use crate::records::{key, parts};
use crate::session::{ProgressRecord, Session, SessionRecord, Will};

/// Sessions that are exported under their segment's lock at a time.
const PIECE: usize = 128;

/// Kinds of keys. They never change.
const PERSISTENT: u8 = b'k';
const CLAIM: u8 = b'c';
const UNSTORED: u8 = b'u';
const REDISPATCH: u8 = b'r';

/// A session that outlives its connection.
#[derive(Encode, Decode)]
#[cbor(map)]
struct PersistentSessionRecord {
    /// `None` while its client is connected.
    #[n(0)]
    away: Option<AwayRecord>,
    /// The filters that are counted for it, while its client is connected.
    #[cbor(n(1), default)]
    interests: Vec<String>,
    /// When its client left by the time of ages, in seconds since 1970.
    #[n(2)]
    since_age_s: Option<u64>,
}

/// A session without a connection, with its will and the time at which its client left.
#[derive(Encode, Decode)]
#[cbor(map)]
struct AwayRecord {
    #[n(0)]
    session: SessionRecord,
    #[n(1)]
    progress: ProgressRecord,
}

/// A connection that waits for a session.
#[derive(Encode, Decode)]
#[cbor(map)]
struct ClaimRecord {
    #[n(0)]
    by: Option<Id>,
    #[cbor(n(1), default)]
    clean: bool,
    #[cbor(n(2), default)]
    awaited: Vec<Id>,
    #[n(3)]
    session: Option<AwayRecord>,
}

/// Node, shard, slot and serial.
type Id = (u32, u16, u32, u32);

fn id_record(ConnectionId { node: NodeId(node), shard, slot, serial }: ConnectionId) -> Id {
    (node, shard, slot, serial)
}

fn id((node, shard, slot, serial): Id) -> ConnectionId {
    ConnectionId { node: NodeId(node), shard, slot, serial }
}

impl AwayRecord {
    fn new(session: &Session, will: Option<&Will>, since_s: Option<u64>) -> Self {
        AwayRecord {
            session: SessionRecord::new(session, will, since_s),
            progress: ProgressRecord::new(session),
        }
    }

    fn import(self) -> (Session, Option<Will>, Option<u64>) {
        let (mut session, will, since_s) = self.session.import();
        // The two were exported together.
        let _ = self.progress.import(&mut session);
        (session, will, since_s)
    }
}

impl From<&PersistentSession> for PersistentSessionRecord {
    fn from(PersistentSession { away, interests }: &PersistentSession) -> Self {
        match away {
            Some(away) => {
                // When the will is due follows from when the client left.
                let Away { session, since, will, bytes: _ } = &**away;
                let will = will.as_ref().map(|(will, _)| will);
                let away = Some(AwayRecord::new(session, will, Some(since.unix_s)));
                PersistentSessionRecord {
                    away,
                    interests: Vec::new(),
                    since_age_s: Some(since.age_s),
                }
            }
            None => {
                let interests = interests.iter().map(Name::to_string).collect();
                PersistentSessionRecord { away: None, interests, since_age_s: None }
            }
        }
    }
}

impl From<&Waiting> for ClaimRecord {
    fn from(Waiting { by, clean, awaited, session, will }: &Waiting) -> Self {
        let session = session.as_ref();
        ClaimRecord {
            by: by.map(id_record),
            clean: *clean,
            awaited: awaited.iter().copied().map(id_record).collect(),
            session: session.map(|session| AwayRecord::new(session, will.as_ref(), None)),
        }
    }
}

impl From<ClaimRecord> for Waiting {
    fn from(ClaimRecord { by, clean, awaited, session }: ClaimRecord) -> Self {
        let (session, will) = match session.map(AwayRecord::import) {
            Some((session, will, _)) => (Some(session), will),
            None => (None, None),
        };
        let awaited = awaited.into_iter().map(id).collect();
        Waiting { by: by.map(id), clean, awaited, session, will }
    }
}

fn lock(segment: &Mutex<Segment>) -> MutexGuard<'_, Segment> {
    segment.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Local {
    fn export_segment(segment: &Mutex<Segment>, each: &mut dyn FnMut(&[u8], &[u8])) {
        let keys: Vec<Name> = lock(segment).persistent.keys().cloned().collect();
        for keys in keys.chunks(PIECE) {
            let segment = lock(segment);
            // Some may have ended meanwhile.
            let record =
                |name: &Name| Some((key(PERSISTENT, name), segment.persistent.get(name)?.into()));
            let records: Vec<(_, PersistentSessionRecord)> =
                keys.iter().filter_map(record).collect();
            drop(segment);
            records.iter().for_each(|(key, record)| each(key, &encode(record)));
        }
        let segment = lock(segment);
        let record = |(name, waiting): (&Name, &Waiting)| (key(CLAIM, name), waiting.into());
        let claims: Vec<(_, ClaimRecord)> = segment.claims.iter().map(record).collect();
        drop(segment);
        claims.iter().for_each(|(key, record)| each(key, &encode(record)));
    }

    fn import_persistent(&self, key: &str, record: Option<PersistentSessionRecord>) {
        let mut segment = self.segment(key).1;
        drop(self.take_away(&mut segment, key));
        let persistent = segment.persistent.remove(key);
        let before = persistent.map(|persistent| persistent.interests).unwrap_or_default();
        let Some(PersistentSessionRecord { away, interests, since_age_s }) = record else {
            return drop(self.replace_interests(Vec::new(), before));
        };
        let key = Name::from(key);
        match away.map(AwayRecord::import) {
            Some((session, will, since_s)) => {
                let unix_s = since_s.unwrap_or_default();
                let since = Now { unix_s, age_s: since_age_s.unwrap_or(unix_s) };
                let away = Away::new(session, since, will);
                let interests = self.note_interests(&away.session, before);
                // A stored session stays even if the limit has changed.
                self.owners.enter(&key, 0);
                self.put_in(&mut segment, &key, away, interests);
            }
            None => {
                let now = interests.into_iter().map(Name::from).collect();
                let interests = self.replace_interests(now, before);
                segment.persistent.insert(key, PersistentSession { away: None, interests });
            }
        }
    }
}

impl Part for Local {
    fn name(&self) -> &'static str {
        "sessions"
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        self.segments.iter().for_each(|segment| Self::export_segment(segment, each));
        self.unstored.all().iter().for_each(|name| each(&key(UNSTORED, name), &[]));
        for (number, record) in self.redispatch.export() {
            each(&key(REDISPATCH, &number.to_string()), &encode(record));
        }
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let damaged = |what| PartError::new("sessions", what);
        let (kind, name) = parts(key).map_err(|what| damaged(what.into()))?;
        let of_name = |error| damaged(format!("{name}: {error}"));
        match kind {
            PERSISTENT => {
                let record = value.map(decode).transpose().map_err(of_name)?;
                self.import_persistent(name, record);
            }
            CLAIM => {
                let record: Option<ClaimRecord> = value.map(decode).transpose().map_err(of_name)?;
                let mut segment = self.segment(name).1;
                match record
                    .map(Waiting::from)
                    .filter(|it| it.by.is_some() || !it.awaited.is_empty())
                {
                    Some(waiting) => drop(segment.claims.insert(name.into(), waiting)),
                    None => drop(segment.claims.remove(name)),
                }
            }
            UNSTORED => match value {
                Some(_) => self.unstored.insert(name),
                None => self.unstored.remove(name),
            },
            REDISPATCH => {
                let number =
                    name.parse().map_err(|_| damaged(format!("{name} is not a number")))?;
                self.redispatch.import(number, value.map(decode).transpose().map_err(of_name)?);
            }
            // A newer version may have other kinds.
            _ => {}
        }
        Ok(())
    }

    /// Makes connections that wait for a session its owners again. Call it after the connections have been imported,
    /// too.
    fn complete(&self) -> Result<(), PartError> {
        for mut segment in self.segments() {
            let Segment { claims, connected, .. } = &mut *segment;
            for (key, waiting) in claims.iter() {
                if let Some(by) = waiting.by {
                    connected.set_owner(self.hash(key), by);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ::handover::testing::pass_all;
    use ::handover::{Part as _, Sent};
    use model::{Data, Publication, Qos};

    use super::*;
    use crate::contract::{
        Claim, ClaimOutcome, Done, Ended, Found, Part, RedispatchOutcome, Sessions, Storage,
        WaitOutcome,
    };
    use crate::flow::Source;
    use crate::session::{Author, Subscription, SubscriptionOptions};
    use crate::session_key::{Listing, SessionKey};

    const NODE: NodeId = NodeId(7);

    fn by(slot: u32) -> ConnectionId {
        ConnectionId { node: NODE, shard: 1, slot, serial: 5 }
    }

    fn session(filter: &str) -> Session {
        let options = SubscriptionOptions { qos: Qos::AtLeastOnce, ..Default::default() };
        let subscription = Subscription::new(filter.into(), None, options, 3, 8);
        let mut session = Session {
            seconds: 60,
            subscriptions: vec![subscription],
            position: 11,
            ..Session::default()
        };
        session.flow.send(Qos::ExactlyOnce, None, 9);
        session
    }

    fn will(delay_s: u32) -> Will {
        let publication = Publication::new("gone", Data::Text("x".into()));
        Will { publication, delay_s, expiry_s: Some(4), author: Author::default() }
    }

    /// Records what it is given, and has no capacity.
    #[derive(Default)]
    struct Full(Mutex<Vec<String>>);

    impl Storage for Full {
        fn put(&self, _: Part, key: &str, _: Option<Vec<u8>>, done: Option<Done>) -> bool {
            self.0.lock().unwrap().push(key.into());
            done.into_iter().for_each(|done| done(true));
            true
        }

        fn has_capacity(&self) -> bool {
            false
        }

        fn settle(&self, done: Done) {
            done(true);
        }
    }

    fn claim(sessions: &Local, key: &str, slot: u32) -> ClaimOutcome {
        sessions.claim(Claim { key, by: by(slot), clean: false })
    }

    fn leave(sessions: &Local, key: &str, slot: u32, ended: Ended) {
        let released = sessions.release(key, by(slot), ended, Now::at(1_000));
        assert_eq!((released.notify, released.publish), (None, None));
    }

    #[test]
    fn another_process_has_the_sessions_as_they_were() {
        let old = Local::new(NODE, Arc::default(), None);
        let store = Arc::new(Full::default());
        let new = Local::new(NODE, Arc::default(), Some(store.clone()));
        let keys: Vec<Name> = (0..300)
            .map(|n| SessionKey { client: &n.to_string(), owner: Some("al") }.encode())
            .collect();
        for (slot, key) in (0_u32..).zip(&keys) {
            claim(&old, key, slot);
            let session = session(&format!("a/{}", slot % 7));
            old.keep(key, &session, None, None);
            if !slot.is_multiple_of(3) {
                let will = (slot % 3 == 1).then(|| will(30));
                leave(&old, key, slot, Ended { session: Some(session), will });
            }
        }
        let mut sent = Sent::new();
        assert_eq!(pass_all(&old, &new, &mut sent), 300);
        assert_eq!(pass_all(&old, &new, &mut sent), 0);
        // One client comes back, one leaves, one away session ends.
        assert!(matches!(claim(&old, &keys[1], 900), ClaimOutcome::Resumed { .. }));
        leave(&old, &keys[0], 0, Ended { session: Some(session("b")), will: None });
        old.end(&keys[2]).unwrap();
        assert_eq!(pass_all(&old, &new, &mut sent), 3);
        assert_eq!(new.stats(), old.stats());
        let listing = || Listing { limit: 1_000, ..Listing::default() };
        assert_eq!(new.away(&listing()), old.away(&listing()));
        for filter in ["a/0", "a/6", "b", "c"] {
            assert_eq!(new.interests().holds(filter), old.interests().holds(filter), "{filter}");
        }
        assert_eq!(new.sweep(Now::at(1_031)), old.sweep(Now::at(1_031)), "wills");
        assert_eq!(new.sweep(Now::at(1_061)).len(), old.sweep(Now::at(1_061)).len());
        assert_eq!((new.stats(), new.stats().away, new.interests().count()), (old.stats(), 0, 7));
    }

    #[test]
    fn an_import_writes_nothing_and_knows_what_is_not_stored() {
        let (full, stored) = (Arc::new(Full::default()), Arc::new(Full::default()));
        let old = Local::new(NODE, Arc::default(), Some(full));
        let new = Local::new(NODE, Arc::default(), Some(stored.clone()));
        claim(&old, "a", 1);
        old.keep("a", &session("a"), None, None);
        leave(&old, "a", 1, Ended { session: Some(session("a")), will: None });
        let mut sent = Sent::new();
        assert_eq!(pass_all(&old, &new, &mut sent), 2);
        assert!(stored.0.lock().unwrap().is_empty() && !new.is_all_stored());
        old.unstored.remove("a");
        assert_eq!(pass_all(&old, &new, &mut sent), 1);
        assert!(new.is_all_stored());
        assert!(stored.0.lock().unwrap().is_empty());
    }

    #[test]
    fn what_sessions_leave_to_their_groups_goes_along() {
        let group = Some("$share/g/a".into());
        let source =
            |offset| Source { topic: "a".into(), offset, retained: false, group: group.clone() };
        let old = Local::new(NODE, Arc::default(), Some(Arc::new(Full::default())));
        let new = Local::new(NODE, Arc::default(), None);
        claim(&old, "a", 1);
        old.keep("a", &session("a"), None, None);
        let left = Session { refs: vec![source(3), source(4)], ..session("a") };
        leave(&old, "a", 1, Ended { session: Some(left), will: None });
        old.end("a").unwrap();
        old.redispatch(Some("b"), vec![source(5)]);
        // The store has no capacity for the end of the first one's session.
        assert!(old.sweep(Now::at(1_000)).is_empty());
        let taken = old.poll_redispatch();
        assert_eq!((taken, old.poll_redispatch()), (Some((2, source(5))), None));
        let mut sent = Sent::new();
        assert_eq!(pass_all(&old, &new, &mut sent), 4);
        assert!(old.on_redispatched(2, RedispatchOutcome::Passed));
        assert!(old.on_redispatched(2, RedispatchOutcome::Taken));
        assert_eq!(pass_all(&old, &new, &mut sent), 1);
        new.unstored.remove("a");
        assert!(new.interests().holds("a"));
        assert!(new.sweep(Now::at(1_000)).is_empty());
        for (number, offset) in [(0, 3), (1, 4)] {
            assert_eq!(new.poll_redispatch(), Some((number, source(offset))));
            assert!(new.on_redispatched(number, RedispatchOutcome::Passed));
            assert!(new.on_redispatched(number, RedispatchOutcome::Taken));
        }
        assert_eq!(new.poll_redispatch(), None);
        // Their topic is retained until then.
        assert!(old.interests().holds("a") && !new.interests().holds("a"));
    }

    #[test]
    fn who_waits_for_a_session_gets_it_in_the_other_process() {
        let old = Local::new(NODE, Arc::default(), None);
        let new = Local::new(NODE, Arc::default(), None);
        claim(&old, "a", 1);
        assert_eq!(
            claim(&old, "a", 2),
            ClaimOutcome::Wait(Some(ConnectionId { serial: 0, ..by(1) }))
        );
        let mut sent = Sent::new();
        assert_eq!(pass_all(&old, &new, &mut sent), 1);
        let lets_go = Ended { session: Some(session("a")), will: Some(will(9)) };
        let released = new.release("a", by(1), lets_go, Now::at(1_000));
        assert_eq!((released.notify, released.publish), (Some(by(2)), None));
        assert_eq!(pass_all(&old, &new, &mut sent), 0, "the old one has not changed");
        let taken = new.take(Claim { key: "a", by: by(2), clean: false });
        assert!(matches!(taken, WaitOutcome::Resumed(it) if *it == session("a")));
        // The connection is the owner.
        assert_eq!(
            claim(&new, "a", 3),
            ClaimOutcome::Wait(Some(ConnectionId { serial: 0, ..by(2) }))
        );
    }

    #[test]
    fn who_is_connected_is_known_silently_and_can_be_taken_back() {
        let new = Local::new(NODE, Arc::default(), None);
        new.restore("a", by(1));
        let found = |key: &str| new.find(key);
        assert_eq!(found("a"), Some(Found::Connected(ConnectionId { serial: 0, ..by(1) })));
        // Another connection has taken the session over meanwhile.
        new.restore("a", by(2));
        new.unrestore("a", by(1));
        assert_eq!(found("a"), Some(Found::Connected(ConnectionId { serial: 0, ..by(2) })));
        new.unrestore("a", by(2));
        assert_eq!((found("a"), new.stats().away), (None, 0));
    }

    #[test]
    fn the_age_of_a_session_goes_along_while_the_time_of_day_is_doubted() {
        let doubted = |age_s| Now { unix_s: age_s + 1_000_000, age_s };
        for (is_believed, is_swept) in [(true, true), (true, false), (false, true), (false, false)]
        {
            let old = Local::new(NODE, Arc::default(), None);
            let new = Local::new(NODE, Arc::default(), None);
            claim(&old, "a", 1);
            let ended = Ended { session: Some(session("a")), will: Some(will(30)) };
            let released = old.release("a", by(1), ended, doubted(1_000));
            assert_eq!((released.notify, released.publish), (None, None));
            assert_eq!(pass_all(&old, &new, &mut Sent::new()), 1);
            if is_swept {
                assert!(new.sweep(doubted(1_010)).is_empty());
            }
            let at = |age_s| Now::at(if is_believed { age_s + 1_000_000 } else { age_s });
            assert!(new.sweep(at(1_030)).is_empty());
            assert_eq!(new.sweep(at(1_031)).len(), 1, "its will");
            assert!(new.sweep(at(1_060)).is_empty());
            assert_eq!(new.stats().away, 1);
            assert!(new.sweep(at(1_061)).is_empty());
            assert_eq!(new.stats().away, 0, "believed: {is_believed}, swept: {is_swept}");
        }
    }

    #[test]
    fn damaged_records_are_reported() {
        let sessions = Local::new(NODE, Arc::default(), None);
        for (key, value) in
            [(&b""[..], &b""[..]), (b"k\xff", b""), (b"ka", b"\xff"), (b"ca", b""), (b"rx", b"")]
        {
            assert!(sessions.import(key, Some(value)).is_err());
        }
        assert!(sessions.import(b"zlater", Some(b"?")).is_ok());
    }
}
