//! Clients that are slow, broken or hostile: each is ended for what it does, and others go on.

use std::time::Duration;

use protocol::mqtt::client::{self, SubscribeParts};
use protocol::mqtt::write::ConfirmType;
use serde_json::json;

use crate::mqtt::client::*;
use crate::mqtt::server;
use crate::support::Server;

/// Somebody to whom nothing happens.
struct Witness(Client);

impl Witness {
    fn new(server: &Server) -> Self {
        let mut client = Connect::new(V5, "witness").open(server.client);
        client.subscribe(&[filter("witness", 1)]);
        Witness(client)
    }

    fn goes_on(mut self, server: &Server) {
        server.publish("witness", json!("well"));
        assert_eq!(self.0.message().payload, "well");
    }
}

#[test]
fn a_head_must_come_in_time() {
    let server = server(&[("THRONG_TIMEOUTS_HEAD_SECONDS", "3")]);
    let witness = Witness::new(&server);
    let connect = Connect::new(V3, "slow").bytes();
    let mut nothing = Client::new(server.client, V3);
    let mut half = Client::new(server.client, V3);
    half.send(&connect[..connect.len() / 2]);
    // A byte now and then gains no time: the server closes long before the last one.
    let connect = Connect::new(V3, &"slow".repeat(60)).bytes();
    let mut dribbled = Client::new(server.client, V3);
    let is_closed = connect.iter().any(|byte| {
        dribbled.send(&[*byte]);
        dribbled.within(Duration::from_millis(150)) == Some(Heard::Closed)
    });
    assert!(is_closed, "the server has waited for all of CONNECT");
    for client in [&mut half, &mut nothing] {
        client.hears(&[Heard::Closed]);
    }
    witness.goes_on(&server);
}

#[test]
fn a_packet_may_come_byte_by_byte() {
    let server = server(&[]);
    let mut slow = Client::new(server.client, V5);
    for byte in Connect::new(V5, "slow").bytes() {
        slow.send(&[byte]);
    }
    assert_eq!(slow.connack().code, 0);
    let subscribe = bytes(|out| client::subscribe(V5, 1, &[], &[filter("a", 1)], out));
    subscribe.iter().for_each(|byte| slow.send(&[*byte]));
    slow.hears(&[Heard::Suback(1, vec![1])]);
}

#[test]
fn lengths_beyond_all_bounds_end_the_connection() {
    let server = server(&[]);
    let witness = Witness::new(&server);
    for length in [&[0xff, 0xff, 0xff, 0x7f][..], &[0xff, 0xff, 0xff, 0xff, 0x01]] {
        // Before anybody knows who it is.
        let mut stranger = Client::new(server.client, V5);
        stranger.send(&[&[0x10], length].concat());
        let heard = stranger.next();
        assert!(matches!(heard, Heard::Closed | Heard::Connack(..)), "{heard:?}");
        let mut client = Connect::new(V5, "huge").open(server.client);
        client.send(&[&[0x30], length].concat());
        match client.next() {
            Heard::Disconnect(reason, _) => assert!([0x81, 0x95].contains(&reason), "{reason:#x}"),
            other => panic!("{other:?}"),
        }
        client.hears(&[Heard::Closed]);
    }
    witness.goes_on(&server);
}

#[test]
fn who_publishes_before_the_answer_is_served_in_order() {
    let server = server(&[]);
    let mut eager = Client::new(server.client, V5);
    let mut all = Connect::new(V5, "eager").bytes();
    all.extend(bytes(|out| client::subscribe(V5, 1, &[], &[filter("a", 0)], out)));
    for at in 0..50_u16 {
        let payload = at.to_string();
        all.extend(Publish { id: at + 1, ..Publish::new("a", &payload, 1) }.bytes(V5));
    }
    eager.send(&all);
    assert_eq!(eager.connack().code, 0);
    let (mut confirmed, mut got) = (0, 0);
    eager.hears(&[Heard::Suback(1, vec![0])]);
    while confirmed < 50 || got < 50 {
        match eager.next() {
            Heard::Message(message) => {
                assert_eq!(message.payload, got.to_string());
                got += 1;
            }
            Heard::Confirm("PUBACK", id, 0) => {
                confirmed += 1;
                assert_eq!(id, confirmed);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn too_many_subscriptions_are_refused_one_by_one() {
    let server = server(&[("THRONG_LIMITS_TOPICS_PER_CONNECTION_MAX", "20")]);
    let witness = Witness::new(&server);
    let mut client = Connect::new(V5, "greedy").open(server.client);
    let names: Vec<String> = (0..40).map(|at| format!("t{at}/+")).collect();
    let filters: Vec<SubscribeParts<'_>> =
        names.iter().map(|name| SubscribeParts { filter: name, ..filter("", 1) }).collect();
    let codes = client.subscribe_with(&filters, &[]);
    let granted = codes.iter().filter(|code| **code == 1).count();
    assert!((15..=20).contains(&granted), "{codes:?}");
    assert!(codes.iter().all(|code| [1, 0x97].contains(code)), "{codes:?}");
    client.ping();
    witness.goes_on(&server);
}

#[test]
fn confirmations_of_nothing_do_no_harm() {
    let server = server(&[]);
    let mut client = Connect::new(V5, "odd").open(server.client);
    client.confirm(ConfirmType::Pubrel, 77);
    client.hears(&[Heard::Confirm("PUBCOMP", 77, 0x92)]);
    client.confirm(ConfirmType::Puback, 78);
    client.confirm(ConfirmType::Pubcomp, 79);
    client.confirm(ConfirmType::Pubrec, 80);
    client.hears(&[Heard::Confirm("PUBREL", 80, 0x92)]);
    client.ping();
}

#[test]
fn a_subscriber_that_never_reads_is_left_behind() {
    let server = server(&[
        ("THRONG_SOCKET_SEND_BUFFER_BYTES", "8KiB"),
        ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "128KiB"),
    ]);
    let witness = Witness::new(&server);
    let mut deaf = Connect::new(V3, "deaf").open(server.client);
    deaf.subscribe(&[filter("flood", 0)]);
    let data = "x".repeat(16 << 10);
    server.until("it is closed", |server| {
        server.publish("flood", json!(data));
        server.api("GET", "/api/topics/flood", None).1["members"] == 0
    });
    witness.goes_on(&server);
}

#[test]
fn a_kept_session_that_never_confirms_does_not_hold_memory() {
    let server = server(&[("THRONG_MQTT_INFLIGHT_MAX", "5")]);
    let mut silent = Connect::kept(V5, "silent").open(server.client);
    silent.subscribe(&[filter("a", 1)]);
    let mut other = Connect::new(V5, "other").open(server.client);
    for at in 0..200 {
        other.publish("a", &at.to_string(), 1);
    }
    let first: Vec<String> = (0..5).map(|_| silent.unconfirmed().payload).collect();
    assert_eq!(first, ["0", "1", "2", "3", "4"]);
    silent.is_quiet();
    // What it did not take in waits for it.
    silent.cut();
    let mut back = Connect::kept(V5, "silent").open(server.client);
    let all: Vec<String> = (0..200).map(|_| back.message().payload).collect();
    let want: Vec<String> = (0..200).map(|at: i32| at.to_string()).collect();
    assert_eq!(all, want);
    back.is_quiet();
}
