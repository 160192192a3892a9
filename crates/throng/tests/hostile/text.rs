//! Invalid UTF-8 wherever text is expected.

use std::io::Write;

use tungstenite::Message;

use super::*;

const BROKEN: [&[u8]; 5] = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf"];

/// Sends a request with these bytes in place of its `?`. Returns the status of the response.
fn status(server: &Server, request: &str, bytes: &[u8]) -> u16 {
    let (before, after) = request.split_once('?').unwrap();
    let whole = [before.as_bytes(), bytes, after.as_bytes()].concat();
    statuses(server, &whole)[0]
}

#[test]
fn requests_reject_invalid_utf_8_everywhere() {
    let server = Server::with(&[], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "*")]);
    let mut witness = Witness::new(&server);
    for bytes in BROKEN {
        let encoded: String = bytes.iter().map(|byte| format!("%{byte:02X}")).collect();
        let end = "HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
        for query in
            ["topic=?", "user=?", "?=a", "topic=a&tag=?", "topic=a&since=?", "topic=a&since:?=1"]
        {
            let query = query.replace('?', &encoded);
            for path in ["/sse", "/poll", "/stream"] {
                let request = format!("GET {path}~{query} {end}").replace('~', "?");
                assert_eq!(statuses(&server, request.as_bytes()), [400], "{path} {query}");
            }
        }
        for (request, want) in [
            ("? /sse HTTP/1.1\r\nHost: t\r\n\r\n", &[400][..]),
            ("GET /?sse HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", &[400, 404]),
            ("GET /healthz HTTP/1.1\r\nHost: ?\r\nConnection: close\r\n\r\n", &[400]),
            ("GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: ?\r\n\r\n", &[400]),
            ("GET /healthz HTTP/1.1\r\nHost: t\r\n?: a\r\n\r\n", &[400]),
            ("GET /healthz HTTP/1.1\r\nHost: t\r\nCookie: ?\r\nConnection: close\r\n\r\n", &[200]),
            (
                "POST /publish~topic=a HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: ?\r\n\r\n",
                &[400],
            ),
            (
                "POST /publish~topic=a HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: ?\r\n\r\n",
                &[411],
            ),
            (
                "POST /publish~topic=a HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Type: ?\r\nContent-Length: 0\r\n\r\n",
                &[400],
            ),
            (
                "POST /ack~user=?&id=1 HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
                &[400],
            ),
        ] {
            // The tilde stands for the query's `?`, since `?` stands for the bytes here.
            let (before, after) = request.split_once('?').unwrap();
            let before = before.replace('~', "?");
            let whole = [before.as_bytes(), bytes, after.as_bytes()].concat();
            let got = statuses(&server, &whole)[0];
            assert!(want.contains(&got), "{request:?} {bytes:x?}: {got}");
        }
        let length = bytes.len();
        for (path, media, want) in [
            ("/publish?topic=witness", "text/plain", 400),
            ("/publish?topic=witness", "application/json", 400),
            ("/publish?topic=elsewhere", "application/octet-stream", 200),
            ("/ack", "application/json", 400),
        ] {
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Type: {media}\r\n\
                 Content-Length: {length}\r\n\r\n"
            );
            assert_eq!(
                statuses(&server, &[head.as_bytes(), bytes].concat()),
                [want],
                "{path} {media}"
            );
        }
        assert_eq!(
            status(
                &server,
                "GET /sse HTTP/1.1\r\nHost: t\r\nX-Phoenix-Longpoll-Token: ?\r\n\r\n",
                bytes
            ),
            400
        );
    }
    witness.assert_receives(&server);
}

#[test]
fn websockets_reject_invalid_utf_8_everywhere() {
    let server = Server::with(&[], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "*")]);
    let mut witness = Witness::new(&server);
    let closes = |target: &str, first: u8, payload: &[u8]| {
        let url = format!("ws://{}{target}", server.client);
        let (mut socket, _) = tungstenite::client(url, server.connect()).unwrap();
        socket.get_mut().write_all(&super::websocket::frame(first, payload)).unwrap();
        loop {
            match socket.read() {
                Ok(Message::Close(frame)) => return frame.map(|frame| u16::from(frame.code)),
                Ok(Message::Text(text)) if text.contains("error") => return None,
                Ok(_) => {}
                Err(error) => panic!("{target}: {error}"),
            }
        }
    };
    for bytes in BROKEN {
        let text = [b"{\"type\":\"ping\",\"id\":\"", bytes, b"\"}"].concat();
        let phoenix = [b"[null,\"1\",\"", bytes, b"\",\"phx_join\",{}]"].concat();
        let reason = [&1000_u16.to_be_bytes()[..], bytes].concat();
        for target in ["/ws", "/socket/websocket?vsn=1.0.0", "/socket/websocket?vsn=2.0.0"] {
            assert_eq!(closes(target, 0x81, &text), Some(1007), "{target} {bytes:x?}");
            assert_eq!(closes(target, 0x81, &phoenix), Some(1007));
            assert_eq!(closes(target, 0x88, &reason), Some(1007));
        }
        // A binary message with valid text gets a response.
        let command = [b"{\"type\":\"publish\",\"topic\":\"", bytes, b"\"}\nx"].concat();
        assert_eq!(closes("/ws", 0x82, &command), None);
        let length = bytes.len() as u8;
        for lengths in [&[0, 0, 0, length, 0][..], &[3, 0, 0, length, 0, 0, 1]] {
            let push = [lengths, bytes].concat();
            assert_eq!(closes("/socket/websocket?vsn=2.0.0", 0x82, &push), None, "{push:x?}");
        }
    }
    witness.assert_receives(&server);
}
