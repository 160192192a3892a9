//! Limits on the session of a client that is away.

use serde_json::json;
use token::{Algorithm, Signer};

use crate::mqtt::client::*;
use crate::mqtt_sessions::persistent::until_away;
use crate::mqtt_sessions::{Server, serve};

/// The topic of the last message.
const END: &str = "a/end";

/// Cuts a subscriber's connection, publishes `count` messages and the last one, and connects the subscriber again.
fn away(server: &Server, payload: &str, count: usize) -> Client {
    let mut client = Connect::persistent(V5, "away").open(server.client);
    client.subscribe(&[filter("a/#", 2)]);
    client.cut();
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    for n in 0..count {
        speaker.publish("a/1", &format!("{n} {payload}"), 1 + (n % 2) as u8);
    }
    speaker.publish(END, "", 1);
    let client = Connect::persistent(V5, "away").open(server.client);
    assert!(client.session_present);
    client
}

/// Returns the numbers of the messages before the last one.
fn numbers(client: &mut Client) -> Vec<usize> {
    let mut numbers = Vec::new();
    loop {
        let message = client.message();
        if message.topic == END {
            client.is_quiet();
            return numbers;
        }
        numbers.push(message.payload.split(' ').next().unwrap().parse().unwrap());
    }
}

#[test]
fn the_newest_messages_wait_for_who_is_away() {
    let server = serve(&[("THRONG_MQTT_SESSION_MESSAGES_MAX", "5")]);
    let mut client = away(&server, "", 12);
    // The newest messages of a topic, and the last message.
    assert_eq!(server.metric("throng_mqtt_session_messages"), 6.0);
    assert!(server.metric("throng_mqtt_session_messages_bytes") > 5.0 * 3.0);
    assert_eq!(numbers(&mut client), [7, 8, 9, 10, 11]);
    // The server counts the dropped messages once for the topic.
    assert_eq!(gone(&server), 1.0);
}

