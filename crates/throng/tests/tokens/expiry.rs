//! Tokens that expire while their connections are open.

use std::time::Duration;

use serde_json::json;

use crate::support::*;
use crate::tokens::support::*;

const NO_SPREAD: (&str, &str) = ("THRONG_AUTH_EXPIRY_SPREAD_SECONDS", "0");

/// Longer than these tests' tokens are valid, so that the server warns a client as soon as it connects.
const WARNED_AT_ONCE: (&str, &str) = ("THRONG_AUTH_EXPIRY_WARNING_SECONDS", "600");

fn of(user: &str, seconds: u64) -> String {
    token(with(everything(user), json!({"exp": now_s() + seconds})))
}

#[test]
fn a_client_is_warned_on_every_transport_and_goes_on() {
    let server = serve(&[REQUIRED, NO_SPREAD, WARNED_AT_ONCE]);
    std::thread::scope(|scope| {
        for transport in LASTING {
            let server = &server;
            scope.spawn(move || {
                let (user, topic, exp) =
                    (format!("{transport:?}"), format!("room:{transport:?}"), now_s() + 300);
                let token = token(with(everything(&user), json!({"exp": exp})));
                let mut client = Client::enter(server, transport, &token, &topic);
                let mut early = Client::enter(server, transport, &of(&user, 3_600), &topic);
                let warning = client.until("token_expiring");
                assert_eq!(warning["expires"], exp, "{transport:?}: {warning}");
                assert!(warning["seconds"].as_u64().unwrap() <= 300, "{transport:?}: {warning}");
                server.publish(&topic, json!("still"));
                assert_eq!(client.until("message"), "still", "{transport:?}");
                // The server does not warn a client whose token is valid for longer.
                loop {
                    let (event, value) = early.event();
                    assert_ne!(event, "token_expiring", "{transport:?}: {value}");
                    if event == "message" {
                        assert_eq!(value, "still", "{transport:?}");
                        break;
                    }
                }
            });
        }
    });
}

#[test]
fn a_client_is_closed_when_its_token_expires_on_every_transport() {
    let server = serve(&[REQUIRED, NO_SPREAD]);
    std::thread::scope(|scope| {
        for transport in LASTING {
            let server = &server;
            scope.spawn(move || {
                let claims = everything(&format!("{transport:?}"));
                let topic = if transport.is_phoenix() { "" } else { "&topic=room:1" };
                let (mut client, exp) = open_expiring(server, transport, &claims, topic);
                let reason = client.closed();
                assert!(now_s() >= exp, "{transport:?}");
                if transport != Transport::Longpoll {
                    assert_eq!(reason, "token_expired", "{transport:?}");
                }
                // The client can't reconnect with the expired token.
                let token = token(with(claims, json!({"exp": exp})));
                let reply =
                    Client::open(server, transport, &format!("token={token}"), "").err().unwrap();
                assert_eq!(reply.error().1, "token_expired", "{transport:?}");
                let want = match transport {
                    Transport::Ws => 4401,
                    Transport::Phoenix | Transport::Longpoll => 403,
                    _ => 401,
                };
                assert_eq!(reply.status, want, "{transport:?}");
            });
        }
        // A waiting poll also ends then.
        scope.spawn(|| {
            let (mut client, exp) = expiring(|exp| {
                let token = token(with(everything("poller"), json!({"exp": exp})));
                let target = format!("topic=room:poll&token={token}");
                let client = Client::open(&server, Transport::Poll, &target, "").ok().unwrap();
                let mut waits = false;
                server.until("it waits, or its token has expired", |server| {
                    waits = members(server, "room:poll") == 1;
                    waits || now_s() > exp
                });
                waits.then_some(client)
            });
            assert_eq!(client.closed(), "token_expired");
            assert!(now_s() >= exp);
        });
    });
}

#[test]
fn an_expired_token_gets_401_with_a_challenge() {
    let server = serve(&[]);
    let late = token(with(everything("al"), json!({"exp": now_s() - 1})));
    for target in [
        "/sse?topic=room:1",
        "/stream?topic=room:1",
        "/poll?topic=room:1",
        "/presence?topic=room:1",
        "/history?topic=room:1",
    ] {
        let reply = request(&server, "GET", target, &bearer(&late), "");
        assert_eq!(reply.error(), (401, "token_expired"), "{target}");
        let challenge = header(&reply.head, "www-authenticate").unwrap();
        assert_eq!(challenge, "Bearer realm=\"throng\", error=\"invalid_token\"");
    }
    // A program gets the status of a handshake, but a page in a browser only gets a close frame.
    let refused = Client::open(&server, Transport::Ws, "", &bearer(&late)).err().unwrap();
    assert_eq!(refused.error(), (401, "token_expired"));
    let refused = Client::open(&server, Transport::Ws, &format!("token={late}"), "").err().unwrap();
    assert_eq!(refused.error(), (4401, "token_expired"));
    let early = token(with(everything("al"), json!({"nbf": now_s() + 600})));
    let reply = request(&server, "GET", "/sse", &bearer(&early), "");
    assert_eq!(reply.error(), (401, "invalid_token"));
}

