//! Users that the application logs in and out.

use serde_json::json;

use super::fake::{Mood, bench};

#[tokio::test]
async fn a_login_is_requested_of_the_connections_shard() {
    let bench = bench(Mood::Willing);
    let body = json!({"connection": "00000009-1-12-345", "user": "alice"});
    let reply = bench.post("/api/login", &body).await;
    assert_eq!(reply.json(), json!({"user": "alice", "users": 2, "already": false}));
    let reply = bench.post("/api/logout", &body).await;
    assert_eq!(reply.json(), json!({"user": "alice", "users": 1}));
    assert_eq!(
        *bench.commands.lock().unwrap(),
        ["1 login 00000009-1-12-345 alice", "1 logout 00000009-1-12-345 alice"]
    );
}

#[tokio::test]
async fn what_can_not_be_is_named() {
    let bench = bench(Mood::Willing);
    for (status, code, body) in [
        (400, "bad_user", json!({"connection": "00000009-0-1-2", "user": ""})),
        (400, "bad_user", json!({"connection": "00000009-0-1-2", "user": "a\n"})),
        (400, "bad_connection", json!({"connection": "x", "user": "a"})),
        (400, "bad_request", json!({"user": "a"})),
        (400, "bad_request", json!({"connection": "00000009-0-1-2", "user": "a", "topic": "t"})),
        (404, "no_connection", json!({"connection": "00000009-7-1-2", "user": "a"})),
        (404, "no_connection", json!({"connection": "00000009-0-1-2", "user": "gone"})),
        (409, "too_many_topics", json!({"connection": "00000009-0-1-2", "user": "full"})),
        (409, "not_logged_in", json!({"connection": "00000009-0-1-2", "user": "nobody"})),
    ] {
        for call in ["/api/login", "/api/logout"] {
            let reply = bench.post(call, &body).await;
            assert_eq!((reply.status, reply.code().as_str()), (status, code), "{call} {body}");
        }
    }
    let ended = super::fake::bench(Mood::Ended);
    let reply =
        ended.post("/api/login", json!({"connection": "00000009-0-1-2", "user": "a"})).await;
    assert_eq!(reply.status, 503);
}
