//! Nobody takes what belongs to all: half-read input, outboxes, sessions and the members of a room
//! are shared by everyone, and one client that asks for much costs the others nothing.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::*;

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n";

/// The head of a POST with a body of so many bytes.
fn post(target: &str, bytes: usize) -> String {
    format!("POST {target} HTTP/1.1\r\nHost: t\r\nContent-Length: {bytes}\r\n\r\n")
}

/// How often a limit was met.
fn limited(server: &Server, name: &str) -> f64 {
    server.metric(&format!("throng_limited_total{{name=\"{name}\"}}"))
}

/// A client's text frame, with a mask of zeros.
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

/// A connection from another address of this host.
fn connect_from(source: &str, server: &Server) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&fd, &SocketAddr::new(source.parse().unwrap(), 0)).unwrap();
    connect(&fd, &server.client).unwrap();
    let socket = TcpStream::from(fd);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// The token of a new long-poll session.
fn session(server: &Server) -> String {
    let (_, answer) = server.get("/socket/longpoll?vsn=2.0.0");
    answer["token"].as_str().unwrap_or_else(|| panic!("no session: {answer}")).into()
}

#[test]
fn what_strangers_send_unasked_is_not_kept() {
    let server = Server::with(&[], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "open/")]);
    for (target, status, told) in [
        ("/socket/longpoll?vsn=2.0.0", 200, r#"{"status":410}"#),
        ("/socket/longpoll?vsn=2.0.0&token=forged", 200, r#"{"status":410}"#),
        ("/socket/longpoll?vsn=9", 200, r#"{"status":403}"#),
        ("/publish?topic=closed", 403, "forbidden"),
        ("/publish", 400, "no_topic"),
        ("/nowhere", 404, "not_found"),
        ("/sse?topic=a", 405, "method_not_allowed"),
    ] {
        let mut stream = Stream::new(server.connect());
        // Not a byte of the body: the answer comes all the same.
        stream.send(&post(target, 60_000));
        let head = stream.head();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {head}");
        assert_eq!(header(&head, "connection"), Some("close"), "{target}");
        assert!(stream.rest().contains(told), "{target}");
    }
    let (status, _) = Stream::new({
        let mut socket = server.connect();
        socket.write_all(post("/ack", 20_000).as_bytes()).unwrap();
        socket
    })
    .answer();
    assert_eq!(status, 413);
    // What is welcome is waited for.
    let mut stream = Stream::new(server.connect());
    stream.send(&post("/publish?topic=open/a", 3));
    stream.send("abc");
    assert_eq!(stream.answer().0, 200);
}

#[test]
fn unfinished_input_of_many_leaves_room_for_everyone_else() {
    let settings = [
        ("THRONG_LIMITS_INPUT_BYTES_MAX", "4MiB"),
        ("THRONG_CLIENT_PUBLISH_PREFIXES", "*"),
        ("THRONG_LIMITS_FRAME_BYTES_MAX", "2MiB"),
    ];
    let server = Server::with(&[], &settings);
    let token = session(&server);
    // A healthy one is in the middle of a small message.
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
            // The head of a frame of 1 MiB.
            socket.write_all(&[0x81, 0xff, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]).unwrap();
            socket
        };
        let _ = socket.write_all(&vec![b' '; 900_000]);
        greedy.push(socket);
    }
    server.until("somebody is refused", |server| limited(server, "limits.input_bytes_max") > 8.0);
    server.until("it is within its bound", |server| {
        server.metric("throng_input_memory_bytes") <= f64::from(4 << 20)
    });
    healthy.get_mut().write_all(&small[300..]).unwrap();
    assert_eq!(receive(&mut healthy)["type"], "reply");
    let mut told = [0, 0];
    for (n, mut socket) in greedy.into_iter().enumerate() {
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut bytes = Vec::new();
        let _ = socket.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        if n % 2 == 0 {
            told[0] += usize::from(text.contains(r#""status":500"#) && text.contains("overloaded"));
        } else {
            told[1] += usize::from(bytes.windows(2).any(|two| two == 1013u16.to_be_bytes()));
        }
    }
    assert!(told[0] > 0 && told[1] > 0, "{told:?}");
    server.until("all is given back", |server| server.metric("throng_input_memory_bytes") == 0.0);
    // A plain request is told in plain words.
    let tight = Server::with(&["--shards", "1"], &settings);
    let mut sockets: Vec<_> = (0..120)
        .map(|_| {
            let mut socket = tight.connect();
            socket.write_all(post("/publish?topic=a", 60_000).as_bytes()).unwrap();
            let _ = socket.write_all(&[b'x'; 50_000]);
            socket
        })
        .collect();
    tight.until("somebody is refused", |it| limited(it, "limits.input_bytes_max") > 0.0);
    let refused = sockets.iter_mut().any(|socket| {
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut start = [0; 600];
        let read = socket.read(&mut start).unwrap_or(0);
        let text = String::from_utf8_lossy(&start[..read]);
        text.starts_with("HTTP/1.1 503 ") && text.contains("Retry-After: ")
    });
    assert!(refused);
}

#[test]
fn readers_that_stop_do_not_take_the_memory_of_those_that_read() {
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
            // Each has its own, in no other's outbox.
            let data = format!("{round}{}", "x".repeat(60_000));
            server.post("/api/send", json!({"user": format!("u{n}"), "data": data}));
        }
        server.publish("all", json!(round));
        assert_eq!(reader.data(), round.to_string());
        let held = server.metric("throng_outbox_memory_bytes");
        assert!(held < 3.0 * f64::from(1 << 20), "{held}");
    }
    assert!(limited(&server, "limits.outboxes_bytes_max") > 0.0);
    drop(stopped);
    server.until("all is given back", |server| server.metric("throng_outbox_memory_bytes") == 0.0);
}

