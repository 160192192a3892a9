//! The cases of the Eclipse interoperability suite for MQTT 5.0, under its names.

use std::time::{Duration, Instant};

use protocol::mqtt::client::SubscribeParts;
use protocol::mqtt::write::{self, ConfirmType};
use protocol::mqtt::{ReasonCode, Value, id};

use crate::mqtt::client::*;
use crate::mqtt::server;

fn text(id: u8, text: &'static str) -> Property {
    (id, Value::Text(text))
}

fn pair(name: &'static str, value: &'static str) -> Property {
    (id::USER_PROPERTY, Value::Pair(name, value))
}

#[test]
fn test_basic() {
    let server = server(&[]);
    let mut one = Connect::new(V5, "myclientid").open(server.client);
    one.subscribe(&[filter("TopicA", 2)]);
    for qos in 0..3 {
        one.publish("TopicA", &format!("qos {qos}"), qos);
        let message = one.message();
        assert_eq!((message.payload, message.qos), (format!("qos {qos}"), qos));
    }
    one.is_quiet();
    one.disconnect();
    // A second CONNECT on one connection.
    let mut two = Connect::new(V5, "myclientid").open(server.client);
    two.send(&Connect::new(V5, "myclientid").bytes());
    two.is_ended_for(0x82);
    // The name of another protocol, and a name of another length.
    let mut wrong = Connect::new(V5, "myclientid").bytes();
    wrong[4..8].copy_from_slice(b"hj57");
    let short = [&[wrong[0], wrong[1] - 2, 0, 2, b'h', b'j'], &wrong[8..]].concat();
    for bytes in [&wrong, &short] {
        let mut three = Client::new(server.client, V5);
        three.send(bytes);
        three.expect_events(&[Event::Closed]);
    }
}

#[test]
fn test_retained_message() {
    let server = server(&[]);
    let mut one = Connect::new(V5, "myclientid").open(server.client);
    let topics = ["TopicA/B", "Topic/C", "TopicA/C"];
    for (qos, topic) in (0..3).zip(topics) {
        let payload = format!("qos {qos}");
        let publish = Publish::new(topic, &payload, qos).retained();
        one.publish_all(publish.with(pair("a", "2")).with(pair("c", "3")));
    }
    one.subscribe(&[filter("+/+", 2)]);
    let mut got: Vec<_> = (0..3).map(|_| one.message()).collect();
    got.sort_by_key(|message| message.qos);
    for (qos, (message, topic)) in (0..3).zip(got.iter().zip(topics)) {
        assert_eq!((message.topic.as_str(), message.qos, message.retain), (topic, qos, true));
        assert_eq!(message.payload, format!("qos {qos}"));
        let both = ["a=2", "c=3"].map(|pair| (id::USER_PROPERTY, pair.to_string()));
        assert_eq!(message.properties, both);
    }
    one.is_quiet();
    // Empty messages remove the retained messages.
    topics.iter().for_each(|topic| one.publish_all(Publish::new(topic, "", 0).retained()));
    assert!((0..3).all(|_| one.message().payload.is_empty()));
    let mut two = Connect::new(V5, "myclientid2").open(server.client);
    two.subscribe(&[filter("+/+", 2)]);
    two.is_quiet();
}

#[test]
fn test_offline_message_queueing() {
    let server = server(&[]);
    let mut one = Connect::persistent(V5, "myclientid").open(server.client);
    assert!(!one.session_present);
    one.subscribe(&[filter("+/+", 2)]);
    one.disconnect();
    let mut two = Connect::new(V5, "myclientid2").open(server.client);
    two.publish("TopicA/B", "qos 0", 0);
    two.publish("Topic/C", "qos 1", 1);
    two.publish("TopicA/C", "qos 2", 2);
    // The client resumes its session, which is to end with this connection.
    let back = Connect { clean: false, ..Connect::new(V5, "myclientid") };
    let mut one = back.open(server.client);
    assert!(one.session_present);
    let got = [one.message(), one.message()];
    let got = got.each_ref().map(|it| (it.topic.as_str(), it.payload.as_str(), it.qos));
    assert_eq!(got, [("Topic/C", "qos 1", 1), ("TopicA/C", "qos 2", 2)]);
    one.is_quiet();
    two.publish("TopicA/B", "live", 2);
    assert_eq!(one.message().payload, "live");
    one.is_quiet();
    one.disconnect();
    assert!(!back.open(server.client).session_present, "it has ended with its connection");
}

