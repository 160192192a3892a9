//! Forwarding: the server sends messages of clients to a back end, and publishes the back end's replies. The tests
//! cover batches, retries, rejections, confirmations of MQTT, and rules that change while the server runs.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::application::{Act, Application};
use crate::mqtt::client::{Client, Connect, Event, Publish, V3, V5, filter};
use crate::support::*;
use protocol::mqtt::write::ConfirmType;
use protocol::mqtt::{Value as Property, id};
use serde_json::{Value, json};

/// A configuration file that a test may change.
struct File(Scratch);

impl File {
    fn new(text: &str) -> Self {
        let file = File(Scratch::new("forward"));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        self.0.write("throng.toml", text);
    }

    fn serve(&self) -> Server {
        self.serve_with(&[])
    }

    fn serve_with(&self, flags: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command
            .args(["--mqtt", "127.0.0.1:0", "--shards", "2", "--config"])
            .arg(self.0.path().join("throng.toml"))
            .args(flags);
        Server::run(command, &[("THRONG_LOG_LEVEL", "error")])
    }
}

/// Returns a rule for `requests/#` with further keys. Its timeout suits a back end on a slow machine.
fn rule(app: &Application, more: &str) -> String {
    let retry = if more.contains("retry_seconds") { "" } else { "retry_seconds = 600\n" };
    format!(
        "[[forward]]\nfilter = \"requests/#\"\nurl = \"{}\"\ntimeout_milliseconds = 60000\n\
         {retry}{more}\n",
        app.url()
    )
}

fn serve(app: &Application, more: &str) -> (Server, File) {
    let file = File::new(&rule(app, more));
    (file.serve(), file)
}

