//! Users that log in and out on an open connection: by the client over `/ws`, and by the application over the API on
//! every transport.

mod client;

use std::time::{Duration, Instant};

use crate::support::*;
use client::*;
use serde_json::{Value, json};

const TOPICS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/login/topics.toml");

fn serve(settings: &[(&str, &str)]) -> Server {
    Server::with(&["--shards", "2", "--config", TOPICS], settings)
}

fn send(server: &Server, user: &str, data: &str) {
    server.post("/api/send", json!({"user": user, "data": data}));
}

/// Sends a command with its own id. Returns the result or the error's code.
fn request(socket: &mut WebSocket, kind: &str, user: &str) -> Value {
    let reply = command(socket, json!({"type": kind, "id": user, "user": user}));
    assert_eq!(reply["id"], user);
    match reply.get("ok") {
        Some(ok) => ok.clone(),
        None => reply["error"]["code"].clone(),
    }
}

/// Returns the data of the next message.
fn data(socket: &mut WebSocket) -> Value {
    loop {
        let message = receive(socket);
        if message["type"] == "message" {
            return message["data"].clone();
        }
    }
}

/// Returns the users that are present in a topic.
fn present(server: &Server, topic: &str) -> Vec<String> {
    let reply = server.get(&format!("/presence?topic={topic}")).1;
    reply["presences"].as_object().unwrap().keys().cloned().collect()
}

fn until_present(server: &Server, topic: &str, users: &[&str]) {
    server.until(&format!("{users:?} are in {topic}"), |server| present(server, topic) == users);
}

#[test]
fn a_websocket_client_becomes_users_and_ceases_to_be() {
    let server = serve(&[]);
    let mut socket = websocket(&server, "");
    let want = |users, already| json!({"user": "al", "users": users, "already": already});
    assert_eq!(request(&mut socket, "login", "al"), want(1, false));
    assert_eq!(request(&mut socket, "login", "al"), want(1, true));
    let bo = json!({"user": "bo", "users": 2, "already": false});
    assert_eq!(request(&mut socket, "login", "bo"), bo);
    send(&server, "al", "to al");
    assert_eq!(data(&mut socket), "to al");
    send(&server, "bo", "to bo");
    assert_eq!(data(&mut socket), "to bo");
    let users = &server.api("GET", "/api/users/al", None).1["connections"][0]["users"];
    assert_eq!(*users, json!(["al", "bo"]));

    assert_eq!(request(&mut socket, "logout", "al"), json!({"user": "al", "users": 1}));
    assert_eq!(request(&mut socket, "logout", "al"), "not_logged_in");
    send(&server, "al", "lost");
    send(&server, "bo", "bo stays");
    assert_eq!(data(&mut socket), "bo stays");
    assert!(!is_here(&server, "al") && is_here(&server, "bo"));
    // The next login brings the messages that waited meanwhile.
    assert_eq!(request(&mut socket, "login", "al")["users"], 2);
    assert_eq!([data(&mut socket), data(&mut socket)], ["to al", "lost"]);
    assert_eq!(request(&mut socket, "logout", "bo")["users"], 1);
    assert_eq!(request(&mut socket, "logout", "al")["users"], 0);
    assert!(!is_here(&server, "al") && !is_here(&server, "bo"));
}

#[test]
fn what_is_wrong_with_a_command_is_named() {
    let server = serve(&[]);
    let mut socket = websocket(&server, "");
    for (fields, code) in [
        (json!({"type": "login"}), "bad_user"),
        (json!({"type": "login", "user": ""}), "bad_user"),
        (json!({"type": "logout", "user": "a\n"}), "bad_user"),
        (json!({"type": "login", "user": "x".repeat(255)}), "bad_user"),
        (json!({"type": "login", "user": 7}), "bad_json"),
        (json!({"type": "login", "user": "al", "data": 1}), "bad_command"),
        (json!({"type": "logout", "user": "al"}), "not_logged_in"),
    ] {
        let reply = command(&mut socket, fields.clone());
        assert_eq!(reply["error"]["code"], code, "{fields}: {reply}");
        assert!(reply["error"]["message"].as_str().unwrap().len() > 10);
    }
    // A user's name may have any characters.
    for user in ["*", "@al", "a}", "é \"x\""] {
        assert_eq!(request(&mut socket, "login", user)["user"], user);
        send(&server, user, user);
        assert_eq!(data(&mut socket), user);
    }
}