#[test]
fn test_will_message() {
    let server = server(&[]);
    let mut two = Connect::new(V5, "myclientid2").open(server.client);
    two.subscribe(&[filter("Topic/C", 2)]);
    let mut connect = Connect::new(V5, "myclientid").will("Topic/C", "will message", 1);
    connect.will.as_mut().unwrap().properties.push(pair("a", "2"));
    connect.open(server.client).cut();
    let message = two.message();
    assert_eq!((message.payload.as_str(), message.qos), ("will message", 1));
    assert_eq!(message.property(id::USER_PROPERTY), Some("a=2"));
    // With this reason code the server publishes the will in spite of DISCONNECT.
    let mut one = connect.open(server.client);
    let reason = ReasonCode::DisconnectWithWillMessage;
    one.send(&bytes(|out| write::disconnect(V5, reason, &[], out)));
    assert_eq!(two.message().payload, "will message");
}

#[test]
fn test_zero_length_clientid() {
    let server = server(&[]);
    for clean in [true, false] {
        let (mut client, reply) = Connect { clean, ..Connect::new(V5, "") }.try_open(server.client);
        assert_eq!(reply.code, 0);
        let assigned = reply.property(id::ASSIGNED_CLIENT_IDENTIFIER).unwrap();
        assert!(!assigned.is_empty());
        client.ping();
    }
}

#[test]
fn test_assigned_clientid() {
    let server = server(&[]);
    let (first, reply) = Connect::persistent(V5, "").try_open(server.client);
    let assigned = reply.property(id::ASSIGNED_CLIENT_IDENTIFIER).unwrap().to_string();
    first.disconnect();
    let (again, reply) = Connect::persistent(V5, &assigned).try_open(server.client);
    assert!(again.session_present);
    assert_eq!(reply.property(id::ASSIGNED_CLIENT_IDENTIFIER), None);
}

#[test]
fn test_dollar_topics() {
    let server = server(&[]);
    let mut one = Connect::new(V5, "myclientid").open(server.client);
    one.subscribe(&[SubscribeParts { no_local: true, ..filter("+/+", 2) }]);
    let mut two = Connect::new(V5, "two").open(server.client);
    two.publish("$other/b", "", 1);
    one.is_quiet();
    two.publish("TopicA/B", "x", 1);
    assert_eq!(one.message().payload, "x");
}

#[test]
fn test_unsubscribe() {
    let server = server(&[]);
    let mut one = Connect::new(V5, "myclientid").open(server.client);
    one.subscribe(&[filter("TopicA", 2), filter("TopicA/B", 2), filter("Topic/C", 2)]);
    assert_eq!(one.unsubscribe(&["TopicA", "TopicA"]), [0, 0x11]);
    ["TopicA", "TopicA/B", "Topic/C"].iter().for_each(|topic| one.publish(topic, "x", 1));
    assert_eq!(one.messages(2).len(), 2);
    one.is_quiet();
}