fn response(status: u16, body: &str) -> Act {
    Act::Raw(format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

/// A back end that accepts everything.
fn willing() -> Application {
    Application::start(|_| response(200, ""))
}

/// A back end that accepts nothing until a test opens it.
fn gated(status: u16) -> (Application, Arc<AtomicBool>) {
    let open = Arc::new(AtomicBool::new(false));
    let seen = open.clone();
    let app = Application::start(move |_| match seen.load(Ordering::Relaxed) {
        true => response(200, "{}"),
        false => response(status, "not now"),
    });
    (app, open)
}

fn count(server: &Server, name: &str) -> f64 {
    server.metric(&format!("throng_forward_{name}{{filter=\"requests/#\"}}"))
}

fn requests(app: &Application) -> usize {
    app.requests.lock().unwrap().len()
}

#[test]
fn a_message_is_confirmed_when_the_back_end_has_taken_it() {
    for version in [V3, V5] {
        for qos in [1, 2] {
            let (app, open) = gated(500);
            let (server, _file) = serve(&app, "");
            let mut member = Connect::new(version, "member").open(server.client);
            member.subscribe(&[filter("requests/+", 2)]);
            let mut client = Connect::new(version, "pump").user("alice").open(server.client);
            client.send(&Publish { id: 7, ..Publish::new("requests/1", "on", qos) }.bytes(version));
            app.until("it came twice", |events| events.len() >= 2);
            client.is_quiet();
            member.is_quiet();
            assert_eq!(count(&server, "waiting"), 1.0);
            open.store(true, Ordering::Relaxed);
            if qos == 1 {
                client.expect_events(&[Event::Confirm("PUBACK", 7, 0)]);
            } else {
                client.expect_events(&[Event::Confirm("PUBREC", 7, 0)]);
                client.confirm(ConfirmType::Pubrel, 7);
                client.expect_events(&[Event::Confirm("PUBCOMP", 7, 0)]);
            }
            assert_eq!(member.message().payload, "on");
            member.is_quiet();
            server.until("it is counted", |server| {
                (count(server, "taken_total"), count(server, "waiting")) == (1.0, 0.0)
            });
            assert!(count(&server, "retries_total") >= 1.0);
            let events = app.events();
            let event = &events[0];
            assert_eq!(event["id"], events[1]["id"], "it is the same message");
            let connection = event["connection"].clone();
            assert!(event["time"].as_u64().unwrap() > 1_700_000_000_000, "{event}");
            let want = json!({
                "id": event["id"], "topic": "requests/1", "data": "on", "user": "alice",
                "users": ["alice"], "connection": connection, "transport": event["transport"],
                "client": "pump", "time": event["time"], "mqtt": {"qos": qos, "retain": false},
            });
            assert_eq!(*event, want);
        }
    }
}

#[test]
fn messages_leave_together_and_in_order() {
    let app = willing();
    let (server, _file) = serve(&app, "batch_wait_milliseconds = 2000\nbatch_messages_max = 40");
    let mut client = Connect::new(V5, "pump").open(server.client);
    let all: Vec<u8> = (1..=90)
        .flat_map(|n| {
            let payload = n.to_string();
            Publish { id: n, ..Publish::new("requests/1", &payload, 1) }.bytes(V5)
        })
        .collect();
    client.send(&all);
    (1..=90).for_each(|n| client.expect_events(&[Event::Confirm("PUBACK", n, 0)]));
    let events = app.events();
    let came: Vec<u16> =
        events.iter().map(|it| it["data"].as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(came, (1..=90).collect::<Vec<_>>());
    let sizes: Vec<usize> =
        app.requests.lock().unwrap().iter().map(|request| request.events.len()).collect();
    assert!(sizes.len() <= 5 && sizes.iter().all(|size| *size <= 40), "{sizes:?}");
    assert_eq!(count(&server, "requests_total"), sizes.len() as f64);
    // A message with QoS 0 does not wait for the back end: members get it at once.
    let mut member = server.listen("/stream?topic=requests/2");
    member.next_object();
    client.publish("requests/2", "soon", 0);
    assert_eq!(member.next_object()["data"], "soon");
    app.until("it came", |events| events.len() == 91);
}

#[test]
fn replies_go_to_response_topics_users_and_topics() {
    let app = Application::start(|messages| {
        let mut replies = Vec::new();
        for message in messages {
            let id = &message["id"];
            replies.push(json!({"reply_to": id, "data": {"got": message["data"]}}));
            replies.push(json!({"user": "bob", "data": "for bob"}));
            replies.push(json!({"topic": "news", "data": "AP8=", "encoding": "base64"}));
            // An invalid reply does not affect the others.
            replies.push(json!({"topic": "news", "data": 1, "colour": "red"}));
            replies.push(json!({"topic": "@bob", "data": 1}));
            replies.push(json!({"reply_to": "nobody", "data": 1}));
            replies.push(json!({"user": "bob", "reply_to": id, "data": 1}));
        }
        response(201, &json!({"messages": replies}).to_string())
    });
    let file = File::new(
        &("[[topics]]\npattern = \"closed/*\"\njoin = \"refuse\"\n".to_owned() + &rule(&app, "")),
    );
    let server = file.serve();
    let mut bob = server.listen("/stream?user=bob&topic=news");
    bob.next_object();
    let mut client = Connect::new(V5, "pump").user("alice").open(server.client);
    client.subscribe(&[filter("answers/7", 1), filter("@alice", 1)]);
    let send_request = |topic: &'static str| {
        Publish::new("requests/1", "what?", 1)
            .with((id::RESPONSE_TOPIC, Property::Text(topic)))
            .with((id::CORRELATION_DATA, Property::Binary(b"c-7")))
    };
    client.publish_all(send_request("answers/7"));
    let reply = client.message();
    assert_eq!((&*reply.topic, &*reply.payload), ("answers/7", r#"{"got":"what?"}"#));
    assert_eq!(reply.property(id::CORRELATION_DATA), Some("c-7"));
    let payloads: Vec<Value> = (0..2).map(|_| bob.next_object()["data"].clone()).collect();
    assert!(
        payloads.contains(&json!("for bob")) && payloads.contains(&json!("AP8=")),
        "{payloads:?}"
    );
    server.until("all are counted", |server| {
        (count(server, "answers_refused_total"), count(server, "answers_total")) == (4.0, 3.0)
    });
    // Without a response topic the reply goes to the user. It also does if the client may not subscribe to the
    // response topic.
    for topic in ["closed/1", "*", "@bob"] {
        client.publish_all(send_request(topic));
        let own = client.message();
        assert_eq!(own.payload, r#"{"got":"what?"}"#, "{topic}");
        let event = app.events().pop().unwrap();
        assert_eq!(event["mqtt"].get("response_topic"), None, "{event}");
    }
}

/// The server publishes replies by the application's right. So it passes on a response topic only if the client may
/// subscribe to it, and may also publish to it, unless the rule lists the topic for replies.
#[test]
fn a_response_topic_is_one_that_the_client_may_use() {
    let app = willing();
    let application = Application::replying(|event| match event["topic"].as_str() {
        Some("room:open") => json!({}),
        _ => json!({"status": "error"}),
    });
    let replies = "answer_filters = [\"answers/+\", \"room:secret\", \"room:open\"]";
    let file = File::new(&format!(
        "[client]\npublish_prefixes = [\"requests/\"]\ntrusted_proxies = [\"127.0.0.2\"]\n\
         [webhook]\nurl = \"{}\"\n[[topics]]\npattern = \"room:*\"\njoin = \"webhook\"\n{}",
        application.url(),
        rule(&app, replies)
    ));
    let server = file.serve();
    let mut client = Connect::new(V5, "pump").user("alice").open(server.client);
    let named = |client: &mut Client, topic: &'static str| {
        let send_request = Publish::new("requests/1", "what?", 1);
        client.publish_all(send_request.with((id::RESPONSE_TOPIC, Property::Text(topic))));
        app.events().pop().unwrap()["mqtt"]["response_topic"] == topic
    };
    for (topic, is_passed_on) in [
        // The client may publish to this topic, or the rule names it for replies.
        ("requests/answers", true),
        ("answers/7", true),
        ("@alice", true),
        // Every client may subscribe to this topic, but only the application publishes to it.
        ("news", false),
        ("answers/7/8", false),
        // The application has not admitted the client to this topic.
        ("room:secret", false),
        ("room:open", false),
    ] {
        assert_eq!(named(&mut client, topic), is_passed_on, "{topic}");
    }
    client.subscribe(&[filter("room:open", 1)]);
    assert!(named(&mut client, "room:open"));
    assert!(!named(&mut client, "room:secret"));
}

#[test]
fn an_unreadable_reply_still_accepts_the_messages() {
    for body in ["no JSON", "[]", r#"{"messages":{}}"#] {
        let app = Application::start(move |_| response(200, body));
        let (server, _file) = serve(&app, "");
        let mut client = Connect::new(V5, "pump").open(server.client);
        client.publish("requests/1", "x", 1);
        server.until("it is counted", |server| count(server, "answers_refused_total") == 1.0);
        assert_eq!(requests(&app), 1, "{body}");
    }
}

#[test]
fn a_rejected_publisher_gets_the_reason() {
    // The server does not repeat a request that the back end rejects as wrong.
    let app = Application::start(|_| response(422, ""));
    let (server, _file) = serve(&app, "");
    let mut client = Connect::new(V5, "pump").open(server.client);
    client.send(&Publish { id: 3, ..Publish::new("requests/1", "x", 1) }.bytes(V5));
    client.expect_events(&[Event::Confirm("PUBACK", 3, 0x80)]);
    client.send(&Publish { id: 3, ..Publish::new("requests/1", "x", 2) }.bytes(V5));
    client.expect_events(&[Event::Confirm("PUBREC", 3, 0x80)]);
    let mut old = Connect::new(V3, "old").open(server.client);
    old.send(&Publish::new("requests/1", "x", 1).bytes(V3));
    old.expect_events(&[Event::Closed]);
    server.until("all are counted", |server| count(server, "failed_total") == 3.0);
    assert_eq!(requests(&app), 3);

    // The server repeats a request that fails, until `retry_seconds` have passed.
    let (app, _) = gated(503);
    let (server, _file) = serve(&app, "retry_seconds = 3");
    let mut client = Connect::new(V5, "pump").open(server.client);
    client.send(&Publish { id: 3, ..Publish::new("requests/1", "x", 1) }.bytes(V5));
    client.expect_events(&[Event::Confirm("PUBACK", 3, 0x80)]);
    assert!(requests(&app) >= 2, "{}", requests(&app));
}

#[test]
fn a_full_queue_refuses_and_drops() {
    let (app, open) = gated(500);
    let (server, _file) = serve(&app, "queue_messages_max = 2");
    let mut client = Connect::new(V5, "pump").open(server.client);
    for id in 1..=3 {
        client.send(&Publish { id, ..Publish::new("requests/1", "x", 1) }.bytes(V5));
    }
    client.expect_events(&[Event::Confirm("PUBACK", 3, 0x97)]);
    client.publish("requests/1", "y", 0);
    server.until("it is dropped", |server| count(server, "dropped_total") == 1.0);
    assert_eq!((count(&server, "refused_total"), count(&server, "waiting")), (1.0, 2.0));
    assert!(count(&server, "waiting_bytes") > 100.0);
    open.store(true, Ordering::Relaxed);
    client.expect_events(&[Event::Confirm("PUBACK", 1, 0), Event::Confirm("PUBACK", 2, 0)]);
}

/// A connection ends while its message waits. The client sends the message again, and with QoS 2 members get it once.
#[test]
fn what_was_not_confirmed_comes_again() {
    let (app, open) = gated(500);
    let (server, _file) = serve(&app, "");
    let mut member = Connect::new(V5, "member").open(server.client);
    member.subscribe(&[filter("requests/+", 2)]);
    let publish = Publish { id: 9, ..Publish::new("requests/1", "once", 2) };
    let mut client = Connect::persistent(V5, "pump").open(server.client);
    client.send(&publish.bytes(V5));
    app.until("it came", |events| !events.is_empty());
    client.cut();
    server.until("the server knows of it", |server| {
        server.metric("throng_connections{transport=\"mqtt\"}") == 1.0
    });
    open.store(true, Ordering::Relaxed);
    server.until("the back end has taken it", |server| count(server, "taken_total") == 1.0);
    member.is_quiet();
    let mut client = Connect::persistent(V5, "pump").open(server.client);
    assert!(client.session_present);
    client.send(&Publish { dup: true, ..publish.clone() }.bytes(V5));
    client.expect_events(&[Event::Confirm("PUBREC", 9, 0)]);
    assert_eq!(member.message().payload, "once");
    // From here on the server knows the message and drops repetitions.
    client.send(&Publish { dup: true, ..publish }.bytes(V5));
    client.expect_events(&[Event::Confirm("PUBREC", 9, 0)]);
    client.confirm(ConfirmType::Pubrel, 9);
    client.expect_events(&[Event::Confirm("PUBCOMP", 9, 0)]);
    member.is_quiet();
    let datas: Vec<_> = app.events().iter().map(|it| it["id"].clone()).collect();
    assert_ne!(datas.first(), datas.last(), "it was a message of its own");
}

/// The server closes a client that sends more messages than its receive maximum. It has accepted none of them.
#[test]
fn what_was_one_too_many_comes_again() {
    let (app, open) = gated(500);
    let (server, _file) = serve(&app, "[mqtt]\nreceive_max = 1");
    let mut member = Connect::new(V5, "member").open(server.client);
    member.subscribe(&[filter("requests/+", 2)]);
    let publish = |id: u16, dup| {
        let payload = id.to_string();
        Publish { id, dup, ..Publish::new("requests/1", &payload, 2) }.bytes(V3)
    };
    let mut client = Connect::persistent(V3, "pump").open(server.client);
    client.send(&[publish(1, false), publish(2, false)].concat());
    client.expect_events(&[Event::Closed]);
    open.store(true, Ordering::Relaxed);
    let mut client = Connect::persistent(V3, "pump").open(server.client);
    assert!(client.session_present);
    for id in [1, 2] {
        client.send(&publish(id, true));
        client.expect_events(&[Event::Confirm("PUBREC", id, 0)]);
        client.confirm(ConfirmType::Pubrel, id);
        client.expect_events(&[Event::Confirm("PUBCOMP", id, 0)]);
        assert_eq!(member.message().payload, id.to_string());
    }
}

/// The server is killed while messages wait. The clients send them again, and the server knows the messages that it
/// had confirmed.
#[test]
fn what_a_crash_cuts_off_comes_again() {
    let (app, open) = gated(500);
    let file = File::new(&rule(&app, ""));
    let data = file.0.path().join("data");
    let flags = ["--data", data.to_str().unwrap()];
    let serve = || file.serve_with(&flags);
    let kill = |mut server: Server| {
        server.child.kill().unwrap();
        wait_within(&mut server.child);
    };
    let server = serve();
    let of =
        |id, dup| Publish { id, dup, ..Publish::new("requests/1", "x", u8::try_from(id).unwrap()) };
    let mut client = Connect::persistent(V5, "pump").open(server.client);
    client.send(&[of(1, false).bytes(V5), of(2, false).bytes(V5)].concat());
    app.until("both came", |events| events.iter().any(|event| event["mqtt"]["qos"] == 2));
    kill(server);
    open.store(true, Ordering::Relaxed);

    let server = serve();
    let mut member = Connect::new(V5, "member").open(server.client);
    member.subscribe(&[filter("requests/+", 2)]);
    let mut client = Connect::persistent(V5, "pump").open(server.client);
    assert!(client.session_present);
    client.send(&[of(1, true).bytes(V5), of(2, true).bytes(V5)].concat());
    client.expect_events(&[Event::Confirm("PUBACK", 1, 0), Event::Confirm("PUBREC", 2, 0)]);
    assert_eq!(member.messages(2).len(), 2);
    kill(server);

    let server = serve();
    let mut client = Connect::persistent(V5, "pump").open(server.client);
    assert!(client.session_present);
    let before = app.events().len();
    client.send(&of(2, true).bytes(V5));
    client.expect_events(&[Event::Confirm("PUBREC", 2, 0)]);
    client.confirm(ConfirmType::Pubrel, 2);
    client.expect_events(&[Event::Confirm("PUBCOMP", 2, 0)]);
    assert_eq!(app.events().len(), before, "it was here");
}

#[test]
fn other_transports_forward_and_get_the_outcome() {
    let (app, open) = gated(400);
    let file = File::new(
        &("[client]\npublish_prefixes = [\"requests/\"]\n".to_owned()
            + &rule(&app, "deliver = false")),
    );
    let server = file.serve();
    let mut member = server.listen("/stream?topic=requests/1&topic=end");
    member.next_object();
    let mut alice = websocket(&server, "user=alice");
    let say = json!({"type": "publish", "id": 1, "topic": "requests/1", "data": {"n": 1}});
    let refused = command(&mut alice, say.clone());
    assert_eq!(refused["error"]["code"], "unanswered", "{refused}");
    let post =
        || json(server.client, "POST", "/publish?topic=requests/1&user=carol", Some(json!(1)), "");
    let (status, body) = post();
    assert_eq!((status, body["error"]["code"].as_str()), (503, Some("unanswered")), "{body}");
    open.store(true, Ordering::Relaxed);
    assert_eq!(command(&mut alice, say)["ok"], json!({}));
    assert_eq!(post(), (200, json!({})));
    let events = app.events();
    let of = |at: usize, key: &str| events[at][key].clone();
    assert_eq!(
        (of(0, "transport"), of(0, "user"), of(0, "data")),
        (json!("ws"), json!("alice"), json!({"n": 1}))
    );
    assert_eq!((of(3, "transport"), of(3, "user")), (json!("http"), json!("carol")));
    assert!(events.iter().all(|event| event.get("mqtt").is_none()));
    // Members have got none of these messages. The server does not forward messages of the application.
    server.publish("requests/1", json!("own"));
    assert_eq!(member.next_object()["data"], "own");
    assert_eq!(app.events().len(), 4);
}

#[test]
fn the_application_decides_first() {
    let app = willing();
    let application = Application::replying(|event| match event["payload"].as_str() {
        Some("spam") => json!({"status": "error"}),
        _ => json!({"payload": "tidy"}),
    });
    let file = File::new(&format!(
        "[webhook]\nurl = \"{}\"\n[[topics]]\npattern = \"requests/*\"\npublish = \"ask\"\n{}",
        application.url(),
        rule(&app, "")
    ));
    let server = file.serve();
    let mut client = Connect::new(V5, "pump").open(server.client);
    client.send(&Publish { id: 4, ..Publish::new("requests/1", "spam", 1) }.bytes(V5));
    client.expect_events(&[Event::Confirm("PUBACK", 4, 0x87)]);
    for qos in [0, 1, 2] {
        client.publish("requests/1", "untidy", qos);
    }
    let events = app.until("three came", |events| events.len() == 3);
    assert!(events.iter().all(|event| event["data"] == "tidy"), "{events:?}");
}

#[test]
fn nothing_is_confirmed_that_the_application_never_decided() {
    // The application does not reply the first time, and accepts the message later.
    let (open, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (is_open, count) = (open.clone(), requests.clone());
    let slow_application = Application::start(move |events| {
        if count.fetch_add(1, Ordering::Relaxed) == 0 {
            let end = Instant::now() + TIMEOUT;
            while !is_open.load(Ordering::Relaxed) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            return Act::Raw("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".into());
        }
        Act::Reply(events.iter().map(|_| json!({})).collect())
    });
    let file = File::new(&format!(
        "[webhook]\nurl = \"{}\"\nsilence = \"deny\"\ntimeout_milliseconds = 60000\n\
         [[topics]]\npattern = \"q/*\"\npublish = \"ask\"\n",
        slow_application.url(),
    ));
    let server = file.serve();
    let mut listener = Connect::new(V5, "listener").open(server.client);
    listener.subscribe(&[filter("q/#", 2)]);
    let mut device = Connect::persistent(V5, "device").open(server.client);
    let important = Publish { id: 5, ..Publish::new("q/1", "important", 2) };
    device.send(&important.bytes(V5));
    slow_application.until("it was asked", |_| requests.load(Ordering::Relaxed) == 1);
    device.cut();
    server.until("the server knows of it", |server| {
        server.metric("throng_connections{transport=\"mqtt\"}") == 1.0
    });
    // This decision arrives for a connection that has ended.
    open.store(true, Ordering::Relaxed);
    server.until("it has decided", |server| server.metric("throng_webhook_waiting") == 0.0);
    let mut device = Connect::persistent(V5, "device").open(server.client);
    assert!(device.session_present);
    device.send(&Publish { dup: true, ..important }.bytes(V5));
    device.expect_events(&[Event::Confirm("PUBREC", 5, 0)]);
    device.confirm(ConfirmType::Pubrel, 5);
    device.expect_events(&[Event::Confirm("PUBCOMP", 5, 0)]);
    assert_eq!(requests.load(Ordering::Relaxed), 2);
    assert_eq!(listener.message().payload, "important");
    listener.is_quiet();
}

#[test]
fn rules_change_while_the_server_runs() {
    let (old, new) = (gated(500).0, willing());
    let (server, file) = serve(&old, "");
    let mut client = Connect::new(V5, "pump").open(server.client);
    client.send(&Publish { id: 1, ..Publish::new("requests/1", "x", 1) }.bytes(V5));
    old.until("it came", |events| !events.is_empty());
    // A waiting message goes to the back end that the new rule names.
    file.write(&rule(&new, ""));
    server.signal("-HUP");
    client.expect_events(&[Event::Confirm("PUBACK", 1, 0)]);
    assert_eq!(new.events().len(), 1);
    file.write(&rule(&new, "").replace("requests/#", "orders/+"));
    server.signal("-HUP");
    server.until("the rule is another", |server| {
        let text = text(server.admin, "GET", "/metrics", None, "").1;
        text.contains("throng_forward_taken_total{filter=\"orders/+\"}")
    });
    // The shards learn the new rule a moment later.
    let mut sent = 0;
    while new.events().len() < 2 {
        client.publish("orders/1", "x", 1);
        sent += 1;
        assert!(sent < 100_000);
    }
    client.publish("requests/1", "x", 1);
    assert_eq!(new.events().len(), 2, "it is forwarded no longer");
}

#[test]
fn what_waits_at_the_end_is_sent() {
    let app = willing();
    let (mut server, _file) = serve(&app, "batch_wait_milliseconds = 60000");
    let mut client = Connect::new(V5, "pump").open(server.client);
    client.publish("requests/1", "last", 0);
    client.ping();
    assert_eq!(requests(&app), 0);
    server.signal("-TERM");
    assert!(wait_within(&mut server.child).success());
    assert_eq!(app.events()[0]["data"], "last");
}

#[test]
fn a_request_is_signed_as_all_are() {
    let app = willing();
    let file = File::new(&format!(
        "[webhook]\nsecret = \"a-secret-of-the-application\"\n\
         signing_key = \"0123456789abcdef0123456789abcdef\"\n{}",
        rule(&app, "")
    ));
    let server = file.serve();
    let mut client = Connect::new(V5, "pump").open(server.client);
    client.publish("requests/1", "x", 1);
    let head = app.requests.lock().unwrap()[0].head.clone();
    assert_eq!(header(&head, "authorization"), Some("Bearer a-secret-of-the-application"));
    assert!(header(&head, "webhook-signature").unwrap().starts_with("v1,"), "{head}");
}
