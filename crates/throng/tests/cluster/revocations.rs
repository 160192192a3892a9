//! A token that is revoked at one node is rejected at all nodes.

use serde_json::{Value, json};

use super::support::*;
use crate::support::*;

const KEY: &str = "0123456789abcdef0123456789abcdef";

const SETTINGS: [(&str, &str); 2] =
    [("THRONG_AUTH_HMAC_KEY", KEY), ("THRONG_AUTH_REQUIRED", "true")];

/// Returns a user's token with this `jti`.
fn token(user: &str, jti: &str) -> String {
    let signer = token::Signer::new(KEY, "HS256".parse().unwrap(), None).unwrap();
    let grants = json!({"subscribe": ["t"]});
    let claims =
        json!({"sub": user, "jti": jti, "iat": 1_000, "exp": 4_000_000_000_u32, "throng": grants});
    signer.sign(&claims).unwrap()
}

fn open(node: &Server, token: &str) -> Stream {
    let mut stream = node.listen(&format!("/stream?topic=t&token={token}"));
    assert_eq!(stream.next_object()["type"], "welcome");
    stream
}

/// Returns true if a node rejects a token because it was revoked.
fn is_rejected(node: &Server, token: &str) -> bool {
    let (status, reply) = node.get(&format!("/poll?topic=t&timeout=0&token={token}"));
    assert!(status == 200 || reply["error"]["code"] == "token_revoked", "{reply}");
    status == 401
}

/// Revokes tokens, and checks that all nodes have replied. Returns how many connections were closed.
fn revoke(node: &Server, body: Value) -> Value {
    let revoked = node.post("/api/revoke", body);
    assert_eq!(revoked["missing"], json!([]), "{revoked}");
    revoked["closed"].clone()
}

fn is_closed(stream: &mut Stream) {
    let last = stream.next_object();
    assert_eq!(
        (&last["type"], &last["reason"]),
        (&json!("close"), &json!("token_revoked")),
        "{last}"
    );
}

/// Returns all revocations of a node, read in pages of `limit`.
fn revocations(node: &Server, limit: usize) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let (status, page) =
            node.api("GET", &format!("/api/revocations?node=self&limit={limit}{after}"), None);
        assert_eq!(status, 200, "{page}");
        all.extend(page["revocations"].as_array().unwrap().iter().cloned());
        let Some(next) = page["next"].as_str() else {
            assert_eq!(page["count"], all.len());
            return all;
        };
        after = format!(
            "&after={}",
            url::form_urlencoded::byte_serialize(next.as_bytes()).collect::<String>()
        );
    }
}

#[test]
fn a_revoked_token_closes_its_connections_at_all_nodes_and_counts_at_none() {
    let nats = Nats::start();
    let [a, b] = nats.nodes(&SETTINGS);
    let (one, other) = (token("al", "one"), token("al", "other"));
    let [mut at_a, mut at_b] = [&a, &b].map(|node| open(node, &one));
    let [mut other_a, mut other_b] = [&a, &b].map(|node| open(node, &other));
    assert_eq!(revoke(&a, json!({"jti": "one"})), 2);
    [&mut at_a, &mut at_b].into_iter().for_each(is_closed);
    for node in [&a, &b] {
        assert!(is_rejected(node, &one) && !is_rejected(node, &other));
    }
    let revoked = b.post("/api/revoke", json!({"user": "al", "seconds": 1_000}));
    assert_eq!((&revoked["closed"], &revoked["missing"]), (&json!(2), &json!([])));
    [&mut other_a, &mut other_b].into_iter().for_each(is_closed);
    assert!(is_rejected(&a, &other) && is_rejected(&b, &other));
    // The merged reply has the later of both nodes' times, and not their sum.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(revoked["until"].as_u64().unwrap() <= now + 1_000, "{revoked}");
}

#[test]
fn a_node_that_comes_or_comes_back_learns_what_was_revoked_without_it() {
    let mut nats = Nats::start();
    let a = nats.node("a", &SETTINGS);
    // These revocations need more than one page when a node reads them.
    for number in 0..700 {
        a.post("/api/revoke", json!({"jti": format!("t{number:03}")}));
    }
    a.post("/api/revoke", json!({"issued_before": 10}));
    let b = nats.node("b", &SETTINGS);
    let all = revocations(&a, 300);
    assert_eq!((all.len(), revocations(&a, 1_000)), (701, all.clone()));
    b.until("it has all revocations", |b| revocations(b, 1_000) == all);
    assert!(is_rejected(&b, &token("al", "t699")));
    // Each node revokes a token while the two can't reach each other.
    let (of_a, of_b) = (token("al", "of-a"), token("bo", "of-b"));
    let mut at_b = open(&b, &of_a);
    nats.kill();
    [&a, &b].into_iter().for_each(until_disconnected);
    assert_eq!(a.post("/api/revoke", json!({"jti": "of-a"}))["closed"], 0);
    b.post("/api/revoke", json!({"jti": "of-b"}));
    assert!(!is_rejected(&b, &of_a) && !is_rejected(&a, &of_b));
    nats.run();
    is_closed(&mut at_b);
    b.until("it knows that of a", |b| is_rejected(b, &of_a));
    a.until("it knows that of b", |a| is_rejected(a, &of_b));
}
