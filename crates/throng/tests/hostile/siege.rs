//! A few hundred attackers of five kinds at once: heads that arrive byte by byte, subscribers that never read,
//! handshakes that stop half-way, floods of joins, and every kind of bomb. The benchmark `attack` does the same with
//! tens of thousands.
//!
//! Meanwhile honest clients of all transports get each message once and in order, memory stays bounded, and the
//! server counts each rejected or closed attacker under its reason.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::crowd::{PATIENT, Unless, good};
use super::websocket::{bomb, frame};
use super::*;

const DRIBBLERS: usize = 150;
const HALF_HANDSHAKES: usize = 50;
const DEAF: usize = 150;
const JOINERS: usize = 4;
/// The number of bombs of each kind.
const BOMBS: usize = 10;

/// The attack must be over before honest clients have got this many messages.
const PUBLISHED_MAX: u64 = 10_000;

/// How many bytes the server may use beyond its memory before the attack: far less than it receives.
const MEMORY_BYTES_MAX: f64 = (32 << 20) as f64;

/// The topic of the subscribers that never read.
const BUSY: &str = "busy";

const RULES: &str = "[[topics]]\npattern = \"good\"\npublish = \"refuse\"\npresence = true\n";

/// The reasons of closed connections, and the limits that took effect, by `/metrics`.
struct Counts(BTreeMap<String, u64>);

impl Counts {
    fn now(server: &Server) -> Self {
        let text = text(server.admin, "GET", "/metrics", None, "").1;
        let counts = text.lines().filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            let labels = name.strip_prefix("throng_connections_closed_total{reason=\"");
            let labels = labels.or(name.strip_prefix("throng_limited_total{name=\""));
            Some((labels?.strip_suffix("\"}")?.to_string(), value.parse::<f64>().ok()? as u64))
        });
        Counts(counts.collect())
    }

    fn of(&self, name: &str) -> u64 {
        *self.0.get(name).unwrap_or_else(|| panic!("{name} is not counted: {:?}", self.0))
    }
}

/// The bombs, each with the name under which the server counts it, and the code of the response.
fn bombs() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let upgraded = |headers: &str, bytes: Vec<u8>| {
        [upgrade("/ws?user=evil", headers).into_bytes(), bytes].concat()
    };
    let deflate = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
    let head = b"GET / HTTP/1.1\r\nHost: t\r\nX: ";
    let (too_large, too_big) = ("limits.head_bytes_max", "too_big");
    let exabytes = [0x82, 0xff, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let deep = format!("{{\"type\":{}", "[".repeat(200_000));
    let storm = [frame(1, b"x"), frame(0, b"x").repeat(200_000)].concat();
    let packed = bomb(16 << 20);
    let (first, rest) = packed.split_at(9);
    let packed_in_two = [frame(0x41, first), frame(0x80, rest)].concat();
    vec![
        (too_large, "431", [&head[..], &vec![b'x'; 1 << 20]].concat()),
        ("header_lines", "431", format!("GET / HTTP/1.1\r\n{}", "A: b\r\n".repeat(100_000)).into()),
        (
            "limits.uri_bytes_max",
            "414",
            format!("GET /{} HTTP/1.1\r\n", "a".repeat(1 << 20)).into(),
        ),
        (too_big, "1009", upgraded("", [&exabytes[..], &[7; 65_536]].concat())),
        (too_big, "1009", upgraded("", storm)),
        (too_big, "1009", upgraded("", frame(0x81, deep.as_bytes()))),
        (too_big, "1009", upgraded(deflate, frame(0xc1, &packed))),
        (too_big, "1009", upgraded(deflate, packed_in_two)),
        ("invalid_payload", "1007", upgraded(deflate, frame(0xc1, &[0xff; 50]))),
        ("invalid_payload", "1007", upgraded("", frame(0x81, b"\"\xf0\x9f\x98"))),
        ("protocol_error", "1002", upgraded("", frame(0x83, b""))),
    ]
}

/// Sends a bomb and reads until the server closes.
fn throw(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut socket = server.connect();
    // The server responds and closes before it has read all of it.
    let _ = socket.write_all(bytes);
    let mut all = Vec::new();
    let _ = socket.read_to_end(&mut all);
    all
}

