//! The port of MQTT clients alone: what holds for the client port holds for it. The server is this test's own
//! executable, with a protocol in place of MQTT that is as simple as can be.

mod support;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::sync::LazyLock;

use auth::Principal;
use model::{CloseReason, Encoding, Message, ResumeRequest};
use protocol::request::Open;
use protocol::{
    Codecs, Delivery, Listener, Liveness, Protocol, Protocols, Read, Reader, Recognised, Request,
    Settings,
};
use serde_json::json;
use support::*;

/// Packets of a type, a length and so many bytes.
struct Packets;

/// A client says who it is, as CONNECT does.
const CONNECT: u8 = 0x10;
/// The answer, empty or with why not.
const CONNACK: u8 = 0x20;
const MESSAGE: u8 = 0x30;
const DISCONNECT: u8 = 0xE0;

static WITH_PACKETS: LazyLock<Protocols> =
    LazyLock::new(|| Protocols::new(&protocol::http::Http).with(&Packets));

impl Protocol for Packets {
    fn name(&self) -> &'static str {
        "packets"
    }

    fn encoding(&self) -> Encoding {
        Encoding(1)
    }

    fn delivery(&self) -> Delivery {
        Delivery::Pushed
    }

    fn liveness(&self, _: &Settings) -> Liveness {
        Liveness::Nobody
    }

    fn recognise(&self, first: &[u8]) -> Recognised {
        Recognised::by_prefix(&[CONNECT], first)
    }

    fn is_on(&self, settings: &Settings) -> bool {
        settings.mqtt.is_some()
    }

    fn listener(&self) -> Option<Listener> {
        Some(Listener::Mqtt)
    }

    fn read(&self, reader: &mut Reader<'_>, bytes: &mut [u8], out: &mut Vec<u8>) -> Read {
        let [CONNECT, length, rest @ ..] = bytes else {
            return Read::MORE;
        };
        let length = usize::from(*length);
        let Some(user) = rest.get(..length) else {
            return Read::MORE;
        };
        assert!(!reader.open, "no test sends more");
        let user = String::from_utf8_lossy(user).into_owned();
        out.extend_from_slice(&[CONNACK, 0]);
        let request = Request::Open(Open {
            encoding: self.encoding(),
            principal: Principal::anonymous(vec![user.into()]),
            topics: Vec::new(),
            resume: ResumeRequest::default(),
            tags: Vec::new(),
            stranger: false,
        });
        Read { taken: 2 + length, request: Some(request), ..Read::MORE }
    }

    fn encode(&self, message: &Message, _: &mut Codecs, out: &mut Vec<u8>) {
        let mut json = Vec::new();
        protocol::json::message(message, &mut json);
        out.push(MESSAGE);
        out.push(u8::try_from(json.len()).expect("the tests' messages are short"));
        out.extend_from_slice(&json);
    }

    fn goodbye(&self, close: CloseReason, _: u32, out: &mut Vec<u8>) {
        let name = close.name().as_bytes();
        out.extend_from_slice(&[DISCONNECT, name.len() as u8]);
        out.extend_from_slice(name);
    }

    /// Only who has begun to connect knows what an answer would be.
    fn turn_away(&self, first: &[u8], close: CloseReason, out: &mut Vec<u8>) {
        if first.first() == Some(&CONNECT) {
            let name = close.name().as_bytes();
            out.extend_from_slice(&[CONNACK, name.len() as u8]);
            out.extend_from_slice(name);
        }
    }
}

/// The command line of the server that this executable is to be, a line for each argument.
const ARGUMENTS: &str = "THIS_TEST_SERVES";

/// No test, but the server that the others start.
#[test]
fn the_server() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let protocols = match std::env::var("THIS_TEST_SPEAKS").as_deref() {
        Ok("http") => Box::leak(Box::new(Protocols::new(&protocol::http::Http))),
        _ => &*WITH_PACKETS,
    };
    let arguments = std::iter::once("throng").chain(arguments.lines()).map(Into::into);
    let code = throng::run_with(arguments, protocols);
    std::process::exit(if code == ExitCode::SUCCESS { 0 } else { 1 });
}

/// This executable as a server with these flags.
fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_server", "--nocapture"]);
    let all = [&["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"], flags].concat();
    command.env(ARGUMENTS, all.join("\n"));
    command
}

/// A server with both ports.
struct Both {
    server: Server,
    mqtt: SocketAddr,
}

impl Both {
    fn start(flags: &[&str], settings: &[(&str, &str)]) -> Self {
        // One that is free now: of the start text only the lines are read that all servers have.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mqtt = free.to_string();
        let server = Server::run(command(&[&["--mqtt", &mqtt], flags].concat()), settings);
        Both { server, mqtt: free }
    }

