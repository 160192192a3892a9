//! Fairness of shared resources: memory for input and outboxes, sessions, and topics. A client that
//! uses much of them must not harm the others.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;
use serde_json::{Value, json};

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n";

/// Returns the head of a POST whose body has this length.
fn post(target: &str, bytes: usize) -> String {
    format!("POST {target} HTTP/1.1\r\nHost: t\r\nContent-Length: {bytes}\r\n\r\n")
}

/// Returns how often a limit took effect.
fn limited(server: &Server, name: &str) -> f64 {
    server.metric(&format!("throng_limited_total{{name=\"{name}\"}}"))
}

/// Returns a client's text frame, with a mask of zeros.
fn frame(text: &str) -> Vec<u8> {
    let mut bytes = vec![0x81];
    match text.len() as u16 {
        length @ ..126 => bytes.push(0x80 | length as u8),
        length => {
            bytes.push(0xfe);
            bytes.extend(length.to_be_bytes());
        }
    }
    bytes.extend([0; 4]);
    bytes.extend(text.as_bytes());
    bytes
}

/// Connects from another address of this host.
fn connect_from(source: &str, server: &Server) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&fd, &SocketAddr::new(source.parse().unwrap(), 0)).unwrap();
    connect(&fd, &server.client).unwrap();
    let socket = TcpStream::from(fd);
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

/// Returns the token of a new long-poll session.
fn session(server: &Server) -> String {
    let (_, outcome) = server.get("/socket/longpoll?vsn=2.0.0");
    outcome["token"].as_str().unwrap_or_else(|| panic!("no session: {outcome}")).into()
}

