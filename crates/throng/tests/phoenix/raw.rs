//! Tests the exact bytes of frames, where a client library would hide a difference.

use std::time::{Duration, Instant};

use tungstenite::Message;
use tungstenite::client::IntoClientRequest;

use super::*;

/// Opens a WebSocket to the Phoenix endpoint with this query.
fn socket(server: &Server, query: &str) -> WebSocket {
    let url = format!("ws://{}/socket/websocket?{query}", server.client);
    tungstenite::client(url, server.connect()).unwrap().0
}

fn send(socket: &mut WebSocket, text: &str) {
    socket.send(Message::text(text)).unwrap();
}

/// Checks that the next messages are these.
fn expect(socket: &mut WebSocket, texts: &[&str]) {
    for text in texts {
        assert_eq!(socket.read().unwrap(), Message::text(*text));
    }
}

/// Returns the code of the close frame, which must be the next one.
fn closed(socket: &mut WebSocket) -> u16 {
    match socket.read().unwrap() {
        Message::Close(Some(frame)) => frame.code.into(),
        other => panic!("{other:?} instead of a close"),
    }
}

/// Returns a binary message: kind, lengths, texts, data.
fn binary(kind: u8, texts: &[&str], data: &[u8]) -> Message {
    let mut bytes = vec![kind];
    bytes.extend(texts.iter().map(|text| text.len() as u8));
    texts.iter().for_each(|text| bytes.extend_from_slice(text.as_bytes()));
    bytes.extend_from_slice(data);
    Message::binary(bytes)
}

