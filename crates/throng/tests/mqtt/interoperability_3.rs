//! The cases of the Eclipse interoperability suite for MQTT 3.1.1, under its names.

use protocol::mqtt::write::ConfirmType;

use crate::mqtt::client::*;
use crate::mqtt::server;

const TOPICS: [&str; 5] = ["TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA"];

#[test]
fn test_basic() {
    let server = server(&[]);
    let mut one = Connect::new(V3, "myclientid").open(server.client);
    one.subscribe(&[filter("TopicA", 2)]);
    for qos in 0..3 {
        one.publish("TopicA", &format!("qos {qos}"), qos);
        let message = one.message();
        assert_eq!((message.payload, message.qos), (format!("qos {qos}"), qos));
    }
    one.disconnect();
    // The first packet must be CONNECT, and only the first.
    let mut two = Connect::new(V3, "myclientid").open(server.client);
    two.send(&Connect::new(V3, "myclientid").bytes());
    two.expect_events(&[Event::Closed]);
    // The name of another protocol, and a name of another length.
    let mut wrong = Connect::new(V3, "myclientid").bytes();
    wrong[4..8].copy_from_slice(b"hj57");
    let short = [&[wrong[0], wrong[1] - 2, 0, 2, b'h', b'j'], &wrong[8..]].concat();
    for bytes in [&wrong, &short] {
        let mut three = Client::new(server.client, V3);
        three.send(bytes);
        three.expect_events(&[Event::Closed]);
    }
}

#[test]
fn test_retained_messages() {
    let server = server(&[]);
    let mut one = Connect::new(V3, "myclientid").open(server.client);
    for (qos, topic) in TOPICS[1..4].iter().enumerate() {
        let qos = u8::try_from(qos).unwrap();
        one.publish_all(Publish::new(topic, &format!("qos {qos}"), qos).retained());
    }
    one.subscribe(&[filter("+/+", 2)]);
    let mut got: Vec<_> = (0..3).map(|_| one.message()).collect();
    got.sort_by_key(|message| message.qos);
    for (qos, message) in got.iter().enumerate() {
        assert_eq!((message.payload.as_str(), message.retain), (&*format!("qos {qos}"), true));
        assert_eq!(usize::from(message.qos), qos);
    }
    // An empty message removes the retained message, and goes to current subscribers.
    for (qos, topic) in (0..3).zip(&TOPICS[1..4]) {
        one.publish_all(Publish::new(topic, "", qos).retained());
        let message = one.message();
        assert_eq!((message.payload.as_str(), message.retain), ("", false));
    }
    let mut two = Connect::new(V3, "other").open(server.client);
    two.subscribe(&[filter("+/+", 2)]);
    two.is_quiet();
}

#[test]
fn test_offline_message_queueing() {
    let server = server(&[]);
    let mut one = Connect::persistent(V3, "myclientid").open(server.client);
    assert!(!one.session_present);
    one.subscribe(&[filter("+/+", 2)]);
    one.disconnect();
    let mut two = Connect::new(V3, "myclientid2").open(server.client);
    for (qos, topic) in TOPICS[1..4].iter().enumerate() {
        two.publish(topic, &format!("qos {qos}"), u8::try_from(qos).unwrap());
    }
    let mut one = Connect::persistent(V3, "myclientid").open(server.client);
    assert!(one.session_present);
    // The server need not retain messages with QoS 0 for a session.
    assert_eq!(
        one.messages(2),
        [("Topic/C".into(), "qos 1".into()), ("TopicA/C".into(), "qos 2".into())]
    );
    one.is_quiet();
}

#[test]
fn test_will_message() {
    let server = server(&[]);
    let mut two = Connect::new(V3, "myclientid2").open(server.client);
    two.subscribe(&[filter("Topic/C", 2)]);
    let connect = Connect::new(V3, "myclientid");
    connect.will("Topic/C", "client not disconnected", 2).open(server.client).cut();
    let message = two.message();
    assert_eq!((message.payload.as_str(), message.qos), ("client not disconnected", 2));
    // A client that sends DISCONNECT has no will.
    let three = Connect::new(V3, "myclientid3").will("Topic/C", "no", 0).open(server.client);
    three.disconnect();
    // The server accepts the next connection only after it has finished with the one before.
    let _three = Connect::new(V3, "myclientid3").open(server.client);
    two.is_quiet();
}