#[test]
fn test_session_expiry() {
    let server = server(&[]);
    let persistent = |seconds| {
        let connect = Connect { clean: false, ..Connect::new(V5, "myclientid") };
        connect.with(number(id::SESSION_EXPIRY_INTERVAL, seconds))
    };
    let goodbye = |client: &mut Client, seconds| {
        let properties = [number(id::SESSION_EXPIRY_INTERVAL, seconds)];
        client.send(&bytes(|out| write::disconnect(V5, ReasonCode::Success, &properties, out)));
    };
    let expired = || server.metric("throng_mqtt_sessions_ended_total{why=\"expired\"}");
    // Without a session expiry interval, and with 0, the session ends with the connection.
    for none in [Connect { clean: false, ..Connect::new(V5, "myclientid") }, persistent(0)] {
        let mut one = none.open(server.client);
        assert!(!one.session_present);
        one.subscribe(&[filter("a", 1)]);
        one.disconnect();
        assert!(!none.open(server.client).session_present);
    }
    let before = expired();
    let mut one = persistent(1_000).open(server.client);
    assert!(!one.session_present);
    one.subscribe(&[filter("a", 1)]);
    one.disconnect();
    // The newest CONNECT sets the interval.
    let one = persistent(1).open(server.client);
    assert!(one.session_present);
    one.disconnect();
    server.until("the session has expired", |_| expired() == before + 1.0);
    let mut one = persistent(1).open(server.client);
    assert!(!one.session_present, "its time was over");
    // DISCONNECT can prolong the session, ...
    one.subscribe(&[filter("a", 1)]);
    goodbye(&mut one, 1_000);
    one.expect_events(&[Event::Closed]);
    // Another session that ended later, with the short interval, has expired.
    Connect { client: "later".into(), ..persistent(1) }.open(server.client).disconnect();
    server.until("the later one has expired", |_| expired() == before + 2.0);
    let mut one = persistent(1).open(server.client);
    assert!(one.session_present, "its time was prolonged");
    // ... and end it.
    goodbye(&mut one, 0);
    one.expect_events(&[Event::Closed]);
    let mut one = persistent(0xffff_ffff).open(server.client);
    assert!(!one.session_present);
    one.subscribe(&[filter("a", 1)]);
    one.cut();
    let mut one = persistent(0).open(server.client);
    assert!(one.session_present);
    // DISCONNECT can't set an interval if CONNECT had 0.
    goodbye(&mut one, 5);
    one.is_ended_for(0x82);
}

#[test]
fn test_shared_subscriptions() {
    let server = server(&[]);
    let mut members: Vec<Client> =
        (0..2).map(|at| Connect::new(V5, &format!("member{at}")).open(server.client)).collect();
    for member in &mut members {
        member.subscribe(&[filter("$share/sharename/TopicA/+", 2), filter("end", 1)]);
    }
    let mut other = Connect::new(V5, "other").open(server.client);
    other.subscribe(&[filter("TopicA/B", 1)]);
    for at in 0..10 {
        other.publish_all(Publish::new("TopicA/B", &format!("message {at}"), 1));
        assert_eq!(other.message().payload, format!("message {at}"));
    }
    other.publish("end", "", 1);
    let mut counts = [0, 0];
    for (count, member) in counts.iter_mut().zip(&mut members) {
        while member.message().topic != "end" {
            *count += 1;
        }
        member.is_quiet();
    }
    assert_eq!(counts.iter().sum::<i32>(), 10, "each message went to one of them: {counts:?}");
    assert!(counts.iter().all(|count| *count >= 3), "they take turns: {counts:?}");
}

#[test]
fn test_will_delay() {
    let server = server(&[]);
    let mut two = Connect::new(V5, "myclientid2").open(server.client);
    two.subscribe(&[filter("Topic/C", 2)]);
    let dying = |client, payload, expiry_s, delay_s| {
        let connect = Connect::new(V5, client).will("Topic/C", payload, 0);
        let mut connect = connect.with(number(id::SESSION_EXPIRY_INTERVAL, expiry_s));
        connect.will.as_mut().unwrap().properties.push(number(id::WILL_DELAY_INTERVAL, delay_s));
        connect
    };
    // A client that reconnects in time has no will published. The server counts in whole seconds: 3 are at least 2.
    let _back = loop {
        let begun = Instant::now();
        dying("back", "it has come back", 1_000, 3).open(server.client).cut();
        let back = Connect::persistent(V5, "back").open(server.client);
        assert!(back.session_present);
        if begun.elapsed() < Duration::from_secs(2) {
            break back;
        }
        // This attempt was too slow, so the will may have been due.
        two.drain();
    };
    // The will of a client that stays away comes after the delay, or with the end of its session if that is earlier.
    // The first of these comes later than the will of the client above would.
    for (payload, expiry_s, delay_s, least_s) in
        [("delayed", 1_000, 4, 3), ("no session", 0, 1_000, 0), ("short session", 2, 1_000, 1)]
    {
        let start = Instant::now();
        dying("myclientid", payload, expiry_s, delay_s).open(server.client).cut();
        let message = two.message();
        assert_eq!((message.topic.as_str(), message.payload.as_str()), ("Topic/C", payload));
        assert!(
            start.elapsed() >= Duration::from_secs(least_s),
            "{payload}: {:?}",
            start.elapsed()
        );
    }
    two.is_quiet();
}

