//! The `connect` webhook: the application names the user of a client without a token, and how long it may stay. The
//! tests cover every transport, with an application that replies, is slow, fails, or is away.

mod refresh;
mod responses;

use crate::application::Application;
use crate::support::*;
use crate::tokens::support::*;
use serde_json::{Value, json};

const CONNECT: (&str, &str) = ("THRONG_WEBHOOK_CONNECT", "true");

/// Starts a server that calls the application's `connect` webhook.
fn serve_with_webhook(app: &Application, settings: &[(&str, &str)]) -> Server {
    serve_with_webhook_at(&app.url(), settings)
}

fn serve_with_webhook_at(url: &str, settings: &[(&str, &str)]) -> Server {
    serve_with(&[&[("THRONG_WEBHOOK_URL", url), PATIENT, CONNECT], settings].concat())
}

/// Returns the header with a user's session cookie.
fn session(user: &str) -> String {
    format!("Cookie: a=b; session={user}\r\nUser-Agent: tests\r\nX-Secret: not told\r\n")
}

/// The application's reply: it knows users by their session cookie. A user may enter its own room, and becomes a
/// member of its own news.
fn sessions(event: &Value) -> Value {
    if event["kind"] != "connect" {
        return json!({"status": "error"});
    }
    let cookies = event["headers"]["cookie"].as_str().unwrap_or_default();
    match cookies.split_once("session=").map(|(_, user)| user) {
        Some("bad") => json!({"error": {"code": "banned", "message": "you know why"}}),
        Some(user) => json!({
            "user": user, "users": [user, "crowd"], "topics": [format!("news:{user}")],
            "grants": {"subscribe": [format!("room:{user}")], "publish": ["room:{sub}"],
                       "presence": ["room:*"], "history": ["room:{sub}"]},
            "info": {"role": "editor"},
        }),
        None => json!({"status": "error", "response": {"code": "unauthorized"}}),
    }
}

/// Returns the status and the code with which the server rejects this client, by any transport.
fn refused(server: &Server, transport: Transport, query: &str, headers: &str) -> (u16, String) {
    let reply = match Client::open(server, transport, query, headers) {
        Err(reply) => reply,
        Ok(Client { wire: Wire::Poll(mut stream), .. }) => {
            let (status, body) = stream.read_reply();
            let body = serde_json::from_str(&body).unwrap_or(Value::Null);
            Reply { status, head: String::new(), body }
        }
        Ok(_) => panic!("{transport:?} {query} is let in"),
    };
    let (status, code) = reply.error();
    (status, code.to_string())
}

#[test]
fn the_application_says_who_comes_by_every_transport() {
    let app = Application::replying(sessions);
    let server = serve_with_webhook(&app, &[]);
    for transport in ALL {
        let user = format!("{transport:?}").to_lowercase();
        let (chat, news) = (format!("room:{user}"), format!("news:{user}"));
        let topics = if transport.is_phoenix() { String::new() } else { format!("topic={chat}&") };
        let query = format!("{topics}lang=de&lang=en");
        let mut client = Client::open(&server, transport, &query, &session(&user))
            .unwrap_or_else(|reply| panic!("{transport:?}: {reply:?}"));
        if transport.is_phoenix() {
            assert_eq!(client.join(&chat, json!({}))["status"], "ok", "{transport:?}");
            assert_eq!(client.join("room:other", json!({}))["status"], "error", "{transport:?}");
        }
        for topic in [&chat, &news, &format!("@{user}"), &"@crowd".to_string()] {
            server.until("it is in its topics", |server| members(server, topic) == 1);
        }
        if transport != Transport::Poll {
            server.until("others are told of it", |server| {
                let (_, body) = server.api("GET", &format!("/api/presence/{chat}"), None);
                body["presences"][&user]["metas"][0]["info"]["role"] == "editor"
            });
        }
        // The client gets messages of the topic that the application gave it.
        server.publish(&news, json!("fresh"));
        if !transport.is_phoenix() {
            assert_eq!(client.until("message"), "fresh", "{transport:?}");
        }
        let name = match transport {
            Transport::Longpoll => "phoenix_longpoll",
            _ => &user,
        };
        let event = app.events().pop().unwrap();
        let mut query = json!({"lang": ["de", "en"]});
        match transport {
            Transport::Poll => query["timeout"] = json!(["60"]),
            Transport::Phoenix | Transport::Longpoll => query["vsn"] = json!(["2.0.0"]),
            _ => {}
        }
        if !transport.is_phoenix() {
            query["topic"] = json!([chat]);
        }
        let path = transport.path().split('?').next().unwrap();
        let want = json!({
            "kind": "connect", "user": null, "users": [], "connection": event["connection"],
            "transport": name, "address": "127.0.0.1", "path": path, "query": query,
            "headers": {"cookie": format!("a=b; session={user}"), "user-agent": "tests"},
        });
        assert_eq!(event, want, "{transport:?}");
        assert_eq!(event["connection"].as_str().unwrap().split('-').count(), 4);
        // The client may neither enter another user's topic, nor be another user.
        if !transport.is_phoenix() {
            let other = refused(&server, transport, "topic=room:other", &session(&user));
            let want = if transport == Transport::Ws { 4403 } else { 403 };
            assert_eq!(other, (want, "not_granted".into()), "{transport:?}");
        }
        let other = refused(&server, transport, "user=other", &session(&user));
        let want = if transport == Transport::Ws { 4403 } else { 403 };
        assert_eq!(other, (want, "not_your_user".into()), "{transport:?}");
        drop(client);
        server.until("it is gone", |server| members(server, "@crowd") == 0);
    }
    // The server calls the webhook once for each client, and not for polls of an open session.
    let events = app.events().len();
    let mut client = Client::open(&server, Transport::Longpoll, "", &session("al")).ok().unwrap();
    client.join("room:al", json!({}));
    server.publish("room:al", json!("x"));
    assert_eq!(client.until("message"), "x");
    assert_eq!(app.events().len(), events + 1);
}

