//! Sessions that outlive their connections, and the server.

use std::time::Duration;

use protocol::mqtt::id;
use protocol::mqtt::write::ConfirmType;

use crate::client::*;
use crate::{Folder, serve};

fn kept(client: &str, seconds: u32) -> Connect {
    let connect = Connect { clean: false, ..Connect::new(V5, client) };
    connect.with(number(id::SESSION_EXPIRY_INTERVAL, seconds))
}

#[test]
fn a_restart_keeps_subscriptions_retained_messages_and_what_is_under_way() {
    for version in [V3, V5] {
        for is_killed in [true, false] {
            let folder = Folder::new();
            let mut server = folder.serve(&[]);
            let mut client = Connect::kept(version, "keeper").open(server.client);
            client.subscribe(&[filter("one/+", 1), filter("two/#", 2), filter("zero", 0)]);
            let mut speaker = Connect::kept(version, "speaker").open(server.client);
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
            client.hears(&[Heard::Confirm("PUBREL", received.id, 0)]);
            // A publish whose end the server has not heard yet.
            let half = Publish { id: 77, ..Publish::new("two/half", "half", 2) };
            speaker.send(&half.bytes(version));
            speaker.hears(&[Heard::Confirm("PUBREC", 77, 0)]);
            let last = client.unconfirmed();
            assert_eq!(last.payload, "half");
            if is_killed {
                drop(server);
            } else {
                server.signal("-TERM");
                server.child.wait().unwrap();
            }

            let server = folder.serve(&[]);
            let mut speaker = Connect::kept(version, "speaker").open(server.client);
            assert!(speaker.session_present);
            // The same once more is no further message.
            speaker.send(&Publish { dup: true, ..half }.bytes(version));
            speaker.hears(&[Heard::Confirm("PUBREC", 77, 0)]);
            speaker.confirm(ConfirmType::Pubrel, 77);
            speaker.hears(&[Heard::Confirm("PUBCOMP", 77, 0)]);
            let mut client = Connect::kept(version, "keeper").open(server.client);
            assert!(client.session_present);
            // In the order in which they were sent, under the same ids.
            let again = |before: &Message| Heard::Message(Message { dup: true, ..before.clone() });
            assert_eq!(client.next(), again(&unacknowledged));
            assert_eq!(client.next(), Heard::Confirm("PUBREL", received.id, 0));
            assert_eq!(client.next(), again(&unreceived));
            assert_eq!(client.next(), again(&last));
            client.confirm(ConfirmType::Puback, unacknowledged.id);
            client.confirm(ConfirmType::Pubcomp, received.id);
            for id in [unreceived.id, last.id] {
                client.confirm(ConfirmType::Pubrec, id);
                client.hears(&[Heard::Confirm("PUBREL", id, 0)]);
                client.confirm(ConfirmType::Pubcomp, id);
            }
            // All subscriptions are there, and nothing comes again.
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
    let mut witness = kept("witness", 100).open(server.client);
    witness.subscribe(&[filter("will/+", 1)]);
    let delay = || number(id::WILL_DELAY_INTERVAL, 3);
    let dying = |client: &str, topic: &'static str| {
        let mut connect = kept(client, 100).will(topic, "gone", 1);
        connect.will.as_mut().unwrap().properties.push(delay());
        connect
    };
    let _connected = dying("connected", "will/connected").open(server.client);
    let back = dying("back", "will/back").open(server.client);
    dying("away", "will/away").open(server.client).cut();
    back.cut();
    server.until("they are away", |server| server.metric("throng_mqtt_sessions_away") == 2.0);
    drop(server);
    let server = folder.serve(&[]);
    let _back = kept("back", 100).open(server.client);
    let mut witness = kept("witness", 100).open(server.client);
    let mut wills: Vec<String> = witness.messages(2).into_iter().map(|(topic, _)| topic).collect();
    wills.sort();
    assert_eq!(wills, ["will/away", "will/connected"]);
    assert_eq!(witness.within(Duration::from_secs(3)), None);
}

#[test]
fn a_session_goes_whole_to_who_takes_it_over() {
    let server = serve(&[("THRONG_SHARDS_COUNT", "4")]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let mut before = kept("same", 100).open(server.client);
    before.subscribe(&[filter("a/#", 2)]);
    speaker.publish("a/1", "first", 1);
    speaker.publish("a/2", "second", 2);
    let (first, second) = (before.unconfirmed(), before.unconfirmed());
    before.confirm(ConfirmType::Pubrec, second.id);
    before.hears(&[Heard::Confirm("PUBREL", second.id, 0)]);
    // Whatever shard each comes to.
    for round in 0..12 {
        let mut now = kept("same", 100).open(server.client);
        before.is_told(0x8e);
        assert!(now.session_present);
        assert_eq!(now.next(), Heard::Message(Message { dup: true, ..first.clone() }));
        assert_eq!(now.next(), Heard::Confirm("PUBREL", second.id, 0));
        let text = round.to_string();
        speaker.publish("a/3", &text, 2);
        assert_eq!(now.message().payload, text);
        before = now;
    }
    before.confirm(ConfirmType::Puback, first.id);
    before.confirm(ConfirmType::Pubcomp, second.id);
    // A new session in place of the one that is there.
    let mut clean = Connect::new(V5, "same").open(server.client);
    before.is_told(0x8e);
    assert!(!clean.session_present);
    speaker.publish("a/4", "nobody is subscribed", 2);
    clean.is_quiet();
}

#[test]
fn of_many_who_come_with_one_id_at_once_one_stays() {
    let server = serve(&[("THRONG_SHARDS_COUNT", "4")]);
    kept("same", 100).open(server.client).subscribe(&[filter("a", 1)]);
    let all: Vec<Client> = std::thread::scope(|scope| {
        let come = || {
            let mut client = Client::new(server.client, V5);
            client.send(&kept("same", 100).bytes());
            client
        };
        let threads: Vec<_> = (0..30).map(|_| scope.spawn(come)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut stayed = Vec::new();
    for mut client in all {
        // Those before it are let in and told to go, or only told.
        let mut heard = Vec::new();
        while let Some(next) =
            client.within(Duration::from_millis(if heard.is_empty() { 5_000 } else { 300 }))
        {
            heard.push(next);
            if heard.last() == Some(&Heard::Closed) {
                break;
            }
        }
        match heard.last() {
            // Before CONNACK there is no word for it.
            Some(Heard::Closed) if heard.len() == 1 => {}
            Some(Heard::Closed) => {
                let told = |it: &Heard| matches!(it, Heard::Disconnect(0x8e, _));
                assert!(heard.iter().any(told), "{heard:?}");
            }
            Some(Heard::Connack(true, 0, _)) => stayed.push(client),
            _ => panic!("{heard:?}"),
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
    let dying = |client: &str, topic: &'static str, seconds, delay| {
        let mut connect = kept(client, seconds).will(topic, "gone", 1);
        connect.will.as_mut().unwrap().properties.push(number(id::WILL_DELAY_INTERVAL, delay));
        connect
    };
    // It comes back in time, and its will is not published; nor is it when it leaves in order.
    dying("back", "will/back", 100, 2).open(server.client).cut();
    std::thread::sleep(Duration::from_millis(300));
    let back = kept("back", 100).open(server.client);
    assert!(back.session_present);
    dying("polite", "will/polite", 100, 0).open(server.client).disconnect();
    // One that does not, and one whose session ends before its delay has passed.
    dying("away", "will/away", 100, 1).open(server.client).cut();
    dying("short", "will/short", 1, 60).open(server.client).cut();
    let begun = std::time::Instant::now();
    let mut wills: Vec<String> = witness.messages(2).into_iter().map(|(topic, _)| topic).collect();
    wills.sort();
    assert_eq!(wills, ["will/away", "will/short"]);
    assert!(begun.elapsed() > Duration::from_millis(500), "{:?}", begun.elapsed());
    assert_eq!(witness.within(Duration::from_millis(2_500)), None);
    // Who begins a new session ends the one before, and its will is due.
    dying("anew", "will/anew", 100, 60).open(server.client).cut();
    std::thread::sleep(Duration::from_millis(300));
    let _anew = Connect::new(V5, "anew").open(server.client);
    assert_eq!(witness.message().topic, "will/anew");
}

#[test]
fn sessions_end_in_their_time() {
    let server = serve(&[("THRONG_MQTT_SESSION_SECONDS_MAX", "2")]);
    let once = |client: &str, seconds: u32| {
        let (mut it, answer) = kept(client, seconds).try_open(server.client);
        it.subscribe(&[filter("a", 1)]);
        (it, answer)
    };
    let (short, answer) = once("short", 1);
    assert_eq!(answer.property(id::SESSION_EXPIRY_INTERVAL), None);
    // More than there is to have is cut to it, and said.
    let (long, answer) = once("long", 1_000);
    assert_eq!(answer.property(id::SESSION_EXPIRY_INTERVAL), Some("2"));
    let (none, _) = once("none", 0);
    let mut three = Connect::kept(V3, "three").open(server.client);
    three.subscribe(&[filter("a", 1)]);
    for client in [short, long, none, three] {
        client.cut();
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(!kept("none", 0).open(server.client).session_present);
    assert!(kept("long", 1_000).open(server.client).session_present);
    // While it is connected, no time passes for it.
    let mut held = kept("held", 1).open(server.client);
    held.subscribe(&[filter("a", 1)]);
    std::thread::sleep(Duration::from_millis(3_500));
    held.ping();
    held.cut();
    assert!(kept("held", 1).open(server.client).session_present);
    assert!(!kept("short", 1).open(server.client).session_present);
    assert!(!kept("long", 1_000).open(server.client).session_present);
    assert!(!Connect::kept(V3, "three").open(server.client).session_present);
}

#[test]
fn what_a_client_confirms_its_user_has_acknowledged() {
    for (version, qos) in [(V3, 1), (V5, 2)] {
        let server = serve(&[("THRONG_INBOX_ENABLED", "true")]);
        let mut client = Connect::kept(version, "phone").user("alice").open(server.client);
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
        // Who confirms out of order has at least not said too much.
        client.confirm(kind, messages[2].id);
        client.confirm(kind, messages[1].id);
        until(&ids[1]);
        if qos == 2 {
            continue;
        }
        // An inbox waits for a session like any history.
        drop(client);
        server.post("/api/send", serde_json::json!({"user": "alice", "data": "away"}));
        let mut client = Connect::kept(version, "phone").user("alice").open(server.client);
        assert!(client.session_present);
        assert_eq!(client.unconfirmed().payload, "away");
    }
}
