//! Request smuggling: requests that a proxy and this server could read in different ways.

use super::*;

/// The request to smuggle. Without an attack it is the last request of a connection.
const LAST: &str = "GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";

/// Sends a head, a body and `LAST`, and checks the statuses of all responses.
fn judge(server: &Server, head: &[u8], body: &str, want: &[u16]) {
    let bytes = [head, b"\r\n", body.as_bytes(), LAST.as_bytes()].concat();
    let got = statuses(server, &bytes);
    assert_eq!(got, want, "{}", String::from_utf8_lossy(&bytes));
}

#[test]
fn ambiguous_body_lengths_close_the_connection() {
    let server = Server::start();
    let mut witness = Witness::new(&server);
    let post = "POST /publish?topic=a HTTP/1.1\r\nHost: t\r\n";
    for (headers, body, want) in [
        // The length is given in two ways.
        ("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", &[411][..]),
        ("Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", "0\r\n\r\n", &[411]),
        ("Content-Length: 3\r\nContent-Length: 40\r\n", "abc", &[400]),
        ("Content-Length: 40\r\nContent-Length: 3\r\n", "abc", &[400]),
        ("Content-Length: 3, 40\r\n", "abc", &[400]),
        ("Content-Length: 3, 3\r\n", "abc", &[400]),
        // The length is invalid or ambiguous.
        ("Content-Length: +3\r\n", "abc", &[400]),
        ("Content-Length: -3\r\n", "abc", &[400]),
        ("Content-Length: 0x3\r\n", "abc", &[400]),
        ("Content-Length: 3 3\r\n", "abc", &[400]),
        ("Content-Length: 3.0\r\n", "abc", &[400]),
        ("Content-Length: \r\n", "abc", &[400]),
        ("Content-Length: \u{665}\r\n", "abc", &[400]),
        ("Content-Length: 18446744073709551619\r\n", "abc", &[413]),
        ("Content-Length: 99999999999999999999999999\r\n", "abc", &[413]),
        // Chunked encoding is rejected in every spelling.
        ("Transfer-Encoding: chunked\r\n", "0\r\n\r\n", &[411]),
        ("Transfer-Encoding: chunked\r\n", "3;ext=\"a\r\nb\"\r\nabc\r\n0\r\n\r\n", &[411]),
        ("Transfer-Encoding: chunked\r\n", "FFFFFFFFFFFFFFFF\r\nabc", &[411]),
        ("Transfer-Encoding: chunked\r\n", "0000000000000000000000003\r\nabc\r\n0\r\n\r\n", &[411]),
        ("Transfer-Encoding: chunked, identity\r\n", "", &[411]),
        ("Transfer-Encoding: xchunked\r\n", "", &[411]),
        ("Transfer-Encoding: identity\r\nContent-Length: 3\r\n", "abc", &[411]),
        ("Transfer-Encoding:\r\n", "", &[411]),
        ("tRANSFER-eNCODING: CHUNKED\r\n", "", &[411]),
        ("X: y\nTransfer-Encoding: chunked\r\n", "", &[411]),
        ("Transfer-Encoding : chunked\r\n", "", &[400]),
        ("Transfer-Encoding\t: chunked\r\n", "", &[400]),
        ("Transfer-Encoding\0: chunked\r\n", "", &[400]),
        ("Transfer-Encoding: \u{b}chunked\r\n", "", &[400]),
        // The header continues on the next line.
        ("X: y\r\n Transfer-Encoding: chunked\r\n", "", &[400]),
        ("X: y\r\n\tContent-Length: 3\r\n", "abc", &[400]),
        ("Content-Length:\r\n 3\r\n", "abc", &[400]),
        (" Content-Length: 3\r\n", "abc", &[400]),
        ("Content-Length : 3\r\n", "abc", &[400]),
        // A line ends in the middle.
        ("X: y\rContent-Length: 3\r\n", "abc", &[400]),
        ("X: y\0Content-Length: 3\r\n", "abc", &[400]),
        (": 3\r\n", "abc", &[400]),
        ("Content-Length\r\n", "abc", &[400]),
    ] {
        judge(&server, format!("{post}{headers}").as_bytes(), body, want);
    }
    // Unambiguous requests are read, and a rejected body is not read as a request.
    for headers in [
        "Content-Length: 3\r\n",
        "Content-Length: 3\r\nContent-Length: 3\r\n",
        "content-length:\t003\r\n",
    ] {
        judge(&server, format!("{post}{headers}").as_bytes(), "abc", &[403, 200]);
    }
    let hidden = format!("{post}Content-Length: {}\r\n", LAST.len());
    judge(&server, hidden.as_bytes(), LAST, &[403, 200]);
    judge(
        &server,
        b"GET /healthz HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n",
        "abc",
        &[200, 200],
    );
    witness.assert_receives(&server);
}