#[test]
fn a_rejection_has_each_transports_words() {
    let app = Application::replying(sessions);
    let server = serve_with_webhook(&app, &[]);
    for transport in ALL {
        let forbidden = if transport == Transport::Ws { 4403 } else { 403 };
        let topic = if transport.is_phoenix() { "" } else { "topic=room:bad" };
        let got = refused(&server, transport, topic, &session("bad"));
        assert_eq!(got, (forbidden, "banned".into()), "{transport:?}");
        let unauthorized = match transport {
            Transport::Ws => 4401,
            Transport::Phoenix | Transport::Longpoll => 403,
            _ => 401,
        };
        let got = refused(&server, transport, topic, "");
        assert_eq!(got, (unauthorized, "unauthorized".into()), "{transport:?}");
    }
    let reply = request(&server, "GET", "/sse?topic=a", &session("bad"), "");
    assert_eq!(reply.body["error"]["message"], "you know why");
    let reply = request(&server, "GET", "/sse?topic=a", "", "");
    assert!(header(&reply.head, "www-authenticate").is_some(), "{}", reply.head);
    server.until("nobody is there", |server| {
        server.api("GET", "/api/stats", None).1["connections"] == 0
    });
    // Requests for resources without user data call no webhook.
    let events = app.events().len();
    for target in ["/healthz", "/favicon.ico", "/nothing"] {
        let _ = get(&server, target);
    }
    let _ = request(&server, "OPTIONS", "/sse?topic=a", "Origin: http://a\r\n", "");
    assert_eq!(app.events().len(), events);
}

#[test]
fn short_requests_need_a_decision_too() {
    let app = Application::replying(sessions);
    let server = serve_with_webhook(&app, &[]);
    server.publish("room:al", json!("before"));
    let own = format!("{}Origin: http://{}\r\n", session("al"), server.client);
    let ack = |user: &str| {
        let id = server.publish("work:1", json!(1))["id"].as_str().unwrap().to_string();
        let headers = format!("{own}Content-Type: application/json\r\n");
        let body = json!({"user": user, "topic": "work:1", "id": id}).to_string();
        request(&server, "POST", "/ack", &headers, &body)
    };
    let history = request(&server, "GET", "/history?topic=room:al", &session("al"), "");
    assert_eq!((history.status, &history.body["messages"][0]["data"]), (200, &json!("before")));
    let presence = request(&server, "GET", "/presence?topic=room:al", &session("al"), "");
    assert_eq!((presence.status, presence.body["users"].is_null()), (200, false), "{presence:?}");
    let publish = request(&server, "POST", "/publish?topic=room:al", &own, "hello");
    assert_eq!(publish.status, 200, "{publish:?}");
    // The message's sender is al, as the application has said.
    let history =
        request(&server, "GET", "/history?topic=room:al&reverse=true", &session("al"), "");
    assert_eq!(history.body["messages"][0]["sender"], "al", "{history:?}");
    assert_eq!(ack("bo").error(), (403, "not_your_user"));
    assert_eq!(ack("al").error(), (403, "not_granted"));
    for target in ["/history?topic=room:bo", "/presence?topic=room:bo"] {
        assert_eq!(request(&server, "GET", target, &session("al"), "").status, 403, "{target}");
        assert_eq!(request(&server, "GET", target, "", "").error(), (401, "unauthorized"));
    }
    assert_eq!(request(&server, "POST", "/publish?topic=room:bo", "", "x").status, 401);
    let transports: Vec<_> = app.events().iter().map(|it| it["transport"].clone()).collect();
    assert!(transports.iter().all(|it| it == "http"), "{transports:?}");
    assert_eq!(server.metric("throng_webhook_waiting"), 0.0);
}