#[test]
fn version_2_messages_have_the_exact_bytes() {
    let server = serve(&[]);
    let mut socket = socket(&server, "vsn=2.0.0");
    let mut says = |text: &str, replies: &[&str]| {
        send(&mut socket, text);
        expect(&mut socket, replies);
    };
    says(
        r#"[null,"5","phoenix","heartbeat",{}]"#,
        &[r#"[null,"5","phoenix","phx_reply",{"status":"ok","response":{}}]"#],
    );
    says(
        r#"["1","1","plain:a","say",{}]"#,
        &[
            r#"[null,"1","plain:a","phx_reply",{"status":"error","response":{"reason":"unmatched topic"}}]"#,
        ],
    );
    says(
        r#"["1","1","plain:a","phx_join",{}]"#,
        &[r#"["1","1","plain:a","phx_reply",{"status":"ok","response":{}}]"#],
    );
    // After a second join of the topic, the older join ends, and then the new one gets its reply.
    says(
        r#"["2","2","plain:a","phx_join",{}]"#,
        &[
            r#"["1","1","plain:a","phx_close",{}]"#,
            r#"["2","2","plain:a","phx_reply",{"status":"ok","response":{}}]"#,
        ],
    );
    // The server rejects a message of the older join, and ignores its leave. A message without a ref gets no reply.
    says(
        r#"["1","3","plain:a","say",{"a":1}]"#,
        &[
            r#"["1","3","plain:a","phx_reply",{"status":"error","response":{"reason":"unmatched topic"}}]"#,
        ],
    );
    says(r#"["1","3","plain:a","phx_leave",{}]"#, &[]);
    says(r#"["2",null,"plain:a","say",{"a":2}]"#, &[r#"[null,null,"plain:a","say",{"a":2}]"#]);
    says(
        r#"["2","9","plain:a","phx_leave",{}]"#,
        &[
            r#"["2","9","plain:a","phx_reply",{"status":"ok","response":{}}]"#,
            r#"["2","2","plain:a","phx_close",{}]"#,
        ],
    );
    says(
        r#"["2","10","plain:a","say",{}]"#,
        &[
            r#"[null,"10","plain:a","phx_reply",{"status":"error","response":{"reason":"unmatched topic"}}]"#,
        ],
    );
    // Leaving a topic that is not joined gets a reply and no phx_close.
    says(
        r#"["2","11","plain:a","phx_leave",{}]"#,
        &[r#"["2","11","plain:a","phx_reply",{"status":"ok","response":{}}]"#],
    );
    says(
        r#"["3","3","refused:a","phx_join",{}]"#,
        &[
            r#"["3","3","refused:a","phx_reply",{"status":"error","response":{"reason":"unauthorized"}}]"#,
        ],
    );
}

#[test]
fn version_1_messages_have_the_exact_bytes() {
    let server = serve(&[]);
    // Without a version, it is version 1.
    for query in ["vsn=1.0.0", ""] {
        let mut socket = socket(&server, query);
        let mut says = |text: &str, replies: &[&str]| {
            send(&mut socket, text);
            expect(&mut socket, replies);
        };
        says(
            r#"{"topic":"phoenix","event":"heartbeat","payload":{},"ref":"5"}"#,
            &[
                r#"{"topic":"phoenix","event":"phx_reply","payload":{"status":"ok","response":{}},"ref":"5","join_ref":null}"#,
            ],
        );
        says(
            r#"{"topic":"plain:a","event":"phx_join","payload":{},"ref":"1","join_ref":"1"}"#,
            &[
                r#"{"topic":"plain:a","event":"phx_reply","payload":{"status":"ok","response":{}},"ref":"1","join_ref":"1"}"#,
            ],
        );
        says(
            r#"{"topic":"plain:a","event":"phx_join","payload":{},"ref":"2","join_ref":"2"}"#,
            &[
                r#"{"topic":"plain:a","event":"phx_close","payload":{},"ref":"1","join_ref":"1"}"#,
                r#"{"topic":"plain:a","event":"phx_reply","payload":{"status":"ok","response":{}},"ref":"2","join_ref":"2"}"#,
            ],
        );
        says(
            r#"{"topic":"plain:a","event":"say","payload":{"a":2},"ref":null,"join_ref":"2"}"#,
            &[r#"{"topic":"plain:a","event":"say","payload":{"a":2},"ref":null,"join_ref":null}"#],
        );
        says(
            r#"{"topic":"plain:a","event":"phx_leave","payload":{},"ref":"9","join_ref":"2"}"#,
            &[
                r#"{"topic":"plain:a","event":"phx_reply","payload":{"status":"ok","response":{}},"ref":"9","join_ref":"2"}"#,
                r#"{"topic":"plain:a","event":"phx_close","payload":{},"ref":"2","join_ref":"2"}"#,
            ],
        );
        says(
            r#"{"topic":"plain:a","event":"say","payload":{},"ref":"10","join_ref":"2"}"#,
            &[
                r#"{"topic":"plain:a","event":"phx_reply","payload":{"status":"error","response":{"reason":"unmatched topic"}},"ref":"10","join_ref":null}"#,
            ],
        );
    }
}

#[test]
fn binary_messages_have_the_exact_bytes() {
    let server = serve(&[]);
    let mut socket = socket(&server, "vsn=2.0.0");
    send(&mut socket, r#"["1","1","others:a","phx_join",{}]"#);
    send(&mut socket, r#"["2","2","plain:a","phx_join",{}]"#);
    for _ in 0..2 {
        socket.read().unwrap();
    }
    socket.send(binary(0, &["1", "7", "others:a", "bin"], &[0, 255])).unwrap();
    expect(&mut socket, &[r#"["1","7","others:a","phx_reply",{"status":"ok","response":{}}]"#]);
    // A message without a ref gets no reply.
    socket.send(binary(0, &["2", "", "plain:a", "bin"], &[0, 255])).unwrap();
    assert_eq!(socket.read().unwrap(), binary(2, &["plain:a", "bin"], &[0, 255]));
}

#[test]
fn invalid_messages_close_with_1002() {
    let server = serve(&[]);
    for (vsn, frame) in [
        ("2.0.0", Message::text("nonsense")),
        ("2.0.0", Message::text("[1]")),
        ("2.0.0", Message::text(r#"{"topic":"a","event":"b","payload":{},"ref":"1"}"#)),
        ("2.0.0", Message::binary(vec![0, 200, 1])),
        ("1.0.0", Message::text(r#"[null,"5","phoenix","heartbeat",{}]"#)),
        ("1.0.0", Message::binary(vec![0, 0, 0, 0, 0])),
    ] {
        let mut socket = socket(&server, &format!("vsn={vsn}"));
        socket.send(frame.clone()).unwrap();
        assert_eq!(closed(&mut socket), 1002, "{vsn} {frame:?}");
    }
}

#[test]
fn an_unknown_protocol_version_is_rejected() {
    let server = serve(&[]);
    for vsn in ["3.0.0", "x", "", "1"] {
        let url = format!("ws://{}/socket/websocket?vsn={vsn}", server.client);
        match tungstenite::client(url, server.connect()) {
            Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(outcome))) => {
                assert_eq!(outcome.status(), 403, "{vsn:?}");
            }
            other => panic!("{vsn:?}: {other:?}"),
        }
    }
}

#[test]
fn a_silent_websocket_is_closed() {
    let server = serve(&[SHORT_SILENCE]);
    let started = Instant::now();
    let mut socket = socket(&server, "vsn=2.0.0");
    // The server sends no pings: a browser would respond to them even for a page that hangs.
    match socket.read() {
        Ok(Message::Close(_)) => {}
        other => panic!("{other:?} instead of a close"),
    }
    let silence = started.elapsed();
    assert!(silence >= Duration::from_secs(2), "{silence:?}");
}

#[test]
fn a_subprotocol_with_a_token_is_accepted() {
    let server = serve(&[]);
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0", server.client);
    let mut request = url.into_client_request().unwrap();
    let offered = "phoenix, base64url.bearer.phx.dG9rZW4";
    request.headers_mut().insert("Sec-WebSocket-Protocol", offered.parse().unwrap());
    let (mut socket, outcome) = tungstenite::client(request, server.connect()).unwrap();
    assert_eq!(outcome.headers()["Sec-WebSocket-Protocol"], "phoenix");
    send(&mut socket, r#"[null,"5","phoenix","heartbeat",{}]"#);
    expect(&mut socket, &[r#"[null,"5","phoenix","phx_reply",{"status":"ok","response":{}}]"#]);
}

/// GraphQL clients send refs that are JSON values other than strings.
#[test]
fn refs_may_be_any_json() {
    let server = serve(&[]);
    let mut first = socket(&server, "vsn=1.0.0");
    send(&mut first, r#"{"topic":"plain:a","event":"phx_join","payload":{},"ref":1}"#);
    let ok = r#""event":"phx_reply","payload":{"status":"ok","response":{}}"#;
    expect(&mut first, &[&format!(r#"{{"topic":"plain:a",{ok},"ref":1,"join_ref":null}}"#)]);
    let mut second = socket(&server, "vsn=2.0.0");
    for (join_ref, reference) in [("1", "1"), ("7", "9"), ("\"7\"", "true"), ("[7]", "{\"a\": 7}")]
    {
        let reply = |join_ref: &str, reference: &str| {
            format!(
                r#"[{join_ref},{reference},"plain:a","phx_reply",{{"status":"ok","response":{{}}}}]"#
            )
        };
        send(&mut second, &format!(r#"[{join_ref},{join_ref},"plain:a","phx_join",{{}}]"#));
        expect(&mut second, &[&reply(join_ref, join_ref)]);
        send(&mut second, &format!(r#"[{join_ref},{reference},"plain:a","phx_leave",{{}}]"#));
        let close = format!(r#"[{join_ref},{join_ref},"plain:a","phx_close",{{}}]"#);
        expect(&mut second, &[&reply(join_ref, reference), &close]);
    }
}

#[test]
fn a_join_may_carry_any_payload() {
    let server = serve(&[]);
    let mut socket = socket(&server, "vsn=2.0.0");
    for payload in ["null", "7", "\"text\"", "[1]", "[{\"meta\":1}]", "{\"meta\":null}"] {
        send(&mut socket, &format!(r#"["1","1","plain:a","phx_join",{payload}]"#));
        expect(&mut socket, &[r#"["1","1","plain:a","phx_reply",{"status":"ok","response":{}}]"#]);
        send(&mut socket, r#"["1","2","plain:a","phx_leave",{}]"#);
        expect(
            &mut socket,
            &[
                r#"["1","2","plain:a","phx_reply",{"status":"ok","response":{}}]"#,
                r#"["1","1","plain:a","phx_close",{}]"#,
            ],
        );
    }
}

#[test]
fn the_largest_message_fits_in_a_frame() {
    let server = serve(&[("THRONG_LIMITS_OUTBOX_BYTES_MAX", "1MiB")]);
    let mut socket = socket(&server, "vsn=2.0.0");
    send(&mut socket, r#"["1","1","others:a","phx_join",{}]"#);
    socket.read().unwrap();
    // limits.message_bytes_max is 64 KiB, and the payload has exactly this size.
    let text = "x".repeat(64 * 1024 - r#"{"a":""}"#.len());
    send(&mut socket, &format!(r#"["1","2","others:a","say",{{"a":"{text}"}}]"#));
    expect(&mut socket, &[r#"["1","2","others:a","phx_reply",{"status":"ok","response":{}}]"#]);
}

/// Clients can't forge replies or events of the server, whatever way they publish.
#[test]
fn reserved_events_are_rejected_everywhere() {
    let server = serve(&[]);
    let mut member = socket(&server, "vsn=2.0.0");
    send(&mut member, r#"["1","1","plain:a","phx_join",{}]"#);
    member.read().unwrap();
    let mut ws = websocket(&server, "");
    for event in ["phx_reply", "presence_diff", "chan_reply_2", "recovery", "error", "open"] {
        send(&mut member, &format!(r#"["1","2","plain:a","{event}",{{}}]"#));
        let outcome = member.read().unwrap().to_string();
        assert!(outcome.contains(r#""status":"error""#), "{outcome}");
        let publish =
            json!({"type":"publish","id":1,"topic":"plain:a","event":event,"data":{"a":1}});
        assert_eq!(command(&mut ws, publish)["error"]["code"], "reserved_event");
        let request = format!(
            "POST /publish?topic=plain:a&event={event} HTTP/1.1\r\nHost: t\r\n\
             Content-Length: 1\r\nConnection: close\r\n\r\nx"
        );
        assert!(server.exchange(request.as_bytes()).starts_with("HTTP/1.1 403"));
        let publish = json!({"topic":"plain:a","event":event,"data":{"a":1}});
        let (status, outcome) = server.api("POST", "/api/publish", Some(publish));
        assert_eq!((status, &outcome["error"]["code"]), (400, &json!("reserved_event")));
    }
}

/// A message of an unknown kind gets a reply, and the server reads the messages after it.
#[test]
fn an_unknown_message_kind_does_not_close_the_connection() {
    let server = serve(&[]);
    let mut socket = socket(&server, "vsn=2.0.0");
    socket.send(Message::binary(vec![9, 0, 0, 0, 0])).unwrap();
    let outcome = socket.read().unwrap().to_string();
    assert!(
        outcome.starts_with(r#"[null,null,"phoenix","phx_reply",{"status":"error""#),
        "{outcome}"
    );
    assert!(outcome.contains("kind 9"), "{outcome}");
    send(&mut socket, r#"[null,"5","phoenix","heartbeat",{}]"#);
    expect(&mut socket, &[r#"[null,"5","phoenix","phx_reply",{"status":"ok","response":{}}]"#]);
}

/// Clients can join the topic of all users and their own, but only the application publishes to these.
#[test]
fn clients_can_not_send_to_all_or_to_users() {
    let server = Server::with(&[], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "*")]);
    let mut member = socket(&server, "vsn=2.0.0&user=alice");
    for (join, topic) in [("1", "*"), ("2", "@alice")] {
        send(&mut member, &format!(r#"["{join}","{join}","{topic}","phx_join",{{}}]"#));
        assert!(member.read().unwrap().to_string().contains(r#""status":"ok""#));
        send(&mut member, &format!(r#"["{join}","9","{topic}","hello",{{}}]"#));
        let outcome = member.read().unwrap().to_string();
        assert!(outcome.contains("clients may not send to this topic"), "{outcome}");
    }
    send(&mut member, r#"["3","3","@bob","phx_join",{}]"#);
    assert!(member.read().unwrap().to_string().contains(r#""status":"error""#));
    server.post("/api/send", json!({"user":"alice","data":{"n":1}}));
    expect(&mut member, &[r#"[null,null,"@alice","message",{"n":1}]"#]);
    server.post("/api/broadcast", json!({"data":"all"}));
    expect(&mut member, &[r#"[null,null,"*","message",{"data":"all"}]"#]);
}

/// phoenix.js reads only the `status` of a long-poll response, so it must be one that phoenix.js knows.
#[test]
fn a_rejected_long_poll_has_a_status_that_phoenix_js_knows() {
    let full = serve(&[("THRONG_LIMITS_LONGPOLL_SESSIONS_MAX", "0")]);
    let (status, outcome) = full.get("/socket/longpoll?vsn=2.0.0");
    assert_eq!((status, &outcome["status"]), (200, &json!(500)));
    assert_eq!(outcome["error"]["code"], "overloaded");
    let server = serve(&[]);
    let (status, outcome) = server.get("/socket/longpoll?vsn=2.0.0&user=");
    assert_eq!((status, &outcome["status"]), (200, &json!(403)));
    let (status, outcome) = server.get("/socket/longpoll?vsn=9");
    assert_eq!((status, &outcome["status"]), (200, &json!(403)));
    let put =
        server.exchange(b"PUT /socket/longpoll HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    assert!(put.starts_with("HTTP/1.1 405") && put.contains("Allow: GET, POST, OPTIONS"), "{put}");
}

/// Many sessions that poll, hang up, are closed, or are abandoned leave no state behind.
#[test]
fn ended_sessions_leave_no_state_behind() {
    let server = serve_with(&["--shards", "3"], &[("THRONG_TIMEOUTS_LONGPOLL_SECONDS", "1")]);
    for n in 0..60 {
        let base = format!("/socket/longpoll?vsn=2.0.0&user=u{}", n % 7);
        let (_, opened) = server.get(&base);
        let token = opened["token"].as_str().unwrap().to_string();
        let join = r#"["1","1","room:storm","phx_join",{}]"#;
        let post = format!(
            "POST {base}&token={token} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{join}",
            join.len()
        );
        assert!(server.exchange(post.as_bytes()).ends_with(r#"{"status":200}"#));
        let mut poll = Stream::new(server.connect());
        match n % 3 {
            0 => {
                // A second poll at the same time replaces the first.
                poll.send(&format!("GET {base}&token={token} HTTP/1.1\r\nHost: t\r\n\r\n"));
                let (_, polled) = server.get(&format!("{base}&token={token}"));
                assert!(polled["status"].as_u64().is_some(), "{polled}");
            }
            1 => poll.send(&format!("GET {base}&token={token} HTTP/1.1\r\nHost: t\r\n\r\n")),
            _ => {}
        }
    }
    // The first sessions may have ended already.
    assert!(server.metric("throng_longpoll_sessions") > 0.0);
    for n in 0..3 {
        server.post("/api/disconnect", json!({"user":format!("u{n}")}));
    }
    server.publish("room:storm", json!("x"));
    // No client polls the other sessions any more.
    server.until("all sessions are over", |server| {
        server.metric("throng_longpoll_sessions") == 0.0
            && server.metric("throng_outbox_bytes") == 0.0
            && server.metric("throng_outboxes") == 0.0
            && server.metric("throng_presence_topics") == 0.0
            && server.metric("throng_connections{transport=\"phoenix_longpoll\"}") == 0.0
    });
    let (_, gone) = server.get("/presence?topic=room:storm");
    assert_eq!((&gone["users"], &gone["connections"]), (&json!(0), &json!(0)));
}

/// A join makes the server send a presence snapshot. The server sends the next snapshot only when the one before has
/// left. So a client that joins many topics at once is not a slow consumer, and a client that reads nothing costs no
/// more than one snapshot.
#[test]
fn many_joins_of_a_client_that_reads_nothing_cost_little() {
    let server = serve(&[("THRONG_SOCKET_SEND_BUFFER_BYTES", "64KiB")]);
    let mut others = Vec::new();
    let meta = "m".repeat(900);
    for n in 0..60 {
        let mut other = socket(&server, &format!("vsn=2.0.0&user=u{n}"));
        send(
            &mut other,
            &format!(r#"["1","1","room:big","phx_join",{{"meta":{{"a":"{meta}"}}}}]"#),
        );
        others.push(other);
    }
    server.until("all are listed", |server| {
        server.get("/presence?topic=room:big").1["presences"]
            .as_object()
            .is_some_and(|all| all.len() == 60)
    });
    let mut greedy = socket(&server, "vsn=2.0.0");
    for n in 0..400 {
        let join = format!(r#"["{n}","{n}","room:big","phx_join",{{}}]"#);
        // The server may have closed already.
        if greedy.write(Message::text(join)).is_err() {
            break;
        }
    }
    let _ = greedy.flush();
    server.until("it is served", |server| {
        server.metric("throng_connections{transport=\"phoenix\"}") >= 61.0
    });
    assert!(server.metric("throng_outbox_bytes") < 300_000.0);
    // When the client reads, it gets a reply to each join, and the snapshot at the end.
    let (mut replies, mut last) = (0, String::new());
    while replies < 400 || !last.contains("presence_state") {
        last = greedy.read().unwrap().to_string();
        replies += usize::from(last.contains("phx_reply"));
    }
}
