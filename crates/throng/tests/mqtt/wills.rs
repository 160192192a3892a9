//! Wills: messages that the server publishes for clients that are gone.

use std::time::{Duration, Instant};

use protocol::mqtt::id;

use crate::mqtt::client::*;
use crate::mqtt::server;

/// Returns a CONNECT whose will has this property.
fn with(mut connect: Connect, property: Property) -> Connect {
    connect.will.as_mut().unwrap().properties.push(property);
    connect
}

/// Checks by the rest of a will's message expiry of 1,000 seconds that the server published it after this moment.
fn is_published_after(begun: Instant, will: &Message) {
    let left: u64 = will.property(id::MESSAGE_EXPIRY_INTERVAL).unwrap().parse().unwrap();
    // The server rounds to whole seconds.
    let least = 999 - begun.elapsed().as_secs();
    assert!((least..=1_000).contains(&left), "{left}");
}

#[test]
fn mqtt5_3_1_3_2_4_a_will_counts_from_when_it_is_published() {
    let server = server(&[]);
    let mut subscriber = Connect::new(V5, "hears").open(server.client);
    subscriber.subscribe(&[filter("gone", 1)]);
    let goes = Connect::new(V5, "goes").will("gone", "bye", 1);
    let goes = with(goes, number(id::MESSAGE_EXPIRY_INTERVAL, 1_000)).open(server.client);
    std::thread::sleep(Duration::from_millis(3_100));
    let begun = Instant::now();
    goes.cut();
    let will = subscriber.message();
    assert_eq!(will.payload, "bye");
    is_published_after(begun, &will);
    // The same if an operator ends the session.
    let goes = Connect::persistent(V5, "goes").will("gone", "bye", 1);
    let goes = with(goes, number(id::MESSAGE_EXPIRY_INTERVAL, 1_000));
    let goes = with(goes, number(id::WILL_DELAY_INTERVAL, 1_000)).open(server.client);
    goes.cut();
    server.until("it is away", |server| {
        server.api("GET", "/api/mqtt/sessions/goes", None).1["connected"] == false
    });
    std::thread::sleep(Duration::from_millis(3_100));
    let begun = Instant::now();
    assert_eq!(server.api("DELETE", "/api/mqtt/sessions/goes", None).0, 200);
    let will = subscriber.message();
    assert_eq!(will.payload, "bye");
    is_published_after(begun, &will);
}

#[test]
fn a_will_is_no_larger_than_a_message() {
    let settings = [("THRONG_LIMITS_MESSAGE_BYTES_MAX", "2048")];
    let server = server(&settings);
    let payload: &'static str = Box::leak("x".repeat(2_049).into_boxed_str());
    for (version, code) in [(V3, 3), (V5, 0x95)] {
        let large = Connect::new(version, "large").will("gone", payload, 0);
        assert_eq!(large.try_open(server.client).1.code, code);
        let fits = Connect::new(version, "fits").will("gone", &payload[1..], 0);
        fits.open(server.client).disconnect();
    }
}

#[test]
fn mqtt5_3_2_2_13_where_nothing_is_retained_connack_says_so() {
    let settings =
        [("THRONG_MQTT_RETAINED_MESSAGES_MAX", "0"), ("THRONG_MQTT_RETAINED_BYTES_MAX", "0")];
    let server = server(&settings);
    let (mut client, reply) = Connect::new(V5, "c").try_open(server.client);
    assert_eq!(reply.property(id::RETAIN_AVAILABLE), Some("0"));
    client.send(&Publish::new("a", "x", 1).retained().bytes(V5));
    client.is_ended_for(0x9a);
    let mut will = Connect::new(V5, "c").will("gone", "bye", 0);
    will.will.as_mut().unwrap().retain = true;
    assert_eq!(will.try_open(server.client).1.code, 0x9a);
    // MQTT 3 has no packet to say that retained messages are not available.
    will.version = V3;
    will.open(server.client).publish_all(Publish::new("a", "x", 1).retained());

    let others = crate::mqtt::server(&[]);
    let reply = Connect::new(V5, "c").try_open(others.client).1;
    assert_eq!(reply.property(id::RETAIN_AVAILABLE), None);
}