/// A webhook reply counts for one request and not for the next one on the same connection.
#[test]
fn a_reply_is_for_one_request_alone() {
    let app = Application::replying(sessions);
    let server = serve_with_webhook(&app, &[]);
    let mut socket = Stream::new(server.connect());
    let request = |path: &str, user: &str| {
        let headers = if user.is_empty() { String::new() } else { session(user) };
        format!("GET {path} HTTP/1.1\r\nHost: t\r\n{headers}\r\n")
    };
    // Sends requests in a pipeline first, and then one after the other.
    socket.send(
        &[
            request("/poll?topic=room:al&timeout=0", "al"),
            request("/poll?topic=room:al&timeout=0", ""),
            request("/history?topic=room:al", "bo"),
            request("/healthz", ""),
            request("/history?topic=room:al", "al"),
        ]
        .concat(),
    );
    let statuses = [(); 5].map(|()| socket.read_reply().0);
    assert_eq!(statuses, [200, 401, 403, 200, 200]);
    for (user, status) in [("al", 200), ("", 401), ("bad", 403), ("al", 200)] {
        socket.send(&request("/history?topic=room:al", user));
        assert_eq!(socket.read_reply().0, status, "{user}");
    }
    assert_eq!(app.events().len(), 8);
    // The last request opens a stream, as the user of that request.
    socket.send(&request("/sse?topic=room:cy", "cy"));
    assert!(socket.head().starts_with("HTTP/1.1 200 "));
    assert_eq!((members(&server, "@cy"), members(&server, "@al")), (1, 0));
}

#[test]
fn a_token_says_who_it_is_and_the_application_gets_no_request() {
    let app = Application::replying(sessions);
    for required in ["true", "false"] {
        let settings = [("THRONG_AUTH_HMAC_KEY", KEY), ("THRONG_AUTH_REQUIRED", required)];
        let server = serve_with_webhook(&app, &settings);
        let events = app.events().len();
        for transport in ALL {
            let query = format!("token={}", token(everything("al")));
            let topics = if transport.is_phoenix() { "" } else { "&topic=room:1" };
            let client = Client::open(&server, transport, &format!("{query}{topics}"), "");
            assert!(client.is_ok(), "{transport:?}");
            let query = query.replace("token=", "token=x");
            let (status, code) = refused(&server, transport, &query, &session("al"));
            assert!(status >= 400 && code == "invalid_token", "{transport:?} {status} {code}");
        }
        assert_eq!(app.events().len(), events);
        // Without a token, the server accepts the application's reply.
        let client = Client::open(&server, Transport::Sse, "topic=room:al", &session("al"));
        assert!(client.is_ok());
        assert_eq!(refused(&server, Transport::Sse, "topic=room:al", "").0, 401);
        // A `/ws` client that has no user yet may send a token if tokens are required; other settings reject it.
        let client = Client::open(&server, Transport::Ws, "", "");
        match required {
            "true" => {
                let mut client = client.ok().unwrap();
                let token = token(everything("dora"));
                let ok = client.command(json!({"type": "connect", "token": token}));
                assert_eq!(ok["users"], json!(["dora"]), "{ok}");
            }
            _ => assert_eq!(client.err().unwrap().error(), (4401, "unauthorized")),
        }
        assert_eq!(refused(&server, Transport::Ws, "", &session("bad")), (4403, "banned".into()));
    }
}