#[test]
fn the_application_logs_users_in_and_out_on_every_transport() {
    let server = serve(&[]);
    for (at, transport) in ALL.into_iter().enumerate() {
        let (base, user) = (format!("base{at}"), format!("al{at}"));
        let mut client = Client::new(&server, transport, &base);
        let want = |already| json!({"user": user, "users": 2, "already": already});
        assert_eq!(client.login(&server, &user), want(false), "{transport:?}");
        assert_eq!(client.login(&server, &user), want(true), "{transport:?}");
        send(&server, &user, "to the new one");
        assert_eq!(client.data(&server), "to the new one", "{transport:?}");
        send(&server, &base, "to the old one");
        assert_eq!(client.data(&server), "to the old one", "{transport:?}");
        assert_eq!(
            client.logout(&server, &user),
            json!({"user": user, "users": 1}),
            "{transport:?}"
        );
        send(&server, &user, "lost");
        send(&server, &base, "the other stays");
        assert_eq!(client.data(&server), "the other stays", "{transport:?}");
        assert!(!is_here(&server, &user) && is_here(&server, &base), "{transport:?}");
        let again = json!({"connection": client.id, "user": user});
        let (status, reply) = server.api("POST", "/api/logout", Some(again));
        assert_eq!(
            (status, &reply["error"]["code"]),
            (409, &json!("not_logged_in")),
            "{transport:?}"
        );
        // The user that came with the connect can log out as well.
        assert_eq!(client.logout(&server, &base)["users"], 0, "{transport:?}");
        server.post("/api/broadcast", json!({"data": "to all"}));
        assert_eq!(client.data(&server), "to all", "{transport:?}");
    }
}

#[test]
fn an_inbox_is_delivered_at_the_login() {
    let server = serve(&[]);
    for (at, transport) in ALL.into_iter().enumerate() {
        let (base, user) = (format!("base{at}"), format!("al{at}"));
        let mut client = Client::new(&server, transport, &base);
        for number in 0..20 {
            send(&server, &user, &number.to_string());
        }
        client.login(&server, &user);
        if matches!(transport, Transport::Phoenix | Transport::Longpoll) {
            // The server delivers an inbox to a Phoenix client only after the join of the user's topic.
            let topic = format!("@{user}");
            client.push(&server, json!(["1", "1", topic, "phx_join", {}]));
        }
        for number in 0..20 {
            assert_eq!(client.data(&server), number.to_string(), "{transport:?}");
        }
        send(&server, &user, "live");
        assert_eq!(client.data(&server), "live", "{transport:?}");
    }
}

#[test]
fn presence_follows_the_users() {
    let server = serve(&[]);
    let mut socket = websocket(&server, "topic=room:1");
    command(&mut socket, json!({"type": "subscribe", "id": 1, "topic": "room:2"}));
    assert!(present(&server, "room:1").is_empty());
    request(&mut socket, "login", "al");
    until_present(&server, "room:1", &["al"]);
    until_present(&server, "room:2", &["al"]);
    request(&mut socket, "login", "bo");
    until_present(&server, "room:1", &["al", "bo"]);
    command(&mut socket, json!({"type": "subscribe", "id": 2, "topic": "room:3"}));
    until_present(&server, "room:3", &["al", "bo"]);
    request(&mut socket, "logout", "al");
    for chat in ["room:1", "room:2", "room:3"] {
        until_present(&server, chat, &["bo"]);
    }
    drop(socket);
    until_present(&server, "room:1", &[]);

    // The application does the same, also for clients that joined by Phoenix.
    let mut client = Client::new(&server, Transport::Phoenix, "cy");
    client.push(&server, json!(["1", "1", "room:1", "phx_join", {"meta": {"mood": "curious"}}]));
    until_present(&server, "room:1", &["cy"]);
    client.login(&server, "dora");
    until_present(&server, "room:1", &["cy", "dora"]);
    client.logout(&server, "cy");
    until_present(&server, "room:1", &["dora"]);
    client.push(&server, json!(["1", "2", "room:1", "phx_leave", {}]));
    until_present(&server, "room:1", &[]);
}

