//! Slow consumers of topics with `conflate`: the server does not close a client that stalls, and the client gets the
//! newest message of each key when it reads again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::*;
use serde_json::{Value, json};

/// The number of keys, and the bytes of each message.
const KEYS: usize = 10;
const BYTES: usize = 8_000;
const ROUNDS: usize = 60;

const RULES: &str = "[[topics]]\npattern = \"price*\"\nconflate = true\n\
                     [[topics]]\npattern = \"kept*\"\nconflate = true\nhistory_messages_max = 5000\n\
                     history_bytes_max = \"64MiB\"\n\
                     [[topics]]\npattern = \"also*\"\nhistory_messages_max = 5000\n\
                     history_bytes_max = \"64MiB\"\n";

fn server() -> Server {
    let settings = [
        ("THRONG_SOCKET_SEND_BUFFER_BYTES", "8KiB"),
        ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "128KiB"),
        ("THRONG_LIMITS_OUTBOX_MESSAGES_MAX", "20"),
    ];
    let scratch = Scratch::new("conflate");
    let file = scratch.write("throng.toml", RULES);
    Server::with(&["--shards", "1", "--config", file.to_str().unwrap()], &settings)
}

fn publish(server: &Server, topic: &str, key: usize, round: usize) {
    let data = json!({"key": key, "round": round, "rest": "x".repeat(BYTES)});
    let message = json!({"topic": topic, "key": format!("k{key}"), "data": data});
    server.post("/api/publish", message);
}

/// Publishes far more than a client's outbox takes. Each round begins when a quick client has got the round before.
fn flood(server: &Server, topic: &str, quick: &AtomicUsize) {
    for round in 0..ROUNDS {
        (0..KEYS).for_each(|key| publish(server, topic, key, round));
        server.until("the quick client has got the round", |_| {
            quick.load(Ordering::Relaxed) >= (round + 1) * KEYS
        });
    }
}

/// Records the payload of a message. Returns true for the last message of the last key.
fn note(seen: &mut BTreeMap<u64, Vec<u64>>, data: &Value) -> bool {
    let (key, round) = (data["key"].as_u64().unwrap(), data["round"].as_u64().unwrap());
    seen.entry(key).or_default().push(round);
    key == KEYS as u64 - 1 && round == ROUNDS as u64 - 1
}

/// Checks that each key's messages came in order and up to the newest, and that the server left out most messages in
/// between.
fn check(seen: &BTreeMap<u64, Vec<u64>>, what: &str) {
    assert_eq!(seen.len(), KEYS, "{what}: {seen:?}");
    for rounds in seen.values() {
        assert_eq!(rounds.last(), Some(&(ROUNDS as u64 - 1)), "{what}: {seen:?}");
        assert!(rounds.windows(2).all(|pair| pair[0] < pair[1]), "{what}: {seen:?}");
    }
    let came: usize = seen.values().map(Vec::len).sum();
    assert!(came < KEYS * ROUNDS * 9 / 10, "{what}: {came} of {} came", KEYS * ROUNDS);
}

fn read_sse(stream: &mut Stream) -> BTreeMap<u64, Vec<u64>> {
    let mut seen = BTreeMap::new();
    while !note(&mut seen, &serde_json::from_str(&stream.data()).unwrap()) {}
    seen
}

