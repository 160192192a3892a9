//! Requests that wait for the application, for a back end or for the disk during an upgrade.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use protocol::mqtt::write::ConfirmType;
use serde_json::{Value, json};

use crate::application::{Act, Application};
use crate::mqtt::client::{Connect, Event, Publish, V3, V5, filter};
use crate::support::{Stream, TIMEOUT, WebSocket, json as request, receive, websocket};
use crate::upgrade::api::Api;
use crate::upgrade::member::{Publisher, numbers, websocket_at};
use crate::upgrade::node::{Node, Options, SetOnDrop, Storage};

const RULES: &str = r#"
[[topics]]
pattern = "doc:*"
join = "webhook"

[[topics]]
pattern = "order:*"
publish = "webhook"

[[topics]]
pattern = "chat:*"
publish = "ask"
history_messages_max = 100
"#;

fn node(app: &Application, more: &str, settings: &[(&'static str, &'static str)]) -> Node {
    let url = format!("[webhook]\nurl = \"{}\"\n", app.url());
    let patient =
        [("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "600000"), ("THRONG_WEBHOOK_REQUESTS_MAX", "64")];
    Node::with(Options {
        more: format!("{url}{RULES}{more}"),
        settings: [&patient, settings].concat(),
        ..Options::default()
    })
}

fn say(socket: &mut WebSocket, object: &Value) {
    socket.send(tungstenite::Message::text(object.to_string())).unwrap();
}

/// Returns the next object of this type. Others may come before.
fn next_of(socket: &mut WebSocket, kind: &str) -> Value {
    let end = std::time::Instant::now() + TIMEOUT;
    loop {
        assert!(std::time::Instant::now() < end, "no {kind} comes");
        let object = receive(socket);
        if object["type"] == kind {
            return object;
        }
    }
}

fn reply(socket: &mut WebSocket) -> Value {
    next_of(socket, "reply")
}

/// Returns the data of the next message.
fn data(socket: &mut WebSocket) -> Value {
    next_of(socket, "message")["data"].take()
}

/// An application that replies to no request until a test opens it.
struct Slow {
    app: Application,
    is_open: Arc<AtomicBool>,
    /// The number of events that the application has received.
    received: Arc<AtomicUsize>,
}

impl Slow {
    fn new() -> Self {
        let (is_open, received) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (gate, count) = (is_open.clone(), received.clone());
        let app = Application::start(move |events| {
            count.fetch_add(events.len(), Ordering::Relaxed);
            let end = std::time::Instant::now() + TIMEOUT;
            while !gate.load(Ordering::Relaxed) && std::time::Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            let reply = |event: &Value| match event["kind"].as_str() {
                Some("connect") => json!({"user": "alice"}),
                Some("message") => json!({"response": {"saved": event["payload"]}}),
                _ => json!({}),
            };
            Act::Reply(events.iter().map(reply).collect())
        });
        Slow { app, is_open, received }
    }

    /// Upgrades while `count` requests of clients wait for the application, and then opens it.
    fn upgrade(&self, node: &Node, count: usize) {
        let until_waiting = || {
            node.until(&format!("{count} requests wait"), |node| {
                node.metric("throng_webhook_waiting") == count as f64
            });
        };
        until_waiting();
        // Some events may still wait in a queue of the server.
        node.until("the application has one", |_| self.received.load(Ordering::Relaxed) > 0);
        node.upgrade();
        until_waiting();
        self.is_open.store(true, Ordering::Relaxed);
    }
}

/// The new server sends each request again, and the client gets one reply.
#[test]
fn requests_without_a_reply_are_sent_again() {
    let app = Slow::new();
    let node = node(&app.app, "", &[]);
    let mut joins = websocket(&node, "user=alice");
    say(&mut joins, &json!({"type": "subscribe", "id": 1, "topic": "doc:1"}));
    let mut phoenix = websocket_at(&node, "/socket/websocket?vsn=2.0.0&user=bob");
    say(&mut phoenix, &json!(["1", "1", "doc:1", "phx_join", {}]));
    let mut sse = Stream::new(node.connect());
    sse.send("GET /sse?topic=doc:1&user=carol HTTP/1.1\r\nHost: t\r\n\r\n");
    let mut orders = websocket(&node, "user=dora");
    say(&mut orders, &json!({"type": "publish", "id": 7, "topic": "order:1", "data": {"n": 1}}));
    let mut listener = websocket(&node, "topic=chat:1");
    let mut speaker = websocket(&node, "user=erin");
    say(&mut speaker, &json!({"type": "publish", "id": 8, "topic": "chat:1", "data": "said"}));
    let mut mqtt = [V3, V5].map(|version| {
        let mut client =
            Connect::new(version, &format!("m-{version:?}")).user("frank").open(node.client);
        client.send(&Publish { id: 9, ..Publish::new("chat:1", "by mqtt", 1) }.bytes(version));
        client
    });
    app.upgrade(&node, 7);
    let joined = reply(&mut joins);
    assert_eq!((&joined["id"], &joined["ok"]["topic"]), (&json!(1), &json!("doc:1")), "{joined}");
    assert_eq!(receive(&mut phoenix)[4]["status"], "ok");
    assert!(sse.head().starts_with("HTTP/1.1 200 "));
    let ordered = reply(&mut orders);
    assert_eq!((&ordered["id"], &ordered["ok"]["saved"]["n"]), (&json!(7), &json!(1)), "{ordered}");
    assert!(reply(&mut speaker)["ok"]["id"].is_string());
    for client in &mut mqtt {
        client.expect_events(&[Event::Confirm("PUBACK", 9, 0)]);
        client.is_quiet();
    }
    // The server publishes each message once that the application has allowed.
    let mut received: Vec<Value> = (0..3).map(|_| data(&mut listener)).collect();
    received.sort_by_key(ToString::to_string);
    assert_eq!(received, [json!("by mqtt"), json!("by mqtt"), json!("said")]);
    node.publish("doc:1", json!("for members"));
    assert_eq!(data(&mut joins), "for members");
    assert_eq!(sse.data(), "for members");
    node.publish("chat:1", json!("last"));
    assert_eq!(data(&mut listener), "last");
}

#[test]
fn connects_that_wait_for_the_application_go_on() {
    let app = Slow::new();
    let node = node(&app.app, "", &[("THRONG_WEBHOOK_CONNECT", "true")]);
    let url = format!("ws://{}/ws", node.client);
    let socket = node.connect();
    let handshake = std::thread::spawn(move || tungstenite::client(url, socket).unwrap().0);
    let mut stream = Stream::new(node.connect());
    stream.send("GET /stream?topic=h:a HTTP/1.1\r\nHost: t\r\n\r\n");
    app.upgrade(&node, 2);
    let welcome = receive(&mut handshake.join().unwrap());
    assert_eq!(welcome["users"], json!(["alice"]), "{welcome}");
    assert!(stream.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(stream.object()["users"], json!(["alice"]));
}

/// An upgrade causes no events about clients that come or go.
#[test]
fn the_application_gets_no_event_of_departures() {
    let app = Application::replying(|_| json!({}));
    let rule = "[[topics]]\npattern = \"watched:*\"\nevents = true\n";
    let events = "connected,disconnected,joined,left,occupied,vacated";
    let node = node(
        &app,
        rule,
        &[("THRONG_WEBHOOK_EVENTS", events), ("THRONG_WEBHOOK_OCCUPANCY_MILLISECONDS", "100")],
    );
    let kinds = || -> Vec<String> {
        let mut all: Vec<String> =
            app.events().iter().map(|it| it["kind"].as_str().unwrap().into()).collect();
        all.sort();
        all
    };
    let count = |kind: &str| kinds().iter().filter(|it| *it == kind).count();
    let socket = websocket(&node, "user=alice&topic=watched:1");
    let has_come =
        |times| ["connected", "joined", "occupied"].iter().all(|kind| count(kind) >= times);
    app.until("she has come", |_| has_come(1));
    node.upgrade();
    drop(socket);
    app.until("she has left", |_| {
        ["disconnected", "left", "vacated"].iter().all(|kind| count(kind) >= 1)
    });
    // All earlier events arrive before these.
    let _last = websocket(&node, "user=zoe&topic=watched:2");
    app.until("the last user has come", |_| has_come(2));
    let mut expected = ["connected", "joined", "occupied"].repeat(2);
    expected.extend(["disconnected", "left", "started", "vacated"]);
    expected.sort_unstable();
    assert_eq!(kinds(), expected);
}

/// A back end rejects messages of the old server. The new server has these messages, and forwards them.
#[test]
fn the_new_server_forwards_what_a_back_end_has_not_taken() {
    let is_open = Arc::new(AtomicBool::new(false));
    let seen = is_open.clone();
    let app = Application::start(move |_| {
        let status = if seen.load(Ordering::Relaxed) { 200 } else { 503 };
        Act::Raw(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"))
    });
    for version in [V3, V5] {
        is_open.store(false, Ordering::Relaxed);
        let rule = format!("[[forward]]\nfilter = \"requests/#\"\nurl = \"{}\"\n", app.url());
        let node = Node::with(Options { more: rule, ..Options::default() });
        let mut member = Connect::new(version, "member").open(node.client);
        member.subscribe(&[filter("requests/+", 1)]);
        let mut client = Connect::new(version, "pump").open(node.client);
        let one = Publish { id: 7, ..Publish::new("requests/1", "first", 1) }.bytes(version);
        let two = Publish { id: 8, ..Publish::new("requests/1", "second", 2) }.bytes(version);
        client.send(&[one, two].concat());
        let before = app.events().len();
        app.until("it was offered", |events| events.len() > before);
        client.is_quiet();
        node.upgrade();
        client.is_quiet();
        member.is_quiet();
        is_open.store(true, Ordering::Relaxed);
        client.expect_events(&[Event::Confirm("PUBACK", 7, 0), Event::Confirm("PUBREC", 8, 0)]);
        client.confirm(ConfirmType::Pubrel, 8);
        client.expect_events(&[Event::Confirm("PUBCOMP", 8, 0)]);
        assert_eq!([member.message().payload, member.message().payload], ["first", "second"]);
        member.is_quiet();
        let of_first: Vec<Value> =
            app.events().into_iter().skip(before).filter(|it| it["data"] == "first").collect();
        assert!(of_first.windows(2).all(|two| two[0]["id"] == two[1]["id"]), "{of_first:?}");
    }
}

/// A publisher that waits for the disk gets a response, and every message with a response is on disk.
#[test]
fn durable_publishes_are_served_once_they_are_on_disk() {
    let node = Node::new(Storage::Disk);
    let counts: [AtomicUsize; 4] = Default::default();
    let stop = AtomicBool::new(false);
    let publish = |at: usize| {
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) && number < Publisher::MESSAGES_MAX {
            let body = json!({"topic": "d:a", "data": format!("{at}.{number}")});
            let (status, outcome) = request(node.admin, "POST", "/api/publish", Some(body), "");
            assert_eq!(status, 200, "{outcome}");
            number += 1;
            counts[at].store(number, Ordering::Relaxed);
        }
    };
    let publish = &publish;
    std::thread::scope(|scope| {
        let publishers: Vec<_> = (0..4).map(|at| scope.spawn(move || publish(at))).collect();
        let guard = SetOnDrop(&stop);
        for _ in 0..3 {
            let expected = counts.each_ref().map(|count| count.load(Ordering::Relaxed) + 5);
            node.until("each has published some more", |_| {
                let reached = |(count, expected): (&AtomicUsize, usize)| {
                    count.load(Ordering::Relaxed) >= expected.min(Publisher::MESSAGES_MAX)
                };
                counts.iter().zip(expected).all(reached)
            });
            node.upgrade();
        }
        drop(guard);
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
    });
    let stored = Api::new(node.admin).history("d:a");
    for (at, count) in counts.iter().map(|count| count.load(Ordering::Relaxed)).enumerate() {
        let mine = stored.iter().filter_map(|it| it.strip_prefix(&format!("{at}.")));
        assert_eq!(mine.collect::<Vec<_>>(), numbers(0..count), "publisher {at}");
    }
}
