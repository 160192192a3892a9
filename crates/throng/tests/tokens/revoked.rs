//! Tokens that are revoked.

use serde_json::{Value, json};

use crate::support::*;
use crate::tokens::support::*;

fn revoke(server: &Server, body: Value) -> u64 {
    server.post("/api/revoke", body)["closed"].as_u64().unwrap()
}

/// A token of each way, its connection, and the code of what it is answered then.
fn opened(server: &Server, way: Way, claims: Value) -> (Client, String) {
    let token = token(claims);
    let topic = format!("room:{way:?}");
    if way == Way::Poll {
        let target = format!("topic={topic}&token={token}");
        let before = members(server, &topic);
        let client = Client::open(server, way, &target, "").ok().unwrap();
        server.until("it waits", |server| members(server, &topic) == before + 1);
        return (client, token);
    }
    (Client::enter(server, way, &token, &topic), token)
}

fn is_refused(server: &Server, way: Way, token: &str) {
    if way == Way::Poll {
        let reply = get(server, &format!("/poll?topic=room:1&token={token}"));
        assert_eq!(reply.error(), (401, "token_revoked"));
        return;
    }
    let reply = Client::open(server, way, &format!("token={token}"), "").err().unwrap();
    assert_eq!(reply.error().1, "token_revoked", "{way:?}");
}

fn is_closed(client: &mut Client, way: Way) {
    let reason = client.closed();
    if way != Way::Longpoll {
        assert_eq!(reason, "token_revoked", "{way:?}");
    }
}

#[test]
fn a_revoked_token_closes_its_connections_and_counts_no_more() {
    let server = serve(&[REQUIRED]);
    let now = now_s();
    for way in ALL {
        let (al, bo) = (format!("al-{way:?}"), format!("bo-{way:?}"));
        let claims = |user: &str, jti: &str, iat: u64| {
            with(everything(user), json!({"jti": jti, "iat": iat}))
        };
        // By its name.
        let (mut one, one_token) = opened(&server, way, claims(&al, &format!("one-{way:?}"), now));
        assert_eq!(revoke(&server, json!({"jti": format!("one-{way:?}")})), 1, "{way:?}");
        is_closed(&mut one, way);
        is_refused(&server, way, &one_token);
        // By its user, up to a time: who has a newer one stays.
        let (mut old, old_token) = opened(&server, way, claims(&al, "old", now - 10));
        assert_eq!(revoke(&server, json!({"user": al, "issued_before": now - 100})), 0, "{way:?}");
        assert_eq!(revoke(&server, json!({"user": al, "issued_before": now - 5})), 1, "{way:?}");
        is_closed(&mut old, way);
        is_refused(&server, way, &old_token);
        let (mut new, new_token) = opened(&server, way, claims(&al, "new", now));
        // All of it, and nobody else's.
        let (mut other, other_token) = opened(&server, way, claims(&bo, "other", now));
        assert_eq!(revoke(&server, json!({"user": al})), 1, "{way:?}");
        is_closed(&mut new, way);
        is_refused(&server, way, &new_token);
        server.publish(&format!("room:{way:?}"), json!("still"));
        assert_eq!(other.until("message"), "still", "{way:?}");
        // One of several users is enough, and one that says nothing of when counts as old.
        drop(other);
        let both = with(everything(&bo), json!({"users": [al]}));
        let reply = Client::open(&server, Way::Ws, &format!("token={}", token(both)), "").err();
        assert_eq!(reply.unwrap().error().1, "token_revoked");
        let reply = get(&server, &format!("/poll?topic=room:1&timeout=0&token={other_token}"));
        assert_eq!(reply.status, 200);
    }
    let list = server.api("GET", "/api/revocations", None).1;
    assert_eq!(list["count"], 2 * ALL.len(), "{list}");
}

#[test]
fn all_tokens_of_before_can_be_revoked_at_once() {
    let server = serve(&[REQUIRED]);
    let now = now_s();
    let mut old: Vec<(Way, Client, String)> = LASTING
        .into_iter()
        .map(|way| {
            let claims = with(everything(&format!("{way:?}")), json!({"iat": now - 10}));
            let (client, token) = opened(&server, way, claims);
            (way, client, token)
        })
        .collect();
    let (mut stays, _) = opened(&server, Way::Ws, with(everything("new"), json!({"iat": now})));
    assert_eq!(revoke(&server, json!({"issued_before": now - 5})), 5);
    for (way, client, token) in &mut old {
        is_closed(client, *way);
        is_refused(&server, *way, token);
    }
    assert_eq!(stays.ask(json!({"type": "ping"})), json!({}));
    // An open connection is not given one that counts for nothing.
    let token = token(with(everything("new"), json!({"iat": now - 6})));
    assert_eq!(stays.ask(json!({"type": "refresh", "token": token})), "token_revoked");
    // Nor a topic.
    let topic =
        crate::tokens::support::token(json!({"sub": "new", "topic": "room:9", "iat": now - 6}));
    let command = json!({"type": "subscribe", "topic": "room:9", "token": topic});
    assert_eq!(stays.ask(command), "token_revoked");
}

#[test]
fn what_is_wrong_with_a_revocation_is_said() {
    let server = serve(&[("THRONG_AUTH_REVOCATIONS_MAX", "1")]);
    for (body, code) in [
        (json!({}), "bad_request"),
        (json!({"jti": ""}), "bad_request"),
        (json!({"jti": "a", "user": "al"}), "bad_request"),
        (json!({"jti": "a", "issued_before": 1}), "bad_request"),
        (json!({"user": ""}), "bad_user"),
        (json!({"user": "al", "seconds": 0}), "bad_request"),
    ] {
        let (status, response) = server.api("POST", "/api/revoke", Some(body.clone()));
        assert_eq!((status, response["error"]["code"].as_str()), (400, Some(code)), "{body}");
    }
    assert_eq!(revoke(&server, json!({"jti": "a"})), 0);
    let (status, response) = server.api("POST", "/api/revoke", Some(json!({"jti": "b"})));
    assert_eq!((status, &response["error"]["code"]), (409, &json!("too_many_revocations")));
    // The same once more is no second one.
    assert_eq!(revoke(&server, json!({"jti": "a"})), 0);
}

/// A revocation is forgotten when its tokens have expired anyway.
#[test]
fn a_revocation_is_remembered_for_its_time() {
    let server = serve(&[("THRONG_AUTH_REVOCATIONS_MAX", "1")]);
    let token = token(with(everything("al"), json!({"jti": "a"})));
    let ask = || get(&server, &format!("/poll?topic=room:1&timeout=0&token={token}")).status;
    // A slow machine may see the revocation only when its time is over: then the next one has more.
    let is_revoked = [2, 8, 30].into_iter().any(|seconds| {
        revoke(&server, json!({"jti": "a", "seconds": seconds}));
        ask() == 401
    });
    assert!(is_revoked);
    server.until("it is forgotten", |server| {
        server.api("GET", "/api/revocations", None).1["count"] == 0
    });
    server.until("the token counts again", |_| ask() == 200);
}
