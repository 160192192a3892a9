//! Secrecy: the server's own texts have no tokens or keys, and its rejections reveal no topics.

use std::fs::File;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::*;
use crate::tokens::support::*;

/// Every secret has this text, and no output may have it.
const MARK: &str = "s3cret";

/// The key is one of the secrets.
const SECRET: &str = "s3cret-s3cret-s3cret-s3cret-s3cret";

#[test]
fn no_token_and_no_key_is_in_a_log_or_a_reply() {
    let folder = Scratch::new("tokens-log");
    let log = folder.path().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--config",
        TOPICS,
    ]);
    let settings = [
        ("THRONG_LOG_LEVEL", "trace"),
        ("THRONG_AUTH_HMAC_KEY", SECRET),
        REQUIRED,
        ("THRONG_AUTH_EXPIRY_SPREAD_SECONDS", "0"),
    ];
    let server =
        Server::run_in(folder.path(), command, &settings, Stdio::from(File::create(&log).unwrap()));
    let of = |claims: Value| {
        signed("HS256", SECRET, Some("key-s3cret"), with(claims, json!({"note": MARK})))
    };
    let good = of(with(everything("al"), json!({"jti": "jti-1", "exp": now_s() + 3_600})));
    let other = signed("HS256", KEY, Some("key-s3cret"), json!({"sub": MARK}));
    let late = of(with(everything("al"), json!({"exp": 1})));
    let topic = of(json!({"sub": "al", "topic": "room:2"}));
    let wrong_claims = [
        json!({"sub": "s3cret\n"}),
        json!({"sub": 7, "aud": MARK}),
        json!({"exp": MARK}),
        json!({"throng": {"s3cret": []}}),
        json!({"throng": {"subscribe": MARK}}),
        json!({"throng": {"info": MARK}}),
        json!({"users": [MARK, 7]}),
    ];
    let mut tokens: Vec<String> =
        [good, other, late, topic.clone(), format!("{MARK}.x.y"), MARK.into()]
            .into_iter()
            .chain(wrong_claims.into_iter().map(of))
            .collect();
    for token in &tokens {
        for transport in LASTING {
            let topics = if transport.is_phoenix() { "" } else { "&topic=room:1" };
            let mut client =
                match Client::open(&server, transport, &format!("token={token}{topics}"), "") {
                    Ok(client) => client,
                    Err(_) => continue,
                };
            if transport.is_phoenix() {
                client.join("room:2", json!({"token": token}));
                client.push("room:2", "access_token", json!({"access_token": token}));
            }
        }
        let cookie =
            format!("Cookie: throng_token={token}\r\nOrigin: http://{}\r\n", server.client);
        for headers in [bearer(token), cookie, format!("X-Phoenix-AuthToken: {token}\r\n")] {
            for target in [
                "/sse?topic=x",
                "/poll?topic=room:1&timeout=0",
                "/history?topic=room:1",
                "/ws",
                "/nothing",
            ] {
                let target = format!("{target}&topic_token={token}");
                let mut stream = Stream::new(server.connect());
                stream.send(&format!("GET {target} HTTP/1.1\r\nHost: t\r\n{headers}\r\n"));
                stream.head();
            }
        }
        let mut ws = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
        ws.command(json!({"type": "connect", "token": token}));
        ws.command(json!({"type": "refresh", "token": token}));
        ws.command(json!({"type": "subscribe", "topic": "room:2", "token": token}));
    }
    server.post("/api/revoke", json!({"jti": "jti-2"}));
    let (mut lasting, _) = expiring(|exp| {
        tokens.push(of(with(everything("al"), json!({"exp": exp}))));
        let query = format!("token={}", tokens.last().unwrap());
        Client::open(&server, Transport::Ws, &query, "").ok()
    });
    assert_eq!(lasting.closed(), "token_expired");
    // Collects the responses of all calls that return data.
    let mut said = String::new();
    for target in [
        "/api/config",
        "/api/stats",
        "/api/users/al",
        "/api/topics",
        "/api/topics/room:1/members",
        "/api/revocations",
        "/api/top",
        "/api/samples",
        "/api/openapi.json",
        "/metrics",
        "/api/messages",
    ] {
        said += &text(server.admin, "GET", target, None, "").1;
    }
    let shown = Command::new(env!("CARGO_BIN_EXE_throng"))
        .args(["config", "--config", TOPICS])
        .envs(settings)
        .output()
        .unwrap();
    said += &String::from_utf8_lossy(&shown.stdout);
    server.signal("-HUP");
    server.signal("-TERM");
    let mut server = server;
    wait_within(&mut server.child);
    said += &std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("connections") && said.len() > 10_000, "{said}");
    // Checks each part of each token. All tokens have the same header, which is left out.
    let parts =
        tokens.iter().flat_map(|token| token.split('.').skip(1)).filter(|part| part.len() > 8);
    for part in parts.chain([MARK]) {
        let at = said.find(part);
        assert_eq!(at, None, "{part}: {}", &said[at.unwrap_or(0)..][..200]);
    }
}