#[test]
fn test_overlapping_subscriptions() {
    let server = server(&[]);
    let mut one = Connect::new(V3, "myclientid").open(server.client);
    one.subscribe(&[filter("TopicA/#", 2), filter("TopicA/+", 1)]);
    one.publish("TopicA/C", "overlapping topic filters", 2);
    // The server sends one message, with the highest QoS of all matching subscriptions.
    assert_eq!(one.message().qos, 2);
    one.is_quiet();
}

#[test]
fn test_keepalive() {
    let server = server(&[]);
    let mut two = Connect::new(V3, "myclientid2").open(server.client);
    two.subscribe(&[filter("Topic/C", 2)]);
    let connect = Connect { keep_alive_s: 2, ..Connect::new(V3, "myclientid") };
    let mut one = connect.will("Topic/C", "keepalive expiry", 0).open(server.client);
    assert_eq!(two.message().payload, "keepalive expiry");
    one.expect_events(&[Event::Closed]);
}

#[test]
fn test_redelivery_on_reconnect() {
    let server = server(&[]);
    let mut one = Connect::persistent(V3, "myclientid").open(server.client);
    one.subscribe(&[filter("TopicA/#", 2)]);
    let mut two = Connect::new(V3, "myclientid2").open(server.client);
    two.publish("TopicA/B", "one", 1);
    two.publish("TopicA/C", "two", 2);
    let first = [one.unconfirmed(), one.unconfirmed()];
    assert!(first.iter().all(|message| !message.dup));
    // The server only sends them again after a reconnect.
    one.is_quiet();
    one.cut();
    let mut one = Connect::persistent(V3, "myclientid").open(server.client);
    for before in first {
        let again = one.message();
        assert_eq!(again, Message { dup: true, ..before });
    }
    one.is_quiet();
}

#[test]
fn test_zero_length_clientid() {
    let server = server(&[]);
    // A client without an identifier can't resume a session.
    let refused = Connect { clean: false, ..Connect::new(V3, "") }.try_open(server.client);
    assert_eq!(refused.1.code, 2);
    let (mut client, reply) = Connect::new(V3, "").try_open(server.client);
    assert_eq!(reply.code, 0);
    client.ping();
}

#[test]
fn test_subscribe_failure() {
    let server = server(&[]);
    let mut one = Connect::new(V3, "myclientid").open(server.client);
    let codes = one.subscribe_with(&[filter("test/nosubscribe", 2), filter("a", 1)], &[]);
    assert_eq!(codes, [0x80, 1]);
    one.publish("test/nosubscribe", "nobody", 1);
    one.is_quiet();
}

#[test]
fn test_dollar_topics() {
    let server = server(&[]);
    let mut one = Connect::new(V3, "myclientid").open(server.client);
    one.subscribe(&[filter("+/+", 2), filter("#", 2)]);
    one.publish("$other/b", "not for wildcards", 1);
    one.is_quiet();
    one.subscribe(&[filter("$other/b", 1)]);
    one.publish("$other/b", "by its name", 1);
    assert_eq!(one.message().payload, "by its name");
}

#[test]
fn test_unsubscribe() {
    let server = server(&[]);
    let mut one = Connect::new(V3, "myclientid").open(server.client);
    one.subscribe(&[filter("TopicA", 2), filter("TopicA/B", 2), filter("Topic/C", 2)]);
    assert!(one.unsubscribe(&["TopicA", "no such"]).is_empty());
    for topic in ["TopicA", "TopicA/B", "Topic/C"] {
        one.publish(topic, topic, 1);
    }
    let mut got = one.messages(2);
    got.sort();
    let want = ["Topic/C", "TopicA/B"].map(|topic| (topic.to_string(), topic.to_string()));
    assert_eq!(got, want);
    one.is_quiet();
    one.confirm(ConfirmType::Pubrel, 999);
    one.expect_events(&[Event::Confirm("PUBCOMP", 999, 0)]);
}
