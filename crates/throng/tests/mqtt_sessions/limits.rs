//! What a session of a client that is away may have.

use std::time::Duration;

use crate::Server;
use crate::client::*;
use crate::serve;

/// A client goes away from a subscription, and so many messages come meanwhile.
fn away(server: &Server, payload: &str, count: usize) -> Client {
    let mut client = Connect::kept(V5, "away").open(server.client);
    client.subscribe(&[filter("a/#", 2)]);
    client.cut();
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    for n in 0..count {
        speaker.publish("a/1", &format!("{n} {payload}"), 1 + (n % 2) as u8);
    }
    let client = Connect::kept(V5, "away").open(server.client);
    assert!(client.session_present);
    client
}

/// The numbers of the messages that come.
fn numbers(client: &mut Client) -> Vec<usize> {
    let mut numbers = Vec::new();
    while let Some(heard) = client.within(Duration::from_millis(500)) {
        match heard {
            Heard::Message(it) => {
                numbers.push(it.payload.split(' ').next().unwrap().parse().unwrap());
                confirmed(client, &it);
            }
            other => panic!("{other:?}"),
        }
    }
    numbers
}

fn confirmed(client: &mut Client, message: &Message) {
    use protocol::mqtt::write::ConfirmType::{Puback, Pubcomp, Pubrec};
    if message.qos == 1 {
        return client.confirm(Puback, message.id);
    }
    client.confirm(Pubrec, message.id);
    client.hears(&[Heard::Confirm("PUBREL", message.id, 0)]);
    client.confirm(Pubcomp, message.id);
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
    for client in ["one", "two", "three"] {
        let mut it = Connect::kept(V5, client).open(server.client);
        it.subscribe(&[filter("a", 1)]);
        it.cut();
        std::thread::sleep(Duration::from_millis(200));
    }
    // The one that found no place has no session any more; who comes back makes room.
    assert_eq!(server.metric("throng_mqtt_sessions_away"), 2.0);
    assert_eq!(server.metric("throng_mqtt_sessions_ended_total{why=\"full\"}"), 1.0);
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
        let mut topics = Vec::new();
        while let Some(Heard::Message(it)) = late.within(Duration::from_millis(300)) {
            late.confirm(protocol::mqtt::write::ConfirmType::Puback, it.id);
            topics.push(format!("{}={}", it.topic, it.payload));
        }
        topics
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
