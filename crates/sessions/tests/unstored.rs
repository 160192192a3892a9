//! Tests of the disk after the store has rejected records of sessions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use model::{ConnectionId, NodeId, Qos};
use sessions::{
    Claim, ClaimOutcome, CurrentLog, Done, Ended, Local, Now, Part, Session, Sessions, Source,
    State, Storage, Subscription, SubscriptionOptions,
};

const NODE: NodeId = NodeId(1);

fn id(slot: u32) -> ConnectionId {
    ConnectionId { node: NODE, shard: 1, slot, serial: 7 }
}

/// By part and key.
type Records = BTreeMap<(&'static str, String), (Part, Vec<u8>)>;

/// A disk that has at once what the store accepts.
#[derive(Default)]
struct Disk {
    /// True if the store is over half full.
    is_half_full: AtomicBool,
    is_full: AtomicBool,
    records: Mutex<Records>,
}

impl Storage for Disk {
    fn put(&self, part: Part, key: &str, value: Option<Vec<u8>>, done: Option<Done>) -> bool {
        let is_taken = !self.is_full.load(Relaxed);
        if is_taken {
            let mut records = self.records.lock().unwrap();
            let record_key = (part.name(), key.to_string());
            match value {
                Some(value) => drop(records.insert(record_key, (part, value))),
                None => drop(records.remove(&record_key)),
            }
        }
        done.into_iter().for_each(|done| done(is_taken));
        is_taken
    }

    fn has_capacity(&self) -> bool {
        !self.is_half_full.load(Relaxed) && !self.is_full.load(Relaxed)
    }

    fn settle(&self, done: Done) {
        done(!self.is_full.load(Relaxed));
    }
}

/// Makes a process, with its disk.
fn process() -> (Local, Arc<Disk>) {
    let disk = Arc::new(Disk::default());
    (Local::new(NODE, Arc::default(), Some(disk.clone())), disk)
}

/// Returns the next process, after the one before was killed.
fn next_process(disk: &Arc<Disk>) -> Local {
    let sessions = Local::new(NODE, Arc::default(), Some(disk.clone()));
    let records = disk.records.lock().unwrap().clone();
    let records = records.into_iter().map(|((_, key), (part, value))| (part, key, value));
    assert_eq!(sessions.load(records, Now::at(1_000)), 0);
    sessions
}

fn source(group: Option<&str>) -> Source {
    Source { topic: "t".into(), offset: 9, retained: false, group: group.map(Into::into) }
}

/// Makes a session at this position, with a message in flight and one that waits for a member of the group.
fn session(position: u64) -> Session {
    let refs = vec![source(Some("$share/g/t"))];
    let mut session = Session { epoch: 5, seconds: 60, position, refs, ..Session::default() };
    session.flow.send(Qos::ExactlyOnce, Some(source(None)), 9);
    session
}

fn claim(sessions: &Local, clean: bool) -> ClaimOutcome {
    sessions.claim(Claim { key: "a", by: id(3), clean })
}

fn resume(sessions: &Local) -> Session {
    match claim(sessions, false) {
        ClaimOutcome::Resumed { session, .. } => *session,
        other => panic!("{other:?}"),
    }
}

fn leave(sessions: &Local, session: Session) {
    let released =
        sessions.release("a", id(3), Ended { session: Some(session), will: None }, Now::at(1_000));
    assert_eq!(released, Default::default());
}

/// The client connects with a clean start. Returns its new session.
fn begin_anew(sessions: &Local) -> Session {
    assert!(matches!(claim(sessions, true), ClaimOutcome::New { .. }));
    let new = Session { epoch: sessions.new_epoch(), seconds: 60, ..Session::default() };
    sessions.keep("a", &new, None, None);
    new
}

#[test]
fn a_new_session_takes_nothing_of_the_one_before_after_a_crash() {
    let (sessions, disk) = process();
    assert!(matches!(claim(&sessions, false), ClaimOutcome::New { .. }));
    sessions.keep("a", &session(41), None, None);
    leave(&sessions, session(41));
    // The end of the session waits for capacity, and the subscriptions of the next one do not.
    disk.is_half_full.store(true, Relaxed);
    let new = begin_anew(&sessions);
    let (next, records) = (next_process(&disk), disk.records.lock().unwrap().len());
    assert_eq!((resume(&next), records), (new, 1));
}

#[test]
fn a_connected_session_is_unstored_until_the_store_has_it() {
    let (sessions, disk) = process();
    assert!(matches!(claim(&sessions, false), ClaimOutcome::New { .. }));
    sessions.keep("a", &session(41), None, None);
    disk.is_half_full.store(true, Relaxed);
    leave(&sessions, session(42));
    assert_eq!(resume(&sessions), session(42));
    disk.is_half_full.store(false, Relaxed);
    assert!(sessions.sweep(Now::at(1_000)).is_empty());
    assert!(!sessions.is_all_stored(), "only its connection can store how far it is");
    assert_eq!(sessions.unstored_connected(), [("a".into(), ConnectionId { serial: 0, ..id(3) })]);
    disk.is_full.store(true, Relaxed);
    assert!(sessions.unstored_connected().is_empty());
    sessions.store_connected("a", &session(43), None);
    assert!(!sessions.is_all_stored());
    disk.is_full.store(false, Relaxed);
    sessions.store_connected("a", &session(43), None);
    assert!(sessions.is_all_stored() && sessions.unstored_connected().is_empty());
    assert_eq!(resume(&next_process(&disk)), session(43));
}

#[test]
fn what_the_store_refuses_of_a_connected_session_is_noted() {
    let (sessions, disk) = process();
    assert!(matches!(claim(&sessions, false), ClaimOutcome::New { .. }));
    disk.is_full.store(true, Relaxed);
    sessions.keep("a", &session(41), None, None);
    assert!(!sessions.is_all_stored() && sessions.unstored_connected().is_empty());
    disk.is_full.store(false, Relaxed);
    assert_eq!(sessions.unstored_connected().len(), 1);
    sessions.store_connected("a", &session(42), None);
    assert_eq!(resume(&next_process(&disk)), session(42));
}

#[test]
fn another_member_waits_until_the_end_of_a_session_is_stored() {
    let (sessions, disk) = process();
    assert!(matches!(claim(&sessions, false), ClaimOutcome::New { .. }));
    sessions.keep("a", &session(41), None, None);
    leave(&sessions, session(41));
    disk.is_half_full.store(true, Relaxed);
    let new = begin_anew(&sessions);
    assert!(sessions.sweep(Now::at(1_000)).is_empty());
    assert_eq!(sessions.poll_redispatch(), None);
    disk.is_half_full.store(false, Relaxed);
    sessions.store_connected("a", &new, None);
    assert!(sessions.sweep(Now::at(1_000)).is_empty());
    assert_eq!(sessions.poll_redispatch(), Some((0, source(Some("$share/g/t")))));
}

/// Loads the records of a disk whose positions are in this log.
fn load_in_log(sessions: &Local, disk: &Disk, log: CurrentLog) {
    let records = disk.records.lock().unwrap().clone();
    let records = records.into_iter().map(|((_, key), (part, value))| (part, key, value));
    assert_eq!(sessions.load_in_log(records, log, Now::at(1_000)), 0);
}

#[test]
fn a_session_of_another_log_continues_with_what_comes_from_now_on() {
    let (sessions, disk) = process();
    assert!(matches!(claim(&sessions, false), ClaimOutcome::New { .. }));
    let options = SubscriptionOptions { qos: Qos::AtLeastOnce, ..SubscriptionOptions::default() };
    let subscriptions = vec![Subscription::new("t".into(), None, options, 0, 45)];
    sessions.keep(
        "a",
        &Session { subscriptions: subscriptions.clone(), ..session(41) },
        None,
        None,
    );
    leave(&sessions, Session { subscriptions, ..session(41) });
    for (top, is_same, position, since) in
        [(41, true, 41, 45), (90, true, 41, 45), (40, true, 40, 40), (90, false, 90, 45)]
    {
        let next = Local::new(NODE, Arc::default(), None);
        load_in_log(&next, &disk, CurrentLog { top, is_same });
        let session = resume(&next);
        assert_eq!((session.position, session.subscriptions[0].since), (position, since));
        let continues = position == 41;
        let states: Vec<State> = session.flow.out().map(|outgoing| outgoing.state).collect();
        let expected = if continues { State::ExactlyOnce } else { State::Released };
        assert_eq!((session.refs.len(), states), (usize::from(continues), vec![expected]));
    }
}

#[test]
fn a_session_that_began_before_an_earlier_one_is_loaded_stays_and_is_stored_again() {
    let (sessions, disk) = process();
    assert!(matches!(claim(&sessions, false), ClaimOutcome::New { .. }));
    sessions.keep("a", &session(41), None, None);
    leave(&sessions, session(41));
    let (next, new_disk) = process();
    assert!(matches!(claim(&next, false), ClaimOutcome::New { .. }));
    let new = Session { epoch: next.new_epoch(), seconds: 60, ..Session::default() };
    load_in_log(&next, &disk, CurrentLog { top: 90, is_same: true });
    assert_eq!(next.stats().away, 0, "its client is connected");
    leave(&next, new.clone());
    load_in_log(&next, &disk, CurrentLog { top: 90, is_same: true });
    new_disk.records.lock().unwrap().clear();
    next.note_all_unstored();
    assert!(!next.is_all_stored());
    assert!(next.sweep(Now::at(1_000)).is_empty());
    assert!(next.is_all_stored());
    assert_eq!(resume(&next_process(&new_disk)), new);
}