#[test]
fn a_refreshed_token_keeps_the_connection() {
    let server = serve(&[REQUIRED, NO_SPREAD, WARNED_AT_ONCE]);
    std::thread::scope(|scope| {
        for transport in [Transport::Ws, Transport::Phoenix, Transport::Longpoll] {
            let server = &server;
            scope.spawn(move || {
                let (user, topic) = (format!("{transport:?}"), format!("room:{transport:?}"));
                let mut client = Client::enter(server, transport, &of(&user, 300), &topic);
                let refresh = |client: &mut Client, token: &str| match transport {
                    Transport::Ws => client.command(json!({"type": "refresh", "token": token})),
                    _ => {
                        let payload = json!({"access_token": token});
                        let outcome = client.push(&topic, "access_token", payload);
                        match outcome["status"] == "ok" {
                            true => outcome["response"].clone(),
                            false => json!("refused"),
                        }
                    }
                };
                client.until("token_expiring");
                // An invalid token changes nothing.
                for wrong in [&*of("bo", 600), "x.y.z", "", &token(json!({"sub": user, "exp": 1}))]
                {
                    assert!(refresh(&mut client, wrong).is_string(), "{transport:?} {wrong}");
                }
                // The new token may grant less than the old one.
                let renewed = |exp: u64| {
                    let claims = with(listener(&user, &["other"]), json!({"exp": exp}));
                    (token(claims), json!({"users": [user], "expires": exp}))
                };
                let (token, want) = renewed(now_s() + 400);
                assert_eq!(refresh(&mut client, &token), want, "{transport:?}");
                assert_eq!(
                    client.until("token_expiring")["expires"],
                    want["expires"],
                    "{transport:?}"
                );
                // The client stays in its topics, and the new token's grants apply to its commands.
                server.publish(&topic, json!("still"));
                assert_eq!(client.until("message"), "still", "{transport:?}");
                match transport {
                    Transport::Ws => {
                        let subscribe = |topic: &str| json!({"type": "subscribe", "topic": topic});
                        assert_eq!(client.command(subscribe("room:2")), "not_granted");
                        assert_eq!(client.command(subscribe("other"))["topic"], "other");
                    }
                    _ => {
                        let refused = client.join("room:2", json!({}));
                        assert_eq!(refused["response"]["reason"], "unauthorized");
                        assert_eq!(client.join("other", json!({}))["status"], "ok");
                    }
                }
                // The connection ends with the new token.
                let ((), exp) = expiring(|exp| {
                    let (token, want) = renewed(exp);
                    let outcome = refresh(&mut client, &token);
                    assert!(outcome == want || outcome.is_string(), "{transport:?} {outcome}");
                    outcome.is_object().then_some(())
                });
                client.closed();
                assert!(now_s() >= exp, "{transport:?}");
            });
        }
    });
}

/// Connections whose tokens expire at the same moment end at different moments.
#[test]
fn ends_are_spread() {
    let server = serve(&[REQUIRED, ("THRONG_AUTH_EXPIRY_SPREAD_SECONDS", "5")]);
    let (mut clients, exp) = expiring(|exp| {
        let open = |_| open_until(exp, &server, Transport::Ws, &everything("al"), "");
        (0..60).map(open).collect::<Option<Vec<Client>>>()
    });
    let mut seconds: Vec<u64> = std::thread::scope(|scope| {
        let waits: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                scope.spawn(move || {
                    assert_eq!(client.closed(), "token_expired");
                    now_s()
                })
            })
            .collect();
        waits.into_iter().map(|wait| wait.join().unwrap()).collect()
    });
    seconds.sort_unstable();
    assert!(seconds[0] >= exp, "{seconds:?}");
    // They end within six seconds. A slow machine may end some together.
    seconds.dedup();
    assert!(seconds.len() >= 3, "{seconds:?}");
}

/// A client without a token, or with a token without an end, stays.
#[test]
fn what_does_not_expire_stays() {
    let server = serve(&[NO_SPREAD, ("THRONG_AUTH_ANONYMOUS_GRANTS", "subscribe:room:*")]);
    let mut anonymous = Client::open(&server, Transport::Sse, "topic=room:1", "").ok().unwrap();
    let mut endless = Client::enter(&server, Transport::Sse, &token(everything("al")), "room:1");
    let (mut short, _) = open_expiring(&server, Transport::Sse, &everything("bo"), "&topic=room:1");
    assert_eq!(short.closed(), "token_expired");
    // A shard checks for expired tokens once a second.
    std::thread::sleep(Duration::from_millis(1_100));
    server.publish("room:1", json!("here"));
    assert_eq!(
        (anonymous.until("message"), endless.until("message")),
        (json!("here"), json!("here"))
    );
}
