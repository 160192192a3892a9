//! Clients that try to evade the end of their token, or the limits of their users.

use serde_json::{Value, json};
use tungstenite::Message;

use crate::application::Application;
use crate::tokens::support::*;

const NO_SPREAD: (&str, &str) = ("THRONG_AUTH_EXPIRY_SPREAD_SECONDS", "0");

#[test]
fn a_token_ends_though_its_client_keeps_itself_unread() {
    let slow = ("THRONG_LIMITS_JOINS_PER_SECOND_MAX", "20");
    let server = serve(&[REQUIRED, NO_SPREAD, slow]);
    let (mut client, exp) = expiring(|exp| {
        let claims = everything("al");
        let mut client = open_until(exp, &server, Transport::Ws, &claims, "&topic=room:1")?;
        let Wire::Ws(socket) = &mut client.wire else { unreachable!() };
        for _ in 0..1_000 {
            let subscribe = json!({"type": "subscribe", "id": 1, "topic": "room:2"});
            socket.write(Message::text(subscribe.to_string())).ok()?;
        }
        socket.flush().ok()?;
        Some(client)
    });
    let mut replies = 0;
    let end = loop {
        match client.event() {
            (event, value) if event == "closed" => break value,
            (event, _) => replies += u32::from(event == "reply"),
        }
    };
    assert_eq!((&end["code"], &end["reason"]), (&json!(4402), &json!("token_expired")));
    assert!(now_s() >= exp);
    assert!(replies < 1_000, "the server has read all commands, and would have closed after them");
}

#[test]
fn who_says_later_who_they_are_has_no_more_connections() {
    let two = ("THRONG_LIMITS_CONNECTIONS_PER_USER_MAX", "2");
    let server = serve(&[two]);
    let token = token(everything("al"));
    let connect = json!({"type": "connect", "token": token});
    let mut clients = Vec::new();
    for transport in ["the query", "a command"] {
        let query = if transport == "the query" { format!("token={token}") } else { String::new() };
        let mut client = Client::open(&server, Transport::Ws, &query, "").ok().unwrap();
        if query.is_empty() {
            assert_eq!(client.command(connect.clone())["users"], json!(["al"]), "{transport}");
        }
        clients.push(client);
    }
    let mut third = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
    assert_eq!(third.command(connect.clone()), "too_many_connections");
    // The client may stay without a user, and connect as one when another connection has ended.
    clients.pop();
    server.until("there is room for it", |_| match third.command(connect.clone()) {
        Value::String(code) => {
            assert_eq!(code, "too_many_connections");
            false
        }
        connected => {
            assert_eq!(connected["users"], json!(["al"]));
            true
        }
    });
}

#[test]
fn what_the_application_decides_is_not_read_without_it() {
    let app = Application::replying(|event| match event["user"].as_str() {
        Some("mallory") => json!({"error": {"code": "no"}}),
        _ => json!({}),
    });
    let server = serve_with_requests(&app, &[REQUIRED]);
    let mut friend = Client::enter(&server, Transport::Ws, &token(everything("friend")), "asked:7");
    let publish = json!({"topic": "asked:7", "data": "secret"});
    assert_eq!(server.api("POST", "/api/publish", Some(publish)).0, 200);
    let own = |names: &[&str]| {
        let grants = names.iter().map(|name| (name.to_string(), json!(["asked:*"])));
        token(json!({"sub": "mallory", "throng": Value::Object(grants.collect())}))
    };
    let topic_token = token(json!({"sub": "mallory", "topic": "asked:7", "exp": now_s() + 3_600}));
    for grants in [&["subscribe", "presence"][..], &["subscribe", "history"], &[]] {
        let target = format!("token={}", own(grants));
        let mut client = Client::open(&server, Transport::Ws, &target, "").ok().unwrap();
        for kind in ["presence", "history"] {
            for token in [None, Some(&topic_token)] {
                let mut command = json!({"type": kind, "topic": "asked:7"});
                if let Some(token) = token {
                    command["token"] = json!(token);
                }
                let response = client.command(command);
                assert!(response.is_string(), "{kind} {grants:?} {token:?}: {response}");
            }
        }
    }
    // A client that the application has admitted may read.
    let entries = friend.command(json!({"type": "presence", "topic": "asked:7"}));
    assert_eq!(entries["users"], 1, "{entries}");
    let page = friend.command(json!({"type": "history", "topic": "asked:7"}));
    assert_eq!(page["messages"][0]["data"], "secret", "{page}");
}

#[test]
fn a_clock_that_is_fast_does_not_outlive_a_revocation() {
    let server = serve(&[REQUIRED]);
    let issued = |seconds: u64| {
        token(with(everything("al"), json!({"iat": now_s() + seconds, "exp": now_s() + 6_000})))
    };
    let reply = request(&server, "GET", "/poll?timeout=0", &bearer(&issued(3_000)), "");
    assert_eq!(reply.error(), (401, "invalid_token"));
    let mut client = Client::enter(&server, Transport::Ws, &issued(30), "room:1");
    let (_, revoked) = server.api("POST", "/api/revoke", Some(json!({"user": "al"})));
    assert_eq!(revoked["closed"], 1);
    assert_eq!(client.closed(), "token_revoked");
}