#[test]
fn test_subscribe_options() {
    let server = server(&[]);
    // No local.
    let mut one = Connect::new(V5, "myclientid").open(server.client);
    let mut two = Connect::new(V5, "myclientid2").open(server.client);
    one.subscribe(&[SubscribeParts { no_local: true, ..filter("TopicA/#", 2) }]);
    two.subscribe(&[SubscribeParts { no_local: true, ..filter("TopicA/#", 2) }]);
    one.publish("TopicA/C", "local", 1);
    assert_eq!(two.message().payload, "local");
    one.is_quiet();
    // Retain as published.
    one.subscribe(&[SubscribeParts { retain_as_published: true, ..filter("TopicA/#", 1) }]);
    two.publish_all(Publish::new("TopicA/B", "as published", 1).retained());
    assert!(one.message().retain);
    two.publish("TopicA/B", "not retained", 1);
    assert!(!one.message().retain);
    // Retain handling: always, for a new subscription, never.
    let handled = |retain_handling| [SubscribeParts { retain_handling, ..filter("TopicA/B", 1) }];
    let mut three = Connect::new(V5, "myclientid3").open(server.client);
    for _ in 0..2 {
        three.subscribe(&handled(0));
        assert_eq!(three.message().payload, "as published");
    }
    three.unsubscribe(&["TopicA/B"]);
    three.subscribe(&handled(1));
    assert_eq!(three.message().payload, "as published");
    three.subscribe(&handled(1));
    three.is_quiet();
    three.unsubscribe(&["TopicA/B"]);
    three.subscribe(&handled(2));
    three.is_quiet();
}

#[test]
fn test_subscribe_identifiers() {
    let server = server(&[]);
    let mut one = Connect::new(V5, "myclientid").open(server.client);
    let identifier = |value| [number(id::SUBSCRIPTION_IDENTIFIER, value)];
    one.subscribe_with(&[filter("TopicA", 2)], &identifier(456_789));
    one.publish("TopicA", "sub identifier test", 1);
    assert_eq!(one.message().subscriptions(), ["456789"]);
    let mut two = Connect::new(V5, "myclientid2").open(server.client);
    two.subscribe_with(&[filter("TopicA", 2)], &identifier(2));
    two.subscribe_with(&[filter("TopicA/#", 2)], &identifier(3));
    one.publish("TopicA", "both", 1);
    one.message();
    assert_eq!(two.message().subscriptions(), ["2", "3"]);
    two.is_quiet();
}

#[test]
fn test_request_response() {
    let server = server(&[]);
    let mut one = Connect::new(V5, "myclientid").open(server.client);
    let mut two = Connect::new(V5, "myclientid2").open(server.client);
    one.subscribe(&[SubscribeParts { no_local: true, ..filter("Topic/C", 2) }]);
    two.subscribe(&[SubscribeParts { no_local: true, ..filter("Topic/C", 2) }]);
    let request = Publish::new("Topic/C", "request", 1)
        .with(text(id::RESPONSE_TOPIC, "Topic/C"))
        .with((id::CORRELATION_DATA, Value::Binary(b"334")));
    one.publish_all(request);
    let requested = two.message();
    assert_eq!(requested.property(id::RESPONSE_TOPIC), Some("Topic/C"));
    assert_eq!(requested.property(id::CORRELATION_DATA), Some("334"));
    let correlation = (id::CORRELATION_DATA, Value::Binary(b"334"));
    two.publish_all(Publish::new("Topic/C", "response", 1).with(correlation));
    let reply = one.message();
    assert_eq!(reply.payload, "response");
    assert_eq!(reply.property(id::CORRELATION_DATA), Some("334"));
}

