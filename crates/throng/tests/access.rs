//! Access rights: the tests make every request of each table of docs/access.md in each way, and check the response
//! against the page. `cargo test -p docs` checks that the page has every row.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::support::*;
use serde_json::{Value, json};
use token::{Algorithm, Signer};

const SECRET: &str = "a secret of more than 32 bytes for tests";

/// Returns the rows of the table below a heading, without the table's head.
fn table(heading: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/access.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (_, below) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let lines = below.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| {
        let cells = row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', ""));
        cells.collect()
    })
    .collect()
}

/// Makes a request. Returns the status, and the body if the response has a length.
fn call(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &str,
    body: &str,
) -> (u16, String) {
    let mut stream = Stream::new(connect(address));
    let length = match method {
        "GET" => String::new(),
        _ => format!("Content-Length: {}\r\n", body.len()),
    };
    stream.send(&format!(
        "{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}{length}\r\n{body}"
    ));
    let head = stream.head();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let ends = header(&head, "content-length").is_some();
    (status, if ends { stream.rest() } else { String::new() })
}

fn key(name: &str) -> String {
    format!("key-of-{name}-0123456789abcdef")
}

#[test]
fn every_call_of_the_admin_port_needs_what_the_page_says() {
    let folder = Scratch::new("access");
    let scopes = [("read", "read"), ("publish", "publish:room:*"), ("admin", "admin")];
    let mut config = String::new();
    for (name, scope) in scopes {
        // Makes the hash without Throng, as an operator with a shell can.
        let hash = Command::new("sh")
            .args(["-c", &format!("printf %s {} | sha256sum", key(name))])
            .output()
            .unwrap();
        let hash = String::from_utf8(hash.stdout).unwrap();
        let hash = hash.split(' ').next().unwrap();
        config += &format!(
            "[[keys]]\nname = \"{name}\"\nhash = \"sha256:{hash}\"\nscopes = [\"{scope}\"]\n"
        );
    }
    config += "[[topics]]\npattern = \"room:*\"\nhistory_messages_max = 10\npresence = true\n";
    folder.write("throng.toml", &config);
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "1"]);
    let server = Server::run_in(folder.path(), command, &[], std::process::Stdio::inherit());

    let rows = table("The admin port");
    assert!(rows.len() > 30, "{rows:?}");
    for row in &rows {
        let [request, cells @ ..] = row.as_slice() else { panic!("{row:?}") };
        let (method, path) = request.split_once(' ').unwrap();
        let path = path.replace("{topic}", "room:1").replace("{user}", "al");
        let path = path.replace("{file}", "app.js").replace("{client}", "phone");
        let body = match &*path {
            "/api/publish" => json!({"topic": "room:1", "data": 1}),
            // keys.rs tests which topics a key may publish to.
            "/api/send" | "/api/broadcast" => json!({}),
            "/api/batch" => json!({"commands": []}),
            _ => json!({}),
        }
        .to_string();
        let send_request = |headers: &str| {
            let (status, text) = call(server.admin, method, &path, headers, &body);
            let code = serde_json::from_str::<Value>(&text).unwrap_or_default();
            (status, code["error"]["code"].as_str().unwrap_or_default().to_owned())
        };
        let is_open = cells[0] == "yes";
        for (name, may) in ["", "read", "publish", "admin"].iter().zip(cells) {
            let headers = match *name {
                "" => String::new(),
                name => format!("Authorization: Bearer {}\r\n", key(name)),
            };
            let (status, code) = send_request(&headers);
            let want = match (may.as_str(), *name) {
                ("yes", _) => !matches!(status, 401 | 403),
                ("–", "") => (status, &*code) == (401, "no_key"),
                ("–", _) => (status, &*code) == (403, "insufficient_scope"),
                other => panic!("{request}: {other:?}"),
            };
            assert!(want, "{request} with key {name:?} is {may:?} on the page: {status} {code}");
        }
        let (status, code) = send_request("Authorization: Bearer wrong\r\n");
        let is_refused = (status, &*code) == (401, "bad_key");
        assert_eq!(is_refused, !is_open, "{request} with a wrong key: {status} {code}");
        // A session cookie that the server does not know gives no access either.
        let (status, _) = send_request("Cookie: throng_session=x\r\n");
        assert_eq!(status == 401 || status == 403, !is_open, "{request} with a cookie: {status}");
    }
    let send_request = |headers: &str| call(server.admin, "GET", "/api/nothing", headers, "").0;
    assert_eq!(send_request(""), 401);
    assert_eq!(send_request(&format!("Authorization: Bearer {}\r\n", key("publish"))), 404);
}

/// Returns a user's token that has these grants for all topics of rooms.
fn token(user: &str, grants: &[&str]) -> String {
    let signer = Signer::new(SECRET, "HS256".parse::<Algorithm>().unwrap(), None).unwrap();
    let grants: serde_json::Map<String, Value> =
        grants.iter().map(|grant| ((*grant).to_owned(), json!(["room:*"]))).collect();
    signer.sign(&json!({"sub": user, "exp": 4_000_000_000_u64, "throng": grants})).unwrap()
}

