//! Limits by user and by address, over all shards: what is over is told, and closed if it goes on.

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::*;

fn limited(server: &Server, name: &str) -> f64 {
    server.metric(&format!("throng_limited_total{{name=\"limits.{name}\"}}"))
}

fn with(settings: &[(&str, &str)]) -> Server {
    let settings: Vec<_> =
        settings.iter().map(|(key, value)| (format!("THRONG_LIMITS_{key}"), *value)).collect();
    let mut settings: Vec<_> = settings.iter().map(|(key, value)| (&**key, *value)).collect();
    settings.push(("THRONG_CLIENT_PUBLISH_PREFIXES", "*"));
    Server::with(&["--shards", "2"], &settings)
}

#[test]
fn what_a_user_publishes_counts_on_all_of_its_connections() {
    let server = with(&[("PUBLISHES_PER_SECOND_PER_USER_MAX", "20")]);
    let mut sockets: Vec<_> = (0..6).map(|_| websocket(&server, "user=alice")).collect();
    let mut other = websocket(&server, "user=bob");
    let publish = json!({"type": "publish", "id": "1", "topic": "a", "data": 1});
    let mut answers: Vec<Value> = Vec::new();
    for at in 0..60 {
        answers.push(command(&mut sockets[at % 6], publish.clone()));
    }
    let refused: Vec<_> = answers.iter().filter(|answer| !answer["error"].is_null()).collect();
    assert!((10..=41).contains(&refused.len()), "{} of 60: {:?}", refused.len(), refused.first());
    let text = refused[0].to_string();
    assert!(text.contains("rate_limited"), "{text}");
    assert!(text.contains("limits.publishes_per_second_per_user_max"), "{text}");
    assert!(command(&mut other, publish.clone())["error"].is_null(), "nobody else is concerned");
    // By HTTP it is the same user.
    let body = "{}";
    let request = format!(
        "POST /publish?user=alice&topic=a HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{body}"
    );
    let mut last = String::new();
    for _ in 0..30 {
        last = server.exchange_once(request.as_bytes());
        if last.starts_with("HTTP/1.1 429") {
            break;
        }
    }
    assert!(last.starts_with("HTTP/1.1 429") && last.contains("rate_limited"), "{last}");
    assert!(header(&last, "retry-after").is_some(), "{last}");
    assert!(limited(&server, "publishes_per_second_per_user_max") > refused.len() as f64);
    // It passes.
    std::thread::sleep(Duration::from_millis(1_300));
    assert!(command(&mut sockets[0], publish)["error"].is_null());
}

#[test]
fn a_phoenix_client_is_told_in_its_own_words() {
    let server = with(&[("JOINS_PER_SECOND_PER_USER_MAX", "3")]);
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0&user=alice", server.client);
    let (mut socket, _) = tungstenite::client(url, server.connect()).unwrap();
    let mut ask = |topic: &str, event: &str| {
        let message = json!(["1", "2", topic, event, {}]).to_string();
        socket.send(tungstenite::Message::text(message)).unwrap();
        receive(&mut socket)[4].clone()
    };
    let answers: Vec<_> = (0..12).map(|at| ask(&format!("room:{at}"), "phx_join")).collect();
    let refused: Vec<_> = answers.iter().filter(|answer| answer["status"] == "error").collect();
    assert!((5..=9).contains(&refused.len()), "{answers:?}");
    let reason = refused[0]["response"]["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("rate_limited: too many joins in a second by this user"),
        "{reason}"
    );
    assert_eq!(ask("phoenix", "heartbeat")["status"], "ok");
}

