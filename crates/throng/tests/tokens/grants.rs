//! What tokens grant, together with the rules.

use serde_json::{Value, json};

use crate::support::*;
use crate::tokens::support::*;

/// Returns the status and the code of a request. A lasting request that the server accepts gives 200.
fn opened(server: &Server, transport: Transport, query: &str) -> (u16, String) {
    if transport == Transport::Poll {
        let reply = get(server, &format!("/poll?timeout=0&{query}"));
        return (reply.status, reply.error().1.into());
    }
    match Client::open(server, transport, query, "") {
        Ok(_) => (200, String::new()),
        // A close frame has its own codes.
        Err(reply) if reply.status == 4403 => (403, reply.error().1.into()),
        Err(reply) => (reply.status, reply.error().1.into()),
    }
}

const NAMING: [Transport; 4] = [Transport::Sse, Transport::Stream, Transport::Poll, Transport::Ws];

#[test]
fn without_keys_nothing_changes() {
    let server = serve_with(&[]);
    for transport in NAMING {
        assert_eq!(
            opened(&server, transport, "topic=room:1&user=al&token=x").0,
            200,
            "{transport:?}"
        );
    }
    let mut client = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
    assert_eq!(client.command(json!({"type": "connect", "token": "x.y.z"})), "no_tokens");
    assert_eq!(server.api("POST", "/api/revoke", Some(json!({"user": "al"}))).0, 409);
}

#[test]
fn who_has_no_token_may_do_what_needs_none() {
    let grants = "subscribe:room:*,history:room:*,subscribe:closed:1";
    let server = serve(&[("THRONG_AUTH_ANONYMOUS_GRANTS", grants)]);
    for transport in NAMING {
        assert_eq!(opened(&server, transport, "topic=room:1").0, 200, "{transport:?}");
        let refused = (403, "not_granted".to_string());
        // One topic without a grant rejects the whole request.
        assert_eq!(
            opened(&server, transport, "topic=room:1&topic=other"),
            refused,
            "{transport:?}"
        );
        // The rules also apply.
        let closed = opened(&server, transport, "topic=closed:1");
        assert_eq!(closed, (403, "forbidden".into()), "{transport:?}");
        // A client that names a user must prove it.
        let code = if transport == Transport::Ws { 4401 } else { 401 };
        assert_eq!(
            opened(&server, transport, "topic=room:1&user=al"),
            (code, "token_required".into())
        );
    }
    let refused = get(&server, "/presence?topic=room:1");
    assert_eq!(refused.error(), (403, "not_granted"));
    assert_eq!(
        header(&refused.head, "www-authenticate"),
        Some("Bearer realm=\"throng\", error=\"insufficient_scope\"")
    );
    assert_eq!(get(&server, "/history?topic=room:1").status, 200);
    assert_eq!(get(&server, "/history?user=al").error(), (401, "token_required"));
    let reply = request(&server, "POST", "/publish?topic=room:1", "", "x");
    assert_eq!(reply.error(), (403, "not_granted"));
    // A token without grants has those of anonymous clients, and its own topic.
    let token = token(json!({"sub": "al"}));
    for transport in NAMING {
        assert_eq!(opened(&server, transport, &format!("topic=room:1&token={token}")).0, 200);
        let other = opened(&server, transport, &format!("topic=other&token={token}"));
        assert_eq!(other, (403, "not_granted".into()), "{transport:?}");
    }
    let mut client =
        Client::open(&server, Transport::Ws, &format!("token={token}"), "").ok().unwrap();
    server.post("/api/send", json!({"user": "al", "data": "mine"}));
    assert_eq!(client.until("message"), "mine");
    assert_eq!(client.command(json!({"type": "login", "user": "bo"})), "not_granted");
    assert_eq!(client.command(json!({"type": "subscribe", "topic": "room:2"}))["topic"], "room:2");
    // A Phoenix client without a token may join topics that are granted to anonymous clients.
    for transport in [Transport::Phoenix, Transport::Longpoll] {
        let mut client = Client::open(&server, transport, "", "").ok().unwrap();
        assert_eq!(client.join("room:1", json!({}))["status"], "ok", "{transport:?}");
        assert_eq!(client.join("other", json!({}))["response"]["reason"], "unauthorized");
        assert_eq!(opened(&server, transport, "user=al"), (403, "token_required".into()));
    }
    // A client may send its token later.
    let mut client = Client::open(&server, Transport::Ws, "topic=room:1", "").ok().unwrap();
    assert_eq!(client.command(json!({"type": "connect", "token": token}))["users"], json!(["al"]));
    server.publish("room:1", json!("still here"));
    assert_eq!(client.until("message"), "still here");
}

