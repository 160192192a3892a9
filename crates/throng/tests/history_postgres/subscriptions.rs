//! Users' stored subscriptions in a real PostgreSQL, which several servers share.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::upgrade::node::{Node, Options};

/// Changes a user's stored subscriptions.
fn change(server: &Server, user: &str, add: &[&str], remove: &[&str]) -> Value {
    server.post("/api/subscriptions", json!({"user": user, "add": add, "remove": remove}))
}

pub(super) fn topics(server: &Server, user: &str) -> Vec<String> {
    let (status, reply) = server.api("GET", &format!("/api/subscriptions/{user}"), None);
    assert_eq!(status, 200, "{reply}");
    reply["topics"].as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
}

fn until_topics(server: &Server, user: &str, expected: &[&str]) {
    server.until(&format!("{user} has {expected:?}"), |server| topics(server, user) == expected);
}

/// Waits until a topic has one member, and checks that the member gets a message.
fn receives(server: &Server, member: &mut Stream, topic: &str, data: impl Into<Value>) {
    let data = data.into();
    server.until(&format!("a member is in {topic}"), |server| {
        server.publish(topic, data.clone())["members"] == 1
    });
    assert_eq!(next(member).1, data, "{topic}");
}

/// Waits until no member is in a topic.
fn until_left(server: &Server, topic: &str) {
    server.until(&format!("no member is in {topic}"), |server| {
        let (status, reply) = server.api("GET", &format!("/api/topics/{topic}"), None);
        assert_eq!(status, 200, "{reply}");
        reply["members"] == 0
    });
}

/// Imports rows. Returns the status and the body.
fn import(server: &Server, rows: &str) -> (u16, Value) {
    let head = "POST /api/subscriptions/import HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: text/csv";
    let mut socket = connect(server.admin);
    write!(socket, "{head}\r\nContent-Length: {}\r\n\r\n{rows}", rows.len()).unwrap();
    let mut reply = String::new();
    socket.read_to_string(&mut reply).unwrap();
    let status = reply.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = reply.split_once("\r\n\r\n").unwrap();
    (status, serde_json::from_str(body).unwrap())
}

#[test]
fn a_change_at_one_server_counts_at_all_and_through_a_restart() {
    let database = Database::start();
    let [first, second] = [database.server(), database.server()];
    let mut here = member(&first, "user=bob");
    let mut there = member(&second, "user=bob");
    let reply = change(&first, "bob", &["feed:b", "feed:a", "feed:b"], &["feed:x"]);
    let expected = json!({"user": "bob", "added": 2, "removed": 0, "count": 2, "connections": 1});
    assert_eq!(reply, expected);
    // The server replies after it has applied the change.
    assert_eq!(topics(&first, "bob"), ["feed:a", "feed:b"]);
    receives(&first, &mut here, "feed:a", 1);
    until_topics(&second, "bob", &["feed:a", "feed:b"]);
    receives(&second, &mut there, "feed:b", 2);
    // The other server removes what the first one added.
    let reply = change(&second, "bob", &["feed:c"], &["feed:a"]);
    assert_eq!(
        (&reply["added"], &reply["removed"], &reply["count"]),
        (&json!(1), &json!(1), &json!(2))
    );
    until_topics(&first, "bob", &["feed:b", "feed:c"]);
    until_left(&first, "feed:a");
    receives(&first, &mut here, "feed:c", 3);
    let unchanged = change(&second, "bob", &["feed:c"], &["feed:a"]);
    assert_eq!((&unchanged["added"], &unchanged["connections"]), (&json!(0), &json!(0)));
    let first = database.replace(first);
    assert_eq!(topics(&first, "bob"), ["feed:b", "feed:c"], "they are there at the start");
    let mut back = member(&first, "user=bob");
    receives(&first, &mut back, "feed:b", 4);
    let (_, page) = second.api("GET", "/api/topics/feed:b/subscribers", None);
    assert_eq!(page["subscribers"], json!([{"user": "bob", "connected": true}]), "{page}");
    let (status, reply) = first.api("DELETE", "/api/subscriptions/bob", None);
    assert_eq!(
        (status, &reply["removed"], &reply["count"]),
        (200, &json!(2), &json!(0)),
        "{reply}"
    );
    until_topics(&second, "bob", &[]);
    until_left(&second, "feed:b");
}

