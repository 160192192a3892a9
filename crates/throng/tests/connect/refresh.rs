//! Connections that the application admits for a limited time.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tungstenite::Message;

use crate::application::{Act, Application};
use crate::connect::{CONNECT, serve_with_webhook};
use crate::support::*;
use crate::tokens::support::*;

/// A long-poll session outlives its client's silence: the client polls only where a test reads.
const LONG_POLLS: (&str, &str) = ("THRONG_TIMEOUTS_LONGPOLL_SECONDS", "60");

const NO_SPREAD: (&str, &str) = ("THRONG_AUTH_EXPIRY_SPREAD_SECONDS", "0");

/// How long the application admits a connection, in seconds. The server requests a refresh when half of this time is
/// left, and the application has the other half to reply.
const SECONDS: u64 = 6;

/// Waits until a connection is older than its first admission. It only survives this if the server has requested a
/// refresh.
fn outlive() {
    std::thread::sleep(Duration::from_secs(SECONDS / 2 + 2));
}

fn refreshes(app: &Application) -> Vec<Value> {
    app.of(&["refresh"])
}

#[test]
fn a_connection_stays_while_the_application_says_so() {
    let app = Application::replying(|event| match event["kind"].as_str() {
        Some("connect") => {
            let user = event["query"]["as"][0].as_str().unwrap();
            json!({"user": user, "expires": SECONDS, "grants": {"subscribe": ["room:{sub}"]}})
        }
        _ => json!({"expires": SECONDS, "grants": {"subscribe": ["room:{sub}", "more"]}}),
    });
    let server = serve_with_webhook(&app, &[NO_SPREAD, LONG_POLLS]);
    std::thread::scope(|scope| {
        for transport in LASTING {
            let (server, app) = (&server, &app);
            scope.spawn(move || {
                let user = format!("{transport:?}").to_lowercase();
                let chat = format!("room:{user}");
                let topics =
                    if transport.is_phoenix() { String::new() } else { format!("&topic={chat}") };
                let mut client = Client::open(server, transport, &format!("as={user}{topics}"), "")
                    .ok()
                    .unwrap();
                if transport.is_phoenix() {
                    assert_eq!(client.join(&chat, json!({}))["status"], "ok");
                    assert_eq!(client.join("more", json!({}))["status"], "error");
                }
                // The second refresh follows the time limit of the first refresh's reply.
                app.until("it was asked twice", |events| {
                    let own = |it: &&Value| it["kind"] == "refresh" && it["user"] == *user;
                    events.iter().filter(own).count() >= 2
                });
                outlive();
                // The client gets no notice of the refreshes.
                server.publish(&chat, json!("still"));
                loop {
                    let (name, value) = client.event();
                    assert!(name != "token_expiring" && name != "closed", "{transport:?} {value}");
                    if name == "message" {
                        assert_eq!(value, "still");
                        break;
                    }
                }
                // The refresh has given the client one more grant.
                match transport {
                    Transport::Ws => {
                        let ok = client.command(json!({"type": "subscribe", "topic": "more"}));
                        assert_eq!(ok["topic"], "more");
                    }
                    Transport::Phoenix => {
                        assert_eq!(client.join("more", json!({}))["status"], "ok");
                    }
                    _ => {}
                }
            });
        }
    });
    let event = refreshes(&app).into_iter().find(|it| it["user"] == "sse").unwrap();
    let want = json!({"kind": "refresh", "user": "sse", "users": ["sse"],
                      "connection": event["connection"], "transport": "sse"});
    assert_eq!(event, want);
}

/// How long the application admits connections that must not end before this time.
const BRIEF: Duration = Duration::from_secs(2);

/// The parts of a second in which each admission begins.
const PHASES: u32 = 4;

#[test]
fn no_admission_ends_early() {
    let app = Application::replying(|event| match event["kind"].as_str() {
        Some("connect") => json!({"user": "al", "expires": BRIEF.as_secs()}),
        _ => json!({"status": "error"}),
    });
    let server = &serve_with_webhook(&app, &[NO_SPREAD]);
    std::thread::scope(|scope| {
        for transport in ALL {
            for phase in 0..PHASES {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_secs(1) * phase / PHASES);
                    let began = Instant::now();
                    let topics = if transport.is_phoenix() { "" } else { "topic=plain" };
                    let mut client = Client::open(server, transport, topics, "").ok().unwrap();
                    match transport {
                        // A poll ends with the messages that it has.
                        Transport::Poll => assert_eq!(client.event().0, "message"),
                        _ => drop(client.closed()),
                    }
                    let after = began.elapsed();
                    assert!(after >= BRIEF, "{transport:?} ended after {after:?}");
                });
            }
        }
    });
}