#[test]
fn a_request_repeats_the_users_of_its_token_and_names_no_others() {
    let server = serve(&[REQUIRED]);
    let claims = with(listener("al", &["room:*"]), json!({"users": ["team", "al"]}));
    let token = token(claims);
    for transport in ALL {
        for users in ["", "&user=al", "&user=team", "&user=al&user=team"] {
            let topics = if transport.is_phoenix() { "" } else { "&topic=room:1" };
            let query = format!("token={token}{users}{topics}");
            assert_eq!(opened(&server, transport, &query).0, 200, "{transport:?} {users}");
        }
        for users in ["&user=bo", "&user=al&user=bo", "&user=*", "&user=AL"] {
            let (status, code) = opened(&server, transport, &format!("token={token}{users}"));
            assert_eq!((status, &*code), (403, "not_your_user"), "{transport:?} {users}");
        }
    }
    let acks = |user: &str| {
        let target = format!("/ack?topic=work:1&user={user}&id=00000001:1&token={token}");
        request(&server, "POST", &target, "", "").error().1.to_string()
    };
    assert_eq!(acks("bo"), "not_your_user");
    assert_ne!(acks("team"), "not_your_user");
    let history = |user: &str| get(&server, &format!("/history?user={user}&token={token}"));
    assert_eq!(history("bo").error(), (403, "not_your_user"));
}

#[test]
fn what_is_granted_to_one_user_by_name_is_not_for_who_comes_later() {
    let server = serve(&[REQUIRED]);
    let claims = listener("al", &["chat:al:*", "own:{sub}"]);
    let mut client =
        Client::open(&server, Transport::Ws, &format!("token={}", token(claims)), "").ok().unwrap();
    let found = server.api("GET", "/api/users/al", None).1;
    let id = found["connections"][0]["id"].clone();
    let mut enters =
        |topic: &str| match client.command(json!({"type": "subscribe", "topic": topic})) {
            Value::String(code) => code,
            done => done["topic"].as_str().unwrap().to_string(),
        };
    assert_eq!(enters("chat:al:1"), "chat:al:1");
    assert_eq!(enters("chat:bo:1"), "not_granted");
    // The application logs another user in on the connection, and then logs out the first one.
    server.post("/api/login", json!({"connection": id, "user": "bo"}));
    assert_eq!(enters("chat:al:2"), "chat:al:2");
    assert_eq!(enters("chat:bo:2"), "not_granted");
    assert_eq!(enters("own:bo"), "own:bo");
    server.post("/api/logout", json!({"connection": id, "user": "al"}));
    assert_eq!(enters("chat:al:3"), "chat:al:3");
    assert_eq!(enters("chat:bo:3"), "not_granted");
    assert_eq!(enters("own:al"), "not_granted");
}

