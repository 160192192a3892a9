//! Limits by user and by address, over all shards: a client beyond a limit gets errors, and the server closes it if
//! it goes on.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::support::*;
use serde_json::{Value, json};

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

/// Sends a command `times` times in one write, so that a slow machine does not spread them over time. Returns the
/// replies.
fn burst(socket: &mut WebSocket, command: &Value, times: usize) -> Vec<Value> {
    send_burst(socket, command, times);
    replies(socket, times)
}

fn send_burst(socket: &mut WebSocket, command: &Value, times: usize) {
    let text = command.to_string();
    (0..times).for_each(|_| socket.write(tungstenite::Message::text(text.clone())).unwrap());
    socket.flush().unwrap();
}

fn replies(socket: &mut WebSocket, count: usize) -> Vec<Value> {
    let mut all = Vec::new();
    while all.len() < count {
        let object = receive(socket);
        if object["type"] == "reply" {
            all.push(object);
        }
    }
    all
}

/// Sends requests in one write. Returns the responses up to the one after which the server closes: the last one, or a
/// rejection.
fn pipelined(server: &Server, requests: &[String]) -> Vec<String> {
    let mut socket = server.connect();
    // The server may close before it has read all.
    let _ = socket.write_all(requests.concat().as_bytes());
    let all = Stream::new(socket).rest();
    all.split("HTTP/1.1 ").skip(1).map(String::from).collect()
}

/// Checks a rate: since `begun` no more has passed than one second's limit, the credit, and the share of the time
/// since. One second's limit passes at once.
fn assert_rate(passed: usize, per_second: usize, begun: Instant) {
    let seconds = begun.elapsed().as_secs() as usize + 2;
    let most = per_second + per_second / 4 + 1 + per_second * seconds;
    assert!((per_second..=most).contains(&passed), "{passed} passed in {seconds} seconds");
}

#[test]
fn what_a_user_publishes_counts_on_all_of_its_connections() {
    let server = with(&[("PUBLISHES_PER_SECOND_PER_USER_MAX", "20")]);
    let mut sockets: Vec<_> = (0..6).map(|_| websocket(&server, "user=alice")).collect();
    let mut other = websocket(&server, "user=bob");
    let publish = json!({"type": "publish", "id": "1", "topic": "a", "data": 1});
    let begun = Instant::now();
    sockets.iter_mut().for_each(|socket| send_burst(socket, &publish, 100));
    let responses: Vec<Value> =
        sockets.iter_mut().flat_map(|socket| replies(socket, 100)).collect();
    let refused: Vec<_> = responses.iter().filter(|outcome| !outcome["error"].is_null()).collect();
    assert_rate(responses.len() - refused.len(), 20, begun);
    let text = refused[0].to_string();
    assert!(text.contains("rate_limited"), "{text}");
    assert!(text.contains("limits.publishes_per_second_per_user_max"), "{text}");
    assert!(command(&mut other, publish.clone())["error"].is_null(), "nobody else is concerned");
    // Requests by HTTP count for the same user.
    let request =
        "POST /publish?user=alice&topic=a HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}";
    let responses = pipelined(&server, &vec![request.to_string(); 400]);
    let last = responses.last().unwrap();
    assert!(last.starts_with("429 ") && last.contains("rate_limited"), "{last}");
    assert!(header(last, "retry-after").is_some(), "{last}");
    assert!(limited(&server, "publishes_per_second_per_user_max") > refused.len() as f64);
    // The rejections end. The server may have closed the earlier connections, since they went on.
    let mut again = websocket(&server, "user=alice");
    server.until("it passes", |_| command(&mut again, publish.clone())["error"].is_null());
}

