//! The separate port for MQTT clients behaves like the client port. The server is this test's own executable, with a
//! minimal protocol in place of MQTT.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, ExitCode};
use std::sync::LazyLock;

use crate::support::*;
use auth::Principal;
use model::{CloseReason, Encoding, Message, ResumeRequest};
use protocol::request::Open;
use protocol::{
    Codecs, Delivery, Listener, Liveness, Protocol, Protocols, Read, Reader, Recognised, Request,
    Settings,
};
use serde_json::json;

/// Packets: a type, a length, and the body.
struct Packets;

/// A client sends its user, as in CONNECT.
const CONNECT: u8 = 0x10;
/// The response, which is empty or has the reason for a rejection.
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
        Liveness::Unchecked
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
        Read { consumed: 2 + length, request: Some(request), ..Read::MORE }
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

    /// Only a client that has begun to connect understands a response.
    fn turn_away(&self, first: &[u8], close: CloseReason, out: &mut Vec<u8>) {
        if first.first() == Some(&CONNECT) {
            let name = close.name().as_bytes();
            out.extend_from_slice(&[CONNACK, name.len() as u8]);
            out.extend_from_slice(name);
        }
    }
}

/// The variable with the server's command line, one argument a line.
const ARGUMENTS: &str = "THIS_TEST_SERVES";

/// Not a test: the server that the other tests start.
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

/// Returns a command that runs this executable as a server with these flags.
fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // If this file is a module, its name comes before the test's.
    let module = module_path!().split_once("::").map_or(String::new(), |(_, it)| format!("{it}::"));
    command.args(["--exact", &format!("{module}the_server"), "--nocapture"]);
    let all = [&["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"], flags].concat();
    command.env(ARGUMENTS, all.join("\n"));
    command
}

/// A server with both ports.
struct Both {
    server: Server,
    mqtt: SocketAddr,
    _folder: Scratch,
    _lines: Lines,
}

impl Both {
    fn start(flags: &[&str], settings: &[(&str, &str)]) -> Self {
        let flags = [&["--mqtt", "127.0.0.1:0"], flags].concat();
        Both::run(command(&flags), settings)
    }

    /// Runs a command line that starts a server, and reads the addresses from its output.
    fn run(mut command: Command, settings: &[(&str, &str)]) -> Self {
        // The folder has no configuration, so the developer's is not read.
        let folder = Scratch::new("mqtt-port");
        command.current_dir(folder.path()).envs(settings.iter().copied());
        let mut server = Server::spawn(&mut command);
        let mut lines = Lines::of(server.child.stdout.take().unwrap());
        let mut address = |label: &str| -> SocketAddr {
            let line = lines.find(|line| line.trim_start().starts_with(label));
            let line = line.unwrap_or_else(|| panic!("the start text has no line for {label:?}"));
            let (_, rest) = line.split_once("://").unwrap();
            rest.split(['/', ' ']).next().unwrap().parse().unwrap()
        };
        server.client = address("clients");
        let mqtt = address("mqtt");
        server.admin = address("applications");
        Both { server, mqtt, _folder: folder, _lines: lines }
    }

    fn connect(&self) -> TcpStream {
        connect(self.mqtt)
    }