/// A client without a token, and one without grants, get the same rejection for all topics: for topics with members,
/// rules, presence or a history, for topics that rules close, and for topics that do not exist.
#[test]
fn refusals_say_nothing_of_topics() {
    const NAMES: [&str; 6] = ["room:here", "room:none", "closed:1", "work:now", "free", "none"];
    let server = serve(&[("THRONG_CLIENT_PUBLISH_PREFIXES", "free")]);
    for topic in NAMES.iter().filter(|topic| !topic.contains("none")) {
        server.publish(topic, json!("x"));
    }
    let everything = token(everything("al"));
    let _members: Vec<Client> = ["room:here", "work:now", "free"]
        .into_iter()
        .map(|topic| Client::enter(&server, Transport::Ws, &everything, topic))
        .collect();
    let bo = token(json!({"sub": "bo", "throng": {}}));
    // Only the date may differ. The compared names have the same length.
    let same = |what: &str, replies: Vec<String>| {
        let plain: Vec<String> = replies
            .iter()
            .zip(NAMES)
            .map(|(response, name)| response.replace(name, "NAME"))
            .collect();
        for response in &plain[1..] {
            assert_eq!(*response, plain[0], "{what}");
        }
    };
    for (who, headers) in [("a stranger", String::new()), ("another user", bearer(&bo))] {
        for (method, path) in [
            ("GET", "/sse?"),
            ("GET", "/stream?"),
            ("GET", "/poll?timeout=0&"),
            ("GET", "/presence?"),
            ("GET", "/history?"),
            ("GET", "/history?since=last:5&"),
            ("GET", "/history?since=00000001:7&"),
            ("GET", "/sse?since=start&"),
            ("GET", "/sse?since=00000001:7&"),
            ("POST", "/publish?"),
            ("POST", "/publish?event=presence_state&"),
            ("POST", "/publish?key=%00&"),
        ] {
            let replies = NAMES.map(|name| {
                let reply = request(&server, method, &format!("{path}topic={name}"), &headers, "");
                assert_eq!(reply.error(), (403, "not_granted"), "{who}: {path} {name}");
                format!("{}{}", reply.head, reply.body)
            });
            same(&format!("{who}: {path}"), replies.to_vec());
        }
        let acks = NAMES.map(|name| {
            let target = format!("/ack?user=bo&topic={name}&id=00000001:1");
            let reply = request(&server, "POST", &target, &headers, "");
            format!("{}{}", reply.head, reply.body)
        });
        same(&format!("{who}: /ack"), acks.to_vec());
        // A handshake also names topics.
        let shakes = NAMES.map(|name| {
            let opened = Client::open(&server, Transport::Ws, &format!("topic={name}"), &headers);
            let reply = opened.err().unwrap();
            assert_eq!(reply.error().1, "not_granted");
            format!("{} {} {}", reply.status, reply.head, reply.body)
        });
        same(&format!("{who}: /ws"), shakes.to_vec());
        for command in [
            json!({"type": "subscribe"}),
            json!({"type": "subscribe", "since": "start"}),
            json!({"type": "subscribe", "since": "00000001:7"}),
            json!({"type": "unsubscribe"}),
            json!({"type": "publish", "data": 1}),
            json!({"type": "presence"}),
            json!({"type": "history"}),
            json!({"type": "presence_update", "meta": {}}),
            json!({"type": "ack", "message": "00000001:1"}),
        ] {
            let mut socket = handshake(&server, "/ws", &headers).ok().unwrap();
            receive(&mut socket);
            let replies = NAMES.map(|name| {
                let fields = with(command.clone(), json!({"topic": name, "id": 1}));
                socket.send(tungstenite::Message::text(fields.to_string())).unwrap();
                let response = receive(&mut socket);
                assert!(response["error"].is_object(), "{fields}: {response}");
                response.to_string()
            });
            same(&format!("{who}: {command}"), replies.to_vec());
        }
        for transport in [Transport::Phoenix, Transport::Longpoll] {
            let mut client = Client::open(&server, transport, "", &headers).ok().unwrap();
            for (event, payload) in [
                ("phx_join", json!({})),
                ("phx_join", json!({"since": "start"})),
                ("phx_join", json!({"since": "00000001:7"})),
                ("phx_join", json!({"meta": {}})),
                ("say", json!({})),
                ("ack", json!({"id": "00000001:1"})),
                ("history", json!({})),
                ("presence_update", json!({})),
                ("phx_leave", json!({})),
            ] {
                let replies =
                    NAMES.map(|name| client.push(name, event, payload.clone()).to_string());
                same(&format!("{who}: {transport:?} {event}"), replies.to_vec());
            }
        }
    }
}