#[test]
fn a_token_grants_each_action_by_itself_and_rules_count_beside_it() {
    let server = serve(&[REQUIRED]);
    let of = |action: &str| {
        let mut throng = json!({});
        throng[action] = json!(["room:1", "closed:*", "other"]);
        token(json!({"sub": "al", "throng": throng}))
    };
    let listens = |token: &str, topic: &str| {
        opened(&server, Transport::Sse, &format!("topic={topic}&token={token}"))
    };
    let refused = |code: &str| (403, code.to_string());
    assert_eq!(listens(&of("subscribe"), "room:1").0, 200);
    assert_eq!(listens(&of("subscribe"), "room:11"), refused("not_granted"));
    assert_eq!(listens(&of("subscribe"), "closed:1"), refused("forbidden"));
    let publishes = |token: &str, topic: &str| {
        let target = format!("/publish?topic={topic}&token={token}");
        let reply = request(&server, "POST", &target, "", "x");
        (reply.status, reply.error().1.to_string())
    };
    assert_eq!(publishes(&of("publish"), "room:1").0, 200);
    assert_eq!(publishes(&of("publish"), "room:2"), refused("not_granted"));
    // The token grants it, but no rule lets clients publish.
    assert_eq!(publishes(&of("publish"), "other"), refused("forbidden"));
    let reads =
        |token: &str, topic: &str| get(&server, &format!("/history?topic={topic}&token={token}"));
    assert_eq!(reads(&of("history"), "room:1").status, 200);
    assert_eq!(reads(&of("history"), "room:2").error(), (403, "not_granted"));
    assert_eq!(reads(&of("history"), "closed:1").error(), (403, "forbidden"));
    let sees = |token: &str| get(&server, &format!("/presence?topic=room:1&token={token}"));
    assert_eq!(sees(&of("presence")).error(), (403, "not_granted"), "it may not enter");
    for other in ["publish", "presence", "history"] {
        assert_eq!(listens(&of(other), "room:1"), refused("not_granted"), "{other}");
    }
    for other in ["subscribe", "presence", "history"] {
        assert_eq!(publishes(&of(other), "room:1"), refused("not_granted"), "{other}");
    }
    // A request for earlier messages needs the grant for history; resuming does not.
    let token = of("subscribe");
    for transport in NAMING {
        for since in ["since=start", "since=last:5", "since:room:1=start"] {
            let query = format!("topic=room:1&{since}&token={token}");
            assert_eq!(
                opened(&server, transport, &query),
                refused("not_granted"),
                "{transport:?} {since}"
            );
        }
        let query = format!("topic=room:1&since=00000001:1&token={token}");
        assert_eq!(opened(&server, transport, &query).0, 200, "{transport:?}");
    }
    let mut client =
        Client::open(&server, Transport::Ws, &format!("token={token}"), "").ok().unwrap();
    let subscribe = |since: &str| json!({"type": "subscribe", "topic": "room:1", "since": since});
    assert_eq!(client.command(subscribe("start")), "not_granted");
    assert_eq!(client.command(subscribe("00000001:1"))["topic"], "room:1");
    let mut phoenix =
        Client::open(&server, Transport::Phoenix, &format!("token={token}"), "").ok().unwrap();
    let joined = phoenix.join("room:1", json!({"since": "start"}));
    assert_eq!(joined["response"]["reason"], "unauthorized");
    assert_eq!(phoenix.join("room:1", json!({}))["status"], "ok");
    for (event, payload) in [("history", json!({})), ("say", json!({"a": 1}))] {
        let outcome = phoenix.push("room:1", event, payload);
        assert_eq!(outcome["status"], "error", "{event}: {outcome}");
    }
}

#[test]
fn a_users_name_stands_for_itself() {
    let server = serve(&[REQUIRED]);
    for user in ["*", "a*", "al"] {
        let claims = listener(user, &["room:{sub}", "{sub}:*"]);
        let token = token(claims);
        let own = user.replace('*', "%2A");
        assert_eq!(
            opened(&server, Transport::Sse, &format!("topic=room:{own}&token={token}")).0,
            200
        );
        for other in ["room:bo", "room:alice", "bo:1", "x:1"] {
            let (status, code) =
                opened(&server, Transport::Sse, &format!("topic={other}&token={token}"));
            assert_eq!((status, &*code), (403, "not_granted"), "{user} {other}");
        }
    }
}