    /// Sends bytes to the MQTT port, and reads until the server closes.
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

/// Connects, and fails unless the server accepts.
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
    // The client port recognizes the protocol by the first bytes.
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
fn what_is_not_mqtt_is_closed_at_its_port_without_a_reply() {
    let both = Both::start(&["--shards", "1"], &[("THRONG_TIMEOUTS_HEAD_SECONDS", "600")]);
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
    both.server.until("all are counted", |server| server.metric(closed) == 6.0);
    for class in ["2xx", "4xx", "5xx"] {
        let replies = format!("throng_http_answers_total{{class=\"{class}\"}}");
        assert_eq!(both.server.metric(&replies), 0.0, "{class}");
    }
    // A client that is too slow gets a response in its protocol, if its first bytes show one.
    let both = Both::start(&["--shards", "1"], &[("THRONG_TIMEOUTS_HEAD_SECONDS", "3")]);
    let (mut nothing, mut half) = (both.connect(), both.connect());
    half.write_all(&[CONNECT, 5, b'a']).unwrap();
    assert_eq!(rest(&mut nothing), b"");
    assert_eq!(rest(&mut half), b"\x20\x0frequest_timeout");
    both.server.until("nobody is left", |server| {
        server.metric("throng_connections{transport=\"packets\"}") == 0.0
    });
}

#[test]
fn without_an_address_there_is_no_mqtt() {
    let server = Server::run(command(&["--shards", "1"]), &[]);
    let reply = server.exchange_once(&[CONNECT, 1, b'a']);
    assert!(reply.starts_with("HTTP/1.1 400"), "{reply:?}");
}

#[test]
fn both_ports_are_spread_over_the_shards() {
    const SHARDS: usize = 4;
    const CONNECTIONS: usize = 1_600;
    // The clients send nothing, and the timeout must not close them.
    let both = Both::start(&["--shards", "4"], &[("THRONG_TIMEOUTS_HEAD_SECONDS", "600")]);
    let shards = || -> Vec<f64> {
        let of = |shard| format!("throng_shard_connections{{shard=\"{shard}\"}}");
        (0..SHARDS).map(|shard| both.server.metric(&of(shard))).collect()
    };
    let mut connections = Vec::new();
    // First all connections come by one port, then all by the other. The second half also evens out the first.
    for at in [both.mqtt, both.server.client] {
        for _ in 0..CONNECTIONS / 2 {
            connections.push(connect(at));
            if connections.len() % 100 == 0 {
                let all = connections.len() as f64;
                both.server.until("all are there", |_| shards().iter().sum::<f64>() == all);
            }
        }
        let mean = connections.len() as f64 / SHARDS as f64;
        // The kernel distributes at random, with a deviation of 12 for the first half and of 17 for all. A shard that
        // has 3 % plus 32 more than the mean stops accepting the next time the server balances, however late that is.
        let most = mean * 1.03 + 32.0 + 40.0;
        assert!(shards().iter().all(|count| *count <= most), "{:?}", shards());
    }
}

#[test]
fn a_shard_that_is_full_takes_no_more_by_any_port() {
    // With this limit on descriptors, two shards have some 200 connections each, and the queues take an eighth.
    let both = {
        let serve = command(&["--shards", "2", "--mqtt", "127.0.0.1:0"]);
        let mut limited = Command::new("sh");
        let exe = serve.get_program().to_owned();
        limited.args(["-c", "ulimit -n 280; exec \"$0\" \"$@\""]).arg(exe).args(serve.get_args());
        limited.envs(serve.get_envs().filter_map(|(key, value)| Some((key, value?))));
        Both::run(limited, &[("THRONG_TIMEOUTS_HEAD_SECONDS", "600")])
    };
    let refused = || both.server.metric("throng_connections_refused_total{reason=\"connections\"}");
    let of = |shard| both.server.metric(&format!("throng_shard_connections{{shard=\"{shard}\"}}"));
    let mut connections = Vec::new();
    for n in 1..=400 {
        connections.push(connect(if n % 2 == 0 { both.mqtt } else { both.server.client }));
        // At most as many at a time as fit into the queues of a shard that is full.
        if n % 20 == 0 {
            let all = f64::from(n);
            both.server.until("all are held or refused", |_| of(0) + of(1) + refused() == all);
        }
    }
    // As long as one shard has capacity, the other rejects no client.
    let (least, most) = (of(0).min(of(1)), of(0).max(of(1)));
    assert!(least > 150.0 && most - least < 60.0, "{least} {most}");
    assert_eq!(both.server.metric("throng_accept_errors_total"), 0.0);
}

#[test]
fn a_client_beyond_capacity_gets_its_own_protocols_error() {
    let both = Both::start(&["--shards", "1", "--max-connections", "2"], &[]);
    let connections = [open(both.mqtt, b"", "alice"), open(both.server.client, b"", "bob")];
    let refused = b"\x20\x0aoverloaded";
    let connect_packet = [CONNECT, 1, b'c'];
    // The server may reject a connection before its first bytes arrive.
    let replies = (0..20).map(|_| both.exchange(&connect_packet));
    assert!(replies.clone().all(|reply| reply.is_empty() || reply == refused));
    assert_eq!(both.exchange(b"GET / HTTP/1.1\r\n\r\n"), b"");
    both.server.until("the answer is not lost with a request that comes late", |server| {
        let reply = server.exchange_once(b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n");
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 503"), "{reply}");
        !reply.is_empty()
    });
    let refusals = "throng_connections_refused_total{reason=\"connections\"}";
    both.server.until("all are counted", |server| server.metric(refusals) >= 22.0);
    drop(connections);

    let limit = [("THRONG_LIMITS_CONNECTIONS_PER_ADDRESS_MAX", "2")];
    let both = Both::start(&["--shards", "1"], &limit);
    let connections = [open(both.mqtt, b"", "alice"), open(both.server.client, b"", "bob")];
    assert!((0..5).all(|_| {
        let reply = both.exchange(&connect_packet);
        reply.is_empty() || reply == refused
    }));
    // The client port responds to a health check, and the MQTT port does not.
    let check = b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    assert!(both.server.exchange(check).starts_with("HTTP/1.1 200"));
    assert_eq!(both.exchange(check), b"");
    let refusals = "throng_connections_refused_total{reason=\"address\"}";
    both.server.until("all are counted", |server| server.metric(refusals) == 6.0);
    drop(connections);
    both.server.until("there is room again", |_| {
        let mut socket = both.connect();
        let mut reply = [0; 2];
        let _ = socket.write_all(&connect_packet);
        socket.read_exact(&mut reply).is_ok() && reply == [CONNACK, 0]
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
    let (_, reply) = both.server.api("GET", "/api/users/alice", None);
    assert_eq!(reply["connections"][0]["address"], "192.0.2.1:4711", "{reply}");
    // This address has as many connections as the limit allows, and another address has not.
    let again = [&header[..], &[CONNECT, 1, b'a']].concat();
    assert_eq!(both.exchange(&again), b"\x20\x0aoverloaded");
    let _bob = open(both.mqtt, b"PROXY TCP4 192.0.2.2 127.0.0.1 4711 1883\r\n", "bob");
    let _carol = open(both.server.client, b"PROXY TCP4 192.0.2.3 127.0.0.1 1 2\r\n", "carol");
    // The client port also rejects it in its own protocol.
    let mut socket = both.server.connect();
    socket.write_all(&again).unwrap();
    assert_eq!(rest(&mut socket), b"\x20\x0aoverloaded");
    // A client without a header gets no response, and neither does one that sends another protocol after the header.
    assert_eq!(both.exchange(&[CONNECT, 1, b'a']), b"");
    let header = b"PROXY TCP4 192.0.2.4 127.0.0.1 4711 1883\r\n";
    assert_eq!(both.exchange(&[&header[..], b"GET / HTTP/1.1\r\n\r\n"].concat()), b"");
    let closed = "throng_connections_closed_total{reason=\"bad_request\"}";
    // The server counts a connection after closing it.
    both.server.until("both are counted", |server| server.metric(closed) == 2.0);
}

#[test]
fn a_drain_closes_both_ports_and_notifies_clients() {
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
    // Each shard has its own listeners.
    let refused = |_: &Server| refused(both.mqtt) && refused(both.server.client);
    server.until("nobody is let in", refused);
    drop((alice, bob, silent));
    assert!(wait_within(&mut both.server.child).success());
}

/// Reads the text that a server prints at its start.
fn start_text(mut command: Command, check: impl FnOnce(&str)) {
    let mut server = Server::spawn(&mut command);
    let mut lines = Lines::of(server.child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("Ctrl-C") {
        text += &lines.next().unwrap_or_else(|| panic!("the start text ends: {text}"));
        text.push('\n');
    }
    check(&text);
}

#[test]
fn the_start_text_says_where_and_what_to_try() {
    start_text(command(&["--mqtt", "127.0.0.1:0"]), |text| {
        let at = text.split("  mqtt          mqtt://127.0.0.1:").nth(1).unwrap();
        let port: u16 = at.lines().next().unwrap().parse().unwrap();
        let example = format!("  mosquitto_sub -h 127.0.0.1 -p {port} -t news\n");
        assert!(port > 0 && text.contains(&example) && text.contains("mosquitto_pub"), "{text}");
        drop(open(SocketAddr::from(([127, 0, 0, 1], port)), b"", "alice"));
    });
    // Without the flag the text does not mention MQTT.
    start_text(command(&[]), |text| {
        let (_, said) = text.split_once("Throng ").unwrap();
        assert!(!said.contains("mqtt") && !said.contains("MQTT"), "{text}");
    });
}

#[test]
fn a_port_that_can_t_be_had_is_named_by_its_setting() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let output = output_within(&mut command(&["--mqtt", &taken]));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(text.contains(&format!("can't listen on {taken} (mqtt.listen)")), "{text}");
    assert!(text.contains("choose another address with --mqtt"), "{text}");
    // A server without the protocol rejects the flag.
    let output = output_within(command(&["--mqtt", "127.0.0.1:0"]).env("THIS_TEST_SPEAKS", "http"));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("built without MQTT"), "{text}");
}

#[test]
fn the_flag_has_an_address_of_its_own_or_yours() {
    let throng = |args: &[&str]| {
        let folder = Scratch::new("mqtt-flag");
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        let output = output_within(command.args(args).current_dir(folder.path()));
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