/// Returns true if the server's last output is this status, or a close frame with this code. If the server leaves
/// input unread, the kernel may discard its output.
fn says(reply: &[u8], want: &str) -> bool {
    let code: u16 = want.parse().unwrap();
    let [high, low] = code.to_be_bytes();
    let text = String::from_utf8_lossy(reply);
    let is_cut = reply.is_empty() || !reply.windows(2).any(|it| it[0] == 0x88);
    match code {
        1000.. => {
            is_cut || reply.windows(4).any(|it| it[0] == 0x88 && it[2] == high && it[3] == low)
        }
        _ => reply.is_empty() || text.starts_with(&format!("HTTP/1.1 {want} ")),
    }
}

/// Sends the heads of requests byte by byte until the server has closed all connections.
fn dribble(server: &Server) {
    let head = b"GET /sse?topic=good HTTP/1.1\r\nHost: t\r\nX-Long: ";
    let mut all: Vec<(TcpStream, usize)> = (0..DRIBBLERS)
        .map(|_| {
            let mut socket = server.connect();
            socket.write_all(&head[..1]).unwrap();
            socket.set_nonblocking(true).unwrap();
            (socket, 1)
        })
        .collect();
    let end = Instant::now() + TIMEOUT;
    while !all.is_empty() {
        assert!(Instant::now() < end, "{} heads never time out", all.len());
        all.retain_mut(|(socket, sent)| {
            let byte = head.get(*sent).copied().unwrap_or(b'x');
            *sent += 1;
            let closed = socket.write_all(&[byte]).is_err();
            let gone = |error: std::io::Error| error.kind() != std::io::ErrorKind::WouldBlock;
            !closed && !socket.read(&mut [0; 512]).map_or_else(gone, |read| read == 0)
        });
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// Begins handshakes, and waits until the server has closed all of them.
fn half_handshakes(server: &Server) {
    let whole = upgrade("/ws?topic=good", "");
    let all: Vec<TcpStream> = (0..HALF_HANDSHAKES)
        .map(|at| {
            let mut socket = server.connect();
            socket
                .write_all(&whole.as_bytes()[..1 + at * (whole.len() - 2) / HALF_HANDSHAKES])
                .unwrap();
            socket
        })
        .collect();
    for mut socket in all {
        let mut reply = Vec::new();
        let _ = socket.read_to_end(&mut reply);
        let text = String::from_utf8_lossy(&reply);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 408 "), "{text}");
    }
}

/// Connects subscribers that read nothing but the head of the response.
fn deaf(server: &Server) -> Vec<Stream> {
    let targets = ["/sse", "/stream"].map(|path| format!("{path}?topic={BUSY}"));
    (0..DEAF).map(|at| server.listen(&targets[at % 2])).collect()
}

/// Enters topics and leaves them as fast as the server reads.
fn join(server: &Server, done: &AtomicBool) {
    let mut stream = Stream::new(server.connect());
    stream.send(&upgrade("/ws?user=evil", ""));
    stream.head();
    let socket = stream.reader.get_mut();
    socket.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let command = |kind: &str, at: usize| {
        let text = format!("{{\"type\":\"{kind}\",\"id\":{at},\"topic\":\"x{at}\"}}");
        frame(0x81, text.as_bytes())
    };
    let round: Vec<u8> = (0..200)
        .flat_map(|at| [command("subscribe", at), command("unsubscribe", at)].concat())
        .collect();
    let (mut sent, mut buffer) = (0, [0; 65_536]);
    while !done.load(Ordering::Relaxed) {
        match socket.write(&round[sent..]) {
            Ok(bytes) => sent = (sent + bytes) % round.len(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("a flood of joins is slowed and not closed: {error}"),
        }
        let _ = socket.read(&mut buffer);
    }
}

#[test]
fn a_siege_costs_honest_clients_nothing_and_is_counted() {
    let own = [
        // Far more time than an honest client needs for a request.
        ("THRONG_TIMEOUTS_HEAD_SECONDS", "6"),
        ("THRONG_SOCKET_SEND_BUFFER_BYTES", "8KiB"),
        ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "128KiB"),
        ("THRONG_PRESENCE_LIST_BYTES_MAX", "16KiB"),
        ("THRONG_LIMITS_JOINS_PER_SECOND_MAX", "100"),
    ];
    let scratch = Scratch::new("siege");
    let rules = scratch.write("throng.toml", RULES);
    let flags = ["--demo", "--shards", "2", "--config", rules.to_str().unwrap()];
    let server = Server::with(&flags, &[&PATIENT[..], &own].concat());
    let bombs = bombs();
    let (done, mut published) = (AtomicBool::new(false), 0);
    let memory = || server.metric("throng_process_anonymous_memory_bytes");
    let (before, mut most) = (Counts::now(&server), 0.0_f64);
    let memory_before = memory();
    std::thread::scope(|scope| {
        let _end = Unless { done: &done, server: &server };
        let mut honest = good::Clients::spawn(scope, &server);
        let mut deaf = deaf(&server);
        let besieged = [
            scope.spawn(|| dribble(&server)),
            scope.spawn(|| half_handshakes(&server)),
            scope.spawn(|| {
                for round in 0..BOMBS {
                    for (at, (_, want, bytes)) in bombs.iter().enumerate() {
                        let reply = throw(&server, bytes);
                        let text = String::from_utf8_lossy(&reply);
                        assert!(says(&reply, want), "{at} in round {round}: {want}: {text}");
                    }
                }
            }),
        ];
        (0..JOINERS).for_each(|_| drop(scope.spawn(|| join(&server, &done))));
        let payload = "z".repeat(4_000);
        let closed = |server: &Server| {
            server.metric("throng_connections_closed_total{reason=\"slow_consumer\"}") as usize
        };
        while !besieged.iter().all(|it| it.is_finished()) || closed(&server) < DEAF {
            assert!(honest.published() < PUBLISHED_MAX, "{} of {DEAF} closed", closed(&server));
            honest.publish(&server);
            if closed(&server) < DEAF {
                (0..4).for_each(|_| drop(server.publish(BUSY, json!(payload))));
            }
            most = most.max(memory());
            std::thread::sleep(Duration::from_millis(5));
        }
        besieged.into_iter().for_each(|it| it.join().unwrap());
        deaf.clear();
        done.store(true, Ordering::Relaxed);
        server.until("only the good ones are there", good::are_alone);
        published = honest.published();
        honest.end(&server);
    });
    let after = Counts::now(&server);
    let counted = |name: &str| after.of(name) - before.of(name);
    let thrown = |of: &str| (BOMBS * bombs.iter().filter(|it| it.0 == of).count()) as u64;
    // Clients that are slow by accident may add to these counts.
    for (name, least) in [
        ("request_timeout", DRIBBLERS + HALF_HANDSHAKES),
        ("slow_consumer", DEAF),
        ("limits.outbox_bytes_max", DEAF),
    ] {
        assert!(counted(name) >= least as u64, "{name}: {:?}", after.0);
    }
    for (name, want) in [
        ("limits.head_bytes_max", thrown("limits.head_bytes_max")),
        ("limits.uri_bytes_max", thrown("limits.uri_bytes_max")),
        ("header_lines", thrown("header_lines")),
        ("bad_request", (BOMBS * 3) as u64),
        ("too_big", thrown("too_big")),
        ("limits.frame_bytes_max", thrown("too_big")),
        ("invalid_payload", thrown("invalid_payload")),
        ("protocol_error", thrown("protocol_error")),
        // No attack here has these effects.
        ("internal", 0),
        ("overloaded", 0),
        ("unauthorized", 0),
    ] {
        assert_eq!(counted(name), want, "{name}: {:?}", after.0);
    }
    assert!(counted("limits.joins_per_second_max") > 0, "{:?}", after.0);
    let grown = most - memory_before;
    println!("{published} messages, {:.1} MB more memory, {:?}", grown / 1e6, after.0);
    assert!(grown < MEMORY_BYTES_MAX, "{grown} bytes");
}