/// A client that the application admitted without a user may name its user by a token later. A client with a user
/// can't change it.
#[test]
fn no_client_becomes_another_user_by_a_token() {
    let app = Application::replying(|event| match event["query"]["as"][0].as_str() {
        Some(user) => json!({"user": user}),
        None => json!({}),
    });
    let settings = [("THRONG_AUTH_HMAC_KEY", KEY), ("THRONG_AUTH_ANONYMOUS_GRANTS", "subscribe:a")];
    let server = serve_with_webhook(&app, &settings);
    let token = token(everything("dora"));
    let mut client = Client::open(&server, Transport::Ws, "topic=a", "").ok().unwrap();
    // The application has granted nothing here, so only the grants for anonymous clients apply.
    assert_eq!(client.command(json!({"type": "subscribe", "topic": "b"})), "not_granted");
    let ok = client.command(json!({"type": "connect", "token": token}));
    assert_eq!(ok["users"], json!(["dora"]), "{ok}");
    assert_eq!(client.command(json!({"type": "subscribe", "topic": "b"}))["topic"], "b");
    let mut client = Client::open(&server, Transport::Ws, "as=al", "").ok().unwrap();
    let connect = json!({"type": "connect", "token": token});
    assert_eq!(client.command(connect), "already_connected");
    // The application admits the user that the request names.
    let client = Client::open(&server, Transport::Sse, "user=bo", "");
    assert!(client.is_ok());
    assert_eq!(members(&server, "@bo"), 1);
}

#[test]
fn a_revocation_ends_what_the_application_let_in() {
    let app = Application::replying(sessions);
    let server = serve_with_webhook(&app, &[("THRONG_AUTH_HMAC_KEY", KEY)]);
    let mut clients: Vec<Client> = LASTING
        .iter()
        .map(|transport| Client::open(&server, *transport, "", &session("al")).ok().unwrap())
        .collect();
    let mut other = Client::open(&server, Transport::Sse, "", &session("bo")).ok().unwrap();
    let before = json!({"user": "al", "issued_before": now_s() - 60});
    assert_eq!(server.post("/api/revoke", before)["closed"], 0);
    let revoked = server.post("/api/revoke", json!({"user": "al"}));
    assert_eq!(revoked["closed"], LASTING.len(), "{revoked}");
    for (client, transport) in clients.iter_mut().zip(LASTING) {
        let reason = client.closed();
        assert!(
            transport == Transport::Longpoll || reason == "token_revoked",
            "{transport:?} {reason}"
        );
    }
    server.publish("news:bo", json!(1));
    assert_eq!(other.until("message"), 1);
}

/// This also holds without any tokens.
#[test]
fn a_client_named_by_the_application_stays_that_user() {
    let app = Application::replying(|_| json!({"user": "al"}));
    let server = serve_with_webhook(&app, &[]);
    let mut client = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
    assert_eq!(client.command(json!({"type": "login", "user": "bo"})), "not_granted");
    assert_eq!(client.command(json!({"type": "subscribe", "topic": "@bo"})), "bad_topic");
    assert_eq!(client.command(json!({"type": "subscribe", "topic": "free"}))["topic"], "free");
    assert_eq!(members(&server, "@bo"), 0);
    assert_eq!(server.post("/api/revoke", json!({"user": "al"}))["closed"], 1);
    assert_eq!(client.closed(), "token_revoked");
    // Without a webhook a client may log in as any user.
    let server = serve_with(&[]);
    let mut client = Client::open(&server, Transport::Ws, "user=al", "").ok().unwrap();
    assert!(client.command(json!({"type": "login", "user": "bo"})).is_object());
}

/// The server does not pass on cookies that a browser sends on behalf of another site's page.
#[test]
fn cookies_of_foreign_pages_are_not_passed_on() {
    let app = Application::replying(sessions);
    let server = serve_with_webhook(&app, &[("THRONG_CLIENT_CORS_ORIGINS", "*")]);
    let own = format!("{}Origin: http://{}\r\n", session("al"), server.client);
    let foreign = format!("{}Origin: http://evil.example\r\n", session("al"));
    for transport in ALL {
        let topic = if transport.is_phoenix() { "" } else { "topic=room:al&timeout=0" };
        let got = refused(&server, transport, topic, &foreign);
        assert_eq!(got.1, "unauthorized", "{transport:?}");
        // The event of an admitted poll may arrive after these.
        let path = transport.path().split('?').next().unwrap();
        let of = |origin: &str| {
            let mut events = app.events();
            events.retain(|it| it["path"] == path && it["headers"]["origin"] == origin);
            events
        };
        let event = of("http://evil.example").pop().unwrap();
        assert!(event["headers"].get("cookie").is_none(), "{event}");
        let client = Client::open(&server, transport, topic, &own);
        assert!(client.is_ok(), "{transport:?}");
        server.until("its own page's cookies come", |server| {
            let events = of(&format!("http://{}", server.client));
            events.iter().any(|it| it["headers"]["cookie"].is_string())
        });
    }
}

