//! Connections of every encoding from their first byte to their last, in every phase.

use super::*;

/// How a connection of each encoding is opened, and enters the topic `plain`.
fn openings() -> Vec<(&'static str, String, Option<Step>)> {
    let join = |text_of: &str| Some(text(0, text_of));
    let join_1 = r#"{"topic":"plain","event":"phx_join","payload":{},"ref":"1","join_ref":"1"}"#;
    let join_2 = r#"["1","1","plain","phx_join",{}]"#;
    let deflate = |bits: &str| format!("Sec-WebSocket-Extensions: permessage-deflate{bits}\r\n");
    let join_all = r##"["1","1","#","phx_join",{"filter":"mqtt"}]"##;
    let ws = "/ws?user=u0&topic=plain";
    let by_filter = "user=u0&topic=plain&topic=%2B&topic=%23&filter=mqtt";
    vec![
        ("sse", get("/sse?user=u0&topic=plain"), None),
        ("sse as json", get("/sse?format=json&user=u0&topic=plain"), None),
        ("sse by filters", get(&format!("/sse?{by_filter}")), None),
        ("stream", get("/stream?user=u0&topic=plain"), None),
        ("ws", socket(ws, ""), None),
        ("ws, by filters", socket(&format!("/ws?{by_filter}"), ""), None),
        ("ws, compressed", socket(ws, &deflate("")), None),
        ("ws, a small window", socket(ws, &deflate("; server_max_window_bits=9")), None),
        ("echo", socket("/echo", ""), None),
        ("echo, compressed", socket("/echo", &deflate("")), None),
        ("echo, a small window", socket("/echo", &deflate("; server_max_window_bits=9")), None),
        ("phoenix 1", socket("/socket/websocket?vsn=1.0.0&user=u0", ""), join(join_1)),
        ("phoenix 2", socket("/socket/websocket?vsn=2.0.0&user=u0", ""), join(join_2)),
        ("phoenix by filter", socket("/socket/websocket?vsn=2.0.0&user=u0", ""), join(join_all)),
    ]
}

/// From the first byte to the last, for each encoding: slow, closed by either side, cut.
fn lifetimes() -> Vec<(&'static str, Vec<Step>)> {
    let mut all = Vec::new();
    for (name, request, join) in openings() {
        let (first, rest) = request.split_at(request.len() / 2);
        let mut steps = vec![Open(0, 0, first.into()), Send(0, rest.into())];
        steps.extend(join);
        let speaks = request.contains("Sec-WebSocket");
        steps.extend([Publish("plain", "one".into()), Read(0), Wait(25), Read(0)]);
        if name.starts_with("echo") {
            steps.extend([text(0, &format!("[\"{}\"]", fill(5_000))), Wait(1)]);
        }
        steps.extend([
            Publish("plain", fill(3_000)),
            Publish("*", fill(3_000)),
            Publish("plain", "behind".into()),
            Wait(40),
        ]);
        let mut by_peer = steps.clone();
        by_peer.extend([close_frame(0), Read(0), Cut(0)]);
        let mut broken = steps.clone();
        // This opcode does not exist.
        broken.extend([Send(0, vec![0x8f, 0x80, 1, 2, 3, 4]), Read(0), Wait(10), Cut(0)]);
        if speaks {
            all.extend([(name, by_peer), (name, broken)]);
        }
        let mut cut = steps.clone();
        cut.push(Cut(0));
        all.push((name, cut));
        steps.extend([Disconnect("u0"), Wait(1), Read(0), Wait(30), Cut(0)]);
        all.push((name, steps));
    }
    all
}

/// Protocols whose connections one test leads through all phases. Each takes some seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Streams,
    Mqtt,
    Requests,
}

impl Kind {
    fn of(protocol: &dyn protocol::Protocol) -> Self {
        match (protocol.name(), protocol.delivery()) {
            ("http", _) | (_, protocol::Delivery::Woken | protocol::Delivery::Gathered) => {
                Kind::Requests
            }
            (name, _) if name.starts_with("mqtt") => Kind::Mqtt,
            _ => Kind::Streams,
        }
    }
}