#[test]
fn bodies_of_rejected_requests_are_not_buffered() {
    let server = Server::with(&[], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "open/")]);
    for (target, status, body) in [
        ("/socket/longpoll?vsn=2.0.0", 200, r#"{"status":410}"#),
        ("/socket/longpoll?vsn=2.0.0&token=forged", 200, r#"{"status":410}"#),
        ("/socket/longpoll?vsn=9", 200, r#"{"status":403}"#),
        ("/publish?topic=closed", 403, "forbidden"),
        ("/publish", 400, "no_topic"),
        ("/nowhere", 404, "not_found"),
        ("/sse?topic=a", 405, "method_not_allowed"),
    ] {
        let mut stream = Stream::new(server.connect());
        // The response comes before any byte of the body.
        stream.send(&post(target, 60_000));
        let head = stream.head();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {head}");
        assert_eq!(header(&head, "connection"), Some("close"), "{target}");
        assert!(stream.rest().contains(body), "{target}");
    }
    let (status, _) = Stream::new({
        let mut socket = server.connect();
        socket.write_all(post("/ack", 20_000).as_bytes()).unwrap();
        socket
    })
    .read_reply();
    assert_eq!(status, 413);
    // The server waits for the body of an accepted request.
    let mut stream = Stream::new(server.connect());
    stream.send(&post("/publish?topic=open/a", 3));
    stream.send("abc");
    assert_eq!(stream.read_reply().0, 200);
}

#[test]
fn unfinished_input_does_not_use_up_the_memory_for_input() {
    let settings = [
        ("THRONG_LIMITS_INPUT_BYTES_MAX", "4MiB"),
        ("THRONG_CLIENT_PUBLISH_PREFIXES", "*"),
        ("THRONG_LIMITS_FRAME_BYTES_MAX", "2MiB"),
        // No timeout ends unfinished input here.
        ("THRONG_TIMEOUTS_HEAD_SECONDS", "600"),
        ("THRONG_TIMEOUTS_LONGPOLL_SECONDS", "60"),
    ];
    let server = Server::with(&[], &settings);
    let token = longpoll_session(&server);
    // A normal client is in the middle of a small message.
    let mut healthy = websocket(&server, "topic=room");
    let small = frame(&json!({"type":"ping","id":1,"pad":"x".repeat(700)}).to_string());
    healthy.get_mut().write_all(&small[..300]).unwrap();
    let target = format!("/socket/longpoll?vsn=2.0.0&token={token}");
    let mut greedy = Vec::new();
    for n in 0..24 {
        let mut socket = if n % 2 == 0 {
            let mut socket = server.connect();
            socket.write_all(post(&target, 1 << 20).as_bytes()).unwrap();
            socket
        } else {
            let mut socket = websocket(&server, "").get_ref().try_clone().unwrap();
            // This is the head of a frame of 1 MiB.
            socket.write_all(&[0x81, 0xff, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]).unwrap();
            socket
        };
        socket.set_write_timeout(Some(TIMEOUT)).unwrap();
        let _ = socket.write_all(&vec![b' '; 900_000]);
        socket.set_nonblocking(true).unwrap();
        greedy.push((socket, Vec::new()));
    }
    server.until("a client is rejected", |server| limited(server, "limits.input_bytes_max") > 8.0);
    server.until("it is within its bound", |server| {
        server.metric("throng_input_memory_bytes") <= f64::from(4 << 20)
    });
    healthy.get_mut().write_all(&small[300..]).unwrap();
    assert_eq!(receive(&mut healthy)["type"], "reply");
    server.until("clients of both kinds know why", |_| {
        let mut rejected = [0, 0];
        for (n, (socket, bytes)) in greedy.iter_mut().enumerate() {
            let _ = socket.read_to_end(bytes);
            let text = String::from_utf8_lossy(bytes);
            rejected[n % 2] += usize::from(if n % 2 == 0 {
                text.contains(r#""status":500"#) && text.contains("overloaded")
            } else {
                bytes.windows(2).any(|two| two == 1013u16.to_be_bytes())
            });
        }
        rejected[0] > 0 && rejected[1] > 0
    });
    drop(greedy);
    server.until("all is given back", |server| server.metric("throng_input_memory_bytes") == 0.0);
    // A plain request gets an error that names the reason.
    let tight = Server::with(&["--shards", "1"], &settings);
    let mut sockets: Vec<_> = (0..120)
        .map(|_| {
            let mut socket = tight.connect();
            socket.write_all(post("/publish?topic=a", 60_000).as_bytes()).unwrap();
            let _ = socket.write_all(&[b'x'; 50_000]);
            socket.set_nonblocking(true).unwrap();
            (socket, Vec::new())
        })
        .collect();
    tight.until("a client is rejected", |it| limited(it, "limits.input_bytes_max") > 0.0);
    tight.until("it knows why", |_| {
        sockets.iter_mut().any(|(socket, bytes)| {
            let _ = socket.read_to_end(bytes);
            let text = String::from_utf8_lossy(bytes);
            text.starts_with("HTTP/1.1 503 ") && text.contains("Retry-After: ")
        })
    });
}

#[test]
fn stalled_readers_do_not_use_up_the_memory_for_outboxes() {
    let settings = [
        ("THRONG_LIMITS_OUTBOXES_BYTES_MAX", "2MiB"),
        ("THRONG_SOCKET_SEND_BUFFER_BYTES", "8KiB"),
        ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "1MiB"),
    ];
    let server = Server::with(&["--shards", "2"], &settings);
    let stopped: Vec<_> =
        (0..30).map(|n| server.listen(&format!("/sse?user=u{n}&topic=all"))).collect();
    let mut reader = server.listen("/sse?user=reader&topic=all");
    for round in 0..12 {
        for n in 0..30 {
            // Each user has a message of its own, so outboxes share no memory.
            let data = format!("{round}{}", "x".repeat(60_000));
            server.post("/api/send", json!({"user": format!("u{n}"), "data": data}));
        }
        server.publish("all", json!(round));
        assert_eq!(reader.data(), round.to_string());
        let memory = server.metric("throng_outbox_memory_bytes");
        assert!(memory < 3.0 * f64::from(1 << 20), "{memory}");
    }
    assert!(limited(&server, "limits.outboxes_bytes_max") > 0.0);
    drop(stopped);
    server.until("all is given back", |server| server.metric("throng_outbox_memory_bytes") == 0.0);
}

/// Sends a pipeline of requests, and reads the responses at the same time.
fn pipeline(server: &Server, requests: &str, responses: usize) {
    let last = "GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let mut socket = server.connect();
    socket.set_write_timeout(Some(TIMEOUT)).unwrap();
    let writer = {
        let (mut socket, bytes) = (socket.try_clone().unwrap(), [requests, last].concat());
        std::thread::spawn(move || {
            socket.write_all(bytes.as_bytes()).unwrap();
            if !bytes.contains("poll") {
                // The server ends a waiting poll if its client closes its half of the connection, but still responds
                // to other requests.
                socket.shutdown(Shutdown::Write).unwrap();
            }
        })
    };
    let mut all = Vec::new();
    socket.read_to_end(&mut all).unwrap();
    writer.join().unwrap();
    let text = String::from_utf8_lossy(&all);
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), responses + 1);
}

