//! The exact guarantees of a session: no message twice, none out of order, and none that was not for it.

use protocol::mqtt::client::SubscribeParts;
use protocol::mqtt::write::ConfirmType::{Puback, Pubcomp, Pubrec, Pubrel};
use protocol::mqtt::{Value, id};
use serde_json::json;

use crate::mqtt::client::*;
use crate::mqtt_sessions::{Folder, Server, serve};
use crate::support::{Scratch, wait_within};

/// Connects to a session that ends with this connection, whatever it was before.
fn last(client: &str) -> Connect {
    Connect { clean: false, ..Connect::new(V5, client) }
}

fn payloads(client: &mut Client, count: usize) -> Vec<String> {
    client.messages(count).into_iter().map(|(_, payload)| payload).collect()
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

#[test]
fn wildcards_reach_no_topic_that_is_not_open_to_all() {
    let folder = Scratch::new("mqtt-closed");
    let rule = "[[topics]]\npattern = \"secret/*\"\njoin = \"refuse\"\n";
    let config = folder.write("throng.toml", rule);
    let flags = ["--config", config.to_str().unwrap(), "--mqtt", "127.0.0.1:0", "--shards", "2"];
    let server = Server::with(&flags, &[("THRONG_LOG_LEVEL", "error")]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    speaker.publish_all(Publish::new("secret/kept", "retained", 1).retained());

    let mut away = Connect::persistent(V5, "away").open(server.client);
    assert_eq!(away.subscribe_with(&[filter("secret/kept", 1)], &[]), [0x80]);
    away.subscribe(&[filter("#", 2)]);
    away.cut();
    // A client that never keeps up reads from the history.
    let slow = Connect::persistent(V5, "slow").with(number(id::RECEIVE_MAXIMUM, 1));
    let mut slow = slow.open(server.client);
    slow.subscribe(&[filter("+/+", 1)]);
    for n in 0..300 {
        speaker.publish("secret/kept", "told", 2);
        speaker.publish("open/kept", &n.to_string(), 1);
    }
    let mut away = Connect::persistent(V5, "away").open(server.client);
    assert!(away.session_present);
    for client in [&mut away, &mut slow] {
        assert_eq!(payloads(client, 300), numbers(0..300));
        client.is_quiet();
    }
}

#[test]
fn a_session_that_ends_with_this_connection_gets_its_own_once_and_in_order() {
    let server = serve(&[("THRONG_MQTT_INFLIGHT_MAX", "5")]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let mut before = Connect::persistent(V5, "last").open(server.client);
    before.subscribe(&[filter("a/+", 2)]);
    before.cut();
    for n in 0..40 {
        speaker.publish("a/1", &n.to_string(), 2);
    }
    let mut now = last("last").open(server.client);
    assert!(now.session_present);
    for n in 40..60 {
        speaker.publish("a/1", &n.to_string(), 2);
    }
    // One more subscription makes the session check all topics again.
    assert_eq!(now.subscribe_with(&[filter("b", 2)], &[]), [2]);
    speaker.publish("b", "60", 2);
    // This topic is not retained for the session, so its message need not wait.
    let mut all = payloads(&mut now, 61);
    all.retain(|it| it != "60");
    assert_eq!(all, numbers(0..60));
    now.is_quiet();
    now.disconnect();
    assert!(!last("last").open(server.client).session_present);
}

#[test]
fn a_session_that_was_to_end_with_its_connection_does_so_in_a_crash() {
    let folder = Folder::new();
    let server = folder.serve(&[]);
    let mut before = Connect::persistent(V5, "last").open(server.client);
    before.subscribe(&[filter("a", 1)]);
    before.cut();
    server.until("it is away", |server| server.metric("throng_mqtt_sessions_away") == 1.0);
    let mut now = last("last").open(server.client);
    assert!(now.session_present);
    // When this message is confirmed, it and all earlier ones are on disk.
    now.publish_all(Publish::new("b", "x", 1).retained());
    drop(server);
    let server = folder.serve(&[]);
    let mut now = Connect::persistent(V5, "last").open(server.client);
    assert!(!now.session_present);
    now.publish("a", "x", 1);
    now.is_quiet();
}

#[test]
fn an_alias_is_announced_before_it_is_used() {
    let folder = Folder::new();
    let server = folder.serve(&[]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let alias = || number(id::TOPIC_ALIAS_MAXIMUM, 10);
    let known = |message: &Message| !message.topic.is_empty();

    // The first message exceeds the client's maximum packet size.
    let small = Connect::new(V5, "small").with(alias()).with(number(id::MAXIMUM_PACKET_SIZE, 200));
    let mut small = small.open(server.client);
    small.subscribe(&[filter("a", 0)]);
    speaker.publish("a", &"x".repeat(500), 1);
    speaker.publish("a", "y", 1);
    let message = small.message();
    assert!(known(&message) && message.payload == "y", "{message:?}");
    speaker.publish("a", "z", 1);
    assert!(!known(&small.message()));

    // Messages that wait for the disk leave after messages that do not.
    let mut persistent = Connect::persistent(V5, "kept").with(alias()).open(server.client);
    persistent.subscribe(&[filter("a", 2)]);
    let mut topics = std::collections::HashMap::new();
    for n in 0..20 {
        let exact = Publish { id: 100 + n, ..Publish::new("a", "2", 2) };
        let loose = Publish::new("a", "0", 0);
        speaker.send(&[exact.bytes(V5), loose.bytes(V5)].concat());
        for _ in 0..2 {
            let message = persistent.message();
            let alias = message.property(id::TOPIC_ALIAS).map(str::to_owned);
            match alias {
                Some(alias) if known(&message) => drop(topics.insert(alias, message.topic)),
                Some(alias) => assert_eq!(topics.get(&alias).map(String::as_str), Some("a")),
                None => assert!(known(&message)),
            }
        }
        speaker.expect_events(&[Event::Confirm("PUBREC", 100 + n, 0)]);
        speaker.confirm(Pubrel, 100 + n);
        speaker.expect_events(&[Event::Confirm("PUBCOMP", 100 + n, 0)]);
    }
}

#[test]
fn nothing_of_its_own_comes_to_a_client_on_its_next_connection() {
    for folder in [None, Some(Folder::new())] {
        let start = || folder.as_ref().map_or_else(|| serve(&[]), |folder| folder.serve(&[]));
        let server = start();
        let mut client = Connect::persistent(V5, "client").open(server.client);
        client.subscribe_with(&[SubscribeParts { no_local: true, ..filter("a/#", 2) }], &[]);
        let mut packets = Vec::new();
        for n in 1..=20 {
            packets.extend(Publish { id: n, ..Publish::new("a/1", "own", 1) }.bytes(V5));
        }
        client.send(&packets);
        // The client is gone before its own messages are confirmed.
        client.cut();
        let mut other = Connect::new(V5, "other").open(server.client);
        other.publish("a/1", "theirs", 1);
        let server = match folder {
            Some(_) => {
                drop(server);
                start()
            }
            None => server,
        };
        let mut client = Connect::persistent(V5, "client").open(server.client);
        assert!(client.session_present);
        assert_eq!(client.message().payload, "theirs");
        client.is_quiet();
    }
}

#[test]
fn nothing_comes_from_before_a_subscription() {
    let server = serve(&[]);
    let mut keeper = Connect::persistent(V5, "keeper").open(server.client);
    keeper.subscribe(&[filter("a", 1)]);
    keeper.cut();
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    (0..5).for_each(|n| speaker.publish("a", &n.to_string(), 1));
    // The session may also be on a shard that knows none of the messages.
    for n in 0..8 {
        let connect = Connect::persistent(V5, &format!("late-{n}"));
        let mut late = connect.open(server.client);
        late.subscribe(&[filter("a", 1)]);
        late.cut();
        let mut late = connect.open(server.client);
        assert!(late.session_present);
        late.is_quiet();
        late.disconnect();
    }
}

#[test]
fn a_subscription_that_is_raised_repeats_nothing() {
    let server = serve(&[]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let keeper = Connect::persistent(V5, "keeper");
    keeper.open(server.client).subscribe(&[filter("a", 1)]);
    let connect = Connect::persistent(V5, "client").with(number(id::RECEIVE_MAXIMUM, 1));
    let mut client = connect.open(server.client);
    client.subscribe(&[filter("b", 1), filter("a", 0)]);
    // The client is behind with one topic, and has all messages of the other.
    (0..200).for_each(|n| speaker.publish("b", &n.to_string(), 1));
    (0..5).for_each(|n| speaker.publish("a", &format!("a{n}"), 1));
    let first = client.unconfirmed();
    assert_eq!(first.payload, "0");
    (0..5).for_each(|n| assert_eq!(client.unconfirmed().payload, format!("a{n}")));
    client.subscribe(&[filter("a", 2)]);
    speaker.publish("a", "a5", 2);
    client.confirm(Puback, first.id);
    let mut all = payloads(&mut client, 200);
    let at = all.iter().position(|it| it == "a5").unwrap();
    all.remove(at);
    assert_eq!(all, numbers(1..200));
    client.is_quiet();
}

#[test]
fn no_more_come_again_than_the_next_connection_takes() {
    let server = serve(&[]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let mut client = Connect::persistent(V5, "client").open(server.client);
    client.subscribe(&[filter("a", 1)]);
    for n in 0..5 {
        speaker.publish("a", &n.to_string(), 1);
        client.unconfirmed();
    }
    speaker.publish("a", &"x".repeat(300), 1);
    client.unconfirmed();
    client.cut();
    let connect = Connect::persistent(V5, "client")
        .with(number(id::RECEIVE_MAXIMUM, 2))
        .with(number(id::MAXIMUM_PACKET_SIZE, 100));
    let mut client = connect.open(server.client);
    let first = [client.unconfirmed(), client.unconfirmed()];
    client.is_quiet();
    assert!(first.iter().all(|it| it.dup));
    first.iter().for_each(|it| client.confirm(Puback, it.id));
    // The server does not send the message that is too large.
    assert_eq!(payloads(&mut client, 3), numbers(2..5));
    speaker.publish("a", "new", 1);
    assert_eq!(client.message().payload, "new");
}

#[test]
fn the_newest_retained_message_comes_last() {
    let server = serve(&[]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let topics: Vec<String> = (0..100).map(|n| format!("state/{n}")).collect();
    for topic in &topics {
        speaker.publish_all(Publish::new(topic, &"1".repeat(40_000), 1).retained());
    }
    let mut reader = Connect::new(V5, "reader").open(server.client);
    // The reader does not read the messages at first.
    let subscribe =
        bytes(|out| protocol::mqtt::client::subscribe(V5, 1, &[], &[filter("state/#", 0)], out));
    reader.send(&subscribe);
    server.until("it has subscribed", |server| {
        server.api("GET", "/api/mqtt/sessions/reader", None).1["subscriptions"] == 1
    });
    for topic in &topics {
        speaker.publish_all(Publish::new(topic, "2", 1).retained());
    }
    let mut newest = std::collections::HashMap::new();
    while newest.values().filter(|bytes| **bytes == 1).count() < topics.len() {
        match reader.next() {
            Event::Message(message) => _ = newest.insert(message.topic, message.payload.len()),
            event => assert_eq!(event, Event::Suback(1, vec![0])),
        }
    }
    let rest = reader.drain().into_iter();
    newest.extend(rest.map(|message| (message.topic, message.payload.len())));
    let wrong: Vec<&String> = topics.iter().filter(|it| newest.get(*it) != Some(&1)).collect();
    assert!(wrong.is_empty(), "these end with what was there before: {wrong:?}");
}

#[test]
fn what_is_retained_of_its_own_comes_to_a_client_that_wants_it() {
    let folder = Folder::new();
    let mut server = folder.serve(&[]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    speaker.publish_all(Publish::new("state/own", "own", 1).retained());
    let mut other = Connect::new(V5, "other").open(server.client);
    other.publish_all(Publish::new("state/other", "theirs", 1).retained());
    let local = [protocol::mqtt::client::SubscribeParts { no_local: true, ..filter("state/#", 1) }];
    for is_again in [false, true] {
        if is_again {
            drop(server);
            server = folder.serve(&[]);
            speaker = Connect::new(V5, "speaker").open(server.client);
        }
        speaker.subscribe_with(&local, &[]);
        assert_eq!(speaker.message().topic, "state/other");
        speaker.is_quiet();
        // The flag counts for each subscription.
        speaker.subscribe(&[filter("state/#", 1)]);
        assert_eq!(speaker.messages(2).len(), 2);
    }
}

#[test]
fn what_is_no_topic_of_mqtt_is_not_retained() {
    let folder = Folder::new();
    let mut server = folder.serve(&[]);
    for (topic, retain, expected) in
        [("a/+/b", true, 400), ("a/+/b", false, 200), ("a/b", true, 200)]
    {
        let body = json!({"topic": topic, "data": "x", "mqtt": {"retain": retain}});
        let (status, reply) = server.api("POST", "/api/publish", Some(body));
        assert_eq!(status, expected, "{reply}");
        if status == 400 {
            let error = &reply["error"];
            let message = error["message"].as_str().unwrap();
            assert_eq!(error["code"], "bad_mqtt");
            assert!(message.contains("'+'"), "{message}");
        }
    }
    server.signal("-TERM");
    wait_within(&mut server.child);
    // Older versions accepted this topic.
    folder.retain("a/#/c");
    let server = folder.serve(&[]);
    let (_, listed) = server.api("GET", "/api/mqtt/retained", None);
    assert_eq!(listed["retained"].as_array().unwrap().len(), 2, "{listed}");
    let mut client = Connect::new(V5, "client").open(server.client);
    client.subscribe(&[filter("a/#", 1)]);
    assert_eq!(client.message().topic, "a/b");
    client.is_quiet();
}

#[test]
fn who_has_subscribed_to_the_own_topic_alone_receives_no_broadcast() {
    let server = serve(&[]);
    let mut client = Connect::new(V5, "client").user("al").open(server.client);
    client.subscribe(&[filter("@al", 0)]);
    server.post("/api/broadcast", json!({"data": "everyone"}));
    server.post("/api/send", json!({"user": "al", "data": "al"}));
    assert_eq!(client.message().payload, "al");
    client.is_quiet();
}

#[test]
fn confirmations_are_under_no_limit_and_a_refused_publish_leaves_no_trace() {
    let server = serve(&[
        ("THRONG_LIMITS_COMMANDS_PER_SECOND_PER_USER_MAX", "100"),
        ("THRONG_LIMITS_PUBLISHES_PER_SECOND_PER_USER_MAX", "5"),
    ]);
    let mut client = Connect::new(V5, "client").user("al").open(server.client);
    client.subscribe(&[filter("@al", 1)]);
    for n in 0..400 {
        server.post("/api/send", json!({"user": "al", "data": n}));
    }
    assert_eq!(payloads(&mut client, 400), numbers(0..400));

    let alias = number(id::TOPIC_ALIAS, 1);
    let mut speaker = Connect::new(V5, "speaker").user("bo").open(server.client);
    let mut witness = Connect::new(V5, "witness").open(server.client);
    witness.subscribe(&[filter("a", 2)]);
    // Sends all at once, so that they arrive within a second.
    let publish = |id| Publish { id, ..Publish::new("a", "x", 2) }.with(alias).bytes(V5);
    speaker.send(&(1..=30).flat_map(publish).collect::<Vec<u8>>());
    let (mut taken, mut refused) = (0, None);
    for id in 1..=30 {
        match speaker.next() {
            Event::Confirm("PUBREC", of, 0) if of == id => taken += 1,
            Event::Confirm("PUBREC", of, 0x97) if of == id => refused = Some(id),
            other => panic!("{other:?} in place of PUBREC {id}"),
        }
    }
    let id = refused.expect("a limit of five a second");
    // The server confirms a repetition of a message that it accepted before.
    speaker.send(&Publish { id: 1, dup: true, ..Publish::new("a", "x", 2) }.bytes(V5));
    speaker.expect_events(&[Event::Confirm("PUBREC", 1, 0)]);
    // The identifier is free for another message, and the server knows the alias.
    let later = Publish { id, ..Publish::new("", "later", 2) }.with(alias).bytes(V5);
    server.until("there is room again", |_| {
        speaker.send(&later);
        match speaker.next() {
            Event::Confirm("PUBREC", of, reason) if of == id => reason == 0,
            other => panic!("{other:?} in place of PUBREC {id}"),
        }
    });
    let expected = [vec!["x"; taken], vec!["later"]].concat();
    assert_eq!(payloads(&mut witness, taken + 1), expected);
    witness.is_quiet();
}

#[test]
fn what_confirms_nothing_is_a_command() {
    let server = serve(&[("THRONG_LIMITS_COMMANDS_PER_SECOND_PER_USER_MAX", "100")]);
    for (kind, user) in [(Puback, "al"), (Pubrec, "bo"), (Pubrel, "cy"), (Pubcomp, "di")] {
        let name = "throng_limited_total{name=\"limits.commands_per_second_per_user_max\"}";
        let before = server.metric(name);
        let mut client = Connect::new(V5, user).user(user).open(server.client);
        // Sends all at once, so that they arrive within a second.
        let confirm = |id| {
            let reason = protocol::mqtt::ReasonCode::Success;
            bytes(|out| protocol::mqtt::write::confirm(kind, V5, id, reason, &[], out))
        };
        client.send(&(1..400).flat_map(confirm).collect::<Vec<u8>>());
        server.until("it is over the limit", |server| server.metric(name) > before);
    }
}

#[test]
fn a_session_acknowledges_what_it_had_and_begins_where_its_user_is() {
    let server = serve(&[("THRONG_INBOX_ENABLED", "true")]);
    let send = |server: &Server, text: &str| -> String {
        let sent = server.post("/api/send", json!({"user": "al", "data": text}));
        sent["id"].as_str().unwrap().into()
    };
    let acknowledged =
        |server: &Server| server.api("GET", "/api/cursors/al", None).1["acknowledged"].clone();
    let ids = ["one", "two", "three"].map(|text| send(&server, text));
    let mut phone = Connect::persistent(V5, "phone").user("al").open(server.client);
    phone.subscribe(&[filter("@al", 1)]);
    let last = send(&server, "four");
    // The messages that waited for the user come first.
    let messages: Vec<Message> = (0..4).map(|_| phone.unconfirmed()).collect();
    let texts: Vec<&str> = messages.iter().map(|it| it.payload.as_str()).collect();
    assert_eq!(texts, ["one", "two", "three", "four"]);
    phone.confirm(Puback, messages[0].id);
    server.until("the first is acknowledged", |server| acknowledged(server) == ids[0]);
    messages[1..].iter().for_each(|it| phone.confirm(Puback, it.id));
    server.until("all are acknowledged", |server| acknowledged(server) == last);

    // Only a session that has got all messages may acknowledge them for the user.
    send(&server, "five");
    let mut part = Connect::persistent(V5, "part").user("al").open(server.client);
    part.subscribe(&[filter("@al", 0)]);
    let six = send(&server, "six");
    assert_eq!(part.message().payload, "six");
    assert_eq!(acknowledged(&server), last);
    assert_eq!((phone.message().payload, phone.message().payload), ("five".into(), "six".into()));
    server.until("the phone had them", |server| acknowledged(server) == six);
}

#[test]
fn what_leaves_one_of_two_alike_filters_leaves_the_other() {
    let server = serve(&[]);
    let mut client = Connect::new(V5, "client").open(server.client);
    client.subscribe(&[filter("a/#", 1), filter("a/+", 1)]);
    assert_eq!(client.unsubscribe(&["a/#"]), [0]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    speaker.publish("a/b", "x", 1);
    assert_eq!(client.message().payload, "x");
    client.is_quiet();
}

#[test]
fn messages_with_qos_2_that_were_half_done_end_once() {
    let server = serve(&[("THRONG_MQTT_INFLIGHT_MAX", "2")]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let mut client = Connect::persistent(V5, "client").open(server.client);
    client.subscribe(&[filter("a", 2)]);
    (0..6).for_each(|n| speaker.publish("a", &n.to_string(), 2));
    let (first, second) = (client.unconfirmed(), client.unconfirmed());
    client.confirm(Pubrec, first.id);
    client.expect_events(&[Event::Confirm("PUBREL", first.id, 0)]);
    client.cut();
    let mut client = Connect::persistent(V5, "client").open(server.client);
    assert_eq!(client.next(), Event::Confirm("PUBREL", first.id, 0));
    let again = Message { dup: true, ..second };
    assert_eq!(client.next(), Event::Message(again.clone()));
    client.is_quiet();
    client.confirm(Pubcomp, first.id);
    client.confirm(Pubrec, again.id);
    client.expect_events(&[Event::Confirm("PUBREL", again.id, 0)]);
    client.confirm(Pubcomp, again.id);
    assert_eq!(payloads(&mut client, 4), numbers(2..6));
    client.is_quiet();
}

#[test]
fn a_no_local_subscription_does_not_shape_the_clients_own_messages() {
    let no_local = |name, qos| SubscribeParts { no_local: true, ..filter(name, qos) };
    let server = serve(&[]);
    for persistent in [false, true] {
        let name = format!("kept-{persistent}");
        let connect =
            if persistent { Connect::persistent(V5, &name) } else { Connect::new(V5, &name) };
        let mut client = connect.open(server.client);
        let [exact, all] = [format!("{name}/a"), format!("{name}/+")].map(|it| &*it.leak());
        client.subscribe_with(&[no_local(exact, 2)], &[number(id::SUBSCRIPTION_IDENTIFIER, 1)]);
        client.subscribe_with(&[filter(all, 0)], &[number(id::SUBSCRIPTION_IDENTIFIER, 2)]);
        let mut other = Connect::new(V5, "other").open(server.client);
        for retain in [false, true] {
            let publish = |payload| Publish { retain, ..Publish::new(exact, payload, 2) };
            client.publish_all(publish("own"));
            other.publish_all(publish("theirs"));
            let messages = [client.message(), client.message()];
            let got = messages.each_ref().map(|it| (&*it.payload, it.qos, it.subscriptions()));
            assert_eq!(got, [("own", 0, vec!["2"]), ("theirs", 2, vec!["1", "2"])]);
        }
    }
}

/// Returns the next messages of a client, by payload, without fields that differ from client to client: packet
/// identifiers, and the message expiry, which counts down.
fn comparable_messages(client: &mut Client, count: usize) -> Vec<Message> {
    let mut all: Vec<Message> = (0..count).map(|_| client.message()).collect();
    client.is_quiet();
    all.sort_by(|a, b| a.payload.cmp(&b.payload));
    for message in &mut all {
        message.id = 0;
        let seconds: u32 = message.property(id::MESSAGE_EXPIRY_INTERVAL).unwrap().parse().unwrap();
        assert!((1..=1_000).contains(&seconds));
        message.properties.retain(|(id, _)| *id != id::MESSAGE_EXPIRY_INTERVAL);
    }
    all
}

#[test]
fn a_queued_message_keeps_all_of_its_attributes() {
    let server = serve(&[]);
    let mut speaker = Connect::new(V5, "speaker").open(server.client);
    let options = |least| {
        (least..=2).flat_map(|qos| [(qos, false), (qos, true)]).map(Some).collect::<Vec<_>>()
    };
    let mut round = 0;
    for persistent in [false, true] {
        for exact in options(1) {
            for wide in [options(0), vec![None]].concat() {
                round += 1;
                let [topic, all] = ["1", "+"].map(|end| &*format!("w{round}/{end}").leak());
                let client = |receive_max| {
                    let name = format!("{receive_max}-{round}");
                    let connect = if persistent {
                        Connect::persistent(V5, &name)
                    } else {
                        Connect::new(V5, &name)
                    };
                    let receive_max = number(id::RECEIVE_MAXIMUM, receive_max);
                    let mut client = connect.with(receive_max).open(server.client);
                    for (at, (name, options)) in (1..).zip([(topic, exact), (all, wide)]) {
                        let Some((qos, retain_as_published)) = options else { continue };
                        let filter = SubscribeParts { retain_as_published, ..filter(name, qos) };
                        let id = number(id::SUBSCRIPTION_IDENTIFIER, at);
                        client.subscribe_with(&[filter], &[id]);
                    }
                    client
                };
                let (mut quick, mut slow) = (client(100), client(1));
                let mut count = 0;
                for qos in [1, 2] {
                    for retain in [false, true] {
                        let payload = count.to_string();
                        let publish = Publish { retain, ..Publish::new(topic, &payload, qos) };
                        let text = |id, text| (id, Value::Text(text));
                        let publish = publish
                            .with(number(id::MESSAGE_EXPIRY_INTERVAL, 1_000))
                            .with(number(id::PAYLOAD_FORMAT_INDICATOR, 1))
                            .with(text(id::CONTENT_TYPE, "text/plain"))
                            .with(text(id::RESPONSE_TOPIC, "answer"))
                            .with((id::CORRELATION_DATA, Value::Binary(b"7")))
                            .with((id::USER_PROPERTY, Value::Pair("a", "b")))
                            .with((id::USER_PROPERTY, Value::Pair("a", "c")));
                        speaker.publish_all(publish);
                        count += 1;
                    }
                }
                let [quick, slow] =
                    [&mut quick, &mut slow].map(|it| comparable_messages(it, count));
                assert_eq!(slow, quick, "kept: {persistent}, {exact:?}, {wide:?}");
                let retained = quick.iter().filter(|message| message.retain).count();
                let is_retained = [exact, wide].into_iter().flatten().any(|(_, it)| it);
                assert_eq!(retained, if is_retained { 2 } else { 0 });
                assert!(quick.iter().all(|message| message.properties.len() >= 6));
            }
        }
    }
}
