//! Frames to the byte, where the client would hide a difference.

use std::time::{Duration, Instant};

use tungstenite::Message;
use tungstenite::client::IntoClientRequest;

use super::*;

/// A WebSocket to the Phoenix endpoint, with this query.
fn socket(server: &Server, query: &str) -> WebSocket {
    let url = format!("ws://{}/socket/websocket?{query}", server.client);
    tungstenite::client(url, server.connect()).unwrap().0
}

fn send(socket: &mut WebSocket, text: &str) {
    socket.send(Message::text(text)).unwrap();
}

/// The next messages must be these.
fn expect(socket: &mut WebSocket, texts: &[&str]) {
    for text in texts {
        assert_eq!(socket.read().unwrap(), Message::text(*text));
    }
}

/// The code of the close frame, which must come next.
fn closed(socket: &mut WebSocket) -> u16 {
    match socket.read().unwrap() {
        Message::Close(Some(frame)) => frame.code.into(),
        other => panic!("{other:?} instead of a close"),
    }
}

/// A binary message: kind, lengths, texts, data.
fn binary(kind: u8, texts: &[&str], data: &[u8]) -> Message {
    let mut bytes = vec![kind];
    bytes.extend(texts.iter().map(|text| text.len() as u8));
    texts.iter().for_each(|text| bytes.extend_from_slice(text.as_bytes()));
    bytes.extend_from_slice(data);
    Message::binary(bytes)
}

#[test]
fn version_2_to_the_byte() {
    let server = serve(&[]);
    let mut socket = socket(&server, "vsn=2.0.0");
    let mut says = |text: &str, answers: &[&str]| {
        send(&mut socket, text);
        expect(&mut socket, answers);
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
    // The same topic again: the older join ends, then the new one is answered.
    says(
        r#"["2","2","plain:a","phx_join",{}]"#,
        &[
            r#"["1","1","plain:a","phx_close",{}]"#,
            r#"["2","2","plain:a","phx_reply",{"status":"ok","response":{}}]"#,
        ],
    );
    // Of the older join: passed over. No ref: no answer.
    says(r#"["1","3","plain:a","say",{"a":1}]"#, &[]);
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
    // A topic that is not joined is left without a word about it.
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
fn version_1_to_the_byte() {
    let server = serve(&[]);
    // No version is the first.
    for query in ["vsn=1.0.0", ""] {
        let mut socket = socket(&server, query);
        let mut says = |text: &str, answers: &[&str]| {
            send(&mut socket, text);
            expect(&mut socket, answers);
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
fn binary_messages_to_the_byte() {
    let server = serve(&[]);
    let mut socket = socket(&server, "vsn=2.0.0");
    send(&mut socket, r#"["1","1","others:a","phx_join",{}]"#);
    send(&mut socket, r#"["2","2","plain:a","phx_join",{}]"#);
    for _ in 0..2 {
        socket.read().unwrap();
    }
    socket.send(binary(0, &["1", "7", "others:a", "bin"], &[0, 255])).unwrap();
    expect(&mut socket, &[r#"["1","7","others:a","phx_reply",{"status":"ok","response":{}}]"#]);
    // No ref: no answer.
    socket.send(binary(0, &["2", "", "plain:a", "bin"], &[0, 255])).unwrap();
    assert_eq!(socket.read().unwrap(), binary(2, &["plain:a", "bin"], &[0, 255]));
}

#[test]
fn what_is_no_message_closes_with_1002() {
    let server = serve(&[]);
    for (vsn, frame) in [
        ("2.0.0", Message::text("nonsense")),
        ("2.0.0", Message::text("[1]")),
        ("2.0.0", Message::text(r#"{"topic":"a","event":"b","payload":{},"ref":"1"}"#)),
        ("2.0.0", Message::binary(vec![0, 200, 1])),
        ("2.0.0", Message::binary(vec![9, 0, 0, 0, 0])),
        ("1.0.0", Message::text(r#"[null,"5","phoenix","heartbeat",{}]"#)),
        ("1.0.0", Message::binary(vec![0, 0, 0, 0, 0])),
    ] {
        let mut socket = socket(&server, &format!("vsn={vsn}"));
        socket.send(frame.clone()).unwrap();
        assert_eq!(closed(&mut socket), 1002, "{vsn} {frame:?}");
    }
}

#[test]
fn a_version_that_nobody_speaks_is_refused() {
    let server = serve(&[]);
    for vsn in ["3.0.0", "x", "", "1"] {
        let url = format!("ws://{}/socket/websocket?vsn={vsn}", server.client);
        match tungstenite::client(url, server.connect()) {
            Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(answer))) => {
                assert_eq!(answer.status(), 403, "{vsn:?}");
            }
            other => panic!("{vsn:?}: {other:?}"),
        }
    }
}

#[test]
fn silence_closes() {
    let server = serve(&[SHORT_SILENCE]);
    let started = Instant::now();
    let mut socket = socket(&server, "vsn=2.0.0");
    // No pings: the client of a browser would answer them for a page that hangs.
    match socket.read() {
        Ok(Message::Close(_)) => {}
        other => panic!("{other:?} instead of a close"),
    }
    let silence = started.elapsed();
    let (least, most) = (Duration::from_secs(2), Duration::from_secs(8));
    assert!((least..most).contains(&silence), "{silence:?}");
}

#[test]
fn a_token_in_the_subprotocol_is_agreed_to() {
    let server = serve(&[]);
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0", server.client);
    let mut request = url.into_client_request().unwrap();
    let offered = "phoenix, base64url.bearer.phx.dG9rZW4";
    request.headers_mut().insert("Sec-WebSocket-Protocol", offered.parse().unwrap());
    let (mut socket, answer) = tungstenite::client(request, server.connect()).unwrap();
    assert_eq!(answer.headers()["Sec-WebSocket-Protocol"], "phoenix");
    send(&mut socket, r#"[null,"5","phoenix","heartbeat",{}]"#);
    expect(&mut socket, &[r#"[null,"5","phoenix","phx_reply",{"status":"ok","response":{}}]"#]);
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
    // limits.message_bytes_max is 64 KiB: the payload has just so many.
    let text = "x".repeat(64 * 1024 - r#"{"a":""}"#.len());
    send(&mut socket, &format!(r#"["1","2","others:a","say",{{"a":"{text}"}}]"#));
    expect(&mut socket, &[r#"["1","2","others:a","phx_reply",{"status":"ok","response":{}}]"#]);
}