/// Writes while it reads, as every client of a pipeline does.
fn pipeline(server: &Server, requests: &str, answers: usize) {
    let last = "GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let mut socket = server.connect();
    let writer = {
        let (mut socket, bytes) = (socket.try_clone().unwrap(), [requests, last].concat());
        std::thread::spawn(move || {
            socket.write_all(bytes.as_bytes()).unwrap();
            if !bytes.contains("poll") {
                // A poll's client that has gone is not waited for; other answers are.
                socket.shutdown(Shutdown::Write).unwrap();
            }
        })
    };
    let mut all = Vec::new();
    socket.read_to_end(&mut all).unwrap();
    writer.join().unwrap();
    let text = String::from_utf8_lossy(&all);
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), answers + 1);
}

#[test]
fn whoever_asks_far_ahead_gets_all_answers() {
    let server = Server::with(&["--demo"], &[]);
    pipeline(&server, &HEALTH.repeat(10_000), 10_000);
    // Large answers; and behind a poll that waits.
    pipeline(&server, &"GET /chat.js HTTP/1.1\r\nHost: t\r\n\r\n".repeat(3_000), 3_000);
    let poll = "GET /poll?topic=a&timeout=1 HTTP/1.1\r\nHost: t\r\n\r\n";
    pipeline(&server, &[poll, &HEALTH.repeat(4_000), poll, HEALTH].concat(), 4_003);
    // And behind a request that another shard may answer.
    let token = session(&server);
    let beat = r#"[null,"1","phoenix","heartbeat",{}]"#;
    let post = post(&format!("/socket/longpoll?vsn=2.0.0&token={token}"), beat.len()) + beat;
    pipeline(&server, &[&post, &*HEALTH.repeat(3)].concat().repeat(2_000), 8_000);
}

#[test]
fn whoever_asks_far_ahead_and_never_reads_is_ended() {
    let settings = [("THRONG_TIMEOUTS_IDLE_SECONDS", "5"), ("THRONG_TIMEOUTS_HEAD_SECONDS", "1")];
    let server = Server::with(&["--demo"], &settings);
    let mut socket = server.connect();
    socket.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let _ = socket.write_all("GET /chat.js HTTP/1.1\r\nHost: t\r\n\r\n".repeat(5_000).as_bytes());
    let held = server.metric("throng_outbox_bytes") + server.metric("throng_input_memory_bytes");
    assert!((1.0..500_000.0).contains(&held), "{held}");
    let closed = "throng_connections_closed_total{reason=\"idle\"}";
    server.until("it is ended", |server| server.metric(closed) == 1.0);
}