#[test]
fn a_phoenix_client_gets_its_own_protocols_error() {
    let server = with(&[("JOINS_PER_SECOND_PER_USER_MAX", "3")]);
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0&user=alice", server.client);
    let (mut socket, _) = tungstenite::client(url, server.connect()).unwrap();
    let message = |topic: &str, event: &str| {
        tungstenite::Message::text(json!(["1", "2", topic, event, {}]).to_string())
    };
    // Sends all in one write, so that a slow machine does not spread them over time.
    let begun = Instant::now();
    for at in 0..60 {
        socket.write(message(&format!("room:{at}"), "phx_join")).unwrap();
    }
    socket.flush().unwrap();
    let responses: Vec<_> = (0..60).map(|_| receive(&mut socket)[4].clone()).collect();
    let refused: Vec<_> = responses.iter().filter(|outcome| outcome["status"] == "error").collect();
    assert_rate(responses.len() - refused.len(), 3, begun);
    let reason = refused[0]["response"]["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("rate_limited: too many joins in a second by this user"),
        "{reason}"
    );
    socket.send(message("phoenix", "heartbeat")).unwrap();
    assert_eq!(receive(&mut socket)[4]["status"], "ok");
}

#[test]
fn who_goes_on_and_on_is_closed_with_a_reason_of_its_own() {
    let server = with(&[("COMMANDS_PER_SECOND_PER_USER_MAX", "5")]);
    let mut socket = websocket(&server, "user=alice");
    let command = json!({"type": "unsubscribe", "id": "1", "topic": "x"});
    // The server closes the connection after some 500 rejections. It has read everything that was sent until then.
    let close = 'closed: {
        for _ in 0..30 {
            send_burst(&mut socket, &command, 50);
            let mut replies = 0;
            while replies < 50 {
                match socket.read() {
                    Ok(tungstenite::Message::Close(frame)) => break 'closed frame.unwrap(),
                    Ok(message) => replies += usize::from(message.is_text()),
                    Err(error) => panic!("closed without a word: {error}"),
                }
            }
        }
        panic!("it is never closed");
    };
    assert_eq!((u16::from(close.code), &*close.reason), (4029, "rate_limited"));
    let closed = "throng_connections_closed_total{reason=\"rate_limited\"}";
    server.until("it is counted", |server| server.metric(closed) == 1.0);
}

#[test]
fn an_address_is_limited_to_its_rates_and_honest_users_of_others_are_not() {
    let proxies = [
        ("THRONG_CLIENT_TRUSTED_PROXIES", "127.0.0.1"),
        ("THRONG_LIMITS_JOINS_PER_SECOND_PER_ADDRESS_MAX", "10"),
    ];
    let server = Server::with(&["--shards", "2"], &proxies);
    let poll = |client: &str, user: &str| {
        format!(
            "GET /poll?topic=a&user={user}&timeout=0 HTTP/1.1\r\nHost: t\r\n\
             X-Forwarded-For: {client}\r\n\r\n"
        )
    };
    // Each request is from another user at the same address.
    let requests: Vec<_> = (0..400).map(|at| poll("192.0.2.1", &format!("u{at}"))).collect();
    let (begun, mut passed) = (Instant::now(), 0);
    for _ in 0..5 {
        let responses = pipelined(&server, &requests);
        let (last, before) = responses.split_last().unwrap();
        assert!(last.starts_with("429 "), "{last}");
        assert!(before.iter().all(|outcome| outcome.starts_with("200 ")), "{before:?}");
        passed += before.len();
    }
    assert_rate(passed, 10, begun);
    let other = poll("192.0.2.2", "bob").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    assert!(pipelined(&server, &[other])[0].starts_with("200 "));
    assert_eq!(limited(&server, "joins_per_second_per_address_max"), 5.0);
    // A direct connection has its socket's address.
    let server = Server::with(&[], &[("THRONG_LIMITS_COMMANDS_PER_SECOND_PER_ADDRESS_MAX", "10")]);
    let publish = json!({"type": "unsubscribe", "id": "1", "topic": "a"});
    server.until("the address is over its limit", |server| {
        let mut socket = websocket(server, "");
        // The server determines the address of a connection at its first command.
        command(&mut socket, publish.clone());
        let responses = burst(&mut socket, &publish, 100);
        responses.iter().any(|it| it.to_string().contains("per_address_max"))
    });
    let healthy = b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    (0..30).for_each(|_| assert!(server.exchange(healthy).starts_with("HTTP/1.1 200")));
}

