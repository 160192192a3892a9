//! Those who come back get exactly what they missed, in their transport's idiom.

use std::time::Duration;

use serde_json::{Value, json};

use crate::home::*;
use crate::listener::*;
use crate::support::*;

/// The next event of an event stream that has data: its id and its data. Ids that come alone are
/// noted as a browser does.
fn event(stream: &mut Stream, last: &mut String) -> (String, String) {
    loop {
        let event = stream.event();
        let of = |name: &str| event.iter().find(|(field, _)| field == name);
        if let Some((_, id)) = of("id") {
            *last = id.clone();
        }
        if let Some((_, data)) = of("data").filter(|_| of("event").is_none()) {
            return (last.clone(), data.clone());
        }
    }
}

fn come_back(server: &Server, target: &str, last: &str) -> Stream {
    let mut stream = Stream::new(server.connect());
    stream.send(&format!("GET {target} HTTP/1.1\r\nHost: t\r\nLast-Event-ID: {last}\r\n\r\n"));
    assert!(stream.head().starts_with("HTTP/1.1 200 "));
    stream
}

/// What comes before a mark to topic h:1, with the id that each message leaves behind.
fn before_mark(server: &Server, stream: &mut Stream, last: &str) -> Vec<(String, String)> {
    server.publish("h:1", json!("mark"));
    let mut last = last.to_string();
    let mut all = Vec::new();
    loop {
        let (id, data) = event(stream, &mut last);
        if data == "mark" {
            return all;
        }
        all.push((id, data));
    }
}

#[test]
fn an_event_stream_that_is_cut_after_any_message_gets_exactly_the_rest() {
    for keeps in BOTH {
        let mut home = Home::new(keeps);
        let topics = ["h:1", "plain", "h:2", "h:1", "plain", "h:3", "h:3", "h:2", "plain", "h:1"];
        let target = "/sse?topic=h:1&topic=h:2&topic=plain&topic=h:3";
        let mut live = home.listen(target);
        let mut heard = Vec::new();
        let mut last = String::new();
        for (at, topic) in topics.iter().enumerate() {
            home.publish(topic, json!(format!("{at}")));
            let (id, data) = event(&mut live, &mut last);
            assert_eq!(data, at.to_string());
            heard.push(id);
        }
        drop(live);
        for restarted in [false, true] {
            if restarted && keeps == Keeps::Memory {
                break;
            }
            if restarted {
                home.restart();
            }
            for (cut, place) in heard.iter().enumerate() {
                let kept = (cut + 1..topics.len()).filter(|at| topics[*at] != "plain");
                let want: Vec<String> = kept.map(|at| at.to_string()).collect();
                let is_ours = |data: &str| data.parse::<usize>().is_ok();
                let mut stream = come_back(&home, target, place);
                let rest = before_mark(&home, &mut stream, place);
                let got: Vec<&str> =
                    rest.iter().map(|(_, data)| data.as_str()).filter(|it| is_ours(it)).collect();
                assert_eq!(got, want, "{keeps:?}: cut after {cut}, {place}");
                // And cut again after the first of these.
                let Some((place, _)) = rest.first().filter(|_| !want.is_empty()) else { continue };
                let mut stream = come_back(&home, target, place);
                let rest = before_mark(&home, &mut stream, place);
                let got: Vec<&str> =
                    rest.iter().map(|(_, data)| data.as_str()).filter(|it| is_ours(it)).collect();
                assert_eq!(got, want[1..], "{keeps:?}: cut after {cut} and one more, {place}");
            }
        }
    }
}

#[test]
fn an_event_stream_says_from_where_by_header_or_query() {
    let home = Home::new(Keeps::Memory);
    let ids = home.count("h:1", 0..5);
    for target in [
        format!("/sse?topic=h:1&lastEventID={}", ids[1]),
        format!("/sse?topic=h:1&since={}", ids[1]),
        format!("/sse?topic=h:1&since:h:1={}", ids[1]),
    ] {
        let mut stream = home.listen(&target);
        assert_eq!(stream.event()[0].0, "retry");
        let told = stream.event();
        assert_eq!(told[0], ("event".into(), "recovery".into()), "{target}");
        let told: Value = serde_json::from_str(&told[1].1).unwrap();
        assert_eq!((&told["recovered"], &told["since"]), (&json!(true), &json!(ids[1])));
        for number in 2..5 {
            assert_eq!(stream.data(), number.to_string(), "{target}");
        }
    }
    // The header is newer than the URL with which the browser began.
    let target = format!("/sse?topic=h:1&lastEventID={}", ids[0]);
    let mut stream = come_back(&home, &target, &ids[3]);
    let mut last = String::new();
    assert_eq!(event(&mut stream, &mut last).1, "4");
    // Nobody is told anything who asks nothing, but the place is there if nothing comes.
    let mut fresh = home.listen("/sse?topic=h:1");
    assert_eq!(fresh.event()[0].0, "retry");
    assert_eq!(fresh.event(), [("id".to_string(), ids[4].clone())]);
    home.count("h:1", 5..6);
    assert_eq!(fresh.data(), "5");
}