#[test]
fn test_client_topic_alias() {
    let server = server(&[]);
    let alias = |value| number(id::TOPIC_ALIAS, value);
    // 0 is no valid alias.
    let mut one = Connect::new(V5, "myclientid").open(server.client);
    one.send(&Publish::new("TopicA", "x", 0).with(alias(0)).bytes(V5));
    one.is_ended_for(0x94);
    // An alias that the client has not assigned to a topic.
    let mut one = Connect::new(V5, "myclientid").open(server.client);
    one.send(&Publish::new("", "x", 0).with(alias(3)).bytes(V5));
    one.is_ended_for(0x82);
    let (mut one, reply) = Connect::new(V5, "myclientid").try_open(server.client);
    let max: u32 = reply.property(id::TOPIC_ALIAS_MAXIMUM).unwrap().parse().unwrap();
    one.subscribe(&[filter("TopicA", 2), filter("TopicB", 2)]);
    one.publish_all(Publish::new("TopicA", "by its name", 1).with(alias(max)));
    one.publish_all(Publish::new("", "by its alias", 1).with(alias(max)));
    let mut got = vec![];
    while got.len() < 2 {
        got.push(one.message());
    }
    assert!(got.iter().all(|message| message.topic == "TopicA"), "{got:?}");
    // A client can assign an alias to another topic.
    one.publish_all(Publish::new("TopicB", "another", 1).with(alias(max)));
    assert_eq!(one.message().topic, "TopicB");
    one.send(&Publish::new("TopicA", "x", 0).with(alias(max + 1)).bytes(V5));
    one.is_ended_for(0x94);
    // Aliases end with the connection, even if the session goes on.
    let mut one = Connect::persistent(V5, "myclientid").open(server.client);
    one.subscribe(&[filter("TopicA", 2)]);
    one.publish_all(Publish::new("TopicA", "1", 1).with(alias(1)));
    one.publish_all(Publish::new("", "2", 1).with(alias(1)));
    assert_eq!([one.message().payload, one.message().payload], ["1", "2"]);
    one.disconnect();
    let mut one = Connect::persistent(V5, "myclientid").open(server.client);
    assert!(one.session_present);
    one.publish("TopicA", "3", 1);
    assert_eq!(one.message().payload, "3", "the subscription is there");
    one.send(&Publish::new("", "4", 1).with(alias(1)).bytes(V5));
    one.is_ended_for(0x82);
}

#[test]
fn test_server_topic_alias() {
    let server = server(&[]);
    let connect = Connect::new(V5, "myclientid").with(number(id::TOPIC_ALIAS_MAXIMUM, 1));
    let mut one = connect.open(server.client);
    one.subscribe(&[filter("TopicA", 2), filter("TopicB", 2)]);
    for qos in 0..3 {
        one.publish("TopicA", "x", qos);
        let message = one.message();
        assert_eq!(message.property(id::TOPIC_ALIAS), Some("1"), "from the first one on");
        assert_eq!(message.topic, if qos == 0 { "TopicA" } else { "" });
    }
    // The client allows no further alias.
    one.publish("TopicB", "x", 0);
    let message = one.message();
    assert_eq!((message.topic.as_str(), message.property(id::TOPIC_ALIAS)), ("TopicB", None));
    one.disconnect();
    // A client with the maximum 0, or without a maximum, gets no aliases.
    let none = Connect::new(V5, "myclientid");
    for connect in [none.clone().with(number(id::TOPIC_ALIAS_MAXIMUM, 0)), none] {
        let mut one = connect.open(server.client);
        one.subscribe(&[filter("TopicA", 2)]);
        for qos in 0..3 {
            one.publish("TopicA", "x", qos);
            let message = one.message();
            let got = (message.topic.as_str(), message.property(id::TOPIC_ALIAS));
            assert_eq!((got, message.qos), (("TopicA", None), qos));
        }
        one.disconnect();
    }
}

#[test]
fn test_maximum_packet_size() {
    let server = server(&[
        ("THRONG_MQTT_PACKET_BYTES_MAX", "2KiB"),
        ("THRONG_LIMITS_MESSAGE_BYTES_MAX", "1KiB"),
    ]);
    let (mut one, reply) = Connect::new(V5, "myclientid").try_open(server.client);
    assert_eq!(reply.property(id::MAXIMUM_PACKET_SIZE), Some("2048"));
    one.send(&Publish::new("TopicA", &"x".repeat(3_000), 0).bytes(V5));
    one.is_ended_for(0x95);
    // The client also has a maximum: the server does not send larger messages.
    let connect = Connect::new(V5, "myclientid").with(number(id::MAXIMUM_PACKET_SIZE, 64));
    let mut one = connect.open(server.client);
    one.subscribe(&[filter("TopicA", 2)]);
    one.publish("TopicA", &"x".repeat(64), 1);
    one.publish("TopicA", "short", 1);
    assert_eq!(one.message().payload, "short");
    one.is_quiet();
}

