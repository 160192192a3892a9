//! The crowd against small servers of the standard library.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bench::crowd::{Crowd, Plan};
use bench::marker::{Kind, payload};
use flood::clock::now_ns;

/// A test fails when it waits longer than this.
const TIMEOUT: Duration = Duration::from_secs(60);
const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
const UPGRADED: &str = "HTTP/1.1 101 Switching Protocols\r\n\r\n";

/// Accepts one connection, or fails the test after [`TIMEOUT`].
fn accept_within(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("a socket");
    let end = Instant::now() + TIMEOUT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).expect("a socket");
                stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
                return stream;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        assert!(Instant::now() < end, "no client has connected");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Accepts this many connections, reads each request, replies in two pieces, and returns all sockets.
fn server(
    connections: usize,
    response: &'static str,
) -> (SocketAddrV4, JoinHandle<Vec<(TcpStream, String)>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let SocketAddr::V4(address) = listener.local_addr().expect("an address") else {
        panic!("bound to IPv4");
    };
    let accept = move || {
        let mut stream = accept_within(&listener);
        let mut request = vec![0; 4096];
        let bytes = stream.read(&mut request).expect("a request");
        let (a, b) = response.split_at(response.len() / 3);
        for piece in [a, b] {
            stream.write_all(piece.as_bytes()).expect("room");
        }
        let request = String::from_utf8_lossy(&request[..bytes]).into_owned();
        (stream, request)
    };
    let thread = std::thread::spawn(move || (0..connections).map(|_| accept()).collect());
    (address, thread)
}

#[test]
fn a_crowd_opens_counts_and_sees_closes() {
    let (address, server) = server(50, STREAM);
    let plan = Plan::get(address, 50, "/sse?user=u{n}&topic=all").numbered_from(14_000 - 25);
    let (mut crowd, _) = Crowd::open_all(plan).expect("an open crowd");
    let mut connections = server.join().expect("no panic");

    let mut users: Vec<_> = connections
        .iter()
        .map(|(_, request)| request.split(['=', '&']).nth(1).expect("a user").to_owned())
        .collect();
    users.sort();
    let mut wanted: Vec<_> = (13_975..14_025).map(|n| format!("u{n}")).collect();
    wanted.sort();
    assert_eq!(users, wanted);
    let second = connections
        .iter()
        .filter(|(stream, _)| stream.peer_addr().expect("a peer").ip().to_string() == "127.0.1.2");
    assert_eq!(second.count(), 25);

    crowd.reset();
    for (stream, _) in &mut connections {
        let message = payload(Kind::Counted, 1, 100) + &payload(Kind::Timed, now_ns(), 100);
        stream.write_all(message.as_bytes()).expect("room");
    }
    crowd.wait_messages(100, TIMEOUT).expect("all messages");
    assert_eq!(crowd.received().bytes, 50 * 200);
    let latencies = crowd.take_latencies();
    assert_eq!(latencies.len(), 50);

    connections.truncate(30);
    let error = crowd.wait_messages(101, TIMEOUT).expect_err("closes");
    assert!(error.to_string().contains("closed by the server"));
}

#[test]
fn an_unexpected_status_is_reported() {
    let (address, _server) = server(1, "HTTP/1.1 503 Service Unavailable\r\n\r\n");
    let error = Crowd::open_all(Plan::get(address, 1, "/sse")).expect_err("503");
    let text = error.to_string();
    // The response's first piece ends within the status line, but not within the status.
    assert!(text.contains("Status 1") && text.contains("503"), "{text}");
}

#[test]
fn a_missing_server_is_reported() {
    // No server listens at port 1.
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
    let error = Crowd::open_all(Plan::get(address, 3, "/sse")).expect_err("refused");
    assert!(error.to_string().contains("Refused 3"), "{error}");
}

#[test]
fn a_websocket_crowd_sends_pongs() {
    let (address, server) = server(2, UPGRADED);
    let (crowd, _) = Crowd::open_all(Plan::websocket(address, 2, "/ws")).expect("an open crowd");
    for (mut stream, _) in server.join().expect("no panic") {
        stream.write_all(&[0x81, 1, b'x', 0x89, 0]).expect("room");
        let mut pong = [0; 6];
        stream.read_exact(&mut pong).expect("a pong");
        assert_eq!(pong, [0x8a, 0x80, 0, 0, 0, 0]);
    }
    drop(crowd);
}

#[test]
fn a_poll_is_open_before_its_response() {
    let (address, server) = server(1, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let (crowd, _) = Crowd::open_all(Plan::poll(address, 1, "/poll")).expect("an open crowd");
    server.join().expect("no panic");
    drop(crowd);
}
