//! Sessions as an operator sees them: listed in pages, found by their keys, and ended.

use std::sync::Arc;

use model::{ConnectionId, Data, NodeId, Publication};
use sessions::{
    Claim, Claimed, Ended, Found, Listing, Local, Place, Session, Sessions, Subscription,
    SubscriptionOptions, Will,
};

const NODE: NodeId = NodeId(1);

fn id(slot: u32) -> ConnectionId {
    ConnectionId { node: NODE, shard: 1, slot, serial: 7 }
}

fn session(filters: &[&str]) -> Session {
    let subscription = |filter: &&str| Subscription {
        filter: (*filter).into(),
        group: None,
        options: SubscriptionOptions::default(),
        id: 0,
        since: 0,
    };
    let subscriptions = filters.iter().map(subscription).collect();
    Session { seconds: 60, subscriptions, position: 5, ..Session::default() }
}

/// A client connects, and leaves its session and a will.
fn leave(sessions: &Local, key: &str, session: Session) {
    let claim = Claim { key, by: id(3), clean: false };
    let _ = sessions.claim(claim);
    sessions.keep(key, &session, None, None);
    let publication = Publication::new("gone", Data::Text(key.into()));
    let will = Some(Will { publication, delay_s: 30 });
    let released = sessions.release(key, id(3), Ended { session: Some(session), will }, 1_000);
    assert_eq!(released, Default::default());
}

#[test]
fn sessions_of_clients_that_are_away_are_listed_in_pages() {
    let sessions = Local::new(NODE, Arc::default(), None);
    let owned = |owner, client| Place { client, owner: Some(owner) }.key();
    for key in [&*owned("bob", "phone"), "b", "phone", &owned("al", "phone"), "phone2", "a"] {
        leave(&sessions, key, session(&["x", "y/#"]));
    }
    let page = |prefix: &str, after: Option<&str>, limit| {
        let after = after.map(Into::into);
        let listed = sessions.away(&Listing { prefix: prefix.into(), after, limit });
        listed.iter().map(|it| Place::of_key(&it.key).to_string()).collect::<Vec<_>>()
    };
    assert_eq!(page("", None, 4), ["a", "b", "phone", "phone\tal"]);
    assert_eq!(page("", Some("phone\tal"), 4), ["phone\tbob", "phone2"]);
    assert_eq!(page("ph", None, 2), ["phone", "phone\tal"]);
    assert_eq!(page("ph", Some("phone2"), 2), [""; 0]);
    assert_eq!((sessions.stats().away, sessions.stats().kept), (6, 6));
}

#[test]
fn a_session_is_found_where_it_is_and_ended_with_its_will() {
    let sessions = Local::new(NODE, Arc::default(), None);
    leave(&sessions, "a", session(&["x", "y/#"]));
    let Some(Found::Away(info, subscriptions)) = sessions.find("a") else { panic!("it is away") };
    let (since_s, over_s) = (info.since_s, info.over_s);
    assert_eq!((since_s, over_s, info.seconds, info.position), (1_000, Some(1_060), 60, 5));
    assert_eq!((info.subscriptions, &*subscriptions[1].filter), (2, "y/#"));

    // Its client comes back.
    let claim = Claim { key: "a", by: id(9), clean: false };
    assert!(matches!(sessions.claim(claim), Claimed::Resumed(_)));
    assert_eq!(sessions.find("a"), Some(Found::Connected(ConnectionId { serial: 0, ..id(9) })));
    assert_eq!((sessions.stats().away, sessions.stats().kept), (0, 1));
    assert_eq!(sessions.end("a"), None);
    assert_eq!((sessions.find("b"), sessions.end("b")), (None, None));

    leave(&sessions, "b", session(&[]));
    let will = sessions.end("b").expect("it was there").expect("it had a will");
    assert_eq!(will.topic, "gone");
    assert_eq!(sessions.find("b"), None);
}
