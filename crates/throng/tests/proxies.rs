//! Behind proxies: a trusted proxy tells a client's address, and the server ignores such headers of others.

use crate::support::*;

const TRUSTED: (&str, &str) = ("THRONG_CLIENT_TRUSTED_PROXIES", "10.0.0.0/8,127.0.0.1");

fn through(header: &str, more: &[(&str, &str)]) -> Server {
    let header = ("THRONG_CLIENT_PROXY_HEADER", header);
    Server::with(&["--shards", "2"], &[&[TRUSTED, header], more].concat())
}

/// Opens an event stream of a user.
fn open(server: &Server, first: &[u8], headers: &str, user: &str) -> (Stream, String) {
    let mut stream = Stream::new(server.connect());
    stream.send_bytes(first);
    stream.send(&format!("GET /sse?user={user} HTTP/1.1\r\nHost: t\r\n{headers}\r\n"));
    let head = stream.head();
    (stream, head)
}

/// Returns the address that the server has for a user.
fn address(server: &Server, user: &str) -> String {
    let (status, reply) = server.api("GET", &format!("/api/users/{user}"), None);
    assert_eq!((status, reply["count"].as_u64()), (200, Some(1)), "{reply}");
    reply["connections"][0]["address"].as_str().unwrap().to_string()
}

#[test]
fn a_trusted_proxy_says_by_a_header_where_its_client_is() {
    let server = through("x-forwarded-for", &[]);
    let headers = "X-Forwarded-For: 6.6.6.6\r\nx-forwarded-for: 192.0.2.1, 10.0.0.9\r\n";
    let (_alice, head) = open(&server, b"", headers, "alice");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(address(&server, "alice"), "192.0.2.1");
    let (_bob, _) = open(&server, b"", "Forwarded: for=192.0.2.2\r\n", "bob");
    assert_eq!(address(&server, "bob"), "127.0.0.1", "the other header is not believed");

    let server = through("forwarded", &[]);
    let headers = "X-Forwarded-For: 6.6.6.6\r\nForwarded: for=\"[2001:db8::1]:5\";proto=https\r\n";
    let (_alice, _) = open(&server, b"", headers, "alice");
    assert_eq!(address(&server, "alice"), "2001:db8::1");
}

#[test]
fn no_other_peer_is_believed() {
    let server = Server::with(&[], &[("THRONG_CLIENT_TRUSTED_PROXIES", "10.0.0.0/8")]);
    let (_alice, _) = open(&server, b"", "X-Forwarded-For: 192.0.2.1\r\n", "alice");
    assert!(address(&server, "alice").starts_with("127.0.0.1:"));
    let settings = [
        ("THRONG_CLIENT_TRUSTED_PROXIES", "10.0.0.0/8"),
        ("THRONG_CLIENT_PROXY_HEADER", "proxy-protocol"),
    ];
    let server = Server::with(&[], &settings);
    let line = b"PROXY TCP4 192.0.2.1 127.0.0.1 5 6\r\n";
    let (_stream, head) = open(&server, line, "", "alice");
    assert!(head.starts_with("HTTP/1.1 505"), "it is no request: {head}");
    let (_bob, head) = open(&server, b"", "", "bob");
    assert!(head.starts_with("HTTP/1.1 200"), "others connect without it: {head}");
}

