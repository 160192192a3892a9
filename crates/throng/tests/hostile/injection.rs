//! Names and payloads that try to inject header lines, events or commands.

use super::*;

const BREAKS: [&str; 6] = ["%0D%0A", "%0A", "%0D", "%00", "%1B%5B2J", "%C2%85"];

#[test]
fn names_can_not_inject_lines() {
    let server = Server::with(&[], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "*")]);
    let mut witness = Witness::new(&server);
    for at in BREAKS {
        let evil = format!("a{at}Set-Cookie:%20x=1{at}{at}event:%20error");
        for target in [
            format!("/sse?topic={evil}"),
            format!("/stream?user={evil}"),
            format!("/poll?topic={evil}&timeout=0"),
            format!("/poll?topic=a&tag={evil}&timeout=0"),
            format!("/poll?topic=a&since:{evil}=00000000:1&timeout=0"),
            format!("/presence?topic={evil}"),
        ] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
            let reply = server.exchange(request.as_bytes());
            assert!(reply.starts_with("HTTP/1.1 400 "), "{target}: {reply}");
            assert_eq!(header(&reply, "set-cookie"), None, "{reply}");
        }
        for query in [
            format!("topic={evil}"),
            format!("topic=witness&event={evil}"),
            format!("topic=witness&tag={evil}"),
            format!("topic=witness&key={evil}"),
        ] {
            let request = format!(
                "POST /publish?{query} HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
            );
            let reply = server.exchange(request.as_bytes());
            assert!(reply.starts_with("HTTP/1.1 400 "), "{query}: {reply}");
        }
    }
    let mut socket = crate::support::websocket(&server, "topic=witness");
    for evil in ["a\r\nb", "a\nid: 7", "\0", "\u{1b}[2J", "\u{85}"] {
        for publish in [
            json!({"type": "publish", "id": 1, "topic": "witness", "data": 1, "event": evil}),
            json!({"type": "publish", "id": 1, "topic": evil, "data": 1}),
            json!({"type": "publish", "id": 1, "topic": "witness", "data": 1, "tags": [evil]}),
            json!({"type": "publish", "id": 1, "topic": "witness", "data": 1, "key": evil}),
            json!({"type": "subscribe", "id": 1, "topic": evil}),
        ] {
            let reply = command(&mut socket, publish.clone());
            assert!(reply["error"]["code"].as_str().unwrap().starts_with("bad_"), "{publish}");
        }
    }
    witness.assert_receives(&server);
}

/// Text from a request's head appears in response headers only where it belongs, and unchanged.
#[test]
fn headers_can_not_inject_response_headers() {
    let server = Server::start();
    for requested in ["x-token", "a, b", "a:b", "a\u{b}b", "a;b", "<b>", "\"a\"", "é"] {
        let request = format!(
            "OPTIONS /publish HTTP/1.1\r\nHost: t\r\nOrigin: http://a\r\nConnection: close\r\n\
             Access-Control-Request-Headers: {requested}\r\n\r\n"
        );
        let reply = server.exchange(request.as_bytes());
        if reply.starts_with("HTTP/1.1 204 ") {
            let response = header(&reply, "access-control-allow-headers").unwrap();
            let plain = requested.chars().all(|c| c.is_ascii_alphanumeric() || "-_, ".contains(c));
            assert_eq!(response, if plain { requested } else { "Content-Type, Last-Event-ID" });
        } else {
            assert!(reply.starts_with("HTTP/1.1 400 "), "{requested:?}: {reply}");
        }
    }
    let listed = Server::with(&[], &[("THRONG_CLIENT_CORS_ORIGINS", "http://good.example")]);
    for origin in
        ["http://good.example.evil", "http://good.example/", "null", "http://GOOD.example"]
    {
        let request = format!(
            "GET /healthz HTTP/1.1\r\nHost: t\r\nOrigin: {origin}\r\nConnection: close\r\n\r\n"
        );
        let reply = listed.exchange(request.as_bytes());
        assert_eq!(header(&reply, "access-control-allow-origin"), None, "{reply}");
        let mut stream = Stream::new(listed.connect());
        stream.send(&upgrade("/ws", &format!("Origin: {origin}\r\n")));
        assert_eq!(stream.read_reply().0, 403, "{origin}");
    }
    let mut foreign = listed.connect();
    let head = upgrade("/ws", "Origin: http://good.example?\r\n").replace('?', "\u{1}");
    let head: Vec<u8> = head.bytes().map(|byte| if byte == 1 { 0xff } else { byte }).collect();
    std::io::Write::write_all(&mut foreign, &head).unwrap();
    assert_eq!(Stream::new(foreign).read_reply().0, 403);
}

