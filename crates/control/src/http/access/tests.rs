//! Tests of keys and sign-ins, through the whole router.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use model::name::BROADCAST;
use serde_json::json;

use crate::tests::fake::{Bench, Mood, TestReply, access, bench};

/// Keys with each scope. The text of each is its name, twice.
fn node() -> Bench {
    let bench = bench(Mood::Willing);
    bench.node.access.set(access(&[
        ("root", &["admin"]),
        ("eyes", &["read"]),
        ("rooms", &["publish:room:*", "publish:@al"]),
    ]));
    bench
}

async fn call(
    bench: &Bench,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: String,
) -> TestReply {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    bench.call(request.body(Body::from(body)).unwrap()).await
}

async fn with_key(
    bench: &Bench,
    method: &str,
    path: &str,
    key: &str,
    body: impl ToString,
) -> TestReply {
    let bearer = format!("Bearer {key}");
    call(bench, method, path, &[("authorization", &bearer)], body.to_string()).await
}

fn outcome(reply: &TestReply) -> (u16, String) {
    (reply.status, if reply.status < 300 { String::new() } else { reply.code() })
}

#[tokio::test]
async fn every_key_does_what_its_scopes_say() {
    let bench = node();
    let publish = |topic: &str| json!({"topic": topic, "data": 1}).to_string();
    for (key, method, path, body, want) in [
        ("rootroot", "GET", "/api/stats", String::new(), (200, "")),
        ("rootroot", "POST", "/api/publish", publish("news"), (200, "")),
        ("eyeseyes", "GET", "/api/stats", String::new(), (200, "")),
        ("eyeseyes", "GET", "/metrics", String::new(), (200, "")),
        ("eyeseyes", "POST", "/api/publish", publish("room:1"), (403, "insufficient_scope")),
        ("eyeseyes", "DELETE", "/api/history/log:1", String::new(), (403, "insufficient_scope")),
        ("roomsrooms", "GET", "/api/stats", String::new(), (403, "insufficient_scope")),
        ("roomsrooms", "POST", "/api/publish", publish("room:1"), (200, "")),
        ("roomsrooms", "POST", "/api/publish", publish("news"), (403, "insufficient_scope")),
        (
            "roomsrooms",
            "POST",
            "/api/send",
            json!({"user": "al", "data": 1}).to_string(),
            (200, ""),
        ),
        (
            "roomsrooms",
            "POST",
            "/api/send",
            json!({"user": "bo", "data": 1}).to_string(),
            (403, "insufficient_scope"),
        ),
        (
            "roomsrooms",
            "POST",
            "/api/broadcast",
            json!({"data": 1}).to_string(),
            (403, "insufficient_scope"),
        ),
        ("roomsrooms", "GET", "/api/session", String::new(), (200, "")),
        ("wrongwrong", "GET", "/api/stats", String::new(), (401, "bad_key")),
        ("rootroot ", "GET", "/api/stats", String::new(), (200, "")),
        ("rootroot", "GET", "/api/nothing", String::new(), (404, "not_found")),
        ("wrongwrong", "GET", "/api/nothing", String::new(), (401, "bad_key")),
        ("wrongwrong", "GET", "/healthz", String::new(), (200, "")),
    ] {
        let reply = with_key(&bench, method, path, key, &body).await;
        let (status, code) = outcome(&reply);
        assert_eq!((status, &*code), want, "{key} {method} {path} {body}");
    }
    let rejected = with_key(&bench, "POST", "/api/publish", "roomsrooms", publish("news")).await;
    let authenticate = &rejected.headers["www-authenticate"];
    assert_eq!(authenticate, "Bearer error=\"insufficient_scope\", scope=\"publish\"");
    let message = rejected.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("\"rooms\"") && message.contains("\"publish:news\""), "{message}");
    assert_eq!(bench.get("/api/stats").await.headers["www-authenticate"], "Bearer");
    let metrics = with_key(&bench, "GET", "/metrics", "eyeseyes", "").await.text;
    for line in [
        "throng_api_key_calls_total{key=\"root\"} 4.0",
        "throng_api_key_calls_total{key=\"rooms\"} 8.0",
        "throng_admin_calls_refused_total{reason=\"bad_key\"} 2.0",
        "throng_admin_calls_refused_total{reason=\"no_key\"} 1.0",
        "throng_admin_sessions 0.0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn every_command_of_a_batch_needs_its_own_scope() {
    let bench = node();
    let batch = json!({"commands": [
        {"publish": {"topic": "room:1", "data": 1}},
        {"publish": {"topic": "news", "data": 1}},
        {"send": {"user": "al", "data": 1}},
        {"broadcast": {"data": 1}},
        {"disconnect": {"user": "al"}},
        {"subscribe": {"user": "al", "topic": "room:1"}},
    ]});
    let reply = with_key(&bench, "POST", "/api/batch", "roomsrooms", &batch).await.json();
    let codes: Vec<&str> = reply["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| result["error"]["code"].as_str().unwrap_or("ok"))
        .collect();
    let no = "insufficient_scope";
    assert_eq!(codes, ["ok", no, "ok", no, no, no], "{reply}");
    let topics: Vec<String> =
        bench.published.lock().unwrap().iter().map(|it| it.topic.to_string()).collect();
    assert_eq!(topics, ["room:1", "@al"]);
    assert!(bench.commands.lock().unwrap().is_empty());
    let everyone = json!({"data": 1});
    bench.node.access.set(access(&[("all", &["publish:*"])]));
    assert_eq!(with_key(&bench, "POST", "/api/broadcast", "allall", everyone).await.status, 200);
    assert_eq!(bench.published.lock().unwrap().last().unwrap().topic, BROADCAST);
}

#[tokio::test]
async fn a_key_ends_with_its_time_and_with_a_reload() {
    let bench = node();
    let mut settings = access(&[("eyes", &["read"])]);
    settings.keys[0].expires = Some(1);
    bench.node.access.set(settings);
    let reply = with_key(&bench, "GET", "/api/stats", "eyeseyes", "").await;
    assert_eq!((reply.status, &*reply.code()), (401, "expired_key"));
    assert_eq!(reply.headers["www-authenticate"], "Bearer error=\"invalid_token\"");
    // A node is closed, not open, when all its keys have expired.
    assert_eq!(bench.get("/api/stats").await.code(), "no_key");
    bench.node.access.set(access(&[("eyes", &["read"])]));
    assert_eq!(with_key(&bench, "GET", "/api/stats", "eyeseyes", "").await.status, 200);
    bench.node.access.set(access(&[]));
    assert_eq!(bench.get("/api/stats").await.status, 200);
}

/// Signs a browser in with a key, and returns the cookie that it sends.
async fn signed_in(bench: &Bench, key: &str) -> String {
    let reply = call(bench, "POST", "/api/session", &[], json!({ "key": key }).to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let cookie = reply.headers["set-cookie"].to_str().unwrap().to_owned();
    let (pair, attributes) = cookie.split_once(';').unwrap();
    assert_eq!(attributes, " Path=/; Max-Age=3600; HttpOnly; SameSite=Strict");
    assert!(!cookie.contains(key), "{cookie}");
    pair.to_owned()
}

#[tokio::test]
async fn a_browser_signs_in_and_out() {
    let bench = node();
    let cookie = signed_in(&bench, "eyeseyes").await;
    let by = |method: &'static str, path: &'static str, more: &'static [(&str, &str)]| {
        let (bench, cookie) = (&bench, cookie.clone());
        async move {
            let headers = [&[("cookie", cookie.as_str())], more].concat();
            outcome(&call(bench, method, path, &headers, "{}".into()).await)
        }
    };
    let refused = |code: &str| (403, code.to_owned());
    let session = call(&bench, "GET", "/api/session", &[("cookie", &cookie)], String::new()).await;
    assert_eq!(session.json(), json!({"key": "eyes", "scopes": ["read"]}));
    let own = &[("x-throng-session", "1")];
    for (method, path, more, want) in [
        ("GET", "/api/stats", &[][..], (200, String::new())),
        ("GET", "/api/stats", &[("sec-fetch-site", "same-origin")], (200, String::new())),
        ("GET", "/api/stats", &[("sec-fetch-site", "none")], (200, String::new())),
        ("GET", "/api/stats", &[("sec-fetch-site", "same-site")], refused("cross_origin")),
        ("GET", "/api/stats", &[("sec-fetch-site", "cross-site")], refused("cross_origin")),
        ("GET", "/api/stats", &[("origin", "http://evil.example")], refused("cross_origin")),
        ("GET", "/api/stats", &[("host", "evil.example:8001")], refused("bad_host")),
        ("POST", "/api/publish", &[], refused("cross_origin")),
        ("POST", "/api/publish", own, refused("insufficient_scope")),
        ("DELETE", "/api/session", &[], refused("cross_origin")),
        ("DELETE", "/api/session", own, (204, String::new())),
        ("GET", "/api/stats", &[], (401, "no_session".into())),
    ] {
        let got = by(method, path, more).await;
        assert_eq!(got, want, "{method} {path} {more:?}");
    }
    let root = signed_in(&bench, "rootroot").await;
    let headers = [("cookie", root.as_str()), ("x-throng-session", "1")];
    let body = json!({"topic": "news", "data": 1}).to_string();
    assert_eq!(call(&bench, "POST", "/api/publish", &headers, body).await.status, 200);
    // A key counts before a cookie.
    let headers = [("cookie", root.as_str()), ("authorization", "Bearer wrong")];
    let reply = call(&bench, "GET", "/api/stats", &headers, String::new()).await;
    assert_eq!(outcome(&reply), (401, "bad_key".into()));
}

#[tokio::test]
async fn a_sign_in_comes_from_the_nodes_own_page() {
    let bench = node();
    let body = || json!({"key": "rootroot"}).to_string();
    for (headers, want) in [
        (&[("host", "throng.example")][..], (200, "")),
        (&[("host", "evil.example")], (403, "bad_host")),
        (&[("origin", "http://evil.example")], (403, "cross_origin")),
        (&[("origin", "null")], (403, "cross_origin")),
        (&[("sec-fetch-site", "cross-site")], (403, "cross_origin")),
        (&[("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:8001")], (200, "")),
    ] {
        let reply = call(&bench, "POST", "/api/session", headers, body()).await;
        let (status, code) = outcome(&reply);
        assert_eq!((status, &*code), want, "{headers:?}");
    }
    let headers = [("host", "throng.example"), ("origin", "https://throng.example")];
    let reply = call(&bench, "POST", "/api/session", &headers, body()).await;
    let cookie = reply.headers["set-cookie"].to_str().unwrap();
    assert!(
        cookie.starts_with("__Host-throng_session=") && cookie.ends_with("; Secure"),
        "{cookie}"
    );
    let publisher = json!({"key": "roomsrooms"}).to_string();
    let reply = call(&bench, "POST", "/api/session", &[], publisher).await;
    assert_eq!(outcome(&reply), (403, "insufficient_scope".into()));
    bench.node.access.set(access(&[]));
    assert_eq!(call(&bench, "POST", "/api/session", &[], body()).await.code(), "no_keys");
    let open = bench.get("/api/session").await.json();
    assert_eq!(open, json!({"key": null, "scopes": ["admin"]}));
}

#[tokio::test]
async fn a_client_that_guesses_keys_has_to_wait() {
    let bench = node();
    let try_with = |key: &'static str| {
        let body = json!({ "key": key }).to_string();
        call(&bench, "POST", "/api/session", &[], body)
    };
    for _ in 0..10 {
        assert_eq!(try_with("guess").await.code(), "bad_key");
    }
    let reply = try_with("rootroot").await;
    assert_eq!((reply.status, &*reply.code()), (429, "too_many_attempts"));
    let wait: u64 = reply.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    // A program with the key does not wait.
    assert_eq!(with_key(&bench, "GET", "/api/stats", "rootroot", "").await.status, 200);
}