#[test]
fn who_may_not_stay_ends_as_with_an_expired_token() {
    let settings = [NO_SPREAD, ("THRONG_WEBHOOK_EVENTS", "disconnected")];
    let refreshes_end = |refresh: Act| {
        let said = match &refresh {
            Act::Reply(replies) => replies[0].to_string(),
            Act::Raw(raw) => raw.clone(),
            Act::Hang => "nothing".into(),
        };
        let refresh = Mutex::new(Some(refresh));
        let app = Application::start(move |events| match events[0]["kind"].as_str() {
            Some("connect") => Act::Reply(vec![json!({"user": "al", "expires": 2})]),
            Some("refresh") => {
                // The server requests a refresh exactly once.
                refresh.lock().unwrap().take().unwrap()
            }
            _ => Act::Reply(vec![json!({})]),
        });
        let server = serve_with_webhook(&app, &settings);
        let began = now_s();
        let mut client = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
        assert_eq!(client.closed(), "token_expired", "{said}");
        assert!(now_s() >= began + 2, "{said}");
        let events = app.until("its end is told", |events| {
            events.iter().any(|event| event["kind"] == "disconnected")
        });
        let end = events.iter().find(|event| event["kind"] == "disconnected").unwrap();
        assert_eq!((&end["reason"], &end["user"]), (&json!("token_expired"), &json!("al")));
        assert_eq!(refreshes(&app).len(), 1, "{said}");
    };
    std::thread::scope(|scope| {
        for refresh in [
            Act::Reply(vec![json!({"status": "error"})]),
            Act::Reply(vec![json!({"error": {"code": "gone"}})]),
            Act::Reply(vec![json!({"expires": 0})]),
            Act::Raw("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".into()),
            Act::Hang,
        ] {
            scope.spawn(|| refreshes_end(refresh));
        }
    });
}

#[test]
fn a_client_with_requests_of_its_own_needs_a_decision_all_the_same() {
    let app = Application::start(|events| match events[0]["kind"].as_str() {
        Some("connect") => {
            let grants = json!({"publish": ["asked:*"]});
            Act::Reply(vec![json!({"user": "al", "expires": SECONDS, "grants": grants})])
        }
        Some("publish") => Act::Hang,
        _ => Act::Reply(vec![json!({"status": "error"}); events.len()]),
    });
    let server = serve_with_requests(&app, &[NO_SPREAD, CONNECT]);
    let began = now_s();
    let mut client = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
    let Wire::Ws(socket) = &mut client.wire else { unreachable!() };
    for id in 0..300 {
        let publish = json!({"type": "publish", "id": id, "topic": "asked:1", "data": 1});
        socket.write(Message::text(publish.to_string())).unwrap();
    }
    socket.flush().unwrap();
    assert_eq!(client.closed(), "token_expired");
    assert!(now_s() >= began + SECONDS);
    assert!(!app.of(&["publish"]).is_empty());
}

#[test]
fn silence_that_allows_lets_a_connection_stay() {
    let app = Application::start(|events| match events[0]["kind"].as_str() {
        Some("connect") => Act::Reply(vec![json!({"user": "al", "expires": SECONDS})]),
        _ => Act::Raw("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".into()),
    });
    let settings = [
        NO_SPREAD,
        ("THRONG_WEBHOOK_SILENCE", "allow"),
        ("THRONG_AUTH_EXPIRY_WARNING_SECONDS", "1"),
    ];
    let server = serve_with_webhook(&app, &settings);
    let mut client = Client::open(&server, Transport::Sse, "topic=room:1", "").ok().unwrap();
    app.until("it was asked", |events| events.iter().any(|event| event["kind"] == "refresh"));
    outlive();
    server.publish("room:1", json!("still"));
    assert_eq!(client.until("message"), "still");
}

/// An admission without a time limit has no refreshes. Each poll calls the webhook anew, and ends at its time limit
/// with the messages that it has.
#[test]
fn a_connection_without_an_end_is_not_requested_again() {
    let app = Application::replying(|event| match event["path"].as_str() {
        Some("/poll") => json!({"user": "al", "expires": 1}),
        Some(_) => json!({"user": "al", "expires": SECONDS}),
        None => json!({}),
    });
    let server = serve_with_webhook(&app, &[NO_SPREAD]);
    let mut client = Client::open(&server, Transport::Stream, "topic=room:1", "").ok().unwrap();
    let mut poll = Stream::new(server.connect());
    poll.send("GET /poll?topic=room:1&timeout=120 HTTP/1.1\r\nHost: t\r\n\r\n");
    let (status, body) = poll.read_reply();
    assert_eq!(status, 200, "{body}");
    app.until("it was asked", |events| events.iter().any(|event| event["kind"] == "refresh"));
    outlive();
    server.publish("room:1", json!("still"));
    assert_eq!(client.until("message"), "still");
    assert_eq!(refreshes(&app).len(), 1);
}
