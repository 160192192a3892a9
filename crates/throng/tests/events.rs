//! The application is told who comes and goes: every event, for every transport, in order, at least
//! once, also when it is away and when the server is killed.

mod application;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use application::{Act, Application};
use serde_json::{Value, json};
use support::{Server, command, header, websocket};

fn serve(url: &str, settings: &[(&str, &str)], data: Option<&Path>) -> Server {
    let topics = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hooks/events.toml");
    let mut throng = Command::new(env!("CARGO_BIN_EXE_throng"));
    throng.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
    throng.arg(topics);
    if let Some(data) = data {
        throng.arg("--data").arg(data);
    }
    Server::run(throng, &[&[("THRONG_WEBHOOK_URL", url)], settings].concat())
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["kind"].as_str().unwrap()).collect()
}

fn of<'a>(events: &'a [Value], user: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["user"] == user).collect()
}

#[test]
fn every_transport_that_stays_is_heard_to_come_and_go() {
    let app = Application::replying(|_| json!({}));
    let server = serve(&app.url(), &[], None);
    let sse = server.listen("/sse?user=sse&topic=room:1&topic=quiet:1");
    let stream = server.listen("/stream?user=stream&topic=room:1");
    let mut ws = websocket(&server, "user=ws");
    command(&mut ws, json!({"type": "subscribe", "id": 1, "topic": "room:1"}));
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0&user=phoenix", server.client);
    let (mut phoenix, _) = tungstenite::client(url.as_str(), server.connect()).unwrap();
    let join = r#"["1","1","room:1","phx_join",{}]"#;
    phoenix.send(tungstenite::Message::text(join)).unwrap();
    phoenix.read().unwrap();
    // A session of long polls stays, too; a poll does not.
    let (_, body) = server.get("/socket/longpoll?vsn=2.0.0&user=session");
    assert!(body["token"].is_string(), "{body}");
    assert_eq!(server.get("/poll?user=poll&topic=room:1&timeout=0").0, 200);
    command(&mut ws, json!({"type": "unsubscribe", "id": 2, "topic": "room:1"}));
    drop((sse, stream, phoenix));
    server.post("/api/disconnect", json!({"user": "ws"}));
    let events = app.until("four are gone", |events| {
        kinds(events).iter().filter(|kind| **kind == "disconnected").count() == 4
    });
    assert_eq!(events[0]["kind"], "started");
    let node = events[0]["node"].as_str().unwrap();
    for (user, transport, reason) in [
        ("sse", "sse", "client"),
        ("stream", "stream", "client"),
        ("ws", "ws", "application"),
        ("phoenix", "phoenix", "client"),
    ] {
        let of = of(&events, user);
        let kinds: Vec<_> = of.iter().map(|event| event["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["connected", "joined", "left", "disconnected"], "{user}: {of:#?}");
        for event in &of {
            assert_eq!((&event["transport"], &event["users"]), (&json!(transport), &json!([user])));
            assert!(event["connection"].as_str().unwrap().starts_with(node), "{event}");
            assert!(event["time"].as_u64().unwrap() > 1_600_000_000_000);
        }
        assert_eq!((&of[1]["topic"], &of[2]["topic"]), (&json!("room:1"), &json!("room:1")));
        let end = of[3];
        assert!(end["seconds"].is_u64(), "{end}");
        assert!(end["reason"] == reason || end["reason"] == "lost", "{end}");
    }
    let session = of(&events, "session");
    assert_eq!(session[0]["kind"], "connected", "{session:?}");
    assert!(of(&events, "poll").is_empty() && !events.iter().any(|it| it["topic"] == "quiet:1"));
    // Numbers grow, and each is there once.
    let ids: Vec<u64> =
        events.iter().map(|it| it["id"].as_str().unwrap().parse().unwrap()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
    assert_eq!(server.metric("throng_webhook_told_waiting"), 0.0);
}

#[test]
fn a_topic_is_occupied_and_vacated_when_it_stays_so() {
    let app = Application::replying(|_| json!({}));
    let server = serve(&app.url(), &[("THRONG_WEBHOOK_OCCUPANCY_MILLISECONDS", "400")], None);
    let said = |app: &Application| -> Vec<(String, String)> {
        let events = app.of(&["occupied", "vacated"]);
        let text = |event: &Value, key: &str| event[key].as_str().unwrap().to_string();
        events.iter().map(|event| (text(event, "kind"), text(event, "topic"))).collect()
    };
    let word = |kind: &str, topic: &str| (kind.to_string(), topic.to_string());
    // Over all shards, and by whatever transport.
    let members: Vec<_> = (0..12).map(|_| server.listen("/sse?topic=room:1")).collect();
    // Too short.
    drop(server.listen("/sse?topic=room:2"));
    app.until("it is occupied", |_| !said(&app).is_empty());
    assert_eq!(said(&app), [word("occupied", "room:1")]);
    let one = server.listen("/stream?topic=room:1");
    drop(members);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(said(&app).len(), 1, "one is there");
    // A page that is loaded anew.
    drop(one);
    std::thread::sleep(Duration::from_millis(100));
    let again = server.listen("/sse?topic=room:1");
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(said(&app).len(), 1);
    drop(again);
    app.until("it is vacated", |_| said(&app).len() == 2);
    assert_eq!(said(&app)[1], word("vacated", "room:1"));
    // Polls come and go, and their topic stays.
    let mut polls = support::Stream::new(server.connect());
    for _ in 0..3 {
        polls.send("GET /poll?topic=room:3&timeout=1 HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_eq!(polls.answer().0, 200);
    }
    app.until("it is vacated", |_| said(&app).len() == 4);
    assert_eq!(said(&app)[2..], [word("occupied", "room:3"), word("vacated", "room:3")]);
}

/// An application that is away, in error, slow and back again misses nothing and gets all in order.
#[test]
fn events_come_at_least_once_and_in_order() {
    let tries = Arc::new(AtomicUsize::new(0));
    let seen = tries.clone();
    let app = Application::start(move |_| match seen.fetch_add(1, Ordering::Relaxed) % 5 {
        1 => Act::Raw("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".into()),
        2 => Act::Raw(String::new()),
        3 => Act::Hang,
        _ => Act::Raw("HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\nok".into()),
    });
    let settings =
        [("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "300"), ("THRONG_WEBHOOK_BATCH_EVENTS_MAX", "40")];
    let server = serve(&app.url(), &settings, None);
    for n in 0..60 {
        let mut socket = websocket(&server, &format!("user=u{}", n % 7));
        command(&mut socket, json!({"type": "subscribe", "id": 1, "topic": "room:1"}));
    }
    server.until("all are taken", |server| {
        server.metric("throng_webhook_told_waiting") == 0.0
            && server.metric("throng_webhook_told_total{result=\"taken\"}") >= 241.0
    });
    assert!(server.metric("throng_webhook_told_failed_total") >= 3.0);
    // Without what came more than once.
    let mut once: BTreeMap<u64, Value> = BTreeMap::new();
    for event in app.events() {
        let id = event["id"].as_str().unwrap().parse().unwrap();
        let before = once.insert(id, event.clone());
        assert!(before.is_none_or(|before| before == event));
    }
    // The same request has the same id each time, and one with others another.
    let mut bodies: BTreeMap<String, String> = BTreeMap::new();
    for request in app.requests.lock().unwrap().iter() {
        let id = header(&request.head, "webhook-id").unwrap().to_string();
        let before = bodies.insert(id, request.body.clone());
        assert!(before.is_none_or(|before| before == request.body));
    }
    let mut at: BTreeMap<String, &str> = BTreeMap::new();
    for event in once.values().filter(|event| event["connection"].is_string()) {
        let connection = event["connection"].as_str().unwrap().to_string();
        let kind = event["kind"].as_str().unwrap();
        let before = match kind {
            "connected" => None,
            "joined" => Some("connected"),
            "left" => Some("joined"),
            "disconnected" => Some("left"),
            other => panic!("{other}"),
        };
        assert_eq!(at.insert(connection, kind.to_string().leak()), before, "{event}");
    }
    assert_eq!(at.len(), 60);
}

#[test]
fn what_does_not_fit_is_dropped_and_the_application_is_told_so() {
    let away = Arc::new(AtomicBool::new(true));
    let gone = away.clone();
    let app = Application::start(move |events| match gone.load(Ordering::Relaxed) {
        true => Act::Raw("HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n".into()),
        false => Act::Reply(events.iter().map(|_| json!({})).collect()),
    });
    let settings = [("THRONG_WEBHOOK_EVENT_QUEUE_EVENTS_MAX", "10")];
    let server = serve(&app.url(), &settings, None);
    for _ in 0..20 {
        drop(server.listen("/sse?topic=room:1"));
    }
    let full = |server: &Server| server.metric("throng_webhook_told_total{result=\"full\"}");
    server.until("events are dropped", |server| full(server) >= 60.0);
    assert_eq!(server.metric("throng_webhook_told_waiting"), 10.0);
    assert!(server.metric("throng_webhook_told_oldest_seconds") < 60.0);
    away.store(false, Ordering::Relaxed);
    server.until("the rest is taken", |server| server.metric("throng_webhook_told_waiting") == 0.0);
    let lost = || -> u64 {
        let requests = app.requests.lock().unwrap();
        // One that was not taken comes again as it was.
        let bodies: BTreeSet<String> = requests.iter().map(|it| it.body.clone()).collect();
        let read = |body: &String| serde_json::from_str::<Value>(body).unwrap()["lost"].as_u64();
        bodies.iter().filter_map(read).sum()
    };
    let _one = server.listen("/sse");
    app.until("it is told how many are lost", |_| lost() as f64 == full(&server));
    let _other = server.listen("/sse?user=zed");
    app.until("one more comes", |events| !of(events, "zed").is_empty());
    let requests = app.requests.lock().unwrap();
    let last = requests.iter().find(|it| it.body.contains("zed")).unwrap();
    assert!(!last.body.contains("lost"), "it is told once: {}", last.body);
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("throng-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The application is away; the server is killed with events in its queue, and starts again.
#[test]
fn events_survive_a_kill_in_the_store() {
    let folder = Folder::new("events-kill");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let mut held: Vec<support::WebSocket> = Vec::new();
    for round in 0..3 {
        let server = serve(&url, &[], Some(&folder.0));
        for n in 0..10 {
            let mut socket = websocket(&server, &format!("user=r{round}n{n}"));
            command(&mut socket, json!({"type": "subscribe", "id": 1, "topic": "room:1"}));
            held.push(socket);
        }
        // What was told is on disk as soon as the next commit is.
        std::thread::sleep(Duration::from_millis(400));
        server.signal("-KILL");
        drop(server);
    }
    // Nobody has answered yet: the connections wait in the listener's queue.
    let app = Application::on(listener, |_| Act::Raw("HTTP/1.1 204 No\r\n\r\n".into()));
    let server = serve(&url, &[], Some(&folder.0));
    let events = app.until("all of them come", |events| {
        let joined = events.iter().filter(|event| event["kind"] == "joined");
        let users: BTreeSet<_> = joined.map(|event| event["user"].to_string()).collect();
        // What earlier runs had sent waited with the application, too.
        let starts = events.iter().filter(|event| event["kind"] == "started");
        let starts: BTreeSet<_> = starts.map(|event| event["id"].to_string()).collect();
        users.len() == 30 && starts.len() == 4
    });
    let mut once: BTreeMap<u64, &Value> = BTreeMap::new();
    for event in &events {
        once.insert(event["id"].as_str().unwrap().parse().unwrap(), event);
    }
    let ordered: Vec<&Value> = once.into_values().collect();
    let users = |kind: &str| -> Vec<String> {
        let of = ordered.iter().filter(|event| event["kind"] == kind);
        of.map(|event| event["user"].as_str().unwrap().to_string()).collect()
    };
    let want: Vec<String> =
        (0..3).flat_map(|round| (0..10).map(move |n| format!("r{round}n{n}"))).collect();
    assert_eq!((users("connected"), users("joined")), (want.clone(), want));
    let starts = ordered.iter().filter(|event| event["kind"] == "started").count();
    assert_eq!(starts, 4, "each run says that it begins: those of the ones before are gone");
    server.until("all are taken", |server| server.metric("throng_webhook_told_waiting") == 0.0);
    std::thread::sleep(Duration::from_millis(400));
    server.signal("-KILL");
    drop(server);
    // What was taken is not told again.
    let before = app.events().len();
    let _server = serve(&url, &[], Some(&folder.0));
    app.until("it has begun", |events| events.len() > before);
    std::thread::sleep(Duration::from_millis(300));
    let after = app.events();
    assert_eq!(kinds(&after[before..]), ["started"]);
}

/// A server that stops says who has gone before it ends, or leaves it in the store.
#[test]
fn a_server_that_stops_tells_who_was_there() {
    let app = Application::replying(|_| json!({}));
    let mut server = serve(&app.url(), &[], None);
    let mut sockets: Vec<_> =
        (0..5).map(|n| websocket(&server, &format!("user=u{n}&topic=room:1"))).collect();
    server.signal("-TERM");
    for socket in &mut sockets {
        while socket.read().is_ok() {}
    }
    assert!(server.child.wait().unwrap().success());
    let events = app.events();
    let gone: Vec<_> = events.iter().filter(|event| event["kind"] == "disconnected").collect();
    assert_eq!(gone.len(), 5);
    assert!(gone.iter().all(|event| event["reason"] == "drain"), "{gone:?}");
    let topics: Vec<_> = app.of(&["occupied", "vacated"]);
    assert!(topics.len().is_multiple_of(2), "what was occupied is vacated: {topics:?}");
}

/// Settings are read again: what is wanted, and which topics are followed.
#[test]
fn what_is_told_changes_with_the_configuration() {
    let app = Application::replying(|_| json!({}));
    let folder = Folder::new("events-reload");
    std::fs::create_dir_all(&folder.0).unwrap();
    let write = |events: &str, followed: bool| {
        let text = format!(
            "[webhook]\nurl = \"{}\"\nevents = {events}\noccupancy_milliseconds = 50\n\
             [[topics]]\npattern = \"room:*\"\nevents = {followed}\n",
            app.url()
        );
        std::fs::write(folder.0.join("throng.toml"), text).unwrap();
    };
    write("[]", false);
    let mut throng = Command::new(env!("CARGO_BIN_EXE_throng"));
    throng.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let server = Server::run_in(&folder.0, throng, &[], std::process::Stdio::inherit());
    let _one = server.listen("/sse?topic=room:1");
    std::thread::sleep(Duration::from_millis(200));
    assert!(app.events().is_empty());
    write("[\"joined\", \"occupied\", \"vacated\"]", true);
    server.signal("-HUP");
    app.until("the topic is occupied", |events| {
        events.iter().any(|event| event["kind"] == "occupied" && event["topic"] == "room:1")
    });
    let mut socket = websocket(&server, "user=alice");
    let seen = Mutex::new(0);
    server.until("the new rules are in force", |_| {
        *seen.lock().unwrap() += 1;
        let topic = format!("room:{}", seen.lock().unwrap());
        command(&mut socket, json!({"type": "subscribe", "id": 1, "topic": topic}));
        app.events().iter().any(|event| event["kind"] == "joined")
    });
    assert!(app.of(&["connected", "disconnected", "left"]).is_empty());
    write("[\"joined\", \"occupied\", \"vacated\"]", false);
    server.signal("-HUP");
    app.until("nothing is followed any more", |events| {
        events.iter().any(|event| event["kind"] == "vacated" && event["topic"] == "room:1")
    });
}
