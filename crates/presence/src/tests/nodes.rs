//! Entries of several nodes, and the registry behind its trait.

use super::*;

const OTHER: NodeId = NodeId(0xb0b0_b0b0);

/// Enters entries of a second node in the same registry: `entries` are topics and users.
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
    // No notice has announced this one.
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

    // Its refs name no entry any more, and a second call removes none.
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
    // More topics than are scanned at a time.
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

/// Creates a registry that shares its entries, and has up to so many bytes of those of others.
fn sharing(node: NodeId, others_bytes_max: usize) -> Registry {
    let mut presence = presence();
    presence.next = Ref::new(node, 1);
    presence.sharing = Some(Box::new(crate::sharing::Sharing::new(others_bytes_max)));
    presence
}

#[test]
fn a_node_that_is_back_before_its_end_was_announced_was_not_away() {
    let (mut here, mut there) = (sharing(OTHER, 0), sharing(NODE, 1 << 20));
    here.enter("t", "alice", r#"{"at":1}"#, 0);
    let bob = here.enter("t", "bob", "{}", 0);
    pass_changes(&mut here, &mut there, 0);
    published(&mut there, 1000);
    let before = state(&there, "t");
    let page = here.read_page(0, 9, usize::MAX);
    while there.expire_some(OTHER, 9, 1000) > 0 {}
    here.leave("t", "bob", bob, 1000);
    assert_eq!(apply_page(&mut there, &page, 1000), 0);
    assert_eq!(there.stats().other_nodes, 2);
    assert_eq!(there.due_us(), None, "there is nothing to say");
    assert_eq!(state(&there, "t"), before);
    pass_changes(&mut here, &mut there, 1000);
    let gone =
        format!(r#"{{"joins":{{}},"leaves":{{"bob":{{"metas":[{{"phx_ref":"{bob}"}}]}}}}}}"#);
    assert_eq!(published(&mut there, 2000), [(DIFF, gone)]);
}

/// Applies a page to the other node's entries. Returns the bytes of new ones that did not fit.
fn apply_page(presence: &mut Registry, page: &Page, now_us: u64) -> usize {
    let dropped = presence.enter_some(OTHER, page.entries.iter(), now_us);
    presence.leave_some(OTHER, page, page.from, usize::MAX, now_us);
    dropped
}

/// A ref that is drawn twice, which no node does, shows that the registry did not search for the second entry.
#[test]
fn entries_of_the_node_itself_are_not_searched_for_among_the_announced() {
    let mut presence = presence();
    let alice = presence.enter("t", "alice", "{}", 0);
    published(&mut presence, 1000);
    presence.leave("t", "alice", alice, 1000);
    presence.next = alice;
    presence.enter("t", "alice", r#"{"at":2}"#, 1000);
    let joins = &published(&mut presence, 2000)[0].1;
    assert!(
        joins.starts_with(r#"{"joins":{"alice":{"metas":[{"phx_ref":"1","at":2}]}}"#),
        "{joins}"
    );
}

/// Passes the changes of one registry to the other.
fn pass_changes(from: &mut Registry, to: &mut Registry, now_us: u64) -> usize {
    let changes = from.take_changes(usize::MAX, usize::MAX);
    assert!(changes.is_whole);
    to.apply(from.next.node(), &changes.list, now_us);
    changes.list.len()
}

#[test]
fn another_node_has_the_list_as_it_is_here_and_notifies_its_members() {
    let (mut here, mut there) = (sharing(OTHER, 0), sharing(NODE, 1 << 20));
    let own = there.enter("t", "alice", "{}", 0);
    let alice = here.enter("t", "alice", r#"{ "at":1 }"#, 0);
    let bob = here.enter("t", "bob", "{}", 0);
    here.enter("t", "cid", "{}", 0);
    here.leave("t", "bob", bob, 0);
    assert_eq!(pass_changes(&mut here, &mut there, 0), 2);
    assert_eq!(counts(&there, "t"), Counts { users: 2, connections: 3, listed: true });
    assert_eq!((there.stats().connections, there.stats().other_nodes), (1, 2));
    let alices = format!(r#"{{"phx_ref":"{alice}","at":1}}"#);
    let joins = published(&mut there, 1000);
    assert!(joins[0].1.contains(&alices), "{joins:?}");
    // A meta that other nodes have is replaced by a new one, announced or not.
    let fresh = here.update("t", "alice", alice, r#"{"at":2}"#, 0).unwrap();
    assert_ne!(fresh, alice);
    assert_eq!(pass_changes(&mut here, &mut there, 1000), 1);
    let diff = format!(
        r#"{{"joins":{{"alice":{{"metas":[{{"phx_ref":"{fresh}","phx_ref_prev":"{alice}","at":2}}]}}}},"leaves":{{"alice":{{"metas":[{{"phx_ref":"{alice}"}}]}}}}}}"#
    );
    assert_eq!(published(&mut there, 2000), [(DIFF, diff)]);
    // No notice announced it here; the connection itself may have it, though.
    let notices = published(&mut here, 1000);
    assert!(
        notices[0]
            .1
            .contains(&format!(r#""leaves":{{"alice":{{"metas":[{{"phx_ref":"{alice}"}}]}}}}"#))
    );
    assert!(notices[0].1.contains(&format!(r#"{{"phx_ref":"{fresh}","at":2}}"#)), "{notices:?}");
    there.leave("t", "alice", own, 2000);
    published(&mut there, 3000);
    let both = |presence: &Registry| state(presence, "t").matches("phx_ref\"").count();
    assert_eq!((both(&here), both(&there)), (2, 2));
    // A repeated change does no harm.
    let changes = Change { gone: Some(alice.number()), entry: None };
    there.apply(OTHER, &[changes], 3000);
    assert_eq!(there.due_us(), None);
    while there.expire_some(OTHER, 1, 3000) > 0 {}
    assert_eq!(counts(&there, "t").connections, 0);
    assert_eq!(there.stats().other_nodes_bytes, 0);
}

#[test]
fn pages_bring_another_node_to_the_same_entries() {
    let (mut here, mut there) = (sharing(OTHER, 0), sharing(NODE, 1 << 20));
    let mut entries = Vec::new();
    for n in 0..100 {
        let (topic, user) = (format!("t{}", n % 30), format!("u{n}"));
        entries.push((topic.clone(), user.clone(), here.enter(&topic, &user, "{}", 0)));
    }
    pass_changes(&mut here, &mut there, 0);
    for (topic, user, of) in entries.iter().step_by(3) {
        here.leave(topic, user, *of, 0);
    }
    for n in 0..9 {
        here.enter("t0", &format!("v{n}"), "{}", 0);
    }
    // The changes are lost.
    here.take_changes(usize::MAX, usize::MAX);
    let (mut from, mut pages) = (Some(0), 0);
    while let Some(number) = from {
        let page = here.read_page(number, 10, usize::MAX);
        assert_eq!(apply_page(&mut there, &page, 0), 0);
        (from, pages) = (page.to, pages + 1);
    }
    assert_eq!(pages, 8);
    published(&mut here, 1000);
    published(&mut there, 1000);
    for n in 0..30 {
        let topic = format!("t{n}");
        assert_eq!(counts(&here, &topic), counts(&there, &topic));
        assert_eq!(state(&here, &topic), state(&there, &topic));
    }
    let page = here.read_page(0, usize::MAX, 1_000);
    let bytes: usize = page.entries.iter().map(SharedEntry::bytes).sum();
    assert!(page.to.is_some() && (1_001..1_100).contains(&bytes), "as far as they fit: {bytes}");
}

#[test]
fn entries_of_other_nodes_have_a_limit() {
    let (mut here, mut there) = (sharing(OTHER, 0), sharing(NODE, 2_250));
    let refs: Vec<Ref> = (0..4).map(|n| here.enter("t", &format!("u{n}"), "{}", 0)).collect();
    let changes = here.take_changes(usize::MAX, usize::MAX).list;
    assert_eq!(there.apply(OTHER, &changes, 0), 323, "bytes of one that does not fit");
    assert_eq!((there.stats().other_nodes, there.stats().other_nodes_bytes), (3, 2_219));
    here.leave("t", "u0", refs[0], 0);
    let large = here.update("t", "u1", refs[1], &format!(r#"{{"x":"{}"}}"#, "x".repeat(2_000)), 0);
    let changes = here.take_changes(usize::MAX, usize::MAX).list;
    assert_eq!(there.apply(OTHER, &changes, 0), 2_331, "the other meta does not fit");
    assert_eq!(there.stats().other_nodes, 1);
    let page = here.read_page(0, 9, usize::MAX);
    here.leave("t", "u1", large.unwrap(), 0);
    assert_eq!(apply_page(&mut there, &page, 0), 2_331);
    assert_eq!(pass_changes(&mut here, &mut there, 0), 1);
    assert_eq!(there.stats().other_nodes, 2, "all that there are");
    // A node can't change the entries of another by changes.
    let own = there.enter("t", "own", "{}", 0);
    let changes = [Change { gone: Some(own.number()), entry: None }];
    assert_eq!(there.apply(NODE, &changes, 0), 0);
    assert_eq!(there.stats().connections, 1);
}