#[test]
fn the_proxy_protocol_goes_before_everything() {
    let server = through("proxy-protocol", &[]);
    let line = b"PROXY TCP4 192.0.2.1 127.0.0.1 4711 443\r\n";
    let (_alice, head) = open(&server, line, "X-Forwarded-For: 6.6.6.6\r\n", "alice");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(address(&server, "alice"), "192.0.2.1:4711");
    // Version 2, a byte at a time.
    let mut binary = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24".to_vec();
    binary.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    binary.extend([0; 16]);
    binary.extend([0x12, 0x67, 1, 0xbb]);
    let mut bob = Stream::new(server.connect());
    for byte in &binary {
        bob.send_bytes(&[*byte]);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    bob.send("GET /stream?user=bob HTTP/1.1\r\nHost: t\r\n\r\n");
    assert!(bob.head().starts_with("HTTP/1.1 200"));
    assert_eq!(address(&server, "bob"), "[2001:db8::7]:4711");
    // The proxy's own health check.
    let mut check = Stream::new(server.connect());
    check.send_bytes(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n");
    assert!(check.head().starts_with("HTTP/1.1 200"));
    // The server rejects a connection without the header.
    let (mut stream, head) = open(&server, b"", "", "carol");
    assert!(head.starts_with("HTTP/1.1 400"), "{head}");
    let rest = stream.rest();
    assert!(rest.contains("bad_proxy_header") && rest.contains("client.trusted_proxies"), "{rest}");
    for junk in [&b"PROXY TCP4 x\r\n"[..], b"\r\n\r\n\0\r\nQUIT\n\x31"] {
        let (_stream, head) = open(&server, junk, "", "carol");
        assert!(head.starts_with("HTTP/1.1 400"), "{head}");
    }
}

#[test]
fn connections_count_for_the_address_behind_the_proxy() {
    let limit = [("THRONG_LIMITS_CONNECTIONS_PER_ADDRESS_MAX", "2")];
    for (header, line) in [("x-forwarded-for", false), ("proxy-protocol", true)] {
        let server = through(header, &limit);
        let connect = |client: &str| {
            let family = if client.contains(':') { "TCP6" } else { "TCP4" };
            let first = format!("PROXY {family} {client} {client} 1 2\r\n");
            match line {
                true => open(&server, first.as_bytes(), "", "u"),
                false => open(&server, b"", &format!("X-Forwarded-For: {client}\r\n"), "u"),
            }
        };
        let ok = |head: &str| head.starts_with("HTTP/1.1 200");
        // An IPv6 network counts as one address.
        for clients in
            [["192.0.2.1", "192.0.2.1", "192.0.2.1"], ["2001:db8::1", "2001:db8::2", "2001:db8::3"]]
        {
            let (_one, first) = connect(clients[0]);
            let (two, second) = connect(clients[1]);
            assert!(ok(&first) && ok(&second), "{first} {second}");
            let (_three, third) = connect(clients[2]);
            assert!(third.starts_with("HTTP/1.1 503"), "{third}");
            assert!(ok(&connect("192.0.2.9").1) && ok(&connect("2001:db8:0:1::1").1));
            drop(two);
            server.until("there is room again", |_| ok(&connect(clients[2]).1));
        }
        assert!(server.metric("throng_connections_refused_total{reason=\"address\"}") >= 2.0);
    }
}

#[test]
fn a_connection_of_a_proxy_may_carry_requests_of_several_clients() {
    let server = through("x-forwarded-for", &[("THRONG_LIMITS_CONNECTIONS_PER_ADDRESS_MAX", "1")]);
    let send_request = |stream: &mut Stream, client: &str| {
        let head = format!("GET /healthz HTTP/1.1\r\nHost: t\r\nX-Forwarded-For: {client}\r\n\r\n");
        stream.send(&head);
        stream.read_reply().0
    };
    let (mut one, mut two) = (Stream::new(server.connect()), Stream::new(server.connect()));
    assert_eq!(send_request(&mut one, "192.0.2.1"), 200);
    assert_eq!(send_request(&mut two, "192.0.2.2"), 200);
    // The proxy now uses the first connection for another client.
    assert_eq!(send_request(&mut one, "192.0.2.3"), 200);
    assert_eq!(send_request(&mut two, "192.0.2.1"), 200);
    assert_eq!(send_request(&mut one, "192.0.2.1"), 503);
}

#[test]
fn a_websocket_and_a_longpoll_session_have_the_clients_address() {
    let per_address = [("THRONG_LIMITS_LONGPOLL_SESSIONS_PER_ADDRESS_MAX", "1")];
    let server = through("x-forwarded-for", &per_address);
    let session = |client: &str| {
        let request = format!(
            "GET /socket/longpoll?vsn=2.0.0 HTTP/1.1\r\nHost: t\r\nX-Forwarded-For: {client}\r\n\
             Connection: close\r\n\r\n"
        );
        server.exchange(request.as_bytes()).contains("\"token\"")
    };
    assert!(session("192.0.2.1") && !session("192.0.2.1") && session("192.0.2.2"));
    let upgrade = "X-Forwarded-For: 192.0.2.5\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let mut stream = Stream::new(server.connect());
    stream.send(&format!("GET /ws?user=alice HTTP/1.1\r\nHost: t\r\n{upgrade}\r\n"));
    assert!(stream.head().starts_with("HTTP/1.1 101"));
    assert_eq!(address(&server, "alice"), "192.0.2.5");
}