#[test]
fn stored_subscriptions_come_and_go_with_their_user() {
    let server = serve(&[]);
    for (user, topics) in [
        ("al", &["feed:al", "feed:both", "feed:named", "feed:before", "feed:after"][..]),
        ("bo", &["feed:bo", "feed:both"]),
    ] {
        server.post("/api/subscriptions", json!({"user": user, "add": topics}));
    }
    let mut socket = websocket(&server, "topic=feed:named");
    let subscribe = |socket: &mut WebSocket, topic: &str| {
        command(socket, json!({"type": "subscribe", "id": 1, "topic": topic}));
    };
    subscribe(&mut socket, "feed:before");
    request(&mut socket, "login", "al");
    subscribe(&mut socket, "feed:after");
    request(&mut socket, "login", "bo");
    let topics = |user: &str| -> Vec<String> {
        let found = &server.api("GET", &format!("/api/users/{user}"), None).1["connections"][0];
        let mut topics: Vec<String> = serde_json::from_value(found["topics"].clone()).unwrap();
        topics.sort();
        topics
    };
    let all = ["feed:after", "feed:al", "feed:before", "feed:bo", "feed:both", "feed:named"];
    assert_eq!(topics("bo"), all);
    // A logout leaves topics that the client entered itself, and topics that the other user has as well.
    request(&mut socket, "logout", "al");
    assert_eq!(topics("bo"), ["feed:after", "feed:before", "feed:bo", "feed:both", "feed:named"]);
    server.publish("feed:al", json!("lost"));
    server.publish("feed:both", json!("both"));
    assert_eq!(data(&mut socket), "both");
    request(&mut socket, "login", "cy");
    request(&mut socket, "logout", "bo");
    assert_eq!(topics("cy"), ["feed:after", "feed:before", "feed:named"]);
    // After the client unsubscribes, only the user's stored subscription makes it a member at the next login.
    for topic in ["feed:after", "feed:before", "feed:named"] {
        command(&mut socket, json!({"type": "unsubscribe", "id": 2, "topic": topic}));
    }
    request(&mut socket, "login", "al");
    assert_eq!(topics("cy").len(), 5);
    request(&mut socket, "logout", "al");
    assert!(topics("cy").is_empty());

    // The user comes with the connect. The client itself entered the topic that the URL names.
    let client = websocket(&server, "user=al&topic=feed:named");
    let id = server.api("GET", "/api/users/al", None).1["connections"][0]["id"].clone();
    server.until_members("feed:al", 1);
    server.post("/api/logout", json!({"connection": id, "user": "al"}));
    server.until_members("feed:al", 0);
    server.until_members("feed:named", 1);
    drop(client);

    // A Phoenix client itself enters the topics that it joins.
    let mut client = Client::new(&server, Transport::Phoenix, "dora");
    client.push(&server, json!(["1", "1", "feed:al", "phx_join", {}]));
    server.until_members("feed:al", 1);
    client.login(&server, "al");
    client.logout(&server, "al");
    let found = server.api("GET", "/api/users/dora", None).1;
    assert_eq!(found["connections"][0]["topics"], json!(["feed:al"]));
}

#[test]
fn users_count_against_the_limits_of_a_connection() {
    let few = [
        ("THRONG_LIMITS_TOPICS_PER_CONNECTION_MAX", "2"),
        ("THRONG_LIMITS_JOINS_PER_SECOND_MAX", "10"),
    ];
    let server = serve(&few);
    let mut socket = websocket(&server, "user=al&topic=news");
    assert_eq!(request(&mut socket, "login", "bo"), "too_many_topics");
    assert_eq!(request(&mut socket, "login", "al")["already"], true);
    let id = server.api("GET", "/api/users/al", None).1["connections"][0]["id"].clone();
    let bo = json!({"connection": id, "user": "bo"});
    let (status, reply) = server.api("POST", "/api/login", Some(bo));
    assert_eq!((status, &reply["error"]["code"]), (409, &json!("too_many_topics")));
    assert_eq!(request(&mut socket, "logout", "al")["users"], 0);
    assert_eq!(request(&mut socket, "login", "bo")["users"], 1);
    // The server slows down a client that logs in and out all the time.
    let begun = Instant::now();
    for _ in 0..20 {
        request(&mut socket, "login", "cy");
        request(&mut socket, "logout", "bo");
        request(&mut socket, "login", "bo");
        request(&mut socket, "logout", "cy");
    }
    assert!(begun.elapsed() > Duration::from_millis(1_500), "{:?}", begun.elapsed());
}

#[test]
fn where_clients_may_not_the_application_still_may() {
    let server = serve(&[("THRONG_CLIENT_LOGIN", "refuse")]);
    let mut socket = websocket(&server, "user=al");
    let reply = command(&mut socket, json!({"type": "login", "id": 1, "user": "bo"}));
    assert_eq!(reply["error"]["code"], "forbidden");
    assert!(reply["error"]["message"].as_str().unwrap().contains("client.login"), "{reply}");
    assert_eq!(request(&mut socket, "logout", "al"), "forbidden");
    let id = server.api("GET", "/api/users/al", None).1["connections"][0]["id"].clone();
    server.post("/api/login", json!({"connection": id, "user": "bo"}));
    send(&server, "bo", "to bo");
    assert_eq!(data(&mut socket), "to bo");
}