#[test]
fn test_server_keep_alive() {
    let first = server(&[]);
    for (requested, interval) in [(120, Some("60")), (60, None), (30, None)] {
        let connect = Connect { keep_alive_s: requested, ..Connect::new(V5, "myclientid") };
        let reply = connect.try_open(first.client).1;
        assert_eq!(reply.property(id::SERVER_KEEP_ALIVE), interval, "asked for {requested}");
    }
    // The server applies the keep-alive that it imposes.
    let second = server(&[("THRONG_MQTT_KEEP_ALIVE_SECONDS_MAX", "2")]);
    let connect = Connect { keep_alive_s: 120, ..Connect::new(V5, "myclientid") };
    let start = Instant::now();
    let (mut one, reply) = connect.try_open(second.client);
    assert_eq!(reply.property(id::SERVER_KEEP_ALIVE), Some("2"));
    one.is_ended_for(0x8d);
    assert!(start.elapsed() >= Duration::from_millis(2_500), "{:?}", start.elapsed());
}

#[test]
fn test_payload_format() {
    let server = server(&[]);
    let mut one = Connect::new(V5, "myclientid").open(server.client);
    one.subscribe(&[filter("TopicA", 2)]);
    for qos in 0..3 {
        let publish = Publish::new("TopicA", "{\"a\":1}", qos)
            .with(number(id::PAYLOAD_FORMAT_INDICATOR, 1))
            .with(text(id::CONTENT_TYPE, "application/json"));
        one.publish_all(publish);
        let message = one.message();
        assert_eq!(message.property(id::PAYLOAD_FORMAT_INDICATOR), Some("1"));
        assert_eq!(message.property(id::CONTENT_TYPE), Some("application/json"));
    }
}

#[test]
fn test_publication_expiry() {
    let server = server(&[]);
    let mut one = Connect::persistent(V5, "myclientid").open(server.client);
    one.subscribe(&[filter("TopicA", 2)]);
    one.disconnect();
    let mut two = Connect::new(V5, "myclientid2").open(server.client);
    let expires = |seconds| number(id::MESSAGE_EXPIRY_INTERVAL, seconds);
    let begun = Instant::now();
    two.publish_all(Publish::new("TopicA", "short", 1).with(expires(1)));
    two.publish_all(Publish::new("TopicA", "long", 2).with(expires(1_000)));
    two.publish_all(Publish::new("TopicA", "short, too", 1).with(expires(1)));
    two.publish_all(Publish::new("TopicA", "without end", 2));
    std::thread::sleep(Duration::from_millis(2_100));
    let mut one = Connect::persistent(V5, "myclientid").open(server.client);
    let long = one.message();
    assert_eq!(long.payload, "long");
    let left: u32 = long.property(id::MESSAGE_EXPIRY_INTERVAL).unwrap().parse().unwrap();
    // The server rounds to whole seconds.
    let passed = u32::try_from(begun.elapsed().as_secs()).unwrap() + 2;
    assert!((1_000 - passed..=998).contains(&left), "it counts down: {left}");
    let last = one.message();
    assert_eq!(last.payload, "without end");
    assert_eq!(last.property(id::MESSAGE_EXPIRY_INTERVAL), None);
    one.is_quiet();
}

#[test]
fn test_user_properties() {
    let server = server(&[]);
    let mut one = Connect::new(V5, "myclientid").open(server.client);
    one.subscribe(&[filter("TopicA", 2)]);
    for qos in 0..3 {
        let publish = Publish::new("TopicA", "x", qos);
        one.publish_all(publish.with(pair("a", "2")).with(pair("c", "3")).with(pair("a", "1")));
        let got = one.message().properties;
        let want = ["a=2", "c=3", "a=1"].map(|pair| (id::USER_PROPERTY, pair.to_string()));
        assert_eq!(got, want, "in order");
    }
}

