//! Sessions that outlive their connections and the server.

use std::time::{Duration, Instant};

use protocol::mqtt::id;
use protocol::mqtt::write::ConfirmType;

use crate::mqtt::client::*;
use crate::mqtt_sessions::{Folder, Server, serve};
use crate::support::wait_within;

fn persistent(client: &str, seconds: u32) -> Connect {
    let connect = Connect { clean: false, ..Connect::new(V5, client) };
    connect.with(number(id::SESSION_EXPIRY_INTERVAL, seconds))
}

/// Like [`persistent`], with a will that waits for `delay_s` seconds.
fn dying(client: &str, seconds: u32, topic: &'static str, delay_s: u32) -> Connect {
    let mut connect = persistent(client, seconds).will(topic, "gone", 1);
    connect.will.as_mut().unwrap().properties.push(number(id::WILL_DELAY_INTERVAL, delay_s));
    connect
}

/// Waits until each of these clients has a session and no connection.
pub fn until_away(server: &Server, clients: &[&str]) {
    for client in clients {
        server.until(&format!("{client} is away"), |server| {
            let (status, session) = session(server, client);
            status == 200 && session["connected"] == false
        });
    }
}

/// Waits until this many sessions have expired.
fn until_expired(server: &Server, sessions: f64) {
    let expired = "throng_mqtt_sessions_ended_total{why=\"expired\"}";
    server.until("they have expired", |server| server.metric(expired) == sessions);
}

fn session(server: &Server, client: &str) -> (u16, serde_json::Value) {
    server.api("GET", &format!("/api/mqtt/sessions/{client}"), None)
}

