//! Forged tokens, storms of tokens, and clients without a user.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::support::*;
use crate::tokens::support::*;

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

/// Starts a server with public keys and a shared key.
fn server() -> Server {
    let files = Scratch::new("tokens-keys");
    let [rsa, ed] = [("rsa.pem", RSA.1), ("ed.pem", ED.1)]
        .map(|(name, pem)| files.write(name, pem).display().to_string());
    let list = format!("{rsa},{ed}");
    serve(&[REQUIRED, ("THRONG_AUTH_PUBLIC_KEY_FILES", &list)])
}

#[test]
fn forged_tokens_count_for_nothing_anywhere() {
    let server = server();
    let claims = everything("al");
    let good = token(claims.clone());
    assert_eq!(get(&server, &format!("/poll?topic=room:1&timeout=0&token={good}")).status, 200);
    let [header, payload, signature] = good.split('.').collect::<Vec<_>>()[..] else { panic!() };
    let unsigned =
        |alg: Value| format!("{}.{}.", part(&json!({"alg": alg, "typ": "JWT"})), part(&claims));
    let mut forged: Vec<String> = ["none", "None", "NONE", "nOnE", "", "HS1", "RS256 "]
        .iter()
        .flat_map(|alg| [unsigned(json!(alg)), format!("{}{signature}", unsigned(json!(alg)))])
        .collect();
    forged.extend([unsigned(Value::Null), unsigned(json!(["none"]))]);
    // A public key used as a shared key, in all forms in which a server could have read it.
    for pem in [RSA.1, ED.1] {
        for text in [pem, pem.trim_end(), &pem.replace('\n', "\r\n"), &pem.replace('\n', "")] {
            for name in ["HS256", "HS384", "HS512"] {
                forged.push(signed(name, text, None, claims.clone()));
            }
        }
    }
    // Another header or other claims with the same signature; a signature that is too short or too long.
    let other = part(&json!({"alg": "HS512", "typ": "JWT"}));
    let more = part(&everything("root"));
    forged.extend([
        format!("{other}.{payload}.{signature}"),
        format!("{header}.{more}.{signature}"),
        format!("{header}.{payload}.{}", &signature[..signature.len() - 2]),
        format!("{header}.{payload}.{signature}AA"),
        format!("{header}.{payload}.{signature}="),
        format!("{header}.{payload}."),
        format!("{header}.{payload}"),
        format!("{good}.{signature}"),
        format!("{payload}.{header}.{signature}"),
        "..".into(),
        ".".into(),
        "null".into(),
    ]);
    // A signed token that requires an extension that the server does not know.
    let crit = json!({"alg": "HS256", "crit": ["b64"], "b64": false});
    forged.push(format!("{}.{payload}.{signature}", part(&crit)));
    // A token that brings its own key.
    let own = json!({"alg": "RS256", "jwk": {"kty": "RSA", "n": "AQAB", "e": "AQAB"}, "jku": "http://127.0.0.1:1/"});
    forged.push(format!("{}.{payload}.{signature}", part(&own)));
    for token in &forged {
        let reply = request(&server, "GET", "/poll?topic=room:1&timeout=0", &bearer(token), "");
        assert_eq!(reply.error(), (401, "invalid_token"), "{token}");
        let mut client = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
        assert_eq!(
            client.command(json!({"type": "connect", "token": token})),
            "invalid_token",
            "{token}"
        );
        assert_eq!(
            client.command(json!({"type": "subscribe", "topic": "room:1"})),
            "token_required"
        );
        let reply = Client::open(
            &server,
            Transport::Phoenix,
            "",
            &format!("X-Phoenix-AuthToken: {token}\r\n"),
        );
        assert_eq!(reply.err().unwrap().error(), (403, "invalid_token"), "{token}");
    }
    // A wrong token beside a right one: the server takes the first source.
    let mixed = request(
        &server,
        "GET",
        &format!("/poll?topic=room:1&timeout=0&token={good}"),
        &bearer("x"),
        "",
    );
    assert_eq!(mixed.status, 401);
}