/// A payload stays one payload on every transport, whatever it holds.
#[test]
fn payloads_can_not_inject_events() {
    let server = Server::start();
    let mut sse = server.listen("/sse?topic=t");
    let mut json_sse = server.listen("/sse?topic=t&format=json");
    let mut stream = server.listen("/stream?topic=t");
    stream.object();
    let mut socket = crate::support::websocket(&server, "topic=t");
    let mut phoenix = phoenix(&server);
    server.until_members("t", 5);
    for evil in [
        "x\n\nevent: error\ndata: y\n\n",
        "x\r\rid: 9\r\rdata: y",
        "x\r\n\r\nretry: 1\r\n\r\n: closing, drain\r\n\r\n",
        "0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        "\"}\n{\"type\":\"close\",\"reason\":\"drain\"}\n",
        "\",{}]\u{2028}\u{2029}\0\u{1}",
        "</script><script>",
    ] {
        server.publish("t", json!(evil));
        let lines = evil.replace("\r\n", "\n").replace('\r', "\n");
        assert_eq!(next_data(&mut sse), lines);
        let inner: serde_json::Value = serde_json::from_str(&next_data(&mut json_sse)).unwrap();
        assert_eq!((&inner["type"], &inner["data"]), (&json!("message"), &json!(evil)));
        let object = stream.object();
        assert_eq!((&object["type"], &object["data"]), (&json!("message"), &json!(evil)));
        let object = receive(&mut socket);
        assert_eq!((&object["type"], &object["data"]), (&json!("message"), &json!(evil)));
        let object = receive(&mut phoenix);
        assert_eq!((&object[3], &object[4]["data"]), (&json!("message"), &json!(evil)));
    }
}

/// Returns the data of the next event, which must have an id and data and nothing else.
fn next_data(stream: &mut Stream) -> String {
    let mut lines = Vec::new();
    loop {
        let line = stream.line();
        if line.is_empty() && !lines.is_empty() {
            return lines.join("\n");
        }
        match line.split_once(':') {
            Some(("data", data)) => lines.push(data.strip_prefix(' ').unwrap().to_string()),
            Some(("id", id)) => assert!(id.len() > 10 && lines.is_empty(), "{id}"),
            Some(("retry", _)) | None => assert!(lines.is_empty(), "{line}"),
            _ => panic!("{line}"),
        }
    }
}

/// Returns a Phoenix member of `t`.
fn phoenix(server: &Server) -> WebSocket {
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0", server.client);
    let (mut socket, _) = tungstenite::client(url, server.connect()).unwrap();
    socket.send(tungstenite::Message::text(r#"["1","1","t","phx_join",{}]"#)).unwrap();
    assert_eq!(receive(&mut socket)[4]["status"], "ok");
    socket
}

/// Returns the next message that is not about presence.
fn next_message(member: &mut WebSocket) -> serde_json::Value {
    loop {
        let message = receive(member);
        if !message[3].as_str().unwrap().starts_with("presence_") {
            return message;
        }
    }
}

/// A client with the right to publish can't forge messages of the server.
#[test]
fn clients_can_not_forge_messages_of_the_server() {
    let scratch = Scratch::new("forge");
    let rules = scratch.write(
        "throng.toml",
        "[[topics]]\npattern = \"t\"\npublish = \"allow\"\npresence = true\n\
         history_messages_max = 10\n",
    );
    let server = Server::with(&["--config", rules.to_str().unwrap()], &[]);
    let mut page = server.listen("/sse?topic=t");
    let mut member = phoenix(&server);
    let mut socket = crate::support::websocket(&server, "");
    for event in [
        "recovery",
        "error",
        "open",
        "phx_close",
        "phx_error",
        "phx_reply",
        "phx_join",
        "presence_state",
        "presence_diff",
        "presence_count",
        "chan_reply_1",
    ] {
        let publish = json!({"type": "publish", "id": 1, "topic": "t", "data": 1, "event": event});
        assert_eq!(command(&mut socket, publish)["error"]["code"], "reserved_event", "{event}");
        let post = format!(
            "POST /publish?topic=t&event={event} HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n\
             Connection: close\r\n\r\nx"
        );
        assert_eq!(statuses(&server, post.as_bytes()), [403], "{event}");
        if event != "phx_join" {
            let push = json!(["1", "2", "t", event, {}]).to_string();
            member.send(tungstenite::Message::text(push)).unwrap();
            let reply = next_message(&mut member);
            assert_eq!((&reply[3], &reply[4]["status"]), (&json!("phx_reply"), &json!("error")));
            let reason = reply[4]["response"]["reason"].as_str().unwrap();
            assert!(reason.contains(event), "{reason}");
        }
        let body = json!({"topic": "t", "data": 1, "event": event});
        assert_eq!(server.api("POST", "/api/publish", Some(body)).0, 400, "{event}");
    }
    let publish =
        json!({"type": "publish", "id": 1, "topic": "t", "data": "own", "event": "update"});
    assert!(command(&mut socket, publish)["ok"].is_object());
    // The event with the page's position comes first, and has no data.
    let mut events = std::iter::repeat_with(|| page.event()).filter(|it| it.len() > 1);
    let mut next =
        || -> Vec<String> { events.next().unwrap().into_iter().map(|(_, value)| value).collect() };
    assert_eq!(next(), ["presence_state", "{}"], "nobody was there when the page came");
    assert_eq!(next()[1..], ["update", "own"], "nothing was published before");
    assert_eq!(next_message(&mut member)[3], "update");
    let history = server.api("GET", "/api/history/t", None).1;
    assert_eq!(history["messages"].as_array().map(Vec::len), Some(1), "{history}");
}
