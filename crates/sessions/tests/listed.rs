//! Tests of sessions for an operator: listed in pages, found by their keys, and ended.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use model::{ConnectionId, Data, Name, NodeId, Publication};
use sessions::{
    Author, Claim, ClaimOutcome, Done, Ended, Found, Limits, Listing, Local, Now, Part, Session,
    SessionKey, Sessions, Storage, Subscription, SubscriptionOptions, WaitOutcome, Will,
};

const NODE: NodeId = NodeId(1);

fn id(slot: u32) -> ConnectionId {
    ConnectionId { node: NODE, shard: 1, slot, serial: 7 }
}

fn session(filters: &[&str]) -> Session {
    let subscription = |filter: &&str| {
        Subscription::new((*filter).into(), None, SubscriptionOptions::default(), 0, 0)
    };
    let subscriptions = filters.iter().map(subscription).collect();
    Session { seconds: 60, subscriptions, position: 5, ..Session::default() }
}

/// A client connects, and leaves its session and a will.
fn leave(sessions: &Local, key: &str, session: Session) {
    leave_as(sessions, key, session, Author::default());
}

fn leave_as(sessions: &Local, key: &str, session: Session, author: Author) {
    let claim = Claim { key, by: id(3), clean: false };
    let _ = sessions.claim(claim);
    sessions.keep(key, &session, None, None);
    let publication = Publication::new("gone", Data::Text(key.into()));
    let will = Some(Will { publication, delay_s: 30, expiry_s: None, author });
    let released =
        sessions.release(key, id(3), Ended { session: Some(session), will }, Now::at(1_000));
    assert_eq!(released, Default::default());
}

#[test]
fn sessions_of_clients_that_are_away_are_listed_in_pages() {
    let sessions = Local::new(NODE, Arc::default(), None);
    let owned = |owner, client| SessionKey { client, owner: Some(owner) }.encode();
    for key in [&*owned("bob", "phone"), "b", "phone", &owned("al", "phone"), "phone2", "a"] {
        leave(&sessions, key, session(&["x", "y/#"]));
    }
    let page = |prefix: &str, after: Option<&str>, limit| {
        let after = after.map(Into::into);
        let listed = sessions.away(&Listing { prefix: prefix.into(), after, limit });
        listed.iter().map(|it| SessionKey::parse(&it.key).to_string()).collect::<Vec<_>>()
    };
    assert_eq!(page("", None, 4), ["a", "b", "phone", "phone\tal"]);
    assert_eq!(page("", Some("phone\tal"), 4), ["phone\tbob", "phone2"]);
    assert_eq!(page("ph", None, 2), ["phone", "phone\tal"]);
    assert_eq!(page("ph", Some("phone2"), 2), [""; 0]);
    assert_eq!((sessions.stats().away, sessions.stats().persistent), (6, 6));
}

#[test]
fn a_release_under_a_later_id_blocks_no_other_claim() {
    let sessions = Local::new(NODE, Arc::default(), None);
    let (old, later, new) = (id(3), id(900), ConnectionId { serial: 8, ..id(3) });
    let claim = |by| sessions.claim(Claim { key: "a", by, clean: false });
    let goes = |from, session| {
        sessions.release("a", from, Ended { session, will: None }, Now::at(1_000)).notify
    };
    // Another client requests the session before the release moves to the later id, and after.
    for is_claimed_first in [false, true] {
        let _ = claim(old);
        let other = id(4);
        let waits_for = |waits_for: ConnectionId| {
            ClaimOutcome::Wait(Some(ConnectionId { serial: 0, ..waits_for }))
        };
        if is_claimed_first {
            assert_eq!(claim(other), waits_for(old));
        }
        sessions.linger("a", old, later);
        match is_claimed_first {
            true => assert_eq!(claim(new), ClaimOutcome::Wait(Some(other))),
            false => assert_eq!(claim(new), waits_for(later)),
        }
        if is_claimed_first {
            assert_eq!(goes(other, None), None);
        }
        assert!(sessions.awaits_release("a", later) && !sessions.awaits_release("a", old));
        assert_eq!(goes(later, Some(session(&["x"]))), Some(new));
        let taken = sessions.take(Claim { key: "a", by: new, clean: false });
        assert!(matches!(taken, WaitOutcome::Resumed(_)), "{taken:?}");
        assert!(matches!(sessions.find("a"), Some(Found::Connected(it)) if it.slot == new.slot));
        assert_eq!(goes(new, Some(session(&["x"]))), None);
    }
}

