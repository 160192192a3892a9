//! The rules of presence, one by one.

mod nodes;

use crate::registry::Registry;
use crate::*;

/// Its refs are `00000000` and a number, which begins at 1 here.
const NODE: NodeId = NodeId(0);

const LIMITS: Limits =
    Limits { users_max: 4, list_bytes_max: 1 << 20, interval_us: 1000, members_per_ms: 0 };

fn with(limits: Limits) -> Registry {
    let mut registry = Registry::new(limits, NODE);
    registry.next = Ref::new(NODE, 1);
    registry
}

fn presence() -> Registry {
    with(LIMITS)
}

/// Takes, publishes and confirms all that is due.
fn flush(presence: &mut Registry, now_us: u64, emit: &mut Emit) {
    loop {
        let mut batches = presence.take(now_us, usize::MAX);
        if batches.is_empty() {
            return;
        }
        batches.iter_mut().for_each(|batch| batch.publish(emit));
        presence.confirm(batches, now_us);
    }
}

/// Returns the notices that are published at a time: event and JSON. The texts of the tests have the refs without
/// their node.
fn published(presence: &mut Registry, now_us: u64) -> Vec<(&'static str, String)> {
    let mut published = Vec::new();
    flush(presence, now_us, &mut |_, event, json| {
        published.push((event, short(json)));
        true
    });
    published
}

/// As [`published`], one text per notice.
fn texts(presence: &mut Registry, now_us: u64) -> Vec<String> {
    let published = published(presence, now_us).into_iter();
    published.map(|(event, json)| format!("{event} {json}")).collect()
}

/// Returns JSON text with the numbers of the refs only.
fn short(json: &str) -> String {
    json.replace(&format!("\"{NODE}"), "\"")
}

fn state(presence: &Registry, topic: &str) -> String {
    users(presence, topic, None)
}

fn state_for(presence: &Registry, topic: &str, user: &str, of: Ref) -> String {
    users(presence, topic, Some((user, of)))
}

/// Returns the list as its JSON text; `{}` while members get counts only.
fn users(presence: &Registry, topic: &str, own: Option<(&str, Ref)>) -> String {
    let users = presence.list(topic, own).users.map(Snapshot::into_json);
    short(&users.unwrap_or_else(|| "{}".into()))
}

fn counts(presence: &Registry, topic: &str) -> Counts {
    presence.list(topic, None).counts
}

/// Fails to publish the due notices; returns how many it tried.
fn publish_nothing(presence: &mut Registry, now_us: u64) -> usize {
    let mut attempts = 0;
    flush(presence, now_us, &mut |_, _, _| {
        attempts += 1;
        false
    });
    attempts
}

/// Enters users u0, u1, … with a connection each.
fn crowd(presence: &mut Registry, users: usize) -> Vec<Ref> {
    (0..users).map(|n| presence.enter("t", &format!("u{n}"), "{}", 0)).collect()
}