/// Reads everything that comes to these sockets until told to stop, or the test is long over; gives
/// how many are open still.
fn read_all(sockets: Vec<TcpStream>, stop: &AtomicBool) -> usize {
    let mut open: Vec<_> = sockets;
    open.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    let mut buffer = vec![0; 256 << 10];
    let end = Instant::now() + 2 * PATIENCE;
    while !stop.load(Ordering::Relaxed) && Instant::now() < end {
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

/// 200 members that read as fast as they can, and one that publishes as fast as it can.
fn flooded_room(settings: &[(&str, &str)], seconds: u64) {
    const MEMBERS: usize = 200;
    let server = Server::with(&["--shards", "2"], settings);
    let raw = |query: &str| websocket(&server, query).get_ref().try_clone().unwrap();
    let mut members: Vec<_> = (0..MEMBERS).map(|_| raw("topic=room")).collect();
    let stop = AtomicBool::new(false);
    let publisher = raw("");
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let sockets = members.split_off(members.len() - MEMBERS / 2);
                let stop = &stop;
                scope.spawn(move || read_all(sockets, stop))
            })
            .collect();
        let answers = publisher.try_clone().unwrap();
        let replies = scope.spawn(|| read_all(vec![answers], &stop));
        let data = "d".repeat(1_000);
        let publish = json!({"type":"publish","id":"1","topic":"room","data":data}).to_string();
        let block = frame(&publish).repeat(64);
        let (mut publisher, end) = (publisher, Instant::now() + Duration::from_secs(seconds));
        publisher.set_nonblocking(true).unwrap();
        let mut at = 0;
        while Instant::now() < end {
            match publisher.write(&block[at..]) {
                Ok(sent) => at = (at + sent) % block.len(),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        let delivered = server.metric("throng_messages_delivered_total");
        stop.store(true, Ordering::Relaxed);
        assert_eq!(server.metric("throng_slow_consumers_closed_total"), 0.0);
        let open: usize = readers.into_iter().map(|it| it.join().unwrap()).sum();
        assert_eq!(open, MEMBERS);
        assert_eq!(replies.join().unwrap(), 1, "nor is the publisher closed");
        assert!(delivered > 20.0 * MEMBERS as f64, "{delivered}");
    });
}

#[test]
fn one_publishing_client_throws_nobody_out_of_a_room() {
    let open = ("THRONG_CLIENT_PUBLISH_PREFIXES", "*");
    flooded_room(&[open], 3);
    // Without the limit on its rate the members hold it up.
    flooded_room(&[open, ("THRONG_LIMITS_PUBLISHES_PER_SECOND_MAX", "0")], 4);
}

#[test]
fn a_room_of_readers_is_held_up_by_nobody_who_stopped_reading() {
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

/// A connection whose kernel takes little ahead of its reader.
fn with_small_window(server: &Server, request: &str) -> TcpStream {
    let mut socket = server.connect();
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 32 << 10).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    socket
}

