//! Webhook events about clients that come and go: every event, for every transport, in order, and at least once, even
//! if the application is away or the server is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::application::{Act, Application};
use crate::support::{Scratch, Server, command, header, wait_within, websocket};
use serde_json::{Value, json};

fn serve(url: &str, settings: &[(&str, &str)], data: Option<&Path>) -> Server {
    let topics = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hooks/events.toml");
    let mut throng = Command::new(env!("CARGO_BIN_EXE_throng"));
    throng.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
    throng.arg(topics);
    if let Some(data) = data {
        throng.arg("--data").arg(data);
    }
    // With this timeout the server waits for an application on a slow machine.
    let patient = ("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "60000");
    Server::run(throng, &[&[("THRONG_WEBHOOK_URL", url), patient], settings].concat())
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["kind"].as_str().unwrap()).collect()
}

fn of<'a>(events: &'a [Value], user: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["user"] == user).collect()
}

#[test]
fn every_transport_that_stays_is_reported_to_come_and_go() {
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
    // A long-poll session is reported, too; a poll is not.
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
    // The ids grow, and each event came once.
    let ids: Vec<u64> =
        events.iter().map(|it| it["id"].as_str().unwrap().parse().unwrap()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
    server.until("all are taken", |server| server.metric("throng_webhook_told_waiting") == 0.0);
}

/// How long a topic stays occupied, or vacated, before the server notifies the application.
const OCCUPANCY: Duration = Duration::from_millis(700);

/// Returns the kinds of the events about whether a topic is occupied.
fn occupancy_of(app: &Application, topic: &str) -> Vec<String> {
    let mut events = app.of(&["occupied", "vacated"]);
    events.retain(|event| event["topic"] == topic);
    events.iter().map(|event| event["kind"].as_str().unwrap().to_string()).collect()
}

/// Waits until the application has all events that are due by now. This function occupies another topic, whose event
/// comes after them.
fn until_notified(app: &Application, server: &Server) -> crate::support::Stream {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let topic = format!("room:end{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let member = server.listen(&format!("/sse?topic={topic}"));
    app.until("the events that are due have come", |_| !occupancy_of(app, &topic).is_empty());
    member
}

#[test]
fn a_topic_is_occupied_and_vacated_when_it_stays_so() {
    let app = Application::replying(|_| json!({}));
    let milliseconds = OCCUPANCY.as_millis().to_string();
    let server =
        serve(&app.url(), &[("THRONG_WEBHOOK_OCCUPANCY_MILLISECONDS", &milliseconds)], None);
    // The members are on all shards.
    let members: Vec<_> = (0..12).map(|_| server.listen("/sse?topic=room:1")).collect();
    // This topic is occupied for less than `OCCUPANCY`, so it causes no event. A slow machine needs several attempts.
    let short = (0..20).map(|n| format!("room:short{n}")).find(|topic| {
        let end = Instant::now() + OCCUPANCY;
        drop(server.listen(&format!("/sse?topic={topic}")));
        server.until_members(topic, 0);
        Instant::now() < end
    });
    let _member = until_notified(&app, &server);
    assert_eq!(occupancy_of(&app, "room:1"), ["occupied"]);
    assert!(occupancy_of(&app, &short.expect("this machine is too slow")).is_empty());
    let one = server.listen("/stream?topic=room:1");
    drop(members);
    server.until_members("room:1", 1);
    let _member = until_notified(&app, &server);
    assert_eq!(occupancy_of(&app, "room:1"), ["occupied"], "one is there");
    // Like a page that reloads. A slow machine needs several attempts.
    let mut page = one;
    let is_unnoticed = (0..20).any(|_| {
        let before = occupancy_of(&app, "room:1");
        let end = Instant::now() + OCCUPANCY;
        drop(std::mem::replace(&mut page, server.listen("/sse?topic=none")));
        server.until_members("room:1", 0);
        page = server.listen("/sse?topic=room:1");
        let is_quick = Instant::now() < end;
        drop(until_notified(&app, &server));
        let after = occupancy_of(&app, "room:1");
        assert!(!is_quick || after == before, "{after:?}");
        is_quick
    });
    assert!(is_unnoticed, "this machine is too slow");
    drop(page);
    app.until("it is vacated", |_| occupancy_of(&app, "room:1").last().unwrap() == "vacated");
    // Polls come and go, and their topic stays occupied.
    let mut polls = crate::support::Stream::new(server.connect());
    polls.send(&"GET /poll?topic=room:3&timeout=1 HTTP/1.1\r\nHost: t\r\n\r\n".repeat(3));
    for _ in 0..3 {
        assert_eq!(polls.read_reply().0, 200);
    }
    app.until("it is vacated", |_| occupancy_of(&app, "room:3").contains(&"vacated".to_string()));
    assert_eq!(occupancy_of(&app, "room:3"), ["occupied", "vacated"]);
}

/// An application that is away, fails, is slow, and comes back gets all events in order.
#[test]
fn events_come_at_least_once_and_in_order() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let seen = attempts.clone();
    let app = Application::start(move |_| match seen.fetch_add(1, Ordering::Relaxed) % 5 {
        1 => Act::Raw("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".into()),
        2 => Act::Raw(String::new()),
        3 => Act::Hang,
        _ => Act::Raw("HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\nok".into()),
    });
    let settings = [
        ("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "1000"),
        ("THRONG_WEBHOOK_BATCH_EVENTS_MAX", "40"),
    ];
    let server = serve(&app.url(), &settings, None);
    for n in 0..30 {
        let mut socket = websocket(&server, &format!("user=u{}", n % 7));
        command(&mut socket, json!({"type": "subscribe", "id": 1, "topic": "room:1"}));
    }
    server.until("all are taken", |server| {
        server.metric("throng_webhook_told_waiting") == 0.0
            && server.metric("throng_webhook_told_total{result=\"taken\"}") >= 121.0
    });
    assert!(server.metric("throng_webhook_told_failed_total") >= 3.0);
    // Removes events that came more than once.
    let mut once: BTreeMap<u64, Value> = BTreeMap::new();
    for event in app.events() {
        let id = event["id"].as_str().unwrap().parse().unwrap();
        let before = once.insert(id, event.clone());
        assert!(before.is_none_or(|before| before == event));
    }
    // A request with the same events has the same id each time, and a request with other events another id.
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
    assert_eq!(at.len(), 30);
}

#[test]
fn what_does_not_fit_is_dropped_and_the_application_is_notified() {
    let away = Arc::new(AtomicBool::new(true));
    let gone = away.clone();
    let app = Application::start(move |events| match gone.load(Ordering::Relaxed) {
        true => Act::Raw("HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n".into()),
        false => Act::Reply(events.iter().map(|_| json!({})).collect()),
    });
    let settings = [("THRONG_WEBHOOK_EVENT_QUEUE_EVENTS_MAX", "10")];
    let begun = Instant::now();
    let server = serve(&app.url(), &settings, None);
    for _ in 0..20 {
        drop(server.listen("/sse?topic=room:1"));
    }
    let full = |server: &Server| server.metric("throng_webhook_told_total{result=\"full\"}");
    server.until("events are dropped", |server| full(server) >= 60.0);
    assert_eq!(server.metric("throng_webhook_told_waiting"), 10.0);
    let oldest_seconds = server.metric("throng_webhook_told_oldest_seconds");
    assert!(oldest_seconds <= begun.elapsed().as_secs_f64(), "{oldest_seconds}");
    away.store(false, Ordering::Relaxed);
    server.until("the rest is taken", |server| server.metric("throng_webhook_told_waiting") == 0.0);
    let lost = || -> u64 {
        let requests = app.requests.lock().unwrap();
        // A failed request comes again with the same body.
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

/// The application is away; the server is killed with events in its queue, and starts again.
#[test]
fn events_survive_a_kill_in_the_store() {
    let folder = Scratch::new("events-kill");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let mut open: Vec<crate::support::WebSocket> = Vec::new();
    let events = ("THRONG_WEBHOOK_EVENTS", "connected,disconnected,joined,left");
    let serve = || serve(&url, &[events], Some(folder.path()));
    let until_written = |server: &Server, name: &str| {
        // The control thread collects events for ten milliseconds before it passes them on to the store.
        std::thread::sleep(Duration::from_millis(100));
        for at in 0..2 {
            // The control thread passes on the events and these changes in order. So when the second change is on
            // disk, all events before it are, too.
            let topic = format!("{name}:{at}");
            server.post("/api/subscriptions", json!({"user": "none", "add": [topic]}));
        }
    };
    for round in 0..3 {
        let server = serve();
        for n in 0..10 {
            let mut socket = websocket(&server, &format!("user=r{round}n{n}"));
            command(&mut socket, json!({"type": "subscribe", "id": 1, "topic": "room:1"}));
            open.push(socket);
        }
        let events = f64::from(21 * (round + 1));
        server.until("the events wait", |server| {
            server.metric("throng_webhook_told_waiting") == events
        });
        until_written(&server, &format!("round{round}"));
        server.signal("-KILL");
        drop(server);
    }
    // The application has not responded yet: the connections wait in the listener's queue.
    let app = Application::on(listener, |_| Act::Raw("HTTP/1.1 204 No\r\n\r\n".into()));
    let server = serve();
    let events = app.until("all of them come", |events| {
        let joined = events.iter().filter(|event| event["kind"] == "joined");
        let users: BTreeSet<_> = joined.map(|event| event["user"].to_string()).collect();
        // Requests of earlier runs wait in that queue as well.
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
    until_written(&server, "end");
    server.signal("-KILL");
    drop(server);
    // The server does not send events again that the application has confirmed.
    let number = |event: &Value| event["id"].as_str().unwrap().parse::<u64>().unwrap();
    let last = app.events().iter().map(number).max().unwrap();
    let server = serve();
    let _last = websocket(&server, "user=last");
    let mut after =
        app.until("the event of the last one comes", |events| !of(events, "last").is_empty());
    // The application may read requests of earlier runs late.
    after.retain(|event| number(event) > last);
    assert_eq!(kinds(&after), ["started", "connected"]);
}

/// A server that stops sends the events of its last clients before it ends, or leaves them in the store.
#[test]
fn a_server_that_stops_reports_who_was_there() {
    let app = Application::replying(|_| json!({}));
    let mut server = serve(&app.url(), &[], None);
    let mut sockets: Vec<_> =
        (0..5).map(|n| websocket(&server, &format!("user=u{n}&topic=room:1"))).collect();
    server.signal("-TERM");
    for socket in &mut sockets {
        while socket.read().is_ok() {}
    }
    assert!(wait_within(&mut server.child).success());
    let events = app.events();
    let gone: Vec<_> = events.iter().filter(|event| event["kind"] == "disconnected").collect();
    assert_eq!(gone.len(), 5);
    assert!(gone.iter().all(|event| event["reason"] == "drain"), "{gone:?}");
    let topics: Vec<_> = app.of(&["occupied", "vacated"]);
    assert!(topics.len().is_multiple_of(2), "what was occupied is vacated: {topics:?}");
}

/// A reload changes which events the application gets, and of which topics.
#[test]
fn events_change_with_the_configuration() {
    let app = Application::replying(|_| json!({}));
    let folder = Scratch::new("events-reload");
    let write = |events: &str, followed: bool| {
        let text = format!(
            "[webhook]\nurl = \"{}\"\nevents = {events}\noccupancy_milliseconds = 50\n\
             [[topics]]\npattern = \"room:*\"\nevents = {followed}\n",
            app.url()
        );
        folder.write("throng.toml", &text);
    };
    write("[]", false);
    let mut throng = Command::new(env!("CARGO_BIN_EXE_throng"));
    throng.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let server = Server::run_in(folder.path(), throng, &[], std::process::Stdio::inherit());
    let _one = server.listen("/sse?topic=room:1");
    write("[\"joined\", \"occupied\", \"vacated\"]", true);
    server.signal("-HUP");
    let events = app.until("the topic is occupied", |events| {
        events.iter().any(|event| event["kind"] == "occupied" && event["topic"] == "room:1")
    });
    // No event came before.
    assert_eq!(kinds(&events), ["started", "occupied"]);
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
