//! Sessions, retained messages, wills, and incomplete deliveries.

use std::time::Instant;

use protocol::mqtt::id;
use protocol::mqtt::write::ConfirmType;
use serde_json::json;

use crate::mqtt::client::*;
use crate::support::TIMEOUT;
use crate::upgrade::node::{BOTH, Node, Storage};

fn persistent(client: &str) -> Connect {
    Connect::persistent(V5, client)
}

#[test]
fn sessions_of_clients_away_and_retained_messages_go_along() {
    for storage in BOTH {
        for version in [V3, V5] {
            let node = Node::new(storage);
            let mut away = Connect::persistent(version, "away").open(node.client);
            away.subscribe(&[filter("news/#", 1), filter("exact/#", 2)]);
            away.disconnect();
            let mut speaker = Connect::new(version, "speaker").open(node.client);
            speaker.publish_all(Publish::new("state/1", "on", 1).retained());
            speaker.publish_all(Publish::new("state/2", "off", 1).retained());
            speaker.publish_all(Publish::new("state/2", "", 1).retained());
            speaker.publish("news/1", "before", 1);
            node.upgrade();
            speaker.publish("exact/1", "after", 2);
            let mut back = Connect::persistent(version, "away").open(node.client);
            assert!(back.session_present, "{storage:?} {version:?}");
            let mut got: Vec<_> = back.messages(2).into_iter().map(|(_, text)| text).collect();
            got.sort();
            assert_eq!(got, ["after", "before"], "{storage:?} {version:?}");
            back.is_quiet();
            back.subscribe(&[filter("state/#", 1)]);
            let message = back.message();
            assert_eq!(
                (&*message.topic, &*message.payload, message.retain),
                ("state/1", "on", true)
            );
            back.is_quiet();
            assert!(!Connect::persistent(version, "unknown").open(node.client).session_present);
        }
    }
}

#[test]
fn what_was_half_confirmed_is_confirmed_to_the_end() {
    for storage in BOTH {
        for version in [V3, V5] {
            let node = Node::new(storage);
            let mut subscriber = Connect::persistent(version, "hears").open(node.client);
            subscriber.subscribe(&[filter("once/#", 2), filter("sure/#", 1)]);
            let mut publisher = Connect::persistent(version, "says").open(node.client);
            // A QoS 2 message of the client that is received, but not released.
            let half = Publish { id: 70, ..Publish::new("once/1", "half", 2) };
            publisher.send(&half.bytes(version));
            publisher.expect_events(&[Event::Confirm("PUBREC", 70, 0)]);
            let first = subscriber.unconfirmed();
            assert_eq!((&*first.payload, first.qos), ("half", 2));
            // One after the other, since only messages of one topic have an order.
            node.publish("once/2", json!("received"));
            let received = subscriber.unconfirmed();
            subscriber.confirm(ConfirmType::Pubrec, received.id);
            subscriber.expect_events(&[Event::Confirm("PUBREL", received.id, 0)]);
            node.publish("sure/1", json!("unconfirmed"));
            let sure = subscriber.unconfirmed();
            node.upgrade();
            // No message comes again, since no connection was cut.
            subscriber.is_quiet();
            publisher.is_quiet();
            // If the client repeats the message, the server does not publish it again.
            publisher.send(&Publish { dup: true, ..half }.bytes(version));
            publisher.expect_events(&[Event::Confirm("PUBREC", 70, 0)]);
            subscriber.is_quiet();
            publisher.confirm(ConfirmType::Pubrel, 70);
            publisher.expect_events(&[Event::Confirm("PUBCOMP", 70, 0)]);
            subscriber.confirm(ConfirmType::Pubcomp, received.id);
            subscriber.confirm(ConfirmType::Puback, sure.id);
            subscriber.confirm(ConfirmType::Pubrec, first.id);
            subscriber.expect_events(&[Event::Confirm("PUBREL", first.id, 0)]);
            subscriber.confirm(ConfirmType::Pubcomp, first.id);
            // The server does not reuse identifiers of messages in flight.
            node.publish("once/3", json!("next"));
            assert_eq!(subscriber.message().payload, "next");
            subscriber.cut();
            let mut back = Connect::persistent(version, "hears").open(node.client);
            assert!(back.session_present);
            back.is_quiet();
        }
    }
}