#[test]
fn what_does_not_come_again_is_released() {
    use protocol::mqtt::write::ConfirmType::Pubcomp;
    let server = serve(&[("THRONG_MQTT_SESSION_MESSAGES_MAX", "2")]);
    let mut client = Connect::persistent(V5, "away").open(server.client);
    client.subscribe(&[filter("a/#", 2), filter("large", 2)]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    speaker.publish("a/1", "0 ", 2);
    speaker.publish("large", &"x".repeat(200), 2);
    // The client sends no PUBREC for either message.
    let [dropped, large] = [client.unconfirmed(), client.unconfirmed()];
    client.cut();
    until_away(&server, &["away"]);
    (1..4).for_each(|n| speaker.publish("a/1", &format!("{n} "), 2));
    speaker.publish(END, "", 1);
    let small = protocol::mqtt::Value::Number(100);
    let small = (protocol::mqtt::id::MAXIMUM_PACKET_SIZE, small);
    let mut client = Connect::persistent(V5, "away").with(small).open(server.client);
    for id in [dropped.id, large.id] {
        client.expect_events(&[Event::Confirm("PUBREL", id, 0)]);
    }
    // A handshake that is complete on one connection does not continue on the next.
    client.confirm(Pubcomp, dropped.id);
    assert_eq!(numbers(&mut client), [2, 3]);
    client.cut();
    let mut client = Connect::persistent(V5, "away").open(server.client);
    client.expect_events(&[Event::Confirm("PUBREL", large.id, 0)]);
    client.confirm(Pubcomp, large.id);
    client.is_quiet();
}

#[test]
fn the_limit_of_packets_is_the_one_in_force() {
    let server = serve(&[]);
    let (_, connack) = Connect::new(V5, "asks").try_open(server.client);
    let limit = connack.property(protocol::mqtt::id::MAXIMUM_PACKET_SIZE).unwrap();
    let max = server.metric("throng_limit{name=\"mqtt.packet_bytes_max\"}");
    assert_eq!(limit.parse(), Ok(max));
}

#[test]
fn their_bytes_are_limited() {
    let settings =
        [("THRONG_MQTT_SESSION_BYTES_MAX", "70000"), ("THRONG_MQTT_SESSION_MESSAGES_MAX", "1000")];
    let server = serve(&settings);
    let mut client = away(&server, &"x".repeat(20_000), 8);
    let got = numbers(&mut client);
    assert_eq!(got, [5, 6, 7]);
    assert_eq!(gone(&server), 1.0);
}

#[test]
fn all_that_may_wait_comes_however_few_may_be_under_way() {
    let settings = [("THRONG_MQTT_INFLIGHT_MAX", "3"), ("THRONG_MQTT_QUEUE_MESSAGES_MAX", "2")];
    let server = serve(&settings);
    let mut client = away(&server, "", 300);
    assert_eq!(numbers(&mut client), (0..300).collect::<Vec<usize>>());
    assert_eq!(gone(&server), 0.0);
}

fn gone(server: &Server) -> f64 {
    server.metric("throng_mqtt_messages_gone_total")
}

#[test]
fn sessions_of_who_is_away_are_limited() {
    let server = serve(&[("THRONG_MQTT_SESSIONS_MAX", "2")]);
    let (away, full) =
        ("throng_mqtt_sessions_away", "throng_mqtt_sessions_ended_total{why=\"full\"}");
    for (client, counts) in [("one", (1.0, 0.0)), ("two", (2.0, 0.0)), ("three", (2.0, 1.0))] {
        let mut it = Connect::persistent(V5, client).open(server.client);
        it.subscribe(&[filter("a", 1)]);
        it.cut();
        server.until("it is away or has ended", |server| {
            (server.metric(away), server.metric(full)) == counts
        });
    }
    // The session beyond the limit has ended. A session whose client reconnects makes room.
    assert!(!Connect::persistent(V5, "three").open(server.client).session_present);
    assert!(Connect::persistent(V5, "one").open(server.client).session_present);
}

#[test]
fn their_memory_is_limited() {
    let server = serve(&[("THRONG_MQTT_AWAY_BYTES_MAX", "4096")]);
    let mut subscriber = Connect::new(V5, "hears").open(server.client);
    subscriber.subscribe(&[filter("gone", 0)]);
    let leave = |client: &str, payload: &'static str| {
        let mut connect = Connect::persistent(V5, client).will("gone", payload, 0);
        let delay = number(protocol::mqtt::id::WILL_DELAY_INTERVAL, 1_000);
        connect.will.as_mut().unwrap().properties.push(delay);
        connect.open(server.client).cut();
    };
    leave("small", "x");
    server.until("it is away", |server| server.metric("throng_mqtt_sessions_away") == 1.0);
    let bytes = server.metric("throng_mqtt_sessions_away_bytes");
    assert!(bytes > 500.0 && bytes < 4_096.0, "{bytes}");
    // The session that is too large ends with its connection, and the server publishes its will.
    leave("large", Box::leak("x".repeat(4_096).into_boxed_str()));
    assert_eq!(subscriber.message().payload.len(), 4_096);
    server.until("it has ended", |server| {
        server.metric("throng_mqtt_sessions_ended_total{why=\"full\"}") == 1.0
            && server.metric("throng_mqtt_sessions_away_bytes") == bytes
    });
}

#[test]
fn one_user_does_not_use_up_the_sessions_of_others() {
    const SECRET: &str = "a secret of more than 32 bytes for tests";
    let settings = [
        ("THRONG_AUTH_HMAC_KEY", SECRET),
        ("THRONG_MQTT_SESSIONS_MAX", "4"),
        ("THRONG_MQTT_SESSIONS_PER_USER_MAX", "2"),
    ];
    let server = serve(&settings);
    let signer = Signer::new(SECRET, "HS256".parse::<Algorithm>().unwrap(), None).unwrap();
    let open = |user: &'static str, client: &str| {
        let token = signer.sign(&json!({"sub": user, "exp": 4_000_000_000_u64})).unwrap();
        let connect = Connect { password: Some(token.into()), ..Connect::persistent(V5, client) };
        connect.user(user).open(server.client)
    };
    let until = |persistent: f64, ended: f64| {
        server.until("sessions are kept, or not", |server| {
            server.metric("throng_mqtt_sessions_away") == persistent
                && server.metric("throng_mqtt_sessions_ended_total{why=\"full\"}") == ended
        });
    };
    for (client, persistent, ended) in [("1", 1.0, 0.0), ("2", 2.0, 0.0), ("3", 2.0, 1.0)] {
        open("eve", client).cut();
        until(persistent, ended);
    }
    open("bob", "1").cut();
    until(3.0, 1.0);
    assert!(open("bob", "1").session_present);
    // A client that reconnects makes room.
    let two = open("eve", "2");
    let three = open("eve", "3");
    assert!(two.session_present && !three.session_present);
    three.cut();
    until(3.0, 1.0);
    two.cut();
    until(3.0, 2.0);
}

