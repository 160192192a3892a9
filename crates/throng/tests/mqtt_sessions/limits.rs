//! What a session of a client that is away may have.

use crate::mqtt::client::*;
use crate::mqtt_sessions::Server;
use crate::mqtt_sessions::serve;

/// The topic of the last message.
const END: &str = "a/end";

/// A client goes away from a subscription, and so many messages come meanwhile, before the last one.
fn away(server: &Server, payload: &str, count: usize) -> Client {
    let mut client = Connect::kept(V5, "away").open(server.client);
    client.subscribe(&[filter("a/#", 2)]);
    client.cut();
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    for n in 0..count {
        speaker.publish("a/1", &format!("{n} {payload}"), 1 + (n % 2) as u8);
    }
    speaker.publish(END, "", 1);
    let client = Connect::kept(V5, "away").open(server.client);
    assert!(client.session_present);
    client
}

/// The numbers of the messages that come before the last one.
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
    assert_eq!(numbers(&mut client), [7, 8, 9, 10, 11]);
    // That some are gone is counted: once for the topic.
    assert_eq!(gone(&server), 1.0);
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
        let mut it = Connect::kept(V5, client).open(server.client);
        it.subscribe(&[filter("a", 1)]);
        it.cut();
        server.until("it is away or has ended", |server| {
            (server.metric(away), server.metric(full)) == counts
        });
    }
    // The one that found no place has no session any more; who comes back makes room.
    assert!(!Connect::kept(V5, "three").open(server.client).session_present);
    assert!(Connect::kept(V5, "one").open(server.client).session_present);
}

#[test]
fn retained_messages_are_limited() {
    // What the server tells of itself does not count.
    let server = serve(&[("THRONG_MQTT_RETAINED_MESSAGES_MAX", "3")]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let mut listener = Connect::new(V5, "listener").open(server.client);
    listener.subscribe(&[filter("state/#", 1)]);
    for topic in ["state/1", "state/2", "state/3", "state/4"] {
        speaker.publish_all(Publish::new(topic, "on", 1).retained());
        // Whoever is there gets it in any case.
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
    // One that is there may change, and one that goes makes room.
    speaker.publish_all(Publish::new("state/1", "off", 1).retained());
    speaker.publish_all(Publish::new("state/2", "", 1).retained());
    speaker.publish_all(Publish::new("state/5", "on", 1).retained());
    assert_eq!(topics("later"), ["state/1=off", "state/3=on", "state/5=on"]);
}
