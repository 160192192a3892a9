//! Connections with tokens: warnings, refreshes, closes and revocations; strangers, and tokens that wait for keys.

use std::sync::atomic::{AtomicU64, Ordering};

use auth::{Authenticator, Grants, Patterns, TokenError, TokenMark, TopicToken, Verified};

use super::*;
use crate::auth::credentials::Expiry;

/// Tokens are texts here, `al/12/a,b`: a user, the second at which it expires (0 is never), and topics to enter. The
/// keys of a token that begins with `late-` come when the scene says so.
#[derive(Debug, Default)]
pub(super) struct Issuer {
    required: bool,
    version: AtomicU64,
}

impl Issuer {
    pub fn come(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }
}

impl Authenticator for Issuer {
    fn verify(&self, token: &str, now_s: u64) -> Result<Verified, TokenError> {
        if token.starts_with("late-") && self.keys_version() == 0 {
            return Err(TokenError::KeysComing);
        }
        let parts: Vec<&str> = token.trim_start_matches("late-").splitn(3, '/').collect();
        let [user, expires, topics] = parts[..] else {
            return Err(TokenError::Malformed("it has not three parts"));
        };
        let expires = Some(expires.parse().unwrap()).filter(|expires| *expires > 0);
        if expires.is_some_and(|expires| expires <= now_s) {
            return Err(TokenError::Expired);
        }
        let subscribe = topics.split(',').map(Box::from).collect();
        let grants = Arc::new(Grants::Patterns(Patterns { subscribe, ..Patterns::default() }));
        let info = Some(r#"{"name":"x"}"#.into());
        let (users, mark) = (vec![user.into()], TokenMark::default());
        Ok(Verified { users, grants, info, expires, mark })
    }

    fn verify_topic(&self, _token: &str, _now_s: u64) -> Result<TopicToken, TokenError> {
        Err(TokenError::Signature)
    }

    fn anonymous_grants(&self) -> Arc<Grants> {
        let subscribe = vec!["free".into()];
        Arc::new(Grants::Patterns(Patterns { subscribe, ..Patterns::default() }))
    }

    fn is_required(&self) -> bool {
        self.required
    }

    fn keys_version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }
}

fn scene(required: bool) -> Scene {
    let issuer = Arc::new(Issuer { required, version: AtomicU64::new(0) });
    let before = settings();
    let session = protocol::Settings { auth: Some(issuer.clone()), ..before.session };
    let token_expiry = Expiry { warning_s: 4, spread_s: 2 };
    Scene::with(false, Settings { session, token_expiry, ..before }, issuer)
}

/// As `check`, with tokens. Returns what each client received.
fn check_tokens(name: &str, required: bool, steps: &[Step]) -> [String; CLIENTS] {
    compare(name, || scene(required), steps).0
}