#[test]
fn who_stalls_gets_the_newest_of_each_key_on_every_transport() {
    let server = server();
    for topic in ["price", "kept"] {
        let mut quick = server.listen(&format!("/stream?topic={topic}"));
        let mut sse = server.listen(&format!("/sse?topic={topic}"));
        let mut stream = server.listen(&format!("/stream?topic={topic}"));
        let mut socket = websocket(&server, &format!("topic={topic}"));
        let url = format!("ws://{}/socket/websocket?vsn=2.0.0", server.client);
        let (mut phoenix, _) = tungstenite::client(url, server.connect()).unwrap();
        let join = json!(["1", "2", topic, "phx_join", {}]).to_string();
        phoenix.send(tungstenite::Message::text(join)).unwrap();
        assert_eq!(receive(&mut phoenix)[4]["status"], "ok");
        server.until_members(topic, 5);
        let got = Arc::new(AtomicUsize::new(0));
        let all = got.clone();
        let reader = std::thread::spawn(move || {
            loop {
                let object = quick.object();
                if object["topic"].is_string() {
                    all.fetch_add(1, Ordering::Relaxed);
                    if note(&mut BTreeMap::new(), &object["data"]) {
                        return;
                    }
                }
            }
        });
        // The client that keeps up gets every message.
        flood(&server, topic, &got);
        reader.join().unwrap();
        assert_eq!(got.load(Ordering::Relaxed), KEYS * ROUNDS);
        // All four other clients have stalled. Each uses no more than an outbox and one message of each key.
        let memory = server.metric("throng_outbox_memory_bytes");
        assert!(memory < 4.0 * 256_000.0, "{memory}");
        assert!(server.metric("throng_messages_conflated_total") > 100.0);
        check(&read_sse(&mut sse), "sse");
        let mut seen = BTreeMap::new();
        loop {
            let object = stream.object();
            if object["topic"].is_string() && note(&mut seen, &object["data"]) {
                break;
            }
        }
        check(&seen, "stream");
        let mut seen = BTreeMap::new();
        loop {
            let object = receive(&mut socket);
            if object["type"] == "message" && note(&mut seen, &object["data"]) {
                break;
            }
        }
        check(&seen, "ws");
        let mut seen = BTreeMap::new();
        while !note(&mut seen, &receive(&mut phoenix)[4]) {}
        check(&seen, "phoenix");
        // The client then goes on as before.
        publish(&server, topic, 0, 1_000);
        let data: Value = serde_json::from_str(&sse.data()).unwrap();
        assert_eq!(data["round"], 1_000);
    }
    assert_eq!(server.metric("throng_slow_consumers_closed_total"), 0.0);
}

#[test]
fn a_client_that_comes_back_misses_no_key() {
    let server = server();
    // The client is cut off at several points, with ids of another topic in between.
    for cut in [2, 3, 12, 25] {
        let topic = format!("kept:{cut}");
        let target = format!("/sse?topic={topic}&topic=also:{cut}");
        let mut sse = server.listen(&target);
        for round in 0..ROUNDS {
            (0..KEYS).for_each(|key| publish(&server, &topic, key, round));
            // All messages of this topic must arrive, since it does not conflate.
            if round % 20 == 0 {
                server.publish(&format!("also:{cut}"), json!({"also": round}));
            }
        }
        let mut state: BTreeMap<u64, u64> = BTreeMap::new();
        let mut also = BTreeSet::new();
        let mut take = |data: &str| {
            let data: Value = serde_json::from_str(data).unwrap();
            match data["also"].as_u64() {
                Some(round) => {
                    also.insert(round);
                }
                // The notice about the recovery itself.
                None if data["recovered"].is_boolean() => assert_eq!(data["recovered"], true),
                None => {
                    let (key, round) = (data["key"].as_u64(), data["round"].as_u64().unwrap());
                    let before = state.insert(key.unwrap(), round);
                    assert!(before.is_none_or(|before| before <= round), "it never goes back");
                }
            }
            also.len() == ROUNDS / 20
                && state.len() == KEYS
                && state.values().all(|it| *it == ROUNDS as u64 - 1)
        };
        let mut last = String::new();
        for _ in 0..cut {
            let event = sse.event();
            if let Some((_, data)) = event.iter().find(|(field, _)| field == "data") {
                take(data);
            }
            if let Some((_, id)) = event.iter().find(|(field, _)| field == "id") {
                last.clone_from(id);
            }
        }
        drop(sse);
        let mut again = Stream::new(server.connect());
        again.send(&format!("GET {target} HTTP/1.1\r\nHost: t\r\nLast-Event-ID: {last}\r\n\r\n"));
        assert!(again.head().starts_with("HTTP/1.1 200"));
        while !take(&again.data()) {}
    }
}