#[test]
fn every_transport_gives_the_rest_and_then_what_comes() {
    for keeps in BOTH {
        let mut home = Home::new(keeps);
        for idiom in ALL {
            let topic = format!("h:{idiom:?}");
            let mut listener = Listener::new(&home, idiom, &[&topic]);
            home.count(&topic, 0..3);
            assert_eq!(listener.take(&home, 2), numbers(0..2));
            listener.cut();
            home.count(&topic, 3..6);
            if keeps == Keeps::Disk {
                home.restart();
            }
            listener.come(&home);
            // A poll had the third with the others, or not.
            let rest = listener.rest(&home);
            assert_eq!(rest, numbers(2..6), "{keeps:?} {idiom:?}");
            assert_eq!(listener.recovered(&home), (json!(true), Value::Null), "{idiom:?}");
            home.count(&topic, 6..8);
            assert_eq!(listener.rest(&home), numbers(6..8), "{keeps:?} {idiom:?}");
        }
    }
}

#[test]
fn a_stream_asks_for_each_topic_or_for_all() {
    let home = Home::new(Keeps::Memory);
    let one = home.count("h:1", 0..4);
    let two = home.count("h:2", 10..14);
    let query = format!("since:h:1={}&since:h:2={}", one[2], two[0]);
    let mut each = Listener::with(&home, Idiom::Stream, &["h:1", "h:2"], &query);
    assert_eq!(each.rest(&home), [json!(3), json!(11), json!(12), json!(13)]);
    assert_eq!(each.recovered(&home), (json!(true), Value::Null));
    let query = format!("since={}&since:h:2={}", one[2], two[2]);
    let mut both = Listener::with(&home, Idiom::Stream, &["h:1", "h:2"], &query);
    assert_eq!(both.rest(&home), [json!(3), json!(13)]);
    let mut all =
        Listener::with(&home, Idiom::Stream, &["h:1", "h:2"], &format!("since={}", one[3]));
    assert_eq!(all.rest(&home), numbers(10..14));
    // A topic that is asked about and not named.
    let (status, refused) = home.get(&format!("/stream?topic=h:1&since:h:2={}", one[0]));
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("bad_since")));
    let (status, refused) = home.get("/stream?topic=h:1&since=yesterday");
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("bad_since")));
}

#[test]
fn a_poll_goes_on_with_topics_with_history_and_without() {
    for keeps in BOTH {
        let home = Home::new(keeps);
        let (_, first) = home.get("/poll?topic=h:1&topic=plain&timeout=0");
        let mut since = first["since"].as_str().unwrap().to_string();
        let mut got = [Vec::new(), Vec::new()];
        for round in 0..20u64 {
            home.publish("plain", json!(round * 2));
            home.count("h:1", round * 2..round * 2 + 2);
            home.publish("plain", json!(round * 2 + 1));
            home.publish("h:2", json!("x"));
            home.settle();
            let (_, answer) = home.get(&format!("/poll?topic=h:1&topic=plain&since={since}"));
            assert_eq!(answer["recovered"], true, "{answer}");
            for message in answer["messages"].as_array().unwrap() {
                let list = usize::from(message["topic"] == "plain");
                got[list].push(message["data"].clone());
            }
            since = answer["since"].as_str().unwrap().to_string();
        }
        let (_, answer) = home.get(&format!("/poll?topic=h:1&topic=plain&since={since}&timeout=0"));
        assert_eq!((&answer["messages"], &answer["recovered"]), (&json!([]), &json!(true)));
        assert_eq!(got, [numbers(0..40), numbers(0..40)], "{keeps:?}");
    }
}

#[test]
fn a_poll_that_waits_is_woken_and_its_place_holds() {
    let home = Home::new(Keeps::Disk);
    let mut poll = Listener::new(&home, Idiom::Poll, &["h:1", "plain"]);
    for number in 0..6 {
        std::thread::scope(|scope| {
            let home = &home;
            scope.spawn(move || {
                home.until_members("h:1", 1);
                home.publish(if number % 2 == 0 { "h:1" } else { "plain" }, json!(number));
            });
            assert_eq!(poll.next(home)["data"], number);
        });
    }
    assert_eq!(poll.rest(&home), numbers(0..0));
}