/// A publish with a confirmation waits for the disk, and one without may overtake it.
#[test]
fn what_was_published_last_is_retained_on_disk_as_well() {
    let folder = Folder::new();
    let mut server = folder.serve(&[]);
    let mut keeper = Connect::persistent(V5, "keeper").open(server.client);
    keeper.subscribe(&[filter("state/#", 1)]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let topics: Vec<String> = (0..20).map(|n| format!("state/{n}")).collect();
    for (topic, id) in topics.iter().zip(1..) {
        // The second publish replaces the retained message in half of the topics, and removes it in the others.
        let last = if id % 2 == 0 { "new" } else { "" };
        let old = Publish { id, ..Publish::new(topic, "old", 1).retained() };
        let new = Publish::new(topic, last, 0).retained();
        speaker.send(&[old.bytes(V5), new.bytes(V5)].concat());
        speaker.expect_events(&[Event::Confirm("PUBACK", id, 0)]);
    }
    // The confirmation of this message means that all earlier ones are on disk as well.
    speaker.publish_all(Publish::new("last", "", 1).retained());
    let mut expected: Vec<_> =
        topics.iter().skip(1).step_by(2).map(|it| (it.clone(), "new".to_string())).collect();
    expected.sort();
    for is_killed in [false, true] {
        if is_killed {
            drop(server);
            server = folder.serve(&[]);
        }
        let mut late = Connect::new(V5, "late").open(server.client);
        late.subscribe(&[filter("state/#", 1)]);
        let mut retained = late.messages(expected.len());
        retained.sort();
        assert_eq!(retained, expected);
        late.is_quiet();
    }
}

#[test]
fn a_restart_keeps_subscriptions_retained_messages_and_what_is_under_way() {
    for version in [V3, V5] {
        for is_killed in [true, false] {
            let folder = Folder::new();
            let mut server = folder.serve(&[]);
            let mut client = Connect::persistent(version, "keeper").open(server.client);
            client.subscribe(&[filter("one/+", 1), filter("two/#", 2), filter("zero", 0)]);
            let mut speaker = Connect::persistent(version, "speaker").open(server.client);
            speaker.publish_all(Publish::new("state/1", "on", 1).retained());
            speaker.publish_all(Publish::new("state/2", "gone", 1).retained());
            speaker.publish_all(Publish::new("state/2", "", 1).retained());
            for (topic, qos) in [("one/a", 1), ("two/a", 2), ("two/b", 2)] {
                speaker.publish(topic, topic, qos);
            }
            let unacknowledged = client.unconfirmed();
            let received = client.unconfirmed();
            let unreceived = client.unconfirmed();
            let ids = [&unacknowledged, &received, &unreceived].map(|it| it.payload.as_str());
            assert_eq!(ids, ["one/a", "two/a", "two/b"]);
            client.confirm(ConfirmType::Pubrec, received.id);
            client.expect_events(&[Event::Confirm("PUBREL", received.id, 0)]);
            // A publish whose PUBREL the server has not got yet.
            let half = Publish { id: 77, ..Publish::new("two/half", "half", 2) };
            speaker.send(&half.bytes(version));
            speaker.expect_events(&[Event::Confirm("PUBREC", 77, 0)]);
            let last = client.unconfirmed();
            assert_eq!(last.payload, "half");
            if is_killed {
                drop(server);
            } else {
                server.signal("-TERM");
                wait_within(&mut server.child);
            }

            let server = folder.serve(&[]);
            let mut speaker = Connect::persistent(version, "speaker").open(server.client);
            assert!(speaker.session_present);
            // The repetition is not another message.
            speaker.send(&Publish { dup: true, ..half }.bytes(version));
            speaker.expect_events(&[Event::Confirm("PUBREC", 77, 0)]);
            speaker.confirm(ConfirmType::Pubrel, 77);
            speaker.expect_events(&[Event::Confirm("PUBCOMP", 77, 0)]);
            let mut client = Connect::persistent(version, "keeper").open(server.client);
            assert!(client.session_present);
            // In the order in which the server first sent them, with the same identifiers.
            let again = |before: &Message| Event::Message(Message { dup: true, ..before.clone() });
            assert_eq!(client.next(), again(&unacknowledged));
            assert_eq!(client.next(), Event::Confirm("PUBREL", received.id, 0));
            assert_eq!(client.next(), again(&unreceived));
            assert_eq!(client.next(), again(&last));
            client.confirm(ConfirmType::Puback, unacknowledged.id);
            client.confirm(ConfirmType::Pubcomp, received.id);
            for id in [unreceived.id, last.id] {
                client.confirm(ConfirmType::Pubrec, id);
                client.expect_events(&[Event::Confirm("PUBREL", id, 0)]);
                client.confirm(ConfirmType::Pubcomp, id);
            }
            // All subscriptions still exist, and no message comes again.
            for (topic, qos) in [("one/b", 1), ("two/deep/er", 2), ("zero", 0)] {
                speaker.publish(topic, "after", 2);
                let got = client.message();
                assert_eq!((got.topic.as_str(), got.qos, got.dup), (topic, qos, false));
            }
            client.subscribe(&[filter("state/+", 1)]);
            let state = client.message();
            assert_eq!((state.payload.as_str(), state.retain), ("on", true));
            client.is_quiet();
        }
    }
}

#[test]
fn a_restart_publishes_the_wills_of_who_does_not_come_back() {
    let folder = Folder::new();
    let server = folder.serve(&[]);
    let mut witness = persistent("witness", 1_000).open(server.client);
    witness.subscribe(&[filter("will/+", 1)]);
    // Only SUBACK confirms that a session and its will are on disk, and the server is killed.
    let stored = |client, topic, delay_s| {
        let mut client = dying(client, 1_000, topic, delay_s).open(server.client);
        client.subscribe(&[filter("any", 0)]);
        client
    };
    let _connected = stored("connected", "will/connected", 3);
    stored("back", "will/back", 500).cut();
    stored("away", "will/away", 3).cut();
    until_away(&server, &["back", "away"]);
    drop(server);
    let server = folder.serve(&[]);
    let back = persistent("back", 1_000).open(server.client);
    assert!(back.session_present);
    let mut witness = persistent("witness", 1_000).open(server.client);
    let mut wills: Vec<String> = witness.messages(2).into_iter().map(|(topic, _)| topic).collect();
    wills.sort();
    assert_eq!(wills, ["will/away", "will/connected"]);
    // The end of its session would publish a will that still waits.
    back.cut();
    until_away(&server, &["back"]);
    assert_eq!(server.api("DELETE", "/api/mqtt/sessions/back", None).0, 200);
    witness.is_quiet();
}

#[test]
fn a_session_goes_whole_to_who_takes_it_over() {
    let server = serve(&[("THRONG_SHARDS_COUNT", "4")]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let mut before = persistent("same", 100).open(server.client);
    before.subscribe(&[filter("a/#", 2)]);
    speaker.publish("a/1", "first", 1);
    speaker.publish("a/2", "second", 2);
    let (first, second) = (before.unconfirmed(), before.unconfirmed());
    before.confirm(ConfirmType::Pubrec, second.id);
    before.expect_events(&[Event::Confirm("PUBREL", second.id, 0)]);
    // The connections come to different shards.
    for round in 0..12 {
        let mut now = persistent("same", 100).open(server.client);
        before.is_ended_for(0x8e);
        assert!(now.session_present);
        assert_eq!(now.next(), Event::Message(Message { dup: true, ..first.clone() }));
        assert_eq!(now.next(), Event::Confirm("PUBREL", second.id, 0));
        let text = round.to_string();
        speaker.publish("a/3", &text, 2);
        assert_eq!(now.message().payload, text);
        before = now;
    }
    before.confirm(ConfirmType::Puback, first.id);
    before.confirm(ConfirmType::Pubcomp, second.id);
    // A clean start replaces the session.
    let mut clean = Connect::new(V5, "same").open(server.client);
    before.is_ended_for(0x8e);
    assert!(!clean.session_present);
    speaker.publish("a/4", "nobody is subscribed", 2);
    clean.is_quiet();
}

#[test]
fn of_many_who_come_with_one_id_at_once_one_stays() {
    let server = serve(&[("THRONG_SHARDS_COUNT", "4")]);
    persistent("same", 100).open(server.client).subscribe(&[filter("a", 1)]);
    let all: Vec<Client> = std::thread::scope(|scope| {
        let come = || {
            let mut client = Client::new(server.client, V5);
            client.send(&persistent("same", 100).bytes());
            client
        };
        let threads: Vec<_> = (0..30).map(|_| scope.spawn(come)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // The server accepts a client, or rejects it with the code for an unavailable server, or closes it.
    let mut let_in = Vec::new();
    for mut client in all {
        match client.next() {
            Event::Connack(true, 0, _) => let_in.push(client),
            Event::Connack(false, 0x88, _) => client.expect_events(&[Event::Closed]),
            event => assert_eq!(event, Event::Closed),
        }
    }
    // All connects are done. The server accepts a client only after it has closed the one before, so only one client
    // gets a response to its ping.
    let mut stayed = Vec::new();
    for mut client in let_in {
        client.send_ping();
        match client.next() {
            Event::Pong => stayed.push(client),
            Event::Disconnect(reason, _) => {
                assert_eq!(reason, 0x8e);
                client.expect_events(&[Event::Closed]);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(stayed.len(), 1);
    server.publish("a", serde_json::json!("to who stays"));
    assert_eq!(stayed[0].message().payload, "to who stays");
}

#[test]
fn a_will_waits_for_its_client_to_come_back() {
    let server = serve(&[]);
    let mut witness = Connect::new(V5, "witness").open(server.client);
    witness.subscribe(&[filter("will/+", 1)]);
    // The server publishes no will for a client that comes back in time, or that sends DISCONNECT.
    dying("back", 1_000, "will/back", 500).open(server.client).cut();
    until_away(&server, &["back"]);
    let back = persistent("back", 1_000).open(server.client);
    assert!(back.session_present);
    dying("polite", 1_000, "will/polite", 0).open(server.client).disconnect();
    until_away(&server, &["polite"]);
    // A client that stays away, and one whose session ends before the delay.
    let begun = Instant::now();
    dying("away", 1_000, "will/away", 3).open(server.client).cut();
    dying("short", 2, "will/short", 500).open(server.client).cut();
    let mut wills: Vec<String> = witness.messages(2).into_iter().map(|(topic, _)| topic).collect();
    wills.sort();
    assert_eq!(wills, ["will/away", "will/short"]);
    // The server counts in whole seconds: 3 are at least 2.
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    // The end of their sessions would publish wills that still wait.
    back.cut();
    until_away(&server, &["back"]);
    for client in ["back", "polite"] {
        let target = format!("/api/mqtt/sessions/{client}");
        assert_eq!(server.api("DELETE", &target, None).0, 200);
    }
    witness.is_quiet();
    // A clean start ends the earlier session, so its will is due.
    dying("anew", 1_000, "will/anew", 500).open(server.client).cut();
    until_away(&server, &["anew"]);
    let _anew = Connect::new(V5, "anew").open(server.client);
    assert_eq!(witness.message().topic, "will/anew");
}

#[test]
fn sessions_end_in_their_time() {
    let server = serve(&[("THRONG_MQTT_SESSION_SECONDS_MAX", "1000")]);
    let once = |client: &str, seconds: u32| {
        let (mut it, reply) = persistent(client, seconds).try_open(server.client);
        it.subscribe(&[filter("a", 1)]);
        (it, reply.property(id::SESSION_EXPIRY_INTERVAL).map(str::to_string))
    };
    let (mut client, _) = once("held", 1);
    let (short, cut_to) = once("short", 1);
    assert_eq!(cut_to, None);
    // The server reduces a longer expiry to its maximum, and CONNACK has it.
    let (long, cut_to) = once("long", 5_000);
    assert_eq!(cut_to.as_deref(), Some("1000"));
    let (none, _) = once("none", 0);
    [short, long, none].into_iter().for_each(Client::cut);
    until_expired(&server, 1.0);
    for client in ["short", "none"] {
        assert!(!persistent(client, 100).open(server.client).session_present);
    }
    assert!(persistent("long", 5_000).open(server.client).session_present);
    // No time passes for a connected client: its session is older than one that has expired.
    client.ping();
    assert_eq!(session(&server, "held").1["subscriptions"], 1);
    assert!(persistent("held", 1).open(server.client).session_present);

    // The server's maximum also applies to MQTT 3.1.1, whose clients can't set an expiry.
    let server = serve(&[("THRONG_MQTT_SESSION_SECONDS_MAX", "1")]);
    let (long, reply) = persistent("long", 5_000).try_open(server.client);
    assert_eq!(reply.property(id::SESSION_EXPIRY_INTERVAL), Some("1"));
    let three = Connect::persistent(V3, "three").open(server.client);
    [long, three].into_iter().for_each(Client::cut);
    until_expired(&server, 2.0);
    for client in [persistent("long", 5_000), Connect::persistent(V3, "three")] {
        assert!(!client.open(server.client).session_present);
    }
}

#[test]
fn what_a_client_confirms_its_user_has_acknowledged() {
    for (version, qos) in [(V3, 1), (V5, 2)] {
        let server = serve(&[("THRONG_INBOX_ENABLED", "true")]);
        let mut client = Connect::persistent(version, "phone").user("alice").open(server.client);
        client.subscribe(&[filter("@alice", qos)]);
        let ids: Vec<String> = (0..3)
            .map(|n| {
                let sent =
                    server.post("/api/send", serde_json::json!({"user": "alice", "data": n}));
                sent["id"].as_str().unwrap().to_string()
            })
            .collect();
        let until = |id: &str| {
            server.until(id, |server| {
                server.api("GET", "/api/cursors/alice", None).1["acknowledged"] == id
            });
        };
        let messages = [client.unconfirmed(), client.unconfirmed(), client.unconfirmed()];
        let kind = if qos == 1 { ConfirmType::Puback } else { ConfirmType::Pubrec };
        client.confirm(kind, messages[0].id);
        until(&ids[0]);
        // A client that confirms out of order must not advance the position too far.
        client.confirm(kind, messages[2].id);
        client.confirm(kind, messages[1].id);
        until(&ids[1]);
        if qos == 2 {
            continue;
        }
        // An inbox retains messages for a session, like any history.
        drop(client);
        server.post("/api/send", serde_json::json!({"user": "alice", "data": "away"}));
        let mut client = Connect::persistent(version, "phone").user("alice").open(server.client);
        assert!(client.session_present);
        assert_eq!(client.unconfirmed().payload, "away");
    }
}

#[test]
fn a_new_session_gets_nothing_from_before_its_subscription() {
    let server = serve(&[("THRONG_SHARDS_COUNT", "4")]);
    // A session that is away makes the server retain the topic's messages.
    let mut first = persistent("first", 100).open(server.client);
    first.subscribe(&[filter("away/#", 1)]);
    first.disconnect();
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let mut wrong = Vec::new();
    for round in 0..40 {
        (0..3).for_each(|at| speaker.publish("away/a", &format!("{round} before {at}"), 1));
        // The session comes to any shard, and all earlier messages are confirmed.
        let mut late = persistent("late", 100).open(server.client);
        assert!(!late.session_present);
        late.subscribe(&[filter("away/#", 1)]);
        late.disconnect();
        speaker.publish("away/a", &format!("{round} after"), 1);
        let mut late = persistent("late", 100).open(server.client);
        assert!(late.session_present);
        let came = late.message().payload;
        if came != format!("{round} after") {
            wrong.push((round, came));
        }
        Connect::new(V5, "late").open(server.client).disconnect();
    }
    assert!(wrong.is_empty(), "{} of 40 got what was before them: {wrong:?}", wrong.len());
}

/// Many clients have got a message, and then the server ends. Returns how many of them get it again. The store's
/// queue is much shorter than the number of writes.
fn count_again(end: impl FnOnce(Server, &mut [Client])) -> usize {
    let folder = Folder::new();
    let settings = [("THRONG_STORE_QUEUE_MESSAGES_MAX", "16")];
    let server = folder.serve(&settings);
    let names: Vec<String> = (0..40).map(|n| format!("client-{n}")).collect();
    let open = |server: &Server, name: &String| Connect::persistent(V5, name).open(server.client);
    let join = |name| {
        let mut client = open(&server, name);
        client.subscribe(&[filter("news", 1)]);
        client
    };
    let mut clients: Vec<Client> = names.iter().map(join).collect();
    server.publish("news", serde_json::json!("x"));
    for client in &mut clients {
        assert_eq!(client.message().payload, "x");
        client.ping();
    }
    end(server, &mut clients);
    let server = folder.serve(&settings);
    let mut clients: Vec<Client> = names.iter().map(|name| open(&server, name)).collect();
    assert!(clients.iter().all(|client| client.session_present));
    clients.iter_mut().map(|client| client.drain().len()).sum()
}

#[test]
fn what_many_leave_at_once_is_stored() {
    let again = count_again(|mut server, clients| {
        server.signal("-TERM");
        for client in clients {
            while client.next() != Event::Closed {}
        }
        assert!(wait_within(&mut server.child).success());
    });
    assert_eq!(again, 0);
}

#[test]
fn what_many_have_is_stored_in_some_seconds() {
    // The server stores a fifth of them in a second, and retries those that the queue rejected. A slow machine gets
    // more time.
    let none_comes_again = |seconds| {
        count_again(|server, _| {
            std::thread::sleep(Duration::from_secs(seconds));
            drop(server);
        }) == 0
    };
    assert!([12, 48].into_iter().any(none_comes_again));
}