#[test]
fn a_call_for_no_connection_or_no_user_is_refused() {
    let server = serve(&[]);
    let client = Client::new(&server, Transport::Sse, "al");
    let id = client.id.clone();
    let mut calls = vec![
        (400, "bad_user", json!({"connection": id, "user": ""})),
        (400, "bad_connection", json!({"connection": "al", "user": "bo"})),
        (400, "bad_request", json!({"connection": id})),
        (404, "no_connection", json!({"connection": "00000000-99-1-1", "user": "bo"})),
        (404, "no_connection", json!({"connection": "00000000-0-4000000-1", "user": "bo"})),
    ];
    // The id of a connection that has ended: another client may have its slot.
    drop(client);
    server.until("al has gone", |server| !is_here(server, "al"));
    let _other = Client::new(&server, Transport::Sse, "cy");
    calls.push((404, "no_connection", json!({"connection": id, "user": "bo"})));
    for (status, code, body) in calls {
        for call in ["/api/login", "/api/logout"] {
            let (got, reply) = server.api("POST", call, Some(body.clone()));
            assert_eq!((got, &reply["error"]["code"]), (status, &json!(code)), "{call} {body}");
        }
    }
    // A poll is one request, and names its users each time.
    let mut poll = Stream::new(server.connect());
    poll.send("GET /poll?user=dora&timeout=120 HTTP/1.1\r\nHost: t\r\n\r\n");
    server.until("dora polls", |server| is_here(server, "dora"));
    let found = server.api("GET", "/api/users/dora", None).1;
    let body = json!({"connection": found["connections"][0]["id"], "user": "bo"});
    assert_eq!(server.api("POST", "/api/login", Some(body)).0, 404);
}

#[test]
fn a_user_of_a_login_acknowledges_until_the_logout() {
    let server = serve(&[]);
    let mut socket = websocket(&server, "");
    request(&mut socket, "login", "al");
    request(&mut socket, "login", "bo");
    command(&mut socket, json!({"type": "subscribe", "id": 1, "topic": "work:1"}));
    server.publish("work:1", json!("first"));
    let first = loop {
        let message = receive(&mut socket);
        if message["type"] == "message" {
            break message["id"].clone();
        }
    };
    let ack = |socket: &mut WebSocket, user: &str| {
        let fields =
            json!({"type": "ack", "id": 2, "topic": "work:1", "message": first, "user": user});
        command(socket, fields)
    };
    assert_eq!(ack(&mut socket, "al")["ok"]["topic"], "work:1");
    assert_eq!(ack(&mut socket, "eve")["error"]["code"], "no_user");
    // The subscription goes on for bo, whose position starts now, and then without any user.
    request(&mut socket, "logout", "al");
    assert_eq!(ack(&mut socket, "al")["error"]["code"], "no_user");
    server.publish("work:1", json!("second"));
    assert_eq!(data(&mut socket), "second");
    request(&mut socket, "logout", "bo");
    server.publish("work:1", json!("third"));
    assert_eq!(data(&mut socket), "third");
}

/// While messages come all the time, logins and logouts lose none.
#[test]
fn nothing_is_lost_between_logins() {
    const COUNT: u64 = 300;
    let server = serve(&[]);
    let mut socket = websocket(&server, "user=base");
    let mut next = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..COUNT {
                server.post("/api/send", json!({"user": "al", "data": number}));
            }
        });
        let mut logins = 0;
        while next < COUNT {
            assert_eq!(request(&mut socket, "login", "al")["users"], 2);
            logins += 1;
            for _ in 0..5 {
                let message = loop {
                    let message = receive(&mut socket);
                    if message["type"] == "message" {
                        break message;
                    }
                };
                // The client has acknowledged all earlier messages, so none comes again.
                assert_eq!(message["data"], next);
                next += 1;
                let ack = json!({"type": "ack", "id": 1, "user": "al", "message": message["id"]});
                socket.send(tungstenite::Message::text(ack.to_string())).unwrap();
                if next == COUNT {
                    break;
                }
            }
            // Messages before the reply are skipped here. They come with the next login.
            let logout = json!({"type": "logout", "id": "out", "user": "al"});
            socket.send(tungstenite::Message::text(logout.to_string())).unwrap();
            while receive(&mut socket)["id"] != "out" {}
        }
        assert_eq!(logins, COUNT / 5);
    });
}