fn subscribe(of: usize, id: u32, topic: &str) -> Step {
    text(of, &format!(r#"{{"type":"subscribe","id":{id},"topic":"{topic}"}}"#))
}

fn give(of: usize, kind: &str, id: u32, token: &str) -> Step {
    text(of, &format!(r#"{{"type":"{kind}","id":{id},"token":"{token}"}}"#))
}

fn phoenix(token: &str) -> String {
    socket(&format!("/socket/websocket?vsn=2.0.0&token={token}"), "")
}

/// Checks how a connection ends, by the bytes of a close frame.
fn ends_with(received: &str, code: u16, reason: &str) -> bool {
    let [high, low] = code.to_be_bytes();
    let code = [high, low].escape_ascii().to_string();
    received.ends_with(&format!("{code}{reason}<end>"))
}

/// The node's clock begins at 5 s, which is the time of day as well.
#[test]
fn tokens_expire_and_are_refreshed() {
    let mut steps = vec![
        Open(0, 0, get("/sse?topic=a&token=al/12/a")),
        Open(1, 1, socket("/ws?token=bo/12/a,b", "")),
        Open(2, 0, phoenix("cy/12/a")),
        text(2, r#"["1","1","a","phx_join",{}]"#),
        Open(3, 1, get("/poll?topic=a&timeout=60&token=di/12/a")),
        Open(4, 0, get("/stream?topic=a&token=ed/0/a")),
        Open(5, 0, socket("/ws?token=fi/12/seen/1", "")),
        subscribe(1, 1, "b"),
        subscribe(1, 2, "c"),
        Publish("b", "before".into()),
        // Until all have got the warning.
        Wait(60),
        give(1, "refresh", 3, "bo/40/c"),
        give(1, "refresh", 4, "al/40/c"),
        give(1, "refresh", 5, "bo/7/c"),
        give(1, "connect", 6, "bo/40/c"),
        text(2, r#"["1","2","a","access_token",{"access_token":"cy/40/b"}]"#),
        text(2, r#"["2","3","b","phx_join",{}]"#),
        subscribe(1, 7, "c"),
        subscribe(1, 8, "b2"),
        Publish("c", "after".into()),
        // Connections without a new token end.
        Wait(50),
        Publish("a", "who is here".into()),
        Publish("b", "and here".into()),
    ];
    steps.extend((0..CLIENTS).map(Read));
    // And the others.
    steps.push(Wait(300));
    steps.extend((0..CLIENTS).map(Read));
    let received = check_tokens("expiry", true, &steps);
    for (client, warned) in [(0, 1), (1, 2), (2, 2), (3, 0), (4, 0), (5, 1)] {
        let found = received[client].matches("\\\"type\\\":\\\"token_expiring\\\"").count();
        assert_eq!(found, warned, "{client}: {}", received[client]);
    }
    assert!(
        received[0].contains(": closing, token_expired") && !received[0].contains("who is here")
    );
    assert!(received[3].contains("401 Unauthorized") && received[3].contains("token_expired"));
    assert!(
        received[4].contains("who is here") && !received[4].contains("<end>"),
        "{}",
        received[4]
    );
    for client in [1, 2, 5] {
        assert!(ends_with(&received[client], 4402, "token_expired"), "{}", received[client]);
    }
    for text in ["before", "after", "and here"] {
        assert!(received[1].contains(text), "{text}: {}", received[1]);
    }
    let codes =
        ["not_granted", "not_your_user", "token_expired", "already_connected", "not_granted"];
    let found: Vec<&str> = received[1].split("\\\"code\\\":\\\"").skip(1).collect();
    assert_eq!(found.len(), codes.len(), "{}", received[1]);
    assert!(found.iter().zip(codes).all(|(found, code)| found.starts_with(code)), "{found:?}");
    assert!(
        received[2].contains("who is here") && received[2].contains("and here"),
        "{}",
        received[2]
    );
}

#[test]
fn revoked_tokens_end_at_once_and_with_them_no_others() {
    let steps = [
        Open(0, 0, get("/sse?topic=a&token=al/0/a")),
        Open(1, 1, socket("/ws?token=al/0/a", "")),
        Open(2, 1, phoenix("al/0/a")),
        text(2, r#"["1","1","a","phx_join",{}]"#),
        Open(3, 1, get("/poll?topic=a&timeout=60&token=al/0/a")),
        Open(4, 0, get("/stream?topic=a&token=bo/0/a")),
        Wait(5),
        Revoke("al"),
        Publish("a", "who is here".into()),
        Wait(5),
    ];
    let received = check_tokens("revocation", true, &steps);
    assert!(received[0].contains(": closing, token_revoked"), "{}", received[0]);
    assert!(received[3].contains("401 Unauthorized") && received[3].contains("token_revoked"));
    for client in [1, 2] {
        assert!(ends_with(&received[client], 4403, "token_revoked"), "{}", received[client]);
    }
    for (client, text) in received.iter().enumerate() {
        assert_eq!(text.contains("who is here"), client == 4, "{client}: {text}");
    }
}

#[test]
fn strangers_get_nothing_until_they_say_who_they_are() {
    let steps = [
        Open(0, 0, socket("/ws", "")),
        Open(1, 1, socket("/ws", "")),
        subscribe(0, 1, "a"),
        Publish("*", "to all".into()),
        Wait(150),
        give(0, "connect", 2, "x"),
        give(0, "connect", 3, "u0/40/a,seen/1"),
        subscribe(0, 4, "a"),
        subscribe(0, 5, "seen/1"),
        Publish("*", "to all that are known".into()),
        Publish("a", "to a".into()),
        Publish("stored", "to those who have it".into()),
        // The other client sends nothing for too long.
        Wait(70),
        text(0, r#"{"type":"presence","id":6,"topic":"seen/1"}"#),
    ];
    let received = check_tokens("strangers", true, &steps);
    for text in ["token_required", "to all that are known", "to a", "to those who have it"] {
        assert!(received[0].contains(text), "{text}: {}", received[0]);
    }
    assert!(!received.iter().any(|text| text.contains("\"to all\"")));
    assert!(ends_with(&received[1], 4401, "unauthorized"), "{}", received[1]);
    assert!(!received[1].contains("to all"), "{}", received[1]);
}

#[test]
fn one_that_has_come_without_a_token_may_give_one() {
    let steps = [
        Open(0, 0, socket("/ws?topic=free", "")),
        subscribe(0, 1, "a"),
        give(0, "connect", 2, "u0/12/a,seen/1"),
        give(0, "connect", 3, "u0/12/a"),
        subscribe(0, 4, "a"),
        Publish("free", "free".into()),
        Publish("a", "granted".into()),
        Publish("stored", "stored".into()),
        Publish("@u0", "own".into()),
        Wait(120),
    ];
    let received = check_tokens("connect", false, &steps);
    for text in ["not_granted", "already_connected", "free", "granted", "stored", "own"] {
        assert!(received[0].contains(text), "{text}: {}", received[0]);
    }
    assert!(ends_with(&received[0], 4402, "token_expired"), "{}", received[0]);
}

#[test]
fn what_waits_for_keys_goes_on_when_they_have_come() {
    let mut steps = vec![
        Open(0, 0, get("/sse?topic=a&token=late-al/0/a")),
        Open(1, 1, socket("/ws", "")),
        give(1, "connect", 1, "late-bo/0/b"),
        subscribe(1, 2, "b"),
        Open(2, 0, phoenix("cy/0/a")),
        text(2, r#"["1","1","a","phx_join",{}]"#),
        text(2, r#"["1","2","a","access_token",{"access_token":"late-cy/0/a"}]"#),
        text(2, r#"[null,"3","phoenix","heartbeat",{}]"#),
        Open(3, 1, post("/publish?topic=a&token=late-di/0/a", "hi")),
        Open(4, 0, get("/socket/longpoll?vsn=2.0.0&token=late-ed/0/a")),
        // This client leaves while it waits.
        Open(5, 0, get("/stream?topic=a&token=late-fi/0/a")),
        Cut(5),
        Wait(20),
        Publish("a", "too early".into()),
        Keys,
        Wait(5),
        Publish("a", "in time".into()),
        Publish("b", "in time".into()),
    ];
    steps.extend((0..CLIENTS).map(Read));
    let received = check_tokens("keys", true, &steps);
    for client in [0, 1] {
        assert!(received[client].contains("in time") && !received[client].contains("too early"));
    }
    assert!(received[1].contains("\\\"users\\\":[\\\"bo\\\"]"), "{}", received[1]);
    let refreshed = received[2].find("\\\"users\\\":[\\\"cy\\\"]").unwrap();
    assert!(
        received[2][refreshed..].contains("\\\"phoenix\\\",\\\"phx_reply\\\""),
        "in their order"
    );
    assert!(received[3].contains("not_granted"), "{}", received[3]);
    assert!(received[4].contains("\\\"token\\\":"), "{}", received[4]);
}