#[test]
fn a_deep_pipeline_gets_all_replies() {
    let server = Server::with(&["--demo"], &[]);
    pipeline(&server, &HEALTH.repeat(10_000), 10_000);
    // Large responses, also behind a poll that waits.
    pipeline(&server, &"GET /chat.js HTTP/1.1\r\nHost: t\r\n\r\n".repeat(3_000), 3_000);
    let poll = "GET /poll?topic=a&timeout=1 HTTP/1.1\r\nHost: t\r\n\r\n";
    pipeline(&server, &[poll, &HEALTH.repeat(4_000), poll, HEALTH].concat(), 4_003);
    // The same behind a request that another shard may respond to.
    let token = longpoll_session(&server);
    let beat = r#"[null,"1","phoenix","heartbeat",{}]"#;
    let post = post(&format!("/socket/longpoll?vsn=2.0.0&token={token}"), beat.len()) + beat;
    pipeline(&server, &[&post, &*HEALTH.repeat(3)].concat().repeat(2_000), 8_000);
}

#[test]
fn a_deep_pipeline_that_never_reads_is_closed() {
    let settings = [("THRONG_TIMEOUTS_IDLE_SECONDS", "3"), ("THRONG_TIMEOUTS_HEAD_SECONDS", "1")];
    let server = Server::with(&["--demo"], &settings);
    let mut socket = server.connect();
    socket.set_nonblocking(true).unwrap();
    let requests = "GET /chat.js HTTP/1.1\r\nHost: t\r\n\r\n".repeat(5_000);
    let mut sent = 0;
    let outboxes = |server: &Server| {
        server.metric("throng_outbox_bytes") + server.metric("throng_input_memory_bytes")
    };
    server.until("the kernel takes no more", |server| {
        while let Ok(more) = socket.write(&requests.as_bytes()[sent..]) {
            sent = (sent + more) % requests.len();
        }
        outboxes(server) >= 1.0
    });
    assert!(outboxes(&server) < 500_000.0, "{}", outboxes(&server));
    let closed = "throng_connections_closed_total{reason=\"idle\"}";
    server.until("it is ended", |server| server.metric(closed) == 1.0);
}