#[test]
fn who_goes_on_and_on_is_closed_with_a_reason_of_its_own() {
    let server = with(&[("COMMANDS_PER_SECOND_PER_USER_MAX", "5")]);
    let mut socket = websocket(&server, "user=alice");
    let ping = tungstenite::Message::text(r#"{"type":"unsubscribe","id":"1","topic":"x"}"#);
    for _ in 0..1_200 {
        if socket.write(ping.clone()).and_then(|()| socket.flush()).is_err() {
            break;
        }
    }
    let close = loop {
        match socket.read() {
            Ok(tungstenite::Message::Close(frame)) => break frame.unwrap(),
            Ok(_) => {}
            Err(error) => panic!("closed without a word: {error}"),
        }
    };
    assert_eq!((u16::from(close.code), &*close.reason), (4029, "rate_limited"));
    let closed = "throng_connections_closed_total{reason=\"rate_limited\"}";
    server.until("it is counted", |server| server.metric(closed) == 1.0);
}

#[test]
fn an_address_is_held_to_its_rates_and_honest_users_of_others_are_not() {
    let proxies = [
        ("THRONG_CLIENT_TRUSTED_PROXIES", "127.0.0.1"),
        ("THRONG_LIMITS_JOINS_PER_SECOND_PER_ADDRESS_MAX", "10"),
    ];
    let server = Server::with(&["--shards", "2"], &proxies);
    let poll = |client: &str, user: &str| {
        let request = format!(
            "GET /poll?topic=a&user={user}&timeout=0 HTTP/1.1\r\nHost: t\r\n\
             X-Forwarded-For: {client}\r\nConnection: close\r\n\r\n"
        );
        server.exchange(request.as_bytes())[9..12].to_string()
    };
    // Each time as another user.
    let answers: Vec<_> = (0..40).map(|at| poll("192.0.2.1", &format!("u{at}"))).collect();
    let refused = answers.iter().filter(|status| **status == "429").count();
    assert!((15..=30).contains(&refused), "{answers:?}");
    assert_ne!(poll("192.0.2.2", "bob"), "429");
    assert_eq!(limited(&server, "joins_per_second_per_address_max"), refused as f64);
    // A direct connection has its socket's address.
    let server = Server::with(&[], &[("THRONG_LIMITS_COMMANDS_PER_SECOND_PER_ADDRESS_MAX", "10")]);
    let mut socket = websocket(&server, "");
    let publish = json!({"type": "unsubscribe", "id": "1", "topic": "a"});
    let answers: Vec<_> = (0..30).map(|_| command(&mut socket, publish.clone())).collect();
    let refused = answers.iter().filter(|it| it.to_string().contains("per_address_max")).count();
    assert!((10..=25).contains(&refused), "{refused}");
    let healthy = b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    (0..30).for_each(|_| assert!(server.exchange(healthy).starts_with("HTTP/1.1 200")));
}

#[test]
fn too_many_bytes_are_left_unread_for_a_while() {
    let server =
        with(&[("BYTES_PER_SECOND_PER_USER_MAX", "64KiB"), ("MESSAGE_BYTES_MAX", "32KiB")]);
    let mut socket = websocket(&server, "user=alice");
    let data = "x".repeat(16 << 10);
    let started = Instant::now();
    for at in 0..16 {
        let publish = json!({"type": "publish", "id": at.to_string(), "topic": "a", "data": data});
        assert!(command(&mut socket, publish)["error"].is_null());
    }
    // 256 KiB at 64 KiB a second, of which the first go at once.
    let took = started.elapsed();
    assert!(took > Duration::from_millis(1_500), "{took:?}");
    assert!(limited(&server, "bytes_per_second_per_user_max") >= 1.0);
}

#[test]
fn a_user_has_so_many_connections_and_topics() {
    let server = with(&[("CONNECTIONS_PER_USER_MAX", "3"), ("TOPICS_PER_USER_MAX", "8")]);
    let connect = |path: &str| {
        let mut stream = Stream::new(server.connect());
        stream.send(&format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n"));
        let head = stream.head();
        (stream, head[9..12].to_string())
    };
    let held: Vec<_> = (0..3).map(|_| connect("/sse?user=alice")).collect();
    assert!(held.iter().all(|(_, status)| status == "200"));
    let (mut fourth, status) = connect("/stream?user=alice");
    assert_eq!(status, "429");
    assert!(fourth.rest().contains("too_many_connections"));
    assert_eq!(connect("/poll?user=alice&timeout=0").1, "429");
    assert_eq!(connect("/sse?user=bob").1, "200");
    drop(held);
    server.until("alice may come in again", |_| connect("/sse?user=alice").1 == "200");
    assert!(limited(&server, "connections_per_user_max") >= 2.0);

    let mut one = websocket(&server, "user=carol");
    let mut two = websocket(&server, "user=carol");
    let mut join = |socket: usize, topic: &str| {
        let socket = if socket == 1 { &mut one } else { &mut two };
        command(socket, json!({"type": "subscribe", "id": "1", "topic": topic}))
    };
    for (socket, topic) in [(1, "a"), (1, "b"), (1, "c"), (2, "a"), (2, "b"), (2, "c")] {
        assert!(join(socket, topic)["error"].is_null(), "{topic}");
    }
    let answer = join(2, "d").to_string();
    assert!(
        answer.contains("too_many_topics") && answer.contains("topics_per_user_max"),
        "{answer}"
    );
    assert!(join(2, "a")["error"].is_null(), "it is in this one already");
    command(&mut one, json!({"type": "unsubscribe", "id": "1", "topic": "a"}));
    let subscribe = json!({"type": "subscribe", "id": "1", "topic": "d"});
    assert!(command(&mut two, subscribe)["error"].is_null());
    let (_, stats) = server.api("GET", "/api/stats", None);
    assert_eq!(stats["limited_by_name"]["limits.topics_per_user_max"], 1, "{stats}");
}

#[test]
fn refusals_are_counted_by_the_limit() {
    let server = with(&[("MESSAGE_BYTES_MAX", "1KiB"), ("FRAME_BYTES_MAX", "4KiB")]);
    let mut socket = websocket(&server, "user=alice");
    let large = json!({"type": "publish", "id": "1", "topic": "a", "data": "x".repeat(1_100)});
    assert!(!command(&mut socket, large)["error"].is_null());
    let request = format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "x".repeat(5_000));
    assert!(server.exchange_once(request.as_bytes()).starts_with("HTTP/1.1 414"));
    let request = format!("GET / HTTP/1.1\r\nHost: t\r\nX: {}\r\n\r\n", "x".repeat(9_000));
    assert!(server.exchange_once(request.as_bytes()).starts_with("HTTP/1.1 431"));
    let meta =
        json!({"type": "subscribe", "id": "1", "topic": "b", "meta": {"x": "x".repeat(2_000)}});
    assert!(!command(&mut socket, meta)["error"].is_null());
    for name in ["message_bytes_max", "uri_bytes_max", "head_bytes_max"] {
        assert_eq!(limited(&server, name), 1.0, "{name}");
    }
    assert_eq!(server.metric("throng_limited_total{name=\"presence.meta_bytes_max\"}"), 1.0);
}

#[test]
fn the_noisiest_are_named() {
    let server = Server::with(&["--shards", "2"], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "*")]);
    let mut loud = websocket(&server, "user=loud");
    let mut quiet = websocket(&server, "user=quiet");
    let publish = json!({"type": "publish", "id": "1", "topic": "a", "data": "x"});
    let mut found = Value::Null;
    server.until("the loudest is named first", |server| {
        for _ in 0..50 {
            command(&mut loud, publish.clone());
        }
        command(&mut quiet, publish.clone());
        found = server.api("GET", "/api/noisiest?by=publishes", None).1;
        let names: Vec<_> = found["noisiest"].as_array().unwrap().iter().collect();
        names.len() == 3 && names[0]["kind"] == "address" && names[1]["name"] == "loud"
    });
    let [address, loud, quiet] = &found["noisiest"].as_array().unwrap()[..] else { panic!() };
    assert_eq!(address["name"], "127.0.0.1");
    assert_eq!((&loud["kind"], &quiet["name"]), (&json!("user"), &json!("quiet")));
    assert!(loud["commands_per_second"].as_f64() > quiet["commands_per_second"].as_f64());
    let (status, _) = server.api("GET", "/api/noisiest?by=everything", None);
    assert_eq!(status, 400);
}

#[test]
fn a_crowd_of_which_each_does_a_little_is_named_by_its_address_alone() {
    let server = Server::with(&["--shards", "2"], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "*")]);
    let accounts = |server: &Server| server.metric("throng_accounts");
    let mut sockets: Vec<_> =
        (0..300).map(|at| websocket(&server, &format!("user=u{at}&topic=t{at}"))).collect();
    // Some may share a counter.
    assert!(accounts(&server) < 10.0, "{} after the crowd has come", accounts(&server));
    let publish = json!({"type": "publish", "id": "1", "topic": "a", "data": "x"});
    let mut found = Value::Null;
    server.until("the address is named", |server| {
        for socket in &mut sockets {
            assert!(command(socket, publish.clone())["error"].is_null());
        }
        found = server.api("GET", "/api/noisiest?by=publishes", None).1;
        found["noisiest"][0]["name"] == "127.0.0.1"
    });
    assert!(found["noisiest"].as_array().unwrap().len() < 10, "{found}");
    assert!(accounts(&server) < 10.0);
}