#[test]
fn changes_within_an_interval_are_one_notice() {
    let mut presence = presence();
    presence.enter("t", "alice", r#"{"on":"web"}"#, 0);
    presence.enter("t", "bob", "{}", 10);
    presence.enter("t", "alice", "{}", 20);
    assert_eq!(presence.due_us(), Some(1000));
    assert!(published(&mut presence, 999).is_empty());
    let joins = r#"{"alice":{"metas":[{"phx_ref":"1","on":"web"},{"phx_ref":"3"}]},"bob":{"metas":[{"phx_ref":"2"}]}}"#;
    assert_eq!(
        texts(&mut presence, 1000),
        [format!(r#"presence_diff {{"joins":{joins},"leaves":{{}}}}"#)]
    );
    assert_eq!(state(&presence, "t"), joins);
    assert_eq!(counts(&presence, "t"), Counts { users: 2, connections: 3, listed: true });
    assert_eq!(presence.due_us(), None);
}

#[test]
fn a_user_has_left_with_the_last_connection() {
    let mut presence = presence();
    let web = presence.enter("t", "alice", r#"{"on":"web"}"#, 0);
    let app = presence.enter("t", "alice", "{}", 0);
    published(&mut presence, 1000);
    presence.leave("t", "alice", web, 1000);
    presence.leave("t", "alice", web, 1000);
    assert_eq!(counts(&presence, "t").connections, 1);
    let leaves = r#"{"joins":{},"leaves":{"alice":{"metas":[{"phx_ref":"1"}]}}}"#;
    assert_eq!(published(&mut presence, 2000), [(DIFF, leaves.into())]);
    presence.leave("t", "alice", app, 2000);
    published(&mut presence, 3000);
    assert_eq!(presence.stats().topics, 0);
}

#[test]
fn who_came_and_went_within_an_interval_is_in_no_notice() {
    let mut presence = presence();
    let of = presence.enter("t", "alice", "{}", 0);
    assert_eq!(state(&presence, "t"), "{}");
    presence.leave("t", "alice", of, 500);
    assert_eq!((presence.due_us(), presence.stats().topics), (None, 0));
    assert!(published(&mut presence, 5000).is_empty());
}

#[test]
fn an_update_leaves_and_joins_and_names_the_last_announced_meta() {
    let mut presence = presence();
    let first = presence.enter("t", "alice", r#"{"n":0}"#, 0);
    assert_eq!(presence.update("t", "alice", first, r#"{"n":1}"#, 1), Some(first));
    published(&mut presence, 1000);
    let second = presence.update("t", "alice", first, r#"{"n":2}"#, 1001).unwrap();
    assert_ne!(second, first);
    assert_eq!(presence.update("t", "alice", first, "{}", 1002), None, "it is gone");
    assert_eq!(presence.update("t", "alice", second, r#"{"n":3}"#, 1003), Some(second));
    let new = r#"{"alice":{"metas":[{"phx_ref":"2","phx_ref_prev":"1","n":3}]}}"#;
    let old = r#"{"alice":{"metas":[{"phx_ref":"1"}]}}"#;
    let diff = format!(r#"{{"joins":{new},"leaves":{old}}}"#);
    assert_eq!(published(&mut presence, 2001), [(DIFF, diff)]);
    assert_eq!(state(&presence, "t"), new);
    assert_eq!(counts(&presence, "t").connections, 1);
    // Updated and gone within the interval: the announced one leaves.
    let third = presence.update("t", "alice", second, "{}", 2002).unwrap();
    presence.leave("t", "alice", third, 2003);
    let gone = r#"{"joins":{},"leaves":{"alice":{"metas":[{"phx_ref":"2"}]}}}"#;
    assert_eq!(published(&mut presence, 9000), [(DIFF, gone.into())]);
    assert_eq!(presence.stats().topics, 0);
}

#[test]
fn strangers_change_nothing() {
    let mut presence = presence();
    let of = presence.enter("t", "alice", "{}", 0);
    presence.leave("t", "bob", of, 0);
    presence.leave("u", "alice", of, 0);
    presence.leave("t", "alice", Ref::new(NODE, 77), 0);
    assert_eq!(presence.update("t", "bob", of, "{}", 0), None);
    assert_eq!(presence.update("u", "alice", of, "{}", 0), None);
    assert_eq!(counts(&presence, "t"), Counts { users: 1, connections: 1, listed: true });
    assert_eq!(counts(&presence, "u"), Counts { users: 0, connections: 0, listed: true });
    assert_eq!(state(&presence, "u"), "{}");
}

#[test]
fn members_see_themselves_at_once() {
    let mut presence = presence();
    presence.enter("t", "alice", "{}", 0);
    presence.enter("t", "carol", "{}", 0);
    published(&mut presence, 1000);
    let bob = presence.enter("t", "bob", "{}", 1000);
    presence.enter("t", "bert", "{}", 1000);
    let all = r#"{"alice":{"metas":[{"phx_ref":"1"}]},"bob":{"metas":[{"phx_ref":"3"}]},"carol":{"metas":[{"phx_ref":"2"}]}}"#;
    assert_eq!(state_for(&presence, "t", "bob", bob), all);
    assert!(!state(&presence, "t").contains("bob"));
    let alice = presence.enter("t", "alice", "{}", 1000);
    let both = r#"{"alice":{"metas":[{"phx_ref":"1"},{"phx_ref":"5"}]},"carol":{"metas":[{"phx_ref":"2"}]}}"#;
    assert_eq!(state_for(&presence, "t", "alice", alice), both);
    published(&mut presence, 2000);
    assert_eq!(state_for(&presence, "t", "bob", bob), state(&presence, "t"));
    // The list does not show an update beside the meta that it replaces.
    let new = presence.update("t", "bob", bob, r#"{"n":1}"#, 2000).unwrap();
    assert_eq!(state_for(&presence, "t", "bob", new), state(&presence, "t"));
    assert_eq!(state_for(&presence, "t", "nobody", new), state(&presence, "t"));
    assert_eq!(state_for(&presence, "nowhere", "bob", new), "{}");
}

#[test]
fn notices_of_a_topic_keep_their_distance() {
    let mut presence = with(Limits { members_per_ms: 10, ..LIMITS });
    (0..50).for_each(|_| {
        presence.enter("t", "alice", "{}", 0);
    });
    assert_eq!(presence.due_us(), Some(1000), "the first change of a quiet topic");
    assert_eq!(published(&mut presence, 1500).len(), 1);
    presence.enter("t", "bob", "{}", 1600);
    assert_eq!(presence.due_us(), Some(1500 + 1000 + 5000), "51 connections: 5 ms more");
    assert_eq!(published(&mut presence, 7500).len(), 1);
    presence.enter("t", "bob", "{}", 100_000);
    assert_eq!(presence.due_us(), Some(101_000), "quiet again");
}

#[test]
fn a_notice_that_cannot_go_out_waits_and_goes_first() {
    let mut presence = presence();
    let alice = presence.enter("t", "alice", "{}", 0);
    presence.enter("t", "bob", "{}", 0);
    assert_eq!(publish_nothing(&mut presence, 1000), 1);
    assert_eq!(presence.due_us(), Some(2000));
    let both = r#"{"alice":{"metas":[{"phx_ref":"1"}]},"bob":{"metas":[{"phx_ref":"2"}]}}"#;
    assert_eq!(state(&presence, "t"), both, "it is announced");
    presence.leave("t", "alice", alice, 1100);
    let (cid, of) = ("cid", presence.enter("t", "cid", "{}", 1100));
    presence.leave("t", cid, of, 1200);
    assert_eq!(publish_nothing(&mut presence, 2000), 1);
    let diff = format!(r#"{{"joins":{both},"leaves":{{}}}}"#);
    assert_eq!(published(&mut presence, 3000), [(DIFF, diff)]);
    let diff = r#"{"joins":{},"leaves":{"alice":{"metas":[{"phx_ref":"1"}]}}}"#;
    assert_eq!(published(&mut presence, 4000), [(DIFF, diff.into())]);
    assert_eq!(presence.due_us(), None);
    let stats =
        Stats { topics: 1, connections: 1, notices: 2, notices_delayed: 2, ..Stats::default() };
    assert_eq!(presence.stats(), stats);
}

#[test]
fn a_notice_that_cannot_go_out_does_not_spin_with_no_interval() {
    let mut presence = with(Limits { interval_us: 0, ..LIMITS });
    presence.enter("t", "alice", "{}", 5);
    assert_eq!(publish_nothing(&mut presence, 5), 1);
    assert_eq!(presence.due_us(), Some(6));
}

#[test]
fn what_changes_while_a_notice_is_out_goes_after_it() {
    let mut presence = presence();
    let alice = presence.enter("t", "alice", "{}", 0);
    let mut batches = presence.take(1000, 64);
    assert_eq!((batches.len(), presence.due_us()), (1, None));
    assert!(presence.take(9000, 64).is_empty(), "one at a time");
    // A client that requests the list now may or may not get the notice; the list has its content.
    assert_eq!(state(&presence, "t"), r#"{"alice":{"metas":[{"phx_ref":"1"}]}}"#);
    presence.leave("t", "alice", alice, 1000);
    presence.enter("t", "bob", "{}", 1000);
    let mut events = Vec::new();
    batches[0].publish(&mut |topic, event, json| {
        events.push(format!("{topic} {event} {}", short(json)));
        true
    });
    let joins = r#"{"alice":{"metas":[{"phx_ref":"1"}]}}"#;
    assert_eq!(events, [format!(r#"t presence_diff {{"joins":{joins},"leaves":{{}}}}"#)]);
    presence.confirm(batches, 1500);
    assert_eq!(presence.due_us(), Some(2500));
    let diff = format!(r#"{{"joins":{{"bob":{{"metas":[{{"phx_ref":"2"}}]}}}},"leaves":{joins}}}"#);
    assert_eq!(published(&mut presence, 2500), [(DIFF, diff)]);
}

#[test]
fn a_topic_outlives_its_members_until_its_notice_is_back() {
    let mut presence = presence();
    let alice = presence.enter("t", "alice", "{}", 0);
    let batches = presence.take(1000, 64);
    presence.leave("t", "alice", alice, 1000);
    assert_eq!((presence.stats().topics, presence.stats().connections), (1, 0));
    presence.confirm(batches, 1000);
    assert_eq!(published(&mut presence, 2000).len(), 1, "the join");
    assert_eq!(published(&mut presence, 3000).len(), 1, "the leave");
    assert_eq!(presence.stats().topics, 0);
}

#[test]
fn a_crossing_drops_a_notice_that_is_out_and_cannot_be_published() {
    let mut presence = presence();
    presence.enter("t", "alice", "{}", 0);
    let mut batches = presence.take(1000, 64);
    crowd(&mut presence, 4);
    batches.iter_mut().for_each(|batch| batch.publish(&mut |_, _, _| false));
    presence.confirm(batches, 1000);
    assert_eq!(
        texts(&mut presence, 2000),
        ["presence_state {}", r#"presence_count {"users":5,"connections":5}"#]
    );
}

#[test]
fn what_is_taken_at_a_time_is_bounded() {
    let mut presence = presence();
    for n in 0..100 {
        presence.enter(&format!("t{n}"), "alice", "{}", 0);
    }
    let few = presence.take(1000, 64);
    assert_eq!(few.len(), 64);
    presence.confirm(few, 1000);
    let rest = presence.take(1000, 64);
    assert_eq!(rest.len(), 36);
    let meta = format!(r#"{{"x":"{}"}}"#, "x".repeat(100_000));
    for n in 0..100 {
        presence.enter(&format!("u{n}"), "alice", &meta, 0);
    }
    assert_eq!(presence.take(1000, 64).len(), 3, "256 KiB and the topic that goes over");
}

#[test]
fn what_waits_is_bounded_while_nothing_can_be_published() {
    let mut presence = presence();
    let mut alice = presence.enter("t", "alice", "{}", 0);
    published(&mut presence, 1000);
    for n in 1..1000u64 {
        let of = presence.enter("t", &format!("guest{n}"), "{}", n * 1000);
        alice = presence.update("t", "alice", alice, "{}", n * 1000).unwrap();
        publish_nothing(&mut presence, n * 1000);
        presence.leave("t", &format!("guest{n}"), of, n * 1000);
    }
    let topic = &presence.topics["t"];
    // The announced entries: alice and the first guest, both gone by now; the first notice is still unsent.
    assert_eq!((topic.users.len(), topic.metas.len()), (1, 2));
    assert_eq!((topic.joins.len(), topic.leaves.len()), (1, 2));
    assert_eq!(topic.unsent.len(), 1);
}

/// Metas of 100 bytes and a little more, in lists of 1,000 bytes.
#[test]
fn above_the_bytes_users_are_counted_and_listed_again_at_three_quarters() {
    let limits = Limits { users_max: 100, list_bytes_max: 1000, ..LIMITS };
    let mut presence = with(limits);
    let meta = format!(r#"{{"x":"{}"}}"#, "x".repeat(100));
    let refs: Vec<_> = (0..6).map(|n| presence.enter("t", &format!("u{n}"), &meta, 0)).collect();
    assert_eq!(published(&mut presence, 1000).len(), 1);
    assert!(state(&presence, "t").len() > 750);
    // One user with many connections counts like many users.
    let more: Vec<_> = (0..2).map(|_| presence.enter("t", "u0", &meta, 1000)).collect();
    assert_eq!(counts(&presence, "t"), Counts { users: 6, connections: 8, listed: false });
    let all = r#"presence_count {"users":6,"connections":8}"#;
    assert_eq!(texts(&mut presence, 2000), ["presence_state {}", all]);
    // Smaller metas bring the list back, though no user has left.
    let small = presence.update("t", "u1", refs[1], "{}", 2000).unwrap();
    presence.update("t", "u2", refs[2], "{}", 2000);
    assert_eq!(presence.due_us(), None, "above three quarters");
    presence.update("t", "u0", more[0], "{}", 2000);
    presence.update("t", "u0", more[1], "{}", 2000);
    presence.update("t", "u3", refs[3], "{}", 2000);
    assert_eq!(published(&mut presence, 3000), [(STATE, state(&presence, "t"))]);
    // Larger metas remove it again.
    presence.update("t", "u1", small, &meta.replace('x', "xxxx"), 3000);
    assert_eq!(
        texts(&mut presence, 4000),
        ["presence_state {}", r#"presence_count {"users":6,"connections":8}"#]
    );
    presence.set_limits(Limits { list_bytes_max: 2000, ..limits }, 5000);
    assert_eq!(published(&mut presence, 6000)[0].0, STATE);
    assert!(counts(&presence, "t").listed);
}

#[test]
fn a_meta_larger_than_a_list_is_counted() {
    let mut presence = with(Limits { list_bytes_max: 100, ..LIMITS });
    presence.enter("t", "alice", &format!(r#"{{"x":"{}"}}"#, "x".repeat(100)), 0);
    assert_eq!(
        texts(&mut presence, 1000),
        ["presence_state {}", r#"presence_count {"users":1,"connections":1}"#]
    );
    assert_eq!(state(&presence, "t"), "{}");
}

#[test]
fn a_large_change_is_several_notices_in_one_go() {
    let limits = Limits { users_max: 100, list_bytes_max: 2000, ..LIMITS };
    let mut presence = Registry::new(limits, NodeId(u32::MAX));
    presence.next = Ref::new(NodeId(u32::MAX), 1 << 28);
    let meta = format!(r#"{{"x":"{}"}}"#, "x".repeat(100));
    let refs: Vec<_> = (0..10).map(|n| presence.enter("t", &format!("u{n}"), &meta, 0)).collect();
    assert_eq!(published(&mut presence, 1000).len(), 1);
    let new: Vec<_> = (0..10)
        .map(|n| presence.update("t", &format!("u{n}"), refs[n], &meta, 1000).unwrap())
        .collect();
    let mut replies = [true, false].into_iter();
    let mut out = Vec::new();
    flush(&mut presence, 2000, &mut |_, _, json| {
        let sent = replies.next().unwrap();
        out.extend(sent.then(|| json.to_string()));
        sent
    });
    out.extend(published(&mut presence, 3000).into_iter().map(|(_, json)| json));
    assert_eq!(out.len(), 2);
    assert!(out.iter().all(|json| json.len() < 2100));
    for (n, (old, new)) in refs.iter().zip(&new).enumerate() {
        let joins = format!(r#""u{n}":{{"metas":[{{"phx_ref":"{new}","phx_ref_prev":"{old}","#);
        let leaves = format!(r#""u{n}":{{"metas":[{{"phx_ref":"{old}"}}]}}"#);
        let at = |text: &str| out.iter().position(|json| json.contains(text)).unwrap();
        assert!(at(&joins) <= at(&leaves), "u{n} is never without a meta");
    }
    assert_eq!(presence.due_us(), None);
}

#[test]
fn above_the_cap_users_are_counted_and_listed_again_at_three_quarters() {
    let mut presence = presence();
    let refs = crowd(&mut presence, 4);
    published(&mut presence, 1000);
    let five = presence.enter("t", "u4", "{}", 1000);
    assert_eq!(counts(&presence, "t"), Counts { users: 5, connections: 5, listed: false });
    assert_eq!(state(&presence, "t"), "{}");
    assert_eq!(state_for(&presence, "t", "u4", five), "{}");
    assert_eq!(
        texts(&mut presence, 2000),
        ["presence_state {}", r#"presence_count {"users":5,"connections":5}"#]
    );
    presence.enter("t", "u0", "{}", 2000);
    assert_eq!(texts(&mut presence, 3000), [r#"presence_count {"users":5,"connections":6}"#]);
    // At the cap, and above three quarters of it: still counts.
    presence.leave("t", "u4", five, 3000);
    assert_eq!(texts(&mut presence, 4000), [r#"presence_count {"users":4,"connections":5}"#]);
    let new = presence.update("t", "u1", refs[1], r#"{"n":1}"#, 4000).unwrap();
    assert_ne!(new, refs[1], "members may hold the old one");
    assert_eq!(presence.due_us(), None, "the counts are as they were");
    presence.leave("t", "u3", refs[3], 5000);
    assert!(!counts(&presence, "t").listed, "not before the list is sent");
    let list = r#"{"u0":{"metas":[{"phx_ref":"1"},{"phx_ref":"6"}]},"u1":{"metas":[{"phx_ref":"7","n":1}]},"u2":{"metas":[{"phx_ref":"3"}]}}"#;
    assert_eq!(published(&mut presence, 6000), [(STATE, list.into())]);
    assert_eq!(state(&presence, "t"), list);
    presence.leave("t", "u2", refs[2], 6000);
    assert_eq!(published(&mut presence, 7000)[0].0, DIFF);
}

#[test]
fn each_notice_of_a_crossing_is_tried_until_it_is_out() {
    let mut presence = presence();
    crowd(&mut presence, 5);
    let mut replies = [false, true, false, true, true].into_iter();
    let mut events = Vec::new();
    for now_us in [1000, 2000, 3000, 4000] {
        flush(&mut presence, now_us, &mut |_, event, _| {
            let sent = replies.next().unwrap();
            events.push((now_us, event, sent));
            sent
        });
    }
    assert_eq!(
        events,
        [(1000, STATE, false), (2000, STATE, true), (2000, COUNT, false), (3000, COUNT, true)]
    );
}

#[test]
fn the_way_back_is_published_even_when_the_crossing_was_not() {
    let mut presence = presence();
    let refs = crowd(&mut presence, 4);
    published(&mut presence, 1000);
    let new = presence.enter("t", "u4", "{}", 1000);
    presence.leave("t", "u4", new, 1000);
    presence.leave("t", "u3", refs[3], 1000);
    let notices = published(&mut presence, 2000);
    assert_eq!(notices.len(), 2);
    assert_eq!(notices[0], (STATE, "{}".into()));
    assert_eq!(notices[1], (STATE, state(&presence, "t")));
    assert!(counts(&presence, "t").listed);

    // Over the cap again before the list was sent.
    crowd(&mut presence, 6);
    published(&mut presence, 3000);
    for n in 3..6 {
        let entry = presence.topics["t"].users.get_key_value(&*format!("u{n}")).unwrap().0.clone();
        let of = presence.topics["t"].metas.keys().find(|e| e.0 == entry).unwrap().1;
        presence.leave("t", &entry, of, 3000);
    }
    presence.enter("t", "u8", "{}", 3000);
    presence.enter("t", "u9", "{}", 3000);
    assert_eq!(texts(&mut presence, 4000), [r#"presence_count {"users":5,"connections":8}"#]);
}

#[test]
fn a_crossing_that_was_not_published_goes_after_a_second_one() {
    let mut presence = presence();
    let refs = crowd(&mut presence, 4);
    published(&mut presence, 1000);
    let new = presence.enter("t", "u4", "{}", 1000);
    presence.leave("t", "u4", new, 1000);
    presence.leave("t", "u3", refs[3], 1000);
    presence.enter("t", "u5", "{}", 1000);
    presence.enter("t", "u6", "{}", 1000);
    assert_eq!(
        texts(&mut presence, 2000),
        ["presence_state {}", r#"presence_count {"users":5,"connections":5}"#]
    );
}

#[test]
fn a_list_whose_return_cannot_go_out_is_tried_again() {
    let mut presence = presence();
    let refs = crowd(&mut presence, 5);
    published(&mut presence, 1000);
    (3..5).for_each(|n| presence.leave("t", &format!("u{n}"), refs[n], 1000));
    assert_eq!(publish_nothing(&mut presence, 2000), 1);
    assert!(counts(&presence, "t").listed, "it is announced");
    assert_eq!(published(&mut presence, 3000), [(STATE, state(&presence, "t"))]);
}

#[test]
fn a_cap_of_none_counts_from_the_start() {
    let mut presence = with(Limits { users_max: 0, ..LIMITS });
    assert!(!counts(&presence, "t").listed);
    let of = presence.enter("t", "alice", "{}", 0);
    assert_eq!(texts(&mut presence, 1000), [r#"presence_count {"users":1,"connections":1}"#]);
    presence.leave("t", "alice", of, 1000);
    assert_eq!(texts(&mut presence, 2000), [r#"presence_count {"users":0,"connections":0}"#]);
    assert_eq!(presence.stats().topics, 0);
}

#[test]
fn a_new_cap_reaches_quiet_topics() {
    let mut presence = presence();
    crowd(&mut presence, 3);
    published(&mut presence, 1000);
    presence.set_limits(Limits { users_max: 2, ..LIMITS }, 5000);
    assert_eq!(presence.due_us(), Some(6000));
    assert_eq!(
        texts(&mut presence, 6000),
        ["presence_state {}", r#"presence_count {"users":3,"connections":3}"#]
    );
    presence.set_limits(LIMITS, 7000);
    assert_eq!(published(&mut presence, 8000), [(STATE, state(&presence, "t"))]);
}

#[test]
fn metas_stay_in_order_and_lose_their_own_refs() {
    let mut presence = presence();
    let list = |presence: &mut Registry, meta: &str| {
        let of = presence.enter("t", "a", meta, 0);
        let list = state_for(presence, "t", "a", of);
        presence.leave("t", "a", of, 0);
        list.replace(&short(&format!(r#"{{"a":{{"metas":[{{"phx_ref":"{of}""#)), "")
    };
    let mut properties = |meta: &str| list(&mut presence, meta);
    assert_eq!(properties("{}"), "}]}}");
    assert_eq!(properties(r#"{"z":1,"a":2}"#), r#","z":1,"a":2}]}}"#);
    assert_eq!(
        properties(r#"{"phx_ref":"x","a":{"phx_ref":1},"phx_ref_prev":{}}"#),
        r#","a":{"phx_ref":1}}]}}"#
    );
    assert_eq!(properties(r#"{"phx\u005fref":"x"}"#), "}]}}", "written with an escape");
    assert_eq!(
        properties(
            "{ \"a b\" : [ 1 ,\n 2.50 ] , \"c\" : \"x \\\" y \\\\\" , \"d\" : 12345678901234567890123 }"
        ),
        r#","a b":[1,2.50],"c":"x \" y \\","d":12345678901234567890123}]}}"#
    );
    assert_eq!(properties(r#"{"\ud800":"\ud800"}"#), r#","\ud800":"\ud800"}]}}"#);
    for broken in ["", "null", "[1]", "{", r#"{"a":}"#, "{} {}"] {
        assert_eq!(properties(broken), "}]}}", "{broken}");
    }
}

#[test]
fn keys_are_written_as_json() {
    let mut presence = presence();
    let key = "a\"\\\n\u{1}é";
    presence.enter("t", key, "{}", 0);
    published(&mut presence, 1000);
    assert!(state(&presence, "t").len() <= presence.topics["t"].bytes + 2);
    assert_eq!(state(&presence, "t"), r#"{"a\"\\\n\u0001é":{"metas":[{"phx_ref":"1"}]}}"#);
}

/// The test would take minutes if the cost of a change grew with the number of members, or with the number of one
/// user's connections.
#[test]
fn a_storm_costs_as_much_as_its_changes_and_leaves_nothing() {
    for users in [50_000, 1] {
        let mut presence = with(Limits { users_max: 100_000, list_bytes_max: 1 << 30, ..LIMITS });
        let key = |n: usize| format!("user{}", n % users);
        let refs: Vec<_> =
            (0..50_000).map(|n| presence.enter("t", &key(n), r#"{"n":1}"#, 0)).collect();
        assert_eq!(published(&mut presence, 1000).len(), 1);
        let refs: Vec<_> = (0..50_000)
            .map(|n| presence.update("t", &key(n), refs[n], r#"{"n":2}"#, 1000).unwrap())
            .collect();
        assert_eq!(published(&mut presence, 2000).len(), 1);
        (0..50_000).for_each(|n| presence.leave("t", &key(n), refs[n], 2000));
        assert_eq!(published(&mut presence, 3000).len(), 1);
        assert_eq!((presence.topics.len(), presence.due.len()), (0, 0));
    }
}

#[test]
fn topics_are_due_one_by_one() {
    let mut presence = presence();
    for n in 0..100 {
        presence.enter(&format!("t{n}"), "alice", "{}", n);
    }
    assert_eq!(published(&mut presence, 1009).len(), 10);
    assert_eq!(presence.due_us(), Some(1010));
    assert_eq!(published(&mut presence, 5000).len(), 90);
}