#[test]
fn servers_that_change_one_user_at_the_same_moment_lose_nothing() {
    let database = Database::start();
    let servers = [database.server(), database.server()];
    thread::scope(|scope| {
        for (number, server) in servers.iter().enumerate() {
            for part in 0..2 {
                scope.spawn(move || {
                    for topic in 0..40 {
                        let name = format!("t:{number}:{part}:{topic:02}");
                        change(server, "al", &[&name], &["t:none"]);
                        // A subscription that this caller removes must stay removed.
                        if topic % 4 == 3 {
                            change(server, "al", &[], &[&name]);
                        }
                    }
                });
            }
        }
    });
    let mut expected: Vec<String> = Vec::new();
    for (number, part) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let names = (0..40).filter(|topic| topic % 4 != 3);
        expected.extend(names.map(|topic| format!("t:{number}:{part}:{topic:02}")));
    }
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    servers.iter().for_each(|server| until_topics(server, "al", &expected));
    assert_eq!(database.postgres.psql("SELECT total FROM throng.subscriptions_log"), "120");
}

#[test]
fn limits_count_over_all_servers_and_an_import_is_all_or_nothing() {
    let database = Database::start();
    let limits = [
        ("THRONG_HISTORY_SUBSCRIPTIONS_PER_USER_MAX", "3"),
        ("THRONG_HISTORY_SUBSCRIPTIONS_MAX", "5"),
    ];
    let [first, second] = [0, 1].map(|_| database.server_with(&limits));
    change(&first, "bob", &["a", "b"], &[]);
    // The second server may not know the first two subscriptions yet.
    let body = json!({"changes": [
        {"user": "bob", "add": ["c", "d"]},
        {"user": "bob", "add": ["c"], "remove": ["a"]},
        {"user": "cy", "add": ["@odd"]},
        {"user": "bob", "add": ["a"]},
    ]});
    let reply = second.post("/api/subscriptions", body);
    let result = |at: usize| reply["results"][at].clone();
    assert_eq!(result(0)["error"]["code"], "too_many_subscriptions", "{reply}");
    assert!(
        result(0)["error"]["message"].as_str().unwrap().contains("\"bob\" would have 4"),
        "{reply}"
    );
    assert_eq!(result(1)["ok"]["count"], 2, "{reply}");
    assert_eq!(result(2)["error"]["code"], "bad_topic", "{reply}");
    assert_eq!(result(3)["ok"]["count"], 3, "{reply}");
    assert_eq!(topics(&second, "bob"), ["a", "b", "c"]);
    let (status, reply) = import(&first, "user,topic\ncy,a\nbob,d\n");
    let text = reply["error"]["message"].as_str().unwrap();
    assert_eq!((status, text.contains("line 3: ")), (409, true), "{reply}");
    assert!(topics(&first, "cy").is_empty(), "nothing of it is done");
    let (status, reply) = import(&first, "cy,a\ncy,b\ncy,c\n");
    assert_eq!((status, &reply["error"]["code"]), (409, &json!("subscriptions_full")), "{reply}");
    assert!(reply["error"]["message"].as_str().unwrap().contains("3 more"), "{reply}");
    let (status, reply) = import(&first, "cy,a\nbob,b\ncy,b\n");
    assert_eq!((status, &reply["rows"], &reply["added"]), (200, &json!(3), &json!(2)), "{reply}");
    until_topics(&second, "cy", &["a", "b"]);
    let body = json!({"user": "dora", "add": ["a"]});
    let (status, reply) = second.api("POST", "/api/subscriptions", Some(body.clone()));
    assert_eq!((status, &reply["error"]["code"]), (409, &json!("subscriptions_full")), "{reply}");
    // A user may always remove subscriptions, which makes room for others.
    change(&second, "bob", &[], &["a"]);
    let (status, reply) = first.api("POST", "/api/subscriptions", Some(body));
    assert_eq!((status, &reply["count"]), (200, &json!(1)), "{reply}");
}

/// Waits until a server has lost its connection for subscriptions, or has it again.
fn until_subscriptions_connected(server: &Server, connected: f64) {
    server.until("the subscriptions' connection is as expected", |server| {
        server.metric("throng_subscriptions_connected") == connected
    });
}