#[test]
fn test_overlapping_subscriptions() {
    let server = server(&[]);
    let mut one = Connect::new(V5, "myclientid").open(server.client);
    one.subscribe(&[filter("TopicA/#", 2), filter("TopicA/+", 1)]);
    one.publish("TopicA/C", "overlapping topic filters", 2);
    assert_eq!(one.message().qos, 2);
    one.is_quiet();
}

#[test]
fn test_keepalive() {
    let server = server(&[]);
    let mut two = Connect::new(V5, "myclientid2").open(server.client);
    two.subscribe(&[filter("Topic/C", 2)]);
    let connect = Connect { keep_alive_s: 2, ..Connect::new(V5, "myclientid") };
    let start = Instant::now();
    let mut one = connect.will("Topic/C", "keepalive expiry", 0).open(server.client);
    assert_eq!(two.message().payload, "keepalive expiry");
    assert!(start.elapsed() >= Duration::from_millis(2_500), "{:?}", start.elapsed());
    one.is_ended_for(0x8d);
}

#[test]
fn test_redelivery_on_reconnect() {
    let server = server(&[]);
    let mut one = Connect::persistent(V5, "myclientid").open(server.client);
    one.subscribe(&[filter("TopicA/#", 2)]);
    let mut two = Connect::new(V5, "myclientid2").open(server.client);
    two.publish("TopicA/B", "one", 1);
    two.publish("TopicA/C", "two", 2);
    let first = [one.unconfirmed(), one.unconfirmed()];
    one.cut();
    let mut one = Connect::persistent(V5, "myclientid").open(server.client);
    for before in first {
        assert_eq!(one.message(), Message { dup: true, ..before });
    }
    one.is_quiet();
}

/// The server keeps to the client's receive maximum.
#[test]
fn test_flow_control1() {
    let server = server(&[]);
    let mut one = Connect::persistent(V5, "myclientid")
        .with(number(id::RECEIVE_MAXIMUM, 2))
        .open(server.client);
    one.subscribe(&[filter("TopicA", 2)]);
    let mut two = Connect::new(V5, "myclientid2").open(server.client);
    for at in 0..5 {
        two.publish("TopicA", &format!("{at}"), if at % 2 == 0 { 1 } else { 2 });
    }
    let (first, second) = (one.unconfirmed(), one.unconfirmed());
    assert_eq!((first.payload.as_str(), second.payload.as_str()), ("0", "1"));
    one.is_quiet();
    one.confirm(ConfirmType::Puback, first.id);
    let third = one.unconfirmed();
    assert_eq!(third.payload, "2");
    // A message with QoS 2 counts until PUBCOMP.
    one.confirm(ConfirmType::Pubrec, second.id);
    one.expect_events(&[Event::Confirm("PUBREL", second.id, 0)]);
    one.is_quiet();
    one.confirm(ConfirmType::Pubcomp, second.id);
    assert_eq!(one.unconfirmed().payload, "3");
}

/// A client that exceeds the server's receive maximum.
#[test]
fn test_flow_control2() {
    let server = server(&[("THRONG_MQTT_RECEIVE_MAX", "2")]);
    let (mut one, reply) = Connect::new(V5, "myclientid").try_open(server.client);
    assert_eq!(reply.property(id::RECEIVE_MAXIMUM), Some("2"));
    for packet_id in 1..=3 {
        one.send(&Publish { id: packet_id, ..Publish::new("TopicA", "x", 2) }.bytes(V5));
    }
    one.expect_events(&[Event::Confirm("PUBREC", 1, 0), Event::Confirm("PUBREC", 2, 0)]);
    one.is_ended_for(0x93);
}

#[test]
fn test_subscribe_failure() {
    let server = server(&[]);
    let mut one = Connect::new(V5, "myclientid").open(server.client);
    let codes = one.subscribe_with(&[filter("test/nosubscribe", 2), filter("a", 1)], &[]);
    assert_eq!(codes, [0x80, 1]);
    one.publish("test/nosubscribe", "nobody", 1);
    one.is_quiet();
}