#[test]
fn a_websocket_recovers_each_topic_for_itself() {
    let home = Home::new(Keeps::Memory);
    let one = home.count("h:1", 0..3);
    let two = home.count("h:2", 10..13);
    let mut socket = websocket(&home, "");
    let subscribe = |topic: &str, since: &str| json!({"type": "subscribe", "id": topic, "topic": topic, "since": since});
    let reply = command(&mut socket, subscribe("h:1", &one[0]));
    assert_eq!(reply["ok"], json!({"topic": "h:1", "since": one[0], "recovered": true}));
    for number in 1..3 {
        assert_eq!(receive(&mut socket)["data"], number);
    }
    let reply = command(&mut socket, subscribe("h:2", &two[1]));
    assert_eq!(reply["ok"], json!({"topic": "h:2", "since": two[1], "recovered": true}));
    let message = receive(&mut socket);
    assert_eq!((&message["data"], &message["id"]), (&json!(12), &json!(two[2])));
    let reply = command(&mut socket, subscribe("plain", &one[0]));
    let want = json!({"topic": "plain", "recovered": false, "reason": "no_history"});
    assert_eq!(reply["ok"], want);
    let reply = command(&mut socket, subscribe("h:3", ELSEWHERE));
    assert_eq!(reply["ok"]["reason"], "epoch_changed");
    let reply = command(&mut socket, subscribe("h:3", "never"));
    assert_eq!(reply["error"]["code"], "bad_since");
    // Left and entered again.
    command(&mut socket, json!({"type": "unsubscribe", "id": 1, "topic": "h:1"}));
    let ids = home.count("h:1", 3..6);
    command(&mut socket, subscribe("h:1", &ids[0]));
    assert_eq!(receive(&mut socket)["data"], 4);
    assert_eq!(receive(&mut socket)["data"], 5);
    home.count("h:1", 6..7);
    assert_eq!(receive(&mut socket)["data"], 6);
}

/// Random, but the same each time.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn those_who_are_cut_while_messages_flow_end_with_the_sequence() {
    const MESSAGES: u64 = 80;
    for keeps in BOTH {
        let home = Home::new(keeps);
        let topics = ["h:1", "h:2", "h:3"];
        let listeners: Vec<Listener> = ALL
            .iter()
            .flat_map(|idiom| [*idiom; 3])
            .map(|it| Listener::new(&home, it, &topics))
            .collect();
        std::thread::scope(|scope| {
            let home = &home;
            for topic in topics {
                scope.spawn(move || home.count(topic, 0..MESSAGES));
            }
            for (at, mut listener) in listeners.into_iter().enumerate() {
                scope.spawn(move || {
                    let mut random = 77 + at as u64;
                    let mut counts = [0; 3];
                    let mut left = next(&mut random) % 20;
                    while counts != [MESSAGES; 3] {
                        let message = listener.next(home);
                        let topic = topics.iter().position(|it| message["topic"] == *it).unwrap();
                        assert_eq!(
                            message["data"], counts[topic],
                            "{keeps:?} {:?}: {message}",
                            listener.idiom
                        );
                        counts[topic] += 1;
                        left = left.saturating_sub(1);
                        if left == 0 {
                            listener.cut();
                            listener.come(home);
                            left = 1 + next(&mut random) % 40;
                        }
                    }
                });
            }
        });
    }
}

/// Of 3,000 messages that it missed.
fn one_reads_slowly(settings: &[(&str, &str)]) {
    const MESSAGES: u64 = 3_000;
    for keeps in BOTH {
        let mut home = Home::with(keeps, settings);
        let first = home.count("h:long", 0..1).remove(0);
        let pad = "x".repeat(3_000);
        let publish = |n| json!({"publish": {"topic": "h:long", "data": {"n": n, "pad": pad}}});
        for part in 0..3 {
            let range = (part * 1_000).max(1)..(part + 1) * 1_000;
            let commands: Vec<Value> = range.map(publish).collect();
            let answer = home.post("/api/batch", json!({"commands": commands}));
            assert!(answer["results"].as_array().unwrap().iter().all(|it| it["error"].is_null()));
        }
        home.settle();
        if keeps == Keeps::Disk {
            home.restart();
        }
        for idiom in ALL {
            let mut listener = Listener::away(idiom, &["h:long"], "").seen(&first);
            listener.come(&home);
            for number in 1..MESSAGES {
                let message = listener.next(&home);
                assert_eq!(message["data"]["n"], number, "{keeps:?} {idiom:?}");
                if number % 250 == 0 {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            assert_eq!(listener.rest(&home), numbers(0..0), "{keeps:?} {idiom:?}");
            assert_eq!(listener.recovered(&home).0, true);
        }
    }
}

#[test]
fn one_that_reads_slowly_gets_a_long_history_whole_and_in_order() {
    one_reads_slowly(&[]);
}

#[test]
fn a_small_outbox_is_enough_for_a_long_history() {
    one_reads_slowly(&[
        ("THRONG_LIMITS_MESSAGE_BYTES_MAX", "8KiB"),
        ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "16KiB"),
        ("THRONG_PRESENCE_LIST_BYTES_MAX", "8KiB"),
    ]);
}
