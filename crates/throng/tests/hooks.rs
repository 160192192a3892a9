//! Webhooks that decide and reply: every hook, for every transport, with an application that replies, is slow, sends
//! nonsense, or is away.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::application::{Act, Application, Reserved};
use crate::support::{Server, Stream, command, header, json as request, receive, text, websocket};
use serde_json::{Value, json};

/// Starts a server that sends its webhook requests to this application.
fn serve(url: &str, settings: &[(&str, &str)]) -> Server {
    let topics = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hooks/topics.toml");
    let mut throng = Command::new(env!("CARGO_BIN_EXE_throng"));
    throng.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
    throng.arg(topics);
    // With this timeout the server waits for an application on a slow machine.
    let patient = ("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "60000");
    Server::run(throng, &[&[("THRONG_WEBHOOK_URL", url), patient], settings].concat())
}

/// The application: it admits alice with a presence meta, and carol, and rejects all others.
fn members_only(event: &Value) -> Value {
    match event["user"].as_str() {
        Some("alice") => json!({"meta": {"role": "editor"}}),
        Some("carol") => json!({}),
        _ => json!({
            "status": "error",
            "response": {"code": "members_only", "message": "ask the owner of the document"},
        }),
    }
}

fn error(body: &Value) -> (&str, &str) {
    let text = |key: &str| body["error"][key].as_str().unwrap_or_else(|| panic!("{body}"));
    (text("code"), text("message"))
}

const REFUSED: (&str, &str) = ("members_only", "ask the owner of the document");

#[test]
fn the_application_decides_who_enters_by_every_transport() {
    let app = Application::replying(members_only);
    let server = serve(&app.url(), &[]);
    server.publish("doc:1", json!("before"));
    let mut open = Vec::new();
    for (path, user, transport) in
        [("/sse", "alice", "sse"), ("/stream", "alice", "stream"), ("/poll", "alice", "poll")]
    {
        let target = format!("{path}?topic=doc:1&topic=plain:1&user={user}&since=start&timeout=0");
        if path == "/poll" {
            let (status, body) = server.get(&target);
            assert_eq!((status, &body["messages"][0]["data"]), (200, &json!("before")), "{body}");
        } else {
            let mut stream = server.listen(&target);
            let payload = match path {
                "/sse" => loop {
                    let data = stream.data();
                    if data == "before" {
                        break data;
                    }
                },
                _ => loop {
                    let object = stream.next_object();
                    if object["data"] == "before" {
                        break "before".into();
                    }
                },
            };
            assert_eq!(payload, "before");
            open.push(stream);
        }
        let event = app.events().pop().unwrap();
        let connection = event["connection"].clone();
        assert!(connection.as_str().is_some_and(|id| id.split('-').count() == 4), "{event}");
        let want = json!({
            "kind": "subscribe", "topic": "doc:1", "user": user, "users": [user],
            "connection": connection, "transport": transport,
        });
        assert_eq!(event, want);
        // A rejected client gets the application's reason, and enters no topic.
        let (status, body) = server.get(&target.replace("alice", "bob"));
        assert_eq!((status, error(&body)), (403, REFUSED), "{path}");
        let (status, body) = server.get(&format!("{path}?topic=plain:1&topic=doc:1&timeout=0"));
        assert_eq!((status, error(&body)), (403, REFUSED), "{path}: nobody is no member");
    }
    assert_eq!(server.api("GET", "/api/topics/plain:1", None).1["members"], 2);
    // A request that reads the history or presence of a topic also calls the hook.
    for (path, ok) in [("/history", "messages"), ("/presence", "users")] {
        let (status, body) = server.get(&format!("{path}?topic=doc:1&user=carol"));
        assert_eq!((status, body[ok].is_null()), (200, false), "{body}");
        assert_eq!(app.events().pop().unwrap()["transport"], "http");
        let (status, body) = server.get(&format!("{path}?topic=doc:1&user=bob"));
        assert_eq!((status, error(&body)), (403, REFUSED), "{path}");
    }
}

#[test]
fn a_websocket_enters_when_the_application_has_said_so() {
    let app = Application::replying(members_only);
    let server = serve(&app.url(), &[]);
    let mut alice = websocket(&server, "user=alice");
    let outcome = command(&mut alice, json!({"type": "subscribe", "id": 1, "topic": "doc:1"}));
    assert_eq!(outcome["ok"]["topic"], "doc:1", "{outcome}");
    // The client's meta is in the snapshot, in a later notice, or in both.
    let meta = loop {
        let mut notice = receive(&mut alice)["data"].take();
        let joins = notice["joins"].take();
        if let Some(alice) = joins.get("alice").or(notice.get("alice")) {
            break alice["metas"][0].clone();
        }
    };
    assert_eq!(meta["role"], "editor", "its meta: {meta}");
    server.publish("doc:1", json!(1));
    while receive(&mut alice)["data"] != 1 {}
    // The client is a member, so it may read the history.
    let page = command(&mut alice, json!({"type": "history", "id": 2, "topic": "doc:1"}));
    assert_eq!(page["ok"]["messages"][0]["data"], 1, "{page}");

    let mut bob = websocket(&server, "user=bob");
    for (id, kind) in ["subscribe", "history", "presence"].into_iter().enumerate() {
        let outcome = command(&mut bob, json!({"type": kind, "id": id, "topic": "doc:1"}));
        let want = if kind == "subscribe" { REFUSED.0 } else { "not_subscribed" };
        assert_eq!(error(&outcome).0, want, "{outcome}");
    }
    // The handshake is a request like any other.
    let url = format!("ws://{}/ws?user=bob&topic=doc:1", server.client);
    let refused = tungstenite::client(url.as_str(), server.connect()).unwrap_err();
    assert!(refused.to_string().contains("403"), "{refused}");
    let mut carol = websocket(&server, "user=carol&topic=doc:1");
    server.publish("doc:1", json!(2));
    while receive(&mut carol)["data"] != 2 {}
    let transports: Vec<_> = app.events().iter().map(|it| it["transport"].clone()).collect();
    assert!(transports.iter().all(|it| it == "ws"), "{transports:?}");
}

#[test]
fn several_topics_of_a_request_are_decided_together() {
    let app = Application::replying(members_only);
    let server = serve(&app.url(), &[]);
    let topics: String = (0..40).map(|n| format!("&topic=doc:{n}")).collect();
    let stream = server.listen(&format!("/stream?user=carol&topic=plain:1{topics}"));
    let sizes = |app: &Application| -> Vec<usize> {
        app.requests.lock().unwrap().iter().map(|request| request.events.len()).collect()
    };
    assert_eq!(sizes(&app), [40]);
    drop(stream);
    // Pipelined requests on one connection: the server handles them one after the other.
    let mut socket = Stream::new(server.connect());
    socket.send(
        "GET /poll?topic=doc:1&user=carol&timeout=0 HTTP/1.1\r\nHost: t\r\n\r\n\
         GET /poll?topic=doc:1&user=bob HTTP/1.1\r\nHost: t\r\n\r\n\
         GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n\
         GET /sse?topic=doc:1&user=carol HTTP/1.1\r\nHost: t\r\n\r\n",
    );
    let statuses = [(); 3].map(|()| socket.read_reply().0);
    assert_eq!(statuses, [200, 403, 200]);
    assert!(socket.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(sizes(&app), [40, 1, 1, 1]);
}

#[test]
fn a_client_that_leaves_while_the_application_thinks_is_not_admitted() {
    let (send, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let app = Application::start(move |events| {
        if events[0]["topic"] == "doc:slow" {
            wait.lock().unwrap().recv().unwrap();
        }
        Act::Reply(events.iter().map(|_| json!({})).collect())
    });
    let server = serve(&app.url(), &[]);
    let waiting = |server: &Server, events: f64| {
        server.until("the application is asked", |server| {
            server.metric("throng_webhook_waiting") == events
        });
    };
    // The client goes away while its request waits.
    let mut gone = server.connect();
    gone.write_all(b"GET /sse?topic=doc:slow HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    waiting(&server, 1.0);
    drop(gone);
    server
        .until("it is gone", |server| server.api("GET", "/api/stats", None).1["connections"] == 0);
    send.send(()).unwrap();
    waiting(&server, 0.0);
    // The client takes back its command.
    let mut socket = websocket(&server, "user=alice");
    let say = |socket: &mut crate::support::WebSocket, command: Value| {
        socket.send(tungstenite::Message::text(command.to_string())).unwrap();
    };
    say(&mut socket, json!({"type": "subscribe", "id": 1, "topic": "doc:slow"}));
    waiting(&server, 1.0);
    // The server handles other commands meanwhile.
    let pong = command(&mut socket, json!({"type": "ping", "id": 2}));
    assert_eq!(pong["id"], 2);
    let given_up =
        command(&mut socket, json!({"type": "unsubscribe", "id": 3, "topic": "doc:slow"}));
    assert_eq!((&given_up["id"], error(&given_up).0), (&json!(1), "not_subscribed"));
    let left = receive(&mut socket);
    assert_eq!((&left["id"], &left["ok"]["topic"]), (&json!(3), &json!("doc:slow")));
    send.send(()).unwrap();
    waiting(&server, 0.0);
    assert_eq!(server.api("GET", "/api/topics/doc:slow", None).1["members"], 0);
    // The same command again, which the client does not take back.
    say(&mut socket, json!({"type": "subscribe", "id": 4, "topic": "doc:slow"}));
    send.send(()).unwrap();
    assert_eq!(receive(&mut socket)["ok"]["topic"], "doc:slow");
    server.until_members("doc:slow", 1);
}

/// Posts to /publish. Returns the status and the body.
fn post(server: &Server, topic: &str, user: &str, data: Value) -> (u16, Value) {
    request(server.client, "POST", &format!("/publish?topic={topic}&user={user}"), Some(data), "")
}

#[test]
fn messages_go_to_the_application_and_its_replies_come_back() {
    let app = Application::replying(|event| match event["payload"]["n"].as_i64() {
        Some(n) if n < 0 => {
            json!({"status": "error", "response": {"code": "sold_out", "message": "none left"}})
        }
        Some(n) => json!({"response": {"total": n * 2}}),
        None => json!({"response": [event["payload"], event["tags"], event["event"]]}),
    });
    let server = serve(&app.url(), &[]);
    let mut socket = websocket(&server, "user=alice&topic=order:1");
    let publish = |id: i64, data: Value| json!({"type": "publish", "id": id, "topic": "order:1", "data": data});
    let outcome = command(&mut socket, publish(1, json!({"n": 4})));
    assert_eq!(outcome, json!({"type": "reply", "id": 1, "ok": {"total": 8}}));
    let outcome = command(&mut socket, publish(2, json!({"n": -1})));
    assert_eq!(error(&outcome), ("sold_out", "none left"));
    assert_eq!(post(&server, "order:1", "bob", json!({"n": 21})), (200, json!({"total": 42})));
    let (status, body) = post(&server, "order:1", "bob", json!({"n": -1}));
    assert_eq!((status, error(&body)), (403, ("sold_out", "none left")));
    let tagged = json!({"type": "publish", "id": 3, "topic": "order:1", "event": "cancel", "tags": ["a"], "data": "x"});
    assert_eq!(command(&mut socket, tagged)["ok"], json!(["x", ["a"], "cancel"]));
    let events = app.events();
    let want = json!({
        "kind": "message", "topic": "order:1", "payload": {"n": 21}, "user": "bob",
        "users": ["bob"], "connection": events[2]["connection"], "transport": "http",
    });
    assert_eq!(events[2], want);
    assert_eq!((&events[0]["transport"], &events[0]["user"]), (&json!("ws"), &json!("alice")));
    // Members get none of these messages. The replies come in the order of the messages.
    for n in 0..100 {
        socket.send(tungstenite::Message::text(publish(n, json!({"n": n})).to_string())).unwrap();
    }
    for n in 0..100 {
        let outcome = receive(&mut socket);
        assert_eq!(
            (&outcome["id"], &outcome["ok"]["total"]),
            (&json!(n), &json!(n * 2)),
            "{outcome}"
        );
    }
}

/// The application: it accepts, rejects, and changes messages of clients.
fn moderator(event: &Value) -> Value {
    if event["kind"] != "publish" {
        return json!({});
    }
    match event["payload"].as_str() {
        Some("spam") => json!({"status": "error", "response": {"reason": "no spam"}}),
        Some("damn") => json!({"payload": {"text": "d***"}, "tags": ["mild"]}),
        Some("bytes") => json!({"payload": "AP8=", "encoding": "base64"}),
        Some("huge") => json!({"payload": "x".repeat(2 << 20)}),
        Some("wrong") => json!({"payload": 1, "encoding": "base64"}),
        _ => json!({}),
    }
}

#[test]
fn what_clients_publish_is_allowed_refused_or_changed() {
    let app = Application::replying(moderator);
    let server = serve(&app.url(), &[]);
    let mut member = server.listen("/stream?topic=chat:1");
    member.next_object();
    let mut socket = websocket(&server, "user=alice");
    let mut say = |text: &str| {
        command(&mut socket, json!({"type": "publish", "id": 1, "topic": "chat:1", "data": text}))
    };
    assert!(say("hello")["ok"]["id"].is_string());
    let event = member.next_object();
    assert_eq!((&event["data"], &event["sender"]), (&json!("hello"), &json!("alice")), "{event}");
    assert_eq!(error(&say("spam")), ("forbidden", "no spam"));
    assert!(say("damn")["ok"].is_object());
    let event = member.next_object();
    assert_eq!((&event["data"], &event["tags"]), (&json!({"text": "d***"}), &json!(["mild"])));
    assert_eq!(event["sender"], "alice");
    assert!(say("bytes")["ok"].is_object());
    assert_eq!(member.next_object()["encoding"], "base64");
    for wrong in ["huge", "wrong"] {
        assert_eq!(error(&say(wrong)).0, "unanswered", "{wrong}");
    }
    let (status, body) = post(&server, "chat:1", "bob", json!("hi"));
    assert_eq!((status, body["id"].is_string()), (200, true), "{body}");
    let event = member.next_object();
    assert_eq!((&event["data"], &event["sender"]), (&json!("hi"), &json!("bob")));
    let (status, body) = post(&server, "chat:1", "bob", json!("spam"));
    assert_eq!((status, error(&body)), (403, ("forbidden", "no spam")));
    // A client may publish by the application's decision to a topic that it entered by the application's decision.
    let mut both = websocket(&server, "user=alice&topic=both:1");
    let said = json!({"type": "publish", "id": 1, "topic": "both:1", "data": "damn"});
    both.send(tungstenite::Message::text(said.to_string())).unwrap();
    let events = [receive(&mut both), receive(&mut both)];
    assert!(events.iter().any(|it| it["data"]["text"] == "d***"), "{events:?}");
    let kinds: Vec<_> = app.events().iter().rev().take(2).map(|it| it["kind"].clone()).collect();
    assert_eq!(kinds, ["publish", "subscribe"]);
}

/// Replies are slow and messages come fast: no message overtakes another, even if the application changes some.
#[test]
fn what_one_connection_publishes_stays_in_order() {
    let app = Application::start(|events| {
        std::thread::sleep(Duration::from_millis(3));
        let reply = |event: &Value| match event["payload"].as_i64() {
            Some(n) if n % 7 == 0 => json!({"payload": n}),
            _ => json!({}),
        };
        Act::Reply(events.iter().map(reply).collect())
    });
    let server = serve(&app.url(), &[("THRONG_WEBHOOK_BATCH_EVENTS_MAX", "5")]);
    let mut member = server.listen("/stream?topic=kept:1");
    let mut next_payload = || loop {
        let object = member.next_object();
        if object["type"] == "message" || object.get("data").is_some() {
            return object["data"].clone();
        }
    };
    let mut socket = websocket(&server, "user=alice");
    for n in 0..120 {
        let said = json!({"type": "publish", "id": n, "topic": "kept:1", "data": n});
        socket.send(tungstenite::Message::text(said.to_string())).unwrap();
    }
    let payloads: Vec<_> = (0..120).map(|_| next_payload().as_i64().unwrap()).collect();
    assert_eq!(payloads, (0..120).collect::<Vec<_>>());
    // Reads the replies: with unread replies, closing the socket would reset it and lose the last message.
    (0..120).for_each(|_| assert!(receive(&mut socket)["ok"].is_object()));
    // The server publishes the last message although its sender has gone.
    let last = json!({"type": "publish", "id": 1, "topic": "kept:1", "data": "goodbye"});
    socket.send(tungstenite::Message::text(last.to_string())).unwrap();
    drop(socket);
    assert_eq!(next_payload(), "goodbye");
}

#[test]
fn a_connection_with_too_many_pending_requests_is_refused() {
    let (open, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let app = Application::start(move |events| {
        // The application waits until the sender has gone.
        let _ = wait.lock().unwrap().recv();
        Act::Reply(events.iter().map(|_| json!({})).collect())
    });
    let server = serve(&app.url(), &[]);
    let mut socket = websocket(&server, "user=alice");
    for n in 0..400 {
        let said = json!({"type": "publish", "id": n, "topic": "chat:1", "data": n});
        socket.send(tungstenite::Message::text(said.to_string())).unwrap();
    }
    // 128 messages wait, and the server rejects all others.
    server.until("the server has asked", |server| server.metric("throng_webhook_waiting") == 128.0);
    for n in 128..400 {
        let refused = receive(&mut socket);
        assert_eq!((&refused["id"], error(&refused).0), (&json!(n), "overloaded"), "{refused}");
    }
    drop(open);
    for n in 0..128 {
        let outcome = receive(&mut socket);
        assert_eq!((&outcome["id"], outcome["ok"].is_object()), (&json!(n), true), "{outcome}");
    }
}

/// Everything that an application may do instead of a reply, and the effect on clients.
#[test]
fn what_a_silent_application_means_is_a_setting() {
    let closed = Reserved::new();
    let raw = |outcome: &str| {
        let outcome = outcome.to_string();
        Application::start(move |_| Act::Raw(outcome.clone())).url()
    };
    let json_of = |body: &str| {
        raw(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
    };
    let huge = "x".repeat(3 << 20);
    let hang = Application::start(|_| Act::Hang);
    let urls = [
        format!("http://{}/", closed.address),
        hang.url(),
        raw("HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\nno"),
        raw("HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"),
        json_of(&huge),
        json_of("[]"),
        json_of(r#"{"replies":[]}"#),
        json_of(r#"{"replies":[{},{}]}"#),
        json_of(r#"{"replies":[{"meta":7,"tags":[""]}]}"#),
        json_of(r#"{"replies":[{"status":"perhaps"}]}"#),
    ];
    for url in &urls {
        for (silence, status) in [("deny", 503), ("allow", 200)] {
            let settings = [
                ("THRONG_WEBHOOK_SILENCE", silence),
                ("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "300"),
            ];
            let server = serve(url, &settings);
            for path in ["/poll?timeout=0&topic=doc:1", "/history?topic=doc:1"] {
                let (got, body) = server.get(path);
                assert_eq!(got, status, "{url} {silence} {path}: {body}");
                if status != 200 {
                    assert_eq!(error(&body).0, "unanswered");
                }
            }
            assert_eq!(post(&server, "chat:1", "a", json!(1)).0, status, "{url} {silence}");
            let mut socket = websocket(&server, "user=alice");
            let enter = json!({"type": "subscribe", "id": 1, "topic": "doc:1"});
            let outcome = command(&mut socket, enter);
            assert_eq!(outcome["ok"].is_object(), silence == "allow", "{url}: {outcome}");
            // Only the application can reply to a message.
            assert_eq!(post(&server, "order:1", "a", json!(1)).0, 503, "{url} {silence}");
        }
    }
}

/// With a queue of one event, the server calls no hook for most of a crowd.
#[test]
fn a_full_queue_is_a_silence_too() {
    let hang = Application::start(|_| Act::Hang);
    for (silence, status) in [("deny", 503), ("allow", 200)] {
        let settings = [
            ("THRONG_WEBHOOK_SILENCE", silence),
            ("THRONG_WEBHOOK_QUEUE_EVENTS_MAX", "2"),
            ("THRONG_TIMEOUTS_DRAIN_SECONDS", "1"),
        ];
        let server = serve(&hang.url(), &settings);
        let mut first = server.connect();
        first.write_all(b"GET /sse?topic=doc:1 HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        server.until("it waits", |server| server.metric("throng_webhook_waiting") == 1.0);
        let (got, body) = text(server.client, "GET", "/poll?timeout=0&topic=doc:2", None, "");
        assert_eq!(got, status, "{body}");
        assert_eq!(post(&server, "chat:1", "a", json!(1)).0, status);
        let mut socket = websocket(&server, "");
        let outcome = command(&mut socket, json!({"type": "subscribe", "id": 1, "topic": "doc:1"}));
        assert_eq!(outcome["ok"].is_object(), silence == "allow", "{outcome}");
        let (got, body) = post(&server, "order:1", "a", json!(1));
        assert_eq!((got, error(&body).0), (503, "overloaded"));
        // The waiting request does not delay the server's end.
        server.signal("-TERM");
        let mut rest = String::new();
        let _ = first.read_to_string(&mut rest);
    }
}

#[test]
fn each_request_is_signed() {
    let app = Application::replying(|_| json!({}));
    let key = "0123456789abcdef0123456789abcdef";
    let server = serve(&app.url(), &[("THRONG_WEBHOOK_SIGNING_KEY", key)]);
    let now_s = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let before = now_s();
    assert_eq!(server.get("/poll?timeout=0&topic=doc:1").0, 200);
    let seen = app.requests.lock().unwrap().pop().unwrap();
    let field = |name: &str| header(&seen.head, name).unwrap_or_else(|| panic!("{}", seen.head));
    let signed = format!("{}.{}.{}", field("webhook-id"), field("webhook-timestamp"), seen.body);
    // openssl computes the signature independently.
    let mut openssl = Command::new("openssl");
    openssl.args(["dgst", "-sha256", "-hmac", key, "-binary"]);
    let mut openssl = openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    openssl.stdin.take().unwrap().write_all(signed.as_bytes()).unwrap();
    let digest = crate::support::printed_within(openssl).stdout;
    use base64::Engine;
    let want = base64::engine::general_purpose::STANDARD.encode(digest);
    assert_eq!(field("webhook-signature"), format!("v1,{want}"));
    let sent: u64 = field("webhook-timestamp").parse().unwrap();
    assert!((before..=now_s()).contains(&sent));
}