#[test]
fn too_many_bytes_are_left_unread_for_a_while() {
    let server =
        with(&[("BYTES_PER_SECOND_PER_USER_MAX", "64KiB"), ("MESSAGE_BYTES_MAX", "32KiB")]);
    let mut socket = websocket(&server, "user=alice");
    let data = "x".repeat(16 << 10);
    let publish = json!({"type": "publish", "id": "1", "topic": "a", "data": data});
    let started = Instant::now();
    let responses = burst(&mut socket, &publish, 16);
    assert!(responses.iter().all(|outcome| outcome["error"].is_null()), "{responses:?}");
    // 256 KiB at 64 KiB a second, of which the first second's budget passes at once.
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
    let open: Vec<_> = (0..3).map(|_| connect("/sse?user=alice")).collect();
    assert!(open.iter().all(|(_, status)| status == "200"));
    let (mut fourth, status) = connect("/stream?user=alice");
    assert_eq!(status, "429");
    assert!(fourth.rest().contains("too_many_connections"));
    assert_eq!(connect("/poll?user=alice&timeout=0").1, "429");
    assert_eq!(connect("/sse?user=bob").1, "200");
    drop(open);
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
    let outcome = join(2, "d").to_string();
    assert!(
        outcome.contains("too_many_topics") && outcome.contains("topics_per_user_max"),
        "{outcome}"
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
    // A client with at most 16 commands in a second has no counter. Each of these sends more in one write.
    server.until("the loudest is named first", |server| {
        burst(&mut loud, &publish, 200);
        burst(&mut quiet, &publish, 40);
        found = server.api("GET", "/api/noisiest?by=publishes", None).1;
        let names: Vec<_> = found["noisiest"].as_array().unwrap().iter().collect();
        names.len() == 3 && names[0]["kind"] == "address" && names[1]["name"] == "loud"
    });
    let [address, loud, quiet] = &found["noisiest"].as_array().unwrap()[..] else { panic!() };
    assert_eq!(address["name"], "127.0.0.1");
    assert_eq!((&loud["kind"], &quiet["name"]), (&json!("user"), &json!("quiet")));
    let rates = [address, loud, quiet].map(|it| it["publishes_per_second"].as_f64().unwrap());
    assert!(rates[0] >= rates[1] && rates[1] >= rates[2], "{found}");
    let (status, _) = server.api("GET", "/api/noisiest?by=everything", None);
    assert_eq!(status, 400);
}

#[test]
fn a_crowd_of_which_each_does_a_little_is_named_by_its_address_alone() {
    let server = Server::with(&["--shards", "2"], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "*")]);
    let accounts = |server: &Server| server.metric("throng_accounts");
    let mut sockets: Vec<_> =
        (0..300).map(|at| websocket(&server, &format!("user=u{at}&topic=t{at}"))).collect();
    // A few users may share a counter.
    assert!(accounts(&server) < 10.0, "{} after the crowd has come", accounts(&server));
    let publish = json!({"type": "publish", "id": "1", "topic": "a", "data": "x"});
    let mut found = Value::Null;
    // Each client sends at most 6 commands in a second, and 16 are free. All together send 1,800 commands, of which
    // the server samples one in 64.
    let mut next = Instant::now();
    server.until("the address is named", |server| {
        if Instant::now() >= next {
            sockets.iter_mut().for_each(|socket| send_burst(socket, &publish, 6));
            for socket in &mut sockets {
                assert!(replies(socket, 6).iter().all(|outcome| outcome["error"].is_null()));
            }
            next = Instant::now() + Duration::from_secs(3);
        }
        found = server.api("GET", "/api/noisiest?by=publishes", None).1;
        found["noisiest"][0]["name"] == "127.0.0.1"
    });
    assert!(found["noisiest"].as_array().unwrap().len() < 10, "{found}");
    assert!(accounts(&server) < 10.0);
}