#[test]
fn long_tokens_are_refused_and_not_read() {
    let server = serve(&[REQUIRED, ("THRONG_LIMITS_HEAD_BYTES_MAX", "64KiB")]);
    let of = |bytes: usize| {
        let filler = "x".repeat(bytes * 3 / 4);
        token(with(everything("al"), json!({"filler": filler})))
    };
    let command =
        |token: &str| request(&server, "GET", "/poll?topic=room:1&timeout=0", &bearer(token), "");
    assert_eq!(command(&of(8_000)).status, 200);
    assert_eq!(command(&of(20_000)).error(), (401, "invalid_token"));
    assert_eq!(command(&of(80_000)).status, 431);
    let mut client = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
    assert_eq!(client.command(json!({"type": "connect", "token": of(60_000)})), "invalid_token");
    assert!(client.command(json!({"type": "connect", "token": of(8_000)})).is_object());
    // Claims that would use much memory.
    for claims in [
        json!({"sub": "al", "throng": {"subscribe": vec!["a"; 101]}}),
        json!({"sub": "al", "throng": {"subscribe": ["x".repeat(255)]}}),
        json!({"users": (0..101).map(|at| at.to_string()).collect::<Vec<_>>()}),
        json!({"sub": "x".repeat(255)}),
        json!({"sub": "al", "throng": {"info": {"a": "x".repeat(4_100)}}}),
    ] {
        assert_eq!(command(&token(claims)).error(), (401, "invalid_token"));
    }
    // A pattern that would take a backtracking matcher for ever.
    let stars = "*a".repeat(100);
    let token = token(json!({"sub": "al", "throng": {"subscribe": vec![stars; 40]}}));
    let topic = "a".repeat(99) + &"b".repeat(150);
    let reply = request(&server, "GET", &format!("/sse?topic={topic}"), &bearer(&token), "");
    assert_eq!(reply.error(), (403, "not_granted"));
}

#[test]
fn a_storm_of_tokens_disturbs_no_user() {
    let server = serve(&[REQUIRED]);
    let al = token(everything("al"));
    let mut witness = Client::enter(&server, Transport::Sse, &al, "room:1");
    let rsa = signed("RS256", RSA.0, None, everything("al"));
    let longer = format!("{al}A");
    std::thread::scope(|scope| {
        // Many tokens on one connection, without waiting for replies.
        for forged in ["x.y.z", &rsa, &longer] {
            let server = &server;
            scope.spawn(move || {
                let mut socket = handshake(server, "/ws", "").ok().unwrap();
                let command = json!({"type": "connect", "id": 1, "token": forged}).to_string();
                receive(&mut socket);
                // At most as many as fit into the buffers of the sockets, with their replies.
                for _ in 0..10 {
                    for _ in 0..200 {
                        socket.send(tungstenite::Message::text(command.clone())).unwrap();
                    }
                    for _ in 0..200 {
                        let response = receive(&mut socket);
                        assert_eq!(response["error"]["code"], "invalid_token");
                    }
                }
            });
        }
        // A valid token, again and again.
        scope.spawn(|| {
            let mut client = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
            assert!(client.command(json!({"type": "connect", "token": al})).is_object());
            for _ in 0..500 {
                let response = client.command(json!({"type": "connect", "token": al}));
                assert_eq!(response, "already_connected");
                assert!(client.command(json!({"type": "refresh", "token": al})).is_object());
            }
        });
        scope.spawn(|| {
            for at in 0..200 {
                server.publish("room:1", json!(at));
                assert_eq!(witness.until("message"), at);
            }
        });
    });
}

#[test]
fn many_strangers_that_say_nothing_are_closed_and_receive_nothing() {
    let server = serve(&[REQUIRED, ("THRONG_TIMEOUTS_HEAD_SECONDS", "5")]);
    let mut witness = Client::enter(&server, Transport::Sse, &token(everything("al")), "room:1");
    let mut silent: Vec<Client> =
        (0..100).map(|_| Client::open(&server, Transport::Ws, "", "").ok().unwrap()).collect();
    server.post("/api/broadcast", json!({"data": "for those who are known"}));
    assert_eq!(witness.until("message"), "for those who are known");
    for client in &mut silent {
        let (event, value) = client.event();
        assert_eq!((&*event, &value["reason"]), ("closed", &json!("unauthorized")));
    }
}

/// A client without a user enters no topic, whatever it requests, and appears nowhere.
#[test]
fn a_stranger_has_no_user() {
    let server = serve(&[REQUIRED]);
    let mut stranger = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
    server.until("it is counted", |server| {
        server.metric("throng_connections{transport=\"ws\"}") >= 1.0
    });
    for query in ["topic=room:1", "user=al", "user=al&topic=room:1", "user=%2A"] {
        let refused = Client::open(&server, Transport::Ws, query, "").err().unwrap();
        assert_eq!(refused.error(), (4401, "token_required"), "{query}");
    }
    for (target, body) in [
        ("/api/broadcast", json!({"data": "all"})),
        ("/api/send", json!({"user": "al", "data": "al"})),
        ("/api/publish", json!({"topic": "room:1", "data": "room"})),
    ] {
        server.post(target, body);
    }
    // API calls about users do not affect it either.
    let Wire::Ws(socket) = &mut stranger.wire else { panic!() };
    socket.send(tungstenite::Message::text(r#"{"type":"ping","id":7}"#)).unwrap();
    assert_eq!(stranger.event().0, "reply", "nothing came before it");
    assert_eq!(server.api("GET", "/api/users/al", None).1["count"], 0);
    assert_eq!(
        server.api("POST", "/api/disconnect", Some(json!({"user": "al"}))).1["disconnected"],
        0
    );
}