#[test]
fn a_server_that_was_cut_off_refuses_changes_serves_members_and_catches_up() {
    let database = Database::start();
    let first = database.server();
    let second = database.server_b(&[]);
    change(&first, "bob", &["feed:a"], &[]);
    until_topics(&second, "bob", &["feed:a"]);
    database.lock_out(&second);
    until_subscriptions_connected(&second, 0.0);
    let stats_of =
        |server: &Server| server.api("GET", "/api/stats", None).1["subscription_database"].take();
    let (connected, away) = (stats_of(&first), stats_of(&second));
    assert_eq!((&connected["nodes_connected"], &away["nodes_connected"]), (&json!(1), &json!(0)));
    assert_eq!(connected.get("error"), Some(&Value::Null), "{connected}");
    assert!(away["error"].is_string(), "{away}");
    assert_eq!(away["applied"], 1, "{away}");
    let body = json!({"user": "bob", "add": ["feed:z"]});
    let (status, reply) = second.api("POST", "/api/subscriptions", Some(body));
    assert_eq!((status, &reply["error"]["code"]), (503, &json!("store_failed")), "{reply}");
    let mut member = member(&second, "user=bob");
    receives(&second, &mut member, "feed:a", 1);
    change(&first, "bob", &["feed:b"], &["feed:a"]);
    for number in 0..600 {
        change(&first, &format!("u{number}"), &["feed:all"], &[]);
    }
    database.let_in();
    until_topics(&second, "bob", &["feed:b"]);
    until_topics(&second, "u599", &["feed:all"]);
    assert_eq!(topics(&second, "u0"), ["feed:all"], "more than one page");
    until_left(&second, "feed:a");
    receives(&second, &mut member, "feed:b", 2);
    until_subscriptions_connected(&second, 1.0);
    assert_eq!(second.metric("throng_subscriptions_reloads_total"), 0.0);
    change(&second, "bob", &["feed:z"], &[]);
}

#[test]
fn a_server_that_missed_deleted_rows_or_another_table_reads_all_anew() {
    let database = Database::start();
    let first = database.server();
    let second = database.server_b(&[]);
    change(&first, "bob", &["feed:a"], &[]);
    change(&first, "cy", &["feed:a"], &[]);
    until_topics(&second, "cy", &["feed:a"]);
    let mut member = member(&second, "user=bob");
    database.lock_out(&second);
    until_subscriptions_connected(&second, 0.0);
    change(&first, "bob", &[], &["feed:a"]);
    let psql = |text: &str| database.postgres.psql(text);
    psql("UPDATE throng.subscriptions SET changed_at = changed_at - interval '2 days'");
    // A server deletes old rows of users without subscriptions when it connects.
    let first = database.replace(first);
    first.until("the row is deleted", |_| psql("SELECT count(*) FROM throng.subscriptions") == "1");
    database.let_in();
    until_topics(&second, "bob", &[]);
    assert_eq!(topics(&second, "cy"), ["feed:a"]);
    // The server counts a reload when it has read everything.
    second.until("all is read", |it| it.metric("throng_subscriptions_reloads_total") == 1.0);
    until_left(&second, "feed:a");
    // As after a restored backup: another epoch, and fewer changes.
    psql(
        "DELETE FROM throng.subscriptions; \
          INSERT INTO throng.subscriptions VALUES ('bob', '{feed:old}', 1, now()); \
          UPDATE throng.subscriptions_log SET epoch = epoch % 1000 + 7, last_change = 1, forgotten = 0, total = 1",
    );
    for server in [&first, &second] {
        until_topics(server, "bob", &["feed:old"]);
        until_topics(server, "cy", &[]);
    }
    receives(&second, &mut member, "feed:old", 1);
    change(&first, "bob", &["feed:new"], &[]);
    until_topics(&second, "bob", &["feed:new", "feed:old"]);
}

#[test]
fn changes_of_two_servers_count_through_upgrades() {
    let database = Database::start();
    let url = database.postgres.url("postgres");
    let node = || {
        let topics =
            format!("[timeouts]\ndrain_seconds = 0\n\n[history]\nurl = \"{url}\"\n\n{RULES}");
        let node = Node::with(Options { topics, ..Options::default() });
        until_connected(&node);
        node
    };
    let nodes = [node(), node()];
    let mut live = member(&nodes[0], "user=al");
    // The user always has the last nine topics of a growing list.
    let name = |number: usize| format!("t:{number:06}");
    let slide = |number: usize| {
        let old = number.checked_sub(9).map(name);
        let removed: Vec<&str> = old.iter().map(String::as_str).collect();
        change(&nodes[number % 2], "al", &[&name(number)], &removed);
        name(number)
    };
    let done = AtomicBool::new(false);
    let names = thread::scope(|scope| {
        let adding = scope.spawn(|| {
            let mut names = Vec::new();
            // At least twenty changes, however fast the upgrades are.
            while names.len() < 20 || !done.load(Ordering::SeqCst) && names.len() < 20_000 {
                names.push(slide(names.len()));
            }
            names
        });
        for _ in 0..3 {
            nodes[0].upgrade();
        }
        done.store(true, Ordering::SeqCst);
        adding.join().unwrap()
    });
    assert!(names.len() > 10, "{}", names.len());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let names = &names[names.len() - 9..];
    nodes.iter().for_each(|node| until_topics(node, "al", names));
    assert_eq!(
        nodes[0].metric("throng_subscriptions_reloads_total"),
        0.0,
        "the position came along"
    );
    for name in [names[0], names[names.len() - 1]] {
        receives(&nodes[0], &mut live, name, name);
    }
}