#[test]
fn ambiguous_request_lines_are_rejected() {
    let server = Server::start();
    for (line, want) in [
        ("GET /healthz\rX HTTP/1.1", &[400][..]),
        ("GET /heal thz HTTP/1.1", &[400]),
        ("GET /heal\tthz HTTP/1.1", &[400]),
        ("GET /heal\0thz HTTP/1.1", &[400]),
        ("GET\t/healthz HTTP/1.1", &[400]),
        (" GET /healthz HTTP/1.1", &[400]),
        ("GE(T /healthz HTTP/1.1", &[400]),
        ("GET /healthz", &[400]),
        ("GET /healthz HTTP/1.1 ", &[400]),
        ("GET /healthz HTTP/1.10", &[400]),
        ("GET /healthz HTTP/11", &[505]),
        ("GET /healthz HTTP/0.9", &[505]),
        ("GET /healthz HTTP/2.0", &[505]),
        ("PRI * HTTP/2.0", &[505]),
        ("get /healthz HTTP/1.1", &[405, 200]),
        ("TRACE /healthz HTTP/1.1", &[405, 200]),
        ("CONNECT t:80 HTTP/1.1", &[404, 200]),
        ("GET //healthz HTTP/1.1", &[404, 200]),
        ("GET /./healthz HTTP/1.1", &[404, 200]),
        ("GET /x/../healthz HTTP/1.1", &[404, 200]),
        ("GET /%68ealthz HTTP/1.1", &[404, 200]),
        ("GET http://other/healthz HTTP/1.1", &[200, 200]),
        ("GET /healthz#/../nope HTTP/1.1", &[200, 200]),
    ] {
        let got = statuses(&server, format!("{line}\r\nHost: t\r\n\r\n{LAST}").as_bytes());
        // The parser may reject the line at any point, but it must reject it.
        let refused = want.len() == 1 && got.len() == 1 && matches!(got[0], 400 | 505);
        assert!(refused || got == want, "{line:?}: {got:?} and not {want:?}");
    }
}

#[test]
fn requests_must_have_exactly_one_host() {
    let server = Server::start();
    for (hosts, want) in [
        (&b"Host: t\r\n"[..], &[200, 200][..]),
        (b"", &[400]),
        (b"Host: t\r\nHost: t\r\n", &[400]),
        (b"Host: a\r\nhOsT: b\r\n", &[400]),
        (b"Host: \xff\r\nHost: t\r\n", &[400]),
        (b"Host: t\r\nHost: \xff\r\n", &[400]),
        (b"Host: \xff\r\n", &[400]),
        (b"Host : t\r\n", &[400]),
        (b"Host: t\r\n Host: b\r\n", &[400]),
    ] {
        judge(&server, &[b"GET /healthz HTTP/1.1\r\n", hosts].concat(), "", want);
    }
}

/// An upgrade leads only to a supported protocol, and a connection without it stays HTTP.
#[test]
fn an_upgrade_can_not_smuggle_a_request() {
    let server = Server::start();
    let close = "Host: t\r\n";
    for (head, want) in [
        (format!("GET /healthz HTTP/1.1\r\n{close}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"), &[200, 200][..]),
        (format!("GET /ws HTTP/1.1\r\n{close}Connection: Upgrade\r\nUpgrade: h2c\r\n"), &[426, 200]),
        (format!("GET /ws HTTP/1.1\r\n{close}Upgrade: websocket\r\n"), &[426, 200]),
        (format!("GET /ws HTTP/1.1\r\n{close}Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 777\r\n"), &[426, 200]),
        (format!("GET /ws HTTP/1.1\r\n{close}Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"), &[400, 200]),
        (format!("POST /ws HTTP/1.1\r\n{close}Connection: Upgrade\r\nUpgrade: websocket\r\n"), &[405, 200]),
        ("GET /ws HTTP/1.0\r\nConnection: Upgrade, keep-alive\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n".into(), &[400, 200]),
    ] {
        judge(&server, head.as_bytes(), "", want);
    }
}
