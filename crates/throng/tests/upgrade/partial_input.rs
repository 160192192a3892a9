//! A client sends a part of a request, a frame or a packet before an upgrade, and the rest after it.

use protocol::mqtt::write::ConfirmType;
use serde_json::{Value, json};

use crate::mqtt::client::{Client, Connect, Event, Publish, V3, V5, bytes, filter};
use crate::support::{Stream, WebSocket, connect, receive};
use crate::upgrade::member::{Kind, Member, websocket_at};
use crate::upgrade::node::{Node, Storage};

/// The bytes after which clients cut their input, one client at each.
const CUTS: [usize; 5] = [1, 5, 17, 40, 77];

/// Returns a client's frame. Its mask need not be random.
fn frame(opcode: u8, is_last: bool, payload: &[u8]) -> Vec<u8> {
    let mask = [0x12, 0x34, 0x56, 0x78];
    let mut frame = vec![opcode | if is_last { 0x80 } else { 0 }];
    match u8::try_from(payload.len()) {
        Ok(length) if length < 126 => frame.push(0x80 | length),
        _ => {
            frame.push(0x80 | 126);
            frame.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
        }
    }
    frame.extend(mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

/// Sends bytes on a WebSocket as they are.
fn raw(socket: &mut WebSocket, bytes: &[u8]) {
    use std::io::Write;
    socket.get_mut().write_all(bytes).unwrap();
}

/// Sends a part of each input on its own connection, upgrades, and sends the rest.
fn halves<T>(
    node: &Node,
    cases: Vec<(T, Vec<u8>)>,
    mut send: impl FnMut(&mut T, &[u8]),
) -> Vec<(T, usize)> {
    let mut cases: Vec<(T, Vec<u8>, usize)> = cases
        .into_iter()
        .enumerate()
        .map(|(at, (client, bytes))| {
            let cut = CUTS[at % CUTS.len()].min(bytes.len() - 1);
            (client, bytes, cut)
        })
        .collect();
    for (client, bytes, cut) in &mut cases {
        send(client, &bytes[..*cut]);
    }
    node.until_all_read();
    node.upgrade();
    for (client, bytes, cut) in &mut cases {
        send(client, &bytes[*cut..]);
    }
    cases.into_iter().map(|(client, _, cut)| (client, cut)).collect()
}

#[test]
fn a_request_may_be_cut_anywhere() {
    let node = Node::new(Storage::Memory);
    let requests = [
        (
            "GET /sse?topic=h:a&user=somebody HTTP/1.1\r\nHost: throng.example\r\nAccept: */*\r\n\r\n",
            200,
        ),
        (
            "GET /stream?topic=h:a&user=somebody HTTP/1.1\r\nHost: t\r\nX-More: 1\r\nAccept: */*\r\n\r\n",
            200,
        ),
        (
            "GET /poll?topic=h:a&timeout=0 HTTP/1.1\r\nHost: t\r\nX-More: many words\r\nAccept: */*\r\n\r\n",
            200,
        ),
        (
            "GET /nothing HTTP/1.1\r\nHost: t\r\nX-More: many words and more of them\r\nAccept: */*\r\n\r\n",
            404,
        ),
    ];
    let body = "hello, everybody who is here and listens to what is said in half a request";
    let post = format!(
        "POST /publish?topic=say:a HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut listener = Member::open(&node, Kind::Ws, "say:a");
    let cases = requests.iter().flat_map(|(request, status)| {
        CUTS.map(|_| ((Stream::new(node.connect()), *status), request.as_bytes().to_vec()))
    });
    let posts = CUTS.map(|_| ((Stream::new(node.connect()), 200), post.as_bytes().to_vec()));
    let done = halves(&node, cases.chain(posts).collect(), |(stream, _), bytes| {
        stream.send_bytes(bytes);
    });
    for ((mut stream, status), cut) in done {
        let head = stream.head();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "cut at {cut}: {head}");
    }
    for _ in CUTS {
        assert_eq!(listener.next(), body);
    }
}

#[test]
fn a_frame_may_be_cut_anywhere() {
    let node = Node::new(Storage::Memory);
    let open = |path: &str| websocket_at(&node, path);
    let command = |at: usize| {
        let data = format!("{at} {}", "x".repeat(at * 100));
        json!({"type": "publish", "id": at, "topic": "say:b", "data": data}).to_string()
    };
    let mut cases = Vec::new();
    for at in 0..CUTS.len() {
        let mut socket = open("/ws");
        assert_eq!(receive(&mut socket)["type"], "welcome");
        cases.push((socket, frame(1, true, command(at).as_bytes())));
    }
    for (at, mut socket) in halves(&node, cases, raw).into_iter().map(|(it, _)| it).enumerate() {
        let reply = receive(&mut socket);
        assert_eq!((&reply["id"], &reply["type"]), (&json!(at), &json!("reply")), "{reply}");
        assert!(reply["ok"]["id"].is_string(), "{reply}");
    }
    let mut cases = Vec::new();
    for _ in CUTS {
        let join =
            json!(["1", "1", "say:c", "phx_join", {"some": "payload of a join, long enough"}]);
        let socket = open("/socket/websocket?vsn=2.0.0&user=x");
        cases.push((socket, frame(1, true, join.to_string().as_bytes())));
    }
    for (mut socket, cut) in halves(&node, cases, raw) {
        assert_eq!(receive(&mut socket)[4]["status"], "ok", "cut at {cut}");
    }
}

/// Before the upgrade: fragments from the beginning of a message, and half a fragment.
#[test]
fn a_message_may_be_in_the_middle_of_its_fragments() {
    let node = Node::new(Storage::Memory);
    let text = json!({"type": "publish", "id": 1, "topic": "say:d", "data": "in four fragments"});
    let text = text.to_string();
    let parts: Vec<&[u8]> = text.as_bytes().chunks(text.len().div_ceil(4)).collect();
    let mut bytes = frame(1, false, parts[0]);
    bytes.extend(frame(0, false, parts[1]));
    bytes.extend(frame(9, true, b"ping between"));
    let half = bytes.len() + 9;
    bytes.extend(frame(0, false, parts[2]));
    let next = bytes.len();
    bytes.extend(frame(0, true, parts[3]));
    for cuts in [vec![half], vec![3, half, next], vec![next]] {
        let mut listener = Member::open(&node, Kind::Sse, "say:d");
        let mut socket = websocket_at(&node, "/ws");
        assert_eq!(receive(&mut socket)["type"], "welcome");
        let mut sent = 0;
        for cut in cuts {
            raw(&mut socket, &bytes[sent..cut]);
            node.until_all_read();
            node.upgrade();
            sent = cut;
        }
        raw(&mut socket, &bytes[sent..]);
        match socket.read().unwrap() {
            tungstenite::Message::Pong(data) => assert_eq!(&data[..], b"ping between"),
            other => panic!("{other:?}"),
        }
        let reply = receive(&mut socket);
        assert!(reply["ok"]["id"].is_string(), "{reply}");
        assert_eq!(listener.next(), "in four fragments");
    }
}

#[test]
fn a_packet_may_be_cut_anywhere() {
    let node = Node::new(Storage::Memory);
    let mut listener = Connect::new(V5, "hears").open(node.client);
    listener.subscribe(&[filter("say:e", 2)]);
    let payload = "what is said in half a packet, and in the other half of it as well, all of it";
    for version in [V3, V5] {
        // CONNECT, on connections that have sent nothing before.
        let connect =
            Connect::new(version, "a-client-with-a-rather-long-identifier-that-takes-room");
        let connect = connect.user("somebody-with-a-name-of-some-length").bytes();
        let cases = CUTS.map(|_| (Client::new(node.client, version), connect.clone()));
        // Each connect takes over the one before, so only one client is used.
        let done = halves(&node, cases.into_iter().take(1).collect(), |it, bytes| it.send(bytes));
        for (mut client, _) in done {
            assert_eq!(client.connack().code, 0);
        }
        let cases = (0..CUTS.len()).map(|at| {
            let client = Connect::new(version, &format!("half-{at}")).open(node.client);
            let qos = at as u8 % 3;
            ((client, qos), Publish { id: 9, ..Publish::new("say:e", payload, qos) }.bytes(version))
        });
        let done = halves(&node, cases.collect(), |(client, _), bytes| client.send(bytes));
        for ((mut client, qos), cut) in done {
            match qos {
                0 => {}
                1 => client.expect_events(&[Event::Confirm("PUBACK", 9, 0)]),
                _ => {
                    client.expect_events(&[Event::Confirm("PUBREC", 9, 0)]);
                    client.confirm(ConfirmType::Pubrel, 9);
                    client.expect_events(&[Event::Confirm("PUBCOMP", 9, 0)]);
                }
            }
            client.ping();
            assert_eq!(listener.message().payload, payload, "cut at {cut}, QoS {qos}");
        }
    }
    listener.is_quiet();
}

/// Half an MQTT packet and half a WebSocket frame.
#[test]
fn a_packet_in_a_frame_may_be_cut() {
    use tungstenite::client::IntoClientRequest;
    let node = Node::new(Storage::Memory);
    let mut request = format!("ws://{}/mqtt", node.client).into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", "mqtt".parse().unwrap());
    let (mut socket, _) = tungstenite::client(request, node.connect()).unwrap();
    let packet = Connect::new(V5, "in-frames").bytes();
    // A frame with half the packet, and half of the frame with the other half.
    let (first, second) = packet.split_at(packet.len() / 2);
    let all = [frame(2, true, first), frame(2, true, second)].concat();
    let cut = all.len() - 3;
    raw(&mut socket, &all[..cut]);
    node.until_all_read();
    node.upgrade();
    raw(&mut socket, &all[cut..]);
    let response = socket.read().unwrap().into_data();
    assert_eq!((response[0], response[3]), (0x20, 0), "{response:?}");
    let ping = bytes(|out| {
        protocol::mqtt::client::pingreq(out);
        Ok(())
    });
    raw(&mut socket, &frame(2, true, &ping));
    assert_eq!(&socket.read().unwrap().into_data()[..], [0xd0, 0]);
}

/// The body of a long-poll push.
#[test]
fn a_body_may_be_cut() {
    let node = Node::new(Storage::Memory);
    let (_, opened) = node.get("/socket/longpoll?vsn=2.0.0&user=lp");
    let token = opened["token"].as_str().unwrap();
    let join = json!(["1", "1", "say:f", "phx_join", {}]).to_string();
    let push = format!(
        "POST /socket/longpoll?vsn=2.0.0&token={token} HTTP/1.1\r\nHost: t\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{join}",
        join.len()
    );
    let mut client = Stream::new(node.connect());
    client.send(&push[..push.len() - 20]);
    node.until_all_read();
    node.upgrade();
    client.send(&push[push.len() - 20..]);
    assert_eq!(client.read_reply().0, 200);
    let (_, polled) = node.get(&format!("/socket/longpoll?vsn=2.0.0&token={token}"));
    assert!(polled["messages"][0].as_str().unwrap().contains("\"ok\""), "{polled}");
}

/// Half a request at the admin port does not hold up an upgrade, and the new server responds to it.
#[test]
fn a_call_may_be_cut() {
    let node = Node::new(Storage::Memory);
    let body = json!({"topic": "h:f", "data": "from half a body"}).to_string();
    let call = format!(
        "POST /api/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut listener = Member::open(&node, Kind::Stream, "h:f");
    let cuts = [30, call.len() - body.len(), call.len() - 20, call.len() - 1];
    let calls = cuts.map(|cut| {
        let mut admin = Stream::new(connect(node.admin));
        admin.send(&call[..cut]);
        admin
    });
    node.until_all_read();
    // The old process forwards the input on its connections until they end.
    node.switch();
    for (mut admin, cut) in calls.into_iter().zip(cuts) {
        admin.send(&call[cut..]);
        let (status, response) = admin.read_reply();
        let response: Value = serde_json::from_str(&response).unwrap();
        assert_eq!(
            (status, response["members"].as_u64()),
            (200, Some(1)),
            "cut at {cut}: {response}"
        );
        assert_eq!(listener.next(), "from half a body");
    }
    // The old process ends with the last of these connections.
    node.only();
}