#[tokio::test]
async fn a_session_and_what_it_reads_end_with_its_key() {
    let bench = node();
    let cookie = signed_in(&bench, "eyeseyes").await;
    let caller = {
        let ring = bench.node.access.ring();
        bench.node.access.by_session(&ring, cookie.split_once('=').unwrap().1).unwrap()
    };
    let is_valid = || bench.node.access.is_valid(&caller, super::RequiredScope::Read);
    assert!(is_valid());
    bench.node.access.set(access(&[("root", &["admin"]), ("eyes", &["publish:a"])]));
    assert!(!is_valid(), "the scope is gone");
    let headers = [("cookie", cookie.as_str())];
    let get = || call(&bench, "GET", "/api/stats", &headers, String::new());
    assert_eq!(get().await.code(), "insufficient_scope");
    bench.node.access.set(access(&[("root", &["admin"])]));
    assert!(!is_valid());
    assert_eq!(get().await.code(), "no_session");
    // The session doesn't come back with the key.
    bench.node.access.set(access(&[("root", &["admin"]), ("eyes", &["read"])]));
    assert_eq!(get().await.code(), "no_session");
}

#[test]
fn counts_go_on_under_a_keys_name() {
    let access = crate::Access::new(access(&[("a", &["read"]), ("b", &["read"])]));
    let caller = access.by_token(&access.ring(), "aa").unwrap();
    caller.count();
    let mut other = crate::tests::fake::access(&[("c", &["read"]), ("a", &["admin"])]);
    other.keys[1].hash = [9; 32];
    access.set(other);
    assert_eq!(access.stats().calls, [("c".into(), 0), ("a".into(), 1)]);
    let _: Arc<crate::Access> = access;
}