/// Reads so many bytes of each of these a hundred times a second, until told to stop, or the test
/// is long over.
fn trickle(sockets: &mut [TcpStream], bytes: usize, stop: &AtomicBool) {
    let until = Instant::now() + 3 * PATIENCE;
    let mut buffer = vec![0; bytes];
    for socket in &mut *sockets {
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    }
    while !stop.load(Ordering::Relaxed) && Instant::now() < until {
        sockets.iter_mut().for_each(|socket| drop(socket.read(&mut buffer)));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_member_that_reads_just_fast_enough_stops_nobody_who_publishes() {
    const OUTBOX_BYTES: f64 = 262_144.0;
    let settings = [
        ("THRONG_CLIENT_PUBLISH_PREFIXES", "*"),
        ("THRONG_SOCKET_SEND_BUFFER_BYTES", "4KiB"),
        ("THRONG_LIMITS_OUTBOX_MESSAGES_MAX", "100000"),
    ];
    let server = Server::with(&["--shards", "1"], &settings);
    let request = "GET /stream?topic=room&topic=fill HTTP/1.1\r\nHost: t\r\n\r\n";
    let mut member = [with_small_window(&server, request)];
    server.until_members("fill", 1);
    let (stop, server) = (&AtomicBool::new(false), &server);
    std::thread::scope(|scope| {
        // It takes some 400 kB a second, and nearly all of its room is used all the time.
        scope.spawn(|| trickle(&mut member, 8_000, stop));
        scope.spawn(move || {
            let until = Instant::now() + 3 * PATIENCE;
            while !stop.load(Ordering::Relaxed) && Instant::now() < until {
                if server.metric("throng_outbox_bytes") < 0.9 * OUTBOX_BYTES {
                    server.publish("fill", json!("x".repeat(16_000)));
                }
            }
        });
        server.until("it is short of room", |server| {
            server.metric("throng_outbox_bytes") > 0.8 * OUTBOX_BYTES
        });
        let mut publisher = websocket(server, "");
        for n in 0..20 {
            let publish = json!({"type":"publish","id":n,"topic":"room","data":n});
            assert!(command(&mut publisher, publish)["ok"].is_object());
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(limited(server, "topic_behind") > 0.0, "it was never short of room");
}

#[test]
fn answers_that_end_a_connection_count_among_what_all_may_have() {
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
        // Each reads a little all the time.
        scope.spawn(|| trickle(&mut polls, 200, stop));
        server.until("they are bounded", |server| {
            limited(server, "limits.outboxes_bytes_max") > 0.0
                && server.metric("throng_outbox_memory_bytes") <= 1_048_576.0
        });
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn who_publishes_or_joins_too_fast_waits_and_loses_nothing() {
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
        // Nobody else waits.
        server.publish("calm", json!(kind));
        assert_eq!(receive(&mut other)["data"], kind);
        for n in 0..count {
            let answer = receive(&mut hasty);
            assert_eq!((&answer["type"], &answer["id"]), (&json!("reply"), &json!(n)));
            assert!(answer["ok"].is_object(), "{answer}");
        }
        // The first second's worth comes at once, and what has come with its last.
        assert!(begun.elapsed() > Duration::from_millis(1_500), "{kind}: {:?}", begun.elapsed());
        assert!(limited(&server, &format!("limits.{limit}_per_second_max")) > 0.0);
    }
    // By HTTP as well.
    let publish = post("/publish?topic=t", 1) + "x";
    let begun = Instant::now();
    pipeline(&server, &publish.repeat(350), 350);
    assert!(begun.elapsed() > Duration::from_millis(1_500), "{:?}", begun.elapsed());
}

#[test]
fn a_long_poll_that_publishes_too_fast_is_told() {
    let settings = [("THRONG_LIMITS_PUBLISHES_PER_SECOND_MAX", "20")];
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/phoenix/topics.toml");
    let server = Server::with(&["--config", rules], &settings);
    let target = format!("/socket/longpoll?vsn=2.0.0&token={}", session(&server));
    let mut lines = String::from("[\"1\",\"1\",\"room:a\",\"phx_join\",{}]\n");
    for n in 2..90 {
        lines += &format!("[\"1\",\"{n}\",\"room:a\",\"say\",{{}}]\n");
    }
    let request = post(&target, lines.len())
        .replace("Host: t", "Host: t\r\nContent-Type: application/x-ndjson\r\nConnection: close");
    assert!(server.exchange((request + &lines).as_bytes()).ends_with(r#"{"status":200}"#));
    let mut answers = String::new();
    while answers.matches("phx_reply").count() < 89 {
        answers += &text(server.client, "GET", &target, None, "").1;
    }
    let refused = answers.matches("too many messages in a second").count();
    assert!((40..80).contains(&refused), "{refused}: {answers}");
}

#[test]
fn one_client_does_not_take_the_long_poll_sessions_of_all() {
    let server = Server::start();
    let opens = "GET /socket/longpoll?vsn=2.0.0 HTTP/1.1\r\nHost: t\r\n\r\n";
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Several connections of one address, and more than there are sessions.
        for _ in 0..4 {
            let mut socket = connect_from("127.0.0.1", &server);
            let answers = socket.try_clone().unwrap();
            let stop = &stop;
            scope.spawn(move || read_all(vec![answers], stop));
            scope.spawn(move || {
                let end = Instant::now() + Duration::from_secs(4);
                let block = opens.repeat(100);
                let (mut at, mut left) = (0, 3_000 * opens.len());
                while Instant::now() < end && left > 0 {
                    match socket.write(&block.as_bytes()[at..]) {
                        Ok(sent) => (at, left) = ((at + sent) % block.len(), left - sent.min(left)),
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
            });
        }
        let refused = "throng_connections_refused_total{reason=\"sessions\"}";
        server.until("the address has enough", |server| server.metric(refused) > 0.0);
        assert_eq!(server.metric("throng_longpoll_sessions"), 2_500.0);
        let mut other = Stream::new(connect_from("127.0.0.2", &server));
        other.send(opens);
        let answer: Value = serde_json::from_str(&other.answer().1).unwrap();
        assert_eq!(answer["status"], 410);
        let token = answer["token"].as_str().unwrap();
        let mut told = Stream::new(connect_from("127.0.0.1", &server));
        told.send(opens);
        let refusal = told.answer().1;
        assert!(refusal.contains(r#""status":500"#) && refusal.contains("address"), "{refusal}");
        // Sessions that nobody polls are over soon; one that is polled stays.
        let poll = opens.replace("vsn=2.0.0", &format!("vsn=2.0.0&token={token}"));
        other.send(&poll);
        server.until("the unpolled are over", |server| {
            server.metric("throng_longpoll_sessions") <= 1.0
        });
        assert_eq!(server.metric("throng_longpoll_sessions"), 1.0);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_full_address_does_not_look_like_a_dead_server() {
    let server = Server::with(&[], &[("THRONG_LIMITS_CONNECTIONS_PER_ADDRESS_MAX", "3")]);
    let held: Vec<_> = (0..3).map(|_| server.listen("/sse")).collect();
    let ask = |text: &str| server.exchange(text.as_bytes());
    for _ in 0..20 {
        assert!(ask(HEALTH).starts_with("HTTP/1.1 200 "), "the health check");
        // A request that comes later than its connection.
        let mut late = Stream::new(server.connect());
        std::thread::sleep(Duration::from_millis(20));
        late.send(HEALTH);
        assert_eq!(late.answer(), (200, r#"{"status":"ok"}"#.into()));
        assert_eq!(late.rest(), "", "it is not kept");
        let refused = ask("GET /sse HTTP/1.1\r\nHost: t\r\n\r\n");
        assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("your address"));
    }
    let refused = "throng_connections_refused_total{reason=\"address\"}";
    assert_eq!(server.metric(refused), 20.0);
    // Who says nothing does not stay either, and the places behind the reserve are refused at once.
    let silent: Vec<_> = (0..200).map(|_| server.connect()).collect();
    server.until("they are refused", |server| server.metric(refused) == 220.0);
    for mut socket in silent {
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer);
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer:?}");
    }
    assert!(ask(HEALTH).starts_with("HTTP/1.1 200 "));
    drop(held);
}

#[test]
fn what_was_opened_and_not_closed_is_what_is_there() {
    let server = Server::start();
    let balance = |server: &Server| {
        let (_, stats) = server.api("GET", "/api/stats", None);
        let number = |name: &str| stats[name].as_u64().unwrap();
        (number("opened"), number("closed"), number("connections"))
    };
    let mut polls = Stream::new(server.connect());
    for _ in 0..5 {
        polls.send("GET /poll?topic=a&timeout=0 HTTP/1.1\r\nHost: t\r\n\r\n");
        polls.answer();
    }
    polls.send("GET /poll?topic=a HTTP/1.1\r\nHost: t\r\n\r\n");
    let held = (server.listen("/sse?topic=a"), server.listen("/stream?topic=a"), polls);
    let sockets = (websocket(&server, ""), (0..7).map(|_| session(&server)).collect::<Vec<_>>());
    let open = 4 + 7;
    server.until("all are counted", |server| {
        let (opened, closed, there) = balance(server);
        opened - closed == there && there == open
    });
    drop((held, sockets));
    server.until("all have gone", |server| {
        let (opened, closed, there) = balance(server);
        opened == closed && there == 0
    });
}