#[test]
fn a_topic_token_grants_one_topic_to_one_user() {
    let server = serve(&[REQUIRED]);
    let exp = now_s() + 3_600;
    let own = token(json!({"sub": "al", "throng": {}}));
    let topic =
        |user: &str, topic: &str, exp: u64| token(json!({"sub": user, "topic": topic, "exp": exp}));
    let good = topic("al", "room:1", exp);
    for transport in NAMING {
        let command =
            |with: &str| opened(&server, transport, &format!("topic=room:1&token={own}{with}"));
        assert_eq!(command("").1, "not_granted", "{transport:?}");
        assert_eq!(command(&format!("&topic_token={good}")).0, 200, "{transport:?}");
        let read = format!("&since=start&topic_token={good}");
        assert_eq!(command(&read).0, 200, "{transport:?}: to read what was before as well");
        for (wrong, code) in [
            (topic("bo", "room:1", exp), "not_granted"),
            (topic("al", "room:2", exp), "not_granted"),
            (topic("al", "room:*", exp), "not_granted"),
        ] {
            assert_eq!(
                command(&format!("&topic_token={wrong}")),
                (403, code.into()),
                "{transport:?}"
            );
        }
        let late = topic("al", "room:1", now_s() - 1);
        assert_eq!(command(&format!("&topic_token={late}")).1, "token_expired", "{transport:?}");
        assert_eq!(command(&format!("&topic_token={own}")).1, "invalid_token", "{transport:?}");
        // A topic token does not name the client's user.
        assert_eq!(
            opened(&server, transport, &format!("topic=room:1&token={good}")).1,
            "invalid_token"
        );
        // Several topics, each with its own token.
        let second = topic("al", "room:2", exp);
        let both = format!("&topic=room:2&topic_token={good}&topic_token={second}");
        assert_eq!(command(&both).0, 200, "{transport:?}");
        assert_eq!(
            command(&format!("&topic=room:2&topic_token={good}")).1,
            "not_granted",
            "{transport:?}"
        );
        // The rules also apply.
        let closed = topic("al", "closed:1", exp);
        let query = format!("topic=closed:1&token={own}&topic_token={closed}");
        assert_eq!(opened(&server, transport, &query), (403, "forbidden".into()), "{transport:?}");
    }
    for path in ["/history", "/presence"] {
        let target = format!("{path}?topic=room:1&token={own}");
        assert_eq!(get(&server, &target).error(), (403, "not_granted"), "{path}");
        assert_eq!(get(&server, &format!("{target}&topic_token={good}")).status, 200, "{path}");
    }
    // Publishing needs another grant.
    let target = format!("/publish?topic=room:1&token={own}&topic_token={good}");
    assert_eq!(request(&server, "POST", &target, "", "x").error(), (403, "not_granted"));

    let mut client =
        Client::open(&server, Transport::Ws, &format!("token={own}"), "").ok().unwrap();
    for kind in ["subscribe", "history", "presence"] {
        let command = |token: Value| json!({"type": kind, "topic": "room:1", "token": token});
        assert_eq!(client.command(command(Value::Null)), "not_granted", "{kind}");
        let wrong = topic("bo", "room:1", exp);
        assert_eq!(client.command(command(json!(wrong))), "not_granted", "{kind}");
        assert_eq!(client.command(command(json!("x"))), "invalid_token", "{kind}");
        assert!(client.command(command(json!(good))).is_object(), "{kind}");
    }
    for transport in [Transport::Phoenix, Transport::Longpoll] {
        let mut client =
            Client::open(&server, transport, &format!("token={own}"), "").ok().unwrap();
        for wrong in [json!({}), json!({"token": topic("bo", "room:1", exp)}), json!({"token": 7})]
        {
            let outcome = client.join("room:1", wrong);
            assert_eq!(outcome["response"]["reason"], "unauthorized", "{transport:?}");
        }
        assert_eq!(client.join("room:1", json!({"token": good}))["status"], "ok", "{transport:?}");
    }
}

/// Presence shows the `info` of the token. A client can't set it itself.
#[test]
fn presence_shows_what_the_token_says() {
    let server = serve(&[REQUIRED]);
    let mut claims = everything("al");
    claims["throng"]["info"] = json!({"name": "Alice"});
    let token = token(claims);
    let target = format!("topic=room:1&token={token}");
    let mut client = Client::open(&server, Transport::Ws, &target, "").ok().unwrap();
    let shows = |client: &mut Client, want: Value| {
        server.until(&format!("presence shows {want}"), |_| {
            let listed = client.command(json!({"type": "presence", "topic": "room:1"}));
            let meta = listed["presences"]["al"]["metas"][0].clone();
            want.as_object().unwrap().iter().all(|(name, value)| meta[name] == *value)
        });
    };
    shows(&mut client, json!({"info": {"name": "Alice"}}));
    let meta = json!({"info": {"name": "Mallory"}, "typing": true});
    let update = json!({"type": "presence_update", "topic": "room:1", "meta": meta});
    client.command(update);
    shows(&mut client, json!({"info": {"name": "Alice"}, "typing": true}));
}

/// The topics of a token's users count like other topics of the connection.
#[test]
fn many_users_count_as_topics() {
    let limit = ("THRONG_LIMITS_TOPICS_PER_CONNECTION_MAX", "5");
    let server = serve(&[REQUIRED, limit]);
    let of = |users: usize| {
        let users: Vec<String> = (0..users).map(|at| format!("u{at}")).collect();
        token(json!({"users": users, "throng": {"subscribe": ["*"]}}))
    };
    for transport in NAMING {
        let command = |users: usize, topics: &str| {
            opened(&server, transport, &format!("token={}{topics}", of(users)))
        };
        assert_eq!(command(4, "&topic=a").0, 200, "{transport:?}");
        assert_eq!(command(5, "&topic=a"), (400, "too_many_topics".into()), "{transport:?}");
        assert_eq!(command(6, ""), (400, "too_many_topics".into()), "{transport:?}");
    }
    for transport in [Transport::Phoenix, Transport::Longpoll] {
        let command = |users| opened(&server, transport, &format!("token={}", of(users)));
        assert_eq!(command(5).0, 200, "{transport:?}");
        assert_ne!(command(6).0, 200, "{transport:?}");
    }
    let mut client = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
    assert_eq!(client.command(json!({"type": "connect", "token": of(6)})), "too_many_topics");
    assert!(client.command(json!({"type": "connect", "token": of(5)})).is_object());
}
