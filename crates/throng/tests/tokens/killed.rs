//! Revocations outlive the process, however it ends.

use serde_json::{Value, json};

use crate::support::*;
use crate::tokens::support::*;

/// The number of kills.
const ROUNDS: u64 = 6;

/// Starts a server with its data in this folder.
fn serve_in(folder: &Scratch) -> Server {
    let folder = folder.path().to_str().unwrap();
    let flags = ["--shards", "2", "--config", TOPICS, "--data", folder];
    Server::with(&flags, &[REQUIRED, ("THRONG_AUTH_HMAC_KEY", KEY)])
}

/// Returns a user's token with this `jti` and this time of issue.
fn of(user: &str, jti: &str, iat: u64) -> String {
    token(with(everything(user), json!({"jti": jti, "iat": iat})))
}

/// Returns the status and the code of a poll with this token.
fn response(server: &Server, token: &str) -> (u16, String) {
    let reply = get(server, &format!("/poll?topic=room:1&timeout=0&token={token}"));
    match reply.status {
        200 => (200, String::new()),
        _ => (reply.status, reply.error().1.to_string()),
    }
}

/// Returns the revocations in force, sorted.
fn list(server: &Server) -> Vec<String> {
    let list = server.api("GET", "/api/revocations", None).1;
    let revocations = list["revocations"].as_array().unwrap();
    assert_eq!(list["count"], revocations.len());
    let mut texts: Vec<String> = revocations.iter().map(Value::to_string).collect();
    texts.sort();
    texts
}

/// Kills the server as soon as it has replied. Every revocation that it confirmed must stay.
#[test]
fn a_revocation_that_was_replied_outlives_a_kill() {
    let folder = Scratch::new("revoked-kill");
    let now = now_s();
    let refused = (401, "token_revoked".to_string());
    let (mut gone, mut stay): (Vec<String>, Vec<String>) = Default::default();
    stay.push(of("al", "kept", now));
    let before = now - 500;
    for round in 0..ROUNDS {
        let server = serve_in(&folder);
        for token in &gone {
            assert_eq!(response(&server, token), refused, "in round {round}");
        }
        for token in &stay {
            assert_eq!(response(&server, token).0, 200, "in round {round}");
        }
        let (name, user) = (format!("name{round}"), format!("user{round}"));
        let all_before = before + round;
        let (body, mine, others): (Value, Vec<String>, Vec<String>) = match round % 3 {
            0 => (json!({"jti": name}), vec![of("al", &name, now)], vec![of("al", "another", now)]),
            1 => (
                json!({"user": user, "issued_before": now - 5}),
                vec![of(&user, "a", now - 5), of(&user, "f", now - 100)],
                vec![of(&user, "b", now - 4)],
            ),
            _ => (
                json!({"issued_before": all_before}),
                vec![of("al", "c", all_before), of("bo", "d", all_before)],
                vec![of("bo", "e", all_before + 1)],
            ),
        };
        // The tokens are valid until the server confirms their revocation.
        for token in mine.iter().chain(&others) {
            assert_eq!(response(&server, token).0, 200, "{body}");
        }
        server.post("/api/revoke", body);
        gone.extend(mine);
        // The next revocation of all tokens before a time covers these tokens as well.
        if round % 3 != 2 {
            stay.extend(others);
        }
        // Dropping it kills the server with SIGKILL.
        drop(server);
    }
    // An orderly restart keeps the revocations as well, and the list is the same.
    let server = serve_in(&folder);
    let before = list(&server);
    server.signal("-TERM");
    let mut server = server;
    wait_within(&mut server.child);
    let server = serve_in(&folder);
    assert_eq!(list(&server), before);
    for token in &gone {
        assert_eq!(response(&server, token), refused);
    }
    for token in &stay {
        assert_eq!(response(&server, token).0, 200);
    }
}

/// A revocation that expires while no server runs is forgotten.
#[test]
fn a_revocation_ends_in_its_time_though_no_server_runs() {
    let folder = Scratch::new("revoked-time");
    let (short, long) = (of("al", "short", now_s()), of("al", "long", now_s()));
    let server = serve_in(&folder);
    server.post("/api/revoke", json!({"jti": "long", "seconds": 1_000}));
    assert_eq!(response(&server, &long).0, 401);
    // A slow machine may check the token only after the revocation has expired. Then the next attempt is longer.
    let seconds = [2, 8, 30].into_iter().find(|seconds| {
        server.post("/api/revoke", json!({"jti": "short", "seconds": seconds}));
        response(&server, &short).0 == 401
    });
    drop(server);
    std::thread::sleep(std::time::Duration::from_secs(seconds.unwrap()));
    let server = serve_in(&folder);
    server.until("it is forgotten", |server| response(server, &short).0 == 200);
    assert_eq!(response(&server, &long).0, 401);
    assert_eq!(list(&server).len(), 1);
}