/// A message that was sent before the upgrade, and not confirmed, comes again when the client reconnects to its
/// session.
#[test]
fn what_the_client_has_not_confirmed_comes_again_after_a_cut() {
    let node = Node::new(Storage::Memory);
    let mut subscriber = persistent("hears").open(node.client);
    subscriber.subscribe(&[filter("sure/#", 1)]);
    node.publish("sure/1", json!("a"));
    let first = subscriber.unconfirmed();
    node.upgrade();
    node.publish("sure/1", json!("b"));
    assert_eq!(subscriber.unconfirmed().payload, "b");
    subscriber.cut();
    let mut back = persistent("hears").open(node.client);
    let again = back.message();
    assert_eq!((&*again.payload, again.dup, again.id), ("a", true, first.id));
    assert_eq!(back.message().payload, "b");
    back.is_quiet();
}

#[test]
fn wills_are_published_when_their_clients_go_and_not_before() {
    for storage in BOTH {
        let node = Node::new(storage);
        let mut witness = Connect::new(V5, "witness").open(node.client);
        witness.subscribe(&[filter("will/+", 1)]);
        let dying = Connect::new(V5, "dying").will("will/cut", "gone", 1).open(node.client);
        let polite = Connect::new(V3, "polite").will("will/polite", "gone", 1).open(node.client);
        // The will of a client that is already away waits.
        let mut late = persistent("late").will("will/late", "gone", 1);
        let delay = number(id::WILL_DELAY_INTERVAL, 2);
        late.will.as_mut().unwrap().properties.push(delay);
        late.open(node.client).cut();
        node.until("it is away", |node| node.metric("throng_mqtt_sessions_away") == 1.0);
        node.upgrade();
        // The delayed will may come at any time.
        let mut topics: Vec<String> = witness.drain().into_iter().map(|it| it.topic).collect();
        assert!(topics.iter().all(|topic| topic == "will/late"), "{storage:?} {topics:?}");
        polite.disconnect();
        dying.cut();
        let end = Instant::now() + TIMEOUT;
        while topics.len() < 2 {
            assert!(Instant::now() < end, "{topics:?}");
            topics.push(witness.unconfirmed().topic);
        }
        topics.sort();
        assert_eq!(topics, ["will/cut", "will/late"], "{storage:?}");
        witness.is_quiet();
    }
}

/// A second connect with the same identifier takes the session over, also after an upgrade.
#[test]
fn a_client_that_connects_again_takes_its_session_over() {
    let node = Node::new(Storage::Memory);
    let mut first = persistent("same").open(node.client);
    first.subscribe(&[filter("a", 1)]);
    node.upgrade();
    let mut second = persistent("same").open(node.client);
    assert!(second.session_present);
    first.is_ended_for(0x8e);
    node.publish("a", json!("to the second"));
    assert_eq!(second.message().payload, "to the second");
}

/// Topic aliases and the receive maximum belong to the connection.
#[test]
fn aliases_and_receive_maximum_go_along() {
    let node = Node::new(Storage::Memory);
    let connect = Connect::new(V5, "hears").with(number(id::RECEIVE_MAXIMUM, 2));
    let mut subscriber = connect.open(node.client);
    subscriber.subscribe(&[filter("say/#", 1)]);
    let mut publisher = Connect::new(V5, "says").open(node.client);
    let alias = || number(id::TOPIC_ALIAS, 1);
    publisher.publish_all(Publish::new("say/alias", "named", 1).with(alias()));
    assert_eq!(subscriber.message().payload, "named");
    node.upgrade();
    publisher.publish_all(Publish::new("", "by alias", 1).with(alias()));
    let message = subscriber.message();
    assert_eq!((&*message.topic, &*message.payload), ("say/alias", "by alias"));
    // Two messages are in flight, and the third waits for a confirmation, before and after.
    (0..3).for_each(|number| _ = node.publish("say/many", json!(number)));
    let two = [subscriber.unconfirmed(), subscriber.unconfirmed()];
    subscriber.is_quiet();
    node.upgrade();
    subscriber.is_quiet();
    subscriber.confirm(ConfirmType::Puback, two[0].id);
    assert_eq!(subscriber.unconfirmed().payload, "2");
}
