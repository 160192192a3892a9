//! Wrong, late and missing replies of the application.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::application::{Act, Application, Reserved};
use crate::connect::{refused, serve_with_webhook, serve_with_webhook_at};
use crate::support::*;
use crate::tokens::support::*;

const SOON: (&str, &str) = ("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "300");

#[test]
fn what_a_silent_application_means_is_a_setting() {
    let closed = Reserved::new();
    let hang = Application::start(|_| Act::Hang);
    let oops =
        Application::start(|_| Act::Raw("HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\nno".into()));
    for url in [format!("http://{}/", closed.address), hang.url(), oops.url()] {
        let denies = serve_with_webhook_at(&url, &[SOON]);
        let allows = serve_with_webhook_at(&url, &[SOON, ("THRONG_WEBHOOK_SILENCE", "allow")]);
        let tokens = [("THRONG_AUTH_HMAC_KEY", KEY), REQUIRED];
        let allows_tokens = serve_with_webhook_at(
            &url,
            &[&[SOON, ("THRONG_WEBHOOK_SILENCE", "allow")], &tokens[..]].concat(),
        );
        for transport in ALL {
            let query =
                if transport.is_phoenix() { "user=al" } else { "user=al&topic=room:1&timeout=0" };
            let (status, code) = refused(&denies, transport, query, "");
            let want = if transport == Transport::Longpoll { 500 } else { 503 };
            assert_eq!((status, &*code), (want, "unanswered"), "{url} {transport:?}");
            // With this setting the server admits the client as if there were no webhook: as the user that it names,
            // or by a token.
            assert!(Client::open(&allows, transport, query, "").is_ok(), "{url} {transport:?}");
            let (status, code) = refused(&allows_tokens, transport, query, "");
            assert!([401, 403, 4401].contains(&status), "{url} {transport:?} {status}");
            assert_eq!(code, "token_required", "{url} {transport:?}");
        }
        assert_eq!(denies.metric("throng_webhook_asked_total"), ALL.len() as f64, "{url}");
        assert_eq!(denies.metric("throng_webhook_events_total{result=\"ok\"}"), 0.0, "{url}");
    }
}

#[test]
fn a_full_queue_is_a_silence_too() {
    let hang = Application::start(|_| Act::Hang);
    for (silence, status) in [("deny", 503), ("allow", 200)] {
        let settings = [
            ("THRONG_WEBHOOK_SILENCE", silence),
            ("THRONG_WEBHOOK_QUEUE_EVENTS_MAX", "2"),
            ("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "60000"),
        ];
        let server = serve_with_webhook(&hang, &settings);
        let mut first = server.connect();
        first.write_all(b"GET /sse?topic=a HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        server.until("it waits", |server| server.metric("throng_webhook_waiting") == 1.0);
        let reply = get(&server, "/poll?topic=a&timeout=0");
        assert_eq!(reply.status, status, "{reply:?}");
        if status == 503 {
            assert_eq!(reply.error().1, "overloaded");
        }
        // A client that goes away before the application replies leaves nothing behind.
        drop(first);
        server.until("it is gone", |server| {
            server.api("GET", "/api/stats", None).1["connections"] == 0
        });
    }
}

/// An invalid reply is the application's error: the server rejects that client, and admits the others of the same
/// webhook request.
#[test]
fn wrong_responses_admit_no_client() {
    let long = |bytes: usize| "x".repeat(bytes);
    let many: Vec<String> = (0..200).map(|n| format!("t{n}")).collect();
    let wrong = [
        json!({"user": 7}),
        json!({"user": ""}),
        json!({"user": "a\u{0}"}),
        json!({"user": long(300)}),
        json!({"users": "al"}),
        json!({"users": ["al", ""]}),
        json!({"users": many}),
        json!({"topics": "a"}),
        json!({"topics": [""]}),
        json!({"topics": ["@al"]}),
        json!({"topics": ["*"]}),
        json!({"topics": many}),
        json!({"grants": []}),
        json!({"grants": {"subscribe": "a"}}),
        json!({"grants": {"subscribe": many}}),
        json!({"grants": {"everything": ["*"]}}),
        json!({"grants": {"subscribe": [long(300)]}}),
        json!({"grants": {"info": {}}}),
        json!({"info": []}),
        json!({"info": "x"}),
        json!({"info": {"x": long(5_000)}}),
        json!({"expires": 0}),
        json!({"expires": -1}),
        json!({"expires": 1.5}),
        json!({"expires": "60"}),
        json!({"expires": 1u64 << 40}),
        json!({"status": "perhaps"}),
        json!([]),
        json!("ok"),
    ];
    let replies = wrong.clone();
    let app = Application::start(move |events| {
        let reply = |event: &Value| match event["query"]["case"][0].as_str() {
            Some(case) => replies[case.parse::<usize>().unwrap()].clone(),
            None => json!({}),
        };
        // The wait lets several events gather in one webhook request.
        std::thread::sleep(Duration::from_millis(5));
        Act::Reply(events.iter().map(reply).collect())
    });
    let server = serve_with_webhook(&app, &[("THRONG_LIMITS_TOPICS_PER_CONNECTION_MAX", "50")]);
    std::thread::scope(|scope| {
        for (case, reply) in wrong.iter().enumerate() {
            let server = &server;
            scope.spawn(move || {
                let got = get(server, &format!("/poll?topic=a&timeout=0&case={case}"));
                assert_eq!(got.error(), (503, "unanswered"), "{reply}");
                assert_eq!(get(server, "/poll?topic=a&timeout=0").status, 200, "{reply}");
            });
        }
    });
    assert_eq!(server.metric("throng_webhook_events_total{result=\"body\"}"), wrong.len() as f64);
}

#[test]
fn what_is_left_out_is_as_it_was() {
    let app = Application::replying(|event| match event["query"]["case"][0].as_str() {
        Some("null") => json!({"user": null, "users": null, "grants": null, "topics": null,
                               "info": null, "expires": null, "error": null}),
        Some("nobody") => json!({"users": []}),
        Some("refused") => json!({"error": {"code": "NOT A CODE", "message": 7}}),
        _ => json!({}),
    });
    let server = serve_with_webhook(&app, &[]);
    for case in ["none", "null"] {
        let target = format!("user=al&topic=room:1&case={case}");
        let client = Client::open(&server, Transport::Stream, &target, "");
        assert!(client.is_ok());
        assert_eq!((members(&server, "@al"), members(&server, "room:1")), (1, 1), "{case}");
        drop(client);
        server.until("it is gone", |server| members(server, "room:1") == 0);
    }
    // An empty body admits the client, as it does for other webhooks.
    let empty = Application::start(|_| {
        Act::Raw("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n".into())
    });
    assert!(Client::open(&serve_with_webhook(&empty, &[]), Transport::Sse, "user=al", "").is_ok());
    // The application admits the client without a user, whatever user the request names.
    let got = refused(&server, Transport::Sse, "user=al&case=nobody", "");
    assert_eq!(got, (403, "not_your_user".into()));
    assert!(Client::open(&server, Transport::Sse, "case=nobody", "").is_ok());
    assert_eq!(refused(&server, Transport::Sse, "case=refused", ""), (403, "forbidden".into()));
}

/// The client enters topics that the application gives like topics of the request, but needs no grant for them.
#[test]
fn given_topics_are_entered_by_the_applications_word() {
    let app = Application::replying(
        |_| json!({"user": "al", "grants": {}, "topics": ["closed:1", "room:1", "room:1"]}),
    );
    let server = serve_with_webhook(&app, &[("THRONG_LIMITS_TOPICS_PER_CONNECTION_MAX", "4")]);
    let since = server.publish("room:1", json!("old"))["id"].as_str().unwrap().to_string();
    server.publish("room:1", json!("missed"));
    let target = format!("/stream?topic=closed:1&since={since}");
    let mut stream = Stream::new(server.connect());
    stream.send(&format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n"));
    stream.head();
    let welcome = stream.next_object();
    assert_eq!(welcome["topics"], json!(["closed:1", "room:1"]), "{welcome}");
    let missed = loop {
        let object = stream.next_object();
        if object["type"] == "message" {
            break object;
        }
    };
    assert_eq!(missed["data"], "missed", "{missed}");
    assert_eq!((members(&server, "closed:1"), members(&server, "room:1")), (1, 1));
    // Topics that the client names need grants. The limit counts both kinds.
    assert_eq!(
        refused(&server, Transport::Stream, "topic=room:2", ""),
        (403, "not_granted".into())
    );
    let all = "topic=room:2&topic=room:3";
    assert_eq!(refused(&server, Transport::Stream, all, ""), (400, "too_many_topics".into()));
}