/// Reads all input of these sockets until `stop` is set. Returns how many are still open.
fn read_all(sockets: Vec<TcpStream>, stop: &AtomicBool) -> usize {
    let mut open: Vec<_> = sockets;
    open.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    let mut buffer = vec![0; 256 << 10];
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        open.retain_mut(|socket| match socket.read(&mut buffer) {
            Ok(0) => false,
            Ok(_) => {
                idle = false;
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        });
        if idle {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    open.len()
}

/// Runs 200 members that read as fast as they can, and a client that publishes as fast as it can, until each member
/// has got more than its outbox takes.
fn flooded_topic(settings: &[(&str, &str)]) {
    const MEMBERS: usize = 200;
    const EACH: usize = 500;
    // A client that reads a quarter of the outbox in a second is no slow consumer, so members on a slow machine are
    // none.
    let outbox =
        [("THRONG_LIMITS_OUTBOX_BYTES_MAX", "64KiB"), ("THRONG_LIMITS_MESSAGE_BYTES_MAX", "8KiB")];
    let server = Server::with(&["--shards", "2"], &[settings, &outbox].concat());
    let raw = |query: &str| websocket(&server, query).get_ref().try_clone().unwrap();
    let mut members: Vec<_> = (0..MEMBERS).map(|_| raw("topic=room")).collect();
    let stop = AtomicBool::new(false);
    let mut publisher = raw("");
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let sockets = members.split_off(members.len() - MEMBERS / 2);
                let stop = &stop;
                scope.spawn(move || read_all(sockets, stop))
            })
            .collect();
        let responses = publisher.try_clone().unwrap();
        let replies = scope.spawn(|| read_all(vec![responses], &stop));
        let data = "d".repeat(1_000);
        let publish = json!({"type":"publish","id":"1","topic":"room","data":data}).to_string();
        let block = frame(&publish).repeat(64);
        publisher.set_nonblocking(true).unwrap();
        let (mut at, mut sampled_at) = (0, Instant::now());
        server.until("the members have got enough", |server| {
            while sampled_at.elapsed() < Duration::from_millis(100) {
                match publisher.write(&block[at..]) {
                    Ok(sent) => at = (at + sent) % block.len(),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
            sampled_at = Instant::now();
            server.metric("throng_messages_delivered_total") > (EACH * MEMBERS) as f64
        });
        stop.store(true, Ordering::Relaxed);
        assert_eq!(server.metric("throng_slow_consumers_closed_total"), 0.0);
        let open: usize = readers.into_iter().map(|it| it.join().unwrap()).sum();
        assert_eq!(open, MEMBERS);
        assert_eq!(replies.join().unwrap(), 1, "nor is the publisher closed");
    });
}

/// Ends the threads of a scope when its test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn one_publisher_can_not_make_members_slow_consumers() {
    let open = ("THRONG_CLIENT_PUBLISH_PREFIXES", "*");
    flooded_topic(&[open]);
    // Without a limit on the rate, the members slow the publisher down.
    flooded_topic(&[open, ("THRONG_LIMITS_PUBLISHES_PER_SECOND_MAX", "0")]);
}

#[test]
fn a_member_that_stopped_reading_does_not_block_its_topic() {
    let settings = [
        ("THRONG_CLIENT_PUBLISH_PREFIXES", "*"),
        ("THRONG_LIMITS_PUBLISHES_PER_SECOND_MAX", "0"),
        ("THRONG_SOCKET_SEND_BUFFER_BYTES", "8KiB"),
    ];
    let server = Server::with(&["--shards", "1"], &settings);
    let _stopped = server.listen("/stream?topic=room");
    let mut reader = server.listen("/sse?topic=room");
    let mut publisher = websocket(&server, "");
    for n in 0..600 {
        let data = format!("{n} {}", "x".repeat(10_000));
        let publish = json!({"type":"publish","id":n,"topic":"room","data":data});
        assert!(command(&mut publisher, publish)["ok"].is_object());
        assert_eq!(reader.data(), data);
    }
    server.until("who stopped is closed", |server| {
        server.metric("throng_slow_consumers_closed_total") == 1.0
    });
}

/// Opens a connection with a small receive buffer.
fn with_small_window(server: &Server, request: &str) -> TcpStream {
    let mut socket = server.connect();
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 32 << 10).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    socket
}