#[test]
fn a_session_is_found_where_it_is_and_ended_with_its_will() {
    let sessions = Local::new(NODE, Arc::default(), None);
    leave(&sessions, "a", session(&["x", "y/#"]));
    let Some(Found::Away(info, subscriptions)) = sessions.find("a") else { panic!("it is away") };
    let (since_s, expires_s) = (info.since_s, info.expires_s);
    assert_eq!((since_s, expires_s, info.seconds, info.position), (1_000, Some(1_060), 60, 5));
    assert_eq!((info.subscriptions, &*subscriptions[1].filter), (2, "y/#"));

    // Its client comes back.
    let claim = Claim { key: "a", by: id(9), clean: false };
    assert!(matches!(sessions.claim(claim), ClaimOutcome::Resumed { .. }));
    assert_eq!(sessions.find("a"), Some(Found::Connected(ConnectionId { serial: 0, ..id(9) })));
    assert_eq!((sessions.stats().away, sessions.stats().persistent), (0, 1));
    assert_eq!(sessions.end("a"), None);
    assert_eq!((sessions.find("b"), sessions.end("b")), (None, None));

    leave(&sessions, "b", session(&[]));
    let will = sessions.end("b").expect("it was there").expect("it had a will");
    assert_eq!(will.publication.topic, "gone");
    assert_eq!(sessions.find("b"), None);
}

#[test]
fn a_will_is_published_where_a_later_connection_wants_a_new_session() {
    let sessions = Local::new(NODE, Arc::default(), None);
    let claim = |slot, clean| Claim { key: "a", by: id(slot), clean };
    let _ = sessions.claim(claim(1, false));
    // One connection would go on with the session, and the next one does not.
    assert!(matches!(sessions.claim(claim(2, false)), ClaimOutcome::Wait(Some(_))));
    let publication = Publication::new("gone", Data::Text("bye".into()));
    let will = Some(Will { publication, delay_s: 30, expiry_s: None, author: Default::default() });
    let ended = Ended { session: Some(session(&["x"])), will: will.clone() };
    let released = sessions.release("a", id(1), ended, Now::at(1_000));
    assert_eq!((released.notify, released.publish), (Some(id(2)), None));
    assert_eq!(sessions.claim(claim(3, true)), ClaimOutcome::Wait(Some(id(2))));
    assert!(matches!(sessions.take(claim(2, false)), WaitOutcome::Elsewhere));
    let released = sessions.release("a", id(2), Ended::default(), Now::at(1_000));
    assert_eq!((released.notify, released.publish), (Some(id(3)), None));
    let WaitOutcome::New { will: taken } = sessions.take(claim(3, true)) else {
        panic!("it is new")
    };
    assert_eq!(taken, will);
}

#[test]
fn a_will_counts_from_when_it_is_published() {
    let publication = Publication::new("gone", Data::Text("bye".into()));
    let will = Will { publication, delay_s: 0, expiry_s: Some(9), author: Default::default() };
    assert_eq!(will.clone().publication(5_000).expires_ms(), Some(14_000));
    assert_eq!(Will { expiry_s: None, ..will }.publication(5_000).expires_ms(), None);
}

/// A store that may have no capacity, or reject records.
struct Store {
    has_capacity: AtomicBool,
    takes: AtomicBool,
    puts: Mutex<Vec<(Part, bool)>>,
}

impl Store {
    fn set(&self, has_capacity: bool, takes: bool) -> Vec<(Part, bool)> {
        self.has_capacity.store(has_capacity, Relaxed);
        self.takes.store(takes, Relaxed);
        std::mem::take(&mut self.puts.lock().unwrap())
    }
}

