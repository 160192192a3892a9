//! Clients of every transport that were connected before an upgrade receive everything that is published during it.

use serde_json::json;

use crate::upgrade::member::{ALL, Kind, Member, Publisher, numbers};
use crate::upgrade::node::{BOTH, Node, Storage};

/// Topics with and without history.
const TOPICS: [&str; 2] = ["h:all", "plain/all"];

/// Opens a member of each transport in each topic, publishes numbers during the upgrades, and checks that each member
/// has received all of them.
pub fn receive_through(node: &Node, upgrades: impl FnOnce(&Publisher)) {
    let members: Vec<Member> = TOPICS.iter().flat_map(|topic| Member::all(node, topic)).collect();
    let publisher = Publisher::default();
    std::thread::scope(|scope| {
        let publishing = scope.spawn(|| publisher.run(node, &TOPICS));
        let read = |mut member: Member| {
            let received = member.before_end();
            (member, received)
        };
        let threads = members.into_iter().map(|member| scope.spawn(move || read(member)));
        let threads: Vec<_> = threads.collect();
        publisher.meanwhile(|| upgrades(&publisher));
        let expected = numbers(0..publishing.join().unwrap());
        for thread in threads {
            let (member, received) = thread.join().unwrap();
            member.check_received(&received, &expected);
        }
    });
}

#[test]
fn each_transport_receives_each_message_once_through_upgrades() {
    for storage in BOTH {
        let node = Node::new(storage);
        let epoch = node.epoch();
        receive_through(&node, |publisher| {
            for _ in 0..3 {
                node.upgrade();
                publisher.until_more();
            }
        });
        assert_eq!(node.epoch(), epoch, "{storage:?}");
    }
}

#[test]
fn upgrades_may_follow_each_other_at_once() {
    let node = Node::new(Storage::Memory);
    receive_through(&node, |_| (0..6).for_each(|_| node.upgrade()));
}

/// The new server finds clients that were connected before, and messages for one of them reach it.
#[test]
fn users_and_everyone_are_reached_after_an_upgrade() {
    let node = Node::new(Storage::Memory);
    let mut members: Vec<Member> =
        ALL.iter().map(|kind| Member::as_user(&node, *kind, "plain/x")).collect();
    let before = node.metric("throng_connections{transport=\"sse\"}");
    node.upgrade();
    assert_eq!(node.metric("throng_connections{transport=\"sse\"}"), before);
    for member in &mut members {
        let listens = member.kind != Kind::Poll;
        if listens {
            let (status, user) = node.api("GET", &format!("/api/users/{}", member.user), None);
            assert_eq!((status, user["connections"].as_array().map(Vec::len)), (200, Some(1)));
        }
        node.post("/api/send", json!({"user": member.user, "data": "for you"}));
        assert_eq!(member.next(), "for you", "{:?}", member.kind);
    }
    node.post("/api/broadcast", json!({"data": "for all"}));
    for member in &mut members {
        if !matches!(member.kind, Kind::Mqtt3(_) | Kind::Mqtt5(_)) {
            assert_eq!(member.next(), "for all", "{:?}", member.kind);
        }
        node.post("/api/disconnect", json!({"user": member.user}));
    }
    node.until("all are gone", |server| {
        server.api("GET", "/api/topics/plain%2Fx", None).1["members"] == 0
    });
}

/// The new server counts every connection once.
#[test]
fn the_counts_of_connections_go_on() {
    let node = Node::new(Storage::Memory);
    let members = Member::all(&node, "plain/x");
    let stats = |what: &str| node.api("GET", "/api/stats", None).1[what].as_u64().unwrap();
    let before = (stats("connections"), stats("topics"));
    for _ in 0..2 {
        node.upgrade();
        node.until("as many are connected as before", |_| {
            (stats("connections"), stats("topics")) == before
        });
    }
    drop(members);
    // The long-poll session may last for a while.
    node.until("nobody is connected", |_| stats("connections") <= 1);
}
