//! Sessions as a process finds them that begins where another one ended.

use std::sync::Arc;

use model::{ConnectionId, Data, NodeId, Publication};
use sessions::{Author, Claim, Claimed, Local, Part, Session, SessionRecord, Sessions, Will};

const NODE: NodeId = NodeId(1);

#[test]
fn a_will_that_is_due_is_published_when_its_client_is_back_before() {
    let sessions = Local::new(NODE, Arc::default(), None);
    for (key, delay_s) in [("now", 0), ("later", 30)] {
        let publication = Publication::new(key, Data::Text("gone".into()));
        let will = Will { publication, delay_s, expiry_s: None, author: Author::default() };
        let session = Session { seconds: 60, ..Session::default() };
        let record = minicbor::to_vec(SessionRecord::new(&session, Some(&will), None)).unwrap();
        assert_eq!(sessions.load([(Part::Session, key.into(), record)], 1_000), 0);
    }
    let will = |key| {
        let by = ConnectionId { node: NODE, shard: 1, slot: 3, serial: 7 };
        match sessions.claim(Claim { key, by, clean: false }) {
            Claimed::Resumed { will, .. } => will,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(will("now").unwrap().publication.topic, "now");
    assert_eq!(will("later"), None);
}