    fn connect(&self) -> TcpStream {
        connect(self.mqtt)
    }

    /// Sends bytes to the port of MQTT and reads until the server closes.
    fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let mut socket = self.connect();
        // The server may have closed already.
        let _ = socket.write_all(bytes);
        rest(&mut socket)
    }
}

fn rest(socket: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = socket.read_to_end(&mut all);
    all
}

fn packet(socket: &mut TcpStream) -> (u8, String) {
    let mut head = [0; 2];
    socket.read_exact(&mut head).unwrap();
    let mut body = vec![0; usize::from(head[1])];
    socket.read_exact(&mut body).unwrap();
    (head[0], String::from_utf8(body).unwrap())
}

/// A client that is let in.
fn open(at: SocketAddr, first: &[u8], user: &str) -> TcpStream {
    let mut socket = connect(at);
    socket.write_all(&[first, &[CONNECT, user.len() as u8], user.as_bytes()].concat()).unwrap();
    assert_eq!(packet(&mut socket), (CONNACK, String::new()));
    socket
}

#[test]
fn clients_come_by_either_port_and_meet() {
    let both = Both::start(&["--shards", "2"], &[]);
    let mut alice = open(both.mqtt, b"", "alice");
    // The client port tells them by their first bytes.
    let mut bob = open(both.server.client, b"", "bob");
    let health =
        both.server.exchange(b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    both.server.post("/api/broadcast", json!({"data": 7}));
    for socket in [&mut alice, &mut bob] {
        let (kind, message) = packet(socket);
        assert_eq!(kind, MESSAGE);
        assert!(message.contains("\"data\":7"), "{message}");
    }
    both.server.post("/api/send", json!({"user": "bob", "data": 8}));
    assert!(packet(&mut bob).1.contains("\"data\":8"));
    assert_eq!(both.server.metric("throng_connections{transport=\"packets\"}"), 2.0);
}

#[test]
fn what_is_not_mqtt_is_closed_at_its_port_without_an_answer() {
    let both = Both::start(&["--shards", "1"], &[("THRONG_TIMEOUTS_HEAD_SECONDS", "1")]);
    for bytes in [
        &b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n"[..],
        b"G",
        b"\0",
        b"\x16\x03\x01\x02\0",
        &[0x11, 4],
        &[MESSAGE, 1, b'x'],
    ] {
        assert_eq!(both.exchange(bytes), b"", "{bytes:?}");
    }
    let closed = "throng_connections_closed_total{reason=\"bad_request\"}";
    assert_eq!(both.server.metric(closed), 6.0);
    for class in ["2xx", "4xx", "5xx"] {
        let answers = format!("throng_http_answers_total{{class=\"{class}\"}}");
        assert_eq!(both.server.metric(&answers), 0.0, "{class}");
    }
    // Who says too little for too long is told in its own words, if it has said which.
    assert_eq!(both.exchange(b""), b"");
    assert_eq!(both.exchange(&[CONNECT, 5, b'a']), b"\x20\x0frequest_timeout");
    both.server.until("nobody is left", |server| {
        server.metric("throng_connections{transport=\"packets\"}") == 0.0
    });
}

#[test]
fn without_an_address_there_is_no_mqtt() {
    let server = Server::run(command(&["--shards", "1"]), &[]);
    let answer = server.exchange_once(&[CONNECT, 1, b'a']);
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer:?}");
}

#[test]
fn both_ports_are_spread_over_the_shards() {
    const SHARDS: usize = 4;
    const CONNECTIONS: usize = 1_600;
    let both = Both::start(&["--shards", "4"], &[]);
    let shards = || -> Vec<f64> {
        let of = |shard| format!("throng_shard_connections{{shard=\"{shard}\"}}");
        (0..SHARDS).map(|shard| both.server.metric(&of(shard))).collect()
    };
    let mut held = Vec::new();
    // First all by the one port, then all by the other; the second also makes up for the first.
    for at in [both.mqtt, both.server.client] {
        for _ in 0..CONNECTIONS / 2 {
            held.push(connect(at));
            if held.len() % 100 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(150));
            }
        }
        let all = held.len() as f64;
        both.server.until("all are there", |_| shards().iter().sum::<f64>() == all);
        let mean = all / SHARDS as f64;
        // A shard that holds 3 % and 32 over the mean leaves the choice at the next look.
        let most = mean * 1.03 + 32.0 + 40.0;
        assert!(shards().iter().all(|count| *count <= most), "{:?}", shards());
    }
}

