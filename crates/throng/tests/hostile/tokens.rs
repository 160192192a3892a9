//! Phoenix long-poll sessions that belong to another client.

use super::*;

const BASE: &str = "/socket/longpoll?vsn=2.0.0";

fn post(server: &Server, token: &str, body: &str) -> serde_json::Value {
    let request = format!(
        "POST {BASE}&token={token} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let reply = server.exchange(request.as_bytes());
    serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn a_forged_token_opens_no_session() {
    let server = Server::with(&["--shards", "2"], &[("THRONG_TIMEOUTS_LONGPOLL_SECONDS", "30")]);
    let (_, opened) = server.get(BASE);
    let own = opened["token"].as_str().unwrap().to_string();
    let join = r#"["1","1","secret","phx_join",{}]"#;
    assert_eq!(post(&server, &own, join)["status"], 200);
    // A session that was never polled ends after ten seconds.
    let (_, joined) = server.get(&format!("{BASE}&token={own}"));
    assert!(joined["messages"].to_string().contains("phx_reply"), "{joined}");
    let other = server.get(BASE).1["token"].as_str().unwrap().to_string();
    let other_run = Server::start().get(BASE).1["token"].as_str().unwrap().to_string();

    // The name of one session with another's signature, each character changed, too short, too long.
    let name = 10 * 8 / 6;
    let mut forged = vec![
        String::new(),
        "x".into(),
        "A".repeat(own.len()),
        "_".repeat(own.len()),
        "A".repeat(3_000),
        format!("{}{}", &own[..name], &other[name..]),
        format!("{}{}", &other[..name], &own[name..]),
        format!("{own}A"),
        format!("{own}%3D"),
        format!("%00{own}"),
        own.to_lowercase(),
        own[1..].to_string(),
        own[..own.len() - 1].to_string(),
        other_run,
    ];
    for at in 0..own.len() {
        let mut letters = own.clone().into_bytes();
        letters[at] = if letters[at] == b'A' { b'B' } else { b'A' };
        forged.push(String::from_utf8(letters).unwrap());
    }
    for token in forged.iter().filter(|token| **token != own) {
        let push = r#"["1","9","secret","phx_leave",{}]"#;
        assert_eq!(post(&server, token, push)["status"], 410, "{token}");
    }
    // A poll with a forged token starts a new session, which receives no messages of the other one.
    for token in forged.iter().take(12).filter(|token| **token != own) {
        let (_, reply) = server.get(&format!("{BASE}&token={token}"));
        assert_eq!((&reply["status"], &reply["messages"]), (&json!(410), &json!([])), "{token}");
        assert_ne!(reply["token"], json!(own));
    }
    server.publish("secret", json!({"n": 1}));
    let (_, polled) = server.get(&format!("{BASE}&token={own}"));
    let messages = polled["messages"].to_string();
    assert!(messages.contains(r#"\"n\":1"#), "{polled}");
    assert!(!messages.contains("phx_reply") && !messages.contains("phx_close"), "{polled}");
    assert_eq!(server.publish("secret", json!(2))["members"], 1);
}