/// The log has nothing that the application gets about a request, whatever the result is.
#[test]
fn nothing_of_a_request_is_logged() {
    let app = Application::start(|events| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        match events[0]["headers"]["x-act"].as_str() {
            Some("fail") => crate::application::Act::Raw("HTTP/1.1 500 s3cret\r\n\r\n".into()),
            Some("hang") => crate::application::Act::Hang,
            act => crate::application::Act::Reply(
                events
                    .iter()
                    .map(|_| match act {
                        Some("refuse") => json!({"error": {"code": "banned", "message": "s3cret"}}),
                        Some("wrong") => json!({"user": 7}),
                        _ => json!({"user": "al", "info": {"a": "s3cret"}, "expires": 2}),
                    })
                    .collect(),
            ),
        }
    });
    let folder = Scratch::new("connect-log");
    // The application replies to all acts but the last in time, even on a slow machine.
    for (acts, timeout) in [(&["", "refuse", "wrong", "fail"][..], "60000"), (&["hang"], "300")] {
        let log = folder.path().join(timeout);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let settings = [
            ("THRONG_LOG_LEVEL", "trace"),
            ("THRONG_WEBHOOK_URL", &app.url()),
            ("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", timeout),
            ("THRONG_WEBHOOK_HEADERS", "cookie,authorization,x-act"),
            CONNECT,
        ];
        let file = std::fs::File::create(&log).unwrap();
        let server = Server::run_with_log(command, &settings, file.into());
        for act in acts {
            let headers = format!(
                "Cookie: session=s3cret\r\nAuthorization: Basic s3cret\r\nX-Act: {act}\r\n"
            );
            for target in ["/poll?topic=a&timeout=0", "/stream?topic=a", "/sse?topic=a"] {
                let target = format!("{target}&token=s3cret&other=s3cret");
                let mut stream = Stream::new(server.connect());
                stream.send(&format!("GET {target} HTTP/1.1\r\nHost: t\r\n{headers}\r\n"));
                let head = stream.head();
                assert_eq!(head.starts_with("HTTP/1.1 200 "), act.is_empty(), "{act} {head}");
            }
        }
        server.until("it was asked", |server| server.metric("throng_webhook_waiting") == 0.0);
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(text.contains("webhook") && text.contains("TRACE"), "it logs what it does");
        let secrets: Vec<&str> = text.lines().filter(|line| line.contains("s3cret")).collect();
        assert!(secrets.is_empty(), "{secrets:#?}");
    }
}

#[test]
fn the_application_gets_the_events_that_the_configuration_names() {
    let app = Application::replying(|_| json!({"user": "al"}));
    let settings = [
        ("THRONG_WEBHOOK_HEADERS", "x-secret,x-tenant"),
        ("THRONG_CLIENT_TRUSTED_PROXIES", "127.0.0.1"),
    ];
    let server = serve_with_webhook(&app, &settings);
    let headers =
        "Cookie: a=b\r\nX-Secret: one\r\nX-Secret: two\r\nX-Forwarded-For: 203.0.113.9\r\n";
    let target = "/history?topic=room:1&token=own&topic_token=t&x=%20";
    assert_eq!(request(&server, "GET", target, headers, "").status, 200);
    let event = app.events().pop().unwrap();
    assert_eq!(event["headers"], json!({"x-secret": "one, two"}));
    assert_eq!(event["address"], "203.0.113.9");
    // Without [auth] the parameter `token` belongs to the application.
    let query = json!({"topic": ["room:1"], "token": ["own"], "topic_token": ["t"], "x": [" "]});
    assert_eq!(event["query"], query);
    let server = serve_with_webhook(&app, &[("THRONG_AUTH_HMAC_KEY", KEY)]);
    let query =
        format!("/history?topic=room:1&topic_token={}", token(json!({"sub": "a", "topic": "b"})));
    let _ = get(&server, &query);
    assert_eq!(app.events().pop().unwrap()["query"], json!({"topic": ["room:1"]}));
}
