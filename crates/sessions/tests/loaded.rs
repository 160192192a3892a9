//! Tests of sessions that a process loads after another one has ended.

use std::sync::Arc;

use model::{ConnectionId, Data, LogicalTime, NodeId, Publication};
use sessions::{
    Author, Claim, ClaimOutcome, Local, NodeConnect, Now, Part, Session, SessionRecord, Sessions,
    Will,
};

const NODE: NodeId = NodeId(1);

#[test]
fn a_session_that_was_left_while_the_time_of_day_was_doubted_lasts_after_a_restart() {
    let session = Session { seconds: 60, ..Session::default() };
    let record = |since_s| {
        let record = minicbor::to_vec(SessionRecord::new(&session, None, Some(since_s))).unwrap();
        (Part::Session, since_s.to_string(), record)
    };
    for is_believed in [true, false] {
        let sessions = Local::new(NODE, Arc::default(), None);
        // One client left before the time of day jumped, and one after that.
        let records = [record(1_000), record(9_001_000)];
        assert_eq!(sessions.load(records, Now { unix_s: 9_001_020, age_s: 1_020 }), 0);
        let away = |unix_s, age_s| {
            assert!(sessions.sweep(Now { unix_s, age_s }).is_empty());
            sessions.stats().away
        };
        assert_eq!((away(9_001_060, 1_060), away(9_001_061, 1_061)), (2, 1));
        let at = |age_s| if is_believed { 9_000_000 + age_s } else { age_s };
        // The age does not count how long the server was stopped, which is unknown.
        assert_eq!(away(at(1_080), at(1_080)), 1, "believed: {is_believed}");
        assert_eq!(away(at(1_081), at(1_081)), 0, "believed: {is_believed}");
    }
}

#[test]
fn a_will_that_is_due_is_published_when_its_client_is_back_before() {
    let sessions = Local::new(NODE, Arc::default(), None);
    for (key, delay_s) in [("now", 0), ("later", 30)] {
        let publication = Publication::new(key, Data::Text("gone".into()));
        let will = Will { publication, delay_s, expiry_s: None, author: Author::default() };
        let session = Session { seconds: 60, ..Session::default() };
        let record = minicbor::to_vec(SessionRecord::new(&session, Some(&will), None)).unwrap();
        assert_eq!(sessions.load([(Part::Session, key.into(), record)], Now::at(1_000)), 0);
    }
    let will = |key| {
        let by = ConnectionId { node: NODE, shard: 1, slot: 3, serial: 7 };
        match sessions.claim(Claim { key, by, clean: false }) {
            ClaimOutcome::Resumed { will, .. } => will,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(will("now").unwrap().publication.topic, "now");
    assert_eq!(will("later"), None);
}

#[test]
fn a_connect_to_another_node_ends_what_is_earlier_alone() {
    let away = |will: Option<&Will>| {
        let sessions = Local::new(NODE, Arc::default(), None);
        let session = Session { seconds: 60, connect_number: 70, ..Session::default() };
        let record = minicbor::to_vec(SessionRecord::new(&session, will, None)).unwrap();
        assert_eq!(sessions.load([(Part::Session, "c".into(), record)], Now::at(1_000)), 0);
        sessions
    };
    let publication = Publication::new("gone", Data::Text("bye".into()));
    let will = Will { publication, delay_s: 30, expiry_s: None, author: Author::default() };
    let time = |number, node| LogicalTime { number, node: NodeId(node) };
    // An earlier connect, which this node learns late, ends nothing.
    for (earlier, is_clean) in [(time(69, 2), true), (time(70, 0), true), (time(69, 2), false)] {
        let sessions = away(Some(&will));
        let outcome = sessions.on_connected_to_node("c", earlier, is_clean);
        assert_eq!(outcome, NodeConnect::Away(None));
        assert_eq!(sessions.end("c"), Some(Some(will.clone())), "{earlier:?}");
    }
    // A later connect ends the session if it is clean, and otherwise the will.
    let sessions = away(Some(&will));
    let outcome = sessions.on_connected_to_node("c", time(70, 2), true);
    assert_eq!((outcome, sessions.end("c")), (NodeConnect::Away(Some(will.clone())), None));
    let sessions = away(Some(&will));
    let outcome = sessions.on_connected_to_node("c", time(71, 0), false);
    assert_eq!((outcome, sessions.stats().away), (NodeConnect::Away(None), 1));
    assert!(sessions.sweep(Now::at(1_040)).is_empty(), "the will has gone");
    assert_eq!(sessions.end("c"), Some(None));
    // A connection here decides by itself.
    let sessions = away(None);
    let by = ConnectionId { node: NODE, shard: 1, slot: 3, serial: 7 };
    assert!(matches!(
        sessions.claim(Claim { key: "c", by, clean: false }),
        ClaimOutcome::Resumed { session, .. } if session.connect_number == 70
    ));
    let outcome = sessions.on_connected_to_node("c", time(71, 2), true);
    assert_eq!(outcome, NodeConnect::Connected(ConnectionId { serial: 0, ..by }));
    assert_eq!(sessions.on_connected_to_node("d", time(71, 2), true), NodeConnect::Away(None));
}
