//! Attackers that hold connections to the admin port, while other clients must still get responses.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect as connect_to, socket};

use crate::support::*;

const KEY: &str = "0123456789abcdef";

/// The texts that the attacker sends on its connections in turn. Then it holds them open.
const SAYS: [&str; 5] = [
    "",
    "G",
    "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ",
    "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "POST /api/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
];

/// Holds more connections than there are slots and opens new ones until it is stopped, but no more than
/// [`OPENED_MAX`]: it only holds those that it has then.
struct Attacker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<usize>>,
}

const OPENED_MAX: usize = 100_000;

/// Another address of this host.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn connect_from_elsewhere(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddrV4::new(ELSEWHERE, 0))?;
    connect_to(&socket, &address)?;
    Ok(socket.into())
}

impl Attacker {
    fn of(address: SocketAddr, open_max: usize, says: &'static [&'static str]) -> Self {
        Self::by(open_max, says, move || TcpStream::connect(address))
    }

    fn by(
        open_max: usize,
        says: &'static [&'static str],
        connect: impl Fn() -> std::io::Result<TcpStream> + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut connections = VecDeque::new();
            let mut opened = 0;
            while !stopped.load(Ordering::Relaxed) {
                if opened < OPENED_MAX
                    && let Ok(mut socket) = connect()
                {
                    let _ = socket.write_all(says[opened % says.len()].as_bytes());
                    connections.push_back(socket);
                    opened += 1;
                }
                if connections.len() > open_max {
                    connections.pop_front();
                }
                if opened > open_max {
                    // It holds all connections that it can, and renews them from here on.
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            opened
        });
        Attacker { stop, thread: Some(thread) }
    }

    /// Stops the attacker. Returns how many connections it opened.
    fn stop(mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map_or(0, |thread| thread.join().unwrap())
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Makes one request, and repeats it if the connection ends without a response. A client that sends slowly may lose
/// its slot while slots run out.
fn request(server: &Server, method: &str, path: &str, body: &str, key: &str) -> (u16, String) {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{key}Content-Length: {}\r\n\r\n{body}",
        server.admin,
        body.len()
    );
    const ATTEMPTS_MAX: usize = 20;
    for _ in 0..ATTEMPTS_MAX {
        let mut socket = connect(server.admin);
        let mut reply = Vec::new();
        let _ = socket.write_all(request.as_bytes());
        match socket.read_to_end(&mut reply) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("{path}: no answer"),
            _ => {}
        }
        let reply = String::from_utf8_lossy(&reply).into_owned();
        if let Some(status) = reply.split(' ').nth(1) {
            return (status.parse().unwrap(), reply);
        }
    }
    panic!("{path}: {ATTEMPTS_MAX} times no answer");
}

/// Checks that all calls of an operator and a load balancer succeed several times.
fn all_requests_succeed(server: &Server, key: &str) {
    for _ in 0..5 {
        for path in ["/healthz", "/readyz", "/metrics", "/api/stats"] {
            assert_eq!(request(server, "GET", path, "", key).0, 200, "{path}");
        }
        let body = r#"{"topic":"a","data":1}"#;
        assert_eq!(request(server, "POST", "/api/publish", body, key).0, 200);
    }
}