#[test]
fn retained_messages_are_limited() {
    // Messages that the server publishes about itself do not count.
    let server = serve(&[("THRONG_MQTT_RETAINED_MESSAGES_MAX", "3")]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let mut listener = Connect::new(V5, "listener").open(server.client);
    listener.subscribe(&[filter("state/#", 1)]);
    for topic in ["state/1", "state/2", "state/3", "state/4"] {
        speaker.publish_all(Publish::new(topic, "on", 1).retained());
        // Current subscribers get it in any case.
        assert_eq!(listener.message().topic, topic);
    }
    let topics = |name: &str| {
        let mut late = Connect::new(V5, name).open(server.client);
        late.subscribe(&[filter("state/#", 1)]);
        let topics = late.messages(3).into_iter();
        late.is_quiet();
        topics.map(|(topic, payload)| format!("{topic}={payload}")).collect::<Vec<_>>()
    };
    assert_eq!(server.metric("throng_mqtt_retained_refused_total"), 1.0);
    assert_eq!(server.metric("throng_mqtt_retained_messages"), 3.0);
    assert_eq!(topics("late"), ["state/1=on", "state/2=on", "state/3=on"]);
    // A retained message may change, and a removed one makes room.
    speaker.publish_all(Publish::new("state/1", "off", 1).retained());
    speaker.publish_all(Publish::new("state/2", "", 1).retained());
    speaker.publish_all(Publish::new("state/5", "on", 1).retained());
    assert_eq!(topics("later"), ["state/1=off", "state/3=on", "state/5=on"]);
}

#[test]
fn who_is_shut_out_while_away_has_no_last_word() {
    const SECRET: &str = "a secret of more than 32 bytes for tests";
    let settings = [("THRONG_AUTH_HMAC_KEY", SECRET), ("THRONG_CLIENT_PUBLISH_PREFIXES", "gone")];
    let server = serve(&settings);
    let signer = Signer::new(SECRET, "HS256".parse::<Algorithm>().unwrap(), None).unwrap();
    let open = |user: &'static str, issued: u64| {
        let topics = json!({"subscribe": ["gone"], "publish": ["gone"]});
        let (until, issued) = (4_000_000_000_u64, 1_700_000_000 + issued);
        let claims =
            json!({"sub": user, "jti": user, "iat": issued, "exp": until, "throng": topics});
        let token = signer.sign(&claims).unwrap();
        let mut connect = Connect::persistent(V5, user).will("gone", user, 1);
        let delay = number(protocol::mqtt::id::WILL_DELAY_INTERVAL, 1_000);
        connect.will.as_mut().unwrap().properties.push(delay);
        Connect { password: Some(token.into()), ..connect }.user(user).open(server.client)
    };
    let mut subscriber = open("hears", 2_000);
    subscriber.subscribe(&[filter("gone", 1)]);
    for (user, issued) in [("al", 2_000), ("bo", 2_000), ("carl", 1_000), ("dan", 2_000)] {
        open(user, issued).cut();
    }
    server.until("all are away", |server| server.metric("throng_mqtt_sessions_away") == 4.0);
    for revoked in
        [json!({"user": "al"}), json!({"jti": "bo"}), json!({"issued_before": 1_700_001_500})]
    {
        assert_eq!(server.post("/api/revoke", revoked)["closed"], 0);
    }
    assert_eq!(server.metric("throng_mqtt_sessions_away"), 4.0);
    // The end of a session publishes a will that still waits.
    for user in ["al", "bo", "carl", "dan"] {
        let target = format!("/api/mqtt/sessions/{user}?owner={user}");
        assert_eq!(server.api("DELETE", &target, None).0, 200, "{user}");
    }
    assert_eq!(subscriber.message().payload, "dan");
    subscriber.is_quiet();
}