/// Reads up to `bytes` bytes from each socket, up to a hundred times a second, until `stop` is set.
fn trickle(sockets: &mut [TcpStream], bytes: usize, stop: &AtomicBool) {
    let mut buffer = vec![0; bytes];
    for socket in &mut *sockets {
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    }
    while !stop.load(Ordering::Relaxed) {
        sockets.iter_mut().for_each(|socket| drop(socket.read(&mut buffer)));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_slow_but_steady_member_does_not_block_publishers() {
    const OUTBOX_BYTES: f64 = 65_536.0;
    let settings = [
        ("THRONG_CLIENT_PUBLISH_PREFIXES", "*"),
        ("THRONG_SOCKET_SEND_BUFFER_BYTES", "4KiB"),
        ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "64KiB"),
        ("THRONG_LIMITS_MESSAGE_BYTES_MAX", "8KiB"),
        ("THRONG_LIMITS_OUTBOX_MESSAGES_MAX", "100000"),
    ];
    let server = Server::with(&["--shards", "1"], &settings);
    let request = "GET /stream?topic=room&topic=fill HTTP/1.1\r\nHost: t\r\n\r\n";
    let mut member = [with_small_window(&server, request)];
    server.until_members("fill", 1);
    let (stop, server) = (&AtomicBool::new(false), &server);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(stop);
        // The member reads some 300 kB a second. A twentieth of that would be enough not to count as a slow consumer.
        // Its outbox is nearly full all the time.
        scope.spawn(|| trickle(&mut member, 3_000, stop));
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if server.metric("throng_outbox_bytes") < 0.9 * OUTBOX_BYTES {
                    server.publish("fill", json!("x".repeat(4_000)));
                }
            }
        });
        let mut publisher = websocket(server, "");
        server.until("it is short of room", |server| {
            if server.metric("throng_outbox_bytes") < 0.8 * OUTBOX_BYTES {
                return false;
            }
            for n in 0..20 {
                let publish = json!({"type":"publish","id":n,"topic":"room","data":n});
                assert!(command(&mut publisher, publish)["ok"].is_object());
            }
            limited(server, "topic_behind") > 0.0
        });
    });
    assert_eq!(server.metric("throng_slow_consumers_closed_total"), 0.0);
}

#[test]
fn closing_replies_count_towards_the_memory_of_all_outboxes() {
    let settings =
        [("THRONG_LIMITS_OUTBOXES_BYTES_MAX", "1MiB"), ("THRONG_SOCKET_SEND_BUFFER_BYTES", "4KiB")];
    let server = Server::with(&["--shards", "1"], &settings);
    let first = server.publish("big", json!("first"));
    let id = first["id"].as_str().unwrap();
    (0..50).for_each(|_| drop(server.publish("big", json!("x".repeat(50_000)))));
    let head = "HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let request = format!("GET /poll?topic=big&since={id} {head}");
    let mut polls: Vec<_> = (0..10).map(|_| with_small_window(&server, &request)).collect();
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(stop);
        // Each poll reads a little all the time.
        scope.spawn(|| trickle(&mut polls, 200, stop));
        server.until("they are bounded", |server| {
            limited(server, "limits.outboxes_bytes_max") > 0.0
                && server.metric("throng_outbox_memory_bytes") <= 1_048_576.0
        });
    });
}

#[test]
fn clients_over_their_rate_wait_and_lose_no_message() {
    let settings = [
        ("THRONG_CLIENT_PUBLISH_PREFIXES", "*"),
        ("THRONG_LIMITS_PUBLISHES_PER_SECOND_MAX", "100"),
        ("THRONG_LIMITS_JOINS_PER_SECOND_MAX", "50"),
        ("THRONG_LIMITS_TOPICS_PER_CONNECTION_MAX", "1000"),
    ];
    let server = Server::with(&[], &settings);
    let mut hasty = websocket(&server, "");
    let mut other = websocket(&server, "topic=calm");
    for (kind, count, limit) in [("publish", 400, "publishes"), ("subscribe", 200, "joins")] {
        let begun = Instant::now();
        let mut frames = Vec::new();
        for n in 0..count {
            let mut command = json!({"type": kind, "id": n, "topic": format!("t{n}")});
            if kind == "publish" {
                command["data"] = json!("x".repeat(200));
            }
            frames.extend(frame(&command.to_string()));
        }
        hasty.get_mut().write_all(&frames).unwrap();
        // Other clients don't wait.
        server.publish("calm", json!(kind));
        assert_eq!(receive(&mut other)["data"], kind);
        for n in 0..count {
            let outcome = receive(&mut hasty);
            assert_eq!((&outcome["type"], &outcome["id"]), (&json!("reply"), &json!(n)));
            assert!(outcome["ok"].is_object(), "{outcome}");
        }
        // The first second's budget passes at once, with the rest of its last read.
        assert!(begun.elapsed() > Duration::from_millis(1_500), "{kind}: {:?}", begun.elapsed());
        assert!(limited(&server, &format!("limits.{limit}_per_second_max")) > 0.0);
    }
    // The same by HTTP.
    let publish = post("/publish?topic=t", 1) + "x";
    let begun = Instant::now();
    pipeline(&server, &publish.repeat(350), 350);
    assert!(begun.elapsed() > Duration::from_millis(1_500), "{:?}", begun.elapsed());
}