/// Checks that a publisher with the key may be idle for longer than any other client.
fn keeps_its_connection(server: &Server, key: &str) {
    let body = r#"{"topic":"a","data":1}"#;
    let request = format!(
        "POST /api/publish HTTP/1.1\r\nHost: localhost\r\n{key}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut publisher = Stream::new(connect(server.admin));
    for _ in 0..2 {
        publisher.send(&request);
        assert_eq!(publisher.read_reply().0, 200);
        std::thread::sleep(Duration::from_millis(2_500));
    }
    publisher.send(&request);
    assert_eq!(publisher.read_reply().0, 200);
}

/// Checks that a reader of the live figures stays connected, although its connection is the oldest.
fn keeps_reading(server: &Server) {
    let mut reader = Stream::new(connect(server.admin));
    reader.send("GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(reader.head().starts_with("HTTP/1.1 200 "));
    (0..5).for_each(|_| assert!(reader.chunk().starts_with("event: sample\n")));
}

fn fills_and_renews(settings: &[(&str, &str)], key: &str) {
    let server = Server::with(&[], settings);
    let silent = Attacker::of(server.admin, 1_500, &SAYS[..1]);
    let mixed = Attacker::of(server.admin, 1_500, &SAYS);
    let evicted = "throng_admin_connections_closed_total{reason=\"evicted\"}";
    let metric = |name: &str| {
        let (_, metrics) = request(&server, "GET", "/metrics", "", key);
        let line = metrics.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap()
    };
    server.until("the places ran out", |_| metric(evicted) > 500.0);
    for _ in 0..10 {
        all_requests_succeed(&server, key);
    }
    match key.is_empty() {
        true => keeps_reading(&server),
        false => keeps_its_connection(&server, key),
    }
    let open = metric("throng_admin_connections ");
    assert!(open <= 512.0 + 32.0, "{open} connections of one address");
    assert!(metric("throng_admin_connections_silent ") > 100.0);
    assert_eq!(metric("throng_limit{name=\"admin.connections_max\"}"), 1024.0);
    let opened = [silent.stop(), mixed.stop()];
    assert!(opened.iter().sum::<usize>() > 1_500 && !opened.contains(&0), "{opened:?}");
    all_requests_succeed(&server, key);
}

#[test]
fn health_checks_and_operators_are_served_while_attackers_keep_all_slots() {
    let key = format!("Authorization: Bearer {KEY}\r\n");
    fills_and_renews(&[("THRONG_ADMIN_API_KEY", KEY)], &key);
}

#[test]
fn health_checks_and_operators_are_served_without_a_key() {
    fills_and_renews(&[], "");
}

#[test]
fn one_address_with_few_connections_does_not_delay_others() {
    let server = Server::with(&[], &[("THRONG_ADMIN_CONNECTIONS_PER_ADDRESS_MAX", "8")]);
    let address = server.admin;
    let send_request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut operator = Stream::new(connect(server.admin));
    operator.send(send_request);
    assert_eq!(operator.read_reply().0, 200);
    let _attacker = Attacker::by(64, &SAYS[..1], move || connect_from_elsewhere(address));
    let evicted = "throng_admin_connections_closed_total{reason=\"evicted\"}";
    server.until("its places ran out", |server| server.metric(evicted) > 100.0);
    (0..5).for_each(|_| all_requests_succeed(&server, ""));
    // The oldest connection is from another address, and keeps its slot.
    operator.send(send_request);
    assert_eq!(operator.read_reply().0, 200);
}

#[test]
fn health_checks_and_operators_are_served_with_few_descriptors() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 512; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_throng")]);
    command.args(["serve", "--shards", "1", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let server = Server::run(command, &[]);
    let attacker = Attacker::of(server.admin, 600, &SAYS[..1]);
    let evicted = "throng_admin_connections_closed_total{reason=\"evicted\"}";
    server.until("the places ran out", |server| {
        let (_, metrics) = request(server, "GET", "/metrics", "", "");
        let line = metrics.lines().find_map(|line| line.strip_prefix(evicted));
        line.is_some_and(|count| count.trim().parse::<f64>().unwrap() > 100.0)
    });
    (0..5).for_each(|_| all_requests_succeed(&server, ""));
    assert!(attacker.stop() > 100);
}

#[test]
fn an_upload_may_take_longer_than_a_head() {
    let settings =
        [("THRONG_ADMIN_HEAD_SECONDS", "2"), ("THRONG_LIMITS_MESSAGE_BYTES_MAX", "128KiB")];
    let server = Server::with(&[], &settings);
    let body = format!(r#"{{"topic":"a","data":"{}"}}"#, "x".repeat(100_000));
    let mut uploads = ["", "Expect: 100-continue\r\n"].map(|expect| {
        let mut stream = Stream::new(connect(server.admin));
        stream.send(&format!(
            "POST /api/publish HTTP/1.1\r\nHost: localhost\r\n{expect}Content-Length: {}\r\n\r\n",
            body.len()
        ));
        if !expect.is_empty() {
            assert!(stream.head().starts_with("HTTP/1.1 100 "));
        }
        stream
    });
    for piece in body.as_bytes().chunks(body.len().div_ceil(5)) {
        for upload in &mut uploads {
            upload.send(std::str::from_utf8(piece).unwrap());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    for mut upload in uploads {
        assert_eq!(upload.read_reply().0, 200);
    }
}

#[test]
fn silent_connections_are_closed_and_idle_ones_after_a_reply_stay() {
    let server = Server::with(&[], &[("THRONG_ADMIN_HEAD_SECONDS", "2")]);
    let send_request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut resting = Stream::new(connect(server.admin));
    resting.send(send_request);
    assert_eq!(resting.read_reply().0, 200);
    let began = Instant::now();
    let ended = ["", "GET /healthz HTTP/1.1\r\nHost"].map(|said| {
        let mut silent = connect(server.admin);
        silent.write_all(said.as_bytes()).unwrap();
        silent
    });
    for mut silent in ended {
        assert!(matches!(silent.read(&mut [0; 9]), Ok(0)), "it is closed");
    }
    assert!(began.elapsed() >= Duration::from_millis(1_900));
    server.until("they are counted", |server| {
        server.metric("throng_admin_connections_closed_total{reason=\"silent\"}") >= 2.0
    });
    // This connection rests for longer than the others: it began before them, and the server has closed them.
    resting.send(send_request);
    assert_eq!(resting.read_reply().0, 200);
    // A connection with half a head after a response is not idle.
    resting.send(&send_request[..20]);
    assert_eq!(resting.rest(), "");
}

#[test]
fn hundreds_of_publishers_on_one_address_stay_connected() {
    let server = Server::start();
    let mut publishers: Vec<_> = (0..400).map(|_| Stream::new(connect(server.admin))).collect();
    let body = r#"{"topic":"a","data":1}"#;
    for _ in 0..2 {
        for publisher in &mut publishers {
            publisher.send(&format!(
                "POST /api/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        }
        for publisher in &mut publishers {
            assert_eq!(publisher.read_reply().0, 200);
        }
    }
    let evicted = "throng_admin_connections_closed_total{reason=\"evicted\"}";
    assert_eq!((server.metric("throng_admin_connections"), server.metric(evicted)), (401.0, 0.0));
}

#[test]
fn large_bodies_are_read_one_after_another() {
    let server = Server::start();
    let mut publisher = Stream::new(connect(server.admin));
    let body = format!(r#"{{"topic":"a","data":"{}"}}"#, "x".repeat(60_000));
    let request = format!(
        "POST /api/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    for _ in 0..50 {
        publisher.send(&request);
        assert_eq!(publisher.read_reply().0, 200);
    }
    // Several at once are read as well.
    publisher.send(&request.repeat(4));
    (0..4).for_each(|_| assert_eq!(publisher.read_reply().0, 200));
}

#[test]
fn an_endless_head_is_rejected() {
    let server = Server::start();
    let mut socket = connect(server.admin);
    let head = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}", "x".repeat(100_000));
    // The server may close before everything is written.
    let _ = socket.write_all(head.as_bytes());
    let mut response = Vec::new();
    let _ = socket.read_to_end(&mut response);
    let response = String::from_utf8_lossy(&response);
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 431 "), "{response}");
    server.until("it is counted", |server| {
        server.metric("throng_admin_connections_closed_total{reason=\"head_too_large\"}") >= 1.0
    });
    // A browser's request with all cookies of localhost fits.
    let cookies = format!("Cookie: {}\r\n", "c".repeat(30_000));
    assert_eq!(text(server.admin, "GET", "/healthz", None, &cookies).0, 200);
}

#[test]
fn unfinished_bodies_do_not_fill_the_memory() {
    let settings =
        [("THRONG_ADMIN_BODIES_BYTES_MAX", "1MiB"), ("THRONG_ADMIN_BODY_BYTES_MAX", "1MiB")];
    let server = Server::with(&[], &settings);
    let half = vec![b' '; 300_000];
    let mut connections: Vec<_> = (0..4)
        .map(|_| {
            let mut socket = connect(server.admin);
            let head =
                "POST /api/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 400000\r\n\r\n";
            socket.write_all(head.as_bytes()).unwrap();
            let _ = socket.write_all(&half);
            socket
        })
        .collect();
    server.until("one of them is refused", |server| {
        server.metric("throng_admin_bodies_refused_total") >= 1.0
    });
    assert!(server.metric("throng_admin_bodies_bytes") <= f64::from(1 << 20));
    let whole = serde_json::json!({"topic": "a", "data": 1});
    assert_eq!(text(server.admin, "POST", "/api/publish", Some(whole), "").0, 200);
    connections.clear();
    server.until("all is given back", |server| server.metric("throng_admin_bodies_bytes") == 0.0);
}