#[test]
fn a_shard_that_is_full_takes_no_more_by_any_port() {
    // So many descriptors that two shards hold some 200 connections each, and the queues take an eighth.
    let both = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut serve = command(&["--shards", "2", "--mqtt", &free.to_string()]);
        let mut limited = Command::new("sh");
        let exe = serve.get_program().to_owned();
        limited.args(["-c", "ulimit -n 280; exec \"$0\" \"$@\""]).arg(exe).args(serve.get_args());
        limited.envs(serve.get_envs().filter_map(|(key, value)| Some((key, value?))));
        serve.stdout(Stdio::null());
        Both { server: Server::run(limited, &[]), mqtt: free }
    };
    let mut held = Vec::new();
    for n in 0..400 {
        held.push(connect(if n % 2 == 0 { both.mqtt } else { both.server.client }));
        if n % 20 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(60));
        }
    }
    let refused = || both.server.metric("throng_connections_refused_total{reason=\"connections\"}");
    let of = |shard| both.server.metric(&format!("throng_shard_connections{{shard=\"{shard}\"}}"));
    both.server.until("all are held or refused", |_| of(0) + of(1) + refused() == 400.0);
    // While one has room, the other refuses nobody.
    let (least, most) = (of(0).min(of(1)), of(0).max(of(1)));
    assert!(least > 150.0 && most - least < 60.0, "{least} {most}");
    assert_eq!(both.server.metric("throng_accept_errors_total"), 0.0);
}