impl Storage for Store {
    fn put(&self, part: Part, _: &str, value: Option<Vec<u8>>, done: Option<Done>) -> bool {
        let takes = self.takes.load(Relaxed);
        if takes {
            self.puts.lock().unwrap().push((part, value.is_some()));
        }
        done.into_iter().for_each(|done| done(takes));
        takes
    }

    fn has_capacity(&self) -> bool {
        self.has_capacity.load(Relaxed)
    }

    fn settle(&self, done: Done) {
        done(true);
    }
}

#[test]
fn what_the_store_does_not_take_of_a_session_is_given_to_it_again() {
    let store = Arc::new(Store {
        has_capacity: AtomicBool::new(false),
        takes: AtomicBool::new(true),
        puts: Mutex::default(),
    });
    let sessions = Local::new(NODE, Arc::default(), Some(store.clone()));
    leave(&sessions, "a", session(&["x"]));
    leave(&sessions, "b", session(&["x"]));
    // Records that a client waits for have a capacity of their own.
    assert_eq!(store.set(true, true), [(Part::Session, true); 2]);
    assert!(sessions.end("b").is_some());
    assert_eq!(store.set(true, false), [(Part::Session, false), (Part::Progress, false)]);
    sessions.sweep(Now::at(1_000));
    assert!(store.set(true, true).is_empty() && !sessions.is_all_stored());
    sessions.sweep(Now::at(1_000));
    let all = [(Part::Progress, true), (Part::Session, true)];
    let gone = [(Part::Session, false), (Part::Progress, false)];
    assert_eq!(store.set(true, false), [all, gone].concat());
    assert!(sessions.end("a").is_some() && !sessions.is_all_stored());
    store.set(true, true);
    sessions.sweep(Now::at(1_000));
    assert!(sessions.is_all_stored());
    assert_eq!(store.set(true, true), gone);
}

#[test]
fn who_is_shut_out_has_no_last_word() {
    let sessions = Local::new(NODE, Arc::default(), None);
    for (key, user) in [("a", "al"), ("b", "bo")] {
        let author = Author { users: vec![user.into()], token: None };
        leave_as(&sessions, key, session(&["x"]), author);
    }
    sessions.drop_wills(&|author| author.users.contains(&"al".into()));
    let Some(Found::Away(..)) = sessions.find("a") else { panic!("its session stays") };
    let wills: Vec<_> =
        sessions.sweep(Now::at(1_031)).into_iter().map(|it| it.author.users).collect();
    assert_eq!(wills, [[Name::from("bo")]]);
    // Both sessions end at their time.
    assert!(sessions.sweep(Now::at(1_061)).is_empty());
    assert_eq!((sessions.stats().persistent, sessions.stats().expired), (0, 2));
}

#[test]
fn what_sessions_of_who_is_away_take_is_limited() {
    let sessions = Local::new(NODE, Arc::default(), None);
    leave(&sessions, "a", session(&["x"]));
    let one = sessions.stats().away_bytes;
    leave(&sessions, "b", session(&["x"]));
    assert_eq!((one > 500, sessions.stats().away_bytes), (true, 2 * one));
    sessions.set_limits(Limits { bytes_max: 3 * one, ..Limits::default() });
    // A will counts until it is published.
    let leave_will = |key: &str, bytes: usize| {
        let data = Data::Text("x".repeat(bytes).into());
        let (publication, author) = (Publication::new("gone", data), Author::default());
        let will = Some(Will { publication, delay_s: 30, expiry_s: None, author });
        let _ = sessions.claim(Claim { key, by: id(3), clean: false });
        sessions.release(key, id(3), Ended { session: Some(session(&["x"])), will }, Now::at(1_000))
    };
    assert!(leave_will("c", 1_000).publish.is_some(), "its session ends at once");
    assert_eq!((sessions.stats().away, sessions.stats().refused), (2, 1));
    assert_eq!(sessions.sweep(Now::at(1_031)).len(), 2);
    assert!(sessions.stats().away_bytes < 2 * one);
    assert!(leave_will("c", 1).publish.is_none());
    ["a", "b", "c"].iter().for_each(|key| assert!(sessions.end(key).is_some()));
    assert_eq!(sessions.stats().away_bytes, 0);
}