#[test]
fn changes_of_presence_count_as_joins_do() {
    let settings = [("THRONG_LIMITS_JOINS_PER_SECOND_MAX", "50")];
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/phoenix/topics.toml");
    let server = Server::with(&["--config", rules], &settings);
    let mut hasty = websocket(&server, "user=al&topic=room:a");
    let begun = Instant::now();
    let change = json!({"type": "presence_update", "id": 1, "topic": "room:a", "meta": {"n": 1}});
    hasty.get_mut().write_all(&frame(&change.to_string()).repeat(200)).unwrap();
    let mut done = 0;
    while done < 200 {
        let outcome = receive(&mut hasty);
        if outcome["type"] == "reply" {
            assert!(outcome["ok"].is_object(), "{outcome}");
            done += 1;
        }
    }
    assert!(begun.elapsed() > Duration::from_millis(1_500), "{:?}", begun.elapsed());
}

#[test]
fn a_long_poll_that_publishes_too_fast_gets_an_error() {
    let settings = [("THRONG_LIMITS_PUBLISHES_PER_SECOND_MAX", "20")];
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/phoenix/topics.toml");
    let server = Server::with(&["--config", rules], &settings);
    let target = format!("/socket/longpoll?vsn=2.0.0&token={}", longpoll_session(&server));
    let mut lines = String::from("[\"1\",\"1\",\"room:a\",\"phx_join\",{}]\n");
    for n in 2..90 {
        lines += &format!("[\"1\",\"{n}\",\"room:a\",\"say\",{{}}]\n");
    }
    let request = post(&target, lines.len())
        .replace("Host: t", "Host: t\r\nContent-Type: application/x-ndjson\r\nConnection: close");
    assert!(server.exchange((request + &lines).as_bytes()).ends_with(r#"{"status":200}"#));
    let mut responses = String::new();
    while responses.matches("phx_reply").count() < 89 {
        responses += &text(server.client, "GET", &target, None, "").1;
    }
    let refused = responses.matches("too many messages in a second").count();
    assert!((40..80).contains(&refused), "{refused}: {responses}");
}

#[test]
fn one_client_can_not_use_up_the_long_poll_sessions() {
    const SESSIONS: usize = 100;
    let settings = [
        ("THRONG_LIMITS_LONGPOLL_SESSIONS_PER_ADDRESS_MAX", "100"),
        ("THRONG_TIMEOUTS_LONGPOLL_SECONDS", "60"),
    ];
    let server = Server::with(&[], &settings);
    let opens = "GET /socket/longpoll?vsn=2.0.0 HTTP/1.1\r\nHost: t\r\n\r\n";
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        // Several connections from one address open more sessions than the limit allows.
        for _ in 0..4 {
            let mut socket = connect_from("127.0.0.1", &server);
            socket.write_all(opens.repeat(SESSIONS).as_bytes()).unwrap();
            let stop = &stop;
            scope.spawn(move || read_all(vec![socket], stop));
        }
        let refused = "throng_connections_refused_total{reason=\"sessions\"}";
        server.until("the address has enough", |server| server.metric(refused) > 0.0);
        // A shard may reject a session before another shard has counted the last one that it opened.
        server.until("all sessions are counted", |server| {
            server.metric("throng_longpoll_sessions") == SESSIONS as f64
        });
        let mut other = Stream::new(connect_from("127.0.0.2", &server));
        other.send(opens);
        let outcome: Value = serde_json::from_str(&other.read_reply().1).unwrap();
        assert_eq!(outcome["status"], 410);
        let token = outcome["token"].as_str().unwrap();
        let mut response = Stream::new(connect_from("127.0.0.1", &server));
        response.send(opens);
        let refusal = response.read_reply().1;
        assert!(refusal.contains(r#""status":500"#) && refusal.contains("address"), "{refusal}");
        // Sessions without polls end soon, and the session with polls stays.
        let poll = opens.replace("vsn=2.0.0", &format!("vsn=2.0.0&token={token}"));
        other.send(&poll);
        server.until("the unpolled are over", |server| {
            server.metric("throng_longpoll_sessions") <= 1.0
        });
        assert_eq!(server.metric("throng_longpoll_sessions"), 1.0);
    });
}

#[test]
fn health_checks_pass_while_their_address_is_at_its_limit() {
    let server = Server::with(&[], &[("THRONG_LIMITS_CONNECTIONS_PER_ADDRESS_MAX", "3")]);
    let opened_before: Vec<_> = (0..3).map(|_| server.listen("/sse")).collect();
    let send_request = |text: &str| server.exchange(text.as_bytes());
    for _ in 0..20 {
        assert!(send_request(HEALTH).starts_with("HTTP/1.1 200 "), "the health check");
        // This request arrives later than its connection.
        let mut late = Stream::new(server.connect());
        std::thread::sleep(Duration::from_millis(20));
        late.send(HEALTH);
        assert_eq!(late.read_reply(), (200, r#"{"status":"ok"}"#.into()));
        assert_eq!(late.rest(), "", "the connection is not reused");
        let refused = send_request("GET /sse HTTP/1.1\r\nHost: t\r\n\r\n");
        assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("your address"));
    }
    let refused = "throng_connections_refused_total{reason=\"address\"}";
    assert_eq!(server.metric(refused), 20.0);
    // The server closes silent connections, and rejects those beyond the reserve at once.
    let silent: Vec<_> = (0..200).map(|_| server.connect()).collect();
    server.until("they are refused", |server| server.metric(refused) == 220.0);
    for mut socket in silent {
        let mut outcome = String::new();
        let _ = socket.read_to_string(&mut outcome);
        assert!(outcome.starts_with("HTTP/1.1 503 "), "{outcome:?}");
    }
    assert!(send_request(HEALTH).starts_with("HTTP/1.1 200 "));
    drop(opened_before);
}

#[test]
fn opened_minus_closed_connections_equals_open_ones() {
    let server = Server::start();
    let balance = |server: &Server| {
        let (_, stats) = server.api("GET", "/api/stats", None);
        let number = |name: &str| stats[name].as_u64().unwrap();
        (number("opened"), number("closed"), number("connections"))
    };
    let mut polls = Stream::new(server.connect());
    for _ in 0..5 {
        polls.send("GET /poll?topic=a&timeout=0 HTTP/1.1\r\nHost: t\r\n\r\n");
        polls.read_reply();
    }
    polls.send("GET /poll?topic=a&timeout=120 HTTP/1.1\r\nHost: t\r\n\r\n");
    let opened_before = (server.listen("/sse?topic=a"), server.listen("/stream?topic=a"), polls);
    let sockets = (websocket(&server, ""), (0..7).map(|_| session(&server)).collect::<Vec<_>>());
    let open = 4 + 7;
    server.until("all are counted", |server| {
        let (opened, closed, there) = balance(server);
        opened - closed == there && there == open
    });
    drop((opened_before, sockets));
    server.until("all have gone", |server| {
        let (opened, closed, there) = balance(server);
        opened == closed && there == 0
    });
}