#[test]
fn who_finds_no_room_is_told_in_its_own_words() {
    let both = Both::start(&["--shards", "1", "--max-connections", "2"], &[]);
    let held = [open(both.mqtt, b"", "alice"), open(both.server.client, b"", "bob")];
    let refused = b"\x20\x0aoverloaded";
    let connect_packet = [CONNECT, 1, b'c'];
    // Its first bytes may not have come when it is refused.
    let answers = (0..20).map(|_| both.exchange(&connect_packet));
    assert!(answers.clone().all(|answer| answer.is_empty() || answer == refused));
    assert_eq!(both.exchange(b"GET / HTTP/1.1\r\n\r\n"), b"");
    let answer = both.server.exchange(b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(both.server.metric("throng_connections_refused_total{reason=\"connections\"}") >= 22.0);
    drop(held);

    let limit = [("THRONG_LIMITS_CONNECTIONS_PER_ADDRESS_MAX", "2")];
    let both = Both::start(&["--shards", "1"], &limit);
    let held = [open(both.mqtt, b"", "alice"), open(both.server.client, b"", "bob")];
    assert!((0..5).all(|_| {
        let answer = both.exchange(&connect_packet);
        answer.is_empty() || answer == refused
    }));
    // A health check is answered, where one is made.
    let check = b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    assert!(both.server.exchange(check).starts_with("HTTP/1.1 200"));
    assert_eq!(both.exchange(check), b"");
    assert_eq!(both.server.metric("throng_connections_refused_total{reason=\"address\"}"), 6.0);
    drop(held);
    both.server.until("there is room again", |_| {
        let mut socket = both.connect();
        let mut answer = [0; 2];
        let _ = socket.write_all(&connect_packet);
        socket.read_exact(&mut answer).is_ok() && answer == [CONNACK, 0]
    });
}

#[test]
fn a_trusted_proxy_says_who_comes_to_the_port_of_mqtt() {
    let settings = [
        ("THRONG_CLIENT_TRUSTED_PROXIES", "127.0.0.1"),
        ("THRONG_CLIENT_PROXY_HEADER", "proxy-protocol"),
        ("THRONG_LIMITS_CONNECTIONS_PER_ADDRESS_MAX", "1"),
    ];
    let both = Both::start(&["--shards", "1"], &settings);
    let header = b"PROXY TCP4 192.0.2.1 127.0.0.1 4711 1883\r\n";
    let _alice = open(both.mqtt, header, "alice");
    let (_, answer) = both.server.api("GET", "/api/users/alice", None);
    assert_eq!(answer["connections"][0]["address"], "192.0.2.1:4711", "{answer}");
    // The address has what it may, and another not.
    let again = [&header[..], &[CONNECT, 1, b'a']].concat();
    assert_eq!(both.exchange(&again), b"\x20\x0aoverloaded");
    let _bob = open(both.mqtt, b"PROXY TCP4 192.0.2.2 127.0.0.1 4711 1883\r\n", "bob");
    let _carol = open(both.server.client, b"PROXY TCP4 192.0.2.3 127.0.0.1 1 2\r\n", "carol");
    // By the client port it is refused in its own words, too.
    let mut socket = both.server.connect();
    socket.write_all(&again).unwrap();
    assert_eq!(rest(&mut socket), b"\x20\x0aoverloaded");
    // Who has no header has no answer, and neither has who sends another thing behind it.
    assert_eq!(both.exchange(&[CONNECT, 1, b'a']), b"");
    let header = b"PROXY TCP4 192.0.2.4 127.0.0.1 4711 1883\r\n";
    assert_eq!(both.exchange(&[&header[..], b"GET / HTTP/1.1\r\n\r\n"].concat()), b"");
    let closed = "throng_connections_closed_total{reason=\"bad_request\"}";
    // It counts when it has closed.
    both.server.until("both are counted", |server| server.metric(closed) == 2.0);
}

#[test]
fn a_drain_closes_both_ports_and_tells_who_is_there() {
    let mut both = Both::start(&["--shards", "2"], &[]);
    let mut alice = open(both.mqtt, b"", "alice");
    let mut bob = open(both.server.client, b"", "bob");
    let mut silent = both.connect();
    let server = &both.server;
    server.until("all are there", |server| {
        server.metric("throng_connections{transport=\"packets\"}") == 3.0
    });
    server.signal("-INT");
    assert_eq!(packet(&mut alice), (DISCONNECT, "drain".into()));
    assert_eq!(packet(&mut bob), (DISCONNECT, "drain".into()));
    assert_eq!(rest(&mut silent), b"", "it has not said what it speaks");
    let refused = |at| TcpStream::connect(at).is_err();
    // Each shard has listeners of its own.
    let refused = |_: &Server| refused(both.mqtt) && refused(both.server.client);
    server.until("nobody is let in", refused);
    drop((alice, bob, silent));
    assert!(both.server.child.wait().unwrap().success());
}

#[test]
fn the_start_text_says_where_and_what_to_try() {
    let mut child = command(&["--mqtt", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    while !text.contains("Ctrl-C") {
        assert!(std::io::BufRead::read_line(&mut out, &mut text).unwrap() > 0, "{text}");
    }
    let at = text.split("  mqtt          mqtt://127.0.0.1:").nth(1).unwrap();
    let port: u16 = at.lines().next().unwrap().parse().unwrap();
    let tries = format!("  mosquitto_sub -h 127.0.0.1 -p {port} -t news\n");
    assert!(port > 0 && text.contains(&tries) && text.contains("mosquitto_pub"), "{text}");
    drop(open(SocketAddr::from(([127, 0, 0, 1], port)), b"", "alice"));
    child.kill().unwrap();
    child.wait().unwrap();
    // Without it there is no word of it.
    let mut child = command(&[]).stdout(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    while !text.contains("Ctrl-C") {
        assert!(std::io::BufRead::read_line(&mut out, &mut text).unwrap() > 0, "{text}");
    }
    assert!(!text.contains("mqtt") && !text.contains("MQTT"), "{text}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_port_that_can_t_be_had_is_named_by_its_setting() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let output = command(&["--mqtt", &taken]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(text.contains(&format!("can't listen on {taken} (mqtt.listen)")), "{text}");
    assert!(text.contains("choose another with --mqtt"), "{text}");
    // A server that does not speak it says so.
    let output = command(&["--mqtt", "127.0.0.1:0"]).env("THIS_TEST_SPEAKS", "http").output();
    let output = output.unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("built without MQTT"), "{text}");
}

#[test]
fn the_flag_has_an_address_of_its_own_or_yours() {
    let throng = |args: &[&str]| {
        let folder = std::env::temp_dir();
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        let output = command.args(args).current_dir(folder).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let (_, text) = throng(&["config"]);
    assert!(text.contains("[mqtt]\nlisten = \"\" "), "{text}");
    let (_, text) = throng(&["config", "--mqtt"]);
    assert!(text.contains("\nlisten = \"127.0.0.1:1883\" ") && text.contains("--mqtt"), "{text}");
    let (_, text) = throng(&["config", "--mqtt", "127.0.0.1:1884"]);
    assert!(text.contains("\nlisten = \"127.0.0.1:1884\" "), "{text}");
    let (ok, text) = throng(&["config", "--check", "--mqtt", "0.0.0.0:1883"]);
    assert!(!ok && text.contains("flag --mqtt: mqtt.listen: 0.0.0.0:1883 is open"), "{text}");
    let (ok, _) = throng(&["config", "--check", "--mqtt", "0.0.0.0:1883", "--insecure"]);
    assert!(ok);
}
