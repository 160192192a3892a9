//! Where a request may have its token, and where not.

use serde_json::json;

use crate::support::*;
use crate::tokens::support::*;

/// Starts a server that requires tokens and allows one other origin.
fn server() -> Server {
    serve(&[REQUIRED, ("THRONG_CLIENT_CORS_ORIGINS", "https://app.example")])
}

fn al() -> String {
    token(listener("al", &["room:*"]))
}

#[test]
fn a_token_may_stand_in_a_header_in_the_query_and_in_a_cookie() {
    let server = server();
    let token = al();
    for transport in LASTING {
        let topic = if transport.is_phoenix() { "" } else { "topic=room:1" };
        for (query, headers) in [
            (topic.to_string(), bearer(&token)),
            (topic.to_string(), format!("authorization: bearer {token}\r\n")),
            (format!("{topic}&token={token}"), String::new()),
            (topic.to_string(), format!("Cookie: a=b; throng_token={token}; c=d\r\n")),
        ] {
            let mut client = Client::open(&server, transport, &query, &headers)
                .unwrap_or_else(|reply| panic!("{transport:?} {headers}: {reply:?}"));
            if transport.is_phoenix() {
                assert_eq!(client.join("room:1", json!({}))["status"], "ok", "{transport:?}");
            }
            server.until_members("room:1", 1);
            assert!(is_here(&server, "al"), "{transport:?}");
            server.publish("room:1", json!("hello"));
            assert_eq!(client.until("message"), "hello", "{transport:?}");
            drop(client);
            server.until("it is gone", |server| {
                !is_here(server, "al") || transport == Transport::Longpoll
            });
            server.post("/api/disconnect", json!({"user": "al"}));
            server.until("it is gone", |server| !is_here(server, "al"));
        }
    }
    // With `timeout=0` a poll responds at once.
    for (query, headers) in [
        (String::new(), bearer(&token)),
        (format!("&token={token}"), String::new()),
        (String::new(), format!("Cookie: throng_token={token}\r\n")),
    ] {
        let target = format!("/poll?topic=room:1&timeout=0{query}");
        let reply = request(&server, "GET", &target, &headers, "");
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}

fn is_here(server: &Server, user: &str) -> bool {
    server.api("GET", &format!("/api/users/{user}"), None).1["count"].as_u64() > Some(0)
}

#[test]
fn requests_take_their_tokens_alike() {
    let server = server();
    let token = token(everything("al"));
    let id = server.publish("room:1", json!("x"))["id"].as_str().unwrap().to_string();
    for (method, target, body) in [
        ("POST", "/publish?topic=room:1", "hi"),
        ("GET", "/presence?topic=room:1", ""),
        ("GET", "/history?topic=room:1", ""),
        ("POST", &*format!("/ack?topic=work:1&user=al&id={id}"), ""),
    ] {
        let none = request(&server, method, target, "", body);
        assert_eq!(none.error(), (401, "token_required"), "{target}");
        assert_eq!(header(&none.head, "www-authenticate"), Some("Bearer realm=\"throng\""));
        for (query, headers) in [
            (String::new(), bearer(&token)),
            (format!("&token={token}"), String::new()),
            (
                String::new(),
                format!("Cookie: throng_token={token}\r\nOrigin: https://app.example\r\n"),
            ),
        ] {
            let reply = request(&server, method, &format!("{target}{query}"), &headers, body);
            assert!(reply.status == 200 || reply.status == 204, "{target} {headers}: {reply:?}");
        }
    }
    // The message's sender is the token's user.
    let history = request(&server, "GET", "/history?topic=room:1", &bearer(&token), "");
    assert_eq!(history.body["messages"][1]["sender"], "al", "{history:?}");
}

/// A browser sends a cookie by itself, so only the server's own pages and the allowed origins may use it.
#[test]
fn a_cookie_counts_for_pages_that_are_known_only() {
    let server = server();
    let cookie = format!("Cookie: throng_token={}\r\n", al());
    let own = format!("Origin: http://{}\r\n", server.client);
    let command = |method: &str, target: &str, headers: &str| {
        let reply = request(&server, method, target, &format!("{cookie}{headers}"), "");
        (reply.status, reply.error().1.to_string())
    };
    let poll = "/poll?topic=room:1&timeout=0";
    for (headers, status) in [
        ("", 200),
        (&*own, 200),
        ("Origin: https://app.example\r\n", 200),
        ("Sec-Fetch-Site: same-origin\r\n", 200),
        ("Sec-Fetch-Site: none\r\n", 200),
        ("Sec-Fetch-Site: same-site\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\n", 403),
        ("Origin: https://evil.example\r\n", 403),
        ("Origin: https://app.example.evil.example\r\n", 403),
        ("Origin: http://app.example\r\n", 403),
        ("Origin: null\r\n", 403),
        ("Origin: \r\n", 403),
        ("Origin: https://app.example\r\nOrigin: https://evil.example\r\n", 403),
        ("Origin: https://evil.example\r\nSec-Fetch-Site: same-origin\r\n", 403),
    ] {
        let want = if status == 200 { "" } else { "bad_origin" };
        assert_eq!(command("GET", poll, headers), (status, want.into()), "{headers}");
    }
    // A request that changes something needs a known origin.
    let ack = "/ack?user=al&id=00000001:1";
    assert_eq!(command("POST", ack, ""), (403, "bad_origin".into()));
    assert_ne!(command("POST", ack, "Origin: https://app.example\r\n").0, 403);
    // For a token that a page sends itself, the server only checks CORS.
    let reply = request(&server, "GET", poll, &format!("{}{own}", bearer(&al())), "");
    assert_eq!(reply.status, 200);
    // The same for WebSockets.
    for transport in [Transport::Ws, Transport::Phoenix] {
        let foreign = format!("{cookie}Origin: https://evil.example\r\n");
        let reply = Client::open(&server, transport, "", &foreign).err().unwrap();
        assert_eq!(reply.error(), (403, "bad_origin"), "{transport:?}");
        let known = format!("{cookie}Origin: https://app.example\r\n");
        assert!(Client::open(&server, transport, "", &known).is_ok(), "{transport:?}");
    }
}

#[test]
fn any_origin_is_none_that_is_named() {
    let server = serve(&[REQUIRED, ("THRONG_AUTH_COOKIE", "session")]);
    let cookie = format!("Cookie: throng_token=x; session={}\r\n", al());
    let command = |headers: &str| {
        let headers = format!("{cookie}{headers}");
        request(&server, "GET", "/poll?topic=room:1&timeout=0", &headers, "")
    };
    assert_eq!(command("").status, 200);
    let foreign = command("Origin: https://app.example\r\n");
    assert_eq!(foreign.error(), (403, "bad_origin"));
    assert_eq!(header(&foreign.head, "access-control-allow-credentials"), None);
    // Without a name for it there is no such cookie.
    let none = serve(&[REQUIRED, ("THRONG_AUTH_COOKIE", "")]);
    let reply = request(&none, "GET", "/poll?topic=room:1&timeout=0", &cookie, "");
    assert_eq!(reply.error(), (401, "token_required"));
}

/// Only pages of allowed origins may read responses to requests with cookies.
#[test]
fn credentials_are_allowed_to_named_origins_only() {
    let server = server();
    let cookie = format!("Cookie: throng_token={}\r\n", al());
    for (method, origin, allowed) in [
        ("GET", "https://app.example", true),
        ("OPTIONS", "https://app.example", true),
        ("GET", "https://evil.example", false),
        ("OPTIONS", "https://evil.example", false),
    ] {
        let headers = format!("{cookie}Origin: {origin}\r\n");
        let reply = request(&server, method, "/poll?topic=room:1&timeout=0", &headers, "");
        let head = reply.head;
        let want = allowed.then_some("true");
        assert_eq!(header(&head, "access-control-allow-credentials"), want, "{method}: {head}");
        let want = allowed.then_some(origin);
        assert_eq!(header(&head, "access-control-allow-origin"), want, "{method}: {head}");
        assert_eq!(header(&head, "vary"), Some("Origin"));
    }
    // Without a cookie for tokens the header is missing.
    let origins = ("THRONG_CLIENT_CORS_ORIGINS", "https://app.example");
    for settings in [vec![origins, ("THRONG_AUTH_COOKIE", "")], vec![origins]] {
        let server = match settings.len() {
            2 => serve(&settings),
            _ => serve_with(&settings),
        };
        let headers = "Origin: https://app.example\r\n";
        let reply = request(&server, "GET", "/healthz", headers, "");
        assert_eq!(header(&reply.head, "access-control-allow-credentials"), None);
    }
    // `*` together with an origin stays `*`, with which browsers send no cookies.
    let both = serve(&[("THRONG_CLIENT_CORS_ORIGINS", "*,https://app.example")]);
    let reply = request(&both, "GET", "/healthz", "Origin: https://app.example\r\n", "");
    assert_eq!(header(&reply.head, "access-control-allow-origin"), Some("*"));
    assert_eq!(header(&reply.head, "access-control-allow-credentials"), None);
}

/// How phoenix.js 1.8 sends its option `authToken`.
#[test]
fn phoenix_clients_bring_tokens_in_their_own_ways() {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
    let server = server();
    let token = al();
    for encoded in [STANDARD_NO_PAD.encode(&token), URL_SAFE_NO_PAD.encode(&token)] {
        let offer = format!("Sec-WebSocket-Protocol: phoenix, base64url.bearer.phx.{encoded}\r\n");
        let mut client = Client::open(&server, Transport::Phoenix, "", &offer).ok().unwrap();
        assert_eq!(client.join("room:1", json!({}))["status"], "ok");
        assert_eq!(client.join("other", json!({}))["response"]["reason"], "unauthorized");
    }
    let padded = STANDARD.encode(b"x");
    for wrong in [&*padded, "!", "", &"A".repeat(100)] {
        let offer = format!("Sec-WebSocket-Protocol: phoenix, base64url.bearer.phx.{wrong}\r\n");
        let refused = Client::open(&server, Transport::Phoenix, "", &offer).err().unwrap();
        assert_eq!(refused.status, 403, "{wrong}");
    }
    let sent = format!("X-Phoenix-AuthToken: {token}\r\n");
    let mut client = Client::open(&server, Transport::Longpoll, "", &sent).ok().unwrap();
    assert_eq!(client.join("room:1", json!({}))["status"], "ok");
    let refused = Client::open(&server, Transport::Longpoll, "", "").err().unwrap();
    assert_eq!(refused.error(), (403, "token_required"));
}

/// The first command names the client's user.
#[test]
fn a_stranger_on_ws_says_first_who_it_is() {
    let server = server();
    let mut client = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
    for command in [
        json!({"type": "subscribe", "topic": "room:1"}),
        json!({"type": "publish", "topic": "room:1", "data": 1}),
        json!({"type": "presence", "topic": "room:1"}),
        json!({"type": "history", "topic": "room:1"}),
        json!({"type": "login", "user": "al"}),
        json!({"type": "logout", "user": "al"}),
        json!({"type": "unsubscribe", "topic": "room:1"}),
        json!({"type": "presence_update", "topic": "room:1", "meta": {}}),
        json!({"type": "ack", "topic": "work:1", "message": "00000001:1"}),
    ] {
        assert_eq!(client.command(command.clone()), "token_required", "{command}");
    }
    assert_eq!(client.command(json!({"type": "ping"})), json!({}));
    assert_eq!(client.command(json!({"type": "refresh", "token": al()})), "not_connected");
    assert_eq!(client.command(json!({"type": "connect"})), "bad_token");
    assert_eq!(client.command(json!({"type": "connect", "token": ""})), "invalid_token");
    // The client gets no broadcasts before that.
    let mut known = Client::open(&server, Transport::Ws, "", &bearer(&al())).ok().unwrap();
    server.post("/api/broadcast", json!({"data": "to all"}));
    assert_eq!(known.until("message"), "to all");
    let exp = now_s() + 600;
    let token = token(with(listener("al", &["room:*"]), json!({"exp": exp, "users": ["team"]})));
    let connected = client.command(json!({"type": "connect", "token": token}));
    assert_eq!(connected, json!({"users": ["al", "team"], "expires": exp}));
    assert_eq!(client.command(json!({"type": "connect", "token": token})), "already_connected");
    assert_eq!(client.command(json!({"type": "subscribe", "topic": "other"})), "not_granted");
    let entered = client.command(json!({"type": "subscribe", "topic": "room:1"}));
    assert_eq!(entered["topic"], "room:1");
    for (target, body) in [
        ("/api/broadcast", json!({"data": "again"})),
        ("/api/send", json!({"user": "team", "data": "team"})),
        ("/api/publish", json!({"topic": "room:1", "data": "room"})),
    ] {
        server.post(target, body.clone());
        // The client does not get earlier messages either.
        assert_eq!(client.until("message"), body["data"]);
    }
}

/// The server closes clients that do not name a user in time.
#[test]
fn a_stranger_that_says_nothing_is_closed() {
    let server = serve(&[REQUIRED, ("THRONG_TIMEOUTS_HEAD_SECONDS", "5")]);
    let mut silent = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
    let mut busy = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
    assert_eq!(busy.command(json!({"type": "connect", "token": "x.y.z"})), "invalid_token");
    let mut known = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
    known.command(json!({"type": "connect", "token": al()}));
    assert_eq!(silent.closed(), "unauthorized");
    assert_eq!(busy.closed(), "unauthorized");
    assert_eq!(known.command(json!({"type": "ping"})), json!({}));
    server.until("both are counted", |server| {
        server.metric("throng_connections_closed_total{reason=\"unauthorized\"}") == 2.0
    });
}
