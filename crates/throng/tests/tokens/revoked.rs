//! Revocations of tokens.

use serde_json::{Value, json};

use crate::support::*;
use crate::tokens::support::*;

fn revoke(server: &Server, body: Value) -> u64 {
    server.post("/api/revoke", body)["closed"].as_u64().unwrap()
}

/// Connects with a token of these claims, by this transport. Returns the connection and the token.
fn opened(server: &Server, transport: Transport, claims: Value) -> (Client, String) {
    let token = token(claims);
    let topic = format!("room:{transport:?}");
    if transport == Transport::Poll {
        let target = format!("topic={topic}&token={token}");
        let before = members(server, &topic);
        let client = Client::open(server, transport, &target, "").ok().unwrap();
        server.until("it waits", |server| members(server, &topic) == before + 1);
        return (client, token);
    }
    (Client::enter(server, transport, &token, &topic), token)
}

fn is_refused(server: &Server, transport: Transport, token: &str) {
    if transport == Transport::Poll {
        let reply = get(server, &format!("/poll?topic=room:1&token={token}"));
        assert_eq!(reply.error(), (401, "token_revoked"));
        return;
    }
    let reply = Client::open(server, transport, &format!("token={token}"), "").err().unwrap();
    assert_eq!(reply.error().1, "token_revoked", "{transport:?}");
}

fn is_closed(client: &mut Client, transport: Transport) {
    let reason = client.closed();
    if transport != Transport::Longpoll {
        assert_eq!(reason, "token_revoked", "{transport:?}");
    }
}

#[test]
fn a_revoked_token_closes_its_connections_and_counts_no_more() {
    let server = serve(&[REQUIRED]);
    let now = now_s();
    for transport in ALL {
        let (al, bo) = (format!("al-{transport:?}"), format!("bo-{transport:?}"));
        let claims = |user: &str, jti: &str, iat: u64| {
            with(everything(user), json!({"jti": jti, "iat": iat}))
        };
        // By the token's id.
        let (mut one, one_token) =
            opened(&server, transport, claims(&al, &format!("one-{transport:?}"), now));
        assert_eq!(
            revoke(&server, json!({"jti": format!("one-{transport:?}")})),
            1,
            "{transport:?}"
        );
        is_closed(&mut one, transport);
        is_refused(&server, transport, &one_token);
        // By user and time: connections with newer tokens stay.
        let (mut old, old_token) = opened(&server, transport, claims(&al, "old", now - 10));
        assert_eq!(
            revoke(&server, json!({"user": al, "issued_before": now - 100})),
            0,
            "{transport:?}"
        );
        assert_eq!(
            revoke(&server, json!({"user": al, "issued_before": now - 5})),
            1,
            "{transport:?}"
        );
        is_closed(&mut old, transport);
        is_refused(&server, transport, &old_token);
        let (mut new, new_token) = opened(&server, transport, claims(&al, "new", now));
        // All tokens of the user, and no others.
        let (mut other, other_token) = opened(&server, transport, claims(&bo, "other", now));
        assert_eq!(revoke(&server, json!({"user": al})), 1, "{transport:?}");
        is_closed(&mut new, transport);
        is_refused(&server, transport, &new_token);
        server.publish(&format!("room:{transport:?}"), json!("still"));
        assert_eq!(other.until("message"), "still", "{transport:?}");
        // A revocation of one of several users suffices. A token without a time of issue counts as old.
        drop(other);
        let both = with(everything(&bo), json!({"users": [al]}));
        let reply =
            Client::open(&server, Transport::Ws, &format!("token={}", token(both)), "").err();
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
    let mut old: Vec<(Transport, Client, String)> = LASTING
        .into_iter()
        .map(|transport| {
            let claims = with(everything(&format!("{transport:?}")), json!({"iat": now - 10}));
            let (client, token) = opened(&server, transport, claims);
            (transport, client, token)
        })
        .collect();
    let (mut stays, _) =
        opened(&server, Transport::Ws, with(everything("new"), json!({"iat": now})));
    assert_eq!(revoke(&server, json!({"issued_before": now - 5})), 5);
    for (transport, client, token) in &mut old {
        is_closed(client, *transport);
        is_refused(&server, *transport, token);
    }
    assert_eq!(stays.command(json!({"type": "ping"})), json!({}));
    // An open connection can't refresh with a revoked token.
    let token = token(with(everything("new"), json!({"iat": now - 6})));
    assert_eq!(stays.command(json!({"type": "refresh", "token": token})), "token_revoked");
    // A revoked topic token grants no topic.
    let topic =
        crate::tokens::support::token(json!({"sub": "new", "topic": "room:9", "iat": now - 6}));
    let command = json!({"type": "subscribe", "topic": "room:9", "token": topic});
    assert_eq!(stays.command(command), "token_revoked");
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
    // The same revocation again does not count twice.
    assert_eq!(revoke(&server, json!({"jti": "a"})), 0);
}

/// The server forgets a revocation when its tokens have expired anyway.
#[test]
fn a_revocation_is_remembered_for_its_time() {
    let server = serve(&[("THRONG_AUTH_REVOCATIONS_MAX", "1")]);
    let token = token(with(everything("al"), json!({"jti": "a"})));
    let command = || get(&server, &format!("/poll?topic=room:1&timeout=0&token={token}")).status;
    // A slow machine may check the token only after the revocation has expired. Then the next attempt is longer.
    let is_revoked = [2, 8, 30].into_iter().any(|seconds| {
        revoke(&server, json!({"jti": "a", "seconds": seconds}));
        command() == 401
    });
    assert!(is_revoked);
    server.until("it is forgotten", |server| {
        server.api("GET", "/api/revocations", None).1["count"] == 0
    });
    server.until("the token counts again", |_| command() == 200);
}