/// Returns the result of a request to the client port: its status, or the status that Phoenix has in the body.
fn outcome(server: &Server, methods: &str, path: &str, token: Option<&str>) -> u16 {
    let method = methods.split(", ").next().unwrap();
    let target = match path {
        "/publish" | "/presence" | "/history" => format!("{path}?topic=room:1"),
        "/sse" | "/stream" => format!("{path}?topic=room:1"),
        "/poll" => format!("{path}?topic=room:1&timeout=0"),
        "/ack" => format!("{path}?user=al&topic=room:1&id=00000001:1"),
        "/socket/websocket" | "/socket/longpoll" => format!("{path}?vsn=2.0.0"),
        other => other.to_owned(),
    };
    let mut headers = match token {
        Some(token) => format!("Authorization: Bearer {token}\r\n"),
        None => String::new(),
    };
    if matches!(path, "/ws" | "/echo" | "/mqtt" | "/socket/websocket") {
        // A WebSocket handshake needs a connection that stays open.
        let mut stream = Stream::new(server.connect());
        stream.send(&format!(
            "GET {target} HTTP/1.1\r\nHost: t\r\n{headers}Connection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ));
        return stream.head().split(' ').nth(1).unwrap().parse().unwrap();
    }
    headers += "X-Nothing: x\r\n";
    let data = if path == "/publish" { "1" } else { "" };
    let (status, body) = call(server.client, method, &target, &headers, data);
    let in_body = serde_json::from_str::<Value>(&body).unwrap_or_default();
    match in_body["status"].as_u64() {
        Some(status) if path == "/socket/longpoll" => status as u16,
        _ => status,
    }
}

#[test]
fn every_request_of_the_client_port_needs_what_the_page_says() {
    let settings = [
        ("THRONG_AUTH_HMAC_KEY", SECRET),
        ("THRONG_AUTH_REQUIRED", "true"),
        ("THRONG_CLIENT_STATUS_PAGE", "true"),
        ("THRONG_CLIENT_PUBLISH_PREFIXES", "room:"),
    ];
    let flags = ["--ws-echo", "--mqtt", "127.0.0.1:0", "--shards", "1"];
    let server = Server::with(&flags, &settings);
    const GRANTS: [&str; 4] = ["subscribe", "publish", "presence", "history"];
    let is_refused = |status: u16| matches!(status, 401 | 403);
    let rows = table("The client port");
    assert!(rows.len() > 10, "{rows:?}");
    for row in &rows {
        let [request, without, with] = row.as_slice() else { panic!("{row:?}") };
        let (methods, path) = request.rsplit_once(' ').unwrap();
        let send_request = |token: Option<&str>| outcome(&server, methods, path, token);
        let status = send_request(None);
        let (open, expected_status) = match without.as_str() {
            "anyone" => (true, None),
            "opens; its first command must bring one" => (false, Some(101)),
            "refused" => (false, None),
            other => panic!("{request}: {other:?}"),
        };
        match expected_status {
            Some(expected) => assert_eq!(status, expected, "{request} without a token"),
            None => assert_eq!(is_refused(status), !open, "{request} without a token: {status}"),
        }
        let wrong = send_request(Some("eyJhbGciOiJub25lIn0.e30."));
        // An MQTT client sends its token in CONNECT and not in a header.
        let reads_header = path != "/mqtt";
        let refused = !open && reads_header;
        assert_eq!(is_refused(wrong), refused, "{request} with a wrong token: {wrong}");
        let with_grants = |user: &str, grants: &[&str]| send_request(Some(&token(user, grants)));
        let none = with_grants("al", &[]);
        let listed =
            with.strip_prefix("with the grant ").and_then(|it| it.strip_suffix(" for each topic"));
        if let Some(listed) = listed {
            let needed: Vec<&str> = listed.split(" and ").collect();
            assert_eq!(none, 403, "{request}");
            for grant in &needed {
                assert!(GRANTS.contains(grant), "{request}: {grant}");
                let others: Vec<&str> = GRANTS.into_iter().filter(|other| other != grant).collect();
                assert_eq!(with_grants("al", &others), 403, "{request} without {grant}");
            }
            let granted = with_grants("al", &needed);
            assert!(!is_refused(granted), "{request} with {needed:?}: {granted}");
        } else if with.starts_with("of the user in the request") {
            assert_eq!(none, 403, "{request} of the user");
            let granted = with_grants("al", &["subscribe"]);
            assert!(!is_refused(granted), "{request} of the user: {granted}");
            let other = with_grants("bo", &GRANTS);
            assert!(is_refused(other), "{request} of another user: {other}");
        } else {
            assert!(with.starts_with("any"), "{request}: {with}");
            assert!(!is_refused(none), "{request} with a token: {none}");
        }
    }
    assert_eq!(call(server.client, "OPTIONS", "/sse", "", "").0, 204);
    assert_eq!(call(server.client, "GET", "/nothing", "", "").0, 404);
}

/// A WebSocket that opens without a token gets no right before it has one.
#[test]
fn a_websocket_without_a_token_gets_nowhere() {
    let settings = [("THRONG_AUTH_HMAC_KEY", SECRET), ("THRONG_AUTH_REQUIRED", "true")];
    let server = Server::with(&["--shards", "1"], &settings);
    for command in [
        json!({"type": "subscribe", "id": "1", "topic": "room:1"}),
        json!({"type": "history", "id": "1", "topic": "room:1"}),
        json!({"type": "publish", "id": "1", "topic": "room:1", "data": 1}),
    ] {
        let url = format!("ws://{}/ws", server.client);
        let (mut socket, _) = tungstenite::client(url, server.connect()).unwrap();
        let sent = tungstenite::Message::text(command.to_string());
        socket.send(sent).unwrap();
        let reply = loop {
            match socket.read() {
                Ok(tungstenite::Message::Text(text)) => {
                    let value: Value = serde_json::from_str(&text).unwrap();
                    if value["id"] == "1" {
                        break value["error"]["code"].to_string();
                    }
                }
                Ok(tungstenite::Message::Close(frame)) => break format!("{frame:?}"),
                Ok(_) => {}
                Err(error) => break error.to_string(),
            }
        };
        assert!(!reply.contains("null"), "{command}: {reply}");
        assert_eq!(server.api("GET", "/api/topics/room:1", None).1["members"], 0);
    }
}
