//! Entries of several nodes, and the registry behind its trait.

use super::*;

const OTHER: NodeId = NodeId(0xb0b0_b0b0);

/// Entries of a second node in the same registry: `entries` are topics and users.
fn enter_of(presence: &mut Registry, node: NodeId, entries: &[(&str, &str)]) -> Vec<Ref> {
    let own = std::mem::replace(&mut presence.next, Ref::new(node, 0xb));
    let refs = entries.iter().map(|(topic, user)| presence.enter(topic, user, "{}", 0)).collect();
    presence.next = own;
    refs
}

#[test]
fn a_node_that_died_leaves_with_all_its_entries() {
    let mut presence = presence();
    let alice = presence.enter("t", "alice", "{}", 0);
    let entries = [("t", "alice"), ("t", "bob"), ("alone", "bob")];
    let refs = enter_of(&mut presence, OTHER, &entries);
    assert_eq!(refs.iter().map(|of| of.node()).collect::<Vec<_>>(), [OTHER; 3]);
    published(&mut presence, 1000);
    // One that no notice has announced.
    enter_of(&mut presence, OTHER, &[("t", "cid")]);
    assert_eq!(presence.stats().connections, 5);

    assert_eq!(presence.expire(OTHER, None, 9, 1000), None);
    assert_eq!(counts(&presence, "t"), Counts { users: 1, connections: 1, listed: true });
    assert_eq!(presence.stats().connections, 1);
    let gone = |of: Ref| format!(r#"{{"metas":[{{"phx_ref":"{of}"}}]}}"#);
    let bob = format!(r#"{{"joins":{{}},"leaves":{{"bob":{}}}}}"#, gone(refs[2]));
    let both = format!(
        r#"{{"joins":{{}},"leaves":{{"alice":{},"bob":{}}}}}"#,
        gone(refs[0]),
        gone(refs[1])
    );
    assert_eq!(published(&mut presence, 2000), [(DIFF, bob), (DIFF, both)]);
    assert_eq!(state(&presence, "t"), r#"{"alice":{"metas":[{"phx_ref":"1"}]}}"#);
    assert_eq!(presence.stats().topics, 1, "nobody is in the other topic");

    // Its refs name nothing any more, and a second time removes nothing.
    presence.leave("t", "alice", refs[0], 2000);
    assert_eq!(presence.update("t", "alice", refs[0], "{}", 2000), None);
    presence.expire(OTHER, None, 9, 2000);
    assert_eq!(presence.due_us(), None);
    assert!(presence.update("t", "alice", alice, "{}", 2000).is_some());
}

#[test]
fn a_node_that_died_brings_a_list_back() {
    let mut presence = presence();
    crowd(&mut presence, 3);
    enter_of(&mut presence, OTHER, &[("t", "v0"), ("t", "v1")]);
    assert_eq!(
        texts(&mut presence, 1000),
        ["presence_state {}", r#"presence_count {"users":5,"connections":5}"#]
    );
    presence.expire(OTHER, None, 9, 1000);
    assert_eq!(published(&mut presence, 2000), [(STATE, state(&presence, "t"))]);
    assert_eq!(counts(&presence, "t"), Counts { users: 3, connections: 3, listed: true });
}

#[test]
fn a_node_expires_some_topics_at_a_time() {
    let mut presence = presence();
    let names: Vec<String> = (0..10).map(|n| format!("t{n}")).collect();
    let entries: Vec<_> = names.iter().map(|topic| (topic.as_str(), "bob")).collect();
    enter_of(&mut presence, OTHER, &entries);
    let after = presence.expire(OTHER, None, 4, 0);
    assert_eq!((after.as_deref(), presence.stats().connections), (Some("t3"), 6));
    let after = presence.expire(OTHER, after.as_deref(), 6, 0);
    assert_eq!((after.as_deref(), presence.stats().connections), (Some("t9"), 0));
    assert_eq!(presence.expire(OTHER, after.as_deref(), 6, 0), None);
    assert_eq!((presence.topics.len(), presence.due.len()), (0, 0), "no notice announced them");
}

#[test]
fn the_local_registry_replies_at_once() {
    let own = NodeId(7);
    let presence: &dyn Presence = &Local::new(LIMITS, own);
    let list_of =
        |topic, own| match presence.list(topic, own, Box::new(|_| panic!("a second answer"))) {
            PresenceReply::Now(list) => {
                (list.counts.connections, list.users.map(Snapshot::into_json))
            }
            PresenceReply::Later => panic!("it answers at once"),
        };
    let list = |own| list_of("t", own);
    let of = presence.enter("t", "alice", "{}", 0);
    assert_eq!(of.node(), own);
    assert_eq!(list(None), (1, Some("{}".into())));
    let alone = format!(r#"{{"alice":{{"metas":[{{"phx_ref":"{of}"}}]}}}}"#);
    assert_eq!(list(Some(("alice", of))), (1, Some(alone.clone())));
    let mut batches = presence.take(1000, 9);
    batches.iter_mut().for_each(|batch| batch.publish(&mut |_, _, _| true));
    presence.confirm(batches, 1000);
    assert_eq!(list(None), (1, Some(alone)));
    let of = presence.update("t", "alice", of, r#"{"n":1}"#, 1000).unwrap();
    presence.leave("t", "alice", of, 1000);
    // More topics than it looks through at a time.
    for n in 0..150 {
        presence.enter(&format!("t{n}"), "bob", "{}", 1000);
    }
    presence.expire(NodeId(8), 1000);
    assert_eq!(presence.stats().connections, 150);
    presence.expire(own, 1000);
    assert_eq!(presence.stats().connections, 0);
    presence.set_limits(Limits { users_max: 0, ..LIMITS }, 1000);
    assert_eq!(list_of("u", None), (0, None), "no topic lists its users");
}