/// Plays lifetimes, and checks that connections of each protocol of a kind were in each of its phases.
fn play_all(kind: Kind, lifetimes: impl IntoIterator<Item = (&'static str, Vec<Step>)>) {
    let mut phases = BTreeSet::new();
    for (name, steps) in lifetimes {
        phases.extend(check(name, false, &steps));
    }
    let has = |encoding: u8, phase| phases.contains(&(encoding, phase));
    use Phase::*;
    for protocol in Scene::new(false).protocols().all() {
        if Kind::of(protocol) != kind {
            continue;
        }
        let encoding = protocol.encoding().0;
        let expected: &[Phase] = match (protocol.name(), protocol.delivery()) {
            ("http", _) => &[Request, Idle, Waiting, Closing, HalfClosed],
            (_, protocol::Delivery::Woken) => &[Waiting],
            // It has no socket that could be half closed.
            (_, protocol::Delivery::Gathered) => &[Open, Closing],
            (
                _,
                protocol::Delivery::Nothing
                | protocol::Delivery::Pushed
                | protocol::Delivery::Subscribed,
            ) => &[Open, Closing, HalfClosed],
        };
        for phase in expected {
            let name = protocol.name();
            assert!(has(encoding, *phase), "no {name} as encoding {encoding} was in {phase:?}");
        }
    }
}

#[test]
fn every_phase_of_a_stream_goes_on_as_if_nothing_had_happened() {
    play_all(Kind::Streams, lifetimes());
}

#[test]
fn every_phase_of_mqtt_goes_on_as_if_nothing_had_happened() {
    play_all(Kind::Mqtt, mqtt::lifetimes());
}

#[test]
fn every_phase_of_requests_goes_on_as_if_nothing_had_happened() {
    let beyond = vec![Beyond(0, "GET /hea".into()), Send(0, "lthz".into()), Wait(30)];
    let sessions = ["1.0.0", "2.0.0"].map(|vsn| ("long-poll session", session(vsn)));
    let others = [("http", http()), ("http beyond the limit", beyond), ("poll", poll())];
    play_all(Kind::Requests, others.into_iter().chain(sessions));
}

fn http() -> Vec<Step> {
    let half = "POST /publish?topic=plain HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\
                Content-Length: 10\r\n\r\n";
    vec![
        Open(0, 0, "GET /hea".into()),
        Send(0, "lthz HTTP/1.1\r\nHost: h\r\n\r\n".into()),
        Read(0),
        Send(0, half.into()),
        Send(0, "01234".into()),
        Read(0),
        Send(0, "56789".into()),
        Read(0),
        // The client does not read the long replies of this pipeline.
        Send(0, [get("/status"), get("/status"), get("/presence?topic=seen/1")].concat().into()),
        Open(1, 1, get("/presence?topic=plain")),
        Read(1),
        Send(1, "NO SUCH\r\n\r\n".into()),
        Read(1),
        Read(0),
        Send(0, "GET /status HTTP/1.0\r\n\r\n".into()),
        Wait(1),
        Read(0),
        Open(2, 1, "POST /publish?topic=plain HTTP/1.1\r\n".into()),
        Wait(210),
        Read(2),
        Open(3, 0, get("/socket/longpoll?vsn=2.0.0&user=u0")),
        Read(3),
    ]
}

fn poll() -> Vec<Step> {
    vec![
        Open(0, 0, get("/poll?topic=plain&user=u0&timeout=20")),
        Publish("plain", "one".into()),
        Read(0),
        Send(0, get("/poll?topic=big/1&topic=plain&timeout=3").into()),
        Send(0, get("/healthz").into()),
        Wait(40),
        Read(0),
        Send(0, get("/poll?topic=big/1&timeout=3&tag=no").into()),
        Publish("big/1", "two".into()),
        Wait(40),
        Read(0),
        Open(1, 1, get("/poll?topic=ack/1&user=u1&timeout=9")),
        Publish("ack/1", "three".into()),
        Read(1),
        Open(2, 1, get("/poll?topic=plain&timeout=9")),
        Cut(2),
    ]
}

/// The session's token is always the same, since its key and its connection's name are.
fn session(vsn: &str) -> Vec<Step> {
    let mut opened = Scene::new(false);
    let path = format!("/socket/longpoll?vsn={vsn}&user=u0");
    opened.step(&Open(0, 0, get(&path)));
    opened.read(0);
    let reply = String::from_utf8(opened.received[0].clone()).unwrap();
    let token = reply.split("\"token\":\"").nth(1).unwrap().split('"').next().unwrap();
    let path = format!("{path}&token={token}");
    let join = match vsn {
        "1.0.0" => r#"{"topic":"plain","event":"phx_join","payload":{},"ref":"1","join_ref":"1"}"#,
        "2.0.0" => r#"["1","1","plain","phx_join",{}]"#,
        other => panic!("there is no serializer {other}"),
    };
    vec![
        Open(0, 0, get(&format!("/socket/longpoll?vsn={vsn}&user=u0"))),
        Read(0),
        Open(1, 1, post(&path, join)),
        Read(1),
        // The reply to the join answers this poll; the next one waits.
        Open(2, 1, get(&path)),
        Read(2),
        Send(2, get(&path).into()),
        Publish("plain", "one".into()),
        Publish("plain", "two".into()),
        Publish("*", "three".into()),
        Read(2),
        Send(2, get(&path).into()),
        Read(2),
        Send(2, get(&path).into()),
        Wait(70),
        Read(2),
        Publish("plain", "four".into()),
        Disconnect("u0"),
        Send(2, get(&path).into()),
        Read(2),
        Send(2, get(&path).into()),
        Read(2),
    ]
}

/// Input that waits to be read may be from any client: the time that it may have waited is no silence. A client that is
/// silent for longer is closed, although input still waits.
#[test]
fn the_time_that_input_waits_is_no_silence() {
    let silent_clients = [
        ("an open WebSocket", socket("/ws?user=u0&topic=plain", ""), 30),
        ("half a request", "GET /healthz HTTP/1.1\r\nHo".into(), 20),
        ("between two requests", get("/healthz"), 30),
        ("MQTT without CONNECT", socket("/mqtt", "Sec-WebSocket-Protocol: mqtt\r\n"), 20),
        ("a session without a poll", get("/socket/longpoll?vsn=2.0.0&user=u0"), 10),
    ];
    for (name, request, seconds) in silent_clients {
        for wait_s in [0, 7, 100] {
            let mut scene = Scene::new(false);
            scene.turn();
            scene.step(&Open(0, 0, request.clone()));
            scene.read(0);
            scene.drivers[0].engine.set_input_wait(wait_s * 1_000_000);
            let before = open_connections(&scene);
            scene.step(&Wait((seconds + wait_s) * 10));
            assert_eq!(open_connections(&scene), before, "{name}, {wait_s} s");
            scene.step(&Wait(20));
            assert_eq!(open_connections(&scene), before - 1, "{name}, {wait_s} s");
        }
    }
}

/// Returns the number of the first engine's connections and sessions that are not about to end.
fn open_connections(scene: &Scene) -> usize {
    let table = &scene.drivers[0].engine.core.table;
    let connections = (0..table.end()).filter_map(|slot| table.get(slot));
    connections.filter(|connection| !connection.is_closing()).count()
}
